"""What a render contains, for many sets of answers."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import support
from npu_scaffold.catalog import load_catalog
from support import CPP, ROOT

ENGINE = ROOT / "template/engine"
OPS = list(load_catalog(ROOT))
LONGEST = "a_backend_with_thirty_letters1"
RANDOM = random.Random(20)


def _custom(name: str, *ops: str) -> dict[str, Any]:
    return {"backend_name": name, "op_preset": "custom", "ops": list(ops)}


# Together, these contain every pair of answers to two questions.
COVERING = [
    {
        "backend_name": name,
        "license": license,
        "op_preset": preset,
        "bind_constants": bind,
        "on_decline": decline,
        **({"ops": ["conv2d", "relu", "add"]} if preset == "custom" else {}),
    }
    for name, license, preset, bind, decline in [
        ("poolside", "Apache-2.0", "everything", True, "host"),
        ("poolside", "MIT", "cnn", False, "error"),
        ("add_on", "BSD-3-Clause", "transformer", True, "error"),
        ("npu2", "LicenseRef-Proprietary", "custom", False, "host"),
        ("x", "Apache-2.0", "cnn", True, "error"),
        ("x", "MIT", "everything", False, "host"),
        ("add_on", "BSD-3-Clause", "custom", False, "host"),
        ("npu2", "LicenseRef-Proprietary", "transformer", True, "error"),
        (LONGEST, "Apache-2.0", "transformer", False, "host"),
        (LONGEST, "MIT", "custom", True, "error"),
        ("npu2", "BSD-3-Clause", "everything", False, "error"),
        ("add_on", "LicenseRef-Proprietary", "cnn", True, "host"),
    ]
]
SINGLE = [_custom("single", op) for op in ("relu", "conv2d", "topk", "attention", "hard_swish")]
# Each op occurs among a few others.
SHUFFLED = RANDOM.sample(OPS, len(OPS))
FEW = [_custom("few", *SHUFFLED[start::8]) for start in range(8)]
SUBSETS = [
    _custom("subset", *RANDOM.sample(OPS, RANDOM.randint(2, len(OPS) - 1))) for _ in range(6)
]
# For the formatters: names of extreme lengths, with all ops, and with ops that share nothing.
FORMATTED = [
    {"backend_name": "x"},
    {"backend_name": LONGEST},
    _custom("poolside", "relu"),
    _custom("add_on", "conv2d", "matmul", "reshape"),
    {"backend_name": "npu2", "op_preset": "cnn", "on_decline": "error", "bind_constants": False},
]


def _label(answers: dict[str, Any]) -> str:
    ops = answers.get("ops", [])
    what = "+".join(ops) if len(ops) < 4 else f"{len(ops)} ops"
    return f"{answers['backend_name']}-{what or answers.get('op_preset', 'everything')}"


def _selected(catalog: dict[str, Any], answers: dict[str, Any]) -> list[str]:
    preset = answers.get("op_preset", "everything")
    return [
        op
        for op, entry in catalog.items()
        if preset == "everything" or preset in entry["presets"] or op in answers.get("ops", [])
    ]


@pytest.mark.parametrize("answers", COVERING + SINGLE + FEW + SUBSETS, ids=_label)
def test_every_set_of_answers_renders_its_ops_without_a_flaw(
    template: Path, tmp_path: Path, catalog: dict[str, Any], answers: dict[str, Any]
) -> None:
    tree = support.render(template, tmp_path / "backend", **answers)
    (table,) = tree.glob("python/*/patterns.py")
    ops = re.findall(r'^ {4}\w+\((?:[^"\n]*\n +)?"(\w+)"', table.read_text(), re.MULTILINE)
    assert sorted(ops) == sorted(_selected(catalog, answers))
    for path in support.files(tree):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(tree)
        assert not re.search(r"\{%|%\}|(?<!\$)\{\{ \w|\{#", text), f"{name} holds Jinja"
        assert not text or text.endswith("\n") and not text.endswith("\n\n"), f"{name} ends oddly"
        assert not re.search(r"[ \t]+$", text, re.MULTILINE), f"{name} has trailing spaces"
        if path.suffix == ".py":
            ast.parse(text, str(name))
        if path.suffix in (".yml", ".yaml"):
            yaml.safe_load(text)


@pytest.mark.parametrize("name", ["poolside", "add_on", "npu2", "x", LONGEST])
def test_the_metadata_is_that_of_the_answers(render: Callable[..., Path], name: str) -> None:
    tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")
    author = 'O"Neil \\ Söhne 😀'
    tree = render(
        backend_name=name, author=author, description="It's <fast> & 'new'", license="MIT"
    )
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    distribution = f"tvm-{name.replace('_', '-')}"
    assert project["name"] == distribution
    assert project["authors"] == [{"name": author}]
    assert project["description"] == "It's <fast> & 'new'"
    assert project["license"] == "MIT AND Apache-2.0"
    assert all((tree / name).is_file() for name in project["license-files"])
    assert project["entry-points"]["tvm.backends"] == {name: f"tvm_{name}:_autoload"}
    assert author in (tree / "LICENSE").read_text()
    assert (tree / f"python/tvm_{name}/__init__.py").is_file()
    assert f'#define BACKEND_NAME "{name}"\n' in (tree / "src/backend.h").read_text()

    # Formats without comments.


SILENT = {".json", ".typed"}


@pytest.mark.parametrize("license", ["Apache-2.0", "MIT", "BSD-3-Clause", "LicenseRef-Proprietary"])
def test_each_file_begins_with_its_licence(render: Callable[..., Path], license: str) -> None:
    tree = render(backend_name="licensed", license=license)
    for path in support.files(tree):
        name = path.relative_to(tree).as_posix()
        if path.name.endswith("LICENSE") or path.suffix in SILENT:
            continue
        of_the_file = "Apache-2.0" if name.startswith("engine/") else license
        if path.name == "dagre.min.js":
            of_the_file = "MIT"
        first = path.read_text().splitlines()[0]
        assert f"SPDX-License-Identifier: {of_the_file}" in first, f"{name} begins with {first!r}"
    assert (tree / "engine/LICENSE").read_text().lstrip().startswith("Apache License")
    assert (license == "Apache-2.0") == (
        (tree / "LICENSE").read_bytes() == (tree / "engine/LICENSE").read_bytes()
    )


def test_the_engine_has_the_same_bytes_in_every_render(render: Callable[..., Path]) -> None:
    # These files only build and test the engine in the template.
    unrendered = {"CMakeLists.txt", "tests/cpp/unrendered/backend.h"}
    source = {
        path.relative_to(ENGINE).as_posix(): path.read_bytes() for path in support.sources(ENGINE)
    }
    assert unrendered <= source.keys()
    of_isa = {name for name in source if {"isa", "isa_emulator", "isa.py"} & {*Path(name).parts}}
    assert len(of_isa) > 20
    for answers in (
        {"backend_name": "npu2"},
        {"backend_name": LONGEST, "license": "MIT", "author": "Somebody", "on_decline": "error"},
        {"backend_name": "x", "license": "LicenseRef-Proprietary", "op_preset": "transformer"},
        {"backend_name": "add_on", "op_preset": "cnn", "bind_constants": False},
        _custom("single", "topk"),
        {"backend_name": "own", "driver": "isa"},
    ):
        engine = support.contents(render(**answers) / "engine")
        different = {name for name in engine if engine[name] != source.get(name)}
        assert not different, different
        left_out = unrendered if answers.get("driver") == "isa" else {*unrendered, *of_isa}
        assert engine.keys() == source.keys() - left_out


def test_the_engine_holds_no_jinja() -> None:
    sources = support.sources(ENGINE)
    assert len(sources) > 300
    for path in sources:
        assert path.suffix != ".jinja", path
        assert "{%" not in path.name and "{{" not in path.name, path
        found = re.search(r"\{%-? |(?<!\$)\{\{ \w+ \}\}", path.read_text(encoding="utf-8"))
        assert not found, f"{path.name} holds {found and found.group()!r}"


def test_python_modules_are_short() -> None:
    """As CONTRIBUTING.md says."""
    modules = [
        path
        for folder in ("generator/npu_scaffold", "template/engine")
        for path in (ROOT / folder).rglob("*.py")
        if not {"tests", "benchmarks"} & set(path.parts[len(ROOT.parts) :])
    ]
    assert len(modules) > 100
    lines = {path: path.read_bytes().count(b"\n") for path in modules}
    assert {path: count for path, count in lines.items() if count > 500} == {}


def test_rendered_files_and_seeds_are_short() -> None:
    reference = ROOT / "reference_backend"
    lines: Counter[str] = Counter()
    for path in support.sources(reference):
        owner = path.relative_to(reference).parts[0]
        owner = owner if owner in ("engine", "vendor") else "rendered"
        lines[owner] += path.read_bytes().count(b"\n")
    assert lines["rendered"] <= 2500, lines
    assert lines["vendor"] <= 2000, lines
    (table,) = reference.glob("python/*/patterns.py")
    assert table.read_bytes().count(b"\n") < 1020


def test_no_trace_of_the_reference_is_in_a_render_under_another_name(
    render: Callable[..., Path],
) -> None:
    letters = random.Random().choices("bcdfghjklmnpqrstvwxz", k=9)
    tree = render(backend_name=f"{''.join(letters)}_acc")
    trace = re.compile(r"example[ _-]?npu", re.IGNORECASE)
    files = support.files(tree)
    assert len(files) > 300
    for path in files:
        name = path.relative_to(tree).as_posix()
        assert not trace.search(name)
        found = trace.search(path.read_text())
        assert not found, f"{name} holds {found and found.group()}"


def test_an_unselected_op_leaves_no_trace_but_its_name(
    render: Callable[..., Path], catalog: dict[str, Any]
) -> None:
    tree = render(**_custom("traceless", "relu"))
    rest = {entry["relax"] for op, entry in catalog.items() if op != "relu" and "relax" in entry}
    assert len(rest) > 100
    # Reports name ops that could be selected.
    (names,) = tree.glob("python/*/_backend.py")
    assert all(f'"{relax}": "' in names.read_text() for relax in rest)
    # The engine's knowledge of Relax itself is the same in all backends.
    tables = [path for path in (tree / "python").rglob("*") if path.is_file() and path != names]
    assert "patterns.py" in {path.name for path in tables}
    for path in tables:
        text = path.read_text()
        for relax in rest:
            assert f'"{relax}"' not in text, f"{path.relative_to(tree)} holds {relax}"


def test_all_names_are_legal_on_windows(render: Callable[..., Path]) -> None:
    reserved = {"con", "prn", "aux", "nul", *(f"{d}{i}" for d in ("com", "lpt") for i in range(10))}
    for root in (
        ROOT / "template",
        ROOT / "generator",
        ROOT / "tests",
        render(backend_name="npu2"),
    ):
        seen: set[str] = set()
        files = support.files(root)
        assert len(files) > 10, root
        for path in files:
            name = path.relative_to(root)
            assert len(str(name)) < 120, name
            assert str(name).lower() not in seen, f"{name} differs from another in case only"
            seen.add(str(name).lower())
            for part in name.parts:
                assert not re.search(r'[<>:"|?*\\\x00-\x1f]', part), name
                assert not part.endswith((".", " ")), name
                assert part.split(".")[0].lower() not in reserved, name


def test_the_linters_and_formatters_leave_the_engine_unchanged_in_the_template() -> None:
    support.run("ruff", "check", "--no-cache", ".", cwd=ENGINE)
    support.run("ruff", "format", "--no-cache", "--diff", ".", cwd=ENGINE)
    cache = ROOT / ".mypy_cache/engine"
    support.run("mypy", "--config-file", "mypy.ini", "--cache-dir", cache, cwd=ENGINE)
    sources = [path for path in support.sources(ENGINE) if path.suffix in CPP]
    assert len(sources) > 100
    support.run("clang-format", "--dry-run", "--Werror", *sources)


@pytest.mark.parametrize("answers", FORMATTED, ids=_label)
def test_the_python_linters_and_formatters_leave_a_render_unchanged(
    render: Callable[..., Path], answers: dict[str, Any]
) -> None:
    tree = render(**answers)
    support.run("ruff", "check", "--no-cache", ".", cwd=tree)
    support.run("ruff", "format", "--no-cache", "--diff", ".", cwd=tree)
    support.run("mypy", "--cache-dir", ROOT / ".mypy_cache/render", cwd=tree)


@pytest.mark.parametrize("answers", FORMATTED, ids=_label)
def test_clang_format_leaves_a_render_unchanged(
    render: Callable[..., Path], answers: dict[str, Any]
) -> None:
    tree = render(**answers)
    sources = [path for path in support.files(tree) if path.suffix in CPP]
    support.run("clang-format", "--dry-run", "--Werror", *sources)


def test_clang_format_is_set_alike_here_and_in_a_render(render: Callable[..., Path]) -> None:
    """The template's own sources use the settings of this repository."""
    there = (render(backend_name="npu2") / ".clang-format").read_text()
    assert there == (ROOT / ".clang-format").read_text()


def test_the_wheel_build_and_the_linters_are_pinned_alike_here_and_in_a_render(
    render: Callable[..., Path],
) -> None:
    here = (ROOT / "pyproject.toml").read_text()
    there = (render(backend_name="npu2") / "pyproject.toml").read_text()
    pattern = (
        r'"((?:clang-format|mypy|ruff|apache-tvm|apache-tvm-ffi|scikit-build-core)[=<>][^"]*)"'
    )
    assert set(re.findall(pattern, here)) == set(re.findall(pattern, there))
