# SPDX-License-Identifier: Apache-2.0
"""Reads TVM's loops: the only module that names their nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from .loops import (
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Fun,
    If,
    Let,
    Load,
    Loops,
    Op,
    Pick,
    Stmt,
    Store,
    Unsupported,
    Var,
    While,
)

TYPES = {
    **{"float32": "f32", "float16": "f16", "float64": "f64", "bool": "bool"},
    **{"int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64"},
}
"""What a table calls TVM's element types."""

_WRAPPED = {"uint64": "i64", "uint32": "i32"}
"""Types in which loops only add, subtract and multiply so that the result wraps around."""

_BINARY = {
    **{"Add": "add", "Sub": "sub", "Mul": "mul", "FloorDiv": "div", "FloorMod": "mod"},
    **{"Min": "min", "Max": "max", "EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le"},
    **{"And": "and", "Or": "or", "LShift": "shl", "RShift": "shr"},
    **{"BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor"},
}
_SWAPPED = {"GT": "lt", "GE": "le"}
_CALLS = {"fabs": "abs", "nearbyint": "round"}
_BINARY_CALLS = {
    **{"pow": "pow", "atan2": "atan2", "fmod": "mod", "shift_left": "shl", "shift_right": "shr"},
    **{"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"},
}
_FUNCTIONS = (
    *("exp", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin"),
    *("cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "floor"),
    *("ceil", "trunc", "abs", "round"),
)


def _required() -> None:
    """Check what this module expects of TVM, when it is loaded."""
    prim: Any = getattr(tvm.ir, "prim", None)
    names = [
        *_BINARY,
        *_SWAPPED,
        "Div",
        "Mod",
        "Not",
        "Select",
        "Cast",
        "IntImm",
        "FloatImm",
        "Let",
    ]
    found = getattr(prim, "expr", None)
    missing = [f"tvm.ir.prim.expr.{name}" for name in names if not hasattr(found, name)]
    statements = ("SeqStmt", "For", "BufferStore", "IfThenElse", "AllocBuffer", "DeclBuffer")
    missing += [f"tvm.tirx.{name}" for name in statements if not hasattr(tirx.stmt, name)]
    if missing:
        raise ImportError(
            f"The compiler for instruction sets needs {', '.join(missing)} of TVM, which "
            f"{tvm.__version__} does not have."
        )


_required()


def type_of(node: Any) -> str:
    """Return the element type of an expression of TVM's."""
    dtype = str(node.ty)
    kind = TYPES.get(dtype, _WRAPPED.get(dtype))
    if kind is None or kind == "f64":
        raise Unsupported(f"there is no element type {dtype}: {node}")
    return kind


def read_kernel(function: tirx.PrimFunc, name: str, main: str) -> Loops:
    """Read a kernel after TVM's passes.

    Parameters
    ----------
    function
        The kernel; its buffers are flat.
    name
        What to call it.
    main
        The memory of buffers whose scope is "global".

    Returns
    -------
    loops
        The same as plain data.

    Raises
    ------
    Unsupported
        It has something that no instruction means; the message names it.
    """
    return _Reader(name, main).read(function)


class _Reader:
    def __init__(self, name: str, main: str) -> None:
        self.loops = Loops(name, [], [], [])
        self.main = main
        self.buffers: dict[Any, Buffer] = {}
        self.variables: dict[Any, Var] = {}
        self.starts: set[Any] = set()

    def read(self, function: tirx.PrimFunc) -> Loops:
        for index, parameter in enumerate(function.params):
            buffer = self._buffer(parameter, index)
            self.loops.parameters.append(buffer)
        self.loops.body = self.statements(function.body)
        return self.loops

    def _buffer(self, node: Any, parameter: int | None = None) -> Buffer:
        count = 1
        for size in node.shape:
            if type(size).__name__ != "IntImm":
                raise Unsupported(f"the buffer {node.name} has a size that is not known: {size}")
            count *= int(size)
        dtype = str(node.dtype)
        if dtype not in TYPES or dtype == "float64":
            raise Unsupported(f"the buffer {node.name} has elements of {dtype}")
        scope = str(node.scope())
        memory = self.main if scope in ("", "global") else scope.removeprefix("global.")
        buffer = Buffer(str(node.name), TYPES[dtype], count, memory, parameter)
        if type(node.elem_offset).__name__ == "Var":
            # Tensors of kernels begin where their buffers do.
            self.starts.add(node.elem_offset)
        self.buffers[node] = buffer
        return buffer

    # ---- Statements ----

    def statements(self, node: Any) -> list[Stmt]:
        found: list[Stmt] = []
        self._add(node, found)
        return found

    def _add(self, node: Any, found: list[Stmt]) -> None:
        match type(node).__name__:
            case "SeqStmt":
                for part in node.seq:
                    self._add(part, found)
            case "For":
                var = self._variable(node.loop_var)
                extent = self.expr(node.extent)
                start = self.expr(node.min)
                if start != Const(0, start.type):
                    raise Unsupported(f"a loop does not begin at 0: {node.loop_var}")
                marks = {str(key): value for key, value in node.annotations.items()}
                found.append(For(var, extent, self.statements(node.body), marks))
            case "While":
                found.append(While(self.expr(node.condition), self.statements(node.body)))
            case "IfThenElse":
                other = [] if node.else_case is None else self.statements(node.else_case)
                found.append(If(self.expr(node.condition), self.statements(node.then_case), other))
            case "BufferStore":
                (index,) = node.indices
                buffer = self._known(node.buffer)
                found.append(Store(buffer, self.expr(index), self.expr(node.value)))
            case "AllocBuffer":
                self.loops.buffers.append(self._buffer(node.buffer))
            case "DeclBuffer":
                # Another shape of a buffer.
                source = node.data.source if hasattr(node.data, "source") else node.data
                self.buffers[node.buffer] = self._viewed(source)
            case "Bind":
                var = self._variable(node.var)
                found.append(Let(var, self.expr(node.value)))
            case "AttrStmt":
                self._add(node.body, found)
            case "Evaluate" if type(node.value).__name__ == "IntImm":
                pass
            case kind:
                text = " ".join(str(node).split())[:200]
                raise Unsupported(f"no instruction means a statement {kind}: {text}")

    def _viewed(self, node: Any) -> Buffer:
        for candidate in (node, *getattr(node, "args", ())):
            if candidate in self.buffers:
                return self.buffers[candidate]
        raise Unsupported(f"the buffer of {node} is not known")

    def _known(self, node: Any) -> Buffer:
        if node not in self.buffers:
            raise Unsupported(f"the buffer {node} is not known")
        return self.buffers[node]

    def _variable(self, node: Any) -> Var:
        return self.variables.setdefault(node, Var(str(node.name), type_of(node)))

    # ---- Expressions ----

    def expr(self, node: Any) -> Expr:
        kind = type(node).__name__
        read = _READERS.get(kind)
        if read is not None:
            return read(self, node)
        if kind in _BINARY:
            return Op(_BINARY[kind], self.expr(node.a), self.expr(node.b), type_of(node))
        if kind in _SWAPPED:
            return Op(_SWAPPED[kind], self.expr(node.b), self.expr(node.a), type_of(node))
        raise Unsupported(f"no instruction means {kind}: {node}")

    def _var(self, node: Any) -> Expr:
        if node in self.starts:
            return Const(0, type_of(node))
        if node not in self.variables:
            raise Unsupported(f"the size {node.name} is not known when the program is made")
        return self.variables[node]

    def _load(self, node: Any) -> Expr:
        (index,) = node.indices
        return Load(self._known(node.source), self.expr(index))

    def _integer(self, node: Any) -> Expr:
        return Const(int(node.value), type_of(node))

    def _real(self, node: Any) -> Expr:
        return Const(float(node.value), type_of(node))

    def _cast(self, node: Any) -> Expr:
        return Cast(self.expr(node.value), type_of(node))

    def _select(self, node: Any) -> Expr:
        parts = (node.condition, node.true_value, node.false_value)
        when, one, other = map(self.expr, parts)
        return Pick(when, one, other, type_of(node))

    def _not(self, node: Any) -> Expr:
        return Op("eq", self.expr(node.a), Const(0, "bool"), "bool")

    def _divide(self, node: Any) -> Expr:
        one, other, kind = self.expr(node.a), self.expr(node.b), type_of(node)
        if kind not in ("f32", "f16"):
            # Rounded to zero: the quotient of absolute values, with a sign.
            zero = Const(0, kind)
            sizes = [
                Pick(Op("lt", part, zero, "bool"), Op("sub", zero, part, kind), part, kind)
                for part in (one, other)
            ]
            quotient = Op("div", sizes[0], sizes[1], kind)
            signs = [Op("lt", part, zero, "bool") for part in (one, other)]
            is_negative = Op("ne", signs[0], signs[1], "bool")
            return Pick(is_negative, Op("sub", zero, quotient, kind), quotient, kind)
        return Op("div", one, other, kind)

    def _modulo(self, node: Any) -> Expr:
        kind = type_of(node)
        one, other = self.expr(node.a), self.expr(node.b)
        if kind in ("f32", "f16"):
            return Op("mod", one, other, kind)
        whole = Op("mul", self._divide(node), other, kind)
        return Op("sub", one, whole, kind)

    def _call(self, node: Any) -> Expr:
        name = str(getattr(node.op, "name", node.op)).rpartition(".")[2]
        parts = [self.expr(part) for part in node.args if not isinstance(part, str)]
        kind = type_of(node)
        if name in ("if_then_else",):
            return Pick(parts[0], parts[1], parts[2], kind)
        if name == "likely":
            return parts[0]
        if name in _BINARY_CALLS:
            return Op(_BINARY_CALLS[name], parts[0], parts[1], kind)
        if name == "isnan":
            return Op("ne", parts[0], parts[0], "bool")
        if name == "bitwise_not":
            return Op("xor", parts[0], Const(-1, kind), kind)
        if name in _CALLS or name in _FUNCTIONS:
            if kind not in ("f32", "f16"):
                if name in ("fabs", "abs"):
                    return Op("max", parts[0], Op("sub", Const(0, kind), parts[0], kind), kind)
                raise Unsupported(f"no instruction means {name} of {kind}: {node}")
            return Fun(_CALLS.get(name, name), parts[0], kind)
        raise Unsupported(f"no instruction means a call of {name}: {node}")


_READERS: Mapping[str, Callable[[_Reader, Any], Expr]] = {
    "Var": _Reader._var,
    "TensorLoad": _Reader._load,
    "IntImm": _Reader._integer,
    "FloatImm": _Reader._real,
    "Cast": _Reader._cast,
    "Select": _Reader._select,
    "Not": _Reader._not,
    "Div": _Reader._divide,
    "Mod": _Reader._modulo,
    "Call": _Reader._call,
}


# ---- Blocks of a schedule -----------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """An operand of a block.

    `dims`: of each dimension, by how much its index grows with each iteration variable, by number.
    """

    dims: tuple[Mapping[int, int], ...]
    type: str

    @property
    def variables(self) -> frozenset[int]:
        """All iteration variables that it depends on."""
        return frozenset().union(*self.dims)

    @property
    def last(self) -> frozenset[int]:
        """Those of the last dimension."""
        return frozenset(self.dims[-1] if self.dims else ())


@dataclass(frozen=True)
class Product:
    """A block that adds products of two operands; `reads` says which of its reads they are."""

    counts: tuple[int, ...]
    target: Access
    operands: tuple[Access, Access]
    reads: tuple[int, int]


def product_of(block: Any) -> Product | None:
    """Read a block of a schedule; None if it does not add products of elements."""
    update = block.body
    if block.init is None or type(update).__name__ != "BufferStore":
        return None
    value = update.value
    if type(value).__name__ != "Add" or type(value.a).__name__ != "TensorLoad":
        return None
    product = _uncast(value.b)
    if type(product).__name__ != "Mul":
        return None
    loads = [_uncast(part) for part in (product.a, product.b)]
    if any(type(part).__name__ != "TensorLoad" for part in loads):
        return None
    variables = {item.var: index for index, item in enumerate(block.iter_vars)}
    counts = []
    for item in block.iter_vars:
        if type(item.dom.extent).__name__ != "IntImm":
            return None
        counts.append(int(item.dom.extent))
    sources = [region.source for region in block.reads]
    reads = []
    for part in loads:
        at = [index for index, source in enumerate(sources) if source.same_as(part.source)]
        if len(at) != 1:
            return None
        reads.append(at[0])
    if reads[0] == reads[1]:
        return None
    target = _access(update.indices, str(update.buffer.dtype), variables)
    first, second = (_access(part.indices, str(part.ty), variables) for part in loads)
    return Product(tuple(counts), target, (first, second), (reads[0], reads[1]))


@dataclass(frozen=True)
class Window:
    """A block that reduces windows of an operand: several loops are in the index of a dimension.

    `read` says which of its reads that operand is.
    """

    counts: tuple[int, ...]
    target: Access
    data: Access
    read: int


def window_of(block: Any) -> Window | None:
    """Read a block of a schedule; None if it does not reduce windows."""
    update = block.body
    if block.init is None or type(update).__name__ != "BufferStore":
        return None
    variables = {item.var: index for index, item in enumerate(block.iter_vars)}
    counts = [item.dom.extent for item in block.iter_vars]
    if any(type(count).__name__ != "IntImm" for count in counts):
        return None
    target = _access(update.indices, str(update.buffer.dtype), variables)
    for index, region in enumerate(block.reads):
        indices = [item.min for item in region.region]
        data = _access(indices, str(region.source.dtype), variables)
        if any(len(dim) > 1 for dim in data.dims):
            return Window(tuple(map(int, counts)), target, data, index)
    return None


def by_channel(block: Any) -> list[int]:
    """Return which reads of a block depend on the last dimension of its result alone."""
    variables = {item.var: index for index, item in enumerate(block.iter_vars)}
    channel = _access(block.body.indices[-1:], "", variables).variables
    found = []
    for index, region in enumerate(block.reads):
        read = _access([item.min for item in region.region], "", variables)
        if read.variables == channel:
            found.append(index)
    return found


def is_elementwise(block: Any) -> bool:
    """Whether a block of a schedule assigns each element once."""
    return block.init is None and all(str(item.iter_type) == "0" for item in block.iter_vars)


def _uncast(node: Any) -> Any:
    return _uncast(node.value) if type(node).__name__ == "Cast" else node


def _access(indices: Any, dtype: str, variables: Mapping[Any, int]) -> Access:
    def of(node: Any) -> dict[int, int]:
        kind = type(node).__name__
        if kind == "Var":
            return {variables[node]: 1} if node in variables else {}
        if kind == "Mul" and type(node.b).__name__ == "IntImm":
            return {var: factor * int(node.b.value) for var, factor in of(node.a).items()}
        parts = [getattr(node, name) for name in ("a", "b", "value") if hasattr(node, name)]
        found: dict[int, int] = {}
        for part in parts:
            if not isinstance(part, int):
                found |= of(part)
        return found

    return Access(tuple(of(index) for index in indices), TYPES.get(dtype, dtype))
