# SPDX-License-Identifier: Apache-2.0
"""A decoder that takes one token, with random weights, as exporters write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tvm import relax

op, const = relax.op, relax.const
Emit = Callable[[relax.Expr], relax.Expr]


@dataclass
class Decoder:
    """One step of it; queries share heads of keys and values in groups.

    `bits`: of each weight: 32, 8 with a scale for each column, or 4 with one for each 32.
    """

    width: int
    layers: int
    inner: int
    heads: int
    shared: int
    size: int
    vocabulary: int
    capacity: int
    bits: int
    weight_bytes: int = 0
    """Of what the products read, with their scales; known when it is built."""
    inputs: list[NDArray[np.generic]] = field(default_factory=list)
    """A token, its place, and caches without anything; known when it is built."""

    @property
    def cache_bytes(self) -> int:
        """Of all keys and values."""
        return 2 * self.layers * self.shared * self.capacity * self.size * 4

    def build(self) -> relax.Function:
        """Build the function, which returns logits and the caches with one more row."""
        self.random = np.random.default_rng(0)
        self.weight_bytes = 0
        cache = np.zeros((1, self.shared, self.capacity, self.size), "float32")
        places = np.array([self.capacity - 1])
        self.inputs = [np.array([[1]]), places, *[cache] * (2 * self.layers)]
        params = [
            relax.Var(f"input_{index}", relax.TensorType(array.shape, str(array.dtype)))
            for index, array in enumerate(self.inputs)
        ]
        builder = relax.BlockBuilder()
        self.emit: Emit = builder.emit
        with builder.function("main", params):
            with builder.dataflow():
                result = builder.emit_output(self._step(*params))
            builder.emit_func_output(result)
        return builder.get()

    def _step(self, token: relax.Expr, place: relax.Expr, *caches: relax.Expr) -> relax.Expr:
        emit = self.emit
        table = self.random.normal(size=(self.vocabulary, self.width)).astype("float32")
        x = emit(op.take(const(table), token, 0))
        rates = (1e-4 ** (np.arange(self.size // 2) / (self.size // 2))).astype("float32")
        angle = emit(op.multiply(emit(op.astype(place, "float32")), const(rates)))
        angle = emit(op.concat([angle, angle], 0))
        self.turns = emit(op.cos(angle)), emit(op.sin(angle))
        seen = emit(op.less_equal(const(np.arange(self.capacity), "int64"), place))
        self.mask = emit(op.where(seen, const(np.float32(0)), const(np.float32(-1e30))))
        row = emit(op.reshape(place, (1, 1, 1, 1)))
        self.rows = emit(op.broadcast_to(row, (1, self.shared, 1, self.size)))
        kept = []
        for layer in range(self.layers):
            found, *written = self._attention(self._norm(x), *caches[2 * layer : 2 * layer + 2])
            kept += written
            x = emit(op.add(x, found))
            h = self._norm(x)
            gate = emit(op.nn.silu(self._product(h, self.inner)))
            gated = emit(op.multiply(gate, self._product(h, self.inner)))
            x = emit(op.add(x, self._product(gated, self.width)))
        return relax.Tuple([self._product(self._norm(x), self.vocabulary), *kept])

    def _attention(self, x: relax.Expr, *caches: relax.Expr) -> tuple[relax.Expr, ...]:
        emit = self.emit
        query, key, value = (self._by_head(x, n) for n in (self.heads, self.shared, self.shared))
        rows = (self._turned(key), value)
        keys, values = (
            emit(op.scatter_elements(cache, self.rows, row, 2))
            for cache, row in zip(caches, rows, strict=True)
        )
        turned = emit(op.permute_dims(self._repeated(keys), [0, 1, 3, 2]))
        scores = emit(op.matmul(self._turned(query), turned))
        scores = emit(op.multiply(scores, const(np.float32(self.size**-0.5))))
        weights = emit(op.nn.softmax(emit(op.add(scores, self.mask)), -1))
        found = emit(op.matmul(weights, self._repeated(values)))
        found = emit(op.permute_dims(found, [0, 2, 1, 3]))
        found = emit(op.reshape(found, (1, 1, self.heads * self.size)))
        return self._product(found, self.width), keys, values

    def _by_head(self, x: relax.Expr, heads: int) -> relax.Expr:
        flat = self._product(x, heads * self.size)
        return self.emit(
            op.permute_dims(self.emit(op.reshape(flat, (1, 1, heads, self.size))), [0, 2, 1, 3])
        )

    def _turned(self, x: relax.Expr) -> relax.Expr:
        emit = self.emit
        cos, sin = self.turns
        halves = emit(op.split(x, 2, -1))
        first, second = (emit(relax.TupleGetItem(halves, index)) for index in (0, 1))
        swapped = emit(op.concat([emit(op.negative(second)), first], -1))
        return emit(op.add(emit(op.multiply(x, cos)), emit(op.multiply(swapped, sin))))

    def _repeated(self, x: relax.Expr) -> relax.Expr:
        emit = self.emit
        times = self.heads // self.shared
        wide = (1, self.shared, times, self.capacity, self.size)
        wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), wide))
        return emit(op.reshape(wide, (1, self.heads, self.capacity, self.size)))

    def _norm(self, x: relax.Expr) -> relax.Expr:
        return self.emit(op.nn.rms_norm(x, const(np.ones(self.width, "float32")), [-1], 1e-5))

    def _product(self, x: relax.Expr, columns: int) -> relax.Expr:
        depth = int(x.ty.shape[-1])
        return self.emit(op.matmul(x, self._weight(depth, columns)))

    def _weight(self, depth: int, columns: int) -> relax.Expr:
        emit = self.emit
        if self.bits == 32:
            self.weight_bytes += 4 * depth * columns
            numbers = self.random.random((depth, columns), "float32") - np.float32(0.5)
            return const(numbers / np.float32(depth**0.5))
        group = 32 if self.bits == 4 else depth
        shape = (columns * depth // group, group)
        limit = 2 ** (self.bits - 1)
        numbers = self.random.integers(-limit, limit, shape, "int8")
        scales = (self.random.random(shape[0], "float32") + 1) / np.float32(limit * depth**0.5)
        self.weight_bytes += columns * depth * self.bits // 8 + scales.nbytes
        zeros = np.zeros(shape[0], "int8")
        weight = emit(op.dequantize(const(numbers), const(scales), const(zeros), 0))
        return emit(op.permute_dims(emit(op.reshape(weight, (columns, depth)))))
