# SPDX-License-Identifier: Apache-2.0
"""What a copy of a region takes from a tensor, and where it puts it."""

from __future__ import annotations

from dataclasses import dataclass

from .region import Node, Value


@dataclass(frozen=True)
class Box:
    """The elements that a copy moves.

    `begin`, `steps` and `sizes` are by dimension of the data. Then dimensions are taken in this
    `order`, and `before` and `after` elements of the result are not written.
    """

    begin: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, node: Node, data: Value, out: Value) -> Box:
        """Return what a copy moves from its data to its result; `out_step` is 1."""
        given = node.attributes
        order, before = tuple(given["permutation"]), tuple(given["out_offset"])
        counts = []
        for i, source in enumerate(order):
            start, step = given["data_offset"][source], given["data_step"][source]
            left = data.shape[source] - start + step - 1 if step > 0 else start - step
            counts.append(min(left // abs(step), out.shape[i] - before[i]))
        after = (
            size - start - count
            for size, start, count in zip(out.shape, before, counts, strict=True)
        )
        return cls(
            begin=tuple(given["data_offset"]),
            steps=tuple(given["data_step"]),
            sizes=tuple(counts[order.index(i)] for i in range(len(order))),
            order=order,
            before=before,
            after=tuple(after),
        )
