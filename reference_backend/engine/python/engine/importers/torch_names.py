# SPDX-License-Identifier: Apache-2.0
"""TVM's importer of exported programs, with node, module and line in the span of each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tvm.relax.frontend.torch as frontend
from tvm.relax.frontend.torch import exported_program_translator as translator

from ..origins import Origin, Tracer, with_classes

if TYPE_CHECKING:
    from torch import fx
    from tvm import relax

    Converter = Callable[..., relax.Expr]


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

    def _telling(self, converters: dict[str, Converter]) -> dict[str, Converter]:
        return {name: self._teller(convert) for name, convert in converters.items()}

    def _teller(self, convert: Converter) -> Converter:
        def converted(node: fx.Node, *importer: translator.ExportedProgramImporter) -> relax.Expr:
            builder = self._builder
            outer, builder.span = builder.span, _origin_of(node).span()
            try:
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
        if line.lstrip().startswith('File "')
    ]
    return Origin(str(node.name), path, frames[-1] if frames else "")


from_exported_program = with_classes(
    frontend.from_exported_program, ExportedProgramImporter=_Importer
)
"""As TVM's."""
