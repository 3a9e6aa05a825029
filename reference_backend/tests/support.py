# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""Builds, compiles and runs what the tests need.

A `Model` is a Relax function whose every tensor has its exact value beside it. Compiling costs far
more than running, so many functions share one module.
"""

import contextlib
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import numpy_reference
import tvm_example_npu as backend
from op_cases import OPS
from tvm_example_npu.capability import Input
from tvm_example_npu.patterns import TABLE

BACKEND = "example_npu"
# Whatever a call without this option does: most tests are about what runs where.
partition_for = partial(backend.partition_for_example_npu, on_decline="host")
compile_for = partial(backend.compile_for_example_npu, on_decline="host")

SIZES = (1, 3)
"""What the symbol "n" is in turn, where a shape has it."""

SELECTED: set[str] = set()
"""The parameters of the tests of this run, by name; conftest.py knows them."""

Arrays = Mapping[int, np.ndarray]
"""An array for each of the SIZES; the same one where no symbol is involved."""


# ---- Values -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """A tensor to make up: its shape, in which "n" may stand, and what its numbers are like."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    values: Any = None
    constant: bool = False

    @classmethod
    def read(cls, entry: Any) -> "Spec":
        """Read what a case says of an input: a shape, or a mapping."""
        fields = dict(entry) if isinstance(entry, dict) else {"shape": entry}
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def make(self, seed: str) -> Arrays:
        """Make up the numbers; the same seed gives the same ones."""
        return {n: self._make(f"{seed} {n}", n) for n in SIZES}

    def _make(self, seed: str, n: int) -> np.ndarray:
        shape = [n if size == "n" else size for size in self.shape]
        if self.values is not None:
            return np.resize(np.asarray(self.values, self.dtype), shape)
        seed = seed if "n" in self.shape else seed.rsplit(" ", 1)[0]
        generator = np.random.default_rng(zlib.crc32(seed.encode()))
        if np.issubdtype(self.dtype, np.integer):
            limits = np.iinfo(self.dtype)
            low = limits.min if self.low is None else self.low
            high = limits.max if self.high is None else self.high
            return generator.integers(int(low), int(high) + 1, shape).astype(self.dtype)
        low = -1.0 if self.low is None else self.low
        high = 1.0 if self.high is None else self.high
        return generator.uniform(low, high, shape).astype(self.dtype)


def evaluate(
    op: str, call: Any, inputs: Sequence[Any], attributes: Mapping[str, Any], n: int
) -> list[np.ndarray]:
    """Compute a call in NumPy, by the expression that the catalogue has for its op."""

    def widen(value: Any) -> Any:
        if isinstance(value, list):
            return [widen(item) for item in value]
        return value.astype(np.float32) if value.dtype == np.float16 else value

    entry = TABLE.get(op)
    names = {item.name: widen(value) for item, value in zip(entry.inputs, inputs, strict=True)}
    for name in entry.attributes:
        value = getattr(call.attrs, name, attributes.get(name))
        names[name] = substitute(plain(value), n)
    with np.errstate(all="ignore"):
        result = eval(OPS[op]["numpy"], {**vars(numpy_reference), **names})
        fields = result if isinstance(result, tuple) else (result,)
        types = getattr(call.ty, "fields", None) or [call.ty]
        return [
            np.asarray(field).astype(str(ty.dtype)) for field, ty in zip(fields, types, strict=True)
        ]


# ---- Models -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a model: the Relax expression and its exact values."""

    expr: Any
    values: Arrays

    @property
    def dtype(self) -> str:
        """The element type."""
        return str(self.expr.ty.dtype)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape; "n" is the symbol, None a size that depends on it in another way."""
        sizes = (int(dim) if isinstance(dim, tirx.IntImm) else dim for dim in self.expr.ty.shape)
        return tuple(
            size if isinstance(size, int) else "n" if isinstance(size, tirx.Var) else None
            for size in sizes
        )


@dataclass
class Model:
    """A Relax function in the making."""

    name: str
    symbol: Any = field(default_factory=lambda: tirx.Var("n", "int64"))
    arguments: list[Tensor] = field(default_factory=list)
    bindings: list[Any] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def argument(self, spec: Spec, seed: str = "") -> Tensor:
        """Add an argument."""
        name = f"argument_{len(self.arguments)}"
        shape = [self.symbol if size == "n" else size for size in spec.shape]
        var = relax.Var(name, relax.TensorType(shape, spec.dtype))
        tensor = Tensor(var, spec.make(seed or f"{self.name} {name}"))
        self.arguments.append(tensor)
        return tensor

    def constant(self, spec: Spec, seed: str) -> Tensor:
        """Make a constant."""
        values = spec.make(seed)
        return Tensor(relax.const(values[1], spec.dtype), values)

    def call(self, op: str, *inputs: Any, **attributes: Any) -> Any:
        """Call an op of the table; a list among the inputs is a tuple, as is the result of some."""
        call = self.normalize(op, inputs, attributes)
        results: list[dict[int, np.ndarray]] = []
        for n in SIZES:
            arrays = [
                [tensor.values[n] for tensor in item] if isinstance(item, list) else item.values[n]
                for item in inputs
            ]
            values = evaluate(op, call, arrays, attributes, n)
            results = results or [{} for _ in values]
            for result, value in zip(results, values, strict=True):
                result[n] = value
        var = self.bind(call)
        if isinstance(call.ty, relax.TensorType):
            return Tensor(var, results[0])
        return tuple(
            Tensor(self.bind(relax.TupleGetItem(var, index)), values)
            for index, values in enumerate(results)
        )

    def refusal(self, op: str, *inputs: Any, **attributes: Any) -> str | None:
        """Say why the NPU cannot do a call; None if it can."""
        trial = Model("trial", self.symbol)

        def stand_in(tensor: Tensor) -> Tensor:
            if isinstance(tensor.expr, tvm.ir.GenericConst):
                return tensor
            trial.arguments.append(Tensor(relax.Var("x", tensor.expr.ty), {}))
            return trial.arguments[-1]

        stand_ins = [
            [stand_in(tensor) for tensor in item] if isinstance(item, list) else stand_in(item)
            for item in inputs
        ]
        try:
            call = trial.normalize(op, stand_ins, attributes)
        except Exception as error:
            return str(error)
        reason = TABLE.refusal(call)
        if reason is None:
            trial.outputs = [Tensor(trial.bind(call), {})]
            decline = tvm_ffi.get_global_func(f"{BACKEND}.codegen.decline_reason")
            reason = decline(trial.function(), {}, {"n": SIZES[-1]}, False) or None
        return reason

    def normalize(self, op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Make a call of an op, with its type."""
        function = relax.op
        for part in TABLE.get(op).relax.split(".")[1:]:
            function = getattr(function, part)
        given = {name: substitute(value, self.symbol) for name, value in attributes.items()}
        tensors = [
            relax.Tuple([t.expr for t in item]) if isinstance(item, list) else item.expr
            for item in inputs
        ]
        return relax.BlockBuilder().normalize(function(*tensors, **given))

    def bind(self, value: Any) -> Any:
        """Bind an expression to a variable."""
        value = relax.BlockBuilder().normalize(value)
        var = relax.DataflowVar(f"lv{len(self.bindings)}", value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def function(self) -> Any:
        """Return the finished function; it returns the outputs as a tensor or as a tuple."""
        builder = relax.BlockBuilder()
        exprs = [output.expr for output in self.outputs]
        with builder.function(self.name, [argument.expr for argument in self.arguments]):
            with builder.dataflow():
                for binding in self.bindings:
                    builder.emit_normalized(binding)
                result = builder.emit_output(exprs[0] if len(exprs) == 1 else relax.Tuple(exprs))
            builder.emit_func_output(result)
        return builder.get()[self.name]

    def refusals(self, **options: Any) -> list[str]:
        """Say why capabilities.py refuses calls of this model; empty if it takes them all."""
        values = [binding.value for binding in self.bindings]
        calls = [value for value in values if isinstance(value, relax.Call)]
        known = [call for call in calls if TABLE.entries_of(call.op.name)]
        reasons = [TABLE.refusal(call, **options) for call in known]
        return [reason for reason in reasons if reason is not None]

    @property
    def sizes(self) -> tuple[int, ...]:
        """What "n" is to be in turn; one value where no shape has it."""
        return SIZES if any("n" in argument.shape for argument in self.arguments) else SIZES[:1]


def plain(value: Any) -> Any:
    """Return an attribute as Python data."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(plain(item) for item in value)
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def substitute(value: Any, n: Any) -> Any:
    """Put something in the place of "n" in an attribute."""
    if isinstance(value, (list, tuple)):
        return type(value)(substitute(item, n) for item in value)
    return n if isinstance(value, str) and value == "n" else value


@dataclass(frozen=True, eq=False)
class Case:
    """A case of the catalogue."""

    op: str
    entry: Mapping[str, Any]

    def __str__(self) -> str:
        """Return the name that tests have."""
        return f"{self.op}-{self.entry['name'].replace(' ', '_')}"

    @property
    def symbol(self) -> str:
        """The name of its function."""
        return "".join(char if char.isalnum() else "_" for char in str(self))

    @property
    def has_constants(self) -> bool:
        """Whether inputs other than the first can be constants."""
        later = [spec for _, specs in self._specs() for spec in specs][1:]
        return any("n" not in spec.shape for spec in later)

    def _specs(self) -> Iterator[tuple[Input, list[Spec]]]:
        """Generate the inputs, and what the case says of them."""
        for item in TABLE.get(self.op).inputs:
            given = self.entry["inputs"][item.name]
            yield item, [Spec.read(entry) for entry in (given if item.is_tuple else [given])]

    def model(self, constants: bool = False, exact: bool = True) -> Model:
        """Return the case as a model.

        Parameters
        ----------
        constants
            Whether all inputs but the first are constants, where their shapes are known.
        exact
            Whether to compute the exact values too.
        """
        model = Model(self.symbol)
        inputs: list[Any] = []
        for item, specs in self._specs():
            tensors: list[Tensor] = []
            for spec in specs:
                seed = f"{self} {item.name} {len(tensors)}"
                later = bool(inputs or tensors)
                constant = spec.constant or (constants and later and "n" not in spec.shape)
                make = model.constant if constant else model.argument
                tensors.append(make(spec, seed))
            inputs.append(tensors if item.is_tuple else tensors[0])
        attributes = self.entry.get("attributes", {})
        if exact:
            result = model.call(self.op, *inputs, **attributes)
            # Of several results, models use the first.
            model.outputs = [result[0] if isinstance(result, tuple) else result]
        else:
            var = model.bind(model.normalize(self.op, inputs, attributes))
            is_tuple = isinstance(var.ty, relax.TupleType)
            first = model.bind(relax.TupleGetItem(var, 0)) if is_tuple else var
            model.outputs = [Tensor(first, {})]
        return model


# ---- Compiling and running ----------------------------------------------------------------------


@dataclass
class Compiled:
    """Functions in one module, ready to run; what failed to compile is an exception instead."""

    partitioned: dict[str, Any] = field(default_factory=dict)
    executables: dict[str, Any] = field(default_factory=dict)
    machines: dict[int, Any] = field(default_factory=dict)

    def run(self, name: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
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


def compile_all(models: Sequence[Model], **options: Any) -> Compiled:
    """Compile models for the NPU; a failure is pinned to the ones that cause it."""
    compiled = Compiled()

    def attempt(models: Sequence[Model]) -> None:
        partitioned: Any = None
        executable: Any = None
        try:
            module = tvm.IRModule({model.name: model.function() for model in models})
            partitioned = partition_for(module, **options)
            executable = compile_for(partitioned, **options)
        except Exception as error:
            if len(models) > 1:
                attempt(models[: len(models) // 2])
                attempt(models[len(models) // 2 :])
                return
            partitioned = executable = error
        for model in models:
            compiled.partitioned[model.name] = partitioned
            compiled.executables[model.name] = executable

    attempt(models)
    return compiled


def compile_on_host(models: Sequence[Model]) -> Compiled:
    """Compile models with TVM's own kernels alone."""
    module = tvm.IRModule({model.name: model.function() for model in models})
    # Without optimization, and linked rather than compiled when loaded: several times as fast.
    executable = tvm.compile(module, tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        path = str(Path(directory) / "model.so")
        executable.export_library(path)
        library = tvm.runtime.load_module(path)
    return Compiled(executables=dict.fromkeys((model.name for model in models), library))


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


def needs(*ops: str) -> Any:
    """Skip a test where the vendor took ops out of the table."""
    missing = [op for op in ops if TABLE.get(op) is None]
    return pytest.mark.skipif(bool(missing), reason=f"capabilities.py has no {missing}")


def variable(name: str, *shape: Any) -> Any:
    """Make a float32 variable."""
    return relax.Var(name, relax.TensorType(shape, "float32"))


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


# ---- Judging ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Where a function of a partitioned module runs."""

    on_host: list[str]
    """The Relax ops and kernels that are left to the host, with the reasons of the report."""
    regions: list[list[str]]
    """The labels of the composites in each region."""


def placement(partitioned: Any, name: str) -> Placement:
    """Read from the IR itself where a function runs."""
    if isinstance(partitioned, Exception):
        raise partitioned
    found = Placement([], [])

    def visit(expr: Any) -> None:
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

        def visit_region(inner: Any) -> None:
            if isinstance(inner, relax.Function) and inner.attrs and "Composite" in inner.attrs:
                labels.append(str(inner.attrs["Composite"]).removeprefix(f"{BACKEND}."))

        relax.analysis.post_order_visit(callee.body, visit_region)
        found.regions.append(labels)

    relax.analysis.post_order_visit(partitioned[name].body, visit)
    report = backend.offload_report(partitioned)
    reasons = {op.op: op.reason for op in report.on_host if op.function == name}
    on_host = [f"{op}: {reasons.get(op, 'it is not in the report')}" for op in found.on_host]
    return Placement(on_host, found.regions)


def tolerance(op: str, tensors: Sequence[Tensor]) -> dict[str, float]:
    """Return how exact an op is on these tensors."""
    dtype = "float16" if any(tensor.dtype == "float16" for tensor in tensors) else "float32"
    known = TABLE.get(op).tolerance[dtype]
    return {"rtol": known.rtol, "atol": known.atol}


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
