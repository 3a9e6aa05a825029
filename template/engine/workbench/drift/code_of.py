# SPDX-License-Identifier: Apache-2.0
"""The syntax tree of a Python function."""

from __future__ import annotations

import ast
import functools
import linecache
from types import FunctionType

Function = ast.FunctionDef | ast.Lambda


@functools.cache
def _functions_of(path: str) -> dict[int, list[Function]]:
    """Return the functions of a file by their first line, that of a decorator included."""
    functions: dict[int, list[Function]] = {}
    text = "".join(linecache.getlines(path))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", [])
            line = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            functions.setdefault(line, []).append(node)
    return functions


def node_of(function: FunctionType) -> Function | None:
    """Return the syntax tree of a function, or None without its source."""
    code = function.__code__
    candidates = [
        node
        for node in _functions_of(code.co_filename).get(code.co_firstlineno, ())
        if getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(candidates) > 1:
        # Lambdas on one line differ by the names in them.
        names = {*code.co_names, *code.co_varnames, *code.co_freevars}
        candidates = [node for node in candidates if names == _names_in(node)]
    return candidates[0] if candidates else None


def _names_in(node: Function) -> set[str]:
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    names |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return names | {part.arg for part in parts if isinstance(part, ast.arg)}
