# SPDX-License-Identifier: Apache-2.0
"""Takes an update of slices as one composite, with all ops that spell it.

Importers compare each place of an axis with the positions, and select. A driver with `add_update`
writes the slices and needs none of these ops; others run them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tvm import relax

from ..ir.calls import Constant, resolve
from ..passes.rewriting import op_name
from ..table.table import Table
from .composites import Bindings, CompositeFinder, Update

_VIEWS = ("relax.reshape", "relax.expand_dims")
_CONDITION = (*_VIEWS, "relax.less", "relax.max", "relax.where")
"""What leads from the comparison to the condition, each as the reader of its first argument."""


def find_updates(finder: CompositeFinder, bindings: Bindings, table: Table) -> None:
    """Find the updates that the table has, and that the driver takes as a whole."""
    ops = [op for op in table.ops if op.emitted_by == "update"]
    inside: set[int] = set()
    for index in reversed(range(len(bindings)) if ops else ()):
        # The condition of an update may contain a selection.
        if op_name(bindings[index].value) != "relax.where" or index in inside:
            continue
        update = _update_at(bindings, index, finder.kept)
        if update is not None and any(finder.take_update(op, update) for op in ops):
            inside.update(update.condition)


def _update_at(bindings: Bindings, index: int, kept: Collection[int]) -> Update | None:
    """Read a selection as an update; the codegen knows whether it is one."""
    condition, one, other = bindings[index].value.args
    calls = list(_leading_to(bindings, condition))
    names = [op_name(bindings[at].value) for at in calls]
    if names[-1:] != ["relax.equal"]:
        return None
    left, right = bindings[calls[-1]].value.args
    is_first = isinstance(resolve(right, bindings.values), Constant)
    views, positions = _without_shape(bindings, left if is_first else right, kept)
    inner = sorted({*calls, *views})
    if "relax.less" not in names:
        return Update([index], inner, (other, one, positions))
    rows = _rows_of(bindings, index, calls)
    if rows is None:
        return None
    return Update([rows, index], inner, (one, bindings[rows].value.args[0], positions))


def _leading_to(bindings: Bindings, condition: relax.Expr) -> Iterator[int]:
    """Generate the calls from a condition back to the comparison that it comes from."""
    at = bindings.position.get(condition)
    while at is not None:
        yield at
        value = bindings[at].value
        at = bindings.position.get(value.args[0]) if op_name(value) in _CONDITION else None


def _without_shape(
    bindings: Bindings, value: relax.Expr, kept: Collection[int]
) -> tuple[list[int], relax.Expr]:
    """Return the calls that change the shape of a value, and the value before them."""
    calls = []
    while (at := bindings.position.get(value)) is not None and at not in kept:
        if op_name(bindings[at].value) not in _VIEWS:
            break
        calls.append(at)
        value = bindings[at].value.args[0]
    return calls, value


def _rows_of(bindings: Bindings, index: int, condition: list[int]) -> int | None:
    """Return the call that chooses the rows of an update, if nothing else reads them."""
    at = bindings.position.get(bindings[index].value.args[2])
    if at is None or op_name(bindings[at].value) != "relax.take":
        return None
    is_chosen = bindings.position.get(bindings[at].value.args[1]) in condition
    var = bindings[at].var
    is_own = isinstance(var, relax.DataflowVar) and bindings.users[var] == [bindings[index].var]
    return at if is_chosen and is_own else None
