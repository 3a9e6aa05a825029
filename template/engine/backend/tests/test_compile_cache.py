# SPDX-License-Identifier: Apache-2.0
"""The compile cache: hits, misses, and robustness against anything in its folder."""

import errno
import logging
import os
import subprocess
import sys
from io import BufferedReader
from itertools import islice

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import backend
from backend.engine.backend.compiling import codegen
from backend.engine.backend.compiling.cache import Cache
from backend.engine.backend.shared.whole_files import UNFINISHED
from backend.engine.workbench.conformance.region import first_taken
from support import (
    BACKEND,
    OPS,
    TABLE,
    Case,
    another_option,
    compile_for,
    first_case,
    lost_by_folding,
)

CASES = list(islice(filter(None, (first_case([op]) for op in OPS if TABLE.get(op))), 3))
pytestmark = pytest.mark.skipif(not CASES, reason="the NPU takes no case of any op")


@pytest.fixture
def compiled():
    """Record what is compiled, not taken from the cache."""
    name = f"{BACKEND}.codegen.compile"
    original = tvm_ffi.get_global_func(name)
    regions = []

    def compile_region(region, *others):
        regions.append(region)
        return original(region, *others)

    tvm_ffi.register_global_func(name, compile_region, override=True)
    yield regions
    tvm_ffi.register_global_func(name, original, override=True)


def build(model, folder, **options):
    return compile_for(tvm.IRModule({model.name: model.function()}), cache_dir=folder, **options)


def assert_computes(executable, model):
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for n in model.sizes:
        arguments = [tvm.runtime.tensor(argument.values[n]) for argument in model.arguments]
        result = machine[model.name](*arguments)
        result = result if isinstance(result, tvm.runtime.Tensor) else result[0]
        np.testing.assert_allclose(result.numpy(), model.outputs[0].values[n], rtol=1e-2, atol=1e-2)


def test_a_region_is_not_compiled_twice(compiled, tmp_path):
    for case in CASES[:3]:
        compiled.clear()
        for expected in (1, 1, 1):
            model = case.model(constants=not lost_by_folding(case))
            assert_computes(build(model, tmp_path), model)
            assert len(compiled) == expected


def test_without_a_folder_everything_is_compiled(compiled):
    for count in (1, 2):
        build(CASES[0].model(), "")
        assert len(compiled) == count


def test_a_hit_returns_the_compiled_artifact(tmp_path):
    model = CASES[0].model()
    for name, folder in (("one", "cache"), ("two", "cache"), ("three", "another cache")):
        build(model, tmp_path / folder).export_library(str(tmp_path / f"{name}.so"))
    found = [backend.read_artifacts(tmp_path / f"{name}.so") for name in ("one", "two", "three")]
    assert found[0] == found[1] == found[2]


def test_a_change_that_affects_the_program_is_a_miss(compiled, monkeypatch, tmp_path):
    first = CASES[0]
    other, _ = first_taken(Case(first.op, item) for item in OPS[first.op]["cases"][::-1])
    if str(other) == str(first):
        pytest.skip(f"the NPU takes one case of {first.op} only")
    build(first.model(), tmp_path)
    for change in (
        lambda: build(other.model(), tmp_path),
        lambda: build(first.model(), tmp_path, **another_option()),
        lambda: build(first.model(), tmp_path, symbol_bounds={"n": 3}),
        lambda: (
            monkeypatch.setattr(codegen, "_build_sha256", lambda role: "another build")
            or build(first.model(), tmp_path)
        ),
    ):
        compiled.clear()
        change()
        assert len(compiled) == 1
        change()
        assert len(compiled) == 1


def test_another_sdk_behind_the_same_driver_is_a_miss(compiled, tmp_path):
    name = f"{BACKEND}.codegen.identity"
    original = tvm_ffi.get_global_func(name)
    try:
        for sdk, count in (("acme 1", 1), ("acme 1", 1), ("acme 2", 2), ("acme 1", 2)):
            tvm_ffi.register_global_func(name, lambda *_, sdk=sdk: sdk, override=True)
            build(CASES[0].model(), tmp_path)
            assert len(compiled) == count
    finally:
        tvm_ffi.register_global_func(name, original, override=True)


def test_constants_are_part_of_the_key(compiled, tmp_path):
    cases = (first_case([op]) for op in OPS if TABLE.get(op))
    models = (case.model() for case in cases if case)
    weighted = (m for m in models if len(m.arguments) > 1 and m.arguments[-1].dtype == "float32")
    model = next(weighted, None)
    if model is None:
        pytest.skip("no op of the table has weights")
    *_, weight = model.arguments
    for factor, count in ((1, 1), (1, 1), (2, 2), (1, 2)):
        params = {weight.expr.name: weight.values[1] * np.float32(factor)}
        build(model, tmp_path, params=params, bind_constants=True)
        assert len(compiled) == count


def test_a_change_that_does_not_affect_the_artifact_is_a_hit(compiled, tmp_path):
    for options in ({}, {"dump": "graph", "dump_dir": tmp_path / "dump"}, {"cache_bytes": 10**8}):
        build(CASES[0].model(), tmp_path / "cache", **options)
    assert len(compiled) == 1


def flip(position):
    def spoil(data, other):
        at = int(position * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        *(pytest.param(flip(part), id=f"flip at {part}") for part in (0, 0.1, 0.5, 0.9, 1)),
        pytest.param(lambda data, other: data[: len(data) // 2], id="truncated"),
        pytest.param(lambda data, other: data + b"\0", id="longer"),
        pytest.param(lambda data, other: b"", id="empty"),
        pytest.param(lambda data, other: b"x" * 1000, id="something else"),
        pytest.param(lambda data, other: other, id="another entry"),
    ],
)
def test_a_corrupt_entry_is_rebuilt(compiled, tmp_path, spoil):
    model = CASES[0].model()
    build(model, tmp_path / "cache")
    build(model, tmp_path / "other", **another_option())
    (entry,) = (tmp_path / "cache").iterdir()
    (other,) = (tmp_path / "other").iterdir()
    good = entry.read_bytes()
    entry.write_bytes(spoil(good, other.read_bytes()))
    compiled.clear()
    assert_computes(build(model, tmp_path / "cache"), model)
    assert len(compiled) == 1
    assert entry.read_bytes() == good
    build(model, tmp_path / "cache")
    assert len(compiled) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("kind", ["FIFO", "device", "dangling", "folder"])
def test_an_entry_that_is_not_a_file_does_not_block(compiled, tmp_path, kind):
    model = CASES[0].model()
    build(model, tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.unlink()
    if kind == "FIFO":
        os.mkfifo(entry)
    elif kind == "folder":
        entry.mkdir()
    else:
        entry.symlink_to({"device": "/dev/zero", "dangling": "nowhere"}[kind])
    compiled.clear()
    assert_computes(build(model, tmp_path), model)
    build(model, tmp_path)
    # The cache does not remove folders.
    assert len(compiled) == (2 if kind == "folder" else 1)


# ---- The folder ---------------------------------------------------------------------------------


def test_the_least_recently_used_entries_go_first(tmp_path):
    cache = Cache(tmp_path, 350)
    for age, key in enumerate(("a", "b", "c")):
        cache.put(key, key.encode() * 100)
        os.utime(tmp_path / f"{key}.artifact", (1000 + age, 1000 + age))
    assert cache.get("a", BufferedReader.read) == b"a" * 100  # This entry was used last.
    cache.put("d", b"d" * 100)
    assert cache.get("b", BufferedReader.read) is None
    assert [cache.get(key, BufferedReader.read) for key in "acd"] == [
        key.encode() * 100 for key in "acd"
    ]
    cache.put("e", b"e" * 350)
    assert [path.name for path in tmp_path.iterdir()] == ["e.artifact"]


def test_an_entry_that_is_too_large_is_not_kept_and_drops_nothing(tmp_path):
    cache = Cache(tmp_path, 100)
    cache.put("a", b"a" * 100)
    cache.put("b", b"b" * 101)
    assert cache.get("b", BufferedReader.read) is None
    assert cache.get("a", BufferedReader.read) == b"a" * 100


def test_a_file_over_the_limit_is_not_read(tmp_path):
    """A sparse file may be larger than the memory."""
    cache = Cache(tmp_path, 100)
    cache.put("a", b"a" * 100)
    os.truncate(tmp_path / "a.artifact", 1 << 40)
    assert cache.get("a", BufferedReader.read) is None
    cache.put("a", b"b" * 100)
    assert cache.get("a", BufferedReader.read) == b"b" * 100


def test_the_size_is_bounded_in_a_build_too(compiled, tmp_path):
    build(CASES[0].model(), tmp_path)
    (entry,) = tmp_path.iterdir()
    size = int(1.5 * entry.stat().st_size)
    build(CASES[0].model(), tmp_path, **another_option(), cache_bytes=size)
    assert len(list(tmp_path.iterdir())) == 1
    assert not entry.exists()


def test_unfinished_files_are_removed_after_a_while(tmp_path):
    old, new, foreign = (tmp_path / name for name in ("old.tmp", "new.tmp", "readme.txt"))
    for path in (old, new, foreign):
        path.write_text("x")
    dead, writing = (tmp_path / f"{UNFINISHED}{name}" for name in ("dead", "writing"))
    for folder in (dead, writing):
        folder.mkdir()
        (folder / "a.artifact").write_text("x")
    os.utime(old, (1000, 1000))
    os.utime(dead, (1000, 1000))
    Cache(tmp_path, 10).put("a", b"a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(writing.name, "a.artifact", "new.tmp", "readme.txt")
    ]


def test_an_impossible_folder_is_an_error_that_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(ValueError, match="'.*file.*' cannot be used: .*'cache_dir'"):
            build(CASES[0].model(), folder)


def test_a_full_disk_is_a_warning(caplog, monkeypatch, tmp_path):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    model = CASES[0].model()
    with caplog.at_level(logging.WARNING):
        assert_computes(build(model, tmp_path), model)
    assert any(os.strerror(errno.ENOSPC) in record.getMessage() for record in caplog.records)
    assert list(tmp_path.iterdir()) == []


MANY_PROCESSES = """
import sys
from io import BufferedReader
import numpy as np
from backend.engine.backend.compiling.cache import Cache

folder, seed = sys.argv[1], int(sys.argv[2])
cache = Cache(folder, 40_000)
generator = np.random.default_rng(seed)
hits = 0
for step in range(1500):
    key = str(generator.integers(10))
    content = (key * 10_000).encode()
    found = cache.get(key, BufferedReader.read)
    if found is None:
        cache.put(key, content)
    else:
        hits += 1
        assert found == content, key
    if step % 50 == 0:
        cache.drop(key)
assert hits > 0
print("done")
"""


@pytest.mark.thorough
def test_processes_that_share_a_folder_see_whole_entries_only(tmp_path):
    many_processes = MANY_PROCESSES.replace("from backend", f"from {backend.__name__}")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", many_processes, str(tmp_path), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for worker in workers:
        out, errors = worker.communicate()
        assert out.strip() == "done", errors
    Cache(tmp_path, 40_000).put("last", b"x")
    files = list(tmp_path.iterdir())
    assert all(path.suffix == ".artifact" for path in files)
    assert sum(path.stat().st_size for path in files) <= 40_000
