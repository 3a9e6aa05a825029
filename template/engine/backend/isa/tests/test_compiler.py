# SPDX-License-Identifier: Apache-2.0
"""From loops to instructions: each step on a small kernel, and values beside those of llvm."""

from dataclasses import replace

import hypothesis
import isa_host
import numpy as np
import pytest
from hypothesis import strategies
from tvm import te, tirx

from backend.engine.backend.isa.compiler import code, kernels, scheduling
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
    text_of,
)
from backend.engine.backend.isa.compiler.nests import merged, nests_of, without_conditions
from backend.engine.backend.isa.compiler.roles import matrix_of
from backend.engine.backend.isa.kinds import Address, Choice, Float, Number
from backend.engine.backend.isa.loading import load
from backend.engine.backend.isa.machine import CONSTANTS, FIRST_PORT, WORKSPACE, Box, Line
from backend.engine.backend.isa.meaning import computed, meaning_of, named_in
from backend.engine.backend.isa.oracle import State, run

MACHINE = load()
IS_EXAMPLE = MACHINE.name == "example"
of_example = pytest.mark.skipif(not IS_EXAMPLE, reason="it is about the example machine")
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


def executed(compiled, arrays, plan, machine=MACHINE):
    program = compiled.program
    segments = {FIRST_PORT + i: bytearray(a.tobytes()) for i, a in enumerate(arrays)}
    segments[FIRST_PORT + len(arrays)] = bytearray(program.outputs[0])
    segments |= {CONSTANTS: bytearray(program.constants), WORKSPACE: bytearray(program.workspace)}
    state = State(machine, segments, len(arrays))
    count = run(state, program.lines)
    result = np.frombuffer(segments[FIRST_PORT + len(arrays)], plan.tensors[-1].dtype)
    return result.reshape(plan.tensors[-1].shape), count


def assert_right(plan, arrays, settings, tolerance=3e-5, machine=MACHINE):
    """Compare with the host; return what was compiled, and how many instructions were executed."""
    compiled = compile_plan(plan, machine, settings)
    found, count = executed(compiled, arrays, plan, machine)
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


def depthwise(size, channels, stride=1, dtype="float32"):
    """Windows of 3x3 with a bias, padded if the stride is 2."""
    total = "float32" if dtype == "float32" else "int32"
    arrays = [array(2, size, size, channels, dtype=dtype), array(3, 3, channels, dtype="int8")]
    arrays[1] = arrays[1].astype(dtype if dtype == "float32" else "int8")
    arrays.append(array(channels, dtype=total))
    x, w, b = placeholders(*arrays)
    if stride > 1:
        x_of = te.compute(
            (2, size + 1, size + 1, channels),
            lambda n, i, j, c: tirx.if_then_else(
                tirx.all(i >= 1, j >= 1), x[n, i - 1, j - 1, c], tirx.const(0, dtype)
            ),
            name="padded",
        )
    else:
        x_of = x
    out = (int(x_of.shape[1]) - 3) // stride + 1
    axes = [te.reduce_axis((0, 3)) for _ in range(2)]
    sums = te.compute(
        (2, out, out, channels),
        lambda n, i, j, c: te.sum(
            x_of[n, i * stride + axes[0], j * stride + axes[1], c].astype(total)
            * w[axes[0], axes[1], c].astype(total),
            axis=axes,
        ),
        name="sums",
    )
    result = te.compute(
        (2, out, out, channels), lambda n, i, j, c: sums[n, i, j, c] + b[c], name="result"
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


def rescaling_by_channel(form=lambda s: tirx.const(1, "int64") << (s - 1), least=-128):
    """Sums of two tensors, times a multiplier for each channel, as `node_rescale` writes it."""
    arrays = [array(6, 11, dtype="int32", low=-(1 << 29), high=1 << 29)]
    arrays += [array(11, dtype="int32", low=1 << 30, high=(1 << 31) - 1)]
    arrays += [array(11, dtype="int32", low=30, high=39), array(11, dtype="int32", low=-9)]
    x, multipliers, shifts, bias = placeholders(*arrays)

    def rescaled(i, j):
        a, m, s = (v.astype("int64") for v in (x[i, j] + bias[j], multipliers[j], shifts[j]))
        found = ((a * m + form(s)) >> s).astype("int32") + 3
        return tirx.min(tirx.max(found, least), 127).astype("int8")

    result = te.compute((6, 11), rescaled, name="result")
    return [x, multipliers, shifts, bias], arrays, result


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
    "rescaling by channel": rescaling_by_channel,
    "sums in two parts": lambda: matmul(10, 1200, 20),
    "gathering": gathering,
    "depthwise": lambda: depthwise(9, 20),
    "depthwise of bytes": lambda: depthwise(10, 68, stride=2, dtype="uint8"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_right_values_as_vectors_and_as_scalar_code(name):
    tensors, arrays, result = KERNELS[name]()
    plan = plan_of(tensors, arrays, result)
    vectors, fast = assert_right(plan, arrays, Settings())
    if not IS_EXAMPLE:
        return
    if name == "gathering":
        ((label, nest),) = vectors.scalar
        assert label == "the op" and "is not affine" in nest.reason and "x0[" in nest.text
        return
    assert not vectors.scalar
    if np.prod([int(size) for size in result.shape]) * len(arrays) < 500:
        scalar, slow = assert_right(plan, arrays, SCALAR)
        assert scalar.scalar and slow > 5 * fast


@of_example
@pytest.mark.parametrize("count", [1, 7])
def test_places_of_elements_are_vectors(count):
    data = np.array([[3, 9, -1, 9, 0, 9, 2]], "float32")
    order = np.argsort(-data, kind="stable")[:, :count]
    net = isa_host.Net()
    net.output(net.node("order", [net.input(data)], order, axis=1, descending=True), order)
    compiled, _ = assert_right(kernels.plan_of(net.region()), [data], Settings())
    assert not compiled.scalar


@of_example
@pytest.mark.parametrize(
    ("places", "axis"),
    [([1], 0), ([2], 1), ([4, 3, 2], 1), ([0, 2, 4, 1, 1], 1), ([3, 0, 1, 9], 1), ([-3, 1], 2)],
)
def test_known_places_are_moved(places, axis):
    """As the heads of packed queries, keys and values."""
    data, places = array(3, 5, 6), np.array(places, "int32")
    rows = np.take(data, places, axis, mode="clip")
    net = isa_host.Net()
    given = [net.input(data), net.constant(places)]
    net.output(net.node("gather", given, rows, axis=axis, elementwise=False), rows)
    compiled, _ = assert_right(kernels.plan_of(net.region()), [data], Settings())
    assert not compiled.scalar and {*names_of(compiled)} <= {"set", "ld", "st", "halt"}


@of_example
@pytest.mark.parametrize("name", ["convolution", "matmul", "int8", "a window of one"])
def test_products_run_on_the_matrix_engine(name):
    tensors, arrays, result = KERNELS[name]()
    compiled = compile_plan(plan_of(tensors, arrays, result), MACHINE, Settings())
    products = [line for line in compiled.program.lines if line.instruction == "mm"]
    assert products and {line.label for line in products} == {"the op"}
    assert {line.fields["type"] for line in products} == {"i8" if name == "int8" else "f32"}


@of_example
@pytest.mark.parametrize("name", ["convolution", "sums in two parts"])
def test_the_first_products_set_the_sums_and_padding_is_moved(name):
    """What vectors fill, they fill after what follows the product of the tile before."""
    tensors, arrays, result = KERNELS[name]()
    lines = compile_plan(plan_of(tensors, arrays, result), MACHINE, Settings()).program.lines
    products = [line for line in lines if line.instruction == "mm"]
    assert products[0].fields["mode"] == "set" and products[-1].fields["mode"] == "add"
    assert "fill" not in {line.instruction for line in lines}


@of_example
def test_an_integer_is_rescaled_by_the_instruction_if_it_means_the_same():
    def instructions(*form):
        tensors, arrays, result = rescaling_by_channel(*form)
        return names_of(assert_right(plan_of(tensors, arrays, result), arrays, Settings())[0])

    names = instructions()
    assert names.count("rescale") == 1 and not {"cvt", "vecs"} & {*names}
    # This form may have sums of more bits, and an integer of 8 bits may wrap around.
    assert "rescale" not in instructions(lambda s: (tirx.const(1, "int64") << s) >> 1)
    wraps = instructions(lambda s: tirx.const(1, "int64") << (s - 1), -300)
    assert wraps.count("rescale") == 1 and "cvt" in wraps


@of_example
@pytest.mark.parametrize("size", [6, 40])
def test_windows_of_channels_are_multiplied_by_the_matrix_engine(size):
    """In tiles of as many channels as it has columns; a bias is loaded for all of their rows."""
    tensors, arrays, result = depthwise(size, 48)
    compiled = compile_plan(plan_of(tensors, arrays, result), MACHINE, Settings())
    vectors = compile_plan(plan_of(tensors, arrays, result), without(MACHINE, "dw"), Settings())
    products = [it for it in compiled.program.lines if it.instruction == "dw"]
    assert {(it.fields["taps0"], it.fields["taps1"], it.fields["mode"]) for it in products} == {
        (3, 3, "set")
    }
    assert {it.fields["n"] for it in products} == {48 if size == 6 else 16}
    known = [it for it in compiled.program.lines if it.instruction in ("vec", "fill")]
    assert known and all(it.fields.get("op") == "add" for it in known)
    assert "dw" not in names_of(vectors) and "mul" in {
        it.fields.get("op") for it in vectors.program.lines
    }


def quantized_add(data, other, *, like="int8", zero=5, least=None, rounded=True):
    """Add integers as the real numbers that they stand for."""
    net = isa_host.Net()
    parts = []
    for number, scale, at in ((data, 0.03, 3), (other, 0.05, -7)):
        quantization = {"scale": scale, "zero_point": at, "axis": None}
        value = net.input(number)
        real = np.empty(number.shape, "float32")
        parts.append(net.node("dequantize", [value], real, **quantization))
    result = net.step("add", parts, real)
    if least is not None:
        result = net.step("relu", [result], real)
    known = {"scale": 0.0561, "zero_point": zero, "axis": None}
    stored = np.empty(number.shape, like)
    if rounded:
        net.output(net.node("quantize", [result], stored, **known), stored)
    else:
        net.output(result, real)
    return kernels.plan_of(net.region())


@of_example
@pytest.mark.parametrize("zero", [0, 5, -128])
@pytest.mark.parametrize("types", [("int8", "int8", "int8"), ("uint8", "int8", "uint8")])
def test_bytes_that_stand_for_real_numbers_are_added_by_one_instruction(zero, types):
    data, other = np.meshgrid(*(np.arange(256).astype(kind) for kind in types[:2]))
    for least in (None, 0):
        plan = quantized_add(data, other, like=types[2], zero=abs(zero), least=least)
        compiled, _ = assert_right(plan, [data, other], Settings())
        assert {*names_of(compiled)} <= {"set", "loop", "next", "ld", "vecq", "st", "halt"}
        (line, *_) = (it for it in compiled.program.lines if it.instruction == "vecq")
        low = np.iinfo(types[2]).min if least is None else min(abs(zero), np.iinfo(types[2]).max)
        assert line.fields["least"] == low
    # Real numbers, and a machine without it: vectors of float32.
    for plan, machine in (
        (quantized_add(data, other, rounded=False), MACHINE),
        (quantized_add(data, other), without(MACHINE, "vecq")),
    ):
        assert "vecq" not in names_of(compile_plan(plan, machine, Settings()))


def of_bytes(kind):
    """Return functions of a byte as tensors; the last one has one step, and one other operand."""
    arrays = [array(9, 2000, dtype=kind, low=0, high=100), array(2000)]
    x, y = placeholders(*arrays)
    half, third, zero = (tirx.const(it, "float32") for it in (0.5, 0.3, 0.0))

    def real(*i):
        return (x[i].astype("int32") - tirx.const(3, "int32")).astype("float32") * third

    def smooth(*i):
        found = te.nearbyint(te.tanh(real(*i)) / half)
        return tirx.Select(real(*i) > zero, found, zero - found).astype("int8")

    functions = {"looked up": smooth, "real": real}
    functions["one step"] = lambda *i: tirx.max(x[i], tirx.const(3, kind))
    functions["another operand"] = lambda *i: real(*i) + y[i[-1]]
    return arrays, [x, y], functions


@of_example
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_functions_of_a_byte_are_looked_up(kind):
    arrays, tensors, functions = of_bytes(kind)
    for name, function in functions.items():
        count = 2 if name == "another operand" else 1
        result = te.compute((9, 2000), function, name="result")
        plan = plan_of(tensors[:count], arrays[:count], result)
        compiled, _ = assert_right(plan, arrays[:count], Settings())
        names = {*names_of(compiled)} - {"set", "loop", "next", "ld", "st", "halt"}
        assert (names == {"lut"}) == (name in ("looked up", "real")), (name, names)
        assert ("lut" in names) == (names == {"lut"})
        # Its table is loaded once.
        tables = [it for it in compiled.program.lines if it.fields.get("bytes") in (256, 1024)]
        assert len(tables) == ("lut" in names)
        without_it = compile_plan(plan, without(MACHINE, "lut"), Settings())
        assert "lut" not in names_of(without_it) and not without_it.scalar


@of_example
def test_tiles_of_vectors_are_in_two_places_in_turn():
    arrays = [array(9, 40, 64), array(64)]
    x, bias = placeholders(*arrays)
    result = te.compute((9, 40, 64), lambda *i: x[i] + bias[i[-1]], name="result")
    compiled, _ = assert_right(plan_of([x, bias], arrays, result), arrays, Settings())
    moves = [line.fields["target"] for line in compiled.program.lines if line.instruction == "ld"]
    # The one of the bias, which lasts, and two of data, of which one is for what is left over.
    assert len(moves) > 2 and len({*moves}) == 3


@pytest.mark.parametrize("disabled", ["alternate", "StmtSimplify", "InjectSoftwarePipeline"])
def test_a_pass_can_be_left_out(disabled):
    tensors, arrays, result = matmul(12, 40, 24)
    assert_right(plan_of(tensors, arrays, result), arrays, Settings(disabled=(disabled,)))


@of_example
def test_without_rules_nothing_runs_on_the_matrix_engine():
    tensors, arrays, result = matmul()
    compiled, _ = assert_right(plan_of(tensors, arrays, result), arrays, Settings(rules=()))
    assert "mm" not in {line.instruction for line in compiled.program.lines}
    assert not compiled.scalar


# ---- Instructions of the vendor's own ------------------------------------------------------------

PLACES = ("target", "a", "b", "c")


def with_own(name, means, numbers=()):
    """Return the machine with one more vector instruction."""
    machine = replace(MACHINE, instructions=dict(MACHINE.instructions))
    places = [
        *dict.fromkeys(("target", *(it for it in named_in(meaning_of(means)) if it in PLACES)))
    ]
    counts = {f"count{i}": Number(16, least=1) for i in range(3)}
    strides = {f"{it}{i}": Number(24, signed=True) for it in places for i in range(3)}

    def box(place):
        return Box(place, "4", tuple((f"count{i}", f"{place}{i}") for i in range(3)))

    def oracle(s, f):
        """Compute what it means."""
        sizes = (f.count0, f.count1, f.count2)

        def steps(it):
            return [getattr(f, f"{it}{i}") for i in range(3)]

        given = {it: s.read(getattr(f, it), "f32", sizes, steps(it)) for it in places[1:]}
        given |= {it: np.float32(getattr(f, it)) for it in numbers}
        result = computed(meaning_of(means), given, np.dtype("float32"))
        s.write(f.target, "f32", result, steps("target"))

    oracle.__name__ = name
    machine.instruction(
        max(machine.by_opcode) + 1,
        MACHINE.instructions["vec"].engine,
        {it: Address("spad", "acc") for it in places}
        | {it: Float() for it in numbers}
        | counts
        | strides,
        reads=[box(it) for it in places[1:]],
        writes=[box("target")],
        means=means,
    )(oracle)
    return machine


def names_of(compiled):
    return [line.instruction for line in compiled.program.lines]


@of_example
def test_an_instruction_of_the_vendors_own_is_used_where_it_means_all():
    arrays = [array(5, 70)]
    (x,) = placeholders(*arrays)
    low, high = (tirx.const(end, "float32") for end in (-0.5, 0.25))
    result = te.compute(
        (5, 70), lambda *i: tirx.min(high, tirx.max(x[i], low)) * x[i], name="result"
    )
    plan = plan_of([x], arrays, result)
    machine = with_own("clip", "min(max(a, low), high)", ("low", "high"))
    compiled, fewer = assert_right(plan, arrays, Settings(), machine=machine)
    (line,) = (line for line in compiled.program.lines if line.instruction == "clip")
    assert (line.fields["low"], line.fields["high"]) == (-0.5, 0.25)
    assert "vecs" not in names_of(compiled) and "vec" in names_of(compiled)
    plain, count = assert_right(plan, arrays, Settings())
    assert names_of(plain).count("vecs") == 2 and fewer < count


@of_example
def test_a_sum_of_products_is_an_instruction_if_one_means_it():
    """Of a depthwise convolution, whose sums are vectors where there is no `dw`."""
    tensors, arrays, result = depthwise(8, 16)
    plan = plan_of(tensors, arrays, result)
    machine = without(with_own("mla", "add(c, mul(a, b))"), "dw")
    compiled, fewer = assert_right(plan, arrays, Settings(), machine=machine)
    assert "mla" in names_of(compiled)
    (line,) = (it for it in compiled.program.lines if it.instruction == "vec")
    assert line.fields["op"] == "add"
    assert fewer < assert_right(plan, arrays, Settings(), machine=without(MACHINE, "dw"))[1]


# ---- Other machines -----------------------------------------------------------------------------


def with_fields(machine, name, **fields):
    """Return a machine whose instruction has other fields of these names."""
    known = machine.instructions[name]
    changed = replace(known, fields={**known.fields, **fields})
    return replace(machine, instructions={**machine.instructions, name: changed})


def without(machine, *names):
    kept = {name: it for name, it in machine.instructions.items() if name not in names}
    return replace(machine, instructions=kept)


def with_one_memory(machine):
    address = Address("spad")
    return with_fields(machine, "mm", target=address, source=address, weights=address)


def with_small_tiles(machine):
    small = Number(4, least=1, most=8)
    return with_fields(machine, "mm", k=small, n=small, rows0=small, rows1=small)


VECTORS = ("fill", "vec", "vecs", "act", "cvt", "sel", "red", "lut", "rescale")
OTHERS = {
    "one memory": with_one_memory,
    "small tiles": with_small_tiles,
    "no vectors": lambda machine: without(machine, *VECTORS),
    "no moves": lambda machine: without(machine, "ld", "st"),
    "no loops": lambda machine: replace(without(machine, "loop", "next"), loop_depth=0),
    "few registers": lambda machine: replace(machine, registers=20),
    "all": lambda machine: replace(
        without(with_one_memory(with_small_tiles(machine)), *VECTORS), registers=20, loop_depth=2
    ),
}


@of_example
@pytest.mark.parametrize("change", OTHERS)
@pytest.mark.parametrize("name", ["int8", "matmul"])
def test_what_a_machine_lacks_is_done_by_what_it_has(change, name):
    machine = OTHERS[change](MACHINE)
    tensors, arrays, result = KERNELS[name]()
    compiled, _ = assert_right(
        plan_of(tensors, arrays, result), arrays, Settings(), machine=machine
    )
    assert "mm" in {line.instruction for line in compiled.program.lines}
    assert bool(compiled.scalar) == (change in ("no vectors", "no moves", "all"))
    if change == "no vectors":
        # Sums begin with zeros that are moved; only what follows them is scalar code.
        function = "max(" if name == "int8" else "tanh("
        assert all(function in nest.text for _, nest in compiled.scalar)


@of_example
def test_columns_that_take_as_long_as_one_are_the_width_of_a_machine():
    matrix = matrix_of(MACHINE)
    assert (matrix.data, matrix.weights, matrix.sums) == ("spad", "wspad", "acc")
    assert {*matrix.width.values()} == {16} and len(matrix.types) == 3
    # Channels of bytes are four to a column.
    assert matrix_of(MACHINE, "dw").width == {"f32": 16, "i8": 64, "u8": 64}
    known = MACHINE.instructions["mm"]
    wide = {**MACHINE.instructions, "mm": replace(known, cycles="ceil_div(n, 48)")}
    assert matrix_of(replace(MACHINE, instructions=wide)).width["f32"] == 32
    # Sums of another size are not those of products.
    small = tuple(replace(box, bytes="2 * n") for box in known.writes)
    other = {**MACHINE.instructions, "mm": replace(known, writes=small)}
    assert not matrix_of(replace(MACHINE, instructions=other)).types
    assert matrix_of(without(MACHINE, "mm")) is None
    assert matrix_of(with_one_memory(MACHINE)).rooms["sums"] == (256 << 10) // 6


@of_example
def test_what_no_program_does_without_is_named():
    tensors, arrays, result = matmul()
    with pytest.raises(KernelDeclined, match="the machine has no instruction set"):
        compile_plan(plan_of(tensors, arrays, result), without(MACHINE, "set"), Settings())
    machine = with_fields(MACHINE, "lds", type=Choice("f32"))
    tensors, arrays, result = gathering()
    with pytest.raises(KernelDeclined, match="type of lds is i32; it may be f32"):
        compile_plan(plan_of(tensors, arrays, result), machine, Settings())


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
    (nest,) = nests_of(loop, {})
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
    nest = nests_of(For(J, number(8), [Store(Y, index, picked)]), {})[0]
    with pytest.raises(Undecided, match=r"i \+ j < 3 depends on the loop of i"):
        without_conditions(nest, {OUTER: 8})
    # For one of its iterations, the nest has two parts.
    (loop,) = replaced([For(J, number(8), [nest.store])], {OUTER: number(1)})
    parts = without_conditions(nests_of(loop, {})[0], {})
    assert [part.loops[0][1] for part in parts] == [2, 6]


def test_dimensions_that_lie_behind_each_other_are_one():
    assert merged([(4, (60, 12)), (5, (12, 0)), (3, (4, 4))]) == [
        (4, (60, 12)),
        (5, (12, 0)),
        (3, (4, 4)),
    ]
    assert merged([(4, (60, 60)), (1, (7, 9)), (5, (12, 12)), (3, (4, 4))]) == [(60, (4, 4))]


@of_example
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


def test_a_quotient_of_reals_does_not_look_rounded():
    x = Load(X, J)
    assert text_of(Op("div", x, Const(2.0, "f32"), "f32")) == "x[j] / 2"
    assert text_of(Op("div", J, number(2), "i64")) == "j // 2"


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
    lines = code.Assembler(MACHINE).assemble(items)
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
    lines = code.Assembler(MACHINE).assemble(items)
    state = State(MACHINE)
    run(state, [*lines, Line("halt", {})])
    count = 1 << len(variables)
    found = np.frombuffer(bytes(state.memories[2][: 4 * count + 4]), "int32")
    np.testing.assert_array_equal(found, [1] * count + [0])


@of_example
def test_too_many_addresses_are_an_error():
    var = Var("i")
    places = [code.Where(2 << 40, Affine(0, {var: 4 * i + 4})) for i in range(40)]
    items = [
        code.Step("lds", {"to": code.Temporary(0), "source": place, "type": "i32"})
        for place in places
    ]
    with pytest.raises(Unsupported, match="more than 19 registers are needed at a time"):
        code.Assembler(MACHINE).assemble([code.Repeat(var, 2, items)])


# ---- Errors -------------------------------------------------------------------------------------
@of_example
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
