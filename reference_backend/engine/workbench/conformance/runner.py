# SPDX-License-Identifier: Apache-2.0
"""Runs suites, and applies the ledgers to their outcomes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import cast

from ...backend.api import BACKEND, TABLE, versions
from . import listing
from .ledger import LEDGER, apply, expected_failures
from .outcomes import Outcome, Result
from .suite import Crashed, NotRun, Settings, Suite
from .workers import MOST_TOGETHER, in_workers

SUITES: dict[str, str] = {
    "ops": "each op of the table alone: values, placement, edge cases",
    "composites": "what is fused before and after ops: labels, placement, values",
    "quantized": "what computes with quantized tensors: bit for bit, placement",
    "contract": "what every backend owes to its callers: loading, calls, failures of the device",
    "states": "what a session keeps from one call of a decoder to the next: values, refusals",
    "onnx_nodes": "the node cases of the onnx package, through TVM's importer",
    "models": "small models from torch.export and ONNX: values, placement, regions",
    "fuzz": "random graphs of the ops of the table, under options that vary",
    "files": "case files that are named on the command line",
}
"""The suites in order, each with a summary."""

TELLS_EVERY = 30.0
"""After how many seconds it tells how far a suite is: one with an SDK may take an hour."""

Tell = Callable[[str], None]


def cases_of(suite: str, settings: Settings) -> list[str]:
    """Return the names of the selected cases of a suite.

    Their names, without that of the suite.
    """
    end = listing.end_of(suite, settings.jobs)
    if end:
        raise Crashed(
            f"its cases cannot be listed: {end}. Keep such ops from the SDK in LIMITS of "
            "vendor/capabilities.py, or in the driver's Reason."
        )
    return settings.choose(suite, _module(suite).cases(settings))


def run(
    suites: Sequence[str] = (),
    settings: Settings | None = None,
    ledger: Path = LEDGER,
    tell: Tell = lambda line: None,
) -> Result:
    """Run suites.

    `suites`: names from `SUITES`; none: all. Named suites must be able to run here.
    """
    settings = settings or Settings()
    for suite in suites:
        if suite not in SUITES:
            raise ValueError(f"there is no suite '{suite}'; the suites are {', '.join(SUITES)}")
    entries = expected_failures(ledger, SUITES)
    result = Result(_about(suites, settings))
    for suite in meant(suites, settings):
        start = time.monotonic()
        outcomes = _run(suite, settings, suite in suites, tell)
        mine = [entry for entry in entries if entry.suite == suite]
        ran = all(outcome.case for outcome in outcomes)
        complete = ran and not settings.filters
        result.outcomes += apply(mine, outcomes, complete, settings.strict)
        result.seconds[suite] = time.monotonic() - start
        counts = result.counts(suite).items()
        numbers = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in counts if n)
        tell(f"{suite}: {numbers or 'no cases'} ({result.seconds[suite]:.0f} s)")
    return result


def meant(suites: Sequence[str], settings: Settings) -> list[str]:
    """Return the suites that are asked for, by name or as the beginning of every filter.

    `suites`: names from `SUITES`; none: all that the filters leave.
    """
    # Listing the cases of all suites takes seconds.
    begun = {text.partition("/")[0] if "/" in text else "" for text in settings.filters}
    asked = suites or (begun if begun and begun.issubset(SUITES) else SUITES)
    return [name for name in SUITES if name in asked]


def _run(suite: str, settings: Settings, required: bool, tell: Tell) -> list[Outcome]:
    found: dict[str, Outcome] = {}
    told = time.monotonic()
    try:
        chosen = cases_of(suite, settings)
        for outcome in _outcomes(suite, chosen, settings):
            found[outcome.case] = outcome
            if time.monotonic() - told > TELLS_EVERY:
                told = time.monotonic()
                tell(f"{suite}: {len(found)} of {max(len(chosen), len(found))} cases ...")
    except Crashed as reason:
        return [Outcome(suite, "", "failed", reason=str(reason))]
    except NotRun as reason:
        status = "failed" if required else "not_run"
        return [Outcome(suite, "", status, reason=f"it cannot run here: {reason}")]
    text = "the suite does not say what became of it"
    known = [
        found.pop(case) if case in found else Outcome(suite, case, "failed", reason=text)
        for case in chosen
    ]
    return [*known, *found.values()]


def _outcomes(suite: str, chosen: Sequence[str], settings: Settings) -> Iterator[Outcome]:
    module = _module(suite)
    own: Callable[[Settings], Iterator[Outcome]] | None = getattr(module, "outcomes", None)
    if own is not None:
        return own(settings)
    return in_workers(suite, chosen, settings.jobs, getattr(module, "BATCH", MOST_TOGETHER))


def _module(suite: str) -> Suite:
    return cast(Suite, import_module(f".{suite}", __package__))


def _about(suites: Sequence[str], settings: Settings) -> dict[str, object]:
    chip = TABLE.chip
    return {
        "backend": BACKEND,
        **versions(),
        "python_version": platform.python_version(),
        "platform": platform.platform(),
        "rounding": {"quantize": chip.rounds, "requantize": asdict(chip.requantize)},
        "options": {
            "suites": list(suites) or list(SUITES),
            "filters": list(settings.filters),
            "jobs": settings.jobs,
            "fuzz_seconds": settings.fuzz_seconds,
            "files": list(map(str, settings.files)),
            "strict": settings.strict,
        },
    }
