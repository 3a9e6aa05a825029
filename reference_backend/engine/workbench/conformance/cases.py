# SPDX-License-Identifier: Apache-2.0
"""Each op's NumPy formula and cases, from npu-scaffold's catalogue and from the vendor."""

from __future__ import annotations

from ...backend.api import TABLE, JsonObject
from .case_files import read_cases


def dtypes_of(op: str, case: JsonObject) -> tuple[str, ...]:
    """Return this chip's element types of a case's first input, the default type first."""
    entry = TABLE.get(op)
    known = entry.inputs[0].dtypes if entry is not None and entry.inputs else ()
    given = case.get("dtypes", known or ("float32",))
    default = known[0] if known else "float32"
    return tuple(sorted((d for d in given if not known or d in known), key=lambda d: d != default))


def is_list(entry: object) -> bool:
    """Whether an input of a case is a list of tensors."""
    return isinstance(entry, list) and any(isinstance(item, (list, dict)) for item in entry)


def names_dtypes(case: JsonObject) -> bool:
    """Whether inputs of a case name their element types, so that it exists in no other types."""
    inputs = case["inputs"].values()
    given = [spec for item in inputs for spec in (item if is_list(item) else [item])]
    return any(isinstance(spec, dict) and "dtype" in spec for spec in given)


def _on_this_chip(op: str, entry: JsonObject) -> JsonObject:
    return {
        **entry,
        "cases": [case for case in entry["cases"] if names_dtypes(case) or dtypes_of(op, case)],
    }


OPS: dict[str, JsonObject] = {op: _on_this_chip(op, entry) for op, entry in read_cases().items()}
"""By op: the formula in NumPy, benchmarks, the number of results, cases in element types of this
chip, and refused cases."""


def symbol_of(name: str) -> str:
    """Return a case's name as one that a function may have."""
    return "".join(char if char.isalnum() else "_" for char in name)
