# SPDX-License-Identifier: Apache-2.0
"""How TFLite files say things: codes of operators, names, shapes, and constants in few bits."""

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.models.reading import read_model
from backend.engine.backend.shared.problem import Problem
from support import compile_for, host_library, run_command
from tflite_file import File, litert, tflite

ADD, MUL = tflite.BuiltinOperator.ADD, tflite.BuiltinOperator.MUL


def run(content, arguments, **options):
    """Return what the model computes on the host, as a list."""
    library = host_library(backend.from_tflite(content, **options))
    found = relax.VirtualMachine(library, tvm.cpu())["main"](*map(tvm.runtime.tensor, arguments))
    return [found.numpy()] if hasattr(found, "numpy") else [item.numpy() for item in found]


def image(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


class Codes(File):
    """A file with the code of its operator in the fields that are given."""

    def __init__(self, **fields):
        super().__init__()
        self.fields = fields

    def code(self, code):
        return self.table("OperatorCode", **self.fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"BuiltinCode": MUL},
        {"DeprecatedBuiltinCode": MUL},
        {"DeprecatedBuiltinCode": MUL, "BuiltinCode": MUL},
        {"DeprecatedBuiltinCode": ADD, "BuiltinCode": MUL},
    ],
    ids=str,
)
def test_the_greater_code_of_an_operator_counts(fields):
    file, x = Codes(**fields), image(2, 3)
    numbers = [file.tensor(x.shape, "float32") for _ in range(3)]
    file.operator("MUL", numbers[:2], numbers[2:], "MulOptions")
    content = file.finish(numbers[:2], numbers[2:])
    (found,) = run(content, [x, x])
    np.testing.assert_allclose(found, x * x, rtol=1e-6)
    np.testing.assert_allclose(litert(content, [x, x])[0], x * x, rtol=1e-6)


# ---- Names and shapes ---------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("a", "a", "a", "b"), ("", "", "", ""), ("a", "b", "b", "c")])
def test_tensors_of_one_name_are_told_apart(names):
    file, values = File(), [image(2, 3), image(2, 3) + 2]
    numbers = [file.tensor((2, 3), "float32", name=name) for name in names]
    file.operator("MUL", numbers[:2], numbers[2:3], "MulOptions")
    file.operator("ADD", [numbers[2], numbers[0]], numbers[3:], "AddOptions")
    content = file.finish(numbers[:2], numbers[3:])
    (found,), (expected,) = run(content, values), litert(content, values)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def convolution(signature=None):
    """Return a convolution of images of 8 x 8, with a row of its result for each column."""
    file = File()
    extra = {} if signature is None else {"ShapeSignature": file.numbers(signature)}
    data = file.tensor((1, 8, 8, 2), "float32", name="image", **extra)
    weight = file.tensor((4, 3, 3, 2), "float32", data=image(4, 3, 3, 2))
    bias = file.tensor((4,), "float32", data=image(4))
    seen = file.tensor((1, 4, 4, 4), "float32", **extra)
    options = {"Padding": tflite.Padding.SAME, "StrideH": 2, "StrideW": 2}
    options |= {"DilationHFactor": 1, "DilationWFactor": 1}
    file.operator("CONV_2D", [data, weight, bias], [seen], "Conv2DOptions", **options)
    shape, part, count = (file.tensor(size, "int32") for size in ((4,), (), ()))
    file.operator("SHAPE", [seen], [shape], "ShapeOptions", OutType=tflite.TensorType.INT32)
    numbers = [file.tensor((1,), "int32", data=[value]) for value in (1, 2, 1)]
    masks = {"ShrinkAxisMask": 1}
    file.operator("STRIDED_SLICE", [shape, *numbers], [part], "StridedSliceOptions", **masks)
    four = file.tensor((), "int32", data=4)
    file.operator("MUL", [part, four], [count], "MulOptions")
    rest, size = file.tensor((), "int32", data=-1), file.tensor((2,), "int32")
    file.operator("PACK", [count, rest], [size], "PackOptions", ValuesCount=2)
    result = file.tensor((16, 4), "float32")
    file.operator("RESHAPE", [seen, size], [result])
    return file.finish([data], [result])


@pytest.mark.parametrize("rows", [8, 11, 14])
def test_computed_shapes_and_paddings_follow_the_shape_of_an_input(rows):
    content, x = convolution([1, -1, 8, 2]), image(1, rows, 8, 2)
    (found,) = run(content, [x], shape_dict={"image": x.shape})
    np.testing.assert_allclose(found, litert(content, [x])[0], rtol=1e-4, atol=1e-5)


def test_the_commands_change_the_shape_of_an_input(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(convolution())
    shapes = {"image": (1, 11, 8, 2)}
    mod = read_model(path, shapes).imported(shapes)
    assert [int(size) for size in mod["main"].ret_ty.shape.values] == [24, 4]
    with pytest.raises(Problem, match="there is no input 'images'; the inputs are image"):
        read_model(path, {"images": (1,)}).imported({"images": (1,)})


@pytest.mark.parametrize(
    "options, text",
    [
        ({"shape_dict": {"image": [1, 8, 8]}}, r"shape \[1, 8, 8, 2\], and \[1, 8, 8\] is given"),
        ({"shape_dict": {"images": [1, 8, 8, 2]}}, "there is no input 'images'.*are image$"),
        ({"dtype_dict": {"image": "float16"}}, "'image' is float32, and dtype_dict has float16"),
        (
            {"shape_dict": {"image": [1, -1, 8, 2]}},
            r"'image' in shape_dict is \[1, -1, 8, 2\]; supp",
        ),
    ],
)
def test_what_is_said_of_inputs_suits_the_file(options, text):
    with pytest.raises(ValueError, match=text):
        backend.from_tflite(convolution(), **options)


# ---- Constants ----------------------------------------------------------------------------------


def layer(add_weight, kind="FULLY_CONNECTED", data="float32"):
    """Return a file whose layer has a weight that is added so, and its argument."""
    file = File()
    scale = {} if data == "float32" else {"scale": 0.05}
    shape = (2, 8) if kind == "FULLY_CONNECTED" else (1, 4, 4, 8)
    x = file.tensor(shape, data, **scale)
    weight = add_weight(file)
    size = (2, 6) if kind == "FULLY_CONNECTED" else (1, 4, 4, 6)
    result = file.tensor(size, data, **({} if data == "float32" else {"scale": 0.2}))
    if kind == "FULLY_CONNECTED":
        file.operator(kind, [x, weight, -1], [result], "FullyConnectedOptions")
    else:
        bias_type = "float32" if data == "float32" else "int32"
        bias = file.tensor((6,), bias_type, data=np.zeros(6))
        options = {"Padding": tflite.Padding.SAME, "StrideH": 1, "StrideW": 1}
        options |= {"DilationHFactor": 1, "DilationWFactor": 1}
        file.operator(kind, [x, weight, bias], [result], "Conv2DOptions", **options)
    values = image(*shape)
    if data != "float32":
        values = np.clip(values * 30, -128, 127).astype(data)
    return file.finish([x], [result]), values


WEIGHT = image(6, 8) * (np.random.default_rng(1).random((6, 8)) < 0.4)
BLOCKS = np.kron([[1, 0], [0, 0], [1, 1]], np.ones((2, 4))).astype("float32") * image(6, 8)
SPARSE = {
    "rows": (WEIGHT, [0, 1], [True, False], {}),
    "columns": (WEIGHT, [1, 0], [True, False], {}),
    "both": (WEIGHT, [0, 1], [False, False], {}),
    "blocks of columns": (BLOCKS, [0, 1, 2], [True, False, True], {1: 4}),
    "blocks": (BLOCKS, [0, 1, 2, 3], [True, False, True, True], {0: 2, 1: 4}),
}


def densified(file, name, dtype):
    array, order, is_dense, blocks = SPARSE[name]
    given = file.sparse(array.astype(dtype), dtype, order, is_dense, blocks)
    dense = file.tensor(array.shape, dtype)
    file.operator("DENSIFY", [given], [dense])
    if dtype == "float32":
        return dense
    return dequantized(file, dense, array.shape)


def dequantized(file, half, shape):
    single = file.tensor(shape, "float32")
    file.operator("DEQUANTIZE", [half], [single])
    return single


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_weights_are_dense_again(name, dtype):
    content, x = layer(lambda file: densified(file, name, dtype))
    (found,) = run(content, [x])
    array = SPARSE[name][0].astype(dtype).astype("float32")
    np.testing.assert_allclose(found, x @ array.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found, litert(content, [x])[0], rtol=1e-4, atol=1e-4)


def test_sparse_integers_keep_their_scales():
    array, order, is_dense, blocks = SPARSE["blocks of columns"]
    steps, scales = np.rint(array * 40).clip(-127, 127), np.linspace(0.02, 0.05, 6)

    def add(file):
        given = file.sparse(steps, "int8", order, is_dense, blocks, scale=scales)
        dense = file.tensor(array.shape, "int8", scales)
        file.operator("DENSIFY", [given], [dense])
        return dense

    content, x = layer(add, data="int8")
    real = (x * 0.05) @ (steps * scales[:, None]).T
    expected = np.rint(real / 0.2).clip(-128, 127)
    assert len(np.unique(expected)) > 5
    assert np.abs(run(content, [x])[0] - expected).max() <= 1


@pytest.mark.parametrize("kind, shape", [("FULLY_CONNECTED", (6, 8)), ("CONV_2D", (6, 3, 3, 8))])
def test_weights_of_float16_are_cast(kind, shape):
    def add(file):
        return dequantized(file, file.tensor(shape, "float16", data=image(*shape)), shape)

    content, x = layer(add, kind)
    mod = backend.from_tflite(content)
    assert "float16" not in mod.script()
    np.testing.assert_allclose(run(content, [x])[0], litert(content, [x])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind, shape", [("FULLY_CONNECTED", (6, 8)), ("CONV_2D", (6, 3, 3, 8))])
@pytest.mark.parametrize("scale", [0.1, np.linspace(0.02, 0.2, 6)], ids=["one", "each"])
def test_weights_of_4_bits_are_integers_of_8_bits(kind, shape, scale):
    weight = np.random.default_rng(0).integers(-8, 8, shape)

    def add(file):
        return file.tensor(shape, "int4", scale, data=weight)

    content, x = layer(add, kind, "int8")
    assert "int4" not in backend.from_tflite(content).script()
    (found,), (expected,) = run(content, [x]), litert(content, [x], reference=False)
    assert len(np.unique(expected)) > 10
    assert np.abs(found.astype(int) - expected).max() <= 1


# ---- Operators of other kinds -------------------------------------------------------------------


def binary(file, operator):
    numbers = [file.tensor((3,), "float32") for _ in range(3)]
    file.operator(operator, numbers[:2], numbers[2:], f"{operator.title()}Options")
    return file.branch(numbers[:2], numbers[2:])


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_is_taken(condition):
    file = File()
    branches = {
        "ThenSubgraphIndex": binary(file, "ADD"),
        "ElseSubgraphIndex": binary(file, "MUL"),
    }
    numbers = [file.tensor((), "bool"), *(file.tensor((3,), "float32") for _ in range(3))]
    file.operator("IF", numbers[:3], numbers[3:], "IfOptions", **branches)
    content = file.finish(numbers[:3], numbers[3:])
    arguments = [np.array(condition), image(3), image(3) + 1]
    np.testing.assert_allclose(run(content, arguments)[0], litert(content, arguments)[0])


def test_a_loop_runs_until_its_condition_fails():
    file = File()

    def state():
        return [file.tensor((), "int32"), file.tensor((3,), "float32")]

    given, goes_on = state(), file.tensor((), "bool")
    file.operator("LESS", [given[0], file.tensor((), "int32", data=5)], [goes_on])
    condition = file.branch(given, [goes_on])
    given, after = state(), state()
    file.operator("ADD", [given[0], file.tensor((), "int32", data=1)], after[:1], "AddOptions")
    file.operator("ADD", [given[1], given[1]], after[1:], "AddOptions")
    body = file.branch(given, after)
    given, after = state(), state()
    options = {"CondSubgraphIndex": condition, "BodySubgraphIndex": body}
    file.operator("WHILE", given, after, "WhileOptions", **options)
    content = file.finish(given, after)
    arguments = [np.array(2, "int32"), image(3)]
    for found, expected in zip(run(content, arguments), litert(content, arguments), strict=True):
        np.testing.assert_allclose(found, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("is_regular", [False, True])
@pytest.mark.parametrize("threshold", [0.3, 0.9])
def test_boxes_are_detected(is_regular, threshold):
    from flatbuffers import flexbuffers

    options = {"max_detections": 6, "max_classes_per_detection": 1, "num_classes": 3}
    options |= {"detections_per_class": 100, "use_regular_nms": is_regular}
    options |= {"nms_score_threshold": threshold, "nms_iou_threshold": 0.5}
    options |= {"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}
    written = flexbuffers.Builder()
    with written.Map():
        for name, value in options.items():
            written.Key(name)
            written.Add(value)
    random, file = np.random.default_rng(0), File()
    anchors = np.hstack([random.uniform(0.2, 0.8, (8, 2)), random.uniform(0.1, 0.4, (8, 2))])
    inputs = [file.tensor((1, 8, 4), "float32") for _ in range(2)]
    constant = file.tensor((8, 4), "float32", data=anchors)
    results = [file.tensor(shape, "float32") for shape in ((1, 6, 4), (1, 6), (1, 6), (1,))]
    name = "TFLite_Detection_PostProcess"
    file.operator(name, [*inputs, constant], results, custom=written.Finish())
    content = file.finish(inputs, results)
    arguments = [image(1, 8, 4), random.uniform(0, 1, (1, 8, 4)).astype("float32")]
    *found, count = run(content, arguments)
    *expected, right = litert(content, arguments)
    assert count[0] == right[0] > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[:, : int(count[0])], other[:, : int(count[0])], rtol=1e-4)


@pytest.mark.parametrize(
    "operator, operands, kind",
    [
        ("SELECT_V2", [np.arange(6).reshape(2, 3) % 2 == 0, (2, 3), (3,)], ""),
        ("SELECT", [np.array([True, False]), (2, 3), (2, 3)], ""),
        ("BROADCAST_TO", [(3,), np.array([2, 3], "int32")], ""),
        ("GATHER_ND", [(4, 3), np.array([[2], [0]], "int32")], ""),
        ("EXPAND_DIMS", [(4, 3), np.array(-1, "int32")], "ExpandDimsOptions"),
    ],
)
def test_elements_of_integers_are_moved(operator, operands, kind):
    def write(shape):
        file, numbers, inputs = File(), [], []
        for operand in operands:
            is_input = isinstance(operand, tuple)
            if is_input:
                numbers.append(file.tensor(operand, "int8", 0.1, 3))
                inputs.append(numbers[-1])
            else:
                dtype = str(operand.dtype)
                numbers.append(file.tensor(operand.shape, dtype, data=operand))
        result = file.tensor(shape, "int8", 0.1, 3)
        file.operator(operator, numbers, [result], kind)
        return file.finish(inputs, [result])

    random = np.random.default_rng(0)
    shapes = [item for item in operands if isinstance(item, tuple)]
    arguments = [random.integers(-128, 128, shape).astype("int8") for shape in shapes]
    (expected,) = litert(write(()), arguments, reference=False)
    np.testing.assert_array_equal(run(write(expected.shape), arguments)[0], expected)


# ---- What is refused ----------------------------------------------------------------------------


def one(operator, inputs, results, kind="", constants=(), **options):
    """Return a file of an operator; inputs and results are shapes and types."""
    file = File()
    given = [file.tensor(*item) for item in inputs]
    others = [file.tensor(np.shape(item), "int32", data=item) for item in constants]
    made = [file.tensor(*item) for item in results]
    file.operator(operator, [*given, *others], made, kind, **options)
    return file.finish(given, made)


FLOATS = ((2, 3), "float32")
TANH = tflite.ActivationFunctionType.TANH
IMAGE = ((1, 4, 4, 2), "int8")
POOL = {"StrideH": 1, "StrideW": 1, "FilterHeight": 1, "FilterWidth": 1}


@pytest.mark.parametrize(
    "content, text",
    [
        (
            one("ADD", [FLOATS, FLOATS], [((2, 4), "float32")], "AddOptions"),
            r"ADD \(operator 0, tensor 't2'\).*'t2' as float32\[2, 4\].*float32\[2, 3\]",
        ),
        (
            one("ADD", [FLOATS, FLOATS], [((2, 3), "int32")], "AddOptions"),
            r"ADD \(operator 0, tensor 't2'\).*declares.* int32\[2, 3\].*float32\[2, 3\]",
        ),
        (one("MagicTo", [FLOATS], [FLOATS]), r"custom operator 'MagicTo' \(operator 0.*'t1'"),
        (
            one("UNIQUE", [FLOATS], [FLOATS, FLOATS]),
            r"UNIQUE \(operator 0, tensor 't1'\) is not supported",
        ),
        (
            one("ATAN2", [((2, 3), "int32")] * 2, [((2, 3), "int32")]),
            r"ATAN2 \(operator 0, tensor 't2'\).*int32 and int32; supported are floating-point",
        ),
        (
            one("POW", [((2, 3), "int32")] * 2, [((2, 3), "int32")]),
            r"POW \(operator 0, tensor 't2'\).*int32 and int32; supported are floating-point",
        ),
        (
            one("AVERAGE_POOL_2D", [IMAGE], [IMAGE], "Pool2DOptions", **POOL),
            r"AVERAGE_POOL_2D \(operator 0, tensor 't1'\).*are int8; supported are floating-point",
        ),
        (one("HASHTABLE", [], [FLOATS]), r"HASHTABLE \(operator 0, tensor 't0'\)"),
        (one("STABLEHLO_ABS", [FLOATS], [FLOATS]), r"STABLEHLO_ABS \(.* with LiteRT, or differs"),
        (one("READ_VARIABLE", [FLOATS], [FLOATS]), r"READ_VARIABLE .* is not the result of a VAR_"),
        (one("CALL_ONCE", [], []), r"CALL_ONCE \(operator 0\).* cannot target the main subgraph"),
        (
            one("MEAN", [FLOATS, ((1,), "int32")], [FLOATS], "ReducerOptions"),
            r"MEAN \(operator 0, tensor 't2'\).*'t1' must be a constant",
        ),
        (
            one("MEAN", [FLOATS], [FLOATS], "ReducerOptions", [[2]]),
            r"MEAN \(operator 0, tensor 't2'\).*the axis 2 is not one",
        ),
        (
            one("GATHER", [FLOATS], [FLOATS], "GatherOptions", [[0, 2]]),
            r"GATHER \(operator 0, tensor 't2'\).*axis of size 2",
        ),
        (
            one("ADD", [FLOATS] * 2, [FLOATS], "AddOptions", FusedActivationFunction=TANH),
            r"ADD \(operator 0, tensor 't2'\).*activation TANH.*supported are NONE, RELU",
        ),
        (
            one("RELU", [FLOATS, FLOATS], [FLOATS]),
            r"RELU \(operator 0, tensor 't2'\): its input 1 is not read",
        ),
        (
            one("ADD", [FLOATS] * 2, [FLOATS] * 2, "AddOptions"),
            r"ADD \(operator 0, tensor 't2'\) cannot be read: .*AssertionError",
        ),
        (
            one("BATCH_MATMUL", [FLOATS, FLOATS], [FLOATS], "BatchMatMulOptions"),
            r"BATCH_MATMUL \(operator 0, tensor 't2'\) cannot be read",
        ),
        (
            one(
                "FULLY_CONNECTED",
                [FLOATS, FLOATS],
                [((2, 2), "float32")],
                "FullyConnectedOptions",
                WeightsFormat=1,
            ),
            r"FULLY_CONNECTED \(operator 0, tensor 't2'\).*weights are shuffled",
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_refusal_names_operator_number_and_tensor(content, text):
    with pytest.raises(ValueError, match=text) as raised:
        backend.from_tflite(content)
    assert "Traceback" not in str(raised.value) and "\n" not in str(raised.value)


# ---- Variables ----------------------------------------------------------------------------------


class Keeping(File):
    """A file with variables."""

    def __init__(self):
        super().__init__()
        self.firsts = []

    def handle(self, name):
        """Name a variable."""
        number = self.tensor((1,), "resource")
        text = self.builder.CreateString(name)
        self.operator("VAR_HANDLE", [], [number], "VarHandleOptions", SharedName=text)
        return number

    def begin(self, **values):
        """Give variables initial values; what was added before is lost."""
        for name, (value, dtype, *scales) in values.items():
            value = self.tensor(value.shape, dtype, *scales, data=value)
            self.operator("ASSIGN_VARIABLE", [self.handle(name), value], [])
        graph = self.branch([], [])
        self.operator("CALL_ONCE", [], [], "CallOnceOptions", InitSubgraphIndex=graph)


def calls(content, inputs):
    """Return what a file computes of inputs in turn, in a session, and by LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    machine = relax.VirtualMachine(compile_for(backend.from_tflite(content)), tvm.cpu())
    with backend.Session(machine) as session:
        found = [session["main"](tvm.runtime.tensor(x)).numpy() for x in inputs]
    original = Interpreter(model_content=content, num_threads=1)
    original.allocate_tensors()
    (given,), (result,) = original.get_input_details(), original.get_output_details()
    wanted = []
    for x in inputs:
        original.set_tensor(given["index"], x)
        original.invoke()
        wanted.append(original.get_tensor(result["index"]).copy())
    return found, wanted


def test_variables_are_states(tmp_path):
    pytest.importorskip("ai_edge_litert", reason="pip install ai-edge-litert")
    file = Keeping()
    file.begin(
        total=(np.full((2, 3), 0.5), "float32"), last=(np.arange(6).reshape(2, 3), "float32")
    )
    x = file.tensor((2, 3), "float32", name="last")
    before, now, last, result = (file.tensor((2, 3), "float32") for _ in range(4))
    total = file.handle("total")
    file.operator("READ_VARIABLE", [total], [before])
    file.operator("ADD", [before, x], [now], "AddOptions")
    file.operator("ASSIGN_VARIABLE", [total, now], [])
    # What was assigned is read; the last input is that of the call before.
    again = file.tensor((2, 3), "float32")
    file.operator("READ_VARIABLE", [file.handle("total")], [again])
    kept = file.handle("last")
    file.operator("READ_VARIABLE", [kept], [last])
    file.operator("ASSIGN_VARIABLE", [kept, x], [])
    file.operator("SUB", [again, last], [result], "SubOptions")
    content = file.finish([x], [result])
    kept = backend.states(backend.from_tflite(content))
    assert [(state.name, state.result, state.initial[1].tolist()) for state in kept] == [
        ("total", 1, [0.5, 0.5, 0.5]),
        ("last", 2, [3, 4, 5]),
    ]
    # An input has that name.
    assert [state.parameter for state in kept] == ["total", "last_before"]
    found, wanted = calls(content, [image(2, 3) + number for number in range(3)])
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    assert np.abs(wanted[1] - wanted[0]).max() > 0.5
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    code, out, errors = run_command("run", path, "--verify")
    assert (code, "verified against" in out + errors) == (0, True), out + errors
    np.savez(tmp_path / "in.npz", last=image(2, 3), total=image(2, 3))
    code, out, errors = run_command("run", path, "--verify", "--inputs", tmp_path / "in.npz")
    assert code == 1 and "begins with its own 'total', and the inputs have another" in errors


def test_a_quantized_ring_is_a_state():
    """As in streaming models of voices: the last samples, and the new one behind them."""
    pytest.importorskip("ai_edge_litert", reason="pip install ai-edge-litert")
    file, scales = Keeping(), (0.5, -3)
    file.begin(ring=(np.full((1, 3, 4), -3), "int8", *scales))
    x, before, both, after = (file.tensor((1, rows, 4), "int8", *scales) for rows in (1, 3, 4, 3))
    ring = file.handle("ring")
    file.operator("READ_VARIABLE", [ring], [before])
    file.operator("CONCATENATION", [before, x], [both], "ConcatenationOptions", Axis=1)
    begin, size = (file.tensor((3,), "int32", data=data) for data in ([0, 1, 0], [1, 3, 4]))
    file.operator("SLICE", [both, begin, size], [after], "SliceOptions")
    file.operator("ASSIGN_VARIABLE", [ring, after], [])
    content = file.finish([x], [both])
    inputs = [np.full((1, 1, 4), number, "int8") for number in (5, 6, 7)]
    found, wanted = calls(content, inputs)
    np.testing.assert_array_equal(found, wanted)
    assert found[2][0, :, 0].tolist() == [-3, 5, 6, 7]


def test_variables_that_are_no_states_are_refused():
    def reading(start):
        file = Keeping()
        start(file)
        x, value, result = (file.tensor((2, 3), "float32") for _ in range(3))
        file.operator("READ_VARIABLE", [file.handle("kept")], [value])
        file.operator("ADD", [x, value], [result], "AddOptions")
        file.operator("ASSIGN_VARIABLE", [file.handle("kept"), result], [])
        return file.finish([x], [result])

    file = Keeping()
    value = file.tensor((2, 3), "float32")
    file.operator("READ_VARIABLE", [file.handle("kept")], [value])
    body = file.branch([], [value])
    choice, result = file.tensor((), "bool"), file.tensor((2, 3), "float32")
    file.operator(
        "IF", [choice], [result], "IfOptions", ThenSubgraphIndex=body, ElseSubgraphIndex=body
    )
    with pytest.raises(ValueError, match="uses a variable in a branch or a loop, which is not su"):
        backend.from_tflite(file.finish([choice], [result]))
    for start, sentence in (
        (lambda file: None, r"READ_VARIABLE .* nothing gives the variable 'kept' a value before"),
        (
            lambda file: file.begin(kept=(np.zeros((1, 3)), "float32")),
            "supported is one type for e",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            backend.from_tflite(reading(start))


def test_state_in_a_tensor_is_refused():
    file = File()
    x, state = file.tensor((2, 3), "float32"), file.tensor((2, 3), "float32", IsVariable=True)
    result = file.tensor((2, 3), "float32")
    file.operator("ADD", [x, state], [result], "AddOptions")
    with pytest.raises(ValueError, match=r"ADD \(operator 0, tensor 't2'\) keeps a variable"):
        backend.from_tflite(file.finish([x], [result]))


def test_sizes_that_the_file_leaves_open_are_not_compared():
    file = File()
    x = file.tensor((1, 3), "float32", ShapeSignature=file.numbers([-1, 3]))
    signature = file.numbers([-1, 3])
    result = file.tensor((7, 3), "float32", ShapeSignature=signature)
    file.operator("NEG", [x], [result], "NegOptions")
    mod = backend.from_tflite(file.finish([x], [result]))
    assert [int(size) for size in mod["main"].ret_ty.shape.values] == [1, 3]


def test_a_damaged_file_is_refused():
    content = one("ADD", [FLOATS, FLOATS], [FLOATS], "AddOptions")
    random, refused = np.random.default_rng(0), 0
    for place in random.integers(8, len(content), 60):
        damaged = bytearray(content)
        damaged[place : place + 4] = random.bytes(4)
        try:
            backend.from_tflite(bytes(damaged))
        except ValueError:
            refused += 1
    assert refused > 5
