# SPDX-License-Identifier: Apache-2.0
"""The operators of ONNX Runtime (`com.microsoft`) that importers read.

No package has their schemas. Of each: its attributes with their defaults, where None is for those
without one, and its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

_CONV = {
    "auto_pad": b"NOTSET", "channels_last": 0, "dilations": None, "group": 1, "kernel_shape": None,
    "pads": None, "strides": None,
}  # fmt: skip
_POOL = {
    "auto_pad": b"NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0,
    "kernel_shape": None, "pads": None, "strides": None,
}  # fmt: skip
_ATTENTION = {
    "do_rotary": 0, "mask_filter_value": None, "num_heads": None, "past_present_share_buffer": None,
    "qkv_hidden_sizes": None, "rotary_embedding_dim": None, "scale": None, "unidirectional": 0,
}  # fmt: skip
_UNARY = "X X_scale X_zero_point Y_scale Y_zero_point"
_BINARY = "A A_scale A_zero_point B B_scale B_zero_point C_scale C_zero_point"
_QUANTIZE = {"axis": 1}
_NORMALIZED = "input skip gamma beta bias"
_EMBEDDED = """
input_ids segment_ids word_embedding position_embedding segment_embedding gamma beta mask
position_ids"""

CONTRIB: dict[str, tuple[Mapping[str, object], str]] = {
    "Attention": (
        _ATTENTION, "input weights bias mask_index past attention_bias past_sequence_length"
    ),
    "BiasGelu": ({}, "A B"),
    "DequantizeLinear": (_QUANTIZE, "x x_scale x_zero_point"),
    "DynamicQuantizeMatMul": ({}, "A B b_scale b_zero_point bias"),
    "EmbedLayerNormalization": ({"epsilon": 1e-12, "mask_index_type": 0}, _EMBEDDED),
    "FastGelu": ({}, "X bias"),
    "Gelu": ({}, "X"),
    "GatherBlockQuantized": (
        {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
        "data indices scales zero_points",
    ),
    "GridSample": ({"align_corners": 0, "mode": b"bilinear", "padding_mode": b"zeros"}, "X Grid"),
    "GroupQueryAttention": (
        {"causal": 1, "do_rotary": 0, "k_norm_epsilon": None, "k_quant_type": b"NONE",
         "kv_cache_bit_width": 0, "kv_num_heads": None, "local_window_size": -1, "num_heads": None,
         "q_norm_epsilon": None, "qk_norm_epsilon": 1e-6, "qk_output": 0, "rotary_interleaved": 0,
         "scale": 0.0, "sliding_window_cache": 0, "smooth_softmax": -1, "softcap": 0.0,
         "v_quant_type": b"NONE"},
        """query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache
        position_ids attention_bias head_sink k_scale v_scale q_norm_weight k_norm_weight
        query_seqlens""",
    ),
    "MatMulInteger16": ({}, "A B"),
    "MatMulIntegerToFloat": ({}, "A B a_scale b_scale a_zero_point b_zero_point bias"),
    "MatMulNBits": (
        {"K": None, "N": None, "accuracy_level": 0, "bits": 4, "block_size": None},
        "A B scales zero_points g_idx bias",
    ),
    "MultiHeadAttention": (
        {"mask_filter_value": -10000.0, "num_heads": None, "scale": 0.0, "unidirectional": 0},
        """query key value bias key_padding_mask attention_bias past_key past_value
        past_sequence_length cache_indirection""",
    ),
    "Pad": ({"mode": b"constant"}, "data pads value"),
    "QGemm": (
        {"alpha": 1.0, "transA": 0, "transB": 0},
        "A a_scale a_zero_point B b_scale b_zero_point C y_scale y_zero_point",
    ),
    "QLinearAdd": ({}, _BINARY),
    "QLinearAveragePool": (_POOL, _UNARY),
    "QLinearConcat": ({"axis": None}, "Y_scale Y_zero_point inputs"),
    "QLinearConv": (
        _CONV, "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B"
    ),
    "QLinearGlobalAveragePool": ({"channels_last": 0}, _UNARY),
    "QLinearLeakyRelu": ({"alpha": 0.01}, _UNARY),
    "QLinearMul": ({}, _BINARY),
    "QLinearSigmoid": ({}, _UNARY),
    "QLinearSoftmax": ({"axis": -1, "opset": None}, _UNARY),
    "QLinearWhere": (
        {}, "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point"
    ),
    "QuantizeLinear": (_QUANTIZE, "x y_scale y_zero_point"),
    "RotaryEmbedding": (
        {"interleaved": 0, "is_packed_batching": 0, "num_heads": 0, "rotary_embedding_dim": 0,
         "scale": 1.0},
        "input position_ids cos_cache sin_cache",
    ),
    "SimplifiedLayerNormalization": ({"axis": -1, "epsilon": 1e-5, "stash_type": 1}, "X scale"),
    "SkipLayerNormalization": ({"epsilon": 1e-12}, _NORMALIZED),
    "SkipSimplifiedLayerNormalization": ({"epsilon": 1e-12}, "input skip gamma bias"),
    "Trilu": ({"upper": 1}, "X k"),
}  # fmt: skip
