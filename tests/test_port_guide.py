"""The port guide: its commands run in order, on XNNPACK, and print what the page shows."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from first_op import edit
from pages import Part, clone, without_quotes
from support import NEEDS_XNNPACK, ROOT, Workshop, run

pytestmark = [pytest.mark.slow, NEEDS_XNNPACK]

PAGE = ROOT / "docs/port-guide.md"
NEEDED = ("copier.yml", "template", "docs/demo", "tests/first_op.py", "tests/overlays/xnnpack")
"""What the page needs of a clone."""
STAGES = dict(
    re.findall(r"^## (\d)\. [^\n]*\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)


@dataclass
class Port:
    """The folder of a reader who follows the guide, and the last finished stage."""

    folder: Path
    python: Path
    done: int = 0

    @property
    def project(self) -> Path:
        return self.folder / "tvm-acme-npu"


@pytest.fixture(scope="module")
def port(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Port:
    folder = tmp_path_factory.mktemp("port")
    clone(folder / "scaffold", *NEEDED)
    python = workshop.environment(workshop.wheel(ROOT / "reference_backend"))
    run(python, "-m", "pip", "uninstall", "-q", "-y", "tvm-example-npu")
    run(python, "-m", "pip", "install", "-q", "onnx", "onnxruntime")
    return Port(folder, python)


def _first_op(vendor: Path) -> None:
    chip = re.compile(r"^CHIP = Chip\(\n.*?^\)\n", re.MULTILINE | re.DOTALL)
    (ours,) = chip.findall(STAGES["3"])
    capabilities = vendor / "capabilities.py"
    changed, count = chip.subn(ours, capabilities.read_text())
    assert count == 1
    capabilities.write_text(changed)
    edit(vendor / "tests/test_driver.py", [("WRITTEN = ()", 'WRITTEN = ("relu",)')])


def _op_set(vendor: Path) -> None:
    capabilities = vendor / "capabilities.py"
    left_out = re.findall(r"^\| `(\w+)` \| `None` \|$", STAGES["4"], re.MULTILINE)
    assert left_out
    for op in left_out:
        entry = re.compile(rf'^    "{op}": Limits\(.*\),\n', re.MULTILINE)
        changed, count = entry.subn(f'    "{op}": None,\n', capabilities.read_text())
        assert count == 1
        capabilities.write_text(changed)
    written = '("add", "conv2d", "matmul", "max_pool2d", "mean", "relu")'
    edit(vendor / "tests/test_driver.py", [('WRITTEN = ("relu",)', f"WRITTEN = {written}")])


def _integers(vendor: Path) -> None:
    dtypes = '    dtypes=("float32", "int8", "int32"),\n'
    edit(vendor / "capabilities.py", [('    dtypes=("float32",),\n', dtypes)])


def _without_integers(vendor: Path) -> None:
    dtypes = '    dtypes=("float32", "int8", "int32"),\n'
    edit(vendor / "capabilities.py", [(dtypes, '    dtypes=("float32",),\n')])


WRITTEN = {"3": _first_op, "4": _op_set, "6": _integers, "7": _without_integers}
"""The vendor's edits before the commands of a stage."""


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_ends_with_what_the_guide_shows(port: Port, stage: str) -> None:
    if port.done != int(stage) - 1:
        pytest.skip(f"stage {port.done + 1} failed")
    if stage in WRITTEN:
        WRITTEN[stage](port.project / "vendor")
    part = Part("\n" + without_quotes(STAGES[stage]))
    print(part.execute(port.folder, port.python, None if stage == "1" else port.project))
    port.done += 1


def test_the_boards_wheel_has_nothing_that_compiles_and_no_emulator(port: Port) -> None:
    if port.done < 7:
        pytest.skip(f"stage {port.done + 1} failed")
    (wheel,) = (port.project / "dist/board").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = {name for name in archive.namelist() if name.endswith(".so")}
    assert libraries == {
        f"tvm_acme_npu/libtvm_acme_npu_{part}.so" for part in ("driver", "runtime")
    }


def test_only_what_is_the_vendors_was_written(port: Port) -> None:
    if port.done != len(STAGES):
        pytest.skip(f"stage {port.done + 1} failed")
    first = run("git", "rev-list", "--max-parents=0", "HEAD", cwd=port.project).strip()
    changed = run("git", "diff", "--name-only", first, "HEAD", cwd=port.project).split()
    assert changed
    assert [name for name in changed if not name.startswith("vendor/")] == []
    # Stage 9 adds everything that is not ignored.
    assert run("git", "status", "--porcelain", cwd=port.project) == ""


def test_the_commands_of_agents_md_run(port: Port) -> None:
    if port.done != len(STAGES):
        pytest.skip(f"stage {port.done + 1} failed")
    page = (port.project / "AGENTS.md").read_text()
    Part(page).execute(port.folder, port.python, port.project)
    listed = re.findall(r"^(\d)\. \*\*", page, re.MULTILINE)
    assert listed == [*STAGES], "it has the stages of the guide"


def test_the_editable_install_is_that_of_the_readme(port: Port) -> None:
    readme = {line.strip() for line in (port.project / "README.md").read_text().splitlines()}
    lines = [line for line in STAGES["2"].splitlines() if line.startswith("pip install")]
    assert len(lines) == 2
    assert [line for line in lines if line.replace(" -q", "") not in readme] == []


def test_every_stage_says_when_it_is_done() -> None:
    assert [*STAGES] == [str(number) for number in range(1, 10)]
    for stage, text in STAGES.items():
        assert "**Done when**" in text, stage
