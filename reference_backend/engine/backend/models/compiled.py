# SPDX-License-Identifier: Apache-2.0
"""Compiled models: libraries are loaded, and machines run."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import tvm
from tvm.runtime.vm import VirtualMachine

from ..ir.states import functions_with_states, states
from ..shared.backend import BACKEND
from ..shared.problem import Problem, sentence
from .files import require_file
from .signature import FUNCTION, Input, Signature, initial_of

LIBRARY = ".so"
"""How the names of compiled libraries end."""

Results: TypeAlias = "tvm.runtime.Tensor | Sequence[Results]"
"""The results of a model: a tensor, or a tuple of results."""

# The head of a 64-bit ELF file: the offset of the section table, and its entries.
_ELF = struct.Struct("<4s36xQ10xHH2x")
# TVM's message about a part of a library that no installed package loads.
_FOREIGN = re.compile(r"created using \{(\w+)\} but a loader")


class Library(NamedTuple):
    """A function of a compiled library."""

    machine: VirtualMachine
    signature: Signature
    function: str


def load_library(path: Path, function: str | None = None) -> Library:
    """Load a compiled library, and find a function: by default `main`, or the only one."""
    machine = load_machine(path)
    try:
        known = functions_of(machine)
        if function is None and len(known) == 1:
            (function,) = known
        if function in known:
            return Library(machine, _signature(machine, function), function)
    except Exception as error:
        raise _not_loaded(path, error) from error
    names = ", ".join(known) or "none"
    if function is None:
        raise Problem(f"{path} has several functions: {names}; choose one with --function NAME.")
    raise Problem(f"{path} has no function '{function}'; its functions are: {names}.")


def functions_of(machine: VirtualMachine) -> list[str]:
    """Return the functions of a model: `main`, or those with states."""
    if (names := list(functions_with_states(machine))) and "main" not in names:
        return names
    return ["main"]


def load_machine(path: Path) -> VirtualMachine:
    """Load a compiled library, with any functions."""
    _require_complete(path)
    try:
        return VirtualMachine(tvm.runtime.load_module(str(path.resolve())), tvm.cpu())
    except Exception as error:
        foreign = _FOREIGN.search(str(error))
        if foreign is not None:
            raise Problem(
                f"{path} needs '{foreign[1]}', which is not part of {BACKEND}. If that is another "
                "backend, run the library with its package."
            ) from error
        raise _not_loaded(path, error) from error


def _not_loaded(path: Path, error: Exception) -> Problem:
    return Problem(f"{path} cannot be loaded: {sentence(error)}")


def _require_complete(path: Path) -> None:
    """Refuse a file that is no whole library, and so would crash the loader."""
    require_file(path)
    with path.open("rb") as file:
        head = file.read(_ELF.size)
    if head[:4] != b"\x7fELF":
        raise Problem(f"{path} is not a library; the command 'compile' makes one of a model.")
    if len(head) < _ELF.size:
        raise Problem(f"{path} is incomplete; copy it again.")
    _, start, size, count = _ELF.unpack(head)
    is_64_bit = head[4] == 2
    if is_64_bit and start + size * count > path.stat().st_size:
        raise Problem(f"{path} is incomplete; copy it again.")


def _signature(machine: VirtualMachine, function: str) -> Signature:
    """Return the signature in a library; one from another program only has names."""
    initial = initial_of(states(machine, function))
    try:
        if function == "main":
            describe = machine[FUNCTION]
            return Signature.from_json(describe().numpy().tobytes().decode(), initial)
    except AttributeError:
        pass
    known = {name: Input(name, str(value.dtype), value.shape) for name, value in initial.items()}
    if (described := functions_with_states(machine).get(function)) is not None:
        for name, dtype, sizes in described.inputs:
            known[name] = Input(name, dtype, None if sizes is None else tuple(sizes))
    count = int(machine._get_function_arity(function))
    names = [str(machine._get_function_param_name(function, index)) for index in range(count)]
    return Signature(tuple(known.get(name, Input(name)) for name in names), initial=initial)


def run(
    machine: VirtualMachine, inputs: Sequence[tvm.runtime.Tensor], function: str = "main"
) -> list[tvm.runtime.Tensor]:
    """Run a model."""
    try:
        return list(_tensors(machine[function](*inputs)))
    except Exception as error:
        raise Problem(f"The model cannot be run: {sentence(error)}") from error


def _tensors(result: Results) -> Iterator[tvm.runtime.Tensor]:
    if isinstance(result, tvm.runtime.Tensor):
        yield result
    else:
        for part in result:
            yield from _tensors(part)
