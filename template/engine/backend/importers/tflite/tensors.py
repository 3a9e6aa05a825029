# SPDX-License-Identifier: Apache-2.0
"""Tensors of a TFLite file, as TVM's converters and ours read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import tflite
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, TensorWrapper

from ...shared.aliases import Array
from ..declared import Declared
from ..sizes import sizes_of

TYPES = {
    int(getattr(tflite.TensorType, name.upper())): name
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64"),
    )
}
"""The element types by their numbers in files; those of 4 bits are read as int8."""
_NAMES = {value: name.lower() for name, value in vars(tflite.TensorType).items() if name.isupper()}
_INT4 = int(tflite.TensorType.INT4)
TYPES[_INT4] = "int8"
_ACTIVATIONS = tuple(
    getattr(tflite.ActivationFunctionType, name)
    for name in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
)
NO_FIELDS = bytes([4, 0, 4, 0, 4, 0, 0, 0])
"""A table of the file format without fields, at the place 4."""
Options = TypeVar("Options")
_QUANTIZED = ("int8", "uint8", "int16")


class Scales(NamedTuple):
    """How integers stand for real numbers: scalars, or vectors along an axis."""

    scale: Array
    zero: Array
    axis: int


class Tensor:
    """A tensor of a file, in the form in which converters should see it."""

    def __init__(self, given: tflite.Tensor, name: str) -> None:
        self.given = given
        self.name = name
        self.scales: Scales | None = None
        self.shape: Sequence[int] | None = None
        """The shape of what was read, which resized inputs change."""

    def __getattr__(self, name: str) -> object:
        """Return what the file has."""
        return getattr(self.given, name)

    def Name(self) -> bytes:
        """Return the name, which no other tensor of the subgraph has."""
        return self.name.encode()

    def Type(self) -> int:
        """Return what converters choose types by: integers with scales are real numbers."""
        if self.scales is not None:
            return int(tflite.TensorType.FLOAT32)
        given = int(self.given.Type())
        return int(tflite.TensorType.INT8) if given == _INT4 else given

    def ShapeAsNumpy(self) -> Array:
        """Return the shape."""
        sizes = self.given.ShapeAsNumpy() if self.given.ShapeLength() else ()
        return np.array(sizes if self.shape is None else self.shape, "int32")

    def ShapeLength(self) -> int:
        """Return the rank."""
        return len(self.ShapeAsNumpy())

    def Shape(self, axis: int) -> int:
        """Return a size."""
        return int(self.ShapeAsNumpy()[axis])


class Subgraph:
    """A subgraph of a file; its tensors have names of their own, which are their keys in TVM."""

    def __init__(self, given: tflite.SubGraph) -> None:
        self.given = given
        self._names: list[str] = []
        taken: set[str] = set()
        for index in range(given.TensorsLength()):
            name = (given.Tensors(index).Name() or b"").decode(errors="replace")
            if not name or name in taken:
                name = f"{name or 'tensor'}:{index}"
            taken.add(name)
            self._names.append(name)

    def __getattr__(self, name: str) -> object:
        """Return what the file has."""
        return getattr(self.given, name)

    def Tensors(self, index: int) -> Tensor:
        """Return a tensor."""
        if not 0 <= index < len(self._names):
            raise ValueError(f"the file has no tensor {index}")
        return Tensor(self.given.Tensors(index), self._names[index])


class Tensors(OperatorConverter):  # type: ignore[misc]
    """What TVM's converters ask about tensors, answered right: constants, shapes, scales."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._values: dict[int, Array] = {}
        """Values of tensors that are computed while reading, by number."""

    def get_tensors(self, tensors_idx_list: Iterable[int] | None) -> list[TensorWrapper]:
        """Return tensors; quantized ones look like real numbers."""
        return [self._tensor(int(index)) for index in self._indices_or_empty(tensors_idx_list)]

    def get_tensor_type_str(self, tensor_type: int) -> str:
        """Return an element type by its name in NumPy."""
        if tensor_type not in TYPES:
            known = ", ".join(sorted({*TYPES.values(), "int4"}))
            name = _NAMES.get(tensor_type, tensor_type)
            raise ValueError(f"a tensor has the element type {name}; supported are {known}")
        return TYPES[tensor_type]

    def get_tensor_shape(self, tensor_wrapper: TensorWrapper) -> list[int]:
        """Return the shape of what was read."""
        return [int(size) for size in tensor_wrapper.tensor.ShapeAsNumpy()]

    def get_tensor_value(self, tensor_wrapper: TensorWrapper, is_sparse: bool = False) -> Array:
        """Return a constant, as real numbers if it is quantized."""
        value = self.stored(tensor_wrapper)
        scales: Scales | None = tensor_wrapper.scales
        if scales is None:
            return value
        scale, zero, axis = scales
        along = [-1 if index == axis else 1 for index in range(value.ndim)] if scale.ndim else ()
        real: Array = (value.astype("float32") - zero.reshape(along)) * scale.reshape(along)
        return real.astype("float32")

    def get_tensor_expr(self, tensor: TensorWrapper, is_sparse: bool = False) -> relax.Expr:
        """Return what was read of a tensor, or its constant."""
        if self.has_expr(tensor.tensor_idx):
            return self.exp_tab.get_expr(tensor.tensor.name)
        value = self.get_tensor_value(tensor)
        if value.dtype == "complex64":
            value = value.view("float32").reshape((*value.shape, 2))
        return constant(value)

    def get_expr(self, input_tensor_idx: int) -> relax.Expr:
        """Return what was read of a tensor, or its constant."""
        return self.get_tensor_expr(self._tensor(input_tensor_idx))

    def has_expr(self, input_tensor_idx: int) -> bool:
        """Tell whether a tensor was read; constants are not."""
        return input_tensor_idx >= 0 and bool(super().has_expr(input_tensor_idx))

    def is_constant(self, tensor: TensorWrapper) -> bool:
        """Tell whether the value of a tensor is known."""
        if tensor.tensor_idx in self._values:
            return True
        if tensor.tensor_idx < 0:
            return False
        is_empty = 0 in self.get_tensor_shape(tensor) and not self.has_expr(tensor.tensor_idx)
        return bool(tensor.buffer.DataLength()) or is_empty

    def stored(self, tensor: TensorWrapper) -> Array:
        """Return a constant as the file has it; integers of 4 bits in bytes, sparse ones dense."""
        if tensor.tensor_idx in self._values:
            return self._values[tensor.tensor_idx]
        if not self.is_constant(tensor):
            raise ValueError(f"the tensor {tensor.tensor.name!r} must be a constant")
        given, shape = tensor.tensor.given, self.get_tensor_shape(tensor)
        content = tensor.buffer.DataAsNumpy().tobytes() if tensor.buffer.DataLength() else b""
        if given.Type() == _INT4:
            values = _unpacked(content)
        else:
            values = np.frombuffer(content, self.dtype(tensor))
        if given.Sparsity() is not None:
            return _dense(given.Sparsity(), values, shape)
        size = int(np.prod(shape))
        if given.Type() == _INT4 and values.size == size + 1:
            values = values[:size]
        if values.size != size:
            raise ValueError(
                f"the tensor {tensor.tensor.name!r} of shape {shape} has {values.size} elements"
            )
        return values.reshape(shape)

    def integers(self, tensor: TensorWrapper) -> list[int]:
        """Return the numbers of a constant, such as axes."""
        return [int(number) for number in self.stored(tensor).reshape(-1)]

    def axes(self, tensor: TensorWrapper, rank: int) -> list[int]:
        """Return the axes that a constant names."""
        return [axis_of(number, rank) for number in self.integers(tensor)]

    def options(self, op: tflite.Operator, kind: Callable[[], Options]) -> Options:
        """Return the options of an operator; without any, they have their defaults."""
        if op.BuiltinOptions() is not None:
            given: Options = self._get_builtin_options(op, kind)
            return given
        defaults = kind()
        defaults.Init(NO_FIELDS, 4)  # type: ignore[attr-defined]
        return defaults

    def convert_fused_activation_function(self, in_expr: relax.Expr, fused: int) -> relax.Expr:
        """Apply what LiteRT's kernels apply."""
        if fused not in _ACTIVATIONS:
            raise ValueError(
                f"the fused activation {self.activation_fn_type.get(fused, fused)} is not "
                "supported; supported are NONE, RELU, RELU6 and RELU_N1_TO_1"
            )
        return super().convert_fused_activation_function(in_expr, fused)

    def know(self, tensor: TensorWrapper, value: Array) -> None:
        """Set the value of a tensor, as a file would have it."""
        self._values[tensor.tensor_idx] = value

    def dtype(self, tensor: TensorWrapper) -> str:
        """Return the element type in the file."""
        return self.get_tensor_type_str(tensor.tensor.given.Type())

    def declared(self, tensor: TensorWrapper) -> Declared:
        """Return what the file says of a result."""
        given = tensor.tensor.given
        dtype = "float32" if tensor.scales is not None else self.dtype(tensor)
        sizes = [int(size) for size in _sizes(given)]
        if not sizes and not given.HasRank():
            return Declared(dtype, None)
        signed = sizes
        if given.ShapeSignatureLength() == len(sizes):
            signed = given.ShapeSignatureAsNumpy()
        is_open = self.conversion_state.get("resized", False)
        shape: list[int | None] = [
            None if is_open or -1 in both else both[0] for both in zip(sizes, signed, strict=True)
        ]
        if dtype == "complex64":
            dtype, shape = "float32", [*shape, 2]
        return Declared(dtype, shape)

    def _get_subgraph(self, *arguments: object, **options: object) -> Subgraph:
        return Subgraph(super()._get_subgraph(*arguments, **options))

    def _tensor(self, index: int) -> TensorWrapper:
        if index < 0:
            wrapper = TensorWrapper(index, 0, 0)
            wrapper.scales = None
            return wrapper
        tensor = self.subgraph.Tensors(index)
        wrapper = TensorWrapper(index, tensor, self.model.Buffers(tensor.Buffer()))
        if TYPES.get(tensor.given.Type()) in _QUANTIZED:
            tensor.scales = _scales(tensor, TYPES[tensor.given.Type()])
        wrapper.scales = tensor.scales
        if index in self._values:
            tensor.shape = self._values[index].shape
        elif self.exp_tab.has_expr(tensor.name):
            tensor.shape = static_shape(self.exp_tab.get_expr(tensor.name)) or tensor.shape
        return wrapper


def constant(value: Array) -> relax.Expr:
    """Return a constant of the array's own type; TVM's `const` makes int64 int32."""
    return relax.const(value, str(value.dtype))


def axis_of(axis: int, rank: int) -> int:
    """Return an axis, counted from the first."""
    if not -rank <= axis < rank:
        raise ValueError(f"the axis {axis} is not one of a tensor with {rank} axes")
    return axis % rank if rank else 0


def static_shape(expr: relax.Expr) -> list[int] | None:
    """Return the shape of a tensor if all its sizes are known."""
    sizes = sizes_of(expr.ty) if isinstance(expr.ty, relax.TensorType) else None
    return None if sizes is None or None in sizes else [size or 0 for size in sizes]


def _sizes(given: tflite.Tensor) -> Array | tuple[()]:
    return given.ShapeAsNumpy() if given.ShapeLength() else ()


def _scales(tensor: Tensor, dtype: str) -> Scales | None:
    given = tensor.given.Quantization()
    if given is None or not given.ScaleLength():
        return None
    if given.DetailsType():
        raise ValueError(
            f"the tensor {tensor.name!r} is quantized in blocks or by a custom scheme; supported "
            "are one scale and one for each channel"
        )
    scale, axis = given.ScaleAsNumpy().astype("float32"), int(given.QuantizedDimension())
    zero = given.ZeroPointAsNumpy() if given.ZeroPointLength() else np.zeros(1, "int64")
    if zero.size not in (1, scale.size):
        raise ValueError(
            f"the tensor {tensor.name!r} has {scale.size} scales and {zero.size} zero points"
        )
    if scale.size == 1:
        return Scales(scale.reshape(()), zero.astype(dtype).reshape(()), -1)
    return Scales(scale, np.broadcast_to(zero, scale.shape).astype(dtype), axis)


def _unpacked(content: bytes) -> Array:
    """Return integers of 4 bits, two in each byte, the lower half first."""
    packed = np.frombuffer(content, "uint8")
    halves = np.stack([packed & 15, packed >> 4], 1).reshape(-1)
    return ((halves ^ 8).astype("int8") - 8).astype("int8")


def _dense(sparsity: tflite.SparsityParameters, values: Array, shape: Sequence[int]) -> Array:
    """Return a sparse constant in full; its levels are dense, or lists of what is not zero."""
    order = sparsity.TraversalOrderAsNumpy()
    blocks = sparsity.BlockMapAsNumpy() if sparsity.BlockMapLength() else ()
    places, levels = np.zeros(1, "int64"), np.zeros((0, 1), "int64")
    sizes = {}
    for level, axis in enumerate(order):
        metadata = sparsity.DimMetadata(level)
        if metadata.Format() == tflite.DimensionType.DENSE:
            size = sizes[int(axis)] = metadata.DenseSize()
            counts = np.full(places.shape, size)
            at = np.tile(np.arange(size), places.size)
            places = np.repeat(places, size) * size + at
        else:
            segments = _vector(metadata.ArraySegments(), metadata.ArraySegmentsType())
            indices = _vector(metadata.ArrayIndices(), metadata.ArrayIndicesType())
            counts = segments[places + 1] - segments[places]
            ends = np.cumsum(counts)
            first = np.repeat(segments[places] - ends + counts, counts)
            places = first + np.arange(ends[-1] if ends.size else 0)
            at = indices[places]
        levels = np.concatenate([np.repeat(levels, counts, 1), at[None]])
    coordinates = np.zeros((len(shape), places.size), "int64")
    for axis, at in zip(order, levels, strict=True):
        if axis < len(shape):
            coordinates[axis] += at * _block(int(axis), blocks, sizes, len(shape))
        else:
            coordinates[blocks[axis - len(shape)]] += at
    result: Array = np.zeros(shape, values.dtype)
    result[tuple(coordinates)] = values[: places.size]
    return result


def _block(axis: int, blocks: Sequence[int], sizes: dict[int, int], rank: int) -> int:
    """Return the size of an axis' block."""
    levels = [index for index, blocked in enumerate(blocks) if blocked == axis]
    return sizes[rank + levels[0]] if levels else 1


def _vector(table: object, kind: int) -> Array:
    """Return the numbers of a union of vectors."""
    kinds = {
        tflite.SparseIndexVector.Int32Vector: tflite.Int32Vector,
        tflite.SparseIndexVector.Uint16Vector: tflite.Uint16Vector,
        tflite.SparseIndexVector.Uint8Vector: tflite.Uint8Vector,
    }
    vector = kinds[kind]()
    vector.Init(table.Bytes, table.Pos)  # type: ignore[attr-defined]
    numbers: Array = vector.ValuesAsNumpy().astype("int64")
    return numbers
