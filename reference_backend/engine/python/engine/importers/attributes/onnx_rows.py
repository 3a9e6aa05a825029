# SPDX-License-Identifier: Apache-2.0
"""What TVM's importer and our rules read of the operators of ONNX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onnx import defs, helper
from tvm.relax.frontend.onnx import onnx_frontend

from ..onnx_graph import DOMAINS, Graph
from ..onnx_graph import Node as OurNode
from .contrib import CONTRIB
from .following import Follower
from .given import NOTHING, Attributes, Inputs, Instance, Known, Node, Reads
from .tables import Row, Rows, Table


class Schema(NamedTuple):
    """What an operator has.

    Parameters
    ----------
    defaults
        Its attributes, with their default values; None is for those without one.
    inputs
        The names of its inputs; the last one may stand for many.
    """

    defaults: Mapping[str, object]
    inputs: Sequence[str]


def schema_of(op: str, domain: str, opset: int) -> Schema | None:
    """Return what an operator has in a version.

    Parameters
    ----------
    op, domain
        The operator.
    opset
        The version of ONNX's own operators.

    Returns
    -------
    schema
        None of an operator that is not known.
    """
    if domain == "com.microsoft":
        found = CONTRIB.get(op)
        return Schema(found[0], found[1].split()) if found else None
    versions = _versions(op)
    if not versions:
        return None
    schema = defs.get_schema(op, max(opset, versions[0]), "")
    defaults = {
        name: helper.get_attribute_value(item.default_value) if item.default_value.name else None
        for name, item in schema.attributes.items()
    }
    return Schema(defaults, [item.name for item in schema.inputs])


def _versions(op: str) -> list[int]:
    """Return the versions of ONNX that changed an operator."""
    if not _HISTORY:
        for schema in defs.get_all_schemas_with_history():
            if schema.domain == "":
                _HISTORY.setdefault(schema.name, []).append(schema.since_version)
    return sorted(_HISTORY.get(op, ()))


_HISTORY: dict[str, list[int]] = {}


def find_table(
    converters: Mapping[str, Any] | None = None,
    rules: Mapping[str, Callable[..., None]] | None = None,
) -> Table:
    """Find out what is read of each operator.

    Parameters
    ----------
    converters, rules
        Those of TVM and ours by default.
    """
    from ..onnx_operators import RULES

    converters = onnx_frontend._get_convert_map() if converters is None else converters
    return {
        "importer": rows_of_converters(converters),
        "rules": _rows_of_rules(RULES if rules is None else rules),
    }


def rows_of_converters(converters: Mapping[str, Any]) -> Rows:
    """Find out what TVM's converters read.

    Parameters
    ----------
    converters
        The classes of converters by operator.
    """
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
        graph = frozenset({Known(Instance(Graph))})
        follower.follow(rule, graph, frozenset({Node(OurNode)}))
        rows |= _rows(op, [], lambda opset, reads=follower.reads: reads)  # type: ignore[misc]
    return rows


def _rows(op: str, implemented: Iterable[int], read: Callable[[int], Reads]) -> Rows:
    """Return the rows of an operator, each for the versions from it to the next one."""
    rows: Rows = {}
    first = _versions(op)[:1]
    for domain, versions in (("", _versions(op)), ("com.microsoft", [1])):
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
    # What no version of the schema has, some models have nevertheless.
    names |= {name: True for name in reads.attributes - {"tvm_custom"}}
    names |= {f"input {name}": reads.has_input(place) for place, name in enumerate(schema.inputs)}
    read = sorted(name for name, is_read in names.items() if is_read)
    others = sorted(name for name, is_read in names.items() if not is_read)
    if reads.passes:
        return {"reads": read, "ignores": [], "hands_on": others}
    return {"reads": read, "ignores": others}


def row_of(rows: Rows, op: str, domain: str, opset: int) -> Row | None:
    """Return the row of an operator in a version.

    Parameters
    ----------
    rows
        All rows.
    op, domain
        The operator.
    opset
        The version of ONNX's own operators.

    Returns
    -------
    row
        None of an operator that is not known.
    """
    if domain not in DOMAINS:
        return None
    title = f"{domain}.{op}-" if domain == "com.microsoft" else f"{op}-"
    versions = sorted(int(key.removeprefix(title)) for key in rows if key.startswith(title))
    if not versions:
        return None
    return rows[f"{title}{max((v for v in versions if v <= opset), default=versions[0])}"]
