# SPDX-License-Identifier: Apache-2.0
"""The types that ONNX's own inference gives the tensors of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, shape_inference

from .declared import Declared
from .onnx_graph import NARROW

_SMALL = 1024
"""No shape is longer: constants with more elements are weights, whose values no type needs."""


def outline(model: ModelProto, shapes: object = None) -> ModelProto:
    """Return a model without the values of its weights, and with the types of all its tensors.

    ONNX infers them from the types of the inputs; others in the file are often those of an earlier
    state of the model. Results that ONNX does not know, as behind an operator of another domain,
    have what the file says.

    Parameters
    ----------
    model
        A model, which is not changed.
    shapes
        The sizes of inputs, by name, that replace those in the file; None for none.

    Returns
    -------
    outline
        Another model. What cannot be inferred has no type there.
    """
    given = shapes if isinstance(shapes, Mapping) else {}
    result = ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    result.graph.name = model.graph.name
    result.graph.node.extend(model.graph.node)
    result.graph.input.extend(model.graph.input)
    result.graph.initializer.extend(_without_values(item) for item in model.graph.initializer)
    for value in result.graph.input:
        if value.name in given:
            _set_shape(value, given[value.name])
    result.graph.output.extend(ValueInfoProto(name=value.name) for value in model.graph.output)
    # An inference that fails leaves types open.
    try:
        result = shape_inference.infer_shapes(result, data_prop=True)
    except Exception:
        del result.graph.value_info[:]
    for inferred, value in zip(result.graph.output, model.graph.output, strict=True):
        _fill(inferred, value, with_sizes=not given)
    return result


def declared(graph: GraphProto) -> Mapping[str, Declared]:
    """Return the types of the tensors of an outline, by name, as TVM has them.

    Parameters
    ----------
    graph
        Its graph.
    """
    values = (*graph.value_info, *graph.output)
    return {value.name: _declared(value) for value in values if value.type.HasField("tensor_type")}


def _declared(value: ValueInfoProto) -> Declared:
    tensor = value.type.tensor_type
    kind, _, _ = NARROW.get(tensor.elem_type, (tensor.elem_type, 0, 0))
    dtype = "" if kind in _OF_NO_TYPE else str(helper.tensor_dtype_to_np_dtype(kind))
    if not tensor.HasField("shape"):
        return Declared(dtype, None)
    sizes = [item.dim_value if item.HasField("dim_value") else None for item in tensor.shape.dim]
    return Declared(dtype, sizes)


_OF_NO_TYPE = (TensorProto.UNDEFINED, TensorProto.STRING)


def _fill(inferred: ValueInfoProto, value: ValueInfoProto, with_sizes: bool) -> None:
    """Add what the file says of a result to what was inferred."""
    said = value.type.tensor_type.shape.dim
    if inferred.type.WhichOneof("value") is None:
        inferred.type.CopyFrom(value.type)
        # Of no dimensions are also results whose shape an exporter did not know.
        if not (with_sizes and said):
            inferred.type.tensor_type.ClearField("shape")
        return
    known = inferred.type.tensor_type
    if not (with_sizes and said):
        return
    if not known.HasField("shape"):
        known.shape.CopyFrom(value.type.tensor_type.shape)
    if len(known.shape.dim) == len(said):
        for one, other in zip(known.shape.dim, said, strict=True):
            if not one.HasField("dim_value"):
                one.CopyFrom(other)


def _without_values(tensor: TensorProto) -> TensorProto:
    if math.prod(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _set_shape(value: ValueInfoProto, shape: Sequence[object]) -> None:
    value.type.tensor_type.shape.Clear()
    for size in shape:
        dimension = value.type.tensor_type.shape.dim.add()
        if isinstance(size, Integral):
            dimension.dim_value = int(size)
