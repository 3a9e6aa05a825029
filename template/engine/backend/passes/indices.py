# SPDX-License-Identifier: Apache-2.0
"""Rewrites of indices, of paddings that are takes, and of empty tensors."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ..ir.calls import Constant, Unknown, items_of, resolve, tensor_type
from ..table.table import Table
from .evaluate import fixed_shape
from .quantized_form import DEQUANTIZE, if_taken
from .rewriting import Bindings, Block, Site, Steps, is_call_of, op_name


def flatten_index(site: Site) -> Bindings | None:
    """Rewrite indexing by several tensors as one `take` on the flattened dimensions."""
    call = site.call
    if not site.table.entries_of("relax.take"):
        return None
    data, indices = call.args[0], resolve(call.args[1], site.values)
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
    steps = Steps(site)
    places = None
    for axis, index in enumerate(indices):
        if dtypes != {"int64"}:
            index = steps.add(relax.op.astype(index, "int64"))
        # Negative indices count from the end, which the sum would hide.
        constant = resolve(index, site.values)
        if isinstance(constant, Constant):
            index = _from_start(constant, picked[axis])
        else:
            before = steps.add(relax.op.less(index, relax.const(0, "int64")))
            behind = steps.add(relax.op.add(index, relax.const(picked[axis], "int64")))
            index = steps.add(relax.op.where(before, behind, index))
        if axis < count - 1:
            step = relax.const(math.prod(picked[axis + 1 :]), "int64")
            index = steps.add(relax.op.multiply(index, step))
        places = index if places is None else steps.add(relax.op.add(places, index))
    if count > 1:
        kept = data.ty.shape.values[count:]
        data = steps.add(relax.op.reshape(data, [math.prod(picked), *kept]))
    return steps.end(relax.op.take(data, places, axis=0))


def put_by_places(site: Site) -> Bindings | None:
    """Rewrite `index_put`, which has a tensor of indices for each axis, as one `scatter_nd`."""
    data, indices, values = site.call.args
    indices = resolve(indices, site.values)
    fields = items_of(indices.fields) if isinstance(indices, relax.Tuple) else []
    types = [fixed_shape(index.ty) for index in fields]
    _, count = fixed_shape(values.ty) or ("", ())
    if not site.table.entries_of("relax.scatter_nd") or len(fields) != data.ty.ndim:
        return None
    shapes = [shape for dtype, shape in filter(None, types) if dtype in ("int32", "int64")]
    if len(shapes) < len(fields):
        return None
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return None
    if math.prod(count) != math.prod(shape):
        return None
    steps = Steps(site)
    places = []
    for index in fields:
        if str(index.ty.dtype) != "int64":
            index = steps.add(relax.op.astype(index, "int64"))
        places.append(steps.add(relax.op.broadcast_to(index, shape)))
    stacked = steps.add(relax.op.stack(places, axis=len(shape)))
    if count != shape:
        values = steps.add(relax.op.reshape(values, shape))
    reduction = "add" if site.call.attrs.accumulate else "update"
    return steps.end(relax.op.scatter_nd(data, stacked, values, reduction))


def count_from_start(site: Site) -> Bindings | None:
    """Count negative constant indices from the start, or take them modulo a symbolic size.

    PyTorch's importer leaves them as they are, as in `x[:, -1]`; Relax does not define them.
    """
    call = site.call
    if str(call.attrs.mode) != "fast":
        return None
    indices = resolve(call.args[1], site.values)
    if not isinstance(indices, Constant) or not (indices.value.numpy() < 0).any():
        return None
    try:
        size = tensor_type(call.args[0].ty)[1][call.attrs.axis or 0]
    except Unknown:
        return None
    if not isinstance(size, int):
        return Steps(site).end(relax.op.take(*call.args, call.attrs.axis, mode="wrap"))
    forward = _from_start(indices, size)
    return Steps(site).end(relax.op.take(call.args[0], forward, call.attrs.axis))


def _from_start(indices: Constant, size: int) -> Constant:
    positions = indices.value.numpy()
    return relax.const(
        np.where(positions < 0, positions + size, positions), str(indices.value.dtype)
    )


def take_rows(site: Site) -> Bindings | None:
    """Turn `take(dequantize(x), rows)` into a dequantize of the rows and their scales.

    A row of a constant, such as a table of embeddings, has a scale, or one for each of its groups.
    """
    call = site.call
    table, indices = call.args
    source = site.value(table)
    while is_call_of(source, "relax.reshape", "relax.astype"):
        source = site.value(source.args[0])
    table_type = fixed_shape(table.ty)
    if not is_call_of(source, DEQUANTIZE) or table_type is None or call.attrs.axis is None:
        return None
    shape = table_type[1]
    data, scales, zeros = (site.constant(operand) for operand in source.args)
    rank, count = len(shape), shape[0]
    if data is None or scales is None or zeros is None or int(call.attrs.axis) % rank:
        return None
    steps = scales.value.numpy()
    if steps.size == 1 or int(source.attrs.axis) % data.ty.ndim or steps.size % count:
        return None
    added = Steps(site)
    groups = steps.size // count
    places = indices if indices.ty.ndim == 1 else added.add(relax.op.reshape(indices, (-1,)))

    def taken(constant: Constant, *sizes: int) -> relax.Expr:
        by_row = relax.const(constant.value.numpy().reshape(count, *sizes), str(constant.ty.dtype))
        return added.add(relax.op.take(by_row, places, 0, str(call.attrs.mode)))

    def by_group(constant: Constant) -> relax.Expr:
        if groups == 1:
            return taken(constant)
        return added.add(relax.op.reshape(taken(constant, groups), (-1,)))

    numbers = taken(data, math.prod(shape[1:]))
    if groups > 1:
        size = math.prod(shape) // steps.size
        numbers = added.add(relax.op.reshape(numbers, (-1, size)))
    first_zero = zeros.value.numpy().flat[0]
    has_one_zero = (zeros.value.numpy() == first_zero).all()
    zero = relax.const(first_zero, str(zeros.ty.dtype)) if has_one_zero else by_group(zeros)
    rows = relax.op.dequantize(numbers, by_group(scales), zero, 0, source.attrs.out_dtype)
    real = added.add(rows)
    last = relax.op.reshape(real, call.ty.shape)
    if real.ty.dtype != call.ty.dtype:
        last = relax.op.astype(added.add(last), str(call.ty.dtype))
    bindings = added.end(last)
    # Also on the host, rows are less work than the whole table.
    on_host = site.table.refusal(call, site.values, asked_later=True) is not None
    return bindings if on_host else if_taken(site, bindings)


_PADDINGS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""NumPy's names for the modes of `relax.nn.pad`."""


def pad_by_take(site: Site) -> Bindings | None:
    """Rewrite padding with the input's own values as one `take` per axis with constant indices."""
    call = site.call
    mode = _PADDINGS.get(str(call.attrs.pad_mode))
    if mode is None or not site.table.entries_of("relax.take"):
        return None
    if site.table.refusal(call, site.values, asked_later=True) is None:
        return None  # The NPU pads by itself.
    try:
        _, shape = tensor_type(call.args[0].ty)
    except Unknown:
        return None
    widths = [int(width) for width in call.attrs.pad_width]
    steps = Steps(site)
    data, last = call.args[0], None
    for axis, size in enumerate(shape):
        before, after = widths[2 * axis : 2 * axis + 2]
        if not before and not after:
            continue
        # Implementations differ in how they repeat a border larger than its source.
        largest = size - (mode == "reflect") if isinstance(size, int) else 0
        if min(before, after) < 0 or (mode != "edge" and max(before, after) > largest):
            return None
        if not isinstance(size, int):
            return None
        data = data if last is None else steps.add(last)
        indices = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
        last = relax.op.take(data, relax.const(indices.astype("int64"), "int64"), axis)
        typed = relax.BlockBuilder().normalize(last)
        if site.table.refusal(typed, site.values, asked_later=True) is not None:
            return None
    return steps.end(relax.op.broadcast_to(data, call.ty.shape) if last is None else last)


def drop_empties(block: Block, table: Table) -> Bindings | None:
    """Drop empty operands of a concatenation; turn other empty values into constants.

    Exported rotary embeddings have them for the part of each head that is not rotated.
    """
    result: Bindings = []
    changed = False
    for binding in block.bindings:
        value = binding.value
        new = None
        if isinstance(binding, relax.VarBinding) and isinstance(value, relax.Call):
            dtype, shape = fixed_shape(value.ty) or ("", ())
            if 0 in shape and op_name(value):
                new = relax.const(np.zeros(shape, dtype), dtype)
            elif op_name(value) == "relax.concat":
                new = _without_empties(value, block)
        changed = changed or new is not None
        result.append(binding if new is None else relax.VarBinding(binding.var, new))
    return result if changed else None


def _without_empties(call: relax.Call, block: Block) -> relax.Expr | None:
    operands = resolve(call.args[0], block.values)
    if not isinstance(operands, relax.Tuple):
        return None
    fields = list(operands.fields)
    filled = [field for field in fields if not _is_empty(field)]
    if len(filled) == len(fields) or not filled:
        return None
    return filled[0] if len(filled) == 1 else relax.op.concat(filled, call.attrs.axis)


def _is_empty(tensor: relax.Expr) -> bool:
    shape = getattr(tensor.ty, "shape", None)
    sizes = shape.values if isinstance(shape, relax.ShapeExpr) else []
    return any(getattr(size, "value", None) == 0 for size in sizes)
