# SPDX-License-Identifier: Apache-2.0
"""Decoders of opset 23, whose presents have more steps than their pasts: a state keeps the last."""

import numpy as np
import pytest
import tvm
from tvm.runtime.vm import VirtualMachine

import backend
from backend.engine.backend.ir.states import Described
from backend.engine.backend.models import generation
from backend.engine.backend.models.decoders import read_decoder
from backend.engine.backend.verification.originals import original_of
from support import compile_for, needs, needs_library, partition_for, skip_where_limited

pytestmark = needs_library("onnx", "onnxruntime")

HEADS, SHARED, SIZE, WORDS, ROOM = 4, 2, 16, 40, 24
WIDTH = HEADS * SIZE
CACHES = [f"{layer}.{part}" for layer in range(2) for part in ("key", "value")]

_BEGIN = """<ir_version: 11, opset_import: ["": 23]>
decoder (int64[1, N] input_ids, int64[1, M] attention_mask, int64[1, N] position_ids, {pasts})
=> (float[1, N, 40] logits, {presents})
{{
    four_heads = Constant <value = int64[4] {{1, -1, 4, 16}}> ()
    two_heads = Constant <value = int64[4] {{1, -1, 2, 16}}> ()
    together = Constant <value = int64[3] {{1, -1, 64}}> ()
    axes = Constant <value = int64[2] {{1, 2}}> ()
    is_given = Cast <to = 9> (attention_mask)
    mask = Unsqueeze (is_given, axes)
    x0 = Gather (words, input_ids)
    one = Constant <value = int64[1] {{1}}> ()
    counted = CumSum (attention_mask, one)
    place = Unsqueeze (counted, axes)
    last = Constant <value = int64[4] {{1, 1, -1, 1}}> ()
    own = Reshape (position_ids, last)
    own_place = Add (own, one)
    is_seen = LessOrEqual (place, own_place)
    causal = And (is_seen, mask)"""

_LAYER = """
    y{i} = RMSNormalization <epsilon = 0.00001> (x{i}, before{i})
    q{i} = MatMul (y{i}, wq{i})
    k{i} = MatMul (y{i}, wk{i})
    v{i} = MatMul (y{i}, wv{i})
    q{i}a = Reshape (q{i}, four_heads)
    k{i}a = Reshape (k{i}, two_heads)
    v{i}a = Reshape (v{i}, two_heads)
    q{i}b = Transpose <perm = [0, 2, 1, 3]> (q{i}a)
    k{i}b = Transpose <perm = [0, 2, 1, 3]> (k{i}a)
    v{i}b = Transpose <perm = [0, 2, 1, 3]> (v{i}a)
    q{i}c = RotaryEmbedding (q{i}b, cos, sin, position_ids)
    k{i}c = RotaryEmbedding (k{i}b, cos, sin, position_ids)
    {attention}
    heads{i} = Transpose <perm = [0, 2, 1, 3]> (attended{i})
    rows{i} = Reshape (heads{i}, together)
    out{i} = MatMul (rows{i}, wo{i})
    z{i} = Add (x{i}, out{i})
    inner{i} = MatMul (z{i}, up{i})
    active{i} = Gelu (inner{i})
    outer{i} = MatMul (active{i}, down{i})
    x{j} = Add (z{i}, outer{i})"""

_ATTENTIONS = {
    "one node": """attended{i}, present_{i}_key, present_{i}_value = Attention <is_causal = 1> (
        q{i}c, k{i}c, v{i}b, causal, past_{i}_key, past_{i}_value)""",
    "concat": """present_{i}_key = Concat <axis = -2> (past_{i}_key, k{i}c)
    present_{i}_value = Concat <axis = 2> (past_{i}_value, v{i}b)
    attended{i} = Attention <is_causal = 0> (q{i}c, present_{i}_key, present_{i}_value, causal)""",
}


def decoder(attention):
    from onnx import numpy_helper, parser

    rng = np.random.default_rng(0)
    cache = "float[1, 2, {}, 16] {}_{}"
    pasts, presents = (
        ", ".join(cache.format(size, kind, name.replace(".", "_")) for name in CACHES)
        for size, kind in (("P", "past"), ("T", "present"))
    )
    text = _BEGIN.format(pasts=pasts, presents=presents)
    for i in range(2):
        text += _LAYER.format(i=i, j=i + 1, attention=_ATTENTIONS[attention].format(i=i))
    model = parser.parse_model(text + "\n    logits = MatMul (x2, head)\n}")
    angles = np.arange(64)[:, None] / 100 ** (np.arange(SIZE // 2) / SIZE * 2)
    weights = {"cos": np.cos(angles), "sin": np.sin(angles), "words": rng.normal(size=(WORDS, 64))}
    for i in range(2):
        weights[f"before{i}"] = rng.uniform(0.8, 1.2, WIDTH)
        for name, columns in (("wq", WIDTH), ("wk", 32), ("wv", 32), ("wo", WIDTH)):
            weights[f"{name}{i}"] = rng.normal(size=(WIDTH, columns)) / 8
        weights[f"up{i}"] = rng.normal(size=(WIDTH, 96)) / 8
        weights[f"down{i}"] = rng.normal(size=(96, WIDTH)) / 8
    weights["head"] = rng.normal(size=(WIDTH, WORDS))
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype("float32"), name) for name, value in weights.items()
    )
    return model


def read(model, steps, states=True):
    sizes = {"input_ids": (1, steps), "attention_mask": (1, ROOM + steps)}
    sizes["position_ids"] = sizes["input_ids"]
    caches = {f"past_{name.replace('.', '_')}": (1, SHARED, ROOM, SIZE) for name in CACHES}
    return backend.from_onnx(model, shape_dict={**sizes, **caches}, states=states)


def by_onnx_runtime(model, prompt, most):
    """Return scores and caches of ONNX Runtime, whose caches are empty first, and grow."""
    original, ids, found = original_of(model), prompt, []
    caches = [np.zeros((1, SHARED, 0, SIZE), "float32")] * len(CACHES)
    while len(found) < most:
        length = len(prompt) + len(found)
        places = np.arange(length - len(ids), length)[None]
        given = [np.array([ids]), np.ones((1, length), "int64"), places, *caches]
        logits, *caches = original.run(given)
        found.append(logits[0, -1])
        ids = [int(logits[0, -1].argmax())]
    return found, caches


@pytest.mark.parametrize("attention", _ATTENTIONS)
def test_tokens_are_those_of_onnx_runtime(attention):
    model, prompt, most = decoder(attention), [3, 1, 4, 1], 20
    wanted, caches = by_onnx_runtime(model, prompt, most)
    functions = {f"takes_{steps}": read(model, steps)["main"] for steps in (len(prompt), 1)}
    named = {name: it.with_attr("global_symbol", name) for name, it in functions.items()}
    machine = VirtualMachine(compile_for(tvm.IRModule(named)), tvm.cpu())
    ids, found = prompt, []
    with backend.Session(machine) as session:
        while len(found) < most:
            length = len(prompt) + len(found)
            places = np.arange(length - len(ids), length)[None]
            mask = (np.arange(ROOM + len(ids)) >= ROOM + len(ids) - length)[None].astype("int64")
            given = map(tvm.runtime.tensor, (np.array([ids]), mask, places))
            found.append(session[f"takes_{len(ids)}"](*given).numpy()[0, -1])
            ids = [int(found[-1].argmax())]
        key = session.read("past_0_key")
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
    tokens = np.argmax(found, -1).tolist()
    assert tokens == np.argmax(wanted, -1).tolist()
    assert len(set(tokens)) > 4
    np.testing.assert_allclose(key[:, :, 1:], caches[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", _ATTENTIONS)
def test_a_text_is_continued_to_the_last_place(attention, tmp_path):
    import onnx

    path, prompt, capacity = tmp_path / "decoder.onnx", [3, 1, 4, 1, 5], 12
    onnx.save(decoder(attention), path)
    wanted, _ = by_onnx_runtime(decoder(attention), prompt, capacity - len(prompt) + 1)
    machine = VirtualMachine(compile_for(read_decoder([path], (1, 4), capacity, {})), tvm.cpu())
    with backend.Conversation(machine) as text:
        assert text.capacity == capacity
        found = list(text.generate(prompt, capacity))
        assert text.length == capacity
        with pytest.raises(ValueError, match="the cache has room for 12"):
            text.feed([1])
    assert found == np.argmax(wanted, -1).tolist()


def without_a_mask(model):
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.input[3] = ""


def with_a_mask_of_its_size(model):
    from onnx import helper, numpy_helper

    yes = numpy_helper.from_array(np.ones(1, bool), "")
    nodes = [
        helper.make_node("Shape", ["causal"], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["all"], value=yes),
    ]
    at = next(i for i, node in enumerate(model.graph.node) if node.output[0] == "causal") + 1
    rest = [*model.graph.node][at:]
    del model.graph.node[at:]
    model.graph.node.extend([*nodes, *rest])
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.input[3] = "all"


@pytest.mark.parametrize("attention", _ATTENTIONS)
@pytest.mark.parametrize("change", [without_a_mask, with_a_mask_of_its_size])
def test_an_attention_without_a_mask_of_the_caller_is_refused(attention, change):
    """Zeros in the place of steps that the cache does not have yet would count."""
    model = decoder(attention)
    change(model)
    with pytest.raises(ValueError, match="no mask that the model is given hides the steps that"):
        read(model, 1)
    assert not backend.states(read(model, 1, states=False))


def multi_head(mask="T"):
    from onnx import parser

    text = f"""<ir_version: 11, opset_import: ["": 21, "com.microsoft": 1]>
        attention (float[1, 1, 64] x, int32[1, {mask}] mask, float[1, 4, P, 16] past_k,
                   float[1, 4, P, 16] past_v)
        => (float[1, 1, 64] y, float[1, 4, T, 16] present_k, float[1, 4, T, 16] present_v)
        {{
            twice = Add (x, x)
            y, present_k, present_v = com.microsoft.MultiHeadAttention <num_heads = 4> (
                x, twice, x, , mask, , past_k, past_v)
        }}"""
    return parser.parse_model(text if mask else text.replace("int32[1, ]", "int32[1]"))


def test_attention_of_onnx_runtime_keeps_its_last_steps():
    model, room = multi_head(), 5
    sizes = {"mask": (1, room + 1), **dict.fromkeys(("past_k", "past_v"), (1, 4, room, 16))}
    machine = VirtualMachine(
        compile_for(backend.from_onnx(model, shape_dict=sizes, states=True)), tvm.cpu()
    )
    original, caches = original_of(model), [np.zeros((1, 4, 0, 16), "float32")] * 2
    with backend.Session(machine) as session:
        for length in range(1, room + 2):
            x = np.random.default_rng(length).normal(size=(1, 1, 64)).astype("float32")
            wanted, *caches = original.run([x, np.ones((1, length), "int32"), *caches])
            mask = (np.arange(room + 1) > room - length).astype("int32")[None]
            found = session["main"](*map(tvm.runtime.tensor, (x, mask))).numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_mask_of_lengths_is_refused():
    """It hides the last steps, where zeros are the first."""
    with pytest.raises(ValueError, match="no mask that the model is given hides the steps that"):
        backend.from_onnx(multi_head(""), states=True)


def test_opsets_whose_slices_are_fixed_are_refused():
    from onnx import parser

    text = """<ir_version: 8, opset_import: ["": 9]>
        ring (float[1, 1] x, float[1, 3] past) => (float[1, T] present)
        { present = Concat <axis = 1> (past, x) }"""
    with pytest.raises(ValueError, match="the state 'past' has more steps .* from opset 10 on"):
        backend.from_onnx(parser.parse_model(text), states=True)


def test_a_past_whose_size_is_open_is_refused():
    with pytest.raises(ValueError, match="steps, and the attention mask also for the new ones"):
        backend.from_onnx(multi_head(), states=True)


@pytest.mark.parametrize(
    ("windows", "rooms", "sentence"),
    [
        ((3, None), (None, 3), "Some functions keep the last steps of their states, and others"),
        ((3, 3), (None, 2), "'two' has states that keep their last steps, and others that are fi"),
    ],
)
def test_states_of_two_kinds_are_refused(windows, rooms, sentence, monkeypatch):
    def functions(_):
        for steps, name, window, room in zip((1, 2), ("one", "two"), windows, rooms, strict=True):
            inputs = [("input_ids", "int64", (1, steps)), ("attention_mask", "int64", (1, 5))]
            yield name, Described(inputs, ("float32", (1, steps, 9)), room, window)

    monkeypatch.setattr(generation, "functions_with_states", lambda it: dict(functions(it)))
    with pytest.raises(ValueError, match=sentence):
        backend.Conversation(None)


def test_a_text_needs_a_mask_that_hides_what_is_not_there_yet():
    from onnx import parser

    model = parser.parse_model(
        """<ir_version: 11, opset_import: ["": 23]>
        sums (int64[1, 1] input_ids, float[1, 3] past) => (float[1, 4] logits, float[1, T] present)
        {
            new = Cast <to = 1> (input_ids)
            present = Concat <axis = 1> (past, new)
            logits = Identity (present)
        }"""
    )
    mod = backend.from_onnx(model, states=True)
    machine = VirtualMachine(compile_for(mod), tvm.cpu())
    with backend.Session(machine) as session:
        for number in range(1, 6):
            found = session["main"](tvm.runtime.tensor(np.array([[number]]))).numpy()
            wanted = np.maximum(np.arange(number - 3, number + 1), 0)
            np.testing.assert_array_equal(found[0], wanted)
    with pytest.raises(ValueError, match="keeps its last 3 steps, and takes no mask"):
        backend.Conversation(machine)


@needs("rms_norm", "matmul", "reshape", "permute_dims", "sdpa_bias", "concat", "strided_slice")
@needs("add", "multiply", "subtract", "gelu", "take", "where", "less_equal", "astype", "split")
@needs("logical_and", "equal")
def test_a_step_runs_on_the_npu():
    module = read(decoder("one node"), 1)
    skip_where_limited(module)
    report = backend.offload_report(partition_for(module))
    assert [(item.op, item.reason) for item in report.on_host] == []
    assert len(report.regions) == 1


def test_states_are_the_pasts():
    kept = backend.states(read(decoder("one node"), 3))
    assert [state.name for state in kept] == [f"past_{it.replace('.', '_')}" for it in CACHES]
    assert {state.initial.shape for state in kept} == {(1, SHARED, ROOM, SIZE)}
