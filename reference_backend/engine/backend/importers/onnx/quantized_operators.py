# SPDX-License-Identifier: Apache-2.0
"""Quantized ONNX operators as dequantize, op, quantize, for TVM's importer.

It reads QuantizeLinear, DequantizeLinear and MatMulInteger; each other quantized operator has a
rule here that writes it with these and with float operators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
from onnx import NodeProto, TensorProto, helper

from .blocks import Blocks, gather_block_quantized, matmul_nbits
from .graph import NARROW, attributes_of, refuse
from .node import Node, Rule

_QUANTIZED = re.compile(r"^Q[A-Z].*|.*Integer(16|ToFloat)?$|^DynamicQuantize.*|.*(NBits|Bnb4).*")


def is_unknown(node: NodeProto) -> bool:
    """Whether a node has a quantized operator that nobody reads."""
    name = node.op_type
    return not (_QUANTIZED.match(name) is None or name in RULES or name in _READ_BY_TVM)


def refuse_unknown(node: NodeProto) -> NoReturn:
    """Raise that a quantized operator is not supported."""
    names = ", ".join(sorted({*RULES, *_READ_BY_TVM}))
    refuse(node, f"this operator is not supported; supported are {names}")


# ---- QuantizeLinear and DequantizeLinear --------------------------------------------------------

_INTEGERS = {
    *(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16),
    *(TensorProto.INT32, *NARROW),
}


def _check_type(node: Node, kind: int) -> None:
    if kind and kind not in _INTEGERS:
        name = TensorProto.DataType.Name(kind).lower()
        node.refuse(
            f"its quantized type is {name}; supported are integers of 2, 4, 8 and 16 bits, and "
            "int32 for biases"
        )


def _dequantize_linear(node: Node) -> None:
    x, scale, zero_point = node.inputs(3)
    _check_type(node, node.element_type(x) or node.element_type(zero_point))
    attributes, output = dict(node.attributes), node.proto.output[0]
    kinds = (node.element_type(scale), attributes.get("output_dtype", 0))
    if TensorProto.BFLOAT16 not in kinds:
        _rewrite(node, [x, scale, zero_point], output, attributes)
        return
    # TVM dequantizes to float32 and float16 only.
    kind = attributes.pop("output_dtype", 0) or kinds[0]
    real = node.graph.fresh(f"{output}_float32")
    _rewrite(node, [x, node.scale(scale), zero_point], real, attributes)
    node.result("Cast", real, to=kind)


def _quantize_linear(node: Node) -> None:
    x, scale, zero_point = node.inputs(3)
    attributes, output = dict(node.attributes), node.proto.output[0]
    default = attributes.get("output_dtype", 0) or TensorProto.UINT8
    kind = node.element_type(zero_point) if zero_point else default
    _check_type(node, kind)
    if kind == TensorProto.INT32:
        node.refuse("its type is int32; supported are integers of 2, 4, 8 and 16 bits")
    shape = node.shape(x)
    node.graph.learn(output, kind, shape)
    if node.element_type(scale) == TensorProto.BFLOAT16:
        # TVM quantizes float32 and float16 only.
        x = node.cast(x, TensorProto.FLOAT)
        node.graph.learn(x, TensorProto.FLOAT, shape)
        scale = node.scale(scale)
    held, low, high = NARROW.get(kind, (kind, 0, 0))
    if "output_dtype" in attributes:
        attributes["output_dtype"] = held
    unclipped = node.graph.fresh(f"{output}_unclipped") if kind in NARROW else output
    _rewrite(node, [x, scale, zero_point], unclipped, attributes)
    if kind in NARROW:
        dtype = str(helper.tensor_dtype_to_np_dtype(held))
        node.result("Clip", unclipped, node.literal(low, dtype), node.literal(high, dtype))


def _rewrite(
    node: Node, inputs: Sequence[str], output: str, attributes: Mapping[str, object]
) -> None:
    """Write the operator of a node again: by rows if its scale changes along blocks."""
    (x, scale, zero_point), op = inputs, node.proto.op_type
    attributes = dict(attributes)
    if attributes.pop("block_size", 0):
        blocks = Blocks(node, x, scale)
        parts = [blocks.split(x), blocks.flat(scale)]
        parts += [blocks.flat(zero_point)] if zero_point else []
        blocks.join(node.write(op, *parts, attributes={**attributes, "axis": 0}), output)
        return
    inputs = [x, node.scalar(scale), node.scalar(zero_point)][: 3 if zero_point else 2]
    domain, name = node.proto.domain or None, node.proto.name
    again = helper.make_node(op, inputs, [output], name, domain=domain, **attributes)
    node.graph.nodes.append(again)


# ---- Matrices -----------------------------------------------------------------------------------


def _only(node: Node, **values: object) -> dict[str, object]:
    """Return the attributes of a node without those for which only one value is supported."""
    attributes = dict(node.attributes)
    for name, value in values.items():
        given = attributes.pop(name, value)
        if given != value:
            node.refuse(f"{name}={given} is not supported; supported is {name}={value}")
    return attributes


def _bias(node: Node, bias: str, scales: Sequence[str], factor: float = 1.0) -> str:
    """Dequantize a bias, whose scale is the product of those of the inputs."""
    first, second = (node.constant(name) for name in scales)
    if first is not None and second is not None:
        product = (first * second * np.float32(factor)).astype(first.dtype)
        scale = node.literal(product, name=f"{bias}_scale")
    else:
        if factor != 1:
            node.refuse("alpha with scales that are not constants; supported is alpha=1")
        scale = node.write("Mul", *scales)
        shapes = [node.shape(name) for name in scales]
        node.graph.learn(scale, 0, max((shape or () for shape in shapes), key=math.prod))
    return node.dequantize(bias, scale, "", 0)


def _qlinear_conv(node: Node) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = node.inputs(9)
    attributes = _only(node, channels_last=0)
    inputs = [node.dequantize(x, x_scale, x_zero, 1), node.dequantize(w, w_scale, w_zero, 0)]
    if bias:
        inputs.append(_bias(node, bias, [x_scale, w_scale]))
    node.quantize(node.write("Conv", *inputs, attributes=attributes), y_scale, y_zero, x)


def _qgemm(node: Node) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = node.inputs(9)
    channels = 0 if node.attributes.get("transB", 0) else 1
    inputs = [node.dequantize(a, a_scale, a_zero, 0), node.dequantize(b, b_scale, b_zero, channels)]
    if c:
        factor = node.attributes.get("alpha", 1.0)
        inputs.append(_bias(node, c, [a_scale, b_scale], factor))
    output = "" if y_scale else node.proto.output[0]
    y = node.write("Gemm", *inputs, output=output, attributes=node.attributes)
    if y_scale:
        node.quantize(y, y_scale, y_zero, a)


def _matmul_to_float(node: Node) -> None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = node.inputs(7)
    a, b = node.dequantize(a, a_scale, a_zero, -2), node.dequantize(b, b_scale, b_zero, -1)
    node.matmul(a, b, bias)


def _dynamic_matmul(node: Node) -> None:
    a, b, b_scale, b_zero, bias = node.inputs(5)
    parts = ("quantized", "scale", "zero_point")
    q, scale, zero_point = (node.graph.fresh(f"{a}_{part}") for part in parts)
    _quantize_dynamically(node, a, [q, scale, zero_point])
    a, b = node.dequantize(q, scale, zero_point), node.dequantize(b, b_scale, b_zero, -1)
    node.matmul(a, b, bias)


# ---- Sums of integers ---------------------------------------------------------------------------


def _matmul_integer(node: Node) -> None:
    if not _scaled(node, "MatMul", -2, -1):
        node.keep()


def _conv_integer(node: Node) -> None:
    if _scaled(node, "Conv", 1, 0):
        return
    x, w, x_zero, w_zero = node.inputs(4)
    inputs = []
    for name, zero_point in ((x, x_zero), (w, w_zero)):
        wide = node.cast(name, TensorProto.INT32)
        if zero_point:
            zero = node.cast(zero_point, TensorProto.INT32)
            if name == w and node.axis_of(zero_point, 0) is not None:
                shape = node.shape(w)
                if shape is None:
                    node.refuse(f"the shape of its weights {w!r} is not known")
                zero = node.reshape(zero, (-1, *[1] * (len(shape) - 1)))
            wide = node.write("Sub", wide, zero)
        inputs.append(wide)
    node.result("Conv", *inputs, attributes=node.attributes)


def _scaled(node: Node, op: str, a_axis: int, b_axis: int) -> bool:
    """Write sums of integers that are only cast and scaled as an operator on floats.

    Quantizers for activations whose scale is computed at run time write them so: the product of
    both scales multiplies the sums.
    """
    (a, b, a_zero, b_zero), graph = node.inputs(4), node.graph
    cast = graph.single_user(node.proto.output[0], "Cast")
    mul = graph.single_user(cast.output[0], "Mul") if cast else None
    if cast is None or mul is None or attributes_of(cast).get("to") != TensorProto.FLOAT:
        return False
    product = next((name for name in mul.input if name != cast.output[0]), "")
    scales, source = graph.producers.get(product), graph.producers.get(a)
    if scales is None or scales.op_type != "Mul" or source is None:
        return False
    if source.op_type != "DynamicQuantizeLinear" or a_zero != source.output[2]:
        return False
    a_scale = source.output[1]
    b_scale = next((name for name in scales.input if name != a_scale), "")
    if a_scale not in scales.input or node.constant(b_scale) is None:
        return False
    a = node.dequantize(a, a_scale, a_zero, a_axis)
    b = node.dequantize(b, b_scale, b_zero, b_axis)
    node.write(op, a, b, output=mul.output[0], attributes=node.attributes)
    positions = {id(proto): index for index, proto in enumerate(graph.proto.node)}
    graph.absorbed.update(positions[id(proto)] for proto in (cast, mul))
    return True


def _dynamic_quantize(node: Node) -> None:
    outputs = [*node.proto.output]
    names = [name or node.graph.fresh("unused") for name in outputs + [""] * (3 - len(outputs))]
    _quantize_dynamically(node, node.proto.input[0], names)


def _quantize_dynamically(node: Node, x: str, names: Sequence[str]) -> None:
    """Quantize to uint8 by the range of the data, which TVM divides by even if it is empty."""
    y, scale, zero_point = names
    zero, steps, one = (node.literal(number, "float32") for number in (0, 255, 1))
    low, high = (
        node.write(end, node.write(f"Reduce{end}", x, keepdims=0), zero) for end in ("Min", "Max")
    )
    width = node.write("Div", node.write("Sub", high, low), steps)
    empty = node.write("Equal", width, zero)
    node.write("Where", empty, one, width, output=scale)
    offset = node.write("Div", node.write("Neg", low), scale)
    # TVM's importer writes a Cast to integers as many ops.
    row = node.reshape(offset, (1,))
    rounded = node.write("QuantizeLinear", row, one, node.literal(0, "uint8"))
    node.reshape(rounded, (), zero_point)
    node.write("QuantizeLinear", x, scale, zero_point, output=y)
    node.graph.learn(y, TensorProto.UINT8)
    node.graph.learn(scale, TensorProto.FLOAT, ())
    node.graph.learn(zero_point, TensorProto.UINT8, ())


# ---- One and two inputs -------------------------------------------------------------------------


def _unary(op: str, node: Node, **only: object) -> None:
    x, x_scale, x_zero, y_scale, y_zero = node.inputs(5)
    attributes = _only(node, **only)
    y = node.write(op, node.dequantize(x, x_scale, x_zero, 0), attributes=attributes)
    node.quantize(y, y_scale, y_zero, x)


def _softmax(node: Node) -> None:
    # Softmax changed its meaning in opset 13, and QLinearSoftmax says which one it has.
    meant = node.attributes.pop("opset", node.graph.opset)
    if (meant < 13) != (node.graph.opset < 13):
        node.refuse(
            f"opset={meant} in a model of opset {node.graph.opset} is not supported; supported are "
            "both below 13, and both 13 or later"
        )
    # Earlier versions of Softmax had another default.
    node.attributes.setdefault("axis", -1)
    _unary("Softmax", node)


def _binary(op: str, a_axis: int, b_axis: int, node: Node) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs(8)
    inputs = [
        node.dequantize(a, a_scale, a_zero, a_axis),
        node.dequantize(b, b_scale, b_zero, b_axis),
    ]
    node.quantize(node.write(op, *inputs), y_scale, y_zero, a)


def _concat(node: Node) -> None:
    y_scale, y_zero, *rest = node.proto.input
    parts = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    inputs = [node.dequantize(x, scale, zero, 0) for x, scale, zero in parts]
    y = node.write("Concat", *inputs, attributes=node.attributes)
    node.quantize(y, y_scale, y_zero, rest[0])


def _where(node: Node) -> None:
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = node.inputs(9)
    reals = [node.dequantize(x, x_scale, x_zero, 0), node.dequantize(y, y_scale, y_zero, 0)]
    node.quantize(node.write("Where", condition, *reals), z_scale, z_zero, x)


RULES: dict[str, Rule] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "GatherBlockQuantized": gather_block_quantized,
    "MatMulInteger": _matmul_integer,
    "MatMulIntegerToFloat": _matmul_to_float,
    "MatMulNBits": matmul_nbits,
    "QGemm": _qgemm,
    "QLinearAdd": partial(_binary, "Add", 0, 0),
    "QLinearAveragePool": partial(_unary, "AveragePool", channels_last=0),
    "QLinearConcat": _concat,
    "QLinearConv": _qlinear_conv,
    "QLinearGlobalAveragePool": partial(_unary, "GlobalAveragePool", channels_last=0),
    "QLinearLeakyRelu": partial(_unary, "LeakyRelu"),
    "QLinearMatMul": partial(_binary, "MatMul", -2, -1),
    "QLinearMul": partial(_binary, "Mul", 0, 0),
    "QLinearSigmoid": partial(_unary, "Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": _quantize_linear,
}

_READ_BY_TVM = {"MatMulInteger16"}
