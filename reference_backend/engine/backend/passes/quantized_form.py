# SPDX-License-Identifier: Apache-2.0
"""Brings quantized models to one form: dequantize, op, quantize.

Exporters put these in different places: one dequantize for several readers, none around ops that
only move data, limits that the following quantize imposes anyway. A composite wants each op between
a dequantize of its own and a quantize.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..ir.calls import Constant, Unknown, Values, numbers_of, resolve, tensor_type, with_arguments
from ..table.capability import Op
from ..table.chains import chains_of, find, transposed_axes
from ..table.elements import CHOSEN, JOINED, MOVED
from ..table.table import Table
from .evaluate import constant_of, fixed_shape
from .rewriting import Bindings, Block, Site, Steps, is_call_of, op_name

QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"

SPLIT = "relax.split"

RESIZE = "relax.image.resize2d"

REARRANGES = ("relax.reshape", "relax.permute_dims")
"""The ops whose results have all elements of their operand, and no others."""


def only_moves(expr: relax.Expr) -> bool:
    """Return whether an expression is a call whose results are elements of its first argument."""
    if not isinstance(expr, relax.Call) or op_name(expr) != RESIZE:
        return op_name(expr) in MOVED
    is_crop = str(expr.attrs.coordinate_transformation_mode) == "tf_crop_and_resize"
    return str(expr.attrs.method) == "nearest_neighbor" and not is_crop


def moves_elements(expr: relax.Expr) -> bool:
    """Return whether an expression is a call whose results are elements of its operands."""
    return op_name(expr) in (*JOINED, SPLIT) or only_moves(expr)


def move_integers(block: Block, table: Table) -> Bindings | None:
    """Move integers instead of real numbers, and drop calls that quantize to the same integers.

    `reshape(dequantize(x))` becomes `dequantize(reshape(x))`, and `quantize(dequantize(x))` with
    the same scale becomes `x`. A value that several calls quantize in the same way is quantized
    once.
    """
    if DEQUANTIZE not in block.by_op:
        return None
    quantized: dict[relax.Expr, list[relax.VarBinding]] = {}
    values: dict[relax.Var, relax.Expr] = dict(block.values)
    builder = relax.BlockBuilder()
    splits: dict[relax.Var, relax.Var] = {}
    result: Bindings = []
    changed = False

    def keep(name: str, value: relax.Expr) -> relax.Var:
        var = relax.DataflowVar(f"{name}_integers", value.ty)
        result.append(relax.VarBinding(var, value))
        values[var] = value
        return var

    for binding in block.bindings:
        value = binding.value
        name = op_name(value) if isinstance(binding, relax.VarBinding) else ""
        new: relax.Expr | None = None
        if name in JOINED or only_moves(value):
            moved = _moved(value, values, table, builder)
            if moved is not None:
                inner, source, axis = moved
                if not isinstance(inner, Constant):
                    inner = keep(binding.var.name, inner)
                new = _dequantize_like(inner, source, axis, builder)
        elif isinstance(value, relax.TupleGetItem):
            split = value.tuple_value
            parted = _split(values.get(split), values, table, builder)
            if parted is not None:
                inner, source = parted
                if split not in splits:
                    splits[split] = keep(split.name, inner)
                part = builder.normalize(relax.TupleGetItem(splits[split], value.index))
                part = keep(binding.var.name, part)
                new = _dequantize_like(part, source, -1, builder)
        elif name == QUANTIZE:
            before = values.get(value.args[0])
            alike = quantized.setdefault(value.args[0], [])
            if is_call_of(before, DEQUANTIZE) and undoes(value, before, values):
                new = before.args[0]
            else:
                earlier = (
                    binding.var for binding in alike if is_alike(value, binding.value, values)
                )
                new = next(earlier, None)
            if new is None:
                alike.append(binding)
        if new is None:
            result.append(binding)
            continue
        changed = True
        values[binding.var] = new
        result.append(relax.VarBinding(binding.var, new))
    return result if changed else None


def moved_parts(call: relax.Call, values: Values) -> list[relax.Expr]:
    """Return the tensors whose elements a call moves."""
    if op_name(call) == "relax.where":
        return list(call.args[1:3])
    first = resolve(call.args[0], values)
    return list(first.fields) if isinstance(first, relax.Tuple) else [call.args[0]]


def move_like(call: relax.Call, parts: Sequence[relax.Expr], border: float) -> relax.Call:
    """Return a call that moves these tensors as another call moves its own."""
    if op_name(call) == "relax.nn.pad":
        return relax.op.nn.pad(parts[0], call.attrs.pad_width, call.attrs.pad_mode, border)
    if op_name(call) == "relax.where":
        return relax.op.where(call.args[0], *parts)
    joins = isinstance(call.args[0].ty, relax.TupleType)
    first = relax.Tuple(parts) if joins else parts[0]
    return relax.Call(call.op, [first, *call.args[1:]], call.attrs, call.ty_args)


def _moved(
    call: relax.Call, values: Values, table: Table, builder: relax.BlockBuilder
) -> tuple[relax.Expr, relax.Call, int] | None:
    """Return the call with integers, its operands' dequantize, and the new axis of the scales."""
    name = op_name(call)
    fields = moved_parts(call, values)
    sources = [values.get(field) for field in fields]
    dequantizes = [source for source in sources if is_call_of(source, DEQUANTIZE)]
    if not dequantizes:
        return None
    source = dequantizes[0]
    dtypes = {str(dequantize.args[0].ty.dtype) for dequantize in dequantizes}
    alike = all(_same_parameters(source, dequantize, values) for dequantize in dequantizes[1:])
    if len(dtypes) > 1 or not alike:
        return None
    scale, zero_point = (resolve(parameter, values) for parameter in source.args[1:3])
    if not isinstance(scale, Constant) or not isinstance(zero_point, Constant):
        return None
    axis = -1
    if scale.value.numpy().size != 1 or zero_point.value.numpy().size != 1:
        moved_axis = _axis_behind(call, int(source.attrs.axis))
        if moved_axis is None:
            return None
        axis = moved_axis
    integers: list[relax.Expr] = []
    for field, value in zip(fields, sources, strict=True):
        part = (
            value.args[0]
            if is_call_of(value, DEQUANTIZE)
            else _integers_of(resolve(field, values), source, values)
        )
        if part is None:
            return None
        integers.append(part)
    number: Constant | None = zero_point
    is_constant = name == "relax.nn.pad" and str(call.attrs.pad_mode) == "constant"
    if is_constant and float(call.attrs.pad_value) != 0:
        number = _integers_of(relax.const(np.float32(call.attrs.pad_value)), source, values)
    if number is None or (name in CHOSEN and scale.value.numpy().flat[0] <= 0):
        return None
    border = float(number.value.numpy().flat[0])
    moved = builder.normalize(move_like(call, integers, border))
    try:
        if tensor_type(moved.ty)[1] != tensor_type(call.ty)[1]:
            return None
    except Unknown:
        return None
    if not _is_taken_too(moved, call, values, table):
        return None
    if isinstance(moved.args[0], Constant):
        moved = constant_of(moved) or moved
    return moved, source, axis


def _integers_of(number: relax.Expr, source: relax.Call, values: Values) -> Constant | None:
    """Return the integers that a dequantize turns into a constant of real numbers, if any."""
    like = relax.op.quantize(number, *source.args[1:3], -1, str(source.args[0].ty.dtype))
    constants = [resolve(operand, values) for operand in like.args]
    if not all(isinstance(constant, Constant) for constant in constants):
        return None
    integers = constant_of(relax.BlockBuilder().normalize(with_arguments(like, constants)))
    real = real_of(source, integers, values) if isinstance(integers, Constant) else None
    is_exact = real is not None and np.array_equal(real.value.numpy(), number.value.numpy())
    return integers if is_exact else None


def _split(
    call: object, values: Values, table: Table, builder: relax.BlockBuilder
) -> tuple[relax.Expr, relax.Call] | None:
    """Return the split of integers, and the dequantize of its operand."""
    if not isinstance(call, relax.Call) or not is_call_of(call, SPLIT):
        return None
    source = values.get(call.args[0])
    if not is_call_of(source, DEQUANTIZE):
        return None
    if not has_one_scale(source, values):
        return None
    moved = builder.normalize(move_like(call, [source.args[0]], 0))
    return (moved, source) if _is_taken_too(moved, call, values, table) else None


def _is_taken_too(moved: relax.Call, call: relax.Call, values: Values, table: Table) -> bool:
    """Whether the table takes a call with integers if it takes the call with real numbers."""
    takes_reals = table.refusal(call, values, asked_later=True) is None
    return not takes_reals or table.refusal(moved, values, asked_later=True) is None


def _axis_behind(call: relax.Call, axis: int) -> int | None:
    """Return where an axis is after a transposition, or a reshape or take that keeps it."""
    order = transposed_axes(call)
    if order:
        return order.index(axis % len(order))
    if op_name(call) == "relax.take" and call.attrs.axis is not None:
        rank, of_indices = (operand.ty.ndim for operand in call.args)
        axis, taken = axis % rank, int(call.attrs.axis) % rank
        return None if axis == taken else axis if axis < taken else axis + of_indices - 1
    if op_name(call) != "relax.reshape":
        return None
    types = [fixed_shape(tensor.ty) for tensor in (call.args[0], call)]
    if types[0] is None or types[1] is None:
        return None
    before, after = types[0][1], types[1][1]
    axis %= len(before)
    size, outer = before[axis], math.prod(before[:axis])
    places = (
        place
        for place, count in enumerate(after)
        if count == size and math.prod(after[:place]) == outer
    )
    return next(places, None)


def _dequantize_like(
    data: relax.Expr, source: relax.Call, axis: int, builder: relax.BlockBuilder
) -> relax.Expr:
    call = relax.op.dequantize(data, source.args[1], source.args[2], axis, source.attrs.out_dtype)
    return builder.normalize(call)


def undoes(call: relax.Call, source: relax.Call, values: Values) -> bool:
    """Whether a quantize returns the integers that a dequantize has read."""
    same_type = str(source.args[0].ty.dtype) == str(call.ty.dtype)
    return same_type and _same_parameters(call, source, values)


def is_alike(first: relax.Call, second: relax.Call, values: Values) -> bool:
    """Whether two quantizes of the same value return the same integers."""
    return str(first.ty.dtype) == str(second.ty.dtype) and _same_parameters(first, second, values)


def _same_parameters(first: relax.Call, second: relax.Call, values: Values) -> bool:
    """Whether two calls have the same scales and zero points."""
    pairs = zip(first.args[1:3], second.args[1:3], strict=True)
    for pair in pairs:
        x, y = (resolve(parameter, values) for parameter in pair)
        if x.same_as(y):
            continue
        if not isinstance(x, Constant) or not isinstance(y, Constant):
            return False
        a, b = x.value.numpy(), y.value.numpy()
        if a.size != b.size or (a.reshape(-1) != b.reshape(-1)).any():
            return False
        if a.size > 1 and int(first.attrs.axis) != int(second.attrs.axis):
            return False
    return True


def compute_bias(site: Site) -> Bindings | None:
    """Compute a dequantize of an int32 constant: a bias, whose scale follows from the op's."""
    data = site.constant(site.call.args[0])
    if data is None or str(data.ty.dtype) != "int32":
        return None
    real = real_of(site.call, data, site.values)
    return None if real is None else site.bind(real)


def interpolate_reals(site: Site) -> Bindings | None:
    """Turn `dequantize(resize2d(x))` into `resize2d(dequantize(x))`, if only that is in the table.

    Interpolated numbers are then not rounded to integers.
    """
    call = site.call
    resize = site.value(call.args[0])
    if not is_call_of(resize, RESIZE) or not site.is_used_once(call.args[0]):
        return None
    if not has_one_scale(call, site.values) or site.table.refusal(resize, site.values) is None:
        return None
    steps = Steps(site)
    first = steps.add(
        relax.op.dequantize(resize.args[0], *call.args[1:3], -1, call.attrs.out_dtype)
    )
    moved = relax.Call(resize.op, [first, *resize.args[1:]], resize.attrs, resize.ty_args)
    return if_taken(site, steps.end(moved))


def if_taken(site: Site, bindings: Bindings | None) -> Bindings | None:
    """Return bindings if the table takes all their calls."""
    calls = [binding.value for binding in bindings or ()]
    taken = all(site.table.refusal(call, site.values, asked_later=True) is None for call in calls)
    return bindings if taken else None


def has_one_scale(call: relax.Call, values: Values) -> bool:
    """Whether a quantize or dequantize has one scale and zero point, both constant."""
    numbers = [resolve(parameter, values) for parameter in call.args[1:3]]
    return all(
        isinstance(number, Constant) and number.value.numpy().size == 1 for number in numbers
    )


def drop_limits(site: Site) -> Bindings | None:
    """Drop a relu or clip whose limits the following quantize imposes anyway."""
    call = site.call
    limit = site.value(call.args[0])
    if not is_call_of(limit, "relax.nn.relu", "relax.clip"):
        return None
    if not site.is_used_once(call.args[0]):
        return None
    scale, zero_point = site.constant(call.args[1]), site.constant(call.args[2])
    if scale is None or zero_point is None:
        return None
    ends = np.iinfo(str(call.ty.dtype))
    steps, zeros = scale.value.numpy(), zero_point.value.numpy().astype("int64")
    lower, upper = 0.0, np.inf
    if is_call_of(limit, "relax.clip"):
        bounds = numbers_of(limit.args[1:3])
        if bounds is None:
            return None
        lower, upper = map(float, bounds)
    # Values beyond a limit saturate to the limit's integer.
    least, most = (np.rint(steps.dtype.type(bound) / steps) + zeros for bound in (lower, upper))
    is_wider = (least <= ends.min).all() and (most >= ends.max).all()
    # A function that only the table's chains know, such as a hard sigmoid.
    functions = [op for op in site.table.ops if op.quantized is not None and not op.relax]
    if not is_wider or ends_a_chain(call.args[0], functions, site.values) or _is_alone(site, limit):
        return None
    return site.bind(
        relax.op.quantize(limit.args[0], *call.args[1:3], call.attrs.axis, call.attrs.out_dtype)
    )


def _is_alone(site: Site, limit: relax.Call) -> bool:
    """Whether a limit is the only op between two types of which nothing rescales at least one."""
    source = site.value(limit.args[0])
    if not is_call_of(source, DEQUANTIZE):
        return False
    entry = site.table.get("quantize")
    types = entry.quantized.dtypes if entry is not None and entry.quantized is not None else ()
    return not {str(source.args[0].ty.dtype), str(site.call.ty.dtype)} <= set(types)


def ends_a_chain(expr: relax.Expr, ops: Sequence[Op], values: Values) -> bool:
    """Whether a value is the result of a chain of one of these ops of the table."""
    chains = (chain for op in ops for chain in chains_of(op))
    return any(next(find(chain, expr, values), None) is not None for chain in chains)


def real_of(source: relax.Call, data: Constant, values: Values) -> Constant | None:
    """Compute a dequantize of integers; None if its scales are not constant, or `data` is real."""
    if not str(data.ty.dtype).startswith(("int", "uint")):
        return None
    scale, zero_point = (resolve(parameter, values) for parameter in source.args[1:3])
    if not isinstance(scale, Constant) or not isinstance(zero_point, Constant):
        return None
    numbers, steps, zeros = (constant.value.numpy() for constant in (data, scale, zero_point))
    if steps.size > 1:
        axis = int(source.attrs.axis) % numbers.ndim
        shape = [-1 if index == axis else 1 for index in range(numbers.ndim)]
        steps = steps.reshape(shape)
        zeros = zeros.reshape(shape) if zeros.size > 1 else zeros.reshape(())
    else:
        steps, zeros = steps.reshape(()), zeros.reshape(())
    real = (numbers.astype("int64") - zeros.astype("int64")).astype(steps.dtype) * steps
    return relax.const(np.asarray(real.astype(str(source.ty.dtype))).reshape(numbers.shape))
