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


def fix_sizes(graph: GraphProto, name: str, shape: Sequence[int], sizes: dict[str, int]) -> None:
    """Write the sizes of an input into a graph, at each place of the same symbol.

    Parameters
    ----------
    graph
        The graph, which is changed.
    name
        The input.
    shape
        Its sizes.
    sizes
        Those of symbols so far; new ones are added.

    Raises
    ------
    ValueError
        The input has another rank or size.
    """
    given = inputs_of(graph)[name].type.tensor_type.shape.dim
    if len(given) != len(shape):
        raise ValueError(f"the input has {len(given)} dimensions, not {len(shape)}")
    for dimension, size in zip(given, shape, strict=True):
        symbol = "" if dimension.dim_param in _OPEN else dimension.dim_param
        known = dimension.dim_value if dimension.dim_value > 0 else sizes.get(symbol, size)
        if known != size:
            raise ValueError(
                f"'{symbol}' is {known} in another place, and {size} here"
                if symbol
                else f"the model fixes a size of {known} where {size} is given"
            )
        if symbol:
            sizes[symbol] = size
        dimension.dim_value = size
    for dimension in _dimensions(graph):
        if dimension.dim_param in sizes:
            dimension.dim_value = sizes[dimension.dim_param]


def replace_sizes(graph: GraphProto, shapes: Mapping[str, Sequence[object]]) -> None:
    """Write sizes of inputs into a graph in place of those that it has.

    Parameters
    ----------
    graph
        The graph, which is changed.
    shapes
        The sizes of inputs, by name. Those that are not integers stay open, each on its own.

    Raises
    ------
    ValueError
        An input has another rank, or a symbol several sizes.
    """
    inputs = inputs_of(graph)
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            continue
        kind = inputs[name].type.tensor_type
        if kind.HasField("shape") and len(kind.shape.dim) != len(shape):
            raise ValueError(
                f"shape_dict[{name!r}] has {len(shape)} sizes, and the input has "
                f"{len(kind.shape.dim)} dimensions"
            )
        symbols = [item.dim_param for item in kind.shape.dim] or [""] * len(shape)
        kind.shape.Clear()
        for symbol, size in zip(symbols, shape, strict=True):
            dimension = kind.shape.dim.add()
            if not isinstance(size, Integral):
                continue
            dimension.dim_value = size = int(size)
            if symbol not in _OPEN and sizes.setdefault(symbol, size) != size:
                raise ValueError(
                    f"shape_dict[{name!r}]: '{symbol}' is {sizes[symbol]} in another place, and "
                    f"{size} here"
                )
    for dimension in _dimensions(graph):
        if dimension.dim_param in sizes:
            dimension.dim_value = sizes[dimension.dim_param]


def name_open_sizes(graph: GraphProto) -> None:
    """Give each open size of an input a symbol, which TVM's importer can read.

    TVM takes all sizes without a name for one, and a name such as `floor(n/2)` for a formula of
    symbols that no input has.

    Parameters
    ----------
    graph
        The graph, which is changed.
    """
    inputs = inputs_of(graph)
    used = {item.dim_param for item in _dimensions(graph)}
    plain = {
        item.dim_param
        for value in inputs.values()
        for item in value.type.tensor_type.shape.dim
        if item.dim_param.isidentifier()
    }
    renamed: dict[str, str] = {}
    for name, value in inputs.items():
        for axis, item in enumerate(value.type.tensor_type.shape.dim):
            symbol = item.dim_param
            if item.HasField("dim_value") and item.dim_value >= 0:
                continue
            if symbol in _OPEN:
                item.dim_param = _fresh(f"{name}_{axis}", used)
            elif not set(re.findall(r"[^\W\d]\w*", symbol)) <= plain or "(" in symbol:
                renamed[symbol] = renamed.get(symbol) or _fresh(symbol, used)
    for item in _dimensions(graph):
        if item.dim_param in renamed:
            item.dim_param = renamed[item.dim_param]


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
