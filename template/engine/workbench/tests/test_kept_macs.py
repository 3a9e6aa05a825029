# SPDX-License-Identifier: Apache-2.0
"""Quantizing a model takes no MACs from the NPU, whatever integers the driver has.

All MACs that the NPU computes of the float model, it computes of the quantized one: on the driver
of this backend, on narrower ones, and on one that has integers only.
"""

import re
from functools import cache

import numpy as np
import pytest

import backend
import support
from backend.engine.backend.ir.amounts import is_product
from backend.engine.backend.verification.originals import original_of
from backend.engine.workbench.conformance import onnx_networks, quantized_networks
from backend.engine.workbench.conformance.model import BACKEND
from backend.engine.workbench.quantization.planning import COMPUTES, MOVES, Ends, Node, Planner
from narrow_drivers import DEQUANTIZE, NARROW, QUANTIZE, declines
from support import compile_for, needs_library

pytestmark = [
    pytest.mark.usefixtures("bound_constants"),
    pytest.mark.filterwarnings("ignore:The calibration data"),
]

quantize_for = getattr(backend, f"quantize_for_{BACKEND}")
needs = support.needs
needs_onnx = needs_library("onnx", "onnxruntime")
needs_torch = needs_library("torch", "torchao")
thorough = pytest.mark.thorough
NOTHING = "nothing of the model with integers|no products of integers|this backend has"
INTEGERS_ONLY = "reals"
"""The narrow driver that declines real numbers."""


def report_of(mod):
    return backend.offload_report(support.partition_for(mod))


def macs_of(ops):
    return sum(item.macs or 0 for item in ops)


def kept(before, model, batches, read):
    """Return the report of a quantized model, which has as many MACs on the NPU as the float one.

    `before`: the report of the float model.
    `read`: makes a module of a model.
    """
    try:
        found = quantize_for(model, batches)
    except ValueError as error:
        if re.search(NOTHING, str(error)):
            pytest.skip(str(error))
        raise
    report = report_of(read(found))
    assert macs_of(report.ops) == macs_of(before.ops) > 0
    assert macs_of(report.offloaded) >= macs_of(before.offloaded)
    return found, report


def quantized_onnx(name):
    model, arguments = onnx_networks.SMALL[name]()
    before = report_of(backend.from_onnx(model))
    batches = quantized_networks.calibration_batches(arguments, 8)
    return model, arguments, *kept(before, model, batches, backend.from_onnx)


@cache
def is_whole(name):
    """Whether the emulator runs a network, and computes its products with integers, too."""
    if not support.IS_EMULATOR or support.lacks_integers("conv2d", "matmul", "add", "mean"):
        return False
    rows = report_of(backend.from_onnx(onnx_networks.SMALL[name]()[0])).on_host
    return all(item.bookkeeping for item in rows)


def run(mod, arguments):
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arguments))
    return (result if isinstance(result, tvm.runtime.Tensor) else result[0]).numpy()


NAMES = [
    pytest.param(name, marks=() if name == "resnet" else thorough) for name in onnx_networks.SMALL
]


@needs_onnx
@pytest.mark.parametrize("name", ["resnet", pytest.param("gpt", marks=thorough)])
def test_a_network_of_onnx_keeps_its_macs(name):
    """Of the others, test_quantize.py says so, which quantizes them for their values."""
    quantized_onnx(name)


@needs_onnx
@pytest.mark.parametrize("says", ["driver", "table"])
@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_onnx_runs_on_a_chip_of_integers(name, says, decline, request):
    """What would be on the host in float is quantized as well: sums, activations, and results."""
    is_complete = is_whole(name)
    if says == "driver":
        decline(declines(INTEGERS_ONLY))
    else:
        request.getfixturevalue("integers_only")
    model, arguments, found, report = quantized_onnx(name)
    if not is_complete:
        return
    assert macs_of(report.offloaded) == macs_of(report.ops)
    left = {item.op for item in report.on_host if not item.bookkeeping}
    if name in ("resnet", "mobilenet", "unet", "lstm"):
        assert left == {QUANTIZE, DEQUANTIZE}
        assert len(report.regions) == 1
        right, *_ = original_of(found).run(list(arguments))
        exact, *_ = original_of(model).run(list(arguments))
        result = run(backend.from_onnx(found), arguments)
        assert np.abs(result - right).max() <= 0.02 * np.abs(right).max()
        assert np.abs(result - exact).max() <= 0.05 * np.abs(exact).max()
    assert left.isdisjoint({"relax.matmul", "relax.nn.conv2d", "relax.nn.relu"})


@needs_torch
@thorough
@pytest.mark.parametrize("name", ["resnet", "mobilenet", "bert"])
def test_a_network_of_torch_keeps_its_macs_on_a_chip_of_integers(name, decline):
    """On this backend, test_quantize.py says so, which quantizes them for their values."""
    from backend.engine.workbench.conformance import torch_networks

    has_integers = is_whole("resnet")
    decline(declines(INTEGERS_ONLY))
    network, inputs = torch_networks.make(*torch_networks.SMALL[name])
    before = report_of(torch_networks.export(name)[0])
    batches = quantized_networks.calibration_batches([item.numpy() for item in inputs], 8)
    is_complete = all(item.bookkeeping for item in before.on_host)
    _, report = kept(before, network, batches, backend.from_exported_program)
    if is_complete or has_integers:
        assert macs_of(report.offloaded) == macs_of(report.ops)


KINDS = [kind for kind in NARROW if kind not in ("integers", "conversions")]


@needs_onnx
@needs("conv2d", "matmul", "quantize", "dequantize")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if (name, kind) == ("resnet", "neither") else thorough)
        for name in ("resnet", "mobilenet")
        for kind in KINDS
    ],
)
def test_only_what_a_narrow_driver_computes_with_integers_is_quantized(name, kind, decline):
    is_complete = is_whole(name)
    decline(declines(kind))
    model, arguments, found, report = quantized_onnx(name)
    products = [item for item in report.ops if is_product(item.op)]
    assert not [item.wider for item in products if NARROW[kind] in (item.wider or "")]
    if not is_complete:
        return
    assert macs_of(report.offloaded) == macs_of(report.ops)
    labels = [item.composite for item in products]
    real = [label for label in labels if not label.startswith("quantized_")]
    to_real = [label for label in labels if label.endswith("_to_real")]
    assert not to_real or kind not in ("real results", "neither")
    # Real results are those of products on real numbers then: the last one's alone.
    assert len(real) == {"real results": 1, "neither": 1, "residuals": 0}.get(kind, len(real))
    assert len(real) < len(labels)
    right, *_ = original_of(found).run(list(arguments))
    exact, *_ = original_of(model).run(list(arguments))
    result = run(backend.from_onnx(found), arguments)
    assert np.abs(result - right).max() <= 0.02 * np.abs(right).max()
    assert np.abs(result - exact).max() <= 0.05 * np.abs(exact).max()


@needs_onnx
@needs("conv2d", "quantize", "dequantize")
@pytest.mark.parametrize("kind", ["integers", pytest.param("conversions", marks=thorough)])
def test_a_driver_without_integers_says_so(kind, decline):
    is_complete = is_whole("resnet")
    decline(declines(kind))
    model, arguments = onnx_networks.SMALL["resnet"]()
    with pytest.raises(ValueError, match=NOTHING) as raised:
        batches = quantized_networks.calibration_batches(arguments, 8)
        quantize_for(model, batches, activations="int8")
    if is_complete:
        assert NARROW[kind] in str(raised.value)


# ---- The plan -----------------------------------------------------------------------------------


def planned(lines, results, *, real_results=(), host=(), moved=()):
    """Plan lines such as "c = conv a b", where all groups compute with integers.

    `real_results`: groups that have a form with a real result.
    `host`: the ops that the NPU does not compute with real numbers.
    """
    nodes = []
    for index, line in enumerate(lines):
        result, _, rest = line.partition(" = ")
        kind, *inputs = rest.split()
        is_one = kind == "conv"
        nodes.append(Node(index, (kind, result), tuple(inputs), (result,), is_one))

    def ask(group, wide, ends):
        kinds = " ".join(node.names[0] for node in group)
        if ends is Ends.REALS:
            return None if kinds in host else COMPUTES
        if ends is Ends.REAL_RESULT:
            return COMPUTES if kinds in real_results else None
        if not {"softmax", "topk"}.isdisjoint(kinds.split()):
            return None
        return MOVES if kinds in moved else COMPUTES

    found = Planner(nodes, results, ask).plan()
    groups = [" ".join(node.names[1] for node in group) for group in found.groups]
    return groups, [node.names[1] for node in found.singles], found


def test_a_product_without_a_form_of_a_real_result_stays_in_float():
    lines = ("c = conv x", "d = conv c", "e = conv d", "s = softmax e")
    groups, others, found = planned(lines, ["s"])
    assert (groups, others) == (["c", "d"], [])
    # It would be rounded in any case: the last product would read it as integers.
    assert found.rounded == {"d"}
    assert found.quantized == {"x", "c", "d"}
    groups, _, found = planned(lines, ["s"], real_results=("conv",))
    assert (groups, found.rounded, found.quantized) == (["c", "d", "e"], set(), {"x", "c", "d"})


def test_the_only_product_is_rounded_rather_than_left_in_float():
    groups, _, found = planned(("c = conv x", "s = softmax c"), ["s"])
    assert (groups, found.rounded) == (["c"], {"c"})


def test_a_result_is_rounded_if_the_host_would_compute_it():
    lines = ("c = conv x", "d = conv c")
    groups, _, found = planned(lines, ["d"], host=("conv",))
    assert (groups, found.rounded, found.quantized) == (["c", "d"], {"d"}, {"x", "c", "d"})


def test_a_result_that_integers_and_reals_read_needs_no_real_form():
    lines = ("c = conv x", "d = conv c", "s = softmax c", "t = softmax d")
    groups, _, found = planned(lines, ["c", "s", "t"], host=("conv",))
    assert groups == ["c", "d"]
    assert found.rounded == {"d"}


def test_a_tensor_is_quantized_for_an_addition_only_if_that_was_on_the_host():
    lines = ("n = norm x", "c = conv n", "a = add c y", "d = conv a")
    for host, groups in (((), ["c", "d"]), (("add",), ["c a", "d"])):
        found = planned(lines, ["d"], real_results=("conv",), host=host)
        assert found[0] == groups
        assert ("y" in found[2].quantized) == bool(host)


def test_ops_around_integers_are_quantized_if_they_were_on_the_host():
    lines = ("p = add x y", "c = conv p", "t = topk c", "m = max t", "r = reshape c", "z = add r r")
    kinds = ("add", "reshape", "max")
    groups, others, found = planned(lines, ["m", "z"], real_results=("conv",), moved=("reshape",))
    assert (groups, others, found.rounded) == (["c"], [], set())
    groups, others, found = planned(lines, ["m", "z"], host=("conv", *kinds), moved=("reshape",))
    # No integer op is before or after the maximum.
    assert (groups, others) == (["c"], ["p", "r", "z"])
    assert found.rounded == {"z"}
    assert ("c", "r") in found.tied
