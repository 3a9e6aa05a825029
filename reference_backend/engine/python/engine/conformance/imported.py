# SPDX-License-Identifier: Apache-2.0
"""Modules that TVM's front ends made: many in one, compiled with and without the NPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..patterns import TABLE
from ..report import OpPlacement, offload_report
from .compare import Array, Verdict, judge
from .compiled import compile_for, partition_for

# Without optimization, and linked rather than compiled when loaded: several times as fast.
_TARGET = {"kind": "llvm", "opt-level": 0}


@dataclass(frozen=True, eq=False)
class Imported:
    """A model that a front end has read; its function is `main`.

    Parameters
    ----------
    name
        A name that no other model has.
    module
        What the front end made.
    arguments
        What it is called with.
    """

    name: str
    module: Any
    arguments: Sequence[Array]

    @property
    def symbol(self) -> str:
        """The name of its function where it is compiled together with others."""
        return "model_" + "".join(char if char.isalnum() else "_" for char in self.name)

    def functions(self) -> Mapping[Any, Any]:
        """Return its functions, under names that no other model has."""
        kernels = {}
        builder = relax.BlockBuilder()
        for name, function in self.module.functions_items():
            if name.name_hint != "main":
                symbol = f"{self.symbol}_{name.name_hint}"
                renamed = function.with_attr("global_symbol", symbol)
                kernels[name.name_hint] = (builder.add_func(renamed, symbol), renamed)
        main = self.module["main"]
        if kernels:
            main = _Renamed({name: var for name, (var, _) in kernels.items()}).visit_expr(main)
        # What the importer notes in attributes concerns nobody here.
        main = relax.Function(main.params, main.body, main.ret_ty, main.is_pure)
        return {
            self.symbol: main.with_attr("global_symbol", self.symbol),
            **dict(kernels.values()),
        }


@mutator
class _Renamed(PyExprMutator):  # type: ignore[misc]
    """Puts other global variables in the place of some, by name."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__()
        self._names = names

    def visit_global_var_(self, var: Any) -> Any:
        return self._names.get(var.name_hint, var)


@dataclass(frozen=True, eq=False)
class Program:
    """Compiled models.

    Parameters
    ----------
    machine
        What runs them.
    placements
        Where the calls of each run, by symbol, without bookkeeping; empty where all is on the host.
    regions
        How many regions each has, by symbol.
    """

    machine: Any
    placements: Mapping[str, Sequence[OpPlacement]]
    regions: Mapping[str, int]

    def run(self, model: Imported) -> list[Array]:
        """Run a model."""
        arguments = (tvm.runtime.tensor(np.asarray(item)) for item in model.arguments)
        result = self.machine[model.symbol](*arguments)
        is_one = isinstance(result, (tvm.runtime.Tensor, tvm_ffi.Shape))
        return [
            # What the importer knows of shapes is no tensor.
            np.array(item, "int64") if isinstance(item, tvm_ffi.Shape) else item.numpy()
            for item in ([result] if is_one else result)
        ]


def compile_for_npu(module: Any) -> Program:
    """Partition and compile a module.

    Parameters
    ----------
    module
        Of Relax functions.

    Returns
    -------
    program
        What came out.
    """
    partitioned = partition_for(module)
    report = offload_report(partitioned)
    placements: dict[str, list[OpPlacement]] = {}
    regions: dict[str, set[str]] = {}
    for op in report.ops:
        if not op.bookkeeping:
            placements.setdefault(op.function, []).append(op)
        if op.region is not None:
            regions.setdefault(op.function, set()).add(op.region)
    executable = compile_for(partitioned, target=tvm.target.Target(_TARGET))
    counts = {function: len(found) for function, found in regions.items()}
    return Program(_machine(executable), placements, counts)


def compile_for_host(module: Any) -> Program:
    """Compile a module with TVM's own kernels alone.

    Parameters
    ----------
    module
        Of Relax functions.

    Returns
    -------
    program
        What came out.
    """
    return Program(_machine(tvm.compile(module, tvm.target.Target(_TARGET))), {}, {})


def _machine(executable: Any) -> Any:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        path = str(Path(directory) / "model.so")
        executable.export_library(path)
        return relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())


def compile_together(
    models: Sequence[Imported], compile_module: Callable[[Any], Program]
) -> dict[str, Program | Exception]:
    """Compile models in one module; a failure is pinned to the ones that cause it.

    Parameters
    ----------
    models
        The models.
    compile_module
        One of the functions above.

    Returns
    -------
    programs
        By the name of the model, the program that it is part of, or what went wrong.
    """
    if not models:
        return {}
    functions = {name: item for model in models for name, item in model.functions().items()}
    try:
        return dict.fromkeys((m.name for m in models), compile_module(tvm.IRModule(functions)))
    except Exception as error:
        if len(models) == 1:
            return {models[0].name: error}
    half = len(models) // 2
    return {
        **compile_together(models[:half], compile_module),
        **compile_together(models[half:], compile_module),
    }


def judge_each(
    actual: Sequence[Array], expected: Sequence[Any], rtol: float, atol: float, what: str
) -> list[Verdict]:
    """Compare each result on its own.

    Parameters
    ----------
    actual
        What was computed; there may be more results than are expected.
    expected
        What is right.
    rtol, atol
        How far each element may be off, beside its magnitude.
    what
        What to call that which is right.

    Returns
    -------
    verdicts
        One for each result that is expected.
    """
    verdicts = []
    for index, array in enumerate(expected):
        right = np.asarray(array)
        mine = actual[index : index + 1]
        if mine and mine[0].dtype == right.dtype and right.dtype.kind == "V":
            # NumPy does not know what kind of numbers bfloat16 and the like are.
            mine, right = [mine[0].astype(np.float32)], right.astype(np.float32)
        allowed = np.zeros(right.shape)
        if np.issubdtype(right.dtype, np.floating):
            allowed = atol + rtol * np.abs(right.astype(np.float64))
        verdicts.append(judge(mine, [right], [allowed], what))
    return verdicts


def placement_of(ops: Sequence[OpPlacement]) -> str:
    """Say in a word how much of a model is offloaded.

    Parameters
    ----------
    ops
        Where its calls run.

    Returns
    -------
    placement
        "all", "some" or "none"; "" where no call is left.
    """
    if not ops:
        return ""
    on_host = sum(op.placement != "npu" for op in ops)
    return "none" if on_host == len(ops) else "some" if on_host else "all"


def reasons_of(ops: Sequence[OpPlacement]) -> str:
    """Say why something is on the host.

    Parameters
    ----------
    ops
        Where the calls of a model run.

    Returns
    -------
    reasons
        Each reason once; empty if nothing is on the host.
    """
    reasons = (f"{op.op}: {op.reason}" for op in ops if op.placement != "npu")
    return "; ".join(dict.fromkeys(reasons))


def excuse(ops: Sequence[OpPlacement]) -> str:
    """Say whose word it is that calls stay on the host, where it is not the engine's mistake.

    Parameters
    ----------
    ops
        Calls on the host.

    Returns
    -------
    status
        "declined" if it is the driver's, "not_run" if it is also the chip's, whose entries in the
        table are narrower than the engine; "" if there is no such call, or another reason for one.
    """
    if not ops:
        return ""
    undeclined = [op for op in ops if not op.declined]
    if not all(map(_is_narrowed, undeclined)):
        return ""
    return "not_run" if undeclined else "declined"


def _is_narrowed(op: OpPlacement) -> bool:
    """Whether an entry refuses a call that says less than the engine can do."""
    whole = getattr(TABLE, "engine_entry", TABLE.get)
    refusing = [
        entry for entry in TABLE.entries_of(op.op) if str(op.reason).startswith(f"{entry.name}: ")
    ]
    return any(whole(entry.name) != entry for entry in refusing)


def sentence(error: Exception) -> str:
    """Return what an error says at its end, in one line.

    Parameters
    ----------
    error
        The error.

    Returns
    -------
    text
        Its kind, and its last line.
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no more is said'}"[:300]
