# SPDX-License-Identifier: Apache-2.0
"""The op suite: each op alone, in every case of the table.

A case passes if the NPU computes all of it in one region, with the values of NumPy and of TVM's own
kernels; or, if the table refuses it, if it stays on the host for the expected reason. Cases with a
symbolic size give edge cases: size zero, one, and an odd number that no tile or vector divides,
which is a large reduction if the symbol is summed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ...backend.api import DECLINES, TABLE, Array, JsonObject, Verdict, judge, offload_report
from . import chip
from .cases import OPS
from .catalog_cases import Case
from .compiled import Compiled, compile_all, compile_on_host, placement
from .imported import kind_and_message
from .model import Model
from .outcomes import Outcome
from .suite import Settings
from .workers import Announce

SUITE = "ops"

NO_ELEMENTS = "no elements"

EDGES = {0: "no element", 1: "one element", 67: "odd size"}
"""The symbolic sizes of the edge cases."""


@dataclass(frozen=True)
class Work:
    """A case and its expected outcome."""

    case: Case
    expected: str
    reason: str = ""
    """A part of the reason for staying on the host."""


def cases(settings: Settings) -> list[str]:
    """Return the names of all cases."""
    return list(_works())


@cache
def _works() -> dict[str, Work]:
    works: dict[str, Work] = {}
    for op, entry in OPS.items():
        # Ops that a vendor has taken out are not tested.
        if TABLE.get(op) is None:
            continue
        for written in entry["cases"]:
            for case in Case.variants(op, written):
                works[str(case)] = Work(case, "all")
            for case in _edges(op, written):
                if case.entry["edge"] > 0:
                    works[str(case)] = Work(case, "all")
                # It stays on the host, which needs a kernel for it.
                elif written.get("host", True) and _is_empty(case):
                    works[str(case)] = Work(case, "none", NO_ELEMENTS)
        for written in entry["refused"]:
            case = Case(op, {**written, "name": f"refused {written['name']}"})
            # With a number for the symbol, there may be nothing to refuse.
            if chip.fitted(op, written) is written:
                works[str(case)] = Work(case, "none", written["reason"])
    return works


def _edges(op: str, form: Mapping[str, object]) -> Iterator[Case]:
    """Make edge cases from one that has a symbolic size."""
    if not chip.has_symbol(form["inputs"]):
        return
    for n, name in EDGES.items():
        fixed = {**form, **chip.fixed(form, n), "name": f"{form['name']}, {name}", "edge": n}
        # One element type is enough for sizes; only the odd size needs all types for its values.
        yield from Case.variants(op, fixed)[: None if n > 1 else 1]


def _is_empty(case: Case) -> bool:
    """Whether the result is empty; the mean of no elements, say, is not tested."""
    specs = [spec for _, some in case.specs() for spec in some]
    if any(spec.constant and 0 in spec.shape for spec in specs):
        return False  # TVM cannot load a constant of no elements.
    try:
        return all(0 in output.shape for output in case.model(exact=False).outputs)
    except Exception:
        return False  # Relax itself refuses it.


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Compile cases together, and run them one by one."""
    works = {name: _works()[name] for name in names}
    models: dict[str, Model] = {}
    for name, work in works.items():
        announce(name)
        try:
            models[name] = _model(work)
        except Exception as error:
            text = f"the case cannot be made: {kind_and_message(error)}"
            yield Outcome(SUITE, name, "failed", work.case.op, expected=work.expected, reason=text)
    announce("")
    compiled = compile_all(list(models.values()))
    host = compile_on_host([model for name, model in models.items() if _asks_host(works[name])])
    for name, model in models.items():
        announce(name)
        yield _run(works[name], model, compiled, host)


def _model(work: Work) -> Model:
    """Make the model; the table's expression may not be able to compute refused cases."""
    edge = work.case.entry.get("edge")
    if work.expected == "all":
        return work.case.model()
    try:
        return work.case.model(exact=edge is not None)
    except Exception:
        if edge is None:
            raise
        return work.case.model(exact=False)


def _asks_host(work: Work) -> bool:
    return bool(work.case.entry.get("host", True)) and chip.host_agrees(work.case.op)


def _run(work: Work, model: Model, compiled: Compiled, host: Compiled) -> Outcome:
    name = str(work.case)
    first = next(iter(model.arguments or model.outputs))
    fields: JsonObject = {
        "op": work.case.op,
        "dtype": first.dtype,
        "expected": work.expected,
    }
    try:
        partitioned = compiled.partitioned[model.name]
        places = placement(partitioned, model.name)
        fields["found"] = places.extent
        report = offload_report(partitioned)
        reasons = [
            str(op.reason)
            for op in report.on_host
            if op.function == model.name and not op.bookkeeping
        ]
        fields["reason"] = "; ".join(dict.fromkeys(reasons))
        status, complaint = _judge_placement(work, model, places.extent, places.regions, reasons)
        if not status and not chip.HAS_NAN and model.has_nan:
            status, complaint = "not_run", "the chip promises nothing about NaN, which is in it"
        if status:
            return Outcome(SUITE, name, status, **{**fields, "reason": complaint})
        verdict, seconds, host_seconds = _judge_values(work, model, compiled, host)
    except Exception as error:
        return Outcome(SUITE, name, "failed", **{**fields, "reason": kind_and_message(error)})
    fields.update(error=verdict.error, allowed=verdict.allowed, ratio=verdict.ratio)
    fields["npu_us"] = round(seconds * 1e6, 1) if fields["found"] == "all" else None
    fields["host_us"] = round(host_seconds * 1e6, 1) if host_seconds is not None else None
    if verdict.text:
        return Outcome(SUITE, name, "failed", **{**fields, "reason": verdict.text})
    return Outcome(SUITE, name, "passed", **fields)


def _judge_placement(
    work: Work, model: Model, extent: str, regions: list[list[str]], reasons: list[str]
) -> tuple[str, str]:
    """Return a status and the reason, or nothing if the placement is right."""
    edited = model.refusals()
    if work.expected == "all":
        if edited and extent == "none":
            return "not_run", f"the table refuses it: {edited[0]}"
        if extent != "all":
            complaint = f"{extent} of it is on the NPU: {'; '.join(reasons)}"
            if all(DECLINES in reason for reason in reasons):
                return "declined", complaint
        else:
            entry = TABLE.get(work.case.op)
            entries = TABLE.entries_of(entry.relax) if entry is not None else []
            names = {work.case.op, *(op.name for op in entries)}
            if len(regions) == 1 and len(regions[0]) == 1 and regions[0][0] in names:
                return "", ""
            complaint = f"it is not one composite of its name in one region, but {regions}"
        # The driver may take parts of a chain that it declines, and the table may refuse parts.
        if decline := model.decline():
            return "declined", f"{DECLINES} it as one composite: {decline}"
        return "failed", complaint
    if work.reason == NO_ELEMENTS and extent == "all" and not regions:
        return "", ""  # A constant since it was compiled: nothing is left to refuse.
    if extent != "none":
        return "failed", f"{extent} of it is on the NPU, though it should be refused"
    if not reasons:
        return "failed", "it is on the host, and no reason is given"
    if not any(work.reason in reason for reason in reasons):
        if all(DECLINES in reason for reason in reasons):
            return "declined", reasons[0]  # Before the engine came to its own reason.
        status = "not_run" if edited else "failed"
        return status, f"it is refused for another reason than '{work.reason}': {reasons[0]}"
    return "", ""


def _judge_values(
    work: Work, model: Model, compiled: Compiled, host: Compiled
) -> tuple[Verdict, float, float | None]:
    """Compare with NumPy, with TVM, and with a second call; the times are of second calls."""
    verdict = Verdict()
    seconds, host_seconds = 0.0, None
    exact = bool(model.steps)
    for n in model.sizes:
        arguments = [argument.values[n] for argument in model.arguments]
        actual = compiled.run(model.name, arguments)
        again, seconds = _timed(partial(compiled.run, model.name, arguments))
        limits = [abs(array.astype("float64")) * 0 for array in actual]
        verdict = verdict.worse(judge(again, actual, limits, "the first call"))
        if exact:
            verdict = verdict.worse(model.judge(n, actual))
        if _asks_host(work):
            by_host = host.run(model.name, arguments)
            _, host_seconds = _timed(partial(host.run, model.name, arguments))
            verdict = verdict.worse(_judge_by_host(model, n, actual, by_host, exact))
    return verdict, seconds, host_seconds


def _judge_by_host(
    model: Model, n: int, actual: list[Array], by_host: list[Array], exact: bool
) -> Verdict:
    if not exact:
        # Both are TVM's own kernels, perhaps fused in another way.
        limits = [1e-6 + 1e-5 * abs(array.astype("float64")) for array in by_host]
        return judge(actual, by_host, limits, "TVM's llvm")
    # TVM's own kernel of batch_norm returns float32 where the IR has float16.
    types = [output.values[n].dtype for output in model.outputs]
    cast = [array.astype(dtype) for array, dtype in zip(by_host, types, strict=True)]
    return model.judge_against_host(n, actual, cast)


def _timed(call: Callable[[], list[Array]]) -> tuple[list[Array], float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start
