# SPDX-License-Identifier: Apache-2.0
"""What XNNPACK can do; beyond these limits, the driver decides about each call."""

from __future__ import annotations

from tvm_xnnpack_npu.engine.capability import Op
from tvm_xnnpack_npu.engine.chip import Chip, Limits
from tvm_xnnpack_npu.engine.sdk import ask_driver
from tvm_xnnpack_npu.engine.table import Decline

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
    "concat": None,  # this release of XNNPACK has no such node
    # It has nodes for these, but the engine lowers them to comparisons and reductions.
    "prelu": None,
    "softmax": None,
}

DECLINED_BY_SDK: Decline | None = ask_driver

EXTRA_OPS: tuple[Op, ...] = ()
