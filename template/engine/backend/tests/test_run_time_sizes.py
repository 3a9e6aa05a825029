# SPDX-License-Identifier: Apache-2.0
"""Sizes that only the run knows: what reads such tensors, and what the report says before."""

import numpy as np
import tvm
from tvm import relax

import support
from backend import offload_report
from support import build, compile_for, needs_library, needs_symbols, partition_for, variable

needs = support.needs  # Not imported, because some selections of ops skip every test that uses it.
op = relax.op

BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.95], [5, 5, 6, 6]]], "float32")
SCORES = np.array([[[0.9, 0.8, 0.7]]], "float32")


def run(mod, *arrays, **options):
    machine = relax.VirtualMachine(compile_for(mod, options=options), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def sized(function, size, *arguments, dtype="int64", **options):
    """Return a module that reads a tensor with a size of the run."""
    builder = relax.BlockBuilder()
    symbol = tvm.tirx.Var("found", "int64")
    with builder.function("main", list(arguments)):
        with builder.dataflow():
            value = builder.emit(function(*arguments, **options))
            named = builder.match_cast(value, relax.TensorType(size(symbol), dtype))
            result = builder.emit_output(builder.emit(op.add(named, named)))
        builder.emit_func_output(result)
    return builder.get()


def nonzero(*shape):
    return sized(op.nonzero, lambda n: [len(shape), n], variable("x", *shape))


@needs_symbols
@needs("add", dtype="int64")
def test_a_symbol_has_the_bound_that_the_operand_allows():
    report = offload_report(partition_for(nonzero(10, 10)))
    assert report.symbols == {"found": 100}
    assert [item.op for item in report.offloaded] == ["relax.add"]
    for count in (100, 65, 1, 0):
        x = np.zeros(100, "float32")
        x[:count] = 1
        x = x.reshape(10, 10)
        np.testing.assert_array_equal(run(nonzero(10, 10), x), 2 * np.array(np.nonzero(x)))
    # Neither does a bound of all symbols hold for it.
    assert run(nonzero(100), np.ones(100, "float32"), symbol_bound=8).shape == (1, 100)


@needs_symbols
@needs("add")
def test_unique_elements_are_at_most_all():
    x = variable("x", 9, 9)
    mod = sized(
        lambda x: op.unique(x, True, False, False, False), lambda n: [n], x, dtype="float32"
    )
    assert offload_report(partition_for(mod)).symbols == {"found": 81}
    found = run(mod, np.arange(81, dtype="float32").reshape(9, 9))
    np.testing.assert_array_equal(found, 2 * np.arange(81, dtype="float32"))


@needs_symbols
@needs("add", dtype="int64")
def test_what_nothing_bounds_stays_on_the_host_until_it_is_named():
    def slices(x, begin, end, strides):
        return op.dynamic_strided_slice(x, begin, end, strides)

    ends = [variable(name, 1, dtype="int64") for name in ("begin", "end", "strides")]
    n = tvm.tirx.Var("n", "int64")
    arguments = [np.arange(70), np.array([1]), np.array([70]), np.array([1])]
    right = 2 * np.arange(1, 70)
    mod = sized(slices, lambda found: [found], variable("x", n, dtype="int64"), *ends)
    # The slice is at most what is sliced, which the caller bounds.
    assert offload_report(partition_for(mod, symbol_bound=70)).symbols == {"n": 70, "found": 70}
    np.testing.assert_array_equal(run(mod, *arguments, symbol_bound=70), right)

    shape = variable("count", 1, dtype="int64")
    builder = relax.BlockBuilder()
    symbol = tvm.tirx.Var("found", "int64")
    with builder.function("main", [shape]):
        with builder.dataflow():
            sizes = builder.emit(op.tensor_to_shape(shape))
            builder.match_cast(sizes, relax.ShapeType([symbol]))
            x = builder.emit(op.full([symbol], relax.const(3, "int64"), "int64"))
            result = builder.emit_output(builder.emit(op.add(x, x)))
        builder.emit_func_output(result)
    mod = builder.get()
    report = offload_report(partition_for(mod))
    (found,) = [item for item in report.ops if item.op == "relax.add"]
    assert (found.placement, found.code) == ("host", "run_time_size")
    assert "the size 'found' is known only when the model runs" in found.reason
    assert "symbol_bounds" in found.remedy
    assert run(mod, np.array([100])).tolist() == [6] * 100

    named = {"symbol_bounds": {"found": 100}}
    report = offload_report(partition_for(mod, options=named))
    assert "relax.add" in [item.op for item in report.offloaded]
    assert run(mod, np.array([100]), **named).tolist() == [6] * 100


def selection(emit, boxes, scores):
    limits = (relax.const(3, "int64"), relax.const(0.5, "float32"), relax.const(0.0, "float32"))
    function = op.vision.all_class_non_max_suppression
    return emit(relax.TupleGetItem(emit(function(boxes, scores, *limits, "onnx")), 0))


@needs_symbols
@needs("add", dtype="int64")
def test_readers_of_selected_boxes_take_any_number():
    arguments = [variable("boxes", 1, 3, 4), variable("scores", 1, 1, 3)]

    def body(emit):
        chosen = selection(emit, *arguments)
        return emit(op.add(chosen, chosen))

    mod = build(arguments, body)
    report = offload_report(partition_for(mod))
    assert report.symbols == {"selected": 3}
    assert [item.op for item in report.offloaded] == ["relax.add"]
    assert run(mod, BOXES, SCORES).tolist() == [[0, 0, 0], [0, 0, 4]]
    apart = BOXES + np.arange(3, dtype="float32").reshape(1, 3, 1) * 9
    assert run(mod, apart, SCORES).tolist() == [[0, 0, 0], [0, 0, 2], [0, 0, 4]]
    # Partitioning again finds the symbol.
    again = offload_report(partition_for(partition_for(mod)))
    assert again.symbols == {"selected": 3}


@needs_library("onnx")
def test_an_onnx_model_reads_what_non_max_suppression_selects():
    from onnx import numpy_helper, parser

    import backend

    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1, 3, 4] boxes, float[1, 1, 3] scores)
            => (int64[n, 3] k, int32[n, 3] a, int64[m] b, int64[n] c, int64[2, p] d)
        {
            k = NonMaxSuppression(boxes, scores, most, overlap)
            a = Cast<to = 6>(k)
            b = Reshape(k, flat)
            c = Gather<axis = 1>(k, two)
            e = NonZero(k)
            d = Mul(e, two)
        }"""
    )
    weights = {"most": [3], "overlap": np.float32([0.5]), "flat": [-1], "two": 2}
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    compiled = compile_for(backend.from_onnx(model))
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    results = machine["main"](tvm.runtime.tensor(BOXES), tvm.runtime.tensor(SCORES))
    rows = [[0, 0, 0], [0, 0, 2]]
    right = [rows, rows, [0, 0, 0, 0, 0, 2], [0, 2], [[2], [4]]]
    assert [item.numpy().tolist() for item in results] == right
