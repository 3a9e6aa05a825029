# SPDX-License-Identifier: Apache-2.0
"""Refuses what a program of PyTorch says and neither TVM's importer nor a rule of ours reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .readings import load
from .unread import MISSING, Given, refuses, require_read

if TYPE_CHECKING:
    import torch
    from torch import fx


def require_arguments(node: fx.Node, by_rule: bool) -> None:
    """Refuse a node of which its converter would not read all arguments.

    `by_rule`: whether a rule of ours converts it, rather than TVM's importer.
    """
    schema = getattr(node.target, "_schema", None)
    name = str(node.target)
    readings = load("torch")
    row = readings["rules" if by_rule else "importer"].get(name)
    if row is None or schema is None or (by_rule and refuses(row)):
        return
    if "hands_on" in row and name in readings["importer"]:
        # A rule may hand some cases on to TVM's converter.
        row = {"reads": [*row["reads"], *readings["importer"][name]["reads"]], "ignores": []}
    title = f"{node.name} ({name})"
    require_read("torch", title, name.rpartition(".")[0], row, list(_given(node, schema)))


def _given(node: fx.Node, schema: torch.FunctionSchema) -> Iterator[Given]:
    arguments = schema.arguments
    values = (
        dict(zip([argument.name for argument in arguments], node.args, strict=False)) | node.kwargs
    )
    for argument in arguments:
        if values.get(argument.name) is not None:
            default = argument.default_value if argument.has_default_value() else MISSING
            yield Given(argument.name, values[argument.name], default)
