# SPDX-License-Identifier: Apache-2.0
"""Constant folding, including calls without inputs.

NumPy computes calls with exactly one right result (`evaluate.py`). The kernels of all other calls
of a model are built as one module, since a module per call takes 24 ms each. TVM's own
`FoldConstant` builds them one by one, ignores sizes, folds quantized weights to floating-point
ones, and fails if one call of a model has no kernel.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

from ..ir.calls import Constant, Unknown, attributes_of, items_of, numbers_of, resolve, tensor_type
from ..ir.origins import folded_from, folded_type
from ..shared.aliases import Array
from .evaluate import Undefined, constant_of, fixed_shape, is_computed
from .rewriting import Bindings, Block, Reader, Site, op_name, with_constants

_log = logging.getLogger(__name__)

LARGEST_CONSTANT = 4 * 2**20
"""In bytes; larger results that exceed their operands are computed when the model runs."""
MADE_OF_NOTHING = tuple(
    f"relax.{name}" for name in ("zeros", "ones", "full", "arange", "eye", "eye_like")
)
_DEQUANTIZE = "relax.dequantize"
"""Not folded: quantized constants are smaller than real ones, and the NPU computes with them."""


def materialize_constant(site: Site) -> Bindings | None:
    """Compute a call without tensors, such as positions; a large result becomes a broadcast."""
    call = site.call
    name = op_name(call)
    try:
        dtype, shape = tensor_type(call.ty)
    except Unknown:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    size = math.prod(sizes) * np.dtype(dtype).itemsize
    array: Array
    is_constant = len(sizes) == len(shape) and size <= LARGEST_CONSTANT
    if name == "relax.arange":
        numbers = numbers_of(call.args)
        if not is_constant or numbers is None:
            return None
        array = np.arange(*numbers).astype(dtype)
    elif name.startswith("relax.eye"):
        diagonal = getattr(call.args[-1], "value", None)
        if not is_constant or not isinstance(diagonal, int):
            return None
        array = np.eye(sizes[0], sizes[1], k=diagonal, dtype=dtype)
    else:
        value: object = {"relax.zeros": 0, "relax.ones": 1}.get(name)
        if name == "relax.full":
            constant = site.constant(call.args[1])
            if constant is None:
                return None
            value = constant.value.numpy()
        if not is_constant:
            if not site.table.entries_of("relax.broadcast_to"):
                return None
            number = relax.const(np.full((), value, dtype), dtype)
            return site.bind(relax.op.broadcast_to(number, call.ty.shape))
        array = np.full(sizes, value, dtype)
    return site.bind(relax.const(array, dtype)) if array.shape == shape else None


def fold_constants(reader: Reader, mod: tvm.IRModule) -> tvm.IRModule:
    """Fold every call of constants, and let other calls read constants directly."""
    candidates = [
        call
        for _, blocks in reader.functions(mod)
        for block in blocks
        if block.is_dataflow
        for call in _constant_calls(block)
    ]
    kernels = Kernels(mod, [call for call in candidates if not is_computed(call)])
    return reader.rewrite_blocks(mod, lambda block, _: _fold_block(block, kernels))


def _tensors(call: relax.Call) -> list[relax.Expr]:
    """Return the arguments of a call, with tuples flattened."""
    return [
        tensor
        for argument in items_of(call.args)
        for tensor in (argument.fields if isinstance(argument, relax.Tuple) else [argument])
    ]


def _constant_calls(block: Block) -> list[relax.Call]:
    """Return the calls with constant results, without computing any."""
    constants: dict[relax.Var, relax.Call] = {}
    for binding in block.bindings:
        value = binding.value
        if isinstance(binding, relax.VarBinding) and isinstance(value, relax.TupleGetItem):
            if value.tuple_value in constants:
                constants[binding.var] = value
        elif isinstance(binding, relax.VarBinding) and isinstance(value, relax.Call):
            call = with_constants(value, block.values)
            constant_operands = [
                tensor for tensor in _tensors(call) if isinstance(tensor, Constant)
            ]
            operands = [tensor for tensor in _tensors(call) if isinstance(tensor, relax.Var)]
            if op_name(call) == "relax.shape_of":
                if constant_of(call) is not None:
                    constants[binding.var] = call
            elif all(operand in constants for operand in operands) and _may_fold(
                call, [*constant_operands, *operands]
            ):
                constants[binding.var] = call
    return [call for call in constants.values() if isinstance(call, relax.Call)]


def _may_fold(call: relax.Call, operands: Sequence[relax.Expr]) -> bool:
    """Whether to fold a call of constants."""
    name = op_name(call)
    if any(map(_has_symbol, _tensors(call))):
        return False
    if name == "relax.shape_to_tensor":
        return True
    if not operands or name == _DEQUANTIZE:
        return False
    if name == "relax.tensor_to_shape":
        return True
    is_tuple = isinstance(call.ty, relax.TupleType)
    results = [fixed_shape(ty) for ty in (call.ty.fields if is_tuple else [call.ty])]
    fixed = [shape for shape in results if shape is not None]
    if len(fixed) < len(results):
        return False
    count = sum(math.prod(shape) for _, shape in fixed)
    read = sum(math.prod((fixed_shape(operand.ty) or ("", (0,)))[1]) for operand in operands)
    size = sum(math.prod(shape) * tvm.runtime.DataType(dtype).itemsize for dtype, shape in fixed)
    return count <= read or size <= LARGEST_CONSTANT


def _has_symbol(argument: relax.Expr) -> bool:
    """Whether a shape or a number is only known when the model runs."""
    if isinstance(argument, relax.Var):
        return False
    numbers = [argument] if isinstance(argument.ty, tvm.ir.PrimType) else []
    if isinstance(argument, relax.ShapeExpr):
        numbers = items_of(argument.values)
    return any(not hasattr(number, "value") for number in numbers)


def _fold_block(block: Block, kernels: Kernels) -> Bindings | None:
    values = dict(block.values)
    changed = False
    result: Bindings = []
    for binding in block.bindings:
        value = binding.value
        new = None
        if isinstance(binding, relax.VarBinding) and isinstance(value, relax.TupleGetItem):
            fields = resolve(value.tuple_value, values)
            if isinstance(fields, relax.Tuple):
                field = resolve(fields.fields[value.index], values)
                new = field if isinstance(field, Constant) else None
        elif isinstance(binding, relax.VarBinding) and isinstance(value, relax.Call):
            call = with_constants(value, values)
            new = _value_of(call, kernels)
            if new is None and call is not value:
                new = call
        if new is None:
            result.append(binding)
            continue
        changed = True
        values[binding.var] = new
        result.append(relax.VarBinding(binding.var, new))
    return result if changed else None


def _value_of(call: relax.Call, kernels: Kernels) -> relax.Expr | None:
    operands = _tensors(call)
    if op_name(call) == "relax.shape_of":
        return constant_of(call)
    if any(isinstance(operand, relax.Var) for operand in operands):
        return None
    if not _may_fold(call, [operand for operand in operands if isinstance(operand, Constant)]):
        return None
    try:
        value = constant_of(call)
    except Undefined:
        return None
    value = kernels.run(call) if value is None else value
    return _with_source(value, call) if isinstance(value, Constant) else value


_QUANTIZED = ("int8", "uint8", "int16", "float8_e4m3fn", "float8_e5m2")
"""The types of weights that a model casts to real numbers."""


def _with_source(value: Constant, call: relax.Call) -> Constant:
    """Return real numbers with the type of the integers that they are computed from."""
    dtype, shape = fixed_shape(value.ty) or ("", ())
    if not dtype.startswith(("float", "bfloat")):
        return value
    for operand in _tensors(call):
        source = folded_type(operand)
        if not source and op_name(call) == "relax.astype" and str(operand.ty.dtype) in _QUANTIZED:
            source = str(operand.ty.dtype)
        # A factor beside the integers has fewer elements.
        if source and math.prod(operand.value.shape) == math.prod(shape):
            return folded_from(value, source)
    return value


# ---- Kernels ------------------------------------------------------------------------------------

_TRAPPING = tuple(
    f"relax.{name}"
    for name in ("index_put", "scatter_elements", "scatter_nd", "dynamic_strided_slice")
)
"""Ops whose kernels may write or read out of bounds; NumPy checks the indices of the others."""


class Kernels:
    """TVM's kernels for calls of constants, built all at once.

    `mod`: the module, with the kernels that calls name.
    `calls`: the calls whose kernels to build in advance; one of several that are alike is enough.
    """

    def __init__(self, mod: tvm.IRModule, calls: Iterable[relax.Call]) -> None:
        self._mod = mod
        self._lowered: dict[str, _Lowered | None] = {}
        by_key = {self._key(call): call for call in calls if _has_kernel(call)}
        if by_key:
            self._build(by_key)

    def run(self, call: relax.Call) -> relax.Expr | None:
        """Compute a call of constants; None if TVM has no kernel for it."""
        if not _has_kernel(call):
            return None
        key = self._key(call)
        if key not in self._lowered:
            # Rare: NumPy leaves few values of such calls.
            self._build({key: call})
        lowered = self._lowered[key]
        return None if lowered is None else lowered.run(_tensors(call))

    def _key(self, call: relax.Call) -> str:
        """Return the key that calls of the same kernel share."""
        parts = [
            f"{operand.ty}" if isinstance(operand.ty, relax.TensorType) else f"{operand}"
            for operand in _tensors(call)
        ]
        attributes = {} if op_name(call) == "relax.call_tir" else attributes_of(call, {})
        return f"{call.op} {parts} {call.ty} {attributes}"

    def _build(self, calls: Mapping[str, relax.Call]) -> None:
        try:
            self._lowered |= _lower(self._mod, calls)
        except Exception as error:
            if len(calls) == 1:
                _log.debug("TVM has no kernel for %s: %s", next(iter(calls)), error)
                self._lowered |= dict.fromkeys(calls)
                return
            # TVM does not tell which call cannot be built.
            half = len(calls) // 2
            items = list(calls.items())
            self._build(dict(items[:half]))
            self._build(dict(items[half:]))


def _has_kernel(call: relax.Call) -> bool:
    name = op_name(call)
    if not name or name in _TRAPPING:
        return False
    return name == "relax.call_tir" or call.op.has_attr("FLegalize")


class _Lowered:
    """A function that calls built kernels one after the other."""

    def __init__(self, function: relax.Function, library: tvm.runtime.Module) -> None:
        self._function = function
        self._library = library

    def run(self, operands: Sequence[relax.Expr]) -> relax.Expr | None:
        tensors = [operand for operand in operands if isinstance(operand.ty, relax.TensorType)]
        bound = dict(zip(self._function.params, tensors, strict=True))
        for block in self._function.body.blocks:
            for binding in block.bindings:
                bound[binding.var] = self._value(binding.value, bound)
        result = _resolved(self._function.body.body, bound)
        return None if isinstance(result, relax.Var) else result

    def _value(self, value: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
        if op_name(value) != "relax.call_tir":
            return _resolved(value, bound)
        arguments = [_resolved(operand, bound).value for operand in value.args[1].fields]
        is_tuple = isinstance(value.ty, relax.TupleType)
        types = [fixed_shape(ty) for ty in (value.ty.fields if is_tuple else [value.ty])]
        results = [
            tvm.runtime.empty(shape, dtype) for dtype, shape in (ty or ("", ()) for ty in types)
        ]
        self._library[value.args[0].name_hint](*arguments, *results)
        constants = [relax.const(result) for result in results]
        return relax.Tuple(constants) if is_tuple else constants[0]


def _resolved(expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    if isinstance(expr, relax.TupleGetItem):
        return _resolved(expr.tuple_value, bound).fields[expr.index]
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_resolved(field, bound) for field in expr.fields])
    return bound.get(expr, expr) if isinstance(expr, relax.Var) else expr


def _lower(mod: tvm.IRModule, calls: Mapping[str, relax.Call]) -> dict[str, _Lowered | None]:
    """Build the kernels of calls in one module; None for a call that is no sequence of kernels."""
    named = {
        argument: mod[argument]
        for call in calls.values()
        for argument in call.args
        if isinstance(argument, tvm.ir.GlobalVar)
    }
    builder = relax.BlockBuilder(tvm.IRModule(named))
    for index, call in enumerate(calls.values()):
        params: list[relax.Var] = []

        def parameter(expr: relax.Expr, params: list[relax.Var] = params) -> relax.Expr:
            if isinstance(expr, relax.Tuple):
                return relax.Tuple([parameter(field, params) for field in expr.fields])
            if not isinstance(expr.ty, relax.TensorType):
                return expr
            params.append(relax.Var(f"operand{len(params)}", expr.ty))
            return params[-1]

        arguments = [parameter(argument) for argument in call.args]
        with builder.function(f"call{index}", params):
            with builder.dataflow():
                copy = relax.Call(call.op, arguments, call.attrs, call.ty_args, None, call.ty)
                result = builder.emit_output(copy)
            builder.emit_func_output(result)
    legal = relax.transform.LegalizeOps()(builder.get())
    functions = {key: legal[f"call{index}"] for index, key in enumerate(calls)}
    complete = {key: function for key, function in functions.items() if _is_lowered(function)}
    kernels = {
        global_var: function.with_attr("global_symbol", global_var.name_hint)
        for global_var, function in legal.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    if not complete:
        return dict.fromkeys(calls)
    library = tvm.compile(tvm.IRModule(kernels), tvm.target.Target("llvm"))
    return {
        key: _Lowered(function, library) if key in complete else None
        for key, function in functions.items()
    }


def _is_lowered(function: relax.Function) -> bool:
    """Whether a function does nothing but call kernels."""
    return all(
        not isinstance(binding.value, relax.Call)
        or (op_name(binding.value) == "relax.call_tir" and len(binding.value.args) == 2)
        for block in function.body.blocks
        for binding in block.bindings
    )
