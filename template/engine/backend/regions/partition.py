# SPDX-License-Identifier: Apache-2.0
"""Partitions and compiles models, behind the two functions in the backend's own `partition.py`.

Users read the docstrings there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..ir.calls import Constant
from ..ir.sessions import with_functions_of_states
from ..libraries.linking import drop_empty_source, link_artifacts
from ..passes import for_host, is_opaque, simplify
from ..settings.options import Options, Source
from ..shared.backend import BACKEND, PACKAGE, vendor
from ..shared.entry_points import entry_point
from ..table.patterns import TABLE
from .in_order import partition_in_order
from .overlap import overlapping_pipeline

Params = Mapping[Any, object]
_PASSES = ("DISABLED", "BEFORE", "AFTER")
"""The settings of vendor/passes.py."""


def partition_for(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    calibration_data: Iterable[object] | None = None,
    options: Source = None,
    **settings: object,
) -> tvm.IRModule:
    """Partition a model; the backend's function of that name says more."""
    _require_module(mod)
    loaded = Options.load(options).merged(**settings)
    disabled, before, after = (vendor("passes", name, ()) for name in _PASSES)
    mod = simplify(_bind(mod, params), TABLE, disabled, before, after)
    recorder = None
    if calibration_data is not None:
        recorder = entry_point("Recorder")(mod, calibration_data, loaded)
    mod = partition_in_order(mod, TABLE, loaded, recorder)
    return with_functions_of_states(for_host(mod, TABLE))


def compile_for(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    target: object = "llvm",
    calibration_data: Iterable[object] | None = None,
    options: Source = None,
    **settings: object,
) -> relax.VMExecutable:
    """Compile a model; the backend's function of that name says more."""
    _require_module(mod)
    loaded = Options.load(options).merged(**settings)
    mod = partition_for(mod, params, calibration_data=calibration_data, options=loaded)
    return compile_partitioned(mod, loaded, target)


def compile_partitioned(
    mod: tvm.IRModule, options: Options, target: object = "llvm"
) -> relax.VMExecutable:
    """Compile a module that is partitioned already."""
    if any("Codegen" in (function.attrs or {}) for _, function in mod.functions_items()):
        mod = relax.transform.RunCodegen({BACKEND: options.to_dict()})(mod)
    mod = link_artifacts(make_empty_constants(drop_unused_constants(mod)), target)
    executable = tvm.compile(mod, target=target, relax_pipeline=overlapping_pipeline(target))
    return drop_empty_source(executable)


def drop_unused_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Drop the constants that no compiled region needs when it is loaded.

    `RunCodegen` keeps the constants of all regions next to the module. The programs of this backend
    contain theirs, so weights would be stored twice.
    """
    name = "const_name_to_constant"
    constants = mod.attrs.get(name) if mod.attrs is not None else None
    if constants is None:
        return mod
    needed: set[str] = set()
    for module in mod.attrs.get("external_mods") or ():
        ask = module.get_function("get_const_vars", query_imports=False)
        if ask is not None:
            needed.update(str(constant) for constant in ask())
    kept = {key: value for key, value in constants.items() if str(key) in needed}
    return mod.with_attr(name, kept) if kept else mod.without_attr(name)


def make_empty_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace empty constants by calls that make them: TVM cannot load a library that holds one."""
    empty: list[Constant] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, Constant) and 0 in expr.value.shape:
            empty.append(expr)

    replaced: dict[tvm.ir.GlobalVar, relax.Expr] = {}
    for name, function in mod.functions_items():
        if not isinstance(function, relax.Function):
            continue
        empty.clear()
        relax.analysis.post_order_visit(function.body, visit)
        if empty:
            replaced[name] = _EmptyConstants().visit_expr(function)
    if replaced:
        mod = tvm.IRModule({**dict(mod.functions_items()), **replaced}, attrs=mod.attrs)
    return mod


@relax.expr_functor.mutator
class _EmptyConstants(relax.PyExprMutator):  # type: ignore[misc]
    def visit_generic_const_(self, op: Constant) -> relax.Expr:
        tensor = op.value
        if 0 not in tensor.shape:
            return op
        return self.builder_.emit(relax.op.zeros(list(tensor.shape), str(tensor.dtype)))

    visit_constant_ = visit_generic_const_  # Its name in TVM 0.26.


def _require_module(mod: object) -> None:
    """Refuse anything but a module, and say how to make one from a model."""
    if isinstance(mod, tvm.IRModule):
        return
    kind = f"{type(mod).__module__}.{type(mod).__name__}".removeprefix("builtins.")
    if isinstance(mod, relax.Function):
        how = "tvm.IRModule({'main': function}) makes one of a function"
    else:
        how = (
            f"{PACKAGE}.from_onnx(onnx.load(path)) makes one of an ONNX model, and "
            f"{PACKAGE}.from_exported_program(torch.export.export(model, inputs)) one of a PyTorch "
            "model"
        )
    raise TypeError(
        f"The model is of type {kind}; supported: tvm.IRModule, a model as functions of Relax. "
        f"{how}."
    )


def _bind(mod: tvm.IRModule, params: Params | None) -> tvm.IRModule:
    """Bind weights to parameters by name."""
    if not params:
        return mod
    functions = {
        global_var: function
        for global_var, function in mod.functions_items()
        if not is_opaque(function)
    }
    weights: dict[tvm.ir.GlobalVar, dict[relax.Var, object]] = {
        global_var: {} for global_var in functions
    }
    if not isinstance(params, Mapping | tvm_ffi.Map):
        raise ValueError(f"params is a {type(params).__name__}; it must map names to weights.")
    for key, value in params.items():
        matching = [function for function in functions if function.name_hint == key]
        if matching and isinstance(value, (list, tuple, tvm_ffi.Array)):
            # From `detach_params`: the function's name, and its last parameters.
            if len(value) > len(functions[matching[0]].params):
                raise ValueError(f"params has {len(value)} weights for '{key}', which takes fewer.")
            own = list(functions[matching[0]].params)
            weights[matching[0]].update(zip(own[len(own) - len(value) :], value, strict=True))
            continue
        name = str(getattr(key, "name", key))
        is_bound = False
        for global_var, function in functions.items():
            for param in function.params:
                if param.name == name:
                    is_bound = True
                    weights[global_var][param] = value
        if not is_bound:
            names = sorted({param.name for owner in functions.values() for param in owner.params})
            raise ValueError(f"params has '{name}'; the parameters are: {', '.join(names)}.")
    mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for global_var, bound in weights.items():
        if bound:
            tensors = {param: _weight(param, value) for param, value in bound.items()}
            mod[global_var] = functions[global_var].bind_params(tensors)
    return mod


def _weight(param: relax.Var, value: object) -> object:
    """Return a weight as TVM binds it; TVM would accept a wrong shape or dtype."""
    constant = value.value if isinstance(value, Constant) else value
    if isinstance(constant, np.ndarray):
        constant = tvm.runtime.tensor(constant)
    if not isinstance(constant, tvm.runtime.Tensor):
        raise ValueError(
            f"params has a {type(value).__name__} for '{param.name}'; "
            "supported: NumPy arrays, tensors of TVM and constants of Relax."
        )
    given = tuple(constant.shape)
    dtype = getattr(param.ty, "dtype", None)
    shape = getattr(getattr(param.ty, "shape", None), "values", None)
    fits = dtype is None or str(dtype) == str(constant.dtype)
    if shape is not None:
        # The weight determines symbolic sizes.
        sizes = [getattr(size, "value", None) for size in shape]
        fits = fits and len(sizes) == len(given)
        fits = fits and all(
            size in (None, known) for size, known in zip(sizes, given, strict=False)
        )
    if not fits:
        raise ValueError(
            f"params has {constant.dtype} of shape {given} for '{param.name}', "
            f"which is a {param.ty}."
        )
    return constant
