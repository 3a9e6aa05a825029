# SPDX-License-Identifier: Apache-2.0
"""The workers of the suite `fuzz`: they draw the graphs of a seed, run and shrink them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from ...backend.api import DECLINES, Array, Options, is_decline, judge, listening
from . import quantized
from .chip import QUANTIZED, SIZES, steps_beside_host
from .compiled import (
    Compiled,
    compile_all,
    compile_on_host,
    options_of,
    partition_for,
    placement,
    run_on_host,
)
from .extract import CaseFile
from .fuzz import SUITE
from .graphs import Graph
from .imported import kind_and_message
from .integer_graphs import IntegerGraph, anchors, possible_anchors
from .model import Spec
from .outcomes import Outcome
from .quantized_models import Work
from .workers import Announce

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

AnyGraph = Graph | IntegerGraph

_ROUND = 12
"""The number of graphs per seed, which are compiled together."""
_SHRINK_SECONDS = 60.0
"""The time for shrinking a failure."""
_OPTIONS: dict[str, tuple[object, ...]] = {
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
    "weight_buffers": (2,),
    "vector_lanes": (3,),
    "threads": (3,),
}
"""Options, and the values that they have now and then."""
_CUTTING = {
    "merge_regions",
    "min_region_ops",
    "max_regions",
    "scratchpad_bytes",
    "max_tile_bytes",
}
"""Options with which a graph need not be one region."""
_TO_HOST = {"min_region_ops", "max_regions"}
"""Options that leave ops to the host, which computes quantized tensors with real numbers."""


class _Enough(KeyboardInterrupt):
    """Ends a round; Hypothesis takes other exceptions for failures."""


@dataclass
class _Round:
    """The findings of one seed."""

    seed: int
    until: float
    scratch: str
    is_first: bool
    integers: bool = False
    careful: bool = False
    """Whether to save what the driver is asked about while graphs are drawn, as it has crashed."""
    count: int = 0
    declined: Counter[str] = field(default_factory=Counter)
    """Why graphs are not judged, and how many of them."""
    lacks: str = ""
    """Why the driver takes no op that a graph could begin with."""
    wrong: str = ""
    smallest: CaseFile | None = None
    since: float = 0.0

    def save(self, cases: Sequence[CaseFile]) -> None:
        """Replace the saved graphs by the running ones or, in the end, by the smallest failure.

        They survive a crash, so they are always written as a whole.
        """
        for index, case in enumerate(cases):
            new = Path(self.scratch) / f"{self.seed}.new"
            case.save(new)
            os.replace(new, Path(self.scratch) / f"{self.seed}-{index}.npz")
        for path in Path(self.scratch).glob(f"{self.seed}-*.npz"):
            if int(path.stem.split("-")[1]) >= len(cases):
                path.unlink()

    def note_work(self, work: Work) -> None:
        """Save a case of integers that the driver is about to be asked about."""
        model = work.model()
        n = model.sizes[0]
        self.save(
            [
                CaseFile(
                    str(work),
                    tvm.IRModule({"main": replace(model, name="main").function()}),
                    tuple(argument.values[n] for argument in model.arguments),
                    tuple(output.values[n] for output in model.outputs),
                    "all",
                )
            ]
        )

    def note_question(self, function: relax.Function, answer: str | None) -> None:
        """Save what the driver is about to be asked about, with the results of TVM's kernels."""
        if answer is not None:
            return
        attributes = dict(function.attrs or {})
        main = function.with_attr("global_symbol", "main")
        main = main.without_attr("Composite") if "Composite" in attributes else main
        mod = tvm.IRModule({"main": main})
        inputs = [_numbers_for(param) for param in function.params]
        try:
            expected = run_on_host(mod, "main", inputs)
        except Exception:
            return  # Some calls that the NPU supports have no kernel for the host.
        steps = steps_beside_host(mod)
        case = CaseFile(_ops_of(function), mod, tuple(inputs), tuple(expected), steps=steps)
        self.save([case])

    def find(self, graphs: Sequence[AnyGraph], options: dict[str, object]) -> int | None:
        """Run graphs, and return the failing one, if any."""
        # Memory is planned for the bound, which many dimensions of a graph may have.
        options = {"symbol_bound": max(SIZES), **options}
        cases = [
            case_of(graph, graph.model.sizes[0], _extent(graph, options), options)
            for graph in graphs
        ]
        self.save(cases)
        compiled = compile_all([graph.model for graph in graphs], **options)
        host = compile_on_host([graph.model for graph in graphs if graph.asks_host])
        for index, graph in enumerate(graphs):
            wrong, n = _complaint(graph, compiled, host, bool(cases[index].placement))
            why = self.integers and wrong and _decline(graph, options)
            if why:
                self.declined[why] += 1
                continue
            self.count += 1
            if wrong:
                self.since = self.since or time.time()
                case = case_of(graph, n, cases[index].placement, options)
                if self.smallest is None or _size(case) <= _size(self.smallest):
                    self.wrong, self.smallest = wrong, case
                return index
        return None


def case_of(graph: AnyGraph, n: int, placement: str, options: dict[str, object]) -> CaseFile:
    """Return a graph and a call of it as a self-contained case."""
    main = replace(graph.model, name="main").function()
    expected = tuple(output.values[n] for output in graph.model.outputs)
    pairs = zip(expected, graph.limits(n), strict=True)
    steps = [float(limit.max(initial=0)) for array, limit in pairs if str(array.dtype) in QUANTIZED]
    return CaseFile(
        " ".join(graph.ops),
        tvm.IRModule({"main": main}),
        tuple(argument.values[n] for argument in graph.model.arguments),
        expected,
        placement,
        options,
        max(steps, default=0),
    )


def _numbers_for(param: relax.Var) -> Array:
    """Return random numbers for a parameter; a symbol is the largest of the usual sizes."""
    sizes = [int(size) if isinstance(size, tirx.IntImm) else SIZES[-1] for size in param.ty.shape]
    return Spec(tuple(sizes), str(param.ty.dtype)).make(str(param.name))[1]


def _ops_of(function: relax.Function) -> str:
    """Return the names of the ops that a function calls."""
    values = (binding.value for block in function.body.blocks for binding in block.bindings)
    names = (value.op.name for value in values if isinstance(getattr(value, "op", None), tvm.ir.Op))
    return " ".join(name.rpartition(".")[2] for name in names)


def _decline(graph: AnyGraph, options: Mapping[str, object]) -> str:
    """Return what the driver says if it declines a composite of a graph; else nothing."""
    answers: list[str] = []

    def note(function: relax.Function, answer: str | None) -> None:
        if answer is not None and is_decline(answer):
            answers.append(answer)

    with listening(note):
        partition_for(
            tvm.IRModule({graph.model.name: graph.model.function()}), options=options_of(**options)
        )
    return f"{DECLINES} it: {answers[0]}" if answers else ""


def _size(case: CaseFile) -> tuple[int, int]:
    return len(case.name.split()), sum(array.size for array in case.inputs)


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Run rounds, whose names hold their parameters."""
    for name in names:
        yield _run_round(name, announce)


def _run_round(name: str, announce: Announce) -> Outcome:
    """Generate a seed's graphs and run them together; shrink a failing one on its own."""
    this = _Round(**json.loads(name))
    if time.time() > this.until and not this.is_first:
        return _told(name, this, seeds=0)
    options = _options(this.seed, this.integers)
    graphs: list[AnyGraph] = []

    def collect(graph: AnyGraph) -> None:
        graph.model.name = f"graph_{len(graphs)}"
        graphs.append(graph)

    try:
        noting = listening(this.note_question) if this.careful else contextlib.nullcontext()
        with noting:
            if this.integers:
                quantized.first_of("")  # To list the cases, the driver is asked about their ops.
            else:
                _draw(this.seed, collect, shrink=False)
        if this.integers and not anchors(this.note_work if this.careful else None):
            this.lacks = quantized.lacks_integers(possible_anchors()[0].name) or ""
            return _told(name, this)
        if this.integers:
            _draw(this.seed, collect, shrink=False, integers=True)
    except Exception as error:
        return Outcome(
            SUITE, name, "failed", reason=f"it cannot be drawn: {kind_and_message(error)}"
        )
    announce(name)
    wrong = this.find(graphs, options) if graphs else None
    if wrong is None:
        return _told(name, this)
    assert this.smallest is not None
    # A smaller failure is better still.
    for left_out in [*options]:
        fewer = {option: value for option, value in options.items() if option != left_out}
        if this.find([graphs[wrong]], fewer) is not None:
            options = fewer
    left = wrong

    def examine(graph: AnyGraph) -> None:
        nonlocal left
        # The same graphs in the same order.
        left -= 1
        if left >= 0:
            return
        if time.time() > this.since + _SHRINK_SECONDS:
            raise _Enough
        announce(name)
        assert this.find([graph], options) is None

    _draw(this.seed, examine, shrink=True, integers=this.integers)
    this.save([this.smallest])
    return Outcome(SUITE, name, "failed", reason=this.wrong)


def _told(name: str, this: _Round, seeds: int = 1) -> Outcome:
    """Return the outcome of a round without a failure."""
    told = {"seeds": seeds, "graphs": this.count, "declined": this.declined, "lacks": this.lacks}
    return Outcome(SUITE, name, reason=json.dumps(told))


def _draw(seed: int, use: Callable[[AnyGraph], None], shrink: bool, integers: bool = False) -> None:
    """Let Hypothesis generate graphs, and shrink those with an error."""
    import hypothesis
    from hypothesis import strategies

    kind = IntegerGraph if integers else Graph

    def make(draw: DrawFn) -> AnyGraph:
        return kind("graph", lambda some: some[draw(strategies.integers(0, len(some) - 1))])

    def examine(graph: AnyGraph) -> None:
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
    # `use` has noted the findings; whether they are reproducible does not matter here.
    with contextlib.suppress(_Enough, AssertionError, hypothesis.errors.Flaky):
        search()


def _extent(graph: AnyGraph, options: dict[str, object]) -> str:
    """Return how much of a graph must be on the NPU, in one region; "": unknown."""
    kept = graph.wants_constants and options.get("bind_constants") is False
    return "all" if graph.whole and not kept and not _CUTTING & options.keys() else ""


def _options(seed: int, integers: bool) -> dict[str, object]:
    """Return up to four options for a seed."""
    possible = {
        name: values
        for name, values in _known_options().items()
        if not integers or name not in _TO_HOST
    }
    pick = random.Random(seed)
    names = pick.sample(sorted(possible), min(len(possible), pick.randrange(5)))
    return {name: pick.choice(possible[name]) for name in names}


@cache
def _known_options() -> dict[str, tuple[object, ...]]:
    """Return the options that can be set: a driver may lack some, or define them differently."""
    usual = Options.load(None)

    def is_possible(name: str, value: object) -> bool:
        try:
            usual.merged(**{name: value})
        except ValueError:
            return False
        return True

    possible = {
        name: tuple(value for value in values if is_possible(name, value))
        for name, values in _OPTIONS.items()
    }
    return {name: values for name, values in possible.items() if values}


def _complaint(graph: AnyGraph, compiled: Compiled, host: Compiled, whole: bool) -> tuple[str, int]:
    """Run a graph; return what is wrong, with which size, or nothing."""
    model = graph.model
    n = model.sizes[0]
    try:
        places = placement(compiled.partitioned[model.name], model.name)
        # The driver takes each op alone; declining them together is not a bug.
        whole = whole and not places.declined
        if whole and places.on_host:
            return f"{places.extent} of it is on the NPU: {'; '.join(places.on_host)}", n
        if whole and len(places.regions) != 1:
            return f"it is {len(places.regions)} regions and not one: {places.regions}", n
        if whole and (name := graph.misnamed(places.regions)):
            return name, n
        # A few calls that the NPU supports have no kernel for the host.
        by_tvm = host.executables.get(model.name)
        asks_host = by_tvm is not None and not isinstance(by_tvm, Exception)
        # Ops that the options keep on the host are as exact as TVM's own kernels.
        if places.on_host and not asks_host:
            is_declined = isinstance(graph, IntegerGraph) and places.declined
            return places.on_host[0] if is_declined else "", n
        for n in model.sizes:
            arguments = [argument.values[n] for argument in model.arguments]
            actual = compiled.run(model.name, arguments)
            expected = [output.values[n] for output in model.outputs]
            verdict = judge(actual, expected, graph.limits(n), "NumPy")
            if not verdict.text and asks_host:
                by_host = host.run(model.name, arguments)
                # NumPy has decided; TVM's kernels sum and approximate more coarsely.
                allowed = [4 * limit for limit in graph.limits(n)]
                verdict = judge(actual, by_host, allowed, "TVM's llvm")
            if verdict.text:
                return f"{verdict.text}{f', where n is {n}' if len(model.sizes) > 1 else ''}", n
    except Exception as error:
        return kind_and_message(error), n
    return "", n
