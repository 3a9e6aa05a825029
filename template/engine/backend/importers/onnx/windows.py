# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling of ONNX with their paddings as numbers.

TVM's importer pads some of them otherwise where the paddings follow from `auto_pad`, `ceil_mode` or
`output_shape`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...shared.messages import FIX_SIZES
from .node import Node, Rule


class _Axis(NamedTuple):
    """One axis along which a window moves."""

    size: int | None
    extent: int
    """How many elements lie from the first to the last of the kernel."""
    stride: int
    begin: int
    end: int

    def padded(self, begin: int, end: int) -> _Axis:
        return self._replace(begin=begin, end=end)


def _axes(node: Node, weights: str = "") -> list[_Axis]:
    """Return the axes of a node, with its explicit paddings."""
    x, attributes, shape = node.proto.input[0], node.attributes, node.shape(weights)
    kernel = attributes.get("kernel_shape", None if shape is None else shape[2:])
    if kernel is None:
        node.refuse("the shape of its kernel is not known; supported are constant weights")
    count = len(kernel)
    sizes = node.sizes(x) or [None] * (count + 2)
    if len(sizes) != count + 2:
        node.refuse(f"its kernel has {count} dimensions, and its input {x!r} has {len(sizes)}")
    strides = attributes.get("strides", [1] * count)
    dilations = attributes.get("dilations", [1] * count)
    pads = attributes.get("pads", [0] * 2 * count)
    if not len(strides) == len(dilations) == count == len(pads) / 2:
        node.refuse(f"strides, dilations and pads are not those of a kernel of {count} dimensions")
    parts = zip(sizes[2:], kernel, dilations, strides, pads[:count], pads[count:], strict=True)
    return [
        _Axis(size, (length - 1) * dilation + 1, stride, begin, end)
        for size, length, dilation, stride, begin, end in parts
    ]


def _mode(node: Node) -> str:
    mode = node.text("auto_pad", "") or "NOTSET"
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        node.refuse(f"auto_pad={mode} is not one of NOTSET, VALID, SAME_UPPER and SAME_LOWER")
    return mode


def _known_size(node: Node, axis: _Axis, why: str) -> int:
    if axis.size is None:
        node.refuse(f"{why} needs the sizes of its input {node.proto.input[0]!r}; {FIX_SIZES}")
    return axis.size


def _halves(total: int, mode: str) -> tuple[int, int]:
    """Split a padding; an odd element goes to the end with SAME_UPPER, else to the beginning."""
    less = total // 2
    return (less, total - less) if mode == "SAME_UPPER" else (total - less, less)


def _same(node: Node, axis: _Axis, mode: str) -> _Axis:
    """Pad so that the result has a position for each stride that begins in the input."""
    odd = axis.stride > axis.extent or {*node.attributes.get("dilations", ())} - {1}
    if odd and "Pool" in node.proto.op_type:
        # ONNX Runtime computes other sizes than ONNX declares there, and refuses some.
        node.refuse(
            f"auto_pad={mode} of a pooling with dilations, or with a stride that is longer than "
            "the kernel, has no agreed meaning; export it with pads"
        )
    total = axis.extent - 1
    if axis.stride > 1:
        size = _known_size(node, axis, f"auto_pad={mode} with a stride of {axis.stride}")
        total = (-(-size // axis.stride) - 1) * axis.stride + axis.extent - size
    return axis.padded(*_halves(max(total, 0), mode))


def _explicit(node: Node, axes: Sequence[_Axis]) -> list[_Axis]:
    mode = _mode(node)
    if mode == "NOTSET":
        return [*axes]
    if mode == "VALID":
        return [axis.padded(0, 0) for axis in axes]
    return [_same(node, axis, mode) for axis in axes]


def _write(node: Node, axes: Sequence[_Axis], x: str = "", **attributes: object) -> None:
    """Write the node with the paddings of axes."""
    kept = {name: value for name, value in node.attributes.items() if name != "auto_pad"}
    pads = [axis.begin for axis in axes] + [axis.end for axis in axes]
    inputs = [x or node.proto.input[0], *node.proto.input[1:]]
    node.result(node.proto.op_type, *inputs, attributes={**kept, "pads": pads, **attributes})


def _conv(node: Node) -> None:
    if _mode(node) == "NOTSET":
        node.keep()
        return
    _write(node, _explicit(node, _axes(node, node.proto.input[1])))


def _conv_transpose(node: Node) -> None:
    mode = _mode(node)
    shape: Sequence[int] | None = node.attributes.pop("output_shape", None)
    if mode == "NOTSET" and shape is None:
        node.keep()
        return
    axes = _axes(node, node.proto.input[1])
    behind = list(node.attributes.get("output_padding", [0] * len(axes)))
    if shape is None and mode == "VALID":
        _write(node, [axis.padded(0, 0) for axis in axes])
        return
    for index, axis in enumerate(axes):
        # Without output_shape, the result is as large as the input, times the stride.
        total = axis.extent + behind[index] - axis.stride
        if shape is not None:
            size = _known_size(node, axis, "output_shape")
            # Some exporters write the sizes of all axes.
            total += size * axis.stride - shape[index - len(axes)]
            behind[index] += max(-total, 0)
            if behind[index] >= axis.stride and behind[index]:
                node.refuse(
                    f"output_shape={list(shape)} adds {behind[index]} elements behind the last "
                    f"position; supported are fewer than the stride, {axis.stride}"
                )
        axes[index] = axis.padded(*_halves(max(total, 0), mode))
    _write(node, axes, output_padding=behind)


def _pool(node: Node) -> None:
    node.require_first_alone()
    axes = _explicit(node, _axes(node))
    x = node.proto.input[0]
    attributes: dict[str, object] = {"ceil_mode": 0}
    counts_pads = node.attributes.get("count_include_pad", 0)
    if node.attributes.get("ceil_mode", 0):
        is_mean_or_max = node.proto.op_type != "LpPool"
        fits = all(axis.begin == axis.end == 0 and axis.stride <= axis.extent for axis in axes)
        if is_mean_or_max and not counts_pads and fits:
            # Each position begins in the input, whatever its size is: TVM reads it rightly.
            _write(node, axes)
            return
        ends = [_end_of_last(node, axis) for axis in axes]
        if counts_pads and ends != [axis.end for axis in axes]:
            # The mean counts the elements of the padding, but not those that ceil_mode adds.
            x = _with_zeros(node, x, axes)
            ends = [end - axis.end for end, axis in zip(ends, axes, strict=True)]
            axes = [axis.padded(0, 0) for axis in axes]
            attributes["count_include_pad"] = 0
        axes = [axis.padded(axis.begin, end) for axis, end in zip(axes, ends, strict=True)]
    _write(node, axes, x, **attributes)


def _end_of_last(node: Node, axis: _Axis) -> int:
    """Return the padding with which the last position lies in the input as a whole."""
    size = _known_size(node, axis, "ceil_mode")
    room = size + axis.begin + axis.end - axis.extent
    last = -(-room // axis.stride) * axis.stride
    if last >= size + axis.begin:
        # A window that begins behind the input does not count.
        last -= axis.stride
    return max(axis.end, last + axis.extent - size - axis.begin)


def _with_zeros(node: Node, x: str, axes: Sequence[_Axis]) -> str:
    pads = [0, 0, *(axis.begin for axis in axes), 0, 0, *(axis.end for axis in axes)]
    if not any(pads):
        return x
    if node.graph.opset < 11:
        return node.write("Pad", x, pads=pads)
    return node.write("Pad", x, node.integers(*pads))


RULES: Mapping[str, Rule] = {
    "AveragePool": _pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "LpPool": _pool,
    "MaxPool": _pool,
}
