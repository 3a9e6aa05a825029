# SPDX-License-Identifier: Apache-2.0
"""Functions of a module with states that reach a compiled library.

One lists the states; others open and use sessions, which hold them (`runtime/sessions.cc`); and
each function has a form that takes a session in the place of states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..shared.backend import BACKEND
from .calls import Constant, StringImm, constant_of_text
from .lending import places_in_regions
from .states import (
    FUNCTIONS,
    Position,
    declared_in,
    described,
    fields_of,
    function_of_sessions,
    function_of_states,
    in_session,
    require_shared_buffers,
)
from .weights import bytes_of

_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "open": (),
    "copy": ("session",),
    "reset": ("session",),
    "close": ("session",),
    "read": ("session", "state"),
    "write": ("session", "state", "value"),
}
"""What a library does with sessions, and the parameters."""


def with_functions_of_states(mod: tvm.IRModule) -> tvm.IRModule:
    """Add the functions that states need to a module."""
    require_shared_buffers(mod)
    if not any(declared_in(function) for _, function in mod.functions_items()):
        return mod
    mod = _with_types(mod)
    functions = {
        str(name.name_hint): (name, function)
        for name, function in mod.functions_items()
        if declared_in(function)
    }
    model = _identity(mod)
    listed = {name: described(function)._asdict() for name, (_, function) in functions.items()}
    declared = _union({name: function for name, (_, function) in functions.items()})
    regions = {
        str(name.name_hint)
        for name, function in mod.functions_items()
        if (getattr(function, "attrs", None) or {}).get("Codegen") == BACKEND
    }
    builder = relax.BlockBuilder(mod)
    with builder.function(FUNCTIONS, [], private=False):
        builder.emit_func_output(constant_of_text(json.dumps(listed)))
    for name, (global_var, function) in functions.items():
        _add_list(builder, name, function)
        _add_form(builder, global_var, function, model, regions)
    fields = [{"name": name, "shape": shape} for name, (shape, _) in declared.items()]
    declaration = StringImm(json.dumps({"model": model, "states": fields}))
    initial = [relax.const(tensor) for _, tensor in declared.values()]
    for what, names in _FUNCTIONS.items():
        params = [relax.Var(name, relax.AnyType()) for name in names]
        with builder.function(function_of_sessions(what), params, private=False, pure=False):
            args = params or [declaration, *initial]
            builder.emit_func_output(_call(builder, what, args))
    present = {str(name.name_hint) for name in mod.get_global_vars()}
    for name, function in builder.get().functions_items():
        if name.name_hint not in present:
            mod[name] = function
    return mod


def _with_types(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a copy in which the name of each function with states has its type.

    In modules that users put together it has none, and passes leave that of an earlier function.
    """
    functions = {}
    for name, function in mod.functions_items():
        if declared_in(function) and not tvm_ffi.structural_equal(name.ty, function.ty):
            name = tvm.ir.GlobalVar(name.name_hint)
            relax.expr._update_type(name, function.ty)
        functions[name] = function
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _identity(mod: tvm.IRModule) -> str:
    """Return a text that tells a model apart from others, in any process: a hash of all of it."""
    found = hashlib.blake2b(digest_size=8)

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, Constant):
            found.update(f"{expr.ty}".encode())
            found.update(bytes_of(expr.value))
        elif isinstance(expr, relax.Call):
            found.update(f"{expr.op if isinstance(expr.op, tvm.ir.Op) else ''} {expr.ty}".encode())

    for _, function in sorted(mod.functions_items(), key=lambda item: str(item[0].name_hint)):
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
            text, *tensors = declared_in(function) or ("",)
            found.update(str(text).encode())
            for tensor in tensors:
                found.update(bytes_of(tensor))
    return found.hexdigest()


def _union(functions: Mapping[str, relax.Function]) -> dict[str, tuple[Sequence[int], Any]]:
    """Return shape and initial value of the states of a module, whose functions may share them."""
    union: dict[str, tuple[Sequence[int], Any]] = {}
    for function, value in functions.items():
        text, *tensors = declared_in(value) or ()
        for field, tensor in zip(json.loads(text), tensors, strict=True):
            shape, initial = union.setdefault(field["name"], (field["shape"], tensor))
            is_same = shape == field["shape"] and str(initial.dtype) == str(tensor.dtype)
            if not is_same or not np.array_equal(initial.numpy(), tensor.numpy(), equal_nan=True):
                raise ValueError(
                    f"The functions of the model share the state '{field['name']}', but its type "
                    f"or its initial value in '{function}' differs from that in another function; "
                    "supported is the same in all."
                )
    return union


def _add_list(builder: relax.BlockBuilder, name: str, function: relax.Function) -> None:
    text, *tensors = declared_in(function) or ()
    with builder.function(function_of_states(name), [], private=False):
        builder.emit_func_output(
            relax.Tuple([constant_of_text(str(text)), *map(relax.const, tensors)])
        )


def _add_form(
    builder: relax.BlockBuilder,
    name: tvm.ir.GlobalVar,
    function: relax.Function,
    model: str,
    regions: Collection[str],
) -> None:
    """Add the form of a function that takes a session in the place of states."""
    fields = {field["parameter"]: field for field in fields_of(function)}
    results = {parameter: int(field["result"]) for parameter, field in fields.items()}
    lent = places_in_regions(function, results, regions)
    # Symbols of sizes belong to one function.
    own = relax.utils.copy_with_new_vars(function).params
    inputs = [param for param in own if str(param.name) not in fields]
    session = relax.Var("session", relax.AnyType())
    with builder.function(
        in_session(str(name.name_hint)), [*inputs, session], private=False, pure=False
    ):
        # The machine drops it when a call fails, by which the session knows.
        positions = _positions(fields, own)
        call = _call(builder, "begin", [session, StringImm(model), *positions])
        args: list[relax.Expr] = []
        for param in own:
            field = fields.get(str(param.name))
            if field is not None:
                places = lent.get(str(param.name), ())
                value = _call(
                    builder,
                    "lend" if places else "take",
                    [call, StringImm(field["name"]), *map(relax.prim_value, places)],
                )
                param = builder.match_cast(value, param.ty)
            args.append(param)
        returned = builder.emit(relax.Call(name, args))
        results_of: list[relax.Expr] = []
        for field in fields.values():
            results_of += [StringImm(field["name"]), relax.prim_value(field["result"])]
        count = relax.prim_value(len(fields))
        ended = [call, returned, count, *results_of, *inputs]
        builder.emit_func_output(_call(builder, "end", ended))


def _positions(
    fields: Mapping[str, Mapping[str, Any]], params: Sequence[relax.Var]
) -> list[relax.Expr]:
    """Return where a function writes to its states, for the runtime: eight arguments for each.

    States that are written alike, such as the caches of all layers, are checked as one.
    """
    first: dict[Position, str] = {}
    for field in fields.values():
        for position in field.get("positions", ()):
            first.setdefault(Position(*position), field["name"])
    arguments: list[relax.Expr] = []
    for position, state in first.items():
        source = fields.get(position.parameter)
        value = next(param for param in params if str(param.name) == position.parameter)
        arguments += [
            StringImm(state),
            StringImm(source["name"] if source else position.parameter),
            *map(relax.prim_value, position[1:]),
            StringImm("") if source else value,
        ]
    return arguments


def _call(builder: relax.BlockBuilder, what: str, args: Sequence[relax.Expr]) -> relax.Var:
    callee = relax.ExternFunc(f"{BACKEND}.session.{what}")
    return builder.emit(relax.Call(callee, list(args), None, [relax.AnyType()]))
