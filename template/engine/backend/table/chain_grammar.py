# SPDX-License-Identifier: Apache-2.0
"""The grammar of chains: functions emitted as several ops, such as x * clip(x + 3, 0, 6) / 6.

A chain is an expression over the inputs and attributes of an entry, in Python's syntax: operators,
and Relax ops by their last name, whose positional arguments are tensors and whose keyword arguments
are attributes. A chain gives one of the spellings that are equal over the reals; `read` generates
the others: commuted terms and factors, other groupings of a product, division by a constant or a
square root instead of multiplication by the inverse, a scale on a matrix product or on one of its
operands, powers, comparisons and their mirror images, ways to clamp a value, a float32 softmax
between casts, and a swap of the last two dimensions after another transposition. `[..., -1, -2]`
are the axes of that swap at any rank; an input used as a dtype means its dtype. A factor
`optional(scale)` may be left out where the attribute is 1.

This module does not import TVM, so that the generator can check the catalogue with it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

_NN_OPS = frozenset(json.loads(Path(__file__).with_name("relax_ops.json").read_text())["nn"])


_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
# The inequality with its sides swapped, and the negation of that.
_INEQUALITIES = {
    "relax.greater": ("less", "less_equal"),
    "relax.greater_equal": ("less_equal", "less"),
}
_MIRRORED = {"relax.less": "greater", "relax.less_equal": "greater_equal"}
_COMMUTATIVE = ("relax.add", "relax.multiply", "relax.maximum", "relax.minimum")
SWAP = (..., -1, -2)
"""The axes of a swap of the last two dimensions; see `chains.in_rank`."""
_OPTIONAL = re.compile(r" \* optional\((\w+)\)")
PRECISION = 1e-5
"""The relative tolerance for equal numbers."""


@dataclass(frozen=True)
class Input:
    """A tensor input of the chain."""

    name: str


@dataclass(frozen=True)
class Number:
    """A constant: `factor`, times an attribute to the power of 1 or -1 if there is one."""

    factor: float
    attribute: str = ""
    power: int = 1

    def inverse(self) -> Number:
        """Return its inverse."""
        return replace(self, factor=1 / self.factor, power=-self.power)

    def negative(self) -> Number:
        """Return its negative."""
        return replace(self, factor=-self.factor)

    def value_in(self, attributes: Mapping[str, Any]) -> Any:
        """Return its value with these attributes of the entry."""
        if not self.attribute:
            return self.factor
        value = attributes[self.attribute]
        return value if self.factor == self.power == 1 else self.factor * value**self.power


@dataclass(frozen=True)
class Step:
    """A call of a Relax op; its attributes are numbers or plain values."""

    op: str
    arguments: tuple[Node, ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.arguments, self.attributes))

    def __hash__(self) -> int:
        """Walk a part that occurs many times only once."""
        return self._hash


@dataclass(frozen=True)
class Either:
    """One of several spellings, the plainest first."""

    options: tuple[Node, ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.options)

    def __hash__(self) -> int:
        """Walk a part that occurs many times only once."""
        return self._hash


Node = Input | Number | Step | Either


@dataclass(frozen=True)
class Chain:
    """One of the ways to spell an entry.

    `node`: the expression, with all spellings equal over the reals.
    `fixed`: the attributes of the entry that this chain fixes, and their values.
    """

    node: Node
    fixed: Mapping[str, float]

    def suits(self, attributes: Mapping[str, object]) -> bool:
        """Whether the entry with these attributes computes this chain."""
        return all(same_value(attributes.get(name), value) for name, value in self.fixed.items())

    @property
    def ops(self) -> set[str]:
        """The Relax ops of all spellings."""
        return ops_in(self.node)

    def ops_left_by_folding(self, constants: Collection[str]) -> set[str]:
        """Return the Relax ops that it becomes where folding computes a part of it.

        None if nothing is folded, or all of it.
        """
        left = set()
        folded = False

        def is_constant(node: Node) -> bool:
            nonlocal folded
            if isinstance(node, Either):
                return is_constant(node.options[0])
            if not isinstance(node, Step):
                return isinstance(node, Number) or node.name in constants
            # A list, so that all are visited.
            if all([is_constant(argument) for argument in node.arguments]):
                folded = True
                return True
            left.add(node.op)
            return False

        is_constant(self.node)
        return left if folded else set()


def read_all(lines: str | tuple[str, ...], inputs: Sequence[str]) -> tuple[Chain, ...]:
    """Read a chain with and without its optional factor, if it has one."""
    given = (lines,) if isinstance(lines, str) else lines
    optional = {match[1] for line in given for match in _OPTIONAL.finditer(line)}
    if not optional:
        return (read(given, inputs),)
    factor = (_OPTIONAL.sub(r" * \1", line) for line in given)
    without = (_OPTIONAL.sub("", line) for line in given)
    fixed = (f"{name} = 1" for name in sorted(optional))
    return read((*factor,), inputs), read((*fixed, *without), inputs)


def read(lines: str | tuple[str, ...], inputs: Sequence[str]) -> Chain:
    """Read a chain without an optional factor.

    `lines`: the expression, or definitions of names followed by the expression. A name that is
    defined as a number is an attribute.
    """
    known: dict[str, Node] = {name: Input(name) for name in inputs}
    fixed = {}
    *definitions, result = (lines,) if isinstance(lines, str) else lines
    text = "; ".join((*definitions, result))
    try:
        for line in definitions:
            (statement,) = ast.parse(line).body
            if not isinstance(statement, ast.Assign):
                raise ValueError(f"'{line}' defines no name")
            name, value = ast.unparse(statement.targets[0]), _node(statement.value, known)
            known[name] = value
            if isinstance(value, Number):
                fixed[name] = value.factor
        node = _node(ast.parse(result, mode="eval").body, known)
    except SyntaxError:
        raise ValueError(f"'{text}' is not an expression") from None
    if isinstance(node, Input | Number):
        raise ValueError(f"'{text}' calls no op")
    return Chain(node, fixed)


def _node(tree: ast.expr, known: Mapping[str, Node]) -> Node:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return Number(float(tree.value))
    if isinstance(tree, ast.Name):
        return known.get(tree.id, Number(1.0, tree.id))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        operand = _node(tree.operand, known)
        return operand.negative() if isinstance(operand, Number) else _step("negative", (operand,))
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _step(_OPERATORS[type(tree.op)], (_node(tree.left, known), _node(tree.right, known)))
    if isinstance(tree, ast.Compare) and [*map(type, tree.ops)] in ([ast.Gt], [ast.GtE]):
        sides = (_node(tree.left, known), _node(tree.comparators[0], known))
        return _step(_OPERATORS[type(tree.ops[0])], sides)
    if isinstance(tree, ast.Call):
        arguments = tuple(_node(argument, known) for argument in tree.args)
        attributes = {str(item.arg): _attribute(item.value, known) for item in tree.keywords}
        return _step(ast.unparse(tree.func), arguments, attributes)
    raise ValueError(f"'{ast.unparse(tree)}' is not part of a chain")


def _attribute(tree: ast.expr, known: Mapping[str, Node]) -> Any:
    """Return a plain value, an input, or a number for an attribute of the entry."""
    if isinstance(tree, ast.Name):
        return known.get(tree.id, Number(1.0, tree.id))
    value = ast.literal_eval(tree)
    return tuple(value) if isinstance(value, list) else value


def _relax_op(name: str) -> str:
    full = f"relax.nn.{name}"
    return full if full in _NN_OPS else f"relax.{name}"


def _step(name: str, arguments: tuple[Node, ...], attributes: Mapping[str, object] = {}) -> Node:
    """Return a call with its other spellings."""
    written = Step(_relax_op(name), arguments, tuple(attributes.items()))
    factors = _factors(written)
    others = _products(factors) if len(factors) > 1 else _spellings(written, dict(attributes))
    return _either(written, *others)


def _either(*options: Node) -> Node:
    swapped = [
        replace(option, arguments=option.arguments[::-1])
        for option in options
        if isinstance(option, Step) and option.op in _COMMUTATIVE
    ]
    different = tuple(dict.fromkeys((*options, *swapped)))
    return Either(different) if len(different) > 1 else different[0]


def _written(node: Node) -> Node:
    """Return the plainest spelling."""
    return node.options[0] if isinstance(node, Either) else node


def _call(name: str, *operands: Node) -> Step:
    return Step(_relax_op(name), operands)


def _spellings(written: Step, attributes: Mapping[str, Any]) -> Iterator[Node]:
    name = written.op.rpartition(".")[2]
    first, last = written.arguments[0], written.arguments[-1]
    if name in ("add", "subtract") and isinstance(last, Number):
        yield _call("subtract" if name == "add" else "add", first, last.negative())
    elif name == "add" and isinstance(first, Number):
        yield _call("subtract", last, first.negative())
    elif name == "permute_dims" and ... not in attributes["axes"]:
        *before, one, other = attributes["axes"]
        if other != len(attributes["axes"]) - 1:
            inner = Step(written.op, written.arguments, (("axes", (*before, other, one)),))
            yield Step(written.op, (inner,), (("axes", SWAP),))
    elif name == "softmax":
        wide = Step("relax.astype", (first,), (("dtype", "float32"),))
        weights = replace(written, arguments=(wide,))
        # It does not matter which input: the result's type shows it.
        yield Step("relax.astype", (weights,), (("dtype", Input("")),))
    elif name == "negative":
        yield _call("multiply", first, Number(-1.0))
    elif name == "square":
        yield from _products((first, first))
    elif name == "sqrt":
        yield _call("power", first, Number(0.5))
    elif written.op in _INEQUALITIES:
        yield _call(_INEQUALITIES[written.op][0], last, first)
    elif name == "where":
        condition = _written(first)
        if isinstance(condition, Step) and condition.op in _INEQUALITIES:
            one, other = condition.arguments
            opposite = _call(_INEQUALITIES[condition.op][1], one, other)
            swapped = _call(_MIRRORED[opposite.op], other, one)
            yield _call("where", _either(opposite, swapped), last, written.arguments[1])
    elif name == "relu":
        yield _call("maximum", first, Number(0.0))
    elif name == "clip" and all(isinstance(item, int | float) for item in attributes.values()):
        low, high = Number(attributes["min"]), Number(attributes["max"])
        raised = _step("relu", (first,)) if low.factor == 0 else _step("maximum", (first, low))
        yield _step("minimum", (raised, high))
        yield _step("maximum", (_step("minimum", (first, high)), low))


# ---- Products -----------------------------------------------------------------------------------


def _factors(node: Node) -> tuple[Node, ...]:
    """Return the factors of a product; inverse roots are factors too."""
    written = _written(node)
    if isinstance(written, Step) and written.op in ("relax.multiply", "relax.divide"):
        first, last = written.arguments
        if written.op == "relax.multiply":
            return (*_factors(first), *_factors(last))
        if isinstance(last, Number):
            return (*_factors(first), last.inverse())
        if (root := _operand_of("relax.sqrt", last)) is not None:
            return (*_factors(first), _call("rsqrt", root))
    return (node,)


def _operand_of(op: str, node: Node) -> Node | None:
    written = _written(node)
    return written.arguments[0] if isinstance(written, Step) and written.op == op else None


def _products(factors: tuple[Node, ...]) -> Iterator[Node]:
    """Generate the ways to multiply two or more factors."""
    first, *others = factors
    if all(factor == first for factor in others):
        if len(factors) == 2:
            yield _call("square", first)
        yield _call("power", first, Number(float(len(factors))))
    # Fix the side of the first factor, so that no way is generated twice.
    for beside in range(2 ** len(others) - 1):
        one: list[Node] = [first]
        other: list[Node] = []
        for index, factor in enumerate(others):
            (one if beside >> index & 1 else other).append(factor)
        yield from _multiplied(_product(tuple(one)), _product(tuple(other)))


def _product(factors: tuple[Node, ...]) -> Node:
    if len(factors) > 1:
        return _either(*_products(factors))
    root = _operand_of("relax.rsqrt", factors[0])
    if root is None:
        return factors[0]
    return _either(factors[0], _call("divide", Number(1.0), _step("sqrt", (root,))))


def _multiplied(one: Node, other: Node) -> Iterator[Node]:
    """Generate the calls that multiply two values."""
    for first, last in ((one, other), (other, one)):
        if isinstance(last, Number):
            yield _call("divide", first, last.inverse())
            if isinstance(first, Step) and first.op == "relax.matmul":
                query, key = first.arguments
                yield _call("matmul", _step("multiply", (query, last)), key)
                yield _call("matmul", query, _step("multiply", (key, last)))
        if (root := _operand_of("relax.rsqrt", last)) is not None:
            yield _call("divide", first, _step("sqrt", (root,)))
    yield _call("multiply", one, other)


def count_steps(node: Node) -> int:
    """Return the number of calls in the plainest spelling."""
    if isinstance(node, Either):
        return count_steps(node.options[0])
    return 1 + sum(map(count_steps, node.arguments)) if isinstance(node, Step) else 0


def ops_in(node: Node) -> set[str]:
    """Return the ops of all spellings."""
    if isinstance(node, Either):
        return set().union(*map(ops_in, node.options))
    return {node.op}.union(*map(ops_in, node.arguments)) if isinstance(node, Step) else set()


def attribute_names(node: Node) -> set[str]:
    """Return the attributes of the entry that a chain uses."""
    written = _written(node)
    if isinstance(written, Number):
        return {written.attribute} - {""}
    if not isinstance(written, Step):
        return set()
    values = [value for _, value in written.attributes if isinstance(value, Number)]
    return set().union(*map(attribute_names, (*written.arguments, *values)))


@cache
def needed_ops(node: Node) -> frozenset[str]:
    """Return the ops that each spelling of a chain contains."""
    if isinstance(node, Either):
        return frozenset.intersection(*map(needed_ops, node.options))
    if isinstance(node, Step):
        return frozenset((node.op,)).union(*map(needed_ops, node.arguments))
    return frozenset()


def heads(node: Node) -> set[str]:
    """Return the ops that a chain may end in."""
    if isinstance(node, Either):
        return {name for option in node.options for name in heads(option)}
    return {node.op} if isinstance(node, Step) else set()


def same_value(given: object, value: Any, precision: float = PRECISION) -> bool:
    """Whether two attributes are equal, numbers up to rounding."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return bool(given == value)
    return math.isclose(given, value, rel_tol=precision)
