# SPDX-License-Identifier: Apache-2.0
"""TFLite operators that move elements, whose options TVM's importer drops or misreads."""

from __future__ import annotations

import math

import numpy as np
import tflite
import tvm
from tvm import relax

from .tensors import Tensors, axis_of, constant


class Places(Tensors):
    """Converters of shapes, slices and indices."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.convert_map |= {
            "EMBEDDING_LOOKUP": self._embedding_lookup,
            "EXPAND_DIMS": self._expand_dims,
            "GATHER": self._gather,
            "GATHER_ND": self._gather_nd,
            "MATRIX_DIAG": self._matrix_diag,
            "MATRIX_SET_DIAG": self._matrix_set_diag,
            "MIRROR_PAD": self._mirror_pad,
            "ONE_HOT": self._one_hot,
            "RESHAPE": self._reshape,
            "REVERSE_V2": self._reverse,
            "SCATTER_ND": self._scatter_nd,
            "SPARSE_TO_DENSE": self._sparse_to_dense,
            "SPLIT": self._split,
            "SPLIT_V": self._split_v,
            "SQUEEZE": self._squeeze,
            "STRIDED_SLICE": self._strided_slice,
        }

    def _embedding_lookup(self, op: tflite.Operator) -> relax.Expr:
        indices, rows = map(self.get_tensor_expr, self.get_input_tensors(op))
        return relax.op.take(rows, indices, 0, "clip")

    def _expand_dims(self, op: tflite.Operator) -> relax.Expr:
        data, axis = self.get_input_tensors(op)
        axes = self.axes(axis, len(self.get_tensor_shape(data)) + 1)
        return relax.op.expand_dims(self.get_tensor_expr(data), axes)

    def _gather(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.GatherOptions)
        data, index = self.get_input_tensors(op)
        shape, rank = self.get_tensor_shape(data), len(self.get_tensor_shape(index))
        axis, batches = axis_of(options.Axis(), len(shape)), options.BatchDims()
        batches = batches + rank if batches < 0 else batches
        if self.is_constant(index):
            values = self.stored(index)
            if values.size and not 0 <= values.min() <= values.max() < shape[axis]:
                raise ValueError(f"an index is not one of an axis of size {shape[axis]}")
        value, indices = self.get_tensor_expr(data), self.get_tensor_expr(index)
        if not batches:
            mode = "fast" if self.is_constant(index) else "clip"
            return relax.op.take(value, indices, axis, mode)
        first, between = list(range(batches)), list(range(batches, axis))
        last = list(range(axis + 1, len(shape)))
        if between:
            value = relax.op.permute_dims(value, [*first, axis, *between, *last])
        indices = relax.op.astype(relax.op.expand_dims(indices, [rank]), "int64")
        value = relax.op.gather_nd(value, indices, batches)
        if not between:
            return value
        chosen = list(range(batches, rank))
        moved = [rank + place for place in range(len(between))]
        rest = [rank + len(between) + place for place in range(len(last))]
        return relax.op.permute_dims(value, [*first, *moved, *chosen, *rest])

    def _gather_nd(self, op: tflite.Operator) -> relax.Expr:
        data, indices = map(self.get_tensor_expr, self.get_input_tensors(op))
        return relax.op.gather_nd(data, relax.op.astype(indices, "int64"))

    def _matrix_diag(self, op: tflite.Operator) -> relax.Expr:
        (data,) = self.get_input_tensors(op)
        value, shape = self.get_tensor_expr(data), self.get_tensor_shape(data)
        is_diagonal = constant(np.eye(shape[-1], dtype=bool))
        zero = relax.const(0, self.dtype(data))
        return relax.op.where(is_diagonal, relax.op.expand_dims(value, [len(shape)]), zero)

    def _matrix_set_diag(self, op: tflite.Operator) -> relax.Expr:
        data, diagonal = self.get_input_tensors(op)
        *_, rows, columns = shape = self.get_tensor_shape(data)
        # Row and column are the same on the diagonal: the shorter side has no others.
        axis = len(shape) - 1 if rows <= columns else len(shape) - 2
        value = relax.op.expand_dims(self.get_tensor_expr(diagonal), [axis])
        is_diagonal = constant(np.eye(rows, columns, dtype=bool))
        return relax.op.where(is_diagonal, value, self.get_tensor_expr(data))

    def _mirror_pad(self, op: tflite.Operator) -> relax.Expr:
        mode = self.options(op, tflite.MirrorPadOptions).Mode()
        data, padding = self.get_input_tensors(op)
        value, widths = self.get_tensor_expr(data), self.integers(padding)
        if mode == tflite.MirrorPadMode.REFLECT:
            return relax.op.nn.pad(value, widths, "reflect")
        for axis, size in enumerate(self.get_tensor_shape(data)):
            width = widths[2 * axis : 2 * axis + 2]
            if any(width):
                places = np.pad(np.arange(size), width, "symmetric")
                value = relax.op.take(value, constant(places), axis)
        return value

    def _one_hot(self, op: tflite.Operator) -> relax.Expr:
        axis = self.options(op, tflite.OneHotOptions).Axis()
        index, count, on, off = self.get_input_tensors(op)
        (depth,), indices = self.integers(count), self.get_tensor_expr(index)
        dtype, rank = self.dtype(on), len(self.get_tensor_shape(index))
        if self.is_constant(on) and self.is_constant(off) and dtype != "bool":
            of_true, of_false = (_scalar(self.stored(scalar).item(), dtype) for scalar in (on, off))
            return relax.op.one_hot(indices, of_true, of_false, depth, axis)
        axis = axis_of(axis, rank + 1)
        shape = [-1 if place == axis else 1 for place in range(rank + 1)]
        places = constant(np.arange(depth, dtype=self.dtype(index)).reshape(shape))
        is_on = relax.op.equal(relax.op.expand_dims(indices, [axis]), places)
        return relax.op.where(is_on, self.get_tensor_expr(on), self.get_tensor_expr(off))

    def _reshape(self, op: tflite.Operator) -> relax.Expr:
        data, *size = self.get_input_tensors(op)
        if size and size[0].tensor_idx >= 0:
            sizes = self.integers(size[0])
        else:
            options = self.options(op, tflite.ReshapeOptions)
            sizes = [int(options.NewShape(i)) for i in range(options.NewShapeLength())]
        elements = math.prod(self.get_tensor_shape(data))
        if sizes == [0] and elements == 1:
            # Old converters write the shape of a scalar as [0].
            sizes = []
        if -1 in sizes:
            count = -math.prod(sizes)
            sizes = [elements // max(count, 1) if size == -1 else size for size in sizes]
        return relax.op.reshape(self.get_tensor_expr(data), sizes)

    def _reverse(self, op: tflite.Operator) -> relax.Expr:
        data, axis = self.get_input_tensors(op)
        value = self.get_tensor_expr(data)
        for place in self.axes(axis, len(self.get_tensor_shape(data))):
            value = relax.op.flip(value, place)
        return value

    def _scatter_nd(self, op: tflite.Operator) -> relax.Expr:
        indices, updates, size = self.get_input_tensors(op)
        zeros = relax.op.zeros(self.integers(size), self.dtype(updates))
        places = relax.op.astype(self.get_tensor_expr(indices), "int64")
        # LiteRT sums values that go to the same place.
        return relax.op.scatter_nd(zeros, places, self.get_tensor_expr(updates), "add")

    def _sparse_to_dense(self, op: tflite.Operator) -> relax.Expr:
        index, size, value, default = self.get_input_tensors(op)
        shape, sizes = self.get_tensor_shape(index), self.integers(size)
        count = math.prod(shape) // len(sizes)
        indices = relax.op.reshape(self.get_tensor_expr(index), [count, len(sizes)])
        values = relax.op.broadcast_to(self.get_tensor_expr(value), [count])
        rest = relax.op.broadcast_to(self.get_tensor_expr(default), sizes)
        return relax.op.scatter_nd(rest, relax.op.astype(indices, "int64"), values, "update")

    def _split(self, op: tflite.Operator) -> relax.Expr:
        count = self.options(op, tflite.SplitOptions).NumSplits()
        axis, data = self.get_input_tensors(op)
        (place,) = self.axes(axis, len(self.get_tensor_shape(data)))
        value = self.get_tensor_expr(data)
        return value if count == 1 else relax.op.split(value, count, place)

    def _split_v(self, op: tflite.Operator) -> relax.Expr:
        data, size, axis = self.get_input_tensors(op)
        shape, sizes = self.get_tensor_shape(data), self.integers(size)
        (place,) = self.axes(axis, len(shape))
        if -1 in sizes:
            sizes[sizes.index(-1)] = shape[place] - sum(sizes) - 1
        value, ends = self.get_tensor_expr(data), np.cumsum(sizes[:-1])
        return value if len(sizes) == 1 else relax.op.split(value, [int(i) for i in ends], place)

    def _squeeze(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.SqueezeOptions)
        (data,) = self.get_input_tensors(op)
        shape = self.get_tensor_shape(data)
        axes = [
            axis_of(options.SqueezeDims(place), len(shape))
            for place in range(options.SqueezeDimsLength())
        ]
        if not axes:
            axes = [axis for axis, size in enumerate(shape) if size == 1]
        value = self.get_tensor_expr(data)
        return relax.op.squeeze(value, axes) if axes else value

    def _strided_slice(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.StridedSliceOptions)
        data, *numbers = self.get_input_tensors(op)
        begins, ends, strides = map(self.integers, numbers)
        count = range(len(begins))
        has = {
            name: [bool(mask >> place & 1) for place in count]
            for name, mask in (
                *(("begin", options.BeginMask()), ("end", options.EndMask())),
                *(("ellipsis", options.EllipsisMask()), ("new", options.NewAxisMask())),
                ("shrink", options.ShrinkAxisMask()),
            )
        }
        shape = self.get_tensor_shape(data)
        rest = len(shape) - sum(not (has["new"][i] or has["ellipsis"][i]) for i in count)
        sizes: list[int] = []
        cuts: list[tuple[int, int, int, int]] = []
        axis = 0
        for place, begin in enumerate(begins):
            if has["ellipsis"][place]:
                sizes += shape[axis : axis + rest]
                axis += rest
            elif has["new"][place]:
                sizes.append(1)
            else:
                size, step = shape[axis], strides[place]
                start = None if has["begin"][place] else begin
                stop = None if has["end"][place] else ends[place]
                if options.Offset() and stop is not None:
                    stop += begin
                if has["shrink"][place]:
                    start, step = (start or 0) % size, 1
                    stop = start + 1
                part = range(size)[start:stop:step]
                if part != range(size):
                    end = part.stop if part.stop >= 0 else -size - 1
                    cuts.append((axis, part.start, end, step))
                if not has["shrink"][place]:
                    sizes.append(len(part))
                axis += 1
        sizes += shape[axis:]
        if 0 in sizes:
            raise ValueError("its result has no elements")
        value = self.get_tensor_expr(data)
        if cuts:
            value = relax.op.strided_slice(value, *map(list, zip(*cuts, strict=True)))
        changes = any(has["new"]) or any(has["shrink"])
        return relax.op.reshape(value, sizes) if changes else value


def _scalar(value: float, dtype: str) -> relax.Expr:
    number = tvm.tirx.FloatImm if dtype.startswith("float") else tvm.tirx.IntImm
    return relax.prim_value(number(dtype, value))
