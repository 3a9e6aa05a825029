# SPDX-License-Identifier: Apache-2.0
"""A command survives an SDK that ends its process, and says what it was asked about."""

import subprocess
import sys

import pytest
import tvm

import backend
from backend.engine.backend.shared.backend import BACKEND
from compiled_region import Region
from support import calls_of

# The process believes that it is the command, and that a vendor's driver is installed.
PROGRAM = """
import os, signal, sys
import tvm_ffi
import {package}
from {package}.engine.backend.commands import main
from {package}.engine.backend.libraries import _library

def fail():
    raise RuntimeError("it is busy")

def end(*_):
    print("the SDK's own words", file=sys.stderr, flush=True)
    how()

tvm_ffi.register_global_func("{backend}.codegen.decline_reason", end, override=True)
found = _library.find
_library.find = lambda role: found(role) or (found("emulator") if role == "driver" else None)
sys.orig_argv[1:1] = ["-m", "{package}"]
sys.argv = ["{package}", "report", {model!r}]
# The last one ends the parent.
for how in (os.abort, lambda: os.kill(os.getpid(), signal.SIGSEGV), fail):
    for stream in (sys.stdout, sys.stderr):
        print("{mark}", file=stream, flush=True)
    code = main.main()
    print("the code is", code, flush=True)
sys.exit(code)
"""
MARK = "---- the next"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Run a command whose SDK ends it by SIGABRT, by SIGSEGV, and not at all; return all outputs.

    Each process needs seconds to import TVM.
    """
    model = tmp_path_factory.mktemp("supervised") / "model.json"
    mod = tvm.IRModule({"main": Region().case.model(exact=False).function()})
    model.write_text(tvm.ir.save_json(mod))
    program = PROGRAM.format(package=backend.__name__, backend=BACKEND, model=str(model), mark=MARK)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    streams = (stream.split(f"{MARK}\n")[1:] for stream in (done.stdout, done.stderr))
    outputs = dict(zip(("SIGABRT", "SIGSEGV", "none"), zip(*streams, strict=True), strict=True))
    return calls_of(mod["main"]), done.returncode, outputs


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV"])
def test_a_command_says_which_op_the_sdk_was_asked_about(name, ended):
    ops, _, outputs = ended
    out, errors = outputs[name]
    assert out == "the code is 1\n"
    assert "the SDK's own words" in errors
    (sentence,) = (line for line in errors.splitlines() if line.startswith("FAILED: "))
    assert f"The driver's SDK ended the process with {name} when it was asked about " in sentence
    asked = sentence.partition("asked about ")[2].partition(";")[0].split(", ")
    assert asked and set(asked) <= {*ops}


def test_the_exit_code_of_a_command_in_a_child_process_is_its_own(ended):
    _, code, outputs = ended
    out, errors = outputs["none"]
    assert code == 1
    assert errors.count("FAILED: ") == 1
    # The parent has ended without a word.
    assert out == "the code is 1\n"
