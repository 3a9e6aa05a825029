# SPDX-License-Identifier: Apache-2.0
"""Searches sizes for the rules that schedule kernels, by the cycles that the emulator counts.

Spaces are small, and a count is the same each time. So sizes are changed one by one, as long as
that helps: a few dozen trials for a kernel, without a model of cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...backend.isa.compiler.compile import KernelDeclined, Settings, compile_plan
from ...backend.isa.compiler.kernels import Plan, Tensor
from ...backend.isa.compiler.loops import Unsupported
from ...backend.isa.compiler.scheduling import scheduled
from ...backend.isa.program import write
from ...backend.isa.tuning import Record, Sizes, key_of, space_of, table_of
from .emulator import Emulator, EmulatorError, Limits

Array = NDArray[Any]
TOLERANCE = 1e-4
"""How much real numbers may differ, as a part of the largest one: they are added in other orders"""


@dataclass(frozen=True)
class Alone:
    """A kernel as a plan of its own, and what its inputs are; `count`: how often a model has it."""

    plan: Plan
    inputs: tuple[Array, ...]
    count: int = 1

    @property
    def name(self) -> str:
        """What it is called."""
        return self.plan.kernels[0].name

    @cached_property
    def key(self) -> str:
        """The digest of its loops."""
        return key_of(self.plan.kernels[0].function)


def distinct_kernels(plans: Sequence[Plan]) -> list[Alone]:
    """Return the kernels of plans, each alone with random inputs, and those that are equal once."""
    found: dict[str, Alone] = {}
    for plan in plans:
        for alone in _kernels_of(plan):
            known = found.get(alone.key)
            found[alone.key] = replace(known, count=known.count + 1) if known else alone
    return [*found.values()]


def _kernels_of(plan: Plan) -> Iterator[Alone]:
    roots = [i if it.alias_of is None else it.alias_of for i, it in enumerate(plan.tensors)]
    known = {i for i, it in enumerate(plan.tensors) if it.source in ("input", "constant")}
    for kernel in plan.kernels:
        tensors: list[Tensor] = []
        inputs: list[Array] = []
        outputs = 0
        for number in kernel.tensors:
            tensor = replace(plan.tensors[number], alias_of=None)
            if tensor.data is None and roots[number] in known:
                tensor = replace(tensor, source="input", index=len(inputs))
                inputs.append(_random(tensor, len(inputs)))
            elif tensor.data is None:
                tensor = replace(tensor, source="output", index=outputs)
                outputs += 1
            tensors.append(tensor)
        known |= {roots[number] for number in kernel.tensors}
        own = replace(kernel, tensors=tuple(range(len(tensors))))
        yield Alone(Plan(tensors, [own]), tuple(inputs))


def _random(tensor: Tensor, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if tensor.dtype.startswith("float"):
        return random.standard_normal(tensor.shape).astype(tensor.dtype)
    # Few different ones: they may be places in other tensors.
    return random.integers(0, 2, tensor.shape).astype(tensor.dtype)


class WrongValuesError(RuntimeError):
    """With some sizes a kernel computes something else: a rule, or the compiler, is wrong."""


class Tuner:
    """Tunes kernels.

    Parameters
    ----------
    emulator
        The emulator that counts.
    settings
        How the compiler is set; its sizes are not used.
    records
        Trials that are not made again.
    report
        What is called with each new trial.
    """

    def __init__(
        self,
        emulator: Emulator,
        settings: Settings,
        records: Sequence[Record] = (),
        report: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.emulator = emulator
        self.settings = settings
        self.table = table_of(emulator.machine)
        self.report = report
        self._known = {(it.kernel, *sorted(it.sizes.items())): it for it in records}
        self._counted: dict[bytes, int | None] = {}

    def tune(self, alone: Alone, trials: int) -> tuple[Record, Record]:
        """Return how a kernel is by default, and the best of so many trials, known ones included.

        Raises
        ------
        EmulatorError
            It does not run with random inputs.
        KernelDeclined
            The machine does not execute it.
        WrongValuesError
            Its values depend on sizes.
        """
        expected: list[Array] = []
        default = best = self._trial(alone, {}, None, expected)
        space = self._space(alone)
        tried: set[tuple[tuple[str, int], ...]] = {()}
        improved = True
        while improved:
            improved = False
            for name, numbers in space.items():
                for number in numbers:
                    sizes = {**best.sizes, name: number}
                    key = tuple(sorted(sizes.items()))
                    if key in tried or len(tried) >= trials:
                        continue
                    tried.add(key)
                    found = self._trial(alone, sizes, best.cycles, expected)
                    if found.cycles is not None and found.cycles < (best.cycles or 0):
                        best, improved = found, True
        return default, best

    def _space(self, alone: Alone) -> Mapping[str, Sequence[int]]:
        """Return the space of the rule that takes a kernel."""
        for rule in self.settings.rules:
            try:
                function = alone.plan.kernels[0].function
                if scheduled(function, self.emulator.machine, rule, {}) is not None:
                    return space_of(rule)
            except Unsupported:
                continue
        return {}

    def _trial(self, alone: Alone, sizes: Sizes, most: int | None, expected: list[Array]) -> Record:
        """Count the cycles of a kernel; None if it is declined, or takes more than `most`."""
        kernel = alone.key
        known = self._known.get((kernel, *sorted(sizes.items())))
        if known is not None and (expected or sizes):
            return known
        cycles = None
        try:
            cycles = self._cycles(alone, sizes, most, expected)
        except KernelDeclined:
            if not sizes:
                raise
        record = Record(self.table, kernel, sizes, cycles, alone.name)
        if known is None:
            self.report(record)
        return record

    def _cycles(
        self, alone: Alone, sizes: Sizes, most: int | None, expected: list[Array]
    ) -> int | None:
        settings = replace(self.settings, sizes={alone.key: sizes})
        compiled = compile_plan(alone.plan, self.emulator.machine, settings)
        data = write(self.emulator.machine, compiled.program)
        digest = hashlib.sha256(data).digest()
        if expected and digest in self._counted:
            return self._counted[digest]
        try:
            result = self.emulator.run(
                compiled.program,
                [array.tobytes() for array in alone.inputs],
                limits=Limits(cycles=most or 0),
            )
        except EmulatorError as error:
            if not sizes or "takes more than" not in str(error):
                raise
            self._counted[digest] = None
            return None
        self._counted[digest] = result.cycles
        tensors = [it for it in alone.plan.tensors if it.source == "output"]
        found = [
            np.frombuffer(output, tensor.dtype)
            for output, tensor in zip(result.outputs, tensors, strict=True)
        ]
        if not expected:
            expected += found
        for one, other in zip(found, expected, strict=True):
            if not _is_same(one, other):
                text = ", ".join(f"{name}={number}" for name, number in sizes.items())
                raise WrongValuesError(f"{alone.name} computes other values with {text}")
        return result.cycles


def _is_same(one: Array, other: Array) -> bool:
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    largest = np.max(np.abs(other), initial=0, where=np.isfinite(other))
    return bool(np.allclose(one, other, rtol=0, atol=TOLERANCE * largest, equal_nan=True))
