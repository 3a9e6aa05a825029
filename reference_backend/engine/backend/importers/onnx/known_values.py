# SPDX-License-Identifier: Apache-2.0
"""What ONNX's inference does not ask of a node: values of constants, names, and some sizes.

Runtimes refuse such nodes when they compute them; TVM's importer would read them as something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from onnx import TensorProto

from ...shared.aliases import Array
from ..declared import text_of
from .node import Node

_MOST = 2**40
"""The number of elements that no tensor has."""


def require_values(node: Node) -> None:
    """Refuse a node whose values contradict its operator."""
    for name, allowed in _NAMES.get(node.proto.op_type, {}).items():
        text = node.text(name, "")
        if text and text not in allowed:
            node.refuse(f"its {name} is {text!r}; supported are {', '.join(allowed)}")
    check = _CHECKS.get(node.proto.op_type)
    if check is not None:
        check(node)
    for name in filter(None, node.proto.output):
        sizes = node.sizes(name) or ()
        fixed = [size for size in sizes if size is not None]
        why = ""
        if min(fixed, default=0) < 0:
            why = "its input is too small, or one of its values is wrong"
        elif math.prod(fixed) > _MOST:
            why = "no memory holds it"
        if why:
            node.refuse(f"its result {name!r} would have the shape {text_of(sizes)}; {why}")


_NAMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "BitShift": {"direction": ("LEFT", "RIGHT")},
    "DepthToSpace": {"mode": ("DCR", "CRD")},
    "Gelu": {"approximate": ("none", "tanh")},
    "GridSample": {
        "mode": ("linear", "bilinear", "nearest", "cubic", "bicubic"),
        "padding_mode": ("zeros", "border", "reflection"),
    },
    "Resize": {
        "mode": ("nearest", "linear", "cubic"),
        "nearest_mode": (
            *("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
            "simple",  # Written by ONNX Runtime's own tools.
        ),
    },
    "RoiAlign": {
        "mode": ("avg", "max"),
        "coordinate_transformation_mode": ("half_pixel", "output_half_pixel"),
    },
    "ScatterElements": {"reduction": ("none", "add", "mul", "max", "min")},
    "ScatterND": {"reduction": ("none", "add", "mul", "max", "min")},
    "Upsample": {"mode": ("nearest", "linear", "bilinear")},
}
"""The values of attributes that are names."""


# ---- Indices ------------------------------------------------------------------------------------


def _axis(node: Node, x: str, axis: int) -> int | None:
    """Return an axis of a tensor counted from its first one; None if the rank is not known."""
    sizes = node.sizes(x)
    if sizes is None:
        return None
    if not -len(sizes) <= axis < len(sizes):
        node.refuse(f"its axis is {axis}, and {x!r} has {len(sizes)} dimensions")
    return axis % len(sizes)


def _require_indices(node: Node, name: str, array: Array, size: int | None, x: str) -> None:
    if size is None or not array.size:
        return
    for index in (array.min(), array.max()):
        if not -size <= index < size:
            node.refuse(
                f"its index {name!r} has the element {index}, outside of the {size} elements of "
                f"{x!r} along that axis"
            )


def _gather(node: Node) -> None:
    x, indices = node.inputs(2)
    axis = _axis(node, x, node.attributes.get("axis", 0))
    array = node.constant(indices)
    if axis is not None and array is not None:
        _require_indices(node, indices, array, (node.sizes(x) or ())[axis], x)


def _elements(node: Node) -> None:
    """Check indices that have the rank of the data."""
    _gather(node)
    x, indices = node.inputs(2)
    axis = _axis(node, x, node.attributes.get("axis", 0))
    sizes, counts = node.sizes(x), node.sizes(indices)
    if axis is None or sizes is None or counts is None:
        return
    if len(sizes) != len(counts):
        node.refuse(f"{x!r} has {len(sizes)} dimensions, and {indices!r} has {len(counts)}")
    for place, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if place != axis and size is not None and count is not None and count > size:
            node.refuse(
                f"{indices!r} has {count} elements along axis {place}, and {x!r} has {size}"
            )


def _nd(node: Node) -> None:
    """Check indices whose last axis holds one for each of several axes of the data."""
    x, indices = node.inputs(2)
    first = node.attributes.get("batch_dims", 0)
    sizes, counts, array = node.sizes(x), node.sizes(indices), node.constant(indices)
    if sizes is None or counts is None:
        return
    for size, count in zip(sizes[:first], counts[:first], strict=False):
        if size is not None and count is not None and size != count:
            node.refuse(
                f"its first {first} axes are those of a batch, and {x!r} has {size} elements "
                f"where {indices!r} has {count}"
            )
    if array is None or not array.ndim:
        return
    for place, size in zip(range(array.shape[-1]), sizes[first:], strict=False):
        _require_indices(node, indices, array[..., place], size, x)


def _cum_sum(node: Node) -> None:
    x, axis = node.inputs(2)
    array = node.constant(axis)
    if array is not None and array.size == 1:
        _axis(node, x, int(array.item()))


def _roi_align(node: Node) -> None:
    x, _, batches = node.inputs(3)
    array, sizes = node.constant(batches), node.sizes(x)
    if array is None or not array.size or not sizes or sizes[0] is None:
        return
    if not 0 <= array.min() <= array.max() < sizes[0]:
        node.refuse(
            f"its index {batches!r} of images has elements from {array.min()} to {array.max()}, "
            f"and {x!r} has {sizes[0]} images"
        )


# ---- Sizes --------------------------------------------------------------------------------------


def _require_shape(node: Node, name: str, required: Sequence[int | None]) -> None:
    sizes = node.sizes(name)
    if sizes is None:
        return
    pairs = zip(sizes, required, strict=False)
    if len(sizes) != len(required) or any(None not in (a, b) and a != b for a, b in pairs):
        node.refuse(f"the shape of {name!r} is {text_of(sizes)}, and must be {text_of(required)}")


def _conv(node: Node) -> None:
    _, w, bias = node.inputs(3)
    sizes = node.sizes(w)
    if sizes is None or len(sizes) < 2:
        return
    channels = sizes[0]
    if node.proto.op_type == "ConvTranspose":
        channels = None if sizes[1] is None else sizes[1] * node.attributes.get("group", 1)
    _require_shape(node, bias, [channels])


def _pool(node: Node) -> None:
    kernel, pads = node.attributes.get("kernel_shape", ()), node.attributes.get("pads", ())
    if any(pad >= length for pad, length in zip(pads, [*kernel, *kernel], strict=False)):
        node.refuse(
            f"its pads {list(pads)} are not smaller than its kernel of {list(kernel)}, so that a "
            "window would hold nothing"
        )
    if node.attributes.get("p", 2) < 1:
        node.refuse(f"its p is {node.attributes['p']}; supported are powers from 1 on")


def _of_images(node: Node) -> None:
    x = node.proto.input[0]
    sizes = node.sizes(x)
    if sizes is not None and len(sizes) < 3:
        node.refuse(f"its input {x!r} has {len(sizes)} dimensions, and needs at least 3")


def _pad(node: Node) -> None:
    """Check that there is enough to be reflected."""
    x, pads, _, axes = node.inputs(4)
    mode, sizes = node.text("mode", "constant"), node.sizes(x)
    array = node.constant(pads) if pads else node.attributes.get("pads")
    along = node.constant(axes) if axes else range(len(sizes or ()))
    if mode != "reflect" or sizes is None or array is None or along is None:
        return
    amounts = [int(pad) for pad in array]
    for place, pad in zip([int(i) % len(sizes) for i in along] * 2, amounts, strict=False):
        size = sizes[place]
        if size is not None and pad >= size:
            node.refuse(
                f"mode=reflect with {pad} elements on axis {place}, where {x!r} has {size}; "
                f"supported are at most {size - 1}"
            )


def _p_relu(node: Node) -> None:
    """Check the slope; before version 7, it has one element for each channel."""
    x, slope = node.inputs(2)
    sizes, parts = node.sizes(x), node.sizes(slope)
    if node.graph.opset < 7 or sizes is None or parts is None:
        return
    pairs = zip(reversed(sizes), reversed(parts), strict=False)
    fits = all(size in (None, part) or part in (None, 1) for size, part in pairs)
    if len(parts) > len(sizes) or not fits:
        node.refuse(
            f"its slope {slope!r} has the shape {text_of(parts)}, which does not broadcast to "
            f"that of {x!r}, {text_of(sizes)}; one for each channel has the shape [channels, 1, 1]"
        )


def _quantize(node: Node) -> None:
    _, scale, zero = node.inputs(3)
    of_scale, of_zero = node.shape(scale), node.shape(zero)
    if of_scale is not None and of_zero is not None and math.prod(of_scale) != math.prod(of_zero):
        node.refuse(
            f"its scale {scale!r} has the shape {list(of_scale)}, and its zero point {zero!r} has "
            f"{list(of_zero)}"
        )


def _non_max_suppression(node: Node) -> None:
    boxes, scores = node.inputs(2)
    _require_shape(node, boxes, [None, None, 4])
    sizes = node.sizes(boxes)
    if sizes is not None:
        _require_shape(node, scores, [sizes[0], None, sizes[1]])


# ---- Single values ------------------------------------------------------------------------------


def _require_one(node: Node, name: str, what: str) -> None:
    shape = node.shape(name)
    if shape is not None and math.prod(shape) != 1:
        node.refuse(f"its {what} {name!r} has the shape {list(shape)}; supported is one number")


def _clip(node: Node) -> None:
    _, least, most = node.inputs(3)
    _require_one(node, least, "min")
    _require_one(node, most, "max")


def _dropout(node: Node) -> None:
    ratio = node.inputs(2)[1]
    array = node.constant(ratio) if ratio else None
    if array is not None and array.size and not 0 <= array.min() <= array.max() < 1:
        node.refuse(f"its ratio is {array.tolist()}; supported are numbers from 0 to below 1")


def _if(node: Node) -> None:
    condition = node.proto.input[0]
    _require_one(node, condition, "condition")
    kind = node.element_type(condition)
    if kind not in (0, TensorProto.BOOL):
        name = TensorProto.DataType.Name(kind).lower()
        node.refuse(f"its condition {condition!r} is of type {name}; supported is bool")


def _upsample(node: Node) -> None:
    scales = node.inputs(2)[1]
    array = node.constant(scales) if scales else None
    factors = node.attributes.get("scales", ()) if array is None else array.tolist()
    if any(not factor >= 1 for factor in factors):
        node.refuse(f"its scales are {list(factors)}; supported are numbers from 1 on")


def _recurrent(node: Node) -> None:
    x, *_, steps = node.inputs(5)
    array, sizes = node.constant(steps) if steps else None, node.sizes(x)
    place = 1 if node.attributes.get("layout", 0) else 0
    if array is None or not array.size or not sizes or sizes[place] is None:
        return
    if not 0 <= array.min() <= array.max() <= (sizes[place] or 0):
        node.refuse(
            f"its sequence_lens {steps!r} are {array.tolist()}, and {x!r} has {sizes[place]} steps"
        )


_CHECKS: Mapping[str, Callable[[Node], None]] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"), _pool),
    "Clip": _clip,
    **dict.fromkeys(("Conv", "ConvTranspose"), _conv),
    "CumSum": _cum_sum,
    "Dropout": _dropout,
    "Gather": _gather,
    **dict.fromkeys(("GatherElements", "Scatter", "ScatterElements"), _elements),
    **dict.fromkeys(("GatherND", "ScatterND"), _nd),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _of_images),
    **dict.fromkeys(("InstanceNormalization", "QLinearGlobalAveragePool"), _of_images),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "If": _if,
    "NonMaxSuppression": _non_max_suppression,
    "PRelu": _p_relu,
    "Pad": _pad,
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantize),
    "RoiAlign": _roi_align,
    "Upsample": _upsample,
}
"""What is asked of an operator, by its name."""
