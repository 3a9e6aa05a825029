# SPDX-License-Identifier: Apache-2.0
"""Parts of models as standalone cases."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

import support
from backend.engine.workbench.conformance.extract import CaseFile, extract, parts
from backend.engine.workbench.conformance.files import run_case
from compiled_region import first
from support import needs, needs_symbols


@pytest.fixture(scope="module")
def model():
    """Make a region, followed by an op on the host."""
    support.skip_without_host(first())
    model = first().model()
    on_host = model.bind(relax.op.nonzero(model.outputs[0].expr))  # It takes any type.
    model.outputs.append(support.Tensor(on_host, {}))
    return model


def test_each_part_of_a_model_stands_alone_and_passes(model, tmp_path):
    module = tvm.IRModule({"main": model.function()})
    inputs = [argument.values[1] for argument in model.arguments]
    found = parts(module)
    assert len(found) == 2
    assert {name.partition(".")[2] for name in found} == {"", "composite0"}
    for name in found:
        case = extract(module, inputs, name)
        for mine, right in zip(case.expected, model.outputs, strict=False):
            np.testing.assert_allclose(mine, right.values[1], rtol=2e-3, atol=2e-3)
        path = tmp_path / f"{name}.npz"
        case.save(path)
        loaded = CaseFile.load(path)
        assert loaded.name == name
        tvm.ir.assert_structural_equal(loaded.mod, case.mod)
        outcome = run_case(str(path), loaded)
        assert outcome.status == "passed", outcome.reason


def test_a_case_with_other_results_fails(model, tmp_path):
    module = tvm.IRModule({"main": model.function()})
    inputs = [argument.values[1] for argument in model.arguments]
    case = extract(module, inputs, next(iter(parts(module))))
    # Far from any number of any type.
    wrong = tuple(
        np.where(np.abs(array.astype("float64")) < 1, 2, 0).astype(array.dtype)
        for array in case.expected
    )
    outcome = run_case("wrong", CaseFile("wrong", case.mod, case.inputs, wrong))
    assert outcome.status == "failed"
    assert "elements" in outcome.reason
    outcome = run_case("misplaced", CaseFile("m", case.mod, case.inputs, case.expected, "none"))
    assert outcome.status == "failed"
    assert "all of it is on the NPU" in outcome.reason


def test_an_invalid_case_file_or_part_is_an_error(model, tmp_path):
    path = tmp_path / "case.npz"
    with pytest.raises(ValueError, match=r"there is no file .*case\.npz"):
        CaseFile.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="case.npz is not a case file, as 'extract' writes them"):
        CaseFile.load(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(ValueError, match="case.npz is not a case file, as 'extract' writes them"):
        CaseFile.load(path)
    for fields, text in (
        ({"format_version": 0}, "of format version 0, and this package reads 1"),
        ({"format_version": 1, "module": "{}"}, "is a case file that is damaged"),
        ({"format_version": 1, "module": 3}, "is a case file that is damaged"),
        ([], "is not a case file, as 'extract' writes them"),
    ):
        np.savez(path, about=np.frombuffer(json.dumps(fields).encode(), np.uint8))
        with pytest.raises(ValueError, match=text):
            CaseFile.load(path)
    module = tvm.IRModule({"main": model.function()})
    with pytest.raises(ValueError, match=r"no part 'nowhere'; there are .*_0"):
        extract(module, [], "nowhere")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder in which commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder, tmp_path):
    """Run a command of the package in a folder with a model; return its exit code and last line."""
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 3], "float32"))
    y = relax.Var("y", relax.TensorType([n, 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.acosh(relax.op.add(x, y))))
        builder.emit_func_output(result)
    (tmp_path / "model.json").write_text(tvm.ir.save_json(builder.get()))

    def run(*arguments):
        code, out, errors = support.run_command(*arguments)
        return code, (out + errors).splitlines()[-1]

    return run


@support.needs_reals
def test_a_part_that_cannot_be_extracted_is_reported_in_a_sentence(command, tmp_path):
    (tmp_path / "text").write_text("nothing of the kind")
    (tmp_path / "text.onnx").write_text("nothing of the kind")
    (tmp_path / "deep").write_text("[" * 100_000)
    good = np.zeros((2, 3), "float32")
    np.savez("one.npz", x=good)
    np.savez("rank.npz", x=good[0], y=good)
    np.savez("size.npz", x=good, y=np.zeros((4, 3), "float32"))
    np.savez("dtype.npz", x=good, y=good.astype("float64"))
    np.savez("objects.npz", x=np.array([None]), y=good)
    np.save("array.npy", good)
    model = ("model.json", "--part", "any")
    for arguments, sentence in (
        (("none",), "There is no file none"),
        (("x" * 300,), "There is no file xxx"),
        (("\x1b[31m",), r"There is no file \x1b[31m"),
        ((".",), ". is a folder"),
        (("deep",), "deep is not a module that"),
        (("text",), "text is not a module that tvm.ir.save_json of this TVM has written"),
        (("text.onnx",), "ONNX model"),
        (model, "the size of 'x' is open: give --shape x=n,3 with numbers for names, or the"),
        ((*model, "--shape", "z=2,3"), "--shape z=...: the model's inputs are x, y."),
        ((*model, "--shape", "x=2,4"), "the model fixes a size of 3 where 4 is given"),
        ((*model, "--shape", "x=2,3", "--shape", "y=4,3"), "'n' is 2 in another place, and 4 here"),
        ((*model, "--function", "f"), "the model has no function 'f'; it has main"),
        ((*model, "--inputs", "none"), "there is no file none"),
        ((*model, "--inputs", "text"), "text is not a file of arrays, as numpy.savez writes them"),
        ((*model, "--inputs", "array.npy"), "array.npy is not a file of arrays"),
        ((*model, "--inputs", "objects.npz"), "objects.npz is not a file of arrays"),
        ((*model, "--inputs", "one.npz"), "there are 1 arrays for 2 inputs"),
        (
            (*model, "--inputs", "rank.npz"),
            "rank.npz does not suit the model: its array for 'x' is float32 of shape [3], and the "
            "input is float32 of shape [n, 3]",
        ),
        (
            (*model, "--inputs", "size.npz"),
            "float32 of shape [4, 3], and the input is float32 of shape [2, 3]",
        ),
        (
            (*model, "--inputs", "dtype.npz"),
            "float64 of shape [2, 3], and the input is float32 of shape [2, 3]",
        ),
    ):
        code, line = command("extract", *arguments)
        assert code == 1
        assert line.startswith("FAILED: ")
        assert sentence in line


@support.needs_reals
@needs("add", "multiply")
@needs_symbols
@pytest.mark.parametrize("sizes", [(), ("--shape", "x=5,3", "--shape", "y=5,3")])
@pytest.mark.parametrize("given", [False, True])
def test_a_part_of_open_sizes_stands_alone(folder, given, sizes):
    """The model has two regions, the first with two composites; the second may be given 3 * n."""
    n = tvm.tirx.Var("n", "int64")
    x, y = (relax.Var(name, relax.TensorType([n, 3], "float32")) for name in "xy")

    def body(emit):
        total = emit(relax.op.add(x, y))
        value = emit(relax.op.multiply(total, y))
        value = value if given else emit(relax.op.acosh(value))
        # The op itself states the size 3 * n, which no input has.
        flat = emit(relax.op.reshape(value, relax.ShapeExpr([n * 3])))
        flat = emit(relax.op.acosh(flat)) if given else flat
        return emit(relax.op.add(flat, flat))

    module = support.build([x, y], body)
    (folder / "open.json").write_text(tvm.ir.save_json(module))
    values = {name: np.full((5, 3), start, "float32") for name, start in (("x", 2), ("y", 3))}
    np.savez("values.npz", **values)
    found = parts(module)
    wholes = [name for name in found if "." not in name]
    assert len(wholes) == 2
    listed = json.loads(support.run_command("extract", "open.json", *sizes, "--json")[1])["parts"]
    assert list(listed) == list(found)
    for name in found:
        arguments = ("--part", name, "--inputs", "values.npz", "--output", "case.npz", *sizes)
        assert support.run_command("extract", "open.json", *arguments)[0] == 0
        case = CaseFile.load(folder / "case.npz")
        relax.analysis.well_formed(case.mod)  # Raises if not.
        is_open = bool(relax.analysis.defined_symbolic_vars(case.mod["main"]))
        # The sum gets its size as an argument, to which the case gives a value.
        assert is_open == (not sizes) or (not is_open and name.startswith(wholes[1]))
        outcome = run_case("case", case)
        assert outcome.status == "passed", outcome.reason
        if name == wholes[0]:
            found_here = case.expected[0].reshape(5, 3)
            np.testing.assert_allclose(found_here, np.full((5, 3), 15.0), rtol=1e-3)
        if name == wholes[1]:
            np.testing.assert_allclose(case.expected[0], np.full(15, 2 * np.arccosh(15)), rtol=1e-3)


@support.needs_reals
def test_a_model_of_which_nothing_is_on_the_npu_has_no_parts(folder):
    x = support.variable("x", 2, 3)
    module = support.build([x], lambda emit: emit(relax.op.acosh(x)))
    (folder / "host.json").write_text(tvm.ir.save_json(module))
    code, out, errors = support.run_command("extract", "host.json")
    assert (code, out, errors) == (
        1,
        "",
        "FAILED: Nothing of host.json is on the NPU, so there is no part to cut out; the command "
        "'report' says why.\n",
    )
    code, out, errors = support.run_command("extract", "host.json", "--json")
    assert (code, json.loads(out)) == (1, {"parts": {}})
    assert errors.startswith("FAILED: Nothing of host.json")


@support.needs_reals
@needs("take")
def test_made_up_indices_are_inside_of_the_data(command, tmp_path):
    x, rows = support.variable("x", 4, 3), support.variable("rows", 5, dtype="int64")
    taken = relax.op.take(x, rows, axis=0)
    module = support.build([x, rows], lambda emit: emit(taken))
    (tmp_path / "take.json").write_text(tvm.ir.save_json(module))
    (part, *_) = parts(module)
    code, _ = command("extract", "take.json", "--part", part, "--output", "case.npz")
    assert code == 0
    assert set(CaseFile.load(tmp_path / "case.npz").inputs[1]) <= {0, 1}


@support.needs_reals
def test_a_case_that_was_changed_is_refused(model, tmp_path):
    module = tvm.IRModule({"main": model.function()})
    inputs = [argument.values[1] for argument in model.arguments]
    case = extract(module, inputs, next(iter(parts(module))))
    path = tmp_path / "case.npz"
    for change, sentence in (
        ({"inputs": case.inputs[1:]}, r"arrays for \d+ input"),
        ({"inputs": tuple(array.astype("int8") for array in case.inputs)}, "is int8 of shape"),
        ({"inputs": tuple(array[None] for array in case.inputs)}, "and the input is"),
        ({"expected": ()}, "it has no results"),
        ({"placement": "most"}, "its placement is 'most', and not all or some or none"),
    ):
        replace(case, **change).save(path)
        with pytest.raises(ValueError, match=f"is a case file that was changed: .*{sentence}"):
            CaseFile.load(path)


@support.needs_reals
def test_a_case_that_is_given_twice_runs_once(command, tmp_path):
    ones = np.ones((2, 3), "float32")
    module = tvm.ir.load_json((tmp_path / "model.json").read_text())
    CaseFile("c", module, (ones, ones), (np.arccosh(2 * ones),), "").save(tmp_path / "case.npz")
    code, line = command("conformance", "case.npz", "case.npz", "--jobs", "0")
    assert (code, "in 1 cases" in line) == (0, True), line


@support.needs_reals
def test_a_file_that_is_not_a_case_is_refused(command, tmp_path):
    (tmp_path / "text").write_text("nothing of the kind")
    for arguments in (("text",), ("text", "--list")):
        code, line = command("conformance", *arguments)
        assert (code, line) == (
            2,
            "FAILED: text is not a case file, as 'extract' writes them",
        )


@needs("quantize")
def test_a_case_file_says_how_many_steps_its_integers_may_be_off(tmp_path):
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    zero = relax.const(np.int8(3))
    call = relax.op.quantize(x, relax.const(np.float32(0.5)), zero, -1, "int8")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    numbers = np.linspace(-3.1, 4.1, 8, dtype="float32").reshape(2, 4)
    right = np.rint(numbers / np.float32(0.5)).astype("int8") + np.int8(3)
    for off, steps, status in ((0, 0, "passed"), (1, 0, "failed"), (1, 1, "passed")):
        case = CaseFile("q", builder.get(), (numbers,), (right + np.int8(off),), "", {}, steps)
        case.save(tmp_path / "case.npz")
        loaded = CaseFile.load(tmp_path / "case.npz")
        assert (loaded.steps, run_case("q", loaded).status) == (steps, status)
