# SPDX-License-Identifier: Apache-2.0
"""The types that ONNX's own inference gives the tensors of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onnx import ModelProto, TensorProto, ValueInfoProto, shape_inference

_SMALL = 1024
"""No shape is longer: constants with more elements are weights, whose values no type needs."""


def outline(model: ModelProto, shapes: object = None) -> ModelProto:
    """Return a model without the values of its weights, and with the types of all its tensors.

    The types in the file are not used, but for those of its inputs: exporters leave old ones there.

    Parameters
    ----------
    model
        A model, which is not changed.
    shapes
        The sizes of inputs, by name, that replace those in the file; None for none.

    Returns
    -------
    outline
        Another model. What cannot be inferred has no type there, and its results have those of the
        file then.
    """
    result = ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    result.graph.name = model.graph.name
    result.graph.node.extend(model.graph.node)
    result.graph.input.extend(model.graph.input)
    result.graph.initializer.extend(_without_values(item) for item in model.graph.initializer)
    for value in result.graph.input:
        if isinstance(shapes, Mapping) and value.name in shapes:
            _set_shape(value, shapes[value.name])
    result.graph.output.extend(ValueInfoProto(name=value.name) for value in model.graph.output)
    # An inference that fails leaves types open, and nothing is compared.
    try:
        result = shape_inference.infer_shapes(result, data_prop=True)
    except Exception:
        result.graph.ClearField("value_info")
    for inferred, value in zip(result.graph.output, model.graph.output, strict=True):
        if inferred.type.WhichOneof("value") is None:
            inferred.CopyFrom(value)
    return result


def _without_values(tensor: TensorProto) -> TensorProto:
    if math.prod(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _set_shape(value: ValueInfoProto, shape: Sequence[object]) -> None:
    sizes = value.type.tensor_type.shape
    sizes.Clear()
    for size in shape:
        sizes.dim.add(**({"dim_value": size} if isinstance(size, int) else {}))
