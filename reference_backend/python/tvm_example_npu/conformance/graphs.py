# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""Random graphs of the ops of the table, all of which belongs into one region.

A graph begins with a case of some op. Then ops are put behind it, whose cases are bent to the
shapes that are there; what does not fit is not taken. So a new op needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..patterns import TABLE
from .cases import OPS
from .compare import Array
from .extract import CaseFile
from .files import limits
from .model import SIZES, Arrays, Case, Model, Spec, Tensor, evaluate

LENGTH = 7
"""How many ops a graph has at most."""

_TRIES = 3 * LENGTH
_NOISE = {"float32": 1e-6, "float16": 1e-3}
"""How much each step may be off, as a part of each number."""
_LARGEST = 1000.0
"""Up to here all types have all the numbers that are needed."""

_CRASHING = ("pixel_shuffle",)
"""Ops at whose call TVM itself crashes where sizes are symbolic."""

Choose = Callable[[Sequence[Any]], Any]
"""Picks one of several; the first is the simplest."""


class Graph:
    """A model that grows at random, beside a second one that is computed with noise.

    Where the two come apart, rounding errors would too, and nothing could tell them from mistakes:
    such steps are not taken.

    Parameters
    ----------
    name
        The name of the function.
    choose
        Makes all decisions.
    first
        The op to begin with; none: any.
    """

    def __init__(self, name: str, choose: Choose, first: str = "") -> None:
        self.model = Model(name)
        self.ops: list[str] = []
        """The ops that it is made of, in order."""
        self.asks_host = True
        """Whether TVM's own kernels can tell what is right: they sum in float16, for one."""
        self._choose = choose
        self._noisy: dict[Tensor, Arrays] = {}
        self._computed: list[Tensor] = []
        self._begin(first)
        for _ in range(choose(range(_TRIES)) if self.ops else 0):
            if len(self.ops) == LENGTH:
                break
            tensor = choose(self._computed[::-1][:3])
            known = _cases_for(len(tensor.shape), tensor.dtype)
            if known:
                self._step(choose(known[choose([*known])]), tensor)
        self.model.outputs = self._outputs()

    @property
    def coarse(self) -> bool:
        """Whether anything in it has float16."""
        return any(tensor.dtype == "float16" for tensor in self._noisy)

    def limits(self, n: int) -> list[Array]:
        """Return how far each element of each output may be off."""
        return limits([output.values[n] for output in self.model.outputs], self.coarse)

    def case_file(self, n: int, placement: str, options: dict[str, Any]) -> CaseFile:
        """Return the graph, and a call of it, as a case that stands alone."""
        main = replace(self.model, name="main").function()
        return CaseFile(
            " ".join(self.ops),
            tvm.IRModule({"main": main}),
            tuple(argument.values[n] for argument in self.model.arguments),
            tuple(output.values[n] for output in self.model.outputs),
            placement,
            options,
        )

    def _begin(self, first: str) -> None:
        op = first or self._choose([op for op in OPS if TABLE.get(op)])
        cases = [case for item in OPS[op]["cases"] for case in Case.variants(op, item)]
        start = self._choose(range(len(cases)))
        for case in [*cases[start:], *cases[:start]]:
            spec = next(case.specs())[1][0]
            # Now and then other sizes than those of the table; what was equal stays so.
            sizes: dict[Any, Any] = {}
            if self._choose([False, False, True]):
                for size in dict.fromkeys(spec.shape):
                    if isinstance(size, int):
                        sizes[size] = self._choose([size, 1, size + 1, 2 * size + 3, 40, "n"])
            tensor = self.model.argument(_bent(spec, sizes), "graph 0")
            self._noisy[tensor] = tensor.values
            if self._step(case, tensor):
                return
            self.model.arguments.clear()
            self._noisy.clear()

    def _step(self, case: Case, first: Tensor) -> bool:
        """Try to put an op behind a tensor; tell whether that was possible."""
        arguments, bindings, steps = (
            len(items) for items in (self.model.arguments, self.model.bindings, self.model.steps)
        )
        op, attributes = case.op, case.entry.get("attributes", {})
        noisy_before = dict(self._noisy)
        inputs = self._inputs(case, first)
        try:
            if inputs is not None and self.model.refusal(op, *inputs, **attributes) is None:
                found = self._call(op, inputs, attributes)
                if all(self._is_steady(tensor, noisy) for tensor, noisy in found):
                    self._noisy.update(found)
                    self._computed += [tensor for tensor, _ in found]
                    self.ops.append(op)
                    self.asks_host &= _host_knows(case, first) and not self.coarse
                    return True
        except (ArithmeticError, IndexError, ValueError):
            pass  # NumPy says that this cannot be computed.
        self._noisy = noisy_before
        del self.model.arguments[arguments:]
        del self.model.bindings[bindings:]
        del self.model.steps[steps:]
        return False

    def _call(
        self, op: str, inputs: Sequence[Any], attributes: dict[str, Any]
    ) -> list[tuple[Tensor, Arrays]]:
        """Call an op, and compute it from noisy values too, with more noise."""
        call = Model("trial", self.model.symbol).normalize(op, inputs, attributes)
        by_size = {}
        for n in SIZES:
            arrays = [
                [self._noisy[tensor][n] for tensor in item]
                if isinstance(item, list)
                else self._noisy[item][n]
                for item in inputs
            ]
            by_size[n] = list(map(_with_noise, evaluate(op, call, arrays, attributes, n)))
        result = self.model.call(op, *inputs, **attributes)
        results = result if isinstance(result, tuple) else (result,)
        results = results[: OPS[op]["results"]]
        return [
            (tensor, {n: by_size[n][index] for n in SIZES}) for index, tensor in enumerate(results)
        ]

    def _inputs(self, case: Case, first: Tensor) -> list[Any] | None:
        """Bend the inputs of a case such that a tensor can be the first one."""
        (item, (wanted, *fields)), *others = case.specs()
        if len(wanted.shape) != len(first.shape) or wanted.dtype != first.dtype:
            return None
        if case.op in _CRASHING and "n" in first.shape:
            return None
        sizes = dict(zip(reversed(wanted.shape), reversed(first.shape), strict=True))

        def bend(spec: Spec) -> Tensor:
            bent = _bent(spec, sizes)
            alike = [tensor for tensor in self._noisy if _suits(tensor, bent)]
            if alike and spec.values is None and self._choose([False, True]):
                tensor: Tensor = self._choose(alike)
                return tensor
            seed = f"graph {len(self._noisy)}"
            fixed = "n" not in bent.shape
            constant = fixed and (spec.constant or self._choose([True, True, False]))
            tensor = (self.model.constant if constant else self.model.argument)(bent, seed)
            self._noisy[tensor] = tensor.values
            return tensor

        rest = [(other, [bend(spec) for spec in specs]) for other, specs in others]
        bent = [(item, [first, *map(bend, fields)]), *rest]
        return [tensors if item.is_tuple else tensors[0] for item, tensors in bent]

    def _is_steady(self, tensor: Tensor, noisy: Arrays) -> bool:
        """Whether the noise did no harm, and the numbers stay in a range that all types have."""
        if None in tensor.shape:
            return False
        for n, value in tensor.values.items():
            exact, other = (array.astype(np.float64) for array in (value, noisy[n]))
            if not value.size or not np.abs(exact).max() < _LARGEST:
                return False
            (limit,) = limits([value], self.coarse)
            if not (np.abs(exact - other) <= 0.5 * limit).all():
                return False
        return True

    def _outputs(self) -> list[Tensor]:
        """Return the results that nothing uses, and one that something uses."""
        values = [binding.value for binding in self.model.bindings]
        used = {var for value in values for var in relax.analysis.free_vars(value)}
        leaves = [item for item in self._computed if item.expr not in used]
        inner = [item for item in self._computed if item.expr in used]
        return leaves + ([self._choose(inner)] if inner and self._choose([False, True]) else [])


def _host_knows(case: Case, first: Tensor) -> bool:
    """Whether TVM's own kernels are right: with indices for other sizes they read anything."""
    (_, (wanted, *_)), *others = case.specs()
    indices = [
        spec for _, specs in others for spec in specs if spec.dtype.startswith(("int", "uint"))
    ]
    limited = any(spec.values is not None or spec.high is not None for spec in indices)
    return bool(case.entry.get("host", True)) and not (limited and wanted.shape != first.shape)


def _with_noise(value: Array) -> Array:
    if not np.issubdtype(value.dtype, np.floating):
        return value
    size = _NOISE[str(value.dtype)]
    signs = np.resize([1.0, -1.0], value.shape)
    with np.errstate(all="ignore"):
        # What is next to nothing beside the others may as well have the other sign.
        least = size * np.abs(value).max(initial=0)
        far = value * (1 + size * signs)
        near = np.where(np.abs(value) < least, value - np.sign(value) * least, far)
    noisy: Array = near.astype(value.dtype)
    return noisy


def _bent(spec: Spec, sizes: dict[Any, Any]) -> Spec:
    """Return a tensor with other sizes."""
    shape = tuple(sizes.get(size, size) for size in spec.shape)
    return Spec(shape, spec.dtype, spec.low, spec.high, spec.values, spec.constant)


def _suits(tensor: Tensor, spec: Spec) -> bool:
    """Whether a tensor can stand for one that a case asks for."""
    if (tensor.shape, tensor.dtype) != (spec.shape, spec.dtype):
        return False
    bounds = [(spec.low, np.greater_equal), (spec.high, np.less_equal)]
    return all(
        bool(test(value, bound).all())
        for bound, test in bounds
        if bound is not None
        for value in tensor.values.values()
    )


@cache
def _cases_for(rank: int, dtype: str) -> dict[str, list[Case]]:
    """Return the cases whose first input is of this kind, by op."""
    found: dict[str, list[Case]] = {}
    for op in OPS:
        for item in OPS[op]["cases"] if TABLE.get(op) else []:
            for case in Case.variants(op, item):
                spec = next(case.specs())[1][0]
                if (len(spec.shape), spec.dtype) == (rank, dtype):
                    found.setdefault(op, []).append(case)
    return found
