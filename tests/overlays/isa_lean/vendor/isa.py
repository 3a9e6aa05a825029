# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="untyped-decorator, no-any-return"
"""The machine "lean": a core, a DMA engine and a small array, around one memory of 64 kB.

It has no vectors, programs wait for its engines, the array takes 32 bytes by 8 columns at a time,
and its sums lie beside all else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm_isa_npu.engine.isa import (
    FUNCTIONS,
    INTEGER_ONLY,
    OPERATIONS,
    REAL_ONLY,
    Address,
    Box,
    Choice,
    Engine,
    Machine,
    Memory,
    Number,
    Register,
    State,
    converted,
)

MACHINE = Machine(
    name="lean",
    word=32,
    memories=(
        Memory("dram", 0, "tensors, constants and workspace"),
        Memory("ram", 64 << 10, "all else"),
    ),
    engines=(
        Engine("core", about="fetches; registers, loops and scalars"),
        Engine("dma", {"": 16}, "byte", "moves in both directions"),
        Engine("array", {"f32": 64, "i8": 256}, "MAC", "8 columns of products"),
    ),
    registers=24,
    loop_depth=3,
    sync="explicit",
    issue=2,
    queue=8,
)

RAM = Address("ram")
DRAM = Address("dram")
ANY = Address("dram", "ram")
TYPES = Choice("f32", "i32", "i8", "u8", "i16", "bool", "i64")
OFFSET = Number(32, signed=True)
STRIDE = Number(24, signed=True)

# ---- The core -----------------------------------------------------------------------------------


@MACHINE.instruction(1, "core", {}, waits="-1")
def halt(s: State, f: Any) -> None:
    """End the program, when all engines are done."""
    s.is_done = True


@MACHINE.instruction(2, "core", {"dma": Number(1), "array": Number(1)}, waits="2 * dma + 4 * array")
def drain(s: State, f: Any) -> None:
    """Wait until the DMA engine, the array or both are done with what they have."""
    s.wait(2 * f.dma + 4 * f.array)


@MACHINE.instruction(3, "core", {"to": Register(), "value": Number(64, signed=True)})
def set_(s: State, f: Any) -> None:
    """Set a register to a value."""
    s.set(f.to, f.value)


@MACHINE.instruction(4, "core", {"to": Register(), "a": Register(), "value": OFFSET})
def step(s: State, f: Any) -> None:
    """Set a register to another one plus a value, as integers."""
    s.set(f.to, s.get(f.a) + f.value)


@MACHINE.instruction(
    5,
    "core",
    {
        **{name: Register() for name in ("to", "a", "b")},
        "op": Choice(*OPERATIONS),
        "type": Choice("i64", "f32"),
    },
    cycles="12 if op in ('div', 'mod', 'pow', 'atan2') else 1",
    where=(
        f"not (op in {INTEGER_ONLY} and type == 'f32')",
        f"not (op in {REAL_ONLY} and type == 'i64')",
    ),
)
def alu(s: State, f: Any) -> None:
    """Set a register to a (op) b; a comparison is 0 or 1; integers are divided rounding down."""
    s.set(f.to, OPERATIONS[f.op](s.get(f.a, f.type), s.get(f.b, f.type)), f.type, f.op)


@MACHINE.instruction(
    6,
    "core",
    {
        "to": Register(),
        "a": Register(),
        "fun": Choice(
            *("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf"),
            *("abs", "floor", "ceil", "round", "trunc"),
        ),
    },
    cycles="16",
)
def fun(s: State, f: Any) -> None:
    """Set a register to fun(a), of float32."""
    s.set(f.to, FUNCTIONS[f.fun](s.get(f.a, "f32")), "f32")


@MACHINE.instruction(
    7,
    "core",
    {"to": Register(), "a": Register(), "source": Choice("i64", "f32"), "type": TYPES},
)
def cast(s: State, f: Any) -> None:
    """Set a register to a as another type: reals are cut and saturate, integers wrap."""
    s.set(f.to, converted(np.array(s.get(f.a, f.source)), f.type)[()], f.type)


@MACHINE.instruction(
    8,
    "core",
    {"to": Register(), "source": ANY, "type": TYPES},
    reads=[Box("source", "size(type)")],
    cycles="3",
)
def lds(s: State, f: Any) -> None:
    """Load an element of a memory into a register, as an integer of 64 bits or a float32."""
    s.set(f.to, s.read(f.source, f.type)[()], f.type)


@MACHINE.instruction(
    9,
    "core",
    {"a": Register(), "target": ANY, "type": TYPES},
    writes=[Box("target", "size(type)")],
    cycles="3",
)
def sts(s: State, f: Any) -> None:
    """Store a register as an element of a memory; integers wrap."""
    kind = "f32" if f.type == "f32" else "i64"
    s.write(f.target, f.type, converted(np.array(s.get(f.a, kind)), f.type))


@MACHINE.instruction(
    10,
    "core",
    {"when": Choice("always", "zero", "other"), "a": Register(), "lines": OFFSET},
)
def branch(s: State, f: Any) -> None:
    """Go on so many lines further: always, if a is 0, or if it is other."""
    if f.when == "always" or (f.when == "zero") == (s.get(f.a) == 0):
        s.line += f.lines - 1


@MACHINE.instruction(11, "core", {"count": Number(12, least=1)})
def loop(s: State, f: Any) -> None:
    """Begin lines that are executed so many times, up to the `next` that belongs to it."""
    s.enter(f.count)


@MACHINE.instruction(12, "core", {"r0": Register(), "r1": Register(), "v0": OFFSET, "v1": OFFSET})
def next_(s: State, f: Any) -> None:
    """Increase two registers by values, also the last time, and begin the loop again."""
    for register, value in ((f.r0, f.v0), (f.r1, f.v1)):
        s.set(register, s.get(register) + value)
    s.again()


# ---- Moves --------------------------------------------------------------------------------------

ROWS = {
    "bytes": Number(14, least=1),
    "count0": Number(12, least=1),
    "target0": STRIDE,
    "source0": STRIDE,
}
MOVED = {
    "reads": [Box("source", "bytes", (("count0", "source0"),))],
    "writes": [Box("target", "bytes", (("count0", "target0"),))],
    "cycles": "10 + ceil_div(bytes, 16) * count0",
    "work": "bytes * count0",
}


def move(s: State, f: Any) -> None:
    """Move rows of bytes."""
    rows = s.read(f.source, "u8", (f.count0, f.bytes), (f.source0, 1))
    s.write(f.target, "u8", rows, (f.target0, 1))


@MACHINE.instruction(16, "dma", {"target": RAM, "source": DRAM, **ROWS}, **MOVED)
def ld(s: State, f: Any) -> None:
    """Move rows of bytes from dram."""
    move(s, f)


@MACHINE.instruction(17, "dma", {"target": DRAM, "source": RAM, **ROWS}, **MOVED)
def st(s: State, f: Any) -> None:
    """Move rows of bytes to dram."""
    move(s, f)


# ---- The array ----------------------------------------------------------------------------------


@MACHINE.instruction(
    24,
    "array",
    {
        "target": RAM,
        "source": RAM,
        "weights": RAM,
        "type": Choice("f32", "i8"),
        "mode": Choice("set", "add"),
        "rows0": Number(8, least=1),
        "k": Number(6, least=1, most=32),
        "n": Number(4, least=1, most=8),
        "target0": Number(18, signed=True),
        "source0": Number(18, signed=True),
        "weights0": Number(18, signed=True),
    },
    reads=[
        Box("source", "k * size(type)", (("rows0", "source0"),)),
        Box("weights", "n * size(type)", (("k", "weights0"),)),
        Box("target", "4 * n", (("rows0", "target0"),), when="mode == 'add'"),
    ],
    writes=[Box("target", "4 * n", (("rows0", "target0"),))],
    # 8 rows of weights of 4 bytes are loaded into the columns, then the rows stream through.
    cycles="rows0 + 8",
    work="rows0 * k * n",
    type="type",
    where=["k * size(type) <= 32"],
)
def mm(s: State, f: Any) -> None:
    """Multiply rows by a matrix of weights; sums are float32, or int32 of i8."""
    total, wide = ("f32", np.float32) if f.type == "f32" else ("i32", np.int32)
    rows = s.read(f.source, f.type, (f.rows0, f.k), (f.source0,))
    weights = s.read(f.weights, f.type, (f.k, f.n), (f.weights0,))
    result = rows.astype(wide) @ weights.astype(wide)
    if f.mode == "add":
        result += s.read(f.target, total, result.shape, (f.target0,))
    s.write(f.target, total, result, (f.target0,))
