# SPDX-License-Identifier: Apache-2.0
"""Einsum of ONNX as products, against NumPy, and on the NPU."""

import numpy as np
import pytest

import backend
from support import (
    needs,
    needs_library,
    partition_for,
    run_on_host,
    skip_where_declined,
    skip_where_limited,
)

pytestmark = needs_library("onnx")


def einsum(equation, *shapes, opset=12, names=(), dtype="float32"):
    """Make a model of one node; return it with its inputs."""
    from onnx import helper

    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal(shape) * 4).astype(dtype) for shape in shapes]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [
        helper.make_tensor_value_info(f"x{i}", kind, names[i] if i < len(names) else shape)
        for i, shape in enumerate(shapes)
    ]
    node = helper.make_node(
        "Einsum", [value.name for value in inputs], ["y"], "author", equation=equation
    )
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), arrays


def check(model, arrays, equation):
    module = backend.from_onnx(model)
    (mine,) = run_on_host(module, "main", arrays)
    right = np.einsum(equation, *arrays)
    assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
    np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-4)
    return module


CASES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("bhqk,bkhd->bqhd", (2, 4, 3, 6), (2, 6, 4, 5)),
    ("nctkv,kvw->nctw", (2, 3, 4, 5, 6), (5, 6, 7)),
    ("abcd,cdef->abef", (2, 3, 4, 5), (4, 5, 2, 3)),
    ("bi,ijk,bk->bj", (2, 3), (3, 4, 5), (2, 5)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("abc,abd->acd", (2, 3, 4), (2, 3, 5)),
    # Dots, which may stand for nothing, or be broadcast.
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("...ij,jk->...ik", (2, 6, 3, 4), (4, 2)),
    ("a...b,...c->b...c", (2, 3, 4), (3, 5)),
    ("...,...->...", (2, 3), (2, 3)),
    # Axes that are there twice.
    ("ii", (3, 3)),
    ("iji->j", (3, 2, 3)),
    ("iij,jk->ik", (3, 3, 2), (2, 4)),
    # Results that the equation does not name.
    ("ji", (2, 3)),
    ("...ij,...jk", (2, 3, 4), (2, 4, 2)),
    ("Ab,bA", (2, 3), (3, 2)),
    # Sums and outer products.
    ("ij->", (2, 3)),
    ("i,j", (2,), (3,)),
    (",ij->ij", (), (2, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    (" i j , j k -> i k", (2, 3), (3, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0].replace(" ", "_") for case in CASES])
def test_it_is_what_numpy_computes(case):
    equation, *shapes = case
    opset = 22 if len(equation) % 2 else 12
    check(*einsum(equation, *shapes, opset=opset), equation)


@pytest.mark.parametrize(
    ("case", "names"),
    [
        (("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)), (["B", "Q", 4, 5], ["B", "K", 4, 5])),
        (("bhqk,bkhd->bqhd", (2, 4, 3, 6), (2, 6, 4, 5)), (["B", 4, "Q", 6], ["B", 6, 4, 5])),
        (("...ij,jk->...ik", (2, 6, 3, 4), (4, 2)), (["B", "C", 3, 4],)),
        (("nctkv,kvw->nctw", (2, 3, 4, 5, 6), (5, 6, 7)), (["N", 3, 4, 5, 6],)),
    ],
)
def test_open_sizes_stay_open(case, names):
    equation, *shapes = case
    check(*einsum(equation, *shapes, names=names), equation)


def test_it_multiplies_integers():
    equation = "ij,jk->ik"
    module = check(*einsum(equation, (2, 3), (3, 4), dtype="int32"), equation)
    assert str(module["main"].ret_ty.dtype) == "int32"


@pytest.mark.parametrize(
    ("equation", "shapes", "names", "sentence"),
    [
        ("ij,jk->ik", [(2, 3)], (), "the equation 'ij,jk->ik' is none for 1 inputs"),
        ("i;j->ij", [(2, 3)], (), "the equation 'i;j->ij' is none for 1 inputs"),
        ("ij->ii", [(2, 3)], (), "the result of the equation 'ij->ii' has an axis twice, or a new"),
        ("ij->k", [(2, 3)], (), "the result of the equation 'ij->k' has an axis twice, or a new"),
        ("ijk->k", [(2, 3)], (), "its input 'x0' has the shape [2, 3], which does not suit 'ijk'"),
        ("ii->i", [(3, 3)], (["N", "N"],), "its input 'x0' has no known equal sizes for 'i'"),
        (
            "bacjk,bjkd->bacd",
            [(2, 3, 4, 5, 6), (2, 5, 6, 7)],
            (["B", "A", 4, "J", 6], ["B", "J", 6, 7]),
            "several of the sizes that it merges are open; fix the sizes",
        ),
    ],
)
def test_what_it_does_not_read_is_refused_by_name(equation, shapes, names, sentence):
    model, _ = einsum(equation, *shapes, names=names)
    with pytest.raises(ValueError) as caught:
        backend.from_onnx(model)
    assert str(caught.value).startswith(f"ONNX node 'author' (Einsum): {sentence}")


@needs("matmul", "permute_dims", "reshape")
@pytest.mark.parametrize("case", CASES[:5], ids=[case[0] for case in CASES[:5]])
def test_all_of_it_is_on_the_npu(case):
    module = backend.from_onnx(einsum(*case)[0])
    skip_where_declined(module)
    skip_where_limited(module)
    report = backend.offload_report(partition_for(module))
    assert [(item.op, item.reason) for item in report.on_host] == []
    assert [item.op for item in report.ops].count("relax.matmul") == 1
    assert {str(item.origin) for item in report.ops if item.origin} == {"author"}
