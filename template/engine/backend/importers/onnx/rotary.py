# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding of ONNX and of ONNX Runtime in products, sums and slices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...shared.messages import FIX_SIZES
from .node import Node, Rule


def rotate(
    node: Node, x: str, cos: str, sin: str, size: int, turned: int, is_interleaved: bool
) -> str:
    """Turn pairs of elements of the last of four axes.

    `cos`, `sin`: for each pair; they broadcast.
    `size`, `turned`: the elements of the axis, and how many of them are turned.
    """
    rest = "" if turned == size else node.part(x, 3, turned, size)
    part = x if turned == size else node.part(x, 3, 0, turned)
    if is_interleaved:
        pairs = node.reshape(part, (0, 0, 0, turned // 2, 2))
        real, imaginary = (node.squeeze(part, 4) for part in node.split(pairs, 4, 2))
    else:
        real, imaginary = node.split(part, 3, 2)
    products = [
        node.write("Mul", factor, part)
        for part, factor in ((real, cos), (imaginary, sin), (real, sin), (imaginary, cos))
    ]
    parts = [node.write("Sub", *products[:2]), node.write("Add", *products[2:])]
    if is_interleaved:
        both = node.write("Concat", *[node.unsqueeze(part, 4) for part in parts], axis=4)
        parts = [node.reshape(both, (0, 0, 0, turned))]
    parts += [rest] if rest else []
    return node.write("Concat", *parts, axis=3) if len(parts) > 1 else parts[0]


def _rotary_embedding(node: Node) -> None:
    is_contrib = node.proto.domain == "com.microsoft"
    if is_contrib:
        x, positions, cos, sin = node.inputs(4)
    else:
        x, cos, sin, positions = node.inputs(4)
    sizes = node.sizes(x)
    if sizes is None or len(sizes) not in (3, 4) or sizes[-1] is None:
        node.refuse(
            f"the shape of its input {x!r} is not known; supported are [batch, steps, heads * "
            "size] and [batch, heads, steps, size]"
        )
    is_flat, size = len(sizes) == 3, sizes[-1]
    turned = node.attributes.get("rotary_embedding_dim", 0)
    heads = node.attributes.get("num_heads", 0)
    pairs = (node.sizes(cos) or (None,))[-1]
    if is_flat and not heads and is_contrib and not turned and pairs:
        # ONNX Runtime takes the size of a head from that of the cache.
        heads = size // (2 * pairs)
    if is_flat:
        if not heads:
            node.refuse("num_heads is missing")
        size //= heads
        # The heads need not move before the steps.
        x = node.reshape(x, (0, 0, heads, size))
    if positions:
        if is_contrib:
            positions = _positions(node, positions, sizes[-2])
        cos, sin = (node.write("Gather", name, positions, axis=0) for name in (cos, sin))
    cos, sin = (node.unsqueeze(name, 2 if is_flat else 1) for name in (cos, sin))
    is_interleaved = bool(node.attributes.get("interleaved", 0))
    y = rotate(node, x, cos, sin, size, turned or size, is_interleaved)
    if is_flat:
        node.reshape(y, (0, 0, heads * size), node.proto.output[0])
    else:
        node.result("Identity", y)


def _positions(node: Node, positions: str, steps: int | None) -> str:
    """Return the position of each step, where ONNX Runtime takes that of the first alone, too."""
    sizes = node.sizes(positions)
    if sizes is None:
        node.refuse(f"the shape of its position_ids {positions!r} is not known; {FIX_SIZES}")
    if len(sizes) == 2:
        return positions
    if steps is None:
        node.refuse(
            f"its position_ids are those of the first step, and steps are open; {FIX_SIZES}"
        )
    first = node.reshape(positions, (1, 1))
    return node.add(first, node.literal(np.arange(steps).reshape(1, -1), "int64"))


RULES: Mapping[str, Rule] = {"RotaryEmbedding": _rotary_embedding}
