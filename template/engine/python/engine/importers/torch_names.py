# SPDX-License-Identifier: Apache-2.0
"""TVM's importer of exported programs, with node, module and line in the span of each call."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
import tvm.relax.frontend.torch as frontend
from tvm.relax.frontend.torch import exported_program_translator as translator

from ..origins import Origin, Tracer, with_classes
from .failures import at_node, unknown_operators

if TYPE_CHECKING:
    from torch import fx
    from tvm import relax

    class Converter(Protocol):
        """Makes a call of a node."""

        def __call__(
            self, node: fx.Node, *importer: translator.ExportedProgramImporter
        ) -> relax.Expr:
            """Return the call."""


class _Importer(translator.ExportedProgramImporter):  # type: ignore[misc]
    """TVM's importer, whose block builder knows the node that is read."""

    _builder: Tracer

    @property
    def block_builder(self) -> Tracer:
        """What binds the calls."""
        return self._builder

    @block_builder.setter
    def block_builder(self, builder: relax.BlockBuilder) -> None:
        self._builder = Tracer()

    def create_convert_map(self) -> dict[str, Converter]:
        """Return the converters, which tell their node."""
        return self._telling(super().create_convert_map())

    def update_convert_map(self, custom_convert_map: dict[str, Converter]) -> None:
        """Add converters."""
        super().update_convert_map(self._telling(custom_convert_map))

    def _check_unsupported_func_type(self, nodes: Sequence[fx.Node]) -> None:
        """Refuse ops without a converter, and name their nodes; TVM names only kinds."""
        missing = [
            _title(node)
            for node in nodes
            if node.op == "call_function" and node.target.__name__ not in self.convert_map
        ]
        if missing:
            raise ValueError(unknown_operators(missing))

    def _telling(self, converters: dict[str, Converter]) -> dict[str, Converter]:
        return {name: self._teller(convert) for name, convert in converters.items()}

    def _teller(self, convert: Converter) -> Converter:
        def converted(node: fx.Node, *importer: translator.ExportedProgramImporter) -> relax.Expr:
            builder = self._builder
            outer, builder.span = builder.span, _origin_of(node).span()
            try:
                with at_node(_title(node)):
                    return convert(node, *importer)
            finally:
                builder.span = outer

        return converted


def _origin_of(node: fx.Node) -> Origin:
    """Return the name of a node, with its innermost module and the user's line."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]) if modules else ""
    # Exported as "L['self'].block.0" by some versions of torch.
    path = path.removeprefix("L['self']").removeprefix("L__self__").lstrip(".")
    # Frames are two lines each: the file and line, and the text; the innermost is the last.
    frames = [
        line.strip()
        for line in str(node.meta.get("stack_trace") or "").splitlines()
        if line.lstrip().startswith('File "') and not _OF_TORCH.search(line)
    ]
    return Origin(str(node.name), path, frames[-1] if frames else "")


_OF_TORCH = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]torch[/\\]|"
    + re.escape(f'"{Path(torch.__file__).parent}{os.sep}')
)
"""A file of PyTorch itself: as it is usually installed where a program was exported, or here."""


def _title(node: fx.Node) -> str:
    """Return a node for messages: its name, op, module and line."""
    origin = _origin_of(node)
    about = [str(node.target), origin.module and f"module {origin.module}", origin.location]
    return f"{origin.name} ({', '.join(item for item in about if item)})"


from_exported_program = with_classes(
    frontend.from_exported_program, ExportedProgramImporter=_Importer
)
"""As TVM's."""
