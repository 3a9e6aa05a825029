"""Helpers that several test files share."""

from __future__ import annotations

import ctypes.util
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import copier
import pytest
import yaml

from npu_scaffold.catalog import load_catalog, load_families
from npu_scaffold.snippets import SNIPPETS, snippets

ROOT = Path(__file__).resolve().parents[1]
CPP = {".h", ".cc", ".inc"}

EVERY = os.environ.get("EVERY_TEST") == "1"
"""Whether to run what is left out of most runs to save time."""

_MISSING = [name for name in ("XNNPACK", "pthreadpool") if not ctypes.util.find_library(name)]
# The libraries alone may be there for other programs.
_MISSING += [
    name for name in ("xnnpack.h", "pthreadpool.h") if not Path("/usr/include", name).exists()
]
NEEDS_XNNPACK = pytest.mark.skipif(
    bool(_MISSING),
    reason=f"needs {', '.join(_MISSING)}: install libxnnpack-dev and libpthreadpool-dev",
)
"""Marks tests of an SDK that builds graphs."""

_MISSING_ARMNN = [
    package
    for package, pattern in (
        ("libarmnn-dev", "include/armnn/ArmNN.hpp"),
        ("libarmnn-cpuref-backend22", "lib/*/armnn*/Arm_CpuRef_backend.so"),
    )
    if not any(Path("/usr").glob(pattern))
]
NEEDS_ARMNN = pytest.mark.skipif(
    bool(_MISSING_ARMNN), reason=f"needs Arm NN: install {' and '.join(_MISSING_ARMNN)}"
)
"""Marks tests of an SDK with scales at tensors, which says itself what it supports."""


def copy_template(destination: Path) -> None:
    """Copy what Copier needs of this repository."""
    shutil.copytree(
        ROOT / "template",
        destination / "template",
        ignore=shutil.ignore_patterns("__pycache__", ".*_cache"),
        dirs_exist_ok=True,
    )
    shutil.copy(ROOT / "copier.yml", destination)


def copy_questions(destination: Path) -> Path:
    """Copy only the questions; a render then consists of the answers file."""
    for name in ("_catalog", "_macros"):
        shutil.copytree(ROOT / "template" / name, destination / "template" / name)
    (remembered,) = (ROOT / "template").glob("*answers_file*")
    shutil.copy(remembered, destination / "template")
    shutil.copy(ROOT / "copier.yml", destination)
    return destination


def render(template: Path, destination: Path, **answers: Any) -> Path:
    """Render without trust; missing answers take their defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copier.run_copy(
            str(template), str(destination), data=answers, defaults=True, quiet=True, unsafe=False
        )
    return destination


def files(root: Path) -> list[Path]:
    """List the files of a tree, without Git's own."""
    return sorted(
        path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts[:-1]
    )


def sources(root: Path) -> list[Path]:
    """List the files of a folder of this repository that Git does not ignore."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=root)
    return sorted(path for name in listed.split("\0") if name and (path := root / name).is_file())


def contents(root: Path) -> dict[str, bytes]:
    """Read a tree."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files(root)}


def answers(project: Path) -> dict[str, Any]:
    """Read the answers file of a rendered tree."""
    remembered: dict[str, Any] = yaml.safe_load((project / ".copier-answers.yml").read_text())
    return remembered


HANGS = 2400.0
"""After how many seconds a command is a failure; the longest takes a quarter of an hour."""


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command that must succeed; if it fails, the message contains its output."""
    done = attempt(*command, cwd=cwd, **environment)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def attempt(
    *command: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that may fail."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "VIRTUAL_ENV")
    }
    # The tools that were installed with these tests: cmake, ninja, ccache, ruff, clang-format.
    clean["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    # Threads of PyTorch spin while they wait.
    clean.setdefault("OMP_NUM_THREADS", "1")
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=HANGS,
        text=True,
        check=False,
    )


def declining(condition: str, reason: str) -> str:
    """Return a script that lets the reference backend's driver decline more.

    `condition`: of what it is asked about, whose `ops` and `types` are sets of names.
    """
    return f"""
import tvm
import tvm_example_npu
import tvm_ffi
from tvm_example_npu.engine.backend.shared.backend import BACKEND

NAME = f"{{BACKEND}}.codegen.decline_reason"
decline_reason = tvm_ffi.get_global_func(NAME)


def decline(function, *others):
    ops, types = set(), set()

    def visit(expr):
        if isinstance(expr, tvm.relax.Call) and isinstance(expr.op, tvm.ir.Op):
            ops.add(expr.op.name)
        ty = getattr(expr, "ty", None)
        types.update([str(ty.dtype)] if isinstance(ty, tvm.relax.TensorType) else [])

    tvm.relax.analysis.post_order_visit(function, visit)
    return {reason!r} if {condition} else decline_reason(function, *others)


tvm_ffi.register_global_func(NAME, decline, override=True)
"""


def build_kit_driver(source: Path, library: Path, *switches: str) -> None:
    """Compile a driver on the kit of the template, without a warning."""
    library.parent.mkdir(exist_ok=True)
    flags = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    include = ROOT / "template/engine/backend/include"
    run("c++", *flags, *switches, "-I", include, "-o", library, source)


def git(where: Path, *arguments: str) -> str:
    """Run Git, and return what it prints."""
    return run("git", *arguments, cwd=where).strip()


def commit(where: Path, message: str) -> None:
    """Commit all changes, perhaps none."""
    git(where, "add", "--all")
    git(where, "commit", "-q", "--allow-empty", "-m", message)


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text of a file where it first occurs, which it must."""
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1))


def add_lowering(project: Path, text: str) -> None:
    """Add a vendor's lowering to an unchanged backend."""
    (project / "vendor/lowerings").mkdir()
    (project / "vendor/lowerings/own.cc").write_text(text)
    (project / "vendor/vendor.cmake").write_text(
        'set(NPU_VENDOR_LOWERINGS "${CMAKE_CURRENT_LIST_DIR}/lowerings/own.cc")\n'
    )


def wrap_emulator(
    project: Path, workshop: Workshop, driver: Path, lowering: str, prelude: str
) -> Callable[..., str]:
    """Build a backend in its tree that loads the emulator through a driver in C or C++.

    The build includes a vendor's lowering. The result runs a script after `prelude`.
    """
    name = answers(project)["backend_name"]
    add_lowering(project, lowering)
    python = workshop.environment(workshop.build(project))
    package = site_packages(python) / f"tvm_{name}"
    drivers = project.parent / "drivers"
    drivers.mkdir()
    libraries = (f"libtvm_{name}_emulator.so", f"libtvm_{name}_emulator_build.so")
    compiler = ("cc", "-std=c11") if driver.suffix == ".c" else ("c++", "-std=c++17")
    for library in libraries:
        run(
            *(*compiler, "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            *(f'-DEMULATOR="{libraries[0]}"', f'-DEMULATOR_BUILD="{libraries[1]}"'),
            *("-I", project / "engine/backend/include", driver, "-o", drivers / library, "-ldl"),
        )

    def run_script(script: str, unwrapped: bool = False, **environment: str) -> str:
        path = project.parent / "script.py"
        path.write_text(prelude + script)
        known = {
            "EMULATOR_DIR": str(package),
            f"{name.upper()}_DRIVER_DIR": str(package if unwrapped else drivers),
            "EMULATOR_LOG": str(project.parent / "log"),
        }
        return run(python, path, cwd=project.parent, **known, **environment)

    return run_script


def site_packages(python: Path) -> Path:
    """Return where an environment, given by its Python, has its packages."""
    (found,) = (python.parent.parent / "lib").glob("python*/site-packages")
    return found


def lend_packages(python: Path) -> None:
    """Let an environment import our torch, onnx and LiteRT, if any, after its own packages."""
    found = (importlib.util.find_spec(name) for name in ("torch", "onnx", "ai_edge_litert"))
    places = {str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin}
    # By this name, hypothesis knows that these are not the tested modules, all of which it reads.
    lent = python.parent.parent / "lent/site-packages"
    lent.mkdir(parents=True)
    for place in sorted(places):
        for item in Path(place).iterdir():
            # 'import tvm' would also load a backend installed here.
            entry_points = item / "entry_points.txt"
            is_backend = entry_points.is_file() and "[tvm.backends]" in entry_points.read_text()
            if item.suffix != ".pth" and not is_backend and not (lent / item.name).exists():
                (lent / item.name).symlink_to(item)
    # If torch is installed, TVM imports it, which takes seconds: too long for small scripts, and
    # for suites that use none of these packages.
    argv = "' '.join(sys.orig_argv)"
    few_lines = f"' check' in {argv} or ' -c ' in {argv} and 'conformance.workers' not in {argv}"
    suites = f"' --suite ' in {argv} and 'models' not in {argv} and 'onnx' not in {argv}"
    (site_packages(python) / "after.pth").write_text(
        f"import sys; {few_lines} or {suites} or sys.path.append({str(lent)!r})\n"
    )


TOSA_TOOLS = "tosa-tools==2026.8.0"


def install_apart(folder: Path, *packages: str) -> Path:
    """Install packages into an environment of their own, since their NumPy is older than TVM's."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "-q", *packages)
    return folder


def lay_over(skeleton: Path, overlay: Path, project: Path) -> Path:
    """Copy a rendered backend, with files of a vendor in place of seeds."""
    shutil.copytree(skeleton, project)
    shutil.copytree(overlay, project / "vendor", dirs_exist_ok=True)
    return project


def install_without_emulator(project: Path, workshop: Workshop) -> Path:
    """Build a backend for its vendor's driver alone; return the Python that has it."""
    with (project / "vendor/vendor.cmake").open("a") as file:
        file.write("set(NPU_VENDOR_DEFAULT_DRIVER vendor)\n")
    python = workshop.environment(workshop.build(project, EMULATOR="OFF"))
    lend_packages(python)
    return python


WINGS = ("engine/backend/tests", "engine/workbench/tests")
"""Where a backend has the engine's tests."""


def engine_tests(*names: str) -> list[str]:
    """Return the files of the engine's tests about some subjects, from a backend's top."""
    return [
        f"{wing}/test_{name}.py"
        for name in names
        for wing in WINGS
        if (ROOT / "template" / wing / f"test_{name}.py").is_file()
    ]


def share_of_tests(number: int, shares: int) -> list[str]:
    """Return a part of the engine's tests, and the vendor's; similar backends share them out."""
    files = sorted(
        str(file.relative_to(ROOT / "template"))
        for wing in WINGS
        for file in (ROOT / "template" / wing).glob("test_*.py")
    )
    return [*files[number % shares :: shares], "vendor/tests"]


def copy_tests(project: Path, destination: Path) -> None:
    """Copy the tests of a backend, and the files that name it, without its sources.

    There, the tests import the installed package.
    """
    isa = ("engine/backend/isa/tests", "engine/workbench/isa_emulator/tests")
    for name in ("engine/tests", *WINGS, *isa, "vendor/tests"):
        if (project / name).is_dir():
            shutil.copytree(project / name, destination / name)
    (names,) = project.glob("python/*/_backend.py")
    for file in (names, project / "pyproject.toml", project / "engine/conftest.py"):
        copy = destination / file.relative_to(project)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)


WITHOUT_SUITES = (
    "-k",
    "not test_the_op_suite and not test_the_composite_suite and not test_the_suite_of "
    "and not test_the_driver_takes_something",
)
"""Tests that pytest skips because the conformance kit runs the same suites in full."""


IN_ONE_PROCESS = ("--jobs", "0")
"""How the conformance kit runs without workers, each of which would import TVM once more.

Not with an SDK that might end the process, nor where a page tells users how to run it.
"""


def assert_quantizing_loses_no_macs(python: Path, package: str, models: str, cwd: Path) -> None:
    """Compare the MACs of models on the NPU, in float and quantized for the backend.

    `models`: "small", the models of the conformance kit, or "large", which must be entirely on it.
    """
    out = run(python, ROOT / "tests/run_macs.py", package, models, cwd=cwd)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    print(json.dumps(found, indent=1))
    assert len(found) == (16 if models == "small" else 2)
    for name, (before, after, kinds) in found.items():
        assert after >= (before if models == "small" else 1.0) > 0, name
        products = [kind for kind in kinds if "on the host" not in kind]
        assert any(kind.startswith("quantized_") for kind in products), name
        if models == "large":
            assert all(kind.startswith("quantized_") for kind in products), name


BUILD_MODEL = """
from tvm import relax

def build(make, *shapes):
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*arguments)))
        builder.emit_func_output(result)
    return builder.get()
"""
"""The beginning of scripts that make models of one op."""


def write_family(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Write the file of a family of ops."""
    path.write_text(yaml.safe_dump({".family": path.stem, ".title": "Some", **entries}))


def write_snippets(template: Path) -> None:
    """Write the ops in Python, of a catalogue that need not be whole."""
    text = snippets(load_catalog(template), load_families(template))
    (template / SNIPPETS).write_text(text)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock across all test processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


GARBAGE = (20_000, 20)
"""Garbage collector thresholds: each full collection visits all modules of TVM and torch."""


def _share_tvm_ffi(packages: Path) -> None:
    """Let an environment have our tvm-ffi, if it is the same, so that builds there hit ccache."""
    ours = site_packages(Path(sys.executable))
    (version,) = packages.glob("apache_tvm_ffi-*.dist-info")
    if (ours / version.name).is_dir():
        shutil.rmtree(packages / "tvm_ffi")
        (packages / "tvm_ffi").symlink_to(ours / "tvm_ffi")


class Workshop:
    """Builds wheels and environments; those that are `shared`, once for all processes."""

    def __init__(self, root: Path, shared: Path) -> None:
        self.root = root
        self.shared = shared
        self._environments = 0

    def wheel(self, project: Path) -> Path:
        """Build the wheel of a rendered backend; equal trees are built once."""
        tree = hashlib.sha256(repr(sorted(contents(project).items())).encode()).hexdigest()
        # A copy, because a build writes into its tree.
        copy = self.shared / f"wheel-{tree[:16]}"
        with locked(copy.with_suffix(".lock")):
            built = [*copy.glob("dist/*.whl")]
            if not built:
                shutil.copytree(project, copy, dirs_exist_ok=True)
                built = [self.build(copy)]
        return built[0]

    def build(self, project: Path, **defines: str) -> Path:
        """Build a wheel in the tree itself, with warnings as errors.

        The backend's CMake options are given without their prefix USE_<NAME>_.
        """
        # Others wait for the first build, whose objects they find in the compiler's cache.
        first = self.shared / "first-build"
        with locked(first.with_suffix(".lock")):
            if not first.exists():
                wheel = self._build(project, **defines)
                first.touch()
                return wheel
        return self._build(project, **defines)

    def _build(self, project: Path, **defines: str) -> Path:
        prefix = f"USE_{answers(project)['backend_name'].upper()}_"
        settings = [
            f"-Ccmake.define.{'' if name.startswith('CMAKE_') else prefix}{name}={value}"
            for name, value in {"WERROR": "ON", **defines}.items()
        ]
        out = project / "dist"
        run(
            *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"),
            *(*settings, "-w", out, project),
        )
        (wheel,) = out.glob("*.whl")
        return wheel

    def environment(self, *wheels: Path) -> Path:
        """Make an environment with only the wheels and their requirements; return its Python.

        The requirements are installed once, as a user would, and linked into later environments.
        """
        base = self.shared / "environment"
        with locked(base.with_suffix(".lock")):
            if not (base / "ready").exists():
                run(sys.executable, "-m", "venv", base)
                python = base / "bin/python"
                run(python, "-m", "pip", "install", "-q", f"{wheels[0]}[test]")
                run(python, "-m", "pip", "uninstall", "-q", "-y", wheels[0].name.split("-")[0])
                _share_tvm_ffi(site_packages(python))
                (site_packages(python) / "garbage.pth").write_text(
                    f"import gc; gc.set_threshold(*{GARBAGE})\n"
                )
                (base / "ready").touch()
        self._environments += 1
        copy = self.root / f"environment{self._environments}"
        shutil.copytree(base, copy, copy_function=os.link, symlinks=True)
        # The first line of a script names the Python of its environment.
        first, own = f"#!{base}/".encode(), f"#!{copy}/".encode()
        for script in (copy / "bin").iterdir():
            if not script.is_symlink() and (text := script.read_bytes()).startswith(first):
                script.unlink()  # The file is a link, shared with other environments: replace it.
                script.write_bytes(own + text[len(first) :])
                script.chmod(0o755)
        python = copy / "bin/python"
        run(python, "-m", "pip", "install", "-q", "--no-deps", *wheels)
        return python
