# SPDX-License-Identifier: Apache-2.0
"""Records where each op of a module runs, while it is partitioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypedDict

import tvm
from tvm import relax

from ..ir.amounts import Amounts, total
from ..ir.origins import is_named, origin_of
from ..ir.run_time_sizes import is_copy
from ..ir.states import Variables, bytes_of_states, variables_of, with_states_of_region
from ..ir.weights import shared_by_functions
from ..passes import bound_values, is_opaque
from ..report.names import Names
from ..report.report import ATTRIBUTE, Border, OpPlacement, RegionPlacement, Report, offload_report
from ..shared.backend import BACKEND
from ..table.reasons import Code, Reason
from . import ir
from .details import Details
from .precision import Types

_PACKED = (
    "relax.call_pure_packed",
    "relax.call_dps_packed",
    "relax.call_inplace_packed",
    "relax.call_py_func",
)


class Where(TypedDict, total=False):
    """Region and composite of an op on the NPU, or why it is on the host."""

    region: str
    composite: str
    reason: Reason
    types: Types


_NOTE = "note: "
"""How a sentence of a driver begins that is no warning."""


class _Region(NamedTuple):
    composites: tuple[str, ...]
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def _placed(symbol: str, ops: Sequence[OpPlacement], region: _Region) -> RegionPlacement:
    return RegionPlacement(
        symbol=symbol,
        function=ops[0].function,
        ops=len(ops),
        macs=total([op.macs for op in ops]),
        bytes_read=total([op.bytes_read for op in ops]),
        bytes_written=total([op.bytes_written for op in ops]),
        **region._asdict(),
    )


def _earlier_report(mod: tvm.IRModule) -> Report:
    """Return the report of an earlier partitioning."""
    is_partitioned = mod.attrs is not None and ATTRIBUTE in mod.attrs
    return offload_report(mod) if is_partitioned else Report(())


def _with_earlier_reads(ops: Sequence[OpPlacement], earlier: Report) -> list[OpPlacement]:
    """Return ops with their reads in an earlier partitioning, which a region hides."""
    places = {(op.function, op.name): place for place, op in enumerate(ops)}
    makers = {
        (op.function, op.name): [(earlier.ops[i].function, earlier.ops[i].name) for i in op.reads]
        for op in earlier.ops
    }
    return [
        replace(op, reads=tuple(places[maker] for maker in read if maker in places))
        if (read := makers.get((op.function, op.name))) is not None
        else op
        for op in ops
    ]


class Records:
    """The ops of one canonicalized module, and what the driver declined."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.function = ""  # The current one, with its amounts and details.
        self._amounts = Amounts({})
        self._details = Details({}, {})
        self.ops: list[OpPlacement] = []
        self._regions: dict[str, _Region] = {}
        self._states = Variables({}, {})
        self.declines: list[str] = []
        self._mod = mod
        self._earlier = _earlier_report(mod)
        self._symbols = dict(self._earlier.symbols)
        self._offloaded = self._earlier.offloaded

    def enter(self, name: str, function: relax.Function, bounds: Mapping[str, int]) -> None:
        """Go on with another function."""
        self.function = name
        self._amounts = Amounts(bounds)
        self._symbols.update(bounds)
        places = {op.name: at for at, op in enumerate(self._offloaded) if op.function == name}
        values = bound_values(function.body)
        self._details = Details(values, places)
        self._states = variables_of(function, values)

    def report(self) -> Report:
        """Return the report; ops that an earlier partitioning put on the NPU come first."""
        members: dict[str, list[OpPlacement]] = {}
        for op in self.ops:
            if op.region:
                members.setdefault(op.region, []).append(op)
        regions = [_placed(symbol, ops, self._regions[symbol]) for symbol, ops in members.items()]
        ops = _with_earlier_reads((*self._offloaded, *self.ops), self._earlier)
        names = Names(ops)
        return Report(
            tuple(map(names.of_op, ops)),
            (*self._earlier.regions, *map(names.of_region, regions)),
            dict(sorted(self._symbols.items())),
            states=bytes_of_states(self._mod),
            shared=max(self._earlier.shared, shared_by_functions(self._mod)),
        )

    def add_region(
        self,
        symbol: str,
        composites: Sequence[str],
        inputs: Sequence[relax.Expr],
        outputs: Sequence[relax.Var],
        warnings: Sequence[str] = (),
    ) -> None:
        """Record the inputs and outputs of a region, and what the driver says of it."""
        before, after = self._states
        # A region may read what a state becomes, and give another one what it was.
        borders = [
            tuple(
                self._border(value, names)
                for value in values
                if isinstance(value.ty, relax.TensorType)
            )
            for values, names in ((inputs, {**after, **before}), (outputs, {**before, **after}))
        ]
        told = tuple(text for text in warnings if not text.startswith(_NOTE))
        notes = tuple(text.removeprefix(_NOTE) for text in warnings if text.startswith(_NOTE))
        self._regions[symbol] = _Region(tuple(composites), borders[0], borders[1], told, notes)

    def with_states(
        self, region: relax.Function, inputs: Sequence[relax.Expr], outputs: Sequence[relax.Var]
    ) -> relax.Function:
        """Return the function of a region that knows which states of the model it has."""
        return with_states_of_region(region, inputs, outputs, self._states)

    def _border(self, expr: relax.Expr, states: Mapping[relax.Expr, str]) -> Border:
        name = str(expr.name) if isinstance(expr, relax.Var) else "a constant"
        size = self._amounts.bytes_of(expr)
        return Border(name, self._details.type_of(expr), size, states.get(expr))

    def on_host(self, but: Sequence[str] = ()) -> list[OpPlacement]:
        """Return the ops on the host that compute something."""
        return [
            op
            for op in self.ops
            if op.placement == "host"
            and not op.bookkeeping
            and not is_named(but, op.op, op.name, op.origin)
        ]

    def add(self, binding: relax.Binding, where: Where) -> None:
        """Add an op."""
        call = binding.value
        if self.codegen_of(call) == BACKEND:
            return  # A region of an earlier partitioning, which reported its ops.
        reason = where.get("reason")
        self.ops.append(
            OpPlacement(
                function=self.function,
                name=str(binding.var.name),
                op=ir.callee(call),
                placement="npu" if reason is None else "host",
                origin=origin_of(call),
                region=where.get("region"),
                composite=where.get("composite"),
                code=None if reason is None else reason.code.value,
                reason=None if reason is None else str(reason),
                remedy=None if reason is None else reason.remedy,
                bookkeeping=self._is_bookkeeping(call),
                macs=self._amounts.macs(call),
                bytes_read=self._amounts.read_by(call),
                bytes_written=self._amounts.bytes_of(binding.var),
                **self._details.of(binding, len(self._offloaded) + len(self.ops)),
                **where.get("types", {}),
            )
        )

    def add_branch(self, binding: relax.Binding) -> None:
        """Add the choice of a branch, after the ops of its branches."""
        reason = Reason(Code.CONTROL_FLOW, "it chooses a branch, whose own ops are listed apart")
        self.ops.append(
            OpPlacement(
                function=self.function,
                name=str(binding.var.name),
                op="relax.If",
                placement="host",
                origin=origin_of(binding.value),
                code=reason.code.value,
                reason=str(reason),
                remedy=reason.remedy,
                bookkeeping=True,
                **self._details.of(binding, len(self._offloaded) + len(self.ops)),
            )
        )

    def add_body(self, body: relax.SeqExpr, reason: Reason) -> None:
        """Add all calls of a body, which stays on the host unchanged."""
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    self.add_body(value.true_branch, reason)
                    self.add_body(value.false_branch, reason)
                    self.add_branch(binding)
                elif isinstance(value, relax.Function):
                    self.add_body(value.body, reason)
                elif isinstance(value, relax.Call):
                    self.add(binding, {"reason": reason})

    def add_local(self, function: relax.Function) -> None:
        """Add the calls in a local function, which stays on the host."""
        why = "it is inside a local function; run LambdaLift first"
        self.add_body(function.body, Reason(Code.LOCAL_FUNCTION, why))

    def add_decline(self, binding: relax.Binding, reason: str) -> None:
        """Note that the driver declines an op, for `on_decline='error'`.

        `binding`: the binding of the op; only calls count.
        `reason`: the driver's sentence; a reason, which is not counted, if the driver was not
        asked.
        """
        if isinstance(reason, Reason):
            return
        if isinstance(binding.value, relax.Call):
            who = f"{ir.label(binding)}: "
            origin = origin_of(binding.value)
            named = f"{origin}: {who}" if origin is not None else who
            self.declines.append(named + reason.removeprefix(who).rstrip(".") + ".")

    def no_op(self, call: relax.Call) -> Reason | None:
        """Return why a call of anything but a Relax op stays on the host.

        None for a call of a Relax op.
        """
        if ir.is_op_call(call):
            name = str(call.op.name)
            if name == "relax.call_tir":
                why = f"it calls the kernel '{call.args[0].name_hint}': the importer has lowered it"
                return Reason(Code.KERNEL, why)
            if name in _PACKED:
                callee = call.args[0]
                packed = getattr(callee, "global_symbol", None) or getattr(callee, "name_hint", "")
                return Reason(Code.PACKED_CALL, f"it calls the packed function '{packed}'")
            return None
        if isinstance(call.op, relax.ExternFunc):
            why = f"it calls the packed function '{ir.callee(call)}'"
            return Reason(Code.PACKED_CALL, why)
        backend = self.codegen_of(call)
        if backend is not None:
            return Reason(Code.OTHER_BACKEND, f"it is a region of {backend}")
        return Reason(Code.FUNCTION_CALL, f"it calls {ir.callee(call)}, which is not a Relax op")

    def codegen_of(self, call: relax.Call) -> str | None:
        """Return the backend of the called region.

        Its name; none if the callee is not a region.
        """
        if not isinstance(call.op, relax.GlobalVar):
            return None
        function = self._mod[call.op]
        attrs = function.attrs if isinstance(function, relax.Function) else {}
        return str(attrs["Codegen"]) if "Codegen" in attrs else None

    def _is_bookkeeping(self, call: relax.Call) -> bool:
        """Whether the call itself computes nothing."""
        if isinstance(call.op, relax.GlobalVar) and not is_opaque(self._mod[call.op]):
            return True  # The callee's calls are recorded.
        if is_copy(call):
            return True
        return not any(isinstance(ty, relax.TensorType) for ty in ir.fields(call.ty))
