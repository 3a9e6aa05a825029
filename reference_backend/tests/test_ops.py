# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""Each op alone: every case of the catalogue, in every way in which it may reach the NPU.

A test that cannot be because capabilities.py was edited is skipped, and says so. With the table as
it was rendered nothing is skipped.
"""

from functools import cache

import pytest

import support
from op_cases import OPS
from support import SELECTED, TABLE, Case

# An op that is taken out of capabilities.py has no tests.
CASES = [Case(op, entry) for op in OPS if TABLE.get(op) for entry in OPS[op]["cases"]]
REFUSED = [Case(op, entry) for op in OPS if TABLE.get(op) for entry in OPS[op]["refused"]]

# All inputs are arguments; or all but the first are constants, in the program or passed to it.
WAYS = {
    "arguments": {},
    "constants": {"bind_constants": True},
    "kept_constants": {"bind_constants": False},
}
CASES_AND_WAYS = [
    (case, way) for way in WAYS for case in CASES if way == "arguments" or case.has_constants
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_case_and_way = pytest.mark.parametrize(("case", "way"), CASES_AND_WAYS, ids=str)
each_refused_case = pytest.mark.parametrize("case", REFUSED, ids=str)


@cache
def models(way):
    """Return the models of the cases that come in this way, by case."""
    cases = [case for case, known in CASES_AND_WAYS if known == way and str(case) in SELECTED]
    return {case: case.model(constants=way != "arguments") for case in cases}


@cache
def compiled(way):
    """Compile the cases that come in this way for the NPU."""
    return support.compile_all(list(models(way).values()), **WAYS[way])


@cache
def compiled_on_host():
    """Compile all cases with TVM's own kernels."""
    return support.compile_on_host([*models("arguments").values(), *refused_models()])


@pytest.fixture(scope="module")
def fresh_process(tmp_path_factory):
    """What all cases give in a process of their own, which has never seen the model."""
    return support.run_in_fresh_process(
        compiled("arguments"), list(models("arguments").values()), tmp_path_factory.mktemp("fresh")
    )


@each_case_and_way
def test_an_op_is_one_composite_in_one_region(case, way):
    found = support.placement(compiled(way).partitioned[case.symbol], case.symbol)
    refusals = models(way)[case].refusals(**WAYS[way])
    if refusals:
        assert not found.regions
        pytest.skip(f"capabilities.py was edited and refuses it: {refusals[0]}")
    assert not found.on_host
    names = {op.name for op in TABLE.entries_of(TABLE.get(case.op).relax)}
    assert len(found.regions) == 1
    assert len(found.regions[0]) == 1
    assert found.regions[0][0] in names


@each_case_and_way
def test_an_op_computes_what_numpy_and_tvm_compute(case, way):
    model = models(way)[case]
    exact = models("arguments")[case]
    tolerance = support.tolerance(case.op, [*exact.arguments, *exact.outputs])
    for n in exact.sizes:
        actual = compiled(way).run(case.symbol, [item.values[n] for item in model.arguments])
        expected = [output.values[n] for output in exact.outputs]
        support.assert_close(actual, expected, **tolerance, what=f"numpy, n={n}")
        by_tvm = compiled_on_host().run(case.symbol, [item.values[n] for item in exact.arguments])
        # TVM's own kernel of batch_norm returns float32 where it should return float16.
        by_tvm = [theirs.astype(mine.dtype) for mine, theirs in zip(actual, by_tvm, strict=True)]
        support.assert_close(actual, by_tvm, **tolerance, what=f"TVM, n={n}")


@each_case
def test_an_op_computes_the_same_in_a_fresh_process(case, fresh_process):
    model = models("arguments")[case]
    for n in model.sizes:
        here = compiled("arguments").run(case.symbol, [item.values[n] for item in model.arguments])
        support.assert_close(fresh_process[case.symbol, n], here, 0, 0, f"n={n}")


@cache
def compiled_refused():
    """Compile the refused cases as if for the NPU."""
    return support.compile_all(refused_models())


def refused_models():
    return [case.model(exact=False) for case in REFUSED if str(case) in SELECTED]


@each_refused_case
def test_what_is_not_supported_stays_on_the_host_with_a_reason(case):
    partitioned = compiled_refused().partitioned[case.symbol]
    found = support.placement(partitioned, case.symbol)
    assert found.on_host
    assert not found.regions
    report = support.backend.offload_report(partitioned)
    reasons = [op.reason for op in report.on_host if op.function == case.symbol]
    assert len(reasons) == 1
    assert reasons[0]
    if case.entry["reason"] not in reasons[0]:
        pytest.skip(f"capabilities.py was edited and refuses it for another reason: {reasons[0]}")


@each_refused_case
def test_what_stays_on_the_host_is_computed_there(case):
    model = case.model(exact=False)
    for n in model.sizes:
        arguments = [item.values[n] for item in model.arguments]
        actual = compiled_refused().run(case.symbol, arguments)
        support.assert_close(actual, compiled_on_host().run(case.symbol, arguments), 1e-5, 1e-6)
