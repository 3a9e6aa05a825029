# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from the exact one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .formulas import count


@dataclass(frozen=True)
class Exact:
    """The result has the exact value. Integers and booleans always do, if not in buckets."""


@dataclass(frozen=True)
class Elementwise:
    """Each element of the result is about as exact as its type allows.

    The allowed errors add up.

    Parameters
    ----------
    ulps
        Units in the last place of the result.
    rtol, atol
        The relative and absolute errors allowed in addition.
    """

    ulps: float = 2.0
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Accumulated:
    """Each element is a sum, whose error grows with the square root of the number of terms.

    Parameters
    ----------
    count
        The number of terms: an expression as in `Op.operations`.
    factor
        The allowed multiple of the expected error.
    accumulator
        The element type in which the sum is kept; the result is rounded once more. "output" is the
        type of the result.
    shifted
        An input from which the op subtracts its mean, if any: the factor grows by the distance of
        that mean from zero, in standard deviations.
    """

    count: str
    factor: float = 4.0
    accumulator: str = "float32"
    shifted: str = ""

    def terms(self, names: Mapping[str, object]) -> int:
        """Return the number of terms of a call, from its shapes and attributes."""
        return count(self.count, names)


@dataclass(frozen=True)
class Buckets:
    """Each element, of a quantized type, is at most this many steps off.

    Parameters
    ----------
    steps
        How many.
    share
        In how many elements at most, as a share of all, or in one; the others are exact.
    """

    steps: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.steps < 0:
            raise ValueError(f"Buckets: steps is {self.steps}; it cannot be negative.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"Buckets: share is {self.share}; supported: 0 to 1.")


Tolerance = Exact | Elementwise | Accumulated | Buckets

EXACT = Exact()
"""What an op has that says nothing else."""
