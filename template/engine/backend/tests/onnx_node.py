# SPDX-License-Identifier: Apache-2.0
"""Models of one ONNX node, for tests."""

import numpy as np

import backend
from backend.engine.backend.verification.originals import original_of
from support import run_on_host


def one_node(
    op, names, tensors, results=("y",), opset=23, domain="", constants=(), shapes=(), **attributes
):
    """Make a model of one node; return it with its inputs.

    `names`: of the operator's inputs, in their order; absent are those that `tensors` lacks.
    `constants`: the names of tensors that are constants.
    `shapes`: of results, by name.
    """
    from onnx import helper, numpy_helper

    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in tensors.items()}
    last = max(names.index(name) for name in tensors)
    names = [name if name in tensors else "" for name in names[: last + 1]]
    node = helper.make_node(op, names, results, "author", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, kinds[name], array.shape)
            for name, array in tensors.items()
            if name not in constants
        ],
        [
            helper.make_tensor_value_info(name, next(iter(kinds.values())), dict(shapes).get(name))
            for name in results
            if name
        ],
        [numpy_helper.from_array(tensors[name], name) for name in constants],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, {name: array for name, array in tensors.items() if name not in constants}


def check(model, tensors, tolerance=1e-5, references=()):
    """Compare the importer's results with ONNX Runtime's, and with those of other references."""
    inputs = list(tensors.values())
    found = run_on_host(backend.from_onnx(model), "main", inputs)
    for expected in (original_of(model).run(inputs), *references):
        for mine, right in zip(found, expected, strict=True):
            assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
            np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)
