# SPDX-License-Identifier: Apache-2.0
"""The command `check`, and what users see if the backend cannot work."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import backend
from backend.engine.backend import loading
from backend.engine.backend.commands.main import main
from backend.engine.backend.libraries import _library
from backend.engine.backend.settings.options import PREFIX, Options
from backend.engine.backend.shared.backend import BACKEND
from support import TABLE, needs_wheel, run_command

DRIVER = Options.load(None).driver
PACKAGE = backend.__name__
IS_EDITABLE = Path(backend.__file__).parent.parent.name == "python"
NO_COPY = "an editable install answers for the package before any copy of it"


def python(*arguments, **environment):
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return result.returncode, result.stdout, result.stderr


@pytest.fixture(scope="module")
def checked():
    """Return the output of `check`."""
    code, out, errors = run_command("check")
    assert code == 0, out + errors
    return out + errors


def test_check_reports_what_works(checked):
    for word in ("apache-tvm ", "apache-tvm-ffi ", "driver library: /", "All is well."):
        assert word.removesuffix("/") in checked
    for op in TABLE.ops:
        assert op.name in checked
    assert "Traceback" not in checked


@pytest.mark.parametrize("command", ["check", "conformance", "extract"])
@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("STRICT", "maybe", "The option 'strict' is 'maybe'; supported: true or false."),
        ("STRIKT", "1", "sets no option of "),
    ],
)
def test_a_wrong_environment_variable_is_reported_in_a_sentence(
    monkeypatch, capsys, command, name, value, sentence
):
    variable = PREFIX + name
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", ["", command, *(["model.json"] * (command == "extract"))])
    assert main() == 1
    (line,) = "".join(capsys.readouterr()).splitlines()
    assert line.startswith(f"FAILED: The environment variable {variable}")
    assert sentence in line


def test_check_reports_how_many_ops_the_driver_takes(checked):
    (line,) = [line for line in checked.splitlines() if " ops that have cases" in line]
    takes = rf"the driver '{DRIVER}' takes at least one case of "
    assert re.search(rf"{takes}(each of the )?\d+", line), line


@pytest.mark.thorough
def test_check_reports_which_driver_is_used(tmp_path):
    role = "emulator" if DRIVER == "emulator" else "driver"
    for half in (role, f"{role}_build"):
        if library := _library.find(half):
            shutil.copy(library, tmp_path)
    code, out, errors = python("-m", PACKAGE, "check", **{f"{PREFIX}DRIVER_DIR": str(tmp_path)})
    assert code == 0, out + errors
    assert f"{role} library: {tmp_path.resolve() / _library.find(role).name}\n" in out


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_missing_folder_of_drivers_is_refused_in_a_sentence(tmp_path, name):
    (tmp_path / "file").touch()
    folder, variable = str(tmp_path / name), f"{PREFIX}DRIVER_DIR"
    code, out, errors = python("-m", PACKAGE, "check", **{variable: folder})
    assert code == 1, out + errors
    *_, line = out.splitlines()
    assert line == (
        f"FAILED: The backend does not load: {PACKAGE}: the environment variable {variable} is "
        f"'{folder}', and there is no such folder; name one with drivers, or unset it."
    )
    assert "Traceback" not in out + errors


@pytest.mark.thorough
def test_a_folder_without_a_driver_or_with_a_broken_one_is_refused_in_a_sentence(tmp_path):
    """A driver that did not compile must not leave the installed one in its place."""
    variable = f"{PREFIX}DRIVER_DIR"
    code, out, errors = python("-m", PACKAGE, "check", **{variable: str(tmp_path)})
    assert code == 1, out + errors
    *_, line = out.splitlines()
    assert f"the environment variable {variable} names a folder without a driver" in line
    library = tmp_path / _library.find("emulator" if DRIVER == "emulator" else "driver").name
    assert str(library) in line and line.endswith("or unset it.")
    library.write_text("nothing")
    code, out, errors = python("-m", PACKAGE, "check", **{variable: str(tmp_path)})
    assert code == 1, out + errors
    *_, line = out.splitlines()
    assert str(library) in line and "build it again, or remove it" in line
    assert "Traceback" not in out + errors


@pytest.mark.thorough
def test_check_works_with_only_the_runtime():
    code, out, errors = python("-m", PACKAGE, "check", TVM_USE_RUNTIME_LIB="1")
    assert code == 0, out + errors
    assert "Only the runtime is here" in out


WITHOUT_WORKBENCH = """
import sys
import {package} as backend
from {package}.engine.backend.commands.main import main
from {package}.engine.backend.report.report import Report

for use in (
    lambda: backend.accuracy_report,
    lambda: Report(()).to_html("page.html"),
    lambda: print(main()),
    lambda: (sys.argv.pop(), sys.argv.append("check"), print(main())),
):
    sys.argv = ["{package}", "drift"]
    try:
        use()
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__, error)
"""


@needs_wheel
@pytest.mark.skipif(IS_EDITABLE, reason=NO_COPY)
def test_a_customers_package_works_without_the_workbench(tmp_path):
    """And it says what needs it."""
    installed = Path(backend.__file__).parent
    package = tmp_path / PACKAGE
    package.mkdir()
    for item in installed.iterdir():
        if item.name not in ("engine", "__pycache__"):
            (package / item.name).symlink_to(item)
    ignored = shutil.ignore_patterns("workbench", "tests", "__pycache__")
    shutil.copytree(installed / "engine", package / "engine", ignore=ignored)
    (tmp_path / "program.py").write_text(WITHOUT_WORKBENCH.format(package=PACKAGE))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    code, out, errors = python(tmp_path / "program.py", PYTHONPATH=path)
    assert code == 0, out + errors
    sentence = f"needs the workbench, which this installation of {PACKAGE} leaves out"
    assert f"RuntimeError accuracy_report {sentence}" in out
    assert f"ValueError This {sentence}" in out.replace("WithoutWorkbenchError", "ValueError")
    assert f"FAILED: This {sentence}" in errors
    assert out.endswith("All is well.\n0\n")


@pytest.mark.thorough
def test_the_package_is_silent():
    for code in ("import tvm", f"from {PACKAGE} import *; offload_report"):
        assert python("-W", "error::UserWarning", "-c", code) == (0, "", "")


@needs_wheel
def test_without_tvm_the_backend_says_what_to_install():
    code = f"import sys; sys.modules['tvm'] = None; import {PACKAGE}; {PACKAGE}.offload_report"
    code, _, errors = python("-c", code)
    assert code == 1
    assert errors.splitlines()[-1] == "RuntimeError: TVM is not installed: pip install apache-tvm."


@pytest.mark.thorough
def test_names_that_need_the_compiler_say_so_without_it():
    code = f"""
import {PACKAGE} as backend
for name in backend.__all__:
    try:
        getattr(backend, name)
    except RuntimeError as error:
        print(error)
"""
    code, out, errors = python("-c", code, TVM_USE_RUNTIME_LIB="1")
    assert (code, errors) == (0, "")
    of_runtime = {"Artifact", "read_artifacts", "Profile", "profile"}
    of_runtime |= {"Conversation", "Session", "State", "states"}
    names = [name for name in backend.__all__ if name not in of_runtime]
    for name, line in zip(names, out.splitlines(), strict=True):
        assert line.startswith(f"{name} needs the compiler")
        assert "TVM_USE_RUNTIME_LIB" in line


@pytest.mark.parametrize(
    ("in_tree", "remedy"),
    [
        (False, "run 'pip install .' in the source tree of the backend, which switches it on"),
        (True, "build it with ON"),
    ],
)
def test_a_build_without_the_codegen_names_its_option(monkeypatch, in_tree, remedy):
    monkeypatch.delenv("TVM_USE_RUNTIME_LIB", raising=False)
    monkeypatch.delitem(_library.loaded, "codegen")
    monkeypatch.setattr(_library, "IN_TREE", in_tree)
    monkeypatch.setattr(_library, "find", lambda role: None)
    code, out, errors = run_command("options")
    assert (code, out) == (1, "")
    option = f"USE_{BACKEND.upper()}_CODEGEN=OFF"
    assert errors.startswith(
        "FAILED: The list of options needs the compiler, and only the runtime is here: "
    )
    assert errors.endswith(f" was built with {option}: {remedy}.\n")


def test_an_editable_install_that_does_not_compile_says_where_the_message_is(monkeypatch, capsys):
    def build(name):
        raise subprocess.CalledProcessError(1, ["cmake", "--build", ".", "-j"])

    monkeypatch.setattr(_library, "IN_TREE", False)
    monkeypatch.setattr(importlib.util, "find_spec", build)
    with pytest.raises(_library.LoadError) as refused:
        _library.find("runtime")
    monkeypatch.setattr(loading, "failure", refused.value)
    monkeypatch.setattr(sys, "argv", ["", "run", "model.so"])
    assert main() == 1
    assert capsys.readouterr().err == (
        f"FAILED: The backend does not load: the sources of {PACKAGE} do not compile "
        "('cmake --build' failed). The message of the compiler or of CMake is above; look for "
        "'error:' or 'CMake Error'.\n"
    )


@pytest.mark.thorough
def test_another_tvm_ffi_is_refused_in_a_sentence():
    patch = "import runpy, sys, tvm_ffi; tvm_ffi.__version__ = '0.1.15.post2'; "
    patch += f"sys.argv = ['', 'check']; runpy.run_module({PACKAGE!r}, run_name='__main__')"
    code, out, errors = python("-c", patch, TVM_DEVICE_BACKEND_AUTOLOAD="0")
    assert code == 1, out + errors
    assert "Traceback" not in errors
    assert "installed is 0.1.15.post2" in out
    assert "pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'" in out


@pytest.fixture
def broken(tmp_path):
    """Copy the package to where it is found first, for tests to break it."""
    if IS_EDITABLE:
        pytest.skip(NO_COPY)
    copy = tmp_path / PACKAGE
    shutil.copytree(Path(backend.__file__).parent, copy)
    return copy


def check(package):
    """Run `check` of the package in a folder, which is found before the installed one."""
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    return python("-m", PACKAGE, "check", PYTHONPATH=path)


@pytest.mark.thorough
def test_a_mistake_in_the_table_is_reported_without_a_traceback(broken):
    with (broken / "patterns.py").open("a") as table:
        table.write('\nraise ValueError("the table is upside down")\n')
    code, out, errors = check(broken)
    assert code == 1, out + errors
    assert "FAILED: " in out
    assert "the table is upside down" in out
    assert "Traceback" not in errors


@pytest.mark.thorough
def test_a_mistake_in_a_vendor_file_is_reported_with_the_file(broken):
    with (broken / "vendor/capabilities.py").open("a") as table:
        table.write("\nCHIP = Chip(ranks=4)\n")
    code, out, errors = check(broken)
    assert code == 1, out + errors
    assert "vendor/capabilities.py: Chip: ranks is 4; at most 4 dimensions are range(0, 5)" in out


@pytest.mark.thorough
def test_an_attribute_that_the_op_lacks_is_reported(broken):
    op = TABLE.ops[0]
    with (broken / "patterns.py").open("a") as table:
        table.write("""
from dataclasses import replace
from .engine.capability import Anything
OPS = (replace(OPS[0], attributes=dict(OPS[0].attributes, strike=Anything())), *OPS[1:])
""")
    code, out, errors = check(broken)
    assert code == 1, out + errors
    assert f"the attribute 'strike' for {op.name}, but {op.relax} has none" in out


@pytest.mark.thorough
def test_an_op_without_a_lowering_is_reported(broken):
    with (broken / "patterns.py").open("a") as table:
        table.write("\nfrom .engine.capability import Input, Op\n")
        table.write('OPS += (Op("sinh", "relax.sinh", inputs=(Input("x"),)),)\n')
    code, out, errors = check(broken)
    assert code == 1, out + errors
    assert (
        "The table has ops without a lowering: relax.sinh. Add one in vendor/lowerings, and name "
        "its file in NPU_VENDOR_LOWERINGS of vendor/vendor.cmake, or take them out of "
        "vendor/capabilities.py; then run 'pip install .' in the source tree of the backend.\n"
    ) in out


def test_limits_prints_what_to_record():
    op = next(iter(TABLE.left_out), TABLE.ops[0].name)
    code, out, errors = run_command("limits", op)
    assert (code, errors) == (0, "")
    assert out.startswith(f'    "{op}": Limits(')
    assert json.loads(run_command("limits", op, "--json")[1]) == {op: out.removesuffix("\n")}
    code, out, errors = run_command("limits")
    assert code == 0
    assert bool(out) == bool(TABLE.unrecorded)
    code, _, errors = run_command("limits", "nothing")
    assert code == 1
    assert errors.startswith("FAILED: This backend has no op 'nothing'")
    name = TABLE.ops[0].name
    assert f"Did you mean '{name}'?" in run_command("limits", f"{name}d")[2]


def test_options_lists_what_can_be_set():
    code, out, errors = run_command("options")
    assert (code, errors) == (0, "")
    for name, value in backend.Options().to_dict().items():
        assert name == "overrides" or f"  {name} = {json.dumps(value)}  (" in out


@pytest.mark.thorough
def test_options_need_the_compiler():
    code, out, errors = python("-m", PACKAGE, "options", TVM_USE_RUNTIME_LIB="1")
    assert (code, out) == (1, "")
    assert errors.startswith(
        "FAILED: The list of options needs the compiler, and only the runtime is here"
    )


def test_an_unknown_command_is_refused():
    code, _, errors = run_command("chekc")
    assert code == 2
    assert "check" in errors


def test_a_library_of_another_version_is_refused(monkeypatch):
    for role in _library.loaded:
        _library.require_functions(role)
    monkeypatch.setitem(_library.FUNCTIONS, "runtime", ("runtime.info", "runtime.of_tomorrow"))
    with pytest.raises(_library.LoadError) as caught:
        _library.require_functions("runtime")
    assert str(caught.value).startswith(
        f"The runtime library of {PACKAGE} was built of another version than its Python files: it "
        "has no function 'runtime.of_tomorrow'. Build "
    )


def test_the_functions_that_libraries_must_have_are_those_that_python_calls():
    called = {
        name
        for path in Path(_library.__file__).parents[1].rglob("*.py")
        if "tests" not in path.parts
        for name in re.findall(r'\{BACKEND\}\.((?:runtime|codegen)\.\w+)"', path.read_text())
    }
    wanted = {name for names in _library.FUNCTIONS.values() for name in names}
    assert wanted - {"session.open"} == called
