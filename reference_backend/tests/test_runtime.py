# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""The compiled module as TVM sees it: its functions, its bytes, and what it refuses at a call."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from op_cases import OPS
from support import BACKEND, TABLE, Case, compile_all, partition_for, plain
from tvm_example_npu import offload_report

# Those of capabilities.py: an entry may have been taken out.
OP_NAMES = [op for op in OPS if TABLE.get(op) is not None]
FIRST_OP = OP_NAMES[0]
LOAD = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{BACKEND}")
CODEGEN = tvm_ffi.get_global_func(f"relax.ext.{BACKEND}")


def all_models():
    """One model for each op."""
    return [Case(op, OPS[op]["cases"][0]).model() for op in OP_NAMES]


def region_of(model):
    """Compile a model to the module of its only region."""
    partitioned = partition_for(tvm.IRModule({model.name: model.function()}))
    report = offload_report(partitioned)
    assert len(report.regions) == 1, report
    (module,) = relax.transform.RunCodegen()(partitioned).attrs["external_mods"]
    return module


class Region:
    """The region of the first op's first case, called as TVM calls it: outputs come last."""

    def __init__(self):
        self.model = Case(FIRST_OP, OPS[FIRST_OP]["cases"][0]).model()
        self.module = region_of(self.model)
        self.symbol = self.module["get_symbol"]()
        self.inputs = [argument.values[1] for argument in self.model.arguments]
        self.expected = [output.values[1] for output in self.model.outputs]

    def tensors(self):
        """Make arguments for a call, with outputs to be written."""
        arrays = [*self.inputs, *(np.full_like(array, 77) for array in self.expected)]
        return [tvm.runtime.tensor(array) for array in arrays]

    def assert_computes(self, module=None):
        """Call, and compare."""
        tensors = self.tensors()
        (module or self.module)[self.symbol](*tensors)
        for output, expected in zip(tensors[len(self.inputs) :], self.expected, strict=True):
            np.testing.assert_allclose(output.numpy(), expected, rtol=1e-3, atol=1e-3)

    def refusal(self, tensors):
        """Call with arguments that are wrong; return what the error says."""
        with pytest.raises(Exception) as caught:
            self.module[self.symbol](*tensors)
        self.assert_computes()
        return str(caught.value)


@pytest.fixture(scope="module")
def region():
    """Share one region; a refused call must not spoil it."""
    return Region()


def test_a_module_knows_its_symbol_and_needs_no_constants(region):
    assert region.module.kind == BACKEND
    assert region.symbol
    assert list(region.module["get_const_vars"]()) == []
    assert region.module["__init_" + region.symbol]([]) == 0
    region.assert_computes()


def test_a_wrong_number_of_arguments_is_refused(region):
    message = region.refusal(region.tensors()[:-1])
    assert region.symbol in message
    assert f"called with {len(region.tensors()) - 1}" in message


def test_a_wrong_dtype_is_refused(region):
    tensors = region.tensors()
    tensors[0] = tvm.runtime.tensor(region.inputs[0].astype("float64"))
    message = region.refusal(tensors)
    assert "must be " + str(region.inputs[0].dtype) in message
    assert "float64" in message


def test_a_wrong_shape_is_refused(region):
    tensors = region.tensors()
    wrong = np.zeros([size + 1 for size in region.inputs[0].shape] or [2], region.inputs[0].dtype)
    tensors[0] = tvm.runtime.tensor(wrong)
    message = region.refusal(tensors)
    assert "must have the shape" in message
    assert "(" + ", ".join(map(str, wrong.shape)) + ")" in message


def test_a_wrong_rank_is_refused(region):
    tensors = region.tensors()
    tensors[0] = tvm.runtime.tensor(region.inputs[0][None])
    assert "must have the shape" in region.refusal(tensors)


def test_an_argument_that_is_no_tensor_is_refused(region):
    tensors = region.tensors()
    assert "must be a tensor" in region.refusal([3, *tensors[1:]])


def test_a_module_is_the_same_after_its_bytes(region):
    data = region.module["save_to_bytes"]()
    copy = LOAD(data)
    region.assert_computes(copy)
    assert copy["save_to_bytes"]() == data
    assert copy.inspect_source("") == region.module.inspect_source("")


def test_truncated_and_foreign_bytes_are_refused_with_a_sentence(region):
    data = bytes(region.module["save_to_bytes"]())
    for size in {0, 1, 7, 8, 9, 20, len(data) // 2, len(data) - 1}:
        with pytest.raises(Exception, match=BACKEND):
            LOAD(data[:size])
    with pytest.raises(Exception, match="format version"):
        LOAD(b"\xff" * 64)
    with pytest.raises(Exception, match="truncated or corrupt"):
        LOAD(data + b"\0")


def test_a_changed_byte_is_an_error_or_makes_no_difference(region):
    data = bytes(region.module["save_to_bytes"]())
    positions = np.random.default_rng(0).integers(8, len(data), 200)
    for position in positions:
        broken = bytearray(data)
        broken[position] ^= 0x20
        tensors = region.tensors()
        try:
            LOAD(bytes(broken))[region.symbol](*tensors)
        except Exception as error:
            assert str(error)
    region.assert_computes()


def test_two_copies_and_many_threads_share_a_process(region):
    copies = [region.module, LOAD(region.module["save_to_bytes"]())]
    with ThreadPoolExecutor(8) as pool:
        for result in [pool.submit(region.assert_computes, copies[i % 2]) for i in range(200)]:
            result.result()


def test_counters_count(region):
    before = region.module["counters"]()
    region.assert_computes()
    after = region.module["counters"]()
    assert after["submissions"] == before["submissions"] + 1
    assert after["commands"] >= before["commands"]


@pytest.mark.parametrize("op", OP_NAMES)
def test_the_graph_is_in_the_layout_of_tvm_with_every_attribute(op):
    model = Case(op, OPS[op]["cases"][0]).model()
    graph = json.loads(region_of(model).inspect_source(""))
    nodes, row_ptr = graph["nodes"], graph["node_row_ptr"]
    assert len(row_ptr) == len(nodes) + 1
    assert all(nodes[index]["op"] in ("input", "const") for index in graph["arg_nodes"])
    assert len(graph["heads"]) == len(model.outputs)
    for (index, output, _), expected in zip(graph["heads"], model.outputs, strict=True):
        assert nodes[index]["attrs"]["dtype"][0][output] == expected.dtype
    (kernel,) = (node for node in nodes if node["op"] == "kernel")
    (binding,) = (b.value for b in model.bindings if isinstance(b.value, tvm.ir.Call))
    assert kernel["name"] == binding.op.name
    info = getattr(type(binding.attrs), "__tvm_ffi_type_info__", None)
    for attribute in info.fields if info else ():
        expected = plain(getattr(binding.attrs, attribute.name))
        assert plain(kernel["attrs"]["attributes"][attribute.name]) == expected


def test_all_ops_together_stay_silent_and_run_without_the_compiler(tmp_path):
    models = all_models()
    compiled = compile_all(models)
    (executable,) = set(compiled.executables.values())
    executable.export_library(str(tmp_path / "model.so"))
    script = (
        "import sys, tvm\n"
        "from tvm.runtime.vm import VirtualMachine\n"
        "module = tvm.runtime.load_module(sys.argv[1])\n"
        "machine = VirtualMachine(module, tvm.cpu())\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert '_codegen.so' not in maps and 'libtvm_compiler' not in maps\n"
    )
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", script, str(tmp_path / "model.so")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_op_without_a_lowering_is_an_error_that_names_it():
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("region", [x]):
        builder.emit_func_output(builder.emit(relax.op.acosh(x)))
    function = builder.get()["region"].with_attr("Codegen", BACKEND)
    with pytest.raises(Exception, match=r"relax\.acosh.*no lowering.*it has one for"):
        CODEGEN([function], {}, {})


def test_an_unknown_option_is_refused(region):
    partitioned = partition_for(tvm.IRModule({region.model.name: region.model.function()}))
    with pytest.raises(Exception, match="no_such_option"):
        relax.transform.RunCodegen({BACKEND: {"no_such_option": 1}})(partitioned)
