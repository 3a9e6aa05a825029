# SPDX-License-Identifier: Apache-2.0
"""A compiled model away from the compiler: in C++, without lowering code, over RPC, on two NPUs."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, rpc, tirx
from tvm.runtime.vm import VirtualMachine

import backend
import support
from backend.engine.backend.compiling.parallel import DataParallel
from backend.engine.backend.ir.states import declare
from backend.engine.backend.models.decoders import read_decoder
from backend.engine.workbench.conformance import chip
from support import (
    BACKEND,
    COUNTERS,
    TABLE,
    assert_close,
    assert_right,
    build,
    compile_for,
    declined,
    has_device,
    needs_devices,
    needs_library,
    needs_symbols,
    needs_wheel,
    run_on_host,
    variable,
)

BOUND = 8
TOO_MANY = f"at most (so many rows|{BOUND})"
MAGIC = b"\x89NPU\r\n\x1a\n"
EXAMPLE = Path(__file__).parent.parent / "examples/cpp"
# Any op whose result has the shape of its only tensor.
UNARY = ("relu", "sigmoid", "tanh", "gelu", "silu", "softmax")
UNARY = [op for op in UNARY if TABLE.get(op) and not declined(op)]
needs_unary = pytest.mark.skipif(not UNARY, reason="the NPU takes no op of one tensor")
OTHER_DEVICE = 1 if has_device(1) else 0


class Exported:
    """An exported model, with an input and the host's result for it."""

    def __init__(self, directory):
        n = tirx.Var("n", "int64") if chip.SYMBOLS else BOUND
        x = variable("x", n, 5)
        function = relax.op
        for part in TABLE.get(UNARY[0]).relax.split(".")[1:]:
            function = getattr(function, part)
        module = build([x], lambda emit: emit(function(x)))
        self.path = directory / "model.so"
        compile_for(module, symbol_bounds={"n": BOUND}).export_library(str(self.path))
        self.input = np.random.default_rng(0).standard_normal((BOUND, 5), dtype="float32")
        (self.expected,) = run_on_host(module, "main", [self.input])

    def assert_right(self, found, rows=BOUND):
        assert_close([found], [self.expected[:rows]], rtol=1e-5, atol=1e-6)

    def damaged(self, directory):
        """Write the model with a wrong bit inside the artifact."""
        data = bytearray(self.path.read_bytes())
        data[data.index(MAGIC) + 200] ^= 1
        path = directory / "damaged.so"
        path.write_bytes(data)
        return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Share the file; tests must not change it."""
    return Exported(tmp_path_factory.mktemp("exported"))


WITHOUT_LOWERING = """
import sys
import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

library, inputs, outputs, backend, *names = sys.argv[1:]
machine = VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
arrays, results = np.load(inputs), {}
for name in names:
    count = sum(key.rsplit(" ", 1)[0] == name for key in arrays)
    arguments = [tvm.runtime.tensor(arrays[f"{name} {index}"]) for index in range(count)]
    result = machine[name](*arguments)
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else result
    results.update((f"{name} {index}", item.numpy()) for index, item in enumerate(fields))
np.savez(outputs, **results)
for name in ("relax.ext." + backend, backend + ".codegen.compile"):
    assert tvm_ffi.get_global_func(name, allow_missing=True) is None, name
with open("/proc/self/maps") as maps:
    mapped = maps.read()
assert f"{backend}_runtime" in mapped
for library in (f"{backend}_codegen", "libtvm_compiler"):
    assert library not in mapped, library
"""


@needs_wheel
def test_every_op_runs_in_a_process_without_lowering_code(every_op, tmp_path):
    models = every_op.models
    inputs = {
        f"{model.name} {index}": argument.values[1]
        for model in models
        for index, argument in enumerate(model.arguments)
    }
    np.savez(tmp_path / "in.npz", **inputs)
    names = [model.name for model in models]
    subprocess.run(
        [
            *(sys.executable, "-W", "error::UserWarning", "-c", WITHOUT_LOWERING),
            *(every_op.library, "in.npz", "out.npz", BACKEND, *names),
        ],
        cwd=tmp_path,
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        check=True,
    )
    with np.load(tmp_path / "out.npz") as found:
        for model in models:
            results = [found[f"{model.name} {index}"] for index in range(len(model.outputs))]
            assert_right(model, results, 1)


# ---- C++ ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_model(tmp_path_factory):
    """Build the example; return a function that runs it without Python: output, exit code."""
    if not EXAMPLE.is_dir() or shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("needs engine/backend/examples/cpp, cmake and c++")
    folder = tmp_path_factory.mktemp("run_model")
    # Without optimization, it compiles in half of the time.
    given = (f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_CXX_FLAGS_RELEASE=-O0")
    for command in (["-S", EXAMPLE, "-B", folder, *given], ["--build", folder]):
        subprocess.run(["cmake", *command], check=True, stdout=subprocess.DEVNULL)

    def run(*arguments):
        done = subprocess.run(
            [folder / "run_model", *map(str, arguments)],
            cwd=folder,
            env={},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    run.folder = folder
    return run


@needs_unary
def test_a_program_in_cpp_computes_the_same_without_python(exported, run_model):
    x = run_model.folder / "x.npy"
    np.save(x, exported.input)
    exported.input.tofile(run_model.folder / "x.bin")
    for given in (x, f"float32:{BOUND}x5:x.bin"):
        code, text = run_model(
            *(exported.path, "--input", given, "--output", "y", "--runs", "2", "--counters"),
            *("--device", str(OTHER_DEVICE)),
        )
        assert code == 0, text
        assert f"output 0: float32 ({BOUND}, 5)" in text
        assert " most_in_flight 0\n" in text or not COUNTERS
        assert (" submissions 3\n" in text) == ("submissions" in COUNTERS)
        assert "2 runs: best" in text
        exported.assert_right(np.load(run_model.folder / "y_0.npy"))


@needs_symbols
@needs_unary
def test_the_program_in_cpp_explains_what_is_wrong(exported, run_model, tmp_path):
    truncated = tmp_path / "truncated.so"
    truncated.write_bytes(exported.path.read_bytes()[:-5000])
    (tmp_path / "text.so").write_text("text" * 100)
    good = ("--input", f"float32:{BOUND}x5")
    for arguments, words in {
        ("nothing.so",): "no file 'nothing.so'",
        (truncated, *good): "is truncated",
        (tmp_path / "text.so", *good): "not a shared library",
        (exported.damaged(tmp_path), *good): "checksum",
        (exported.path,): "takes 1 inputs, but there are 0",
        (exported.path, "--input", "nothing.npy"): "no file 'nothing.npy'",
        (exported.path, "--input", f"float32:{BOUND}x6"): "6 vs. 5",
        (exported.path, "--input", f"float32:{BOUND + 1}x5"): "at most",
        (exported.path, *good, "--function", "nothing"): "nothing",
        (exported.path, *good, "--frobnicate"): "'--frobnicate' is not understood",
    }.items():
        code, text = run_model(*arguments)
        assert code == 1, text
        assert text.startswith("run_model: ")
        assert words in text


ROOM, WIDTH, WORDS = 12, 4, 16


def decoder(tokens):
    """Make a function that takes a number of tokens; all before have a part in what comes next."""
    generator = np.random.default_rng(1)
    words, head, places, room = (
        relax.const(generator.standard_normal(shape).astype("float32"))
        for shape in ((WORDS, WIDTH), (WIDTH, WORDS), (ROOM, WIDTH), (ROOM, WORDS))
    )
    shares = relax.const(np.float32([[0.75**step for step in reversed(range(tokens))]]))
    ids = variable("input_ids", 1, tokens, dtype="int64")
    positions = variable("cache_position", tokens, dtype="int32")
    mask = variable("attention_mask", 1, ROOM, dtype="bool")
    kept = variable("kept", 1, WIDTH)

    def body(emit):
        new = relax.op.take(words, relax.op.reshape(ids, (tokens,)), axis=0)
        new = relax.op.matmul(shares, new + relax.op.take(places, positions, axis=0))
        new = emit(new + kept * relax.const(np.float32(0.75**tokens)))
        seen = relax.op.matmul(relax.op.astype(mask, "float32"), room)
        return relax.op.matmul(new, head) + seen, new

    function = build([ids, positions, mask, kept], body)["main"]
    initial = tvm.runtime.tensor(np.zeros((1, WIDTH), "float32"))
    name = f"takes_{tokens}"
    return name, declare(function.with_attr("global_symbol", name), [("sum", "kept", initial, ())])


PROMPTS = [[(5 * at + 3 * text) % WORDS for at in range(6)] for text in range(8)]
"""Of a function for four tokens and one for one, which is called twice."""


@dataclass(frozen=True)
class Talks:
    """A library of a decoder, and what it continues each prompt with, until its cache is full."""

    path: Path
    wanted: list


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    compiled = compile_for(tvm.IRModule(dict(map(decoder, (1, 4)))))
    path = tmp_path_factory.mktemp("decoder") / "decoder.so"
    compiled.export_library(str(path))
    with backend.Conversation(VirtualMachine(compiled, tvm.cpu())) as text:
        wanted = []
        for prompt in PROMPTS:
            wanted.append(list(text.generate(prompt, ROOM)))
            text.reset()
    assert {len(tokens) for tokens in wanted} == {ROOM - len(PROMPTS[0]) + 1}
    assert len({tuple(tokens) for tokens in wanted}) > 4
    return Talks(path, wanted)


def test_a_decoder_in_cpp_continues_a_text_as_in_python(talks, run_model, tmp_path):
    path, wanted = talks.path, talks.wanted[-1]
    prompt, shown = (",".join(map(str, tokens)) for tokens in (PROMPTS[-1], wanted))
    (tmp_path / "prompt.txt").write_text(prompt.replace(",", "\n", 2).replace(",", " ") + "\n")
    stopped = wanted[: wanted.index(wanted[3])]
    for given, expected in (
        ((prompt, "--device", OTHER_DEVICE), shown),
        ((tmp_path / "prompt.txt",), shown),
        ((prompt, "--most", 2), ",".join(map(str, wanted[:2]))),
        ((prompt, "--stop", wanted[3]), ",".join(map(str, stopped))),
    ):
        code, printed = run_model(path, "--prompt", *given)
        assert code == 0, printed
        assert printed.splitlines()[0] == expected
        assert "6 tokens read; the first behind " in printed
    for given, words in (
        (
            ",".join("1" * (ROOM + 1)),
            "has 0 tokens, and 13 are to be added; the cache has room for",
        ),
        ("no.txt", "--prompt takes a number, not 'no.txt'"),
        (",", "--prompt has no tokens"),
        (f"3,{WORDS}", f"The token {WORDS} is not one of the decoder's, 0 to {WORDS - 1}."),
    ):
        code, printed = run_model(path, "--prompt", given)
        assert (code, words in printed) == (1, True), printed


@needs_library("onnx")
def test_a_decoder_in_cpp_hides_what_its_cache_does_not_have_yet(run_model, tmp_path):
    import onnx

    from test_onnx_growing import decoder

    onnx.save(decoder("one node"), tmp_path / "decoder.onnx")
    compiled = compile_for(read_decoder([tmp_path / "decoder.onnx"], (1, 4), ROOM, {}))
    with backend.Conversation(VirtualMachine(compiled, tvm.cpu())) as text:
        wanted = list(text.generate([3, 1, 4, 1, 5], ROOM))
    compiled.export_library(str(tmp_path / "decoder.so"))
    code, printed = run_model(tmp_path / "decoder.so", "--prompt", "3,1,4,1,5")
    assert code == 0 and ",".join(map(str, wanted)) in printed.splitlines(), printed


@needs_unary
def test_the_program_in_cpp_calls_in_a_session(exported, run_model, tmp_path):
    x, total = variable("x", 3), variable("total", 3)

    def body(emit):
        new = emit(x + total)
        return new * relax.const(np.float32(2)), new

    function = build([x, total], body)["main"]
    start = tvm.runtime.tensor(np.ones(3, "float32"))
    counter = declare(function, [("total", "total", start, ())])
    path = tmp_path / "counter.so"
    compile_for(tvm.IRModule({"main": counter})).export_library(str(path))
    np.save(tmp_path / "x.npy", np.float32([1, 2, 3]))
    given = ("--input", tmp_path / "x.npy", "--session", "--output", tmp_path / "y")
    code, printed = run_model(path, *given, "--runs", 2)
    assert (code, "output 0: float32 (3,)" in printed) == (0, True), printed
    np.testing.assert_allclose(np.load(tmp_path / "y_0.npy"), [8, 14, 20], rtol=1e-3)
    for arguments, words in {
        (path, "--session"): "'main' takes 1 inputs, but there are 0 --input",
        (path, *given, "--function", "other"): "The model has no function 'other_in_session'",
        (path, "--prompt", "1"): "'main' takes 'x'; supported are tokens, positions and a mask",
        (path, "--prompt", "1", "--session"): "--prompt continues a text: it takes no --input",
        (exported.path, *given): "keeps nothing from one call to the next",
    }.items():
        code, printed = run_model(*arguments)
        assert (code, words in printed) == (1, True), printed


# ---- Sessions -----------------------------------------------------------------------------------

CONVERSE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import tvm, tvm_ffi
from tvm.runtime.vm import VirtualMachine
import PACKAGE as backend

def talk(prompt, device):
    tvm_ffi.get_global_func("BACKEND.runtime.set_device")(device)
    machine = VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    with backend.Conversation(machine) as text:
        return list(text.generate(prompt, 99))

path, prompts, devices = sys.argv[1], *map(json.loads, sys.argv[2:])
with ThreadPoolExecutor(len(prompts)) as threads:
    found = list(threads.map(talk, prompts, devices * (len(prompts) // len(devices))))
with open("/proc/self/maps") as maps:
    mapped = maps.read()
assert "BACKEND_runtime" in mapped
assert not [name for name in ("BACKEND_codegen", "libtvm_compiler") if name in mapped]
print(json.dumps(found))
"""


@needs_wheel
@pytest.mark.thorough
def test_conversations_of_eight_threads_on_two_npus_without_lowering_code(talks):
    program = CONVERSE.replace("PACKAGE", backend.__name__).replace("BACKEND", BACKEND)
    given = (talks.path, json.dumps(PROMPTS), json.dumps([0, OTHER_DEVICE]))
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program, *given],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == talks.wanted


# ---- RPC ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def farm():
    """Start a tracker and a board on this machine; the board only has the runtime."""
    for module in ("cloudpickle", "psutil", "tornado"):
        pytest.importorskip(module, reason="TVM's RPC needs it: install the extra 'rpc'")
    from tvm.rpc.tracker import Tracker

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_USE_RUNTIME_LIB", "1")
        tracker = Tracker("127.0.0.1", silent=True)
        address = ("127.0.0.1", tracker.port)
        server = rpc.Server("127.0.0.1", tracker_addr=address, key=BACKEND, silent=True)
    yield address
    server.terminate()
    tracker.terminate()


@pytest.fixture(scope="module")
def board(farm):
    """Have the board, which serves one client until its session ends."""
    return rpc.connect_tracker(*farm).request(BACKEND, session_timeout=120)


@support.needs_reals
@needs_symbols
@needs_unary
def test_a_model_runs_on_a_board_behind_a_tracker(exported, board, tmp_path):
    board.get_function(f"{BACKEND}.runtime.set_device")(OTHER_DEVICE)
    assert board.get_function(f"{BACKEND}.runtime.device")() == OTHER_DEVICE

    def load(path):
        board.upload(str(path))
        return VirtualMachine(board.load_module(path.name), board.cpu())

    machine = load(exported.path)

    def call(x):
        machine.set_input("main", tvm.runtime.tensor(x, board.cpu()))
        machine.invoke_stateful("main")
        return machine.get_outputs("main").numpy()

    exported.assert_right(call(exported.input))
    x = tvm.runtime.tensor(exported.input, board.cpu())
    machine.save_function("main", "again", x, include_return=False)
    time = machine.time_evaluator("again", board.cpu(), number=2, repeat=3)()
    assert len(time.results) == 3

    # The board survives each error.
    with pytest.raises(Exception, match="mismatch"):
        call(exported.input[:, :4])
    with pytest.raises(Exception, match=TOO_MANY):
        call(np.zeros((BOUND + 1, 5), "float32"))
    with pytest.raises(Exception, match="checksum"):
        load(exported.damaged(tmp_path))
    exported.assert_right(call(exported.input[:3]), rows=3)


@pytest.mark.thorough
def test_conversations_over_rpc(talks, board):
    board.upload(str(talks.path))
    machine = VirtualMachine(board.load_module(talks.path.name), board.cpu())
    with backend.Conversation(machine) as text, text.copy() as other:
        found = [list(it.generate(PROMPTS[at], ROOM)) for at, it in enumerate((text, other))]
    assert found == talks.wanted[:2]


# ---- Several NPUs -------------------------------------------------------------------------------


@support.needs_reals
@needs_symbols
@needs_devices(3)
@needs_unary
@pytest.mark.parametrize(
    "processes",
    [False, pytest.param(True, marks=pytest.mark.thorough)],
    ids=["threads", "processes"],
)
def test_a_batch_is_computed_by_two_npus(exported, processes):
    if processes:
        pytest.importorskip("psutil", reason="Disco's processes need it: install the extra 'rpc'")
    with DataParallel(exported.path, [2, 1], processes=processes) as model:
        # An odd batch, more rows than one NPU takes, and fewer rows than NPUs.
        for rows in (BOUND - 1, BOUND, 1):
            (found,) = model(exported.input[:rows])
            exported.assert_right(found, rows)
        assert model.devices == [2, 1]
        if "submissions" in COUNTERS:
            regions = [region for npu in model.counters() for region in npu.values()]
            assert [region["submissions"] for region in regions] == [3, 2]
        (found,) = model(np.concatenate([exported.input] * 2))
        exported.assert_right(found[BOUND:])
        with pytest.raises(RuntimeError, match="NPU 2 and 1: .*mismatch"):
            model(exported.input[:, :4])
        with pytest.raises(RuntimeError, match=f"NPU 2 and 1: .*{TOO_MANY}"):
            model(np.zeros((2 * BOUND + 2, 5), "float32"))
        with pytest.raises(ValueError, match="first axis"):
            model(exported.input, exported.input[1:])
    with pytest.raises(RuntimeError, match="closed"):
        model(exported.input)


@support.needs_reals
@needs_devices(2)
@needs_unary
def test_a_model_that_cannot_be_loaded_is_an_error_of_its_npus(exported, tmp_path):
    with pytest.raises(RuntimeError, match="NPU 0 and 1: .*nothing.so"):
        DataParallel(tmp_path / "nothing.so")
    with pytest.raises(RuntimeError, match="NPU 0 and 1: .*checksum"):
        DataParallel(exported.damaged(tmp_path))


@pytest.mark.parametrize("devices", [[], 2, ["0"], [0.5]])
def test_invalid_indices_of_npus_are_refused(tmp_path, devices):
    with pytest.raises(ValueError, match="devices is .*; it must be indices of NPUs"):
        DataParallel(tmp_path / "model.so", devices)
