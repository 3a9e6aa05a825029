# SPDX-License-Identifier: Apache-2.0
"""The report of where each op runs, and why; kept in the module."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from .backend import BACKEND

DECLINES = "the driver declines"
"""The beginning of the reason of an op that the driver declines."""

ATTRIBUTE = f"{BACKEND}.offload_report"
"""The attribute of an IRModule that holds the report as JSON."""


@dataclass(frozen=True)
class OpPlacement:
    """Where one op of the model runs.

    Parameters
    ----------
    function
        The function of the module.
    name
        The variable that holds the result.
    op
        The Relax op, or the name of the called function.
    placement
        "npu" or "host".
    region
        The symbol of the region, for an op on the NPU.
    composite
        The label of the composite, for an op on the NPU.
    reason
        Why the op is on the host.
    bookkeeping
        Whether it computes no tensor: shapes, tuples, memory.
    """

    function: str
    name: str
    op: str
    placement: str
    region: str | None = None
    composite: str | None = None
    reason: str | None = None
    bookkeeping: bool = False

    @property
    def declined(self) -> bool:
        """Whether it is on the host because the driver declines it."""
        return self.reason is not None and DECLINES in self.reason


@dataclass(frozen=True)
class Report:
    """Where each op of a model runs, in the order of the model.

    Parameters
    ----------
    ops
        One entry per call of the canonicalized model.
    """

    ops: tuple[OpPlacement, ...]

    @property
    def offloaded(self) -> tuple[OpPlacement, ...]:
        """The ops on the NPU."""
        return tuple(op for op in self.ops if op.placement == "npu")

    @property
    def on_host(self) -> tuple[OpPlacement, ...]:
        """The ops on the host."""
        return tuple(op for op in self.ops if op.placement == "host")

    @property
    def regions(self) -> tuple[str, ...]:
        """The symbols of the regions, in the order of their first op."""
        return tuple(dict.fromkeys(op.region for op in self.offloaded if op.region is not None))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"backend": BACKEND, "ops": [asdict(op) for op in self.ops]}

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote.

        Parameters
        ----------
        text
            The JSON.

        Returns
        -------
        report
            The report.
        """
        return cls(tuple(OpPlacement(**op) for op in json.loads(text)["ops"]))

    def __str__(self) -> str:
        """Return a table with a line of totals."""
        header = ("op", "name", "placement", "composite, or why it is on the host")
        rows = [header]
        functions = list(dict.fromkeys(op.function for op in self.ops))
        for op in self.ops:
            name = op.name if len(functions) == 1 else f"{op.function}.{op.name}"
            why = op.composite if op.placement == "npu" else op.reason
            rows.append((op.op, name, op.region or op.placement, why or ""))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        lines.append(
            f"{len(self.offloaded)} of {len(self.ops)} ops on the NPU, regions: {len(self.regions)}"
        )
        return "\n".join(lines)


def offload_report(mod: Any) -> Report:
    """Return where each op of a partitioned module runs, and why.

    Parameters
    ----------
    mod
        A module that went through this backend's partitioning, before or after `RunCodegen`.

    Returns
    -------
    report
        One entry per op.

    Raises
    ------
    ValueError
        The module was not partitioned by this backend.
    """
    text = mod.attrs.get(ATTRIBUTE) if mod.attrs is not None else None
    if text is None:
        raise ValueError(
            f"The module has no report: partition it with partition_for_{BACKEND} first."
        )
    return Report.from_json(str(text))
