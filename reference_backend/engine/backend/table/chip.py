# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of `vendor/capabilities.py`: a chip's limits within those of the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..shared.constraints import Anything, Constraint, OneOf, Range
from .capability import Fuses, Rule
from .tolerances import Buckets, Exact, Tolerance

DTYPES = ("float32", "float16", "float64", "bool", "int8", "uint8", "int16", "int32", "int64")
"""The element types that a table may name."""
REALS = tuple(name for name in DTYPES if name.startswith("float"))
"""Those of real numbers."""


ROUNDINGS = ("half_up", "double", "half_even", "half_away", "down", "to_zero")
"""The roundings of a rescaling, in the order of `npu_rounding`, which defines them."""
FLOAT32 = "float32"
"""The rescaling of drivers with scales at tensors: the exact sum as a float32, times a factor of
float32, rounded as the chip's `quantize` does."""
HALVES = ("half_even", "half_away")
"""The roundings of a `quantize`: ONNX's and PyTorch's, and that of TFLite."""


@dataclass(frozen=True)
class Requantize:
    """How the chip rescales integers: by an integer multiplier and a shift to the right.

    The default is TOSA's RESCALE. A driver that has scales at tensors may also rescale in float32,
    as XNNPACK and ONNX Runtime do, or by no exact rule at all.

    Parameters
    ----------
    multiplier_bits
        How many bits a multiplier has, not counting its sign.
    wide_multiplier_bits
        The same for the 48 bits of accumulators of int16 tensors.
    shifts
        The smallest and the largest shift.
    rounding
        One of `ROUNDINGS`; for accumulators of int16, "double" is "half_up", as in TOSA. Or
        "float32", for which multipliers and shifts do not matter, and halves go where `Chip.rounds`
        says.
    steps, share
        How far results may be from this rule, and in which share of the elements: for a chip that
        has no exact one. The conformance kit judges by it.
    """

    multiplier_bits: int = 31
    wide_multiplier_bits: int = 15
    shifts: tuple[int, int] = (2, 62)
    rounding: str = "half_up"
    steps: int = 0
    share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name in ("multiplier_bits", "wide_multiplier_bits"):
            bits = getattr(self, name)
            if not 1 <= bits <= 31:
                raise ValueError(f"Requantize: {name} is {bits}; supported: 1 to 31.")
        least, most = self.shifts
        if not 0 <= least <= most <= 62:
            raise ValueError(f"Requantize: shifts are {least} to {most}; supported: 0 to 62.")
        if self.rounding not in (*ROUNDINGS, FLOAT32):
            raise ValueError(
                f"Requantize: rounding is '{self.rounding}'; supported: {', '.join(ROUNDINGS)} "
                f"and {FLOAT32}."
            )
        if self.steps < 0 or not 0 <= self.share <= 1:
            raise ValueError(
                f"Requantize: results are {self.steps} steps off in a share of {self.share}; "
                "supported: 0 steps or more, in a share of 0 to 1."
            )

    @property
    def is_float32(self) -> bool:
        """Whether it rescales in float32."""
        return self.rounding == FLOAT32

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rule for codegen: the fields of its struct `Requantization`."""
        bits = self.multiplier_bits, self.wide_multiplier_bits
        # With scales at tensors, codegen rescales nothing.
        rounding = "half_even" if self.is_float32 else self.rounding
        return *bits, *self.shifts, ROUNDINGS.index(rounding)

    def recorded(self) -> dict[str, object]:
        """Return the rule as manifests have it; how far results may be from it changes no program.

        Returns
        -------
        Fields by name, as JSON reads them: a cached artifact must have the same manifest.
        """
        return {
            "multiplier_bits": self.multiplier_bits,
            "wide_multiplier_bits": self.wide_multiplier_bits,
            "shifts": list(self.shifts),
            "rounding": self.rounding,
        }

    @property
    def tolerance(self) -> Tolerance:
        """How exact results must be."""
        return Buckets(self.steps, self.share) if self.steps else Exact()


@dataclass(frozen=True)
class Chip:
    """The limits of all ops of a chip.

    Parameters
    ----------
    dtypes
        Its element types; none: whatever an op allows. Without types of real numbers, the chip has
        integers only: it takes what reads and returns integers, also between `dequantize` and
        `quantize`.
    ranks
        Its numbers of dimensions, such as `range(0, 5)`; none: whatever an op allows.
    constant_weights
        Whether the inputs that the table calls weights must be constants.
    symbols
        Whether sizes may be symbolic.
    nan
        The treatment of NaN: "kept", or "undefined" if results may be anything.
    devices
        How many devices there are at most; none: as many as the driver counts.
    requantize
        How it rescales the results of integer arithmetic.
    rounds
        Where its `quantize` puts a number halfway between two integers: to the even one
        ("half_even", as ONNX says) or away from zero ("half_away").
    cancellation
        Whether a call can be cancelled while it runs.
    """

    dtypes: tuple[str, ...] = ()
    ranks: Collection[int] = ()
    constant_weights: bool = False
    symbols: bool = True
    nan: str = "kept"
    devices: int | None = None
    cancellation: bool = True
    requantize: Requantize = Requantize()
    rounds: str = "half_even"

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if isinstance(self.dtypes, str):
            raise ValueError(
                f'Chip: dtypes is a string; write a tuple of one as ("{self.dtypes}",).'
            )
        if isinstance(self.ranks, int):
            raise ValueError(
                f"Chip: ranks is {self.ranks}; at most {self.ranks} dimensions are "
                f"range(0, {self.ranks + 1})."
            )
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                known = ", ".join(DTYPES)
                raise ValueError(f"Chip: '{dtype}' is not an element type; known: {known}.")
        if self.nan not in ("kept", "undefined"):
            raise ValueError(f"Chip: nan is '{self.nan}'; it is either 'kept' or 'undefined'.")
        if self.rounds not in HALVES:
            raise ValueError(
                f"Chip: rounds is '{self.rounds}'; it is either {' or '.join(map(repr, HALVES))}."
            )
        if self.devices is not None and self.devices < 1:
            raise ValueError(f"Chip: devices is {self.devices}; it must be at least 1.")

    @property
    def has_reals(self) -> bool:
        """Whether it has real numbers outside of what computes with quantized tensors."""
        return not self.dtypes or not set(REALS).isdisjoint(self.dtypes)

    @property
    def rule(self) -> tuple[int, ...]:
        """How it rescales, for codegen, with a 0 at the end if it has no real numbers."""
        return self.requantize.numbers if self.has_reals else (*self.requantize.numbers, 0)

    def recorded(self) -> dict[str, object]:
        """Return the rule as manifests have it, as `Requantize.recorded`."""
        known = self.requantize.recorded()
        return known if self.has_reals else {**known, "has_reals": False}

    @property
    def dtypes_inside(self) -> tuple[str, ...]:
        """The element types between `dequantize` and `quantize`, where the chip has integers."""
        return self.dtypes if self.has_reals else (*self.dtypes, *REALS)


@dataclass(frozen=True)
class Takes:
    """The limits of a tensor argument on a chip.

    Parameters
    ----------
    dtypes
        The element types; none: those of the engine.
    ranks
        The numbers of dimensions; none: those of the engine.
    constant
        Whether it must be a constant.
    """

    dtypes: tuple[str, ...] = ()
    ranks: Collection[int] = ()
    constant: bool = False

    def __post_init__(self) -> None:
        """Normalize ranks, so that they compare equal."""
        object.__setattr__(self, "ranks", tuple(self.ranks))


@dataclass(frozen=True, init=False)
class Limits:
    """The limits of one op on a chip, within those of the engine.

    Parameters
    ----------
    rules
        Relations that must hold in addition to those of the engine.
    output_dtypes
        The element types of the result; none: those of the engine.
    fuses
        What may be fused after it; none: whatever the engine can fuse.
    activation
        Whether it may be fused after another op.
    quantized
        The element types of the quantized tensors that it computes with; none: it computes with
        real numbers. With 8 bits, a matmul also multiplies real numbers by weights of integers.
    quantized_fuses
        What may be fused after it where it computes with quantized tensors; none: as `fuses` says.
    to_real
        Whether a product of quantized tensors may have a real result.
    tolerance
        How exact its results are; none: as the engine says.
    **limits
        What a tensor argument `Takes`, and what an attribute may be, by name.
    """

    rules: tuple[Rule, ...]
    output_dtypes: tuple[str, ...]
    fuses: Fuses | None
    activation: bool
    quantized: tuple[str, ...]
    quantized_fuses: Fuses | None
    to_real: bool
    tolerance: Tolerance | None
    inputs: Mapping[str, Takes]
    attributes: Mapping[str, Constraint]

    def __init__(
        self,
        *,
        rules: tuple[Rule, ...] = (),
        output_dtypes: tuple[str, ...] = (),
        fuses: Fuses | None = None,
        activation: bool = True,
        quantized: tuple[str, ...] = (),
        quantized_fuses: Fuses | None = None,
        to_real: bool = True,
        tolerance: Tolerance | None = None,
        **limits: Takes | Constraint,
    ) -> None:
        inputs = {name: item for name, item in limits.items() if isinstance(item, Takes)}
        attributes = {name: item for name, item in limits.items() if not isinstance(item, Takes)}
        for name, item in attributes.items():
            if not isinstance(item, (OneOf, Range, Anything)):
                raise ValueError(
                    f"Limits: {name} is {item!r}; write Takes(...) for a tensor argument, and "
                    "OneOf(...), Range(...) or Anything() for an attribute."
                )
        if not isinstance(quantized, tuple):
            raise ValueError(
                f"Limits: quantized is {quantized!r}; it is a tuple of element types, such as "
                '("int8", "uint8").'
            )
        for key, value in (
            ("rules", rules),
            ("output_dtypes", output_dtypes),
            ("fuses", fuses),
            ("activation", activation),
            ("quantized", quantized),
            ("quantized_fuses", quantized_fuses),
            ("to_real", to_real),
            ("tolerance", tolerance),
            ("inputs", inputs),
            ("attributes", attributes),
        ):
            object.__setattr__(self, key, value)
