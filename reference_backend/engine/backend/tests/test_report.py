# SPDX-License-Identifier: Apache-2.0
"""The report: complete, as text and as data, and stored in the module."""

import io
import json
import re

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.backend.ir.amounts import Amounts
from backend.engine.backend.ir.origins import Origin
from backend.engine.backend.report.names import Names
from backend.engine.backend.report.report import Border, OpPlacement, RegionPlacement, Report
from backend.engine.backend.report.sdk_start import sdk_start_remedy
from backend.engine.backend.settings.options import PREFIX, Options
from support import (
    BACKEND,
    SINGLE,
    TABLE,
    Terminal,
    build,
    needs,
    needs_single,
    on_terminal,
    partition_for,
    variable,
)

pytestmark = needs_single
HOST = ("relax.nonzero", "relax.shape_of", "relax.shape_to_tensor")


@pytest.fixture(scope="module")
def partitioned():
    """Partition all ops, each in its own function and followed by a host op."""
    functions = {}
    for case in SINGLE:
        model = case.model(constants=True)
        first = model.outputs[0]
        found = model.bind(relax.op.nonzero(first.expr))
        size = model.bind(relax.op.shape_of(found))
        model.outputs = [first, type(first)(model.bind(relax.op.shape_to_tensor(size)), {})]
        functions[model.name] = model.function()
    return partition_for(tvm.IRModule(functions))


def test_each_op_of_the_model_has_one_entry_in_the_order_of_the_model(partitioned):
    report = backend.offload_report(partitioned)
    for case in SINGLE:
        ops = [entry.op for entry in report.ops if entry.function == case.symbol]
        assert ops == [TABLE.get(case.op).relax, *HOST]
    assert len(report.ops) == (1 + len(HOST)) * len(SINGLE)


@pytest.mark.parametrize("mod", [None, "model.onnx", tvm.IRModule({})], ids=str)
def test_a_report_needs_a_partitioned_module(mod):
    with pytest.raises(ValueError, match=f"has no report: .* partition_for_{BACKEND} returned"):
        backend.offload_report(mod)


def test_what_is_on_the_npu_has_a_region_and_a_composite(partitioned):
    report = backend.offload_report(partitioned)
    names = {str(item.name_hint) for item in partitioned.get_global_vars()}
    assert len(report.offloaded) == len(SINGLE)
    for entry in report.offloaded:
        assert entry.region in names
        assert entry.composite in entry.function or entry.composite in TABLE._by_name
        assert entry.reason is None
    assert len(report.regions) == len(SINGLE)


def test_what_is_on_the_host_has_a_reason(partitioned):
    found = backend.offload_report(partitioned).on_host
    assert len(found) == len(HOST) * len(SINGLE)
    for entry in found:
        assert entry.placement == "host"
        assert entry.reason
        assert entry.region is None


def test_bookkeeping_is_distinguished_from_work(partitioned):
    ops = backend.offload_report(partitioned).ops
    assert sum(entry.bookkeeping for entry in ops) == len(SINGLE)
    for entry in ops:
        assert entry.bookkeeping == (entry.op == "relax.shape_of")


def test_ops_say_what_they_read_and_what_is_around_them(partitioned):
    ops = backend.offload_report(partitioned).ops
    for index, entry in enumerate(ops):
        made = [item for item in entry.reads if ops[item].function == entry.function]
        assert list(entry.reads) == made and all(item < index for item in made)
        if entry.op in HOST:
            assert entry.reads == (index - 1,)
            assert len(entry.arguments) == (entry.op != HOST[2])  # Shapes are not tensors.
        else:
            assert entry.reads == () and entry.result
    assert ops[1].result.startswith("int64[")


def test_ops_that_were_placed_before_keep_what_they_read(partitioned):
    again = partition_for(partitioned)
    first, second = (backend.offload_report(item).ops for item in (partitioned, again))
    assert [op.reads for op in first if op.placement == "npu"] == [
        op.reads for op in second if op.placement == "npu"
    ]
    for index, entry in enumerate(second):
        if entry.op in HOST[1:]:
            assert entry.reads == (index - 1,)


def test_the_report_is_data(partitioned):
    report = backend.offload_report(partitioned)
    data = json.loads(report.to_json())
    assert data == report.to_dict()
    assert data["backend"] == BACKEND
    assert data["version"] == 1 and data["summary"] == report.summary
    assert {"function", "name", "op", "placement", "region", "composite", "reason"} <= set(
        data["ops"][0]
    )
    assert backend.Report.from_json(report.to_json()) == report
    newer = json.loads(report.to_json())
    for item in (newer, *newer["ops"], *newer["regions"], *newer["regions"][0]["inputs"]):
        item["more"] = 1
    assert backend.Report.from_json(json.dumps(newer)) == report


def test_the_report_survives_code_generation(partitioned):
    compiled = relax.transform.RunCodegen()(partitioned)
    assert backend.offload_report(compiled) == backend.offload_report(partitioned)


def test_the_table_has_a_line_for_each_op_and_one_of_totals(partitioned):
    report = backend.offload_report(partitioned)
    lines = str(report).splitlines()
    remedies = {(op.code, op.remedy) for op in report.on_host if not op.bookkeeping}
    told = sum(len(region.warnings) + len(region.notes) for region in report.regions)
    functions = len(report.functions) if len(report.functions) > 1 else 0
    assert len(lines) == sum(
        (1, len(report.ops), len(report.regions), told, len(remedies), functions, 1)
    )
    count, total = len(report.offloaded), len(report.ops)
    assert lines[-1] == report.summary
    assert report.summary.startswith(f"{count} of {total} ops on the NPU, ")
    assert f"regions: {len(report.regions)}" in report.summary
    for entry, line in zip(report.ops, lines[1:], strict=False):
        assert entry.op in line
        assert entry.name in line
        assert (entry.reason or entry.composite) in line
    for region, line in zip(report.regions, lines[1 + len(report.ops) :], strict=False):
        size = f"{region.bytes_in:,} bytes in and {region.bytes_out:,} bytes out at each call"
        assert line.startswith(f"region {region.symbol}: 1 op, ") and line.endswith(size)


def test_a_module_without_a_report_is_an_error_that_says_what_to_do():
    mod = tvm.IRModule({SINGLE[0].symbol: SINGLE[0].model().function()})
    with pytest.raises(ValueError, match=f"partition_for_{BACKEND}"):
        backend.offload_report(mod)


def test_an_empty_report_is_a_table_too():
    assert "0 of 0 ops" in str(backend.Report(()))


def test_a_report_of_another_version_is_refused():
    data = {**backend.Report(()).to_dict(), "version": 2}
    for text in (json.dumps(data), "[]"):
        with pytest.raises(ValueError, match="version .*; supported: 1"):
            backend.Report.from_json(text)


def test_what_the_driver_warns_of_is_in_the_report(decline, monkeypatch):
    model = SINGLE[0].model(constants=True)
    told = "\nthe clock is slow\nrelax.relu (lv): its \x1b[31mrange is wide"
    told += "\nnote: it takes 5 cycles"
    decline(lambda function, finish: told if finish else "")
    report = backend.offload_report(partition_for(tvm.IRModule({model.name: model.function()})))
    (region,) = report.regions
    assert region.warnings == tuple(told.splitlines()[1:3])
    assert region.notes == ("it takes 5 cycles",)
    assert f"region {region.symbol}: it takes 5 cycles" in str(report).splitlines()
    begin = f"region {region.symbol}: the driver warns: "
    lines = [line for line in str(report).splitlines() if line.startswith(begin)]
    assert lines[0] == f"{begin}the clock is slow" and "\x1b" not in lines[1]
    assert report.summary.endswith(", warnings of the driver: 2")
    shown = " ".join(on_terminal(report, monkeypatch, 70).split())
    assert "the driver warns: the clock is slow" in shown
    data = json.loads(report.to_json())
    assert Report.from_json(json.dumps(data)) == report
    # As releases before this one have written it.
    del data["regions"][0]["warnings"], data["regions"][0]["notes"]
    (region,) = Report.from_json(json.dumps(data)).regions
    assert region.warnings == region.notes == ()


def test_warnings_have_the_names_of_the_author():
    op = OpPlacement("main", "lv3", "relax.add", "npu", origin=Origin("/block/Add"), region="r")
    region = RegionPlacement("r", "main", 1, ("add",), 0, 0, 0, (), (), ("relax.add (lv3): wide",))
    assert Names([op]).of_region(region).warnings == ("relax.add (/block/Add): wide",)


def test_operations_are_those_of_the_table():
    """The table counts a multiply-accumulate as two operations; both estimate the same work."""
    for case in SINGLE:
        entry = TABLE.get(case.op)
        model = case.model(constants=True)
        call = next(item.value for item in model.bindings if isinstance(item.value, relax.Call))
        bounds = dict.fromkeys("nm", 4)
        macs = Amounts(bounds).macs(call)
        if entry.engine != "matrix" or "resize" in case.op:
            assert macs == 0
        else:
            assert 2 * macs == TABLE.count_operations(call, {}, bounds)


@support.needs_reals
@pytest.mark.usefixtures("bound_constants")
@needs("conv2d", "relu")
def test_amounts_of_ops_regions_and_borders_add_up():
    x = variable("x", 1, 3, 8, 8)
    weight = relax.const(np.ones((4, 3, 3, 3), "float32"))

    def body(emit):
        value = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, weight))))
        return [emit(relax.op.nonzero(value)), value]

    report = backend.offload_report(partition_for(build([x], body)))
    conv, relu, host = report.ops
    assert conv.macs == 6 * 6 * 4 * 27 and relu.macs == 0
    assert conv.bytes_read == 4 * (3 * 64 + 4 * 27)
    assert conv.bytes_written == relu.bytes_read == relu.bytes_written == 4 * 4 * 36
    assert host.bytes_read == 4 * 4 * 36 and host.bytes_written is None  # Its size depends on data.
    (region,) = report.regions
    assert (region.ops, region.macs, region.function) == (2, conv.macs, "main")
    assert region.bytes_read == conv.bytes_read + relu.bytes_read
    assert [(item.name, item.type, item.bytes) for item in region.inputs] == [
        ("x", "float32[1, 3, 8, 8]", 4 * 3 * 64)
    ]
    assert (region.bytes_in, region.bytes_out) == (4 * 3 * 64, 4 * 4 * 36)
    assert report.totals["macs"].percent == 100.0
    assert report.totals["ops"].npu == 2 and report.totals["ops"].total == 3
    moved = report.totals["bytes"]
    assert moved.total == moved.npu + host.bytes_read
    assert report.summary == f"2 of 3 ops on the NPU, 100.0 % of {conv.macs:,} MACs, regions: 1"


def test_macs_that_are_not_known_are_no_zeros_in_the_summary():
    op = backend.OpPlacement

    def placed(*macs):
        places = ["host", "npu"]
        ops = [op("main", f"lv{at}", "f", places[at % 2], macs=one) for at, one in enumerate(macs)]
        return backend.Report(tuple(ops))

    report = placed(None, 10240, None, 0, None)
    assert report.summary == (
        "2 of 5 ops on the NPU, at least 10,240 MACs on the NPU and 0 on the host: those of 3 ops "
        "are not known (3 on the host), regions: 0"
    )
    found = report.to_dict()["totals"]["macs"]
    assert (found["unknown"], found["unknown_npu"], found["total"]) == (3, 0, 10240)
    assert "7 on the host: those of 1 op are not known (0 on the host)" in placed(7, None).summary
    assert placed(3, 1).summary == "1 of 2 ops on the NPU, 25.0 % of 4 MACs, regions: 0"
    shapes = backend.Report((op("main", "lv", "f", "host", macs=None, bookkeeping=True),))
    assert shapes.totals["macs"].unknown == 0


def test_sizes_that_are_computed_of_a_symbol_count_with_its_bound():
    n = tvm.tirx.Var("n", "int64")
    x = variable("x", 1, 8, (n - 1) // 2 + 1, n)
    call = relax.op.nn.conv2d(x, relax.const(np.ones((4, 8, 1, 1), "float32")))
    call = relax.BlockBuilder().normalize(call)
    assert Amounts({"n": 64}).macs(call) == 32 * 64 * 4 * 8
    assert Amounts({"n": 64}).bytes_of(x) == 4 * 8 * 32 * 64
    assert Amounts({}).macs(call) is None


def test_a_report_tells_with_which_numbers_open_sizes_count(monkeypatch):
    x = variable("x", tvm.tirx.Var("n", "int64"), tvm.tirx.Var("length", "int64"))
    mod = build([x], lambda emit: emit(relax.op.sinh(x)))
    report = backend.offload_report(partition_for(mod, symbol_bounds={"n": 8}))
    length = Options.symbol_bound
    assert report.symbols == {"n": 8, "length": length}
    assert report.ops[0].bytes_read == 8 * length * 4
    assert backend.Report.from_json(report.to_json()).symbols == report.symbols
    sentence = f"open sizes count with their bounds: length = {length}, n = 8 "
    assert f"\n{sentence}" in str(report)
    assert sentence in " ".join(on_terminal(report, monkeypatch, 100).split())
    older = report.to_dict()
    del older["symbols"]
    assert backend.Report.from_json(json.dumps(older)).symbols == {}


def a_report(count):
    """Make a report of products on the NPU, with an op on the host behind each."""
    ops = []
    for at in range(count):
        name, region = f"layer{at}._native_batch_norm_legit", f"{BACKEND}_main_{at}"
        npu = {"origin": Origin(name), "region": region, "composite": "conv2d_bias_relu"}
        ops.append(backend.OpPlacement("main", f"lv{at}", "relax.f", "npu", macs=at + 1, **npu))
        why = {"code": "dtype", "reason": "g: 'x' is float64; supported: float32"}
        host = {**why, "remedy": "Cast.", "origin": Origin(f"/head/to_double_{at}")}
        ops.append(backend.OpPlacement("main", f"gv{at}", "relax.g", "host", **host))
    border = Border("x", "float32[512]", 2048)
    regions = [
        RegionPlacement(op.region, "main", 1, (op.composite,), op.macs, 0, 0, (border,), ())
        for op in ops[::2]
    ]
    return backend.Report(tuple(ops), tuple(regions))


@pytest.mark.parametrize("width", [80, 110, 200])
def test_a_terminal_shows_names_and_reasons_whole_at_any_width(monkeypatch, width):
    report = a_report(3)
    text = on_terminal(report, monkeypatch, width)
    assert max(map(len, text.splitlines())) <= width
    for at in range(3):
        assert f"layer{at}._native_batch_norm_legit  main_{at}" in text
        percent = f"{100 * (at + 1) / 6:.1f}"
        assert re.search(rf"{BACKEND}_main_{at} +1 +{at + 1} +{percent} +2.05 k", text)
    assert "\n[dtype] Cast.\n  g: 'x' is float64; supported: float32" in text
    names = ", ".join(f"/head/to_double_{at}" for at in range(3))
    assert names in text and text.count("is float64") == 1
    assert ("conv2d_bias_relu" in text) == (width > 80)
    assert ("(a wider terminal shows, too: " in text) == (width == 80)
    assert report.summary in " ".join(text.split())


def test_of_many_ops_a_terminal_shows_the_largest_and_those_on_the_host(monkeypatch):
    report = a_report(30)
    text = on_terminal(report, monkeypatch, 120)
    assert "The 10 ops with the most MACs" in text and "layer29." in text and "layer19." not in text
    assert "/head/to_double_11, and 18 more" in " ".join(text.split())
    assert "60 ops: --all" in text
    everything = on_terminal(report, monkeypatch, 120, all_ops=True)
    assert "layer0." in everything and "/head/to_double_29" in everything
    assert "--all" not in everything
    plain = io.StringIO()
    report.show(plain)
    assert plain.getvalue() == f"{report}\n" and "layer0." in plain.getvalue()


@needs("conv2d", "relu")
def test_a_table_is_coloured_on_a_terminal_and_plain_text_elsewhere(partitioned):
    rich = pytest.importorskip("rich", reason="rich is not installed")
    assert rich
    report = backend.offload_report(partitioned)
    plain = io.StringIO()
    report.show(plain)
    assert plain.getvalue() == f"{report}\n"

    terminal = Terminal()
    report.show(terminal)
    text = terminal.getvalue()
    assert "\x1b[" in text
    assert report.summary.split(",")[0] in text


def test_a_tool_that_does_not_start_is_told_with_what_to_do():
    """By the sentence of the driver kit, wherever it is in that of an op."""
    why = "the SDK's tool does not start: it ended with exit code 1: no module named acme"
    remedy = sdk_start_remedy([None, "too large", f"relax.add (lv): {why}"])
    assert remedy == (
        f"T{why[1:]}. Name the SDK's Python: export "
        f'{PREFIX}SDK_COMMAND="/path/to/python /path/to/vendor/sdk/compile.py"'
    )
    assert sdk_start_remedy([None, "relax.add (lv): the SDK's tool took more than 9 s"]) is None
