# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX with attributes or types that TVM's importer reads wrongly.

Each is written with operators that it reads rightly, or refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper

from .graph import NARROW
from .node import Node, Rule

_SIGNED = {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
_INTEGERS = _SIGNED | {
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
}


def _one_hot(node: Node) -> None:
    """TVM makes the values float64 or int64, whatever they are."""
    indices, depth, values = node.inputs(3)
    kind, array, count = node.element_type(values), node.constant(values), node.constant(depth)
    if array is None:
        node.refuse(f"its values {values!r} are computed in the graph; supported are constants")
    if count is None:
        node.refuse(f"its depth {depth!r} is computed in the graph; supported are constants")
    if array.shape != (2,) or count.size != 1 or count.item() < 1:
        node.refuse(
            f"its values have the shape {list(array.shape)}, and its depth is {count.tolist()}; "
            "supported are two values, and a depth of at least 1"
        )
    if node.element_type(indices) not in (0, TensorProto.INT32, TensorProto.INT64):
        indices = node.cast(indices, TensorProto.INT64)
    size = node.literal(int(count.item()), "int64")
    wide = node.literal(array, "float64" if array.dtype.kind == "f" else "int64")
    axis, sizes = node.attributes.get("axis", -1), node.sizes(node.proto.input[0])
    if axis < -1 and sizes is None:
        node.refuse(f"axis={axis} needs the rank of its indices, which is not known")
    # TVM counts -1 alone from the end.
    axis += len(sizes or ()) + 1 if axis < -1 else 0
    hot = node.write("OneHot", indices, size, wide, axis=axis)
    node.result("Cast", hot, to=kind)


def _roi_align(node: Node) -> None:
    """TVM moves regions by half a pixel before it scales them: here, they are scaled before."""
    x, rois, batches = node.inputs(3)
    attributes = dict(node.attributes)
    if attributes.get("mode", b"avg") != b"avg":
        # TVM takes the largest sample; ONNX the largest product of a sample and its weight.
        node.refuse("mode=max is not supported; supported is mode=avg")
    scale = attributes.pop("spatial_scale", 1.0)
    if scale != 1:
        kind = node.element_type(rois) or TensorProto.FLOAT
        factor = np.array(scale, helper.tensor_dtype_to_np_dtype(kind))
        rois = node.write("Mul", rois, node.literal(factor))
    node.result("RoiAlign", x, rois, batches, attributes=attributes)


def _pow(node: Node) -> None:
    """TVM takes powers of floats of one type; the result of ONNX has the type of the base."""
    base, exponent = node.inputs(2)
    kind, kind_of_exponent = node.element_type(base), node.element_type(exponent)
    if not kind or not kind_of_exponent or (kind == kind_of_exponent and kind not in _INTEGERS):
        node.keep()
        return
    inside = TensorProto.DOUBLE if kind in _INTEGERS else kind
    inputs = [
        name if node.element_type(name) == inside else node.cast(name, inside)
        for name in (base, exponent)
    ]
    if inside == kind:
        node.result("Pow", *inputs)
    else:
        node.result("Cast", node.write("Pow", *inputs), to=kind)


def _dropout(node: Node) -> None:
    x, _, training = node.inputs(3)
    if training:
        trains = node.constant(training)
        if trains is None or bool(trains):
            node.refuse("training_mode is not supported; export the model for inference")
    node.require_first_alone()
    node.result("Identity", x)


def _batch_normalization(node: Node) -> None:
    if node.attributes.get("training_mode", 0):
        node.refuse("training_mode=1 is not supported; export the model for inference")
    if node.attributes.get("spatial", 1) != 1:
        node.refuse("spatial=0 is not supported; supported is spatial=1")
    if len(node.proto.output) > 1:
        # Before version 14, further results mean training, even if nothing reads them.
        node.refuse(
            f"it has {len(node.proto.output)} results, as for training; supported is the first "
            "alone: export the model for inference"
        )
    node.keep()


def _is_inf(node: Node) -> None:
    """TVM finds infinities of both signs."""
    positive = node.attributes.get("detect_positive", 1)
    negative = node.attributes.get("detect_negative", 1)
    if positive and negative:
        node.keep()
        return
    x = node.proto.input[0]
    kind = helper.tensor_dtype_to_np_dtype(node.element_type(x) or TensorProto.FLOAT)
    infinite = node.write("IsInf", x)
    if positive or negative:
        zero = node.literal(np.zeros((), kind))
        signed = node.write("Greater" if positive else "Less", x, zero)
    else:
        signed = node.literal(False)
    node.result("And", infinite, signed)


def _bit_shift(node: Node) -> None:
    x, amount = node.inputs(2)
    kind = node.element_type(x)
    if kind in _SIGNED:
        bits = helper.tensor_dtype_to_np_dtype(kind).itemsize * 8
        array = node.constant(amount)
        if array is None or array.min(initial=0) < 0 or array.max(initial=0) >= bits:
            node.refuse(
                f"its shift {amount!r} of signed numbers is not constant, or not between 0 and "
                f"{bits - 1}"
            )
    node.keep()


def _in_type(node: Node, inside: int, kind: int) -> None:
    """Compute in another type than that of the first input, to which the result is cast."""
    inputs = [node.cast(node.proto.input[0], inside), *node.proto.input[1:]]
    result = node.write(node.proto.op_type, *inputs, attributes=node.attributes)
    node.result("Cast", result, to=kind)


def _extremum(node: Node) -> None:
    """TVM has no largest and smallest truth values."""
    x = node.proto.input[0]
    if node.element_type(x) != TensorProto.BOOL:
        node.keep()
        return
    if node.is_empty(x):
        node.refuse(f"its input {x!r} has no elements")
    _in_type(node, TensorProto.INT8, TensorProto.BOOL)


_OF_ONE = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log", "ReduceSumSquare": "Mul"}
"""What reductions compute of a single element, where that is not the element itself."""


def _reduce(node: Node) -> None:
    """TVM leaves the elements as they are where no axis is reduced."""
    x, axes = node.inputs(2)
    array = node.constant(axes) if axes else None
    none = not node.attributes.get("axes") and (not axes or (array is not None and not array.size))
    if node.attributes.get("noop_with_empty_axes", 0) and none:
        op = _OF_ONE[node.proto.op_type]
        node.result(op, *([x, x] if op == "Mul" else [x]))
        return
    node.keep()


def _reduce_mean(node: Node) -> None:
    """TVM computes the means of integers as int64, and does not say so."""
    kind = node.element_type(node.proto.input[0])
    if kind not in _INTEGERS or kind == TensorProto.INT64:
        node.keep()
    else:
        _in_type(node, TensorProto.INT64, kind)


def _pad(node: Node) -> None:
    mode = node.text("mode", "constant")
    pads = node.inputs(2)[1]
    array = node.constant(pads) if pads else np.array(node.attributes.get("pads", ()))
    if mode == "wrap" and (array is None or array.min(initial=0) < 0):
        node.refuse("mode=wrap with negative or computed pads is not supported")
    node.keep()


def _space_to_depth(node: Node) -> None:
    mode = node.text("mode", "DCR")
    if mode != "DCR":
        node.refuse(f"mode={mode} is not supported; supported is mode=DCR")
    node.keep()


def _mod(node: Node) -> None:
    kind = node.element_type(node.proto.input[0])
    if kind and kind not in _INTEGERS and not node.attributes.get("fmod", 0):
        node.refuse("fmod=0 of floats is not supported; supported is fmod=1")
    node.keep()


def _to_type(node: Node) -> None:
    kind = node.attributes.get("to", 0)
    if node.proto.op_type == "CastLike":
        kind = node.element_type(node.proto.input[1])
    if kind in NARROW:
        name = TensorProto.DataType.Name(kind).lower()
        node.refuse(f"its result is of type {name}; supported are types of at least 8 bits")
    node.keep()


def _non_max_suppression(node: Node) -> None:
    names = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")
    inputs = node.inputs(5)
    for limit, name in zip(inputs[2:], names, strict=True):
        if limit and node.constant(limit) is None:
            node.refuse(f"its {name} {limit!r} is computed in the graph; supported are constants")
    threshold = node.constant(inputs[3])
    threshold = np.zeros(1, "float32") if threshold is None else threshold
    # TVM suppresses boxes that overlap by the threshold or more, ONNX only by more.
    next_one = np.maximum(np.nextafter(threshold, np.float32(2)), np.float32(1e-20))
    inputs[3] = node.literal(next_one, "float32")
    inputs = inputs if inputs[4] else inputs[:4]
    node.result(node.proto.op_type, *inputs, attributes=node.attributes)


RULES: Mapping[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "BitShift": _bit_shift,
    "Cast": _to_type,
    "CastLike": _to_type,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "Mod": _mod,
    "NonMaxSuppression": _non_max_suppression,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Pow": _pow,
    **dict.fromkeys(_OF_ONE, _reduce),
    "ReduceMax": _extremum,
    "ReduceMean": _reduce_mean,
    "ReduceMin": _extremum,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _space_to_depth,
}
