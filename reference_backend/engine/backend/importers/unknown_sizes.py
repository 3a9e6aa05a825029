# SPDX-License-Identifier: Apache-2.0
"""Refuses what no compiler of TVM can lower: calls on tensors whose sizes have no expression."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from ..ir.origins import origin_of
from ..shared.messages import FIX_SIZES
from .failures import refusal


def require_sizes(mod: tvm.IRModule, titles: Mapping[str, str]) -> None:
    """Refuse a module with a call that cannot be lowered, as its sizes are not known."""
    if _first(mod) is None:
        return
    # Unread calls are never lowered, and lowering the others may tell sizes of those behind.
    lower = [relax.transform.DeadCodeElimination(), relax.transform.LegalizeOps()]
    try:
        call = _first(tvm.transform.Sequential(lower)(mod))
    except Exception:  # The compiler says more.
        return
    if call is None:
        return
    origin = origin_of(call)
    name = origin.name if origin else ""
    op = str(call.op.name).removeprefix("relax.")
    node = titles.get(name, repr(name)) if name else f"with the op {op}"
    raise refusal(
        f"ONNX node {node}",
        "the sizes of its inputs do not tell those of its result before the run; " + FIX_SIZES,
    )


def _first(mod: tvm.IRModule) -> relax.Call | None:
    """Return the first call that TVM cannot lower."""
    calls: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if not calls and isinstance(expr, relax.Call) and not _can_be_lowered(expr):
            calls.append(expr)

    for function in mod.functions.values():
        if isinstance(function, relax.Function) and not calls:
            relax.analysis.post_order_visit(function, visit)
    return calls[0] if calls else None


def _can_be_lowered(call: relax.Call) -> bool:
    """Whether TVM can lower a call; else codegen fails."""
    op = call.op
    if not isinstance(op, tvm.ir.Op) or op.get_attr("FLegalize") is None:
        return True
    if op.get_attr("FCallPacked") is not None or op.get_attr("RequiresArgumentShapes") is False:
        return True
    # The results of dynamic ops may have any sizes: TVM finds them in the run.
    types = [operand.ty for operand in call.args]
    return all(map(_is_known, types if "dynamic" in str(op.name) else [*types, call.ty]))


def _is_known(ty: tvm.ir.Type) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(map(_is_known, ty.fields))
    if isinstance(ty, relax.TensorType):
        return isinstance(ty.shape, relax.ShapeExpr)
    return not isinstance(ty, relax.ShapeType) or ty.values is not None
