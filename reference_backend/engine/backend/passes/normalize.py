# SPDX-License-Identifier: Apache-2.0
"""Canonical forms of single ops: clips, comparisons and normalizations."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax

from ..ir.calls import Constant, Unknown, Values, attributes_of, numbers_of, resolve, tensor_type
from ..table.chains import function_of
from .rewriting import Bindings, Site, Steps, is_call_of, is_full_of, op_name

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
NORMS = ("relax.nn.layer_norm", "relax.nn.group_norm", "relax.nn.instance_norm")


def compare_nan(site: Site) -> Bindings | None:
    """Test for NaN by comparing a value with itself."""
    if not site.table.entries_of("relax.not_equal"):
        return None
    x = site.call.args[0]
    return Steps(site).end(relax.op.not_equal(x, x))


def ask_for_nan(site: Site) -> Bindings | None:
    """Undo `compare_nan` on the host, where TVM's simplifier takes x == x for true."""
    call = site.call
    x, y = call.args
    if not x.same_as(y) or not str(getattr(x.ty, "dtype", "")).startswith(("float", "bfloat")):
        return None
    is_nan = relax.op.isnan(x)
    if op_name(call) == "relax.not_equal":
        return site.bind(is_nan)
    steps = Steps(site)
    return steps.end(relax.op.logical_not(steps.add(is_nan)))


def spread_infinity(site: Site) -> Bindings | None:
    """Broadcast a non-finite number on the host, where TVM cannot lower a `full` of it."""
    number, ty = site.constant(site.call.args[1]), site.call.ty
    if number is None or not str(number.ty.dtype).startswith(("float", "bfloat")):
        return None
    if np.isfinite(number.value.numpy().astype("float64")).all() or ty.shape is None:
        return None
    steps = Steps(site)
    converted = (
        number if number.ty.dtype == ty.dtype else steps.add(relax.op.astype(number, ty.dtype))
    )
    return steps.end(relax.op.broadcast_to(converted, ty.shape))


def spell_out_norm(site: Site) -> Bindings | None:
    """Write a norm on the host as TVM computes it only over last axes, with others before them."""
    call = site.call
    data, weight = call.args
    rank = data.ty.ndim
    axes = [int(axis) % rank for axis in call.attrs.axes]
    others = [axis for axis in range(rank) if axis not in axes]
    if others and axes == list(range(len(others), rank)):
        return None
    steps = Steps(site)
    dtype, wide = str(data.ty.dtype), data
    if dtype != "float32":
        wide = steps.add(relax.op.astype(data, "float32"))
    mean = steps.add(relax.op.mean(steps.add(relax.op.multiply(wide, wide)), axes, keepdims=True))
    epsilon = relax.const(float(call.attrs.epsilon), "float32")
    root = steps.add(relax.op.sqrt(steps.add(relax.op.add(mean, epsilon))))
    normal = steps.add(relax.op.divide(wide, root))
    if dtype != "float32":
        normal = steps.add(relax.op.astype(normal, dtype))
    factor = steps.add(relax.op.expand_dims(weight, others)) if others else weight
    return steps.end(relax.op.multiply(normal, factor))


def compare_largest(site: Site) -> Bindings | None:
    """Test for finite and for infinite values by comparing with the largest finite number."""
    is_finite = op_name(site.call) == "relax.isfinite"
    # NaN is neither finite nor infinite.
    compare = relax.op.less_equal if is_finite else relax.op.greater
    x = site.call.args[0]
    used = ("relax.abs", "relax.less_equal" if is_finite else "relax.greater")
    if not all(map(site.table.entries_of, used)):
        return None
    largest = relax.const(float(tvm.tirx.max_value(x.ty.dtype).value), x.ty.dtype)
    steps = Steps(site)
    return steps.end(compare(steps.add(relax.op.abs(x)), largest))


def form_clip(site: Site) -> Bindings | None:
    """Rewrite a minimum of a maximum, which ONNX's importer emits for Clip, as a clip."""
    call = site.call
    if not site.table.entries_of("relax.clip") or not site.is_used_once(call.args[0]):
        return None
    clip = as_clip(call, site.values)
    return None if clip is None else site.bind(clip)


def as_clip(call: relax.Call, values: Values) -> relax.Call | None:
    """Make a clip from a minimum of a maximum if both bounds are constant numbers in order."""
    inner: relax.Expr | None = values.get(call.args[0])
    if not isinstance(inner, relax.Call) or getattr(inner.op, "name", "") != "relax.maximum":
        return None
    low, high = (_number(resolve(limit.args[1], values)) for limit in (inner, call))
    # With crossed bounds, a clip returns the lower bound, but the minimum the upper.
    if low is None or high is None or low > high:
        return None
    keeps_type = tvm_ffi.structural_equal(inner.ty, call.ty)
    if not keeps_type or not tvm_ffi.structural_equal(inner.args[0].ty, call.ty):
        return None
    return relax.op.clip(inner.args[0], low, high)


def _number(expr: relax.Expr) -> float | int | None:
    if not isinstance(expr, Constant) or math.prod(expr.value.shape) != 1:
        return None
    number: float | int = expr.value.numpy().item()
    return None if math.isnan(number) else number


_PAIRWISE = {
    "relax.max": "relax.maximum",
    "relax.min": "relax.minimum",
    "relax.sum": "relax.add",
}
"""The op of two tensors that computes a reduction over their stack."""


def unstack_pairs(site: Site) -> Bindings | None:
    """Turn `max(stack(a, b), 0)` into `maximum(a, b)`; ONNX's Max, Min and Sum are read so."""
    call = site.call
    name = _PAIRWISE[op_name(call)]
    stack = site.value(call.args[0])
    if not is_call_of(stack, "relax.stack") or not site.is_used_once(call.args[0]):
        return None
    rank, axes = call.args[0].ty.ndim, call.attrs.axis
    along = [int(axis) % rank for axis in axes or ()]
    parts = resolve(stack.args[0], site.values)
    if along != [int(stack.attrs.axis or 0) % rank] or not isinstance(parts, relax.Tuple):
        return None
    if not site.table.entries_of(name) or len(parts.fields) < 2:
        return None
    steps = Steps(site)
    last, *operands = (_before_broadcast(site, part) for part in parts.fields)
    for index, operand in enumerate(operands):
        pair = function_of(name)(last, operand)
        if index == len(operands) - 1:
            return steps.end(pair)
        last = steps.add(pair)
    return None


def _before_broadcast(site: Site, expr: relax.Expr) -> relax.Expr:
    """Return a value before its broadcast, which element-wise ops do themselves."""
    value = site.value(expr)
    return value.args[0] if is_call_of(value, "relax.broadcast_to") else expr


def merge_clips(site: Site) -> Bindings | None:
    """Merge consecutive clips: front ends clip one end after the other."""
    limits: list[relax.Expr] = []
    data: relax.Expr = site.call
    while is_call_of(data, "relax.clip"):
        limits += data.args[1:]
        first = data.args[0]
        # Keep a value with other readers, so that it connects them to one region.
        data = site.value(first) if site.is_used_once(first) else None
    numbers = numbers_of(limits)
    if numbers is None or len(numbers) < 4:
        return None
    low, high = max(numbers[::2]), min(numbers[1::2])
    return site.bind(relax.op.clip(first, low, high)) if low <= high else None


def complete_norm(site: Site) -> Bindings | None:
    """Set `center` and `scale` of a normalization whose beta and gamma are zeros and ones.

    Front ends that apply gamma and beta themselves clear both and pass neutral ones.
    """
    call = site.call
    if call.attrs.center and call.attrs.scale:
        return None
    if not call.attrs.scale and not is_full_of(1, call.args[1], site.values):
        return None
    if not call.attrs.center and not is_full_of(0, call.args[2], site.values):
        return None
    attributes = {**attributes_of(call, site.values), "center": True, "scale": True}
    norm = function_of(call.op.name)(*call.args, **attributes)
    return site.bind(norm)


def fold_batch_norm(site: Site) -> Bindings | None:
    """Fold a batch normalization into the weights and bias of the convolution before it.

    TVM's own FoldBatchnormToConv2D also folds training mode and other layouts, wrongly.
    """
    field = site.call
    if field.index != 0:
        return None
    norm = site.value(field.tuple_value)
    if not is_call_of(norm, "relax.nn.batch_norm"):
        return None
    if not all(site.is_used_once(var) for var in (field.tuple_value, norm.args[0])):
        return None
    if norm.attrs.training:
        return None
    constants = [resolve(argument, site.values) for argument in norm.args[1:]]
    conv, bias = _convolution(norm.args[0], site)
    if conv is None or not site.table.entries_of(conv.op.name):
        return None
    weight = resolve(conv.args[1], site.values)
    if not all(isinstance(constant, Constant) for constant in [weight, *constants]):
        return None
    try:
        dtype, shape = tensor_type(conv.ty)
        fits = tensor_type(norm.args[0].ty) == tensor_type(site.binding.var.ty) == (dtype, shape)
    except Unknown:
        return None
    layouts = conv.attrs.out_layout.startswith("NC") and conv.attrs.kernel_layout.startswith("OI")
    if not fits or not layouts or norm.attrs.axis % len(shape) != 1 or weight.ty.dtype != dtype:
        return None

    gamma, beta, mean, variance = (
        constant.value.numpy().astype("float64") for constant in constants
    )
    with np.errstate(all="ignore"):  # Non-finite results are not folded, see below.
        scale = (gamma if norm.attrs.scale else 1.0) / np.sqrt(variance + norm.attrs.epsilon)
    shift = (bias - mean) * scale + (beta if norm.attrs.center else 0.0)
    kernel = weight.value.numpy() * scale.reshape(-1, *[1] * (len(shape) - 1))
    per_channel = shift.reshape(1, -1, *[1] * (len(shape) - 2))
    arrays = [kernel.astype(dtype), per_channel.astype(dtype)]
    if not all(np.isfinite(array).all() for array in arrays):
        return None
    new_weight, new_bias = (relax.const(array, dtype) for array in arrays)
    var = relax.DataflowVar(site.binding.var.name + "_conv", conv.ty)
    new_conv = relax.Call(
        conv.op, [conv.args[0], new_weight], conv.attrs, conv.ty_args, conv.span, conv.ty
    )
    return [
        relax.VarBinding(var, new_conv),
        relax.VarBinding(site.binding.var, relax.op.add(var, new_bias)),
    ]


def _convolution(
    expr: relax.Expr, site: Site
) -> tuple[relax.Call | None, float | npt.NDArray[np.float64]]:
    """Return the convolution behind a value, and the constant bias of each channel after it."""
    value = site.value(expr)
    if is_call_of(value, *_CONVOLUTIONS):
        return value, 0.0
    if not is_call_of(value, "relax.add"):
        return None, 0.0
    for data, addend in (value.args, value.args[::-1]):
        conv, bias = site.value(data), site.constant(addend)
        if bias is None or not is_call_of(conv, *_CONVOLUTIONS) or not site.is_used_once(data):
            continue
        array = bias.value.numpy().astype("float64")
        padded = array.reshape((1,) * (conv.ty.ndim - array.ndim) + array.shape)
        if padded.size == padded.shape[1]:
            return conv, padded.reshape(-1)
    return None, 0.0
