# SPDX-License-Identifier: Apache-2.0
"""What a model keeps from one call to the next: declared in its module, and in a library of it.

A module stays functional: a state is a parameter of its function, and one of the last results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from tvm.runtime.vm import VirtualMachine

from ..shared.aliases import Array
from ..shared.backend import BACKEND

if TYPE_CHECKING:
    import tvm
    from tvm import relax

_ATTRIBUTE = "states"
"""Of a function: the fields of its states as JSON, and their initial values."""

_OF_REGION = "states_of_region"
"""Of a region: by state, its `input` and `output` among those of the region, as JSON."""

_BUFFERS = "buffers"
"""Of a function: its `Buffers` as JSON."""

FUNCTIONS = f"{BACKEND}_functions_with_states"
"""The function of a library that lists the functions with states: JSON in UTF-8, as a tensor of
uint8; by name, the fields of `Described`."""


class NoStates(ValueError):
    """A model that was to have states keeps nothing: why, and what a program does about it."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why} {remedy}")
        self.why = why


class Position(NamedTuple):
    """Where a function writes to a state: at numbers of a parameter, an input or a state.

    `element`: which one of the parameter's, or -1 for all.
    `least`, `most`: what is added to it.
    `size`: the size of the axis along which it is written.
    `first`: the first place; less than 0 where those count from the end.
    """

    parameter: str
    element: int
    least: int
    most: int
    size: int
    first: int = 0


@dataclass(frozen=True, eq=False)
class State:
    """A tensor that a model keeps from one call to the next.

    Parameters
    ----------
    name
        Its name in the model, such as "key_cache_0".
    parameter
        The name of the function's parameter that takes its value before a call.
    result
        The place of its value after the call among the function's results.
    initial
        Its value before the first call; it may be read-only.
    """

    name: str
    parameter: str
    result: int
    initial: Array


def states(model: tvm.IRModule | VirtualMachine, function: str = "main") -> tuple[State, ...]:
    """Return what a model keeps from one call to the next.

    The caller passes the value of each state as an argument, and takes the one for the next call
    from the results.

    Parameters
    ----------
    model
        A module, before or after any pass, or a machine that runs what was compiled of one.
    function
        The name of the function in it.

    Returns
    -------
    states
        In the order of parameters and of results; none if the model keeps nothing.

    Raises
    ------
    ValueError
        The machine has no such function.
    TypeError
        The model is neither a module nor a machine.
    """
    if hasattr(model, "functions_items"):
        text, *tensors = declared_in(model[function]) or ("[]",)
        return _states(str(text), tensors)
    require_machine(model)
    try:
        declare = model[function_of_states(function)]
    except AttributeError:
        _require_function(model, function)
        return ()
    encoded, *tensors = declare()
    return _states(encoded.numpy().tobytes().decode(), tensors)


def require_machine(machine: object) -> None:
    """Refuse what a model was compiled to: a machine runs it."""
    if not isinstance(machine, VirtualMachine):
        raise TypeError(
            f"A machine is needed, and this is {type(machine).__name__}: pass "
            "tvm.runtime.vm.VirtualMachine(compiled, tvm.cpu()), where `compiled` is what the "
            "backend or load_module returned."
        )


def _require_function(machine: VirtualMachine, function: str) -> None:
    try:
        machine[function]
    except AttributeError:
        known = ", ".join(functions_with_states(machine)) or "none"
        raise ValueError(
            f"The machine has no function '{function}'; functions with states are: {known}."
        ) from None


def _states(text: str, tensors: Sequence[tvm.runtime.Tensor]) -> tuple[State, ...]:
    return tuple(
        State(
            field["name"],
            field["parameter"],
            field["result"],
            np.broadcast_to(tensor.numpy(), field["shape"]),
        )
        for field, tensor in zip(json.loads(text), tensors, strict=True)
    )


def declare(
    function: relax.Function,
    kept: Sequence[tuple[str, str, tvm.runtime.Tensor, Sequence[Position]]],
    windows: Mapping[str, int] | None = None,
) -> relax.Function:
    """Return a function whose last results are the states, declared.

    `kept`: the name, parameter and initial value of each, and where it is written; a tensor without
    axes fills its shape.
    `windows`: how many steps a state keeps, by name, if these are the last ones.
    """
    shapes = {
        str(param.name): [int(size) for size in param.ty.shape.values]
        for param in function.params
        if any(str(param.name) == parameter for _, parameter, *_ in kept)
    }
    results = getattr(function.ret_ty, "fields", [function.ret_ty])
    fields = [
        {
            "name": name,
            "parameter": parameter,
            "result": place,
            "shape": shapes[parameter],
            "positions": positions,
            "window": (windows or {}).get(name),
        }
        for place, (name, parameter, _, positions) in enumerate(kept, len(results) - len(kept))
    ]
    tensors = [tensor for _, _, tensor, _ in kept]
    return function.with_attr(_ATTRIBUTE, [json.dumps(fields), *tensors])


def fields_of(function: object) -> list[dict[str, Any]]:
    """Return the fields of a function's states, in order."""
    text, *_ = declared_in(function) or ("[]",)
    fields: list[dict[str, Any]] = json.loads(str(text))
    return fields


def declared_in(function: object) -> Sequence[Any] | None:
    """Return what `declare` adds to a function: the fields as JSON, and the initial values."""
    return (getattr(function, "attrs", None) or {}).get(_ATTRIBUTE)


class Buffers(NamedTuple):
    """Buffers of a program that are no states, by name.

    `read`: those that are constants.
    `overwritten`: those whose new values nothing in the program reads.
    """

    read: Collection[str]
    overwritten: Collection[str]


def with_buffers(function: relax.Function, buffers: Buffers) -> relax.Function:
    """Return a function that knows which buffers it has beside its states."""
    if not any(buffers):
        return function
    return function.with_attr(_BUFFERS, json.dumps([sorted(names) for names in buffers]))


def require_shared_buffers(mod: tvm.IRModule) -> None:
    """Refuse a module in which a function changes what another one would not see changed."""
    changed: dict[str, str] = {}
    kept: dict[str, str] = {}
    replaced: list[tuple[str, str]] = []
    read: list[tuple[str, str]] = []
    for name, function in mod.functions_items():
        attrs = getattr(function, "attrs", None) or {}
        constant, overwritten = json.loads(str(attrs.get(_BUFFERS, "[[], []]")))
        own = {field["name"] for field in fields_of(function)}
        changed |= dict.fromkeys((*own, *overwritten), str(name.name_hint))
        kept |= dict.fromkeys(own, str(name.name_hint))
        replaced += [(str(name.name_hint), buffer) for buffer in overwritten if buffer not in own]
        read += [(str(name.name_hint), buffer) for buffer in constant if buffer not in own]
    for function, buffer in read:
        if changed.get(buffer, function) != function:
            raise ValueError(
                f"The function '{function}' reads the buffer '{buffer}', which "
                f"'{changed[buffer]}' changes: it would read its value at the export. Supported "
                "are buffers that each function that reads them also changes; else return it as a "
                f"result of '{changed[buffer]}', and pass it to '{function}' as an input."
            )
    for function, buffer in replaced:
        if buffer in kept:
            raise ValueError(
                f"The function '{function}' replaces the buffer '{buffer}' without reading it, so "
                f"that '{kept[buffer]}', which keeps it as a state, would not see the new value. "
                f"Supported are buffers that each function reads; else return it as a result of "
                f"'{function}', and write it to the session."
            )


def redeclared(
    function: relax.Function, change: Callable[[tvm.runtime.Tensor], tvm.runtime.Tensor]
) -> relax.Function:
    """Return a function whose states have other initial values."""
    text, *tensors = declared_in(function) or ("[]",)
    return function.with_attr(_ATTRIBUTE, [text, *map(change, tensors)])


class Variables(NamedTuple):
    """The names of states by the variables that hold them before and after a call."""

    before: Mapping[relax.Expr, str]
    after: Mapping[relax.Expr, str]


def variables_of(function: relax.Function, values: Mapping[relax.Var, relax.Expr]) -> Variables:
    """Return the variables that hold the states of a function.

    `values`: the values of variables in the function.
    """
    fields = fields_of(function)
    params = {str(param.name): param for param in function.params}
    results = function.body.body
    results = getattr(values.get(results, results), "fields", [results])
    return Variables(
        {params[field["parameter"]]: field["name"] for field in fields},
        {results[field["result"]]: field["name"] for field in fields},
    )


def with_states_of_region(
    region: relax.Function,
    inputs: Sequence[relax.Expr],
    outputs: Sequence[relax.Expr],
    variables: Variables,
) -> relax.Function:
    """Return a region that knows which states of its model it reads and gives."""
    found: dict[str, dict[str, int]] = {}
    ends = ("input", inputs, variables.before), ("output", outputs, variables.after)
    for end, values, names in ends:
        for place, value in enumerate(values):
            if value in names:
                found.setdefault(names[value], {})[end] = place
    return region.with_attr(_OF_REGION, json.dumps(found)) if found else region


def states_of_region(region: relax.Function) -> dict[str, dict[str, int]]:
    """Return by state its `input` and its `output` among those of a region."""
    states: dict[str, dict[str, int]] = json.loads(str(region.attrs.get(_OF_REGION, "{}")))
    return states


def bytes_of_states(mod: tvm.IRModule) -> dict[str, int]:
    """Return the bytes of each state of a module's functions."""
    found: dict[str, int] = {}
    for _, function in mod.functions_items():
        _, *tensors = declared_in(function) or ("",)
        for field, tensor in zip(fields_of(function), tensors, strict=True):
            found[field["name"]] = math.prod(field["shape"]) * tensor.dtype.itemsize
    return found


Parameter: TypeAlias = "tuple[str, str, tuple[int | str, ...] | None]"
"""Name, type and sizes: None if unknown, and an open size as its name."""


def parameters_of(function: relax.Function) -> list[Parameter]:
    """Return the parameters of a function; the type of what is no tensor is ""."""
    return [(str(param.name), *_type_of(param.ty)) for param in function.params]


def _type_of(ty: relax.Type) -> tuple[str, tuple[int | str, ...] | None]:
    """Return type and sizes of a tensor; for anything else, an empty name and None."""
    values = getattr(getattr(ty, "shape", None), "values", None)
    sizes = None if values is None else tuple(map(_size, values))
    return str(getattr(ty, "dtype", None) or ""), sizes


class Described(NamedTuple):
    """What a library tells of a function with states.

    `inputs`: those that are no states.
    `result`: type and sizes of its first result.
    `room`: at how many places of its states it can begin to write; None if it writes to none.
    `window`: how many steps its states keep, if these are the last ones; else None.
    """

    inputs: Sequence[Parameter]
    result: tuple[str, Sequence[int | str] | None]
    room: int | None
    window: int | None = None


def described(function: relax.Function) -> Described:
    """Return what a library tells of a function with states."""
    fields = fields_of(function)
    kept = {field["parameter"] for field in fields}
    inputs = [it for it in parameters_of(function) if it[0] not in kept]
    positions = [Position(*it) for field in fields for it in field.get("positions", ())]
    room = min((it.size - it.most for it in positions), default=None)
    first = getattr(function.ret_ty, "fields", [function.ret_ty])[0]
    windows = [field["window"] for field in fields if field.get("window")]
    return Described(inputs, _type_of(first), room, min(windows, default=None))


def functions_with_states(machine: VirtualMachine) -> dict[str, Described]:
    """Return the functions of a library that have states."""
    require_machine(machine)
    try:
        describe = machine[FUNCTIONS]
    except AttributeError:
        return {}
    functions = json.loads(describe().numpy().tobytes().decode())
    return {name: Described(**fields) for name, fields in functions.items()}


def _size(value: object) -> int | str:
    return int(value.value) if hasattr(value, "value") else str(value)


def function_of_states(function: str) -> str:
    """Return the name of the function of a library that lists the states of another."""
    return f"{BACKEND}_states_of_{function}"


def function_of_sessions(what: str) -> str:
    """Return the name of the function of a library that opens, copies and so on a session."""
    return f"{BACKEND}_session_{what}"


def in_session(function: str) -> str:
    """Return the name of the form of a function that takes a session in the place of states."""
    return f"{function}_in_session"
