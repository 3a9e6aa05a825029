# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX with attributes or types that TVM's importer reads wrongly.

Each is written with operators that it reads rightly, or refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper

from .graph import NARROW, Graph, Node, Rule

_INTEGERS = {
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
}
_SIGNED = {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}


def _keep(graph: Graph, node: Node) -> None:
    graph.nodes.append(node.proto)


def _one_hot(graph: Graph, node: Node) -> None:
    """TVM makes the values float64 or int64, whatever they are."""
    indices, depth, values = node.inputs(3)
    kind, array, count = graph.element_type(values), graph.constant(values), graph.constant(depth)
    if array is None:
        node.refuse(f"its values {values!r} are computed in the graph; supported are constants")
    if count is None:
        node.refuse(f"its depth {depth!r} is computed in the graph; supported are constants")
    if array.shape != (2,) or count.size != 1 or count.item() < 1:
        node.refuse(
            f"its values have the shape {list(array.shape)}, and its depth is {count.tolist()}; "
            "supported are two values, and a depth of at least 1"
        )
    if graph.element_type(indices) not in (0, TensorProto.INT32, TensorProto.INT64):
        indices = _cast(graph, node, indices, TensorProto.INT64)
    size = graph.add_constant(f"{depth}_scalar", np.array(int(count.item()), "int64"))
    wide = array.astype("float64" if array.dtype.kind == "f" else "int64")
    inputs = [indices, size, graph.add_constant(f"{values}_wide", wide)]
    axis, sizes = node.attributes.get("axis", -1), graph.sizes(node.proto.input[0])
    if axis < -1 and sizes is None:
        node.refuse(f"axis={axis} needs the rank of its indices, which is not known")
    # TVM counts -1 alone from the end.
    axis += len(sizes or ()) + 1 if axis < -1 else 0
    hot = graph.emit("OneHot", inputs, {"axis": axis}, like=node)
    graph.emit("Cast", [hot], {"to": kind}, node.proto.output[0], like=node)


def _roi_align(graph: Graph, node: Node) -> None:
    """TVM moves the regions by half a pixel before it scales them; scaled ones need no scale."""
    x, rois, batches = node.inputs(3)
    attributes = dict(node.attributes)
    if attributes.get("mode", b"avg") != b"avg":
        # TVM takes the largest sample; ONNX the largest product of a sample and its weight.
        node.refuse("mode=max is not supported; supported is mode=avg")
    scale = attributes.pop("spatial_scale", 1.0)
    if scale != 1:
        kind = graph.element_type(rois) or TensorProto.FLOAT
        factor = np.array(scale, helper.tensor_dtype_to_np_dtype(kind))
        inputs = [rois, graph.add_constant("spatial_scale", factor)]
        rois = graph.emit("Mul", inputs, like=node)
    inputs = [x, rois, batches]
    graph.emit("RoiAlign", inputs, attributes, node.proto.output[0], like=node)


def _pow(graph: Graph, node: Node) -> None:
    """TVM takes powers of floats of one type; the result of ONNX has the type of the base."""
    base, exponent = node.inputs(2)
    kind, other = graph.element_type(base), graph.element_type(exponent)
    if not kind or not other or (kind == other and kind not in _INTEGERS):
        _keep(graph, node)
        return
    inside = TensorProto.DOUBLE if kind in _INTEGERS else kind
    inputs = [
        name if graph.element_type(name) == inside else _cast(graph, node, name, inside)
        for name in (base, exponent)
    ]
    output = node.proto.output[0]
    if inside == kind:
        graph.emit("Pow", inputs, output=output, like=node)
        return
    power = graph.emit("Pow", inputs, like=node)
    graph.emit("Cast", [power], {"to": kind}, output, like=node)


def _cast(graph: Graph, node: Node, name: str, kind: int) -> str:
    return graph.emit("Cast", [name], {"to": kind}, like=node)


def _dropout(graph: Graph, node: Node) -> None:
    x, _, training = node.inputs(3)
    if training:
        trains = graph.constant(training)
        if trains is None or bool(trains):
            node.refuse("training_mode is not supported; export the model for inference")
    graph.require_first_alone(node)
    graph.emit("Identity", [x], output=node.proto.output[0], like=node)


def _batch_normalization(graph: Graph, node: Node) -> None:
    if node.attributes.get("training_mode", 0):
        node.refuse("training_mode=1 is not supported; export the model for inference")
    if node.attributes.get("spatial", 1) != 1:
        node.refuse("spatial=0 is not supported; supported is spatial=1")
    if len(node.proto.output) > 1:
        # Before version 14, these say that it trains, also if nothing reads them.
        node.refuse(
            f"it has {len(node.proto.output)} results, as for training; supported is the first "
            "alone: export the model for inference"
        )
    _keep(graph, node)


def _is_inf(graph: Graph, node: Node) -> None:
    """TVM finds infinities of both signs."""
    positive = node.attributes.get("detect_positive", 1)
    negative = node.attributes.get("detect_negative", 1)
    if positive and negative:
        _keep(graph, node)
        return
    x, output = node.proto.input[0], node.proto.output[0]
    kind = helper.tensor_dtype_to_np_dtype(graph.element_type(x) or TensorProto.FLOAT)
    zero = graph.add_constant("zero", np.zeros((), kind))
    infinite = graph.emit("IsInf", [x], like=node)
    if positive or negative:
        signed = graph.emit("Greater" if positive else "Less", [x, zero], like=node)
    else:
        signed = graph.add_constant("never", np.zeros((), "bool"))
    graph.emit("And", [infinite, signed], output=output, like=node)


def _bit_shift(graph: Graph, node: Node) -> None:
    x, amount = node.inputs(2)
    kind = graph.element_type(x)
    if kind in _SIGNED:
        bits = helper.tensor_dtype_to_np_dtype(kind).itemsize * 8
        array = graph.constant(amount)
        if array is None or array.min(initial=0) < 0 or array.max(initial=0) >= bits:
            node.refuse(
                f"its shift {amount!r} of signed numbers is not constant, or not between 0 and "
                f"{bits - 1}"
            )
    _keep(graph, node)


def _extremum(graph: Graph, node: Node) -> None:
    """TVM has no largest and smallest truth values."""
    x, output = node.proto.input[0], node.proto.output[0]
    if graph.element_type(x) != TensorProto.BOOL:
        _keep(graph, node)
        return
    if graph.is_empty(x):
        node.refuse(f"its input {x!r} has no elements")
    inputs = [_cast(graph, node, x, TensorProto.INT8), *node.proto.input[1:]]
    found = graph.emit(node.proto.op_type, inputs, node.attributes, like=node)
    graph.emit("Cast", [found], {"to": TensorProto.BOOL}, output, like=node)


_OF_ONE = {
    "ReduceL1": "Abs",
    "ReduceL2": "Abs",
    "ReduceLogSum": "Log",
    "ReduceSumSquare": "Mul",
}
"""What a reduction is of each element alone, where that is not the element."""


def _reduce(graph: Graph, node: Node) -> None:
    """TVM leaves the elements as they are where no axis is reduced."""
    x, axes = node.inputs(2)
    array = graph.constant(axes) if axes else None
    none = not node.attributes.get("axes") and (not axes or (array is not None and not array.size))
    if node.attributes.get("noop_with_empty_axes", 0) and none:
        op = _OF_ONE[node.proto.op_type]
        inputs = [x, x] if op == "Mul" else [x]
        graph.emit(op, inputs, output=node.proto.output[0], like=node)
        return
    _keep(graph, node)


def _reduce_mean(graph: Graph, node: Node) -> None:
    """TVM computes the means of integers as int64, and does not say so."""
    x = node.proto.input[0]
    kind = graph.element_type(x)
    if kind not in _INTEGERS or kind == TensorProto.INT64:
        _keep(graph, node)
        return
    inputs = [_cast(graph, node, x, TensorProto.INT64), *node.proto.input[1:]]
    mean = graph.emit("ReduceMean", inputs, node.attributes, like=node)
    graph.emit("Cast", [mean], {"to": kind}, node.proto.output[0], like=node)


def _pad(graph: Graph, node: Node) -> None:
    mode = node.attributes.get("mode", b"constant").decode()
    pads = node.inputs(2)[1]
    array = graph.constant(pads) if pads else np.array(node.attributes.get("pads", ()))
    if mode == "wrap" and (array is None or array.min(initial=0) < 0):
        node.refuse("mode=wrap with negative or computed pads is not supported")
    _keep(graph, node)


def _space_to_depth(graph: Graph, node: Node) -> None:
    mode = node.attributes.get("mode", b"DCR").decode()
    if mode != "DCR":
        node.refuse(f"mode={mode} is not supported; supported is mode=DCR")
    _keep(graph, node)


def _mod(graph: Graph, node: Node) -> None:
    kind = graph.element_type(node.proto.input[0])
    if kind and kind not in _INTEGERS and not node.attributes.get("fmod", 0):
        node.refuse("fmod=0 of floats is not supported; supported is fmod=1")
    _keep(graph, node)


def _to_type(graph: Graph, node: Node) -> None:
    kind = node.attributes.get("to", 0)
    if node.proto.op_type == "CastLike":
        kind = graph.element_type(node.proto.input[1])
    if kind in NARROW:
        name = TensorProto.DataType.Name(kind).lower()
        node.refuse(f"its result is of type {name}; supported are types of at least 8 bits")
    _keep(graph, node)


def _non_max_suppression(graph: Graph, node: Node) -> None:
    names = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")
    inputs = node.inputs(5)
    for input_, name in zip(inputs[2:], names, strict=True):
        if input_ and graph.constant(input_) is None:
            node.refuse(f"its {name} {input_!r} is computed in the graph; supported are constants")
    threshold = graph.constant(inputs[3])
    least = np.zeros(1, "float32") if threshold is None else threshold
    # TVM suppresses boxes that overlap as much as the threshold; ONNX those that do more.
    more = np.maximum(np.nextafter(least, np.float32(2)), np.float32(1e-20))
    inputs[3] = graph.add_constant("iou_threshold", more.astype("float32"))
    inputs = inputs if inputs[4] else inputs[:4]
    graph.emit(node.proto.op_type, inputs, node.attributes, node.proto.output[0], like=node)


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
"""What rewrites an operator, by its name."""
