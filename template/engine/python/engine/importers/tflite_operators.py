# SPDX-License-Identifier: Apache-2.0
"""Reads TFLite models with TVM's importer: ops on real numbers, between dequantize and quantize.

TVM's importer has code of its own for the integers of some operators and refuses the others. Here
all of them are converted as in a float model, by a class that the importer takes as `op_converter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tflite import TensorType
from tvm import relax
from tvm.relax.frontend.tflite import from_tflite
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, get_tensor_name

from ..aliases import Array
from .channels_first import channels_first

if TYPE_CHECKING:
    from tflite import Operator
    from tvm.relax.frontend.tflite.tflite_frontend import TensorWrapper

_BIASES = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
"""Which input is a bias; the two before it are data and weight."""
_TYPES = ("int8", "uint8", "int16")
_NAMES = """
ABS ADD ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL BATCH_TO_SPACE_ND CEIL CONCATENATION
CONV_2D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV ELU EQUAL EXP EXPAND_DIMS FLOOR
FLOOR_DIV FULLY_CONNECTED GATHER GELU GREATER GREATER_EQUAL HARD_SWISH L2_NORMALIZATION
LEAKY_RELU LESS LESS_EQUAL LOG LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD
MUL NEG NOT_EQUAL PACK PAD PADV2 POW PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6
RELU_0_TO_1 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 ROUND RSQRT
SHAPE SIN SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE
SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TRANSPOSE TRANSPOSE_CONV UNPACK"""
_CONVERTED = frozenset(_NAMES.split())
"""The operators that are converted if their tensors are quantised."""


def read(model: object, **options: object) -> tvm.IRModule:
    """Read a model.

    Parameters
    ----------
    model
        A `tflite.Model`.
    **options
        Of TVM's importer.

    Returns
    -------
    mod
        A module with the function `main`, whose convolutions have the channels first.
    """
    mod = from_tflite(model, op_converter=_Converter, **options)
    # The parameters are in the code, too.
    mod["main"] = channels_first(mod["main"].without_attr("params"))
    return mod


class _Real:
    """A quantised tensor of a file, whose type claims to be float32."""

    def __init__(self, given: object) -> None:
        self.given = given

    def __getattr__(self, name: str) -> object:
        return getattr(self.given, name)

    def Type(self) -> int:
        """Return what converters choose types by."""
        return int(TensorType.FLOAT32)


class _Converter(OperatorConverter):  # type: ignore[misc]
    """Gives TVM's converters real numbers, and quantizes what they return."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._integers: dict[str, relax.Expr] = {}
        """Quantised inputs and results, by the name of the tensor."""
        self.convert_map["QUANTIZE"] = self._quantize
        self.convert_map["DEQUANTIZE"] = self._dequantize

    def get_tensors(self, tensors_idx_list: Iterable[int]) -> list[TensorWrapper]:
        """Return tensors; quantised ones look like real numbers."""
        tensors: list[TensorWrapper] = super().get_tensors(tensors_idx_list)
        for tensor in tensors:
            found, tensor.qnn_params = tensor.qnn_params, None
            tensor.scales = found if found and self._dtype(tensor) in _TYPES else None
            if tensor.scales is not None:
                tensor.tensor = _Real(tensor.tensor)
        return tensors

    def get_tensor_value(self, tensor_wrapper: TensorWrapper, is_sparse: bool = False) -> Array:
        """Return a constant, as real numbers if it is quantised."""
        if tensor_wrapper.scales is None:
            real: Array = super().get_tensor_value(tensor_wrapper, is_sparse)
            return real
        value = self._constant(tensor_wrapper)
        scale, zero, axis = self._parameters(tensor_wrapper)
        along = [-1 if index == axis else 1 for index in range(value.ndim)] if scale.ndim else ()
        real = (value.astype("float32") - zero.reshape(along)) * scale.reshape(along)
        return real

    def convert_op_to_relax(self) -> None:
        """Convert all operators."""
        for tensor in self.get_tensors(self.subgraph.InputsAsNumpy()):
            if tensor.scales is not None:
                self._integers[self._name(tensor)] = self.exp_tab.exprs.pop(self._name(tensor))
        for index in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(index)
            kind = self.get_op_code_str(op)
            inputs, outputs = self.get_input_tensors(op), self.get_output_tensors(op)
            self._check(kind, inputs, outputs)
            for tensor in inputs:
                self._read(tensor)
            self._read_bias(kind, inputs)
            result = self.convert_map[kind](op=op)
            if result is None:
                continue
            result = self.bb.emit(result)
            for number, tensor in enumerate(outputs):
                one = result if len(outputs) == 1 else self.bb.emit(result[number])
                self._write(tensor, one)
        for tensor in self.get_tensors(self.subgraph.OutputsAsNumpy()):
            data = self._integers.get(self._name(tensor))
            if data is not None:
                self.exp_tab.set_expr(self._name(tensor), data, force_override=True)

    def _name(self, tensor: TensorWrapper) -> str:
        return str(get_tensor_name(self.subgraph, tensor.tensor_idx))

    def _dtype(self, tensor: TensorWrapper) -> str:
        return str(self.get_tensor_type_str(getattr(tensor.tensor, "given", tensor.tensor).Type()))

    def _constant(self, tensor: TensorWrapper) -> Array:
        """Return the integers of a quantised constant."""
        content = np.asarray(tensor.buffer.DataAsNumpy()).tobytes()
        shape = tensor.tensor.ShapeAsNumpy()
        integers: Array = np.frombuffer(content, self._dtype(tensor)).reshape(shape)
        return integers

    def _parameters(self, tensor: TensorWrapper) -> tuple[Array, Array, int]:
        """Return scale and zero point, both scalars or vectors, and the axis of a vector."""
        scale, zero = (tensor.scales[key].value.numpy() for key in ("scale", "zero_point"))
        zero = np.broadcast_to(zero, scale.shape).astype(self._dtype(tensor))
        return scale, zero, tensor.scales["axis"] if scale.ndim else -1

    def _check(
        self, kind: str, inputs: Sequence[TensorWrapper], outputs: Sequence[TensorWrapper]
    ) -> None:
        tensors = [item for item in (*inputs, *outputs) if item.scales is not None]
        if tensors and kind not in _CONVERTED:
            raise ValueError(
                f"TFLite operator {kind} with the quantised tensor {self._name(tensors[0])!r}: "
                "supported is this operator on real numbers; on quantised tensors these are: "
                f"{', '.join(sorted(_CONVERTED))}"
            )

    def _read(self, tensor: TensorWrapper) -> None:
        """Dequantize a tensor, once."""
        if tensor.scales is None or self.has_expr(tensor.tensor_idx):
            return
        data = self._integers.get(self._name(tensor))
        if data is None:
            data = relax.const(self._constant(tensor))
        scale, zero, axis = self._parameters(tensor)
        real = relax.op.dequantize(data, relax.const(scale), relax.const(zero), axis)
        self.exp_tab.set_expr(self._name(tensor), self.bb.emit(real))

    def _read_bias(self, kind: str, inputs: Sequence[TensorWrapper]) -> None:
        """Make a constant bias real numbers; that of a convolution follows changes of layout.

        The scale of integers is the product of those of data and weight.
        """
        place = _BIASES.get(kind, len(inputs))
        bias = inputs[place] if place < len(inputs) else None
        if bias is None or bias.tensor_idx < 0 or self.has_expr(bias.tensor_idx):
            return
        value = self.get_tensor_value(bias)
        factors = [item.scales for item in inputs[place - 2 : place]]
        if None not in factors:
            one, other = (item["scale"].value.numpy() for item in factors)
            value = (value * (one * other)).astype("float32")
        if kind != "FULLY_CONNECTED":
            value = value.reshape(1, 1, 1, -1)
        self.exp_tab.set_expr(self._name(bias), relax.const(value))

    def _write(self, tensor: TensorWrapper, value: relax.Expr) -> None:
        """Set the value of a tensor, and quantize it if it is quantised."""
        if tensor.scales is None:
            self.exp_tab.set_expr(self._name(tensor), value)
            return
        scale, zero, axis = self._parameters(tensor)
        quantized = relax.op.quantize(
            value, relax.const(scale), relax.const(zero), axis, self._dtype(tensor)
        )
        self._integers[self._name(tensor)] = self.bb.emit(quantized)

    def _quantize(self, op: Operator) -> relax.Expr:
        """Pass real numbers on: `_write` quantizes them."""
        return self.get_tensor_expr(self.get_input_tensors(op)[0])

    def _dequantize(self, op: Operator) -> relax.Expr:
        """Pass on what `_read` has dequantized; constants of float16 are cast."""
        (tensor,) = self.get_input_tensors(op)
        read = self.get_tensor_expr(tensor) if tensor.scales is not None else None
        return self.convert_dequantize(op) if read is None else read
