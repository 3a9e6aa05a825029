# SPDX-License-Identifier: Apache-2.0
"""How much an op computes, reads and writes, by the types of its arguments and its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import tvm
from tvm import relax

from .calls import Analyzer, Constant, Size, Unknown, tensor_type

_CONVOLUTION = "relax.nn.conv"
_ATTENTION = ("relax.nn.attention", "relax.nn.attention_bias")


def is_product(op: str) -> bool:
    """Whether an op is a matmul or a convolution."""
    return op == "relax.matmul" or op.startswith(_CONVOLUTION)


@cache
def _bytes_of_element(dtype: str) -> int:
    return max(1, int(tvm.DataType(dtype).bits) // 8)


class Amounts:
    """The amounts of the ops of one function.

    `bounds`: the largest value of each symbol, which counts for its size.
    """

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = bounds
        self._known: dict[relax.Expr, int | None] = {}

    def shape(self, ty: tvm.ir.Type) -> tuple[int, ...]:
        """Return the sizes of a tensor; raise `Unknown` if they cannot be told."""
        try:
            sizes = tensor_type(ty)[1]
        except Unknown:
            sizes = tensor_type(self._at_bounds(ty))[1]
        if any(isinstance(size, Size) and size.name not in self._bounds for size in sizes):
            raise Unknown("unknown bound of")
        return tuple(
            size.factor * self._bounds[size.name] if isinstance(size, Size) else size
            for size in sizes
        )

    def _at_bounds(self, ty: tvm.ir.Type) -> tvm.ir.Type:
        """Return a type whose sizes are those for the largest values of their symbols."""
        if not isinstance(getattr(ty, "shape", None), relax.ShapeExpr):
            return ty
        analyzer = Analyzer()
        for var in relax.analysis.tir_vars_in_type(ty):
            if str(var.name) in self._bounds:
                analyzer.bind(var, tvm.tirx.const(self._bounds[str(var.name)], var.ty.dtype))
        sizes = [analyzer.simplify(size) for size in ty.shape.values]
        return relax.TensorType(relax.ShapeExpr(sizes), ty.dtype, ty.vdevice)

    def bytes_of(self, expr: relax.Expr) -> int | None:
        """Return the bytes of a value, 0 if it is not a tensor; None if its size is not known."""
        if isinstance(expr, relax.Tuple):
            return total([self.bytes_of(item) for item in expr.fields])
        if not isinstance(expr, (relax.Var, Constant)):
            return 0
        if expr not in self._known:
            self._known[expr] = self._bytes_of_type(expr.ty)
        return self._known[expr]

    def _bytes_of_type(self, ty: tvm.ir.Type) -> int | None:
        if isinstance(ty, relax.TupleType):
            return total([self._bytes_of_type(item) for item in ty.fields])
        if not isinstance(ty, relax.TensorType):
            return 0
        try:
            return math.prod(self.shape(ty)) * _bytes_of_element(str(ty.dtype))
        except Unknown as unknown:
            return 0 if str(unknown).startswith("no elements") else None

    def read_by(self, call: relax.Call) -> int | None:
        """Return the bytes that a call reads, each tensor once."""
        # By identity: `==` on numbers would build a comparison.
        arguments = {hash(item): item for item in call.args}
        return total([self.bytes_of(item) for item in arguments.values()])

    def macs(self, call: relax.Call) -> int | None:
        """Return the multiplications with addition of a call; None if they are not known.

        `call`: the call. Ops other than products have none.
        """
        name = str(getattr(call.op, "name", ""))
        if not name or name.startswith("relax.call_"):
            return None if not isinstance(call.op, tvm.ir.GlobalVar) else 0
        try:
            if name.startswith(_CONVOLUTION):
                return self._of_convolution(name, call)
            if name == "relax.matmul":
                return math.prod(self.shape(call.ty)) * self.shape(call.args[0].ty)[-1]
            if name in _ATTENTION:
                # Scores, and their product with the values: batch, position, head, size of a head.
                query, key = (self.shape(item.ty) for item in call.args[:2])
                return key[1] * (math.prod(query) + math.prod(self.shape(call.ty)))
        except Unknown:
            return None
        return 0

    def _of_convolution(self, name: str, call: relax.Call) -> int:
        data, weight = (self.shape(item.ty) for item in call.args[:2])
        layout = str(call.attrs.kernel_layout)
        # In a transposed convolution, each input element contributes to all outputs of its group.
        kept = "I" if name.endswith("_transpose") else "O"
        window = math.prod(weight) // weight[layout.index(kept)]
        return (math.prod(data) if kept == "I" else math.prod(self.shape(call.ty))) * window


def total(amounts: Sequence[int | None]) -> int | None:
    """Return a sum; None if a part is not known."""
    known = [item for item in amounts if item is not None]
    return sum(known) if len(known) == len(amounts) else None
