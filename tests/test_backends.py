"""Builds and runs backends: from wheels and sources, in pairs, with sanitizers, and broken."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import support
from support import Workshop, run

pytestmark = pytest.mark.slow

VARIANTS: dict[str, dict[str, Any]] = {
    "a CNN subset": {"backend_name": "add_on", "op_preset": "cnn"},
    "a transformer subset": {
        "backend_name": "npu2",
        "op_preset": "transformer",
        "bind_constants": False,
        "on_decline": "error",
    },
    "a single op": {"backend_name": "poolside", "op_preset": "custom", "ops": ["conv2d"]},
}
SINGLE = VARIANTS["a single op"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_wheel_installs_into_a_clean_environment_and_passes_its_own_tests(
    variant: str, render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = render(**VARIANTS[variant])
    wheel = workshop.wheel(project)
    python = workshop.environment(wheel)
    package = f"tvm_{VARIANTS[variant]['backend_name']}"
    assert re.fullmatch(rf"{package}-0\.1\.0-py3-none-\w+\.whl", wheel.name)
    run(python, "-W", "error::UserWarning", "-c", "import tvm", cwd=tmp_path)
    run(python, "-m", package, "check", cwd=tmp_path)
    # No file contains a path of the machine that built it.
    with zipfile.ZipFile(wheel) as archive:
        for name in (name for name in archive.namelist() if name.endswith(".so")):
            found = re.search(rb"[^\0]*/engine/(backend|workbench)/", archive.read(name))
            assert found is None, f"{name}: {found}"
    # Without the sources, so that the tests import the installed package.
    support.copy_tests(project, tmp_path)
    # The suites of ONNX and torch also only need the selected ops.
    support.lend_packages(python)
    # With those of test_subsets.py, most files run with a preset or with random ops.
    tests = support.share_of_tests([*VARIANTS].index(variant), 2 * len(VARIANTS))
    run(python, "-m", "pytest", "-q", *tests, cwd=tmp_path)


def test_the_sdist_builds_as_pip_builds_it(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(render(**SINGLE), project)
    run(sys.executable, "-m", "build", "-q", "--outdir", tmp_path / "dist", project)
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with tarfile.open(sdist) as archive:
        shipped = {
            member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()
        }
    expected = {
        name for name in support.contents(render(**SINGLE)) if not name.startswith(".github")
    }
    assert shipped == expected | {"PKG-INFO"}

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {name.partition("/")[2] for name in names if name.startswith("tvm_poolside/")}
    tree = render(**SINGLE)
    modules = {
        prefix + name
        for prefix, folder in (
            ("", "python/tvm_poolside"),
            ("engine/", "engine"),
            ("vendor/", "vendor"),
        )
        for name in support.contents(tree / folder)
        if not prefix or name.endswith(PYTHON_AND_DATA)
        if not {"tests", "benchmarks", "conftest.py", "ruff.toml"} & {*Path(name).parts}
    }
    layers = ("codegen", "runtime", "emulator", "emulator_build")
    libraries = {f"libtvm_poolside_{layer}.so" for layer in layers}
    assert package == modules | libraries
    info = {name for name in names if not name.startswith("tvm_poolside/")}
    assert all(name.startswith("tvm_poolside-0.1.0.dist-info/") for name in info), info
    # No path of the machine that built it.
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            assert str(tmp_path).encode() not in archive.read(name), name


PYTHON_AND_DATA = (".LICENSE", ".css", ".html", ".js", ".json", ".py", ".toml")

TWO_AT_ONCE = """
import numpy as np
import tvm
from tvm import relax
import tvm_{second}
import tvm_{first}

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((4, 8), "float32"))
weight = np.arange(64, dtype="float32").reshape(8, 8) / 64 - 0.5
with builder.function("main", [x]):
    with builder.dataflow():
        product = builder.emit(relax.op.matmul(x, relax.const(weight)))
        result = builder.emit_output(relax.op.nn.relu(product))
    builder.emit_func_output(result)
model = builder.get()

machines = {{}}
for name, package in (("{first}", tvm_{first}), ("{second}", tvm_{second})):
    report = package.offload_report(getattr(package, "partition_for_" + name)(model))
    assert all(op.placement == "npu" for op in report.ops), report
    executable = getattr(package, "compile_for_" + name)(model)
    executable.export_library(name + ".so")
    machines[name] = [
        relax.VirtualMachine(executable, tvm.cpu()),
        relax.VirtualMachine(tvm.runtime.load_module(name + ".so"), tvm.cpu()),
    ]
generator = np.random.default_rng(0)
for _ in range(3):
    value = generator.standard_normal((4, 8), dtype="float32")
    for pair in machines.values():
        for machine in pair:
            found = machine["main"](tvm.runtime.tensor(value)).numpy()
            np.testing.assert_allclose(found, np.maximum(value @ weight, 0), rtol=1e-5, atol=1e-5)
print("right")
"""


def test_two_backends_work_side_by_side_in_one_process(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    wheels = [
        workshop.wheel(render(**VARIANTS[name]))
        for name in ("a CNN subset", "a transformer subset")
    ]
    python = workshop.environment(*wheels)
    for first, second in (("add_on", "npu2"), ("npu2", "add_on")):
        script = tmp_path / f"{first}_first.py"
        script.write_text(TWO_AT_ONCE.format(first=first, second=second))
        assert run(python, script, cwd=tmp_path).splitlines()[-1] == "right"
    for name in ("add_on", "npu2"):
        run(python, "-m", f"tvm_{name}", "check", cwd=tmp_path)


def test_an_editable_install_rebuilds_and_a_backend_that_loses_strides_fails_its_own_tests(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(render(**SINGLE), project)
    python = workshop.environment(workshop.wheel(project))
    run(python, "-m", "pip", "uninstall", "-q", "-y", "tvm-poolside")
    run(python, "-m", "pip", "install", "-q", "scikit-build-core>=1.0,<2", "cmake", "ninja")
    on_path = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    run(
        *(python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"),
        *("-C", "editable.rebuild=true", "-e", project),
        **on_path,
    )
    tests = (python, "-m", "pytest", "-q", "-x", "engine/backend/tests/test_ops.py", "-k", "conv2d")
    run(*tests, cwd=project, **on_path)
    # Tests that copy the package know that a copy is not what such an install imports.
    copies = ("engine/backend/tests/test_check_command.py", "-k", "customers_package")
    run(python, "-m", "pytest", "-q", *copies, cwd=project, **on_path)

    # TVM's own example makes this mistake.
    lowering = project / "engine/backend/lowerings/convolution.h"
    changed, count = re.subn(r"(strides\[i\] = )strides[^;]+;", r"\g<1>1;", lowering.read_text())
    assert count == 1, "the lowering of the convolution sets its strides elsewhere now"
    lowering.write_text(changed)
    done = support.attempt(*tests, cwd=project, **on_path)
    assert done.returncode == 1, done.stdout
    assert re.search(r"^FAILED .*stride", done.stdout, re.MULTILINE), done.stdout


def test_a_build_behind_one_for_a_board_has_the_codegen_again(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(render(backend_name="kept", op_preset="custom", ops=["relu"]), project)
    names = []
    # The build folder is kept; without optimization it is filled in half of the time.
    flags = "-O0"
    if "Free Software Foundation" in run("c++", "--version"):
        # Two types of one name make the linker mix up their functions, unless these are inlined.
        flags += " -flto -Werror=odr"
    for switches in ({"CODEGEN": "OFF"}, {}):
        wheel = workshop.build(project, CMAKE_CXX_FLAGS_RELEASE=flags, **switches)
        libraries = (Path(name).name for name in zipfile.ZipFile(wheel).namelist())
        names.append({name for name in libraries if name.startswith("libtvm_kept_")})
    run_halves = {f"libtvm_kept_{role}.so" for role in ("runtime", "emulator")}
    build_halves = {f"libtvm_kept_{role}.so" for role in ("codegen", "emulator_build")}
    assert names == [run_halves, run_halves | build_halves]


def test_the_driver_the_runtime_and_mutated_artifacts_are_clean_under_sanitizers(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = tmp_path / "sanitized"
    # One op for each engine and family.
    ops = ["matmul", "conv2d", "max_pool2d", "softmax", "relu", "add", "mean", "concat", "quantize"]
    shutil.copytree(render(backend_name="clean", op_preset="custom", ops=ops), project)
    compiler = shutil.which("c++")
    assert compiler
    # Compiling is most of this test, and takes 0.6 of the time that it takes with -O1.
    wheel = workshop.build(project, SANITIZE="address,undefined", CMAKE_CXX_FLAGS_RELEASE="-O0")
    (build,) = (project / "build").iterdir()
    options = {
        # TVM and Python leak at exit, and libraries of other origin may define the same names.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    leaks_too = {**options, "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1"}
    # Without compile_test and kernels_test, which take a quarter of an hour.
    tests = ("driver_test", "layout_test", "program_test", "runtime_test", "scales_test")
    targets = [f"npu_{test}" for test in (*tests, "fuzz_test")]
    run("cmake", "-DUSE_CLEAN_TESTS=ON", build)
    run("cmake", "--build", build, "--target", *targets)
    ctest = ("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error")
    run(*ctest, "-R", "|".join(tests), **leaks_too)
    (fuzz,) = build.rglob("npu_fuzz_test")
    assert "6000 mutations: " in run(fuzz, "6000", "1", cwd=build, **leaks_too)
    libraries = [
        run(compiler, f"-print-file-name=lib{name}.so").strip() for name in ("asan", "ubsan")
    ]
    if not all(Path(library).is_absolute() for library in libraries):
        pytest.skip("the driver is clean; the rest needs the sanitizers of GCC as libraries")
    python = workshop.environment(wheel)
    run(
        *(python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *(project / file for file in support.engine_tests("runtime", "ops", "artifact", "overlap")),
        **{**options, "LD_PRELOAD": ":".join(libraries)},
        cwd=tmp_path,
    )
