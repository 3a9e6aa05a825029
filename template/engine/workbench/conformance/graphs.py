# SPDX-License-Identifier: Apache-2.0
"""Random graphs of the table's ops; each graph must become one region.

A graph begins with a case of some op. Then ops are appended, with cases adapted to the existing
shapes and attributes equal or close to those of other cases; ops with chains also appear as chains,
now and then with a wrong number. Ops that do not fit are dropped. So a new op needs no change here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...backend.api import TABLE, Array, attributes_of, chains_of, spell
from ...capability import Accumulated, Input, OneOf
from . import chip
from .cases import OPS
from .catalog_cases import Case
from .chip import SIZES
from .files import limits
from .model import Arrays, Model, Spec, Tensor, entry_of, evaluate

LENGTH = 7
"""The largest number of ops in a graph."""

_TRIES = 3 * LENGTH
_NOISE = {"float32": 1e-6, "float16": 1e-3}
"""The allowed error of a step, relative to each number, or to the largest for sums."""
_LARGEST = 1000.0
"""All types can represent the needed numbers up to this one."""
_MOST_ELEMENTS = 1 << 15
"""The largest size of a tensor; NumPy is slow."""

_CRASHING = ("pixel_shuffle",)
"""Ops that crash TVM itself when sizes are symbolic."""

Choose = Callable[[Sequence[Any]], Any]
"""Picks one of several; the first is the simplest."""


class Graph:
    """A model that grows at random, computed a second time with noise.

    Steps that amplify the noise would amplify rounding errors too, which could not be told from
    bugs: such steps are dropped.

    `choose`: makes all decisions.
    `first`: the op to begin with; none: any.
    """

    def __init__(self, name: str, choose: Choose, first: str = "") -> None:
        self.model = Model(name)
        self.ops: list[str] = []
        """Its ops, in order."""
        self.asks_host = True
        """Whether TVM's own kernels are a valid reference: they sum in float16, for one."""
        self._choose = choose
        self._noisy: dict[Tensor, Arrays] = {}
        self._computed: list[Tensor] = []
        self._constants: list[Tensor] = []
        """What is known when the model is compiled."""
        if not self._begin(first):
            # As the table has it, if it would not take anything else.
            self._choose = lambda some: some[0]
            self._begin(first)
            self._choose = choose
        for _ in range(choose(range(_TRIES)) if self.ops else 0):
            if len(self.ops) >= LENGTH:
                break
            # Mostly recent values, so that graphs get deep; never an argument, since that would
            # start another region.
            older = self._computed + self._constants
            tensor = choose(choose([self._computed[::-1][:3]] * 5 + [older]))
            fitting = _cases_for(len(tensor.shape), tensor.dtype)
            # Half of them take part in composites.
            fusing = [op for op in fitting if op in _fusing()]
            for ops in filter(None, [choose([[*fitting], fusing])]):
                self._step(choose(fitting[choose(ops)]), tensor)
        self.model.outputs = self._outputs()

    @property
    def whole(self) -> bool:
        """Whether it is one region.

        Ops on constants alone may form another one, and so may readers of one dequantize: ops that
        may compute with integers get a copy.
        """
        if any(tensor in self._constants for tensor in self._computed):
            return False
        return not TABLE.computes_quantized or not self._shares_dequantize()

    def _shares_dequantize(self) -> bool:
        bindings = self.model.bindings
        read = [var for binding in bindings for var in relax.analysis.free_vars(binding.value)]
        readers = Counter([*read, *(output.expr for output in self.model.outputs)])
        return any(
            readers[binding.var] > 1
            for binding in bindings
            if isinstance(binding.value, relax.Call) and binding.value.op.name == "relax.dequantize"
        )

    @property
    def wants_constants(self) -> bool:
        """Whether a call of it takes constants only: without them it stays on the host."""
        calls = [
            bound.value for bound in self.model.bindings if isinstance(bound.value, relax.Call)
        ]
        listed = [entries for call in calls if (entries := TABLE.entries_of(call.op.name))]
        return any(all(entry.wants_constants for entry in entries) for entries in listed)

    @property
    def coarse(self) -> bool:
        """Whether float16 occurs in it."""
        return any(tensor.dtype == "float16" for tensor in self._noisy)

    def limits(self, n: int) -> list[Array]:
        """Return the allowed error of each element of each output."""
        return limits([output.values[n] for output in self.model.outputs], self.coarse)

    def misnamed(self, regions: Sequence[Sequence[str]]) -> str:
        """Return which composite has a wrong label, or nothing: here all are allowed."""
        return ""

    def _begin(self, first: str) -> bool:
        entries = [entry for op in OPS if (entry := TABLE.get(op))]
        symbols = ["n"] if chip.SYMBOLS else []
        anchors = [entry for entry in entries if entry.fuses is not None] or entries
        op = first or self._choose(self._choose([entries, entries, anchors])).name
        cases = Case.all(op)
        start = self._choose(range(len(cases)))
        for case in [*cases[start:], *cases[:start]]:
            spec = next(case.specs())[1][0]
            # Now and then change the table's sizes; equal ones stay equal.
            sizes: dict[int | str, int | str] = {}
            if self._choose([False, False, True]):
                for size in dict.fromkeys(spec.shape):
                    if isinstance(size, int):
                        others = [1, size + 1, 2 * size + 3, 40, *symbols]
                        sizes[size] = self._choose([size, *others])
            bent = _bent(spec, sizes)
            if _count(bent.shape) > _MOST_ELEMENTS:
                continue
            tensor = self.model.argument(bent, "graph 0")
            self._noisy[tensor] = tensor.values
            if self._step(case, tensor):
                return True
            self.model.arguments.clear()
            self._noisy.clear()
        return False

    def _step(self, case: Case, first: Tensor) -> bool:
        """Try to append an op to a tensor; return whether that was possible."""
        model = self.model
        grown: list[list[Any]] = [model.arguments, model.bindings, model.steps]
        grown += [self._computed, self._constants, self.ops]
        before = [len(tensors) for tensors in grown]
        noisy_before = dict(self._noisy)
        sizes = _sizes(next(case.specs())[1][0], first)
        try:
            attributes = self._attributes(case, sizes)
            as_is = attributes == case.entry.get("attributes", {})
            host_knows = _host_knows(case, first, as_is) and first.dtype != "float16"
            if first in self._constants and not host_knows:
                raise ValueError("TVM's own kernel would fold it.")
            inputs = self._inputs(case, first, sizes)
            entry = entry_of(case.op)
            alike = [spec.ranks == entry.inputs[0].ranks for spec in entry.inputs]
            if not entry.relax and len({len(t.shape) for t in compress(inputs, alike)}) > 1:
                raise ValueError("Products of a chain, as in sdpa, have operands of one rank.")
            if chains_of(entry) and self._choose([False, True]):
                self._spell(case.op, inputs, attributes)
            else:
                self._apply(case.op, inputs, attributes)
            self.asks_host &= host_knows and not self.coarse
            return True
        except (ArithmeticError, IndexError, TypeError, ValueError):
            pass  # TVM or NumPy cannot compute it.
        self._noisy = noisy_before
        for tensors, length in zip(grown, before, strict=True):
            del tensors[length:]
        return False

    def _apply(self, op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Tensor:
        """Call an op, also on the noisy values, with more noise; return a result."""
        reason = self.model.refusal(op, *inputs, **attributes)
        if reason is not None:
            raise ValueError(reason)
        names = [spec.name for spec in entry_of(op).inputs]
        if chip.lost_by_folding(op, [*compress(names, map(self._constants.__contains__, inputs))]):
            raise ValueError("Folding a part of it would leave the rest on the host.")
        call = Model("trial", self.model.symbol).normalize(op, inputs, attributes)
        if any(_count(ty.shape) > _MOST_ELEMENTS for ty in getattr(call.ty, "fields", [call.ty])):
            raise ValueError("It is too large.")
        by_size = {}
        for n in SIZES:
            arrays = [
                [self._noisy[tensor][n] for tensor in operand]
                if isinstance(operand, list)
                else self._noisy[operand][n]
                for operand in inputs
            ]
            is_sum = isinstance(entry_of(op).tolerance, Accumulated)
            by_size[n] = [
                _with_noise(value, is_sum) for value in evaluate(op, call, arrays, attributes, n)
            ]
        is_fixed = len({values[0].shape for values in by_size.values()}) == 1
        if op == "broadcast_to" and is_fixed and "n" in inputs[0].shape:
            raise ValueError("It fits these sizes only.")
        result = self.model.call(op, *inputs, **attributes)
        results = result if isinstance(result, tuple) else (result,)
        results = results[: OPS[op]["results"]]
        sized = any("n" in argument.shape for argument in self.model.arguments)
        if not sized and any("n" in tensor.shape for tensor in results):
            raise ValueError("Nothing tells how large it is.")
        for index, tensor in enumerate(results):
            noisy = {n: by_size[n][index] for n in SIZES}
            if not self._is_steady(tensor, noisy):
                raise ValueError("Rounding errors would grow.")
            self._noisy[tensor] = noisy
        given = [t for part in inputs for t in (part if isinstance(part, list) else [part])]
        if all(t in self._constants for t in given):
            self._constants += results
        # TVM's own maximum, for one, is never below the lowest finite number.
        self.asks_host &= all(
            np.isfinite(array).all()
            for tensor in results
            for array in tensor.values.values()
            if array.dtype.kind == "f"
        )
        self._computed += results
        self.ops.append(op)
        last: Tensor = results[-1]
        return last

    def _spell(self, op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        """Replace an op by a chain in any spelling, now and then with a wrong number."""
        entry = entry_of(op)
        chain = self._choose(chains_of(entry))
        if (reason := self.model.refusal(op, *inputs, **attributes)) is not None:
            raise ValueError(reason)
        tensors: dict[str, Tensor] = {
            spec.name: tensor for spec, tensor in zip(entry.inputs, inputs, strict=True)
        }
        given = dict(attributes)
        if entry.relax:
            trial = Model("trial", self.model.symbol).normalize(op, inputs, attributes)
            given = attributes_of(trial, {})
        given |= chain.fixed
        # A non-numeric default depends on the shape.
        given = {name: 0.25 if value == "" else value for name, value in given.items()}

        def vary(number: float) -> float:
            return float(self._choose([number] * 7 + [number * 1.01 + 0.001]))

        def call(op: str, operands: Sequence[Tensor | float], own: Mapping[str, Any]) -> Tensor:
            beside = next(operand for operand in operands[::-1] if isinstance(operand, Tensor))
            given_here = [
                operand
                if isinstance(operand, Tensor)
                else self._constant(Spec((), beside.dtype, values=[operand]))
                for operand in operands
            ]
            for entry in TABLE.entries_of(op)[:1]:
                return self._apply(entry.name, given_here, own)
            raise ValueError("A part of it is not in the table.")

        dtype = tensors[entry.inputs[0].name].dtype
        rank_of = attrgetter("expr.ty.ndim")
        spell(chain.node, tensors, given, dtype, call, rank_of, self._choose, vary)

    def _constant(self, spec: Spec) -> Tensor:
        tensor = self.model.constant(spec, f"graph {len(self._noisy)}")
        self._noisy[tensor] = tensor.values
        self._constants.append(tensor)
        return tensor

    def _inputs(self, case: Case, first: Tensor, sizes: dict[int | str, int | str]) -> list[Any]:
        """Adapt the inputs of a case, so that a tensor can be the first one."""
        (item, (_, *fields)), *others = case.specs()
        if case.op in _CRASHING and "n" in first.shape:
            raise ValueError("TVM would crash.")
        folded = first in self._constants

        def bend(item: Input, spec: Spec) -> Tensor:
            # A kernel may be as large as there are channels, and stays so.
            bent = self._choose([_bent(spec, sizes), _bent(spec, dict(sizes), once=True)])
            if self._choose([False, False, True]):
                bent = replace(bent, shape=self._choose(_broadcasts(bent.shape, first.shape)))
            drawn = self._constants if folded or spec.constant else self._noisy
            alike = [tensor for tensor in drawn if _suits(tensor, bent)]
            if alike and spec.values is None and self._choose([False, True]):
                tensor: Tensor = self._choose(alike)
                return tensor
            if _count(bent.shape) > _MOST_ELEMENTS:
                raise ValueError("It is too large.")
            constant = folded or spec.constant or self._choose([True, True, False])
            if "n" not in bent.shape and constant:
                return self._constant(bent)
            if folded or item.constant:
                raise ValueError("It would be a region of its own, or must be known.")
            tensor = self.model.argument(bent, f"graph {len(self._noisy)}")
            self._noisy[tensor] = tensor.values
            return tensor

        rest = [(other, [bend(other, spec) for spec in specs]) for other, specs in others]
        bent = [(item, [first, *(bend(item, spec) for spec in fields)]), *rest]
        return [tensors if item.is_tuple else tensors[0] for item, tensors in bent]

    def _attributes(self, case: Case, sizes: Mapping[int | str, int | str]) -> dict[str, object]:
        """Return the attributes of a case, some replaced by or close to those of other cases."""
        attributes = dict(case.entry.get("attributes", {}))
        for name, constraint in entry_of(case.op).attributes.items():
            if not self._choose([False, False, True]):
                continue
            # The attribute's values in other cases and in the table, or none.
            values = [other.get("attributes", {}).get(name) for other in OPS[case.op]["cases"]]
            values += [None, *(constraint.values if isinstance(constraint, OneOf) else ())]
            value = self._choose(values)
            value = self._choose([value, self._near(value, sizes)])
            attributes.pop(name, None)
            if value is not None and value != "":
                attributes[name] = value
        return attributes

    def _near(self, value: Any, sizes: Mapping[int | str, int | str]) -> Any:
        """Change an attribute a little."""
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + self._choose([1, -1, 2, -2, 3])
        if isinstance(value, float):
            return value * self._choose([0.5, 2.0, -1.0])
        if not isinstance(value, (list, tuple)) or not value:
            return value
        place = self._choose(range(len(value)))
        return type(value)(
            self._choose(
                [
                    [sizes.get(size, size) for size in value],
                    [*value[:place], self._near(value[place], sizes), *value[place + 1 :]],
                    [*value[:place], -1, *value[place + 1 :]],
                    [*value[:place], *value[place + 1 :]],
                    [*value[place:], *value[:place]],
                    [*value[::-1]],
                ]
            )
        )

    def _is_steady(self, tensor: Tensor, noisy: Arrays) -> bool:
        """Whether the noise stayed small, and the numbers fit into all types."""
        if None in tensor.shape:
            return False
        for n, value in tensor.values.items():
            exact, other = (array.astype(np.float64) for array in (value, noisy[n]))
            finite = np.abs(exact[np.isfinite(exact)])
            if not value.size or finite.max(initial=0) >= _LARGEST:
                return False
            (limit,) = limits([value], self.coarse)
            with np.errstate(invalid="ignore"):
                close = np.abs(exact - other) <= 0.5 * limit
            # Masks have infinities; NaN would hide everything else.
            if not (close | (exact == other)).all():
                return False
        return True

    def _outputs(self) -> list[Tensor]:
        """Return the unused results, and a used one."""
        values = [binding.value for binding in self.model.bindings]
        used = {var for value in values for var in relax.analysis.free_vars(value)}
        leaves = [tensor for tensor in self._computed if tensor.expr not in used]
        inner = [tensor for tensor in self._computed if tensor.expr in used]
        return leaves + ([self._choose(inner)] if inner and self._choose([False, True]) else [])


def _host_knows(case: Case, first: Tensor, as_is: bool) -> bool:
    """Whether TVM's own kernels are right: they read out of bounds at bad indices."""
    (_, (wanted, *_)), *others = case.specs()
    indices = [
        spec for _, specs in others for spec in specs if spec.dtype.startswith(("int", "uint"))
    ]
    limited = any(spec.values is not None or spec.high is not None for spec in indices)
    as_is &= wanted.shape == first.shape
    cases = [case.entry] if as_is else OPS[case.op]["cases"]
    known = all(entry.get("host", True) for entry in cases) and chip.host_agrees(case.op)
    return known and (as_is or not limited)


def _with_noise(value: Array, is_sum: bool) -> Array:
    """Add the allowed error to numbers; the terms of a sum may be larger than the sum."""
    if not np.issubdtype(value.dtype, np.floating):
        return value
    size = _NOISE[str(value.dtype)]
    signs = np.resize([1.0, -1.0], value.shape)
    with np.errstate(all="ignore"):
        # Numbers that are tiny next to the others may change sign.
        least = size * np.abs(value[np.isfinite(value)]).max(initial=0)
        far = value + signs * (least if is_sum else size * np.abs(value))
        near = np.where(np.abs(value) < least, value - np.sign(value) * least, far)
        noisy: Array = near.astype(value.dtype)
    return noisy


def _sizes(wanted: Spec, first: Tensor) -> dict[int | str, int | str]:
    """Map each size of a case to that of another first tensor, from the last on."""
    return dict(zip(reversed(wanted.shape), reversed(first.shape), strict=False))


def _bent(spec: Spec, sizes: dict[int | str, int | str], once: bool = False) -> Spec:
    """Return a tensor with other sizes, or with each of them used up once."""
    change = sizes.pop if once else sizes.get
    return replace(spec, shape=tuple(change(size, size) for size in spec.shape))


def _broadcasts(shape: tuple[object, ...], first: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Return shapes that broadcast with another one: a number, one axis, one rank less..."""
    axes = range(len(first))
    one_axis = [tuple(size if axis == at else 1 for at, size in enumerate(first)) for axis in axes]
    return [shape, (), first, shape[1:], first[-1:], (1,) * len(shape), (*first, 2), *one_axis]


def _count(shape: Iterable[int | str | tirx.PrimExpr]) -> int:
    """Return the largest number of elements of a tensor; other kinds of sizes are refused."""
    sizes = [int(size) if isinstance(size, (int, tirx.IntImm)) else max(SIZES) for size in shape]
    return math.prod(sizes)


def _suits(tensor: Tensor, spec: Spec) -> bool:
    """Whether a tensor can be the input of a case."""
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
    """Return the cases whose first input can be of this kind, by op."""
    cases: dict[str, list[Case]] = {}
    for op in OPS:
        entry = TABLE.get(op)
        if entry is None or rank not in (entry.inputs[0].ranks or [rank]):
            continue
        for case in Case.all(op):
            if next(case.specs())[1][0].dtype == dtype:
                cases.setdefault(op, []).append(case)
    return cases


@cache
def _fusing() -> frozenset[str]:
    """Return the ops that fuse, are fused, or occur in chains."""
    spelled = {name for op in TABLE.ops for chain in chains_of(op) for name in chain.ops}
    spelled |= {"relax.add", "relax.multiply", "relax.divide"}
    return frozenset(
        op.name
        for op in TABLE.ops
        if op.fuses is not None or op.activation or op.chains or op.relax in spelled
    )
