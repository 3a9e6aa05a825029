# SPDX-License-Identifier: Apache-2.0
"""The composites that capabilities.py allows: the suite `composites` of the kit.

These tests run each part of a composite once; the command `conformance` runs the whole suite.
"""

from functools import cache

import pytest

import quick_cases
import support
from backend.engine.workbench.conformance import Result, Settings, composites
from backend.engine.workbench.conformance.cases import OPS
from support import TABLE, declined

CASES = quick_cases.of_composites()


@cache
def outcomes():
    return support.outcomes_of(composites.SUITE, CASES)


def test_every_part_has_cases():
    # An op of the vendor's own may have no cases: `check` names those.
    anchors = [entry for entry in TABLE.ops if entry.fuses is not None and entry.name in OPS]
    if not anchors:
        pytest.skip("the table has no op that fuses others")
    every = [composites.find(name) for name in composites.cases(Settings())]
    for place, entry in enumerate(anchors):
        mine = [item for item in every if item.op == entry.name]
        parts = {part for item in mine for part in item.tails}
        assert ("scale" in parts) == entry.fuses.scale
        assert ("bias" in parts) == (entry.fuses.bias is not None)
        assert ("residual" in parts) == entry.fuses.residual
        activations = {item.name for item in TABLE.activations_of(entry) if item.name in OPS}
        assert bool(parts & activations) == bool(activations)
        assert place or parts >= activations


@pytest.mark.parametrize("case", CASES)
def test_the_composite_suite(case):
    support.assert_passed(outcomes()[case])


@pytest.mark.skipif(
    all(declined(composites.find(case).op) for case in CASES),
    reason="the driver takes no op that others are fused with",
)
def test_the_driver_takes_something():
    assert not Result(outcomes=list(outcomes().values())).all_declined
