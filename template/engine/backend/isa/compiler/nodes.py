# SPDX-License-Identifier: Apache-2.0
"""What each node of a region is as loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...sdk.npu_region.region import Declined, Node, Region
from .graph import Graph, Operand
from .node_convolutions import convolution_node, transposed_convolution_node
from .node_integers import dequantize_node, integer_step, quantize_node
from .node_moves import concat_node, copy_node, gather_node, lookup_node, reshape_node
from .node_orders import order_node
from .node_products import matmul_node
from .node_reductions import pool_node, reduction_node, scan_node, softmax_node
from .node_rescale import rescale_step
from .node_steps import limited, real_step

Define = Callable[[Graph, Node, Sequence[Operand]], Operand]

DEFINITIONS: Mapping[str, Define] = {
    "matmul": matmul_node,
    "convolution": convolution_node,
    "transposed_convolution": transposed_convolution_node,
    "pool": pool_node,
    "reduction": reduction_node,
    "softmax": softmax_node,
    "scan": scan_node,
    "order": order_node,
    "copy": copy_node,
    "concat": concat_node,
    "gather": gather_node,
    "lookup": lookup_node,
    "reshape": reshape_node,
    "quantize": quantize_node,
    "dequantize": dequantize_node,
    "rescale": rescale_step,
}
"""By the names of operations; all others are steps."""

_SCALES = ("quantize", "dequantize")
"""Nodes whose further inputs are named in their attributes, too."""


def add_node(graph: Graph, node: Node) -> None:
    """Add a node to a graph.

    Parameters
    ----------
    graph
        The graph, which has the values that the node reads, or has them as inputs.
    node
        The node.

    Raises
    ------
    Declined
        There are no loops for it; the message names it.
    """
    graph.enter(node)
    names = [name for name in node.inputs if name is not None]
    operands = [graph.read(name) for name in (names[:1] if node.op in _SCALES else names)]
    if node.op in DEFINITIONS:
        result = DEFINITIONS[node.op](graph, node, operands)
    elif "numbers" not in node.attributes:
        node.decline(f"the instruction set has no {node.op} as one operation")
    else:
        dtypes = {operand.is_real for operand in operands}
        is_real = any(dtypes) or "float" in graph.region.value(node.output).dtype
        result = (real_step if is_real else integer_step)(graph, node, operands)
    graph.write(node.output, limited(graph, node, result))


def reason(node: Node, region: Region) -> str | None:
    """Say why there are no loops for a node, for the question `reason` of a tool.

    Parameters
    ----------
    node
        The node.
    region
        Its region, which need not have the elements of constants.

    Returns
    -------
    reason
        A sentence, or None.
    """
    try:
        add_node(Graph(region), node)
    except Declined as declined:
        return str(declined)
    return None
