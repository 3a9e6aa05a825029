# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime as the SDK of a backend acme_npu: it takes model files; its run half is Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

sys.path.append(str(Path(__file__).resolve().parents[2] / "engine/backend/sdk"))
from npu_region import Node, Region, onnx_reason, run_tool, to_onnx


def reason(node: Node, region: Region) -> str | None:
    """Return why the SDK has no such node, or None."""
    if node.op == "gather":
        return "the chip has no gather"
    return onnx_reason(node, region)


def compile_region(region: Region) -> bytes:
    """Return the bytes that `load` gets."""
    model = to_onnx(region)
    onnx.checker.check_model(model, full_check=True)
    return model


def load(program: bytes) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function from the inputs of a region to its outputs."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(program, settings, ["CPUExecutionProvider"])
    # What no node reads is no input of the model.
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, {name: inputs[int(name[5:])] for name in names})


if __name__ == "__main__":
    sys.exit(run_tool(f"onnxruntime {onnxruntime.__version__}", reason, compile_region, load))
