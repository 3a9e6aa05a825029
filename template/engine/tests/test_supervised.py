# SPDX-License-Identifier: Apache-2.0
"""A command survives an SDK that ends its process, and says what it was asked about."""

import subprocess
import sys

import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend import BACKEND
from compiled_region import Region

# The process believes that it is the command, and that a vendor's driver is installed.
PROGRAM = """
import os, signal, sys
import tvm_ffi
import {package}
from {package}.engine import _library, main

def end(*_):
    print("the SDK's own words", file=sys.stderr, flush=True)
    {how}

tvm_ffi.register_global_func("{backend}.codegen.decline_reason", end, override=True)
found = _library.find
_library.find = lambda role: found(role) or (found("emulator") if role == "driver" else None)
sys.orig_argv[1:1] = ["-m", "{package}"]
sys.argv = ["{package}", "report", {model!r}]
code = main.main()
print("the code is", code, flush=True)
sys.exit(code)
"""


def run(tmp_path, how):
    model = tmp_path / "model.json"
    mod = tvm.IRModule({"main": Region().case.model(exact=False).function()})
    model.write_text(tvm.ir.save_json(mod))
    program = PROGRAM.format(package=backend.__name__, backend=BACKEND, how=how, model=str(model))
    return mod, subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("how", "name"),
    [("os.abort()", "SIGABRT"), ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV")],
)
def test_a_command_says_which_op_the_sdk_was_asked_about(how, name, tmp_path):
    mod, done = run(tmp_path, how)
    assert (done.returncode, done.stdout) == (1, "the code is 1\n")
    assert "the SDK's own words" in done.stderr
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("FAILED: "))
    assert f"The driver's SDK ended the process with {name} when it was asked about " in sentence
    asked = sentence.partition("asked about ")[2].partition(";")[0].split(", ")
    ops = []
    relax.analysis.post_order_visit(
        mod["main"], lambda e: ops.append(e.op.name) if isinstance(e, relax.Call) else None
    )
    assert asked and set(asked) <= {*ops}


def test_the_exit_code_of_a_command_in_a_child_process_is_its_own(tmp_path):
    _, done = run(tmp_path, 'raise RuntimeError("it is busy")')
    assert done.returncode == 1
    assert done.stderr.count("FAILED: ") == 1
    # The parent has ended without a word.
    assert done.stdout.count("the code is 1") == 1
