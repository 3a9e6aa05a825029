"""What is made of the catalogue: files of the template that nobody edits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .catalog import TABLE, catalog_problems, entries_of, load_families
from .entries import ELEMENTS, Entry
from .errors import ScaffoldError
from .snippets import SNIPPETS, snippets

CASES = Path("template/engine/workbench/conformance/op_cases")
RELAX_OPS = TABLE / "relax_ops.json"

_OF_CASES = ("numpy", "results", "benchmarks", "cases", "refused")


def derived_files(template: Path) -> dict[Path, str]:
    """Make the files, if the catalogue has no violations.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.

    Returns
    -------
    dict
        Path from there to text.
    """
    if problems := catalog_problems(template):
        raise ScaffoldError("\n".join(problems))
    documents = load_families(template)
    catalog = entries_of(documents)
    cases = {CASES / f"{family}.json": _cases(text) for family, text in documents.items()}
    return {RELAX_OPS: _relax_ops(catalog), SNIPPETS: snippets(catalog, documents), **cases}


def write_derived(template: Path) -> None:
    """Write the files into the template.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.
    """
    for path, text in derived_files(template).items():
        (template / path).write_text(text, encoding="utf-8")


def _relax_ops(catalog: Mapping[str, Entry]) -> str:
    """Return what the engine knows of all Relax ops of the catalogue, selected or not, as JSON."""
    found: dict[str, set[str]] = {kind: set() for kind in ELEMENTS}
    names = {entry["relax"]: entry for entry in catalog.values() if "relax" in entry}
    for name, entry in names.items():
        for kind in entry.get("elements", ()):
            found[kind].add(name)
    found["nn"] = {name for name in names if name.startswith("relax.nn.")}
    ordered = {kind: sorted(ops) for kind, ops in sorted(found.items())}
    return json.dumps(ordered, indent=1) + "\n"


def _cases(document: Mapping[str, Any]) -> str:
    """Return the cases of a family as JSON, for the conformance kit: a line for each."""
    ops = []
    for op, entry in document.items():
        if not op.startswith("."):
            keys = [f' "{key}": {_case_lines(entry[key])}' for key in _OF_CASES if key in entry]
            ops.append(f'"{op}": {{\n' + ",\n".join(keys) + "\n}")
    return "{\n" + ",\n".join(ops) + "\n}\n"


def _case_lines(value: object) -> str:
    if isinstance(value, list):
        rows = [f"  {json.dumps(case, ensure_ascii=False)}" for case in value]
        return "[\n" + ",\n".join(rows) + "\n ]"
    return json.dumps(value, ensure_ascii=False)
