# SPDX-License-Identifier: Apache-2.0
"""Keeps weights that a model unpacks from bytes or words as integers, with a scale for each group.

GPTQ, AWQ and GGUF shift and mask packed constants, subtract zero points, and multiply by scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tvm import relax

from ..ir.calls import Constant, items_of, resolve, with_arguments
from ..shared.aliases import Array
from ..table.table import Table
from .arrays import array_of
from .evaluate import Undefined, constant_of
from .quantized_form import DEQUANTIZE, REARRANGES
from .rewriting import Bindings, Block, is_call_of, op_name
from .scales import holds

_MOVES = (*REARRANGES, "relax.squeeze", "relax.expand_dims", "relax.astype")
_TYPES = ("float16", "float32")
"""The types of weights that are dequantized."""

_MOST = 255
"""The largest difference of integers of 8 bits, and with it of one and a zero point."""


class _Groups(NamedTuple):
    """A matrix of weights: integers with a row for each group, and a scale and zero point of it."""

    numbers: Array
    scales: Array
    zeros: Array


def unpack_weights(block: Block, table: Table) -> Bindings | None:
    """Turn `matmul(x, numbers * scales)`, both computed of constants, into one of integers.

    The integers fill as many bits as the groups need: 4, or 8.
    """
    takes = table.takes_integer_weights("relax.matmul")
    if not takes or not {"relax.matmul", "relax.multiply"} <= block.by_op.keys():
        return None
    computed = _Computed(block)
    rewritten: dict[relax.Var, relax.Expr] = {}
    bindings: Bindings = []
    for binding in block.bindings:
        call = binding.value
        if is_call_of(call, "relax.matmul") and call.args[1] in computed.variables:
            weight = call.args[1]
            if weight not in rewritten:
                groups = computed.groups_of(weight)
                steps = [] if groups is None else _dequantized(groups, weight.ty)
                bindings += steps
                rewritten[weight] = steps[-1].var if steps else weight
            if not rewritten[weight].same_as(weight):
                call = with_arguments(call, [call.args[0], rewritten[weight]])
                binding = relax.VarBinding(binding.var, call)
        bindings.append(binding)
    return bindings if any(not new.same_as(old) for old, new in rewritten.items()) else None


def _dequantized(groups: _Groups, ty: relax.TensorType) -> Bindings:
    """Return what computes a matrix of weights from groups of its columns."""
    depth, width = (int(size) for size in ty.shape.values)
    constants = map(relax.const, (groups.numbers, groups.scales, groups.zeros))
    builder = relax.BlockBuilder()
    bindings: Bindings = []

    def bind(call: relax.Call) -> relax.Var:
        call = builder.normalize(call)
        var = relax.DataflowVar(f"weight_{len(bindings)}", call.ty)
        bindings.append(relax.VarBinding(var, call))
        return var

    rows = bind(relax.op.dequantize(*constants, 0, str(ty.dtype)))
    if len(groups.numbers) != width:
        rows = bind(relax.op.reshape(rows, (width, depth)))
    bind(relax.op.permute_dims(rows))
    return bindings


class _Computed:
    """The values of a block that are computed of constants; they are computed when asked for."""

    def __init__(self, block: Block) -> None:
        self._values = block.values
        self._known: dict[relax.Expr, relax.Expr | None] = {}
        self._builder = relax.BlockBuilder()
        self.variables: set[relax.Expr] = set()
        for binding in block.bindings:
            value = binding.value
            if isinstance(binding, relax.VarBinding) and self._is_computed(value):
                self.variables.add(binding.var)

    def _is_computed(self, value: relax.Expr) -> bool:
        if isinstance(value, relax.TupleGetItem):
            return value.tuple_value in self.variables
        if isinstance(value, relax.Tuple):
            return all(map(self._is_operand, value.fields))
        name = op_name(value)
        # These are constants of integers already.
        if not name or name == DEQUANTIZE:
            return False
        operands = items_of(value.args)
        return bool(operands) and all(map(self._is_operand, operands))

    def _is_operand(self, operand: relax.Expr) -> bool:
        if isinstance(operand, relax.Var):
            known = resolve(operand, self._values)
            return operand in self.variables or isinstance(known, Constant | relax.ShapeExpr)
        return not isinstance(operand, relax.Tuple) or all(map(self._is_operand, operand.fields))

    def _value(self, expr: relax.Expr) -> relax.Expr | None:
        """Return the constant that an expression is; None if NumPy does not compute it."""
        expr = resolve(expr, self._values)
        if isinstance(expr, relax.Tuple):
            fields = [self._value(field) for field in expr.fields]
            return relax.Tuple(fields) if all(map(_is_known, fields)) else None
        if not isinstance(expr, relax.Var):
            return expr
        if expr not in self._known:
            self._known[expr] = self._computed(self._values.get(expr))
        return self._known[expr]

    def _computed(self, value: relax.Expr | None) -> relax.Expr | None:
        if isinstance(value, relax.TupleGetItem):
            fields = self._value(value.tuple_value)
            return None if fields is None else fields.fields[value.index]
        if not isinstance(value, relax.Call):
            return None
        operands = [self._value(operand) for operand in value.args]
        if not all(map(_is_known, operands)):
            return None
        try:
            return constant_of(with_arguments(value, operands))
        except Undefined:
            return None

    def groups_of(self, weight: relax.Var) -> _Groups | None:
        """Return a matrix of weights as integers; None if it is no product of such and scales."""
        moves: list[relax.Call] = []
        value = self._values.get(weight)
        while is_call_of(value, *_MOVES):
            moves.append(value)
            value = self._values.get(value.args[0])
        if not is_call_of(value, "relax.multiply") or str(weight.ty.dtype) not in _TYPES:
            return None
        for operands in (value.args, value.args[::-1]):
            numbers, scales = (self._moved(operand, value, moves) for operand in operands)
            if numbers is None or scales is None or numbers.ndim != 2:
                return None
            groups = _grouped(numbers.T, scales.T)
            if groups is not None and holds(str(weight.ty.dtype), groups.scales):
                return groups
        return None

    def _moved(
        self, operand: relax.Expr, product: relax.Call, moves: Sequence[relax.Call]
    ) -> Array | None:
        """Return an operand of a product, as large as the product, and moved as it was."""
        value = self._value(operand)
        for move in (relax.op.broadcast_to(operand, product.ty.shape), *reversed(moves)):
            others = [self._value(other) for other in move.args[1:]]
            if not all(map(_is_known, (value, *others))):
                return None
            # A cast behind the product rounds it; one of an operand here would do so twice.
            if op_name(move) != "relax.astype":
                call = relax.Call(move.op, [value, *others], move.attrs, move.ty_args)
                value = constant_of(self._builder.normalize(call))
        return None if value is None else array_of(value)


def _is_known(value: relax.Expr | None) -> bool:
    return value is not None


def _grouped(numbers: Array, scales: Array) -> _Groups | None:
    """Return rows of numbers by groups with one scale; None if no integers of 8 bits do."""
    depth = numbers.shape[1]
    if not np.isfinite(scales).all():
        return None
    changes = np.flatnonzero((scales[:, 1:] != scales[:, :-1]).any(0)) + 1
    size = int(np.gcd.reduce([depth, *changes]))
    if size == 1 or not np.isin(numbers, np.arange(-_MOST, _MOST + 1)).all():
        return None
    steps = scales[:, ::size].reshape(-1)
    signs = np.sign(steps).astype("int16")
    # Scales of the NPU are positive; those of GGUF may have any sign, and are 0 in blocks of 0.
    steps = np.where(signs == 0, np.ones((), steps.dtype), np.abs(steps))
    rows = numbers.astype("int16").reshape(-1, size) * signs[:, None]
    least, most = rows.min(1), rows.max(1)
    bits = 4 if (most - least).max() < 16 else 8
    half = 1 << (bits - 1)
    # The zero point that is closest to none.
    zeros = np.clip(0, -half - least, half - 1 - most)
    if (most - least).max() > _MOST or abs(zeros + 0.5).max() > 128:
        return None
    integers = (rows + zeros[:, None]).astype("int8")
    return _Groups(integers, steps, zeros.astype("int8"))
