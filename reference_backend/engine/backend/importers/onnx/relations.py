# SPDX-License-Identifier: Apache-2.0
"""Open sizes that the nodes of an ONNX model tell, and the checks of those that they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax

from ...ir.calls import Analyzer
from .demands import Asked, demands
from .shape_elements import Element, is_open, largest, proves, simple, symbols_of


class Relations:
    """Makes the demands of nodes hold: by telling the symbols of inputs, else by checks in the run.

    `builder`: makes calls.
    `told`: gets what symbols of the inputs must be: a number, or the name of another symbol.
    """

    def __init__(self, builder: relax.BlockBuilder, told: dict[str, int | str]) -> None:
        self._builder = builder
        self._told = told
        self.symbols: dict[Element, str] = {}
        """The symbols that nodes may tell: sizes of inputs, by themselves."""

    def kept(
        self, op: str, inputs: Sequence[relax.Expr | None], asked: Asked
    ) -> Sequence[relax.Expr | None]:
        """Return the inputs of a node, after checks of the sizes that the node demands."""
        read = asked.elements(1) if op in ("Expand", "Reshape") else ()
        if not any(is_open(size) for sizes in (*asked.sizes, read) for size in sizes or ()):
            return inputs
        result = list(inputs)
        bounds: list[tuple[Element, Element]] = []
        for place, axis, size, is_bound in demands(op, asked):
            if is_bound and axis is not None:
                bounds.append((asked.of(place)[axis], size))
            else:
                result[place] = self._checked(result[place], axis, size, asked.of(place))
        if bounds:
            self._check_bounds(bounds)
        return type(inputs)(result)  # type: ignore[call-arg]

    def _checked(
        self, x: relax.Expr, axis: int | None, size: Element, sizes: Sequence[Element]
    ) -> relax.Expr:
        """Return a tensor that has a size, after the run has checked that."""
        given = math.prod(sizes) if axis is None else sizes[axis]
        self._tell(given, size)
        now = [simple(size) for size in x.ty.shape.values]
        if axis is None:
            flat = self._reshaped(x, [given])
            return self._reshaped(self._cast(flat, [size]), now)
        now[axis] = size
        cast = self._cast(x, now)
        return self._reshaped(cast, now) if isinstance(size, tvm.tirx.Var) else cast

    def _check_bounds(self, bounds: Sequence[tuple[Element, Element]]) -> None:
        """Check in the run that sizes are as if they were bounded, without reading a tensor."""
        given, demanded = (relax.ShapeExpr(sizes) for sizes in zip(*bounds, strict=True))
        self._builder.match_cast(self._builder.emit(given), relax.ShapeType(demanded.values))

    def _reshaped(self, x: relax.Expr, sizes: Sequence[Element]) -> relax.Expr:
        return self._builder.emit(relax.op.reshape(x, relax.ShapeExpr(sizes)))

    def _cast(self, x: relax.Expr, sizes: Sequence[Element]) -> relax.Expr:
        """Return a tensor after a check of its sizes; that of a new symbol does not see a 0."""
        # TVM would take a new symbol as defined here, and replace it by its size everywhere.
        checked = [
            largest(size, 1) if _is_new(size, now) else size
            for size, now in zip(sizes, x.ty.shape.values, strict=True)
        ]
        bound = x if isinstance(x, relax.Var) else self._builder.emit(x)
        ty = relax.TensorType(relax.ShapeExpr(checked), x.ty.dtype)
        return self._builder.match_cast(bound, ty)

    def _tell(self, given: Element, demanded: Element) -> None:
        """Remember what a symbol of an input must be, if a demand tells it."""
        pair = (given, demanded)
        names = [self.symbols[size] for size in pair if size in self.symbols]
        if len(names) == 2:
            order = list(self.symbols.values())
            first, second = sorted(names, key=order.index)
            self._told.setdefault(second, first)
            return
        number = next((size for size in pair if not is_open(size)), None)
        if number is None:
            return
        formula = given if is_open(given) else demanded
        symbols = [var for var in self.symbols if _has(formula, var)]
        value = _solved(formula, symbols[0], number) if len(symbols) == 1 else None
        if value is not None:
            self._told.setdefault(self.symbols[symbols[0]], value)


def _is_new(size: Element, now: Element) -> bool:
    return isinstance(size, tvm.tirx.Var) and not size.same_as(now)


def _has(size: Element, var: tvm.tirx.Var) -> bool:
    return any(symbol.same_as(var) for symbol in symbols_of(size))


def _solved(size: Element, var: tvm.tirx.Var, number: int) -> int | None:
    """Return the only value of a symbol with which a size is a number, if there is one."""
    ends = [_at(size, var, place) for place in (0, 1)]
    if any(map(is_open, ends)):
        return None
    slope = ends[1] - ends[0]
    if not slope or not proves(size - (var * slope + ends[0]) == 0):
        return None
    value, rest = divmod(number - ends[0], slope)
    return int(value) if value > 0 and not rest else None


def _at(size: Element, var: tvm.tirx.Var, value: int) -> Element:
    """Return a size for a value of a symbol."""
    analyzer = Analyzer()
    analyzer.bind(var, tvm.tirx.const(value, var.ty.dtype))
    return simple(analyzer.simplify(size))
