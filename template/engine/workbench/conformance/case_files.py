# SPDX-License-Identifier: Apache-2.0
"""The files of cases: those of the catalogue's ops, and those of the vendor's own."""

from __future__ import annotations

import json
from pathlib import Path

from ...backend.api import TABLE, VENDOR, JsonObject

CASES = Path(__file__).with_name("op_cases")
"""The catalogue's cases of all ops, a file for each family."""
VENDOR_CASES = VENDOR / "cases.json"
"""Cases of the vendor's own ops, in the same form; optional."""

_DEFAULT: dict[str, object] = {"benchmarks": [], "results": None, "refused": []}
"""The keys that cases may leave out."""


def read_cases() -> dict[str, dict[str, object]]:
    """Read the cases of the conformance kit.

    By op: the formula in NumPy, benchmarks, the number of results, cases, and refused cases.
    """
    catalogue: dict[str, JsonObject] = {}
    for path in CASES.glob("*.json"):
        catalogue |= json.loads(path.read_text(encoding="utf-8"))

    def written(op: str, key: str) -> list[dict[str, object]]:
        """Return cases; the name of another op stands for those of that one."""
        found = catalogue[op].get(key, [])
        return written(found, key) if isinstance(found, str) else found

    def entry(op: str) -> dict[str, object]:
        refused = [
            one for one in written(op, "refused") if one.get("without") not in TABLE.selected
        ]
        return {**_DEFAULT, **catalogue[op], "cases": written(op, "cases"), "refused": refused}

    return {name: entry(name) for name in TABLE.selected} | read_vendor_cases()


def read_vendor_cases() -> dict[str, dict[str, object]]:
    """Read the cases of the vendor's own ops.

    As those of `read_cases`; none without the file.
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
