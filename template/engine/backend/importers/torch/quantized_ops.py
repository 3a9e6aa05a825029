# SPDX-License-Identifier: Apache-2.0
"""PyTorch's quantized ops as relax.quantize and relax.dequantize."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import relax

from .call import Call, Rule, inverse, op_name, permuted


def _wide(op: Call, x: relax.Expr, *narrow: str) -> relax.Expr:
    """Return real numbers of some types in float32."""
    return op.cast(x, "float32") if str(x.ty.dtype) in narrow else x


def _data(op: Call) -> relax.Expr:
    """Return what an op quantizes, in a type that TVM's quantize reads."""
    return _wide(op, op.value("input"), "bfloat16")


def _clipped(op: Call, value: relax.Expr, dtype: str) -> relax.Expr:
    """Clip integers to the range of an op, if their type has a wider one."""
    limits = np.iinfo(dtype)
    low, high = _range(op, dtype)
    if (low, high) == (limits.min, limits.max):
        return value
    return op.emit(relax.op.clip(value, low, high))


def _range(op: Call, dtype: str) -> tuple[int, int]:
    """Return the range of an op's integers."""
    limits = np.iinfo(dtype)
    low, high = op.constant("quant_min"), op.constant("quant_max")
    return (limits.min if low is None else int(low), limits.max if high is None else int(high))


def _quantize(scale: str, zero_point: str, op: Call) -> relax.Expr:
    """Quantize by one scale, or by one for each element of an axis."""
    dtype, is_vector = op.integer("dtype"), "axis" in op.arguments
    scales, zeros = op.scale(scale, is_vector), op.zero_point(zero_point, dtype, is_vector)
    quantized = relax.op.quantize(_data(op), scales, zeros, op["axis"] or 0, dtype)
    return _clipped(op, op.emit(quantized), dtype)


def _dequantize(scale: str, zero_point: str, op: Call) -> relax.Expr:
    x, is_vector = op.value("input"), "axis" in op.arguments
    scales = op.scale(scale, is_vector)
    zeros = op.zero_point(zero_point, str(x.ty.dtype), is_vector)
    real = relax.op.dequantize(x, scales, zeros, op["axis"] or 0, _dequantized_type(op))
    return op.converted(op.emit(real))


def _dequantized_type(op: Call) -> str:
    """Return the type that TVM dequantizes to: it has no bfloat16."""
    return "float32" if op.result_type == "bfloat16" else op.result_type


class _Blocks:
    """A tensor whose scale changes every few elements, as rows of one block each."""

    def __init__(self, op: Call, block_size: Sequence[int]) -> None:
        self._op = op
        self._shape = op.shape("input")
        sizes = [
            size if block in (-1, 0) else block
            for size, block in zip(self._shape, block_size, strict=True)
        ]
        self._counts = [
            1 if _same(size, block) else size if _same(block, 1) else _divide(op, size, block)
            for size, block in zip(self._shape, sizes, strict=True)
        ]
        self._split = [part for pair in zip(self._counts, sizes, strict=True) for part in pair]
        self.elements = math.prod(sizes)
        many = [axis for axis, count in enumerate(self._counts) if not _same(count, 1)]
        self.is_one = not many
        self.channel = many[0] if len(many) == 1 and _same(sizes[many[0]], 1) else None
        """The axis if each of its elements has a scale."""
        order = range(len(self._shape))
        self._order = [*(2 * axis for axis in order), *(2 * axis + 1 for axis in order)]
        # Axes of one element do not matter for the order in memory.
        moved = [axis for axis in self._order if not _same(self._split[axis], 1)]
        self._is_contiguous = moved == sorted(moved)

    def rows(self, x: relax.Expr) -> relax.Expr:
        """Return the tensor with a block in each row."""
        op = self._op
        array = op.constant("input")
        if array is not None and self._is_contiguous:
            # A reshape of the constant itself keeps the quantized tensor a constant.
            return relax.const(array.reshape(-1, self.elements), str(array.dtype))
        if not self._is_contiguous:
            x = permuted(op, op.emit(relax.op.reshape(x, self._split)), self._order)
        return op.emit(relax.op.reshape(x, (-1, self.elements)))

    def join(self, rows: relax.Expr) -> relax.Var:
        """Return rows in the shape of the tensor."""
        op = self._op
        if not self._is_contiguous:
            rows = op.emit(relax.op.reshape(rows, [self._split[axis] for axis in self._order]))
            rows = permuted(op, rows, inverse(self._order))
        return op.emit(relax.op.reshape(rows, self._shape))

    def apply(self, x: relax.Expr, change: Callable[[relax.Expr, int], relax.Call]) -> relax.Var:
        """Quantize or dequantize along the axis of the scales, in rows if there is none."""
        if self.is_one or self.channel is not None:
            return self._op.emit(change(x, self.channel or 0))
        return self.join(self._op.emit(change(self.rows(x), 0)))


def _same(size: object, number: object) -> bool:
    same = size == number
    return bool(same) if isinstance(same, bool) else str(size) == str(number)


def _divide(op: Call, size: object, block: int) -> int:
    fixed = getattr(size, "value", size)
    if not isinstance(fixed, int) or fixed % block:
        op.refuse(f"blocks of {block} along a size of {size}; supported are whole blocks")
    return fixed // block


def _affine_blocks(op: Call) -> _Blocks:
    domain = op["zero_point_domain"]
    if domain not in (None, "INT"):
        op.refuse(f"zero_point_domain={domain} is not supported; supported is INT")
    return _Blocks(op, op["block_size"])


def _quantize_blocks(
    op: Call, blocks: _Blocks, scale: str, zero_point: str, kind: str
) -> relax.Expr:
    dtype = op.integer(kind)
    scales = op.scale(scale, not blocks.is_one)
    zeros = op.zero_point(zero_point, dtype, not blocks.is_one)
    if op.constant(scale) is not None:
        quantized = blocks.apply(
            _data(op), lambda x, axis: relax.op.quantize(x, scales, zeros, axis, dtype)
        )
    else:
        quantized = blocks.apply(_data(op), partial(_divided, op, scales, zeros, dtype))
    return _clipped(op, quantized, dtype)


def _divided(
    op: Call, scales: relax.Expr, zeros: relax.Expr, dtype: str, x: relax.Expr, axis: int
) -> relax.Call:
    """Quantize by scales of the run as PyTorch does, which multiplies by what is 1 / scale.

    The largest element of a tensor is often between two integers, where a last bit decides.
    """
    one = relax.const(1, "float32")
    factors = op.emit(relax.op.divide(one, scales))
    if scales.ty.ndim:
        others = [other for other in range(x.ty.ndim) if other != axis]
        factors = op.emit(relax.op.expand_dims(factors, others))
    ones = op.emit(relax.op.full_like(scales, one))
    return relax.op.quantize(op.emit(relax.op.multiply(x, factors)), ones, zeros, axis, dtype)


def _dequantize_blocks(op: Call, blocks: _Blocks, scale: str, zero_point: str) -> relax.Expr:
    x = op.value("input")
    scales = op.scale(scale, not blocks.is_one)
    zeros = op.zero_point(zero_point, str(x.ty.dtype), not blocks.is_one)
    dtype = _dequantized_type(op)
    real = blocks.apply(x, lambda x, axis: relax.op.dequantize(x, scales, zeros, axis, dtype))
    return op.converted(real)


def _group_blocks(op: Call) -> _Blocks:
    rank = len(op.shape("input"))
    return _Blocks(op, [1] * (rank - 1) + [op["group_size"]])


def _choose(op: Call) -> relax.Expr:
    """Compute a scale and a zero point from the range of the data."""
    dtype = op.integer("dtype")
    middle = 128 if dtype == "uint8" else 0
    is_symmetric = op_name(op.node).endswith("_symmetric")
    return _chosen(op, op.value("input"), None, dtype, middle if is_symmetric else None)


def _choose_affine(op: Call) -> relax.Expr:
    kind = op["mapping_type"]
    if kind not in ("SYMMETRIC", "ASYMMETRIC"):
        op.refuse(f"mapping_type={kind}; supported are SYMMETRIC and ASYMMETRIC")
    blocks = _affine_blocks(op)
    x = op.value("input") if blocks.is_one else blocks.rows(op.value("input"))
    dtype = op.integer("target_dtype")
    low, high = _range(op, dtype)
    middle = (high + low + 1) // 2 if kind == "SYMMETRIC" else None
    return _chosen(op, x, None if blocks.is_one else 1, dtype, middle)


def _chosen(
    op: Call, x: relax.Expr, axis: int | None, dtype: str, middle: int | None
) -> relax.Expr:
    """Return a scale of float32, and a zero point of the quantized type.

    The zero point is `middle`, or else chosen for a range that is not symmetric.
    """
    low, high = map(float, _range(op, dtype))
    x = _wide(op, x, "bfloat16", "float16")
    zero = relax.const(0, "float32")
    smallest = op.emit(relax.op.minimum(relax.op.min(x, axis), zero))
    largest = op.emit(relax.op.maximum(relax.op.max(x, axis), zero))
    eps = op.constant("eps")
    eps = relax.const(float(np.finfo("float32").eps if eps is None else eps), "float32")
    if middle is not None:
        reach = relax.op.maximum(relax.op.negative(smallest), largest)
        width = relax.const((high - low) / 2, "float32")
    else:
        reach = relax.op.subtract(largest, smallest)
        width = relax.const(high - low, "float32")
    scale = op.emit(relax.op.maximum(relax.op.divide(reach, width), eps))
    if middle is not None:
        filled = relax.op.full_like(scale, relax.const(middle, dtype), dtype)
        return relax.Tuple([scale, filled])
    offset = relax.op.round(relax.op.divide(smallest, scale))
    point = relax.op.clip(relax.op.subtract(relax.const(low, "float32"), offset), low, high)
    return relax.Tuple([scale, op.cast(point, dtype)])


def _convert_type(op: Call) -> relax.Expr:
    return op.cast(op.value("input"), op.dtype("dtype"))


def _multiply(op: Call) -> relax.Expr:
    """Multiply matrices of 8 bits, of which one may be signed and the other not."""
    wide = [op.cast(op.value(name), "int32") for name in ("self", "mat2")]
    return op.emit(relax.op.matmul(*wide))


RULES: dict[str, Rule] = {
    "quantized_decomposed.quantize_per_tensor": partial(_quantize, "scale", "zero_point"),
    "quantized_decomposed.dequantize_per_tensor": partial(_dequantize, "scale", "zero_point"),
    "quantized_decomposed.quantize_per_channel": partial(_quantize, "scales", "zero_points"),
    "quantized_decomposed.dequantize_per_channel": partial(_dequantize, "scales", "zero_points"),
    "quantized_decomposed.quantize_per_channel_group": lambda op: _quantize_blocks(
        op, _group_blocks(op), "scales", "zero_points", "dtype"
    ),
    "quantized_decomposed.dequantize_per_channel_group": lambda op: _dequantize_blocks(
        op, _group_blocks(op), "scales", "zero_points"
    ),
    "quantized_decomposed.choose_qparams": _choose,
    "quantized_decomposed.choose_qparams_symmetric": _choose,
    "quantized_decomposed.convert_element_type": _convert_type,
    "aten._int_mm": _multiply,
    "torchao.quantize_affine": lambda op: _quantize_blocks(
        op, _affine_blocks(op), "scale", "zero_point", "output_dtype"
    ),
    "torchao.dequantize_affine": lambda op: _dequantize_blocks(
        op, _affine_blocks(op), "scale", "zero_point"
    ),
    "torchao.choose_qparams_affine": _choose_affine,
}
