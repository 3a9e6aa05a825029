# SPDX-License-Identifier: Apache-2.0
"""Loops of a kernel as plain data, which the last passes of the compiler read and rewrite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from ..kinds import ELEMENT_BYTES
from ..operations import REALS


class Unsupported(Exception):
    """What is written here has no instructions; the message says which statement."""


class Undecided(Unsupported):
    """A condition depends on a loop around a nest: the loop has to be split.

    `only_first`: it is another one in the first iteration alone.
    """

    def __init__(self, var: Var, condition: str, *, only_first: bool = False) -> None:
        super().__init__(f"the condition {condition} depends on the loop of {var.name}")
        self.var = var
        self.only_first = only_first


@dataclass(eq=False)
class Buffer:
    """A flat tensor of a kernel.

    `scope`: the memory that it is in. `parameter`: which of the kernel's tensors it is, if it is
    one. `offset`: its first byte in its memory, or in its tensor, once it is known.
    """

    name: str
    type: str
    count: int
    scope: str
    parameter: int | None = None
    offset: int = 0

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return self.count * ELEMENT_BYTES[self.type]


# ---- Expressions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Const:
    """A number."""

    value: int | float
    type: str


@dataclass(frozen=True, eq=False)
class Var:
    """A variable of a loop or a binding."""

    name: str
    type: str = "i64"


@dataclass(frozen=True)
class Load:
    """An element of a buffer."""

    buffer: Buffer
    index: Expr

    @property
    def type(self) -> str:
        """The type of the element."""
        return self.buffer.type


@dataclass(frozen=True)
class Op:
    """An operation of two operands, one of `oracle.OPERATIONS`; `type` is that of the result."""

    op: str
    a: Expr
    b: Expr
    type: str


@dataclass(frozen=True)
class Fun:
    """A function of a real number, one of `oracle.FUNCTIONS`."""

    fun: str
    a: Expr
    type: str


@dataclass(frozen=True)
class Cast:
    """A number as another type."""

    a: Expr
    type: str


@dataclass(frozen=True)
class Pick:
    """`a` where the condition is not 0, else `b`; what is not picked is not evaluated."""

    when: Expr
    a: Expr
    b: Expr
    type: str


@dataclass(frozen=True)
class Rescale:
    """What the instruction `rescale` computes: `a` times `multiplier` over a power of 2."""

    a: Expr
    multiplier: Expr
    shift: Expr
    zero: int
    least: int
    most: int
    type: str


@dataclass(frozen=True)
class Quantized:
    """What the instruction `vecq` computes: an operation on bytes that stand for real numbers.

    `zeros`, `scales`: the zero points and scales of `a`, `b` and the result.
    """

    op: str
    a: Expr
    b: Expr
    zeros: tuple[int, int, int]
    scales: tuple[float, float, float]
    least: int
    most: int
    type: str

    @property
    def fields(self) -> dict[str, int | float | str]:
        """Those of the instruction."""
        found: dict[str, int | float | str] = {"op": self.op, "least": self.least}
        found |= {"most": self.most, "source_a": self.a.type, "source_b": self.b.type}
        for name, zero, scale in zip(("_a", "_b", ""), self.zeros, self.scales, strict=True):
            found |= {f"zero{name}": zero, f"scale{name}": scale}
        return found


@dataclass(frozen=True)
class Lookup:
    """What the instruction `lut` looks up; `table` has the results for all bytes."""

    a: Expr
    table: bytes
    type: str


Expr = Const | Var | Load | Op | Fun | Cast | Pick | Rescale | Quantized | Lookup


def children(value: Expr) -> tuple[Expr, ...]:
    """Return the operands of an expression."""
    match value:
        case Load(index=index):
            return (index,)
        case Op(a=a, b=b) | Quantized(a=a, b=b):
            return (a, b)
        case Fun(a=a) | Cast(a=a) | Lookup(a=a):
            return (a,)
        case Pick(when=when, a=a, b=b):
            return (when, a, b)
        case Rescale(a=a, multiplier=multiplier, shift=shift):
            return (a, multiplier, shift)
    return ()


def rebuilt(value: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return an expression with changed operands."""
    match value:
        case Load():
            return replace(value, index=change(value.index))
        case Op() | Quantized():
            return replace(value, a=change(value.a), b=change(value.b))
        case Fun() | Cast() | Lookup():
            return replace(value, a=change(value.a))
        case Pick():
            return replace(value, when=change(value.when), a=change(value.a), b=change(value.b))
        case Rescale(a=a, multiplier=multiplier, shift=shift):
            a, multiplier, shift = map(change, (a, multiplier, shift))
            return replace(value, a=a, multiplier=multiplier, shift=shift)
    return value


def substituted(value: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return an expression with variables replaced."""
    if isinstance(value, Var):
        return values.get(value, value)
    return rebuilt(value, lambda part: substituted(part, values))


def loads_of(value: Expr) -> Iterator[Load]:
    """Iterate over the elements that an expression reads."""
    if isinstance(value, Load):
        yield value
    for part in children(value):
        yield from loads_of(part)


# ---- Statements ---------------------------------------------------------------------------------


@dataclass
class For:
    """A loop from 0."""

    var: Var
    extent: Expr
    body: list[Stmt]
    marks: dict[str, object] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """How often it is executed, if that is known."""
        return int(self.extent.value) if isinstance(self.extent, Const) else None


@dataclass
class While:
    """A loop with a condition."""

    when: Expr
    body: list[Stmt]


@dataclass
class If:
    """Statements with a condition."""

    when: Expr
    body: list[Stmt]
    other: list[Stmt]


@dataclass
class Let:
    """A variable for the rest of its list of statements."""

    var: Var
    value: Expr


@dataclass
class Store:
    """An assignment to an element."""

    buffer: Buffer
    index: Expr
    value: Expr


Stmt = For | While | If | Let | Store


def replaced(statements: Sequence[Stmt], values: Mapping[Var, Expr]) -> list[Stmt]:
    """Return statements with variables replaced."""
    found: list[Stmt] = []
    for statement in statements:
        match statement:
            case For():
                fresh = Var(statement.var.name, statement.var.type)
                inner = {**values, statement.var: fresh}
                extent = substituted(statement.extent, values)
                found.append(For(fresh, extent, replaced(statement.body, inner), statement.marks))
            case While():
                when = substituted(statement.when, values)
                found.append(While(when, replaced(statement.body, values)))
            case If():
                when = substituted(statement.when, values)
                parts = (replaced(part, values) for part in (statement.body, statement.other))
                found.append(If(when, *parts))
            case Let():
                found.append(Let(statement.var, substituted(statement.value, values)))
            case Store():
                index, value = (
                    substituted(part, values) for part in (statement.index, statement.value)
                )
                found.append(Store(statement.buffer, index, value))
    return found


@dataclass
class Loops:
    """A kernel: its statements, and the buffers that it has apart from its parameters."""

    name: str
    parameters: list[Buffer]
    buffers: list[Buffer]
    body: list[Stmt]


# ---- Affine indices -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    """`constant` and a multiple of each variable in `terms`."""

    constant: int = 0
    terms: Mapping[Var, int] = field(default_factory=dict)

    def of(self, var: Var) -> int:
        """Return by how much it grows with a variable."""
        return self.terms.get(var, 0)

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        """Add another one, times a factor."""
        terms = dict(self.terms)
        for var, coefficient in other.terms.items():
            terms[var] = terms.get(var, 0) + factor * coefficient
        return Affine(
            self.constant + factor * other.constant,
            {var: coefficient for var, coefficient in terms.items() if coefficient},
        )

    def times(self, factor: int) -> Affine:
        """Multiply it."""
        return Affine().plus(self, factor)

    def without(self, variables: Sequence[Var]) -> Affine:
        """Return it where some variables are 0."""
        return Affine(
            self.constant, {var: c for var, c in self.terms.items() if var not in variables}
        )

    def range(self, extents: Mapping[Var, int]) -> tuple[int, int]:
        """Return its least and its largest value."""
        ends = [c * (extents[var] - 1) for var, c in self.terms.items()]
        return (
            self.constant + sum(min(0, end) for end in ends),
            self.constant + sum(max(0, end) for end in ends),
        )


def affine(value: Expr) -> Affine | None:
    """Read an integer expression; None if it is not affine."""
    match value:
        case Const(value=number) if isinstance(number, int):
            return Affine(number)
        case Var():
            return Affine(0, {value: 1})
        case Cast(a=a, type=kind) if kind in ("i32", "i64") and a.type in ("i32", "i64"):
            return affine(a)
        case Op(op="add" | "sub" as op, a=a, b=b):
            one, other = affine(a), affine(b)
            if one is None or other is None:
                return None
            return one.plus(other, 1 if op == "add" else -1)
        case Op(op="mul", a=a, b=b):
            one, other = affine(a), affine(b)
            if one is None or other is None or (one.terms and other.terms):
                return None
            return one.times(other.constant) if one.terms else other.times(one.constant)
    return None


def expression_of(value: Affine) -> Expr:
    """Return an affine index as an expression."""
    parts: list[Expr] = [
        var if coefficient == 1 else Op("mul", var, Const(coefficient, "i64"), "i64")
        for var, coefficient in value.terms.items()
    ]
    if value.constant or not parts:
        parts.append(Const(value.constant, "i64"))
    return reduce(lambda one, other: Op("add", one, other, "i64"), parts)


def divisors(count: int) -> list[int]:
    """Return the divisors of a number, the largest first."""
    found = {d for i in range(1, math.isqrt(count) + 1) if count % i == 0 for d in (i, count // i)}
    return sorted(found, reverse=True)


# ---- As text ------------------------------------------------------------------------------------

_SIGNS = {
    **{"lt": ("<", 1), "le": ("<=", 1), "add": ("+", 2), "sub": ("-", 2)},
    **{"mul": ("*", 3), "div": ("//", 3), "mod": ("%", 3)},
}
"""Of operations that are written between their operands: how, and how strongly they bind."""


def text_of(value: Expr, around: int = 0) -> str:
    """Return an expression in readable form; `around` is how strongly what is around it binds."""
    match value:
        case Const(value=number):
            return f"{number:g}" if isinstance(number, float) else str(number)
        case Var(name=name):
            return name
        case Load(buffer=buffer, index=index):
            return f"{buffer.name}[{text_of(index)}]"
        case Op(op=op, a=a, b=b, type=kind) if op in _SIGNS:
            sign, level = _SIGNS[op]
            sign = "/" if op == "div" and kind in REALS else sign
            text = f"{text_of(a, level)} {sign} {text_of(b, level + 1)}"
            return f"({text})" if level < around else text
        case Op(op=op, a=a, b=b):
            return f"{op}({text_of(a)}, {text_of(b)})"
        case Fun(fun=fun, a=a):
            return f"{fun}({text_of(a)})"
        case Cast(a=a, type=kind):
            return f"{kind}({text_of(a)})"
        case Pick(when=when, a=a, b=b):
            return f"({text_of(a)} if {text_of(when)} else {text_of(b)})"
        case Rescale():
            return f"rescale({', '.join(map(text_of, children(value)))})"
        case Quantized(op=op, a=a, b=b):
            return f"quantized_{op}({text_of(a)}, {text_of(b)})"
        case Lookup(a=a):
            return f"lookup({text_of(a)})"


def in_a_line(statements: Sequence[Stmt]) -> str:
    """Return statements in readable form, on one line."""
    return "; ".join(line.strip() for line in lines_of(statements)).replace(":; ", ": ")


def lines_of(statements: Sequence[Stmt], indent: str = "") -> Iterator[str]:
    """Iterate over the lines of statements in readable form."""
    more = indent + "  "
    for statement in statements:
        match statement:
            case For(var=var, extent=extent, body=body):
                yield f"{indent}for {var.name} in {text_of(extent)}:"
                yield from lines_of(body, more)
            case While(when=when, body=body):
                yield f"{indent}while {text_of(when)}:"
                yield from lines_of(body, more)
            case If(when=when, body=body, other=other):
                yield f"{indent}if {text_of(when)}:"
                yield from lines_of(body, more)
                if other:
                    yield f"{indent}else:"
                    yield from lines_of(other, more)
            case Let(var=var, value=value):
                yield f"{indent}{var.name} = {text_of(value)}"
            case Store(buffer=buffer, index=index, value=value):
                yield f"{indent}{buffer.name}[{text_of(index)}] = {text_of(value)}"
