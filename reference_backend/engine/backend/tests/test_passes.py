# SPDX-License-Identifier: Apache-2.0
"""The canonicalization passes: their effects, disabling them, and constant folding."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, topi
from tvm.relax.dpl import DFPattern

import support
from backend.engine.backend.passes import CANONICALIZATION, evaluate, fold, simplify
from backend.engine.backend.passes.rewriting import with_constants
from backend.engine.backend.report.report import offload_report
from backend.engine.backend.shared.backend import OPS
from backend.engine.backend.table import chain_grammar
from backend.engine.backend.table.patterns import make_patterns
from backend.engine.backend.table.table import Table
from support import TABLE, build, compile_for, run_on_host, variable

needs = support.needs  # Not imported, because some selections of ops skip every test that uses it.
op = relax.op
RNG = np.random.default_rng(0)


def constant(values, dtype=None):
    array = np.asarray(values, dtype)
    return relax.const(array, str(array.dtype))


def ops_of(mod):
    values = [item.value for block in mod["main"].body.blocks for item in block.bindings]
    return [value.op.name.rpartition(".")[2] for value in values if isinstance(value, relax.Call)]


def run(mod, *arguments):
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()


def as_on_the_host(mod, *arguments):
    (result,) = run_on_host(mod, "main", arguments)
    return result


def placed(mod):
    return support.placement(support.partition_for(mod), "main")


# ---- Each pass ----------------------------------------------------------------------------------

X = variable("x", 2, 3, 4)
SQUARE = variable("s", 4, 4)
IMAGE = variable("image", 1, 3, 8, 8)
NUMBER = constant([1.5], "float32")


def reversed_by_kernel():
    builder = relax.BlockBuilder()
    with builder.function("main", [X]):
        with builder.dataflow():
            result = builder.emit_output(builder.call_te(topi.flip, X, 1))
        builder.emit_func_output(result)
    return builder.get()


def outside_of_dataflow():
    builder = relax.BlockBuilder()
    with builder.function("main", [X]):
        builder.emit_func_output(builder.emit(op.nn.relu(X)))
    return builder.get()


def norm_of_a_convolution(emit):
    ones = constant(np.full(4, 2.0), "float32")
    conv = emit(op.nn.conv2d(IMAGE, constant(np.ones((4, 3, 3, 3)), "float32")))
    norm = emit(op.nn.batch_norm(conv, ones, ones, ones, ones, axis=1, training=False))
    return emit(relax.TupleGetItem(norm, 0))


def scaled_operands(emit):
    scaled = [emit(op.multiply(SQUARE, relax.const(0.5))) for _ in range(2)]
    return emit(op.matmul(*scaled))


def scores(emit, q, k, turn=True):
    return emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1])) if turn else k))


def two_biases(emit):
    biased = emit(op.add(scores(emit, X, X), constant(np.ones((3, 3)), "float32")))
    biased = emit(op.add(biased, constant(np.ones((2, 1, 3)), "float32")))
    return emit(op.matmul(emit(op.nn.softmax(biased, -1)), X))


def guarded(emit):
    x = X
    value = scores(emit, x, x)
    seen = emit(op.logical_not(emit(op.equal(value, constant(-np.inf, "float32")))))
    seen = emit(op.max(emit(op.astype(seen, "int8")), -1, keepdims=True))
    empty = emit(op.logical_not(emit(op.astype(seen, "bool"))))
    weights = emit(op.nn.softmax(value, -1))
    zeros = emit(op.full_like(weights, relax.const(0.0)))
    return emit(op.matmul(emit(op.where(empty, zeros, weights)), x))


def quantized(x, scale=0.5, zero_point=3):
    return op.quantize(x, relax.const(np.float32(scale)), constant(zero_point, "int8"))


def dequantized(x, scale=0.5, zero_point=3):
    return op.dequantize(x, relax.const(np.float32(scale)), constant(zero_point, "int8"))


def moved_integers(emit):
    return emit(op.reshape(emit(dequantized(emit(quantized(X)))), [6, 4]))


def unsigned_integers(emit):
    scale, zero_point = relax.const(np.float32(0.5)), constant(40000, "uint16")
    numbers = emit(op.quantize(X, scale, zero_point, -1, "uint16"))
    return emit(op.dequantize(numbers, scale, zero_point))


def bias_of_integers(emit):
    zeros, steps = constant([0] * 4, "int32"), constant([1, 2, 3, 4], "int32")
    real = emit(op.dequantize(steps, constant([0.5, 1, 2, 3], "float32"), zeros, 0))
    return emit(op.add(X, emit(op.negative(real))))


def scaled_product(emit):
    weight = emit(op.permute_dims(constant(np.arange(20).reshape(5, 4) - 9, "int8")))
    product = emit(op.matmul(X, emit(op.astype(weight, "float32"))))
    scales = emit(op.reshape(constant(np.ones((5, 1)) / 8, "float32"), [5]))
    return emit(op.multiply(product, scales))


def scores_of_the_last_row(emit):
    weight = constant(np.arange(20).reshape(4, 5), "float32")
    biased = emit(op.add(emit(op.matmul(X, weight)), constant([1, 2, 3, 4, 5], "float32")))
    return emit(op.strided_slice(biased, [1], [-1], [9]))


def packed_weight(emit):
    numbers = constant(np.arange(20).reshape(4, 5), "int32")
    numbers = emit(
        op.bitwise_and(emit(op.right_shift(numbers, constant(1, "int32"))), constant(7, "int32"))
    )
    steps = constant(np.ones((1, 5)) / 8, "float32")
    return emit(op.matmul(X, emit(op.multiply(emit(op.astype(numbers, "float32")), steps))))


def bytes_of_rows(emit):
    scales = emit(op.max(SQUARE, 1))
    return emit(op.quantize(SQUARE, scales, constant([0] * 4, "int8"), 0)), scales


def product_of_bytes(emit):
    weight = constant(np.arange(20).reshape(4, 5), "int8")
    wide = [emit(op.astype(it, "int32")) for it in (bytes_of_rows(emit)[0], weight)]
    return emit(op.astype(emit(op.matmul(*wide)), "float32"))


def product_of_rows(emit):
    numbers, scales = bytes_of_rows(emit)
    real = emit(op.dequantize(numbers, scales, constant([0] * 4, "int8"), 0))
    weight = constant(np.arange(20).reshape(4, 5), "int8")
    return emit(op.matmul(real, emit(dequantized(weight, zero_point=0))))


def factor_of_a_product(emit):
    real = emit(op.multiply(emit(dequantized(emit(quantized(SQUARE)))), relax.const(0.5)))
    return emit(op.matmul(real, SQUARE))


def shared_dequantize(emit):
    real = emit(dequantized(emit(quantized(X))))
    return emit(quantized(emit(op.add(emit(op.sigmoid(real)), emit(op.tanh(real))))))


def resized_integers(emit):
    numbers = emit(op.image.resize2d(emit(quantized(IMAGE)), (16, 16), method="linear"))
    return emit(dequantized(numbers))


def selected_boxes(emit):
    limits = (constant(3, "int64"), relax.const(0.5), relax.const(0.0))
    found = emit(op.vision.all_class_non_max_suppression(BOXES, SCORES, *limits))
    return emit(op.abs(emit(relax.TupleGetItem(found, 0))))


BOXES, SCORES = variable("boxes", 1, 3, 4), variable("scores", 1, 1, 3)
MASK = variable("masked", 2, 3, 1, dtype="bool")
FOUR = variable("x", 2, 5, 3, 4)
ROUGH = variable("x", 2, 3, 4, dtype="bfloat16")

EXAMPLES = {
    "ToDataflow": outside_of_dataflow,
    "NameSizes": ([BOXES, SCORES], selected_boxes),
    "RecoverOps": reversed_by_kernel,
    "WidenBfloat16": ([ROUGH], lambda emit: emit(op.nn.relu(ROUGH))),
    "SimplifyViews": ([X], lambda emit: emit(op.nn.relu(emit(op.astype(X, "float32"))))),
    "FlattenIndices": (
        [X],
        lambda emit: emit(op.index_tensor(X, [constant([0, 1]), constant([2, -1])])),
    ),
    "PutByPlaces": (
        [SQUARE],
        lambda emit: emit(op.index_put(SQUARE, (constant([0]), constant([2])), NUMBER)),
    ),
    "CompareNaN": ([X], lambda emit: emit(op.isnan(X))),
    "CompareLargest": ([X], lambda emit: emit(op.isfinite(X))),
    "MaterializeConstants": (
        [X],
        lambda emit: emit(op.add(X, emit(op.ones([4], "float32")))),
    ),
    "FoldConstants": (
        [X],
        lambda emit: emit(op.add(X, emit(op.exp(constant(np.ones(4), "float32"))))),
    ),
    "ComputeBiases": ([X], bias_of_integers),
    "UnpackWeights": ([X], packed_weight),
    "ScaleWeights": ([X], scaled_product),
    "MultiplyBytes": ([SQUARE], product_of_bytes),
    "MultiplyRows": ([SQUARE], product_of_rows),
    "UnstackPairs": (
        [X],
        lambda emit: emit(op.min(emit(op.stack([X, emit(op.exp(X))], 1)), [1])),
    ),
    "ScaleFactors": ([SQUARE], factor_of_a_product),
    "SignIntegers": ([X], unsigned_integers),
    "MoveIntegers": ([X], moved_integers),
    "InterpolateReals": ([IMAGE], resized_integers),
    "CountFromStart": ([X], lambda emit: emit(op.take(X, constant(-1), axis=1))),
    "DropEmpties": (
        [X],
        lambda emit: emit(op.concat([emit(op.strided_slice(X, [2], [4], [9])), X], -1)),
    ),
    "PadByTake": ([X], lambda emit: emit(op.nn.pad(X, [0, 0, 1, 2, 0, 1], "reflect"))),
    "FormClips": (
        [X],
        lambda emit: emit(op.minimum(emit(op.maximum(X, relax.const(0.0))), relax.const(6.0))),
    ),
    "FoldBatchNorm": ([IMAGE], norm_of_a_convolution),
    "MergeClips": ([X], lambda emit: emit(op.clip(emit(op.clip(X, 0, 9)), -1, 6))),
    "CompleteNorms": (
        [X],
        lambda emit: emit(
            op.nn.layer_norm(
                X,
                constant(np.ones(4), "float32"),
                constant(np.zeros(4), "float32"),
                -1,
                center=False,
                scale=False,
            )
        ),
    ),
    "MergeTransposes": (
        [X],
        lambda emit: emit(op.permute_dims(emit(op.permute_dims(X, [1, 0, 2])), [0, 2, 1])),
    ),
    "UnflattenSwaps": (
        [FOUR],
        lambda emit: emit(
            op.reshape(
                emit(op.permute_dims(emit(op.reshape(FOUR, [10, 3, 4])), [0, 2, 1])), [2, 5, 4, 3]
            )
        ),
    ),
    "UnflattenMatmuls": (
        [variable("m", 2, 3, 4, 4)],
        None,
    ),
    "ScaleOnce": ([SQUARE], scaled_operands),
    "AddBiasesFirst": ([X], two_biases),
    "GuardBehindAttention": ([X], guarded),
    "WidenBias": ([FOUR, variable("bias", 5, 5)], None),
    "TurnGuard": ([X, MASK], None),
    "SwapKeys": (
        [FOUR],
        lambda emit: emit(
            op.matmul(
                emit(op.permute_dims(FOUR, [0, 2, 1, 3])), emit(op.permute_dims(FOUR, [0, 2, 3, 1]))
            )
        ),
    ),
    "GroupHeads": ([variable("q", 1, 4, 1, 8), variable("k", 1, 2, 5, 8)], None),
    "KeepWeights": (
        [X],
        lambda emit: emit(
            op.matmul(X, emit(op.astype(constant(np.ones((4, 5)), "int8"), "float32")))
        ),
    ),
    "TakeRowsFirst": ([X], scores_of_the_last_row),
    "TakeRows": ([variable("rows", 2, dtype="int64")], None),
    "QuantizeFirst": ([X], lambda emit: emit(quantized(emit(op.reshape(X, [6, 4]))))),
    "DropLimits": (
        [X],
        lambda emit: emit(quantized(emit(op.nn.relu(X)), zero_point=-128)),
    ),
    "DequantizeForEach": ([X], shared_dequantize),
    "RecognizeChains": (
        [X],
        lambda emit: emit(op.multiply(X, emit(op.sigmoid(X)))),
    ),
    "SplitResults": (
        [X],
        lambda emit: [
            emit(op.abs(emit(relax.TupleGetItem(parts := emit(op.split(X, 3, 1)), 2)))),
            emit(op.negative(emit(relax.TupleGetItem(parts, 0)))),
        ],
    ),
    "DropUnused": ([X], lambda emit: [emit(op.abs(X)), emit(op.negative(X))][0]),
}


def example(name):
    """Return a model on which a pass has an effect."""
    made = EXAMPLES[name]
    if callable(made):
        return made()
    arguments, body = made
    if name == "UnflattenMatmuls":
        (x,) = arguments

        def body(emit):
            flat = [emit(op.reshape(x, [6, 4, 4])) for _ in range(2)]
            return emit(op.reshape(emit(op.matmul(*flat)), [2, 3, 4, 4]))

    if name == "TakeRows":
        (rows,) = arguments

        def body(emit):
            scales = constant(np.ones(3), "float32")
            table = op.dequantize(constant(np.ones((3, 4)), "int8"), scales, constant(0, "int8"), 0)
            return emit(op.take(emit(table), rows, 0))

    if name == "GroupHeads":
        query, key = arguments

        def body(emit):
            wide = emit(op.broadcast_to(emit(op.expand_dims(key, 2)), (1, 2, 2, 5, 8)))
            keys = emit(op.reshape(wide, (1, 4, 5, 8)))
            product = emit(op.matmul(query, emit(op.permute_dims(keys, [0, 1, 3, 2]))))
            return emit(op.matmul(emit(op.nn.softmax(product, -1)), keys))

    if name == "WidenBias":
        x, bias = arguments

        def body(emit):
            q = emit(op.permute_dims(x, [0, 2, 1, 3]))
            value = emit(op.matmul(q, emit(op.permute_dims(q, [0, 1, 3, 2]))))
            weights = emit(op.nn.softmax(emit(op.add(value, bias)), -1))
            return emit(op.matmul(weights, q))

    if name == "TurnGuard":
        x, masked = arguments

        def body(emit):
            chosen = emit(op.where(masked, relax.const(0.0), scores(emit, x, x)))
            return emit(op.permute_dims(chosen, [0, 2, 1]))

    return build(arguments, body)


@needs("attention_bias", "sdpa_bias", "take", "clip", "conv2d", "silu", "not_equal", "flip")
@needs("reshape", "quantize", "dequantize", "resize2d", "abs", "less_equal", "scatter_nd")
@pytest.mark.parametrize("name", [item.name for item in CANONICALIZATION])
def test_each_pass_has_an_effect_and_can_be_switched_off(name):
    mod = example(name)
    # Padding that the NPU supports stays.
    table = Table([entry for entry in OPS if entry.name != "pad" or name != "PadByTake"])
    with_it, without = simplify(mod, table), simplify(mod, table, disabled=[name])
    assert not tvm_ffi.structural_equal(with_it, without)
    for simplified in (with_it, without):
        relax.analysis.well_formed(simplified)


def test_an_unknown_pass_cannot_be_switched_off():
    with pytest.raises(ValueError, match="did you mean 'FoldConstants'"):
        simplify(example("DropUnused"), TABLE, disabled=["FoldConstant"])
    with pytest.raises(ValueError, match=r"one text, 'FoldBatchNorm'; write a list"):
        simplify(example("DropUnused"), TABLE, disabled="FoldBatchNorm")


ROW_OF_FOUR = constant(np.arange(5) - 2, "float32")
ALL_ROWS = constant(np.arange(30).reshape(2, 3, 5) / 8, "float32")
BEHIND_A_PRODUCT = {
    "nothing": lambda emit, it: it,
    "a bias": lambda emit, it: emit(op.add(it, ROW_OF_FOUR)),
    "a residual": lambda emit, it: emit(op.subtract(ALL_ROWS, it)),
    "a number for each row": lambda emit, it: emit(
        op.divide(it, constant([[1], [2], [4]], "float32"))
    ),
    "one row for all": lambda emit, it: emit(op.multiply(it, constant([[[2]]], "float32"))),
    "a soft cap": lambda emit, it: emit(
        op.multiply(emit(op.tanh(emit(op.divide(it, relax.const(8.0))))), relax.const(8.0))
    ),
    "limits": lambda emit, it: emit(op.clip(it, -3, 3)),
    "float16": lambda emit, it: emit(op.astype(it, "float16")),
}
READS_ROWS = {
    "the last": lambda it: op.strided_slice(it, [1], [-1], [2**63 - 1]),
    "the first two": lambda it: op.strided_slice(it, [-2], [0], [2]),
    "one without its axis": lambda it: op.take(it, relax.const(1, "int64"), axis=1),
}


@pytest.mark.parametrize("reading", READS_ROWS)
@pytest.mark.parametrize("behind", BEHIND_A_PRODUCT)
def test_rows_that_nothing_reads_are_not_multiplied(behind, reading):
    weight = constant(RNG.integers(-4, 5, (4, 5)), "float32")

    def body(emit):
        product = BEHIND_A_PRODUCT[behind](emit, emit(op.matmul(X, weight)))
        return emit(READS_ROWS[reading](product))

    mod = build([X], body)
    simplified = simplify(mod, TABLE)
    (product,) = (
        item.value
        for block in simplified["main"].body.blocks
        for item in block.bindings
        if "matmul" in str(getattr(item.value, "op", ""))
    )
    assert product.ty.shape[1] == (2 if reading == "the first two" else 1)
    x = RNG.integers(-4, 5, (2, 3, 4)).astype("float32")
    np.testing.assert_allclose(run(mod, x), as_on_the_host(mod, x), rtol=1e-3, atol=1e-5)


@needs("scatter_nd", "stack", "broadcast_to", "reshape")
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("shapes", "dtype", "count"),
    [
        ([(5,), (5,), (5,)], "int64", (5,)),
        ([(2, 1), (1, 3), (1,)], "int32", (2, 3)),
        ([(2, 1), (3,), (1,)], "int64", (6,)),
    ],
)
def test_elements_are_put_at_their_places(shapes, dtype, count, accumulate):
    # Some count from the end, and no place is there twice: the order of two is not defined.
    places = [
        (np.arange(math.prod(shape)) % size - axis).reshape(shape).astype(dtype)
        for axis, (shape, size) in enumerate(zip(shapes, (2, 3, 4), strict=True))
    ]
    values = RNG.integers(1, 9, count).astype("float32")
    given = [variable(f"places_{axis}", *it.shape, dtype=dtype) for axis, it in enumerate(places)]

    def body(emit):
        return emit(op.index_put(X, tuple(given), relax.const(values), accumulate))

    mod = build([X, *given], body)
    x = RNG.integers(-9, 9, (2, 3, 4)).astype("float32")
    wanted = x.copy()
    put = np.add.at if accumulate else np.ndarray.__setitem__
    put(wanted, tuple(places), values.reshape(np.broadcast_shapes(*shapes)))
    np.testing.assert_array_equal(run(mod, x, *places), wanted)
    assert placed(mod).regions and not placed(mod).on_host


def read_as_a_whole(emit, product):
    part = emit(op.strided_slice(product, [1], [-1], [3]))
    return [part, emit(op.negative(product))]


def test_the_product_with_a_vector_has_other_rows():
    y, weight = variable("y", 3, 3, 4), constant([1, 2, 3, 4], "float32")
    first = relax.const(0, "int64")
    mod = build([y], lambda emit: emit(op.take(emit(op.matmul(y, weight)), first, axis=0)))
    numbers = RNG.integers(-4, 5, (3, 3, 4)).astype("float32")
    np.testing.assert_array_equal(run(mod, numbers), as_on_the_host(mod, numbers))


@pytest.mark.parametrize(
    "read",
    [
        read_as_a_whole,
        lambda emit, it: emit(op.strided_slice(it, [2], [-1], [5])),
        lambda emit, it: emit(op.strided_slice(it, [1], [0], [3], [2])),
        lambda emit, it: emit(op.strided_slice(emit(op.nn.softmax(it, 1)), [1], [0], [1])),
    ],
)
def test_other_slices_stay_behind_their_product(read):
    weight = constant(np.ones((4, 5)), "float32")
    mod = build([X], lambda emit: read(emit, emit(op.matmul(X, weight))))
    assert ops_of(simplify(mod, TABLE))[0] == "matmul"


@tvm.instrument.pass_instrument
class Seen:
    def __init__(self):
        self.names = []

    def run_before_pass(self, mod, info):
        self.names.append(str(info.name))


def test_instruments_see_the_passes_in_order():
    seen = Seen()
    with tvm.transform.PassContext(instruments=[seen]):
        simplify(example("DropUnused"), TABLE)
    names = [item.name for item in CANONICALIZATION]
    assert [name for name in seen.names if name in names] == names


def test_passes_of_others_run_before_and_after():
    order = []

    def noted(name):
        def run(mod, context):
            order.append((name, ops_of(mod)))
            return mod

        return tvm.transform.module_pass(run, opt_level=0, name=name)

    mod = example("MergeClips")
    simplify(mod, TABLE, before=[noted("before")], after=[noted("after")])
    assert order == [("before", ["clip", "clip"]), ("after", ["clip"])]


# ---- Constants ----------------------------------------------------------------------------------


def numbers(dtype):
    """Return numbers that include the extremes of a dtype."""
    if dtype == "bool":
        return RNG.random((4, 5)) < 0.5
    if dtype.startswith("float"):
        array = (RNG.standard_normal((4, 5)) * 10).astype(dtype)
        tiny, most = np.finfo(dtype).tiny / 4, np.finfo(dtype).max
        array.reshape(-1)[:11] = [0.0, -0.0, np.inf, -np.inf, 1, -1, 1.5, 2.5, -2.5, tiny, most]
        return array
    low, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    array = RNG.integers(max(low, -10), 10, (4, 5)).astype(dtype)
    array.reshape(-1)[:3] = [low, most, 1]
    return array


DTYPES = ("float32", "float16", "int32", "int64", "uint8")


def computed_calls():
    """Generate calls that NumPy computes."""
    for dtype in DTYPES:
        x, y = (constant(numbers(dtype)) for _ in range(2))
        divisor = numbers(dtype)
        divisor[divisor.astype("float64") < 1] = 3
        for name in ("add", "subtract", "multiply", "maximum", "minimum", "less", "greater_equal"):
            yield getattr(op, name)(x, y)
        for name in ("divide", "floor_divide", "floor_mod", "mod"):
            yield getattr(op, name)(x, constant(divisor))
        for name in ("abs", "square", "ones_like", "flatten", "permute_dims"):
            yield getattr(op, name)(x)
        for name in ("floor", "ceil", "trunc", "sqrt", "isnan", "isinf", "isfinite"):
            if dtype.startswith("float"):
                yield getattr(op, name)(x)
        for other in (*DTYPES, "bool"):
            yield op.astype(constant(np.trunc(RNG.random((4, 5)) * 9), dtype), other)
        for name in ("sum", "prod", "max", "min"):
            yield getattr(op, name)(x, [-1], True)
        yield from (op.clip(x, 1, 6), op.where(constant(numbers("bool")), x, y))
        yield from (op.concat([x, y], -1), op.stack([x, y], 1), op.split(x, [1, 3], 1))
        yield from (op.flip(x, -1), op.repeat(x, 2, 1), op.tile(x, (2, 1, 3)), op.triu(x, -1))
        # More columns than are copied at a time.
        large = constant(RNG.integers(0, 100, (3, 70, 45)), dtype)
        yield from (op.permute_dims(large, axes) for axes in ([0, 2, 1], [2, 1, 0], [1, 2, 0]))
        yield op.strided_slice(x, [0, 1], [0, -4], [4, -1], [2, 1])
        yield op.take(x, constant([[0, 3], [1, 2]], "int32"), 1)
        yield op.take(x, constant([0, 9, -7]), 0, "wrap")
        yield op.gather_elements(x, constant(RNG.integers(0, 5, (2, 3))), 1)
        yield op.gather_nd(x, constant([[0, 1], [3, 4]]))
        yield op.index_tensor(x, [constant([0, 2]), constant([[1], [4]])])
        if dtype == "float32":
            for number, axis in ((0.1, -1), (np.full(5, 3e-39), -1), (RNG.random(4) + 0.1, 0)):
                for kind in ("int8", "uint8", "int16", "uint16"):
                    zeros = constant(np.full(np.shape(number), 3), kind)
                    yield op.quantize(x, constant(number, dtype), zeros, axis, kind)
        yield op.meshgrid([constant(numbers(dtype)[0]), constant(numbers(dtype)[1])], "ij")
        if not dtype.startswith("float"):
            for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
                yield getattr(op, name)(x, y)
            yield op.left_shift(x, constant(np.full((4, 5), 3), dtype))
            yield op.right_shift(x, constant(np.full((4, 5), 3), dtype))


def arrays_of(value):
    fields = value.fields if isinstance(value, relax.Tuple) else [value]
    return [field.value.numpy() for field in fields]


@pytest.mark.thorough
def test_numpy_equals_kernels_of_tvm_bit_for_bit():
    normalize = relax.BlockBuilder().normalize
    calls = [normalize(call) for call in computed_calls()]
    kernels = fold.Kernels(tvm.IRModule(), calls)
    count = 0
    for call in calls:
        value, expected = evaluate.constant_of(call), kernels.run(call)
        if value is None or expected is None:
            continue
        count += 1
        for one, other in zip(arrays_of(value), arrays_of(expected), strict=True):
            np.testing.assert_array_equal(one, other, f"{call}", strict=True)
            if one.dtype.kind == "f":
                signs = [np.signbit(item[~np.isnan(item)]) for item in (one, other)]
                np.testing.assert_array_equal(*signs, f"{call}")
    assert count > len(calls) * 0.8


@pytest.mark.parametrize(
    "call",
    [
        op.divide(constant([1, 2]), constant([1, 0])),
        op.floor_mod(constant([-(2**31)], "int32"), constant([-1], "int32")),
        op.take(constant([1, 2]), constant([5]), 0),
        op.left_shift(constant([1]), constant([64])),
        op.gather_nd(constant([1, 2]), constant([[2]])),
    ],
)
def test_calls_that_trap_or_read_out_of_bounds_are_not_folded(call):
    assert ops_of(simplify(build([], lambda emit: emit(call)), TABLE)) == [
        call.op.name.removeprefix("relax.")
    ]


def test_a_size_that_only_the_run_knows_is_no_constant():
    n = tvm.tirx.Var("n", "int64")

    def body(emit):
        sizes = emit(op.shape_to_tensor(relax.ShapeExpr([n, 3])))
        first = emit(op.take(sizes, constant(0, "int64"), 0))
        return emit(op.add(first, constant(2, "int64")))

    mod = build([variable("x", n, 3)], body)
    found = as_on_the_host(simplify(mod, TABLE), np.zeros((5, 3), "float32"))
    assert found == 7


def test_all_kernels_of_a_model_are_one_build(monkeypatch):
    builds = []
    lower = fold._lower
    monkeypatch.setattr(
        fold, "_lower", lambda mod, wanted: builds.append(wanted) or lower(mod, wanted)
    )

    def body(emit):
        one = emit(op.exp(constant(np.arange(6.0), "float32")))
        other = emit(op.sin(emit(op.add(one, one))))
        return emit(op.nn.softmax(emit(op.reshape(other, [2, 3])), -1))

    mod = simplify(build([], body), TABLE)
    assert ops_of(mod) == []
    assert [len(wanted) for wanted in builds] == [3]
    x = np.exp(np.arange(6.0))
    e = np.exp(np.sin(2 * x).reshape(2, 3))
    np.testing.assert_allclose(run(mod), e / e.sum(-1, keepdims=True), 1e-4)


@needs("matmul", "dequantize")
def test_a_quantized_constant_stays_one_if_the_table_has_dequantize():
    weight = constant(np.ones((4, 4)), "int8")
    call = op.dequantize(weight, relax.const(0.5), relax.const(0, "int8"), axis=-1)
    mod = build([SQUARE], lambda emit: emit(op.matmul(SQUARE, emit(call))))
    assert ops_of(simplify(mod, Table(OPS))) == ["dequantize", "matmul"]
    without = [entry for entry in OPS if entry.name != "dequantize"]
    assert ops_of(simplify(mod, Table(without))) == ["matmul"]


# ---- Small defects ------------------------------------------------------------------------------


@support.needs_reals
@needs("take")
@pytest.mark.parametrize(
    "mode, numpy_mode", [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]
)
def test_a_border_of_the_input_runs_on_the_npu(mode, numpy_mode):
    widths = ((0, 0), (2, 1), (0, 3))
    pad = op.nn.pad(X, [width for pair in widths for width in pair], mode)
    mod = build([X], lambda emit: emit(pad))
    data = RNG.standard_normal((2, 3, 4)).astype("float32")
    assert placed(mod).regions == ([["pad"]] if TABLE.get("pad") else [["take", "take"]])
    np.testing.assert_array_equal(run(mod, data), np.pad(data, widths, numpy_mode))


@support.needs_reals
@needs("take", "conv1d", "relu")
def test_a_reflected_border_before_a_convolution_is_one_region():
    x, weight = variable("x", 1, 4, 16), RNG.standard_normal((4, 4, 3)).astype("float32")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        data = x
        with builder.dataflow():
            for _ in range(3):
                # The ONNX importer's form of Pad.
                data = builder.emit_te(topi.nn.mirror_pad, data, (0, 0, 1), (0, 0, 1), "REFLECT")
                data = builder.emit(op.nn.relu(builder.emit(op.nn.conv1d(data, constant(weight)))))
            result = builder.emit_output(data)
        builder.emit_func_output(result)
    mod = builder.get()
    found = placed(mod)
    assert len(found.regions) == 1
    assert not found.on_host
    data = RNG.standard_normal((1, 4, 16)).astype("float32")
    np.testing.assert_allclose(run(mod, data), as_on_the_host(mod, data), 1e-4, 1e-5)


@needs("pad", "conv1d", "split", "square", "add", "sqrt")
def test_a_short_time_fourier_transform_is_one_region():
    # As in models of speech: windows of 256 samples, 128 apart.
    angles = 2 * np.pi / 256 * np.outer(np.arange(129), np.arange(256))
    basis = np.concatenate([np.cos(angles), np.sin(angles)]) * np.hanning(256)
    weight = constant(basis[:, None], "float32")

    def body(emit):
        data = emit(op.nn.pad(x, [0, 0, 0, 0, 0, 64], "reflect"))
        parts = emit(op.split(emit(op.nn.conv1d(data, weight, 128)), 2, 1))
        real, imaginary = (emit(op.square(emit(parts[i]))) for i in range(2))
        return emit(op.sqrt(emit(op.add(real, imaginary))))

    x = variable("x", 1, 1, 576)
    mod = build([x], body)
    found = placed(mod)
    assert len(found.regions) == 1
    assert not found.on_host
    data = RNG.standard_normal((1, 1, 576)).astype("float32")
    np.testing.assert_allclose(run(mod, data), as_on_the_host(mod, data), 1e-4, 1e-4)


@support.needs_reals
@needs("relu")
@pytest.mark.parametrize(
    "size", [4, pytest.param(tvm.tirx.Var("n", "int64"), marks=support.needs_symbols)]
)
def test_slices_without_elements_vanish(size):
    x = variable("x", 2, size, 4)

    def body(emit):
        empty = emit(op.strided_slice(x, [2], [4], [9]))
        data = emit(op.concat([emit(op.nn.relu(x)), emit(op.nn.relu(empty))], -1))
        return emit(op.nn.relu(data))

    mod = build([x], body)
    assert placed(mod).regions == [["relu", "relu"]]
    assert not placed(mod).on_host
    data = RNG.standard_normal((2, 4, 4)).astype("float32")
    np.testing.assert_array_equal(run(mod, data), np.maximum(data, 0))


@dataclass(eq=False)
class Registered:
    """A pattern in the form of TVM's registry."""

    name: str
    pattern: DFPattern
    annotation_patterns: dict
    check: Callable


@needs("sdpa")
def test_a_chain_is_a_composite_without_its_parts_as_ops(monkeypatch):
    from backend.engine.backend.regions import Partitioner, composites
    from backend.engine.backend.settings.options import Options

    table = Table([entry for entry in TABLE.ops if entry.name not in ("softmax", "multiply")])
    patterns = [Registered(*pattern) for pattern in reversed(make_patterns(table))]
    monkeypatch.setattr(composites, "get_patterns_with_prefix", lambda prefix: patterns)

    def body(emit):
        value = emit(op.multiply(scores(emit, X, X), relax.const(0.5)))
        return emit(op.matmul(emit(op.nn.softmax(value, -1)), X))

    mod = simplify(build([X], body), table)
    mod = Partitioner(mod, table, Options()).run()
    report = offload_report(mod)
    assert {entry.composite for entry in report.offloaded} == {"sdpa"}
    assert not report.on_host


# ---- The grammar --------------------------------------------------------------------------------


def test_ops_below_nn_are_those_of_relax():
    names = {str(name) for name in tvm.ir.Op.list_op_names()}
    path = Path(chain_grammar.__file__).with_name("relax_ops.json")
    listed = json.loads(path.read_text())
    assert {name for ops in listed.values() for name in ops} <= names
    assert len(listed["nn"]) > 20
    # A chain names both by their last word.
    assert not {name.replace("nn.", "") for name in listed["nn"]} & names


def test_the_grammar_of_chains_is_read_without_tvm():
    from backend.engine.backend.table import chain_grammar

    code = f"import runpy, sys; runpy.run_path({chain_grammar.__file__!r}, run_name='grammar')"
    code += "; assert not any(name.startswith('tvm') for name in sys.modules)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


# ---- Rewriting ----------------------------------------------------------------------------------


def test_a_call_is_made_anew_only_where_it_reads_a_constant():
    x, bound = variable("x", 2, 3), variable("bound", 2, 3)
    constant = relax.const(np.zeros((2, 3), "float32"))
    unchanged = relax.op.concat([x, x], 0)
    assert with_constants(unchanged, {bound: constant}) is unchanged
    (fields,) = with_constants(relax.op.concat([x, bound], 0), {bound: constant}).args
    assert fields.fields[0].same_as(x)
    assert fields.fields[1].same_as(constant)
