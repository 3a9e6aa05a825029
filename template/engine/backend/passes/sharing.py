# SPDX-License-Identifier: Apache-2.0
"""Decides which ops share a dequantize: each composite takes its own."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, MutableMapping
from functools import cached_property
from typing import cast

from tvm import relax

from ..ir.calls import Constant, resolve, with_arguments
from ..ir.origins import folded_from
from ..table.reasons import Reason
from ..table.table import Table
from .quantized_form import DEQUANTIZE, QUANTIZE, REARRANGES, real_of
from .rewriting import Bindings, Block, op_name


def dequantize_for_each(block: Block, table: Table) -> Bindings | None:
    """Give each reader that may compute with integers a dequantize of its own.

    The others share one. Those of constants are computed, except where the reader computes with
    integers, or is on the host.
    """
    if DEQUANTIZE not in block.by_op:
        return None
    readers = _Readers(block, table)
    keeps = readers.keep_integers
    shared: dict[relax.Var, relax.Call] = {}
    for index in block.by_op[DEQUANTIZE]:
        binding = block.bindings[index]
        shared[binding.var] = binding.value
    result: Bindings = []
    seen: set[relax.Var] = set()
    reals: dict[relax.Var, Constant] = {}
    changed = False
    for binding in block.bindings:
        value = binding.value
        copies: Bindings = []
        replaced: dict[relax.Var, relax.Expr] = {}
        for var in _arguments(value):
            source = shared.get(var)
            if source is None or var in replaced:
                continue
            data = resolve(source.args[0], block.values)
            if isinstance(data, Constant) and not keeps(binding):
                real = reals.get(var) or real_of(source, data, block.values)
                if real is not None:
                    real = folded_from(real, str(data.ty.dtype))
                    reals[var] = replaced[var] = real
                    continue
            # The first reader keeps the existing dequantize, unless readers share that.
            if readers.needs_own(binding, source) and (var in seen or readers.share(var, source)):
                copy = relax.DataflowVar(str(var.name), var.ty)
                # A new call, since composites are found by the identity of values.
                copies.append(relax.VarBinding(copy, _with_replaced(source, {})))
                replaced[var] = copy
            seen.add(var)
        if not replaced:
            result.append(binding)
            continue
        changed = True
        result += copies
        result.append(relax.VarBinding(binding.var, _with_replaced(value, replaced)))
    return result if changed else None


def _arguments(value: relax.Expr) -> Iterator[relax.Expr]:
    """Generate the operands of an expression, including fields of tuples."""
    for operand in getattr(value, "args", None) or getattr(value, "fields", None) or ():
        yield from _arguments(operand) if isinstance(operand, relax.Tuple) else (operand,)


def _with_replaced(value: relax.Expr, replaced: dict[relax.Var, relax.Expr]) -> relax.Expr:
    def substituted(operand: relax.Expr) -> relax.Expr:
        if isinstance(operand, relax.Tuple):
            return relax.Tuple([substituted(field) for field in operand.fields])
        return replaced.get(operand, operand) if isinstance(operand, relax.Var) else operand

    if isinstance(value, relax.Tuple):
        return substituted(value)
    return with_arguments(value, [substituted(operand) for operand in value.args])


class _Readers:
    """The readers of the values of a block."""

    def __init__(self, block: Block, table: Table) -> None:
        self._block, self._table = block, table

    def needs_own(self, binding: relax.Binding, dequantize: relax.Call) -> bool:
        """Whether a composite may take a reader together with a dequantize.

        Without constant weights, it has constant scales, and begins with a product or ends in a
        quantize.
        """
        if isinstance(resolve(dequantize.args[0], self._block.values), Constant):
            return True
        names = ("quantize", "dequantize")
        if any(self._table.get(name) is None for name in names):
            return False
        scales = (resolve(parameter, self._block.values) for parameter in dequantize.args[1:3])
        if not all(isinstance(scale, Constant) for scale in scales):
            return False
        return binding.var in self._behind_products or binding.var in self._before_quantize

    def share(self, var: relax.Var, dequantize: relax.Call) -> bool:
        """Whether a dequantize is a result, or has a reader that can share it."""
        if not isinstance(var, relax.DataflowVar):
            return True
        return any(not self.needs_own(reader, dequantize) for reader in self._readers.get(var, []))

    @cached_property
    def _behind_products(self) -> set[relax.Var]:
        """The results of products that may take integers, and all values computed from them."""
        behind: set[relax.Var] = set()
        for binding in self._block.bindings:
            name = op_name(binding.value)
            entries = self._table.entries_of(name) if name else []
            is_product = any(entry.is_product and entry.quantized for entry in entries)
            if is_product or not behind.isdisjoint(relax.analysis.free_vars(binding.value)):
                behind.add(binding.var)
        return behind

    @cached_property
    def _before_quantize(self) -> set[relax.Var]:
        """The results of quantizes, and all values from which they are computed."""
        before: set[relax.Var] = set()
        for binding in reversed(self._block.bindings):
            if op_name(binding.value) == QUANTIZE or binding.var in before:
                before.add(binding.var)
                before.update(relax.analysis.free_vars(binding.value))
        return before

    @cached_property
    def _readers(self) -> dict[relax.Expr, list[relax.Binding]]:
        readers: dict[relax.Expr, list[relax.Binding]] = {}
        for binding in self._block.bindings:
            for operand in _arguments(binding.value):
                if isinstance(operand, relax.Var):
                    readers.setdefault(operand, []).append(binding)
        return readers

    def keep_integers(self, binding: relax.Binding) -> bool:
        """Whether an op reads integers of a constant, or is on the host, where these are smaller.

        So does a reshape or transposition of weights if its readers are matmuls that do.
        """
        name = op_name(binding.value)
        entries = self._table.entries_of(name) if name else []
        if not entries or self._refusal(binding.value) is not None:
            return True
        if self._table.get("dequantize") is None:
            return False
        if any(entry.quantized is not None for entry in entries if entry.is_product):
            return True
        return name in REARRANGES and self._are_weights(binding)

    def _refusal(self, call: relax.Call) -> Reason | None:
        """Return why a call stays on the host if its dequantized constants are real."""
        # A ChainMap wants mutable maps, but nothing writes into this one.
        values = cast(MutableMapping[relax.Var, relax.Expr], self._block.values)
        return self._table.refusal(call, ChainMap(self._integers, values), asked_later=True)

    @cached_property
    def _integers(self) -> dict[relax.Var, relax.Expr]:
        """The constants that dequantizes read, by the variable of their result."""
        values = self._block.values
        sources = (self._block.bindings[index] for index in self._block.by_op[DEQUANTIZE])
        read = {dequantize.var: resolve(dequantize.value.args[0], values) for dequantize in sources}
        return {var: data for var, data in read.items() if isinstance(data, Constant)}

    def _are_weights(self, binding: relax.Binding) -> bool:
        readers = self._readers.get(binding.var, [])
        return bool(readers) and all(self._is_weight(binding.var, reader) for reader in readers)

    def _is_weight(self, var: relax.Var, reader: relax.Binding) -> bool:
        name = op_name(reader.value)
        if name in REARRANGES:
            return self._are_weights(reader)
        takes = bool(name) and self._table.takes_integer_weights(name)
        return takes and reader.value.args[1].same_as(var)
