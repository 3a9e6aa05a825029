# SPDX-License-Identifier: Apache-2.0
"""What the tests share beside the conformance kit, whose models and cases they use."""

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import backend  # noqa: F401
from backend.engine.conformance.cases import OPS  # noqa: F401
from backend.engine.conformance.model import (  # noqa: F401
    BACKEND,
    SIZES,
    TABLE,
    Case,
    Compiled,
    Model,
    Spec,
    Tensor,
    compile_all,
    compile_for,
    compile_on_host,
    evaluate,
    partition_for,
    placement,
    plain,
)

SELECTED: set[str] = set()
"""The parameters of the tests of this run, by name; conftest.py knows them."""

SINGLE = [
    Case(op, OPS[op]["cases"][0])
    for op in {
        (entry.engine, len(entry.inputs), entry.fuses is None): entry.name
        for entry in reversed(TABLE.ops)
        if entry.name in OPS and entry.relax and entry.name != "astype"
    }.values()
]
"""A case of one op of each kind, for what does not depend on what an op computes.

Each is one call: chains are several, and the first case of astype casts nothing.
"""

needs_single = pytest.mark.skipif(not SINGLE, reason="capabilities.py has chains only")

# ---- A new process ------------------------------------------------------------------------------

_FRESH_PROCESS = """
import sys
import numpy as np
import tvm
from tvm import relax

machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
inputs, outputs = np.load(sys.argv[2]), {}
for key in sorted({key.rsplit(" ", 1)[0] for key in inputs}):
    count = sum(name.rsplit(" ", 1)[0] == key for name in inputs)
    arguments = [tvm.runtime.tensor(inputs[f"{key} {index}"]) for index in range(count)]
    result = machine[key.split(" ")[0]](*arguments)
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else result
    for index, item in enumerate(fields):
        outputs[f"{key} {index}"] = item.numpy()
np.savez(sys.argv[3], **outputs)
"""


def run_in_fresh_process(
    compiled: Compiled, models: Sequence[Model], directory: Path
) -> dict[tuple[str, int], list[np.ndarray]]:
    """Export what was compiled, load it in a new process, and run all models there."""
    results: dict[tuple[str, int], list[np.ndarray]] = {}
    for executable in set(compiled.executables.values()):
        if isinstance(executable, Exception):
            continue
        mine = [model for model in models if compiled.executables[model.name] is executable]
        library, inputs, outputs = (
            str(directory / f"{len(results)}_{name}") for name in ("model.so", "in.npz", "out.npz")
        )
        executable.export_library(library)
        arrays = {
            f"{model.name} {n} {index}": argument.values[n]
            for model in mine
            for n in model.sizes
            for index, argument in enumerate(model.arguments)
        }
        np.savez(inputs, **arrays)
        command = [sys.executable, "-c", _FRESH_PROCESS, library, inputs, outputs]
        subprocess.run(command, check=True)
        with np.load(outputs) as loaded:
            for model in mine:
                for n in model.sizes:
                    keys = (f"{model.name} {n} {index}" for index in range(len(model.outputs)))
                    results[model.name, n] = [loaded[key] for key in keys]
    return results


# ---- Small modules ------------------------------------------------------------------------------

_UNARY = (relax.op.sin, relax.op.cos, relax.op.sinh)
on_host = next(op for op in _UNARY if not TABLE.entries_of(f"relax.{op.__name__}"))
"""An op that the NPU does not have, without poles; NumPy has one of its name."""


def needs(*ops: str) -> Any:
    """Skip a test where the vendor took ops out of the table."""
    missing = [op for op in ops if TABLE.get(op) is None]
    return pytest.mark.skipif(bool(missing), reason=f"capabilities.py has no {missing}")


def lacks(*ops: str) -> Any:
    """Run a test only where these ops are not in the table."""
    present = [op for op in ops if TABLE.get(op) is not None]
    return pytest.mark.skipif(bool(present), reason=f"capabilities.py has {present}")


def variable(name: str, *shape: Any, dtype: str = "float32") -> Any:
    """Make a variable."""
    return relax.Var(name, relax.TensorType(shape, dtype))


def build(arguments: Sequence[Any], body: Any, name: str = "main", dataflow: bool = True) -> Any:
    """Make a module of one function; `body` gets an `emit` and returns the results."""
    builder = relax.BlockBuilder()
    with builder.function(name, arguments):
        with builder.dataflow() if dataflow else contextlib.nullcontext():
            result = body(builder.emit)
            result = relax.Tuple(result) if isinstance(result, (list, tuple)) else result
            result = builder.emit_output(result) if dataflow else builder.emit(result)
        builder.emit_func_output(result)
    return builder.get()


def assert_close(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    rtol: float,
    atol: float,
    what: str = "",
) -> None:
    """Compare all outputs: number, shapes, types and values."""
    assert len(actual) == len(expected), what
    for index, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        where = f"{what} output {index}"
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), where
        wide = (array.astype(np.float64) for array in (mine, theirs))
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=where)


def assert_right(model: Model, actual: Sequence[np.ndarray], n: int) -> None:
    """Compare what a model gave with its exact values, as exactly as its ops are."""
    verdict = model.judge(n, actual)
    assert not verdict.text, f"{model.name}, n={n}: {verdict.text}"
