# SPDX-License-Identifier: Apache-2.0
"""Functions that front ends decompose into several ops, and masks that they compute.

The chains are those of the table, in every spelling that `chains.py` knows.
"""

from dataclasses import replace
from functools import cache
from itertools import chain, count

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import support
from backend import offload_report
from backend.engine.backend.ir.calls import attributes_of
from backend.engine.backend.passes import simplify
from backend.engine.backend.table.chain_grammar import Either, Number, Step
from backend.engine.backend.table.chains import build as spell
from backend.engine.backend.table.chains import chains_of
from backend.engine.backend.table.reasons import DECLINES
from support import (
    OPS,
    TABLE,
    Case,
    Model,
    Tensor,
    build,
    calls_of,
    compile_all,
    partition_for,
    run_on_host,
    variable,
)

needs = support.needs  # Not imported, because some selections of ops skip every test that uses it.
CHAINS = {
    f"{op.name}-{index}": (op, chain)
    for op in TABLE.ops
    for index, chain in enumerate(chains_of(op))
    if op.name in OPS
}


def case_of(op, dtype=""):
    """Return a case of an op in which all of its spellings differ."""
    for entry in OPS[op.name]["cases"]:
        case = Case(op.name, entry, dtype)
        first = next(case.specs())[1][0]
        if len(first.shape) > 1 and not {1, "n"} & set(first.shape):
            return case
    raise AssertionError(f"{op.name} has no such case")


class Spelling:
    """A chain as a model; `points` has the number of options at each choice of spelling."""

    def __init__(self, name, chosen=(), node=None, dtype="", leak=None):
        op, chain = CHAINS[name]
        self.dtype = dtype
        case = case_of(op, dtype)
        parts = [name, *(f"{point} {option}" for point, option in chosen), dtype, leak]
        text = "_".join(str(part) for part in parts if part not in ("", None))
        self.model = Model("".join(char if char.isalnum() else "_" for char in text))
        self.points = []
        inputs = [self.model.argument(spec, f"{case} {item.name}") for item, [spec] in case.specs()]
        given = dict(case.entry.get("attributes", {}))
        if op.relax:
            given = attributes_of(self.model.normalize(op.name, inputs, given), {})
            # The default depends on the shape.
            given |= {"scale": 0.25} if given.get("scale") == "" else {}
        given |= chain.fixed
        known = {key: value for key, value in given.items() if value != ""}
        self.refusal = self.model.refusal(op.name, *inputs, **known)
        values = self.model.call(op.name, *inputs, **known).values
        self.model.bindings.clear()

        def pick(options):
            self.points.append(len(options))
            return options[dict(chosen).get(len(self.points) - 1, 0)]

        exprs = {item.name: one.expr for item, one in zip(op.inputs, inputs, strict=True)}
        result = spell(node or chain.node, exprs, given, inputs[0].dtype, self.model.bind, pick)
        self.model.outputs = [Tensor(result, values)]
        if leak is not None:
            self.model.outputs.append(Tensor(self.model.bindings[leak].var, {}))


def labels_of(name):
    """Return the possible names of a chain's composite: entries may share a Relax op."""
    op, _ = CHAINS[name]
    return {op.name, *(entry.name for entry in TABLE.entries_of(op.relax) if op.relax)}


@cache
def plain(name):
    """Return the plainest spelling, in all element types."""
    op, chain = CHAINS[name]
    # The fixed attribute is a number such as a sixth, which other dtypes round.
    dtypes = [] if chain.fixed else op.inputs[0].dtypes[1:]
    return [Spelling(name), *(Spelling(name, dtype=dtype) for dtype in dtypes)]


@cache
def others(name):
    """Return the spellings that differ from the plainest at one point.

    With casts, they are in all element types too.
    """
    first, *rest = plain(name)
    found = []
    for point, options in enumerate(first.points):
        for option in range(1, options):
            chosen = ((point, option),)
            found.append(Spelling(name, chosen))
            if any(map(is_idle, found[-1].model.bindings)):
                found += [Spelling(name, chosen, dtype=one.dtype) for one in rest]
    return found


@cache
def leaking(name):
    """Return the plainest spelling, with an inner value that is also a result of the model."""
    inside = plain(name)[0].model.bindings[:-1]
    return [Spelling(name, leak=index) for index, one in enumerate(inside) if not is_idle(one)]


def is_idle(binding):
    """Whether a binding casts to the dtype that a value already has, so a pass removes it."""
    call = binding.value
    same = binding.var.ty.dtype == call.args[0].ty.dtype
    return call.op.name == "relax.astype" and same


@cache
def compiled(spellings):
    return compile_all([one.model for name in CHAINS for one in spellings(name)])


def found(spellings, model):
    """Return the placement of a model's ops."""
    return support.placement(compiled(spellings).partitioned[model.name], model.name)


def assert_right(spellings, model):
    arguments = [argument.values[1] for argument in model.arguments]
    actual = compiled(spellings).run(model.name, arguments)
    expected = replace(model, outputs=model.outputs[:1])
    verdict = expected.judge(1, actual[:1])
    assert not verdict.text, f"{model.name}: {verdict.text}"


def assert_composites(spellings, name):
    supported = [spelling for spelling in spellings(name) if spelling.refusal is None]
    if not spellings(name):
        pytest.skip("it has one spelling")
    if not supported:
        pytest.skip("capabilities.py was edited and refuses it")
    for spelling in supported:
        placement = found(spellings, spelling.model)
        assert not placement.on_host, spelling.model.name
        assert [len(region) for region in placement.regions] == [1], spelling.model.name
        assert placement.regions[0][0] in labels_of(name), spelling.model.name
        assert_right(spellings, spelling.model)


def wrong(node, at, numbers=None):
    """Return the plainest spelling with one number a little off, if it has that many numbers."""
    numbers = count() if numbers is None else numbers
    if isinstance(node, Either):
        return wrong(node.options[0], at, numbers)
    if isinstance(node, Number) and not node.attribute and next(numbers) == at:
        return replace(node, factor=node.factor * 1.01 + 0.001)
    if isinstance(node, Step):
        return replace(node, arguments=tuple(wrong(item, at, numbers) for item in node.arguments))
    return node


each_chain = pytest.mark.parametrize("name", CHAINS)


@each_chain
def test_a_chain_is_one_composite_with_right_values(name):
    assert_composites(plain, name)


@pytest.mark.thorough
@each_chain
def test_every_spelling_is_one_composite_with_right_values(name):
    assert_composites(others, name)


@pytest.mark.thorough
@each_chain
def test_a_chain_with_another_number_is_something_else(name):
    right = wrong(CHAINS[name][1].node, -1)
    for at in count():
        node = wrong(CHAINS[name][1].node, at)
        if node == right:
            break  # It was the last number.
        model = Spelling(name, node=node).model
        mod = partition_for(tvm.IRModule({model.name: model.function()}))
        labels = list(chain.from_iterable(support.placement(mod, model.name).regions))
        assert not labels_of(name) & set(labels), f"number {at}"
    if not at:
        pytest.skip("it has no numbers of its own")


@pytest.mark.thorough
@each_chain
def test_a_chain_whose_inside_is_used_elsewhere_stays_what_it_is(name):
    if not leaking(name):
        pytest.skip("nothing is inside of it")
    for spelling in leaking(name):
        labels = list(chain.from_iterable(found(leaking, spelling.model).regions))
        assert not labels_of(name) & set(labels), spelling.model.name
        assert_right(leaking, spelling.model)


def composites(mod, name="main"):
    return support.placement(partition_for(mod), name)


@support.needs_reals
@needs("conv2d", "hard_swish")
def test_a_chain_is_fused_behind_a_convolution():
    x, weight = variable("x", 1, 3, 8, 8), relax.const(np.ones((4, 3, 3, 3), "float32"))

    def body(emit):
        conv = emit(relax.op.nn.conv2d(x, weight))
        gate = emit(relax.op.clip(emit(relax.op.add(conv, relax.const(3.0))), 0, 6))
        product = emit(relax.op.multiply(conv, gate))
        return emit(relax.op.divide(product, relax.const(6.0)))

    assert composites(build([x], body)).regions == [["conv2d_hard_swish"]]


def attention(mask, heads=(0, 2, 1, 3), axis=-1, mask_first=False, shared=()):
    """Return attention as its steps; the mask is added before or after the scores are scaled."""
    query, key, value = (
        variable(name, 2, 5, 1 if name in shared else 3, 8) for name in ("query", "key", "value")
    )
    bias = variable("bias", *mask)

    def body(emit):
        q, k, v = (emit(relax.op.permute_dims(x, heads)) for x in (query, key, value))
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        if mask_first:
            scores = emit(relax.op.add(scores, bias))
        scores = emit(relax.op.multiply(scores, relax.const(0.25)))
        if not mask_first:
            scores = emit(relax.op.add(scores, bias))
        weights = emit(relax.op.nn.softmax(scores, axis))
        return emit(relax.op.permute_dims(emit(relax.op.matmul(weights, v)), [0, 2, 1, 3]))

    return build([query, key, value, bias], body)


@needs("attention_bias", "reshape")
@pytest.mark.parametrize("mask", [(2, 3, 5, 5), (2, 1, 1, 5), (1, 1, 5, 5), (5, 5)])
def test_attention_is_one_composite(mask):
    # TVM's op requires masks of rank 4.
    expected = [[*["reshape"] * (len(mask) < 4), "attention_bias"]]
    assert composites(attention(mask)).regions == expected
    assert composites(attention(mask, axis=3)).regions == expected


@needs("attention", "attention_bias")
@pytest.mark.parametrize(
    "change",
    [
        {"mask": (2, 3, 5, 5), "axis": 2},
        {"mask": (2, 3, 5, 5), "mask_first": True},
        {"mask": (2, 5, 3, 3), "heads": (0, 1, 2, 3)},
        # TVM's own kernel, the fallback if the driver declines, does not support shared heads.
        {"mask": (2, 3, 5, 5), "shared": ("key",)},
        {"mask": (2, 3, 5, 5), "shared": ("key", "value")},
    ],
)
def test_ops_that_are_not_quite_attention_are_unchanged(change):
    labels = list(chain.from_iterable(composites(attention(**change)).regions))
    assert not {"attention", "attention_bias"} & set(labels)


def repeated_heads(mask, rows):
    """Return attention of 4 heads, as exporters write it if they share 2 heads of keys."""
    query, bias = variable("query", 1, 4, rows, 8), variable("bias", *mask)
    key, value = (variable(name, 1, 2, 5, 8) for name in ("key", "value"))

    def repeated(emit, x):
        wide = emit(relax.op.broadcast_to(emit(relax.op.expand_dims(x, 2)), (1, 2, 2, 5, 8)))
        return emit(relax.op.reshape(wide, (1, 4, 5, 8)))

    def body(emit):
        keys = emit(relax.op.permute_dims(repeated(emit, key), [0, 1, 3, 2]))
        scores = emit(relax.op.multiply(emit(relax.op.matmul(query, keys)), relax.const(0.25)))
        weights = emit(relax.op.nn.softmax(emit(relax.op.add(scores, bias)), -1))
        return emit(relax.op.matmul(weights, repeated(emit, value)))

    return build([query, key, value, bias], body)


@needs("sdpa_bias", "reshape", "broadcast_to")
@pytest.mark.parametrize(
    ("mask", "rows", "moved"),
    [
        *[((1, 1, 1, 5), 1, 0), ((5,), 3, 0), ((1, 4, 3, 5), 3, 0)],
        *[((4, 1, 5), 3, 1), ((3, 5), 3, 1), ((1, 1, 3, 5), 3, 1)],
    ],
)
def test_keys_that_heads_share_are_read_once(mask, rows, moved):
    model = repeated_heads(mask, rows)
    support.skip_where_declined(model)
    names = list(chain.from_iterable(composites(model).regions))
    assert names.count("sdpa_bias") == 1
    assert names.count("broadcast_to") == moved
    shapes = [[int(size) for size in param.ty.shape] for param in model["main"].params]
    arrays = [np.random.default_rng(1).normal(size=size).astype("float32") for size in shapes]
    machine = relax.VirtualMachine(support.compile_for(model), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    (expected,) = run_on_host(model, "main", arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@needs("matmul")
@pytest.mark.parametrize("batch, merged", [((2, 3), True), ((3, 2), False)])
def test_batches_that_are_merged_for_a_product_are_not(batch, merged):
    one, other = variable("one", 2, 3, 4, 5), variable("other", *batch, 5, 6)
    if merged:
        call = relax.BlockBuilder().normalize(relax.op.matmul(one, other))
        if reason := TABLE.refusal(call, asked_later=True):
            pytest.skip(f"capabilities.py was edited and refuses it: {reason}")

    def body(emit):
        left = emit(relax.op.reshape(one, [6, 4, 5]))
        right = emit(relax.op.reshape(other, [6, 5, 6]))
        product = emit(relax.op.matmul(left, right))
        return emit(relax.op.reshape(product, [2, 3, 4, 6]))

    mod = simplify(build([one, other], body), TABLE)
    calls = [binding.value.op.name for binding in mod["main"].body.blocks[0].bindings]
    reshapes = ["relax.reshape"] * 2
    assert calls == (["relax.matmul"] if merged else [*reshapes, "relax.matmul", "relax.reshape"])


def simplified(mod):
    """Return the ops of a canonicalized model."""
    return calls_of(simplify(mod, TABLE)["main"])


NORMS = ("layer_norm", "rms_norm")


def norm(name, axes):
    """Return a normalization as its steps; gamma and beta broadcast along the last axes."""
    x = variable("x", 4, 4, 4)
    parameters = [variable(f"parameter_{index}", *[4] * len(axes)) for index in range(2)]

    def body(emit):
        mean = emit(relax.op.mean(x, axes, True))
        data = emit(relax.op.subtract(x, mean)) if name == "layer_norm" else x
        square = emit(relax.op.mean(emit(relax.op.multiply(data, data)), axes, True))
        root = emit(relax.op.sqrt(emit(relax.op.add(square, relax.const(1e-5)))))
        scaled = emit(relax.op.multiply(emit(relax.op.divide(data, root)), parameters[0]))
        return emit(relax.op.add(scaled, parameters[1])) if name == "layer_norm" else scaled

    return build([x, *parameters], body)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name, variable=True)) for name in NORMS]
)
@pytest.mark.parametrize(
    "axes, is_norm",
    [([-1], True), ([1, 2], True), ([2, 1], False), ([1], False), ([0], False), ([0, 1], False)],
)
def test_a_norm_is_over_the_last_axes(name, axes, is_norm):
    assert (simplified(norm(name, axes)) == [f"relax.nn.{name}"]) == is_norm


@pytest.mark.parametrize("shared", [False, True])
def test_limits_at_each_end_are_one_clip_unless_others_use_the_first(shared):
    x = variable("x", 4)

    def body(emit):
        low = emit(relax.op.clip(x, 0, 9))
        high = emit(relax.op.clip(low, -3, 6))
        return [high, emit(relax.op.abs(low))] if shared else high

    clips = ["relax.clip"]
    assert simplified(build([x], body)) == (clips * 2 + ["relax.abs"] if shared else clips)


def test_masks_of_positions_are_constants():
    x = variable("x", 2, 4, 4)

    def body(emit):
        rows = emit(relax.op.expand_dims(emit(relax.op.arange(4)), 1))
        columns = emit(relax.op.expand_dims(emit(relax.op.arange(4)), 0))
        ones = emit(relax.op.full((4, 4), relax.const(True, "bool"), "bool"))
        seen = emit(relax.op.logical_and(emit(relax.op.less_equal(columns, rows)), ones))
        bias = emit(relax.op.where(seen, relax.const(0.0), relax.const(-np.inf, "float32")))
        return emit(relax.op.add(x, bias))

    assert simplified(build([x], body)) == ["relax.add"]


def test_diagonals_are_constants():
    x = variable("x", 3, 5)
    unit, shifted = relax.op.eye_like(x, 1), relax.op.eye(3, 5, -1)
    mod = build([x], lambda emit: emit(relax.op.add(emit(unit), emit(shifted))))
    expected = np.eye(3, 5, 1, "float32") + np.eye(3, 5, -1, "float32")
    assert simplified(mod) == []
    (result,) = run_on_host(simplify(mod, TABLE), "main", [np.zeros((3, 5), "float32")])
    np.testing.assert_array_equal(result, expected)


def test_constants_are_folded_beside_what_tvm_has_no_kernel_for():
    x, ones = variable("x", 1, 4, 2, 2), relax.const(np.ones((1, 4, 2, 2), "float32"))

    def body(emit):
        image = emit(relax.op.nn.pixel_shuffle(x, 2))
        other = emit(relax.op.nn.pixel_shuffle(emit(relax.op.negative(ones)), 2))
        return emit(relax.op.add(image, other))

    shuffle = "relax.nn.pixel_shuffle"
    assert simplified(build([x], body)) == [shuffle, shuffle, "relax.add"]


@pytest.mark.parametrize("rows, folded", [(512, True), (2048, False)])
def test_a_value_that_would_make_a_model_large_is_not_folded(rows, folded):
    x, shape = variable("x", rows, 1024), (rows, 1024)
    row = relax.const(np.ones((1, 1024), "float32"))
    name = "relax.broadcast_to"
    full = name if TABLE.entries_of(name) else "relax.full"
    for call, left in (
        (relax.op.full(shape, relax.const(1.0)), full),
        (relax.op.broadcast_to(row, shape), name),
    ):
        mod = build([x], lambda emit, call=call: emit(relax.op.add(x, emit(call))))
        assert simplified(mod) == [*([] if folded else [left]), "relax.add"]


@support.needs_reals
@support.needs_symbols
def test_a_tensor_that_is_computed_from_a_size_stays_on_the_host():
    symbol = tirx.Var("n", "int64")
    other = variable("other", symbol)
    for call in (
        relax.op.full((symbol, 4), relax.const(1.0)),
        relax.op.broadcast_to(relax.const(1.0), (symbol, 4)),
    ):
        mod = build([other], lambda emit, call=call: emit(call))
        report = offload_report(partition_for(mod))
        assert not report.regions
        [found] = report.on_host
        known = "which no input of" if TABLE.entries_of(found.op) else "not in the table"
        assert known in found.reason or DECLINES in found.reason


@support.needs_reals
@support.needs_symbols
@needs("broadcast_to", "add")
def test_a_tensor_that_is_computed_from_the_size_of_an_input_is_in_its_region():
    symbol = tirx.Var("n", "int64")
    x = variable("x", symbol, 4)

    for call in (
        relax.op.broadcast_to(relax.const(1.0), (symbol, 4)),
        relax.op.full((symbol, 4), relax.const(1.0)),
        relax.op.ones((symbol, 4), "float32"),
    ):
        mod = build([x], lambda emit, call=call: emit(relax.op.add(x, emit(call))))
        found = composites(mod)
        assert (found.on_host, len(found.regions)) == ([], 1)
