# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""The two functions that users call: partition a model, and compile it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ._library import BACKEND
from .capabilities import OPTIONS
from .capability import Constant, Range
from .patterns import TABLE
from .prepasses import is_opaque, simplify
from .regions import Partitioner

Params = Mapping[Any, Any]


def partition_for_example_npu(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    bind_constants: bool = True,
    on_decline: str = "host",
    options: Mapping[str, Any] | None = None,
) -> tvm.IRModule:
    """Move what the NPU can run into regions, and leave the rest to the host.

    Parameters
    ----------
    mod
        The model. It is not changed.
    params
        Weights to bind, by the name of the parameter; or what `relax.frontend.detach_params`
        returns. Weights that are not bound stay arguments of the model.
    bind_constants
        Whether weights become part of the NPU's program, or are passed at each call.
    on_decline
        What happens where the driver declines what the table allows: "host" leaves it to the host,
        "error" raises.
    options
        Settings for the driver. Hand the same to `RunCodegen`, under the backend's name.

    Returns
    -------
    mod
        A module with a function per region; `offload_report` tells what is where.

    Raises
    ------
    ValueError
        An option is not known, or a parameter not there.
    RuntimeError
        The driver declined something and `on_decline` is "error".
    """
    if on_decline not in ("host", "error"):
        raise ValueError(f"on_decline is '{on_decline}'; supported: 'host' and 'error'.")
    checked = check_options(options)
    mod = simplify(_bind(mod, params), TABLE)
    return Partitioner(mod, TABLE, bind_constants, on_decline, checked).run()


def compile_for_example_npu(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    target: Any = "llvm",
    bind_constants: bool = True,
    on_decline: str = "host",
    options: Mapping[str, Any] | None = None,
) -> relax.VMExecutable:
    """Partition a model, and compile both parts of it.

    Parameters
    ----------
    mod
        The model. It is not changed.
    params
        Weights to bind, as for the partitioning.
    target
        What the host part is compiled for.
    bind_constants
        Whether weights become part of the NPU's program, or are passed at each call.
    on_decline
        "host" or "error", as for the partitioning.
    options
        Settings for the driver.

    Returns
    -------
    executable
        To be run by `relax.VirtualMachine`, or exported as a library.
    """
    mod = partition_for_example_npu(
        mod,
        params,
        bind_constants=bind_constants,
        on_decline=on_decline,
        options=options,
    )
    if any("Codegen" in (function.attrs or {}) for _, function in mod.functions_items()):
        mod = relax.transform.RunCodegen({BACKEND: check_options(options)})(mod)
    return tvm.compile(drop_unused_constants(mod), target=target)


def check_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Refuse settings that the driver does not know.

    Parameters
    ----------
    options
        Settings by name.

    Returns
    -------
    options
        The same settings.

    Raises
    ------
    ValueError
        A name or a value is not supported.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"options is a {type(options).__name__}; it must map names to values.")
    for name, value in (options or {}).items():
        if name not in OPTIONS:
            known = ", ".join(f"'{key}'" for key in OPTIONS) or "none"
            raise ValueError(f"The option '{name}' is not known to {BACKEND}; known: {known}.")
        allowed, plain = OPTIONS[name], _plain(value)
        is_whole = isinstance(allowed, Range) and isinstance(allowed.min, int)
        if isinstance(value, tuple) or (is_whole and isinstance(plain, float)):
            raise ValueError(f"The option '{name}' is {value!r}; supported: one whole number.")
        if not allowed.accepts(plain):
            raise ValueError(f"The option '{name}' is {value!r}; supported: {allowed}.")
    return {name: _plain(value) for name, value in (options or {}).items()}


def _plain(value: Any) -> Any:
    """Return a number of NumPy, or a whole one that is written as a float, as Python's."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def drop_unused_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Forget the constants that no compiled region asks for when it is loaded.

    `RunCodegen` keeps all constants of all regions beside the module. The programs of this backend
    contain theirs, so that weights would be stored twice.

    Parameters
    ----------
    mod
        A module after `RunCodegen`.

    Returns
    -------
    mod
        The module with the constants that are needed.
    """
    name = "const_name_to_constant"
    constants = mod.attrs.get(name) if mod.attrs is not None else None
    if constants is None:
        return mod
    needed: set[str] = set()
    for module in mod.attrs.get("external_mods") or ():
        ask = module.get_function("get_const_vars", query_imports=False)
        if ask is not None:
            needed.update(str(item) for item in ask())
    kept = {key: value for key, value in constants.items() if str(key) in needed}
    return mod.with_attr(name, kept) if kept else mod.without_attr(name)


def _bind(mod: tvm.IRModule, params: Params | None) -> tvm.IRModule:
    """Bind weights to the parameters of their names."""
    if not params:
        return mod
    functions = {
        global_var: function
        for global_var, function in mod.functions_items()
        if not is_opaque(function)
    }
    weights: dict[Any, dict[Any, Any]] = {global_var: {} for global_var in functions}
    if not isinstance(params, Mapping | tvm_ffi.Map):
        raise ValueError(f"params is a {type(params).__name__}; it must map names to weights.")
    for key, value in params.items():
        matching = [item for item in functions if item.name_hint == key]
        if matching and isinstance(value, (list, tuple, tvm_ffi.Array)):
            # As `detach_params` has it: the function's name, and its last parameters.
            if len(value) > len(functions[matching[0]].params):
                raise ValueError(f"params has {len(value)} weights for '{key}', which takes fewer.")
            own = list(functions[matching[0]].params)
            weights[matching[0]].update(zip(own[len(own) - len(value) :], value, strict=True))
            continue
        name = str(getattr(key, "name", key))
        found = False
        for global_var, function in functions.items():
            for param in function.params:
                if param.name == name:
                    found = True
                    weights[global_var][param] = value
        if not found:
            known = sorted({param.name for item in functions.values() for param in item.params})
            raise ValueError(f"params has '{name}'; the parameters are: {', '.join(known)}.")
    mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for global_var, bound in weights.items():
        if bound:
            tensors = {param: _weight(param, value) for param, value in bound.items()}
            mod[global_var] = functions[global_var].bind_params(tensors)
    return mod


def _weight(param: Any, value: Any) -> Any:
    """Return a weight as TVM binds it; TVM itself would bind one of another shape or dtype."""
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
        # What is no number is a symbol, which the weight decides.
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
