# SPDX-License-Identifier: Apache-2.0
"""The compiled module's interface to TVM: its functions, what calls refuse, its devices."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from backend.engine.workbench.conformance.region import load_module, region_of
from compiled_region import LASTING, Region, can_last
from support import (
    BACKEND,
    COUNTERS,
    accepted_cases,
    needs_cancellation,
    needs_counters,
    needs_devices,
    partition_for,
    plain,
)

CODEGEN = tvm_ffi.get_global_func(f"relax.ext.{BACKEND}")
DEVICE_VARIABLE = f"{BACKEND.upper()}_DEVICE"


CASES = accepted_cases()


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


def test_counters_count(region):
    before = region.module["counters"]()
    region.assert_computes()
    after = region.module["counters"]()
    if "submissions" in COUNTERS:
        assert after["submissions"] == before["submissions"] + 1
    assert after.get("failures") == before.get("failures")
    assert all(value >= 0 for value in after.values())
    # The driver determines their names and units.
    (driver,) = (item for item in drivers() if item["name"] == driver_of(region))
    units = {str(item["name"]): str(item["unit"]) for item in driver["counters"]}
    assert dict(region.module["counter_units"]()) == {**units, "most_in_flight": ""}
    assert set(after) == {*units, "most_in_flight"}


def drivers():
    """Return the descriptions of the run halves of the installed drivers."""
    return tvm_ffi.get_global_func(f"{BACKEND}.runtime.drivers")()


def driver_of(region):
    return json.loads(region.module["manifest"]())["driver"]


def test_drivers_describe_themselves():
    assert drivers()
    for driver in drivers():
        assert driver["role"] in ("vendor", "emulator")
        assert driver["name"]
        assert driver["devices"] >= 1
        assert driver["cancels"] in ("nothing", "waiting", "running")
        assert driver["api_version"] >= 1
        for counter in driver["counters"]:
            assert counter["name"] == counter["name"].lower()
            assert counter["about"]


def aliased(region):
    """Make arguments of a call whose output begins at the address of its first input."""
    tensors = region.tensors()
    first, out = region.inputs[0], region.expected[0]
    memory = np.zeros(max(first.nbytes, out.nbytes), "uint8")
    for index, array in ((0, first), (len(region.inputs), out)):
        view = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        tensors[index] = tvm_ffi.from_dlpack(view)
    return tensors, memory


@pytest.mark.parametrize("function", ["", ".submit"])
def test_an_output_that_shares_memory_with_an_argument_is_refused(region, function):
    tensors, whole = aliased(region)
    before = whole.copy()
    with pytest.raises(ValueError, match="shares memory with '.*an output needs memory of its own"):
        region.module[region.symbol + function](*tensors)
    np.testing.assert_array_equal(whole, before)
    region.assert_computes()


@needs_counters("submissions")
def test_counters_of_calls_in_many_threads_add_up(region):
    module = load_module(region.bytes)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(region.assert_computes, module) for _ in range(50)]
        seen = [module["counters"]()["submissions"] for _ in range(20)]
        for call in calls:
            call.result()
    assert seen == sorted(seen)
    assert module["counters"]()["submissions"] == 50


# ---- Devices ------------------------------------------------------------------------------------


@pytest.fixture
def runtime(monkeypatch):
    """Return the functions that choose a device, on a thread that has chosen none."""
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    functions = {
        name: tvm_ffi.get_global_func(f"{BACKEND}.runtime.{name}")
        for name in ("device", "set_device")
    }

    class Runtime:
        @staticmethod
        def run(body):
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(body, **functions).result()

    return Runtime


@needs_devices(2)
def test_each_thread_chooses_its_device(runtime):
    def choose(device, set_device):
        assert device() == 0
        set_device(1)
        assert runtime.run(lambda device, set_device: device()) == 0
        return device()

    assert runtime.run(choose) == 1


@needs_devices(2)
def test_the_environment_names_the_default_device(runtime, monkeypatch):
    monkeypatch.setenv(DEVICE_VARIABLE, "1")
    assert runtime.run(lambda device, set_device: device()) == 1
    monkeypatch.setenv(DEVICE_VARIABLE, "first")
    with pytest.raises(ValueError, match=f"{DEVICE_VARIABLE} is 'first'.*index of a device"):
        runtime.run(lambda device, set_device: device())


@pytest.mark.parametrize("index", [-1, 1000, 2**40])
def test_a_device_that_is_not_there_is_an_error(runtime, index):
    def choose(device, set_device):
        with pytest.raises((ValueError, RuntimeError), match=f"{BACKEND}.*device {index}[:;] "):
            set_device(index)
        return device()

    assert runtime.run(choose) == 0


@needs_devices(2)
def test_two_modules_run_on_two_devices(region, runtime, monkeypatch):
    data = region.bytes

    def load(device, set_device):
        set_device(1)
        return load_module(data)

    modules = [load_module(data), runtime.run(load)]
    for _ in range(3):
        for module in modules:
            region.assert_computes(module)
    monkeypatch.setenv(DEVICE_VARIABLE, "1000")
    missing = runtime.run(lambda device, set_device: load_module(data))
    with pytest.raises((ValueError, RuntimeError), match=f"{BACKEND}.*device 1000"):
        region.assert_computes(missing)


# ---- Time ---------------------------------------------------------------------------------------


@needs_cancellation
@can_last
def test_a_call_that_takes_too_long_is_cancelled():
    slow = Region(**{**LASTING, "pace": 1_000_000}, timeout_ms=30)
    for count in (1, 2):
        with pytest.raises(RuntimeError, match="cancelled.*30 ms.*timeout_ms"):
            slow.assert_computes()
        counters = slow.module["counters"]()
        assert (counters["submissions"], counters["failures"]) == (count, count)
    tensors = slow.tensors()
    slow.module[slow.symbol + ".submit"](*tensors)
    with pytest.raises(RuntimeError, match="cancelled.*30 ms.*timeout_ms"):
        tvm_ffi.get_global_func(f"{BACKEND}.runtime.wait_all")()


def test_a_call_in_time_is_not_disturbed():
    Region(timeout_ms=60_000).assert_computes()


# ---- The output of codegen ----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_graph_is_in_the_layout_of_tvm_with_every_attribute(case):
    model = case.model()
    if reason := model.decline():
        pytest.skip(f"declined: {reason}")
    if case.op == "astype" and model.arguments[0].dtype == model.outputs[0].dtype:
        pytest.skip("it casts nothing, and is not an op of the region")
    graph = json.loads(region_of(model).inspect_source(""))
    nodes, row_ptr = graph["nodes"], graph["node_row_ptr"]
    assert len(row_ptr) == len(nodes) + 1
    assert all(nodes[index]["op"] in ("input", "const") for index in graph["arg_nodes"])
    assert len(graph["heads"]) == len(model.outputs)
    for (index, output, _), expected in zip(graph["heads"], model.outputs, strict=True):
        assert nodes[index]["attrs"]["dtype"][0][output] == expected.dtype
    kernels = [node for node in nodes if node["op"] == "kernel"]
    calls = [b.value for b in model.bindings if isinstance(b.value, tvm.ir.Call)]
    for kernel, call in zip(kernels, calls, strict=True):
        assert kernel["name"] == call.op.name
        info = getattr(type(call.attrs), "__tvm_ffi_type_info__", None)
        for attribute in info.fields if info else ():
            found = kernel["attrs"]["attributes"][attribute.name]
            expected = getattr(call.attrs, attribute.name)
            # The graph describes an index map by its effect on each dimension.
            if not isinstance(expected, tirx.IndexMap):
                assert plain(found) == plain(expected)


def test_all_ops_together_stay_silent_and_run_without_the_compiler(every_op):
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
        [sys.executable, "-W", "error::UserWarning", "-c", script, every_op.library],
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


def test_a_size_without_a_bound_is_refused():
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("region", [x]):
        builder.emit_func_output(builder.emit(relax.op.tanh(x)))
    function = builder.get()["region"]
    reason = tvm_ffi.get_global_func(f"{BACKEND}.codegen.decline_reason")
    if declined := reason(function, "", {}, {"n": 4}, False, ()):
        pytest.skip(f"declined: {declined}")
    assert "the size n" in reason(function, "", {}, {}, False, ())
    assert "symbol_bounds" in reason(function, "", {}, {}, False, ())


def test_a_region_that_was_read_answers_like_its_function(region):
    read, graph, reason = (
        tvm_ffi.get_global_func(f"{BACKEND}.codegen.{name}")
        for name in ("read", "graph", "decline_reason")
    )
    function = region.model.function()
    handle = read(function, {})
    assert str(graph(handle)["symbol"]) == str(function.attrs["global_symbol"])
    for bounds in ({}, {"n": max(region.model.sizes)}):
        answer = reason(function, "", {}, bounds, True, ())
        assert reason(handle, "", {}, bounds, True, ()) == answer
    with pytest.raises(TypeError, match="Region"):
        graph(function)


def test_an_unknown_option_is_refused(region):
    partitioned = partition_for(tvm.IRModule({region.model.name: region.model.function()}))
    with pytest.raises(Exception, match="no_such_option"):
        relax.transform.RunCodegen({BACKEND: {"no_such_option": 1}})(partitioned)
