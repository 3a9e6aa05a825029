# SPDX-License-Identifier: Apache-2.0
"""Imported models: many in one module, compiled with and without the NPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...backend.api import (
    Array,
    OpPlacement,
    Verdict,
    compile_partitioned,
    judge,
    last_line,
    offload_report,
    partition_for,
)
from .cases import symbol_of
from .chip import QUANTIZED
from .compiled import UNOPTIMIZED, host_library, linked, options_of


@dataclass(frozen=True, eq=False)
class Imported:
    """An imported model; its function is `main`.

    `name`: its unique name.
    `module`: the importer's module.
    `arguments`: the arguments of a call.
    """

    name: str
    module: tvm.IRModule
    arguments: Sequence[Array]

    @property
    def symbol(self) -> str:
        """The name of its function in a joint module."""
        return "model_" + symbol_of(self.name)

    def functions(self) -> Mapping[str | tvm.ir.GlobalVar, tvm.ir.BaseFunc]:
        """Return its functions under unique names."""
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
        # Drop the importer's attributes.
        main = relax.Function(main.params, main.body, main.ret_ty, main.is_pure)
        return {
            self.symbol: main.with_attr("global_symbol", self.symbol),
            **dict(kernels.values()),
        }


@mutator
class _Renamed(PyExprMutator):  # type: ignore[misc]
    """Replaces global variables by name."""

    def __init__(self, names: Mapping[str, tvm.ir.GlobalVar]) -> None:
        super().__init__()
        self._names = names

    def visit_global_var_(self, var: tvm.ir.GlobalVar) -> tvm.ir.GlobalVar:
        return self._names.get(var.name_hint, var)


@dataclass(frozen=True, eq=False)
class Program:
    """Compiled models.

    `machine`: the virtual machine.
    `placements`: placements of the calls of each, by symbol, without bookkeeping; empty for the
    host.
    `regions`: the number of regions of each, by symbol.
    """

    machine: relax.VirtualMachine
    placements: Mapping[str, Sequence[OpPlacement]]
    regions: Mapping[str, int]

    def run(self, model: Imported) -> list[Array]:
        """Run a model."""
        arguments = (tvm.runtime.tensor(np.asarray(argument)) for argument in model.arguments)
        result = self.machine[model.symbol](*arguments)
        is_one = isinstance(result, (tvm.runtime.Tensor, tvm_ffi.Shape))
        return [
            # Shapes are not tensors.
            np.array(part, "int64") if isinstance(part, tvm_ffi.Shape) else part.numpy()
            for part in ([result] if is_one else result)
        ]


def compile_for_npu(module: tvm.IRModule) -> Program:
    """Partition and compile a module."""
    options = options_of()
    partitioned = partition_for(module, options=options)
    report = offload_report(partitioned)
    placements: dict[str, list[OpPlacement]] = {}
    regions: dict[str, set[str]] = {}
    for op in report.ops:
        if not op.bookkeeping:
            placements.setdefault(op.function, []).append(op)
        if op.region is not None:
            regions.setdefault(op.function, set()).add(op.region)
    executable = compile_partitioned(partitioned, options, tvm.target.Target(UNOPTIMIZED))
    counts = {function: len(found) for function, found in regions.items()}
    return Program(relax.VirtualMachine(linked(executable), tvm.cpu()), placements, counts)


def compile_for_host(module: tvm.IRModule) -> Program:
    """Compile a module with TVM's own kernels alone."""
    return Program(relax.VirtualMachine(host_library(module), tvm.cpu()), {}, {})


def compile_together(
    models: Sequence[Imported], compile_module: Callable[[tvm.IRModule], Program]
) -> dict[str, Program | Exception]:
    """Compile models in one module; failures are attributed to single models."""
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
    actual: Sequence[Array],
    expected: Sequence[object],
    rtol: float,
    atol: float,
    what: str,
    steps: float = 0,
) -> list[Verdict]:
    """Compare each result on its own.

    `steps`: how many steps quantized integers may be off.
    """
    verdicts = []
    for index, array in enumerate(expected):
        right = np.asarray(array)
        mine = actual[index : index + 1]
        if mine and mine[0].dtype == right.dtype and right.dtype.kind == "V":
            # NumPy does not know the kind of bfloat16 and the like.
            mine, right = [mine[0].astype(np.float32)], right.astype(np.float32)
        allowed = np.full(right.shape, steps if str(right.dtype) in QUANTIZED else 0.0)
        if np.issubdtype(right.dtype, np.floating):
            allowed = atol + rtol * np.abs(right.astype(np.float64))
        verdicts.append(judge(mine, [right], [allowed], what))
    return verdicts


def placement_of(ops: Sequence[OpPlacement]) -> str:
    """Return how much of a model is offloaded: all, some or none; "" where no call is left."""
    if not ops:
        return ""
    on_host = sum(op.placement != "npu" for op in ops)
    return "none" if on_host == len(ops) else "some" if on_host else "all"


def reasons_of(ops: Sequence[OpPlacement]) -> str:
    """Return why calls are on the host, each reason once; empty if nothing is."""
    reasons = (f"{op.op}: {op.reason}" for op in ops if op.placement != "npu")
    return "; ".join(dict.fromkeys(reasons))


def excuse(ops: Sequence[OpPlacement]) -> str:
    """Return whether the driver or the chip keeps calls on the host.

    "declined" if it is the driver, "not_run" if the chip's limits are involved too; "" if there is
    no such call, or if one has another reason.
    """
    if not ops:
        return ""
    undeclined = [op for op in ops if not op.declined]
    if not all(op.narrowed for op in undeclined):
        return ""
    return "not_run" if undeclined else "declined"


def kind_and_message(error: Exception) -> str:
    """Return the end of an error's message in one line."""
    kind, line = type(error).__name__, last_line(error)
    return f"{kind}: {line if line != kind else 'no more is said'}"[:300]
