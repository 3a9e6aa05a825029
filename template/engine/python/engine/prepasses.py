# SPDX-License-Identifier: Apache-2.0
"""What is done to a model before it is partitioned; none of it changes what the model computes."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, MutableMapping, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from .capability import Constant, Op, Table, Unknown, Values, attributes_of, resolve, tensor_type
from .chains import (
    SWAP,
    Found,
    chains_of,
    count_steps,
    find,
    function_of,
    heads,
    in_rank,
    transposed_axes,
)
from .idioms import (
    as_biased,
    as_comparison,
    as_forward_take,
    as_guarded_attention,
    as_one_bias,
    as_one_scale,
    as_swapped_key,
    as_take,
    as_turned_guard,
    is_call_of,
    is_full_of,
)
from .kernels import as_clip, is_kernel_call, op_of

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
    model = _Model(relax.transform.ConvertToDataflow(min_size=1)(mod))
    if model.calls(is_kernel_call):
        model.rewrite(partial(_as_op, model.mod, table))
    model.rewrite(partial(_as_reshape, table))
    model.mod = relax.transform.CanonicalizeBindings()(model.mod)
    if table.entries_of("relax.take"):
        model.rewrite(as_take)
    model.rewrite(as_forward_take)
    if table.entries_of("relax.not_equal"):
        model.rewrite(as_comparison)
    model.rewrite(partial(_as_constant, table))
    model.rewrite(partial(_as_folded, model.mod))
    model.rewrite(as_forward_take)
    model.rewrite(partial(_as_clip, table))
    if model.calls(partial(is_call_of, "relax.nn.batch_norm")):
        # TVM's FoldBatchnormToConv2D folds in training mode and in other layouts too, wrongly.
        model.rewrite(partial(_folded, table))
    model.rewrite(_as_one_clip)
    model.rewrite(_as_full_norm)
    model.rewrite(_as_one_transposition)
    model.rewrite(_as_batched_swap)
    if model.rewrite(partial(_as_batched_matmul, table)):
        # The views that are left over would be further users of what is in a chain.
        model.mod = drop_unused(model.mod)
    # Attention in several ops.
    made_of = [op for op in table.ops if op.chains and op.engine == "matrix"]
    with_bias = any(item.name == "bias" for op in made_of for item in op.inputs)
    for idiom, is_of_use in (
        (as_one_scale, bool(made_of)),
        (as_one_bias, with_bias),
        (as_guarded_attention, bool(made_of)),
        (as_biased, bool(table.entries_of("relax.nn.attention_bias"))),
        (as_turned_guard, bool(made_of)),
        (as_swapped_key, bool(made_of)),
    ):
        if is_of_use and model.rewrite(idiom):
            model.rewrite(partial(_as_folded, model.mod))
            model.mod = drop_unused(model.mod)
    model.rewrite_blocks(partial(_recognized, table))
    model.mod = drop_unused(model.mod)
    model.rewrite_blocks(partial(_results_apart, table))
    restored = {
        global_var: mod[global_var.name_hint]
        for global_var in model.mod.get_global_vars()
        if is_opaque(mod[global_var.name_hint])
    }
    return _with_functions(model.mod, {**dict(model.mod.functions_items()), **restored})


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


def _with_functions(mod: tvm.IRModule, functions: dict[Any, Any]) -> tvm.IRModule:
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


Rewriter = Callable[[Any, Values, dict[Any, int]], "list[Any] | None"]


@dataclass
class _Block:
    """A block, and what variables are bound to that can be used in it."""

    block: Any
    bindings: list[Any]
    values: Values

    @cached_property
    def uses(self) -> dict[Any, int]:
        """How often variables are used that are not seen outside of the block."""
        return Counter(
            var
            for binding in self.bindings
            for var in relax.analysis.free_vars(binding.value)
            if isinstance(var, relax.DataflowVar)
        )


def _blocks_of(function: Any) -> list[_Block]:
    values: Values = bound_values(function.body)
    blocks = function.body.blocks
    if sum(isinstance(block, relax.DataflowBlock) for block in blocks) < 2:
        return [_Block(block, list(block.bindings), values) for block in blocks]
    # Of another block, nothing is known that reads what is not seen outside of it.
    known = {
        var: value
        for var, value in values.items()
        if not any(isinstance(item, relax.DataflowVar) for item in relax.analysis.free_vars(value))
    }
    read = []
    for block in blocks:
        bindings = list(block.bindings)
        own = {item.var: values[item.var] for item in bindings if item.var in values}
        read.append(_Block(block, bindings, ChainMap(known, own)))
    return read


class _Model:
    """A module that is rewritten; to read it takes long, and is done after changes only."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod

    @property
    def mod(self) -> tvm.IRModule:
        return self._mod

    @mod.setter
    def mod(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._read: dict[Any, list[_Block]] | None = None

    def _blocks(self) -> dict[Any, list[_Block]]:
        """Return the blocks of the functions that are not opaque."""
        if self._read is None:
            self._read = {
                global_var: _blocks_of(function)
                for global_var, function in self.mod.functions_items()
                if not is_opaque(function)
            }
        return self._read

    def calls(self, wanted: Callable[[Any], bool]) -> bool:
        """Whether there is such a call."""
        return any(
            isinstance(binding.value, relax.Call) and wanted(binding.value)
            for blocks in self._blocks().values()
            for block in blocks
            for binding in block.bindings
        )

    def rewrite_blocks(self, rewriter: Callable[[list[Any], Values], list[Any] | None]) -> None:
        """Replace the bindings of dataflow blocks, as a whole; the rewriter gets values too."""
        self._rewrite(lambda block: rewriter(block.bindings, block.values))

    def rewrite(self, rewriter: Rewriter) -> bool:
        """Replace bindings of dataflow blocks, each by several; return whether any was replaced.

        The rewriter gets values and numbers of uses too.
        """

        def rewrite(block: _Block) -> list[Any] | None:
            replaced = [rewriter(one, block.values, block.uses) for one in block.bindings]
            if all(new is None for new in replaced):
                return None
            pairs = zip(block.bindings, replaced, strict=True)
            return [item for old, new in pairs for item in ([old] if new is None else new)]

        return self._rewrite(rewrite)

    def _rewrite(self, rewriter: Callable[[_Block], list[Any] | None]) -> bool:
        functions = dict(self.mod.functions_items())
        changed = False
        for global_var, blocks in self._blocks().items():
            rewritten = [
                rewriter(block) if isinstance(block.block, relax.DataflowBlock) else None
                for block in blocks
            ]
            if all(bindings is None for bindings in rewritten):
                continue
            changed = True
            function = functions[global_var]
            body = relax.SeqExpr(
                [
                    old.block if bindings is None else relax.DataflowBlock(bindings)
                    for old, bindings in zip(blocks, rewritten, strict=True)
                ],
                function.body.body,
            )
            functions[global_var] = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs
            )
        if changed:
            self.mod = relax.transform.Normalize()(_with_functions(self.mod, functions))
        return changed


def _results_apart(table: Table, bindings: list[Any], values: Values) -> list[Any] | None:
    """Return the bindings of a block with a variable for each result that is used.

    They are right behind the call with several results; none if there is no such call.
    """
    fields: dict[Any, list[Any]] = {
        binding.var: []
        for binding in bindings
        if isinstance(binding.value, relax.Call)
        and isinstance(binding.value.op, tvm.ir.Op)
        and isinstance(binding.value.ty, relax.TupleType)
        and table.entries_of(binding.value.op.name)
    }
    if not fields:
        return None
    # Those that are read as a tuple too.
    whole = {var for var in fields if not isinstance(var, relax.DataflowVar)}
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in fields:
            fields[value.tuple_value].append(binding)
        else:
            whole.update(var for var in relax.analysis.free_vars(value) if var in fields)
    result = []
    for binding in bindings:
        var, value = binding.var, binding.value
        if var in whole:
            call = relax.DataflowVar(f"{var.name}_results", value.ty)
            parts = [
                relax.DataflowVar(f"{var.name}_{index}", ty)
                for index, ty in enumerate(value.ty.fields)
            ]
            result.append(relax.VarBinding(call, value))
            items = [*enumerate(parts), *((item.value.index, item.var) for item in fields[var])]
            result += [relax.VarBinding(part, relax.TupleGetItem(call, at)) for at, part in items]
            result.append(relax.VarBinding(var, relax.Tuple(parts)))
        elif var in fields:
            result += [binding, *fields[var]]
        elif not (isinstance(value, relax.TupleGetItem) and value.tuple_value in fields):
            result.append(binding)
    return result


def _as_op(
    mod: tvm.IRModule, table: Table, binding: Any, values: Values, uses: dict[Any, int]
) -> list[Any] | None:
    """Return what replaces a kernel that is an op of the table."""
    call = binding.value
    if not isinstance(call, relax.Call) or not is_kernel_call(call):
        return None
    op = op_of(mod, call)
    return None if op is None else [relax.VarBinding(binding.var, op)]


def _as_clip(table: Table, binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return what replaces a minimum of a maximum, by which ONNX spells a clip."""
    call = binding.value
    if not is_call_of("relax.minimum", call):
        return None
    if not table.entries_of("relax.clip") or uses.get(call.args[0]) != 1:
        return None
    clip = as_clip(call, values)
    return None if clip is None else [relax.VarBinding(binding.var, clip)]


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
        elif (
            name in ("relax.expand_dims", "relax.squeeze")
            and not table.entries_of(name)
            and table.entries_of("relax.reshape")
        ):
            tensor_type(call.ty)
            view = relax.op.reshape(call.args[0], call.ty.shape)
            return [relax.VarBinding(binding.var, view)]
    except Unknown:
        pass
    return None


# What is made of nothing is computed on the NPU or the host where it would make a model large.
_LARGEST_CONSTANT = 4 * 2**20
_MADE_OF_NOTHING = tuple(
    f"relax.{name}" for name in ("zeros", "ones", "full", "arange", "eye", "eye_like")
)


def _as_constant(
    table: Table, binding: Any, values: Values, uses: dict[Any, int]
) -> list[Any] | None:
    """Return the constant that a call without tensors makes, such as positions or a mask of ones.

    TVM's own pass compiles a kernel for each, and leaves those of more than 1,024 elements. What
    would be large, or has an open size, becomes a number that is broadcast.
    """
    call = binding.value
    name = call.op.name if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op) else ""
    if name not in _MADE_OF_NOTHING:
        return None
    try:
        dtype, shape = tensor_type(call.ty)
    except Unknown:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    size = math.prod(sizes) * np.dtype(dtype).itemsize
    is_constant = len(sizes) == len(shape) and size <= _LARGEST_CONSTANT
    if name == "relax.arange":
        if not is_constant:
            return None
        numbers: list[Any] = [getattr(argument, "value", None) for argument in call.args]
        if any(not isinstance(number, int | float) for number in numbers):
            return None
        array = np.arange(*numbers).astype(dtype)
    elif name.startswith("relax.eye"):
        diagonal = getattr(call.args[-1], "value", None)
        if not is_constant or not isinstance(diagonal, int):
            return None
        array = np.eye(sizes[0], sizes[1], k=diagonal, dtype=dtype)
    else:
        value: Any = {"relax.zeros": 0, "relax.ones": 1}.get(name)
        if name == "relax.full":
            constant = resolve(call.args[1], values)
            if not isinstance(constant, Constant):
                return None
            value = constant.value.numpy()
        if not is_constant:
            if not table.entries_of("relax.broadcast_to"):
                return None
            number = relax.const(np.full((), value, dtype), dtype)
            return [relax.VarBinding(binding.var, relax.op.broadcast_to(number, call.ty.shape))]
        array = np.full(sizes, value, dtype)
    if array.shape != shape:
        return None
    return [relax.VarBinding(binding.var, relax.const(array, dtype))]


def _as_folded(
    mod: tvm.IRModule, binding: Any, values: MutableMapping[Any, Any], uses: dict[Any, int]
) -> list[Any] | None:
    """Return a call with the constants that it reads, or what it makes of nothing else.

    TVM's own pass minds no sizes, and fails where any call of a model has no kernel: so it gets the
    calls one by one.
    """
    call = binding.value
    if not isinstance(binding, relax.VarBinding) or not isinstance(call, relax.Call):
        return None

    def known(expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            fields = [known(field) for field in expr.fields]
            same = all(one is other for one, other in zip(fields, expr.fields, strict=True))
            return expr if same else relax.Tuple(fields)
        found = resolve(expr, values) if isinstance(expr, relax.Var) else expr
        return found if isinstance(found, Constant | relax.ShapeExpr) else expr

    arguments = [known(argument) for argument in call.args]
    changed = any(one is not other for one, other in zip(arguments, call.args, strict=True))
    if changed:
        call = relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span, call.ty)
    value = _value_of(mod, call)
    if value is None:
        return [relax.VarBinding(binding.var, call)] if changed else None
    values[binding.var] = value
    return [relax.VarBinding(binding.var, value)]


def _value_of(mod: tvm.IRModule, call: Any) -> Any | None:
    """Compute a call of constants; not what would make a model large."""
    fields = [
        item
        for argument in call.args
        for item in (argument.fields if isinstance(argument, relax.Tuple) else [argument])
    ]
    constants = [item for item in fields if isinstance(item, Constant)]
    if getattr(call.op, "name", "") == "relax.shape_of":
        known = list(call.ty.values or [None])
        fixed = all(isinstance(size, tvm.tirx.IntImm) for size in known)
        return relax.ShapeExpr(known) if fixed else None
    if getattr(call.op, "name", "") == "relax.shape_to_tensor":
        shape = getattr(call.args[0], "values", [None])
        if not all(isinstance(size, tvm.tirx.IntImm) for size in shape):
            return None
    elif not constants or any(isinstance(item, relax.Var) for item in fields):
        return None
    try:
        dtype, sizes = tensor_type(call.ty)
        count = math.prod(size for size in sizes if isinstance(size, int))
        read = sum(math.prod(item.value.shape) for item in constants)
        if count > read and count * np.dtype(dtype).itemsize > _LARGEST_CONSTANT:
            return None
    except Unknown:
        pass  # Several results, or none: nothing that grows.
    computed = _computed(call)
    if computed is not None:
        return computed
    kernels = {item: mod[item] for item in call.args if isinstance(item, tvm.ir.GlobalVar)}
    builder = relax.BlockBuilder(tvm.IRModule(kernels))
    try:
        with builder.function("main", []):
            with builder.dataflow():
                result = builder.emit_output(call)
            builder.emit_func_output(result)
        folded = relax.transform.FoldConstant()(builder.get())["main"]
    except Exception:
        return None  # TVM has no kernel for it.
    value = resolve(folded.body.body, bound_values(folded.body))
    return None if isinstance(value, relax.Var) else value


def _computed(call: Any) -> Any | None:
    """Compute what masks and positions are made of, and TVM has no kernel for.

    Packed sequences count the parts, and tell whether two positions are in the same one; distances
    are limited at one end.
    """
    arrays = [item.value.numpy() for item in call.args if isinstance(item, Constant)]
    name = getattr(call.op, "name", "")
    if name == "relax.cumsum" and not call.attrs.exclusive:
        array = np.cumsum(arrays[0], call.attrs.axis, tensor_type(call.ty)[0])
    elif name in ("relax.equal", "relax.not_equal") and arrays[0].dtype == bool:
        array = (np.equal if name == "relax.equal" else np.not_equal)(*arrays)
    elif name == "relax.clip" and arrays[0].dtype.kind == "i":
        array, known = arrays[0], np.iinfo(arrays[0].dtype)
        low, high = (getattr(limit, "value", math.nan) for limit in call.args[1:])
        low = known.min if low == -math.inf else low
        high = known.max if high == math.inf else high
        if any(not known.min <= one <= known.max or one != int(one) for one in (low, high)):
            return None
        array = np.clip(array, int(low), int(high))
    else:
        return None
    return relax.const(array, str(array.dtype))


def _as_one_clip(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return one clip in the place of two: front ends limit a value at one end after the other."""
    limits: list[list[Any]] = []
    data = binding.value
    while is_call_of("relax.clip", data):
        limits.append([getattr(argument, "value", None) for argument in data.args[1:]])
        first = data.args[0]
        # What others use too stays, so that it joins them to one region.
        data = values.get(first) if uses.get(first) == 1 else None
    numbers = [number for pair in limits for number in pair]
    if len(limits) < 2 or any(not isinstance(number, int | float) for number in numbers):
        return None
    low, high = max(pair[0] for pair in limits), min(pair[1] for pair in limits)
    return [relax.VarBinding(binding.var, relax.op.clip(first, low, high))] if low <= high else None


_NORMS = ("relax.nn.layer_norm", "relax.nn.group_norm", "relax.nn.instance_norm")


def _as_full_norm(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return a normalisation that applies gamma and beta, where they are ones and zeros anyway.

    Front ends that apply their own say so twice: by these, and by `center` and `scale`.
    """
    call = binding.value
    if not any(is_call_of(name, call) for name in _NORMS):
        return None
    if call.attrs.center and call.attrs.scale:
        return None
    if not call.attrs.scale and not is_full_of(1, call.args[1], values):
        return None
    if not call.attrs.center and not is_full_of(0, call.args[2], values):
        return None
    attributes = {**attributes_of(call, values), "center": True, "scale": True}
    norm = function_of(call.op.name)(*call.args, **attributes)
    return [relax.VarBinding(binding.var, norm)]


def _as_one_transposition(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return one transposition, or what is transposed, in the place of several in a row."""
    call: Any = binding.value
    axes, data = transposed_axes(call), call
    changed = False
    while axes:
        data = data.args[0]
        inner: Any = values.get(data)
        before = transposed_axes(inner)
        # What others read as well is there anyway, and joins them to one region.
        if not before or uses.get(data) != 1:
            break
        axes, data, changed = [before[axis] for axis in axes], inner, True
    if not changed:
        return None
    one = data if axes == sorted(axes) else relax.op.permute_dims(data, axes)
    return [relax.VarBinding(binding.var, one)]


def _as_batched_swap(binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return a swap of the last two dimensions, for which ONNX's exporter makes one batch."""
    view: Any = binding.value
    if not is_call_of("relax.reshape", view) or uses.get(view.args[0]) != 1:
        return None
    turned: Any = values.get(view.args[0])
    if transposed_axes(turned) != [0, 2, 1] or uses.get(turned.args[0]) != 1:
        return None
    flat: Any = values.get(turned.args[0])
    if not is_call_of("relax.reshape", flat):
        return None
    data = flat.args[0]
    try:
        shapes = [tensor_type(item.ty)[1] for item in (data, flat, view)]
    except Unknown:
        return None
    wide, merged, result = shapes
    if len(wide) < 3 or 0 in wide or merged[-2:] != wide[-2:]:
        return None
    if result != (*wide[:-2], wide[-1], wide[-2]):
        return None
    swap = in_rank(SWAP, len(wide))
    return [relax.VarBinding(binding.var, relax.op.permute_dims(data, swap))]


def _as_batched_matmul(
    table: Table, binding: Any, values: Values, uses: dict[Any, int]
) -> list[Any] | None:
    """Return a product of batches of batches, which PyTorch makes one batch for a while."""
    view = binding.value
    if not is_call_of("relax.reshape", view) or uses.get(view.args[0]) != 1:
        return None
    product: Any = values.get(view.args[0])
    if not is_call_of("relax.matmul", product):
        return None
    flat: list[Any] = [values.get(operand) for operand in product.args]
    if not all(is_call_of("relax.reshape", operand) for operand in flat):
        return None
    operands = [operand.args[0] for operand in flat]
    try:
        shapes = [tensor_type(item.ty)[1] for item in (*operands, *flat, view)]
    except Unknown:
        return None
    *wide, result = (shapes[index] for index in (0, 1, 4))
    if any(len(shape) != 3 for shape in shapes[2:4]) or min(map(len, (*wide, result))) < 2:
        return None
    if any(shape[:-2] != result[:-2] or 0 in shape for shape in wide):
        return None
    if any(one[-2:] != other[-2:] for one, other in zip(wide, shapes[2:4], strict=True)):
        return None
    call = relax.op.matmul(*operands, out_dtype=product.attrs.out_dtype)
    call = relax.BlockBuilder().normalize(call)
    fits = tvm_ffi.structural_equal(call.ty, view.ty) and table.refusal(call, values) is None
    return [relax.VarBinding(binding.var, call)] if fits else None


def _recognized(table: Table, bindings: list[Any], values: Values) -> list[Any] | None:
    """Return the bindings of a block with a call in the place of each chain of an op; see `chains`.

    The longest go first: one may contain another. What has no Relax op stays for the patterns.
    """
    by_op: dict[str, list[Any]] = {}
    users: dict[Any, list[Any]] = {}
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
            by_op.setdefault(value.op.name, []).append(binding)
        for var in relax.analysis.free_vars(value):
            users.setdefault(var, []).append(binding.var)
    own = {binding.var for calls in by_op.values() for binding in calls}
    taken: set[Any] = set()
    replaced = {}
    chains = [(op, chain) for op in table.ops for chain in chains_of(op)]
    chains.sort(key=lambda item: count_steps(item[1].node), reverse=True)
    for op, chain in chains:
        for head in heads(chain.node):
            for binding in by_op.get(head, ()):
                var = binding.var
                for found in find(chain, var, values) if var not in taken else ():
                    inside = found.calls.keys()
                    if inside & taken or not inside <= own or _leaks(inside, var, users):
                        continue
                    call = _as_call(table, op, found, binding.value, values)
                    if call is not None:
                        taken |= inside
                        replaced[var] = call
                        break
    if not any(replaced[item.var] is not item.value for item in bindings if item.var in replaced):
        return None
    return [
        relax.VarBinding(item.var, replaced[item.var]) if item.var in replaced else item
        for item in bindings
    ]


def _leaks(inside: Set[Any], last: Any, users: dict[Any, list[Any]]) -> bool:
    """Whether a value of a chain, but the last one, is used outside of it."""
    return any(
        not var.same_as(last)
        and (not isinstance(var, relax.DataflowVar) or any(u not in inside for u in users[var]))
        for var in inside
    )


def _as_call(table: Table, op: Op, found: Found, last: Any, values: Values) -> Any | None:
    """Return a call that does what a chain does, none if there cannot be one.

    For an op that is made of chains alone, that is the last call of the chain itself.
    """
    if not op.relax:
        reason = table.refusal_of_chain(op, found.inputs, found.attributes, last, values)
        return last if reason is None else None
    attributes = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in found.attributes.items()
    }
    tensors = [found.inputs[item.name] for item in op.inputs]
    try:
        call = function_of(op.relax)(*tensors, **attributes)
        call = relax.BlockBuilder().normalize(call)
    except (TypeError, ValueError, RuntimeError):
        return None  # The types do not go together as the op wants it; some ops only assert it.
    same = tvm_ffi.structural_equal(call.ty, last.ty)
    return call if same and table.refusal(call, values, op=op) is None else None


def _folded(table: Table, binding: Any, values: Values, uses: dict[Any, int]) -> list[Any] | None:
    """Return what replaces a binding of the result of convolution and normalisation."""
    item = binding.value
    if not isinstance(item, relax.TupleGetItem) or item.index != 0:
        return None
    norm: Any = values.get(item.tuple_value)
    if not is_call_of("relax.nn.batch_norm", norm):
        return None
    if not all(uses.get(var) == 1 for var in (item.tuple_value, norm.args[0])):
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
                and uses.get(value.args[one]) == 1
                and isinstance(bias, Constant)
            ):
                array = bias.value.numpy().astype("float64")
                rank = conv.ty.ndim
                padded = array.reshape((1,) * (rank - array.ndim) + array.shape)
                if padded.size == padded.shape[1]:
                    return conv, padded.reshape(-1)
    return None, 0.0
