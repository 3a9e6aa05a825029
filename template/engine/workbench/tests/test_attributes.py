# SPDX-License-Identifier: Apache-2.0
"""What importers read of operators: the readings, a planted drop, and the refusal of the rest."""

import json

import numpy as np
import pytest
from tvm import relax

from backend.engine.backend.importers import from_exported_program, from_onnx
from backend.engine.backend.importers.attributes import readings
from backend.engine.backend.importers.attributes.harmless import HARMLESS
from backend.engine.workbench.drift import importer_readings as drift_readings


def names_in(table):
    return {name for rows in table.values() for row in rows.values() for name in row["reads"]}


# ---- The readings -------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("front_door", readings.FRONT_DOORS)
def test_the_table_says_what_is_read(front_door):
    for package in (front_door, *(("torchao",) if front_door == "torch" else ())):
        pytest.importorskip(package)
    found = drift_readings.find(front_door)
    assert drift_readings.changes(readings.load(front_door), found) == []
    assert json.loads(drift_readings.text_of(found)) == readings.load(front_door)


def test_the_tables_have_each_operator_that_is_converted():
    pytest.importorskip("onnx")
    from tvm.relax.frontend.onnx import onnx_frontend

    from backend.engine.backend.importers.onnx.operators import RULES

    table = readings.load("onnx")
    listed = {part: {op.rpartition("-")[0] for op in table[part]} for part in table}
    listed = {part: {op.rpartition(".")[2] for op in ops} for part, ops in listed.items()}
    without_schema = {"AllClassNMS"}
    assert set(onnx_frontend._get_convert_map()) - listed["importer"] == without_schema
    assert set(RULES) == listed["rules"]


def test_the_tables_have_each_op_of_pytorch():
    torch = pytest.importorskip("torch")
    from tvm.relax.frontend.torch import exported_program_translator as translator

    table = readings.load("torch")["importer"]
    converted = set(translator.ExportedProgramImporter().convert_map)
    ops = {f"aten.{op}" for op in converted if "." in op}
    registered = {
        f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        for schema in torch._C._jit_get_all_schemas()
    }
    assert len(table) > 250
    assert ops & registered <= table.keys()


def test_the_tables_have_each_operator_of_tflite():
    pytest.importorskip("tflite")
    from backend.engine.backend.importers.tflite.operators import Converter

    converters = Converter(None, None, None, None).convert_map
    assert readings.load("tflite")["importer"].keys() == converters.keys()


@pytest.mark.parametrize("front_door", readings.FRONT_DOORS)
def test_only_what_is_not_read_is_harmless(front_door):
    table = readings.load(front_door)
    ignored = {}
    for rows in table.values():
        for op, row in rows.items():
            name = op.rpartition("-")[0] if front_door == "onnx" else op
            name = name.rpartition(".")[0] if front_door == "torch" else name.rpartition(".")[2]
            fields = {field.rpartition(".")[2] for field in row["ignores"]}
            ignored.setdefault(name, set()).update(fields | set(row.get("hands_on", ())))
    ignored["*"] = set().union(*ignored.values())
    optional = {op for op in HARMLESS[front_door] if op.startswith("torchao")} - ignored.keys()
    for op, harmless in HARMLESS[front_door].items():
        if op not in optional:
            assert harmless.keys() <= ignored[op], op


def test_what_a_rule_reads_needs_no_entry_as_harmless():
    for op, row in readings.load("onnx")["rules"].items():
        read = set(row["reads"]) - set(row.get("hands_on", ()))
        name = op.rpartition("-")[0].rpartition(".")[2]
        assert not read & HARMLESS["onnx"].get(name, {}).keys(), op


# ---- A planted drop -----------------------------------------------------------------------------


def changes_of(before, after):
    changes = drift_readings.changes({"importer": before}, {"importer": after})
    assert all(change.loses for change in changes)
    return [change[1:] for change in changes]


def test_a_planted_drop_is_found_in_onnx():
    pytest.importorskip("onnx")
    from tvm.relax.frontend.onnx import onnx_frontend

    from backend.engine.workbench.drift.onnx_rows import rows_of_converters

    class Dropped(onnx_frontend.LeakyRelu):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            return relax.op.nn.leakyrelu(inputs[0], 0.01)

    class Unused(onnx_frontend.LeakyRelu):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            alpha = attr.get("alpha", 0.01)  # noqa: F841
            return relax.op.nn.leakyrelu(inputs[0], 0.01)

    before = rows_of_converters({"LeakyRelu": onnx_frontend.LeakyRelu})
    assert "alpha" in before["LeakyRelu-6"]["reads"]
    for planted in (Dropped, Unused):
        after = rows_of_converters({"LeakyRelu": planted})
        sentence = "'alpha' is now not read"
        assert changes_of(before, after) == [("LeakyRelu-1", sentence), ("LeakyRelu-6", sentence)]


def test_a_planted_drop_is_found_in_a_rule_for_onnx():
    pytest.importorskip("onnx")
    from backend.engine.backend.importers.onnx.operators import RULES
    from backend.engine.workbench.drift.onnx_rows import find_readings

    rule = RULES["QGemm"]

    def dropped(node):
        a, a_scale, a_zero = node.inputs(3)
        node.write("Relu", node.dequantize(a, a_scale, a_zero, 0))

    before = find_readings({}, {"QGemm": rule})["rules"]
    after = find_readings({}, {"QGemm": dropped})["rules"]
    found = {sentence for _, sentence in changes_of(before, after)}
    assert {"'transB' is now not read", "'input C' is now not read"} <= found
    assert not any("input a" in sentence.lower() for sentence in found)


def test_a_planted_drop_is_found_in_torch():
    pytest.importorskip("torch")
    from tvm.relax.frontend.torch import exported_program_translator as translator

    from backend.engine.workbench.drift.torch_rows import find_readings

    class Dropped(translator.ExportedProgramImporter):
        def _leakyrelu(self, node):
            return self.block_builder.emit(relax.op.nn.leakyrelu(self.env[node.args[0]], 0.01))

    op = "leaky_relu.default"
    before, after = (
        find_readings({op: kind().convert_map[op]}, {})["importer"]
        for kind in (translator.ExportedProgramImporter, Dropped)
    )
    assert changes_of(before, after) == [(f"aten.{op}", "'negative_slope' is now not read")]


def test_a_planted_drop_is_found_in_a_rule_for_torch():
    pytest.importorskip("torch")
    from backend.engine.backend.importers.torch import quantized_ops as torch_quantized
    from backend.engine.workbench.drift.torch_rows import find_readings

    op = "quantized_decomposed.quantize_per_channel"

    def dropped(op):
        x, scale = op.value("input"), op.scale("scales", True)
        dtype = op.integer("dtype")
        zero = op.zero_point("zero_points", dtype, True)
        quantized = op.emit(relax.op.quantize(x, scale, zero, 0, dtype))
        return torch_quantized._clipped(op, quantized, dtype)

    before = find_readings({}, {op: torch_quantized.RULES[op]})["rules"]
    after = find_readings({}, {op: dropped})["rules"]
    assert changes_of(before, after) == [(f"{op}.default", "'axis' is now not read")]


def test_a_planted_drop_is_found_in_tflite():
    pytest.importorskip("tflite")
    from backend.engine.backend.importers.tflite.operators import Converter
    from backend.engine.workbench.drift.tflite_rows import find_readings

    class Dropped(Converter):
        def convert_leaky_relu(self, op):
            (tensor,) = self.get_input_tensors(op)
            return relax.op.nn.leakyrelu(self.get_tensor_expr(tensor), 0.01)

    op = "LEAKY_RELU"
    before, after = (
        find_readings({op: kind(None, None, None, None).convert_map[op]})["importer"]
        for kind in (Converter, Dropped)
    )
    assert changes_of(before, after) == [(op, "'LeakyReluOptions.Alpha' is now not read")]


def test_new_and_lost_operators_are_changes():
    row = {"reads": ["a"], "ignores": []}
    before = {"importer": {"A-1": row, "A-6": row, "B-1": row}, "rules": {"R-1": row}}
    after = {"importer": {"A-1": row, "A-7": row, "C-1": row}, "rules": {}}
    assert drift_readings.changes(before, after) == [
        (False, "B", "is gone"),
        (False, "C", "is new"),
        (False, "R, by a rule of ours", "is gone"),
    ]
    read = {"importer": {"A-1": {"reads": [], "ignores": ["a"]}}}
    assert drift_readings.changes(read, before)[0] == (False, "A-1", "'a' is now read")
    assert drift_readings.changes(before, read)[0] == (True, "A-1", "'a' is now not read")


# ---- Refusals -----------------------------------------------------------------------------------


def onnx_model(text, opset=21):
    from onnx import parser

    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> {text}'
    )


def without(front_door, part, op, name):
    """Return a table in which something is not read."""
    table = json.loads(drift_readings.text_of(readings.load(front_door)))
    table[part][op]["reads"].remove(name)
    table[part][op]["ignores"].append(name)
    return lambda front_door: table


def test_what_is_not_read_is_refused_in_onnx(monkeypatch):
    pytest.importorskip("onnx")
    from backend.engine.backend.importers.attributes import onnx_unread

    text = "g (float[2, 3] x) => (float[2, 3] y) {[act] y = LeakyRelu%s (x)}"
    table = without("onnx", "importer", "LeakyRelu-6", "alpha")
    from_onnx(onnx_model(text % "<alpha = 0.5>"))
    monkeypatch.setattr(onnx_unread, "load", table)
    from_onnx(onnx_model(text % ""))
    from_onnx(onnx_model(text % "<alpha = 0.01>"))
    message = (
        r"the node 'act' \(LeakyRelu\): its attribute alpha=0.5 is not read by the importer, so "
        r"that values would be wrong; supported is the default, alpha=0.009999999776\d*"
    )
    with pytest.raises(ValueError, match=message):
        from_onnx(onnx_model(text % "<alpha = 0.5>"))


def test_what_a_rule_does_not_read_is_refused(monkeypatch):
    onnx = pytest.importorskip("onnx")
    from backend.engine.backend.importers.attributes import onnx_unread

    values = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], "product", domain="com.microsoft", K=16, N=2, bits=4,
        block_size=16, accuracy_level=4,
    )  # fmt: skip
    packed, scales = np.full((2, 1, 8), 0x99, "uint8"), np.ones(2, "float32")
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [values("x", 1, [3, 16])],
        [values("y", 1, [3, 2])],
        [onnx.numpy_helper.from_array(packed, "w"), onnx.numpy_helper.from_array(scales, "s")],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    from_onnx(model)
    op = "com.microsoft.MatMulNBits-1"
    monkeypatch.setattr(onnx_unread, "load", without("onnx", "rules", op, "bits"))
    from_onnx(model)
    next(item for item in graph.node[0].attribute if item.name == "bits").i = 8
    message = r"the node 'product' \(com.microsoft.MatMulNBits\): its attribute bits=8 is not read"
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(ValueError, match=message):
        from_onnx(model)


def test_an_input_that_is_not_read_is_refused(monkeypatch):
    pytest.importorskip("onnx")
    from backend.engine.backend.importers.attributes import onnx_unread

    text = "g (float[2, 3] x, float low) => (float[2, 3] y) {[act] y = Clip (x, low)}"
    from_onnx(onnx_model(text))
    monkeypatch.setattr(onnx_unread, "load", without("onnx", "importer", "Clip-11", "input min"))
    with pytest.raises(ValueError, match=r"the node 'act' \(Clip\): its input min is not read by"):
        from_onnx(onnx_model(text, 12))


def test_an_attribute_that_no_schema_has_is_refused():
    pytest.importorskip("onnx")
    text = "g (float[2, 3] x) => (float[2, 3] y) {[act] y = Relu<slope = 2.0> (x)}"
    message = r"slope=2.0 is not read .* the node without it"
    with pytest.warns(UserWarning, match="Unrecognized"), pytest.raises(ValueError, match=message):
        from_onnx(onnx_model(text))


def test_an_operator_of_onnx_runtime_is_no_operator_of_onnx():
    pytest.importorskip("onnx")
    text = "g (float[2, 3] x) => (float[2, 3] y) {[act] y = com.microsoft.Unique (x)}"
    with pytest.raises(
        ValueError, match=r"'act' \(com.microsoft.Unique\): the importer would read"
    ):
        from_onnx(onnx_model(text))


def test_what_is_not_read_is_refused_in_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    from backend.engine.backend.importers.attributes import torch_unread

    def exported(slope):
        network = torch.nn.LeakyReLU(slope).eval()
        return torch.export.export(network, (torch.ones(2, 3),))

    from_exported_program(exported(0.5))
    op = "aten.leaky_relu.default"
    table = without("torch", "importer", op, "negative_slope")
    monkeypatch.setattr(torch_unread, "load", table)
    from_exported_program(exported(0.01))
    message = r"leaky_relu \(aten.leaky_relu.default.*\): its attribute negative_slope=0.5 is not"
    with pytest.raises(ValueError, match=message):
        from_exported_program(exported(0.5))


def test_values_that_are_as_the_default_are_told_from_others():
    from backend.engine.backend.importers.attributes.unread import MISSING, _same

    pairs = [(1, 1), ([0, 0], 0), (b"zeros", b"zeros"), (None, None), (np.float32(0.5), 0.5)]
    assert all(_same(value, default) for value, default in pairs)
    others = [(1, 0), ([0, 1], 0), (b"a", b"b"), (0, None), (None, 0), (True, False), (1, MISSING)]
    assert not any(_same(value, default) for value, default in others)
