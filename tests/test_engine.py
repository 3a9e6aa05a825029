"""Builds, tests and lints the C++ engine in the template, without a render."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from support import ROOT, Workshop, attempt, run

pytestmark = pytest.mark.slow

ENGINE = ROOT / "template/engine"
TESTS = {
    *("compile_test", "driver_test", "fuzz_test", "kernels_test"),
    *("layout_test", "program_test", "runtime_test", "scales_test"),
}


def configure(build: Path, source: Path = ENGINE, **defines: str) -> None:
    settings = {"CMAKE_BUILD_TYPE": "Release", "Python_EXECUTABLE": sys.executable, **defines}
    run(
        *("cmake", "-S", source, "-B", build, "-G", "Ninja"),
        *(f"-D{name}={value}" for name, value in settings.items()),
    )


BELOW = """
cmake_minimum_required(VERSION 3.20)
project(npu_engine LANGUAGES CXX)
include(engine/CMakeLists.txt)
"""


def test_it_builds_without_warnings_and_passes_its_tests(
    tmp_path: Path, workshop: Workshop
) -> None:
    # In a tree like a backend's, and by the compiler that pip mostly chooses for those, ccache has
    # most objects.
    shutil.copytree(ENGINE, tmp_path / "engine")
    shutil.copytree(ENGINE / "tests/cpp/unrendered", tmp_path / "src")
    (tmp_path / "CMakeLists.txt").write_text(BELOW)
    build = tmp_path / "build/engine"
    compiler = shutil.which("g++") or "c++"
    configure(build, tmp_path, NPU_NAMES_DIR=str(tmp_path / "src"), CMAKE_CXX_COMPILER=compiler)
    # Also what ccache has from builds that let warnings pass, which it repeats.
    assert "warning:" not in run("cmake", "--build", build)
    out = run("ctest", "--test-dir", build, "--output-on-failure")
    assert all(f"{test} " in out for test in TESTS), out
    # Older versions of ctest also print how many tests failed.
    assert re.search(rf"^100% tests passed.* out of {len(TESTS)}$", out, re.MULTILINE), out
    # As in docs/maintaining.md, with another count and seed.
    run("cmake", "--build", build, "--target", "npu_fuzz_test")
    run(build / "npu_fuzz_test", "20", "7")


WITHOUT_EMULATOR = """
cmake_minimum_required(VERSION 3.20)
project(board LANGUAGES CXX)
set(NPU_PACKAGE tvm_acme_npu)
set(NPU_NAMES_DIR "${{CMAKE_CURRENT_SOURCE_DIR}}")
set(NPU_VENDOR_CMAKE "${{CMAKE_CURRENT_SOURCE_DIR}}/vendor.cmake")
set(NPU_EMULATOR OFF)
include("{engine}/engine.cmake")
get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
message(STATUS "targets: ${{targets}}")
"""


@pytest.mark.parametrize("default", ["", "vendor"])
def test_a_build_without_the_emulator_needs_another_default_driver(
    tmp_path: Path, default: str
) -> None:
    """It used to contain the emulator all the same."""
    (tmp_path / "CMakeLists.txt").write_text(WITHOUT_EMULATOR.format(engine=ENGINE))
    (tmp_path / "driver.cc").write_text("int main() {}\n")
    lines = ['set(NPU_VENDOR_DRIVER_SOURCES "${CMAKE_CURRENT_LIST_DIR}/driver.cc")']
    lines += [f"set(NPU_VENDOR_DEFAULT_DRIVER {default})"] * bool(default)
    (tmp_path / "vendor.cmake").write_text("\n".join(lines))
    done = attempt("cmake", "-S", tmp_path, "-B", tmp_path / "build")
    if default:
        assert done.returncode == 0, done.stdout
        assert "targets: tvm_acme_npu_options;tvm_acme_npu_driver\n" in done.stdout
    else:
        assert done.returncode != 0, done.stdout
        sentence = " ".join(done.stdout.split())
        assert "leaves it out (USE_ACME_NPU_EMULATOR is OFF)" in sentence
        assert "USE_ACME_NPU_DRIVER=vendor or NPU_VENDOR_DEFAULT_DRIVER in" in sentence


def test_clang_tidy_has_no_complaint(tmp_path: Path) -> None:
    # Each source alone: a joined one may use what the sources before it include.
    configure(tmp_path, CMAKE_UNITY_BUILD="OFF")
    sources = [
        path
        for name in ("backend/*", "workbench/emulator", "workbench/tests")
        for path in sorted(ENGINE.glob(f"{name}/**/*.cc"))
        if "examples" not in path.parts
    ]
    assert len(sources) > 60
    # GCC 12's standard library sorts with what C++17 deprecates.
    extra = ("--extra-arg=-std=c++17", "--extra-arg=-Wno-deprecated-declarations")
    run("clang-tidy", "-quiet", *extra, "-p", tmp_path, *sources, cwd=ENGINE)
    # Nothing in the engine includes the driver kit: drivers do.
    kit = tmp_path / "kit.cc"
    headers = ("build", "run", "model", "tool_graph")
    kit.write_text("".join(f'#include "driver_kit/{name}.h"\n' for name in headers))
    config = f"--config-file={ENGINE / '.clang-tidy'}"
    run("clang-tidy", "-quiet", config, kit, "--", "-std=c++17", f"-I{ENGINE / 'backend/include'}")
