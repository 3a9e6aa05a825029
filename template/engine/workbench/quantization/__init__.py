# SPDX-License-Identifier: Apache-2.0
"""Quantizes float models for this backend, with the tools that users have.

`onnxruntime.quantization` and torchao's PT2E calibrate, and quantize the ops of the plan.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ...backend.settings.options import Source
from ...backend.shared.console import Progress, quiet
from ...backend.table.patterns import TABLE
from . import data
from .planning import Backend, Ends, Form, Group, Node, Plan, Planner, Tensors
from .search import Search, check_loss, matching

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

    from .onnx_models import OnnxModel
    from .search import Evaluate
    from .torch_models import TorchModel

_REASONS = 3
"""How many reasons an error gives."""


def quantize_for(
    model: object,
    calibration_data: Iterable[object],
    *,
    method: str = "minmax",
    activations: str | None = None,
    keep_float: Collection[str] = (),
    int16: Collection[str] = (),
    max_loss: float | None = None,
    evaluate: Evaluate | None = None,
    options: Source = None,
) -> ModelProto | ExportedProgram:
    """Quantize a float model, as far as this backend computes with integers.

    `quantize_for_<name>` of the package documents the arguments.
    """
    if (max_loss is None) != (evaluate is None):
        raise ValueError(
            "max_loss and evaluate go together: one is the limit of what the other measures."
        )
    if max_loss is not None:
        check_loss(max_loss)
    keep_float, int16 = (
        (names,) if isinstance(names, str) else names for names in (keep_float, int16)
    )
    samples = data.listed(calibration_data)
    source = _open(model, method, samples[0])
    batches = data.read(samples, source.inputs)
    backend = Backend(options)
    with Progress() as progress:
        for form in _forms(source, activations):
            progress.show(f"calibrating: {len(batches)} batches")
            source.calibrate(batches, method, form)
            nodes = source.nodes()
            excluded = matching(nodes, keep_float, "keep_float")
            excluded |= _without_scale(nodes, source.zeros, excluded)
            wide = matching(nodes, int16, "int16") - excluded

            def ask(group: Group, tensors: Tensors, ends: Ends, form: Form = form) -> str | None:
                progress.show(f"asking the backend: {group[0].names[0]}")
                answer: str | None = source.ask(backend, form, group, tensors, ends)
                return answer

            planner = Planner(nodes, source.results, ask)
            chosen = planner.plan(excluded, wide)
            if chosen.groups:
                _check_wide(nodes, wide, chosen, backend)
                break
        else:
            names = ", ".join(node.names[0] for node in nodes if node.is_product)
            reasons = "; ".join(
                [*list(backend.reasons)[:_REASONS], *source.unsupported[:_REASONS]]
            ) or (
                f"none of {names} is one composite between dequantize and quantize"
                if names
                else "it has no convolution and no matrix product"
            )
            raise ValueError(
                f"This backend computes nothing of the model with integers: {reasons}."
            )
        if max_loss is None or evaluate is None:
            progress.show("quantizing")
            return source.quantize(chosen, form)
        search = Search(source, planner, form, batches, progress)
        return search.within(max_loss, evaluate, excluded, wide)


def _without_scale(nodes: Iterable[Node], zeros: set[str], excluded: set[int]) -> set[int]:
    """Return the ops that read a tensor of zeros, which yields no scale."""
    readers = set()
    for node in nodes:
        read = zeros.intersection(node.inputs)
        if read:
            readers.add(node.index)
        if read and node.is_product and node.index not in excluded:
            warnings.warn(
                f"The tensor '{min(read)}' is 0 throughout for the calibration data, so that it "
                f"has no scale: '{node.names[0]}', which reads it, stays in float.",
                stacklevel=4,
            )
    return readers


def _check_wide(nodes: Iterable[Node], wide: set[int], chosen: Plan, backend: Backend) -> None:
    """Refuse products that a user wants in int16 and the plan leaves in float."""
    quantized = {node.index for node in chosen.nodes}
    for node in nodes:
        if node.is_product and node.index in wide - quantized:
            reasons = "; ".join(list(backend.reasons)[-_REASONS:])
            raise ValueError(
                f"int16: this backend does not compute '{node.names[0]}' with int16"
                f"{f': {reasons}' if reasons else ''}. Name other ops, or leave it to int8."
            )


def _open(model: object, method: str, example: object) -> OnnxModel | TorchModel:
    """Return the model for the tool that reads it."""
    if isinstance(model, (str, os.PathLike)) or hasattr(model, "opset_import"):
        try:
            from . import onnx_models
        except ImportError as error:
            raise ImportError(
                "To quantize an ONNX model, onnx and onnxruntime 1.22 or newer are needed: "
                f"pip install onnx onnxruntime. ({error})"
            ) from None
        _check_method("onnxruntime", method, onnx_models.METHODS)
        return onnx_models.OnnxModel(model)
    if hasattr(model, "graph_signature") or hasattr(model, "named_parameters"):
        try:
            with quiet():
                from . import torch_models
        except ImportError as error:
            raise ImportError(
                "To quantize a PyTorch model, torch and torchao 0.18 or newer are needed: "
                f"pip install torch torchao. ({error})"
            ) from None
        _check_method("torchao", method, torch_models.METHODS)
        return torch_models.TorchModel(model, example)
    raise ValueError(
        f"The model is of type {type(model).__name__}; supported: onnx.ModelProto, the path of an "
        "ONNX file, torch.export.ExportedProgram and torch.nn.Module. Models of TVM are quantized "
        "before they are imported."
    )


def _check_method(tool: str, method: str, methods: Iterable[str]) -> None:
    if method not in methods:
        raise ValueError(f"method is '{method}'; {tool} has {', '.join(methods)}.")


def _forms(source: object, activations: str | None) -> Iterable[Form]:
    """Generate the forms of integers to try, the preferred one first."""
    products = [op for op in TABLE.ops if op.is_product]
    dtypes = (name for op in products if op.quantized for name in op.quantized.dtypes)
    supported = list(dict.fromkeys(dtypes))
    if not supported or not TABLE.computes_quantized:
        raise ValueError(
            "This backend computes no products of integers. Its table needs quantize, dequantize, "
            "and a convolution or matmul whose limits name types in quantized; dtypes of CHIP in "
            "vendor/capabilities.py must have these types."
        )
    if activations is not None and activations not in supported:
        raise ValueError(
            f"activations is '{activations}'; this backend has {', '.join(supported)}."
        )
    for name in supported if activations is None else [activations]:
        for per_channel in (True, False):
            for symmetric in (False, True) if name != "int16" else (True,):
                yield Form(name, symmetric, per_channel)
