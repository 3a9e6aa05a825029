# SPDX-License-Identifier: Apache-2.0
"""Idioms of front ends for indices and masks, in ops of the table."""

from itertools import chain

import numpy as np
import pytest
import tvm
from tvm import relax

import support
from backend.engine.backend.passes import simplify
from support import TABLE, build, calls_of, compile_for, variable

needs = support.needs  # Not imported, because some selections of ops skip every test that uses it.
RNG = np.random.default_rng(0)


def run(mod, *arrays):
    """Compile a model for the NPU, and run it."""
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(array) for array in arrays)).numpy()


def simplified(mod):
    """Return the ops of a canonicalized model."""
    return calls_of(simplify(mod, TABLE)["main"])


def numbers(*shape):
    return RNG.standard_normal(shape).astype("float32")


# ---- Indices ------------------------------------------------------------------------------------


@needs("take")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_of_several_dimensions_are_one(dtype):
    x = variable("x", 3, 4, 5)
    rows, columns = (np.array(item, dtype) for item in ([[0], [-1]], [[1, -4, 3]]))
    arguments = [
        relax.Var(name, relax.TensorType(item.shape, dtype))
        for name, item in (("rows", rows), ("columns", columns))
    ]
    data = numbers(3, 4, 5)
    given = build([x, *arguments], lambda emit: emit(relax.op.index_tensor(x, arguments)))
    np.testing.assert_array_equal(run(given, data, rows, columns), data[rows, columns])

    known = [relax.const(item) for item in (rows, columns)]
    constant = build([x], lambda emit: emit(relax.op.index_tensor(x, known)))
    assert simplified(constant) == ["relax.reshape", "relax.take"]
    np.testing.assert_array_equal(run(constant, data), data[rows, columns])


@needs("take")
@pytest.mark.parametrize("index", [-1, [-1, 0, -4], [[2], [-3]]])
def test_a_constant_index_counts_from_the_end(index):
    x, data = variable("x", 3, 4, 5), numbers(3, 4, 5)
    taken = relax.op.take(x, relax.const(np.array(index, "int64")), axis=1)
    np.testing.assert_array_equal(run(build([x], lambda emit: emit(taken)), data), data[:, index])

    # Also for a symbolic size, such as for the last token.
    x = variable("x", 3, tvm.tirx.Var("n", "int64"), 5)
    taken = relax.op.take(x, relax.const(np.array(index, "int64")), axis=1)
    np.testing.assert_array_equal(run(build([x], lambda emit: emit(taken)), data), data[:, index])


# ---- Masks --------------------------------------------------------------------------------------


def test_masks_of_packed_sequences_are_constants():
    x = variable("x", 4, 4)

    def body(emit):
        positions = relax.const(np.array([0, 1, 2, 3]))
        starts = emit(relax.op.not_equal(positions, relax.const(np.array([0, 1, 2, 2]))))
        parts = emit(relax.op.cumsum(starts, 0))
        rows, columns = (emit(relax.op.expand_dims(parts, axis)) for axis in (1, 0))
        seen = emit(relax.op.equal(rows, columns))
        return emit(relax.op.add(x, emit(relax.op.astype(seen, "float32"))))

    mod = build([x], body)
    assert simplified(mod) == ["relax.add"]
    expected = np.array([[1, 1, 1, 0]] * 3 + [[0, 0, 0, 1]], "float32")
    np.testing.assert_array_equal(run(mod, np.zeros((4, 4), "float32")), expected)


def test_numbers_of_a_known_shape_are_constants():
    x = variable("x", 2, 3)

    def body(emit):
        shape = emit(relax.op.shape_to_tensor(emit(relax.op.shape_of(x))))
        width = emit(relax.op.take(shape, relax.const(1, "int64"), axis=0))
        return [emit(relax.op.add(x, x)), emit(relax.op.add(width, width))]

    assert simplified(build([x], body)) == ["relax.add"]


def test_distances_that_are_limited_at_one_end_are_constants(capfd):
    x = variable("x", 3)

    def body(emit):
        distances = relax.const(np.array([1, 40, -7]), "int64")
        far = emit(relax.op.minimum(distances, relax.const(31, "int64")))
        near = emit(relax.op.clip(far, 0, np.inf))
        return emit(relax.op.add(x, emit(relax.op.astype(near, "float32"))))

    mod = build([x], body)
    assert simplified(mod) == ["relax.add"]
    np.testing.assert_array_equal(run(mod, np.zeros(3, "float32")), [1, 31, 0])
    assert "BlockBuilder" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "orders, left",
    [
        (([2, 0, 1, 3], [0, 3, 2, 1]), ["relax.permute_dims"]),
        (([2, 0, 1, 3], [1, 2, 0, 3]), []),
        ((None, None), []),
    ],
)
def test_several_transposes_become_one_or_none(orders, left):
    x, data = variable("x", 2, 3, 4, 5), numbers(2, 3, 4, 5)

    def body(emit):
        value = x
        for axes in orders:
            value = emit(relax.op.permute_dims(value, axes))
        return emit(relax.op.abs(value))

    mod = build([x], body)
    assert simplified(mod) == [*left, "relax.abs"]
    expected = np.abs(data)
    for axes in orders:
        expected = expected.transpose(axes)
    np.testing.assert_array_equal(run(mod, data), expected)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


class Attention:
    """Attention with 3 heads as PyTorch exports it: `mask` says which keys a query attends to.

    The heads follow the sequence in the inputs, and are transposed in front of it if `turned`.
    """

    def __init__(self, mask, guard="", lowest=-np.inf, constant=False, turned=True):
        self.is_masked = mask is not None
        self.mask = np.array(mask if self.is_masked else True)
        shape = (2, 4, 3, 8) if turned else (2, 3, 4, 8)
        self.arrays = [numbers(*shape) for _ in range(3)]
        self.names = [variable(name, *shape) for name in ("query", "key", "value")]
        self.guard, self.lowest, self.turned = guard, lowest, turned
        given = relax.Var("mask", relax.TensorType(self.mask.shape, "bool"))
        self.known = relax.const(self.mask) if constant else given
        self.arguments = [*self.names, *([given] if self.is_masked and not constant else [])]
        self.mod = build(self.arguments, self.body)

    def body(self, emit):
        query, key, value = self.names
        if self.turned:
            query, key, value = (emit(relax.op.permute_dims(x, [0, 2, 1, 3])) for x in self.names)
        key = emit(relax.op.permute_dims(key, [0, 1, 3, 2]))
        # The square root of the scale is applied to both operands.
        query, key = (emit(relax.op.multiply(x, relax.const(0.5))) for x in (query, key))
        scores = emit(relax.op.matmul(query, key))
        lowest, zero = (relax.const(number, "float32") for number in (self.lowest, 0.0))
        if self.guard and self.is_masked:
            bias = emit(relax.op.where(self.known, zero, lowest))
            scores = emit(relax.op.add(scores, bias))
        elif self.is_masked:
            scores = emit(relax.op.where(self.known, scores, lowest))
        weights = emit(relax.op.nn.softmax(scores, -1))
        if self.guard == "numbers":
            empty = emit(relax.op.isnan(weights))
            weights = emit(relax.op.where(empty, zero, weights))
        elif self.guard == "rows":
            none = emit(relax.op.logical_not(emit(relax.op.equal(scores, lowest))))
            most = relax.op.max(emit(relax.op.astype(none, "int8")), -1, keepdims=True)
            seen = emit(relax.op.astype(emit(most), "bool"))
            zeros = emit(relax.op.full_like(weights, zero))
            weights = emit(relax.op.where(emit(relax.op.logical_not(seen)), zeros, weights))
        mixed = emit(relax.op.matmul(weights, value))
        if not self.turned:
            return mixed
        # PyTorch transposes twice.
        mixed = emit(relax.op.permute_dims(mixed, [2, 0, 1, 3]))
        mixed = emit(relax.op.permute_dims(mixed, [1, 2, 0, 3]))
        return emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))

    def run(self):
        given = self.arrays if len(self.arguments) == 3 else [*self.arrays, self.mask]
        return run(self.mod, *given)

    def expected(self):
        heads = (0, 2, 1, 3) if self.turned else (0, 1, 2, 3)
        query, key, value = (item.transpose(heads).astype("float64") for item in self.arrays)
        scores = np.where(self.mask, query @ key.swapaxes(-1, -2) / 4, self.lowest)
        with np.errstate(invalid="ignore"):
            weights = softmax(scores)
        weights = np.where(np.isnan(weights), 0.0, weights) if self.guard else weights
        return (weights @ value).transpose(heads)

    @property
    def labels(self):
        return list(
            chain.from_iterable(support.placement(support.partition_for(self.mod), "main").regions)
        )


CAUSAL = np.tril(np.ones((4, 4), bool))
EMPTY = CAUSAL & (np.arange(4) > 0)  # The first query attends to nothing.
PADDED = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], bool)[:, None, None, :]


@needs("attention_bias", "matmul", "softmax")
@pytest.mark.parametrize(
    "mask, guard, constant",
    [
        (CAUSAL, "rows", True),
        (CAUSAL, "numbers", False),
        (EMPTY, "numbers", True),
        (EMPTY, "rows", False),
        (PADDED, "rows", True),
        (PADDED, "numbers", False),
    ],
)
def test_a_fully_masked_query_gives_zeros(mask, guard, constant):
    model = Attention(mask, guard, constant=constant)
    # A guard by isnan is not fused.
    assert model.labels.count("attention_bias") == (guard == "rows")
    if guard == "rows" and constant and mask.any(-1).all():
        assert model.labels == ["attention_bias"]
    np.testing.assert_allclose(model.run(), model.expected(), rtol=1e-5, atol=1e-6)


@needs("attention_bias", "matmul", "softmax")
@pytest.mark.parametrize("dtype, positions", [("float32", True), ("float16", False)])
def test_a_query_that_its_scores_mask_gives_zeros_too(dtype, positions):
    """The scores contain -inf, from a mask below another bias or from an overflow in float16."""
    query, key, value = (variable(name, 2, 4, 8, dtype=dtype) for name in ("q", "k", "v"))
    mask = np.where(np.tril(np.ones((4, 4), bool), -1), 0, -np.inf)

    def body(emit):
        scores = emit(relax.op.matmul(query, emit(relax.op.permute_dims(key, [0, 2, 1]))))
        for bias in (mask, np.arange(4)) if positions else ():
            scores = emit(relax.op.add(scores, relax.const(bias.astype(dtype))))
        seen = emit(relax.op.logical_not(emit(relax.op.equal(scores, relax.const(-np.inf, dtype)))))
        seen = emit(relax.op.max(emit(relax.op.astype(seen, "int8")), -1, keepdims=True))
        empty = emit(relax.op.logical_not(emit(relax.op.astype(seen, "bool"))))
        weights = emit(relax.op.nn.softmax(scores, -1))
        zeros = emit(relax.op.full_like(weights, relax.const(0.0, dtype)))
        return emit(relax.op.matmul(emit(relax.op.where(empty, zeros, weights)), value))

    size = 1 if positions else 200
    arrays = [np.full((2, 4, 8), one, dtype) for one in (size, -size, 1)]
    result = run(build([query, key, value], body), *arrays)
    assert (result == 0).all(-1).tolist() == [[True, *[not positions] * 3]] * 2
    assert np.isfinite(result).all()


class Biased:
    """Attention to which positions and a mask are added one after the other."""

    def __init__(self, dtype="float32", is_result=False):
        shapes = {name: (2, 3, 4, 8) for name in ("query", "key", "value")}
        shapes |= {"positions": (3, 4, 4), "mask": (2, 1, 1, 4)}
        self.arguments = [variable(name, *shape, dtype=dtype) for name, shape in shapes.items()]
        self.arrays = [numbers(*shape).astype(dtype) for shape in shapes.values()]
        self.arrays[-1][:] = [[[[0, 0, 0, -np.inf]]], [[[0, 0, 0, 0]]]]
        self.is_result = is_result

    def body(self, emit):
        query, key, value, positions, mask = self.arguments
        turned = emit(relax.op.permute_dims(key, [0, 1, 3, 2]))
        scores = emit(relax.op.add(emit(relax.op.matmul(query, turned)), positions))
        both = emit(relax.op.add(mask, scores))
        mixed = emit(relax.op.matmul(emit(relax.op.nn.softmax(both, -1)), value))
        return [mixed, scores] if self.is_result else mixed

    def expected(self):
        query, key, value, positions, mask = (item.astype("float64") for item in self.arrays)
        return softmax(query @ key.swapaxes(-1, -2) + positions + mask) @ value


@needs("sdpa_bias", "permute_dims", "add")
@needs("matmul", variable=True)
@pytest.mark.parametrize(
    "dtype, is_result, is_one",
    [
        ("float32", False, True),
        ("float32", True, False),
        pytest.param("float16", False, False, marks=needs("matmul", dtype="float16")),
    ],
)
def test_positions_and_a_mask_are_one_bias(dtype, is_result, is_one):
    """But not if the scores have other readers, nor in float16, where the sum may overflow."""
    model = Biased(dtype, is_result)
    mod = build(model.arguments, model.body)
    (labels,) = support.placement(support.partition_for(mod), "main").regions
    assert labels.count("sdpa_bias") == is_one
    if not is_result:
        tolerance = 1e-5 if dtype == "float32" else 1e-2
        np.testing.assert_allclose(run(mod, *model.arrays), model.expected(), tolerance, tolerance)


@needs("attention_bias", "matmul", "add")
def test_an_addition_to_a_product_stays_behind_it_without_attention():
    x, bias, residual = variable("x", 4, 8), variable("bias", 8), variable("residual", 4, 8)

    def body(emit):
        scores = emit(relax.op.matmul(x, relax.const(numbers(8, 8))))
        both = emit(relax.op.add(emit(relax.op.add(scores, bias)), residual))
        return emit(relax.op.nn.softmax(both, -1))

    ops = ["relax.matmul", "relax.add", "relax.add", "relax.nn.softmax"]
    assert simplified(build([x, bias, residual], body)) == ops


def in_two_blocks(arguments, body, after):
    """Build a model without a dataflow block that prints after a number of ops."""
    builder, variables = relax.BlockBuilder(), []

    def emit(call):
        variables.append(builder.emit(call))
        if len(variables) == after:
            builder.emit(relax.op.print(format="between"))
        return variables[-1]

    with builder.function("main", arguments, pure=False):
        builder.emit_func_output(body(emit))
    assert after < len(variables)
    return builder.get()


@pytest.mark.thorough
@needs("attention_bias", "matmul", "softmax")
@pytest.mark.parametrize("after", range(1, 22))
def test_attention_in_two_blocks_is_not_rewritten(after):
    model = Attention(CAUSAL, "rows", constant=True)
    mod = in_two_blocks(model.arguments, model.body, after)
    np.testing.assert_allclose(run(mod, *model.arrays), model.expected(), rtol=1e-5, atol=1e-6)


@needs("sdpa_bias", "matmul", "softmax")
@pytest.mark.parametrize("after", range(1, 6))
def test_biases_in_two_blocks_are_not_one(after):
    model = Biased()
    mod = in_two_blocks(model.arguments, model.body, after)
    np.testing.assert_allclose(run(mod, *model.arrays), model.expected(), rtol=1e-5, atol=1e-6)


@needs("sdpa", "permute_dims")
def test_a_swap_in_one_batch_is_one_of_all():
    query, key, value = (variable(name, 2, 3, 4, 8) for name in ("q", "k", "v"))

    def body(emit):
        flat = emit(relax.op.permute_dims(emit(relax.op.reshape(key, [6, 4, 8])), [0, 2, 1]))
        turned = emit(relax.op.reshape(flat, [2, 3, 8, 4]))
        weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(query, turned)), -1))
        return emit(relax.op.matmul(weights, value))

    mod = build([query, key, value], body)
    assert support.placement(support.partition_for(mod), "main").regions == [["sdpa"]]
    q, k, v = (numbers(2, 3, 4, 8) for _ in range(3))
    expected = softmax(q @ k.swapaxes(-1, -2)) @ v
    np.testing.assert_allclose(run(mod, q, k, v), expected, rtol=1e-5, atol=1e-6)


@needs("attention", "attention_bias", "sdpa", "sdpa_bias", "sdpa_masked")
@pytest.mark.parametrize(
    "model, label",
    [
        (Attention(None, "rows"), "attention"),
        (Attention(None, "rows", turned=False), "sdpa"),
        (Attention(CAUSAL, "rows", constant=True), "attention_bias"),
        (Attention(CAUSAL, "rows", constant=True, turned=False), "sdpa_bias"),
        (Attention(CAUSAL, constant=True), "sdpa_masked"),
        (Attention(CAUSAL, constant=True, turned=False), "sdpa_masked"),
    ],
)
def test_attention_is_one_composite_where_heads_are_turned_and_where_not(model, label):
    moves = 4 if model.turned and label == "sdpa_masked" else 0
    assert sorted(model.labels) == ["permute_dims"] * moves + [label]
    np.testing.assert_allclose(model.run(), model.expected(), rtol=1e-5, atol=1e-6)


@needs("attention_bias", "matmul", "softmax")
@pytest.mark.parametrize("lowest", [-np.inf, float(np.finfo("float32").min), -100.0])
def test_masked_values_may_be_nan(lowest):
    model = Attention(CAUSAL, lowest=lowest)
    assert "attention_bias" not in model.labels
    np.testing.assert_allclose(model.run(), model.expected(), rtol=1e-5, atol=1e-6)
    model.arrays[1][:, 3] = np.nan
    model.arrays[2][:, 3] = 0
    result = model.run()[:, :3]
    assert np.isfinite(result).all()


@needs("attention", "matmul")
@pytest.mark.parametrize("dtype, factor", [("int32", 65536), ("float32", 1e-20), ("float16", 256)])
def test_factors_that_are_not_scales_are_unchanged(dtype, factor):
    x, y = (variable(name, 4, 4, dtype=dtype) for name in "xy")

    def body(emit):
        scaled = [emit(relax.op.multiply(item, relax.const(factor, dtype))) for item in (x, y)]
        return emit(relax.op.matmul(*scaled))

    assert simplified(build([x, y], body)) == ["relax.multiply", "relax.multiply", "relax.matmul"]
