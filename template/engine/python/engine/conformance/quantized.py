# SPDX-License-Identifier: Apache-2.0
"""The suite of quantised tensors: each op that computes with them, between dequantize and quantize.

All cases are derived from the table. Matrix ops must equal an integer reference bit for bit: exact
sums, and the rescaling of the chip. Element-wise ops may be one step off, since they compute with
real numbers inside. A matmul of real numbers and weights of integers is as exact as one of real
numbers. Each must be one composite in one region.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
from tvm import relax

from ..capability import Buckets, Elementwise, Exact, Fuses, Op, Quantized
from ..patterns import TABLE, TO_REAL, computes_quantized
from . import numpy_reference
from .cases import OPS
from .compare import Step
from .compiled import Compiled, compile_all
from .composites import run_as_one
from .model import Case, Model, Spec, Tensor, compute, entry_of
from .result import Outcome
from .suite import Settings
from .workers import Announce, in_workers

SUITE = "quantized"


@dataclass(frozen=True)
class Variant:
    """What surrounds an op."""

    data: str = "int8"
    weight: str = "int8"
    result: str = "int8"
    """The element types; "" for a result of real numbers."""
    zero_points: tuple[int, int, int] = (0, 0, 0)
    """Those of the two inputs and of the result, from the middle of their types."""
    per_channel: bool = True
    bias: bool = False
    residual: bool = False
    activation: str = ""

    def __str__(self) -> str:
        """Return the name of the variant."""
        parts = [self.data, self.weight, self.result or "real", "channels" * self.per_channel]
        zeros = "zeros" * any(self.zero_points)
        parts += ["bias" * self.bias, "residual" * self.residual, self.activation, zeros]
        return "_".join(filter(None, parts))


_VARIANTS = (
    Variant(),
    Variant(bias=True, activation="relu", zero_points=(3, 0, -9)),
    Variant("uint8", "int8", "uint8", (-7, 0, 5), bias=True, residual=True),
    Variant("uint8", "uint8", "uint8", (11, -4, 0), per_channel=False, bias=True),
    Variant("int8", "int8", "int8", (-128, 0, -128), bias=True, activation="clip"),
    Variant("int8", "int8", "", (5, 0, 0), bias=True),
    Variant("int8", "uint8", "int8", (0, 9, 1), residual=True, activation="relu"),
    Variant("uint8", "int8", "int8", (20, 0, 2), False, bias=True, activation="sigmoid"),
)


@dataclass(frozen=True)
class Work:
    """An op on the inputs of one of its cases, and a variant."""

    case: Case
    variant: Variant

    def __str__(self) -> str:
        """Return the name of the case."""
        return f"{self.case}-{self.variant}"

    @property
    def op(self) -> str:
        """The op's name."""
        return self.case.op

    @property
    def entry(self) -> Op:
        """The op's entry."""
        return entry_of(self.op)

    @property
    def kind(self) -> object:
        """What other cases share with it."""
        return self.entry.engine, self.variant

    @property
    def dtype(self) -> str:
        """The element type of the data."""
        return self.variant.data

    def misnames(self, label: str) -> bool:
        """Whether a composite's label says something else."""
        right = label.startswith("quantized_")
        return not right or label.endswith(TO_REAL) == bool(self.variant.result)

    def model(self) -> Model:
        """Return it as a model."""
        model = Model("".join(char if char.isalnum() else "_" for char in str(self)))
        return (self._matrix if self.entry.engine == "matrix" else self._elementwise)(model)

    def _matrix(self, model: Model) -> Model:
        entry, variant = self.entry, self.variant
        (_, (data_spec, *_)), (_, (weight_spec, *_)) = self.case.specs()
        data = model.argument(Spec(data_spec.shape, variant.data), f"{self} data")
        weight = model.constant(Spec(weight_spec.shape, variant.weight), f"{self} weight")
        axis = _of(entry).channel
        channels = 1
        grouped = axis == 1 and self.case.entry.get("attributes", {}).get("groups", 1) > 1
        if variant.per_channel and axis is not None and not grouped:
            channels = weight.values[1].shape[axis]
        zeros = [
            _middle(variant.data) + variant.zero_points[0],
            _middle(variant.weight) + variant.zero_points[1],
        ]
        generator = np.random.default_rng(zlib.crc32(str(self).encode()))
        terms = max(1, weight.values[1].size // max(1, weight.values[1].shape[axis or 0]))
        scales = [
            np.float32(0.05),
            (generator.uniform(0.5, 1, channels) / 127 / np.sqrt(terms)).astype(np.float32),
        ]
        attributes = self.case.entry.get("attributes", {})
        reals = [
            _dequantized(model, tensor, scale, zero, axis if index else -1)
            for index, (tensor, scale, zero) in enumerate(
                zip((data, weight), scales, zeros, strict=True)
            )
        ]
        call = model.normalize(entry.name, reals, attributes)
        rank = len(call.ty.shape)
        channel = rank - 1 if entry.relax == "relax.matmul" else 1
        along = [-1 if index == channel else 1 for index in range(rank)]
        scale = np.float64(scales[0]) * scales[1].astype(np.float64)
        wide = scale.reshape(along) if channels > 1 else scale.reshape(())
        sums = {}
        for n in data.values:
            exact = [
                tensor.values[n].astype(np.int64).astype(np.float64) - zero
                for tensor, zero in zip((data, weight), zeros, strict=True)
            ]
            (sums[n],) = compute(entry.name, call, exact, attributes, n)
        expr = model.bind(call)
        if variant.bias:
            size = next(iter(sums.values())).shape[channel]
            steps = generator.integers(-5000, 5000, size)
            bias = (steps * (scale if channels > 1 else scale[0])).astype(np.float32)
            shape = along[channel:] if channel == rank - 1 else along[1:]
            expr = model.bind(relax.op.add(expr, relax.const(bias.reshape(shape))))
            added = np.rint(bias.astype(np.float64) / scale).reshape(along)
            sums = {n: value + added for n, value in sums.items()}
        step = np.float32(0.04)
        middle = _middle(variant.result) + variant.zero_points[2] if variant.result else 0
        rule = TABLE.chip.requantize
        if variant.activation == "sigmoid" or not variant.result:
            values = {n: value * wide for n, value in sums.items()}
        else:
            values = {
                n: numpy_reference.requantize(value, wide / np.float64(step), rule)
                for n, value in sums.items()
            }
        if variant.residual:
            other_step = np.float32(0.03)
            other = model.argument(Spec(Tensor(expr, {}).shape, variant.data), f"{self} residual")
            expr = model.bind(
                relax.op.add(expr, _dequantized(model, other, other_step, zeros[0], -1).expr)
            )
            factor = np.float64(other_step) / np.float64(step)
            values = {
                n: value
                + numpy_reference.requantize(
                    other.values[n].astype(np.float64) - zeros[0], factor, rule
                )
                for n, value in values.items()
            }
        least, most = -np.inf, np.inf
        if variant.activation == "relu":
            expr = model.bind(relax.op.nn.relu(expr))
            least = 0
        elif variant.activation == "clip":
            expr = model.bind(relax.op.clip(expr, 0.5, 3.0))
            least, most = (np.rint(limit / np.float64(step)) for limit in (0.5, 3.0))
        elif variant.activation:
            expr = model.bind(relax.op.sigmoid(expr))
            step = np.float32(1 / 255)
            values = {n: np.rint(numpy_reference.sigmoid(v) / step) for n, v in values.items()}
        if not variant.result:
            model.outputs = [Tensor(expr, {n: v.astype(np.float32) for n, v in values.items()})]
            return _judged(model, Elementwise(8, atol=1e-5))
        limits = np.iinfo(variant.result)
        values = {
            n: np.clip(np.clip(v, least, most) + middle, limits.min, limits.max)
            for n, v in values.items()
        }
        return _quantized(
            model,
            expr,
            step,
            middle,
            variant.result,
            values,
            Buckets(1) if variant.activation == "sigmoid" else Exact(),
        )

    def _elementwise(self, model: Model) -> Model:
        entry, variant = self.entry, self.variant
        dtypes = (variant.data, variant.weight)
        reals = []
        for index, (_, (spec, *_)) in enumerate(self.case.specs()):
            dtype = dtypes[index]
            tensor = model.argument(Spec(spec.shape, dtype), f"{self} {index}")
            zero = _middle(dtype) + variant.zero_points[index]
            reals.append(_dequantized(model, tensor, np.float32(0.03), zero, -1))
        attributes = self.case.entry.get("attributes", {})
        call = model.normalize(entry.name, reals, attributes)
        values = {}
        for n in reals[0].values:
            (value,) = compute(entry.name, call, [real.values[n] for real in reals], attributes, n)
            values[n] = value
        expr = model.bind(call)
        step = np.float32(max(float(np.abs(v).max()) for v in values.values()) / 100 or 1)
        if variant.activation == "relu":
            expr = model.bind(relax.op.nn.relu(expr))
            values = {n: np.maximum(v, 0) for n, v in values.items()}
        middle = _middle(variant.result) + variant.zero_points[2]
        limits = np.iinfo(variant.result)
        values = {
            n: np.clip(np.rint(v / np.float64(step)) + middle, limits.min, limits.max)
            for n, v in values.items()
        }
        return _quantized(model, expr, step, middle, variant.result, values, Buckets(1))


@dataclass(frozen=True)
class Weights:
    """A matmul of real numbers and of a weight of integers, as exporters write it."""

    data: tuple[int | str, ...]
    columns: int
    weight: str = "int8"
    bits: int = 8
    scales: str = "column"
    """"one", "column", or a number of elements of the summed dimension that share a scale."""
    zero_points: bool = False
    turned: bool = True
    """Whether the weight is stored with a row for each column, or as the matmul reads it."""
    dtype: str = "float32"
    bias: bool = False
    residual: bool = False
    activation: str = ""
    op: str = "matmul"

    def __str__(self) -> str:
        """Return the name of the case."""
        shape = "x".join(map(str, (*self.data, self.columns)))
        parts = [f"{self.op}-{shape}-{self.dtype}", f"{self.weight}.{self.bits}", self.scales]
        parts += ["zeros" * self.zero_points, "turned" * self.turned]
        parts += ["bias" * self.bias, "residual" * self.residual, self.activation]
        return "_".join(filter(None, parts))

    @property
    def kind(self) -> object:
        """What other cases share with it."""
        return self

    def misnames(self, label: str) -> bool:
        """Whether a composite's label says something else."""
        return not label.startswith("weight_only_")

    @property
    def depth(self) -> int:
        """The size of the summed dimension."""
        return int(self.data[-1])

    def _weight(self, model: Model) -> tuple[Any, Any]:
        """Return the weight in the model, and its real numbers in float64."""
        generator = np.random.default_rng(zlib.crc32(str(self).encode()))
        least = 0 if self.weight == "uint8" else -(2 ** (self.bits - 1))
        shape = [self.columns, self.depth] if self.turned else [self.depth, self.columns]
        rows, axis = list(shape), 0 if self.turned else 1
        if self.scales.isdigit():
            # A block in each row; without transposition, some rows of the matrix.
            size = int(self.scales) * (1 if self.turned else self.columns)
            rows, axis = [self.depth * self.columns // size, size], 0
        numbers = generator.integers(least, least + 2**self.bits, rows)
        count = () if self.scales == "one" else (rows[axis],)
        scales = (generator.uniform(0.5, 1, count) / 2**self.bits).astype(self.dtype)
        middle = 0 if self.weight == "int8" else 2 ** (self.bits - 1)
        zeros = np.full(count, middle)
        if self.zero_points:
            zeros = generator.integers(least, least + 2**self.bits, count)
        constants = [numbers.astype(self.weight), scales, zeros.astype(self.weight)]
        call = relax.op.dequantize(*map(relax.const, constants), axis, self.dtype)
        expr = model.bind(call)
        along = [-1 if index == axis else 1 for index in range(2)] if count else []
        real = (numbers - zeros.reshape(along)) * scales.astype(np.float64).reshape(along)
        if rows != shape:
            expr = model.bind(relax.op.reshape(expr, shape))
        real = real.reshape(shape)
        if not self.turned:
            return expr, real
        return model.bind(relax.op.permute_dims(expr)), real.T

    def model(self) -> Model:
        """Return it as a model."""
        model = Model("".join(char if char.isalnum() else "_" for char in str(self)))
        data = model.argument(Spec(self.data, self.dtype), f"{self} data")
        weight, real = self._weight(model)
        expr = model.bind(relax.op.matmul(data.expr, weight))
        values = {n: value.astype(np.float64) @ real for n, value in data.values.items()}
        if self.bias:
            bias = np.linspace(-1, 1, self.columns).astype(self.dtype)
            expr = model.bind(relax.op.add(expr, relax.const(bias)))
            values = {n: value + bias.astype(np.float64) for n, value in values.items()}
        if self.residual:
            other = model.argument(Spec((*self.data[:-1], self.columns), self.dtype), "residual")
            expr = model.bind(relax.op.add(expr, other.expr))
            values = {n: value + other.values[n].astype(np.float64) for n, value in values.items()}
        if self.activation == "relu":
            expr = model.bind(relax.op.nn.relu(expr))
            values = {n: np.maximum(value, 0) for n, value in values.items()}
        largest = max(float(np.abs(value).max()) for value in values.values())
        result = {n: value.astype(self.dtype) for n, value in values.items()}
        model.outputs = [Tensor(expr, result)]
        tolerance = entry_of(self.op).tolerance
        step = Step(tolerance, self.depth, (self.dtype,), largest)
        model.steps = [dict.fromkeys(result, step)]
        return model


_WEIGHTS = (
    Weights((5, 64), 24, scales="one", turned=False),
    Weights((5, 64), 24, bias=True, activation="relu"),
    Weights((5, 64), 24, "uint8", zero_points=True, residual=True),
    Weights((1, 256), 96, bits=4, scales="32", bias=True, activation="relu"),
    Weights((7, 256), 40, "uint8", 4, "32", zero_points=True, bias=True, residual=True),
    Weights((2, "n", 256), 33, scales="128", zero_points=True),
    Weights((3, 35), 17, bits=4, turned=False, bias=True),
    Weights((3, 66), 17, bits=4, scales="11", zero_points=True, turned=False),
    Weights((3, 35), 17, bits=2, scales="7", residual=True, activation="relu"),
    Weights((1, 35), 1, "uint8", scales="35", zero_points=True),
    Weights((4, 3, 64), 24, "uint8", 4, bias=True),
    Weights((5, 64), 24, dtype="float16", bias=True),
    Weights((5, 64), 24, "uint8", 4, "32", zero_points=True, dtype="float16", activation="relu"),
)


def _takes(work: Weights, entry: Op) -> bool:
    """Whether the chip has all that a case needs."""
    fuses = entry.fuses or Fuses()
    if (work.bias and fuses.bias is None) or (work.residual and not fuses.residual):
        return False
    if work.activation not in {"", *(op.name for op in TABLE.activations_of(entry))}:
        return False
    if work.weight not in _of(entry).dtypes:
        return False
    # As a matmul of real numbers.
    model = Model("trial")
    data = model.argument(Spec(work.data, work.dtype))
    weight = model.constant(Spec((work.depth, work.columns), work.dtype), "weight")
    return model.refusal(entry.name, data, weight) is None


def _of(entry: Op) -> Quantized:
    assert entry.quantized is not None
    return entry.quantized


def _middle(dtype: str) -> int:
    return 128 if dtype == "uint8" else 0


def _dequantized(model: Model, tensor: Tensor, scale: Any, zero: int, axis: int | None) -> Tensor:
    """Dequantize a tensor, in the model and in float64."""
    axis = -1 if axis is None else axis
    scale = np.asarray(scale, np.float32)
    if scale.size == 1:
        scale = scale.reshape(())
    zeros = np.full(scale.shape, zero, tensor.dtype)
    call = relax.op.dequantize(tensor.expr, relax.const(scale), relax.const(zeros), axis)
    rank = len(tensor.shape)
    along = [-1 if index == axis % rank else 1 for index in range(rank)] if rank else []
    wide = scale.astype(np.float64).reshape(along) if scale.size > 1 else np.float64(scale)
    values = {n: (v.astype(np.float64) - zero) * wide for n, v in tensor.values.items()}
    return Tensor(model.bind(call), values)


def _quantized(
    model: Model, expr: Any, step: Any, zero: int, dtype: str, values: Any, tolerance: Any
) -> Model:
    zeros = relax.const(np.asarray(zero, dtype))
    call = relax.op.quantize(expr, relax.const(np.float32(step)), zeros, -1, dtype)
    result = {n: value.astype(dtype) for n, value in values.items()}
    model.outputs = [Tensor(model.bind(call), result)]
    return _judged(model, tolerance)


def _judged(model: Model, tolerance: Any) -> Model:
    (output,) = model.outputs
    model.steps = [{n: Step(tolerance, 1, (output.dtype,), 0.0) for n in output.values}]
    return model


@cache
def _works() -> dict[str, Work | Weights]:
    works: dict[str, Work | Weights] = {}
    entry = TABLE.get("matmul")
    if entry is not None and TABLE.takes_integer_weights("relax.matmul"):
        works |= {str(item): item for item in _WEIGHTS if _takes(item, entry)}
    if not computes_quantized(TABLE):
        return works
    for entry in TABLE.ops:
        if entry.quantized is None or not entry.relax or entry.name not in OPS:
            continue
        cases = [case for case in Case.all(entry.name) if not case.dtype and _suits(case)]
        if not cases:
            continue
        matrix = entry.engine == "matrix"
        variants = _VARIANTS if matrix else _VARIANTS[:3]
        # Every case once, and every variant once.
        count = max(len(cases) if matrix else 2, len(variants))
        known = [item for item in variants if _is_known(item, entry)]
        pairs = zip(cycle(cases), cycle(known), range(count), strict=False)
        for case, variant, _ in pairs:
            work = Work(case, variant)
            works[str(work)] = work
    return works


def _is_known(variant: Variant, entry: Op) -> bool:
    """Whether the chip has all types and ops of a variant."""
    dtypes = {variant.data, variant.weight, variant.result or variant.data}
    if not dtypes <= set(_of(entry).dtypes):
        return False
    if entry.engine != "matrix":
        relu = TABLE.get("relu")
        return not variant.activation or (relu is not None and relu.quantized is not None)
    fuses = entry.fuses or Fuses()
    if (variant.bias and fuses.bias is None) or (variant.residual and not fuses.residual):
        return False
    return variant.activation in {"", *(op.name for op in TABLE.activations_of(entry))}


def _suits(case: Case) -> bool:
    """Whether a case has two matrices, or float tensors of the same kind, and the chip takes it."""
    specs = [spec for _, (spec, *_) in case.specs()]
    if case.entry.get("attributes", {}).get("out_dtype"):
        return False
    if any(spec.values is not None or spec.dtype != "float32" or not spec.shape for spec in specs):
        return False
    if entry_of(case.op).engine == "matrix" and (
        any(len(spec.shape) < 2 for spec in specs) or "n" in specs[1].shape
    ):
        return False
    return not case.model(exact=False).refusals(asked_later=False)


def find(name: str) -> Work | Weights:
    """Return the case of a name."""
    return _works()[name]


def cases(settings: Settings) -> list[str]:
    """Return the names of all cases."""
    return list(_works())


def essentials() -> list[str]:
    """Return the names of a few cases: each has an op or a variant that no earlier one has."""
    known: set[object] = set()
    chosen = []
    for name, work in _works().items():
        parts = {work.op, work.kind}
        if not parts <= known:
            known |= parts
            chosen.append(name)
    return chosen


def outcomes(settings: Settings) -> Iterator[Outcome]:
    """Run the cases that are asked for."""
    yield from in_workers(SUITE, settings.choose(SUITE, cases(settings)), settings.jobs)


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Compile cases together, and run them one by one."""
    works = [find(name) for name in names]
    models = {str(work): work.model() for work in works}
    compiled = compile_all(list(models.values()))
    for work in works:
        announce(str(work))
        yield _run(work, models[str(work)], compiled)


def _run(work: Work | Weights, model: Model, compiled: Compiled) -> Outcome:
    def misnamed(label: str) -> str:
        return f"the composite is called {label}" if work.misnames(label) else ""

    op, dtype = work.op, work.dtype
    outcome = Outcome(SUITE, str(work), "passed", op=op, dtype=dtype, expected="all")
    return run_as_one(outcome, model, compiled, misnamed)
