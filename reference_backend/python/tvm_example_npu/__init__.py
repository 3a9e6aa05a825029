# SPDX-License-Identifier: Apache-2.0
"""A backend for Apache TVM; `import tvm` loads it.

`python -m tvm_example_npu check` checks whether it works here.
"""

from __future__ import annotations

from .engine.backend import loading
from .engine.backend.libraries import _library
from .engine.backend.shared.entry_points import has_workbench

# 'import tvm' calls this through the entry point, also during the imports below.
_autoload = loading.autoload

if loading.start():
    from .engine.backend.compiling.artifacts import Artifact, read_artifacts
    from .engine.backend.ir.states import State, states
    from .engine.backend.models.generation import Conversation
    from .engine.backend.models.sessions import Session
    from .engine.backend.profiling import Profile, profile

    if loading.has_compiler():
        from .engine.backend.importers import from_exported_program, from_onnx, from_tflite
        from .engine.backend.report.report import OpPlacement, Report, offload_report
        from .engine.backend.settings.options import Options
        from .engine.backend.verification import ResultCheck, Verification
        from .engine.backend.verification.verify import verify
        from .partition import (
            compile_for_example_npu,
            partition_for_example_npu,
        )

        if has_workbench():
            from .engine.workbench.accuracy import (
                Accuracy,
                AccuracyReport,
                LayerAccuracy,
                accuracy_report,
            )
            from .quantize import quantize_for_example_npu

__version__ = _library.version("tvm-example-npu")
__all__ = [
    "Accuracy",
    "AccuracyReport",
    "Artifact",
    "Conversation",
    "LayerAccuracy",
    "OpPlacement",
    "Options",
    "Profile",
    "Report",
    "ResultCheck",
    "Session",
    "State",
    "Verification",
    "accuracy_report",
    "compile_for_example_npu",
    "from_exported_program",
    "from_onnx",
    "from_tflite",
    "offload_report",
    "partition_for_example_npu",
    "profile",
    "quantize_for_example_npu",
    "read_artifacts",
    "states",
    "verify",
]


def __getattr__(name: str) -> object:
    """Raise an error that explains why a name of this package is absent."""
    if name in __all__:
        raise loading.missing(name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
