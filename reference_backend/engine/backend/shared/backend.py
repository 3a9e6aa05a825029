# SPDX-License-Identifier: Apache-2.0
"""The backend around the engine: its names, its ops, its chip.

The engine is the same in all backends; everything that differs comes through this module.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..table.capability import Op

PACKAGE: str = (__package__ or "").rpartition(".engine.")[0]
"""The backend's Python package, whose subpackage `engine` this is."""


def _part(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


BACKEND: str = _part("_backend").BACKEND
"""The backend's name in TVM."""
DISTRIBUTION: str = _part("_backend").DISTRIBUTION
"""The distribution's name."""
DEFAULTS: Mapping[str, object] = _part("_backend").DEFAULTS
"""The defaults of options chosen at rendering."""
NOT_SELECTED: Mapping[str, str] = _part("_backend").NOT_SELECTED
"""The catalogue's op for each Relax op that this backend does not have."""
CHAINS_NOT_SELECTED: Mapping[str, Any] = _part("_backend").CHAINS_NOT_SELECTED
"""The inputs and the chains, by op of the catalogue that this backend does not have."""
VENDOR = Path(str(_part("vendor").__file__)).parent
"""The folder of what is the vendor's."""


def vendor(module: str, name: str, default: object) -> Any:
    """Read a name from a module of the vendor's.

    No update writes to `vendor/`, so older backends lack names that later releases seed.

    `default`: the value if it is missing.

    The vendor's value, or the default.
    """
    try:
        found = _part(f"vendor.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"{PACKAGE}.vendor.{module}":
            raise
        return default
    except Exception as error:
        raise ValueError(f"vendor/{module}.py: {error}") from error
    return getattr(found, name, default)


def __getattr__(name: str) -> tuple[Op, ...]:
    """Import on demand what needs TVM."""
    if name == "OPS":
        ops: tuple[Op, ...] = _part("patterns").OPS
        return ops
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
