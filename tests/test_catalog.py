"""The op catalogue, and the schema that guards it."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import support
from npu_scaffold.catalog import (
    LOWERINGS,
    TABLE,
    catalog_problems,
    load_catalog,
)
from npu_scaffold.derived import CASES, write_derived
from support import ROOT

Entry = dict[str, Any]

ENTRY = """
id: 1
relax: relax.nn.conv2d
summary: 2-D convolution
engine: matrix
presets: [cnn]
inputs:
  - {name: data, dtypes: [float32, float16], ranks: [4]}
  - {name: weight, like: data, ranks: [4]}
attributes:
  groups: {min: 1, max: 64, not: [6]}
  data_layout: {one_of: [NCHW]}
  ceil_mode: any
rules:
  - {equal: [attr.groups, "data.shape[1]"]}
operations: "2 * size(out) * size(weight[1:]) // groups"
output_dtypes: [float32]
fuses: {bias: 1, residual: true, scale: true}
absorbs_transpose: [0, 1]
results: 1
tolerance: {accumulated: {count: "size(weight[1:])", factor: 2}}
numpy: "conv(data, weight, groups)"
cases:
  - {name: plain, inputs: {data: [n, 3, 8, 8], weight: {shape: [4, 3, 3, 3], low: 0, high: 1}}}
refused:
  - {name: NHWC, inputs: {data: [1], weight: [1]}, attributes: {data_layout: NHWC}, reason: layout}
"""


def _template(root: Path, change: Callable[[Entry], object] | None = None) -> Path:
    """Make a catalogue of two ops, and change the first."""
    conv2d = yaml.safe_load(ENTRY)
    relu = {
        "id": 2,
        "relax": "relax.nn.relu",
        "summary": "max(x, 0)",
        "engine": "vector",
        "presets": [],
        "inputs": [{"name": "x", "dtypes": ["float32"], "ranks": [1]}],
        "attributes": {},
        "tolerance": "exact",
        "numpy": "np.maximum(x, 0)",
        "cases": [{"name": "plain", "inputs": {"x": [3]}}],
    }
    if change:
        change(conv2d)
    catalog, lowerings = root / "template/_catalog", root / "template/engine/backend/lowerings"
    catalog.mkdir(parents=True)
    lowerings.mkdir(parents=True)
    support.write_family(catalog / "some.yml", {"conv2d": conv2d, "relu": relu})
    (lowerings / "some.cc").write_text(
        '#include "shared.h"\nREGISTER_LOWERING("relax.nn.conv2d", Conv2D).TakesEpilogue();\n'
        'REGISTER_ELEMENTWISE("relax.nn.relu", Relu);\n'
    )
    (lowerings / "shared.h").touch()
    for folder in (TABLE, TABLE.parent / "shared"):
        shutil.copytree(ROOT / folder, root / folder)
    return root


def test_the_catalogue_keeps_its_schema() -> None:
    assert catalog_problems(ROOT) == []


def test_names_of_other_tools_stand_for_ops_of_the_catalogue() -> None:
    macros = (ROOT / "template/_macros/names.jinja").read_text()
    (names,) = re.findall(r"set other_names = \{(.*?)\}", macros, re.DOTALL)
    found = dict(re.findall(r'"(\w+)": "(\w+)"', names))
    assert found.keys().isdisjoint(load_catalog(ROOT))
    assert {*found.values()} <= load_catalog(ROOT).keys()


def test_a_good_entry_has_no_violations(tmp_path: Path) -> None:
    assert catalog_problems(_template(tmp_path)) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda e: e.pop("id"), "the key 'id' is missing."),
        (lambda e: e.update(id="1"), "id: '1' is not the number of an op"),
        (lambda e: e.update(id=2), "id: 2 is conv2d's already; the ids are 1 to 2."),
        (lambda e: e.update(id=7), "id: 7 leaves a gap; the ids are 1 to 2."),
        (lambda e: e["inputs"][1].update(weight=1), "weight: 1 is neither true nor false."),
        (lambda e: e["cases"][0].update(note=1), "note: 1 is not a text."),
        (lambda e: e.pop("relax"), "conv2d: the key 'relax' is missing."),
        (lambda e: e.update(relax="nn.conv2d"), "relax: 'nn.conv2d' is not a Relax op"),
        (lambda e: e.update(engin="matrix"), "'engin' is not a key here (did you mean 'engine'?)"),
        (lambda e: e.update(engine="tensor"), "engine: 'tensor' is not one of matrix, vector"),
        (
            lambda e: e.update(relax="relax.nn.conv3d"),
            "some.cc: the lowering of conv2d, relax.nn.conv3d, is missing.",
        ),
        (lambda e: e.update(presets=["cmn"]), "'cmn' is not one of cnn, transformer (did you"),
        (lambda e: e.update(presets="cnn"), "presets: 'cnn' is not a list of cnn, transformer."),
        (lambda e: e.update(summary="a\nb"), "is not one line of at most 80 characters"),
        (lambda e: e.update(inputs=[]), "inputs: it must be a list of mappings"),
        (lambda e: e["inputs"][0].pop("ranks"), "inputs[0]: the key 'ranks' is missing."),
        (lambda e: e["inputs"][0].update(ranks=[-1]), "not a list of integers from 0 to 8."),
        (lambda e: e["inputs"][0].update(dtypes=["float"]), "'float' is not one of float32"),
        (lambda e: e["inputs"][0].update(like="weight"), "either 'dtypes' or 'like'."),
        (lambda e: e["inputs"][1].update(like="bias"), "like: 'bias' is not an input before it."),
        (lambda e: e["inputs"][1].update(constant="yes"), "'yes' is neither true nor false."),
        (lambda e: e["inputs"][1].update(name="data"), "name: 'data' is there twice."),
        (lambda e: e["attributes"].update(groups=3), "groups: 3 is neither 'any' nor a mapping"),
        (lambda e: e["attributes"]["groups"].update(max=0), "so no value is supported."),
        (lambda e: e["attributes"]["groups"].update(mim=0), "(did you mean 'min'?); allowed are"),
        (lambda e: e["attributes"]["groups"].update(min="1"), "min: '1' is not a number."),
        (lambda e: e["attributes"]["data_layout"].update(one_of=[]), "is not a list of values."),
        (lambda e: e["rules"].append({"same": ["attr.groups", 1]}), "'same' is not a key here"),
        (lambda e: e["rules"].append({"equal": ["attr.groups"]}), "must compare two operands."),
        (lambda e: e["rules"].append({"equal": ["attr.group", 1]}), "(did you mean 'groups'?)"),
        (lambda e: e["rules"].append({"equal": ["date.rank", 1]}), "(did you mean 'data'?)"),
        (lambda e: e["rules"].append({"equal": ["data.size", 1]}), "only shape[i], rank and dtype"),
        (lambda e: e["rules"].append({"one_of": ["data.rank", 1]}), "operand must be a list."),
        (lambda e: e["rules"].append({}), "it must have one key"),
        (lambda e: e["rules"].append({"for": ["int8"]}), "it must have one key"),
        (
            lambda e: e["rules"].append({"for": ["int"], "equal": ["data.rank", 1]}),
            "for: 'int' is not one of",
        ),
        (lambda e: e.update(operations="size(out"), "'size(out' is not an expression."),
        (lambda e: e.update(operations="size(date)"), "'date' is neither an input nor an"),
        (lambda e: e.update(operations="open(out)"), "'open(out)' is not arithmetic of size, len"),
        (lambda e: e.update(operations="out.real"), "'out.real' is not arithmetic of size"),
        (lambda e: e.update(output_dtypes=["f32"]), "output_dtypes: 'f32' is not one of"),
        (lambda e: e["fuses"].update(bias="1"), "bias: '1' is not the axis of a dimension."),
        (lambda e: e["fuses"].update(residual=1), "residual: 1 is neither true nor false."),
        (lambda e: e["fuses"].update(scale=1), "scale: 1 is neither true nor false."),
        (
            lambda e: e.update(quantized=True),
            "quantized: it must be a mapping, perhaps with channel or inside.",
        ),
        (
            lambda e: e.update(quantized={"channel": "0"}),
            "quantized: channel: '0' is not the axis of a dimension.",
        ),
        (
            lambda e: e.update(quantized={"inside": "floats"}),
            "quantized: inside: 'floats' is none of integers, elements, reals.",
        ),
        (lambda e: e["fuses"].update(residua=True), "(did you mean 'residual'?)"),
        (lambda e: e.update(chains=["data +"]), "chains[0]: 'data +' is not an expression."),
        (
            lambda e: e.update(chains=[["y = 3 +", "y"]]),
            "chains[0]: 'y = 3 +; y' is not an expression.",
        ),
        (lambda e: e.update(chains=["data"]), "chains[0]: 'data' calls no op."),
        (lambda e: e.update(chains=["data % 2"]), "'data % 2' is not part of a chain."),
        (lambda e: e.update(chains=["1 > data > 2"]), "'1 > data > 2' is not part of a chain."),
        (lambda e: e.update(chains=[3]), "chains[0]: 3 is neither an expression nor a list of"),
        (lambda e: e.update(chains=["relu(date)"]), "'date' is neither an input nor an attribute."),
        (
            lambda e: e.pop("relax") and e.update(chains=["relu(rulu(data))"]),
            "chains[0]: no entry of the catalogue has the op relax.rulu.",
        ),
        (lambda e: e.update(emitted_by="update"), "the op has a Relax op or chains, too."),
        (lambda e: e.pop("relax") and e.update(emitted_by="insert"), "'insert' is not one of"),
        (lambda e: e.update(activation=1), "activation: 1 is neither true nor false."),
        (lambda e: e.update(absorbs_transpose=[2]), "indices of inputs, which are 0 to 1."),
        (lambda e: e.update(results=0), "results: 0 is not a number of results."),
        (lambda e: e.update(tolerance="exakt"), "(did you mean 'exact'?)"),
        (lambda e: e.update(tolerance={"acumulated": "1"}), "(did you mean 'accumulated'?)"),
        (lambda e: e.update(tolerance={"elementwise": {"rtol": "1e-5"}}), "a number from 0 on"),
        (lambda e: e["tolerance"]["accumulated"].pop("count"), "the key 'count' is missing."),
        (lambda e: e.update(tolerance={"accumulated": "wait"}), "'wait' is neither an input"),
        (lambda e: e.update(tolerance={"buckets": -1}), "-1 is not a number from 0 on"),
        (lambda e: e.update(tolerance={}), "it must be 'exact', or one of elementwise"),
        (lambda e: e.update(numpy="conv(data"), "is not a Python expression"),
        (lambda e: e.update(numpy="conv(date)"), "'date' is neither an input nor an attribute"),
        (lambda e: e.update(cases=[]), "cases: it must be a list of mappings"),
        (lambda e: e["cases"][0].pop("name"), "cases[0]: the key 'name' is missing."),
        (lambda e: e["cases"].append(e["cases"][0]), "plain: another case has that name."),
        (lambda e: e["cases"][0]["inputs"].pop("weight"), "inputs: 'weight' is missing."),
        (lambda e: e["cases"][0]["inputs"].update(wait=[1]), "the inputs are data, weight."),
        (lambda e: e["cases"][0]["inputs"].update(data=[1.5]), "is not a shape of sizes and n"),
        (lambda e: e["cases"][0]["inputs"]["weight"].update(hihg=1), "(did you mean 'high'?)"),
        (lambda e: e["cases"][0]["inputs"]["weight"].update(dtype="half"), "dtype: 'half' is not"),
        (lambda e: e["cases"][0].update(attributes={"group": 1}), "'group' is not listed (did"),
        (lambda e: e["cases"][0].update(host="no"), "host: 'no' is neither true nor false."),
        (lambda e: e["cases"][0].update(dtypes=["half"]), "dtypes: 'half' is not one of"),
        (lambda e: e["cases"][0].update(reason="x"), "'reason' is not a key here"),
        (lambda e: e["refused"][0].pop("reason"), "NHWC: the key 'reason' is missing."),
        (lambda e: e["refused"][0].update(without="conv3d"), "'conv3d' is not an op of the"),
    ],
)
def test_a_violation_is_a_sentence_that_names_file_op_and_key(
    tmp_path: Path, change: Callable[[Entry], object], sentence: str
) -> None:
    problems = catalog_problems(_template(tmp_path, change))
    matching = [problem for problem in problems if sentence in problem]
    assert len(matching) == 1, problems
    assert matching[0].startswith(
        ("template/_catalog/some.yml: ", "template/engine/backend/lowerings/")
    )
    assert matching[0].endswith(".")


def test_each_op_has_a_lowering_and_there_are_no_others(tmp_path: Path) -> None:
    template = _template(tmp_path)
    lowerings = template / "template/engine/backend/lowerings"
    some = (lowerings / "some.cc").read_text()
    (lowerings / "some.cc").write_text(some.replace("relu", "selu").replace("shared", "pool"))
    (lowerings / "other.cc").write_text('REGISTER_ELEMENTWISE("relax.tanh", Tanh);\n')
    assert catalog_problems(template) == [
        f"{LOWERINGS}/some.cc: the lowering of relu, relax.nn.relu, is missing.",
        f"{LOWERINGS}/other.cc: template/_catalog/other.yml has no entry of relax.tanh.",
        f"{LOWERINGS}/some.cc: template/_catalog/some.yml has no entry of relax.nn.selu.",
        f"{LOWERINGS}/shared.h: no lowering includes it.",
    ]


def test_the_build_has_the_lowerings_of_all_families() -> None:
    engine = ROOT / "template/engine"
    listed = re.search(
        r"set\(_sources([a-z\s]+)\)\s+[^\n]*/lowerings/", (engine / "engine.cmake").read_text()
    )
    assert listed is not None
    assert listed[1].split() == sorted(
        path.stem for path in (engine / "backend/lowerings").glob("*.cc")
    )


HEAD = ".family: some\n.title: Some\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must be a mapping of op ids to entries."),
        ("- a", "must be a mapping of op ids to entries."),
        ("a: [", "is not YAML"),
        ("relu: {a: 1}", "must begin with '.family: some' and a '.title', its heading."),
        (HEAD + "relu: {a: 1}\nadd: {a: 1, b: 2, a: 3}", "line 4: the key 'a' is there twice."),
        (HEAD + "Relu: 1", "the op id must be in snake case."),
        (HEAD + "relu: 1", "relu: the entry must be a mapping."),
    ],
)
def test_a_file_that_is_no_catalogue_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    template = _template(tmp_path)
    (template / "template/_catalog/some.yml").write_text(text)
    problems = catalog_problems(template)
    assert any(sentence in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("cases", "sentence"),
    [
        ({"cases": []}, "relu: the key 'numpy' is missing."),
        ({"numpy": "x"}, "relu: the key 'cases' is missing."),
        ({"numpy": "x", "cases": "conv3d"}, "relu: cases: it must be a list of mappings"),
        ({"numpy": "x", "cases": {"name": "a"}}, "relu: cases: it must be a list of mappings"),
        ({"numpy": "x", "cases": [], "refused": "tanh"}, "relu: refused: it must be a list of"),
    ],
)
def test_missing_and_wrong_cases_are_reported(tmp_path: Path, cases: Entry, sentence: str) -> None:
    template = _template(tmp_path)
    path = template / "template/_catalog/some.yml"
    family = yaml.safe_load(path.read_text())
    del family["relu"]["numpy"], family["relu"]["cases"]
    family["relu"] |= cases
    path.write_text(yaml.safe_dump(family))
    problems = catalog_problems(template)
    assert any(sentence in problem for problem in problems), problems
    # Releases before 0.5 kept cases elsewhere; their answers are checked without.
    assert load_catalog(template).keys() == {"conv2d", "relu"}


def test_shared_pieces_are_merged_and_may_be_overridden(tmp_path: Path) -> None:
    template = _template(tmp_path)
    path = template / "template/_catalog/some.yml"
    text = path.read_text()
    shared = ".shared: &shared {engine: pool, tolerance: exact}\n"
    path.write_text(text.replace("relu:\n", shared + "relu:\n  <<: *shared\n"))
    assert catalog_problems(template) == []
    relu = load_catalog(template)["relu"]
    assert (relu["engine"], relu["tolerance"]) == ("vector", "exact")


def test_families_share_no_name_of_a_piece(tmp_path: Path) -> None:
    template = _template(tmp_path)
    path = template / "template/_catalog/some.yml"
    path.write_text(path.read_text() + ".shared: {engine: pool}\n.floats: [float32]\n")
    other = ".family: other\n.title: Other\n.floats: [float16]\n"
    (template / "template/_catalog/other.yml").write_text(other)
    assert catalog_problems(template) == []
    (template / "template/_catalog/other.yml").write_text(other + ".shared: {engine: matrix}\n")
    assert catalog_problems(template) == [
        "template/_catalog/some.yml: .shared: other.yml has that name, too."
    ]


def test_the_name_of_an_op_stands_for_its_cases(tmp_path: Path) -> None:
    template = _template(tmp_path)
    path = template / "template/_catalog/some.yml"
    family = yaml.safe_load(path.read_text())
    family["relu"]["cases"] = "conv2d"
    path.write_text(yaml.safe_dump(family))
    assert load_catalog(template)["relu"]["cases"] == family["conv2d"]["cases"]


def test_lines_of_the_catalogue_fit_a_screen() -> None:
    families = list((ROOT / "template/_catalog").glob("*.yml"))
    assert len(families) > 10
    for path in families:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 100, f"{path.name}:{number}"


def test_the_ops_keep_their_ids(catalog: dict[str, Entry]) -> None:
    """The ids of released ops, in the order of the question."""
    first = ["matmul", "conv1d", "conv2d", "depthwise_conv2d", "max_pool2d", "avg_pool2d"]
    assert list(catalog)[:6] == first
    assert list(catalog)[126:135] == [
        "dequantize",
        "sdpa",
        "sdpa_bias",
        "sdpa_masked",
        "sdpa_masked_fill",
        "slice_scatter",
        "scatter_elements",
        "scatter_nd",
        "state_update",
    ]


def test_every_attribute_of_the_relax_op_is_in_the_table(catalog: dict[str, Entry]) -> None:
    """A missing one would be refused whatever its value, without an obvious reason."""
    tvm = pytest.importorskip("tvm")
    calls = {op: entry for op, entry in catalog.items() if "relax" in entry}
    assert len(calls) > 100
    for op, entry in calls.items():
        function: Any = tvm.relax.op
        for part in entry["relax"].split(".")[1:]:
            function = getattr(function, part)
        declared = [str(argument.name) for argument in tvm.ir.Op.get(entry["relax"]).arguments]
        inputs = [item["name"] for item in entry["inputs"]]
        assert declared[: len(inputs)] == inputs, op
        known = set(inputs) | set(entry["attributes"])
        assert set(declared) <= known, f"{op}: {set(declared) - known} must be listed"
        call = set(inspect.signature(function).parameters)
        used = {name for case in entry["cases"] for name in case.get("attributes", {})}
        assert used <= call, f"{op}: {used - call} is not a parameter of {entry['relax']}"


def test_an_op_takes_two_edits(template: Path, tmp_path: Path) -> None:
    """With one entry and one lowering, the question, the files and the checks know the op."""
    grown = tmp_path / "grown"
    shutil.copytree(template, grown)
    entry = dict(load_catalog(grown)["sigmoid"])
    entry.update(
        id=len(load_catalog(grown)) + 1,
        relax="relax.sinh",
        summary="hyperbolic sine",
        numpy="np.sinh(x)",
    )
    entry.pop("family")
    support.write_family(grown / "template/_catalog/hyperbolic.yml", {"sinh": entry})
    (grown / "template/engine/backend/lowerings/hyperbolic.cc").write_text(
        'REGISTER_ELEMENTWISE("relax.sinh", Sinh);\n'
    )
    assert catalog_problems(grown) == []
    answers = {"backend_name": "grown", "op_preset": "custom", "ops": ["sinh"]}
    with pytest.raises(ValueError, match="'sinh' is not an op of the catalogue"):
        support.render(grown, tmp_path / "out", **answers)
    write_derived(grown)
    tree = support.render(grown, tmp_path / "out", **answers)
    assert (tree / "engine/backend/lowerings/hyperbolic.cc").is_file()
    assert "relax.sinh" in (tree / "python/tvm_grown/patterns.py").read_text()
    assert '"sinh": Limits(' in (tree / "vendor/capabilities.py").read_text()
    cases = tree / CASES.relative_to("template") / "hyperbolic.json"
    assert list(json.loads(cases.read_text())) == ["sinh"]
