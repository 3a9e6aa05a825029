# SPDX-License-Identifier: Apache-2.0
"""Resize and Upsample of ONNX, axis by axis.

TVM's importer reads some of them rightly. Each other one is, along every axis, a choice of elements
or a product with a constant matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from ...shared.aliases import Array
from ...shared.messages import FIX_SIZES
from .graph import attributes_of
from .node import Node, Rule

_READ_BY_TVM = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_FLOATS = (0, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class _Axis:
    """One axis that is resized."""

    index: int
    size: int
    result: int
    """The size of the result."""
    scale: float
    start: float = 0
    end: float = 1

    @property
    def is_exact(self) -> bool:
        """Whether the scale is the ratio of the sizes, as TVM takes it."""
        return math.isclose(self.scale * self.size, self.result, rel_tol=1e-6)

    @property
    def is_whole(self) -> bool:
        """Whether one size is a multiple of the other."""
        return not (self.result % self.size and self.size % self.result)


def _resize(node: Node) -> None:
    attributes = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in node.attributes.items()
    }
    if node.graph.opset < 11:
        attributes.update(coordinate_transformation_mode="asymmetric", nearest_mode="simple")
    mode = attributes.get("mode", "nearest")
    if mode == "bilinear":
        mode = "linear"
    coordinates = attributes.get("coordinate_transformation_mode", "half_pixel")
    axes = _axes(node, attributes, coordinates)
    if axes is None:
        _keep(node, attributes, coordinates)
        return
    if any(axis.result <= 0 or axis.size <= 0 for axis in axes):
        node.refuse("it has a result without elements; supported are sizes of at least 1")
    if _is_read_by_tvm(node, axes, mode, coordinates):
        # TVM ignores the first two sizes.
        sizes = [size or 1 for size in node.sizes(node.proto.input[0]) or ()]
        for axis in axes:
            sizes[axis.index] = axis.result
        read = ("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a")
        kept = {name: attributes[name] for name in read if name in attributes}
        kept["exclude_outside"] = attributes.get("exclude_outside", 0)
        inputs = [node.proto.input[0], *[_absent(node)] * 2, node.integers(*sizes)]
        node.result("Resize", *inputs, attributes=kept)
        return
    _by_axis(node, axes, attributes, mode, coordinates)


def _keep(node: Node, attributes: Mapping[str, object], coordinates: str) -> None:
    """Leave a node to TVM, whose sizes only the run knows."""
    if node.graph.opset < 11:
        node.keep()
        return
    if coordinates == "half_pixel_symmetric":
        # Both are the same where the size times the scale is whole.
        coordinates = "half_pixel"
    x, roi, scales, sizes = node.inputs(4)
    is_nearest = attributes.get("mode", "nearest") == "nearest"
    is_floor = is_nearest and attributes.get("nearest_mode") == "floor"
    what = ""
    if coordinates not in _READ_BY_TVM:
        what = f"coordinate_transformation_mode={coordinates}"
    elif sizes and is_floor and coordinates == "asymmetric":
        # TVM divides integers if the scale is whole.
        what = f"{coordinates} with nearest_mode=floor"
    if what:
        node.refuse(f"{what} needs the sizes of its input {x!r} and of its result; {FIX_SIZES}")
    _, fixed, _ = _given(node)
    sizes = sizes if fixed is None else node.literal(fixed)
    inputs = [x, roi, _absent(node), sizes] if sizes else [x, roi, scales]
    kept = {**node.attributes, "coordinate_transformation_mode": coordinates}
    node.result("Resize", *inputs, attributes=kept)


def _absent(node: Node) -> str:
    """Return what stands for absent scales or regions: versions 11 and 12 need a tensor."""
    return "" if node.graph.opset >= 13 else node.literal(np.zeros(0, "float32"))


def _is_read_by_tvm(node: Node, axes: Sequence[_Axis], mode: str, coordinates: str) -> bool:
    sizes = node.sizes(node.proto.input[0]) or ()
    return (
        node.graph.opset >= 11
        and len(sizes) in (3, 4, 5)
        and None not in sizes[2:]
        and coordinates in _READ_BY_TVM
        and not node.attributes.get("antialias", 0)
        and all(axis.index > 1 and axis.is_exact and axis.result > 1 for axis in axes)
        and (mode != "nearest" or all(axis.is_whole for axis in axes))
    )


def _axes(node: Node, attributes: Mapping[str, object], coordinates: str) -> list[_Axis] | None:
    """Return the axes that are resized; None if TVM must find the sizes."""
    x = node.proto.input[0]
    shape = node.sizes(x)
    scales, sizes, roi = _given(node)
    if shape is None or (scales is None and sizes is None):
        _require_plain(node, attributes, x)
        return None
    rank = len(shape)
    indices = [int(axis) for axis in node.attributes.get("axes", range(rank))]
    if any(not -rank <= axis < rank for axis in indices):
        node.refuse(f"its axes {indices} are not all of a tensor of rank {rank}")
    indices = [axis % rank for axis in indices]
    values = scales if scales is not None else sizes
    if values is None or len(values) != len(indices):
        node.refuse(f"its scales or sizes are not one for each of the axes {indices}")
    crops = coordinates == "tf_crop_and_resize"
    if crops and (roi is None or len(roi) != 2 * len(indices)):
        node.refuse("its regions of interest are computed in the graph; supported are constants")
    resized = []
    for position, (index, value) in enumerate(zip(indices, values, strict=True)):
        size = shape[index]
        region = (0.0, 1.0)
        if crops and roi is not None:
            region = (float(roi[position]), float(roi[position + len(indices)]))
        if size is None:
            if (scales is not None and value == 1) or (sizes is not None and index < 2):
                continue
            _require_plain(node, attributes, x)
            if scales is not None and (value % 1 or index < 2):
                node.refuse(f"the scale {value} needs the sizes of its input {x!r}; {FIX_SIZES}")
            return None
        scale = float(value) if scales is not None else value / size
        result = math.floor(np.float32(size) * np.float32(scale)) if sizes is None else int(value)
        resized.append(_Axis(index, size, result, scale, *region))
    policy = attributes.get("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch" and resized:
        pick = min if policy == "not_larger" else max
        scale = pick(axis.scale for axis in resized)
        resized = [
            _Axis(axis.index, axis.size, math.floor(axis.size * scale + 0.5), scale)
            for axis in resized
        ]
    return [axis for axis in resized if crops or axis.scale != 1 or axis.result != axis.size]


def _given(node: Node) -> tuple[Array | None, Array | None, Array | None]:
    """Return the scales, sizes and regions of a node; None for each that is not known."""
    if "scales" in node.attributes:
        return np.array(node.attributes["scales"]), None, None
    if node.graph.opset < 11:
        return node.constant(node.inputs(2)[1]), None, None
    names = node.inputs(4)
    _, roi, scales, sizes = (node.constant(name) for name in names)
    if names[2] and names[3] and not node.is_empty(names[2]) and (scales is None or scales.size):
        node.refuse("it has scales and sizes; supported is one of them")
    if not names[3]:
        return (scales if scales is not None and scales.size else None), None, roi
    if sizes is None and not node.attributes.get("axes"):
        sizes = _inferred(node)
    return None, sizes, roi


def _inferred(node: Node) -> Array | None:
    """Return the sizes that ONNX infers, with a 1 for a batch that stays and is not known."""
    sizes, given = node.sizes(node.proto.output[0]), node.sizes(node.proto.input[0])
    if not sizes or not given or None in sizes[1:]:
        return None
    if sizes[0] is None and (given[0] is not None or not _keeps_batch(node)):
        return None
    return np.array([sizes[0] or 1, *sizes[1:]])


def _keeps_batch(node: Node) -> bool:
    """Whether the first of the sizes is that of the input."""
    x, name = node.proto.input[0], node.proto.input[3]
    while (producer := node.graph.producers.get(name)) is not None:
        op, name = producer.op_type, next(iter(producer.input), "")
        if op == "Shape":
            return name == x and not attributes_of(producer).get("start", 0)
        if op in ("Gather", "Slice"):
            first = node.constant(producer.input[1]) if len(producer.input) > 1 else None
            if first is None or not first.size or first.flat[0] != 0:
                return False
        elif op not in ("Cast", "Concat", "Identity", "Unsqueeze"):
            return False
    return False


def _require_plain(node: Node, attributes: Mapping[str, object], x: str) -> None:
    plain = {"antialias": 0, "axes": None, "keep_aspect_ratio_policy": "stretch"}
    for name, value in plain.items():
        if attributes.get(name, value) != value:
            node.refuse(
                f"{name}={attributes[name]} needs the sizes of its input {x!r} and of its result; "
                f"{FIX_SIZES}"
            )


# ---- One axis -----------------------------------------------------------------------------------


def _positions(node: Node, axis: _Axis, coordinates: str) -> Array:
    """Return where in the input the elements of the result lie."""
    # As ONNX Runtime, in 32 bits: ties depend on it.
    x = np.arange(axis.result, dtype="float32")
    half, scale = np.float32(0.5), np.float32(axis.scale)
    centred: Array = (x + half) / scale - half
    steps = np.float32(max(axis.result - 1, 1))
    positions: Array = centred
    if coordinates == "half_pixel_symmetric":
        adjusted = np.float32(axis.result) / (scale * np.float32(axis.size))
        offset = np.float32(axis.size / 2) * (np.float32(1) - adjusted)
        # ONNX Runtime seems to round the sum only.
        total = offset.astype("float64") + (x + half) / np.float64(scale) - 0.5
        positions = total.astype("float32")
    elif coordinates == "pytorch_half_pixel":
        positions = centred if axis.result > 1 else np.zeros_like(x)
    elif coordinates == "align_corners":
        positions = x * np.float32(axis.size - 1) / steps
    elif coordinates == "asymmetric":
        positions = x / scale
    elif coordinates == "tf_half_pixel_for_nn":
        positions = (x + half) / scale
    elif coordinates == "tf_crop_and_resize":
        last, start, end = (np.float32(number) for number in (axis.size - 1, axis.start, axis.end))
        positions = start * last + x * (end - start) * last / steps
        if axis.result == 1:
            positions = np.array([half * (start + end) * last], "float32")
    elif coordinates != "half_pixel":
        node.refuse(f"coordinate_transformation_mode={coordinates} is not one of ONNX")
    return positions


_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _nearest(node: Node, axis: _Axis, x: Array, rounding: str) -> Array:
    if rounding == "simple":
        rounding = "ceil" if axis.scale < 1 else "floor"
    if rounding not in _ROUNDINGS:
        node.refuse(f"nearest_mode={rounding} is not one of {', '.join(_ROUNDINGS)}")
    chosen: Array = np.clip(_ROUNDINGS[rounding](x), 0, axis.size - 1).astype("int64")
    return chosen


def _linear(distance: Array) -> Array:
    weights: Array = np.maximum(1 - np.abs(distance), 0)
    return weights


def _cubic(a: float) -> Callable[[Array], Array]:
    def weights(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return weights


def _matrix(axis: _Axis, x: Array, attributes: Mapping[str, object], mode: str) -> Array:
    """Return the weights of the inputs, of shape (result, input)."""
    alpha = attributes.get("cubic_coeff_a", -0.75)
    weigh = _cubic(float(str(alpha))) if mode == "cubic" else _linear
    width = min(axis.scale, 1.0) if attributes.get("antialias", 0) else 1.0
    reach = math.ceil((2 if mode == "cubic" else 1) / width) + 1
    matrix = np.zeros((axis.result, axis.size))
    for row, position in enumerate(x.astype("float64")):
        taps = np.arange(math.floor(position) - reach, math.floor(position) + reach + 1)
        weights = weigh((taps - position) * width)
        if attributes.get("exclude_outside", 0):
            weights = np.where((taps >= 0) & (taps < axis.size), weights, 0)
        np.add.at(matrix[row], np.clip(taps, 0, axis.size - 1), weights / weights.sum())
    return matrix


def _by_axis(
    node: Node, axes: Sequence[_Axis], attributes: Mapping[str, object], mode: str, coordinates: str
) -> None:
    x = node.proto.input[0]
    if mode not in ("nearest", "linear", "cubic"):
        node.refuse(f"mode={mode} is not one of nearest, linear and cubic")
    if coordinates == "align_corners" and not all(axis.is_exact for axis in axes):
        # ONNX takes the size times the scale for the size of the result, ONNX Runtime its floor.
        node.refuse(
            "coordinate_transformation_mode=align_corners with a scale that is not the ratio of "
            "the sizes has no agreed meaning; export it with sizes"
        )
    crops = coordinates == "tf_crop_and_resize"
    if crops and (mode == "cubic" or all(axis.scale == 1 for axis in axes)):
        # ONNX Runtime computes other values than ONNX says.
        node.refuse(f"{coordinates} with mode={mode} and these scales has no agreed meaning")
    kind = node.element_type(x)
    if mode != "nearest" and kind not in _FLOATS:
        node.refuse(f"mode={mode} of integers is not supported; supported are floats")
    rank = len(node.sizes(x) or ())
    value, outside = x, np.zeros([1] * rank, bool)
    for axis in axes:
        positions = _positions(node, axis, coordinates)
        if mode == "nearest":
            rounding = str(attributes.get("nearest_mode", "round_prefer_floor"))
            chosen = node.literal(_nearest(node, axis, positions, rounding))
            value = node.write("Gather", value, chosen, axis=axis.index)
        else:
            matrix = _matrix(axis, positions, attributes, mode)
            dtype = helper.tensor_dtype_to_np_dtype(kind or TensorProto.FLOAT)
            value = _product(node, value, matrix.astype(dtype), axis.index, rank)
        if crops:
            shape = [1] * rank
            shape[axis.index] = axis.result
            outside = outside | ((positions < 0) | (positions > axis.size - 1)).reshape(shape)
    if outside.any():
        dtype = helper.tensor_dtype_to_np_dtype(kind or TensorProto.FLOAT)
        filled = np.array(attributes.get("extrapolation_value", 0.0)).astype(dtype)
        value = node.write("Where", node.literal(outside), node.literal(filled), value)
    node.result("Identity", value)


def _product(node: Node, x: str, matrix: Array, index: int, rank: int) -> str:
    """Multiply one axis of a tensor by a matrix."""
    weights = node.literal(np.ascontiguousarray(matrix.T))
    order = [*range(rank)]
    order[index], order[-1] = order[-1], order[index]
    return node.transpose(node.write("MatMul", node.transpose(x, order), weights), order)


RULES: Mapping[str, Rule] = {"Resize": _resize, "Upsample": _resize}
