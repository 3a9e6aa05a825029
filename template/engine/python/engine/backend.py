# SPDX-License-Identifier: Apache-2.0
"""The backend around the engine: its names, its ops, its chip.

The engine is the same in all backends; everything that differs comes through this module.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .aliases import JsonObject

if TYPE_CHECKING:
    from .capability import Op

PACKAGE: str = (__package__ or "").rpartition(".")[0]
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
CASES = Path(__file__).parent / "conformance" / "op_cases"
"""The catalogue's cases of all ops, a file for each family."""
_VENDOR = Path(str(_part("vendor").__file__)).parent
VENDOR_CASES = _VENDOR / "cases.json"
"""Cases of the vendor's own ops, in the same form; optional."""
LEDGER = _VENDOR / "expected_failures.toml"
"""The vendor's accepted failures of the conformance kit."""

_DEFAULT: dict[str, object] = {"benchmarks": [], "results": None, "refused": []}
"""The keys that cases may leave out."""


def read_cases() -> dict[str, dict[str, object]]:
    """Read the cases of the conformance kit.

    Returns
    -------
    cases
        By op: the formula in NumPy, benchmarks, the number of results, cases, and refused cases.

    Raises
    ------
    ValueError
        The vendor's file is wrong, see `read_vendor_cases`.
    """
    catalogue: dict[str, JsonObject] = {}
    for path in CASES.glob("*.json"):
        catalogue |= json.loads(path.read_text(encoding="utf-8"))
    selected = {op.name for op in _part("patterns").OPS}

    def written(op: str, key: str) -> list[dict[str, object]]:
        """Return cases; the name of another op stands for those of that one."""
        found = catalogue[op].get(key, [])
        return written(found, key) if isinstance(found, str) else found

    def entry(op: str) -> dict[str, object]:
        refused = [one for one in written(op, "refused") if one.get("without") not in selected]
        return {**_DEFAULT, **catalogue[op], "cases": written(op, "cases"), "refused": refused}

    return {op.name: entry(op.name) for op in _part("patterns").OPS} | read_vendor_cases()


def read_vendor_cases() -> dict[str, dict[str, object]]:
    """Read the cases of the vendor's own ops.

    Returns
    -------
    cases
        As those of `read_cases`; none without the file.

    Raises
    ------
    ValueError
        The file is not a JSON object of entries with a formula and cases.
    """
    if not VENDOR_CASES.is_file():
        return {}
    where = "vendor/cases.json"
    try:
        own = json.loads(VENDOR_CASES.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    entries = own.values() if isinstance(own, dict) else [None]
    if not all(isinstance(entry, dict) and {"numpy", "cases"} <= entry.keys() for entry in entries):
        raise ValueError(
            f"{where} must give for each op an object with 'numpy', the formula, and 'cases'; "
            "docs/adding-an-op.md of npu-scaffold has an example."
        )
    return {op: _DEFAULT | entry for op, entry in own.items()}


def vendor(module: str, name: str, default: object) -> Any:
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
    except Exception as error:
        raise ValueError(f"vendor/{module}.py: {error}") from error
    return getattr(found, name, default)


def __getattr__(name: str) -> tuple[Op, ...]:
    """Import on demand what needs TVM."""
    if name == "OPS":
        ops: tuple[Op, ...] = _part("patterns").OPS
        return ops
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
