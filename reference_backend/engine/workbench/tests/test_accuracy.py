# SPDX-License-Identifier: Apache-2.0
"""The accuracy report: it finds a wrong layer, and its numbers equal those of NumPy."""

import json
import math
import re
from functools import cache, partial
from xml.etree import ElementTree

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.workbench.conformance import onnx_networks, quantized_networks
from support import build, compile_for, host_library, needs, needs_library, variable
from test_quantize import images, needs_onnx, needs_torch, normal, onnx_model, quantize_for

pytestmark = pytest.mark.usefixtures("bound_constants")

op = relax.op
IMAGE = variable("image", 1, 4, 8, 8)
OPS = ("conv2d", "matmul", "add", "reshape", "quantize", "dequantize")


def inputs(seed=0):
    return [np.random.default_rng(seed).standard_normal((1, 4, 8, 8)).astype("float32")]


class Writer:
    """Writes a float network, or the same network as an exporter quantizes it."""

    def __init__(self, emit, quantized, wrong):
        self.emit, self.quantized, self.wrong = emit, quantized, wrong
        self.random = np.random.default_rng(5)

    def weight(self, name, *shape, axis=0):
        terms = np.prod(shape) / shape[axis]
        real = (self.random.standard_normal(shape) / np.sqrt(terms)).astype("float32")
        return self.quantize(real, name, axis) if self.quantized else relax.const(real)

    def quantize(self, real, name="", axis=0):
        shape = real.shape
        others = tuple(index for index in range(len(shape)) if index != axis)
        scale = (np.abs(real).max(others) / 127).astype("float32")
        along = scale.reshape([-1 if index == axis else 1 for index in range(len(shape))])
        integers = relax.const(np.rint(real / along).astype("int8"))
        zeros = relax.const(np.zeros(len(scale), "int8"))
        scale = relax.const(scale * np.float32(self.wrong.get(name, 1)))
        return self.emit(op.dequantize(integers, scale, zeros, axis))

    def between(self, name, value, most=5.0):
        """Quantize and dequantize a value between two layers."""
        if not self.quantized:
            return value
        scale = relax.const(np.float32(most / 127 * self.wrong.get(name, 1)))
        zero = relax.const(np.int8(0))
        value = self.emit(op.quantize(value, scale, zero, -1, "int8"))
        return self.emit(op.dequantize(value, scale, zero, -1))

    def conv(self, name, value):
        value = self.emit(op.nn.conv2d(value, self.weight(name, 4, 4, 3, 3), padding=1))
        bias = self.random.standard_normal((1, 4, 1, 1)).astype("float32")
        return self.emit(op.add(value, relax.const(bias * np.float32(0.3))))


@cache
def network(quantized=False, wrong=()):
    """Build a residual block and a classifier; `wrong` has factors that falsify scales."""

    def body(emit):
        writer = Writer(emit, quantized, dict(wrong))
        value = writer.between("image", IMAGE)
        first = emit(op.nn.relu(writer.conv("first", value)))
        first = writer.between("first out", first)
        second = writer.between("second out", writer.conv("second", first))
        value = emit(op.nn.relu(emit(op.add(second, first))))
        value = emit(op.reshape(writer.between("sum out", value, 8.0), (1, 256)))
        value = emit(op.matmul(value, writer.weight("last", 256, 10, axis=1)))
        return writer.between("last out", value)

    return build([IMAGE], body)


@cache
def report(*wrong):
    return backend.accuracy_report(network(), network(True, wrong), inputs())


def run(executable, arrays):
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy().astype("float64")


# ---- Values -------------------------------------------------------------------------------------


@needs(*OPS)
def test_all_layers_of_a_good_model_are_good():
    found = report()
    assert found.differences == ()
    ops = sorted("+".join(item.ops) for item in found.layers)
    assert ops == ["add+relu", "conv2d+add", "conv2d+add+relu", "quantize", "reshape+matmul"]
    assert all(28 < item.snr_db < 70 for item in found.layers)
    assert all(item.largest_error_steps < 4 for item in found.layers)
    assert [item.snr_db for item in found.layers] == sorted(item.snr_db for item in found.layers)


@pytest.mark.thorough
@needs(*OPS)
@pytest.mark.parametrize(
    "name, ops",
    [("first", "conv2d+add+relu"), ("second", "conv2d+add"), ("last", "reshape+matmul")],
)
def test_a_wrong_scale_of_weights_is_found_in_its_layer_alone(name, ops):
    worst, *others = report((name, 4.0)).layers
    assert "+".join(worst.ops) == ops
    assert worst.snr_db < 5
    assert worst.largest_error_steps > 10
    assert min(item.snr_db for item in others) > 28


@pytest.mark.thorough
@needs(*OPS)
def test_a_range_that_is_too_small_is_found_where_it_is_written_and_read():
    """Clip the values between the first layer and its two readers to a quarter of their range."""
    layers = report(("first out", 0.25)).layers
    bad = {"+".join(item.ops) for item in layers if item.snr_db < 20}
    assert bad == {"conv2d+add+relu", "conv2d+add", "add+relu"}


def matmuls(end):
    """Make a float model of a product, and a quantized one; `end` adds the rest to both."""
    data = variable("data", 8, 64)

    def write(emit, quantized):
        writer = Writer(emit, quantized, {})
        value = writer.between("in", data)
        value = emit(op.matmul(value, writer.weight("weight", 64, 16, axis=1)))
        return end(writer, value)

    return [build([data], partial(write, quantized=quantized)) for quantized in (False, True)]


@needs("matmul", "quantize", "dequantize")
def test_the_numbers_are_those_of_numpy():
    mods = matmuls(lambda writer, value: writer.between("out", value))
    random = np.random.default_rng(1)
    batches = [[random.standard_normal((8, 64)).astype("float32")] for _ in range(3)]
    found = backend.accuracy_report(*mods, batches)
    one = np.stack([run(host_library(mods[0]), batch) for batch in batches])
    two = np.stack([run(compile_for(mods[1]), batch) for batch in batches])
    noise = one - two
    snr = 10 * math.log10((one**2).sum() / (noise**2).sum())
    cosine = (one * two).sum() / np.sqrt((one**2).sum() * (two**2).sum())
    (layer,) = [item for item in found.layers if item.ops == ("matmul",)]
    # The only layer reads the model's input, so both errors are the same.
    for item in (layer, *found.outputs):
        assert item.snr_db == pytest.approx(snr, rel=1e-4)
        assert item.cosine == pytest.approx(cosine, rel=1e-7)
        assert item.largest_error == pytest.approx(np.abs(noise).max(), rel=1e-4)
    assert layer.largest_error_steps == pytest.approx(np.abs(noise).max() * 127 / 5, rel=1e-4)
    assert found.outputs[0].largest_error_steps is None


# ---- Types --------------------------------------------------------------------------------------


@needs(*OPS)
def test_it_says_in_which_type_each_layer_runs():
    support.skip_without_integers("conv2d", "matmul", "add")
    support.skip_where_declined(network(True))
    found = {"+".join(item.ops): item for item in report().layers}
    for ops in ("conv2d+add+relu", "conv2d+add", "reshape+matmul"):
        assert found[ops].runs_as == ("int8",)
        assert found[ops].composites[-1].startswith("quantized_")
    inside = ", inside float32" if support.TABLE.chip.has_reals else ""
    assert found["add+relu"].runs_as == (f"int8{inside}",)


@support.needs_reals
@needs("matmul", "quantize", "dequantize")
def test_it_says_which_layers_compute_with_floats_and_which_are_on_the_host():
    support.skip_without_integers("matmul")
    on_host = getattr(op, support.on_host.__name__)
    mods = matmuls(lambda writer, value: writer.emit(on_host(value)))
    random = np.random.default_rng(1)
    arrays = [random.standard_normal((8, 64)).astype("float32")]
    found = backend.accuracy_report(*mods, arrays)
    (layer,) = [item for item in found.layers if item.ops[0] == "matmul"]
    assert layer.runs_as == ("int8 to float32", "float32 on the host")
    assert layer.composites == ("quantized_matmul_to_real", "host")
    assert layer.largest_error_steps is None


# ---- Matching -----------------------------------------------------------------------------------


@pytest.mark.thorough
@needs("conv2d", "quantize", "dequantize")
def test_a_batch_norm_in_the_weights_and_a_relu_in_the_range_are_matched():
    factor = np.asarray([0.5, 1.0, 2.0, 1.5], "float32")
    weights = np.random.default_rng(5).standard_normal((4, 4, 3, 3)).astype("float32") / 6

    def real(emit):
        value = emit(op.nn.conv2d(IMAGE, relax.const(weights), padding=1))
        zeros, ones = (relax.const(np.full(4, item, "float32")) for item in (0, 1))
        norm = op.nn.batch_norm(
            value, relax.const(factor), ones, zeros, ones, 1, 0.0, training=False
        )
        return emit(op.nn.relu(emit(relax.TupleGetItem(emit(norm), 0))))

    def quantized(emit):
        writer = Writer(emit, True, {})
        weight = writer.quantize(weights * factor.reshape(-1, 1, 1, 1))
        value = op.nn.conv2d(writer.between("in", IMAGE), weight, padding=1)
        ones = relax.const(np.ones((1, 4, 1, 1), "float32"))
        value = emit(op.add(emit(value), ones))
        scale, zero = relax.const(np.float32(14 / 255)), relax.const(np.int8(-128))
        value = emit(op.quantize(value, scale, zero, -1, "int8"))
        return emit(op.dequantize(value, scale, zero, -1))

    found = backend.accuracy_report(build([IMAGE], real), build([IMAGE], quantized), inputs())
    assert found.differences == ()
    (layer,) = [item for item in found.layers if item.ops == ("conv2d", "add")]
    assert layer.snr_db > 30
    assert layer.snr_db == pytest.approx(found.outputs[0].snr_db, abs=0.01)


@pytest.mark.thorough
@needs("matmul", "add", "quantize", "dequantize", "reshape")
def test_ops_that_only_move_elements_may_differ():
    """PyTorch's importer flattens what a linear layer reads; that of a quantized one does not."""
    data = variable("data", 3, 4, 64)
    bias = relax.const(np.linspace(-1, 1, 16, dtype="float32"))

    def real(emit):
        writer = Writer(emit, False, {})
        value = emit(op.reshape(data, (12, 64)))
        value = emit(op.matmul(value, writer.weight("first", 64, 16, axis=1)))
        value = emit(op.reshape(emit(op.add(bias, value)), (3, 4, 16)))
        value = emit(op.strided_slice(value, [1], [1], [3]))
        value = emit(op.nn.relu(emit(op.permute_dims(value, (1, 0, 2)))))
        value = emit(op.reshape(value, (6, 16)))
        value = emit(op.matmul(value, writer.weight("second", 16, 8, axis=1)))
        return emit(op.reshape(value, (2, 3, 8)))

    def quantized(emit, wrong=()):
        writer = Writer(emit, True, dict(wrong))
        value = writer.between("in", data)
        value = emit(op.matmul(value, writer.weight("first", 64, 16, axis=1)))
        value = writer.between("first out", emit(op.add(value, bias)))
        value = emit(op.nn.relu(emit(op.take(value, relax.const([1, 2], "int64"), 1))))
        value = writer.between("moved", emit(op.permute_dims(value, (1, 0, 2))))
        return emit(op.matmul(value, writer.weight("second", 16, 8, axis=1)))

    random = np.random.default_rng(1)
    arrays = [random.standard_normal((3, 4, 64)).astype("float32")]
    mods = build([data], real), build([data], quantized)
    found = backend.accuracy_report(*mods, arrays)
    assert found.differences == ()
    assert [item.summary for item in found.layers if "matmul" in item.ops] in (
        ["matmul+add", "matmul"],
        ["matmul", "matmul+add"],
    )
    assert all(item.snr_db > 28 for item in found.layers)
    for name, ops in (("first", "matmul+add"), ("second", "matmul")):
        mod = build([data], partial(quantized, wrong=((name, 4.0),)))
        worst, *others = backend.accuracy_report(mods[0], mod, arrays).layers
        assert worst.summary == ops
        assert worst.snr_db < 5
        assert min(item.snr_db for item in others) > 28


@needs("matmul", "quantize", "dequantize", "reshape")
def test_elements_that_are_moved_to_other_places_differ():
    data = variable("data", 4, 4)

    def write(emit, quantized):
        writer = Writer(emit, quantized, {})
        value = writer.between("in", data)
        if quantized:
            value = emit(op.permute_dims(value))
        return emit(op.matmul(value, writer.weight("weight", 4, 4, axis=1)))

    mods = [build([data], partial(write, quantized=item)) for item in (False, True)]
    arrays = [np.random.default_rng(1).standard_normal((4, 4)).astype("float32")]
    (difference,) = backend.accuracy_report(*mods, arrays).differences
    assert difference.startswith("'data' (an input) of the quantized model is where the float")
    assert "elements are in different places" in difference


@pytest.mark.thorough
@needs(*OPS)
def test_models_that_differ_are_reported_with_both_ops():
    def other(emit):
        value = emit(op.nn.conv2d(IMAGE, relax.const(np.ones((4, 4, 3, 3), "float32")), padding=1))
        return emit(op.sigmoid(emit(op.reshape(value, (1, 256)))))

    with pytest.raises(ValueError, match="The models have different outputs: the float model"):
        backend.accuracy_report(build([IMAGE], other), network(True), inputs())

    def another(emit):
        value = Writer(emit, False, {}).conv("", IMAGE)
        return emit(op.matmul(emit(op.reshape(value, (1, 256))), weights))

    weights = relax.const(np.ones((256, 10), "float32"))
    found = backend.accuracy_report(build([IMAGE], another), network(True), inputs())
    (difference,) = found.differences
    assert re.fullmatch(
        r"'lv\w*' \(relu\) of the quantized model is where the float model has 'lv\w*' \(add\)\.",
        difference,
    )
    # An op without a counterpart forms one layer with its reader.
    assert {item.summary for item in found.layers} == {"quantize", "conv2d+add+...+matmul"}

    def wider(emit):
        value = emit(op.nn.conv2d(IMAGE, relax.const(np.ones((4, 4, 5, 5), "float32")), padding=2))
        return emit(op.nn.relu(value))

    def narrow(emit):
        writer = Writer(emit, True, {})
        value = writer.between("in", IMAGE)
        value = emit(op.nn.conv2d(value, writer.weight("", 4, 4, 3, 3), padding=1))
        return emit(op.nn.relu(writer.between("out", value)))

    found = backend.accuracy_report(build([IMAGE], wider), build([IMAGE], narrow), inputs())
    (difference,) = found.differences
    assert "(conv2d) of the quantized model is where the float model has" in difference
    assert "padding is (1, 1, 1, 1) and (2, 2, 2, 2)" in difference
    assert {item.ops for item in found.layers} == {("quantize",), ("conv2d",), ("relu",)}
    assert difference in str(found)


@needs(*OPS)
def test_models_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="The float model has quantize or dequantize"):
        backend.accuracy_report(network(True), network(), inputs())
    with pytest.raises(ValueError, match="The quantized model has no quantize"):
        backend.accuracy_report(network(), network(), inputs())
    with pytest.raises(TypeError, match="The float model is of type str; supported: tvm.IRModule"):
        backend.accuracy_report("model", network(True), inputs())
    for arrays, sentence in (
        ([], "There are no inputs"),
        (inputs() * 2, "the inputs: 2 arrays; the model's inputs are 'image'"),
        ([inputs()[0][0]], r"'image' has the shape \(4, 8, 8\); the model takes \(1, 4, 8, 8\)"),
        ([inputs()[0].astype("float64")], "float64; the model takes float32"),
        ([inputs(), [inputs()[0] * np.nan]], "batch 1 of the inputs: 'image' has NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=sentence):
            backend.accuracy_report(network(), network(True), arrays)


# ---- Forms --------------------------------------------------------------------------------------


@needs(*OPS)
def test_it_is_a_table_json_and_a_picture():
    found = report()
    lines = str(found).splitlines()
    assert lines[0].split()[:2] == ["layer", "ops"]
    assert [line.split()[0] for line in lines[1:-1]] == [item.name for item in found.layers]
    assert lines[-1].startswith("output 0")
    assert backend.AccuracyReport.from_json(found.to_json()) == found
    data = json.loads(found.to_json())
    assert data["version"] == 1
    with pytest.raises(ValueError, match="version 9; supported: 1"):
        backend.AccuracyReport.from_json(json.dumps({**data, "version": 9}))
    picture = ElementTree.fromstring(found.to_svg())
    bars = [item for item in picture if item.tag.endswith("rect")]
    widths = [float(item.get("width")) for item in bars]
    assert len(bars) == len(found.layers)
    assert widths == sorted(widths)


def test_numbers_that_json_does_not_have_survive():
    exact = backend.LayerAccuracy(math.inf, 1.0, 0.0, None, "a", "b", ("relu",), ("float32",))
    found = backend.AccuracyReport((exact,), (backend.Accuracy(-math.inf, 0.0, 1.0),))
    assert backend.AccuracyReport.from_json(found.to_json()) == found
    assert "exact" in str(found)
    assert "Infinity" not in found.to_json()


# ---- Networks -----------------------------------------------------------------------------------


@pytest.mark.thorough
@needs("conv2d", "matmul", "max_pool2d", "add", "quantize", "dequantize")
@needs_library("onnx", "onnxruntime")
@pytest.mark.filterwarnings("ignore:Field 'shape'")
@pytest.mark.parametrize(
    "name, form, products",
    [("resnet", "qdq", 10), ("mobilenet", "dedicated", 8), ("resnet", "qoperator", 10)],
)
def test_networks_of_onnx_runtime_are_matched(name, form, products):
    mod, arguments, _ = quantized_networks.read(name, form)
    real = backend.from_onnx(onnx_networks.SMALL[name]()[0])
    check(backend.accuracy_report(real, mod, arguments), products)


@pytest.mark.thorough
@needs("conv2d", "matmul", "max_pool2d", "add", "quantize", "dequantize")
@needs_library("torch", "torchao")
def test_a_network_of_torchao_is_matched():
    import torch

    from backend.engine.workbench.conformance import torch_networks

    network, given = torch_networks.make(*torch_networks.SMALL["resnet"])
    program = torch.export.export(network, given)
    real = backend.from_exported_program(program, unwrap_unit_return_tuple=True)
    mod, arguments, _ = quantized_networks.export("resnet")
    check(backend.accuracy_report(real, mod, arguments), 10)


@pytest.mark.thorough
@needs("matmul", "reshape", "permute_dims", "softmax")
@needs_torch
def test_attention_of_pytorch_is_matched():
    import torch

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = torch.nn.Linear(32, 96)
            self.last = torch.nn.Linear(32, 32)

        def forward(self, x):
            parts = self.project(x).reshape(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            weights = torch.softmax(query @ key.transpose(-1, -2) / 3, -1)
            return x + self.last((weights @ value).transpose(1, 2).reshape(2, 6, 32))

    torch.manual_seed(0)
    network = Attention().eval()
    batches = [(torch.randn(2, 6, 32) * 0.5 + 0.1 * index,) for index in range(8)]
    quantized = quantize_for(network, batches)
    mods = [
        backend.from_exported_program(program, unwrap_unit_return_tuple=True)
        for program in (torch.export.export(network, batches[0]), quantized)
    ]
    found = backend.accuracy_report(*mods, [batches[0][0].numpy()])
    assert found.differences == ()
    assert len([item for item in found.layers if "matmul" in item.ops]) == 4
    assert min(item.snr_db for item in found.layers) > 25


@needs("matmul")
@needs_torch
def test_weights_that_torchao_casts_are_quantized():
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    if not support.TABLE.takes_integer_weights("relax.matmul"):
        pytest.skip("this chip takes no quantized weights beside real numbers")
    torch.manual_seed(0)
    network, given = torch.nn.Linear(64, 32, bias=False).eval(), (torch.randn(4, 64),)
    programs = [torch.export.export(network, given)]
    quantize_(network, Int8WeightOnlyConfig())
    programs.append(torch.export.export(network, given))
    mods = [backend.from_exported_program(item, unwrap_unit_return_tuple=True) for item in programs]
    found = backend.accuracy_report(*mods, [given[0].numpy()])
    assert found.differences == ()
    (layer,) = found.layers
    assert layer.ops[-1] == "matmul"
    assert layer.runs_as[-1] == "float32 x int8"
    assert 35 < layer.snr_db < 70


def reported(lines, weights, shape=(2, 3, 8, 8), opset=18):
    """Quantize an ONNX model by the backend's own function, and compare."""
    model = onnx_model(lines, list(shape), ["y"], weights, opset)
    found = quantize_for(model, images(shape=shape))
    mods = [backend.from_onnx(item) for item in (model, found)]
    layers = backend.accuracy_report(*mods, images(shape=shape)[0])
    assert layers.differences == ()
    assert all(item.runs_as and item.composites for item in layers.layers)
    assert min(item.snr_db for item in layers.layers) > 25
    return {item.title: item for item in layers.layers}


@needs("hard_swish", "pad", "tanh", "exp", "log", "maximum", "multiply", "add")
@needs_onnx
def test_what_onnx_runtime_rewrites_before_it_quantizes_is_matched():
    """It puts a pad and a factor into a convolution, and spells activations differently."""
    lines = (
        "a = Conv x w pads=[1,1,1,1]",
        "b = HardSwish a",
        "c = Pad b p",
        "d = Conv c v pads=[1,1,1,1]",
        "e = Relu d",
        "f = BatchNormalization e one zero zero one",  # With an epsilon by default.
        "g = Mish f",
        "h = Conv g v",
        "y = Mul h k",
    )
    weights = {
        **{
            "w": normal(4, 3, 3, 3),
            "v": normal(4, 4, 3, 3),
            "p": np.array([0, 0, 0, 0, 0, 0, 0, 1]),
        },
        **{"one": np.ones(4, "float32"), "zero": np.zeros(4, "float32")},
        "k": normal(1, 4, 1, 1),
    }
    found = reported(lines, weights)
    assert [item.ops.count("conv2d") for item in found.values() if "conv2d" in item.ops] == [1] * 3
    # As the offload report says: the activation is in the composite of a convolution.
    (swish,) = [item for item in found.values() if "clip" in item.ops]
    if swish.composites == ("quantized_conv2d_hard_swish",):
        assert swish.runs_as == ("int8",)


@needs("mean", "reshape", "multiply")
@needs_onnx
def test_a_factor_that_the_passes_put_into_a_scale_belongs_to_the_product():
    lines = ("a = GlobalAveragePool x", "b = Flatten a", "y = Gemm b w k transB=1 alpha=0.5")
    found = reported(lines, {"w": normal(4, 3), "k": normal(4)})
    (layer,) = [item for item in found.values() if "matmul" in item.ops]
    assert layer.ops == ("multiply", "matmul", "add")


@needs("conv2d", "astype", "relu")
@needs_onnx
def test_casts_around_a_model_of_float16_are_looked_through():
    from onnx import TensorProto

    weights = {"w": normal(4, 3, 3, 3).astype("float16")}
    model = onnx_model(("a = Conv x w", "y = Relu a"), [2, 3, 8, 8], ["y"], weights)
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    batches = [[item[0].astype("float16")] for item in images()]
    mods = [backend.from_onnx(item) for item in (model, quantize_for(model, batches))]
    found = backend.accuracy_report(*mods, batches[0])
    assert found.differences == ()
    (layer,) = [item for item in found.layers if "conv2d" in item.ops]
    assert layer.snr_db > 25


@needs("conv2d", "pad", "quantize", "dequantize")
def test_a_pad_of_integers_adds_real_numbers():
    def write(emit, quantized):
        writer = Writer(emit, quantized, {})
        value = IMAGE
        scale, zero = relax.const(np.float32(0.04)), relax.const(np.int8(-7))
        if quantized:
            value = emit(op.quantize(value, scale, zero, -1, "int8"))
        border = [0, 0, 0, 0, 1, 1, 1, 1]
        value = emit(op.nn.pad(value, border, "constant", -7.0 if quantized else 0.0))
        if quantized:
            value = emit(op.dequantize(value, scale, zero, -1))
        return emit(op.nn.conv2d(value, writer.weight("", 4, 4, 3, 3)))

    mods = [build([IMAGE], partial(write, quantized=item)) for item in (False, True)]
    found = backend.accuracy_report(*mods, inputs())
    assert found.differences == ()
    assert min(item.snr_db for item in found.layers) > 25


def check(found, products):
    support.skip_without_integers("conv2d", "matmul")
    assert found.differences == ()
    matrix = [item for item in found.layers if {"conv2d", "matmul"} & set(item.ops)]
    assert len(matrix) >= products
    assert {item.runs_as for item in matrix} == {("int8",)}
    # The author's names, which say the same in both models.
    assert all(item.origin for item in matrix)
    assert len({item.origin for item in matrix}) == len(matrix)
    assert min(item.snr_db for item in found.layers) > 25
    assert found.outputs[0].snr_db > 15


@pytest.mark.thorough
@needs("matmul", "take", "sigmoid")
@needs_library("onnx", "onnxruntime")
def test_scales_that_are_computed_at_run_time_belong_to_the_layer():
    mod, arguments, _ = quantized_networks.read("lstm", "dynamic")
    real = backend.from_onnx(onnx_networks.SMALL["lstm"]()[0])
    found = backend.accuracy_report(real, mod, arguments)
    products = [item for item in found.layers if "matmul" in item.ops]
    assert found.differences == ()
    assert len(products) >= 11
    assert all(25 < item.snr_db < 90 for item in products)
