# SPDX-License-Identifier: Apache-2.0
"""What TVM's importer and our rules read of the operators of ONNX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...backend.importers.attributes.onnx_schemas import Schema, schema_of, versions_of
from ...backend.importers.attributes.readings import Readings, Row, Rows
from ...backend.importers.onnx.node import Node as OurNode
from ...backend.importers.onnx.operators import RULES
from ...backend.importers.onnx.versions import converters as all_converters
from .abstract_values import NOTHING, Attributes, Inputs, Node, Reads
from .following import Follower


def find_readings(
    converters: Mapping[str, Any] | None = None,
    rules: Mapping[str, Callable[..., None]] | None = None,
) -> Readings:
    """Return what is read of each operator."""
    converters = all_converters() if converters is None else converters
    return {
        "importer": rows_of_converters(converters),
        "rules": _rows_of_rules(RULES if rules is None else rules),
    }


def rows_of_converters(converters: Mapping[str, Any]) -> Rows:
    """Find out what TVM's converters read."""
    rows: Rows = {}
    for op, converter in sorted(converters.items()):
        implemented = [
            int(name.removeprefix("_impl_v"))
            for name in dir(converter)
            if name.startswith("_impl_v")
        ]

        @functools.cache
        def follow(version: int, converter: Any = converter) -> Reads:
            follower = Follower()
            inputs, attributes = frozenset({Inputs()}), frozenset({Attributes()})
            function = getattr(converter, f"_impl_v{version}")
            follower.follow(function, NOTHING, inputs, attributes, NOTHING)
            return follower.reads

        def read(opset: int, follow: Any = follow, versions: Any = implemented) -> Reads:
            reads: Reads = follow(max((v for v in versions if v <= opset), default=min(versions)))
            return reads

        rows |= _rows(op, implemented, read)
    return rows


def _rows_of_rules(rules: Mapping[str, Callable[..., None]]) -> Rows:
    rows: Rows = {}
    for op, rule in sorted(rules.items()):
        follower = Follower()
        follower.follow(rule, frozenset({Node(OurNode)}))
        rows |= _rows(op, [], lambda opset, reads=follower.reads: reads)  # type: ignore[misc]
    return rows


def _rows(op: str, implemented: Iterable[int], read: Callable[[int], Reads]) -> Rows:
    """Return the rows of an operator, each for the versions up to the next row."""
    rows: Rows = {}
    first = versions_of(op)[:1]
    for domain, versions in (("", versions_of(op)), ("com.microsoft", [1])):
        title = f"{domain}.{op}" if domain else op
        last = None
        for opset in sorted({*versions, *(v for v in implemented if domain or [v] > first)}):
            schema = schema_of(op, domain, opset)
            if schema is None:
                continue
            row = _row(schema, read(opset))
            if row != last:
                rows[f"{title}-{opset}"] = last = row
    return rows


def _row(schema: Schema, reads: Reads) -> Row:
    names = {name: name in reads.attributes for name in schema.defaults}
    # Some models have attributes that no version of the schema has.
    names |= {name: True for name in reads.attributes - {"tvm_custom"}}
    names |= {f"input {name}": reads.has_input(place) for place, name in enumerate(schema.inputs)}
    read = sorted(name for name, is_read in names.items() if is_read)
    unread = sorted(name for name, is_read in names.items() if not is_read)
    if reads.passes:
        return {"reads": read, "ignores": [], "hands_on": unread}
    return {"reads": read, "ignores": unread}
