# SPDX-License-Identifier: Apache-2.0
"""Heads of queries that share heads of keys and values, which no product repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...shared.messages import FIX_SIZES
from .node import Node


class Groups:
    """Products of queries with keys and values of which each head serves a group of queries.

    The queries of a group are the rows of one product: of [batch, heads, steps, size],
    [batch, shared heads, group * steps, size].

    `heads`, `shared`: how many heads queries, and keys and values have.
    """

    def __init__(self, node: Node, heads: int, shared: int) -> None:
        if heads % shared:
            node.refuse(f"kv_num_heads={shared} does not divide the {heads} of q")
        self._node, self._heads, self._shared = node, heads, shared
        self._group = heads // shared

    def joined(self, q: str, size: int | None) -> str:
        """Return queries with a group in the rows of a head."""
        if self._group == 1:
            return q
        return self._node.reshape(q, (0, self._shared, -1, self._known(size, q)))

    def bias(self, bias: str, sizes: Sequence[int | None] | None) -> str:
        """Return for the scores of a group what broadcasts against [batch, heads, steps, keys].

        `sizes`: its sizes, of which that of heads must be known.
        """
        node = self._node
        if self._group == 1:
            return bias
        if sizes is None or (len(sizes) > 2 and sizes[-3] is None):
            node.refuse(f"the sizes of {bias!r} are open, and queries share heads; {FIX_SIZES}")
        if len(sizes) > 2 and sizes[-3] != 1:
            before = [0] * (len(sizes) - 3)
            return node.reshape(bias, [*before, self._shared, -1, self._known(sizes[-1], bias)])
        if len(sizes) < 2 or sizes[-2] == 1:
            return bias
        array = node.constant(bias)
        if array is not None:
            return node.literal(np.concatenate([array] * self._group, -2))
        return node.write("Concat", *[bias] * self._group, axis=len(sizes) - 2)

    def split(self, y: str, size: int | None, output: str = "") -> str:
        """Return the rows of groups as [batch, heads, steps, size]."""
        if self._group == 1:
            return self._node.write("Identity", y, output=output) if output else y
        return self._node.reshape(y, (0, self._heads, -1, self._known(size, y)), output)

    def _known(self, size: int | None, name: str) -> int:
        if size is None:
            self._node.refuse(
                f"the size of {name!r} along its last axis is open, and queries share heads; "
                f"{FIX_SIZES}"
            )
        return size


def scaled(node: Node, q: str, k: str, scale: float, dtype: str) -> str:
    """Multiply queries with keys and with a scale."""
    turned = node.transpose(k, (0, 1, 3, 2))
    if dtype == "float32" or scale <= 0:
        return node.write("Mul", node.write("MatMul", q, turned), node.literal(scale, dtype))
    # The product alone might leave the range of float16.
    root = node.literal(math.sqrt(scale), dtype)
    return node.write("MatMul", node.write("Mul", q, root), node.write("Mul", turned, root))


def capped(node: Node, scores: str, limit: float, dtype: str) -> str:
    """Press scores into the range of a softcap; 0 is none."""
    if not limit:
        return scores
    cap = node.literal(limit, dtype)
    return node.write("Mul", node.write("Tanh", node.write("Div", scores, cap)), cap)
