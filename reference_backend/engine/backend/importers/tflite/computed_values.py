# SPDX-License-Identifier: Apache-2.0
"""TFLite operators that compute values, whose options TVM's importer drops or misreads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import tflite
from tvm import relax

from .tensors import Tensors, constant

Arg = Callable[[relax.Expr, int], relax.Expr]
Unary = Callable[[relax.Expr], relax.Expr]
Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]
Reduce = Callable[[relax.Expr, Sequence[int], bool], relax.Expr]
_REDUCTIONS = {
    "MEAN": relax.op.mean,
    "REDUCE_MAX": relax.op.max,
    "REDUCE_MIN": relax.op.min,
    "REDUCE_PROD": relax.op.prod,
    "SUM": relax.op.sum,
}


class Values(Tensors):
    """Converters of element-wise operators, reductions and constants."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.convert_map |= {
            "ARG_MAX": partial(self._arg, relax.op.argmax),
            "ARG_MIN": partial(self._arg, relax.op.argmin),
            "BROADCAST_ARGS": self._broadcast_args,
            "BUCKETIZE": self._bucketize,
            "CUMSUM": self._cumsum,
            "EQUAL": partial(self._equal, relax.op.equal),
            "FILL": self._fill,
            "NON_MAX_SUPPRESSION_V4": partial(self._boxes, self.convert_nms_v4),
            "NON_MAX_SUPPRESSION_V5": partial(self._boxes, self.convert_nms_v5),
            "NOT_EQUAL": partial(self._equal, relax.op.not_equal),
            "PADV2": self._pad,
            "POW": partial(self._of_inputs, relax.op.power),
            "RANGE": self._range,
            "SELECT": self._select,
            "SHAPE": self._shape,
            "SQUARE": partial(self._of_inputs, relax.op.square),
            "SQUARED_DIFFERENCE": partial(self._of_inputs, _squared_difference),
        }
        self.convert_map |= {
            name: partial(self._reduce, function) for name, function in _REDUCTIONS.items()
        }

    def _arg(self, function: Arg, op: tflite.Operator) -> relax.Expr:
        data, axis = self.get_input_tensors(op)
        (result,) = self.get_output_tensors(op)
        (place,) = self.axes(axis, len(self.get_tensor_shape(data)))
        # The options repeat the type of the result.
        return relax.op.astype(function(self.get_tensor_expr(data), place), self.dtype(result))

    def _broadcast_args(self, op: tflite.Operator) -> relax.Expr:
        x, y = self.get_input_tensors(op)
        shape = np.broadcast_shapes(self.integers(x), self.integers(y))
        return constant(np.array(shape, self.dtype(x)))

    def _boxes(
        self, convert: Callable[[tflite.Operator], relax.Expr], op: tflite.Operator
    ) -> relax.Expr:
        """Return boxes, their scores and their count, with zeros behind the last one."""
        *fields, count = convert(op).fields
        (most,) = self.integers(self.get_input_tensors(op)[2])
        is_box = relax.op.less(constant(np.arange(most, dtype="int32")), count)
        kept = [
            relax.op.where(is_box, field, relax.const(0, str(field.ty.dtype)))
            for field in map(self.bb.normalize, fields)
        ]
        return relax.Tuple([*kept, count])

    def _bucketize(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.BucketizeOptions)
        bounds = [options.Boundaries(place) for place in range(options.BoundariesLength())]
        (data,) = self.get_input_tensors(op)
        return relax.op.bucketize(
            self.get_tensor_expr(data),
            constant(np.array(bounds, self.dtype(data))),
            out_int32=True,
            right=True,
        )

    def _cumsum(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.CumsumOptions)
        data, axis = self.get_input_tensors(op)
        (place,) = self.axes(axis, len(self.get_tensor_shape(data)))
        value = self.get_tensor_expr(data)
        value = relax.op.flip(value, place) if options.Reverse() else value
        value = relax.op.cumsum(value, place, self.dtype(data), options.Exclusive())
        return relax.op.flip(value, place) if options.Reverse() else value

    def _equal(self, function: Binary, op: tflite.Operator) -> relax.Expr:
        x, y = self.get_input_tensors(op)
        values = [self.get_tensor_expr(x), self.get_tensor_expr(y)]
        if self.dtype(x) != "bool":
            return function(*values)
        differ = relax.op.logical_xor(*values)
        return differ if function is relax.op.not_equal else relax.op.logical_not(differ)

    def _fill(self, op: tflite.Operator) -> relax.Expr:
        size, value = self.get_input_tensors(op)
        return relax.op.broadcast_to(self.get_tensor_expr(value), self.integers(size))

    def _pad(self, op: tflite.Operator) -> relax.Expr:
        data, padding, value = self.get_input_tensors(op)
        number = self.get_tensor_value(value).reshape(-1)[0].item()
        return relax.op.nn.pad(
            self.get_tensor_expr(data), self.integers(padding), "constant", number
        )

    def _of_inputs(self, function: Unary | Binary, op: tflite.Operator) -> relax.Expr:
        return function(*map(self.get_tensor_expr, self.get_input_tensors(op)))

    def _range(self, op: tflite.Operator) -> relax.Expr:
        tensors = self.get_input_tensors(op)
        start, stop, step = (self.stored(tensor).item() for tensor in tensors)
        return constant(np.arange(start, stop, step).astype(self.dtype(tensors[0])))

    def _reduce(self, function: Reduce, op: tflite.Operator) -> relax.Expr:
        keeps = self.options(op, tflite.ReducerOptions).KeepDims()
        data, axis = self.get_input_tensors(op)
        shape, value = self.get_tensor_shape(data), self.get_tensor_expr(data)
        axes = sorted(set(self.axes(axis, len(shape))))
        if not axes:
            return value
        dtype = self.get_tensor_type_str(data.tensor.Type())
        if function is not relax.op.mean or dtype.startswith("float"):
            return function(value, axes, keeps)
        count = int(np.prod([shape[place] for place in axes]))
        return relax.op.divide(relax.op.sum(value, axes, keeps), relax.const(count, dtype))

    def _select(self, op: tflite.Operator) -> relax.Expr:
        condition, x, y = self.get_input_tensors(op)
        value, shape = self.get_tensor_expr(condition), self.get_tensor_shape(condition)
        rank = len(self.get_tensor_shape(x))
        if len(shape) == 1 and rank > 1:
            # A vector as condition selects rows.
            value = relax.op.reshape(value, [*shape, *[1] * (rank - 1)])
        return relax.op.where(value, self.get_tensor_expr(x), self.get_tensor_expr(y))

    def _shape(self, op: tflite.Operator) -> relax.Expr:
        (data,), (result,) = self.get_input_tensors(op), self.get_output_tensors(op)
        # The options repeat the type of the result.
        return constant(np.array(self.get_tensor_shape(data), self.dtype(result)))


def _squared_difference(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    return relax.op.square(relax.op.subtract(x, y))
