# SPDX-License-Identifier: Apache-2.0
"""`--quantize` and `--accuracy`: from batches of a file to a quantized model, and its accuracy."""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tvm

from ...backend.commands.preparing import Prepared
from ...backend.models.files import ArrayFile, Arrays
from ...backend.models.reading import ModelFile
from ...backend.models.signature import Input, Signature, chosen, signature_of
from ...backend.regions.partition import partition_for
from ...backend.settings.options import Options
from ...backend.shared.backend import BACKEND, PACKAGE
from ...backend.shared.problem import Problem, sentence
from ...backend.shared.terminal import say
from ..accuracy import AccuracyReport, accuracy_report

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

OPEN_BATCH = 16
"""The number of samples in a batch if the model takes any number."""


def quantized(
    file: ModelFile, arguments: argparse.Namespace, options: Options
) -> ModelProto | ExportedProgram:
    """Quantize a model file for `--quantize`; the result is of the kind of the file."""
    if not file.can_quantize:
        raise Problem(
            f"{file.path} cannot be quantized here; supported are models of ONNX and PyTorch. "
            "TensorFlow Lite quantizes its own: such files are read as they are."
        )
    quantize = getattr(importlib.import_module(PACKAGE), f"quantize_for_{BACKEND}")
    batches = read_batches(arguments.quantize, signature_of(file.imported(dict(arguments.shape))))
    with _telling_notes():
        try:
            content = quantize(
                file.content,
                batches,
                method=arguments.method or "minmax",
                activations=arguments.activations,
                keep_float=arguments.keep_float,
                int16=arguments.int16,
                options=options,
            )
        except Exception as error:
            raise Problem(f"{file.path} cannot be quantized: {sentence(error)}") from error
    return content


def calibrated(
    mod: tvm.IRModule, path: Path, signature: Signature, options: Options
) -> tvm.IRModule:
    """Partition a module with the samples of a file, for `--calibration`."""
    batches = read_batches(path, signature)
    with _telling_notes():
        return partition_for(mod, calibration_data=batches, options=options)


@contextmanager
def _telling_notes() -> Iterator[None]:
    """Tell users what is doubtful about calibration data."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield
    for note in notes:
        if "calibration data" in str(note.message):  # Other errors are the tools' own.
            say(f"NOTE: {note.message}", file=sys.stderr)


def accuracy_of(prepared: Prepared, arguments: argparse.Namespace) -> AccuracyReport:
    """Compare the quantized model with the float one, on the calibration data."""
    real = prepared.file.imported(dict(arguments.shape))
    batches = read_batches(arguments.quantize, signature_of(real))
    names = [spec.name for spec in prepared.signature.inputs]
    # The report is for one shape: a last batch that is smaller is left out.
    shapes = [[batch[name].shape for name in names] for batch in batches]
    arrays = [
        [batch[name] for name in names]
        for batch, shape in zip(batches, shapes, strict=True)
        if shape == shapes[0]
    ]
    try:
        return accuracy_report(
            real, prepared.mod, arrays, target=arguments.target, options=prepared.options
        )
    except Exception as error:
        raise Problem(f"The accuracy cannot be measured: {sentence(error)}") from error


def read_batches(path: Path, signature: Signature) -> list[Arrays]:
    """Read batches of inputs.

    `path`: an .npz file with an array for each input, samples along the first axis: the axis of the
    batch, or one more than the input has.

    Arrays by the name of the input. What does not fill a batch of a fixed size is left out.
    """
    if not signature.inputs:
        raise Problem("The model has no inputs, so that nothing can be calibrated.")
    arrays = ArrayFile(path)
    batches: list[Arrays] = []
    counts: dict[str, int] = {}
    for spec, name in zip(signature.inputs, chosen(arrays, signature), strict=True):
        rank = len(spec.shape or ())
        shape = arrays.headers[name].shape
        if len(shape) not in (rank, rank + 1) or not shape:
            raise Problem(
                f"{path}: '{spec.name}' has the shape {shape}, and the model takes {spec}; "
                "samples are along the first axis."
            )
        array = arrays[name]
        if array.ndim == rank + 1:
            # Each is an input as it is.
            parts = list(array)
        else:
            size = _batch(spec)
            count = len(array) if isinstance(_first(spec), str) else len(array) // size * size
            parts = [array[start : min(start + size, count)] for start in range(0, count, size)]
        if not parts:
            raise Problem(
                f"{path}: '{spec.name}' has {len(array)} samples, and the model takes "
                f"{_batch(spec)} in a batch."
            )
        counts[spec.name] = len(parts)
        batches = batches or [{} for _ in parts]
        for batch, part in zip(batches, parts, strict=False):
            batch[spec.name] = part
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise Problem(f"{path}: the inputs have different numbers of batches: {found}.")
    return batches


def _first(spec: Input) -> int | str:
    return spec.shape[0] if spec.shape else 1


def _batch(spec: Input) -> int:
    first = _first(spec)
    return first if isinstance(first, int) else OPEN_BATCH
