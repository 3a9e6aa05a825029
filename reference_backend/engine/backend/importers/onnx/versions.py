# SPDX-License-Identifier: Apache-2.0
"""Converters of operators whose earlier versions TVM's importer reads otherwise than they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


_Converter = type[onnx_frontend.OnnxOpConverter]

CONVERTERS: Mapping[str, _Converter] = {"Slice": _Slice, "TopK": _TopK}
"""The converters that take the place of TVM's, by operator."""


def converters() -> dict[str, _Converter]:
    """Return all converters, by operator."""
    return {**onnx_frontend._get_convert_map(), **CONVERTERS}
