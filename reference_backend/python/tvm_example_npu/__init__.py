# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""A backend for Apache TVM; `import tvm` loads it.

`python -m` with the name of this package and `check` says whether it works here.
"""

from __future__ import annotations

from . import _library

_failure: Exception | None = None


def _autoload() -> None:
    """Make the backend known to TVM, once; TVM calls this at the end of `import tvm`."""
    global _failure
    if _failure is not None:
        raise _failure
    try:
        _library.load()
        if "codegen" in _library.loaded:
            from . import codegen, patterns

            patterns.register()
            codegen.register()
    except Exception as error:
        _failure = error
        raise


try:
    # Only now: this calls _autoload() of this module, which is half made at that time.
    import tvm as _tvm  # noqa: F401

    _autoload()
except Exception as error:
    # The names below say it again when they are used.
    _failure = error
else:
    from .artifacts import Artifact, read_artifacts

    if "codegen" in _library.loaded:
        from .options import Options
        from .partition import (
            compile_for_example_npu,
            partition_for_example_npu,
        )
        from .report import OpPlacement, Report, offload_report

__version__ = _library.version(_library.DISTRIBUTION)
__all__ = [
    "Artifact",
    "OpPlacement",
    "Options",
    "Report",
    "compile_for_example_npu",
    "offload_report",
    "partition_for_example_npu",
    "read_artifacts",
]


def __getattr__(name: str) -> object:
    """Say why a name of this package is absent."""
    if name in __all__:
        if _failure is not None:
            raise RuntimeError(str(_failure)) from _failure
        raise RuntimeError(
            f"{name} needs the compiler, and only the runtime is here: TVM runs with "
            "TVM_USE_RUNTIME_LIB=1, or the codegen library is not installed."
        )
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
