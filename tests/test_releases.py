"""The releases: each upgrades to the current commit, and that to a later one."""

from __future__ import annotations

import hashlib
import re
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import copier
import pytest
import yaml

import support
from npu_scaffold.cli import main
from npu_scaffold.render import MANIFEST
from npu_scaffold.versions import read_releases
from pages import code_block
from support import ROOT, commit, edit, git

LIST = ROOT / "releases.yml"
RELEASES = read_releases(LIST.read_text())
# Versions after all releases: the current commit, and an invented successor.
HERE, LATER = "v1000.0.0", "v1001.0.0"
ANSWERS: dict[str, Any] = {"backend_name": "acme_npu", "ops": ["conv2d", "max_pool2d", "relu"]}
# The vendor adds one op, and drops one.
OPS = ["conv2d", "relu", "softmax"]
# A test file that no other imports.
RENAMED = max(
    path.relative_to(ROOT).as_posix() for path in ROOT.glob("template/engine/*/tests/test_*.py")
)
UPGRADES = [*((f"v{version}", HERE) for version in RELEASES), (HERE, LATER)]


def name_of(upgrade: tuple[str, str]) -> str:
    return " to ".join(upgrade)


def gone() -> dict[str, str]:
    return yaml.safe_load(LIST.read_text()).get("gone") or {}


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a clone with the releases as tags, and two versions after them."""
    if git(ROOT, "rev-parse", "--is-shallow-repository") != "false":
        pytest.fail("The releases are tested on the whole history: run 'git fetch --unshallow'.")
    clone = tmp_path_factory.mktemp("history") / "template"
    git(clone.parent, "clone", "-q", "--no-tags", str(ROOT), str(clone))
    for version, listed in RELEASES.items():
        git(clone, "tag", f"v{version}", listed)
    shutil.rmtree(clone / "template")
    support.copy_template(clone)
    commit(clone, "what is on the disk")
    git(clone, "tag", HERE)
    _come_later(clone)
    commit(clone, "what will come")
    git(clone, "tag", LATER)
    return clone


def _come_later(clone: Path) -> None:
    """Change one thing of each kind: op, driver function, engine file, rendered file, seed."""
    template = clone / "template"
    # A new op: a copy of sigmoid's entry, and a lowering like its.
    (catalog,) = [
        path
        for path in (template / "_catalog").glob("*.yml")
        if "sigmoid" in yaml.safe_load(path.read_text())
    ]
    entry = yaml.safe_load(catalog.read_text())["sigmoid"]
    entry.update(relax="relax.later", summary="comes later")
    if "id" in entry:
        entry["id"] = 10_000
    catalog.write_text(f"{catalog.read_text()}\n{yaml.safe_dump({'later': entry})}")
    support.write_snippets(clone)
    edit(
        template / "engine/backend/lowerings/activation.cc",
        'REGISTER_ELEMENTWISE("relax.sigmoid", ',
        'REGISTER_ELEMENTWISE("relax.later", Sigmoid);\n\nREGISTER_ELEMENTWISE("relax.sigmoid", ',
    )
    header = template / "engine/backend/include/npu_driver.h"
    version = re.search(r"#define NPU_DRIVER_API_VERSION (\d+)", header.read_text())
    assert version
    edit(header, version[0], f"#define NPU_DRIVER_API_VERSION {int(version[1]) + 1}")
    edit(header, "} npu_run_api;", "  npu_status (*later)(npu_request*, int64_t);\n} npu_run_api;")
    device = template / "engine/workbench/emulator/device.cc"
    (table,) = re.findall(r"constexpr npu_run_api kRunApi = .*?\n};", device.read_text(), re.DOTALL)
    edit(device, table, table.replace("\n};", "\n    Wait,\n};"))
    (template / "engine/backend/common/later.h").write_text("// Comes later.\n")
    renamed = clone / RENAMED
    renamed.rename(renamed.with_name("test_later.py"))
    edit(template / "README.md.jinja", "## ", "## Comes later\n\nMuch.\n\n## ")
    seed = template / "vendor/vendor.cmake.jinja"
    seed.write_text(seed.read_text() + "# Comes later.\n")
    (template / "vendor/later.py").write_text('"""Comes later."""\n')


@dataclass
class Old:
    """A backend of an old version, and a fresh render of it by the newer one."""

    version: str
    target: str
    project: Path
    fresh: Path


@pytest.fixture(scope="module", params=UPGRADES, ids=name_of)
def old(
    request: pytest.FixtureRequest, history: Path, tmp_path_factory: pytest.TempPathFactory
) -> Old:
    version, target = request.param
    root = tmp_path_factory.mktemp("old")
    for name, ref in (("project", version), ("fresh", target)):
        copier.run_copy(
            str(history), str(root / name), data=ANSWERS, defaults=True, quiet=True, vcs_ref=ref
        )
    git(root / "project", "init", "-q", "-b", "main")
    commit(root / "project", "start")
    return Old(version, target, root / "project", root / "fresh")


of_the_ends = pytest.mark.parametrize(
    "old", [UPGRADES[0], *UPGRADES[-2:]], indirect=True, ids=name_of
)
"""Marks tests of the first and the last release, and of the current commit."""


def _mine(old: Old, tmp_path: Path) -> Path:
    shutil.copytree(old.project, tmp_path / "backend")
    return tmp_path / "backend"


ADDING_AN_OP = ROOT / "docs/adding-an-op.md"

OVERRIDE = """
#include "lowering.h"

namespace {

bool IsTooLong(const npu::Lowering& op) {
  const auto dims = op.InputDims(0);
  return dims.size() == 1 && dims[0].symbol < 0 && dims[0].size == 4321;
}

void Relu(npu::Lowering& op) { op.Refuse("Acme's board has no 4321 of anything"); }

REGISTER_LOWERING("relax.nn.relu", Relu).When(IsTooLong);

}  // namespace
"""

# As the engine's own was until release 0.3.0.
LIKE_THE_ENGINES = """
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void MaxPool2D(Lowering& op) { LowerMaxPool(op, 2); }

REGISTER_LOWERING("relax.nn.max_pool2d", MaxPool2D);

}  // namespace
}  // namespace npu
"""

PASSES = """
def _seen(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    return mod.with_attr("acme", "seen")


BEFORE = [tvm.transform.module_pass(_seen, opt_level=0, name="AcmeSeen")]
DISABLED = ["FoldBatchNorm"]
"""

KNOWN_FAILURE = """
[[expected_failure]]
suite = "onnx_nodes"
case = "acos"
reason = "Acme has no arcus cosine"
"""

TESTS = """
import numpy as np
import tvm
from tvm import relax

import tvm_acme_npu as backend


def model(make, *shape):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(x)))
        builder.emit_func_output(result)
    return builder.get()


def placed(make, *shape):
    (entry,) = backend.offload_report(backend.partition_for_acme_npu(model(make, *shape))).ops
    return entry


def test_an_op_of_our_own_computes():
    assert placed(relax.op.asinh, 3, 4).placement == "npu"
    executable = backend.compile_for_acme_npu(model(relax.op.asinh, 3, 4))
    x = np.random.default_rng(0).uniform(0, 9, (3, 4)).astype("float32")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, np.arcsinh(x), rtol=1e-5)


def test_our_lowering_of_relu_wins_where_we_want_it():
    assert placed(relax.op.nn.relu, 4320).placement == "npu"
    entry = placed(relax.op.nn.relu, 4321)
    assert entry.placement == "host"
    assert "Acme's board has no 4321 of anything" in entry.reason


def test_the_limits_are_ours():
    kernel = relax.const(np.ones((4, 3, 3, 3), "float32"))
    convolution = lambda strides: lambda x: relax.op.nn.conv2d(x, kernel, strides=strides)
    assert placed(convolution(2), 1, 3, 9, 9).placement == "npu"
    entry = placed(convolution(3), 1, 3, 9, 9)
    assert entry.placement == "host" and "strides" in entry.reason


def test_our_pass_runs():
    mod = backend.partition_for_acme_npu(model(relax.op.nn.relu, 4))
    assert mod.attrs["acme"] == "seen"
"""

BUILD = """
enable_language(C)
set(_here "${CMAKE_CURRENT_LIST_DIR}")
set(NPU_VENDOR_LOWERINGS "${_here}/lowerings/asinh.cc" "${_here}/lowerings/board_relu.cc"
    "${_here}/lowerings/max_pool2d.cc")
set(NPU_VENDOR_DRIVER_SOURCES "${_here}/driver/driver.c")
set(NPU_VENDOR_DRIVER_INCLUDE_DIRECTORIES "${_here}/driver")
set(NPU_VENDOR_DRIVER_LIBRARIES m)
"""

# With the driver in vendor/, which has its own option and supports element-wise ops.
ON_THE_DRIVER = """
import sys

sys.path.append("vendor/tests")
import pytest
from test_board import backend, np, model, relax, tvm

assert backend.Options.load(None).driver == "vendor"
assert backend.Options.load({"speed": "slow"}).recorded()["speed"] == "slow"
with pytest.raises(ValueError, match="supported"):
    backend.Options.load({"speed": "fastest"})
mod = model(relax.op.nn.relu, 3, 4)
(entry,) = backend.offload_report(backend.partition_for_acme_npu(mod)).ops
assert entry.placement == "npu", entry
x = np.arange(12, dtype="float32").reshape(3, 4) - 5
machine = relax.VirtualMachine(backend.compile_for_acme_npu(mod), tvm.cpu())
np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(x)).numpy(), np.maximum(x, 0))

# It cannot fail on demand, whatever the emulator beside it can.
from tvm_acme_npu.engine.workbench.conformance.contract import NotRun, fail_next

with pytest.raises(NotRun):
    fail_next("load", "timeout")
"""


def _vendor_edits(project: Path) -> None:
    """Edit, add and delete files in vendor/, as its files and the docs describe."""
    vendor = project / "vendor"
    (vendor / "lowerings").mkdir(exist_ok=True)
    (vendor / "lowerings/asinh.cc").write_text(code_block(ADDING_AN_OP, "cpp"))
    (vendor / "lowerings/board_relu.cc").write_text(OVERRIDE)
    (vendor / "lowerings/max_pool2d.cc").write_text(LIKE_THE_ENGINES)
    shutil.copytree(ROOT / "tests/frozen_drivers/v1", vendor / "driver")
    with (vendor / "vendor.cmake").open("a") as build:
        build.write(BUILD)
    capabilities = vendor / "capabilities.py"
    before, name, after = capabilities.read_text().partition('"conv2d": Limits(')
    rules = 'rules=(AtMost("weight.shape[2]", 7), AtMost("weight.shape[3]", 7)), '
    strides = f"{rules}strides=Range(1, 2)"
    after, changes = re.subn(r"\bstrides=Range\(1, \d+\)", lambda _: strides, after, count=1)
    assert changes == 1
    capabilities.write_text(before + name + after)
    (entry,) = re.findall(r"^ {6}EXTRA_OPS: .*?^ {6}\)\n", ADDING_AN_OP.read_text(), re.M | re.S)
    edit(capabilities, "EXTRA_OPS: tuple[Op, ...] = ()\n", textwrap.dedent(entry))
    with (vendor / "passes.py").open("a") as passes:
        passes.write(PASSES)
    with (vendor / "expected_failures.toml").open("a") as ledger:
        ledger.write(KNOWN_FAILURE)
    (vendor / "cases.json").write_text(code_block(ADDING_AN_OP, "json"))
    (vendor / "tests/test_board.py").write_text(TESTS)
    (vendor / "tests/README.md").unlink()


def _rendered_edits(project: Path) -> None:
    """Edit files that an update merges."""
    with (project / "README.md").open("a") as readme:
        readme.write("\nThe board of Acme.\n")
    edit(project / "pyproject.toml", 'version = "0.1.0"', 'version = "3.2.1"')


def _copier_update(project: Path, target: str) -> None:
    copier.run_update(str(project), defaults=True, overwrite=True, quiet=True, vcs_ref=target)


def _upgrade(project: Path, target: str, *arguments: str) -> None:
    assert main(["upgrade", "--to", target, *arguments, str(project)]) == 0


def _assert_updated(old: Old, project: Path, before: dict[str, bytes]) -> None:
    """Assert that vendor/ is unchanged, and everything else equals a fresh render."""
    after, fresh = support.contents(project), support.contents(old.fresh)
    expected = {name: data for name, data in fresh.items() if not name.startswith("vendor/")}
    expected |= {name: data for name, data in before.items() if name.startswith("vendor/")}
    assert after.keys() == expected.keys()
    assert [name for name in after if after[name] != expected[name]] == []


def test_the_list_names_commits_of_the_history_in_order(history: Path) -> None:
    assert RELEASES, "releases.yml lists no release yet: docs/maintaining.md says how to add one."
    previous = ""
    for version, listed in RELEASES.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), version
        assert re.fullmatch(r"[0-9a-f]{40}", listed), f"{version}: write the whole commit"
        for earlier, later in ((listed, "HEAD"), (previous or listed, listed)):
            git(ROOT, "merge-base", "--is-ancestor", earlier, later)
        previous = listed
        assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def _manifests() -> dict[str, set[str]]:
    """Return the rendered files outside of engine/, of each release and of the current commit."""
    found = {"here": (ROOT / MANIFEST).read_text()}
    for version, listed in RELEASES.items():
        found[version] = git(ROOT, "show", f"{listed}:{MANIFEST.as_posix()}")
    return {version: set(text.split("\n")) - {""} for version, text in found.items()}


def lost_paths(manifests: dict[str, set[str]], noted: dict[str, str]) -> list[str]:
    """Report released paths that are gone without a note, or that changed from file to folder."""
    here = manifests["here"]
    problems = []
    for version, paths in manifests.items():
        problems += [
            f"{path} of {version} is gone: say under 'gone:' in releases.yml what its vendors do."
            for path in sorted(paths - here - noted.keys())
            if not path.startswith("vendor/")
        ]
        problems += [
            f"{path} of {version} was a file, and {other} needs a folder there."
            for path in sorted(paths)
            for other in sorted(here)
            if other.startswith(f"{path}/")
        ]
        problems += [
            f"{path} is a file, where {version} had {other}."
            for path in sorted(here)
            for other in sorted(paths)
            if other.startswith(f"{path}/")
        ]
    return problems


def test_no_path_that_vendors_may_have_edited_disappears_without_a_note(history: Path) -> None:
    assert lost_paths(_manifests(), gone()) == []
    assert [path for path in gone() if path in _manifests()["here"]] == []


def test_a_path_that_disappears_is_noticed() -> None:
    here = {"README.md", "vendor/capabilities.py", "src/a.h"}
    then = {"README.md", "vendor/old.py", "notes.md", "src", "README.md/x"}
    assert lost_paths({"here": here, "0.1.0": then}, {"src": "", "README.md/x": ""}) == [
        "notes.md of 0.1.0 is gone: say under 'gone:' in releases.yml what its vendors do.",
        "src of 0.1.0 was a file, and src/a.h needs a folder there.",
        "README.md is a file, where 0.1.0 had README.md/x.",
    ]
    assert lost_paths({"here": here, "0.1.0": here}, {}) == []


def test_a_vendor_who_edits_only_vendor_needs_only_copier_update(old: Old, tmp_path: Path) -> None:
    project = _mine(old, tmp_path)
    _vendor_edits(project)
    commit(project, "our work")
    before = support.contents(project)
    _copier_update(project, old.target)
    _assert_updated(old, project, before)
    assert support.answers(project)["_commit"] == old.target


@of_the_ends
def test_ops_are_added_and_dropped(
    old: Old, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = _mine(old, tmp_path)
    _vendor_edits(project)
    commit(project, "our work")
    before = support.contents(project)
    _upgrade(project, old.target, "-d", f"ops={OPS}")
    said = capsys.readouterr().out
    assert "ops added: softmax\nops dropped: max_pool2d\n" in said
    after = support.contents(project)
    assert sorted(support.answers(project)["ops"]) == OPS
    table = after["python/tvm_acme_npu/patterns.py"]
    assert b'"softmax"' in table
    assert b'"max_pool2d"' not in table
    for names in (before, after):
        assert {n: d for n, d in names.items() if n.startswith("vendor/")} == {
            n: d for n, d in before.items() if n.startswith("vendor/")
        }
    if old.target == LATER:
        assert "selected with -d ops=[...]: later" in said
        assert "+ engine/backend/common/later.h" in said
        assert f"- {RENAMED.removeprefix('template/')}" in said
        assert re.search(r"driver API version: \d+ -> \d+", said)
        assert "~ vendor/vendor.cmake" in said and "+ vendor/later.py" in said


@of_the_ends
def test_edits_of_a_template_file_are_merged(
    old: Old, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = _mine(old, tmp_path)
    _vendor_edits(project)
    _rendered_edits(project)
    commit(project, "our work")
    before = support.contents(project)
    assert main(["upgrade", "--to", old.target, str(project)]) == 0, capsys.readouterr().err
    with (old.fresh / "README.md").open() as fresh:
        expected = fresh.read() + "\nThe board of Acme.\n"
    assert (project / "README.md").read_text() == expected
    assert 'version = "3.2.1"' in (project / "pyproject.toml").read_text()
    assert support.contents(project)["vendor/vendor.cmake"] == before["vendor/vendor.cmake"]


@dataclass(frozen=True)
class Row:
    """The edits of a backend before its update, and how it is updated."""

    edit: tuple[Callable[[Path], None], ...]
    update: Callable[[Path, str], None]


ROWS = {
    "edits in vendor": Row((_vendor_edits,), _copier_update),
    "ops added and dropped": Row(
        (_vendor_edits,), lambda project, target: _upgrade(project, target, "-d", f"ops={OPS}")
    ),
    "edits of rendered files": Row((_vendor_edits, _rendered_edits), _upgrade),
}


# Built are the first release with each row, and the last one with a vendor's edits. Other tests
# show what updates make of trees.
BUILT = [
    pytest.param(pair, row, id=f"{name_of(pair)}-{row}")
    for pair, rows in ((UPGRADES[0], [*ROWS]), (UPGRADES[-2], ["edits in vendor"]))
    for row in rows
]


@pytest.mark.slow
@pytest.mark.parametrize(("old", "row"), BUILT, indirect=["old"])
def test_it_builds_and_works_after_the_update(
    old: Old,
    row: str,
    tmp_path: Path,
    workshop: support.Workshop,
) -> None:
    project = _mine(old, tmp_path)
    for edit_some in ROWS[row].edit:
        edit_some(project)
    commit(project, "our work")
    ROWS[row].update(project, old.target)
    # Releases mostly become the same tree, which has to be built once.
    known = workshop.shared / f"built-{_digest(project)}"
    if known.exists():
        return
    python = workshop.environment(workshop.wheel(project))
    support.run(python, "-m", "tvm_acme_npu", "check")
    pytest_ = (python, "-m", "pytest", "-q", "-rp", "-p", "no:cacheprovider")
    tests = support.share_of_tests([*ROWS].index(row), 2 * len(ROWS))
    said = support.run(*pytest_, *tests, cwd=project)
    total = said.splitlines()[-1]
    assert re.search(r"\d+ passed", total) and "failed" not in total, said
    assert len(re.findall(r"^PASSED vendor/tests/", said, re.MULTILINE)) == 4, said
    if row == "edits in vendor":
        kit = ("conformance", *support.IN_ONE_PROCESS, "--filter", "asinh")
        support.run(python, "-m", "tvm_acme_npu", *kit)
        _works_on_the_driver(project, python, tmp_path)
    known.touch()


@pytest.mark.slow
@pytest.mark.parametrize(("version", "driver"), [("0.2.0", "graph"), ("0.3.0", "commands")])
def test_a_released_skeleton_builds_after_the_update(
    version: str, driver: str, history: Path, tmp_path: Path, workshop: support.Workshop
) -> None:
    """It is the vendor's, as it was seeded, and compiles against the kit of today."""
    project = tmp_path / "backend"
    answers = {**ANSWERS, "driver": driver}
    copier.run_copy(
        str(history), str(project), data=answers, defaults=True, quiet=True, vcs_ref=f"v{version}"
    )
    git(project, "init", "-q", "-b", "main")
    commit(project, "start")
    seeded = support.contents(project / "vendor")
    _copier_update(project, HERE)
    assert support.contents(project / "vendor") == seeded
    python = workshop.environment(workshop.wheel(project))
    said = support.run(python, "-m", "pytest", "-q", "vendor/tests", cwd=project)
    assert re.search(r"\d+ passed", said) and "failed" not in said
    done = support.attempt(python, "-m", "tvm_acme_npu", "check", ACME_NPU_DRIVER="vendor")
    assert "The driver 'vendor' declines all 3 ops" in done.stdout
    assert "the driver has no relu yet" in done.stdout


def _digest(project: Path) -> str:
    """Name what is built: all of a tree but where it came from, its version, and words.

    No row reads the pages, nor the ledger, which lists cases of other ops.
    """
    digest = hashlib.sha256()
    for name, content in sorted(support.contents(project).items()):
        if name == "README.md":
            continue
        if name.startswith("vendor/") and name.endswith((".md", "expected_failures.toml")):
            continue
        lines = content.splitlines()
        if name.startswith("vendor/"):
            lines = [line for line in lines if not line.startswith(b"#")]
        elsewhere = (b"_src_path: ",) if name != "pyproject.toml" else (b"version = ",)
        lines = [line for line in lines if not line.startswith(elsewhere)]
        digest.update(repr((name, lines)).encode())
    return digest.hexdigest()


def _works_on_the_driver(project: Path, python: Path, tmp_path: Path) -> None:
    """Compile the driver beside the build, as docs/driver.md says, and run on it."""
    tried = tmp_path / "try"
    tried.mkdir()
    support.run(
        *("cc", "-std=c11", "-O2", "-fPIC", "-shared", "-Ivendor/driver", "vendor/driver/driver.c"),
        *("-lm", "-o", tried / "libtvm_acme_npu_driver.so"),
        cwd=project,
    )
    chosen = {"ACME_NPU_DRIVER_DIR": str(tried), "ACME_NPU_DRIVER": "vendor"}
    script = tmp_path / "on_the_driver.py"
    script.write_text(ON_THE_DRIVER)
    support.run(python, script, cwd=project, **chosen)
    support.run(python, "-m", "tvm_acme_npu", "check", **chosen)


@pytest.mark.parametrize("preset", ["everything", "cnn", "transformer"])
def test_a_preset_is_stored_as_its_ops_and_never_grows(
    preset: str, tmp_path: Path, catalog: dict[str, dict[str, Any]]
) -> None:
    """Uses the real questions, but renders only the answers file, to be quick."""
    origin, project = tmp_path / "origin", tmp_path / "project"
    support.copy_questions(origin)
    git(origin, "init", "-q")
    # The first release lacks an op that is now in all presets.
    (holding,) = [
        path
        for path in (origin / "template/_catalog").glob("*.yml")
        if "softmax" in yaml.safe_load(path.read_text())
    ]
    whole = holding.read_text()
    entries = yaml.safe_load(whole)
    del entries["softmax"]
    holding.write_text(yaml.safe_dump(entries, sort_keys=False))
    support.write_snippets(origin)
    commit(origin, "first")
    git(origin, "tag", "v1.0.0")
    holding.write_text(whole)
    support.write_snippets(origin)
    commit(origin, "second")
    git(origin, "tag", "v2.0.0")

    data = {"backend_name": "acme_npu", "op_preset": preset}
    arguments: dict[str, Any] = {"defaults": True, "quiet": True}
    copier.run_copy(str(origin), str(project), data=data, vcs_ref="v1.0.0", **arguments)
    git(project, "init", "-q")
    commit(project, "start")
    first = support.answers(project)
    members = [op for op, entry in catalog.items() if preset in ("everything", *entry["presets"])]
    assert "softmax" in members
    assert set(first["ops"]) == set(members) - {"softmax"}
    copier.run_update(str(project), overwrite=True, **arguments)
    second = support.answers(project)
    assert second["_commit"] == "v2.0.0"
    assert second["ops"] == first["ops"]
    commit(project, "updated")
    with pytest.raises(ValueError, match="The ops are listed already"):
        copier.run_update(str(project), data={"op_preset": preset}, overwrite=True, **arguments)
