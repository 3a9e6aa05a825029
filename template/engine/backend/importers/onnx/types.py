# SPDX-License-Identifier: Apache-2.0
"""The types that ONNX's own inference gives the tensors of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, shape_inference

from ..declared import Declared
from .contrib_types import with_deputies, without_deputies
from .graph import NARROW, sizes_of
from .input_sizes import name_open_sizes, open_unknown_sizes, set_sizes, tell_sizes

_SMALL = 1024
"""No shape is longer: constants with more elements are weights, whose values no type needs."""


def outline(
    model: ModelProto, shapes: object = None, told: Mapping[str, int | str] | None = None
) -> ModelProto:
    """Return a model without the values of its weights, and with the types of all its tensors.

    ONNX infers them from the types of the inputs; others in the file are often those of an earlier
    state of the model. Results that ONNX does not know, as behind an operator of another domain,
    have what the file says.

    `shapes`: the sizes of inputs, by name, that replace those in the file; None for none.
    `told`: what symbols of the inputs must be, as `onnx_names.read` found it; None for nothing.
    """
    given = shapes if isinstance(shapes, Mapping) else {}
    result = ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    result.graph.name = model.graph.name
    result.graph.node.extend(model.graph.node)
    result.graph.input.extend(model.graph.input)
    result.graph.initializer.extend(_without_values(tensor) for tensor in model.graph.initializer)
    if given:
        set_sizes(result.graph, given, replaces=True)
    result.graph.output.extend(model.graph.output)
    open_unknown_sizes(result.graph)
    name_open_sizes(result.graph)
    tell_sizes(result.graph, told or {})
    infer(result, with_sizes=not given)
    return result


def infer(
    outline: ModelProto, with_sizes: bool = True, also: Mapping[str, ValueInfoProto] | None = None
) -> None:
    """Infer the types of all tensors but the inputs.

    `with_sizes`: whether the sizes of its results hold, which the model may declare for other
    inputs.
    `also`: types that ONNX does not infer, by name; None for none.
    """
    graph = outline.graph
    said = [*graph.output]
    names = {value.name for value in said}
    also = also or {}
    del graph.output[:], graph.value_info[:]
    graph.output.extend(also.get(i.name, ValueInfoProto(name=i.name)) for i in said)
    graph.value_info.extend(value for name, value in also.items() if name not in names)
    # An inference that fails leaves types open.
    with suppress(Exception):
        inferred = shape_inference.infer_shapes(with_deputies(outline), data_prop=True)
        without_deputies(inferred, outline)
    for found, value in zip(outline.graph.output, said, strict=True):
        _fill(found, value, with_sizes)


def declared(graph: GraphProto) -> Mapping[str, Declared]:
    """Return the types of the tensors of an outline but its constants, by name, as TVM has them."""
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: _declared(value) for value in values if value.type.HasField("tensor_type")}


def _declared(value: ValueInfoProto) -> Declared:
    kind = value.type.tensor_type.elem_type
    kind, _, _ = NARROW.get(kind, (kind, 0, 0))
    dtype = "" if kind in _OF_NO_TYPE else str(helper.tensor_dtype_to_np_dtype(kind))
    return Declared(dtype, sizes_of(value))


_OF_NO_TYPE = (TensorProto.UNDEFINED, TensorProto.STRING)


def _fill(inferred: ValueInfoProto, value: ValueInfoProto, with_sizes: bool) -> None:
    """Add what the file says of a result to what was inferred."""
    said = value.type.tensor_type.shape.dim
    if inferred.type.WhichOneof("value") is None:
        inferred.type.CopyFrom(value.type)
        # Exporters write no dimensions for a shape that they do not know, too.
        if not (with_sizes and said):
            inferred.type.tensor_type.ClearField("shape")
        return
    inferred_type = inferred.type.tensor_type
    if not (with_sizes and said):
        return
    if not inferred_type.HasField("shape"):
        inferred_type.shape.CopyFrom(value.type.tensor_type.shape)
    if len(inferred_type.shape.dim) == len(said):
        for size, said_size in zip(inferred_type.shape.dim, said, strict=True):
            if not size.HasField("dim_value"):
                size.CopyFrom(said_size)


def _without_values(tensor: TensorProto) -> TensorProto:
    if math.prod(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
