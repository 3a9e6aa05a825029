# SPDX-License-Identifier: Apache-2.0
"""Constants as arrays of NumPy, and arrays as constants, with few copies: weights are large."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from ..ir.calls import Constant
from ..shared.aliases import Array

DTYPES = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)
"""The element types that NumPy has, too."""

_COLUMNS = 32
"""How many columns of a transposed matrix are copied at a time."""


def array_of(constant: Constant) -> Array:
    """Return the elements of a constant.

    Its own memory, which cannot be written; a copy if its element type is none of `DTYPES` or it is
    on another device.
    """
    tensor = constant.value
    if str(tensor.dtype) not in DTYPES or tensor.device != tvm.cpu():
        copied: Array = tensor.numpy()
        return copied
    elements: Array = np.from_dlpack(tensor)
    elements.flags.writeable = False
    return elements


def constant_with(array: Array) -> Constant:
    """Return a constant with the elements of an array."""
    tensor = tvm.runtime.empty(array.shape, str(array.dtype))
    elements: Array = np.from_dlpack(tensor)
    if not elements.flags.writeable:  # NumPy before 2.1
        return relax.const(array, str(array.dtype))
    if array.ndim > 1 and array.strides[-1] > array.strides[-2]:
        # A transposed weight: NumPy would read each cache line once for every element in it.
        for start in range(0, array.shape[-1], _COLUMNS):
            columns = np.s_[..., start : start + _COLUMNS]
            elements[columns] = array[columns]
    else:
        np.copyto(elements, array)
    return relax.const(tensor)
