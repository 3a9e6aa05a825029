# SPDX-License-Identifier: Apache-2.0
"""The suite of fusions: each op with everything that may be fused before and after it.

All cases are derived from the table. Each must be one composite with the right label in one region
and match NumPy. The parts after an op are tested alone and in all combinations; the first op is
tested with all activations, the others take turns with some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations, product

import numpy as np
from tvm import relax

from ...backend.api import DECLINES, TABLE, Array, Composition, Verdict
from ...capability import Elementwise, Fuses, Op
from .allowances import Step
from .cases import OPS, symbol_of
from .catalog_cases import Case
from .compiled import Compiled, Placement, compile_all, placement
from .imported import kind_and_message
from .model import Model, Spec, Tensor, entry_of
from .outcomes import Outcome
from .suite import Settings
from .workers import Announce

SUITE = "composites"

WAYS: dict[str, dict[str, bool]] = {
    "arguments": {},
    "constants": {"bind_constants": True},
    "kept_constants": {"bind_constants": False},
}
"""The ways in which weights and biases reach the NPU, with their options."""


@dataclass(frozen=True)
class Composite:
    """An op and its fused parts, on the inputs of a case of the op."""

    op: str
    case: Case
    transposed: tuple[int, ...] = ()
    sums: tuple[str, ...] = ()
    """The fused scale, bias and residual."""
    activation: str = ""
    way: str = "arguments"

    def __str__(self) -> str:
        """Return the name of the case."""
        parts = [self.op, *(f"transposed_{index}" for index in self.transposed), *self.tails]
        return "-".join([*parts, str(self.case).removeprefix(f"{self.op}-"), self.way])

    @property
    def tails(self) -> list[str]:
        """The parts after the op."""
        return [*self.sums, self.activation] if self.activation else [*self.sums]

    @property
    def labels(self) -> set[str]:
        """The possible labels: several entries may have the same Relax op."""

        def alike(name: str) -> list[Op]:
            entry = entry_of(name)
            return [entry, *(TABLE.entries_of(entry.relax) if entry.relax else ())]

        ends = alike(self.activation) if self.activation else [None]
        return {
            Composition(op, absorbed=self.transposed, roles=self.sums, last=last).label
            for op, last in product(alike(self.op), ends)
        }

    def model(self) -> Model:
        """Return it as a model."""
        model = Model(symbol_of(str(self)))
        parameter = model.argument if self.way == "arguments" else model.constant
        inputs = []
        for index, (operand, (spec, *_)) in enumerate(self.case.specs()):
            shape = spec.shape
            if index in self.transposed:
                shape = (*shape[:-2], shape[-1], shape[-2])
            make = model.constant if spec.constant else parameter if index else model.argument
            spec = Spec(shape, spec.dtype, spec.low, spec.high)
            tensor = make(spec, f"{self.case} {operand.name}")
            inputs.append(_swap_last(model, tensor) if index in self.transposed else tensor)
        result: Tensor = model.call(self.op, *inputs, **self.case.entry.get("attributes", {}))
        if "scale" in self.sums:
            result = _binary(model, relax.op.multiply, np.multiply, result, 0.625)
        if "bias" in self.sums:
            axis = _fuses(entry_of(self.op)).bias or 0
            rank = len(result.shape)
            ones = [1] * rank
            ones[axis] = result.shape[axis]
            shape = tuple(ones[-1:] if axis % rank == rank - 1 else ones)
            bias = parameter(Spec(shape, result.dtype), f"{self.case} bias")
            result = _binary(model, relax.op.add, np.add, result, bias)
        if "residual" in self.sums:
            other = model.argument(Spec(result.shape, result.dtype), f"{self.case} residual")
            result = _binary(model, relax.op.add, np.add, other, result)
        if self.activation:
            (case,) = _first_cases(self.activation)[:1]
            result = model.call(self.activation, result, **case.entry.get("attributes", {}))
        model.outputs = [result]
        return model


def _fuses(entry: Op) -> Fuses:
    assert entry.fuses is not None
    return entry.fuses


def _binary(
    model: Model,
    make: Callable[[relax.Expr, relax.Expr], relax.Expr],
    compute: Callable[[Array, Array], Array],
    left: Tensor,
    right: Tensor | float,
) -> Tensor:
    """Compute an op without an entry; a number becomes a constant of the other's type."""
    if not isinstance(right, Tensor):
        number = np.asarray(right, left.dtype)
        right = Tensor(relax.const(number, left.dtype), dict.fromkeys(left.values, number))
    values: dict[int, Array] = {n: compute(left.values[n], right.values[n]) for n in left.values}
    model.steps.append(
        {n: Step(Elementwise(), 1, (left.dtype,), float(np.abs(values[n]).max())) for n in values}
    )
    return Tensor(model.bind(make(left.expr, right.expr)), values)


def _swap_last(model: Model, tensor: Tensor) -> Tensor:
    """Swap the last two dimensions; the op need not be in the table."""
    rank = len(tensor.shape)
    axes = [*range(rank - 2), rank - 1, rank - 2]
    values = {n: np.swapaxes(value, -1, -2) for n, value in tensor.values.items()}
    return Tensor(model.bind(relax.op.permute_dims(tensor.expr, axes)), values)


@cache
def _first_cases(op: str) -> list[Case]:
    """Return cases of an op, those that the chip does not support last."""

    def is_refused(case: Case) -> bool:
        return bool(case.model(exact=False).refusals(asked_later=False))

    return sorted(Case.all(op), key=is_refused)


def _samples() -> Iterator[Composite]:
    """Generate composites for each op that fuses something, with all inputs as arguments."""
    anchors = [entry for entry in TABLE.ops if entry.fuses is not None and entry.name in OPS]
    for place, entry in enumerate(anchors):
        op, fuses = entry.name, _fuses(entry)
        cases = _first_cases(op)
        wanted = {"scale": fuses.scale, "bias": fuses.bias is not None, "residual": fuses.residual}
        names = [name for name, here in wanted.items() if here]
        sums = [each for count in range(len(names) + 1) for each in combinations(names, count)]
        activations = [op.name for op in TABLE.activations_of(entry) if op.name in OPS]
        some = activations[place % len(activations)] if activations else ""
        counts = range(len(entry.absorbs_transpose) + 1)
        transposed = chain(*(combinations(entry.absorbs_transpose, count) for count in counts))
        ends = (sums[0], sums[-1])
        for absorbed in transposed:
            yield from (Composite(op, cases[0], absorbed, each) for each in ends)
        behind = activations if place == 0 else list(dict.fromkeys([*activations[:1], some]))
        for each in sums:
            yield Composite(op, cases[0], (), each)
            for activation in behind if each in ends else [some]:
                yield Composite(op, cases[0], (), each, activation)
        # The same in other element types, and with a symbolic size.
        firsts = [(case, next(case.specs())[1][0]) for case in cases]
        others = {spec.dtype: case for case, spec in reversed(firsts)}
        others["n"] = next((case for case, spec in firsts if "n" in spec.shape[:1]), cases[0])
        for case in others.values():
            yield Composite(op, case, (), sums[-1], some)


@cache
def _works() -> dict[str, Composite]:
    works = {}
    for sample in _samples():
        if not sample.transposed and not sample.tails:
            continue  # This is the op alone.
        # An input that must be a constant has only one form, and so have the parts after it.
        constant = entry_of(sample.op).wants_constants
        for way in ["constants"] if constant else WAYS:
            # A constant is transposed when the model is compiled: nothing is left to absorb.
            absorbed = {0} if constant else set()
            if way == "arguments" or absorbed.issuperset(sample.transposed):
                composite = replace(sample, way=way)
                works[str(composite)] = composite
    return works


def find(name: str) -> Composite:
    """Return the case of a name."""
    return _works()[name]


def cases(settings: Settings) -> list[str]:
    """Return the names of all cases."""
    return list(_works())


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Compile cases together, and run them one by one."""
    for way, options in WAYS.items():
        chosen = [work for name in names if (work := find(name)).way == way]
        models = {str(work): work.model() for work in chosen}
        compiled = compile_all(list(models.values()), **options)
        for work in chosen:
            announce(str(work))
            yield _run(work, models[str(work)], compiled)


def _run(work: Composite, model: Model, compiled: Compiled) -> Outcome:
    dtype = model.outputs[0].dtype
    outcome = Outcome(SUITE, str(work), "passed", op=work.op, dtype=dtype, expected="all")
    try:
        if refusals := model.refusals(**WAYS[work.way]):
            text = f"the table refuses it: {refusals[0]}"
            return replace(outcome, status="not_run", reason=text)
    except Exception as error:
        return replace(outcome, status="failed", reason=kind_and_message(error))

    def misnamed(label: str) -> str:
        labels = " or ".join(sorted(work.labels))
        return "" if label in work.labels else f"the composite is called {label} and not {labels}"

    return run_as_one(outcome, model, compiled, misnamed)


def run_as_one(
    outcome: Outcome,
    model: Model,
    compiled: Compiled,
    misnamed: Callable[[str], str],
    composites: int = 1,
) -> Outcome:
    """Run a model that must be one region, of as many composites, and compare its results."""
    try:
        places = placement(compiled.partitioned[model.name], model.name)
        outcome = replace(outcome, found=places.extent)
        text = _misplaced(places, composites) or "".join(map(misnamed, places.regions[0]))
        # A declined composite is split into parts, on the NPU or not.
        if text and (decline := model.decline()):
            text = f"{DECLINES} it as one composite: {decline}"
        if text:
            status = "declined" if places.declined or DECLINES in text else "failed"
            return replace(outcome, status=status, reason=text)
        verdict = Verdict()
        for n in model.sizes:
            arguments = [argument.values[n] for argument in model.arguments]
            verdict = verdict.worse(model.judge(n, compiled.run(model.name, arguments)))
    except Exception as error:
        return replace(outcome, status="failed", reason=kind_and_message(error))
    return replace(
        outcome,
        status="failed" if verdict.text else "passed",
        error=verdict.error,
        allowed=verdict.allowed,
        ratio=verdict.ratio,
        reason=verdict.text,
    )


def _misplaced(places: Placement, composites: int) -> str:
    """Return what is wrong with the placement; "" if all composites are in one region."""
    if places.on_host:
        return f"{places.extent} of it is on the NPU: {'; '.join(places.on_host)}"
    if [len(labels) for labels in places.regions] != [composites]:
        number = "one composite" if composites == 1 else f"{composites} composites"
        return f"it is not {number} in one region, but {places.regions}"
    return ""
