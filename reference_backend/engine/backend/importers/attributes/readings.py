# SPDX-License-Identifier: Apache-2.0
"""What importers read of each operator."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TypedDict

FRONT_DOORS = ("onnx", "torch", "tflite")
"""Each with the name of the package that has its operators."""


class _Always(TypedDict):
    reads: list[str]
    ignores: list[str]


class Row(_Always, total=False):
    """What is read of an operator.

    Attributes, arguments and fields of options have their names. Inputs by position are
    `input NAME`, or `input 2` and `inputs from 3` where they have no names. A rule of ours may also
    hand all on to operators that it writes instead, and whose own rows say what is read of them.
    """

    hands_on: list[str]


Rows = dict[str, Row]
"""By operator; in ONNX with the first version that has the row, such as `Resize-18`."""

Readings = dict[str, Rows]
"""Rows of TVM's importer and of rules of ours, which come first."""


@functools.cache
def load(front_door: str) -> Readings:
    """Read the committed readings of a front door."""
    path = Path(__file__).with_name(f"{front_door}.json")
    readings: Readings = json.loads(path.read_text(encoding="utf-8"))
    return readings
