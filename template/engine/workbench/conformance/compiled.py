# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs many models in one module, and reads their placement."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tvm
from tvm import relax
from tvm.runtime import _ffi_api

from ...backend.api import BACKEND, DECLINES, Array, Options, compile_partitioned, offload_report
from ...backend.api import partition_for as partition_with
from .model import Model

# Most cases test placement: do not fail on declines, whatever the default.
partition_for = partial(partition_with, on_decline="host")
UNOPTIMIZED = {"kind": "llvm", "opt-level": 0}
"""Compiling for it is several times faster, and if the linker makes the library."""
WITHOUT_CPP = ["-nostdlib", "-lm", "-lc"]
"""TVM's code is C: without the libraries of C++, linking it takes half of the time."""


def options_of(**settings: object) -> Options:
    """Return options with these settings, which do not fail on declines either."""
    return Options.load(None).merged(**{"on_decline": "host", **settings})


@dataclass
class Compiled:
    """Compiled functions of one module; a failed one is an exception instead."""

    partitioned: dict[str, tvm.IRModule | Exception] = field(default_factory=dict)
    executables: dict[str, relax.VMExecutable | tvm.runtime.Module | Exception] = field(
        default_factory=dict
    )
    machines: dict[int, relax.VirtualMachine] = field(default_factory=dict)

    def run(self, name: str, arguments: Sequence[Array]) -> list[Array]:
        """Run a function."""
        executable = self.executables[name]
        if isinstance(executable, Exception):
            raise executable
        machine = self.machines.get(id(executable))
        if machine is None:
            machine = relax.VirtualMachine(executable, tvm.cpu())
            self.machines[id(executable)] = machine
        result = machine[name](*(tvm.runtime.tensor(argument) for argument in arguments))
        fields = [result] if isinstance(result, tvm.runtime.Tensor) else result
        return [item.numpy() for item in fields]


def compile_all(models: Sequence[Model], **options: object) -> Compiled:
    """Compile models for the NPU; failures are attributed to single models."""
    compiled = Compiled()
    loaded = options_of(**options)

    def compile_some(models: Sequence[Model]) -> None:
        partitioned = partition_with(_module_of(models), options=loaded)
        compiled.partitioned.update(dict.fromkeys((model.name for model in models), partitioned))
        executable = compile_partitioned(partitioned, loaded)
        compiled.executables.update(dict.fromkeys((model.name for model in models), executable))

    for model, error in _pinned(models, compile_some):
        compiled.partitioned.setdefault(model.name, error)
        compiled.executables[model.name] = error
    return compiled


def compile_on_host(models: Sequence[Model]) -> Compiled:
    """Compile models with TVM's own kernels only; failures are attributed too."""
    compiled = Compiled()

    def compile_some(models: Sequence[Model]) -> None:
        library = host_library(_module_of(models))
        compiled.executables.update(dict.fromkeys((model.name for model in models), library))

    for model, error in _pinned(models, compile_some):
        compiled.executables[model.name] = error
    return compiled


def run_on_host(mod: tvm.IRModule, name: str, arguments: Sequence[Array]) -> list[Array]:
    """Run a function of a module with TVM's own kernels alone."""
    return Compiled(executables={name: host_library(mod)}).run(name, arguments)


def host_library(mod: tvm.IRModule) -> tvm.runtime.Module:
    """Compile a module with TVM's own kernels alone, in a third of the time of optimized code."""
    return linked(tvm.compile(mod, tvm.target.Target(UNOPTIMIZED)))


def linked(executable: relax.VMExecutable) -> tvm.runtime.Module:
    """Load what was compiled for `UNOPTIMIZED`, as a library."""

    def pack(module: tvm.runtime.Module, _system_lib: bool, prefix: str, folder: str) -> str:
        # TVM says of each library without optimization that it is the system's own: each would
        # replace the one before, with a warning.
        path = str(Path(folder) / "imports.o")
        target = json.dumps(UNOPTIMIZED)
        _ffi_api.ModulePackImportsToLLVM(module, False, target, prefix).write_to_file(path)
        return path

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        path = str(Path(directory) / "model.so")
        executable.mod.export_library(path, fpack_imports=pack, options=WITHOUT_CPP)
        return tvm.runtime.load_module(path)


def _module_of(models: Sequence[Model]) -> tvm.IRModule:
    return tvm.IRModule({model.name: model.function() for model in models})


def _pinned(
    models: Sequence[Model], compile_some: Callable[[Sequence[Model]], None]
) -> list[tuple[Model, Exception]]:
    """Compile as many as possible, and return the others with their errors."""
    if not models:
        return []
    try:
        compile_some(models)
    except Exception as error:
        if len(models) == 1:
            return [(models[0], error)]
        half = len(models) // 2
        return [*_pinned(models[:half], compile_some), *_pinned(models[half:], compile_some)]
    return []


@dataclass(frozen=True)
class Placement:
    """Where a function of a partitioned module runs."""

    on_host: list[str]
    """The Relax ops and kernels on the host, with the report's reasons."""
    regions: list[list[str]]
    """The labels of the composites in each region."""

    @property
    def extent(self) -> str:
        """How much of the function is on the NPU: all, some or none."""
        if not self.on_host:
            return "all"
        return "some" if self.regions else "none"

    @property
    def declined(self) -> bool:
        """Whether ops are on the host, all because the driver declines them."""
        return bool(self.on_host) and all(DECLINES in reason for reason in self.on_host)


def placement(partitioned: tvm.IRModule | Exception, name: str) -> Placement:
    """Read a function's placement from the IR itself."""
    if isinstance(partitioned, Exception):
        raise partitioned
    found = Placement([], [])

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        if not isinstance(expr.op, tvm.ir.GlobalVar):
            found.on_host.append(expr.op.name)
            return
        callee = partitioned[expr.op]
        if not callee.attrs or callee.attrs.get("Codegen") != BACKEND:
            found.on_host.append(expr.op.name_hint)
            return
        labels: list[str] = []

        def visit_region(inner: relax.Expr) -> None:
            if isinstance(inner, relax.Function) and inner.attrs and "Composite" in inner.attrs:
                labels.append(str(inner.attrs["Composite"]).removeprefix(f"{BACKEND}."))

        relax.analysis.post_order_visit(callee.body, visit_region)
        found.regions.append(labels)

    relax.analysis.post_order_visit(partitioned[name].body, visit)
    report = offload_report(partitioned)
    reasons = {op.op: op.reason for op in report.on_host if op.function == name}
    on_host = [f"{op}: {reasons.get(op, 'it is not in the report')}" for op in found.on_host]
    return Placement(on_host, found.regions)
