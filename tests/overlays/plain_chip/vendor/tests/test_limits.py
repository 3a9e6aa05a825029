# SPDX-License-Identifier: Apache-2.0
"""Ops that this chip cannot run stay on the host with a reason."""

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm_example_npu.engine.patterns import TABLE


def _refusal(op: str, *shapes: Any, **attributes: Any) -> str | None:
    """Return why a call is refused; a shape in a list stands for a constant."""
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
    return None if (reason := TABLE.refusal(call)) is None else str(reason)


def test_it_takes_what_it_can() -> None:
    assert _refusal("nn.conv2d", (1, 3, 8, 8), [4, 3, 3, 3]) is None
    assert _refusal("matmul", (2, 3), [3, 4]) is None
    assert _refusal("add", (2, 3), (2, 3)) is None


def test_weights_are_constants() -> None:
    end = "is not a constant; it must be one (a limit of this chip)"
    assert _refusal("matmul", (2, 3), (3, 4)) == f"matmul: 'x2' {end}"
    assert f"conv2d: 'weight' {end}" in str(_refusal("nn.conv2d", (1, 3, 8, 8), (4, 3, 3, 3)))


def test_element_types_and_symbols_are_the_chips() -> None:
    assert _refusal("add", (2,), (2,), dtype="float16") == (
        "add: 'x1' is float16; supported: float32 (a limit of this chip)"
    )
    n = tirx.Var("n", "int64")
    assert _refusal("nn.relu", (n, 3)) == (
        "relu: 'x' has the size n; supported: sizes that are fixed (a limit of this chip)"
    )


def test_every_weight_is_a_constant_and_every_number_float32():
    for op in TABLE.ops:
        for item in op.inputs:
            assert item.constant == item.weight, op.name
            assert item.like or item.dtypes == ("float32",), op.name
    assert (TABLE.chip.nan, TABLE.chip.devices) == ("undefined", 1)
