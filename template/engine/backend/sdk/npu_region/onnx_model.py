# SPDX-License-Identifier: Apache-2.0
"""A region as an ONNX model."""

from __future__ import annotations

import math
from collections.abc import Callable

from . import protobuf
from .copies import Box
from .onnx_graph import Graph
from .onnx_resize import resize_attributes
from .onnx_steps import OF_INTEGERS, SAME
from .region import REALS, Declined, Node, Quantization, Region, Value

_CONVERTS = ("cast", "less", "equal", "order", "reduction", "lookup")
"""Nodes whose result may have another type than what they read."""
_MOVES = ("copy", "gather", "lookup", "reshape")


def to_onnx(region: Region, *, rounds_positions: bool = False) -> bytes:
    """Write a region as an ONNX model.

    Inputs and outputs are named `input0`, `output0` and so on, without inputs that no node reads;
    nodes have the labels of the region's. Integers are between QuantizeLinear and
    DequantizeLinear. Convolutions and pools have channels first, as ONNX has them.

    Parameters
    ----------
    region
        The region. What `reason` is asked about has no elements of constants: they become zeros.
    rounds_positions
        Whether Resize may interpolate where float32 does not have all positions, as after
        enlarging three times. Runtimes of ONNX round them, so give the op a tolerance. Otherwise
        the engine composes these resizes of products, which are exact.

    Returns
    -------
    model
        The bytes of the model, of opset 17.

    Raises
    ------
    Declined
        ONNX has nothing for a node; the message names it.
    """
    return _Writer(region if region.has_elements else region.with_zeros(), rounds_positions).model()


def onnx_reason(node: Node, region: Region, *, rounds_positions: bool = False) -> str | None:
    """Say why `to_onnx` declines a node, for the question `reason` of a tool.

    Parameters
    ----------
    node
        The node.
    region
        Its region, which need not have the elements of constants.
    rounds_positions
        As of `to_onnx`.

    Returns
    -------
    reason
        A sentence, or None.
    """
    try:
        _Writer(region, rounds_positions).write_alone(node)
    except Declined as declined:
        return str(declined)
    return None


class _Writer(Graph):
    def __init__(self, region: Region, rounds_positions: bool) -> None:
        super().__init__()
        self._region = region
        self._rounds_positions = rounds_positions
        self._names: dict[str, str] = {}

    def model(self) -> bytes:
        region = self._region
        for value in region.values.values():
            if value.source == "constant":
                self._names[value.name] = value.name
                data = region.bytes_of(value)
                self._keep(value.name, value.dtype, value.shape, data)
            elif value.input is not None:
                port = region.inputs[value.input]
                name = f"input{value.input}"
                if port.shape != value.shape:
                    name = self._reshape(name, value.shape)
                self._names[value.name] = name
        for node in region.nodes:
            self._enter(node)
            region.at(node)
            self._names[node.output] = self._result(node)
        self._enter(None)
        region.at(None)
        renamed: dict[str, str] = {}
        for index, port in enumerate(region.outputs):
            value = region.value(port.value)
            name = self._names[value.name]
            if port.shape != value.shape:
                name = self._reshape(name, port.shape)
            if value.source != "node" or name in renamed:
                name = self._add("Identity", [name])
            renamed[name] = f"output{index}"
        # SDKs drop inputs that no node reads, or refuse them.
        read = {name for _, _, names, *_ in self._nodes for name in names}
        inputs, outputs = (
            [
                protobuf.value_info(f"{kind}{i}", p.dtype, p.shape)
                for i, p in enumerate(ports)
                if kind == "output" or f"input{i}" in read
            ]
            for kind, ports in (("input", region.inputs), ("output", region.outputs))
        )
        return self._model(inputs, outputs, renamed)

    def write_alone(self, node: Node) -> None:
        self._names = {name: name for name in self._region.values}
        self._enter(node)
        self._result(node)

    # ---- Nodes ----

    def _value(self, node: Node, index: int = 0) -> Value:
        return self._region.value(node.inputs[index])

    def _dtype(self, node: Node) -> str:
        """Return in which type a step computes."""
        value = self._value(node)
        return "float32" if value.quantization else value.dtype

    def _inputs(self, node: Node) -> list[str]:
        return [self._names[name] for name in node.inputs if name is not None]

    def _result(self, node: Node) -> str:
        out, inputs = self._region.value(node.output), self._inputs(node)
        if node.op in ("quantize", "dequantize"):
            data = self._value(node)
            scales = Quantization(
                *(node.attributes[key] for key in ("scale", "zero_point", "axis"))
            )
            integers = out if node.op == "quantize" else data
            name = inputs[0]
            if node.op == "quantize" and data.dtype != "float32":
                name = self._real(name, data)
            result = self._scaled(node.op, name, integers.dtype, scales)
            return self._cast(result, out.dtype) if out.dtype == "float16" else result
        # A whole node of integers: what their scales say, and the same node of real numbers.
        given = [self._region.value(name) for name in node.inputs if name is not None]
        whole = not self._moves(node, given) and any(value.quantization for value in given)
        if whole:
            # What selects and what is a place has no scale.
            is_plain = {"select": (0,), "gather": (1,)}.get(node.op, ())
            inputs = [
                name if i in is_plain else self._real(name, value)
                for i, (name, value) in enumerate(zip(inputs, given, strict=True))
            ]
        write: Callable[[Node, list[str]], str] | None = getattr(self, f"_{node.op}_node", None)
        is_integer = given[0].dtype not in REALS and not whole
        if is_integer and node.op in ("matmul", "convolution"):
            node.decline("an ONNX file has no products of integers whose scales are unknown")
        read = self._value(node, 1 if node.op == "select" else 0).dtype
        is_rounded = read in REALS and out.dtype not in REALS and node.op == "cast"
        if not whole and (is_rounded or (node.op not in _CONVERTS and read != out.dtype)):
            node.decline(f"ONNX has no {node.op} from {read} to {out.dtype} that rounds as here")
        result = (write or self._step)(node, inputs)
        result = self._limited(node, result, "float32" if whole else out.dtype)
        if whole and out.dtype == "float16":
            return self._cast(result, out.dtype)
        if whole and out.dtype not in REALS:
            if out.quantization is None:
                node.decline(f"ONNX has no {node.op} with integers whose scales are unknown")
            return self._scaled("quantize", result, out.dtype, out.quantization)
        return result

    def _moves(self, node: Node, given: list[Value]) -> bool:
        """Whether a node takes stored numbers as they are."""
        if node.op == "concat":
            scales = self._region.value(node.output).quantization
            return all(value.quantization == scales for value in given)
        is_nearest = node.op == "resize" and node.attributes["kind"] == "nearest"
        return node.op in _MOVES or is_nearest

    def _real(self, name: str, value: Value) -> str:
        """Return numbers of float32."""
        if value.dtype in REALS:
            return name if value.dtype == "float32" else self._cast(name, "float32")
        if value.quantization is None:
            self._decline("an ONNX file has no integers whose scales are unknown")
        return self._scaled("dequantize", name, value.dtype, value.quantization)

    def _scaled(self, op: str, name: str, dtype: str, scales: Quantization) -> str:
        """Quantize or dequantize; scale and zero point are both numbers, or both by axis."""
        if dtype not in ("int8", "uint8", "int32"):
            self._decline(f"ONNX quantizes to int8 and uint8, not to {dtype}")
        operator = "QuantizeLinear" if op == "quantize" else "DequantizeLinear"
        factors, zeros = self._region.scales_of(scales)
        if scales.axis is None:
            parameters = [self._number("float32", factors[0]), self._number(dtype, zeros[0])]
            return self._add(operator, [name, *parameters])
        size = (len(factors),)
        parameters = [self._constant("float32", factors, size), self._constant(dtype, zeros, size)]
        return self._add(operator, [name, *parameters], axis=scales.axis)

    def _limited(self, node: Node, name: str, dtype: str) -> str:
        if node.least == 0 and node.most == math.inf:
            return self._add("Relu", [name])
        if node.least == -math.inf and node.most == math.inf:
            return name
        limits = [
            "" if math.isinf(limit) else self._number(dtype, limit)
            for limit in (node.least, node.most)
        ]
        return self._add("Clip", [name, *limits])

    def _matmul_node(self, node: Node, inputs: list[str]) -> str:
        a, b, *bias = inputs
        ranks = [len(self._value(node, i).shape) for i in (0, 1)]
        flags = [int(node.attributes[key]) for key in ("transpose_a", "transpose_b")]
        if ranks == [2, 2]:
            return self._add("Gemm", [a, b, *bias], transA=flags[0], transB=flags[1])
        operands = [
            self._transpose(name, [*range(rank - 2), rank - 1, rank - 2]) if flag else name
            for name, rank, flag in zip((a, b), ranks, flags, strict=True)
        ]
        result = self._add("MatMul", operands)
        return self._add("Add", [result, *bias]) if bias else result

    def _window(self, node: Node) -> dict[str, list[int]]:
        found = {key: list(node.attributes[key]) for key in ("strides", "dilations")}
        pads = [*node.attributes["pads_begin"], *node.attributes["pads_end"]]
        if any(pad < 0 for pad in pads):
            node.decline("ONNX has no negative padding")
        return {**found, "pads": pads}

    def _orders(self, rank: int) -> tuple[list[int], list[int]]:
        """Return the orders that put channels first, and last again."""
        if not self._region.channels_last:
            return [*range(rank)], [*range(rank)]
        return [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]

    def _convolution_node(self, node: Node, inputs: list[str]) -> str:
        first, last = self._orders(len(self._value(node).shape))
        shape = [self._value(node, 1).shape[i] for i in first]
        data, weight = (self._transpose(name, first) for name in inputs[:2])
        groups = node.attributes["groups"]
        attributes = {**self._window(node), "kernel_shape": shape[2:], "group": groups}
        return self._transpose(self._add("Conv", [data, weight, *inputs[2:]], **attributes), last)

    def _transposed_convolution_node(self, node: Node, inputs: list[str]) -> str:
        rank = len(self._value(node).shape)
        first, last = self._orders(rank)
        # With channels last, the channels of the data are also the last dimension of the weight.
        order = [rank - 1, *range(rank - 1)] if self._region.channels_last else [*range(rank)]
        shape = [self._value(node, 1).shape[i] for i in order]
        operands = [self._transpose(inputs[0], first), self._transpose(inputs[1], order)]
        result = self._add(
            "ConvTranspose",
            [*operands, *inputs[2:]],
            kernel_shape=shape[2:],
            group=node.attributes["groups"],
            output_padding=list(node.attributes["output_padding"]),
            **self._window(node),
        )
        return self._transpose(result, last)

    def _concat_node(self, node: Node, inputs: list[str]) -> str:
        return self._add("Concat", inputs, axis=node.attributes["axis"])

    def _softmax_node(self, node: Node, inputs: list[str]) -> str:
        op = "LogSoftmax" if node.attributes["logarithm"] else "Softmax"
        return self._add(op, inputs, axis=node.attributes["axis"])

    def _resize_node(self, node: Node, inputs: list[str]) -> str:
        data, out = self._value(node), self._region.value(node.output)
        attributes = resize_attributes(node, data, out, self._rounds_positions)
        # Runtimes resize the last dimensions.
        axes = list(node.attributes["axes"])
        order = [i for i in range(len(data.shape)) if i not in axes] + axes
        sizes = self._integers([out.shape[i] for i in order])
        # Runtimes interpolate float16 in float16.
        is_half = data.dtype == "float16" and attributes["mode"] != "nearest"
        name = self._cast(inputs[0], "float32") if is_half else inputs[0]
        operands = [self._transpose(name, order), "", "", sizes]
        back = sorted(range(len(order)), key=order.__getitem__)
        result = self._transpose(self._add("Resize", operands, **attributes), back)
        return self._cast(result, out.dtype) if is_half else result

    def _pool_node(self, node: Node, inputs: list[str]) -> str:
        first, last = self._orders(len(self._value(node).shape))
        sizes = [self._value(node).shape[i] for i in first][2:]
        results = [self._region.value(node.output).shape[i] for i in first][2:]
        data = self._transpose(inputs[0], first)
        kind = node.attributes["kind"]
        if kind == "average_adaptive":
            if any(size % result for size, result in zip(sizes, results, strict=True)):
                node.decline("windows of a pool have one size in ONNX")
            window = [size // result for size, result in zip(sizes, results, strict=True)]
            pooled = self._add("AveragePool", [data], kernel_shape=window, strides=window)
            return self._transpose(pooled, last)
        window = list(node.attributes["window"])
        attributes = self._window(node)
        pads = attributes["pads"]
        # In ceil mode the last window reaches beyond the padding.
        for i, (size, result) in enumerate(zip(sizes, results, strict=True)):
            end = (result - 1) * attributes["strides"][i]
            end += (window[i] - 1) * attributes["dilations"][i] + 1
            beyond = end - size - pads[i] - pads[i + len(sizes)]
            if beyond > 0 and kind == "average_include_pad":
                node.decline("a mean that counts padding has no window beyond it in ONNX")
            pads[i + len(sizes)] += max(beyond, 0)
        pooled_types = (*REALS, "int8", "uint8") if kind == "max" else REALS
        value = self._value(node)
        if value.dtype not in pooled_types and value.quantization is None:
            node.decline(f"ONNX has no such pool of {value.dtype}")
        if kind == "max":
            return self._transpose(
                self._add("MaxPool", [data], kernel_shape=window, **attributes), last
            )
        if any(dilation != 1 for dilation in attributes.pop("dilations")):
            node.decline("a mean has no dilation in ONNX")
        counted = int(kind == "average_include_pad")
        pooled = self._add(
            "AveragePool", [data], kernel_shape=window, count_include_pad=counted, **attributes
        )
        return self._transpose(pooled, last)

    def _reduction_node(self, node: Node, inputs: list[str]) -> str:
        data, out = self._value(node), self._region.value(node.output)
        same = data.quantization or data.dtype == out.dtype
        name = inputs[0] if same else self._cast(inputs[0], out.dtype)
        axes = list(node.attributes["axes"])
        kept = int(len(out.shape) == len(data.shape))
        kinds = {"sum": "Sum", "mean": "Mean", "max": "Max", "min": "Min", "product": "Prod"}
        kind = kinds[node.attributes["kind"]]
        if kind == "Sum":
            return self._add("ReduceSum", [name, self._integers(axes)], keepdims=kept)
        return self._add(f"Reduce{kind}", [name], axes=axes, keepdims=kept)

    def _copy_node(self, node: Node, inputs: list[str]) -> str:
        data, out = self._value(node), self._region.value(node.output)
        if any(step != 1 for step in node.attributes["out_step"]):
            node.decline("ONNX has no copy that spreads elements")
        box = Box.of(node, data, out)
        name = inputs[0]
        if (box.sizes, {*box.begin}, {*box.steps}) != (data.shape, {0}, {1}) and box.sizes:
            ends = [
                start + count * step
                for start, count, step in zip(box.begin, box.sizes, box.steps, strict=True)
            ]
            # An end before the first element cannot be counted from the beginning.
            ends = [end if end >= 0 else -(1 << 62) for end in ends]
            lists = (box.begin, ends, range(len(ends)), box.steps)
            name = self._add("Slice", [name, *(self._integers(list(item)) for item in lists)])
        name = self._transpose(name, list(box.order))
        if not any((*box.before, *box.after)):
            return name
        if not node.attributes["fill"]:
            node.decline("ONNX has no node that writes a part of a tensor")
        fill = self._number(data.dtype, float(node.attributes["fill_value"]))
        return self._add("Pad", [name, self._integers([*box.before, *box.after]), fill])

    def _gather_node(self, node: Node, inputs: list[str]) -> str:
        axis, dtype = node.attributes["axis"], self._value(node, 1).dtype
        # An index outside reads the nearest element; in ONNX it counts from the end, or fails.
        most = self._value(node).shape[axis] - 1
        limits = [self._number(dtype, limit) for limit in (0, most)]
        indices = self._add("Clip", [inputs[1], *limits])
        op = "GatherElements" if node.attributes["elementwise"] else "Gather"
        return self._add(op, [inputs[0], indices], axis=axis)

    def _scan_node(self, node: Node, inputs: list[str]) -> str:
        if node.attributes["kind"] != "sum":
            node.decline("ONNX has no running product")
        axis = self._number("int64", node.attributes["axis"])
        return self._add("CumSum", [inputs[0], axis], exclusive=int(node.attributes["exclusive"]))

    def _order_node(self, node: Node, inputs: list[str]) -> str:
        axis, out = node.attributes["axis"], self._region.value(node.output)
        largest = int(node.attributes["descending"])
        count = self._integers([out.shape[axis]])
        results = [self._name(), self._name()]
        indices = self._add("TopK", [inputs[0], count], results, axis=axis, largest=largest)
        return self._cast(indices, out.dtype)

    def _reshape_node(self, node: Node, inputs: list[str]) -> str:
        return self._reshape(inputs[0], self._region.value(node.output).shape)

    def _lookup_node(self, node: Node, inputs: list[str]) -> str:
        least = 128 if self._value(node).dtype == "int8" else 0
        places = self._add("Add", [self._cast(inputs[0], "int32"), self._number("int32", least)])
        table = self._reshape(inputs[1], (256,))
        return self._add("Gather", [table, places], axis=0)

    # ---- Steps ----

    def _step(self, node: Node, inputs: list[str]) -> str:
        out = self._region.value(node.output)
        given = [self._region.value(name) for name in node.inputs if name is not None]
        dtypes = {value.dtype for value in given[1 if node.op == "select" else 0 :]}
        is_scaled = any(value.quantization for value in given)
        if (
            not is_scaled
            and not dtypes <= {*REALS}
            and node.op not in (*OF_INTEGERS, "less", "equal", "select")
        ):
            node.decline(f"ONNX computes {node.op} differently for {', '.join(sorted(dtypes))}")
        if node.op in SAME:
            return self._add(SAME[node.op], inputs)
        write: Callable[[Node, list[str]], str] | None = getattr(self, f"_{node.op}", None)
        if node.op == "cast":
            return inputs[0] if is_scaled else self._cast(inputs[0], out.dtype)
        if node.op in ("less", "equal"):
            result = self._add(node.op.capitalize(), inputs)
            dtype = "float32" if is_scaled and out.dtype != "bool" else out.dtype
            return result if dtype == "bool" else self._cast(result, dtype)
        if write is None or not node.op.isidentifier():
            node.decline(f"ONNX has no {node.op}")
        return write(node, inputs)

    def _select(self, node: Node, inputs: list[str]) -> str:
        is_bool = self._value(node).dtype == "bool"
        condition = inputs[0] if is_bool else self._cast(inputs[0], "bool")
        return self._add("Where", [condition, *inputs[1:]])

    def _clip(self, node: Node, inputs: list[str]) -> str:
        dtype = self._dtype(node)
        limits = [self._number(dtype, number) for number in node.attributes["numbers"][1:3]]
        return self._add("Clip", [inputs[0], *limits])

    def _leaky_relu(self, node: Node, inputs: list[str]) -> str:
        return self._add("LeakyRelu", inputs[:1], alpha=float(node.attributes["numbers"][1]))

    def _softplus(self, node: Node, inputs: list[str]) -> str:
        beta = float(node.attributes["numbers"][1])
        if beta == 1:
            return self._add("Softplus", inputs[:1])
        factor = self._number(self._dtype(node), beta)
        scaled = self._add("Softplus", [self._add("Mul", [inputs[0], factor])])
        return self._add("Div", [scaled, factor])

    def _rsqrt(self, node: Node, inputs: list[str]) -> str:
        return self._add("Reciprocal", [self._add("Sqrt", inputs)])

    def _square(self, node: Node, inputs: list[str]) -> str:
        return self._add("Mul", [inputs[0], inputs[0]])

    def _silu(self, node: Node, inputs: list[str]) -> str:
        return self._add("Mul", [inputs[0], self._add("Sigmoid", inputs)])

    def _truncate(self, node: Node, inputs: list[str]) -> str:
        whole = self._add("Floor", [self._add("Abs", inputs)])
        return self._add("Mul", [self._add("Sign", inputs), whole])

    def _floor_divide(self, node: Node, inputs: list[str]) -> str:
        return self._add("Floor", [self._add("Div", inputs)])

    def _remainder(self, node: Node, inputs: list[str]) -> str:
        return self._add("Mod", inputs, fmod=1)

    def _gelu(self, node: Node, inputs: list[str]) -> str:
        dtype = self._dtype(node)
        part = self._add("Mul", [inputs[0], self._number(dtype, math.sqrt(0.5))])
        return self._half_times_one_plus(inputs[0], self._add("Erf", [part]), dtype)

    def _gelu_tanh(self, node: Node, inputs: list[str]) -> str:
        x, dtype = inputs[0], self._dtype(node)
        cube = self._add("Mul", [x, self._add("Mul", [x, x])])
        part = self._add("Mul", [cube, self._number(dtype, 0.044715)])
        root = self._number(dtype, math.sqrt(2 / math.pi))
        inner = self._add("Mul", [self._add("Add", [x, part]), root])
        return self._half_times_one_plus(x, self._add("Tanh", [inner]), dtype)

    def _half_times_one_plus(self, x: str, y: str, dtype: str) -> str:
        half = self._add("Mul", [x, self._number(dtype, 0.5)])
        return self._add("Mul", [half, self._add("Add", [y, self._number(dtype, 1)])])
