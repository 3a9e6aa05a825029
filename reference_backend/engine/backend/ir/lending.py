# SPDX-License-Identifier: Apache-2.0
"""Which regions may update a state in its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import tvm
from tvm import relax

Values = Mapping[relax.Var, relax.Expr]


def places_in_regions(
    function: relax.Function, results: Mapping[str, int], regions: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Return the argument and the result of the region that updates a state, by its parameter.

    A session may let the region update the memory of the value. So nothing but the region reads
    the value, and nothing in the function reads the region's result, which is the next value.

    Parameters
    ----------
    function
        A function of a partitioned module.
    results
        For the parameter of each state, the place of its next value among the results.
    regions
        The names of the regions.
    """
    values = {it.var: it.value for block in function.body.blocks for it in block.bindings}
    reads: Counter[relax.Var] = Counter(relax.analysis.free_vars(function.body.body))
    for value in values.values():
        for part in _parts(value):
            reads.update(relax.analysis.free_vars(part))
    returned = values.get(function.body.body)
    if not isinstance(returned, relax.Tuple) or reads[function.body.body] > 1:
        return {}
    # Of a region with several results, only single ones may be read.
    fields = Counter(
        (value.tuple_value, value.index)
        for value in values.values()
        if isinstance(value, relax.TupleGetItem)
    )
    whole = Counter(var for var, _ in fields.elements())
    places = {}
    for param in function.params:
        last = returned.fields[results[str(param.name)]] if str(param.name) in results else None
        if not isinstance(last, relax.Var) or reads[param] != 1 or reads[last] != 1:
            continue
        value, result = values.get(last), 0
        if isinstance(value, relax.TupleGetItem):
            var, result = value.tuple_value, value.index
            if fields[var, result] != 1 or whole[var] != reads[var]:
                continue
            value = values.get(var)
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            continue
        arguments = [at for at, argument in enumerate(value.args) if argument.same_as(param)]
        if value.op.name_hint in regions and len(arguments) == 1:
            places[str(param.name)] = (arguments[0], result)
    return places


def _parts(value: relax.Expr) -> Collection[relax.Expr]:
    """Return the operands of a call and the fields of a tuple, each of which is read by itself."""
    if isinstance(value, relax.Call):
        return list(value.args)
    return list(value.fields) if isinstance(value, relax.Tuple) else [value]
