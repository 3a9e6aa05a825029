"""Says which code ops become, by the first cases of each: PACKAGE [OP...] prints it as JSON."""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

package, *chosen = sys.argv[1:]
ops = importlib.import_module(f"{package}.engine.workbench.conformance.ops")
compiled = importlib.import_module(f"{package}.engine.workbench.conformance.compiled")
CASES = 3
VECTORS = {"act", "cvt", "lut", "red", "rescale", "sel", "vec", "vecq", "vecs"}
INSTRUCTION = re.compile(r"^ *\d+  (\w+)", re.MULTILINE)


def programs(module: Any) -> list[str]:
    """Return the texts of the programs in a module."""
    own = [str(module["describe"]())] if module.kind == compiled.BACKEND else []
    return own + [text for inner in module.imports for text in programs(inner)]


def code_of(model: Any) -> str:
    """Return which kind of code the case is."""
    made = compiled.compile_all([model], driver="vendor")
    executable = made.executables[model.name]
    if isinstance(executable, Exception):
        raise executable
    report = compiled.offload_report(made.partitioned[model.name])
    if report.on_host:
        return "host"
    names = {name for text in programs(executable.mod) for name in INSTRUCTION.findall(text)}
    if any(region.warnings for region in report.regions):
        return "scalar"
    if names & {"mm", "dw"}:
        return "matrix"
    return "vector" if names & VECTORS else "moves"


def about(kinds: set[str]) -> str:
    """Return how the guide says it."""
    if "host" in kinds:
        return "some cases on the host"
    if "scalar" in kinds:
        return "scalar code" if kinds == {"scalar"} else "some cases scalar code"
    if "matrix" in kinds:
        return "`mm` or `dw`, some cases vectors"
    return "vectors" if "vector" in kinds else "moves alone"


found: dict[str, list[str]] = {}
for work in ops._works().values():
    known = found.setdefault(work.case.op, [])
    if work.expected == "all" and (not chosen or work.case.op in chosen) and len(known) < CASES:
        known.append(code_of(work.case.model()))
print(json.dumps({op: about({*kinds}) for op, kinds in found.items() if kinds}))
