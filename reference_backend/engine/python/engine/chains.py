# SPDX-License-Identifier: Apache-2.0
"""Functions that front ends spell in several ops, such as x * clip(x + 3, 0, 6) / 6.

A chain is an expression of the inputs and attributes of an entry in Python's syntax: operators, and
Relax ops by their last name, whose positional arguments are tensors. What is the same for all real
numbers need not be written twice: the order of factors and terms, which factors are multiplied
first, a division by a constant or a root and the multiplication by its inverse, a factor of a
product of matrices and of one of its operands, powers, ways to limit a value, a softmax of float32
between casts, and a swap of the last two dimensions behind another transposition. `[..., -1, -2]`
are the axes of such a swap in any rank, and an input in the place of an element type stands for its
own.

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
    ast.GtE: "greater_equal",
}
# The same with the sides swapped, and what is true where it is not.
_COMPARISONS = {
    "relax.greater": ("less", "less_equal"),
    "relax.greater_equal": ("less_equal", "less"),
}
_MIRRORED = {"relax.less": "greater", "relax.less_equal": "greater_equal"}
_COMMUTATIVE = ("relax.add", "relax.multiply", "relax.maximum", "relax.minimum")
SWAP = (..., -1, -2)
"""The axes of a swap of the last two dimensions; see `in_rank`."""
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
        attributes = {str(item.arg): _attribute(item.value, known) for item in tree.keywords}
        return _step(ast.unparse(tree.func), arguments, attributes)
    raise ValueError(f"'{ast.unparse(tree)}' is no part of a chain")


def _attribute(tree: ast.expr, known: Mapping[str, Node]) -> Any:
    """Return a plain value, an input, or a number that stands for an attribute of the entry."""
    if isinstance(tree, ast.Name):
        return known.get(tree.id, Number(1.0, tree.id))
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
        # Of which input does not matter: the type of the result tells.
        yield Step("relax.astype", (weights,), (("dtype", Input("")),))
    elif name == "negative":
        yield _call("multiply", first, Number(-1.0))
    elif name == "square":
        yield from _products((first, first))
    elif name == "sqrt":
        yield _call("power", first, Number(0.5))
    elif written.op in _COMPARISONS:
        yield _call(_COMPARISONS[written.op][0], last, first)
    elif name == "where":
        condition = _written(first)
        if isinstance(condition, Step) and condition.op in _COMPARISONS:
            one, other = condition.arguments
            opposite = _call(_COMPARISONS[condition.op][1], one, other)
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
    """Return what is multiplied; inverse roots are factors too."""
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
    """Generate the ways to multiply two factors or more."""
    first, *others = factors
    if all(factor == first for factor in others):
        if len(factors) == 2:
            yield _call("square", first)
        yield _call("power", first, Number(float(len(factors))))
    # The first factor is on one side; what is with it there tells the ways apart.
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
                # The type of the result tells whether an element type is that of an input.
                if isinstance(value, Input):
                    continue
                value = in_rank(value, call.args[0].ty.ndim)
                if name == "axes":
                    given[name] = tuple(transposed_axes(call)) or given[name]
                number = value if isinstance(value, Number) else None
                if name == "axis" and isinstance(value, int | tuple):
                    rank = call.args[0].ty.ndim
                    if _from_start(given[name], rank) != _from_start(value, rank):
                        return
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


def transposed_axes(value: Any) -> list[int]:
    """Return the axes of a transposition.

    Parameters
    ----------
    value
        A value.

    Returns
    -------
    axes
        Numbers from 0 on; none if the value is no transposition.
    """
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.permute_dims":
        return []
    rank = value.ty.ndim
    axes = value.attrs.axes
    return [int(axis) % rank for axis in (range(rank)[::-1] if axes is None else axes)]


def in_rank(value: Any, rank: int) -> Any:
    """Return axes in which `...` stands for those that stay, and other values as they are.

    Parameters
    ----------
    value
        An attribute of a call.
    rank
        How many dimensions its first argument has.

    Returns
    -------
    value
        Axes from 0 on in the place of such as `SWAP`.
    """
    if not isinstance(value, tuple) or ... not in value:
        return value
    moved = [axis for axis in value if axis is not ...]
    return (*range(rank - len(moved)), *(axis + rank for axis in moved))


def _from_start(axes: Any, rank: int) -> list[int]:
    axes = (axes,) if isinstance(axes, int) else axes
    return [axis % rank for axis in axes] if isinstance(axes, tuple) else []


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
    return _from_start(axes, rank) == [*range(rank - len(axes), rank)]


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
        assert not isinstance(node, Number)
        if node not in made:
            if isinstance(node, Either):
                made[node] = make(pick(node.options))
            else:
                function = function_of(node.op)
                tensors = {
                    item: make(item) for item in node.arguments if not isinstance(item, Number)
                }
                # A number is of the type of what it is calculated with.
                beside = [tensor_type(tensor.ty)[0] for tensor in tensors.values()]
                operands = [
                    relax.const(value_of(item), beside[-1])
                    if isinstance(item, Number)
                    else tensors[item]
                    for item in node.arguments
                ]
                given = attributes_in(node, value_of, operands[0], dtype)
                made[node] = emit(function(*operands, **given))
        return made[node]

    return make(node)


def attributes_in(
    step: Step, value_of: Callable[[Number], Any], data: Any, dtype: str
) -> dict[str, Any]:
    """Return the attributes of a call of a chain.

    Parameters
    ----------
    step
        The call in the chain.
    value_of
        Returns the value of a number.
    data
        The first argument.
    dtype
        The element type of the inputs.

    Returns
    -------
    attributes
        Plain values, by name.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Number):
            return value_of(value)
        return dtype if isinstance(value, Input) else in_rank(value, data.ty.ndim)

    return {name: plain(value) for name, value in step.attributes}


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
