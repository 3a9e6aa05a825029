# SPDX-License-Identifier: Apache-2.0
"""Caches of keys and values: what is new takes its places among what is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...shared.messages import FIX_SIZES
from .node import Node, Rule


class Cache(NamedTuple):
    """A cache, and what is new of it.

    `rank`, `axis`: how many axes it has, and which one is that of its steps; the first is a batch.
    `batch`, `length`, `steps`: sizes: of the batch, where None is open; of the cache; of what is
    new.
    """

    rank: int
    axis: int
    batch: int | None
    length: int
    steps: int


def appended(node: Node, past: str, new: str, output: str = "", axis: int = 2) -> str:
    """Put new steps behind those of a past, which may be none."""
    if past:
        return node.write("Concat", past, new, output=output, axis=axis)
    return node.write("Identity", new, output=output) if output else new


class Places:
    """The places of new steps in a cache, which only the run knows.

    `first`: the place of the first one in each sequence, a vector of `dtype`.
    `wraps`: whether what goes beyond the end begins again at the start.
    """

    def __init__(
        self, node: Node, cache: Cache, first: str, dtype: str, wraps: bool = False
    ) -> None:
        self._node, self._cache = node, cache
        places = np.arange(cache.length)
        if cache.steps == 1:
            shape = [1] * cache.rank
            shape[cache.axis] = -1
            column = node.literal(places.reshape(shape), dtype)
            first = node.reshape(first, (-1, *[1] * (cache.rank - 1)))
            self._is_new = node.write("Equal", column, first)
            return
        if cache.batch is None:
            node.refuse(f"several steps go into a cache, and the batch is open; {FIX_SIZES}")
        self._indices = [
            self._sources(start, node.literal(places, dtype), dtype, wraps)
            for start in node.split(node.reshape(first, (-1,)), 0, cache.batch)
        ]

    def _sources(self, first: str, places: str, dtype: str, wraps: bool) -> str:
        """Return for each place of a cache where its step is, if new ones follow the cache."""
        node = self._node
        length = node.literal(self._cache.length, dtype)
        ahead = node.write("Sub", places, first)
        zero = node.literal(0, dtype)
        if wraps:
            around = node.write("Add", ahead, length)
            ahead = node.write("Where", node.write("Less", ahead, zero), around, ahead)
        begun = node.write("GreaterOrEqual", ahead, zero)
        ended = node.write("Less", ahead, node.literal(self._cache.steps, dtype))
        is_new = node.write("And", begun, ended)
        return node.write("Where", is_new, node.write("Add", ahead, length), places)

    def stored(self, cache: str, new: str, output: str = "") -> str:
        """Put new steps into a cache; return it."""
        node, axis = self._node, self._cache.axis
        if self._cache.steps == 1:
            return node.write("Where", self._is_new, new, cache, output=output)
        both = node.split(appended(node, cache, new, axis=axis), 0, len(self._indices))
        if len(both) == 1:
            return node.write("Gather", both[0], self._indices[0], output=output, axis=axis)
        parts = [
            node.write("Gather", part, indices, axis=axis)
            for part, indices in zip(both, self._indices, strict=True)
        ]
        return node.write("Concat", *parts, output=output, axis=0)


def _tensor_scatter(node: Node) -> None:
    cache, update, first = node.inputs(3)
    mode = node.text("mode", "linear")
    if mode not in ("linear", "circular"):
        node.refuse(f"mode={mode!r}; supported are linear and circular")
    sizes, new = node.sizes(cache), node.sizes(update)
    axis = node.attributes.get("axis", -2)
    axis += len(sizes or ()) if axis < 0 else 0
    length = sizes[axis] if sizes else None
    steps = new[axis] if new else None
    if not sizes or length is None or steps is None:
        node.refuse(f"the steps of {cache!r} or {update!r} are open; {FIX_SIZES}")
    output = node.proto.output[0]
    if first:
        places = Places(
            node,
            Cache(len(sizes), axis, sizes[0], length, steps),
            first,
            "int64",
            wraps=mode == "circular",
        )
        places.stored(cache, update, output)
    elif steps < length:
        appended(node, update, node.part(cache, axis, steps, length), output, axis)
    else:
        node.write("Identity", update, output=output)


RULES: Mapping[str, Rule] = {"TensorScatter": _tensor_scatter}
