# SPDX-License-Identifier: Apache-2.0
"""From a region to kernels: functions of loops, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import relax, tirx

from ...sdk.npu_region.region import Region
from .elements import elementwise
from .graph import Array, Graph, Operand
from .labels import Labels, bindings_of, is_call_tir, labels_after
from .nodes import add_node
from .rows import fuse_rows

Source = Literal["input", "output", "constant", "workspace"]


@dataclass(frozen=True)
class Tensor:
    """A tensor of a plan; its elements are dense and row-major.

    `index` is the number of the input or output that it is. `data` are the elements of a constant.
    `alias_of` is the number of another tensor of the plan, which has the same elements in the same
    memory, under another shape: `source`, `index` and `data` are those of that one.
    """

    dtype: str
    shape: tuple[int, ...]
    source: Source
    index: int = -1
    data: Array | None = None
    alias_of: int | None = None


@dataclass(frozen=True)
class Kernel:
    """A function of loops that a plan runs.

    `tensors` are the numbers of its parameters in the plan; what it writes comes last. Kernels of
    the same loops share their `function`. `labels` are those of the nodes that are part of it.
    """

    name: str
    function: tirx.PrimFunc
    tensors: tuple[int, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What a region is as kernels, in their order."""

    tensors: list[Tensor]
    kernels: list[Kernel]


PASSES: Mapping[str, Callable[[Labels], tvm.transform.Pass]] = {
    "DeadCodeElimination": lambda labels: relax.transform.DeadCodeElimination(["main"]),
    "AnnotateTIROpPattern": lambda labels: relax.transform.AnnotateTIROpPattern(),
    "FuseRows": fuse_rows,
    "FuseOps": lambda labels: relax.transform.FuseOps(),
    "FuseTIR": lambda labels: relax.transform.FuseTIR(),
}
"""The passes from a function for each node to kernels, in their order. Each is made from the labels
of the calls in `main`."""


def plan_of(region: Region, disabled: Collection[str] = ()) -> Plan:
    """Return the kernels of a region.

    Parameters
    ----------
    region
        The region, with the elements of its constants.
    disabled
        Names of passes in `PASSES` that are left out. Without FuseTIR nothing is fused.

    Returns
    -------
    plan
        Tensors and kernels.

    Raises
    ------
    Declined
        There are no loops for a node; the message names it.
    """
    graph = Graph(region)
    for port in region.inputs:
        graph.input(port.dtype, port.shape)
    for node in region.nodes:
        region.at(node)
        add_node(graph, node)
    region.at(None)
    graph.enter(None)
    module = graph.module(_outputs(graph))
    if "FuseTIR" in disabled:
        disabled = {*disabled, "FuseRows", "FuseOps"}
    labels: Labels = [(label,) if label else () for label in graph.labels]
    for name, make in PASSES.items():
        if name not in disabled:
            changed = make(labels)(module)
            labels = labels_after(module, labels, changed)
            module = changed
    return _planned(graph, module, labels)


def _outputs(graph: Graph) -> list[Operand]:
    """Return what goes to the outputs: each the result of a kernel, as no other output is."""
    found: list[Operand] = []
    roots = {operand.var for operand in (*graph.inputs, *graph.constants)}
    for port in graph.region.outputs:
        assert port.value is not None
        operand = graph.reshaped(graph.read(port.value), port.shape)
        if operand.dtype != port.dtype:
            operand = elementwise(
                graph, "cast", [operand], port.dtype, lambda a: a, shape=port.shape
            )
        elif operand.array is not None or graph.root_of(operand) in roots:
            operand = elementwise(
                graph, "copy", [operand], port.dtype, lambda a: a, shape=port.shape
            )
        roots.add(graph.root_of(operand))
        found.append(operand)
    return found


# ---- Plans --------------------------------------------------------------------------------------


def _planned(graph: Graph, module: tvm.IRModule, labels: Labels) -> Plan:
    main = module["main"]
    tensors: list[Tensor] = []
    kernels: list[Kernel] = []
    numbers: dict[Any, Any] = {}

    def add(var: Any, tensor: Tensor) -> None:
        numbers[var] = len(tensors)
        tensors.append(tensor)

    bindings = [*bindings_of(main)]
    read = {
        operand
        for binding in bindings
        if isinstance(binding.value, relax.Call)
        for operand in (
            binding.value.args[1].fields if is_call_tir(binding.value) else binding.value.args[:1]
        )
    }
    for index, (parameter, operand) in enumerate(
        zip(main.params, (*graph.inputs, *graph.constants), strict=True)
    ):
        if operand.array is None:
            add(parameter, Tensor(operand.dtype, operand.shape, "input", index))
        elif parameter in read:
            made = Tensor(operand.dtype, operand.shape, "constant", data=operand.array)
            add(parameter, made)
    left = iter(labels)
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            numbers[binding.var] = numbers[value.tuple_value][value.index]
        elif is_call_tir(value):
            own = tuple(dict.fromkeys(next(left)))
            types = getattr(binding.var.ty, "fields", None)
            places = []
            for ty in types if types is not None else [binding.var.ty]:
                places.append(len(tensors))
                shape = tuple(int(size) for size in ty.shape)
                tensors.append(Tensor(str(ty.dtype), shape, "workspace"))
            numbers[binding.var] = places if types is not None else places[0]
            operands = [numbers[operand] for operand in value.args[1].fields]
            name = str(value.args[0].name_hint)
            parameters = (*operands, *places)
            kernels.append(Kernel(name, module[value.args[0]], parameters, own))
        elif isinstance(value, relax.Call):
            next(left)
            number = numbers[value.args[0]]
            root = tensors[number].alias_of
            shape = tuple(int(size) for size in binding.var.ty.shape)
            base = tensors[number]
            alias = number if root is None else root
            add(binding.var, Tensor(base.dtype, shape, base.source, base.index, base.data, alias))
    result = [binding.value for binding in bindings if isinstance(binding.value, relax.Tuple)][-1]
    for index, field in enumerate(result.fields):
        number = numbers[field]
        root = tensors[number].alias_of
        _mark_output(tensors, number if root is None else root, index)
    return Plan(tensors, kernels)


def _mark_output(tensors: list[Tensor], root: int, index: int) -> None:
    """Let a tensor, and all that alias it, be an output."""
    for number, tensor in enumerate(tensors):
        if number == root or tensor.alias_of == root:
            tensors[number] = Tensor(
                tensor.dtype, tensor.shape, "output", index, alias_of=tensor.alias_of
            )
