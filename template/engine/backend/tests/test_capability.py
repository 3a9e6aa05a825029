# SPDX-License-Identifier: Apache-2.0
"""What tables can express, with tables made here, independent of the backend's ops."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import support
from backend.engine.backend.table.capability import (
    Among,
    Anything,
    AtLeast,
    AtMost,
    Elementwise,
    Equal,
    Fuses,
    Input,
    NotEqual,
    OneOf,
    Op,
    Quantized,
    Range,
)
from backend.engine.backend.table.chip import Chip, Limits, Takes
from backend.engine.backend.table.limits import text_of
from backend.engine.backend.table.patterns import TABLE, make_patterns
from backend.engine.backend.table.sdk import ask_driver
from backend.engine.backend.table.table import Table
from backend.engine.workbench.conformance.chip import has_symbol
from backend.engine.workbench.conformance.region import first_taken
from backend.patterns import OPS
from support import Case, needs_symbols

ANY_POOL = dict.fromkeys(
    ["strides", "padding", "dilation", "ceil_mode", "count_include_pad", "layout", "out_layout"],
    Anything(),
)


def tensor(*shape, dtype="float32"):
    return relax.Var("x", relax.TensorType(shape, dtype))


def refusal(entries, call, **given):
    call = relax.BlockBuilder().normalize(call)
    words = {name: given.pop(name) for name in ("chip", "limits") if name in given}
    entries = entries if isinstance(entries, list) else [entries]
    return Table(entries, given.pop("sdk", None), **words).refusal(call, **given)


def relu(**given):
    return Op("relu", "relax.nn.relu", inputs=(Input("x", **given),))


def pool(rules=(), **attributes):
    attributes = {"pool_size": Anything(), **ANY_POOL, **attributes}
    inputs = (Input("data"),)
    return Op("pool", "relax.nn.max_pool2d", inputs=inputs, attributes=attributes, rules=rules)


def mean(axis):
    attributes = {"axis": axis, "keepdims": OneOf(True)}
    return Op("mean", "relax.mean", inputs=(Input("x"),), attributes=attributes)


def image_pool(**attributes):
    return relax.op.nn.max_pool2d(tensor(1, 2, 20, 20), **attributes)


# ---- Inputs -------------------------------------------------------------------------------------


def test_a_dtype_outside_of_the_table_is_refused_with_the_supported_ones():
    entry = relu(dtypes=("float32", "float16"))
    assert refusal(entry, relax.op.nn.relu(tensor(2, dtype="float16"))) is None
    reason = refusal(entry, relax.op.nn.relu(tensor(2, dtype="float64")))
    assert reason == "relu: 'x' is float64; supported: float32, float16"


def test_a_rank_is_exact():
    entry = relu(ranks=(4,))
    assert refusal(entry, relax.op.nn.relu(tensor(1, 2, 3, 4))) is None
    reason = refusal(entry, relax.op.nn.relu(tensor(2, 3, 4)))
    assert reason == "relu: 'x' has rank 3; supported: 4"


def test_like_requires_the_dtype_of_the_other_input():
    inputs = (Input("data"), Input("scale", like="data"))
    entry = Op("multiply", "relax.multiply", inputs=inputs)
    call = relax.op.multiply(tensor(2), tensor(2, dtype="float32"))
    assert refusal(entry, call) is None
    entry = Op(
        "quantize",
        "relax.quantize",
        inputs=(*inputs, Input("zero_point")),
        attributes={"axis": Anything(), "out_dtype": Anything()},
        output_dtypes=("int8",),
    )
    zero = relax.const(0, "int8")
    call = relax.op.quantize(tensor(2, 2, dtype="float16"), relax.const(0.1, "float32"), zero, 0)
    assert refusal(entry, call) == "quantize: 'scale' is float32; supported: float16, as 'data'"


def test_a_constant_operand_can_be_required():
    entry = Op("add", "relax.add", inputs=(Input("x1"), Input("x2", constant=True)))
    data, constant = tensor(2), relax.const(np.ones(2, "float32"))
    assert refusal(entry, relax.op.add(data, constant)) is None
    assert "not a constant" in refusal(entry, relax.op.add(data, tensor(2)))
    alias = tensor(2)
    assert refusal(entry, relax.op.add(data, alias), values={alias: constant}) is None
    kept = refusal(entry, relax.op.add(data, constant), bind_constants=False)
    assert "bind_constants" in kept


def test_each_tensor_of_a_tuple_is_checked():
    inputs = (Input("tensors", dtypes=("float32",), ranks=(2,), is_tuple=True),)
    entry = Op("concat", "relax.concat", inputs=inputs, attributes={"axis": Anything()})
    assert refusal(entry, relax.op.concat([tensor(1, 2), tensor(3, 2)], 0)) is None
    assert "rank 1" in refusal(entry, relax.op.concat([tensor(1), tensor(3)], 0))
    unknown = relax.Var("t", relax.TupleType([relax.TensorType((1, 2), "float32")] * 2))
    assert "tuple" in refusal(entry, relax.op.concat(unknown, 0))
    known = relax.Tuple([tensor(1, 2), tensor(3, 2)])
    assert refusal(entry, relax.op.concat(unknown, 0), values={unknown: known}) is None


@pytest.mark.parametrize(
    ("ty", "word"),
    [
        (relax.TensorType((2, 3), None), "dtype"),
        (relax.TensorType(None, "float32"), "rank"),
        (relax.TensorType(None, "float32", ndim=2), "shape"),
        (relax.TensorType((0, 3), "float32"), "no elements"),
        (relax.TensorType((2, -1), "float32"), "a negative size"),
    ],
)
def test_unknown_properties_of_a_tensor_are_a_reason(ty, word):
    assert word in refusal(relu(), relax.op.nn.relu(relax.Var("x", ty)))


# ---- Symbolic sizes -----------------------------------------------------------------------------


def test_a_size_may_be_a_symbol_or_a_multiple_of_one():
    n = tirx.Var("n", "int64")
    entry = relu(dtypes=("float32",), ranks=(2,))
    for size in (n, n * 4, 4 * n, n + n):
        assert refusal(entry, relax.op.nn.relu(tensor(size, 3))) is None
        assert refusal(entry, relax.op.nn.relu(tensor(3, size))) is None


def test_other_expressions_of_symbols_are_refused():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    for size in (n + 1, n * m, n * n, n // 2):
        reason = refusal(relu(), relax.op.nn.relu(tensor(size, 3)))
        assert "symbol" in reason
        assert "n" in reason


def test_a_rule_on_a_symbol_is_refused_unless_it_holds_for_all_values():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    inputs = (Input("x1"), Input("x2"))
    entry = Op("add", "relax.add", inputs=inputs, rules=(Equal("x1.shape[0]", "x2.shape[0]"),))
    assert refusal(entry, relax.op.add(tensor(n, 3), tensor(n, 3))) is None
    reason = refusal(entry, relax.op.add(tensor(n, 3), tensor(1, 3)))
    assert "x1.shape[0] must equal x2.shape[0]" in reason
    assert "symbol" in reason
    entry = Op("relu", "relax.nn.relu", inputs=(Input("x"),), rules=(AtMost("x.shape[0]", 8),))
    assert refusal(entry, relax.op.nn.relu(tensor(8))) is None
    assert "symbol" in refusal(entry, relax.op.nn.relu(tensor(m)))


# ---- Attributes ---------------------------------------------------------------------------------


def test_kernels_of_1_to_7_but_not_6():
    entry = pool(pool_size=Range(1, 7, exclude=(6,)))
    for size in (1, 5, 7):
        assert refusal(entry, image_pool(pool_size=[size, size])) is None
    for size in (6, 8):
        reason = refusal(entry, image_pool(pool_size=[7, size]))
        assert reason == f"pool: pool_size is [7, {size}]; supported: 1 to 7 without 6"


def test_a_set_of_values():
    entry = pool(strides=OneOf(1, 2, 4))
    assert refusal(entry, image_pool(pool_size=[2, 2], strides=[4, 1])) is None
    reason = refusal(entry, image_pool(pool_size=[2, 2], strides=[2, 3]))
    assert reason == "pool: strides is [2, 3]; supported: 1, 2, 4"


def test_a_required_flag():
    entry = pool(ceil_mode=OneOf(False))
    assert refusal(entry, image_pool()) is None
    assert "ceil_mode is True; supported: False" in refusal(entry, image_pool(ceil_mode=True))


def test_exact_axes_from_either_end():
    entry = mean(OneOf([2, 3]))
    data = tensor(1, 2, 3, 4)
    for axes in ([2, 3], [-2, -1]):
        assert refusal(entry, relax.op.mean(data, axes, keepdims=True)) is None
    for axes, text in (([1], "[1]"), ([2], "[2]"), ([1, 2, 3], "[1, 2, 3]"), (None, "not set")):
        reason = refusal(entry, relax.op.mean(data, axes, keepdims=True))
        assert reason == f"mean: axis is {text}; supported: [2, 3]"
    assert "keepdims" in refusal(entry, relax.op.mean(data, [2, 3], keepdims=False))


def test_no_value_is_written_as_an_empty_string():
    assert refusal(mean(OneOf("")), relax.op.mean(tensor(2, 3), keepdims=True)) is None


def test_an_argument_that_is_not_a_tensor_is_an_attribute():
    attributes = {"min": OneOf(0.0), "max": Range(1, 6)}
    entry = Op("clip", "relax.clip", inputs=(Input("x"),), attributes=attributes)
    assert refusal(entry, relax.op.clip(tensor(2), 0, 6)) is None
    assert "max is 7; supported: 1 to 6" in refusal(entry, relax.op.clip(tensor(2), 0, 7))


def test_an_attribute_that_the_table_does_not_know_is_refused():
    entry = Op("softmax", "relax.nn.softmax", inputs=(Input("data"),))
    reason = refusal(entry, relax.op.nn.softmax(tensor(2, 3), axis=1))
    assert reason == "softmax: the attribute 'axis' is not in the table; its value is 1"


def test_ranges_can_be_open():
    assert Range(min=1).accepts(10**9)
    assert Range(max=1).accepts(-(10**9))
    assert not Range(min=1).accepts(0)
    assert not Range(min=0).accepts(True)
    assert not Range(min=0).accepts("")


# ---- Rules --------------------------------------------------------------------------------------


def test_strides_that_must_be_equal():
    entry = pool(rules=(Equal("attr.strides[0]", "attr.strides[1]"),))
    assert refusal(entry, image_pool(strides=[2, 2])) is None
    reason = refusal(entry, image_pool(strides=[2, 1]))
    assert reason == "pool: strides[0] must equal strides[1]; they are 2 and 1"


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (AtLeast("attr.pool_size[0]", "attr.strides[0]"), [2, 2], [1, 1]),
        (AtMost("attr.pool_size[0]", "data.shape[2]"), [20, 1], [21, 1]),
        (NotEqual("attr.pool_size[0]", "attr.pool_size[1]"), [2, 3], [3, 3]),
        (Among("attr.pool_size[1]", [2, 4]), [3, 4], [4, 3]),
        (Equal("attr.pool_size[0]", "data.rank"), [4, 1], [3, 1]),
    ],
)
def test_rules_compare_attributes_and_shapes(rule, good, bad):
    entry = pool(rules=(rule,))
    assert refusal(entry, image_pool(pool_size=good, strides=[2, 2], padding=1)) is None
    assert "pool_size" in refusal(entry, image_pool(pool_size=bad, strides=[2, 2], padding=1))


def test_rules_compare_dtypes():
    rules = (Equal("x.dtype", "float16"),)
    entry = Op("relu", "relax.nn.relu", inputs=(Input("x"),), rules=rules)
    assert refusal(entry, relax.op.nn.relu(tensor(2, dtype="float16"))) is None
    reason = refusal(entry, relax.op.nn.relu(tensor(2)))
    assert reason == "relu: x.dtype must equal float16; it is float32"


def test_a_rule_may_hold_for_some_dtypes_alone():
    rules = (AtMost("x.rank", 1, ("float16",)),)
    entry = Op("relu", "relax.nn.relu", inputs=(Input("x"),), rules=rules)
    assert refusal(entry, relax.op.nn.relu(tensor(2, 2))) is None
    assert refusal(entry, relax.op.nn.relu(tensor(2, dtype="float16"))) is None
    reason = refusal(entry, relax.op.nn.relu(tensor(2, 2, dtype="float16")))
    assert reason == "relu: x.rank must be at most 1 for float16; it is 2"


def test_a_rule_that_cannot_be_decided_is_a_reason():
    entry = Op("relu", "relax.nn.relu", inputs=(Input("x"),), rules=(Equal("x.shape[1]", 2),))
    assert "is unknown for this call" in refusal(entry, relax.op.nn.relu(tensor(2)))


# ---- Tables -------------------------------------------------------------------------------------


def test_an_op_that_is_not_in_the_table_is_a_reason(monkeypatch):
    monkeypatch.setattr("backend.engine.backend.table.table.NOT_SELECTED", {})
    reason = refusal([], relax.op.nn.relu(tensor(2)))
    assert reason == "relax.nn.relu is not in the table of this backend"


def test_one_of_several_entries_must_match():
    small = relu(ranks=(1,))
    large = Op("big_relu", "relax.nn.relu", inputs=(Input("x", ranks=(4,)),))
    assert refusal([small, large], relax.op.nn.relu(tensor(2))) is None
    assert refusal([small, large], relax.op.nn.relu(tensor(1, 2, 3, 4))) is None
    reason = refusal([small, large], relax.op.nn.relu(tensor(2, 3)))
    assert "relu: 'x' has rank 2" in reason
    assert "big_relu: 'x' has rank 2" in reason


def test_the_reason_is_that_of_the_entry_that_matched_most():
    wrong = relu(ranks=(1,))
    rules = (Equal("x.shape[0]", 2),)
    close = Op("close", "relax.nn.relu", inputs=(Input("x", ranks=(2,)),), rules=rules)
    assert refusal([wrong, close], relax.op.nn.relu(tensor(3, 3))).startswith("close: ")


def test_the_result_must_have_a_supported_dtype():
    inputs = (Input("x1"), Input("x2"))
    attributes = {"out_dtype": Anything()}
    call = relax.op.matmul(tensor(2, 2, dtype="float16"), tensor(2, 2, dtype="float16"), "float32")
    entry = Op("matmul", "relax.matmul", inputs=inputs, attributes=attributes)
    assert "the result is float32" in refusal(entry, call)
    more = ("float16", "float32")
    entry = Op("matmul", "relax.matmul", inputs=inputs, attributes=attributes, output_dtypes=more)
    assert refusal(entry, call) is None


def test_the_sdk_has_the_last_word():
    asked = []

    def sdk(op, call):
        asked.append(op.name)
        return "the SDK has no memory for it" if int(call.ty.shape[0]) > 8 else None

    assert refusal(relu(), relax.op.nn.relu(tensor(8)), sdk=sdk) is None
    reason = refusal(relu(), relax.op.nn.relu(tensor(9)), sdk=sdk)
    assert reason == "relu: the SDK has no memory for it"
    assert refusal(relu(ranks=(2,)), relax.op.nn.relu(tensor(9)), sdk=sdk) is not None
    assert asked == ["relu", "relu"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rules": (Equal("attr.nothing", 1),)}, "rules: 'attr.nothing' names no attribute"),
        (
            {"rules": (Equal("attr.axes[0]", 1),), "attributes": {"axis": Anything()}},
            "rules: 'attr.axes[0]' names no attribute (did you mean 'axis'?)",
        ),
        ({"rules": (Equal(1, "y.rank"),)}, "rules: 'y.rank' names no input"),
        (
            {"rules": (Equal("date.rank", 1),), "inputs": (Input("data"),)},
            "rules: 'date.rank' names no input (did you mean 'data'?)",
        ),
        (
            {"rules": (Equal("x.size", 1),)},
            "rules: 'x.size': an input has only shape[i], rank and dtype",
        ),
        ({"inputs": (Input("x", like="y"),)}, "'x' is like 'y', no input"),
        (
            {"absorbs_transpose": (1,), "operations": "y"},
            "absorbs_transpose: 1 is none of the indices of inputs, which are 0 to 0; "
            "operations: 'y' is neither an input nor an attribute, nor out",
        ),
        (
            {"emitted_by": "updates"},
            "emitted_by: 'updates' is not one of update; "
            "emitted_by: the op has a Relax op or chains, too",
        ),
    ],
)
def test_an_entry_that_refers_to_nothing_is_an_error(fields, words):
    with pytest.raises(ValueError) as error:
        Op("relu", "relax.nn.relu", **{"inputs": (Input("x"),), **fields})
    assert str(error.value) == f"relu: {words}"


def test_text_that_is_no_operand_is_a_literal():
    rules = (Among("attr.mode", ("a.b", "c")), NotEqual("attr.mode", "1.5"), Equal("x.rank", "x"))
    Op("relu", inputs=(Input("x"),), attributes={"mode": OneOf("c")}, rules=rules)


def test_a_name_is_used_once():
    with pytest.raises(ValueError, match="relu"):
        Table([relu(), relu()])


# ---- The limits of a chip -----------------------------------------------------------------------


def matmul():
    inputs = (Input("x1", ("float32", "float16")), Input("x2", like="x1", weight=True))
    return Op("matmul", "relax.matmul", inputs=inputs, attributes={"out_dtype": Anything()})


def test_a_limit_of_the_chip_is_distinguished_from_one_of_the_engine():
    entry, chip = relu(dtypes=("float32", "float16")), Chip(dtypes=("float32",))
    assert refusal(entry, relax.op.nn.relu(tensor(2)), chip=chip) is None
    reason = refusal(entry, relax.op.nn.relu(tensor(2, dtype="float16")), chip=chip)
    assert reason == "relu: 'x' is float16; supported: float32 (a limit of this chip)"
    reason = refusal(entry, relax.op.nn.relu(tensor(2, dtype="float64")), chip=chip)
    assert reason == "relu: 'x' is float64; supported: float32"


def test_ranks_of_a_chip_apply_to_all_ops():
    chip = Chip(ranks=range(3))
    assert refusal(relu(), relax.op.nn.relu(tensor(2, 3)), chip=chip) is None
    reason = refusal(relu(ranks=range(7)), relax.op.nn.relu(tensor(2, 3, 4)), chip=chip)
    assert reason == "relu: 'x' has rank 3; supported: 0, 1, 2 (a limit of this chip)"


def test_weights_must_be_constants_where_the_chip_says_so():
    chip = Chip(constant_weights=True)
    data, weight = tensor(2, 2), relax.const(np.ones((2, 2), "float32"))
    assert refusal(matmul(), relax.op.matmul(data, tensor(2, 2))) is None
    assert refusal(matmul(), relax.op.matmul(data, weight), chip=chip) is None
    reason = refusal(matmul(), relax.op.matmul(data, tensor(2, 2)), chip=chip)
    assert reason == "matmul: 'x2' is not a constant; it must be one (a limit of this chip)"
    kept = refusal(matmul(), relax.op.matmul(data, weight), chip=chip, bind_constants=False)
    assert "'x2' must be a constant; bind_constants is off" in kept
    entry = Table([matmul()], chip=chip).get("matmul")
    assert [item.constant for item in entry.inputs] == [False, True]


def test_a_chip_may_require_static_shapes():
    chip, n = Chip(symbols=False), tirx.Var("n", "int64")
    assert refusal(relu(), relax.op.nn.relu(tensor(2)), chip=chip) is None
    reason = refusal(relu(), relax.op.nn.relu(tensor(n * 4)), chip=chip)
    assert reason == (
        "relu: 'x' has the size 4*n; supported: sizes that are fixed (a limit of this chip)"
    )
    assert refusal(relu(), relax.op.nn.relu(tensor(n * 4))) is None


def test_what_a_chip_cannot_do_stays_on_the_host_with_a_reason():
    inputs = (Input("x"), Input("indices", ("int64", "int32")))
    modes = {"axis": Anything(), "mode": Anything()}
    take = Op("take", "relax.take", inputs=inputs, attributes=modes)
    call = relax.op.take(tensor(2, 3), relax.const([0, 1], "int64"), 0)
    table = Table([take, relu()], chip=Chip(dtypes=("float32",)))
    assert [op.name for op in table.ops] == ["relu"]
    reason = table.refusal(relax.BlockBuilder().normalize(call))
    assert reason == (
        "take: 'indices' can have the element types int64, int32, and the chip has float32 "
        "(a limit of this chip)"
    )
    assert table.left_out == {"take": reason}


def test_limits_narrow_one_op():
    limits = {"pool": Limits(strides=Range(1, 4), rules=(Equal("attr.strides[0]", 2),))}
    entry = pool(strides=Range(1, 16))
    assert refusal(entry, image_pool(strides=[2, 1]), limits=limits) is None
    reason = refusal(entry, image_pool(strides=[2, 8]), limits=limits)
    assert reason == "pool: strides is [2, 8]; supported: 1 to 4 (a limit of this chip)"
    reason = refusal(entry, image_pool(strides=[1, 1]), limits=limits)
    assert reason == "pool: strides[0] must equal 2; it is 1 (a limit of this chip)"


def test_an_engine_that_can_do_more_stays_within_the_limits():
    recorded = {
        "pool": Limits(dilation=Range(1, 16), ceil_mode=OneOf(False), data=Takes(ranks=(4,)))
    }
    wider = pool(dilation=Range(1, 64), ceil_mode=Anything())
    entry = Table([wider], limits=recorded).get("pool")
    assert entry.attributes["dilation"] == Range(1, 16)
    assert entry.attributes["ceil_mode"] == OneOf(False)
    assert entry.inputs[0].ranks == (4,)
    narrower = pool(dilation=Range(1, 2, exclude=(3,)), ceil_mode=OneOf(False, True))
    entry = Table([narrower], limits=recorded).get("pool")
    assert entry.attributes["dilation"] == Range(1, 2, exclude=(3,))
    assert entry.attributes["ceil_mode"] == OneOf(False)


def test_fusing_and_tolerance_can_be_limited():
    fuses = Fuses(scale=True, bias=1, residual=True)
    conv = Op("conv1d", "relax.nn.conv1d", inputs=(Input("data"),), fuses=fuses)
    tanh = Op("tanh", "relax.tanh", inputs=(Input("x"),), activation=True)
    limits = {
        "conv1d": Limits(fuses=Fuses(bias=1), tolerance=Elementwise(ulps=8)),
        "tanh": Limits(activation=False),
    }
    table = Table([conv, tanh], limits=limits)
    assert table.get("conv1d").fuses == Fuses(bias=1)
    assert table.get("conv1d").tolerance == Elementwise(ulps=8)
    assert table.activations_of(table.get("conv1d")) == []


def test_what_integers_fuse_can_be_limited_apart():
    inputs = (Input("data"), Input("weight"))
    conv = Op("conv2d", "relax.nn.conv2d", engine="matrix", inputs=inputs)
    conv = replace(conv, fuses=Fuses(bias=1, residual=True), quantized=Quantized(channel=0))
    ends = [Op(name, f"relax.{name}", inputs=inputs[:1]) for name in ("quantize", "dequantize")]

    def labels(**limits):
        given = {"conv2d": Limits(quantized=("int8",), **limits)}
        patterns = make_patterns(Table([conv, *ends], limits=given))
        names = {name.partition(".")[2] for name, *_ in patterns}
        return {name for name in names if "conv2d" in name}

    tails = ("", "_bias", "_residual")
    real = {f"conv2d{tail}" for tail in tails}
    integers = {f"quantized_{name}" for name in real}
    to_real = {f"{name}_to_real" for name in integers}
    assert labels() == real | integers | to_real
    without = {name for name in integers | to_real if "residual" not in name}
    assert labels(quantized_fuses=Fuses(bias=1)) == real | without
    apart = labels(fuses=Fuses(), quantized_fuses=Fuses(bias=1, residual=True))
    assert apart == {"conv2d"} | integers | to_real


def test_none_leaves_an_op_to_the_host():
    reason = refusal(relu(), relax.op.nn.relu(tensor(2)), limits={"relu": None})
    assert reason == "relu: vendor/capabilities.py leaves it to the host"


def test_ops_without_limits_are_known():
    table = Table([relu(), matmul()], limits={"relu": Limits(), "gone": Limits()})
    assert table.unrecorded == ("matmul",)
    assert table.unused_limits == ("gone",)
    assert {op.name for op in table.ops} == {"relu", "matmul"}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"rleu": Limits()}, "there is no op 'rleu', did you mean 'relu'"),
        ({"relu": Limits(alpha=Range(0, 1))}, "relu has no attribute 'alpha'; it has none"),
        ({"relu": Limits(y=Takes())}, "relu has no input 'y'.*; it has x"),
        ({"relu": Limits(x=Takes(("int8",)))}, "leave nothing of the dtypes of 'x': .* int8"),
        ({"relu": Limits(x=Takes(ranks=(9,)))}, "leave nothing of the ranks of 'x'"),
    ],
)
def test_meaningless_limits_are_refused(limits, words):
    with pytest.raises(ValueError, match=words):
        Table([relu(dtypes=("float32",), ranks=range(7))], limits=limits)


def test_attributes_that_leave_nothing_are_refused():
    for own, limit in ((Range(1, 4), Range(5)), (OneOf(1, 2), Range(5)), (OneOf(1), OneOf(2))):
        with pytest.raises(ValueError, match="leave nothing of strides"):
            Table([pool(strides=own)], limits={"pool": Limits(strides=limit)})


def test_meaningless_chips_are_refused():
    for given in (
        {"dtypes": ("float",)},
        {"dtypes": "float32"},
        {"ranks": 4},
        {"nan": "maybe"},
        {"devices": 0},
    ):
        with pytest.raises(ValueError, match="Chip: "):
            Chip(**given)


def test_extra_ops_are_the_vendors_own():
    sinh = Op("sinh", "relax.sinh", inputs=(Input("x"),))
    table = Table([relu()], limits={"relu": Limits()}, extra_ops=(sinh,))
    assert table.get("sinh") is sinh
    assert table.unrecorded == ()
    with pytest.raises(ValueError, match="two entries named 'relu'"):
        Table([relu()], extra_ops=(relu(),))
    wrong = Op("sinh", "relax.sinhh", inputs=(Input("x"),))
    with pytest.raises(ValueError, match=r"capabilities.py: sinh: TVM has no op 'relax.sinhh'"):
        Table([relu()], extra_ops=(wrong,))


def test_the_driver_is_asked_unless_it_is_asked_later(monkeypatch):
    from backend.engine.backend.table import sdk

    asked = []
    monkeypatch.setattr(sdk, "_ask", lambda call: asked.append(call) or "no memory")
    monkeypatch.setattr(sdk, "_answers", {})
    table = Table([relu()], ask_driver)
    call = relax.BlockBuilder().normalize(relax.op.nn.relu(tensor(2)))
    assert table.refusal(call) == "relu: no memory"
    assert table.refusal(call) == "relu: no memory"
    assert len(asked) == 1
    assert table.refusal(call, asked_later=True) is None
    own = Table([relu()], lambda op, call: "not today")
    assert own.refusal(call, asked_later=True) == "relu: not today"


@pytest.mark.parametrize("sized", [False, pytest.param(True, marks=needs_symbols)])
def test_the_driver_answers_about_single_calls(sized):
    ops = [op for op in support.OPS if (entry := TABLE.get(op)) and entry.relax]
    cases = [Case(op, item) for op in ops for item in support.OPS[op]["cases"]]
    case, reasons = first_taken(case for case in cases if has_symbol(case.entry["inputs"]) == sized)
    if case is None:
        pytest.skip(f"declined: {reasons}")
    call = case.model(exact=False).bindings[0].value
    assert ask_driver(TABLE.get(case.op), call) is None


def test_the_lines_that_record_limits_are_those_of_the_entry():
    words = dict(globals()) | {"Limits": Limits, "Takes": Takes}
    for op in OPS:
        read = eval("{" + text_of(op) + "}", words)
        narrowed = Table([op], limits=read).get(op.name)
        assert dict(narrowed.attributes) == dict(op.attributes), op.name
        for item, own in zip(narrowed.inputs, op.inputs, strict=True):
            assert (item.dtypes, tuple(item.ranks)) == (own.dtypes, tuple(own.ranks)), op.name
        assert (narrowed.fuses, narrowed.output_dtypes) == (op.fuses, op.output_dtypes), op.name
        assert narrowed.rules == op.rules, op.name


# ---- The table of this backend ------------------------------------------------------------------


def test_the_table_names_ops_that_exist():
    assert OPS
    known = [entry for entry in OPS if entry.relax]
    if not known:
        pytest.skip("the table has chains alone")
    for entry in known:
        assert len(entry.inputs) <= len(tvm.ir.Op.get(entry.relax).arguments)


def test_activations_are_fused_behind_what_fuses_something():
    inputs = (Input("x"),)
    relu, tanh = (
        Op(name, f"relax.{name}", inputs=inputs, activation=True) for name in ("nn.relu", "tanh")
    )
    exp = Op("exp", "relax.exp", inputs=inputs)
    conv = Op("conv1d", "relax.nn.conv1d", inputs=(Input("data"),), fuses=Fuses())
    picky = Op(
        "picky", "relax.nn.conv1d", inputs=(Input("data"),), fuses=Fuses(activations=("tanh",))
    )
    table = Table([relu, tanh, exp, conv, picky])
    assert table.activations_of(conv) == [relu, tanh]
    assert table.activations_of(picky) == [tanh]
    assert table.activations_of(exp) == []


def test_activations_that_are_named_are_in_the_table():
    names = {entry.name for entry in OPS if entry.activation}
    named = [entry.fuses.activations for entry in OPS if entry.fuses and entry.fuses.activations]
    if not named:
        pytest.skip("no entry names the activations that it fuses")
    assert set(chain.from_iterable(named)) <= names


@pytest.mark.parametrize(
    "constraint, text",
    [
        (Anything(), "anything"),
        (OneOf(1), "1"),
        (OneOf("NCHW", "", (1, 2)), "NCHW, not set, [1, 2]"),
        (Range(), "any number"),
        (Range(1), "at least 1"),
        (Range(max=7), "at most 7"),
        (Range(1, 7), "1 to 7"),
        (Range(1, 7, exclude=(6,)), "1 to 7 without 6"),
    ],
)
def test_a_constraint_says_what_it_supports(constraint, text):
    assert str(constraint) == text


# ---- Operations ---------------------------------------------------------------------------------

PRODUCT = "2 * size(out) * x1[-1]"


def operations(formula, call, bounds=None, entry=None):
    names = [item.name for item in tvm.ir.Op.get(call.op.name).arguments][: len(call.args)]
    known = {} if call.attrs is None else dict.fromkeys(ANY_POOL | {"pool_size": 0}, Anything())
    entry = entry or Op(
        "entry",
        call.op.name,
        inputs=tuple(Input(str(name)) for name in names),
        attributes=known | {"out_dtype": Anything()},
        operations=formula,
    )
    call = relax.BlockBuilder().normalize(call)
    return Table([entry]).count_operations(call, {}, bounds or {})


def test_operations_are_counted_from_shapes_and_attributes():
    relu_call = relax.op.nn.relu(tensor(2, 3, 4))
    assert operations("size(out)", relu_call) == 24
    assert operations("7", relu_call) == 7
    assert operations("size(x[1:]) + len(x) - max(x[0], -x[1])", relu_call) == 13
    assert operations("size(out) // 5", relu_call) == 4
    product = relax.op.matmul(tensor(5, 2, 3), tensor(3, 4))
    assert operations(PRODUCT, product) == 2 * 5 * 2 * 4 * 3
    pooled = image_pool(pool_size=(3, 2))
    assert operations("size(out) * size(pool_size)", pooled) == 2 * 18 * 19 * 6


def test_an_attribute_may_be_called_as_a_function_is():
    call = relax.op.clip(tensor(2, 3), 0, 6)
    limits = {"min": Anything(), "max": Anything()}
    formula = "max(size(out), 7)"
    entry = Op("clip", call.op.name, inputs=(Input("x"),), attributes=limits, operations=formula)
    assert operations("", call, entry=entry) == 7


def test_symbols_count_with_their_bounds():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    call = relax.op.matmul(tensor(n, 2, 3), tensor(3, 4 * m))
    assert operations(PRODUCT, call, {"n": 5, "m": 7}) == 2 * (5 * 2 * 4 * 7) * 3


def test_of_several_results_the_first_counts():
    x, vectors = tensor(2, 3, 4), [tensor(3) for _ in range(4)]
    call = relax.op.nn.batch_norm(x, *vectors, axis=1)
    names = ("data", "gamma", "beta", "moving_mean", "moving_var")
    attributes = ("axis", "epsilon", "center", "scale", "momentum", "training")
    entry = Op(
        "norm",
        "relax.nn.batch_norm",
        inputs=tuple(Input(name) for name in names),
        attributes=dict.fromkeys(attributes, Anything()),
    )
    assert operations("", call, entry=entry) == 24


def test_the_entry_that_takes_the_call_counts():
    def entry(name, rank, formula):
        return Op(name, "relax.nn.relu", inputs=(Input("x", ranks=(rank,)),), operations=formula)

    table = Table([entry("one", 1, "1"), entry("two", 2, "2")])
    for rank in (1, 2):
        call = relax.BlockBuilder().normalize(relax.op.nn.relu(tensor(*[3] * rank)))
        assert table.count_operations(call, {}, {}) == rank


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("size(out", "'size.out' is not an expression"),
        ("size(y)", "operations: 'y' is neither an input nor an attribute, nor out"),
        ("open('x')", "is not arithmetic of size, len, max, min"),
        ("out.__class__", "'out.__class__' is not arithmetic"),
        ("[x for x in out]", "is not arithmetic"),
        ("size(out) ** 9", "is not arithmetic"),
        ("(lambda: 0)()", "is not arithmetic"),
        ("x = 1", "is not an expression"),
    ],
)
def test_meaningless_operations_are_refused(formula, words):
    with pytest.raises(ValueError, match=words):
        Op("relu", "relax.nn.relu", inputs=(Input("x"),), operations=formula)


def test_an_op_of_the_catalogue_that_was_not_selected_is_named(monkeypatch):
    monkeypatch.setattr("backend.engine.backend.table.table.NOT_SELECTED", {"relax.sinh": "sinh"})
    assert refusal([], relax.op.sinh(tensor(2))) == (
        "relax.sinh is not in the table of this backend; the catalogue has sinh: select it by an "
        "update"
    )
