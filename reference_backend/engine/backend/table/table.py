# SPDX-License-Identifier: Apache-2.0
"""The table of offloadable calls: what the engine can compile and the chip can run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import tvm
from tvm import relax

from ..ir.calls import Size, Values, arguments_of, plain, tensor_type
from ..shared.backend import NOT_SELECTED
from .capability import Op
from .checks import check, misfits
from .chip import REALS, Chip, Limits
from .compositions import ROLES, Composition
from .formulas import count
from .limits import CONVERSIONS, WHERE, Excluded, narrow
from .reasons import Code, Reason, nearest
from .sdk import ask_driver

Decline = Callable[[Op, relax.Call], str | None]
"""A vendor's check of a call within the table's limits: None, or the reason against it."""


class Table:
    """What the engine can compile and this chip can run, and the check of a call against it.

    `ops`: what the engine can compile.
    `declined_by_sdk`: asked about each call that matches an entry; see `vendor/capabilities.py`.
    `chip`: the limits of all ops of the chip.
    `limits`: the chip's limits of each op; None leaves the op to the host. Other ops have the
    engine's limits.
    `extra_ops`: the vendor's own ops, to which no limits apply.
    """

    def __init__(
        self,
        ops: Iterable[Op],
        declined_by_sdk: Decline | None = None,
        *,
        chip: Chip | None = None,
        limits: Mapping[str, Limits | None] | None = None,
        extra_ops: Iterable[Op] = (),
    ) -> None:
        self.chip = chip or Chip()
        self._declined_by_sdk = declined_by_sdk
        self._asks_driver = declined_by_sdk is ask_driver
        self._engine: dict[str, Op] = {}
        self._by_name: dict[str, Op] = {}
        self._by_relax: dict[str, list[Op]] = {}
        self._left_out: dict[str, list[str]] = {}
        self.compositions: dict[str, Composition] = {}
        """What the composites are whose patterns or matches this table has named, by label."""
        self.left_out: dict[str, str] = {}
        """The ops that the chip cannot run although the engine can compile them, and why."""
        given = tuple(ops)
        wanted = dict(limits or {})
        names = [op.name for op in given]
        self.unrecorded: tuple[str, ...] = tuple(name for name in names if name not in wanted)
        """The ops without limits: they were selected after the limits were seeded."""
        self.unused_limits: tuple[str, ...] = tuple(name for name in wanted if name not in names)
        """The limits of ops that this backend does not have."""
        problems = [problem for name in self.unused_limits if (problem := self._misspelt(name))]
        for op in given:
            self._engine[op.name] = op
            try:
                unlimited = Limits(quantized=op.quantized.dtypes if op.quantized else ())
                self._add(op, wanted.get(op.name, unlimited))
            except ValueError as error:
                problems.append(str(error))
        relax_ops = set(tvm.ir.Op.list_op_names())
        for op in extra_ops:
            if op.relax and op.relax not in relax_ops:
                problems.append(f"{WHERE}: {op.name}: TVM has no op '{op.relax}'.")
            else:
                self._register(op)
        if problems:
            raise ValueError(" ".join(problems))
        self.ops = tuple(self._by_name.values())
        """The ops of this chip, narrowed."""

    def _misspelt(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.unrecorded, 1)
        return f"{WHERE}: there is no op '{name}', did you mean '{near[0]}'?" if near else ""

    def _add(self, op: Op, limits: Limits | None) -> None:
        if limits is None:
            reason = f"{op.name}: {WHERE} leaves it to the host"
        else:
            try:
                self._register(narrow(op, self.chip, limits))
                return
            except Excluded as excluded:
                reason = str(excluded)
        self.left_out[op.name] = reason
        self._left_out.setdefault(op.relax, []).append(reason)

    def _register(self, op: Op) -> None:
        if op.name in self._by_name:
            raise ValueError(f"The table has two entries named '{op.name}'.")
        self._by_name[op.name] = op
        if op.relax:
            self._by_relax.setdefault(op.relax, []).append(op)

    @property
    def selected(self) -> tuple[str, ...]:
        """The ops of the catalogue that the backend has, whatever the chip can do."""
        return tuple(self._engine)

    def engine_entry(self, name: str) -> Op | None:
        """Return what the engine can compile of an op, whatever the chip can do."""
        return self._engine.get(name)

    def get(self, name: str) -> Op | None:
        """Return the entry of this name."""
        return self._by_name.get(name)

    def entries_of(self, relax_op: str) -> list[Op]:
        """Return the entries for a Relax op."""
        return self._by_relax.get(relax_op, [])

    @property
    def computes_quantized(self) -> bool:
        """Whether composites may begin and end with quantized tensors."""
        return set(CONVERSIONS) <= self._by_name.keys()

    def takes_integer_weights(self, relax_op: str) -> bool:
        """Whether an op may multiply real numbers by constant integers that are dequantized."""
        takes = any(entry.takes_integer_weights for entry in self.entries_of(relax_op))
        return takes and self.chip.has_reals and self.get("dequantize") is not None

    def activations_of(self, op: Op) -> list[Op]:
        """Return the entries that may be fused after an op."""
        if op.fuses is None:
            return []
        named = op.fuses.activations
        return [op for op in self.ops if op.activation and (named is None or op.name in named)]

    def name(self, composition: Composition) -> str:
        """Return the label of a composite, and keep in `compositions` what it stands for."""
        # A gelu before a tanh is called like the entry gelu_tanh, whose pattern was named before.
        self.compositions.setdefault(composition.label, composition)
        return composition.label

    def composition_of(self, pattern: str, parts: Mapping[str, relax.Expr]) -> Composition:
        """Return what a match consists of, of which the pattern leaves some parts open.

        `pattern`: its name. One that the table did not name, such as a vendor's own, is an op.
        """
        composition = self.compositions.get(pattern) or Composition(Op(pattern))
        roles, last = [role for role in ROLES if role in parts], composition.last
        if "activation" in parts:
            entries = self.entries_of(parts["activation"].op.name)
            roles.pop()
            last = next((entry for entry in entries if entry.activation), None)
        return replace(composition, roles=tuple(roles), last=last)

    def refusal(
        self,
        call: relax.Call,
        values: Values | None = None,
        *,
        bind_constants: bool = True,
        op: Op | None = None,
        asked_later: bool = False,
    ) -> Reason | None:
        """Return why the hardware cannot run a call of a Relax op; none where it can.

        What a chip without real numbers runs of it may be a part of a composite only, between
        dequantize and quantize: `refusal_of_ends` says whether the composite has integers.

        `op`: the only entry to check; none: any entry for the Relax op.
        `asked_later`: whether the driver is asked about the whole composite later; skips
        `ask_driver`.
        """
        name = call.op.name
        entries = self.entries_of(name) if op is None else [op]
        if not entries:
            if left_out := self._left_out.get(name):
                return Reason(Code.LEFT_OUT, "; ".join(left_out), True)
            why = f"{name} is not in the table of this backend"
            selectable = NOT_SELECTED.get(name)
            if selectable:
                hint = f"; the catalogue has {selectable}: select it by an update"
                return Reason(Code.NOT_SELECTED, why + hint)
            return Reason(Code.NOT_IN_TABLE, why)
        refusals = []
        for entry in entries:
            tensors, attributes = arguments_of(call, values or {})
            stage, reason = self._check(
                entry, tensors, attributes, call, values or {}, bind_constants, asked_later
            )
            if reason is None:
                return None
            reason.closeness = (-misfits(entry, attributes), stage)
            refusals.append(reason)
        return nearest(refusals)

    def _check(
        self,
        entry: Op,
        tensors: Sequence[relax.Expr],
        attributes: Mapping[str, object],
        call: relax.Call,
        values: Values,
        bind_constants: bool,
        asked_later: bool,
    ) -> tuple[int, Reason | None]:
        given = (tensors, attributes, call.ty, values)
        stage, reason = check(
            entry, *given, bind_constants=bind_constants, symbols=self.chip.symbols
        )
        if reason is not None:
            # It is a limit of the chip if the engine's entry accepts the call.
            whole = self._engine.get(entry.name)
            if whole is not None and check(whole, *given, bind_constants=bind_constants)[1] is None:
                reason = reason.limited()
        elif self._declined_by_sdk is not None and not (asked_later and self._asks_driver):
            declined = self._declined_by_sdk(entry, call)
            if declined is not None:
                code = Code.DECLINED if self._asks_driver else Code.DECLINED_BY_SDK
                return 4, Reason(code, f"{entry.name}: {declined}")
        return stage, reason

    def refusal_of_ends(
        self, who: str, read: Iterable[tvm.ir.Type], returned: Iterable[tvm.ir.Type]
    ) -> Reason | None:
        """Return why the chip has no composite that reads and returns such values; none if it may.

        `who`: what reads and returns them, for the sentence.
        """
        if self.chip.has_reals:
            return None
        for does, types in (("reads", read), ("returns", returned)):
            for dtype in _dtypes_in(types):
                if dtype in REALS:
                    has = ", ".join(self.chip.dtypes)
                    why = f"{who}: it {does} {dtype}; the chip has integers only: {has}"
                    return Reason(Code.DTYPE, why).limited()
        return None

    def refusal_of_chain(
        self,
        op: Op,
        inputs: Mapping[str, relax.Expr],
        attributes: Mapping[str, object],
        call: relax.Call,
        values: Values | None = None,
        *,
        bind_constants: bool = True,
    ) -> Reason | None:
        """Return why the hardware cannot run a chain of calls as one op; none where it can."""
        tensors = [inputs[tensor.name] for tensor in op.inputs]
        given = {name: plain(value) for name, value in attributes.items()}
        return self._check(op, tensors, given, call, values or {}, bind_constants, True)[1]

    def count_operations(self, call: relax.Call, values: Values, bounds: Mapping[str, int]) -> int:
        """Estimate the arithmetic of a call within the table's limits."""
        entries = self.entries_of(call.op.name)
        suiting = (
            op for op in entries if self.refusal(call, values, op=op, asked_later=True) is None
        )
        entry = next(suiting, entries[0] if entries else None)
        if entry is None:
            return 0

        def shape_of(tensor: relax.Expr) -> tuple[int, ...]:
            sizes = tensor_type(tensor.ty)[1]
            return tuple(
                size.factor * bounds[size.name] if isinstance(size, Size) else size
                for size in sizes
            )

        tensors, names = arguments_of(call, values)
        for operand, tensor in zip(entry.inputs, tensors, strict=True):
            fields = tensor.fields if isinstance(tensor, relax.Tuple) else None
            shapes = tuple(map(shape_of, fields)) if fields is not None else shape_of(tensor)
            names[operand.name] = shapes
        result = getattr(call.ty, "fields", [call.ty])[0]
        names["out"] = shape_of(relax.Var("out", result))
        return count(entry.operations, names)


def _dtypes_in(types: Iterable[tvm.ir.Type]) -> Iterator[str]:
    """Generate the element types of tensors, also of those in tuples."""
    for ty in types:
        if isinstance(ty, relax.TupleType):
            yield from _dtypes_in(ty.fields)
        elif isinstance(ty, relax.TensorType):
            yield str(ty.dtype)
