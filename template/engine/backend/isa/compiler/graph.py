# SPDX-License-Identifier: Apache-2.0
"""A region that becomes functions of loops, one after the other.

Loops mean what TVM says, with three additions, since chips have them and TVM leaves them open: a
real number that becomes an integer saturates, and NaN becomes 0; `max` and `min` of real numbers
are NaN if an operand is; and integers that do not fit wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from ...sdk.npu_region.region import REALS, Node, Region

Array = np.ndarray[Any, Any]
Limits = tuple[int, int]

MANY = (-(1 << 63), (1 << 63) - 1)
"""The limits of int64."""


def limits_of(dtype: str) -> Limits:
    """Return the least and the largest number of a type of integers."""
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def fits(limits: Limits, dtype: str) -> bool:
    """Whether a type of integers has all these numbers."""
    least, most = limits_of(dtype)
    return least <= limits[0] and limits[1] <= most


def type_for(limits: Limits) -> str:
    """Return the type that integers are computed in: int32 where it has all results."""
    return "int32" if fits(limits, "int32") else "int64"


def products_of(a: Limits, b: Limits) -> Limits:
    """Return the limits of products."""
    ends = [one * other for one in a for other in b]
    return min(ends), max(ends)


def stored_as(dtype: str, limits: Limits) -> tuple[str, Limits]:
    """Return the type that a result of integers is kept in, and its limits there.

    The int64 between the steps of a program only says that nothing is cut off.
    """
    if dtype == "int64" and fits(limits, "int32"):
        return "int32", limits
    if dtype == "bool":
        return dtype, (0, 1)
    return dtype, limits if fits(limits, dtype) else limits_of(dtype)


@dataclass(frozen=True)
class Operand:
    """A tensor of the graph.

    `limits` are those of its elements, if they are integers. `array` has the elements of a
    constant; of one of which only type and shape are known, zeros.
    """

    var: Any
    dtype: str
    shape: tuple[int, ...]
    limits: Limits = MANY
    array: Array | None = None

    @property
    def is_real(self) -> bool:
        """Whether its elements are real numbers."""
        return self.dtype in REALS


class Graph:
    """A function of Relax that grows by one function of loops after the other.

    Parameters
    ----------
    region
        The region, or, for the question whether a node is supported, a part without elements.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.inputs: list[Operand] = []
        self.constants: list[Operand] = []
        self.labels: list[str] = []
        """Of each function in their order: the label of its node."""
        self._builder = relax.BlockBuilder()
        self._bindings: list[Any] = []
        self._label = ""
        self._values: dict[str, Operand] = {}
        self._roots: dict[Any, Any] = {}
        self._readers: dict[str | None, list[Node | None]] = {}
        for node in region.nodes:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)
        for port in region.outputs:
            self._readers.setdefault(port.value, []).append(None)

    # ---- Tensors ----

    def input(self, dtype: str, shape: Sequence[int]) -> Operand:
        """Add an input."""
        operand = self._parameter(f"input{len(self.inputs)}", dtype, shape)
        self.inputs.append(operand)
        return operand

    def constant(self, array: Array) -> Operand:
        """Add a constant."""
        dtype = str(array.dtype)
        made = self._parameter(f"constant{len(self.constants)}", dtype, array.shape)
        limits = made.limits
        if self.region.has_elements:
            # Questions about a node are many: their zeros are not copied.
            array = np.ascontiguousarray(array).reshape(array.shape)
            limits = MANY if dtype in REALS else (int(array.min()), int(array.max()))
        self.constants.append(Operand(made.var, dtype, made.shape, limits, array))
        return self.constants[-1]

    def _parameter(self, name: str, dtype: str, shape: Sequence[int]) -> Operand:
        var = relax.Var(name, relax.TensorType(tuple(shape), dtype))
        limits = MANY if dtype in REALS else limits_of(dtype)
        return Operand(var, dtype, tuple(shape), limits)

    def read(self, name: str) -> Operand:
        """Return a value of the region."""
        if name not in self._values:
            value = self.region.value(name)
            if value.source == "constant":
                known = self.region.has_elements
                self._values[name] = self.constant(
                    self.region.array(value)
                    if known
                    else np.broadcast_to(np.zeros((), value.dtype), value.shape)
                )
            elif value.source == "input" and self.region.has_elements:
                assert value.input is not None
                self._values[name] = self.reshaped(self.inputs[value.input], value.shape)
            else:
                self._values[name] = self.input(value.dtype, value.shape)
        return self._values[name]

    def write(self, name: str, operand: Operand) -> None:
        """Give a value of the region its elements."""
        self._values[name] = operand

    def dtype_of(self, node: Node) -> str:
        """Return the type in which the result of a node is kept.

        What an op of float16 only computes for its own next step stays in float32, as it would in
        one step.
        """
        dtype = self.region.value(node.output).dtype
        readers = self._readers.get(node.output, [None])
        is_inner = all(
            reader is not None
            and reader.label == node.label
            and ("numbers" in reader.attributes or reader.op == "reduction")
            for reader in readers
        )
        return "float32" if dtype == "float16" and is_inner else dtype

    # ---- Functions ----

    def enter(self, node: Node | None) -> None:
        """Say which node the next functions belong to, or that they belong to none."""
        self._label = "" if node is None else node.label

    def add(
        self,
        name: str,
        function: Callable[..., te.Tensor],
        operands: Sequence[Operand],
        limits: Limits | None = None,
    ) -> Operand:
        """Add a function of loops.

        Parameters
        ----------
        name
            What it computes, as a name for it.
        function
            Returns its result, from the operands as tensors.
        operands
            What it reads.
        limits
            Of its elements, if they are integers of which more is known than their type.

        Returns
        -------
        result
            Its result.
        """
        call = self._builder.call_te(
            function, *(operand.var for operand in operands), primfunc_name_hint=name
        )
        return self._bound(call, limits)

    def _bound(self, call: Any, limits: Limits | None) -> Operand:
        call = self._builder.normalize(call)
        var = relax.DataflowVar(f"v{len(self._bindings)}", call.ty)
        self._bindings.append(relax.VarBinding(var, call))
        self.labels.append(self._label)
        dtype = str(call.ty.dtype)
        shape = tuple(int(size) for size in call.ty.shape)
        if limits is None:
            limits = MANY if dtype in REALS else limits_of(dtype)
        return Operand(var, dtype, shape, limits)

    def reshaped(self, operand: Operand, shape: Sequence[int]) -> Operand:
        """Return a tensor under another shape, which moves nothing."""
        if operand.shape == tuple(shape):
            return operand
        if operand.array is not None:
            return self.constant(operand.array.reshape(shape))
        made = self._bound(relax.op.reshape(operand.var, tuple(shape)), operand.limits)
        self._roots[made.var] = self.root_of(operand)
        return made

    def root_of(self, operand: Operand) -> Any:
        """Return the variable that has the elements of a tensor: another one after a reshape."""
        return self._roots.get(operand.var, operand.var)

    def module(self, outputs: Sequence[Operand]) -> tvm.IRModule:
        """Return all functions, and `main`, whose parameters are inputs and constants."""
        parameters = [operand.var for operand in (*self.inputs, *self.constants)]
        result = self._builder.normalize(relax.Tuple([operand.var for operand in outputs]))
        var = relax.Var("outputs", result.ty)
        block = relax.DataflowBlock([*self._bindings, relax.VarBinding(var, result)])
        body = self._builder.normalize(relax.SeqExpr([block], var))
        main = relax.Function(parameters, body, var.ty, is_pure=True)
        module = self._builder.get()
        module["main"] = main.with_attr("global_symbol", "main")
        return module
