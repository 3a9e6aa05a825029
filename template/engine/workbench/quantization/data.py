# SPDX-License-Identifier: Apache-2.0
"""Reads calibration data, and reports its faults."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ...backend.shared.aliases import Array, Real
from ..batches import Batch, Inputs, read_batch

Number = TypeVar("Number", float, Real)

ENOUGH = 8
"""Fewer samples than this cause a warning."""

_ENOUGH_TO_JUDGE = 1000


def listed(data: Iterable[object] | None) -> list[object]:
    """Return the batches as a list, unread."""
    batched = data is None or hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    if isinstance(data, Mapping | str) or hasattr(data, "shape") or not batched:
        raise ValueError(
            f"calibration_data is one {type(data).__name__}; supported: an iterable of batches, "
            "such as [{'image': array}, ...] or [[array], ...]."
        )
    batches = [] if data is None else list(data)
    if not batches:
        raise ValueError(
            "calibration_data is empty: scales come from the values that tensors have for real "
            f"inputs. Give at least {ENOUGH} samples of them."
        )
    return batches


def read(data: Sequence[object], inputs: Inputs) -> list[Batch]:
    """Check batches (see `read_batch`), and warn about those that yield no good scales."""
    batches = [
        read_batch(batch, f"calibration_data, batch {index}", inputs)
        for index, batch in enumerate(data)
    ]
    samples = sum(_samples(batch) for batch in batches)
    if samples < ENOUGH:
        warnings.warn(
            f"The calibration data has {samples} samples. Ranges from fewer than {ENOUGH} are "
            "often too small: larger values are cut off then.",
            stacklevel=4,
        )
    for name in inputs:
        noise = _noise(np.concatenate([batch[name].reshape(-1) for batch in batches]))
        if noise:
            warnings.warn(
                f"The calibration data for '{name}' looks like {noise}. Scales from random numbers "
                "do not fit real inputs: take samples of the data that the model is for.",
                stacklevel=4,
            )
    return batches


def _samples(batch: Batch) -> int:
    return max((array.shape[0] if array.ndim > 1 else 1 for array in batch.values()), default=1)


def _noise(values: Array) -> str:
    """Return the kind of noise that values look like, or ""; in noise, neighbours are unrelated."""
    count = values.size
    if values.dtype.kind != "f" or count < _ENOUGH_TO_JUDGE:
        return ""
    numbers = values.astype("float64")
    mean, deviation = numbers.mean(), numbers.std()
    if deviation == 0:
        return ""
    normal = (numbers - mean) / deviation
    slack = 5 / np.sqrt(count)
    if abs((normal[1:] * normal[:-1]).mean()) > slack:
        return ""
    fourth = (normal**4).mean()
    if abs(mean) < slack and abs(deviation - 1) < slack and abs(fourth - 3) < 5 * slack:
        return "random numbers of a normal distribution"
    low, high = numbers.min(), numbers.max()
    width = high - low
    middle = abs(mean - (low + high) / 2) < slack * width
    if middle and abs(deviation / width - 12**-0.5) < slack and abs(fourth - 1.8) < 5 * slack:
        return "random numbers of a uniform distribution"
    return ""


def check_finite(name: str, low: Number, high: Number, reader: str) -> None:
    """Refuse a range that has no ends."""
    if not np.isfinite([low, high]).all():
        raise ValueError(
            f"The tensor '{name}' is NaN or infinite for the calibration data, so that it has no "
            f"scale. Leave '{reader}', which reads it, in float with keep_float."
        )


def check_range(name: str, low: Number, high: Number, reader: str) -> None:
    """Refuse a range that yields no scale."""
    check_finite(name, low, high, reader)
    if low == high == 0:
        raise ValueError(
            f"The tensor '{name}' is 0 throughout for the calibration data, so that it has no "
            f"scale. Give data for which it is not, or leave '{reader}', which reads it, in float "
            "with keep_float."
        )


def check_weights(values: Array, layer: str) -> None:
    """Refuse weights that have no range."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(
            f"The weights of '{layer}' have NaN or infinity in them, so that they have no scale. "
            f"Mend the model, or leave '{layer}' in float with keep_float."
        )
