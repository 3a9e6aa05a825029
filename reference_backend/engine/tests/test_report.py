# SPDX-License-Identifier: Apache-2.0
"""The report: complete, for people and for programs, and kept in the module."""

import json

import pytest
import tvm
from tvm import relax

import backend
from support import BACKEND, SINGLE, TABLE, needs_single, partition_for

pytestmark = needs_single
HOST = ("relax.nonzero", "relax.shape_of", "relax.shape_to_tensor")


@pytest.fixture(scope="module")
def partitioned():
    """All ops, each in a function of its own, with something for the host behind it."""
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
    for entry in backend.offload_report(partitioned).on_host:
        assert entry.placement == "host"
        assert entry.reason
        assert entry.region is None


def test_bookkeeping_is_told_from_work(partitioned):
    for entry in backend.offload_report(partitioned).ops:
        assert entry.bookkeeping == (entry.op == "relax.shape_of")


def test_the_report_is_data(partitioned):
    report = backend.offload_report(partitioned)
    data = json.loads(report.to_json())
    assert data == report.to_dict()
    assert data["backend"] == BACKEND
    assert {"function", "name", "op", "placement", "region", "composite", "reason"} <= set(
        data["ops"][0]
    )
    assert backend.Report.from_json(report.to_json()) == report


def test_the_report_survives_code_generation(partitioned):
    compiled = relax.transform.RunCodegen()(partitioned)
    assert backend.offload_report(compiled) == backend.offload_report(partitioned)


def test_the_table_has_a_line_for_each_op_and_one_of_totals(partitioned):
    report = backend.offload_report(partitioned)
    lines = str(report).splitlines()
    assert len(lines) == len(report.ops) + 2
    count, total = len(report.offloaded), len(report.ops)
    assert lines[-1] == f"{count} of {total} ops on the NPU, regions: {len(report.regions)}"
    for entry, line in zip(report.ops, lines[1:], strict=False):
        assert entry.op in line
        assert entry.name in line
        assert (entry.reason or entry.composite) in line


def test_a_module_without_a_report_is_an_error_that_says_what_to_do():
    mod = tvm.IRModule({SINGLE[0].symbol: SINGLE[0].model().function()})
    with pytest.raises(ValueError, match=f"partition_for_{BACKEND}"):
        backend.offload_report(mod)


def test_an_empty_report_is_a_table_too():
    assert "0 of 0 ops" in str(backend.Report(()))
