# SPDX-License-Identifier: Apache-2.0
"""What importers may ignore, each with the reason; all else that they do not read is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Harmless(NamedTuple):
    """Something that an importer may ignore.

    `reason`: why values stay right.
    `when`: for which values of the node's attributes it is so; for all by default.
    """

    reason: str
    when: Callable[[Mapping[str, object]], bool] = lambda given: True


def harmless(front_door: str, op: str, name: str, given: Mapping[str, object]) -> bool:
    """Return whether something may be ignored.

    `front_door`, `op`: the operator: of ONNX without its version, of PyTorch without the overload.
    """
    rows = HARMLESS[front_door]
    reasons = [rows.get(key, {}).get(name) for key in (op, "*")]
    return any(reason is not None and reason.when(given) for reason in reasons)


def _is(name: str, *values: object) -> Callable[[Mapping[str, object]], bool]:
    return lambda given: given.get(name) in values


def _is_off(given: Mapping[str, object]) -> bool:
    """Return whether a dropout drops nothing."""
    rate = given.get("dropout", given.get("p"))
    return given.get("train") in (False, None) or rate in (0, 0.0)


def _is_strided(given: Mapping[str, object]) -> bool:
    return str(given.get("layout")) in ("None", "torch.strided")


def _to_float8(given: Mapping[str, object]) -> bool:
    # FLOAT8E4M3FN to FLOAT8E5M2FNUZ, and FLOAT8E8M0.
    return given.get("to") in (17, 18, 19, 20, 24)


_FLOAT8 = Harmless("It is for casts to 8-bit floats only.", lambda given: not _to_float8(given))
_TESTED = Harmless("A model that runs on an NPU is not being trained.")
_REPEATED = Harmless("It repeats what the shape of an input says.")
_RESULT = Harmless("The type or shape of a result is compared with what the model declares.")
_PRESENT = Harmless("It describes the integers that are there already.")
_DROPOUT = Harmless("Nothing is dropped at inference, or with the rate 0.", _is_off)
_TYPE_STAYS = Harmless("The type stays.", _is("half_to_float", False))
_DROPOUTS = ("dropout", "dropout_", "native_dropout")
_RECURRENT = ("gru", "lstm", "rnn_tanh")
_UNTRAINED = Harmless("Nothing is dropped: training is refused by a rule.")
_ASSERTED = Harmless("An assertion has no values.")
_HINT = Harmless("It is a hint for speed.")
_GRADIENT = Harmless("It matters for gradients only.")
_QUANTIZER = Harmless("It says how a kernel of LiteRT quantizes; the tensors have their scales.")

HARMLESS: Mapping[str, Mapping[str, Mapping[str, Harmless]]] = {
    "onnx": {
        "*": {
            "broadcast": Harmless("Operators broadcast without it too; `axis` says differently."),
            "consumed_inputs": Harmless("A hint of ONNX 1 which buffers may be reused."),
        },
        "BatchNormalization": {"is_test": _TESTED},
        "Cast": {"round_mode": _FLOAT8, "saturate": _FLOAT8},
        "Dropout": {
            "input ratio": _UNTRAINED, "is_test": _TESTED, "ratio": _UNTRAINED, "seed": _UNTRAINED,
        },
        "GroupQueryAttention": {
            "smooth_softmax": Harmless("It is off.", _is("smooth_softmax", 0)),
        },
        "MatMulNBits": {"accuracy_level": _HINT},
        "MaxPool": {
            "storage_order": Harmless("It is for the indices only.", _is("outputs", 1)),
        },
        "SequenceEmpty": {"dtype": Harmless("It has no elements.")},
        "Split": {"num_outputs": Harmless("It is the number of results.")},
    },
    "torch": {
        "*": {
            "cudnn_enable": _HINT,
            "cudnn_enabled": _HINT,
            "device": Harmless("The backend says where a model runs."),
            "dtype": _RESULT,
            "implicit": Harmless("It says who asked for it."),
            "layout": Harmless("Tensors are strided.", _is_strided),
            "memory_format": Harmless("The order in memory is not part of a value."),
            "non_blocking": _HINT,
            "out_dtype": _RESULT,
            "output_dtype": _RESULT,
            "pin_memory": _HINT,
            "scale_grad_by_freq": _GRADIENT,
            "sparse": _GRADIENT,
            "sparse_grad": _GRADIENT,
        },
        "aten._assert_scalar": {"assert_msg": _ASSERTED},
        "aten._assert_tensor_metadata": {"size": _ASSERTED, "stride": _ASSERTED},
        "aten._native_batch_norm_legit": {
            "momentum": _TESTED,
            "training": Harmless("Without statistics, those of the data are used."),
        },
        "aten._log_softmax": {"half_to_float": _TYPE_STAYS},
        "aten._softmax": {"half_to_float": _TYPE_STAYS},
        **{f"aten.adaptive_max_pool{axes}d": {"output_size": _RESULT} for axes in (1, 2, 3)},
        **{f"aten.{op}": {"p": _DROPOUT, "train": _DROPOUT} for op in _DROPOUTS},
        "aten.einsum": {"path": _HINT},
        "aten.embedding": {"padding_idx": _GRADIENT},
        "aten.empty_permuted": {"physical_layout": Harmless("Its elements are undefined.")},
        **{f"aten.{op}": {"dropout": _DROPOUT, "train": _DROPOUT} for op in _RECURRENT},
        "aten.instance_norm": {
            "eps": Harmless("The importer has the same.", _is("eps", 1e-5)),
            "momentum": _TESTED,
            "use_input_stats": Harmless("It is so.", _is("use_input_stats", True)),
        },
        "aten.isin": {"assume_unique": _HINT},
        "aten.native_group_norm": {"C": _REPEATED, "HxW": _REPEATED, "N": _REPEATED},
        "aten.sort": {"stable": Harmless("The sort is stable.")},
        "aten.sym_constrain_range_for_size": {"max": _ASSERTED, "min": _ASSERTED},
        "aten.to": {"copy": Harmless("A copy has the same values.")},
        "aten.topk": {"sorted": Harmless("Without it, any order is right.")},
        **{
            f"quantized_decomposed.dequantize_per_{what}": {
                "quant_max": _PRESENT, "quant_min": _PRESENT,
            }
            for what in ("channel", "channel_group", "tensor")
        },
        "torchao.choose_qparams_affine": {
            "keepdim": Harmless("A scale means the same in any shape."),
            "scale_dtype": Harmless("Scales are computed in float32."),
            "zero_point_dtype": Harmless("Zero points are integers in any type."),
        },
        "torchao.dequantize_affine": {
            "input_dtype": _PRESENT, "quant_max": _PRESENT,
            "quant_min": _PRESENT,
        },
    },
    "tflite": {
        "*": {
            "AsymmetricQuantizeInputs": _QUANTIZER,
            "OutputType": _RESULT,
            "PotScaleInt16": _QUANTIZER,
            "QuantizedBiasType": _QUANTIZER,
            "ValidateIndices": _ASSERTED,
        },
        "CAST": {"InDataType": Harmless("The tensor has its type.")},
        "SHAPE": {"OutType": _RESULT},
        "SPLIT_V": {"NumSplits": Harmless("It is the number of results.")},
    },
}  # fmt: skip
"""By front door and operator, where `*` is any; the names are those in the readings."""
