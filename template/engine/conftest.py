# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the tests of both wings share; `tests/` has their helpers."""

import gc
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import tvm_ffi

from under_test import ROOT

gc.disable()  # Until all is imported.

import backend  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "thorough: about the engine alone, and slow; not run unless -m or a name asks for it",
    )
    # The backend's conftest.py has loaded it, unless the tests are in a TVM checkout.
    config.pluginmanager.import_plugin(f"{backend.__name__}.engine.workbench.pytest_ledger")


# The ledger may name tests that are left out.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.option.markexpr or any("::" in name for name in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_report_header():
    lines = [f"backend: {backend.__name__} {backend.__version__}"]
    if newer := newer_sources():
        lines.append(f"STALE: what is installed is older than {newer}: run pip install '.[test]'")
    return lines


def pytest_terminal_summary(terminalreporter):
    if newer := newer_sources():
        terminalreporter.section("stale install", red=True)
        terminalreporter.line(
            f"What was tested is what is installed in {Path(backend.__file__).parent}. It is older "
            f"than {newer}. Run pip install '.[test]', or use the editable install of README.md."
        )


def newer_sources():
    """Return the sources next to these tests that are newer than what is installed."""
    installed = Path(backend.__file__).parent
    folders = ("engine/*/", "src/", "vendor/", f"python/{backend.__name__}/")
    sources = [
        path
        for folder in folders
        for path in ROOT.glob(f"{folder}**/*.*")
        if path.suffix in (".cc", ".h", ".inc", ".py") and "tests" not in path.parts
    ]
    libraries = list(installed.glob("*.so"))
    if not libraries or not sources:
        return ""  # An editable install, or tests without sources beside them.
    built = min(path.stat().st_mtime for path in libraries)
    newer = [str(path.relative_to(ROOT)) for path in sources if path.stat().st_mtime > built + 2]
    return ", ".join(newer[:3]) + (", ..." if len(newer) > 3 else "")


def pytest_sessionstart():
    """Report once, not once per file, that the backend does not load."""
    try:
        callable(backend.offload_report)
    except RuntimeError as error:
        pytest.exit(str(error), returncode=3)


@dataclass(frozen=True)
class EveryOp:
    """A case of each op in the table, all compiled into one library."""

    models: list
    compiled: object
    library: Path


@pytest.fixture(scope="module")
def bound_constants():
    """Embed constants, whatever the backend's default is: scales must be constants."""
    from backend.engine.backend.settings.options import PREFIX

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"{PREFIX}BIND_CONSTANTS", "on")
        yield


@pytest.fixture(scope="session")
def every_op(tmp_path_factory):
    """Compile the ops once for all tests."""
    import support
    from backend.engine.workbench.conformance.compiled import placement

    def is_on_npu(model):
        return not placement(compiled.partitioned[model.name], model.name).on_host

    models = [case.model() for case in support.accepted_cases()]
    compiled = support.compile_all(models)
    taken = [model for model in models if is_on_npu(model)]
    if not taken:
        pytest.skip("the driver takes none of the ops")
    if len(taken) < len(models):  # TVM's kernels may need the compiler, or be missing.
        models, compiled = taken, support.compile_all(taken)
    (executable,) = set(compiled.executables.values())
    library = tmp_path_factory.mktemp("every_op") / "model.so"
    executable.export_library(str(library))
    return EveryOp(models, compiled, library)


def pytest_collection_finish(session):
    """Record which parameters the selected tests use, so that only those are compiled."""
    import support

    # Modules and tests stay: to look for garbage in them would take a tenth of the time.
    gc.freeze()
    gc.enable()
    if "torch" in sys.modules:
        from quick_torch import list_new_ops_only

        list_new_ops_only()
    for item in session.items:
        if hasattr(item, "callspec"):
            support.SELECTED.update(map(str, item.callspec.params.values()))


@pytest.fixture
def decline():
    """Make a function decide what the driver declines."""
    name = f"{backend.engine.backend.shared.backend.BACKEND}.codegen.decline_reason"
    original = tvm_ffi.get_global_func(name)

    def install(answer):
        def ask(function, driver, options, bounds, finish, rule):
            own = answer(function, finish)
            return own or original(function, driver, options, bounds, finish, rule)

        tvm_ffi.register_global_func(name, ask, override=True)

    yield install
    tvm_ffi.register_global_func(name, original, override=True)


@pytest.fixture
def integers_only(monkeypatch):
    """Take the types of real numbers out of the chip, for what is partitioned and quantized."""
    import narrow_table

    if not narrow_table.integers_of_chip():
        pytest.skip("this chip has real numbers only")
    return narrow_table.without_reals(monkeypatch)
