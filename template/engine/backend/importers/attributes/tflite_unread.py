# SPDX-License-Identifier: Apache-2.0
"""Refuses what an operator of TFLite says and no converter reads."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import tflite

from ..tflite.tensors import NO_FIELDS
from .readings import load
from .tflite_schemas import fields_of, tables_of_options
from .unread import Given, require_read

if TYPE_CHECKING:
    from tflite import Operator


def require_options(op: Operator, kind: str, title: str) -> None:
    """Refuse an operator of which its converter would not read all."""
    row = load("tflite")["importer"].get(kind)
    if row is None:
        return
    later = [int(name.split()[-1]) for name in row["reads"] if name.startswith("inputs from")]
    given = [said for said in _given(op) if not _is_later(said.name, later)]
    require_read("tflite", title, kind, row, given)


def _is_later(name: str, later: list[int]) -> bool:
    return name.startswith("input ") and any(int(name.split()[-1]) >= place for place in later)


def _given(op: Operator) -> Iterator[Given]:
    for union, kind, table in (
        (tflite.BuiltinOptions, op.BuiltinOptionsType(), op.BuiltinOptions()),
        (tflite.BuiltinOptions2, op.BuiltinOptions2Type(), op.BuiltinOptions2()),
    ):
        name = _names(union).get(kind, "")
        if table is not None and name in tables_of_options():
            values, defaults = _values(name, table.Bytes, table.Pos), _defaults(name)
            for field in values:
                yield Given(f"{name}.{field}", values[field], defaults[field])
    for place in range(op.InputsLength()):
        if op.Inputs(place) >= 0:
            yield Given(f"input {place}", op.Inputs(place))


@functools.cache
def _names(union: type) -> Mapping[int, str]:
    """Return the names of options by their number in a union."""
    return {value: name for name, value in vars(union).items() if isinstance(value, int)}


def _values(name: str, data: bytes, place: int) -> dict[str, object]:
    options = tables_of_options()[name]()
    options.Init(data, place)
    values: dict[str, object] = {}
    for field in fields_of(name):
        vector = getattr(options, f"{field}Length", None)
        values[field] = vector() if vector else getattr(options, field)()
    return values


@functools.cache
def _defaults(name: str) -> Mapping[str, object]:
    """Return what the fields are in a table without any."""
    return _values(name, NO_FIELDS, 4)
