"""What files in vendor/ use of the engine only grows: no update may break a vendor's own code."""

from __future__ import annotations

import ast
import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from npu_scaffold.versions import read_releases
from support import ROOT

RELEASES = read_releases((ROOT / "releases.yml").read_text())
ENGINE = "template/engine"
C_PLUS_PLUS = (
    f"{ENGINE}/backend/codegen/lowering.h",
    f"{ENGINE}/backend/include/driver_kit/",
    f"{ENGINE}/backend/lowerings/",
)
"""What lowerings and drivers of vendors include, beside the driver header."""
OPCODES = f"{ENGINE}/backend/include/driver_kit/vector_opcodes.h"
"""Makes methods for lowering.h: BOTH(ADD, Add, ...) and REALS(EXP, Exp, ...)."""
OF_EARLIER_RELEASES = {
    f"{ENGINE}/python/engine/passes/": f"{ENGINE}/backend/passes/",
    f"{ENGINE}/python/engine/": f"{ENGINE}/",
    **{f"{ENGINE}/{name}/": f"{ENGINE}/backend/{name}/" for name in ("codegen", "include")},
    f"{ENGINE}/lowerings/": f"{ENGINE}/backend/lowerings/",
}
"""Where releases before 0.5 had what now is elsewhere."""


def tree_of(commit: str) -> dict[str, str]:
    """Read the files of the template as a release had them, by path."""
    packed = subprocess.run(
        ["git", "archive", commit, "template"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        return {
            _place(member.name): file.read().decode(errors="replace")
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }


def _place(path: str) -> str:
    """Return where a file of a release is now."""
    for before, now in OF_EARLIER_RELEASES.items():
        if path.startswith(before):
            return now + path.removeprefix(before)
    return path


def tree_now() -> dict[str, str]:
    paths = [path for path in (ROOT / "template").rglob("*") if path.is_file()]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(errors="replace")
        for path in paths
        if "__pycache__" not in path.parts
    }


def imports_of_seeds(tree: dict[str, str]) -> set[tuple[str, str]]:
    """Return the modules of the engine that seeds import from, with the names."""
    found = set()
    for path, text in tree.items():
        if not path.startswith("template/vendor/"):
            continue
        for module, several, one in re.findall(
            r"^from \{\{ package \}\}\.engine(\S*) import (?:\((.*?)^\)|(\w+(?:, \w+)*))",
            text,
            re.DOTALL | re.MULTILINE,
        ):
            names = re.sub(r"#.*|\{%.*?%\}|\{\{.*?\}\}", "", several or one)
            found |= {(module.removeprefix("."), name) for name in re.findall(r"\w+", names)}
    return found


def path_of(tree: dict[str, str], module: str) -> str:
    """Return the file of a module of the engine."""
    base = "/".join([ENGINE, *filter(None, module.split("."))])
    return next(path for path in (f"{base}.py", f"{base}/__init__.py") if path in tree)


def names_of(tree: dict[str, str], module: str) -> set[str]:
    """Return the names that a module of the engine defines or imports."""
    names = set()
    for node in ast.parse(tree[path_of(tree, module)]).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(item.asname or item.name) for item in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    folder = Path(path_of(tree, module)).parent if module == "" else None
    return names | {Path(path).stem for path in tree if Path(path).parent == folder}


def definition_of(
    tree: dict[str, str], module: str, name: str
) -> ast.FunctionDef | ast.ClassDef | None:
    """Return the definition of a function or a class, through the modules that import it."""
    for node in ast.parse(tree[path_of(tree, module)]).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
        if (
            isinstance(node, ast.ImportFrom)
            and node.level
            and name in [item.asname or item.name for item in node.names]
        ):
            is_package = path_of(tree, module).endswith("/__init__.py")
            inside = module.split(".")[: None if is_package else -1]
            inside = inside[: len(inside) - node.level + 1]
            whole = ".".join(filter(None, [*inside, node.module]))
            return definition_of(tree, whole, name)
    return None


def parameters_of(definition: ast.FunctionDef | ast.ClassDef) -> list[tuple[str, bool]]:
    """Return the parameters of a function, or the fields of a class, and which have defaults."""
    if isinstance(definition, ast.ClassDef):
        made = [item for item in definition.body if isinstance(item, ast.FunctionDef)]
        init = next((item for item in made if item.name == "__init__"), None)
        if init is None:
            return [
                (item.target.id, item.value is not None)
                for item in definition.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            ]
        definition = init
    plain = [*definition.args.posonlyargs, *definition.args.args]
    first_default = len(plain) - len(definition.args.defaults)
    return [(item.arg, at >= first_default) for at, item in enumerate(plain) if item.arg != "self"]


def words(text: str, pattern: str) -> set[str]:
    """Return what a pattern finds outside of comments."""
    return set(re.findall(pattern, re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)))


def public_text(tree: dict[str, str], path: str) -> str:
    """Return a header with those that it includes from its folder, without private parts."""
    text = re.sub(r"^ private:.*?^};", "};", tree[path], flags=re.DOTALL | re.MULTILINE)
    beside = [str(Path(path).with_name(name)) for name in re.findall(r'#include "([\w.]+)"', text)]
    return "\n".join([text, *(public_text(tree, other) for other in beside if other in tree)])


def passes_of(tree: dict[str, str]) -> set[str]:
    """Return the names of the canonicalization passes, which a vendor may leave out."""
    text = tree[f"{ENGINE}/backend/passes/pipeline.py"]
    return words(
        text[text.index("CANONICALIZATION:") :], r'(?:_calls|_blocks|_of_tvm|Pass)\("(\w+)"'
    )


@pytest.fixture(scope="module", params=RELEASES)
def trees(request: pytest.FixtureRequest) -> tuple[dict[str, str], dict[str, str]]:
    """The template of a release, and today's."""
    return tree_of(RELEASES[request.param]), tree_now()


Trees = tuple[dict[str, str], dict[str, str]]


def test_what_seeds_import_is_still_there(trees: Trees) -> None:
    then, now = trees
    imported = imports_of_seeds(then)
    assert len(imported) > 15
    missing = {item for item in imported if item[1] not in names_of(now, item[0])}
    assert not missing


def test_what_seeds_import_takes_the_same_arguments(trees: Trees) -> None:
    compared = 0
    for module, name in imports_of_seeds(trees[0]):
        old, new = (definition_of(tree, module, name) for tree in trees)
        if old is None:
            continue
        compared += 1
        assert new is not None, name
        before, after = parameters_of(old), parameters_of(new)
        names = [parameter for parameter, _ in before]
        # The seeds name all arguments but the first ones.
        assert [parameter for parameter, _ in after][: min(3, len(names))] == names[:3], name
        assert set(names) <= {parameter for parameter, _ in after}, name
        added = [has_default for parameter, has_default in after if parameter not in names]
        assert all(added), name
    assert compared > 8


def test_passes_keep_their_names(trees: Trees) -> None:
    then, now = trees
    assert len(passes_of(then)) > 10
    assert passes_of(then) <= passes_of(now)


def test_build_settings_keep_their_names(trees: Trees) -> None:
    then, now = trees
    path = f"{ENGINE}/engine.cmake"
    settings = words(then[path], r"NPU_VENDOR_[A-Z_]*[A-Z]\b")
    assert len(settings) > 5
    assert settings <= words(now[path], r"NPU_VENDOR_[A-Z_]*[A-Z]\b")


def test_lowerings_and_drivers_find_the_names_that_they_call(trees: Trees) -> None:
    then, now = trees
    ours = [path for path in then if path.startswith(C_PLUS_PLUS) and path.endswith(".h")]
    assert len(ours) >= 5
    for path in ours:
        public = r"\b(?!DRIVER_)([A-Z][A-Za-z_]*\w)(?= ?[({<])"
        if path.startswith(f"{ENGINE}/backend/lowerings/"):
            # Only what a header defines, not what it calls.
            public = r"\binline [^(]*\b(\w+)\("
        assert path in now, path
        there = words(public_text(now, path), public)
        if path.endswith("/lowering.h"):
            there |= words(now[OPCODES], r"\b(?:BOTH|REALS)\(\w+, (\w+)")
        missing = words(public_text(then, path), public) - there
        assert not missing, (path, missing)
