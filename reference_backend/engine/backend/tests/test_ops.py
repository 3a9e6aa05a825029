# SPDX-License-Identifier: Apache-2.0
"""Each op alone: the op suite of the conformance kit, and other forms of the operands.

These tests run quick cases of the suite; the command `conformance` runs all. A test is skipped with
a reason if edits of capabilities.py rule it out, or the driver declines its op. With the rendered
table, none is skipped.
"""

from functools import cache

import pytest

import quick_cases
import support
from backend.engine.workbench.conformance import Result, ops
from backend.engine.workbench.conformance.model import entry_of
from support import SELECTED

# All inputs but the first are constants, in the program or passed to it. An op that
# capabilities.py leaves out has no tests.
WAYS = {"constants": True, "kept_constants": False}
FIRST = support.accepted_cases()
CASES = quick_cases.of_ops()
WITH_CONSTANTS = [case for case in FIRST if case.has_constants]
each_way = pytest.mark.parametrize("way", WAYS)


@cache
def outcomes():
    return support.outcomes_of(ops.SUITE, CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_op_suite(case):
    support.assert_passed(outcomes()[case])


def test_the_driver_takes_something():
    assert not Result(outcomes=list(outcomes().values())).all_declined


@cache
def models():
    return {case: case.model(constants=True) for case in WITH_CONSTANTS if str(case) in SELECTED}


@cache
def compiled(way):
    return support.compile_all(list(models().values()), bind_constants=WAYS[way])


@each_way
@pytest.mark.parametrize("case", WITH_CONSTANTS, ids=str)
def test_inputs_may_be_constants(case, way):
    model = models()[case]
    found = support.placement(compiled(way).partitioned[model.name], model.name)
    refusals = model.refusals(bind_constants=WAYS[way])
    if refusals:
        assert not found.regions
        pytest.skip(f"capabilities.py was edited and refuses it: {refusals[0]}")
    if found.declined:
        pytest.skip(f"declined: {found.on_host}")
    entry = entry_of(case.op)
    lost = support.lost_by_folding(case)
    assert {reason.partition(":")[0] for reason in found.on_host} <= lost
    # If a part of a chain only has constant operands, it is folded.
    if not lost:
        assert len(found.regions) == 1
        assert not entry.relax or len(found.regions[0]) == 1
    for n in model.sizes:
        actual = compiled(way).run(model.name, [item.values[n] for item in model.arguments])
        support.assert_right(model, actual, n)


# test_deploy.py does the same without lowering code.
@pytest.mark.thorough
def test_each_op_computes_the_same_in_a_fresh_process(every_op, tmp_path):
    here = every_op.compiled
    there = support.run_in_fresh_process(here, every_op.models, tmp_path)
    for model in every_op.models:
        for n in model.sizes:
            expected = here.run(model.name, [item.values[n] for item in model.arguments])
            support.assert_close(there[model.name, n], expected, 0, 0, f"{model.name}, n={n}")
