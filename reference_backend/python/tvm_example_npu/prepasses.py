# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""What is done to a model before it is partitioned; none of it changes what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from .capability import Constant, Table, Unknown, Values, resolve, tensor_type

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


def is_opaque(function: Any) -> bool:
    """Whether a function is none of ours to look into.

    Parameters
    ----------
    function
        A function of a module.

    Returns
    -------
    opaque
        True for kernels, and for the regions and composites of any backend.
    """
    if not isinstance(function, relax.Function):
        return True
    return any(function.attrs.get(key) for key in ("Codegen", "Composite", "Primitive"))


def bound_values(body: Any) -> dict[Any, Any]:
    """Return what variables are bound to, without those that a `match_cast` gives another type.

    Parameters
    ----------
    body
        The body of a function.

    Returns
    -------
    values
        By variable, also of branches.
    """
    values = {}
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding):
                values[binding.var] = binding.value
                if isinstance(binding.value, relax.If):
                    values |= bound_values(binding.value.true_branch)
                    values |= bound_values(binding.value.false_branch)
    return values


def simplify(mod: tvm.IRModule, table: Table) -> tvm.IRModule:
    """Compute what is constant, fold and drop what costs nothing, and name views alike.

    Parameters
    ----------
    mod
        The model; it is not changed.
    table
        The capabilities.

    Returns
    -------
    mod
        A model whose pure parts are in dataflow blocks.
    """
    before = mod
    mod = relax.transform.ConvertToDataflow(min_size=1)(mod)
    mod = _rewrite(mod, partial(_as_reshape, table))
    mod = relax.transform.CanonicalizeBindings()(mod)
    if _any_call(mod, _is_constant_call):
        mod = relax.transform.FoldConstant()(mod)
    if _any_call(mod, _is_batch_norm):
        # TVM's FoldBatchnormToConv2D folds in training mode and in other layouts too, wrongly.
        mod = _rewrite(mod, partial(_folded, table))
    mod = drop_unused(mod)
    restored = {
        global_var: before[global_var.name_hint]
        for global_var in mod.get_global_vars()
        if is_opaque(before[global_var.name_hint])
    }
    functions = {**dict(mod.functions_items()), **restored}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def drop_unused(mod: tvm.IRModule) -> tvm.IRModule:
    """Drop values that nothing uses, but no function.

    Parameters
    ----------
    mod
        A module.

    Returns
    -------
    mod
        The module without them.
    """
    names = [
        global_var.name_hint
        for global_var, function in mod.functions_items()
        if isinstance(function, relax.Function)
    ]
    return relax.transform.DeadCodeElimination(names)(mod)


def _any_call(mod: tvm.IRModule, wanted: Any) -> bool:
    for _, function in mod.functions_items():
        if not is_opaque(function):
            for block in function.body.blocks:
                for binding in block.bindings:
                    if isinstance(binding.value, relax.Call) and wanted(binding.value):
                        return True
    return False


def _is_constant_call(call: Any) -> bool:
    """Whether a call reads constants and nothing else."""
    if not isinstance(call.op, tvm.ir.Op):
        return False
    fields = [
        item
        for argument in call.args
        for item in (argument.fields if isinstance(argument, relax.Tuple) else [argument])
    ]
    return any(isinstance(item, Constant) for item in fields) and not any(
        isinstance(item, relax.Var) for item in fields
    )


def _is_batch_norm(call: Any) -> bool:
    return isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.nn.batch_norm"


Rewriter = Callable[[Any, dict[Any, Any], dict[Any, int]], "list[Any] | None"]


def _rewrite(mod: tvm.IRModule, rewriter: Rewriter) -> tvm.IRModule:
    """Replace bindings in dataflow blocks; the rewriter gets values and numbers of uses too."""
    functions = dict(mod.functions_items())
    changed = False
    for global_var, function in functions.items():
        if is_opaque(function):
            continue
        values = bound_values(function.body)
        uses: dict[Any, int] = {}
        for block in function.body.blocks:
            for binding in block.bindings:
                for var in relax.analysis.free_vars(binding.value):
                    uses[var] = uses.get(var, 0) + 1
        blocks = []
        for block in function.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                replaced = [rewriter(binding, values, uses) for binding in block.bindings]
                if any(bindings is not None for bindings in replaced):
                    changed = True
                    pairs = zip(replaced, block.bindings, strict=True)
                    block = relax.DataflowBlock(
                        [item for new, old in pairs for item in (new if new is not None else [old])]
                    )
            blocks.append(block)
        body = relax.SeqExpr(blocks, function.body.body)
        functions[global_var] = relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs
        )
    if not changed:
        return mod
    mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.Normalize()(mod)


def _as_reshape(
    table: Table, binding: Any, values: Values, uses: dict[Any, int]
) -> list[Any] | None:
    """Return what replaces an op that moves no data: a reshape, or nothing at all."""
    call = binding.value
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
        return None
    name = call.op.name
    try:
        if name in ("relax.broadcast_to", "relax.astype"):
            if tensor_type(call.ty) == tensor_type(call.args[0].ty):
                return [relax.VarBinding(binding.var, call.args[0])]
        elif name in ("relax.expand_dims", "relax.squeeze") and table.entries_of("relax.reshape"):
            tensor_type(call.ty)
            view = relax.op.reshape(call.args[0], call.ty.shape)
            return [relax.VarBinding(binding.var, view)]
    except Unknown:
        pass
    return None


def _folded(table: Table, binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return what replaces a binding of the result of convolution and normalisation."""
    item = binding.value
    if not isinstance(item, relax.TupleGetItem) or item.index != 0:
        return None
    norm = values.get(item.tuple_value)
    if not isinstance(norm, relax.Call) or not _is_batch_norm(norm):
        return None
    if not all(_is_used_once(var, uses) for var in (item.tuple_value, norm.args[0])):
        return None
    if norm.attrs.training:
        return None
    constants = [resolve(argument, values) for argument in norm.args[1:]]
    conv, bias = _convolution(values.get(norm.args[0]), values, uses)
    if conv is None or not table.entries_of(conv.op.name):
        return None
    weight = resolve(conv.args[1], values)
    if not all(isinstance(constant, Constant) for constant in [weight, *constants]):
        return None
    try:
        dtype, shape = tensor_type(conv.ty)
        fits = tensor_type(norm.args[0].ty) == tensor_type(binding.var.ty) == (dtype, shape)
    except Unknown:
        return None
    layouts = conv.attrs.out_layout.startswith("NC") and conv.attrs.kernel_layout.startswith("OI")
    if not fits or not layouts or norm.attrs.axis % len(shape) != 1 or weight.ty.dtype != dtype:
        return None

    gamma, beta, mean, variance = (item.value.numpy().astype("float64") for item in constants)
    with np.errstate(all="ignore"):  # What is not finite is not folded, see below.
        scale = (gamma if norm.attrs.scale else 1.0) / np.sqrt(variance + norm.attrs.epsilon)
    shift = (bias - mean) * scale + (beta if norm.attrs.center else 0.0)
    kernel = weight.value.numpy() * scale.reshape(-1, *[1] * (len(shape) - 1))
    per_channel = shift.reshape(1, -1, *[1] * (len(shape) - 2))
    arrays = [kernel.astype(dtype), per_channel.astype(dtype)]
    if not all(np.isfinite(array).all() for array in arrays):
        return None
    new_weight, new_bias = (relax.const(array, dtype) for array in arrays)
    var = relax.DataflowVar(binding.var.name + "_conv", conv.ty)
    new_conv = relax.Call(
        conv.op, [conv.args[0], new_weight], conv.attrs, conv.ty_args, conv.span, conv.ty
    )
    return [
        relax.VarBinding(var, new_conv),
        relax.VarBinding(binding.var, relax.op.add(var, new_bias)),
    ]


def _is_used_once(var: Any, uses: dict[Any, int]) -> bool:
    return isinstance(var, relax.DataflowVar) and uses.get(var) == 1


def _convolution(
    value: Any, values: Values, uses: dict[Any, int]
) -> tuple[Any | None, float | np.ndarray]:
    """Return a convolution, and the constant per-channel bias that is added to it."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None, 0.0
    if value.op.name in _CONVOLUTIONS:
        return value, 0.0
    if value.op.name == "relax.add":
        for one, other in ((0, 1), (1, 0)):
            conv = values.get(value.args[one])
            bias = resolve(value.args[other], values)
            if (
                isinstance(conv, relax.Call)
                and isinstance(conv.op, tvm.ir.Op)
                and conv.op.name in _CONVOLUTIONS
                and _is_used_once(value.args[one], uses)
                and isinstance(bias, Constant)
            ):
                array = bias.value.numpy().astype("float64")
                rank = conv.ty.ndim
                padded = array.reshape((1,) * (rank - array.ndim) + array.shape)
                if padded.size == padded.shape[1]:
                    return conv, padded.reshape(-1)
    return None, 0.0
