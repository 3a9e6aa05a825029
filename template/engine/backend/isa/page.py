# SPDX-License-Identifier: Apache-2.0
"""The page about an instruction set, in Markdown."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .encoding import OPCODE_BITS, slots
from .kinds import Address, Choice, Field, Float, Number, Register
from .loading import with_table
from .machine import Box, Instruction, Machine

_SYNCS = {
    "scoreboard": "The machine lets an instruction wait for earlier ones whose bytes it needs.",
    "explicit": "Programs wait themselves: an instruction that needs bytes of an earlier one on "
    "another engine is refused, unless one between them waits for that engine.",
}


def page(machine: Machine) -> str:
    """Return the page about a machine.

    Parameters
    ----------
    machine
        The machine.

    Returns
    -------
    text
        Markdown: memories, engines, and each instruction with its word, the bytes that it reads and
        writes, its cycles and its meaning.
    """
    parts = [
        f"# The instruction set of {machine.name}",
        f"An instruction is a word of {machine.word} bytes, a little-endian number: the opcode in "
        f"its lowest {OPCODE_BITS} bits, then the fields in their order, and zeros. There are "
        f"{machine.registers} registers of 64 bits, of which r0 is always 0, and up to "
        f"{machine.loop_depth} nested loops. An address is a register and an offset of 32 bits, in "
        f"bytes. {_SYNCS[machine.sync]} `{machine.engines[0].name}` fetches, and hands over an "
        f"instruction every {_counted(machine.issue, 'cycle')}.",
        "## Memories",
        _table(
            ("number", "memory", "bytes", ""),
            [
                (number, f"`{memory.name}`", memory.bytes or "those of a program", memory.about)
                for number, memory in enumerate(machine.memories, 1)
            ],
        ),
        "## Engines",
        _table(
            ("bit", "engine", "peak", ""),
            [
                (bit, f"`{engine.name}`", _peak(engine.peak, engine.unit), engine.about)
                for bit, engine in enumerate(machine.engines)
            ],
        ),
        "## Instructions",
        _table(
            ("opcode", "instruction", "engine", ""),
            [
                (it.opcode, f"[`{it.name}`](#{it.name})", f"`{it.engine}`", it.about)
                for it in _ordered(machine)
            ],
        ),
        *(part for it in _ordered(machine) for part in _section(machine, it)),
    ]
    return "\n\n".join(parts) + "\n"


def _ordered(machine: Machine) -> list[Instruction]:
    return sorted(machine.instructions.values(), key=lambda it: it.opcode)


def _section(machine: Machine, it: Instruction) -> list[str]:
    """Return the section of an instruction."""
    rows = [
        (f"{slot.low} to {slot.low + slot.bits - 1}", f"`{slot.name}`", _values(machine, slot.kind))
        for slot in slots(machine, it)
    ]
    about = [f"Opcode {it.opcode}, on `{it.engine}`."]
    for verb, boxes in (("Reads", it.reads), ("Writes", it.writes)):
        if boxes:
            about.append(f"{verb} " + ", and ".join(_box(it, box) for box in boxes) + ".")
    if it.where:
        conditions = " and ".join(f"`{it.as_written(text)}`" for text in it.where)
        about.append(f"Only where {conditions}.")
    if it.waits:
        about.append(f"Waits for the engines of the bits `{it.as_written(it.waits)}`.")
    if it.means:
        about.append(f"For each element: `{it.means}`.")
    about.append(f"Cycles: `{it.as_written(it.cycles)}`.")
    if it.work != "0":
        (engine,) = (engine for engine in machine.engines if engine.name == it.engine)
        about.append(f"Work: `{it.as_written(it.work)}` ({engine.unit or 'units'}).")
    parts = [f"### {it.name}", inspect.getdoc(it.oracle) or "", " ".join(about)]
    return [*parts, _table(("bits", "field", "values"), rows)] if rows else parts


def _box(it: Instruction, box: Box) -> str:
    """Return a box in words."""
    text = f"`{it.as_written(box.bytes)}` bytes at `{box.address}`"
    for count, stride in reversed(box.dims):
        text += f", `{it.as_written(count)}` times `{it.as_written(stride)}` apart"
    return text if box.when == "1" else f"{text}, if `{it.as_written(box.when)}`"


def _values(machine: Machine, kind: Field) -> str:
    """Return in words which values a field has."""
    match kind:
        case Number():
            least, most = kind.range
            return f"{least} to {most}"
        case Choice():
            return ", ".join(f"{number} `{name}`" for number, name in enumerate(kind.names))
        case Float():
            return "a float32"
        case Register():
            return f"a register, 0 to {machine.registers - 1}"
        case Address():
            places = ", ".join(f"`{name}`" for name in kind.memories)
            return f"an address in {places}: a register, and an offset of 32 bits"


def _peak(peak: Mapping[str, int], unit: str) -> str:
    found = [
        _counted(count, unit) + (f" of `{kind}`" if kind else "") for kind, count in peak.items()
    ]
    return ", ".join(found) + " per cycle" if found else ""


def _counted(number: int, unit: str) -> str:
    return unit if number == 1 else f"{number} {unit}s"


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    texts = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in texts)


def main(arguments: list[str]) -> int:
    """Print the page of a table; 0 is success."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, help="vendor/isa.py")
    given = parser.parse_args(arguments)
    return with_table(given.table, lambda machine: sys.stdout.write(page(machine)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
