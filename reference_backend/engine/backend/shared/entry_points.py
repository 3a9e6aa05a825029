# SPDX-License-Identifier: Apache-2.0
"""What a vendor works with, found by name: customers' programs run without it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from .backend import PACKAGE

ENTRY_POINTS = {
    "KIT": "commands.conforming",
    "PICTURES": "pictures.pictures",
    "Recorder": "calibration",
    "accuracy_of": "commands.quantizing",
    "calibrated": "commands.quantizing",
    "check_first_op": "commands.first_op",
    "quantized": "commands.quantizing",
    "read_vendor_cases": "conformance.case_files",
    "run_compare": "commands.comparing",
    "run_drift": "drift.drifting",
    "run_tune": "isa_emulator.tune",
    "times_of": "isa_emulator.times",
    "write_page": "page",
}
"""The module of each name, in the workbench."""

_WORKBENCH = f"{PACKAGE}.engine.workbench"


class WithoutWorkbenchError(ValueError):
    """A customer's wheel may leave out what was asked for."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs the workbench, which this installation of {PACKAGE} leaves out; install "
            "a wheel of the backend that has it."
        )


def has_workbench() -> bool:
    """Whether the workbench is installed; a customer's wheel may leave it out."""
    return importlib.util.find_spec(_WORKBENCH) is not None


def entry_point(name: str) -> Any:
    """Return a function or a table of the workbench."""
    if not has_workbench():
        raise WithoutWorkbenchError("This")
    return getattr(importlib.import_module(f"{_WORKBENCH}.{ENTRY_POINTS[name]}"), name)
