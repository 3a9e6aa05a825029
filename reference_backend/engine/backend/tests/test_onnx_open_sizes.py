# SPDX-License-Identifier: Apache-2.0
"""What nodes of an ONNX model ask of its open sizes: told at import, or checked in each call."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from tvm import relax

import backend
from backend.engine.backend.shared.messages import size_text
from backend.engine.workbench.conformance.imported import (
    Imported,
    compile_for_host,
    compile_together,
)
from support import needs_library

pytestmark = needs_library("onnx")

HEAD = '<ir_version: 10, opset_import: ["": %d]> g (%s) => (float y) { %s }'
SIZES = "s = Shape(x) one_ = Gather(s, i1) t = Unsqueeze(one_, zero)"
"""The second size of x, as a vector."""

CONSTANTS = {
    **{"i0": np.int64(0), "i1": np.int64(1), "i2": np.int64(2), "back": np.int64(-1)},
    **{"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3])},
    **{"last": np.array([-1]), "most": np.array([2**63 - 1]), "least": np.array([-(2**63)])},
    **{"both": np.array([2, 3]), "twos": np.array([2, 2]), "zeros": np.array([0, 0])},
    **{"ends": np.array([2**31 - 1, 100]), "eight": np.array([8]), "rows": np.array([-1, 8])},
    **{"kept": np.array([0, -1, 8]), "pads": np.array([0, 2, 0, 2]), "thirds": np.array([2, 3])},
    **{"w": (8, 4), "w2": (4, 3), "kernel": (4, 3, 1, 1), "small": (2, 2, 2, 2)},
    **{"channels": (3,), "bias": (8,)},
    **{"slope": (3, 1), "pos": (1, 5, 4), "row": (1, 1, 4)},
    **{"cuts": np.array([0, -1, -1, -1]), "back2": np.array([-2]), "third": np.array([[2]])},
    **{"place": np.array([[1, 3]]), "new": (1,), "new2": (1, 1)},
    "twice": np.array([1, 1, 2, 2], "float32"),
    **{"f0": np.float32(0), "f2": np.float32(2)},
}


class Case(NamedTuple):
    """A model, the shapes with which it is right, and those that it refuses."""

    inputs: str
    body: str
    right: Sequence[Sequence[Sequence[int]]]
    refused: Sequence[Sequence[Sequence[int]]] = ()
    opset: int = 18


def of_x(*shapes):
    return [[shape] for shape in shapes]


BK, BTC = "float[b, k] x", "float[b, t, 4] x"
ALL = of_x((2, 1, 4), (2, 2, 4), (1, 4, 4), (2, 5, 4))
TOLD = {
    "MatMul": Case(BK, "y = MatMul(x, w)", of_x((2, 8)), of_x((2, 9), (2, 7))),
    "Gemm": Case(BK, "y = Gemm(x, w)", of_x((2, 8)), of_x((2, 9), (2, 1))),
    "Conv": Case(
        "float[b, c, h, l] x", "y = Conv(x, kernel)", of_x((2, 3, 4, 5)), of_x((2, 4, 4, 5))
    ),
    "Add": Case(BK, "y = Add(x, bias)", of_x((2, 8), (1, 8)), of_x((2, 9), (2, 1))),
    "Where": Case(BK, "c = Less(x, bias) y = Where(c, x, bias)", of_x((2, 8)), of_x((2, 9))),
    "LayerNormalization": Case(
        BK, "y = LayerNormalization(x, bias, bias)", of_x((2, 8)), of_x((2, 9))
    ),
    "BatchNormalization": Case(
        "float[b, c, k] x",
        "p = Mul(channels, channels) y = BatchNormalization(x, p, channels, channels, p)",
        of_x((2, 3, 4)),
        of_x((2, 4, 4)),
    ),
    "PRelu": Case(
        "float[b, c, k] x", "y = PRelu(x, slope)", of_x((2, 3, 4)), of_x((2, 4, 4), (2, 1, 4))
    ),
    "Split": Case(BK, "a, y = Split<axis = 1>(x, thirds)", of_x((2, 5)), of_x((2, 4), (2, 7))),
    "Squeeze": Case(BK, "y = Squeeze(x, zero)", of_x((1, 5)), of_x((2, 5))),
    "Reshape": Case("float[n, 4] x", "y = Reshape(x, eight)", of_x((2, 4)), of_x((1, 4), (3, 4))),
    "a later MatMul": Case(
        "float[b, k] x, float[l, m] z",
        "a = MatMul(x, z) r = Relu(a) y = MatMul(r, w2)",
        [[(2, 5), (5, 4)]],
        [[(2, 5), (6, 4)], [(2, 5), (5, 3)]],
    ),
    "Concat of symbols": Case(
        "float[n, 2] x, float[m, 3] z, float[k, 5] u",
        "c = Concat<axis = 1>(x, z) y = Add(c, u)",
        [[(2, 2), (2, 3), (2, 5)]],
        [[(2, 2), (3, 3), (2, 5)], [(2, 2), (2, 3), (1, 5)]],
    ),
}
"""What tells symbols of the inputs, which their types then have."""

CHECKED = {
    "Reshape of a product": Case(
        BK, "y = Reshape(x, rows)", of_x((2, 8), (4, 4), (1, 8)), of_x((3, 5), (1, 4))
    ),
    "Reshape with a copied size": Case(
        BTC, "y = Reshape(x, kept)", of_x((2, 2, 4), (3, 4, 4)), of_x((2, 3, 4))
    ),
    "Split in halves": Case(
        BK, "a, y = Split<axis = 1>(x)", of_x((2, 6), (2, 2)), of_x((2, 7)), opset=13
    ),
    "SpaceToDepth": Case(
        "float[1, 4, h, l] x",
        "y = SpaceToDepth<blocksize = 2>(x)",
        of_x((1, 4, 2, 6)),
        of_x((1, 4, 3, 6), (1, 4, 2, 5)),
    ),
    "Hardmax": Case(BK, "y = Hardmax(x)", of_x((2, 8), (3, 1))),
    "Expand to one of two sizes": Case(
        "float[b, k] x, float[1, 4] z",
        "s = Shape(x) y = Expand(z, s)",
        [[(2, 4), (1, 4)], [(3, 1), (1, 4)]],
        [[(2, 5), (1, 4)], [(2, 2), (1, 4)]],
    ),
    "Reshape to the size of another": Case(
        "float[b, k] x, float[12] z",
        "s = Shape(x) y = Reshape(z, s)",
        [[(3, 4), (12,)], [(12, 1), (12,)]],
        [[(3, 3), (12,)], [(4, 4), (12,)]],
    ),
    "a window": Case(
        "float[1, 2, h, l] x",
        "a = Conv(x, small) r = Relu(a) y = MaxPool<kernel_shape = [2, 2]>(r)",
        of_x((1, 2, 3, 5), (1, 2, 9, 3)),
        of_x((1, 2, 2, 5), (1, 2, 3, 1)),
    ),
    "ArgMax": Case(
        BK, "i = ArgMax<axis = 1>(x) y = Cast<to = 1>(i)", of_x((2, 3), (2, 1)), of_x((2, 0))
    ),
    "GlobalAveragePool": Case(
        "float[b, 3, h, l] x", "y = GlobalAveragePool(x)", of_x((1, 3, 4, 5)), of_x((1, 3, 4, 0))
    ),
    "a product of open sizes": Case(
        "float[b, k] x, float[k, m] z", "y = MatMul(x, z)", [[(2, 5), (5, 4)]], [[(2, 0), (0, 4)]]
    ),
    **{
        name: Case(BK, f"y = {name}(x, one)", of_x((2, 3), (2, 1)), of_x((2, 0)))
        for name in ("ReduceMax", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceLogSumExp")
    },
    "TopK": Case(BK, "y, i = TopK(x, three)", of_x((2, 5), (2, 3)), of_x((2, 2))),
    "Pad": Case(BK, 'y = Pad<mode = "reflect">(x, pads)', of_x((2, 3)), of_x((2, 2))),
    "positions": Case(
        BTC, f"{SIZES} p = Slice(pos, zero, t, one) y = Add(x, p)", ALL, of_x((2, 6, 4))
    ),
    "differences": Case(
        BTC, "a = Slice(x, one, most, one) c = Slice(x, zero, last, one) y = Sub(a, c)", ALL[1:]
    ),
    "differences to the first": Case(BTC, "a = Slice(x, zero, one, one) y = Sub(x, a)", ALL),
    "differences to the last": Case(BTC, "a = Slice(x, last, most, one) y = Sub(x, a)", ALL),
    "the first everywhere": Case(
        BTC, "a = Slice(x, zero, one, one) s = Shape(x) y = Expand(a, s)", ALL
    ),
    "a roll": Case(
        BTC,
        "a = Slice(x, last, most, one) c = Slice(x, zero, last, one)"
        " d = Concat<axis = 1>(a, c) y = Add(d, x)",
        ALL,
    ),
    "a grid of twice half": Case(
        "float[1, 2, h, 4] x",
        "p = MaxPool<kernel_shape = [2, 1], strides = [2, 1]>(x) c = Concat<axis = 2>(p, p)"
        " y = Add(x, c)",
        of_x((1, 2, 2, 4), (1, 2, 6, 4)),
        of_x((1, 2, 3, 4)),
    ),
    "Pad that repeats the end": Case(
        BK, 'y = Pad<mode = "edge">(x, pads)', of_x((2, 3), (2, 1)), of_x((2, 0))
    ),
    "Pad around": Case(
        BK, 'y = Pad<mode = "wrap">(x, pads)', of_x((2, 3), (2, 2)), of_x((2, 1)), opset=19
    ),
    # The evaluator knows no negative ones.
    "Pad that cuts": Case(BK, "y = Pad(x, cuts)", (), of_x((2, 1), (2, 0))),
    "Gather": Case(
        BTC, "y = Gather<axis = 1>(x, both)", of_x((1, 4, 4), (1, 5, 4)), of_x((1, 3, 4))
    ),
    "Gather from the end": Case(
        BTC, "y = Gather<axis = 1>(x, back2)", of_x((1, 2, 4), (1, 5, 4)), of_x((1, 1, 4))
    ),
    "Gather at a computed place": Case(
        BTC,
        f"{SIZES} e = Sub(t, one) y = Gather<axis = 1>(x, e)",
        of_x((1, 1, 4), (1, 5, 4)),
        of_x((1, 0, 4)),
    ),
    "GatherElements of constants": Case(
        BK, "y = GatherElements<axis = 1>(x, third)", of_x((1, 3), (1, 4)), of_x((1, 2), (0, 3))
    ),
    "GatherND": Case(BK, "y = GatherND(x, place)", of_x((2, 4)), of_x((1, 4), (2, 3))),
    "ScatterND": Case(BK, "y = ScatterND(x, place, new)", of_x((2, 4)), of_x((1, 4), (2, 3))),
    "ScatterElements": Case(
        BK, "y = ScatterElements<axis = 1>(x, third, new2)", of_x((1, 3)), of_x((1, 2), (0, 3))
    ),
    "GatherElements": Case(
        "float[a, b] x, float[c, 1] z",
        "f = Sub(z, z) i = Cast<to = 7>(f) y = GatherElements<axis = 1>(x, i)",
        [[(3, 4), (3, 1)]],
        [[(3, 4), (4, 1)]],
    ),
}
"""What the program checks, as it tells no symbol."""

COMPUTED = {
    "every second": Case(
        "float[b, 3, h, l] x",
        "y = Slice(x, zeros, ends, both, twos)",
        of_x((1, 3, 4, 4), (1, 3, 5, 2), (1, 3, 1, 103)),
    ),
    "backwards": Case(BTC, "y = Slice(x, last, least, one, last)", ALL),
    "backwards to an end": Case(
        BTC, f"{SIZES} e = Sub(t, two) y = Slice(x, last, zero, one, last)", ALL
    ),
    "backwards from a computed one": Case(
        BTC, f"{SIZES} e = Sub(t, one) y = Slice(x, e, least, one, last)", ALL
    ),
    "up to the last": Case(
        BTC, f"{SIZES} e = Sub(t, one) a = Slice(x, zero, e, one) y = Relu(a)", ALL
    ),
    "from an end by its size": Case(
        BTC, f"{SIZES} e = Neg(t) a = Slice(x, e, last, one) y = Relu(a)", ALL
    ),
    "between ends": Case(BTC, "y = Slice(x, one, last, one)", ALL[1:]),
    "Tile": Case(
        BTC, f"{SIZES} r = Concat<axis = 0>(one, t, two) q = Tile(row, r) y = Identity(q)", ALL
    ),
    "Tile of open sizes": Case(
        BTC, f"{SIZES} r = Concat<axis = 0>(two, one, t) y = Tile(x, r)", ALL
    ),
    "Range with a step": Case(BTC, f"{SIZES} r = Range(i1, one_, i2) y = Cast<to = 1>(r)", ALL),
    "Range backwards": Case(BTC, f"{SIZES} r = Range(one_, i0, back) y = Cast<to = 1>(r)", ALL),
    "Range of floats": Case(BTC, f"{SIZES} f = Cast<to = 1>(one_) y = Range(f0, f, f2)", ALL),
    "names that are numbers": Case("float[1, 4] x", "y = Relu(x)", of_x((2, 4), (1, 4))),
}
"""What only moves elements or counts, whatever the sizes are."""

CASES = {**TOLD, **CHECKED, **COMPUTED}


def model(case):
    from onnx import numpy_helper, parser

    found = parser.parse_model(HEAD % (case.opset, case.inputs, case.body))
    for name in dict.fromkeys(i for node in found.graph.node for i in node.input):
        value = CONSTANTS.get(name)
        if value is not None:
            value = numbers(value) if isinstance(value, tuple) else value
            found.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return found


def numbers(shape):
    return np.random.default_rng(0).uniform(0, 1, shape).astype("float32")


def sizes_of(module):
    return [[size_text(size) for size in item.ty.shape.values] for item in module["main"].params]


@pytest.fixture(scope="module")
def compiled():
    """Each case's model, and its program."""
    models = {name: model(case) for name, case in CASES.items()}
    for dimension in models["names that are numbers"].graph.input[0].type.tensor_type.shape.dim:
        dimension.dim_param = "1" if dimension.dim_value == 1 else "4"
    imported = [Imported(name, backend.from_onnx(found), ()) for name, found in models.items()]
    programs = compile_together(imported, compile_for_host)
    return {item.name: (models[item.name], item.module, programs[item.name]) for item in imported}


@pytest.mark.parametrize("name", CASES)
def test_each_call_is_right_or_refused(compiled, name):
    from onnx.reference import ReferenceEvaluator

    found, module, program = compiled[name]
    assert not isinstance(program, Exception), program
    names = [value.name for value in found.graph.input]
    for shapes in CASES[name].right:
        arrays = [numbers(shape) for shape in shapes]
        (right,) = ReferenceEvaluator(found).run(None, dict(zip(names, arrays, strict=True)))
        (mine,) = program.run(Imported(name, module, arrays))
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)
    for shapes in CASES[name].refused:
        with pytest.raises(RuntimeError, match=r"match_cast error,\s+shape"):
            program.run(Imported(name, module, [numbers(shape) for shape in shapes]))


@pytest.mark.parametrize("name", TOLD)
def test_what_nodes_tell_of_the_inputs_needs_no_check_inside(compiled, name):
    _, module, _ = compiled[name]
    bindings = [one for block in module["main"].body.blocks for one in block.bindings]
    assert bindings
    casts = [one for one in bindings if isinstance(one, relax.MatchCast)]
    # That a sum has an element is no size of an input.
    assert not [one for one in casts if not isinstance(one.ty, relax.ShapeType)]


def test_the_inputs_have_the_sizes_that_nodes_tell(compiled):
    assert sizes_of(compiled["MatMul"][1]) == [["b", "8"]]
    assert sizes_of(compiled["Reshape"][1]) == [["2", "4"]]
    assert sizes_of(compiled["Concat of symbols"][1]) == [["n", "2"], ["n", "3"], ["n", "5"]]
    assert sizes_of(compiled["a later MatMul"][1]) == [["b", "k"], ["k", "4"]]


def test_a_branch_tells_nothing_of_the_inputs():
    from onnx import numpy_helper

    branches = (
        "then_branch = t () => (float[a, b] p) { p = MatMul(x, square) },"
        " else_branch = e () => (float[a, b] q) { q = Neg(x) }"
    )
    case = Case("float[n, k] x, bool c", f"y = If(c) <{branches}>", ())
    found = model(case)
    found.graph.initializer.append(numpy_helper.from_array(numbers((4, 4)), "square"))
    module = backend.from_onnx(found)
    assert sizes_of(module)[0] == ["n", "k"]


def test_what_no_compiler_takes_is_refused_at_import():
    squeezed = model(Case("float[b, 1, k] x", "y = Squeeze(x)", ()))
    why = r"\(Squeeze\): .*the sizes of its inputs do not tell"
    with pytest.raises(ValueError, match=why) as caught:
        backend.from_onnx(squeezed)
    assert str(caught.value).endswith("or with `shape_dict` in Python")


OF_ANOTHER = "s = Shape(x) z = Shape(u) a = Slice(s, zero, two) e = Slice(z, two, most)"
ONE_OF_TWO = (
    "If(c) <then_branch = t () => (float[a, 3, d, e] p) { p = Relu(x) },"
    " else_branch = f () => (float[g, 3, i, j] q) { q = MaxPool<kernel_shape = [2, 2]>(x) }>"
)
RESIZED = {
    "sizes of another": (
        f"{OF_ANOTHER} to = Concat<axis = 0>(a, e) y = Resize(x, , , to)",
        "its sizes are computed in the run; supported are constants",
    ),
    "scales of the caller": (
        "y = Resize(x, , scales)",
        "its scales are computed in the run; supported are constants",
    ),
    "data of unknown sizes": (
        f"r = {ONE_OF_TWO} y = Resize(r, , twice)",
        "it needs the sizes of its input, which the model does not tell",
    ),
    "a pool of unknown sizes": (
        f"r = {ONE_OF_TWO} y = GlobalMaxPool(r)",
        "it needs the sizes of its input, which the model does not tell",
    ),
}


@pytest.mark.parametrize("name", RESIZED)
def test_what_needs_sizes_that_are_not_known_says_so(name):
    body, why = RESIZED[name]
    inputs = "float[b, 3, h, l] x, float[b, 3, p, q] u, bool c, float[4] scales"
    op = "GlobalMaxPool" if "pool" in name else "Resize"
    sentence = rf"^ONNX node 'y' \({op}\): {why}; if the open sizes are why, fix the sizes of"
    with pytest.raises(ValueError, match=sentence):
        backend.from_onnx(model(Case(inputs, body, ())))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_input_without_rank_is_refused_and_read_with_sizes():
    found = model(Case("float x", "y = Relu(x)", ()))
    found.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ValueError, match=r"^ONNX node 'y' \(Relu\): .*fix the sizes of the model"):
        backend.from_onnx(found)
    backend.from_onnx(found, shape_dict={"x": (2, 3)})


WRONG = {
    "Slice": (f"{SIZES} e = Concat<axis = 0>(t, t) y = Slice(x, zero, e, one)", "equally many"),
    "Tile": (f"{SIZES} y = Tile(x, t)", "its repeats are 1, and its input has rank 3"),
    "Range": (f"{SIZES} r = Range(zero, s, one) y = Cast<to = 1>(r)", "not one element each"),
    "Expand": (
        f"{SIZES} r = Concat<axis = 0>(t, last) y = Expand(f0, r)",
        "the shape \\[\\?, -1\\]",
    ),
    "Concat": (
        "s = Shape(x) f = Cast<to = 6>(s) c = Concat<axis = 0>(s, f) y = Cast<to = 1>(c)",
        "inconsistent type .* of int64.* of int32",
    ),
    "Add": ("s = Shape(x) r = Add(s, both) y = Cast<to = 1>(r)", "Incompatible dimensions"),
    "Reshape": (f"{SIZES} y = Reshape(x, one_)", "its shape has rank 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_shape_computation_is_refused_with_a_sentence(name):
    body, why = WRONG[name]
    with pytest.raises(ValueError, match=rf"^ONNX node '\w+' \({name}\): .*{why}"):
        backend.from_onnx(model(Case(BTC, body, ())))
