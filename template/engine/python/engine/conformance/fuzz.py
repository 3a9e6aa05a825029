# SPDX-License-Identifier: Apache-2.0
"""Fuzzing: graphs that hypothesis makes of the ops of the table, with options that vary.

Each graph must be one region on the NPU, with the results of NumPy and of TVM's own kernels. A
failure is made as small as it will get, and saved as a case file; those in the folder `regressions`
beside this file run first. In the usual time, the same graphs come in the same order. A longer
search begins at random.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..options import Options
from . import files
from .chip import SIZES
from .compare import judge
from .compiled import Compiled, compile_all, compile_on_host, placement
from .extract import CaseFile
from .graphs import Graph
from .imported import sentence
from .result import Outcome
from .suite import NotRun, Settings
from .workers import Announce, in_workers

SUITE = "fuzz"
RANDOM = "random graphs"
"""The case that stands for all graphs without a failure."""

REGRESSIONS = Path(__file__).parent / "regressions"
"""The vendor's folder of case files of what once was wrong."""

_ROUND = 12
"""How many graphs come of one seed, and are compiled together."""
_SHRINK_SECONDS = 60.0
"""How long to make a failure smaller."""

_OPTIONS: dict[str, tuple[Any, ...]] = {
    "bind_constants": (False,),
    "merge_regions": (False,),
    "min_region_ops": (2, 3),
    "max_regions": (1, 2),
    "symbol_bound": (4, 8),
    "scratchpad_bytes": (1 << 17, 1 << 16, 1 << 15),
    "max_tile_bytes": (1 << 14, 1 << 12),
    "cores": (2, 3, 5),
    "matrix_rows": (1, 7),
    "matrix_columns": (1, 7),
    "vector_lanes": (3,),
    "threads": (3,),
}
"""Options, and what they are now and then."""
_CUTTING = {
    "merge_regions",
    "min_region_ops",
    "max_regions",
    "scratchpad_bytes",
    "max_tile_bytes",
}
"""Options with which a graph need not be one region."""


def cases(settings: Settings) -> list[str]:
    """Return the names of the regressions, and the one of all that is random."""
    if find_spec("hypothesis") is None:
        raise NotRun("it needs hypothesis: pip install hypothesis")
    return [*(path.name for path in _regressions()), RANDOM]


def outcomes(settings: Settings) -> Iterator[Outcome]:
    """Run what is asked for."""
    chosen = settings.choose(SUITE, cases(settings))
    paths = [str(path) for path in _regressions() if path.name in chosen]
    for outcome in in_workers(files.SUITE, paths, settings.jobs):
        yield replace(outcome, suite=SUITE, case=Path(outcome.case).name)
    if RANDOM in chosen:
        yield from _search(settings)


def _regressions() -> list[Path]:
    return sorted(REGRESSIONS.glob("*.npz"))


def _search(settings: Settings) -> Iterator[Outcome]:
    """Look for failures until the time is over."""
    usual = settings.fuzz_seconds <= Settings().fuzz_seconds
    start = 0 if usual else secrets.randbits(32)
    count, names = 0, set()
    until = time.time() + settings.fuzz_seconds
    with tempfile.TemporaryDirectory() as scratch:
        rounds = [
            json.dumps({"seed": start + index, "until": until, "scratch": scratch})
            for index in range(1 + int(settings.fuzz_seconds))
        ]
        for found in in_workers(SUITE, rounds, settings.jobs, batch=1):
            if found.status == "passed":
                count += int(found.reason)
                continue
            seed = json.loads(found.case)["seed"]
            if not any(Path(scratch).glob(f"{seed}-*.npz")):
                names.add(f"seed {seed}")
                yield Outcome(SUITE, f"seed {seed}", "failed", reason=found.reason)
            for path, why in _culprits(Path(scratch), seed, found.reason, settings.jobs):
                name = CaseFile.load(path).name
                # One mistake is found again and again.
                if name not in names:
                    names.add(name)
                    reason = f"{why}; {_keep(path, settings.output or Path.cwd())}"
                    yield Outcome(
                        SUITE, f"graph of {name}", "failed", expected="all", reason=reason
                    )
    reason = f"{count} graphs from seed {start} on, {len(names) or 'no'} failures"
    status = "failed" if names else "passed" if count else "not_run"
    yield Outcome(SUITE, RANDOM, status, expected="all", reason=reason)


def _culprits(scratch: Path, seed: int, reason: str, jobs: int) -> list[tuple[Path, str]]:
    """Return the case files of what is wrong; after a crash it is not known which of some it is."""
    paths = sorted(scratch.glob(f"{seed}-*.npz"))
    if len(paths) > 1:
        found = in_workers(files.SUITE, list(map(str, paths)), max(jobs, 1), batch=1)
        alone = [(Path(one.case), one.reason) for one in found if one.status == "failed"]
        return alone or [(path, f"{reason}, together with others") for path in paths]
    return [(path, reason) for path in paths]


def _keep(path: Path, folder: Path) -> str:
    """Save the case file of a failure, and say how it is run."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"fuzz-{path.name}"
    shutil.copy(path, kept)
    return f"saved; to run it: python -m {__package__.split('.')[0]} conformance {kept}"


# ---- In the workers -----------------------------------------------------------------------------


class _Enough(KeyboardInterrupt):
    """Ends a round; hypothesis takes other exceptions for failures."""


@dataclass
class _Round:
    """What one seed has led to."""

    seed: int
    until: float
    scratch: str
    count: int = 0
    wrong: str = ""
    smallest: CaseFile | None = None
    since: float = 0.0

    def save(self, cases: Sequence[CaseFile]) -> None:
        """Save what runs now, or in the end the smallest that is wrong, in the place of all else.

        A crash leaves these files, so that they are whole at any time.
        """
        for index, case in enumerate(cases):
            new = Path(self.scratch) / f"{self.seed}.new"
            case.save(new)
            os.replace(new, Path(self.scratch) / f"{self.seed}-{index}.npz")
        for path in Path(self.scratch).glob(f"{self.seed}-*.npz"):
            if int(path.stem.split("-")[1]) >= len(cases):
                path.unlink()

    def find(self, graphs: Sequence[Graph], options: dict[str, Any]) -> int | None:
        """Run graphs, and return which is wrong, if one is."""
        self.count += len(graphs)
        # Memory is planned for the largest size, which a graph may have in many dimensions.
        options = {"symbol_bound": max(SIZES), **options}
        cases = [
            graph.case_file(graph.model.sizes[0], _extent(graph, options), options)
            for graph in graphs
        ]
        self.save(cases)
        compiled = compile_all([graph.model for graph in graphs], **options)
        host = compile_on_host([graph.model for graph in graphs if graph.asks_host])
        for index, graph in enumerate(graphs):
            wrong, n = _complaint(graph, compiled, host, bool(cases[index].placement))
            if wrong:
                self.since = self.since or time.time()
                case = graph.case_file(n, cases[index].placement, options)
                if self.smallest is None or _size(case) <= _size(self.smallest):
                    self.wrong, self.smallest = wrong, case
                return index
        return None


def _size(case: CaseFile) -> tuple[int, int]:
    return len(case.name.split()), sum(array.size for array in case.inputs)


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Run rounds, which are named by what they need to know."""
    for name in names:
        yield _run_round(name, announce)


def _run_round(name: str, announce: Announce) -> Outcome:
    """Make graphs of a seed and run them together; make what is wrong smaller on its own."""
    this = _Round(**json.loads(name))
    options = _options(this.seed)
    graphs: list[Graph] = []

    def collect(graph: Graph) -> None:
        if time.time() > this.until:
            raise _Enough
        graph.model.name = f"graph_{len(graphs)}"
        graphs.append(graph)

    try:
        _draw(this.seed, collect, shrink=False)
    except Exception as error:
        return Outcome(SUITE, name, "failed", reason=f"it cannot be drawn: {sentence(error)}")
    announce(name)
    wrong = this.find(graphs, options) if graphs else None
    if wrong is None:
        return Outcome(SUITE, name, reason=str(this.count))
    assert this.smallest is not None
    # What is wrong with less is better still.
    for left_out in [*options]:
        fewer = {option: value for option, value in options.items() if option != left_out}
        if this.find([graphs[wrong]], fewer) is not None:
            options = fewer
    left = wrong

    def examine(graph: Graph) -> None:
        nonlocal left
        # The same graphs come again in the same order.
        left -= 1
        if left >= 0:
            return
        if time.time() > this.since + _SHRINK_SECONDS:
            raise _Enough
        announce(name)
        assert this.find([graph], options) is None

    _draw(this.seed, examine, shrink=True)
    this.save([this.smallest])
    return Outcome(SUITE, name, "failed", reason=this.wrong)


def _draw(seed: int, use: Callable[[Graph], None], shrink: bool) -> None:
    """Let hypothesis make graphs; what an error comes of, it makes smaller."""
    import hypothesis
    from hypothesis import strategies

    def make(draw: Any) -> Graph:
        return Graph("graph", lambda some: some[draw(strategies.integers(0, len(some) - 1))])

    def examine(graph: Graph) -> None:
        if graph.ops:
            use(graph)

    settings = hypothesis.settings(
        max_examples=_ROUND,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, *[hypothesis.Phase.shrink] * shrink],
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    search = hypothesis.seed(seed)(
        settings(hypothesis.given(strategies.composite(make)())(examine))
    )
    # What came out of it, `use` has noted; whether it comes every time is not the question here.
    with contextlib.suppress(_Enough, AssertionError, hypothesis.errors.Flaky):
        search()


def _extent(graph: Graph, options: dict[str, Any]) -> str:
    """Return how much of a graph must be on the NPU, in one region; "": that cannot be told."""
    return "all" if graph.whole and not _CUTTING & options.keys() else ""


def _options(seed: int) -> dict[str, Any]:
    """Return up to four options that a seed tries; a vendor may have taken some out."""
    known = sorted(_OPTIONS.keys() & {option.name for option in fields(Options)})
    pick = random.Random(seed)
    names = pick.sample(known, min(len(known), pick.randrange(5)))
    return {name: pick.choice(_OPTIONS[name]) for name in names}


def _complaint(graph: Graph, compiled: Compiled, host: Compiled, whole: bool) -> tuple[str, int]:
    """Run a graph, and say what is wrong, with which size; nothing if all is right."""
    model = graph.model
    n = model.sizes[0]
    try:
        found = placement(compiled.partitioned[model.name], model.name)
        # Each op is taken alone; that the driver declines some of them together is no mistake.
        whole = whole and not found.declined
        if whole and found.on_host:
            return f"{found.extent} of it is on the NPU: {'; '.join(found.on_host)}", n
        if whole and len(found.regions) != 1:
            return f"it is {len(found.regions)} regions and not one: {found.regions}", n
        # A few calls that the NPU can do have no kernel for the host.
        by_tvm = host.executables.get(model.name)
        asks_host = by_tvm is not None and not isinstance(by_tvm, Exception)
        # What the options send to the host is no better than TVM's own kernels are.
        if found.on_host and not asks_host:
            return "", n
        for n in model.sizes:
            arguments = [argument.values[n] for argument in model.arguments]
            actual = compiled.run(model.name, arguments)
            expected = [output.values[n] for output in model.outputs]
            verdict = judge(actual, expected, graph.limits(n), "NumPy")
            if not verdict.text and asks_host:
                by_host = host.run(model.name, arguments)
                # NumPy was the judge; TVM's kernels sum and approximate more coarsely.
                allowed = [4 * limit for limit in graph.limits(n)]
                verdict = judge(actual, by_host, allowed, "TVM's llvm")
            if verdict.text:
                return f"{verdict.text}{f', where n is {n}' if len(model.sizes) > 1 else ''}", n
    except Exception as error:
        return sentence(error), n
    return "", n
