# SPDX-License-Identifier: Apache-2.0
"""From a model file to a partitioned module, and to what can be run or exported."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from ..ir.calls import constant_of_text
from ..models.files import require_file
from ..models.reading import ModelFile, read_model, with_bfloat16
from ..models.signature import FUNCTION, Signature, signature_of
from ..regions.partition import compile_partitioned, partition_for
from ..report.report import Report, offload_report
from ..settings.options import Options
from ..shared.entry_points import entry_point
from ..shared.problem import Problem, sentence
from .arguments import options_of
from .progress import Steps
from .verifying import original_for

if TYPE_CHECKING:
    from ..verification.originals import Original


@dataclass(frozen=True)
class Prepared:
    """A partitioned model, and what it was made from.

    `file`: the model as it was read.
    `mod`: the module, quantized if that was asked for, before any pass.
    `partitioned`: the module after partitioning.
    `options`: the options.
    `signature`: what the model takes and returns.
    `original`: the model with the framework that runs it, if it is to be verified.
    """

    file: ModelFile
    mod: tvm.IRModule
    partitioned: tvm.IRModule
    options: Options
    signature: Signature
    original: Original | None = None

    @property
    def report(self) -> Report:
        """Where each op runs."""
        return offload_report(self.partitioned)


def prepare(arguments: argparse.Namespace, steps: Steps) -> Prepared:
    """Read a model, quantize it if asked to, and partition it."""
    options, shapes = options_of(arguments), dict(arguments.shape)
    target_of(arguments.target)
    for path in (arguments.quantize, arguments.calibration):
        if path is not None:
            require_file(path)
    if arguments.quantize is None:
        for name in ("method", "activations", "keep_float", "int16"):
            if getattr(arguments, name):
                raise Problem(f"--{name.replace('_', '-')} goes with --quantize FILE.")
    steps.begin(f"reading {arguments.model}")
    file = read_model(arguments.model, shapes)
    if arguments.bfloat16:
        file = with_bfloat16(file, arguments.bfloat16)
    content = file.content
    # A framework that is missing is told before the work.
    original = original_for(arguments, content)
    if arguments.quantize is not None:
        steps.begin("quantizing", own_line=True)
        content = entry_point("quantized")(file, arguments, options)
        original = original_for(arguments, content)
    steps.begin("partitioning")
    mod = file.imported(shapes, content)
    signature = signature_of(mod, file.results)
    try:
        if arguments.calibration is not None:
            partitioned = entry_point("calibrated")(mod, arguments.calibration, signature, options)
        else:
            partitioned = partition_for(mod, options=options)
    except Exception as error:
        raise Problem(sentence(error)) from error
    return Prepared(file, mod, partitioned, options, signature, original)


def target_of(target: str) -> tvm.target.Target:
    """Return the target of what stays on the host."""
    try:
        return tvm.target.Target(target)
    except Exception as error:
        raise Problem(f"--target {target}: {sentence(error)}") from error


def compile_prepared(prepared: Prepared, target: str) -> relax.VMExecutable:
    """Compile a model, with its signature."""
    text = constant_of_text(prepared.signature.to_json())
    mod = prepared.partitioned.clone()
    mod[FUNCTION] = relax.Function([], text, text.ty).with_attr("global_symbol", FUNCTION)
    try:
        return compile_partitioned(mod, prepared.options, tvm.target.Target(target))
    except Exception as error:
        raise Problem(f"{prepared.file.path} cannot be compiled: {sentence(error)}") from error
