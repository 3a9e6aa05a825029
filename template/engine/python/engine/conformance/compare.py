# SPDX-License-Identifier: Apache-2.0
"""Says whether results are what they should be, given how exact the table says that an op is.

Everything is judged by one number, the largest ratio of an element's error to the error that is
allowed for it: up to 1 is right.

Where elements are summed, the error grows with the square root of their number. With rounding
errors as independent random variables of mean zero, the error of a sum of K terms stays below
lambda * sqrt(K) * u times the sum of the magnitudes of the terms, but for a probability that falls
with exp(-lambda^2 / 2) (N. J. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error
Analysis", SIAM J. Sci. Comput. 41(5), 2019). The kit sees results and no terms. For terms of one
sign, that sum is the result itself. For terms of random signs, partial sums grow as the result's
own typical size does, so that this size, the root of the mean square over the tensor, takes its
place; it also stands in for elements that are small because terms cancel out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..capability import Accumulated, Buckets, Elementwise, Tolerance

Array = npt.NDArray[Any]

HOST_FACTOR = 16.0
"""How many times the expected error TVM's own kernels are allowed, which sum in the type of the
result, and approximate exp, tanh and erf."""


@dataclass(frozen=True)
class Step:
    """A call of an op that a result has come through.

    Parameters
    ----------
    tolerance
        How exact the op is.
    count
        How many elements it sums for one element of its result.
    dtypes
        The element types of its results.
    largest
        The largest finite magnitude in its results.
    """

    tolerance: Tolerance
    count: int
    dtypes: tuple[str, ...]
    largest: float


@dataclass(frozen=True)
class Verdict:
    """How results compare; of the element that is worst in terms of what is allowed.

    Parameters
    ----------
    error, allowed
        How far it is off, and how far it may be.
    ratio
        The error as a multiple of what is allowed; infinite where nothing is.
    differing
        How many elements of all results do not have the exact value.
    total
        How many elements there are.
    text
        What is wrong, as a sentence; empty if all is right.
    """

    error: float = 0.0
    allowed: float = 0.0
    ratio: float = 0.0
    differing: int = 0
    total: int = 0
    text: str = ""

    def worse(self, other: Verdict) -> Verdict:
        """Return the worse of two verdicts, with the numbers of elements of both."""
        worst = other if (other.ratio, bool(other.text)) > (self.ratio, bool(self.text)) else self
        return Verdict(
            worst.error,
            worst.allowed,
            worst.ratio,
            self.differing + other.differing,
            self.total + other.total,
            worst.text,
        )


def allowance(tolerance: Tolerance, expected: Array, count: int = 1) -> Array:
    """Return the error that is allowed for each element.

    Parameters
    ----------
    tolerance
        How exact the op is.
    expected
        The right result, in the type that it should have.
    count
        How many elements are summed for one element of the result.

    Returns
    -------
    allowed
        An array of float64.
    """
    if isinstance(tolerance, Buckets) and np.issubdtype(expected.dtype, np.integer):
        return np.full(expected.shape, float(tolerance.steps))
    if not np.issubdtype(expected.dtype, np.floating):
        return np.zeros(expected.shape)
    finite = np.where(np.isfinite(expected), np.abs(expected), 0)
    magnitude = finite.astype(np.float64)
    # Next to the largest number, the distance is to infinity: it has no number of its own.
    spacing = np.spacing(np.minimum(finite, np.nextafter(np.finfo(finite.dtype).max, 0)))
    if isinstance(tolerance, Elementwise):
        allowed = tolerance.ulps * spacing.astype(np.float64)
        return np.asarray(allowed + tolerance.rtol * magnitude + tolerance.atol)
    if isinstance(tolerance, Accumulated):
        scale = np.maximum(magnitude, _typical(magnitude))
        inside = tolerance.accumulator if tolerance.accumulator != "output" else expected.dtype
        unit = float(np.finfo(inside).eps)
        growth = tolerance.factor * np.sqrt(max(count, 1)) * unit
        return np.asarray(spacing.astype(np.float64) + growth * scale)
    return np.zeros(expected.shape)


def _typical(magnitude: Array) -> float:
    return float(np.sqrt(np.mean(magnitude**2))) if magnitude.size else 0.0


def allowance_behind(steps: Sequence[Step], expected: Array) -> Array:
    """Return the error that is allowed for each element of what several calls compute.

    Parameters
    ----------
    steps
        The calls; the last one gives the result. Errors of the others are taken to reach it as
        they are, which holds for additions, and for activations whose slope is about 1 or less.
    expected
        The right result.

    Returns
    -------
    allowed
        An array of float64.
    """
    *before, last = steps
    allowed = allowance(last.tolerance, expected, last.count)
    if not np.issubdtype(expected.dtype, np.floating):
        return allowed
    for step in before:
        largest = np.asarray([step.largest], step.dtypes[0])
        allowed = allowed + allowance(step.tolerance, largest, step.count)
    return allowed


def allowance_of_host(tolerance: Tolerance, expected: Array, count: int = 1) -> Array:
    """Return how far TVM's own kernels may be off, beside what is allowed to the NPU.

    Parameters
    ----------
    tolerance
        How exact the op is.
    expected
        The right result.
    count
        How many elements are summed for one element of the result.

    Returns
    -------
    allowed
        An array of float64.
    """
    if not isinstance(tolerance, (Elementwise, Accumulated)):
        return np.zeros(expected.shape)
    if not np.issubdtype(expected.dtype, np.floating):
        return np.zeros(expected.shape)
    number = count if isinstance(tolerance, Accumulated) else 1
    as_host = Accumulated("1", HOST_FACTOR, accumulator=str(expected.dtype))
    return allowance(as_host, expected, number)


def judge(
    actual: Sequence[Array],
    expected: Sequence[Array],
    allowed: Sequence[Array],
    what: str = "expected",
) -> Verdict:
    """Compare results: their number, shapes, types and values.

    Parameters
    ----------
    actual
        What was computed.
    expected
        What is right. NaN equals NaN, and -0 equals 0.
    allowed
        The error that is allowed for each element.
    what
        What to call that which is right.

    Returns
    -------
    verdict
        Of all results.
    """
    if len(actual) != len(expected):
        text = f"there are {len(actual)} results, {what}: {len(expected)}"
        return Verdict(np.inf, 0.0, np.inf, text=text)
    verdict = Verdict()
    for index, (mine, right, limit) in enumerate(zip(actual, expected, allowed, strict=True)):
        name = f"result {index}" if len(expected) > 1 else "the result"
        verdict = verdict.worse(_judge(mine, right, limit, name, what))
    return verdict


def _judge(actual: Array, expected: Array, allowed: Array, name: str, what: str) -> Verdict:
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        text = f"{name} is {_type(actual)}, {what}: {_type(expected)}"
        return Verdict(np.inf, 0.0, np.inf, expected.size, expected.size, text)
    if not expected.size:
        return Verdict()
    same = actual == expected
    if np.issubdtype(expected.dtype, np.floating):
        same = same | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        # Whole numbers that float64 cannot tell apart are one off at least.
        error = np.maximum(error, 1) if not np.issubdtype(expected.dtype, np.floating) else error
        error = np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))
        ratio = np.where(same, 0.0, error / np.broadcast_to(allowed, error.shape))
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst, limit = float(ratio[at]), float(np.broadcast_to(allowed, error.shape)[at])
    text = ""
    if worst > 1:
        beyond = int(np.count_nonzero(ratio > 1))
        place = ", ".join(map(str, map(int, at)))
        text = (
            f"{name} is wrong in {beyond} of {expected.size} elements, most at [{place}]: "
            f"{actual[at]!s}, {what}: {expected[at]!s}; off by {float(error[at]):.3g}, "
            f"allowed: {limit:.3g}"
        )
    differing = int(expected.size - np.count_nonzero(same))
    return Verdict(float(error[at]), limit, worst, differing, expected.size, text)


def _type(array: Array) -> str:
    return f"{array.dtype} of shape [{', '.join(map(str, array.shape))}]"
