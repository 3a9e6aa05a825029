"""An opcode of vector programs is added in four files: one of them is the list of all opcodes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from support import ROOT, edit, run

HEADER = "backend/include/npu_driver.h"
LIST = "backend/include/driver_kit/vector_opcodes.h"
LOWERING = "backend/lowerings/binary.cc"
TEST = "workbench/tests/cpp/driver_test.cc"
MOST_FILES = 4

DISTANCE = r"""Value Distance(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Distance(x[0], x[1]);
}

REGISTER_ELEMENTWISE("sample.distance", Distance).AsStep(NPU_STEP_DISTANCE);

}  // namespace
}  // namespace npu
"""
VALUES = r"""
TEST(DistancesOfNumbers) {
  Net net;
  npu_tensor a = net.Input({3}, NPU_INT64);
  npu_tensor b = net.Input({3}, NPU_INT64);
  npu_tensor real = net.Input({3});
  net.Output(net.Elementwise(Binary(NPU_VECTOR_DISTANCE, a, b), {3}, NPU_INT64));
  net.Output(net.Elementwise(Binary(NPU_VECTOR_DISTANCE, a, real), {3}));
  Machine machine(net.Finish());
  // Beyond what float32 and float64 hold.
  machine.Input(0, {3}, std::vector<int64_t>{(int64_t{1} << 53) + 1, -7, 4});
  machine.Input(1, {3}, std::vector<int64_t>{0, 5, 9});
  machine.Input(2, {3}, Floats{0, 0.5, 5.25});
  std::vector<int64_t> whole;
  Floats distances;
  machine.Output(0, {3}, &whole);
  machine.Output(1, {3}, &distances);
  machine.Run();
  CHECK(whole == (std::vector<int64_t>{(int64_t{1} << 53) + 1, 12, 5}));
  CHECK_VALUES(distances, {0x1p53f, 7.5, 1.25});
  const char* text = nullptr;
  CHECK_EQ(run.describe(machine.program(), &text), NPU_OK);
  CHECK(std::string(text).find("= distance v0, v1}") != std::string::npos);
}

TEST(VectorProgramsOfIntegersAreExact) {"""
RESCALE = "  OTHER(RESCALE, rescale, 3, false, NPU_STEP_RESCALE)"
PATCHES = [
    (
        HEADER,
        "  NPU_VECTOR_RESCALE = 29,\n",
        "  NPU_VECTOR_RESCALE = 29,\n  NPU_VECTOR_DISTANCE = 30,\n",
    ),
    (HEADER, "NPU_VECTOR_OPCODE_COUNT 30", "NPU_VECTOR_OPCODE_COUNT 31"),
    (HEADER, "  NPU_STEP_RESCALE = 46,\n", "  NPU_STEP_RESCALE = 46,\n  NPU_STEP_DISTANCE = 47,\n"),
    (
        LIST,
        RESCALE,
        f"{RESCALE} \\\n"
        "  BOTH(DISTANCE, Distance, distance, 2, std::fabs(a - b), \\\n"
        "       Wrapped(a > b ? Bits(a) - Bits(b) : Bits(b) - Bits(a)))",
    ),
    (LOWERING, "}  // namespace\n}  // namespace npu\n", DISTANCE),
    (
        TEST,
        "      {NPU_VECTOR_ADD, [](float a, float b) { return a + b; }},\n",
        "      {NPU_VECTOR_ADD, [](float a, float b) { return a + b; }},\n"
        "      {NPU_VECTOR_DISTANCE, [](float a, float b) { return std::fabs(a - b); }},\n",
    ),
    (TEST, "\nTEST(VectorProgramsOfIntegersAreExact) {", VALUES),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the engine, and add an opcode to it."""
    copy = tmp_path_factory.mktemp("opcode") / "engine"
    shutil.copytree(ROOT / "template/engine", copy)
    for file, old, new in PATCHES:
        edit(copy / file, old, new)
    return copy


def test_it_takes_few_files() -> None:
    assert len({file for file, _, _ in PATCHES}) <= MOST_FILES


@pytest.mark.slow
@pytest.mark.usefixtures("workshop")  # For its cache of objects.
def test_the_emulator_computes_it_and_lowerings_use_it(engine: Path, tmp_path: Path) -> None:
    settings = {
        "CMAKE_BUILD_TYPE": "Plain",  # Unoptimized, it compiles in a quarter of the time.
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_CXX_COMPILER": shutil.which("g++") or "c++",
    }
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    run("cmake", "-S", engine, "-B", tmp_path, "-G", "Ninja", *defines)
    targets = ("npu_driver_test", "npu_lowering_objects")
    assert "warning:" not in run("cmake", "--build", tmp_path, "--target", *targets)
    tests = ("DistancesOfNumbers", "VectorProgramsKnowEveryOpcode")
    assert "2 tests, 0 failures" in run(tmp_path / "npu_driver_test", *tests)
