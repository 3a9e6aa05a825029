"""The page about the commands: they run in order, and print what the page shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pages import Part
from support import ROOT, Workshop, run

PAGE = ROOT / "docs/commands.md"
(EXAMPLE,) = re.findall(r"^## An example\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_example_of_the_page(workshop: Workshop, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "scaffold/docs")
    python = workshop.environment(workshop.wheel(ROOT / "reference_backend"))
    run(python, "-m", "pip", "install", "-q", "onnx", "onnxruntime", "tokenizers")
    Part(EXAMPLE).execute(tmp_path, python)
    labels = np.load(ROOT / "docs/demo/digits_held_out.npz")["labels"]
    with np.load(tmp_path / "results.npz") as results:
        assert (results["digits"] == labels).mean() > 0.9
        assert set(results) == {"probabilities", "digits"}


def test_the_page_has_every_command_and_no_other() -> None:
    source = (ROOT / "template/engine/backend/commands/main.py").read_text()
    known = set(re.findall(r'add_parser\(\s*"(\w+)"', source))
    known |= set(re.findall(r'^        \("(\w+)", "', source, re.MULTILINE))
    known |= set(re.findall(r'^    "(\w+)": "', source, re.MULTILINE))
    assert {"compile", "check", "conformance"} <= known
    text = PAGE.read_text()
    listed = set(re.findall(r"python -m tvm_\w+ ([a-z]+)", text))
    listed |= set(re.findall(r"^\| `(\w+)[^`|]*` \|", text.split("## The other commands")[1], re.M))
    assert listed == known
