# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""Every composite that capabilities.py makes possible: one region, one composite, right values."""

from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, product

import numpy as np
import pytest
from tvm import relax

import support
from op_cases import OPS
from support import SELECTED, TABLE, Case, Model, Spec, Tensor

WAYS = {
    "arguments": {},
    "constants": {"bind_constants": True},
    "kept_constants": {"bind_constants": False},
}


@dataclass(frozen=True)
class Composite:
    """An op with what is fused before and behind it, on the inputs of a case of the op."""

    op: str
    case: int
    transposed: tuple[int, ...] = ()
    bias: bool = False
    residual: bool = False
    activation: str = ""

    def __str__(self):
        parts = [self.op, *(f"transposed_{index}" for index in self.transposed)]
        parts += [name for name in ("bias", "residual") if getattr(self, name)]
        parts += [self.activation] if self.activation else []
        return "-".join([*parts, OPS[self.op]["cases"][self.case]["name"].replace(" ", "_")])

    def model(self, way):
        """Return it as a model, with weights and biases as constants or as arguments."""
        model = Model("".join(char if char.isalnum() else "_" for char in f"{self}-{way}"))
        parameter = model.argument if way == "arguments" else model.constant
        case = OPS[self.op]["cases"][self.case]
        inputs = []
        for index, item in enumerate(TABLE.get(self.op).inputs):
            spec = Spec.read(case["inputs"][item.name])
            shape = spec.shape
            if index in self.transposed:
                shape = (*shape[:-2], shape[-1], shape[-2])
            spec = Spec(shape, spec.dtype, spec.low, spec.high)
            tensor = (parameter if index else model.argument)(spec, f"{self} {item.name}")
            inputs.append(swap_last(model, tensor) if index in self.transposed else tensor)
        result = model.call(self.op, *inputs, **case.get("attributes", {}))
        if self.bias:
            axis = TABLE.get(self.op).fuses.bias
            shape = [1] * len(result.shape)
            shape[axis] = result.shape[axis]
            spec = Spec(tuple(shape[-1:] if axis == -1 else shape), result.dtype)
            result = model.call("add", result, parameter(spec, f"{self} bias"))
        if self.residual:
            other = model.argument(Spec(result.shape, result.dtype), f"{self} residual")
            result = model.call("add", other, result)
        if self.activation:
            (number,) = first_case(self.activation)
            attributes = OPS[self.activation]["cases"][number].get("attributes", {})
            result = model.call(self.activation, result, **attributes)
        model.outputs = [result]
        return model


def swap_last(model, tensor):
    """Swap the last two dimensions, by an op that need not be among the selected ones."""
    rank = len(tensor.shape)
    axes = [*range(rank - 2), rank - 1, rank - 2]
    values = {n: np.swapaxes(value, -1, -2) for n, value in tensor.values.items()}
    return Tensor(model.bind(relax.op.permute_dims(tensor.expr, axes)), values)


@cache
def first_case(op, test=lambda spec: True):
    """Return the number of the first case of an op that passes a test, as a list of one or none.

    Cases that an edited capabilities.py refuses come last.
    """
    first = TABLE.get(op).inputs[0].name
    cases = OPS[op]["cases"]
    found = [i for i, case in enumerate(cases) if test(Spec.read(case["inputs"][first]))]
    return sorted(found, key=lambda i: bool(Case(op, cases[i]).model(exact=False).refusals()))[:1]


def composites():
    """Generate all composites on the first case, the largest ones in other settings too."""
    for entry in TABLE.ops:
        if entry.fuses is None:
            continue
        op = entry.name
        adds = TABLE.get("add") is not None
        biases = [False, True] if adds and entry.fuses.bias is not None else [False]
        residuals = [False, True] if adds and entry.fuses.residual else [False]
        activations = ["", *(name for name in entry.fuses.activations if TABLE.get(name))]
        counts = range(len(entry.absorbs_transpose) + 1)
        transposed = chain(*(combinations(entry.absorbs_transpose, count) for count in counts))
        for parts in product(transposed, biases, residuals, activations):
            if any(parts):
                yield Composite(op, *first_case(op), *parts)
        for other in (
            *first_case(op, lambda spec: spec.shape[0] == "n"),
            *first_case(op, lambda spec: spec.dtype == "float16"),
        ):
            for activation in activations:
                parts = biases[-1], residuals[-1], activation
                if any(parts):
                    yield Composite(op, other, (), *parts)


COMPOSITES = list(composites())
COMPOSITES_AND_WAYS = [
    (composite, way)
    for way in WAYS
    for composite in COMPOSITES
    # A constant is transposed when the model is compiled, so that nothing is left to absorb.
    if way == "arguments" or not composite.transposed
]


@cache
def models(way):
    wanted = [item for item, known in COMPOSITES_AND_WAYS if known == way and str(item) in SELECTED]
    return {composite: composite.model(way) for composite in wanted}


@cache
def compiled(way):
    return support.compile_all(list(models(way).values()), **WAYS[way])


def test_every_op_that_fuses_is_tested():
    expected = {op.name for op in TABLE.ops if op.fuses and any(partners(op))}
    assert {composite.op for composite in COMPOSITES} == expected


def partners(op):
    """Return what can join an op in a composite."""
    adds = TABLE.get("add") is not None and (op.fuses.bias is not None or op.fuses.residual)
    return [adds, op.absorbs_transpose, *(TABLE.get(name) for name in op.fuses.activations)]


# Where nothing can be fused, there is nothing to skip either.
if COMPOSITES:

    @pytest.mark.parametrize(("composite", "way"), COMPOSITES_AND_WAYS, ids=str)
    def test_a_composite_is_one_region_with_right_values(composite, way):
        model = models(way)[composite]
        if refusals := model.refusals(**WAYS[way]):
            pytest.skip(f"capabilities.py was edited and refuses it: {refusals[0]}")
        found = support.placement(compiled(way).partitioned[model.name], model.name)
        assert not found.on_host
        assert [len(labels) for labels in found.regions] == [1]
        ops = [composite.op, *["add"] * composite.bias, *["add"] * composite.residual]
        ops += [composite.activation] if composite.activation else []
        tensors = [*model.arguments, *model.outputs]
        tolerances = [support.tolerance(op, tensors) for op in ops]
        rtol, atol = (sum(item[kind] for item in tolerances) for kind in ("rtol", "atol"))
        for n in model.sizes:
            actual = compiled(way).run(model.name, [item.values[n] for item in model.arguments])
            support.assert_close(actual, [model.outputs[0].values[n]], rtol, atol, f"n={n}")
