# SPDX-License-Identifier: Apache-2.0
"""Reads calls of the IR as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..shared.messages import size_text

# Classes whose names differ between the versions of TVM in `_library.KNOWN_TVM`.
if hasattr(tvm.ir, "GenericConst"):
    from tvm.ir import GenericConst
    from tvm.ir import StringImm as StringImm
    from tvm.sym import Analyzer as Analyzer

    Constant = GenericConst
else:
    from tvm.arith import Analyzer as Analyzer
    from tvm.tirx import StringImm as StringImm

    Constant = relax.Constant
    # One name for the tensor of a constant, as in later versions.
    Constant.value = property(lambda constant: constant.data)

_Item = TypeVar("_Item")

Values = Mapping[relax.Var, relax.Expr]
"""The value of each variable; a missing one is unknown."""


@dataclass(frozen=True)
class Size:
    """A symbolic size: `factor` times a symbol.

    `factor`: the known factor.
    `name`: the name of the symbol.
    `symbol`: distinguishes symbols of the same name.
    """

    factor: int
    name: str
    symbol: int

    def __str__(self) -> str:
        """Return the size in readable form."""
        return self.name if self.factor == 1 else f"{self.factor}*{self.name}"


class Unknown(Exception):
    """A required property of a tensor is unknown; the message says which."""


_size_of = tvm_ffi.get_global_func("ffi.ArraySize")
_item_of = tvm_ffi.get_global_func("ffi.ArrayGetItem")


def items_of(array: Sequence[_Item]) -> list[_Item]:
    """Return the items of an array of TVM, in a third of the time that its iterator takes."""
    return [_item_of(array, index) for index in range(_size_of(array))]


def constant_of_text(text: str) -> relax.Constant:
    """Return a text in UTF-8 as a constant of uint8, since Relax has no strings."""
    return relax.const(np.frombuffer(text.encode(), np.uint8))


def resolve(expr: relax.Expr, values: Values) -> relax.Expr:
    """Resolve variables to the constant, tuple or shape that they are bound to."""
    while isinstance(expr, relax.Var):
        value = values.get(expr)
        if isinstance(value, (Constant, relax.Tuple, relax.ShapeExpr, relax.Var)):
            expr = value
        else:
            break
    return expr


def tensor_type(ty: tvm.ir.Type) -> tuple[str, tuple[int | Size, ...]]:
    """Read the type of a tensor."""
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
    return str(ty.dtype), tuple(map(_size, items_of(ty.shape.values)))


def _size(dim: object) -> int | Size:
    if isinstance(dim, tvm.tirx.IntImm):
        if dim.value <= 0:
            raise Unknown("no elements in" if dim.value == 0 else "a negative size in")
        return int(dim.value)
    for attempt in (dim, Analyzer().simplify(dim)):
        if isinstance(attempt, tvm.tirx.IntImm):
            return _size(attempt)
        if isinstance(attempt, tvm.tirx.Var):
            return Size(1, attempt.name, hash(attempt))
        if isinstance(attempt, tvm.tirx.Mul):
            for factor, symbol in ((attempt.a, attempt.b), (attempt.b, attempt.a)):
                if isinstance(factor, tvm.tirx.IntImm) and isinstance(symbol, tvm.tirx.Var):
                    return Size(int(factor.value), symbol.name, hash(symbol))
    raise Unknown(f"a size that is not a multiple of one symbol ({size_text(dim)}) in")


def numbers_of(expressions: Iterable[relax.Expr]) -> list[int | float] | None:
    """Return the values of numbers, such as the limits of a clip.

    As many; None if one of them is unknown.
    """
    found = [getattr(item, "value", None) for item in expressions]
    numbers = [item for item in found if isinstance(item, int | float)]
    return numbers if len(numbers) == len(found) else None


_ARGUMENTS = {"relax.strided_slice": ("x", "axes", "begin", "end", "strides")}
"""Names for arguments that Relax does not name; the same as in `ir_adapter.cc`."""


def _is_numbers(ty: tvm.ir.Type) -> bool:
    """Whether a type is a tuple of numbers."""
    return all(isinstance(item, tvm.ir.PrimType) for item in ty.fields)


@cache
def _argument_names(op: tvm.ir.Op) -> tuple[str, ...]:
    return _ARGUMENTS.get(op.name) or tuple(str(argument.name) for argument in op.arguments)


@cache
def _attribute_names(kind: type[tvm.ir.Attrs]) -> tuple[str, ...]:
    return tuple(item.name for item in kind.__tvm_ffi_type_info__.fields)


def arguments_of(call: relax.Call, values: Values) -> tuple[list[relax.Expr], dict[str, object]]:
    """Split the arguments and attributes of a call into tensors and others, by name."""
    tensors: list[relax.Expr] = []
    attributes: dict[str, object] = {}
    names = _argument_names(call.op)
    for index, argument in enumerate(items_of(call.args)):
        known = resolve(argument, values)
        if isinstance(known.ty, relax.TensorType):
            tensors.append(argument)
        elif isinstance(known.ty, relax.TupleType) and not _is_numbers(known.ty):
            tensors.append(known)
        else:
            name = names[index] if index < len(names) else f"argument {index}"
            attributes[name] = plain(known)
    if call.attrs is not None:
        kind: Any = type(call.attrs)
        for name in _attribute_names(kind):
            attributes[name] = plain(getattr(call.attrs, name))
    return tensors, attributes


def attributes_of(call: relax.Call, values: Values) -> dict[str, object]:
    """Return all attributes and non-tensor arguments of a call."""
    return arguments_of(call, values)[1]


def with_arguments(call: relax.Call, arguments: Sequence[relax.Expr]) -> relax.Call:
    """Return the same call with other arguments."""
    return relax.Call(call.op, list(arguments), call.attrs, call.ty_args, call.span, call.ty)


def plain(value: object) -> Any:
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
    if isinstance(value, tvm_ffi.Array):
        value = items_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    if isinstance(value, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return bool(value.value) if str(value.ty) == "bool" else value.value
    if isinstance(value, StringImm):
        return str(value.value)
    if isinstance(getattr(value, "ty", None), tvm.ir.PrimType):
        try:
            return _size(value)
        except Unknown:
            return size_text(value)
    return str(value)
