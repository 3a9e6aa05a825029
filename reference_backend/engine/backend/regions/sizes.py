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
    """Return why an operand does not broadcast to the result of a call."""
    name = str(call.op.name).removeprefix("relax.")
    try:
        if name == "broadcast_to":
            given, wanted = (tensor_type(ty)[1] for ty in (call.args[0].ty, call.ty))
            pairs = list(zip(reversed(given), reversed(wanted), strict=False))
        elif name == "nn.prelu":
            data, slopes = (tensor_type(operand.ty)[1] for operand in call.args[:2])
            pairs = [(slopes[0], data[int(call.attrs.axis)])]
        else:
            return None
    except Unknown:
        return None
    for size, right in pairs:
        if size not in (1, right):
            is_open = isinstance(size, Size) or isinstance(right, Size)
            code = Code.SYMBOLIC_SIZE if is_open else Code.RELATION
            ending = " is not known before the run" if is_open else " is wrong"
            why = f"{name}: that the size {size} is 1 or {right}{ending}"
            return Reason(code, why)
    return None
