# SPDX-License-Identifier: Apache-2.0
"""The command `drift`: changes of the installed TVM, and whether this backend needs the old."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from ...backend.commands.checking import parameters
from ...backend.importers.attributes.readings import FRONT_DOORS, load
from ...backend.libraries import _library
from ...backend.shared.backend import BACKEND, PACKAGE
from ...backend.shared.problem import Problem
from ...backend.shared.terminal import say
from ...backend.table.chain_grammar import ops_in
from .importer_readings import changes, find, text_of

KNOWN = Path(__file__).with_name("known_tvm.json")
"""The interface of the newest TVM that the engine was tried with; `drift --record` writes it."""

PYTHON = (
    *("backend.ir.calls", "backend.table.patterns", "backend.regions.partition"),
    *("backend.importers", "workbench.quantization"),
)
"""The modules of the engine that name parts of TVM; `drift` tries to import them."""


class Op(TypedDict):
    """The names of arguments and attributes of an op of Relax."""

    arguments: list[str]
    attributes: list[str]


class Interface(TypedDict):
    """The ops of a version of TVM."""

    tvm: str
    ops: dict[str, Op]


@dataclass(frozen=True)
class Difference:
    """A difference of the installed TVM from the recorded one, and if it breaks this backend."""

    breaks: bool
    subject: str
    text: str


def installed() -> Interface:
    """Read the ops of Relax in the installed TVM."""
    import tvm
    import tvm_ffi

    for role in ("runtime", "codegen"):
        _library.open_library(role)
    field_names = tvm_ffi.get_global_func(f"{BACKEND}.codegen.field_names")
    ops: dict[str, Op] = {}
    for name in sorted(str(name) for name in tvm.ir.Op.list_op_names()):
        if name.startswith("relax."):
            op = tvm.ir.Op.get(name)
            arguments = [str(argument.name) for argument in op.arguments]
            # Many ops do not declare the type of their attributes: the function has the names.
            attributes = {*map(str, field_names(str(op.attrs_type_key))), *parameters(name)}
            ops[name] = {
                "arguments": arguments,
                "attributes": sorted(attributes - set(arguments)),
            }
    return {"tvm": str(tvm.__version__), "ops": ops}


def changes_of_ops(
    recorded: Interface, current: Interface, used: Collection[str]
) -> list[Difference]:
    """Compare the ops of two versions."""
    differences = []
    for name in sorted(recorded["ops"].keys() | current["ops"].keys()):
        before, now = recorded["ops"].get(name), current["ops"].get(name)
        if now is None:
            differences.append(Difference(name in used, name, "the op is gone"))
            continue
        if before is None:
            differences.append(Difference(False, name, "the op is new"))
            continue
        if before["arguments"] != now["arguments"]:
            text = f"takes {_listed(now['arguments'])}, no longer {_listed(before['arguments'])}"
            differences.append(Difference(name in used, name, text))
        for attribute in sorted(set(before["attributes"]) - set(now["attributes"])):
            text = f"the attribute '{attribute}' is gone"
            differences.append(Difference(name in used, name, text))
        for attribute in sorted(set(now["attributes"]) - set(before["attributes"])):
            # Its default is unknown: the lowering must look at it.
            text = f"the attribute '{attribute}' is new"
            differences.append(Difference(name in used, name, text))
    return differences


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(names)})"


def find_differences(recorded: Interface) -> tuple[list[Difference], str]:
    """Compare the installed TVM with what the engine needs."""
    import tvm
    import tvm_ffi

    differences = []
    used: set[str] = set()
    try:
        for role in ("runtime", "codegen"):
            _library.open_library(role)
        for name in tvm_ffi.get_global_func(f"{BACKEND}.codegen.missing_ir")():
            differences.append(Difference(True, str(name), "the IR lacks it"))
        lowered = {str(op) for op in tvm_ffi.get_global_func(f"{BACKEND}.codegen.lowered_ops")()}
        used |= lowered & _ops_of_the_table()
    except Exception as error:
        differences.append(Difference(True, "the libraries", str(error)))
    for module in PYTHON:
        try:
            importlib.import_module(f"{PACKAGE}.engine.{module}")
        except Exception as error:
            differences.append(Difference(True, f"engine.{module}", f"does not import: {error}"))
    try:
        current = installed()
        differences += changes_of_ops(recorded, current, used)
    except Exception as error:
        differences.append(Difference(True, "the ops of Relax", f"cannot be read: {error}"))
    differences += changes_of_importers()
    return sorted(differences, key=lambda difference: not difference.breaks), str(tvm.__version__)


def changes_of_importers() -> list[Difference]:
    """Compare what importers and our rules read; it breaks the backend if they read less."""
    differences = []
    for front_door in FRONT_DOORS:
        subject = f"the importer of {front_door}"
        try:
            current = find(front_door)
            changed = changes(load(front_door), current) if current is not None else []
        except Exception as error:
            differences.append(Difference(True, subject, f"cannot be followed: {error}"))
            continue
        differences += [
            Difference(change.loses, f"{subject}, {change.operator}", change.sentence)
            for change in changed
        ]
    return differences


def _ops_of_the_table() -> set[str]:
    """Return the ops that this backend offloads alone, or as steps of a chain."""
    from ...backend.table.chains import chains_of
    from ...backend.table.patterns import TABLE

    ops = {op.relax for op in TABLE.ops if op.relax}
    chains = (chain for op in TABLE.ops if not op.relax for chain in chains_of(op))
    return ops.union(*(ops_in(chain.node) for chain in chains))


def run_drift(arguments: argparse.Namespace) -> int:
    """Tell what the installed TVM has changed; return 1 if this backend needs it."""
    try:
        import tvm
    except ImportError as error:
        raise Problem(f"TVM cannot be imported: {error}") from error
    if tvm._RUNTIME_ONLY or _library.find("codegen") is None:
        raise Problem("'drift' needs the compiler, and only the runtime is here.")
    if arguments.record is not None:
        _write(arguments.record, _text_of(installed()))
    if arguments.record_importers is not None:
        _record_importers(arguments.record_importers)
    if arguments.record is not None or arguments.record_importers is not None:
        return 0
    recorded: Interface = json.loads(KNOWN.read_text(encoding="utf-8"))
    differences, version = find_differences(recorded)
    breaks = [difference for difference in differences if difference.breaks]
    if arguments.json:
        plain = [asdict(difference) for difference in differences]
        data = {"ok": not breaks, "known_tvm": recorded["tvm"], "installed_tvm": version}
        say(json.dumps({**data, "differences": plain}, indent=2))
        return 1 if breaks else 0
    say(f"TVM {version}, compared with {recorded['tvm']}, which the engine was tried with")
    for title, listed in (
        ("this backend needs", breaks),
        ("it does not need", [difference for difference in differences if not difference.breaks]),
    ):
        if listed:
            say(f"changes of what {title}:")
        for difference in listed:
            say(f"  {difference.subject}: {difference.text}")
    if breaks:
        raise Problem(
            f"This TVM has changed {len(breaks)} things that the backend needs. Keep the TVM that "
            "pyproject.toml names until the engine has followed."
        )
    say("Nothing that this backend needs has changed.")
    return 0


def _text_of(interface: Interface) -> str:
    # A line for each op, so that a diff of two versions can be read.
    lines = [f"  {json.dumps(name)}: {json.dumps(op)}" for name, op in interface["ops"].items()]
    body = ",\n".join(lines)
    return f'{{\n "tvm": {json.dumps(interface["tvm"])},\n "ops": {{\n{body}\n }}\n}}\n'


def _record_importers(folder: Path) -> None:
    for front_door in FRONT_DOORS:
        readings = find(front_door)
        if readings is None:
            raise Problem(
                f"'{front_door}' is not installed, whose operators the table {front_door}.json "
                "lists; install it and record again."
            )
        _write(folder / f"{front_door}.json", text_of(readings))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Problem(f"'{path}' cannot be written: {error.strerror}") from None
    say(f"written: {path}")
