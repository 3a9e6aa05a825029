# SPDX-License-Identifier: Apache-2.0
"""The allowed errors of results, from the tolerances of the table.

The error of a sum grows with the square root of its number of terms. With rounding errors as
independent random variables of mean zero, the error of a sum of K terms stays below lambda *
sqrt(K) * u times the sum of the magnitudes of the terms, except with a probability that falls with
exp(-lambda^2 / 2) (N. J. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error
Analysis", SIAM J. Sci. Comput. 41(5), 2019). The kit sees results, not terms. For terms of one
sign, that sum is the result itself. For terms of random signs, partial sums grow like the typical
size of results, so the root mean square over the tensor is used instead, also for elements that are
small because terms cancel out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...backend.api import Array
from ...capability import Accumulated, Buckets, Elementwise, Tolerance

HOST_FACTOR = 16.0
"""The allowed multiple of the expected error for TVM's own kernels, which accumulate in the type of
the result, and approximate exp, tanh and erf."""


@dataclass(frozen=True)
class Step:
    """A call of an op on the way to a result.

    `count`: the number of terms per element of its result.
    `largest`: the largest finite magnitude in its results.
    """

    tolerance: Tolerance
    count: int
    dtypes: tuple[str, ...]
    largest: float


def allowance(tolerance: Tolerance, expected: Array, count: int = 1) -> Array:
    """Return the allowed error of each element."""
    if isinstance(tolerance, Buckets) and np.issubdtype(expected.dtype, np.integer):
        return np.full(expected.shape, float(tolerance.steps))
    if not np.issubdtype(expected.dtype, np.floating):
        return np.zeros(expected.shape)
    finite = np.where(np.isfinite(expected), np.abs(expected), 0)
    magnitude = finite.astype(np.float64)
    # The spacing of the largest number would reach to infinity.
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


def behind_mean(tolerance: Accumulated, data: Array | list[Array], epsilon: object) -> Accumulated:
    """Return the tolerance of an op that subtracts the mean of its data.

    The sum behind the mean is as large as the data, and so is its rounding error, which the
    division by the deviation then magnifies: plain sums in float32 are right, too.
    """
    exact = np.asarray(data, np.float64)
    deviation = np.sqrt(exact.var() + np.asarray(epsilon, np.float64))
    distance = float(np.abs(exact.mean()) / deviation) if deviation else 0.0
    return replace(tolerance, factor=tolerance.factor + distance)


def _typical(magnitude: Array) -> float:
    return float(np.sqrt(np.mean(magnitude**2))) if magnitude.size else 0.0


def allowance_behind(steps: Sequence[Step], expected: Array) -> Array:
    """Return the allowed error of each element after several calls.

    `steps`: the calls; the last one returns the result. Errors of the others are assumed to reach
    it unchanged, as in additions, and in activations with a slope of about 1 or less.
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
    """Return the allowed error of TVM's own kernels, on top of the NPU's."""
    if not isinstance(tolerance, (Elementwise, Accumulated)):
        return np.zeros(expected.shape)
    if not np.issubdtype(expected.dtype, np.floating):
        return np.zeros(expected.shape)
    number = count if isinstance(tolerance, Accumulated) else 1
    as_host = Accumulated("1", HOST_FACTOR, accumulator=str(expected.dtype))
    return allowance(as_host, expected, number)
