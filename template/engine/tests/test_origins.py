# SPDX-License-Identifier: Apache-2.0
"""The names that the author of a model gave its ops, from the importers to the report."""

import warnings

import pytest
import tvm
from tvm import relax

import backend
from backend.engine.origins import Origin, is_named, origin_of, with_span
from support import build, on_host, partition_for, variable


def calls_of(mod):
    found = []
    for _, function in mod.functions_items():
        blocks = function.body.blocks if isinstance(function, relax.Function) else ()
        values = (item.value for block in blocks for item in block.bindings)
        found += [value for value in values if isinstance(value, relax.Call)]
    return found


def report_of(mod):
    return backend.offload_report(partition_for(mod))


@pytest.fixture
def onnx():
    return pytest.importorskip("onnx", reason="onnx is not installed")


def read(onnx, text):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, backend.from_onnx(model)


def test_an_onnx_node_gives_its_name_to_all_that_it_becomes(onnx):
    model, _ = read(onnx, "g (float[4] x) => (float[4] z) { y = HardSwish(x) z = Acosh(y) }")
    model.graph.node[0].name = "/stem/Act"
    mod = backend.from_onnx(model)
    names = [origin_of(call).name for call in calls_of(mod)]
    assert names == ["/stem/Act"] * (len(names) - 1) + ["z"], "the last is named by its output"
    ops = report_of(mod).ops
    assert {str(item.origin) for item in ops} == {"/stem/Act", "z"}
    assert "/stem/Act" in str(report_of(mod))


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "bert", "gpt", "detector"])
def test_names_of_onnx_survive_all_passes_and_change_nothing(onnx, name):
    from tvm.relax.frontend.onnx import from_onnx

    from backend.engine.conformance.onnx_networks import SMALL

    model, _ = SMALL[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mod = backend.from_onnx(model)
        tvm.ir.assert_structural_equal(mod, from_onnx(model))
    assert all(origin_of(call) for call in calls_of(mod))
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
        assert [origin_of(call) for call in calls_of(mod)] == [Origin("mine")], one.info.name
    mod = tvm.ir.load_json(tvm.ir.save_json(mod))
    assert [origin_of(call) for call in calls_of(mod)] == [Origin("mine")]


def test_a_span_of_others_is_no_name():
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
