"""The driver kit and a vendor's tool: whatever the tool does, there is a program or a sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from first_op import edit
from support import ROOT, attempt, run

INCLUDE = ROOT / "template/engine/backend/include"
TOOL = f"""
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.append({str(ROOT / "template/engine/backend/sdk")!r})
from npu_region import Declined, run_tool

mode = sys.argv.pop(1)
answers = os.dup(1)
PIDS = os.environ["RUNS"] + ".pids"


def hang():
    Path(PIDS).write_text(f"{{os.getpid()}}\\n")
    # As a call into a library: no thread of Python runs.
    ctypes.PyDLL(None).sleep(600)


if mode == "stranger":
    print("Hello, this is another tool")
    sys.exit(0)
if mode == "broken":
    import a_module_that_is_not_installed


def reason(node, region):
    if mode != "quiet":
        print("what the SDK prints is no answer")
    if mode == "choosy" and node.op == "add":
        return "there is no\\nadder on this chip"
    if mode == "fragile" and node.op == "add":
        os.abort()
    if mode == "endless":
        while True:
            os.write(answers, b"and so on " * 999)
    if mode == "chatty":
        os.write(answers, b"one answer more\\n")
    if mode == "ponders" and node.op == "add":
        time.sleep(600)
    if mode == "wary" and node.op == "add":
        raise ValueError("odd shapes")
    assert region.options == {{"level": "1"}}, region.options
    return None


def compile_region(region):
    with Path(os.environ["RUNS"]).open("a") as file:
        file.write("compiled\\n")
    relu, add = region.nodes
    region.at(relu)
    if mode == "warns":
        region.warn("the clock is\\nslow")
        region.warn("the bias is large", add)
        region.warn("the clock is slow")
    if mode == "shouts":
        for number in range(200):
            region.warn(f"warning {{number}}: " + "x" * 5000)
    if mode == "noisy_answer":
        (Path(sys.argv[2]) / "program.bin").write_bytes(b"bytes")
        answer = region.id.encode() + b"\\n" + bytes(range(255, 127, -1)) + b"\\n\\n\\0\\n"
        (Path(sys.argv[2]) / "answer.txt").write_bytes(answer)
        os._exit(0)
    if mode == "calibrates":
        samples = region.calibration
        if not samples:
            raise Declined("the SDK needs calibration data")
        assert [array.dtype.name for array in samples[0]] == ["float32"]
        return repr([array.tolist() for sample in samples for array in sample]).encode()
    if mode == "declines":
        region.warn("nobody reads this of a region that is declined")
        add.decline("the sum does not fit into the chip")
    region.at(add)
    if mode == "crashes":
        os.abort()
    if mode in ("garbage", "garbled"):
        folder = Path(sys.argv[2])
        noise = bytes(range(255, 0, -1)) * 9
        names = ("answer.txt", "reason.txt", "node.txt", "program.bin")
        for name in names[mode == "garbled":]:
            (folder / name).write_bytes(noise)
        if mode == "garbled":
            (folder / "answer.txt").write_text(region.id)
            os._exit(3)
        os.write(2, noise[:64] + b"\\n")
        os._exit(0)
    if mode == "fails":
        raise ValueError("the compiler is lost")
    if mode == "explains":
        raise ValueError("the compiler\\n\\n  is lost\\nbecause " + "it is far away " * 99)
    if mode == "hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(os.environ["RUNS"]).write_text(str(child.pid))
        time.sleep(600)
    if mode == "says_nothing":
        os._exit(0)
    if mode == "empty":
        return b""
    if mode == "confused":
        region.id = "0" * 32
    assert region.options == {{"level": "1"}}, region.options
    bias = region.array(region.value(add.inputs[1]))
    return f"{{relu.op}}, {{add.op}} {{bias.tolist()}}".encode()


def load(program):
    import numpy as np

    if mode == "unloadable":
        raise ValueError("this is no program")
    if mode == "hangs_in_load":
        hang()
    bias = np.array(json.loads(program[program.index(b"[") :]), "float32")

    def run(inputs):
        if mode == "hangs_in_run" or (mode == "hangs_once" and not Path(PIDS).exists()):
            hang()
        if mode == "slow":
            time.sleep(0.5)
        if mode == "dies":
            os.abort()
        if mode == "noisy":
            os.write(answers, b"\\xff nonsense\\n" * 99)
        if mode == "long":
            return [np.zeros(3, "float32")]
        return [np.maximum(inputs[0], 0) + bias]

    return run


sys.exit(run_tool(os.environ.get("SDK", "acme 1"), reason, compile_region, load))
"""

MAIN = """
#include <csignal>
#include <cstdio>

#include "driver_kit/build.h"
#include "driver_kit/model.h"
#include "driver_kit/tool_graph.h"

using namespace npu::kit;

constexpr ModelTool kTool = {"acme_npu", "sdk/absent.py", __FILE__};
constexpr npu_option_info kOptions[] = {
    kSdkCommand, kSdkTimeout, kSdkFolder, kSdkCache,
    {"level", NPU_OPTION_TEXT, "1", 0, 0, nullptr, 0, "how hard it tries"}};

std::string Reason(const Program& program, const Node& node) {
  return AskTool(kTool, program, node);
}
std::vector<uint8_t> Compile(const Program& program) { return CompileByTool(kTool, program); }

std::string Identity(const Program& program) { return FingerprintOfTool(kTool, program); }

constexpr Driver kDriver = {"acme_npu", "1",   Reason, kOptions, 5,        false,
                            Compile,    false, false,  false,    nullptr, Identity, true};

// Runs a program in a process of the tool, and prints the result, or the sentence.
void Run(const Program& program) {
  float given[2] = {-1, 3}, found[2] = {};
  std::vector<void*> memory(program.values.size(), nullptr);
  for (size_t i = 0; i < memory.size(); ++i) {
    if (program.values[i].source == Source::kInput) memory[i] = given;
  }
  memory[static_cast<size_t>(program.outputs[0].place)] = found;
  std::string why;
  const npu_status status = Try(&why, [&] {
    ToolGraph graph(kTool, program, memory);
    graph.Run();
    graph.Run();
  });
  if (status == NPU_OK) std::printf("%g %g\\n", found[0], found[1]);
  if (status != NPU_OK) std::printf("%d %s\\n", status, why.c_str());
}

class Graph : public ToolGraph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory)
      : ToolGraph(kTool, program, memory) {}
};

// Has a Run of its own, which must be the one that runs.
class Other : public Graph {
 public:
  using Graph::Graph;
  void Run() { Graph::Run(); }
};
static_assert(CanWait<ToolGraph>::value && CanWait<Graph>::value && !CanWait<Other>::value);

// Submits a request, waits for 0.2 s, cancels it if it is not done, and tries once more.
void Cancel(const uint8_t* bytes, size_t size) {
  const npu_run_api api = RunTable<Graph>("acme_npu", "1");
  const npu_run_api other = RunTable<Other>("acme_npu", "1");
  if (api.execute != nullptr || other.execute == nullptr || other.submit != nullptr) return;
  npu_program* program = nullptr;
  npu_request* request = nullptr;
  float given[2] = {-1, 3}, found[2] = {};
  npu_buffer in = {}, out = {};
  in.dtype = NPU_FLOAT32;
  in.rank = 1;
  const int64_t dims[] = {2};
  in.dims = dims;
  in.bytes = sizeof(given);
  out = in;
  in.data = given;
  out.data = found;
  npu_status status = api.load(nullptr, bytes, size, &program);
  if (status == NPU_OK) status = api.create_request(program, &request);
  if (status != NPU_OK) std::printf("%d %s\\n", status, api.error());
  for (int i = 0; i < 2 && status == NPU_OK; ++i) {
    api.bind_input(request, 0, &in);
    api.bind_output(request, 0, &out);
    status = api.submit(request);
    status = status == NPU_OK ? api.wait(request, 200000) : status;
    std::printf("%d ", status);
    if (status == NPU_TIMEOUT) {
      const bool cancels = std::getenv("CANCEL") != nullptr;
      if (cancels) api.cancel(request);
      status = api.wait(request, -1);
    }
    std::printf("%d %s\\n", status, status == NPU_OK ? "" : api.error());
    if (status == NPU_OK) std::printf("%g %g\\n", found[0], found[1]);
    status = NPU_OK;
  }
  api.destroy_request(request);
  api.unload(program);
}

// Compiles relu(x) + bias, and prints the SDK's bytes, or the sentence.
void Build(const npu_build_api& api, const std::vector<npu_option>& options) {
  npu_builder* builder = nullptr;
  if (api.create(options.data(), options.size(), &builder) != NPU_OK) {
    std::puts(api.error(nullptr));
    return;
  }
  const npu_tensor_desc desc = {NPU_FLOAT32, 1, {{2, -1}}};
  const float bias[] = {0.5f, -2};
  npu_tensor x, y, z, constant;
  const char* identity = nullptr;
  if (std::getenv("IDENTITY") != nullptr) {
    const npu_status status = api.identity(builder, &identity);
    std::printf("%d %s\\n", status, status == NPU_OK ? identity : api.error(builder));
  }
  api.add_input(builder, &desc, &x);
  // Two samples, if there is a number for the second.
  const char* number = std::getenv("SAMPLES");
  const float samples[] = {1, 2, 3, number == nullptr ? 0 : static_cast<float>(std::atoi(number))};
  if (number != nullptr) api.set_samples(builder, x, samples, 2);
  api.add_constant(builder, &desc, bias, sizeof(bias), &constant);
  api.add_tensor(builder, &desc, &y);
  api.add_tensor(builder, &desc, &z);
  const npu_step steps[] = {
      {NPU_STEP_RELU, 1, {{NPU_OPERAND_TENSOR, x, 0}}, "relu"},
      {NPU_STEP_ADD, 2, {{NPU_OPERAND_TENSOR, y, 0}, {NPU_OPERAND_TENSOR, constant, 0}}, "add"}};
  npu_status status = NPU_OK;
  for (int i = 0; i < 2 && status == NPU_OK; ++i) {
    npu_vector_program program = {};
    program.steps = &steps[i];
    program.step_count = 1;
    npu_elementwise op = {};
    op.size = sizeof(op);
    op.out = i == 0 ? y : z;
    op.program = &program;
    api.set_label(builder, i == 0 ? "relax.nn.relu (a)" : "relax.add (b)");
    status = api.add_elementwise(builder, &op);
  }
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  if (status == NPU_OK) api.mark_output(builder, z);
  if (status == NPU_OK) status = api.finish(builder, &bytes, &size);
  if (status != NPU_OK) {
    std::printf("%d %s\\n", status, api.error(builder));
  } else {
    const Program parsed = Parse(bytes, size);
    const size_t limits = parsed.options.count("sdk_timeout_s");
    const bool is_clean = parsed.options.size() == 1 + limits && parsed.constants == nullptr;
    std::printf("%.*s%s\\n", static_cast<int>(parsed.opaque_bytes),
                reinterpret_cast<const char*>(parsed.opaque), is_clean ? "" : " and more");
    if (*api.warnings(builder) != 0) std::puts(api.warnings(builder));
    if (std::getenv("CANCEL") != nullptr || std::getenv("TABLE") != nullptr) {
      Cancel(bytes, size);
    } else if (std::getenv("ACME_NPU_SDK_COMMAND") != nullptr) {
      Run(parsed);
    }
    // A file whose result is a constant, which it has not.
    Program forged = parsed;
    forged.outputs[0].place = parsed.nodes[1].inputs[1];
    const std::vector<uint8_t> wrong = Serialize(forged);
    std::string reason;
    if (Try(&reason, [&] { Parse(wrong.data(), wrong.size()); }) == NPU_OK) std::puts("forged");
  }
  api.destroy(builder);
}

int main(int argc, char** argv) {
  // As Python: a note, and the call goes on.
  struct sigaction note = {};
  note.sa_handler = [](int) {};
  sigaction(SIGINT, &note, nullptr);
  std::vector<npu_option> options;
  for (int i = 2; i + 1 < argc; i += 2) options.push_back({argv[i], argv[i + 1]});
  const npu_build_api api = BuildTable<kDriver>();
  for (int i = 0; i < std::atoi(argv[1]); ++i) Build(api, options);
}
"""

Compiled = Callable[..., list[str]]


def _built(folder: Path, include: Path) -> Path:
    (folder / "driver").mkdir()
    main = folder / "driver/main"
    main.with_suffix(".cc").write_text(MAIN)
    (folder / "tool.py").write_text(TOOL)
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
    run("c++", *flags, "-I", include, "-o", main, f"{main}.cc", "-pthread", "-ldl")
    return main


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(tmp_path_factory.mktemp("model"), INCLUDE)


@pytest.fixture
def compiled(program: Path, tmp_path: Path) -> Compiled:
    """Return a function that compiles with the tool in a mode."""

    def call(
        mode: str, times: int = 1, sdk: str = "acme 1", samples: str = "", **options: object
    ) -> list[str]:
        command = f"{sys.executable} {program.parents[1] / 'tool.py'} {mode}"
        given = {"sdk_command": command, **options}
        words = [str(word) for item in given.items() for word in item]
        settings = {"RUNS": str(tmp_path / "runs"), "SDK": sdk, "TMPDIR": str(tmp_path)}
        settings |= {"SAMPLES": samples} if samples else {}
        return run(program, str(times), *words, **settings).splitlines()

    return call


RIGHT = "relu, add [0.5, -2.0]"


def test_a_region_becomes_the_bytes_of_the_sdk(compiled: Compiled, tmp_path: Path) -> None:
    assert compiled("good") == [RIGHT]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "its folders are deleted"


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("declines", "relax.add (b): the sum does not fit into the chip"),
        ("choosy", "there is no adder on this chip"),
        ("crashes", "the SDK's tool crashed (signal 6, Aborted) at relax.add (b)"),
        (
            "fails",
            "the SDK's tool ended with exit code 1 at relax.add (b): ValueError: "
            "the compiler is lost",
        ),
        (
            "explains",
            "the SDK's tool ended with exit code 1 at relax.add (b): "
            + f"ValueError: the compiler; is lost; because {'it is far away ' * 99}"[:300].strip(),
        ),
        (
            "says_nothing",
            "the SDK's tool does not say that its answer is for this region (answer.txt) at "
            "relax.add (b)",
        ),
        ("empty", "the SDK's tool wrote no program (program.bin) at relax.add (b)"),
        (
            "confused",
            "the SDK's tool does not say that its answer is for this region (answer.txt) at "
            "relax.add (b)",
        ),
        (
            "fragile",
            "the SDK's tool crashed (signal 6, Aborted): what the SDK prints is no answer, asked "
            "about add",
        ),
        (
            "wary",
            "the SDK's tool ended with exit code 1: ValueError: odd shapes, asked about add",
        ),
        (
            "garbage",
            "the SDK's tool does not say that its answer is for this region (answer.txt): "
            + "?" * 64,
        ),
        (
            "endless",
            "the SDK's tool answers with a line that does not end, asked about relu",
        ),
        ("chatty", "the SDK's tool answers another question, asked about relu"),
        (
            "stranger",
            "the SDK's tool begins with 'Hello, this is another tool' instead of "
            "'npu-region 1 ...'",
        ),
        (
            "broken",
            "the SDK's tool does not start: it ended with exit code 1: ModuleNotFoundError: No "
            "module named 'a_module_that_is_not_installed'",
        ),
    ],
)
def test_what_goes_wrong_is_a_decline_with_a_sentence(
    compiled: Compiled, mode: str, sentence: str
) -> None:
    """Twice: the first failure does not spoil the second question."""
    assert compiled(mode, times=2) == [f"1 {sentence}"] * 2


def test_a_reason_that_is_no_text_is_one_line_of_it(compiled: Compiled) -> None:
    (line,) = compiled("garbled")
    assert line.startswith("1 ???") and len(line) < 2500
    assert " ~}|{zyx" in line or "?~}|{zyx" in line, line


def test_a_tool_that_hangs_is_ended_with_what_it_started(
    compiled: Compiled, tmp_path: Path
) -> None:
    (line,) = compiled("hangs", sdk_timeout_s=1)
    assert line == "1 the SDK's tool took more than 1 s, and was ended, at relax.add (b)"
    assert _is_gone(int((tmp_path / "runs").read_text())), "what the tool started is still there"


@pytest.mark.slow
def test_a_tool_that_does_not_answer_declines_the_node(tmp_path: Path) -> None:
    """With 10 seconds of patience instead of 60; the next question starts another worker."""
    include = tmp_path / "include"
    shutil.copytree(INCLUDE, include)
    edit(include / "driver_kit/model.h", [("kAnswerSeconds = 60;", "kAnswerSeconds = 10;")])
    program = _built(tmp_path, include)
    command = f"{sys.executable} {tmp_path / 'tool.py'} ponders"
    (line,) = run(program, "1", "sdk_command", command, RUNS=str(tmp_path / "runs")).splitlines()
    assert line == "1 the SDK's tool gave no answer in 10 s, asked about add"


def test_the_folder_of_a_compile_is_kept_and_can_be_repeated(
    compiled: Compiled, program: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    (line,) = compiled("crashes", sdk_folder=kept)
    (folder,) = (path.parent for path in kept.glob("compile-*/region.json"))
    assert len(list(kept.glob("answer-*/log.txt"))) == 1
    assert line.endswith(f"at relax.add (b); its log is {folder / 'log.txt'}")
    tool = program.parents[1] / "tool.py"
    settings = {"RUNS": str(tmp_path / "runs")}
    done = attempt(sys.executable, tool, "good", "compile", folder, **settings)
    assert done.returncode == 0
    assert (folder / "program.bin").read_text() == RIGHT
    # Nobody needs an empty log.
    assert compiled("quiet", sdk_folder=tmp_path / "few") == [RIGHT]
    (folder,) = (tmp_path / "few").iterdir()
    assert folder.name.startswith("compile-")


def test_programs_and_reasons_are_not_asked_for_twice(compiled: Compiled, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def count() -> int:
        lines = runs.read_text().count("\n")
        runs.unlink()
        return lines

    assert compiled("good", times=3) == [RIGHT] * 3
    assert count() == 1
    assert len(set(compiled("declines", times=3))) == 1
    assert count() == 1
    # Perhaps the next time it does better.
    compiled("crashes", times=2)
    assert count() == 2
    # Another process.
    cache = tmp_path / "cache"
    for _ in range(2):
        assert compiled("good", sdk_cache=cache) == [RIGHT]
    assert count() == 1
    assert compiled("good", sdk="acme 2", sdk_cache=cache) == [RIGHT]
    assert count() == 1


def test_what_the_sdk_warns_of_is_kept_with_the_program(compiled: Compiled, tmp_path: Path) -> None:
    told = [RIGHT, "the clock is slow", "relax.add (b): the bias is large"]
    cache = tmp_path / "cache"
    for _ in range(2):
        assert compiled("warns", times=2, sdk_cache=cache) == told * 2
    assert (tmp_path / "runs").read_text().count("\n") == 1


def test_warnings_that_are_too_many_or_no_text_do_no_harm(compiled: Compiled) -> None:
    program, *lines, last = compiled("shouts")
    assert program == RIGHT and last == "and 100 more warnings"
    assert len(lines) == 100 and all(len(line) == 2000 for line in lines)
    assert compiled("noisy_answer") == ["bytes", "?" * 128]


def test_data_of_the_user_reach_the_tool_and_other_data_compile_again(
    compiled: Compiled, tmp_path: Path
) -> None:
    assert compiled("calibrates") == ["1 the SDK needs calibration data"]
    cache, kept = tmp_path / "cache", tmp_path / "kept"
    for number, runs in (("4", 2), ("4", 2), ("5", 3)):
        (line,) = compiled("calibrates", samples=number, sdk_cache=cache, sdk_folder=kept)
        assert line == f"[[1.0, 2.0], [3.0, {number}.0]]"
        assert (tmp_path / "runs").read_text().count("\n") == runs
    regions = [path for path in kept.glob("*/region.json")]
    assert len(regions) == 2
    for region in regions:
        assert json.loads(region.read_text())["calibration"] == 2
        (array,) = (region.parent / "calibration").iterdir()
        assert np.load(array).shape == (2, 2)


@pytest.mark.parametrize("mode", ["crashes", "fails", "says_nothing", "confused"])
def test_data_do_not_change_what_goes_wrong(compiled: Compiled, mode: str) -> None:
    (line,) = compiled(mode, samples="4")
    assert line.startswith("1 the SDK's tool ") and "at relax.add (b)" in line


def test_the_identity_is_that_of_the_sdk_and_of_the_code_of_the_tool(
    program: Path, tmp_path: Path
) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(TOOL)

    def identity(sdk: str = "acme 1", mode: str = "good") -> str:
        command = f"{sys.executable} {tool} {mode}"
        settings = {"RUNS": str(tmp_path / "runs"), "SDK": sdk, "IDENTITY": "1"}
        return run(program, "1", "sdk_command", command, **settings).splitlines()[0]

    first = identity()
    assert first.startswith("0 acme 1 ") and identity() == first
    found = {first, identity("acme 2")}
    (tmp_path / "beside.py").write_text("# what the tool may import")
    found.add(identity())
    tool.write_text(TOOL + "# another one\n")
    found.add(identity())
    assert len(found) == 4
    assert identity(mode="stranger").startswith("1 the SDK's tool begins with 'Hello, ")


def test_a_script_that_changes_is_another_tool_also_in_a_process_that_goes_on(
    program: Path, tmp_path: Path
) -> None:
    """The tool changes its own script, as a user may between two compiles."""
    tool, runs = tmp_path / "tool.py", tmp_path / "runs"
    line = "    relu, add = region.nodes\n"
    change = "    Path(__file__).write_text(Path(__file__).read_text() + '#')\n"
    tool.write_text(TOOL.replace(line, change + line))
    command = f"{sys.executable} {tool} good"
    assert run(program, "3", "sdk_command", command, RUNS=str(runs)).splitlines() == [RIGHT] * 3
    assert runs.read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("good", "0.5 1"),
        (
            "unloadable",
            "the SDK's tool ended with exit code 1: ValueError: this is no program",
        ),
        ("dies", "the SDK's tool crashed (signal 6, Aborted)"),
        ("noisy", "the SDK's tool fails: ? nonsense"),
        (
            "long",
            "the SDK's tool fails: it returns [{'dtype': 'float32', 'shape': [3]}], not "
            "[{'dtype': 'float32', 'shape': [2]}]",
        ),
    ],
)
def test_a_program_runs_in_a_process_of_the_tool(
    program: Path, tmp_path: Path, mode: str, line: str
) -> None:
    command = f"{sys.executable} {program.parents[1] / 'tool.py'} {mode}"
    settings = {"RUNS": str(tmp_path / "runs"), "ACME_NPU_SDK_COMMAND": command}
    built, found = run(program, "1", TMPDIR=str(tmp_path), **settings).splitlines()
    assert built == RIGHT
    assert found == (line if mode == "good" else f"{_status('DEVICE_ERROR')} {line}")


def _status(name: str) -> str:
    found = re.search(rf"NPU_{name} = (\d+)", (INCLUDE / "npu_driver.h").read_text())
    assert found is not None
    return found[1]


def _is_gone(process: int) -> bool:
    for _ in range(100):
        state = Path(f"/proc/{process}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    os.kill(process, 9)
    return False


@pytest.mark.parametrize(
    ("mode", "lines"),
    [
        ("slow", ["TIMEOUT OK ", "0.5 1"] * 2),
        (
            "hangs_once",
            [
                "TIMEOUT CANCELLED the SDK's tool was cancelled, and ended",
                # Another process.
                "OK OK ",
                "0.5 1",
            ],
        ),
        ("dies", ["DEVICE_ERROR DEVICE_ERROR the SDK's tool crashed (signal 6, Aborted)"] * 2),
    ],
)
def test_a_request_is_waited_for_and_cancelled(
    program: Path, tmp_path: Path, mode: str, lines: list[str]
) -> None:
    command = f"{sys.executable} {program.parents[1] / 'tool.py'} {mode}"
    settings = {"RUNS": str(tmp_path / "runs"), "ACME_NPU_SDK_COMMAND": command}
    settings |= {"CANCEL" if mode == "hangs_once" else "TABLE": "1"}
    done = run(program, "1", TMPDIR=str(tmp_path), **settings)
    expected = re.sub(r"\b(OK|[A-Z_]{4,})\b", lambda name: _status(name[0]), "\n".join(lines))
    assert done.splitlines()[1:] == expected.splitlines()
    if mode == "hangs_once":
        assert _is_gone(int((tmp_path / "runs.pids").read_text()))


@pytest.mark.parametrize("mode", ["hangs_in_load", "hangs_in_run"])
def test_the_option_limits_how_long_a_program_loads_and_runs(
    program: Path, tmp_path: Path, mode: str
) -> None:
    command = f"{sys.executable} {program.parents[1] / 'tool.py'} {mode}"
    settings = {"RUNS": str(tmp_path / "runs"), "ACME_NPU_SDK_COMMAND": command}
    lines = run(program, "1", "sdk_timeout_s", "3", TMPDIR=str(tmp_path), **settings).splitlines()
    late = f"{_status('DEVICE_ERROR')} the SDK's tool gave no answer in 3 s"
    assert lines == [RIGHT, late]
    assert _is_gone(int((tmp_path / "runs.pids").read_text()))


@pytest.mark.parametrize("signal", [2, 9])
def test_a_tool_that_hangs_is_ended_with_the_process_that_waits(
    program: Path, tmp_path: Path, signal: int
) -> None:
    tool = program.parents[1] / "tool.py"
    pids = tmp_path / "runs.pids"
    settings = {
        **os.environ,
        "RUNS": str(tmp_path / "runs"),
        "TMPDIR": str(tmp_path),
        "ACME_NPU_SDK_COMMAND": f"{sys.executable} {tool} hangs_in_load",
    }
    with subprocess.Popen([program, "1"], env=settings, stdout=subprocess.PIPE) as process:
        while not pids.exists() or not pids.read_text().endswith("\n"):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal)
        out, _ = process.communicate(timeout=10)
    assert _is_gone(int(pids.read_text()))
    # What was killed leaves the programs of its process at most.
    for _ in range(100):
        left = {path.name.rsplit("-", 1)[0] for path in tmp_path.glob("region-*")}
        if left <= {"region-programs"}:
            break
        time.sleep(0.05)
    assert left <= {"region-programs"}
    if signal == 2:
        sentence = "the SDK's tool was interrupted, and ended"
        assert out.decode().splitlines()[1:] == [f"{_status('DEVICE_ERROR')} {sentence}"]


def test_a_tool_that_is_nowhere_is_named(program: Path, tmp_path: Path) -> None:
    (line,) = run(program, "1").splitlines()
    places = [program.parent / "vendor/sdk/absent.py", program.parents[1] / "sdk/absent.py"]
    assert line == (
        f"1 the SDK's tool is neither {places[0]} nor {places[1]}; the option sdk_command names "
        "another one"
    )
    (line,) = run(program, "1", ACME_NPU_SDK_COMMAND="/no/such/tool").splitlines()
    assert line == "1 the SDK's tool cannot be started: there is no /no/such/tool"
