# SPDX-License-Identifier: Apache-2.0
"""The small networks, quantized by the tools that users have: ONNX Runtime and torchao.

They are quantized with few random batches: good for comparing values, not for judging accuracy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backend.api import Array, quiet
from .onnx_networks import SMALL, Network

if TYPE_CHECKING:
    import torch
    import tvm
    from onnx import ModelProto
    from onnxruntime.quantization import CalibrationDataReader


FORMS = ("qdq", "dedicated", "qoperator", "dynamic")
"""How ONNX Runtime writes a quantized model.

QuantizeLinear and DequantizeLinear, each shared by the operators that read it, or dedicated to one;
operators on integers; and those with scales that are computed at run time.
"""


def calibration_batches(arguments: Sequence[Array], count: int = 4) -> list[list[Array]]:
    """Return inputs like those of a network; integers and masks are the same in each."""
    random = np.random.default_rng(0)

    def another(array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        return random.standard_normal(array.shape).astype(array.dtype)

    return [list(arguments), *([*map(another, arguments)] for _ in range(count - 1))]


def quantize_onnx(
    network: Network,
    form: str = "qdq",
    *,
    activations: str = "int8",
    weights: str = "int8",
    per_channel: bool = True,
) -> ModelProto:
    """Quantize a model by `onnxruntime.quantization`.

    `form`: one of `FORMS`.
    `activations`, `weights`: types: int8 or uint8, and int16 or uint16 for activations; "dynamic"
    has uint8 activations. With uint8 activations, ONNX Runtime's sums saturate on processors
    without VNNI, so that it is not a reference there for operators on integers.
    `per_channel`: whether each output channel of the weights has a scale.
    """
    import onnx
    from onnxruntime.quantization import (
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    types = {
        "int8": QuantType.QInt8,
        "uint8": QuantType.QUInt8,
        "int16": QuantType.QInt16,
        "uint16": QuantType.QUInt16,
    }
    model, arguments = network
    with quiet(), tempfile.TemporaryDirectory() as directory:
        source, target = (str(Path(directory) / name) for name in ("float.onnx", "quantized.onnx"))
        # It takes paths; models in memory failed.
        onnx.save(model, source)
        options: dict[str, object] = {
            "weight_type": types[weights],
            "per_channel": per_channel,
            "extra_options": {"DedicatedQDQPair": form == "dedicated"},
        }
        if form == "dynamic":
            quantize_dynamic(source, target, **options)
        else:
            names = [value.name for value in model.graph.input]
            kind = QuantFormat.QOperator if form == "qoperator" else QuantFormat.QDQ
            quantize_static(
                source,
                target,
                _reader(names, calibration_batches(arguments)),
                quant_format=kind,
                activation_type=types[activations],
                **options,
            )
        return onnx.load(target)


def _reader(names: Sequence[str], batches: Sequence[Sequence[Array]]) -> CalibrationDataReader:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Hands out the batches."""

        def __init__(self) -> None:
            self._feeds = iter([dict(zip(names, batch, strict=True)) for batch in batches])

        def get_next(self) -> dict[str, Array] | None:
            """Return the next batch, or None."""
            return next(self._feeds, None)

    return Reader()


def read(name: str, form: str, **options: Any) -> tuple[tvm.IRModule, list[Array], list[Array]]:
    """Quantize a network of `onnx_networks.SMALL`, and read it with the importer."""
    from ...backend.api import from_onnx, original_of

    network = SMALL[name]()
    model = quantize_onnx(network, form, **options)
    arguments = list(network[1])
    with quiet():
        module = from_onnx(model)
    return module, arguments, original_of(model).run(arguments)


def quantize_torch(
    network: torch.nn.Module, inputs: Sequence[torch.Tensor], *, per_channel: bool = True
) -> torch.export.ExportedProgram:
    """Quantize a PyTorch network by torchao's PT2E, with the quantizer for XNNPACK.

    `per_channel`: whether each output channel of the weights has a scale.
    """
    import torch

    with quiet():
        # The first import reports libraries for other processors.
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

        config = xnnpack.get_symmetric_quantization_config(is_per_channel=per_channel)
        quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
        given = tuple(inputs)
        with torch.no_grad():
            prepared = prepare_pt2e(torch.export.export(network, given).module(), quantizer)
            for batch in calibration_batches([item.numpy() for item in given]):
                prepared(*map(torch.from_numpy, batch))
            return torch.export.export(convert_pt2e(prepared), given)


def export(name: str, **options: Any) -> tuple[tvm.IRModule, list[Array], list[Array]]:
    """Quantize a network of `torch_networks.SMALL`, and read it with the importer."""
    from . import torch_networks

    network, inputs = torch_networks.make(*torch_networks.SMALL[name])
    program = quantize_torch(network, inputs, **options)
    with quiet():
        return torch_networks.read(program, inputs, program.module())
