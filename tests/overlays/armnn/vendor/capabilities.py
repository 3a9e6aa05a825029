# SPDX-License-Identifier: Apache-2.0
"""What Arm NN's CpuRef can do; beyond these limits, the driver asks Arm NN about each call."""

from __future__ import annotations

from tvm_armnn_npu.engine.capability import Op
from tvm_armnn_npu.engine.chip import Chip, Limits, Requantize
from tvm_armnn_npu.engine.sdk import ask_driver
from tvm_armnn_npu.engine.table import Decline

CHIP = Chip(
    dtypes=("float32", "int8", "uint8"),
    ranks=range(0, 6),
    constant_weights=True,
    symbols=False,
    nan="undefined",
    devices=1,
    cancellation=False,
    # It computes with the real numbers of the integers, in float32: a result that is almost a half
    # may be a step off.
    requantize=Requantize(rounding="float32", steps=1, share=0.02),
    rounds="half_away",
)

LIMITS: dict[str, Limits | None] = {}

DECLINED_BY_SDK: Decline | None = ask_driver

EXTRA_OPS: tuple[Op, ...] = ()
