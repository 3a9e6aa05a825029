"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from copier._main import Worker

import support
from support import ROOT

gc.set_threshold(*support.GARBAGE)

LONGEST = (
    "test_reference_tests.py",
    "test_isa.py",
    "test_releases.py",
    "test_reference_kit.py",
    "test_backends.py",
    "test_reference_models.py",
    "test_plain_chip.py",
    "test_subsets.py",
    "test_port_guide.py",
    "test_xnnpack.py",
    "test_ethosu.py",
    "test_armnn.py",
    "test_skeletons.py",
    "test_engine.py",
    "test_controls.py",
    "test_isa_lean.py",
    "test_scales.py",
    "test_deploy.py",
    "test_vendor_driver.py",
    "test_layout.py",
    "test_render.py",
)
"""These start first: if one started last, the other processes would sit idle."""

MEMORY = Path("/dev/shm")
ENOUGH = 12 << 30
"""The bytes of the temporary files of all tests, and of the processes beside them."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory, where they have room and the user names no other place.

    The tests make and remove so many small files that a disk takes a fifth of the time of some.
    """
    chosen = "TMPDIR" in os.environ or config.option.basetemp
    if not chosen and _room_in_memory() >= ENOUGH:
        folder = tempfile.mkdtemp(prefix="npu-scaffold-tests-", dir=MEMORY)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def _room_in_memory() -> int:
    """Return how many bytes of files, which may be programs, the memory takes."""
    meminfo = Path("/proc/meminfo")
    if not os.access(MEMORY, os.W_OK | os.X_OK) or not meminfo.is_file():
        return 0
    known = os.statvfs(MEMORY)
    if known.f_flag & os.ST_NOEXEC:
        return 0
    found = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return min(known.f_bavail * known.f_frsize, int(found["MemAvailable"].split()[0]) << 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first."""
    items.sort(key=lambda item: (*LONGEST, item.path.name).index(item.path.name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests have measured: `record_property("measured", ...)`."""
    passed: list[pytest.TestReport] = terminalreporter.getreports("passed")
    properties = [item for report in passed for item in report.user_properties]
    if found := [str(value) for name, value in properties if name == "measured"]:
        terminalreporter.section("measured")
        for line in sorted(found):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_the_developer(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = tmp_path_factory.mktemp("settings") / "settings.yml"
    settings.write_text("{}\n")
    os.environ["COPIER_SETTINGS_PATH"] = str(settings)
    os.environ.update(
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_AUTHOR_NAME="Tester",
        GIT_AUTHOR_EMAIL="tester@example.com",
        GIT_COMMITTER_NAME="Tester",
        GIT_COMMITTER_EMAIL="tester@example.com",
    )


@pytest.fixture(scope="session", autouse=True)
def _copier_is_quick() -> Iterator[None]:
    """Save most of Copier's time.

    Copier compiles each part of each path, which is cached here; asks Git for the mode of each
    file, which only matters on file systems without modes; and reads YAML in Python, not in C.
    """
    compile_ = jinja2.Environment.compile
    compiled: dict[Any, Any] = {}

    def compile_once(environment: jinja2.Environment, source: Any, *rest: Any, **more: Any) -> Any:
        if rest or more or not isinstance(source, str) or len(source) > 200:
            return compile_(environment, source, *rest, **more)
        kind = (type(environment), *environment.extensions, *environment.filters)
        if (source, kind) not in compiled:
            compiled[source, kind] = compile_(environment, source)
        return compiled[source, kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", compile_once)
        patch.setattr(Worker, "_sync_git_index_executable_bit", lambda *_: None)
        patch.setattr(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        yield


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the template's working tree outside of Git, where Copier would take the latest tag."""
    copy = tmp_path_factory.mktemp("template")
    support.copy_template(copy)
    return copy


@pytest.fixture(scope="session")
def catalog() -> dict[str, dict[str, Any]]:
    from npu_scaffold.catalog import load_catalog

    return load_catalog(ROOT)


@pytest.fixture(scope="session")
def render(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Render a backend once per set of answers; tests must not change the tree."""
    rendered: dict[str, Path] = {}

    def render_once(**answers: Any) -> Path:
        key = repr(sorted(answers.items()))
        if key not in rendered:
            destination = tmp_path_factory.mktemp("render") / "backend"
            support.render(template, destination, **answers)
            rendered[key] = destination
        return rendered[key]

    return render_once


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> support.Workshop:
    """Wheels and environments, each made once per session."""
    if shutil.which("c++") is None:
        pytest.fail("The tests build backends, which takes a C++17 compiler: install g++ or clang.")
    base = tmp_path_factory.getbasetemp()
    # pytest-xdist gives each process a folder below the shared one.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    # Most sources are the same in all backends.
    ccache = str(Path(sys.executable).with_name("ccache"))
    os.environ.update(
        CMAKE_C_COMPILER_LAUNCHER=ccache,
        CMAKE_CXX_COMPILER_LAUNCHER=ccache,
        CCACHE_DIR=str(ROOT / "build/ccache"),
        CCACHE_BASEDIR=str(shared),
        CCACHE_NOHASHDIR="1",
        CCACHE_SLOPPINESS="pch_defines,time_macros",
        # Most builds have it, so that objects without warnings serve those without it.
        CCACHE_IGNOREOPTIONS="-Werror",
        # Where 'python -m build' unpacks sources: paths below the base are relative.
        TMPDIR=str(shared),
    )
    return support.Workshop(tmp_path_factory.mktemp("workshop"), shared)


@pytest.fixture(scope="session")
def reference(workshop: support.Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the reference backend and, if we have it, torch."""
    project = tmp_path_factory.mktemp("reference") / "backend"
    shutil.copytree(support.ROOT / "reference_backend", project)
    python = workshop.environment(workshop.wheel(project))
    support.lend_packages(python)
    return python
