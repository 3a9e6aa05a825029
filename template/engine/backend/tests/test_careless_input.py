# SPDX-License-Identifier: Apache-2.0
"""What a hostile or careless input meets: no text that steers a terminal, no traceback."""

import io
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.importers.failures import readable_errors
from backend.engine.backend.ir.origins import Origin, with_span
from backend.engine.backend.models.files import ArrayFile
from backend.engine.backend.settings.options import Options
from backend.engine.backend.shared.backend import BACKEND
from backend.engine.backend.shared.terminal import TextTable, say
from backend.engine.backend.shared.terminal import show as show_blocks
from compiled_region import LASTING, Region, can_last
from support import Terminal, needs_cancellation, run_command

STEERS = "a\x1b[31mRED\x1b]0;title\x07\u202egnp"
SHOWN = r"a\x1b[31mRED\x1b]0;title\x07\u202egnp"


def save(path, shape, name="x", node="n"):
    """Write a model of one op, with the names that are given."""
    builder = relax.BlockBuilder()
    x = relax.Var(name, relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            call = with_span(relax.op.exp(x), Origin(node).span())
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    path.write_text(tvm.ir.save_json(builder.finalize()))
    return path


def test_names_of_a_model_do_not_steer_the_terminal(tmp_path):
    model = save(tmp_path / "model.json", [2, 3], STEERS, STEERS)
    library = tmp_path / "model.so"
    shown = []
    for arguments in (
        ("report", model),
        ("compile", model, "--output", library),
        ("run", model, "--shape", "y=1"),
        ("run", library, "--shape", "y=1"),
        ("profile", model, "--repeat", 1),
    ):
        _, out, errors = run_command(*arguments)
        assert not set("\x1b\x07\u202e") & {*out, *errors}, arguments
        shown.append(SHOWN in out + errors)
    assert shown[:4] == [True] * 4


def test_tables_and_texts_on_a_terminal_are_escaped_too():
    pytest.importorskip("rich")
    for block in (f"one {STEERS}", TextTable(("name",), [(STEERS,)])):
        stream = Terminal()
        show_blocks("", lambda block=block: [block], stream)
        assert r"0;title\x07\u202egnp" in stream.getvalue()
        assert not set("\x07\u202e") & {*stream.getvalue()}
    stream = io.StringIO()
    say(f"first\n{STEERS}", stream)
    assert stream.getvalue() == f"first\n{SHOWN}\n"


def test_errors_of_importers_are_escaped():
    with pytest.raises(KeyError) as error, readable_errors():
        raise KeyError(f"no {STEERS}")
    assert error.value.args == (f"no {SHOWN}",)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ([-5, 3], "The input x float32[-5, 3] has a negative size, which no array has."),
        ([1 << 40, 1 << 30], "is too large: random numbers for it take 9,444,732,965,739,290,427"),
    ],
)
def test_an_input_that_no_memory_holds_is_refused(shape, sentence, tmp_path):
    model = save(tmp_path / "model.json", shape)
    code, out, errors = run_command("run", model, "--option", "on_decline=host")
    assert (code, out) == (1, "")
    assert errors.startswith("FAILED: ") and sentence in errors


def test_a_seed_is_not_negative(tmp_path):
    code, _, errors = run_command("run", save(tmp_path / "m.json", [2]), "--seed", -1)
    assert code == 2
    assert "argument --seed: '-1' is not a whole number from 0 on" in errors


def test_a_device_that_is_missing_is_a_sentence(tmp_path, monkeypatch):
    if Options.load(None).driver != "emulator":
        pytest.skip("the words are the emulator's")
    monkeypatch.setenv(f"{BACKEND.upper()}_DEVICE", "-1")
    path = tmp_path / "model.json"
    model = Region().case.model(exact=False)
    path.write_text(tvm.ir.save_json(tvm.IRModule({"main": model.function()})))
    code, _, errors = run_command("run", path)
    assert code == 1
    assert "There is no device -1" in errors and errors.startswith("FAILED: ")


def test_no_memory_is_a_sentence(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr("backend.engine.backend.commands.running.VirtualMachine", fail)
    code, _, errors = run_command("run", save(tmp_path / "model.json", [2]))
    assert code == 1
    assert "the memory of this machine does not suffice" in errors


def test_arrays_are_compared_before_they_are_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "inputs.npz", x=np.zeros((7, 5), "float32"))

    def read(*_):
        raise AssertionError("the array is read")

    monkeypatch.setattr(ArrayFile, "__getitem__", read)
    model = save(tmp_path / "model.json", [2, 3])
    code, _, errors = run_command("run", model, "--inputs", tmp_path / "inputs.npz")
    assert code == 1
    assert "'x' has the shape (7, 5), and the model takes (2, 3)" in errors


def test_an_array_of_a_file_is_read_and_the_file_closed(tmp_path, monkeypatch):
    opened, load = [], np.load

    def kept(*arguments, **options):
        opened.append(load(*arguments, **options))
        return opened[-1]

    np.savez(tmp_path / "inputs.npz", x=np.ones((7, 5)))
    monkeypatch.setattr(np, "load", kept)
    assert ArrayFile(tmp_path / "inputs.npz")["x"].sum() == 35
    assert [file.zip for file in opened] == [None]


def test_a_symbol_without_a_name_has_no_bound():
    with pytest.raises(ValueError, match="supported: names with a whole number each"):
        Options.load({"symbol_bounds": {"": 3}})


def test_ctrl_c_that_tvm_took_for_an_error_interrupts(monkeypatch):
    def interrupted():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            raise RuntimeError("TVM's own words for it") from None

    monkeypatch.setattr("backend.engine.backend.commands.main._run", interrupted)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run_command("check") == (130, "", "Interrupted.\n")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)


def test_ctrl_c_during_imports_interrupts(tmp_path):
    # A package of TVM's name that takes long to be imported.
    (tmp_path / "tvm.py").write_text(
        "print('importing', flush=True)\nimport time\ntime.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    # A shell's background jobs ignore Ctrl-C, and so would their children.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-m", backend.__name__, "options"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        signal.signal(signal.SIGINT, usual)
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "Interrupted.\n")


@needs_cancellation
@can_last
def test_ctrl_c_cancels_a_long_call():
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    lasting = Region(**{**LASTING, "pace": 1_000_000})
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    begun = time.monotonic()
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            lasting.module[lasting.symbol](*lasting.tensors())
    finally:
        timer.join()
        signal.signal(signal.SIGINT, usual)
    # It would take some hundred seconds.
    assert time.monotonic() - begun < 20
    Region().assert_computes()
