# SPDX-License-Identifier: Apache-2.0
"""The types that composites compute in, by their labels."""

from __future__ import annotations

from collections.abc import Sequence

from .capability import Op
from .patterns import TABLE, TO_REAL, WEIGHT_ONLY, is_quantized
from .reasons import Code, Reason

_INSIDE = {
    "elements": "computes with one real number for each element between dequantize and quantize",
    "reals": "computes with real numbers, in several steps, between dequantize and quantize",
}


def entry_of(label: str) -> Op | None:
    """Return the entry of the main op of a composite of quantized tensors.

    None if the composite moves or rescales integers only.
    """
    named = [op for op in TABLE.ops if label.startswith(f"quantized_{op.name}")]
    return max(named, key=lambda op: len(op.name), default=None)


def runs_in(label: str, integers: Sequence[str], dtype: str) -> str:
    """Return the type that a composite computes in.

    Such as "float32", "int8", "uint8 x int8 to float32" or "int8, inside float32".
    """
    if label.startswith(WEIGHT_ONLY) and integers:
        return f"{dtype} x {integers[-1]}"
    if not is_quantized(label):
        return dtype
    joined = " x ".join(integers) or "integers"
    if wider_inside(label) is not None:
        return f"{joined}, inside float32"
    return f"{joined} to {dtype}" if label.endswith(TO_REAL) else joined


def wider_inside(label: str) -> Reason | None:
    """Return why a composite of quantized tensors computes with real numbers, or none."""
    entry = entry_of(label)
    if entry is None or entry.inside not in _INSIDE:
        return None
    return Reason(Code.REAL_INSIDE, f"{entry.name} {_INSIDE[entry.inside]}")
