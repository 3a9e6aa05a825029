# SPDX-License-Identifier: Apache-2.0
"""Exports PyTorch models, and takes apart the ops in which products would be hidden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...backend.shared.console import quiet
from .torch_graphs import PRODUCTS, constants_of, value_of

_ATEN = torch.ops.aten
_TAKEN_APART = (
    _ATEN.einsum.default,
    _ATEN.gru.input,
    _ATEN.gru_cell.default,
    _ATEN.inner.default,
    _ATEN.lstm.input,
    _ATEN.lstm_cell.default,
    _ATEN.rnn_relu.input,
    _ATEN.rnn_relu_cell.default,
    _ATEN.rnn_tanh.input,
    _ATEN.rnn_tanh_cell.default,
    _ATEN.tensordot.default,
)
"""Ops that PyTorch itself decomposes into products and other ops."""

_SAME = {
    *(target for target in PRODUCTS if "padding" not in str(target)),
    _ATEN.max_pool2d.default,
    _ATEN.transpose.int,
}
"""Ops that the importer reads as one, whether PyTorch decomposes them or not."""


def exported(model: torch.nn.Module, example: Any) -> torch.export.ExportedProgram:
    """Export a module with the first batch of calibration data."""
    if model.training:
        raise ValueError("The model is in training mode: call model.eval() first.")
    if isinstance(example, Mapping):
        arguments, named = (), {name: torch.as_tensor(array) for name, array in example.items()}
    else:
        arrays = [example] if hasattr(example, "shape") else list(example or ())
        arguments, named = tuple(map(torch.as_tensor, arrays)), {}
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(model, arguments, named)
    except Exception as error:
        raise ValueError(
            "torch.export cannot export the model with the first batch of calibration_data: "
            f"{error}"
        ) from error


def simplified(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program in which products are ops of their own, and each op has one result."""
    table = torch.export.default_decompositions()
    rules = {**{target: table[target] for target in _TAKEN_APART}, **_RULES}
    if rules.keys().isdisjoint(node.target for node in program.graph.nodes):
        return program
    with quiet():
        return program.run_decompositions(rules)


def reads_differently(
    nodes: Iterable[fx.Node], table: Mapping[torch._ops.OperatorBase, object]
) -> bool:
    """Whether decomposing nodes first changes what the importer reads; decomposing is slow."""
    return any(node.target in table and node.target not in _SAME for node in nodes)


def fold_weights(module: fx.GraphModule) -> None:
    """Compute weights that a model computes from constants, such as transposed ones."""
    graph = module.graph
    constants = constants_of(graph)

    def computed(node: fx.Node) -> torch.Tensor:
        if node.op == "get_attr":
            return value_of(module, str(node.target)).detach()
        arguments, named = fx.node.map_arg((node.args, node.kwargs), computed)
        return node.target(*arguments, **named)

    for node in list(graph.nodes):
        weight = node.args[1] if node.target in PRODUCTS else None
        if weight is None or weight not in constants or weight.op == "get_attr":
            continue
        name = f"folded_{weight.name}"
        module.register_buffer(name, computed(weight).contiguous())
        with graph.inserting_before(node):
            folded = graph.get_attr(name)
        folded.meta["val"] = weight.meta["val"]
        node.update_arg(1, folded)
    graph.eliminate_dead_code()
    module.recompile()


def _addmm(
    base: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    return _scaled_sum(base, _ATEN.mm.default(x, y), beta, alpha)


def _baddbmm(
    base: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    return _scaled_sum(base, _ATEN.bmm.default(x, y), beta, alpha)


def _scaled_sum(
    base: torch.Tensor, product: torch.Tensor, beta: float, alpha: float
) -> torch.Tensor:
    product = product if alpha == 1 else product * alpha
    return product + (base if beta == 1 else base * beta)


def _chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    extent = x.shape[dim]
    return _split(x, -(-extent // chunks), dim) if isinstance(extent, int) else NotImplemented


def _split(x: torch.Tensor, size: int, dim: int = 0) -> Any:
    extent = x.shape[dim]
    if not (isinstance(extent, int) and isinstance(size, int)):
        return NotImplemented
    return _parts(x, [min(size, extent - start) for start in range(0, extent, size)], dim)


def _parts(x: torch.Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    """Return slices: an op with several results could not be quantized."""
    if not isinstance(x.shape[dim], int):
        return NotImplemented
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [
        _ATEN.slice.Tensor(x, dim, end - size, end) for end, size in zip(ends, sizes, strict=True)
    ]


def _glu(x: torch.Tensor, dim: int = -1) -> Any:
    parts = _chunk(x, 2, dim)
    return parts if parts is NotImplemented else parts[0] * parts[1].sigmoid()


def _unbind(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    return [_ATEN.select.int(x, dim, index) for index in range(x.shape[dim])]


_RULES = {
    _ATEN.addmm.default: _addmm,
    _ATEN.baddbmm.default: _baddbmm,
    _ATEN.chunk.default: _chunk,
    _ATEN.glu.default: _glu,
    _ATEN.split.Tensor: _split,
    _ATEN.split_with_sizes.default: _parts,
    _ATEN.unbind.int: _unbind,
}
"""Functions that replace ops of PyTorch."""
