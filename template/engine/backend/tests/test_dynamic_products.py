# SPDX-License-Identifier: Apache-2.0
"""Products whose data get their scale in each call: of integers where the table has them."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.passes import simplify
from backend.engine.backend.regions.in_order import partition_in_order
from backend.engine.backend.shared.backend import OPS
from backend.engine.backend.table.table import Table
from support import (
    TABLE,
    compile_for,
    needs,
    needs_library,
    needs_reals,
    skip_where_declined,
    skip_without_integers,
)

pytestmark = [
    needs_reals,
    needs("matmul", "quantize", "dequantize", "multiply", "max", "min", "reshape", "sum"),
    needs_library("torch", "torchao"),
    pytest.mark.usefixtures("bound_constants"),
]

FORMS = {
    "rows": ("Int8DynamicActivationInt8WeightConfig", ()),
    "rows and zero points": ("Int8DynamicActivationIntxWeightConfig", ("int8", None)),
    "groups": ("Int8DynamicActivationIntxWeightConfig", ("int4", 32)),
    "long groups": ("Int8DynamicActivationIntxWeightConfig", ("int4", 64)),
}


def quantized(form, *shape, dtype="float32"):
    """Return a module of a layer that torchao has quantized, its input and its result."""
    import torch
    from torchao import quantization

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(128, 24)).eval().to(getattr(torch, dtype))
    name, parameters = FORMS[form]
    if parameters:
        kind, size = parameters
        groups = quantization.PerAxis(0) if size is None else quantization.PerGroup(size)
        parameters = (getattr(torch, kind), groups)
    quantization.quantize_(network, getattr(quantization, name)(*parameters))
    x = torch.randn(*shape, 128).to(getattr(torch, dtype))
    with torch.no_grad():
        expected = network(x).float().numpy()
    program = torch.export.export(network, (x,))
    mod = backend.from_exported_program(program, unwrap_unit_return_tuple=True)
    return mod, x.float().numpy(), expected


def product_in(mod, table=TABLE):
    options = backend.Options.load(None)
    report = backend.offload_report(partition_in_order(simplify(mod, table), table, options))
    (entry,) = (item for item in report.ops if item.op == "relax.matmul")
    return entry


@pytest.mark.parametrize(
    "form, shape, dtype, tolerance",
    [
        # The largest element of a row is often a tie.
        ("rows", (30,), "float32", 1e-5),
        ("rows and zero points", (2, 3), "float32", 1e-5),
        ("rows and zero points", (3,), "bfloat16", 2**-6),
        ("long groups", (1, 4), "float32", 1e-5),
    ],
)
def test_a_product_is_of_integers(form, shape, dtype, tolerance):
    skip_without_integers("matmul")
    mod, x, expected = quantized(form, *shape, dtype=dtype)
    skip_where_declined(mod)
    entry = product_in(mod)
    if TABLE.get("matmul").quantized.to_real:
        assert (entry.placement, entry.runs_in) == ("npu", "int8 to float32")
        assert entry.wider is None
    found = relax.VirtualMachine(compile_for(mod), tvm.cpu())["main"](tvm.runtime.tensor(x))
    np.testing.assert_allclose(found.numpy(), expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("form, rows", [("groups", 1), ("long groups", 5)])
def test_short_groups_and_many_rows_are_multiplied_as_real_numbers_and_say_why(form, rows):
    skip_without_integers("matmul")
    entry = product_in(quantized(form, rows)[0])
    assert (entry.placement, entry.runs_in, entry.asked) == ("npu", "float32 x int8", "int8")
    assert entry.wider == "'x2' has scales of blocks; supported: one, or of weights one per channel"


def test_a_chip_whose_products_of_integers_are_integers_multiplies_real_numbers():
    skip_without_integers("matmul")
    ops = [
        replace(item, quantized=replace(item.quantized, to_real=False))
        if item.name == "matmul"
        else item
        for item in OPS
    ]
    for form in ("rows", "rows and zero points"):
        entry = product_in(quantized(form, 3)[0], Table(ops))
        assert (entry.placement, entry.asked) == ("npu", "int8")
        assert entry.runs_in.startswith("float32")
        assert entry.wider
