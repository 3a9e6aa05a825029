# SPDX-License-Identifier: Apache-2.0
"""What a table must meet, so that all that is made of it is right: names, ranges, sizes."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .expressions import FUNCTIONS, read
from .kinds import Address, Choice, Field, Float, Number, Register
from .meaning import meaning_of, named_in

if TYPE_CHECKING:
    from .machine import Box, Instruction, Machine

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORDS = """
    alignas alignof asm auto bool break case catch char class const constexpr continue
    decltype default delete do double else enum explicit export extern false float for
    friend goto if inline int long mutable namespace new noexcept nullptr operator private
    protected public register return short signed sizeof static struct switch template this
    throw true try typedef typeid typename union unsigned using virtual void volatile while
    and or not xor
"""
_CPP_WORDS = frozenset(_WORDS.split())
_OPCODES = 256
_SYNCS = ("scoreboard", "explicit")


class TableError(ValueError):
    """The table of a machine is wrong; the message says where and what to do."""


def check_machine(machine: Machine) -> None:
    """Check a machine whose instructions were checked one by one.

    Raises
    ------
    TableError
        It contradicts itself.
    """
    at = f"machine '{machine.name}'"
    _check_name(machine.name, at)
    for what, names in (
        ("memory", [memory.name for memory in machine.memories]),
        ("engine", [engine.name for engine in machine.engines]),
    ):
        for name in names:
            _check_name(name, f"{what} '{name}'")
        _check_once(names, f"{at} has the {what}")
    if not machine.engines:
        raise TableError(f"{at} has no engine; the first one fetches instructions")
    segmented = [memory.name for memory in machine.memories if memory.is_segmented]
    if len(segmented) != 1:
        have = ", ".join(segmented) or "none"
        raise TableError(
            f"{at} needs exactly one memory of 0 bytes, which holds tensors; it has {have}"
        )
    for memory in machine.memories:
        if not 0 <= memory.bytes <= 1 << 36:
            raise TableError(f"memory '{memory.name}' has {memory.bytes} bytes")
    if len(machine.memories) > 31:
        raise TableError(f"{at} has {len(machine.memories)} memories; the most are 31")
    if len(machine.engines) > 63:
        raise TableError(f"{at} has {len(machine.engines)} engines; the most are 63")
    for what, number, least, most in (
        ("bytes of a word", machine.word, 1, 1024),
        ("registers", machine.registers, 2, 256),
        ("nested loops", machine.loop_depth, 0, 64),
        ("cycles to issue", machine.issue, 0, 1 << 20),
        ("instructions in a queue", machine.queue, 1, 1 << 16),
    ):
        if not least <= number <= most:
            raise TableError(f"{at} has {number} {what}; supported are {least} to {most}")
    if machine.sync not in _SYNCS:
        raise TableError(f"{at}: sync is '{machine.sync}'; supported are {', '.join(_SYNCS)}")
    if not machine.instructions:
        raise TableError(f"{at} has no instructions")
    waiting = [it.name for it in machine.instructions.values() if it.waits]
    if machine.sync == "explicit" and not waiting:
        raise TableError(f"{at} has explicit sync, but no instruction that waits for engines")
    _check_once([_camel(name) for name in machine.instructions], f"{at} has the function in C++")
    for engine in machine.engines:
        if any(peak < 1 for peak in engine.peak.values()):
            raise TableError(f"engine '{engine.name}' has a peak below 1")


def check_instruction(machine: Machine, new: Instruction) -> None:
    """Check an instruction that is to become one of a machine.

    Raises
    ------
    TableError
        It contradicts itself, the machine, or an instruction that is there.
    """
    at = f"instruction '{new.name}'"
    _check_name(new.name, at)
    for known in machine.instructions.values():
        if known.opcode == new.opcode:
            raise TableError(f"{at} has opcode {new.opcode}, as '{known.name}' has")
    if new.name in machine.instructions:
        raise TableError(f"{at} is there twice")
    if not 0 <= new.opcode < _OPCODES:
        raise TableError(f"{at} has opcode {new.opcode}; opcodes are from 0 to {_OPCODES - 1}")
    engines = {engine.name: engine for engine in machine.engines}
    if new.engine not in engines:
        raise TableError(f"{at}: there is no engine '{new.engine}', only {', '.join(engines)}")
    bits = 8
    for name, kind in new.fields.items():
        _check_name(name, f"{at}, field '{name}'")
        _check_field(machine, kind, f"{at}, field '{name}'")
        if name.endswith("_size") and name.removesuffix("_size") in new.fields:
            raise TableError(f"{at}, field '{name}': this is the size of another field")
        bits += machine.bits_of(kind)
    if bits > 8 * machine.word:
        raise TableError(
            f"{at} has {bits} bits with its opcode's 8; a word has {8 * machine.word}: widen words "
            "or narrow fields"
        )
    for text in new.expressions:
        _check_expression(new, text, at)
    for box in new.boxes:
        _check_box(new, box, at)
    _check_peak(new, dict(engines[new.engine].peak), at)
    if new.means:
        _check_meaning(new, at)
    if not new.about:
        raise TableError(f"{at} has no line of documentation (the docstring of its oracle)")
    if len(inspect.signature(new.oracle).parameters) != 2:
        raise TableError(f"{at}: its oracle has two parameters, the state and the fields")


def _check_name(name: str, at: str) -> None:
    if not _NAME.fullmatch(name):
        raise TableError(
            f"{at}: names begin with a small letter, and have small letters, digits and _"
        )
    if keyword.iskeyword(name) or name in _CPP_WORDS or name in FUNCTIONS or name == "size":
        raise TableError(f"{at}: '{name}' has a meaning in Python, C++ or expressions")


def _check_once(names: Sequence[str], at: str) -> None:
    for name in names:
        if list(names).count(name) > 1:
            raise TableError(f"{at} '{name}' twice")


def _check_field(machine: Machine, kind: Field, at: str) -> None:
    match kind:
        case Number():
            if not 1 <= kind.bits <= 64 or (kind.bits == 64 and not kind.signed):
                raise TableError(
                    f"{at} has {kind.bits} bits; a number has 1 to 64, 63 if it is not signed"
                )
            least, most = kind.range
            low, high = Number(kind.bits, kind.signed).range
            if not low <= least <= most <= high:
                raise TableError(
                    f"{at} is from {least} to {most}, but its bits hold {low} to {high}"
                )
        case Choice():
            if not kind.names:
                raise TableError(f"{at} has no names to choose from")
            for name in kind.names:
                if not _NAME.fullmatch(name):
                    raise TableError(f"{at}: '{name}' is no name of small letters, digits and _")
            _check_once(kind.names, f"{at} has the name")
        case Address():
            have = [memory.name for memory in machine.memories]
            if not kind.memories:
                raise TableError(f"{at} names no memory; there are {', '.join(have)}")
            for memory in kind.memories:
                if memory not in have:
                    raise TableError(f"{at}: no memory '{memory}', only {', '.join(have)}")
            _check_once(kind.memories, f"{at} has the memory")
        case Float() | Register():
            pass
        case _:
            raise TableError(f"{at} is {kind!r}, no Number, Choice, Float, Register or Address")


def _check_expression(new: Instruction, text: str, at: str) -> None:
    try:
        expression = read(text)
    except ValueError as error:
        raise TableError(f"{at}: {error}") from None
    written = new.as_written(text)
    for name in expression.names:
        if not isinstance(new.fields.get(name), Number | Choice):
            raise TableError(f"{at}: '{written}' names '{name}', which is no field of numbers")
    for name in expression.sizes:
        kind = new.fields.get(name)
        if not (isinstance(kind, Choice) and kind.are_types):
            raise TableError(
                f"{at}: '{written}' asks for the size of '{name}', which is no field of types"
            )


def _check_box(new: Instruction, box: Box, at: str) -> None:
    if not isinstance(new.fields.get(box.address), Address):
        raise TableError(f"{at}: a box begins at '{box.address}', which is no address")


def _check_peak(new: Instruction, peak: dict[str, int], at: str) -> None:
    """Check that the engine has a peak for what the instruction does."""
    if new.type:
        kind = new.fields.get(new.type)
        if not isinstance(kind, Choice):
            raise TableError(f"{at}: its type '{new.type}' is no field with a choice")
        missing = [name for name in kind.names if name not in peak and "" not in peak]
        if new.work != "0" and missing:
            raise TableError(
                f"{at}: its engine '{new.engine}' has no peak for {', '.join(missing)}"
            )
    elif new.work != "0" and "" not in peak:
        raise TableError(
            f"{at} has work, but its engine '{new.engine}' no peak for all types, and the "
            "instruction no `type`"
        )


def _check_meaning(new: Instruction, at: str) -> None:
    """Check that the compiler can give each field of an instruction a value."""
    try:
        named = {*named_in(meaning_of(new.means))}
    except ValueError as error:
        raise TableError(f"{at}: {error}") from None
    operands = {name for name in named if isinstance(new.fields.get(name), Address)}
    numbers = {name for name in named if isinstance(new.fields.get(name), Float)}
    for name in sorted(named - operands - numbers):
        raise TableError(f"{at}: '{new.means}' names '{name}', which is no address and no float")
    wanted = {"target", *operands, *numbers, *(f"count{i}" for i in range(3))}
    wanted |= {f"{name}{i}" for name in ("target", *operands) for i in range(3)}
    for name in sorted(wanted - {*new.fields}):
        raise TableError(f"{at}: what means '{new.means}' has a field '{name}', too")
    for name in new.fields:
        if name not in (*wanted, "type"):
            raise TableError(f"{at}: '{new.means}' does not say what '{name}' is")


def _camel(name: str) -> str:
    """Return the name of an instruction's function in C++."""
    return "".join(part.capitalize() for part in name.split("_"))
