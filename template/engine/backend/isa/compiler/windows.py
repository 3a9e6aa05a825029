# SPDX-License-Identifier: Apache-2.0
"""Windows over the spatial dimensions of data, for convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from ...sdk.npu_region.region import Node
from .elements import Expr, all_of, number

Taps = Sequence[Expr]


class Layout:
    """Where the dimensions of convolutions and pools are.

    Parameters
    ----------
    rank
        How many dimensions the tensors have.
    channels_last
        Whether channels are the last one, or the second one.
    """

    def __init__(self, rank: int, channels_last: bool) -> None:
        self.axis = rank - 1 if channels_last else 1
        self.spatial = slice(1, rank - 1) if channels_last else slice(2, rank)

    def split(self, indices: Sequence[Expr]) -> tuple[Expr, list[Expr], Expr]:
        """Return batch, place and channel of indices."""
        return indices[0], list(indices[self.spatial]), indices[self.axis]

    def joined(self, batch: Expr, place: Sequence[Expr], channel: Expr) -> list[Expr]:
        """Return indices of batch, place and channel."""
        return [batch, *place, channel] if self.axis > 1 else [batch, channel, *place]


def padded(
    tensor: te.Tensor,
    layout: Layout,
    sizes: Sequence[int],
    begins: Sequence[int],
    fill: Expr,
) -> te.Tensor:
    """Return a tensor whose element 0 is `begins` before that of another one.

    Parameters
    ----------
    tensor
        The other one.
    layout
        Where its dimensions are.
    sizes
        How many elements are needed, by spatial dimension.
    begins
        How many elements come before, by spatial dimension; negative: how many are skipped.
    fill
        What is there where the other one has none.

    Returns
    -------
    padded
        The tensor; the other one itself if nothing changes.
    """
    shape = [int(size) for size in tensor.shape]
    have = shape[layout.spatial]
    if not any(begins) and all(size <= old for size, old in zip(sizes, have, strict=True)):
        return tensor
    shape[layout.spatial] = list(sizes)

    def element(*indices: Expr) -> Expr:
        batch, place, channel = layout.split(indices)
        found, conditions = [], []
        for i, size, old, begin in zip(place, sizes, have, begins, strict=True):
            found.append(i - begin if begin else i)
            if begin > 0:
                conditions.append(i >= begin)
            if size - begin > old:
                conditions.append(i < old + begin)
        value = tensor(*layout.joined(batch, found, channel))
        return te.if_then_else(all_of(conditions), value, fill) if conditions else value

    return te.compute(shape, element, name="padded")


def windows(
    node: Node, results: Sequence[int], window: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return strides, dilations, padding before, and how far all windows reach with it."""
    given = node.attributes
    strides, dilations = list(given["strides"]), list(given["dilations"])
    reach = [
        (result - 1) * stride + (size - 1) * dilation + 1
        for result, stride, size, dilation in zip(results, strides, window, dilations, strict=True)
    ]
    return strides, dilations, list(given["pads_begin"]), reach


def taps_of(window: Sequence[int]) -> tuple[list[Expr], list[Expr]]:
    """Return the index in each dimension of a window, and those of them that are loops."""
    loops = [
        te.reduce_axis((0, size), f"k{i}") if size > 1 else None for i, size in enumerate(window)
    ]
    return [number(0, "int32") if loop is None else loop for loop in loops], [
        loop for loop in loops if loop is not None
    ]


def place_of(
    place: Sequence[Expr], taps: Taps, strides: Sequence[int], dilations: Sequence[int]
) -> list[Expr]:
    """Return where a tap of a window is in the padded data."""
    return [
        i * stride + tap * dilation
        for i, tap, stride, dilation in zip(place, taps, strides, dilations, strict=True)
    ]
