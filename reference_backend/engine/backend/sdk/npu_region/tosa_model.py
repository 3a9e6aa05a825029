# SPDX-License-Identifier: Apache-2.0
"""A region in TOSA, with integers by exact RESCALE."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from .copies import Box
from .region import FORMATS, REALS, SIZES, Node, Region, Value
from .tosa_graph import LIMITS, MLIR, PROPAGATE, Tensor, integers, transposed
from .tosa_integers import MOST, ROUNDINGS, IntegerGraph, Integers

_UNARY = {
    "absolute": "abs",
    "ceil": "ceil",
    "cos": "cos",
    "erf": "erf",
    "exp": "exp",
    "floor": "floor",
    "log": "log",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sin": "sin",
    "tanh": "tanh",
}
"""Steps of real numbers that are an operator of TOSA."""
_BINARY = {
    "add": "add",
    "bias": "add",
    "residual": "add",
    "subtract": "sub",
    "multiply": "mul",
    "scale": "mul",
    "maximum": "maximum",
    "minimum": "minimum",
    "power": "pow",
}
"""Steps with two operands that are an operator of TOSA."""


def to_tosa(region: Region) -> str:
    """Write a region as a module of TOSA's MLIR dialect.

    `tosa-opt --tosa-serialize` makes the file of it that compilers read. Integers are computed as
    the chip's table says: sums of int32, and RESCALE with the region's multipliers and shifts.

    Parameters
    ----------
    region
        The region, with the elements of its constants; its convolutions have channels last.

    Returns
    -------
    text
        The module, whose function `main` has the inputs and outputs of the region in their order.
        uint8 has the type of int8 there: TOSA says in RESCALE what is unsigned.

    Raises
    ------
    Declined
        TOSA has nothing for a node, or cannot compute it exactly; the message names it.
    """
    return _Writer(region).module()


def tosa_of_node(node: Node, region: Region) -> str:
    """Write a node alone as a module, for the question `reason` of a tool.

    Parameters
    ----------
    node
        The node; what it reads is an argument of `main`, unless it is constant.
    region
        Its region, which need not have the elements of constants: they are 0 then.

    Returns
    -------
    text
        The module.

    Raises
    ------
    Declined
        As `to_tosa`.
    """
    return _Writer(region).module_of(node)


class _Writer(IntegerGraph):
    def __init__(self, region: Region) -> None:
        super().__init__(is_whole=region.has_elements)
        self._region = region
        self._known: dict[str, Tensor | Integers] = {}

    def module(self) -> str:
        region = self._region
        for port in (*region.inputs, *region.outputs):
            if port.dtype == "int64":
                region.nodes[-1].decline("TOSA has no int64")
        arguments = [
            Tensor(f"%input{index}", port.dtype, port.shape)
            for index, port in enumerate(region.inputs)
        ]
        read = {name for node in region.nodes for name in node.inputs}
        read |= {port.value for port in region.outputs}
        for value in region.values.values():
            if value.source == "input" and value.name in read:
                assert value.input is not None
                self._known[value.name] = self._reshape(arguments[value.input], value.shape)
        for node in region.nodes:
            region.at(node)
            self._known[node.output] = self._result(node)
        region.at(None)
        results = [
            self._reshape(self._tensor(region.value(port.value)), port.shape)
            for port in region.outputs
        ]
        return self._module(arguments, results)

    def module_of(self, node: Node) -> str:
        arguments = []
        for name in dict.fromkeys(name for name in node.inputs if name is not None):
            value = self._region.value(name)
            if value.source != "constant":
                dtype = "int32" if value.dtype == "int64" else value.dtype
                arguments.append(Tensor(f"%{value.name}", dtype, value.shape))
                self._known[name] = arguments[-1]
        self._known[node.output] = self._result(node)
        return self._module(arguments, [self._tensor(self._out(node))])

    # ---- Values ----

    def _value(self, node: Node, index: int = 0) -> Value:
        return self._region.value(node.inputs[index])

    def _out(self, node: Node) -> Value:
        return self._region.value(node.output)

    def _tensor(self, value: Value) -> Tensor:
        """Return a value in memory."""
        known = self._known.get(value.name)
        if known is None:
            return self._keep(value.dtype, value.shape, self._elements(value))
        return self._written(known) if isinstance(known, Integers) else known

    def _elements(self, value: Value) -> bytes:
        if self._region.has_elements:
            return self._region.bytes_of(value)
        return bytes(value.count * SIZES[value.dtype])

    def _integers(self, value: Value) -> Integers:
        known = self._known.get(value.name)
        if isinstance(known, Integers):
            return known
        if not self._region.has_elements:
            return Integers(self._tensor(value), 0)
        bound = max(map(abs, LIMITS[value.dtype])) if value.dtype in LIMITS else MOST
        return Integers(self._tensor(value), bound)

    def _constant(self, node: Node, index: int) -> tuple[int, ...] | None:
        """Return the integers of a constant operand."""
        value = self._region.input_of(node, index)
        if value is None or value.source != "constant":
            return None
        if not self._region.has_elements:
            return (1,)
        return tuple(array(FORMATS[value.dtype], self._region.bytes_of(value)))

    # ---- Nodes ----

    def _result(self, node: Node) -> Tensor | Integers:
        self._enter(node)
        out = self._out(node)
        if out.quantization is not None and node.op != "quantize":
            node.decline("TOSA's integers are rescaled: set `integers` in kDriver, not `scales`")
        write: Callable[[Node], Tensor | Integers]
        write = getattr(self, f"_{node.op}_node", self._step)
        result = write(node)
        if isinstance(result, Integers):
            if out.dtype in REALS:
                node.decline("TOSA has nothing from integers to real numbers that rounds as here")
            return self._narrowed(result, out.dtype) if out.dtype in LIMITS else result
        if out.dtype in REALS and (node.least > -math.inf or node.most < math.inf):
            return self._clamp(result, node.least, node.most)
        return result

    def _window(self, node: Node, data: Tensor, kernel: Sequence[int]) -> tuple[Tensor, str, str]:
        """Return data, pads, and strides with dilations, of windows that fit, as TOSA demands."""
        missing = 2 - len(kernel)
        if missing < 0:
            node.decline("TOSA's compilers have windows of up to two dimensions")
        if not self._region.channels_last:
            node.decline("TOSA has channels last")

        def planar(numbers: Sequence[int], other: int = 1) -> list[int]:
            return [other] * missing + list(numbers)

        given = node.attributes
        strides, dilations = planar(given["strides"]), planar(given["dilations"])
        begins, ends = planar(given["pads_begin"], 0), planar(given["pads_end"], 0)
        if min(*begins, *ends) < 0:
            node.decline("TOSA has no negative padding")
        sizes, used = planar(data.shape[1:-1]), planar(data.shape[1:-1])
        results, kernel = planar(self._out(node).shape[1:-1]), planar(kernel)
        for i in range(2):
            reach = (results[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
            end = reach - begins[i] - sizes[i]
            ends[i], used[i] = max(end, 0), sizes[i] + min(end, 0)
        data = self._reshape(data, (data.shape[0], *sizes, data.shape[-1]))
        if used != sizes:
            data = self._slice(data, [0] * 4, (data.shape[0], *used, data.shape[-1]))
        pads = [pad for pair in zip(begins, ends, strict=True) for pad in pair]
        if node.op == "convolution":
            return data, integers(pads), f"{integers(strides)}, dilation = {integers(dilations)}"
        if dilations != [1, 1]:
            node.decline("TOSA's pools have no dilation")
        return data, integers(pads), f"{integers(strides)}, kernel = {integers(kernel)}"

    def _convolution_node(self, node: Node) -> Tensor | Integers:
        weight, groups = self._value(node, 1), node.attributes["groups"]
        taps = weight.shape[1:-1]
        data, pads, strides = self._window(node, self._tensor(self._value(node)), taps)
        taps = (*[1] * (2 - len(taps)), *taps)
        channels = weight.shape[0]
        op, elements = "conv2d", self._weights(node)
        shape: tuple[int, ...] = (channels, *taps, weight.shape[-1])
        if groups > 1:
            if groups != data.shape[-1]:
                node.decline("TOSA's convolutions have one group, or one for each channel")
            op = "depthwise_conv2d"
            size = SIZES[weight.dtype]
            elements = transposed(elements, size, channels, math.prod(taps))
            shape = (*taps, groups, channels // groups)
        result = self._out(node).shape
        planes = (result[0], *[1] * (4 - len(result)), *result[1:])
        attributes = f"pad = {pads}, stride = {strides}"
        return self._product(node, op, data, (shape, elements), planes, attributes)

    def _matmul_node(self, node: Node) -> Tensor | Integers:
        weight, given = self._value(node, 1), node.attributes
        data = self._tensor(self._value(node))
        if given["transpose_a"] or len(weight.shape) != 2:
            node.decline("TOSA is written for products of rows by a constant matrix only")
        inner, channels = data.shape[-1], self._out(node).shape[-1]
        elements = self._weights(node)
        if not given["transpose_b"]:
            elements = transposed(elements, SIZES[weight.dtype], inner, channels)
        rows = math.prod(data.shape[:-1])
        data = self._reshape(data, (1, rows, 1, inner))
        unit = integers([1, 1])
        attributes = f"pad = {integers([0] * 4)}, stride = {unit}, dilation = {unit}"
        shape = (channels, 1, 1, inner)
        return self._product(
            node, "conv2d", data, (shape, elements), (1, rows, 1, channels), attributes
        )

    def _weights(self, node: Node) -> bytes:
        weight = self._value(node, 1)
        if weight.source != "constant":
            node.decline("weights of TOSA's convolutions are constants")
        if "int16" in (weight.dtype, self._value(node).dtype):
            node.decline("TOSA rescales sums of int16 by 16 bits only")
        return self._signed_bytes(weight)

    def _signed_bytes(self, value: Value) -> bytes:
        """Return the elements of a constant; those of uint8 as int8, 128 less."""
        elements = self._elements(value)
        if value.dtype != "uint8":
            return elements
        return elements.translate(bytes(byte ^ 0x80 for byte in range(256)))

    def _product(
        self,
        node: Node,
        op: str,
        data: Tensor,
        weights: tuple[tuple[int, ...], bytes],
        shape: tuple[int, ...],
        attributes: str,
    ) -> Tensor | Integers:
        """Add a product whose result has this shape in TOSA."""
        out, bias = self._out(node), self._region.input_of(node, 2)
        is_real = data.dtype in REALS
        dtype = data.dtype if is_real else "int32"
        channels = shape[-1]
        zeros = [
            int(node.attributes[first if node.op == "convolution" else second])
            - (128 if self._value(node, i).dtype == "uint8" else 0)
            for i, (first, second) in enumerate(
                (("data_zero_point", "a_zero_point"), ("weight_zero_point", "b_zero_point"))
            )
        ]
        data = self._signed(data)
        weight = self._keep(data.dtype, *weights)
        if bias is None:
            addend = self._keep(dtype, (channels,), bytes(channels * SIZES[dtype]))
        elif bias.dtype != dtype:
            node.decline(f"TOSA adds a bias of {dtype} to {data.dtype}")
        else:
            addend = self._reshape(self._tensor(bias), (channels,))
        operands = [data, weight, addend, *(self._number(data.dtype, zero) for zero in zeros)]
        attributes = f"acc_type = {MLIR[dtype]}, {attributes}"
        result = self._add(op, operands, dtype, shape, attributes)
        result = self._reshape(result, out.shape)
        return result if is_real else Integers(result, self._largest_sum(node, weights, zeros))

    def _largest_sum(
        self, node: Node, weights: tuple[tuple[int, ...], bytes], zeros: Sequence[int]
    ) -> int:
        """Return the largest absolute value of a product's sums, by its weights."""
        if not self._region.has_elements:
            return 0
        shape, elements = weights
        channels = self._out(node).shape[-1]
        sizes = [abs(weight - zeros[1]) for weight in array("b", elements)]
        if shape[0] == channels:
            count = len(sizes) // channels
            sums = [sum(sizes[i * count : (i + 1) * count]) for i in range(channels)]
        else:
            sums = [sum(sizes[i::channels]) for i in range(channels)]
        bias = self._constant(node, 2) or (0,)
        return max(sums) * (128 + abs(zeros[0])) + max(map(abs, bias))

    def _pool_node(self, node: Node) -> Tensor:
        out, given = self._out(node), node.attributes
        data, kind = self._signed(self._tensor(self._value(node))), given["kind"]
        if kind != "max" and data.dtype not in REALS:
            node.decline(f"TOSA has no such pool of {data.dtype}")
        padded = any((*given["pads_begin"], *given["pads_end"]))
        if kind == "average_adaptive" or (kind == "average_include_pad" and padded):
            node.decline(f"TOSA has no {kind} pool")
        data, pads, strides = self._window(node, data, given["window"])
        attributes = f"pad = {pads}, stride = {strides}"
        shape = (out.shape[0], *[1] * (4 - len(out.shape)), *out.shape[1:])
        if kind == "max":
            result = self._add(
                "max_pool2d", [data], data.dtype, shape, f"{attributes}, {PROPAGATE}"
            )
        else:
            zero = self._number(data.dtype, 0)
            attributes += f", acc_type = {MLIR[data.dtype]}"
            result = self._add("avg_pool2d", [data, zero, zero], data.dtype, shape, attributes)
        if out.dtype == "uint8":
            result = self._rescale(result, "uint8", (0, 128))
        return self._reshape(result, out.shape)

    def _reduction_node(self, node: Node) -> Tensor | Integers:
        data, out = self._value(node), self._out(node)
        kind = node.attributes["kind"]
        if kind not in ("sum", "max", "min"):
            node.decline(f"TOSA has no {kind}")
        given = None if data.dtype in REALS else self._integers(data)
        tensor = self._tensor(data) if given is None else self._written(given)
        for axis in node.attributes["axes"]:
            shape = [1 if i == axis else size for i, size in enumerate(tensor.shape)]
            mode = "" if kind == "sum" else f", {PROPAGATE}"
            attributes = f"axis = {axis} : i32{mode}"
            tensor = self._add(f"reduce_{kind}", [tensor], tensor.dtype, shape, attributes)
        tensor = self._reshape(tensor, out.shape)
        if given is None:
            return tensor
        count = data.count // out.count if kind == "sum" else 1
        return self._checked(Integers(tensor, given.reach * count))

    def _reshape_node(self, node: Node) -> Tensor:
        return self._reshape(self._tensor(self._value(node)), self._out(node).shape)

    def _lookup_node(self, node: Node) -> Tensor:
        data, table, out = self._value(node), self._value(node, 1), self._out(node)
        if table.source != "constant" or "int16" in (data.dtype, out.dtype):
            node.decline("TOSA is written for constant tables of 8 bits only")
        operands = [
            self._signed(self._tensor(data)),
            self._keep("int8", (256,), self._signed_bytes(table)),
        ]
        found = self._add("table", operands, "int8", data.shape)
        if out.dtype == "uint8":
            found = self._rescale(found, "uint8", (0, 128))
        return self._reshape(found, out.shape)

    def _copy_node(self, node: Node) -> Tensor:
        data, out = self._value(node), self._out(node)
        if {*node.attributes["data_step"], *node.attributes["out_step"]} - {1}:
            node.decline("TOSA has no copy with steps")
        box = Box.of(node, data, out)
        tensor = self._tensor(data)
        if box.sizes != data.shape:
            tensor = self._slice(tensor, box.begin, box.sizes)
        if list(box.order) != sorted(box.order):
            shape = [tensor.shape[i] for i in box.order]
            order = ", ".join(map(str, box.order))
            perms = f"perms = array<i32: {order}>"
            tensor = self._add("transpose", [tensor], tensor.dtype, shape, perms)
        if not any((*box.before, *box.after)):
            return tensor
        if not node.attributes["fill"]:
            node.decline("TOSA has no operator that writes a part of a tensor")
        pads = [pad for pair in zip(box.before, box.after, strict=True) for pad in pair]
        fill = self._number(data.dtype, node.attributes["fill_value"])
        return self._add("pad", [tensor, self._sizes(pads), fill], data.dtype, out.shape)

    def _concat_node(self, node: Node) -> Tensor:
        out = self._out(node)
        tensors = [self._tensor(self._region.value(name)) for name in node.inputs]
        axis = f"axis = {node.attributes['axis']} : i32"
        return self._add("concat", tensors, out.dtype, out.shape, axis)

    # ---- Steps ----

    def _step(self, node: Node) -> Tensor | Integers:
        if "numbers" not in node.attributes and node.op not in ("quantize", "dequantize"):
            node.decline(f"TOSA has no {node.op} as one operator")
        values = [self._region.value(name) for name in node.inputs if name is not None]
        dtypes = {value.dtype for value in (*values, self._out(node))}
        if dtypes <= {*REALS}:
            return self._real_step(node, values)
        if node.op in ("quantize", "dequantize") or dtypes & {*REALS, "bool"}:
            node.decline("TOSA has nothing between integers and other types that rounds as here")
        return self._integer_step(node, values)

    def _real_step(self, node: Node, values: list[Value]) -> Tensor:
        out = self._out(node)
        tensors = [self._ranked(self._tensor(value), len(out.shape)) for value in values]
        numbers = node.attributes["numbers"]
        if node.op in ("relu", "clip"):
            limits = (0, math.inf) if node.op == "relu" else numbers[1:3]
            return self._clamp(tensors[0], *limits)
        return self._binary(node, tensors)

    def _binary(self, node: Node, tensors: list[Tensor]) -> Tensor:
        op = _BINARY.get(node.op) if len(tensors) == 2 else _UNARY.get(node.op)
        if op is None:
            node.decline(f"TOSA has no {node.op}")
        if op == "mul":
            tensors = [*tensors, self._number("int8", 0)]
        mode = PROPAGATE if op in ("maximum", "minimum") else ""
        return self._add(op, tensors, tensors[0].dtype, self._out(node).shape, mode)

    def _integer_step(self, node: Node, values: list[Value]) -> Integers:
        given, numbers = self._integers(values[0]), self._constant(node, 1)
        if node.op == "cast":
            return given
        if node.op == "rescale":
            return self._rescale_step(node, given)
        if numbers is not None and len({*numbers}) == 1 and values[1].count == 1:
            with_number = self._with_number(node.op, given, numbers[0])
            if with_number is not None:
                return with_number
        if node.op not in ("add", "subtract", "multiply", "maximum", "minimum"):
            node.decline(f"TOSA has no {node.op} of integers")
        both = given, self._integers(values[1])
        rank = len(self._out(node).shape)
        tensors = [self._ranked(self._written(item), rank) for item in both]
        reaches = [item.reach for item in both]
        bound = {"multiply": math.prod(reaches), "maximum": max(reaches), "minimum": max(reaches)}
        result = self._binary(node, tensors)
        return self._checked(Integers(result, bound.get(node.op, sum(reaches))))

    def _rescale_step(self, node: Node, given: Integers) -> Integers:
        multipliers, shifts = self._constant(node, 1), self._constant(node, 2)
        rounding = int(node.attributes["numbers"][3])
        if multipliers is None or shifts is None or rounding >= len(ROUNDINGS):
            node.decline("TOSA rounds otherwise")
        if given.rounding or given.offset or given.least is not None or given.most is not None:
            given = Integers(self._written(given), given.reach)
        count = max(len(multipliers), len(shifts))
        if count > 1 and (
            given.tensor.shape[-1] != count or self._value(node, 1).shape[-1] != count
        ):
            node.decline("TOSA rescales by the last dimension")
        if not self._region.has_elements:
            shifts = (30,)
        return replace(
            given,
            multipliers=multipliers * (count // len(multipliers)),
            shifts=shifts * (count // len(shifts)),
            rounding=ROUNDINGS[rounding],
        )
