# SPDX-License-Identifier: Apache-2.0
"""The type that each op of a block computes in, and why it is wider than the model asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

from tvm import relax

from ..ir.amounts import is_product
from ..ir.calls import Constant, resolve
from ..ir.origins import folded_type, origin_of, widened_type
from ..passes.quantized_form import DEQUANTIZE, QUANTIZE, REARRANGES, moves_elements
from ..table.capability import Op
from ..table.compositions import Composition, Kind
from ..table.reasons import Code, Reason, of_driver
from ..table.table import Table
from . import ir
from .composites import Bindings, Composite, CompositeFinder

_REACH = 3
"""How many ops after an op its quantize may be: a bias, a residual and an activation."""

_UNCHANGED = (*REARRANGES, "relax.astype")
"""The ops that keep the values of a dequantize."""

_COMPUTED = "becomes real numbers when the model is compiled"


def _read(expr: relax.Expr) -> list[relax.Expr]:
    """Return what an expression reads, also in tuples."""
    reads = getattr(expr, "args", None) or getattr(expr, "fields", None) or ()
    return [
        one for item in reads for one in (_read(item) if isinstance(item, relax.Tuple) else [item])
    ]


class Types(TypedDict, total=False):
    """The fields of an `OpPlacement` about types."""

    runs_in: str
    asked: str
    wider_code: str
    wider: str
    wider_remedy: str


class Precision:
    """Finds the types in which the ops of a block compute."""

    def __init__(self, bindings: Bindings, finder: CompositeFinder, table: Table) -> None:
        self._bindings, self._finder, self._table = bindings, finder, table
        self._of_composite: dict[Composite, tuple[str, ...]] = {}
        self._has_integers = any(
            self._op(index) == DEQUANTIZE or any(map(folded_type, _read(binding.value)))
            for index, binding in enumerate(bindings)
        )

    def of(self, index: int, on_host: Composite | Reason) -> Types:
        """Return the fields of an `OpPlacement` about types; `on_host` may be its composite."""
        ty = ir.fields(self._bindings[index].var.ty)[0]
        if not isinstance(ty, relax.TensorType) or ty.dtype is None:
            return {}
        dtype = str(ty.dtype)
        fields: Types = {"runs_in": dtype}
        widened = widened_type(self._bindings[index].value)
        is_integer = isinstance(on_host, Composite) and on_host.composition.kind.is_quantized
        if widened and widened != dtype and not is_integer:
            fields["asked"], fields["wider_code"] = widened, Code.DTYPE.value
            fields["wider"] = f"{dtype} holds all values of {widened}"
        if not self._has_integers:
            return fields
        if isinstance(on_host, Composite):
            integers = self._integers_of(on_host)
            fields["runs_in"] = on_host.composition.runs_in(integers, dtype)
        if self._op(index) in ("", DEQUANTIZE):
            return fields
        asked = self._asked(index)
        if not asked:
            return fields
        reason: Reason | None
        if isinstance(on_host, Reason):
            reason = Reason(on_host.code, "the host computes with real numbers, as the model says")
        else:
            reason = self._why(index, on_host.composition)
        if reason is not None:
            fields["asked"] = " x ".join(asked)
            fields["wider_code"], fields["wider"] = reason.code.value, str(reason)
            fields["wider_remedy"] = reason.remedy
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
            dtypes = dict.fromkeys(str(call.args[0].ty.dtype) for call in sources)
            # A bias is in the type of the sums.
            self._of_composite[composite] = tuple(dtype for dtype in dtypes if dtype != "int32")
        return self._of_composite[composite]

    def _asked(self, index: int) -> list[str]:
        """Return the integer types that an op is to compute with; none if with reals."""
        call = self._bindings[index].value
        dtypes: dict[str, None] = {}
        for operand in _read(call):
            source = self._source_of(operand, _UNCHANGED)
            if isinstance(source, Constant):
                dtypes[folded_type(source)] = None
            elif source is not None and not self._is_of_weights(source):
                dtypes[str(source.args[0].ty.dtype)] = None
        # An op of single elements computes with the real numbers of a constant, as the model says.
        moves = moves_elements(call) and any(map(folded_type, _read(call)))
        if dtypes and (is_product(self._op(index)) or moves or any(self._quantizes(index))):
            return [dtype for dtype in dtypes if dtype != "int32"]
        return []

    def _refusal_at(self, ends: Sequence[int]) -> Reason | None:
        """Return why no composite of quantized tensors ends at one of these places."""
        notes = [note for at in ends for note in self._finder.notes.get(at, ())]
        about = (Code.QUANTIZATION, Code.OPTION)
        chosen = [note for note in notes if note.code in about]
        if chosen:
            return chosen[0]
        # What the driver was asked about had matched.
        declined = (self._finder.declined[at] for at in ends if at in self._finder.declined)
        closest = max(notes, key=lambda note: note.closeness, default=None)
        return next(map(of_driver, declined), closest)

    def _source_of(
        self, operand: relax.Expr, through: Sequence[str] = REARRANGES
    ) -> relax.Expr | None:
        """Return the dequantize, or the constant of former integers, that some ops rearranged."""
        position = self._bindings.position
        while isinstance(operand, relax.Var) and operand in position:
            value = self._bindings[position[operand]].value
            if self._op(position[operand]) == DEQUANTIZE:
                return value
            if isinstance(value, Constant):
                operand = value
                break
            if self._op(position[operand]) not in through:
                return None
            operand = value.args[0]
        return operand if folded_type(operand) else None

    def _dequantize_behind(self, operand: relax.Expr) -> relax.Call | None:
        """Return the dequantize of an operand, which may be reshaped and transposed since then."""
        source = self._source_of(operand)
        return source if isinstance(source, relax.Call) else None

    def _is_of_weights(self, source: relax.Call) -> bool:
        """Whether a dequantize is of what a take reads from a constant: weights, not data."""
        data = source.args[0]
        while (call := self._bindings.values.get(data)) is not None and ir.is_op_call(call):
            data = call.args[0]
            if call.op.name == "relax.take":
                return isinstance(resolve(data, self._bindings.values), Constant)
            if call.op.name not in REARRANGES:
                break
        return False

    def _operand_refusal(self, operand: relax.Expr, name: str) -> Reason | None:
        """Return why an operand is not one of a composite of quantized tensors."""
        source = self._source_of(operand)
        if source is not None and (dtype := folded_type(source)):
            why = f"'{name}', a constant of {dtype}, {_COMPUTED}; supported: a dequantize before it"
        elif source is None and self._source_of(operand, _UNCHANGED) is not None:
            why = f"'{name}' is cast after its dequantize; supported: a dequantize to "
            why += f"{operand.ty.dtype} right before the op"
        elif source is None:
            why = f"'{name}' is a real number: no dequantize is before it"
        elif source.same_as(self._bindings.values.get(operand)):
            return None
        elif source.args[1].ty.ndim:
            why = f"'{name}' has scales of blocks; supported: one, or of weights one per channel"
        else:
            why = f"'{name}' is dequantized before it is moved; supported: integers that are moved"
        return Reason(Code.QUANTIZATION, why)

    def _folded_refusal(self, call: relax.Call, dtype: str, entries: Sequence[Op]) -> Reason:
        """Return why an op moves the real numbers of a constant of integers."""
        kinds = {kind: None for entry in entries for kind in entry.inputs[0].dtypes}
        what = f"{entries[0].name}: a constant of {dtype} {_COMPUTED}"
        if self._table.get("dequantize") is None:
            return Reason(Code.NO_INTEGER_FORM, f"{what}; the table has no dequantize")
        if dtype not in kinds:
            return Reason(Code.NO_INTEGER_FORM, f"{what}; supported: {', '.join(kinds)}")
        supported = "parts of one scale, all of them integers"
        if call.op.name == "relax.take":
            supported = "one scale, or one for each row, each group of a row, or each column"
        elif call.op.name in REARRANGES:
            supported = "one scale, or weights that only matmuls read"
        return Reason(Code.QUANTIZATION, f"{what}; supported: {supported}")

    def _quantizes(self, index: int, reach: int = _REACH + 1) -> Iterator[int]:
        """Generate the places of the quantizes of an op: itself, or those after it."""
        if self._op(index) == QUANTIZE:
            yield index
        elif reach and self._op(index):
            for user in self._bindings.users.get(self._bindings[index].var, ()):
                yield from self._quantizes(self._bindings.position[user], reach - 1)

    def _why(self, index: int, composition: Composition) -> Reason | None:
        """Return why an op on the NPU computes in a wider type than asked for, if it does."""
        kind = composition.kind
        if kind in (Kind.INTEGERS, Kind.RESCALES):
            return composition.wider_inside
        call = self._bindings[index].value
        is_data = is_product(self._op(index)) and self._dequantize_behind(call.args[0]) is not None
        if kind is Kind.WEIGHT_ONLY and not is_data:
            return None
        if kind is Kind.REALS and index in self._finder.real:
            return of_driver(self._finder.real[index], "it with integers")
        if kind is Kind.TO_REAL:
            return self._refusal_at(list(self._quantizes(index)))
        ends = [*self._quantizes(index), index]
        refusal = self._refusal_at(ends)
        if refusal is not None:
            return refusal
        entries = self._table.entries_of(call.op.name)
        folded = next(filter(None, map(folded_type, _read(call))), "")
        if folded and moves_elements(call):
            return self._folded_refusal(call, folded, entries)
        if moves_elements(call):
            asked = set(self._asked(index))
            if any(asked.issubset(entry.inputs[0].dtypes) for entry in entries):
                why = "moves integers where all that reads its result quantizes it alike"
                return Reason(Code.QUANTIZATION, f"{entries[0].name} {why}, with one scale")
        if not self._table.computes_quantized or not any(entry.quantized for entry in entries):
            names = ", ".join(entry.name for entry in entries) or call.op.name
            why = f"{names} has no form for quantized tensors in the table"
            return Reason(Code.NO_INTEGER_FORM, why)
        # Scales are real.
        operands = call.args[:1] if self._op(index) == QUANTIZE else call.args
        named = zip(operands, (operand.name for operand in entries[0].inputs), strict=False)
        refusals = list(filter(None, (self._operand_refusal(*pair) for pair in named)))
        # Real data do not keep such an op from multiplying by integers.
        weights = self._table.takes_integer_weights(call.op.name)
        refusal = next(iter(refusals[::-1] if weights else refusals), None)
        if refusal is not None:
            return refusal
        if not ends[:-1]:
            return Reason(Code.QUANTIZATION, "its result is not quantized")
        supported = f"supported: dequantize, {entries[0].name}, quantize, right behind each other"
        between = self._reader_of_reals(index)
        if between:
            why = f"{between} reads its result before that is quantized; {supported}"
            return Reason(Code.QUANTIZATION, why)
        why = f"no composite pattern of quantized tensors matches here; {supported}"
        return Reason(Code.NO_PATTERN, why)

    def _reader_of_reals(self, index: int) -> str:
        """Return what reads the real numbers of an op, by the name in the model; "" if nothing."""
        for user in self._bindings.users.get(self._bindings[index].var, ()):
            at = self._bindings.position[user]
            if self._op(at) not in ("", QUANTIZE):
                value = self._bindings[at].value
                return f"{ir.callee(value)} '{origin_of(value) or user.name}'"
        return ""
