"""The conformance kit on the reference backend, with other chips, and where a driver declines."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from npu_scaffold import pages
from support import (
    IN_ONE_PROCESS,
    ROOT,
    attempt,
    build_kit_driver,
    copy_tests,
    declining,
    run,
    site_packages,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_ONNX = importlib.util.find_spec("onnx") is not None
pytestmark = pytest.mark.slow


def test_the_conformance_kit_passes_with_the_results_of_the_docs(
    reference: Path, tmp_path: Path
) -> None:
    # The other cores have other tests.
    kit = ("conformance", "--jobs", "1", "--fuzz-seconds", "5", "--output", tmp_path)
    output = run(reference, "-m", "tvm_example_npu", *kit)
    assert output.splitlines()[-1].startswith("PASSED"), output
    found = pages.summarize(tmp_path / "conformance.json")["suites"]
    known = json.loads((ROOT / pages.SUMMARY).read_text())["suites"]
    # The number of graphs in a given time depends on the machine.
    suites = found.keys() - {"fuzz"}
    suites -= set() if HAS_ONNX else {"onnx_nodes"}
    suites -= set() if HAS_ONNX and HAS_TORCH else {"models"}
    for suite in sorted(suites):
        assert found[suite] == known[suite], f"{suite}: run 'npu-scaffold docs --write' again"
    if HAS_ONNX:
        cases = json.loads((tmp_path / "conformance.json").read_text())["cases"]
        _assert_strict(cases)
        _assert_read_right([case for case in cases if case["suite"] == "onnx_nodes"])


def _with_chip(reference: Path, field: str, folder: Path) -> Path:
    """Copy the package, with a field of its chip; return the folder for PYTHONPATH."""
    package = site_packages(reference) / "tvm_example_npu"
    shutil.copytree(package, folder / package.name)
    table = folder / package.name / "vendor/capabilities.py"
    before, _, rest = table.read_text().partition("CHIP = Chip(\n")
    name = field.partition("=")[0]
    fields, end, ops = rest.partition("\n)\n")
    kept = [line for line in fields.splitlines() if not line.strip().startswith(f"{name}=")]
    chip = "\n".join(["CHIP = Chip(", f"    {field},", *kept])
    table.write_text(f"{before}{chip}{end}{ops}")
    return folder


@pytest.mark.parametrize("rule", ["multiplier_bits=7", 'multiplier_bits=15, rounding="half_even"'])
def test_a_chip_that_rescales_by_another_rule_passes_the_suites_of_integers(
    reference: Path, rule: str, tmp_path: Path
) -> None:
    packages = str(_with_chip(reference, f"requantize=Requantize({rule})", tmp_path))
    command = [reference, "-m", "tvm_example_npu", "conformance", *IN_ONE_PROCESS, "--suite"]
    run(*command, "quantized", cwd=tmp_path, PYTHONPATH=packages)
    command += ["fuzz", "--filter", "integer", "--fuzz-seconds", "5"]
    run(*command, cwd=tmp_path, PYTHONPATH=packages)


def test_a_chip_of_integers_passes_the_kit_and_its_own_tests(
    reference: Path, tmp_path: Path
) -> None:
    types = 'dtypes=("int8", "uint8", "int16", "int32", "int64", "bool")'
    packages = str(_with_chip(reference, types, tmp_path / "packages"))
    command = [reference, "-m", "tvm_example_npu", "conformance", *IN_ONE_PROCESS]
    command += ["--fuzz-seconds", "5"]
    command += ["--suite", "ops,quantized,contract,fuzz", "--output", tmp_path / "result"]
    for text in ("ops/add", "ops/softmax", "ops/take", "quantized/", "contract/", "fuzz/"):
        command += ["--filter", text]
    run(*command, cwd=tmp_path, PYTHONPATH=packages)
    counts = json.loads((tmp_path / "result/conformance.json").read_text())["suites"]
    assert counts["quantized"].items() >= {"declined": 0, "not_run": 0}.items()
    # Cases of real numbers are not its own.
    assert min(counts["ops"]["passed"], counts["ops"]["not_run"]) > 10
    assert counts["ops"]["declined"] == 0
    copy_tests(ROOT / "reference_backend", tmp_path)
    names = ("backend/tests/test_integer_chips", "backend/tests/test_quantized")
    names += ("backend/tests/test_partition", "workbench/tests/test_quantize")
    files = [f"engine/{name}.py" for name in names]
    quiet = ("-q", "-p", "no:cacheprovider")
    run(reference, "-m", "pytest", *quiet, *files, cwd=tmp_path, PYTHONPATH=packages)


def test_a_driver_that_declines_all_integers_passes_and_says_so(
    reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    script = declining('any("int" in name for name in types)', "this chip has\nno integers")
    (tmp_path / "site/sitecustomize.py").write_text(script)
    command = [reference, "-m", "tvm_example_npu", "conformance", *IN_ONE_PROCESS]
    command += ["--fuzz-seconds", "5", "--suite", "ops,quantized,contract,models,fuzz"]
    for text in ("ops/quantize", "ops/add", "quantized/", "contract/", "models/", "fuzz/"):
        command += ["--filter", text]
    command += ["--output", tmp_path / "result"]
    out = run(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    result = json.loads((tmp_path / "result/conformance.json").read_text())
    counts = result["suites"]
    assert {suite: found["failed"] for suite, found in counts.items()} == dict.fromkeys(counts, 0)
    quantized = counts["quantized"]
    assert (quantized["passed"], quantized["declined"] > 500) == (0, True)
    fuzz = {case["case"]: case["status"] for case in result["cases"] if case["suite"] == "fuzz"}
    assert fuzz["random graphs"] == "passed"
    assert fuzz["integer graphs"] == "declined"
    assert re.search(r"^\d+ declined: this chip has no integers$", out, re.MULTILINE), out


STATES = {
    ("fault", ""): None,
    # Nor are states copied.
    ("fault", "copies are errors"): None,
    # Then a comparison with all places selects.
    ("lacks", "update"): None,
    # And then the host does.
    ("lacks", "update, equal"): None,
    # Who has updates needs no ops that spell them.
    ("lacks", "equal, less, select"): None,
    ("fault", "stale"): "a_cache_is_filled_to_its_last_row",
    ("fault", "one too far"): "a_cache_is_filled_to_its_last_row",
    ("fault", "update before read"): "what_a_state_was_is_read_beside_its_update",
    ("fault", "weights of another program"): "models_in_turn_have_their_own_weights",
}
"""Settings of the driver, and the case of the suite of states that then fails."""

CALLED = """
import numpy as np
import tvm
import tvm_example_npu as backend
from tvm_example_npu.engine.workbench.conformance.states import (
    CACHES, CAPACITY, WIDTH, Decoder, Expected,
)

decoder = Decoder()
machine, expected = decoder.machine(), Expected(decoder.weights)
caches = [np.zeros((CAPACITY, WIDTH), "float32") for _ in CACHES]


def call(place):
    x = np.full((1, WIDTH), (1 + place) / 8, "float32")
    inputs = [x, np.array([place]), *caches]
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    result, *after = machine["token"](*tensors)
    for tensor, array in zip(tensors, inputs, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_allclose(result.numpy(), expected.call(x, inputs[1]), rtol=1e-4)
    caches[:] = [cache.numpy() for cache in after]
    np.testing.assert_array_equal(caches, [*expected.caches.values()])
    return inputs


for place in range(3):
    inputs = call(place)
print(backend.profile(machine, *inputs, function="token"))
call(3)
print("on the host:", *sorted({op.op for op in decoder.report.on_host}))
"""


def test_a_driver_on_the_kit_updates_states_where_they_are(reference: Path, tmp_path: Path) -> None:
    device = ("-DDEVICE_STATES",)
    for folder, *switches in (
        ("binds",),
        ("copies", "-DNO_BIND"),
        ("waits", "-DCAN_WAIT"),
        ("keeps", *device),
        ("declines", *device, "-DLEAST_STATE=1000000"),
        ("forgets", *device, "-DREADS_WRITTEN=true"),
    ):
        library = tmp_path / folder / "libtvm_example_npu_driver.so"
        build_kit_driver(HERE / "states_driver.cc", library, *switches)
    setting = {"EXAMPLE_NPU_DRIVER_DIR": str(tmp_path / "binds"), "EXAMPLE_NPU_DRIVER": "vendor"}
    command = [reference, "-m", "tvm_example_npu", "conformance", *IN_ONE_PROCESS]
    command += ["--suite", "states"]
    for (option, words), failed in STATES.items():
        given = {**setting, f"EXAMPLE_NPU_{option.upper()}": words}
        if failed is None:
            assert "states: 11 passed" in run(*command, cwd=tmp_path, **given)
            continue
        names = ("to_its_last_row", "their_own_weights", "beside_its_update")
        subjects = [word for name in names for word in ("--filter", name)]
        done = attempt(*command, *subjects, cwd=tmp_path, **given)
        found = f"FAILED states/{failed}: " in done.stdout
        assert (done.returncode, found) == (1, True), done.stdout
    copies = {**setting, "EXAMPLE_NPU_DRIVER_DIR": str(tmp_path / "copies")}
    waits = {**setting, "EXAMPLE_NPU_DRIVER_DIR": str(tmp_path / "waits")}
    keeps, declines, forgets = (
        {**setting, "EXAMPLE_NPU_DRIVER_DIR": str(tmp_path / folder)}
        for folder in ("keeps", "declines", "forgets")
    )
    for given in (
        copies,
        {**waits, "EXAMPLE_NPU_FAULT": "copies are errors"},
        {**keeps, "EXAMPLE_NPU_FAULT": "states on the host are errors"},
        # Then two memories of the device take turns.
        {**keeps, "EXAMPLE_NPU_LACKS": "update"},
        {**declines, "EXAMPLE_NPU_FAULT": "copies are errors"},
    ):
        assert "states: 11 passed" in run(*command, cwd=tmp_path, **given)
    done = attempt(*command, cwd=tmp_path, **forgets)
    assert "FAILED states/a_copy_goes_its_own_way: " in done.stdout, done.stdout
    # With buffers of the caller, and around a profile: an update writes a row of 64 numbers.
    for given, updates, on_host in (
        (setting, 2, False),
        (copies, 2, False),
        (waits, 2, False),
        ({**setting, "EXAMPLE_NPU_LACKS": "update"}, 0, False),
        ({**setting, "EXAMPLE_NPU_LACKS": "update, equal"}, 0, True),
        ({**setting, "EXAMPLE_NPU_LACKS": "equal, less, select"}, 2, False),
    ):
        said = run(reference, "-c", CALLED, cwd=tmp_path, **given)
        rows = re.findall(r"^relax\.where .* dram [\d,]+ \+ 256 B$", said, re.MULTILINE)
        assert len(rows) == updates, said
        assert ("relax.equal" in said.splitlines()[-1]) == on_host, said


FORGED = """
#include <cstdio>

#include "driver_kit/program.h"
using namespace npu::kit;

Value Of(Source source, npu_dtype dtype, const Dims& dims, int64_t place) {
  Value value = {};
  value.source = source;
  value.dtype = dtype;
  value.rank = static_cast<int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), value.dims);
  value.place = place;
  return value;
}

/* An update of a state, and an input that is none. */
Program Make() {
  Program program;
  program.inputs = {Of(Source::kInput, NPU_FLOAT32, {4, 2}, 0),
                    Of(Source::kInput, NPU_FLOAT32, {1, 2}, 1),
                    Of(Source::kInput, NPU_INT64, {1}, 2),
                    Of(Source::kInput, NPU_FLOAT32, {4, 2}, 3)};
  program.values = program.inputs;
  program.values.push_back(Of(Source::kNode, NPU_FLOAT32, {4, 2}, 0));
  program.outputs = {Of(Source::kNode, NPU_FLOAT32, {4, 2}, 4)};
  Node node = MakeNode(Kind::kUpdate);
  for (int32_t i = 0; i < 3; ++i) node.inputs[i] = i;
  node.out = 4;
  program.nodes = {node};
  program.labels = {""};
  program.states = {{0, 4}};
  return program;
}

bool IsRead(const Program& program) {
  const std::vector<uint8_t> bytes = Serialize(program);
  try {
    const Program read = Parse(bytes.data(), bytes.size());
    return read.states.size() == program.states.size();
  } catch (const Failure& failure) {
    return false;
  }
}

int main() {
  if (!IsRead(Make())) return 1;
  for (const State& state : {State{3, 4}, State{1, 4}, State{4, 4}, State{0, 0}, State{0, 3},
                             State{0, 99}, State{-1, 4}}) {
    Program forged = Make();
    forged.states = {state};
    if (IsRead(forged)) return 2;
  }
  Program stored = Make();
  stored.outputs.push_back(Of(Source::kNode, NPU_FLOAT32, {4, 2}, 0));
  if (IsRead(stored)) return 3;
  Program twice = Make();
  twice.outputs.push_back(twice.outputs[0]);
  if (IsRead(twice)) return 4;
  Program grown = Make();
  grown.outputs[0].groups = 1;
  if (IsRead(grown)) return 6;
  grown = Make();
  grown.inputs[0].groups = 1;
  if (IsRead(grown)) return 7;
  Program seen = Make();
  seen.values.push_back(Of(Source::kInput, NPU_FLOAT32, {8}, 0));
  seen.outputs.push_back(Of(Source::kNode, NPU_FLOAT32, {8}, 5));
  if (IsRead(seen)) return 8;
  Program shifted = Make();
  shifted.nodes[0].update.axis = 1;
  if (IsRead(shifted)) return 5;
  std::puts("refused");
}
"""


def test_forged_states_of_the_driver_kit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "forged.cc").write_text(FORGED)
    include = ROOT / "template/engine/backend/include"
    flags = ("-std=c++17", "-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
    run("c++", *flags, "-I", include, "-o", tmp_path / "forged", tmp_path / "forged.cc")
    assert run(tmp_path / "forged") == "refused\n"


def _assert_strict(cases: list[dict[str, Any]]) -> None:
    """Assert that each entry of the engine's ledger is right, of which no backend complains."""
    ledger = ROOT / "template/engine/workbench/conformance/expected_failures.toml"
    entries = tomllib.loads(ledger.read_text())["expected_failure"]
    assert entries
    for entry in entries:
        statuses = {
            case["status"]
            for case in cases
            if case["suite"] == entry["suite"] and fnmatchcase(case["case"], entry["case"])
        }
        assert "expected_failure" in statuses, entry
        assert "passed" not in statuses, entry


ALL_READ = {
    "Attention": 80,
    "GRU": 6,
    "LSTM": 6,
    "RNN": 6,
    "RotaryEmbedding": 8,
    "TensorScatter": 3,
}
"""Operators of ONNX of which all node tests are read, and how many these are at least."""


def _assert_read_right(cases: list[dict[str, Any]]) -> None:
    """Assert that no node test of ONNX is read and wrong, of which no backend complains."""
    reasons = {c["case"]: c["reason"] for c in cases if "_expanded" not in c["case"]}
    unread = {name for name, why in reasons.items() if why.startswith("TVM's importer: ")}
    assert len(reasons) - len(unread) > 1000
    # Those of 16 bits are right within the tolerance of a test of the engine, in test_onnx.py.
    wrong = [name for name, why in reasons.items() if "TVM alone is wrong" in why]
    assert [name for name in wrong if "16" not in name] == []
    # These are errors, and no wrong values.
    failed = {name for name, why in reasons.items() if "TVM alone fails" in why}
    assert len(failed) <= 10, failed
    for op, least in ALL_READ.items():
        # NumPy has no bfloat16.
        mine = {c["case"] for c in cases if c["op"] == op} & reasons.keys()
        mine = {name for name in mine if "bf16" not in name}
        assert len(mine) >= least, op
        assert mine.isdisjoint(unread | failed), op
