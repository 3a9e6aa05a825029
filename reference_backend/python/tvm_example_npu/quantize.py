# SPDX-License-Identifier: Apache-2.0
"""Quantizes float models for this backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from .engine.backend.settings.options import Source
from .engine.workbench import quantization


def quantize_for_example_npu(
    model: object,
    calibration_data: Iterable[object],
    *,
    method: str = "minmax",
    activations: str | None = None,
    keep_float: Collection[str] = (),
    int16: Collection[str] = (),
    max_loss: float | None = None,
    evaluate: Callable[[Any], float] | None = None,
    options: Source = None,
) -> Any:
    """Quantize those ops of a float model that this backend computes with integers.

    `onnxruntime.quantization` or torchao's PT2E calibrates and quantizes it. Ops that this backend
    would not compute with integers stay in float.

    Parameters
    ----------
    model
        An `onnx.ModelProto`, the path of an ONNX file, a `torch.export.ExportedProgram`, or a
        `torch.nn.Module` in eval mode. It is not changed.
    calibration_data
        Batches of real inputs: each a mapping of names to arrays, a sequence of arrays in the order
        of the inputs, or an array.
    method
        How to find ranges: "minmax" or "moving_average"; for ONNX also "percentile" and
        "entropy", for PyTorch also "mse".
    activations
        Their element type, "int8", "uint8" or "int16"; by default, the first that this backend
        supports.
    keep_float
        Ops that stay in float: names of nodes, of their results or, in PyTorch, of modules, or
        patterns with the wildcards of a shell, such as "head.*".
    int16
        Ops that read and write int16 instead of int8, named like those of keep_float.
    max_loss
        The largest accepted loss of accuracy against the float model. Until it is met, the layers
        that lose most become int16, where this backend has that, or stay in float.
    evaluate
        Returns the accuracy of a model of the same kind as the result, for `max_loss`; higher is
        better. It is first called with the given float model.
    options
        As for the partitioning.

    Returns
    -------
    model
        An `onnx.ModelProto` for `from_onnx`, or an `ExportedProgram` for `from_exported_program`.

    Raises
    ------
    ValueError
        Calibration data is missing or does not fit, an argument is not supported, or the backend
        computes no op of the model with integers.
    ImportError
        onnxruntime or torchao is not installed.
    """
    return quantization.quantize_for(
        model,
        calibration_data,
        method=method,
        activations=activations,
        keep_float=keep_float,
        int16=int16,
        max_loss=max_loss,
        evaluate=evaluate,
        options=options,
    )
