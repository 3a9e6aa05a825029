# SPDX-License-Identifier: Apache-2.0
"""Dataclasses as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain(item: object) -> Any:
    """Return dataclasses as plain data, as JSON has it; `asdict` is slow: it copies everything."""
    if isinstance(item, (tuple, list)):
        return [plain(one) for one in item]
    if isinstance(item, Mapping):
        return {name: plain(value) for name, value in item.items()}
    fields = getattr(item, "__dict__", None)
    return item if fields is None else plain(fields)
