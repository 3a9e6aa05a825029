# SPDX-License-Identifier: Apache-2.0
"""Fuzzing must find a bug, shrink it, and write a case file."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from backend.engine.backend.ir.calls import Constant
from backend.engine.backend.shared.backend import BACKEND, PACKAGE
from backend.engine.workbench.conformance import (
    Settings,
    drifts,
    files,
    fuzz,
    fuzz_rounds,
    integer_graphs,
    quantized,
    suite,
)
from backend.engine.workbench.conformance.compiled import Compiled
from backend.engine.workbench.conformance.extract import CaseFile
from support import TABLE, calls_of, needs, skip_without_int16

pytest.importorskip("hypothesis")


def search(tmp_path, case):
    # Three seeds, each of which finds and shrinks the same bug.
    settings = Settings(
        jobs=0, fuzz_seconds=2, output=tmp_path / "found", filters=(f"fuzz/{case}",)
    )
    return {outcome.case: outcome for outcome in fuzz.outcomes(settings)}


@pytest.mark.thorough
@pytest.mark.parametrize("case, dtype", [(fuzz.RANDOM, "float32"), (fuzz.INTEGERS, "int8")])
def test_a_bug_becomes_a_small_case_that_passes_once_it_is_fixed(
    case, dtype, tmp_path, monkeypatch
):
    run = Compiled.run

    def broken(self, name, arguments):
        results = run(self, name, arguments)
        return [result + 1 if result.dtype == dtype else result for result in results]

    if case not in fuzz.cases(Settings()):
        pytest.skip("nothing computes with quantized tensors here")
    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "run", broken)
        patch.setattr(fuzz_rounds, "_SHRINK_SECONDS", 20.0)
        found = search(tmp_path, case)
    assert found.pop(case).status == "failed"
    assert found
    for name, outcome in found.items():
        path = Path(outcome.reason.split()[-1])
        assert path.parent == tmp_path / "found"
        graph = CaseFile.load(path)
        assert name == f"graph of {graph.name}"
        assert len(graph.name.split()) == 1, "it is not small"
        assert files.run_case("mended", graph).status == "passed"


def settings_of(case, seconds, tmp_path, jobs=0):
    filters = (f"fuzz/{case}",)
    return Settings(jobs=jobs, fuzz_seconds=seconds, output=tmp_path, filters=filters)


def has_integers(function):
    found = set()

    def visit(expr):
        if isinstance(getattr(expr, "ty", None), relax.TensorType):
            found.add(str(expr.ty.dtype))

    relax.analysis.post_order_visit(function, visit)
    return not found.isdisjoint(("int8", "uint8", "int16"))


def test_a_driver_without_integers_declines_their_graphs(tmp_path, decline):
    if not integer_graphs.anchors():
        pytest.skip("nothing computes with quantized tensors here")
    decline(lambda function, finish: "no\nintegers" if has_integers(function) else "")
    quantized.lacks_integers.cache_clear()
    try:
        settings = settings_of(fuzz.INTEGERS, 1, tmp_path)
        assert fuzz.cases(settings)[-1] == fuzz.INTEGERS
        (found,) = fuzz.outcomes(settings)
    finally:
        quantized.lacks_integers.cache_clear()
    assert (found.case, found.status, found.reason) == (fuzz.INTEGERS, "declined", "no integers")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@needs("matmul", "conv2d", "quantize", "dequantize")
def test_graphs_with_a_part_that_the_driver_declines_are_declined(tmp_path, decline):
    """Such as the facts of a real SDK: its products take no residual between integers."""

    def refuse_residuals(function, finish):
        names = calls_of(function)
        product = {"relax.matmul", "relax.nn.conv2d"} & {*names}
        is_integer = product and "relax.quantize" in names and not finish
        return "no residual" if is_integer and names.count("relax.dequantize") > 2 else ""

    decline(refuse_residuals)
    settings = settings_of(fuzz.INTEGERS, 4, tmp_path)
    found = {outcome.case: outcome for outcome in fuzz.outcomes(settings)}
    assert found.pop(fuzz.INTEGERS).status == "passed"
    (declined,) = found.values()
    assert (declined.case, declined.status) == ("integer graphs, declined", "declined")
    assert "graphs are not judged: the driver declines it: no residual" in declined.reason


def test_a_step_off_becomes_what_later_ops_make_of_it():
    assert drifts.NO_DRIFT.times(9).rounded(0) == drifts.NO_DRIFT
    first = drifts.NO_DRIFT.rounded(1)
    assert (first.most, first.square, first.allowed) == (1, 1, 1)
    # Twice as many steps are 2, which may be rounded either way, and one more is the op's own.
    assert first.times(1.5).rounded(1) == drifts.Drift(3, 1.5**2 + 0.25 + 1)
    data, weight = np.zeros((1, 2)), np.array([[3.0], [-4.0]])
    found = drifts.of_product(np.matmul, (data, weight), (first, drifts.NO_DRIFT), np.array(0.5))
    assert found == drifts.Drift((3 + 4) / 2, (9 + 16) / 4)
    assert drifts.of_product(np.matmul, (data, weight), (drifts.NO_DRIFT,) * 2, np.array(1)) == (
        drifts.NO_DRIFT
    )


def test_the_allowed_steps_hold_behind_many_products_and_are_not_many():
    """Each of five layers is a step off in every element, in a random direction."""
    random = np.random.default_rng(5)
    exact = chip = random.integers(-128, 128, (8, 64)).astype("float64")
    drift = drifts.NO_DRIFT
    for _ in range(5):
        weight = random.integers(-128, 128, (64, 64)).astype("float64")
        factor = np.array(100 / np.abs(exact @ weight).max())
        both = drifts.of_product(np.matmul, (exact, weight), (drift, drifts.NO_DRIFT), factor)
        drift = both.rounded(1)
        exact = np.rint(exact @ weight * factor)
        chip = np.rint(chip @ weight * factor) + random.choice([-1, 1], exact.shape)
    worst = np.abs(chip - exact).max()
    assert worst <= drift.allowed <= 2 * worst < 20


ABORTS = """
import os
import tvm
import tvm_ffi
import {package} as backend

name = "{name}.codegen.decline_reason"
ask = tvm_ffi.get_global_func(name)

def abort(function, *others):
    def visit(expr):
        if isinstance(expr, tvm.relax.Call) and getattr(expr.op, "name", "") in {ops}:
            os.abort()

    tvm.relax.analysis.post_order_visit(function, visit)
    return ask(function, *others)

tvm_ffi.register_global_func(name, abort, override=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("case", [fuzz.RANDOM, fuzz.INTEGERS])
def test_an_sdk_that_aborts_when_asked_leaves_a_case(case, tmp_path, monkeypatch):
    drawn = []
    fuzz_rounds._draw(0, drawn.append, shrink=False, integers=case == fuzz.INTEGERS)
    ops = {graph.ops[0] for graph in drawn}
    names = sorted(entry.relax for op in ops if (entry := TABLE.get(op)) and entry.relax)
    if not names:
        pytest.skip("the driver takes no graph that the search draws")
    text = ABORTS.format(package=PACKAGE, name=BACKEND, ops=names)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(text)
    paths = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        found = list(fuzz.outcomes(settings_of(case, 0, tmp_path / "found", jobs=1)))
    *crashes, search_ = found
    assert (search_.case, search_.status) == (case, "failed")
    assert crashes
    for outcome in crashes:
        asked = r"crashed: SIGABRT, when the driver \w+ was asked about relax\.[\w.]+.*; saved; "
        assert re.match(
            f"{asked}to run it each time, move it to vendor/regressions", outcome.reason
        )
        kept = Path(outcome.reason.split()[-1])
        # The SDK is mended.
        assert files.run_case("mended", CaseFile.load(kept)).status == "passed"


@pytest.mark.parametrize("integers", [False, True])
def test_a_seed_gives_the_same_graphs_however_late_it_is(integers, tmp_path, monkeypatch):
    if integers and not integer_graphs.anchors():
        pytest.skip("nothing computes with quantized tensors here")
    drawn = []
    monkeypatch.setattr(
        fuzz_rounds._Round, "find", lambda this, graphs, options: drawn.append(graphs)
    )

    def run(seconds_left, is_first):
        given = {"seed": 3, "until": time.time() + seconds_left, "scratch": str(tmp_path)}
        case = json.dumps({**given, "is_first": is_first, "integers": integers})
        (outcome,) = fuzz_rounds.run_batch([case], lambda name: None)
        assert outcome.status == "passed", outcome.reason
        return json.loads(outcome.reason)["seeds"]

    assert (run(1000, False), run(-1, True)) == (1, 1)
    # It begins no other seed.
    assert run(-1, False) == 0
    in_time, late = ([graph.ops for graph in graphs] for graphs in drawn or ([], []))
    assert in_time == late


@pytest.mark.parametrize("integers", [False, True])
def test_the_usual_search_is_the_same_each_time(integers):
    def drawn():
        names = []
        fuzz_rounds._draw(0, lambda graph: names.append(" ".join(graph.ops)), False, integers)
        return names

    assert drawn() == drawn()


@pytest.mark.thorough
@needs("matmul", "conv2d", "add", "multiply", "quantize", "dequantize")
def test_the_search_draws_int16_wherever_it_is_allowed():
    skip_without_int16("matmul", "conv2d", "add", "multiply")
    drawn = set()

    def note(graph):
        values = {item.var: item.value for item in graph.model.bindings}
        for call in values.values():
            name = call.op.name.rpartition(".")[2]
            if name not in ("matmul", "conv2d", "add", "multiply"):
                continue
            sources = [getattr(values.get(item), "args", [None])[0] for item in call.args]
            if any(item is None or not hasattr(item.ty, "dtype") for item in sources):
                continue  # A bias.
            kind = "constant" if isinstance(sources[1], Constant) else ""
            drawn.add((name, *(str(item.ty.dtype) for item in sources), kind))
            if name == "matmul" and len(call.args[1].ty.shape) > 2:
                drawn.add(("batches", str(sources[1].ty.dtype)))

    wanted = {
        *(("matmul", "int16", other, "constant") for other in ("int8", "uint8", "int16")),
        *(("conv2d", "int16", other, "constant") for other in ("int8", "uint8")),
        *((name, "int16", "int16", "") for name in ("add", "multiply")),
    }
    if not TABLE.chip.constant_weights:
        # Products of activations, and with a matrix for each batch.
        wanted |= {("matmul", "int16", other, "") for other in ("int8", "uint8", "int16")}
        wanted.add(("batches", "int16"))
    for seed in range(60):
        fuzz_rounds._draw(seed, note, False, integers=True)
        if wanted <= drawn:
            break
    assert wanted <= drawn, sorted(map(str, wanted - drawn))


@pytest.mark.skipif(not TABLE.ops, reason="capabilities.py is empty")
def test_earlier_failures_run_first(tmp_path, monkeypatch):
    good = []
    fuzz_rounds._draw(0, good.append, shrink=False)
    if not good:
        pytest.skip("the driver takes no graph that the search draws")
    fuzz_rounds.case_of(good[0], 1, "all", {}).save(tmp_path / "good.npz")
    (tmp_path / "not_a_case.npz").write_text("nothing")
    monkeypatch.setattr(fuzz, "REGRESSIONS", tmp_path)
    chosen = Settings(jobs=0, filters=("fuzz/good", "fuzz/not"))
    statuses = [(outcome.case, outcome.status) for outcome in fuzz.outcomes(chosen)]
    assert statuses == [("good.npz", "passed"), ("not_a_case.npz", "failed")]


def test_without_hypothesis_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(fuzz, "find_spec", lambda name: None)
    with pytest.raises(suite.NotRun, match="pip install hypothesis"):
        fuzz.cases(Settings())
