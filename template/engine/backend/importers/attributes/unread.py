# SPDX-License-Identifier: Apache-2.0
"""Refuses what a model says and no importer reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from .harmless import harmless
from .readings import Row

MISSING = object()
"""Instead of a default value, if there is none."""

_LONGEST = 60


class Given(NamedTuple):
    """Something that a node has.

    `name`: as the readings have it.
    `value`: its value.
    `default`: the value that it has if the model does not say it.
    """

    name: str
    value: object
    default: object = MISSING


def refuses(row: Row) -> bool:
    """Return whether a rule reads nothing: it only refuses the operator, in its own words."""
    return not row["reads"] and "hands_on" not in row


def require_read(
    front_door: str,
    title: str,
    op: str,
    row: Row,
    given: Iterable[Given],
    more: Mapping[str, object] | None = None,
) -> None:
    """Refuse what an importer does not read of a node, but defaults and what is harmless."""
    given = list(given)
    values = {said.name.rpartition(".")[2]: said.value for said in given}
    values |= more or {}
    read = {*row["reads"], *row.get("hands_on", ())}
    for said in given:
        if said.name in read or _same(said.value, said.default):
            continue
        if harmless(front_door, op, said.name.rpartition(".")[2], values):
            continue
        raise ValueError(f"the node {title}: {_sentence(said)}")


def _sentence(said: Given) -> str:
    if said.name.startswith("input "):
        return (
            f"its {said.name} is not read by the importer, so that values would be wrong; "
            "supported is the node without it"
        )
    name = said.name.rpartition(".")[2]
    supported = "the node without it"
    if said.default is not MISSING:
        supported = f"the default, {name}={_shown(said.default)}"
    return (
        f"its attribute {name}={_shown(said.value)} is not read by the importer, so that values "
        f"would be wrong; supported is {supported}"
    )


def _shown(value: object) -> str:
    text = repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _same(value: object, default: object) -> bool:
    if default is MISSING:
        return False
    if isinstance(value, bool) or isinstance(default, bool) or value is None or default is None:
        return value is default or (value is not None and default is not None and value == default)
    try:
        x, y = np.asarray(value), np.asarray(default)
        return bool(np.all(x == y)) and (x.size > 0) == (y.size > 0)
    except (TypeError, ValueError):
        return False
