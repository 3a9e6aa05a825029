# SPDX-License-Identifier: Apache-2.0
"""What XNNPACK can do; beyond these limits, the driver decides about each call."""

from __future__ import annotations

from tvm_xnnpack_npu.engine.capability import Buckets, Op
from tvm_xnnpack_npu.engine.chip import Chip, Limits
from tvm_xnnpack_npu.engine.sdk import ask_driver
from tvm_xnnpack_npu.engine.table import Decline

CHIP = Chip(
    dtypes=("float32", "int8", "uint8"),
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
    # Without `quantized`, they compute with real numbers, also between dequantize and quantize:
    # XNNPACK rescales integers by float32 numbers, not by the multipliers and shifts of the engine.
    "adaptive_avg_pool2d": Limits(),
    "avg_pool2d": Limits(),
    "conv2d": Limits(),
    "depthwise_conv2d": Limits(),
    "matmul": Limits(),
    "mean": Limits(),
    # It multiplies by 1 / scale, which may round to the next integer.
    "quantize": Limits(tolerance=Buckets(1)),
}

DECLINED_BY_SDK: Decline | None = ask_driver

EXTRA_OPS: tuple[Op, ...] = ()
