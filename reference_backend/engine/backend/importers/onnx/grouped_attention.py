# SPDX-License-Identifier: Apache-2.0
"""GroupQueryAttention of ONNX Runtime, the attention of decoders with a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...shared.messages import FIX_SIZES
from .caches import Cache, Places, appended
from .groups import Groups, capped, scaled
from .node import Node, Rule
from .rotary import rotate


class _GroupQueryAttention:
    """GroupQueryAttention that is written as a cache, products, a bias and a softmax.

    Places of the cache behind the last step keep what they have, as where past and present share
    their memory; no query sees them.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        names = node.inputs(11)
        self.q, self.k, self.v, self.past_k, self.past_v, self.lengths, total = names[:7]
        self.cos, self.sin, self.positions, self.added = names[7:]
        get = node.attributes.get
        self.heads, self.shared = int(get("num_heads", 0)), int(get("kv_num_heads", 0))
        if not self.heads or not self.shared:
            node.refuse("num_heads or kv_num_heads is missing")
        if bool(self.k) != bool(self.v):
            node.refuse("key and value must be given together")
        self.dtype = node.dtype(self.q)
        sizes = node.sizes(self.q)
        if sizes is None or len(sizes) != 3 or None in sizes[1:]:
            node.refuse(
                f"the steps or the width of its query {self.q!r} are not known; {FIX_SIZES}"
            )
        self.batch, self.steps, width = sizes[0], sizes[1] or 0, sizes[2] or 0
        self.size = width // (self.heads if self.k else self.heads + 2 * self.shared)
        self.total = self._total(total)
        self.past = 0
        if self.past_k and not node.is_empty(self.past_k):
            past = node.sizes(self.past_k)
            if past is None or past[2] is None:
                node.refuse(f"the steps of its past_key {self.past_k!r} are not known; {FIX_SIZES}")
            self.past = past[2]
        self.is_prompt = self.steps == self.total
        if self.total < self.steps or not (self.past or self.is_prompt):
            node.refuse(
                f"total_sequence_length is {self.total}, and the query has {self.steps} steps; "
                "without a past they must be equal, and with one it must not be less"
            )
        self.groups = Groups(node, self.heads, self.shared)
        # The place of the first query among the keys, of each sequence; that of a prompt is 0.
        self.first = "" if self.is_prompt else self._first()

    def _total(self, name: str) -> int:
        array = self.node.constant(name)
        if array is None or array.size != 1:
            self.node.refuse(
                f"its total_sequence_length {name!r} is not known; supported is a constant, and "
                f"what the sizes of inputs tell: {FIX_SIZES}"
            )
        return int(array.reshape(()))

    def _first(self) -> str:
        lengths = self.node.reshape(self.lengths, (-1,))
        return self.node.add(lengths, self.node.literal(1 - self.steps, "int32"))

    def write(self) -> None:
        """Write the nodes."""
        node = self.node
        y, present_k, present_v = [*node.proto.output, "", ""][:3]
        q, k, v = self._by_steps()
        if node.attributes.get("do_rotary", 0):
            q, k = self._rotated(q, k)
        q, k, v = (node.transpose(part, (0, 2, 1, 3)) for part in (q, k, v))
        k, v = self._cached(k, v, (present_k, present_v))
        scale = node.attributes.get("scale", 0.0) or 1 / math.sqrt(self.size)
        scores = scaled(node, self.groups.joined(q, self.size), k, scale, self.dtype)
        scores = capped(node, scores, node.attributes.get("softcap", 0.0), self.dtype)
        bias, sizes = self._bias()
        if bias:
            scores = node.write("Add", scores, self.groups.bias(bias, sizes))
        weights = node.write("Softmax", scores, axis=-1)
        mixed = node.write("MatMul", weights, v)
        rows = node.transpose(self.groups.split(mixed, self.size), (0, 2, 1, 3))
        node.reshape(rows, (0, 0, self.heads * self.size), y)

    def _by_steps(self) -> tuple[str, str, str]:
        """Return queries, keys and values as [batch, steps, heads, size]."""
        node = self.node
        names, counts = (self.q, self.k, self.v), (self.heads, self.shared, self.shared)
        if self.k:
            q, k, v = (
                node.reshape(name, (0, 0, count, self.size))
                for name, count in zip(names, counts, strict=True)
            )
            return q, k, v
        packed = node.reshape(self.q, (0, 0, sum(counts), self.size))
        ends = np.cumsum(counts).tolist()
        q, k, v = (
            node.part(packed, 2, end - count, end) for end, count in zip(ends, counts, strict=True)
        )
        return q, k, v

    def _rotated(self, q: str, k: str) -> tuple[str, str]:
        node = self.node
        count, pairs = node.sizes(self.cos) or (None, None)
        if not count or not pairs:
            node.refuse("do_rotary=1 needs cos_cache and sin_cache of a known shape")
        if count < self.total:
            node.refuse(
                f"its cos_cache has {count} positions, and total_sequence_length is {self.total}; "
                "supported are as many positions, or more"
            )
        if self.first and not self.positions:
            steps = node.literal(np.arange(self.steps).reshape(1, -1), "int32")
            positions = node.add(node.reshape(self.first, (-1, 1)), steps)
        else:
            positions = self.positions
        tables = []
        for table in (self.cos, self.sin):
            if positions:
                tables.append(node.unsqueeze(node.write("Gather", table, positions, axis=0), 2))
            else:
                tables.append(node.unsqueeze(node.part(table, 0, 0, self.steps), 0, 2))
        is_interleaved = bool(node.attributes.get("rotary_interleaved", 0))
        cos, sin = tables
        q, k = (rotate(node, x, cos, sin, self.size, 2 * pairs, is_interleaved) for x in (q, k))
        return q, k

    def _cached(self, k: str, v: str, present: tuple[str, str]) -> tuple[str, str]:
        """Store keys and values; return those that queries may see."""
        node, length = self.node, max(self.past, self.total)
        if self.is_prompt:
            for past, new, output in zip((self.past_k, self.past_v), (k, v), present, strict=True):
                if output and self.past > self.steps:
                    rest = node.part(past, 2, self.steps, self.past)
                    appended(node, new, rest, output)
                elif output:
                    node.write("Identity", new, output=output)
            return k, v
        cache = Cache(4, 2, self.batch, length, self.steps)
        places = Places(node, cache, self.first, "int32")
        seen = []
        for past, new, output in zip((self.past_k, self.past_v), (k, v), present, strict=True):
            if length > self.past:
                shape = (self.batch or 0, self.shared, length - self.past, self.size)
                if not self.batch:
                    node.refuse(f"its cache grows, and the batch is open; {FIX_SIZES}")
                past = appended(node, past, node.literal(np.zeros(shape, self.dtype)))
            whole = places.stored(past, new, output)
            seen.append(node.part(whole, 2, 0, self.total) if self.total < length else whole)
        return seen[0], seen[1]

    def _bias(self) -> tuple[str, list[int | None]]:
        """Return what hides keys from queries, with what the model adds; and its sizes."""
        node, dtype = self.node, self.dtype
        sizes: list[int | None] = [None, 1, self.steps, self.total]
        keys, queries = np.arange(self.total), np.arange(self.steps).reshape(-1, 1)
        window = node.attributes.get("local_window_size", -1)
        ahead = (keys - queries)[None, None]
        if self.first:
            first = node.reshape(self.first, (-1, 1, 1, 1))
            seen = node.write("LessOrEqual", node.literal(ahead, "int32"), first)
            if window > 0:
                near = node.write("Greater", node.literal(ahead + window, "int32"), first)
                seen = node.write("And", seen, near)
            ends = [node.literal(value, dtype) for value in (0, -np.inf)]
            bias = node.write("Where", seen, *ends)
        else:
            known = (ahead <= 0) & ((ahead > -window) if window > 0 else True)
            bias = "" if known.all() else node.literal(np.where(known, 0, -np.inf), dtype)
        if not self.added:
            return bias, sizes
        added = node.sizes(self.added)
        if added is None or len(added) != 4:
            node.refuse(f"the shape of its attention_bias {self.added!r} is not known; {FIX_SIZES}")
        sizes[1] = added[1]
        return (node.add(bias, self.added) if bias else self.added), sizes


def _group_query_attention(node: Node) -> None:
    _GroupQueryAttention(node).write()


RULES: Mapping[str, Rule] = {"GroupQueryAttention": _group_query_attention}
