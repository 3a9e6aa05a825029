# SPDX-License-Identifier: Apache-2.0
"""Sizes that only the run of a model knows: how many elements a NonZero finds, for example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import tvm
from tvm import relax

from .amounts import Amounts
from .calls import Unknown, Values

COPY = "vm.builtin.copy"
"""The packed function that returns its argument; its result has the type that its caller says."""


def is_copy(value: relax.Expr) -> bool:
    """Whether a value is a call of `COPY`, which computes nothing."""
    name = getattr(getattr(value, "op", None), "name", "")
    if name != "relax.call_pure_packed":
        return False
    return str(getattr(value.args[0], "global_symbol", "")) == COPY


def computed_bounds(
    function: relax.Function, values: Values, bounds: Mapping[str, int]
) -> dict[str, int | None]:
    """Return what bounds the symbols that a function computes.

    By the name of the symbol, the most that the operand of its op allows; None if that is not
    known.
    """
    params = list(function.params)
    of_caller = {var for item in params for var in relax.analysis.tir_vars_in_type(item.ty)}
    known = {str(var.name): bounds[str(var.name)] for var in of_caller}
    found: dict[str, int | None] = {}
    for binding in _casts(function.body):
        # The caller also determines the sizes of parameters whose type does not tell them.
        if binding.value in params:
            continue
        shape = getattr(binding.ty, "shape", binding.ty)
        for axis, size in enumerate(getattr(shape, "values", None) or ()):
            if not isinstance(size, tvm.tirx.Var) or size in of_caller:
                continue
            name = str(size.name)
            most = _most(binding.value, axis, values, Amounts(known))
            # Several symbols may have one name.
            before = found.get(name, 0)
            found[name] = None if before is None or most is None else max(before, most)
            if found[name] is not None:
                known[name] = found[name] or 0
    return found


def _casts(body: relax.SeqExpr) -> Iterator[relax.MatchCast]:
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                yield binding
            elif isinstance(binding.value, relax.If):
                yield from _casts(binding.value.true_branch)
                yield from _casts(binding.value.false_branch)


def _most(value: relax.Expr, axis: int, values: Values, amounts: Amounts) -> int | None:
    """Return the most elements that a value may have along an axis."""
    value = values.get(value, value)
    if isinstance(value, relax.TupleGetItem):
        value = values.get(value.tuple_value, value.tuple_value)
    name = getattr(getattr(value, "op", None), "name", "")
    try:
        if name in ("relax.nonzero", "relax.unique"):
            return math.prod(amounts.shape(value.args[0].ty))
        if name == "relax.dynamic_strided_slice":
            return amounts.shape(value.args[0].ty)[axis]
        if is_copy(value):
            # Of a value that TVM types with the most that it may have.
            return amounts.shape(value.args[1].ty)[axis]
    except Unknown:
        pass
    return None
