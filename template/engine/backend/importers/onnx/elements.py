# SPDX-License-Identifier: Apache-2.0
"""Elements of shape computations: whole numbers, and TVM's expressions of symbols."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import tvm
from tvm import relax

from ...ir.calls import Analyzer
from ...shared.aliases import Array, Attributes
from ...shared.messages import size_text

Element: TypeAlias = "int | relax.Expr"
"""An element of a tensor: a number, or an expression of symbols."""

_Binary: TypeAlias = Callable[[Element, Element], Element]

_LARGEST_SIZE = 2**31 - 1
"""No size is larger: exporters write it for the end of an axis."""


class Unknown(Exception):
    """An element is not a whole number, or cannot be told before the run."""


def array_of(elements: Sequence[object]) -> Array:
    """Return a vector of objects; NumPy itself would look into expressions."""
    result = np.empty(len(elements), object)
    for index, item in enumerate(elements):
        result[index] = item
    return result


def is_whole(array: Array) -> bool:
    """Whether all numbers are whole."""
    return array.dtype.kind != "f" or bool((np.isfinite(array) & (array == np.trunc(array))).all())


def is_open(element: object) -> bool:
    """Whether an element is only known when the model runs."""
    return not isinstance(getattr(element, "value", element), (int, np.integer))


def simple(element: Element) -> Element:
    """Return an element in its simplest form: a number if it is one for all sizes."""
    if is_open(element):
        element = _analyzer(element).simplify(element)
    return element if is_open(element) else int(getattr(element, "value", element))


def proves(condition: Element, positive: Element = 1) -> bool:
    """Whether a condition on elements holds for all sizes, of which one may not be 0."""
    # A comparison for equality waits for how it is used.
    condition = condition.asobject() if hasattr(condition, "asobject") else condition
    if isinstance(condition, (bool, np.bool_)):
        return bool(condition)
    analyzer = _analyzer(tvm.tirx.Cast("int64", condition))
    if not is_open(positive):
        return bool(analyzer.can_prove(condition))
    with analyzer.constraint_scope(positive > 0):
        return bool(analyzer.can_prove(condition))


def _analyzer(element: Element) -> Analyzer:
    """Return an analyzer that knows that sizes are not negative."""
    analyzer = Analyzer()
    vector = relax.TensorType(relax.ShapeExpr([element]), "int64")
    for var in relax.analysis.tir_vars_in_type(vector):
        analyzer.bind(var, tvm.ir.Range(0, _LARGEST_SIZE))
    return analyzer


def least(one: Element, other: Element) -> Element:
    """Return the smaller one of two elements."""
    if is_open(one) or is_open(other):
        if proves(one <= other) or proves(other <= one):
            return one if proves(one <= other) else other
        return simple(tvm.tirx.min(*_of_one_type(one, other)))
    return min(one, other)


def largest(one: Element, other: Element) -> Element:
    """Return the larger one of two elements."""
    if is_open(one) or is_open(other):
        if proves(one >= other) or proves(other >= one):
            return one if proves(one >= other) else other
        return simple(tvm.tirx.max(*_of_one_type(one, other)))
    return max(one, other)


def broadcast(one: Element, other: Element) -> Element:
    """Return the size that one gets where it is broadcast to another."""
    if not is_open(other) and other < 0:
        raise ValueError(f"its shape has the size {other}")
    if not is_open(one):
        if not is_open(other) and 1 not in (one, other) and one != other:
            raise ValueError(f"its size {one} cannot become {other}")
        return other if one == 1 else one
    if proves(other - 1 == 0) or proves(one - other == 0):
        return one
    raise ValueError(
        f"whether its size {size_text(one)} is 1 or {size_text(other)} is not known before the run"
    )


def _of_one_type(*elements: Element) -> list[Element]:
    return [item if is_open(item) else tvm.tirx.const(item, "int64") for item in elements]


def _quotient(one: Element, other: Element) -> Element:
    if is_open(other) or other <= 0 or not proves(one >= 0):
        raise Unknown
    return one // other


def _remainder(one: Element, other: Element) -> Element:
    if is_open(other) or other <= 0 or not proves(one >= 0):
        raise Unknown
    return one % other


def _decided(compare: _Binary, opposite: _Binary) -> _Binary:
    """Return a comparison whose outcome must be the same for all sizes."""

    def decide(one: Element, other: Element) -> Element:
        if proves(compare(one, other)):
            return 1
        if proves(opposite(one, other)):
            return 0
        raise Unknown

    return decide


_BINARY: Mapping[str, _Binary] = {
    "Add": operator.add,
    "Div": _quotient,
    "Max": largest,
    "Min": least,
    "Mod": _remainder,
    "Mul": operator.mul,
    "Sub": operator.sub,
    "Sum": operator.add,
}
_COMPARISONS: Mapping[str, _Binary] = {
    "Equal": _decided(operator.eq, operator.ne),
    "Greater": _decided(operator.gt, operator.le),
    "GreaterOrEqual": _decided(operator.ge, operator.lt),
    "Less": _decided(operator.lt, operator.ge),
    "LessOrEqual": _decided(operator.le, operator.gt),
}
_UNARY: Mapping[str, _Binary] = {
    # Elements are whole.
    **dict.fromkeys(("Ceil", "Floor", "Round"), lambda one, _: one),
    "Neg": lambda one, _: 0 - one,
    "Not": lambda one, _: 1 - one,
}
_REDUCTIONS: Mapping[str, _Binary] = {
    "ReduceMax": largest,
    "ReduceMin": least,
    "ReduceProd": operator.mul,
    "ReduceSum": operator.add,
}


def arithmetic(
    op: str, elements: Sequence[Array | None], dtypes: Sequence[str], attributes: Attributes
) -> tuple[Array, str]:
    """Return the elements of what an operator computes, and their type.

    `elements`: those of its inputs; None for an absent one.
    """
    first, *others = [item for item in elements if item is not None]
    dtype = dtypes[0]
    several = sum(any(map(is_open, item.flat)) for item in (first, *others)) > 1
    # Quotients of floats have fractions, and products of sizes more digits than floats.
    lossy = op in ("Div", "Mod", "ReduceProd") or (op == "Mul" and several)
    if lossy and dtype.startswith("float"):
        raise Unknown
    if op in _REDUCTIONS:
        if first.ndim != 1 or not first.size or attributes.get("noop_with_empty_axes"):
            raise Unknown
        value = array_of([reduce(_REDUCTIONS[op], first.tolist())])
        return (value if attributes.get("keepdims", 1) else value.reshape(())), dtype
    if op in _UNARY:
        return _each(_UNARY[op], first, first), dtype
    function = _BINARY.get(op) or _COMPARISONS.get(op)
    if function is None:
        raise Unknown
    for other in others:
        first = _each(function, first, other)
    return first, dtype if op in _BINARY else "bool"


def _each(function: _Binary, first: Array, second: Array) -> Array:
    """Apply a function to each two of the elements that are broadcast to each other."""
    try:
        one, other = np.broadcast_arrays(first, second)
    except ValueError:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise ValueError(f"its inputs have the shapes {shapes}, which do not go together") from None
    pairs = zip(one.flat, other.flat, strict=True)
    return array_of([function(a, b) for a, b in pairs]).reshape(one.shape)
