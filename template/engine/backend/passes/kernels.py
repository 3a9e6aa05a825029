# SPDX-License-Identifier: Apache-2.0
"""Recovers ops from kernels to which an importer has lowered them.

TVM's ONNX importer lowers Clip, Pad, Tile and reversals to anonymous kernels. If TVM lowers an op
to the very same kernel, the kernel is that op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, topi

from ..ir.calls import Analyzer, Unknown, tensor_type
from .rewriting import Bindings, Site

_Argument: TypeAlias = relax.Expr | list[int] | str | int | float
_Candidate = tuple[relax.Call, Callable[..., tvm.te.Tensor], tuple[_Argument, ...]]
"""The call of an op, and the function and arguments that build its kernel."""


def recover_op(site: Site) -> Bindings | None:
    """Replace a kernel by its op."""
    op = op_of(site.mod, site.call)
    return None if op is None else site.bind(op)


def op_of(mod: tvm.IRModule, call: relax.Call) -> relax.Call | None:
    """Return the call of the op that a kernel computes, or None."""
    kernel = mod[call.args[0]]
    inputs = list(call.args[1].fields)
    if len(call.args) != 2 or not isinstance(kernel, tvm.tirx.PrimFunc):
        return None
    try:
        shape = _sizes(call.ty)
        candidates = (
            _binary_ops(inputs, shape) if len(inputs) == 2 else _unary_ops(inputs, shape, kernel)
        )
        for op, function, arguments in candidates:
            builder = relax.BlockBuilder()
            rebuilt = builder.call_te(function, *arguments)
            if tvm_ffi.structural_equal(_bare(builder.get()[rebuilt.args[0]]), _bare(kernel)):
                return op
    except Unknown:
        pass
    return None


def _bare(kernel: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    return kernel.without_attr("global_symbol")


def _sizes(ty: relax.TensorType) -> list[int]:
    """Return a shape in numbers."""
    _, shape = tensor_type(ty)
    if not all(isinstance(size, int) for size in shape):
        raise Unknown("unknown sizes of")
    return [int(str(size)) for size in shape]


def _binary_ops(inputs: list[relax.Expr], shape: list[int]) -> Iterator[_Candidate]:
    try:
        if np.broadcast_shapes(*(tuple(_sizes(tensor.ty)) for tensor in inputs)) != tuple(shape):
            return
    except ValueError:
        return
    for op, function in ((relax.op.maximum, topi.maximum), (relax.op.minimum, topi.minimum)):
        yield op(*inputs), function, tuple(inputs)


def _unary_ops(
    inputs: list[relax.Expr], shape: list[int], kernel: tvm.tirx.PrimFunc
) -> Iterator[_Candidate]:
    if len(inputs) != 1 or len(_sizes(inputs[0].ty)) != len(shape):
        return
    data, before = inputs[0], _sizes(inputs[0].ty)
    if before == shape:
        # An empty border, as in Swin's windows, simplifies to no op.
        nothing = [0] * len(shape)
        yield relax.op.broadcast_to(data, shape), topi.nn.pad, (data, nothing, nothing, 0.0)
        for axis in range(len(shape)):
            yield relax.op.flip(data, axis), topi.flip, (data, axis)
        return
    if not any(out % size for out, size in zip(shape, before, strict=True)):
        times = [out // size for out, size in zip(shape, before, strict=True)]
        yield relax.op.tile(data, times), topi.tile, (data, times)
    yield from _paddings_by_own_values(data, before, shape, kernel)
    border = _border(kernel)
    if border is not None:
        first, value = border
        last = [out - size - low for out, size, low in zip(shape, before, first, strict=True)]
        widths = [width for pair in zip(first, last, strict=True) for width in pair]
        if min(widths) >= 0:
            pad = relax.op.nn.pad(data, widths, pad_value=value)
            number = tvm.tirx.const(value, data.ty.dtype)
            yield pad, topi.nn.pad, (data, first, last, number)


_BORDERS: tuple[tuple[str, Callable[..., tvm.te.Tensor], tuple[str, ...]], ...] = (
    ("reflect", topi.nn.mirror_pad, ("REFLECT",)),
    ("reflect", topi.nn.reflect_pad, ()),
    ("replicate", topi.nn.replicate_pad, ()),
    ("circular", topi.nn.circular_pad, ()),
)


def _paddings_by_own_values(
    data: relax.Expr, before: list[int], shape: list[int], kernel: tvm.tirx.PrimFunc
) -> Iterator[_Candidate]:
    """Generate paddings whose border repeats elements of the input."""
    store = _store(kernel)
    load = getattr(store, "value", None)
    if store is None or load is None or not hasattr(load, "indices") or not all(shape):
        return
    starts = {mode: [0] * len(shape) for mode, *_ in _BORDERS}
    for axis, (size, out) in enumerate(zip(before, shape, strict=True)):
        if out < size:
            return
        if out == size:
            continue
        source = _source(load.indices[axis], store.indices[axis])
        origin = source(0)
        starts["reflect"][axis] = origin
        starts["circular"][axis] = -origin % size
        low, high = 0, out - size
        while low < high:  # Find the last place that reads the first element.
            middle = (low + high + 1) // 2
            low, high = (middle, high) if source(middle) == 0 else (low, middle - 1)
        starts["replicate"][axis] = low
    for mode, function, mode_arguments in _BORDERS:
        first = starts[mode]
        last = [out - size - low for out, size, low in zip(shape, before, first, strict=True)]
        if min(*first, *last) < 0:
            continue
        widths = [width for pair in zip(first, last, strict=True) for width in pair]
        yield relax.op.nn.pad(data, widths, mode), function, (data, first, last, *mode_arguments)


def _source(index: tvm.ir.Expr, var: tvm.tirx.Var) -> Callable[[int], int]:
    """Return the function from output to input positions along an axis."""

    def source(place: int) -> int:
        analyzer = Analyzer()
        analyzer.bind(var, tvm.tirx.const(place, var.ty.dtype))
        value = getattr(analyzer.simplify(index), "value", None)
        if not isinstance(value, int):
            raise Unknown("no single place of")
        return value

    return source


def _store(kernel: tvm.tirx.PrimFunc) -> tvm.tirx.BufferStore | None:
    """Return the value stored by a kernel with a single store."""
    stmt = kernel.body.block.body
    while isinstance(stmt, tvm.tirx.For):
        stmt = stmt.body
    body = getattr(getattr(stmt, "block", None), "body", None)
    return body if isinstance(body, tvm.tirx.BufferStore) else None


def _border(kernel: tvm.tirx.PrimFunc) -> tuple[list[int], float | int] | None:
    """Return the offsets of a kernel's input in the result, and the value of the border."""
    stmt = kernel.body.block.body
    while isinstance(stmt, tvm.tirx.For):
        stmt = stmt.body
    block = getattr(stmt, "block", None)
    store = getattr(block, "body", None)
    if block is None or len(block.reads) != 1 or not isinstance(store, tvm.tirx.BufferStore):
        return None
    analyzer = Analyzer()
    pairs = zip(block.reads[0].region, block.iter_vars, strict=True)
    offsets = [analyzer.simplify(axis.var - region.min) for region, axis in pairs]
    value = store.value.args[-1] if isinstance(store.value, tvm.ir.Call) else None
    number = getattr(value, "value", None)
    if number is None or not all(isinstance(offset, tvm.tirx.IntImm) for offset in offsets):
        return None
    # The op holds it as float64, which cannot represent larger integers exactly.
    if isinstance(number, int) and abs(number) >= 1 << 53:
        return None
    return [int(offset) for offset in offsets], number
