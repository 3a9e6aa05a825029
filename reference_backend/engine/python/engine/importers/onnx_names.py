# SPDX-License-Identifier: Apache-2.0
"""TVM's ONNX importer, with the name of the node in the span of each call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ..aliases import Attributes
from ..origins import Origin, Tracer, with_classes, with_span
from ..passes.selections import of_unknown_size, type_of_selection
from .attributes.onnx_unread import require_importer, title_of
from .declared import require_declared
from .failures import at_node, unknown_operators
from .onnx_graph import DOMAINS, all_nodes, reads
from .onnx_types import declared

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


class _Builder(Tracer):
    """A block builder that also names choices of branches: for these, TVM asks no converter.

    Parameters
    ----------
    graph
        The graph that is read.
    """

    def __init__(self, graph: GraphProto) -> None:
        super().__init__()
        self._branches = _branches(graph)

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression."""
        name = next(self._branches, "") if isinstance(expr, relax.If) else ""
        if name:
            span = Origin(name).span()
            expr = relax.If(expr.cond, expr.true_branch, expr.false_branch, span)
        return super().emit(expr, name_hint)


def _branches(graph: GraphProto) -> Iterator[str]:
    """Generate the names of the nodes If, in the order in which TVM finishes them."""
    for node in graph.node:
        if node.op_type == "If":
            # TVM reads this one first, whichever comes first in the file.
            for item in sorted(node.attribute, key=lambda item: item.name != "then_branch"):
                yield from _branches(item.g)
            yield node.name or next(iter(node.output), "")


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, whose block builder knows the node that is read."""

    def __init__(
        self, outline: ModelProto, graph: GraphProto, *args: object, **options: object
    ) -> None:
        super().__init__(*args, **options)
        self.bb = _Builder(graph)
        self._outline = outline
        self._declared = declared(outline.graph)
        self._read = set(reads(outline.graph))
        self._author_names = {
            str(node.name or next(iter(node.output), "")) for node in outline.graph.node
        }

    def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
        """Refuse operators that TVM does not know, and name their nodes; TVM names only kinds."""
        kinds: Collection[str] = ()
        try:
            super()._check_for_unsupported_ops(graph)
        except tvm.error.OpNotImplemented as error:
            kinds = str(error).rpartition("ONNX: ")[2].split(", ")
        unknown = [
            title_of(node)
            for node in all_nodes(graph)
            if node.op_type in kinds or node.domain not in DOMAINS
        ]
        if unknown:
            raise tvm.error.OpNotImplemented(unknown_operators(unknown))
        require_importer(graph, self.opset)

    def _construct_nodes(self, graph: GraphProto) -> None:
        """Read all nodes, and compare what they became with the types of the model."""
        try:
            super()._construct_nodes(graph)
        except Exception:
            # A wrong shape makes a later node fail.
            self._require_declared()
            raise
        self._require_declared()

    def _require_declared(self) -> None:
        for node in self._outline.graph.node:
            for name in node.output:
                if name in self._read and name in self._declared and name in self._nodes:
                    require_declared(title_of(node), name, self._declared[name], self._nodes[name])

    def _parse_value_proto(self, value_proto: ValueInfoProto | NodeProto) -> str:
        """Return the name of a value, or of a node; TVM hands it on to the operator."""
        name = super()._parse_value_proto(value_proto)
        return name or next(iter(getattr(value_proto, "output", ())), "")

    def _convert_operator(
        self,
        op_name: str,
        inputs: Sequence[relax.Expr | None],
        attrs: Attributes,
        opset: int,
    ) -> relax.Expr:
        name = str(attrs["tvm_custom"]["name"] or "")
        # Operators that replace a quantised one are named after it.
        original = name.removesuffix(f"_{op_name}")
        if name not in self._author_names and original in self._author_names:
            name = original
        outer, self.bb.span = self.bb.span, Origin(name).span() if name else None
        try:
            with at_node(f"{name} ({op_name})" if name else op_name):
                result = super()._convert_operator(op_name, inputs, attrs, opset)
                if op_name == "NonMaxSuppression":
                    # Before other operators read the most that can be selected as the size.
                    unsized = self.bb.emit(of_unknown_size(result))
                    result = self.bb.match_cast(unsized, type_of_selection(result))
            span = self.bb.span
        finally:
            self.bb.span = outer
        is_call = isinstance(result, tvm.relax.Call) and result.span is None
        return with_span(result, span) if is_call and span is not None else result


def read(model: ModelProto, outline: ModelProto, **options: object) -> tvm.IRModule:
    """Read a model as TVM's `from_onnx` does.

    Parameters
    ----------
    model
        The model, with operators that TVM reads.
    outline
        The model of the user with the types of its tensors, as `onnx_types.outline` returns it.
    **options
        Of `tvm.relax.frontend.onnx.from_onnx`.

    Returns
    -------
    mod
        A module with the function `main`.

    Raises
    ------
    ValueError
        TVM reads a node as something else than the model declares.
    """
    ours = with_classes(from_onnx, ONNXGraphImporter=partial(_Importer, outline, model.graph))
    return ours(model, **options)
