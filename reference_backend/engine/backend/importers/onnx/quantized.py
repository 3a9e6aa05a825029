# SPDX-License-Identifier: Apache-2.0
"""Quantized ONNX operators as dequantize, op, quantize, for TVM's importer.

It reads QuantizeLinear, DequantizeLinear and MatMulInteger; each other quantized operator has a
rule here that writes it with these and with float operators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
from onnx import NodeProto, TensorProto, helper

from .blocks import Blocks, matmul_nbits
from .graph import NARROW, Graph, Node, Rule

_QUANTIZED = re.compile(r"^Q[A-Z].*|.*Integer(16|ToFloat)?$|^DynamicQuantize.*|.*(NBits|Bnb4).*")


def is_unknown(node: NodeProto) -> bool:
    """Whether a node has a quantized operator that nobody reads."""
    name = node.op_type
    return not (_QUANTIZED.match(name) is None or name in RULES or name in _READ_BY_TVM)


def refuse_unknown(node: Node) -> NoReturn:
    """Raise that a quantized operator is not supported."""
    names = ", ".join(sorted({*RULES, *_READ_BY_TVM}))
    node.refuse(f"this operator is not supported; supported are {names}")


# ---- QuantizeLinear and DequantizeLinear --------------------------------------------------------

_INTEGERS = {
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
    TensorProto.INT32,
    *NARROW,
}


def _check_type(node: Node, kind: int) -> None:
    if kind and kind not in _INTEGERS:
        name = TensorProto.DataType.Name(kind).lower()
        node.refuse(
            f"its quantized type is {name}; supported are integers of 2, 4, 8 and 16 bits, and "
            "int32 for biases"
        )


def _dequantize_linear(graph: Graph, node: Node) -> None:
    x, scale, zero_point = node.inputs(3)
    _check_type(node, graph.element_type(x) or graph.element_type(zero_point))
    output = node.proto.output[0]
    kinds = (graph.element_type(scale), node.attributes.get("output_dtype", 0))
    if TensorProto.BFLOAT16 in kinds:
        # TVM dequantizes to float32 and float16 only.
        kind = node.attributes.pop("output_dtype", 0) or kinds[0]
        real = graph.fresh(f"{output}_float32")
        _dequantize_into(graph, node, [x, graph.scale(node, scale), zero_point], real)
        graph.emit("Cast", [real], {"to": kind}, output, like=node)
        return
    _dequantize_into(graph, node, [x, scale, zero_point], output)


def _dequantize_into(graph: Graph, node: Node, inputs: Sequence[str], output: str) -> None:
    x, scale, zero_point = inputs
    if node.attributes.get("block_size", 0):
        blocks = Blocks(graph, node, x, scale)
        parts = [blocks.split(x), blocks.flat(scale)]
        parts += [blocks.flat(zero_point)] if zero_point else []
        kept = {k: v for k, v in node.attributes.items() if k not in ("axis", "block_size")}
        joined = graph.emit("DequantizeLinear", parts, {**kept, "axis": 0}, like=node)
        blocks.join(joined, output)
        return
    _append(graph, node, [x, graph.scalar(scale), graph.scalar(zero_point)], output)


def _quantize_linear(graph: Graph, node: Node) -> None:
    x, scale, zero_point = node.inputs(3)
    attributes = dict(node.attributes)
    default = attributes.get("output_dtype", 0) or TensorProto.UINT8
    kind = graph.element_type(zero_point) if zero_point else default
    _check_type(node, kind)
    if kind == TensorProto.INT32:
        node.refuse("its type is int32; supported are integers of 2, 4, 8 and 16 bits")
    output = node.proto.output[0]
    graph.learn(output, kind, graph.shape(x))
    if graph.element_type(scale) == TensorProto.BFLOAT16:
        # TVM quantizes float32 and float16 only.
        shape = graph.shape(x)
        x = graph.emit("Cast", [x], {"to": TensorProto.FLOAT}, like=node)
        graph.learn(x, TensorProto.FLOAT, shape)
        scale = graph.scale(node, scale)
    held, low, high = NARROW.get(kind, (kind, 0, 0))
    if "output_dtype" in attributes:
        attributes["output_dtype"] = held
    unclipped = graph.fresh(f"{output}_unclipped") if kind in NARROW else output
    if attributes.pop("block_size", 0):
        blocks = Blocks(graph, node, x, scale)
        parts = [blocks.split(x), blocks.flat(scale)]
        parts += [blocks.flat(zero_point)] if zero_point else []
        joined = graph.emit("QuantizeLinear", parts, {**attributes, "axis": 0}, like=node)
        blocks.join(joined, unclipped)
    else:
        inputs = [x, graph.scalar(scale), graph.scalar(zero_point)]
        _append(graph, node, inputs, unclipped, attributes)
    if kind in NARROW:
        dtype = helper.tensor_dtype_to_np_dtype(held)
        limits = [
            graph.add_constant(f"{output}_{name}", np.array(value, dtype))
            for name, value in (("low", low), ("high", high))
        ]
        graph.emit("Clip", [unclipped, *limits], output=output, like=node)


def _append(
    graph: Graph,
    node: Node,
    inputs: Sequence[str],
    output: str,
    attributes: Mapping[str, object] | None = None,
) -> None:
    """Add a copy of a node with other inputs."""
    attributes = node.attributes if attributes is None else attributes
    while not inputs[-1]:
        inputs = inputs[:-1]
    domain, name = node.proto.domain, node.proto.name
    graph.nodes.append(
        helper.make_node(
            node.proto.op_type, inputs, [output], name, domain=domain or None, **attributes
        )
    )


# ---- Matrices -----------------------------------------------------------------------------------


def _only(node: Node, **values: object) -> dict[str, object]:
    """Return the attributes of a node without those that may have one value only."""
    attributes = dict(node.attributes)
    for name, value in values.items():
        given = attributes.pop(name, value)
        if given != value:
            node.refuse(f"{name}={given} is not supported; supported is {name}={value}")
    return attributes


def _bias(graph: Graph, node: Node, bias: str, scales: Sequence[str], factor: float = 1.0) -> str:
    """Dequantize a bias, whose scale is the product of those of the inputs."""
    first, second = (graph.constant(name) for name in scales)
    if first is not None and second is not None:
        product = (first * second * np.float32(factor)).astype(first.dtype)
        scale = graph.add_constant(f"{bias}_scale", product)
    else:
        if factor != 1:
            node.refuse("alpha with scales that are not constants; supported is alpha=1")
        scale = graph.emit("Mul", scales, like=node)
        shapes = [graph.shape(name) for name in scales]
        graph.learn(scale, 0, max((shape or () for shape in shapes), key=math.prod))
    return graph.dequantize(node, bias, scale, "", 0)


def _qlinear_conv(graph: Graph, node: Node) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = node.inputs(9)
    attributes = _only(node, channels_last=0)
    inputs = [
        graph.dequantize(node, x, x_scale, x_zero, 1),
        graph.dequantize(node, w, w_scale, w_zero, 0),
    ]
    if bias:
        inputs.append(_bias(graph, node, bias, [x_scale, w_scale]))
    y = graph.emit("Conv", inputs, attributes, like=node)
    graph.quantize(node, y, y_scale, y_zero, x)


def _qlinear_matmul(graph: Graph, node: Node) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs(8)
    inputs = [
        graph.dequantize(node, a, a_scale, a_zero, -2),
        graph.dequantize(node, b, b_scale, b_zero, -1),
    ]
    graph.quantize(node, graph.emit("MatMul", inputs, like=node), y_scale, y_zero, a)


def _qgemm(graph: Graph, node: Node) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = node.inputs(9)
    channels = 0 if node.attributes.get("transB", 0) else 1
    inputs = [
        graph.dequantize(node, a, a_scale, a_zero, 0),
        graph.dequantize(node, b, b_scale, b_zero, channels),
    ]
    if c:
        factor = node.attributes.get("alpha", 1.0)
        inputs.append(_bias(graph, node, c, [a_scale, b_scale], factor))
    output = "" if y_scale else node.proto.output[0]
    y = graph.emit("Gemm", inputs, node.attributes, output, like=node)
    if y_scale:
        graph.quantize(node, y, y_scale, y_zero, a)


def _matmul_to_float(graph: Graph, node: Node) -> None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = node.inputs(7)
    inputs = [
        graph.dequantize(node, a, a_scale, a_zero, -2),
        graph.dequantize(node, b, b_scale, b_zero, -1),
    ]
    _biased(graph, node, inputs, bias)


def _dynamic_matmul(graph: Graph, node: Node) -> None:
    a, b, b_scale, b_zero, bias = node.inputs(5)
    parts = ("quantized", "scale", "zero_point")
    q, scale, zero_point = (graph.fresh(f"{a}_{part}") for part in parts)
    _quantize_dynamically(graph, node, a, [q, scale, zero_point])
    inputs = [
        graph.dequantize(node, q, scale, zero_point),
        graph.dequantize(node, b, b_scale, b_zero, -1),
    ]
    _biased(graph, node, inputs, bias)


def _biased(graph: Graph, node: Node, inputs: Sequence[str], bias: str) -> None:
    output = node.proto.output[0]
    product = graph.emit("MatMul", inputs, output="" if bias else output, like=node)
    if bias:
        graph.emit("Add", [product, bias], output=output, like=node)


# ---- Sums of integers ---------------------------------------------------------------------------


def _matmul_integer(graph: Graph, node: Node) -> None:
    if not _scaled(graph, node, "MatMul", -2, -1):
        graph.nodes.append(node.proto)


def _conv_integer(graph: Graph, node: Node) -> None:
    if _scaled(graph, node, "Conv", 1, 0):
        return
    x, w, x_zero, w_zero = node.inputs(4)
    inputs = []
    for name, zero_point in ((x, x_zero), (w, w_zero)):
        wide = graph.emit("Cast", [name], {"to": TensorProto.INT32}, like=node)
        if zero_point:
            zero = graph.emit("Cast", [zero_point], {"to": TensorProto.INT32}, like=node)
            if name == w and graph.axis_of(node, zero_point, 0) is not None:
                shape = graph.shape(w)
                if shape is None:
                    node.refuse(f"the shape of its weights {w!r} is not known")
                rank = np.array([-1, *[1] * (len(shape) - 1)], "int64")
                zero = graph.emit("Reshape", [zero, graph.add_constant("shape", rank)], like=node)
            wide = graph.emit("Sub", [wide, zero], like=node)
        inputs.append(wide)
    graph.emit("Conv", inputs, node.attributes, node.proto.output[0], like=node)


def _scaled(graph: Graph, node: Node, op: str, a_axis: int, b_axis: int) -> bool:
    """Write sums of integers that are only cast and scaled as an operator on floats.

    Quantizers for activations whose scale is computed at run time write them so: the product of
    both scales multiplies the sums.
    """
    a, b, a_zero, b_zero = node.inputs(4)
    cast = _single_user(graph, node.proto.output[0], "Cast")
    mul = _single_user(graph, cast.output[0], "Mul") if cast else None
    if cast is None or mul is None:
        return False
    if Node(cast).attributes.get("to") != TensorProto.FLOAT:
        return False
    product = next((name for name in mul.input if name != cast.output[0]), "")
    scales = graph.producers.get(product)
    source = graph.producers.get(a)
    if scales is None or scales.op_type != "Mul" or source is None:
        return False
    if source.op_type != "DynamicQuantizeLinear" or a_zero != source.output[2]:
        return False
    a_scale = source.output[1]
    b_scale = next((name for name in scales.input if name != a_scale), "")
    if a_scale not in scales.input or graph.constant(b_scale) is None:
        return False
    inputs = [
        graph.dequantize(node, a, a_scale, a_zero, a_axis),
        graph.dequantize(node, b, b_scale, b_zero, b_axis),
    ]
    graph.emit(op, inputs, node.attributes, mul.output[0], like=node)
    positions = {id(item): index for index, item in enumerate(graph.proto.node)}
    graph.absorbed.update(positions[id(item)] for item in (cast, mul))
    return True


def _single_user(graph: Graph, name: str, op: str) -> NodeProto | None:
    """Return the node that alone reads a tensor, if it is of this operator."""
    users = graph.users(name) if graph.uses[name] == 1 else []
    return next((user for user in users if user.op_type == op), None)


def _dynamic_quantize(graph: Graph, node: Node) -> None:
    outputs = [*node.proto.output]
    names = [name or graph.fresh("unused") for name in outputs + [""] * (3 - len(outputs))]
    _quantize_dynamically(graph, node, node.proto.input[0], names)


def _quantize_dynamically(graph: Graph, node: Node, x: str, names: Sequence[str]) -> None:
    """Quantize to uint8 with the scale of the data's range, and 1 if that is empty.

    TVM's importer divides by an empty range.
    """
    y, scale, zero_point = names
    zero = graph.add_constant("zero", np.zeros((), "float32"))
    steps = graph.add_constant("steps", np.array(255, "float32"))
    one = graph.add_constant("one", np.ones((), "float32"))
    low, high = (
        graph.emit(end, [graph.emit(f"Reduce{end}", [x], {"keepdims": 0}, like=node), zero])
        for end in ("Min", "Max")
    )
    width = graph.emit("Div", [graph.emit("Sub", [high, low], like=node), steps], like=node)
    empty = graph.emit("Equal", [width, zero], like=node)
    graph.emit("Where", [empty, one, width], output=scale, like=node)
    offset = graph.emit("Div", [graph.emit("Neg", [low], like=node), scale], like=node)
    # TVM's importer writes a Cast to integers as many ops.
    none = graph.add_constant("none", np.zeros((), "uint8"))
    vector = graph.add_constant("vector", np.ones(1, "int64"))
    scalar = graph.add_constant("scalar", np.zeros(0, "int64"))
    row = graph.emit("Reshape", [offset, vector], like=node)
    rounded = graph.emit("QuantizeLinear", [row, one, none], like=node)
    graph.emit("Reshape", [rounded, scalar], output=zero_point, like=node)
    graph.emit("QuantizeLinear", [x, scale, zero_point], output=y, like=node)
    graph.learn(y, TensorProto.UINT8)
    graph.learn(scale, TensorProto.FLOAT, ())
    graph.learn(zero_point, TensorProto.UINT8, ())


# ---- One and two inputs -------------------------------------------------------------------------


def _unary(op: str, **only: object) -> Rule:
    def rule(graph: Graph, node: Node) -> None:
        x, x_scale, x_zero, y_scale, y_zero = node.inputs(5)
        attributes = _only(node, **only)
        y = graph.emit(op, [graph.dequantize(node, x, x_scale, x_zero, 0)], attributes, like=node)
        graph.quantize(node, y, y_scale, y_zero, x)

    return rule


def _softmax(graph: Graph, node: Node) -> None:
    # Before opset 13 it has another meaning, and the operator says which one it has.
    meant = node.attributes.pop("opset", graph.opset)
    if (meant < 13) != (graph.opset < 13):
        node.refuse(
            f"opset={meant} in a model of opset {graph.opset} is not supported; supported are both "
            "below 13, and both 13 or later"
        )
    # The default of Softmax was another one.
    node.attributes.setdefault("axis", -1)
    _unary("Softmax")(graph, node)


def _binary(op: str) -> Rule:
    def rule(graph: Graph, node: Node) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs(8)
        inputs = [
            graph.dequantize(node, a, a_scale, a_zero, 0),
            graph.dequantize(node, b, b_scale, b_zero, 0),
        ]
        graph.quantize(node, graph.emit(op, inputs, like=node), y_scale, y_zero, a)

    return rule


def _concat(graph: Graph, node: Node) -> None:
    y_scale, y_zero, *rest = node.proto.input
    parts = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    inputs = [graph.dequantize(node, x, scale, zero, 0) for x, scale, zero in parts]
    y = graph.emit("Concat", inputs, node.attributes, like=node)
    graph.quantize(node, y, y_scale, y_zero, rest[0])


def _where(graph: Graph, node: Node) -> None:
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = node.inputs(9)
    inputs = [
        condition,
        graph.dequantize(node, x, x_scale, x_zero, 0),
        graph.dequantize(node, y, y_scale, y_zero, 0),
    ]
    graph.quantize(node, graph.emit("Where", inputs, like=node), z_scale, z_zero, x)


RULES: dict[str, Rule] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulInteger": _matmul_integer,
    "MatMulIntegerToFloat": _matmul_to_float,
    "MatMulNBits": matmul_nbits,
    "QGemm": _qgemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _unary("AveragePool", channels_last=0),
    "QLinearConcat": _concat,
    "QLinearConv": _qlinear_conv,
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool", channels_last=0),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearMatMul": _qlinear_matmul,
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": _quantize_linear,
}
"""What rewrites an operator, by its name."""

_READ_BY_TVM = {"MatMulInteger16"}
