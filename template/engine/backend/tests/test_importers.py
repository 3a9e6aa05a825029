# SPDX-License-Identifier: Apache-2.0
"""The importers' form of quantized models: dequantize, op, quantize, with integer constants."""

import re
from importlib.util import find_spec

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.verification.originals import original_of
from support import needs_library, run_on_host

# None of this depends on the chip. test_quantized.py runs an imported network.
pytestmark = pytest.mark.thorough


def integers(seed, shape, dtype="int8"):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def run(module, arguments):
    return run_on_host(module, "main", [np.asarray(item) for item in arguments])


def calls(module, name=""):
    bindings = (one for block in module["main"].body.blocks for one in block.bindings)
    found = (one.value for one in bindings if isinstance(one.value, relax.Call))
    return [call for call in found if name in getattr(call.op, "name", "")]


def names_of(module):
    return [call.op.name.removeprefix("relax.") for call in calls(module)]


def constants(module):
    """Return the constants that are dequantized."""
    arrays = []
    for call in calls(module, "relax.dequantize"):
        if isinstance(call.args[0], tvm.ir.GenericConst):
            arrays.append(call.args[0].value.numpy())
    return arrays


# ---- ONNX ---------------------------------------------------------------------------------------


def onnx_model(text, opset=21, **weights):
    from onnx import TensorProto, numpy_helper, parser

    domains = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>'
    model = parser.parse_model(f"{domains} {text}")
    for name, value in weights.items():
        is_tensor = isinstance(value, TensorProto)
        tensor = value if is_tensor else numpy_helper.from_array(np.asarray(value), name)
        model.graph.initializer.append(tensor)
    return model


def narrow(name, kind, values):
    """Make a packed constant of less than 8 bits."""
    from onnx import helper

    values = np.asarray(values)
    return helper.make_tensor(name, kind, values.shape, values.reshape(-1).tolist())


def reference(model, arguments):
    """Run ONNX Runtime or, if it cannot, ONNX's reference evaluator, which only has ONNX's ops."""
    if not find_spec("onnxruntime") and any(node.domain for node in model.graph.node):
        pytest.skip("pip install onnxruntime")
    return original_of(model).run(arguments)


def check(model, *arguments, buckets=0):
    """Compare a model with the reference, integer results in buckets; return the module."""
    module = backend.from_onnx(model)
    expected = reference(model, arguments)
    for mine, right in zip(run(module, arguments), expected, strict=True):
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
        else:
            away = np.abs(mine.astype("int64") - right.astype("int64"))
            assert away.max() <= buckets, f"{away.max()} buckets away"
    return module


PER_CHANNEL = np.array([0.5, 0.02, 0.125], "float32")


@needs_library("onnx")
@pytest.mark.parametrize(
    "dtype, scale, zero_point, attributes",
    [
        ("int8", np.float32(0.03), np.int8(-5), ""),
        ("uint8", np.float32(0.03), np.uint8(131), ""),
        ("int16", np.float32(0.001), np.int16(77), ""),
        ("uint16", np.float32(0.001), np.uint16(31000), ""),
        ("uint8", np.float32(0.03), None, ""),
        ("uint8", np.array([0.03], "float32"), np.array([131], "uint8"), ""),
        ("int8", PER_CHANNEL, np.array([3, -4, 0], "int8"), "<axis = 1>"),
        ("int8", PER_CHANNEL, np.array([3, -4, 0], "int8"), "<axis = -2>"),
        ("uint8", PER_CHANNEL, None, "<axis = 1>"),
    ],
)
def test_quantize_and_dequantize_are_exact(dtype, scale, zero_point, attributes):
    # Half of the values are halfway between two integers, or outside of the range.
    x = np.concatenate([floats(0, 2, 3, 20) * 3, np.arange(-60, 60).reshape(2, 3, 20) / 4], 2)
    given = {"scale": scale} if zero_point is None else {"scale": scale, "zero": zero_point}
    inputs = ", ".join(given)
    text = f"""g (float[2, 3, 40] x) => ({dtype}[2, 3, 40] q, float[2, 3, 40] y) {{
        q = QuantizeLinear{attributes}(x, {inputs})
        y = DequantizeLinear{attributes}(q, {inputs})
    }}"""
    module = check(onnx_model(text, **given), x.astype("float32"))
    assert names_of(module)[:2] == ["quantize", "dequantize"]
    # A scale of one element is a scalar.
    rank = 0 if np.size(scale) == 1 else 1
    assert [call.args[1].ty.ndim for call in calls(module, "quantize")] == [rank, rank]


@needs_library("onnx")
def test_weights_and_int32_biases_stay_integers():
    text = """g (int8[1, 4, 6, 6] x) => (int8[1, 3, 6, 6] y) {
        xf = DequantizeLinear(x, xs, xz)
        wf = DequantizeLinear<axis = 0>(w, ws)
        bf = DequantizeLinear<axis = 0>(b, bs)
        c = Conv<pads = [1, 1, 1, 1]>(xf, wf, bf)
        y = QuantizeLinear(c, ys, yz)
    }"""
    xs, ws = np.float32(0.02), np.array([0.01, 0.03, 0.002], "float32")
    weights = {
        **{"xs": xs, "xz": np.int8(3), "ws": ws, "w": integers(1, (3, 4, 3, 3))},
        **{"b": np.array([900, -1200, 15], "int32"), "bs": xs * ws},
        **{"ys": np.float32(0.3), "yz": np.int8(-9)},
    }
    module = check(onnx_model(text, **weights), integers(0, (1, 4, 6, 6)), buckets=1)
    found = {str(array.dtype): array for array in constants(module)}
    np.testing.assert_array_equal(found["int8"], weights["w"])
    np.testing.assert_array_equal(found["int32"], weights["b"])


@needs_library("onnx")
def test_a_model_is_read_from_a_file_and_not_changed(tmp_path):
    import onnx

    from backend.engine.backend.importers.onnx.operators import normalize
    from backend.engine.backend.importers.onnx.types import outline

    body = "y = com.microsoft.QLinearAdd(a, s, z, a, s, z, s, z)"
    text = f"g (int8[2, 3] a) => (int8[2, 3] y) {{ {body} }}"
    model = onnx_model(text, s=np.float32(0.5), z=np.int8(1))
    before = model.SerializeToString(deterministic=True)
    onnx.save(model, tmp_path / "model.onnx")
    by_path = backend.from_onnx(tmp_path / "model.onnx")
    tvm.ir.assert_structural_equal(by_path, backend.from_onnx(model))
    assert model.SerializeToString(deterministic=True) == before
    # If there is nothing to rewrite, nothing is copied.
    plain = onnx_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert normalize(plain, outline(plain)) is plain


@needs_library("onnx")
def test_weights_can_be_parameters():
    text = """g (int8[2, 3] a) => (int8[2, 4] y) {
        y = QLinearMatMul(a, s, z, w, ws, z, s, z)
    }"""
    weights = {"w": integers(1, (3, 4)), "ws": np.full(4, 0.25, "float32")}
    model = onnx_model(text, s=np.float32(0.5), z=np.int8(1), **weights)
    module = backend.from_onnx(model, keep_params_in_input=True)
    # No parameters of replaced ops are left: s, z, w, ws.
    assert len(module["main"].params) == 5
    module, params = relax.frontend.detach_params(module)
    expected = reference(model, [integers(0, (2, 3))])
    names = [param.name for param in module["main"].params[1:]]
    bound = dict(zip(names, params["main"], strict=True))
    mine = run(relax.transform.BindParams("main", bound)(module), [integers(0, (2, 3))])
    assert np.abs(mine[0].astype(int) - expected[0]).max() <= 1


@needs_library("onnx")
def test_the_branches_of_an_if_are_rewritten_too():
    text = """g (bool c, int8[2, 3] a) => (int8[2, 3] y) {
        y = If(c) <
            then_branch = t () => (int8[2, 3] u) {
                u = com.microsoft.QLinearAdd(a, s, z, a, s, z, s, z)
            },
            else_branch = e () => (int8[2, 3] v) {
                v = com.microsoft.QLinearMul(a, s, z, a, s, z, s, z)
            }
        >
    }"""
    model = onnx_model(text, s=np.float32(0.05), z=np.int8(1))
    for condition in (True, False):
        check(model, np.array(condition), integers(0, (2, 3)), buckets=1)


# ---- Quantized operators ------------------------------------------------------------------------

_SCALES = {
    **{"xs": np.float32(0.04), "xz": np.int8(7), "us": np.float32(0.07), "uz": np.int8(-20)},
    **{"ys": np.float32(0.09), "yz": np.int8(-3), "w": integers(5, (5, 4, 3, 3))},
    **{"ws": np.array([0.02, 0.01, 0.03, 0.015, 0.05], "float32"), "wz": np.zeros(5, "int8")},
    **{"one": np.float32(0.02), "one_z": np.int8(2), "b": integers(6, (5,)).astype("int32") * 9},
    **{"m": integers(7, (6, 5)), "mt": integers(8, (5, 6)), "ps": np.float32(1 / 256)},
    **{"pz": np.int8(-128), "d": integers(9, (3, 1, 3, 3)), "ds": np.full(3, 0.01, "float32")},
    **{"dz": np.zeros(3, "int8"), "small": np.float32(0.01)},
}

_X = "x, xs, xz"
_U = "u, us, uz"
OPERATORS = {
    "conv": (
        "QLinearConv<pads = [1, 1, 1, 1], strides = [2, 1]>(x, xs, xz, w, ws, wz, ys, yz, b)",
        "nn.conv2d",
        (2, 4, 6, 6),
    ),
    "conv of one scale": (
        "QLinearConv(x, xs, xz, w, one, one_z, ys, yz)",
        "nn.conv2d",
        (1, 4, 6, 6),
    ),
    "depthwise conv": (
        "QLinearConv<group = 3, dilations = [2, 2]>(x, xs, xz, d, ds, dz, ys, yz)",
        "nn.conv2d",
        (1, 3, 7, 7),
    ),
    "conv1d": (
        'QLinearConv<auto_pad = "SAME_UPPER">(x, xs, xz, line, ws, wz, ys, yz)',
        "nn.conv1d",
        (1, 4, 9),
    ),
    "matmul": ("QLinearMatMul(x, xs, xz, m, ws, wz, ys, yz)", "matmul", (2, 3, 6)),
    "matmul of two": ("QLinearMatMul(x, xs, xz, u, us, uz, ys, yz)", "matmul", (2, 5, 5)),
    "gemm": (
        f"com.microsoft.QGemm<transB = 1, alpha = 1.0>({_X}, mt, ws, wz, b, ys, yz)",
        "matmul",
        (3, 6),
    ),
    "gemm, alpha": (
        f"com.microsoft.QGemm<alpha = 0.5>({_X}, m, one, one_z, b, ys, yz)",
        "matmul",
        (3, 6),
    ),
    "add": (f"com.microsoft.QLinearAdd({_X}, {_U}, ys, yz)", "add", (2, 3, 4)),
    "mul": (f"com.microsoft.QLinearMul({_X}, {_U}, ys, yz)", "multiply", (2, 3, 4)),
    "sigmoid": (f"com.microsoft.QLinearSigmoid({_X}, ps, pz)", "sigmoid", (2, 300)),
    "leaky relu": (
        f"com.microsoft.QLinearLeakyRelu<alpha = 0.1>({_X}, us, uz)",
        "nn.leakyrelu",
        (2, 300),
    ),
    "average pool": (
        "com.microsoft.QLinearAveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], "
        f"strides = [2, 2], count_include_pad = 0>({_X}, small, yz)",
        "nn.avg_pool2d",
        (1, 3, 7, 7),
    ),
    "global average pool": (
        f"com.microsoft.QLinearGlobalAveragePool<channels_last = 0>({_X}, small, yz)",
        "mean",
        (2, 3, 5, 5),
    ),
    "concat": (f"com.microsoft.QLinearConcat<axis = 1>(ys, yz, {_X}, {_U})", "concat", (2, 3, 4)),
    "softmax": (
        f"com.microsoft.QLinearSoftmax<axis = -1, opset = 21>({_X}, ps, pz)",
        "nn.softmax",
        (3, 10),
    ),
    "where": (f"com.microsoft.QLinearWhere(c, {_X}, {_U}, ys, yz)", "where", (2, 3, 4)),
}


@needs_library("onnx")
@pytest.mark.parametrize("name", OPERATORS)
def test_a_quantized_operator_is_dequantize_op_quantize(name):
    operator, op, shape = OPERATORS[name]
    sizes = ", ".join(map(str, shape))
    body = f"y = {operator}"
    text = f"g (int8[{sizes}] x, int8[{sizes}] u) => (int8 y) {{ {body} }}"
    weights = {**_SCALES, "c": integers(3, shape) > 0, "line": integers(4, (5, 4, 3))}
    used = set(re.findall(r"\w+", operator))
    model = onnx_model(text, **{key: value for key, value in weights.items() if key in used})
    if "u" not in used:
        del model.graph.input[1:]
    arguments = [integers(seed, shape) for seed in range(len(model.graph.input))]
    module = check(model, *arguments, buckets=1)
    found = names_of(module)
    assert found[0] == "dequantize"
    assert found[-1] == "quantize"
    assert op in found
    integers_left = {
        name: weights[name] for name in ("w", "d", "m", "mt", "b", "line") if name in used
    }
    for array in integers_left.values():
        assert any(np.array_equal(array, mine) for mine in constants(module))


@needs_library("onnx")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("move", ["Identity(p)", "MaxPool<kernel_shape = [2, 2]>(p)", "Pad(p, by)"])
def test_a_result_without_zero_point_has_the_type_of_the_input(dtype, move):
    # ONNX Runtime requires zero points even if they are 0.
    signature = f"g ({dtype}[1, 2, 4, 5] a) => ({dtype} y)"
    short, long = (
        f"p = com.microsoft.QLinearMul({inputs}) b = {move} y = com.microsoft.QLinearMul({again})"
        for inputs, again in (
            ("a, s, , a, s, , t", "b, t, , b, t, , t"),
            ("a, s, z, a, s, z, t, z", "b, t, z, b, t, z, t, z"),
        )
    )
    others = {"s": np.float32(0.04), "t": np.float32(0.5)}
    others |= {"by": np.array([0, 0, 1, 1] * 2)} if "by" in move else {}
    short = onnx_model(f"{signature} {{ {short} }}", **others)
    long = onnx_model(f"{signature} {{ {long} }}", z=np.zeros((), dtype), **others)
    a = integers(0, (1, 2, 4, 5), dtype)
    (mine,), (right,) = run(backend.from_onnx(short), [a]), reference(long, [a])
    assert mine.dtype == dtype
    assert np.abs(mine.astype(int) - right).max() <= 1


@needs_library("onnx")
def test_a_gemm_may_end_in_floats():
    text = """g (int8[3, 6] x) => (float[3, 5] y) {
        y = com.microsoft.QGemm(x, xs, xz, m, ws, wz, b)
    }"""
    used = {name: _SCALES[name] for name in ("xs", "xz", "m", "ws", "wz", "b")}
    module = check(onnx_model(text, **used), integers(0, (3, 6)))
    assert "quantize" not in names_of(module)


# ---- Scales computed at run time ----------------------------------------------------------------


@needs_library("onnx")
def test_scaled_sums_become_an_op_on_dequantized_values():
    text = """g (float[1, 4, 8] x) => (float[1, 3, 6] y, float[1, 4, 5] z) {
        q, s, zero = DynamicQuantizeLinear(x)
        sums = ConvInteger(q, w, zero, wz)
        scales = Mul(s, ws)
        cast = Cast<saturate = 1, to = 1>(sums)
        y = Mul(cast, scales)
        sums2 = MatMulInteger(q, m, zero, wz)
        scales2 = Mul(ws, s)
        cast2 = Cast<to = 1>(sums2)
        z = Mul(scales2, cast2)
    }"""
    # ONNX Runtime's sums saturate on some processors if weights have all 8 bits.
    weights = {"w": integers(1, (3, 4, 3)) // 2, "m": integers(2, (8, 5)) // 2}
    model = onnx_model(text, ws=np.float32(0.02), wz=np.int8(3), **weights)
    module = check(model, floats(0, 1, 4, 8))
    assert not {"astype", "multiply"} & set(names_of(module)[-6:])
    for array in weights.values():
        assert any(np.array_equal(array, mine) for mine in constants(module))


@needs_library("onnx")
def test_sums_that_something_else_reads_stay_integers():
    text = """g (float[4, 8] x) => (float[4, 5] y, int32[4, 5] sums) {
        q, s, zero = DynamicQuantizeLinear(x)
        sums = MatMulInteger(q, m, zero)
        scales = Mul(s, ws)
        cast = Cast<to = 1>(sums)
        y = Mul(cast, scales)
    }"""
    model = onnx_model(text, ws=np.float32(0.02), m=integers(2, (8, 5)) // 2)
    check(model, floats(0, 4, 8))


@needs_library("onnx")
@pytest.mark.parametrize("zeros", ["", ", xz, wz"])
def test_sums_of_integers_are_exact(zeros):
    # Too large for float32 to represent exactly.
    text = f"""g (uint8[1, 600, 4] x) => (int32[1, 3, 2] y, int32[1, 600, 5] z) {{
        y = ConvInteger(x, w{zeros})
        z = MatMulInteger(x, m{zeros.replace("wz", "mz")})
    }}"""
    weights = {"w": np.full((3, 600, 3), -127, "int8"), "m": integers(2, (4, 5))}
    if zeros:
        weights |= {"xz": np.uint8(0), "wz": np.array([1, 0, 2], "int8"), "mz": np.int8(4)}
    model = onnx_model(text, **weights)
    x = np.full((1, 600, 4), 255, "uint8")
    x[0, 0] = 254
    wide = weights["w"].astype("int64") - (weights["wz"].reshape(3, 1, 1) if zeros else 0)
    sums = np.stack([(wide * x[0, :, i : i + 3]).sum((1, 2)) for i in (0, 1)], -1)[None]
    assert np.abs(sums).max() > 2**24
    mine = run(backend.from_onnx(model), [x])
    np.testing.assert_array_equal(mine[0], sums)
    product = x.astype("int64") @ (weights["m"].astype("int64") - (4 if zeros else 0))
    np.testing.assert_array_equal(mine[1], product)


@needs_library("onnx")
def test_data_of_zeros_have_a_scale_of_one():
    text = """g (float[4] x) => (uint8[4] q, float s, uint8 z) {
        q, s, z = DynamicQuantizeLinear(x)
    }"""
    check(onnx_model(text), np.zeros(4, "float32"))
    check(onnx_model(text), np.array([-1.5, 0.2, 3, 0], "float32"))


@needs_library("onnx")
@pytest.mark.parametrize("bias", ["", ", b"])
def test_products_of_onnx_runtime_with_scales_of_run_time(bias):
    text = f"""g (float[3, 6] x) => (float[3, 5] y, float[3, 5] z) {{
        y = com.microsoft.DynamicQuantizeMatMul(x, m, ws, wz{bias})
        q, s, zero = DynamicQuantizeLinear(x)
        z = com.microsoft.MatMulIntegerToFloat(q, m, s, ws, zero, wz{bias})
    }}"""
    weights = {"m": integers(1, (6, 5)) // 2, "ws": np.float32(0.02), "wz": np.int8(0)}
    if bias:
        weights["b"] = floats(2, 5)
    check(onnx_model(text, **weights), floats(0, 3, 6))


# ---- Less than 8 bits ---------------------------------------------------------------------------


@needs_library("onnx")
@pytest.mark.parametrize(
    "kind, low, high, held",
    [("INT4", -8, 7, "int8"), ("UINT4", 0, 15, "uint8"), ("INT2", -2, 1, "int8")],
)
def test_packed_constants_are_held_in_8_bits(kind, low, high, held):
    from onnx import TensorProto

    data_type = getattr(TensorProto, kind)
    values = np.random.default_rng(0).integers(low, high + 1, (5, 3))
    values[0, :2] = low, high
    text = """g (float[2, 5] x) => (float[2, 3] y) {
        f = DequantizeLinear<axis = 1>(w, scale, zero)
        y = MatMul(x, f)
    }"""
    weights = {"w": narrow("w", data_type, values), "scale": PER_CHANNEL}
    weights["zero"] = narrow("zero", data_type, [low, high, 0])
    x = floats(1, 2, 5)
    module = backend.from_onnx(onnx_model(text, 25, **weights))
    (found,) = constants(module)
    assert found.dtype == held
    np.testing.assert_array_equal(found, values)
    expected = x @ ((values - [low, high, 0]) * PER_CHANNEL).astype("float32")
    np.testing.assert_allclose(run(module, [x])[0], expected, rtol=1e-5, atol=1e-6)


@needs_library("onnx")
@pytest.mark.parametrize("by", ["zero point", "output_dtype"])
def test_quantize_saturates_at_the_ends_of_4_bits(by):
    from onnx import TensorProto

    attribute, zero = ("", ", z") if by == "zero point" else ("<output_dtype = 22>", "")
    text = f"""g (float[6] x) => (int4[6] q, float[6] y) {{
        q = QuantizeLinear{attribute}(x, s{zero})
        y = DequantizeLinear(q, s)
    }}"""
    weights = {"s": np.float32(0.5)}
    if zero:
        weights["z"] = narrow("z", TensorProto.INT4, 0)
    x = np.array([-100, -4, -0.7, 0.2, 3.5, 100], "float32")
    quantized, back = run(backend.from_onnx(onnx_model(text, **weights)), [x])
    assert quantized.dtype == "int8"
    np.testing.assert_array_equal(quantized, [-8, -8, -1, 0, 7, 7])
    np.testing.assert_array_equal(back, quantized * np.float32(0.5))


@needs_library("onnx")
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", ["INT4", "INT8"])
def test_a_scale_for_each_block_of_weights(axis, kind):
    from onnx import TensorProto

    shape = (8, 12)
    values = np.random.default_rng(0).integers(-8, 8, shape)
    counts = [*shape]
    counts[axis] //= 4
    scale = (np.random.default_rng(1).random(counts) + 0.1).astype("float32")
    zero = np.random.default_rng(2).integers(-8, 8, counts)
    text = f"""g (float[2, 8] x) => (float[2, 12] y) {{
        f = DequantizeLinear<axis = {axis}, block_size = 4>(w, s, z)
        y = MatMul(x, f)
    }}"""
    data_type = getattr(TensorProto, kind)
    tensors = {name: narrow(name, data_type, array) for name, array in (("w", values), ("z", zero))}
    model = onnx_model(text, s=scale, **tensors)
    module = backend.from_onnx(model)
    (found,) = constants(module)
    assert found.dtype == "int8"
    assert found.shape == (24, 4)
    x = floats(3, 2, 8)
    wide = [np.repeat(array, 4, axis) for array in (scale, zero)]
    expected = x @ ((values - wide[1]) * wide[0]).astype("float32")
    np.testing.assert_allclose(run(module, [x])[0], expected, rtol=1e-5, atol=1e-5)


def packed(values, bits):
    """Pack numbers into bytes, lowest bits first, along the padded last axis."""
    per_byte = 8 // bits
    fill = [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per_byte)]
    parts = np.pad(values, fill).reshape(*values.shape[:-1], -1, per_byte)
    return (parts << np.arange(0, 8, bits)).sum(-1).astype("uint8")


@needs_library("onnx")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("inputs", ["", ", z", ", z, , bias"])
@pytest.mark.parametrize("depth", [32, 96])
def test_packed_weights_of_onnx_runtime(bits, inputs, depth):
    rows, size = 5, 32
    blocks = depth // size
    values = np.random.default_rng(0).integers(0, 1 << bits, (rows, blocks, size))
    zero = np.full((rows, blocks), 1 << (bits - 1))
    weights = {"b": packed(values, bits), "s": np.abs(floats(1, rows * blocks)) + 0.1}
    weights["s"] /= 1 << bits
    if inputs:
        zero = np.random.default_rng(2).integers(0, 1 << bits, zero.shape)
        weights["z"] = packed(zero, bits).reshape(-1)
    if "bias" in inputs:
        weights["bias"] = floats(3, rows)
    attributes = f"K = {depth}, N = {rows}, bits = {bits}, block_size = {size}"
    body = f"y = com.microsoft.MatMulNBits<{attributes}>(x, b, s{inputs})"
    model = onnx_model(f"g (float[2, {depth}] x) => (float[2, {rows}] y) {{ {body} }}", **weights)
    x = floats(4, 2, depth)
    module = backend.from_onnx(model)
    wide = (values - zero[..., None]) * weights["s"].reshape(rows, blocks, 1)
    expected = x @ wide.reshape(rows, depth).T.astype("float32") + weights.get("bias", 0)
    np.testing.assert_allclose(run(module, [x])[0], expected, rtol=1e-4, atol=1e-4)
    if find_spec("onnxruntime"):
        np.testing.assert_allclose(reference(model, [x])[0], expected, rtol=1e-2, atol=1e-2)
    (found,) = constants(module)
    assert found.dtype == "int8"
    np.testing.assert_array_equal(found, values.reshape(-1, size) - (1 << (bits - 1)))


# ---- What is refused ----------------------------------------------------------------------------

REFUSED = {
    "an operator": (
        "y = com.microsoft.QAttention(x, s, z)",
        "ONNX node 'y' (com.microsoft.QAttention): this operator is not supported; "
        "supported are ConvInteger, DequantizeLinear, ",
    ),
    "channels last": (
        "y = com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(image, s, z, s, z)",
        "channels_last=1 is not supported; supported is channels_last=0",
    ),
    "a matrix of scales": (
        "y = QLinearMatMul(x, s, z, x, matrix, z, s, z)",
        "its scale 'matrix' has the shape [4, 4]; supported are one scale, and a vector",
    ),
    "a scale of the output per channel": (
        "y = QLinearMatMul(x, s, z, x, s, z, vector, z)",
        "the scale 'vector' of its output has the shape [4]; supported is one",
    ),
    "a computed scale": (
        "t = com.microsoft.Trilu(s) y = com.microsoft.QLinearAdd(x, t, z, x, s, z, s, z)",
        "its scale 't' is computed in the graph, and its shape is not known; supported are",
    ),
    "a softmax of another version": (
        "y = com.microsoft.QLinearSoftmax<axis = 1, opset = 11>(x, s, z, s, z)",
        "opset=11 in a model of opset 21 is not supported",
    ),
    "float8": (
        "y = QuantizeLinear<output_dtype = 17>(f, s)",
        "its quantized type is float8e4m3fn; supported are integers of 2, 4, 8 and 16 bits",
    ),
    "blocks of activations of unknown shape": (
        "t = com.microsoft.Trilu(f) y = QuantizeLinear<axis = 1, block_size = 2>(t, blocks)",
        "block_size needs the shapes of 't' and 'blocks', which are not known",
    ),
    "packed weights that are not constants": (
        "y = com.microsoft.MatMulNBits<K = 4, N = 4, bits = 4, block_size = 4>(f, x, s)",
        "supported are constant weights, scales and zero points, and no g_idx",
    ),
    "half a block": (
        "y = DequantizeLinear<axis = 1, block_size = 3>(x, blocks)",
        "block_size=3 on axis 1 of the shape [4, 4], with scales of the shape [4, 2]; supported",
    ),
}


OTHER_RESULTS = {
    "float8": "float8e4m3fn",
    "blocks of activations of unknown shape": "uint8",
    "half a block": "float",
    "packed weights that are not constants": "float",
}
"""The types of results that are not int8."""


@needs_library("onnx")
@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_models_are_refused_in_a_sentence(name):
    body, sentence = REFUSED[name]
    kind = OTHER_RESULTS.get(name, "int8")
    text = f"g (int8[4, 4] x, float[4, 4] f) => ({kind} y) {{ {body} }}"
    weights = {
        **{"s": np.float32(0.5), "z": np.int8(0), "matrix": np.ones((4, 4), "float32")},
        **{"vector": np.ones(4, "float32"), "blocks": np.ones((4, 2), "float32")},
        "image": np.ones((1, 4, 4, 4), "int8"),
    }
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        backend.from_onnx(onnx_model(text, **weights))
    assert str(caught.value).startswith("ONNX node '")
    assert "\n" not in str(caught.value)


@needs_library("onnx", "torch")
def test_a_refused_model_leaves_the_output_of_the_program_alone(capfd):
    text = """r (float[2, 3] x, float[4, 2] w) => (float[2, 2] y) { y = MatMul(x, w) }"""
    with pytest.raises(ValueError, match="MatMul"):
        backend.from_onnx(onnx_model(text))
    assert capfd.readouterr().out == ""


def test_anything_but_a_model_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="is of type bytes; supported are onnx.ModelProto and"):
        backend.from_onnx(b"model")
    with pytest.raises(ValueError, match="is of type list; supported is what torch.export.export"):
        backend.from_exported_program([])


# ---- Whole networks -----------------------------------------------------------------------------


@needs_library("onnx", "onnxruntime")
@pytest.mark.parametrize(
    "name, form",
    [
        ("resnet", "qoperator"),
        *(
            (name, form)
            for name in ("resnet", "mobilenet", "unet", "bert", "lstm", "detector")
            for form in ("qdq", "dedicated", "qoperator")
            if (name, form) != ("resnet", "qoperator")
        ),
    ],
)
def test_a_network_that_onnx_runtime_has_quantized(name, form):
    from backend.engine.workbench.conformance import quantized_networks

    module, arguments, expected = quantized_networks.read(name, form)
    for mine, right in zip(run(module, arguments), expected, strict=True):
        # An off-by-one rounding in an early layer is several buckets at the end.
        np.testing.assert_allclose(mine, right, atol=0.05 * np.abs(right).max())
    assert any(array.dtype == "int8" for array in constants(module))
    heavy = {"relax.nn.conv2d", "relax.matmul"}
    weights = [call.args[1] for call in calls(module) if call.op.name in heavy]
    assert not any(isinstance(weight, tvm.ir.GenericConst) for weight in weights)


@needs_library("onnx")
def test_node_cases_of_quantization_are_right():
    from backend.engine.workbench.conformance import onnx_nodes

    names = ["convinteger_with_padding", "dequantizelinear_blocked", "qlinearconv"]
    names += ["quantizelinear_uint2"]
    found = {one.case: one for one in onnx_nodes.run_batch(names, lambda case: None)}
    assert sorted(found) == sorted(names)
    for outcome in found.values():
        is_elsewhere = outcome.reason.startswith("not all of it is in the table")
        assert outcome.status in ("passed", "declined") or is_elsewhere, outcome
        assert outcome.ratio == 0


# ---- PyTorch ------------------------------------------------------------------------------------


def torch_program(forward, *inputs, **buffers):
    """Export a function of its inputs and of constants, which become attributes."""
    import torch
    import torch.ao.quantization.fx._decomposed

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in buffers.items():
                self.register_buffer(name, torch.as_tensor(value))

        def forward(self, *given):
            return forward(self, torch.ops.quantized_decomposed, *given)

    network = Network()
    program = torch.export.export(network, tuple(map(torch.from_numpy, inputs)))
    expected = network(*map(torch.from_numpy, inputs))
    fields = expected if isinstance(expected, tuple) else (expected,)
    return program, [item.numpy() for item in fields]


def check_torch(forward, *inputs, buckets=0, **buffers):
    program, expected = torch_program(forward, *inputs, **buffers)
    module = backend.from_exported_program(program)
    for mine, right in zip(run(module, inputs), expected, strict=True):
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
        else:
            assert np.abs(mine.astype(int) - right).max() <= buckets
    return module


@needs_library("torch")
@pytest.mark.parametrize("dtype, zero", [("int8", -7), ("uint8", 128), ("int16", 500)])
def test_a_torch_tensor_with_one_scale(dtype, zero):
    import torch

    kind = getattr(torch, dtype)
    limits = (np.iinfo(dtype).min, np.iinfo(dtype).max, kind)

    def forward(self, ops, x):
        q = ops.quantize_per_tensor(x, 0.03125, zero, *limits)
        return q, ops.dequantize_per_tensor(q, 0.03125, zero, *limits)

    module = check_torch(forward, floats(0, 5, 40) * 3)
    assert names_of(module) == ["quantize", "dequantize"]
    assert all(str(call.args[2].ty.dtype) == dtype for call in calls(module))


@needs_library("torch")
def test_a_narrower_range_is_a_clip():
    import torch

    def forward(self, ops, x):
        return ops.quantize_per_tensor(x, 0.5, 0, -8, 7, torch.int8)

    module = check_torch(forward, np.arange(-20, 20, 0.25, "float32"))
    assert names_of(module) == ["quantize", "clip"]


@needs_library("torch")
def test_torch_weights_with_a_scale_for_each_channel_stay_integers():
    import torch

    limits = (-128, 127, torch.int8)

    def forward(self, ops, x):
        w = ops.dequantize_per_channel(self.w, self.s, self.z, 0, -127, 127, torch.int8)
        x = ops.dequantize_per_tensor(
            ops.quantize_per_tensor(x, 0.05, 3, *limits), 0.05, 3, *limits
        )
        y = torch.nn.functional.conv2d(x, w, padding=1)
        q = ops.quantize_per_channel(y, self.s, self.z, 1, *limits)
        return ops.quantize_per_tensor(y, 0.2, -9, *limits), q

    weights = integers(1, (3, 4, 3, 3))
    buffers = {"w": weights, "s": PER_CHANNEL / 10, "z": np.array([0, 4, -5])}
    module = check_torch(forward, floats(0, 1, 4, 6, 6), buckets=1, **buffers)
    (found,) = constants(module)
    np.testing.assert_array_equal(found, weights)
    # Zero points have the dtype of their tensor; torch keeps them in int64.
    assert "int64" not in str(module)


@needs_library("torch")
@pytest.mark.parametrize("symmetric", ["", "_symmetric"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_torch_scales_of_run_time(symmetric, dtype):
    import torch

    limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)

    def forward(self, ops, x):
        kind = getattr(torch, dtype)
        choose = getattr(ops, "choose_qparams" + symmetric)
        scale, zero = choose.tensor(x, *limits, 1e-6, kind)
        q = ops.quantize_per_tensor.tensor(x, scale, zero, *limits, kind)
        return q, ops.dequantize_per_tensor.tensor(q, scale, zero, *limits, kind)

    program, expected = torch_program(forward, floats(0, 4, 50) + 1)
    quantized, back = run(backend.from_exported_program(program), [floats(0, 4, 50) + 1])
    away = np.abs(quantized.astype(int) - expected[0])
    assert quantized.dtype == dtype
    assert away.max() <= 1
    np.testing.assert_allclose(back[away == 0], expected[1][away == 0], rtol=1e-5)


@needs_library("torch")
def test_torch_groups_have_a_scale_each():
    import torch

    def forward(self, ops, x):
        w = ops.dequantize_per_channel_group(
            self.w, self.s, self.z, -8, 7, torch.int8, 16, torch.float32
        )
        return torch.nn.functional.linear(x, w)

    buffers = {
        "w": integers(1, (6, 64)) // 16,
        "s": np.abs(floats(2, 6, 4)) + 0.1,
        "z": np.zeros((6, 4), "int8"),
    }
    module = check_torch(forward, floats(0, 3, 64), **buffers)
    (found,) = constants(module)
    np.testing.assert_array_equal(found, buffers["w"].reshape(24, 16))


@needs_library("torch")
def test_a_converter_of_the_user_wins():
    import torch

    def forward(self, ops, x):
        return ops.quantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8)

    program, _ = torch_program(forward, floats(0, 4))

    def convert(node, importer):
        x = importer.env[node.args[0]]
        return importer.block_builder.emit(relax.op.astype(x, "int8"))

    given = {"quantize_per_tensor.default": convert}
    module = backend.from_exported_program(program, custom_convert_map=given)
    assert names_of(module) == ["astype"]


@needs_library("torch")
def test_a_torch_op_that_is_not_supported_is_a_sentence():
    import torch

    def other(self, ops, x):
        return ops.quantize_per_token(x, self.s, self.z, -128, 127, torch.int8)

    def wide(self, ops, x):
        return ops.quantize_per_tensor(x, 0.5, 0, -(2**31), 2**31 - 1, torch.int32)

    buffers = {"s": PER_CHANNEL.reshape(3, 1), "z": np.zeros((3, 1), "int32")}
    program, _ = torch_program(other, floats(0, 3, 4), **buffers)
    sentence = (
        "torch node 'quantize_per_token' (quantized_decomposed.quantize_per_token.default): "
        "this op is not supported; supported are quantized_decomposed.choose_qparams, "
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        backend.from_exported_program(program)
    program, _ = torch_program(wide, floats(0, 3, 4))
    sentence = "dtype=int32 is not supported; supported are int8, uint8, int16 and uint16"
    with pytest.raises(ValueError, match=sentence):
        backend.from_exported_program(program)


@needs_library("torch", "torchao")
@pytest.mark.parametrize(
    "name",
    [
        "lstm",
        *(pytest.param(n, marks=pytest.mark.thorough) for n in ("resnet", "mobilenet", "unet")),
    ],
)
def test_a_network_that_torchao_has_quantized(name):
    from backend.engine.workbench.conformance import quantized_networks

    module, arguments, expected = quantized_networks.export(name)
    for mine, right in zip(run(module, arguments), expected, strict=True):
        np.testing.assert_allclose(mine, right, atol=0.02 * np.abs(right).max())
    assert {str(array.dtype) for array in constants(module)} == {"int8"}


def by_torchao(config, shape):
    """Return a program that torchao has quantized, its input and its result."""
    import torch
    from torchao import quantization

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(shape[-1], 24)).eval()
    quantization.quantize_(network, config)
    x = floats(0, *shape)
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
        return torch.export.export(network, (torch.from_numpy(x),)), x, expected


@needs_library("torch", "torchao")
@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 64)])
def test_products_of_integers_by_torchao(shape):
    from torchao import quantization

    config = quantization.Int8DynamicActivationInt8WeightConfig()
    program, x, expected = by_torchao(config, shape)
    module = backend.from_exported_program(program, unwrap_unit_return_tuple=True)
    np.testing.assert_allclose(run(module, [x])[0], expected, atol=1e-5 * np.abs(expected).max())


@needs_library("torch", "torchao")
def test_floats_of_8_bits_are_refused():
    from torchao import quantization

    program, _, _ = by_torchao(quantization.Float8WeightOnlyConfig(), (3, 64))
    sentence = "torch node '.*elements of type float8_e4m3fn are not supported; supported are"
    with pytest.raises(ValueError, match=sentence):
        backend.from_exported_program(program)


@needs_library("torch", "torchao")
@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_of_4_bits_in_groups_by_torchao(dynamic):
    import torch
    from torchao import quantization

    group = quantization.PerGroup(16)
    config = (
        quantization.Int8DynamicActivationIntxWeightConfig(torch.int4, group)
        if dynamic
        else quantization.IntxWeightOnlyConfig(torch.int4, group)
    )
    program, x, expected = by_torchao(config, (3, 64))
    module = backend.from_exported_program(program, unwrap_unit_return_tuple=True)
    np.testing.assert_allclose(run(module, [x])[0], expected, rtol=1e-4, atol=1e-5)
    (found,) = constants(module)
    assert (found.dtype, found.shape) == ("int8", (96, 16))
    assert found.min() >= -8
    assert found.max() <= 7
