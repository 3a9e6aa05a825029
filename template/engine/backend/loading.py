# SPDX-License-Identifier: Apache-2.0
"""Registers the backend when TVM is imported, and remembers why that failed."""

from __future__ import annotations

import os

from .libraries import _library
from .shared import interrupts
from .shared.backend import BACKEND
from .shared.entry_points import WithoutWorkbenchError, has_workbench
from .shared.problem import Problem

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "
"""The beginning of a program without torch: importing it, as TVM does, takes three seconds."""

failure: Exception | None = None
"""Why the backend does not work here, or none."""


def autoload() -> None:
    """Load the libraries and register the backend with TVM, once in a process.

    TVM calls this through the package's entry point at the end of `import tvm`.
    """
    global failure
    if failure is not None:
        raise failure
    try:
        _library.load()
        if has_compiler():
            from .compiling import codegen
            from .table import patterns

            patterns.register()
            codegen.register()
    except Exception as error:
        failure = error
        raise


def start() -> bool:
    """Import TVM and load the backend; a failure is raised when the backend is used."""
    global failure
    interrupts.quit_during_imports()
    try:
        # Calls autoload(), which the package has defined by now.
        import tvm  # noqa: F401

        autoload()
    except Exception as error:
        failure = error
        if isinstance(error, ModuleNotFoundError) and error.name == "tvm":
            failure = RuntimeError("TVM is not installed: pip install apache-tvm.")
    return failure is None


def has_compiler() -> bool:
    """Whether models can be compiled here, not only run."""
    return "codegen" in _library.loaded


def why_no_compiler() -> str:
    """Say why models cannot be compiled here, and what to do."""
    if failure is not None:
        return str(failure)
    if os.environ.get("TVM_USE_RUNTIME_LIB"):
        return "TVM_USE_RUNTIME_LIB is set: unset it"
    if _library.find("codegen") is not None:
        return "TVM is installed without its compiler: pip install apache-tvm"
    option = f"USE_{BACKEND.upper()}_CODEGEN"
    if _library.IN_TREE:
        return f"this TVM was built with {option}=OFF: build it with ON"
    return (
        f"this installation was built with {option}=OFF: run 'pip install .' in the source tree of "
        "the backend, which switches it on"
    )


def missing(name: str) -> RuntimeError:
    """Explain why a public name of the package is missing."""
    if failure is not None:
        error = RuntimeError(str(failure))
        error.__cause__ = failure
        return error
    if has_compiler() and not has_workbench():
        return RuntimeError(str(WithoutWorkbenchError(name)))
    return RuntimeError(
        f"{name} needs the compiler, and only the runtime is here: {why_no_compiler()}."
    )


def needs_compiler(what: str) -> None:
    """Refuse a command where only the runtime is installed."""
    if not has_compiler():
        raise Problem(str(missing(what)))
