# SPDX-License-Identifier: Apache-2.0
"""The command `run`: a model file or a compiled library, with inputs from a file or at random."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

from ..loading import needs_compiler
from ..models.compiled import LIBRARY, load_library, run
from ..models.files import ArrayFile, require_file, require_writable
from ..models.signature import Signature
from ..shared.aliases import Array
from ..shared.problem import Problem, sentence
from ..shared.terminal import say
from ..shared.whole_files import writing
from .arguments import refuse_settings
from .inputs import inputs_for
from .progress import Steps, steps_of
from .verifying import require_passed, require_verify, verification_of

if TYPE_CHECKING:
    from ..report.report import Report
    from .preparing import Prepared


@dataclass(frozen=True)
class Loaded:
    """A model that can be run, with its inputs.

    `machine`: the virtual machine of TVM that runs it.
    `signature`: what it takes and returns.
    `inputs`: the inputs in order.
    `prepared`: what was compiled; none for a library.
    `function`: the function that is run.
    """

    machine: VirtualMachine
    signature: Signature
    inputs: list[Array]
    prepared: Prepared | None = None
    function: str = "main"

    @property
    def report(self) -> Report | None:
        """Where its ops run; none for a library."""
        return None if self.prepared is None else self.prepared.report


def load(arguments: argparse.Namespace, steps: Steps) -> Loaded:
    """Load a compiled library, or compile a model file, and read the inputs."""
    path: Path = arguments.model
    # Report what is wrong with them before the model is compiled, which takes a while.
    arrays = ArrayFile(arguments.inputs) if arguments.inputs is not None else None
    if path.suffix == LIBRARY:
        if getattr(arguments, "verify", False):
            raise Problem(
                "--verify compares with the original model, which the library does not contain; "
                "give it to the command 'compile', or give the model file to 'run'."
            )
        refuse_settings(arguments, "the command 'compile'")
        steps.begin(f"loading {path}")
        machine, signature, function = load_library(path, arguments.function)
        inputs = inputs_for(arguments, arrays, signature)
        return Loaded(machine, signature, inputs, function=function)
    if arguments.function is not None:
        raise Problem(f"--function goes with a library; {path} is compiled as one function.")
    require_file(path)
    needs_compiler(f"{path}, which is not compiled yet,")
    from ..models.reading import KINDS, require_model
    from .preparing import compile_prepared, prepare

    require_model(path, f"{KINDS}; and compiled libraries, {LIBRARY}")
    prepared = prepare(arguments, steps)
    inputs = inputs_for(arguments, arrays, prepared.signature)
    steps.begin("compiling")
    executable = compile_prepared(prepared, arguments.target)
    try:
        machine = VirtualMachine(executable, tvm.cpu())
    except Exception as error:
        raise Problem(f"{path} cannot be loaded: {sentence(error)}") from error
    return Loaded(machine, prepared.signature, inputs, prepared)


def run_run(arguments: argparse.Namespace) -> int:
    """Run the command `run`."""
    output: Path | None = arguments.output
    if output is not None and output.suffix != ".npz":
        raise Problem(f"--output {output}: results are written to files that end in .npz.")
    require_writable(output)
    require_verify(arguments)
    verification = None
    with steps_of(arguments, own=2) as steps:
        loaded = load(arguments, steps)
        steps.begin("running")
        tensors = [tvm.runtime.tensor(array) for array in loaded.inputs]
        seconds = []
        for _ in range(arguments.repeat):
            begun = time.perf_counter()
            results = run(loaded.machine, tensors, loaded.function)
            seconds.append(time.perf_counter() - begun)
        names = _names(loaded.signature.results, len(results))
        arrays = {name: item.numpy() for name, item in zip(names, results, strict=True)}
        if arguments.verify and loaded.prepared is not None:
            steps.begin("verifying")
            computed = list(arrays.values())
            verification = verification_of(loaded.prepared, arguments, loaded.inputs, computed)
    if output is not None:
        with writing(output) as unfinished:
            np.savez(unfinished, **arrays)
    if arguments.json:
        results_found = [
            {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
            for name, array in arrays.items()
        ]
        found = {"results": results_found, "seconds": seconds}
        if loaded.report is not None:
            found["summary"] = loaded.report.summary
        if verification is not None:
            found["verification"] = verification.to_dict()
        say(json.dumps(found, indent=2))
        require_passed(verification)
        return 0
    if loaded.report is not None:
        from ..report.sdk_start import sdk_start_remedy

        say(loaded.report.summary)
        if remedy := sdk_start_remedy(op.reason for op in loaded.report.on_host):
            say(remedy)
    for name, array in arrays.items():
        say(_line(name, array))
    say(_times(seconds))
    if output is not None:
        say(f"written: {output}")
    require_passed(verification)
    if verification is not None:
        say(verification)
    return 0


def _names(known: tuple[str, ...], count: int) -> list[str]:
    is_whole = len(known) == len(set(known)) == count
    return list(known) if is_whole else [f"result_{index}" for index in range(count)]


def _line(name: str, array: Array) -> str:
    text = f"{name}: {array.dtype}{list(array.shape)}"
    if array.size and array.dtype.kind in "fiu":
        least, most = array.min(), array.max()
        text += f", from {least:.6g} to {most:.6g}"
    return text


def _times(seconds: list[float]) -> str:
    first, *others = (1000 * item for item in seconds)
    if not others:
        return f"time: {first:.3f} ms, of the first call; --repeat 10 measures more"
    if len(others) == 1:
        return f"time: {others[0]:.3f} ms, of the second call; the first took {first:.3f} ms"
    return (
        f"time: {statistics.median(others):.3f} ms, the median of {len(others)} calls "
        f"({min(others):.3f} to {max(others):.3f}) after the first, {first:.3f} ms"
    )
