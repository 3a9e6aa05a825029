# SPDX-License-Identifier: Apache-2.0
"""ONNX nodes that no runtime computes are refused with their name; older versions are read."""

import re

import numpy as np
import pytest

import backend
from support import needs_library, run_on_host

pytestmark = needs_library("onnx")


def parsed(text, opset, **constants):
    from onnx import numpy_helper, parser

    domains = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>'
    found = parser.parse_model(f"{domains} g {text}")
    for name, value in constants.items():
        found.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return found


def is_refused_by_runtime(model):
    """Whether ONNX Runtime refuses a model too, when it loads or runs it."""
    runtime = pytest.importorskip("onnxruntime")
    from onnx import helper

    options = runtime.SessionOptions()
    options.log_severity_level = 4
    inputs = {
        value.name: np.ones(
            [item.dim_value or 2 for item in value.type.tensor_type.shape.dim],
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in model.graph.input
    }
    try:
        content = model.SerializeToString()
        runtime.InferenceSession(content, options, ["CPUExecutionProvider"]).run(None, inputs)
    except Exception:  # It has a type for each status.
        return True
    return False


def ints(*values):
    return np.array(values, "int64")


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


IMAGE = "(float[1, 4, 5, 5] x) => (float[a, b, c, d] y)"
MATRIX = "(float[2, 3] x) => (float[a, b] y)"
ANY = "(float[2, 3] x) => (float y)"
SAMPLED = "(float[1, 1, 4, 4] x) => (float[a, b, c, d] y)"
STEPS = "(float[5, 2, 3] x) => (float[a, b, c, d] y)"
LSTM = {"w": floats(1, 16, 3), "r": floats(1, 16, 4)}
TWO = "(float[2, 3] x) => (float[a, b] y, float[c, d] z)"
TOP = "(float[2, 3] x) => (float[a, b] y, int64[a, b] i)"

BY_INFERENCE = {
    "matmul": (MATRIX, "MatMul(x, w)", {"w": floats(4, 4)}),
    "types": (MATRIX, "Add(x, w)", {"w": np.ones(3)}),
    "ranks": (ANY, "Concat<axis = 0>(x, w)", {"w": floats(3)}),
    "order": (MATRIX, "Transpose<perm = [0, 0]>(x)", {}),
    "count": (MATRIX, "Reshape(x, s)", {"s": ints(4, 4)}),
    "two open": (MATRIX, "Reshape(x, s)", {"s": ints(-1, -1)}),
    "axis": (MATRIX, "Softmax<axis = 7>(x)", {}),
    "axis of ArgMax": (MATRIX.replace("=> (float", "=> (int64"), "ArgMax<axis = 4>(x)", {}),
    "twice": (ANY, "Unsqueeze(x, a)", {"a": ints(0, 0)}),
    "not 1": (ANY, "Squeeze(x, a)", {"a": ints(0)}),
    "broadcast": (MATRIX, "Where(c, x, x)", {"c": np.array([True, False, True, True])}),
    "expand": (MATRIX, "Expand(x, s)", {"s": ints(5, 5)}),
    "repeats": (MATRIX, "Tile(x, s)", {"s": ints(5)}),
    "pads": (IMAGE, "Conv<pads = [1, 1]>(x, w)", {"w": floats(4, 4, 3, 3)}),
    "negative dilation": (IMAGE, "Conv<dilations = [-1, 1]>(x, w)", {"w": floats(4, 4, 3, 3)}),
    "groups": (IMAGE, "Conv<group = 3>(x, w)", {"w": floats(3, 2, 3, 3)}),
    "kernel of 0": (IMAGE, "MaxPool<kernel_shape = [0, 0]>(x)", {}),
    "larger kernel": (IMAGE, "AveragePool<kernel_shape = [9, 2]>(x)", {}),
    "rank of Gemm": (ANY.replace("[2, 3]", "[2, 3, 4]"), "Gemm(x, w)", {"w": floats(4, 4)}),
    "parameters": (IMAGE, "BatchNormalization(x, s, s, s, s)", {"s": floats(7)}),
    "blocks": (IMAGE, "SpaceToDepth<blocksize = 2>(x)", {}),
    "grid": (SAMPLED, "GridSample(x, g)", {"g": floats(1, 2, 2, 3)}),
    "both": (
        *(IMAGE, "Resize(x, , s, z)"),
        {"s": np.array([1, 1, 2, 2], "float32"), "z": ints(1, 4, 10, 10)},
    ),
    "slices": (MATRIX, "Slice(x, s, e)", {"s": ints(1, 1, 1), "e": ints(2)}),
}
"""What ONNX's inference finds: the graph, the node and its constants."""

BY_VALUES = {
    "Gather": (
        *(MATRIX, "Gather<axis = 1>(x, i)", {"i": ints(0, 9)}),
        "its index 'i' has the element 9, outside of the 3 elements of 'x' along that axis",
    ),
    "Gather from the end": (
        *(MATRIX, "Gather<axis = 1>(x, i)", {"i": ints(-4)}),
        "its index 'i' has the element -4, outside of the 3 elements of 'x' along that axis",
    ),
    "many indices": (
        *(MATRIX, "Gather(x, i)", {"i": np.full(3000, 2)}),
        "its index 'i' has the element 2, outside of the 2 elements of 'x'",
    ),
    "GatherElements": (
        *(MATRIX, "GatherElements<axis = 1>(x, i)", {"i": ints([9], [0])}),
        "its index 'i' has the element 9, outside of the 3 elements",
    ),
    "indices of more rows": (
        *(MATRIX, "GatherElements<axis = 1>(x, i)", {"i": ints([0], [0], [0])}),
        "'i' has 3 elements along axis 0, and 'x' has 2",
    ),
    "ScatterElements": (
        *(MATRIX, "ScatterElements<axis = 1>(x, i, u)", {"i": ints([9], [0]), "u": floats(2, 1)}),
        "its index 'i' has the element 9, outside of the 3 elements",
    ),
    "axis of ScatterElements": (
        *(MATRIX, "ScatterElements<axis = 4>(x, i, u)", {"i": ints([0], [0]), "u": floats(2, 1)}),
        "its axis is 4, and 'x' has 2 dimensions",
    ),
    "GatherND": (
        *(ANY, "GatherND(x, i)", {"i": ints([0, 9])}),
        "its index 'i' has the element 9, outside of the 3 elements",
    ),
    "batches": (
        *(ANY, "GatherND<batch_dims = 1>(x, i)", {"i": ints([0], [0], [0])}),
        "its first 1 axes are those of a batch, and 'x' has 2 elements where 'i' has 3",
    ),
    "ScatterND": (
        *(MATRIX, "ScatterND(x, i, u)", {"i": ints([9]), "u": floats(1, 3)}),
        "its index 'i' has the element 9, outside of the 2 elements",
    ),
    "axis of CumSum": (
        *(MATRIX, "CumSum(x, a)", {"a": np.array(5)}),
        "its axis is 5, and 'x' has 2 dimensions",
    ),
    "reflection": (
        *(MATRIX, 'Pad<mode = "reflect">(x, p)', {"p": ints(0, 3, 0, 0)}),
        "mode=reflect with 3 elements on axis 1, where 'x' has 3; supported are at most 2",
    ),
    "negative k": (
        *(TOP, "TopK(x, k)", {"k": ints(-1)}),
        "its result 'y' would have the shape [2, -1]; its input is too small, or one of its values",
    ),
    "negative part": (
        *(TWO, "Split<axis = 1>(x, s)", {"s": ints(-1, 4)}),
        "its result 'y' would have the shape [2, -1]; its input is too small, or one of its values",
    ),
    "far too large": (
        *(MATRIX, "Tile(x, s)", {"s": ints(2**20, 2**25)}),
        "its result 'y' would have the shape [2097152, 100663296]; no memory holds it",
    ),
    "bias": (
        *(IMAGE, "Conv(x, w, b)", {"w": floats(4, 4, 3, 3), "b": floats(1)}),
        "the shape of 'b' is [1], and must be [4]",
    ),
    "pads of a pooling": (
        *(IMAGE, "MaxPool<kernel_shape = [2, 2], pads = [2, 2, 2, 2]>(x)", {}),
        "its pads [2, 2, 2, 2] are not smaller than its kernel of [2, 2]",
    ),
    "no image": (
        *(MATRIX, "GlobalAveragePool(x)", {}),
        "its input 'x' has 2 dimensions, and needs at least 3",
    ),
    "slope": (
        *(IMAGE, "PRelu(x, s)", {"s": floats(4)}),
        "its slope 's' has the shape [4], which does not broadcast to that of 'x', [1, 4, 5, 5]",
    ),
    "slope and open sizes": (
        *("(float[n, 4, h, 5] x) => (float[a, b, c, d] y)", "PRelu(x, s)", {"s": floats(4)}),
        "its slope 's' has the shape [4], which does not broadcast to that of 'x', [?, 4, ?, 5]",
    ),
    "zero points": (
        *(MATRIX.replace("=> (float", "=> (uint8"), "QuantizeLinear(x, s, z)"),
        {"s": np.ones(3, "float32"), "z": np.array(1, "uint8")},
        "its scale 's' has the shape [3], and its zero point 'z' has []",
    ),
    "boxes": (
        "(float[1, 5, 3] x, float[1, 1, 5] s) => (int64[a, b] y)",
        *("NonMaxSuppression(x, s, m)", {"m": ints(2)}),
        "the shape of 'x' is [1, 5, 3], and must be [?, ?, 4]",
    ),
    "images": (
        *(IMAGE, "RoiAlign(x, r, b)", {"r": floats(2, 4), "b": ints(0, 5)}),
        "its index 'b' of images has elements from 0 to 5, and 'x' has 1 images",
    ),
    "bound": (
        *(MATRIX, "Clip(x, a)", {"a": floats(3)}),
        "its min 'a' has the shape [3]; supported is one number",
    ),
    "ratio": (
        *(MATRIX, "Dropout(x, r)", {"r": np.float32(2)}),
        "its ratio is 2.0; supported are numbers from 0 to below 1",
    ),
    "steps": (
        *(STEPS, "LSTM<hidden_size = 4>(x, w, r, , s)", {**LSTM, "s": np.array([9, 1], "int32")}),
        "its sequence_lens 's' are [9, 1], and 'x' has 5 steps",
    ),
    "name": (
        *(SAMPLED, 'GridSample<padding_mode = "foo">(x, g)', {"g": floats(1, 2, 2, 2)}),
        "its padding_mode is 'foo'; supported are zeros, border, reflection",
    ),
    "type of an attribute": (
        *(MATRIX, "LeakyRelu<alpha = 1>(x)", {}),
        "its attribute alpha is of type INT, and must be FLOAT",
    ),
    "condition": (
        *(MATRIX, "If(c) <then_branch = t () => (float[2, 3] p) { p = Relu(x) },"),
        {"c": np.float32(1)},
        "it is not valid: cond typestr: B, has unsupported type: tensor(float)",
    ),
}
"""What the values of constants and some sizes say: the sentence, too."""
OTHER_BRANCH = " else_branch = f () => (float[2, 3] q) { q = Neg(x) }>"


def graph_of(signature, node):
    results = re.findall(r"(\w+)[,)]", signature.partition("=>")[2].replace("]", ""))
    names = ", ".join(name for name in results if name in "yzi")
    body = node + OTHER_BRANCH if node.startswith("If") else node
    return f"{signature} {{ [bad] {names} = {body} }}"


def refusal_of(model):
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model)
    return str(caught.value)


@pytest.mark.parametrize("name", BY_INFERENCE)
def test_a_node_that_onnx_gives_no_type_is_refused(name):
    signature, node, constants = BY_INFERENCE[name]
    model = parsed(graph_of(signature, node), 18, **constants)
    said = refusal_of(model)
    op = re.match(r"\w+", node)[0]
    assert said.startswith(f"ONNX node 'bad' ({op}): ")
    assert "\n" not in said
    assert is_refused_by_runtime(model)


def test_the_refusal_says_why_and_what_the_node_reads():
    text = "(float[2, 3] x, float[4, 4] w) => (float[a, b] y) { [bad] y = MatMul(x, w) }"
    assert refusal_of(parsed(text, 18)) == (
        "ONNX node 'bad' (MatMul): it is not valid: Incompatible dimensions for matrix "
        "multiplication; it reads 'x' of float32[2, 3], 'w' of float32[4, 4]"
    )


@pytest.mark.parametrize("name", BY_VALUES)
def test_a_node_whose_values_do_not_fit_is_refused(name):
    signature, node, constants, sentence = BY_VALUES[name]
    model = parsed(graph_of(signature, node), 18, **constants)
    said = refusal_of(model)
    assert said.startswith("ONNX node 'bad' (")
    assert sentence in said
    assert is_refused_by_runtime(model)


def test_a_node_in_a_branch_is_refused_too():
    branch = (
        "(float[2, 3] x, bool c) => (float[a, b] y) {y = If(c) <"
        "then_branch = t () => (float[p, q] p) {[inner] p = NODE}, "
        "else_branch = f () => (float[p, q] q) {q = Neg(x)}> }"
    )
    said = refusal_of(parsed(branch.replace("NODE", "MatMul(x, x)"), 18))
    assert said.startswith("ONNX node 'inner' (MatMul): it is not valid: Incompatible dimensions")
    said = refusal_of(parsed(branch.replace("NODE", "Gather(x, i)"), 18, i=ints(7)))
    assert said.startswith("ONNX node 'inner' (Gather): its index 'i' has the element 7")


def test_a_branch_that_the_sizes_do_not_suit_is_refused_as_one():
    branch = "{0} = {1} () => (float[a, b] {2}) {{[{0}] {2} = MatMul(x, {3})}}"
    branches = (branch.format(*each) for each in BRANCHES)
    text = f"(float[n, k] x, bool c) => (float[a, b] y) {{y = If(c) <{', '.join(branches)}> }}"
    model = parsed(text, 18, w3=floats(3, 2), w4=floats(4, 2))
    for size, branch in ((3, "else_branch"), (4, "then_branch")):
        with pytest.raises(ValueError) as caught:
            backend.from_onnx(model, shape_dict={"x": (2, size)})
        said = str(caught.value)
        assert said.startswith(f"ONNX node '{branch}' (MatMul): it is not valid: Incompatible dim")
        assert f"'x' of float32[2, {size}]" in said
        assert f"; it is in the {branch} of 'y' (If), and each branch must suit the sizes" in said
    gather = f"(float[n, 3] x, bool c) => (float[a, b] y) {{y = If(c) <{GATHERS}> }}"
    said = refusal_of(parsed(gather, 18, i=ints(7)))
    assert said.startswith("ONNX node 'q' (Gather): its index 'i' has the element 7, outside of")
    assert "; it is in the else_branch of 'y' (If), and each branch must suit the sizes" in said


BRANCHES = (("then_branch", "t", "p", "w3"), ("else_branch", "f", "q", "w4"))
GATHERS = (
    "then_branch = t () => (float[a, b] p) { p = Neg(x) }, "
    "else_branch = f () => (float[a, b] q) { q = Gather<axis = 1>(x, i) }"
)


def test_operators_of_onnx_runtime_are_asked_too():
    text = (
        "(uint8[1, 2, 4, 4] x) => (uint8[a, b, c, d] y) { [bad] y = com.microsoft."
        "QLinearAveragePool<kernel_shape = [2, 2], pads = [2, 2, 2, 2]>(x, s, z, s, z) }"
    )
    model = parsed(text, 18, s=np.float32(0.1), z=np.uint8(3))
    said = "ONNX node 'bad' (com.microsoft.QLinearAveragePool): its pads [2, 2, 2, 2] are not sm"
    assert said in refusal_of(model)
    assert is_refused_by_runtime(model)


def test_a_version_that_the_installed_onnx_does_not_know_is_refused():
    for opset in (0, 999):
        said = refusal_of(parsed("(float[2] x) => (float[2] y) { y = Relu(x) }", opset))
        assert said.startswith(f"the model has version {opset} of ONNX's operators; the installed")


def test_a_range_between_vectors_of_one_element_is_read():
    text = "(int64[3] x) => (int64[3] y) { r = Range(a, b, c) y = Add(x, r) }"
    model = parsed(text, 18, a=ints(0), b=ints(3), c=ints(1))
    assert run_on_host(backend.from_onnx(model), "main", [ints(5, 5, 5)])[0].tolist() == [5, 6, 7]


@pytest.mark.thorough
def test_no_node_test_of_onnx_is_called_invalid():
    from onnx.backend.test.case.node import collect_testcases

    from backend.engine.backend.importers.onnx.folding import fold
    from backend.engine.backend.importers.onnx.types import outline
    from backend.engine.backend.importers.onnx.validity import require_valid

    models = [case.model for case in collect_testcases(None) if case.model is not None]
    assert len(models) > 1000
    for model in models:
        if not model.functions:
            types = outline(model)
            fold(types)
            require_valid(model, types)


# ---- Older versions -----------------------------------------------------------------------------


def equals_runtime(model, *arrays):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), None, ["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    wanted = session.run(None, dict(zip(names, arrays, strict=True)))
    found = run_on_host(backend.from_onnx(model), "main", arrays)
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize(
    "attributes",
    [
        "axes = [2], starts = [1], ends = [3]",
        "axes = [0, -1], starts = [-2, 1], ends = [2147483647, -1]",
        "starts = [1, 1], ends = [1000, -1]",
    ],
)
def test_slices_with_attributes(opset, attributes):
    node = f"{{y = Slice<{attributes}>(x) }}"
    equals_runtime(
        parsed(f"(float[3, 4, 5] x) => (float[a, b, c] y) {node}", opset), floats(3, 4, 5)
    )
    equals_runtime(
        parsed(f"(float[n, m, 5] x) => (float[a, b, c] y) {node}", opset), floats(3, 4, 5)
    )


@pytest.mark.parametrize(
    ("opset", "node"),
    [(9, "TopK<axis = 1, k = 2>(x)"), (10, "TopK<axis = 1>(x, k)"), (11, "TopK<axis = 1>(x, k)")],
)
def test_the_largest_elements(opset, node):
    text = f"(float[3, 4] x) => (float[3, 2] y, int64[3, 2] i) {{y, i = {node} }}"
    equals_runtime(parsed(text, opset, **({"k": ints(2)} if opset > 9 else {})), floats(3, 4))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_before_version_13_softmax_is_of_all_axes_from_one_on(op, axis):
    text = f"(float[3, 4, 5] x) => (float[3, 4, 5] y) {{y = {op}<axis = {axis}>(x) }}"
    equals_runtime(parsed(text, 11), floats(3, 4, 5))
    # It has another value from 13 on, unless the axis is the last one.
    assert axis == 2 or not np.allclose(*(computed(text, opset) for opset in (11, 13)))


def computed(text, opset):
    return run_on_host(backend.from_onnx(parsed(text, opset)), "main", [floats(3, 4, 5)])[0]


@pytest.mark.parametrize("axis", [-2, -1, 0])
@pytest.mark.parametrize("kind", ["int64", "float"])
def test_one_hot_with_a_depth_of_one_element(kind, axis):
    text = f"({kind}[6] x) => (float[a, b] y) {{y = OneHot<axis = {axis}>(x, d, v) }}"
    constants = {"d": ints(5).astype("float32" if kind == "float" else kind)}
    model = parsed(text, 11, v=np.array([1, 2], "float32"), **constants)
    # Negative indices count from the end; those outside are of no position.
    equals_runtime(model, np.array([0, -1, 4, 7, -6, -5], constants["d"].dtype))


def test_one_hot_of_no_depth_is_refused():
    text = "(int64[2] x) => (float[a, b] y) { [hot] y = OneHot(x, d, v) }"
    model = parsed(text, 11, d=ints(0), v=np.array([1, 2], "float32"))
    said = "ONNX node 'hot' (OneHot): its values have the shape [2], and its depth is [0]"
    assert said in refusal_of(model)
    assert is_refused_by_runtime(model)
