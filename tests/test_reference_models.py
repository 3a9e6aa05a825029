"""The reference backend runs real models, and is measured."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from browser import NEEDS_BROWSER
from support import (
    ROOT,
    Workshop,
    run,
    site_packages,
)

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_ONNX = importlib.util.find_spec("onnx") is not None
HAS_ONNX_RUNTIME = HAS_ONNX and importlib.util.find_spec("onnxruntime") is not None
HERE = Path(__file__).parent
pytestmark = pytest.mark.slow

RUN_ANYWHERE = """
import sys
import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

assert "torch" not in sys.modules and not hasattr(tvm, "relax")
module = tvm.runtime.load_module("model.so")
machine = VirtualMachine(module, tvm.cpu())
found = machine["main"](tvm.runtime.tensor(np.load("input.npy"))).numpy()
print(np.abs(found - np.load("expected.npy")).max())
"""


@pytest.fixture(scope="module")
def board(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment like a board's: no codegen library, no torch."""
    project = tmp_path_factory.mktemp("board") / "backend"
    shutil.copytree(ROOT / "reference_backend", project)
    python = workshop.environment(workshop.wheel(project))
    (codegen,) = site_packages(python).glob("*/*_codegen.so")
    codegen.unlink()
    return python


def test_each_benchmark_runs_with_its_peers(
    reference: Path, catalog: dict[str, dict[str, Any]]
) -> None:
    script = ROOT / "reference_backend/engine/workbench/benchmarks/benchmark.py"
    parts = ("models", "ops", "integers", "decoder", "calls", "build", "deploy")
    output = run(reference, script, *parts, "--once")
    benchmarks = [(op, one) for op, entry in catalog.items() for one in entry.get("benchmarks", [])]
    assert len(benchmarks) > 10
    for op, benchmark in benchmarks:
        start = f"  {op}, {benchmark['name']} "
        (line,) = (line for line in output.splitlines() if line.startswith(start))
        assert ("   llvm " in line) == benchmark.get("host", True)
        assert ("   torch " in line) == (HAS_TORCH and "torch" in benchmark)
        assert ("   onnxruntime " in line) == (HAS_ONNX_RUNTIME and "onnx" in benchmark)


@pytest.mark.skipif(not (HAS_TORCH and HAS_ONNX_RUNTIME), reason="needs onnxruntime and torch")
def test_a_token_takes_as_long_as_the_benchmark_says(reference: Path) -> None:
    script = ROOT / "reference_backend/engine/workbench/benchmarks/tokens.py"
    output = run(reference, script, "--once")
    # Which compares the logits, too.
    assert len(re.findall(r"bits, a cache of \d+ .* ms   onnxruntime .* ms", output)) == 6, output
    assert output.count("   torch ") == 2, output


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: pip install torch")
@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "encoder"])
def test_a_model_of_torch_runs_on_the_npu_as_a_whole(
    model: str, reference: Path, board: Path, tmp_path: Path
) -> None:
    output = run(reference, HERE / "run_torch_model.py", model, tmp_path)
    result = json.loads(output.splitlines()[-1])
    assert result["on_host"] == []
    assert result["regions"] == 1
    assert result["on_npu"] > 20
    assert result["scale"] > 0.1
    assert result["error"] < 1e-4
    error = run(board, "-c", RUN_ANYWHERE, cwd=tmp_path, TVM_USE_RUNTIME_LIB="1")
    assert float(error) < 1e-4


@NEEDS_BROWSER
@pytest.mark.skipif(not (HAS_TORCH and HAS_ONNX_RUNTIME), reason="needs torch and onnxruntime")
def test_the_pictures_of_the_docs_are_made_by_a_command(reference: Path, tmp_path: Path) -> None:
    # It writes beside itself.
    script = shutil.copy(ROOT / "docs/report_picture.py", tmp_path)
    run(reference, script, "example_npu")
    made = {path.name: path.read_bytes() for path in tmp_path.glob("*.png")}
    assert made.keys() == {path.name for path in (ROOT / "docs").glob("report-*.png")}
    assert all(data[:4] == b"\x89PNG" and len(data) > 20_000 for data in made.values())


@pytest.mark.skipif(not HAS_ONNX_RUNTIME, reason="onnxruntime is not installed")
@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2"])
def test_a_quantized_model_is_integers_here_on_a_board_and_over_rpc(
    model: str, reference: Path, board: Path, tmp_path: Path
) -> None:
    output = run(reference, HERE / "run_quantized_model.py", model, tmp_path)
    result = json.loads(output.splitlines()[-1])
    assert result["on_host"] == []
    assert all(name.startswith("quantized_") for name in result["products"]), result["products"]
    # At the edges.
    assert sorted(result["conversions"]) == ["relax.dequantize", "relax.quantize"]
    assert result["size"] <= 0.3
    assert result["over_rpc"] == 0
    # Off-by-one differences of many layers add up at a network's output.
    assert result["steps"] <= 4
    assert result["cosine"] > 0.999
    assert float(run(board, "-c", RUN_ANYWHERE, cwd=tmp_path, TVM_USE_RUNTIME_LIB="1")) == 0


DECLINING = {
    "digits": ("real results", "residuals", "neither", "3x3", "reals", "table"),
    "resnet18": ("neither", "3x3", "integers", "reals", "table"),
    "mobilenet_v2": ("neither", "3x3", "conversions", "table"),
}
"""Kinds of drivers, of `narrow_drivers.py`, and a table without real numbers."""


@pytest.mark.skipif(not HAS_ONNX_RUNTIME, reason="onnxruntime is not installed")
@pytest.mark.parametrize("model", DECLINING)
def test_a_quantized_model_keeps_its_macs_on_drivers_that_decline_integers(
    model: str, reference: Path, tmp_path: Path
) -> None:
    arguments = (ROOT / "reference_backend", model, *DECLINING[model])
    out = run(reference, HERE / "run_narrow_drivers.py", *arguments, cwd=tmp_path)
    print(out)
    for kind, found in json.loads(out.splitlines()[-1]).items():
        assert found["quantized"] == 1, kind
        # The chip of integers computes nothing of a model in float.
        has_reals = kind not in ("reals", "table")
        assert found["float"] == has_reals, kind
        left = set() if has_reals and kind != "conversions" else {"quantize", "dequantize"}
        left |= {"argmax"} if model == "digits" and not has_reals else set()
        assert set(found["on_host"]) == left, kind
        # Products that a driver declines, and the last one where its result must be real.
        in_float = kind in ("integers", "conversions")
        assert (found["integers"] == 0) == in_float, kind
        some = kind == "3x3" or (model == "digits" and kind in ("real results", "neither"))
        assert (0 < found["integers"] < 1) == some, kind
        assert found.get("right", 0.9861) > 0.986, kind
