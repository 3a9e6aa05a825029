# SPDX-License-Identifier: Apache-2.0
"""Attention and RotaryEmbedding of ONNX, against ONNX Runtime and ONNX's reference."""

import re

import numpy as np
import pytest

import backend
from onnx_node import check, one_node
from support import needs, needs_library, partition_for, skip_where_declined

pytestmark = needs_library("onnx")

RNG = np.random.default_rng(0)
Q, K = (2, 4, 5, 8), (2, 4, 6, 8)
SHARED = (2, 2, 6, 8)


def real(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def attention(q=Q, k=K, v=K, dtype="float32", extra=None, **options):
    tensors = {
        name: real(*shape, dtype=dtype) for name, shape in zip("qkv", (q, k, v), strict=True)
    }
    names = ("q", "k", "v", "mask", "past_k", "past_v", "filled")
    # The order of the node's inputs is that of the model's.
    found = {**tensors, **(extra or {})}
    return one_node("Attention", names, {n: found[n] for n in names if n in found}, **options)


def check_both(model, tensors, tolerance=1e-5):
    """Compare with ONNX's reference, too."""
    from onnx.reference import ReferenceEvaluator

    check(model, tensors, tolerance, [ReferenceEvaluator(model).run(None, tensors)])


CACHE = {"past_k": real(2, 4, 3, 8), "past_v": real(2, 4, 3, 8)}
FLAT = {"q": (2, 5, 32), "k": (2, 6, 16), "v": (2, 6, 16), "q_num_heads": 4, "kv_num_heads": 2}
SCORES = ("y", "", "", "scores")


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": 1},
        {"k": SHARED, "v": SHARED, "scale": 0.3},
        {"q": (2, 4, 1, 8), "k": SHARED, "v": SHARED, "extra": {"mask": real(2, 4, 1, 6)}},
        {"k": SHARED, "v": SHARED, "extra": {"mask": real(4, 5, 6)}, "results": SCORES},
        {**FLAT, "is_causal": 1},
        {"extra": {"mask": RNG.random((2, 1, 5, 6)) > 0.3}},
        {
            "extra": {"mask": np.zeros((5, 6), "bool")},
            "results": SCORES,
            "qk_matmul_output_mode": 3,
        },
        {"extra": {"mask": real(5, 6)}, "softcap": 0.7, "results": SCORES}
        | {"qk_matmul_output_mode": 2},
        {"extra": CACHE, "results": ("y", "present_k", "present_v"), "is_causal": 1},
        {"extra": {"filled": np.array([5, 6])}, "is_causal": 1, "opset": 24},
        {"softmax_precision": 11, "results": SCORES},
    ],
    ids=[
        "causal",
        "shared",
        "shared_by_one",
        "shared_masks",
        "flat",
        "bools",
        "none",
        "softcap",
        "cache",
        "filled",
        "double",
    ],
)
def test_it_equals_both_references(options):
    check_both(*attention(**options))


def test_half_precision_is_scaled_before_the_product():
    # Their product leaves the range of float16.
    model, tensors = attention(dtype="float16")
    tensors = {name: array * np.float16(60) for name, array in tensors.items()}
    check_both(model, tensors, tolerance=2e-2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"q": FLAT["q"], "k": FLAT["k"], "v": FLAT["v"]},
            "3D inputs expected to have q_num_heads",
        ),
        ({"softcap": 0.5, "results": SCORES}, "qk_matmul_output_mode=0 with softcap is not supp"),
        ({"softmax_precision": 16}, "softmax_precision=16 is not supported; supported are 1 "),
        ({"new": 1}, "its attribute new=1 is not read"),
        ({"q": (2, 3, 5, 8), "k": SHARED, "v": SHARED}, "kv_num_heads=2 does not divide the 3"),
        (
            {"q": (2, 4, "S", 8), "is_causal": 1},
            "is_causal needs the number of steps of 'q', which is open; fix the sizes of the mod",
        ),
    ],
)
def test_what_it_does_not_read_is_refused_by_name(options, sentence):
    open_steps = "S" in options.get("q", ())
    model, _ = attention(**{**options, "q": Q} if open_steps else options)
    if open_steps:
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "S"
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model)
    assert re.search("node '?author'? \\(Attention\\): ", str(caught.value))
    assert sentence in str(caught.value)


@needs("attention", "sdpa", "sdpa_bias", "reshape")
@pytest.mark.parametrize(
    ("options", "chain"),
    [({}, "sdpa"), ({"is_causal": 1}, "sdpa_bias"), ({**FLAT, "kv_num_heads": 4}, "attention")],
    ids=["plain", "causal", "flat"],
)
def test_it_is_one_composite_on_the_npu(options, chain):
    if "q_num_heads" in options:
        options = {**options, "k": (2, 6, 32), "v": (2, 6, 32)}
    module = backend.from_onnx(attention(**options)[0])
    skip_where_declined(module)
    report = backend.offload_report(partition_for(module))
    assert [(item.op, item.reason) for item in report.on_host] == []
    assert {item.composite for item in report.ops} - {"reshape"} == {chain}
    assert {str(item.origin) for item in report.ops if item.origin} == {"author"}


def test_keys_and_values_that_an_exporter_repeats_for_queries_are_not_repeated():
    from onnx import parser

    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 23]>
        g (float[2, 4, 5, 8] q, float[2, 2, 6, 8] k, float[2, 2, 6, 8] v) => (float[2, 4, 5, 8] y)
        <int64[1] axis = {2}, int64[5] wide = {2, 2, 2, 6, 8}, int64[4] flat = {2, 4, 6, 8}> {
            k1 = Unsqueeze (k, axis) k2 = Expand (k1, wide) k3 = Reshape (k2, flat)
            v1 = Unsqueeze (v, axis) v2 = Expand (v1, wide) v3 = Reshape (v2, flat)
            y = Attention (q, k3, v3)
        }"""
    )
    check(model, {"q": real(*Q), "k": real(*SHARED), "v": real(*SHARED)})
    report = backend.offload_report(partition_for(backend.from_onnx(model)))
    assert not any("broadcast" in item.op for item in report.ops)
    # A present is what the model says.
    node = model.graph.node[-1]
    node.output.append("present")
    model.graph.output.add(name="present").type.tensor_type.elem_type = 1
    check(model, {"q": real(*Q), "k": real(*SHARED), "v": real(*SHARED)})


# ---- RotaryEmbedding ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options", "with_positions"),
    [
        ((2, 4, 3, 8), {}, True),
        ((2, 4, 3, 8), {"interleaved": 1, "rotary_embedding_dim": 4}, False),
        ((2, 3, 32), {"num_heads": 4, "rotary_embedding_dim": 4}, True),
        ((2, 3, 32), {"num_heads": 4, "interleaved": 1}, False),
    ],
)
def test_rotary_embeddings(shape, options, with_positions):
    half = (options.get("rotary_embedding_dim") or 8) // 2
    cache = (7, half) if with_positions else (2, 3, half)
    tensors = {"x": real(*shape), "cos": real(*cache), "sin": real(*cache)}
    if with_positions:
        tensors["positions"] = RNG.integers(0, 7, (2, 3))
    check_both(*one_node("RotaryEmbedding", ("x", "cos", "sin", "positions"), tensors, **options))


def test_a_rotary_embedding_without_heads_is_refused():
    tensors = {"x": real(2, 3, 32), "cos": real(2, 3, 4), "sin": real(2, 3, 4)}
    model, _ = one_node("RotaryEmbedding", ("x", "cos", "sin"), tensors)
    with pytest.raises(ValueError, match=r"ONNX node 'author' \(RotaryEmbedding\): .*num_heads"):
        backend.from_onnx(model)
