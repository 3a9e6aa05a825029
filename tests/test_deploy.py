"""The page about deployment: its commands run, in its order, and print what it says."""

from __future__ import annotations

import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from pages import Part
from support import ROOT, Workshop, run

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/deploy.md"
OTHER_PROCESSOR = "8. Another processor"
CROSS_TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64")


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
