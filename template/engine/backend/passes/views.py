# SPDX-License-Identifier: Apache-2.0
"""Rewrites of reshapes and transpositions, also around matmuls."""

from __future__ import annotations

import tvm_ffi
from tvm import relax

from ..ir.calls import Unknown, tensor_type
from ..table.chain_grammar import SWAP
from ..table.chains import in_rank, transposed_axes
from .rewriting import Bindings, Site, is_call_of, op_name


def simplify_view(site: Site) -> Bindings | None:
    """Drop casts and broadcasts to the same type; turn other views into reshapes."""
    call = site.call
    name = op_name(call)
    try:
        if name in ("relax.broadcast_to", "relax.astype"):
            if tensor_type(call.ty) == tensor_type(call.args[0].ty):
                return site.bind(call.args[0])
        elif (
            name in ("relax.expand_dims", "relax.squeeze")
            and not site.table.entries_of(name)
            and site.table.entries_of("relax.reshape")
        ):
            tensor_type(call.ty)
            view = relax.op.reshape(call.args[0], call.ty.shape)
            return site.bind(view)
    except Unknown:
        pass
    return None


def merge_transposes(site: Site) -> Bindings | None:
    """Merge consecutive transpositions into one, or none if they cancel."""
    call = site.call
    axes, data = transposed_axes(call), call
    changed = False
    while axes:
        data = data.args[0]
        inner = site.value(data)
        before = transposed_axes(inner)
        # Keep a value with other readers, so that it connects them to one region.
        if not before or not site.is_used_once(data):
            break
        axes, data, changed = [before[axis] for axis in axes], inner, True
    if not changed:
        return None
    transposed = data if axes == sorted(axes) else relax.op.permute_dims(data, axes)
    return site.bind(transposed)


def unflatten_swap(site: Site) -> Bindings | None:
    """Swap the last two dimensions in place; ONNX's exporter flattens the batch around it."""
    view = site.call
    if not site.is_used_once(view.args[0]):
        return None
    turned = site.value(view.args[0])
    if turned is None or transposed_axes(turned) != [0, 2, 1]:
        return None
    if not site.is_used_once(turned.args[0]):
        return None
    flat = site.value(turned.args[0])
    if not is_call_of(flat, "relax.reshape"):
        return None
    data = flat.args[0]
    try:
        shapes = [tensor_type(tensor.ty)[1] for tensor in (data, flat, view)]
    except Unknown:
        return None
    wide, merged, result = shapes
    if len(wide) < 3 or 0 in wide or merged[-2:] != wide[-2:]:
        return None
    if result != (*wide[:-2], wide[-1], wide[-2]):
        return None
    swap = in_rank(SWAP, len(wide))
    return site.bind(relax.op.permute_dims(data, swap))


def unflatten_matmul(site: Site) -> Bindings | None:
    """Restore the batch dimensions of a matmul, which PyTorch flattens around it."""
    view = site.call
    if not site.is_used_once(view.args[0]):
        return None
    product = site.value(view.args[0])
    if not is_call_of(product, "relax.matmul"):
        return None
    values = (site.value(operand) for operand in product.args)
    flat = [value for value in values if is_call_of(value, "relax.reshape")]
    if len(flat) < 2:
        return None
    operands = [operand.args[0] for operand in flat]
    try:
        shapes = [tensor_type(tensor.ty)[1] for tensor in (*operands, *flat, view)]
    except Unknown:
        return None
    *wide, result = (shapes[index] for index in (0, 1, 4))
    if any(len(shape) != 3 for shape in shapes[2:4]) or min(map(len, (*wide, result))) < 2:
        return None
    if any(shape[:-2] != result[:-2] or 0 in shape for shape in wide):
        return None
    if any(
        unflattened[-2:] != flattened[-2:]
        for unflattened, flattened in zip(wide, shapes[2:4], strict=True)
    ):
        return None
    call = relax.op.matmul(*operands, out_dtype=product.attrs.out_dtype)
    call = relax.BlockBuilder().normalize(call)
    if not tvm_ffi.structural_equal(call.ty, view.ty):
        return None
    return (
        None
        if site.table.refusal(call, site.values, asked_later=True) is not None
        else site.bind(call)
    )
