"""The engine is built like a house: two wings, rooms on few floors, and no stairs in circles."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from npu_scaffold.render import MANIFEST
from support import ROOT

PYTHON = ROOT / "template/engine"
OF_ISA = {"isa", "isa_emulator", "isa.py"}
APART = {"benchmarks", "conftest.py", "tests"}
MODULES = {path for path in PYTHON.rglob("*.py") if not APART & {*path.parts}}
MOST_FLOORS = 12
MOST_LINES = {
    **{"engine": 95_000, "engine/backend": 58_600, "rendered": 2_500, "vendor": 2_000},
    "isa": 15_950,
}
"""In the reference backend, and of instruction sets, which it does not have; the engine's
sources without tests and benchmarks. They only fall, but for features: SDKs that take a model
file brought 2,200, TOSA 900, scales on tensors 1,200, whole operations 1,050, calibration,
warnings and identity of SDKs 550, real forms of integers 250, ending tools that hang 200, chips
of integers 200, scatters and capacities of states 550, open batches of the driver kit 250,
bundles of programs 450, the kit's suite of states and its decoder 400, texts that decoders
continue 550, their functions in reports and profiles 300, heads that share keys 200, bfloat16
and weights that are unpacked 400, states that are updated in their memory 1,200, rows
of products and branches of PyTorch 150, and steps of any types 30."""
MOST_NAMES = 39
"""In the interface of the conformance kit, which had 87 from 38 modules before it."""

Graph = Mapping[Path, set[Path]]


def _imports(body: Sequence[ast.AST]) -> Iterator[ast.ImportFrom]:
    """Yield the relative imports, those in functions included, but not those for types alone."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.level:
            yield statement
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from _imports(statement.orelse)
        else:
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from _imports(getattr(statement, field, []))


def _dependencies(path: Path) -> set[Path]:
    """Return the modules that a module imports."""
    found = set()
    for statement in _imports(ast.parse(path.read_text()).body):
        base = path.parents[statement.level - 1]
        if statement.module:
            base = base.joinpath(*statement.module.split("."))
        for name in statement.names:
            places = (base / f"{name.name}.py", base / name.name / "__init__.py")
            whole = (base.with_suffix(".py"), base / "__init__.py")
            found.update([place for place in (*places, *whole) if place in MODULES][:1])
    return found


@pytest.fixture(scope="module")
def graph() -> Graph:
    found = {path: _dependencies(path) for path in MODULES}
    assert sum(map(len, found.values())) > len(MODULES) > 200
    return found


def room_of(path: Path) -> str:
    """Return the wing and the package of a module: `backend/passes`."""
    parts = path.relative_to(PYTHON).with_suffix("").parts
    return "/".join(parts[:2])


def in_order(graph: Mapping[Path, set[Path]] | Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of a graph, what they depend on first."""
    try:
        return list(map(str, TopologicalSorter(graph).static_order()))
    except CycleError as error:
        raise AssertionError(" <- ".join(map(str, error.args[1]))) from None


def test_no_module_imports_itself_in_a_circle(graph: Graph) -> None:
    assert len(in_order(graph)) == len(MODULES)


def test_rooms_are_on_few_floors_without_circles(graph: Graph) -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for path, others in graph.items():
        rooms[room_of(path)] |= {room_of(other) for other in others} - {room_of(path)}
    floors: dict[str, int] = {}
    for room in in_order(rooms):
        floors[room] = 1 + max((floors[other] for other in rooms[room]), default=0)
    print(f"{len(floors)} rooms of the Python engine, on {max(floors.values())} floors")
    assert len(floors) > 15
    assert max(floors.values()) <= MOST_FLOORS


def test_what_customers_run_knows_nothing_of_the_workbench(graph: Graph) -> None:
    wings = {path: path.relative_to(PYTHON).parts[0] for path in MODULES}
    backend = [path for path, wing in wings.items() if wing == "backend"]
    assert len(backend) > 100
    wrong = [
        f"{path.relative_to(PYTHON)} imports {other.relative_to(PYTHON)}"
        for path in backend
        for other in graph[path]
        if wings[other] == "workbench"
    ]
    assert not wrong


def test_each_wing_has_its_tests() -> None:
    """Those of the backend take of the workbench the conformance kit alone."""
    tests = [path for name in ("test_*.py", "*_test.cc") for path in PYTHON.rglob(name)]
    wings = [path.relative_to(PYTHON).parts[0] for path in tests]
    assert set(wings) == {"backend", "workbench"}
    assert min(map(wings.count, set(wings))) > 10
    wrong = [
        f"{path.relative_to(PYTHON)} uses {module}"
        for path in (PYTHON / "backend/tests").glob("*.py")
        for module in re.findall(r"backend\.engine\.workbench\.(\w+)", path.read_text())
        if module != "conformance"
    ]
    assert not wrong


def test_the_conformance_kit_sees_the_backend_by_its_interface_alone(graph: Graph) -> None:
    interface = PYTHON / "backend/api.py"
    kit = [path for path in MODULES if path.is_relative_to(PYTHON / "workbench/conformance")]
    assert len(kit) > 30
    wrong = [
        f"{path.relative_to(PYTHON)} imports {other.relative_to(PYTHON)}"
        for path in kit
        for other in graph[path] - {interface}
        if other.is_relative_to(PYTHON / "backend")
    ]
    assert not wrong
    names = [
        name.name for item in _imports(ast.parse(interface.read_text()).body) for name in item.names
    ]
    taken = {
        name.name
        for path in kit
        for item in _imports(ast.parse(path.read_text()).body)
        if item.module == "backend.api"
        for name in item.names
    }
    print(f"{len(names)} names in the interface of the conformance kit")
    assert taken == set(names)
    assert len(names) <= MOST_NAMES


def test_nothing_grows() -> None:
    rendered = (ROOT / MANIFEST).read_text(encoding="utf-8").splitlines()
    files = {Path(name): ROOT / "reference_backend" / name for name in rendered}
    for path in PYTHON.rglob("*"):
        if path.suffix in (".cc", ".h", ".py") and not APART & {*path.parts}:
            files[path.relative_to(PYTHON.parent)] = path
    lines = dict.fromkeys(MOST_LINES, 0)
    for place, path in files.items():
        first = place.parts[0]
        parts = {first if first in lines else "rendered", "/".join(place.parts[:2])}
        if OF_ISA & {*place.parts}:
            parts = {"isa"}
        for part in parts & lines.keys():
            lines[part] += path.read_bytes().count(b"\n")
    print(f"lines without tests: {lines}")
    assert min(lines.values()) > 100
    assert all(lines[part] <= most for part, most in MOST_LINES.items()), lines
