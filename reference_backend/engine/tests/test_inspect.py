# SPDX-License-Identifier: Apache-2.0
"""The command `inspect`, and dumps: what a compiled library says about itself."""

import json
import os
import re
import subprocess
import sys

import pytest
import tvm
from tvm import relax

import backend
from support import BACKEND, OPS, TABLE, Case, compile_for, partition_for

PACKAGE = backend.__name__
MAGIC = b"\x89NPU\r\n\x1a\n"
CASES = [Case(op, OPS[op]["cases"][0]) for op in OPS if TABLE.get(op)][:2]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library with a region for each of some ops."""
    path = tmp_path_factory.mktemp("library") / "model.so"
    models = [case.model(constants=True) for case in CASES]
    mod = tvm.IRModule({model.name: model.function() for model in models})
    compile_for(mod, symbol_bound=6).export_library(str(path))
    return path


def inspect(*arguments, **environment):
    command = [sys.executable, "-m", PACKAGE, "inspect", *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return result.returncode, result.stdout, result.stderr


def failure(*arguments):
    """Return the sentence of an inspection that fails."""
    code, out, errors = inspect(*arguments)
    assert (code, out) == (1, "")
    assert errors.startswith("FAILED: ")
    assert len(errors.splitlines()) == 1
    return errors


@pytest.mark.parametrize("runtime_only", ["0", "1"])
def test_a_library_tells_what_is_in_it(library, runtime_only):
    code, out, errors = inspect(library, TVM_USE_RUNTIME_LIB=runtime_only)
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
        assert artifact.program.strip()
        for line in artifact.program.splitlines():
            assert line.strip() in out
        assert max(map(len, out.partition("program\n")[0].splitlines())) <= 100


def test_the_same_is_there_as_data(library):
    code, out, errors = inspect(library, "--json")
    assert (code, errors) == (0, "")
    found = backend.read_artifacts(library)
    assert json.loads(out) == [artifact.to_dict() for artifact in found]
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


def test_hashes_tell_models_apart(library, tmp_path):
    """And nothing else: neither the time nor the folder is in an artifact."""
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
    """It may be one for another machine."""
    data = bytearray(library.read_bytes())
    data[:64] = bytes(64)
    (tmp_path / "model.so").write_bytes(data)
    assert backend.read_artifacts(tmp_path / "model.so") == backend.read_artifacts(library)


def test_what_is_no_library_with_a_region_is_refused(tmp_path):
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
    # One section, as a reference has.
    path.write_bytes(data[: start + 12] + b"\1\0\0\0" + data[start + 16 :])
    with pytest.raises(ValueError, match=r"model\.so: .*corrupt"):
        backend.read_artifacts(path)
    path.write_bytes(data[: start + 100])
    assert "model.so: a region in it is cut off or corrupt." in failure(path)


def test_regions_of_another_backend_are_left_out(library, tmp_path):
    """It may be one that was made as this one was, with artifacts of the same format."""
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


@pytest.mark.parametrize("dump", ["none", "graph", "program"])
def test_a_dump_has_what_was_asked_for(tmp_path, dump):
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


def test_a_dump_to_nowhere_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    model = CASES[0].model()
    mod = tvm.IRModule({model.name: model.function()})
    with pytest.raises(ValueError, match="Nothing can be dumped to '.*file': .*'dump_dir'"):
        compile_for(mod, dump="graph", dump_dir=tmp_path / "file")
