# SPDX-License-Identifier: Apache-2.0
"""Records where each op of a module runs, while it is partitioned."""

from __future__ import annotations

from typing import TypedDict

import tvm
from tvm import relax

from ..backend import BACKEND
from ..passes import is_opaque
from ..report import ATTRIBUTE, OpPlacement, Report, offload_report
from . import ir


class Where(TypedDict, total=False):
    """Region and composite of an op on the NPU, or why it is on the host."""

    region: str
    composite: str
    reason: str


class Records:
    """The ops of one module, and what the driver declined.

    Parameters
    ----------
    mod
        The canonicalized module.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.function = ""  # The current one.
        self.ops: list[OpPlacement] = []
        self.declines: list[str] = []
        self._mod = mod

    def report(self) -> Report:
        """Return the report; what an earlier partitioning put on the NPU comes first.

        Returns
        -------
        report
            All ops.
        """
        earlier: tuple[OpPlacement, ...] = ()
        if self._mod.attrs is not None and ATTRIBUTE in self._mod.attrs:
            earlier = offload_report(self._mod).offloaded
        return Report((*earlier, *self.ops))

    def on_host(self) -> list[OpPlacement]:
        """Return the ops on the host that compute something.

        Returns
        -------
        ops
            In the order of the model.
        """
        return [item for item in self.ops if item.placement == "host" and not item.bookkeeping]

    def add(self, binding: relax.Binding, where: Where) -> None:
        """Add an op.

        Parameters
        ----------
        binding
            The binding of a call.
        where
            Where it runs.
        """
        call = binding.value
        if self.codegen_of(call) == BACKEND:
            return  # A region of an earlier partitioning, which reported its ops.
        self.ops.append(
            OpPlacement(
                function=self.function,
                name=str(binding.var.name),
                op=ir.callee(call),
                placement="npu" if "region" in where else "host",
                bookkeeping=self._is_bookkeeping(call),
                **where,
            )
        )

    def add_body(self, body: relax.SeqExpr, reason: str) -> None:
        """Add all calls of a body, which stays on the host as it is.

        Parameters
        ----------
        body
            The body of a function or a branch.
        reason
            Why it stays there.
        """
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    self.add_body(value.true_branch, reason)
                    self.add_body(value.false_branch, reason)
                elif isinstance(value, relax.Function):
                    self.add_body(value.body, reason)
                elif isinstance(value, relax.Call):
                    self.add(binding, {"reason": reason})

    def add_local(self, function: relax.Function) -> None:
        """Add the calls in a local function, which stays on the host.

        Parameters
        ----------
        function
            The function.
        """
        self.add_body(function.body, "it is inside of a local function; run LambdaLift before")

    def add_decline(self, binding: relax.Binding, reason: str) -> None:
        """Note that the driver declines an op, for `on_decline='error'`.

        Parameters
        ----------
        binding
            The binding of the op; others than calls do not count.
        reason
            The driver's sentence.
        """
        if isinstance(binding.value, relax.Call):
            who = f"{ir.label(binding)}: "
            self.declines.append(who + reason.removeprefix(who).rstrip(".") + ".")

    def codegen_of(self, call: relax.Call) -> str | None:
        """Return the backend of the called region.

        Parameters
        ----------
        call
            A call.

        Returns
        -------
        backend
            Its name; none if the callee is no region.
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
        return not any(isinstance(ty, relax.TensorType) for ty in ir.fields(call.ty))
