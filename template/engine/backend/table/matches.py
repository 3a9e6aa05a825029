# SPDX-License-Identifier: Apache-2.0
"""Whether a match is a composite: checks what patterns cannot compare, and gives reasons."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from typing import cast

import numpy as np
import tvm_ffi
from tvm import relax

from ..ir.calls import Constant, Size, Unknown, Values, resolve, tensor_type
from .capability import Op
from .chains import chains_of, find
from .compositions import ROLES
from .reasons import Code, Reason
from .table import Table


def quantized_activations(table: Table) -> list[Op]:
    """Return what may follow an element-wise op between dequantize and quantize."""
    return [op for op in table.ops if op.activation and op.relax and op.quantized is not None]


def refusal_of(table: Table, op: Op, match: relax.transform.PatternCheckContext) -> Reason | None:
    """Return why a match (TVM's `PatternCheckContext` or similar) is not a composite."""
    parts = match.annotated_expr
    anchor = parts["anchor"]
    values: Values = getattr(match, "values", {})
    # The partitioner, whose matches have `values`, asks the driver about each composite anyway.
    how = {
        "bind_constants": getattr(match, "bind_constants", True),
        "asked_later": hasattr(match, "values"),
    }
    reason = table.refusal(anchor, _through_dequantize(parts, values), op=op, **how)
    if reason is None and "activation" in parts:
        call = parts["activation"]
        refusals = [
            table.refusal(call, values, op=entry, **how)
            for entry in table.activations_of(op) or quantized_activations(table)
            if entry.relax == call.op.name
        ]
        reason = None if None in refusals else refusals[0]
    if reason is None and "weight" in parts:
        reason = _weight_refusal(op, parts["weight"], values, how["bind_constants"])
    if reason is None and op.quantized is not None:
        reason = _quantized_refusal(op, parts, values)
        whole = table.engine_entry(op.name)
        if (
            reason is not None
            and whole is not None
            and whole.quantized not in (None, op.quantized)
            and _quantized_refusal(whole, parts, values) is None
        ):
            reason = reason.limited()
    if reason is not None:
        return reason

    escaping = escapes(match)
    if escaping is not None:
        why = f"{op.name}: '{escaping.name}' inside of it is used elsewhere"
        return Reason(Code.USED_ELSEWHERE, why)
    for index in op.absorbs_transpose:
        transpose = parts.get(f"transpose{index}")
        if transpose is not None and not _swaps_last_dimensions(transpose):
            why = f"{op.name}: its operand is transposed in another way than by a swap of the last"
            return Reason(Code.NO_PATTERN, why)
    calls = [parts[f"{role} call"] for role in ROLES if f"{role} call" in parts]
    if not calls:
        return None

    try:
        dtype, shape = tensor_type(anchor.ty)
        if any(tensor_type(call.ty) != (dtype, shape) for call in calls):
            why = f"{op.name}: the result grows where something is added to it"
            return Reason(Code.NO_PATTERN, why)
        if "scale" in parts and any(size != 1 for size in tensor_type(parts["scale"].ty)[1]):
            return Reason(Code.NO_PATTERN, f"{op.name}: a scale must be a single number")
        if "residual" in parts and tensor_type(parts["residual"].ty) != (dtype, shape):
            why = f"{op.name}: a residual must have the dtype and shape of the result"
            return Reason(Code.NO_PATTERN, why)
        if "bias" in parts:
            return _bias_refusal(op, parts["bias"], dtype, shape, match)
    except Unknown as unknown:
        return Reason(Code.NO_PATTERN, f"{op.name}: {unknown} what is added")
    return None


def _through_dequantize(parts: Mapping[str, relax.Expr], values: Values) -> Values:
    """Treat values that the composite dequantizes as constant if their integers are."""
    arguments = parts["anchor"].args
    inside = {arguments[index]: call.args[0] for index, call in _dequantized(parts).items()}
    if "weight" in parts:
        inside[arguments[1]] = parts["weight"].args[0]
    # Nothing writes into it.
    return (
        ChainMap(inside, cast(MutableMapping[relax.Var, relax.Expr], values)) if inside else values
    )


def _dequantized(parts: Mapping[str, relax.Expr]) -> dict[int, relax.Call]:
    """Return the dequantizes of a match, by the input of the op or chain that they are for."""
    numbered = ((name.removeprefix("dequantize"), call) for name, call in parts.items())
    return {int(index): call for index, call in numbered if index.isdigit()}


def _quantized_refusal(op: Op, parts: Mapping[str, relax.Expr], values: Values) -> Reason | None:
    """Return why the op cannot compute with the quantized tensors of a match."""
    assert op.quantized is not None
    rank = len(parts["anchor"].ty.shape)
    of_result = rank - 1 if op.relax == "relax.matmul" else 1
    channel = op.quantized.channel
    for index, call in _dequantized(parts).items():
        who = f"{op.name}: '{op.inputs[index].name}'"
        dtype, shape = tensor_type(call.args[0].ty)
        axis = channel % len(shape) if index == 1 and channel is not None else None
        reason = _scale_refusal(op, call, who, values, axis)
        if reason is None and index == 1 and dtype == "int16" and op.is_product:
            reason = _wide_refusal(op, who, parts["dequantize0"])
        if reason is not None:
            return reason
        scales = resolve(call.args[1], values).value.numpy().size
        channels = tensor_type(parts["anchor"].ty)[1][of_result] if scales > 1 else scales
        # The groups of a transposed convolution share the channels of its weight.
        groups = int(parts["anchor"].attrs.groups) if channel == 1 and scales > 1 else 1
        if channels != scales * groups:
            why = f"{who} has {scales} scales for {channels} channels of the result"
            return Reason(Code.QUANTIZATION, why)
    if "quantize" in parts:
        return _scale_refusal(op, parts["quantize"], f"{op.name}: the result", values, None)
    return None


def _wide_refusal(op: Op, who: str, first: relax.Expr) -> Reason | None:
    """Return why the second input of a product cannot be int16."""
    assert op.quantized is not None
    if op.relax != "relax.matmul":
        why = f"{who} is int16; supported, quantized: {', '.join(op.quantized.bytes)}"
        return Reason(Code.QUANTIZATION, why)
    dtype = tensor_type(first.args[0].ty)[0]
    if dtype != "int16":
        why = f"{who} is int16 and '{op.inputs[0].name}' {dtype}; supported: int16 by int16"
        return Reason(Code.QUANTIZATION, why)
    return None


def refusal_of_edges(op: Op, match: relax.transform.PatternCheckContext) -> Reason | None:
    """Return why a chain cannot begin and end with the quantized tensors of a match."""
    values: Values = getattr(match, "values", {})
    parts = match.annotated_expr
    named = [(parts["quantize"], "the result")]
    named += [(call, f"'{op.inputs[0].name}'") for call in _dequantized(parts).values()]
    refusals = (_scale_refusal(op, call, f"{op.name}: {who}", values, None) for call, who in named)
    return next(filter(None, refusals), None)


def refusal_of_ends(
    table: Table, op: Op, match: relax.transform.PatternCheckContext
) -> Reason | None:
    """Return why a chip of integers has no composite of a match."""
    bindings = match.matched_bindings
    read = {var for value in bindings.values() for var in relax.analysis.free_vars(value)}
    ends = [var.ty for var in read if var not in bindings]
    return table.refusal_of_ends(op.name, ends, [match.matched_expr.ty])


def _weight_refusal(op: Op, call: relax.Call, values: Values, bound: bool) -> Reason | None:
    """Return why weights cannot stay integers; the codegen knows where scales may change."""
    assert op.quantized is not None
    if not bound:
        why = f"{op.name}: its weights must be constants; bind_constants is off"
        return Reason(Code.OPTION, why)
    if any(not isinstance(resolve(operand, values), Constant) for operand in call.args):
        why = f"{op.name}: '{op.inputs[1].name}' is dequantized, but no constant"
        return Reason(Code.QUANTIZATION, why)
    dtype = tensor_type(call.args[0].ty)[0]
    if dtype not in op.quantized.bytes:
        supported = ", ".join(op.quantized.bytes)
        why = f"{op.name}: '{op.inputs[1].name}' is {dtype}; supported, quantized: {supported}"
        return Reason(Code.QUANTIZATION, why)
    return None


def _scale_refusal(
    op: Op, call: relax.Call, who: str, values: Values, channel: int | None
) -> Reason | None:
    """Return why a dequantize or quantize is not among those that an op computes with."""
    assert op.quantized is not None
    quantize = call.op.name == "relax.quantize"
    dtype, shape = tensor_type(call.ty if quantize else call.args[0].ty)
    if dtype not in op.quantized.dtypes:
        why = f"{who} is {dtype}; supported, quantized: {', '.join(op.quantized.dtypes)}"
        return Reason(Code.QUANTIZATION, why)
    scale, zero_point = (resolve(operand, values) for operand in call.args[1:3])
    if not isinstance(scale, Constant) or not isinstance(zero_point, Constant):
        return Reason(Code.QUANTIZATION, f"{who} has no constant scale and zero point")
    if str(scale.ty.dtype) != "float32":
        return Reason(Code.QUANTIZATION, f"{who} has a {scale.ty.dtype} scale; supported: float32")
    steps, zeros = scale.value.numpy(), zero_point.value.numpy()
    if not (np.isfinite(steps) & (steps > 0)).all():
        return Reason(Code.QUANTIZATION, f"{who} has a scale that is not a positive number")
    if (zeros != zeros.flat[0]).any():
        return Reason(Code.QUANTIZATION, f"{who} has several zero points; supported: one")
    axis = int(call.attrs.axis) % len(shape) if shape else 0
    if steps.size > 1 and axis != channel:
        along = "one" if channel is None else f"one, or one for each channel, along axis {channel}"
        why = f"{who} has {steps.size} scales along axis {axis}; supported: {along}"
        return Reason(Code.QUANTIZATION, why)
    return None


def refusal_of_chain_in(
    table: Table, op: Op, match: relax.transform.PatternCheckContext
) -> Reason | None:
    """Return why the calls at the end of a match are not a chain, "" if only constants differ.

    Patterns do not compare constants.
    """
    bindings = match.matched_bindings
    known: Values = getattr(match, "values", {})
    values = known or dict(bindings.items())
    call = match.annotated_expr["chain"]
    (var,) = (var for var, value in bindings.items() if value.same_as(call))
    bound = getattr(match, "bind_constants", True)
    reason: Reason | None = Reason(Code.NO_PATTERN, "")
    for found in (item for chain in chains_of(op) for item in find(chain, var, values)):
        if any(var not in bindings for var in found.calls):
            continue
        shapes = [part.ty.shape for part in found.calls.values()]
        same = all(tvm_ffi.structural_equal(shape, call.ty.shape) for shape in shapes)
        if op.activation and not same:
            continue
        reason = table.refusal_of_chain(
            op, found.inputs, found.attributes, call, values, bind_constants=bound
        )
        if reason is None:
            return None
    return reason


def _bias_refusal(
    op: Op,
    bias: relax.Expr,
    dtype: str,
    shape: tuple[int | Size, ...],
    match: relax.transform.PatternCheckContext,
) -> Reason | None:
    assert op.fuses is not None and op.fuses.bias is not None
    axis = op.fuses.bias % len(shape)
    expected = tuple(size if index == axis else 1 for index, size in enumerate(shape))
    bias_dtype, bias_shape = tensor_type(bias.ty)
    padded = (1,) * (len(shape) - len(bias_shape)) + bias_shape
    if bias_dtype != dtype or padded != expected or isinstance(shape[axis], Size):
        why = f"{op.name}: a bias must have one {dtype} per channel, along axis {op.fuses.bias}"
        return Reason(Code.NO_PATTERN, why)
    if not _is_parameter(bias, match):
        return Reason(Code.NO_PATTERN, f"{op.name}: a bias must be a constant or a parameter")
    return None


_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")


def _is_parameter(expr: relax.Expr, match: relax.transform.PatternCheckContext) -> bool:
    """Whether it is a constant, a parameter of the function, or a view of one."""
    values = getattr(match, "values", None)
    if values is None and isinstance(expr, relax.DataflowVar):
        # TVM's context maps values to variables, but not back.
        values = {var: value for value, var in match.value_to_bound_var.items()}
    while True:
        if isinstance(expr, relax.Var) and (values or {}).get(expr) is not None:
            expr = (values or {})[expr]
        elif isinstance(expr, relax.Call) and expr.op.name in _VIEWS:
            expr = expr.args[0]
        else:
            return isinstance(expr, (Constant, relax.Var))


def escapes(match: relax.transform.PatternCheckContext) -> relax.Var | None:
    """Return a variable inside a match that is used outside of it, or none.

    A composite with such a variable would have two results, could depend on itself through its
    users, or would have to compute the variable twice.
    """
    inside = {hash(var) for var in match.matched_bindings}
    for var, value in match.matched_bindings.items():
        if value.same_as(match.matched_expr):
            continue
        used_outside = any(hash(user) not in inside for user in match.var_usages.get(var, ()))
        if used_outside or not isinstance(var, relax.DataflowVar):
            return var
    # Adding a value to itself is not a residual. The matcher gives variables or values.
    for role in ("bias", "residual"):
        operand = match.annotated_expr.get(role)
        if isinstance(operand, relax.Call) and operand.op.name == "relax.dequantize":
            continue
        for var, value in match.matched_bindings.items():
            if operand is not None and (operand.same_as(var) or operand.same_as(value)):
                return var
    return None


def _swaps_last_dimensions(call: relax.Call) -> bool:
    rank = call.ty.ndim
    axes = call.attrs.axes
    order = list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]
