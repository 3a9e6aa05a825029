# SPDX-License-Identifier: Apache-2.0
"""The tool's end of the protocol by which the driver kit asks and calls it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .region import SIZES, VERSION, Declined, Node, Region

DECLINED = 3
"""The exit code for a region that the SDK does not take."""

Reason = Callable[[Node, Region], "str | None"]
Compile = Callable[[Region], bytes]
Run = Callable[[Sequence[Any]], Sequence[Any]]
Load = Callable[[bytes], Run]


def run_tool(sdk: str, reason: Reason, compile_region: Compile, load: Load | None = None) -> int:
    """Do what the arguments of this process ask for.

    Parameters
    ----------
    sdk
        Name and version of the SDK: programs that another one compiled are not used again.
    reason
        Returns why the SDK has no such node, or nothing. It is asked about each node of a model,
        so it is quick, and sees types, shapes and attributes, but no elements of constants.
    compile_region
        Returns the bytes that the run half gives to the SDK's runtime. To decline the region it
        raises `Declined`, best by `node.decline(why)`.
    load
        Only if the run half is a `ToolGraph`: loads the bytes that `compile_region` returned, and
        returns a function from the inputs of the region to its outputs, both NumPy arrays.

    Returns
    -------
    code
        The exit code of this process.
    """
    # What the SDK prints stays in order with its errors, of which the last line is quoted.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    arguments = sys.argv[1:]
    try:
        if arguments == ["answer"]:
            _answer(sdk, reason)
            return 0
        if len(arguments) == 2 and arguments[0] == "compile":
            return _compile(Path(arguments[1]), compile_region)
        if len(arguments) == 2 and arguments[0] == "run" and load is not None:
            _run(Path(arguments[1]), load)
            return 0
    except Exception as error:
        traceback.print_exc()
        # The last line is the one that is quoted.
        lines = "".join(traceback.format_exception_only(error)).splitlines()
        print("; ".join(filter(None, map(_one_line, lines))), file=sys.stderr)  # noqa: T201
        return 1
    usage = f"usage: {Path(sys.argv[0]).name} answer | compile FOLDER | run FOLDER"
    print(usage, file=sys.stderr)  # noqa: T201
    return 2


def _compile(folder: Path, compile_region: Compile) -> int:
    region = Region.read(folder)
    try:
        program = compile_region(region)
    except Declined as declined:
        (folder / "reason.txt").write_text(_one_line(declined), "utf-8")
        code = DECLINED
    else:
        (folder / "program.bin").write_bytes(program)
        code = 0
    lines = [region.id, *map(_one_line, region.warnings)]
    (folder / "answer.txt").write_text("\n".join(lines), "utf-8")
    return code


def _answer(sdk: str, reason: Reason) -> None:
    # What the SDK prints would look like an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers.write(f"npu-region {VERSION} {_one_line(sdk)} {_digest_of_code()}\n")
    answers.flush()
    for line in sys.stdin:
        region = Region(json.loads(line))
        try:
            why = reason(region.nodes[0], region)
        except Declined as declined:
            why = str(declined)
        answers.write(f"{region.id} {_one_line(why or '')}\n")
        answers.flush()


def _run(folder: Path, load: Load) -> None:
    import numpy

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    ports = json.loads((folder / "ports.json").read_text("utf-8"))
    run = load((folder / "program.bin").read_bytes())
    answers.write(b"ready\n")
    answers.flush()
    while True:
        inputs = []
        for port in ports["inputs"]:
            size = math.prod(port["shape"]) * SIZES[port["dtype"]]
            data = sys.stdin.buffer.read(size)
            if len(data) < size:
                return
            inputs.append(numpy.frombuffer(data, port["dtype"]).reshape(port["shape"]))
        outputs = [numpy.asarray(array, order="C") for array in run(inputs)]
        found = [{"dtype": str(array.dtype), "shape": [*array.shape]} for array in outputs]
        if found != ports["outputs"]:
            answers.write(f"it returns {found}, not {ports['outputs']}\n".encode())
        else:
            answers.write(b"done\n" + b"".join(array.tobytes() for array in outputs))
        answers.flush()


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _digest_of_code() -> str:
    """Return a digest of what decides about programs beside the SDK: the tool's own code.

    It is that of the script, and what it may import from its folder.
    """
    digest = hashlib.sha256()
    script = Path(sys.argv[0])
    beside = sorted(script.parent.glob("*.py"))
    for path in (script, *beside, *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
