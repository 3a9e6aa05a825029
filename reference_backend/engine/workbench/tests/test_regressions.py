# SPDX-License-Identifier: Apache-2.0
"""The case files in `vendor/regressions`, of bugs that were found: each stays fixed."""

from functools import cache

import pytest

from backend.engine.workbench.conformance import Settings, fuzz
from backend.engine.workbench.conformance.ledger import apply, expected_failures
from support import assert_passed

CASES = [path.name for path in fuzz.regressions()]


@cache
def outcomes():
    found = list(fuzz.run_regressions(fuzz.regressions(), Settings()))
    entries = [entry for entry in expected_failures() if entry.suite == fuzz.SUITE]
    return {outcome.case: outcome for outcome in apply(entries, found, complete=False)}


if CASES:

    @pytest.mark.parametrize("case", CASES)
    def test_a_bug_that_was_found_stays_fixed(case):
        assert_passed(outcomes()[case])
