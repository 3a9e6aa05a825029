# SPDX-License-Identifier: Apache-2.0
"""What composites consist of. Their labels are made from this, and never read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .capability import Op
from .reasons import Code, Reason

ROLES = ("scale", "bias", "residual", "activation")
"""What may follow an op in a composite, in this order."""

_INSIDE = {
    "elements": "computes with one real number for each element between dequantize and quantize",
    "reals": "computes with real numbers, in several steps, between dequantize and quantize",
}


class Kind(Enum):
    """What a composite computes with, as the form of its label."""

    REALS = "{}"
    """The tensors as they are."""
    WEIGHT_ONLY = "weight_only_{}"
    """Real numbers, and weights that stay integers."""
    INTEGERS = "quantized_{}"
    """Quantized tensors, also for its result."""
    TO_REAL = "quantized_{}_to_real"
    """Quantized tensors, whose result is real numbers."""
    RESCALES = "requantize"
    """Integers, which it rescales to another scale."""

    @property
    def is_quantized(self) -> bool:
        """Whether the composite begins with quantized tensors."""
        return self not in (Kind.REALS, Kind.WEIGHT_ONLY)

    @property
    def has_other_form(self) -> bool:
        """Whether its ops have another form, which computes with real numbers."""
        return self is not Kind.REALS


@dataclass(frozen=True)
class Composition:
    """What a composite consists of.

    `op`: the entry of its main op.
    `absorbed`: the inputs of the op that are transposed inside of the composite.
    `roles`: what follows the op, of `ROLES`.
    `last`: the entry of the activation at the end, where it is known which.
    """

    op: Op
    kind: Kind = Kind.REALS
    absorbed: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    last: Op | None = None

    @property
    def label(self) -> str:
        """The name of the composite, for people."""
        begin = self.op.name
        if self.absorbed:
            begin += "_transposed" + "".join(f"_{index}" for index in self.absorbed)
        if self.op.relax == "relax.matmul" and self.absorbed == (1,):
            begin = "linear"
        end = [self.last.name] if self.last is not None else []
        return self.kind.value.format("_".join([begin, *self.roles, *end]))

    @property
    def wider_inside(self) -> Reason | None:
        """Why a composite of quantized tensors computes with real numbers, or none."""
        computes = self.kind in (Kind.INTEGERS, Kind.TO_REAL)
        if not computes or self.op.inside not in _INSIDE:
            return None
        if self.op.inside == "elements" and self.op.quantized and not self.op.quantized.reals:
            return None  # They are rescaled, or read from a table.
        return Reason(Code.REAL_INSIDE, f"{self.op.name} {_INSIDE[self.op.inside]}")

    @property
    def refusal(self) -> Reason | None:
        """Why the chip has no such composite, whatever it reads; none if it may have it."""
        if self.kind is not Kind.TO_REAL or self.op.quantized is None or self.op.quantized.to_real:
            return None
        why = f"{self.op.name}: a product of integers has no real result"
        return Reason(Code.QUANTIZATION, why).limited()

    def runs_in(self, integers: Sequence[str], dtype: str) -> str:
        """Return the type that it computes in, from those that it reads and returns.

        Such as "float32", "int8", "uint8 x int8 to float32" or "int8, inside float32".
        """
        if self.kind is Kind.WEIGHT_ONLY and integers:
            return f"{dtype} x {integers[-1]}"
        if not self.kind.is_quantized:
            return dtype
        joined = " x ".join(integers) or "integers"
        if self.wider_inside is not None:
            return f"{joined}, inside float32"
        return f"{joined} to {dtype}" if self.kind is Kind.TO_REAL else joined
