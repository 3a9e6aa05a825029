# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model that are its states: each gets its next value from a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tvm
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

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


_LAST = ", its last steps"
"""What is added to the name of a result."""
_GROWING = {"Attention": "", "Concat": "", "MultiHeadAttention": "com.microsoft"}
"""Operators that put new steps behind those of the past, and their domains."""
_MASKS = {("", "Attention"): (3,), ("com.microsoft", "MultiHeadAttention"): (4, 5)}
"""The places of the masks of attention."""


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


def growing_axes(graph: GraphProto, pairs: Mapping[str, str]) -> Mapping[str, int]:
    """Return the states whose present has more steps than the past, and the axis of the steps.

    That is behind nodes that put new steps behind those of the past.
    """
    growing = {}
    for node in graph.node:
        shares = node.op_type == "MultiHeadAttention" and any(node.input[8:9])
        if node.op_type not in _GROWING or shares or node.domain != _GROWING[node.op_type]:
            continue
        given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        for place, result in _PAIRS[node.op_type]:
            presents = node.output[result : result + 1]
            for past in node.input[place : place + 1]:
                if pairs.get(past) in presents:
                    growing[past] = given.get("axis", 2)
    if growing:
        _require_masks(graph, pairs, growing)
    return growing


def _require_masks(graph: GraphProto, pairs: Mapping[str, str], growing: Mapping[str, int]) -> None:
    """Refuse attention to zeros that stand for steps which a cache does not have yet."""
    inputs, producers = {*inputs_of(graph)}, {name: it for it in graph.node for name in it.output}
    ranks = {it.name: len(it.type.tensor_type.shape.dim) for it in graph.input}
    kept = {*growing}
    for node in graph.node:
        if kept.isdisjoint(node.input):
            continue
        kept.update(node.output)
        masks = _MASKS.get((node.domain, node.op_type))
        if masks is None:
            continue
        # One with an axis has lengths, which hide the last steps, not the first.
        names = [name for at in masks for name in node.input[at : at + 1] if ranks.get(name) != 1]
        sources = set().union(*(_sources(name, producers) for name in names))
        if not sources & inputs - {*pairs}:
            raise ValueError(
                f"{node.op_type} {node.name!r} attends to states of a fixed size, and no mask that "
                "the model is given hides the steps that they do not have yet; supported are "
                "masks that come from an input, with an element for each step"
            )


def _sources(name: str, producers: Mapping[str, NodeProto]) -> set[str]:
    """Return the inputs whose elements a value is computed from, not only their sizes."""
    found, left = set(), [name]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        node = producers.get(name)
        if node is not None and node.op_type not in ("Shape", "Size", "ConstantOfShape"):
            left += node.input
    return found


def with_last_steps(
    model: ModelProto, pairs: Mapping[str, str], axes: Mapping[str, int]
) -> tuple[ModelProto, Mapping[str, str]]:
    """Return a model, and its states, of which some keep the last steps of the present.

    `axes`: those, and the axis of the steps.
    """
    if not axes:
        return model, pairs
    if any(it.version < 10 for it in model.opset_import if it.domain in ("", "ai.onnx")):
        raise ValueError(
            f"the state {next(iter(axes))!r} has more steps after a call than before it; supported "
            "are such states of models from opset 10 on"
        )
    longer = ModelProto()
    longer.CopyFrom(model)
    graph, kept = longer.graph, {**pairs}
    results = {value.name: value for value in graph.output}
    for past, axis in axes.items():
        present = pairs[past]
        kept[past] = last = present + _LAST
        results[present].CopyFrom(
            helper.make_tensor_value_info(last, results[present].type.tensor_type.elem_type, None)
        )
        names = {name: f"{last}: {name}" for name in ("axis", "end", "past", "present", "begin")}
        for name, number in (("axis", axis), ("end", np.iinfo("int64").max)):
            graph.initializer.append(numpy_helper.from_array(np.array([number]), names[name]))
        for name, value in (("past", past), ("present", present)):
            shape = f"{names[name]} shape"
            graph.node.append(helper.make_node("Shape", [value], [shape]))
            graph.node.append(helper.make_node("Gather", [shape, names["axis"]], [names[name]]))
        sizes = [names["present"], names["past"]]
        graph.node.append(helper.make_node("Sub", sizes, [names["begin"]]))
        bounds = [names[name] for name in ("begin", "end", "axis")]
        graph.node.append(helper.make_node("Slice", [present, *bounds], [last]))
    return longer, kept


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


def with_states(
    mod: tvm.IRModule, graph: GraphProto, pairs: Mapping[str, str], axes: Mapping[str, int]
) -> tvm.IRModule:
    """Declare the states of a module that was read of a graph; they begin with zeros.

    `axes`: of the states that keep their last steps, the axis of these.
    """
    if not pairs:
        return mod
    function = mod["main"]
    params = dict(zip(inputs_of(graph), function.params, strict=False))
    results = getattr(function.ret_ty, "fields", [function.ret_ty])[-len(pairs) :]
    kept = []
    for (name, result), after in zip(pairs.items(), results, strict=True):
        before, now = (Declared(str(ty.dtype), sizes_of(ty)) for ty in (params[name].ty, after))
        room = "as many as the attention mask has, or more"
        if name in axes:
            room = "and the attention mask also for the new ones"
            result = result.removesuffix(_LAST)
        if before != now or None in (before.shape or (None,)):
            raise ValueError(
                f"the state {name!r} is {before} before a call, and {now} after it, as the result "
                f"{result!r}; supported are states of one type, whose sizes are known. Fix them "
                f"with shape_dict: a cache that stays has room for all steps, {room}"
            )
        zero = tvm.runtime.tensor(np.zeros((), before.dtype))
        kept.append((name, str(params[name].name), zero, _positions(graph, name, params)))
    windows = {name: int(params[name].ty.shape.values[axis]) for name, axis in axes.items()}
    mod["main"] = declare(function, kept, windows)
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
