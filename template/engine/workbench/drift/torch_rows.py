# SPDX-License-Identifier: Apache-2.0
"""What TVM's importer and our rules read of PyTorch's ops."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm.relax.frontend.torch import exported_program_translator as translator

from ...backend.importers.attributes.readings import Readings, Row, Rows
from ...backend.importers.torch.call import Call
from ...backend.importers.torch.programs import RULES
from .abstract_values import Node, Reads
from .following import Follower

_SPACES = ("aten", "torchvision")
"""The namespaces for whose ops TVM's importer has converters."""


def find_readings(
    converters: Mapping[str, Callable[..., Any]] | None = None,
    rules: Mapping[str, Callable[..., Any]] | None = None,
) -> Readings:
    """Return what is read of each op."""
    if converters is None:
        converters = translator.ExportedProgramImporter().convert_map
    schemas = _schemas()
    importer: Rows = {}
    for op, converter in converters.items():
        for space in _SPACES:
            schema = schemas.get(f"{space}.{op}")
            if schema is not None:
                importer[f"{space}.{op}"] = _row(schema, _reads(converter, Node()))
    ours: Rows = {}
    for op, rule in (RULES if rules is None else rules).items():
        reads = _reads(rule, Node(Call))
        for name, schema in schemas.items():
            if op in (name, name.rpartition(".")[0]):
                ours[name] = _row(schema, reads)
    return {"importer": dict(sorted(importer.items())), "rules": dict(sorted(ours.items()))}


def _schemas() -> dict[str, torch.FunctionSchema]:
    """Return the arguments of all ops, by their names in graphs."""
    # An import registers the ops of a package.
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    for package in ("torchao.quantization", "torchvision"):
        if importlib.util.find_spec(package.partition(".")[0]) is not None:
            importlib.import_module(package)
    graphs = set(torch._C._dispatch_get_all_op_names())
    return {
        f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}": schema
        for schema in torch._C._jit_get_all_schemas()
        # TorchScript has more, for numbers and strings.
        if (schema.name + (f".{schema.overload_name}" if schema.overload_name else "")) in graphs
        if not any(argument.is_out for argument in schema.arguments)
    }


def _reads(function: Callable[..., Any], node: Node) -> Reads:
    follower = Follower()
    follower.follow(function, frozenset({node}))
    return follower.reads


def _row(schema: torch.FunctionSchema, reads: Reads) -> Row:
    names = {
        argument.name: argument.name in reads.attributes
        or (not argument.kwarg_only and reads.has_input(place))
        for place, argument in enumerate(schema.arguments)
    }
    read = [name for name, is_read in names.items() if is_read]
    unread = [name for name, is_read in names.items() if not is_read]
    if reads.passes:
        return {"reads": read, "ignores": [], "hands_on": unread}
    return {"reads": read, "ignores": unread}
