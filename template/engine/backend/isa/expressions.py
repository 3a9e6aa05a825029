# SPDX-License-Identifier: Apache-2.0
"""The expressions of a machine's table: integers, from the fields of an instruction.

Python evaluates them, and the emulator has the same as C++.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType


def _ceil_div(count: int, size: int) -> int:
    return -(-count // size)


FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceil_div": _ceil_div}
"""The functions of expressions; `size(field)` is the number of bytes of a choice of types."""

_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
_COMPARISONS = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<="},
    **{ast.Gt: ">", ast.GtE: ">="},
}
_LOGIC = {ast.And: "&&", ast.Or: "||"}


@dataclass(frozen=True)
class Expression:
    """An expression that was checked.

    `names`: the fields that it reads.
    `sizes`: the fields whose type's size it reads.
    `cpp`: the same in C++, on `Wide`, the emulator's integers; fields are `f.<name>`, sizes
    `f.<name>.size`.
    """

    text: str
    names: frozenset[str]
    sizes: frozenset[str]
    cpp: str
    _code: CodeType

    def value(self, fields: Mapping[str, int], sizes: Mapping[str, int]) -> int:
        """Evaluate it; `sizes` has the bytes of each choice of types."""
        functions = {**FUNCTIONS, "size": lambda name: sizes[name]}
        # Names that stand for themselves, as arguments of size.
        return int(eval(self._code, {"__builtins__": {}}, {**functions, **fields}))


def resolved(text: str, choices: Mapping[str, Sequence[str]]) -> str:
    """Return an expression in which the names of choices are their numbers.

    Parameters
    ----------
    text
        An expression that may compare a field with names: `mode == 'add'`, `op in ('eq', 'ne')`.
    choices
        The names of each field that is a choice.

    Raises
    ------
    ValueError
        A field has no such name, or something else than a field is compared with names.
    """
    if "'" not in text and '"' not in text:
        return text
    tree = _tree(text)
    return ast.unparse(ast.fix_missing_locations(_ChoiceNumbers(choices).visit(tree.body)))


def _tree(text: str) -> ast.Expression:
    try:
        return ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise ValueError(f"'{text}' is not an expression") from None


class _ChoiceNumbers(ast.NodeTransformer):
    """Turns `mode == 'add'` into `mode == 1`."""

    def __init__(self, choices: Mapping[str, Sequence[str]]) -> None:
        self._choices = choices

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        match node:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.In() | ast.NotIn() as op], comparators=[others]
            ) if isinstance(others, ast.Tuple | ast.List) and others.elts:
                tests: list[ast.expr] = [
                    ast.Compare(ast.Name(name, ast.Load()), [ast.Eq()], [self._number(name, other)])
                    for other in others.elts
                ]
                found: ast.expr = tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)
                return ast.UnaryOp(ast.Not(), found) if isinstance(op, ast.NotIn) else found
            case ast.Compare(left=ast.Name(id=name), ops=[_], comparators=[other]):
                node.comparators = [self._number(name, other)]
        return node

    def _number(self, name: str, other: ast.expr) -> ast.expr:
        if not (isinstance(other, ast.Constant) and isinstance(other.value, str)):
            return other
        if name not in self._choices:
            raise ValueError(
                f"'{name}' is compared with '{other.value}', but is no choice of names"
            )
        names = list(self._choices[name])
        if other.value not in names:
            raise ValueError(f"'{name}' is never '{other.value}', only {', '.join(names)}")
        return ast.Constant(names.index(other.value))


@cache
def read(text: str) -> Expression:
    """Check an expression of the table.

    Raises
    ------
    ValueError
        It is no arithmetic of fields; the message says which part is not.
    """
    tree = _tree(text)
    reader = _Reader()
    cpp = reader.cpp(tree.body)
    compiled = ast.fix_missing_locations(ast.Expression(_SizeNames().visit(tree.body)))
    code = compile(compiled, "isa", "eval")
    return Expression(text, frozenset(reader.names), frozenset(reader.sizes), cpp, code)


class _SizeNames(ast.NodeTransformer):
    """Turns `size(type)` into `size('type')`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "size":
            (field,) = node.args
            assert isinstance(field, ast.Name)
            node.args = [ast.Constant(field.id)]
        return node


class _Reader:
    """Checks a tree and writes it in C++."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.sizes: set[str] = set()

    def cpp(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return f"Wide(INT64_C({value}))"
            case ast.Name(id=name):
                self.names.add(name)
                return f"Wide(f.{name})"
            case ast.Constant(value=str()):
                raise ValueError(f"{ast.unparse(node)} can only be compared with a field")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-({self.cpp(operand)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"!({self.cpp(operand)})"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                division = {ast.FloorDiv: "FloorDiv", ast.Mod: "FloorMod"}.get(type(op))
                one, other = self.cpp(left), self.cpp(right)
                if division is not None:
                    return f"{division}({one}, {other})"
                return f"({one} {_ARITHMETIC[type(op)]} {other})"
            case ast.BoolOp(op=op, values=values):
                return "(" + f" {_LOGIC[type(op)]} ".join(map(self.cpp, values)) + ")"
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return f"({self.cpp(left)} {_COMPARISONS[type(op)]} {self.cpp(right)})"
            case ast.IfExp(test=test, body=body, orelse=other):
                return f"({self.cpp(test)} ? Wide({self.cpp(body)}) : Wide({self.cpp(other)}))"
            case ast.Call(func=ast.Name(id="size"), args=[ast.Name(id=name)], keywords=[]):
                self.sizes.add(name)
                return f"Wide(f.{name}.size)"
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                arguments = ", ".join(map(self.cpp, args))
                camel = {"min": "Least", "max": "Most", "ceil_div": "CeilDiv"}
                return f"{camel[name]}({arguments})"
        raise ValueError(
            f"'{ast.unparse(node)}' is not arithmetic of fields; supported are + - * // % "
            f"comparisons, and, or, not, if else, size, {', '.join(FUNCTIONS)}"
        )
