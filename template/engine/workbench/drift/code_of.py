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
    """Return the functions of a file by the line that Python notes of them."""
    found: dict[int, list[Function]] = {}
    text = "".join(linecache.getlines(path))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", [])
            line = min([node.lineno, *(item.lineno for item in decorators)])
            found.setdefault(line, []).append(node)
    return found


def node_of(function: FunctionType) -> Function | None:
    """Return the syntax tree of a function.

    None if there is no source.
    """
    code = function.__code__
    found = [
        node
        for node in _functions_of(code.co_filename).get(code.co_firstlineno, ())
        if getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(found) > 1:
        # Lambdas of one line: by the names in them.
        names = {*code.co_names, *code.co_varnames, *code.co_freevars}
        found = [node for node in found if names == _names_in(node)]
    return found[0] if found else None


def _names_in(node: Function) -> set[str]:
    parts = list(ast.walk(node))
    names = {item.id for item in parts if isinstance(item, ast.Name)}
    names |= {item.attr for item in parts if isinstance(item, ast.Attribute)}
    return names | {item.arg for item in parts if isinstance(item, ast.arg)}
