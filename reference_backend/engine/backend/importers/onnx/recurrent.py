# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN of ONNX, step by step, in operators that run on the NPU.

The inputs of all steps are multiplied with their weights at once. What remains of a step is the
product with the state and the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...shared.messages import FIX_SIZES
from .graph import Graph, Node, Rule
from .writer import Writer

State = tuple[str, ...]
"""The tensors that a step hands on: h, and c of an LSTM. A state of zeros is ""."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

_ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, float | None]]] = {
    "affine": ("Affine", {"alpha": None, "beta": None}),
    "elu": ("Elu", {"alpha": 1.0}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": ("LeakyRelu", {"alpha": 0.01}),
    "relu": ("Relu", {}),
    "scaledtanh": ("ScaledTanh", {"alpha": None, "beta": None}),
    "sigmoid": ("Sigmoid", {}),
    "softplus": ("Softplus", {}),
    "softsign": ("Softsign", {}),
    "tanh": ("Tanh", {}),
    "thresholdedrelu": ("ThresholdedRelu", {"alpha": None}),
}
"""Activations by their name in lower case: the operator, and its parameters with their defaults.

Without a default are those for which ONNX Runtime takes 0, and ONNX something else or nothing.
"""

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


@dataclass(frozen=True)
class _Activation:
    op: str
    parameters: Mapping[str, float]


@dataclass(frozen=True)
class _Weights:
    """The weights of a direction: [inputs, gates], [states, gates], and vectors or ""."""

    inputs: str
    states: Sequence[str]
    """One matrix, or those of the first gates and of the last if these are multiplied apart."""
    bias: str
    state_bias: str
    """What is added to the product with the state; only where that is not the same as `bias`."""
    peepholes: Sequence[str]


def _rule(op: str) -> Rule:
    def rule(graph: Graph, node: Node) -> None:
        _Recurrence(graph, node, op).write()

    return rule


class _Recurrence:
    """A recurrent operator that is written step by step.

    `graph`: the graph.
    `node`: the node.
    `op`: its operator.
    """

    def __init__(self, graph: Graph, node: Node, op: str) -> None:
        self.graph = graph
        self.node = node
        self.op = op
        self.writer = Writer(graph, node)
        self.gates = _GATES[op]
        get = node.attributes.get
        self.clip = float(get("clip", 0.0))
        self.batch_first = bool(get("layout", 0))
        self.forgets_by_input = bool(get("input_forget", 0))
        self.resets_product = bool(get("linear_before_reset", 0))
        self.directions = self._directions()
        self.activations = self._activations()
        if op != "GRU" and self.resets_product:
            node.refuse("linear_before_reset is an attribute of GRU alone")
        if graph.opset < 7:
            node.refuse(f"it is of opset {graph.opset}; supported are opsets from 7 on")
        names = node.inputs(8)
        self.x, self.w, self.r, self.b, self.lengths, self.h, self.c, self.p = names
        self.steps = self._steps()
        self.dtype = self.writer.dtype(self.x)
        self.hidden = self._hidden()

    # ---- What the node says ---------------------------------------------------------------------

    def _directions(self) -> Sequence[str]:
        text = _text(self.node.attributes.get("direction", "forward"))
        known = {
            "forward": ("forward",),
            "reverse": ("reverse",),
            "bidirectional": ("forward", "reverse"),
        }
        if text not in known:
            self.node.refuse(f"direction={text!r}; supported are {', '.join(known)}")
        return known[text]

    def _activations(self) -> Sequence[Sequence[_Activation]]:
        """Return the activations of each direction."""
        get = self.node.attributes.get
        default = _DEFAULTS[self.op]
        names = [_text(name) for name in get("activations", ())]
        names = names or [*default] * len(self.directions)
        if len(names) != len(default) * len(self.directions):
            self.node.refuse(
                f"it names {len(names)} activations; supported are {len(default)} for each of its "
                f"{len(self.directions)} directions"
            )
        given = {kind: list(get(f"activation_{kind}", ())) for kind in ("alpha", "beta")}
        found: list[_Activation] = []
        for name in names:
            if name.lower() not in _ACTIVATIONS:
                known = ", ".join(sorted(op for op, _ in _ACTIVATIONS.values()))
                self.node.refuse(f"its activation {name!r} is not known; supported are {known}")
            op, parameters = _ACTIVATIONS[name.lower()]
            # Each activation takes as many values as it has parameters.
            values: dict[str, float] = {}
            for kind, value in parameters.items():
                value = given[kind].pop(0) if given[kind] else value
                if value is None:
                    self.node.refuse(f"activation_{kind} of its activation {name!r} is missing")
                values[kind] = value
            found.append(_Activation(op, values))
        count = len(default)
        return [found[i : i + count] for i in range(0, len(found), count)]

    def _steps(self) -> int:
        sizes = self.graph.sizes(self.x)
        steps = sizes[1 if self.batch_first else 0] if sizes and len(sizes) == 3 else None
        if not steps:
            self.node.refuse(
                f"the number of steps of its input {self.x!r} is not known, and each step becomes "
                f"ops of its own; {FIX_SIZES}"
            )
        return steps

    def _hidden(self) -> int:
        shape = self.graph.sizes(self.r)
        hidden = self.node.attributes.get("hidden_size") or (shape[-1] if shape else None)
        if not hidden:
            self.node.refuse(f"hidden_size is missing, and the shape of {self.r!r} is not known")
        return int(hidden)

    # ---- The graph ------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the nodes."""
        write = self.writer
        x = write.transpose(self.x, (1, 0, 2)) if self.batch_first else self.x
        masks = self._masks()
        results: list[tuple[Sequence[str], State]] = []
        for index, direction in enumerate(self.directions):
            weights = self._weights(index)
            products = write.op("MatMul", x, weights.inputs)
            if weights.bias:
                products = write.op("Add", products, weights.bias)
            steps = write.split(products, 0, self.steps)
            results.append(self._direction(index, direction, weights, steps, masks))
        y, y_h, y_c = [*self.node.proto.output, "", "", ""][:3]
        if y:
            parts = [write.unsqueeze(self._joined(steps, 0), 1) for steps, _ in results]
            joined = self._joined(parts, 1, "" if self.batch_first else y)
            if self.batch_first:
                write.transpose(joined, (2, 0, 1, 3), y)
        for position, name in enumerate((y_h, y_c)):
            if name:
                parts = [state[position] for _, state in results]
                joined = self._joined(parts, 0, "" if self.batch_first else name)
                if self.batch_first:
                    write.transpose(joined, (1, 0, 2), name)

    def _joined(self, parts: Sequence[str], axis: int, output: str = "") -> str:
        if len(parts) > 1:
            return self.writer.op("Concat", *parts, output=output, axis=axis)
        return self.writer.op("Identity", parts[0], output=output) if output else parts[0]

    def _weights(self, index: int) -> _Weights:
        write, size = self.writer, self.gates * self.hidden
        states = [self._matrix(self.r, index)]
        if self.op == "GRU" and not self.resets_product:
            first = 2 * self.hidden
            states = [write.part(states[0], 1, *ends) for ends in ((0, first), (first, size))]
        bias = state_bias = ""
        if self.b:
            both = write.squeeze(write.part(self.b, 0, index, index + 1), 0)
            bias, state_bias = write.part(both, 0, 0, size), write.part(both, 0, size, 2 * size)
            if not self.resets_product:
                bias, state_bias = write.add(bias, state_bias), ""
        peepholes: list[str] = []
        if self.p:
            all_of_them = write.part(self.p, 0, index, index + 1)
            peepholes = [
                write.part(all_of_them, 1, i * self.hidden, (i + 1) * self.hidden) for i in range(3)
            ]
        return _Weights(self._matrix(self.w, index), states, bias, state_bias, peepholes)

    def _matrix(self, name: str, index: int) -> str:
        array = self.graph.constant(name)
        if array is not None:
            return self.writer.constant(np.ascontiguousarray(array[index].T))
        part = self.writer.squeeze(self.writer.part(name, 0, index, index + 1), 0)
        return self.writer.transpose(part, (1, 0))

    def _state(self, name: str, index: int) -> str:
        """Return the initial state of a direction, [1, batch, hidden]."""
        if not name:
            return ""
        write = self.writer
        all_of_them = write.transpose(name, (1, 0, 2)) if self.batch_first else name
        if len(self.directions) == 1:
            return all_of_them
        return write.part(all_of_them, 0, index, index + 1)

    def _masks(self) -> Sequence[str]:
        """Return for each step where sequences still go on; "" if they all do."""
        if not self.lengths:
            return [""] * self.steps
        write = self.writer
        lengths = self.graph.constant(self.lengths)
        if lengths is None:
            dtype = write.dtype(self.lengths) if self.graph.element_type(self.lengths) else "int32"
            steps = write.constant(np.arange(self.steps).reshape(-1, 1, 1), dtype)
            rows = write.reshape(self.lengths, (1, -1, 1))
            return write.split(write.op("Less", steps, rows), 0, self.steps)
        goes_on = [(step < lengths).reshape(1, -1, 1) for step in range(self.steps)]
        return ["" if here.all() else write.constant(here) for here in goes_on]

    def _direction(
        self,
        index: int,
        direction: str,
        weights: _Weights,
        steps: Sequence[str],
        masks: Sequence[str],
    ) -> tuple[Sequence[str], State]:
        """Write the steps of a direction; return the results of all, and the last states."""
        write = self.writer
        state: State = (self._state(self.h, index),)
        if self.op == "LSTM":
            state = (*state, self._state(self.c, index))
        cell = _CELLS[self.op]
        outputs = [""] * self.steps
        zero = write.constant(0, self.dtype)
        if masks[0]:
            # ONNX Runtime gives zeros for a sequence of no steps.
            state = tuple(one and write.op("Where", masks[0], one, zero) for one in state)
        order = range(self.steps)
        for step in order if direction == "forward" else reversed(order):
            new = cell(self, index, weights, steps[step], state)
            outputs[step] = new[0]
            mask = masks[step]
            if mask:
                outputs[step] = write.op("Where", mask, new[0], zero)
                kept = [
                    write.op("Where", mask, one, old or zero)
                    for one, old in zip(new[1:], state[1:], strict=True)
                ]
                h = write.op("Where", mask, new[0], state[0]) if state[0] else outputs[step]
                new = (h, *kept)
            state = new
        return outputs, state

    # ---- The parts of a step --------------------------------------------------------------------

    def gate(self, index: int, which: int, x: str) -> str:
        """Write a gate of a direction: an activation of limited values."""
        if self.clip:
            x = self.writer.clip(x, self.clip, self.dtype)
        return self.activate(index, which, x)

    def activate(self, index: int, which: int, x: str) -> str:
        """Write an activation of a direction."""
        write, activation = self.writer, self.activations[index][which]
        values = activation.parameters
        if activation.op == "Affine":
            scaled = write.op("Mul", x, write.constant(values["alpha"], self.dtype))
            return write.op("Add", scaled, write.constant(values["beta"], self.dtype))
        if activation.op == "ScaledTanh":
            scaled = write.op("Mul", x, write.constant(values["beta"], self.dtype))
            return write.op(
                "Mul", write.op("Tanh", scaled), write.constant(values["alpha"], self.dtype)
            )
        return self.graph.emit(activation.op, [x], values, like=self.node)

    def without(self, x: str) -> str:
        """Write 1 - x."""
        return self.writer.op("Sub", self.writer.constant(1, self.dtype), x)

    def product(self, state: str, matrix: str, addend: str = "") -> str:
        """Multiply a state with a matrix, and add something; a state of zeros adds nothing."""
        if not state:
            return addend
        product = self.writer.op("MatMul", state, matrix)
        return self.writer.op("Add", product, addend) if addend else product


def _rnn(cell: _Recurrence, index: int, weights: _Weights, x: str, state: State) -> State:
    return (cell.gate(index, 0, cell.product(state[0], weights.states[0], x)),)


def _gru(cell: _Recurrence, index: int, weights: _Weights, x: str, state: State) -> State:
    write, size, (h,) = cell.writer, cell.hidden, state
    update, reset, hidden = write.split(x, 2, 3)
    bias = weights.state_bias
    if h and cell.resets_product:
        product = cell.product(h, weights.states[0], bias)
        gates = write.split(product, 2, 3)
        update, reset = (write.op("Add", *pair) for pair in ((update, gates[0]), (reset, gates[1])))
    elif h:
        pair = write.split(cell.product(h, weights.states[0]), 2, 2)
        update, reset = write.op("Add", update, pair[0]), write.op("Add", reset, pair[1])
    elif bias:
        parts = [write.part(bias, 0, i * size, (i + 1) * size) for i in range(3)]
        update, reset = write.op("Add", update, parts[0]), write.op("Add", reset, parts[1])
    z, r = cell.gate(index, 0, update), cell.gate(index, 0, reset)
    if cell.resets_product and (h or bias):
        hidden = write.op("Add", hidden, write.op("Mul", r, gates[2] if h else parts[2]))
    elif h:
        hidden = cell.product(write.op("Mul", r, h), weights.states[1], hidden)
    new = write.op("Mul", cell.without(z), cell.gate(index, 1, hidden))
    return (write.op("Add", new, write.op("Mul", z, h)) if h else new,)


def _lstm(cell: _Recurrence, index: int, weights: _Weights, x: str, state: State) -> State:
    write, (h, c) = cell.writer, state
    i, o, f, new = write.split(cell.product(h, weights.states[0], x), 2, 4)
    if weights.peepholes and c:
        i = write.op("Add", i, write.op("Mul", weights.peepholes[0], c))
        f = write.op("Add", f, write.op("Mul", weights.peepholes[2], c))
    i = cell.gate(index, 0, i)
    new = write.op("Mul", i, cell.gate(index, 1, new))
    if c:
        f = cell.without(i) if cell.forgets_by_input else cell.gate(index, 0, f)
        new = write.op("Add", write.op("Mul", f, c), new)
    if weights.peepholes:
        o = write.op("Add", o, write.op("Mul", weights.peepholes[1], new))
    o = cell.gate(index, 0, o)
    return write.op("Mul", o, cell.activate(index, 2, new)), new


_CELLS: Mapping[str, Callable[[_Recurrence, int, _Weights, str, State], State]] = {
    "RNN": _rnn,
    "GRU": _gru,
    "LSTM": _lstm,
}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


RULES: Mapping[str, Rule] = {op: _rule(op) for op in _GATES}
"""What rewrites a recurrent operator, by its name."""
