# SPDX-License-Identifier: Apache-2.0
"""Cuts a quantized model into layers that read and give the float model's values.

A layer ends at a quantize, or at a real number that several ops read. Its function takes real
numbers, and quantizes them as the quantized model does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import tvm
from tvm import relax

from ...backend.ir.amounts import is_product
from ...backend.ir.calls import Constant, with_arguments
from ...backend.passes.quantized_form import DEQUANTIZE, QUANTIZE
from ...backend.passes.rewriting import is_call_of, op_name
from ...backend.regions import ir
from ...backend.shared.aliases import Array
from ...backend.table.elements import MOVED
from .model_values import Graph, Pairs

_PASSES_ON = ("", "relax.concat", "relax.split", "relax.nn.pad", *MOVED)
"""Ops that pass the integers they read to a following op; "" takes a tuple apart."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A part of the quantized model that reads and gives values of the float model.

    `name`, `real_name`: the names of its result in both models.
    `ops`: its ops, without quantize and dequantize.
    `members`: the names of all its values, and of a reader into which the passes merge them.
    `inputs`, `output`: values of the float model.
    `function`: computes as the quantized model does, from real numbers to real numbers.
    `step`, `axis`: the scale of its result and the scale's axis; None if it is not quantized.
    """

    name: str
    real_name: str
    ops: tuple[str, ...]
    members: tuple[str, ...]
    inputs: tuple[relax.Var, ...]
    output: relax.Var
    function: relax.Function
    step: Array | None
    axis: int


def cut(graph: Graph, pairs: Pairs, running: Set[str]) -> list[Layer]:
    """Cut a quantized model into the layers whose values the float model has.

    `running`: the names of the values that remain after the passes have merged others into them.
    """
    return _Cutter(graph, pairs, running).run()


class _Cutter:
    def __init__(self, graph: Graph, pairs: Pairs, running: Set[str]) -> None:
        self._graph, self._pairs, self._running = graph, pairs, running
        self._place = {var: index for index, var in enumerate(graph.values)}
        self._edges: dict[relax.Var, relax.Call] = {}
        """The calls that dequantize the integers between two layers."""
        for var, value in graph.values.items():
            if var in graph.constants or not self._has_known_scale(value):
                continue
            if is_call_of(value, DEQUANTIZE):
                self._edges.setdefault(value.args[0], value)
            elif not all(is_call_of(reader, "relax.clip") for reader in graph.readers[var]):
                self._edges.setdefault(var, _back(value, var))
        self._roots = deque([*self._edges, *self._real_results()])
        self._reals = set(self._roots).difference(self._edges)

    def _has_known_scale(self, value: relax.Expr) -> bool:
        """Whether a quantize or dequantize of a value of the float model has constant scales."""
        if op_name(value) not in (QUANTIZE, DEQUANTIZE) or self._of_real(value.args[0]) is None:
            return False
        return all(isinstance(parameter, Constant) for parameter in value.args[1:3])

    def _real_results(self) -> list[relax.Var]:
        graph = self._graph
        results = dict.fromkeys(ir.operands(relax.Tuple(graph.results)))
        return [
            var
            for var in results
            if var not in self._edges
            and not (
                is_call_of(value := graph.value(var), DEQUANTIZE) and value.args[0] in self._edges
            )
        ]

    def run(self) -> list[Layer]:
        layers: dict[int, Layer] = {}
        seen, keys = set(), set()
        while self._roots:
            root = self._roots.popleft()
            if root in seen or root not in self._graph.values or root in self._graph.constants:
                continue
            seen.add(root)
            key = self._key(root)
            if key not in keys and (layer := self._layer(root)) is not None:
                keys.add(key)
                layers[self._place[root]] = layer
        return [layers[place] for place in sorted(layers)]

    def _key(self, root: relax.Var) -> tuple[object, ...]:
        """Return a key that equal quantizes of a value share."""
        origin = ir.id_of(self._graph.origin(root)[0])
        if root not in self._edges:
            return (origin,)
        numbers = [parameter.value.numpy().tobytes() for parameter in self._edges[root].args[1:3]]
        return (origin, str(root.ty.dtype), *numbers)

    def _layer(self, root: relax.Var) -> Layer | None:
        output = self._of_real(root)
        collected, operands = self._collect(root)
        inputs = {var: self._of_real(var) for var in operands}
        if output is None or None in inputs.values():
            return None
        graph = self._graph
        members = sorted(collected, key=self._place.__getitem__)
        copier = Copier()
        read: dict[relax.Var, relax.Var] = {}
        for var in inputs:
            edge = self._edges.get(var)
            if edge is None:
                read[var] = copier.inside[var] = relax.Var(f"x{len(read)}", var.ty)
                continue
            read[var] = relax.Var(f"x{len(read)}", edge.ty)
            copier.inside[var] = self._quantized(copier, var, edge, read[var])
        for var in members:
            copier.copy(var, graph.values[var])
        result = copier.inside[root]
        edge = self._edges.get(root)
        if edge is not None:
            result = copier.add("result", with_arguments(edge, [result, *edge.args[1:]]))
        computing = [
            var
            for var in members
            if var not in graph.constants
            and op_name(graph.values[var]) not in ("", QUANTIZE, DEQUANTIZE)
        ]
        return Layer(
            name=str((computing or [root])[-1].name),
            real_name=str(output.name),
            ops=tuple(ir.callee(graph.values[var]).rpartition(".")[2] for var in computing),
            members=self._names(members, bool(computing)),
            inputs=tuple(var for var in inputs.values() if var is not None),
            output=output,
            function=copier.function(list(read.values()), result),
            step=None if edge is None else edge.args[1].value.numpy(),
            axis=-1 if edge is None else int(edge.attrs.axis),
        )

    def _names(self, members: Sequence[relax.Var], computes: bool) -> tuple[str, ...]:
        """Return the names of values, and of a reader into which the passes merge them."""
        graph = self._graph
        names = [name for var in members if var not in graph.constants for name in graph.names[var]]
        if computes and self._running.isdisjoint(names):
            behind = set(members)
            for var, value in graph.values.items():
                if behind.isdisjoint(ir.operands(value)) or var in graph.constants:
                    continue
                behind.add(var)
                names += graph.names[var]
                if not self._running.isdisjoint(graph.names[var]):
                    break
        return tuple(names)

    def _of_real(self, var: relax.Var) -> relax.Var | None:
        origin = self._graph.origin(var)[0]
        return self._pairs.get(origin) if isinstance(origin, relax.Var) else None

    def _quantized(
        self, copier: Copier, var: relax.Var, edge: relax.Call, real: relax.Var
    ) -> relax.Var:
        """Quantize an input as the model does."""
        dtype = str(var.ty.dtype)
        call = relax.op.quantize(real, *edge.args[1:3], int(edge.attrs.axis), dtype)
        integers = copier.add(f"{real.name}_integers", call)
        before = self._graph.value(var)
        if is_call_of(before, "relax.clip"):
            integers = copier.add(
                f"{real.name}_limited", with_arguments(before, [integers, *before.args[1:]])
            )
        return integers

    def _collect(self, root: relax.Var) -> tuple[set[relax.Var], list[relax.Var]]:
        """Return the values of a layer, and its inputs."""
        graph = self._graph
        members: set[relax.Var] = set()
        inputs: dict[relax.Var, None] = {}
        has_matrix = False
        stack = [root]
        while stack:
            var = stack.pop()
            if var in members:
                continue
            members.add(var)
            value = graph.values[var]
            has_matrix = has_matrix or is_product(op_name(value))
            for operand in ir.operands(value):
                if operand in graph.constants:
                    stack.append(operand)
                elif operand not in graph.values or operand in self._edges:
                    inputs[operand] = None
                elif self._is_end(operand, value, has_matrix):
                    inputs[operand] = None
                    self._reals.add(operand)
                    self._roots.append(operand)
                else:
                    stack.append(operand)
        return members, list(inputs)

    def _is_end(self, var: relax.Var, reader: relax.Expr, has_matrix: bool) -> bool:
        """Whether a real number is the result of another layer."""
        if var not in self._pairs:
            return False
        op = op_name(self._graph.values[var])
        if var not in self._reals and (op in _PASSES_ON or not self._runs(var, op)):
            return False
        readers = self._graph.readers[var]
        shared = len(readers) > 1 and any(not is_call_of(user, QUANTIZE) for user in readers)
        matrix = has_matrix and is_product(op)
        return var in self._reals or shared or is_product(op_name(reader)) or matrix

    def _runs(self, var: relax.Var, op: str) -> bool:
        return is_product(op) or not self._running.isdisjoint(self._graph.names[var])


def _back(quantize: relax.Call, integers: relax.Var) -> relax.Call:
    call = relax.op.dequantize(integers, *quantize.args[1:3], int(quantize.attrs.axis))
    return relax.BlockBuilder().normalize(call)


class Copier:
    """Copies bindings into a new function."""

    def __init__(self) -> None:
        self.inside: dict[relax.Var, relax.Expr] = {}
        """The new function's values for those of the model."""
        self._bindings: list[relax.Binding] = []
        self._builder = relax.BlockBuilder()

    def add(self, name: str, value: relax.Expr) -> relax.Var:
        """Bind a value of the new function."""
        value = self._builder.normalize(value)
        var = relax.Var(name, value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var

    def copy(self, var: relax.Var, value: relax.Expr) -> None:
        """Copy a binding, whose operands were copied before."""
        self.inside[var] = self.add(str(var.name), self.translate(value))

    def translate(self, expr: relax.Expr) -> relax.Expr:
        """Return an expression of the new function's variables."""
        if isinstance(expr, relax.Var):
            return self.inside.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.translate(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.translate(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            return with_arguments(expr, [self.translate(operand) for operand in expr.args])
        return expr

    def function(self, params: Sequence[relax.Var], result: relax.Expr) -> relax.Function:
        """Return the function, which has no side effects."""
        result = self._builder.normalize(result)
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        return relax.Function(list(params), body, result.ty, True)


def reading(graph: Graph, results: Iterable[relax.Var]) -> relax.Function:
    """Return a function that returns these values of a model."""
    copier = Copier()
    params = [relax.Var(param.name, param.ty) for param in graph.params]
    copier.inside.update(zip(graph.params, params, strict=True))
    for var, value in graph.values.items():
        copier.copy(var, value)
    fields = relax.Tuple([copier.translate(var) for var in results])
    return copier.function(params, copier.add("results", fields))


def with_kernels(graph: Graph, functions: dict[str, relax.Function]) -> tvm.IRModule:
    """Return a module of functions with the kernels that they may call."""
    module: dict[tvm.ir.GlobalVar | str, tvm.ir.BaseFunc] = {
        name: function.with_attr("global_symbol", name) for name, function in functions.items()
    }
    for name, function in graph.mod.functions_items():
        if not isinstance(function, relax.Function):
            module[name] = function
    return tvm.IRModule(module, global_infos=graph.mod.global_infos)
