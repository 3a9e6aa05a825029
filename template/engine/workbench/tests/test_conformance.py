# SPDX-License-Identifier: Apache-2.0
"""The conformance kit itself: it must find and report what is wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

import backend
import quick_cases
import support
from backend.engine.backend.libraries.asking import listening
from backend.engine.backend.settings.options import PREFIX
from backend.engine.backend.table.capability import (
    Accumulated,
    Buckets,
    Elementwise,
    Exact,
    Input,
    Op,
)
from backend.engine.backend.table.chains import chains_of
from backend.engine.backend.table.judging import judge
from backend.engine.workbench import pytest_ledger
from backend.engine.workbench.commands.conforming import write
from backend.engine.workbench.conformance import (
    NotRun,
    Outcome,
    Result,
    Settings,
    cases_of,
    chip,
    composites,
    ledger,
    listing,
    runner,
)
from backend.engine.workbench.conformance.allowances import Step, allowance, allowance_behind
from backend.engine.workbench.conformance.case_files import read_cases
from backend.engine.workbench.conformance.cases import names_dtypes
from backend.engine.workbench.conformance.compiled import run_on_host
from backend.engine.workbench.conformance.ledger import (
    ENGINE_LEDGER,
    LEDGER,
    TESTS,
    Entry,
    LedgerError,
    apply,
    expected_failures,
    read_ledger,
)
from backend.engine.workbench.conformance.model import Model, Tensor
from backend.engine.workbench.conformance.pages import as_html, as_markdown
from backend.engine.workbench.conformance.region import Region, ask_about, first_taken
from backend.engine.workbench.conformance.workers import in_workers
from backend.patterns import OPS as PATTERNS
from support import BACKEND, OPS, SINGLE, TABLE, Case, calls_of, first_case, needs, run_command

TOLERANCES = [Exact(), Elementwise(), Accumulated("64"), Elementwise(ulps=0, rtol=1e-3)]
each_tolerance = pytest.mark.parametrize("tolerance", TOLERANCES, ids=str)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float16"])


# ---- Cases --------------------------------------------------------------------------------------


@needs("sdpa")
def test_a_region_is_called_in_the_order_of_its_own_arguments():
    case = first_case(["sdpa"])
    if case is None:
        pytest.skip("this chip runs no case of sdpa")
    region = Region(case, bind_constants=True)
    # The chain begins with its second input.
    assert [array.shape for array in region.inputs] != [
        array.shape for array in region.inputs_of_model
    ]
    support.assert_close(region.call(), region.expected, 1e-3, 1e-3)


@needs("sdpa")
def test_folding_a_part_of_a_chain_leaves_its_other_ops():
    sdpa = TABLE.get("sdpa")
    left = {"relax.matmul", "relax.multiply", "relax.nn.softmax"}
    longest = chains_of(sdpa)[0]
    assert longest.ops_left_by_folding(["key", "value"]) == left
    assert longest.ops_left_by_folding(["query", "value"]) == set()
    assert longest.ops_left_by_folding(["query", "key", "value"]) == set()
    lacking = {op for op in left if not TABLE.entries_of(op)}
    assert chip.lost_by_folding("sdpa", ["key"]) == lacking
    assert chip.lost_by_folding("sdpa", []) == set()


# ---- Comparators --------------------------------------------------------------------------------


def right(dtype="float32", shape=(8, 9)):
    return np.random.default_rng(5).uniform(-2, 2, shape).astype(dtype)


def ratio(actual, expected, tolerance, count=64):
    return judge([actual], [expected], [allowance(tolerance, expected, count)]).ratio


def assert_wrong(actual, expected, tolerance, words=""):
    verdict = judge([actual], [expected], [allowance(tolerance, expected, 64)])
    assert verdict.ratio > 1
    assert words in verdict.text


@each_tolerance
@each_dtype
def test_the_right_values_are_right(tolerance, dtype):
    values = right(dtype)
    values[0, :4] = [np.nan, np.inf, -np.inf, -0.0]
    other = values.copy()
    other[0, 3] = 0.0
    assert ratio(other, values, tolerance) == 0
    assert ratio(values[:0], values[:0], tolerance) == 0


@each_tolerance
@each_dtype
def test_wrong_values_are_seen(tolerance, dtype):
    values = right(dtype)
    dropped = values.copy()
    dropped[3, 4] = 0
    assert_wrong(dropped, values, tolerance, "at [3, 4]: 0.0")
    swapped = values.copy()
    swapped[2, [0, 1]] = values[2, [1, 0]]
    assert_wrong(swapped, values, tolerance, "wrong in 2 of 72 elements")
    assert_wrong(np.roll(values, 1, axis=0), values, tolerance)
    assert_wrong(np.negative(values), values, tolerance)
    assert_wrong(np.full_like(values, values.mean()), values, tolerance)


@each_tolerance
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_replaces_values_that_are_not_finite(tolerance, bad):
    values = right()
    found = values.copy()
    found[1, 1] = bad
    assert_wrong(found, values, tolerance, str(bad))
    assert_wrong(values, found, tolerance, f"expected: {bad}")
    other = found.copy()
    other[1, 1] = 1.0 if np.isnan(bad) else -bad
    assert_wrong(other, found, tolerance)


@each_tolerance
def test_another_number_shape_or_type_of_results_is_seen(tolerance):
    values = right()
    limits = [allowance(tolerance, values)]
    assert "there are 2 results" in judge([values, values], [values], limits).text
    assert_wrong(values.T, values, tolerance, "float32 of shape [9, 8]")
    assert_wrong(values.astype("float64"), values, tolerance, "float64 of shape")
    second = values.copy()
    second[0, 0] += 1
    assert "result 1 is wrong" in judge([values, second], [values, values], limits * 2).text


def test_steps_may_be_allowed_in_a_share_of_the_elements():
    values = np.arange(100, dtype="int8").reshape(10, 10)
    model = Model("steps")
    model.outputs = [Tensor(None, {1: values})]

    def verdict(count, share, by=1):
        model.steps = [{1: Step(Buckets(1, share), 1, ("int8",), 0.0)}]
        found = values.copy()
        found.reshape(-1)[:count] += np.int8(by)
        return model.judge(1, [found])

    assert verdict(100, 1.0).text == ""
    assert (verdict(3, 0.03).ratio, verdict(3, 0.03).text) == (1.0, "")
    wrong = verdict(4, 0.03)
    assert wrong.text == "the result differs in 4 of 100 elements, NumPy; allowed: 3"
    assert wrong.ratio > 1
    # Of a small result, it may be one element.
    assert verdict(1, 0.001).text == ""
    assert "allowed: 1" in verdict(2, 0.001).text
    assert "allowed: 0" in verdict(1, 0.0).text
    assert verdict(0, 0.0).text == ""
    assert "off by 2" in verdict(1, 0.5, by=2).text


@each_dtype
def test_ulps_are_counted(dtype):
    values = right(dtype)
    one = np.nextafter(values, np.inf, dtype=dtype)
    two = np.nextafter(one, np.inf, dtype=dtype)
    three = np.nextafter(two, np.inf, dtype=dtype)
    assert_wrong(one, values, Exact())
    assert 0.5 <= ratio(one, values, Elementwise(ulps=2)) <= 1
    assert 0 < ratio(two, values, Elementwise(ulps=2)) <= 2
    away = np.where(values > 0, three, np.nextafter(values, -np.inf, dtype=dtype) * 1)
    assert ratio(away, values, Elementwise(ulps=2)) == pytest.approx(1.5)


def test_relative_and_absolute_errors_add_up():
    values = np.array([0.0, 10.0], "float32")
    tolerance = Elementwise(ulps=0, rtol=1e-2, atol=1e-3)
    assert ratio(values + np.float32(0.9e-3), values, tolerance) < 1
    assert ratio(np.array([0, 10.09], "float32"), values, tolerance) < 1
    assert ratio(np.array([1.1e-3, 10], "float32"), values, tolerance) > 1
    assert ratio(np.array([0, 10.2], "float32"), values, tolerance) > 1


def test_a_sum_may_be_off_by_the_square_root_of_its_length():
    values = right()
    small, large = (allowance(Accumulated("k"), values, count) for count in (100, 10_000))
    rounding = allowance(Elementwise(ulps=1), values)
    np.testing.assert_allclose((large - rounding) / (small - rounding), 10)
    half = allowance(Accumulated("k", accumulator="float16"), values, 100)
    assert (half > 1000 * small).all()


@pytest.mark.parametrize("count", [3, 100, 3000])
def test_real_sums_are_right_and_sums_that_lack_a_term_are_not(count):
    generator = np.random.default_rng(count)
    for low in (-1, 0):
        terms = generator.uniform(low, 1, (200, count)).astype("float32")
        expected = terms.astype("float64").sum(axis=1).astype("float32")
        running = np.zeros(200, "float32")
        for term in terms.T:
            running += term
        tolerance = Accumulated("count")
        assert ratio(running, expected, tolerance, count) <= 1
        assert ratio(running - terms[:, count // 2], expected, tolerance, count) > 1
        in_half = terms.astype("float16").cumsum(axis=1, dtype="float16")[:, -1].astype("float32")
        assert ratio(in_half, expected, tolerance, count) > 1


def test_buckets_are_counted():
    values = np.arange(-128, 127, dtype="int8")
    found = values.copy()
    found[7] += 1
    verdict = judge([found], [values], [allowance(Buckets(1), values)])
    assert (verdict.ratio, verdict.differing, verdict.total) == (1, 1, 255)
    assert_wrong(found, values, Buckets(0))
    found[7] += 1
    assert_wrong(found, values, Buckets(1))
    assert_wrong(-values[1:], values[1:], Buckets(1))


@pytest.mark.parametrize("tolerance", [Elementwise(rtol=1.0), Accumulated("9"), Exact()], ids=str)
def test_whole_numbers_are_exact(tolerance):
    large = np.array([2**62, 3], "int64")
    assert ratio(large, large, tolerance) == 0
    assert_wrong(large + np.array([1, 0]), large, tolerance)
    flags = np.array([True, False])
    assert_wrong(~flags, flags, tolerance)


def test_errors_of_several_steps_add_up():
    values = right()
    steps = [Step(Accumulated("100"), 100, ("float32",), 2.0), Step(Exact(), 1, ("float32",), 2.0)]
    alone = allowance(Accumulated("100"), np.array([2.0], "float32"), 100)
    np.testing.assert_allclose(allowance_behind(steps, values), np.full(values.shape, alone))
    assert not allowance_behind(steps[1:], values).any()


# ---- Cases as the chip takes them ---------------------------------------------------------------


def test_a_symbol_becomes_a_number_where_the_chip_has_none(monkeypatch):
    inputs, attributes = {"x": ["n", 4], "w": {"shape": [4, "n"]}}, {"shape": ["n", 2, 2]}
    entry = {"name": "symbolic", "inputs": inputs, "attributes": attributes, "host": False}
    monkeypatch.setattr(chip, "SYMBOLS", True)
    assert chip.fitted("no_such_op", entry) is entry
    monkeypatch.setattr(chip, "SYMBOLS", False)
    assert chip.fitted("no_such_op", entry) == {
        "name": "symbolic, n=3",
        "inputs": {"x": [3, 4], "w": {"shape": [4, 3]}},
        "attributes": {"shape": [3, 2, 2]},
        "host": False,
    }
    plain = {"name": "plain", "inputs": {"x": [3, 4]}}
    assert chip.fitted("no_such_op", plain) is plain


def test_a_required_constant_is_one_and_has_a_known_size(monkeypatch):
    entry = Op("wired", "relax.add", inputs=(Input("x1"), Input("x2", constant=True)))
    monkeypatch.setattr(TABLE, "get", lambda name: entry)
    case = Case("wired", {"name": "rows", "inputs": {"x1": ["n", 4], "x2": [4]}})
    assert [spec.constant for _, specs in case.specs() for spec in specs] == [False, True]
    assert str(case) == ("wired-rows" if chip.SYMBOLS else "wired-rows,_n=3")
    case = Case("wired", {"name": "weights", "inputs": {"x1": [4, "n"], "x2": ["n"]}})
    assert str(case) == "wired-weights,_n=3"
    assert [spec.shape for _, specs in case.specs() for spec in specs] == [(4, 3), (3,)]


# ---- The ledger ---------------------------------------------------------------------------------

GOOD = Outcome("ops", "good")
BAD = Outcome("ops", "bad", "failed", reason="off by one")


def statuses(outcomes):
    return {outcome.case: outcome.status for outcome in outcomes}


def test_an_expected_failure_is_not_a_failure():
    (found,) = apply([Entry("ops", "b*", "the chip rounds down")], [BAD], complete=True)
    assert found.status == "expected_failure"
    assert found.reason == "the chip rounds down [off by one]"


def test_an_entry_that_passes_or_matches_nothing_fails_the_run():
    entries = [Entry("ops", "good", "it was bad"), Entry("ops", "gone", "who knows")]
    found = apply(entries, [GOOD, BAD], complete=True)
    assert statuses(found) == {"good": "unexpected_pass", "bad": "failed", "gone": "failed"}
    assert not Result(outcomes=[found[0]]).ok
    assert statuses(apply(entries[1:], [GOOD], complete=False)) == {"good": "passed"}


def test_an_entry_is_for_its_suite_and_not_for_what_did_not_run():
    assert statuses(apply([Entry("models", "bad", "x")], [BAD], False)) == {"bad": "failed"}
    skipped = replace(BAD, status="not_run")
    assert statuses(apply([Entry("ops", "bad", "x")], [skipped], True)) == {"bad": "not_run"}


def test_a_suite_that_takes_long_tells_how_far_it_is(monkeypatch):
    names = ["one", "two", "three"]
    outcomes = [Outcome("ops", name, "passed") for name in names]
    monkeypatch.setattr(runner, "TELLS_EVERY", -1.0)
    monkeypatch.setattr(runner, "cases_of", lambda *_: names)
    monkeypatch.setattr(runner, "_outcomes", lambda *_: iter(outcomes))
    told = []
    runner.run(["ops"], Settings(filters=("ops/",)), tell=told.append)
    assert told[:3] == [f"ops: {count} of 3 cases ..." for count in (1, 2, 3)]
    assert len(told) == 4 and told[3].startswith("ops: 3 passed ")


def test_names_with_brackets_are_taken_literally():
    outcome = replace(BAD, case="x[1]")
    assert statuses(apply([Entry("ops", "x[1]", "x")], [outcome], True)) == {
        "x[1]": "expected_failure"
    }


def test_a_case_without_a_type_has_one_of_its_own():
    """A cast to the type that its data has is no op: nothing would be tested."""
    known = [Case(op, item) for op in OPS if TABLE.get(op) for item in OPS[op]["cases"]]
    if not known:
        pytest.skip("the table has ops without cases alone")
    for case in known:
        _, (first, *_) = next(case.specs())
        dtypes = case.entry.get("dtypes", [first.dtype])
        assert first.dtype in dtypes or names_dtypes(case.entry), case


def test_a_declined_case_is_not_a_failure_unless_strict():
    declined = replace(BAD, status="declined", reason="no kernel of 7")
    entry = Entry("ops", "bad", "the SDK has none")
    assert apply([], [declined], complete=True) == [declined]
    for strict in (False, True):
        (found,) = apply([entry], [declined], complete=True, strict=strict)
        assert (found.status, found.reason) == ("declined", "the SDK has none [no kernel of 7]")
    (found,) = apply([], [declined], complete=True, strict=True)
    assert found.status == "failed"
    assert found.reason.endswith("the ledger says that it is declined: no kernel of 7")
    assert statuses(apply([], [GOOD], complete=True, strict=True)) == {"good": "passed"}


ENTRY = '[[expected_failure]]\nsuite = "ops"\ncase = "softmax-*"\nreason = "no exponential"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[expected_failure", "cannot be read"),
        ("[[unexpected]]", "nothing but tables named"),
        (ENTRY.replace("reason", "because"), "entry 1 must have suite, case and reason"),
        (ENTRY.replace("no exponential", " "), "entry 1: reason must be a non-empty string"),
        (ENTRY.replace('"ops"', '"opps"'), "there is no suite 'opps'; the suites are ops"),
        (ENTRY * 2, "entry 2: ops/softmax-* is there twice"),
    ],
)
def test_a_wrong_ledger_is_refused_in_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "ledger.toml"
    path.write_text(text)
    with pytest.raises(LedgerError) as caught:
        read_ledger(path, ["ops"])
    assert sentence in str(caught.value)


def test_a_ledger_is_read(tmp_path):
    path = tmp_path / "ledger.toml"
    assert read_ledger(path) == []
    path.write_text(ENTRY)
    assert read_ledger(path, ["ops"]) == [Entry("ops", "softmax-*", "no exponential")]


class Item:
    """A test as pytest collects it."""

    def __init__(self, path, name):
        self.path, self.name, self.marks = Path(path), name, []

    def add_marker(self, mark):
        self.marks.append((mark.name, mark.kwargs))


def test_the_ledger_names_tests_that_fail(monkeypatch):
    items = [Item("a/test_x.py", name) for name in ("test_one[1]", "test_one[2]", "test_two")]
    entries = [Entry(TESTS, "test_x.py::test_one*", "no float16"), Entry("ops", "*", "other")]
    monkeypatch.setattr(ledger, "read_ledger", lambda: entries)
    pytest_ledger.pytest_collection_modifyitems(items)
    expected = [("xfail", {"reason": "no float16", "strict": True})]
    assert [item.marks for item in items] == [expected, expected, []]
    entries[0] = Entry(TESTS, "test_x.py::test_three", "stale")
    with pytest.raises(pytest.UsageError, match="'test_x.py::test_three', which is no test"):
        pytest_ledger.pytest_collection_modifyitems(items)
    entries[0] = Entry(TESTS, "test_y.py::test_three", "that file does not run now")
    pytest_ledger.pytest_collection_modifyitems(items)


CONFTEST = Path(__file__).parents[3] / "conftest.py"
OWN_TESTS = """
from {package}.engine.workbench.conformance import ledger

ledger.read_ledger = lambda: [ledger.Entry(ledger.TESTS, "test_own.py::test_one", "revision B")]


def test_one():
    raise AssertionError
"""


@pytest.mark.thorough
@pytest.mark.skipif(not CONFTEST.is_file(), reason="the tests are not in the backend's folder")
def test_the_ledger_names_tests_of_vendor_that_run_alone(tmp_path):
    folder = tmp_path / "vendor/tests"
    folder.mkdir(parents=True)
    shutil.copy(CONFTEST, tmp_path)
    (folder / "test_own.py").write_text(OWN_TESTS.format(package=backend.__name__))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-ra", str(folder)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "1 xfailed" in done.stdout, done.stdout + done.stderr
    assert "revision B" in done.stdout


def test_paths_of_earlier_releases_find_the_tests_of_both_wings(tmp_path):
    for path in ("backend/tests/test_one.py", "workbench/tests/test_two.py", "tests/support.py"):
        (tmp_path / "engine" / path).parent.mkdir(parents=True)
        (tmp_path / "engine" / path).touch()

    def found(*names):
        config = SimpleNamespace(args=names, invocation_params=SimpleNamespace(dir=tmp_path))
        pytest_ledger.pytest_configure(config)
        return [Path(name).relative_to(tmp_path).as_posix() for name in config.args]

    wings = ["engine/backend/tests", "engine/workbench/tests"]
    assert found("engine/tests") == wings
    assert found(str(tmp_path / "engine/tests/test_two.py::test_x[a::b]")) == [
        "engine/workbench/tests/test_two.py::test_x[a::b]"
    ]
    assert found("engine/tests/test_one.py") == ["engine/backend/tests/test_one.py"]
    kept = ("engine/tests/test_three.py", "engine/backend/tests", "vendor/tests", "engine", ".")
    for name in kept:
        config = SimpleNamespace(args=[name], invocation_params=SimpleNamespace(dir=tmp_path))
        pytest_ledger.pytest_configure(config)
        assert config.args == [name]


def test_each_op_has_its_cases(monkeypatch, tmp_path):
    """The files have cases for all ops; an op may name another whose cases it shares."""
    cases = read_cases()
    assert cases.keys() >= {op.name for op in PATTERNS}
    for op, entry in cases.items():
        assert entry.keys() >= {"numpy", "benchmarks", "results", "cases", "refused"}, op
        assert all(isinstance(case, dict) for case in (*entry["cases"], *entry["refused"])), op
    refused = [{"name": "a", "without": "two"}, {"name": "b", "without": "three"}]
    text = {
        "one": {"numpy": "x", "cases": "three", "refused": "three"},
        "two": {"numpy": "y", "cases": []},
        "three": {"numpy": "z", "cases": [{"name": "c"}], "refused": refused},
    }
    (tmp_path / "family.json").write_text(json.dumps(text))
    monkeypatch.setattr("backend.engine.workbench.conformance.case_files.CASES", tmp_path)
    monkeypatch.setattr(
        "backend.engine.workbench.conformance.case_files.VENDOR_CASES", tmp_path / "none.json"
    )
    monkeypatch.setattr(TABLE, "_engine", dict.fromkeys(("one", "two"), PATTERNS[0]))
    rest = {"benchmarks": [], "results": None}
    assert read_cases() == {
        "one": {"numpy": "x", **rest, "cases": [{"name": "c"}], "refused": refused[1:]},
        "two": {"numpy": "y", **rest, "cases": [], "refused": []},
    }


def test_cases_of_the_vendor_join_those_of_the_catalogue(monkeypatch, tmp_path):
    path = tmp_path / "cases.json"
    monkeypatch.setattr("backend.engine.workbench.conformance.case_files.VENDOR_CASES", path)
    known = read_cases()
    path.write_text('{"own": {"numpy": "x", "cases": []}}')
    own = {"numpy": "x", "cases": [], "refused": [], "benchmarks": [], "results": None}
    assert read_cases() == known | {"own": own}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "vendor/cases.json is not JSON: "),
        ("[1]", "vendor/cases.json must give for each op an object with 'numpy'"),
        ('{"own": {"cases": []}}', "vendor/cases.json must give for each op an object"),
    ],
)
def test_wrong_cases_of_the_vendor_are_refused_in_a_sentence(monkeypatch, tmp_path, text, sentence):
    path = tmp_path / "cases.json"
    path.write_text(text)
    monkeypatch.setattr("backend.engine.workbench.conformance.case_files.VENDOR_CASES", path)
    for command in ("check", "conformance"):
        code, *said = run_command(command)
        assert code == 1
        assert f"FAILED: {sentence}" in "".join(said)


@pytest.mark.parametrize("path", [LEDGER, ENGINE_LEDGER], ids=["vendor", "engine"])
def test_the_ledgers_of_the_package_are_good(path):
    entries = list(read_ledger(path, runner.SUITES))
    if path == LEDGER and not entries:
        pytest.skip("vendor/expected_failures.toml lists nothing")
    assert entries
    for entry in entries:
        assert len(entry.reason.split()) > 2, f"{entry.case}: a reason that a reader accepts"


def test_the_engine_lists_what_fails_in_every_backend(tmp_path):
    """Ledgers that earlier releases seeded list some of it, too."""
    path = tmp_path / "ledger.toml"
    doubles = Outcome("onnx_nodes", "cast_FLOAT_to_DOUBLE", "failed", reason="on the host")
    (found,) = apply(expected_failures(path), [doubles], complete=True)
    assert (found.status, found.reason) == (
        "expected_failure",
        "the engine has no float64 [on the host]",
    )
    path.write_text(ENTRY.replace("ops", "onnx_nodes").replace("softmax-*", "cast*_DOUBLE*"))
    (found,) = apply(expected_failures(path), [doubles], complete=True)
    assert (found.status, found.reason) == ("expected_failure", "no exponential [on the host]")
    # A vendor's own ops may make it pass: that contradicts the vendor's entry, not the engine's.
    passed = replace(doubles, status="passed", reason="")
    path.write_text(path.read_text().replace("cast*_DOUBLE*", "cast_FLOAT_*"))
    (found,) = apply(expected_failures(path), [passed], complete=True)
    assert found.status == "unexpected_pass"
    path.unlink()
    assert apply(expected_failures(path), [passed], complete=True) == [passed]


def test_an_entry_that_former_releases_seeded_fails_no_run(tmp_path):
    """The case passes now, or is gone; the vendor did not write the entry."""
    path = tmp_path / "ledger.toml"
    path.write_text(ENTRY.replace("ops", "onnx_nodes").replace("softmax-*", "tril_zero"))
    passed = Outcome("onnx_nodes", "tril_zero")
    assert apply(expected_failures(path), [passed], complete=True) == [passed]
    path.write_text(ENTRY.replace("ops", "onnx_nodes").replace("softmax-*", "*_float64"))
    assert apply(expected_failures(path), [passed], complete=True) == [passed]


# ---- Workers ------------------------------------------------------------------------------------

BEHAVIOURS = """
import os, signal, time
from backend.engine.workbench.conformance.outcomes import Outcome
from backend.engine.backend.settings.options import Options

def run_batch(cases, announce):
    if "crash in the compiler" in cases:
        os.kill(os.getpid(), signal.SIGSEGV)
    for case in cases:
        announce(case)
        if case == "quiet crash":
            Options.load(None)
            os.kill(os.getpid(), signal.SIGSEGV)
        print("libraries print what they like")
        if case == "crash":
            os.write(2, b"something about a segment\\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        if case == "exit":
            os._exit(3)
        if case == "hang":
            time.sleep(1000)
        if case == "raise":
            raise ValueError("a bug of the suite")
        if case != "silent":
            yield Outcome("behaviours", case, ratio=float("inf"))
"""


@pytest.fixture
def behaviours(tmp_path, monkeypatch):
    """Make a suite whose cases misbehave."""
    package = tmp_path / "misbehaving"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "behaviours.py").write_text(
        BEHAVIOURS.replace("from backend", f"from {backend.__name__}")
    )
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))

    def run(*cases, seconds=60.0, jobs=2):
        suite = "misbehaving.behaviours"
        return {one.case: one for one in in_workers(suite, cases, jobs, seconds=seconds)}

    return run


@pytest.mark.thorough
def test_a_crash_is_the_failure_of_one_case(behaviours):
    cases = ["a", "crash", "b", "c", "exit", "d", "crash in the compiler", "e", "f", "silent"]
    found = behaviours(*cases)
    assert sorted(found) == sorted(cases)
    failed = {case: outcome.reason for case, outcome in found.items() if outcome.status != "passed"}
    assert failed == {
        "crash": failed["crash"],
        "exit": "crashed: exit code 3, after it said: libraries print what they like",
        "crash in the compiler": failed["crash in the compiler"],
        "silent": "the suite does not say what became of it",
    }
    assert failed["crash"] == "crashed: SIGSEGV, after it said: something about a segment"
    assert failed["crash in the compiler"].startswith("crashed: SIGSEGV")


@pytest.mark.thorough
def test_what_the_backend_says_of_an_environment_variable_is_not_of_a_crash(
    behaviours, monkeypatch
):
    monkeypatch.setenv(f"{PREFIX}STRICT", "false")
    assert behaviours("quiet crash")["quiet crash"].reason == "crashed: SIGSEGV"


@pytest.mark.thorough
def test_a_case_that_hangs_fails(behaviours):
    found = behaviours("a", "hang", "b", seconds=8.0)
    assert statuses(found.values()) == {"a": "passed", "hang": "failed", "b": "passed"}
    assert "did not finish within 8 s" in found["hang"].reason


@pytest.mark.thorough
def test_a_bug_of_a_suite_is_not_a_failure_of_a_case(behaviours):
    with pytest.raises(RuntimeError, match="is broken: ValueError: a bug of the suite"):
        behaviours("a", "raise", "b")


@pytest.mark.thorough
def test_a_suite_that_no_process_can_load_is_reported():
    with pytest.raises(RuntimeError, match="No module named 'nowhere'"):
        list(in_workers("nowhere.at_all", ["a"], 1))


# ---- Lists --------------------------------------------------------------------------------------

ABORTING = """
import os
import tvm_ffi
from backend.engine.workbench.conformance.cases import OPS
from backend.engine.workbench.conformance.catalog_cases import Case

def cases(settings):
    name = "{npu}.codegen.decline_reason"
    tvm_ffi.register_global_func(name, lambda *_: os.abort(), override=True)
    return [Case("{op}", OPS["{op}"]["cases"][{place}]).model(exact=False).decline()]
"""


@pytest.mark.thorough
def test_an_sdk_may_abort_when_cases_are_listed(behaviours, tmp_path):
    case = first_case(op for op in OPS if TABLE.get(op) is not None)
    if case is None:
        pytest.skip("this chip runs no op")
    place = OPS[case.op]["cases"].index(case.entry)
    content = ABORTING.replace("from backend", f"from {backend.__name__}")
    content = content.format(npu=BACKEND, op=case.op, place=place)
    (tmp_path / "misbehaving/aborting.py").write_text(content)
    end = listing.ended("misbehaving.aborting")
    assert end.startswith("crashed: SIGABRT")
    asked = end.rpartition("was asked about ")[2].split(", ")
    assert asked and set(asked) <= set(calls_of(case.model(exact=False).function()))


def test_a_suite_whose_cases_cannot_be_listed_fails_alone(monkeypatch):
    end = "crashed: SIGABRT, when the driver NPU was asked about relax.add"
    monkeypatch.setattr(listing, "end_of", lambda suite, jobs: end if suite == "contract" else "")
    result = runner.run(["contract", "files"], Settings())
    (found,) = (one for one in result.outcomes if one.suite == "contract")
    assert (found.status, found.case) == ("failed", "")
    assert found.reason.startswith(f"its cases cannot be listed: {end}. Keep such ops")
    assert not result.ok
    assert not [one for one in result.outcomes if one.suite == "files" and one.status == "failed"]
    code, out, _ = run_command("conformance", "--list", "--suite", "contract")
    assert code == 0
    assert "contract: its cases cannot be listed: crashed: SIGABRT" in out


def test_only_some_suites_ask_the_driver_for_their_cases():
    asked = {}
    for suite in ("ops", "models", "fuzz", *listing.ASKING):
        module = import_module(f"{runner.__package__}.{suite}")
        for function in vars(module).values():
            getattr(function, "cache_clear", lambda: None)()
        questions = []
        with listening(lambda *question, to=questions: to.append(question)), suppress(NotRun):
            module.cases(Settings())
        asked[suite] = questions
    assert {suite for suite, questions in asked.items() if questions} <= {*listing.ASKING}


# ---- Runs ---------------------------------------------------------------------------------------


@pytest.fixture
def result():
    return Result(
        {
            "backend": "it",
            "backend_version": "1",
            "driver_api_version": 1,
            "tvm_version": "1",
            "tvm_ffi_version": "1",
            "python_version": "3",
            "platform": "here",
            "options": {"suites": ["ops"], "filters": ["x"]},
        },
        {"ops": 3.0, "models": 0.0},
        [
            Outcome("ops", "good", "passed", "relu", "float32", "all", "all", 1e-6, 2e-6, 0.5, 3.0),
            Outcome("ops", "a|<b>", "failed", "relu", "float16", "all", "none", reason="x < y\n z"),
            Outcome("ops", "c", "failed", "tanh", ratio=float("inf"), error=float("nan")),
        ],
    )


def test_the_file_comes_back_as_it_was(result, tmp_path):
    path, markdown, page = write(result, tmp_path / "new" / "folder")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(path.read_text(), parse_constant=refuse)
    again = Result.from_dict(data)
    assert again.to_dict() == result.to_dict() == data
    assert [one.case for one in again.bad] == ["a|<b>", "c"]
    assert markdown.read_text() == as_markdown(data)
    assert page.read_text() == as_html(data)
    with pytest.raises(ValueError, match="the result has format 0"):
        Result.from_dict({**data, "format_version": 0})


def test_the_page_says_what_integers_are_judged_by(result):
    assert "integers:" not in as_markdown(result.to_dict())
    rule = {"rounding": "float32", "steps": 1, "share": 0.02}
    result.about["rounding"] = {"quantize": "half_away", "requantize": rule}
    sentence = "integers: quantize rounds half_away, sums are rescaled float32"
    assert f"{sentence}, 1 steps off in 2.0 % of the elements" in as_markdown(result.to_dict())
    rule["steps"] = 0
    for text in (as_markdown(result.to_dict()), as_html(result.to_dict())):
        assert sentence in text and "steps off" not in text
    # A run says it of the chip.
    rounding = runner.run(["files"], Settings()).about["rounding"]
    assert rounding["quantize"] == TABLE.chip.rounds
    assert rounding["requantize"]["rounding"] == TABLE.chip.requantize.rounding


def test_the_summary_is_one_line(result):
    line = result.summary()
    assert line.startswith("FAILED: 1 passed, 2 failed, in 3 cases of 2 suites")
    assert "\n" not in line
    result.outcomes = result.outcomes[:1]
    assert result.summary().startswith("PASSED: 1 passed, 0 failed, in 1 cases")
    assert "0.50 of what is allowed" in result.summary()


def test_declined_cases_are_counted_apart_and_prove_nothing_alone(result):
    declined = Outcome("ops", "d", "declined", "tanh", "int8", "all", "none", reason="not yet")
    result.outcomes = [result.outcomes[0], declined]
    assert result.ok
    assert result.summary().startswith("PASSED: 1 passed, 0 failed, 1 declined by the driver, in")
    data = result.to_dict()
    assert data["suites"]["ops"]["declined"] == 1
    for page in (as_markdown(data), as_html(data)):
        assert "Declined by the driver, although the table accepts it (1)" in page
        assert "not yet" in page
    assert "| tanh | | declined |" in re.sub(r" +", " ", as_markdown(data))
    result.outcomes = [declined]
    assert not result.ok
    assert result.summary().startswith("FAILED: 0 passed, 0 failed, 1 declined by the driver")
    assert "nothing ran on the NPU" in result.summary()
    # A call that the table refuses, and that stays on the host, did not run either.
    result.outcomes.append(Outcome("ops", "e", "passed", "tanh", "float64", "none", "none"))
    assert not result.ok
    result.outcomes = []
    assert not result.ok
    assert result.summary().startswith("FAILED: 0 passed, 0 failed, in 0 cases of 2 suites; the")


def test_declined_cases_are_reported_with_the_drivers_reason(result):
    reasons = [
        "none of it is on the NPU: the driver declines it: relax.max (gv): it has no max yet",
        "none of it is on the NPU: the driver declines it: relax.min (gv): it has no max yet; "
        "the driver declines it: relax.add (lv): it has no add yet",
        "the driver declines it as one composite: relax.nn.relu (lv1): it has no max yet",
        "the driver declines the region: the size n: it takes fixed sizes",
        *(f"reason {index}" for index in range(9)),
    ]
    result.outcomes = [Outcome("ops", "", "declined", reason=reason) for reason in reasons]
    first, second, *_, last = lines = result.declines()
    assert first == "3 declined: it has no max yet"
    assert second == "1 declined: the size n: it takes fixed sizes"
    assert last == "3 declined for 3 other reasons"
    assert len(lines) == 9
    result.outcomes = result.outcomes[:3]
    assert result.declines() == [first]


def test_pages_show_failures_first_and_need_no_other_file(result):
    data = result.to_dict()
    text = as_markdown(data)
    assert text.index("## Failures (2)") < text.index("## Passed of ops")
    assert "Passed of models" not in text + as_html(data), "no case of it was asked for"
    assert "ops/a\\|<b>" in text
    assert "| relu | | 0/1 failed | 1/1 |" in re.sub(r" +", " ", text)
    page = as_html(data)
    assert page.index("Failures (2)") < page.index("<h2>Suites</h2>")
    assert "ops/a|&lt;b&gt;" in page
    tags = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            tags.append(tag)
            assert not {"src", "href"} & {name for name, _ in attributes}

        def handle_endtag(self, tag):
            while tags.pop() != tag:
                assert tags, f"</{tag}> ends nothing"

    Reader().feed(page)
    assert not [tag for tag in tags if tag != "meta"]
    assert "http" not in page


def conformance(*arguments):
    """Run the command in this process; return its exit code and the lines that it prints."""
    code, out, _ = run_command("conformance", *arguments)
    return code, out.splitlines()


CASES = cases_of("ops", Settings())
# A table may consist of chains alone.
ANY = [case for case in [first_case(op for op in OPS if TABLE.get(op))] if case]
TAKEN = [str(case) for case in SINGLE or ANY if str(case) in CASES]
needs_taken = pytest.mark.skipif(not TAKEN, reason="the NPU takes no op")


def test_the_command_lists_cases():
    code, lines = conformance("--list", "--suite", "ops")
    assert code == 0
    assert lines == [f"ops/{case}" for case in CASES]
    code, out, errors = run_command("conformance", "--list", "--suite", "ops", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(out) == {"format_version": 1, "suites": {"ops": list(CASES)}}


def test_libraries_of_the_host_are_not_the_systems_own(capfd):
    x = support.variable("x", 4)
    mod = support.build([x], lambda emit: emit(relax.op.sinh(x)))
    given = np.ones(4, "float32")
    for _ in range(2):  # The second would replace the first.
        (found,) = run_on_host(mod, "main", [given])
        np.testing.assert_allclose(found, np.sinh(given), rtol=1e-5)
    assert "SystemLib" not in capfd.readouterr().err


@needs_taken
def test_json_is_alone_on_standard_output(tmp_path):
    arguments = ("--jobs", "0", "--filter", f"ops/{TAKEN[0]}", "--output", str(tmp_path), "--json")
    code, out, errors = run_command("conformance", *arguments)
    assert code == 0, errors
    data = json.loads(out)
    assert out == (tmp_path / "conformance.json").read_text()
    assert (data["format_version"], data["ok"]) == (1, True)
    assert TAKEN[0] in [case["case"] for case in data["cases"]]
    assert errors.splitlines()[-1] == data["summary"] and "written: " in errors
    code, out, errors = run_command("conformance", "--suite", "nothing", "--json")
    assert (code, out) == (2, "") and "no suite 'nothing'" in errors


@pytest.mark.thorough
@needs_taken
def test_the_command_runs_cases(tmp_path):
    command = [sys.executable, "-m", backend.__name__, "conformance"]
    command += ["--filter", f"ops/{TAKEN[0]}", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, ""), lines
    data = json.loads((tmp_path / "conformance.json").read_text())
    assert lines[-1] == data["summary"]
    assert data["ok"]
    (found,) = (case for case in data["cases"] if case["case"] == TAKEN[0])
    assert (found["status"], found["expected"], found["found"]) == ("passed", "all", "all")
    assert found["ratio"] <= 1
    assert found["npu_us"] > 0
    assert found["host_us"] > 0


@needs_taken
def test_the_command_fails_if_the_ledger_is_wrong(tmp_path):
    ledger = tmp_path / "ledger.toml"
    ledger.write_text(ENTRY.replace("softmax-*", TAKEN[0]))
    code, lines = conformance("--filter", f"ops/{TAKEN[0]}", "--ledger", ledger, "--jobs", 0)
    assert code == 1
    assert any(line.startswith(f"UNEXPECTED_PASS ops/{TAKEN[0]}: it passes now") for line in lines)


@pytest.fixture
def decline():
    """Make the driver decline the functions that a test selects."""
    name = f"{BACKEND}.codegen.decline_reason"
    original = tvm_ffi.get_global_func(name)

    def install(answer):
        def ask(function, *others):
            return answer(function) or original(function, *others)

        tvm_ffi.register_global_func(name, ask, override=True)

    yield install
    tvm_ffi.register_global_func(name, original, override=True)


RELAX_OPS = {TABLE.get(case.op).relax: case.op for case in SINGLE}
needs_two = pytest.mark.skipif(len(RELAX_OPS) < 2, reason="it takes two ops")


def is_whole(name):
    """Whether the NPU takes a case of the suite of composites as one composite."""
    work = composites.find(name)
    model = work.model()
    return not model.refusals(**composites.WAYS[work.way]) and model.decline() is None


@needs_two
@pytest.mark.parametrize("suite", ["ops", "composites"])
def test_a_declined_case_is_reported_and_fails_only_if_strict(decline, suite):
    (declined, mine), *_ = RELAX_OPS.items()
    decline(lambda function: "not on Sundays" if declined in calls_of(function) else "")
    cases = [f"{suite}/{case}" for case in cases_of(suite, Settings())]
    declined_cases = [case for case in cases if case.startswith(f"{suite}/{mine}-")][:2]
    rest = TAKEN if suite == "ops" else filter(is_whole, quick_cases.of_composites())
    other = next((case for case in rest if not case.startswith(f"{mine}-")), None)
    if not declined_cases or other is None:
        pytest.skip("it takes a case of each of two ops")

    def run(chosen, *arguments):
        filters = [word for case in chosen for word in ("--filter", case)]
        return conformance("--suite", suite, "--jobs", 0, *arguments, *filters)

    code, lines = run([*declined_cases, f"{suite}/{other}"])
    assert code == 0, lines
    assert " declined (" in lines[0] or " declined," in lines[0]
    assert "declined by the driver" in lines[-1]
    assert any(re.fullmatch(r"\d+ declined: not on Sundays", line) for line in lines[:-1]), lines
    code, lines = run([*declined_cases, f"{suite}/{other}"], "--strict")
    assert code == 1
    told = [line for line in lines if line.startswith(f"FAILED {suite}/{mine}-")]
    assert len(told) >= len(declined_cases)
    assert all("not on Sundays" in line for line in told)
    code, lines = run(declined_cases)
    assert code == 1
    assert "nothing ran on the NPU" in lines[-1]


@pytest.mark.thorough
def test_a_case_to_refuse_that_the_driver_declines_is_declined(decline):
    """The engine refuses some cases only where the driver takes the op."""
    decline(lambda function: "not on Sundays")
    cases = [case for case in cases_of("ops", Settings()) if "refused" in case]
    if not cases:
        pytest.skip("no op has a case to refuse")
    code, lines = conformance("--suite", "ops", "--jobs", 0, "--filter", "refused")
    assert code == 1
    assert "nothing ran on the NPU" in lines[-1], "no case failed"
    assert not [line for line in lines if line.startswith("FAILED ops/")]


def test_the_reason_of_a_declined_composite_is_about_the_whole_composite(decline):
    work = next(filter(is_whole, quick_cases.of_composites()), None)
    if work is None:
        pytest.skip("the NPU takes no composite of several ops")

    def answer(function):
        attrs = function.attrs or {}
        if "Codegen" in attrs or len(set(calls_of(function))) == 1:
            return ""
        return "one at a time" if "Composite" in attrs else "a reason that fuses nothing"

    decline(answer)
    code, lines = conformance("--strict", "--jobs", 0, "--filter", f"composites/{work}")
    assert code == 1
    assert any(line.endswith("as one composite: one at a time") for line in lines), lines


@pytest.mark.thorough
@needs_two
def test_check_takes_what_the_driver_takes(decline):
    first = next(op.relax for op in TABLE.ops if op.relax and op.name in OPS)
    decline(lambda function: "not on Sundays" if first in calls_of(function) else "")
    code, out, _ = run_command("check")
    assert code == 0, out
    (line,) = [line for line in out.splitlines() if "with right values" in line]
    case = line.rpartition("(the case ")[2].removesuffix(")")
    assert f"running the case {case} ...\n{line}\n" in out
    assert TABLE.get(line.split()[0]).relax != first
    decline(lambda function: "not on Sundays")
    code, out, _ = run_command("check")
    assert code == 1
    assert re.search(r"^FAILED: The driver.* declines all", out, re.MULTILINE)
    assert "not on Sundays" in out
    assert "Traceback" not in out


@pytest.mark.thorough
@needs("reshape")
@needs_two
def test_check_is_not_content_with_views(decline):
    """A driver without any op takes them."""
    decline(
        lambda function: "" if set(calls_of(function)) == {"relax.reshape"} else "not on Sundays"
    )
    code, out, _ = run_command("check")
    assert code == 1, out
    assert re.search(r"^FAILED: The driver.* declines all \d+ ops .*, except for views", out, re.M)
    assert "not on Sundays" in out and "runs on the NPU" not in out


@needs("clip")
def test_a_view_is_the_last_resort():
    cases = {entry["name"]: Case("clip", entry) for entry in OPS["clip"]["cases"]}
    view, other = cases["no limit"], cases["ReLU6"]
    if other.model(exact=False).refusals():
        pytest.skip("capabilities.py refuses a clip from 0 to 6")
    assert view.model().is_view and not other.model().is_view
    for find in (first_taken, ask_about):
        assert find([view, other])[0] is other
        assert find([view])[0] is view and not find([view])[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--suite", "opps"], "there is no suite 'opps'; the suites are ops"),
        (["--suite", ","], "there is no suite ''; the suites are ops"),
        (["--suite", "files"], "runs the case files that are given, and there is none"),
        # Listing the cases of all suites takes seconds.
        pytest.param(
            *(["--filter", "no such case"], "no case has 'no such case' in it"),
            marks=pytest.mark.thorough,
        ),
        (["--jobs", "-1"], "--jobs is -1; supported: a whole number, 0 to 256"),
        (["--jobs", "257"], "--jobs is 257; supported"),
        (["--fuzz-seconds", "nan"], "--fuzz-seconds is nan; supported: a number, 0 to 604800"),
        (["--fuzz-seconds", "inf"], "--fuzz-seconds is inf; supported"),
        (["--fuzz-seconds", "1e9"], "--fuzz-seconds is 1e+09; supported"),
        (["--fuzz-seconds", "-1"], "--fuzz-seconds is -1; supported"),
        (["--ledger", "x" * 300], "there is no file xxx"),
        (["--output", "x" * 300], "cannot be made: "),
        (["--filter", "ops/\x1b[31m"], r"no case has 'ops/\x1b[31m' in it"),
        (["--ledger", "/no/such/ledger.toml"], "there is no file /no/such/ledger.toml"),
        (["--output", __file__], "is a file; --output wants a folder"),
    ],
)
def test_meaningless_arguments_are_refused_in_a_sentence(arguments, sentence):
    code, out, errors = run_command("conformance", *arguments)
    assert (code, out) == (2, "")
    assert errors.startswith("FAILED: ") and sentence in errors


@pytest.mark.thorough
def test_the_kit_needs_the_compiler():
    command = [sys.executable, "-m", backend.__name__, "conformance", "--suite", "ops"]
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "FAILED: The kit needs the compiler, and only the runtime is here"
    )


@pytest.mark.thorough
def test_the_backend_does_not_load_the_kit():
    code = f"import sys, {backend.__name__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{backend.__name__}.engine.backend.table.capability" in done.stdout
    assert "conformance" not in done.stdout
