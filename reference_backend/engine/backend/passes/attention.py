# SPDX-License-Identifier: Apache-2.0
"""Rewrites attention as front ends emit it into chains of the table.

The results are equal as long as no product of queries and keys leaves the range of float32.
"""

from __future__ import annotations

import math
from functools import cache, reduce
from itertools import chain

from tvm import relax

from ..ir.calls import Constant, Values, resolve, tensor_type
from ..table.chain_grammar import SWAP, Chain, read
from ..table.chains import find, in_rank, transposed_axes
from ..table.table import Table
from .rewriting import Bindings, Site, Steps, is_call_of, is_full_of

_SCORES = ("scores * scale + bias", "scores + bias", "scores * scale", "scores")
_SAFE_ATTENTION = (  # PyTorch's form: zeros where all scores of a row are -inf.
    "w = softmax(s, axis=-1)",
    "m = astype(logical_not(equal(s, -1e999)), dtype='int8')",
    "n = logical_not(astype(max(m, axis=[-1], keepdims=True), dtype='bool'))",
    "matmul(where(n, zero, w), value)",
)

_SCALES = (2.0**-5, 1.0)
"""The factors of queries and keys that may be merged; others may keep the product in range."""


def _has_attention(table: Table, operand: str = "query") -> bool:
    """Whether the table has attention as a chain with this operand."""
    return any(
        tensor.name == operand
        for op in table.ops
        if op.chains and op.engine == "matrix"
        for tensor in op.inputs
    )


def scale_once(site: Site) -> Bindings | None:
    """Scale a matmul once, where PyTorch scales both operands by the square root."""
    if not _has_attention(site.table):
        return None
    call = site.call
    factors, operands = [], []
    for operand in call.args:
        scaled = site.value(operand)
        if not is_call_of(scaled, "relax.multiply") or not site.is_used_once(operand):
            return None
        factor = resolve(scaled.args[1], site.values)
        if not isinstance(factor, Constant) or factor.value.numpy().shape != ():
            return None
        low, high = _SCALES
        if "float" not in str(factor.value.dtype) or not low <= factor.value.numpy() <= high:
            return None
        factors.append(factor)
        operands.append(scaled.args[0])
    number = math.prod(factor.value.numpy().astype("float64").item() for factor in factors)
    factor = relax.const(number, str(factors[0].value.dtype))
    steps = Steps(site)
    if {str(factor.value.dtype) for factor in factors} == {"float32"}:
        product = steps.add(relax.op.matmul(*operands, call.attrs.out_dtype))
        return steps.end(relax.op.multiply(product, factor))
    # Without a factor before it, the product might overflow.
    operands[0] = steps.add(relax.op.multiply(operands[0], factor))
    return steps.end(relax.op.matmul(*operands, call.attrs.out_dtype))


def add_biases_first(site: Site) -> Bindings | None:
    """Add up the biases of attention scores, such as positions and a mask, before adding them.

    Not in float16, where a position plus the lowest finite number may overflow.
    """
    product = site.call
    if not _has_attention(site.table, "bias") or not site.is_used_once(product.args[0]):
        return None
    weights = site.value(product.args[0])
    if not is_call_of(weights, "relax.nn.softmax") or weights.attrs.axis not in (
        -1,
        weights.ty.ndim - 1,
    ):
        return None
    scores, biases = weights.args[0], []
    while site.is_used_once(scores) and is_call_of(added := site.value(scores), "relax.add"):
        sides = (added.args, added.args[::-1])
        apart = [
            (left, right)
            for left, right in sides
            if _is_score(left, site.values) and not _is_score(right, site.values)
        ]
        if not apart:
            break
        scores, bias = apart[0]
        biases.append(bias)
    if len(biases) < 2 or str(scores.ty.dtype) != "float32":
        return None
    steps = Steps(site)
    bias = reduce(lambda total, bias: steps.add(relax.op.add(total, bias)), reversed(biases))
    biased = steps.add(relax.op.add(scores, bias))
    softmax = steps.add(relax.op.nn.softmax(biased, weights.attrs.axis))
    return steps.end(relax.op.matmul(softmax, product.args[1], product.attrs.out_dtype))


def widen_bias(site: Site) -> Bindings | None:
    """Reshape a bias to the rank of the scores, which `relax.nn.attention_bias` asks for."""
    call = site.call
    added = site.value(call.args[0])
    if not site.table.entries_of("relax.nn.attention_bias") or not is_call_of(added, "relax.add"):
        return None
    for scores, bias in (added.args, added.args[::-1]):
        product = _product_in(scores, site.values)
        if product is None or _is_score(bias, site.values):
            continue
        if _is_turned(product.args[0], site.values):
            steps = Steps(site)
            wide = _widened(bias, scores, steps)
            if wide is bias:
                return None
            biased = steps.add(relax.op.add(scores, wide))
            return steps.end(relax.op.nn.softmax(biased, call.attrs.axis))
    return None


def _widened(bias: relax.Expr, scores: relax.Expr, steps: Steps) -> relax.Expr:
    """Return a bias with as many dimensions as the scores."""
    missing = scores.ty.ndim - bias.ty.ndim
    if missing <= 0 or not isinstance(bias.ty.shape, relax.ShapeExpr):
        return bias
    return steps.add(relax.op.reshape(bias, [*[1] * missing, *bias.ty.shape.values]))


_SUMS_AND_FACTORS = tuple(f"relax.{op}" for op in ("add", "subtract", "multiply", "divide"))


def _product_in(expr: relax.Expr, values: Values) -> relax.Call | None:
    """Return the matmul that a value derives from by additions and scalings only."""
    value = values.get(expr) if isinstance(expr, relax.Var) else None
    if is_call_of(value, *_SUMS_AND_FACTORS):
        products = (_product_in(operand, values) for operand in value.args)
        return next((product for product in products if product is not None), None)
    return value if is_call_of(value, "relax.matmul") else None


def _is_score(expr: relax.Expr, values: Values) -> bool:
    return _product_in(expr, values) is not None


def _is_turned(query: relax.Expr, values: Values) -> bool:
    """Whether the queries, scaled or not, come from a transposition."""
    value = values.get(query)
    if is_call_of(value, *_SUMS_AND_FACTORS):
        return any(_is_turned(operand, values) for operand in value.args)
    return is_call_of(value, "relax.permute_dims")


@cache
def _safe_attention() -> tuple[Chain, ...]:
    inputs = ["scores", "bias", "value", "zero"]
    return tuple(read((f"s = {scores}", *_SAFE_ATTENTION), inputs) for scores in _SCORES)


def guard_behind_attention(site: Site) -> Bindings | None:
    """Move the guard for fully masked queries after the attention, or drop it if there are none.

    The guard turns NaN weights into zeros; turning their products with the values into zeros is
    equivalent. The bias alone shows which queries are fully masked.
    """
    product = site.call
    if not _has_attention(site.table) or not site.is_used_once(product.args[0]):
        return None
    matches = (find(guarded, site.binding.var, site.values) for guarded in _safe_attention())
    for match in chain.from_iterable(matches):
        scores, bias = match.inputs["scores"], match.inputs.get("bias")
        # Anything but a product might contain a mask itself; float16 scores might overflow.
        if not is_call_of(site.value(scores), "relax.matmul") or _is_score(bias, site.values):
            continue
        zero = match.inputs["zero"]
        if str(scores.ty.dtype) != "float32" or not is_full_of(0, zero, site.values):
            continue
        guarded = site.values[product.args[0]]
        weights = guarded.args[2]
        steps = Steps(site)
        mixed = relax.op.matmul(weights, match.inputs["value"], product.attrs.out_dtype)
        mask = None if bias is None else resolve(bias, site.values)
        if bias is None or (
            isinstance(mask, Constant) and (mask.value.numpy().max(-1) > -math.inf).all()
        ):
            return steps.end(mixed)
        # Not by a row's maximum: TVM's starts from the lowest finite number, not from -inf.
        lowest = relax.const(-math.inf, str(tensor_type(bias.ty)[0]))
        hidden = steps.add(relax.op.equal(_widened(bias, scores, steps), lowest))
        hidden = steps.add(relax.op.astype(hidden, "int8"))
        hidden = steps.add(relax.op.min(hidden, axis=-1, keepdims=True))
        masked = steps.add(relax.op.astype(hidden, "bool"))
        dtype = tensor_type(product.ty)[0]
        return steps.end(relax.op.where(masked, relax.const(0.0, dtype), steps.add(mixed)))
    return None


def swap_key(site: Site) -> Bindings | None:
    """Split a transposition into heads to the front and a swap of the last two dimensions.

    The matmul absorbs the swap, and the operand before it is the keys.
    """
    product = site.call
    if not _has_attention(site.table) or not site.is_used_once(product.args[1]):
        return None
    turned = site.value(product.args[1])
    axes = transposed_axes(turned)
    if turned is None or len(axes) < 3 or axes[-2] != len(axes) - 1:
        return None
    swap = in_rank(SWAP, len(axes))
    if tuple(axes) == swap:
        return None
    steps = Steps(site)
    key = steps.add(relax.op.permute_dims(turned.args[0], [axes[axis] for axis in swap]))
    key = steps.add(relax.op.permute_dims(key, swap))
    return steps.end(relax.op.matmul(product.args[0], key, product.attrs.out_dtype))


def turn_guard(site: Site) -> Bindings | None:
    """Move the guard for fully masked queries after a transposition."""
    call = site.call
    if not _has_attention(site.table) or not site.is_used_once(call.args[0]):
        return None
    guarded = site.value(call.args[0])
    if not is_call_of(guarded, "relax.where") or not _is_score(guarded.args[2], site.values):
        return None
    masked, zero, mixed = guarded.args
    if not is_full_of(0, zero, site.values) or zero.ty.ndim or masked.ty.ndim != mixed.ty.ndim:
        return None
    steps = Steps(site)
    turned = [
        steps.add(relax.op.permute_dims(tensor, call.attrs.axes)) for tensor in (masked, mixed)
    ]
    return steps.end(relax.op.where(turned[0], zero, turned[1]))
