# SPDX-License-Identifier: Apache-2.0
"""Reads models with TVM's importers; quantized ones as one form: dequantize, op, quantize.

TVM's importers read the float ops. What exporters write for integers is put into this form before
or while they read: quantized ONNX operators are rewritten to standard ones (`onnx.operators`), as
are those that TVM's importer reads otherwise than ONNX means them, PyTorch's quantized ops are
converted by TVM's `custom_convert_map` (`torch.quantized_ops`), and those of TFLite by its
`op_converter` (`tflite.operators`). Nothing of TVM is patched, and integer weights stay
`dequantize(constant)`. Each call keeps the name that the author of the model gave its node
(`onnx.node_names`, `torch.module_names`), for reports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm

from .failures import readable_errors


@readable_errors()
def from_onnx(
    model: object, states: bool | Mapping[str, str] = False, **options: object
) -> tvm.IRModule:
    """Read an ONNX model, which may be quantized.

    TVM's importer reads it after operators were rewritten. Quantized ones, such as QLinearConv and
    those of ONNX Runtime, become the operator on floats between DequantizeLinear and
    QuantizeLinear; tensors of 2 and 4 bits become tensors of 8 bits with the same values. Operators
    that TVM's importer would read wrongly or not at all, such as Resize with `antialias` or LSTM,
    become others that it reads. Shape computations on known sizes become constants.

    Parameters
    ----------
    model
        An `onnx.ModelProto`, which is not changed, or the path of a file.
    states
        Inputs that are states, such as the caches of a decoder, each with the result that is its
        next value; or True for those that nodes tell, such as the past of a GroupQueryAttention
        and its present. They become the last parameters and results, and begin with zeros. By
        default, they are inputs and results as any.
    **options
        Of `tvm.relax.frontend.onnx.from_onnx`, such as `shape_dict` and `keep_params_in_input`.

    Returns
    -------
    mod
        A module with the function `main`.

    Raises
    ------
    ValueError
        An operator or an attribute is not supported, TVM reads a node as another type than the
        model declares, its nodes cannot be computed in their order, or what was given is not a
        model or no shape; the message names the node or input and what is supported.
    ImportError
        onnx is not installed.
    """
    # First, since an ImportError of onnx itself says what to install.
    import onnx
    import tvm.relax.frontend.onnx  # noqa: F401
    from onnx.inliner import inline_local_functions

    from .onnx.checks import require_sound
    from .onnx.folding import fold
    from .onnx.node_names import read
    from .onnx.operators import normalize
    from .onnx.states import (
        growing_axes,
        pairs_of,
        with_last_steps,
        with_states,
        with_states_last,
    )
    from .onnx.types import outline
    from .onnx.validity import require_valid
    from .sizes import require_shapes

    if isinstance(model, (str, os.PathLike)):
        model = onnx.load(model)
    if not isinstance(model, onnx.ModelProto):
        raise ValueError(
            f"the model is of type {type(model).__name__}; supported are onnx.ModelProto and the "
            "path of a file"
        )
    whole = inline_local_functions(model) if model.functions else model
    require_sound(whole)
    pairs = pairs_of(whole.graph, states)
    axes = growing_axes(whole.graph, pairs)
    whole, pairs = with_last_steps(whole, pairs, axes)
    whole = with_states_last(whole, pairs)
    shapes = options.get("shape_dict")
    require_shapes(shapes, may_be_open=True)
    told: dict[str, int | str] = {}
    while True:
        before = len(told)
        types = outline(whole, shapes, told)
        is_folded = fold(types)
        if not told:
            require_valid(whole, types, with_sizes=not shapes)
        try:
            mod = read(normalize(whole, types, is_folded), types, told, **options)
        except ValueError:
            # The nodes may contradict what an earlier round has told of the sizes.
            if len(told) == before:
                raise
        else:
            if len(told) == before:
                return with_states(mod, whole.graph, pairs, axes)


@readable_errors()
def from_exported_program(
    program: object, bfloat16: str = "float32", **options: object
) -> tvm.IRModule:
    """Read a PyTorch program, which may be quantized by PT2E or torchao.

    TVM's importer reads it, with converters for `quantized_decomposed` and for torchao's affine
    ops, and for the ops that TVM reads wrongly or not at all. Each result has the type that the
    program declares. PyTorch multiplies by the reciprocal of a scale where Relax divides by the
    scale, so that ties may be rounded to the neighbouring integer.

    Results that are None are left out.

    Parameters
    ----------
    program
        A `torch.export.ExportedProgram`.
    bfloat16
        The type that weights, inputs and results of type bfloat16 get: "float32" keeps all values,
        "float16" halves the weights and lacks the range; "bfloat16" leaves them.
    **options
        Of `tvm.relax.frontend.torch.from_exported_program`; converters in its `custom_convert_map`
        take precedence over ours.

    Returns
    -------
    mod
        A module with the function `main`.

    Raises
    ------
    ValueError
        An op is not supported, or would be read with another type than the program declares, or
        the program changes a buffer or an input, or returns random numbers, or what was given is
        not a program; the message names the node and what is supported.
    ImportError
        torch is not installed.
    """
    from .torch.programs import read

    if not hasattr(program, "graph_signature"):
        raise ValueError(
            f"the program is of type {type(program).__name__}; supported is what "
            "torch.export.export(network, inputs) returns"
        )
    return read(program, bfloat16, options)


@readable_errors()
def from_tflite(
    model: object,
    shape_dict: Mapping[str, Sequence[int]] | None = None,
    dtype_dict: Mapping[str, str] | None = None,
) -> tvm.IRModule:
    """Read a TFLite model, which may be quantized.

    Converters of TVM and of this package read it: each operator on quantized tensors as one on
    real numbers, between dequantize and quantize. Convolutions get the channels first, as ONNX and
    PyTorch have them; inputs and outputs stay as they are in the file. Variables that the file
    reads before it assigns them are states.

    Parameters
    ----------
    model
        The path of a file, its bytes, or a `tflite.Model`.
    shape_dict
        Shapes of inputs in place of those in the file, by their names.
    dtype_dict
        Element types of inputs, which must be those of the file.

    Returns
    -------
    mod
        A module with the function `main`.

    Raises
    ------
    ValueError
        An operator is not supported, what was read contradicts the file, or what was given is not a
        model or no shape; the message names the operator, its number and its tensor.
    ImportError
        tflite is not installed.
    """
    try:
        import tflite
    except ImportError:
        raise ImportError(
            "the Python package tflite is not installed; install it with: pip install tflite"
        ) from None
    from .sizes import require_shapes
    from .tflite.operators import read

    require_shapes(shape_dict)
    if isinstance(model, (str, os.PathLike)):
        model = Path(model).read_bytes()
    if isinstance(model, (bytes, bytearray)):
        if not tflite.Model.ModelBufferHasIdentifier(model, 0):
            raise ValueError("the file is not a TFLite model: it lacks the identifier TFL3")
        model = tflite.Model.GetRootAs(model, 0)
    if not isinstance(model, tflite.Model):
        raise ValueError(
            f"the model is of type {type(model).__name__}; supported are tflite.Model, the bytes "
            "of a file and its path"
        )
    return read(model, shape_dict, dtype_dict)
