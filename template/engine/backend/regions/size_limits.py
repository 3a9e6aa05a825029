# SPDX-License-Identifier: Apache-2.0
"""Sizes with which no driver can compile a composite or a region, so that none is asked."""

from __future__ import annotations

import tvm
from tvm import relax

from ..ir.calls import Size, Unknown, tensor_type
from ..table.reasons import Code, Reason


def refusal_of_sizes(function: relax.Function, finish: bool) -> Reason | None:
    """Return which size of a function cannot be compiled; none if all suit.

    `finish`: whether it is a whole region, whose symbols must come from its inputs.
    """
    # A driver gets tensors, and no shapes.
    inputs = [param.ty for param in function.params if not isinstance(param.ty, relax.ShapeType)]
    of_inputs = {name for ty in inputs for name in _symbols(ty)}
    reasons: list[Reason] = []

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        reason = _refusal_of(expr) if isinstance(expr.op, tvm.ir.Op) else None
        for name in _symbols(expr.ty) if finish else ():
            if name not in of_inputs:
                why = f"a size depends on the symbol '{name}', which no input of its region has"
                reason = reason or Reason(Code.SYMBOLIC_SIZE, why)
        reasons.extend([reason] if reason is not None else [])

    relax.analysis.post_order_visit(function, visit)
    return reasons[0] if reasons else None


def _symbols(ty: tvm.ir.Type) -> list[str]:
    """Return the symbols of a type by name: composites have their own variables for them."""
    return [str(var.name) for var in relax.analysis.tir_vars_in_type(ty)]


def _refusal_of(call: relax.Call) -> Reason | None:
    """Return why an operand does not broadcast, or PRelu's slopes do not fit the axis of data."""
    name = str(call.op.name).removeprefix("relax.")
    try:
        if name == "broadcast_to":
            given, sizes = (tensor_type(ty)[1] for ty in (call.args[0].ty, call.ty))
            first = len(sizes) - len(given)
            pairs = {first + axis: (size, sizes[first + axis]) for axis, size in enumerate(given)}
        elif name == "nn.prelu":
            sizes, slopes = (tensor_type(operand.ty)[1] for operand in call.args[:2])
            axis = int(call.attrs.axis) % len(sizes)
            pairs = {axis: (slopes[0], sizes[axis])}
        else:
            return None
    except Unknown:
        return None
    for axis, (size, of_result) in pairs.items():
        if size not in (1, of_result):
            is_open = isinstance(size, Size) or isinstance(of_result, Size)
            code = Code.SYMBOLIC_SIZE if is_open else Code.RELATION
            ending = "whether it is, is not known before the run" if is_open else "it is not"
            why = f"{name}: for axis {axis}, the size {size} must be 1 or {of_result}; {ending}"
            return Reason(code, why)
    return None
