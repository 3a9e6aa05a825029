# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""Random graphs of the selected ops: each is one region, with right values.

A graph begins with a case of some op. Then ops are put behind it, whose cases are bent to the
shapes that are there; what does not fit is not taken. So a new op needs nothing here.
"""

import random
from functools import cache

import numpy as np
import pytest
from tvm import relax

import support
from op_cases import OPS
from support import SELECTED, TABLE, Model, Spec, evaluate

LENGTH = 7
TRIES = 150
# How much each step may be off, and what that may come to in the end.
NOISE = {"float32": 1e-6, "float16": 1e-3}
LIMIT = {"float32": 1e-4, "float16": 5e-2}
OP_NAMES = [op for op in OPS if TABLE.get(op)]
each_graph = pytest.mark.parametrize("op", OP_NAMES)
each_way = pytest.mark.parametrize("bind_constants", [True, False])


class Graph:
    """A model that grows at random, beside a second one that is computed with noise.

    Where the two come apart, rounding errors would too, and no test could tell them from mistakes:
    such steps are not taken.
    """

    def __init__(self, op):
        self.random = random.Random(op)
        self.model = Model(f"graph_{op}")
        self.noisy = {}
        self.computed = []
        for case in self.random.sample(OPS[op]["cases"], len(OPS[op]["cases"])):
            spec, *_ = self.specs(op, case)[0]
            start = self.model.argument(spec)
            self.noisy[start] = start.values
            if self.step(op, case, start):
                break
            self.model.arguments.clear()
        for _ in range(TRIES):
            if self.computed and len(self.computed) < LENGTH:
                other = self.random.choice(OP_NAMES)
                case = self.random.choice(OPS[other]["cases"])
                self.step(other, case, self.random.choice(self.computed[-3:]))
        self.model.outputs = self.outputs()

    def specs(self, op, case):
        """Return what a case says of each input, as lists."""
        given = [(item, case["inputs"][item.name]) for item in TABLE.get(op).inputs]
        return [
            [Spec.read(entry) for entry in (value if item.is_tuple else [value])]
            for item, value in given
        ]

    def step(self, op, case, first):
        """Try to put an op behind a tensor; tell whether that was possible."""
        arguments = len(self.model.arguments)
        inputs = self.inputs(op, case, first)
        attributes = case.get("attributes", {})
        if inputs is not None and self.model.refusal(op, *inputs, **attributes) is None:
            call = self.model.normalize(op, inputs, attributes)
            noisy = self.with_noise(op, call, inputs, attributes)
            bindings = len(self.model.bindings)
            result = self.model.call(op, *inputs, **attributes)
            result = result[0] if isinstance(result, tuple) else result
            if None not in result.shape and self.is_steady(result, noisy):
                self.noisy[result] = noisy
                self.computed.append(result)
                return True
            del self.model.bindings[bindings:]
        del self.model.arguments[arguments:]
        return False

    def inputs(self, op, case, first):
        """Bend the inputs of a case such that a tensor can be the first one."""
        (wanted, *fields), *others = self.specs(op, case)
        if len(wanted.shape) != len(first.shape) or wanted.dtype != first.dtype:
            return None
        sizes = dict(zip(reversed(wanted.shape), reversed(first.shape), strict=True))

        def bend(spec):
            shape = tuple(sizes.get(size, size) for size in spec.shape)
            known = [*self.model.arguments, *self.computed]
            known = [item for item in known if (item.shape, item.dtype) == (shape, spec.dtype)]
            if known and spec.values is None and self.random.random() < 0.5:
                return self.random.choice(known)
            bent = Spec(shape, spec.dtype, spec.low, spec.high, spec.values)
            seed = f"{self.model.name} {len(self.noisy)}"
            fixed = "n" not in shape
            constant = fixed and (spec.constant or self.random.random() < 0.7)
            tensor = (self.model.constant if constant else self.model.argument)(bent, seed)
            self.noisy[tensor] = tensor.values
            return tensor

        bent = [[first, *map(bend, fields)], *([bend(spec) for spec in specs] for specs in others)]
        tuples = [item.is_tuple for item in TABLE.get(op).inputs]
        return [item if is_tuple else item[0] for item, is_tuple in zip(bent, tuples, strict=True)]

    def with_noise(self, op, call, inputs, attributes):
        """Compute a call from noisy values, and add more noise."""
        result = {}
        for n in support.SIZES:
            arrays = [
                [self.noisy[tensor][n] for tensor in item]
                if isinstance(item, list)
                else self.noisy[item][n]
                for item in inputs
            ]
            value = evaluate(op, call, arrays, attributes, n)[0]
            if np.issubdtype(value.dtype, np.floating):
                signs = np.resize([1.0, -1.0], value.shape)
                with np.errstate(all="ignore"):
                    value = (value * (1 + NOISE[str(value.dtype)] * signs)).astype(value.dtype)
            result[n] = value
        return result

    def is_steady(self, tensor, noisy):
        """Whether the noise did no harm, and the numbers stay in a range that all types have."""
        for n, value in tensor.values.items():
            exact, other = (array.astype(np.float64) for array in (value, noisy[n]))
            if not np.abs(exact).max() < 1000:
                return False
            if not np.abs(exact - other).max() <= 0.5 * self.limit(tensor, n):
                return False
        return True

    def limit(self, tensor, n):
        """Return how far the values of a tensor may be off."""
        if tensor.dtype not in LIMIT:
            return 0.0
        dtypes = {item.dtype for item in [tensor, *self.model.arguments, *self.computed]}
        largest = np.abs(tensor.values[n].astype(np.float64)).max()
        return LIMIT["float16" if "float16" in dtypes else "float32"] * max(largest, 1e-6)

    def outputs(self):
        """Return the results that nothing uses, and one that something uses."""
        values = [binding.value for binding in self.model.bindings]
        used = {var for value in values for var in relax.analysis.free_vars(value)}
        leaves = [item for item in self.computed if item.expr not in used]
        inner = [item for item in self.computed if item.expr in used]
        return leaves + (self.random.sample(inner, 1) if inner else [])


@cache
def graphs():
    return {op: Graph(op) for op in OP_NAMES if op in SELECTED}


@cache
def compiled(bind_constants):
    models = [graph.model for graph in graphs().values() if graph.computed]
    return support.compile_all(models, bind_constants=bind_constants)


@each_way
@each_graph
def test_a_graph_is_one_region_with_right_values(op, bind_constants):
    graph = graphs()[op]
    if not graph.computed:
        pytest.skip("capabilities.py was edited and refuses every case of it")
    model = graph.model
    found = support.placement(compiled(bind_constants).partitioned[model.name], model.name)
    assert not found.on_host
    assert len(found.regions) == 1
    for n in model.sizes:
        arguments = [argument.values[n] for argument in model.arguments]
        actual = compiled(bind_constants).run(model.name, arguments)
        assert len(actual) == len(model.outputs)
        for mine, output in zip(actual, model.outputs, strict=True):
            atol = graph.limit(output, n)
            support.assert_close([mine], [output.values[n]], 0, atol, f"n={n}")
