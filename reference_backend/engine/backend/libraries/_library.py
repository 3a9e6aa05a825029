# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the shared libraries of this backend."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..shared.backend import BACKEND, DISTRIBUTION, PACKAGE

if TYPE_CHECKING:
    import tvm_ffi

_SUFFIXES = {"win32": (".dll",), "darwin": (".dylib", ".so")}.get(sys.platform, (".so",))
_PREFIX = "" if sys.platform == "win32" else "lib"

_REBUILD = (
    "Build the backend again with 'pip install .' in its source tree, against the TVM that is "
    "installed here."
)

IN_TREE = PACKAGE.startswith("tvm.")
"""Whether this backend is a part of TVM, whose own libraries contain its runtime and codegen."""

_STEM = DISTRIBUTION.replace("-", "_")
_TVM_LIBRARIES = {"runtime": "tvm_runtime_extra", "codegen": "tvm_compiler"}

_FOLDER = f"{BACKEND.upper()}_DRIVER_DIR"
"""The environment variable that names a folder to search first for drivers."""

KNOWN_TVM = ("0.26", "0.27")
"""The versions of TVM with which the engine was tried."""

ANY_TVM = f"{BACKEND.upper()}_ANY_TVM"
"""The environment variable that, set to 1, allows other versions of TVM and tvm-ffi."""

FUNCTIONS = {
    "runtime": (
        *("runtime.info", "runtime.drivers", "runtime.device", "runtime.set_device"),
        *("runtime.load_regions", "runtime.wait_all", "session.open"),
    ),
    "codegen": (
        *("codegen.missing_ir", "codegen.drivers", "codegen.check_options", "codegen.identity"),
        *("codegen.read", "codegen.graph", "codegen.decline_reason", "codegen.lowered_ops"),
        *("codegen.new_artifact", "codegen.compile", "codegen.bundle", "codegen.update_axis"),
    ),
}
"""What Python calls of each library, by the names under which it registers them."""

loaded: dict[str, object] = {}
"""The loaded libraries by role: "runtime" and, where a compiler is installed, "codegen".

In a TVM checkout the values are None: TVM has loaded its own libraries.
"""


class LoadError(RuntimeError):
    """The backend cannot work here; the message says why and what to do."""


def find(role: str) -> Path | None:
    """Return the path of a library of this backend, or none.

    `role`: "runtime", "codegen", or a driver: "driver" and "second" are the vendor's, "emulator"
    the emulator; the suffix "_build" is for a separate build half.
    """
    stem = f"{_PREFIX}{_STEM}_{role}"
    if IN_TREE and role in _TVM_LIBRARIES:
        stem = f"{_PREFIX}{_TVM_LIBRARIES[role]}"
    names = [f"{stem}{suffix}" for suffix in _SUFFIXES]
    if role not in ("runtime", "codegen") and (folder := os.environ.get(_FOLDER)):
        for name in names:
            if (path := Path(folder, name)).is_file():
                return path.resolve()
    if IN_TREE:
        from tvm.libinfo import package_lib_paths

        return _first(package_lib_paths(), names)
    # Look it up like an extension module: this also works with an editable install, and triggers
    # its rebuild if the sources have changed.
    try:
        spec = importlib.util.find_spec(f"{PACKAGE}.{stem}")
    except subprocess.CalledProcessError as error:
        raise LoadError(
            f"the sources of {PACKAGE} do not compile ('{' '.join(error.cmd[:2])}' failed). The "
            "message of the compiler or of CMake is above; look for 'error:' or 'CMake Error'."
        ) from error
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).resolve()
    return _first(sys.modules[PACKAGE].__path__, names)


def _first(folders: Iterable[str | Path], names: Sequence[str]) -> Path | None:
    candidates = (Path(folder) / name for folder in folders for name in names)
    return next((path.resolve() for path in candidates if path.is_file()), None)


def load() -> None:
    """Load the libraries, once in a process."""
    if loaded:
        return
    import tvm
    import tvm_ffi

    if IN_TREE:
        libraries = _built_in()
    else:
        _check_versions(tvm.__version__, tvm_ffi.__version__)
        libraries = {"runtime": open_library("runtime")}
    require_functions("runtime")
    try:
        tvm_ffi.get_global_func(f"{BACKEND}.runtime.info")()
    except Exception as error:
        raise LoadError(f"{PACKAGE}: {error}.") from error
    if not IN_TREE and not tvm._RUNTIME_ONLY and find("codegen") is not None:
        libraries["codegen"] = open_library("codegen")
    if "codegen" in libraries:
        require_functions("codegen")
        missing = tvm_ffi.get_global_func(f"{BACKEND}.codegen.missing_ir")()
        if missing:
            raise LoadError(
                f"{PACKAGE} does not know this TVM: its IR lacks {', '.join(missing)}. It has TVM "
                f"{version('apache-tvm')} and tvm-ffi {version('apache-tvm-ffi')}; "
                "update engine/backend/codegen/ir_adapter.cc, or install the TVM that "
                "pyproject.toml names."
            )
    loaded.update(libraries)


def require_functions(role: str) -> None:
    """Refuse a library that was built of other sources than this package."""
    import tvm_ffi

    for function in FUNCTIONS[role]:
        if tvm_ffi.get_global_func(f"{BACKEND}.{function}", allow_missing=True) is None:
            rebuild = "Build TVM again." if IN_TREE else _REBUILD
            raise LoadError(
                f"The {role} library of {PACKAGE} was built of another version than its Python "
                f"files: it has no function '{function}'. {rebuild}"
            )


def version(distribution: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if IN_TREE and distribution in (DISTRIBUTION, "apache-tvm"):
            from tvm import __version__ as found

            return str(found)
        return "unknown"


def versions() -> dict[str, str | int]:
    """Return the versions of the backend, of its driver's interface and of TVM."""
    import tvm_ffi

    return {
        "backend_version": version(DISTRIBUTION),
        "driver_api_version": int(
            tvm_ffi.get_global_func(f"{BACKEND}.runtime.info")()["driver_api_version"]
        ),
        "tvm_version": version("apache-tvm"),
        "tvm_ffi_version": version("apache-tvm-ffi"),
    }


def _built_in() -> dict[str, Path | None]:
    """Find out which parts of this backend TVM was built with."""
    import tvm_ffi

    functions = {"runtime": "runtime.info", "codegen": "codegen.missing_ir"}
    found: dict[str, Path | None] = {
        role: None
        for role, function in functions.items()
        if tvm_ffi.get_global_func(f"{BACKEND}.{function}", allow_missing=True) is not None
    }
    if "runtime" not in found:
        option = f"-DUSE_{BACKEND.upper()}"
        raise LoadError(
            f"This TVM was built without {BACKEND}. Build it with {option}_RUNTIME=ON, and with "
            f"{option}_CODEGEN=ON to compile models."
        )
    return found


def open_library(role: str) -> tvm_ffi.Module | None:
    """Open a library of this backend, whatever the installed TVM.

    The library, as a module of tvm-ffi; none in a TVM checkout, where TVM has loaded its own.
    """
    if IN_TREE:
        return None
    path = find(role)
    if path is None:
        raise LoadError(
            f"The {role} library of {PACKAGE} is missing. Build and install the backend with "
            "'pip install .' in its source tree."
        )
    import tvm_ffi

    try:
        return tvm_ffi.load_module(path)
    except Exception as error:
        raise LoadError(f"{path} cannot be loaded: {error}. {_REBUILD}") from error


def _check_versions(tvm_version: str, ffi_version: str) -> None:
    """Refuse a TVM that was never tried, and a tvm-ffi with which TVM is known to crash."""
    forced = os.environ.get(ANY_TVM, "")
    if forced not in ("", "0", "1"):
        raise LoadError(f"The environment variable {ANY_TVM} is '{forced}'; supported: 0 or 1.")
    if forced == "1":
        return
    hint = f", or set {ANY_TVM}=1 to try it all the same"
    if not re.match(rf"({'|'.join(map(re.escape, KNOWN_TVM))})(\.|$)", tvm_version):
        raise LoadError(
            f"{PACKAGE} was tried with TVM {' and '.join(KNOWN_TVM)}; installed is {tvm_version}. "
            f"Run: pip install 'apache-tvm=={KNOWN_TVM[-1]}.*'{hint}; "
            f"'python -m {PACKAGE} drift' tells what has changed"
        )
    if not re.match(r"0\.1\.14\.post\d+", ffi_version):
        raise LoadError(
            f"{PACKAGE} works with tvm-ffi 0.1.14.post0 and newer below 0.1.15; installed is "
            f"{ffi_version}. Run: pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'{hint}"
        )
