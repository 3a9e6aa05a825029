# SPDX-License-Identifier: Apache-2.0
"""Each TFLite operator that is read, with its options, computes what LiteRT computes."""

import itertools
from collections import namedtuple
from functools import cache

import numpy as np
import pytest
from tvm import relax

import backend
from backend.engine.backend.importers.tflite.operators import _CONVERTED, Converter
from backend.engine.workbench.conformance.imported import Imported
from support import SELECTED, run_together
from tflite_file import RELU, RELU6, SAME, TYPES, VALID, File, litert, tflite

RELU_N1_TO_1 = tflite.ActivationFunctionType.RELU_N1_TO_1
ACTIVATIONS = (RELU, RELU6, RELU_N1_TO_1)
NUMBERS = ("float32", "int32", "int64")
RANDOM = np.random.default_rng(0)
Constant = namedtuple("Constant", "values")
Case = namedtuple("Case", "operator operands kind results options")
CASES, MARKS = [], []


def case(operator, operands, kind="", results=None, **options):
    """Add a case of the thorough tests: inputs, constants and None, and the types of results."""
    CASES.append(Case(operator, operands, kind, results, options))
    MARKS.append(pytest.mark.thorough)


def quick(*arguments, **options):
    """Add a case of the quick tests."""
    case(*arguments, **options)
    MARKS[-1] = ()


def x(*shape, dtype="float32"):
    """Return numbers of both signs."""
    if dtype == "float32":
        return (2 * RANDOM.standard_normal(shape)).astype(dtype)
    least = 0 if dtype in ("bool", "uint8") else -20
    return RANDOM.integers(least, 2 if dtype == "bool" else 20, shape).astype(dtype)


def c(values, dtype="int32"):
    """Return a constant, of random numbers if a tuple is given."""
    if isinstance(values, tuple):
        values = x(*values, dtype=dtype if dtype != "int32" else "float32")
        return Constant(values)
    return Constant(np.asarray(values, dtype))


def array(values, dtype="float32"):
    return np.array(values, dtype)


def positive(*shape):
    return np.abs(x(*shape)) + np.float32(0.5)


# ---- The table ----------------------------------------------------------------------------------


def elementwise():
    for name in ("Add", "Sub", "Mul", "Div"):
        kind, operator = f"{name}Options", name.upper()
        for fused in ACTIVATIONS:
            case(operator, [x(2, 3), x(2, 3)], kind, FusedActivationFunction=fused)
        case(operator, [x(2, 3), c((3,))], kind)
        case(operator, [c((2, 3)), x(3)], kind)
        for dtype in ("int32", "int64")[: 1 if name == "Div" else 2]:
            case(operator, [x(2, 3, dtype=dtype), c([3, -2, 5], dtype)], kind)
        divisors = c([3, -2, 5])
        case(operator, [x(2, 3, dtype="int32"), divisors], kind, FusedActivationFunction=RELU)
    quick("ADD", [x(2, 3), x(2, 3)], "AddOptions", FusedActivationFunction=RELU_N1_TO_1)
    quick("MUL", [x(2, 3, dtype="int64"), c([3, -2, 5], "int64")], "MulOptions")
    case("ADD_N", [x(2, 3), x(2, 3), x(2, 3)], "AddNOptions")
    ends = array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0, 30, 1e-7, 8])
    for name in (
        *("ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOGISTIC", "NEG", "RELU"),
        *("RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "ROUND", "SIGN", "SIN", "SQUARE", "TANH"),
        "ZEROS_LIKE",
    ):
        case(name, [x(3, 4)])
        case(name, [ends])
    for name in ("LOG", "RSQRT", "SQRT"):
        case(name, [positive(3, 4)])
    for name in ("ABS", "NEG", "SIGN", "ZEROS_LIKE"):
        case(name, [x(3, 4, dtype="int32")])
    case("NEG", [x(3, 4, dtype="int64")], "NegOptions")
    for name in ["EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"]:
        for dtype in NUMBERS:
            case(name, [x(3, 4, dtype=dtype), x(4, dtype=dtype)], results=["bool"])
    for name in ("EQUAL", "NOT_EQUAL"):
        quick(name, [x(3, 4, dtype="bool"), x(3, 4, dtype="bool")], results=["bool"])
    for name in ("MAXIMUM", "MINIMUM", "FLOOR_DIV", "FLOOR_MOD", "SQUARED_DIFFERENCE"):
        case(name, [x(3, 4), positive(4)])
        case(name, [x(3, 4, dtype="int32"), array([3, -3, 7, -7], "int32")])
    quick("SQUARED_DIFFERENCE", [x(3, 4, dtype="int32"), x(3, 4, dtype="int32")])
    quick("SQUARE", [x(3, 4)])
    for name in ("MAXIMUM", "MINIMUM", "FLOOR_MOD"):
        case(name, [x(3, 4, dtype="int64"), array([3, -3, 7, -7], "int64")])
    quick("POW", [positive(3, 4), x(4)])
    case("ATAN2", [x(3, 4), x(3, 4)])
    for name in ("LOGICAL_AND", "LOGICAL_OR"):
        case(name, [x(3, 4, dtype="bool"), x(4, dtype="bool")])
    case("LOGICAL_NOT", [x(3, 4, dtype="bool")])
    for dtype in ("int8", "int32"):
        case("BITWISE_XOR", [x(3, 4, dtype=dtype), x(3, 4, dtype=dtype)])
        case("RIGHT_SHIFT", [x(3, 4, dtype=dtype), np.abs(x(3, 4, dtype=dtype)) % 5])
    for name in ("ADD", "MAXIMUM", "MINIMUM", "MULTIPLY"):
        for dtype in ("float32", "int32"):
            case(f"STABLEHLO_{name}", [x(3, 4, dtype=dtype), x(3, 4, dtype=dtype)])


def functions():
    for beta in (1.0, 0.5, 2.0):
        case("SOFTMAX", [x(2, 3, 4)], "SoftmaxOptions", Beta=beta)
    quick("SOFTMAX", [x(3, 4)], "SoftmaxOptions", Beta=0.3)
    case("SOFTMAX", [x(5)], "SoftmaxOptions", Beta=1.0)
    case("LOG_SOFTMAX", [x(2, 3, 4)], "LogSoftmaxOptions")
    case("GELU", [x(3, 4)], "GeluOptions")
    quick("GELU", [x(3, 4)], "GeluOptions", Approximate=True)
    for alpha in (0.1, 0.0, 1.5):
        case("LEAKY_RELU", [x(3, 4)], "LeakyReluOptions", Alpha=alpha)
    for shape in ((1, 1, 2), (3, 4, 2), (2,)):
        case("PRELU", [x(1, 3, 4, 2), c(shape)])
    case("L2_NORMALIZATION", [x(1, 2, 3, 4)], "L2NormOptions")
    case("L2_NORMALIZATION", [np.zeros((3, 4), "float32")], "L2NormOptions")
    quick("L2_NORMALIZATION", [x(3, 4) * np.float32(1e-7)], "L2NormOptions")
    name, kind = "LOCAL_RESPONSE_NORMALIZATION", "LocalResponseNormalizationOptions"
    quick(name, [x(1, 3, 2, 8)], kind, Radius=2, Bias=2.0, Alpha=0.3, Beta=0.75)
    case(name, [x(1, 3, 2, 8)], kind, Radius=5, Bias=1.0, Alpha=1e-4, Beta=0.5)
    for bits, low, high in ((8, -1.0, 2.0), (4, 0.0, 6.0), (8, -6.3, 6.1)):
        case("FAKE_QUANT", [x(4, 5)], "FakeQuantOptions", NumBits=bits, Min=low, Max=high)
    bounds = [-0.5, 0.0, 0.5]
    quick("BUCKETIZE", [array([-1, 0, 0.5, 1])], "BucketizeOptions", ["int32"], Boundaries=bounds)
    case("RFFT2D", [x(4, 8), c([4, 8])], "Rfft2dOptions", ["complex64"])
    case("RFFT2D", [x(2, 4, 2), c([4, 2])], "Rfft2dOptions", ["complex64"])
    for name in ("REAL", "IMAG", "COMPLEX_ABS"):
        case(name, [(x(3, 4) + 1j * x(3, 4)).astype("complex64")], results=["float32"])
    for one, other in (("float32", "int32"), ("int32", "float32")):
        case("BITCAST", [x(3, 4, dtype=one)], results=[other])


def images():
    for name, padding in itertools.product(("AVERAGE", "MAX", "L2"), (SAME, VALID)):
        for height, width, rows, columns in (
            (1, 1, 2, 2),
            (2, 2, 3, 3),
            (2, 1, 3, 2),
            (3, 2, 2, 3),
        ):
            case(
                f"{name}_POOL_2D",
                [x(2, 7, 6, 3)],
                "Pool2DOptions",
                Padding=padding,
                StrideH=height,
                StrideW=width,
                FilterHeight=rows,
                FilterWidth=columns,
            )
        for fused in ACTIVATIONS:
            pool = {"StrideH": 2, "StrideW": 2, "FilterHeight": 2, "FilterWidth": 2}
            operands = [x(1, 6, 6, 3)]
            pool["FusedActivationFunction"] = fused
            case(f"{name}_POOL_2D", operands, "Pool2DOptions", Padding=padding, **pool)
    usual = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
    for other in (
        {},
        {"Padding": VALID},
        {"StrideH": 2},
        {"StrideH": 2, "StrideW": 3},
        {"DilationHFactor": 2},
        {"DilationHFactor": 2, "DilationWFactor": 3, "Padding": VALID},
        {"StrideH": 2, "StrideW": 2, "DilationHFactor": 2, "DilationWFactor": 2},
        *({"FusedActivationFunction": fused} for fused in ACTIVATIONS),
    ):
        options = {"Padding": SAME} | usual | other
        case("CONV_2D", [x(1, 9, 8, 4), c((5, 3, 2, 4)), c((5,))], "Conv2DOptions", **options)
        for times in (1, 2):
            case(
                "DEPTHWISE_CONV_2D",
                [x(1, 9, 8, 4), c((1, 3, 2, 4 * times)), c((4 * times,))],
                "DepthwiseConv2DOptions",
                DepthMultiplier=times,
                **options,
            )
    options = {"Padding": SAME} | usual
    case("CONV_2D", [x(1, 9, 8, 4), x(5, 3, 2, 4), x(5)], "Conv2DOptions", **options)
    case("CONV_2D", [x(1, 9, 8, 4), c((6, 3, 2, 2)), c((6,))], "Conv2DOptions", **options)
    options["DepthMultiplier"] = 3
    operands = [x(2, 9, 8, 1), c((1, 3, 2, 3)), c((3,))]
    case("DEPTHWISE_CONV_2D", operands, "DepthwiseConv2DOptions", **options)
    operands = [x(2, 9, 8, 4), x(1, 3, 2, 4), x(4)]
    case(
        "DEPTHWISE_CONV_2D", operands, "DepthwiseConv2DOptions", **options | {"DepthMultiplier": 1}
    )
    usual = {"StrideD": 1, "DilationDFactor": 1} | usual
    for other in (
        {"Padding": SAME, "StrideD": 2, "StrideH": 2},
        {"Padding": SAME, "DilationDFactor": 2},
        {"Padding": VALID, "FusedActivationFunction": RELU6},
    ):
        operands = [x(1, 5, 6, 4, 3), c((2, 3, 2, 3, 4)), c((4,))]
        case("CONV_3D", operands, "Conv3DOptions", **usual | other)
    transposed_convolutions()
    for name in ("BILINEAR", "NEAREST_NEIGHBOR"):
        kind = f"Resize{name.title().replace('_', '')}Options"
        for size in ([6, 10], [3, 5], [7, 4], [4, 5], [1, 1], [9, 9], [1, 8]):
            for options in ({}, {"AlignCorners": True}, {"HalfPixelCenters": True}):
                case(f"RESIZE_{name}", [x(1, 4, 5, 2), c(size)], kind, **options)
    kind = "ResizeNearestNeighborOptions"
    both = {"AlignCorners": True, "HalfPixelCenters": True}
    quick("RESIZE_NEAREST_NEIGHBOR", [x(1, 4, 5, 2), c([7, 4])], kind, AlignCorners=True)
    quick("RESIZE_NEAREST_NEIGHBOR", [x(1, 4, 5, 2), c([7, 4])], kind, **both)
    kind = "ResizeBilinearOptions"
    quick("RESIZE_BILINEAR", [x(1, 4, 5, 2), c([1, 8])], kind, AlignCorners=True)
    case("RESIZE_BILINEAR", [x(1, 1, 5, 2), c([1, 8])], kind, AlignCorners=True)
    for dtype in ("float32", "int32"):
        block = [c([2, 3]), c([[0, 0], [0, 0]])]
        case("SPACE_TO_BATCH_ND", [x(1, 4, 6, 2, dtype=dtype), *block])
        case("SPACE_TO_DEPTH", [x(1, 4, 6, 2, dtype=dtype)], "SpaceToDepthOptions", BlockSize=2)
        case("DEPTH_TO_SPACE", [x(1, 2, 3, 8, dtype=dtype)], "DepthToSpaceOptions", BlockSize=2)
    quick("SPACE_TO_BATCH_ND", [x(2, 3, 5, 2), c([2, 3]), c([[0, 1], [1, 0]])])
    case("SPACE_TO_BATCH_ND", [x(2, 4, 3), c([2]), c([[1, 1]])])
    case("BATCH_TO_SPACE_ND", [x(6, 2, 2, 2), c([2, 3]), c([[0, 0], [0, 0]])])
    quick("BATCH_TO_SPACE_ND", [x(6, 2, 2, 2), c([2, 3]), c([[1, 0], [1, 2]])])
    case("BATCH_TO_SPACE_ND", [x(4, 3, 2), c([2]), c([[1, 1]])])
    case("DILATE", [x(2, 3), c([2, 3]), c(0.5, "float32")])


def transposed_convolutions():
    kind = "TransposeConvOptions"
    for padding, stride, height, width in (
        *((SAME, 2, 8, 10), (SAME, 2, 7, 9), (VALID, 2, 9, 11), (SAME, 1, 4, 5)),
        *((VALID, 1, 6, 7), (SAME, 3, 12, 15), (SAME, 3, 10, 13)),
    ):
        options = {"Padding": padding, "StrideH": stride, "StrideW": stride}
        operands = [c([1, height, width, 5]), c((5, 3, 3, 4)), x(1, 4, 5, 4)]
        case("TRANSPOSE_CONV", operands, kind, ["float32"], **options)
    options = {"Padding": SAME, "StrideH": 2, "StrideW": 2}
    for kernel, fused in ((3, 0), (1, 0), *((3, fused) for fused in ACTIVATIONS)):
        operands = [c([1, 8, 10, 5]), c((5, kernel, kernel, 4)), x(1, 4, 5, 4), c((5,))]
        add = quick if fused == RELU6 else case
        add("TRANSPOSE_CONV", operands, kind, ["float32"], FusedActivationFunction=fused, **options)
    options = {"Padding": VALID, "StrideH": 2, "StrideW": 2}
    operands = [c([1, 10, 12, 5]), c((5, 3, 3, 4)), x(1, 4, 5, 4), None]
    quick("TRANSPOSE_CONV", operands, kind, ["float32"], **options)


def products():
    kind = "FullyConnectedOptions"
    for fused in (0, *ACTIVATIONS):
        operands = [x(3, 8), c((5, 8)), c((5,))]
        case("FULLY_CONNECTED", operands, kind, FusedActivationFunction=fused)
    case("FULLY_CONNECTED", [x(3, 8), c((5, 8)), None], kind)
    case("FULLY_CONNECTED", [x(3, 8), x(5, 8), c((5,))], kind)
    quick("FULLY_CONNECTED", [x(2, 3, 8), c((5, 8)), c((5,))], kind)
    case("FULLY_CONNECTED", [x(2, 3, 8), c((5, 8)), c((5,))], kind, KeepNumDims=True)
    case("FULLY_CONNECTED", [x(1, 2, 2, 8), c((5, 32)), c((5,))], kind)
    case("FULLY_CONNECTED", [x(8), c((5, 8)), c((5,))], kind)
    shapes = (
        *(((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5))),
        *(((2, 1, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (1, 6, 4, 5)), ((1, 3, 4), (2, 4, 5))),
    )
    turns = list(itertools.product((False, True), repeat=2))
    for (one, other), (first, last) in itertools.product(shapes, turns):
        one = (*one[:-2], one[-1], one[-2]) if first else one
        other = (*other[:-2], other[-1], other[-2]) if last else other
        operands = [x(*one), x(*other)]
        add = quick if len(one) == 2 and len(other) == 3 and first and last else case
        add("BATCH_MATMUL", operands, "BatchMatMulOptions", AdjX=first, AdjY=last)
    case("BATCH_MATMUL", [c((2, 3, 4)), x(4, 5)], "BatchMatMulOptions")


def joins():
    for axis in (0, 1, -1):
        for dtype in NUMBERS:
            operands = [x(2, 3, dtype=dtype), x(2, 3, dtype=dtype), c((2, 3), dtype)]
            if dtype == "int32":
                operands[2] = Constant(x(2, 3, dtype="int32"))
            case("CONCATENATION", operands, "ConcatenationOptions", Axis=axis)
    for axis in (0, 1, 2, -1, -2, -3):
        case("PACK", [x(2, 3), x(2, 3), c((2, 3))], "PackOptions", Axis=axis, ValuesCount=3)
    for axis in (0, 1, -1, -2):
        count = (2, 3)[axis]
        results = ["float32"] * count
        case("UNPACK", [x(2, 3)], "UnpackOptions", results, Axis=axis, Num=count)
    case("UNPACK", [x(1, 3)], "UnpackOptions", Axis=0, Num=1)
    case("PACK", [x(2, 3)], "PackOptions", Axis=0, ValuesCount=1)
    for axis in (1, -1, [1]):
        case("SPLIT", [c(axis), x(2, 6)], "SplitOptions", ["float32"] * 3, NumSplits=3)
    quick("SPLIT", [c([-1]), x(2, 6)], "SplitOptions", ["float32"] * 3, NumSplits=3)
    case("SPLIT", [c(1), x(2, 6)], "SplitOptions", ["float32"], NumSplits=1)
    for sizes, axis in itertools.product(([1, 2, 3], [1, -1, 2], [4, 1, 1]), (1, -1)):
        add = quick if -1 in sizes else case
        operands = [x(2, 6), c(sizes), c(axis)]
        add("SPLIT_V", operands, "SplitVOptions", ["float32"] * 3, NumSplits=3)
    case("SPLIT_V", [x(2, 6), c([6]), c(1)], "SplitVOptions", NumSplits=1)


def shapes():
    for size in ([3, 4], [3, -1], [-1]):
        case("RESHAPE", [x(2, 6), c(size)])
    case("RESHAPE", [x(2, 6), c([4, -1])], "ReshapeOptions", NewShape=[4, 3])
    quick("RESHAPE", [x(2, 6)], "ReshapeOptions", NewShape=[-1, 3])
    case("RESHAPE", [x(1, 1), c(np.zeros(0))])
    for axes in ([0], [-1], [0, 2], [2, 0], [-3]):
        case("SQUEEZE", [x(1, 4, 1)], "SqueezeOptions", SqueezeDims=axes)
    quick("SQUEEZE", [x(1, 4, 1)], "SqueezeOptions", SqueezeDims=[])
    case("SQUEEZE", [x(1, 4, 1)], "SqueezeOptions")
    case("SQUEEZE", [x(3, 4)], "SqueezeOptions", SqueezeDims=[])
    for axis in (0, 1, 2, -1, -2, [1]):
        case("EXPAND_DIMS", [x(2, 3), c(axis)], "ExpandDimsOptions")
    quick("EXPAND_DIMS", [x(2, 3, dtype="int32"), c(-1, "int64")])
    for order in ([2, 0, 1], [0, 2, 1], [-1, 0, 1]):
        case("TRANSPOSE", [x(2, 3, 4), c(order)], "TransposeOptions")
    for size in ([2, 3], [4, 2, 3]):
        case("BROADCAST_TO", [x(3), c(size)])
        case("BROADCAST_TO", [x(1, 3, dtype="int32"), c(size, "int64")])
    quick("BROADCAST_ARGS", [c([2, 1]), c([4, 1, 3])])
    for dtype in ("int32", "int64"):
        case("SHAPE", [x(2, 3, 4)], "ShapeOptions", [dtype], OutType=TYPES[dtype])
        case("TILE", [x(2, 3, dtype="int32"), c([1, 2], dtype)])
        case("FILL", [c([2, 3], dtype), array(1.5)], results=["float32"])
        case("FILL", [c([2], dtype), c(7)], results=["int32"])
    case("RANK", [x(2, 3, 4)], results=["int32"])
    quick("RANGE", [c(7), c(0), c(-2)])
    case("RANGE", [c(0.0, "float32"), c(2.0, "float32"), c(0.3, "float32")])
    case("REVERSE_V2", [x(2, 3, 4), c([-1])])
    quick("REVERSE_V2", [x(2, 3, 4), c([1, 2])])
    for axis, batch in ((1, 0), (0, 1), (2, 0)):
        lengths = array([1, 3, 2, 3], "int32")[: (3, 4)[batch]]
        kind = "ReverseSequenceOptions"
        case("REVERSE_SEQUENCE", [x(3, 4, 5), lengths], kind, SeqDim=axis, BatchDim=batch)


def padding():
    widths = c([[1, 2], [0, 2]])
    for mode in (0, 1):
        kind = "MirrorPadOptions"
        add = quick if mode else case
        add("MIRROR_PAD", [x(3, 4), widths], kind, Mode=mode)
        four = c([[0, 0], [1, 2], [2, 0], [0, 1]])
        case("MIRROR_PAD", [x(1, 3, 4, 2), four], kind, Mode=mode)
        case("MIRROR_PAD", [x(5, dtype="int32"), c([[2, 1]], "int64")], kind, Mode=mode)
    case("PAD", [x(3, 4), widths])
    case("PAD", [x(3, 4, dtype="int32"), c([[1, 2], [0, 2]], "int64")])
    case("PADV2", [x(3, 4), widths, c(2.5, "float32")])
    case("PADV2", [x(3, 4, dtype="int32"), widths, c([7])])


def slices():
    kind = "StridedSliceOptions"
    ones = [1, 1, 1]
    for begin, end, strides, masks in (
        ([0, 1, 0], [2, 3, 4], ones, {}),
        ([0, -2, 0], [2, 3, 4], [1, 1, 2], {}),
        ([1, 2, 3], [0, 0, 0], [-1, -1, -1], {"EndMask": 7}),
        ([0, 2, 0], [2, 0, 4], [1, -1, 1], {}),
        ([0, 1, 0], [2, 3, 4], ones, {"BeginMask": 2}),
        ([0, 1, 0], [0, 3, 0], ones, {"EndMask": 5}),
        ([-1, -3, 1], [2, 3, 1], ones, {"BeginMask": 2, "EndMask": 4}),
        ([0, 0, 0], [9, 9, 9], [1, 2, 3], {}),
        ([0, 0, 3], [2, 3, -9], [1, 1, -2], {}),
        ([1, 0, 0], [2, 3, 4], ones, {"ShrinkAxisMask": 1}),
        ([1, -1, 0], [2, 0, 4], ones, {"ShrinkAxisMask": 3}),
        ([0, 0, -1], [1, 3, 0], ones, {"ShrinkAxisMask": 4}),
        ([1, 1, 1], [2, 2, 2], ones, {"ShrinkAxisMask": 7}),
        ([0, 0], [0, 2], [1, 1], {"EllipsisMask": 1}),
        ([1, 0, 2], [2, 0, 4], ones, {"EllipsisMask": 2}),
        ([0, 0, 1], [0, 2, 3], ones, {"NewAxisMask": 1}),
        ([0, 0, 1], [2, 0, 3], ones, {"NewAxisMask": 2}),
        ([1], [2], [1], {}),
        ([1], [2], [1], {"ShrinkAxisMask": 1}),
    ):
        case("STRIDED_SLICE", [x(2, 3, 4), c(begin), c(end), c(strides)], kind, **masks)
    for begin, end in (([0, 1, 0], [2, 2, 4]), ([0, -2, 0], [2, 1, 4])):
        quick("STRIDED_SLICE", [x(2, 3, 4), c(begin), c(end), c(ones)], kind, Offset=True)
    masks = {"NewAxisMask": 1, "EllipsisMask": 2, "ShrinkAxisMask": 8}
    numbers = [c([0, 0, 1, 2]), c([0, 0, 3, 3]), c([1, 1, 1, 1])]
    quick("STRIDED_SLICE", [x(2, 3, 4), *numbers], kind, **masks)
    for dtype in ("int32", "int64"):
        for begin, size in (([0, 1, 1], [2, 1, 2]), ([1, 0, 0], [-1, -1, 2])):
            case("SLICE", [x(2, 3, 4, dtype="int32"), c(begin, dtype), c(size, dtype)])


def indices():
    kind = "GatherOptions"
    for axis in (0, 1, -1):
        case("GATHER", [x(3, 4, 2), c([1, 0])], kind, Axis=axis)
        case("GATHER", [x(3, 4, 2), array([[1, 0]], "int32")], kind, Axis=axis)
        case("GATHER", [x(3, 4, 2), c(1)], kind, Axis=axis)
    case("GATHER", [c((5, 3)), array([4, 0, 2], "int64")], kind, Axis=0)
    quick("GATHER", [x(2, 4, 3), array([[1, 0], [3, 2]], "int32")], kind, Axis=1, BatchDims=1)
    quick("GATHER", [x(2, 4, 3), c([[1, 0], [2, 2]])], kind, Axis=2, BatchDims=1)
    case("GATHER", [x(2, 2, 3), c([[1, 0], [2, 2]])], kind, Axis=2, BatchDims=2)
    case("GATHER", [x(2, 4, 3), c([[1, 0], [2, 2]])], kind, Axis=-1, BatchDims=-1)
    quick("GATHER_ND", [x(3, 4, 2), c([[0, 1], [2, 3]])])
    case("GATHER_ND", [x(3, 4, 2), array([[[0], [2]]], "int32")])
    case("GATHER_ND", [x(3, 4, dtype="int32"), c([[0, 1], [2, 3]], "int64")])
    case("GATHER_ND", [x(3, 4), c([1])])
    case("EMBEDDING_LOOKUP", [array([2, 0], "int32"), c((4, 3))], results=["float32"])
    quick("EMBEDDING_LOOKUP", [c([2, 0]), x(4, 3)], results=["float32"])
    for name in ("SELECT", "SELECT_V2"):
        for dtype in ("float32", "int32"):
            operands = [x(3, 3, dtype="bool"), x(3, 3, dtype=dtype), x(3, 3, dtype=dtype)]
            case(name, operands, results=[dtype])
        case(name, [array(True, "bool"), x(3, 3), x(3, 3)], results=["float32"])
        rows = c([True, False, True], "bool")
        quick(name, [rows, x(3, 3), x(3, 3)], results=["float32"])
    case("SELECT", [x(2, dtype="bool"), x(2, 3, 4), x(2, 3, 4)], results=["float32"])
    case("SELECT_V2", [x(2, 1, dtype="bool"), x(3), c((2, 3))], results=["float32"])
    two = array([[1, 2], [0, 0]], "int32")
    quick("SCATTER_ND", [c([[1], [1]]), x(2, 3), c([5, 3])], results=["float32"])
    case("SCATTER_ND", [two, x(2, dtype="int32"), c([3, 3])], results=["int32"])
    rows = array([[[1], [2]], [[0], [3]]], "int32")
    case("SCATTER_ND", [rows, x(2, 2, 3), c([5, 3])], results=["float32"])
    default = c(0.5, "float32")
    case("SPARSE_TO_DENSE", [c([1, 3]), c([5]), x(2), default], results=["float32"])
    two = [c([[0, 1], [2, 0]]), c([3, 2])]
    quick("SPARSE_TO_DENSE", [*two, x(2), default], results=["float32"])
    case("SPARSE_TO_DENSE", [*two, c(2.0, "float32"), default], results=["float32"])
    quick("MATRIX_DIAG", [x(2, 3)])
    case("MATRIX_DIAG", [x(3, dtype="int32")])
    for rows, columns in ((3, 4), (4, 3)):
        quick("MATRIX_SET_DIAG", [x(2, rows, columns), x(2, 3)])
    segments = c([0, 0, 1, 2])
    case("SEGMENT_SUM", [x(4, 3), segments])
    for name, dtype in itertools.product(("SUM", "MAX", "MIN", "PROD"), ("float32", "int32")):
        operands = [x(4, 3, dtype=dtype), c([2, 0, 2, 0]), c(4)]
        case(f"UNSORTED_SEGMENT_{name}", operands)
    for axis in (-1, 0, 1):
        index = array([[0, 2, 5], [1, -1, 3]], "int32")
        values = [c(4), c(2.5, "float32"), c(-1.0, "float32")]
        case("ONE_HOT", [index, *values], "OneHotOptions", ["float32"], Axis=axis)
    values = [c(4), c(True, "bool"), c(False, "bool")]
    quick("ONE_HOT", [array([0, 2], "int64"), *values], "OneHotOptions", ["bool"], Axis=-1)
    values = [c(4), array(3), array(1)]
    case("ONE_HOT", [array([0, 2], "int32"), *values], "OneHotOptions", ["float32"], Axis=0)


def reductions():
    for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        for axes in ([1], [-1], [0, 2], [-1, -2], [0, 1, 2], 1):
            for keeps in (False, True):
                case(name, [x(2, 3, 4), c(axes)], "ReducerOptions", KeepDims=keeps)
        quick(name, [x(2, 3, 4), c([1, 1, -2])], "ReducerOptions")
        case(name, [x(2, 3, 4), c([1])])
        for dtype in ("int32", "int64"):
            case(name, [x(2, 3, 4, dtype=dtype), c([-1])], "ReducerOptions")
    quick("MEAN", [x(2, 3, 4, dtype="int32"), c([1])], "ReducerOptions")
    for name, axes, keeps in itertools.product(("ANY", "ALL"), ([1], [-1], [0, 1]), (False, True)):
        operands = [x(3, 4, dtype="bool"), c(axes)]
        case(f"REDUCE_{name}", operands, "ReducerOptions", KeepDims=keeps)
    for name, axis, dtype in itertools.product(("Max", "Min"), (0, 1, -1), ("int32", "int64")):
        add = quick if (axis, dtype) == (-1, "int32") else case
        kind = f"Arg{name}Options"
        operator, options = f"ARG_{name.upper()}", {"OutputType": TYPES[dtype]}
        add(operator, [x(3, 4, 5), c(axis)], kind, [dtype], **options)
        case(operator, [array([[1, 3, 3, 0, 0]]), c(1)], kind, [dtype], **options)
        case(operator, [x(3, 4, dtype="int32"), c(1)], kind, [dtype], **options)
    for exclusive, reverse, axis in itertools.product((False, True), (False, True), (0, -1)):
        for dtype in NUMBERS:
            add = quick if (exclusive, axis, dtype) == (True, -1, "float32") else case
            operands = [x(3, 4, dtype=dtype), c(axis)]
            add("CUMSUM", operands, "CumsumOptions", Exclusive=exclusive, Reverse=reverse)
    for count in (1, 3):
        for data in (x(3, 5), x(3, 5, dtype="int32"), array([[1, 3, 3, 0, 3]])):
            results = [str(data.dtype), "int32"]
            case("TOPK_V2", [data, c(count)], "TopKV2Options", results)
    boxes = array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 10.1, 1, 11.1]])
    scores = array([0.9, 0.75, 0.95, 0.5])
    for count, threshold in ((2, 0.0), (4, 0.4)):
        numbers = [c(count), c(0.5, "float32"), c(threshold, "float32")]
        add = quick if count == 4 else case
        add("NON_MAX_SUPPRESSION_V4", [boxes, scores, *numbers], results=["int32", "int32"])
        for sigma in (0.0, 0.5):
            results = ["int32", "float32", "int32"]
            operands = [boxes, scores, *numbers, c(sigma, "float32")]
            add("NON_MAX_SUPPRESSION_V5", operands, results=results)


def casts():
    types = ("float32", "int32", "int64", "bool", "int8", "int16", "uint8")
    for one, other in itertools.permutations(types, 2):
        values = np.abs(x(3, 4)).astype(one)
        options = {"InDataType": TYPES[one], "OutDataType": TYPES[other]}
        case("CAST", [values], "CastOptions", [other], **options)
    case("CAST", [array([-1.5, -0.5, 0.5, 2.7])], results=["int32"])
    case("CAST", [array([1.5, -2], "float16")], results=["float32"])
    case("CAST", [array([0.25, -0.25, 0])], results=["bool"])


for part in (elementwise, functions, images, products, joins, shapes, padding, slices, indices):
    part()
reductions()
casts()


# ---- The comparison -----------------------------------------------------------------------------

ELSEWHERE = {"DENSIFY", "DEQUANTIZE", "DETECTION_POSTPROCESS", "IF", "QUANTIZE", "WHILE"}
"""Operators that test_tflite.py and test_tflite_files.py compare."""
WEIGHTS = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
"""Operators with weights, and which operand is the bias."""
RESULTS = {
    "ADD": (0.1, -5),
    "BATCH_MATMUL": (0.2, -5),
    "CONV_2D": (0.3, -5),
    "DEPTHWISE_CONV_2D": (0.2, -5),
    "FULLY_CONNECTED": (0.2, -5),
    "LOGISTIC": (1 / 256, -128),
    "L2_NORMALIZATION": (1 / 128, 0),
    "LOG_SOFTMAX": (1 / 16, 127),
    "MUL": (0.2, -5),
    "SOFTMAX": (1 / 256, -128),
    "SUB": (0.1, -5),
    "SUM": (0.2, -5),
    "TANH": (1 / 128, 0),
    "TRANSPOSE_CONV": (0.3, -5),
}
"""Scale and zero point of integer results, where they are not those of the operands."""
NO_INTEGERS = {"CEIL", "COS", "FLOOR", "POW", "ROUND", "SIN", "SQUARE"}
"""Operators that LiteRT does not compute on integers."""


def write(entry, shapes, quantized=False):
    """Return a file of one operator, whose results have these shapes, and its arguments."""
    file, numbers, inputs, arguments = File(), [], [], []
    for place, operand in enumerate(entry.operands):
        if operand is None:
            numbers.append(-1)
            continue
        values = operand.values if isinstance(operand, Constant) else operand
        scales = ()
        if quantized and values.dtype == "float32":
            values, *scales = integers(entry.operator, place, values)
        data = values if isinstance(operand, Constant) else None
        numbers.append(file.tensor(values.shape, str(values.dtype), *scales, data=data))
        if data is None:
            inputs.append(numbers[-1])
            arguments.append(values)
    outputs = []
    for shape, dtype in zip(shapes, types_of(entry), strict=True):
        is_integer = quantized and dtype == "float32"
        scales = RESULTS.get(entry.operator, (0.05, 3)) if is_integer else ()
        outputs.append(file.tensor(shape, "int8" if is_integer else dtype, *scales))
    file.operator(entry.operator, numbers, outputs, entry.kind, **entry.options)
    return file.finish(inputs, outputs), arguments


def integers(operator, place, values):
    """Return what stands for real numbers: integers, their scale and zero point."""
    least, dtype, scale, zero = -128, "int8", 0.05, 3
    if operator in WEIGHTS and place == 1:
        scale, zero = 0.03, 0
    elif operator in WEIGHTS and place == WEIGHTS[operator]:
        least, dtype, scale, zero = -(2**20), "int32", 0.05 * 0.03, 0
    steps = np.clip(np.rint(values / scale) + zero, least, -least - 1)
    return steps.astype(dtype), scale, zero


def types_of(entry):
    """Return the types of the results: by default, that of the first operand."""
    first = entry.operands[1 if entry.operator == "SPLIT" else 0]
    return entry.results or [str(getattr(first, "values", first).dtype)]


def judge(entry, quantized=False):
    """Return LiteRT's results; its reference kernels lack a few, and sum less or overflow."""
    content, arguments = write(entry, [[]] * len(types_of(entry)), quantized)
    reference = not quantized and "LOCAL_RESPONSE" not in entry.operator
    try:
        return litert(content, arguments, reference)
    except ValueError as error:
        if "Didn't find op" not in str(error):
            raise
        return litert(content, arguments, reference=False)


def pairs(values):
    """Return complex numbers as pairs of real ones, which TVM has in their place."""
    if values.dtype != "complex64":
        return values
    return values.view("float32").reshape((*values.shape, 2))


def title(entry):
    shapes = [
        "x".join(map(str, getattr(item, "values", item).shape)) or "scalar"
        for item in entry.operands
        if item is not None
    ]
    options = [f"{name}={value}" for name, value in entry.options.items()]
    return "-".join([entry.operator, *shapes, *options])


def is_quantized(entry):
    """Tell whether a case has a form on integers; constants of convolutions have scales."""
    operands = [item for item in entry.operands if item is not None]
    if entry.operator in WEIGHTS and not all(isinstance(item, Constant) for item in operands[1:2]):
        return False
    return (
        entry.operator in _CONVERTED - NO_INTEGERS
        and not (entry.operator == "PADV2" and not isinstance(operands[2], Constant))
        and any(getattr(item, "values", item).dtype == "float32" for item in operands)
    )


REAL = {f"{index}-{title(entry)}": entry for index, entry in enumerate(CASES)}
INTEGER = {f"int8-{name}": entry for name, entry in REAL.items() if is_quantized(entry)}


@cache
def outcomes():
    """Return LiteRT's results and ours, of the cases of all selected tests: each by its name."""
    expected, found, models = {}, {}, []
    for name, entry in {**REAL, **INTEGER}.items():
        if name not in SELECTED:
            continue
        try:
            expected[name] = judge(entry, name in INTEGER)
            shapes = [item.shape for item in expected[name]]
            content, arguments = write(entry, shapes, name in INTEGER)
            models.append(Imported(name, backend.from_tflite(content), [*map(pairs, arguments)]))
        except Exception as error:
            expected[name], found[name] = None, error
    return expected, {**found, **run_together(models)}


def results_of(name):
    """Generate pairs of ours and LiteRT's results, which have the same types."""
    expected, found = (item[name] for item in outcomes())
    if isinstance(found, Exception):
        raise found
    for mine, right in zip(found, map(pairs, expected), strict=True):
        assert (mine.shape, mine.dtype) == (right.shape, right.dtype)
        yield mine, right


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=mark) for name, mark in zip(REAL, MARKS, strict=True)]
)
def test_an_operator_computes_what_litert_computes(name):
    for mine, right in results_of(name):
        np.testing.assert_allclose(mine, right, rtol=2e-5, atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", INTEGER)
def test_an_operator_on_integers_is_a_step_from_litert(name):
    for mine, right in results_of(name):
        assert np.abs(mine.astype("int64") - right).max() <= 1


def test_each_operator_that_is_read_is_compared():
    file = File()
    content = file.finish([], [])
    model = tflite.Model.GetRootAs(content, 0)
    converter = Converter(model, model.Subgraphs(0), None, relax.BlockBuilder())
    assert set(converter.convert_map) == {entry.operator for entry in CASES} | ELSEWHERE
