# SPDX-License-Identifier: Apache-2.0
"""The backend around the engine: its names, its ops, its chip.

The engine is the same in all backends; everything that differs comes through this module.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capability import Op

PACKAGE: str = (__package__ or "").rpartition(".")[0]
"""The backend's Python package, whose subpackage `engine` this is."""


def _part(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


BACKEND: str = _part("_backend").BACKEND
"""The backend's name in TVM."""
DISTRIBUTION: str = _part("_backend").DISTRIBUTION
"""The distribution's name."""
DEFAULTS: Mapping[str, Any] = _part("_backend").DEFAULTS
"""The defaults of options chosen at rendering."""
CASES = Path(_part("_backend").__file__).parent / "cases.json"
"""The catalogue's cases of the selected ops."""
LEDGER = Path(_part("vendor").__file__).parent / "expected_failures.toml"
"""The vendor's accepted failures of the conformance kit."""


def vendor(module: str, name: str, default: Any) -> Any:
    """Read a name from a module of the vendor's.

    No update writes to `vendor/`, so older backends lack names that later releases seed.

    Parameters
    ----------
    module
        The module below `vendor/`.
    name
        The name to read.
    default
        The value if it is missing.

    Returns
    -------
    value
        The vendor's value, or the default.
    """
    try:
        found = _part(f"vendor.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"{PACKAGE}.vendor.{module}":
            raise
        return default
    return getattr(found, name, default)


def __getattr__(name: str) -> Any:
    """Import on demand what needs TVM."""
    if name == "OPS":
        ops: tuple[Op, ...] = _part("patterns").OPS
        return ops
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
