# SPDX-License-Identifier: Apache-2.0
"""Chips whose table has no real numbers: composites read and return integers."""

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.backend.table.capability import Input, Op, Quantized
from backend.engine.backend.table.chip import Chip, Limits
from backend.engine.backend.table.reasons import CHIP_LIMIT, Code
from backend.engine.backend.table.table import Table
from backend.engine.workbench.conformance.numpy_integers import requantize
from narrow_drivers import DEQUANTIZE, QUANTIZE
from support import build, compile_for, partition_for, variable

pytestmark = pytest.mark.usefixtures("bound_constants")

needs = support.needs
op = relax.op
X = variable("x", 1, 4, 4, 4, dtype="int8")
REAL = variable("x", 1, 4, 4, 4)
REAL_OTHER = variable("y", 1, 4, 4, 4)


def real(data, scale=0.1, zero_point=0):
    return op.dequantize(data, relax.const(np.float32(scale)), relax.const(np.int8(zero_point)))


def integers(data, scale=0.1, zero_point=0):
    step, zero = relax.const(np.float32(scale)), relax.const(np.int8(zero_point))
    return op.quantize(data, step, zero, -1, "int8")


def skip_without(*ops):
    support.skip_without_integers(*ops)
    if not support.IS_EMULATOR:
        pytest.skip("the driver may decline it")


def rows_of(mod):
    return backend.offload_report(partition_for(mod)).ops


def result_of(mod, *arguments):
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()


# ---- The table ----------------------------------------------------------------------------------

NAMES = ("float32", "int8", "int32")
RELU = Op("relu", "relax.nn.relu", inputs=(Input("x", NAMES),), quantized=Quantized())
EXP = Op("exp", "relax.exp", inputs=(Input("x", ("float32",)),))
NEGATIVE = Op("negative", "relax.negative", inputs=(Input("x", NAMES),))


def call_of(function, dtype):
    return relax.BlockBuilder().normalize(function(variable("x", 2, dtype=dtype)))


def test_a_chip_of_integers_has_real_numbers_only_inside_of_composites():
    table = Table([RELU, EXP, NEGATIVE], chip=Chip(dtypes=("int8", "int16")))
    assert table.get("relu").inputs[0].dtypes == ("float32", "int8")
    assert table.get("relu").quantized.dtypes == ("int8", "int16")
    assert table.refusal(call_of(op.nn.relu, "float32")) is None
    # What has no form with integers has the chip's types alone.
    assert table.get("negative").inputs[0].dtypes == ("int8",)
    reason = table.refusal(call_of(op.negative, "float32"))
    assert reason == "negative: 'x' is float32; supported: int8 (a limit of this chip)"
    assert table.left_out == {
        "exp": "exp: 'x' can have the element types float32, and the chip has int8, int16 "
        "(a limit of this chip)"
    }


@pytest.mark.parametrize("dtypes", [(), ("float32", "int8"), ("float16", "int8")])
def test_a_chip_with_a_type_of_real_numbers_has_those_that_it_names(dtypes):
    table = Table([RELU], chip=Chip(dtypes=dtypes))
    assert table.chip.has_reals
    assert table.refusal_of_ends("relu", [REAL.ty], [REAL.ty]) is None
    allowed = tuple(name for name in NAMES if not dtypes or name in dtypes)
    assert table.get("relu").inputs[0].dtypes == allowed


def test_an_op_that_the_limits_keep_from_integers_has_no_real_numbers_inside():
    limits = {"relu": Limits(quantized=())}
    table = Table([RELU], chip=Chip(dtypes=("int8",)), limits=limits)
    assert table.get("relu").inputs[0].dtypes == ("int8",)


def test_the_ends_of_a_composite_must_be_integers():
    table = Table([RELU], chip=Chip(dtypes=("int8", "int32")))
    whole = relax.TupleType([X.ty, REAL.ty])
    assert table.refusal_of_ends("relu", [X.ty, relax.ShapeType(ndim=1)], [X.ty]) is None
    for does, read, returned in (("reads", [X.ty, REAL.ty], [X.ty]), ("returns", [X.ty], [whole])):
        reason = table.refusal_of_ends("relu", read, returned)
        assert reason == f"relu: it {does} float32; the chip has integers only: int8, int32" + (
            CHIP_LIMIT
        )
        assert (reason.code, reason.of_chip) == (Code.DTYPE, True)


def test_a_product_has_no_real_result_and_no_real_data():
    inputs = (Input("x1", ("float32",)), Input("x2", ("float32",), like="x1"))
    matmul = Op("matmul", "relax.matmul", "matrix", inputs=inputs, quantized=Quantized(-1))
    convert = [
        Op("quantize", QUANTIZE, inputs=(Input("data", ("float32",)),)),
        Op("dequantize", DEQUANTIZE, inputs=(Input("data", ("int8",)),), output_dtypes=NAMES[:1]),
    ]
    table = Table([matmul, *convert], chip=Chip(dtypes=("int8",)))
    assert table.computes_quantized
    assert table.get("matmul").quantized.to_real is False
    assert not table.takes_integer_weights("relax.matmul")
    assert Table([matmul, *convert]).takes_integer_weights("relax.matmul")


# ---- Models -------------------------------------------------------------------------------------


def between(body):
    """Build a model that quantizes, calls an op between integers, and dequantizes."""

    def ops(emit):
        data = emit(integers(REAL))
        read = [emit(real(data)) for _ in range(2)]
        return real(emit(integers(emit(body(*read)), 0.2, 3)), 0.2, 3)

    return build([REAL], ops)


@needs("quantize", "dequantize")
@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("add", lambda x, y: op.add(x, y)),
        ("multiply", lambda x, y: op.multiply(x, y)),
        ("sigmoid", lambda x, y: op.sigmoid(x)),
        ("relu", lambda x, y: op.nn.relu(x)),
        ("softmax", lambda x, y: op.nn.softmax(x)),
        ("mean", lambda x, y: op.mean(x, [2, 3], True)),
        ("avg_pool2d", lambda x, y: op.nn.avg_pool2d(x, (2, 2), (2, 2))),
        ("max_pool2d", lambda x, y: op.nn.max_pool2d(x, (2, 2), (2, 2))),
        ("concat", lambda x, y: op.concat([x, y], 1)),
        ("reshape", lambda x, y: op.reshape(x, (4, 16))),
        ("resize2d", lambda x, y: op.image.resize2d(x, (8, 8), layout="NCHW")),
    ],
)
def test_an_op_between_integers_is_on_the_npu(name, body, integers_only):
    entry = integers_only.get(name)
    if entry is None:
        pytest.skip(f"the table has no {name}")
    skip_without(*([name] if entry.quantized else []))
    mod = between(body)
    rows = rows_of(mod)
    has = ", ".join(integers_only.chip.dtypes)
    on_host = [(row.op, row.reason) for row in rows if row.placement == "host"]
    support.skip_where_declined(mod)
    ends = ((QUANTIZE, "quantize: it reads"), (DEQUANTIZE, "dequantize: it returns"))
    only = f"float32; the chip has integers only: {has}{CHIP_LIMIT}"
    assert on_host == [(name, f"{text} {only}") for name, text in ends]
    data = np.random.default_rng(0).uniform(-3, 3, (1, 4, 4, 4)).astype("float32")
    # Elsewhere than at a step, TVM's own kernels agree.
    (expected,) = support.run_on_host(mod, "main", [data])
    assert np.abs(result_of(mod, data) - expected).max() <= 0.2001


@needs("quantize", "dequantize")
def test_what_has_no_form_with_integers_is_on_the_host_in_float(integers_only):
    mod = between(lambda x, y: op.exp(x))
    row = next(row for row in rows_of(mod) if row.op == "relax.exp")
    assert row.placement == "host"
    left_out = integers_only.left_out.get("exp", "relax.exp is not in the table of this backend")
    assert row.reason.startswith(left_out)


@needs("quantize", "dequantize", "add")
def test_a_real_operand_or_result_keeps_an_op_from_the_npu(integers_only):
    has = ", ".join(integers_only.chip.dtypes)
    for body, does in (
        (lambda emit: integers(op.add(real(X), REAL_OTHER)), "reads"),
        (lambda emit: op.add(real(X), real(X)), "reads"),
    ):
        rows = rows_of(build([X, REAL_OTHER], body))
        row = next(row for row in rows if row.op == "relax.add")
        expected = f"add: it {does} float32; the chip has integers only: {has}{CHIP_LIMIT}"
        assert (row.placement, row.reason) == ("host", expected)
        assert row.code == Code.DTYPE.value


@needs("quantize", "dequantize", "matmul")
def test_a_product_without_a_quantize_is_on_the_host(integers_only):
    x, w = variable("x", 4, 8, dtype="int8"), np.arange(32, dtype="int8").reshape(8, 4)
    mod = build([x], lambda emit: op.matmul(real(x), real(relax.const(w))))
    rows = rows_of(mod)
    assert {row.placement for row in rows} == {"host"}
    product = next(row for row in rows if row.op == "relax.matmul")
    assert product.reason.endswith(CHIP_LIMIT)
    # Its weight stays integers.
    assert sum(row.op == DEQUANTIZE for row in rows) == 2


@needs("add")
def test_a_driver_is_not_asked_about_real_numbers(integers_only, decline):
    asked = []
    decline(lambda function, finish: asked.append(function) or "")
    support.report_of(build([REAL], lambda emit: op.add(REAL, REAL)), on_decline="error")
    assert not asked


def test_the_passes_of_tvm_find_composites_of_integers_alone(integers_only):
    """`FuseOpsByPattern` takes the same patterns."""
    from tvm.relax.transform import FuseOpsByPattern

    from backend.engine.backend.regions import composites

    patterns = composites.get_patterns_with_prefix(f"{support.BACKEND}.")
    mod = build([REAL], lambda emit: op.add(REAL, REAL))
    fused = FuseOpsByPattern(patterns, bind_constants=True)(mod)
    assert len(fused.get_global_vars()) == 1
    if integers_only.get("add") is None:
        return
    whole = build([X], lambda emit: op.add(X, X))
    fused = FuseOpsByPattern(patterns, bind_constants=True)(whole)
    takes = integers_only.refusal(relax.BlockBuilder().normalize(op.add(X, X))) is None
    assert len(fused.get_global_vars()) == (2 if takes else 1)


# ---- Values -------------------------------------------------------------------------------------

SCALES = {"x": 0.013, "y": 0.4}
ZEROS = {"x": 5, "y": -9, "out": 3}
COMBINE = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def combined(name, dtypes, limited, chip):
    """Return a model of an op between integers, its arguments, and its exact result."""
    x, y = variable("x", 3, 4, 5, dtype=dtypes[0]), variable("y", 4, 1, dtype=dtypes[1])
    generator = np.random.default_rng(0)
    arguments = [
        generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, True)
        for dtype, shape in zip(dtypes[:2], ((3, 4, 5), (4, 1)), strict=True)
    ]
    scales = {key: np.float32(scale) for key, scale in SCALES.items()}
    exact = [data.astype("int64") - ZEROS[key] for key, data in zip("xy", arguments, strict=True)]
    reals = [data * scales[key] for key, data in zip("xy", exact, strict=True)]
    scales["out"] = np.float32(np.abs(COMBINE[name](*reals)).max() / np.iinfo(dtypes[2]).max)

    def converted(emit, function, data, key, dtype):
        scale, zero = relax.const(scales[key]), relax.const(np.int32(ZEROS[key]))
        return emit(function(data, scale, zero, -1, dtype))

    def body(emit):
        reals = [converted(emit, op.dequantize, data, str(data.name), "float32") for data in (x, y)]
        value = emit(getattr(op, name)(*reals))
        value = emit(op.nn.relu(value)) if limited else value
        return converted(emit, op.quantize, value, "out", dtypes[2])

    bits = 17 if "int16" in dtypes[:2] else 9
    if name == "multiply":
        step, wide = np.float64(scales["x"]) * np.float64(scales["y"]), 2 * bits > 31
    else:
        step, wide = np.ldexp(np.float64(max(scales["x"], scales["y"])), bits - 30), False
        exact = [
            requantize(data, np.float64(scales[key]), step, chip)
            for key, data in zip("xy", exact, strict=True)
        ]
    sums = COMBINE[name](*exact).astype("int64")
    result = requantize(sums, step, np.float64(scales["out"]), chip, wide) + ZEROS["out"]
    ends = np.iinfo(dtypes[2])
    least = max(ends.min, ZEROS["out"]) if limited else ends.min
    return build([x, y], body), arguments, np.clip(result, least, ends.max).astype(dtypes[2])


@needs("quantize", "dequantize")
@pytest.mark.parametrize(
    ("name", "dtypes", "limited"),
    [
        pytest.param(name, dtypes, limited, marks=() if is_quick else pytest.mark.thorough)
        for name in COMBINE
        for dtypes in (("int8",) * 3, ("uint8", "int8", "int16"), ("int16",) * 3)
        for limited in (False, True)
        for is_quick in [name in ("add", "multiply") and limited == ("int8" in dtypes)]
    ],
)
def test_two_tensors_are_combined_by_rescaling_alone(name, dtypes, limited, integers_only):
    """Bit for bit, by the chip's rule."""
    entry = integers_only.get(name)
    if entry is None or entry.quantized is None or not set(dtypes) <= set(entry.quantized.dtypes):
        pytest.skip(f"the chip has no {name} of {', '.join(dtypes)}")
    relu = integers_only.get("relu")
    if limited and (relu is None or relu.quantized is None):
        pytest.skip("the chip has no relu of integers")
    skip_without(name)
    if integers_only.chip.requantize.is_float32:
        pytest.skip("the chip has scales at its tensors")
    mod, arguments, expected = combined(name, dtypes, limited, integers_only.chip)
    rows = rows_of(mod)
    assert {row.placement for row in rows} == {"npu"}
    assert len({row.composite for row in rows}) == 1
    assert {row.runs_in for row in rows} == {" x ".join(dict.fromkeys(dtypes[:2]))}
    assert not any(row.wider for row in rows)
    assert len(np.unique(expected)) > 2
    found = result_of(mod, *arguments)
    np.testing.assert_array_equal(found, expected)
