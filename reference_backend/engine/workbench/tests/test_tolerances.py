# SPDX-License-Identifier: Apache-2.0
"""Norms that sum in float32, one number after the other, are within the tolerances of the table."""

import numpy as np
import pytest

from backend.engine.workbench.conformance.cases import OPS
from backend.engine.workbench.conformance.catalog_cases import Case
from backend.engine.workbench.conformance.model import values_of_attributes
from support import TABLE

NORMS = [
    entry.name
    for entry in TABLE.ops
    if entry.name in OPS and getattr(entry.tolerance, "shifted", "")
]


def mean(data, axes, terms=None):
    """Return a plain mean in float32, of the first terms if there are not to be all."""
    count = int(np.prod([data.shape[axis] for axis in axes]))
    rows = np.moveaxis(data, axes, range(-len(axes), 0))
    rows = rows.reshape(*rows.shape[: data.ndim - len(axes)], count)
    total = np.add.accumulate(rows[..., :terms], axis=-1, dtype=np.float32)[..., -1]
    return np.expand_dims(total, axes) / np.float32(count)


def normalized(data, axes, epsilon, terms=None):
    centred = data - mean(data, axes, terms)
    return centred / np.sqrt(mean(centred * centred, axes) + np.float32(epsilon))


def norm(op, data, gamma, beta, values, terms=None):
    """Compute a norm of the table."""
    axes = tuple(axis % data.ndim for axis in values["axes"])
    shape = [size if axis in axes else 1 for axis, size in enumerate(data.shape)]
    if op == "layer_norm":
        result = normalized(data, axes, values["epsilon"], terms)
    else:
        channel = values["channel_axis"] % data.ndim
        shape = [size if axis == channel else 1 for axis, size in enumerate(data.shape)]
        count = values["num_groups"] if op == "group_norm" else data.shape[channel]
        groups = np.split(data, count, channel)
        over = tuple(sorted((channel, *axes)))
        parts = [normalized(group, over, values["epsilon"], terms) for group in groups]
        result = np.concatenate(parts, channel)
    return result * gamma.reshape(shape) + beta.reshape(shape)


def far(item):
    """Return a case with data far from zero, which is like the others near it."""
    data = item["inputs"]["data"]
    shape = data["shape"] if isinstance(data, dict) else data
    inputs = {**item["inputs"], "data": {"shape": shape, "low": 10, "high": 11}}
    return {**item, "name": f"{item['name']} and far from zero", "inputs": inputs}


def ratios(op, terms=None):
    """Return the errors of all cases of float32, near zero and far from it, as multiples."""
    found = {}
    cases = [item for item in OPS[op]["cases"] if item["name"] != "float16"]
    for case in (Case(op, item) for near in cases for item in (near, far(near))):
        model = case.model(constants=False)
        if [tensor.dtype for tensor in model.arguments] != ["float32"] * 3:
            continue
        (call,) = (binding.value for binding in model.bindings)
        attributes = case.entry.get("attributes", {})
        for n in model.sizes:
            values = values_of_attributes(TABLE.get(op), call, attributes, n)
            arrays = [tensor.values[n] for tensor in model.arguments]
            found[f"{case} {n}"] = model.judge(n, [norm(op, *arrays, values, terms)]).ratio
    return found


@pytest.mark.parametrize("op", NORMS)
def test_a_norm_with_plain_sums_in_float32_is_right(op):
    found = ratios(op)
    if not found:
        pytest.skip("no case has three arguments of float32")
    assert {case: ratio for case, ratio in found.items() if ratio > 0.75} == {}


@pytest.mark.parametrize("op", NORMS)
def test_a_norm_that_forgets_a_term_is_wrong(op):
    found = ratios(op, terms=-1)
    if not found:
        pytest.skip("no case has three arguments of float32")
    assert {case: ratio for case, ratio in found.items() if ratio < 100} == {}
