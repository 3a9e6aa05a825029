"""docs/report.md lists the codes, the fields and the version of the report."""

import ast
import importlib
import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/report.md").read_text()
ENGINE = ROOT / "template/engine"


def section(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title):
    table = [line for line in section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def fields_of(name):
    modules = (ENGINE / f"backend/report/{module}.py" for module in ("report", "region"))
    items = (item for module in modules for item in ast.parse(module.read_text()).body)
    (found,) = (item for item in items if getattr(item, "name", "") == name)
    return [item.target.id for item in found.body if isinstance(item, ast.AnnAssign)]


def test_codes_are_those_of_the_engine(monkeypatch):
    # The package itself needs TVM.
    package = types.ModuleType("engine_alone")
    package.__path__ = [str(ENGINE)]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    reasons = importlib.import_module("engine_alone.backend.table.reasons")
    expected = [[f"`{code.value}`", code.meaning, code.remedy] for code in reasons.Code]
    assert rows("Codes") == expected


def test_fields_of_an_op_are_those_of_the_engine():
    names = [name for row in rows("An op") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(names) == sorted(fields_of("OpPlacement"))


def test_fields_of_a_region_are_named():
    named = set(re.findall(r"`(\w+)`", section("A region")))
    assert set(fields_of("RegionPlacement")) <= named


def test_the_version_is_that_of_the_engine():
    text = (ENGINE / "backend/report/report.py").read_text()
    (version,) = re.findall(r"^VERSION = (\d+)$", text, re.MULTILINE)
    assert f'"version": {version},' in PAGE
