# SPDX-License-Identifier: Apache-2.0
"""Converters of operators whose earlier versions TVM's importer reads otherwise than they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from ...shared.aliases import Attributes

_Inputs = Sequence[relax.Expr | None]


class _Slice(onnx_frontend.Slice):  # type: ignore[misc]
    """Before version 10, the limits are attributes."""

    @classmethod
    def _impl_v10(
        cls, bb: relax.BlockBuilder, inputs: _Inputs, attr: Attributes, params: object
    ) -> relax.Expr:
        return cls._impl_v13(bb, inputs, attr, params)

    @classmethod
    def _impl_v1(
        cls, bb: relax.BlockBuilder, inputs: _Inputs, attr: Attributes, params: object
    ) -> relax.Expr:
        starts, ends = attr["starts"], attr["ends"]
        axes = attr.get("axes", range(len(starts)))
        limits = [relax.const(list(values), "int64") for values in (starts, ends, axes)]
        return cls._impl_v13(bb, [inputs[0], *limits, None], attr, params)


class _TopK(onnx_frontend.TopK):  # type: ignore[misc]
    """From version 10 on, the number of elements is an input."""

    @classmethod
    def _impl_v10(
        cls, bb: relax.BlockBuilder, inputs: _Inputs, attr: Attributes, params: object
    ) -> relax.Expr:
        return cls._impl_v11(bb, inputs, attr, params)


class _Hardmax(onnx_frontend.Hardmax):  # type: ignore[misc]
    """TVM needs the size of the axis."""

    @classmethod
    def _hardmax_impl(cls, bb: relax.BlockBuilder, data: relax.Expr, along: int) -> relax.Expr:
        x = bb.normalize(data)
        axis, size = onnx_frontend._get_axis_extent(x, along, "Hardmax")
        if isinstance(size, int):
            return super()._hardmax_impl(bb, x, along)
        shape = [1] * x.ty.ndim
        shape[axis] = size
        places = relax.op.reshape(relax.op.arange(0, size, 1, "int64"), shape)
        largest = relax.op.argmax(x, axis, keepdims=True)
        return relax.op.astype(relax.op.equal(places, largest), str(x.ty.dtype))


class _Resize(onnx_frontend.Resize):  # type: ignore[misc]
    """TVM needs the sizes of the data, and constant scales or sizes."""

    @classmethod
    def _impl_v18(
        cls, bb: relax.BlockBuilder, inputs: _Inputs, attr: Attributes, params: list[object]
    ) -> relax.Expr:
        x, *_ = inputs
        if x is None or not isinstance(x.ty.shape, relax.ShapeExpr):
            raise ValueError("it needs the sizes of its input, which the model does not tell")
        given = {
            name: onnx_frontend.get_constant(inputs[place], params)
            for name, place in {"scales": 2, "sizes": 3}.items()
            if place < len(inputs) and inputs[place] is not None
        }
        # Before version 11, the second input is the scales.
        for name, value in (given or {"scales": None}).items():
            if not isinstance(value, tvm.ir.GenericConst):
                raise ValueError(f"its {name} are computed in the run; supported are constants")
        if "sizes" in given and "scales" in given and not given["scales"].value.numpy().size:
            # Before version 13, absent scales are an empty tensor.
            inputs = [*inputs[:2], None, inputs[3]]
        return super()._impl_v18(bb, inputs, attr, params)


_Converter = type[onnx_frontend.OnnxOpConverter]

CONVERTERS: Mapping[str, _Converter] = {
    "Hardmax": _Hardmax,
    "Resize": _Resize,
    "Slice": _Slice,
    "TopK": _TopK,
}
"""The converters that take the place of TVM's, by operator."""


def converters() -> dict[str, _Converter]:
    """Return all converters, by operator."""
    return {**onnx_frontend._get_convert_map(), **CONVERTERS}
