# SPDX-License-Identifier: Apache-2.0
"""The names that the author of a model gave its ops; calls carry them in their spans.

Constants carry there the type of the integers that they were before they were folded.

TVM's passes keep the span of a call, and ignore it when they compare. The importers of this package
attach the spans, and `passes.rewriting` passes them on to the replacement of a call.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import FunctionType

import tvm
from tvm import relax

from .calls import Constant


@dataclass(frozen=True)
class Origin:
    """Where an op comes from.

    `name`: the name of the ONNX node, of its first output if it has none, or of the node of an
    exported program.
    `module`: the path of the torch module that calls the op, such as "layer1.0.conv1".
    `location`: the file and line of the call in the user's code.
    `others`: the names of other ops that it stands for, where a chain of several became one.
    """

    name: str
    module: str = ""
    location: str = ""
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the op's name for users."""
        return f"{self.module} ({self.name})" if self.module else self.name

    def span(self, widened: str = "") -> tvm.ir.Span:
        """Return the span that carries it; `origin_of` reads it.

        `widened`: what `widened_type` is to return of it.
        """
        parts = (self.name, self.module, self.location, *self.others)
        text = "\n".join(" ".join(part.splitlines()) for part in parts)
        return _span_of((widened + _WIDENED if widened else "") + _MARK + text)


_MARK = "origin of an op:\n"
"""Tells these spans from those of others, such as TVMScript's."""


def origin_of(call: relax.Call | relax.If) -> Origin | None:
    """Return the origin of a call.

    None if it is not known.
    """
    text = _told(call).rpartition(_WIDENED)[2]
    if not text.startswith(_MARK):
        return None
    title, module, location, *others = text.removeprefix(_MARK).split("\n")
    return Origin(title, module, location, tuple(others))


def _told(expr: relax.Expr) -> str:
    """Return the text in the span of an expression."""
    name = getattr(expr.span, "source_name", None)  # Not of a SequentialSpan.
    return "" if name is None else str(name.name)


def _span_of(text: str) -> tvm.ir.Span:
    return tvm.ir.Span(tvm.ir.SourceName(text), 0, 0, 0, 0)


_WIDENED = " that is computed in a wider type\n"
"""Ends the type of the model's own tensor, before the origin."""


def widened_from(call: relax.Call, dtype: str) -> relax.Call:
    """Return a call that `widened_type` tells from others."""
    return with_span(call, _span_of(dtype + _WIDENED + _told(call).rpartition(_WIDENED)[2]))


def widened_type(call: relax.Expr) -> str:
    """Return the type of a call's result in the model, if passes made it wider; or ""."""
    return _told(call).rpartition(_WIDENED)[0]


def with_span(call: relax.Call, span: tvm.ir.Span) -> relax.Call:
    """Return a call with a span."""
    return relax.Call(call.op, list(call.args), call.attrs, call.ty_args, span, _type_of(call))


_FOLDED = "real numbers of "
"""Begins the spans of constants that were integers."""


def folded_type(expr: relax.Expr) -> str:
    """Return the type of the integers that folding turned into a constant of real numbers.

    "" if it is no such constant.
    """
    text = _told(expr) if isinstance(expr, Constant) else ""
    return text.removeprefix(_FOLDED) if text.startswith(_FOLDED) else ""


def folded_from(constant: Constant, dtype: str) -> Constant:
    """Return a constant that `folded_type` tells from others."""
    return Constant(constant.value, constant.ty, _span_of(_FOLDED + dtype))


def with_absorbed(
    call: relax.Call,
    before: relax.Expr,
    values: Mapping[relax.Var, relax.Expr],
    kept: Container[relax.Var],
) -> relax.Call:
    """Return a call with the names of all ops that it stands for.

    `kept`: the variables that remain; other values that the op read are part of the call.

    The same one if it stands for one op.
    """
    origin = origin_of(call)
    if origin is None:
        return call
    names: dict[str, None] = {}
    seen = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            if expr not in kept and expr in values and expr not in seen:
                seen.add(expr)
                visit(values[expr])
            return
        for item in getattr(expr, "args", ()) or getattr(expr, "fields", ()):
            visit(item)
        if isinstance(expr, relax.TupleGetItem):
            visit(expr.tuple_value)
        found = origin_of(expr) if isinstance(expr, relax.Call) else None
        if found is not None:
            names.update(dict.fromkeys((*found.others, str(found))))

    visit(before)
    others = tuple(name for name in names if name != str(origin))
    if not others:
        return call
    return with_span(call, replace(origin, others=others).span(widened_type(call)))


def is_named(patterns: Sequence[str], op: str, name: str, origin: Origin | None) -> bool:
    """Whether a list of names has an op.

    `patterns`: ops, variables, and names or modules of the model's author; `*` stands for anything.
    """
    names = [op, op.removeprefix("relax."), op.rpartition(".")[2], name]
    if origin is not None:
        names += [origin.name, str(origin), *([origin.module] if origin.module else [])]
        names += origin.others
    return any(fnmatchcase(item, pattern) for pattern in patterns for item in names)


def with_classes(function: FunctionType, **classes: object) -> FunctionType:
    """Return a copy of a TVM function that uses our classes and functions instead of its own."""
    own = {**function.__globals__, **classes}
    copy = FunctionType(function.__code__, own, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class Tracer(relax.BlockBuilder):  # type: ignore[misc]
    """A block builder for importers: its bindings get the span of the current node."""

    def __init__(self) -> None:
        super().__init__()
        self.span: tvm.ir.Span | None = None
        self._known: dict[int, tuple[relax.Expr, relax.Expr]] = {}

    def normalize(self, expr: relax.Expr) -> relax.Expr:
        """Normalize an expression; calls inside of it become bindings with the span."""
        return super().normalize(self._flat(expr))

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression."""
        return super().emit(self._flat(expr), name_hint)

    def match_cast(self, value: relax.Expr, ty: tvm.ir.Type, *hint: str) -> relax.Var:
        """Bind an expression whose type is known better."""
        return super().match_cast(self._flat(value), ty, *hint)

    def emit_output(self, output: object, name_hint: str = "") -> relax.Var:
        """Bind a result of the dataflow block."""
        if isinstance(output, (list, tuple)) and all(isinstance(x, relax.Expr) for x in output):
            output = relax.Tuple([*output])
        known = self._known.get(hash(output))
        return super().emit_output(self._flat(output) if known is None else known[1], name_hint)

    def _flat(self, expr: relax.Expr) -> relax.Expr:
        """Return an expression without calls inside of it, which TVM would bind without spans."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._bound(item) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._bound(expr.tuple_value), expr.index)
        if isinstance(expr, relax.If) and expr.span is None and self.span is not None:
            return relax.If(expr.cond, expr.true_branch, expr.false_branch, self.span)
        if not _is_call(expr):
            return expr
        arguments = [self._bound(item) for item in expr.args]
        same = all(one.same_as(other) for one, other in zip(arguments, expr.args, strict=True))
        span = self.span if expr.span is None else expr.span
        if same and (expr.span is not None or span is None):
            return expr
        return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args, span, _type_of(expr))

    def _bound(self, expr: relax.Expr) -> relax.Expr:
        """Return the replacement of an argument; a shared call is bound once, as by TVM."""
        if isinstance(expr, relax.Tuple):
            return self._flat(expr)
        if not _is_call(expr) and not isinstance(expr, relax.TupleGetItem):
            return expr
        key = hash(expr)  # Of the node, which the entry keeps alive.
        if key not in self._known:
            bound = super().normalize(relax.Tuple([self._flat(expr)])).fields[0]
            self._known[key] = expr, bound
        return self._known[key][1]


def _is_call(expr: relax.Expr) -> bool:
    """Whether it is a call in Relax, and not one in a size."""
    if not isinstance(expr, relax.Call):
        return False
    return not isinstance(expr.op, tvm.ir.Op) or str(expr.op.name).startswith("relax.")


def _type_of(call: relax.Call) -> tvm.ir.Type | None:
    """Return the type of a call; none before it is normalized."""
    return getattr(call, "ty", None)
