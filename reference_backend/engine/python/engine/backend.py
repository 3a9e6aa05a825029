# SPDX-License-Identifier: Apache-2.0
"""What the rest of the package says about this backend: its names, its ops, its chip.

The engine is the same in all backends, and reads here what differs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
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


def vendor(module: str, name: str, default: Any) -> Any:
    """Read what a module of the vendor's says.

    No update writes to `vendor/`, so that an older backend lacks what later releases seed.

    Parameters
    ----------
    module
        The module below `vendor/`.
    name
        What is asked of it.
    default
        What holds where it is not there.

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
    """Read what needs TVM only when it is asked for."""
    if name == "OPS":
        ops: tuple[Op, ...] = _part("patterns").OPS
        return ops
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
