# SPDX-License-Identifier: Apache-2.0
"""Fuzzing must find a bug, shrink it, and write a case file."""

from pathlib import Path

import pytest

from backend.engine.calls import Constant
from backend.engine.conformance import Settings, files, fuzz, suite
from backend.engine.conformance.compiled import Compiled
from backend.engine.conformance.extract import CaseFile
from support import TABLE, needs, skip_without_int16

pytest.importorskip("hypothesis")


def search(tmp_path, case=fuzz.RANDOM, seconds=5.0):
    settings = Settings(
        jobs=0, fuzz_seconds=seconds, output=tmp_path / "found", filters=(f"fuzz/{case}",)
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
        pytest.skip("nothing computes with quantised tensors here")
    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "run", broken)
        patch.setattr(fuzz, "_SHRINK_SECONDS", 20.0)
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


@pytest.mark.parametrize("integers", [False, True])
def test_the_usual_search_is_the_same_each_time(integers):
    def drawn():
        names = []
        fuzz._draw(0, lambda graph: names.append(" ".join(graph.ops)), False, integers)
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
        fuzz._draw(seed, note, False, integers=True)
        if wanted <= drawn:
            break
    assert wanted <= drawn, sorted(map(str, wanted - drawn))


@pytest.mark.skipif(not TABLE.ops, reason="capabilities.py is empty")
def test_earlier_failures_run_first(tmp_path, monkeypatch):
    good = []
    fuzz._draw(0, good.append, shrink=False)
    if not good:
        pytest.skip("the driver takes no graph that the search draws")
    fuzz.case_of(good[0], 1, "all", {}).save(tmp_path / "good.npz")
    (tmp_path / "not_a_case.npz").write_text("nothing")
    monkeypatch.setattr(fuzz, "REGRESSIONS", tmp_path)
    chosen = Settings(jobs=0, filters=("fuzz/good", "fuzz/not"))
    statuses = [(outcome.case, outcome.status) for outcome in fuzz.outcomes(chosen)]
    assert statuses == [("good.npz", "passed"), ("not_a_case.npz", "failed")]


def test_without_hypothesis_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(fuzz, "find_spec", lambda name: None)
    with pytest.raises(suite.NotRun, match="pip install hypothesis"):
        fuzz.cases(Settings())
