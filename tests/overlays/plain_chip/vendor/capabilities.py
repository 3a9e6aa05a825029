# SPDX-License-Identifier: Apache-2.0
"""A limited chip, with constant weights, float32, static shapes and one device."""

from __future__ import annotations

from tvm_example_npu.engine.capability import Op
from tvm_example_npu.engine.chip import Chip, Limits
from tvm_example_npu.engine.sdk import ask_driver
from tvm_example_npu.engine.table import Decline

CHIP = Chip(
    dtypes=("float32",),
    constant_weights=True,
    symbols=False,
    nan="undefined",
    devices=1,
    cancellation=False,
)

LIMITS: dict[str, Limits | None] = {}

DECLINED_BY_SDK: Decline | None = ask_driver

EXTRA_OPS: tuple[Op, ...] = ()
