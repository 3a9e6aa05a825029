# SPDX-License-Identifier: Apache-2.0
"""Matmuls of real numbers and weights of integers, for the suite of quantized tensors."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...backend.api import TABLE, Array, Kind
from .allowances import Step
from .cases import symbol_of
from .model import Model, Spec, Tensor, entry_of


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
    composites: int = 1

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
        return TABLE.compositions[label].kind is not Kind.WEIGHT_ONLY

    @property
    def depth(self) -> int:
        """The size of the summed dimension."""
        return int(self.data[-1])

    def _weight(self, model: Model) -> tuple[relax.Expr, Array]:
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
        model = Model(symbol_of(str(self)))
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
