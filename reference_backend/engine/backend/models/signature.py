# SPDX-License-Identifier: Apache-2.0
"""The signature of a model, which libraries made by the command `compile` contain."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..ir.states import State, parameters_of, states
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
    """An input of a model; `dtype` is "" and `shape` None if unknown, and an open size its name."""

    name: str
    dtype: str = ""
    shape: tuple[int | str, ...] | None = None

    def __str__(self) -> str:
        """Return the input as messages show it."""
        if self.shape is None:
            return " ".join(filter(None, (self.name, self.dtype)))
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """What a model takes and returns.

    `inputs`: its inputs in order.
    `results`: the names of its results in order, as far as they are known.
    `initial`: what its states are before the first call, by the name of the input.
    """

    inputs: tuple[Input, ...]
    results: tuple[str, ...] = ()
    initial: Mapping[str, Array] = field(default_factory=dict, compare=False)

    def to_json(self) -> str:
        """Return the signature as JSON, without the initial values of states."""
        inputs = [asdict(item) for item in self.inputs]
        return json.dumps({"inputs": inputs, "results": self.results})

    @classmethod
    def from_json(cls, text: str, initial: Mapping[str, Array]) -> Signature:
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
        return cls(inputs, tuple(data["results"]), initial)

    def __str__(self) -> str:
        """Return the inputs as messages show them."""
        return ", ".join(map(str, self.inputs)) or "none"


def signature_of(mod: tvm.IRModule, results: Sequence[str] = ()) -> Signature:
    """Return the signature of a module whose results have these names."""
    from .reading import main_of

    main = main_of(mod)
    inputs = [Input(*item) for item in parameters_of(main)]
    for param, item in zip(main.params, inputs, strict=True):
        if not item.dtype:
            raise Problem(f"The input '{param.name}' is not a tensor but {param.ty}.")
    kept = states(mod)
    if results:
        results = (*results, *(state.name for state in kept))
    return Signature(tuple(inputs), tuple(results), initial_of(kept))


def initial_of(kept: Iterable[State]) -> dict[str, Array]:
    """Return the values of states before the first call, by the name of the input."""
    return {state.parameter: np.ascontiguousarray(state.initial) for state in kept}


def suitable(arrays: NamedArrays, signature: Signature) -> list[Array]:
    """Return the arrays for a model's inputs, found by name or order; check types and shapes.

    States without an array get their initial values.
    """
    names = chosen(arrays, signature)
    sizes: dict[str, int] = {}
    for param, name in zip(signature.inputs, names, strict=True):
        if name not in arrays.headers:
            continue
        dtype, shape = arrays.headers[name]
        if param.dtype and dtype != param.dtype:
            raise Problem(
                f"{arrays.path}: '{param.name}' is {dtype}, and the model takes {param.dtype}; "
                f"write array.astype('{param.dtype}')."
            )
        if param.shape is None:
            continue
        fits = len(param.shape) == len(shape) and all(
            actual == (size if isinstance(size, int) else sizes.setdefault(size, actual))
            for size, actual in zip(param.shape, shape, strict=True)
        )
        if not fits:
            raise Problem(
                f"{arrays.path}: '{param.name}' has the shape {shape}, and the model takes "
                f"({', '.join(map(str, param.shape))})."
            )
    return [
        arrays[name] if name in arrays.headers else signature.initial[param.name]
        for param, name in zip(signature.inputs, names, strict=True)
    ]


def chosen(arrays: NamedArrays, signature: Signature) -> list[str]:
    """Return the name of the array for each input: its own, or arr_0 and so on.

    States, the last inputs, may have none.
    """
    names = [param.name for param in signature.inputs]
    unnamed = [f"arr_{index}" for index in range(len(names))]
    available, required = arrays.headers, len(names) - len(signature.initial)
    if set(unnamed[:required]) <= set(available) <= set(unnamed):
        names = names if set(names[:required]) <= set(available) else unnamed
    missing = [name for name in names[:required] if name not in available]
    if missing:
        raise Problem(
            f"{arrays.path} has no array '{missing[0]}'; the model takes: {signature}. The file "
            f"has: {', '.join(available)}."
        )
    return names


def random_inputs(
    signature: Signature, shapes: Mapping[str, Sequence[int]], seed: int
) -> list[Array]:
    """Make inputs at random.

    Reals of a normal distribution, 8-bit integers of the whole range, and 0 or 1 for other
    integers, which may be indices. States get their initial values.
    """
    generator = np.random.default_rng(seed)
    sizes: dict[int | str, int] = {}
    for param in signature.inputs:
        sizes.update(
            (name, size)
            for name, size in zip(param.shape or (), shapes.get(param.name, ()), strict=False)
        )
    inputs = []
    for param in signature.inputs:
        if param.name in signature.initial:
            inputs.append(signature.initial[param.name])
            continue
        if param.shape is None or not param.dtype:
            raise Problem(
                f"The library does not say what '{param.name}' takes; give --inputs FILE, or make "
                "the library with the command 'compile'."
            )
        shape = shapes.get(param.name, [sizes.get(size, size) for size in param.shape])
        if not _fits(param.shape, shape):
            raise Problem(
                f"--shape {param.name}={','.join(map(str, shape))}: the input is {param}."
            )
        if not all(isinstance(size, int) for size in shape):
            example = ",".join(str(size) if isinstance(size, int) else "1" for size in shape)
            raise Problem(
                f"The input {param} has open sizes: give --inputs FILE, or for random inputs "
                f"--shape {param.name}={example}."
            )
        inputs.append(_random(generator, param, _feasible(param, tuple(map(int, shape)))))
    return inputs


def _feasible(param: Input, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape; refuse one that is negative, or too large for this machine."""
    if any(size < 0 for size in shape):
        raise Problem(f"The input {param} has a negative size, which no array has.")
    # NumPy makes random numbers of 8 bytes.
    needed, memory = 8 * math.prod(shape), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise Problem(
            f"The input {param} is too large: random numbers for it take {needed:,} bytes, and "
            f"this machine has a memory of {memory:,}. Give an input of open sizes smaller ones."
        )
    return shape


def _fits(declared: Sequence[int | str], actual: Sequence[int | str]) -> bool:
    return len(declared) == len(actual) and all(
        isinstance(size, str) or size == length
        for size, length in zip(declared, actual, strict=True)
    )


def _random(generator: np.random.Generator, param: Input, shape: tuple[int, ...]) -> Array:
    if param.dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if param.dtype in ("int8", "uint8"):
        limits = np.iinfo(param.dtype)
        return generator.integers(limits.min, int(limits.max) + 1, shape).astype(param.dtype)
    if "int" in param.dtype:
        return generator.integers(0, 2, shape).astype(param.dtype)
    try:
        return generator.standard_normal(shape).astype(param.dtype)
    except TypeError:
        raise Problem(f"The input {param} has an element type that NumPy lacks.") from None
