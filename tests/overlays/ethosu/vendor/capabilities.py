# SPDX-License-Identifier: Apache-2.0
"""What an Ethos-U can do; beyond these limits, the driver and Vela decide about each call."""

from __future__ import annotations

from tvm_ethosu_npu.engine.capability import Op
from tvm_ethosu_npu.engine.chip import Chip, Limits, Requantize
from tvm_ethosu_npu.engine.sdk import ask_driver
from tvm_ethosu_npu.engine.table import Decline

CHIP = Chip(
    dtypes=("float32", "int8", "uint8", "int32"),
    ranks=range(0, 5),
    constant_weights=True,
    symbols=False,
    nan="undefined",
    devices=1,
    cancellation=False,
    # TOSA's RESCALE with SINGLE_ROUND.
    requantize=Requantize(multiplier_bits=31, shifts=(2, 62), rounding="half_up"),
)

LIMITS: dict[str, Limits | None] = {}

DECLINED_BY_SDK: Decline | None = ask_driver

EXTRA_OPS: tuple[Op, ...] = ()
