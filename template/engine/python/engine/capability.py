# SPDX-License-Identifier: Apache-2.0
"""The words in which `capabilities.py` says what the hardware can do, and the check of a call.

A table entry is an `Op`. Everything that is refused is refused with a sentence: which op, which
input or attribute, what its value is, and what is supported.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir.expr import GenericConst

Constant = GenericConst
"""The class of constant tensors; its name has changed between versions of TVM."""

Values = Mapping[Any, Any]
"""What each variable is bound to, by variable; what is missing is unknown."""


@dataclass(frozen=True)
class Size:
    """A size that is known only at the call: `factor` times a symbol.

    Parameters
    ----------
    factor
        The known factor.
    name
        The name of the symbol.
    symbol
        What tells symbols of one name apart.
    """

    factor: int
    name: str
    symbol: int

    def __str__(self) -> str:
        """Return the size as one would write it."""
        return self.name if self.factor == 1 else f"{self.factor}*{self.name}"


class Unknown(Exception):
    """Something about a tensor that must be known is not; the message says what."""


# ---- Constraints: what one attribute may be -----------------------------------------------------


@dataclass(frozen=True, init=False)
class OneOf:
    """The attribute, or each element of it where it is a list, is one of these values.

    A list among the values stands for the whole attribute: `OneOf([2, 3])` is exactly the axes 2
    and 3. No value at all and a dtype that is not set are both written `""`.
    """

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        """Take the values that are supported."""
        object.__setattr__(self, "values", tuple(_plain(value) for value in values))

    def accepts(self, value: Any) -> bool:
        """Whether the attribute may have this value."""
        if value in self.values:
            return True
        return isinstance(value, tuple) and all(item in self.values for item in value)

    def __str__(self) -> str:
        """Return what is supported."""
        return _listed(self.values)


@dataclass(frozen=True)
class Range:
    """The attribute, or each element of it where it is a list, is a number in this range.

    Parameters
    ----------
    min, max
        The first and the last supported value; none: no limit.
    exclude
        Values inside of the range that are not supported.
    """

    min: float | None = None
    max: float | None = None
    exclude: tuple[float, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Whether the attribute may have this value."""
        if isinstance(value, tuple):
            return all(self.accepts(item) for item in value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (
            (self.min is None or value >= self.min)
            and (self.max is None or value <= self.max)
            and value not in self.exclude
        )

    def __str__(self) -> str:
        """Return what is supported."""
        if self.min is None:
            text = "any number" if self.max is None else f"at most {self.max}"
        else:
            text = f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"
        return text + (f" without {_listed(self.exclude)}" if self.exclude else "")


@dataclass(frozen=True)
class Anything:
    """The attribute may have any value."""

    def accepts(self, value: Any) -> bool:
        """Whether the attribute may have this value."""
        return True

    def __str__(self) -> str:
        """Return what is supported."""
        return "anything"


Constraint = OneOf | Range | Anything


# ---- Rules: how attributes, shapes and dtypes relate --------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A relation between two operands.

    An operand is `attr.<name>`, `attr.<name>[i]`, `<input>.shape[i]`, `<input>.rank` or
    `<input>.dtype`; anything else stands for itself.
    """

    left: Any
    right: Any

    relation = ""

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        raise NotImplementedError


class Equal(Rule):
    """Both operands are the same."""

    relation = "equal"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left == right)


class NotEqual(Rule):
    """The operands differ."""

    relation = "differ from"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left != right)


class AtLeast(Rule):
    """The first operand is not smaller than the second."""

    relation = "be at least"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left >= right)


class AtMost(Rule):
    """The first operand is not larger than the second."""

    relation = "be at most"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return bool(left <= right)


class Among(Rule):
    """The first operand is one of the values in the second."""

    relation = "be one of"

    def holds(self, left: Any, right: Any) -> bool:
        """Whether the values of the two operands are as they must be."""
        return left in right


# ---- Tolerances: how far a result may be from the exact one -------------------------------------


@dataclass(frozen=True)
class Exact:
    """The result has the exact value. Integers and booleans always do, if not in buckets."""


@dataclass(frozen=True)
class Elementwise:
    """Each element of the result is about as good as its type can be.

    What is allowed adds up.

    Parameters
    ----------
    ulps
        Units in the last place of the result.
    rtol, atol
        The relative and the absolute part of what is allowed beside these.
    """

    ulps: float = 2.0
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Accumulated:
    """Each element is a sum, whose error grows with the square root of the number of elements.

    Parameters
    ----------
    count
        How many elements are summed: an expression as in `Op.operations`.
    factor
        How many times the expected error is allowed.
    accumulator
        The element type in which the sum is kept; the result is rounded once more. "output" is the
        type of the result.
    """

    count: str
    factor: float = 4.0
    accumulator: str = "float32"


@dataclass(frozen=True)
class Buckets:
    """Each element, of a quantised type, is at most some steps off.

    Parameters
    ----------
    steps
        How many.
    """

    steps: int = 1


Tolerance = Exact | Elementwise | Accumulated | Buckets


# ---- A table entry ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A tensor argument.

    Parameters
    ----------
    name
        The name by which rules and reasons call it.
    dtypes
        The supported element types; none: any.
    like
        The input whose element type this one must have.
    ranks
        The supported numbers of dimensions; none: any.
    constant
        Whether it must be a constant inside of the program.
    is_tuple
        Whether the argument is a tuple of such tensors.
    """

    name: str
    dtypes: tuple[str, ...] = ()
    like: str | None = None
    ranks: tuple[int, ...] = ()
    constant: bool = False
    is_tuple: bool = False


@dataclass(frozen=True)
class Fuses:
    """What the hardware computes together with an op, behind it, in this order.

    Parameters
    ----------
    scale
        Whether the output may be multiplied or divided by a constant number.
    bias
        The axis of the output along which a per-channel constant may be added.
    residual
        Whether another tensor of the output's shape may be added.
    activations
        Names of the entries that may come last; none: all entries that are an activation.
    """

    scale: bool = False
    bias: int | None = None
    residual: bool = False
    activations: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Op:
    """An op that the hardware can run, and when.

    Parameters
    ----------
    name
        The name of the entry; composites are called after it.
    relax
        The Relax op. Several entries may share one; a call then needs to suit one of them. None: it
        is made of `chains` alone.
    summary
        What it is, in one line.
    engine
        What runs it: matrix, vector, pool or memory.
    inputs
        The tensor arguments, in order.
    attributes
        What each attribute and each other argument may be. One that is not listed is refused.
    rules
        Relations that must hold.
    operations
        How much arithmetic a call is: an expression over the shapes of the inputs, by name, of
        the result, `out`, and the attributes, with `size` for the number of elements. It decides
        which regions are the largest.
    output_dtypes
        The supported element types of the result; none: that of the first input.
    chains
        The ways in which front ends spell it in several ops; see `chains.py`.
    activation
        Whether it may be fused behind the ops that fuse something: it is element-wise.
    fuses
        What may be fused behind it.
    absorbs_transpose
        Inputs that may come from a swap of the last two dimensions, which then costs nothing.
    tolerance
        How exact the results are; the conformance kit holds them to it.
    """

    name: str
    relax: str = ""
    summary: str = ""
    engine: str = ""
    inputs: tuple[Input, ...] = ()
    attributes: Mapping[str, Constraint] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    operations: str = "size(out)"
    output_dtypes: tuple[str, ...] = ()
    chains: tuple[str | tuple[str, ...], ...] = ()
    activation: bool = False
    fuses: Fuses | None = None
    absorbs_transpose: tuple[int, ...] = ()
    tolerance: Tolerance = Exact()

    def __post_init__(self) -> None:
        """Refuse an entry that cannot be meant."""
        inputs = [item.name for item in self.inputs]
        for item in self.inputs:
            if item.like is not None and item.like not in inputs:
                raise ValueError(f"{self.name}: '{item.name}' is like '{item.like}', no input")
        for rule in self.rules:
            for operand in (rule.left, rule.right):
                reference = _reference(operand)
                if reference is None:
                    continue
                owner, what, _ = reference
                if (what not in self.attributes) if owner == "attr" else (owner not in inputs):
                    raise ValueError(f"{self.name}: the rule on '{operand}' refers to nothing")
        for index in self.absorbs_transpose:
            if index not in range(len(inputs)):
                raise ValueError(f"{self.name}: absorbs_transpose names input {index}, no input")
        formulas = {"operations": self.operations}
        if isinstance(self.tolerance, Accumulated):
            formulas["tolerance"] = self.tolerance.count
        for what, formula in formulas.items():
            try:
                unknown = _formula(formula)[1] - {*inputs, *self.attributes, "out"}
            except ValueError as error:
                raise ValueError(f"{self.name}: {what}: {error}") from None
            for name in sorted(unknown):
                raise ValueError(f"{self.name}: {what} has '{name}', no input and no attribute")


Decline = Callable[[Op, Any], str | None]


class Table:
    """All entries, and the check of a call against them.

    Parameters
    ----------
    ops
        The entries.
    declined_by_sdk
        Asked about each call that suits an entry; see `capabilities.py`.
    """

    def __init__(self, ops: Iterable[Op], declined_by_sdk: Decline | None = None) -> None:
        self.ops = tuple(ops)
        self._declined_by_sdk = declined_by_sdk
        self._by_name: dict[str, Op] = {}
        self._by_relax: dict[str, list[Op]] = {}
        for op in self.ops:
            if op.name in self._by_name:
                raise ValueError(f"The table has two entries named '{op.name}'.")
            self._by_name[op.name] = op
            if op.relax:
                self._by_relax.setdefault(op.relax, []).append(op)

    def get(self, name: str) -> Op | None:
        """Return the entry of this name."""
        return self._by_name.get(name)

    def entries_of(self, relax_op: str) -> list[Op]:
        """Return the entries for a Relax op."""
        return self._by_relax.get(relax_op, [])

    def activations_of(self, op: Op) -> list[Op]:
        """Return the entries that may be fused behind an op."""
        if op.fuses is None:
            return []
        named = op.fuses.activations
        return [
            item for item in self.ops if item.activation and (named is None or item.name in named)
        ]

    def refusal(
        self,
        call: Any,
        values: Values | None = None,
        *,
        bind_constants: bool = True,
        op: Op | None = None,
    ) -> str | None:
        """Say why the hardware cannot run a call of a Relax op.

        Parameters
        ----------
        call
            The call.
        values
            What variables are bound to.
        bind_constants
            Whether constants become part of the program.
        op
            The only entry to check; none: any entry for the Relax op.

        Returns
        -------
        reason
            A sentence, or none where the hardware can run it.
        """
        name = call.op.name
        entries = self.entries_of(name) if op is None else [op]
        if not entries:
            return f"{name} is not in the table of this backend"
        refusals = []
        for entry in entries:
            known = _arguments(call, values or {})
            stage, reason = _check(entry, *known, call.ty, values or {}, bind_constants)
            if reason is None and self._declined_by_sdk is not None:
                stage, reason = 4, self._declined_by_sdk(entry, call)
                if reason is not None:
                    reason = f"{entry.name}: {reason}"
            if reason is None:
                return None
            refusals.append((stage, reason))
        # The entries that came furthest are those that were meant.
        furthest = max(stage for stage, _ in refusals)
        return "; ".join(dict.fromkeys(reason for stage, reason in refusals if stage == furthest))

    def refusal_of_chain(
        self,
        op: Op,
        inputs: Mapping[str, Any],
        attributes: Mapping[str, Any],
        call: Any,
        values: Values | None = None,
        *,
        bind_constants: bool = True,
    ) -> str | None:
        """Say why the hardware cannot run a chain of calls as one op.

        Parameters
        ----------
        op
            The entry.
        inputs, attributes
            What the chain is given, by name.
        call
            The last call of the chain.
        values
            What variables are bound to.
        bind_constants
            Whether constants become part of the program.

        Returns
        -------
        reason
            A sentence, or none where the hardware can run it.
        """
        tensors = [inputs[item.name] for item in op.inputs]
        known = {name: _plain(value) for name, value in attributes.items()}
        reason = _check(op, tensors, known, call.ty, values or {}, bind_constants)[1]
        if reason is None and self._declined_by_sdk is not None:
            declined = self._declined_by_sdk(op, call)
            reason = None if declined is None else f"{op.name}: {declined}"
        return reason

    def count_operations(self, call: Any, values: Values, bounds: Mapping[str, int]) -> int:
        """Return how much arithmetic a call that suits the table is.

        Parameters
        ----------
        call
            The call.
        values
            What variables are bound to.
        bounds
            What to take for symbols, by name.

        Returns
        -------
        operations
            Their number, as `Op.operations` has it.
        """
        entries = self.entries_of(call.op.name)
        suiting = (op for op in entries if self.refusal(call, values, op=op) is None)
        entry = next(suiting, entries[0] if entries else None)
        if entry is None:
            return 0

        def shape_of(tensor: Any) -> tuple[int, ...]:
            sizes = tensor_type(tensor.ty)[1]
            return tuple(
                size.factor * bounds[size.name] if isinstance(size, Size) else size
                for size in sizes
            )

        tensors, known = _arguments(call, values)
        for item, tensor in zip(entry.inputs, tensors, strict=True):
            fields = tensor.fields if isinstance(tensor, relax.Tuple) else None
            shapes = tuple(map(shape_of, fields)) if fields is not None else shape_of(tensor)
            known[item.name] = shapes
        result = getattr(call.ty, "fields", [call.ty])[0]
        known["out"] = shape_of(relax.Var("out", result))
        return count(entry.operations, known)


def _check(
    entry: Op,
    tensors: list[Any],
    attributes: Mapping[str, Any],
    ty: Any,
    values: Values,
    bind_constants: bool,
) -> tuple[int, str | None]:
    """Check what a call is given against one entry; the first result grows with what was right."""

    def no(stage: int, text: str) -> tuple[int, str]:
        return stage, f"{entry.name}: {text}"

    if len(tensors) != len(entry.inputs):
        return no(0, f"has {len(tensors)} tensor arguments; supported: {len(entry.inputs)}")

    shapes: dict[str, tuple[Any, ...]] = {}
    dtypes: dict[str, str] = {}
    for item, argument in zip(entry.inputs, tensors, strict=True):
        fields = [argument]
        if isinstance(argument, relax.Tuple):
            if not item.is_tuple:
                return no(0, f"'{item.name}' is a tuple; supported: a tensor")
            fields = list(argument.fields)
        elif item.is_tuple:
            return no(0, f"'{item.name}' is not a tuple whose tensors are known")
        for tensor in fields:
            try:
                dtype, shape = tensor_type(tensor.ty)
            except Unknown as unknown:
                return no(0, f"{unknown} '{item.name}'")
            supported = (dtypes[item.like],) if item.like else item.dtypes
            if supported and dtype not in supported:
                suffix = f", as '{item.like}'" if item.like else ""
                return no(0, f"'{item.name}' is {dtype}; supported: {', '.join(supported)}{suffix}")
            if item.ranks and len(shape) not in item.ranks:
                return no(
                    0, f"'{item.name}' has rank {len(shape)}; supported: {_listed(item.ranks)}"
                )
            if item.constant and not isinstance(resolve(tensor, values), Constant):
                return no(0, f"'{item.name}' is not a constant; it must be one")
            if item.constant and not bind_constants:
                return no(0, f"'{item.name}' must be a constant; bind_constants is off")
            if dtypes.setdefault(item.name, dtype) != dtype:
                return no(0, f"the tensors of '{item.name}' differ in dtype")
            shapes[item.name] = shape

    rank = len(shapes[entry.inputs[0].name]) if entry.inputs else 0
    for name, value in attributes.items():
        constraint = entry.attributes.get(name)
        if constraint is None:
            return no(1, f"the attribute '{name}' is not in the table; its value is {_text(value)}")
        if not _accepts(constraint, value, rank if name in ("axis", "axes") else None):
            return no(1, f"{name} is {_text(value)}; supported: {constraint}")

    for rule in entry.rules:
        try:
            left, right = (
                _operand(side, attributes, shapes, dtypes) for side in (rule.left, rule.right)
            )
            fixed = not isinstance(left, Size) and not isinstance(right, Size)
            same = isinstance(rule, Equal) and left == right
            if not fixed and not same:
                symbol = left if isinstance(left, Size) else right
                return no(2, f"{_relation(rule)}, but the symbol in {symbol} has no fixed value")
            if not rule.holds(left, right):
                values_text = f"{_text(left)} and {_text(right)}"
                return no(2, f"{_relation(rule)}; they are {values_text}")
        except (IndexError, TypeError):
            return no(2, f"{_relation(rule)}, which cannot be told for this call")

    try:
        outputs = [tensor_type(ty) for ty in (getattr(ty, "fields", None) or [ty])]
    except Unknown as unknown:
        return no(3, f"{unknown} the result")
    for index, (dtype, _) in enumerate(outputs):
        supported = entry.output_dtypes or tuple(dtypes[item.name] for item in entry.inputs[:1])
        if index == 0 and supported and dtype not in supported:
            return no(3, f"the result is {dtype}; supported: {', '.join(supported)}")
    return 4, None


# ---- Reading the IR -----------------------------------------------------------------------------


def resolve(expr: Any, values: Values) -> Any:
    """Follow variables to the constant, tuple or shape that they are bound to.

    Parameters
    ----------
    expr
        An expression.
    values
        What variables are bound to.

    Returns
    -------
    expr
        The expression; a variable that is computed or that comes from outside stays one.
    """
    while isinstance(expr, relax.Var):
        value = values.get(expr)
        if isinstance(value, (Constant, relax.Tuple, relax.ShapeExpr, relax.Var)):
            expr = value
        else:
            break
    return expr


def tensor_type(ty: Any) -> tuple[str, tuple[int | Size, ...]]:
    """Read the type of a tensor.

    Parameters
    ----------
    ty
        A Relax type.

    Returns
    -------
    dtype, shape
        Its element type, and a number or a `Size` for each dimension.

    Raises
    ------
    Unknown
        The type leaves something open that must be known.
    """
    if not isinstance(ty, relax.TensorType):
        raise Unknown("no tensor:")
    if ty.dtype is None:
        raise Unknown("unknown dtype of")
    if ty.ndim < 0:
        raise Unknown("unknown rank of")
    if not isinstance(ty.shape, relax.ShapeExpr):
        raise Unknown("unknown shape of")
    if ty.vdevice is not None:
        raise Unknown("a device was chosen for")
    return str(ty.dtype), tuple(_size(dim) for dim in ty.shape.values)


def _size(dim: Any) -> int | Size:
    if isinstance(dim, tvm.tirx.IntImm):
        if dim.value <= 0:
            raise Unknown("no elements in" if dim.value == 0 else "a negative size in")
        return int(dim.value)
    for attempt in (dim, tvm.sym.Analyzer().simplify(dim)):
        if isinstance(attempt, tvm.tirx.IntImm):
            return _size(attempt)
        if isinstance(attempt, tvm.tirx.Var):
            return Size(1, attempt.name, hash(attempt))
        if isinstance(attempt, tvm.tirx.Mul):
            for factor, symbol in ((attempt.a, attempt.b), (attempt.b, attempt.a)):
                if isinstance(factor, tvm.tirx.IntImm) and isinstance(symbol, tvm.tirx.Var):
                    return Size(int(factor.value), symbol.name, hash(symbol))
    raise Unknown(f"a size that is no multiple of one symbol ({dim}) in")


_ARGUMENTS = {"relax.strided_slice": ("x", "axes", "begin", "end", "strides")}
"""The names of arguments that Relax itself does not name; `ir_adapter.cc` has them too."""


def _is_numbers(ty: Any) -> bool:
    """Whether a type is a tuple of numbers."""
    return all(isinstance(item, tvm.ir.PrimType) for item in ty.fields)


@cache
def _argument_names(op: Any) -> tuple[str, ...]:
    return _ARGUMENTS.get(op.name) or tuple(str(argument.name) for argument in op.arguments)


@cache
def _attribute_names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in kind.__tvm_ffi_type_info__.fields)


def _arguments(call: Any, values: Values) -> tuple[list[Any], dict[str, Any]]:
    """Split what a call is given into tensors and everything else, by name."""
    tensors: list[Any] = []
    attributes: dict[str, Any] = {}
    names = _argument_names(call.op)
    for index, argument in enumerate(call.args):
        known = resolve(argument, values)
        if isinstance(known.ty, relax.TensorType):
            tensors.append(argument)
        elif isinstance(known.ty, relax.TupleType) and not _is_numbers(known.ty):
            tensors.append(known)
        else:
            name = names[index] if index < len(names) else f"argument {index}"
            attributes[name] = _plain(known)
    if call.attrs is not None:
        kind: Any = type(call.attrs)
        for name in _attribute_names(kind):
            attributes[name] = _plain(getattr(call.attrs, name))
    return tensors, attributes


def attributes_of(call: Any, values: Values) -> dict[str, Any]:
    """Return everything that a call is given but tensors.

    Parameters
    ----------
    call
        The call.
    values
        What variables are bound to.

    Returns
    -------
    attributes
        Plain values, by name.
    """
    return _arguments(call, values)[1]


def _plain(value: Any) -> Any:
    """Return an attribute's value as plain Python data."""
    if value is None:
        return ""
    if isinstance(value, str):
        return "" if value == "void" else str(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, relax.ShapeExpr):
        value = value.values
    if isinstance(value, relax.Tuple):
        value = value.fields
    if isinstance(value, (list, tuple, tvm_ffi.Array)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return bool(value.value) if str(value.ty) == "bool" else value.value
    if isinstance(value, tvm.ir.StringImm):
        return str(value.value)
    if isinstance(getattr(value, "ty", None), tvm.ir.PrimType):
        try:
            return _size(value)
        except Unknown:
            pass
    return str(value)


def _accepts(constraint: Constraint, value: Any, rank: int | None) -> bool:
    """Whether the value suits; axes count from either end."""
    if constraint.accepts(value):
        return True
    if rank is None:
        return False
    wrapped = _wrap(value, rank)
    if isinstance(constraint, OneOf):
        constraint = OneOf(*(_wrap(item, rank) for item in constraint.values))
    return constraint.accepts(wrapped)


def _wrap(axis: Any, rank: int) -> Any:
    if isinstance(axis, tuple):
        return tuple(_wrap(item, rank) for item in axis)
    return axis + rank if isinstance(axis, int) and axis < 0 else axis


# ---- Numbers of operations ----------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[..., Any]] = {"size": math.prod, "len": len, "max": max, "min": min}
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.USub),
    *(ast.Constant, ast.Name, ast.Load, ast.Subscript, ast.Slice, ast.Call),
)


def count(formula: str, names: Mapping[str, Any]) -> int:
    """Compute a number of operations, or of elements.

    Parameters
    ----------
    formula
        An expression as in `Op.operations`.
    names
        The shapes and the attributes in it.

    Returns
    -------
    number
        Its value.
    """
    # An attribute may be called as a function is.
    return int(eval(_formula(formula)[0], {"__builtins__": {}}, {**names, **_FUNCTIONS}))


@cache
def _formula(text: str) -> tuple[Any, frozenset[str]]:
    """Compile an expression that does arithmetic and nothing else, and return its names too."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise ValueError(f"'{text}' is no expression") from None
    names = set()
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, _ARITHMETIC) or (
            called is not None and getattr(called, "id", None) not in _FUNCTIONS
        ):
            part = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise ValueError(f"'{part}' is no arithmetic of {', '.join(_FUNCTIONS)}")
        if isinstance(node, ast.Name):
            names.add(node.id)
    return compile(tree, "operations", "eval"), frozenset(names - set(_FUNCTIONS))


# ---- Operands of rules --------------------------------------------------------------------------

_ATTRIBUTE = re.compile(r"(attr)\.(\w+)(?:\[(-?\d+)\])?\Z")
_PROPERTY = re.compile(r"(\w+)\.(?:(shape)\[(-?\d+)\]|(rank|dtype))\Z")


def _reference(operand: Any) -> tuple[str, str, int | None] | None:
    """Split an operand that refers to something into owner, what, and index."""
    if not isinstance(operand, str):
        return None
    if match := _ATTRIBUTE.match(operand):
        owner, what, index = match.groups()
        return owner, what, None if index is None else int(index)
    if match := _PROPERTY.match(operand):
        owner, shape, index, other = match.groups()
        return owner, shape or other, None if index is None else int(index)
    return None


def _operand(
    operand: Any,
    attributes: Mapping[str, Any],
    shapes: Mapping[str, tuple[Any, ...]],
    dtypes: Mapping[str, str],
) -> Any:
    reference = _reference(operand)
    if reference is None:
        return _plain(operand)
    owner, what, index = reference
    if owner == "attr":
        value = attributes.get(what, "")
        return value if index is None else value[index]
    if what == "shape":
        return shapes[owner][index if index is not None else 0]
    return len(shapes[owner]) if what == "rank" else dtypes[owner]


def _relation(rule: Rule) -> str:
    """Return the rule as part of a sentence."""
    left, right = (
        side.removeprefix("attr.") if isinstance(side, str) else _text(_plain(side))
        for side in (rule.left, rule.right)
    )
    return f"{left} must {rule.relation} {right}"


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(_text(value) for value in values)


def _text(value: Any) -> str:
    """Return a value as a sentence has it."""
    if value == "":
        return "not set"
    if isinstance(value, tuple):
        return "[" + _listed(value) + "]"
    return str(value)
