# SPDX-License-Identifier: Apache-2.0
"""Products of matrices and convolutions of PyTorch, in the type of their result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import relax

from .call import Call, Rule


def _product(left: str, right: str, op: Call) -> relax.Expr:
    return relax.op.matmul(op.value(left), op.value(right), out_dtype=op.result_type)


def _added(left: str, right: str, op: Call) -> relax.Expr:
    """Add a product to a tensor, each with a factor."""
    dtype = op.result_type
    alpha, beta = op["alpha"], op["beta"]
    result = _product(left, right, op)
    if alpha != 1:
        result = op.emit(relax.op.multiply(result, op.as_type(alpha, dtype)))
    if beta == 0:
        return result
    added = op.operand("self", dtype)
    if beta != 1:
        added = op.emit(relax.op.multiply(added, op.as_type(beta, dtype)))
    return relax.op.add(added, result)


def _linear(op: Call) -> relax.Expr:
    bias = None if op["bias"] is None else op.value("bias")
    return relax.op.linear(op.value("input"), op.value("weight"), bias, op.result_type)


LAYOUTS = ("NCW", "NCHW", "NCDHW")
"""Of data with one, two and three axes beside batch and channels."""


def _convolution(op: Call) -> relax.Expr:
    x, axes, padding = op.value("input"), op.value("input").ty.ndim - 2, op["padding"]
    if not 1 <= axes <= 3:
        op.refuse(f"its data has {axes + 2} axes; supported are 3 to 5, with a batch")
    if isinstance(padding, str):
        op.refuse(f"padding={padding!r} is not supported; supported are numbers")
    is_transposed, layout = bool(op["transposed"]), LAYOUTS[axes - 1]
    make = getattr(relax.op.nn, f"conv{axes}d_transpose" if is_transposed else f"conv{axes}d")
    own = {"output_padding": each(op["output_padding"], axes)} if is_transposed else {}
    result = make(
        x,
        op.value("weight"),
        strides=each(op["stride"], axes),
        padding=each(padding, axes),
        dilation=each(op["dilation"], axes),
        groups=op["groups"],
        data_layout=layout,
        kernel_layout=("IO" if is_transposed else "OI") + layout[2:],
        out_dtype=op.result_type,
        **own,
    )
    if op["bias"] is None:
        return result
    return relax.op.add(result, relax.op.reshape(op.value("bias"), (1, -1, *[1] * axes)))


def each(sizes: int | Sequence[int], axes: int) -> list[int]:
    """Return a number for each axis."""
    given = [sizes] if isinstance(sizes, int) else list(sizes)
    return given * axes if len(given) == 1 else given


RULES: dict[str, Rule] = {
    "aten.mm": partial(_product, "self", "mat2"),
    "aten.bmm": partial(_product, "self", "mat2"),
    "aten.matmul": partial(_product, "self", "other"),
    "aten.mv": partial(_product, "self", "vec"),
    "aten.dot": partial(_product, "self", "tensor"),
    "aten.addmm": partial(_added, "mat1", "mat2"),
    "aten.addmv": partial(_added, "mat", "vec"),
    "aten.baddbmm": partial(_added, "batch1", "batch2"),
    "aten.linear": _linear,
    **{f"aten.{name}": _convolution for name in ("convolution", "conv1d", "conv2d", "conv3d")},
}
