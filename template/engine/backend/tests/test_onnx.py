# SPDX-License-Identifier: Apache-2.0
"""ONNX models are read as ONNX means them, or refused with the node's name."""

import re

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.verification.originals import original_of
from support import needs_library, run_on_host, run_together

pytestmark = needs_library("onnx")

DOMAINS = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "own": 1]>'


def model(text, domains=DOMAINS):
    from onnx import parser

    return parser.parse_model(f"{domains} {text}")


def refused(text, sentence, domains=DOMAINS):
    with pytest.raises(Exception, match=re.escape(sentence)) as caught:
        backend.from_onnx(model(text, domains))
    assert not isinstance(caught.value, (KeyError, IndexError, AttributeError))


# ---- Graphs that are none -----------------------------------------------------------------------

UNSOUND = {
    "a cycle": (
        "{ a = Relu(b) b = Neg(a) y = Add(b, x) }",
        "ONNX node 'a' (Relu): its input 'b' is not known there: the later node "
        "'b' (Neg) computes it: the nodes form a cycle",
    ),
    "a node that reads itself": (
        "{ a = Add(a, x) y = Relu(a) }",
        "ONNX node 'a' (Add): its input 'a' is not known there: it is its own",
    ),
    "an input that nobody makes": (
        "{ y = Add(x, lost) }",
        "ONNX node 'y' (Add): its input 'lost' is not known there: no node",
    ),
    "an input of a branch": (
        "{ c = Equal(x, x) d = ReduceMin<keepdims = 0>(x) e = Cast<to = 9>(d)"
        "  y = If(e) <then_branch = t () => (float[2] p) { p = Neg(lost) },"
        "             else_branch = f () => (float[2] q) { q = Relu(x) }> }",
        "ONNX node 'p' (Neg): its input 'lost' is not known there",
    ),
    "two makers": (
        "{ y = Relu(x) y = Neg(x) }",
        "(Neg): its result 'y' is that of the node 'y' (Relu), too",
    ),
    "no maker": ("{ z = Relu(x) }", "the ONNX graph 'g' has the result 'y', which no node"),
    "another domain": (
        "{ y = own.Relu(x) }",
        "TVM's importer does not know the operator of the node 'y' (own.Relu)",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_a_graph_that_cannot_be_computed_is_refused_with_node_and_tensor(name):
    body, sentence = UNSOUND[name]
    refused(f"g (float[2] x) => (float[2] y) {body}", sentence)


def test_a_node_without_an_operator_or_a_version_is_refused():
    found = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    found.graph.node[0].op_type = ""
    with pytest.raises(ValueError, match=r"^ONNX node 'y' \(\): it has no operator"):
        backend.from_onnx(found)
    other = '<ir_version: 10, opset_import: ["com.microsoft": 1]>'
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    refused(text, "does not say which version of ONNX's operators it has", other)


def test_functions_of_the_model_are_read():
    text = """g (float[2] x) => (float[2] y) { y = own.twice(x) }
    <domain: "own", opset_import: ["": 21]> twice (a) => (b) { b = Add(a, a) }"""
    found = backend.from_onnx(model(text))
    assert found["main"].ret_ty.dtype == "float32"


def test_an_incomplete_node_is_refused():
    refused(
        "g (float[2] x) => (float[2] y) { y = Add(x) }",
        "ONNX node 'y' (Add): it has 1 inputs, and needs 2",
    )
    refused(
        "g (float[2] x) => (float[2] y) { y = Cast(x) }",
        "ONNX node 'y' (Cast): its attribute to is missing",
    )


def test_a_node_with_more_than_its_operator_has_is_refused():
    refused(
        "g (float[2] x) => (int64 y) { y = Size(x, x) }",
        "ONNX node 'y' (Size): it has 2 inputs, and may have 1",
    )
    refused(
        "g (float[2] x) => (float[2] y) { y, z = Relu(x) }",
        "ONNX node 'y' (Relu): it has 2 results, and may have 1",
    )
    refused(
        "g (float[2] x) => (float[2] x) { [act] x = Relu(x) }",
        "ONNX node 'act' (Relu): its result 'x' is an input or a constant, too",
    )


@pytest.mark.parametrize(
    ("kind", "external", "sentence"),
    [
        (0, False, "is of the type 0, which the installed onnx does not know"),
        (77, False, "is of the type 77, which the installed onnx does not know"),
        (1, True, "is in another file, whose name the model lacks"),
    ],
)
def test_a_constant_without_a_type_or_a_place_is_refused(kind, external, sentence):
    from onnx import TensorProto

    found = model("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    weight = TensorProto(name="w", data_type=kind, dims=[2], float_data=[1, 2])
    if external:
        weight.data_location = TensorProto.EXTERNAL
    found.graph.initializer.append(weight)
    with pytest.raises(ValueError, match=f"^the constant 'w' of the ONNX model {sentence}$"):
        backend.from_onnx(found)


@pytest.mark.parametrize(
    ("kind", "what"), [("seq(float[2])", "sequence"), ("string[2]", "string tensor")]
)
def test_an_input_that_is_no_tensor_of_numbers_is_refused(kind, what):
    text = f"g ({kind} x, float[2] z) => (float[2] y) {{y = Relu(z)}}"
    refused(text, f"the input 'x' of the ONNX model is a {what}, which is not supported")


@pytest.mark.parametrize(
    "shape", [("b", 3), (-1, 3), (1.5, 3), (None, 3), 5, "23"], ids=lambda shape: repr(shape)
)
def test_a_shape_of_other_things_than_sizes_is_refused_with_its_input(shape):
    found = model("g (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }")
    sentence = f"the shape of the input 'x' in shape_dict is {shape!r}; supported are whole numbers"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        backend.from_onnx(found, shape_dict={"x": shape})
    with pytest.raises(ValueError, match="^shape_dict is of type list; supported is a dict"):
        backend.from_onnx(found, shape_dict=[shape])


# ---- What TVM's converters do not read ----------------------------------------------------------

IN_A_BRANCH = (
    "(float[2, 2] x, bool c) => (int64[2, 2] y) { y = If(c) <"
    "  then_branch = t () => (int64[2, 2] p) { p = %s },"
    "  else_branch = f () => (int64[2, 2] q) { q = Cast<to = 7>(x) }> }"
)
FAILURES = {
    "ValueError": (
        "(float[2, 2] x) => (int64[2, 2] y) { y = EyeLike<dtype = 7>(x) }",
        "ONNX node 'y' (EyeLike): dtype mismatch between input (float32) and attribute (7)",
    ),
    "of a kernel": (
        "(float[1, 7, 3, 3] x) => (float[1, 7, 3, 3] y) { y = LRN<size = 4>(x) }",
        "ONNX node 'y' (LRN): In divide, the first input shape at dim 1 is 7 and the second input "
        "shape at dim 1 is 8, which are not broadcastable",
    ),
    "NotImplementedError": (
        "(float[1, 2, 3] x, float[1, 4, 1] z) => (float[1, 2, 4] y) { y = GridSample(x, z) }",
        "ONNX node 'y' (GridSample): GridSample only supports 4D or 5D input, got 3D",
    ),
    "in a branch": (
        IN_A_BRANCH % "EyeLike<dtype = 7>(x)",
        "ONNX node 'p' (EyeLike): dtype mismatch between input (float32) and attribute (7)",
    ),
    "unknown in a branch": (
        (IN_A_BRANCH % "Celu(x)").replace("int64", "float").replace("to = 7", "to = 1"),
        "ONNX node 'p' (Celu): Operator Celu not implemented",
    ),
    "AssertionError": (
        "(float[1, 3, 4] x, float[4, 12] w, float[12] b) => (float[1, 3, 4] y)"
        "  { y = com.microsoft.Attention<num_heads = 2, scale = 2.0>(x, w, b) }",
        "ONNX node 'y' (com.microsoft.Attention): custom scale is not currently supported",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_a_converter_raises_is_a_refusal_of_its_node(name):
    text, sentence = FAILURES[name]
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model(f"g {text}"))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_normalization_with_the_results_of_a_training_is_refused():
    # Runtimes compute other values for it, even if nothing reads them.
    text = (
        "g (float[n, 2] x, float[2] s) => (float[n, 2] y) {"
        " [norm] y, m, v, a, b = BatchNormalization(x, s, s, s, s) }"
    )
    why = "ONNX node 'norm' (BatchNormalization): it has 5 results, as for training; supported is"
    refused(text, why, '<ir_version: 10, opset_import: ["": 9]>')


def test_no_memory_is_none_of_the_node(monkeypatch):
    def convert(x):
        raise MemoryError

    plant(monkeypatch, "Relu", convert)
    with pytest.raises(MemoryError):
        backend.from_onnx(model("g (float[2] x) => (float[2] y) { y = Relu(x) }"))


def test_an_unknown_operator_is_a_value_error():
    with pytest.raises(ValueError, match="does not know the operator of the node 'y' \\(Celu\\)"):
        backend.from_onnx(model("g (float[2] x) => (float[2] y) { y = Celu(x) }"))


# ---- Types that the model declares --------------------------------------------------------------


def result_type(text, **options):
    ty = backend.from_onnx(model(text), **options)["main"].ret_ty
    return str(ty.dtype), [int(size) for size in ty.shape.values]


def plant(monkeypatch, name, convert):
    """Give an operator another converter."""
    from tvm.relax.frontend.onnx import onnx_frontend

    kind = onnx_frontend._get_convert_map()[name]

    def wrong(bb, inputs, attr, params):
        return convert(inputs[0])

    monkeypatch.setattr(kind, "get_converter", lambda opset: wrong)


@pytest.mark.parametrize(
    ("convert", "read"),
    [
        (lambda x: relax.op.astype(x, "float16"), "float16[2, 4]"),
        (lambda x: relax.op.reshape(x, [8]), "float32[8]"),
        (lambda x: relax.op.permute_dims(x), "float32[4, 2]"),
    ],
)
def test_a_result_that_contradicts_the_model_is_refused(monkeypatch, convert, read):
    plant(monkeypatch, "Relu", convert)
    sentence = (
        "the node 'r' (Relu) is read wrongly: the model declares its result 'r' as float32[2, 4], "
        f"and TVM's importer makes it {read}."
    )
    # Of the one node, though it is not a result of the model, and a later node may fail for it.
    inputs = "g (float[2, 4] x, float[4, 3] w) =>"
    refused(inputs + " (float[4, 2] y) { r = Relu(x) y = Transpose(r) }", sentence)
    refused(inputs + " (float[2, 3] y) { r = Relu(x) y = MatMul(r, w) }", sentence)


def test_the_types_of_the_file_are_used_where_onnx_infers_none():
    text = "g (float[2, 4] x) => (float[2, 4] y) { t = com.microsoft.Trilu(x) y = Relu(t) }"
    assert result_type(text) == ("float32", [2, 4])
    refused(text.replace("(float[2, 4] y)", "(float[2, 5] y)"), "as float32[2, 5], and TVM's")
    # With other inputs, the sizes are others.
    assert result_type(text, shape_dict={"x": [3, 4]}) == ("float32", [3, 4])


def test_what_exporters_leave_behind_inside_is_no_contradiction():
    from onnx import helper

    text = "g (float[2, 4] x) => (float[2, 4] y) { r = Relu(x) y = Neg(r) }"
    found = model(text)
    found.graph.value_info.append(helper.make_tensor_value_info("r", 1, [7, 7, 7]))
    ty = backend.from_onnx(found)["main"].ret_ty
    assert [int(size) for size in ty.shape.values] == [2, 4]


def test_sizes_that_replace_those_of_the_file_are_the_declared_ones():
    text = "g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"
    assert result_type(text, shape_dict={"x": [3, 4]}) == ("float32", [3, 4])
    fixed = text.replace("n", "1")
    assert result_type(fixed, shape_dict={"x": [np.int64(3), 4]}) == ("float32", [3, 4])


@pytest.mark.parametrize("shape", ["[2, 5]", "[2, 4, 1]", "[n, 5]"])
def test_a_result_of_another_shape_is_refused(shape):
    text = f"g (float[2, 4] x) => (float{shape} y) {{ [act] y = Relu(x) }}"
    shown = shape.replace("n", "?")
    sentence = f"the model declares the result 'y' as float32{shown}, and by ONNX it is float32[2, "
    refused(text, f"ONNX node 'act' (Relu): {sentence}4]; correct the type in the file")


def test_open_sizes_of_a_result_may_be_declared_by_any_name():
    for shape in ("[m, 4]", "[2, k]", "[n, m]"):
        text = f"g (float[2, 4] x) => (float{shape} y) {{y = Relu(x) }}"
        assert result_type(text) == ("float32", [2, 4])


def test_a_result_of_another_element_type_is_refused():
    from onnx import helper

    refused(
        "g (float[2] x) => (int64[2] y) { [act] y = Relu(x) }",
        "ONNX node 'act' (Relu): the model declares the result 'y' as int64[2], and by ONNX it is "
        "float32[2]; correct the type in the file",
    )
    inside = model("g (float[2] x) => (float[2] y) { [act] r = Relu(x) y = Neg(r) }")
    inside.graph.value_info.append(helper.make_tensor_value_info("r", 7, [2]))
    with pytest.raises(ValueError, match="ONNX node 'act' .* declares the result 'r' as int64, "):
        backend.from_onnx(inside)


@pytest.mark.parametrize("what", ["input", "result"])
def test_negative_sizes_are_refused_but_for_minus_one(what):
    found = model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    values = found.graph.input if what == "input" else found.graph.output
    size = values[0].type.tensor_type.shape.dim[0]
    size.dim_value = -5
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(found)
    assert str(caught.value).startswith(
        f"the {what} {values[0].name!r} of the ONNX model has a size of -5; supported are"
    )
    # Exporters and ONNX Runtime take it for one that is not known.
    size.dim_value = -1
    first, second = backend.from_onnx(found)["main"].ret_ty.shape.values
    assert isinstance(first, tvm.tirx.Var) and int(second) == 4


def test_a_result_of_no_dimensions_may_be_of_unknown_ones():
    text = "g (float[2, 4] x) => (float y) { y = com.microsoft.FastGelu(x) }"
    assert result_type(text) == ("float32", [2, 4])


# ---- Paddings -----------------------------------------------------------------------------------


def node(op, inputs, opset, constants, attributes):
    """Make a model of one node, whose result has the type that ONNX infers."""
    from onnx import ValueInfoProto, helper, numpy_helper, shape_inference

    names = [f"x{index}" if item is not None else "" for index, item in enumerate(inputs)]
    given = {name: np.asarray(item) for name, item in zip(names, inputs, strict=True) if name}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(item.dtype), item.shape)
        for name, item in given.items()
        if names.index(name) not in constants
    ]
    weights = [
        numpy_helper.from_array(given.pop(names[index]), names[index]) for index in constants
    ]
    made = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([made], "g", values, [ValueInfoProto(name="y")], weights)
    opsets = [helper.make_opsetid("", opset)]
    found = helper.make_model(graph, opset_imports=opsets, ir_version=10 if opset > 8 else 4)
    return shape_inference.infer_shapes(found), given


def check(op, *inputs, opset=21, constants=(), tolerance=1e-5, **attributes):
    """Compare a node with what the others compute; return its result."""
    found, given = node(op, inputs, opset, constants, attributes)
    arrays = list(given.values())
    (right,) = original_of(found).run(arrays)
    (mine,) = run_on_host(backend.from_onnx(found), "main", arrays)
    assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
    np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)
    return mine


def floats(*shape):
    return np.random.default_rng(3).standard_normal(shape, "float32")


POOLS = {
    "lower": {"kernel_shape": [4, 4], "strides": [3, 3], "auto_pad": "SAME_LOWER"},
    "upper": {"kernel_shape": [4, 3], "strides": [3, 2], "auto_pad": "SAME_UPPER"},
    "up to the end": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    "padded, up to the end": {
        **{"kernel_shape": [4, 3], "strides": [2, 3], "ceil_mode": 1},
        "pads": [1, 1, 1, 1],
    },
}


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_padded_as_onnx_says(op, name):
    x = floats(1, 2, 13, 16)
    found = check(op, x, **POOLS[name])
    assert name != "lower" or found.shape == (1, 2, 5, 6)
    if op == "AveragePool":
        check(op, x, count_include_pad=1, **POOLS[name])


@pytest.mark.parametrize("mode", ["SAME_LOWER", "SAME_UPPER", "VALID"])
def test_convolutions_are_padded_as_onnx_says(mode):
    x, w = floats(1, 2, 7, 8), floats(2, 2, 4, 3)
    check("Conv", x, w, constants=[1], auto_pad=mode, strides=[3, 2])
    check("ConvTranspose", x, w, constants=[1], auto_pad=mode, strides=[3, 2])
    check(
        "ConvTranspose", x, w, constants=[1], auto_pad=mode, strides=[3, 2], output_shape=[20, 17]
    )
    # A kernel shorter than the stride leaves the size.
    check("ConvTranspose", x, w, constants=[1], auto_pad=mode, strides=[5, 5])


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"strides": [3, 3]}, "with a stride that is longer than the kernel, has no agreed"),
        ({"dilations": [2, 2]}, "auto_pad=SAME_UPPER of a pooling with dilations, or with a"),
    ],
)
def test_pooling_without_an_agreed_padding_is_refused(attributes, sentence):
    attributes = {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", **attributes}
    found, _ = node("MaxPool", [floats(1, 2, 7, 8)], 21, (), attributes)
    with pytest.raises(ValueError, match=sentence):
        backend.from_onnx(found)


# ---- Resize -------------------------------------------------------------------------------------

ALONG = {"axes": [2, 3]}
RESIZED = {
    "a fractional scale": ([1.5, 1.5], {"mode": "linear"}),
    "half of an odd size": ([0.5, 0.5], {"mode": "cubic", "exclude_outside": 1}),
    "smoothed": ([0.5, 0.6], {"mode": "linear", "antialias": 1}),
    "smoothed, cubic": ([0.5, 0.6], {"mode": "cubic", "antialias": 1}),
    "nearest, fractional": ([1.7, 0.6], {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}),
    "symmetric": (
        [1.3, 0.8],
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    ),
    "of one axis": ([2.0], {"mode": "linear", "axes": [3]}),
    "channels last": ([2.0, 3.0], {"mode": "linear", "axes": [1, 2]}),
}


@pytest.mark.parametrize("name", RESIZED)
def test_resize_is_what_onnx_runtime_computes(name):
    scales, attributes = RESIZED[name]
    scales = np.array(scales, "float32")
    x = floats(1, 2, 5, 7)
    check("Resize", x, None, scales, constants=[2], **{**ALONG, **attributes})


@pytest.mark.parametrize(("scale", "rounding"), [(1.5, "floor"), (2.5, "ceil")])
def test_resize_to_the_nearest_pixel_takes_the_same_side_of_ties(scale, rounding):
    mode = {"mode": "nearest", "nearest_mode": rounding}
    mode["coordinate_transformation_mode"] = "half_pixel_symmetric"
    x = np.arange(5, dtype="float32").reshape(1, 1, 1, 5)
    check("Resize", x, None, np.array([scale], "float32"), constants=[2], axes=[3], **mode)


IMPOSSIBLE = {
    "a window larger than its data": (
        "y = MaxPool<kernel_shape = [9, 9]>(x)",
        "its result 'y' would have the shape [1, 1, -3, -4]; its input is too small, or one of",
    ),
    "an infinite scale": (
        "y = Resize(x, , infinite)",
        "ONNX node 'y' (Resize): its result 'y' would have the shape [1, 1, -",
    ),
    "an axis that the data lack": (
        "y = Resize<axes = [7]>(x, , two)",
        "ONNX node 'y' (Resize): it is not valid: Unexpected axis value: 7. Expected range [-4, 4)",
    ),
    "an axis of open sizes that the data lack": (
        "n = Shape(z) y = Slice(z, zero, n, seven)",
        "axis 7 is none of a tensor of rank 1",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_computed_is_refused_by_name(name):
    from onnx import numpy_helper

    body, sentence = IMPOSSIBLE[name]
    found = model(f"g (float[1, 1, 5, 4] x, float[n] z) => (float y) {{ {body} }}")
    constants = {
        "infinite": np.array([1, 1, np.inf, 2], "float32"),
        **{"two": np.array([2], "float32"), "zero": np.array([0]), "seven": np.array([7])},
    }
    for key, values in constants.items():
        if key in body:
            found.graph.initializer.append(numpy_helper.from_array(values, key))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        backend.from_onnx(found)


def test_resize_uses_the_scale_and_not_the_ratio_of_the_sizes():
    x = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    scales = np.array([1, 1, 1.5, 1.5], "float32")
    found = check("Resize", x, None, scales, constants=[2], mode="linear")
    np.testing.assert_allclose(found[0, 0, 0], [0, 0.5, 7 / 6, 11 / 6], rtol=1e-5)
    x = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    half = np.array([1, 1, 0.5, 0.5], "float32")
    found = check("Resize", x, None, half, constants=[2], mode="linear", antialias=1)
    assert found[0, 0, 0, 0] == pytest.approx(3.125)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_keeps_the_ratio_of_the_sides(policy):
    options = {**ALONG, "keep_aspect_ratio_policy": policy, "mode": "linear"}
    check("Resize", floats(1, 2, 5, 7), None, None, np.array([9, 9]), constants=[3], **options)


def test_resize_of_a_region_fills_what_is_outside():
    region = np.array([-0.2, 0.1, 0.9, 1.3], "float32")
    mode = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    scales = np.array([2, 1.5], "float32")
    x = floats(1, 2, 5, 7)
    found = check("Resize", x, region, scales, constants=[1, 2], mode="linear", **ALONG, **mode)
    assert (found == 7).any()
    assert (found != 7).any()


def test_resize_of_older_versions():
    x, scales = floats(1, 2, 5, 4), np.array([1, 1, 2, 1.5], "float32")
    for mode in ("nearest", "linear"):
        check("Resize", x, scales, opset=10, constants=[1], mode=mode)
        check("Upsample", x, scales, opset=9, constants=[1], mode=mode)
        check("Upsample", x, opset=7, mode=mode, scales=[1.0, 1.0, 2.0, 1.5])


BATCHES = {
    "a part of the shape": "first = Slice(s, zero, two) to = Concat<axis = 0>(first, sides)",
    "single sizes": "b = Gather(s, zero) c = Gather(s, one) to = Concat<axis = 0>(b, c, sides)",
}


def resized(name, mode, of, inputs):
    from onnx import numpy_helper

    found = model(
        f"g ({inputs}) => (float[n, 2, 7, 10] y) {{s = Shape({of}) {BATCHES[name]}"
        f' y = Resize<mode = "{mode}">(x, , , to) }}'
    )
    for key, values in {"zero": [0], "one": [1], "two": [2], "sides": [7, 10]}.items():
        found.graph.initializer.append(numpy_helper.from_array(np.array(values), key))
    return found


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("name", BATCHES)
def test_resize_to_known_sides_keeps_an_open_batch(name, mode):
    found, x = resized(name, mode, "x", "float[n, 2, 4, 5] x"), floats(3, 2, 4, 5)
    (mine,) = run_on_host(backend.from_onnx(found), "main", [x])
    (right,) = original_of(found).run([x])
    assert mine.shape == (3, 2, 7, 10)
    np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)
    # Here nobody says that the batch is that of the input.
    found = resized(name, mode, "z", "float[n, 2, 4, 5] x, float[m, 2] z")
    with pytest.raises(ValueError, match=r"^ONNX node 'y' \(Resize\): .*fix the sizes"):
        backend.from_onnx(found)


@pytest.mark.parametrize("opset", [11, 12])
def test_before_version_13_scales_of_no_elements_stand_for_sizes(opset):
    from onnx import numpy_helper

    found = model(
        """g (float[n, 2, 4, 5] x) => (float[n, 2, 7, 10] y) {
            s = Shape(x) first = Slice(s, zero, two) to = Concat<axis = 0>(first, smaller)
            r = Resize<mode = "nearest">(x, none, none, to) t = Shape(r)
            again = Slice(t, zero, two) last = Concat<axis = 0>(again, sides)
            y = Resize<mode = "linear">(r, none, none, last)
        }""",
        f'<ir_version: 10, opset_import: ["": {opset}]>',
    )
    constants = {"zero": [0], "two": [2], "smaller": [3, 4], "sides": [7, 10]}
    for key, values in {**constants, "none": np.array([], "float32")}.items():
        found.graph.initializer.append(numpy_helper.from_array(np.array(values), key))
    x = floats(3, 2, 4, 5)
    (mine,) = run_on_host(backend.from_onnx(found), "main", [x])
    np.testing.assert_allclose(mine, original_of(found).run([x])[0], rtol=1e-5, atol=1e-5)


OPEN_SIDES = {
    "scales": "y = Resize<{}>(x, region, twice)",
    "sizes": "y = Resize<{}>(x, region, , to)",
    "a part of sizes": """s = Shape(x) first = Slice(s, zero, two) sides = Slice(to, two, most)
        all = Concat<axis = 0>(first, sides) y = Resize<{}>(x, region, , all)""",
}
SIDES = {
    "twice": np.array([1, 1, 2, 3], "float32"),
    "to": np.array([1, 2, 7, 10]),
    "region": np.array([0, 0, 0, 0, 1, 1, 1, 1], "float32"),
    **{"zero": np.array([0]), "two": np.array([2]), "most": np.array([9])},
}


def of_open_sides(name, coordinates, mode, rounding="round_prefer_floor"):
    from onnx import numpy_helper

    attributes = (
        f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}", '
        f'nearest_mode = "{rounding}"'
    )
    body = OPEN_SIDES[name].format(attributes)
    found = model(f"g (float[1, 2, h, w] x) => (float[1, 2, p, q] y) {{ {body} }}")
    for key, values in SIDES.items():
        if key in body:
            found.graph.initializer.append(numpy_helper.from_array(values, key))
    return found


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("name", OPEN_SIDES)
def test_a_symmetric_resize_of_open_sides(name, mode):
    found, x = of_open_sides(name, "half_pixel_symmetric", mode), floats(1, 2, 3, 5)
    (mine,) = run_on_host(backend.from_onnx(found), "main", [x])
    np.testing.assert_allclose(mine, original_of(found).run([x])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "coordinates"), [("scales", "tf_crop_and_resize"), ("sizes", "asymmetric")]
)
def test_a_resize_that_needs_its_sides_is_refused(name, coordinates):
    found = of_open_sides(name, coordinates, "nearest", "floor")
    why = rf"^ONNX node 'y' \(Resize\): .*{coordinates}.* needs the sizes of its input 'x' and"
    with pytest.raises(ValueError, match=why):
        backend.from_onnx(found)


def test_a_resize_that_tvm_reads_rightly_stays_one():
    scales = np.array([1, 1, 2, 2], "float32")
    found, _ = node("Resize", [floats(1, 2, 5, 4), None, scales], 21, [2], {"mode": "linear"})
    assert "image.resize2d" in str(backend.from_onnx(found)["main"])


# ---- Attributes and types -----------------------------------------------------------------------

REGIONS = np.array([[1, 1, 5, 4], [0, 2, 3, 5.5]], "float32")
INFINITE = np.array([np.inf, -np.inf, 1, np.nan], "float32")
READ = {
    "OneHot of floats": (
        "OneHot",
        [np.array([0, 2, -1, 5]), np.int64(3), np.array([0.5, 5], "float32")],
        {"constants": [1, 2]},
    ),
    "RoiAlign, scaled": (
        "RoiAlign",
        [floats(1, 2, 6, 6), REGIONS, np.array([0, 0])],
        {"spatial_scale": 0.5, "sampling_ratio": 2, "output_height": 2, "output_width": 3},
    ),
    "a power of integers": ("Pow", [np.array([1, 2, 3]), np.array([2, 3, 0.5], "float32")], {}),
    "a power of floats": ("Pow", [np.array([1, 2, 3], "float32"), np.array([2, 3, 4])], {}),
    "infinities above": ("IsInf", [INFINITE], {"detect_negative": 0}),
    "infinities below": ("IsInf", [INFINITE], {"detect_positive": 0}),
    "no infinities": ("IsInf", [INFINITE], {"detect_positive": 0, "detect_negative": 0}),
    "the largest truth": ("ReduceMax", [np.eye(3, dtype=bool), np.array([1])], {"constants": [1]}),
    "a mean of integers": ("ReduceMean", [np.arange(8, dtype="int32").reshape(2, 4)], {}),
    "a sum of nothing": ("ReduceL1", [floats(2, 3)], {"noop_with_empty_axes": 1}),
    "squares of nothing": ("ReduceSumSquare", [floats(2, 3)], {"noop_with_empty_axes": 1}),
    "Dropout with a ratio": ("Dropout", [floats(2, 3), np.float32(0.3)], {"constants": [1]}),
}


@pytest.mark.parametrize("name", READ)
def test_attributes_and_types_are_those_of_onnx(name):
    op, inputs, options = READ[name]
    check(op, *inputs, **options)


BOXES = np.array([[[0, 0, 2, 2], [0, 1, 2, 3], [4, 4, 6, 6]]], "float32")


@pytest.mark.parametrize("threshold", [[], [0.0], [1 / 3], [0.3]])
def test_boxes_that_overlap_as_much_as_the_threshold_are_kept(threshold):
    scores = np.array([[[0.9, 0.8, 0.7]]], "float32")
    more = [np.array(threshold, "float32")] if threshold else []
    constants = [2, 3] if threshold else [2]
    found = check(
        "NonMaxSuppression", BOXES, scores, np.array([3]), *more, opset=11, constants=constants
    )
    assert len(found) == (3 if threshold == [1 / 3] else 2)


UNREAD = {
    "Resize of aligned corners": (
        (
            "Resize",
            [floats(1, 1, 4, 4), None, np.array([1, 1, 0.6, 0.6], "float32")],
            *(21, [2], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ),
        "with a scale that is not the ratio of the sizes has no agreed meaning",
    ),
    "Dropout that trains": (
        ("Dropout", [floats(2, 3), np.float32(0.3), np.bool_(True)], 21, [1, 2], {}),
        "training_mode is not supported; export the model for inference",
    ),
    "RoiAlign of the largest": (
        ("RoiAlign", [floats(1, 2, 6, 6), REGIONS, np.array([0, 0])], 21, [], {"mode": "max"}),
        "mode=max is not supported; supported is mode=avg",
    ),
    "Mod of floats": (
        ("Mod", [floats(4), floats(4)], 21, [], {}),
        "fmod=0 of floats is not supported; supported is fmod=1",
    ),
    "Cast to 4 bits": (
        ("Cast", [floats(4)], 21, [], {"to": 22}),
        "its result is of type int4; supported are types of at least 8 bits",
    ),
    "Pad around a corner": (
        ("Pad", [floats(4), np.array([-1, 2])], 21, [1], {"mode": "wrap"}),
        "mode=wrap with negative or computed pads is not supported",
    ),
    "ReduceMax of no truth values": (
        ("ReduceMax", [np.zeros((2, 0), "bool"), np.array([1])], 21, [1], {}),
        "its input 'x0' has no elements",
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_has_no_right_value_is_refused(name):
    arguments, sentence = UNREAD[name]
    found, _ = node(*arguments)
    with pytest.raises(ValueError, match=rf"^ONNX node '.*\({arguments[0]}\): .*{sentence}"):
        backend.from_onnx(found)


@pytest.mark.parametrize(
    ("op", "attributes"), [("Dropout", {}), ("MaxPool", {"kernel_shape": [2, 2]})]
)
def test_a_second_result_may_be_there_and_not_be_read(op, attributes):
    from onnx import helper

    found, _ = node(op, [floats(1, 1, 4, 4)], 21, (), attributes)
    found.graph.node[0].output.append("more")
    assert len(backend.from_onnx(found)["main"].ret_ty.shape.values) == 4
    kind = 9 if op == "Dropout" else 7
    found.graph.output.append(helper.make_tensor_value_info("more", kind, [None] * 4))
    with pytest.raises(ValueError, match="its result 'more' is not supported; supported is the"):
        backend.from_onnx(found)


# ---- Node tests of 16 bits ----------------------------------------------------------------------


@pytest.mark.thorough
def test_no_node_test_of_16_bits_is_read_and_wrong():
    """The kit takes these for TVM's mistakes, and all others that are wrong for the importer's."""
    from backend.engine.workbench.conformance import onnx_nodes

    nodes = {
        name: one
        for name, one in onnx_nodes.collect().items()
        if "_expanded" not in name and "16" in name
    }
    read = {name: onnx_nodes.read(one) for name, one in nodes.items()}
    models = [one for one in read.values() if not isinstance(one, str)]
    assert len(models) > 80
    results = run_together(models)
    assert not {name: one for name, one in results.items() if isinstance(one, Exception)}
    assert not {name: why for name in results if (why := difference(results[name], nodes[name]))}


def difference(results, case):
    """Return how results differ from those of a node test."""
    if len(results) < len(case.outputs):
        return "results are missing"
    for mine, right in zip(results, map(np.asarray, case.outputs), strict=False):
        if (mine.dtype, mine.shape) != (right.dtype, right.shape):
            return f"{mine.dtype}{mine.shape} in place of {right.dtype}{right.shape}"
        # Sums of 16 bits are rounded in another order than ONNX's.
        least = {"float16": 2e-3, "bfloat16": 8e-3}.get(str(mine.dtype), 1e-6)
        close = {"rtol": case.rtol, "atol": max(case.atol, least)}
        if not np.allclose(mine, right, **close, equal_nan=True):
            return "other values"
    return ""
