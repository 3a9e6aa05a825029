# SPDX-License-Identifier: Apache-2.0
"""Builds the emulator of a table alone, without CMake: for tables that are tried, and for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...backend.isa import cpp
from ...backend.isa.machine import Machine

SOURCES = ("elements", "execution", "library", "listing", "products", "program", "table", "timing")
"""The files of the library that `emulator.Emulator` loads."""


ENGINE = Path(__file__).parents[2]


class BuildError(RuntimeError):
    """A compiler has complained; the message has what it said."""


def compiler() -> str | None:
    """Return the C++ compiler of this machine: that of CXX, or c++; None: there is none."""
    return shutil.which(os.environ.get("CXX", "c++"))


def build(
    machine: Machine,
    semantics: Path,
    folder: Path,
    options: Sequence[str] = ("-O2",),
    *,
    engine: Path = ENGINE,
    program: str = "",
    more: Sequence[str] = (),
) -> Path:
    """Build the library of a machine's emulator.

    Parameters
    ----------
    machine
        The machine.
    semantics
        The folder of `isa_semantics.h`.
    folder
        Where the library should be, with what it is made of.
    options
        Options of the compiler.
    engine
        Where the sources of the engine are.
    program
        A file with a `main`, of which a program is made instead.
    more
        More files that the library or program is made of.

    Returns
    -------
    library
        The library.

    Raises
    ------
    BuildError
        There is no compiler, or the functions of `isa_semantics.h` do not fit to the table.
    """
    found = compiler()
    if found is None:
        raise BuildError("there is no C++ compiler: install one, or set CXX")
    cpp.write(machine, folder)
    library = folder / (Path(program).stem if program else "libisa.so")
    includes = (folder, semantics, engine / "workbench", engine / "backend/include")
    sources = [*([Path(program)] if program else []), *map(Path, more)]
    sources += [engine / f"workbench/isa_emulator/{name}.cc" for name in SOURCES]
    objects = [f"{source.stem}.o" for source in sources]
    # With a launcher such as ccache, what was compiled before is not compiled again.
    launcher = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER")
    compile_ = [*([launcher] if launcher else []), found, "-std=c++17", "-ffp-contract=off"]
    compile_ += [*options, *(f"-I{path.absolute()}" for path in includes)]
    compile_ += [] if program else ["-fPIC", "-fvisibility=hidden"]

    def run(command: Sequence[str]) -> None:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if result.returncode:
            said = result.stderr.strip() or "it says nothing"
            raise BuildError(f"{found} fails with status {result.returncode}: {said}")

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        each = zip(sources, objects, strict=True)
        commands = ([*compile_, "-c", str(it.absolute()), "-o", made] for it, made in each)
        # Errors are raised where results are read.
        list(threads.map(run, commands))
    run([found, *options, *([] if program else ["-shared"]), *objects, "-o", library.name])
    return library
