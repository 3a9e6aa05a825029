"""Loads the op catalogue and checks it; each violation is a sentence."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from .entries import Entry, Known, entry_problems, names_in
from .errors import ScaffoldError
from .snippets import evaluate
from .template import CATALOG

LOWERINGS = Path("template/engine/backend/lowerings")
TABLE = Path("template/engine/backend/table")
_REGISTERED = re.compile(r'REGISTER_\w+\("([\w.]+)"')


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses duplicate keys, which YAML accepts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, object]:
        # Keys merged by '<<' may be overridden, and are not merged yet.
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1 and not self._merged(node):
                raise ScaffoldError(
                    f"line {node.start_mark.line + 1}: the key '{key}' is there twice"
                )
        found: dict[Any, object] = super().construct_mapping(node, deep)
        return found

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        self._known.add(id(node))
        super().flatten_mapping(node)

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._known: set[int] = set()

    def _merged(self, node: yaml.MappingNode) -> bool:
        return id(node) in self._known


def load_catalog(template: Path) -> dict[str, Entry]:
    """Load the catalogue.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.

    Returns
    -------
    dict
        Op name to entry, in the order of ids, not yet checked. Entries that refer to the cases of
        another op have copies.
    """
    return entries_of(load_families(template))


def entries_of(documents: Mapping[str, dict[str, Any]]) -> dict[str, Entry]:
    """Return the catalogue that the files of the families are.

    Parameters
    ----------
    documents
        Family to the mapping of its file; see `load_families`.

    Returns
    -------
    dict
        As `load_catalog` returns it.
    """
    found: dict[str, Entry] = {}
    for family, document in documents.items():
        for op, entry in document.items():
            if str(op).startswith("."):
                continue
            if op in found:
                raise ScaffoldError(
                    f"{CATALOG / family}.yml: '{op}' is in {found[op]['family']} too."
                )
            if isinstance(entry, dict):
                entry = {**_resolved(entry, document), "family": family}
            found[op] = entry
    if not found:
        raise ScaffoldError(f"{CATALOG} has no op.")

    def number(item: tuple[str, Entry]) -> int:
        given = item[1].get("id") if isinstance(item[1], dict) else None
        return given if isinstance(given, int) else len(found) + 1

    return dict(sorted(found.items(), key=number))


def load_families(template: Path) -> dict[str, dict[str, Any]]:
    """Load the files of the catalogue, by family; a key that begins with a dot is no op.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.

    Returns
    -------
    dict
        Family to the mapping of its file.
    """
    paths = sorted((template / CATALOG).glob("*.yml"))
    return {path.stem: _load_yaml(template, path) for path in paths}


def _load_yaml(template: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(template)
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except ScaffoldError as error:
        raise ScaffoldError(f"{name}: {error}.") from None
    except yaml.YAMLError as error:
        raise ScaffoldError(f"{name} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(document, dict):
        raise ScaffoldError(f"{name} must be a mapping of op ids to entries.")
    if document.get(".family") != path.stem or not isinstance(document.get(".title"), str):
        raise ScaffoldError(
            f"{name} must begin with '.family: {path.stem}' and a '.title', its heading."
        )
    return document


def _resolved(entry: Entry, document: Mapping[str, Any]) -> Entry:
    """Replace the name of another op by its cases."""
    found = dict(entry)
    for key in ("cases", "refused"):
        other = document.get(entry[key]) if isinstance(entry.get(key), str) else None
        if isinstance(other, dict):
            found[key] = other.get(key, entry[key])
    return found


@cache
def _engine_module(template: Path, name: str) -> ModuleType:
    """Import one of those of the engine's modules about the table that do not import TVM."""
    root = f"_engine_{hash(template)}"
    if root not in sys.modules:
        package = sys.modules[root] = ModuleType(root)
        package.__path__ = [str(template / "template/engine")]
    return importlib.import_module(f"{root}.backend.table.{name}")


def catalog_problems(template: Path) -> list[str]:
    """Check the catalogue, and the files that its entries need.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.

    Returns
    -------
    list of str
        One sentence per violation: the file, the op, the key, and what is allowed there.
    """
    try:
        documents = load_families(template)
        catalog = entries_of(documents)
    except ScaffoldError as error:
        return [str(error)]
    problems = []
    known = _known(template, catalog)
    lowered = {
        entry["relax"] for entry in catalog.values() if isinstance(entry, dict) and "relax" in entry
    }
    for op, entry in catalog.items():
        found = list(entry_problems(op, entry, known))
        family = "*"
        if isinstance(entry, dict):
            family = entry["family"]
            found += _chain_problems(template, entry, lowered)
        found = found or list(_judged(template, op, entry))
        problems += [f"{CATALOG / family}.yml: {op}: {problem}" for problem in found]
    problems += _ids(catalog)
    problems += _pieces(documents)
    problems += _files(template, catalog)
    return problems


def _ids(catalog: dict[str, Entry]) -> Iterator[str]:
    """Check that ids are 1, 2, 3 and so on."""
    known: dict[int, str] = {}
    for op, entry in catalog.items():
        number = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(number, int):
            continue
        where = f"{CATALOG / entry['family']}.yml: {op}: id:"
        if number in known:
            yield f"{where} {number} is {known[number]}'s already; the ids are 1 to {len(catalog)}."
        elif not 1 <= number <= len(catalog):
            yield f"{where} {number} leaves a gap; the ids are 1 to {len(catalog)}."
        known[number] = op


def _pieces(documents: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Check that no two families share something under one name: in Python, it is one."""
    known: dict[str, str] = {}
    for family, document in documents.items():
        for key, piece in document.items():
            if str(key).startswith(".") and isinstance(piece, dict):
                if key in known:
                    yield f"{CATALOG / family}.yml: {key}: {known[key]}.yml has that name, too."
                known[key] = family


def _known(template: Path, catalog: Mapping[str, Entry]) -> Known:
    capability = _engine_module(template, "capability")
    tolerances = (capability.Elementwise, capability.Accumulated, capability.Buckets)
    return Known(
        ops=catalog.keys(),
        dtypes=_engine_module(template, "chip").DTYPES,
        engines=capability.ENGINES,
        inside=capability.INSIDE,
        tolerances={
            kind.__name__.lower(): {bound.name: bound.default is MISSING for bound in fields(kind)}
            for kind in tolerances
        },
    )


def _judged(template: Path, op: str, entry: Entry) -> Iterator[str]:
    """Let the engine judge an entry of the right form."""
    try:
        evaluate(op, entry, vars(_engine_module(template, "capability")))
    except (SyntaxError, TypeError, ValueError) as error:
        yield f"{str(error).removeprefix(f'{op}: ')}."


def _chain_problems(template: Path, entry: Entry, lowered: set[str]) -> Iterator[str]:
    """Check chains with the engine's own parser."""
    grammar = _engine_module(template, "chain_grammar")
    chains = entry.get("chains")
    for index, chain in enumerate(chains if isinstance(chains, list) else ()):
        lines = (chain,) if isinstance(chain, str) else chain
        if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
            yield f"chains[{index}]: {chain!r} is neither an expression nor a list of lines."
            continue
        try:
            node = grammar.read_all(tuple(lines), names_in(entry, "inputs"))[0].node
        except ValueError as error:
            yield f"chains[{index}]: {error}."
            continue
        for name in sorted(grammar.attribute_names(node) - {*names_in(entry, "attributes")}):
            yield f"chains[{index}]: '{name}' is neither an input nor an attribute."
        # The codegen lowers a composite without an op of its own step by step.
        for name in sorted(grammar.ops_in(node) - lowered) if "relax" not in entry else ():
            yield f"chains[{index}]: no entry of the catalogue has the op {name}."


def _files(template: Path, catalog: dict[str, Entry]) -> Iterator[str]:
    """Check that the file of each family lowers its ops, and no others."""
    folder = template / LOWERINGS
    sources = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.cc")}
    lowered = {family: set(_REGISTERED.findall(text)) for family, text in sources.items()}
    wanted: dict[str, set[str]] = {}
    for op, entry in catalog.items():
        if not isinstance(entry, dict) or "relax" not in entry:
            continue
        family, relax = entry["family"], entry["relax"]
        wanted.setdefault(family, set()).add(relax)
        if relax not in lowered.get(family, ()):
            yield f"{LOWERINGS / family}.cc: the lowering of {op}, {relax}, is missing."
    for family, ops in sorted(lowered.items()):
        for relax in sorted(ops - wanted.get(family, set())):
            yield f"{LOWERINGS / family}.cc: {CATALOG / family}.yml has no entry of {relax}."
    for path in sorted(folder.glob("*.h")):
        if not any(f'#include "{path.name}"' in text for text in sources.values()):
            yield f"{LOWERINGS / path.name}: no lowering includes it."
