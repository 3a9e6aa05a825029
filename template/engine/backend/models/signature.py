# SPDX-License-Identifier: Apache-2.0
"""The signature of a model, which libraries made by the command `compile` contain."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..shared.aliases import Array
from ..shared.backend import BACKEND
from ..shared.problem import Problem
from .files import NamedArrays

if TYPE_CHECKING:
    import tvm

FUNCTION = f"{BACKEND}_signature"
"""The function of a library that returns its signature: JSON in UTF-8, as a tensor of uint8."""


@dataclass(frozen=True)
class Input:
    """An input of a model.

    `name`: its name.
    `dtype`: its element type; "" if that is not known.
    `shape`: its sizes, an open one by its name; none if the number of dimensions is not known.
    """

    name: str
    dtype: str = ""
    shape: tuple[int | str, ...] | None = None

    def __str__(self) -> str:
        """Return it as messages have it."""
        if self.shape is None:
            return " ".join(filter(None, (self.name, self.dtype)))
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """What a model takes and returns.

    `inputs`: its inputs, in order.
    `results`: the names of its results, in order; fewer than there are if they are not known.
    """

    inputs: tuple[Input, ...]
    results: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        inputs = tuple(
            Input(
                item["name"],
                item["dtype"],
                None if item["shape"] is None else tuple(item["shape"]),
            )
            for item in data["inputs"]
        )
        return cls(inputs, tuple(data["results"]))

    def __str__(self) -> str:
        """Return the inputs as messages have them."""
        return ", ".join(map(str, self.inputs)) or "none"


def signature_of(mod: tvm.IRModule, results: Sequence[str] = ()) -> Signature:
    """Return the signature of a module.

    `results`: the names of the results, if they are known.
    """
    from .reading import main_of

    inputs = []
    for param in main_of(mod).params:
        dtype = getattr(param.ty, "dtype", None)
        if dtype is None:
            raise Problem(f"The input '{param.name}' is not a tensor but {param.ty}.")
        values = getattr(getattr(param.ty, "shape", None), "values", None)
        sizes = None if values is None else tuple(map(_size, values))
        inputs.append(Input(str(param.name), str(dtype), sizes))
    return Signature(tuple(inputs), tuple(results))


def _size(value: object) -> int | str:
    return int(value.value) if hasattr(value, "value") else str(value)


def suitable(arrays: NamedArrays, signature: Signature) -> list[Array]:
    """Return the inputs of a model, after a check.

    `arrays`: an array for each input, by name or in order, as `numpy.savez` writes both; one of an
    .npy file for a model of one input. Other arrays are ignored.
    """
    names = chosen(arrays, signature)
    sizes: dict[str, int] = {}
    for item, name in zip(signature.inputs, names, strict=True):
        dtype, shape = arrays.headers[name]
        if item.dtype and dtype != item.dtype:
            raise Problem(
                f"{arrays.path}: '{item.name}' is {dtype}, and the model takes {item.dtype}; write "
                f"array.astype('{item.dtype}')."
            )
        if item.shape is None:
            continue
        fits = len(item.shape) == len(shape) and all(
            found == (size if isinstance(size, int) else sizes.setdefault(size, found))
            for size, found in zip(item.shape, shape, strict=True)
        )
        if not fits:
            raise Problem(
                f"{arrays.path}: '{item.name}' has the shape {shape}, and the model takes "
                f"({', '.join(map(str, item.shape))})."
            )
    return [arrays[name] for name in names]


def chosen(arrays: NamedArrays, signature: Signature) -> list[str]:
    """Return which array is for each input: by name, or in order if no array has a name."""
    names = [item.name for item in signature.inputs]
    unnamed = [f"arr_{index}" for index in range(len(names))]
    known = arrays.headers
    if set(known) == set(unnamed) and not set(names) <= set(known):
        names = unnamed
    missing = [name for name in names if name not in known]
    if missing:
        raise Problem(
            f"{arrays.path} has no array '{missing[0]}'; the model takes: {signature}. The file "
            f"has: {', '.join(known)}."
        )
    return names


def random_inputs(
    signature: Signature, shapes: Mapping[str, Sequence[int]], seed: int
) -> list[Array]:
    """Make inputs at random.

    Reals of a normal distribution, 8-bit integers of the whole range, and 0 or 1 for other
    integers, which may be indices.
    """
    generator = np.random.default_rng(seed)
    sizes: dict[int | str, int] = {}
    for item in signature.inputs:
        sizes.update(
            (name, size)
            for name, size in zip(item.shape or (), shapes.get(item.name, ()), strict=False)
        )
    inputs = []
    for item in signature.inputs:
        if item.shape is None or not item.dtype:
            raise Problem(
                f"The library does not say what '{item.name}' takes; give --inputs FILE, or make "
                "the library with the command 'compile'."
            )
        shape = shapes.get(item.name, [sizes.get(size, size) for size in item.shape])
        if not _fits(item.shape, shape):
            raise Problem(f"--shape {item.name}={','.join(map(str, shape))}: the input is {item}.")
        if not all(isinstance(size, int) for size in shape):
            example = ",".join(str(size) if isinstance(size, int) else "1" for size in shape)
            raise Problem(
                f"The input {item} has open sizes: give --inputs FILE, or for random inputs "
                f"--shape {item.name}={example}."
            )
        inputs.append(_random(generator, item, _possible(item, tuple(map(int, shape)))))
    return inputs


def _possible(item: Input, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape, unless no array has it, or none that this machine can hold."""
    if any(size < 0 for size in shape):
        raise Problem(f"The input {item} has a negative size, which no array has.")
    # NumPy makes random numbers of 8 bytes.
    needed, memory = 8 * math.prod(shape), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise Problem(
            f"The input {item} is too large: random numbers for it take {needed:,} bytes, and this "
            f"machine has a memory of {memory:,}. Give an input of open sizes smaller ones."
        )
    return shape


def _fits(known: Sequence[int | str], given: Sequence[int | str]) -> bool:
    return len(known) == len(given) and all(
        isinstance(size, str) or size == found for size, found in zip(known, given, strict=True)
    )


def _random(generator: np.random.Generator, item: Input, shape: tuple[int, ...]) -> Array:
    if item.dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if item.dtype in ("int8", "uint8"):
        limits = np.iinfo(item.dtype)
        return generator.integers(limits.min, int(limits.max) + 1, shape).astype(item.dtype)
    if "int" in item.dtype:
        return generator.integers(0, 2, shape).astype(item.dtype)
    try:
        return generator.standard_normal(shape).astype(item.dtype)
    except TypeError:
        raise Problem(f"The input {item} has an element type that NumPy lacks.") from None
