"""A backend of any ops passes its own tests, with all optional packages that are installed here.

The engine is the same in all backends, so it is compiled once: only what lists the ops is rendered.
By default, one op of each kind is tested alone, and a few random sets of ops; they share out the
files of tests. A pair of ops runs those of the table. With EVERY_TEST=1 all ops and all sets run
all files, for an hour.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import support
from npu_scaffold.catalog import load_catalog
from support import EVERY, ROOT, Workshop, run, site_packages

pytestmark = pytest.mark.slow

CATALOG = load_catalog(ROOT)
PACKAGE = "tvm_example_npu"
NAMES_OPS = (
    "python/{{ package }}/_backend.py.jinja",
    "python/{{ package }}/patterns.py.jinja",
    "vendor/capabilities.py.jinja",
)
"""The templates whose renders depend on the ops and are part of the package."""


def kind_of(entry: dict[str, Any]) -> tuple[object, ...]:
    """Return what makes ops alike for the tests."""
    single = "relax" in entry
    return entry["family"], single, len(entry["inputs"]), entry.get("engine"), "fuses" in entry


def _one_of_each_kind() -> list[str]:
    first: dict[tuple[object, ...], str] = {}
    for op, entry in CATALOG.items():
        first.setdefault(kind_of(entry), op)
    return list(first.values())


def _random_sets() -> dict[str, list[str]]:
    generator = random.Random(38)
    names = list(CATALOG)
    sets = [generator.sample(names, generator.randint(2, 60)) for _ in range(20)]
    return {f"random{number}": sorted(ops, key=names.index) for number, ops in enumerate(sets)}


ALONE = {op: [op] for op in (CATALOG if EVERY else _one_of_each_kind())}
RANDOM = {
    name: ops for name, ops in _random_sets().items() if EVERY or name in ("random8", "random12")
}
PAIRS = {"clip and hard_swish": ["clip", "hard_swish"]}
"""Sets in which something was wrong that neither one op nor the random sets show."""

OF_THE_TABLE = support.engine_tests(
    *("artifact", "chains", "compile_cache", "conformance", "decomposed", "extract", "fusion"),
    *("inspect", "memory_sizes", "ops", "overlap", "partition", "passes", "reasons", "report"),
    *("runtime", "page", "profile", "vendor"),
)
"""The tests of whatever ops the table has; the others are about certain ops, or about none."""
NEW_PROCESSES = (
    "not all_ops_together and not program_with_other_inputs and not archive_of_objects "
    "and not flipped_bit and not truncated_artifact and not forged_manifests"
)
"""Without tests that start processes or damage each byte of an artifact, whatever its op."""


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a template that only renders what depends on the ops."""
    template = support.copy_questions(tmp_path_factory.mktemp("questions"))
    for name in NAMES_OPS:
        copy = template / "template" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "template" / name, copy)
    return template


@pytest.fixture(scope="module")
def installed(workshop: Workshop) -> Path:
    """Return the Python of an environment with the reference backend, and all optional packages."""
    python = workshop.environment(workshop.wheel(ROOT / "reference_backend"))
    support.lend_packages(python)
    return python


def lay_out(folder: Path, ops: list[str], questions: Path, installed: Path, tests: Path) -> Path:
    """Make a package that shares all but the rendered files with the installed one."""
    rendered = support.render(
        questions, folder / "rendered", backend_name="example_npu", op_preset="custom", ops=ops
    )
    packages = site_packages(installed)
    package = folder / "package" / PACKAGE
    package.mkdir(parents=True)
    (info,) = packages.glob(f"{PACKAGE}-*.dist-info")
    (package.parent / info.name).symlink_to(info)
    for item in (packages / PACKAGE).iterdir():
        if item.name not in ("vendor", "__pycache__"):
            (package / item.name).symlink_to(item)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(packages / PACKAGE / "vendor", package / "vendor", ignore=ignored)
    for source, copy in (
        (rendered / "python" / PACKAGE / "_backend.py", package / "_backend.py"),
        (rendered / "python" / PACKAGE / "patterns.py", package / "patterns.py"),
        (rendered / "vendor/capabilities.py", package / "vendor/capabilities.py"),
    ):
        copy.unlink()
        shutil.copy(source, copy)
    for item in tests.iterdir():
        (folder / item.name).symlink_to(item)
    return folder


def run_sets(
    sets: dict[str, list[str]],
    questions: Path,
    installed: Path,
    tmp_path: Path,
    files_of: Callable[[int], list[str]],
    *arguments: str,
) -> None:
    """Run tests of a backend of each set of ops: those of its number."""
    tests = tmp_path / "tests"
    support.copy_tests(ROOT / "reference_backend", tests)
    folders = [
        lay_out(tmp_path / name.replace(" ", "_"), ops, questions, installed, tests)
        for name, ops in sets.items()
    ]
    for number, folder in enumerate(folders):
        (folder / "arguments").write_text("\n".join(["-q", *arguments, *files_of(number)]))
    script = ROOT / "tests/run_subsets.py"
    output = run(installed, script, *folders, PYTHONDONTWRITEBYTECODE="")
    ended = dict(line.split(": ") for line in output.splitlines()[-len(folders) :])
    assert ended.keys() == {folder.name for folder in folders}, output
    logs = {folder.name: (folder / "log").read_text()[-20_000:] for folder in folders}
    failed = [
        f"{ops}\n{logs[folder.name]}"
        for folder, ops in zip(folders, sets.values(), strict=True)
        if ended[folder.name] != "0" or " passed" not in logs[folder.name]
    ]
    assert not failed, f"{len(failed)} of {len(folders)} sets:\n" + "\n".join(failed)


def test_each_op_alone(questions: Path, installed: Path, tmp_path: Path) -> None:
    def files_of(number: int) -> list[str]:
        return OF_THE_TABLE if EVERY else OF_THE_TABLE[number % 8 :: 8]

    run_sets(ALONE, questions, installed, tmp_path, files_of, "-k", NEW_PROCESSES)


def test_random_sets_of_ops(questions: Path, installed: Path, tmp_path: Path) -> None:
    names = [*RANDOM, *PAIRS]

    def files_of(number: int) -> list[str]:
        if names[number] in PAIRS and not EVERY:
            return OF_THE_TABLE
        return support.share_of_tests(number, 1 if EVERY else 5)

    run_sets({**RANDOM, **PAIRS}, questions, installed, tmp_path, files_of)


def test_the_default_run_has_an_op_of_each_kind() -> None:
    assert {kind_of(CATALOG[op]) for op in ALONE} == {*map(kind_of, CATALOG.values())}
    assert len(ALONE) > 30
    assert not EVERY or (len(ALONE), len(RANDOM)) == (len(CATALOG), 20)
