# SPDX-License-Identifier: Apache-2.0
"""Questions of quantization about graphs of PyTorch, and the nodes that it adds to them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import fx

from .planning import Form

_ATEN = torch.ops.aten
PRODUCTS = {
    _ATEN.conv1d.default: 0,
    _ATEN.conv2d.default: 0,
    _ATEN.conv3d.default: 0,
    _ATEN.conv1d.padding: 0,
    _ATEN.conv2d.padding: 0,
    _ATEN.conv3d.padding: 0,
    _ATEN.conv_transpose1d.default: 1,
    _ATEN.conv_transpose2d.input: 1,
    _ATEN.conv_transpose3d.input: 1,
    _ATEN.linear.default: 0,
    _ATEN.matmul.default: -1,
    _ATEN.mm.default: -1,
    _ATEN.bmm.default: -1,
}
"""Products of the first argument by the second, and the axis of the channels in the second."""

_OTHER_PRODUCTS = {
    _ATEN.addbmm.default,
    _ATEN.addmv.default,
    _ATEN.bilinear.default,
    _ATEN.dot.default,
    _ATEN.mv.default,
    _ATEN.scaled_dot_product_attention.default,
}

TYPES = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16}
"""The types of activations."""

WIDE = Form("int16", symmetric=True)
"""How single tensors are written as int16."""

# The scale and zero point with which the backend is asked.
_STEP, _ZERO = 0.05, 3


def constants_of(graph: fx.Graph) -> dict[fx.Node, None]:
    """Return the weights, and all values computed from them alone."""
    constants: dict[fx.Node, None] = {}
    for node in graph.nodes:
        is_fixed = node.op == "call_function" and all(
            operand in constants for operand in node.all_input_nodes
        )
        tags = getattr(node.target, "tags", ())
        if node.op == "get_attr" or (is_fixed and torch.Tag.nondeterministic_seeded not in tags):
            constants[node] = None
    return constants


def is_real(node: fx.Node) -> bool:
    """Whether the result of a node is a tensor of float32."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def unsupported(nodes: Iterable[fx.Node]) -> list[str]:
    """Return which products stay in float, and why."""
    reasons = []
    for node in nodes:
        value = node.meta.get("val")
        if node.target in _OTHER_PRODUCTS:
            reasons.append(f"'{node.name}' is {node.target}, which stays in float")
        elif node.target in PRODUCTS and isinstance(value, torch.Tensor) and not is_real(node):
            kind = str(value.dtype).removeprefix("torch.")
            reasons.append(
                f"'{node.name}' computes with {kind}, and float32 is quantized: model.float() "
                "converts a module"
            )
    return reasons


def paths_of(node: fx.Node) -> list[str]:
    """Return the path of an op's module, as users know it."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(module[0]) for module in stack.values() if module and module[0]]
    return names[-1:]


def value_of(module: torch.nn.Module, path: str) -> torch.Tensor:
    """Return a parameter or buffer."""
    value: torch.Tensor = operator.attrgetter(path)(module)
    return value


def hint(size: int | torch.SymInt) -> int:
    """Return a size; of an open one, that in the example."""
    return size if isinstance(size, int) else int(size.node.hint)


def channel(node: fx.Node) -> int:
    """Return the axis of the channels in a product's weights."""
    axis = PRODUCTS[node.target]
    rank = node.args[1].meta["val"].ndim
    return int(axis % rank)


def both(graph: fx.Graph, value: fx.Node, form: Form) -> fx.Node:
    """Quantize and dequantize."""
    ops, dtype = torch.ops.quantized_decomposed, TYPES[form.activations]
    ends = torch.iinfo(dtype)
    zero = (ends.min + ends.max + 1) // 2 if form.symmetric else ends.min + _ZERO
    parameters = (_STEP, zero, ends.min, ends.max, dtype)
    integers = graph.call_function(ops.quantize_per_tensor.default, (value, *parameters))
    return graph.call_function(ops.dequantize_per_tensor.default, (integers, *parameters))


def dequantized(
    graph: fx.Graph,
    buffer: Callable[[torch.Tensor], fx.Node],
    value: torch.Tensor,
    axis: int,
    form: Form,
) -> fx.Node:
    """Dequantize weights."""
    ops = torch.ops.quantized_decomposed
    if not form.per_channel:
        step = float(value.abs().max()) / 127 or 1.0
        integers = buffer((value / step).round().to(torch.int8))
        parameters = (step, 0, -127, 127, torch.int8)
        return graph.call_function(ops.dequantize_per_tensor.default, (integers, *parameters))
    axes = [index for index in range(value.ndim) if index != axis]
    steps = value.abs().amax(axes, keepdim=True).clamp(min=1e-12) / 127
    integers = buffer((value / steps).round().to(torch.int8))
    scales = buffer(steps.reshape(-1))
    zeros = buffer(torch.zeros(value.shape[axis], dtype=torch.int64))
    arguments = (integers, scales, zeros, axis, -127, 127, torch.int8)
    return graph.call_function(ops.dequantize_per_channel.default, arguments)


def dynamic_shapes(
    inputs: Mapping[str, tuple[str, Sequence[int | None]]],
    example: tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]],
) -> dict[str, dict[int, object]] | tuple[dict[int, object], ...] | None:
    """Return the open sizes of the inputs, in the form of torch.export."""
    sizes = [
        {axis: torch.export.Dim.AUTO for axis, size in enumerate(shape) if size is None}
        for _, shape in inputs.values()
    ]
    if not any(sizes):
        return None
    return dict(zip(inputs, sizes, strict=True)) if example[1] else tuple(sizes)


class Zeros(fx.Interpreter):  # type: ignore[misc]
    """Finds the tensors that are 0 in all batches."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.zeros = {
            node.name for node in module.graph.nodes if node.op == "call_function" and is_real(node)
        }

    def run_node(self, node: fx.Node) -> object:
        """Compute a node."""
        result = super().run_node(node)
        if node.name in self.zeros and bool(result.any()):
            self.zeros.remove(node.name)
        return result
