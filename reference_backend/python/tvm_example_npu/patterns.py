# SPDX-License-Identifier: Apache-2.0
"""The ops that this backend offloads: those selected, within the engine's limits.

An update of the template rewrites this list. `vendor/capabilities.py` narrows it to your chip, and
adds ops; `engine.backend.table.capability` defines the vocabulary.
"""

from __future__ import annotations

from functools import partial

from .engine.backend.table.capability import (
    Accumulated,
    Among,
    AtLeast,
    AtMost,
    Buckets,
    Constraint,
    Elementwise,
    Equal,
    Fuses,
    Input,
    NotEqual,
    OneOf,
    Op,
    Quantized,
    Range,
    anything,
    only,
)

# What several ops share.
FLOATS = ("float32", "float16")
WIDE = ("float32", "float16", "int32", "int64")
SIGNED = ("float32", "float16", "int32", "int64", "int8")
NUMBERS = ("float32", "float16", "int32", "int64", "int8", "uint8")
NOT_BOOL = ("float32", "float16", "int32", "int64", "int8", "uint8", "int16")
ALL = ("float32", "float16", "int32", "int64", "int8", "uint8", "int16", "bool")
INTEGERS = ("int8", "uint8", "int16")
CONVOLUTION_ATTRIBUTES: dict[str, Constraint] = {
    "strides": Range(1, 1024),
    "padding": Range(0, 1024),
    "out_dtype": OneOf("", *FLOATS),
}
TRANSPOSED_CONVOLUTION_ATTRIBUTES: dict[str, Constraint] = {
    "strides": Range(1, 1024),
    "padding": Range(0, 1024),
    "output_padding": Range(0, 1023),
    "dilation": Range(1, 1024),
    "groups": Range(1),
    "out_dtype": OneOf("", *FLOATS),
}
POOL_ATTRIBUTES: dict[str, Constraint] = {
    **anything("ceil_mode", "count_include_pad"),
    "pool_size": Range(1, 64),
    "strides": Range(1, 16),
    "padding": Range(0, 63),
    "dilation": Range(1, 16),
}
CHANNEL_NORM_ATTRIBUTES: dict[str, Constraint] = {
    **anything("channel_axis", "axes", "epsilon"),
    **only(center=True, scale=True),
}
convolution = partial(
    Op,
    engine="matrix",
    operations="2 * size(out) * size(weight[1:])",
    output_dtypes=FLOATS,
    fuses=Fuses(bias=1, residual=True, scale=True),
    quantized=Quantized(channel=0),
    tolerance=Accumulated("size(weight[1:])"),
)
transposed_convolution = partial(
    Op,
    engine="matrix",
    operations="2 * size(data) * size(weight[1:])",
    output_dtypes=FLOATS,
    fuses=Fuses(bias=1, residual=True, scale=True),
    quantized=Quantized(channel=1),
    tolerance=Accumulated("size(weight) // weight[1]"),
)
max_pool = partial(Op, engine="pool", operations="size(out) * size(pool_size)")
avg_pool = partial(
    Op,
    engine="pool",
    operations="size(out) * size(pool_size)",
    quantized=Quantized(dtypes=("int8", "uint8")),
    tolerance=Accumulated("size(pool_size)"),
)
adaptive_pool = partial(
    Op,
    engine="pool",
    operations="size(data)",
    quantized=Quantized(dtypes=("int8", "uint8")),
    tolerance=Accumulated("size(data) // size(out) + 1"),
)
softmax_like = partial(
    Op,
    inputs=(Input("data", FLOATS, range(1, 7)),),
    attributes=anything("axis"),
    operations="5 * size(data)",
    quantized=Quantized(inside="reals", dtypes=("int8", "uint8")),
    tolerance=Accumulated("max(data)"),
)
channel_norm = partial(
    Op,
    inputs=(
        Input("data", FLOATS, range(2, 6)),
        Input("gamma", ranks=(1,), like="data", weight=True),
        Input("beta", ranks=(1,), like="data", weight=True),
    ),
    operations="8 * size(data)",
    quantized=Quantized(inside="reals", dtypes=("int8", "uint8")),
)
limit = partial(
    Op,
    inputs=(Input("x", NUMBERS, range(7)),),
    activation=True,
    quantized=Quantized(),
)
activation = partial(
    Op,
    inputs=(Input("x", FLOATS, range(7)),),
    activation=True,
    quantized=Quantized(),
)
parametric = partial(
    Op,
    inputs=(Input("data", FLOATS, range(7)),),
    activation=True,
    quantized=Quantized(),
)
arithmetic = partial(
    Op,
    inputs=(Input("x1", NUMBERS, range(7)), Input("x2", ranks=range(7), like="x1")),
    quantized=Quantized(),
)
division = partial(
    Op,
    inputs=(Input("x1", WIDE, range(7)), Input("x2", ranks=range(7), like="x1")),
)
float_reduction = partial(
    Op,
    inputs=(Input("x", FLOATS, range(1, 7)),),
    attributes=anything("axis", "keepdims"),
    operations="size(x)",
    tolerance=Accumulated("size(x) // size(out)"),
)
sum_like = partial(
    Op,
    inputs=(Input("x", WIDE, range(1, 7)),),
    attributes=anything("axis", "keepdims"),
    operations="size(x)",
    tolerance=Accumulated("size(x) // size(out)"),
)
extremum = partial(
    Op,
    inputs=(Input("x", NUMBERS, range(1, 7)),),
    attributes=anything("axis", "keepdims"),
    operations="size(x)",
)
index_of = partial(
    Op,
    inputs=(Input("x", NUMBERS, range(1, 7)),),
    attributes=anything("axis", "keepdims"),
    operations="size(x)",
    output_dtypes=("int64",),
)
view = partial(Op, engine="memory", inputs=(Input("x", ALL, range(7)),), operations="0")
movement = partial(Op, engine="memory", inputs=(Input("x", ALL, range(1, 7)),))
triangle = partial(Op, inputs=(Input("x", ALL, range(2, 7)),), attributes=anything("k"))
transcendental = partial(
    Op,
    inputs=(Input("x", FLOATS, range(7)),),
    tolerance=Elementwise(atol=1e-06),
)
of_signed = partial(Op, inputs=(Input("x", SIGNED, range(7)),))
exact = partial(Op, inputs=(Input("x", FLOATS, range(7)),))
root = partial(Op, inputs=(Input("x", FLOATS, range(7)),), tolerance=Elementwise())
negation = partial(Op, inputs=(Input("x", ("bool",), range(7)),))
equality = partial(
    Op,
    inputs=(Input("x1", ALL, range(7)), Input("x2", ranks=range(7), like="x1")),
    output_dtypes=("bool",),
)
order = partial(
    Op,
    inputs=(Input("x1", NUMBERS, range(7)), Input("x2", ranks=range(7), like="x1")),
    output_dtypes=("bool",),
)
logical = partial(
    Op,
    inputs=(Input("x1", ("bool",), range(7)), Input("x2", ranks=range(7), like="x1")),
)
filled = partial(
    Op,
    inputs=(Input("x", ALL, range(7)),),
    attributes={"dtype": OneOf("", *ALL)},
    output_dtypes=ALL,
)
packed_attention = partial(
    Op,
    engine="matrix",
    attributes={
        **anything("scale"),
        **only(window_size=""),
        "causal_mask": OneOf("", "TopLeft", "BottomRight"),
    },
    rules=(
        Equal("key.shape[2]", "value.shape[2]"),
        AtLeast("query.shape[2]", 1),
        AtLeast("query.shape[3]", 1),
    ),
    operations="2 * size(query) * key[1] + 2 * size(out) * key[1]",
    tolerance=Accumulated("query[3] + key[1]"),
)
split_attention = partial(
    Op,
    engine="matrix",
    attributes=anything("scale"),
    operations="2 * size(query) * key[-2] + 2 * size(out) * key[-2]",
    tolerance=Accumulated(count="query[-1] + key[-2]", accumulator="output"),
)
cumulative = partial(
    Op,
    inputs=(Input("data", WIDE, range(1, 7)),),
    attributes={**anything("axis", "exclusive"), "dtype": OneOf("", *WIDE)},
    operations="size(data)",
    output_dtypes=WIDE,
    tolerance=Accumulated("max(data)"),
)
scatter = partial(
    Op,
    rules=(
        Among("attr.reduction", ("update",), ("bool", "int16")),
        Among("attr.reduction", ("update", "max", "min"), ("int8", "uint8")),
    ),
)

OPS: tuple[Op, ...] = (
    # ---- Matrix products -------------------------------------------------------------------------
    Op(  # matrix product, batched and broadcast
        "matmul",
        "relax.matmul",
        engine="matrix",
        inputs=(
            Input("x1", FLOATS, range(1, 7)),
            Input("x2", ranks=range(1, 7), like="x1", weight=True),
        ),
        attributes={"out_dtype": OneOf("", *FLOATS)},
        operations="2 * size(out) * x1[-1]",
        output_dtypes=FLOATS,
        fuses=Fuses(bias=-1, residual=True, scale=True),
        quantized=Quantized(channel=-1),
        absorbs_transpose=(0, 1),
        tolerance=Accumulated("x1[-1]"),
    ),
    # ---- Convolutions ----------------------------------------------------------------------------
    convolution(  # 1-D convolution
        "conv1d",
        "relax.nn.conv1d",
        inputs=(Input("data", FLOATS, (3,)), Input("weight", ranks=(3,), like="data", weight=True)),
        attributes={
            **CONVOLUTION_ATTRIBUTES,
            **only(data_layout="NCW", kernel_layout="OIW", out_layout="NCW"),
            "dilation": Range(1, 1024),
            "groups": Range(1),
        },
    ),
    convolution(  # 2-D convolution
        "conv2d",
        "relax.nn.conv2d",
        inputs=(Input("data", FLOATS, (4,)), Input("weight", ranks=(4,), like="data", weight=True)),
        attributes={
            **CONVOLUTION_ATTRIBUTES,
            **only(data_layout="NCHW", kernel_layout="OIHW", out_layout="NCHW"),
            "dilation": Range(1, 1024),
            "groups": Range(1),
        },
    ),
    convolution(  # 2-D convolution of each channel on its own
        "depthwise_conv2d",
        "relax.nn.conv2d",
        inputs=(Input("data", FLOATS, (4,)), Input("weight", ranks=(4,), like="data", weight=True)),
        attributes={
            **CONVOLUTION_ATTRIBUTES,
            **only(data_layout="NCHW", kernel_layout="OIHW", out_layout="NCHW"),
            "dilation": Range(1, 1024),
            "groups": Range(2),
        },
        rules=(Equal("attr.groups", "data.shape[1]"),),
    ),
    convolution(  # 3-D convolution
        "conv3d",
        "relax.nn.conv3d",
        inputs=(Input("data", FLOATS, (5,)), Input("weight", ranks=(5,), like="data", weight=True)),
        attributes={
            **CONVOLUTION_ATTRIBUTES,
            **only(data_layout="NCDHW", kernel_layout="OIDHW", out_layout="NCDHW"),
            "dilation": Range(1, 1024),
            "groups": Range(1),
        },
    ),
    transposed_convolution(  # 1-D transposed convolution
        "conv1d_transpose",
        "relax.nn.conv1d_transpose",
        inputs=(Input("data", FLOATS, (3,)), Input("weight", ranks=(3,), like="data", weight=True)),
        attributes={
            **TRANSPOSED_CONVOLUTION_ATTRIBUTES,
            **only(data_layout="NCW", kernel_layout="IOW", out_layout="NCW"),
        },
    ),
    transposed_convolution(  # 2-D transposed convolution
        "conv2d_transpose",
        "relax.nn.conv2d_transpose",
        inputs=(Input("data", FLOATS, (4,)), Input("weight", ranks=(4,), like="data", weight=True)),
        attributes={
            **TRANSPOSED_CONVOLUTION_ATTRIBUTES,
            **only(data_layout="NCHW", kernel_layout="IOHW", out_layout="NCHW"),
        },
    ),
    transposed_convolution(  # 3-D transposed convolution
        "conv3d_transpose",
        "relax.nn.conv3d_transpose",
        inputs=(Input("data", FLOATS, (5,)), Input("weight", ranks=(5,), like="data", weight=True)),
        attributes={
            **TRANSPOSED_CONVOLUTION_ATTRIBUTES,
            **only(data_layout="NCDHW", kernel_layout="IODHW", out_layout="NCDHW"),
        },
    ),
    # ---- Pooling ---------------------------------------------------------------------------------
    max_pool(  # maximum of each 2-D window
        "max_pool2d",
        "relax.nn.max_pool2d",
        inputs=(Input("data", ("float32", "float16", "int8", "uint8", "int16"), (4,)),),
        attributes={**POOL_ATTRIBUTES, **only(layout="NCHW", out_layout="NCHW")},
    ),
    avg_pool(  # mean of each 2-D window
        "avg_pool2d",
        "relax.nn.avg_pool2d",
        inputs=(Input("data", FLOATS, (4,)),),
        attributes={**POOL_ATTRIBUTES, **only(layout="NCHW", out_layout="NCHW")},
    ),
    adaptive_pool(  # mean of windows chosen to give a fixed output size
        "adaptive_avg_pool2d",
        "relax.nn.adaptive_avg_pool2d",
        inputs=(Input("data", FLOATS, (4,)),),
        attributes={**anything("output_size"), **only(layout="NCHW", out_layout="NCHW")},
    ),
    max_pool(  # maximum of each 1-D window
        "max_pool1d",
        "relax.nn.max_pool1d",
        inputs=(Input("data", ("float32", "float16", "int8", "uint8", "int16"), (3,)),),
        attributes={**POOL_ATTRIBUTES, **only(layout="NCW", out_layout="NCW")},
    ),
    max_pool(  # maximum of each 3-D window
        "max_pool3d",
        "relax.nn.max_pool3d",
        inputs=(Input("data", ("float32", "float16", "int8", "uint8", "int16"), (5,)),),
        attributes={**POOL_ATTRIBUTES, **only(layout="NCDHW", out_layout="NCDHW")},
    ),
    avg_pool(  # mean of each 1-D window
        "avg_pool1d",
        "relax.nn.avg_pool1d",
        inputs=(Input("data", FLOATS, (3,)),),
        attributes={**POOL_ATTRIBUTES, **only(layout="NCW", out_layout="NCW")},
    ),
    avg_pool(  # mean of each 3-D window
        "avg_pool3d",
        "relax.nn.avg_pool3d",
        inputs=(Input("data", FLOATS, (5,)),),
        attributes={**POOL_ATTRIBUTES, **only(layout="NCDHW", out_layout="NCDHW")},
    ),
    adaptive_pool(  # mean of 1-D windows chosen to give a fixed output size
        "adaptive_avg_pool1d",
        "relax.nn.adaptive_avg_pool1d",
        inputs=(Input("data", FLOATS, (3,)),),
        attributes={**anything("output_size"), **only(layout="NCW", out_layout="NCW")},
    ),
    adaptive_pool(  # mean of 3-D windows chosen to give a fixed output size
        "adaptive_avg_pool3d",
        "relax.nn.adaptive_avg_pool3d",
        inputs=(Input("data", FLOATS, (5,)),),
        attributes={**anything("output_size"), **only(layout="NCDHW", out_layout="NCDHW")},
    ),
    # ---- Normalization and softmax ---------------------------------------------------------------
    Op(  # normalization with stored statistics (inference)
        "batch_norm",
        "relax.nn.batch_norm",
        inputs=(
            Input("data", FLOATS, range(2, 6)),
            Input("gamma", ranks=(1,), like="data", weight=True),
            Input("beta", ranks=(1,), like="data", weight=True),
            Input("moving_mean", ranks=(1,), like="data", weight=True),
            Input("moving_var", ranks=(1,), like="data", weight=True),
        ),
        attributes={
            **anything("axis", "epsilon", "center", "scale", "momentum"),
            **only(training=False),
        },
        operations="2 * size(data)",
        tolerance=Accumulated("3"),
    ),
    Op(  # normalization over the given axes
        "layer_norm",
        "relax.nn.layer_norm",
        inputs=(
            Input("data", FLOATS, range(1, 6)),
            Input("gamma", ranks=range(1, 6), like="data", weight=True),
            Input("beta", ranks=range(1, 6), like="data", weight=True),
        ),
        attributes={**anything("axes", "epsilon"), **only(center=True, scale=True)},
        operations="8 * size(data)",
        chains=(
            (
                "d = data - mean(data, axis=axes, keepdims=True)",
                "r = sqrt(mean(square(d), axis=axes, keepdims=True) + epsilon)",
                "d / r * gamma + beta",
            ),
            (
                "v = variance(data, axis=axes, keepdims=True)",
                "d = data - mean(data, axis=axes, keepdims=True)",
                "d / sqrt(v + epsilon) * gamma + beta",
            ),
        ),
        quantized=Quantized(inside="reals", dtypes=("int8", "uint8")),
        tolerance=Accumulated(count="size(gamma)", factor=8, shifted="data"),
    ),
    softmax_like("softmax", "relax.nn.softmax"),  # exponentials that add up to one
    Op(  # division by the root of the mean of the squares over the given axes
        "rms_norm",
        "relax.nn.rms_norm",
        inputs=(
            Input("data", FLOATS, range(1, 6)),
            Input("weight", ranks=range(1, 6), like="data", weight=True),
        ),
        attributes=anything("axes", "epsilon"),
        operations="5 * size(data)",
        chains=(
            "data / sqrt(mean(square(data), axis=axes, keepdims=True) + epsilon) * weight",
            (
                "d = astype(data, dtype='float32')",
                "n = d / sqrt(mean(square(d), axis=axes, keepdims=True) + epsilon)",
                "astype(n, dtype=data) * weight",
            ),
        ),
        quantized=Quantized(inside="reals", dtypes=("int8", "uint8")),
        tolerance=Accumulated(count="size(weight)", factor=8),
    ),
    channel_norm(  # normalization of each group of channels
        "group_norm",
        "relax.nn.group_norm",
        attributes={**CHANNEL_NORM_ATTRIBUTES, "num_groups": Range(1)},
        tolerance=Accumulated(count="size(data[1:]) // num_groups", factor=8, shifted="data"),
    ),
    channel_norm(  # normalization of each channel of each image
        "instance_norm",
        "relax.nn.instance_norm",
        attributes=CHANNEL_NORM_ATTRIBUTES,
        tolerance=Accumulated(count="size(data) // size(gamma)", factor=8, shifted="data"),
    ),
    softmax_like("log_softmax", "relax.nn.log_softmax"),  # logarithm of the softmax
    # ---- Activations -----------------------------------------------------------------------------
    limit("relu", "relax.nn.relu"),  # maximum of x and 0
    limit(  # limited to a range (also ReLU6)
        "clip",
        "relax.clip",
        attributes=anything("min", "max"),
        rules=(AtMost("attr.min", "attr.max"),),
    ),
    activation("sigmoid", "relax.sigmoid", tolerance=Elementwise(4)),  # 1 / (1 + exp(-x))
    activation("tanh", "relax.tanh", tolerance=Elementwise()),  # hyperbolic tangent
    activation(  # x times the normal distribution of x (the erf form)
        "gelu",
        "relax.nn.gelu",
        chains=(
            "0.5 * x * (1 + erf(x / 1.4142135623730951))",
            "x * (0.5 + 0.5 * erf(x / 1.4142135623730951))",
        ),
        tolerance=Accumulated("2"),
    ),
    activation(  # x times its sigmoid (swish)
        "silu",
        "relax.nn.silu",
        chains=("x * sigmoid(x)", "x / (1 + exp(-x))", "x * (1 / (1 + exp(-x)))"),
        tolerance=Elementwise(4),
    ),
    parametric(  # x, or a small multiple of it where it is negative
        "leakyrelu",
        "relax.nn.leakyrelu",
        attributes=anything("alpha"),
        tolerance=Elementwise(),
    ),
    Op(  # x, or a multiple of it by channel where it is negative
        "prelu",
        "relax.nn.prelu",
        inputs=(
            Input("data", FLOATS, range(1, 7)),
            Input("alpha", ranks=(1,), like="data", weight=True),
        ),
        attributes=anything("axis"),
        tolerance=Elementwise(),
    ),
    activation("selu", "relax.nn.selu", tolerance=Elementwise(atol=1e-06)),
    activation(  # x times an approximate normal distribution of x (the tanh form of GELU)
        "gelu_tanh",
        "relax.nn.gelu_tanh",
        chains=(
            ("t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))", "0.5 * x * (1 + t)"),
            ("t = tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x))", "0.5 * x * (1 + t)"),
        ),
        tolerance=Elementwise(atol=1e-06),
    ),
    parametric(  # log(1 + exp(x)), a smooth maximum of x and 0
        "softplus",
        "relax.nn.softplus",
        attributes={**anything("threshold"), "beta": Range(0.001)},
        chains=(
            ("b = data * beta", "where(b > threshold, data, log(1 + exp(b)) / beta)"),
            ("beta = 1", "where(data > threshold, data, log(1 + exp(data)))"),
            ("beta = 1", "threshold = 20", "relu(data) + log(1 + exp(-abs(data)))"),
        ),
        tolerance=Elementwise(atol=1e-06),
    ),
    activation(  # a line between 0 and 1
        "hard_sigmoid",
        attributes=anything("alpha", "beta"),
        chains=(
            "clip(x * alpha + beta, min=0, max=1)",
            ("alpha = 0.16666666666666667", "beta = 0.5", "clip(x + 3, min=0, max=6) / 6"),
        ),
        tolerance=Accumulated("4"),
    ),
    activation(  # x times hard_sigmoid with a slope of 1/6
        "hard_swish",
        chains=("x * clip(x + 3, min=0, max=6) / 6", "x * clip(x / 6 + 0.5, min=0, max=1)"),
        tolerance=Accumulated("4"),
    ),
    activation(  # x, and alpha * (exp(x) - 1) where it is negative
        "elu",
        attributes=anything("alpha"),
        chains=(
            "relu(x) - alpha * relu(1 - exp(x))",
            "-alpha * relu(1 - exp(x)) + relu(x)",
            "where(x > 0, x, alpha * (exp(x) - 1))",
            ("alpha = 1", "where(x > 0, x, exp(x) - 1)"),
            "where(x >= 0, x, alpha * (exp(x) - 1))",
            ("alpha = 1", "where(x >= 0, x, exp(x) - 1)"),
        ),
        tolerance=Accumulated("4"),
    ),
    activation(  # x * tanh(softplus(x))
        "mish",
        chains=(
            "x * tanh(log(1 + exp(x)))",
            ("s = log(1 + exp(x))", "x * tanh(where(x > 20, x, s))"),
            "x * tanh(relu(x) + log(1 + exp(-abs(x))))",
            "x * tanh(softplus(x, beta=1, threshold=20))",
        ),
        tolerance=Accumulated("4"),
    ),
    # ---- Element-wise arithmetic of two tensors --------------------------------------------------
    arithmetic("add", "relax.add"),  # sum of two tensors, broadcast
    arithmetic("subtract", "relax.subtract"),  # difference of two tensors, broadcast
    arithmetic("multiply", "relax.multiply"),  # product of two tensors, broadcast
    division("divide", "relax.divide"),  # quotient of two tensors, broadcast
    Op(  # x1 to the power of x2
        "power",
        "relax.power",
        inputs=(Input("x1", FLOATS, range(7)), Input("x2", ranks=range(7), like="x1")),
        tolerance=Elementwise(atol=1e-06),
    ),
    arithmetic("maximum", "relax.maximum"),  # the larger of two tensors, broadcast
    arithmetic("minimum", "relax.minimum"),  # the smaller of two tensors, broadcast
    division("floor_divide", "relax.floor_divide"),  # quotient rounded to the next lower integer
    division("mod", "relax.mod"),  # remainder with the sign of the dividend
    Op(  # remainder with the sign of the divisor
        "floor_mod",
        "relax.floor_mod",
        inputs=(Input("x1", WIDE, range(7)), Input("x2", ranks=range(7), like="x1")),
        tolerance=Elementwise(atol=1e-06),
    ),
    # ---- Reductions ------------------------------------------------------------------------------
    float_reduction(  # mean over axes
        "mean",
        "relax.mean",
        quantized=Quantized(inside="integers", dtypes=("int8", "uint8")),
    ),
    sum_like("sum", "relax.sum"),  # sum over axes
    extremum("max", "relax.max"),  # maximum over axes
    extremum("min", "relax.min"),  # minimum over axes
    sum_like("prod", "relax.prod"),  # product over axes
    float_reduction("variance", "relax.variance"),  # mean squared deviation from the mean over axes
    float_reduction("std", "relax.std"),  # standard deviation over axes
    index_of("argmax", "relax.argmax"),  # index of the first largest element
    index_of("argmin", "relax.argmin"),  # index of the first smallest element
    # ---- Shapes and layouts ----------------------------------------------------------------------
    view("reshape", "relax.reshape", attributes=anything("shape")),
    movement("permute_dims", "relax.permute_dims", attributes=anything("axes")),
    view("flatten", "relax.flatten"),  # all elements in one dimension
    Op(  # tensors one after the other along an axis
        "concat",
        "relax.concat",
        engine="memory",
        inputs=(Input("tensors", ALL, range(1, 7), is_tuple=True),),
        attributes=anything("axis"),
    ),
    Op(  # pad by a constant, or by reflecting, replicating or wrapping the data
        "pad",
        "relax.nn.pad",
        engine="memory",
        inputs=(Input("data", NOT_BOOL, range(1, 7)),),
        attributes={
            **anything("pad_value"),
            "pad_width": Range(0),
            "pad_mode": OneOf("constant", "reflect", "replicate", "circular"),
        },
    ),
    Op(  # channels to space
        "pixel_shuffle",
        "relax.nn.pixel_shuffle",
        engine="memory",
        inputs=(Input("data", ("float32", "float16", "int8", "uint8", "int16"), range(3, 7)),),
        attributes={"upscale_factor": Range(1)},
    ),
    view("expand_dims", "relax.expand_dims", attributes=anything("axis")),
    view("squeeze", "relax.squeeze", attributes=anything("axis")),  # remove dimensions of size 1
    Op(  # all dimensions but the first as one
        "batch_flatten",
        "relax.nn.batch_flatten",
        engine="memory",
        inputs=(Input("data", ALL, range(2, 7)),),
        operations="0",
    ),
    movement(  # parts of a tensor along an axis
        "split",
        "relax.split",
        attributes=anything("indices_or_sections", "axis"),
        operations="size(x)",
    ),
    Op(  # tensors side by side, along a new axis
        "stack",
        "relax.stack",
        engine="memory",
        inputs=(Input("tensors", ALL, range(6), is_tuple=True),),
        attributes=anything("axis"),
    ),
    movement(  # a range of each axis, with steps
        "strided_slice",
        "relax.strided_slice",
        attributes=anything("axes", "begin", "end", "strides", "assume_inbound"),
    ),
    Op(  # a tensor repeated as a whole
        "tile",
        "relax.tile",
        inputs=(Input("data", ALL, range(7)),),
        attributes={"repeats": Range(1)},
    ),
    Op(  # each element repeated along an axis
        "repeat",
        "relax.repeat",
        inputs=(Input("data", ALL, range(1, 7)),),
        attributes={**anything("axis"), "repeats": Range(1)},
    ),
    Op(  # a tensor repeated along its dimensions of size 1
        "broadcast_to",
        "relax.broadcast_to",
        inputs=(Input("x", ALL, range(7)),),
        attributes=anything("shape"),
    ),
    Op(  # an axis in reverse order
        "flip",
        "relax.flip",
        engine="memory",
        inputs=(Input("data", ALL, range(1, 7)),),
        attributes=anything("axis"),
    ),
    movement(  # axes in another order, split and joined
        "layout_transform",
        "relax.layout_transform",
        attributes=anything("index_map", "pad_value"),
    ),
    triangle("tril", "relax.tril"),  # the part of matrices below a diagonal
    triangle("triu", "relax.triu"),  # the part of matrices above a diagonal
    Op(  # a tensor with a range of an axis replaced, such as a cache of keys
        "slice_scatter",
        "relax.slice_scatter",
        engine="memory",
        inputs=(Input("input", ALL, range(1, 7)), Input("src", ranks=range(1, 7), like="input")),
        attributes={**anything("axis"), **only(step=1), "start": Range(0), "end": Range(0)},
    ),
    # ---- Element-wise functions of one tensor ----------------------------------------------------
    transcendental("erf", "relax.erf"),  # the error function
    of_signed("abs", "relax.abs"),  # the value without its sign
    exact("ceil", "relax.ceil"),  # the next higher integer
    exact("floor", "relax.floor"),  # the next lower integer
    exact("round", "relax.round"),  # the nearest integer, halves to even
    exact("trunc", "relax.trunc"),  # the integer part
    transcendental("exp", "relax.exp"),  # e to the power of x
    transcendental("log", "relax.log"),  # natural logarithm
    root("sqrt", "relax.sqrt"),  # square root
    root("rsqrt", "relax.rsqrt"),  # 1 / sqrt(x)
    Op("square", "relax.square", inputs=(Input("x", WIDE, range(7)),), tolerance=Elementwise()),
    of_signed("negative", "relax.negative"),  # -x
    of_signed("sign", "relax.sign"),  # -1, 0 or 1 as x is negative, zero or positive
    transcendental("sin", "relax.sin"),  # sine
    transcendental("cos", "relax.cos"),  # cosine
    transcendental("tan", "relax.tan"),  # tangent
    transcendental("atan", "relax.atan"),  # inverse tangent
    # ---- Comparisons, logic and selection --------------------------------------------------------
    negation("logical_not", "relax.logical_not"),  # true where x is false
    equality("equal", "relax.equal"),  # true where both are equal
    equality("not_equal", "relax.not_equal"),  # true where both differ
    order("less", "relax.less"),  # true where x1 is less
    order("less_equal", "relax.less_equal"),  # true where x1 is not more
    order("greater", "relax.greater"),  # true where x1 is more
    order("greater_equal", "relax.greater_equal"),  # true where x1 is not less
    logical("logical_and", "relax.logical_and"),  # true where both are
    logical("logical_or", "relax.logical_or"),  # true where one is
    logical("logical_xor", "relax.logical_xor"),  # true where one is, but not both
    logical("bitwise_and", "relax.bitwise_and"),  # true where both are (of bools only)
    logical("bitwise_or", "relax.bitwise_or"),  # true where one is (of bools only)
    logical("bitwise_xor", "relax.bitwise_xor"),  # true where one is, but not both (of bools only)
    negation("bitwise_not", "relax.bitwise_not"),  # true where x is false (of bools only)
    Op(  # x1 where a condition is true, elsewhere x2
        "where",
        "relax.where",
        inputs=(
            Input("condition", ("bool",), range(7)),
            Input("x1", ALL, range(7)),
            Input("x2", ranks=range(7), like="x1"),
        ),
        output_dtypes=ALL,
    ),
    # ---- Conversion and filled tensors -----------------------------------------------------------
    Op(  # the same numbers in another type; real numbers lose their fraction
        "astype",
        "relax.astype",
        inputs=(Input("x", ALL, range(7)),),
        attributes={"dtype": OneOf(*ALL)},
        output_dtypes=ALL,
    ),
    Op(  # one number in the shape of another tensor
        "full_like",
        "relax.full_like",
        inputs=(Input("x", ALL, range(7)), Input("fill_value", ALL, (0,))),
        attributes={"dtype": OneOf("", *ALL)},
        output_dtypes=ALL,
    ),
    filled("zeros_like", "relax.zeros_like"),  # zeros in the shape of another tensor
    filled("ones_like", "relax.ones_like"),  # ones in the shape of another tensor
    # ---- Attention -------------------------------------------------------------------------------
    packed_attention(  # softmax of queries times keys times values, per head
        "attention",
        "relax.nn.attention",
        inputs=(
            Input("query", FLOATS, (4,)),
            Input("key", ranks=(4,), like="query"),
            Input("value", ranks=(4,), like="query"),
        ),
        chains=(
            (
                "q = permute_dims(query, axes=[0, 2, 1, 3])",
                "k = permute_dims(key, axes=[0, 2, 3, 1])",
                "v = permute_dims(value, axes=[0, 2, 1, 3])",
                "w = softmax(matmul(q, k) * optional(scale), axis=-1)",
                "permute_dims(matmul(w, v), axes=[0, 2, 1, 3])",
            ),
        ),
    ),
    packed_attention(  # softmax of queries times keys, plus a bias, times values, per head
        "attention_bias",
        "relax.nn.attention_bias",
        inputs=(
            Input("query", FLOATS, (4,)),
            Input("key", ranks=(4,), like="query"),
            Input("value", ranks=(4,), like="query"),
            Input("bias", ranks=(4,), like="query"),
        ),
        chains=(
            (
                "q = permute_dims(query, axes=[0, 2, 1, 3])",
                "k = permute_dims(key, axes=[0, 2, 3, 1])",
                "v = permute_dims(value, axes=[0, 2, 1, 3])",
                "w = softmax(matmul(q, k) * optional(scale) + bias, axis=-1)",
                "permute_dims(matmul(w, v), axes=[0, 2, 1, 3])",
            ),
        ),
    ),
    split_attention(  # softmax of queries times keys, times values, with heads before the sequence
        "sdpa",
        inputs=(
            Input("query", FLOATS, range(2, 7)),
            Input("key", ranks=range(2, 7), like="query"),
            Input("value", ranks=range(2, 7), like="query"),
        ),
        chains=(
            (
                "k = permute_dims(key, axes=[..., -1, -2])",
                "w = softmax(matmul(query, k) * optional(scale), axis=-1)",
                "matmul(w, value)",
            ),
        ),
    ),
    split_attention(  # sdpa with a bias on the scores
        "sdpa_bias",
        inputs=(
            Input("query", FLOATS, range(2, 7)),
            Input("key", ranks=range(2, 7), like="query"),
            Input("value", ranks=range(2, 7), like="query"),
            Input("bias", ranks=range(7), like="query"),
        ),
        chains=(
            (
                "k = permute_dims(key, axes=[..., -1, -2])",
                "w = softmax(matmul(query, k) * optional(scale) + bias, axis=-1)",
                "matmul(w, value)",
            ),
        ),
    ),
    split_attention(  # sdpa of the scores where a mask is true, and a number elsewhere
        "sdpa_masked",
        inputs=(
            Input("query", FLOATS, range(2, 7)),
            Input("key", ranks=range(2, 7), like="query"),
            Input("value", ranks=range(2, 7), like="query"),
            Input("mask", ("bool",), range(1, 7)),
            Input("fill", ranks=range(7), like="query"),
        ),
        chains=(
            (
                "k = permute_dims(key, axes=[..., -1, -2])",
                "w = softmax(where(mask, matmul(query, k) * optional(scale), fill), axis=-1)",
                "matmul(w, value)",
            ),
        ),
    ),
    split_attention(  # sdpa of the scores where a mask is false, and a number elsewhere
        "sdpa_masked_fill",
        inputs=(
            Input("query", FLOATS, range(2, 7)),
            Input("key", ranks=range(2, 7), like="query"),
            Input("value", ranks=range(2, 7), like="query"),
            Input("mask", ("bool",), range(1, 7)),
            Input("fill", ranks=range(7), like="query"),
        ),
        chains=(
            (
                "k = permute_dims(key, axes=[..., -1, -2])",
                "w = softmax(where(mask, fill, matmul(query, k) * optional(scale)), axis=-1)",
                "matmul(w, value)",
            ),
        ),
    ),
    # ---- Scans and sorting -----------------------------------------------------------------------
    cumulative("cumsum", "relax.cumsum"),  # running sum along an axis
    cumulative("cumprod", "relax.cumprod"),  # running product along an axis
    Op(  # the largest or smallest elements along an axis
        "topk",
        "relax.topk",
        inputs=(Input("data", WIDE, range(1, 7)),),
        attributes={
            **anything("k", "axis", "largest"),
            "ret_type": OneOf("both", "values", "indices"),
            "dtype": OneOf("int32", "int64"),
        },
        operations="size(data)",
        output_dtypes=WIDE,
    ),
    Op(  # elements in order along an axis
        "sort",
        "relax.sort",
        inputs=(Input("data", WIDE, range(1, 7)),),
        attributes=anything("axis", "descending"),
    ),
    Op(  # indices of the elements in order along an axis
        "argsort",
        "relax.argsort",
        inputs=(Input("data", WIDE, range(1, 7)),),
        attributes={**anything("axis", "descending"), "dtype": OneOf("int32", "int64")},
        output_dtypes=("int32", "int64"),
    ),
    # ---- Images ----------------------------------------------------------------------------------
    Op(  # resized images, by the nearest pixel or interpolated
        "resize2d",
        "relax.image.resize2d",
        engine="matrix",
        inputs=(Input("data", ("float32", "float16", "int8", "uint8", "int16"), (4,)),),
        attributes={
            **anything("size", "roi", "cubic_alpha", "cubic_exclude", "extrapolation_value"),
            **only(out_dtype=""),
            "layout": OneOf("NCHW", "NHWC"),
            "method": OneOf("nearest_neighbor", "linear", "cubic"),
            "coordinate_transformation_mode": OneOf(
                "half_pixel",
                "pytorch_half_pixel",
                "asymmetric",
                "align_corners",
                "tf_half_pixel_for_nn",
                "tf_crop_and_resize",
            ),
            "rounding_method": OneOf(
                "",
                "round",
                "round_prefer_floor",
                "round_prefer_ceil",
                "floor",
                "ceil",
            ),
        },
        rules=(
            Equal("attr.method", "nearest_neighbor", INTEGERS),
            NotEqual("attr.coordinate_transformation_mode", "tf_crop_and_resize", INTEGERS),
        ),
        operations="4 * size(out)",
        quantized=Quantized(inside="reals", dtypes=("int8", "uint8")),
        tolerance=Accumulated("16"),
    ),
    # ---- Lookup by index -------------------------------------------------------------------------
    Op(  # slices by their indices, such as rows of an embedding
        "take",
        "relax.take",
        engine="memory",
        inputs=(Input("x", ALL, range(1, 7)), Input("indices", ("int64", "int32"), range(5))),
        attributes={**anything("axis"), "mode": OneOf("fast", "clip", "wrap")},
    ),
    Op(  # elements by their indices along an axis
        "gather_elements",
        "relax.gather_elements",
        engine="memory",
        inputs=(Input("data", ALL, range(1, 7)), Input("indices", ("int64", "int32"), range(1, 7))),
        attributes=anything("axis"),
    ),
    Op(  # slices by indices of several dimensions
        "gather_nd",
        "relax.gather_nd",
        engine="memory",
        inputs=(Input("data", ALL, range(1, 7)), Input("indices", ("int64",), range(1, 7))),
        attributes={"batch_dims": Range(0)},
    ),
    Op(  # one-hot vectors, by index
        "one_hot",
        "relax.one_hot",
        inputs=(Input("indices", ("int64", "int32"), range(6)),),
        attributes={**anything("on_value", "off_value", "axis"), "depth": Range(1)},
        output_dtypes=ALL,
    ),
    scatter(  # elements at their indices along an axis replaced, or combined with others
        "scatter_elements",
        "relax.scatter_elements",
        inputs=(
            Input("data", ALL, range(1, 7)),
            Input("indices", ("int64", "int32"), range(1, 7)),
            Input("updates", ranks=range(1, 7), like="data"),
        ),
        attributes={**anything("axis"), "reduction": OneOf("update", "add", "mul", "max", "min")},
        operations="size(data) * indices[axis]",
        tolerance=Accumulated("indices[axis] + 1"),
    ),
    scatter(  # slices at indices of several dimensions replaced, or combined with others
        "scatter_nd",
        "relax.scatter_nd",
        inputs=(
            Input("data", ALL, range(1, 7)),
            Input("indices", ("int64",), range(1, 7)),
            Input("updates", ranks=range(7), like="data"),
        ),
        attributes={"reduction": OneOf("update", "add", "mul", "max", "min")},
        operations="size(data) * max(size(indices) // indices[-1], 1)",
        tolerance=Accumulated("size(indices) // indices[-1] + 1"),
    ),
    Op(  # slices replaced at positions, such as rows of a cache by new ones
        "state_update",
        engine="memory",
        inputs=(
            Input("data", ALL, range(1, 7)),
            Input("value", ranks=range(7), like="data"),
            Input("positions", ("int64", "int32"), range(7)),
        ),
        attributes=anything("axis"),
        operations="size(value)",
        emitted_by="update",
    ),
    # ---- Quantization ----------------------------------------------------------------------------
    Op(  # real numbers to integers of 8 or 16 bits, by scale and zero point
        "quantize",
        "relax.quantize",
        inputs=(
            Input("data", FLOATS, range(1, 7)),
            Input("scale", FLOATS, range(2), weight=True),
            Input("zero_point", ("int8", "uint8", "int16", "int32"), range(2), weight=True),
        ),
        attributes={**anything("axis"), "out_dtype": OneOf(*INTEGERS)},
        output_dtypes=INTEGERS,
        quantized=Quantized(inside="integers", dtypes=("int8", "uint8")),
        tolerance=Buckets(0),
    ),
    Op(  # integers of 8 or 16 bits to real numbers, by scale and zero point
        "dequantize",
        "relax.dequantize",
        inputs=(
            Input("data", INTEGERS, range(1, 7)),
            Input("scale", FLOATS, range(2), weight=True),
            Input("zero_point", ("int8", "uint8", "int16", "int32"), range(2), weight=True),
        ),
        attributes={**anything("axis"), "out_dtype": OneOf(*FLOATS)},
        output_dtypes=FLOATS,
        tolerance=Elementwise(),
    ),
)
"""The ops, in the order in which patterns are tried: of equal matches, the later one wins."""
