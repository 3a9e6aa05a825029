# SPDX-License-Identifier: Apache-2.0
"""The compiler as the tool of the driver's build half; see `sdk.npu_region.tool`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tvm

from ...sdk.npu_region.region import Declined, Node, Region
from ...sdk.npu_region.tool import run_tool
from ...shared.backend import VENDOR, vendor
from ...shared.entry_points import entry_point, has_workbench
from ..loading import load
from ..machine import Machine
from ..program import Program, write
from ..tuning import FILE, best_of, read, table_of
from . import nodes
from .compile import Settings, compile_region
from .scheduling import RULES


def settings(machine: Machine) -> Settings:
    """Return how the vendor changes the compiler: what vendor/ has."""
    records = best_of(read(VENDOR / FILE, table_of(machine)))
    return Settings(
        (*vendor("schedules", "RULES", ()), *RULES),
        vendor("tir_passes", "BEFORE", ()),
        vendor("tir_passes", "AFTER", ()),
        vendor("tir_passes", "DISABLED", ()),
        {kernel: record.sizes for kernel, record in records.items()},
    )


def compiled(region: Region) -> bytes:
    """Return the program of a region, as the emulator and the chip read it.

    Raises
    ------
    Declined
        The machine does not execute an op of it.
    """
    machine = load()
    program = compile_region(region, machine, settings(machine)).program
    data = write(machine, program)
    _tell(region, program, data)
    return data


def _tell(region: Region, program: Program, data: bytes) -> None:
    """Tell users what runs as scalar code, and how long that takes."""
    times = entry_point("times_of")(program, data) if has_workbench() else None
    slow = [(it.label, it.source) for it in program.lines if it.source and it.source.reason]
    for label, source in dict.fromkeys(slow):
        text = f"runs as scalar code, which is slow: {source.text}, since {source.reason}"
        if times is not None:
            cycles = times.nests[label, source]
            text += f"; {cycles:,} cycles, {100 * cycles / times.cycles:.1f} % of the program's"
        region.warn(f"{label}: {text}" if label else text)
    if times is not None:
        share = 100 * times.scalar / times.cycles
        batch = f" for a batch of {region.bound}" if region.bound else ""
        text = f"scalar code: {share:.1f} % of {times.cycles:,} cycles{batch}, by the emulator"
        region.note(text)
    elif slow:
        region.note("scalar code: its share of the cycles is not known; 'profile' measures it")


def reason(node: Node, region: Region) -> str | None:
    """Return why there are no loops for a node, or nothing; what has loops has instructions."""
    try:
        return nodes.reason(node, region)
    except Declined as declined:
        return str(declined)
    except Exception as error:
        # One node that fails does not end the answers about all others.
        return f"the compiler fails with {type(error).__name__}: {error}"


def main() -> int:
    """Do what the arguments of this process ask for."""
    machine = load()
    about = f"{machine.name} {_digest()}, TVM {tvm.__version__}"
    return run_tool(about, reason, compiled)


def _digest() -> str:
    """Return a digest of what programs depend on: the compiler, and what the vendor has of it."""
    found = hashlib.sha256()
    own = Path(__file__).parents[1]
    of_vendor = sorted((*VENDOR.glob("*.py"), *VENDOR.glob(FILE)))
    for path in (*sorted(own.rglob("*.py")), *of_vendor):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
