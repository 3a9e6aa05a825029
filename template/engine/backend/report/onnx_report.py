# SPDX-License-Identifier: Apache-2.0
"""The report as an ONNX file, which shows the partitioned model in Netron; it cannot be run."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, TypeVar

from ..shared.backend import BACKEND
from ..shared.whole_files import writing

if TYPE_CHECKING:
    from onnx import (
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        OperatorSetIdProto,
        TypeProto,
        ValueInfoProto,
    )

    from .report import OpPlacement, Report

T = TypeVar("T")

_DOMAIN = "relax"
"""The domain of the ops; regions and other functions have the backend's name."""
_IR_VERSION = 10
"""The first one in which nodes have metadata."""
_ELEMENTS = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float8_e4m3fn": "FLOAT8E4M3FN",
    "float8_e5m2": "FLOAT8E5M2",
}
"""The element types that have other names in ONNX."""


def require_onnx() -> None:
    """Refuse to write where the package `onnx` is missing."""
    if importlib.util.find_spec("onnx") is None:
        raise ValueError("An ONNX file for Netron needs the package onnx: pip install onnx")


def write_onnx(report: Report, path: str | PathLike[str]) -> None:
    """Write a report as an ONNX file."""
    require_onnx()
    data = model_of(report).SerializeToString()
    with writing(path) as unfinished:
        unfinished.write_bytes(data)


def model_of(report: Report) -> ModelProto:
    """Return a report as an ONNX model: a function of ONNX for each region.

    A `ModelProto`, whose nodes have what the report says of the ops as metadata.
    """
    from onnx import helper

    outer = {op.function: None for op in report.ops}
    main = "main" if "main" in outer or not outer else next(iter(outer))
    writer = _Writer(report)
    graph = writer.graph(main)
    functions = [
        *writer.regions,
        *(writer.function(name) for name in outer if name != main),
        *writer.regions_of_functions,
    ]
    model = helper.make_model(
        graph,
        functions=functions,
        ir_version=_IR_VERSION,
        opset_imports=_opsets(),
        producer_name=BACKEND,
        doc_string=report.summary,
    )
    helper.set_model_props(model, {"backend": BACKEND, "summary": report.summary})
    return model


def _opsets() -> list[OperatorSetIdProto]:
    from onnx import helper

    return [helper.make_operatorsetid(domain, 1) for domain in (_DOMAIN, BACKEND)]


class _Writer:
    """Makes the parts of the model.

    `report`: the report.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._ops = report.ops
        self._readers: dict[int, list[int]] = {}
        for index, op in enumerate(self._ops):
            for source in op.reads:
                self._readers.setdefault(source, []).append(index)
        # Two branches may use the same name; in ONNX, names are unique.
        count = Counter((op.function, op.name) for op in self._ops)
        self._values = [
            op.name if count[op.function, op.name] == 1 else f"{op.name}#{index}"
            for index, op in enumerate(self._ops)
        ]
        self._types = {name: op.result for name, op in zip(self._values, self._ops, strict=True)}
        self._leaving = {
            (region.symbol, item.name) for region in report.regions for item in region.outputs
        }
        self._functions = {op.function for op in self._ops}
        self.regions: list[FunctionProto] = []
        self.regions_of_functions: list[FunctionProto] = []

    def graph(self, function: str) -> GraphProto:
        """Return the graph of a function."""
        from onnx import helper

        nodes, inputs, outputs, inner = self._body(function, self.regions)
        return helper.make_graph(
            nodes,
            function,
            [self._info(name) for name in inputs],
            [self._info(name) for name in outputs],
            value_info=[self._info(name) for name in inner if _type_of(self._types[name])],
        )

    def function(self, function: str) -> FunctionProto:
        """Return a function of the module that another one may call."""
        from onnx import helper

        nodes, inputs, outputs, _ = self._body(function, self.regions_of_functions)
        return helper.make_function(BACKEND, function, inputs, outputs, nodes, _opsets())

    def _body(
        self, function: str, regions: list[FunctionProto]
    ) -> tuple[list[NodeProto], list[str], list[str], list[str]]:
        """Return nodes, inputs, outputs and other values, each in order; add the regions."""
        mine = [index for index, op in enumerate(self._ops) if op.function == function]
        groups: dict[str | int, list[int]] = {}
        for index in mine:
            groups.setdefault(self._ops[index].region or index, []).append(index)
        nodes, shown = [], []
        for key, members in _in_order(groups, self._ops):
            if isinstance(key, str):
                node, body = self._region(key, members)
                nodes.append(node)
                regions.append(body)
                shown += node.output
            else:
                nodes.append(self._node(key))
                shown.append(self._values[key])
        inputs = self._inputs(mine)
        outputs = [self._values[index] for index in mine if self._is_result(index)]
        return nodes, inputs, outputs, [name for name in shown if name not in outputs]

    def _region(self, symbol: str, members: Sequence[int]) -> tuple[NodeProto, FunctionProto]:
        """Return the call of a region, and its function."""
        from onnx import helper

        inside = set(members)
        outer = [self._ops[index].reads for index in members]
        inputs = [self._values[i] for i in _once(i for reads in outer for i in reads)]
        own = {self._values[index] for index in members}
        inputs = [name for name in inputs if name not in own] + self._inputs(members)
        outputs = [
            self._values[index]
            for index in members
            if self._is_result(index) or not inside.issuperset(self._readers[index])
        ]
        node = helper.make_node(symbol, inputs, outputs, name=symbol, domain=BACKEND)
        body = helper.make_function(
            BACKEND,
            symbol,
            inputs,
            outputs,
            [self._node(index) for _, (index,) in _in_order({i: [i] for i in members}, self._ops)],
            _opsets(),
        )
        for region in self._report.regions:
            if region.symbol == symbol:
                about = {
                    "placement": "npu",
                    "ops": region.ops,
                    "composites": ", ".join(region.composites),
                    "macs": region.macs,
                    "bytes_read": region.bytes_read,
                    "bytes_written": region.bytes_written,
                    "bytes_in": region.bytes_in,
                    "bytes_out": region.bytes_out,
                }
                for item in (node, body):
                    _describe(item, about)
        for name in own:
            if _type_of(self._types[name]):
                body.value_info.append(self._info(name))
        return node, body

    def _is_result(self, index: int) -> bool:
        """Whether an op gives a result of its function, as far as the report tells.

        What leaves a region and is read inside of it alone is a result.
        """
        op, readers = self._ops[index], self._readers.get(index, [])
        if not readers:
            return True
        inside = all(self._ops[reader].region == op.region for reader in readers)
        return op.region is not None and inside and (op.region, op.name) in self._leaving

    def _node(self, index: int) -> NodeProto:
        """Return the node of an op."""
        from onnx import helper

        op = self._ops[index]
        is_op = op.op.startswith(f"{_DOMAIN}.")
        node = helper.make_node(
            op.op.removeprefix(f"{_DOMAIN}."),
            [*(self._values[source] for source in op.reads), *op.inputs],
            [self._values[index]],
            name=op.title,
            domain=_DOMAIN if is_op or op.op not in self._functions else BACKEND,
            doc_string=_sentence(op),
        )
        for name, value in op.attributes.items():
            node.attribute.append(helper.make_attribute(name, value))
        constants = [text for text in op.arguments if text.startswith("constant ")]
        _describe(
            node,
            {
                "placement": op.placement,
                "code": op.code,
                "reason": op.reason,
                "remedy": op.remedy,
                "region": op.region,
                "composite": op.composite,
                "runs_in": op.runs_in,
                "wider": op.wider,
                "wider_remedy": op.wider_remedy,
                "variable": op.name,
                "module": op.origin.module if op.origin else None,
                "location": op.origin.location if op.origin else None,
                "stands_for": ", ".join(op.origin.others) if op.origin else None,
                "constants": ", ".join(text.removeprefix("constant ") for text in constants),
                "macs": op.macs or None,
                "bytes_read": op.bytes_read,
                "bytes_written": op.bytes_written,
            },
        )
        return node

    def _inputs(self, members: Iterable[int]) -> list[str]:
        """Return the parameters of the function that ops read; note their types."""
        return _once(name for index in members for name in self._ops[index].inputs)

    def _info(self, name: str) -> ValueInfoProto:
        from onnx import helper

        text = self._types.get(name, self._parameters.get(name, ""))
        return helper.make_value_info(name, _type_of(text) or _opaque(text))

    @property
    def _parameters(self) -> dict[str, str]:
        """The types of parameters, by the borders of the regions that read them."""
        borders = (item for region in self._report.regions for item in region.inputs)
        return {item.name: item.type for item in borders}


def _in_order(
    groups: dict[str | int, list[int]], ops: Sequence[OpPlacement]
) -> list[tuple[str | int, list[int]]]:
    """Return groups of ops, each after those that it reads; in a cycle, as they come."""
    group_of = {index: key for key, members in groups.items() for index in members}
    waits = {
        key: {group_of[s] for index in members for s in ops[index].reads if s in group_of} - {key}
        for key, members in groups.items()
    }
    ordered: dict[str | int, None] = {}
    while len(ordered) < len(groups):
        rest = [key for key in groups if key not in ordered]
        ready = [key for key in rest if waits[key] <= ordered.keys()]
        ordered.update(dict.fromkeys(ready or rest[:1]))
    return [(key, groups[key]) for key in ordered]


def _type_of(text: str) -> TypeProto | None:
    """Return the type of a tensor; none if ONNX has no such type."""
    from onnx import TensorProto, helper

    match = re.fullmatch(r"(\w+)\[(.*)\]", text)
    if match is None:
        return None
    name, sizes = match.groups()
    try:
        element = TensorProto.DataType.Value(_ELEMENTS.get(name, name.upper()))
    except ValueError:
        return None
    if sizes == "?":
        return helper.make_tensor_type_proto(element, None)
    shape = [int(size) if size.isdigit() else size for size in sizes.split(", ") if size]
    return helper.make_tensor_type_proto(element, shape)


def _opaque(text: str) -> TypeProto:
    from onnx import TypeProto

    made = TypeProto()
    made.denotation = text
    made.opaque_type.domain, made.opaque_type.name = _DOMAIN, text or "unknown"
    return made


def _describe(item: NodeProto | FunctionProto, values: Mapping[str, object]) -> None:
    from onnx import StringStringEntryProto

    for name, value in values.items():
        if value not in (None, ""):
            item.metadata_props.append(StringStringEntryProto(key=name, value=str(value)))


def _sentence(op: OpPlacement) -> str:
    if op.placement == "npu":
        return f"on the NPU, in the region {op.region} as {op.composite}"
    return f"on the host [{op.code}]: {op.reason}"


def _once(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))
