# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model that are its states: each gets its next value from a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tvm
from onnx import GraphProto, ModelProto, helper, numpy_helper

from ...ir.states import NoStates, Position, declare
from ..declared import Declared
from ..sizes import sizes_of
from .graph import value_of
from .input_sizes import inputs_of

if TYPE_CHECKING:
    from tvm import relax

_PAIRS = {
    "Attention": ((4, 1), (5, 2)),
    "Concat": ((0, 0),),
    "GroupQueryAttention": ((3, 1), (4, 2)),
    "MultiHeadAttention": ((6, 1), (7, 2)),
    "TensorScatter": ((0, 0),),
}
"""By operator: the places of inputs that are caches, and of the results that are their next
values."""


def pairs_of(graph: GraphProto, asked: bool | Mapping[str, str]) -> Mapping[str, str]:
    """Return the states of a model: inputs, with the results that are their next values.

    `asked`: the states; True for those that nodes tell.
    """
    inputs, results = [*inputs_of(graph)], [value.name for value in graph.output]
    if not isinstance(asked, Mapping):
        pairs = _told(graph, inputs, results) if asked else {}
        if asked and not pairs:
            raise NoStates(
                f"no node of the model tells of a state: no {', '.join(_PAIRS)} has an input of "
                "the model as its past, and a result of the model as its present.",
                "Name the states: states={input: result, ...}",
            )
        return pairs
    for name, known, what in (
        *((name, inputs, "input") for name in asked),
        *((name, results, "result") for name in asked.values()),
    ):
        if name not in known:
            raise ValueError(
                f"the model has no {what} {name!r} to be a state; it has {', '.join(known)}"
            )
    if len({*asked.values()}) < len(asked):
        raise ValueError("several states have one result; supported is one of its own for each")
    return {name: asked[name] for name in inputs if name in asked}


def _told(graph: GraphProto, inputs: Sequence[str], results: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for node in graph.node:
        for place, result in _PAIRS.get(node.op_type, ()):
            if place >= len(node.input) or result >= len(node.output):
                continue
            past, present = node.input[place], node.output[result]
            if past in inputs and present in results:
                found[past] = present
    return {name: found[name] for name in inputs if name in found}


def with_states_last(model: ModelProto, pairs: Mapping[str, str]) -> ModelProto:
    """Return a model whose last inputs and results are its states."""
    graph = model.graph
    order = {name: place for place, names in enumerate(pairs.items(), 1) for name in names}
    inputs, outputs = (
        sorted(values, key=lambda value: order.get(value.name, 0))
        for values in (graph.input, graph.output)
    )
    if inputs == [*graph.input] and outputs == [*graph.output]:
        return model
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.input[:], result.graph.output[:]
    result.graph.input.extend(inputs)
    result.graph.output.extend(outputs)
    return result


def with_states(mod: tvm.IRModule, graph: GraphProto, pairs: Mapping[str, str]) -> tvm.IRModule:
    """Declare the states of a module that was read of a graph; they begin with zeros."""
    if not pairs:
        return mod
    function = mod["main"]
    params = dict(zip(inputs_of(graph), function.params, strict=False))
    results = getattr(function.ret_ty, "fields", [function.ret_ty])[-len(pairs) :]
    kept = []
    for (name, result), after in zip(pairs.items(), results, strict=True):
        before, now = (Declared(str(ty.dtype), sizes_of(ty)) for ty in (params[name].ty, after))
        if before != now or None in (before.shape or (None,)):
            raise ValueError(
                f"the state {name!r} is {before} before a call, and {now} after it, as the result "
                f"{result!r}; supported are states of one type, whose sizes are known. Fix them "
                "with shape_dict: a cache that stays has room for all steps, as many as the "
                "attention mask has, or more"
            )
        zero = tvm.runtime.tensor(np.zeros((), before.dtype))
        kept.append((name, str(params[name].name), zero, _positions(graph, name, params)))
    mod["main"] = declare(function, kept)
    return mod


def _positions(
    graph: GraphProto, state: str, params: Mapping[str, relax.Var]
) -> Sequence[Position]:
    """Return where nodes write to a state, if an input of the model says it.

    How many rows TensorScatter writes is known if the model declares the type of what is written;
    GroupQueryAttention is given the place of the last one.
    """
    rows = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.input)
    }
    found = []
    for node in graph.node:
        op, inputs = node.op_type, [*node.input]
        if op == "TensorScatter" and inputs[0] == state and len(inputs) > 2:
            given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            if given.get("mode", b"linear") != b"linear":
                continue
            place, axis = inputs[2], given.get("axis", -2)
            behind = max((rows.get(inputs[1]) or [1] * (abs(axis) + 1))[axis], 1) - 1
        elif op == "GroupQueryAttention" and state in inputs[3:5] and len(inputs) > 5:
            place, axis, behind = inputs[5], 2, 0
        else:
            continue
        name, added = _source(graph, place)
        if name in params:
            size = int(params[state].ty.shape.values[axis])
            found.append(Position(str(params[name].name), -1, added, added + behind, size))
    return found


def _source(graph: GraphProto, name: str) -> tuple[str, int]:
    """Return the value that has the numbers of another, and what is added to them."""
    nodes = {result: node for node in graph.node for result in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {result: value for result, node in nodes.items() if (value := value_of(node))}
    added = 0
    while (node := nodes.get(name)) is not None and node.input:
        if node.op_type in ("Add", "Sub") and node.input[1] in constants:
            number = numpy_helper.to_array(constants[node.input[1]])
            if number.size != 1:
                break
            added += int(number.item()) * (-1 if node.op_type == "Sub" else 1)
        elif node.op_type not in _SAME:
            break
        name = node.input[0]
    return name, added


_SAME = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators whose results have the same integers as their first inputs."""
