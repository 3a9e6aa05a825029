# SPDX-License-Identifier: Apache-2.0
"""The largest values of symbols in shapes: memory is planned for them."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from .options import Options

BOUNDS_ATTRIBUTE = "tir_var_upper_bound"
"""The attribute of a function that holds the largest values of its symbols; TVM's own name."""


def symbol_bounds(
    function: relax.Function, options: Options, outer: Mapping[str, int]
) -> dict[str, int]:
    """Return the largest value of each symbol: by name in the options, else outer, else usual."""
    known = {**outer, **options.symbol_bounds}
    symbols = [
        *relax.analysis.defined_symbolic_vars(function),
        *relax.analysis.free_symbolic_vars(function),
    ]
    return {str(var.name): known.get(str(var.name), options.symbol_bound) for var in symbols}


def with_bounds_of(other: relax.Function, function: relax.Function) -> relax.Function:
    """Return a function with the bounds of symbols that another one has among its attributes."""
    bounds = known_bounds(other)
    return function.with_attr(BOUNDS_ATTRIBUTE, bounds) if bounds else function


def known_bounds(function: relax.Function) -> dict[str, int]:
    """Return the bounds of symbols that a function has among its attributes."""
    bounds = function.attrs.get(BOUNDS_ATTRIBUTE) if function.attrs is not None else None
    return {str(name): int(bound) for name, bound in (bounds or {}).items()}
