# SPDX-License-Identifier: Apache-2.0
"""Tuning, and its records."""

from dataclasses import replace

import pytest
from tvm import te

from backend.engine.backend.isa.compiler import tool
from backend.engine.backend.isa.compiler.compile import Settings, compile_plan
from backend.engine.backend.isa.compiler.kernels import Kernel, Plan, Tensor
from backend.engine.backend.isa.compiler.scheduling import RULES, products, scheduled
from backend.engine.backend.isa.encoding import fingerprint
from backend.engine.backend.isa.tuning import (
    FILE,
    Record,
    best_of,
    key_of,
    read,
    space_of,
    table_of,
    tunable,
)
from backend.engine.workbench.isa_emulator.emulator import own
from backend.engine.workbench.isa_emulator.tuner import Tuner, WrongValuesError, distinct_kernels

EMULATOR = own()
MACHINE = EMULATOR.machine


def matmul_plan(rows=192, times=1):
    """A plan with a product of matrices, which it computes so many times."""
    a, b = te.placeholder((rows, 96), name="a"), te.placeholder((96, 128), name="b")
    k = te.reduce_axis((0, 96))
    result = te.compute((rows, 128), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    function = te.create_prim_func([a, b, result])
    tensors = [Tensor("float32", (rows, 96), "input", 0), Tensor("float32", (96, 128), "input", 1)]
    tensors += [Tensor("float32", (rows, 128), "output", index) for index in range(times)]
    return Plan(tensors, [Kernel("product", function, (0, 1, 2 + it), ()) for it in range(times)])


FUNCTION = matmul_plan().kernels[0].function
if scheduled(FUNCTION, MACHINE, products, {}) is None:
    pytest.skip("the machine has no matrix engine", allow_module_level=True)


def tuned(alone, records=(), trials=16, settings=None):
    """Return the default, the best, and the trials that were made."""
    made = []
    tuner = Tuner(EMULATOR, settings or Settings(), records, made.append)
    default, best = tuner.tune(alone, trials)
    return default, best, made


# ---- Tuning -------------------------------------------------------------------------------------


def test_equal_kernels_are_tuned_once_and_trials_are_not_made_again():
    one, other = distinct_kernels([matmul_plan(times=2), matmul_plan(64)])
    assert (one.count, other.count) == (2, 1) and one.key != other.key
    default, best, made = tuned(one)
    assert len(made) == 16 and made[0] == default and default.sizes == {}
    assert best.cycles <= default.cycles and best.cycles == min(it.cycles or 1 << 60 for it in made)
    assert {name for it in made for name in it.sizes} <= {*space_of(products)}
    # What was interrupted goes on.
    again = tuned(one, made[:9])
    assert again[:2] == (default, best) and again[2] == made[9:]


def test_the_compiler_uses_what_tuning_found():
    (alone,) = distinct_kernels([matmul_plan()])
    default, best, _ = tuned(alone)

    def cycles(settings):
        program = compile_plan(alone.plan, MACHINE, settings).program
        return EMULATOR.run(program, [array.tobytes() for array in alone.inputs]).cycles

    assert cycles(Settings()) == default.cycles
    assert cycles(Settings(sizes={alone.key: best.sizes})) == best.cycles
    assert cycles(Settings(sizes={"another": best.sizes})) == default.cycles


def test_a_rule_of_the_vendor_has_a_space_of_its_own():
    given = []

    @tunable(rows=(16, 24))
    def own_rule(schedule, machine, sizes):
        """Schedule as the engine's rule does."""
        given.append({**sizes})
        return products(schedule, machine, sizes)

    (alone,) = distinct_kernels([matmul_plan()])
    _, best, made = tuned(alone, settings=Settings(rules=(own_rule, *RULES)))
    assert [it.sizes for it in made] == [{}, {"rows": 16}, {"rows": 24}]
    assert {"rows": 24} in given and best.cycles == min(it.cycles or 1 << 60 for it in made)


def test_sizes_that_change_values_are_an_error(monkeypatch):
    run = EMULATOR.run

    def wrong(program, inputs, **more):
        found = run(program, inputs, **more)
        return replace(found, outputs=tuple(bytes(len(it)) for it in found.outputs))

    (alone,) = distinct_kernels([matmul_plan()])
    tuner = Tuner(EMULATOR, Settings())
    expected = []
    tuner._trial(alone, {}, None, expected)
    monkeypatch.setattr(EMULATOR, "run", wrong)
    with pytest.raises(WrongValuesError, match="product computes other values with rows=16, "):
        tuner._trial(alone, {"rows": 16, "columns": 16}, None, expected)


# ---- Records ------------------------------------------------------------------------------------


def test_files_of_records_are_merged_and_those_of_another_table_are_not_used(tmp_path):
    one, other = Record("t", "k", {"rows": 64}, 90), Record("t", "k", {"rows": 32}, 80)
    failed, foreign = Record("t", "k", {"rows": 1}, None), Record("u", "k", {"rows": 2}, 10)
    lines = [it.line for it in (one, failed, foreign, other)]
    path = tmp_path / FILE
    assert read(path, "t") == []
    for order in (lines, lines[::-1]):
        path.write_text("".join(order))
        assert best_of(read(path, "t")) == {"k": other}
    path.write_text(lines[0] + '{"kernel": 3}\n')
    with pytest.raises(ValueError, match=f"{FILE}, line 2: it is no record of tuning"):
        read(path, "t")


def test_a_table_with_other_cycles_is_another_one():
    known = MACHINE.instructions["mm"]
    changed = replace(MACHINE, instructions=dict(MACHINE.instructions))
    changed.instructions["mm"] = replace(known, cycles=f"2 * ({known.cycles})")
    assert fingerprint(changed) == fingerprint(MACHINE) and table_of(changed) != table_of(MACHINE)


def test_the_tool_reads_the_file_of_the_vendor(tmp_path, monkeypatch):
    record = Record(table_of(MACHINE), key_of(FUNCTION), {"rows": 32}, 80)
    monkeypatch.setattr(tool, "VENDOR", tmp_path)
    before = tool._digest()
    (tmp_path / FILE).write_text(record.line)
    assert tool.settings(MACHINE).sizes == {record.kernel: {"rows": 32}}
    # Programs that were compiled without it are not used again.
    assert tool._digest() != before
