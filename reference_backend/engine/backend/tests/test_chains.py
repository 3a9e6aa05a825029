# SPDX-License-Identifier: Apache-2.0
"""Random graphs of the selected ops: each becomes one region, with correct values."""

import random
from functools import cache

import pytest

import support
from backend.engine.backend.table.judging import judge
from backend.engine.workbench.conformance.graphs import Graph
from support import OPS, SELECTED, TABLE

KNOWN = [op for op in OPS if TABLE.get(op)]
each_graph = pytest.mark.parametrize("op", KNOWN)
each_way = pytest.mark.parametrize(
    "bind_constants", [True, pytest.param(False, marks=pytest.mark.thorough)]
)


@cache
def graph_of(op):
    return Graph(f"graph_{op}", random.Random(op).choice, op)


@cache
def compiled(bind_constants):
    graphs = [graph_of(op) for op in KNOWN if op in SELECTED]
    models = [graph.model for graph in graphs if graph.ops]
    return support.compile_all(models, bind_constants=bind_constants)


@each_way
@each_graph
def test_a_graph_is_one_region_with_right_values(op, bind_constants):
    graph = graph_of(op)
    if not graph.ops:
        pytest.skip("capabilities.py was edited and refuses every case of it")
    model = graph.model
    found = support.placement(compiled(bind_constants).partitioned[model.name], model.name)
    # The driver accepts each op alone, but may decline it behind another op.
    if not found.declined and (bind_constants or not graph.wants_constants):
        assert not found.on_host
        assert len(found.regions) == 1 or not graph.whole
    for n in model.sizes:
        arguments = [argument.values[n] for argument in model.arguments]
        actual = compiled(bind_constants).run(model.name, arguments)
        expected = [output.values[n] for output in model.outputs]
        verdict = judge(actual, expected, graph.limits(n), "NumPy")
        assert not verdict.text, f"n={n}: {verdict.text}"
    if found.declined:
        pytest.skip(f"declined: {found.on_host}")
