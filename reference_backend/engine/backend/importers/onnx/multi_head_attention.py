# SPDX-License-Identifier: Apache-2.0
"""MultiHeadAttention of ONNX Runtime, the attention of encoders and of encoders with decoders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce

import numpy as np
from onnx import TensorProto

from ...shared.messages import FIX_SIZES
from .caches import appended
from .groups import scaled
from .node import Node, Rule


class _MultiHeadAttention:
    """MultiHeadAttention that is written as products, biases and a softmax."""

    def __init__(self, node: Node) -> None:
        self.node = node
        names = node.inputs(8)
        self.q, self.k, self.v, self.bias, self.padding, self.added = names[:6]
        self.past = names[6:]
        self.heads = int(node.attributes.get("num_heads", 0))
        if not self.heads:
            node.refuse("num_heads is missing")
        if not self.k or not self.v:
            node.refuse("supported are query, key and value as inputs of their own")
        if bool(self.past[0]) != bool(self.past[1]):
            node.refuse("past_key and past_value must be given together")
        sizes = [node.sizes(name) or (None,) for name in (self.q, self.k, self.v)]
        ranks = [len(size) for size in sizes]
        is_flat = ranks == [3, 3, 3]
        widths = [sizes[0][-1], sizes[2][-1]]
        if not is_flat and widths[1] is not None:
            widths[1] *= self.heads
        if ranks not in ([3, 3, 3], [3, 4, 4]) or None in widths or widths[0] != widths[1]:
            node.refuse(
                f"its query, key and value have {', '.join(map(str, ranks))} axes, and query and "
                f"value the widths {widths[0] or '?'} and {widths[1] or '?'}; supported are "
                "[batch, steps, heads * size] of all, and [batch, heads, steps, size] of key and "
                "value, of one width that is known"
            )
        if self.bias and not is_flat:
            node.refuse("a bias is supported where key is [batch, steps, heads * size]")
        self.width = int(widths[0] or 0)
        self.batch, self.steps = sizes[0][0], sizes[0][1]
        past = node.sizes(self.past[0]) if self.past[0] else (0,) * 4
        new, self.known = sizes[1][-2], past[2] if past else None
        self.keys = None if new is None or self.known is None else new + self.known
        self.dtype = node.dtype(self.q)

    def write(self) -> None:
        """Write the nodes."""
        node = self.node
        y, present_k, present_v, scores_out = [*node.proto.output, "", "", ""][:4]
        if node.graph.uses[scores_out]:
            node.refuse(f"its result {scores_out!r} is not supported; supported are the others")
        q, k, v = (self._by_heads(place) for place in range(3))
        k = appended(node, self.past[0], k, present_k)
        v = appended(node, self.past[1], v, present_v)
        scale = node.attributes.get("scale", 0.0) or 1 / math.sqrt(self.width // self.heads)
        scores = scaled(node, q, k, scale, self.dtype)
        biases = list(filter(None, (self._hidden_padding(), self._hidden_future(), self.added)))
        if biases:
            scores = node.write("Add", scores, reduce(node.add, biases))
        mixed = node.write("MatMul", node.write("Softmax", scores, axis=-1), v)
        rows = node.transpose(mixed, (0, 2, 1, 3))
        node.reshape(rows, (0, 0, self.width), y)

    def _by_heads(self, place: int) -> str:
        """Return query, key or value as [batch, heads, steps, size]."""
        node, x, width = self.node, (self.q, self.k, self.v)[place], self.width
        if len(node.sizes(x) or ()) == 4:
            return x
        if self.bias:
            part = node.part(self.bias, 0, place * width, (place + 1) * width)
            x = node.write("Add", x, part)
        return node.transpose(
            node.reshape(x, (0, 0, self.heads, width // self.heads)), (0, 2, 1, 3)
        )

    # ---- What a query may see -------------------------------------------------------------------

    def _ends(self) -> list[str]:
        """Return what is added to the scores of keys that are seen, and of those that are not."""
        lowest = self.node.attributes.get("mask_filter_value", -10000.0)
        return [self.node.literal(value, self.dtype) for value in (0, lowest)]

    def _hidden_padding(self) -> str:
        node = self.node
        if not self.padding:
            return ""
        sizes = node.sizes(self.padding)
        if sizes is not None and len(sizes) in (2, 3):
            axes = (1, 2) if len(sizes) == 2 else (1,)
            seen = node.unsqueeze(node.cast(self.padding, TensorProto.BOOL), *axes)
        elif sizes is not None and sizes[0] == self.batch and self.keys is not None:
            keys = node.literal(np.arange(self.keys).reshape(1, 1, 1, -1), "int32")
            seen = node.write("Less", keys, node.reshape(self.padding, (-1, 1, 1, 1)))
        else:
            node.refuse(
                f"its key_padding_mask {self.padding!r} has another shape than [batch], "
                f"[batch, keys] and [batch, steps, keys], or the number of keys is open; "
                f"{FIX_SIZES}"
            )
        return node.write("Where", seen, *self._ends())

    def _hidden_future(self) -> str:
        if not self.node.attributes.get("unidirectional", 0):
            return ""
        if self.steps is None or self.keys is None or self.known is None:
            self.node.refuse(f"unidirectional=1 needs the numbers of steps and keys; {FIX_SIZES}")
        if self.keys != self.known + self.steps:
            self.node.refuse("unidirectional=1 is supported where key has as many steps as query")
        seen = np.arange(self.keys) <= np.arange(self.steps).reshape(-1, 1) + self.known
        # Lower than what hides padding, which a query without another key sees.
        lowest = np.finfo(self.dtype).min
        return "" if seen.all() else self.node.literal(np.where(seen, 0, lowest), self.dtype)


def _multi_head_attention(node: Node) -> None:
    _MultiHeadAttention(node).write()


RULES: Mapping[str, Rule] = {"MultiHeadAttention": _multi_head_attention}
