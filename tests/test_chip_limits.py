"""A chip of little ability is easy to say, and what it cannot do has a reason."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from support import ROOT

pytest.importorskip("tvm")

OVERLAY = ROOT / "tests/overlays/plain_chip/vendor/capabilities.py"


@pytest.fixture(scope="module")
def table() -> Any:
    """The table of the reference backend behind the overlay, the driver left out."""
    pytest.importorskip("tvm_example_npu")
    from tvm_example_npu.engine.table import Table  # type: ignore[import-not-found]
    from tvm_example_npu.patterns import OPS  # type: ignore[import-not-found]

    spec = importlib.util.spec_from_file_location("plain_chip", OVERLAY)
    assert spec is not None and spec.loader is not None
    vendor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vendor)
    return Table(OPS, chip=vendor.CHIP, limits=vendor.LIMITS)


def _refusal(table: Any, op: str, *shapes: Any, **attributes: Any) -> str | None:
    """Ask about a call; a shape in a list is a constant."""
    import numpy as np
    from tvm import relax

    dtype = attributes.pop("dtype", "float32")
    arguments = [
        relax.const(np.ones(shape, dtype))
        if isinstance(shape, list)
        else relax.Var("x", relax.TensorType(shape, dtype))
        for shape in shapes
    ]
    function: Any = relax.op
    for part in op.split("."):
        function = getattr(function, part)
    call = relax.BlockBuilder().normalize(function(*arguments, **attributes))
    return None if (reason := table.refusal(call)) is None else str(reason)


def test_it_takes_what_it_can(table: Any) -> None:
    assert _refusal(table, "nn.conv2d", (1, 3, 8, 8), [4, 3, 3, 3]) is None
    assert _refusal(table, "matmul", (2, 3), [3, 4]) is None
    assert _refusal(table, "add", (2, 3), (2, 3)) is None


def test_weights_are_constants(table: Any) -> None:
    end = "is not a constant; it must be one (a limit of this chip)"
    assert _refusal(table, "matmul", (2, 3), (3, 4)) == f"matmul: 'x2' {end}"
    assert f"conv2d: 'weight' {end}" in str(
        _refusal(table, "nn.conv2d", (1, 3, 8, 8), (4, 3, 3, 3))
    )


def test_element_types_ranks_and_symbols_are_the_chips(table: Any) -> None:
    from tvm import tirx

    assert _refusal(table, "add", (2,), (2,), dtype="float16") == (
        "add: 'x1' is float16; supported: float32 (a limit of this chip)"
    )
    assert _refusal(table, "add", (1,) * 5, (1,) * 5) == (
        "add: 'x1' has rank 5; supported: 0, 1, 2, 3, 4 (a limit of this chip)"
    )
    n = tirx.Var("n", "int64")
    assert _refusal(table, "nn.relu", (n, 3)) == (
        "relu: 'x' has the size n; supported: sizes that are fixed (a limit of this chip)"
    )


def test_limits_of_one_op_and_ops_that_are_left_out(table: Any) -> None:
    assert "strides[0] must equal strides[1]; they are 2 and 1 (a limit of this chip)" in str(
        _refusal(table, "nn.conv2d", (1, 3, 8, 8), [4, 3, 3, 3], strides=[2, 1])
    )
    assert _refusal(table, "erf", (2, 3)) == "erf: vendor/capabilities.py leaves it to the host"
    # Their results, inputs or sizes have no place on this chip.
    for op, part in {
        "equal": "the result can have the element types bool",
        "logical_not": "'x' can have the element types bool",
        "conv3d": "'data' can have the ranks 5",
    }.items():
        assert part in table.left_out[op]


def test_the_table_of_the_chip_is_what_the_kit_reads(table: Any) -> None:
    names = {op.name for op in table.ops}
    assert {"conv2d", "matmul", "softmax", "concat"} <= names
    assert names.isdisjoint(table.left_out)
    for op in table.ops:
        for item in op.inputs:
            assert item.constant == item.weight, op.name
            assert item.like or item.dtypes == ("float32",), op.name
            assert set(item.ranks) <= set(range(5)), op.name
    assert (table.chip.nan, table.chip.devices) == ("undefined", 1)
