# SPDX-License-Identifier: Apache-2.0
"""Turns a model whose images have the channels last, as TFLite's do, into one with them first.

TVM's `ConvertLayout` turns back in front of each quantize, clip and pad.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from ...ir.calls import Constant, with_arguments
from ...table.chains import function_of
from ...table.elements import POINTWISE

_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]
_TURNED = POINTWISE | {"relax.quantize", "relax.dequantize"}
_REDUCTIONS = ("relax.mean", "relax.sum", "relax.max", "relax.min")


def channels_first(function: relax.Function) -> relax.Function:
    """Return a function in which images have channels first between its inputs and outputs."""
    blocks = function.body.blocks
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return function
    turned = _Turned()
    with turned.builder.function("main", list(function.params)):
        with turned.builder.dataflow():
            for binding in blocks[0].bindings:
                turned.append(binding)
            result = turned.builder.emit_output(turned.last(function.body.body))
        turned.builder.emit_func_output(result)
    return turned.builder.get()["main"].with_attrs(dict(function.attrs))


class _Turned:
    """A function while it is rewritten."""

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self._first: dict[relax.Expr, relax.Expr] = {}
        self._last: dict[relax.Expr, relax.Expr] = {}
        """By value of the original: the same with the channels first, and with them last."""

    def append(self, binding: relax.VarBinding) -> None:
        """Append a value of the original function."""
        value, var = binding.value, binding.var
        name = getattr(getattr(value, "op", None), "name", "")
        attributes: tvm.ir.Attrs = value.attrs if name else None
        turned = None
        if name.startswith(("relax.nn.", "relax.image.")):
            turned = self._image(name, value, attributes)
        if name in _TURNED:
            turned = self._pointwise(name, value)
        elif name in _REDUCTIONS and value.args[0] in self._first and attributes.axis is not None:
            axes = [_FIRST.index(int(axis) % 4) for axis in attributes.axis]
            kept = [axis for axis in _FIRST if _FIRST.index(axis) not in axes]
            call = function_of(name)
            reduced = call(self.first(value.args[0]), sorted(axes), attributes.keepdims)
            if attributes.keepdims:
                turned = reduced
            elif kept == sorted(kept):
                self._last[var] = self.builder.emit(reduced)
                return
        elif name == "relax.concat" and isinstance(value.args[0], relax.Tuple):
            fields = list(value.args[0].fields)
            if any(field in self._first for field in fields):
                parts = relax.Tuple([self.first(field) for field in fields])
                turned = relax.op.concat(parts, _FIRST.index(int(attributes.axis) % 4))
        if turned is not None:
            self._first[var] = self.builder.emit(turned)
        else:
            self._last[var] = self.builder.emit(self._replaced(value))

    def last(self, expr: relax.Expr) -> relax.Expr:
        """Return a value with the channels last, also in a tuple."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.last(field) for field in expr.fields])
        if expr in self._first and expr not in self._last:
            self._last[expr] = self.builder.emit(relax.op.permute_dims(self._first[expr], _LAST))
        return self._last.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def first(self, expr: relax.Expr) -> relax.Expr:
        """Return an image with its channels first."""
        if isinstance(expr, Constant):
            array = expr.value.numpy()
            array = array.reshape([1] * (4 - array.ndim) + [*array.shape])
            return relax.const(np.ascontiguousarray(array.transpose(_FIRST)))
        if expr not in self._first:
            self._first[expr] = self.builder.emit(relax.op.permute_dims(self.last(expr), _FIRST))
        return self._first[expr]

    def _replaced(self, value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.last(value.tuple_value), value.index)
        if isinstance(value, relax.Call):
            return with_arguments(value, [self.last(operand) for operand in value.args])
        return self.last(value)

    def _image(self, name: str, call: relax.Call, attributes: tvm.ir.Attrs) -> relax.Expr | None:
        """Return a convolution, pool, resize or padding of an image with the channels first."""
        data = call.args[0]
        if name == "relax.nn.pad" and data in self._first and attributes.pad_mode == "constant":
            widths = np.reshape([int(number) for number in attributes.pad_width], (4, 2))[_FIRST]
            return relax.op.nn.pad(
                self.first(data), widths.reshape(-1).tolist(), "constant", attributes.pad_value
            )
        if getattr(attributes, "data_layout", getattr(attributes, "layout", "")) != "NHWC":
            return None
        own = {key: getattr(attributes, key) for key in _KEPT[name]}
        if "roi" in own:
            own["roi"] = [float(number) for number in own["roi"]]
        if not name.startswith("relax.nn.conv2d"):
            return function_of(name)(self.first(data), *call.args[1:], **own)
        layout = "IOHW" if name == "relax.nn.conv2d_transpose" else "OIHW"
        order = [str(attributes.kernel_layout).index(axis) for axis in layout]
        weight = self.last(call.args[1])
        if order != sorted(order):
            weight = self.builder.emit(relax.op.permute_dims(weight, order))
        return function_of(name)(self.first(data), weight, **own, kernel_layout=layout)

    def _pointwise(self, name: str, call: relax.Call) -> relax.Expr | None:
        """Return an element-wise op with at least one turned operand."""
        if not any(operand in self._first for operand in call.args):
            return None
        parameters = name in ("relax.quantize", "relax.dequantize")
        arguments: list[relax.Expr] = []
        for operand in call.args:
            rank = operand.ty.ndim if isinstance(operand.ty, relax.TensorType) else 0
            if rank == 0:
                arguments.append(self.last(operand))
            elif (rank == 4 or isinstance(operand, Constant)) and not (parameters and arguments):
                arguments.append(self.first(operand))
            else:
                return None
        # Without the type of the original, which has the channels last.
        return relax.Call(call.op, arguments, call.attrs, call.ty_args)


_POOL = ("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad")
_CONV = ("strides", "padding", "dilation", "groups", "out_dtype")
_KEPT: dict[str, Sequence[str]] = {
    "relax.nn.conv2d": _CONV,
    "relax.nn.conv2d_transpose": (*_CONV, "output_padding"),
    "relax.nn.avg_pool2d": _POOL,
    "relax.nn.max_pool2d": _POOL,
    "relax.image.resize2d": (
        *("roi", "method", "coordinate_transformation_mode", "rounding_method", "cubic_alpha"),
        *("cubic_exclude", "extrapolation_value", "out_dtype"),
    ),
}
"""The attributes of an image's ops that do not say its layout, which is NCHW by default."""
