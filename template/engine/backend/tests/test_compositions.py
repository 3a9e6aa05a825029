# SPDX-License-Identifier: Apache-2.0
"""What composites consist of, and the labels that are made from it."""

import pytest
from tvm import relax

from backend.engine.backend.table.capability import Op, Quantized
from backend.engine.backend.table.compositions import Composition, Kind
from backend.engine.backend.table.patterns import TABLE, make_patterns
from backend.engine.backend.table.table import Table
from backend.patterns import OPS
from support import BACKEND

PRODUCT = Op("matmul", "relax.matmul", "matrix")
RELU = Op("relu", "relax.nn.relu")


@pytest.mark.parametrize(
    ("composition", "label"),
    [
        (Composition(PRODUCT), "matmul"),
        (Composition(PRODUCT, absorbed=(1,), roles=("scale", "bias")), "linear_scale_bias"),
        (Composition(PRODUCT, absorbed=(0, 1)), "matmul_transposed_0_1"),
        (Composition(RELU, absorbed=(1,)), "relu_transposed_1"),
        (Composition(PRODUCT, Kind.WEIGHT_ONLY, last=RELU), "weight_only_matmul_relu"),
        (Composition(PRODUCT, Kind.INTEGERS, roles=("activation",)), "quantized_matmul_activation"),
        (Composition(PRODUCT, Kind.TO_REAL, roles=("bias",)), "quantized_matmul_bias_to_real"),
        (Composition(RELU, Kind.RESCALES), "requantize"),
    ],
)
def test_a_label_is_made_of_what_the_composite_consists_of(composition, label):
    assert composition.label == label


def test_the_table_knows_what_the_names_of_its_patterns_stand_for():
    table = Table(OPS)
    names = {name.removeprefix(f"{BACKEND}.") for name, *_ in make_patterns(table)}
    assert names == set(table.compositions)
    for name, composition in table.compositions.items():
        assert composition.label == name
        assert table.get(composition.op.name) is composition.op


def test_a_match_is_completed_by_the_parts_that_its_pattern_leaves_open():
    table = Table([])
    pattern = table.name(Composition(PRODUCT, Kind.TO_REAL, roles=("residual",)))
    found = table.composition_of(pattern, {"anchor": None, "residual": None, "bias": None})
    assert found == Composition(PRODUCT, Kind.TO_REAL, roles=("bias", "residual"))


def test_composites_that_are_called_alike_are_told_apart():
    entries = [
        Op("gelu_tanh", "relax.nn.gelu_tanh", quantized=Quantized()),
        Op("gelu", "relax.nn.gelu", quantized=Quantized()),
        Op("tanh", "relax.tanh", quantized=Quantized(), activation=True),
    ]
    table = Table([], extra_ops=entries)
    one = table.name(Composition(entries[0], Kind.INTEGERS))
    pattern = table.name(Composition(entries[1], Kind.INTEGERS, roles=("activation",)))
    call = relax.op.tanh(relax.Var("x", relax.TensorType([4], "float32")))
    found = table.composition_of(pattern, {"anchor": None, "activation": call})
    assert table.name(found) == one == "quantized_gelu_tanh"
    assert (found.op, found.last) == (entries[1], entries[2])
    assert str(found.wider_inside).startswith("gelu computes with one real number")
    assert table.compositions[one].op == entries[0]


def test_a_pattern_of_a_vendor_is_an_op_of_its_name():
    assert TABLE.composition_of("quantized_by_hand", {}) == Composition(Op("quantized_by_hand"))
