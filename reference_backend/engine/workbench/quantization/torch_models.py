# SPDX-License-Identifier: Apache-2.0
"""Quantizes PyTorch models with torchao's PT2E, as far as the plan goes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import fx

from ...backend.importers import from_exported_program
from ...backend.importers.torch.states import changed_buffers
from ...backend.shared.aliases import Array
from ...backend.shared.console import quiet
from ..batches import Batch
from .data import check_range, check_weights
from .planning import Backend, Ends, Form, Group, Node, Plan, Tensors, inputs_of
from .torch_graphs import (
    PRODUCTS,
    TYPES,
    WIDE,
    Zeros,
    both,
    channel,
    constants_of,
    dequantized,
    dynamic_shapes,
    hint,
    is_real,
    paths_of,
    unsupported,
    value_of,
)
from .torch_programs import exported, fold_weights, reads_differently, simplified

with quiet():  # The first import reports libraries for other processors.
    from torchao.quantization.pt2e.observer import (
        HistogramObserver,
        MinMaxObserver,
        MovingAverageMinMaxObserver,
        PerChannelMinMaxObserver,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import (
        QuantizationAnnotation,
        QuantizationSpec,
        Quantizer,
        SharedQuantizationSpec,
    )

if TYPE_CHECKING:
    from torchao.quantization.pt2e import ObserverBase

METHODS = {
    "minmax": MinMaxObserver,
    "moving_average": MovingAverageMinMaxObserver,
    "mse": HistogramObserver,
}
"""Observers of torchao; "mse" is the histogram, whose range has the least squared error."""


class TorchModel:
    """A float model in PyTorch that can be quantized, in whole or in part.

    `example`: the first batch of the calibration data, with which a module is exported.
    """

    def __init__(
        self, model: torch.export.ExportedProgram | torch.nn.Module, example: object
    ) -> None:
        self.original = model
        if isinstance(model, torch.nn.Module):
            model = exported(model, example)
        self._example = tuple(model.example_inputs[0]), dict(model.example_inputs[1] or {})
        arguments = (*self._example[0], *self._example[1].values())
        if not all(isinstance(argument, torch.Tensor) for argument in arguments):
            raise ValueError(
                "The model takes other things than tensors; only tensors can be quantized."
            )
        _require_constant(model)
        self.reference = model
        captured = _Captures()
        with quiet():
            prepare_pt2e(simplified(model).module(), captured)
        assert captured.graph is not None
        self._module = captured.graph
        fold_weights(self._module)
        self._nodes = {index: node for index, node in enumerate(self._module.graph.nodes)}
        self._constants = constants_of(self._module.graph)
        self._table = torch.export.default_decompositions()
        self._answers: dict[str, str | None] = {}
        self._checked: set[fx.Node] = set()
        self._batches: Sequence[Batch] | None = None
        self.zeros: set[str] = set()
        """The tensors that are 0 throughout for the calibration data, except inputs."""
        self._observer: type[ObserverBase] = MinMaxObserver

    @property
    def inputs(self) -> dict[str, tuple[str, list[int | None]]]:
        """The element type and shape of each input, with None for any size."""
        inputs = {}
        for node in self._module.graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            sizes = [size if isinstance(size, int) else None for size in value.shape]
            inputs[node.name] = (str(value.dtype).removeprefix("torch."), sizes)
        return inputs

    @property
    def unchanged(self) -> torch.export.ExportedProgram:
        """The model to return if nothing is quantized."""
        return self.reference

    @property
    def unsupported(self) -> list[str]:
        """Which products stay in float, and why."""
        return unsupported(self._nodes.values())

    @property
    def results(self) -> list[str]:
        """The names of its results."""
        return [node.name for node in self._module.graph.output_node().all_input_nodes]

    def nodes(self) -> list[Node]:
        """Return its ops."""
        return [
            Node(
                index,
                (node.name, *paths_of(node)),
                tuple(operand.name for operand in self._read(node) if is_real(operand)),
                (node.name,),
                node.target in PRODUCTS,
                node.op == "call_function" and is_real(node) and node not in self._constants,
            )
            for index, node in self._nodes.items()
            if node.op in ("call_function", "call_module") and node not in self._constants
        ]

    def _read(self, node: fx.Node) -> list[fx.Node]:
        return [operand for operand in node.all_input_nodes if operand not in self._constants]

    def calibrate(self, batches: Sequence[Batch], method: str, form: Form) -> None:
        """Keep the data for `quantize`, where torchao calibrates."""
        if self._batches is not batches:
            finder = Zeros(self._module)
            with quiet(), torch.no_grad():
                for batch in batches:
                    finder.run(*_tensors(batch), enable_io_processing=False)
            self.zeros = finder.zeros
        self._batches, self._observer = batches, METHODS[method]
        self._answers = {}

    # ---- Asking ---------------------------------------------------------------------------------

    def ask(
        self,
        backend: Backend,
        form: Form,
        group: Group,
        wide: Tensors,
        ends: Ends = Ends.INTEGERS,
    ) -> str | None:
        """Return what the backend does with these ops between such ends."""
        nodes = [self._nodes[node.index] for node in group]
        for node in nodes:
            self._check_weights(node)
        key = f"{ends}: {self._described(nodes, wide)}"
        if key not in self._answers:
            self._answers[key] = None
            try:
                with quiet():
                    program, inputs = self._between(ends, nodes, form, wide)
                    mod = from_exported_program(
                        program, run_ep_decomposition=reads_differently(nodes, self._table)
                    )
            except Exception as error:
                # Ops that the tools cannot export or read stay real.
                backend.reasons.setdefault(f"{group[0].names[0]}: {error}")
            else:
                self._answers[key] = backend.answer(mod, inputs, 1, ends)
        return self._answers[key]

    def _check_weights(self, node: fx.Node) -> None:
        if node.target in PRODUCTS and node not in self._checked:
            for operand in node.all_input_nodes:
                if operand.op == "get_attr":
                    values = value_of(self._module, str(operand.target)).detach()
                    check_weights(values.numpy(), [node.name, *paths_of(node)][-1])
            self._checked.add(node)

    def _described(self, nodes: Sequence[fx.Node], wide: Tensors) -> str:
        """Return a text that describes ops, without the values of constants."""
        places: dict[fx.Node, int] = {}

        def tensor(node: fx.Node) -> str:
            place = places.setdefault(node, len(places))
            value = node.meta.get("val")
            kind = node in self._constants
            shape = getattr(value, "shape", None)
            return f"{place} {kind} {node.name in wide} {getattr(value, 'dtype', None)} {shape}"

        described = []
        for node in nodes:
            arguments = fx.node.map_arg((node.args, node.kwargs), tensor)
            described.append(f"{node.target} {arguments} {node.name in wide}")
            places[node] = len(places)
        return "; ".join(described)

    def _between(
        self, ends: Ends, nodes: Sequence[fx.Node], form: Form, wide: Tensors
    ) -> tuple[torch.export.ExportedProgram, int]:
        """Return a program of these ops between such ends, and the number of its real inputs."""
        graph, root = fx.Graph(), torch.nn.Module()
        made: dict[fx.Node, fx.Node] = {}
        arguments, real = [], 0

        def constant(node: fx.Node) -> fx.Node:
            if node not in made and node.op == "get_attr":
                made[node] = buffer(value_of(self._module, node.target))
            elif node not in made:
                made[node] = graph.node_copy(node, constant)
            return made[node]

        def buffer(value: torch.Tensor) -> fx.Node:
            name = f"constant_{len(list(root.buffers()))}"
            root.register_buffer(name, value.detach().clone())
            return graph.get_attr(name)

        outside = [
            operand for node in nodes for operand in self._read(node) if operand not in nodes
        ]
        for node in dict.fromkeys(outside):
            value = node.meta["val"]
            sizes = [hint(size) for size in value.shape]
            arguments.append(torch.zeros(sizes, dtype=value.dtype))
            made[node] = graph.placeholder(node.name)
        for node in dict.fromkeys(outside) if ends is not Ends.REALS else ():
            if is_real(node):
                real += 1
                made[node] = both(graph, made[node], WIDE if node.name in wide else form)
        for node in nodes:
            replaced: dict[fx.Node, fx.Node] = {}
            if node.target in PRODUCTS and ends is not Ends.REALS:
                first, second = node.args[:2]
                if first in self._constants:
                    raise ValueError("the first operand of a product is a constant")
                if second in self._constants:
                    weight = value_of(self._module, second.target).detach()
                    replaced[second] = dequantized(graph, buffer, weight, channel(node), form)
            replacements = {**made, **replaced}
            made[node] = graph.node_copy(
                node,
                lambda operand, replacements=replacements: (
                    replacements.get(operand) or constant(operand)
                ),
            )
        result = made[nodes[-1]]
        if ends is Ends.INTEGERS:
            result = both(graph, result, WIDE if nodes[-1].name in wide else form)
        graph.output((result,))
        module = fx.GraphModule(root, graph)
        return torch.export.export(module, tuple(arguments)), real

    # ---- Quantization ---------------------------------------------------------------------------

    def quantize(self, plan: Plan, form: Form) -> torch.export.ExportedProgram:
        """Return the model with the ops of a plan quantized."""
        dynamic = dynamic_shapes(self.inputs, self._example)
        with quiet(), torch.no_grad():
            annotates = _Annotates(plan, form, self._observer, self._nodes, self._constants)
            prepared = prepare_pt2e(copy.deepcopy(self._module), annotates)
            for batch in self._batches or ():
                self._call(prepared, batch)
            _check_observers(prepared)
            converted = convert_pt2e(prepared)
            arguments, named = self._example
            return torch.export.export(converted, arguments, named, dynamic_shapes=dynamic)

    def _call(self, module: torch.nn.Module, batch: Batch) -> object:
        arguments, named = self._example
        tensors = _tensors(batch)
        keys = list(named)
        return module(
            *tensors[: len(arguments)], **dict(zip(keys, tensors[len(arguments) :], strict=True))
        )

    def run(
        self, model: torch.export.ExportedProgram, batches: Sequence[Batch]
    ) -> list[list[Array]]:
        """Return PyTorch's results of a program for each batch."""
        module = model.module()
        results = []
        with quiet(), torch.no_grad():
            for batch in batches:
                flat = torch.utils._pytree.tree_leaves(self._call(module, batch))
                results.append(
                    [result.numpy() for result in flat if isinstance(result, torch.Tensor)]
                )
        return results


def _require_constant(model: torch.export.ExportedProgram) -> None:
    """Refuse a program that changes a buffer, which torchao takes for a constant."""
    changed = changed_buffers(model)
    if changed:
        raise ValueError(
            f"The model changes its buffer {changed[0]!r}; only models that keep nothing from one "
            "call to the next can be quantized with calibration data. Quantize the weights alone, "
            "with torchao.quantization.quantize_, before torch.export.export."
        )


class _Captures(Quantizer):  # type: ignore[misc]
    """Keeps the graph that torchao annotates, in which batch norms are folded."""

    graph: fx.GraphModule | None = None

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Keep a copy of the graph."""
        self.graph = copy.deepcopy(model)
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Accept all annotations."""


class _Annotates(Quantizer):  # type: ignore[misc]
    """Annotates the ops of a plan."""

    def __init__(
        self,
        plan: Plan,
        form: Form,
        observer: type[ObserverBase],
        nodes: Mapping[int, fx.Node],
        constants: Mapping[fx.Node, None],
    ) -> None:
        super().__init__()
        self._plan, self._form = plan, form
        self._names = {index: node.name for index, node in nodes.items()}
        self._constants = {node.name for node in constants}
        self._activations = [_activation(each, observer) for each in (form, WIDE)]

    def _spec(self, node: fx.Node) -> QuantizationSpec:
        return self._activations[node.name in self._plan.wide]

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Annotate the inputs of each group and, where integers are read, its result."""
        by_name = {node.name: node for node in model.graph.nodes}
        tied = {name for names in self._plan.tied for name in names}
        for group in self._plan.units:
            outside = set(inputs_of(group))
            for member in group:
                node = by_name[self._names[member.index]]
                read = [operand for operand in node.all_input_nodes if operand.name in outside]
                specs: dict[fx.Node, QuantizationSpec | SharedQuantizationSpec] = {
                    operand: self._spec(operand) for operand in read
                }
                if node.target in PRODUCTS and node.args[1].name in self._constants:
                    specs[node.args[1]] = self._weight(node)
                result = None
                if member is group[-1] and node.name in self._plan.quantized:
                    result = self._spec(node)
                if len(group) == 1 and not member.is_product and node.name in tied:
                    shared = SharedQuantizationSpec((read[0], node))
                    specs.update({operand: shared for operand in read[1:]})
                    result = shared if result is not None else None
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map=specs, output_qspec=result, _annotated=True
                )
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Accept all annotations: the plan has asked the backend."""

    def _weight(self, node: fx.Node) -> QuantizationSpec:
        common = {"dtype": torch.int8, "quant_min": -127, "quant_max": 127}
        if not self._form.per_channel:
            return QuantizationSpec(
                observer_or_fake_quant_ctr=MinMaxObserver,
                qscheme=torch.per_tensor_symmetric,
                **common,
            )
        return QuantizationSpec(
            observer_or_fake_quant_ctr=PerChannelMinMaxObserver,
            qscheme=torch.per_channel_symmetric,
            ch_axis=channel(node),
            **common,
        )


def _activation(form: Form, observer: type[ObserverBase]) -> QuantizationSpec:
    dtype = TYPES[form.activations]
    ends = torch.iinfo(dtype)
    return QuantizationSpec(
        dtype=dtype,
        observer_or_fake_quant_ctr=observer.with_args(eps=2**-20 if form != WIDE else 2**-28),
        quant_min=ends.min,
        quant_max=ends.max,
        qscheme=torch.per_tensor_symmetric if form.symmetric else torch.per_tensor_affine,
    )


def _tensors(batch: Batch) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in batch.values()]


def _check_observers(prepared: fx.GraphModule) -> None:
    """Refuse ranges that yield no scale."""
    for node in prepared.graph.find_nodes(op="call_module"):
        observer = getattr(prepared, str(node.target), None)
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        low, high = (getattr(observer, name, None) for name in ("min_val", "max_val"))
        if source is None or low is None or high is None or low.numel() != 1:
            continue
        if source.op == "get_attr":
            continue
        reader = next(iter(node.users), source).name
        check_range(source.name, float(low), float(high), reader)
