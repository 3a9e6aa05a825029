# SPDX-License-Identifier: Apache-2.0
"""Loads the table of a machine from its file, also without TVM and an installed backend."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from .machine import Machine
from .rules import TableError

_ENGINE = __name__.removesuffix(".backend.isa.loading")
OWN = Path(__file__).absolute().parents[3] / "vendor/isa.py"
"""The table of this backend, in its sources and where it is installed."""


def load(path: Path = OWN) -> Machine:
    """Return the machine of a table.

    Parameters
    ----------
    path
        The file. It imports from `engine.isa` of its backend, and perhaps from files beside it.

    Raises
    ------
    TableError
        The file does not have the table of a machine; the message says why, and in which line.
    """
    path = path.resolve()
    if not path.is_file():
        raise TableError(f"there is no {path}, the table of the machine")
    return _load(path, path.stat().st_mtime_ns)


def with_table(path: Path, work: Callable[[Machine], object]) -> int:
    """Do what a command does with a table, and print why one is refused; 0 is success."""
    try:
        work(load(path))
    except TableError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


@cache
def _load(path: Path, changed: int) -> Machine:
    try:
        module = _executed(path, changed)
    except TableError as error:
        raise TableError(f"{path}{_line_of(error, path)}: {error}") from None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise TableError(f"{path}{_line_of(error, path)} fails: {what}") from error
    machine = getattr(module, "MACHINE", None)
    if not isinstance(machine, Machine):
        raise TableError(f"{path} has no MACHINE, which is a Machine of engine.isa")
    try:
        machine.check()
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    return machine


def _executed(path: Path, changed: int) -> ModuleType:
    """Import a file whose package may not be there."""
    tree = ast.parse(path.read_bytes(), str(path))
    found = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    roots = {name.partition(".")[0] for name in found if name.split(".")[1:2] == ["engine"]}
    package = f"_machine_{abs(hash((path, changed))):x}"
    with _engine_as({package, *roots} - {_ENGINE.partition(".")[0]}):
        folder = ModuleType(f"{package}.vendor")
        folder.__path__ = [str(path.parent)]
        sys.modules[folder.__name__] = folder
        name = f"{folder.__name__}.{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


@contextmanager
def _engine_as(roots: set[str]) -> Iterator[None]:
    """Let packages have this very engine, so that classes are the same."""
    engine = importlib.import_module(_ENGINE)
    interface = importlib.import_module(f"{_ENGINE}.isa")
    names = [f"{root}{part}" for root in roots for part in ("", ".engine", ".engine.isa")]
    before = {name: sys.modules.pop(name, None) for name in names}
    try:
        for root in roots:
            sys.modules[root] = ModuleType(root)
            sys.modules[f"{root}.engine"] = engine
            sys.modules[f"{root}.engine.isa"] = interface
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def _line_of(error: BaseException, path: Path) -> str:
    """Return where in the file an error arose."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f", line {error.lineno}"
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""
