# SPDX-License-Identifier: Apache-2.0
"""Reads TFLite models with TVM's converters: ops on real numbers, between dequantize and quantize.

TVM's importer has code of its own for the integers of some operators and refuses the others. Here
all of them are converted as in a float model. Converters of ours replace those of TVM that drop an
option of a file or misread it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import tflite
import tvm
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import ExprTable, TensorWrapper

from ...ir.calls import Constant
from ...shared.messages import FIX_SIZES, last_line
from ..attributes.tflite_unread import require_options
from ..declared import require_declared
from ..failures import unknown_operators
from .channels_first import channels_first
from .computed_values import Values
from .layers import Layers
from .places import Places
from .tensors import Subgraph, constant, static_shape
from .variables import VARIABLES, Variables, with_variables

_BIASES = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
"""Which input is a bias; the two before it are data and weight."""
_NAMES = """
ABS ADD ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL BATCH_TO_SPACE_ND BROADCAST_TO CEIL
CONCATENATION CONV_2D COS DENSIFY DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV ELU EQUAL EXP
EXPAND_DIMS FLOOR FULLY_CONNECTED GATHER GATHER_ND GELU GREATER GREATER_EQUAL HARD_SWISH
L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOG LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN
MINIMUM MIRROR_PAD MUL NOT_EQUAL PACK PAD PADV2 POW PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU
RELU6 RELU_0_TO_1 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 ROUND
RSQRT SELECT SELECT_V2 SHAPE SIN SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V
SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TOPK_V2 TRANSPOSE
TRANSPOSE_CONV UNPACK"""
_CONVERTED = frozenset(_NAMES.split())
"""The operators that are converted if their tensors are quantized.

Not those that LiteRT computes on the integers themselves, whatever they stand for: NEG, FLOOR_DIV.
"""
_DETECTION = "TFLite_Detection_PostProcess"
_UNREAD = {
    *("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "SVDF"),
    *("UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN"),
    *("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP", "HASHTABLE_SIZE"),
    *("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"),
    *("CONV_3D_TRANSPOSE", "EMBEDDING_LOOKUP_SPARSE", "UNIQUE", "WHERE"),
    *("CALL", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES", "TAN"),
}
"""What TVM converts into something else than LiteRT computes, or into what does not compile."""
_STABLEHLO = {f"STABLEHLO_{name}" for name in ("ADD", "MAXIMUM", "MINIMUM", "MULTIPLY")}
"""Those that LiteRT computes as well, so that they can be compared."""
_REDUCING = (
    *("ARG_MAX", "ARG_MIN", "BATCH_MATMUL", "FULLY_CONNECTED", "MEAN", "REDUCE_MAX"),
    *("REDUCE_MIN", "REDUCE_PROD", "SUM"),
)
"""Those that make one element of several."""
_OF_REAL = ("ATAN2", "AVERAGE_POOL_2D", "POW")
"""Those of real numbers that TVM's importer also takes of integers, and computes wrongly."""
_FOLDED = 4096
"""The most elements of a result that is computed while reading."""
_OPERATORS = {
    int(number): name for name, number in vars(tflite.BuiltinOperator).items() if name.isupper()
}


def read(
    model: tflite.Model,
    shape_dict: Mapping[str, Sequence[int]] | None = None,
    dtype_dict: Mapping[str, str] | None = None,
) -> tvm.IRModule:
    """Read a model.

    A module with the function `main`, whose convolutions have the channels first.
    """
    try:
        return _read(model, dict(shape_dict or {}), dict(dtype_dict or {}))
    except ValueError:
        raise
    except Exception as error:  # Offsets that lead anywhere raise countless errors.
        why = f"{type(error).__name__}: {last_line(error)}"
        raise ValueError(f"the file is damaged or has an unknown format ({why})") from error


def _read(
    model: tflite.Model, shapes: dict[str, Sequence[int]], dtypes: dict[str, str]
) -> tvm.IRModule:
    if not model.SubgraphsLength():
        raise ValueError("the file has no graph")
    builder = relax.BlockBuilder()
    graph = Subgraph(model.Subgraphs(0))
    with builder.function("main"):
        with builder.dataflow():
            converter = Converter(model, graph, ExprTable(), builder)
            converter.variables = {}
            inputs = converter.inputs(shapes, dtypes)
            converter.check_unsupported_ops()
            converter.convert_op_to_relax()
            tensors = converter.get_tensors(graph.given.OutputsAsNumpy())
            results = [converter.get_tensor_expr(tensor) for tensor in tensors]
            states = converter.states()
            inputs += [state.before for state in states]
            results += [state.now for state in states]
            result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(result, inputs)
    mod = builder.get()
    function = channels_first(mod["main"].with_attr("num_input", len(inputs)))
    mod["main"] = with_variables(function, states)
    return mod


class Converter(Layers, Places, Values, Variables):
    """Gives TVM's converters real numbers, and quantizes what they return."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._refused: set[str] = set()
        for name in list(self.convert_map):
            is_compared = name in _STABLEHLO or not name.startswith("STABLEHLO_")
            if name in {*_UNREAD, *VARIABLES} or not is_compared:
                del self.convert_map[name]
                self._refused.add(name)
        self.convert_map["QUANTIZE"] = self._quantize
        self.convert_map["DEQUANTIZE"] = self._dequantize
        self.convert_map["DENSIFY"] = self._densify

    def inputs(self, shapes: dict[str, Sequence[int]], dtypes: dict[str, str]) -> list[relax.Var]:
        """Return the variables of the model's inputs."""
        tensors = self.get_tensors(self.subgraph.InputsAsNumpy())
        names = [tensor.tensor.name for tensor in tensors]
        for name in (*shapes, *dtypes):
            if name not in names:
                raise ValueError(f"there is no input {name!r}; the inputs are {', '.join(names)}")
        variables = []
        for name, tensor in zip(names, tensors, strict=True):
            given, dtype = self.get_tensor_shape(tensor), self.dtype(tensor)
            shape = [int(size) for size in shapes.get(name, given)]
            if dtypes.get(name, dtype) != dtype:
                raise ValueError(
                    f"the input {name!r} is {dtype}, and dtype_dict has {dtypes[name]}"
                )
            if min(shape, default=0) < 0:
                raise ValueError(f"the input {name!r} has the open shape {shape}; {FIX_SIZES}")
            if given and len(shape) != len(given):
                raise ValueError(f"the input {name!r} has the shape {given}, and {shape} is given")
            if shape != given:
                self.conversion_state["resized"] = True
            if dtype == "complex64":
                shape, dtype = [*shape, 2], "float32"
            variables.append(relax.Var(name, relax.TensorType(shape, dtype)))
            self.exp_tab.set_expr(name, variables[-1])
        return variables

    def check_unsupported_ops(self) -> None:
        """Refuse what cannot be read, before anything is."""
        unknown = []
        for index in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(index)
            kind = self.get_op_code_str(op)
            is_variable = kind in VARIABLES
            if is_variable and self.variables is None:
                raise ValueError(
                    f"the operator {self._title(index)} uses a variable in a branch or a loop, "
                    "which is not supported; read and assign it outside"
                )
            if any(map(self._is_variable, self.get_input_tensors(op))):
                raise ValueError(
                    f"the operator {self._title(index)} keeps a variable from one call to the "
                    "next in a tensor, which is not supported; make it an input and a result of "
                    "the model, or a variable with READ_VARIABLE and ASSIGN_VARIABLE"
                )
            if is_variable:
                continue
            if kind in self._refused:
                raise ValueError(
                    f"the operator {self._title(index)} is not supported: what TVM's importer "
                    "makes of it was not compared with LiteRT, or differs. Export the model with "
                    "others, or without the part that has it."
                )
            if kind not in self.convert_map:
                unknown.append(self._title(index))
        if unknown:
            raise ValueError(unknown_operators(unknown))

    def get_op_code_str(self, op: tflite.Operator) -> str:
        """Return the name of an operator, of a custom one the name in the file."""
        code = self.model.OperatorCodes(op.OpcodeIndex())
        # The package's `BuiltinCode` ignores the newer field of operators that have the older one.
        place = code._tab.Offset(10)
        newer = struct.unpack_from("<i", code._tab.Bytes, place + code._tab.Pos) if place else (0,)
        number = max(*newer, code.DeprecatedBuiltinCode())
        if number == tflite.BuiltinOperator.CUSTOM:
            name = (code.CustomCode() or b"").decode(errors="replace")
            return "DETECTION_POSTPROCESS" if name == _DETECTION else f"custom operator {name!r}"
        return str(_OPERATORS.get(number, f"number {number}"))

    def convert_op_to_relax(self) -> None:
        """Convert all operators."""
        for tensor in self.get_tensors(self.subgraph.InputsAsNumpy()):
            if tensor.scales is not None:
                self._integers[tensor.tensor.name] = self.exp_tab.exprs.pop(tensor.tensor.name)
        for index in range(self.subgraph.OperatorsLength()):
            with self._naming(index):
                self._convert(self.subgraph.Operators(index), self._title(index))
        for tensor in self.get_tensors(self.subgraph.OutputsAsNumpy()):
            data = self._integers.get(tensor.tensor.name)
            if data is not None:
                self.exp_tab.set_expr(tensor.tensor.name, data, force_override=True)

    def _title(self, index: int) -> str:
        """Return an operator's kind and place, and the name of its first result."""
        op = self.subgraph.Operators(index)
        numbers = [*_numbers(op.OutputsAsNumpy()), *_numbers(op.InputsAsNumpy())]
        title = f"{self.get_op_code_str(op)} (operator {index}"
        if numbers:
            title += f", tensor {self.subgraph.Tensors(numbers[0]).name!r}"
        return f"{title})"

    @contextmanager
    def _naming(self, index: int) -> Iterator[None]:
        """Say in errors which operator is read."""
        try:
            yield
        except Exception as error:  # TVM's converters raise countless errors.
            title, why = self._title(index), last_line(error)
            if title in str(error):
                raise
            if not isinstance(error, (ValueError, NotImplementedError, RuntimeError)):
                why = f"TVM's importer fails with {type(error).__name__}: {why}"
            raise ValueError(f"the operator {title} cannot be read: {why}") from error

    def _convert(self, op: tflite.Operator, title: str) -> None:
        kind = self.get_op_code_str(op)
        if kind in VARIABLES:
            self.convert_variable(kind, op)
            return
        inputs, outputs = self.get_input_tensors(op), self.get_output_tensors(op)
        self._check(kind, inputs, outputs)
        require_options(op, kind, title)
        for tensor in inputs:
            self._read(tensor)
        bias = self._read_bias(kind, inputs)
        result = self.convert_map[kind](op=op)
        if bias:
            # Another operator may read the same constant in another shape, or by other scales.
            del self.exp_tab.exprs[bias]
        if result is None:
            return
        is_real = all(tensor.scales is None for tensor in (*inputs, *outputs))
        is_known = all(map(self.is_constant, inputs)) and kind not in ("IF", "WHILE")
        if is_real and is_known and len(outputs) == 1:
            result = self._folded(result)
        if isinstance(result, Constant) and outputs[0].scales is None:
            require_declared(title, outputs[0].tensor.name, self.declared(outputs[0]), result)
            self.know(outputs[0], result.value.numpy())
            return
        result = self.bb.emit(result)
        for number, tensor in enumerate(outputs):
            value = result if len(outputs) == 1 else self.bb.emit(result[number])
            require_declared(title, tensor.tensor.name, self.declared(tensor), value)
            self._write(tensor, value)

    def _folded(self, result: relax.Expr) -> relax.Expr:
        """Compute a result of constants, such as a shape, if it is small."""
        builder = relax.BlockBuilder()
        with builder.function("main", []):
            with builder.dataflow():
                output = builder.emit_output(result)
            builder.emit_func_output(output)
        shape = static_shape(output)
        if isinstance(result, Constant) or shape is None or np.prod(shape) > _FOLDED:
            return result
        body = relax.transform.FoldConstant()(builder.get())["main"].body
        values = [
            body.body,
            *(binding.value for block in body.blocks for binding in block.bindings),
        ]
        folded = next((value for value in reversed(values) if isinstance(value, Constant)), None)
        return result if folded is None or static_shape(folded) != shape else folded

    def _is_variable(self, tensor: TensorWrapper) -> bool:
        return tensor.tensor_idx >= 0 and bool(tensor.tensor.IsVariable())

    def _check(
        self, kind: str, inputs: Sequence[TensorWrapper], outputs: Sequence[TensorWrapper]
    ) -> None:
        tensors = [tensor for tensor in (*inputs, *outputs) if tensor.scales is not None]
        if tensors and kind not in _CONVERTED:
            raise ValueError(
                f"it has the quantized tensor {tensors[0].tensor.name!r}; supported is this "
                "operator on real numbers; on quantized tensors these are: "
                f"{', '.join(sorted(_CONVERTED))}"
            )
        if kind in _OF_REAL:
            types = [self.get_tensor_type_str(tensor.tensor.Type()) for tensor in inputs]
            if not all(name.startswith("float") for name in types):
                raise ValueError(
                    f"its inputs are {' and '.join(types)}; supported are floating-point numbers"
                )
        of_none = [tensor for tensor in inputs if self._is_empty(tensor)]
        if of_none and kind in _REDUCING and not any(map(self._is_empty, outputs)):
            # TVM's kernels leave such a result as they find it.
            raise ValueError(
                f"its input {of_none[0].tensor.name!r} has no elements; supported is at least one"
            )

    def _is_empty(self, tensor: TensorWrapper) -> bool:
        return tensor.tensor_idx >= 0 and 0 in self.get_tensor_shape(tensor)

    def _read(self, tensor: TensorWrapper) -> None:
        """Dequantize a tensor, once."""
        if tensor.scales is None or self.has_expr(tensor.tensor_idx):
            return
        data = self._integers.get(tensor.tensor.name)
        if data is None:
            data = constant(self.stored(tensor))
        scale, zero, axis = tensor.scales
        real = relax.op.dequantize(data, relax.const(scale), relax.const(zero), axis)
        self.exp_tab.set_expr(tensor.tensor.name, self.bb.emit(real))

    def _read_bias(self, kind: str, inputs: Sequence[TensorWrapper]) -> str:
        """Make a constant bias real numbers; that of a convolution follows changes of layout.

        The scale of integers is the product of those of data and weight. Returns its name, or "".
        """
        place = _BIASES.get(kind, len(inputs))
        bias = inputs[place] if place < len(inputs) else None
        if bias is None or not self.is_constant(bias):
            return ""
        value = self.get_tensor_value(bias)
        factors = [tensor.scales for tensor in inputs[place - 2 : place]]
        if None not in factors:
            of_data, of_weight = (tensor.scale for tensor in factors)
            value = (value * (of_data * of_weight)).astype("float32")
        if kind != "FULLY_CONNECTED":
            value = value.reshape(1, 1, 1, -1)
        self.exp_tab.set_expr(bias.tensor.name, constant(value))
        return str(bias.tensor.name)

    def _write(self, tensor: TensorWrapper, value: relax.Expr) -> None:
        """Set the value of a tensor, and quantize it if it is quantized."""
        if tensor.scales is None:
            self.exp_tab.set_expr(tensor.tensor.name, value)
            return
        scale, zero, axis = tensor.scales
        quantized = relax.op.quantize(
            value, relax.const(scale), relax.const(zero), axis, self.dtype(tensor)
        )
        self._integers[tensor.tensor.name] = self.bb.emit(quantized)

    def _quantize(self, op: tflite.Operator) -> relax.Expr:
        """Pass real numbers on: `_write` quantizes them."""
        return self.get_tensor_expr(self.get_input_tensors(op)[0])

    def _dequantize(self, op: tflite.Operator) -> relax.Expr:
        """Pass on what `_read` has dequantized; numbers of float16 are cast."""
        (tensor,) = self.get_input_tensors(op)
        if self.is_constant(tensor) and tensor.scales is None:
            return constant(self.stored(tensor).astype("float32"))
        read = self.get_tensor_expr(tensor)
        return read if tensor.scales is not None else relax.op.astype(read, "float32")

    def _densify(self, op: tflite.Operator) -> None:
        """Keep the constant in full."""
        (given,), (result,) = self.get_input_tensors(op), self.get_output_tensors(op)
        self.know(result, self.stored(given))


def _numbers(vector: object) -> list[int]:
    """Return the numbers of a vector of tensors, which a file may lack."""
    return [int(i) for i in vector if i >= 0] if isinstance(vector, np.ndarray) else []
