# SPDX-License-Identifier: Apache-2.0
"""Quantizes tensors before they are moved, so that integers are moved.

Quantizing is element by element and keeps the order: `quantize(max_pool2d(x))` has the integers of
`max_pool2d(quantize(x))`, and a composite that computes x can end in the quantize.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm_ffi
from tvm import relax

from ..ir.calls import Constant, resolve
from ..ir.origins import with_span
from ..table.elements import CHOSEN
from ..table.table import Table
from .evaluate import constant_of
from .quantized_form import (
    DEQUANTIZE,
    QUANTIZE,
    RESIZE,
    ends_a_chain,
    has_one_scale,
    is_alike,
    move_like,
    moved_parts,
    moves_elements,
    real_of,
    undoes,
)
from .rewriting import Bindings, Block, is_call_of, op_name, with_constants

_DROPS = frozenset(
    (*CHOSEN, "relax.strided_slice", "relax.take", "relax.gather_elements", "relax.where", RESIZE)
)
"""The ops whose results may have fewer elements than their operands."""

_REACH = 6
"""How many ops may lie between a dequantize and a tensor that a composite still computes from it:
a product with its bias, residual and activation, and ops that move the result."""


def quantize_first(block: Block, table: Table) -> Bindings | None:
    """Turn `quantize(reshape(x))` into `reshape(quantize(x))` for all ops that only move data.

    All readers of a moved tensor must quantize it alike. Integers of another scale are rescaled,
    and constants are quantized now.
    """
    if QUANTIZE not in block.by_op:
        return None
    rewriting = _QuantizeFirst(block, table)
    for binding in block.bindings:
        rewriting.add(binding)
    return rewriting.bindings if rewriting.changed else None


class _QuantizeFirst:
    """Rewrites the bindings of a block, one after the other."""

    def __init__(self, block: Block, table: Table) -> None:
        self.bindings: Bindings = []
        self.changed = False
        self._values, self._table = block.values, table
        self._builder = relax.BlockBuilder()
        self._quantized: dict[relax.Expr, list[tuple[relax.Call, relax.Expr]]] = {}
        """For real numbers, each quantize of them with its integers."""
        self._demand: dict[relax.Var, relax.Call | None] = {}
        """The quantize that all readers of a value apply to it; None if they differ."""
        self._movable: set[relax.Var] = set()
        """The results of ops that can move integers instead."""
        for binding in reversed(block.bindings):
            self._note_demand(binding)

    def add(self, binding: relax.Binding) -> None:
        """Append a binding after the calls that move its integers, or bind it to known integers."""
        value = binding.value
        quantize = self._demand.get(binding.var)
        if not isinstance(binding, relax.VarBinding):
            pass
        elif is_call_of(value, QUANTIZE):
            integers = self._known_integers(value.args[0], value)
            if integers is not None and tvm_ffi.structural_equal(integers.ty, binding.var.ty):
                self.changed = True
                binding = relax.VarBinding(binding.var, integers)
            else:
                self._quantized.setdefault(value.args[0], []).append((value, binding.var))
        elif isinstance(value, relax.TupleGetItem):
            for like, whole in self._quantized.get(value.tuple_value, ()):
                self._keep(binding.var, relax.TupleGetItem(whole, value.index), like)
        elif quantize is not None and binding.var in self._movable and self._is_worth_it(value):
            parts = [self._integers(part, quantize) for part in moved_parts(value, self._values)]
            moved = self._moved(value, parts, quantize)
            if moved is not None:
                self._keep(binding.var, moved, quantize)
        self.bindings.append(binding)

    def _note_demand(self, binding: relax.Binding) -> None:
        """Note how a binding quantizes its operands; called for its readers first."""
        value = binding.value
        quantize = self._demand.get(binding.var)
        read: Sequence[relax.Expr] = ()
        if is_call_of(value, QUANTIZE):
            quantize, read = value, value.args[:1] if has_one_scale(value, self._values) else ()
        elif not isinstance(binding.var, relax.DataflowVar) or quantize is None:
            pass
        elif isinstance(value, relax.TupleGetItem):
            read = [value.tuple_value]
        elif self._may_move(value, quantize) and not self._is_part_of_an_op(binding.var):
            self._movable.add(binding.var)
            read = moved_parts(value, self._values)
        moved = {part for part in read if isinstance(part, relax.Var)}
        for var in relax.analysis.free_vars(value):
            demand = quantize if var in moved else None
            agreed = self._demand.get(var, demand)
            agrees = demand is not None and agreed is not None and self._is_alike(demand, agreed)
            self._demand[var] = demand if agrees else None

    def _is_alike(self, first: relax.Call, second: relax.Call) -> bool:
        return is_alike(first, second, self._values)

    def _may_move(self, call: relax.Expr, quantize: relax.Call) -> bool:
        """Whether an op only moves data, and the table takes its quantizes and it with integers."""
        name = op_name(call)
        if not moves_elements(call):
            return False
        if name in CHOSEN and resolve(quantize.args[1], self._values).value.numpy().item() <= 0:
            return False
        parts = moved_parts(call, self._values)
        dtype = str(quantize.attrs.out_dtype)
        integers = [relax.Var("x", relax.TensorType(part.ty.shape, dtype)) for part in parts]
        calls = [self._moved(call, integers, quantize)]
        calls += [
            self._quantize(part, quantize)
            for part in parts
            if self._known_integers(part, quantize) is None
        ]
        return all(
            call is not None and self._table.refusal(call, self._values, asked_later=True) is None
            for call in calls
        )

    def _is_part_of_an_op(self, var: relax.Var) -> bool:
        """Whether a value ends a chain, such as the transposition behind attention."""
        return ends_a_chain(var, self._table.ops, self._values)

    def _is_worth_it(self, call: relax.Call) -> bool:
        """Whether no more elements are quantized than before, or a composite computes integers."""
        if op_name(call) not in _DROPS:
            return True
        parts = moved_parts(call, self._values)
        computed = [part for part in parts if isinstance(resolve(part, self._values), relax.Var)]
        real = [part for part in computed if not is_call_of(self._values.get(part), DEQUANTIZE)]
        apart = any(self._demand.get(part) is None for part in real)
        return not apart and any(self._is_of_integers(part, _REACH) for part in computed)

    def _is_of_integers(self, expr: relax.Expr, reach: int) -> bool:
        """Whether a value is computed from a dequantize of something that is not constant."""
        value = self._values.get(expr)
        if is_call_of(value, DEQUANTIZE):
            return not isinstance(resolve(value.args[0], self._values), Constant)
        sources = relax.analysis.free_vars(value) if value is not None and reach else ()
        return any(self._is_of_integers(source, reach - 1) for source in sources)

    def _moved(
        self, call: relax.Call, integers: Sequence[relax.Expr], quantize: relax.Call
    ) -> relax.Call | None:
        """Return the call with integers; None if the integer of its border is unknown."""
        border = 0.0
        if op_name(call) == "relax.nn.pad":
            number = relax.const(np.float32(call.attrs.pad_value))
            integer = constant_of(self._quantize(number, quantize))
            if not isinstance(integer, Constant):
                return None
            border = float(integer.value.numpy())
        moved = self._builder.normalize(move_like(call, integers, border))
        return moved if call.span is None else with_span(moved, call.span)

    def _quantize(self, real: relax.Expr, like: relax.Call) -> relax.Call:
        call = relax.op.quantize(real, *like.args[1:3], -1, like.attrs.out_dtype)
        call = self._builder.normalize(with_constants(call, self._values))
        return call if like.span is None else with_span(call, like.span)

    def _known_integers(self, real: relax.Expr, quantize: relax.Call) -> relax.Expr | None:
        """Return integers that are constant, or were computed before."""
        for earlier, integers in self._quantized.get(real, ()):
            if self._is_alike(earlier, quantize):
                return integers
        source = self._values.get(real)
        constant: relax.Expr | None = resolve(real, self._values)
        if is_call_of(source, DEQUANTIZE):
            if undoes(quantize, source, self._values):
                return source.args[0]
            data = resolve(source.args[0], self._values)
            constant = real_of(source, data, self._values) if isinstance(data, Constant) else None
        if not isinstance(constant, Constant):
            return None
        call = relax.Call(quantize.op, [constant, *quantize.args[1:]], quantize.attrs)
        return constant_of(self._builder.normalize(with_constants(call, self._values)))

    def _integers(self, real: relax.Expr, quantize: relax.Call) -> relax.Expr:
        """Return known integers of real numbers, or quantize these here."""
        integers = self._known_integers(real, quantize)
        if integers is not None:
            return integers
        return self._keep(real, self._quantize(real, quantize), quantize)

    def _keep(self, real: relax.Expr, value: relax.Expr, quantize: relax.Call) -> relax.Var:
        """Bind the integers of real numbers."""
        value = self._builder.normalize(value)
        name = real.name if isinstance(real, relax.Var) else "constant"
        var = relax.DataflowVar(f"{name}_integers", value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        self._quantized.setdefault(real, []).append((quantize, var))
        return var
