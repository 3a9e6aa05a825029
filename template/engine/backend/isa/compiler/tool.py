# SPDX-License-Identifier: Apache-2.0
"""The compiler as the tool of the driver's build half; see `sdk.npu_region.tool`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tvm

from ...sdk.npu_region.region import Declined, Node, Region
from ...sdk.npu_region.tool import run_tool
from ...shared.backend import VENDOR, vendor
from ..loading import load
from ..program import write
from . import nodes
from .compile import Settings, compile_region
from .scheduling import RULES


def settings() -> Settings:
    """Return how the vendor changes the compiler: what vendor/ has."""
    return Settings(
        (*vendor("schedules", "RULES", ()), *RULES),
        vendor("tir_passes", "BEFORE", ()),
        vendor("tir_passes", "AFTER", ()),
        vendor("tir_passes", "DISABLED", ()),
    )


def compiled(region: Region) -> bytes:
    """Return the program of a region, as the emulator and the chip read it.

    Raises
    ------
    Declined
        The machine does not execute an op of it.
    """
    machine = load()
    made = compile_region(region, machine, settings())
    for label, nest in made.scalar:
        region.warn(f"runs as scalar code, which is slow: {nest.text[:300]}, since {nest.reason}")
        if label:
            region.warnings[-1] = f"{label}: {region.warnings[-1]}"
    return write(machine, made.program)


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
    for path in (*sorted(own.rglob("*.py")), *sorted(VENDOR.glob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
