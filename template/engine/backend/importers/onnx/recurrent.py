# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN of ONNX, step by step, in operators that run on the NPU.

The inputs of all steps are multiplied with their weights at once. What remains of a step is the
product with the state and the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...shared.messages import FIX_SIZES
from .node import Node, Rule

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
class _Weights:
    """The weights of a direction: [inputs, gates], [states, gates], and vectors or ""."""

    inputs: str
    states: Sequence[str]
    """One matrix for all gates; or two, for the last gate apart."""
    bias: str
    state_bias: str
    """The bias of the product with the state, if it cannot be a part of `bias`."""
    peepholes: Sequence[str]


def _write(op: str, node: Node) -> None:
    _Recurrence(node, op).write()


class _Recurrence:
    """A recurrent operator that is written step by step."""

    def __init__(self, node: Node, op: str) -> None:
        self.node = node
        self.op = op
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
        if node.graph.opset < 7:
            node.refuse(f"it is of opset {node.graph.opset}; supported are opsets from 7 on")
        names = node.inputs(8)
        self.x, self.w, self.r, self.b, self.lengths, self.h, self.c, self.p = names
        self.steps = self._steps()
        self.dtype = node.dtype(self.x)
        self.hidden = self._hidden()

    # ---- What the node says ---------------------------------------------------------------------

    def _directions(self) -> Sequence[str]:
        text = self.node.text("direction", "forward")
        directions = {
            "forward": ("forward",),
            "reverse": ("reverse",),
            "bidirectional": ("forward", "reverse"),
        }
        if text not in directions:
            self.node.refuse(f"direction={text!r}; supported are {', '.join(directions)}")
        return directions[text]

    def _activations(self) -> Sequence[Sequence[tuple[str, Mapping[str, float]]]]:
        """Return the activations of each direction."""
        get = self.node.attributes.get
        default = _DEFAULTS[self.op]
        names = [name.decode() for name in get("activations", ())]
        names = names or [*default] * len(self.directions)
        if len(names) != len(default) * len(self.directions):
            self.node.refuse(
                f"it names {len(names)} activations; supported are {len(default)} for each of its "
                f"{len(self.directions)} directions"
            )
        given = {kind: list(get(f"activation_{kind}", ())) for kind in ("alpha", "beta")}
        activations: list[tuple[str, Mapping[str, float]]] = []
        for name in names:
            if name.lower() not in _ACTIVATIONS:
                ours = ", ".join(sorted(op for op, _ in _ACTIVATIONS.values()))
                self.node.refuse(f"its activation {name!r} is not known; supported are {ours}")
            op, parameters = _ACTIVATIONS[name.lower()]
            # Each activation takes as many values as it has parameters.
            values: dict[str, float] = {}
            for kind, value in parameters.items():
                value = given[kind].pop(0) if given[kind] else value
                if value is None:
                    self.node.refuse(f"activation_{kind} of its activation {name!r} is missing")
                values[kind] = value
            activations.append((op, values))
        count = len(default)
        return [activations[i : i + count] for i in range(0, len(activations), count)]

    def _steps(self) -> int:
        sizes = self.node.sizes(self.x)
        steps = sizes[1 if self.batch_first else 0] if sizes and len(sizes) == 3 else None
        if not steps:
            self.node.refuse(
                f"the number of steps of its input {self.x!r} is not known, and each step becomes "
                f"ops of its own; {FIX_SIZES}"
            )
        return steps

    def _hidden(self) -> int:
        shape = self.node.sizes(self.r)
        hidden = self.node.attributes.get("hidden_size") or (shape[-1] if shape else None)
        if not hidden:
            self.node.refuse(f"hidden_size is missing, and the shape of {self.r!r} is not known")
        return int(hidden)

    # ---- What replaces it -----------------------------------------------------------------------

    def write(self) -> None:
        """Write the nodes."""
        node = self.node
        x = node.transpose(self.x, (1, 0, 2)) if self.batch_first else self.x
        masks = self._masks()
        results: list[tuple[Sequence[str], State]] = []
        for index, direction in enumerate(self.directions):
            weights = self._weights(index)
            products = node.write("MatMul", x, weights.inputs)
            if weights.bias:
                products = node.write("Add", products, weights.bias)
            steps = node.split(products, 0, self.steps)
            results.append(self._direction(index, direction, weights, steps, masks))
        y, y_h, y_c = [*self.node.proto.output, "", "", ""][:3]
        if y:
            parts = [node.unsqueeze(self._joined(steps, 0), 1) for steps, _ in results]
            joined = self._joined(parts, 1, "" if self.batch_first else y)
            if self.batch_first:
                node.transpose(joined, (2, 0, 1, 3), y)
        for position, name in enumerate((y_h, y_c)):
            if name:
                parts = [state[position] for _, state in results]
                joined = self._joined(parts, 0, "" if self.batch_first else name)
                if self.batch_first:
                    node.transpose(joined, (1, 0, 2), name)

    def _joined(self, parts: Sequence[str], axis: int, output: str = "") -> str:
        if len(parts) > 1:
            return self.node.write("Concat", *parts, output=output, axis=axis)
        return self.node.write("Identity", parts[0], output=output) if output else parts[0]

    def _weights(self, index: int) -> _Weights:
        node, size = self.node, self.gates * self.hidden
        states = [self._matrix(self.r, index)]
        if self.op == "GRU" and not self.resets_product:
            first = 2 * self.hidden
            states = [node.part(states[0], 1, *ends) for ends in ((0, first), (first, size))]
        bias = state_bias = ""
        if self.b:
            both = node.squeeze(node.part(self.b, 0, index, index + 1), 0)
            bias, state_bias = node.part(both, 0, 0, size), node.part(both, 0, size, 2 * size)
            if not self.resets_product:
                bias, state_bias = node.add(bias, state_bias), ""
        peepholes: list[str] = []
        if self.p:
            ours, size = node.part(self.p, 0, index, index + 1), self.hidden
            peepholes = [node.part(ours, 1, gate * size, (gate + 1) * size) for gate in range(3)]
        return _Weights(self._matrix(self.w, index), states, bias, state_bias, peepholes)

    def _matrix(self, name: str, index: int) -> str:
        array = self.node.constant(name)
        if array is not None:
            return self.node.literal(np.ascontiguousarray(array[index].T))
        part = self.node.squeeze(self.node.part(name, 0, index, index + 1), 0)
        return self.node.transpose(part, (1, 0))

    def _state(self, name: str, index: int) -> str:
        """Return the initial state of a direction, [1, batch, hidden]."""
        if not name:
            return ""
        states = self.node.transpose(name, (1, 0, 2)) if self.batch_first else name
        if len(self.directions) == 1:
            return states
        return self.node.part(states, 0, index, index + 1)

    def _masks(self) -> Sequence[str]:
        """Return for each step where sequences still go on; "" if they all do."""
        if not self.lengths:
            return [""] * self.steps
        node = self.node
        lengths = self.node.constant(self.lengths)
        if lengths is None:
            dtype = node.dtype(self.lengths) if self.node.element_type(self.lengths) else "int32"
            steps = node.literal(np.arange(self.steps).reshape(-1, 1, 1), dtype)
            rows = node.reshape(self.lengths, (1, -1, 1))
            return node.split(node.write("Less", steps, rows), 0, self.steps)
        goes_on = [(step < lengths).reshape(1, -1, 1) for step in range(self.steps)]
        return ["" if here.all() else node.literal(here) for here in goes_on]

    def _direction(
        self,
        index: int,
        direction: str,
        weights: _Weights,
        steps: Sequence[str],
        masks: Sequence[str],
    ) -> tuple[Sequence[str], State]:
        """Write the steps of a direction; return the results of all, and the last states."""
        node = self.node
        state: State = (self._state(self.h, index),)
        if self.op == "LSTM":
            state = (*state, self._state(self.c, index))
        cell = _CELLS[self.op]
        outputs = [""] * self.steps
        zero = node.literal(0, self.dtype)
        if masks[0]:
            # The states of a sequence without steps are zeros, as in ONNX Runtime.
            state = tuple(part and node.write("Where", masks[0], part, zero) for part in state)
        order = range(self.steps)
        for step in order if direction == "forward" else reversed(order):
            new = cell(self, index, weights, steps[step], state)
            outputs[step] = new[0]
            mask = masks[step]
            if mask:
                outputs[step] = node.write("Where", mask, new[0], zero)
                kept = [
                    node.write("Where", mask, later, earlier or zero)
                    for later, earlier in zip(new[1:], state[1:], strict=True)
                ]
                h = node.write("Where", mask, new[0], state[0]) if state[0] else outputs[step]
                new = (h, *kept)
            state = new
        return outputs, state

    # ---- The parts of a step --------------------------------------------------------------------

    def gate(self, index: int, which: int, x: str) -> str:
        """Write a gate of a direction: an activation of limited values."""
        if self.clip:
            x = self.node.clip(x, self.clip, self.dtype)
        return self.activate(index, which, x)

    def activate(self, index: int, which: int, x: str) -> str:
        """Write an activation of a direction."""
        node, (op, values) = self.node, self.activations[index][which]
        if op == "Affine":
            scaled = node.write("Mul", x, node.literal(values["alpha"], self.dtype))
            return node.write("Add", scaled, node.literal(values["beta"], self.dtype))
        if op == "ScaledTanh":
            scaled = node.write("Mul", x, node.literal(values["beta"], self.dtype))
            return node.write(
                "Mul", node.write("Tanh", scaled), node.literal(values["alpha"], self.dtype)
            )
        return node.write(op, x, attributes=values)

    def without(self, x: str) -> str:
        """Write 1 - x."""
        return self.node.write("Sub", self.node.literal(1, self.dtype), x)

    def product(self, state: str, matrix: str, addend: str = "") -> str:
        """Multiply a state with a matrix, and add something; a state of zeros adds nothing."""
        if not state:
            return addend
        product = self.node.write("MatMul", state, matrix)
        return self.node.write("Add", product, addend) if addend else product


def _rnn(cell: _Recurrence, index: int, weights: _Weights, x: str, state: State) -> State:
    return (cell.gate(index, 0, cell.product(state[0], weights.states[0], x)),)


def _gru(cell: _Recurrence, index: int, weights: _Weights, x: str, state: State) -> State:
    node, size, (h,) = cell.node, cell.hidden, state
    update, reset, hidden = node.split(x, 2, 3)
    bias = weights.state_bias
    if h and cell.resets_product:
        product = cell.product(h, weights.states[0], bias)
        gates = node.split(product, 2, 3)
        update, reset = (
            node.write("Add", *pair) for pair in ((update, gates[0]), (reset, gates[1]))
        )
    elif h:
        pair = node.split(cell.product(h, weights.states[0]), 2, 2)
        update, reset = node.write("Add", update, pair[0]), node.write("Add", reset, pair[1])
    elif bias:
        parts = [node.part(bias, 0, i * size, (i + 1) * size) for i in range(3)]
        update, reset = node.write("Add", update, parts[0]), node.write("Add", reset, parts[1])
    z, r = cell.gate(index, 0, update), cell.gate(index, 0, reset)
    if cell.resets_product and (h or bias):
        hidden = node.write("Add", hidden, node.write("Mul", r, gates[2] if h else parts[2]))
    elif h:
        hidden = cell.product(node.write("Mul", r, h), weights.states[1], hidden)
    new = node.write("Mul", cell.without(z), cell.gate(index, 1, hidden))
    return (node.write("Add", new, node.write("Mul", z, h)) if h else new,)


def _lstm(cell: _Recurrence, index: int, weights: _Weights, x: str, state: State) -> State:
    node, (h, c) = cell.node, state
    i, o, f, new = node.split(cell.product(h, weights.states[0], x), 2, 4)
    if weights.peepholes and c:
        i = node.write("Add", i, node.write("Mul", weights.peepholes[0], c))
        f = node.write("Add", f, node.write("Mul", weights.peepholes[2], c))
    i = cell.gate(index, 0, i)
    new = node.write("Mul", i, cell.gate(index, 1, new))
    if c:
        f = cell.without(i) if cell.forgets_by_input else cell.gate(index, 0, f)
        new = node.write("Add", node.write("Mul", f, c), new)
    if weights.peepholes:
        o = node.write("Add", o, node.write("Mul", weights.peepholes[1], new))
    o = cell.gate(index, 0, o)
    return node.write("Mul", o, cell.activate(index, 2, new)), new


_CELLS: Mapping[str, Callable[[_Recurrence, int, _Weights, str, State], State]] = {
    "RNN": _rnn,
    "GRU": _gru,
    "LSTM": _lstm,
}


RULES: Mapping[str, Rule] = {op: partial(_write, op) for op in _GATES}
