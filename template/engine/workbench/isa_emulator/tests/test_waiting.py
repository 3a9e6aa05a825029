# SPDX-License-Identifier: Apache-2.0
"""Where a machine does not wait by itself, compiled programs do: whatever engines take."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import te, tirx

from backend.engine.backend.isa.compiler.code import Mark, Repeat, Step, Target, Where
from backend.engine.backend.isa.compiler.compile import Settings, compile_plan
from backend.engine.backend.isa.compiler.kernels import Kernel, Plan, Tensor
from backend.engine.backend.isa.compiler.loops import Affine, Unsupported, Var
from backend.engine.backend.isa.compiler.waiting import with_waits
from backend.engine.backend.isa.kinds import Address, Choice, Number
from backend.engine.backend.isa.machine import Box, Engine, Machine, Memory
from backend.engine.workbench.isa_emulator.emulator import EmulatorError, Limits, own

EMULATOR = own()
MACHINE = replace(EMULATOR.machine, sync="explicit")
WAITS = [
    name
    for name, it in MACHINE.instructions.items()
    if it.waits and it.fields and all(isinstance(kind, Number) for kind in it.fields.values())
]


# ---- The pass -----------------------------------------------------------------------------------

TOY = Machine(
    name="toy",
    word=64,
    memories=(Memory("dram", 0), Memory("near", 4096)),
    engines=(Engine("first"), Engine("load"), Engine("math")),
    sync="explicit",
)
ANYWHERE = Address("dram", "near")


@TOY.instruction(1, "first", {"engines": Number(8)}, waits="engines")
def fence(s, f):
    """Wait."""


@TOY.instruction(2, "first", {"when": Choice("always"), "lines": Number(16)}, writes=[], cycles="1")
def jump(s, f):
    """Go on elsewhere."""


@TOY.instruction(3, "first", {"target": ANYWHERE}, writes=[Box("target", "4")])
def poke(s, f):
    """Write an element."""


@TOY.instruction(
    4,
    "load",
    {"target": ANYWHERE, "source": ANYWHERE, "bytes": Number(16)},
    reads=[Box("source", "bytes")],
    writes=[Box("target", "bytes")],
)
def load(s, f):
    """Copy."""


@TOY.instruction(
    5,
    "math",
    {"target": ANYWHERE, "source": ANYWHERE, "bytes": Number(16)},
    reads=[Box("source", "bytes")],
    writes=[Box("target", "bytes")],
)
def twice(s, f):
    """Double."""


FAR, NEAR = 34 << 40, 2 << 40


def step(name, target, source=FAR):
    places = {"target": Where(target), "source": Where(source), "bytes": 64}
    return Step(name, {key: places[key] for key in TOY.instructions[name].fields})


def written(items):
    """Return items with waits as short texts; a wait as the engines that it waits for."""
    found = []
    for item in items:
        if isinstance(item, Repeat):
            found.append(written(item.items))
        elif isinstance(item, Step):
            found.append(
                item.fields["engines"] if item.instruction == "fence" else item.instruction
            )
    return found


def waited(*items):
    first, *rest = written(with_waits(items, TOY))
    assert first == 0b110
    return rest


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (step("load", NEAR), step("twice", NEAR + 256, NEAR + 63)),
        (step("load", NEAR + 256, NEAR), step("twice", NEAR, NEAR + 512)),
        (step("load", NEAR), step("twice", NEAR + 63, NEAR + 512)),
        (step("load", NEAR), step("poke", NEAR + 60)),
    ],
    ids=["what was written is read", "what was read is written", "both write", "by itself"],
)
def test_what_needs_the_bytes_of_another_engine_waits_for_it(earlier, later):
    other = step("twice", NEAR + 1024, NEAR + 2048)
    names = earlier.instruction, other.instruction, later.instruction
    assert waited(earlier, other, later) == [*names[:2], 0b010, names[2]]
    # It is done then.
    assert waited(earlier, other, later, later) == [*names[:2], 0b010, names[2], names[2]]


def test_what_needs_no_bytes_of_another_engine_does_not_wait():
    assert waited(step("load", NEAR), step("twice", NEAR + 64, NEAR + 128)) == ["load", "twice"]
    assert waited(step("load", NEAR), step("load", NEAR)) == ["load", "load"]
    both_read = step("load", NEAR + 64, NEAR), step("twice", NEAR + 128, NEAR)
    assert waited(*both_read) == ["load", "twice"]


def test_a_loop_waits_for_its_last_iteration_in_it_and_for_what_is_before_it_once():
    var = Var("i")
    moving = Step(
        "load", {"target": Where(NEAR), "source": Where(FAR, Affine(0, {var: 64})), "bytes": 64}
    )
    compute = step("twice", NEAR + 256, NEAR)
    body = Repeat(var, 4, [moving, compute])
    assert waited(body) == [[0b100, "load", 0b010, "twice"]]
    once = Repeat(var, 1, [moving, compute])
    assert waited(once) == [["load", 0b010, "twice"]]
    alone = Repeat(var, 4, [compute])
    assert waited(step("load", NEAR), alone) == ["load", 0b010, ["twice"]]
    # All iterations count, not only the first one.
    far = Repeat(var, 4, [Step("twice", {**compute.fields, "source": moving.fields["source"]})])
    assert waited(step("load", FAR + 200, NEAR), far) == ["load", 0b010, ["twice"]]


def test_what_branches_waits_in_front_of_its_branches():
    mark = Mark()
    branch = Step("jump", {"when": "always", "lines": Target(mark)})
    items = [step("load", NEAR), branch, step("poke", NEAR), mark, step("poke", NEAR + 4)]
    assert waited(*items) == ["load", 0b010, "jump", "poke", "poke"]


def test_of_instructions_that_wait_that_with_the_fewest_engines_is_taken():
    by_engine = replace(
        TOY.instructions["fence"],
        name="drain",
        fields={"load": Number(1), "math": Number(1)},
        waits="2 * load + 4 * math",
    )
    alone = replace(by_engine, name="all", fields={}, waits="-1")
    items = [step("load", NEAR), step("twice", NEAR + 256, NEAR)]
    others = {name: it for name, it in TOY.instructions.items() if name != "fence"}

    def made(*more):
        machine = replace(TOY, instructions=others | {it.name: it for it in more})
        waits = [it for it in with_waits(items, machine) if it.instruction in ("drain", "all")]
        return [(it.instruction, it.fields) for it in waits]

    assert made(by_engine) == [
        ("drain", {"load": 1, "math": 1}),
        ("drain", {"load": 1, "math": 0}),
    ]
    assert made(alone) == [("all", {}), ("all", {})]
    assert made(alone, by_engine)[1] == ("drain", {"load": 1, "math": 0})
    with pytest.raises(Unsupported, match="but no instruction waits for load, math"):
        made()


def test_a_machine_that_waits_by_itself_gets_no_waits():
    items = [step("load", NEAR), step("twice", NEAR + 256, NEAR)]
    assert with_waits(items, replace(TOY, sync="scoreboard")) == items


# ---- Programs -----------------------------------------------------------------------------------


def product(type_="float32"):
    """A convolution, with a function of its sums, in several tiles."""
    total = "float32" if type_ == "float32" else "int32"
    x = te.placeholder((1, 12, 20, 24), type_, name="x")
    w = te.placeholder((3, 3, 24, 40), type_, name="w")
    axes = [te.reduce_axis((0, size)) for size in (3, 3, 24)]
    inside = lambda i, j: tirx.all(i >= 1, i < 13, j >= 1, j < 21)  # noqa: E731
    zero = tirx.const(0, type_)
    padded = te.compute(
        (1, 14, 22, 24),
        lambda n, i, j, c: tirx.if_then_else(inside(i, j), x[n, i - 1, j - 1, c], zero),
        name="padded",
    )
    sums = te.compute(
        (1, 12, 20, 40),
        lambda n, i, j, c: te.sum(
            padded[n, i + axes[0], j + axes[1], axes[2]].astype(total)
            * w[axes[0], axes[1], axes[2], c].astype(total),
            axis=axes,
        ),
        name="sums",
    )
    half = tirx.const(2, total)
    return [x, w], te.compute(sums.shape, lambda *i: tirx.max(sums[i] * half, sums[i]))


def softmax():
    x = te.placeholder((40, 60), name="x")
    k, j = te.reduce_axis((0, 60)), te.reduce_axis((0, 60))
    most = te.compute((40,), lambda i: te.max(x[i, k], axis=k), name="most")
    power = te.compute((40, 60), lambda i, c: tirx.exp(x[i, c] - most[i]), name="power")
    total = te.compute((40,), lambda i: te.sum(power[i, j], axis=j), name="total")
    return [x], te.compute((40, 60), lambda i, c: power[i, c] / total[i], name="result")


def gathering():
    x = te.placeholder((90, 4), name="x")
    index = te.compute((50,), lambda i: (i * 7) % 90, name="index")
    return [x], te.compute((50, 4), lambda i, j: x[index[i], j] * 2, name="result")


KERNELS = {
    "product": product,
    "int8": lambda: product("int8"),
    "softmax": softmax,
    "gathering": gathering,
}


def plan_of(tensors, result):
    """Return a plan of one kernel twice, the second of which reads what the first has written."""
    every = [
        Tensor(str(it.dtype), tuple(map(int, it.shape)), "input", i) for i, it in enumerate(tensors)
    ]
    shape = tuple(map(int, result.shape))
    every += [Tensor(str(result.dtype), shape, "workspace"), Tensor("float32", shape, "output", 0)]
    x = te.placeholder(shape, str(result.dtype), name="x")
    more = te.compute(shape, lambda *i: x[i].astype("float32") + 1.0, name="more")
    functions = [te.create_prim_func([*tensors, result]), te.create_prim_func([x, more])]
    count = len(tensors)
    return Plan(
        every,
        [
            Kernel("kernel", functions[0], tuple(range(count + 1)), ("the op",)),
            Kernel("more", functions[1], (count, count + 1), ("more",)),
        ],
    )


def inputs_of(tensors):
    random = np.random.default_rng(1)
    made = (random.normal(size=tuple(map(int, it.shape))) * 9 for it in tensors)
    return [array.astype(str(it.dtype)).tobytes() for array, it in zip(made, tensors, strict=True)]


@pytest.mark.skipif(not WAITS, reason="the machine has no instruction that waits for engines")
@pytest.mark.parametrize("name", KERNELS)
def test_a_program_with_waits_needs_no_scoreboard(name):
    tensors, result = KERNELS[name]()
    plan, inputs = plan_of(tensors, result), inputs_of(tensors)
    alone = compile_plan(plan, replace(MACHINE, sync="scoreboard"), Settings()).program
    waits = compile_plan(plan, MACHINE, Settings()).program
    ordered = EMULATOR.run(alone, inputs, limits=Limits(sync="scoreboard"))
    for seed in range(3):
        for sync in ("explicit", "none"):
            found = EMULATOR.run(waits, inputs, limits=Limits(delay=500, seed=seed, sync=sync))
            assert found.outputs == ordered.outputs, (seed, sync)
    # No more than twice the cycles of a machine that knows what it waits for.
    found = EMULATOR.run(waits, inputs, limits=Limits(sync="explicit"))
    assert found.cycles < 2 * ordered.cycles


@pytest.mark.skipif(not WAITS, reason="the machine has no instruction that waits for engines")
def test_a_wait_that_is_left_out_is_caught():
    tensors, result = product()
    program = compile_plan(plan_of(tensors, result), MACHINE, Settings()).program
    inputs = inputs_of(tensors)
    right = EMULATOR.run(program, inputs).outputs
    refused = wrong = 0
    waits = [i for i, line in enumerate(program.lines) if line.instruction in WAITS]
    for at in waits:
        line = program.lines[at]
        fields = dict.fromkeys(line.fields, 0)
        lines = [*program.lines[:at], replace(line, fields=fields), *program.lines[at + 1 :]]
        changed = replace(program, lines=tuple(lines))
        try:
            EMULATOR.run(changed, inputs, limits=Limits(sync="explicit"))
        except EmulatorError as error:
            assert "and nothing in between waits for that engine" in str(error)
            refused += 1
        found = [
            EMULATOR.run(changed, inputs, limits=Limits(delay=500, seed=seed, sync="none"))
            for seed in range(3)
        ]
        wrong += any(it.outputs != right for it in found)
    # Others wait for what may not be there, such as what is before the first kernel.
    assert refused > len(waits) // 2 and wrong, (len(waits), refused, wrong)
