# SPDX-License-Identifier: Apache-2.0
"""The names that a model's author gave its ops, from the importers to the report."""

import re
import warnings

import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.backend.ir.origins import Origin, is_named, origin_of, with_absorbed, with_span
from support import (
    build,
    needs,
    on_host,
    partition_for,
    report_of,
    skip_where_declined,
    variable,
)


def bound_calls(mod):
    found = []
    for _, function in mod.functions_items():
        blocks = function.body.blocks if isinstance(function, relax.Function) else ()
        values = (item.value for block in blocks for item in block.bindings)
        found += [value for value in values if isinstance(value, relax.Call)]
    return found


@pytest.fixture
def onnx():
    return pytest.importorskip("onnx", reason="onnx is not installed")


def read(onnx, text):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, backend.from_onnx(model)


def test_an_onnx_node_names_all_ops_that_it_becomes(onnx):
    model, _ = read(onnx, "g (float[4] x) => (float[4] z) { y = HardSwish(x) z = Acosh(y) }")
    model.graph.node[0].name = "/stem/Act"
    mod = backend.from_onnx(model)
    names = [origin_of(call).name for call in bound_calls(mod)]
    assert names == ["/stem/Act"] * (len(names) - 1) + ["z"], "the last is named by its output"
    ops = report_of(mod).ops
    assert {str(item.origin) for item in ops} == {"/stem/Act", "z"}
    assert "/stem/Act" in str(report_of(mod))


def test_an_op_whose_size_depends_on_its_data_keeps_its_name(onnx):
    model, _ = read(onnx, "g (float[3, 4] x) => (int64[2, n] y) { y = NonZero(x) }")
    model.graph.node[0].name = "/mask/NonZero"
    ops = report_of(backend.from_onnx(model)).ops
    assert [(item.op, str(item.origin)) for item in ops] == [("relax.nonzero", "/mask/NonZero")]


def test_the_choice_of_a_branch_has_an_entry_with_its_name(onnx):
    text = """g (float[4] x, bool c, bool d) => (float[4] y) {
        a = Acosh(x)
        b = If(c) <then_branch = t () => (float[4] p) {
            p = If(d) <then_branch = u () => (float[4] q) { q = Sinh(a) },
                       else_branch = v () => (float[4] r) { r = Cosh(a) }> },
            else_branch = w () => (float[4] s) { s = Asinh(a) }>
        y = Atanh(b)
    }"""
    model, _ = read(onnx, text)
    model.graph.node[1].name = "/choose"
    report = report_of(backend.from_onnx(model))
    ops = report.ops
    chosen = {item.title: item for item in ops if item.op == "relax.If"}
    assert sorted(chosen) == ["/choose", "p"]
    entry, inner = chosen["/choose"], chosen["p"]
    assert (entry.placement, entry.code, entry.bookkeeping) == ("host", "control_flow", True)
    assert ops[entry.reads[0]] == inner and ops[entry.reads[1]].op == "relax.asinh"
    assert entry.inputs == ("c",)
    assert [ops[at].op for at in inner.reads] == ["relax.sinh", "relax.cosh"]
    assert [ops[at].title for at in ops[-1].reads] == ["/choose"]


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "bert", "gpt", "detector"])
def test_names_of_onnx_survive_all_passes_and_change_nothing(onnx, name):
    from tvm.relax.frontend.onnx import from_onnx

    from backend.engine.workbench.conformance.onnx_networks import SMALL

    model, _ = SMALL[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mod = backend.from_onnx(model)
        tvm.ir.assert_structural_equal(mod, from_onnx(model))
    assert all(origin_of(call) for call in bound_calls(mod))
    assert [item.name for item in report_of(mod).ops if item.origin is None] == []


def test_a_torch_node_gives_its_name_module_and_line():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))

        def forward(self, x):
            return torch.acosh(self.stem(x))

    program = torch.export.export(Net().eval(), (torch.rand(1, 3, 8, 8),))
    ops = report_of(backend.from_exported_program(program)).ops
    assert all(item.origin for item in ops), ops
    assert ops[0].origin.module == "stem.0" and ops[0].op == "relax.nn.conv2d"
    last = ops[-1]
    assert last.op == "relax.acosh" and last.origin.name == "acosh"
    assert "test_origins.py" in last.origin.location and "in forward" in last.origin.location
    assert ops[0].title == f"stem.0 ({ops[0].origin.name})"


def test_the_line_of_a_torch_module_is_the_users():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())

        def forward(self, x):
            return self.stem(x)

    program = torch.export.export(Net().eval(), (torch.rand(1, 3, 8, 8),))
    for item in report_of(backend.from_exported_program(program)).ops:
        assert "test_origins.py" in item.origin.location and "in forward" in item.origin.location
    # No code of the user calls the layers of a Sequential.
    program = torch.export.export(Net().stem.eval(), (torch.rand(1, 3, 8, 8),))
    ops = report_of(backend.from_exported_program(program)).ops
    assert {item.origin.location for item in ops} == {""}


def test_a_torch_op_that_tvm_does_not_know_is_named_with_its_line():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.special.i0(x), torch.special.erfcx(x)

    program = torch.export.export(Net().eval(), (torch.rand(2),))
    with pytest.raises(ValueError) as error:
        backend.from_exported_program(program)
    line = r"File \".*test_origins.py\", line \d+, in forward"
    nodes = rf"i0 \(aten.i0.default, {line}\), special_erfcx \(aten.special_erfcx.default, {line}\)"
    assert re.search(f"does not know the operators of the nodes {nodes}", str(error.value))


def test_names_are_in_strict_errors_and_choose_exceptions():
    x = variable("x", 4)
    span = Origin("/head/Last", "head").span()
    mod = build([x], lambda emit: emit(with_span(on_host(x), span)))
    with pytest.raises(RuntimeError, match=rf"{on_host.__name__} .head ./head/Last..: "):
        partition_for(mod, strict=True)
    for name in ("/head/Last", "/head/*", "head"):
        partition_for(mod, strict=True, strict_except=[name])


def test_tvms_passes_keep_names():
    x = variable("x", 4)
    span = Origin("mine").span()
    mod = build([x], lambda emit: emit(with_span(on_host(x), span)))
    transform = relax.transform
    for one in (
        transform.Normalize(),
        transform.CanonicalizeBindings(),
        transform.FoldConstant(),
        transform.EliminateCommonSubexpr(),
        transform.ConvertToDataflow(1),
        transform.DecomposeOpsForInference(),
        transform.LambdaLift(),
    ):
        mod = one(mod)
        assert [origin_of(call) for call in bound_calls(mod)] == [Origin("mine")], one.info.name
    mod = tvm.ir.load_json(tvm.ir.save_json(mod))
    assert [origin_of(call) for call in bound_calls(mod)] == [Origin("mine")]


def test_a_span_of_another_origin_is_not_a_name():
    x = variable("x", 4)
    span = tvm.ir.Span(tvm.ir.SourceName("script.py"), 1, 1, 1, 1)
    assert origin_of(with_span(on_host(x), span)) is None
    assert origin_of(on_host(x)) is None


def test_names_are_matched_as_a_user_writes_them():
    origin = Origin("conv2d_3", "layer1.0")
    for pattern in ("relax.nn.conv2d", "nn.conv2d", "conv2d", "lv1", "conv2d_3", "layer1.*"):
        assert is_named([pattern], "relax.nn.conv2d", "lv1", origin), pattern
    for pattern in ("conv", "layer1", "lv", ""):
        assert not is_named([pattern], "relax.nn.conv2d", "lv1", origin), pattern


def test_an_op_that_stands_for_a_chain_has_all_its_names():
    x = variable("x", 2, 4)
    op = relax.op

    def body(emit):
        def named(call, name):
            return emit(with_span(call, Origin(name, "act" if name == "mul" else "").span()))

        shifted = named(op.add(x, relax.const(3.0)), "shift")
        inner = named(op.clip(shifted, 0, 6), "clip")
        divided = named(op.divide(inner, relax.const(6.0)), "divide")
        return named(op.multiply(x, divided), "mul")

    before = build([x], body)
    bindings = before["main"].body.blocks[0].bindings
    values = {item.var: item.value for item in bindings if isinstance(item.value, relax.Call)}
    last = [item for item in values.values() if origin_of(item).name == "mul"]
    whole = with_span(op.nn.relu(x), origin_of(last[0]).span())
    found = with_absorbed(whole, last[0], values, set())
    assert origin_of(found) == Origin("mul", "act", "", ("shift", "clip", "divide"))
    # Ops that remain are not part of the chain, and ops without a name need none.
    (clip,) = (var for var, item in values.items() if origin_of(item).name == "clip")
    found = with_absorbed(whole, last[0], values, {clip})
    assert origin_of(found).others == ("divide",)
    assert with_absorbed(op.nn.relu(x), last[0], values, set()).span is None
    assert is_named(["divide"], "relax.multiply", "lv", Origin("mul", "", "", ("divide",)))


def test_a_chain_that_a_pass_makes_one_op_keeps_its_names_in_the_report():
    x = variable("x", 2, 3, 4)
    op = relax.op

    def body(emit):
        first = emit(with_span(op.permute_dims(x, [0, 2, 1]), Origin("one").span()))
        second = emit(with_span(op.permute_dims(first, [1, 0, 2]), Origin("two").span()))
        return emit(with_span(on_host(second), Origin("host").span()))

    ops = report_of(build([x], body)).ops
    origins = [item.origin for item in ops if item.op == "relax.permute_dims"]
    assert origins in (
        [Origin("two", others=("one",))],
        [Origin("one"), Origin("two")],  # No pass joins these.
    )
    report = report_of(build([x], body))
    assert backend.Report.from_json(report.to_json()) == report


@support.needs_reals
@needs("relu", "add")
def test_sentences_have_the_names_of_the_author():
    x = variable("x", 4)
    op = relax.op

    def body(emit):
        one = emit(with_span(op.nn.relu(x), Origin("relu", "net.act").span()))
        two = emit(on_host(one))
        return [emit(with_span(op.add(two, one), Origin("/sum").span())), two]

    mod = build([x], body)
    skip_where_declined(mod)
    report = report_of(mod, min_region_ops=2)
    reasons = {item.op: item.reason for item in report.on_host}
    assert "the region of relax.nn.relu (net.act) would wait" in reasons["relax.add"]
    assert "relax.add (/sum)" in reasons["relax.nn.relu"]
