# SPDX-License-Identifier: Apache-2.0
"""The commands from a model file to results: compile, run, report, and compare."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.backend.ir.origins import Origin
from backend.engine.backend.models.signature import Input, Signature
from backend.engine.backend.report.report import OpPlacement, Report
from backend.engine.backend.shared.backend import BACKEND
from backend.engine.backend.shared.problem import Problem
from backend.engine.workbench.commands.quantizing import read_batches
from backend.engine.workbench.comparison.comparison import compare
from support import needs, needs_library, run_command

PACKAGE = backend.__name__


def module(rows=3):
    """Compute x - y and its exponential: every host has these ops, and some backends do."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType([rows, 4], "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            difference = builder.emit(relax.op.subtract(x, y))
            exponential = builder.emit(relax.op.exp(difference))
            result = builder.emit_output(relax.Tuple([difference, exponential]))
        builder.emit_func_output(result)
    return builder.finalize()


def open_module():
    return module(tvm.tirx.Var("n", "int64"))


def save(mod, path):
    path.write_text(tvm.ir.save_json(mod))
    return path


def values(rows=3):
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((rows, 4)).astype("float32") for name in "xy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a folder with a model, its library and inputs."""
    folder = tmp_path_factory.mktemp("commands")
    save(module(), folder / "model.json")
    save(open_module(), folder / "open.json")
    np.savez(folder / "inputs.npz", **values(), labels=np.zeros(3))
    code, out, errors = run_command("compile", folder / "model.json", "-o", folder / "model.so")
    assert (code, errors) == (0, ""), out + errors
    assert "ops on the NPU" in out
    assert "inputs: x float32[3, 4], y float32[3, 4]" in out
    return folder


def check_results(path, given):
    expected = given["x"] - given["y"]
    with np.load(path) as found:
        assert list(found) == ["result_0", "result_1"]
        np.testing.assert_allclose(found["result_0"], expected, rtol=1e-6)
        np.testing.assert_allclose(found["result_1"], np.exp(expected), rtol=1e-5)


def failure(*arguments, code=1):
    """Run a command that must fail, and return its message."""
    found, out, errors = run_command(*arguments)
    assert (found, out) == (code, ""), out + errors
    assert "Traceback" not in errors
    return errors


@pytest.mark.parametrize("model", ["model.json", "model.so"])
def test_run_computes_what_numpy_does(folder, tmp_path, model):
    given = ["--inputs", folder / "inputs.npz"]
    output = tmp_path / "results.npz"
    code, out, errors = run_command("run", folder / model, *given, "--output", output)
    assert (code, errors) == (0, ""), out + errors
    check_results(output, values())
    assert "time: " in out
    # Without it, the time of a model on the host looks like the NPU's.
    assert (" ops on the NPU, " in out) == (model == "model.json")
    assert list(tmp_path.iterdir()) == [output]


def test_inputs_may_be_in_order(folder, tmp_path):
    np.savez(tmp_path / "inputs.npz", *values().values())
    output = tmp_path / "results.npz"
    arguments = ["--inputs", tmp_path / "inputs.npz", "--output", output]
    assert run_command("run", folder / "model.so", *arguments)[0] == 0
    check_results(output, values())


def test_random_inputs_depend_on_the_seed_alone(folder, tmp_path):
    found = []
    for index, seed in enumerate([1, 1, 2]):
        output = tmp_path / f"{index}.npz"
        arguments = ["--seed", seed, "--repeat", 2, "--json", "--output", output]
        code, out, _ = run_command("run", folder / "model.so", *arguments)
        assert code == 0
        about = json.loads(out)
        assert len(about["seconds"]) == 2
        assert about["results"][0] == {"name": "result_0", "dtype": "float32", "shape": [3, 4]}
        found.append(np.load(output)["result_0"])
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_symbolic_sizes_are_fixed_by_shape_or_by_the_inputs(folder, tmp_path):
    model, output = folder / "open.json", tmp_path / "results.npz"
    assert "open sizes: give --inputs FILE, or for random inputs --shape x=1,4" in failure(
        "run", model
    )
    code, out, errors = run_command("run", model, "--shape", "x=5,4", "--output", output)
    assert code == 0, out + errors
    assert np.load(output)["result_0"].shape == (5, 4)
    library = tmp_path / "open.so"
    code, out, errors = run_command("compile", model, "--output", library)
    assert code == 0, out + errors
    assert "the model's inputs are x, y" in failure("run", library, "--shape", "z=2,4")
    assert "--shape x=2,5: the input is x float32[n, 4]" in failure(
        "run", library, "--shape", "x=2,5"
    )
    np.savez(tmp_path / "inputs.npz", **values(7))
    arguments = ["--inputs", tmp_path / "inputs.npz", "--output", output]
    assert run_command("run", library, *arguments)[0] == 0
    check_results(output, values(7))
    np.savez(tmp_path / "inputs.npz", x=values(7)["x"], y=values(6)["y"])
    assert "'y' has the shape (6, 4), and the model takes (n, 4)" in failure(
        "run", library, *arguments
    )


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ("z=3,4", "--shape z=...: the model's inputs are x, y"),
        ("x=3", "--shape x=3: the input is "),
        ("x=3,5", "--shape x=3,5: the model fixes a size of 4 where 5 is given"),
    ],
)
def test_a_shape_that_does_not_fit_the_model_is_refused(folder, shape, sentence):
    assert sentence in failure("report", folder / "open.json", "--shape", shape)


@pytest.mark.parametrize("text", ["x", "x=", "=3,4", "x=3,,4", "x=3,-4", "x=0", "x=a"])
def test_the_syntax_of_a_shape_is_checked(folder, text):
    if text == "x=":
        assert "the input is " in failure("report", folder / "model.json", "--shape", text)
        return
    assert f"'{text}' is not a shape; supported: NAME=SIZES" in failure(
        "report", folder / "model.json", "--shape", text, code=2
    )


def test_a_file_that_is_not_a_model_is_refused(folder, tmp_path):
    for name in ("empty.onnx", "text.json", "text.py", "bad.pt2", "bad.tflite"):
        (tmp_path / name).write_text("[1, 2")
    for command in ("compile", "run", "report"):
        assert "There is no file " in failure(command, tmp_path / "gone.onnx")
        assert "name a regular file" in failure(command, "/dev/null")
        assert " is a folder; name a file." in failure(command, tmp_path)
        assert "is not a model that can be read; supported: .onnx, .pt2" in failure(
            command, tmp_path / "text.py"
        )
        if command == "run":
            assert "and compiled libraries, .so." in failure(command, tmp_path / "text.py")
        assert "is not a module that tvm.ir.save_json of this TVM has written" in failure(
            command, tmp_path / "text.json"
        )
    for name, package in (("empty.onnx", "onnx"), ("bad.pt2", "torch"), ("bad.tflite", "tflite")):
        why = name if find_spec(package) else f"pip install {package}"
        assert why in failure("report", tmp_path / name)
    assert not list(tmp_path.glob("*.so"))


def test_a_file_that_is_not_a_library_is_refused_before_it_is_loaded(folder, tmp_path):
    library = tmp_path / "model.so"
    whole = (folder / "model.so").read_bytes()
    for content, sentence in (
        (b"text", "is not a library"),
        (whole[:50], "is incomplete"),
        (whole[: len(whole) // 2], "is incomplete"),
    ):
        library.write_bytes(content)
        assert sentence in failure("run", library)
    assert "--strict is for compiling" in failure("run", folder / "model.so", "--strict")


@support.needs_reals
@needs("relu")
def test_a_library_of_another_backend_is_refused(tmp_path):
    x = support.variable("x", 2, 3)
    path = tmp_path / "model.so"
    module = support.build([x], lambda emit: emit(relax.op.nn.relu(x)))
    support.compile_for(module).export_library(str(path))
    name = BACKEND.encode()
    other = name[:-1] + b"_"
    path.write_bytes(path.read_bytes().replace(name, other))
    assert f"needs '{other.decode()}', which is not part of {BACKEND}" in failure("run", path)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": values()["x"]}, "has no array 'y'; the model takes: x float32[3, 4], y "),
        (
            {"x": values()["x"].astype("float64"), "y": values()["y"]},
            "'x' is float64, and the model takes float32; write array.astype('float32')",
        ),
        (
            {"x": values(2)["x"], "y": values()["y"]},
            "'x' has the shape (2, 4), and the model takes (3, 4)",
        ),
    ],
)
def test_inputs_that_do_not_fit_the_model_are_refused(folder, tmp_path, arrays, sentence):
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    output = tmp_path / "results.npz"
    for model in ("model.so", "model.json"):
        assert sentence in failure("run", folder / model, "--inputs", path, "--output", output)
    assert not output.exists()


def test_an_array_of_another_name_is_no_input(tmp_path):
    x = support.variable("x", 4)
    save(support.build([x], lambda emit: emit(relax.op.add(x, x))), tmp_path / "model.json")
    path = tmp_path / "inputs.npz"
    arguments = ("run", tmp_path / "model.json", "--inputs", path)
    np.savez(path, z=np.zeros(4, "float32"))
    assert "has no array 'x'; the model takes: x float32[4]. The file has: z." in failure(
        *arguments
    )
    np.savez(path, np.zeros(4, "float32"))
    assert run_command(*arguments)[0] == 0


@pytest.mark.parametrize("number", ["-1", "nan", "inf", "much"])
def test_a_tolerance_is_a_number_from_0_on(number, tmp_path):
    code, _, errors = run_command("run", "model.onnx", "--verify", f"--tolerance={number}")
    assert code == 2
    assert f"argument --tolerance: '{number}' is not a number from 0 on" in errors


def test_an_input_may_have_no_dimensions(tmp_path):
    x, y = support.variable("x"), support.variable("y", 4)
    added = support.build([x, y], lambda emit: emit(relax.op.add(y, x)))
    save(added, tmp_path / "model.json")
    np.savez(tmp_path / "inputs.npz", x=np.float32(2), y=np.zeros(4, "float32"))
    given = [tmp_path / "model.json", "--inputs", tmp_path / "inputs.npz"]
    code, out, errors = run_command("run", *given, "--output", tmp_path / "results.npz")
    assert (code, errors) == (0, ""), out + errors
    with np.load(tmp_path / "results.npz") as found:
        np.testing.assert_array_equal(found["result_0"], np.full(4, 2, "float32"))
    assert run_command("profile", *given)[0] == 0


def test_a_file_without_arrays_is_refused(folder, tmp_path):
    path = tmp_path / "inputs.npz"
    command = ("run", folder / "model.so", "--inputs", path)
    np.savez(path)
    assert "has no arrays; an .npz file is written by numpy.savez(" in failure(*command)
    path.write_text("x")
    assert "is no file of arrays of numbers; an .npz file is written by" in failure(*command)
    np.savez(path, x=np.array([1, None]))
    assert "is no file of arrays of numbers; an .npz file is written by" in failure(*command)


def test_an_output_that_cannot_be_written_is_reported_before_the_work(folder, tmp_path):
    for output, sentence in (
        (tmp_path / "gone" / "model.so", "There is no folder "),
        (tmp_path / "model.o", "libraries have names that end in .so"),
    ):
        assert sentence in failure("compile", folder / "model.json", "--output", output)
    assert "name a file to be written" in failure(
        "report", folder / "model.json", "--output", tmp_path
    )
    assert "files that end in .npz" in failure("run", folder / "model.so", "--output", "result")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_write_permission_is_reported(folder, tmp_path):
    tmp_path.chmod(0o500)
    assert "Nothing can be written to the folder" in failure(
        "compile", folder / "model.json", "--output", tmp_path / "model.so"
    )


def test_a_failure_leaves_the_previous_library(folder, tmp_path):
    library = tmp_path / "model.so"
    library.write_bytes(b"before")
    assert "cannot be linked" in failure(
        "compile", folder / "model.json", "--output", library, "--linker", "/bin/false"
    )
    assert library.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [library]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("strikt=1", "The option 'strikt' is not known"),
        ("strict", "'strict' sets no option; supported: NAME=VALUE"),
        ("symbol_bound=many", "The option 'symbol_bound' is 'many'; supported: a whole number"),
    ],
)
def test_a_wrong_option_is_refused(folder, option, sentence):
    assert sentence in failure("compile", folder / "model.json", "--option", option)


def test_strict_lists_all_that_is_on_the_host(folder, tmp_path):
    arguments = ["compile", folder / "model.json", "--output", tmp_path / "model.so"]
    arguments += ["--keep-on-host", "*", "--strict"]
    errors = failure(*arguments)
    for op in ("relax.subtract", "relax.exp"):
        assert op in errors
    assert list(tmp_path.iterdir()) == []
    code, out, errors = run_command(*arguments, "--strict-except", "*")
    assert code == 0, out + errors
    code, out, errors = run_command("run", tmp_path / "model.so")
    assert code == 0, out + errors


def test_a_target_that_tvm_does_not_know_is_refused_before_the_work(folder, tmp_path):
    for command in ("compile", "report"):
        why = failure(command, folder / "model.json", "--target", "bogus")
        assert "--target bogus: " in why and '"bogus" is not defined' in why


def test_the_page_has_the_name_of_the_model(folder, tmp_path):
    page = tmp_path / "page.html"
    assert run_command("report", folder / "model.json", "--html", page)[0] == 0
    assert "<title>model.json - " in page.read_text(encoding="utf-8")


def test_report_prints_and_writes_the_same(folder, tmp_path):
    path = tmp_path / "report.json"
    code, out, _ = run_command("report", folder / "model.json", "--json", "--output", path)
    assert code == 0
    assert out.strip() == path.read_text()
    report = Report.from_json(out)
    assert [op.op for op in report.ops] == ["relax.subtract", "relax.exp"]
    for more in ((), ("--all",)):
        code, out, _ = run_command("report", folder / "model.json", *more)
        assert out.strip() == str(report)


def test_quantize_needs_a_model_of_onnx_or_pytorch(folder):
    inputs = folder / "inputs.npz"
    assert "supported are models of ONNX and PyTorch" in failure(
        "compile", folder / "model.json", "--quantize", inputs
    )
    for option, value in (("--activations", "int8"), ("--method", "entropy")):
        why = failure("compile", folder / "model.json", option, value)
        assert f"{option} goes with --quantize FILE" in why
    assert "it goes with --quantize" in failure(
        "report", folder / "model.json", "--accuracy", folder / "accuracy.json"
    )


def test_each_command_has_help():
    code, out, _ = run_command("--help")
    names = re.findall(r"^    (\w+)\b", out, re.MULTILINE)
    assert code == 0 and {"compile", "report", "conformance"} <= {*names}
    for name in names:
        code, out, _ = run_command(name, "--help")
        assert code == 0 and f"{name} [-h]" in out, name


def test_json_of_options_and_check():
    code, out, _ = run_command("options", "--json")
    assert code == 0
    found = {option["name"]: option["default"] for option in json.loads(out)}
    assert found == {
        name: value for name, value in backend.Options().to_dict().items() if name != "overrides"
    }
    code, out, _ = run_command("check", "--json")
    assert code == 0
    assert json.loads(out)["ok"] is True


@pytest.mark.thorough
def test_a_board_runs_libraries_and_says_that_it_does_not_compile(folder):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", PACKAGE, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        )

    result = run("run", folder / "model.so", "--inputs", folder / "inputs.npz")
    assert (result.returncode, result.stderr) == (0, "")
    assert "result_1: float32[3, 4]" in result.stdout
    for arguments in (["compile", folder / "model.json"], ["run", folder / "model.json"]):
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (1, "")
        assert (
            "compiler, and only the runtime is here: TVM_USE_RUNTIME_LIB is set: unset it"
            in result.stderr
        )


# ---- ONNX ---------------------------------------------------------------------------------------


def onnx_file(path):
    """Make a matmul with a symbolic batch, and a reshape computed from the shape."""
    from onnx import numpy_helper, parser, save_model

    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 17]>
        g (float[batch, 2, 16] image) => (float[batch, 8] scores) {
            sizes = Shape <end = 1> (image)
            shape = Concat <axis = 0> (sizes, rest)
            flat = Reshape (image, shape)
            scores = MatMul (flat, weight)
        }""")
    weight = np.random.default_rng(1).standard_normal((32, 8)).astype("float32")
    for name, value in (("rest", np.array([32])), ("weight", weight)):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    save_model(model, path)
    return weight


@needs_library("onnx")
@pytest.mark.parametrize("shapes", [[], ["--shape", "image=3,2,16"]])
def test_an_onnx_file_runs_with_a_symbolic_or_a_given_batch(tmp_path, shapes):
    weight = onnx_file(tmp_path / "model.onnx")
    image = np.random.default_rng(2).standard_normal((3, 2, 16)).astype("float32")
    np.savez(tmp_path / "inputs.npz", image=image)
    output = tmp_path / "results.npz"
    arguments = ["--inputs", tmp_path / "inputs.npz", "--output", output, *shapes]
    code, out, errors = run_command("run", tmp_path / "model.onnx", *arguments)
    assert code == 0, out + errors
    np.testing.assert_allclose(
        np.load(output)["scores"], image.reshape(3, 32) @ weight, rtol=1e-4, atol=1e-5
    )


@needs_library("onnx")
def test_a_given_batch_is_folded_into_an_onnx_model(tmp_path):
    onnx_file(tmp_path / "model.onnx")
    arguments = ["report", tmp_path / "model.onnx", "--json"]
    code, out, errors = run_command(*arguments, "--shape", "image=3,2,16")
    assert code == 0, errors
    assert [op.op for op in Report.from_json(out).ops if not op.bookkeeping] == [
        "relax.reshape",
        "relax.matmul",
    ]
    for shape, sentence in (
        ("image=3,2,17", "the model fixes a size of 16 where 17 is given"),
        ("image=3,32", "the input 'image' has 3 dimensions, not 2"),
        ("images=3,2,16", "the model's inputs are image"),
    ):
        assert sentence in failure(*arguments, "--shape", shape)


@needs_library("onnx")
def test_open_sizes_without_a_name_are_given_each_on_their_own(tmp_path):
    from onnx import parser, save_model

    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 17]>
        g (float[?, ?, 4] x) => (float[a, b] y) {
            sizes = Shape (x)
            same = Identity (sizes)
            zero = Constant <value_int = 0> ()
            axes = Constant <value_ints = [0]> ()
            rest = Constant <value_ints = [-1]> ()
            first = Gather (same, zero)
            row = Unsqueeze (first, axes)
            flat = Concat <axis = 0> (row, rest)
            y = Reshape (x, flat)
        }""")
    for item in model.graph.input[0].type.tensor_type.shape.dim[:2]:
        item.dim_param = "?"
    save_model(model, tmp_path / "model.onnx")
    arguments = ["report", tmp_path / "model.onnx", "--json", "--shape", "x=2,3,4"]
    code, out, errors = run_command(*arguments)
    assert code == 0, errors
    assert [op.op for op in Report.from_json(out).ops if not op.bookkeeping] == ["relax.reshape"]


@needs_library("onnx")
def test_an_operator_that_tvm_does_not_import_is_named(tmp_path):
    import onnx

    head = '<ir_version: 8, opset_import: ["" : 17]>'
    text = "g (float[3] x) => (float[3] y) { z = Celu(x) w = acme.MyOp(z) y = Bernoulli(w) }"
    model = onnx.parser.parse_model(head.replace("17]", '17, "acme" : 1]') + text)
    model.graph.node[1].name = "author_custom"
    onnx.save(model, tmp_path / "model.onnx")
    why = (
        "TVM's importer does not know the operators of the nodes 'z' (Celu), 'author_custom' "
        "(acme.MyOp), 'y' (Bernoulli). Export the model with others"
    )
    assert why in failure("report", tmp_path / "model.onnx")


@needs_library("onnx")
def test_a_node_that_tvm_cannot_read_is_named(tmp_path):
    import onnx

    head = '<ir_version: 8, opset_import: ["" : 17]>'
    text = "g (float[3] x, int64[1] n) => (float[m] y) { y = Expand(x, n) }"
    model = onnx.parser.parse_model(head + text)
    model.graph.node[0].name, model.graph.node[0].op_type = "/head/Resize", "Resize"
    onnx.save(model, tmp_path / "model.onnx")
    why = failure("report", tmp_path / "model.onnx")
    assert "model.onnx cannot be imported: ONNX node '/head/Resize' (Resize): " in why


def needs_integers(test):
    reason = support.lacks_integers("matmul")
    test = pytest.mark.skipif(reason is not None, reason=str(reason))(test)
    return support.needs("matmul", "quantize", "dequantize")(test)


@needs_integers
@needs_library("onnx", "onnxruntime")
@pytest.mark.usefixtures("bound_constants")
def test_an_onnx_file_is_quantized_on_the_way(tmp_path):
    weight = onnx_file(tmp_path / "model.onnx")
    images = np.cumsum(np.random.default_rng(3).standard_normal((24, 2, 16)), 2).astype("float32")
    np.savez(tmp_path / "images.npz", image=images)
    model, library = tmp_path / "model.onnx", tmp_path / "model.so"
    quantize = ["--quantize", tmp_path / "images.npz"]
    code, out, errors = run_command("compile", model, *quantize, "-o", library)
    assert (code, errors) == (0, ""), out + errors
    np.savez(tmp_path / "inputs.npz", image=images[:5])
    output = tmp_path / "results.npz"
    arguments = ["--inputs", tmp_path / "inputs.npz", "--output", output]
    assert run_command("run", library, *arguments)[0] == 0
    expected = images[:5].reshape(5, 32) @ weight
    error = np.abs(np.load(output)["scores"] - expected).max()
    assert 0 < error < 0.05 * np.abs(expected).max()
    accuracy = tmp_path / "accuracy.json"
    arguments = ["report", model, *quantize, "--shape", "image=3,2,16", "--json"]
    code, out, errors = run_command(*arguments, "--accuracy", accuracy)
    assert code == 0, errors
    (matmul,) = [op for op in Report.from_json(out).ops if op.op == "relax.matmul"]
    assert "int8" in matmul.runs_in
    assert backend.AccuracyReport.from_json(accuracy.read_text()).outputs[0].snr_db > 25
    report = tmp_path / "report.json"
    report.write_text(out)
    compared = run_command("compare", report, report, "--accuracy", accuracy, accuracy, "--json")
    assert compared[0] == 0 and json.loads(compared[1])["changes"] == []
    np.savez(tmp_path / "images.npz", image=images[:2])
    assert "'image' has 2 samples, and the model takes 3 in a batch" in failure(*arguments)


@needs_library("torch")
def test_a_program_of_bfloat16_gets_another_type(tmp_path):
    import torch

    network = torch.nn.Linear(4, 3).bfloat16().eval()
    program = torch.export.export(network, (torch.zeros(2, 4, dtype=torch.bfloat16),))
    torch.export.save(program, tmp_path / "model.pt2")
    for given, dtype in (([], "float32"), (["--bfloat16", "float16"], "float16")):
        output = tmp_path / "results.npz"
        arguments = ["run", tmp_path / "model.pt2", *given, "--verify", "--output", output]
        code, out, errors = run_command(*arguments)
        assert code == 0, out + errors
        (result,) = np.load(output).values()
        assert (result.dtype, result.shape) == (dtype, (2, 3))
    onnx = ("run", tmp_path / "model.onnx", "--bfloat16", "float16")
    (tmp_path / "model.onnx").write_bytes(b"")
    assert "model.onnx" in failure(*onnx)


@needs_library("torch")
def test_a_program_of_pytorch_runs_with_a_given_batch(tmp_path):
    import torch

    network = torch.nn.Linear(4, 3).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(network, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    x = values(5)["x"]
    np.savez(tmp_path / "inputs.npz", x)
    output = tmp_path / "results.npz"
    arguments = ["--inputs", tmp_path / "inputs.npz", "--output", output]
    for shapes in ([], ["--shape", "input=5,4"]):
        code, out, errors = run_command("run", tmp_path / "model.pt2", *arguments, *shapes)
        assert code == 0, out + errors
        (result,) = np.load(output).values()
        expected = network(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "given", "batches"),
    [
        ((2, 4), (7, 4), [(2, 4)] * 3),
        (("n", 4), (20, 4), [(16, 4), (4, 4)]),
        ((2, 4), (3, 2, 4), [(2, 4)] * 3),
        ((4,), (3, 4), [(4,)] * 3),
    ],
)
def test_calibration_data_becomes_batches(tmp_path, shape, given, batches):
    signature = Signature((Input("x", "float32", shape),))
    array = np.arange(np.prod(given), dtype="float32").reshape(given)
    np.savez(tmp_path / "data.npz", x=array)
    found = [batch["x"] for batch in read_batches(tmp_path / "data.npz", signature)]
    assert [item.shape for item in found] == batches
    joined = np.concatenate([item.reshape(-1) for item in found])
    assert np.array_equal(joined, array.reshape(-1)[: joined.size])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": (1, 4), "y": (2, 4)}, "'x' has 1 samples, and the model takes 2 in a batch"),
        ({"x": (4, 4), "y": (2, 4)}, "different numbers of batches: 2 of 'x', 1 of 'y'"),
        ({"x": (4,), "y": (2, 4)}, "'x' has the shape (4,), and the model takes x float32[2, 4]"),
        ({"x": (2, 4)}, "has no array 'y'"),
    ],
)
def test_calibration_data_that_does_not_fit_the_model_is_refused(tmp_path, arrays, sentence):
    signature = Signature(tuple(Input(name, "float32", (2, 4)) for name in "xy"))
    path = tmp_path / "data.npz"
    np.savez(path, **{name: np.zeros(shape, "float32") for name, shape in arrays.items()})
    with pytest.raises(Problem) as error:
        read_batches(path, signature)
    assert sentence in str(error.value)


# ---- The comparison -----------------------------------------------------------------------------


def placement(name, op="relax.exp", where="npu", **more):
    return OpPlacement("main", f"lv{name}", op, where, Origin(name) if name else None, **more)


def test_ops_are_compared_by_their_names():
    before = Report(
        (placement("a"), placement("b", runs_in="float32"), placement("c"), placement(""))
    )
    after = Report(
        (
            placement("new"),
            placement("c", where="host", code="dtype", reason="it is too wide"),
            placement("b", runs_in="int8"),
            placement(""),
        )
    )
    found = compare(before, after)
    assert [
        (item.kind, item.name, item.before, item.after, item.worse) for item in found.changes
    ] == [
        ("added", "new", None, "npu", False),
        ("placement", "c", "npu", "host", True),
        ("type", "b", "float32", "int8", False),
        ("removed", "a", "npu", None, False),
    ]
    assert [item.name for item in found.worse] == ["c"]
    assert "[dtype] it is too wide" in str(found)
    assert json.loads(found.to_json()) == found.to_dict()
    assert compare(before, before).changes == ()
    assert "Nothing differs." in str(compare(before, before))


def test_an_op_is_compared_with_the_one_that_stands_for_it():
    relu = placement("/act/Relu", "relax.nn.relu", runs_in="float32")
    whole = replace(
        placement("q", "relax.quantize", runs_in="int8"), origin=Origin("q", others=("/act/Relu",))
    )
    found = compare(Report((relu,)), Report((whole,)))
    assert [(item.kind, item.name, item.op, item.before, item.after) for item in found.changes] == [
        ("added", "q", "relax.quantize", None, "npu"),
        ("type", "/act/Relu", "relax.nn.relu", "float32", "int8"),
    ]
    found = compare(Report((whole,)), Report((relu,)))
    assert [(item.kind, item.name) for item in found.changes] == [
        ("type", "/act/Relu"),
        ("removed", "q"),
    ]
    moved = replace(whole, placement="host", code="dtype", reason="it is too wide")
    (change,) = compare(Report((relu,)), Report((moved,))).worse
    assert (change.kind, change.name, change.after) == ("placement", "/act/Relu", "host")


def test_times_and_accuracy_are_compared_beyond_what_clocks_and_rounding_change():
    report = Report((placement("a"),))
    times = ({"a": 100.0, "b": 100.0, "c": 100.0, "d": 1.0}, {"a": 105.0, "b": 120.0, "c": 50.0})
    found = compare(report, report, times)
    assert [
        (item.kind, item.name, item.before, item.after, item.worse) for item in found.changes
    ] == [
        ("time", "b", 100.0, 120.0, True),
        ("time", "c", 100.0, 50.0, False),
    ]
    assert "1.20 times as long" in str(found)
    assert "100.0 us" in str(found)

    def accuracy(*ratios, output):
        layers = (
            backend.LayerAccuracy(ratio, 1.0, 0.0, name=str(index), float_name=f"layer{index}")
            for index, ratio in enumerate(ratios)
        )
        return backend.AccuracyReport(tuple(layers), (backend.Accuracy(output, 1.0, 0.0),))

    both = (
        accuracy(40.0, 40.0, 40.0, np.inf, np.inf, output=30.0),
        accuracy(40.5, 35.0, 45.0, np.inf, 50.0, output=20.0),
    )
    found = compare(report, report, accuracies=both)
    assert [(item.name, item.worse) for item in found.changes] == [
        ("layer1", True),
        ("layer2", False),
        ("layer4", True),
        ("output 0", True),
    ]
    assert json.loads(found.to_json())["changes"][2]["before"] == "inf"


def test_a_profile_of_a_library_has_the_names_of_its_report(folder, tmp_path):
    library, known, written = (tmp_path / name for name in ("m.so", "report.json", "profile.json"))
    arguments = [folder / "model.json", "--output", library, "--report", known]
    assert run_command("compile", *arguments)[0] == 0
    profiled = ["profile", library, "--report", known]
    trace = tmp_path / "trace.json"
    assert run_command(*profiled, "--output", written, "--trace", trace, "--all")[0] == 0
    assert json.loads(trace.read_text())["traceEvents"]
    regions = [item["symbol"] for item in json.loads(known.read_text())["regions"]]
    assert [item["symbol"] for item in json.loads(written.read_text())["regions"]] == regions
    why = failure("profile", folder / "model.json", "--report", known)
    assert "--report goes with a library" in why
    data = json.loads(known.read_text())
    known.write_text(json.dumps({**data, "regions": [], "ops": []}))
    if regions:
        why = failure(*profiled)
        assert f"{known} is not the report of {library}: the profile has the region" in why
        page = tmp_path / "page.html"
        other = json.loads(written.read_text())
        other["regions"][0]["symbol"] = "another"
        written.write_text(json.dumps(other))
        arguments = [folder / "model.json", "--profile", written, "--html", page]
        assert "The profile is of another model than the report: the" in failure(
            "report", *arguments
        )
        assert not page.exists()


@pytest.mark.parametrize("command", ["run", "profile"])
def test_inputs_are_looked_at_before_the_model_is_compiled(command, folder, tmp_path, monkeypatch):
    from backend.engine.backend.commands import compiling

    monkeypatch.setattr(compiling, "compile_prepared", lambda *_: pytest.fail("compiles"))
    model, path = folder / "model.json", tmp_path / "inputs.npz"
    assert f"There is no file {path}." in failure(command, model, "--inputs", path)
    np.savez(path, x=np.zeros((3, 4), "float32"), y=np.zeros((1, 4), "float32"))
    assert "'y' has the shape (1, 4)" in failure(command, model, "--inputs", path)


@pytest.mark.parametrize("command", ["report", "profile"])
def test_a_file_has_a_name(command, folder):
    why = failure(command, folder / "model.json", "--output", "-")
    assert "'-' is not a file: name one. --json prints on standard output." in why


def test_the_time_of_a_single_repetition_is_no_median(folder):
    code, out, _ = run_command("run", folder / "model.so", "--repeat", 2)
    assert code == 0 and re.search(r"time: [\d.]+ ms, of the second call; the first took", out)


def test_compare_reports_what_moved(folder, tmp_path):
    files = [tmp_path / name for name in ("before.json", "after.json")]
    for path, more in zip(files, ([], ["--keep-on-host", "exp"]), strict=True):
        assert run_command("report", folder / "model.json", "--output", path, *more)[0] == 0
    before, after = (Report.from_json(path.read_text()) for path in files)
    moved = [op.op for op in before.offloaded if op.op == "relax.exp"]
    code, out, _ = run_command("compare", *files, "--json", "--fail-if-worse")
    data = json.loads(out)
    assert [item["op"] for item in data["changes"] if item["kind"] == "placement"] == moved
    assert code == (1 if moved else 0)
    assert (data["before"], data["after"]) == (before.summary, after.summary)
    profile = tmp_path / "profile.json"
    assert run_command("profile", folder / "model.json", "--output", profile)[0] == 0
    times = ["--profiles", profile, profile, "--fail-if-worse"]
    assert run_command("compare", files[0], files[0], *times)[0] == 0
    files[0].write_text("{}")
    assert "The report has the version None" in failure("compare", *files)
    why = failure("compare", files[1], files[1], "--profiles", files[1], files[1])
    sentence = f"{files[1]} is not a profile that 'profile --output' has written; it is a report."
    assert sentence in why
    why = failure("compare", profile, files[1])
    assert f"{profile} is not a report that 'report --output' has written; it is a profile." in why
    why = failure("compare", files[1], files[1], "--accuracy", files[1], files[1])
    assert f"{files[1]} is not an accuracy report that 'report --accuracy' has written" in why
    why = failure("report", folder / "model.json", "--output", tmp_path / "page.html")
    assert f"--html {tmp_path / 'page.html'} writes the page" in why
    files[0].write_text("no JSON")
    assert "is not a report that 'report --output' has written" in failure("compare", *files)
