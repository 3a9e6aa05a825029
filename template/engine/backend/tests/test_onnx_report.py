# SPDX-License-Identifier: Apache-2.0
"""The report as an ONNX file: its nodes, their placement with reasons, and its edges."""

import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.backend.ir.origins import Origin, with_span
from support import build, needs, on_host, partition_for, run_command, skip_where_declined, variable

op = relax.op
pytestmark = needs("relu", "add")


@pytest.fixture
def onnx():
    return pytest.importorskip("onnx", reason="onnx is not installed")


def model():
    """Make two regions with a host op between; the author named the first and the host op."""
    x, y = variable("x", 2, 4), variable("y", 2, 4)

    def body(emit):
        first = emit(with_span(op.nn.relu(x), Origin("stem", "net.stem", "net.py:3").span()))
        middle = emit(with_span(on_host(first), Origin("/middle").span()))
        return emit(op.nn.relu(emit(op.add(middle, y))))

    return build([x, y], body)


def metadata(item):
    return {entry.key: entry.value for entry in item.metadata_props}


@support.needs_reals
def test_regions_are_functions_and_nodes_say_where_they_run_and_why(onnx, tmp_path):
    mod = model()
    skip_where_declined(mod)
    report = backend.offload_report(partition_for(mod))
    report.to_onnx(tmp_path / "report.onnx")
    found = onnx.load(tmp_path / "report.onnx")
    onnx.checker.check_model(found, full_check=True)
    first, second = (region.symbol for region in report.regions)
    graph = found.graph
    assert [item.name for item in graph.input] == ["x", "y"]
    assert [item.op_type for item in graph.node[::2]] == [first, second]
    (host,) = report.on_host
    middle = graph.node[1]
    assert (middle.name, middle.domain) == ("/middle", "relax")
    assert f"relax.{middle.op_type}" == host.op
    told = metadata(middle)
    assert (told["placement"], told["code"], told["reason"]) == ("host", host.code, host.reason)
    assert host.reason in middle.doc_string
    # Edges: region, host, region, result.
    assert list(graph.node[0].input) == ["x"]
    assert list(middle.input) == list(graph.node[0].output)
    assert set(graph.node[2].input) == {"y", *middle.output}
    assert [item.name for item in graph.output] == list(graph.node[2].output)
    (shape,) = (item.type.tensor_type.shape for item in graph.output)
    assert [size.dim_value for size in shape.dim] == [2, 4]
    bodies = {item.name: item for item in found.functions}
    assert set(bodies) == {first, second}
    (stem,) = bodies[first].node
    assert (stem.name, stem.op_type) == ("net.stem (stem)", "nn.relu")
    told = metadata(stem)
    assert (told["placement"], told["region"], told["composite"]) == ("npu", first, "relu")
    assert (told["module"], told["location"]) == ("net.stem", "net.py:3")
    assert list(stem.input) == ["x"] and list(stem.output) == list(bodies[first].output)
    assert [item.op_type for item in bodies[second].node] == ["add", "nn.relu"]
    assert metadata(graph.node[2])["ops"] == "2"
    assert {entry.key: entry.value for entry in found.metadata_props}["summary"] == report.summary


def test_symbols_attributes_tuples_and_other_functions_are_in_it(onnx, tmp_path):
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    helper = build([x], lambda emit: emit(on_host(x)), "helper")["helper"]
    name = relax.GlobalVar("helper")
    relax.expr._update_type(name, helper.ty)
    builder = relax.BlockBuilder(tvm.IRModule({name: helper.without_attr("global_symbol")}))
    y = relax.Var("y", x.ty)
    with builder.function("main", [y]):
        with builder.dataflow():
            value = builder.emit(op.astype(relax.Call(name, [y]), "float64"))
            result = builder.emit_output(op.split(value, 2, 1))
        builder.emit_func_output(result)
    report = backend.offload_report(partition_for(builder.get()))
    report.to_onnx(tmp_path / "report.onnx")
    found = onnx.load(tmp_path / "report.onnx")
    onnx.checker.check_model(found)
    nodes = [*found.graph.node, *(node for item in found.functions for node in item.node)]
    (split,) = (node for node in nodes if node.op_type == "split")
    attributes = {item.name: item.s.decode() for item in split.attribute}
    assert attributes["indices_or_sections"] == "2" and attributes["axis"] == "1"
    assert [item.name for item in found.graph.input] == ["y"]
    assert "helper" in {item.name for item in found.functions}
    values = {item.name: item for item in found.graph.value_info}
    (call,) = (node for node in found.graph.node if node.op_type == "helper")
    size, _ = values[call.output[0]].type.tensor_type.shape.dim
    assert size.dim_param == "n" and call.domain == found.functions[-1].domain


def test_the_command_report_writes_it(onnx, tmp_path):
    mod = model()
    (tmp_path / "model.json").write_text(tvm.ir.save_json(mod))
    path = tmp_path / "report.onnx"
    code, _, errors = run_command("report", tmp_path / "model.json", "--netron", path)
    assert code == 0, errors
    report = backend.offload_report(partition_for(mod))
    assert len(onnx.load(path).graph.node) == len(report.regions) + len(report.on_host)


def test_an_empty_report_and_a_bad_path(onnx, tmp_path):
    backend.Report(()).to_onnx(tmp_path / "empty.onnx")
    assert not onnx.load(tmp_path / "empty.onnx").graph.node
    with pytest.raises(ValueError, match="cannot be written"):
        backend.Report(()).to_onnx(tmp_path / "missing" / "report.onnx")


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install onnx"):
        backend.Report(()).to_onnx(tmp_path / "report.onnx")
    assert not list(tmp_path.iterdir())
