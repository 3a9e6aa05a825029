# SPDX-License-Identifier: Apache-2.0
"""Elements of shape computations: whole numbers, and TVM's expressions of symbols."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
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
    for index, element in enumerate(elements):
        result[index] = element
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
    # TVM's == returns a proxy, which becomes an expression here.
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
    for var in symbols_of(element):
        analyzer.bind(var, tvm.ir.Range(0, _LARGEST_SIZE))
    return analyzer


def symbols_of(element: Element) -> Sequence[tvm.tirx.Var]:
    """Return the symbols in an element."""
    vector = relax.TensorType(relax.ShapeExpr([element]), "int64")
    symbols: Sequence[tvm.tirx.Var] = relax.analysis.tir_vars_in_type(vector)
    return symbols


def least(x: Element, y: Element) -> Element:
    """Return the smaller one of two elements."""
    return _chosen(x, y, min, operator.le, tvm.tirx.min)


def largest(x: Element, y: Element) -> Element:
    """Return the larger one of two elements."""
    return _chosen(x, y, max, operator.ge, tvm.tirx.max)


def _chosen(
    x: Element, y: Element, of_numbers: _Binary, is_it: _Binary, of_expressions: _Binary
) -> Element:
    if not (is_open(x) or is_open(y)):
        return of_numbers(x, y)
    if proves(is_it(x, y)):
        return x
    return y if proves(is_it(y, x)) else simple(of_expressions(*_of_one_type(x, y)))


def broadcast(size: Element, target: Element) -> Element:
    """Return what a size becomes where it is broadcast to another."""
    if not is_open(target) and target < 0:
        raise ValueError(f"its shape has the size {target}")
    if not is_open(size):
        if not is_open(target) and 1 not in (size, target) and size != target:
            raise ValueError(f"its size {size} cannot become {target}")
        return target if size == 1 else size
    if proves(target - 1 == 0) or proves(size - target == 0):
        return size
    raise ValueError(
        f"whether its size {size_text(size)} is 1 or {size_text(target)} is not known before the "
        "run"
    )


def _of_one_type(*elements: Element) -> list[Element]:
    return [x if is_open(x) else tvm.tirx.const(x, "int64") for x in elements]


def _divided(divide: _Binary, x: Element, y: Element) -> Element:
    if is_open(y) or y <= 0 or not proves(x >= 0):
        raise Unknown
    return divide(x, y)


def _decided(compare: _Binary, opposite: _Binary, x: Element, y: Element) -> Element:
    """Compare elements with an outcome that must be the same for all sizes."""
    if proves(compare(x, y)):
        return 1
    if proves(opposite(x, y)):
        return 0
    raise Unknown


_BINARY: Mapping[str, _Binary] = {
    "Add": operator.add,
    "Div": partial(_divided, operator.floordiv),
    "Max": largest,
    "Min": least,
    "Mod": partial(_divided, operator.mod),
    "Mul": operator.mul,
    "Sub": operator.sub,
    "Sum": operator.add,
}
_COMPARISONS: Mapping[str, _Binary] = {
    "Equal": partial(_decided, operator.eq, operator.ne),
    "Greater": partial(_decided, operator.gt, operator.le),
    "GreaterOrEqual": partial(_decided, operator.ge, operator.lt),
    "Less": partial(_decided, operator.lt, operator.ge),
    "LessOrEqual": partial(_decided, operator.le, operator.gt),
}
_UNARY: Mapping[str, _Binary] = {
    # Elements are whole.
    **dict.fromkeys(("Ceil", "Floor", "Round"), lambda x, _: x),
    "Neg": lambda x, _: 0 - x,
    "Not": lambda x, _: 1 - x,
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
    first, *others = [array for array in elements if array is not None]
    dtype = dtypes[0]
    several = sum(any(map(is_open, array.flat)) for array in (first, *others)) > 1
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
        first, second = np.broadcast_arrays(first, second)
    except ValueError:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise ValueError(f"its inputs have the shapes {shapes}, which do not go together") from None
    pairs = zip(first.flat, second.flat, strict=True)
    return array_of([function(x, y) for x, y in pairs]).reshape(first.shape)
