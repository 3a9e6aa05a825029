# SPDX-License-Identifier: Apache-2.0
"""Gives a symbol to sizes known only at run time, where TVM claims the largest."""

from __future__ import annotations

import tvm
from tvm import relax

from ..ir.run_time_sizes import COPY, is_copy
from .rewriting import bound_values, is_call_of, is_opaque, with_functions

_SELECTION = "relax.vision.all_class_non_max_suppression"


def of_unknown_size(boxes: relax.Expr) -> relax.Call:
    """Return the boxes of a NonMaxSuppression with a type that does not claim their number."""
    ty = relax.TensorType(dtype=boxes.ty.dtype, ndim=boxes.ty.ndim)
    return relax.op.call_pure_packed(COPY, boxes, ty_args=ty)


def type_of_selection(boxes: relax.Expr) -> relax.TensorType:
    """Return the type of selected boxes with a symbol as their number."""
    count = tvm.tirx.Var("selected", "int64")
    return relax.TensorType([count, *list(boxes.ty.shape.values)[1:]], boxes.ty.dtype)


def name_sizes(mod: tvm.IRModule) -> tvm.IRModule:
    """Give the selected boxes of a NonMaxSuppression a symbol as their number.

    TVM types them with the largest possible number, but returns fewer.
    """
    changed = {}
    for global_var, function in mod.functions_items():
        if is_opaque(function):
            continue
        values = bound_values(function.body)
        calls = {var for var, value in values.items() if _returns_fewer(value)}
        boxes = {var for var, value in values.items() if _is_first_of(value, calls)}
        boxes -= _already_named(function)
        if boxes:
            changed[global_var] = _Names(boxes).visit_expr(function)
    return with_functions(mod, {**dict(mod.functions_items()), **changed}) if changed else mod


def _already_named(function: relax.Function) -> set[relax.Var]:
    """Return the values whose sizes have been named already."""
    named: set[relax.Var] = set()

    def visit(expr: relax.Expr) -> None:
        if is_copy(expr):
            named.add(expr.args[1])

    relax.analysis.post_order_visit(function.body, visit)
    return named


def _returns_fewer(value: relax.Expr) -> bool:
    return is_call_of(value, _SELECTION) and value.attrs.output_format != "tensorflow"


def _is_first_of(value: relax.Expr, calls: set[relax.Var]) -> bool:
    is_first = isinstance(value, relax.TupleGetItem) and value.index == 0
    return is_first and value.tuple_value in calls


@relax.expr_functor.mutator
class _Names(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, boxes: set[relax.Var]) -> None:
        super().__init__()
        self._boxes = boxes

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Bind boxes by a cast to a type with a symbol."""
        if binding.var not in self._boxes:
            super().visit_var_binding_(binding)
            return
        boxes = self.builder_.emit(self.visit_expr(binding.value))
        ty = type_of_selection(boxes)
        var = type(binding.var)(binding.var.name, ty)
        unsized = self.builder_.emit(of_unknown_size(boxes))
        self.builder_.emit_normalized(relax.MatchCast(var, unsized, ty))
        self.set_var_remap(binding.var, var)
