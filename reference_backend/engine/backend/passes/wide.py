# SPDX-License-Identifier: Apache-2.0
"""Computes in float32 what a model has in bfloat16, of which float32 holds all values."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import relax

from ..ir.calls import Constant, items_of, with_arguments
from ..ir.origins import widened_from
from ..ir.states import fields_of, redeclared
from .rewriting import Reader, drop_unused, is_opaque, op_name, with_functions

_NARROW, _WIDE = "bfloat16", "float32"
_FOREIGN = ("relax.call_tir", "relax.call_packed", "relax.call_pure_packed")
"""Calls of functions, which have the types of their own."""


def widen(reader: Reader, mod: tvm.IRModule) -> tvm.IRModule:
    """Compute in float32 unless the chip has bfloat16.

    Parameters and results keep their types, but states get float32: no call converts them.
    """
    operands = [operand for entry in reader.table.ops for operand in entry.inputs]
    if any(_NARROW in operand.dtypes for operand in operands):
        return mod
    functions = dict(mod.functions_items())
    changed = {
        name: _Widened(function).result
        for name, function in functions.items()
        if not is_opaque(function) and _has_narrow(function)
    }
    return drop_unused(with_functions(mod, {**functions, **changed})) if changed else mod


def _has_narrow(function: relax.Function) -> bool:
    bindings = [item for block in function.body.blocks for item in items_of(block.bindings)]
    return any(_is_narrow(var.ty) for var in (*function.params, *(item.var for item in bindings)))


def _is_narrow(ty: tvm.ir.Type) -> bool:
    """Whether a type is bfloat16, or a tuple with it."""
    if isinstance(ty, relax.TupleType):
        return any(map(_is_narrow, ty.fields))
    return isinstance(ty, relax.TensorType) and str(ty.dtype) == _NARROW


def _wide_type(ty: tvm.ir.Type) -> tvm.ir.Type:
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_wide_type(field) for field in ty.fields])
    if not _is_narrow(ty):
        return ty
    if ty.shape is None:
        return relax.TensorType(None, _WIDE, ty.vdevice, ty.ndim)
    return relax.TensorType(ty.shape, _WIDE, ty.vdevice)


def _wide_tensor(tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    if str(tensor.dtype) != _NARROW:
        return tensor
    return tvm.runtime.tensor(tensor.numpy().astype(_WIDE))


def _wide_attributes(attributes: tvm.ir.Attrs | None) -> tvm.ir.Attrs | None:
    """Return attributes of which none is bfloat16."""
    if attributes is None:
        return None
    info = type(attributes).__tvm_ffi_type_info__
    fields = {item.name: getattr(attributes, item.name) for item in info.fields}
    narrow = [name for name, value in fields.items() if str(value) == _NARROW]
    if not narrow:
        return attributes
    return tvm.ir.make_node(info.type_key, **{**fields, **dict.fromkeys(narrow, _WIDE)})


def _states_of(function: relax.Function) -> Mapping[int, str]:
    """Return the parameters of states by the place of their results.

    None of a function whose blocks or branches might read them in bfloat16.
    """
    values = [item.value for block in function.body.blocks for item in items_of(block.bindings)]
    if len(function.body.blocks) > 1 or any(isinstance(value, relax.If) for value in values):
        return {}
    return {field["result"]: field["parameter"] for field in fields_of(function)}


class _Widened:
    """A function that computes in float32.

    Each value of bfloat16 gets one of float32 beside it, from which it is rounded for what reads
    bfloat16: a result, or what is no op. Nothing reads most of them, and they are dropped.
    """

    def __init__(self, function: relax.Function) -> None:
        self._wide: dict[relax.Expr, relax.Expr] = {}
        self._builder = relax.BlockBuilder()
        self._bindings: list[relax.Binding] = []
        self._kind: type[relax.Var] = relax.Var
        self._states = _states_of(function)
        params = [self._parameter(param) for param in function.params]
        self._params = {*function.params}
        blocks, body = [], function.body.body
        for block in function.body.blocks:
            is_dataflow = isinstance(block, relax.DataflowBlock)
            self._kind = relax.DataflowVar if is_dataflow else relax.Var
            self._bindings = []
            for binding in items_of(block.bindings):
                self._rewrite(binding)
            if self._states:
                body = self._result(body)
            blocks.append(type(block)(self._bindings))
            for var, wide in [*self._wide.items()]:
                if isinstance(wide, relax.DataflowVar):
                    del self._wide[var]
        sequence = relax.SeqExpr(blocks, body)
        new = relax.Function(params, sequence, body.ty, function.is_pure, function.attrs)
        self.result = redeclared(new, _wide_tensor) if self._states else new

    def _parameter(self, param: relax.Var) -> relax.Var:
        if str(param.name) not in self._states.values() or not _is_narrow(param.ty):
            return param
        self._wide[param] = relax.Var(str(param.name), _wide_type(param.ty))
        return self._wide[param]

    def _result(self, body: relax.Expr) -> relax.Expr:
        """Return the results, with states in float32."""
        wide = self._widened(body)
        if not isinstance(body.ty, relax.TupleType):
            return self._bind(wide, relax.Var)
        places = range(len(body.ty.fields))
        results = [
            self._bind(relax.TupleGetItem(wide if place in self._states else body, place))
            for place in places
        ]
        return self._bind(relax.Tuple(results), relax.Var)

    # ---- Bindings -------------------------------------------------------------------------------

    def _rewrite(self, binding: relax.Binding) -> None:
        var, ty = binding.var, binding.var.ty
        if isinstance(binding, relax.MatchCast):
            if not _is_narrow(ty):
                value = self._computed(binding.value)
                value = binding.value if value is None else value
                self._bindings.append(relax.MatchCast(var, value, ty))
                return
            wide = self._kind(str(var.name), _wide_type(ty))
            self._bindings.append(relax.MatchCast(wide, self._widened(binding.value), wide.ty))
        else:
            value = self._computed(binding.value)
            if value is None or not _is_narrow(ty):
                value = self._kept(binding.value) if value is None else value
                self._bindings.append(relax.VarBinding(var, value))
                return
            wide = self._bind(value)
        self._wide[var] = wide
        self._bindings.append(relax.VarBinding(var, self._converted(wide, ty)))

    def _computed(self, value: relax.Expr) -> relax.Expr | None:
        """Return what computes a value in float32; None if it stays as it is."""
        if isinstance(value, relax.TupleGetItem) and _is_narrow(value.tuple_value.ty):
            # Other fields, too: TVM cannot round one of an unknown size, which nothing needs.
            return relax.TupleGetItem(self._widened(value.tuple_value), value.index)
        if isinstance(value, Constant | relax.Tuple | relax.Var) and _is_narrow(value.ty):
            return self._widened(value)
        name = op_name(value)
        if not name.startswith("relax.") or name in _FOREIGN:
            return None
        if not any(_is_narrow(getattr(it, "ty", None)) for it in (value, *value.args)):
            return None
        operands = [self._widened(operand) for operand in items_of(value.args)]
        attributes = _wide_attributes(value.attrs)
        call = relax.Call(value.op, operands, attributes, value.ty_args, value.span)
        try:
            call = self._builder.normalize(call)
        except Exception:  # TVM's rules of types raise countless errors.
            return None
        if not tvm_ffi.structural_equal(call.ty, _wide_type(value.ty)):
            return None
        return widened_from(call, _NARROW)

    def _kept(self, value: relax.Expr) -> relax.Expr:
        """Return a value as it is, but for the parameters that are float32 now."""
        if not isinstance(value, relax.Call):
            return value
        operands = items_of(value.args)
        return with_arguments(
            value,
            [
                self._bind(self._converted(self._wide[it], it.ty)) if self._is_state(it) else it
                for it in operands
            ],
        )

    def _is_state(self, operand: relax.Expr) -> bool:
        return bool(self._states) and operand in self._params and operand in self._wide

    # ---- Operands -------------------------------------------------------------------------------

    def _widened(self, value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._widened(field) for field in value.fields])
        if not _is_narrow(value.ty):
            return value
        if isinstance(value, Constant):
            return relax.const(_wide_tensor(value.value))
        if isinstance(value, relax.TupleGetItem):
            return self._bind(relax.TupleGetItem(self._widened(value.tuple_value), value.index))
        if value not in self._wide:
            self._wide[value] = self._bind(self._converted(value, _wide_type(value.ty)))
        return self._wide[value]

    def _converted(self, value: relax.Expr, ty: tvm.ir.Type) -> relax.Expr:
        """Return a value in a type, which differs in bfloat16 and float32 alone."""
        if isinstance(ty, relax.TupleType):
            fields = [self._bind(relax.TupleGetItem(value, at)) for at in range(len(ty.fields))]
            converted = map(self._converted, fields, ty.fields)
            return relax.Tuple([self._bind(field) for field in converted])
        if tvm_ffi.structural_equal(value.ty, ty):
            return value
        return self._builder.normalize(relax.op.astype(value, ty.dtype))

    def _bind(self, value: relax.Expr, kind: type[relax.Var] | None = None) -> relax.Var:
        value = self._builder.normalize(value)
        var = (kind or self._kind)(f"wide_{len(self._bindings)}", value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var
