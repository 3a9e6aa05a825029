# SPDX-License-Identifier: Apache-2.0
"""Output of TVM's front ends: kernels that stand for ops, and suites of the conformance kit."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax, te, topi

import support
from backend.engine.backend.passes.kernels import op_of
from backend.engine.backend.passes.normalize import as_clip
from backend.engine.backend.table.patterns import TABLE
from backend.engine.workbench.conformance import models, onnx_nodes
from backend.engine.workbench.conformance.imported import Imported, Program
from support import IS_EMULATOR, declined, variable


def kernel_call(function, *arguments):
    """Make TVM lower an op to a kernel, like its importers; return the module and the call."""
    builder = relax.BlockBuilder()
    call = builder.normalize(builder.call_te(function, *arguments))
    return builder.get(), call


@pytest.mark.parametrize(
    "function, arguments, text",
    [
        (topi.maximum, (variable("x", 2, 3), variable("y")), "R.maximum(x, y)"),
        (topi.minimum, (variable("x", 2, 3), variable("y", 3)), "R.minimum(x, y)"),
        (topi.flip, (variable("x", 2, 3), 1), "R.flip(x, axis=1)"),
        (topi.tile, (variable("x", 2, 3), (2, 1)), "R.tile(x, repeats=[2, 1])"),
        (topi.nn.pad, (variable("x", 2, 3), (0, 1), (2, 0), 1.5), "pad_width=[0, 2, 1, 0]"),
        (topi.nn.pad, (variable("x", 2, 3), (0, 1), (2, 0), 1.5), "pad_value=1.5"),
        (topi.nn.pad, (variable("x", 2, 3), (0, 0), (0, 0), 1.5), "R.broadcast_to(x"),
        (topi.nn.mirror_pad, (variable("x", 2, 9), (0, 2), (0, 1), "REFLECT"), '"reflect"'),
        (topi.nn.reflect_pad, (variable("x", 4, 9), (3, 2), (0, 1)), '"reflect"'),
        (topi.nn.replicate_pad, (variable("x", 2, 3), (0, 2), (4, 1)), '"replicate"'),
        (topi.nn.circular_pad, (variable("x", 2, 9), (1, 2), (0, 1)), '"circular"'),
    ],
)
def test_a_kernel_that_stands_for_an_op_is_recognized(function, arguments, text):
    assert text in str(op_of(*kernel_call(function, *arguments)))


def one_more(x, y):
    return te.compute(x.shape, lambda *i: te.max(x(*i), y(*i)) + 1, name="T_maximum")


@pytest.mark.parametrize(
    "function, arguments",
    [
        (one_more, (variable("x", 2, 3), variable("y", 2, 3))),
        (topi.add, (variable("x", 2, 3), variable("y", 2, 3))),
        (topi.nn.mirror_pad, (variable("x", 4, 5), (1, 1), (1, 1), "SYMMETRIC")),
        (topi.nn.relu, (variable("x", 2, 3),)),
        (topi.sum, (variable("x", 2, 3), 1)),
        (
            topi.nn.pad,
            (variable("x", 4, dtype="int64"), (1,), (2,), tvm.tirx.const(2**53 + 1, "int64")),
        ),
    ],
)
def test_other_kernels_are_unchanged(function, arguments):
    assert op_of(*kernel_call(function, *arguments)) is None


@pytest.mark.parametrize(
    "low, high, is_clip",
    [
        (0.0, 6.0, True),
        ([0.0], 6.0, True),
        ([0.0, 1.0, 2.0], 6.0, False),
        (np.nan, 6.0, False),
        (6.0, 0.0, False),
    ],
)
def test_a_minimum_of_a_maximum_is_a_clip(low, high, is_clip):
    x = variable("x", 2, 3)
    call = relax.BlockBuilder().normalize
    inner = call(relax.op.maximum(x, relax.const(low, "float32")))
    var = relax.DataflowVar("inner", inner.ty)
    outer = call(relax.op.minimum(var, relax.const(high, "float32")))
    clip = as_clip(outer, {var: inner})
    assert (clip is not None) == is_clip
    if clip is not None:
        assert clip.op.name == "relax.clip"


# ---- The suites ---------------------------------------------------------------------------------


def outcomes(suite, *names):
    return {one.case: one for one in suite.run_batch(names, lambda case: None)}


@pytest.fixture(scope="module")
def nodes():
    """Have ONNX make its cases of the operators that are used here: all would take seconds."""
    node = pytest.importorskip("onnx.backend.test.case.node")

    def import_some(package):
        for name in (
            "add",
            "det",
            "matmul",
            "optionalhaselement",
            "pad",
            "relu",
            "reshape",
            "tile",
        ):
            importlib.import_module(f"{package.__name__}.{name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "import_recursive", import_some, raising=False)
        onnx_nodes.collect.cache_clear()
        yield onnx_nodes.collect()
    onnx_nodes.collect.cache_clear()


NODES = {
    "relu": "relax.nn.relu",
    "reshape_reordered_all_dims": "relax.reshape",
    "add_bcast": "relax.add",
    "matmul_3d": "relax.matmul",
    "tile": "relax.tile",
}
"""Cases, and the op that each becomes."""


@support.needs_reals
@pytest.mark.usefixtures("nodes")
def test_node_cases_of_onnx_run_on_the_npu():
    found = outcomes(onnx_nodes, *NODES)
    assert sorted(found) == sorted(NODES)
    for name, outcome in found.items():
        limited = "(a limit of this chip)" in outcome.reason
        is_declined = outcome.status == "declined" and not IS_EMULATOR
        if TABLE.entries_of(NODES[name]) and not (limited or is_declined):
            assert outcome.status == "passed", outcome
            assert outcome.expected in ("", outcome.found)
        else:
            assert outcome.status in ("passed", "not_run", "declined"), outcome
            assert outcome.found != "all"
    if TABLE.entries_of("relax.nn.relu") and not declined("relu"):
        relu = found["relu"]
        assert (relu.op, relu.dtype, relu.expected, relu.found) == ("Relu", "float32", "all", "all")


@support.needs_reals
@pytest.mark.usefixtures("nodes")
def test_a_mistake_of_the_importer_is_not_a_failure():
    found = outcomes(onnx_nodes, "det_2d", "optional_has_element_empty_optional_input", "add")
    assert found["det_2d"].status == "not_run"
    assert "TVM's importer" in found["det_2d"].reason
    assert "not tensors" in found["optional_has_element_empty_optional_input"].reason
    known = "declined" if declined("add") else "passed"
    assert found["add"].status == (known if TABLE.entries_of("relax.add") else "not_run")


class Off:
    """A virtual machine whose results are slightly wrong."""

    def __init__(self, machine):
        self._machine = machine

    def __getitem__(self, name):
        return lambda *inputs: tvm.runtime.tensor(self._machine[name](*inputs).numpy() + 0.01)


@pytest.mark.usefixtures("nodes")
def test_a_node_case_with_wrong_values_fails(monkeypatch):
    compile_for_npu = onnx_nodes.compile_for_npu

    def compile_badly(module) -> Program:
        program = compile_for_npu(module)
        return replace(program, machine=Off(program.machine))

    monkeypatch.setattr(onnx_nodes, "compile_for_npu", compile_badly)
    found = outcomes(onnx_nodes, "relu", "add")
    assert [one.status for one in found.values()] == ["failed", "failed"]
    assert "is wrong in 60 of 60 elements" in found["relu"].reason


def test_functions_of_models_have_unique_names(nodes):
    parts = [onnx_nodes.read(nodes[name]) for name in ("reflect_pad", "edge_pad")]
    assert all(isinstance(part, Imported) for part in parts)
    functions = [set(map(str, part.functions())) for part in parts]
    assert all(len(names) == 2 for names in functions)
    assert not functions[0] & functions[1]


@pytest.mark.parametrize("name", ["onnx-lstm", "torch-encoder"])
def test_a_model_is_right(name):
    pytest.importorskip(name.partition("-")[0])
    outcome = outcomes(models, name)[name]
    if outcome.status in ("not_run", "declined"):
        pytest.skip(f"{outcome.status}: {outcome.reason}")
    assert outcome.status == "passed", outcome
    assert "calls on the NPU, regions: " in outcome.reason
    assert outcome.ratio < 1


@support.needs_reals
def test_a_model_that_is_not_where_it_should_be_fails(monkeypatch):
    pytest.importorskip("onnx")
    monkeypatch.setitem(models.MODELS, "onnx-resnet", models.Expected(regions=0))
    outcome = outcomes(models, "onnx-resnet")["onnx-resnet"]
    if outcome.status == "declined" and not IS_EMULATOR:
        pytest.skip(f"declined: {outcome.reason}")
    judged = outcome.expected == "all"
    assert outcome.status == ("failed" if judged else "passed")
