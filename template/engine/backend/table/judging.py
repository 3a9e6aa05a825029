# SPDX-License-Identifier: Apache-2.0
"""Compares results within allowed errors.

The verdict is one number, the largest ratio of an element's error to its allowed error: up to 1
passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..shared.aliases import Array


@dataclass(frozen=True)
class Verdict:
    """The judgement of results, for the worst element.

    `error`, `allowed`: its error, and its allowed error.
    `ratio`: the error as a multiple of the allowed one; infinite if that is zero.
    `differing`: the number of elements without the exact value.
    `total`: the number of elements.
    `text`: what is wrong, as a sentence; empty if all is right.
    """

    error: float = 0.0
    allowed: float = 0.0
    ratio: float = 0.0
    differing: int = 0
    total: int = 0
    text: str = ""

    def worse(self, other: Verdict) -> Verdict:
        """Return the worse of two verdicts, with their element counts added."""
        worst = other if (other.ratio, bool(other.text)) > (self.ratio, bool(self.text)) else self
        return Verdict(
            worst.error,
            worst.allowed,
            worst.ratio,
            self.differing + other.differing,
            self.total + other.total,
            worst.text,
        )


def judge(
    actual: Sequence[Array],
    expected: Sequence[Array],
    allowed: Sequence[Array],
    what: str = "expected",
    shares: Sequence[float] = (),
) -> Verdict:
    """Compare results: their number, shapes, types and values.

    `shares`: which share of the elements of each may differ at all, or one element if it is less;
    none: all of them.
    """
    if len(actual) != len(expected):
        text = f"there are {len(actual)} results, {what}: {len(expected)}"
        return Verdict(np.inf, 0.0, np.inf, text=text)
    verdict = Verdict()
    for index, (mine, right, limit) in enumerate(zip(actual, expected, allowed, strict=True)):
        name = f"result {index}" if len(expected) > 1 else "the result"
        judged = _judge(mine, right, limit, name, what)
        most = int(shares[index] * judged.total) if shares else judged.total
        if shares and shares[index] > 0:
            most = max(1, most)
        if judged.ratio <= 1 and judged.differing > most:
            text = (
                f"{name} differs in {judged.differing} of {judged.total} elements, {what}; "
                f"allowed: {most}"
            )
            ratio = judged.differing / most if most else np.inf
            judged = replace(judged, ratio=ratio, text=text)
        verdict = verdict.worse(judged)
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
        # Different integers may be equal in float64: their error is at least one.
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
