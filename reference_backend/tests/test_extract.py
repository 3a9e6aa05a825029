# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""Parts of models as cases that stand alone."""

import numpy as np
import pytest
import tvm
from tvm import relax

import support
from compiled_region import FIRST_OP
from support import OPS, Case
from tvm_example_npu.conformance.extract import CaseFile, extract, parts
from tvm_example_npu.conformance.files import run_case


@pytest.fixture(scope="module")
def model():
    """A region, and behind it an op that the host computes."""
    model = Case(FIRST_OP, OPS[FIRST_OP]["cases"][0]).model()
    on_host = model.bind(relax.op.acosh(model.outputs[0].expr))
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
    wrong = tuple(array + np.ones_like(array) for array in case.expected)
    outcome = run_case("wrong", CaseFile("wrong", case.mod, case.inputs, wrong))
    assert outcome.status == "failed"
    assert "elements" in outcome.reason
    outcome = run_case("misplaced", CaseFile("m", case.mod, case.inputs, case.expected, "none"))
    assert outcome.status == "failed"
    assert "all of it is on the NPU" in outcome.reason


def test_what_is_no_case_file_or_no_part_is_an_error(model, tmp_path):
    path = tmp_path / "case.npz"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="case.npz is no case file"):
        CaseFile.load(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(ValueError, match="case.npz is no case file"):
        CaseFile.load(path)
    module = tvm.IRModule({"main": model.function()})
    with pytest.raises(ValueError, match=r"no part 'nowhere'; there are .*_0"):
        extract(module, [], "nowhere")
