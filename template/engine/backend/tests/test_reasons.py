# SPDX-License-Identifier: Apache-2.0
"""Each reason code: its cause in a model, alone and with others, is reported at the right op."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.transform import FusionPattern

import backend
import support
from backend.engine.backend.ir.origins import Origin, with_span
from backend.engine.backend.passes import simplify
from backend.engine.backend.regions import Partitioner
from backend.engine.backend.regions.entries import Entry
from backend.engine.backend.settings.options import Options
from backend.engine.backend.table.capability import OneOf
from backend.engine.backend.table.chip import Limits
from backend.engine.backend.table.patterns import make_patterns
from backend.engine.backend.table.reasons import Code
from backend.engine.backend.table.table import Table
from backend.patterns import OPS
from support import (
    TABLE,
    build,
    needs,
    needs_library,
    needs_symbols,
    on_host,
    partition_for,
    skip_without_integers,
    variable,
)

op = relax.op
IMAGE = (1, 8, 6, 6)


def symbol(name):
    return tvm.tirx.Var(name, "int64")


def weight(*shape, seed=0):
    return relax.const(np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32"))


def report_of(mod, table=None, disabled=(), patterns=None, **settings):
    """Partition with a table made by the test; TVM has the backend's patterns."""
    table = table or Table(OPS)
    mod = simplify(with_names(mod), table, disabled)
    # Independent of the backend's default.
    options = Options(**{"bind_constants": True, **settings})
    partitioner = Partitioner(mod, table, options)
    made = make_patterns(table)[::-1] if patterns is None else patterns
    partitioner._target.patterns = [Entry(FusionPattern(*item)) for item in made]
    return backend.offload_report(partitioner.run())


@relax.expr_functor.mutator
class Author(relax.PyExprMutator):
    """Names each call like an importer: "author/" and the op."""

    def visit_call_(self, call):
        """Give a call its name."""
        call = super().visit_call_(call)
        name = getattr(call.op, "name_hint", None) or getattr(call.op, "name", "extern")
        return call if call.span is not None else with_span(call, Origin(f"author/{name}").span())


def with_names(mod):
    """Return a module whose calls all have names."""
    named = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    for global_var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            named.update_func(global_var, Author(mod).visit_expr(function))
    return named


def table_of(*names, **given):
    return Table([entry for entry in OPS if entry.name in names], **given)


@pytest.fixture
def nothing_to_select(monkeypatch):
    """Let no update offer more ops, so that an op that is not in the table has one reason less."""
    monkeypatch.setattr("backend.engine.backend.table.table.NOT_SELECTED", {})


def packed(x):
    extern = relax.ExternFunc("test.nothing")
    return op.call_pure_packed(extern, x, ty_args=x.ty)


# ---- Causes that do not depend on the table: code, op, words of the sentence ---------------------

SPOTS = {
    Code.NOT_IN_TABLE: (op.sinh, "relax.sinh", "is not in the table of this backend"),
    Code.DTYPE: (
        lambda x: op.nn.relu(op.astype(x, "float64")),
        "relax.nn.relu",
        r"'\w+' is float64; supported: .*float32",
    ),
    Code.LAYOUT: (
        lambda x: op.nn.conv2d(x, weight(2, 1, 1, 6), data_layout="NHWC", kernel_layout="OHWI"),
        "relax.nn.conv2d",
        "data_layout is NHWC; supported: NCHW",
    ),
    Code.ATTRIBUTE: (
        lambda x: op.nn.conv2d(x, weight(4, 8, 1, 1), dilation=(10**6, 1)),
        "relax.nn.conv2d",
        r"dilation is \[1000000, 1\]; supported: ",
    ),
    Code.RELATION: (
        lambda x: op.clip(x, 6, 0),
        "relax.clip",
        "min must be at most max; they are 6.* and 0",
    ),
    Code.RANK: (
        lambda x: op.nn.softmax(op.reshape(x, (1, 1, 1, *IMAGE))),
        "relax.nn.softmax",
        "has rank 7; supported: ",
    ),
    Code.PACKED_CALL: (packed, "relax.call_pure_packed", "the packed function 'test.nothing'"),
}


def model_of(spots):
    """Return a model that has each cause behind an op of the NPU."""
    x = variable("x", *IMAGE)

    def body(emit):
        results = []
        for make, name, _ in spots:
            call = make(emit(op.nn.relu(x)))
            # TVM would rebind a nested call, without its name.
            arguments = [emit(arg) if isinstance(arg, relax.Call) else arg for arg in call.args]
            span = Origin(f"planted/{name}").span()
            results.append(emit(relax.Call(call.op, arguments, call.attrs, call.ty_args, span)))
        return results

    return build([x], body)


@pytest.mark.thorough
@needs("relu", "conv2d", "clip", "softmax")
@pytest.mark.parametrize("code", SPOTS)
def test_a_spot_alone_has_its_reason(code):
    make, name, words = SPOTS[code]
    found = [item for item in report_of(model_of([SPOTS[code]])).on_host if item.op == name]
    assert [item.code for item in found] == [code.value]
    assert_reason(found[0], code, words)
    assert found[0].title == f"planted/{name}"


def assert_reason(entry, code, words):
    assert entry.code == code.value, entry
    assert re.search(words, entry.reason), entry.reason
    assert entry.remedy and (code.remedy in entry.remedy)
    assert entry.placement == "host" and entry.region is None
    # Find the op by the author's name, since passes change the model.
    assert entry.origin is not None and entry.title.startswith(("author/", "planted/")), entry
    assert not re.search(r"\blv\d*\b", entry.reason), "a variable, where the author gave a name"


@needs("relu", "conv2d", "clip", "softmax")
def test_spots_in_one_model_have_each_its_reason_and_the_rest_is_on_the_npu():
    report = report_of(model_of(SPOTS.values()))
    for code, (_, name, words) in SPOTS.items():
        (entry,) = (item for item in report.on_host if (item.op, item.code) == (name, code.value))
        assert_reason(entry, code, words)
        assert entry.title == f"planted/{name}"
    # The cast to float64 and the reshape need not be in the table.
    others = set() if TABLE.get("astype") and TABLE.get("reshape") else {Code.NOT_SELECTED.value}
    assert {item.code for item in report.on_host} - others == {code.value for code in SPOTS}
    relus = [item for item in report.offloaded if item.op == "relax.nn.relu"]
    assert relus


# ---- Codes that need a table, options or a driver made for them ---------------------------------


def only(report, name, code, words):
    (entry,) = (item for item in report.on_host if item.op == name)
    assert_reason(entry, code, words)
    return entry


def relu_model(*before):
    x = variable("x", *IMAGE)

    def body(emit):
        value = x
        for make in before:
            value = emit(make(value))
        return emit(op.nn.relu(value))

    return build([x], body)


@needs("relu")
def test_an_unselected_op_of_the_catalogue_says_so(monkeypatch):
    monkeypatch.setattr(
        "backend.engine.backend.table.table.NOT_SELECTED", {"relax.nn.relu": "relu"}
    )
    words = "the catalogue has relu: select it by an update"
    only(report_of(relu_model(), Table([])), "relax.nn.relu", Code.NOT_SELECTED, words)


@needs("add")
def test_ops_that_form_an_unselected_op_of_the_catalogue_name_that(monkeypatch):
    """The table has the add; the last multiplication is not part of the hard_swish."""
    parts = {f"relax.{name}": name for name in ("clip", "divide", "multiply")}
    monkeypatch.setattr("backend.engine.backend.table.table.NOT_SELECTED", parts)
    chains = {
        "hard_swish": (("x",), ("x * clip(x + 3, min=0, max=6) / 6",)),
        "relu6": (("x",), ("clip(x, min=0, max=6)",)),
    }
    monkeypatch.setattr("backend.engine.backend.regions.block.CHAINS_NOT_SELECTED", chains)
    x = variable("x", 4)

    def body(emit):
        limited = emit(op.clip(emit(op.add(x, relax.const(3.0))), 0, 6))
        whole = emit(op.divide(emit(op.multiply(x, limited)), relax.const(6.0)))
        return emit(op.multiply(whole, whole))

    report = report_of(build([x], body), table_of("add"))
    named = "with other ops it is hard_swish, which the catalogue has: select that by an update"
    reasons = [entry.reason for entry in report.on_host]
    assert [named in reason for reason in reasons] == [True, True, True, False]
    assert reasons[-1].endswith("; the catalogue has multiply: select it by an update")
    only(report, "relax.divide", Code.NOT_SELECTED, named)


@needs("relu")
def test_an_op_that_the_limits_leave_out_says_so():
    table = table_of("relu", limits={"relu": None})
    entry = only(report_of(relu_model(), table), "relax.nn.relu", Code.LEFT_OUT, "leaves it to the")
    assert "vendor/capabilities.py" in entry.remedy


@needs("conv2d")
def test_a_limit_of_the_chip_is_distinguished_from_one_of_the_engine():
    x = variable("x", *IMAGE)
    mod = build([x], lambda emit: emit(op.nn.conv2d(x, weight(4, 8, 1, 1), strides=(2, 2))))
    table = table_of("conv2d", limits={"conv2d": Limits(strides=OneOf(1))})
    words = r"strides is \[2, 2\]; supported: 1 \(a limit of this chip\)"
    entry = only(report_of(mod, table), "relax.nn.conv2d", Code.ATTRIBUTE, words)
    assert entry.remedy.startswith("The engine can compile it")


@needs("relu")
def test_a_tensor_whose_shape_is_not_known_says_so():
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=2))
    mod = build([x], lambda emit: emit(op.nn.relu(x)))
    only(report_of(mod), "relax.nn.relu", Code.UNKNOWN_TYPE, "unknown shape of '")


@needs("relu")
def test_a_symbol_where_the_chip_has_none_says_so():
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 2), "float32"))
    mod = build([x], lambda emit: emit(op.nn.relu(x)))
    table = table_of("relu", chip=replace(backend.engine.backend.table.table.Chip(), symbols=False))
    only(report_of(mod, table), "relax.nn.relu", Code.SYMBOLIC_SIZE, "has the size n; supported: ")


@needs_symbols
@needs("relu")
def test_a_size_that_only_the_run_knows_says_so():
    n = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    count = variable("count", 1, dtype="int64")
    with builder.function("main", [count]):
        with builder.dataflow():
            builder.match_cast(builder.emit(op.tensor_to_shape(count)), relax.ShapeType([n]))
            ones = builder.emit(op.full([n], relax.const(1.0), "float32"))
            result = builder.emit_output(builder.emit(op.nn.relu(ones)))
        builder.emit_func_output(result)
    mod = builder.get()
    told = "the size 'n' is known only when the model runs, and nothing bounds it"
    only(report_of(mod), "relax.nn.relu", Code.RUN_TIME_SIZE, told)
    named = report_of(mod, symbol_bounds={"n": 9}, on_decline="host")
    assert "relax.nn.relu" in [item.op for item in named.offloaded]


@needs("concat")
def test_a_tuple_whose_tensors_are_not_known_says_so():
    pair = relax.Var("pair", relax.TupleType([relax.TensorType((2, 3), "float32")] * 2))
    mod = build([pair], lambda emit: emit(op.concat(pair, 0)))
    only(report_of(mod), "relax.concat", Code.ARGUMENTS, "is not a tuple whose tensors are known")


@needs("conv2d")
def test_a_weight_that_must_be_constant_says_so_and_which_option():
    x, w = variable("x", *IMAGE), variable("w", 4, 8, 1, 1)
    chip = replace(backend.engine.backend.table.table.Chip(), constant_weights=True)
    table = table_of("conv2d", chip=chip)
    mod = build([x, w], lambda emit: emit(op.nn.conv2d(x, w)))
    words = "'weight' is not a constant; it must be one"
    only(report_of(mod, table), "relax.nn.conv2d", Code.NOT_CONSTANT, words)
    mod = build([x], lambda emit: emit(op.nn.conv2d(x, weight(4, 8, 1, 1))))
    found = report_of(mod, table, bind_constants=False)
    only(found, "relax.nn.conv2d", Code.OPTION, "must be a constant; bind_constants is off")


def quantized_convolution(*given):
    """Build a convolution of int8; its weights are constants, or an argument."""

    def body(emit):
        scale, zero = relax.const(np.float32(0.02)), relax.const(np.int8(0))
        integers = given[0] if given else relax.const(np.ones((4, 8, 1, 1), "int8"))
        data = emit(op.dequantize(emit(op.quantize(x, scale, zero)), scale, zero))
        value = emit(op.nn.conv2d(data, emit(op.dequantize(integers, scale, zero))))
        return emit(op.quantize(value, scale, zero))

    x = variable("x", *IMAGE)
    return build([x, *given], body)


@needs("conv2d", "quantize", "dequantize")
def test_a_weight_that_is_dequantized_is_as_constant_as_its_integers():
    chip = replace(backend.engine.backend.table.table.Chip(), constant_weights=True)
    free, fixed = (
        table_of("conv2d", "quantize", "dequantize", **given) for given in ({}, {"chip": chip})
    )

    def found(mod, table):
        (entry,) = [item for item in report_of(mod, table).ops if item.op == "relax.nn.conv2d"]
        return entry

    expected = found(quantized_convolution(), free).composite
    if not (expected or "").startswith("quantized"):
        pytest.skip("the driver has no such products of integers")
    assert found(quantized_convolution(), fixed).composite == expected
    entry = found(quantized_convolution(variable("w", 4, 8, 1, 1, dtype="int8")), fixed)
    assert entry.placement == "host"
    assert_reason(entry, Code.NOT_CONSTANT, "'weight' is not a constant; it must be one")


@needs("relu", "conv2d")
def test_rules_between_ranks_and_attributes_have_their_own_codes():
    """Asks the table directly, since TVM infers no type for such calls."""
    table = Table(OPS)
    x, w = variable("x", 2, 3, 4), variable("w", 4, 8, 1, 1)
    call = relax.Call(tvm.ir.Op.get("relax.nn.conv2d"), [x, w], op.nn.conv2d(w, w).attrs)
    reason = table.refusal(call)
    assert reason.code is Code.RANK and "has rank 3; supported: 4" in reason


@needs("relu")
def test_a_call_that_the_vendors_function_declines_says_so():
    def declines(entry, call):
        return "the moon is full" if entry.name == "relu" else None

    x = variable("x", 4)
    mod = build([x], lambda emit: emit(op.nn.relu(x)))
    table = table_of("relu", declined_by_sdk=declines)
    only(report_of(mod, table), "relax.nn.relu", Code.DECLINED_BY_SDK, "relu: the moon is full")


def _together(function, whole):
    return whole and function.script().count("R.nn.relu(") > 1


@support.needs_reals
@needs("relu")
@pytest.mark.parametrize(
    ("count", "declines", "code"),
    [
        (2, lambda function, whole: not whole, Code.DECLINED),
        (1, lambda function, whole: whole, Code.DECLINED_REGION),
        (2, _together, Code.DECLINED_REGION),
    ],
)
def test_a_declined_op_has_the_drivers_reason(decline, count, declines, code):
    decline(lambda function, whole: "no room" if declines(function, whole) else "")
    mod = with_names(relu_model(*[op.nn.relu] * (count - 1)))
    report = backend.offload_report(partition_for(mod))
    assert len(report.on_host) == count
    for entry in report.on_host:
        assert_reason(entry, code, "the driver declines .*no room")
        assert entry.declined


@support.needs_reals
@needs("relu")
@pytest.mark.parametrize("of_driver", [True, False])
def test_a_reason_of_several_lines_is_one_line(of_driver, decline):
    text = "no room:\n  8 kB are free\r\n\n"
    mod = with_names(relu_model())
    if of_driver:
        decline(lambda function, whole: text)
        report = backend.offload_report(partition_for(mod))
    else:
        table = table_of("relu", declined_by_sdk=lambda entry, call: text)
        report = report_of(mod, table)
    (entry,) = report.on_host
    assert entry.reason.endswith(": no room: 8 kB are free")
    lines = str(report).splitlines()
    assert any(line.endswith("no room: 8 kB are free") for line in lines), lines
    assert not any(line.startswith("8 kB") or line.strip().startswith("8 kB") for line in lines)


@support.needs_reals
@needs("relu")
def test_an_op_at_which_the_driver_fails_is_not_declined(decline):
    decline(lambda function, whole: "relu: the driver failed: 3 positions; the window has 5")
    report = backend.offload_report(partition_for(with_names(relu_model())))
    sentence = "it cannot be compiled: relu: the driver failed: 3 positions"
    only(report, "relax.nn.relu", Code.DRIVER_FAILED, sentence)
    assert not any(entry.declined for entry in report.on_host)
    assert report.summary.endswith(", the driver failed for: 1")


@needs("prelu")
def test_slopes_that_suit_no_axis_are_refused_before_the_driver_is_asked():
    x = variable("x", *IMAGE)
    mod = build([x], lambda emit: emit(op.nn.prelu(x, weight(3), 1)))
    only(
        report_of(mod),
        "relax.nn.prelu",
        Code.RELATION,
        "for axis 1, the size 3 must be 1 or 8; it is",
    )


@needs("prelu", variable=True)
@needs_symbols
def test_slopes_of_an_open_axis_are_no_failure_of_the_driver():
    x = variable("x", 2, symbol("c"), 4)
    mod = build([x], lambda emit: emit(op.nn.prelu(x, weight(3), 1)))
    only(report_of(mod), "relax.nn.prelu", Code.SYMBOLIC_SIZE, "the size 3 must be 1 or c; whether")


@needs("broadcast_to", variable=True)
@needs_symbols
def test_a_broadcast_between_open_sizes_is_no_failure_of_the_driver():
    x, y = variable("x", symbol("n"), 4), variable("y", symbol("m"), 4)
    shape = relax.ShapeExpr([y.ty.shape[0], 4])
    mod = build([x, y], lambda emit: emit(op.broadcast_to(x, shape)))
    only(
        report_of(mod),
        "relax.broadcast_to",
        Code.SYMBOLIC_SIZE,
        "the size n must be 1 or m; whether",
    )


@needs("broadcast_to", variable=True)
@needs_symbols
def test_a_size_that_no_input_has_is_no_failure_of_the_driver():
    x, y = variable("x", 1, 4), variable("y", symbol("m"), 4)
    shape = relax.ShapeExpr([y.ty.shape[0], 4])
    mod = build([x, y], lambda emit: emit(op.broadcast_to(x, shape)))
    report = report_of(mod)
    only(
        report, "relax.broadcast_to", Code.SYMBOLIC_SIZE, "symbol 'm', which no input of its region"
    )
    assert not any(entry.declined for entry in report.on_host)


@needs("relu", "add")
def test_small_regions_say_whether_a_merge_would_make_a_cycle():
    x = variable("x", 4)

    def body(emit):
        one = emit(op.nn.relu(x))
        two = emit(on_host(one))
        return [emit(op.add(two, one)), two]

    mod = build([x], body)
    report = report_of(mod, min_region_ops=2)
    entry = only(report, "relax.nn.relu", Code.CYCLE, "its region has 1 op; min_region_ops is 2")
    assert "the region of relax.add" in entry.reason
    only(
        report,
        "relax.add",
        Code.CYCLE,
        r"the region of relax.nn.relu \(author/relax.nn.relu\)",
    )
    alone = report_of(relu_model(on_host), min_region_ops=2)
    only(alone, "relax.nn.relu", Code.TOO_SMALL, "its region has 1 op; min_region_ops is 2")
    apart = report_of(mod, min_region_ops=2, merge_regions=False)
    only(apart, "relax.add", Code.TOO_SMALL, "its region has 1 op; min_region_ops is 2")


@needs("relu")
def test_one_region_too_many_says_so():
    report = report_of(relu_model(op.nn.relu, op.nn.relu, on_host), max_regions=1)
    words = "its region has 288 operations, and max_regions, which is 1"
    only(report, "relax.nn.relu", Code.MAX_REGIONS, words)


@needs("relu")
def test_an_op_that_an_option_keeps_says_so():
    for named in ("relax.nn.relu", "relu", "*relu"):
        report = report_of(relu_model(), keep_on_host=[named])
        only(report, "relax.nn.relu", Code.OPTION, "the option keep_on_host names it")
    assert not report_of(relu_model(), keep_on_host=["relu6"]).on_host


def hard_swish(emit, x):
    inner = emit(op.clip(emit(op.add(x, relax.const(3.0))), 0, 6))
    return inner, emit(op.multiply(x, emit(op.divide(inner, relax.const(6.0)))))


@pytest.mark.usefixtures("nothing_to_select")
@needs("hard_swish")
def test_an_op_of_a_chain_that_is_used_elsewhere_says_so():
    x = variable("x", *IMAGE)
    table = table_of("hard_swish")

    def body(emit):
        inner, result = hard_swish(emit, x)
        return [inner, result]

    found = report_of(build([x], body), table)
    only(found, "relax.multiply", Code.USED_ELSEWHERE, "inside of it is used elsewhere")
    whole = build([x], lambda emit: hard_swish(emit, x)[1])
    assert not report_of(whole, table).on_host


@pytest.mark.usefixtures("nothing_to_select")
@needs("hard_swish", "clip")
def test_an_op_of_a_chain_that_another_composite_holds_says_so():
    x = variable("x", *IMAGE)
    table = table_of("hard_swish", "clip")
    mod = build([x], lambda emit: hard_swish(emit, x)[1])
    made = make_patterns(table)
    clip = [item for item in made if item[0].endswith(".clip")]
    rest = [item for item in made if item not in clip]
    # Later patterns win, such as a vendor's pattern of only clip.
    found = report_of(mod, table, patterns=[*clip, *rest])
    only(found, "relax.multiply", Code.SHADOWED, "inside of it is part of another composite, clip")
    kept = report_of(mod, table, keep_on_host=["clip"])
    only(kept, "relax.multiply", Code.OPTION, "kept on the host by the option keep_on_host")


@needs("relu")
def test_without_a_pattern_an_op_of_the_table_says_so():
    report = report_of(relu_model(), patterns=[])
    only(report, "relax.nn.relu", Code.NO_PATTERN, "no pattern matches it")


@needs("split")
def test_results_that_are_read_as_a_tuple_say_so():
    x = variable("x", 4, 4)
    mod = build([x], lambda emit: emit(op.split(x, 2, 0)))
    report = report_of(mod, disabled=["SplitResults"])
    only(report, "relax.split", Code.TUPLE, "its results are used as a tuple")


def test_functions_and_what_is_in_them_have_codes():
    x = variable("x", 4)
    helper = build([x], lambda emit: emit(on_host(x)), "helper")["helper"]
    name = relax.GlobalVar("helper")
    relax.expr._update_type(name, helper.ty)
    builder = relax.BlockBuilder(tvm.IRModule({name: helper.without_attr("global_symbol")}))
    y = variable("y", 4)
    with builder.function("main", [y]):
        builder.emit_func_output(builder.emit(relax.Call(name, [y])))
    only(report_of(builder.get()), "helper", Code.FUNCTION_CALL, "it calls helper")
    foreign = builder.get()
    other = foreign["helper"].with_attr("Codegen", "some_npu").with_attr("global_symbol", "helper")
    foreign.update_func(foreign.get_global_var("helper"), other)
    only(report_of(foreign), "helper", Code.OTHER_BACKEND, "it is a region of some_npu")


@needs("conv2d", "depthwise_conv2d", "relu")
def test_only_the_nearest_entries_say_why_and_sizes_have_no_types():
    n = tvm.tirx.Var("n", "int64")
    x = variable("x", 1, 4, (n - 1) // 2 + 1, n)
    weight = relax.const(np.ones((4, 4, 1, 1), "float32"))
    mod = build([x], lambda emit: emit(op.nn.relu(emit(op.nn.conv2d(x, weight)))))
    report = report_of(mod)
    why = r"^conv2d: a size that is not a multiple of one symbol \(\(n - 1\) // 2 \+ 1\) in 'data'$"
    entry = only(report, "relax.nn.conv2d", Code.UNKNOWN_TYPE, why)
    assert entry.arguments[0] == "float32[1, 4, (n - 1) // 2 + 1, n]"
    assert "--shape x=1,3,64,64" in entry.remedy
    # Fused after the conv2d it would be refused for the same reason.
    why = why.replace("conv2d", "relu").replace("data", "x")
    only(report, "relax.nn.relu", Code.UNKNOWN_TYPE, why)


@needs("matmul", "relu")
def test_a_reason_that_holds_alone_and_fused_is_told_once():
    x = relax.Var("x", relax.TensorType((2, 2), "float64"))
    right = relax.const(np.ones((2, 2)), "float64")
    mod = build([x], lambda emit: emit(op.nn.relu(emit(op.matmul(x, right)))))
    why = "^relu: 'x' is float64; supported: [^.]*$"
    only(report_of(mod), "relax.nn.relu", Code.DTYPE, why)


@pytest.mark.usefixtures("nothing_to_select")
@needs("hard_swish")
def test_an_op_that_is_refused_alone_and_fused_for_two_reasons_has_both():
    x = relax.Var("x", relax.TensorType((4,), "float64"))
    three, six = relax.const(3.0, "float64"), relax.const(6.0, "float64")

    def body(emit):
        limited = emit(op.clip(emit(op.add(x, three)), 0, 6))
        return emit(op.divide(emit(op.multiply(x, limited)), six))

    report = report_of(build([x], body), table_of("hard_swish"))
    why = (
        "^relax.divide is not in the table of .*[.] Fused with other ops it is refused as well: "
        "hard_swish: 'x' is float64; supported: [^.]*$"
    )
    only(report, "relax.divide", Code.DTYPE, why)


def test_the_choice_of_a_branch_says_so():
    x, flag = variable("x", 4), relax.Var("flag", relax.TensorType((), "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, flag]):
        branches = [relax.SeqExpr([], value) for value in (on_host(x), x)]
        choice = relax.If(flag, *branches, Origin("author/choice").span())
        builder.emit_func_output(builder.emit(choice))
    entry = only(report_of(builder.get()), "relax.If", Code.CONTROL_FLOW, "it chooses a branch")
    assert entry.bookkeeping and entry.arguments == ("bool[]",)
    report_of(builder.get(), strict=True, strict_except=[on_host.__name__])


def test_a_kernel_of_the_importer_says_so():
    x = variable("x", 4)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(
                builder.call_te(lambda t: tvm.te.compute((4,), lambda i: t[i] / 7 - t[3 - i]), x)
            )
        builder.emit_func_output(result)
    words = "it calls the kernel '.*': the importer has lowered it"
    only(report_of(builder.get()), "relax.call_tir", Code.KERNEL, words)


def test_effects_local_functions_and_recursion_have_codes():
    found = set()
    x = variable("x", 4)
    builder = relax.BlockBuilder()
    with builder.function("main", [x], pure=False):
        builder.emit(op.print(x, format="{}"))
        builder.emit_func_output(builder.emit(on_host(x)))
    only(report_of(builder.get()), "relax.print", Code.EFFECTS, "effects beyond its result")
    itself = relax.GlobalVar("itself")
    relax.expr._update_type(itself, relax.FuncType([x.ty], x.ty))
    y = relax.Var("y", x.ty)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, relax.Call(itself, [x]))])], y)
    function = relax.Function([x], body, x.ty).with_attr("global_symbol", "itself")
    for item in report_of(tvm.IRModule({itself: function})).on_host:
        assert_reason(item, Code.RECURSION, "the function 'itself' is recursive")
        found.add(item.code)
    assert Code.RECURSION.value in found


def test_an_op_inside_of_a_local_function_says_so():
    x = variable("x", 4)
    y = relax.Var("y", x.ty)
    inner = relax.BlockBuilder()
    with inner.function("inner", [y]):
        inner.emit_func_output(inner.emit(with_span(on_host(y), Origin("author/inside").span())))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        local = builder.emit(inner.get()["inner"].without_attr("global_symbol"))
        builder.emit_func_output(builder.emit(relax.Call(local, [x])))
    found = [item for item in report_of(builder.get()).on_host if item.title == "author/inside"]
    assert len(found) == 1
    assert_reason(found[0], Code.LOCAL_FUNCTION, "inside a local function; run LambdaLift")


# ---- Types: wider than the model asks -----------------------------------------------------------


def quantized_conv(emit, x, zero_points=(0,), quantize=True, between=None):
    scale, zero = relax.const(0.5), relax.const(0, "int8")
    data = emit(op.dequantize(emit(op.quantize(x, scale, zero, 1, "int8")), scale, zero, 1))
    numbers = np.ones((4, 8, 1, 1), "int8")
    zeros = relax.const(np.array(zero_points * 4, "int8")[:4])
    scales = relax.const(np.full(4, 0.25, "float32"))
    value = emit(op.nn.conv2d(data, emit(op.dequantize(relax.const(numbers), scales, zeros, 0))))
    if between is not None:
        value = emit(between(value))
    return emit(op.quantize(value, scale, zero, 1, "int8")) if quantize else value


def of_conv(report):
    (entry,) = (item for item in report.ops if item.op == "relax.nn.conv2d")
    return entry


@needs("conv2d", "quantize", "dequantize")
def test_the_type_of_an_op_is_that_of_its_composite():
    skip_without_integers("conv2d")
    x = variable("x", *IMAGE)
    entry = of_conv(report_of(build([x], lambda emit: quantized_conv(emit, x))))
    assert (entry.composite, entry.runs_in) == ("quantized_conv2d", "int8")
    assert entry.asked is entry.wider is entry.wider_code is None
    model = build([x], lambda emit: quantized_conv(emit, x, quantize=False))
    assert of_conv(report_of(model)).runs_in == "int8 to float32"
    model = build([x], lambda emit: emit(op.nn.conv2d(x, weight(4, 8, 1, 1))))
    assert of_conv(report_of(model)).runs_in == "float32"


@needs("conv2d", "quantize", "dequantize")
def test_a_wider_type_has_a_code():
    skip_without_integers("conv2d")
    x = variable("x", *IMAGE)
    mod = build([x], lambda emit: quantized_conv(emit, x, zero_points=(0, 1)))
    report = report_of(mod)
    entry = of_conv(report)
    assert entry.runs_in == "float32" and entry.asked == "int8"
    if entry.wider_code == Code.DECLINED.value and not support.IS_EMULATOR:
        pytest.skip(str(entry.wider))
    assert entry.wider_code == Code.QUANTIZATION.value
    assert "'weight' has several zero points; supported: one" in entry.wider
    assert entry in report.wider and "wider than asked for: 1" in report.summary
    kept = of_conv(report_of(mod, keep_on_host=["conv2d"]))
    assert (kept.wider_code, kept.asked) == (Code.OPTION.value, "int8")
    ops = [replace(item, quantized=None) for item in OPS if item.name in ("conv2d",)]
    ops += [item for item in OPS if item.name in ("quantize", "dequantize")]
    plain = build([x], lambda emit: quantized_conv(emit, x))
    entry = of_conv(report_of(plain, Table(ops)))
    assert entry.wider_code == Code.NO_INTEGER_FORM.value
    assert entry.wider == "conv2d has no form for quantized tensors in the table"


@needs("conv2d", "quantize", "dequantize")
def test_a_chip_without_real_results_of_integers_computes_such_a_product_with_real_numbers():
    skip_without_integers("conv2d")
    x = variable("x", *IMAGE)
    entries = [item for item in OPS if item.name in ("conv2d", "quantize", "dequantize")]
    mod = build([x], lambda emit: quantized_conv(emit, x, quantize=False))
    for to_real in (True, False):
        limits = {"conv2d": Limits(quantized=("int8",), to_real=to_real)}
        report = report_of(mod, Table(entries, limits=limits))
        entry = of_conv(report)
        if to_real and entry.runs_in != "int8 to float32":
            pytest.skip("the driver does not take it")
        assert entry.runs_in == ("int8 to float32" if to_real else "float32"), entry
        # Its weight became real when the model was compiled.
        assert [item.op for item in report.ops].count("relax.dequantize") == 1 + to_real
    assert entry.wider == (
        "conv2d: a product of integers has no real result (a limit of this chip)"
    )


@needs("conv2d", "depthwise_conv2d", "concat", "quantize", "dequantize")
def test_a_wider_type_has_the_reason_of_the_entry_that_fits():
    """A convolution without groups is no depthwise one, whatever the table begins with."""
    skip_without_integers("conv2d")
    x = variable("x", *IMAGE)
    ops = sorted(OPS, key=lambda item: item.name != "depthwise_conv2d")

    def body(emit):
        scale, zero = relax.const(0.5), relax.const(0, "int8")
        data = emit(op.dequantize(emit(op.quantize(x, scale, zero)), scale, zero))
        kernel = emit(op.dequantize(relax.const(np.ones((8, 8, 1, 1), "int8")), scale, zero))
        value = emit(op.quantize(emit(op.nn.conv2d(data, kernel)), scale, zero))
        return [emit(op.concat([data, x], 1)), value]

    entry = of_conv(report_of(build([x], body), Table(ops), ["DequantizeForEach"]))
    assert entry.wider_code == Code.USED_ELSEWHERE.value
    assert entry.wider.startswith("conv2d: '")


@pytest.mark.thorough
@needs("conv2d", "add", "quantize", "dequantize")
@pytest.mark.parametrize(
    "data, weight, residual, runs_in",
    [
        ("int8", "int8", "uint8", "int8"),
        ("uint8", "int8", None, "uint8 x int8"),
        ("int8", "uint8", "int8", "int8 x uint8"),
    ],
)
def test_the_type_of_a_product_is_that_of_data_by_weights(data, weight, residual, runs_in):
    skip_without_integers("conv2d")
    x, y = variable("x", *IMAGE, dtype=data), variable("y", *IMAGE, dtype=residual or "int8")

    def real(emit, value):
        zero = relax.const(0, str(value.ty.dtype))
        return emit(op.dequantize(value, relax.const(0.5), zero))

    def body(emit):
        # In the order of torchao's quantizers, with weights first.
        kernel = real(emit, relax.const(np.ones((8, 8, 1, 1), weight)))
        other = real(emit, y)
        value = emit(op.nn.conv2d(real(emit, x), kernel))
        value = emit(op.add(value, other)) if residual else value
        return emit(op.quantize(value, relax.const(0.5), relax.const(0, "int8")))

    entry = of_conv(report_of(build([x, y], body)))
    assert entry.composite == "quantized_conv2d" + ("_residual" if residual else "")
    assert entry.runs_in == runs_in


@needs("quantize")
@needs("dequantize", dtype="int16")
@pytest.mark.parametrize(
    "dtype, step, sentence",
    [
        ("int8", 0.25, None),
        ("int8", 1e30, "make a factor of .*, a shift by 1.*; supported: "),
        ("int16", 0.25, "'data' is int16; supported, quantized: int8, uint8"),
    ],
)
def test_integers_that_are_rescaled_in_float_say_why(dtype, step, sentence):
    skip_without_integers("quantize")
    x, zero = variable("x", *IMAGE, dtype=dtype), relax.const(0, dtype)

    def body(emit):
        real = emit(op.dequantize(x, relax.const(0.5), zero))
        return emit(op.quantize(real, relax.const(step), zero, -1, dtype))

    (entry,) = (item for item in report_of(build([x], body)).ops if item.op == "relax.quantize")
    assert (entry.composite == "requantize") == (sentence is None)
    assert entry.asked == (sentence and dtype)
    assert re.search(sentence or "^$", entry.wider or "")


@needs("quantize")
@needs("concat", "dequantize", dtype="int16")
def test_parts_of_a_concat_that_are_rescaled_in_float_say_why():
    skip_without_integers("quantize")
    x, zero = variable("x", *IMAGE, dtype="int16"), relax.const(0, "int16")

    def body(emit):
        parts = [emit(op.dequantize(x, relax.const(step), zero)) for step in (0.25, 0.5)]
        whole = emit(op.concat(parts, 1))
        return emit(op.quantize(whole, relax.const(0.25), zero, -1, "int16"))

    ops = report_of(build([x], body)).ops
    found = [item.wider for item in ops if item.op == "relax.quantize"]
    assert found == ["quantize: 'data' is int16; supported, quantized: int8, uint8"]


@pytest.mark.thorough
@needs("matmul", "reshape", "quantize", "dequantize")
@pytest.mark.parametrize("result", ["quantized", "real"])
@pytest.mark.parametrize(
    "kinds, sentence",
    [
        (("blocks", "one"), "'x1' has scales of blocks; supported: one, or of weights one per"),
        (("one", "blocks"), "'x2' has scales of blocks; supported: one, or of weights one per"),
        (("real", "one"), ""),
        (("one", "real"), "'x2' is a real number: no dequantize is before it"),
    ],
)
def test_a_product_of_an_operand_that_is_no_integer_says_which(kinds, sentence, result):
    skip_without_integers("matmul")
    x = variable("x", 4, 64)
    matrix = relax.const(np.arange(64 * 8).reshape(64, 8).astype("float32"))

    def both(emit, value, kind):
        if kind == "real":
            return value
        shape, one, zero = value.ty.shape, relax.const(0.5), relax.const(0, "int8")
        if kind == "blocks":
            # A block of 32 elements of a column or a row in each row of a matrix.
            value = emit(op.reshape(value, (-1, 32)))
            count = int(value.ty.shape[0])
            one = relax.const(np.linspace(0.5, 1, count).astype("float32"))
            zero = relax.const(np.zeros(count, "int8"))
        numbers = emit(op.quantize(value, one, zero, 0, "int8"))
        return emit(op.reshape(emit(op.dequantize(numbers, one, zero, 0)), shape))

    def body(emit):
        operands = [both(emit, *pair) for pair in zip((x, matrix), kinds, strict=True)]
        value = emit(op.matmul(*operands))
        return both(emit, value, "one" if result == "quantized" else "real")

    entries = report_of(build([x], body)).ops
    (product,) = (item for item in entries if item.op == "relax.matmul")
    assert (product.wider or "").startswith(sentence) and bool(product.wider) == bool(sentence)
    assert product.wider_code == (Code.QUANTIZATION.value if sentence else None)


@pytest.mark.thorough
@needs("conv2d", "quantize", "dequantize")
@pytest.mark.parametrize("weights", ["integers", "reals"])
def test_a_convolution_of_an_operand_that_is_no_integer_says_which(weights):
    skip_without_integers("conv2d")
    x = variable("x", *IMAGE)
    scale, zero = relax.const(0.5), relax.const(0, "int8")

    def body(emit):
        data, kernel = x, weight(4, 8, 1, 1)
        if weights == "integers":
            kernel = emit(op.dequantize(relax.const(np.ones((4, 8, 1, 1), "int8")), scale, zero))
        else:
            data = emit(op.dequantize(emit(op.quantize(x, scale, zero)), scale, zero))
        return emit(op.quantize(emit(op.nn.conv2d(data, kernel)), scale, zero))

    entry = of_conv(report_of(build([x], body)))
    name = "data" if weights == "integers" else "weight"
    assert entry.wider == f"'{name}' is a real number: no dequantize is before it"


@needs("conv2d", "quantize", "dequantize")
def test_a_convolution_of_too_large_sums_has_the_reason_of_the_driver():
    skip_without_integers("conv2d")
    x = variable("x", 1, 7500, 3, 3, dtype="uint8")

    def body(emit):
        one, zero = relax.const(1.0), relax.const(255, "uint8")
        kernel = relax.const(np.full((2, 7500, 3, 3), -128, "int8"))
        kernel = emit(op.dequantize(kernel, one, relax.const(0, "int8")))
        value = emit(op.nn.conv2d(emit(op.dequantize(x, one, zero)), kernel))
        return emit(op.quantize(value, relax.const(1e7), relax.const(0, "int8")))

    mod = build([x], body)
    support.skip_where_declined(mod)
    assert "sums of 67500 products may be larger" in of_conv(report_of(mod)).wider


@needs("sigmoid", "quantize", "dequantize")
def test_an_op_that_computes_in_float_between_integers_says_so():
    x = variable("x", *IMAGE)

    def body(emit):
        scale, zero = relax.const(0.5), relax.const(0, "int8")
        data = emit(op.dequantize(emit(op.quantize(x, scale, zero, 1, "int8")), scale, zero, 1))
        return emit(op.quantize(emit(op.sigmoid(data)), scale, zero, 1, "int8"))

    (entry,) = (item for item in report_of(build([x], body)).ops if item.op == "relax.sigmoid")
    assert (entry.runs_in, entry.asked) == ("int8, inside float32", "int8")
    assert entry.wider_code == Code.REAL_INSIDE.value


@needs("softmax", "add", "quantize", "dequantize")
def test_a_softmax_that_something_reads_before_a_quantize_names_the_reader():
    skip_without_integers("softmax")
    x, y = variable("x", 4, 8, dtype="int8"), variable("y", 4, 8)

    def body(emit):
        scale, zero = relax.const(0.5), relax.const(0, "int8")
        value = emit(op.nn.softmax(emit(op.dequantize(x, scale, zero))))
        return emit(op.quantize(emit(op.add(value, y)), scale, zero))

    report = report_of(build([x, y], body))
    (entry,) = (item for item in report.ops if item.op == "relax.nn.softmax")
    assert (entry.asked, entry.wider_code) == ("int8", Code.QUANTIZATION.value)
    assert entry.wider == (
        "relax.add 'author/relax.add' reads its result before that is quantized; supported: "
        "dequantize, softmax, quantize, right behind each other"
    )


@needs("concat", "sigmoid", "quantize", "dequantize")
def test_an_op_that_moves_real_numbers_says_when_it_moves_integers():
    x, y = (variable(name, 2, 8, dtype="int8") for name in "xy")

    def body(emit):
        zero = relax.const(0, "int8")
        reals = [
            emit(op.dequantize(item, relax.const(scale), zero))
            for item, scale in ((x, 0.5), (y, 0.25))
        ]
        value = emit(op.sigmoid(emit(op.concat(reals, 1))))
        return emit(op.quantize(value, relax.const(0.5), zero))

    (entry,) = (item for item in report_of(build([x, y], body)).ops if item.op == "relax.concat")
    assert (entry.runs_in, entry.asked) == ("float32", "int8")
    assert entry.wider_code == Code.QUANTIZATION.value
    assert entry.wider == (
        "concat moves integers where all that reads its result quantizes it alike, with one scale"
    )
    ops = [
        replace(item, inputs=tuple(replace(part, dtypes=("float32",)) for part in item.inputs))
        if item.name == "concat"
        else item
        for item in OPS
    ]
    report = report_of(build([x, y], body), Table(ops))
    (entry,) = (item for item in report.ops if item.op == "relax.concat")
    assert entry.wider_code == Code.NO_INTEGER_FORM.value


# ---- Constants of integers that become real numbers ---------------------------------------------


def integers(*shape, dtype="int8"):
    return relax.const(np.arange(np.prod(shape)).reshape(shape).astype(dtype))


def real_of(emit, numbers, count, axis, dtype="float32"):
    scales = relax.const(np.linspace(0.5, 1, count).astype("float32"))
    return emit(op.dequantize(numbers, scales, relax.const(0, "int8"), axis, dtype))


def folded_model(kind):
    """Build a model with an op that reads real numbers which were integers."""
    dtype = {"cast": "float16"}.get(kind, "float64" if "float64" in kind else "float32")
    x, rows = variable("x", 4, 8, dtype=dtype), variable("rows", 3, dtype="int64")

    def body(emit):
        if kind == "take":
            return emit(op.take(real_of(emit, integers(4, 8), 8, 1), rows, 1))
        if kind == "reshape":
            blocks = real_of(emit, integers(8, 4), 8, 0)
            return emit(op.add(x, emit(op.reshape(blocks, (4, 8)))))
        if kind == "concat":
            return emit(op.concat([x, real_of(emit, integers(4, 8), 8, 1)]))
        if kind == "computed":
            cast = emit(op.astype(integers(8, 5), "float32"))
            return emit(op.matmul(x, emit(op.subtract(cast, relax.const(3.0)))))
        is_cast = kind == "float64 without scales"
        numbers = integers(8, 5) if is_cast else real_of(emit, integers(8, 5), 5, 1)
        return emit(op.matmul(x, emit(op.astype(numbers, dtype))))

    return build([rows if kind == "take" else x], body)


@pytest.mark.thorough
@needs("matmul", dtype="float16")
@needs("take", "reshape", "concat", "matmul", "add", "dequantize")
@pytest.mark.parametrize(
    "kind, name, code, sentence",
    [
        (
            "take",
            "take",
            Code.QUANTIZATION,
            "take: a constant of int8 becomes real numbers when the model is compiled; supported: "
            "one scale, or one for each row, each group of a row, or each column",
        ),
        (
            "reshape",
            "reshape",
            Code.QUANTIZATION,
            "reshape: a constant of int8 becomes real numbers when the model is compiled; "
            "supported: one scale, or weights that only matmuls read",
        ),
        (
            "concat",
            "concat",
            Code.QUANTIZATION,
            "concat: a constant of int8 becomes real numbers when the model is compiled; "
            "supported: parts of one scale, all of them integers",
        ),
        (
            "computed",
            "matmul",
            Code.QUANTIZATION,
            "'x2', a constant of int8, becomes real numbers when the model is compiled; "
            "supported: a dequantize before it",
        ),
        (
            "cast",
            "matmul",
            Code.QUANTIZATION,
            "'x2' is cast after its dequantize; supported: a dequantize to float16 right before "
            "the op",
        ),
        (
            "float64",
            "matmul",
            Code.DTYPE,
            "the host computes with real numbers, as the model says",
        ),
        (
            "float64 without scales",
            "matmul",
            Code.DTYPE,
            "the host computes with real numbers, as the model says",
        ),
    ],
)
def test_a_constant_of_integers_that_becomes_real_numbers_says_why(
    kind, name, code, sentence, monkeypatch
):
    skip_without_integers("matmul")
    report = report_of(folded_model(kind))
    (entry,) = (item for item in report.ops if item.op == f"relax.{name}")
    assert (entry.asked, entry.wider_code, entry.wider) == ("int8", code.value, sentence)
    assert entry.wider_remedy == code.remedy
    advice = f"[{code.value}] {code.remedy}"
    assert sentence in str(report) and advice in str(report).splitlines()
    shown = " ".join(support.on_terminal(report, monkeypatch, 200).split())
    assert sentence in shown and code.remedy in shown
    kept = backend.Report.from_json(report.to_json())
    assert kept.ops == report.ops
    if code is Code.DTYPE:
        assert "'x1' is float64; supported: float32, float16" in entry.reason


@needs("take", "matmul", "dequantize")
def test_integers_that_the_table_does_not_have_say_so():
    tables = {
        "take": [
            replace(item, inputs=(replace(item.inputs[0], dtypes=("float32",)), *item.inputs[1:]))
            for item in OPS
            if item.name == "take"
        ],
        "matmul": [replace(item, quantized=None) for item in OPS if item.name == "matmul"],
    }
    rows, x = variable("rows", 3, dtype="int64"), variable("x", 4, 8)
    models = {
        "take": build(
            [rows], lambda emit: emit(op.take(real_of(emit, integers(4, 8), 4, 0), rows, 0))
        ),
        "matmul": build([x], lambda emit: emit(op.matmul(x, real_of(emit, integers(8, 5), 5, 1)))),
    }
    found = []
    for name, entries in tables.items():
        known = [*entries, *(item for item in OPS if item.name == "dequantize")]
        (entry,) = (item for item in report_of(models[name], Table(known)).ops if item.wider)
        assert (entry.op, entry.asked) == (f"relax.{name}", "int8")
        assert entry.wider_code == Code.NO_INTEGER_FORM.value
        found.append(entry.wider)
    (entry,) = report_of(models["take"], table_of("take")).ops
    found.append(entry.wider)
    computed = "becomes real numbers when the model is compiled"
    assert found == [
        f"take: a constant of int8 {computed}; supported: float32",
        "matmul has no form for quantized tensors in the table",
        f"take: a constant of int8 {computed}; the table has no dequantize",
    ]


@needs("add", "take", "matmul", "reshape", "dequantize")
def test_real_numbers_that_a_model_asks_for_have_no_reason():
    """An addition is of real numbers, and so is a product of embeddings by real weights."""
    skip_without_integers("matmul")
    x, rows = variable("x", 4, 8), variable("rows", 3, dtype="int64")

    def body(emit):
        embedded = emit(op.take(real_of(emit, integers(4, 8), 4, 0), rows, 0))
        total = emit(op.add(x, real_of(emit, integers(4, 8), 8, 1)))
        return [total, emit(op.matmul(embedded, weight(8, 5)))]

    assert not any(item.wider for item in report_of(build([x, rows], body)).ops)


SCALES_OF_BLOCKS = "has scales of blocks; supported: one, or of weights one per channel"


@needs_library("onnx")
@needs("matmul", "reshape", "permute_dims", "quantize", "dequantize")
@pytest.mark.parametrize(
    "data, weights, sentence",
    [
        ((4, 2), (8,), f"'x1' {SCALES_OF_BLOCKS}"),
        (
            (32,),
            (8,),
            "matmul: 'x1' has several zero points; supported: one",
        ),
        ((), (2, 8), f"'x2' {SCALES_OF_BLOCKS}"),
    ],
)
def test_a_product_of_an_onnx_model_that_is_computed_in_float_says_why(data, weights, sentence):
    import onnx
    from onnx import TensorProto

    skip_without_integers("matmul")
    generator = np.random.default_rng(0)
    numbers = generator.integers(-8, 8, (32, 8))
    steps = generator.uniform(0.02, 0.05, data).astype("float32")
    zeros = np.zeros(data, "int8")
    if data == (32,):
        zeros = generator.integers(-9, 10, data).astype("int8")
    scales = generator.uniform(0.02, 0.05, weights).astype("float32")
    constants = [
        onnx.numpy_helper.from_array(steps, "s"),
        onnx.numpy_helper.from_array(zeros, "z"),
        onnx.helper.make_tensor("w", TensorProto.INT4, (32, 8), numbers.reshape(-1).tolist()),
        onnx.numpy_helper.from_array(scales, "t"),
    ]
    of_data = "<axis = 1, block_size = 16>" if len(data) == 2 else "<axis = 1>"
    of_weights = "<axis = 0, block_size = 16>" if len(weights) == 2 else "<axis = 1>"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[4, 32] x) => (float[4, 8] y) {{
        q = QuantizeLinear{of_data}(x, s, z)
        d = DequantizeLinear{of_data}(q, s, z)
        f = DequantizeLinear{of_weights}(w, t)
        y = MatMul(d, f)
    }}""")
    model.graph.initializer.extend(constants)
    mod = backend.from_onnx(model)
    (entry,) = (item for item in report_of(mod).ops if item.op == "relax.matmul")
    assert (entry.wider_code, entry.wider) == (Code.QUANTIZATION.value, sentence)
    assert entry.asked == "int8" and entry.runs_in.startswith("float32")

    def spread(array, axis):
        return np.repeat(array, 16, axis) if array.ndim == 2 else array

    x = generator.standard_normal((4, 32)).astype("float32")
    steps, zeros = spread(steps, 1), spread(zeros, 1).astype("int64")
    real = (np.clip(np.rint(x / steps) + zeros, -128, 127) - zeros) * steps
    matrix = numbers * spread(scales, 0)
    program = relax.VirtualMachine(support.compile_for(mod), tvm.cpu())
    found = program["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, real @ matrix.astype("float64"), rtol=1e-4, atol=1e-4)


# ---- Codes --------------------------------------------------------------------------------------


def test_each_code_has_a_test():
    tests = Path(__file__).read_text()
    assert [code.name for code in Code if f"Code.{code.name}" not in tests] == []


def test_codes_are_unique_words_with_a_meaning_and_a_remedy():
    values = [code.value for code in Code]
    assert len(set(values)) == len(values)
    for code in Code:
        assert code.value.replace("_", "").isalpha() and code.value.islower()
        assert code.meaning[0].islower() and not code.meaning.endswith(".")
        assert code.remedy[0].isupper() and code.remedy.endswith(".")
