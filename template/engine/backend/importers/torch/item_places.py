# SPDX-License-Identifier: Apache-2.0
"""Slices of PyTorch that have a fixed size, and begin at an item() of a tensor."""

from __future__ import annotations

import operator
from types import BuiltinFunctionType

import numpy as np
import torch
from tvm import relax

from .call import ITEM, Call, op_name


def _places_in(node: torch.fx.Node) -> tuple[torch.fx.Node, range] | None:
    """Return the places of a slice of fixed size: a tensor, whose only element is added to numbers.

    None for other slices, and where PyTorch does not know from which end the first place counts.
    """
    given = Call.arguments_of(node)
    size = given["self"].meta["val"].shape[given["dim"]]
    moved = [given["self"], given["src"]] if op_name(node) == "aten.slice_scatter" else [node]
    sizes = [it.meta["val"].shape[given["dim"]] for it in moved]
    start = given["start"]
    if given["step"] != 1 or not all(isinstance(size, int) for size in sizes):
        return None
    added = _distance(start.meta["val"], size) if isinstance(start, torch.fx.Node) else None
    if added is None:
        return None
    while start.target in (operator.add, operator.sub):
        one, other = start.args
        if start.target is operator.add and isinstance(one, int):
            one, other = other, one
        if not isinstance(one, torch.fx.Node) or not isinstance(other, int):
            return None
        added += other if start.target is operator.add else -other
        start = one
    if op_name(start) != ITEM:
        return None
    return start.args[0], range(added, added + sizes[-1])


def _distance(place: object, size: object) -> int | None:
    """Return what is added to a place, so that it counts from the start; None if it is not known.

    `size`: of the axis.
    """
    if not isinstance(place, torch.SymInt):
        return None
    bounds = place.node.shape_env.bound_sympy(place.node.expr)
    if bounds.lower >= 0:
        return 0
    if isinstance(size, int) and bounds.upper < 0 <= bounds.lower + size:
        return size
    return None


def computed_places(op: Call) -> relax.Expr | None:
    """Return the places of a slice that begins where the run computes; None for other slices."""
    found = _places_in(op.node)
    if found is None:
        return None
    first, numbers = found
    place = op.emit(relax.op.reshape(op.as_type(first, "int64"), (1,)))
    if numbers == range(1):
        return place
    return op.emit(relax.op.add(place, relax.const(np.array(numbers), "int64")))


def number_of_item(op: Call) -> relax.Expr | int:
    """Make a number of an element; 0 where only places need it, since those read the tensor."""
    return 0 if all(map(_tells_places, op.node.users)) else op.by_tvm()


def _tells_places(node: torch.fx.Node) -> bool:
    """Whether nothing but places, and what PyTorch asserts of them, comes from the reader."""
    if isinstance(node.target, BuiltinFunctionType):
        return all(map(_tells_places, node.users))
    if op_name(node) in ("aten.slice", "aten.slice_scatter"):
        return _places_in(node) is not None
    return op_name(node) in _ASSERTED


_ASSERTED = (
    *("aten._assert_scalar", "aten.sym_constrain_range", "aten.sym_constrain_range_for_size"),
    "aten._assert_async",
)
