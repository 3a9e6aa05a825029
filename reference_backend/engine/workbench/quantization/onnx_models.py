# SPDX-License-Identifier: Apache-2.0
"""Quantizes ONNX models with `onnxruntime.quantization`, as far as the plan goes."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
    version_converter,
)
from onnxruntime.quantization import (
    CalibrationMethod,
    QDQQuantizer,
    QuantType,
    create_calibrator,
    quant_pre_process,
)
from onnxruntime.quantization.calibrate import TensorData, TensorsData

from ...backend.importers import from_onnx
from ...backend.shared.aliases import Array, Real
from ...backend.shared.console import quiet
from ..batches import Batch
from .data import check_finite, check_range, check_weights
from .planning import Backend, Ends, Form, Group, Node, Plan, Tensors

METHODS = {
    "minmax": (CalibrationMethod.MinMax, {}),
    "moving_average": (CalibrationMethod.MinMax, {"moving_average": True}),
    "percentile": (CalibrationMethod.Percentile, {}),
    "entropy": (CalibrationMethod.Entropy, {}),
}
"""ONNX Runtime's ways to find the range of a tensor, and their options."""

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_OTHER_PRODUCTS = ("Einsum", "GRU", "LSTM", "RNN", "Attention", "MultiHeadAttention")
_REAL = (TensorProto.FLOAT, TensorProto.FLOAT16)
_FUSED = "/MatMulAddFusion"  # Suffix of a matrix product with a bias in ONNX Runtime.
_LEAST_OPSET, _OPSET = 13, 17
_TYPES = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "int16": QuantType.QInt16}


class OnnxModel:
    """A float model in ONNX that can be quantized, in whole or in part."""

    def __init__(self, model: ModelProto | str | os.PathLike[str]) -> None:
        if isinstance(model, (str, os.PathLike)):
            model = onnx.load(model)
        self.original = model
        self.reference = _prepared(model)
        graph = self.reference.graph
        self._constants = {constant.name: constant for constant in graph.initializer}
        self._nodes = {index: node for index, node in enumerate(graph.node)}
        self._checked: set[str] = set()
        self._shapes: dict[str, ValueInfoProto] = {}
        self._ranges: dict[str, tuple[Real, Real]] = {}

    @property
    def inputs(self) -> dict[str, tuple[str, list[int | None]]]:
        """The element type and shape of each input, with None for any size."""
        inputs = {}
        for value in self.reference.graph.input:
            tensor = value.type.tensor_type
            dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            sizes = [size.dim_value or None for size in tensor.shape.dim]
            inputs[value.name] = (dtype, sizes)
        return inputs

    @property
    def unchanged(self) -> ModelProto:
        """The model to return if nothing is quantized."""
        return self.original

    @property
    def unsupported(self) -> list[str]:
        """Which products stay in float, and why."""
        return [
            f"'{node.name}' is {node.op_type}, which stays in float, unlike {', '.join(_PRODUCTS)}"
            for node in self._nodes.values()
            if node.op_type in _OTHER_PRODUCTS
        ]

    @property
    def zeros(self) -> set[str]:
        """The tensors that are 0 throughout for the calibration data, except inputs."""
        zeros = {name for name, (low, high) in self._ranges.items() if low == high == 0}
        return zeros.difference(self.inputs)

    @property
    def results(self) -> list[str]:
        """The names of its results."""
        return [value.name for value in self.reference.graph.output]

    def nodes(self) -> list[Node]:
        """Return its ops."""
        real = {name for name, value in self._shapes.items() if _is_real(value)}
        return [
            Node(
                index,
                (node.name, node.name.removesuffix(_FUSED), *node.output),
                tuple(name for name in _read(node) if name in real),
                tuple(node.output),
                node.op_type in _PRODUCTS,
                all(name in real for name in node.output if name)
                and not any(attribute.HasField("g") for attribute in node.attribute),
            )
            for index, node in self._nodes.items()
        ]

    # ---- Calibration ----------------------------------------------------------------------------

    def calibrate(self, batches: Sequence[Batch], method: str, form: Form) -> None:
        """Find the ranges of all tensors."""
        kind, options = METHODS[method]
        fixed = copy.deepcopy(self.reference)
        for value in fixed.graph.input:
            sizes = value.type.tensor_type.shape.dim
            for size, number in zip(sizes, batches[0][value.name].shape, strict=True):
                size.dim_value = number
        del fixed.graph.value_info[:]
        inferred = shape_inference.infer_shapes(fixed, data_prop=True)
        graph = inferred.graph
        self._shapes = {
            value.name: value for value in (*graph.input, *graph.value_info, *graph.output)
        }
        with tempfile.TemporaryDirectory() as directory, quiet():
            source = Path(directory) / "float.onnx"
            onnx.save(self.reference, source)
            calibrator = create_calibrator(
                source,
                augmented_model_path=str(Path(directory) / "calibrated.onnx"),
                calibrate_method=kind,
                extra_options={**options, "symmetric": form.symmetric},
            )
            calibrator.collect_data(_Reader(batches))
            ranges = calibrator.compute_data()
        for name, data in ranges.items():
            low, high = (np.asarray(end).reshape(-1) for end in data.range_value)
            self._ranges[name] = (low.min(), high.max())

    # ---- Quantization ---------------------------------------------------------------------------

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
        self._check_weights(nodes)
        produced = {name for node in nodes for name in node.output}
        read = [name for node in nodes for name in _read(node) if name not in produced]
        outside = [name for name in dict.fromkeys(read) if name not in self._constants]
        results = [name for name in group[-1].outputs if name]
        if any(name not in self._shapes for name in (*outside, *results)):
            return None
        graph = helper.make_graph(
            [copy.deepcopy(node) for node in nodes],
            "asked",
            [self._shapes[name] for name in outside],
            [self._shapes[name] for name in results],
            [self._constants[name] for name in dict.fromkeys(read) if name in self._constants],
            value_info=[self._shapes[name] for name in produced if name in self._shapes],
        )
        model = helper.make_model(
            graph, opset_imports=self.reference.opset_import, ir_version=self.reference.ir_version
        )
        real = [name for name in outside if _is_real(self._shapes[name])]
        for name in group[0].inputs if group[0].is_product else ():
            check_finite(name, *self._ranges[name], group[0].names[0])
        # Tells ONNX Runtime that shapes are inferred already.
        helper.set_model_props(model, {"onnx.infer": "onnxruntime.quant"})
        moved = [tuple((*real, *results))] if not group[0].is_product else []
        integers = {*real, *(results if ends is Ends.INTEGERS else ())}
        try:
            if ends is not Ends.REALS:
                model = self._quantized(model, group, integers, form, moved, real, wide)
            mod = from_onnx(model)
        except Exception as error:
            # Ops that the tools cannot quantize or read stay real.
            backend.reasons.setdefault(f"{group[0].names[0]}: {error}")
            return None
        return backend.answer(mod, len(real), len(results), ends)

    def _check_weights(self, nodes: Iterable[NodeProto]) -> None:
        for node in nodes:
            if node.op_type in _PRODUCTS and node.name not in self._checked:
                for name in self._constants.keys() & set(node.input):
                    values = numpy_helper.to_array(self._constants[name])
                    check_weights(values, node.name.removesuffix(_FUSED))
                self._checked.add(node.name)

    def quantize(self, plan: Plan, form: Form) -> ModelProto:
        """Return the model with QuantizeLinear and DequantizeLinear around the ops of a plan."""
        for group in plan.units:
            for name in (read for node in group for read in node.inputs if read in plan.quantized):
                check_range(name, *self._ranges[name], group[0].names[0])
        return self._quantized(
            copy.deepcopy(self.reference),
            plan.nodes,
            plan.quantized,
            form,
            plan.tied,
            (),
            plan.wide,
        )

    def _quantized(
        self,
        model: ModelProto,
        nodes: Group,
        integers: Collection[str],
        form: Form,
        tied: Iterable[Sequence[str]],
        entering: Iterable[str],
        wide: Tensors,
    ) -> ModelProto:
        """Quantize a model, in which only the tensors `integers` are integers."""
        ranges = _one_range(self._ranges, tied)
        data = {
            name: TensorData(lowest=low, highest=high)
            for name, (low, high) in ranges.items()
            # ONNX Runtime stops at other ranges, even of a tensor that stays real.
            if np.isfinite([low, high]).all()
        }
        types = sorted({self._nodes[node.index].op_type for node in nodes})
        overrides = set(wide)
        for node in reversed(nodes):
            # ONNX Runtime gives ops that only move elements the type of their input.
            if not overrides.isdisjoint(node.outputs):
                overrides.update(name for name in node.inputs if name not in integers)
        options = {
            "ActivationSymmetric": form.symmetric,
            "ForceQuantizeNoInputCheck": True,
            "QDQKeepRemovableActivations": True,
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": -1},
            "TensorQuantOverrides": {
                name: [{"quant_type": QuantType.QInt16, "symmetric": True}]
                for name in sorted(overrides)
            },
        }
        with quiet():
            quantizer = QDQQuantizer(
                model,
                form.per_channel,
                False,
                QuantType.QInt8,
                _TYPES[form.activations],
                TensorsData(CalibrationMethod.MinMax, data),
                [self._nodes[node.index].name for node in nodes],
                [],
                types,
                options,
            )
            for name in entering:
                quantizer.quantize_activation_tensor(name)
            quantizer.quantize_model()
            _without_pairs(quantizer.model.model.graph, integers, self._constants)
        _sort(quantizer.model.model.graph)
        return quantizer.model.model

    # ---- Results --------------------------------------------------------------------------------

    def run(self, model: ModelProto, batches: Sequence[Batch]) -> list[list[Array]]:
        """Return ONNX Runtime's results of a model for each batch."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [[np.asarray(result) for result in session.run(None, batch)] for batch in batches]


class _Reader:
    """Gives batches to ONNX Runtime."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Batch | None:
        """Return the next batch, or None."""
        return next(self._batches, None)

    def __iter__(self) -> Iterator[Batch]:
        return self._batches


def _prepared(model: ModelProto) -> ModelProto:
    """Return the model in a recent opset, folded by ONNX Runtime, with all nodes named."""
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") or "QLinear" in node.op_type:
            raise ValueError(
                f"The model is quantized already: it has {node.op_type} (node '{node.name}'). "
                "Give the float model."
            )
    versions = {each.domain: each.version for each in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 0))
    if opset < _LEAST_OPSET:
        try:
            model = version_converter.convert_version(model, _OPSET)
        except Exception as error:
            raise ValueError(
                f"The model has opset {opset}; quantization needs {_LEAST_OPSET}, and "
                f"onnx.version_converter cannot convert it: {error}"
            ) from None
    else:
        model = copy.deepcopy(model)
    if model.ir_version < 4:
        model.ir_version = 8
    # Old models list their weights among the inputs, which would not be folded.
    weights = {weight.name for weight in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    taken = {node.name for node in model.graph.node if node.name}
    _name_nodes(model.graph.node, taken)
    with tempfile.TemporaryDirectory() as directory, quiet():
        source, folded = (str(Path(directory) / name) for name in ("float.onnx", "folded.onnx"))
        # By path, since some models in memory fail.
        onnx.save(model, source)
        # Batch norms become part of convolutions.
        quant_pre_process(source, folded, skip_symbolic_shape=True)
        model = onnx.load(folded)
    _name_nodes(model.graph.node, taken | {node.name for node in model.graph.node})
    return model


def _sort(graph: GraphProto) -> None:
    """Put nodes after their producers; ONNX Runtime overlooks what subgraphs read."""
    producers = {name: node for node in graph.node for name in node.output if name}
    done: set[str] = set()
    result: list[NodeProto] = []
    for last in list(graph.node):
        waiting = [last]
        while waiting:
            node = waiting[-1]
            before = [
                producers[name]
                for name in _read(node)
                if name in producers and producers[name].name not in done
            ]
            if before and node.name not in done:
                waiting += before
                continue
            waiting.pop()
            if node.name not in done:
                done.add(node.name)
                result.append(node)
    copies = [copy.deepcopy(node) for node in result]
    del graph.node[:]
    graph.node.extend(copies)


def _name_nodes(nodes: Iterable[NodeProto], taken: set[str]) -> None:
    seen: set[str] = set()
    for node in nodes:
        if not node.name or node.name in seen:
            base = node.name or next(filter(None, node.output), node.op_type)
            name, number = base, 1
            while name in taken:
                name, number = f"{base}_{number}", number + 1
            node.name = name
            taken.add(name)
        seen.add(node.name)


def _read(node: NodeProto) -> list[str]:
    """Return the tensors that a node and its subgraphs read."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names += [name for inner in graph.node for name in _read(inner)]
    return names


def _is_real(value: ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in _REAL


def _one_range(
    ranges: Mapping[str, tuple[Real, Real]], tied: Iterable[Sequence[str]]
) -> dict[str, tuple[Real, Real]]:
    """Give tied tensors the union of their ranges."""
    classes: dict[str, set[str]] = {}
    for names in tied:
        united = set().union(*(classes.get(name, {name}) for name in names))
        classes.update(dict.fromkeys(united, united))
    result = dict(ranges)
    for name, united in classes.items():
        lows, highs = zip(*(ranges[member] for member in united if member in ranges), strict=True)
        result[name] = (min(lows), max(highs))
    return result


def _without_pairs(
    graph: GraphProto, integers: Collection[str], constants: Collection[str]
) -> None:
    """Drop the pairs of QuantizeLinear and DequantizeLinear around tensors that stay real."""
    by_input: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            by_input.setdefault(name, []).append(node)
    results = {value.name for value in graph.output}
    dropped: list[NodeProto] = []
    real: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "QuantizeLinear" or node.input[0] in constants:
            continue
        after = [
            reader for reader in by_input[node.output[0]] if reader.op_type == "DequantizeLinear"
        ]
        names = {dequantize.output[0] for dequantize in after} & results
        # ONNX Runtime renames the results that it quantizes.
        tensor = names.pop() if names else node.input[0]
        if tensor in integers:
            continue
        dropped += [node, *after]
        if tensor in results:
            renamed[node.input[0]] = tensor
        else:
            real.update({dequantize.output[0]: node.input[0] for dequantize in after})
    for node in dropped:
        graph.node.remove(node)
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(real.get(name, name), real.get(name, name))
        for index, name in enumerate(node.output):
            node.output[index] = renamed.get(name, name)
    used = {name for node in graph.node for name in _read(node)} | results
    kept = [constant for constant in graph.initializer if constant.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
