# SPDX-License-Identifier: Apache-2.0
"""Writes the table of a machine as C++, for the emulator.

`isa_table.h` has constants and, for each instruction, a struct of its fields, which the functions
of `vendor/isa_semantics.h` take; `isa_table.inc` has what executes and measures them.

    python -m <package>.engine.backend.isa.cpp vendor/isa.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from .encoding import fingerprint, slots
from .expressions import read
from .kinds import ELEMENT_BYTES, Address, Choice, Field, Float, Number, Register
from .loading import with_table
from .machine import Instruction, Machine, TableError
from .operations import FUNCTIONS, OPERATIONS

HEADER, TABLE = "isa_table.h", "isa_table.inc"
"""The names of the two files."""

_BEGINNING = """\
// SPDX-License-Identifier: Apache-2.0
// Written by backend/isa/cpp.py out of vendor/isa.py: do not edit.
"""


def header(machine: Machine) -> str:
    """Return `isa_table.h`.

    Parameters
    ----------
    machine
        The machine.

    Raises
    ------
    TableError
        A name of a choice is none in C++.
    """
    most_boxes = max((len(it.boxes) for it in machine.instructions.values()), default=0)
    most_addresses = max((len(_addresses(it)) for it in machine.instructions.values()), default=0)
    parts = [
        _BEGINNING,
        "#ifndef ISA_TABLE_H_\n#define ISA_TABLE_H_\n\n#include <cstdint>\n",
        '#include "isa_emulator/kinds.h"\n',
        "namespace npu::isa {\n",
        f"constexpr const char* kMachine = {_text(machine.name)};",
        f"constexpr uint64_t kFingerprint = UINT64_C({fingerprint(machine)});",
        f"constexpr int32_t kWordBytes = {machine.word};",
        f"constexpr int32_t kRegisters = {machine.registers};",
        f"constexpr int32_t kLoopDepth = {machine.loop_depth};",
        f"constexpr int32_t kIssueCycles = {machine.issue};",
        f"constexpr int32_t kQueue = {machine.queue};",
        f"constexpr bool kIsExplicit = {_bool(machine.sync == 'explicit')};",
        f"constexpr int32_t kMostBoxes = {max(1, most_boxes)};",
        f"constexpr int32_t kMostAddresses = {max(1, most_addresses)};",
        "constexpr MemoryInfo kMemories[] = {",
        *(f"    {{{_text(it.name)}, {it.bytes}}}," for it in machine.memories),
        "};",
        "constexpr EngineInfo kEngines[] = {",
        *(
            f"    {{{_text(it.name)}, {_text(it.unit)}, {_text(it.about)}}},"
            for it in machine.engines
        ),
        "};",
        f"constexpr int32_t kMemoryCount = {len(machine.memories)};",
        f"constexpr int32_t kEngineCount = {len(machine.engines)};\n",
        "/*! \\brief All names of choices. */",
        "enum class Name : int32_t {",
        *(f"  {camel}," for camel in _names(machine).values()),
        "};\n",
        *(_struct(it) for it in machine.instructions.values()),
        "}  // namespace npu::isa\n\n#endif  // ISA_TABLE_H_",
    ]
    return "\n".join(parts) + "\n"


def table(machine: Machine) -> str:
    """Return `isa_table.inc`, for the namespace of the emulator."""
    names = _names(machine)
    parts = [_BEGINNING]
    parts.append("constexpr const char* kNames[] = {")
    parts += [f"    {_text(name)}," for name in names]
    parts.append("};\n")
    for instruction in machine.instructions.values():
        parts += [_fields(machine, instruction, names), *_functions(instruction)]
    parts.append("constexpr InstructionInfo kInstructions[] = {")
    engines = [engine.name for engine in machine.engines]
    for instruction in machine.instructions.values():
        camel = _camel(instruction.name)
        fields = f"kFieldsOf{camel}" if instruction.fields else "nullptr"
        values = (
            *(_text(instruction.name), instruction.opcode, engines.index(instruction.engine)),
            *(fields, len(instruction.fields), f"sizeof({camel}Fields)"),
            *(f"Measure{camel}", f"Run{camel}"),
        )
        parts.append(f"    {{{', '.join(map(str, values))}}},")
    parts.append("};\n")
    parts.append("constexpr PeakInfo kPeaks[] = {")
    for instruction in machine.instructions.values():
        parts += [f"    {peak}," for peak in _peaks(machine, instruction)]
    parts.append("    {-1, SIZE_MAX, 0, 0},\n};")
    return "\n".join(parts) + "\n"


def write(machine: Machine, folder: Path) -> None:
    """Write both files; those that are the same already stay, so that nothing is compiled again.

    Parameters
    ----------
    machine
        The machine.
    folder
        Where they should be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((HEADER, header(machine)), (TABLE, table(machine))):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# ---- Names --------------------------------------------------------------------------------------


def _text(text: str) -> str:
    return json.dumps(text)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _camel(name: str) -> str:
    """Return a name as those of functions and types."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _names(machine: Machine) -> dict[str, str]:
    """Return the enumerator of each name of a choice, and of those that the engine knows."""
    names = dict.fromkeys((*ELEMENT_BYTES, *OPERATIONS, *FUNCTIONS))
    for instruction in machine.instructions.values():
        for kind in instruction.fields.values():
            names |= dict.fromkeys(kind.names if isinstance(kind, Choice) else ())
    camels: dict[str, str] = {}
    for name in names:
        camel = "k" + _camel(name)
        if not camel.isidentifier() or not camel.isascii() or camel in camels.values():
            raise TableError(f"the choice '{name}' cannot be a name in C++; call it otherwise")
        camels[name] = camel
    return camels


# ---- Instructions -------------------------------------------------------------------------------


def _addresses(instruction: Instruction) -> list[str]:
    return [name for name, kind in instruction.fields.items() if isinstance(kind, Address)]


def _struct(instruction: Instruction) -> str:
    types: dict[type[Field], str] = {
        **{Number: "int64_t", Choice: "Chosen", Float: "float", Register: "int32_t"},
        Address: "uint8_t*",
    }
    members = [f"  {types[type(kind)]} {name};" for name, kind in instruction.fields.items()]
    about = instruction.about.replace("*/", "* /")
    camel = _camel(instruction.name)
    if not members:
        return f"/*! \\brief {about} */\nstruct {camel}Fields {{}};\n"
    body = "\n".join(members)
    return f"/*! \\brief {about} */\nstruct {camel}Fields {{\n{body}\n}};\n"


def _fields(machine: Machine, instruction: Instruction, names: dict[str, str]) -> str:
    """Return what decodes the fields of an instruction."""
    camel = _camel(instruction.name)
    parts, infos = [], []
    for slot in slots(machine, instruction):
        kind = slot.kind
        least, most, memories, choices, count = 0, 0, 0, "nullptr", 0
        match kind:
            case Number():
                least, most = kind.range
            case Choice():
                count = len(kind.names)
                choices = f"kChoicesOf{camel}{_camel(slot.name)}"
                entries = ", ".join(
                    f"{{Name::{names[name]}, {index}, {ELEMENT_BYTES.get(name, 0)}}}"
                    for index, name in enumerate(kind.names)
                )
                parts.append(f"constexpr Chosen {choices}[] = {{{entries}}};")
            case Address():
                order = [memory.name for memory in machine.memories]
                memories = sum(1 << order.index(name) for name in kind.memories)
        signed = isinstance(kind, Number) and kind.signed
        values = (
            *(_text(slot.name), f"FieldKind::k{type(kind).__name__}", _bool(signed)),
            *(slot.low, slot.bits, _int64(least), _int64(most), choices, count, f"{memories}u"),
            f"offsetof({camel}Fields, {slot.name})",
        )
        infos.append(f"    {{{', '.join(map(str, values))}}},")
    if infos:
        parts += [f"constexpr FieldInfo kFieldsOf{camel}[] = {{", *infos, "};"]
    return "\n".join(parts)


def _int64(value: int) -> str:
    # An unsigned number of 64 bits is kept as the signed one with the same bits.
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})"


def _functions(instruction: Instruction) -> Iterator[str]:
    camel = _camel(instruction.name)
    given = f"[[maybe_unused]] const auto& f = *static_cast<const {camel}Fields*>(fields);"
    addresses = _addresses(instruction)
    yield f"void Measure{camel}(const void* fields, Measures* m) {{"
    yield f"  {given}"
    for text in instruction.where:
        yield f"  m->Require({_cpp(text)}, {_text(instruction.as_written(text))});"
    boxes = [(box, False) for box in instruction.reads] + [
        (box, True) for box in instruction.writes
    ]
    for box, is_write in boxes:
        dims = ", ".join(f"{{{_cpp(count)}, {_cpp(stride)}}}" for count, stride in box.dims)
        yield (
            f"  m->Add({addresses.index(box.address)}, {_bool(is_write)}, {_cpp(box.when)}, "
            f"{_cpp(box.bytes)}, {{{dims}}});"
        )
    yield f"  m->cycles = {_cpp(instruction.cycles)};"
    yield f"  m->work = {_cpp(instruction.work)};"
    if instruction.waits:
        yield f"  m->waits = {_cpp(instruction.waits)};"
    yield "}"
    yield f"void Run{camel}([[maybe_unused]] State& s, const void* fields) {{"
    yield f"  {camel}(s, *static_cast<const {camel}Fields*>(fields));"
    yield "}\n"


def _cpp(text: str) -> str:
    return read(text).cpp


def _peaks(machine: Machine, instruction: Instruction) -> Iterator[str]:
    """Return the peaks of an instruction by its type."""
    engine = next(it for it in machine.engines if it.name == instruction.engine)
    kind = instruction.fields.get(instruction.type)
    if not isinstance(kind, Choice):
        if "" in engine.peak:
            yield f"{{{instruction.opcode}, SIZE_MAX, 0, {engine.peak['']}}}"
        return
    for index, name in enumerate(kind.names):
        peak = engine.peak.get(name, engine.peak.get("", 0))
        place = f"offsetof({_camel(instruction.name)}Fields, {instruction.type})"
        yield f"{{{instruction.opcode}, {place}, {index}, {peak}}}"


def main(arguments: list[str]) -> int:
    """Write the files of a table; 0 is success."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, help="vendor/isa.py")
    parser.add_argument("folder", type=Path, help="where the files should be")
    given = parser.parse_args(arguments)
    return with_table(given.table, lambda machine: write(machine, given.folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
