# SPDX-License-Identifier: Apache-2.0
"""Attention of ONNX in the operators of which its definition consists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from onnx import TensorProto

from ...shared.messages import FIX_SIZES
from .groups import Groups, capped, scaled
from .node import Node, Rule

_BEFORE_SOFTMAX, _AFTER_SOFTCAP, _AFTER_BIAS, _AFTER_SOFTMAX = range(4)

_PRECISIONS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def _attention(node: Node) -> None:
    if node.proto.domain == "com.microsoft":
        # ONNX Runtime's own Attention, which TVM reads.
        node.keep()
        return
    _Attention(node).write()


class _Attention:
    """Attention that is written as products, a bias and a softmax."""

    def __init__(self, node: Node) -> None:
        self.node = node
        names = node.inputs(7)
        self.q, self.k, self.v, self.mask, self.past_k, self.past_v, self.filled = names
        get = node.attributes.get
        self.dtype = self.node.dtype(self.q)
        self.left, self.right = int(get("left_window_size", -1)), int(get("right_window_size", -1))
        self.is_causal = bool(get("is_causal", 0))
        self.softcap = float(get("softcap", 0.0))
        self.mode = int(get("qk_matmul_output_mode", 0))
        self.precision = int(get("softmax_precision", 0))
        self.is_flat = len(self._sizes(self.q)) == 3
        apart = [self._before_repetition(name) for name in (self.k, self.v)]
        is_cached = self.past_k or any(node.proto.output[1:3])
        if not self.is_flat and not is_cached and all(apart):
            self.k, self.v = apart
        self.q_heads = self._heads(self.q, "q_num_heads")
        self.kv_heads = self._heads(self.k, "kv_num_heads")
        self.groups = Groups(node, self.q_heads, self.kv_heads)
        if bool(self.past_k) != bool(self.past_v):
            node.refuse("past_key and past_value must be given together")
        if self.filled and self.past_k:
            node.refuse("nonpad_kv_seqlen does not go with past_key")
        if self.precision and self.precision not in _PRECISIONS:
            node.refuse(
                f"softmax_precision={self.precision} is not supported; supported are "
                "1 (float), 10 (float16) and 11 (double)"
            )

    def _before_repetition(self, name: str) -> str:
        """Return keys or values before exporters repeated their heads for queries; "" if not so."""
        shapes = []
        for op in ("Reshape", "Expand", "Unsqueeze"):
            producer = self.node.graph.producers.get(name)
            if producer is None or producer.op_type != op:
                return ""
            shapes.append([*(self.node.shape(name) or ())])
            name = producer.input[0]
        repeated, wide, narrow = shapes
        if len(wide) != 5 or repeated != [wide[0], wide[1] * wide[2], *wide[3:]]:
            return ""
        return name if narrow == [*wide[:2], 1, *wide[3:]] else ""

    # ---- Sizes ----------------------------------------------------------------------------------

    def _sizes(self, name: str) -> list[int | None]:
        sizes = self.node.sizes(name)
        if sizes is None or len(sizes) not in (3, 4):
            self.node.refuse(
                f"the rank of its input {name!r} is not known to be 3 or 4; supported are "
                "[batch, steps, heads * size] and [batch, heads, steps, size]"
            )
        return [*sizes]

    def _heads(self, name: str, attribute: str) -> int:
        heads = self.node.attributes.get(attribute) if self.is_flat else self._sizes(name)[1]
        if not heads:
            self.node.refuse(
                f"{attribute} is missing"
                if self.is_flat
                else f"the heads of {name!r} are open; {FIX_SIZES}"
            )
        return int(heads)

    def _steps(self, name: str, attribute: str) -> int:
        sizes = self._sizes(name)
        steps = sizes[-2]
        if steps is None:
            self.node.refuse(
                f"{attribute} needs the number of steps of {name!r}, which is open; {FIX_SIZES}"
            )
        return steps

    def _key_steps(self, attribute: str) -> int:
        past = self._steps(self.past_k, attribute) if self.past_k else 0
        return past + self._steps(self.k, attribute)

    # ---- What replaces it -----------------------------------------------------------------------

    def write(self) -> None:
        """Write the nodes."""
        node = self.node
        y, present_k, present_v, scores_out = [*self.node.proto.output, "", "", ""][:4]
        q = self._by_heads(self.q, self.q_heads)
        k = self._cached(self._by_heads(self.k, self.kv_heads), self.past_k, present_k)
        v = self._cached(self._by_heads(self.v, self.kv_heads), self.past_v, present_v)
        q = self.groups.joined(q, self._size(self.q, self.q_heads))
        scores = scaled(node, q, k, self._scale(), self.dtype)
        shown = {_BEFORE_SOFTMAX: scores}
        if self.softcap:
            if scores_out and self.mode == _BEFORE_SOFTMAX:
                self.node.refuse(
                    "qk_matmul_output_mode=0 with softcap is not supported: ONNX Runtime and "
                    "ONNX's reference differ there"
                )
            scores = capped(node, scores, self.softcap, self.dtype)
        shown[_AFTER_SOFTCAP] = scores
        bias, has_empty = self._bias()
        if bias:
            scores = node.write("Add", scores, self.groups.bias(bias, self._sizes_of_bias()))
        shown[_AFTER_BIAS] = scores
        weights = self._softmax(scores, has_empty)
        shown[_AFTER_SOFTMAX] = weights
        if scores_out:
            if self.mode not in shown:
                self.node.refuse(f"qk_matmul_output_mode={self.mode}; supported are 0 to 3")
            self.groups.split(shown[self.mode], self._key_steps("a result of scores"), scores_out)
        mixed = node.write("MatMul", weights, v)
        size = self._size(self.v, self.kv_heads)
        if not self.is_flat:
            self.groups.split(mixed, size, y)
            return
        rows = node.transpose(self.groups.split(mixed, size), (0, 2, 1, 3))
        node.reshape(rows, (0, 0, -1), y)

    def _by_heads(self, name: str, heads: int) -> str:
        """Return an input as [batch, heads, steps, size]."""
        if not self.is_flat:
            return name
        width = self._sizes(name)[2]
        size = -1 if width is None else width // heads
        return self.node.transpose(self.node.reshape(name, (0, 0, heads, size)), (0, 2, 1, 3))

    def _cached(self, new: str, past: str, present: str) -> str:
        """Put what is new behind what is known."""
        if past:
            return self.node.write("Concat", past, new, output=present, axis=2)
        return self.node.write("Identity", new, output=present) if present else new

    def _size(self, name: str, heads: int) -> int | None:
        """Return the size of a head."""
        width = self._sizes(name)[-1]
        return width // heads if self.is_flat and width is not None else width

    def _scale(self) -> float:
        scale = self.node.attributes.get("scale")
        if scale is None:
            size = self._size(self.q, self.q_heads)
            if size is None:
                self.node.refuse("scale is missing, and the size of a head is open")
            return 1 / math.sqrt(size)
        return float(scale)

    def _softmax(self, scores: str, has_empty: bool) -> str:
        node = self.node
        kind = self.precision
        own = self.node.element_type(self.q)
        wide = node.write("Cast", scores, to=kind) if kind not in (0, own) else scores
        weights = node.write("Softmax", wide, axis=-1)
        if wide != scores:
            weights = node.write("Cast", weights, to=own)
        if not has_empty:
            return weights
        # A query that may see nothing gets 0, in the form in which PyTorch writes it.
        lowest = node.literal(-np.inf, self.dtype)
        seen = node.write("Not", node.write("Equal", scores, lowest))
        numbers = node.write("Cast", seen, to=TensorProto.INT8)
        most = node.write("ReduceMax", numbers, node.integers(-1), keepdims=1)
        empty = node.write("Not", node.write("Cast", most, to=TensorProto.BOOL))
        return node.write("Where", empty, node.literal(0, self.dtype), weights)

    # ---- What a query may see -------------------------------------------------------------------

    def _bias(self) -> tuple[str, bool]:
        """Return what is added to the scores, and whether it may hide all keys of a query."""
        node = self.node
        real = ""
        masks: list[str] = []
        if self.mask:
            mask = self._padded(self.mask)
            is_bool = node.dtype(self.mask) == "bool"
            real, masks = ("", [mask]) if is_bool else (mask, [])
        masks += self._limits()
        arrays = [self.node.constant(name) for name in masks]
        fixed = [array for array in arrays if array is not None]
        rest = [name for name, array in zip(masks, arrays, strict=True) if array is None]
        if not masks:
            return real, bool(real) and self._hides_all(real)
        lowest, zero = np.array(-np.inf, self.dtype), np.zeros((), self.dtype)
        if not rest:
            hidden = node.literal(np.where(reduce(np.bitwise_and, fixed), zero, lowest))
        else:
            allowed = [*rest, *([node.literal(reduce(np.bitwise_and, fixed))] if fixed else [])]
            while len(allowed) > 1:
                allowed = [node.write("And", *allowed[:2]), *allowed[2:]]
            hidden = node.write("Where", allowed[0], node.literal(zero), node.literal(lowest))
        bias = node.add(real, hidden) if real else hidden
        return bias, self._hides_all(bias)

    def _sizes_of_bias(self) -> Sequence[int | None] | None:
        """Return the sizes of the bias, of which that of heads is known if the mask's is."""
        steps = (self._sizes(self.q)[-2], self._sizes(self.k)[-2])
        past = self._sizes(self.past_k)[-2] if self.past_k else 0
        keys = None if steps[1] is None or past is None else steps[1] + past
        sizes = self.node.sizes(self.mask) if self.mask else ()
        if sizes is None:
            return None
        heads = sizes[-3] if len(sizes) > 2 else 1
        if self.filled or len(sizes) > 3:
            return [None, heads, steps[0], keys]
        return [heads, steps[0], keys] if len(sizes) > 2 else [steps[0], keys]

    def _hides_all(self, bias: str) -> bool:
        array = self.node.constant(bias)
        return array is None or bool(np.isneginf(array).all(axis=-1).any())

    def _padded(self, mask: str) -> str:
        """Return a mask for all keys: those behind its end are hidden."""
        sizes = self.node.sizes(mask)
        if sizes is None or sizes[-1] is None:
            return mask
        steps = self._sizes(self.k)[-2]
        past = self._sizes(self.past_k)[-2] if self.past_k else 0
        if steps is None or past is None or sizes[-1] in (1, steps + past):
            return mask
        lacking = steps + past - sizes[-1]
        if None in sizes:
            self.node.refuse(
                f"its attn_mask {mask!r} is too short, and its other sizes are open; {FIX_SIZES}"
            )
        dtype = self.node.dtype(mask)
        shape = [*(size or 0 for size in sizes[:-1]), lacking]
        border = np.full(shape, False if dtype == "bool" else -np.inf, dtype)
        array = self.node.constant(mask)
        if array is not None:
            return self.node.literal(np.concatenate([array, border], -1))
        return self.node.write("Concat", mask, self.node.literal(border), axis=-1)

    def _limits(self) -> list[str]:
        """Return the masks of nonpad_kv_seqlen, is_causal and the windows."""
        node = self.node
        masks: list[str] = []
        filled = ""
        if self.filled:
            keys = np.arange(self._key_steps("nonpad_kv_seqlen"), dtype="int64")
            filled = node.reshape(self.filled, (-1, 1, 1, 1))
            masks.append(node.write("Less", node.literal(keys.reshape(1, 1, 1, -1)), filled))
        left, right = self.left, self.right
        limits = [("is_causal", "LessOrEqual", 0)] if self.is_causal else []
        limits += [("right_window_size", "LessOrEqual", right)] if right >= 0 else []
        limits += [("left_window_size", "GreaterOrEqual", -left)] if left >= 0 else []
        for attribute, op, distance in limits:
            rows, columns = self._steps(self.q, attribute), self._key_steps(attribute)
            # The distance of each key from the query, less the limit, before the past is added.
            ahead = np.arange(columns, dtype="int64") - np.arange(rows).reshape(-1, 1) - distance
            if filled:
                last = node.write("Sub", filled, node.literal(rows, "int64"))
                masks.append(node.write(op, node.literal(ahead[None, None]), last))
                continue
            past = self._steps(self.past_k, attribute) if self.past_k else 0
            masks.append(node.literal(ahead <= past if op == "LessOrEqual" else ahead >= past))
        return masks


RULES: Mapping[str, Rule] = {"Attention": _attention}
