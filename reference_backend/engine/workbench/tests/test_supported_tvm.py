# SPDX-License-Identifier: Apache-2.0
"""The supported versions of TVM, and the command `drift`."""

import copy
import json
import os
import subprocess
import sys

import pytest
import tvm_ffi

import backend
from backend.engine.backend.libraries import _library
from backend.engine.backend.table.patterns import TABLE
from backend.engine.workbench.drift import drifting
from backend.engine.workbench.drift.drifting import Difference, changes_of_ops
from support import BACKEND, run_command

PACKAGE = backend.__name__


def check(planted, **environment):
    """Run `check` with TVM or tvm-ffi claiming another version."""
    code = f"import runpy, sys, tvm, tvm_ffi; {planted}; sys.argv = ['', 'check']; "
    code += f"runpy.run_module({PACKAGE!r}, run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0", **environment},
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, result.stdout


@pytest.mark.parametrize("version", ["0.25.0", "0.28.0", "0.270.1", "1.0.dev0"])
def test_an_unknown_tvm_is_refused_in_a_sentence(version):
    with pytest.raises(_library.LoadError) as caught:
        _library._check_versions(version, "0.1.14.post1")
    sentence = str(caught.value)
    assert f"was tried with TVM 0.26 and 0.27; installed is {version}." in sentence
    assert "pip install 'apache-tvm==0.27.*'" in sentence
    assert f"{_library.ANY_TVM}=1" in sentence


@pytest.mark.parametrize("version", ["0.26.0", "0.27", "0.27.0.post1"])
def test_a_known_tvm_is_accepted(version):
    _library._check_versions(version, "0.1.14.post0")


@pytest.mark.parametrize(
    ("forced", "is_taken"), [("1", True), ("0", False), ("", False), ("yes", False)]
)
def test_an_unknown_tvm_can_be_forced(monkeypatch, forced, is_taken):
    monkeypatch.setenv(_library.ANY_TVM, forced)
    for versions in (("0.99.0", "0.1.14.post1"), ("0.27.0", "0.2.0")):
        if is_taken:
            _library._check_versions(*versions)
            continue
        with pytest.raises(_library.LoadError) as caught:
            _library._check_versions(*versions)
        assert ("supported: 0 or 1" in str(caught.value)) == (forced == "yes")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "planted", ["tvm.__version__ = '0.99.0'", "tvm_ffi.__version__ = '0.1.15.post2'"]
)
def test_check_refuses_an_unknown_tvm_unless_forced(planted):
    code, out = check(planted)
    assert code == 1, out
    (line,) = [line for line in out.splitlines() if line.startswith("FAILED: ")]
    assert f"or set {_library.ANY_TVM}=1" in line
    code, out = check(planted, **{_library.ANY_TVM: "1"})
    assert code == 0, out
    assert f"{_library.ANY_TVM} is 1: " in out
    assert "All is well." in out


@pytest.fixture
def known():
    return {
        "tvm": "0.27.0",
        "ops": {
            "relax.a": {"arguments": ["x", "y"], "attributes": ["axis", "mode"]},
            "relax.b": {"arguments": ["x"], "attributes": []},
        },
    }


def test_an_unchanged_tvm_has_no_differences(known):
    assert changes_of_ops(known, copy.deepcopy(known), {"relax.a"}) == []


def test_each_change_of_an_op_is_a_difference(known):
    found = copy.deepcopy(known)
    found["ops"]["relax.a"] = {"arguments": ["data", "y"], "attributes": ["axis", "rounding"]}
    del found["ops"]["relax.b"]
    found["ops"]["relax.c"] = {"arguments": [], "attributes": []}
    for used in ({"relax.a"}, {"relax.b"}):
        a, b = "relax.a" in used, "relax.b" in used
        assert changes_of_ops(known, found, used) == [
            Difference(a, "relax.a", "takes (data, y), no longer (x, y)"),
            Difference(a, "relax.a", "the attribute 'mode' is gone"),
            Difference(a, "relax.a", "the attribute 'rounding' is new"),
            Difference(b, "relax.b", "the op is gone"),
            Difference(False, "relax.c", "the op is new"),
        ]


def test_the_installed_tvm_has_all_that_the_backend_needs():
    code, out, errors = run_command("drift")
    assert code == 0, out + errors
    assert "Nothing that this backend needs has changed." in out


def test_the_recorded_state_is_that_compared_with(tmp_path, monkeypatch):
    path = tmp_path / "known.json"
    code, out, errors = run_command("drift", "--record", path)
    assert (code, errors) == (0, ""), out
    recorded = json.loads(path.read_text())
    assert recorded == drifting.installed()
    monkeypatch.setattr(drifting, "KNOWN", path)
    code, out, _ = run_command("drift", "--json")
    data = json.loads(out)
    # Other versions of onnx or torch have other operators than those recorded.
    found = [item for item in data["differences"] if "importer of" not in item["subject"]]
    assert (code, data["ok"], found) == (0, True, [])
    assert data["known_tvm"] == data["installed_tvm"]
    code, _, errors = run_command("drift", "--record", tmp_path)
    assert (code, errors) == (1, f"FAILED: '{tmp_path}' cannot be written: Is a directory\n")


def test_a_changed_op_that_is_offloaded_here_fails(tmp_path, monkeypatch):
    found = drifting.installed()
    lowered = [str(op) for op in tvm_ffi.get_global_func(f"{BACKEND}.codegen.lowered_ops")()]
    op, other = [op for op in lowered if op in found["ops"]][:2]
    # The engine can lower the other, but this backend does not offload it.
    monkeypatch.setattr(drifting, "_ops_of_the_table", lambda: {op})
    found["ops"][op]["attributes"].append("zeal")
    found["ops"][other]["attributes"].append("zest")
    path = tmp_path / "known.json"
    path.write_text(json.dumps(found))
    monkeypatch.setattr(drifting, "KNOWN", path)
    code, out, errors = run_command("drift")
    assert code == 1
    assert f"  {op}: the attribute 'zeal' is gone\n" in out
    assert errors.startswith("FAILED: This TVM has changed 1 things that the backend needs.")
    code, out, _ = run_command("drift", "--json")
    assert code == 1
    found = json.loads(out)["differences"]
    assert [item for item in found if "importer of" not in item["subject"]] == [
        {"breaks": True, "subject": op, "text": "the attribute 'zeal' is gone"},
        {"breaks": False, "subject": other, "text": "the attribute 'zest' is gone"},
    ]


def test_the_ops_of_the_table_are_its_own_and_the_steps_of_chains():
    ops = drifting._ops_of_the_table()
    assert {op.relax for op in TABLE.ops if op.relax} <= ops
    if any(op.name == "sdpa" for op in TABLE.ops):
        assert {"relax.nn.softmax", "relax.matmul"} <= ops


def test_a_type_of_the_ir_that_is_gone_fails(monkeypatch):
    ask = tvm_ffi.get_global_func
    name = f"{BACKEND}.codegen.missing_ir"
    monkeypatch.setattr(
        tvm_ffi,
        "get_global_func",
        lambda asked, *rest, **more: (
            (lambda: ["ir.Gone"]) if asked == name else ask(asked, *rest, **more)
        ),
    )
    code, out, _ = run_command("drift")
    assert code == 1
    assert "  ir.Gone: the IR lacks it\n" in out


def test_a_module_that_does_not_import_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.engine.backend.importers", None)
    code, out, _ = run_command("drift")
    assert code == 1
    assert "  engine.backend.importers: does not import: " in out


def test_an_attribute_that_an_importer_no_longer_reads_fails(monkeypatch):
    row, less = {"reads": ["axis"], "ignores": []}, {"reads": [], "ignores": ["axis"]}
    known = {"importer": {"Softmax-13": row, "Gone-1": row}}
    monkeypatch.setattr(drifting, "load", lambda front_door: known)
    found = {"onnx": {"importer": {"Softmax-13": less}}, "torch": None}
    monkeypatch.setattr(drifting, "find", lambda front_door: found.get(front_door, known))
    code, out, errors = run_command("drift")
    assert code == 1
    assert "  the importer of onnx, Softmax-13: 'axis' is now not read\n" in out
    assert "  the importer of onnx, Gone: is gone\n" in out
    assert errors.startswith("FAILED: This TVM has changed 1 things that the backend needs.")


def test_what_importers_read_is_recorded(tmp_path, monkeypatch):
    known = {"importer": {"Softmax-13": {"reads": ["axis"], "ignores": []}}}
    monkeypatch.setattr(drifting, "find", lambda front_door: known)
    code, out, errors = run_command("drift", "--record-importers", tmp_path)
    assert (code, errors) == (0, "")
    for front_door in ("onnx", "torch", "tflite"):
        assert json.loads((tmp_path / f"{front_door}.json").read_text()) == known
        assert f"written: {tmp_path / front_door}.json\n" in out
    monkeypatch.setattr(drifting, "find", lambda front_door: None)
    code, _, errors = run_command("drift", "--record-importers", tmp_path)
    assert (code, errors[:31]) == (1, "FAILED: 'onnx' is not installed")


@pytest.mark.thorough
def test_drift_needs_the_compiler():
    result = subprocess.run(
        [sys.executable, "-m", PACKAGE, "drift"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "FAILED: 'drift' needs the compiler, and only the runtime is here.\n"
