# SPDX-License-Identifier: Apache-2.0
"""The ledgers: known and expected failures, each with its reason.

The vendor's is strict: an entry whose case passes fails the run, and so does one that matches no
case, so it never goes stale. The engine's has what fails in every backend, whatever its chip. It is
not strict, because vendors cannot edit it, and their own ops may make its cases pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ...backend.api import VENDOR
from .outcomes import Outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


LEDGER = VENDOR / "expected_failures.toml"
"""The vendor's accepted failures."""
ENGINE_LEDGER = Path(__file__).with_name("expected_failures.toml")
"""What fails in every backend."""

_NAMES = """
*_float64 *_int16 *_int16_expanded *_uint16 *_uint16_expanded *_uint32 *_uint32_expanded
*_uint64 *_uint64_expanded [!deq]*_int16 batchnorm_*_training_mode bitwise_* cumsum_1d
cumsum_1d_exclusive cumsum_1d_reverse cumsum_1d_reverse_exclusive cumsum_2d_axis_0
cumsum_2d_axis_1 cumsum_2d_negative_axis div_int16 div_int8 div_uint8 matmulinteger
maxpool_2d_uint8 mod_float64_* mod_mixed_sign_int8 mod_uint8 reduce_l1_empty_set
reduce_l1_empty_set_expanded reduce_l2_empty_set reduce_l2_empty_set_expanded
reduce_log_sum_empty_set reduce_log_sum_empty_set_expanded reduce_log_sum_exp_*keepdims_*
reduce_log_sum_exp_empty_set reduce_log_sum_exp_empty_set_expanded reduce_max_empty_set
reduce_min_empty_set reduce_prod_empty_set reduce_sum_empty_set
reduce_sum_empty_set_non_reduced_axis_zero reduce_sum_square_empty_set*
slice_start_out_of_bounds tri?_zero tril_zero"""
NO_FAILURES = frozenset(_NAMES.split())
"""Cases of `onnx_nodes` that the ledgers of earlier releases expect to fail, and that do not."""

TESTS = "pytest"
"""The suite of the tests of both wings and of `vendor/tests`, whose cases are FILE::TEST."""


class LedgerError(Exception):
    """The ledger cannot be read; the message says where and why."""


@dataclass(frozen=True)
class Entry:
    """An expected failure.

    `suite`: the suite.
    `case`: the name of a case, or a pattern of names with `*`, `?` and `[...]`.
    `reason`: why it fails, or why the driver declines it.
    `strict`: whether it is wrong if its case passes, or if there is no such case.
    """

    suite: str
    case: str
    reason: str
    strict: bool = True

    def matches(self, outcome: Outcome) -> bool:
        """Whether it matches a case."""
        return self.suite == outcome.suite and self.names(outcome.case)

    def names(self, case: str) -> bool:
        """Whether it names a case of its suite."""
        return self.case == case or fnmatchcase(case, self.case)


def expected_failures(path: Path = LEDGER, suites: Iterable[str] = ()) -> list[Entry]:
    """Read the ledgers of the vendor and of the engine.

    `path`: the vendor's; a missing one counts as empty.
    `suites`: the names of the kit's suites; none: any name will do.
    """
    shared = [replace(entry, strict=False) for entry in read_ledger(ENGINE_LEDGER)]
    # The entry of an earlier release must not fail the run of a backend that was only updated.
    seeded = {(entry.suite, entry.case) for entry in shared}
    seeded |= {("onnx_nodes", case) for case in NO_FAILURES}
    return [
        *(
            replace(entry, strict=(entry.suite, entry.case) not in seeded)
            for entry in read_ledger(path, suites)
        ),
        *shared,
    ]


def read_ledger(path: Path = LEDGER, suites: Iterable[str] = ()) -> list[Entry]:
    """Read a ledger.

    `path`: the file; a missing one counts as empty.
    `suites`: the names of the kit's suites; none: any name will do.
    """
    if not path.is_file():
        return []
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise LedgerError(f"{path} cannot be read: it is nested too deeply.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{path} cannot be read: {error}.") from None
    found = content.pop("expected_failure", [])
    if content or not isinstance(found, list):
        raise LedgerError(f"{path} may hold nothing but tables named [[expected_failure]].")
    entries: list[Entry] = []
    known = [*suites, TESTS] if suites else []
    for index, fields in enumerate(found, 1):
        where = f"{path}: entry {index}"
        if not isinstance(fields, dict) or fields.keys() != {"suite", "case", "reason"}:
            raise LedgerError(f"{where} must have suite, case and reason, and nothing else.")
        for name, value in fields.items():
            if not isinstance(value, str) or not value.strip():
                raise LedgerError(f"{where}: {name} must be a non-empty string.")
        entry = Entry(**fields)
        if known and entry.suite not in known:
            raise LedgerError(
                f"{where}: there is no suite '{entry.suite}'; the suites are {', '.join(known)}."
            )
        if any((other.suite, other.case) == (entry.suite, entry.case) for other in entries):
            raise LedgerError(f"{where}: {entry.suite}/{entry.case} is there twice.")
        entries.append(entry)
    return entries


def apply(
    entries: Sequence[Entry], outcomes: Sequence[Outcome], complete: bool, strict: bool = False
) -> list[Outcome]:
    """Apply the ledger to the outcomes of a suite.

    `entries`: the entries for the suite that has run; the first that matches a case counts.
    `complete`: whether all cases of the suite were selected, so that an entry without a case is
    stale.
    `strict`: whether declined cases without an entry fail.
    """
    final: list[Outcome] = []
    used: set[Entry] = set()
    for outcome in outcomes:
        entry = next((entry for entry in entries if entry.matches(outcome)), None)
        if entry is not None:
            used.add(entry)
        if outcome.status == "declined":
            final.append(_declined(outcome, entry, strict))
        elif entry is None or outcome.status == "not_run":
            final.append(outcome)
        elif outcome.status == "failed":
            reason = f"{entry.reason} [{outcome.reason}]"
            final.append(replace(outcome, status="expected_failure", reason=reason))
        elif not entry.strict:
            final.append(outcome)
        else:
            reason = f"it passes now; take it out of the ledger, which says: {entry.reason}"
            final.append(replace(outcome, status="unexpected_pass", reason=reason))
    for entry in entries:
        if complete and entry.strict and entry not in used:
            text = f"the ledger has an entry that matches no case; it says: {entry.reason}"
            final.append(Outcome(entry.suite, entry.case, "failed", reason=text))
    return final


def _declined(outcome: Outcome, entry: Entry | None, strict: bool) -> Outcome:
    if entry is not None:
        return replace(outcome, reason=f"{entry.reason} [{outcome.reason}]")
    if not strict:
        return outcome
    reason = f"neither the table nor the ledger says that it is declined: {outcome.reason}"
    return replace(outcome, status="failed", reason=reason)
