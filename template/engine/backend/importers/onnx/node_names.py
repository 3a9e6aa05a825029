# SPDX-License-Identifier: Apache-2.0
"""TVM's ONNX importer, with the name of the node in the span of each call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import tvm
from onnx import GraphProto
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ...ir.origins import Origin, Tracer, with_classes, with_span
from ...passes.selections import of_unknown_size, type_of_selection
from ...shared.aliases import Attributes
from ...shared.messages import FIX_SIZES
from ..attributes.onnx_unread import require_importer
from ..declared import Declared, require_declared
from ..failures import refused_at, unknown_operators
from ..unknown_sizes import require_sizes
from .graph import DOMAINS, all_nodes, reads, sizes_of, title_of
from .input_sizes import inputs_of
from .reductions import of_nothing
from .relations import Relations
from .shape_symbols import Symbols
from .types import declared
from .versions import CONVERTERS

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto


class _Builder(Tracer):
    """A block builder that also names choices of branches: for these, TVM asks no converter."""

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
            # TVM reads the then_branch first, whatever the order in the file is.
            for branch in sorted(node.attribute, key=lambda branch: branch.name != "then_branch"):
                yield from _branches(branch.g)
            yield node.name or next(iter(node.output), "")


# TVM prints an operator that it cannot convert, which the error names.
_construct_nodes = with_classes(ONNXGraphImporter._construct_nodes, print=lambda *_: None)


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, whose block builder knows the node that is read."""

    _shape: dict[str, list[int]]

    def __init__(
        self,
        outline: ModelProto,
        graph: GraphProto,
        told: dict[str, int | str],
        *args: object,
        **options: object,
    ) -> None:
        super().__init__(*args, **options)
        self.bb = _Builder(graph)
        self._outline = outline
        self._declared = declared(outline.graph)
        self._read = set(reads(outline.graph))
        self._authors = _titles(outline.graph)
        self._symbols = Symbols(self.bb, self._params)
        self._relations = Relations(self.bb, told)

    def _parse_graph_input(self, graph: GraphProto) -> None:
        """Read the inputs, and remember which symbols their sizes are."""
        # TVM takes a size of 0 for an open one.
        self._shape = {**_empty_inputs(graph), **self._shape}
        super()._parse_graph_input(graph)
        given = {
            name: [str(size.dim_param) for size in value.type.tensor_type.shape.dim]
            for name, value in inputs_of(self._outline.graph).items()
            if name not in self._shape
        }
        for name, symbols in given.items():
            sizes = getattr(getattr(self._inputs.get(name), "ty", None), "shape", None) or ()
            for size, symbol in zip(sizes, symbols, strict=False):
                if isinstance(size, tvm.tirx.Var) and str(size.name) == symbol:
                    self._relations.symbols[size] = symbol

    def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
        """Refuse operators that TVM does not know, and name their nodes; TVM names only kinds."""
        kinds: Collection[str] = ()
        cause: Exception | None = None
        try:
            super()._check_for_unsupported_ops(graph)
        except tvm.error.OpNotImplemented as error:
            cause, kinds = error, str(error).rpartition("ONNX: ")[2].split(", ")
        unknown = [
            title_of(node)
            for node in all_nodes(graph)
            if node.op_type in kinds or node.domain not in DOMAINS
        ]
        if unknown:
            raise ValueError(unknown_operators(unknown)) from cause
        require_importer(graph, self.opset)

    def _construct_nodes(self, graph: GraphProto) -> None:
        """Read all nodes, and compare what they became with the types of the model."""
        try:
            for node in graph.node:
                # Node by node, so that errors of TVM between them have a node, too.
                with refused_at(f"ONNX node {self._title(node)}", str):
                    _construct_nodes(self, SimpleNamespace(node=[node]))
        except Exception:
            # A wrong shape makes a later node fail.
            self._require_declared()
            raise
        self._require_declared()

    def _require_declared(self) -> None:
        for node in self._outline.graph.node:
            for name in node.output:
                if name in self._read and name in self._nodes:
                    said = self._declared.get(name, Declared("", None))
                    require_declared(title_of(node), name, said, self._nodes[name])

    def _title(self, node: NodeProto) -> str:
        name = self._author_of(node.name or next(iter(node.output), ""), node.op_type)
        return self._authors.get(name) or title_of(node)

    def _author_of(self, name: str, op: str) -> str:
        """Return the name of the user's node that a node replaces: its own without the operator."""
        original = name.removesuffix(f"_{op}")
        return original if name not in self._authors and original in self._authors else name

    def _what_helps(self, inputs: Sequence[relax.Expr | None]) -> str:
        """Return what to do if the reason may be sizes that only the run knows."""
        if not any(map(_has_symbols, self._inputs.values())):
            return ""
        is_open = any(_has_symbols(x) or self._symbols.is_known(x) for x in inputs)
        return f"if the open sizes are why, {FIX_SIZES}" if is_open else ""

    def _parse_value_proto(self, value_proto: ValueInfoProto | NodeProto) -> str:
        """Return the name of a value, or of a node; TVM hands it on to the operator."""
        name = super()._parse_value_proto(value_proto)
        return name or next(iter(getattr(value_proto, "output", ())), "")

    def _convert_subgraph(self, bb: relax.BlockBuilder, graph: GraphProto) -> relax.Expr:
        """Read a branch; of its nodes, TVM hands on the names alone."""
        named = GraphProto()
        named.CopyFrom(graph)
        for node in named.node:
            node.name = node.name or next(iter(node.output), "")
        # What a branch asks of sizes only holds where it is taken.
        outer, self._relations.symbols = self._relations.symbols, {}
        try:
            return super()._convert_subgraph(bb, named)
        finally:
            self._relations.symbols = outer

    def _convert_operator(
        self, op_name: str, inputs: Sequence[relax.Expr | None], attrs: Attributes, opset: int
    ) -> relax.Expr:
        name = self._author_of(str(attrs["tvm_custom"]["name"] or ""), op_name)
        title = self._authors.get(name, f"{name!r} ({op_name})")
        outer, self.bb.span = self.bb.span, Origin(name).span() if name else None
        try:
            with refused_at(f"ONNX node {title}", partial(self._what_helps, inputs)):
                asked = self._symbols.asked(inputs, attrs, opset)
                inputs = self._relations.kept(op_name, inputs, asked)
                result = self._symbols.computed(op_name, inputs, attrs, opset)
                if result is None:
                    result = of_nothing(op_name, next(iter(inputs), None), asked)
                if result is None:
                    given = self._symbols.for_converter(op_name, inputs, attrs)
                    result = self._converted(op_name, given, attrs, opset)
                    result = self._symbols.as_tensor(result)
                if op_name == "NonMaxSuppression":
                    # Here, before another operator takes the largest number of boxes for the size.
                    unsized = self.bb.emit(of_unknown_size(result))
                    result = self.bb.match_cast(unsized, type_of_selection(result))
            span = self.bb.span
        finally:
            self.bb.span = outer
        is_call = isinstance(result, tvm.relax.Call) and result.span is None
        return with_span(result, span) if is_call and span is not None else result

    def _converted(
        self, op_name: str, inputs: Sequence[relax.Expr | None], attrs: Attributes, opset: int
    ) -> relax.Expr:
        own = CONVERTERS.get(op_name)
        try:
            if own is None:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            convert = own.get_converter(opset)
            return self.bb.normalize(convert(self.bb, inputs, attrs, [self._nodes, self._params]))
        except TypeError as error:
            if not any(map(_has_unknown_sizes, inputs)):
                raise
            # TVM's message is about its own classes.
            raise ValueError(
                "it needs the sizes of its input, which the model does not tell"
            ) from error


def _empty_inputs(graph: GraphProto) -> dict[str, list[int]]:
    """Return the sizes of inputs without elements, if all are known."""
    shapes = {name: sizes_of(value) or () for name, value in inputs_of(graph).items()}
    fixed = {name: [size for size in shape if size is not None] for name, shape in shapes.items()}
    return {name: sizes for name, sizes in fixed.items() if 0 in sizes and None not in shapes[name]}


def _titles(graph: GraphProto) -> dict[str, str]:
    """Return the nodes of a graph for messages, by the names that calls carry."""
    nodes = all_nodes(graph)
    return {str(node.name or next(iter(node.output), "")): title_of(node) for node in nodes}


def _has_symbols(expr: relax.Expr | None) -> bool:
    """Whether a tensor has sizes that only the run knows."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType):
        return False
    return _has_unknown_sizes(expr) or bool(relax.analysis.tir_vars_in_type(ty))


def _has_unknown_sizes(expr: relax.Expr | None) -> bool:
    """Whether a tensor has sizes for which there is not even an expression."""
    ty = getattr(expr, "ty", None)
    return isinstance(ty, relax.TensorType) and not isinstance(ty.shape, relax.ShapeExpr)


def read(
    model: ModelProto, outline: ModelProto, told: dict[str, int | str], **options: object
) -> tvm.IRModule:
    """Read a model as TVM's `from_onnx` does.

    `outline`: the model of the user with the types of its tensors, as `onnx_types.outline` returns
    it.
    `told`: gets what nodes tell of the symbols of inputs: the number that each must be, or another
    symbol. If it got something, the outline is to be written with that, and read again.
    """
    ours = with_classes(from_onnx, ONNXGraphImporter=partial(_Importer, outline, model.graph, told))
    mod = ours(model, **options)
    require_sizes(mod, _titles(outline.graph))
    return mod
