# SPDX-License-Identifier: Apache-2.0
"""The one place that asks the driver's build half, which may be a vendor's SDK, what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm import relax

from ..shared.backend import BACKEND
from ..shared.messages import one_line

Listener = Callable[[relax.Function, "str | None"], None]
"""Receives what the driver is asked about: before the answer, None, then the answer."""

_listeners: list[Listener] = []


class Answer(NamedTuple):
    """What the driver says: why it declines, or "", and then what users should know."""

    reason: str
    warnings: tuple[str, ...] = ()


def answer_about(
    function: relax.Function,
    driver: str,
    driver_options: Mapping[str, object],
    bounds: Mapping[str, int],
    finish: bool,
    rule: Sequence[int] = (),
) -> Answer:
    """Ask the driver whether it takes a composite or, with `finish`, a whole region.

    `rule`: `Chip.rule`; nothing else than a composite of integers needs it.

    The reason is codegen's sentence with that of the driver, in one line.
    """
    ask = tvm_ffi.get_global_func(f"{BACKEND}.codegen.decline_reason")
    for listener in _listeners:
        listener(function, None)
    text = str(ask(function, driver, driver_options, bounds, finish, rule))
    # Warnings are in lines of their own, behind an empty one.
    taken = text.startswith("\n")
    answer = Answer("", tuple(text.splitlines()[1:])) if taken else Answer(one_line(text))
    for listener in _listeners:
        listener(function, answer.reason)
    return answer


def ops_of(function: relax.Function) -> str:
    """Return the names of the ops that a driver is asked about, each once."""
    names: dict[str, None] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            names[expr.op.name] = None

    relax.analysis.post_order_visit(function, visit)
    return ", ".join(names)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a function know each question and its answer."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
