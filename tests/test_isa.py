"""A chip with an instruction set of its own: what is rendered for it, and that it builds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import support
from npu_scaffold.catalog import load_catalog
from pages import BLOCK, Part, clone
from support import IN_ONE_PROCESS, ROOT, Workshop, copy_tests, lend_packages, run

ANSWERS = {
    "backend_name": "isa_npu",
    "op_preset": "custom",
    "ops": ["add", "matmul", "relu"],
    "driver": "isa",
}
SEEDS = ("isa.py", "isa_semantics.h", "schedules.py", "tir_passes.py", "sdk/compile.py")


def test_only_this_answer_has_the_compiler_of_instructions(render: Callable[..., Path]) -> None:
    tree, other = render(**ANSWERS), render(**{**ANSWERS, "driver": "model"})
    engine = ["isa.py", "backend/isa/machine.py", "backend/isa/tests/test_table.py"]
    for name in engine:
        assert (tree / "engine" / name).is_file(), name
    for name in SEEDS:
        assert (tree / "vendor" / name).is_file(), name
    added = {*support.contents(tree)} - {*support.contents(other)}
    assert {*(f"engine/{name}" for name in engine)} <= added
    assert not any("/isa" in name for name in support.contents(other))
    assert "numpy" in (tree / "pyproject.toml").read_text().split("build-backend")[0]
    assert "engine/backend/isa" not in (other / "pyproject.toml").read_text()


IN_SOURCES = """
import json
from pathlib import Path
from engine.backend.isa.loading import load
from engine.backend.isa.page import page
machine = load(Path("vendor/isa.py"))
names = {it.name: it.engine for it in machine.instructions.values()}
print(json.dumps([names, page(machine)]))
"""


def test_the_table_needs_neither_tvm_nor_a_build(
    render: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "tvm.py").write_text("raise ImportError('no TVM here')")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); sys.dont_write_bytecode = True"
    found = run("python", "-c", code + IN_SOURCES, cwd=render(**ANSWERS))
    names, page = json.loads(found)
    assert {
        "ld": "load",
        "mm": "matrix",
        "vec": "vector",
        "halt": "control",
    }.items() <= names.items()
    assert page.startswith("# The instruction set of example\n") and "### rescale\n" in page


RUN_OF_PAGE = """
from tvm_isa_npu.engine.backend.isa.loading import load
from tvm_isa_npu.engine.backend.isa.program import Program
from tvm_isa_npu.engine.backend.isa.text import assembled
data = bytes(range(64))
lines = [f"set to=r{{r}} value={{v << 40}}" for r, v in ((1, 2), (2, 34), (3, 35))]
lines += ["ld target=r1 source=r2 bytes=64", "st target=r3 source=r1 bytes=64", "halt"]
lines = assembled(load(), "\\n".join(lines))
program = Program("example", tuple(lines), inputs=(64,), outputs=(64,))
{python}
assert result.outputs == (data,) and result.cycles > 36, result
assert result.engines["load"].busy == 16 + 2, result
"""


TWO_DRIVERS = """
import numpy as np, tvm, tvm_isa_npu as backend
from tvm import relax
x = np.random.default_rng(0).standard_normal((32, 32)).astype("float32")
builder, data = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, "float32"))
with builder.function("main", [data]):
    with builder.dataflow():
        product = builder.emit(relax.op.matmul(data, data))
        result = builder.emit(relax.op.nn.softmax(product))
        output = builder.emit_output(relax.op.matmul(result, data))
    builder.emit_func_output(output)
powers = np.exp(x @ x - (x @ x).max(axis=1, keepdims=True))
wanted = powers / powers.sum(axis=1, keepdims=True) @ x

def drivers(order):
    library = f"{order[:6]}.so"
    partitioned = backend.partition_for_isa_npu(builder.get(), driver=order)
    report = backend.offload_report(partitioned)
    by_region = {it.symbol: it.driver for it in report.regions}
    backend.compile_for_isa_npu(builder.get(), driver=order).export_library(library)
    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    profile = backend.profile(library, x, report=report)
    assert [it.driver for it in profile.regions] == [it.driver for it in report.regions]
    return [by_region[op.region] for op in report.ops], report, profile

placed, report, profile = drivers("second,vendor")
assert placed == ["vendor", "second", "vendor"], report
assert "the library has no matmul" in report.ops[0].left_by["second"], report
assert " cycles on 'vendor', " in profile.summary, profile.summary
assert " ns (" in profile.summary and " us) on 'second'" in profile.summary, profile.summary
assert drivers("vendor,second")[0] == ["vendor"] * 3
"""


def blocks_of(page: str, wanted: str) -> list[str]:
    """Return the blocks of a page in a language."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    return [body for language, body in blocks if language == wanted]


def python_of(page: str) -> str:
    """Return the Python of a page, for the backend of this test."""
    text = "\n".join(blocks_of(page, "python"))
    return text.replace("tvm_acme_npu", "tvm_isa_npu")


def test_what_the_page_about_the_emulator_shows(
    render: Callable[..., Path], tmp_path: Path
) -> None:
    text = (ROOT / "docs/isa-emulator.md").read_text()
    (function,) = (body for language, body in BLOCK.findall(text) if language == "cpp")
    tree = render(**ANSWERS)
    assert function in (tree / "vendor/isa_semantics.h").read_text()
    command = ("python", "-m", "engine.backend.isa.cpp", "vendor/isa.py", str(tmp_path / "isa"))
    run(*command, cwd=tree, PYTHONDONTWRITEBYTECODE="1")
    assert "struct StepFields {" in (tmp_path / "isa/isa_table.h").read_text()
    assert "MeasureStep" in (tmp_path / "isa/isa_table.inc").read_text()


PAGE = """
import sys
sys.dont_write_bytecode = True
from dataclasses import replace
from typing import Any
import numpy as np
from engine.backend.isa import cases
from engine.backend.isa.faults import faults_of
from engine.isa import Address, Box, Engine, Machine, Memory, Number, State
{machine}
MACHINE.engines = (*MACHINE.engines, Engine("load", {{"": 32}}))
{instruction}
MACHINE.check()
random = np.random.default_rng(0)
for _ in range(50):
    found = faults_of(cases.random_case(MACHINE, "ld", random), random)
    assert not found, found
"""


def test_the_table_of_the_page_tells_the_truth(render: Callable[..., Path]) -> None:
    text = (ROOT / "docs/isa-table.md").read_text()
    machine, instruction = (body for language, body in BLOCK.findall(text) if language == "python")
    run(
        "python", "-c", PAGE.format(machine=machine, instruction=instruction), cwd=render(**ANSWERS)
    )


WHAT_PROGRAMS_TELL = """
import subprocess
import numpy as np
import tvm_isa_npu
from tvm import relax
from tvm_isa_npu.engine.backend.compiling.artifacts import read_artifacts

x = relax.Var("x", relax.TensorType((2000, 64), "float32"))
places = relax.Var("places", relax.TensorType((5,), "int32"))
weights = relax.const(np.random.default_rng(0).standard_normal((64, 32), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x, places]):
    with builder.dataflow():
        product = builder.emit(relax.op.matmul(x, weights), "product")
        rows = builder.emit_output(relax.op.take(product, places, 0), "rows")
    builder.emit_func_output(rows)
model = builder.get()
report = tvm_isa_npu.offload_report(tvm_isa_npu.partition_for_isa_npu(model))
executable = tvm_isa_npu.compile_for_isa_npu(model)
inputs = np.ones((2000, 64), "float32"), np.arange(5, dtype="int32")
profile = tvm_isa_npu.profile(executable, *inputs, report=report)
(region,), (ran,) = report.regions, profile.regions

# Cycles by kernel are those of the program, and those of scalar code what the report has.
assert ran.span == sum(kernel.attributed for kernel in profile.kernels) == ran.counters["cycles"]
for engine, busy in profile.busy.items():
    assert busy == ran.counters[f"busy_cycles.{engine}"]
    assert busy == sum(kernel.busy.get(engine, 0) for kernel in profile.kernels)
scalar = profile.busy["control.scalar"]
assert profile.totals["scalar"] == scalar > 1000, profile
percent = f"{100 * scalar / ran.span:.1f} %"
assert region.notes == (f"scalar code: {percent} of {ran.span:,} cycles, by the emulator",), region
(warning,) = region.warnings
assert warning.startswith("relax.take (rows): runs as scalar code, which is slow: for i0 in 5: ")
assert warning.endswith(f" is not affine; {scalar:,} cycles, {percent} of the program's"), warning
assert profile.summary.endswith(f"; scalar code: {percent} of cycles"), profile.summary
by_label = {kernel.label: kernel for kernel in profile.kernels}
product = by_label["relax.matmul (product)"]
assert product.operations == 2 * 2000 * 64 * 32 and "control.scalar" not in product.busy
peak = ran.peaks.operations
assert product.of_peak == round(product.operations / (product.active * peak), 6) > 0.4, product
assert ran.of_peak == round(product.operations / (ran.span * peak), 6) < product.of_peak
assert by_label["relax.take (rows)"].busy["control.scalar"] == scalar

# What lies in memories: within their sizes, and in the time of the program.
for it in profile.allocations:
    size = ran.peaks.memories[it.memory].bytes
    assert 0 <= it.begin < it.end <= ran.span and (not size or it.offset + it.bytes <= size), it
assert {it.memory for it in profile.allocations} == {"dram", "spad", "wspad", "acc"}

executable.export_library("model.so")
subprocess.run(["strip", "-s", "model.so"], check=True)
(artifact,) = read_artifacts("model.so")
lines = artifact.program.splitlines()
begin = lines.index("# relax.matmul (product) | matmul")
end = lines.index("# relax.take (rows) | gather")
assert any(line.startswith("#   acc 0 to ") for line in lines[begin:end])
loops = [line for line in lines[begin:end] if line.startswith("#   for ") and line.endswith(":")]
assert loops and any(line.startswith("#     for ") and " = " in line for line in lines[begin:end])
assert any("  (scalar code, since the index " in line for line in lines[end:]), lines[end:]
assert sum(not line.startswith("#") for line in lines[begin:]) == int(lines[0].split()[1])
"""

TUNED = """
import json
import re
import subprocess
import sys
from pathlib import Path
import numpy as np
import tvm
import tvm_isa_npu
from tvm import relax

x = relax.Var("x", relax.TensorType((256, 96), "float32"))
weights = relax.const(np.random.default_rng(0).standard_normal((96, 128), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    with builder.dataflow():
        result = builder.emit_output(relax.op.nn.relu(relax.op.matmul(x, weights)))
    builder.emit_func_output(result)
model = builder.get()
inputs = np.random.default_rng(1).standard_normal((256, 96), "float32")
executable = tvm_isa_npu.compile_for_isa_npu(model)
(region,) = tvm_isa_npu.profile(executable, inputs).regions
result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(inputs)).numpy()
cycles = region.counters["cycles"]
if sys.argv[1:]:
    assert cycles == int(sys.argv[1]), cycles
    np.testing.assert_allclose(result, np.load("before.npy"), rtol=1e-5, atol=1e-4)
    sys.exit()
np.save("before.npy", result)
Path("tuned.json").write_text(tvm.ir.save_json(model))
command = [sys.executable, "-m", "tvm_isa_npu", "tune", "tuned.json", "--trials", "24"]
out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
before, after, path = re.search(r"all: (.*) cycles, (.*) as tuned; .* in (.*)\\n", out).groups()
before, after = (int(number.replace(",", "")) for number in (before, after))
assert after < before == cycles, (out, cycles)
try:
    assert len(Path(path).read_text().splitlines()) > 8
    subprocess.run([sys.executable, __file__, str(after)], check=True)
finally:
    Path(path).unlink()
"""


GUIDE = (ROOT / "docs/isa-guide.md").read_text().replace("acme", "isa").replace("ACME", "ISA")
"""The guide, for the backend that is built here anyway."""
STAGES = {
    title: text
    for title, text in re.findall(
        r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL
    )
    if "\n```bash\n" in text
}


@dataclass
class Reader:
    """The folder of someone who follows the guide, and the stages that are done."""

    folder: Path
    python: Path
    done: list[str] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.folder / "tvm-isa-npu"


@pytest.fixture(scope="module")
def whole(render: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Render the backend that is built, with a library beside the instructions."""
    project = tmp_path_factory.mktemp("whole") / "backend"
    shutil.copytree(render(backend_name="isa_npu", driver="isa"), project)
    shutil.copy(ROOT / "tests/overlays/library/vendor/library.cc", project / "vendor")
    (lines,) = blocks_of("docs/isa-guide.md", "cmake")
    with (project / "vendor/vendor.cmake").open("a") as file:
        file.write(lines)
    return project


@pytest.fixture(scope="module")
def reader(whole: Path, workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("guide")
    clone(folder / "scaffold", "copier.yml", "template", "docs/demo")
    # The compiler's cache has what the wheel was made of.
    python = workshop.environment(workshop.wheel(whole))
    run(python, "-m", "pip", "uninstall", "-q", "-y", "tvm-isa-npu")
    lend_packages(python)
    return Reader(folder, python)


def _add_instruction(project: Path) -> None:
    """Make the edits of the section about an instruction more."""
    (section,) = (text for title, text in STAGES.items() if "instruction, " in title)
    blocks = BLOCK.findall(section)
    count, instruction = (body for language, body in blocks if language == "py")
    (function,) = (body for language, body in blocks if language == "cpp")
    table, semantics = project / "vendor/isa.py", project / "vendor/isa_semantics.h"
    support.edit(table, "COUNT = Number(16, least=1)\n", count)
    table.write_text(f"{table.read_text()}\n\n{instruction}")
    support.edit(semantics, "}  // namespace", f"{function}\n}}  // namespace")


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_of_the_guide_ends_with_what_it_shows(reader: Reader, stage: str) -> None:
    if len(reader.done) != [*STAGES].index(stage):
        pytest.skip("an earlier stage failed")
    if "instruction, " in stage:
        _add_instruction(reader.project)
    place = reader.project if reader.done else None
    print(Part("\n" + STAGES[stage]).execute(reader.folder, reader.python, place))
    reader.done.append(stage)


@pytest.mark.slow
def test_mistakes_are_caught_and_mutated_programs_stay_within_their_memories(
    reader: Reader,
) -> None:
    """Of the table that the guide has changed."""
    if len(reader.done) != len(STAGES):
        pytest.skip("a stage failed")
    tests = "engine/workbench/isa_emulator/tests/test_builds.py"
    command = (reader.python, "-m", "pytest", "-q", "-m", "thorough", "-k", "not plain", tests)
    out = run(*command, cwd=reader.project, NPU_FUZZ="1000")
    assert re.search(r"\n[5-9] passed", out) and "skipped" not in out, out


@pytest.mark.slow
def test_a_backend_with_an_instruction_set_builds_and_works(
    whole: Path, workshop: Workshop, tmp_path: Path
) -> None:
    project = whole
    python = workshop.environment(workshop.wheel(project))
    out = run(python, "-m", "tvm_isa_npu", "check", cwd=tmp_path, ISA_NPU_DRIVER="vendor")
    assert "All is well." in out
    assert_right_on_instructions(python, tmp_path)
    run(python, "-c", TWO_DRIVERS, cwd=tmp_path)
    run(python, "-c", WHAT_PROGRAMS_TELL, cwd=tmp_path, ISA_NPU_DRIVER="vendor")
    assert_code_is_that_of_the_guide(python, tmp_path)
    run(python, "-c", RUN_OF_PAGE.format(python=python_of("docs/isa-emulator.md")), cwd=tmp_path)
    (tmp_path / "tuned.py").write_text(TUNED)
    run(python, "tuned.py", cwd=tmp_path, ISA_NPU_DRIVER="vendor")
    assert_near_the_peak(python, tmp_path)
    copy_tests(project, tmp_path)
    out = run(
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "engine/backend/isa/tests"),
        "engine/workbench/isa_emulator/tests",
        cwd=tmp_path,
    )
    assert re.search(r"\n\d{3} passed", out), out


def assert_near_the_peak(python: Path, folder: Path) -> None:
    """Compare the shares of the peak on the example machine, which are the same each time."""
    module = "tvm_isa_npu.engine.workbench.isa_emulator.shares"
    out = run(python, "-m", module, "--trials", "3", cwd=folder)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    defaults, tuned = rows[2::2], rows[3::2]
    assert len(defaults) == 9 and all(row[0] == "tuned" for row in tuned), out
    for row, after in zip(defaults, tuned, strict=True):
        assert int(after[1].replace(",", "")) <= int(row[1].replace(",", "")), out
    of_peak = [int(row[2].rstrip("%")) for row in defaults]
    assert all(share >= least for share, least in zip(of_peak, (92, 90, 92, 90), strict=False)), out
    of_moves = [float(row[3]) for row in defaults[4:]]
    most = (1.34, 4.4, 1.1, 1.22, 1.3)
    assert all(1 <= it <= at_most for it, at_most in zip(of_moves, most, strict=True)), out


MODELS = ("digits", "encoder", "resnet", "mobilenet")
OPEN = ("digits", "encoder")


@pytest.mark.slow
def test_models_run_entirely_on_instructions(
    whole: Path, workshop: Workshop, tmp_path: Path
) -> None:
    for module in ("onnx", "onnxruntime", "torch", "torchao"):
        pytest.importorskip(module)
    python = workshop.environment(workshop.wheel(whole))
    support.lend_packages(python)
    script = (ROOT / "tests/run_on_instructions.py", "tvm_isa_npu", tmp_path, *MODELS)
    out = run(python, *script, cwd=tmp_path, ISA_NPU_DRIVER="vendor")
    found = json.loads(out.splitlines()[-1])
    forms = ("float", "int8", "open")
    has_form = [(name, form) for name in MODELS for form in forms if form != "open" or name in OPEN]
    assert list(found) == [f"{name} {form}" for name, form in has_form]
    for name, model in found.items():
        print(name, model)
        assert model["on_host"] == [] and model["regions"] == 1 and model["on_npu"] > 19, name
        assert model["scalar_share"] < 0.05, name
        # Norms and softmax are real numbers in int8 models, too.
        is_exact = name.endswith("int8") and not name.startswith("encoder")
        assert model["error"] <= (0 if is_exact else 1e-5), name
        assert model["same_without_compiler"] and model["same_over_rpc"], name
        if name.endswith("int8"):
            assert any("quantized" in label for label in model["composites"]), name


def assert_code_is_that_of_the_guide(python: Path, folder: Path) -> None:
    """Compare what some ops become with the rows of the guide, which has all."""
    section = GUIDE.partition("\n## What runs on the example machine\n")[2]
    rows = re.findall(r"^\| ([^|]+) \| (`.*`) \|$", section, re.MULTILINE)
    of_op = {op: about for about, names in rows for op in re.findall(r"`(\w+)`", names)}
    chosen = ("matmul", "softmax", "concat", "cumsum")
    out = run(python, ROOT / "tests/run_isa_ops.py", "tvm_isa_npu", *chosen, cwd=folder)
    assert json.loads(out.splitlines()[-1]) == {op: of_op[op] for op in chosen}
    assert len(of_op) == len(load_catalog(ROOT))


def assert_right_on_instructions(python: Path, folder: Path) -> None:
    """Run cases of each kind by TVM's loops as instructions."""
    kit = (python, "-m", "tvm_isa_npu", "conformance", *IN_ONE_PROCESS, "--output", folder / "kit")
    ops = ("matmul-square", "conv2d-", "softmax-", "layer_norm-", "gelu-", "cumsum-", "topk-")
    chosen = [word for op in ops for word in ("--filter", f"ops/{op}")]
    chosen += ["--filter", "quantized/conv2d-", "--filter", "quantized/add-", "--filter", "states/"]
    run(
        *(*kit, "--suite", "ops,quantized,states", *chosen),
        cwd=folder,
        ISA_NPU_DRIVER="vendor",
    )
    found = json.loads((folder / "kit/conformance.json").read_text())
    counts = {suite: row["passed"] for suite, row in found["suites"].items()}
    assert counts["ops"] > 100 and counts["quantized"] > 40 and counts["states"] > 10, counts
    # Of open sizes only what mixes rows has no instructions.
    declined = [case["reason"] for case in found["cases"] if case["status"] == "declined"]
    assert all("the dimension of an open size" in reason for reason in declined), declined
