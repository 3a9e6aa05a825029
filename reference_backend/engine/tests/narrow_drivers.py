# SPDX-License-Identifier: Apache-2.0
"""Drivers that decline some forms of integers; tests give them to the fixture `decline`."""

from collections.abc import Callable, Iterable

from tvm import relax

from backend.engine.backend.ir.amounts import is_product

NARROW = {
    "real results": "it has no real results",
    "residuals": "it has no residuals",
    "neither": "it has neither real results nor residuals",
    "3x3": "it has no windows of 3 x 3 integers",
    "integers": "it has no products of integers",
    "conversions": "it has no integers",
}
"""What each driver says about what it declines."""

REAL = "it has no products of real numbers"
ONE_SCALE = "a tensor has one scale"
QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"


def composites_of(function: relax.Function) -> list[relax.Function]:
    """Return the composites that a driver is asked about, alone or as a region."""
    if "Composite" in (function.attrs or {}):
        return [function]
    bindings = (binding for block in function.body.blocks for binding in block.bindings)
    return [item.value for item in bindings if isinstance(item.value, relax.Function)]


def declines(kind: str, where: str = "composite") -> Callable[[relax.Function, bool], str]:
    """Return what makes the fixture `decline` a driver of `NARROW`.

    `kind`: one of `NARROW`; "nothing" has no products of any numbers; "reals" has no real numbers.
    `where`: "region" for a driver that takes each composite, and declines the regions with it.
    """

    def answer(function: relax.Function, finish: bool) -> str:
        if where == "region" and not finish:
            return ""
        return next(filter(None, (_reason(kind, part) for part in composites_of(function))), "")

    return answer


def _reason(kind: str, composite: relax.Function) -> str:
    bindings = [binding for block in composite.body.blocks for binding in block.bindings]
    calls = [item.value for item in bindings if isinstance(item.value, relax.Call)]
    made = {item.var: item.value.op.name for item in bindings if item.value in calls}
    names = [call.op.name for call in calls]
    if kind == "reals":
        ends = [*composite.params, composite.body.body]
        return REAL if _have_reals(ends) else ""
    if names == [DEQUANTIZE] and calls[0].args[1].ty.ndim:
        return ONE_SCALE
    product = next((call for call in calls if is_product(call.op.name)), None)
    has_integers = product is not None and made.get(product.args[0]) == DEQUANTIZE
    is_real = has_integers and names[-1] != QUANTIZE
    has_residual = has_integers and names.count(DEQUANTIZE) > 2
    window = product is not None and product.op.name == "relax.nn.conv2d" and _window(product)
    mixes = len(calls) > 1 and not {QUANTIZE, DEQUANTIZE}.isdisjoint(names)
    converts = not {QUANTIZE, DEQUANTIZE}.isdisjoint(names)
    declined = {
        "real results": is_real,
        "residuals": has_residual,
        "neither": is_real or has_residual,
        "3x3": has_integers and window == (3, 3),
        "integers": mixes,
        "conversions": converts,
        "nothing": mixes,
    }[kind]
    if kind == "nothing" and product is not None and not declined:
        return REAL
    return NARROW.get(kind, NARROW["integers"]) if declined else ""


def _window(product: relax.Call) -> tuple[int, ...]:
    return tuple(int(size) for size in product.args[1].ty.shape.values[2:])


def _have_reals(values: Iterable[relax.Expr]) -> bool:
    types = [value.ty for value in values]
    fields = [part for ty in types for part in (getattr(ty, "fields", None) or [ty])]
    return any("float" in str(getattr(part, "dtype", "")) for part in fields)
