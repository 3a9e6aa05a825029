"""The page about deployment: its commands run, in its order, and print what it says."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import ROOT, Workshop, run

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/deploy.md"
BLOCK = re.compile(r"^```(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHER_PROCESSOR = "8. Another processor"
CROSS_TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64")
# Jobs with groups of their own, as in a terminal, and none that outlives the script.
SHELL = """\
set -eumo pipefail
trap 'for job in $(jobs -p); do kill -- -"$job" 2> /dev/null || true; done' EXIT
"""


class Part:
    """A part of the page: its files, its commands, and what these print."""

    def __init__(self, text: str) -> None:
        blocks = BLOCK.findall(text)
        assert len(blocks) == text.count("\n```") // 2, "a block has no language"
        self.files = [content for language, content in blocks if language in ("python", "cmake")]
        self.commands = "".join(content for language, content in blocks if language == "bash")
        self.output = "".join(content for language, content in blocks if language == "text")
        assert self.files and self.commands and self.output

    def execute(self, folder: Path, python: Path) -> None:
        """Run the commands, and find what the page shows in what they print, in that order."""
        for content in self.files:
            name = content.splitlines()[0].removeprefix("# ")
            assert re.fullmatch(r"\w+\.(py|cmake)", name), f"this is no name of a file: {name}"
            (folder / name).write_text(content)
        path = (str(place) for place in (python.parent, Path(sys.executable).parent))
        rest = printed = run(
            *("bash", "-c", SHELL + self.commands),
            cwd=folder,
            PATH=os.pathsep.join([*path, os.environ["PATH"]]),
            SCAFFOLD=str(folder / "scaffold"),
        )
        for line in self.output.splitlines():
            pattern = ".*".join(re.escape(part) for part in line.split("..."))
            found = re.search(rf"^{pattern}\s*$", rest, re.MULTILINE)
            assert found, f"the page shows '{line}', which is not printed there:\n{printed}"
            rest = rest[found.end() :]


def _free_port() -> str:
    """Find a port for the tracker, among those that it would try itself."""
    for port in range(9190, 9199):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return str(port)
    pytest.fail("The ports 9190 to 9198 are all taken.")


@dataclass
class Followed:
    """The page, and where its commands were run but those for another processor."""

    port: str
    other_processor: Part
    folder: Path
    python: Path


@pytest.fixture(scope="module")
def followed(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    folder = tmp_path_factory.mktemp("deploy")
    # A copy, because a build leaves files in the source tree.
    shutil.copytree(ROOT / "reference_backend", folder / "scaffold/reference_backend")
    shutil.copytree(ROOT / "docs", folder / "scaffold/docs")
    python = workshop.environment(workshop.wheel(ROOT / "reference_backend"))
    run(python, "-m", "pip", "install", "-q", "onnx")
    port = _free_port()
    start, end = re.split(f"^## {OTHER_PROCESSOR}$", PAGE.read_text(), flags=re.MULTILINE)
    Part(start.replace("9190", port)).execute(folder, python)
    return Followed(port, Part(end), folder, python)


def test_the_board_of_the_page_could_not_have_compiled_anything(followed: Followed) -> None:
    (packages,) = (followed.folder / "board/lib").glob("python3*/site-packages")
    libraries = {path.name for path in packages.rglob("*.so")}
    assert {"libtvm_runtime.so", "libtvm_example_npu_runtime.so"} <= libraries
    assert not {"libtvm_compiler.so", "libtvm_example_npu_codegen.so"} & libraries


def test_no_tracker_of_the_page_is_left(followed: Followed) -> None:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(followed.port))) != 0


def test_another_processor_computes_the_same(followed: Followed) -> None:
    missing = [tool for tool in CROSS_TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: g++-aarch64-linux-gnu, qemu-user of Debian")
    followed.other_processor.execute(followed.folder, followed.python)
