# SPDX-License-Identifier: Apache-2.0
"""Names the op again where an importer has made a kernel of it.

TVM's importer of ONNX lowers Clip, Pad, Tile and reversals to kernels, of which nobody can tell
what they compute. But what an op computes is known: if TVM makes the very same kernel of an op, the
kernel is that op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, topi

from .capability import Constant, Unknown, Values, resolve, tensor_type

_Candidate = tuple[Any, Callable[..., Any], tuple[Any, ...]]
"""The call of an op, and the function and its arguments that make its kernel."""


def op_of(mod: tvm.IRModule, call: Any) -> Any | None:
    """Tell which op a kernel is.

    Parameters
    ----------
    mod
        The module that holds the kernel.
    call
        A `call_tir` of it.

    Returns
    -------
    op
        A call of the op with the same arguments, or none.
    """
    kernel = mod[call.args[0]]
    inputs = list(call.args[1].fields)
    if len(call.args) != 2 or not isinstance(kernel, tvm.tirx.PrimFunc):
        return None
    try:
        shape = _sizes(call.ty)
        is_two = len(inputs) == 2
        candidates = _of_two(inputs, shape) if is_two else _of_one(inputs, shape, kernel)
        for op, function, arguments in candidates:
            builder = relax.BlockBuilder()
            own = builder.call_te(function, *arguments)
            if tvm_ffi.structural_equal(_bare(builder.get()[own.args[0]]), _bare(kernel)):
                return op
    except Unknown:
        pass
    return None


def is_kernel_call(call: Any) -> bool:
    """Whether a call is one of a kernel."""
    return isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir"


def as_clip(call: Any, values: Values) -> Any | None:
    """Make a clip of a minimum of a maximum, where both bounds are constant numbers in order.

    Parameters
    ----------
    call
        A call of `relax.minimum`.
    values
        What variables are bound to.

    Returns
    -------
    clip
        The call of `relax.clip`, or none.
    """
    inner = values.get(call.args[0])
    if not isinstance(inner, relax.Call) or getattr(inner.op, "name", "") != "relax.maximum":
        return None
    low, high = (_number(resolve(item.args[1], values)) for item in (inner, call))
    # Of bounds that are crossed, a clip gives the lower one, and the minimum the upper one.
    if low is None or high is None or low > high:
        return None
    same = tvm_ffi.structural_equal(inner.ty, call.ty)
    if not same or not tvm_ffi.structural_equal(inner.args[0].ty, call.ty):
        return None
    return relax.op.clip(inner.args[0], low, high)


def _number(expr: Any) -> float | int | None:
    if not isinstance(expr, Constant) or math.prod(expr.value.shape) != 1:
        return None
    number: float | int = expr.value.numpy().item()
    return None if math.isnan(number) else number


def _bare(kernel: Any) -> Any:
    return kernel.without_attr("global_symbol")


def _sizes(ty: Any) -> list[int]:
    """Return a shape in numbers."""
    _, shape = tensor_type(ty)
    if not all(isinstance(size, int) for size in shape):
        raise Unknown("unknown sizes of")
    return [int(str(size)) for size in shape]


def _of_two(inputs: list[Any], shape: list[int]) -> Iterator[_Candidate]:
    try:
        if np.broadcast_shapes(*(tuple(_sizes(item.ty)) for item in inputs)) != tuple(shape):
            return
    except ValueError:
        return
    for op, function in ((relax.op.maximum, topi.maximum), (relax.op.minimum, topi.minimum)):
        yield op(*inputs), function, tuple(inputs)


def _of_one(inputs: list[Any], shape: list[int], kernel: Any) -> Iterator[_Candidate]:
    if len(inputs) != 1 or len(_sizes(inputs[0].ty)) != len(shape):
        return
    data, before = inputs[0], _sizes(inputs[0].ty)
    if before == shape:
        # A border of nothing, such as a window of Swin's may have: no op, once it is simplified.
        nothing = [0] * len(shape)
        yield relax.op.broadcast_to(data, shape), topi.nn.pad, (data, nothing, nothing, 0.0)
        for axis in range(len(shape)):
            yield relax.op.flip(data, axis), topi.flip, (data, axis)
        return
    if not any(out % size for out, size in zip(shape, before, strict=True)):
        times = [out // size for out, size in zip(shape, before, strict=True)]
        yield relax.op.tile(data, times), topi.tile, (data, times)
    border = _border(kernel)
    if border is not None:
        first, value = border
        last = [out - size - low for out, size, low in zip(shape, before, first, strict=True)]
        widths = [width for pair in zip(first, last, strict=True) for width in pair]
        if min(widths) >= 0:
            pad = relax.op.nn.pad(data, widths, pad_value=value)
            number = tvm.tirx.const(value, data.ty.dtype)
            yield pad, topi.nn.pad, (data, first, last, number)


def _border(kernel: Any) -> tuple[list[int], float | int] | None:
    """Read where a kernel puts its input, and what is around it."""
    stmt = kernel.body.block.body
    while isinstance(stmt, tvm.tirx.For):
        stmt = stmt.body
    block = getattr(stmt, "block", None)
    store = getattr(block, "body", None)
    if block is None or len(block.reads) != 1 or not isinstance(store, tvm.tirx.BufferStore):
        return None
    analyzer = tvm.sym.Analyzer()
    pairs = zip(block.reads[0].region, block.iter_vars, strict=True)
    offsets = [analyzer.simplify(item.var - region.min) for region, item in pairs]
    value = store.value.args[-1] if isinstance(store.value, tvm.ir.Call) else None
    number = getattr(value, "value", None)
    if number is None or not all(isinstance(offset, tvm.tirx.IntImm) for offset in offsets):
        return None
    # The op has it as float64, which cannot tell larger integers apart.
    if isinstance(number, int) and abs(number) >= 1 << 53:
        return None
    return [int(offset) for offset in offsets], number
