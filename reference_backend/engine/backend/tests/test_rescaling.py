# SPDX-License-Identifier: Apache-2.0
"""The suite `quantized` finds each driver that rescales by another rule than the declared one."""

from functools import cache, partial

import pytest

import quick_cases
import support
from backend.engine.backend.table.chip import ROUNDINGS, Chip, Requantize
from backend.engine.workbench.conformance import chip, model, numpy_reference, ops, quantized
from backend.engine.workbench.conformance.compiled import compile_all
from support import needs, needs_emulator


def has_ties(name):
    return getattr(getattr(quantized.find(name), "variant", None), "ties", False)


@cache
def model_of(name, declared):
    """Return the model of a case, with what a declared rounding computes."""
    return quantized.find(name).model(Chip(requantize=Requantize(rounding=declared)))


QUICK = [name for name in quick_cases.of_quantized() if has_ties(name)]
"""The first case of each op with ties, and of each way in which its results are rescaled."""
ALL = [name for name in quantized.cases(None) if has_ties(name)]

needs_ties = pytest.mark.skipif(not ALL, reason="nothing is rescaled here")


@pytest.fixture
def rescale_by(monkeypatch):
    """Make the emulator rescale by a rule, whatever the chip declares."""

    def rescale(rule):
        monkeypatch.setattr(Requantize, "numbers", rule.numbers)

    return rescale


def differ(one, other, name):
    """Whether two roundings are different: TOSA's second one is the first one for int16."""
    is_wide = quantized.find(name).dtype == "int16"
    return one != other and not (is_wide and {one, other} == {"half_up", "double"})


@needs_ties
@needs_emulator
@pytest.mark.parametrize("computed", ROUNDINGS)
@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(ALL, marks=pytest.mark.thorough)], ids=["quick", "all"]
)
def test_a_driver_with_another_rounding_than_the_declared_one_fails(computed, names, rescale_by):
    works = [quantized.find(name) for name in names]
    rescale_by(Requantize(rounding=computed))
    models = [model_of(name, computed) for name in names]
    compiled = compile_all(models, bind_constants=True)
    for declared in ROUNDINGS:
        wrong = []
        for name, work in zip(names, works, strict=True):
            outcome = quantized.run_compiled(work, model_of(name, declared), compiled)
            assert outcome.status in ("passed", "failed"), outcome.reason
            if (outcome.status == "failed") != differ(computed, declared, name):
                wrong.append(f"{name}, declared {declared}: {outcome.status} {outcome.reason}")
        assert not wrong


REAL = [name for name in quantized.cases(None) if "mobilenetv2" in name]


@pytest.mark.skipif(not REAL, reason="nothing is rescaled here")
@needs_emulator
def test_a_driver_with_shorter_multipliers_than_the_declared_ones_fails_with_real_factors(
    rescale_by,
):
    works = [quantized.find(name) for name in REAL]
    assert all(work.model().outputs[0].values[1].size >= 100_000 for work in works)
    rescale_by(Requantize(multiplier_bits=17))
    compiled = compile_all([work.model() for work in works], bind_constants=True)
    for work in works:
        outcome = quantized.run_compiled(work, work.model(Chip()), compiled)
        assert outcome.status == "failed"
        assert "off by 1" in outcome.reason


@support.needs_reals
@needs("quantize")
@needs_emulator
def test_a_driver_that_rounds_halves_in_another_way_than_declared_fails(monkeypatch):
    name = next(name for name in ops.cases(None) if name.startswith("quantize-halves"))

    def outcome_of():
        (outcome,) = ops.run_batch([name], print)
        return outcome

    assert outcome_of().status == "passed"
    away = partial(numpy_reference.quantize, halves="half_away")
    monkeypatch.setitem(model._REFERENCES, "quantize", away)
    monkeypatch.setattr(chip, "ROUNDS_EVENLY", False)
    outcome = outcome_of()
    assert outcome.status == "failed"
    assert "is wrong in 4 of 8 elements" in outcome.reason and "off by 1" in outcome.reason
