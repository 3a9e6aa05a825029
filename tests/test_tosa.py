"""The default rescaling equals that of TOSA's reference model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import ROOT, TOSA_TOOLS, install_apart, run

pytestmark = pytest.mark.slow

REFERENCE = ROOT / "template/engine/workbench/conformance/numpy_integers.py"
CHANNELS, ROWS = 64, 128
RESCALE = """
func.func @main(%x: tensor<{rows}x{channels}x{sum}>) -> tensor<{rows}x{channels}x{type}> {{
  %m = "tosa.const"() {{values = dense<{multipliers}> : tensor<{channels}x{factor}>}}
    : () -> tensor<{channels}x{factor}>
  %s = "tosa.const"() {{values = dense<{shifts}> : tensor<{channels}xi8>}}
    : () -> tensor<{channels}xi8>
  %a = "tosa.const"() {{values = dense<0> : tensor<1x{sum}>}} : () -> tensor<1x{sum}>
  %b = "tosa.const"() {{values = dense<{zero_point}> : tensor<1x{type}>}} : () -> tensor<1x{type}>
  %y = tosa.rescale %x, %m, %s, %a, %b {{scale32 = {scale32}, rounding_mode = {rounding},
    per_channel = true, input_unsigned = false, output_unsigned = false}}
    : (tensor<{rows}x{channels}x{sum}>, tensor<{channels}x{factor}>, tensor<{channels}xi8>,
       tensor<1x{sum}>, tensor<1x{type}>) -> tensor<{rows}x{channels}x{type}>
  return %y : tensor<{rows}x{channels}x{type}>
}}
"""


@pytest.fixture(scope="module")
def tosa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install TOSA's tools into their own folder: they need an older NumPy."""
    return install_apart(tmp_path_factory.mktemp("tosa"), TOSA_TOOLS) / "bin"


@pytest.fixture(scope="module")
def reference() -> Any:
    """Compute the kit's rescaling, which is also the emulator's reference."""
    spec = importlib.util.spec_from_file_location("numpy_integers", REFERENCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "rounding, theirs, sum_bits, dtype, zero_point",
    [
        ("half_up", "SINGLE_ROUND", 32, "int32", 0),
        ("half_up", "SINGLE_ROUND", 32, "int8", -7),
        ("double", "DOUBLE_ROUND", 32, "int32", 0),
        ("double", "DOUBLE_ROUND", 32, "int8", -7),
        ("half_up", "SINGLE_ROUND", 48, "int32", 0),
        ("half_up", "SINGLE_ROUND", 48, "int16", 0),
    ],
)
def test_rescaling_equals_that_of_tosa(
    tosa: Path,
    reference: Any,
    tmp_path: Path,
    rounding: str,
    theirs: str,
    sum_bits: int,
    dtype: str,
    zero_point: int,
) -> None:
    random = np.random.default_rng(3)
    bits = 31 if sum_bits == 32 else 15
    multipliers = random.integers(1 << (bits - 1), 1 << bits, CHANNELS)
    # Powers of two produce ties.
    multipliers[::4] = 1 << (bits - 1)
    shifts = np.linspace(bits, 60, CHANNELS).astype(int)
    # The largest sums whose results fit into 32 bits.
    largest = np.minimum(2.0 ** (sum_bits - 1) - 1, 2.0 ** (shifts + 30 - bits))
    sums = np.rint(random.uniform(-1, 1, (ROWS, CHANNELS)) * largest)
    # Small sums, and multiples of half a step.
    sums[: ROWS // 4] = random.integers(-50, 50, (ROWS // 4, CHANNELS))
    steps = 2.0 ** np.minimum(shifts - bits, sum_bits - 12)
    sums[-ROWS // 4 :] = random.integers(-400, 400, (ROWS // 4, CHANNELS)) * steps
    sums = np.clip(sums, -largest, largest).astype("int32" if bits == 31 else "int64")

    graph = tmp_path / "rescale.mlir"
    graph.write_text(
        RESCALE.format(
            rows=ROWS,
            channels=CHANNELS,
            sum=f"i{sum_bits}",
            factor=f"i{bits + 1}",
            scale32=str(bits == 31).lower(),
            type=dtype.replace("int", "i"),
            multipliers=multipliers.tolist(),
            shifts=shifts.tolist(),
            zero_point=zero_point,
            rounding=theirs,
        )
    )
    model = tmp_path / "rescale.tosa"
    run(tosa / "tosa-opt", graph, "--tosa-serialize", f"--tosa-flatbuffer-filename={model}")
    np.save(tmp_path / "sums.npy", sums)
    (schema,) = tosa.parent.glob("lib/python*/site-packages/bin/tosa.fbs")
    run(
        *(tosa / "tosa_reference_model", f"--tosa_file={model}", f"--output_dir={tmp_path}"),
        *("--operator_fbs", schema, "--flatbuffer_dir", tmp_path),
        *("--ifm_name=TosaInput_0", "--ifm_file=sums.npy"),
        *("--ofm_name=TosaOutput_0", "--ofm_file=found.npy"),
    )
    found = np.load(tmp_path / "found.npy").astype(np.int64)
    columns = [
        reference.rescale(sums[:, channel], int(multiplier), int(shift), rounding)
        for channel, (multiplier, shift) in enumerate(zip(multipliers, shifts, strict=True))
    ]
    limits = np.iinfo(dtype)
    expected = np.clip(np.stack(columns, 1) + zero_point, limits.min, limits.max)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected)) > 100
