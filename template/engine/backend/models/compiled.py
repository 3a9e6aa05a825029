# SPDX-License-Identifier: Apache-2.0
"""Compiled models: libraries are loaded, and machines run."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import tvm
from tvm.runtime.vm import VirtualMachine

from ..shared.backend import BACKEND
from ..shared.problem import Problem, sentence
from .files import require_file
from .signature import FUNCTION, Input, Signature

LIBRARY = ".so"
"""How the names of compiled libraries end."""

Results: TypeAlias = "tvm.runtime.Tensor | Sequence[Results]"
"""The results of a model: a tensor, or a tuple of results."""

# The head of a 64-bit ELF file: the offset of the section table, and its entries.
_ELF = struct.Struct("<4s36xQ10xHH2x")
# TVM's message about a part of a library that no installed package loads.
_FOREIGN = re.compile(r"created using \{(\w+)\} but a loader")


def load_library(path: Path) -> tuple[VirtualMachine, Signature]:
    """Load a compiled library."""
    _require_complete(path)
    try:
        machine = VirtualMachine(tvm.runtime.load_module(str(path.resolve())), tvm.cpu())
        return machine, _signature(machine)
    except Exception as error:
        foreign = _FOREIGN.search(str(error))
        if foreign is not None:
            raise Problem(
                f"{path} needs '{foreign[1]}', which is not part of {BACKEND}. If that is another "
                "backend, run the library with its package."
            ) from error
        raise Problem(f"{path} cannot be loaded: {sentence(error)}") from error


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


def _signature(machine: VirtualMachine) -> Signature:
    """Return the signature in a library; one from another program only has names."""
    try:
        describe = machine[FUNCTION]
    except AttributeError:
        count = int(machine._get_function_arity("main"))
        names = (str(machine._get_function_param_name("main", index)) for index in range(count))
        return Signature(tuple(map(Input, names)))
    return Signature.from_json(describe().numpy().tobytes().decode())


def run(machine: VirtualMachine, inputs: Sequence[tvm.runtime.Tensor]) -> list[tvm.runtime.Tensor]:
    """Run a model."""
    try:
        return list(_tensors(machine["main"](*inputs)))
    except Exception as error:
        raise Problem(f"The model cannot be run: {sentence(error)}") from error


def _tensors(result: Results) -> Iterator[tvm.runtime.Tensor]:
    if isinstance(result, tvm.runtime.Tensor):
        yield result
    else:
        for part in result:
            yield from _tensors(part)
