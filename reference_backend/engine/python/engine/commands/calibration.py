# SPDX-License-Identifier: Apache-2.0
"""Reads calibration data from a file: batches of real inputs."""

from __future__ import annotations

from pathlib import Path

from ..models.files import ArrayFile, Arrays
from ..models.signature import Input, Signature, chosen
from ..problem import Problem

OPEN_BATCH = 16
"""The number of samples in a batch if the model takes any number."""


def read_batches(path: Path, signature: Signature) -> list[Arrays]:
    """Read batches of inputs.

    Parameters
    ----------
    path
        An .npz file with an array for each input, samples along the first axis: the axis of the
        batch, or one more than the input has.
    signature
        What the model takes.

    Returns
    -------
    batches
        Arrays by the name of the input. What does not fill a batch of a fixed size is left out.

    Raises
    ------
    Problem
        An array is missing, has too few samples or another shape.
    """
    if not signature.inputs:
        raise Problem("The model has no inputs, so that nothing can be calibrated.")
    arrays = ArrayFile(path)
    batches: list[Arrays] = []
    counts: dict[str, int] = {}
    for item, name in zip(signature.inputs, chosen(arrays, signature), strict=True):
        rank = len(item.shape or ())
        shape = arrays.headers[name].shape
        if len(shape) not in (rank, rank + 1) or not shape:
            raise Problem(
                f"{path}: '{item.name}' has the shape {shape}, and the model takes {item}; "
                "samples are along the first axis."
            )
        array = arrays[name]
        if array.ndim == rank + 1:
            # Each is an input as it is.
            parts = list(array)
        else:
            size = _batch(item)
            count = len(array) if isinstance(_first(item), str) else len(array) // size * size
            parts = [array[start : min(start + size, count)] for start in range(0, count, size)]
        if not parts:
            raise Problem(
                f"{path}: '{item.name}' has {len(array)} samples, and the model takes "
                f"{_batch(item)} in a batch."
            )
        counts[item.name] = len(parts)
        batches = batches or [{} for _ in parts]
        for batch, part in zip(batches, parts, strict=False):
            batch[item.name] = part
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise Problem(f"{path}: the inputs have different numbers of batches: {found}.")
    return batches


def _first(item: Input) -> int | str:
    return item.shape[0] if item.shape else 1


def _batch(item: Input) -> int:
    first = _first(item)
    return first if isinstance(first, int) else OPEN_BATCH
