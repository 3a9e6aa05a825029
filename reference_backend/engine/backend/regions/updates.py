# SPDX-License-Identifier: Apache-2.0
"""Takes an update of a state as one composite, where not all ops that spell it are on the NPU.

Importers compare each place of an axis with the positions, and select. The codegen makes an update
of that, so a driver with `add_update` needs none of these ops.
"""

from __future__ import annotations

from tvm import relax

from ..passes.rewriting import op_name
from ..table.capability import Op
from ..table.compositions import Composition
from .composites import Bindings, CompositeFinder

_UPDATE = Composition(Op("state_update", engine="memory"))
_CONDITION = ("relax.reshape", "relax.less", "relax.max", "relax.where")
"""What leads from the comparison to the condition, each as the reader of its first argument."""


def find_updates(finder: CompositeFinder, bindings: Bindings) -> None:
    """Find the updates that the driver takes as a whole, but not by their ops."""
    inside: set[int] = set()
    for index in reversed(range(len(bindings))):
        # The condition of an update may contain a selection.
        if op_name(bindings[index].value) == "relax.where" and index not in inside:
            inside.update(_find_update(finder, bindings, index))


def _find_update(finder: CompositeFinder, bindings: Bindings, index: int) -> list[int]:
    """Find an update that ends at a binding, and return the calls that compute its condition."""
    condition = _condition_of(bindings, index)
    own = [*_rows_of(bindings, index, condition), index]
    places = {*own, *condition}
    if not condition or not places.isdisjoint(finder.kept) or places <= finder.found.keys():
        return []
    if any(len(finder.found[at].members) > 1 for at in places & finder.found.keys()):
        return []
    return condition if finder.take_update(own, condition, _UPDATE) else []


def _condition_of(bindings: Bindings, index: int) -> list[int]:
    """Return the calls that compute the condition of a selection; none if it is no comparison."""
    calls: list[int] = []
    at: int | None = index
    while at is not None:
        value = bindings[at].value
        name = op_name(value)
        if at != index:
            calls.insert(0, at)
        if name == "relax.equal":
            return calls
        if name not in _CONDITION:
            break
        at = bindings.position.get(value.args[0])
    return []


def _rows_of(bindings: Bindings, index: int, condition: list[int]) -> list[int]:
    """Return the call that chooses the rows, if nothing else reads them."""
    at = bindings.position.get(bindings[index].value.args[2])
    if at is None or op_name(bindings[at].value) != "relax.take":
        return []
    is_chosen = bindings.position.get(bindings[at].value.args[1]) in condition
    var = bindings[at].var
    is_own = isinstance(var, relax.DataflowVar) and bindings.users[var] == [bindings[index].var]
    return [at] if is_chosen and is_own else []
