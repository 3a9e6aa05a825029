# SPDX-License-Identifier: Apache-2.0
"""The composites of this backend, derived from its table.

Each op of the table is a composite on its own, and one with what it `fuses`: a scale, bias,
residual and activation behind it, a transposed operand before it. There is one pattern per last op;
all parts before it are optional, which keeps the number of patterns small. They are ordinary TVM
patterns registered as `<backend>.<label>`, so TVM's own `FuseOpsByPattern` works with them too.
Labels are for people: the codegen reads the body of a composite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax
from tvm.relax.backend.pattern_registry import register_patterns
from tvm.relax.dpl import DFPattern, is_const, is_op, wildcard

from .backend import BACKEND, OPS, vendor
from .calls import Constant, Size, Unknown, Values, resolve, tensor_type
from .capability import Fuses, Op
from .chain_grammar import count_steps
from .chains import chains_of, find
from .chains import pattern as pattern_of
from .chip import ROUNDINGS
from .table import Table

TABLE = Table(
    OPS,
    vendor("capabilities", "DECLINED_BY_SDK", None),
    chip=vendor("capabilities", "CHIP", None),
    limits=vendor("capabilities", "LIMITS", None),
    extra_ops=vendor("capabilities", "EXTRA_OPS", ()),
)
"""The ops of `patterns.py`, within the limits of `vendor/capabilities.py`."""

Pattern = tuple[str, DFPattern, dict[str, DFPattern], Callable[[Any], bool]]
"""Name, pattern, the parts that its check reads, and the check, as TVM takes them."""

_registered = False


def register() -> None:
    """Register the patterns with TVM, once in a process."""
    global _registered
    if not _registered:
        # As tuples: TVM releases those before the interpreter ends.
        register_patterns(make_patterns(TABLE))
        rule = TABLE.chip.requantize
        set_rule = tvm_ffi.get_global_func(f"{BACKEND}.codegen.set_requantization", True)
        if set_rule is not None:  # A board has no codegen.
            set_rule(rule.multiplier_bits, *rule.shifts, ROUNDINGS.index(rule.rounding))
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
        From the least to the most specific: in TVM, later ones win.
    """
    composites = [composite for op in table.ops for composite in _composites(op, table)]
    composites += [composite for op in table.ops for composite in _chains(op, table)]
    composites += [composite for op in table.ops for composite in _weight_only(op, table)]
    if computes_quantized(table):
        composites += [composite for op in table.ops for composite in _quantized(op, table)]
    composites.sort(key=lambda composite: composite[0])
    return [pattern for _, pattern in composites]


ROLES = ("scale", "bias", "residual", "activation")
"""What may follow an op in a composite, in this order."""

Parts = dict[str, DFPattern]
Rank = tuple[int, ...]


# The rank of a chain without an op before it: what is behind an op that fuses nothing but a chain.
_CHAIN = 100
# Composites of weights that stay integers hold those of real numbers, as those of quantised tensors
# hold both.
_WEIGHT_ONLY = 200
_QUANTIZED = 300


def _chains(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composite of an entry that has only chains."""
    chains = chains_of(op) if not op.relax else ()
    inputs = {item.name: wildcard() for item in op.inputs}
    for chain in chains:
        last = pattern_of(chain.node, inputs)
        rank = (_CHAIN, count_steps(chain.node))
        yield rank, _pattern(table, op, op.name, last, {"chain": last}, op)


def _composites(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites around one op; of two that match, the one of higher rank wins."""
    if not op.relax:
        return
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
            for rank, pattern in _around(op, table, label, anchor, parts):
                yield (*rank, count), pattern


def _around(
    op: Op, table: Table, label: str, anchor: DFPattern, parts: Parts
) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites of an op with all that it fuses behind it."""
    yield (0,), _pattern(table, op, label, anchor, parts)
    for rank, (end, pattern, known) in enumerate(_tails(op, table, anchor, parts), 1):
        yield (rank,), _pattern(table, op, f"{label}_{end}", pattern, known)
    for size, entry, pattern, known in _chain_tails(op, table, anchor, parts):
        name = f"{label}_{entry.name}"
        yield (_CHAIN + 1, size), _pattern(table, op, name, pattern, known, entry)


def _weight_only(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites of real numbers and of weights that stay integers."""
    if not op.takes_integer_weights or table.get("dequantize") is None:
        return
    weight = _dequantized()
    # Blocks are rows of a matrix, which are put back into the shape of the weight.
    blocks = _call("relax.reshape", weight)
    turned = _call("relax.permute_dims", blocks | weight)
    anchor = _call(op.relax, wildcard(), turned | blocks | weight)
    parts = {"anchor": anchor, "weight": weight, "transpose1": turned}
    for rank, pattern in _around(op, table, f"weight_only_{op.name}", anchor, parts):
        yield (_WEIGHT_ONLY, *rank), pattern


def _quantized(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites of an op that compute with quantised tensors."""
    if op.quantized is None or not op.relax:
        return
    matrix = op.engine == "matrix"
    places = range(len(op.inputs))
    # Products are of integers alone; element-wise ops may read real numbers beside them.
    for count in [len(places)] if matrix else [index + 1 for index in places]:
        for chosen in combinations(places, count):
            arguments = [_dequantized() if index in chosen else wildcard() for index in places]
            anchor = _call(op.relax, *arguments)
            parts = {"anchor": anchor}
            parts |= {f"dequantize{index}": arguments[index] for index in chosen}
            tails = [("", anchor, parts), *_tails(op, table, anchor, parts, _dequantized())]
            ends = dict.fromkeys(item.relax for item in _quantized_activations(table))
            if ends and not matrix:
                last = reduce(or_, (_call(name, anchor) for name in ends))
                tails.append(("activation", last, {**parts, "activation": last}))
            for rank, (end, last, known) in enumerate(tails):
                label = "_".join(filter(None, ("quantized", op.name, end)))
                if matrix:
                    to_real = _pattern(table, op, f"{label}{TO_REAL}", last, known)
                    yield (_QUANTIZED, count, rank, 0), to_real
                quantize = _call("relax.quantize", last, wildcard(), wildcard())
                known = {**known, "quantize": quantize}
                yield (_QUANTIZED, count, rank, 1), _pattern(table, op, label, quantize, known)


def computes_quantized(table: Table) -> bool:
    """Whether composites may begin and end with quantised tensors."""
    return all(table.get(name) is not None for name in ("quantize", "dequantize"))


def _quantized_activations(table: Table) -> list[Op]:
    """Return what may follow an element-wise op between dequantize and quantize."""
    return [op for op in table.ops if op.activation and op.relax and op.quantized is not None]


TO_REAL = "_to_real"
"""The end of the labels of composites that take integers and give real numbers."""


def _dequantized() -> DFPattern:
    return _call("relax.dequantize", wildcard(), wildcard(), wildcard())


def _tails(
    op: Op,
    table: Table,
    pattern: DFPattern,
    parts: Parts,
    residual: DFPattern | None = None,
) -> Iterator[tuple[str, DFPattern, Parts]]:
    """Generate the patterns of an op with an epilogue, one for each last op."""
    for role, last, known in _sums(op, pattern, parts, residual):
        yield role, last, known
    relax_ops = dict.fromkeys(entry.relax for entry in table.activations_of(op) if entry.relax)
    for end, before, known in _ends(op, pattern, parts, residual) if relax_ops else []:
        last = reduce(or_, (_call(name, before) for name in relax_ops))
        yield end, last, {**known, "activation": last}


def _chain_tails(
    op: Op, table: Table, pattern: DFPattern, parts: Parts
) -> Iterator[tuple[int, Op, DFPattern, Parts]]:
    """Generate the patterns that end in a chain, one each, since a chain is not optional."""
    for entry in table.activations_of(op):
        for chain in chains_of(entry) if not entry.relax else ():
            for _, before, known in _ends(op, pattern, parts):
                last = pattern_of(chain.node, {entry.inputs[0].name: before})
                yield count_steps(chain.node), entry, last, {**known, "chain": last}


def _sums(
    op: Op, pattern: DFPattern, parts: Parts, residual: DFPattern | None = None
) -> Iterator[tuple[str, DFPattern, Parts]]:
    """Generate the sums behind an op; a residual may also be what `residual` matches."""
    fuses = op.fuses or Fuses()
    for role, wanted in (
        ("scale", fuses.scale),
        ("bias", fuses.bias is not None),
        ("residual", fuses.residual),
    ):
        if wanted:
            operand = is_const() if role == "scale" else wildcard()
            if role == "residual" and residual is not None:
                operand = residual | operand
            last = _scaled(pattern, operand) if role == "scale" else _either(pattern, operand)
            parts = {**parts, role: operand, f"{role} call": last}
            yield role, last, parts
            pattern = last | pattern


def _ends(
    op: Op, pattern: DFPattern, parts: Parts, operand: DFPattern | None = None
) -> list[tuple[str, DFPattern, Parts]]:
    """Return the pattern of everything before an activation.

    An add could be the bias or the residual, so the residual is not just optional.
    """
    before, known = pattern, parts
    residual = []
    for role, last, more in _sums(op, pattern, parts, operand):
        if role == "residual":
            residual = [("residual_activation", last, more)]
        else:
            before, known = last | before, more
    return [("activation", before, known), *residual]


def _label(op: Op, absorbed: tuple[int, ...]) -> str:
    if not absorbed:
        return op.name
    if op.relax == "relax.matmul" and absorbed == (1,):
        return "linear"
    return op.name + "_transposed" + "".join(f"_{index}" for index in absorbed)


def _call(op: str, *arguments: DFPattern) -> DFPattern:
    return is_op(op)(*arguments, varg_default_wildcard=True)


def _either(pattern: DFPattern, operand: DFPattern, op: str = "relax.add") -> DFPattern:
    return _call(op, pattern, operand) | _call(op, operand, pattern)


def _scaled(pattern: DFPattern, factor: DFPattern) -> DFPattern:
    return _either(pattern, factor, "relax.multiply") | _call("relax.divide", pattern, factor)


def label_of(label: str, parts: Mapping[str, Any], table: Table) -> str:
    """Return the label of a composite with all its parts.

    Parameters
    ----------
    label
        The name of the pattern, without the backend.
    parts
        Its annotated parts.
    table
        The capabilities.

    Returns
    -------
    label
        Such as "conv2d_bias_relu" for a match of "conv2d_activation".
    """
    roles = [role for role in ROLES if role in parts]
    base = label.removesuffix(TO_REAL)
    while base.rpartition("_")[2] in roles:
        base = base.rpartition("_")[0]
    if "activation" in parts:
        entries = table.entries_of(parts["activation"].op.name)
        roles[-1:] = [entry.name for entry in entries if entry.activation][:1]
    if "chain" in parts and "anchor" in parts:
        return _with_chain(label, roles, table)
    return "_".join([base, *roles]) + (TO_REAL if label.endswith(TO_REAL) else "")


def _with_chain(label: str, roles: list[str], table: Table) -> str:
    """Insert roles between the name of an op and the chain behind it."""
    names = (entry.name for entry in table.ops if label.endswith(f"_{entry.name}"))
    chain = max(names, key=len)
    return "_".join([label.removesuffix(f"_{chain}"), *roles, chain])


def _pattern(
    table: Table, op: Op, label: str, pattern: DFPattern, parts: Parts, chain: Op | None = None
) -> Pattern:
    def check(match: Any) -> bool:
        reason = _chain_refusal(table, chain, match) if chain is not None else None
        if reason is None and op is not chain:
            reason = _refusal(table, op, match)
        if reason is None:
            return True
        # The partitioner collects reasons; TVM's own pass ignores them.
        reasons = getattr(match, "reasons", None)
        if reason and reasons is not None:
            reasons.append(reason)
        return False

    return f"{BACKEND}.{label}", pattern, parts, check


def _refusal(table: Table, op: Op, match: Any) -> str | None:
    """Return why a match (TVM's `PatternCheckContext` or similar) is no composite."""
    parts = match.annotated_expr
    anchor = parts["anchor"]
    values: Values = getattr(match, "values", {})
    # The partitioner, whose matches have `values`, asks the driver about each composite anyway.
    known = {
        "bind_constants": getattr(match, "bind_constants", True),
        "asked_later": hasattr(match, "values"),
    }
    reason = table.refusal(anchor, values, op=op, **known)
    if reason is None and "activation" in parts:
        call = parts["activation"]
        refusals = [
            table.refusal(call, values, op=entry, **known)
            for entry in table.activations_of(op) or _quantized_activations(table)
            if entry.relax == call.op.name
        ]
        reason = None if None in refusals else refusals[0]
    if reason is None and "weight" in parts:
        reason = _weight_refusal(op, parts["weight"], values, known["bind_constants"])
    if reason is None and op.quantized is not None:
        reason = _quantized_refusal(op, parts, values, known["bind_constants"])
    if reason is not None:
        return reason

    escaping = escapes(match)
    if escaping is not None:
        return f"{op.name}: '{escaping.name}' inside of it is used elsewhere"
    for index in op.absorbs_transpose:
        transpose = parts.get(f"transpose{index}")
        if transpose is not None and not _swaps_last_dimensions(transpose):
            return f"{op.name}: its operand is transposed in another way than by a swap of the last"
    calls = [parts[f"{role} call"] for role in ROLES if f"{role} call" in parts]
    if not calls:
        return None

    try:
        dtype, shape = tensor_type(anchor.ty)
        if any(tensor_type(call.ty) != (dtype, shape) for call in calls):
            return f"{op.name}: the result grows where something is added to it"
        if "scale" in parts and any(size != 1 for size in tensor_type(parts["scale"].ty)[1]):
            return f"{op.name}: a scale must be a single number"
        if "residual" in parts and tensor_type(parts["residual"].ty) != (dtype, shape):
            return f"{op.name}: a residual must have the dtype and shape of the result"
        if "bias" in parts:
            return _bias_refusal(op, parts["bias"], dtype, shape, match)
    except Unknown as unknown:
        return f"{op.name}: {unknown} what is added"
    return None


def _quantized_refusal(op: Op, parts: Mapping[str, Any], values: Values, bound: bool) -> str | None:
    """Return why the op cannot compute with the quantised tensors of a match."""
    assert op.quantized is not None
    calls = {name: call for name, call in parts.items() if name.startswith("dequantize")}
    rank = len(parts["anchor"].ty.shape)
    of_result = rank - 1 if op.relax == "relax.matmul" else 1
    channel = op.quantized.channel
    for name, call in calls.items():
        index = int(name.removeprefix("dequantize"))
        who = f"{op.name}: '{op.inputs[index].name}'"
        dtype, shape = tensor_type(call.args[0].ty)
        axis = channel % len(shape) if index == 1 and channel is not None else None
        reason = _scale_refusal(op, call, who, values, axis)
        if reason is not None:
            return reason
        scales = resolve(call.args[1], values).value.numpy().size
        channels = tensor_type(parts["anchor"].ty)[1][of_result] if scales > 1 else scales
        if channels != scales:
            return f"{who} has {scales} scales for {channels} channels of the result"
    if "quantize" in parts:
        return _scale_refusal(op, parts["quantize"], f"{op.name}: the result", values, None)
    if calls and not bound:
        return f"{op.name}: its scales must be constants; bind_constants is off"
    return None


def _weight_refusal(op: Op, call: Any, values: Values, bound: bool) -> str | None:
    """Return why weights cannot stay integers; the codegen knows where scales may change."""
    assert op.quantized is not None
    if not bound:
        return f"{op.name}: its weights must be constants; bind_constants is off"
    if any(not isinstance(resolve(item, values), Constant) for item in call.args):
        return f"{op.name}: '{op.inputs[1].name}' is dequantized, but no constant"
    dtype = tensor_type(call.args[0].ty)[0]
    if dtype not in op.quantized.dtypes:
        supported = ", ".join(op.quantized.dtypes)
        return f"{op.name}: '{op.inputs[1].name}' is {dtype}; supported, quantised: {supported}"
    return None


def _scale_refusal(op: Op, call: Any, who: str, values: Values, channel: int | None) -> str | None:
    """Return why a dequantize or quantize is not among those that an op computes with."""
    assert op.quantized is not None
    quantize = call.op.name == "relax.quantize"
    dtype, shape = tensor_type(call.ty if quantize else call.args[0].ty)
    if dtype not in op.quantized.dtypes:
        return f"{who} is {dtype}; supported, quantised: {', '.join(op.quantized.dtypes)}"
    scale, zero_point = (resolve(item, values) for item in call.args[1:3])
    if not isinstance(scale, Constant) or not isinstance(zero_point, Constant):
        return f"{who} has no constant scale and zero point"
    if str(scale.ty.dtype) != "float32":
        return f"{who} has a {scale.ty.dtype} scale; supported: float32"
    steps, zeros = scale.value.numpy(), zero_point.value.numpy()
    if not (np.isfinite(steps) & (steps > 0)).all():
        return f"{who} has a scale that is no positive number"
    if (zeros != zeros.flat[0]).any():
        return f"{who} has several zero points; supported: one"
    axis = int(call.attrs.axis) % len(shape) if shape else 0
    if steps.size > 1 and axis != channel:
        along = "one" if channel is None else f"one, or one for each channel, along axis {channel}"
        return f"{who} has {steps.size} scales along axis {axis}; supported: {along}"
    return None


def _chain_refusal(table: Table, op: Op, match: Any) -> str | None:
    """Return why the calls at the end of a match are no chain, "" if only constants differ.

    Patterns do not compare constants.
    """
    bindings = match.matched_bindings
    known: Values = getattr(match, "values", {})
    values = known or dict(bindings.items())
    call = match.annotated_expr["chain"]
    (var,) = (var for var, value in bindings.items() if value.same_as(call))
    bound = getattr(match, "bind_constants", True)
    reason: str | None = ""
    for found in (item for chain in chains_of(op) for item in find(chain, var, values)):
        if any(item not in bindings for item in found.calls):
            continue
        shapes = [item.ty.shape for item in found.calls.values()]
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


_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")


def _is_parameter(expr: Any, match: Any) -> bool:
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


def escapes(match: Any) -> Any | None:
    """Return a variable inside a match that is used outside of it, if there is one.

    A composite with such a variable would have two results, could depend on itself through its
    users, or would have to compute the variable twice.

    Parameters
    ----------
    match
        TVM's `PatternCheckContext` or similar.

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
    # Adding a value to itself is no residual. The matcher gives variables or values.
    for role in ("bias", "residual"):
        operand = match.annotated_expr.get(role)
        if isinstance(operand, relax.Call) and operand.op.name == "relax.dequantize":
            continue
        for var, value in match.matched_bindings.items():
            if operand is not None and (operand.same_as(var) or operand.same_as(value)):
                return var
    return None


def _swaps_last_dimensions(call: Any) -> bool:
    rank = call.ty.ndim
    axes = call.attrs.axes
    order = list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]
