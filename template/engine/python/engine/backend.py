# SPDX-License-Identifier: Apache-2.0
"""What the rest of the package says about this backend: its names, its ops, its chip.

The engine is the same in all backends, and reads here what differs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capability import Op

PACKAGE: str = (__package__ or "").rpartition(".")[0]
"""The Python package of the backend, in which this is the package `engine`."""


def _part(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


BACKEND: str = _part("_backend").BACKEND
"""The name under which TVM knows this backend."""
DISTRIBUTION: str = _part("_backend").DISTRIBUTION
"""What pip calls it."""
DEFAULTS: Mapping[str, Any] = _part("_backend").DEFAULTS
"""The defaults of options that were chosen when the backend was made."""
CASES = Path(_part("_backend").__file__).parent / "cases.json"
"""The cases of the selected ops, as the catalogue has them."""
LEDGER = Path(_part("vendor").__file__).parent / "expected_failures.toml"
"""The failures of the conformance kit that the vendor accepts."""


def vendor(module: str) -> Any:
    """Import a module of the vendor's.

    Parameters
    ----------
    module
        Its name below `vendor/`.

    Returns
    -------
    module
        The module.
    """
    return _part(f"vendor.{module}")


def __getattr__(name: str) -> Any:
    """Read what needs TVM only when it is asked for."""
    if name == "OPS":
        ops: tuple[Op, ...] = _part("capabilities").OPS
        return ops
    if name == "declined_by_sdk":
        decline: Callable[[Op, Any], str | None] = _part("vendor.capabilities").declined_by_sdk
        return decline
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
