# SPDX-License-Identifier: Apache-2.0
"""Asking the driver about a single call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax

from ..libraries.asking import answer_about
from ..settings.options import Options
from ..settings.symbols import symbol_bounds
from .capability import Op

_KEPT = 256
_answers: dict[relax.Call, str | None] = {}
"""A cache of the driver's latest answers: patterns ask several times."""


def ask_driver(op: Op, call: relax.Call) -> str | None:
    """Ask the driver whether it takes a call within the table's limits.

    For use as `DECLINED_BY_SDK`. The partitioner does not call it, since it asks the driver
    about each composite as a whole; TVM's own passes and the conformance kit do.

    Parameters
    ----------
    op
        The entry of the call.
    call
        The call; for an entry with only chains, the last one.

    Returns
    -------
    reason
        None if the driver takes it, or the driver's sentence.
    """
    if not op.relax:
        return None
    if call not in _answers:
        if len(_answers) >= _KEPT:
            _answers.clear()
        _answers[call] = _ask(call)
    return _answers[call]


def _ask(call: relax.Call) -> str | None:
    variables = dict.fromkeys(relax.analysis.free_vars(call))
    builder = relax.BlockBuilder()
    with builder.function("call", list(variables)):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(call))
        builder.emit_func_output(result)
    function = builder.get()["call"]
    options = Options.load(None)
    bounds = symbol_bounds(function, options, {})
    return decline_of(function, options, bounds) or None


def decline_of(
    composite: relax.Function,
    options: Options,
    bounds: Mapping[str, int],
    rule: Sequence[int] = (),
) -> str:
    """Return why no driver takes a composite, with the reason of the last one; "" if one does."""
    reason = ""
    for driver in options.drivers:
        given = options.for_driver(driver).driver_options()
        reason = answer_about(composite, driver, given, bounds, False, rule).reason
        if not reason:
            break
    return reason
