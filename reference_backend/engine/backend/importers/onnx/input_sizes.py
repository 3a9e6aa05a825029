# SPDX-License-Identifier: Apache-2.0
"""The sizes of an ONNX model's inputs: those that are given, and a symbol for each open one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral

from onnx import GraphProto, TensorShapeProto, ValueInfoProto

_OPEN = ("", "?")
"""What exporters write for a size that they do not know: each place has a size of its own."""


def inputs_of(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Return the inputs of a graph that are not weights, by name."""
    weights = {tensor.name for tensor in graph.initializer}
    return {value.name: value for value in graph.input if value.name not in weights}


def set_sizes(
    graph: GraphProto, shapes: Mapping[str, Sequence[object]], replaces: bool = False
) -> None:
    """Write the sizes of inputs into a graph, at each place of the same symbol.

    `shapes`: the sizes of inputs, by name. Those that are not integers stay open, each on its own.
    `replaces`: whether they replace other sizes that the graph has.
    """
    inputs = inputs_of(graph)
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            continue
        kind = inputs[name].type.tensor_type
        dimensions = kind.shape.dim
        if not kind.HasField("shape"):
            dimensions.extend(TensorShapeProto.Dimension() for _ in shape)
        if len(dimensions) != len(shape):
            raise ValueError(
                f"the input {name!r} has {len(dimensions)} dimensions, not {len(shape)}"
            )
        for dimension, size in zip(dimensions, shape, strict=True):
            if not isinstance(size, Integral):
                dimension.Clear()
                continue
            size = int(size)
            symbol = "" if dimension.dim_param in _OPEN else dimension.dim_param
            if not replaces and dimension.dim_value > 0 and dimension.dim_value != size:
                raise ValueError(
                    f"the model fixes a size of {dimension.dim_value} where {size} is given for "
                    f"the input {name!r}"
                )
            dimension.dim_value = size
            if symbol and sizes.setdefault(symbol, size) != size:
                raise ValueError(
                    f"the size '{symbol}' of the input {name!r} is {sizes[symbol]} in another "
                    f"place, and {size} here"
                )
    for dimension in _dimensions(graph):
        if dimension.dim_param in sizes:
            dimension.dim_value = sizes[dimension.dim_param]


def open_unknown_sizes(graph: GraphProto) -> None:
    """Make each size of -1 an open one, as in ONNX Runtime and exporters."""
    for what, values in (("input", inputs_of(graph).values()), ("result", graph.output)):
        for value in values:
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.dim_value < -1:
                    raise ValueError(
                        f"the {what} {value.name!r} of the ONNX model has a size of "
                        f"{dimension.dim_value}; supported are sizes from 0 on, and -1 or a name "
                        "for an open one"
                    )
                if dimension.dim_value == -1:
                    dimension.Clear()


def name_open_sizes(graph: GraphProto) -> None:
    """Give each open size of an input a symbol, which TVM's importer can read.

    TVM takes all sizes without a name for one, a name such as `floor(n/2)` for a formula of
    symbols that no input has, and the name `1` for a number; for ONNX, each name is a symbol.
    """
    inputs = inputs_of(graph)
    used = {dimension.dim_param for dimension in _dimensions(graph)}
    plain = {
        dimension.dim_param
        for value in inputs.values()
        for dimension in value.type.tensor_type.shape.dim
        if dimension.dim_param.isidentifier()
    }
    renamed: dict[str, str] = {}
    for name, value in inputs.items():
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            symbol = dimension.dim_param
            if dimension.HasField("dim_value"):
                continue
            if symbol in _OPEN:
                dimension.dim_param = _fresh(f"{name}_{axis}", used)
            elif not _is_formula(symbol, plain):
                renamed[symbol] = renamed.get(symbol) or _fresh(symbol, used)
    for dimension in _dimensions(graph):
        if dimension.dim_param in renamed:
            dimension.dim_param = renamed[dimension.dim_param]


def _is_formula(symbol: str, plain: set[str]) -> bool:
    """Whether a name is one of symbols, or a formula of them that TVM reads as one."""
    operators = set(re.sub(r"[\w ]", "", symbol))
    # TVM computes from left to right.
    is_one_kind = operators <= {"+", "-"} or operators <= {"*", "/"}
    names = set(re.findall(r"[^\W\d]\w*", symbol))
    return is_one_kind and bool(names) and names <= plain


def tell_sizes(graph: GraphProto, told: Mapping[str, int | str]) -> None:
    """Replace symbols by the numbers or the symbols that they must be.

    `graph`: the graph, which is changed; its symbols have names as `name_open_sizes` gives them.
    """
    for symbol in told:
        value: int | str = symbol
        while isinstance(value, str) and value in told:
            value = told[value]
        for dimension in _dimensions(graph):
            if dimension.dim_param == symbol and isinstance(value, int):
                dimension.dim_value = value
            elif dimension.dim_param:
                dimension.dim_param = re.sub(rf"\b{symbol}\b", str(value), dimension.dim_param)


def _fresh(text: str, used: set[str]) -> str:
    name = re.sub(r"\W+", "_", text).strip("_") or "size"
    name = f"n_{name}" if name[0].isdigit() else name
    while name in used:
        name += "_"
    used.add(name)
    return name


def _dimensions(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    """Generate the sizes of all inputs and results."""
    for value in (*graph.input, *graph.output):
        yield from value.type.tensor_type.shape.dim
