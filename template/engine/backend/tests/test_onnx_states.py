# SPDX-License-Identifier: Apache-2.0
"""A decoder as ONNX Runtime's generators write it: its tokens, and its caches as states."""

import numpy as np
import pytest
import tvm
from tvm.runtime.vm import VirtualMachine

import backend
from backend.engine.backend.verification.originals import original_of
from onnx_node import check, one_node
from support import (
    compile_for,
    needs,
    needs_library,
    partition_for,
    skip_where_declined,
    skip_where_limited,
)
from test_onnx_decoders import group_query

pytestmark = needs_library("onnx", "onnxruntime")

CONTRIB = "com.microsoft"
HEADS, SHARED, SIZE = 4, 2, 16
LAYERS, WORDS, WIDTH = 2, 40, HEADS * SIZE
CAPACITY = 20
SHAPES = {
    "input_ids": ("batch_size", "sequence_length"),
    "attention_mask": ("batch_size", "total_sequence_length"),
}
CACHES = [f"{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]


def decoder():
    """Make a decoder as the generators of ONNX Runtime write it, with weights of 4 bits."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, rng = [], {}, np.random.default_rng(0)

    def write(op, *inputs, domain="", results=1, **attributes):
        names = [f"{op}_{len(nodes)}_{i}" for i in range(results)]
        nodes.append(helper.make_node(op, inputs, names, names[0], domain=domain, **attributes))
        return names[0] if results == 1 else names

    def weight(name, array):
        weights[name] = np.asarray(array)
        return name

    def linear(x, name, rows, depth=WIDTH):
        packed = rng.integers(0, 256, (rows, depth // 32, 16)).astype("uint8")
        scales = (rng.random((rows, depth // 32)) * 0.1).astype("float32")
        # From 6 to 9.
        zeros = rng.integers(6, 10, (rows, depth // 64, 2)) << np.array([0, 4])
        zeros = zeros.sum(-1).astype("uint8")
        parts = [weight(f"{name}.{i}", part) for i, part in enumerate((packed, scales, zeros))]
        sizes = {"K": depth, "N": rows, "bits": 4, "block_size": 32}
        return write("MatMulNBits", x, *parts, domain=CONTRIB, **sizes)

    def normed(x, skip, name):
        gamma = weight(name, rng.uniform(0.8, 1.2, WIDTH).astype("float32"))
        if not skip:
            return write("SimplifiedLayerNormalization", x, gamma, epsilon=1e-5), x
        op = "SkipSimplifiedLayerNormalization"
        results = write(op, x, skip, gamma, domain=CONTRIB, results=4, epsilon=1e-5)
        return results[0], results[3]

    one = weight("one", np.array([1]))
    lengths = write("ReduceSum", "attention_mask", one, keepdims=0)
    lengths = write("Cast", write("Sub", lengths, one), to=TensorProto.INT32)
    total = write("Gather", write("Shape", "attention_mask"), weight("axis", 1), axis=0)
    total = write("Cast", total, to=TensorProto.INT32)
    angles = np.arange(CAPACITY).reshape(-1, 1) / 100 ** (np.arange(SIZE // 2) / SIZE * 2)
    turns = [weight("cos", np.cos(angles, dtype="f4")), weight("sin", np.sin(angles, dtype="f4"))]
    x, skip = (
        write(
            "Gather",
            weight("words", rng.normal(size=(WORDS, WIDTH)).astype("float32")),
            "input_ids",
        ),
        "",
    )
    for i in range(LAYERS):
        y, x = normed(x, skip, f"{i}.before")
        parts = (("q", WIDTH), ("k", SHARED * SIZE), ("v", SHARED * SIZE))
        inputs = [linear(y, f"{i}.{part}", rows) for part, rows in parts]
        inputs += [f"past.{i}.key", f"past.{i}.value", lengths, total, *turns]
        attributes = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1}
        names = [f"attention.{i}", f"present.{i}.key", f"present.{i}.value"]
        op = "GroupQueryAttention"
        nodes.append(helper.make_node(op, inputs, names, names[0], domain=CONTRIB, **attributes))
        y, x = normed(x, linear(names[0], f"{i}.o", WIDTH), f"{i}.after")
        gate, up = (linear(y, f"{i}.{part}", WIDTH) for part in ("gate", "up"))
        gate = write("Mul", gate, write("Sigmoid", gate))
        skip = linear(write("Mul", gate, up), f"{i}.down", WIDTH)
    logits = linear(normed(x, skip, "last")[0], "head", WORDS)
    nodes[-1].output[0] = logits = "logits"
    integer, number = TensorProto.INT64, TensorProto.FLOAT
    value = helper.make_tensor_value_info
    cache = ("batch_size", SHARED, "past_sequence_length", SIZE)
    graph = helper.make_graph(
        nodes,
        "decoder",
        [value(name, integer, shape) for name, shape in SHAPES.items()]
        + [value(f"past.{name}", number, cache) for name in CACHES],
        [value(logits, number, ("batch_size", "sequence_length", WORDS))]
        + [value(f"present.{name}", number, (*cache[:2], "all", SIZE)) for name in CACHES],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def shapes_of(steps, total, past):
    caches = {f"past.{name}": (1, SHARED, past, SIZE) for name in CACHES}
    return {"input_ids": (1, steps), "attention_mask": (1, total), **caches}


def test_a_decoder_generates_what_onnx_runtime_does():
    model = decoder()
    original, prompt = original_of(model), [3, 1, 4, 1]
    # ONNX Runtime begins with an empty cache, which grows; here it has its full size.
    ids, caches, wanted = prompt, [np.zeros((1, SHARED, 0, SIZE), "float32")] * len(CACHES), []
    while len(wanted) < 16:
        mask = np.ones((1, len(prompt) + len(wanted)), "int64")
        logits, *caches = original.run([np.array([ids]), mask, *caches])
        wanted.append(logits[0, -1])
        ids = [int(logits[0, -1].argmax())]
    sizes = {"prefill": (len(prompt), len(prompt), CAPACITY), "decode": (1, CAPACITY, CAPACITY)}
    functions = {name: read(model, *given) for name, given in sizes.items()}
    module = tvm.IRModule(
        {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    )
    mask = np.zeros((1, CAPACITY), "int64")
    machine = VirtualMachine(compile_for(module), tvm.cpu())
    with backend.Session(machine) as session:
        found = [last(session, "prefill", prompt, np.ones((1, len(prompt)), "int64"))]
        while len(found) < 16:
            mask[0, : len(prompt) + len(found)] = 1
            found.append(last(session, "decode", [int(found[-1].argmax())], mask))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    tokens = np.argmax(found, -1).tolist()
    assert tokens == np.argmax(wanted, -1).tolist()
    assert len(set(tokens)) > 4


@needs("add", "astype", "concat", "equal", "expand_dims", "less", "less_equal", "multiply")
@needs("permute_dims", "reshape", "rms_norm", "sdpa_bias", "split", "strided_slice", "subtract")
@needs("dequantize", "matmul", "sum", "take", "where")
@pytest.mark.parametrize("sizes", [(4, 4, CAPACITY), (1, CAPACITY, CAPACITY)])
def test_a_decoder_runs_entirely_on_the_npu(sizes):
    module = tvm.IRModule({"main": read(decoder(), *sizes)})
    skip_where_declined(module)
    skip_where_limited(module)
    report = backend.offload_report(partition_for(module))
    assert [(item.op, item.reason) for item in report.on_host] == []
    assert len(report.regions) == 1


def read(model, *sizes, **options):
    options = {"states": True, "sanitize_input_names": False, **options}
    return backend.from_onnx(model, shape_dict=shapes_of(*sizes), **options)["main"]


def last(session, name, ids, mask):
    logits = session[name](tvm.runtime.tensor(np.array([ids])), tvm.runtime.tensor(mask))
    return logits.numpy()[0, -1]


def test_pasts_and_presents_are_states_where_the_caller_asks():
    model = decoder()
    module = tvm.IRModule({"main": read(model, 1, CAPACITY, CAPACITY)})
    kept = backend.states(module)
    assert [(state.name, state.parameter, state.result) for state in kept] == [
        (f"past.{name}", f"past.{name}", place) for place, name in enumerate(CACHES, 1)
    ]
    assert {state.initial.shape for state in kept} == {(1, SHARED, CAPACITY, SIZE)}
    assert not any(state.initial.any() for state in kept)
    plain = read(model, 1, CAPACITY, CAPACITY, states=False)
    assert backend.states(tvm.IRModule({"main": plain})) == ()
    # One that is named goes behind the others.
    one = read(model, 1, CAPACITY, CAPACITY, states={"past.0.value": "present.0.value"})
    (state,) = backend.states(tvm.IRModule({"main": one}))
    assert (state.name, state.result) == ("past.0.value", 4)
    assert str(one.params[-1].name) == "past.0.value"


@pytest.mark.parametrize(
    ("sizes", "states", "sentence"),
    [
        ((1, 6, 5), True, "the state 'past.0.key' is float32[1, 2, 5, 16] before a call, and flo"),
        ((1, 6, 6), {"past": "logits"}, "the model has no input 'past' to be a state; it has inp"),
        ((1, 6, 6), {"past.0.key": "y"}, "the model has no result 'y' to be a state; it has logi"),
    ],
)
def test_states_that_are_none_are_refused(sizes, states, sentence):
    with pytest.raises(ValueError) as caught:
        read(decoder(), *sizes, states=states)
    assert sentence in str(caught.value)


def test_a_model_without_states_is_refused_if_states_are_asked_for():
    model, _ = one_node("Relu", ("x",), {"x": np.ones(3, "float32")})
    with pytest.raises(ValueError, match="no node of the model tells of a state: "):
        backend.from_onnx(model, states=True)


def test_lengths_that_are_an_input_are_checked():
    from onnx import helper, numpy_helper

    model, tensors = group_query(1, 8, 8, [3])
    # As exporters write it: from the number of tokens, the new one included.
    one = numpy_helper.from_array(np.array([1]), "one")
    count = helper.make_tensor_value_info("count", 7, (1, 1))
    for number, (op, given) in enumerate((("Sub", ["count", "one"]), ("Cast", ["less"]))):
        node = helper.make_node(
            op, given, [("less", "flat")[number]], **({"to": 6} if number else {})
        )
        model.graph.node.insert(number, node)
    shape = numpy_helper.from_array(np.array([-1]), "shape")
    model.graph.node.insert(2, helper.make_node("Reshape", ["flat", "shape"], ["lengths"]))
    model.graph.initializer.extend([one, shape])
    (at,) = (at for at, it in enumerate(model.graph.input) if it.name == "lengths")
    model.graph.input[at].CopyFrom(count)
    machine = VirtualMachine(compile_for(backend.from_onnx(model, states=True)), tvm.cpu())
    new = [tvm.runtime.tensor(tensors[name]) for name in ("query", "key", "value")]
    with backend.Session(machine) as session:
        for tokens in (4, 9, 0, 8):
            count = tvm.runtime.tensor(np.array([[tokens]]))
            if tokens in (4, 8):
                session["main"](*new, count)
                continue
            sentence = f"position {tokens - 1} of the state 'past_k', since 'count' is {tokens};"
            with pytest.raises(ValueError, match=sentence):
                session["main"](*new, count)
        stored = session.read("past_k")[0, 0].any(axis=-1)
        assert np.flatnonzero(stored).tolist() == [3, 7]


# ---- Opset 24 -----------------------------------------------------------------------------------


def step_of_opset_24():
    """Make a step whose cache is written by TensorScatter, and read up to its length."""
    from onnx import parser

    return parser.parse_model(
        """<ir_version: 11, opset_import: ["": 24]>
        g (float[2, 1, 64] x, float[64] gamma, float[64, 32] w, int64[2] place, int64[2] length,
           float[2, 2, 8, 16] past_k, float[2, 2, 8, 16] past_v)
        => (float[2, 4, 1, 16] y, float[2, 2, 8, 16] present_k, float[2, 2, 8, 16] present_v)
        {
            normed = RMSNormalization <epsilon = 0.001> (x, gamma)
            product = MatMul (normed, w)
            of_keys = Constant <value = int64[4] {0, 0, 2, 16}> ()
            of_queries = Constant <value = int64[4] {0, 0, 4, 16}> ()
            keys = Reshape (product, of_keys)
            queries = Reshape (normed, of_queries)
            k = Transpose <perm = [0, 2, 1, 3]> (keys)
            q = Transpose <perm = [0, 2, 1, 3]> (queries)
            present_k = TensorScatter (past_k, k, place)
            present_v = TensorScatter (past_v, k, place)
            y = Attention <is_causal = 1> (q, present_k, present_v, , , , length)
        }"""
    )


def test_a_step_of_opset_24():
    rng = np.random.default_rng(0)
    model, place = step_of_opset_24(), np.array([3, 6])
    shapes = [(2, 1, 64), (64,), (64, 32), (2, 2, 8, 16), (2, 2, 8, 16)]
    x, gamma, w, *past = (rng.normal(size=shape).astype("float32") for shape in shapes)
    check(model, dict(enumerate([x, gamma, w, place, place + 1, *past])))
    module = backend.from_onnx(model, states=True)
    assert [state.name for state in backend.states(module)] == ["past_k", "past_v"]
    machine = VirtualMachine(compile_for(module), tvm.cpu())
    with backend.Session(machine) as session:
        for last in (7, 8, 6):
            place = np.array([3, last])
            inputs = [tvm.runtime.tensor(value) for value in (x, gamma, w, place, place + 1)]
            if last < 8:
                session["main"](*inputs)
                continue
            with pytest.raises(ValueError, match="position 8 of the state 'past_k', since 'place'"):
                session["main"](*inputs)


@needs("rms_norm", "matmul", "reshape", "permute_dims", "equal", "where", "sdpa_bias", "less")
@needs("less_equal", "logical_and", "subtract")
def test_a_step_of_opset_24_runs_on_the_npu():
    module = backend.from_onnx(step_of_opset_24())
    skip_where_declined(module)
    skip_where_limited(module)
    report = backend.offload_report(partition_for(module))
    assert [(item.op, item.reason) for item in report.on_host] == []
    assert {"rms_norm", "sdpa_bias"} <= {item.composite for item in report.ops}
