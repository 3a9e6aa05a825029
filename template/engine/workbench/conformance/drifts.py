# SPDX-License-Identifier: Apache-2.0
"""How far a chip's integers may be from the reference's, after several ops.

A chip without an exact rule is some steps off in each op, as its table says, and later ones enlarge
or reduce that: a drift is carried through a graph, op by op. What is most possible grows with the
sum of the factors of a product, and is soon more than any chip does. So rounding errors are taken
for independent, as in `allowances`: their squares add up, and four times the root is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...backend.api import Array
from ...chip import Requantize
from .model import Tensor

_DEVIATIONS = 4
"""How many standard deviations are allowed, as for sums of real numbers."""


@dataclass(frozen=True)
class Drift:
    """How far integers may be from the reference's, in steps: at most, and its mean square."""

    most: float = 0.0
    square: float = 0.0

    @property
    def allowed(self) -> float:
        """The allowed error of each element."""
        return min(self.most, math.ceil(_DEVIATIONS * math.sqrt(self.square)))

    def __add__(self, other: Drift) -> Drift:
        """Return the drift of a sum."""
        return Drift(self.most + other.most, self.square + other.square)

    def times(self, factor: float) -> Drift:
        """Return it in steps of another size."""
        return Drift(self.most * factor, self.square * factor**2)

    def rounded(self, steps: int) -> Drift:
        """Return the drift of integers that are rounded to, and then some steps off.

        Two numbers may be rounded to different integers even if they are close.
        """
        square = self.square + min(math.sqrt(self.square), 0.25)
        return Drift(math.ceil(self.most) + steps, square + steps**2)


NO_DRIFT = Drift()


@dataclass(frozen=True, eq=False)
class Integers:
    """A quantized tensor of a graph: integers, and the real numbers that they represent."""

    tensor: Tensor
    scale: float
    zero: int
    drift: Drift = NO_DRIFT

    @property
    def steps(self) -> Array:
        """The integers less their zero point, in float64."""
        return self.tensor.values[1].astype(np.float64) - self.zero

    @property
    def real(self) -> Array:
        """The real numbers, in float64."""
        return self.steps * self.scale


def steps_inside(rule: Requantize) -> int:
    """Return how many steps an op may be off that computes with real numbers inside.

    With an exact rule of integers, none: graphs have no numbers that are close to a tie.
    """
    return max(1, rule.steps) if rule.is_float32 or rule.steps else 0


def of_product(
    sums: Callable[[Array, Array], Array],
    operands: tuple[Array, Array],
    drifts: tuple[Drift, Drift],
    factors: Array,
) -> Drift:
    """Return the drift of sums of products, before they are rounded.

    `sums`: computes them of two operands, in steps.
    `factors`: what turns a sum into steps of the result.
    """
    if not any(drift.most for drift in drifts):
        return NO_DRIFT

    def growth(values: Sequence[Array], by: Sequence[float], factors: Array) -> float:
        grown = [value + more for value, more in zip(values, by, strict=True)]
        return float(((sums(grown[0], grown[1]) - sums(values[0], values[1])) * factors).max())

    most = growth([*map(np.abs, operands)], [drift.most for drift in drifts], factors)
    squares = [drift.square for drift in drifts]
    return Drift(most, growth([*map(np.square, operands)], squares, np.square(factors)))


def of_function(
    compute: Callable[[list[Array]], Array], operands: Sequence[Integers], step: float
) -> Drift:
    """Return the drift of a function of single elements, before it is rounded to steps."""
    reals = [operand.real for operand in operands]
    exact, total = compute(reals), NO_DRIFT
    for index, operand in enumerate(operands):
        if not operand.drift.most:
            continue
        far = 0.0
        for sign in (-1, 1):
            moved = [*reals]
            moved[index] = reals[index] + sign * operand.drift.most * operand.scale
            change = np.abs(compute(moved) - exact)
            far = max(far, float(change[np.isfinite(change)].max(initial=0)))
        total += operand.drift.times(far / step / operand.drift.most)
    return total
