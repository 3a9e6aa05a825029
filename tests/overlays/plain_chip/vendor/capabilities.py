# SPDX-License-Identifier: Apache-2.0
"""A plain chip, for the reference backend: constant weights, float32, fixed sizes, one device."""

from __future__ import annotations

from tvm_example_npu.engine.capability import Equal, Op, Range
from tvm_example_npu.engine.chip import Chip, Limits
from tvm_example_npu.engine.sdk import ask_driver
from tvm_example_npu.engine.table import Decline

CHIP = Chip(
    dtypes=("float32",),
    ranks=range(0, 5),
    constant_weights=True,
    symbols=False,
    nan="undefined",
    devices=1,
    cancellation=False,
)

LIMITS: dict[str, Limits | None] = {
    "conv2d": Limits(strides=Range(1, 4), rules=(Equal("attr.strides[0]", "attr.strides[1]"),)),
    "erf": None,
}

DECLINED_BY_SDK: Decline | None = ask_driver

EXTRA_OPS: tuple[Op, ...] = ()
