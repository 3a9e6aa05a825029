# SPDX-License-Identifier: Apache-2.0
"""Variables of a TFLite file, which keep their values for the next call: states of the module.

VAR_HANDLE names one, READ_VARIABLE and ASSIGN_VARIABLE are in the order in which they run, and a
graph that runs once, in front of the first call, gives initial values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tflite
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import ExprTable, TensorWrapper

from ...ir.states import declare
from ...shared.aliases import Array
from .tensors import Subgraph, Tensors, constant

VARIABLES = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE")


@dataclass
class Variable:
    """A variable, whose integers are those of the file.

    `initial`: its value in front of the first call; none if the file gives none.
    `before`: the parameter with its value in front of a call, if that is read.
    `now`: its value at this place of the graph.
    """

    name: str
    initial: Array | None = None
    before: relax.Var | None = None
    now: relax.Expr | None = None


class Variables(Tensors):
    """Reads operators on variables."""

    variables: dict[tuple[bytes, bytes], Variable] | None = None
    """By container and name; none where the graph may run at other times than the model."""
    _runs_once = False

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._integers: dict[str, relax.Expr] = {}
        """Quantized inputs and results, by the name of the tensor."""
        self._handles: dict[int, Variable] = {}

    def convert_variable(self, kind: str, op: tflite.Operator) -> None:
        """Read an operator on a variable."""
        inputs, outputs = self.get_input_tensors(op), self.get_output_tensors(op)
        if kind == "CALL_ONCE":
            self._call_once(op)
        elif kind == "VAR_HANDLE":
            assert self.variables is not None
            given = self.options(op, tflite.VarHandleOptions)
            key = (given.Container() or b"", given.SharedName() or b"")
            name = key[1].decode(errors="replace") or f"variable_{len(self.variables)}"
            if any(it.name == name for other, it in self.variables.items() if other != key):
                name = f"{key[0].decode(errors='replace')}/{name}"
            variable = self.variables.setdefault(key, Variable(name))
            self._handles[outputs[0].tensor_idx] = variable
        elif kind == "READ_VARIABLE":
            self._read_variable(self._variable(inputs[0]), outputs[0])
        else:
            self._assign(self._variable(inputs[0]), inputs[1])

    def _variable(self, handle: TensorWrapper) -> Variable:
        if handle.tensor_idx not in self._handles:
            raise ValueError("its variable is not the result of a VAR_HANDLE in front of it")
        return self._handles[handle.tensor_idx]

    def _call_once(self, op: tflite.Operator) -> None:
        """Read the graph with the initial values."""
        if self._runs_once:
            raise ValueError("a graph that runs once calls another; supported is one")
        index = self.options(op, tflite.CallOnceOptions).InitSubgraphIndex()
        graph = Subgraph(self._get_subgraph(index, "CALL_ONCE").given)
        first = type(self)(self.model, graph, ExprTable(), self.bb, self.conversion_state)
        first.variables, first._runs_once = self.variables, True
        first.check_unsupported_ops()
        first.convert_op_to_relax()

    def _read_variable(self, variable: Variable, result: TensorWrapper) -> None:
        if variable.now is None:
            if variable.initial is None:
                raise ValueError(
                    f"nothing gives the variable '{variable.name}' a value before it is read; "
                    "supported are variables that CALL_ONCE sets to constants at the start"
                )
            ty = relax.TensorType(variable.initial.shape, str(variable.initial.dtype))
            inputs = {it.tensor.name for it in self.get_tensors(self.subgraph.InputsAsNumpy())}
            name = f"{variable.name}_before" if variable.name in inputs else variable.name
            variable.now = variable.before = relax.Var(name, ty)
        if result.scales is None:
            self.exp_tab.set_expr(result.tensor.name, variable.now)
        else:
            self._integers[result.tensor.name] = variable.now

    def _assign(self, variable: Variable, value: TensorWrapper) -> None:
        if self._runs_once:
            if not self.is_constant(value):
                raise ValueError(
                    f"the initial value of the variable '{variable.name}' is computed; supported "
                    "are constants"
                )
            variable.initial = self.stored(value)
            return
        now = self._integers.get(value.tensor.name) if value.scales is not None else None
        if now is None:
            is_stored = value.scales is not None or self.is_constant(value)
            now = constant(self.stored(value)) if is_stored else self.get_tensor_expr(value)
        if variable.before is not None and not tvm_ffi.structural_equal(now.ty, variable.before.ty):
            raise ValueError(
                f"it gives the variable '{variable.name}' a value of {now.ty}, and its first one "
                f"is {variable.before.ty}; supported is one type for each variable"
            )
        variable.now = now

    def states(self) -> list[Variable]:
        """Return the variables whose value of the call before is read."""
        return [it for it in (self.variables or {}).values() if it.before is not None]


def with_variables(function: relax.Function, states: Sequence[Variable]) -> relax.Function:
    """Declare the variables of a function, which are its last parameters and results."""
    if not states:
        return function
    params = function.params[-len(states) :]
    kept = []
    for state, param in zip(states, params, strict=True):
        assert state.initial is not None
        value = state.initial
        if value.size and (value == value.reshape(-1)[0]).all():
            value = value.reshape(-1)[0]
        initial = tvm.runtime.tensor(np.ascontiguousarray(value))
        kept.append((state.name, str(param.name), initial, ()))
    return declare(function, kept)
