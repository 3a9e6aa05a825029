# SPDX-License-Identifier: Apache-2.0
"""Makes models from the cases of the catalogue.

A `Model` is a Relax function that carries the exact value of every tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx

from ...backend.api import (
    BACKEND,
    TABLE,
    Array,
    Options,
    Verdict,
    call_entry,
    decline_of,
    is_decline,
    judge,
)
from ...capability import Accumulated, Buckets, Op
from . import numpy_reference
from .allowances import Step, allowance_behind, allowance_of_host, behind_mean
from .cases import OPS
from .chip import SIZES


def entry_of(op: str) -> Op:
    """Return the table's entry of an op, which a vendor may have taken out."""
    entry = TABLE.get(op)
    if entry is None:
        raise KeyError(f"the table has no entry named '{op}'")
    return entry


_REFERENCES = {
    **vars(numpy_reference),
    "quantize": partial(numpy_reference.quantize, halves=TABLE.chip.rounds),
}
"""What the catalogue's expressions call; rounded as the chip rounds."""

Arrays = Mapping[int, Array]
"""An array for each of the SIZES; the same one where no symbol is involved."""


@dataclass(frozen=True)
class Spec:
    """A description of a random tensor: its shape, maybe with "n", and its range of numbers."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    values: npt.ArrayLike | None = None
    constant: bool = False

    @classmethod
    def read(cls, entry: Any, dtype: str = "float32") -> Spec:
        """Read an input of a case: a shape or a mapping; `dtype` is the default."""
        fields = dict(entry) if isinstance(entry, dict) else {"shape": entry}
        return cls(**{"dtype": dtype, **fields, "shape": tuple(fields["shape"])})

    def make(self, seed: str) -> Arrays:
        """Generate the numbers; the same seed gives the same ones."""
        return {n: self._make(f"{seed} {n}", n) for n in SIZES}

    def _make(self, seed: str, n: int) -> Array:
        shape = [n if isinstance(size, str) else size for size in self.shape]
        if self.values is not None:
            return np.resize(np.asarray(self.values, self.dtype), shape)
        seed = seed if "n" in self.shape else seed.rsplit(" ", 1)[0]
        generator = np.random.default_rng(zlib.crc32(seed.encode()))
        if self.dtype == "bool":
            return generator.integers(0, 2, shape).astype(bool)
        if np.issubdtype(self.dtype, np.integer):
            limits = np.iinfo(self.dtype)
            low = limits.min if self.low is None else self.low
            high = limits.max if self.high is None else self.high
            return generator.integers(int(low), int(high) + 1, shape).astype(self.dtype)
        low = -1.0 if self.low is None else self.low
        high = 1.0 if self.high is None else self.high
        return generator.uniform(low, high, shape).astype(self.dtype)


def evaluate(
    op: str, call: relax.Call, inputs: Sequence[object], attributes: Mapping[str, object], n: int
) -> list[Array]:
    """Compute a call in NumPy by its op's expression in the catalogue."""
    fields = compute(op, call, inputs, attributes, n)
    types = getattr(call.ty, "fields", None) or [call.ty]
    results = []
    for value, ty in zip(fields, types, strict=True):
        with np.errstate(all="ignore"):
            array = np.asarray(value).astype(str(ty.dtype))
        sizes = [int(dim) if isinstance(dim, tirx.IntImm) else None for dim in ty.shape]
        pairs = zip(array.shape, sizes, strict=True)
        if any(size not in (None, actual) for actual, size in pairs):
            raise ValueError(f"{op}: NumPy computes {array.shape}, and its type is {ty}")
        results.append(array)
    return results


def compute(
    op: str, call: relax.Call, inputs: Sequence[object], attributes: Mapping[str, object], n: int
) -> tuple[Array, ...]:
    """Compute a call as `evaluate` does; the results keep the digits that their types lack."""

    def widen(value: Any) -> Any:
        if isinstance(value, list):
            return [widen(part) for part in value]
        return value.astype(np.float64) if np.issubdtype(value.dtype, np.floating) else value

    entry = entry_of(op)
    names = {spec.name: widen(value) for spec, value in zip(entry.inputs, inputs, strict=True)}
    names.update(values_of_attributes(entry, call, attributes, n))
    with np.errstate(all="ignore"):
        result = eval(OPS[op]["numpy"], {**_REFERENCES, **names})
    return result if isinstance(result, tuple) else (result,)


def sums_of(
    entry: Op, call: relax.Call, data: Array, attributes: Mapping[str, object], n: int
) -> tuple[Array, Array | int]:
    """Return the exact sums whose means a pool or a reduction gives, and of how many elements."""
    counts = numpy_reference.counts(data, values_of_attributes(entry, call, attributes, n))
    (mean,) = compute(entry.name, call, [data], attributes, n)
    return np.rint(mean * counts), counts


def values_of_attributes(
    entry: Op, call: relax.Call, attributes: Mapping[str, object], n: int
) -> dict[str, object]:
    """Return all attributes of a call, with "n" replaced."""
    values: dict[str, object] = {}
    for name in entry.attributes:
        value = attributes.get(name)
        if not isinstance(value, dict):
            value = getattr(call.attrs, name, value)
        values[name] = plain(substitute(value, n))
    return values


def step_of(
    op: str,
    call: relax.Call,
    inputs: Sequence[Array | list[Array]],
    attributes: Mapping[str, object],
    n: int,
    results: Sequence[Array],
) -> Step:
    """Return the tolerance of a call."""
    entry = entry_of(op)
    number, tolerance = 1, entry.tolerance
    if isinstance(tolerance, Accumulated) and results[0].size:
        names = values_of_attributes(entry, call, attributes, n)
        for spec, value in zip(entry.inputs, inputs, strict=True):
            if spec.name == tolerance.shifted:
                tolerance = behind_mean(tolerance, value, names.get("epsilon", 0))
            shapes = tuple(part.shape for part in value) if isinstance(value, list) else value.shape
            names[spec.name] = shapes
        number = tolerance.terms({**names, "out": results[0].shape})
    floats = [array[np.isfinite(array)] for array in results if array.dtype.kind == "f"]
    largest = max((float(np.abs(array).max()) for array in floats if array.size), default=0.0)
    return Step(tolerance, number, tuple(str(array.dtype) for array in results), largest)


# ---- Models -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a model: the Relax expression and its exact values."""

    expr: relax.Expr
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
    """A Relax function under construction."""

    name: str
    symbol: tirx.Var = field(default_factory=lambda: tirx.Var("n", "int64"))
    arguments: list[Tensor] = field(default_factory=list)
    bindings: list[relax.VarBinding] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    steps: list[dict[int, Step]] = field(default_factory=list)

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
        if not (entry_of(op).relax or entry_of(op).emitted_by):
            # Those of a chain are numbers of the tensors' type.
            dtype = inputs[0].dtype
            attributes = {
                name: np.asarray(value, dtype).item() for name, value in attributes.items()
            }
        call = self.normalize(op, inputs, attributes)
        results: list[dict[int, Array]] = []
        steps: dict[int, Step] = {}
        for n in SIZES:
            arrays = [
                [t.values[n] for t in operand] if isinstance(operand, list) else operand.values[n]
                for operand in inputs
            ]
            values = evaluate(op, call, arrays, attributes, n)
            steps[n] = step_of(op, call, arrays, attributes, n, values)
            results = results or [{} for _ in values]
            for result, value in zip(results, values, strict=True):
                result[n] = value
        self.steps.append(steps)
        var = self.bind(call)
        if isinstance(call.ty, relax.TensorType):
            return Tensor(var, results[0])
        return tuple(
            Tensor(self.bind(relax.TupleGetItem(var, index)), values)
            for index, values in enumerate(results)
        )

    @property
    def has_nan(self) -> bool:
        """Whether its arguments or results contain NaN."""
        tensors = [*self.arguments, *self.outputs]
        arrays = [array for tensor in tensors for array in tensor.values.values()]
        return any(array.dtype.kind == "f" and bool(np.isnan(array).any()) for array in arrays)

    @property
    def is_view(self) -> bool:
        """Whether each result has the elements of an argument in their order.

        A driver without any op takes it.
        """

        def is_shown(output: Tensor, n: int) -> bool:
            found = output.values[n].tobytes()
            return any(found == argument.values[n].tobytes() for argument in self.arguments)

        return all(is_shown(output, n) for output in self.outputs for n in self.sizes)

    def decline(self, **settings: object) -> str | None:
        """Return why the driver declines it as one composite; None if it takes it or fails."""
        options = Options.load(settings)
        bounds, rule = {"n": SIZES[-1]}, TABLE.chip.rule
        # Only calls of one composite are fused; the label says nothing to codegen.
        composite = self.function().with_attr("Composite", f"{BACKEND}.{self.name}")
        answer = decline_of(composite, options, bounds, rule)
        return answer if is_decline(answer) else None

    def refusal(self, op: str, *inputs: Any, **attributes: object) -> str | None:
        """Return why the NPU cannot run a call; None if it can."""
        trial = Model("trial", self.symbol)

        def stand_in(tensor: Tensor) -> Tensor:
            if not isinstance(tensor.expr, relax.Var):
                return tensor
            trial.arguments.append(Tensor(relax.Var("x", tensor.expr.ty), {}))
            return trial.arguments[-1]

        stand_ins = [
            [stand_in(t) for t in operand] if isinstance(operand, list) else stand_in(operand)
            for operand in inputs
        ]
        try:
            call = trial.normalize(op, stand_ins, attributes)
        except Exception as error:
            return str(error)
        entry = entry_of(op)
        reason: str | None
        if entry.relax:
            reason = TABLE.refusal(call)
        else:
            tensors = {spec.name: t.expr for spec, t in zip(entry.inputs, inputs, strict=True)}
            reason = TABLE.refusal_of_chain(entry, tensors, attributes, call)
        if reason is None:
            trial.outputs = [Tensor(trial.bind(call), {})]
            reason = trial._refusal_of_ends() or trial.decline()
        return reason

    def _refusal_of_ends(self) -> str | None:
        ends = ([tensor.expr.ty for tensor in side] for side in (self.arguments, self.outputs))
        return TABLE.refusal_of_ends(self.name, *ends)

    def normalize(
        self, op: str, inputs: Sequence[Any], attributes: Mapping[str, object]
    ) -> relax.Call:
        """Make a call of an op, with its type; for a chain, its last call."""
        given = {name: substitute(value, self.symbol) for name, value in attributes.items()}
        tensors = [
            relax.Tuple([t.expr for t in operand]) if isinstance(operand, list) else operand.expr
            for operand in inputs
        ]
        call_entry(entry_of(op), tensors, given, self.bind)
        return self.bindings.pop().value

    def bind(self, value: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        value = relax.BlockBuilder().normalize(value)
        var = relax.DataflowVar(f"lv{len(self.bindings)}", value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def function(self) -> relax.Function:
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

    def judge(self, n: int, actual: Sequence[Array]) -> Verdict:
        """Compare results with the exact ones."""
        expected = [output.values[n] for output in self.outputs]
        tolerance = self.steps[-1][n].tolerance
        share = tolerance.share if isinstance(tolerance, Buckets) else 1.0
        shares = [share] * len(expected)
        return judge(actual, expected, self._allowances(n), "NumPy", shares)

    def judge_against_host(
        self, n: int, actual: Sequence[Array], by_host: Sequence[Array]
    ) -> Verdict:
        """Compare results with those of TVM's own kernels, which are less exact."""
        last = self.steps[-1][n]
        allowed = [
            limit + allowance_of_host(last.tolerance, output.values[n], last.count)
            for limit, output in zip(self._allowances(n), self.outputs, strict=True)
        ]
        return judge(actual, by_host, allowed, "TVM's llvm")

    def _allowances(self, n: int) -> list[Array]:
        steps = [step[n] for step in self.steps]
        return [allowance_behind(steps, output.values[n]) for output in self.outputs]

    def refusals(self, asked_later: bool = True, inside: bool = False, **options: Any) -> list[str]:
        """Return why capabilities.py refuses calls of this model; empty if it takes all.

        With `asked_later=False` the driver has a say, if capabilities.py asks it. With `inside`,
        the calls stand between dequantize and quantize.
        """
        values = [binding.value for binding in self.bindings]
        calls = [value for value in values if isinstance(value, relax.Call)]
        judged = [call for call in calls if TABLE.entries_of(call.op.name)]
        reasons: list[str | None] = [] if inside else [self._refusal_of_ends()]
        reasons += [TABLE.refusal(call, asked_later=asked_later, **options) for call in judged]
        return [reason for reason in reasons if reason is not None]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The values of "n" to try; a single one if no shape has it."""
        return SIZES if any("n" in argument.shape for argument in self.arguments) else SIZES[:1]


def plain(value: object) -> Any:
    """Return an attribute as Python data."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(plain(part) for part in value)
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        return value.value
    if value is None or isinstance(value, (bool, int, float)) or callable(value):
        return value
    return str(value)


def substitute(value: object, n: object) -> Any:
    """Replace "n" in an attribute; evaluate a `python` one."""
    if isinstance(value, dict):
        return eval(value["python"], {"np": np, "tirx": tirx})
    if isinstance(value, (list, tuple)):
        return type(value)(substitute(part, n) for part in value)
    return n if isinstance(value, str) and value == "n" else value
