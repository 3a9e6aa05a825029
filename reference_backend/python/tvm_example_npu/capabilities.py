# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""What the hardware can do: this table decides which ops leave the host.

Tighten a range, drop a dtype, add a rule or take an entry out: patterns, checks, reports and tests
follow. `capability.py` says what each word means. 'copier update' adds and removes the entries of
the ops that you select, and keeps your edits of the others.
"""

from __future__ import annotations

from typing import Any

from .capability import (  # noqa: F401 (all the words, so that an edit needs no import)
    Among,
    Anything,
    AtLeast,
    AtMost,
    Equal,
    Fuses,
    Input,
    NotEqual,
    OneOf,
    Op,
    Range,
    Tolerance,
)


def declined_by_sdk(op: Op, call: Any) -> str | None:
    """Ask the hardware's SDK whether it takes a call that suits the table.

    Here is the place for what a table cannot say, such as a size that the SDK computes. The driver
    is asked once more when a composite, and then a region, is compiled.

    Parameters
    ----------
    op
        The entry that the call suits.
    call
        The Relax call (`tvm.relax.Call`).

    Returns
    -------
    reason
        None if the SDK takes it, or a sentence that says why not: the call stays on the host, and
        the report has the sentence.
    """
    return None


OPS: tuple[Op, ...] = (
    Op(
        name="matmul",
        relax="relax.matmul",
        summary="matrix product, batched and broadcast",
        engine="matrix",
        inputs=(
            Input("x1", dtypes=("float32", "float16"), ranks=(2, 3, 4, 5, 6)),
            Input("x2", like="x1", ranks=(2, 3, 4, 5, 6)),
        ),
        attributes={
            "out_dtype": OneOf("", "float32"),
        },
        operations="2 * size(out) * x1[-1]",
        output_dtypes=("float32", "float16"),
        fuses=Fuses(
            bias=-1,
            residual=True,
            activations=("relu", "clip", "sigmoid", "tanh", "gelu", "silu"),
        ),
        absorbs_transpose=(0, 1),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-05),
            "float16": Tolerance(rtol=0.01, atol=0.01),
        },
    ),
    Op(
        name="conv1d",
        relax="relax.nn.conv1d",
        summary="1-D convolution",
        engine="matrix",
        inputs=(
            Input("data", dtypes=("float32", "float16"), ranks=(3,)),
            Input("weight", like="data", ranks=(3,)),
        ),
        attributes={
            "strides": Range(min=1, max=16),
            "padding": Range(min=0, max=64),
            "dilation": Range(min=1, max=16),
            "groups": Range(min=1),
            "data_layout": OneOf("NCW"),
            "kernel_layout": OneOf("OIW"),
            "out_layout": OneOf("NCW"),
            "out_dtype": OneOf("", "float32"),
        },
        operations="2 * size(out) * size(weight[1:])",
        output_dtypes=("float32", "float16"),
        fuses=Fuses(
            bias=1,
            residual=True,
            activations=("relu", "clip", "sigmoid", "tanh", "gelu", "silu"),
        ),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-05),
            "float16": Tolerance(rtol=0.01, atol=0.01),
        },
    ),
    Op(
        name="conv2d",
        relax="relax.nn.conv2d",
        summary="2-D convolution",
        engine="matrix",
        inputs=(
            Input("data", dtypes=("float32", "float16"), ranks=(4,)),
            Input("weight", like="data", ranks=(4,)),
        ),
        attributes={
            "strides": Range(min=1, max=16),
            "padding": Range(min=0, max=64),
            "dilation": Range(min=1, max=16),
            "groups": Range(min=1),
            "data_layout": OneOf("NCHW"),
            "kernel_layout": OneOf("OIHW"),
            "out_layout": OneOf("NCHW"),
            "out_dtype": OneOf("", "float32"),
        },
        operations="2 * size(out) * size(weight[1:])",
        output_dtypes=("float32", "float16"),
        fuses=Fuses(
            bias=1,
            residual=True,
            activations=("relu", "clip", "sigmoid", "tanh", "gelu", "silu"),
        ),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-05),
            "float16": Tolerance(rtol=0.01, atol=0.01),
        },
    ),
    Op(
        name="depthwise_conv2d",
        relax="relax.nn.conv2d",
        summary="2-D convolution of each channel on its own",
        engine="matrix",
        inputs=(
            Input("data", dtypes=("float32", "float16"), ranks=(4,)),
            Input("weight", like="data", ranks=(4,)),
        ),
        attributes={
            "strides": Range(min=1, max=16),
            "padding": Range(min=0, max=64),
            "dilation": Range(min=1, max=16),
            "groups": Range(min=2),
            "data_layout": OneOf("NCHW"),
            "kernel_layout": OneOf("OIHW"),
            "out_layout": OneOf("NCHW"),
            "out_dtype": OneOf("", "float32"),
        },
        rules=(Equal("attr.groups", "data.shape[1]"),),
        operations="2 * size(out) * size(weight[1:])",
        output_dtypes=("float32", "float16"),
        fuses=Fuses(
            bias=1,
            residual=True,
            activations=("relu", "clip", "sigmoid", "tanh", "gelu", "silu"),
        ),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-05),
            "float16": Tolerance(rtol=0.01, atol=0.01),
        },
    ),
    Op(
        name="max_pool2d",
        relax="relax.nn.max_pool2d",
        summary="maximum of each 2-D window",
        engine="pool",
        inputs=(Input("data", dtypes=("float32", "float16"), ranks=(4,)),),
        attributes={
            "pool_size": Range(min=1, max=64),
            "strides": Range(min=1, max=16),
            "padding": Range(min=0, max=63),
            "dilation": Range(min=1, max=16),
            "ceil_mode": Anything(),
            "count_include_pad": Anything(),
            "layout": OneOf("NCHW"),
            "out_layout": OneOf("NCHW"),
        },
        operations="size(out) * size(pool_size)",
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="avg_pool2d",
        relax="relax.nn.avg_pool2d",
        summary="mean of each 2-D window",
        engine="pool",
        inputs=(Input("data", dtypes=("float32", "float16"), ranks=(4,)),),
        attributes={
            "pool_size": Range(min=1, max=64),
            "strides": Range(min=1, max=16),
            "padding": Range(min=0, max=63),
            "dilation": Range(min=1, max=16),
            "ceil_mode": Anything(),
            "count_include_pad": Anything(),
            "layout": OneOf("NCHW"),
            "out_layout": OneOf("NCHW"),
        },
        operations="size(out) * size(pool_size)",
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-06),
            "float16": Tolerance(rtol=0.01, atol=0.005),
        },
    ),
    Op(
        name="adaptive_avg_pool2d",
        relax="relax.nn.adaptive_avg_pool2d",
        summary="mean of windows chosen to give a fixed output size",
        engine="pool",
        inputs=(Input("data", dtypes=("float32", "float16"), ranks=(4,)),),
        attributes={
            "output_size": Anything(),
            "layout": OneOf("NCHW"),
            "out_layout": OneOf("NCHW"),
        },
        operations="size(data)",
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-06),
            "float16": Tolerance(rtol=0.01, atol=0.005),
        },
    ),
    Op(
        name="batch_norm",
        relax="relax.nn.batch_norm",
        summary="normalisation with stored statistics (inference)",
        engine="vector",
        inputs=(
            Input("data", dtypes=("float32", "float16"), ranks=(2, 3, 4, 5)),
            Input("gamma", like="data", ranks=(1,)),
            Input("beta", like="data", ranks=(1,)),
            Input("moving_mean", like="data", ranks=(1,)),
            Input("moving_var", like="data", ranks=(1,)),
        ),
        attributes={
            "axis": Anything(),
            "epsilon": Anything(),
            "center": Anything(),
            "scale": Anything(),
            "momentum": Anything(),
            "training": OneOf(False),
        },
        operations="2 * size(data)",
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-05),
            "float16": Tolerance(rtol=0.01, atol=0.01),
        },
    ),
    Op(
        name="layer_norm",
        relax="relax.nn.layer_norm",
        summary="normalisation over the given axes",
        engine="vector",
        inputs=(
            Input("data", dtypes=("float32", "float16"), ranks=(1, 2, 3, 4, 5)),
            Input("gamma", like="data", ranks=(1, 2, 3, 4, 5)),
            Input("beta", like="data", ranks=(1, 2, 3, 4, 5)),
        ),
        attributes={
            "axes": Anything(),
            "epsilon": Anything(),
            "center": OneOf(True),
            "scale": OneOf(True),
        },
        operations="8 * size(data)",
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-05),
            "float16": Tolerance(rtol=0.01, atol=0.01),
        },
    ),
    Op(
        name="softmax",
        relax="relax.nn.softmax",
        summary="exponentials that add up to one",
        engine="vector",
        inputs=(Input("data", dtypes=("float32", "float16"), ranks=(1, 2, 3, 4, 5, 6)),),
        attributes={
            "axis": Anything(),
        },
        operations="5 * size(data)",
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-06),
            "float16": Tolerance(rtol=0.01, atol=0.005),
        },
    ),
    Op(
        name="relu",
        relax="relax.nn.relu",
        summary="maximum of x and 0",
        engine="vector",
        inputs=(Input("x", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),),
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="clip",
        relax="relax.clip",
        summary="limited to a range (also ReLU6)",
        engine="vector",
        inputs=(Input("x", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),),
        attributes={
            "min": Anything(),
            "max": Anything(),
        },
        rules=(AtMost("attr.min", "attr.max"),),
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="sigmoid",
        relax="relax.sigmoid",
        summary="1 / (1 + exp(-x))",
        engine="vector",
        inputs=(Input("x", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-06),
            "float16": Tolerance(rtol=0.005, atol=0.001),
        },
    ),
    Op(
        name="tanh",
        relax="relax.tanh",
        summary="hyperbolic tangent",
        engine="vector",
        inputs=(Input("x", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-06),
            "float16": Tolerance(rtol=0.005, atol=0.001),
        },
    ),
    Op(
        name="gelu",
        relax="relax.nn.gelu",
        summary="x times the normal distribution of x (the erf form)",
        engine="vector",
        inputs=(Input("x", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=2e-06),
            "float16": Tolerance(rtol=0.01, atol=0.002),
        },
    ),
    Op(
        name="silu",
        relax="relax.nn.silu",
        summary="x times its sigmoid (swish)",
        engine="vector",
        inputs=(Input("x", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),),
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-06),
            "float16": Tolerance(rtol=0.01, atol=0.002),
        },
    ),
    Op(
        name="add",
        relax="relax.add",
        summary="sum of two tensors, broadcast",
        engine="vector",
        inputs=(
            Input("x1", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),
            Input("x2", like="x1", ranks=(0, 1, 2, 3, 4, 5, 6)),
        ),
        tolerance={
            "float32": Tolerance(rtol=1e-06, atol=1e-06),
            "float16": Tolerance(rtol=0.002, atol=0.002),
        },
    ),
    Op(
        name="subtract",
        relax="relax.subtract",
        summary="difference of two tensors, broadcast",
        engine="vector",
        inputs=(
            Input("x1", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),
            Input("x2", like="x1", ranks=(0, 1, 2, 3, 4, 5, 6)),
        ),
        tolerance={
            "float32": Tolerance(rtol=1e-06, atol=1e-06),
            "float16": Tolerance(rtol=0.002, atol=0.002),
        },
    ),
    Op(
        name="multiply",
        relax="relax.multiply",
        summary="product of two tensors, broadcast",
        engine="vector",
        inputs=(
            Input("x1", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),
            Input("x2", like="x1", ranks=(0, 1, 2, 3, 4, 5, 6)),
        ),
        tolerance={
            "float32": Tolerance(rtol=1e-06, atol=1e-06),
            "float16": Tolerance(rtol=0.002, atol=0.002),
        },
    ),
    Op(
        name="divide",
        relax="relax.divide",
        summary="quotient of two tensors, broadcast",
        engine="vector",
        inputs=(
            Input("x1", dtypes=("float32", "float16"), ranks=(0, 1, 2, 3, 4, 5, 6)),
            Input("x2", like="x1", ranks=(0, 1, 2, 3, 4, 5, 6)),
        ),
        tolerance={
            "float32": Tolerance(rtol=1e-06, atol=1e-06),
            "float16": Tolerance(rtol=0.002, atol=0.002),
        },
    ),
    Op(
        name="mean",
        relax="relax.mean",
        summary="mean over axes",
        engine="vector",
        inputs=(Input("x", dtypes=("float32", "float16"), ranks=(1, 2, 3, 4, 5, 6)),),
        attributes={
            "axis": Anything(),
            "keepdims": Anything(),
        },
        operations="size(x)",
        tolerance={
            "float32": Tolerance(rtol=1e-05, atol=1e-06),
            "float16": Tolerance(rtol=0.01, atol=0.005),
        },
    ),
    Op(
        name="reshape",
        relax="relax.reshape",
        summary="the same elements under another shape",
        engine="memory",
        inputs=(
            Input("x", dtypes=("float32", "float16", "int8", "uint8"), ranks=(0, 1, 2, 3, 4, 5, 6)),
        ),
        attributes={
            "shape": Anything(),
        },
        operations="0",
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="permute_dims",
        relax="relax.permute_dims",
        summary="dimensions in another order (transpose)",
        engine="memory",
        inputs=(
            Input("x", dtypes=("float32", "float16", "int8", "uint8"), ranks=(1, 2, 3, 4, 5, 6)),
        ),
        attributes={
            "axes": Anything(),
        },
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="flatten",
        relax="relax.flatten",
        summary="all elements in one dimension",
        engine="memory",
        inputs=(
            Input("x", dtypes=("float32", "float16", "int8", "uint8"), ranks=(0, 1, 2, 3, 4, 5, 6)),
        ),
        operations="0",
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="concat",
        relax="relax.concat",
        summary="tensors one after the other along an axis",
        engine="memory",
        inputs=(
            Input(
                "tensors",
                dtypes=("float32", "float16", "int8", "uint8"),
                ranks=(1, 2, 3, 4, 5, 6),
                is_tuple=True,
            ),
        ),
        attributes={
            "axis": Anything(),
        },
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="pad",
        relax="relax.nn.pad",
        summary="a border of constant value",
        engine="memory",
        inputs=(Input("data", dtypes=("float32", "float16"), ranks=(1, 2, 3, 4, 5, 6)),),
        attributes={
            "pad_width": Range(min=0),
            "pad_value": Anything(),
            "pad_mode": OneOf("constant"),
        },
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=0),
        },
    ),
    Op(
        name="quantize",
        relax="relax.quantize",
        summary="real numbers to 8-bit integers, by scale and zero point",
        engine="vector",
        inputs=(
            Input("data", dtypes=("float32", "float16"), ranks=(1, 2, 3, 4, 5, 6)),
            Input("scale", dtypes=("float32", "float16"), ranks=(0, 1)),
            Input("zero_point", dtypes=("int8", "uint8", "int32"), ranks=(0, 1)),
        ),
        attributes={
            "axis": Anything(),
            "out_dtype": OneOf("int8", "uint8"),
        },
        output_dtypes=("int8", "uint8"),
        tolerance={
            "float32": Tolerance(rtol=0, atol=0),
            "float16": Tolerance(rtol=0, atol=1),
        },
    ),
    Op(
        name="dequantize",
        relax="relax.dequantize",
        summary="8-bit integers to real numbers, by scale and zero point",
        engine="vector",
        inputs=(
            Input("data", dtypes=("int8", "uint8"), ranks=(1, 2, 3, 4, 5, 6)),
            Input("scale", dtypes=("float32", "float16"), ranks=(0, 1)),
            Input("zero_point", dtypes=("int8", "uint8", "int32"), ranks=(0, 1)),
        ),
        attributes={
            "axis": Anything(),
            "out_dtype": OneOf("float32", "float16"),
        },
        output_dtypes=("float32", "float16"),
        tolerance={
            "float32": Tolerance(rtol=1e-06, atol=0),
            "float16": Tolerance(rtol=0.002, atol=1e-06),
        },
    ),
)
"""The ops, in the order in which patterns are tried: of equals, the later one wins."""
