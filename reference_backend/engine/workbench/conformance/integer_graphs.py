# SPDX-License-Identifier: Apache-2.0
"""Random graphs of quantized tensors; each graph must become one region.

Each op is between a dequantize of each tensor and a quantize, with scales, zero points and ways to
write a bias drawn at random. The numbers are those of integers: exact sums, and the rescaling of
the chip. Element-wise ops compute with real numbers; where one is close to a tie, the op is
dropped, so that all results are exact. They are off as far as the table lets a chip be, op by op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from ...backend.api import TABLE, Array, Kind
from ...capability import Fuses, Op
from . import numpy_reference, quantized
from .cases import OPS
from .drifts import NO_DRIFT, Drift, Integers, of_function, of_product, steps_inside
from .files import limits
from .graphs import Choose
from .model import Model, Spec, Tensor, compute, sums_of
from .quantized_models import Work

CHIP = TABLE.chip
_MATRIX = ("matmul", "conv2d", "depthwise_conv2d")
_TIE = 2e-3
"""How close to a tie, in steps, real numbers may round differently."""
_WIDE_TIE = 2e-2
"""The same where results use all of the range of int16."""


@dataclass(frozen=True, eq=False)
class _Second:
    """The second input of a product: real numbers, integers less their zero point, and scales."""

    real: relax.Expr
    steps: Array
    scales: Array
    drift: Drift = NO_DRIFT


def _known() -> list[Op]:
    """Return the ops of the table that compute with quantized tensors."""
    entries = [entry for entry in TABLE.ops if entry.quantized is not None]
    return [entry for entry in entries if entry.name in OPS] if TABLE.computes_quantized else []


def possible_anchors() -> list[Op]:
    """Return the ops that a graph can begin with if the driver takes them."""
    return [entry for entry in _known() if entry.name in _MATRIX]


def anchors(before: Callable[[Work], None] | None = None) -> list[Op]:
    """Return the ops that a graph can begin with.

    Where the driver takes no integers, it may still take the parts, which compute with real
    numbers.
    """
    entries = []
    for entry in possible_anchors():
        work = quantized.first_of(entry.name)
        if before is not None and work is not None:
            before(work)
        if quantized.lacks_integers(entry.name) is None:
            entries.append(entry)
    return entries


class IntegerGraph:
    """A model of quantized tensors that grows at random.

    `name`: the name of the function.
    `choose`: makes all decisions.
    """

    asks_host = False
    """TVM's own kernels compute with real numbers, which round ties in another way."""

    def __init__(self, name: str, choose: Choose) -> None:
        self.model = Model(name)
        self.ops: list[str] = []
        """Its ops, in order."""
        self._choose = choose
        # Powers of two have ties, and make the factor exact.
        self._exact = choose([False, True])
        # Numbers at the end of their range, and many of them, need all of an accumulator.
        self._long = choose([False, False, True])
        self._seed = choose(range(1 << 16))
        self._random = np.random.default_rng(self._seed)
        self._computed: list[Integers] = []
        matrix, others = anchors(), [entry for entry in _known() if not entry.is_product]
        means = [entry for entry in others if entry.inside == "integers"]
        pairs = [entry for entry in others if len(entry.inputs) == 2]
        if not matrix:
            return
        self._step(self._choose(matrix), None)
        for _ in range(choose(range(8)) if self.ops else 0):
            source = choose(self._computed[::-1][:3])
            entries = choose([matrix, matrix, others, means, [], pairs])
            self._step(choose(entries) if entries else None, source)
        self.model.outputs = [integers.tensor for integers in self._outputs()]

    @property
    def wants_constants(self) -> bool:
        """Whether an op takes constants only, such as weights."""
        entries = (TABLE.get(name) for name in self.ops)
        return any(entry is not None and entry.wants_constants for entry in entries)

    @property
    def whole(self) -> bool:
        """Whether it must be one region."""
        return True

    def limits(self, n: int) -> list[Array]:
        """Return the allowed error of each element of each output."""
        exact = limits([item.values[n] for item in self.model.outputs])
        drifts = [integers.drift.allowed for integers in self._outputs()]
        return [limit + drift for limit, drift in zip(exact, drifts, strict=True)]

    def misnamed(self, regions: Sequence[Sequence[str]]) -> str:
        """Return which composite does not compute with integers, or nothing."""
        integers = {entry.name for entry in _known() if entry.inside == "integers"}
        for label in (label for labels in regions for label in labels):
            composition = TABLE.compositions[label]
            if composition.kind is Kind.REALS and composition.op.name in {*integers, "dequantize"}:
                return f"{label} computes with real numbers"
        return ""

    # ---- Steps ----------------------------------------------------------------------------------

    def _step(self, entry: Op | None, source: Integers | None) -> None:
        """Append an op to a tensor, if that is possible: of the table, or one that moves."""
        model = self.model
        before = len(model.arguments), len(model.bindings)
        try:
            if entry is not None and entry.is_product:
                name, result = entry.name, self._product(entry, source)
            elif source is None:
                raise _Unfit
            elif entry is not None and entry.inside == "integers":
                name, result = entry.name, self._average(entry, source)
            elif entry is not None:
                name, result = entry.name, self._elementwise(entry, source)
            else:
                name, result = self._moved(source)
        except _Unfit:
            del model.arguments[before[0] :]
            del model.bindings[before[1] :]
            return
        self._computed.append(result)
        self.ops.append(name)

    def _outputs(self) -> list[Integers]:
        """Return the values that nothing reads."""
        values = [binding.value for binding in self.model.bindings]
        used = {var for value in values for var in relax.analysis.free_vars(value)}
        return [integers for integers in self._computed if integers.tensor.expr not in used]

    def _moved(self, source: Integers) -> tuple[str, Integers]:
        """Append an op that only moves elements, written with real numbers."""
        shape = tuple(source.tensor.shape)
        value = source.tensor.values[1]
        name = self._choose(["reshape", "permute_dims", "concat"])
        if TABLE.get(name) is None:
            raise _Unfit
        if name == "concat":
            return name, self._joined(source)
        real = self._real(source)
        if name == "reshape":
            moved = value.reshape(self._choose([(math.prod(shape),), (1, *shape), (shape[0], -1)]))
            call = relax.op.reshape(real, moved.shape)
        else:
            axes = list(range(len(shape)))[::-1]
            moved = value.transpose(axes)
            call = relax.op.permute_dims(real, axes)
        if len(moved.shape) > 4:
            raise _Unfit
        expr = self._quantize(self.model.bind(call), source.scale, source.zero, source.tensor.dtype)
        return name, replace(source, tensor=Tensor(expr, {1: moved}))

    def _joined(self, source: Integers) -> Integers:
        """Append a concat of tensors of several scales."""
        shape = tuple(source.tensor.shape)
        rescaled = next((entry for entry in _known() if entry.name == "quantize"), None)
        if rescaled is None or source.tensor.dtype not in self._types(rescaled):
            raise _Unfit  # Parts are not rescaled.
        types = self._types(rescaled)
        others = [self._other(shape, source.scale, types) for _ in range(self._choose([1, 2]))]
        parts = [*others, source][:: self._choose([1, -1])]
        axis = self._choose(range(len(shape)))
        reals = relax.Tuple([self._real(part) for part in parts])
        expr = self.model.bind(relax.op.concat(reals, axis))
        scale, dtype = self._choose([source.scale, others[0].scale]), source.tensor.dtype
        zero = self._choose([source.zero, self._zero(dtype)])
        steps = [numpy_reference.requantize(part.steps, part.scale, scale, CHIP) for part in parts]
        drifts = [_rescaled(part, scale) for part in parts]
        drift = Drift(max(one.most for one in drifts), max(one.square for one in drifts))
        return self._result(expr, np.concatenate(steps, axis), scale, zero, dtype, drift)

    def _average(self, entry: Op, source: Integers) -> Integers:
        """Append a mean, or a rescaling alone."""
        shape = tuple(source.tensor.shape)
        if source.tensor.dtype not in self._types(entry):
            raise _Unfit
        sums = source.steps
        expr, counts = self._real(source), np.float64(1)
        if entry.relax != "relax.quantize":
            attributes = self._attributes(entry, shape)
            call = self.model.normalize(entry.name, [Tensor(expr, {})], attributes)
            sums, counts = sums_of(entry, call, sums, attributes, 1)
            expr = self.model.bind(call)
        factors = np.float64(source.scale) / counts
        step = self._scale(float(np.abs(sums * factors).max()) / self._choose([100, 200, 40]))
        values = numpy_reference.requantize(sums, factors, step, CHIP)
        dtype = self._choose(self._types(entry))
        drift = source.drift.times(source.scale / step).rounded(CHIP.requantize.steps)
        return self._result(expr, values, step, self._zero(dtype), dtype, drift)

    def _attributes(self, entry: Op, shape: tuple[int, ...]) -> dict[str, object]:
        """Return attributes of a mean over windows or axes."""
        if entry.name == "mean":
            if len(shape) < 2:
                raise _Unfit
            keepdims = self._choose([True, False])
            return {"axis": self._choose([[-1], [len(shape) // 2]]), "keepdims": keepdims}
        if len(shape) not in entry.inputs[0].ranks:
            raise _Unfit
        spatial = shape[2:]
        if "output_size" in entry.attributes:
            return {"output_size": [self._choose([2, size, max(1, size - 1)]) for size in spatial]}
        kernel = self._choose([2, 3])
        if min(spatial) < kernel:
            raise _Unfit
        padding = [self._choose([0, 1]) for _ in (*spatial, *spatial)]
        return {
            "pool_size": [kernel] * len(spatial),
            "strides": [self._choose([1, 2])] * len(spatial),
            "padding": padding,
            "ceil_mode": self._choose([False, True]) and not any(padding),
            "count_include_pad": self._choose([False, True]),
        }

    def _product(self, entry: Op, source: Integers | None) -> Integers:
        """Append a matrix op with bias, residual and activation."""
        if source is None:
            source = self._argument(self._first_shape(entry), self._types(entry))
        shape = tuple(source.tensor.shape)
        if source.tensor.dtype not in self._types(entry):
            raise _Unfit
        weight_shape, channel, attributes = self._weight(entry, shape)
        is_wide = source.tensor.dtype == "int16"
        # Only a matmul of int16 has a second input of int16.
        all_types = is_wide and entry.name == "matmul"
        types = [dtype for dtype in self._types(entry) if all_types or dtype != "int16"]
        computed = entry.name == "matmul" and not TABLE.chip.constant_weights
        if computed and self._choose([False, True]):
            second = self._activation(shape, types)
        else:
            second = self._constant(weight_shape, channel, self._choose(types))
        reals = [self._real(source), second.real]
        tensors = [Tensor(real, {}) for real in reals]
        call = self.model.normalize(entry.name, tensors, attributes)
        exact = source.steps, second.steps

        def sums_of_steps(one: Array, other: Array) -> Array:
            return compute(entry.name, call, [one, other], attributes, 1)[0]

        sums = sums_of_steps(*exact)
        expr = self.model.bind(call)
        where = sums.ndim - 1 if entry.name == "matmul" else 1
        along = [-1 if index == where else 1 for index in range(sums.ndim)]
        wide = np.float64(source.scale) * second.scales.astype(np.float64)
        wide = wide.reshape(along if wide.ndim else ())
        fuses = entry.with_integers.fuses or Fuses()
        if fuses.bias is not None and self._choose([True, False]):
            expr, added = self._bias(expr, sums.shape[where], along, wide)
            sums = sums + added
        dtype = self._choose(self._types(entry))
        # Some results exceed the range of their type.
        steps_of_type = self._choose([100, 200, 40]) * (256 if dtype == "int16" else 1)
        step = self._scale(float(np.abs(sums * wide).max()) / steps_of_type)
        zero = self._zero(dtype)
        values = numpy_reference.requantize(sums, wide, step, CHIP, wide=is_wide)
        drift = of_product(sums_of_steps, exact, (source.drift, second.drift), wide / step)
        off = CHIP.requantize.steps
        if fuses.residual and self._choose([False, True]):
            other = self._other(sums.shape, step, self._types(entry))
            expr = self.model.bind(relax.op.add(expr, self._real(other)))
            drift, off = drift + _rescaled(other, step), steps_inside(CHIP.requantize)
            if CHIP.requantize.is_float32:
                # With scales at tensors, there is no scale between a sum and a residual.
                values = (sums * wide + other.real) / step
                values = numpy_reference.to_nearest(values, CHIP.rounds)
            else:
                values = values + numpy_reference.requantize(other.steps, other.scale, step, CHIP)
        limit = -np.inf
        names = {activation.name for activation in TABLE.activations_of(entry.with_integers)}
        if "relu" in names and self._choose([False, True]):
            expr = self.model.bind(relax.op.nn.relu(expr))
            limit = 0
        values, drift = np.maximum(values, limit), drift.rounded(off)
        return self._result(expr, values, step, zero, dtype, drift)

    def _activation(self, shape: tuple[int, ...], types: Sequence[str]) -> _Second:
        """Return a second input that is computed or an argument: with one scale, and batches."""
        columns = self._choose([8, 5, 17])
        batch = self._choose([shape[:-2], ()])
        other = self._other((*batch, shape[-1], columns), 0.05, types)
        scale = np.asarray(other.scale, "float32")
        return _Second(self._real(other), other.steps, scale, other.drift)

    def _constant(self, shape: tuple[int, ...], channel: int, dtype: str) -> _Second:
        """Return a weight, with one scale or one for each channel."""
        numbers = self._numbers(shape, channel, dtype)
        per_channel = self._choose([True, False])
        count = shape[channel] if per_channel else 1
        exponents = self._random.integers(6, 9, count)
        some = self._random.uniform(0.5, 1.0, count) / 127
        scales = (2.0**-exponents if self._exact else some).astype(np.float32)
        if not per_channel:
            scales = scales.reshape(())
        # All channels have the same zero point, near the middle of the type's range.
        zero = (128 if dtype == "uint8" else 0) + self._choose([0, 0, 5])
        zeros = relax.const(np.full(scales.shape, zero, dtype))
        call = relax.op.dequantize(
            relax.const(numbers), relax.const(scales), zeros, channel if per_channel else -1
        )
        return _Second(self.model.bind(call), numbers.astype(np.float64) - zero, scales)

    def _bias(
        self, expr: relax.Expr, size: int, along: list[int], wide: Array
    ) -> tuple[relax.Expr, Array]:
        """Add a bias, as one of several exporters writes it."""
        steps = self._random.integers(-3000, 3000, size)
        shape = along[1:] if along[-1] != -1 else [-1]
        way = self._choose(["real", "reshape", "integers"])
        scales = np.broadcast_to(wide.reshape(-1), (size,)).astype(np.float32)
        real = (steps * scales.astype(np.float64)).astype(np.float32)
        if way == "integers":
            zeros = relax.const(np.zeros(size, "int32"))
            call = relax.op.dequantize(
                relax.const(steps.astype("int32")), relax.const(scales), zeros, 0
            )
            bias = self.model.bind(call)
            real = (steps * scales).astype(np.float32)
        else:
            bias = relax.const(real if way == "reshape" else real.reshape(shape))
        if way != "real" and len(shape) > 1:
            sizes = [size if kept == -1 else 1 for kept in shape]
            bias = self.model.bind(relax.op.reshape(bias, sizes))
        added = np.rint(real.astype(np.float64) / np.broadcast_to(wide.reshape(-1), (size,)))
        return self.model.bind(relax.op.add(expr, bias)), added.reshape(along)

    def _elementwise(self, entry: Op, source: Integers) -> Integers:
        """Append an op that computes with real numbers inside."""
        case = OPS[entry.name]["cases"][0]
        attributes = dict(case.get("attributes", {}))
        weights = any(spec.weight for spec in entry.inputs)
        fits = len(source.tensor.shape) in entry.inputs[0].ranks
        if weights or not fits or source.tensor.dtype not in self._types(entry):
            raise _Unfit
        if "axis" in entry.attributes:
            attributes["axis"] = self._choose([-1, 0])
        operands = [source]
        if len(entry.inputs) == 2:
            shape = tuple(source.tensor.shape)
            operands.append(self._other(shape, source.scale, self._types(entry)))
        elif len(entry.inputs) != 1:
            raise _Unfit
        reals = [Tensor(self._real(operand), {}) for operand in operands]
        call = self.model.normalize(entry.name, reals, attributes)
        if tuple(map(int, call.ty.shape)) != tuple(source.tensor.shape):
            raise _Unfit

        def function(numbers: list[Array]) -> Array:
            return compute(entry.name, call, numbers, attributes, 1)[0]

        value = function([operand.real for operand in operands])
        dtype = self._choose(self._types(entry))
        # A large int16 leaves a float32 fewer bits, so it may round differently further from a tie.
        wide = dtype == "int16" and self._choose([False, True])
        count, tie = (128, _WIDE_TIE) if wide else (1, _TIE)
        step = self._scale(float(np.abs(value).max()) / count / self._choose([100, 200]))
        steps = value / step
        near = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < tie
        if not np.isfinite(steps).all() or near.any():
            raise _Unfit
        if call.op.name in ("relax.nn.relu", "relax.clip"):
            # The quantize may impose the limits, which leaves a rescaling by the chip's rule.
            rescaled = numpy_reference.requantize(source.steps, source.scale, step, CHIP)
            if (np.rint(steps) != rescaled)[value == source.real].any():
                raise _Unfit
        drift = of_function(function, operands, step).rounded(steps_inside(CHIP.requantize))
        expr, zero = self.model.bind(call), self._zero(dtype)
        return self._result(expr, np.rint(steps), step, zero, dtype, drift)

    def _result(
        self, expr: relax.Expr, steps: Array, scale: float, zero: int, dtype: str, drift: Drift
    ) -> Integers:
        limits_of = np.iinfo(dtype)
        value = np.clip(steps + zero, limits_of.min, limits_of.max).astype(dtype)
        if len(np.unique(value)) < min(value.size, 4):
            raise _Unfit  # It would hide what comes before it.
        tensor = Tensor(self._quantize(expr, scale, zero, dtype), {1: value})
        return Integers(tensor, scale, zero, drift)

    # ---- Parts ----------------------------------------------------------------------------------

    def _types(self, entry: Op) -> list[str]:
        assert entry.quantized is not None
        return [dtype for dtype in ("int8", "uint8", "int16") if dtype in entry.quantized.dtypes]

    def _zero(self, dtype: str) -> int:
        middle, ends = (128 if dtype == "uint8" else 0), np.iinfo(dtype)
        return int(self._choose([middle, middle + 7, int(ends.min), int(ends.max)]))

    def _scale(self, about: float) -> float:
        if not about > 0:
            raise _Unfit
        return float(np.float32(2.0 ** round(math.log2(about)) if self._exact else about))

    def _argument(
        self, shape: tuple[int, ...], types: Sequence[str], scale: float = 0.05
    ) -> Integers:
        dtype = self._choose(types)
        ends = np.iinfo(dtype)
        low, high = (int(ends.max) - 2, int(ends.max)) if self._long else (None, None)
        spec = Spec(shape, dtype, low, high)
        tensor = self.model.argument(spec, f"{self._seed} {len(self.model.arguments)}")
        zero = int(ends.min) if self._long else self._zero(dtype)
        return Integers(tensor, self._scale(scale), zero)

    def _other(self, shape: tuple[int, ...], scale: float, types: Sequence[str]) -> Integers:
        """Return another tensor of a shape: one of the graph, or an argument."""
        alike = [integers for integers in self._computed if tuple(integers.tensor.shape) == shape]
        alike = [integers for integers in alike if integers.tensor.dtype in types]
        if alike and self._choose([True, False]):
            chosen: Integers = self._choose(alike)
            return chosen
        return self._argument(shape, types, scale * self._choose([0.7, 1.9]))

    def _first_shape(self, entry: Op) -> tuple[int, ...]:
        if entry.name == "matmul":
            return tuple(self._choose([(2, 700)] if self._long else [(2, 16), (3, 33), (2, 3, 16)]))
        return tuple(self._choose([(1, 4, 6, 6), (2, 3, 7, 5), (1, 16, 4, 4)]))

    def _numbers(self, shape: tuple[int, ...], channel: int, dtype: str) -> Array:
        """Return a weight; those of long sums have the same sign in each channel."""
        ends = np.iinfo(dtype)
        if not self._long:
            return self._random.integers(ends.min, ends.max + 1, shape).astype(dtype)
        along = [-1 if index == channel else 1 for index in range(len(shape))]
        middle = self._random.integers(ends.min + 8, ends.max - 7, shape[channel]).reshape(along)
        return (middle + self._random.integers(-8, 8, shape)).astype(dtype)

    def _weight(
        self, entry: Op, shape: tuple[int, ...]
    ) -> tuple[tuple[int, ...], int, Mapping[str, object]]:
        """Return the shape of a weight, its axis of channels, and attributes of the op."""
        if entry.name == "matmul":
            if len(shape) < 2:
                raise _Unfit
            return (shape[-1], self._choose([8, 5, 17])), 1, {}
        if len(shape) != 4:
            raise _Unfit
        kernel = self._choose([3, 1, 2])
        attributes = {"padding": self._choose([1, 0, [0, 1, 2, 1]])}
        if min(shape[2:]) < kernel:
            raise _Unfit
        if entry.name == "conv2d":
            return (self._choose([4, 8, 5]), shape[1], kernel, kernel), 0, attributes
        if shape[1] < 2:
            raise _Unfit
        return (shape[1], 1, kernel, kernel), 0, {**attributes, "groups": shape[1]}

    def _real(self, integers: Integers) -> relax.Expr:
        zero = relax.const(np.asarray(integers.zero, integers.tensor.dtype))
        scale = relax.const(np.float32(integers.scale))
        return self.model.bind(relax.op.dequantize(integers.tensor.expr, scale, zero, -1))

    def _quantize(self, expr: relax.Expr, scale: float, zero: int, dtype: str) -> relax.Expr:
        zeros = relax.const(np.asarray(zero, dtype))
        return self.model.bind(
            relax.op.quantize(expr, relax.const(np.float32(scale)), zeros, -1, dtype)
        )


def _rescaled(integers: Integers, step: float) -> Drift:
    """Return the drift of a tensor in steps of another scale."""
    off = CHIP.requantize.steps if integers.scale != step else 0
    return integers.drift.times(integers.scale / step).rounded(off)


class _Unfit(Exception):
    """An op does not fit a tensor."""
