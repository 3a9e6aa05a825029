# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""The composites of this backend, derived from `capabilities.py`.

An op of the table makes a composite on its own. What it `fuses` makes further ones: with a bias, a
residual, an activation behind it, and with a transposed operand before it. Each is an ordinary
pattern of TVM, registered as `<backend>.<label>`, so that TVM's own `FuseOpsByPattern` works with
them too. A label is for people: the code generator reads the body of a composite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from tvm import relax
from tvm.relax.backend.pattern_registry import register_patterns
from tvm.relax.dpl import DFPattern, is_op, wildcard

from ._library import BACKEND
from .capabilities import OPS, declined_by_sdk
from .capability import Constant, Op, Size, Table, Unknown, Values, tensor_type

TABLE = Table(OPS, declined_by_sdk)
"""The capabilities of this backend."""

Pattern = tuple[str, DFPattern, dict[str, DFPattern], Callable[[Any], bool]]
"""Name, pattern, the parts that its check asks for, and the check: an argument of TVM's."""

_registered = False


def register() -> None:
    """Register the patterns with TVM, once in a process."""
    global _registered
    if not _registered:
        # As tuples: of those TVM knows that they must go before the interpreter does.
        register_patterns(make_patterns(TABLE))
        _registered = True


def make_patterns(table: Table) -> list[Pattern]:
    """Derive all patterns from a table.

    Parameters
    ----------
    table
        The capabilities.

    Returns
    -------
    patterns
        From the least to the most specific, as TVM wants them: later ones win.
    """
    composites = [composite for op in table.ops for composite in _composites(op, table)]
    composites.sort(key=lambda composite: composite[0])
    return [pattern for _, pattern in composites]


def _composites(op: Op, table: Table) -> Iterator[tuple[int, Pattern]]:
    """Generate the composites around one op, each with its number of calls."""
    fuses = op.fuses
    for count in range(len(op.absorbs_transpose) + 1):
        for absorbed in combinations(op.absorbs_transpose, count):
            label = _label(op, absorbed)
            arguments = [
                _call("relax.permute_dims", wildcard()) if index in absorbed else wildcard()
                for index in range(len(op.inputs))
            ]
            anchor = _call(op.relax, *arguments)
            parts = {"anchor": anchor}
            parts |= {f"transpose{index}": arguments[index] for index in absorbed}
            tails = [(1 + count, label, anchor, parts)]
            if fuses is not None and fuses.bias is not None:
                tails.append(_with_add(tails[0], "bias"))
            if fuses is not None and fuses.residual:
                tails += [_with_add(tail, "residual") for tail in tails]
            for size, name, pattern, known in tails:
                yield size, _pattern(table, op, name, pattern, known)
                for activation in fuses.activations if fuses is not None else ():
                    entry = table.get(activation)
                    if entry is not None:
                        last = _call(entry.relax, pattern)
                        more = {**known, "activation": last}
                        found = _pattern(table, op, f"{name}_{activation}", last, more, entry)
                        yield size + 1, found


def _label(op: Op, absorbed: tuple[int, ...]) -> str:
    if not absorbed:
        return op.name
    if op.relax == "relax.matmul" and absorbed == (1,):
        return "linear"
    return op.name + "_transposed" + "".join(f"_{index}" for index in absorbed)


def _call(op: str, *arguments: DFPattern) -> DFPattern:
    return is_op(op)(*arguments, varg_default_wildcard=True)


def _with_add(
    tail: tuple[int, str, DFPattern, dict[str, DFPattern]], role: str
) -> tuple[int, str, DFPattern, dict[str, DFPattern]]:
    size, name, pattern, parts = tail
    operand = wildcard()
    either = _call("relax.add", pattern, operand) | _call("relax.add", operand, pattern)
    return size + 1, f"{name}_{role}", either, {**parts, role: operand}


def _pattern(
    table: Table,
    op: Op,
    label: str,
    pattern: DFPattern,
    parts: dict[str, DFPattern],
    activation: Op | None = None,
) -> Pattern:
    def check(match: Any) -> bool:
        reason = _refusal(table, op, activation, match)
        if reason is None:
            return True
        # `partition.py` asks for reasons; TVM's own pass has no use for them.
        reasons = getattr(match, "reasons", None)
        if reasons is not None:
            reasons.append(reason)
        return False

    return f"{BACKEND}.{label}", pattern, parts, check


def _refusal(table: Table, op: Op, activation: Op | None, match: Any) -> str | None:
    """Say why a match, TVM's `PatternCheckContext` or the like of it, is no composite."""
    parts = match.annotated_expr
    anchor = parts["anchor"]
    values: Values = getattr(match, "values", {})
    bound = getattr(match, "bind_constants", True)
    reason = table.refusal(anchor, values, bind_constants=bound, op=op)
    if reason is None and activation is not None:
        reason = table.refusal(parts["activation"], values, bind_constants=bound, op=activation)
    if reason is not None:
        return reason

    escaping = escapes(match)
    if escaping is not None:
        return f"{op.name}: '{escaping.name}' inside of it is used elsewhere"
    for index in op.absorbs_transpose:
        transpose = parts.get(f"transpose{index}")
        if transpose is not None and not _swaps_last_dimensions(transpose):
            return f"{op.name}: its operand is transposed in another way than by a swap of the last"
    if "bias" not in parts and "residual" not in parts:
        return None

    try:
        dtype, shape = tensor_type(anchor.ty)
        for call in match.matched_bindings.values():
            if call.op.name == "relax.add" and tensor_type(call.ty) != (dtype, shape):
                return f"{op.name}: the result grows where something is added to it"
        if "residual" in parts and tensor_type(parts["residual"].ty) != (dtype, shape):
            return f"{op.name}: a residual must have the dtype and shape of the result"
        if "bias" in parts:
            return _bias_refusal(op, parts["bias"], dtype, shape, match)
    except Unknown as unknown:
        return f"{op.name}: {unknown} what is added"
    return None


def _bias_refusal(
    op: Op, bias: Any, dtype: str, shape: tuple[int | Size, ...], match: Any
) -> str | None:
    assert op.fuses is not None and op.fuses.bias is not None
    axis = op.fuses.bias % len(shape)
    expected = tuple(size if index == axis else 1 for index, size in enumerate(shape))
    bias_dtype, bias_shape = tensor_type(bias.ty)
    padded = (1,) * (len(shape) - len(bias_shape)) + bias_shape
    if bias_dtype != dtype or padded != expected or isinstance(shape[axis], Size):
        return f"{op.name}: a bias must have one {dtype} per channel, along axis {op.fuses.bias}"
    if not _is_parameter(bias, match):
        return f"{op.name}: a bias must be a constant or a parameter"
    return None


def _is_parameter(expr: Any, match: Any) -> bool:
    """Whether it is a constant, a parameter of the function, or a reshape of one."""
    values = getattr(match, "values", None)
    if values is None and isinstance(expr, relax.DataflowVar):
        # TVM's context knows the way from a value to its variable, but not back.
        values = {var: value for value, var in match.value_to_bound_var.items()}
    while True:
        if isinstance(expr, relax.Var) and (values or {}).get(expr) is not None:
            expr = (values or {})[expr]
        elif isinstance(expr, relax.Call) and expr.op.name == "relax.reshape":
            expr = expr.args[0]
        else:
            return isinstance(expr, (Constant, relax.Var))


def escapes(match: Any) -> Any | None:
    """Return a variable inside of a match that something outside of it uses, if there is one.

    A composite with such a variable would have two results, could depend on itself through what is
    outside, or would have to compute the variable twice.

    Parameters
    ----------
    match
        TVM's `PatternCheckContext`, or the like of it.

    Returns
    -------
    var
        The variable, or none.
    """
    inside = {hash(var) for var in match.matched_bindings}
    for var, value in match.matched_bindings.items():
        if value.same_as(match.matched_expr):
            continue
        used_outside = any(hash(user) not in inside for user in match.var_usages.get(var, ()))
        if used_outside or not isinstance(var, relax.DataflowVar):
            return var
    # One value on both sides of an add is no residual. The matcher gives variables or values.
    for role in ("bias", "residual"):
        operand = match.annotated_expr.get(role)
        for var, value in match.matched_bindings.items():
            if operand is not None and (operand.same_as(var) or operand.same_as(value)):
                return var
    return None


def _swaps_last_dimensions(call: Any) -> bool:
    rank = call.ty.ndim
    axes = call.attrs.axes
    order = list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]
