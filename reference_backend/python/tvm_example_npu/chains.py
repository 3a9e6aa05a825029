# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""Functions that front ends spell in several ops, such as x * clip(x + 3, 0, 6) / 6.

A chain is an expression of the inputs and attributes of an entry in Python's syntax: operators, and
Relax ops by their last name, whose positional arguments are tensors. What is the same for all real
numbers need not be written twice: the order of factors and terms, a division by a constant and the
multiplication by its inverse, a factor of a product of matrices and of one of its operands,
squares, roots, ways to limit a value, and a swap of the last two dimensions behind another
transposition.

What a chain broadcasts, the op that is written in its place may group or align in another way. So
an attribute in the place of `axis` stands for the last axes alone, along which a gamma of their
size broadcasts, and a product of matrices is one of equal batches, without heads that share keys.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import or_
from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import DFPattern, is_const, is_op

from .capability import Constant, Op, Unknown, Values, attributes_of, resolve, tensor_type

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.Gt: "greater",
}
_COMMUTATIVE = ("relax.add", "relax.multiply", "relax.maximum", "relax.minimum")
# How far a constant may be off, by the type in which it is stored.
_PRECISION = {"float16": 1e-3}
_DEFAULT_PRECISION = 1e-5


# ---- Expressions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A tensor that goes into the chain."""

    name: str


@dataclass(frozen=True)
class Number:
    """A constant: `factor`, times an attribute to the power of 1 or -1 if there is one."""

    factor: float
    attribute: str = ""
    power: int = 1

    def inverse(self) -> Number:
        """Return what multiplies as this one divides."""
        return replace(self, factor=1 / self.factor, power=-self.power)

    def negative(self) -> Number:
        """Return this one with the other sign."""
        return replace(self, factor=-self.factor)


@dataclass(frozen=True)
class Step:
    """A call of a Relax op; its attributes are numbers or plain values."""

    op: str
    arguments: tuple[Node, ...]
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Either:
    """One of several spellings, the plainest first."""

    options: tuple[Node, ...]


Node = Input | Number | Step | Either


@dataclass(frozen=True)
class Chain:
    """One of the ways to spell an entry.

    Parameters
    ----------
    node
        The expression, with what is the same for all real numbers.
    fixed
        The attributes of the entry that are the same wherever this chain is, and their values.
    """

    node: Node
    fixed: Mapping[str, float]

    def suits(self, attributes: Mapping[str, Any]) -> bool:
        """Whether it is what the entry computes with these attributes."""
        return all(_same(attributes.get(name), value) for name, value in self.fixed.items())


def read(lines: str | tuple[str, ...], inputs: Sequence[str]) -> Chain:
    """Read a chain.

    Parameters
    ----------
    lines
        The expression, or definitions of names followed by the expression. A name that is defined
        as a number is an attribute.
    inputs
        The names of the tensors; other names that are not defined are attributes.

    Returns
    -------
    chain
        The chain with all its spellings.

    Raises
    ------
    ValueError
        It is no such expression.
    """
    known: dict[str, Node] = {name: Input(name) for name in inputs}
    fixed = {}
    *definitions, result = (lines,) if isinstance(lines, str) else lines
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
        raise ValueError(f"'{lines}' is no expression") from None
    if isinstance(node, Input | Number):
        raise ValueError(f"'{lines}' calls no op")
    return Chain(node, fixed)


def _node(tree: ast.expr, known: Mapping[str, Node]) -> Node:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return Number(float(tree.value))
    if isinstance(tree, ast.Name):
        return known.get(tree.id, Number(1.0, tree.id))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        operand = _node(tree.operand, known)
        return operand.negative() if isinstance(operand, Number) else _step("negative", (operand,))
    if isinstance(tree, ast.BinOp):
        return _step(_OPERATORS[type(tree.op)], (_node(tree.left, known), _node(tree.right, known)))
    if isinstance(tree, ast.Compare):
        sides = (_node(tree.left, known), _node(tree.comparators[0], known))
        return _step(_OPERATORS[type(tree.ops[0])], sides)
    if isinstance(tree, ast.Call):
        arguments = tuple(_node(argument, known) for argument in tree.args)
        attributes = {str(item.arg): _attribute(item.value) for item in tree.keywords}
        return _step(ast.unparse(tree.func), arguments, attributes)
    raise ValueError(f"'{ast.unparse(tree)}' is no part of a chain")


def _attribute(tree: ast.expr) -> Any:
    """Return a plain value, or a number that stands for an attribute of the entry."""
    if isinstance(tree, ast.Name):
        return Number(1.0, tree.id)
    value = ast.literal_eval(tree)
    return tuple(value) if isinstance(value, list) else value


@cache
def _relax_op(name: str) -> str:
    for prefix in ("relax", "relax.nn"):
        if f"{prefix}.{name}" in _op_names():
            return f"{prefix}.{name}"
    raise ValueError(f"Relax has no op '{name}'")


@cache
def _op_names() -> frozenset[str]:
    return frozenset(map(str, tvm.ir.Op.list_op_names()))


def _step(name: str, arguments: tuple[Node, ...], attributes: Mapping[str, Any] = {}) -> Node:
    """Return a call with the other ways to spell it."""
    options = [*_spellings(name, arguments, dict(attributes))]
    plain = [option for option in options if isinstance(option, Step)]
    swapped = [
        replace(option, arguments=option.arguments[::-1])
        for option in plain
        if option.op in _COMMUTATIVE and option.arguments[0] != option.arguments[1]
    ]
    return options[0] if len(options + swapped) == 1 else Either((*options, *swapped))


def _spellings(
    name: str, arguments: tuple[Node, ...], attributes: dict[str, Any]
) -> Iterator[Node]:
    yield Step(_relax_op(name), arguments, tuple(attributes.items()))
    first, last = arguments[0], arguments[-1]

    def of(other: str, *operands: Node) -> Step:
        return Step(_relax_op(other), operands)

    if name in ("multiply", "divide") and isinstance(last, Number):
        yield of("divide" if name == "multiply" else "multiply", first, last.inverse())
        if name == "multiply" and isinstance(first, Step) and first.op == "relax.matmul":
            one, other = first.arguments
            yield of("matmul", _step("multiply", (one, last)), other)
            yield of("matmul", one, _step("multiply", (other, last)))
    elif name == "multiply" and isinstance(first, Number):
        yield of("divide", last, first.inverse())
    elif name == "divide" and (root := _root(last)) is not None:
        yield of("multiply", first, of("rsqrt", root))
        yield of("multiply", first, of("divide", Number(1.0), last))
    elif name in ("add", "subtract") and isinstance(last, Number):
        yield of("subtract" if name == "add" else "add", first, last.negative())
    elif name == "add" and isinstance(first, Number):
        yield of("subtract", last, first.negative())
    elif name == "permute_dims" and attributes["axes"][-1] != len(attributes["axes"]) - 1:
        *before, one, other = attributes["axes"]
        swap = [*range(len(before)), len(before) + 1, len(before)]
        inner = Step(_relax_op(name), arguments, (("axes", (*before, other, one)),))
        yield Step(_relax_op(name), (inner,), (("axes", tuple(swap)),))
    elif name == "negative":
        yield of("multiply", first, Number(-1.0))
    elif name == "square":
        yield of("multiply", first, first)
        yield of("power", first, Number(2.0))
    elif name == "sqrt":
        yield of("power", first, Number(0.5))
    elif name == "relu":
        yield of("maximum", first, Number(0.0))
    elif name == "clip" and all(isinstance(item, int | float) for item in attributes.values()):
        low, high = Number(attributes["min"]), Number(attributes["max"])
        raised = _step("relu", arguments) if low.factor == 0 else _step("maximum", (first, low))
        yield _step("minimum", (raised, high))
        yield _step("maximum", (_step("minimum", (first, high)), low))


def _root(node: Node) -> Node | None:
    """Return what a square root is drawn of."""
    step = node.options[0] if isinstance(node, Either) else node
    return step.arguments[0] if isinstance(step, Step) and step.op == "relax.sqrt" else None


def count_steps(node: Node) -> int:
    """Return how many calls the plainest spelling has.

    Parameters
    ----------
    node
        A chain.

    Returns
    -------
    count
        Their number.
    """
    if isinstance(node, Either):
        return count_steps(node.options[0])
    return 1 + sum(map(count_steps, node.arguments)) if isinstance(node, Step) else 0


def heads(node: Node) -> set[str]:
    """Return the ops that a chain may end in.

    Parameters
    ----------
    node
        A chain.

    Returns
    -------
    ops
        Their names.
    """
    if isinstance(node, Either):
        return {name for option in node.options for name in heads(option)}
    return {node.op} if isinstance(node, Step) else set()


def pattern(node: Node, inputs: Mapping[str, DFPattern]) -> DFPattern:
    """Return a chain as a pattern of TVM, which any constant suits.

    Parameters
    ----------
    node
        The chain.
    inputs
        The patterns of its inputs.

    Returns
    -------
    pattern
        The pattern; `find` looks at the constants.
    """
    made: dict[Node, DFPattern] = {}

    def make(node: Node) -> DFPattern:
        if isinstance(node, Input):
            return inputs[node.name]
        if isinstance(node, Number):
            return is_const()
        if node not in made:
            if isinstance(node, Either):
                made[node] = reduce(or_, map(make, node.options))
            else:
                arguments = map(make, node.arguments)
                made[node] = is_op(node.op)(*arguments, varg_default_wildcard=True)
        return made[node]

    return make(node)


# ---- Finding ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A chain in a model.

    Parameters
    ----------
    inputs
        Its tensors, by name.
    attributes
        Its numbers and other values, by name.
    calls
        The calls that it is made of, the last one first, by the variables that they are bound to.
    """

    inputs: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    calls: dict[Any, Any] = field(default_factory=dict)


def find(chain: Chain, var: Any, values: Values) -> Iterator[Found]:
    """Find the ways in which a chain ends in a variable.

    Parameters
    ----------
    chain
        The chain.
    var
        The variable.
    values
        What variables are bound to.

    Yields
    ------
    found
        Inputs and attributes; whether they have what it takes is not checked here.
    """
    yield from _find(chain.node, var, values, Found(attributes=dict(chain.fixed)))


def _find(node: Node, expr: Any, values: Values, found: Found) -> Iterator[Found]:
    if isinstance(node, Either):
        for option in node.options:
            yield from _find(option, expr, values, found)
    elif isinstance(node, Input):
        known = found.inputs.get(node.name)
        if known is None:
            yield replace(found, inputs={**found.inputs, node.name: expr})
        elif known.same_as(expr):
            yield found
    elif isinstance(node, Number):
        constant = resolve(expr, values)
        if isinstance(constant, Constant) and math.prod(constant.value.shape) == 1:
            precision = _PRECISION.get(str(constant.value.dtype), _DEFAULT_PRECISION)
            yield from _bind(node, constant.value.numpy().item(), found, precision)
    else:
        call = values.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != node.op:
            return
        if node.op == "relax.matmul" and not _has_equal_batches(call):
            return
        wanted = [replace(found, calls={**found.calls, expr: call})]
        if node.attributes:
            given = attributes_of(call, values)
            for name, value in node.attributes:
                number = value if isinstance(value, Number) else None
                if name == "axis" and isinstance(value, int):
                    rank = call.args[0].ty.ndim
                    wanted = [item for item in wanted if (given[name] - value) % rank == 0]
                elif number is None:
                    wanted = [item for item in wanted if _same(given.get(name), value)]
                elif name == "axis" and not _are_last(given[name], call.args[0].ty.ndim):
                    return
                else:
                    wanted = [
                        bound for item in wanted for bound in _bind(number, given.get(name), item)
                    ]
        for argument, operand in zip(node.arguments, call.args, strict=False):
            wanted = [more for item in wanted for more in _find(argument, operand, values, item)]
        yield from wanted


def _same(given: Any, value: Any, precision: float = _DEFAULT_PRECISION) -> bool:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return bool(given == value)
    return math.isclose(given, value, rel_tol=precision)


def _has_equal_batches(product: Any) -> bool:
    """Whether each matrix meets one other."""
    try:
        one, other = (tensor_type(operand.ty)[1][:-2] for operand in product.args)
    except Unknown:
        return False
    return one == other


def _are_last(axes: Any, rank: int) -> bool:
    """Whether axes are the last ones, in order."""
    if not isinstance(axes, tuple):
        return False
    return [axis % rank for axis in axes] == [*range(rank - len(axes), rank)]


def _bind(
    number: Number, given: Any, found: Found, precision: float = _DEFAULT_PRECISION
) -> Iterator[Found]:
    """Generate what is found with a number that has this value: nothing if it cannot be."""
    if not number.attribute:
        if _same(given, number.factor, precision):
            yield found
        return
    if isinstance(given, int | float) and not isinstance(given, bool):
        if not math.isfinite(given) or (number.power < 0 and given == 0):
            return
        given = (given / number.factor) ** number.power
    known = found.attributes.get(number.attribute)
    if known is None:
        yield replace(found, attributes={**found.attributes, number.attribute: given})
    elif _same(given, known, precision):
        yield found


def chains_of(op: Op) -> tuple[Chain, ...]:
    """Return the chains of an entry, the longest first.

    Parameters
    ----------
    op
        The entry.

    Returns
    -------
    chains
        As `read` returns them.
    """
    return _chains(op.chains, tuple(item.name for item in op.inputs))


@cache
def _chains(texts: tuple[str | tuple[str, ...], ...], inputs: tuple[str, ...]) -> tuple[Chain, ...]:
    chains = [read(text, inputs) for text in texts]
    return tuple(sorted(chains, key=lambda chain: count_steps(chain.node), reverse=True))


def build(
    node: Node,
    inputs: Mapping[str, Any],
    attributes: Mapping[str, Any],
    dtype: str,
    emit: Callable[[Any], Any],
    pick: Callable[[Sequence[Node]], Node] = lambda options: options[0],
) -> Any:
    """Write a chain into a model.

    Parameters
    ----------
    node
        The chain.
    inputs
        Expressions for its inputs.
    attributes
        Values of its attributes.
    dtype
        The element type of its numbers.
    emit
        Binds a call, and returns the variable.
    pick
        Chooses a spelling.

    Returns
    -------
    expr
        The result.
    """

    def value_of(number: Number) -> Any:
        if not number.attribute:
            return number.factor
        value = attributes[number.attribute]
        return value if number.factor == number.power == 1 else number.factor * value**number.power

    made: dict[Node, Any] = {}

    def make(node: Node) -> Any:
        if isinstance(node, Input):
            return inputs[node.name]
        if isinstance(node, Number):
            return relax.const(value_of(node), dtype)
        if node not in made:
            if isinstance(node, Either):
                made[node] = make(pick(node.options))
            else:
                function = function_of(node.op)
                given = {
                    name: value_of(value) if isinstance(value, Number) else value
                    for name, value in node.attributes
                }
                made[node] = emit(function(*map(make, node.arguments), **given))
        return made[node]

    return make(node)


def function_of(op: str) -> Any:
    """Return the function of TVM that makes a call.

    Parameters
    ----------
    op
        The Relax op.

    Returns
    -------
    function
        Such as `relax.op.nn.relu` for "relax.nn.relu".
    """
    function: Any = relax.op
    for part in op.split(".")[1:]:
        function = getattr(function, part)
    return function
