# SPDX-License-Identifier: Apache-2.0
"""The commands `compile` and `report`: from a model file to a library, and where its ops run."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import tvm
from tvm.runtime.vm import VirtualMachine
from tvm.support import cc

from ..models.compiled import load_library
from ..models.files import require_file, require_writable
from ..report.onnx_report import require_onnx
from ..report.report import Report
from ..report.sdk_start import sdk_start_remedy
from ..shared.entry_points import entry_point
from ..shared.problem import Problem, sentence, translated
from ..shared.terminal import say
from ..shared.whole_files import write_text, writing
from .json_files import read_json
from .preparing import Prepared, compile_prepared, prepare
from .progress import steps_of
from .verifying import given_arrays, require_passed, verified

if TYPE_CHECKING:
    from ..verification import Verification


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
        if remedy := sdk_start_remedy(op.reason for op in report.on_host):
            say(remedy)
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
        translated(require_onnx)
    if arguments.accuracy is not None and arguments.quantize is None:
        raise Problem(
            "--accuracy compares the quantized model with the float one; it goes with --quantize "
            "FILE."
        )
    if arguments.profile is not None and arguments.html is None:
        raise Problem("--profile is a part of the page; it goes with --html FILE.")
    profile = None
    if arguments.profile is not None:
        from ..profiling import Profile
        from ..profiling.origin_names import require_match

        profile = read_json(arguments.profile, Profile.from_json, "a profile", "profile --output")
    given = given_arrays(arguments)
    accuracy = verification = None
    with steps_of(arguments, own=arguments.accuracy is not None) as steps:
        prepared = prepare(arguments, steps)
        if profile is not None:
            translated(lambda: require_match(profile, prepared.report))
        if arguments.accuracy is not None:
            steps.begin("comparing the layers")
            accuracy = entry_point("accuracy_of")(prepared, arguments)
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
        report.to_html(
            arguments.html,
            profile=profile.to_dict() if profile is not None else None,
            accuracy=accuracy.to_dict() if accuracy is not None else None,
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
