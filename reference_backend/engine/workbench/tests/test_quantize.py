# SPDX-License-Identifier: Apache-2.0
"""Quantizing float models: which ops, with which values, and what is refused."""

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.backend.settings.options import PREFIX
from backend.engine.backend.verification.originals import original_of
from backend.engine.workbench import quantization
from backend.engine.workbench.conformance import quantized_networks
from backend.engine.workbench.conformance.model import BACKEND, TABLE
from backend.engine.workbench.quantization import data
from backend.engine.workbench.quantization.planning import COMPUTES, MOVES, Ends, Node, Planner
from support import compile_for, needs_library

pytestmark = pytest.mark.usefixtures("bound_constants")

needs = support.needs
quantize_for = getattr(backend, f"quantize_for_{BACKEND}")
PRODUCTS = ("relax.matmul", "relax.nn.conv2d", "relax.nn.conv2d_transpose")
ACTIVATIONS = ("relax.nn.relu", "relax.nn.gelu", "relax.nn.silu", "relax.sigmoid")
INTEGERS = ("conv2d", "matmul", "quantize", "dequantize")
thorough = pytest.mark.thorough


def needs_integers(*libraries):
    """Skip a test if products are computed in float, or a tool is missing."""

    def mark(test):
        for item in (needs(*INTEGERS), needs_library(*libraries)):
            test = item(test)
        reason = support.lacks_integers("conv2d", "matmul")
        return pytest.mark.skipif(reason is not None, reason=str(reason))(test)

    return mark


needs_onnx = needs_integers("onnx", "onnxruntime")
needs_torch = needs_integers("torch", "torchao")

needs_int16 = pytest.mark.skipif(
    not all(
        entry.quantized and "int16" in entry.quantized.dtypes
        for entry in map(TABLE.get, INTEGERS[:2])
        if entry
    ),
    reason="this chip has no int16",
)


def placed(mod):
    return backend.offload_report(support.partition_for(mod)).ops


def alone(ops, name):
    """Return the quantize or dequantize ops outside of integer composites."""
    return [
        item
        for item in ops
        if item.op == f"relax.{name}" and not (item.composite or "").startswith("quantized_")
    ]


def in_float(ops):
    """Return the names of ops on real numbers, outside of integer composites."""
    return {
        item.op
        for item in ops
        if not (item.composite or "").startswith("quantized_")
        and "float" in (item.runs_in or "float")
    }


def macs_of(ops, placement="npu"):
    return sum(item.macs or 0 for item in ops if placement in ("", item.placement))


def labels_of(ops):
    return [item.composite for item in ops if item.op in PRODUCTS]


def run(mod, arguments):
    found = relax.VirtualMachine(compile_for(mod), tvm.cpu())["main"](
        *map(tvm.runtime.tensor, arguments)
    )
    return [item.numpy() for item in ([found] if hasattr(found, "numpy") else found)]


def decibels(found, exact):
    error = found.astype("float64") - exact
    return 10 * np.log10((exact.astype("float64") ** 2).sum() / max((error**2).sum(), 1e-30))


# ---- The plan -----------------------------------------------------------------------------------


def nodes_of(*lines):
    """Parse nodes from lines such as "c = conv a b"; `conv` is a product."""
    nodes = []
    for index, line in enumerate(lines):
        results, _, (kind, *inputs) = (part.split() for part in line.partition(" = "))
        nodes.append(Node(index, (kind, *results), tuple(inputs), tuple(results), kind == "conv"))
    return nodes


def planned(lines, results, fused, computed=(), moved=()):
    """Return the groups and the others of a plan, as text."""

    def ask(group, wide, ends):
        if ends is not Ends.INTEGERS:
            return COMPUTES
        kinds = " ".join(node.names[0] for node in group)
        if kinds in moved:
            return MOVES
        return COMPUTES if kinds in (*fused, *computed) else None

    found = Planner(nodes_of(*lines), results, ask).plan()
    texts = [" ".join(node.names[0] for node in group) for group in found.groups]
    return texts, [node.names[0] for node in found.singles], found


def test_a_product_takes_what_the_backend_fuses_behind_it():
    lines = ("c = conv x", "s = sigmoid c", "m = multiply c s", "p = pool m", "d = conv p")
    groups, others, found = planned(
        lines, ["d"], ("conv", "conv sigmoid multiply"), moved=("pool",)
    )
    assert groups == ["conv sigmoid multiply", "conv"]
    assert others == ["pool"]
    assert found.quantized == {"x", "m", "p"}
    assert found.tied == (("p", "m"),) or found.tied == (("m", "p"),)


def test_a_value_that_only_float_ops_read_stays_float():
    lines = ("c = conv x", "r = reshape c", "s = softmax r")
    groups, others, found = planned(lines, ["s"], ("conv",), moved=("reshape",))
    assert (groups, others, found.quantized) == (["conv"], [], {"x"})


def test_scores_that_a_topk_reads_stay_float():
    lines = ("h = conv x", "c = conv h", "b i = topk c")
    groups, others, found = planned(lines, ["b", "i"], ("conv",), moved=("topk",))
    assert (groups, others, found.quantized) == (["conv", "conv"], [], {"x", "h"})


def test_a_float_residual_is_not_quantized():
    fused = ("conv", "conv add")
    lines = ("n = norm x", "c = conv n", "a = add c n", "d = conv a")
    groups, _, found = planned(lines, ["d"], fused)
    assert groups == ["conv", "conv"]
    assert found.quantized == {"n", "a"}
    lines = ("n = conv x", "c = conv n", "a = add c n", "d = conv a")
    assert planned(lines, ["d"], fused)[0] == ["conv", "conv add", "conv"]


def test_a_result_of_the_model_ends_a_group():
    lines = ("c = conv x", "r = relu c", "d = conv r")
    fused = ("conv", "conv relu")
    assert planned(lines, ["d"], fused)[0] == ["conv relu", "conv"]
    groups, others, found = planned(lines, ["c", "d"], fused, computed=("relu",))
    assert (groups, others) == (["conv", "conv"], [])
    assert found.quantized == {"x", "r"}


# ---- Networks -----------------------------------------------------------------------------------


@needs_onnx
@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        *(
            pytest.param(name, marks=thorough)
            for name in ("mobilenet", "unet", "bert", "lstm", "detector")
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The calibration data")
def test_a_network_of_onnx(name):
    from backend.engine.workbench.conformance import onnx_networks

    model, arguments = onnx_networks.SMALL[name]()
    before = model.SerializeToString()
    found = quantize_for(model, quantized_networks.calibration_batches(arguments, 8))
    assert model.SerializeToString() == before
    exact = original_of(model).run(arguments)
    ops = check(backend.from_onnx(found), arguments, original_of(found).run(arguments), exact)
    assert_no_macs_are_lost(placed(backend.from_onnx(model)), ops)


@needs_torch
@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        *(pytest.param(name, marks=thorough) for name in ("mobilenet", "bert", "unet")),
    ],
)
@pytest.mark.filterwarnings("ignore:The calibration data")
def test_a_network_of_torch(name):
    import torch

    from backend.engine.workbench.conformance import torch_networks

    network, inputs = torch_networks.make(*torch_networks.SMALL[name])
    arguments = [item.numpy() for item in inputs]
    found = quantize_for(network, quantized_networks.calibration_batches(arguments, 8))
    with torch.no_grad():
        results, exact = (
            [item.numpy() for item in torch.utils._pytree.tree_leaves(module(*inputs))]
            for module in (found.module(), network)
        )
    ops = check(backend.from_exported_program(found), arguments, results, exact)
    assert in_float(ops).isdisjoint(ACTIVATIONS)
    before = placed(torch_networks.export(name)[0])
    assert_no_macs_are_lost(before, ops)
    if all(item.bookkeeping or item.placement == "npu" for item in before):
        assert macs_of(ops) == macs_of(ops, "")


def assert_no_macs_are_lost(before, ops):
    """Compare a float model with the quantized one: test_kept_macs.py has narrower drivers."""
    assert macs_of(ops, "") == macs_of(before, "") > 0
    assert macs_of(ops) >= macs_of(before)


def check(mod, arguments, expected, exact):
    ops = placed(mod)
    labels = labels_of(ops)
    assert len(labels) > 2
    assert [label for label in labels if not label.startswith("quantized_")] == []
    # A needless quantize would be followed by a dequantize.
    assert len(alone(ops, "quantize")) <= len(labels)
    for one, right, real in zip(run(mod, arguments), expected, exact, strict=True):
        if right.dtype.kind != "f":
            continue
        # An off-by-one result in one layer may grow in the next.
        assert np.abs(one.astype("float64") - right).max() <= 0.05 * np.abs(right).max() + 1e-6
        assert decibels(one, real) > 25
    return ops


# ---- Small models -------------------------------------------------------------------------------


def onnx_model(lines, shape, results, weights, opset=17):
    """Build a model from lines such as "c = Conv x w group=2"; nodes are named like results."""
    import onnx
    from onnx import helper, numpy_helper

    nodes = []
    for line in lines:
        result, _, (kind, *words) = (part.split() for part in line.partition(" = "))
        attributes = dict(word.split("=") for word in words if "=" in word)
        inputs = [word for word in words if "=" not in word]
        given = {key: eval(value) for key, value in attributes.items()}
        nodes.append(helper.make_node(kind, inputs, result, name=result[0], **given))
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in results],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def normal(*shape, scale=0.3):
    generator = np.random.default_rng([*shape, int(scale * 10)])
    return (scale * generator.standard_normal(shape)).astype("float32")


def images(count=8, shape=(2, 3, 8, 8)):
    """Return batches of waves, which do not look like noise."""
    places = np.arange(np.prod(shape)).reshape(shape)
    return [[np.sin(places * (0.02 + 0.01 * index)).astype("float32")] for index in range(count)]


def branches(opset=17):
    lines = (
        "a = Conv x wa pads=[1,1,1,1]",
        "b = Conv x wb pads=[1,1,1,1]",
        "j = Concat a b axis=1",
        "p = MaxPool j kernel_shape=[2,2] strides=[2,2]",
        "c = Conv p wc",
        "s = Softmax c axis=1",
    )
    weights = {
        "wa": normal(4, 3, 3, 3),
        "wb": normal(4, 3, 3, 3, scale=3),
        "wc": normal(5, 8, 1, 1),
    }
    return onnx_model(lines, ["n", 3, 8, 8], ["s"], weights, opset)


@support.needs_reals
@needs_onnx
@needs("max_pool2d", "concat", "softmax")
def test_joined_tensors_share_a_scale():
    from onnx import numpy_helper

    model = branches()
    found = quantize_for(model, images())
    by_output = {name: node for node in found.graph.node for name in node.output}
    (joined,) = (node for node in found.graph.node if node.op_type == "Concat")
    arrays = {item.name: item for item in found.graph.initializer}
    scales = {float(numpy_helper.to_array(arrays[by_output[n].input[1]])) for n in joined.input}
    assert len(scales) == 1
    batch = images()[0]
    ops = placed(backend.from_onnx(found, shape_dict={"x": batch[0].shape}))
    # Concat and pool move integers, and the last product's result is float.
    assert len(alone(ops, "quantize")) == 1
    assert alone(ops, "dequantize") == []
    assert labels_of(ops)[-1].endswith("_to_real")
    (result,) = run(backend.from_onnx(found), batch)
    (expected,) = original_of(found).run(batch)
    assert np.abs(result - expected).max() < 0.02


@support.needs_reals
@needs_onnx
def test_the_best_scores_of_a_model_are_chosen_from_floats():
    lines = ("a = MatMul x wa", "r = Relu a", "s = MatMul r wb", "b i = TopK s k axis=-1")
    weights = {"wa": normal(16, 32), "wb": normal(32, 40), "k": np.array([3])}
    found = quantize_for(onnx_model(lines, [4, 16], ["b"], weights), images(shape=(4, 16)))
    assert labels_of(placed(backend.from_onnx(found)))[-1].endswith("_to_real")
    (choice,) = (node for node in found.graph.node if node.op_type == "TopK")
    (scores,) = (node for node in found.graph.node if choice.input[0] in node.output)
    assert scores.op_type == "MatMul"


@needs_onnx
@needs("max_pool2d", "concat", "softmax")
def test_old_opsets_and_nodes_without_names_are_taken():
    model = branches(opset=11)
    for node in model.graph.node:
        node.name = ""
    found = quantize_for(model, images())
    assert sum(node.op_type == "QuantizeLinear" for node in found.graph.node) >= 4
    assert next(item.version for item in found.opset_import if not item.domain) >= 13


@support.needs_reals
@needs_onnx
@support.needs_symbols
@pytest.mark.parametrize("names, left", [(["a"], 2), (["[ab]"], 1), (("c", "a"), 1), ("c", 2)])
def test_ops_are_kept_in_float_by_name(names, left):
    found = quantize_for(branches(), images(), keep_float=names)
    labels = labels_of(placed(backend.from_onnx(found)))
    assert sum(label.startswith("quantized_") for label in labels) == left
    assert len(labels) == 3


def types_of(graph):
    """Return how many tensors of each type the model quantizes."""
    import onnx

    constants = {item.name: item.data_type for item in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            name = onnx.TensorProto.DataType.Name(constants[node.input[2]]).lower()
            found[name] = found.get(name, 0) + 1
    return found


@support.needs_reals
@needs_onnx
@needs_int16
@pytest.mark.parametrize(
    "names, types",
    [
        # The input of a. Its result and that of b are joined, so all of their readers are int16.
        (["a"], {"int16": 5}),
        # The softmax computes with floats.
        (["c"], {"int8": 1, "int16": 4}),
        ("*", {"int16": 5}),
    ],
)
def test_ops_are_int16_by_name(names, types):
    model, batches = branches(), images()
    found = quantize_for(model, batches, int16=names)
    assert types_of(found.graph) == types
    ops = placed(backend.from_onnx(found))
    assert all(label.startswith("quantized_") for label in labels_of(ops))
    # Integers from the first product to the last.
    assert (len(alone(ops, "quantize")), len(alone(ops, "dequantize"))) == (1, 0)
    (npu,) = run(backend.from_onnx(found), batches[0])
    (theirs,) = original_of(found).run(batches[0])
    (exact,) = original_of(model).run(batches[0])
    assert np.abs(npu - theirs).max() < 0.01
    assert decibels(npu, exact) > 20


@needs_onnx
@needs_int16
def test_both_factors_of_a_product_are_int16_if_one_is():
    weights = {"wa": normal(16, 16), "wb": normal(16, 16)}
    lines = ("a = MatMul x wa", "b = MatMul x wb", "t = Transpose b perm=[1,0]", "c = MatMul a t")
    model = onnx_model(lines, [8, 16], ["c"], weights)
    found = quantize_for(model, images(shape=(8, 16)), int16=["b"])
    ops = placed(backend.from_onnx(found))
    assert all(label.startswith("quantized_") for label in labels_of(ops))
    # There is no product of int8 by int16.
    assert types_of(found.graph).get("int8", 0) == 0


@needs_onnx
def test_a_product_that_is_joined_with_its_bias_keeps_its_name():
    weights = {"w": normal(16, 4), "b": normal(4)}
    model = onnx_model(("m = MatMul x w", "y = Add m b"), [8, 16], ["y"], weights)
    with pytest.raises(ValueError, match="computes nothing of the model"):
        quantize_for(model, images(shape=(8, 16)), keep_float=["m"])


@needs_onnx
@pytest.mark.parametrize("method", ["minmax", "moving_average", "percentile", "entropy"])
def test_each_method_of_onnx_runtime(method):
    model = branches()
    found = quantize_for(model, images(), method=method)
    batch = images()[0]
    results = (original_of(item).run(batch)[0] for item in (found, model))
    # A moving average depends most on the first batches.
    assert decibels(*results) > (10 if method == "moving_average" else 20)


@support.needs_reals
@needs_onnx
@support.needs_symbols
@pytest.mark.parametrize("name", ["uint8", pytest.param("int16", marks=needs_int16)])
def test_the_type_of_activations(name):
    found = quantize_for(branches(), images(), activations=name)
    assert types_of(found.graph) == {name: 5}
    assert all("quantized_" in label for label in labels_of(placed(backend.from_onnx(found))))


@needs_onnx
@pytest.mark.skipif(support.TABLE.chip.constant_weights, reason="weights must be constants")
def test_weights_that_are_arguments_are_quantized_too(monkeypatch):
    monkeypatch.setenv(f"{PREFIX}BIND_CONSTANTS", "off")
    model = onnx_model(("m = MatMul x w",), [8, 16], ["m"], {"w": normal(16, 4)})
    found = quantize_for(model, images(shape=(8, 16)))
    assert len(integer_weights(found)) == 1
    assert all("quantized_matmul" in label for label in labels_of(placed(backend.from_onnx(found))))


@needs_onnx
def test_only_what_the_backend_computes_with_integers_is_quantized(monkeypatch):
    lines = ("c = Conv x w", "f = Flatten c", "m = MatMul f v")
    weights = {"w": normal(4, 3, 8, 8), "v": normal(4, 6)}
    model = onnx_model(lines, [2, 3, 8, 8], ["m"], weights)
    assert len(integer_weights(quantize_for(model, images()))) == 2

    def declined(entry, call):
        return "not today" if entry.name == "conv2d" else None

    monkeypatch.setattr(TABLE, "_declined_by_sdk", declined)
    monkeypatch.setattr(TABLE, "_asks_driver", False)
    assert integer_weights(quantize_for(model, images())) == [(4, 6)]
    monkeypatch.setattr(TABLE, "_declined_by_sdk", lambda entry, call: "not today")
    with pytest.raises(ValueError, match="computes nothing of the model with integers.*not today"):
        quantize_for(model, images())


@needs_onnx
@needs("depthwise_conv2d", "hard_swish", "hard_sigmoid", "mean", "multiply", "add")
def test_activations_of_several_ops_belong_to_the_products_before_them():
    """A block of MobileNetV3, whose results are rounded once."""
    lines = (
        "a = Conv x w0 b0",
        "b = HardSwish a",
        "c = Conv b w1 b0 group=6 pads=[1,1,1,1]",
        "d = HardSwish c",
        "g = GlobalAveragePool d",
        "e = Conv g w2 b2",
        "h = Relu e",
        "f = Conv h w3 b0",
        "s = HardSigmoid f alpha=1/6 beta=0.5",
        "m = Mul d s",
        "n = Conv m w4 b4",
        "o = Add n x",
        "p = HardSwish o",
        "y = Conv p w5",
    )
    shapes = {
        **{"w0": (6, 3, 1, 1), "w1": (6, 1, 3, 3), "w2": (4, 6, 1, 1), "w3": (6, 4, 1, 1)},
        **{"w4": (3, 6, 1, 1), "w5": (5, 3, 1, 1), "b0": (6,), "b2": (4,), "b4": (3,)},
    }
    weights = {name: normal(*shape, scale=0.8) for name, shape in shapes.items()}
    model = onnx_model(lines, [2, 3, 8, 8], ["y"], weights)
    found = quantize_for(model, images())
    ops = placed(backend.from_onnx(found))
    labels = labels_of(ops)
    for end in ("conv2d_bias", "depthwise_conv2d_bias", "conv2d_bias_residual"):
        assert f"quantized_{end}_hard_swish" in labels
    assert "hard_swish" not in {item.composite for item in ops}
    (result,) = run(backend.from_onnx(found), images()[0])
    (expected,) = original_of(found).run(images()[0])
    assert np.abs(result - expected).max() <= 0.03 * np.abs(expected).max()


@support.needs_reals
@needs_onnx
def test_a_result_that_a_relu_reads_keeps_its_negative_values():
    lines = ("a = Conv x w", "r = Relu a", "b = Conv r v")
    weights = {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3)}
    model = onnx_model(lines, [2, 3, 8, 8], ["a", "b"], weights)
    found = quantize_for(model, images())
    exact = original_of(model).run(images()[0])
    assert len(exact) == 2
    for one, right in zip(run(backend.from_onnx(found), images()[0]), exact, strict=True):
        assert decibels(one, right) > 25


@needs_onnx
def test_values_that_a_subgraph_reads_precede_it():
    import onnx
    from onnx import helper

    lines = ("a = Conv x w", "b = Conv a v")
    weights = {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3), "two": np.float32(2)}
    model = onnx_model(lines, [2, 3, 8, 8], ["b"], weights)
    branches = []
    for kind, *more in (("Mul", "two"), ("Identity",)):
        node = helper.make_node(kind, ["a", *more], [kind])
        result = helper.make_tensor_value_info(kind, onnx.TensorProto.FLOAT, None)
        branches.append(helper.make_graph([node], kind, [], [result]))
    choice = helper.make_node("If", ["k"], ["z"], then_branch=branches[0], else_branch=branches[1])
    model.graph.node.append(choice)
    model.graph.input.append(helper.make_tensor_value_info("k", onnx.TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    batches = [[*item, np.array(True)] for item in images()]
    found = quantize_for(model, batches)
    onnx.checker.check_model(found)
    assert len(integer_weights(found)) == 2
    results = (original_of(item).run(batches[0]) for item in (found, model))
    for one, right in zip(*results, strict=True):
        assert decibels(one, right) > 25


def integer_weights(model):
    return [tuple(i.dims) for i in model.graph.initializer if i.data_type == 3 and len(i.dims) > 1]


@needs_onnx
def test_a_chip_without_zero_points_gets_symmetric_activations(monkeypatch):
    from onnx import numpy_helper

    from backend.engine.workbench.quantization.onnx_models import OnnxModel

    ask = OnnxModel.ask

    def picky(self, asked, form, group, wide, ends):
        return ask(self, asked, form, group, wide, ends) if form.symmetric else None

    monkeypatch.setattr(OnnxModel, "ask", picky)
    found = quantize_for(branches(), images())
    zeros = [i for i in found.graph.initializer if "zero_point" in i.name and i.data_type == 3]
    assert zeros
    assert all((numpy_helper.to_array(item) == 0).all() for item in zeros)


# ---- Accuracy -----------------------------------------------------------------------------------


def chain_with_an_outlier(unread=False):
    """Build three products; the second reads an outlier, which 8 bits cannot represent well.

    Its weights have an outlier too, or the weights of the outlier are 0.
    """
    ratio = 300 if unread else 3000
    weight = normal(16, 16)
    large = weight.copy()
    large[:, 0] *= ratio
    small = weight.copy()
    small[0] *= 0 if unread else 1 / ratio
    lines = ("a = MatMul x wa", "b = MatMul a wb", "c = MatMul b wc")
    return onnx_model(lines, [8, 16], ["c"], {"wa": large, "wb": small, "wc": weight})


@support.needs_reals
@needs_onnx
@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=needs_int16)])
def test_the_layer_that_hurts_most_becomes_int16_or_float_until_the_accuracy_is_reached(
    wide, monkeypatch
):
    if not wide:
        monkeypatch.setattr(Planner, "computes_wide", lambda *_: False)
    model = chain_with_an_outlier(unread=wide)
    batches = images(shape=(8, 16))
    exact = original_of(model).run(batches[0])[0]
    seen = []

    def evaluate(item):
        found = original_of(item).run(batches[0])[0]
        seen.append(min(decibels(found, exact), 40))
        return seen[-1]

    found = quantize_for(model, batches, max_loss=15, evaluate=evaluate)
    assert seen[0] == 40 and seen[1] < 25 <= seen[-1]
    assert ("int16" in types_of(found.graph)) == wide
    assert len(integer_weights(found)) == 2 + wide
    assert ("wb" in {item.name for item in found.graph.initializer}) != wide
    # If no accuracy is lost, nothing stays in float.
    assert len(integer_weights(quantize_for(model, batches, max_loss=100, evaluate=evaluate))) == 3


@needs_onnx
def test_a_model_that_must_lose_nothing_is_unchanged():
    model = chain_with_an_outlier()

    def evaluate(item):
        return 1.0 if item is model else 0.0

    assert quantize_for(model, images(shape=(8, 16)), max_loss=0.5, evaluate=evaluate) is model


# ---- What is refused ----------------------------------------------------------------------------


def with_value(value):
    batches = images()
    batches[3][0][0, 0, 0, 0] = value
    return batches


@needs_onnx
@pytest.mark.parametrize(
    "batches, message",
    [
        ([], "calibration_data is empty: .*at least 8 samples"),
        (None, "calibration_data is empty"),
        (5, "calibration_data is one int; supported: an iterable of batches"),
        (images()[0][0], "calibration_data is one ndarray; supported: an iterable of batches"),
        ([{"image": images()[0][0]}], "batch 0: for 'image'; the model's inputs are 'x'"),
        ([images()[0] * 2], "batch 0: 2 arrays; the model's inputs are 'x'"),
        ([3], "batch 0: of type int; supported: a mapping of names to arrays"),
        ([images()[0][0].astype("float64")], "'x' is float64; the model takes float32"),
        ([images(shape=(2, 3, 8, 9))[0]], r"the shape \(2, 3, 8, 9\); .* \(any, 3, 8, 8\)"),
        (with_value(np.nan), "batch 3: 'x' has NaN or infinity"),
        (with_value(np.inf), "batch 3: 'x' has NaN or infinity"),
        ([[0 * images()[0][0]]] * 8, "'x' is 0 throughout .* leave 'a'.* in float with keep_float"),
    ],
)
def test_bad_calibration_data_is_refused(batches, message):
    with pytest.raises(ValueError, match=message):
        quantize_for(branches(), batches)


@needs_onnx
def test_a_tensor_that_becomes_infinite_is_named():
    weights = {"v": normal(16, 16, scale=1e30), "w": normal(16, 4, scale=1e30)}
    model = onnx_model(("a = MatMul x v", "b = Mul a a", "c = MatMul b w"), [8, 16], ["c"], weights)
    with pytest.raises(ValueError, match="'b' is NaN or infinite .* 'c'"):
        quantize_for(model, images(shape=(8, 16)))


@needs_onnx
@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "mse"}, "method is 'mse'; onnxruntime has minmax, moving_average, percentile"),
        ({"activations": "int4"}, "activations is 'int4'; this backend has int8"),
        ({"keep_float": ["head"]}, "no op or result is called 'head'; the products are a, b, c"),
        ({"int16": ["head"]}, "int16: no op or result is called 'head'; the products are a, b, c"),
        ({"max_loss": 0.1}, "max_loss and evaluate go together"),
        ({"max_loss": "1", "evaluate": id}, "max_loss is '1'; supported: a number from 0"),
        ({"max_loss": -0.1, "evaluate": id}, "max_loss is -0.1; supported: a number from 0"),
        ({"max_loss": float("nan"), "evaluate": id}, "max_loss is nan; supported: a number"),
        (
            {"max_loss": 0.1, "evaluate": lambda model: "0.9"},
            "evaluate returns '0.9' of type str; supported: a number",
        ),
        ({"max_loss": 0.1, "evaluate": lambda model: None}, "evaluate returns None of type None"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        quantize_for(branches(), images(), **options)


@needs_onnx
def test_weights_without_a_range_are_refused_unless_they_stay_in_float():
    weights = {"v": normal(16, 16), "w": normal(16, 4)}
    weights["w"][0, 0] = np.nan
    model = onnx_model(("a = MatMul x v", "b = MatMul a w"), [8, 16], ["b"], weights)
    with pytest.raises(ValueError, match="weights of 'b' have NaN or infinity .* keep_float"):
        quantize_for(model, images(shape=(8, 16)))
    found = quantize_for(model, images(shape=(8, 16)), keep_float=["b"])
    assert integer_weights(found) == [(16, 16)]


@needs_onnx
def test_products_of_onnx_that_stay_in_float_are_named():
    model = onnx_model(
        ("e = Einsum x w equation='ij,jk->ik'",), [8, 16], ["e"], {"w": normal(16, 4)}
    )
    with pytest.raises(ValueError, match="'e' is Einsum, which stays in float, unlike Conv"):
        quantize_for(model, images(shape=(8, 16)))


@needs_onnx
def test_a_backend_without_integers_says_what_it_lacks(monkeypatch):
    monkeypatch.delitem(TABLE._by_name, "quantize")
    with pytest.raises(ValueError, match="Its table needs quantize, dequantize, and a conv"):
        quantize_for(branches(), images())


@needs_onnx
def test_other_models_are_refused():
    with pytest.raises(ValueError, match="type IRModule; supported: onnx.ModelProto"):
        quantize_for(tvm.IRModule(), images())
    with pytest.raises(ValueError, match="quantized already: it has DequantizeLinear"):
        quantize_for(quantize_for(branches(), images()), images())


def test_a_missing_library_is_named(monkeypatch):
    import sys

    package = quantization.__name__
    for name in ("onnx_models", "torch_models"):
        monkeypatch.delitem(sys.modules, f"{package}.{name}", raising=False)
        monkeypatch.delattr(quantization, name, raising=False)
    for name in ("onnxruntime.quantization", "torchao.quantization.pt2e.observer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install onnx onnxruntime"):
        quantize_for("model.onnx", images())

    class Module:
        def named_parameters(self):
            return []

    with pytest.raises(ImportError, match="pip install torch torchao"):
        quantize_for(Module(), images())


@pytest.mark.parametrize(
    "arrays, message",
    [
        (images(2, (2, 3, 8, 8)), "has 4 samples"),
        ([[normal(4, 3, 32, 32, scale=1)]] * 3, "'x' looks like .* normal distribution"),
        (
            [[np.random.default_rng(0).random((4, 3, 32, 32), "float32")]] * 3,
            "'x' looks like .* uniform distribution",
        ),
    ],
)
def test_poor_calibration_data_is_warned_about(arrays, message):
    shape = (None, *arrays[0][0].shape[1:])
    with pytest.warns(UserWarning, match=message):
        data.read(arrays, {"x": ("float32", shape)})


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_real_data_is_not_warned_about(recwarn, scale):
    batches = [[scale * abs(item[0])] for item in images(8, (2, 3, 32, 32))]
    data.read(batches, {"x": ("float32", (None, 3, 32, 32))})
    assert not [str(item.message) for item in recwarn]


# ---- PyTorch ------------------------------------------------------------------------------------


def torch_network():
    """Return a network with a shortcut and a classifier, whose modules have names."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.body = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU())
            self.head = torch.nn.Linear(8, 5)

        def forward(self, image):
            x = torch.relu(self.stem(image))
            x = torch.nn.functional.max_pool2d(torch.cat((x, self.body(x)), 1), 2)
            return self.head((x[:, :8] + x[:, 8:]).mean((2, 3)))

    torch.manual_seed(0)
    return Network().eval()


def exported(network, dynamic=True):
    import torch

    image = torch.from_numpy(images()[0][0])
    sizes = {"image": {0: torch.export.Dim("n", max=64)}} if dynamic else None
    return torch.export.export(network, (), {"image": image}, dynamic_shapes=sizes)


def torch_labels(program):
    return labels_of(placed(backend.from_exported_program(program)))


@needs_torch
@needs("max_pool2d", "concat")
@pytest.mark.parametrize(
    "method",
    ["minmax", *(pytest.param(name, marks=thorough) for name in ("moving_average", "mse"))],
)
def test_a_program_with_a_symbolic_batch_and_inputs_by_name(method):
    import torch

    program = exported(torch_network())
    batches = [{"image": item[0]} for item in images()]
    found = quantize_for(program, batches, method=method)
    labels = torch_labels(found)
    assert len(labels) == 3 and all(label.startswith("quantized_") for label in labels)
    # The pool and its input are integers.
    assert labels[0] == "quantized_conv2d_bias"
    image = torch.from_numpy(images(1, (5, 3, 8, 8))[0][0])
    with torch.no_grad():
        results = [item.module()(image=image).numpy() for item in (found, program)]
    assert decibels(*results) > 20
    (result,) = run(backend.from_exported_program(found), [image.numpy()])
    assert np.abs(result - results[0]).max() < 0.02 * np.abs(results[0]).max()


@support.needs_reals
@needs_torch
@pytest.mark.parametrize(
    "names, left",
    [
        (["body.0", "stem"], 1),
        pytest.param(["head"], 2, marks=thorough),
        pytest.param(["body.*"], 2, marks=thorough),
    ],
)
def test_modules_are_kept_in_float_by_name(names, left):
    network = torch_network()
    labels = torch_labels(quantize_for(network, images(), keep_float=names))
    assert sum(label.startswith("quantized_") for label in labels) == left


def layers(name):
    """Return a small model and the shape of its input."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layers(nn.Module):
        def __init__(self, compute, **parts):
            super().__init__()
            self.compute = compute
            for key, part in parts.items():
                setattr(self, key, part)

        def forward(self, x):
            return self.compute(self, x)

    def normal_weights(*shape):
        return nn.Parameter(torch.from_numpy(normal(*shape)))

    def c2f(m, x):
        parts = list(functional.silu(m.a(x)).chunk(2, 1))
        parts.append(functional.silu(m.b(parts[-1])))
        return m.c(torch.cat(parts, 1))

    convolutions = {"a": nn.Conv2d(4, 8, 4, padding="same"), "b": nn.Conv2d(8, 4, 3)}
    torch.manual_seed(0)
    return {
        "mlp": lambda: (nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), (2, 7, 16)),
        "patches": lambda: (
            Layers(
                lambda m, x: m.b(m.a(x).flatten(2).transpose(1, 2)),
                a=nn.Conv2d(4, 8, 2, 2),
                b=nn.Linear(8, 6),
            ),
            (1, 4, 8, 8),
        ),
        "same": lambda: (
            Layers(lambda m, x: m.b(torch.relu(m.a(x))), **convolutions),
            (1, 4, 8, 8),
        ),
        "pixels": lambda: (
            nn.Sequential(nn.Conv2d(4, 16, 3), nn.PixelShuffle(2), nn.Conv2d(4, 4, 1)),
            (1, 4, 8, 8),
        ),
        "c2f": lambda: (
            Layers(
                c2f,
                a=nn.Conv2d(4, 16, 1),
                b=nn.Conv2d(8, 8, 3, padding=1),
                c=nn.Conv2d(24, 8, 1),
            ),
            (1, 4, 8, 8),
        ),
        "glu": lambda: (
            nn.Sequential(nn.Conv2d(4, 16, 3), nn.GLU(1), nn.Conv2d(8, 4, 1)),
            (1, 4, 8, 8),
        ),
        "addmm": lambda: (
            Layers(
                lambda m, x: torch.relu(torch.addmm(m.b, x, m.w)) @ m.v.T,
                b=normal_weights(5),
                w=normal_weights(8, 5),
                v=normal_weights(6, 5),
            ),
            (4, 8),
        ),
        "topk": lambda: (
            Layers(
                lambda m, x: torch.topk(m.b(torch.relu(m.a(x))), 3)[0],
                a=nn.Linear(16, 32),
                b=nn.Linear(32, 40),
            ),
            (4, 16),
        ),
        "batches": lambda: (
            Layers(
                lambda m, x: torch.bmm(torch.relu(torch.baddbmm(m.b, x, m.w)), m.v),
                b=normal_weights(1, 5),
                w=normal_weights(2, 8, 5),
                v=normal_weights(2, 5, 6),
            ),
            (2, 4, 8),
        ),
        "weight_norm": lambda: (
            nn.Sequential(
                nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 8, 3)),
                nn.ReLU(),
                nn.Conv2d(8, 4, 1),
            ),
            (1, 4, 8, 8),
        ),
        "attention": lambda: (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 6, 16)),
        "lstm": lambda: (nn.LSTM(8, 16, batch_first=True), (4, 3, 8)),
        "einsum": lambda: (
            Layers(lambda m, x: torch.einsum("bij,jk->bik", x, m.w), w=normal_weights(8, 5)),
            (2, 4, 8),
        ),
    }[name]()


def quantized_layers(name):
    """Return the placed ops of the quantized model, having compared its results."""
    import torch

    network, shape = layers(name)
    network.eval()
    batches = [[2 * item[0]] for item in images(8, shape)]
    inputs = tuple(map(torch.from_numpy, batches[0]))
    program = quantize_for(network, batches)
    with torch.no_grad():
        results, exact = (
            [item.numpy() for item in torch.utils._pytree.tree_leaves(module(*inputs))]
            for module in (program.module(), network)
        )
    mod = backend.from_exported_program(program)
    for one, right, real in zip(run(mod, batches[0]), results, exact, strict=True):
        assert np.abs(one - right).max() <= 0.05 * np.abs(right).max() + 1e-6
        assert decibels(one, real) > 20
    support.skip_where_declined(mod)
    return placed(mod)


@support.needs_reals
@needs_torch
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mlp", marks=needs("gelu")),
        pytest.param("patches", marks=needs("permute_dims", "reshape")),
        "same",
        pytest.param("pixels", marks=[needs("permute_dims", "reshape"), thorough]),
        pytest.param("c2f", marks=needs("silu", "strided_slice", "concat")),
        pytest.param("glu", marks=[needs("sigmoid", "multiply", "strided_slice"), thorough]),
        pytest.param("addmm", marks=thorough),
        pytest.param("batches", marks=thorough),
        pytest.param("weight_norm", marks=thorough),
    ],
)
def test_only_the_edges_of_layers_are_real_numbers(name):
    ops = quantized_layers(name)
    assert in_float(ops) == set()
    assert len(alone(ops, "quantize")) == 1
    assert {label.startswith("quantized_") for label in labels_of(ops)} == {True}


@support.needs_reals
@needs_torch
def test_the_best_scores_of_a_program_are_chosen_from_floats():
    ops = quantized_layers("topk")
    assert labels_of(ops)[-1].endswith("_to_real")
    assert len(alone(ops, "quantize")) == 1


@thorough
@support.needs_reals
@needs_torch
@needs("layer_norm", "permute_dims", "reshape")
def test_the_products_of_a_transformer_layer_are_integers():
    ops = quantized_layers("attention")
    labels = labels_of(ops)
    assert sum(label.startswith("quantized_") for label in labels) == 4
    assert in_float(ops).isdisjoint(ACTIVATIONS)


@support.needs_reals
@needs_torch
@needs("permute_dims", "reshape", "strided_slice", "take")
@pytest.mark.parametrize("name, count", [pytest.param("lstm", 3, marks=thorough), ("einsum", 1)])
def test_products_inside_of_larger_ops_are_integers(name, count):
    ops = quantized_layers(name)
    labels = labels_of(ops)
    assert sum(label.startswith("quantized_") for label in labels) == len(labels) == count
    assert alone(ops, "dequantize") == []


@support.needs_reals
@needs_torch
def test_a_layer_whose_data_are_0_stays_in_float():
    import torch

    network = torch_network()
    with torch.no_grad():
        network.body[0].bias -= 1e4
    network.body = torch.nn.Sequential(*network.body, torch.nn.Conv2d(8, 8, 1))
    sentence = "'relu_1' is 0 throughout .* 'conv2d_2', which reads it, stays in float"
    with pytest.warns(UserWarning, match=sentence):
        program = quantize_for(network, images())
    kinds = [label.startswith("quantized_") for label in torch_labels(program)]
    assert kinds == [True, True, False, True]


@support.needs_reals
@needs_onnx
@pytest.mark.filterwarnings("ignore:The tensor 'b' is 0")
def test_a_node_whose_data_are_0_stays_in_float():
    lines = ("a = Conv x w", "s = Sub a t", "r = Relu s", "b = Conv r v", "c = Conv b v")
    weights = {"w": normal(4, 3, 1, 1), "t": np.float32(1e4), "v": normal(4, 4, 1, 1)}
    model = onnx_model(lines, [2, 3, 8, 8], ["c"], weights)
    with pytest.warns(UserWarning, match="'r' is 0 throughout .* 'b', .* stays in float"):
        found = quantize_for(model, images())
    kinds = [
        label.startswith("quantized_") for label in labels_of(placed(backend.from_onnx(found)))
    ]
    assert kinds == [True, False, False]


@needs_torch
@needs_int16
def test_modules_are_int16_by_name():
    network = torch_network()
    program = quantize_for(network, images(), int16=["head"])
    labels = torch_labels(program)
    assert len(labels) == 3 and all(label.startswith("quantized_") for label in labels)
    types = [
        str(node.args[5]).removeprefix("torch.")
        for node in program.graph.nodes
        if "decomposed.quantize_per_tensor" in str(node.target)
    ]
    assert "int16" in types and "int8" in types


@thorough
@needs_torch
def test_layers_of_a_program_stay_in_float_until_the_accuracy_is_reached():
    import torch

    network = torch_network()
    with torch.no_grad():
        # One channel dominates the scale, so that the others become 0.
        network.stem.weight[0] *= 1e4
        network.body[0].weight[:, 0] *= 1e-4
        network.head.weight[:, 0] *= 1e-4
    (image,) = map(torch.from_numpy, images()[0])
    seen = []

    def evaluate(model):
        module = model if model is network else model.module()
        with torch.no_grad():
            seen.append(min(decibels(module(image).numpy(), network(image).numpy()), 40))
        return seen[-1]

    found = quantize_for(network, images(), max_loss=15, evaluate=evaluate)
    assert seen[0] == 40 and seen[1] < 25 <= seen[-1]
    labels = torch_labels(found)
    assert 0 < sum(label.startswith("quantized_") for label in labels) < 3


@needs_torch
def test_unsupported_torch_models_are_refused():
    network = torch_network()
    with pytest.raises(ValueError, match="in training mode: call model.eval"):
        quantize_for(network.train(), images())
    network.eval()
    with pytest.raises(ValueError, match="cannot export the model with the first batch"):
        quantize_for(network, [images()[0] * 2])
    with pytest.raises(ValueError, match="method is 'entropy'; torchao has minmax, moving_average"):
        quantize_for(network, images(), method="entropy")
    with pytest.raises(ValueError, match=r"\(2, 3, 8, 9\); the model takes \(2, 3, 8, 8\)"):
        quantize_for(network, [*images(4), *images(4, (2, 3, 8, 9))])
    with pytest.raises(ValueError, match="'image' is 0 throughout .* keep_float"):
        quantize_for(network, [[0 * images()[0][0]]] * 8)


@needs_torch
def test_torch_models_that_keep_something_are_refused():
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(3, 3))

        def forward(self, x):
            self.rows[:1].copy_(x)
            return x @ self.rows

    with pytest.raises(ValueError, match="changes its buffer 'rows'.*torchao.quantization"):
        quantize_for(Network().eval(), [[np.ones((1, 3), "float32")]])


@needs_torch
def test_torch_layers_that_cannot_be_quantized_are_named():
    import torch

    network = torch_network()
    with torch.no_grad():
        network.head.weight[0] = np.inf
    with pytest.raises(ValueError, match="weights of 'head' have NaN or infinity .* keep_float"):
        quantize_for(network, images())
    halves = [[item[0].astype("float16")] for item in images()]
    sentence = "'conv2d' computes with float16, and float32 is quantized: model.float"
    with pytest.raises(ValueError, match=sentence):
        quantize_for(torch_network().half(), halves)

    class Dot(torch.nn.Module):
        def forward(self, x):
            return torch.mv(x, x[0])

    with pytest.raises(ValueError, match="'mv' is aten.mv.default, which stays in float"):
        quantize_for(Dot().eval(), images(shape=(8, 8)))


@support.needs_reals
@needs_torch
def test_a_module_that_must_lose_nothing_is_returned_as_a_program():
    import torch

    network = torch_network()

    def evaluate(model):
        return 1.0 if model is network else 0.0

    names = ["body.*", "head"]
    found = quantize_for(network, images(), keep_float=names, max_loss=0.5, evaluate=evaluate)
    assert isinstance(found, torch.export.ExportedProgram)
    assert not any(label.startswith("quantized_") for label in torch_labels(found))
