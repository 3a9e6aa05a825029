# SPDX-License-Identifier: Apache-2.0
"""What the operators of ONNX have in each version, and their rows in the readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onnx import defs, helper

from ..onnx.graph import DOMAINS
from .contrib import CONTRIB
from .readings import Row, Rows


class Schema(NamedTuple):
    """What an operator has.

    `defaults`: its attributes, with their default values; None is for those without one.
    `inputs`: the names of its inputs; the last one may stand for many.
    """

    defaults: Mapping[str, object]
    inputs: Sequence[str]


def schema_of(op: str, domain: str, opset: int) -> Schema | None:
    """Return what an operator has in a version; None of one that is not known."""
    if domain == "com.microsoft":
        contrib = CONTRIB.get(op)
        return Schema(contrib[0], contrib[1].split()) if contrib else None
    versions = versions_of(op)
    if not versions:
        return None
    schema = defs.get_schema(op, max(opset, versions[0]), "")
    defaults = {
        name: helper.get_attribute_value(about.default_value) if about.default_value.name else None
        for name, about in schema.attributes.items()
    }
    return Schema(defaults, [parameter.name for parameter in schema.inputs])


def versions_of(op: str) -> list[int]:
    """Return the versions of ONNX that changed an operator."""
    if not _HISTORY:
        for schema in defs.get_all_schemas_with_history():
            if schema.domain == "":
                _HISTORY.setdefault(schema.name, []).append(schema.since_version)
    return sorted(_HISTORY.get(op, ()))


_HISTORY: dict[str, list[int]] = {}


def row_of(rows: Rows, op: str, domain: str, opset: int) -> Row | None:
    """Return the row of an operator in a version; None of one that is not known."""
    if domain not in DOMAINS:
        return None
    title = f"{domain}.{op}-" if domain == "com.microsoft" else f"{op}-"
    versions = sorted(int(key.removeprefix(title)) for key in rows if key.startswith(title))
    if not versions:
        return None
    return rows[f"{title}{max((v for v in versions if v <= opset), default=versions[0])}"]
