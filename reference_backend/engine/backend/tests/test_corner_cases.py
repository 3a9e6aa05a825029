# SPDX-License-Identifier: Apache-2.0
"""Cases that once failed, or that are rare in models."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import support
from backend import offload_report
from support import (
    build,
    compile_for,
    needs_emulator,
    needs_library,
    needs_symbols,
    partition_for,
    variable,
)

needs = support.needs  # Not imported, because some selections of ops skip every test that uses it.


def run(executable, *arrays):
    """Run main."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(array) for array in arrays)).numpy()


def test_options_that_are_not_settings_are_refused():
    x = variable("x", 2)
    mod = build([x], lambda emit: emit(relax.op.acosh(x)))
    for value in (1.5, (1, 2), 0):
        with pytest.raises(ValueError, match="option"):
            partition_for(mod, options={"symbol_bound": value})
    for options in ({"nonsense": 1}, [1]):
        with pytest.raises(ValueError, match="option"):
            partition_for(mod, options=options)
    for bound in (2, 2.0, np.int64(2)):
        partition_for(mod, options={"symbol_bound": bound})


def test_weights_that_do_not_fit_are_refused():
    x, w = variable("x", 2, 4), variable("w", 4)
    mod = build([x, w], lambda emit: emit(relax.op.add(emit(relax.op.acosh(x)), w)))
    right = np.ones(4, "float32")
    for wrong in (None, 3.0, [1.0], right[:1], right[None], right.astype("float64")):
        with pytest.raises(ValueError, match="'w'"):
            partition_for(mod, {"w": wrong})
    with pytest.raises(ValueError, match="params"):
        partition_for(mod, [right])
    for weights in (right, tvm.runtime.tensor(right), relax.const(right)):
        assert len(partition_for(mod, {"w": weights})["main"].params) == 1


def test_a_model_without_anything_for_the_npu_compiles():
    symbol = tirx.Var("n", "int64")
    x = variable("x", symbol)
    mod = build([x], lambda emit: emit(relax.op.acosh(x)))
    assert not offload_report(partition_for(mod)).regions
    np.testing.assert_allclose(run(compile_for(mod), np.ones(3, "float32")), 0.0)


@support.needs_reals
@needs_symbols
@needs("relu")
@pytest.mark.parametrize("name", ["n", "4d", "7", "4*n", "-1", ""])
def test_a_symbol_may_have_any_name(name):
    symbol = tirx.Var(name, "int64")
    x = variable("x", symbol, 4)
    mod = build([x], lambda emit: emit(relax.op.nn.relu(x)))
    array = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    assert len(offload_report(partition_for(mod)).regions) == 1
    np.testing.assert_array_equal(run(compile_for(mod), array), np.maximum(array, 0))


@needs_symbols
@needs("relu")
def test_an_empty_batch_has_an_empty_result():
    symbol = tirx.Var("n", "int64")
    x = variable("x", symbol, 4)
    mod = build([x], lambda emit: emit(relax.op.nn.relu(x)))
    executable = compile_for(mod)
    assert run(executable, np.zeros((0, 4), "float32")).shape == (0, 4)
    assert run(executable, -np.ones((2, 4), "float32")).tolist() == [[0.0] * 4] * 2


def test_a_library_with_an_empty_tensor_can_be_loaded(tmp_path):
    """TVM cannot load one with an empty constant."""
    x = variable("x", 4, 6)
    mod = build([x], lambda emit: emit(relax.op.strided_slice(x, [1], [9], [9], [1])))
    executable = compile_for(mod)
    executable.export_library(str(tmp_path / "empty.so"))
    loaded = tvm.runtime.load_module(str(tmp_path / "empty.so"))
    assert run(loaded, np.ones((4, 6), "float32")).shape == (4, 0)


@needs("expand_dims")
def test_a_region_that_only_changes_the_shape_may_have_any_rank():
    x = variable("x", 1, 6, 4, 4)
    mod = build([x], lambda emit: emit(relax.op.expand_dims(x, [0, 2, -1])))
    array = np.arange(96, dtype="float32").reshape(1, 6, 4, 4)
    np.testing.assert_array_equal(run(compile_for(mod), array), array[None, :, None, ..., None])


@needs("relu")
def test_a_recursive_function_stays_on_the_host():
    builder = relax.BlockBuilder()
    x = variable("x", 4)
    itself = relax.GlobalVar("main")
    with builder.function("main", [x]):
        value = builder.emit(relax.op.nn.relu(x))
        builder.emit_func_output(value)
    function = builder.get()["main"]
    relax.expr._update_type(itself, function.ty)
    again = relax.Var("again", function.ret_ty)
    body = relax.SeqExpr(
        [*function.body.blocks, relax.BindingBlock([relax.VarBinding(again, itself(value))])], again
    )
    function = relax.Function([x], body, function.ret_ty, True, function.attrs)
    report = offload_report(partition_for(tvm.IRModule({itself: function})))
    assert not report.regions
    assert all("recursive" in op.reason for op in report.ops)


@needs("relu")
def test_an_op_inside_of_a_local_function_is_in_the_report():
    x, y = variable("x", 4), variable("y", 4)
    inner_result = relax.Var("inner_result", y.ty)
    inner_body = relax.SeqExpr(
        [relax.BindingBlock([relax.VarBinding(inner_result, relax.op.nn.relu(y))])], inner_result
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        inner = builder.emit(relax.Function([y], inner_body, y.ty, True))
        builder.emit_func_output(builder.emit(tvm.ir.Call(inner, [x], ret_ty=y.ty)))
    report = offload_report(partition_for(builder.get()))
    (found,) = [op for op in report.ops if op.op == "relax.nn.relu"]
    assert found.placement == "host"
    assert "local function" in found.reason
    assert found.code == "local_function"


@needs_symbols
@needs("matmul", variable=True)
def test_two_symbols_may_have_one_name():
    rows, columns = tirx.Var("n", "int64"), tirx.Var("n", "int64")
    x, y = variable("a", rows, 4), variable("b", 4, columns)
    mod = build([x, y], lambda emit: emit(relax.op.matmul(x, y)))
    a, b = np.ones((3, 4), "float32"), np.full((4, 2), 2, "float32")
    np.testing.assert_array_equal(run(compile_for(mod), a, b), a @ b)


@support.needs_reals
@needs_symbols
@needs("matmul", variable=True)
def test_a_size_of_zero_that_the_result_lacks_is_refused():
    depth = tirx.Var("n", "int64")
    x, y = variable("a", 2, depth), variable("b", depth, 2)
    mod = build([x, y], lambda emit: emit(relax.op.matmul(x, y)))
    with pytest.raises(ValueError, match="size of 0"):
        run(compile_for(mod), np.ones((2, 0), "float32"), np.ones((0, 2), "float32"))


@needs_emulator
@needs("matmul")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_runs_what_was_compiled_for_threads():
    import os
    import signal

    x, weight = variable("x", 256, 256), relax.const(np.eye(256, dtype="float32"))
    mod = build([x], lambda emit: emit(relax.op.matmul(x, weight)))
    machine = relax.VirtualMachine(compile_for(mod, options={"threads": 3}), tvm.cpu())
    array = tvm.runtime.tensor(np.eye(256, dtype="float32"))
    machine["main"](array)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # The alarm ends a child that hangs, and the test fails.
        right = np.array_equal(machine["main"](array).numpy(), array.numpy())
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


@support.needs_reals
@needs("gather_nd")
def test_indices_of_another_batch_stay_on_the_host():
    data, indices = variable("data", 1, 3), variable("indices", 5, 1, dtype="int64")
    mod = build([data, indices], lambda emit: emit(relax.op.gather_nd(data, indices, 1)))
    [found] = offload_report(partition_for(mod)).on_host
    assert "the indices must have the batch dimensions of the data" in found.reason


@needs("clip", dtype="int64")
def test_bounds_that_float64_would_round_stay_on_the_host():
    bound = 2**53 + 1
    x = relax.Var("x", relax.TensorType((3,), "int64"))
    mod = build([x], lambda emit: emit(relax.op.clip(x, -bound, bound)))
    partitioned = partition_for(mod)
    (placement,) = offload_report(partitioned).on_host
    assert "2^53" in placement.reason
    data = np.array([bound, -bound, 2**62])
    assert run(compile_for(partitioned), data).tolist() == [bound, -bound, bound]


# ---- NaN and infinity ---------------------------------------------------------------------------

EDGES = np.array([0.0, -1.5, np.inf, -np.inf, np.nan, np.finfo("float32").max, 1e-45], "float32")


@pytest.mark.parametrize("on_host", [[], ["abs", "*equal", "greater"]])
@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_tests_for_nan_and_infinity_are_right_on_both_sides(name, on_host):
    x = variable("x", len(EDGES))
    mod = build([x], lambda emit: emit(getattr(relax.op, name)(x)))
    found = run(compile_for(mod, options={"keep_on_host": on_host}), EDGES)
    np.testing.assert_array_equal(found, getattr(np, name)(EDGES))


@pytest.mark.parametrize("name", ["equal", "not_equal"])
def test_a_comparison_with_itself_on_the_host_tells_nan(name):
    """TVM's simplifier takes x == x for true, also where x may be NaN."""
    x = variable("x", len(EDGES))
    mod = build([x], lambda emit: emit(getattr(relax.op, name)(x, x)))
    found = run(compile_for(mod, options={"keep_on_host": [name]}), EDGES)
    np.testing.assert_array_equal(found, np.isnan(EDGES) == (name == "not_equal"))


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_full_of_infinity_is_right_on_the_host_for_each_size(number, dtype):
    """As the mask of a model with a cache of keys: TVM cannot lower it for a computed size."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 2], "float32"))

    def body(emit):
        full = emit(relax.op.full([n + 1, 2], relax.const(number, dtype), dtype))
        like = emit(relax.op.full_like(full, relax.const(number, "float32"), "float32"))
        return emit(relax.op.concat([x, emit(relax.op.astype(full, "float32")), like], axis=0))

    executable = compile_for(build([x], body))
    for size in (1, 3, 8):
        data = np.ones((size, 2), "float32")
        added = np.full((2 * (size + 1), 2), number, "float32")
        np.testing.assert_array_equal(run(executable, data), np.concatenate([data, added]))


# ---- Norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("axes", [[0, 1, 2], [1], [0, 2], [-2, -1]])
def test_a_norm_on_the_host_is_over_its_axes(axes, dtype):
    """TVM's own kernel mistakes axes that are not the last ones, or all."""
    data = np.random.default_rng(0).uniform(-2, 2, (3, 4, 5)).astype(dtype)
    factors = np.linspace(0.5, 2, 60)[: np.prod([data.shape[axis] for axis in axes])]
    weight = factors.reshape([data.shape[axis] for axis in axes]).astype(dtype)
    x, w = variable("x", 3, 4, 5, dtype=dtype), variable("w", *weight.shape, dtype=dtype)
    mod = build([x, w], lambda emit: emit(relax.op.nn.rms_norm(x, w, axes, 1e-5)))
    found = run(compile_for(mod, options={"keep_on_host": ["*"]}), data, weight)
    wide, over = data.astype("float64"), tuple(axis % 3 for axis in axes)
    sizes = [size if axis in over else 1 for axis, size in enumerate(data.shape)]
    right = wide / np.sqrt(np.square(wide).mean(over, keepdims=True) + 1e-5)
    right *= weight.astype("float64").reshape(sizes)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, right, rtol=1e-5 if dtype == "float32" else 4e-3)


@support.needs_reals
@needs_library("onnx")
@needs("abs", "less_equal", "logical_not", "where", "astype", "multiply")
@needs("multiply", dtype="int64")
@pytest.mark.parametrize("on_host", [False, True])
def test_a_cast_to_integers_does_not_part_a_region(on_host):
    from onnx import parser

    from backend import from_onnx

    text = """<ir_version: 10, opset_import: ["": 21]> g (float[6] x) => (int64[6] y) {
        a = Mul(x, x)
        b = Cast<to = 7>(a)
        y = Mul(b, b)
    }"""
    mod = from_onnx(parser.parse_model(text))
    report = offload_report(partition_for(mod))
    assert not report.on_host
    assert len(report.regions) == 1
    x = np.array([0, -1.5, np.inf, -np.inf, np.nan, 3], "float32")
    options = {"keep_on_host": ["*"]} if on_host else {}
    # What is not finite becomes 0.
    assert run(compile_for(mod, options=options), x).tolist() == [0, 4, 0, 0, 0, 81]
