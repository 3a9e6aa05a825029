# SPDX-License-Identifier: Apache-2.0
"""`verify` and `--verify`: the results against those of the model's own framework."""

import importlib.util
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import backend
from backend.engine.backend.commands.progress import Steps
from backend.engine.backend.report.report import Report
from backend.engine.backend.verification import originals
from backend.engine.backend.verification.verify import check
from support import build, needs_library, run_command, variable

onnx = pytest.importorskip("onnx", reason="pip install onnx")

X = np.array([[0.5, -2.0, 3.0], [np.pi, 0.0, -1.0]], "float32")


def model_of(body="s = Abs(x)", out="float[2, 3] s", opset=21):
    from onnx import parser

    domain = f'<ir_version: 10, opset_import: ["": {opset}]>'
    return parser.parse_model(
        f"{domain} g (float[2, 3] x) => ({out}, int64[2] i) {{ {body} \n{END}}}"
    )


END = "i = ArgMax<axis = 1, keepdims = 0>(s)"


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "model.onnx"
    onnx.save_model(model_of(), found)
    return found


# ---- In Python ----------------------------------------------------------------------------------


def test_the_results_are_compared_with_the_original(path):
    for model in (model_of(), path):
        for inputs in ({"x": X}, [X], None):
            found = backend.verify(model, inputs)
            assert found.passed, str(found)
            assert [item.name for item in found.results] == ["s", "i"]
            assert [item.dtype for item in found.results] == ["float32", "int64"]
            assert [item.total for item in found.results] == [6, 2]
            assert str(found).startswith("verified against ")
            assert "2 results, worst difference " in str(found)


@pytest.mark.parametrize(
    "wrong, told",
    [
        (model_of("s = Neg(x)"), "is wrong in 3 of 6 elements, most at [1, 0]"),
        (model_of("s = Cast<to = 11>(x)", "double[2, 3] s"), "is float64 of shape"),
        (
            model_of("s = Unsqueeze(x, a)", "float[1, 2, 3] s"),
            "is float32 of shape",
        ),
    ],
)
def test_an_importer_that_reads_another_model_is_found(monkeypatch, wrong, told):
    if "Unsqueeze" in str(wrong):
        from onnx import helper, numpy_helper

        wrong.graph.initializer.append(numpy_helper.from_array(np.array([0]), "a"))
        wrong.graph.output[1].CopyFrom(helper.make_tensor_value_info("i", 7, [1, 3]))
    monkeypatch.setattr(originals, "from_onnx", lambda *_, **__: backend.from_onnx(wrong))
    found = backend.verify(model_of(), [X])
    assert not found.passed
    assert "the results differ from those of " in str(found)
    assert f"'s' {told}" in str(found)


def fixed(*results):
    """Return an original with known results."""
    names = tuple(f"r{index}" for index in range(len(results)))
    return originals.Original(
        "Frame 1", names, lambda: None, lambda _: list(map(np.array, results))
    )


def outcome(right, mine, mod, **settings):
    return check(fixed(right), mod, [], [np.array(mine)], "given inputs", **settings)


def plain_module(*casts):
    x = variable("x", 2)
    from tvm import relax

    def body(emit):
        value = emit(relax.op.acosh(x))
        for dtype in casts:
            value = emit(relax.op.astype(value, dtype))
        return value

    return build([x], body)


def test_what_is_allowed_depends_on_the_types_of_the_model():
    right = np.array([100.0, 0, -1], "float32")
    for casts, most in (((), 0.01), (["float16"], 1.0), (["int8"], 2.0)):
        mod = plain_module(*casts)
        for part, passes in ((0.9, True), (1.1, False)):
            found = outcome(right, right + np.float32(most * part), mod)
            assert found.passed is passes, f"{casts} {part}: {found}"
    close = right + np.float32(0.5)
    assert outcome(right, close, mod=plain_module(), tolerance=0.006).passed
    assert not outcome(right, close, mod=plain_module(), tolerance=0.004).passed


def test_integers_are_equal_but_for_steps_of_a_quantized_model():
    right = np.array([3, 100, -100], "int8")
    steps = np.array([3, 104, -100], "int8")
    assert outcome(right, steps, plain_module("int8")).passed
    assert not outcome(right, steps + np.int8(1), plain_module("int8")).passed
    assert not outcome(right, steps, plain_module()).passed
    wide = right.astype("int64")
    found = outcome(wide, wide + 1, plain_module("int8"))
    assert not found.passed
    assert "may flip" not in str(found)
    random = replace(found, inputs="random inputs, seed 0")
    assert "the index of the largest value, may flip where random inputs" in str(random)


def test_results_that_say_nothing_are_named():
    nothing = np.array([np.nan, np.nan], "float32")
    found = outcome(nothing, nothing, plain_module())
    assert found.passed
    assert str(found).endswith("; but 'r0' has no finite value, so that this says little")
    assert not outcome(nothing, np.zeros(2, "float32"), plain_module()).passed
    small = np.array([1e-9, -1e-8], "float32")
    found = outcome(small, small * 50, plain_module())
    assert found.passed
    assert "'r0' has no value that is larger than what is allowed" in str(found)
    assert not outcome(small, small + np.float32(2e-6), plain_module()).passed
    empty = np.zeros((0, 4), "float32")
    assert str(outcome(empty, empty, plain_module())).endswith("; but 'r0' is empty")
    found = check(fixed(X, X), plain_module(), [], [X], "given inputs")
    assert "there are 1 results instead of 2" in str(found)


def test_what_cannot_be_verified_is_refused():
    with pytest.raises(ValueError, match="type IRModule, which no framework but TVM runs"):
        backend.verify(plain_module(), [X])
    with pytest.raises(ValueError, match="'x' is float64, and the model takes float32"):
        backend.verify(model_of(), [X.astype("float64")])
    with pytest.raises(ValueError, match="tolerance=-1 is not a number from 0 on"):
        backend.verify(model_of(), [X], tolerance=-1)
    model = model_of()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(
        ValueError, match=r"the input x float32\[n, 3\] has open sizes: give inputs"
    ):
        backend.verify(model)


def test_inputs_that_the_framework_refuses_are_an_error():
    model = model_of("s = Gather(x, k)\n k = Cast<to = 7>(x)", "float[2, 3, 3] s")
    model.graph.node.insert(0, model.graph.node.pop(1))
    with pytest.raises(RuntimeError, match="does not run the model: .*[Ii]nd"):
        originals.original_of(model).run([X * 50])


@needs_library("onnx")
def test_a_file_that_the_framework_does_not_load_is_an_error():
    model = model_of()
    model.graph.node[0].op_type = "Unheard"
    with pytest.raises(RuntimeError) as caught:
        originals.original_of(model).run([X])
    assert re.match(r"\S.* does not run the model: .*Unheard", str(caught.value))
    assert "inputs" not in str(caught.value)


def test_without_onnx_runtime_the_evaluator_of_onnx_is_used(monkeypatch):
    find = importlib.util.find_spec
    hidden = {"onnxruntime"}
    monkeypatch.setattr(
        originals.importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    found = backend.verify(model_of(), [X])
    assert found.passed
    assert found.framework.startswith("onnx.reference ")
    hidden.add("onnx")
    with pytest.raises(ImportError, match="not installed: pip install onnxruntime"):
        originals.original_of(model_of())


@pytest.mark.thorough  # Importing torch takes seconds.
@needs_library("torch")
def test_a_program_of_pytorch_is_run_by_pytorch():
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.ones(3))

        def forward(self, x, *, y):
            return {"b": torch.tanh(x) * self.state, "a": (y - x).to(torch.int32)}

    given = {"y": torch.ones(2, 3)}
    program = torch.export.export(Network(), (torch.zeros(2, 3),), given)
    found = backend.verify(program, [X, X * 2])
    assert found.passed, str(found)
    assert found.framework == f"PyTorch {torch.__version__}"
    assert [item.dtype for item in found.results] == ["float32", "int32"]


@needs_library("tflite")
def test_a_model_of_tensorflow_lite_is_run_by_its_interpreter():
    import test_tflite

    try:
        framework = originals._interpreter()[0]
    except ImportError:
        pytest.skip("pip install ai-edge-litert")
    file = test_tflite.File()
    x, y = file.tensor((2, 3), "float32"), file.tensor((2, 3), "float32")
    file.operator("ABS", [x], [y], "AbsOptions")
    found = backend.verify(file.finish([x], [y]), [X])
    assert found.passed, str(found)
    assert found.framework == framework


# ---- The commands -------------------------------------------------------------------------------


def test_the_commands_verify(path, tmp_path):
    library, report, page = (tmp_path / name for name in ("m.so", "r.json", "r.html"))
    np.savez(tmp_path / "x.npz", x=X)
    code, text, errors = run_command(
        *("compile", path, "--verify", "-o", library, "--report", report),
        *("--inputs", tmp_path / "x.npz"),
    )
    assert code == 0, errors
    assert "verified against " in text.splitlines()[-1]
    assert "(inputs of x.npz)" in text
    assert library.is_file()
    found = Report.from_json(report.read_text()).verification
    assert found.passed
    assert [item.shape for item in found.results] == [(2, 3), (2,)]

    code, text, errors = run_command("report", path, "--verify", "--seed", 3, "--html", page)
    assert code == 0, errors
    assert text.splitlines()[-1].endswith("(random inputs, seed 3)")
    assert "verified against " in page.read_text()

    code, text, errors = run_command("run", path, "--verify", "--json")
    assert code == 0, errors
    assert json.loads(text)["verification"]["passed"] is True
    assert run_command("run", path, "--verify")[1].splitlines()[-1].startswith("verified against ")


def test_a_bar_has_as_many_steps_as_there_are(path, tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(Steps, "begin", lambda bar, text, *_, **how: begun.append((bar, text)))
    library = tmp_path / "m.so"
    for arguments, last in (
        (["compile", path, "-o", library], f"writing {library}"),
        (["compile", path, "-o", library, "--verify"], "verifying"),
        (["report", path], "partitioning"),
        (["report", path, "--verify"], "verifying"),
        (["run", path], "running"),
        (["run", path, "--verify"], "verifying"),
        (["run", library], "running"),
        (["profile", library], "profiling"),
    ):
        begun.clear()
        assert run_command(*arguments)[0] == 0, arguments
        assert (begun[-1][0].count, begun[-1][1]) == (len(begun), last), arguments


def test_a_difference_is_a_failure(path, tmp_path, monkeypatch):
    original_of = originals.original_of

    def wrong(model):
        found = original_of(model)
        return replace(found, execute=lambda inputs: [found.run(inputs)[0] + 1, np.zeros(2, int)])

    monkeypatch.setattr(originals, "original_of", wrong)
    library, report = tmp_path / "m.so", tmp_path / "r.json"
    code, _, errors = run_command("compile", path, "--verify", "-o", library, "--report", report)
    assert code == 1
    assert errors.startswith(f"FAILED: {library} is not written: the results differ from those of ")
    assert "'s' is wrong in 6 of 6 elements" in errors
    assert not library.exists()
    assert not Report.from_json(report.read_text()).verification.passed

    for command in (["report"], ["run"], ["report", "--json"], ["run", "--json"]):
        code, text, errors = run_command(command[0], path, "--verify", *command[1:])
        assert code == 1
        assert errors.startswith("FAILED: the results differ from those of ")
        if "--json" in command:
            assert json.loads(text)["verification"]["passed"] is False


def test_verify_is_refused_where_nothing_can_be_compared(path, tmp_path, monkeypatch):
    import tvm

    module = tmp_path / "model.json"
    module.write_text(tvm.ir.save_json(plain_module()))
    library = tmp_path / "m.so"
    assert run_command("compile", path, "-o", library)[0] == 0
    for arguments, told in (
        (["report", module, "--verify"], "--verify: the model is of type IRModule"),
        (["run", library, "--verify"], "which the library does not contain"),
        (["report", path, "--inputs", path], "--inputs goes with --verify"),
        (["compile", path, "--seed", 1], "--seed goes with --verify"),
        (["run", path, "--tolerance", 0.1], "--tolerance goes with --verify"),
        (["compile", path, "--verify", "--linker", "cc"], "--linker makes one for elsewhere"),
    ):
        code, _, errors = run_command(*arguments)
        assert (code, errors[:8]) == (1, "FAILED: "), arguments
        assert told in errors
    monkeypatch.setattr(originals.importlib.util, "find_spec", lambda name: None)
    code, _, errors = run_command("report", path, "--verify")
    assert code == 1
    assert "ONNX Runtime, which is not installed: pip install onnxruntime" in errors
