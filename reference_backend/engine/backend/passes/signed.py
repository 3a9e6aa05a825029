# SPDX-License-Identifier: Apache-2.0
"""Turns quantized tensors of uint16 into int16, which the chip computes with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tvm import relax

from ..ir.calls import Constant, Values, resolve
from ..table.elements import MOVED
from ..table.table import Table
from .quantized_form import DEQUANTIZE, QUANTIZE
from .rewriting import Bindings, Block, op_name

_OF_TUPLES = ("relax.concat", "relax.stack")
_MIDDLE = 1 << 15
"""The difference between a number of uint16 and its replacement in int16."""


def sign_integers(block: Block, table: Table) -> Bindings | None:
    """Turn uint16 with a zero point z into int16 with the zero point z - 32768, which is exact.

    Ops that move elements, concat and stack read int16. Inputs and outputs of a model stay uint16,
    and so do values that other ops read, such as pad: the difference is added there. Without int16
    in the table, nothing changes.
    """
    entry = table.get("dequantize")
    if entry is None or "int16" not in entry.inputs[0].dtypes:
        return None
    if not any(_is_unsigned(call) for call in _quantizing(block)):
        return None
    signs = _Signs(block.values)
    for binding in block.bindings:
        value: relax.Expr | None = binding.value
        name = op_name(value) if isinstance(binding, relax.VarBinding) else ""
        if name == DEQUANTIZE:
            signs.dequantize(binding)
        elif name == QUANTIZE:
            signs.quantize(binding)
        elif name in MOVED or name in _OF_TUPLES:
            signs.move(binding)
        else:
            signs.bindings.append(binding)
    return signs.bindings if signs.changed else None


def _quantizing(block: Block) -> list[relax.Call]:
    """Return all calls in a block that quantize or dequantize."""
    indices = [index for name in (QUANTIZE, DEQUANTIZE) for index in block.by_op.get(name, ())]
    return [block.bindings[index].value for index in indices]


def _is_unsigned(call: relax.Call) -> bool:
    """Whether the integers of a quantize or dequantize are uint16."""
    ty = call.ty if op_name(call) == QUANTIZE else call.args[0].ty
    return str(ty.dtype) == "uint16"


class _Signs:
    """Rewrites the bindings of a block, one after the other."""

    def __init__(self, values: Values) -> None:
        self.bindings: Bindings = []
        self.changed = False
        self._values = values
        self._signed: dict[relax.Var, relax.Expr] = {}
        """For each tensor of uint16 its int16 one, if there is one."""
        self._builder = relax.BlockBuilder()

    def quantize(self, binding: relax.VarBinding) -> None:
        """Quantize to int16, and convert that to uint16 for other readers."""
        call = binding.value
        zeros = self._zero_points(call)
        if not _is_unsigned(call) or zeros is None:
            self.bindings.append(binding)
            return
        signed = relax.op.quantize(call.args[0], call.args[1], zeros, call.attrs.axis, "int16")
        self._replace(binding, signed)

    def dequantize(self, binding: relax.VarBinding) -> None:
        """Dequantize int16."""
        call = binding.value
        zeros = self._zero_points(call)
        if not _is_unsigned(call) or zeros is None:
            self.bindings.append(binding)
            return
        data = self._as_signed(call.args[0])
        attributes = call.attrs
        new = relax.op.dequantize(data, call.args[1], zeros, attributes.axis, attributes.out_dtype)
        self.bindings.append(relax.VarBinding(binding.var, self._builder.normalize(new)))
        self.changed = True

    def move(self, binding: relax.VarBinding) -> None:
        """Move int16 tensors if all operands have one."""
        call = binding.value
        first = resolve(call.args[0], self._values)
        fields = list(first.fields) if isinstance(first, relax.Tuple) else [call.args[0]]
        if not all(isinstance(field, relax.Var) and field in self._signed for field in fields):
            self.bindings.append(binding)
            return
        signed = [self._signed[field] for field in fields]
        data = relax.Tuple(signed) if isinstance(first, relax.Tuple) else signed[0]
        self._replace(binding, relax.Call(call.op, [data, *call.args[1:]], call.attrs))

    def _zero_points(self, call: relax.Call) -> Constant | None:
        """Return the zero points for int16 if those for uint16 are constant."""
        zero_points = resolve(call.args[2], self._values)
        if not isinstance(zero_points, Constant):
            return None
        numbers = zero_points.value.numpy().astype("int64")
        # Zero points of int32 may be beyond the range of both.
        inside = ((numbers >= 0) & (numbers < 2 * _MIDDLE)).all()
        return _int16(numbers - _MIDDLE) if inside else None

    def _as_signed(self, data: relax.Expr) -> relax.Expr:
        constant = resolve(data, self._values)
        if isinstance(constant, Constant):
            return _int16(constant.value.numpy().astype("int64") - _MIDDLE)
        if data not in self._signed:
            wide = self._add(relax.op.astype(data, "int32"), data)
            shifted = self._add(relax.op.subtract(wide, relax.const(_MIDDLE, "int32")), data)
            self._signed[data] = self._add(relax.op.astype(shifted, "int16"), data)
        return self._signed[data]

    def _replace(self, binding: relax.VarBinding, call: relax.Call) -> None:
        """Bind a result of int16, and its uint16 value, which may remain unread."""
        signed = self._add(call, binding.var)
        self._signed[binding.var] = signed
        wide = self._add(relax.op.astype(signed, "int32"), binding.var)
        shifted = self._add(relax.op.add(wide, relax.const(_MIDDLE, "int32")), binding.var)
        last = self._builder.normalize(relax.op.astype(shifted, "uint16"))
        self.bindings.append(relax.VarBinding(binding.var, last))
        self.changed = True

    def _add(self, call: relax.Call, like: relax.Var) -> relax.Var:
        new = self._builder.normalize(call)
        var = relax.DataflowVar(str(like.name), new.ty)
        self.bindings.append(relax.VarBinding(var, new))
        return var


def _int16(numbers: npt.ArrayLike) -> Constant:
    return relax.const(np.asarray(numbers).astype("int16"), "int16")
