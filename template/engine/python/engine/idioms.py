# SPDX-License-Identifier: Apache-2.0
"""Says in the ops of the table what front ends emit around indices and masks.

What is done for queries that may look at nothing moves behind the attention, so that the ops in
between are the chain that the table knows: the same, unless products of queries and keys are beyond
the range of float32.
"""

from __future__ import annotations

import math
from functools import cache, reduce
from itertools import chain
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from .capability import Constant, Unknown, Values, resolve, tensor_type
from .chains import SWAP, Chain, find, in_rank, read, transposed_axes

# PyTorch's: zeros where all scores of a row are -inf.
_SCORES = ("scores * scale + bias", "scores + bias", "scores * scale", "scores")
_SAFE_ATTENTION = (
    "w = softmax(s, axis=-1)",
    "m = astype(logical_not(equal(s, -1e999)), dtype='int8')",
    "n = logical_not(astype(max(m, axis=[-1], keepdims=True), dtype='bool'))",
    "matmul(where(n, zero, w), value)",
)
_SCALES = (2.0**-5, 1.0)
"""Of queries and keys; other factors may be what keeps their product in the range of its type."""


class Steps:
    """The bindings that replace one.

    Parameters
    ----------
    last
        The binding that is replaced.
    """

    def __init__(self, last: Any) -> None:
        self.bindings: list[Any] = []
        self._last = last
        self._builder = relax.BlockBuilder()

    def add(self, call: Any) -> Any:
        """Bind a call, and return the variable."""
        call = self._builder.normalize(call)
        name = f"{self._last.var.name}_{len(self.bindings)}"
        var = relax.DataflowVar(name, call.ty)
        self.bindings.append(relax.VarBinding(var, call))
        return var

    def end(self, call: Any) -> list[Any] | None:
        """Bind the last call, and return all bindings; none if it has another type."""
        call = self._builder.normalize(call)
        if not tvm_ffi.structural_equal(call.ty, self._last.var.ty):
            return None
        return [*self.bindings, relax.VarBinding(self._last.var, call)]


def is_call_of(op: str, value: Any) -> bool:
    """Whether a value is a call of an op."""
    is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    return is_call and bool(value.op.name == op)


def is_full_of(number: int, tensor: Any, values: Values) -> bool:
    """Whether all elements of a tensor are known to be 0, or 1."""
    known: Any = resolve(tensor, values)
    value: Any = values.get(tensor)
    if is_call_of("relax.full_like", value):
        known = resolve(value.args[1], values)
    if isinstance(known, Constant):
        return bool((known.value.numpy() == number).all())
    return is_call_of("relax.ones_like" if number else "relax.zeros_like", value)


# ---- Indices ------------------------------------------------------------------------------------


def as_take(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return what picks by several indices at once: one index, of these dimensions flattened."""
    call = binding.value
    if not is_call_of("relax.index_tensor", call):
        return None
    data, indices = call.args[0], resolve(call.args[1], values)
    indices = list(indices.fields) if isinstance(indices, relax.Tuple) else [indices]
    try:
        sizes = list(tensor_type(data.ty)[1])
        dtypes = {tensor_type(index.ty)[0] for index in indices}
    except Unknown:
        return None
    count = len(indices)
    picked = [size for size in sizes[:count] if isinstance(size, int)]
    if len(picked) < count or not dtypes <= {"int32", "int64"}:
        return None
    steps = Steps(binding)
    places: Any = None
    for axis, index in enumerate(indices):
        if dtypes != {"int64"}:
            index = steps.add(relax.op.astype(index, "int64"))
        # Each from the end if it is negative: of the sum, nobody could tell.
        known = resolve(index, values)
        if isinstance(known, Constant):
            index = relax.const(_from_start(known.value.numpy(), picked[axis]), "int64")
        else:
            before = steps.add(relax.op.less(index, relax.const(0, "int64")))
            behind = steps.add(relax.op.add(index, relax.const(picked[axis], "int64")))
            index = steps.add(relax.op.where(before, behind, index))
        if axis < count - 1:
            step = relax.const(math.prod(picked[axis + 1 :]), "int64")
            index = steps.add(relax.op.multiply(index, step))
        places = index if places is None else steps.add(relax.op.add(places, index))
    if count > 1:
        rest = data.ty.shape.values[count:]
        data = steps.add(relax.op.reshape(data, [math.prod(picked), *rest]))
    return steps.end(relax.op.take(data, places, axis=0))


def as_forward_take(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return what picks the same without constant indices from the end, or by their remainders.

    PyTorch's importer leaves them as they are, as in `x[:, -1]`; Relax has no meaning for them.
    """
    call = binding.value
    if not is_call_of("relax.take", call) or str(call.attrs.mode) != "fast":
        return None
    indices = resolve(call.args[1], values)
    if not isinstance(indices, Constant) or not (indices.value.numpy() < 0).any():
        return None
    try:
        size = tensor_type(call.args[0].ty)[1][call.attrs.axis or 0]
    except Unknown:
        return None
    if not isinstance(size, int):
        return Steps(binding).end(relax.op.take(*call.args, call.attrs.axis, mode="wrap"))
    forward = relax.const(_from_start(indices.value.numpy(), size), str(indices.value.dtype))
    return Steps(binding).end(relax.op.take(call.args[0], forward, call.attrs.axis))


def _from_start(indices: Any, size: int) -> Any:
    return np.where(indices < 0, indices + size, indices)


# ---- Masks --------------------------------------------------------------------------------------


def as_comparison(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return whether a number differs from itself in the place of whether it is none."""
    call = binding.value
    if not is_call_of("relax.isnan", call):
        return None
    return Steps(binding).end(relax.op.not_equal(call.args[0], call.args[0]))


def as_one_scale(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return a product of matrices that is scaled once; PyTorch scales each by the root."""
    call = binding.value
    if not is_call_of("relax.matmul", call):
        return None
    factors, operands = [], []
    for operand in call.args:
        scaled: Any = values.get(operand)
        if not is_call_of("relax.multiply", scaled) or uses.get(operand) != 1:
            return None
        factor = resolve(scaled.args[1], values)
        if not isinstance(factor, Constant) or factor.value.numpy().shape != ():
            return None
        low, high = _SCALES
        if "float" not in str(factor.value.dtype) or not low <= factor.value.numpy() <= high:
            return None
        factors.append(factor)
        operands.append(scaled.args[0])
    number = math.prod(item.value.numpy().astype("float64").item() for item in factors)
    factor = relax.const(number, str(factors[0].value.dtype))
    steps = Steps(binding)
    if {str(item.value.dtype) for item in factors} == {"float32"}:
        product = steps.add(relax.op.matmul(*operands, call.attrs.out_dtype))
        return steps.end(relax.op.multiply(product, factor))
    # Without a factor before it, a product might be too large.
    operands[0] = steps.add(relax.op.multiply(operands[0], factor))
    return steps.end(relax.op.matmul(*operands, call.attrs.out_dtype))


def as_one_bias(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return attention with one sum of what is added to its scores, such as positions and a mask.

    Not of float16, where the sum of a position and the least number is none.
    """
    product = binding.value
    if not is_call_of("relax.matmul", product) or uses.get(product.args[0]) != 1:
        return None
    weights: Any = values.get(product.args[0])
    if not is_call_of("relax.nn.softmax", weights) or weights.attrs.axis not in (
        -1,
        weights.ty.ndim - 1,
    ):
        return None
    scores, biases = weights.args[0], []
    while uses.get(scores) == 1 and is_call_of("relax.add", values.get(scores)):
        added: Any = values.get(scores)
        sides = (added.args, added.args[::-1])
        apart = [(s, b) for s, b in sides if _is_score(s, values) and not _is_score(b, values)]
        if not apart:
            break
        scores, bias = apart[0]
        biases.append(bias)
    if len(biases) < 2 or str(scores.ty.dtype) != "float32":
        return None
    steps = Steps(binding)
    total = reduce(lambda one, other: steps.add(relax.op.add(one, other)), reversed(biases))
    both = steps.add(relax.op.add(scores, total))
    softmax = steps.add(relax.op.nn.softmax(both, weights.attrs.axis))
    return steps.end(relax.op.matmul(softmax, product.args[1], product.attrs.out_dtype))


def as_biased(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return a softmax behind a bias of as many dimensions as the scores; none if it is one.

    That is what Relax's attention wants, whose heads are turned to the front in between.
    """
    call = binding.value
    added: Any = values.get(call.args[0]) if is_call_of("relax.nn.softmax", call) else None
    if not is_call_of("relax.add", added):
        return None
    for scores, bias in (added.args, added.args[::-1]):
        product = _product_in(scores, values)
        if product is None or _is_score(bias, values):
            continue
        if _is_turned(product.args[0], values):
            steps = Steps(binding)
            wide = _widened(bias, scores, steps)
            if wide is bias:
                return None
            both = steps.add(relax.op.add(scores, wide))
            return steps.end(relax.op.nn.softmax(both, call.attrs.axis))
    return None


def _widened(bias: Any, scores: Any, steps: Steps) -> Any:
    """Return a bias with as many dimensions as the scores."""
    missing = scores.ty.ndim - bias.ty.ndim
    if missing <= 0 or not isinstance(bias.ty.shape, relax.ShapeExpr):
        return bias
    return steps.add(relax.op.reshape(bias, [*[1] * missing, *bias.ty.shape.values]))


_SUMS_AND_FACTORS = tuple(f"relax.{op}" for op in ("add", "subtract", "multiply", "divide"))


def _product_in(expr: Any, values: Values) -> Any | None:
    """Return the product of matrices that a value comes from, by sums and factors."""
    value: Any = values.get(expr) if isinstance(expr, relax.Var) else None
    if any(is_call_of(op, value) for op in _SUMS_AND_FACTORS):
        found = (_product_in(operand, values) for operand in value.args)
        return next((product for product in found if product is not None), None)
    return value if is_call_of("relax.matmul", value) else None


def _is_score(expr: Any, values: Values) -> bool:
    return _product_in(expr, values) is not None


def _is_turned(query: Any, values: Values) -> bool:
    """Whether the queries, or what they are scaled by, are behind a transposition."""
    value: Any = values.get(query)
    if any(is_call_of(op, value) for op in _SUMS_AND_FACTORS):
        return any(_is_turned(operand, values) for operand in value.args)
    return is_call_of("relax.permute_dims", value)


@cache
def _safe_attention() -> tuple[Chain, ...]:
    inputs = ["scores", "bias", "value", "zero"]
    return tuple(read((f"s = {scores}", *_SAFE_ATTENTION), inputs) for scores in _SCORES)


def as_guarded_attention(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return attention with what is done for masked queries behind it, and only if there are any.

    Weights that are not numbers become zero, and so does their product with the values; that some
    are is known from the bias alone.
    """
    product = binding.value
    if not is_call_of("relax.matmul", product) or uses.get(product.args[0]) != 1:
        return None
    found_by = (find(one, binding.var, values) for one in _safe_attention())
    for found in chain.from_iterable(found_by):
        scores, bias = found.inputs["scores"], found.inputs.get("bias")
        # A mask may be in what is no product, and float16 has small numbers only.
        if not is_call_of("relax.matmul", values.get(scores)) or _is_score(bias, values):
            continue
        zero = found.inputs["zero"]
        if str(scores.ty.dtype) != "float32" or not is_full_of(0, zero, values):
            continue
        guarded: Any = values.get(product.args[0])
        weights = guarded.args[2]
        steps = Steps(binding)
        mixed = relax.op.matmul(weights, found.inputs["value"], product.attrs.out_dtype)
        known = None if bias is None else resolve(bias, values)
        if bias is None or (
            isinstance(known, Constant) and (known.value.numpy().max(-1) > -math.inf).all()
        ):
            return steps.end(mixed)
        # Not by the largest number of a row: TVM's own maximum is never less than the least finite
        # one.
        lowest = relax.const(-math.inf, str(tensor_type(bias.ty)[0]))
        hidden = steps.add(relax.op.equal(_widened(bias, scores, steps), lowest))
        hidden = steps.add(relax.op.astype(hidden, "int8"))
        hidden = steps.add(relax.op.min(hidden, axis=-1, keepdims=True))
        masked = steps.add(relax.op.astype(hidden, "bool"))
        dtype = tensor_type(product.ty)[0]
        return steps.end(relax.op.where(masked, relax.const(0.0, dtype), steps.add(mixed)))
    return None


def as_swapped_key(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return a product with a swap of the last two dimensions behind another transposition.

    That is as much to do, since the product does the swap, and what is swapped are the keys.
    """
    product = binding.value
    if not is_call_of("relax.matmul", product) or uses.get(product.args[1]) != 1:
        return None
    turned: Any = values.get(product.args[1])
    axes = transposed_axes(turned)
    if len(axes) < 3 or axes[-2] != len(axes) - 1:
        return None
    swap = in_rank(SWAP, len(axes))
    if tuple(axes) == swap:
        return None
    steps = Steps(binding)
    key = steps.add(relax.op.permute_dims(turned.args[0], [axes[axis] for axis in swap]))
    key = steps.add(relax.op.permute_dims(key, swap))
    return steps.end(relax.op.matmul(product.args[0], key, product.attrs.out_dtype))


def as_turned_guard(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return what is done for masked queries behind a transposition, not before it."""
    call = binding.value
    if not is_call_of("relax.permute_dims", call) or uses.get(call.args[0]) != 1:
        return None
    guarded: Any = values.get(call.args[0])
    if not is_call_of("relax.where", guarded) or not _is_score(guarded.args[2], values):
        return None
    masked, zero, mixed = guarded.args
    if not is_full_of(0, zero, values) or zero.ty.ndim or masked.ty.ndim != mixed.ty.ndim:
        return None
    steps = Steps(binding)
    turned = [steps.add(relax.op.permute_dims(item, call.attrs.axes)) for item in (masked, mixed)]
    return steps.end(relax.op.where(turned[0], zero, turned[1]))
