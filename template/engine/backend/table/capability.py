# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of the op table: what the engine can compile.

`patterns.py` of the backend has an `Op` for each offloaded op; `chip.py` has the vocabulary with
which `vendor/capabilities.py` narrows them. The generator judges the catalogue with this module, so
neither it nor what it uses imports TVM.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..shared.constraints import Anything as Anything
from ..shared.constraints import Constraint
from ..shared.constraints import OneOf as OneOf
from ..shared.constraints import Range as Range
from ..shared.constraints import anything as anything
from ..shared.constraints import only as only
from ..shared.messages import did_you_mean
from .formulas import names_in
from .tolerances import EXACT
from .tolerances import Accumulated as Accumulated
from .tolerances import Buckets as Buckets
from .tolerances import Elementwise as Elementwise
from .tolerances import Exact as Exact
from .tolerances import Tolerance as Tolerance

# ---- Rules: how attributes, shapes and dtypes relate --------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A relation between two operands.

    An operand is `attr.<name>`, `attr.<name>[i]`, `<input>.shape[i]`, `<input>.rank` or
    `<input>.dtype`; anything else is a literal.

    Parameters
    ----------
    left, right
        The operands.
    dtypes
        The element types of the first input for which the relation must hold; none: all.
    """

    left: Any
    right: Any
    dtypes: tuple[str, ...] = ()

    relation = ""

    def holds(self, left: object, right: object) -> bool:
        """Whether the values of the two operands are as they must be."""
        raise NotImplementedError


class Equal(Rule):
    """Both operands are the same."""

    relation = "equal"

    def holds(self, left: object, right: object) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left == right)


class NotEqual(Rule):
    """The operands differ."""

    relation = "differ from"

    def holds(self, left: object, right: object) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left != right)


class AtLeast(Rule):
    """The first operand is not smaller than the second."""

    relation = "be at least"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left >= right)


class AtMost(Rule):
    """The first operand is not larger than the second."""

    relation = "be at most"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left <= right)


class Among(Rule):
    """The first operand is one of the values in the second."""

    relation = "be one of"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return left in right


# ---- A table entry ------------------------------------------------------------------------------

ENGINES = ("matrix", "vector", "pool", "memory")
"""What runs an op."""

INSIDE = ("integers", "elements", "reals")
"""What an op computes with between dequantize and quantize."""

EMITTERS = ("update",)
"""What emits and finds an op that is neither one of Relax nor a chain of them."""


@dataclass(frozen=True)
class Input:
    """A tensor argument.

    Parameters
    ----------
    name
        Its name in rules and reasons.
    dtypes
        The supported element types; none: any.
    ranks
        The supported numbers of dimensions; none: any.
    like
        The input whose element type this one must have.
    constant
        Whether it must be a constant inside of the program.
    is_tuple
        Whether the argument is a tuple of such tensors.
    weight
        Whether it is a weight, which must be a constant on chips with `constant_weights`.
    """

    name: str
    dtypes: tuple[str, ...] = ()
    ranks: Collection[int] = ()
    like: str | None = None
    constant: bool = False
    is_tuple: bool = False
    weight: bool = False


@dataclass(frozen=True)
class Fuses:
    """What may be fused after an op, in this order.

    Parameters
    ----------
    scale
        Whether the output may be multiplied or divided by a constant number.
    bias
        The axis of the output along which a per-channel constant may be added.
    residual
        Whether another tensor of the output's shape may be added.
    activations
        Names of the entries that may come last; none: all activations.
    """

    scale: bool = False
    bias: int | None = None
    residual: bool = False
    activations: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Quantized:
    """How an op computes with quantized tensors: between dequantize and quantize.

    Parameters
    ----------
    channel
        The axis of the second input along which its scales may differ; none: it has one scale.
    inside
        What it computes with: "integers", so that results are exact; "elements", one real number
        for each, or a table; "reals", in several steps. None: elements on the vector engine, and
        integers on others.
    dtypes
        The element types of the inputs and of the result. The second input of a product is int16
        only in a matmul of two int16 tensors.
    fuses
        What may be fused between the op and the quantize; none: as with real numbers.
    to_real
        Whether the result of a product may be real: without a quantize.
    reals
        Whether the chip has real numbers, with which elements may be computed.
    """

    channel: int | None = None
    inside: str = ""
    dtypes: tuple[str, ...] = ("int8", "uint8", "int16")
    fuses: Fuses | None = None
    to_real: bool = True
    reals: bool = True

    @property
    def bytes(self) -> tuple[str, ...]:
        """The element types of 8 bits."""
        return tuple(dtype for dtype in self.dtypes if dtype.endswith("int8"))


@dataclass(frozen=True)
class Op:
    """An op that the hardware can run, and when.

    Parameters
    ----------
    name
        The name of the entry; composites are called after it.
    relax
        The Relax op. Several entries may share one; a call must match one of them. None: it has
        only `chains`, or `emitted_by`.
    engine
        What runs it: matrix, vector, pool or memory.
    inputs
        The tensor arguments, in order.
    attributes
        The constraint of each attribute and non-tensor argument. Unlisted ones are refused.
    rules
        Relations that must hold.
    operations
        The arithmetic of a call: an expression over the shapes of the inputs, by name, of
        the result, `out`, and the attributes, with `size` for the number of elements. It decides
        which regions are the largest.
    output_dtypes
        The supported element types of the result; none: that of the first input.
    chains
        The forms in which front ends emit it as several ops; see `chains.py`.
    emitted_by
        What emits it as several ops and finds these, where no chain can tell them: "update".
    activation
        Whether it may be fused after ops that have `fuses`; it must be element-wise.
    fuses
        What may be fused after it.
    quantized
        How it computes with quantized tensors; none: not as one composite.
    absorbs_transpose
        Inputs that may come from a swap of the last two dimensions, at no cost.
    tolerance
        The error bound of the results, which the conformance kit checks.
    """

    name: str
    relax: str = ""
    engine: str = "vector"
    inputs: tuple[Input, ...] = ()
    attributes: Mapping[str, Constraint] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    operations: str = "size(out)"
    output_dtypes: tuple[str, ...] = ()
    chains: tuple[str | tuple[str, ...], ...] = ()
    emitted_by: str = ""
    activation: bool = False
    fuses: Fuses | None = None
    quantized: Quantized | None = None
    absorbs_transpose: tuple[int, ...] = ()
    tolerance: Tolerance = EXACT

    @property
    def wants_constants(self) -> bool:
        """Whether some of its inputs must be constants."""
        return any(item.constant for item in self.inputs)

    @property
    def is_product(self) -> bool:
        """Whether it multiplies two tensors on the matrix engine, as a vendor's ops also may."""
        return self.engine == "matrix" and len(self.inputs) > 1

    @property
    def inside(self) -> str:
        """What it computes with between dequantize and quantize; "" if it does not."""
        if self.quantized is None:
            return ""
        return self.quantized.inside or ("elements" if self.engine == "vector" else "integers")

    @property
    def with_integers(self) -> Op:
        """The entry with what it fuses where it computes with quantized tensors."""
        fuses = self.quantized.fuses if self.quantized is not None else None
        return self if fuses is None else replace(self, fuses=fuses)

    @property
    def takes_integer_weights(self) -> bool:
        """Whether it may multiply real numbers by its second input as constant integers."""
        known = self.quantized is not None and bool(self.quantized.bytes)
        return self.relax == "relax.matmul" and known

    def __post_init__(self) -> None:
        """Refuse an invalid entry."""
        if problems := "; ".join(self._problems()):
            raise ValueError(f"{self.name}: {problems}")

    def _problems(self) -> Iterator[str]:
        inputs = [item.name for item in self.inputs]
        for item in self.inputs:
            if item.like is not None and item.like not in inputs:
                yield f"'{item.name}' is like '{item.like}', no input"
        for rule in self.rules:
            for operand in (rule.left, rule.right):
                if isinstance(operand, str) and (match := _REFERENCE.match(operand)):
                    yield from self._operand_problems(operand, *match.groups())
        if self.emitted_by not in ("", *EMITTERS):
            yield f"emitted_by: {self.emitted_by!r} is not one of {', '.join(EMITTERS)}"
        if self.emitted_by and (self.relax or self.chains):
            yield "emitted_by: the op has a Relax op or chains, too"
        for index in self.absorbs_transpose:
            if index not in range(len(inputs)):
                known = f"the indices of inputs, which are 0 to {len(inputs) - 1}"
                yield f"absorbs_transpose: {index!r} is none of {known}"
        formulas = {"operations": self.operations}
        if isinstance(self.tolerance, Accumulated):
            formulas["tolerance"] = self.tolerance.count
        for what, formula in formulas.items():
            try:
                unknown = names_in(formula) - {*inputs, *self.attributes, "out"}
            except ValueError as error:
                yield f"{what}: {error}"
                continue
            for name in sorted(unknown):
                yield f"{what}: '{name}' is neither an input nor an attribute, nor out"

    def _operand_problems(self, operand: str, owner: str, what: str) -> Iterator[str]:
        inputs = [item.name for item in self.inputs]
        if owner == "attr":
            if what not in self.attributes:
                hint = did_you_mean(what, self.attributes)
                yield f"rules: '{operand}' names no attribute{hint}"
        elif owner not in inputs:
            yield f"rules: '{operand}' names no input{did_you_mean(owner, inputs)}"
        elif reference(operand) is None:
            yield f"rules: '{operand}': an input has only shape[i], rank and dtype"


# ---- Operands of rules --------------------------------------------------------------------------

_REFERENCE = re.compile(r"([A-Za-z_]\w*)\.(\w+)(?:\[-?\d+\])?\Z")
_ATTRIBUTE = re.compile(r"(attr)\.(\w+)(?:\[(-?\d+)\])?\Z")
_PROPERTY = re.compile(r"(\w+)\.(?:(shape)\[(-?\d+)\]|(rank|dtype))\Z")


def reference(operand: object) -> tuple[str, str, int | None] | None:
    """Split an operand that is a reference into owner, property and index."""
    if not isinstance(operand, str):
        return None
    if match := _ATTRIBUTE.match(operand):
        owner, what, index = match.groups()
        return owner, what, None if index is None else int(index)
    if match := _PROPERTY.match(operand):
        owner, shape, index, other = match.groups()
        return owner, shape or other, None if index is None else int(index)
    return None
