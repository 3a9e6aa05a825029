# SPDX-License-Identifier: Apache-2.0
"""Models of bfloat16: computed in float32, and rounded where they return bfloat16."""

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.ir.states import declare
from backend.engine.backend.passes import simplify
from support import (
    TABLE,
    build,
    compile_for,
    needs,
    needs_library,
    needs_reals,
    report_of,
    run_on_host,
    skip_where_declined,
    skip_without_integers,
    variable,
)

op = relax.op
ROUGH = "bfloat16"
RNG = np.random.default_rng(0)


def rough(*shape):
    return RNG.standard_normal(shape).astype(ROUGH)


def run(mod, *given):
    results = relax.VirtualMachine(compile_for(mod), tvm.cpu())["main"](
        *map(tvm.runtime.tensor, given)
    )
    return results.numpy() if hasattr(results, "numpy") else [item.numpy() for item in results]


@needs_reals
@needs("matmul", "split", "add", "multiply")
def test_a_model_computes_in_float32_and_rounds_its_results():
    x, weight, bias = variable("x", 4, 8, dtype=ROUGH), rough(8, 6), rough(3)

    def body(emit):
        product = emit(op.matmul(x, relax.const(weight), ROUGH))
        parts = emit(op.split(product, 2, 1))
        first, second = (emit(relax.TupleGetItem(parts, at)) for at in range(2))
        total = emit(op.add(emit(op.multiply(first, second)), relax.const(bias)))
        return [total, emit(op.astype(first, "float32"))]

    mod = build([x], body)
    skip_where_declined(mod)
    ops = report_of(mod).ops
    assert [item.runs_in for item in ops if item.op == "relax.matmul"] == ["float32"]
    # The casts of the input and of a result are all that the host does.
    assert [item.op for item in ops if item.placement == "host"] == ["relax.astype"] * 2
    told = {item.wider for item in ops if item.asked == ROUGH}
    assert told == {"float32 holds all values of bfloat16"}
    given = rough(4, 8)
    product = given.astype("float32") @ weight.astype("float32")
    total, first = run(mod, given)
    assert (str(total.dtype), str(first.dtype)) == (ROUGH, "float32")
    np.testing.assert_allclose(first, product[:, :3], rtol=1e-5, atol=1e-5)
    exact = product[:, :3] * product[:, 3:] + bias.astype("float32")
    np.testing.assert_allclose(total.astype("float32"), exact, rtol=2**-8, atol=1e-5)


def test_a_field_of_a_tuple_may_be_checked():
    x = variable("x", 4, dtype=ROUGH)
    size, builder = tvm.tirx.Var("n", "int64"), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit(op.unique(x, sorted=True, return_index=True))
            ty = relax.TensorType((size,), ROUGH)
            numbers = builder.match_cast(relax.TupleGetItem(found, 0), ty)
            places = relax.TensorType((size,), "int64")
            builder.match_cast(relax.TupleGetItem(found, 1), places)
            numbers = builder.emit_output(numbers)
        builder.emit_func_output(numbers)
    (result,) = run_on_host(
        simplify(builder.get(), TABLE), "main", [np.asarray([2, 1, 2, 1], ROUGH)]
    )
    assert (str(result.dtype), result.astype("float32").tolist()) == (ROUGH, [1, 2])


def test_a_kernel_reads_bfloat16():
    x = variable("x", 3, dtype=ROUGH)

    def body(emit):
        doubled = emit(op.add(x, x))
        return emit(relax.call_pure_packed("test.rough", doubled, ty_args=x.ty))

    @tvm.register_global_func("test.rough", override=True)
    def kernel(given):
        assert str(given.dtype) == ROUGH
        return tvm.runtime.tensor(given.numpy() * np.asarray(3, ROUGH))

    found = run(build([x], body), np.asarray([1, 2, 0.5], ROUGH))
    assert found.astype("float32").tolist() == [6, 12, 3]


@needs_library("onnx")
def test_states_of_an_onnx_model_become_float32():
    from onnx import TensorProto, parser

    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (bfloat16[3] x, bfloat16[3] past) => (bfloat16[3] y, bfloat16[3] present) {
        present = Add(past, x)
        y = Mul(present, two)
    }""")
    two = TensorProto(name="two", data_type=TensorProto.BFLOAT16, raw_data=b"\x00\x40")
    model.graph.initializer.append(two)
    mod = backend.from_onnx(model, states={"past": "present"})
    (state,) = backend.states(mod)
    assert str(state.initial.dtype) == ROUGH
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    (state,) = backend.states(machine)
    assert str(state.initial.dtype) == "float32"
    session = backend.Session(machine)
    # In bfloat16, 256 + 1 is 256.
    for given, expected in ((256, 512), (1, 512), (1, 516)):
        y = session["main"](tvm.runtime.tensor(np.full(3, given, ROUGH))).numpy()
        assert (str(y.dtype), y.astype("float32").tolist()) == (ROUGH, [expected] * 3)


def test_a_state_that_is_the_only_result_becomes_float32():
    x, state = (variable(name, 3, dtype=ROUGH) for name in ("x", "state"))
    mod = build([x, state], lambda emit: emit(op.add(state, x)))
    zero = tvm.runtime.tensor(np.zeros((), ROUGH))
    mod["main"] = declare(mod["main"], [("total", "state", zero, ())])
    main = simplify(mod, TABLE)["main"]
    assert [str(item.ty.dtype) for item in main.params] == [ROUGH, "float32"]
    assert str(main.ret_ty.dtype) == "float32"


@needs_reals
@needs("matmul", "dequantize")
@needs_library("torch", "torchao")
@pytest.mark.usefixtures("bound_constants")
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_integers_in_a_program_of_bfloat16_stay_integers(bits):
    import torch
    from torchao import quantization

    skip_without_integers("matmul")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 32)).bfloat16()
    config = quantization.IntxWeightOnlyConfig(
        getattr(torch, f"int{bits}"), quantization.PerGroup(32)
    )
    quantization.quantize_(network.eval(), config)
    x = torch.randn(3, 64).bfloat16()
    program = torch.export.export(network, (x,))
    mod = backend.from_exported_program(program, bfloat16="bfloat16", unwrap_unit_return_tuple=True)
    ops = report_of(mod).ops
    products = [item for item in ops if item.op == "relax.matmul"]
    assert [item.runs_in for item in products] == ["float32 x int8"] * 2
    assert {item.asked for item in products} == {ROUGH}
    default = backend.from_exported_program(program)
    assert {item.asked for item in report_of(default).ops if item.macs} == {ROUGH}
    found = run(mod, x.float().numpy().astype(ROUGH)).astype("float32")
    with torch.no_grad():
        expected = network(x).float().numpy()
    np.testing.assert_allclose(found, expected, atol=2**-7 * np.abs(expected).max())
