# SPDX-License-Identifier: Apache-2.0
"""Reads the inputs that users give to a model, and reports what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..backend.shared.aliases import Array

Batch = dict[str, Array]
"""The inputs of a model, by name."""

Inputs = Mapping[str, tuple[str, Sequence[int | None]]]
"""The element type and the shape of each input, with None for any size."""


def read_batch(given: object, where: str, inputs: Inputs) -> Batch:
    """Read a batch: arrays by name or in the order of the inputs, or that of a single input."""
    if hasattr(given, "shape"):
        given = [given]
    if isinstance(given, Mapping):
        if set(given) != set(inputs):
            raise ValueError(
                f"{where}: for {_listed(given)}; the model's inputs are {_listed(inputs)}."
            )
        arrays = {name: given[name] for name in inputs}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != len(inputs):
            raise ValueError(
                f"{where}: {len(given)} arrays; the model's inputs are {_listed(inputs)}."
            )
        arrays = dict(zip(inputs, given, strict=True))
    else:
        raise ValueError(
            f"{where}: of type {type(given).__name__}; supported: a mapping of names to arrays, a "
            "sequence of arrays, or an array."
        )
    batch = {}
    for name, value in arrays.items():
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        dtype, shape = inputs[name]
        if str(array.dtype) != dtype:
            raise ValueError(f"{where}: '{name}' is {array.dtype}; the model takes {dtype}.")
        sizes = zip(shape, array.shape, strict=False)
        if len(shape) != array.ndim or any(size not in (None, length) for size, length in sizes):
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
