# SPDX-License-Identifier: Apache-2.0
"""Shape computations of ONNX models on sizes that only the run knows."""

import numpy as np
import pytest
from tvm import relax

import backend
from support import needs_library, run_on_host

pytestmark = needs_library("onnx")

CONSTANTS = {
    **{"zero": np.int64(0), "first": np.int64(1), "last": np.int64(-1), "i2": np.int64(2)},
    **{"start": np.array([0]), "one": np.array([1]), "two": np.array([2]), "four": np.array([4])},
    **{"rest": np.array([-1]), "three": np.array([3]), "both": np.array([0, 1])},
    **{"real": np.array([2.0], "float32"), "half": np.array([0.5], "float32")},
    **{"place": np.array([[1]]), "row": np.arange(5, dtype="float32").reshape(1, 1, 5)},
    **{"table": np.arange(40, dtype="float32").reshape(10, 4)},
}
END = "to = Concat<axis = 0>(n, rest) y = Reshape(x, to)"
COMPUTED = {
    "Gather": f"d = Gather(s, zero) n = Unsqueeze(d, start) {END}",
    "Gather of a vector": f"n = Gather(s, start) {END}",
    "Gather of several": f"n = Gather(s, both) {END}",
    "Gather from the end": "d = Gather(s, last) n = Unsqueeze(d, start)"
    " to = Concat<axis = 0>(rest, n) y = Reshape(x, to)",
    "Slice": f"n = Slice(s, start, one) {END}",
    "Split": f"n, b, c = Split<num_outputs = 3>(s) {END}",
    "Identity": f"t = Identity(s) n = Gather(t, start) {END}",
    "Cast": f"t = Cast<to = 6>(s) d = Gather(t, start) n = Cast<to = 7>(d) {END}",
    "Squeeze": f"d = Gather(s, start) e = Squeeze(d) n = Unsqueeze(e, start) {END}",
    "Reshape": f"d = Gather(s, zero) n = Reshape(d, rest) {END}",
    "Flatten": "f = Flatten<axis = 0>(s) to = Squeeze(f, start) y = Reshape(x, to)",
    "Transpose": "to = Transpose(s) y = Reshape(x, to)",
    "ScatterND": "r = ReduceSum(x, one) to = ScatterND(s, place, one) y = Reshape(r, to)",
    "Mul": f"d = Gather(s, start) n = Mul(d, two) {END}",
    "Add and Sub": f"d = Gather(s, start) e = Add(d, four) n = Sub(e, four) {END}",
    "Div": f"d = Gather(s, start) e = Mul(d, four) n = Div(e, two) {END}",
    "Mod": f"d = Gather(s, start) e = Mul(d, four) f = Mod(e, four) n = Add(f, one) {END}",
    "Max and Min": f"d = Gather(s, start) e = Max(d, one) n = Min(e, d) {END}",
    "ReduceProd": f"d = Slice(s, start, two) n = ReduceProd(d) {END}",
    "Size": "d = Size(x) to = Unsqueeze(d, start) y = Reshape(x, to)",
    "of floats": f"d = Gather(s, start) f = Cast<to = 1>(d) e = Mul(f, real) g = Floor(e)"
    f" n = Cast<to = 7>(g) {END}",
    "Expand": "y = Expand(row, s)",
    "Expand but ones": "d = Gather(s, start) to = Concat<axis = 0>(d, one, one)"
    " y = Expand(row, to)",
    "Where": "o = ConstantOfShape<value = int64[1] {1}>(three) e = Equal(s, rest)"
    " to = Where(e, o, s) y = Expand(row, to)",
    "ConstantOfShape": "n = Gather(s, start) to = Concat<axis = 0>(n, one, four)"
    " y = ConstantOfShape(to)",
    "Slice of data": "d = Gather(s, start) e = Div(d, two) y = Slice(x, start, e)",
    "Slice beyond the ends": "d = Gather(s, start) e = Add(d, one) y = Slice(x, rest, e, start)",
    "Range": "d = Gather(s, zero) r = Range(zero, d, first) y = Cast<to = 1>(r)",
}
"""What becomes one op of sizes that are expressions, from the shape s of x."""

WITH_TENSORS = {
    "Slice of data": "d = Gather(s, start) e = Sub(d, one) y = Slice(x, start, e)",
    "Range of indices": "d = Gather(s, zero) r = Range(zero, d, first) y = Gather(table, r)",
    "Tile": "d = Gather(s, start) to = Concat<axis = 0>(d, one, one) y = Tile(row, to)",
    "Range downwards": "d = Gather(s, zero) r = Range(d, zero, last) y = Cast<to = 1>(r)",
    "Range of a product": "d = Gather(s, zero) e = Sub(d, i2) f = Mul(e, d)"
    " r = Range(f, d, first) y = Cast<to = 1>(r)",
    "a half": "d = Gather(s, start) f = Cast<to = 1>(d) e = Mul(f, half) g = Floor(e)"
    " n = Cast<to = 7>(g) y = Slice(x, start, n)",
    "Sqrt": "d = Gather(s, zero) f = Cast<to = 1>(d) q = Sqrt(f) y = Div(x, q)",
    "Less": "d = Gather(s, zero) c = Less(d, i2) z = Neg(x) y = Where(c, x, z)",
    "CumSum": "c = CumSum(s, zero) y = Cast<to = 1>(c)",
    "the shape": "y = Cast<to = 1>(s)",
    "the shape of the shape": "t = Shape(s) y = Cast<to = 1>(t)",
}
"""What tensors of the run decide, or what reads a shape as such."""

REFUSED = {
    "Pad": "d = Gather(s, start) to = Concat<axis = 0>(d, start, start, start, start, start)"
    " y = Pad(x, to)",
    "TopK": "d = Gather(s, start) y, i = TopK<axis = 0>(x, d)",
    "Reshape": "d = Gather(s, start) f = Cast<to = 1>(d) e = Mul(f, half) g = Floor(e)"
    f" n = Cast<to = 7>(g) {END}",
    "Expand": "to = Concat<axis = 0>(four, four, one) y = Expand(x, to)",
}


def model(body, inputs="float[n, 4, 5] x"):
    from onnx import numpy_helper, parser

    head = '<ir_version: 8, opset_import: ["": 18]>'
    found = parser.parse_model(f"{head} g ({inputs}) => (float y) {{s = Shape(x) {body} }}")
    read = {name for node in found.graph.node for name in node.input}
    for name in read & CONSTANTS.keys():
        found.graph.initializer.append(numpy_helper.from_array(CONSTANTS[name], name))
    return found


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def check(found, *arrays, **options):
    """Compare a model with ONNX's reference; return its ops that make its result."""
    from onnx.reference import ReferenceEvaluator

    module = backend.from_onnx(found, **options)
    given = {value.name: array for value, array in zip(found.graph.input, arrays, strict=False)}
    (right,) = ReferenceEvaluator(found).run(None, given)
    (mine,) = run_on_host(module, "main", list(arrays))
    assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
    np.testing.assert_allclose(mine, right, rtol=1e-6)
    module = relax.transform.DeadCodeElimination()(module)
    values = [one.value for block in module["main"].body.blocks for one in block.bindings]
    return [value.op.name for value in values if isinstance(value, relax.Call)]


@pytest.mark.parametrize("name", COMPUTED)
def test_a_computed_shape_is_an_expression_of_the_sizes(name):
    ops = check(model(COMPUTED[name]), numbers(3, 4, 5))
    assert not {"relax.shape_to_tensor", "relax.tensor_to_shape"} & {*ops}


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_what_sizes_decide_is_computed_in_the_run(name):
    check(model(WITH_TENSORS[name]), numbers(3, 4, 5))


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_number_is_refused_with_what_to_do(name):
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model(REFUSED[name]))
    assert str(caught.value).startswith(f"ONNX node 'y' ({name}): ")
    assert str(caught.value).endswith(
        "; if the open sizes are why, fix the sizes of the model's inputs, with "
        "`--shape x=1,3,64,64` on the command line or with `shape_dict` in Python"
    )
    # With that, it is read.
    backend.from_onnx(model(REFUSED[name]), shape_dict={"x": (4, 4, 5)})


def test_a_size_of_0_copies_that_of_the_input_unless_it_is_one():
    body = "d = Gather(s, start) to = Concat<axis = 0>(d, start, rest) y = Reshape%s(x, to)"
    assert check(model(body % ""), numbers(3, 4, 5)) == ["relax.reshape"]
    with pytest.raises(ValueError, match=r"^ONNX node 'y' \(Reshape\): a size of 0 beside open"):
        backend.from_onnx(model(body % "<allowzero = 1>"))


def test_a_refusal_of_fixed_sizes_says_nothing_of_open_ones():
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model("y = Pad(x, to)", "float[2, 4] x, int64[4] to"))
    assert str(caught.value) == "ONNX node 'y' (Pad): Dynamic pads are not supported yet"


def test_expand_between_sizes_of_the_run_is_refused_unless_they_are_equal():
    body = "t = Shape(z) y = Expand(x, t)"
    check(model(body, "float[n, 4] x, float[n, 4] z"), numbers(3, 4), numbers(3, 4))
    check(model(body, "float[1, 4] x, float[n, 4] z"), numbers(1, 4), numbers(3, 4))
    check(model(body, "float[3, 4] x, float[n, 4] z"), numbers(3, 4), numbers(1, 4))
    # TVM's kernel would read beyond an end if n were 1.
    with pytest.raises(ValueError, match=": whether its size n is 1 or m is not known before"):
        backend.from_onnx(model(body, "float[n, 4] x, float[m, 4] z"))


def test_expand_to_a_constant_keeps_open_sizes():
    found = model("to = Concat<axis = 0>(four, one, one) y = Expand(x, to)", "float[n, 5] x")
    assert check(found, numbers(3, 5)) == ["relax.broadcast_to"]


def test_weights_that_are_parameters_are_known():
    found = model(COMPUTED["Mul"])
    module = backend.from_onnx(found, keep_params_in_input=True)
    weights = [item.numpy() for item in module["main"].attrs["params"]]
    (mine,) = run_on_host(module, "main", [numbers(3, 4, 5), *weights])
    assert mine.shape == (6, 10)


def test_a_branch_reads_sizes_of_the_graph_around_it():
    from onnx import numpy_helper

    to = "n = Gather(s, start) to = Concat<axis = 0>(n, rest)"
    branches = f"then_branch = t () => (float[a, b] p) {{ {to} p = Reshape(x, to) }}"
    other = "else_branch = e () => (float[a, b] q) { r = Neg(x) q = Flatten(r) }"
    found = model(f"y = If(c) <{branches}, {other}>", "float[n, 4, 5] x, bool c")
    for name in ("start", "rest"):
        found.graph.initializer.append(numpy_helper.from_array(CONSTANTS[name], name))
    check(found, numbers(3, 4, 5), np.array(True))
    check(found, numbers(3, 4, 5), np.array(False))
