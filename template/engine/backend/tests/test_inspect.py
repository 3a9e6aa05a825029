# SPDX-License-Identifier: Apache-2.0
"""The command `inspect`, and dumps of compiled libraries."""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.ir.origins import Origin
from backend.engine.workbench.conformance.region import load_module
from compiled_region import Region
from support import BACKEND, SINGLE, compile_for, needs_single, partition_for, run_command
from test_artifact import Parts

PACKAGE = backend.__name__
MAGIC = b"\x89NPU\r\n\x1a\n"
CASES = SINGLE[:2]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Make a library with a region for each of some ops."""
    if not CASES:
        pytest.skip("the NPU takes no op in a single call")
    path = tmp_path_factory.mktemp("library") / "model.so"
    compile_for(cases_module(), symbol_bound=6).export_library(str(path))
    return path


def cases_module():
    models = [case.model(constants=True) for case in CASES]
    return tvm.IRModule({model.name: model.function() for model in models})


def inspect(*arguments):
    return run_command("inspect", *arguments)


def inspect_in_a_process(*arguments, **environment):
    command = [sys.executable, "-m", PACKAGE, "inspect", *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return result.returncode, result.stdout, result.stderr


def failure(*arguments):
    """Run an inspection that must fail, and return its message."""
    code, out, errors = inspect(*arguments)
    assert (code, out) == (1, "")
    assert errors.startswith("FAILED: ")
    assert len(errors.splitlines()) == 1
    return errors


def test_programs_have_the_names_of_a_report(library, tmp_path):
    report = backend.offload_report(partition_for(cases_module(), symbol_bound=6))
    named = [replace(op, origin=Origin(f"/block/{op.name}_it")) for op in report.ops]
    path = tmp_path / "report.json"
    path.write_text(replace(report, ops=tuple(named)).to_json())
    plain = inspect(library, "--json")[1]
    changed = inspect(library, "--json", "--report", path)[1]
    for before, after in zip(json.loads(plain), json.loads(changed), strict=True):
        own = [op.name for op in report.ops if op.region == before["symbol"]]
        labelled = [name for name in own if f"({name})" in before["program"]]
        # The listing of another driver may name no ops.
        assert labelled or before["manifest"]["driver"] != "emulator"
        assert all(f"(/block/{name}_it)" in after["program"] for name in labelled)
        assert not any(f"({name})" in after["program"] for name in own)
        assert {**after, "program": ""} == {**before, "program": ""}
    path.write_text("{}")
    assert "is not a report that 'compile --report' has written" in failure(
        library, "--report", path
    )


@pytest.mark.parametrize("runtime_only", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_contents_of_a_library_are_printed(library, runtime_only):
    inspected = inspect_in_a_process(library, TVM_USE_RUNTIME_LIB="1") if runtime_only else None
    code, out, errors = inspected or inspect(library)
    assert (code, errors) == (0, "")
    for artifact in backend.read_artifacts(library):
        assert f"region {artifact.symbol}\n" in out
        assert artifact.manifest["backend_version"] == backend.__version__
        for value in artifact.manifest.values():
            if isinstance(value, str):
                assert value in out
        for name, value in artifact.options.items():
            if name not in ("overrides", "symbol_bounds"):
                assert f"{name}={json.dumps(value)}" in out
        for name, size in artifact.sizes.items():
            assert f"{name}={size}" in out
        # A driver need not describe its programs.
        assert artifact.program.strip() or artifact.manifest["driver"] != "emulator"
        for line in artifact.program.splitlines():
            assert line.strip() in out
        assert max(map(len, out.partition("program\n")[0].splitlines())) <= 100


def test_the_same_is_there_as_data(library):
    code, out, errors = inspect(library, "--json")
    assert (code, errors) == (0, "")
    found = backend.read_artifacts(library)
    assert json.loads(out) == [artifact.to_dict() for artifact in found]
    assert {item["version"] for item in json.loads(out)} == {1}
    assert sorted(artifact.symbol for artifact in found) == sorted(
        f"{BACKEND}_{case.symbol}_0" for case in CASES
    )
    for artifact in found:
        assert artifact.manifest["backend"] == BACKEND
        assert artifact.manifest["symbol"] == artifact.symbol
        assert {"manifest", "graph", "program"} <= set(artifact.sizes)
        assert sum(artifact.sizes.values()) > artifact.sizes["artifact"]
        for name in ("graph_sha256", "constants_sha256", "options_sha256"):
            assert len(bytes.fromhex(artifact.manifest[name])) == 32


def test_one_region_can_be_chosen(library):
    symbol = backend.read_artifacts(library)[-1].symbol
    code, out, _ = inspect(library, "--region", symbol, "--json")
    assert code == 0
    assert [artifact["symbol"] for artifact in json.loads(out)] == [symbol]
    message = failure(library, "--region", "region9")
    assert "has no region 'region9'; it has: " in message
    assert symbol in message


def test_hashes_distinguish_models(library, tmp_path):
    """They depend on nothing else: an artifact contains neither the time nor the folder."""
    first = backend.read_artifacts(library)
    again = []
    for case in CASES:
        model = case.model(constants=True)
        executable = compile_for(tvm.IRModule({model.name: model.function()}), symbol_bound=6)
        executable.export_library(str(tmp_path / "again.so"))
        again += backend.read_artifacts(tmp_path / "again.so")
    by_symbol = {artifact.symbol: artifact for artifact in first}
    assert [by_symbol[artifact.symbol].manifest for artifact in again] == [
        artifact.manifest for artifact in again
    ]
    assert len({artifact.manifest["graph_sha256"] for artifact in first}) == len(first)


def test_a_library_is_read_and_not_run(library, tmp_path):
    """It may be a library for another machine."""
    data = bytearray(library.read_bytes())
    data[:64] = bytes(64)
    (tmp_path / "model.so").write_bytes(data)
    assert backend.read_artifacts(tmp_path / "model.so") == backend.read_artifacts(library)


def test_a_file_without_a_region_is_refused(tmp_path):
    (tmp_path / "text.so").write_text("text")
    (tmp_path / "empty.so").write_text("")
    x = relax.Var("x", relax.TensorType((2,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.bitwise_not(x)))
    tvm.compile(builder.get(), target="llvm").export_library(str(tmp_path / "host.so"))
    assert f"text.so holds no region of {BACKEND}" in failure(tmp_path / "text.so")
    for name, words in (
        ("empty.so", f"empty.so holds no region of {BACKEND}"),
        ("host.so", f"host.so holds no region of {BACKEND}"),
        ("missing.so", "missing.so cannot be read: No such file"),
        ("", "cannot be read: "),
    ):
        with pytest.raises(ValueError, match=words):
            backend.read_artifacts(tmp_path / name)


def test_corrupt_libraries_are_refused(library, tmp_path):
    data = library.read_bytes()
    start = data.index(MAGIC)
    path = tmp_path / "model.so"
    for position in (8, 12, 16, 20, 24, 32, 40, 200):
        broken = bytearray(data)
        broken[start + position] ^= 0x20
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"model\.so: .+") as caught:
            backend.read_artifacts(path)
        assert len(str(caught.value).splitlines()) == 1
    # A single section, as in a reference.
    path.write_bytes(data[: start + 12] + b"\1\0\0\0" + data[start + 16 :])
    with pytest.raises(ValueError, match=r"model\.so: .*corrupt"):
        backend.read_artifacts(path)
    path.write_bytes(data[: start + 100])
    assert "model.so: a region in it is cut off or corrupt." in failure(path)


def test_regions_of_another_backend_are_left_out(library, tmp_path):
    """The other backend may come from the same template, with the same artifact format."""
    ours, *_ = backend.read_artifacts(library)
    data = library.read_bytes()
    start = data.index(MAGIC)
    artifact = data[start : start + ours.sizes["artifact"]]
    mark = json.dumps(BACKEND).encode()
    foreign = artifact.replace(mark, mark[:-2] + b'?"')
    path = tmp_path / "model.so"
    path.write_bytes(b"before" + foreign + b"between" + artifact)
    assert backend.read_artifacts(path) == [ours]
    path.write_bytes(foreign)
    other = re.escape(BACKEND[:-1] + "?")
    with pytest.raises(ValueError, match=f"no region of {BACKEND}: those in it are for {other}"):
        backend.read_artifacts(path)


# ---- What was changed, and sealed again ---------------------------------------------------------


@pytest.fixture(scope="module")
def parts():
    """Take a small artifact apart."""
    return Parts.read(Region().bytes)


def sealed(parts, path, manifest):
    """Write an artifact with another manifest: JSON data, or any bytes."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    path.write_bytes(replace(parts, manifest=text).write())
    return path


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("overrides", [1], "has impossible overrides"),
        ("overrides", [{"option": 1, "value": 1, "variable": "x"}], "overrides without names"),
        ("overrides", {}, "no 'overrides' that is a list"),
        ("overrides", None, "no 'overrides' that is a list"),
        ("options", {"cores": [1]}, "an impossible option 'cores'"),
        ("options", {"\x1b[31m": [1]}, r"an impossible option '\x1b[31m'"),
        ("options", {"cores": float("nan")}, ""),
        ("states", [], "impossible states"),
        ("states", {"keys": 2}, "impossible states"),
        ("states", {"keys": {"input": True}}, "impossible states"),
        ("states", {"keys": {"input": -1}}, "impossible states"),
        ("states", {"keys": {"other": 1}}, "impossible states"),
        ("states", {"keys": {}}, "impossible states"),
        ("symbol_bounds", {"n": "6"}, "an impossible bound of 'n'"),
        ("symbol_bounds", 6, "no 'symbol_bounds' that is an object"),
        ("tvm_version", {}, "no 'tvm_version' that is a string"),
        ("driver_api_version", True, ""),
        ("deep", eval("[" * 50 + "]" * 50), None),
    ],
)
def test_a_forged_manifest_is_refused_in_a_sentence(parts, tmp_path, name, value, sentence):
    manifest = {**json.loads(parts.manifest), name: value}
    path = sealed(parts, tmp_path / "model.so", manifest)
    if sentence is None:
        assert str(backend.read_artifacts(path)[0])
        return
    with pytest.raises(ValueError, match=r"model\.so: ") as caught:
        backend.read_artifacts(path)
    assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).isprintable()


def test_bytes_that_are_no_manifest_are_refused_in_a_sentence(parts, tmp_path):
    bad_text = parts.manifest.replace(b'"backend"', b'"\xff": 1, "backend"')
    for text in (b"[" * 100_000, b"\xff", bad_text, b"1e", b"null", b""):
        with pytest.raises(ValueError, match="its manifest ") as caught:
            backend.read_artifacts(sealed(parts, tmp_path / "model.so", text))
        assert str(caught.value).isprintable()


def test_nothing_in_a_file_reaches_the_terminal_as_a_control_character(parts, tmp_path):
    bad = "\x1b]0;title\x07\x9b31m\u202e\r\x7f\u2028"
    manifest = json.loads(parts.manifest)
    manifest |= {
        "tvm_version": bad,
        bad: bad,
        "options": {bad: bad},
        "symbol_bounds": {bad: 1},
        "overrides": [{"option": bad, "value": bad, "variable": bad}],
    }
    path = sealed(parts, tmp_path / "model.so", manifest)
    code, out, errors = inspect(path)
    assert (code, errors) == (0, "")
    assert all(line.isprintable() for line in out.split("\n"))
    assert out.count(r"\x1b]0;title\x07\x9b31m\u202e\r\x7f\u2028") >= 3
    manifest["backend"] = bad
    with pytest.raises(ValueError, match="those in it are for") as caught:
        backend.read_artifacts(sealed(parts, path, manifest))
    assert str(caught.value).isprintable()


def test_a_file_that_is_not_regular_does_not_block(tmp_path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no FIFOs here")
    os.mkfifo(tmp_path / "fifo.so")
    for path in (tmp_path / "fifo.so", "/dev/zero"):
        with pytest.raises(ValueError, match=f"{path} cannot be read: it is not a regular file."):
            backend.read_artifacts(path)


_VALUES = (
    *(None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, 1e308, float("nan"), float("-inf")),
    *("", "x", "\0", "\x1b[0m", "\n", "\ud800", "é" * 300, [], [1], {}, {"": {}}, [[[]]], [{}]),
)


def mutated(generator, value, is_root=True):
    """Return JSON data in which something is replaced, dropped, repeated or renamed."""
    kind = generator.random()
    if isinstance(value, dict | list) and value and (is_root or kind < 0.8):
        value = value.copy()
        key = generator.choice([*value] if isinstance(value, dict) else range(len(value)))
        if kind < 0.1:
            del value[key]
        elif kind < 0.15 and isinstance(value, dict):
            value[str(generator.choice(_VALUES))] = value.pop(key)
        else:
            value[key] = mutated(generator, value[key], False)
        return value
    return [value, value] if kind > 0.95 else generator.choice(_VALUES)


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.thorough)])
def test_forged_manifests_are_errors_or_work(parts, count, tmp_path):
    generator = random.Random(5)
    good = json.loads(parts.manifest)
    path = tmp_path / "model.so"
    shown = refused = 0
    for _ in range(count):
        manifest = good
        for _ in range(generator.randint(1, 2)):
            manifest = mutated(generator, manifest)
        text = json.dumps(manifest).encode()
        if generator.random() < 0.1:
            at = generator.randrange(len(text))
            text = text[:at] + generator.randbytes(generator.randint(0, 3)) + text[at + 1 :]
        data = replace(parts, manifest=text).write()
        path.write_bytes(data)
        try:
            load_module(data)
        except ValueError as error:
            assert str(error).startswith(f"{BACKEND}: the artifact ")
            assert len(str(error).splitlines()) == 1, str(error)
        try:
            (artifact,) = backend.read_artifacts(path)
        except ValueError as error:
            refused += 1
            assert str(error).isprintable(), str(error)
            continue
        shown += 1
        assert all(line.isprintable() for line in str(artifact).split("\n"))
        json.dumps(artifact.to_dict())
        with contextlib.suppress(ValueError):
            backend.Options.from_dict(artifact.options)
    assert shown > count / 40
    assert refused > count / 40


@needs_single
@pytest.mark.parametrize("dump", ["none", "graph", "program"])
def test_a_dump_has_the_requested_files(tmp_path, dump):
    model = CASES[0].model()
    folder = tmp_path / "new" / "folder"
    mod = tvm.IRModule({model.name: model.function()})
    operations = [entry.op for entry in backend.offload_report(partition_for(mod)).offloaded]
    assert operations
    executable = compile_for(mod, dump=dump, dump_dir=folder)
    symbol = f"{BACKEND}_{model.name}_0"
    files = {"none": [], "graph": [f"{symbol}.graph.json"]}
    files["program"] = [*files["graph"], f"{symbol}.txt", f"{symbol}.artifact"]
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    assert found == set(files[dump])
    if dump != "none":
        ops = [node["name"] for node in json.loads((folder / files[dump][0]).read_text())["nodes"]]
        assert set(operations) <= set(ops)
    if dump == "program":
        executable.export_library(str(tmp_path / "model.so"))
        dumped = backend.read_artifacts(folder / f"{symbol}.artifact")
        assert dumped == backend.read_artifacts(tmp_path / "model.so")
        assert (folder / f"{symbol}.txt").read_text() == dumped[0].program


@needs_single
def test_a_dump_to_nowhere_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    model = CASES[0].model()
    mod = tvm.IRModule({model.name: model.function()})
    with pytest.raises(ValueError, match="Nothing can be dumped to '.*file': .*'dump_dir'"):
        compile_for(mod, dump="graph", dump_dir=tmp_path / "file")
