# SPDX-License-Identifier: Apache-2.0
"""What `check` says of the driver: which ops it takes, and whether the first has right values."""

from __future__ import annotations

import tvm

from ...backend.regions.partition import compile_for
from ...backend.report.sdk_start import sdk_start_remedy
from ...backend.settings.driver_options import DRIVERS
from ...backend.settings.options import PREFIX, Options
from ...backend.shared.problem import Problem
from ...backend.shared.terminal import say
from ...backend.table.patterns import TABLE
from ..conformance.cases import OPS
from ..conformance.catalog_cases import Case
from ..conformance.region import ask_about, first_taken


def check_first_op() -> None:
    """Compile one op for the NPU and for the host, and compare the results."""
    if untested := [op.name for op in TABLE.ops if op.name not in OPS]:
        say(
            f"without cases: {', '.join(untested)}; the conformance kit tests your own ops when "
            "vendor/cases.json has cases of them"
        )
    try:
        case = _example()
        # Before the driver can crash.
        say(f"running the case {case} ...", flush=True)
        model = case.model()
        mod = tvm.IRModule({model.name: model.function()})
        inputs = [argument.values[1] for argument in model.arguments]
        machine = tvm.relax.VirtualMachine(compile_for(mod), tvm.cpu())
        results = machine[model.name](*map(tvm.runtime.tensor, inputs))
        results = [results] if isinstance(results, tvm.runtime.Tensor) else list(results)
        verdict = model.judge(1, [tensor.numpy() for tensor in results])
    except Problem:
        raise
    except Exception as error:
        raise Problem(f"A call that the NPU takes does not run: {error}") from error
    if verdict.text:
        raise Problem(
            f"{case} computes wrong values on the NPU: {verdict.text}. Look at its lowering and at "
            "the driver, and run pytest."
        )
    say(f"{case.op} runs on the NPU, with right values (the case {case})")


def _example() -> Case:
    """Tell which ops the driver takes, and return a case that the NPU takes."""
    options = Options.load(None)
    used = options.driver
    taken, declined = _ask_driver()
    if not taken and not declined:
        raise Problem("capabilities.py refuses every case of every op.")
    count = len(taken) + len(declined)
    case, reasons = first_taken(taken.values())
    only_views = case is not None and bool(declined) and case.model().is_view
    if case is None or only_views:
        views = ", except for views, which need no op of it" if only_views else ""
        first = "\n".join(f"  {reason}" for reason in [*reasons, *declined.values()][:5])
        others = "".join(
            f" {PREFIX}DRIVER={other} checks the other one."
            for other in DRIVERS.keys() - set(options.drivers)
        )
        if remedy := sdk_start_remedy([*reasons, *declined.values()]):
            raise Problem(f"The driver '{used}' declines all {count} ops. {remedy}.{others}")
        raise Problem(
            f"The driver '{used}' declines all {count} ops that have cases{views}. Its reasons "
            f"for the first are:\n{first}\nLet it take one op, or narrow capabilities.py to what "
            f"it takes.{others}"
        )
    if not declined:
        say(
            f"the driver '{used}' takes at least one case of each of the {count} ops that have "
            "cases"
        )
    else:
        few = len(taken) <= len(declined)
        names = ": " + ", ".join(taken) if few else ", and at most views of " + ", ".join(declined)
        say(
            f"of the {count} ops that have cases, the driver '{used}' takes at least one case of "
            f"{len(taken)}{names}"
        )
    return case


def _ask_driver() -> tuple[dict[str, Case], dict[str, str]]:
    """Ask the driver about the cases of each op that the table accepts.

    By op: the first case that the driver takes or, if it takes views at most, why it declines the
    first of the others.
    """
    taken: dict[str, Case] = {}
    declined: dict[str, str] = {}
    for op in (op.name for op in TABLE.ops if op.name in OPS):
        case, reason = ask_about(Case(op, form) for form in OPS[op]["cases"])
        if reason:
            declined[op] = reason
        elif case is not None:
            taken[op] = case
    return taken, declined
