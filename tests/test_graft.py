"""'npu-scaffold graft' and 'ungraft': a backend in TVM's tree.

Most tests use a small checkout with only what graft reads of TVM. If TVM_CHECKOUT is the path of a
real checkout with its submodules, a test compiles the reference backend in a clone of it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import support
from npu_scaffold.cli import main
from support import ROOT

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(tvm C CXX)
macro(tvm_option variable description value)
  if(NOT DEFINED ${variable})
    set(${variable} ${value} CACHE STRING ${description})
  endif()
endmacro()
include(cmake/utils/Library.cmake)
tvm_option(USE_SORT "Build with sort support" ON)
tvm_option(USE_NNAPI_CODEGEN "Build with NNAPI Codegen support" OFF)
tvm_option(USE_NNAPI_RUNTIME "Build with NNAPI runtime" OFF)
tvm_option(SUMMARIZE "Print CMake option summary after configuring" OFF)
set(TVM_LINKER_LIBS "")
add_library(tvm_runtime_extra SHARED)
set(CMAKE_CXX_STANDARD 20)
include(cmake/modules/contrib/CLML.cmake) # Must be before OpenCL.cmake
include(cmake/modules/contrib/NNAPI.cmake)
include(cmake/modules/Git.cmake)
add_library(tvm_ffi_header INTERFACE)
add_library(tvm_ffi::header ALIAS tvm_ffi_header)
target_sources(tvm_runtime_extra PRIVATE main.cc)
add_library(tvm_compiler SHARED main.cc)
target_link_libraries(tvm_compiler PRIVATE ${TVM_LINKER_LIBS})
"""
SETTINGS = """\
#!/usr/bin/env bash
cp ../cmake/config.cmake .
echo set\\(USE_SORT ON\\) >> config.cmake
echo set\\(USE_LLVM \\"/usr/bin/llvm-config-17 --link-static\\"\\) >> config.cmake
echo set\\(SUMMARIZE ON\\) >> config.cmake
"""
TVM = {
    ".gitignore": "__pycache__/\nbuild/\n",
    "CMakeLists.txt": CMAKE,
    "main.cc": "int main() { return 0; }\n",
    "cmake/modules/Git.cmake": "",
    "cmake/modules/contrib/CLML.cmake": "",
    "cmake/modules/contrib/NNAPI.cmake": "",
    "cmake/utils/Library.cmake": (
        "function(tvm_configure_target_library target)\n"
        "  set_target_properties(\n"
        '    ${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib"\n'
        "  )\n"
        "endfunction()\n"
    ),
    "python/tvm/relax/backend/contrib/__init__.py": "",
    "python/tvm/relax/backend/contrib/example_npu/__init__.py": "# TVM's own\n",
    "python/tvm/relax/backend/contrib/example_npu/patterns.py": "# TVM's own\n",
    "cmake/modules/contrib/ExampleNPU.cmake": "# TVM's own\n",
    "src/relax/backend/contrib/example_npu/codegen.cc": "// TVM's own\n",
    "src/relax/backend/contrib/utils.h": "",
    "src/runtime/extra/contrib/example_npu/example_npu_runtime.cc": "// TVM's own\n",
    "tests/python/contrib/test_example_npu.py": "",
    "tests/scripts/task_config_build_cpu.sh": SETTINGS,
}
NAME = "acme_npu"
PYTHON = f"python/tvm/relax/backend/contrib/{NAME}"
COMPILER = f"src/relax/backend/contrib/{NAME}"
RUNTIME = f"src/runtime/extra/contrib/{NAME}"
TESTS = f"tests/python/contrib/{NAME}"
ASF = "Licensed to the Apache Software Foundation (ASF) under one"


@pytest.fixture
def tvm(tmp_path: Path) -> Path:
    """Make a checkout with what graft reads of TVM."""
    top = tmp_path / "tvm"
    for name, text in TVM.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    support.run("git", "init", "-q", cwd=top)
    support.run("git", "add", "-A", cwd=top)
    support.run("git", "commit", "-qm", "Start", cwd=top)
    return top


@pytest.fixture
def backend(render: Callable[..., Path], tmp_path: Path) -> Path:
    """Render a backend that tests may edit."""
    rendered = render(backend_name=NAME, ops=["conv2d", "relu", "matmul"])
    return Path(shutil.copytree(rendered, tmp_path / "backend"))


def graft(tvm: Path, backend: Path, *more: str) -> int:
    return main(["graft", str(tvm), "--backend", str(backend), *more])


def status(tvm: Path) -> str:
    return support.run(
        "git", "status", "--porcelain", "--untracked-files=all", "--ignored", cwd=tvm
    )


def lines(tvm: Path, name: str) -> list[str]:
    return (tvm / name).read_text().splitlines()


def refusal(capsys: pytest.CaptureFixture[str], tvm: Path, *command: str) -> str:
    """Run a command that must fail and change nothing."""
    before = support.contents(tvm), status(tvm)
    capsys.readouterr()
    assert main([command[0], str(tvm), *command[1:]]) == 1
    assert (support.contents(tvm), status(tvm)) == before
    return capsys.readouterr().err


def test_files_are_where_tvm_keeps_such_backends(tvm: Path, backend: Path) -> None:
    (backend / "vendor/driver").mkdir(exist_ok=True)
    (backend / "vendor/driver/driver.cc").write_text("int driver;\n")
    (backend / "vendor/tables.json").write_text("{}\n")
    (backend / "vendor/tests/test_own.py").write_text("def test_own():\n    pass\n")
    assert graft(tvm, backend) == 0
    for place in (
        f"{PYTHON}/__init__.py",
        f"{PYTHON}/patterns.py",
        f"{PYTHON}/engine/workbench/conformance/op_cases/unary.json",
        f"{PYTHON}/README.md",
        f"{PYTHON}/engine/backend/regions/partition.py",
        f"{PYTHON}/engine/workbench/page/dagre.LICENSE.txt",
        f"{PYTHON}/vendor/capabilities.py",
        f"{PYTHON}/vendor/tables.json",
        f"{COMPILER}/codegen/codegen.cc",
        f"{COMPILER}/lowerings/convolution.cc",
        f"{RUNTIME}/backend.h",
        f"{RUNTIME}/engine.cmake",
        f"{RUNTIME}/include/npu_driver.h",
        f"{RUNTIME}/runtime/runtime.cc",
        f"{RUNTIME}/emulator/emulator.cmake",
        f"{RUNTIME}/vendor/vendor.cmake",
        f"{RUNTIME}/vendor/driver/driver.cc",
        "cmake/modules/contrib/AcmeNPU.cmake",
        f"{TESTS}/conftest.py",
        f"{TESTS}/test_partition.py",
        f"{TESTS}/vendor/test_own.py",
    ):
        assert (tvm / place).is_file(), place
    changed = [line[3:] for line in status(tvm).splitlines()]
    ours = (PYTHON, COMPILER, RUNTIME, TESTS, "cmake/modules/contrib/AcmeNPU.cmake")
    others = [name for name in changed if not name.startswith(ours)]
    assert others == ["CMakeLists.txt", "tests/scripts/task_config_build_cpu.sh"]


def test_lines_are_below_others_of_their_kind(tvm: Path, backend: Path) -> None:
    graft(tvm, backend)
    cmake = lines(tvm, "CMakeLists.txt")
    at = cmake.index('tvm_option(USE_NNAPI_RUNTIME "Build with NNAPI runtime" OFF)')
    assert cmake[at + 1 : at + 3] == [
        'tvm_option(USE_ACME_NPU_CODEGEN "Build with AcmeNPU codegen" OFF)',
        'tvm_option(USE_ACME_NPU_RUNTIME "Build with AcmeNPU runtime" OFF)',
    ]
    at = cmake.index("include(cmake/modules/contrib/NNAPI.cmake)")
    assert cmake[at + 1] == "include(cmake/modules/contrib/AcmeNPU.cmake)"
    assert len(cmake) == len(CMAKE.splitlines()) + 3
    assert lines(tvm, "tests/scripts/task_config_build_cpu.sh")[3:5] == [
        r"echo set\(USE_ACME_NPU_CODEGEN ON\) >> config.cmake",
        r"echo set\(USE_ACME_NPU_RUNTIME ON\) >> config.cmake",
    ]


def test_texts_are_as_tvm_wants_them(tvm: Path, backend: Path) -> None:
    (backend / "vendor/own.py").write_text("#!/usr/bin/env python3\nOWN = 1\n")
    (backend / "vendor/empty.py").write_text("")
    graft(tvm, backend)
    with_header = {".py", ".cc", ".h", ".cmake", ".toml", ".md", ".html"}
    # TVM's tests/lint/check_file_type.py checks this.
    allowed = {*with_header, ".json", ".js", ".css", ".txt"}
    for place in (line[3:] for line in status(tvm).splitlines() if line.startswith("??")):
        text = (tvm / place).read_text()
        suffix = Path(place).suffix
        assert suffix in allowed, place
        if suffix in with_header:
            assert text.count(ASF) == 1, place
            head = text[: text.index("limitations")]
            assert "SPDX" not in text[: len(head) + 200].replace("SPDX-License-Identifier: MIT", "")
        if suffix == ".py":
            tree = ast.parse(text)
            names = [
                name
                for node in ast.walk(tree)
                for name in (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
            ]
            assert not [name for name in names if name.startswith("tvm_acme")], place
    capabilities = (tvm / PYTHON / "vendor/capabilities.py").read_text()
    assert f"from tvm.relax.backend.contrib.{NAME}.engine.chip import" in capabilities
    own = (tvm / PYTHON / "vendor/own.py").read_text()
    assert own.startswith(f"#!/usr/bin/env python3\n# {ASF}")
    assert (tvm / RUNTIME / "engine.cmake").read_text().startswith(f"# {ASF}")
    assert (tvm / RUNTIME / "backend.h").read_text().startswith(f"/*\n * {ASF}")
    assert (tvm / PYTHON / "README.md").read_text().startswith(f"<!--- {ASF} -->\n")


def test_every_include_is_found(tvm: Path, backend: Path) -> None:
    graft(tvm, backend)
    top, compiler = tvm / RUNTIME, tvm / COMPILER
    folders = (top, top / "include", top / "common", compiler / "codegen")
    sources = [path for place in (top, compiler) for path in place.rglob("*.[ch]*")]
    sources = [path for path in sources if path.suffix in support.CPP]
    assert len(sources) > 80
    for source in sources:
        for name in re.findall(r'^#include "(.*)"', source.read_text(), re.MULTILINE):
            assert any((folder / name).is_file() for folder in (source.parent, *folders)), name


@pytest.mark.parametrize("parts", [(), ("CODEGEN",), ("RUNTIME",), ("CODEGEN", "RUNTIME")])
def test_cmake_configures(tvm: Path, backend: Path, parts: tuple[str, ...], tmp_path: Path) -> None:
    other = tmp_path / "other"
    support.render(ROOT, other, backend_name="bolt_npu", ops=["relu"])
    support.add_lowering(backend, "int own;\n")
    graft(tvm, backend)
    graft(tvm, other)
    build = tmp_path / "build"
    options = [f"-DUSE_{name}_{part}=ON" for name in ("ACME_NPU", "BOLT_NPU") for part in parts]
    support.run("cmake", "-S", tvm, "-B", build, "-G", "Ninja", *options)
    ninja = (build / "build.ninja").read_text()
    objects = set(re.findall(r"^build (\S+\.o):", ninja, re.MULTILINE))
    built = {name.split("/")[1].removesuffix(".dir") for name in objects}
    expected = {"tvm_runtime_extra", "tvm_compiler"}
    for name in ("acme_npu", "bolt_npu") if parts else ():
        kinds = ["common_objects", "emulator_objects", "kernel_objects", "runtime_objects"]
        if "CODEGEN" in parts:
            kinds += ["codegen_objects", "lowering_objects", "emulator_build_objects"]
        expected |= {f"tvm_{name}_{kind}" for kind in kinds}
    assert built == expected

    def linked(library: str) -> set[str]:
        (rule,) = re.findall(rf"^build (?:lib/)?lib{library}\.so: \S+ (.*)$", ninja, re.MULTILINE)
        names = [name for name in rule.split() if name.endswith(".o")]
        return {name.split("/")[1].removesuffix(".dir") for name in names}

    in_extra, in_compiler = linked("tvm_runtime_extra"), linked("tvm_compiler")
    assert ("tvm_acme_npu_runtime_objects" in in_extra) == ("RUNTIME" in parts)
    assert ("tvm_acme_npu_codegen_objects" in in_compiler) == ("CODEGEN" in parts)
    # If no runtime is built, the compiler library contains it, as for TVM's backends.
    assert ("tvm_acme_npu_runtime_objects" in in_compiler) == (parts == ("CODEGEN",))
    assert ("-Dnpu=tvm_acme_npu" in ninja) == bool(parts)
    own = [name for name in objects if name.endswith("vendor/lowerings/own.cc.o")]
    assert len(own) == ("CODEGEN" in parts)


def test_a_second_graft_changes_nothing(
    tvm: Path, backend: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graft(tvm, backend)
    before = {path: path.stat().st_mtime_ns for path in support.files(tvm)}
    capsys.readouterr()
    assert graft(tvm, backend) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in support.files(tvm)} == before


@pytest.mark.parametrize("added", [False, True])
def test_ungraft_leaves_nothing(tvm: Path, backend: Path, added: bool) -> None:
    before = support.contents(tvm)
    graft(tvm, backend)
    cache = tvm / PYTHON / "engine/__pycache__"
    cache.mkdir()
    (cache / "partition.cpython-311.pyc").write_bytes(b"")
    if added:
        support.run("git", "add", "-A", cwd=tvm)
    assert main(["ungraft", str(tvm)]) == 0
    assert status(tvm) == ""
    assert support.contents(tvm) == before
    assert not (tvm / PYTHON).exists()
    assert not (tvm / COMPILER).exists()


def test_a_backend_of_tvm_is_replaced_and_restored(
    tvm: Path, backend: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = support.contents(tvm)
    reference = ROOT / "reference_backend"
    told = refusal(capsys, tvm, "graft", "--backend", str(reference))
    assert "TVM has its own backend 'example_npu'" in told
    assert "--replace" in told
    assert graft(tvm, reference, "--replace") == 0
    assert not (tvm / "src/relax/backend/contrib/example_npu/codegen.cc").exists()
    assert graft(tvm, reference) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert main(["ungraft", str(tvm), "example_npu"]) == 0
    assert status(tvm) == ""
    assert support.contents(tvm) == before


def test_two_backends_go_one_by_one(
    tvm: Path, backend: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    support.render(ROOT, other, backend_name="bolt_npu", ops=["relu"])
    graft(tvm, backend)
    alone = support.contents(tvm)
    assert graft(tvm, other) == 0
    assert "Name the backend" in refusal(capsys, tvm, "ungraft")
    assert main(["ungraft", str(tvm), "bolt_npu"]) == 0
    assert support.contents(tvm) == alone
    graft(tvm, other)
    main(["ungraft", str(tvm), NAME])
    assert "include(cmake/modules/contrib/BoltNPU.cmake)" in lines(tvm, "CMakeLists.txt")
    main(["ungraft", str(tvm)])
    assert status(tvm) == ""


def test_a_changed_backend_is_grafted_again(tvm: Path, backend: Path) -> None:
    graft(tvm, backend)
    (backend / "vendor/new.py").write_text("NEW = 1\n")
    (backend / "engine/backend/common/names.h").unlink()
    text = (backend / "vendor/passes.py").read_text()
    (backend / "vendor/passes.py").write_text(f"{text}\nADDED = 1\n")
    assert graft(tvm, backend) == 0
    assert (tvm / PYTHON / "vendor/new.py").is_file()
    assert "ADDED = 1" in (tvm / PYTHON / "vendor/passes.py").read_text()
    assert not (tvm / RUNTIME / "common/names.h").exists()
    assert len(lines(tvm, "CMakeLists.txt")) == len(CMAKE.splitlines()) + 3
    main(["ungraft", str(tvm)])
    assert status(tvm) == ""


def test_edits_are_not_lost(tvm: Path, backend: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graft(tvm, backend)
    edited = tvm / RUNTIME / "runtime/runtime.cc"
    text = edited.read_text()
    edited.write_text(f"{text}// mine\n")
    for command in (["graft", "--backend", str(backend)], ["ungraft"]):
        assert f"{RUNTIME}/runtime/runtime.cc" in refusal(capsys, tvm, *command)
    edited.unlink()
    cmake = tvm / "CMakeLists.txt"
    cmake.write_text(cmake.read_text() + "# mine\n")
    assert main(["ungraft", str(tvm)]) == 0
    assert cmake.read_text() == f"{CMAKE}# mine\n"
    assert status(tvm) == " M CMakeLists.txt\n"


def test_a_checkout_must_be_tvm_and_clean(
    tvm: Path, backend: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("graft", "--backend", str(backend))
    (tvm / "mine.txt").write_text("mine\n")
    assert "uncommitted changes: mine.txt" in refusal(capsys, tvm, *command)
    (tvm / "mine.txt").unlink()
    for name, text in (("cmake/utils/Library.cmake", ""), ("CMakeLists.txt", "project(other)\n")):
        kept = (tvm / name).read_text()
        (tvm / name).write_text(text)
        told = refusal(capsys, tvm, *command)
        assert "is not a checkout of a TVM" in told
        assert name in told
        (tvm / name).write_text(kept)
    cmake = CMAKE.replace("include(cmake/modules/contrib/NNAPI.cmake)\n", "")
    (tvm / "CMakeLists.txt").write_text(cmake)
    support.run("git", "commit", "-qam", "Other", cwd=tvm)
    assert "has no line like 'include(" in refusal(capsys, tvm, *command)
    assert main(["graft", str(tmp_path / "none"), "--backend", str(backend)]) == 1
    assert "is not a Git checkout" in capsys.readouterr().err
    assert "was not grafted" in refusal(capsys, tvm, "ungraft", NAME)


def test_a_backend_with_an_instruction_set_is_refused(
    tvm: Path, render: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = support.contents(tvm)
    other = render(backend_name=NAME, ops=["relu"], driver="isa")
    told = refusal(capsys, tvm, "graft", "--backend", str(other))
    assert f"{other} has an instruction set of its own, whose compiler and emulator are not" in told
    assert support.contents(tvm) == before


def test_only_a_backend_under_apache_2_is_accepted(
    tvm: Path, backend: Path, render: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "not a backend that npu-scaffold made" in refusal(
        capsys, tvm, "graft", "--backend", str(backend / "vendor")
    )
    (backend / "vendor/theirs.py").write_text("# SPDX-License-Identifier: GPL-2.0-only\n")
    told = refusal(capsys, tvm, "graft", "--backend", str(backend))
    assert "vendor/theirs.py (GPL-2.0-only)" in told
    other = render(backend_name=NAME, ops=["relu"], license="MIT")
    told = refusal(capsys, tvm, "graft", "--backend", str(other))
    assert "(MIT)" in told
    assert "engine/" not in told


def test_nothing_is_left_half_written(
    tvm: Path, backend: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = support.contents(tvm)
    write = Path.write_bytes
    written = []

    def full(path: Path, content: bytes) -> int:
        if str(path).startswith(str(tvm)):
            written.append(path)
            if len(written) == 50:
                raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert graft(tvm, backend) == 1
    assert "No space left" in capsys.readouterr().err
    assert len(written) > 50
    assert support.contents(tvm) == before
    assert status(tvm) == ""
    assert "was not grafted" in refusal(capsys, tvm, "ungraft", NAME)
    assert graft(tvm, backend) == 0


def test_a_real_checkout_compiles_the_reference_backend(tmp_path: Path) -> None:
    """Configure a clone without LLVM, and compile all objects of the backend."""
    if not (checkout := os.environ.get("TVM_CHECKOUT")):
        pytest.skip("TVM_CHECKOUT names no checkout of TVM")
    ffi = Path(checkout, "3rdparty/tvm-ffi")
    assert (ffi / "CMakeLists.txt").is_file(), f"{checkout} has no submodules: git submodule update"
    tvm = tmp_path / "tvm"
    support.run("git", "clone", "-q", "--shared", checkout, tvm)
    ignored = shutil.ignore_patterns(".git", "build")
    shutil.copytree(ffi, tvm / "3rdparty/tvm-ffi", dirs_exist_ok=True, ignore=ignored)
    assert graft(tvm, ROOT / "reference_backend", "--replace") == 0
    grafted = support.contents(tvm)
    assert graft(tvm, ROOT / "reference_backend") == 0
    assert support.contents(tvm) == grafted
    build = tmp_path / "build"
    options = ("USE_LLVM=OFF", "USE_Z3=OFF", "TVM_FFI_USE_LIBBACKTRACE=OFF")
    parts = ("USE_EXAMPLE_NPU_CODEGEN=ON", "USE_EXAMPLE_NPU_RUNTIME=ON")
    support.run(
        *("cmake", "-S", tvm, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
        *(f"-D{option}" for option in (*options, *parts)),
    )
    kinds = ("common_objects", "runtime_objects", "codegen_objects", "lowering_objects")
    targets = (*kinds, "emulator", "emulator_build")
    done = support.run("ninja", "-C", build, *(f"tvm_example_npu_{name}" for name in targets))
    warnings = [line for line in done.splitlines() if "warning:" in line]
    ours = [line for line in warnings if "contrib/example_npu" in line]
    assert ours == []
    for half in ("emulator", "emulator_build"):
        assert (build / f"lib/libtvm_example_npu_{half}.so").is_file()
    support.run("git", "add", "-A", "--", ":!3rdparty", cwd=tvm)
    for check in (("check_asf_header.py", "--check"), ("check_file_type.py",)):
        support.run("python3", f"tests/lint/{check[0]}", *check[1:], cwd=tvm)
    assert main(["ungraft", str(tvm)]) == 0
    assert support.run("git", "status", "--porcelain", cwd=tvm) == ""
