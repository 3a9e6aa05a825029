# SPDX-License-Identifier: Apache-2.0
"""Reads the inputs that users give to a model, and reports what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .aliases import Array

Batch = dict[str, Array]
"""The inputs of a model, by name."""

Inputs = Mapping[str, tuple[str, Sequence[int | None]]]
"""The element type and the shape of each input, with None for any size."""


def read_batch(item: object, where: str, inputs: Inputs) -> Batch:
    """Read a batch.

    `item`: A mapping of names to arrays, a sequence of arrays in the order of the inputs, or the
    array of a single input.
    """
    if hasattr(item, "shape"):
        item = [item]
    if isinstance(item, Mapping):
        if set(item) != set(inputs):
            raise ValueError(
                f"{where}: for {_listed(item)}; the model's inputs are {_listed(inputs)}."
            )
        given = {name: item[name] for name in inputs}
    elif isinstance(item, Sequence) and not isinstance(item, str):
        if len(item) != len(inputs):
            raise ValueError(
                f"{where}: {len(item)} arrays; the model's inputs are {_listed(inputs)}."
            )
        given = dict(zip(inputs, item, strict=True))
    else:
        raise ValueError(
            f"{where}: of type {type(item).__name__}; supported: a mapping of names to arrays, a "
            "sequence of arrays, or an array."
        )
    batch = {}
    for name, value in given.items():
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        dtype, shape = inputs[name]
        if str(array.dtype) != dtype:
            raise ValueError(f"{where}: '{name}' is {array.dtype}; the model takes {dtype}.")
        sizes = zip(shape, array.shape, strict=False)
        if len(shape) != array.ndim or any(size not in (None, found) for size, found in sizes):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise ValueError(
                f"{where}: '{name}' has the shape {array.shape}; the model takes ({wanted})."
            )
        if array.size == 0:
            raise ValueError(f"{where}: '{name}' has no elements.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                f"{where}: '{name}' has NaN or infinity in it, so that it has no range."
            )
        batch[name] = array
    return batch


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
