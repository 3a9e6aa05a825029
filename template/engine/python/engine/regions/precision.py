# SPDX-License-Identifier: Apache-2.0
"""The type that each op of a block computes in, and why it is wider than the model asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

from tvm import relax

from ..amounts import is_product
from ..element_types import runs_in, wider_inside
from ..passes.quantized import DEQUANTIZE, QUANTIZE, REARRANGES, moves_elements
from ..patterns import TO_REAL, WEIGHT_ONLY, computes_quantized, is_quantized
from ..reasons import Code, Reason, of_driver
from ..table import Table
from . import ir
from .composites import Bindings, Composite, CompositeFinder

_REACH = 3
"""How many ops after an op its quantize may be: a bias, a residual and an activation."""


class Types(TypedDict, total=False):
    """The fields of an `OpPlacement` about types."""

    runs_in: str
    asked: str
    wider_code: str
    wider: str


class Precision:
    """Finds the types in which the ops of a block compute.

    Parameters
    ----------
    bindings
        The block.
    finder
        Which composites were found, and why others were not.
    table
        The capabilities.
    """

    def __init__(self, bindings: Bindings, finder: CompositeFinder, table: Table) -> None:
        self._bindings, self._finder, self._table = bindings, finder, table
        self._of_composite: dict[Composite, tuple[str, ...]] = {}
        self._has_integers = any(self._op(index) == DEQUANTIZE for index in range(len(bindings)))

    def of(self, index: int, on_host: Composite | Reason) -> Types:
        """Return the fields of an `OpPlacement` about types.

        Parameters
        ----------
        index
            The binding.
        on_host
            Why it is on the host; its composite if it is not.

        Returns
        -------
        fields
            `runs_in`, and the others where the type is wider than the model asks.
        """
        ty = ir.fields(self._bindings[index].var.ty)[0]
        if not isinstance(ty, relax.TensorType) or ty.dtype is None:
            return {}
        dtype = str(ty.dtype)
        if not self._has_integers:
            return {"runs_in": dtype}
        reason = on_host if isinstance(on_host, Reason) else None
        label = "" if isinstance(on_host, Reason) else on_host.label
        integers = () if isinstance(on_host, Reason) else self._integers_of(on_host)
        fields: Types = {"runs_in": runs_in(label, integers, dtype)}
        if self._op(index) in ("", DEQUANTIZE):
            return fields
        asked = self._asked(index)
        if not asked:
            return fields
        if reason is not None:
            reason = Reason(reason.code, "the host computes with real numbers, as the model says")
        else:
            reason = self._why(index, label)
        if reason is not None:
            fields["asked"] = " x ".join(asked)
            fields["wider_code"], fields["wider"] = reason.code.value, str(reason)
        return fields

    def _op(self, index: int) -> str:
        value = self._bindings[index].value
        return str(value.op.name) if ir.is_op_call(value) else ""

    def _integers_of(self, composite: Composite) -> tuple[str, ...]:
        """Return the types of the integers that a composite reads; of products, the operands'."""
        if composite not in self._of_composite:
            calls = [self._bindings[at].value for at in composite.members if self._op(at)]
            product = next((call for call in calls if is_product(call.op.name)), None)
            if product is None:
                sources = [call for call in calls if call.op.name == DEQUANTIZE]
            else:
                operands = map(self._dequantize_behind, product.args)
                sources = [call for call in operands if call is not None]
            found = dict.fromkeys(str(call.args[0].ty.dtype) for call in sources)
            # A bias is in the type of the sums.
            self._of_composite[composite] = tuple(item for item in found if item != "int32")
        return self._of_composite[composite]

    def _asked(self, index: int) -> list[str]:
        """Return the integer types that an op is to compute with; none if with reals."""
        found: dict[str, None] = {}
        for var in ir.operands(self._bindings[index].value):
            source = self._dequantize_behind(var)
            if source is not None:
                found[str(source.args[0].ty.dtype)] = None
        if found and (is_product(self._op(index)) or any(self._quantizes(index))):
            return [dtype for dtype in found if dtype != "int32"]
        return []

    def _refusal_at(self, ends: Sequence[int]) -> Reason | None:
        """Return why no composite of quantised tensors ends at one of these places."""
        notes = [note for at in ends for note in self._finder.notes.get(at, ())]
        about = (Code.QUANTIZATION, Code.OPTION)
        chosen = [note for note in notes if note.code in about]
        if chosen:
            return chosen[0]
        # What the driver was asked about had matched.
        declined = (self._finder.declined[at] for at in ends if at in self._finder.declined)
        closest = max(notes, key=lambda note: note.closeness, default=None)
        return next(map(of_driver, declined), closest)

    def _dequantize_behind(self, operand: relax.Expr) -> relax.Call | None:
        """Return the dequantize of an operand, which may be reshaped and transposed since then."""
        position = self._bindings.position
        while isinstance(operand, relax.Var) and operand in position:
            value = self._bindings[position[operand]].value
            if self._op(position[operand]) == DEQUANTIZE:
                return value
            if self._op(position[operand]) not in REARRANGES:
                break
            operand = value.args[0]
        return None

    def _operand_refusal(self, operand: relax.Expr, name: str) -> Reason | None:
        """Return why an operand is not one of a composite of quantised tensors."""
        source = self._dequantize_behind(operand)
        if source is None:
            why = f"'{name}' is a real number: no dequantize is before it"
        elif source.same_as(self._bindings.values.get(operand)):
            return None
        elif source.args[1].ty.ndim:
            why = f"'{name}' has scales of blocks; supported: one, or of weights one per channel"
        else:
            why = f"'{name}' is dequantized before it is moved; supported: integers that are moved"
        return Reason(Code.QUANTIZATION, why)

    def _quantizes(self, index: int, reach: int = _REACH + 1) -> Iterator[int]:
        """Generate the places of the quantizes of an op: itself, or those after it."""
        if self._op(index) == QUANTIZE:
            yield index
        elif reach and self._op(index):
            for user in self._bindings.users.get(self._bindings[index].var, ()):
                yield from self._quantizes(self._bindings.position[user], reach - 1)

    def _why(self, index: int, label: str) -> Reason | None:
        """Return why an op on the NPU computes in a wider type than asked for, if it does."""
        if is_quantized(label) and not label.endswith(TO_REAL):
            return wider_inside(label)
        call = self._bindings[index].value
        if label.startswith(WEIGHT_ONLY) and self._dequantize_behind(call.args[0]) is None:
            return None
        if label.endswith(TO_REAL):
            return self._refusal_at(list(self._quantizes(index)))
        ends = [*self._quantizes(index), index]
        refusal = self._refusal_at(ends)
        if refusal is not None:
            return refusal
        entries = self._table.entries_of(call.op.name)
        if moves_elements(call):
            asked = set(self._asked(index))
            if any(asked.issubset(entry.inputs[0].dtypes) for entry in entries):
                why = "moves integers where all that reads its result quantizes it alike"
                return Reason(Code.QUANTIZATION, f"{entries[0].name} {why}, with one scale")
        if not computes_quantized(self._table) or not any(entry.quantized for entry in entries):
            names = ", ".join(entry.name for entry in entries) or call.op.name
            return Reason(
                Code.NO_INTEGER_FORM, f"{names} has no form for quantised tensors in the table"
            )
        # Scales are real.
        operands = call.args[:1] if self._op(index) == QUANTIZE else call.args
        named = zip(operands, (item.name for item in entries[0].inputs), strict=False)
        refusal = next(filter(None, (self._operand_refusal(*pair) for pair in named)), None)
        if refusal is not None:
            return refusal
        if not ends[:-1]:
            return Reason(Code.QUANTIZATION, "its result is not quantized")
        why = "no composite pattern of quantised tensors matches here"
        return Reason(Code.NO_PATTERN, why)
