# SPDX-License-Identifier: Apache-2.0
"""The models of the suite of quantized tensors, with the integers that they must return."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np
from tvm import relax

from ...backend.api import TABLE, Array, Kind
from ...capability import Buckets, Elementwise, Op, Quantized, Tolerance
from ...chip import Chip
from . import numpy_reference
from .allowances import Step
from .cases import symbol_of
from .catalog_cases import Case
from .model import Arrays, Model, Spec, Tensor, compute, entry_of, sums_of

_PATH = Path(__file__).with_name("requantization_factors.json")
FACTORS: dict[str, list[float]] = json.loads(_PATH.read_text(encoding="utf-8"))["factors"]
"""The factors of a real network, by kind of convolution; the file says where they come from."""
_TIED = np.float32(2**-5)
"""The scale of data and results with ties."""
_TIED_FACTORS = np.array([1 / 4, 3 / 8, 1 / 8, 3 / 16, 1 / 16], np.float32)
"""The factors that such sums are rescaled by, channel by channel."""
_TIED_DATA, _TIED_WEIGHT, _TIED_BIAS = 12, 9, 40
"""How far their numbers are from the zero points, so that few sums saturate."""


@dataclass(frozen=True)
class Variant:
    """The types and scales around an op."""

    data: str = "int8"
    weight: str = "int8"
    result: str = "int8"
    """The element types; "" for a result of real numbers."""
    zero_points: tuple[int, int, int] = (0, 0, 0)
    """Zero points of both inputs and of the result, from the middle of their types."""
    per_channel: bool = True
    bias: bool = False
    residual: bool = False
    activation: str = ""
    computed: bool = False
    """Whether the second input is not a constant."""
    ends: bool = False
    """Whether all numbers are at the ends of their types, so that sums are as large as they get."""
    step: float = 0.04
    """The scale of the result."""
    narrow: tuple[int | None, int | None] = (None, None)
    """The least and the largest number of a weight of int4."""
    ties: bool = False
    """Whether many results are halfway between two integers before they are rounded."""
    factors: str = ""
    """The convolutions of a real network whose factors the sums are rescaled by."""

    def __str__(self) -> str:
        """Return the name of the variant."""
        parts = [self.data, self.weight, self.result or "real", "channels" * self.per_channel]
        zeros = "zeros" * any(self.zero_points)
        parts += ["bias" * self.bias, "residual" * self.residual, self.activation, zeros]
        parts += ["computed" * self.computed, "ends" * self.ends, "int4" * any(self.narrow)]
        parts += ["ties" * self.ties, self.factors and f"mobilenetv2_{self.factors}"]
        parts += [f"step{self.step:g}" * (self.step != Variant.step)]
        return "_".join(filter(None, parts))


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

    @property
    def composites(self) -> int:
        """How many composites it is."""
        return 1

    def misnames(self, label: str) -> bool:
        """Whether a composite's label says something else."""
        right = {Kind.INTEGERS, Kind.RESCALES} if self.variant.result else {Kind.TO_REAL}
        return TABLE.compositions[label].kind not in right

    def model(self, chip: Chip = TABLE.chip) -> Model:
        """Return it as a model, with the results of a chip that rescales and rounds in its way."""
        model = Model(symbol_of(str(self)))
        if self.entry.is_product:
            return self._matrix(model, chip)
        if self.entry.inside == "integers":
            return self._sums(model, chip)
        return self._elementwise(model, chip)

    def _matrix(self, model: Model, chip: Chip) -> Model:
        entry, variant, rule = self.entry, self.variant, chip.requantize
        (_, (data_spec, *_)), (_, (weight_spec, *_)) = self.case.specs()
        axis = integers_of(entry).channel
        zeros = [
            _middle(variant.data) + variant.zero_points[0],
            _middle(variant.weight) + variant.zero_points[1],
        ]
        spec = self._spec(data_spec.shape, variant.data, 0 if axis == 0 else -2)
        if variant.ties:
            spec = replace(spec, low=zeros[0] - _TIED_DATA, high=zeros[0] + _TIED_DATA)
        data = model.argument(spec, f"{self} data")
        spec = self._spec(weight_spec.shape, variant.weight, axis or 0)
        spec = replace(spec, low=variant.narrow[0], high=variant.narrow[1])
        if variant.ties:
            spec = replace(spec, low=zeros[1] - _TIED_WEIGHT, high=zeros[1] + _TIED_WEIGHT)
        if variant.factors:
            spec = replace(spec, values=_weights_for(spec, axis or 0, FACTORS[variant.factors]))
        weight = (model.argument if variant.computed else model.constant)(spec, f"{self} weight")
        channels = 1
        # The groups of a transposed convolution share the channels of its weight.
        groups = self.case.entry.get("attributes", {}).get("groups", 1) if axis == 1 else 1
        if variant.per_channel and axis is not None:
            channels = weight.values[1].shape[axis]
        generator = np.random.default_rng(zlib.crc32(str(self).encode()))
        terms = max(1, weight.values[1].size // max(1, weight.values[1].shape[axis or 0]))
        largest = 32767 if variant.weight == "int16" else 127
        scales = [
            np.float32(0.05),
            (generator.uniform(0.5, 1, channels) / largest / np.sqrt(terms)).astype(np.float32),
        ]
        if variant.ties:
            scales = [_TIED, np.resize(_TIED_FACTORS, channels).astype(np.float32)]
        if variant.factors:
            scales = [_TIED, np.array(FACTORS[variant.factors], np.float32)]
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
        scale = np.tile(scale, groups) if channels > 1 else scale
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
            limit = _TIED_BIAS if variant.ties else 5000
            steps = generator.integers(-limit, limit, size)
            bias = (steps * (scale if channels > 1 else scale[0])).astype(np.float32)
            shape = along[channel:] if channel == rank - 1 else along[1:]
            expr = model.bind(relax.op.add(expr, relax.const(bias.reshape(shape))))
            added = np.rint(bias.astype(np.float64) / scale).reshape(along)
            sums = {n: value + added for n, value in sums.items()}
        step = _TIED if variant.ties or variant.factors else np.float32(variant.step)
        middle = _middle(variant.result) + variant.zero_points[2] if variant.result else 0
        # Before activations other than limits, the sums become real numbers.
        is_limited = variant.activation in ("", "relu", "clip")
        # With scales at tensors, there is no scale between a sum and a residual.
        rounds_once = bool(variant.result) and variant.residual and is_limited and rule.is_float32
        real = not is_limited or not variant.result or rounds_once
        if real:
            values = {n: value * wide for n, value in sums.items()}
        else:
            values = {
                n: numpy_reference.requantize(value, wide, step, chip, variant.data == "int16")
                for n, value in sums.items()
            }
        if variant.residual:
            other_step = _TIED / 4 if variant.ties else np.float32(0.03)
            other = model.argument(Spec(Tensor(expr, {}).shape, variant.data), f"{self} residual")
            added_real = _dequantized(model, other, other_step, zeros[0], -1)
            expr = model.bind(relax.op.add(expr, added_real.expr))
            values = {
                n: value
                + (
                    added_real.values[n]
                    if real
                    else numpy_reference.requantize(
                        other.values[n].astype(np.float64) - zeros[0],
                        np.float64(other_step),
                        step,
                        chip,
                    )
                )
                for n, value in values.items()
            }
        if rounds_once:
            values = _in_steps(values, step, chip)
        least, most = -np.inf, np.inf
        if variant.activation == "relu":
            expr = model.bind(relax.op.nn.relu(expr))
            least = 0
        elif variant.activation == "clip":
            expr = model.bind(relax.op.clip(expr, 0.5, 3.0))
            exact = np.float32(step) if rule.is_float32 else np.float64(step)
            halves = chip.rounds if rule.is_float32 else "half_even"
            least, most = (
                float(numpy_reference.to_nearest(exact.dtype.type(limit) / exact, halves))
                for limit in (0.5, 3.0)
            )
        elif variant.activation:
            expr, values = _activated(model, variant.activation, Tensor(expr, values))
            peak = max([1.0, *(float(np.abs(v).max()) for v in values.values())])
            step = np.float32(peak / np.iinfo(variant.result).max)
            values = _in_steps(values, step, chip)
        if not variant.result:
            model.outputs = [Tensor(expr, {n: v.astype(np.float32) for n, v in values.items()})]
            # It may have summed in float32.
            rtol = 8 * np.sqrt(terms) * 2**-24 if rule.is_float32 else 0.0
            return _judged(model, Elementwise(8, rtol, atol=1e-5))
        limits = np.iinfo(variant.result)
        values = {
            n: np.clip(np.clip(v, least, most) + middle, limits.min, limits.max)
            for n, v in values.items()
        }
        tolerance = rule.tolerance
        if rounds_once:
            tolerance = Buckets(max(1, rule.steps), max(0.01, rule.share if rule.steps else 0))
        elif real:
            tolerance = Buckets(1)
        return _quantized(model, expr, step, middle, variant.result, values, tolerance)

    def _spec(self, shape: tuple[int | str, ...], dtype: str, axis: int) -> Spec:
        """Return the numbers of an input; at the ends, they differ only along one axis."""
        if not self.variant.ends:
            return Spec(shape, dtype)
        limits, sizes = np.iinfo(dtype), [int(size) for size in shape]
        places = np.indices(sizes, sparse=True)[axis % len(sizes)]
        values = np.broadcast_to(np.where(places % 2, limits.min, limits.max), sizes)
        return Spec(shape, dtype, values=values.reshape(-1).tolist())

    def _elementwise(self, model: Model, chip: Chip) -> Model:
        entry, variant = self.entry, self.variant
        dtypes = (variant.data, variant.weight)
        reals = []
        for index, (operand, (spec, *_)) in enumerate(self.case.specs()):
            if operand.weight:
                reals.append(model.constant(spec, f"{self} {index}"))
                continue
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
        most = np.iinfo(variant.result).max
        step = np.float32(max(float(np.abs(v).max()) for v in values.values()) / (0.8 * most) or 1)
        if variant.activation == "relu":
            expr = model.bind(relax.op.nn.relu(expr))
            values = {n: np.maximum(v, 0) for n, v in values.items()}
        middle = _middle(variant.result) + variant.zero_points[2]
        limits = np.iinfo(variant.result)
        values = {
            n: np.clip(v + middle, limits.min, limits.max)
            for n, v in _in_steps(values, step, chip).items()
        }
        return _quantized(model, expr, step, middle, variant.result, values, Buckets(1))

    def _sums(self, model: Model, chip: Chip) -> Model:
        """Return a mean, or a rescaling alone, which are exact."""
        entry, variant = self.entry, self.variant
        (_, (spec, *_)), *_ = self.case.specs()
        data = model.argument(Spec(spec.shape, variant.data), f"{self} data")
        zero = _middle(variant.data) + variant.zero_points[0]
        scale = _TIED if variant.ties else np.float32(0.03)
        real = _dequantized(model, data, scale, zero, -1)
        sums = {n: value.astype(np.float64) - zero for n, value in data.values.items()}
        expr, factors = real.expr, dict.fromkeys(sums, np.float64(scale))
        if entry.relax != "relax.quantize":
            attributes = self.case.entry.get("attributes", {})
            call = model.normalize(entry.name, [real], attributes)
            for n, value in sums.items():
                sums[n], counts = sums_of(entry, call, value, attributes, n)
                factors[n] = factors[n] / counts
            expr = model.bind(call)
        step = np.float32(max(np.abs(v * factors[n]).max() for n, v in sums.items()) / 100 or 1)
        if variant.ties:
            step = np.float32(4 * np.max(factors[1]))
        values = {
            n: numpy_reference.requantize(value, factors[n], step, chip)
            for n, value in sums.items()
        }
        if variant.activation == "relu":
            expr = model.bind(relax.op.nn.relu(expr))
            values = {n: np.maximum(v, 0) for n, v in values.items()}
        middle, limits = _middle(variant.result) + variant.zero_points[2], np.iinfo(variant.result)
        values = {n: np.clip(v + middle, limits.min, limits.max) for n, v in values.items()}
        return _quantized(
            model, expr, step, middle, variant.result, values, chip.requantize.tolerance
        )


class Joined(Work):
    """A concat of tensors with several scales; those that differ from the result's are rescaled."""

    def __str__(self) -> str:
        """Return the name of the case."""
        return f"{self.case}-joined_{self.variant}"

    def misnames(self, label: str) -> bool:
        """Whether a composite's label says something else."""
        return label not in (Kind.RESCALES.value, "concat")

    @property
    def _result(self) -> tuple[str, float, int]:
        """The type, the scale and the zero point of the result."""
        dtype = self.variant.result
        scale = float(_TIED) if self.variant.ties else 0.03
        return dtype, scale, _middle(dtype) + self.variant.zero_points[2]

    @property
    def _parts(self) -> list[tuple[Spec, tuple[str, float, int]]]:
        """The shape of each part, and its type, scale and zero point."""
        ((_, specs),) = self.case.specs()
        kinds = [self._result]
        tied = (_TIED_FACTORS[:2] * _TIED).tolist()
        for index, scale in enumerate(tied if self.variant.ties else (0.011, 0.07)):
            dtype = (self.variant.data, self.variant.weight)[index]
            kinds.append((dtype, scale, _middle(dtype) + self.variant.zero_points[index]))
        return list(zip(specs, cycle(kinds[::-1]), strict=False))

    @property
    def composites(self) -> int:
        """How many composites it is."""
        return 1 + sum(kind != self._result for _, kind in self._parts)

    def model(self, chip: Chip = TABLE.chip) -> Model:
        """Return it as a model, with the results of a chip that rescales and rounds in its way."""
        model = Model(symbol_of(str(self)))
        dtype, step, middle = self._result
        reals, steps = [], []
        for index, (spec, (kind, scale, zero)) in enumerate(self._parts):
            tensor = model.argument(Spec(spec.shape, kind), f"{self} {index}")
            reals.append(_dequantized(model, tensor, scale, zero, -1))
            exact = np.float64(np.float32(scale))
            steps.append(
                {
                    n: numpy_reference.requantize(
                        v.astype(np.float64) - zero, exact, np.float32(step), chip
                    )
                    for n, v in tensor.values.items()
                }
            )
        attributes = self.case.entry.get("attributes", {})
        expr = model.bind(model.normalize("concat", [reals], attributes))
        ends, axis = np.iinfo(dtype), attributes.get("axis", 0)
        values = {
            n: np.clip(np.concatenate([q[n] for q in steps], axis) + middle, ends.min, ends.max)
            for n in steps[0]
        }
        return _quantized(model, expr, step, middle, dtype, values, chip.requantize.tolerance)


def integers_of(entry: Op) -> Quantized:
    """Return which integers an op of the table computes with."""
    assert entry.quantized is not None
    return entry.quantized


def _weights_for(spec: Spec, axis: int, factors: Sequence[float]) -> Array:
    """Return a weight with whose sums the results fill their range, but for very small factors."""
    generator = np.random.default_rng(7)
    along = [-1 if index == axis % len(spec.shape) else 1 for index in range(len(spec.shape))]
    sizes = [int(size) for size in spec.shape]
    # Random data of 8 bits is 74 on average.
    of_one = 74 * np.sqrt(np.prod(sizes) / len(factors))
    most = np.clip(100 / of_one / np.array(factors), 1, 127).reshape(along)
    return np.rint(generator.uniform(-most, most, sizes)).reshape(-1)


def _in_steps(values: Arrays, step: float, chip: Chip) -> dict[int, Array]:
    """Round real numbers to steps, as the chip's `quantize` does."""
    return {
        n: numpy_reference.to_nearest(value / np.float64(step), chip.rounds)
        for n, value in values.items()
    }


def _middle(dtype: str) -> int:
    return 128 if dtype == "uint8" else 0


def _dequantized(
    model: Model, tensor: Tensor, scale: object, zero: int, axis: int | None
) -> Tensor:
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


def _activated(model: Model, name: str, data: Tensor) -> tuple[relax.Expr, dict[int, Array]]:
    """Apply an activation, with the attributes of its first case."""
    attributes = Case.all(name)[0].entry.get("attributes", {})
    call = model.normalize(name, [data], attributes)
    values = {n: compute(name, call, [v], attributes, n)[0] for n, v in data.values.items()}
    return model.bind(call), values


def _quantized(
    model: Model,
    expr: relax.Expr,
    step: float,
    zero: int,
    dtype: str,
    values: Arrays,
    tolerance: Tolerance,
) -> Model:
    zeros = relax.const(np.asarray(zero, dtype))
    call = relax.op.quantize(expr, relax.const(np.float32(step)), zeros, -1, dtype)
    result = {n: value.astype(dtype) for n, value in values.items()}
    model.outputs = [Tensor(model.bind(call), result)]
    return _judged(model, tolerance)


def _judged(model: Model, tolerance: Tolerance) -> Model:
    (output,) = model.outputs
    model.steps = [{n: Step(tolerance, 1, (output.dtype,), 0.0) for n in output.values}]
    return model
