# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN of ONNX, step by step, against ONNX Runtime or ONNX's reference."""

import numpy as np
import pytest

import backend
import support
from backend.engine.backend.verification.originals import original_of
from support import needs, needs_library, partition_for, run_on_host, skip_where_declined

pytestmark = needs_library("onnx")

thorough = pytest.mark.thorough

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 2, 5


def recurrent(
    op,
    directions=1,
    *,
    bias=True,
    h=False,
    c=False,
    lengths=None,
    peepholes=False,
    results=("y", "y_h", "y_c"),
    dtype="float32",
    opset=14,
    steps=STEPS,
    as_inputs=(),
    **attributes,
):
    """Make a model of one node; return it with its inputs."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)

    def real(*shape):
        return rng.standard_normal(shape).astype(dtype)

    rows, turned = GATES[op] * HIDDEN, attributes.get("layout", 0)
    state = (BATCH, directions, HIDDEN) if turned else (directions, BATCH, HIDDEN)
    tensors = {
        "x": real(BATCH, STEPS, INPUTS) if turned else real(STEPS, BATCH, INPUTS),
        "w": real(directions, rows, INPUTS),
        "r": real(directions, rows, HIDDEN),
        "b": real(directions, 2 * rows) if bias else None,
        "lengths": None if lengths is None else np.array(lengths, "int32"),
        "h": real(*state) if h else None,
    }
    if op == "LSTM":
        tensors["c"] = real(*state) if c else None
        tensors["p"] = real(directions, 3 * HIDDEN) if peepholes else None
    given = {name: array for name, array in tensors.items() if array is not None}
    read = {name: given[name] for name in given if name in ("x", "h", "c", *as_inputs)}
    results = results[: 3 if op == "LSTM" else 2]
    if directions == 2:
        attributes.setdefault("direction", "bidirectional")
    names = [name if name in given else "" for name in tensors]
    node = helper.make_node(op, names, results, "cell", hidden_size=HIDDEN, **attributes)

    def value(name, array):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = [*array.shape]
        if name == "x":
            shape[1 if turned else 0] = steps
        return helper.make_tensor_value_info(name, kind, shape)

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node],
        "g",
        [value(name, array) for name, array in read.items()],
        [
            helper.make_tensor_value_info(name, kind, ["a", "b", "c", "d"][: 4 - (name != "y")])
            for name in results
            if name
        ],
        [numpy_helper.from_array(given[name], name) for name in given if name not in read],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), list(read.values())


def by_onnx(model, arrays):
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in model.graph.input]
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


def by_runtime(model, arrays):
    pytest.importorskip("onnxruntime")
    return original_of(model).run(arrays)


def check(model, arrays, reference=by_runtime, tolerance=1e-5):
    expected = reference(model, arrays)
    found = run_on_host(backend.from_onnx(model), "main", arrays)
    for mine, right in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)


OF_EACH = {
    "plain": {},
    "reverse": {"direction": "reverse", "clip": 0.3},
    "both": {"directions": 2, "h": True, "c": True, "lengths": (4, 2, 1)},
    "lengths": {
        **{"directions": 2, "h": True, "c": True},
        **{"lengths": (0, 3, 2), "as_inputs": ("lengths",)},
    },
    "inputs": {"directions": 2, "h": True, "c": True, "as_inputs": ("w", "r", "b"), "opset": 7},
    "short": {"bias": False, "lengths": (2, 0, 3), "opset": 22},
}
QUICK = ("plain", "both", "lengths")
OF_ONE = [
    ("LSTM", {"directions": 2, "peepholes": True, "h": True, "c": True, "clip": 0.5}),
    ("LSTM", {"input_forget": 1, "c": True, "peepholes": True}),
    ("GRU", {"directions": 2, "linear_before_reset": 1, "h": True, "clip": 0.4}),
    ("GRU", {"linear_before_reset": 1, "lengths": (2, 4, 1)}),
    ("GRU", {"linear_before_reset": 1, "bias": False}),
    ("LSTM", {"results": ("", "", "y_c")}),
    ("LSTM", {"results": ("", "y_h", "")}),
    ("LSTM", {"results": ("y",)}),
]


@pytest.mark.parametrize(
    ("op", "options"),
    [
        *(
            pytest.param(op, options, id=f"{op}-{name}", marks=() if name in QUICK else thorough)
            for op in GATES
            for name, options in OF_EACH.items()
        ),
        *(pytest.param(*item, marks=thorough) for item in OF_ONE),
    ],
)
def test_it_equals_onnx_runtime(op, options):
    check(*recurrent(op, **options))


@thorough
@pytest.mark.parametrize(
    ("names", "alpha", "beta"),
    [
        (("Affine",), [2.0], [0.3]),
        (("Elu",), [0.5], []),
        (("HardSigmoid",), [], []),
        (("LeakyRelu",), [], []),
        (("Relu",), [], []),
        (("ScaledTanh",), [0.7], [1.3]),
        (("Softplus",), [], []),
        (("Softsign",), [], []),
        (("ThresholdedRelu",), [0.2], []),
        # Each takes the values of its own parameters.
        (("HardSigmoid", "Tanh", "ScaledTanh"), [0.3, 0.8], [0.4, 0.9]),
    ],
)
def test_its_activations(names, alpha, beta):
    given = {"activation_alpha": alpha, "activation_beta": beta}
    given = {key: values for key, values in given.items() if values}
    check(*recurrent("RNN" if len(names) == 1 else "LSTM", activations=names, **given))


@thorough
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    "options", [{"layout": 1}, {"dtype": "float16", "opset": 22}], ids=["batch_first", "float16"]
)
def test_it_equals_the_reference_of_onnx(op, options):
    # ONNX Runtime has neither.
    check(*recurrent(op, h=True, **options), by_onnx, tolerance=5e-3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"activations": ["Gelu"]}, "its activation 'Gelu' is not known; supported are Affine, "),
        ({"activations": ["Affine"]}, "activation_alpha of its activation 'Affine' is missing"),
        ({"activations": ["Tanh", "Relu"]}, "it names 2 activations; supported are 1 for each"),
        ({"direction": "backward"}, "direction='backward'; supported are forward, reverse, "),
        ({"steps": "T"}, "the number of steps of its input 'x' is not known, and each step"),
    ],
)
def test_what_it_does_not_read_is_refused_by_name(options, sentence):
    model, _ = recurrent("RNN", **options)
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model)
    assert str(caught.value).startswith(f"ONNX node 'cell' (RNN): {sentence}")


@pytest.mark.parametrize("op", GATES)
def test_a_given_number_of_steps_is_read(op):
    model, arrays = recurrent(op, steps="T")
    fixed, _ = recurrent(op)
    module = backend.from_onnx(model, shape_dict={"x": (STEPS, BATCH, INPUTS)})
    for mine, right in zip(
        run_on_host(module, "main", arrays), by_runtime(fixed, arrays), strict=True
    ):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)


OPS = ("matmul", "add", "multiply", "subtract", "split", "sigmoid", "tanh", "concat", "where")


@support.needs_reals
@needs(*OPS, "expand_dims", "permute_dims", "strided_slice", "clip")
@pytest.mark.parametrize("op", GATES)
def test_all_of_it_is_on_the_npu(op):
    options = {"h": True, "c": True, "lengths": (4, 2, 1), "layout": 1, "clip": 3.0}
    module = backend.from_onnx(recurrent(op, 2, **options)[0])
    skip_where_declined(module)
    report = backend.offload_report(partition_for(module))
    assert [(item.op, item.reason) for item in report.on_host] == []
    # The inputs of all steps are multiplied at once, in each direction.
    products = 1 + STEPS * (2 if op == "GRU" else 1)
    assert sum(item.op == "relax.matmul" for item in report.ops) == 2 * products
    assert {str(item.origin) for item in report.ops if item.origin} == {"cell"}
