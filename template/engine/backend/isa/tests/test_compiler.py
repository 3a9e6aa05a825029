# SPDX-License-Identifier: Apache-2.0
"""From loops to instructions: each step on a small kernel, and values beside those of llvm."""

import hypothesis
import isa_host
import numpy as np
import pytest
from hypothesis import strategies
from tvm import te, tirx

from backend.engine.backend.isa.compiler import code, scheduling
from backend.engine.backend.isa.compiler.buffering import alternate
from backend.engine.backend.isa.compiler.compile import (
    KernelDeclined,
    Layout,
    Settings,
    compile_plan,
    kernel_lines,
    lowered,
)
from backend.engine.backend.isa.compiler.kernels import Kernel, Plan, Tensor
from backend.engine.backend.isa.compiler.loops import (
    Affine,
    Buffer,
    Const,
    For,
    Load,
    Loops,
    Op,
    Pick,
    Store,
    Undecided,
    Unsupported,
    Var,
    lines_of,
    replaced,
)
from backend.engine.backend.isa.compiler.nests import merged, nests_of, without_conditions
from backend.engine.backend.isa.loading import load
from backend.engine.backend.isa.machine import CONSTANTS, FIRST_PORT, WORKSPACE, Line
from backend.engine.backend.isa.oracle import State, run

MACHINE = load()
SCALAR = Settings(disabled=("select",))


def array(*shape, dtype="float32", low=-5, high=5):
    random = np.random.default_rng(len(shape) + sum(shape))
    if dtype == "float32":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(low, high, shape).astype(dtype)


def placeholders(*arrays):
    return [te.placeholder(a.shape, str(a.dtype), name=f"x{i}") for i, a in enumerate(arrays)]


def plan_of(tensors, arrays, result):
    """A plan of one kernel, from te tensors."""
    function = te.create_prim_func([*tensors, result])
    shape = tuple(int(size) for size in result.shape)
    all_ = [Tensor(str(a.dtype), a.shape, "input", i) for i, a in enumerate(arrays)]
    all_.append(Tensor(str(result.dtype), shape, "output", 0))
    return Plan(all_, [Kernel("kernel", function, tuple(range(len(all_))), ("the op",))])


def executed(compiled, arrays, plan):
    program = compiled.program
    segments = {FIRST_PORT + i: bytearray(a.tobytes()) for i, a in enumerate(arrays)}
    segments[FIRST_PORT + len(arrays)] = bytearray(program.outputs[0])
    segments |= {CONSTANTS: bytearray(program.constants), WORKSPACE: bytearray(program.workspace)}
    state = State(MACHINE, segments, len(arrays))
    count = run(state, program.lines)
    result = np.frombuffer(segments[FIRST_PORT + len(arrays)], plan.tensors[-1].dtype)
    return result.reshape(plan.tensors[-1].shape), count


def assert_right(plan, arrays, settings, tolerance=1e-5):
    """Compare with the host; return what was compiled, and how many instructions were executed."""
    compiled = compile_plan(plan, MACHINE, settings)
    found, count = executed(compiled, arrays, plan)
    (expected,) = isa_host.runner(plan)(arrays)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)
    return compiled, count


# ---- Kernels ------------------------------------------------------------------------------------


def convolution(size=6, channels=5, columns=7, window=3, stride=1, dtype="float32"):
    total = "float32" if dtype == "float32" else "int32"
    arrays = [array(1, size, size, channels, dtype=dtype)]
    arrays += [array(window, window, channels, columns, dtype=dtype), array(columns, dtype=total)]
    x, w, b = placeholders(*arrays)
    pad = window // 2
    padded = te.compute(
        (1, size + 2 * pad, size + 2 * pad, channels),
        lambda n, i, j, c: tirx.if_then_else(
            tirx.all(i >= pad, i < size + pad, j >= pad, j < size + pad),
            x[n, i - pad, j - pad, c],
            tirx.const(0, dtype),
        ),
        name="padded",
    )
    out = (size + 2 * pad - window) // stride + 1
    axes = [te.reduce_axis((0, extent)) for extent in (window, window, channels)]
    sums = te.compute(
        (1, out, out, columns),
        lambda n, i, j, c: te.sum(
            padded[n, i * stride + axes[0], j * stride + axes[1], axes[2]].astype(total)
            * w[axes[0], axes[1], axes[2], c].astype(total),
            axis=axes,
        ),
        name="sums",
    )
    result = te.compute(
        (1, out, out, columns),
        lambda n, i, j, c: tirx.max(sums[n, i, j, c] + b[c], tirx.const(0, total)),
        name="result",
    )
    return [x, w, b], arrays, result


def matmul(rows=5, sums=9, columns=6, batch=2, transposed=False):
    shape = (batch, columns, sums) if transposed else (batch, sums, columns)
    arrays = [array(batch, rows, sums), array(*shape)]
    x, w = placeholders(*arrays)
    k = te.reduce_axis((0, sums))
    product = te.compute(
        (batch, rows, columns),
        lambda b, i, j: te.sum(x[b, i, k] * (w[b, j, k] if transposed else w[b, k, j]), axis=k),
        name="product",
    )
    result = te.compute(product.shape, lambda *i: tirx.tanh(product[i]), name="result")
    return [x, w], arrays, result


def softmax():
    arrays = [array(5, 40)]
    (x,) = placeholders(*arrays)
    k, j = te.reduce_axis((0, 40)), te.reduce_axis((0, 40))
    most = te.compute((5,), lambda i: te.max(x[i, k], axis=k), name="most")
    power = te.compute((5, 40), lambda i, c: tirx.exp(x[i, c] - most[i]), name="power")
    total = te.compute((5,), lambda i: te.sum(power[i, j], axis=j), name="total")
    return [x], arrays, te.compute((5, 40), lambda i, c: power[i, c] / total[i], name="result")


def pooling():
    arrays = [array(1, 7, 7, 6)]
    (x,) = placeholders(*arrays)
    least = tirx.const(-3.4e38, "float32")
    inside = lambda i, j: tirx.all(i >= 1, i < 8, j >= 1, j < 8)  # noqa: E731
    padded = te.compute(
        (1, 9, 9, 6),
        lambda n, i, j, c: tirx.if_then_else(inside(i, j), x[n, i - 1, j - 1, c], least),
        name="padded",
    )
    h, w = te.reduce_axis((0, 3)), te.reduce_axis((0, 3))
    window = lambda n, i, j, c: te.max(padded[n, i * 2 + h, j * 2 + w, c], axis=[h, w])  # noqa: E731
    return [x], arrays, te.compute((1, 4, 4, 6), window, name="result")


def permutation():
    arrays = [array(4, 5, 6)]
    (x,) = placeholders(*arrays)
    return [x], arrays, te.compute((6, 4, 5), lambda k, i, j: x[i, j, k], name="result")


def concatenation():
    arrays = [array(3, 5, 4), array(3, 2, 4)]
    x, y = placeholders(*arrays)
    either = lambda i, j, k: tirx.if_then_else(j < 5, x[i, j, k], y[i, j - 5, k])  # noqa: E731
    return [x, y], arrays, te.compute((3, 7, 4), either, name="result")


def rescaling():
    arrays = [array(6, 11, dtype="int32", low=-(1 << 30), high=1 << 30)]
    (x,) = placeholders(*arrays)
    factor = tirx.const(1518500249, "int64")

    def rescaled(i, j):
        product = (x[i, j].astype("int64") * factor + tirx.const(1 << 36, "int64")) >> 37
        ends = (tirx.const(end, "int64") for end in (-128, 127))
        return tirx.max(tirx.min(product, [*ends][1]), tirx.const(-128, "int64")).astype("int8")

    return [x], arrays, te.compute((6, 11), rescaled, name="result")


def gathering():
    arrays = [array(9, 4), array(5, dtype="int32", low=0, high=9)]
    x, index = placeholders(*arrays)
    return [x, index], arrays, te.compute((5, 4), lambda i, j: x[index[i], j], name="result")


KERNELS = {
    "convolution": convolution,
    "strides": lambda: convolution(7, 3, 8, 3, 2),
    "int8": lambda: convolution(5, 8, 16, 3, 1, "int8"),
    "a window of one": lambda: convolution(4, 16, 24, 1),
    "matmul": matmul,
    "transposed weights": lambda: matmul(transposed=True),
    "one row": lambda: matmul(1, 70, 50, 1),
    "softmax": softmax,
    "pooling": pooling,
    "permutation": permutation,
    "concatenation": concatenation,
    "rescaling": rescaling,
    "gathering": gathering,
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_right_values_as_vectors_and_as_scalar_code(name):
    tensors, arrays, result = KERNELS[name]()
    plan = plan_of(tensors, arrays, result)
    vectors, fast = assert_right(plan, arrays, Settings())
    if name == "gathering":
        ((label, nest),) = vectors.scalar
        assert label == "the op" and "is not affine" in nest.reason and "x0[" in nest.text
        return
    assert not vectors.scalar
    if np.prod([int(size) for size in result.shape]) * len(arrays) < 500:
        scalar, slow = assert_right(plan, arrays, SCALAR)
        assert scalar.scalar and slow > 5 * fast


@pytest.mark.parametrize("name", ["convolution", "matmul", "int8", "a window of one"])
def test_products_run_on_the_matrix_engine(name):
    tensors, arrays, result = KERNELS[name]()
    compiled = compile_plan(plan_of(tensors, arrays, result), MACHINE, Settings())
    products = [line for line in compiled.program.lines if line.instruction == "mm"]
    assert products and {line.label for line in products} == {"the op"}
    assert {line.fields["type"] for line in products} == {"i8" if name == "int8" else "f32"}


@pytest.mark.parametrize("disabled", ["alternate", "StmtSimplify", "InjectSoftwarePipeline"])
def test_a_pass_can_be_left_out(disabled):
    tensors, arrays, result = matmul(12, 40, 24)
    assert_right(plan_of(tensors, arrays, result), arrays, Settings(disabled=(disabled,)))


def test_without_rules_nothing_runs_on_the_matrix_engine():
    tensors, arrays, result = matmul()
    compiled, _ = assert_right(plan_of(tensors, arrays, result), arrays, Settings(rules=()))
    assert "mm" not in {line.instruction for line in compiled.program.lines}
    assert not compiled.scalar


# ---- Nests --------------------------------------------------------------------------------------

X, Y = Buffer("x", "f32", 64, "dram", 0), Buffer("y", "f32", 64, "dram", 1)
OUTER, J = Var("i"), Var("j")


def number(value):
    return Const(value, "i64")


def less(a, b):
    return Op("lt", a, b, "bool")


def test_a_nest_is_split_where_a_condition_changes():
    tensors, arrays, result = concatenation()
    plan = plan_of(tensors, arrays, result)
    (loop,) = lowered(plan.kernels[0].function, "kernel", MACHINE, Settings()).body
    (nest,) = nests_of(loop)
    first, second = without_conditions(nest, {})
    assert [[count for _, count in nest.loops] for nest in (first, second)] == [
        [3, 5, 4],
        [3, 2, 4],
    ]
    assert "x0[" in first.text and "x1[" in second.text
    assert "if" not in first.text + second.text


def test_a_condition_of_a_loop_around_a_nest_splits_that_loop():
    index = Op("add", Op("mul", OUTER, number(8), "i64"), J, "i64")
    value = Op("add", Load(X, index), Const(1.0, "f32"), "f32")
    picked = Pick(less(Op("add", OUTER, J, "i64"), number(3)), value, Const(0.0, "f32"), "f32")
    nest = nests_of(For(J, number(8), [Store(Y, index, picked)]))[0]
    with pytest.raises(Undecided, match=r"\(\(i \+ j\) < 3\) depends on the loop of i"):
        without_conditions(nest, {OUTER: 8})
    # For one of its iterations, the nest has two parts.
    (loop,) = replaced([For(J, number(8), [nest.store])], {OUTER: number(1)})
    parts = without_conditions(nests_of(loop)[0], {})
    assert [part.loops[0][1] for part in parts] == [2, 6]


def test_dimensions_that_lie_behind_each_other_are_one():
    assert merged([(4, (60, 12)), (5, (12, 0)), (3, (4, 4))]) == [
        (4, (60, 12)),
        (5, (12, 0)),
        (3, (4, 4)),
    ]
    assert merged([(4, (60, 60)), (1, (7, 9)), (5, (12, 12)), (3, (4, 4))]) == [(60, (4, 4))]


def test_buffers_alternate_where_two_fit():
    near = Buffer("tile", "f32", 16, "spad")
    offset = Op("mul", OUTER, number(16), "i64")

    def copy(target, source, at_target, at_source):
        def index(at):
            return J if at is None else Op("add", at, J, "i64")

        return For(J, number(16), [Store(target, index(at_target), Load(source, index(at_source)))])

    body = [copy(near, X, None, offset), copy(Y, near, offset, None)]
    loops = Loops("kernel", [X, Y], [near], [For(OUTER, number(4), body)])
    made = alternate(loops, MACHINE)
    text = "\n".join(lines_of(made.body))
    assert [buffer.name for buffer in made.buffers] == ["tile", "tile_2"]
    assert text.startswith("for i in 2:") and text.count("tile_2[") == 2
    large = Buffer("tile", "f32", MACHINE.memory("spad").bytes // 5, "spad")
    loops = Loops("kernel", [X, Y], [large], loops.body)
    assert alternate(loops, MACHINE).buffers == [large]


# ---- Registers ----------------------------------------------------------------------------------


@hypothesis.given(
    counts=strategies.lists(strategies.integers(1, 4), min_size=1, max_size=4),
    used=strategies.lists(strategies.integers(0, 3), min_size=1, max_size=4),
    depth=strategies.integers(0, 3),
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_registers_have_the_addresses_of_all_iterations(counts, used, depth):
    """Elements are counted at addresses that depend on any of the loops around them."""
    variables = [Var(f"v{i}") for i in range(len(counts))]
    terms = {variables[i % len(counts)]: 4 * (7 * i + 1) for i in used}
    base = 2 << 40
    place = code.Where(base, Affine(64, terms))
    items = [
        code.Step("lds", {"to": code.Temporary(0), "source": place, "type": "i32"}),
        code.Step("step", {"to": code.Temporary(0), "a": code.Temporary(0), "value": 1}),
        code.Step("sts", {"a": code.Temporary(0), "target": place, "type": "i32"}),
    ]
    for index, (var, count) in enumerate(reversed([*zip(variables, counts, strict=True)])):
        items = [code.Repeat(var, count, items)]
        if index == depth:
            items = [code.Guard(items)]
    lines = code.Assembler(MACHINE, 12).assemble(items)
    state = State(MACHINE)
    run(state, [*lines, Line("halt", {})])
    expected = np.zeros(256, "int32")
    for indices in np.ndindex(*counts):
        values = dict(zip(variables, indices, strict=True))
        expected[16 + sum(values[var] * factor for var, factor in terms.items()) // 4] += 1
    found = np.frombuffer(bytes(state.memories[2][:1024]), "int32")
    np.testing.assert_array_equal(found, expected)


def test_more_loops_than_the_hardware_has_are_branches():
    variables = [Var(f"v{i}") for i in range(MACHINE.loop_depth + 2)]
    terms = {var: 4 << i for i, var in enumerate(variables)}
    place = code.Where(2 << 40, Affine(0, terms))
    items = [
        code.Step("set", {"to": code.Temporary(0), "value": 1}),
        code.Step("sts", {"a": code.Temporary(0), "target": place, "type": "i32"}),
    ]
    for var in variables:
        items = [code.Repeat(var, 2, items)]
    lines = code.Assembler(MACHINE, 12).assemble(items)
    state = State(MACHINE)
    run(state, [*lines, Line("halt", {})])
    count = 1 << len(variables)
    found = np.frombuffer(bytes(state.memories[2][: 4 * count + 4]), "int32")
    np.testing.assert_array_equal(found, [1] * count + [0])


def test_too_many_addresses_are_an_error():
    var = Var("i")
    places = [code.Where(2 << 40, Affine(0, {var: 4 * i + 4})) for i in range(40)]
    items = [
        code.Step("lds", {"to": code.Temporary(0), "source": place, "type": "i32"})
        for place in places
    ]
    with pytest.raises(Unsupported, match="more than 19 registers are needed at a time"):
        code.Assembler(MACHINE, 12).assemble([code.Repeat(var, 2, items)])


# ---- Errors -------------------------------------------------------------------------------------


def test_a_buffer_that_does_not_fit_is_named():
    def greedy(schedule, machine, sizes):
        block = scheduling.blocks_of(schedule)[-1]
        copy = schedule.cache_read(block, 0, "global.acc")
        schedule.compute_at(copy, schedule.get_loops(block)[0])
        return True

    size = MACHINE.memory("acc").bytes // 4 + 16
    arrays = [array(2, size)]
    (x,) = placeholders(*arrays)
    result = te.compute((2, size), lambda i, j: x[i, j] + 1.0, name="result")
    plan = plan_of([x], arrays, result)
    function = scheduling.scheduled(plan.kernels[0].function, MACHINE, greedy, {})
    loops = lowered(function, "kernel", MACHINE, Settings())
    layout = Layout(plan)
    with pytest.raises(Unsupported, match=r"x0_global.acc of kernel does not fit: acc .* 64 more"):
        kernel_lines(loops, MACHINE, Settings(), [layout.place(i) for i in (0, 1)], layout)
    # Without the rule it runs.
    compiled = compile_plan(plan, MACHINE, Settings(rules=(greedy,)))
    assert "acc" not in {line.fields.get("target") for line in compiled.program.lines}


def test_what_has_no_instructions_is_named():
    x = te.placeholder((4,), "float64", name="x0")
    result = te.compute((4,), lambda i: x[i] * 2.0, name="result")
    with pytest.raises(KernelDeclined, match="the buffer x0 has elements of float64") as info:
        compile_plan(plan_of([x], [np.zeros(4)], result), MACHINE, Settings())
    assert info.value.label == "the op"
