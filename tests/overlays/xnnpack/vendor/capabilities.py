# SPDX-License-Identifier: Apache-2.0
"""What XNNPACK can do; beyond these limits, the driver decides about each call."""

from __future__ import annotations

from tvm_xnnpack_npu.engine.capability import Buckets, Op
from tvm_xnnpack_npu.engine.chip import Chip, Limits, Requantize
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
    # Sums of integers by one factor of float32. Means round their factor in another order.
    requantize=Requantize(rounding="float32", steps=1, share=0.01),
)

LIMITS: dict[str, Limits | None] = {
    "concat": None,  # this release of XNNPACK has no such node
    # It has nodes for these, but the engine lowers them to comparisons and reductions.
    "prelu": None,
    "softmax": None,
    # Without `quantized`, they compute with real numbers between dequantize and quantize: XNNPACK
    # has average pools of float32 only.
    "adaptive_avg_pool2d": Limits(),
    "avg_pool2d": Limits(),
    # It multiplies by 1 / scale, which may round to the next integer.
    "quantize": Limits(tolerance=Buckets(1)),
}

DECLINED_BY_SDK: Decline | None = ask_driver

EXTRA_OPS: tuple[Op, ...] = ()
