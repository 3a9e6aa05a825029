# SPDX-License-Identifier: Apache-2.0
"""Quantizes PyTorch models with torchao's PT2E, as far as the plan goes."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from ..batches import Batch
from ..importers import from_exported_program
from .console import quiet
from .data import check_range
from .planning import Backend, Form, Group, Node, Plan, Tensors, inputs_of

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

_ATEN = torch.ops.aten
# The argument that is the weight, and the axis of its channels.
_PRODUCTS = {
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
_TYPES = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16}
_WIDE = Form("int16", symmetric=True)
# The scale and zero point with which the backend is asked.
_STEP, _ZERO = 0.05, 3


class TorchModel:
    """A float model in PyTorch that can be quantised, in whole or in part.

    Parameters
    ----------
    model
        A `torch.export.ExportedProgram`, or a `torch.nn.Module` in eval mode.
    example
        The first batch of the calibration data, with which a module is exported.
    """

    def __init__(
        self, model: torch.export.ExportedProgram | torch.nn.Module, example: object
    ) -> None:
        self.original = model
        if isinstance(model, torch.nn.Module):
            model = _exported(model, example)
        self._example = tuple(model.example_inputs[0]), dict(model.example_inputs[1] or {})
        given = (*self._example[0], *self._example[1].values())
        if not all(isinstance(item, torch.Tensor) for item in given):
            raise ValueError(
                "The model takes other things than tensors; only tensors can be quantised."
            )
        self.reference = model
        captured = _Captures()
        with quiet():
            prepare_pt2e(model.module(), captured)
        assert captured.graph is not None
        self._module = captured.graph
        self._nodes = {index: node for index, node in enumerate(self._module.graph.nodes)}
        self._constants = _constants(self._module.graph)
        self._answers: dict[str, str | None] = {}
        self._batches: Sequence[Batch] = ()
        self._observer: type[ObserverBase] = MinMaxObserver

    @property
    def inputs(self) -> dict[str, tuple[str, list[int | None]]]:
        """The element type and shape of each input, with None for any size."""
        found = {}
        for node in self._module.graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            sizes = [size if isinstance(size, int) else None for size in value.shape]
            found[node.name] = (str(value.dtype).removeprefix("torch."), sizes)
        return found

    @property
    def results(self) -> list[str]:
        """The names of its results."""
        return [node.name for node in self._module.graph.output_node().all_input_nodes]

    def nodes(self) -> list[Node]:
        """Return its ops."""
        return [
            Node(
                index,
                (node.name, *_paths(node)),
                tuple(item.name for item in self._read(node) if _is_real(item)),
                (node.name,),
                node.target in _PRODUCTS,
                node.op == "call_function" and _is_real(node) and node not in self._constants,
            )
            for index, node in self._nodes.items()
            if node.op in ("call_function", "call_module") and node not in self._constants
        ]

    def _read(self, node: fx.Node) -> list[fx.Node]:
        return [item for item in node.all_input_nodes if item not in self._constants]

    def calibrate(self, batches: Sequence[Batch], method: str, form: Form) -> None:
        """Take the data; torchao calibrates what is quantised.

        Parameters
        ----------
        batches
            Inputs.
        method
            One of `METHODS`.
        form
            How tensors are written as integers.
        """
        self._batches, self._observer = batches, METHODS[method]
        self._answers = {}

    # ---- Asking ---------------------------------------------------------------------------------

    def ask(self, backend: Backend, form: Form, group: Group, wide: Tensors) -> str | None:
        """Return what the backend does with some ops between quantize and dequantize."""
        nodes = [self._nodes[node.index] for node in group]
        key = self._described(nodes, wide)
        if key not in self._answers:
            self._answers[key] = None
            try:
                with quiet():
                    program, inputs = self._between_integers(nodes, form, wide)
                    # Decompositions take most of the time, and do not change the answer.
                    mod = from_exported_program(program, run_ep_decomposition=False)
            except Exception as error:
                # Ops that the tools cannot export or read stay real.
                backend.reasons.setdefault(f"{group[0].names[0]}: {error}")
            else:
                self._answers[key] = backend.answer(mod, inputs, 1)
        return self._answers[key]

    def _described(self, nodes: Sequence[fx.Node], wide: Tensors) -> str:
        """Return a description of some ops, without the values of constants."""
        known: dict[fx.Node, int] = {}

        def tensor(node: fx.Node) -> str:
            place = known.setdefault(node, len(known))
            value = node.meta.get("val")
            kind = node in self._constants
            shape = getattr(value, "shape", None)
            return f"{place} {kind} {node.name in wide} {getattr(value, 'dtype', None)} {shape}"

        described = []
        for node in nodes:
            arguments = fx.node.map_arg((node.args, node.kwargs), tensor)
            described.append(f"{node.target} {arguments} {node.name in wide}")
            known[node] = len(known)
        return "; ".join(described)

    def _between_integers(
        self, nodes: Sequence[fx.Node], form: Form, wide: Tensors
    ) -> tuple[torch.export.ExportedProgram, int]:
        """Return a program of these ops between quantize and dequantize, and its real inputs."""
        graph, root = fx.Graph(), torch.nn.Module()
        made: dict[fx.Node, fx.Node] = {}
        arguments, real = [], 0

        def constant(node: fx.Node) -> fx.Node:
            if node not in made and node.op == "get_attr":
                made[node] = buffer(_value(self._module, node.target))
            elif node not in made:
                made[node] = graph.node_copy(node, constant)
            return made[node]

        def buffer(value: torch.Tensor) -> fx.Node:
            name = f"constant_{len(list(root.buffers()))}"
            root.register_buffer(name, value.detach().clone())
            return graph.get_attr(name)

        outside = [item for node in nodes for item in self._read(node) if item not in nodes]
        for node in dict.fromkeys(outside):
            value = node.meta["val"]
            sizes = [_hint(size) for size in value.shape]
            arguments.append(torch.zeros(sizes, dtype=value.dtype))
            made[node] = graph.placeholder(node.name)
        for node in dict.fromkeys(outside):
            if _is_real(node):
                real += 1
                made[node] = _both(graph, made[node], _WIDE if node.name in wide else form)
        for node in nodes:
            replaced: dict[fx.Node, fx.Node] = {}
            if node.target in _PRODUCTS:
                first, second = node.args[:2]
                if first in self._constants:
                    raise ValueError("the first operand of a product is a constant")
                if second in self._constants:
                    if second.op != "get_attr":
                        raise ValueError("the weights are computed from constants")
                    weight = _value(self._module, second.target).detach()
                    replaced[second] = _weight(graph, buffer, weight, _channel(node), form)
            known = {**made, **replaced}
            made[node] = graph.node_copy(
                node, lambda item, known=known: known.get(item) or constant(item)
            )
        of_result = _WIDE if nodes[-1].name in wide else form
        graph.output((_both(graph, made[nodes[-1]], of_result),))
        module = fx.GraphModule(root, graph)
        return torch.export.export(module, tuple(arguments)), real

    # ---- Quantization ---------------------------------------------------------------------------

    def quantize(self, plan: Plan, form: Form) -> torch.export.ExportedProgram:
        """Return the model with the ops of a plan quantised.

        Parameters
        ----------
        plan
            What is quantised.
        form
            How.

        Returns
        -------
        program
            An `ExportedProgram`.
        """
        dynamic = _dynamic(self.inputs, self._example)
        with quiet(), torch.no_grad():
            annotates = _Annotates(plan, form, self._observer, self._nodes, self._constants)
            prepared = prepare_pt2e(copy.deepcopy(self._module), annotates)
            for batch in self._batches:
                self._call(prepared, batch)
            _check_observers(prepared)
            converted = convert_pt2e(prepared)
            arguments, named = self._example
            return torch.export.export(converted, arguments, named, dynamic_shapes=dynamic)

    def _call(self, module: torch.nn.Module, batch: Batch) -> object:
        arguments, named = self._example
        tensors = [torch.from_numpy(np.ascontiguousarray(item)) for item in batch.values()]
        keys = list(named)
        return module(
            *tensors[: len(arguments)], **dict(zip(keys, tensors[len(arguments) :], strict=True))
        )

    def run(
        self, model: torch.export.ExportedProgram, batches: Sequence[Batch]
    ) -> list[list[np.ndarray]]:
        """Return PyTorch's results of a program for each batch."""
        module = model.module()
        results = []
        with quiet(), torch.no_grad():
            for batch in batches:
                flat = torch.utils._pytree.tree_leaves(self._call(module, batch))
                results.append([item.numpy() for item in flat if isinstance(item, torch.Tensor)])
        return results


class _Captures(Quantizer):  # type: ignore[misc]
    """Keeps the graph as it is when ops are annotated: batch norms are folded by then."""

    graph: fx.GraphModule | None = None

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Keep a copy."""
        self.graph = copy.deepcopy(model)
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Accept it."""


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
        self._activations = [_activation(item, observer) for item in (form, _WIDE)]

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
                read = [item for item in node.all_input_nodes if item.name in outside]
                specs: dict[fx.Node, QuantizationSpec | SharedQuantizationSpec] = {
                    item: self._spec(item) for item in read
                }
                if node.target in _PRODUCTS and node.args[1].name in self._constants:
                    specs[node.args[1]] = self._weight(node)
                result = None
                if member is group[-1] and node.name in self._plan.quantized:
                    result = self._spec(node)
                if len(group) == 1 and not member.is_product and node.name in tied:
                    shared = SharedQuantizationSpec((read[0], node))
                    specs.update({item: shared for item in read[1:]})
                    result = shared if result is not None else None
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map=specs, output_qspec=result, _annotated=True
                )
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Accept it: the plan has asked the backend."""

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
            ch_axis=_channel(node),
            **common,
        )


def _activation(form: Form, observer: type[ObserverBase]) -> QuantizationSpec:
    dtype = _TYPES[form.activations]
    ends = torch.iinfo(dtype)
    return QuantizationSpec(
        dtype=dtype,
        observer_or_fake_quant_ctr=observer.with_args(eps=2**-20 if form != _WIDE else 2**-28),
        quant_min=ends.min,
        quant_max=ends.max,
        qscheme=torch.per_tensor_symmetric if form.symmetric else torch.per_tensor_affine,
    )


# ---- Graphs -------------------------------------------------------------------------------------


def _exported(model: torch.nn.Module, example: Any) -> torch.export.ExportedProgram:
    if model.training:
        raise ValueError("The model is in training mode: call model.eval() first.")
    if isinstance(example, Mapping):
        arguments, named = (), {name: torch.as_tensor(item) for name, item in example.items()}
    else:
        given = [example] if hasattr(example, "shape") else list(example or ())
        arguments, named = tuple(map(torch.as_tensor, given)), {}
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(model, arguments, named)
    except Exception as error:
        raise ValueError(
            "torch.export cannot export the model with the first batch of calibration_data: "
            f"{error}"
        ) from error


def _constants(graph: fx.Graph) -> dict[fx.Node, None]:
    """Return the values known before the model runs: its weights, and those computed from them."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        known = bool(node.all_input_nodes) and all(item in found for item in node.all_input_nodes)
        if node.op == "get_attr" or (node.op == "call_function" and known):
            found[node] = None
    return found


def _is_real(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _paths(node: fx.Node) -> list[str]:
    """Return the path of an op's module, as users know it."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(item[0]) for item in stack.values() if item and item[0]]
    return names[-1:]


def _value(module: torch.nn.Module, path: str) -> torch.Tensor:
    value: torch.Tensor = operator.attrgetter(path)(module)
    return value


def _hint(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _channel(node: fx.Node) -> int:
    axis = _PRODUCTS[node.target]
    rank = node.args[1].meta["val"].ndim
    return int(axis % rank)


def _both(graph: fx.Graph, value: fx.Node, form: Form) -> fx.Node:
    """Quantize and dequantize."""
    ops, dtype = torch.ops.quantized_decomposed, _TYPES[form.activations]
    ends = torch.iinfo(dtype)
    zero = (ends.min + ends.max + 1) // 2 if form.symmetric else ends.min + _ZERO
    given = (_STEP, zero, ends.min, ends.max, dtype)
    integers = graph.call_function(ops.quantize_per_tensor.default, (value, *given))
    return graph.call_function(ops.dequantize_per_tensor.default, (integers, *given))


def _weight(
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
        given = (step, 0, -127, 127, torch.int8)
        return graph.call_function(ops.dequantize_per_tensor.default, (integers, *given))
    others = [index for index in range(value.ndim) if index != axis]
    steps = value.abs().amax(others, keepdim=True).clamp(min=1e-12) / 127
    integers = buffer((value / steps).round().to(torch.int8))
    scales = buffer(steps.reshape(-1))
    zeros = buffer(torch.zeros(value.shape[axis], dtype=torch.int64))
    arguments = (integers, scales, zeros, axis, -127, 127, torch.int8)
    return graph.call_function(ops.dequantize_per_channel.default, arguments)


def _dynamic(
    inputs: Mapping[str, tuple[str, Sequence[int | None]]],
    example: tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]],
) -> dict[str, dict[int, object]] | tuple[dict[int, object], ...] | None:
    """Return which sizes of the inputs are dynamic, as torch.export wants it."""
    sizes = [
        {axis: torch.export.Dim.AUTO for axis, size in enumerate(shape) if size is None}
        for _, shape in inputs.values()
    ]
    if not any(sizes):
        return None
    return dict(zip(inputs, sizes, strict=True)) if example[1] else tuple(sizes)


def _check_observers(prepared: fx.GraphModule) -> None:
    """Refuse ranges from which no scale follows."""
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
