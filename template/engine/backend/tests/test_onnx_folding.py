# SPDX-License-Identifier: Apache-2.0
"""Shape computations of ONNX models are constants, and branches that sizes choose are inlined."""

import numpy as np
import pytest
from tvm import relax

import backend
from support import needs_library, run_on_host

pytestmark = needs_library("onnx")

WITH_IDENTITY = """g (float[N, 3, M] x) => (float[a, b] y) {
    sizes = Shape (x)
    same = Identity (sizes)
    first = Gather <axis = 0> (same, zero)
    row = Unsqueeze (first, axes)
    flat = Concat <axis = 0> (row, rest)
    y = Reshape (x, flat)
}"""


def parsed(text, opset=17, **weights):
    from onnx import numpy_helper, parser

    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def names_of(module):
    bindings = (one for block in module["main"].body.blocks for one in block.bindings)
    found = (one.value for one in bindings if isinstance(one.value, relax.Call))
    return [call.op.name.removeprefix("relax.") for call in found]


def right(model, *arrays):
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in model.graph.input]
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


def check(model, *arrays, **options):
    """Compare a model with ONNX's reference; return the names of its ops."""
    module = backend.from_onnx(model, **options)
    for mine, other in zip(
        run_on_host(module, "main", list(arrays)), right(model, *arrays), strict=True
    ):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    return names_of(module)


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def shaped(text=WITH_IDENTITY):
    return parsed(text, zero=np.int64(0), axes=np.array([0]), rest=np.array([-1]))


def test_given_sizes_fold_shape_computations():
    assert check(shaped(), numbers(2, 3, 5), shape_dict={"x": (2, 3, 5)}) == ["reshape"]


def test_fixed_sizes_fold_shape_computations():
    model = shaped(WITH_IDENTITY.replace("[N, 3, M]", "[2, 3, 5]"))
    before = model.SerializeToString()
    assert check(model, numbers(2, 3, 5)) == ["reshape"]
    assert model.SerializeToString() == before


def test_sizes_that_are_known_fold_beside_open_ones():
    text = WITH_IDENTITY.replace("[N, 3, M]", "[3, N, 4]")
    assert check(shaped(text), numbers(3, 5, 4)) == ["reshape"]


def test_given_sizes_hold_wherever_their_symbol_is():
    text = "g (float[N, 3] x, float[N, 3] y) => (float[N, 3] z) { z = Add (x, y) }"
    module = backend.from_onnx(parsed(text), shape_dict={"x": (2, 3)})
    assert [str(param.ty.shape) for param in module["main"].params] == ["R.shape([2, 3])"] * 2


def test_sizes_that_replace_others_replace_what_follows():
    text = "g (float[1, 2, 3] x) => (float[1, 6] y) { y = Flatten (x) }"
    module = backend.from_onnx(parsed(text), shape_dict={"x": (4, 2, 3)})
    (mine,) = run_on_host(module, "main", [numbers(4, 2, 3)])
    np.testing.assert_array_equal(mine, numbers(4, 2, 3).reshape(4, 6))


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"x": (2, 3)}, "the input 'x' has 3 dimensions, not 2"),
        (
            {"x": (2, 3, 4), "y": (3,)},
            "the size 'N' of the input 'y' is 2 in another place, and 3 here",
        ),
    ],
)
def test_sizes_that_contradict_are_refused(shapes, sentence):
    text = "g (float[N, 3, M] x, float[N] y) => (float[N, 3, M] z) { z = Relu (x) }"
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(parsed(text), shape_dict=shapes)
    assert str(caught.value) == sentence


def test_each_open_size_is_a_symbol_of_its_own():
    text = "g (float[?, 3] x, float[?, ?] y, float[N, N] z) => (float[?, 3] r) { r = Relu (x) }"
    model = parsed(text)
    # What other exporters write for the same.
    for item in model.graph.input[1].type.tensor_type.shape.dim:
        item.dim_param = "?"
    module = backend.from_onnx(model)
    first, second, third = (list(param.ty.shape.values) for param in module["main"].params)
    symbols = [first[0], *second, third[0]]
    assert len({symbol.name for symbol in symbols}) == len(set(symbols)) == 4
    assert third[0].same_as(third[1])


def test_a_formula_of_symbols_that_no_input_has_is_a_symbol():
    text = "g (float[N, 3] x, float[M, 3] y) => (float[r, 3] z) { z = Concat <axis = 0> (x, y) }"
    model = parsed(text)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "floor(n/2)"
    assert check(model, numbers(2, 3), numbers(4, 3)) == ["concat"]


BRANCHES = """g (float[N, 3] x) => (float[N, 3] y) {
    sizes = Shape (x)
    first = Gather <axis = 0> (sizes, zero)
    is_two = Equal (first, two)
    y = If (is_two) <
        then_branch = t () => (float[N, 3] r) { k = Constant <value = float {2.0}> ()
            r = Mul (x, k) },
        else_branch = e () => (float[N, 3] r) { k = Constant <value = float {5.0}> ()
            p = Add (x, k) r = Relu (p) }
    >
}"""


@pytest.mark.parametrize(("batch", "ops"), [(2, ["multiply"]), (4, ["add", "nn.relu"])])
def test_a_branch_that_sizes_choose_replaces_the_choice(batch, ops):
    model = parsed(BRANCHES, zero=np.int64(0), two=np.int64(2))
    assert check(model, numbers(batch, 3), shape_dict={"x": (batch, 3)}) == ops


def test_names_inside_two_branches_do_not_meet():
    inner = """ = If (yes) <
        then_branch = t () => (float[3] r) { k = Constant <value = float { %s }> ()
            r = Mul (%s, k) },
        else_branch = e () => (float[3] r) { r = Identity (x) }
    >"""
    text = f"""g (float[3] x) => (float[3] y) {{
        z {inner % ("2.0", "x")}
        y {inner % ("5.0", "z")}
    }}"""
    model = parsed(text, yes=np.array(True))
    assert check(model, np.array([1, -2, 3], "float32")) == ["multiply", "multiply"]


def test_branches_inside_branches_are_inlined():
    text = """g (float[3] x, bool c) => (float[3] y) {
        y = If (c) <
            then_branch = t () => (float[3] r) {
                s = Shape (x)
                n = Size (s)
                one = Constant <value_int = 1> ()
                is_one = Equal (n, one)
                r = If (is_one) <
                    then_branch = tt () => (float[3] q) { q = Neg (x) },
                    else_branch = te () => (float[3] q) { q = acme.Unknown (x) }
                >
            },
            else_branch = e () => (float[3] r) { r = Abs (x) }
        >
    }"""
    model = parsed(text.replace("acme.Unknown", "Celu"))
    for condition in (True, False):
        check(model, numbers(3), np.array(condition))


def test_integer_weights_stay_integers():
    text = """g (float[2, 4] x) => (float[2, 4] y) {
        turned = Transpose <perm = [1, 0]> (w)
        real = DequantizeLinear (turned, scale, zero)
        product = MatMul (x, real)
        sizes = Shape (product)
        y = Reshape (product, sizes)
    }"""
    w = np.random.default_rng(1).integers(-128, 128, (4, 4)).astype("int8")
    model = parsed(text, 21, w=w, scale=np.float32(0.02), zero=np.int8(3))
    assert check(model, numbers(2, 4)) == ["dequantize", "matmul", "reshape"]


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2"])
def test_constants_of_few_bits_are_folded(kind):
    from onnx import TensorProto

    if not hasattr(TensorProto, kind):
        pytest.skip("this version of onnx lacks the type")
    text = f"""g (float[2, 4] x) => (float[2, 4] y) {{
        few = Cast <to = {getattr(TensorProto, kind)}> (w)
        real = DequantizeLinear (few, scale)
        y = Mul (x, real)
    }}"""
    low = 0 if kind.startswith("U") else -2
    w = np.arange(8).reshape(2, 4) % 4 + low
    model = parsed(text, 25, w=w.astype("float32"), scale=np.float32(0.5))
    module = backend.from_onnx(model)
    x = numbers(2, 4)
    (result,) = run_on_host(module, "main", [x])
    np.testing.assert_array_equal(result, x * w.astype("float32") / 2)
    assert "astype" not in names_of(module)


def test_what_would_become_large_is_left_to_the_run():
    text = """g (float[4] x) => (float[4] y) {
        huge = ConstantOfShape (sizes)
        one = ReduceMax <keepdims = 0> (huge)
        y = Add (x, one)
    }"""
    from backend.engine.backend.importers.onnx.folding import fold
    from backend.engine.backend.importers.onnx.types import outline

    types = outline(parsed(text, sizes=np.array([2**20, 2**20])))
    assert not fold(types)
    assert [node.op_type for node in types.graph.node] == ["ConstantOfShape", "ReduceMax", "Add"]


def test_a_model_without_shape_computations_is_not_copied():
    from backend.engine.backend.importers.onnx.folding import fold
    from backend.engine.backend.importers.onnx.types import outline

    assert not fold(outline(parsed("g (float[2] x) => (float[2] y) { y = Relu (x) }")))


def test_constants_of_numbers_are_read():
    text = """g (float[2] x) => (float[2] y) {
        k = Constant <value_floats = [2.0, 3.0]> ()
        y = Mul (x, k)
    }"""
    assert check(parsed(text), numbers(2)) == ["multiply"]
