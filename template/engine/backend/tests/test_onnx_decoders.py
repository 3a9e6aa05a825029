# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX Runtime of which decoders consist, against ONNX Runtime."""

import numpy as np
import pytest

import backend
from onnx_node import check, one_node
from support import needs, needs_library, partition_for, skip_where_declined

pytestmark = needs_library("onnx", "onnxruntime")

RNG = np.random.default_rng(0)
CONTRIB = "com.microsoft"


def real(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


GROUP_QUERY = (
    *("query", "key", "value", "past_k", "past_v", "lengths", "total", "cos", "sin", "positions"),
    "bias",
)
HEADS, SHARED, SIZE = 4, 2, 16


def group_query(steps, past, total, lengths=None, batch=1, packed=False, extra=None, **options):
    """Make a GroupQueryAttention; a past of 0 is none."""
    options = {"num_heads": HEADS, "kv_num_heads": SHARED, **options}
    widths = [HEADS * SIZE, SHARED * SIZE, SHARED * SIZE]
    tensors = {"query": real(batch, steps, sum(widths) if packed else widths[0])}
    if not packed:
        tensors |= {name: real(batch, steps, widths[1]) for name in ("key", "value")}
    if past:
        tensors |= {name: real(batch, SHARED, past, SIZE) for name in ("past_k", "past_v")}
        for name in ("past_k", "past_v"):
            # What is not filled is zeros, which ONNX Runtime makes them.
            for cache, length in zip(tensors[name], lengths or [total - 1] * batch, strict=True):
                cache[:, length + 1 - steps :] = 0
    tensors["lengths"] = np.array(lengths or [total - 1] * batch, "int32")
    tensors["total"] = np.array(total, "int32")
    if options.get("do_rotary"):
        angles = np.arange(max(total, past)).reshape(-1, 1) / (2.0 ** np.arange(SIZE // 2))
        tensors |= {"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}
    tensors |= extra or {}
    constants = [name for name in ("total", "cos", "sin") if name in tensors]
    return one_node(
        "GroupQueryAttention", GROUP_QUERY, tensors, ("y", "present_k", "present_v"),
        domain=CONTRIB, constants=constants, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 5, "past": 0, "total": 5},
        {"steps": 5, "past": 0, "total": 5, "packed": True, "do_rotary": 1, "batch": 2},
        {"steps": 1, "past": 6, "total": 7, "do_rotary": 1, "local_window_size": 3},
        {"steps": 1, "past": 8, "total": 8, "lengths": [3, 7], "batch": 2, "do_rotary": 1},
        {"steps": 1, "past": 8, "total": 6, "lengths": [5], "packed": True, "softcap": 2.0},
        {"steps": 3, "past": 8, "total": 8, "lengths": [4], "do_rotary": 1}
        | {"rotary_interleaved": 1, "local_window_size": 2, "scale": 0.3},
        {"steps": 3, "past": 4, "total": 7, "extra": {"bias": real(1, 4, 3, 7)}},
        {"steps": 1, "past": 4, "total": 5, "extra": {"bias": real(1, 1, 1, 5)}},
    ],
    ids=["prompt", "packed", "grown", "shared", "shorter", "more", "bias", "bias of one"],
)
def test_group_query_attention(options):
    check(*group_query(**options))


# ---- MultiHeadAttention -------------------------------------------------------------------------

MULTI_HEAD = ("query", "key", "value", "bias", "padding", "added", "past_k", "past_v")
PAST = {"past_k": real(2, 4, 6, 8), "past_v": real(2, 4, 6, 8)}


def multi_head(key=(2, 5, 32), extra=None, results=("y",), **options):
    tensors = {"query": real(2, 3, 32), "key": real(*key), "value": real(*key), **(extra or {})}
    tensors = {name: tensors[name] for name in MULTI_HEAD if name in tensors}
    return one_node(
        "MultiHeadAttention", MULTI_HEAD, tensors, results, domain=CONTRIB, num_heads=4, **options
    )


@pytest.mark.parametrize(
    "options",
    [
        {"results": ("y", "present_k", "present_v"), "scale": 0.3},
        {"extra": {"bias": real(96), "padding": np.array([[1, 1, 0, 1, 0], [1] * 5], "int32")}},
        {"extra": {"padding": np.array([2, 5], "int32")}},
        {"key": (2, 3, 32), "extra": {"padding": np.array([[0, 1, 0], [1] * 3], "int32")}}
        | {"unidirectional": 1},
        {"extra": {"padding": RNG.integers(0, 2, (2, 3, 5)).astype("int32")}}
        | {"mask_filter_value": -50.0},
        {"key": (2, 3, 32), "extra": PAST | {"added": real(1, 4, 3, 9)}, "unidirectional": 1}
        | {"results": ("y", "present_k", "present_v")},
        {"key": (2, 4, 5, 8)},
    ],
    ids=["plain", "bias", "lengths", "hidden", "mask", "past", "crossed"],
)
def test_multi_head_attention(options):
    check(*multi_head(**options))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": (2, 4, 5, 8), "extra": {"bias": real(96)}}, "a bias is supported where key is"),
        ({"key": (2, 5, 64)}, "and query and value the widths 32 and 64; supported are"),
        ({"results": ("y", "", "", "scores")}, "its result 'scores' is not supported"),
        ({"unidirectional": 1}, "is supported where key has as many steps as query"),
        ({"extra": {"padding": np.ones(8, "int32")}}, "has another shape than [batch], "),
    ],
)
def test_what_is_not_read_of_multi_head_attention_is_refused(options, sentence):
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(multi_head(**options)[0])
    assert "node 'author' (com.microsoft.MultiHeadAttention): " in str(caught.value)
    assert sentence in str(caught.value)


# ---- TensorScatter ------------------------------------------------------------------------------


def tensor_scatter(cache, update, first, **options):
    tensors = {"cache": real(*cache), "update": real(*update)}
    if first is not None:
        tensors["first"] = np.array(first)
    return one_node("TensorScatter", ("cache", "update", "first"), tensors, opset=24, **options)


@pytest.mark.parametrize(
    ("cache", "update", "first", "options"),
    [
        ((2, 4, 6, 3), (2, 4, 2, 3), [1, 4], {}),
        ((2, 4, 6, 3), (2, 4, 3, 3), [1, 5], {"mode": "circular"}),
        ((2, 4, 6, 3), (2, 4, 1, 3), [0, 5], {}),
        ((2, 4, 6, 3), (2, 4, 2, 3), None, {}),
        ((2, 6, 3), (2, 2, 3), [3, 1], {"axis": 1}),
    ],
)
def test_tensor_scatter(cache, update, first, options):
    check(*tensor_scatter(cache, update, first, **options))


# ---- Tables of packed rows ----------------------------------------------------------------------


def table(kind, bits, zeros=False, **options):
    """Make a GatherBlockQuantized; `kind` is the type of the table."""
    from onnx import TensorProto, helper, numpy_helper

    tensors = {"data": real(1), "indices": np.array([[1, 7, 1]]), "scales": real(10, 2)}
    tensors |= {"zeros": real(1)} if zeros else {}
    names = ("data", "indices", "scales", "zeros")
    constants = [name for name in names if name in tensors and name != "indices"]
    sizes = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": 1, **options}
    model, inputs = one_node(
        "GatherBlockQuantized", names, tensors, domain=CONTRIB, constants=constants, **sizes
    )
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in model.graph.initializer:
        width = {"data": 64, "zeros": 2}.get(tensor.name, 0)
        if width and kind == "UINT8":
            array = RNG.integers(0, 256, (10, width * bits // 8)).astype("uint8")
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        elif width:
            low = -8 if kind == "INT4" else 0
            values = RNG.integers(low, low + 16, 10 * width)
            kinds = TensorProto.DataType.Value(kind)
            tensor.CopyFrom(helper.make_tensor(tensor.name, kinds, (10, width), values))
    return model, inputs


@pytest.mark.parametrize(
    ("kind", "bits", "zeros"),
    [
        *(("UINT8", 4, False), ("UINT8", 4, True), ("UINT8", 8, True)),
        *(("UINT4", 4, False), ("UINT4", 4, True), ("INT4", 4, False)),
    ],
)
def test_tables_of_packed_rows(kind, bits, zeros):
    check(*table(kind, bits, zeros))


def test_tables_that_are_packed_otherwise_are_refused():
    sentence = "bits=4, gather_axis=1 and quantize_axis=1 of 2 axes; supported are 4 and 8 bits"
    with pytest.raises(ValueError, match=sentence):
        backend.from_onnx(table("UINT8", 4, gather_axis=1)[0])


# ---- RotaryEmbedding ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "positions", "options"),
    [
        ((2, 3, 64), (2, 3), {}),
        ((2, 3, 64), (1,), {"interleaved": 1}),
        ((2, 4, 3, 16), (2, 3), {}),
        ((2, 3, 64), (2, 3), {"num_heads": 4, "rotary_embedding_dim": 8}),
    ],
)
def test_rotary_embedding(shape, positions, options):
    pairs = (options.get("rotary_embedding_dim") or 16) // 2
    tensors = {"x": real(*shape), "positions": RNG.integers(0, 4, positions)}
    tensors |= {"cos": real(9, pairs), "sin": real(9, pairs)}
    names = ("x", "positions", "cos", "sin")
    model = one_node(
        "RotaryEmbedding", names, tensors, domain=CONTRIB, constants=names[2:], **options
    )
    check(*model)


def test_sizes_behind_operators_of_onnx_runtime_are_known():
    from onnx import parser

    body = "a = com.microsoft.FastGelu (x) b = com.microsoft.BiasGelu (a, bias)"
    body += " c = com.microsoft.Gelu (b) y = com.microsoft.RotaryEmbedding (c, places, cos, sin)"
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[2, 3, 16] x, '
        "float[16] bias, int64[2, 3] places, float[5, 4] cos, float[5, 4] sin) => "
        f"(float[2, 3, 16] y) {{ {body} }}"
    )
    tensors = {"x": real(2, 3, 16), "bias": real(16), "places": RNG.integers(0, 5, (2, 3))}
    check(model, {**tensors, "cos": real(5, 4), "sin": real(5, 4)})


# ---- Normalizations -----------------------------------------------------------------------------


NORMED = ("x", "skip", "weight", "shift", "bias")
SUM = ("y", "", "", "sum")


def normalization(op, names, dtype="float32", **options):
    rows = {"x", "skip"}
    tensors = {n: real(*(2, 3, 32) if n in rows else (32,), dtype=dtype) for n in names}
    constants = [name for name in names if name not in rows]
    return one_node(op, names, tensors, constants=constants, **{"domain": CONTRIB, **options})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("op", "names", "options"),
    [
        ("SimplifiedLayerNormalization", ("x", "weight"), {"domain": "", "epsilon": 1e-3}),
        ("SkipSimplifiedLayerNormalization", ("x", "skip", "weight"), {"results": SUM}),
        ("SkipSimplifiedLayerNormalization", ("x", "skip", "weight", "bias"), {"opset": 14}),
        ("SkipLayerNormalization", ("x", "skip", "weight"), {"results": SUM}),
        ("SkipLayerNormalization", NORMED, {"opset": 14, "results": SUM}),
    ],
)
def test_normalizations(op, names, options, dtype):
    tolerance = 1e-5 if dtype == "float32" else 3e-3
    check(*normalization(op, names, dtype, **options), tolerance=tolerance)


# ---- Products with packed weights ---------------------------------------------------------------


def packed(bits, zeros, dtype="float32"):
    """Make a MatMulNBits; its zero points are of uint8, of floats, or none."""
    rows, depth, size = 4, 96, 32
    tensors = {"x": real(3, depth, dtype=dtype)}
    tensors["b"] = RNG.integers(0, 256, (rows, depth // size, size * bits // 8)).astype("uint8")
    tensors["scales"] = (RNG.random((rows, depth // size)) / 2**bits).astype(dtype)
    if zeros == "uint8":
        tensors["zeros"] = RNG.integers(0, 256, (rows, -(-depth // size * bits // 8)))
        tensors["zeros"] = tensors["zeros"].astype("uint8")
    elif zeros:
        tensors["zeros"] = RNG.integers(0, 2**bits, (rows, depth // size)).astype(dtype)
    sizes = {"K": depth, "N": rows, "bits": bits, "block_size": size}
    names = ("x", "b", "scales", "zeros")
    return one_node(
        "MatMulNBits", names, tensors, domain=CONTRIB, constants=[*tensors][1:], **sizes
    )


@pytest.mark.parametrize(
    ("bits", "zeros", "dtype"),
    [(4, "uint8", "float16"), (4, "floats", "float32"), (8, "uint8", "float32")],
)
def test_packed_weights_with_zero_points(bits, zeros, dtype):
    check(*packed(bits, zeros, dtype), tolerance=1e-4 if dtype == "float32" else 2e-2)


def test_zero_points_that_are_no_integers_are_refused():
    model, _ = packed(4, "floats")
    model.graph.initializer[-1].raw_data = np.full(12, 0.5, "float32").tobytes()
    with pytest.raises(ValueError, match="zero points that are no integers; supported are 2, 4"):
        backend.from_onnx(model)


# ---- Where they run, and what is refused --------------------------------------------------------


@needs(
    "sdpa_bias",
    "attention_bias",
    "rms_norm",
    "layer_norm",
    "where",
    "take",
    "equal",
    "less_equal",
    "split",
    "concat",
)
@pytest.mark.parametrize(
    ("model", "composite"),
    [
        (lambda: group_query(4, 0, 4, do_rotary=1), "sdpa_bias"),
        (lambda: group_query(1, 8, 8, [3], do_rotary=1, packed=True), "sdpa_bias"),
        (lambda: group_query(3, 8, 8, [4]), "sdpa_bias"),
        (lambda: multi_head(extra={"padding": np.ones((2, 5), "int32")}), "attention_bias"),
        (lambda: tensor_scatter((2, 4, 6, 3), (2, 4, 2, 3), [1, 3]), "take"),
        (lambda: table("UINT8", 4, True), "take"),
        (
            lambda: normalization("SimplifiedLayerNormalization", ("x", "weight"), domain=""),
            "rms_norm",
        ),
        (lambda: normalization("SkipLayerNormalization", NORMED), "layer_norm"),
    ],
    ids=["prompt", "step", "steps", "encoder", "scatter", "table", "rms", "layer"],
)
def test_they_run_on_the_npu(model, composite):
    module = backend.from_onnx(model()[0])
    skip_where_declined(module)
    report = backend.offload_report(partition_for(module))
    assert [(item.op, item.reason) for item in report.on_host] == []
    assert composite in {item.composite for item in report.ops}
    assert {str(item.origin) for item in report.ops if item.origin} == {"author"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"smooth_softmax": 1}, "its attribute smooth_softmax=1 is not read by the importer"),
        ({"causal": 0}, "its attribute causal=0 is not read by the importer"),
        ({"num_heads": 3}, "kv_num_heads=2 does not divide the 3 of q"),
        ({"total": 8}, "total_sequence_length is 8, and the query has 3 steps; without a past"),
        ({"past": 8, "total": 2}, "total_sequence_length is 2, and the query has 3 steps; without"),
        (
            {"do_rotary": 1, "total": 17, "past": 16, "extra": {"cos": real(16, 8)}},
            "its cos_cache has 16 positions, and total_sequence_length is 17; supported are as",
        ),
        ({"open": "total"}, "its total_sequence_length 'total' is not known; supported is a con"),
        ({"open": "query"}, "the steps or the width of its query 'query' are not known; fix the"),
    ],
)
def test_what_is_not_read_of_group_queries_is_refused_by_name(options, sentence):
    where = options.pop("open", "")
    model, _ = group_query(**{"steps": 3, "past": 0, "total": 3, **options})
    if where == "total":
        model.graph.initializer.pop()
        model.graph.input.add(name="total").type.tensor_type.elem_type = 6
    elif where:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "S"
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model)
    assert "node 'author' (com.microsoft.GroupQueryAttention): " in str(caught.value)
    assert sentence in str(caught.value)


def test_results_for_training_are_refused_by_name():
    with pytest.raises(ValueError, match="'mean' is not supported; supported are the first one"):
        model, _ = normalization("SkipLayerNormalization", NORMED, results=("y", "mean"))
        backend.from_onnx(model)
