"""The Python that pages show runs, on the reference backend, after what the page takes as given."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pages import BLOCK
from support import ROOT, Workshop, lend_packages, run

MISSING = [name for name in ("torch", "onnx", "onnxruntime") if not importlib.util.find_spec(name)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
]

GIVEN = f"""
import numpy as np
import onnx
import onnxruntime
import torch
import tvm
import tvm_example_npu
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx as read

DEMO = {str(ROOT / "docs/demo")!r}


def digits(batch):
    found = onnx.load(DEMO + "/digits.onnx")
    (output,) = (item for item in found.graph.output if item.name == "digits")
    found.graph.output.remove(output)
    (argmax,) = (node for node in found.graph.node if node.output[0] == "digits")
    found.graph.node.remove(argmax)
    for node in found.graph.node:
        node.input[:] = ["image" if name == "images" else name for name in node.input]
    found.graph.input[0].name = "image"
    for value in (*found.graph.input, *found.graph.output):
        if batch is not None:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    return found


held_out = np.load(DEMO + "/digits_held_out.npz")
images = held_out["images"].reshape(-1, 1, 8, 8).astype("float32") / 16
"""
"""A classifier with one input, `image`, and one result; images; and the libraries."""

PAGES = {
    "README.md": """
model = read(digits(8), keep_params_in_input=False)
x = images[:8]
""",
    "docs/first-backend.md": """
onnx.save(digits(8), "model.onnx")
np.save("input.npy", images[:8])
first = read(digits(8), keep_params_in_input=False)
tvm_example_npu.compile_for_example_npu(first).export_library("model.so")
network = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3, stride=8), torch.nn.ReLU())
""",
    "docs/quantized.md": """
onnx.save(digits(None), "model.onnx")
labels, test_images = held_out["labels"], images
program = torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),))
float_model = tvm_example_npu.from_onnx(digits(16))
quantized_model = tvm_example_npu.from_onnx(
    tvm_example_npu.quantize_for_example_npu(digits(16), [{"image": images[:16]}] * 8)
)
""",
    "docs/report.md": """
from types import SimpleNamespace

model = read(digits(8), keep_params_in_input=False)
accuracy_report = profile = SimpleNamespace(to_dict=lambda: None)
""",
    "docs/sessions.md": """
import shutil

shutil.copy(DEMO + "/decoder.onnx", ".")

class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(16, 64)
        self.register_buffer("cache", torch.zeros(80, 16))

    def forward(self, x, positions):
        self.cache.index_copy_(0, positions, x)
        seen = torch.arange(80)[None] <= positions[:, None]
        scores = (x @ self.cache.T).masked_fill(~seen, -1e9)
        return self.head((torch.softmax(scores, -1) @ self.cache)[-1:])


decoder = Decoder()
""",
    "docs/architecture.md": """
model = read(digits(8), keep_params_in_input=False)
partition_for_example_npu = tvm_example_npu.partition_for_example_npu
""",
    "reference_backend/README.md": """
mod = read(digits(None), keep_params_in_input=False)
x = images[:32]
open("npu.toml", "w").write("threads = 2\\n")
tvm_example_npu.compile_for_example_npu(mod).export_library("model.so")
""",
}
"""What each page takes as given, by the names that its blocks use."""

OTHER_WORDS = {
    "acme_npu": "example_npu",
    # test_tflite.py reads files of TFLite.
    'tvm_example_npu.from_tflite("model.tflite")': "tvm_example_npu.from_tflite",
    "Chip(..., ": "Chip(",
}

NOT_RUN = {
    "docs/deploy.md": "files, which its commands run: test_deploy.py",
    "docs/isa-emulator.md": "a run of a program: test_isa.py",
    "docs/isa-guide.md": "a file, which its commands run: test_isa.py",
    "docs/isa-table.md": "a machine and an instruction, of which test_isa.py makes a table",
    "docs/profile.md": "engine/workbench/tests/test_profile.py and test_rpc.py make these calls",
}


def _blocks(page: str) -> str:
    blocks = BLOCK.findall((ROOT / page).read_text())
    text = "\n".join(block for language, block in blocks if language == "python")
    for old, new in OTHER_WORDS.items():
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def python(workshop: Workshop) -> Path:
    """Return the Python of an environment with the reference backend, torch and ONNX Runtime."""
    python = workshop.environment(workshop.wheel(ROOT / "reference_backend"))
    lend_packages(python)
    return python


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(python: Path, tmp_path: Path, page: str) -> None:
    script = tmp_path / "page.py"
    script.write_text(f"{GIVEN}{PAGES[page]}\n# ---- The page ----\n{_blocks(page)}")
    run(python, script, cwd=tmp_path)


def test_no_page_with_python_is_forgotten() -> None:
    pages = [ROOT / "README.md", ROOT / "reference_backend/README.md", *ROOT.glob("docs/**/*.md")]
    names = {page.relative_to(ROOT).as_posix() for page in pages if "```python" in page.read_text()}
    assert names == PAGES.keys() | NOT_RUN.keys()
