# SPDX-License-Identifier: Apache-2.0
"""The report of where each op runs, and why; kept in the module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from os import PathLike
from typing import TextIO

from ..ir.origins import Origin
from ..shared.aliases import JsonFields, JsonObject
from ..shared.backend import BACKEND
from ..shared.entry_points import entry_point
from ..shared.plain_data import plain
from ..shared.terminal import show
from ..table.reasons import CHIP_LIMIT, Code
from .region import Border as Border
from .region import RegionPlacement as RegionPlacement
from .report_text import blocks_of, count_of, text_of
from .verification import Verification

ATTRIBUTE = f"{BACKEND}.offload_report"
"""The attribute of an IRModule that holds the report as JSON."""

VERSION = 1
"""The version of the JSON; it grows with each change of the fields."""

_DECLINED = (Code.DECLINED.value, Code.DECLINED_REGION.value)


@dataclass(frozen=True)
class OpPlacement:
    """Where one op of the model runs, and in which type.

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
    origin
        The name that the author of the model gave it; none if the importer did not keep it.
    region
        The symbol of the region, for an op on the NPU.
    composite
        The label of the composite, for an op on the NPU.
    code
        The kind of the reason, one of `Code`, for an op on the host.
    reason
        Why the op is on the host: a sentence with the value and what is allowed.
    remedy
        What would move it to the NPU.
    bookkeeping
        Whether it computes no tensor: shapes, tuples, memory.
    macs
        Multiplications with addition; none if they cannot be told, for example of a kernel.
    bytes_read, bytes_written
        The bytes of its arguments, each once, and of its results, as the model has them; none if a
        size is not known. A symbol counts with its bound.
    runs_in
        The type that it computes in: "float32", "uint8 x int8", "int8, inside float32".
    asked
        The integers that the model asks for, where the op computes in a wider type.
    wider_code, wider, wider_remedy
        Why it does, one of `Code` and a sentence, and what would change it.
    reads
        The ops whose results it reads: their places in `Report.ops`.
    inputs
        The parameters of the function that it reads.
    arguments
        The types of the tensors that it reads, such as "constant float32[64, 3, 7, 7]".
    result
        The type of its result.
    attributes
        Its attributes as text, by name.
    left_by
        Of the drivers that were asked before, why each left it, by driver.
    """

    function: str
    name: str
    op: str
    placement: str
    origin: Origin | None = None
    region: str | None = None
    composite: str | None = None
    code: str | None = None
    reason: str | None = None
    remedy: str | None = None
    bookkeeping: bool = False
    macs: int | None = 0
    bytes_read: int | None = 0
    bytes_written: int | None = 0
    runs_in: str | None = None
    asked: str | None = None
    wider_code: str | None = None
    wider: str | None = None
    wider_remedy: str | None = None
    reads: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    result: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    left_by: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def declined(self) -> bool:
        """Whether it is on the host because the driver declines it."""
        return self.code in _DECLINED

    @property
    def narrowed(self) -> bool:
        """Whether the engine could compile it, and only a limit of the chip is in the way."""
        return CHIP_LIMIT in str(self.reason)

    @property
    def title(self) -> str:
        """The name by which a user knows it."""
        return str(self.origin or self.name)


@dataclass(frozen=True)
class Share:
    """An amount on the NPU, and of the whole model.

    Parameters
    ----------
    npu, total
        The amounts; what is not known counts as nothing.
    unknown_npu, unknown
        The number of ops whose amount is not known.
    """

    npu: int
    total: int
    unknown_npu: int = 0
    unknown: int = 0

    @property
    def percent(self) -> float:
        """The part on the NPU of what is known, in percent; 100 if that is nothing."""
        return 100.0 * self.npu / self.total if self.total else 100.0


@dataclass(frozen=True)
class Report:
    """Where each op of a model runs, in the order of the model.

    Parameters
    ----------
    ops
        One entry per call of the canonicalized model.
    regions
        The regions, in the order of their first op.
    symbols
        What the symbols in sizes count as in MACs and bytes: their bounds.
    verification
        How far the results are from the original's, if that was measured.
    states
        The bytes of each state, which a session keeps from one call to the next.
    shared
        The bytes of constants that several functions have, each once.
    """

    ops: tuple[OpPlacement, ...]
    regions: tuple[RegionPlacement, ...] = ()
    symbols: Mapping[str, int] = field(default_factory=dict, hash=False)
    verification: Verification | None = None
    states: Mapping[str, int] = field(default_factory=dict, hash=False)
    shared: int = 0

    @property
    def functions(self) -> tuple[Report, ...]:
        """A report of each function alone, in the order of the model."""
        names = dict.fromkeys(op.function for op in self.ops)
        return tuple(
            replace(
                self,
                ops=tuple(op for op in self.ops if op.function == name),
                regions=tuple(it for it in self.regions if it.function == name),
            )
            for name in names
        )

    @property
    def offloaded(self) -> tuple[OpPlacement, ...]:
        """The ops on the NPU."""
        return tuple(op for op in self.ops if op.placement == "npu")

    @property
    def on_host(self) -> tuple[OpPlacement, ...]:
        """The ops on the host."""
        return tuple(op for op in self.ops if op.placement == "host")

    @property
    def wider(self) -> tuple[OpPlacement, ...]:
        """The ops that compute in a wider type than the model asks for."""
        return tuple(op for op in self.ops if op.wider is not None)

    @property
    def totals(self) -> dict[str, Share]:
        """The ops, MACs and bytes (read and written) on the NPU and in all."""
        npu = self.offloaded

        def share(*amounts: str) -> Share:
            known, unknown = [], []
            for ops in (npu, self.ops):
                found = [(op, [getattr(op, name) for name in amounts]) for op in ops]
                known.append(sum(item or 0 for _, items in found for item in items))
                # Bookkeeping computes no tensor.
                unknown.append(sum(None in items and not op.bookkeeping for op, items in found))
            return Share(*known, *unknown)

        return {
            "ops": Share(len(npu), len(self.ops)),
            "macs": share("macs"),
            "bytes": share("bytes_read", "bytes_written"),
        }

    @property
    def summary(self) -> str:
        """The report in one line."""
        totals = self.totals
        text = f"{totals['ops'].npu} of {totals['ops'].total} ops on the NPU"
        if totals["macs"].total or totals["macs"].unknown:
            text += f", {_macs(totals['macs'])}"
        text += f", regions: {len(self.regions)}"
        for driver in dict.fromkeys(region.driver for region in self.regions if region.driver):
            own = [region.ops for region in self.regions if region.driver == driver]
            text += f", on '{driver}': {count_of(sum(own), 'op')}"
        if self.wider:
            text += f", wider than asked for: {len(self.wider)}"
        if warnings := sum(len(region.warnings) for region in self.regions):
            text += f", warnings of the driver: {warnings}"
        # Unlike other reasons, this one is a mistake of the backend's.
        if failed := [op for op in self.ops if op.code == Code.DRIVER_FAILED.value]:
            text += f", the driver failed for: {len(failed)}"
        return text

    def to_dict(self) -> JsonObject:
        """Return the report as plain data."""
        data: JsonObject = {
            "version": VERSION,
            "backend": BACKEND,
            "summary": self.summary,
            "totals": {
                name: {**vars(share), "percent": round(share.percent, 2)}
                for name, share in self.totals.items()
            },
            "symbols": dict(self.symbols),
            "states": dict(self.states),
            "shared": self.shared,
            "regions": [plain(region) for region in self.regions],
            "ops": [plain(op) for op in self.ops],
        }
        if self.verification is not None:
            data["verification"] = self.verification.to_dict()
        return data

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

        Raises
        ------
        ValueError
            It is not a report, or one of a newer version.
        """
        data = json.loads(text)
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise ValueError(
                f"The report has the version {version!r}; supported: {VERSION}. Write it again "
                f"with `offload_report(module).to_json()` of this release of {BACKEND}."
            )
        return cls(
            tuple(
                OpPlacement(
                    **{
                        **_known(OpPlacement, op),
                        "origin": _origin(op["origin"]),
                        "reads": tuple(op["reads"]),
                        "inputs": tuple(op.get("inputs", ())),
                        "arguments": tuple(op["arguments"]),
                    }
                )
                for op in data["ops"]
            ),
            tuple(
                RegionPlacement(
                    **{
                        **_known(RegionPlacement, region),
                        "composites": tuple(region["composites"]),
                        "inputs": tuple(
                            Border(**_known(Border, item)) for item in region["inputs"]
                        ),
                        "outputs": tuple(
                            Border(**_known(Border, item)) for item in region["outputs"]
                        ),
                        "warnings": tuple(region.get("warnings", ())),
                        "notes": tuple(region.get("notes", ())),
                    }
                )
                for region in data["regions"]
            ),
            data.get("symbols", {}),
            Verification.from_dict(data["verification"]) if data.get("verification") else None,
            data.get("states", {}),
            data.get("shared", 0),
        )

    def __str__(self) -> str:
        """Return a table of all ops, the regions, what would move ops, and the summary."""
        return text_of(self)

    def show(self, file: TextIO | None = None, *, all_ops: bool = False) -> None:
        """Print it: plain text, or on a terminal coloured tables that fit its width.

        Parameters
        ----------
        file
            Where to print; standard output if it is left out.
        all_ops
            Whether a terminal shows all ops of a large model, too. Plain text has all.
        """
        show(self, lambda: blocks_of(self, all_ops), file)

    def to_html(
        self,
        path: str | PathLike[str],
        *,
        title: str = "What runs where",
        profile: Mapping[str, object] | None = None,
        accuracy: Mapping[str, object] | None = None,
    ) -> None:
        """Write the report as one HTML page, which needs no network and no other file.

        Parameters
        ----------
        path
            The file; an existing one is replaced.
        title
            The title of the page, for example the name of the model.
        profile, accuracy
            The profile of a run, and `AccuracyReport.to_dict()`; each gets a tab.

        Raises
        ------
        ValueError
            The profile or the accuracy report is of another version, or the file cannot be written;
            nothing is left of it then.
        """
        entry_point("write_page")(path, self, title=title, profile=profile, accuracy=accuracy)

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write the report as an ONNX file for Netron, with a function for each region.

        Parameters
        ----------
        path
            The file; an existing one is replaced. It shows the model, and cannot be run.

        Raises
        ------
        ValueError
            The package `onnx` is missing, or the file cannot be written; nothing is left of it
            then.
        """
        from .onnx_report import write_onnx

        write_onnx(self, path)


def _origin(data: JsonFields | None) -> Origin | None:
    return Origin(**{**data, "others": tuple(data.get("others", ()))}) if data else None


def _macs(share: Share) -> str:
    """Return the part of the MACs on the NPU; without a percentage where some are not known."""
    if not share.unknown:
        return f"{share.percent:.1f} % of {share.total:,} MACs"
    ops = "1 op" if share.unknown == 1 else f"{share.unknown} ops"
    on_host = share.unknown - share.unknown_npu
    return (
        f"at least {share.npu:,} MACs on the NPU and {share.total - share.npu:,} on the host: "
        f"those of {ops} are not known ({on_host} on the host)"
    )


def _known(kind: type, data: JsonFields) -> JsonObject:
    """Return the fields of a dataclass, without those that only a later release has."""
    return {item.name: data[item.name] for item in fields(kind) if item.name in data}


def offload_report(mod: object) -> Report:
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
    attrs = getattr(mod, "attrs", None)
    text = attrs.get(ATTRIBUTE) if attrs is not None else None
    if text is None:
        raise ValueError(
            f"This {type(mod).__name__} has no report: give the module that "
            f"partition_for_{BACKEND} returned."
        )
    return _read(str(text))


@lru_cache(maxsize=4)
def _read(text: str) -> Report:
    return Report.from_json(text)
