# SPDX-License-Identifier: Apache-2.0
"""One model for several memory sizes: other plans, equal values, an error if it is too small."""

import math
from functools import cache, partial

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from support import BACKEND, OPS, TABLE, Case, array, compile_for, host_library, run_on_host

needs = support.needs  # Not imported, because some selections of ops skip every test that uses it.

pytestmark = support.needs_emulator

KIB = 1 << 10


def constant(*shape, seed=0):
    return relax.const(array(*shape, seed=seed) / np.sqrt(np.prod(shape[1:])).astype("float32"))


def counters(machine):
    """Sum the counters of the regions of a virtual machine."""
    found = {}

    def visit(module):
        if module.kind == BACKEND:
            for name, value in module["counters"]().items():
                found[str(name)] = found.get(str(name), 0) + int(value)
        for item in module.imports:
            visit(item)

    visit(machine.module)
    return found


def run(mod, arrays, **options):
    """Compile, call once, and return the result and the counters."""
    machine = relax.VirtualMachine(compile_for(mod, on_decline="error", **options), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    return result, counters(machine)


def assert_plans_differ_and_values_do_not(mod, arrays, sizes):
    """From the largest memory to the smallest."""
    (expected,) = run_on_host(mod, "main", arrays)
    results = [run(mod, arrays, scratchpad_bytes=size) for size in sizes]
    for (result, found), size in zip(results, sizes, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
        # Equal except for rounding: if the reduced dimension is tiled, partial sums are added.
        np.testing.assert_allclose(result, results[0][0], rtol=1e-5, atol=1e-6)
        assert 0 < found["scratchpad_bytes"] <= size
        assert found["matrix_operations"] == results[0][1]["matrix_operations"]
    counted = [found for _, found in results]
    traffic = [found["dram_bytes_read"] + found["dram_bytes_written"] for found in counted]
    assert traffic == sorted(traffic)
    assert len(set(traffic)) > 1
    assert [found["cycles"] for found in counted] == sorted(found["cycles"] for found in counted)
    assert len({found["commands"] for found in counted}) == len(sizes)


def listing_of(mod, path, **options):
    """Return the driver's listing of the only region."""
    compile_for(mod, **options).export_library(str(path))
    (artifact,) = backend.read_artifacts(path)
    return artifact.program


def convolutions(channels=24, size=32):
    x = support.variable("x", 1, 8, size, size)

    def body(emit):
        first = emit(relax.op.nn.conv2d(x, constant(channels, 8, 3, 3), padding=1))
        second = emit(
            relax.op.nn.conv2d(first, constant(channels, channels, 3, 3, seed=1), padding=1)
        )
        return emit(
            relax.op.nn.conv2d(second, constant(16, channels, 3, 3, seed=2), strides=2, padding=1)
        )

    return support.build([x], body), [array(1, 8, size, size)]


@support.needs_reals
@needs("conv2d")
def test_convolutions_in_three_memories():
    mod, arrays = convolutions()
    sizes = (4096 * KIB, 128 * KIB, 32 * KIB)
    assert_plans_differ_and_values_do_not(mod, arrays, sizes)


@support.needs_reals
@needs("conv2d")
def test_the_listing_shows_the_plan(tmp_path):
    mod, _ = convolutions()
    path = tmp_path / "model.so"
    listings = [listing_of(mod, path, scratchpad_bytes=size * KIB) for size in (4096, 128, 32)]
    assert len(set(listings)) == 3
    for listing in listings:
        assert "conv2d" in listing
    # The same options give the same plan.
    assert listing_of(mod, path, scratchpad_bytes=128 * KIB) == listings[1]


@needs("conv2d")
def test_a_convolution_that_fits_no_memory_is_reported():
    """The error, or the reason in the report, names the op and the required bytes."""
    x = support.variable("x", 1, 2, 4, 450)
    mod = support.build([x], lambda emit: emit(relax.op.nn.conv2d(x, constant(3, 2, 1, 400))))
    support.skip_where_limited(mod)
    words = r"relax\.nn\.conv2d \(\w+\).* needs at least (\d+) bytes.* (\d+) bytes are missing"
    with pytest.raises(RuntimeError, match=words) as caught:
        compile_for(mod, on_decline="error", scratchpad_bytes=1 * KIB)
    needed, missing = (int(word) for word in str(caught.value).split() if word.isdigit())
    assert needed - missing == 1 * KIB
    (entry,) = backend.offload_report(support.partition_for(mod, scratchpad_bytes=1 * KIB)).ops
    assert entry.placement == "host"
    assert "relax.nn.conv2d" in entry.reason
    assert f"{missing} bytes are missing" in entry.reason
    # With exactly that much it compiles, and with less it does not.
    assert backend.offload_report(support.partition_for(mod, scratchpad_bytes=needed)).on_host == ()
    assert (
        backend.offload_report(support.partition_for(mod, scratchpad_bytes=needed - 1)).offloaded
        == ()
    )


@needs("conv2d")
def test_what_fits_stays_on_the_npu():
    """Only an op that is too large runs on the host."""
    x = support.variable("x", 1, 2, 6, 6)

    def body(emit):
        small = emit(relax.op.nn.conv2d(x, constant(3, 2, 3, 3), padding=1))
        large = emit(relax.op.nn.conv2d(small, constant(5, 3, 1, 3000, seed=1), padding=[0, 1500]))
        return emit(relax.op.nn.conv2d(large, constant(2, 5, 3, 3, seed=2), padding=1))

    mod = support.build([x], body)
    support.skip_where_limited(mod)
    report = backend.offload_report(support.partition_for(mod, scratchpad_bytes=8 * KIB))
    assert [item.placement for item in report.ops] == ["npu", "host", "npu"], str(report)


@support.needs_reals
@support.needs_symbols
@needs("conv2d")
def test_a_symbol_is_planned_for_its_bound():
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4, 8, 8), "float32"))
    weight = constant(6, 4, 3, 3)
    mod = support.build([x], lambda emit: emit(relax.op.nn.conv2d(x, weight, padding=1)))
    expected = relax.VirtualMachine(host_library(mod), tvm.cpu())
    for bound in (1, 5, 64):
        machine = relax.VirtualMachine(
            compile_for(mod, symbol_bounds={"n": bound}, on_decline="error"), tvm.cpu()
        )
        for batch in {1, bound}:
            value = tvm.runtime.tensor(array(batch, 4, 8, 8))
            actual = machine["main"](value).numpy()
            np.testing.assert_allclose(
                actual, expected["main"](value).numpy(), rtol=1e-4, atol=1e-4
            )
        with pytest.raises(Exception, match=rf"(?s)\b{bound + 1}\b.*\b{bound}\b"):
            machine["main"](tvm.runtime.tensor(array(bound + 1, 4, 8, 8)))


def attention(length=48, width=32, heads=2):
    shape = (1, heads, length, width)
    names = ("q", "k", "v")
    q, k, v = (support.variable(name, *shape) for name in names)

    def body(emit):
        swapped = emit(relax.op.permute_dims(k, [0, 1, 3, 2]))
        weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, swapped))))
        mixed = emit(relax.op.matmul(weights, v))
        return emit(relax.op.matmul(mixed, constant(width, width)))

    return support.build([q, k, v], body), [array(*shape, seed=seed) for seed in range(3)]


@support.needs_reals
@needs("matmul", "softmax", variable=True)
def test_attention_in_three_memories():
    mod, arrays = attention()
    sizes = (4096 * KIB, 24 * KIB, 12 * KIB)
    assert_plans_differ_and_values_do_not(mod, arrays, sizes)


@cache
def largest_cases():
    """Return the case of each op with the most elements: where the plans differ most."""
    models = {}
    for op in OPS:
        if TABLE.get(op) and op in support.SELECTED:
            models[op] = max(map(partial(Case, op), OPS[op]["cases"]), key=count_elements)
    return {op: case.model(constants=True) for op, case in models.items()}


def count_elements(case):
    model = case.model(constants=True, exact=False)
    shapes = [tensor.shape for tensor in [*model.arguments, *model.outputs]]
    known = [[size if isinstance(size, int) else support.SIZES[-1] for size in s] for s in shapes]
    return sum(map(math.prod, known))


@cache
def compiled(size):
    options = {"scratchpad_bytes": size, "symbol_bound": support.SIZES[-1]} if size else {}
    return support.compile_all(list(largest_cases().values()), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("op", [op for op in OPS if TABLE.get(op)])
def test_each_op_computes_the_same_in_a_small_memory(op):
    """Or it is declined with a reason."""
    model = largest_cases()[op]

    def on_host(size):
        return support.placement(compiled(size).partitioned[model.name], model.name).on_host

    for size in (16 * KIB, 2 * KIB):
        for reason in on_host(size):
            assert "bytes" in reason or reason in on_host(None)
        for n in model.sizes:
            arguments = [argument.values[n] for argument in model.arguments]
            support.assert_right(model, compiled(size).run(model.name, arguments), n)


@support.needs_reals
@needs("max_pool2d", "matmul")
def test_the_last_tile_of_a_pool_may_be_smaller_than_its_window():
    x, weight = support.variable("x", 1, 2, 6, 7), relax.const(np.ones((4, 6), "float32"))

    def body(emit):
        pool = emit(relax.op.nn.max_pool2d(x, (3, 2), (2, 2), ceil_mode=True))
        return emit(relax.op.matmul(pool, weight))

    mod = support.partition_for(support.build([x], body), cores=3)
    assert support.placement(mod, "main").extent == "all"
