# SPDX-License-Identifier: Apache-2.0
"""Imports quantized TFLite models, which are written here without TensorFlow.

The reference computes with floats in NumPy, channels last, and quantizes each result.
"""

from collections import namedtuple

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from support import compile_for, host_library, needs
from tflite_file import RELU, RELU6, SAME, VALID, File, tflite

pytestmark = pytest.mark.usefixtures("bound_constants")

Integers = namedtuple("Integers", "values scale zero axis", defaults=(0, 0))
Result = namedtuple("Result", "dtype scale zero", defaults=(None, 0))


def real(integers):
    values, scale, zero, axis = integers
    shape = [-1 if index == axis else 1 for index in range(values.ndim)]
    return (values.astype("float64") - zero) * (
        scale if np.ndim(scale) == 0 else scale.reshape(shape)
    )


class Network:
    """A model, and the reference values of its tensors."""

    def __init__(self, seed=0):
        self.file, self.random = File(), np.random.default_rng(seed)
        self.inputs, self.arguments, self.known, self.result = [], [], {}, None

    def integers(self, *shape, dtype="int8", scale=0.02, zero=0, axis=None):
        """Random integers, with a scale for each channel along an axis."""
        ends = np.iinfo(dtype)
        values = self.random.integers(ends.min, ends.max + 1, shape).astype(dtype)
        if axis is not None:
            scale = scale * self.random.uniform(0.5, 1, shape[axis])
        return Integers(values, np.float32(scale), zero, axis or 0)

    def input(self, *shape, zero=3, **options):
        """Add an input of random integers; return its number."""
        return self.add(self.integers(*shape, zero=zero, **options), constant=False)

    def bias(self, data, weight, dtype="int32"):
        """A bias for data and weight, which have scales."""
        scale = np.atleast_1d(np.float32(data.scale) * weight.scale)
        values = self.random.integers(-3000, 3000, weight.values.shape[weight.axis])
        return Integers(values.astype(dtype), scale if scale.size > 1 else scale[0])

    def add(self, operand, constant=True):
        """Add a tensor, as a constant or as an input of the model; return its number."""
        if isinstance(operand, int):
            return operand
        values, *parameters = operand if isinstance(operand, Integers) else [np.asarray(operand)]
        data = values if constant else None
        number = self.file.tensor(values.shape, str(values.dtype), *parameters, data=data)
        self.known[number] = real(operand) if parameters else values
        if not constant:
            self.inputs.append(number)
            self.arguments.append(values)
        return number

    def op(self, name, compute, operands, result, kind="", **options):
        """Append an operator; return the number of its result, or of each if they are a list."""
        numbers = [self.add(item) for item in operands]
        values = compute(*(self.known[number] for number in numbers))
        several = isinstance(values, list)
        values = values if several else [np.asarray(values)]
        outputs = [self.file.tensor(value.shape, *result) for value in values]
        self.file.operator(name, numbers, outputs, kind, **options)
        for output, value in zip(outputs, values, strict=True):
            self.known[output] = value
            self.result = value.astype(result.dtype)
            if result.scale is not None:
                ends, scale = np.iinfo(result.dtype), np.float32(result.scale)
                steps = np.clip(np.rint(value / scale) + result.zero, ends.min, ends.max)
                self.result = steps.astype(result.dtype)
                self.known[output] = real(Integers(self.result, scale, result.zero))
        return outputs if several else outputs[0]

    def read(self, output):
        """Return the module that the importer makes of it."""
        return backend.from_tflite(self.file.finish(self.inputs, [output]))


def windows(x, kernel, stride, padding):
    """Return an image's windows, in the last two axes, and which of their elements are padding."""
    padded, inside = np.asarray(x, "float64"), np.ones_like(x)
    if padding == SAME:
        widths = [(0, 0)]
        for size, width in zip(x.shape[1:3], kernel, strict=True):
            total = max((-(-size // stride) - 1) * stride + width - size, 0)
            widths.append((total // 2, total - total // 2))
        padded, inside = (np.pad(item, [*widths, (0, 0)]) for item in (padded, inside))
    view = np.lib.stride_tricks.sliding_window_view
    found = (view(item, kernel, (1, 2))[:, ::stride, ::stride] for item in (padded, inside))
    return tuple(found)


def convolution(stride=1, padding=SAME, most=np.inf, least=-np.inf):
    def compute(x, weight, bias=0):
        seen, _ = windows(x, weight.shape[1:3], stride, padding)
        sums = np.einsum("nhwckl,oklc->nhwo", seen, weight) + bias
        return np.clip(sums, least, most)

    return compute


def depthwise(x, weight, bias=0):
    seen, _ = windows(x, weight.shape[1:3], 1, SAME)
    times = weight.shape[3] // x.shape[3]
    return np.einsum("nhwckl,klc->nhwc", np.repeat(seen, times, 3), weight[0]) + bias


def average(x):
    seen, inside = windows(x, (3, 3), 2, SAME)
    return seen.sum((-1, -2)) / inside.sum((-1, -2))


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


CONV = {"Padding": SAME, "StrideH": 1, "StrideW": 1}
CONV |= {"DilationHFactor": 1, "DilationWFactor": 1}
POOL = {"Padding": SAME, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 3}


def append_network(net):
    """Append the blocks of a small classifier; return its result."""
    x = net.integers(1, 8, 8, 4, zero=3)
    weight = net.integers(8, 3, 3, 4, scale=0.01, axis=0)
    first = net.op(
        "CONV_2D",
        convolution(least=0, most=6),
        [net.add(x, constant=False), weight, net.bias(x, weight)],
        six := Result("int8", 6 / 255, -128),
        "Conv2DOptions",
        **CONV,
        FusedActivationFunction=RELU6,
    )
    weight = net.integers(1, 3, 3, 8, scale=0.01, axis=3)
    other = net.op(
        "DEPTHWISE_CONV_2D",
        depthwise,
        [first, weight, net.bias(six, weight)],
        Result("int8", 0.08, -5),
        "DepthwiseConv2DOptions",
        **CONV,
        DepthMultiplier=1,
    )
    total = net.op(
        "ADD",
        lambda a, b: np.maximum(a + b, 0),
        [first, other],
        Result("int8", 0.05, -120),
        "AddOptions",
        FusedActivationFunction=RELU,
    )
    pooled = net.op(
        "AVERAGE_POOL_2D", average, [total], Result("int8", 0.05, -120), "Pool2DOptions", **POOL
    )
    shape = np.array([1, 128], "int32")
    flat = net.op(
        "RESHAPE", lambda x, shape: x.reshape(shape), [pooled, shape], Result("int8", 0.05, -120)
    )
    weight = net.integers(10, 128, scale=0.001, axis=0)
    scores = net.op(
        "FULLY_CONNECTED",
        lambda x, weight, bias: x @ weight.T + bias,
        [flat, weight, net.bias(Result("int8", 0.05), weight)],
        Result("int8", 0.03, 3),
        "FullyConnectedOptions",
    )
    return net.op(
        "SOFTMAX", softmax, [scores], Result("int8", 1 / 256, -128), "SoftmaxOptions", Beta=1
    )


def run(program, arguments):
    found = relax.VirtualMachine(program, tvm.cpu())["main"](*map(tvm.runtime.tensor, arguments))
    return found.numpy()


@needs("conv2d", "depthwise_conv2d", "add", "avg_pool2d", "matmul", "softmax", "reshape")
@needs("permute_dims", "quantize", "dequantize")
def test_a_network_is_integers_throughout():
    support.skip_without_integers("conv2d", "depthwise_conv2d", "matmul")
    net = Network()
    mod = net.read(append_network(net))
    report = support.placement(support.partition_for(mod), "main")
    (labels,) = report.regions
    assert sorted(labels) == sorted(
        [
            *("permute_dims", "quantized_conv2d_bias", "quantized_depthwise_conv2d_bias"),
            *("quantized_add_relu", "quantized_avg_pool2d", "permute_dims", "reshape"),
            *("quantized_matmul_bias", "quantized_softmax"),
        ]
    )
    found = run(compile_for(mod), net.arguments)
    assert len(np.unique(net.result)) > 4
    # A tie may round the other way in each layer.
    assert np.abs(found.astype(int) - net.result).max() <= 3


# ---- Single operators, on the host --------------------------------------------------------------

BYTE = Result("int8", 0.02, 3)
"""Operators whose result has the scale of their input."""


def conv(padding=SAME, stride=1, **weight):
    def append(net):
        weights = net.integers(8, 3, 3, 4, scale=0.01, **weight)
        operands = [net.input(1, 7, 6, 4), weights, net.bias(BYTE, weights)]
        options = {**CONV, "Padding": padding, "StrideH": stride, "StrideW": stride}
        result = Result("uint8", 0.2, 100)
        compute = convolution(stride, padding)
        return net.op("CONV_2D", compute, operands, result, "Conv2DOptions", **options)

    return append


def depthwise_conv(channels, times, **weight):
    def append(net):
        weights = net.integers(1, 3, 3, channels * times, scale=0.01, **weight)
        operands = [net.input(2, 5, 5, channels), weights, net.bias(BYTE, weights)]
        return net.op(
            "DEPTHWISE_CONV_2D",
            depthwise,
            operands,
            Result("int8", 0.1),
            "DepthwiseConv2DOptions",
            **CONV,
            DepthMultiplier=times,
        )

    return append


def conv_of_int16(net):
    x = net.input(1, 6, 6, 4, dtype="int16", scale=1e-4, zero=0)
    weights = net.integers(8, 1, 1, 4, scale=0.01, axis=0)
    operands = [x, weights, net.bias(Result("int16", 1e-4), weights, "int64")]
    return net.op(
        "CONV_2D", convolution(), operands, Result("int16", 5e-4), "Conv2DOptions", **CONV
    )


def transposed_conv(net):
    def compute(shape, weight, x):
        result = np.zeros((1, 8, 8, 6))
        for row, column in np.ndindex(2, 2):
            result[:, row::2, column::2] = np.einsum("nhwc,oc->nhwo", x, weight[:, row, column])
        return result

    weights = net.integers(6, 2, 2, 4, scale=0.01, axis=0)
    operands = [np.array([1, 8, 8, 6], "int32"), weights, net.input(1, 4, 4, 4)]
    options = {"Padding": VALID, "StrideH": 2, "StrideW": 2}
    result = Result("int8", 0.05)
    return net.op("TRANSPOSE_CONV", compute, operands, result, "TransposeConvOptions", **options)


def real_data(net):
    """Quantize only the weights."""
    x = net.add(net.random.standard_normal((3, 16)).astype("float32"), constant=False)
    operands = [x, net.integers(5, 16, scale=0.01, axis=0)]
    result = Result("float32")
    return net.op(
        "FULLY_CONNECTED", lambda x, w: x @ w.T, operands, result, "FullyConnectedOptions"
    )


def matmul(net):
    operands = [net.input(2, 3, 4, 8), net.input(2, 3, 5, 8)]
    compute = lambda a, b: a @ b.swapaxes(-1, -2)  # noqa: E731
    result = Result("int8", 0.1)
    return net.op("BATCH_MATMUL", compute, operands, result, "BatchMatMulOptions", AdjY=True)


def joined(net):
    parts = [net.input(1, 4, 4, 3), net.input(1, 4, 4, 2, dtype="uint8", scale=0.03, zero=128)]
    result, axis = Result("int8", 0.03), {"Axis": 3}
    join = lambda *parts: np.concatenate(parts, 3)  # noqa: E731
    return net.op("CONCATENATION", join, parts, result, "ConcatenationOptions", **axis)


def split(net):
    operands = [np.array(3, "int32"), net.input(1, 4, 4, 6)]
    halves = lambda axis, x: np.split(x, 2, axis)  # noqa: E731
    one, other = net.op("SPLIT", halves, operands, BYTE, "SplitOptions", NumSplits=2)
    return net.op("SUB", np.subtract, [one, other], Result("int8", 0.03), "SubOptions")


def operator(name, compute, result=BYTE, kind="", constants=(), **options):
    def append(net):
        others = [item(net) if callable(item) else np.array(item, "int32") for item in constants]
        operands = [net.input(1, 6, 5, 4), *others]
        return net.op(name, compute, operands, result, kind, **options)

    return append


def logistic(x):
    return 1 / (1 + np.exp(-x))


CASES = {
    "conv2d": conv(axis=0),
    "conv2d, strides": conv(VALID, 2, axis=0),
    "conv2d, uint8, one scale": conv(dtype="uint8", zero=130),
    "conv2d, int16": conv_of_int16,
    "depthwise": depthwise_conv(4, 1, axis=3),
    "depthwise, one scale": depthwise_conv(4, 1),
    "depthwise, two for each channel": depthwise_conv(4, 2, axis=3),
    "depthwise, one channel": depthwise_conv(1, 3, axis=3),
    "transposed convolution": transposed_conv,
    "fully connected, real data": real_data,
    "matmul": matmul,
    "concatenation": joined,
    "split": split,
    "average pool": operator("AVERAGE_POOL_2D", average, BYTE, "Pool2DOptions", **POOL),
    "max pool": operator(
        "MAX_POOL_2D",
        lambda x: np.where((seen := windows(x, (3, 3), 2, SAME))[1], seen[0], -99).max((-1, -2)),
        BYTE,
        "Pool2DOptions",
        **POOL,
    ),
    "mean": operator(
        "MEAN",
        lambda x, axes: x.mean(tuple(axes)),
        Result("int8", 0.005, -3),
        "ReducerOptions",
        [[1, 2]],
    ),
    "pad": operator("PAD", np.pad, BYTE, "PadOptions", [[[0, 0], [1, 2], [0, 1], [0, 0]]]),
    "transpose": operator("TRANSPOSE", np.transpose, BYTE, "TransposeOptions", [[0, 2, 3, 1]]),
    "slice": operator(
        "STRIDED_SLICE",
        lambda x, *_: x[:, 1:5:2, :, 2:],
        BYTE,
        "StridedSliceOptions",
        [[0, 1, 0, 2], [1, 5, 5, 4], [1, 2, 1, 1]],
    ),
    "resize": operator(
        "RESIZE_NEAREST_NEIGHBOR",
        lambda x, _: x.repeat(2, 1).repeat(2, 2),
        BYTE,
        "ResizeNearestNeighborOptions",
        [[12, 10]],
    ),
    "reshape to another scale": operator(
        "RESHAPE", lambda x, shape: x.reshape(shape), Result("uint8", 0.03, 128), "", [[6, 20]]
    ),
    "multiply": operator(
        "MUL",
        np.multiply,
        Result("int8", 0.03),
        "MulOptions",
        [lambda net: net.integers(4, scale=0.01)],
    ),
    "prelu": operator(
        "PRELU",
        lambda x, slope: np.where(x < 0, x * slope, x),
        Result("int8", 0.03),
        "",
        [lambda net: net.integers(1, 1, 4, scale=0.01)],
    ),
    "sigmoid": operator("LOGISTIC", logistic, Result("int8", 1 / 256, -128)),
    "hard swish": operator(
        "HARD_SWISH", lambda x: x * np.clip(x + 3, 0, 6) / 6, Result("int8", 0.02, -100)
    ),
    "requantize": operator("QUANTIZE", np.array, Result("uint8", 0.015, 128), "QuantizeOptions"),
    "dequantize": operator("DEQUANTIZE", np.array, Result("float32"), "DequantizeOptions"),
    "argmax": operator(
        "ARG_MAX",
        lambda x, axis: x.argmax(int(axis)),
        Result("int64"),
        "ArgMaxOptions",
        [3],
        OutputType=tflite.TensorType.INT64,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_an_operator_equals_its_float_reference(name):
    net = Network()
    mod = net.read(CASES[name](net))
    found = run(host_library(mod), net.arguments)
    assert (found.shape, str(found.dtype)) == (net.result.shape, str(net.result.dtype))
    assert len(np.unique(net.result)) > 3
    # Only float sums near a tie may round to the neighbour.
    step = 1e-4 if found.dtype.kind == "f" else 1
    difference = np.abs(found.astype("float64") - net.result)
    assert difference.max() <= step and np.mean(difference > 0.5) < 0.02


# ---- What is refused ----------------------------------------------------------------------------


def test_a_quantized_operator_that_is_not_converted_is_named():
    net = Network()
    sums = operator("CUMSUM", lambda x, _: x.cumsum(3), BYTE, "CumsumOptions", [3])
    text = r"CUMSUM \(operator 0, tensor 't2'\) .*'t0'.*supported.*CONV_2D"
    with pytest.raises(ValueError, match=text):
        net.read(sums(net))


def test_a_file_that_is_not_a_model_is_refused(tmp_path):
    (tmp_path / "model.tflite").write_bytes(b"no model at all")
    with pytest.raises(ValueError, match="not a TFLite model.*TFL3"):
        backend.from_tflite(tmp_path / "model.tflite")
    with pytest.raises(ValueError, match="type int; supported are"):
        backend.from_tflite(3)
