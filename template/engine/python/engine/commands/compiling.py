# SPDX-License-Identifier: Apache-2.0
"""The commands `compile` and `report`: from a model file to a library, and where its ops run."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax
from tvm.runtime.vm import VirtualMachine
from tvm.support import cc

from ..backend import BACKEND, PACKAGE
from ..models.compiled import load_library
from ..models.files import require_file, require_writable
from ..models.reading import ModelFile, read_model, with_bfloat16
from ..models.signature import FUNCTION, Signature, signature_of
from ..onnx_report import require_onnx
from ..options import Options
from ..partition import compile_partitioned, partition_for
from ..problem import Problem, sentence, told
from ..report import Report, offload_report
from ..terminal import say
from ..whole_files import write_text, writing
from .arguments import options_of
from .calibration import read_batches
from .comparing import read_json
from .progress import Steps, steps_of
from .verifying import given_arrays, original_for, require_passed, verified

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

    from ..accuracy import AccuracyReport
    from ..verification import Verification
    from ..verification.originals import Original


@dataclass(frozen=True)
class Prepared:
    """A partitioned model, and what it was made from.

    Parameters
    ----------
    file
        The model as it was read.
    mod
        The module, quantised if that was asked for, before any pass.
    partitioned
        The module after partitioning.
    options
        The options.
    signature
        What the model takes and returns.
    original
        The model with the framework that runs it, if it is to be verified.
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
    """Read a model, quantize it if asked to, and partition it.

    Parameters
    ----------
    arguments
        Those of `add_model`.
    steps
        Shows what is done.

    Returns
    -------
    prepared
        The model.

    Raises
    ------
    Problem
        The model or an argument is not supported, or an op stays on the host against `--strict`.
    """
    options, shapes = options_of(arguments), dict(arguments.shape)
    _require_target(arguments.target)
    if arguments.quantize is not None:
        require_file(arguments.quantize)
    else:
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
        steps.begin("quantising", own_line=True)
        content = _quantized(file, arguments, options)
        original = original_for(arguments, content)
    steps.begin("partitioning")
    mod = file.imported(shapes, content)
    signature = signature_of(mod, file.results)
    try:
        partitioned = partition_for(mod, options=options)
    except Exception as error:
        raise Problem(sentence(error)) from error
    return Prepared(file, mod, partitioned, options, signature, original)


def _require_target(target: str) -> None:
    try:
        tvm.target.Target(target)
    except Exception as error:
        raise Problem(f"--target {target}: {sentence(error)}") from error


def _quantized(
    file: ModelFile, arguments: argparse.Namespace, options: Options
) -> ModelProto | ExportedProgram:
    """Return the quantised model, of the kind of the file."""
    if not file.can_quantize:
        raise Problem(
            f"{file.path} cannot be quantised here; supported are models of ONNX and PyTorch. "
            "TensorFlow Lite quantizes its own: such files are read as they are."
        )
    quantize = getattr(importlib.import_module(PACKAGE), f"quantize_for_{BACKEND}")
    batches = read_batches(arguments.quantize, signature_of(file.imported(dict(arguments.shape))))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
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
            raise Problem(f"{file.path} cannot be quantised: {sentence(error)}") from error
    for note in notes:
        if "calibration data" in str(note.message):  # Other errors are the tools' own.
            say(f"NOTE: {note.message}", file=sys.stderr)
    return content


def compile_prepared(prepared: Prepared, target: str) -> relax.VMExecutable:
    """Compile a model, with its signature.

    Parameters
    ----------
    prepared
        The model.
    target
        What the host part is compiled for.

    Returns
    -------
    executable
        What can be run, or exported.

    Raises
    ------
    Problem
        It cannot be compiled, or there is no such target.
    """
    # Relax has no strings.
    text = relax.const(np.frombuffer(prepared.signature.to_json().encode(), np.uint8))
    mod = prepared.partitioned.clone()
    mod[FUNCTION] = relax.Function([], text, text.ty).with_attr("global_symbol", FUNCTION)
    try:
        return compile_partitioned(mod, prepared.options, tvm.target.Target(target))
    except Exception as error:
        raise Problem(f"{prepared.file.path} cannot be compiled: {sentence(error)}") from error


def run_compile(arguments: argparse.Namespace) -> int:
    """Run the command `compile`."""
    require_file(arguments.model)
    output = arguments.output or Path(f"{arguments.model.stem}.so")
    if output.suffix != ".so":
        raise Problem(f"--output {output}: libraries have names that end in .so.")
    for path in (output, arguments.report):
        require_writable(path)
    linker = _linker(arguments.linker)
    if arguments.verify and linker:
        raise Problem("--verify runs the library here, and --linker makes one for elsewhere.")
    given = given_arrays(arguments)
    verification = None
    begun = time.perf_counter()
    with steps_of(arguments, own=2) as steps:
        prepared = prepare(arguments, steps)
        steps.begin("compiling")
        executable = compile_prepared(prepared, arguments.target)
        steps.begin(f"writing {output}")
        with writing(output) as unfinished:
            try:
                executable.export_library(str(unfinished), **linker)
            except OSError:
                raise
            except Exception as error:
                raise Problem(f"{output} cannot be linked: {sentence(error)}") from error
            if prepared.original is not None:
                steps.begin("verifying")
                machine = load_library(unfinished)[0]
                verification = verified(prepared, arguments, machine, given)
                if not verification.passed:
                    if arguments.report is not None:
                        write_text(arguments.report, _report(prepared, verification).to_json())
                    raise Problem(f"{output} is not written: {verification}")
    seconds = time.perf_counter() - begun
    report = _report(prepared, verification)
    if arguments.report is not None:
        write_text(arguments.report, report.to_json())
    if arguments.json:
        found = {
            "library": str(output),
            "bytes": output.stat().st_size,
            "seconds": round(seconds, 3),
            "summary": report.summary,
            "inputs": json.loads(prepared.signature.to_json())["inputs"],
        }
        if verification is not None:
            found["verification"] = verification.to_dict()
        say(json.dumps(found, indent=2))
    else:
        say(f"{output}: {report.summary}")
        say(f"inputs: {prepared.signature}")
        if verification is not None:
            say(verification)
    return 0


def _report(prepared: Prepared, verification: Verification | None) -> Report:
    return replace(prepared.report, verification=verification)


def _linker(program: str | None) -> dict[str, object]:
    if program is None:
        return {}
    if shutil.which(program) is None:
        raise Problem(f"--linker {program}: there is no such program.")
    # Without kernels for the host, TVM knows no target, and takes the linker's machine.
    triple = cc.get_target_by_dump_machine(program)
    return {"fcompile": cc.cross_compiler(program, get_target_triple=lambda: triple() or "unknown")}


def run_report(arguments: argparse.Namespace) -> int:
    """Run the command `report`."""
    for path in (arguments.output, arguments.html, arguments.accuracy, arguments.netron):
        require_writable(path)
    if arguments.output is not None and arguments.output.suffix.lower() in (".html", ".htm"):
        raise Problem(f"--output writes JSON; --html {arguments.output} writes the page.")
    if arguments.netron is not None:
        told(require_onnx)
    if arguments.accuracy is not None and arguments.quantize is None:
        raise Problem(
            "--accuracy compares the quantised model with the float one; it goes with --quantize "
            "FILE."
        )
    if arguments.profile is not None and arguments.html is None:
        raise Problem("--profile is a part of the page; it goes with --html FILE.")
    profile = None
    if arguments.profile is not None:
        from ..profiling import Profile
        from ..profiling.names import require_match

        profile = read_json(arguments.profile, Profile.from_json, "a profile", "profile --output")
    given = given_arrays(arguments)
    accuracy = verification = None
    with steps_of(arguments, own=arguments.accuracy is not None) as steps:
        prepared = prepare(arguments, steps)
        if profile is not None:
            told(lambda: require_match(profile, prepared.report))
        if arguments.accuracy is not None:
            steps.begin("comparing the layers")
            accuracy = _accuracy(prepared, arguments)
        if prepared.original is not None:
            steps.begin("verifying")
            machine = VirtualMachine(compile_prepared(prepared, arguments.target), tvm.cpu())
            verification = verified(prepared, arguments, machine, given)
    report = _report(prepared, verification)
    if arguments.output is not None:
        write_text(arguments.output, report.to_json())
    if accuracy is not None:
        write_text(arguments.accuracy, accuracy.to_json())
    if arguments.html is not None:
        from ..page import write_page

        write_page(
            arguments.html,
            report,
            profile.to_dict() if profile is not None else None,
            accuracy.to_dict() if accuracy is not None else None,
            title=arguments.model.name,
        )
    if arguments.netron is not None:
        report.to_onnx(arguments.netron)
    if arguments.json:
        say(report.to_json())
    else:
        report.show(all_ops=arguments.all)
        if accuracy is not None:
            say(f"\n{accuracy}")
    require_passed(verification)
    return 0


def _accuracy(prepared: Prepared, arguments: argparse.Namespace) -> AccuracyReport:
    """Compare the quantised model with the float one, on the calibration data."""
    from ..accuracy import accuracy_report

    real = prepared.file.imported(dict(arguments.shape))
    batches = read_batches(arguments.quantize, signature_of(real))
    names = [item.name for item in prepared.signature.inputs]
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
