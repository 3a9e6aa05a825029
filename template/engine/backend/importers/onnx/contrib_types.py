# SPDX-License-Identifier: Apache-2.0
"""The types of results of ONNX Runtime's operators, of which ONNX's own inference knows nothing.

While it runs, operators of ONNX whose results have the same types stand in for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .graph import DOMAINS, attributes_of


class _Deputies:
    """What stands in for a node.

    `known`: the constants of the graph, by name.
    `nodes`, `constants`: the operators of ONNX, and the constants that they read.
    """

    def __init__(self, node: NodeProto, known: Mapping[str, TensorProto]) -> None:
        self.node = node
        self.attributes = attributes_of(node)
        self.inputs = [*node.input, *[""] * 8]
        self.outputs = [*node.output, *[""] * 4]
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.known = known

    def write(self, op: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """Write an operator, which has the name of the node in messages."""
        output = output or f"{self.node.output[0]}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], self.node.name, **attributes))
        return output

    def integers(self, *values: int) -> str:
        """Write a vector of int64; return its name."""
        name = f"{self.node.output[0]}/constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, "int64"), name))
        return name

    def weight(self, kind: int, *sizes: int) -> str:
        """Write a constant without values; return its name."""
        name = f"{self.node.output[0]}/constant{len(self.constants)}"
        self.constants.append(TensorProto(name=name, data_type=kind, dims=sizes))
        return name

    def kind(self, name: str) -> int:
        """Return the element type of a constant; float of other tensors."""
        tensor = self.known.get(name)
        return TensorProto.FLOAT if tensor is None else int(tensor.data_type)

    def same(self, x: str, *places: int) -> None:
        """Give results the type of a tensor."""
        for place in places:
            if self.outputs[place]:
                self.write("Identity", x, output=self.outputs[place])

    def part(self, x: str, axis: int, stop: int) -> str:
        """Return the first elements of an axis."""
        return self.write("Slice", x, self.integers(0), self.integers(stop), self.integers(axis))


def _like_first(places: tuple[int, ...], node: _Deputies) -> None:
    node.same(node.inputs[0], *places)


def _group_query_attention(node: _Deputies) -> None:
    query, key = node.inputs[:2]
    if key:
        node.same(query, 0)
        return
    heads, shared = node.attributes.get("num_heads", 0), node.attributes.get("kv_num_heads", 0)
    split = node.write("Reshape", query, node.integers(0, 0, heads + 2 * shared, -1))
    node.write(
        "Reshape", node.part(split, 2, heads), node.integers(0, 0, -1), output=node.outputs[0]
    )


def _multi_head_attention(node: _Deputies) -> None:
    node.same(node.inputs[0], 0)
    heads = node.attributes.get("num_heads", 0)
    for place in (1, 2):
        new, past = node.inputs[place], node.inputs[place + 5]
        if node.outputs[place] and new and past:
            by_heads = node.write("Reshape", new, node.integers(0, 0, heads, -1))
            moved = node.write("Transpose", by_heads, perm=[0, 2, 1, 3])
            node.write("Concat", past, moved, output=node.outputs[place], axis=2)


def _gather_block_quantized(node: _Deputies) -> None:
    data, indices, scales = node.inputs[:3]
    table = node.known.get(data)
    if table is None:
        return
    sizes = [*table.dims]
    if table.data_type == TensorProto.UINT8:
        sizes[-1] *= 8 // node.attributes.get("bits", 4)
    rows, axis = node.weight(node.kind(scales), *sizes), node.attributes.get("gather_axis", 0)
    node.write("Gather", rows, indices, output=node.outputs[0], axis=axis)


def _matmul_nbits(node: _Deputies) -> None:
    sizes = (node.attributes.get("K", 0), node.attributes.get("N", 0))
    weight = node.weight(node.kind(node.inputs[2]), *sizes)
    node.write("MatMul", node.inputs[0], weight, output=node.outputs[0])


def _embed_layer_normalization(node: _Deputies) -> None:
    ids, _, words = node.inputs[:3]
    node.write("Gather", words, ids, output=node.outputs[0])


_RULES: Mapping[str, Callable[[_Deputies], None]] = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu"), partial(_like_first, (0,))),
    "EmbedLayerNormalization": _embed_layer_normalization,
    "GatherBlockQuantized": _gather_block_quantized,
    "GroupQueryAttention": _group_query_attention,
    "MatMulNBits": _matmul_nbits,
    "MultiHeadAttention": _multi_head_attention,
    "RotaryEmbedding": partial(_like_first, (0,)),
    "SimplifiedLayerNormalization": partial(_like_first, (0,)),
    "SkipLayerNormalization": partial(_like_first, (0, 3)),
    "SkipSimplifiedLayerNormalization": partial(_like_first, (0, 3)),
}

_OF_ONNX_TOO = {"Gelu", "RotaryEmbedding"}


def with_deputies(model: ModelProto) -> ModelProto:
    """Return a model for ONNX's inference; the model itself if ONNX knows its operators."""
    graph = model.graph
    if not any(map(_has_deputies, graph.node)):
        return model
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        deputies = _Deputies(node, known)
        if _has_deputies(node):
            _RULES[node.op_type](deputies)
        result.graph.node.extend(deputies.nodes or [node])
        result.graph.initializer.extend(deputies.constants)
    return result


def without_deputies(inferred: ModelProto, model: ModelProto) -> None:
    """Put what was inferred of `with_deputies(model)` into the model."""
    makers = {name: node for node in inferred.graph.node for name in node.output}
    own = {name for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if not _has_deputies(node):
            # Graphs inside it got types, too.
            node.CopyFrom(next(makers[name] for name in node.output if name))
    del model.graph.output[:], model.graph.value_info[:]
    model.graph.output.extend(inferred.graph.output)
    model.graph.value_info.extend(i for i in inferred.graph.value_info if i.name in own)


def _has_deputies(node: NodeProto) -> bool:
    is_known = node.op_type in _OF_ONNX_TOO and node.domain != "com.microsoft"
    return node.op_type in _RULES and node.domain in DOMAINS and not is_known
