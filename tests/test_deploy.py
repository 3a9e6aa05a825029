"""The page about deployment: its commands run in order, and print what the page shows."""

from __future__ import annotations

import re
import shutil
import socket
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from pages import Part
from support import ROOT, Workshop, attempt, run

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/deploy.md"
OTHER_PROCESSOR = "8. Another processor"
CROSS_TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64")


def _free_port() -> str:
    """Find a free port among those that the tracker tries."""
    for port in range(9190, 9199):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return str(port)
    pytest.fail("The ports 9190 to 9198 are all taken.")


@dataclass
class Followed:
    """The page, and the folder where its commands ran, except those for another processor."""

    port: str
    other_processor: Part
    folder: Path
    python: Path


@pytest.fixture(scope="module")
def followed(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    folder = tmp_path_factory.mktemp("deploy")
    # A copy, because a build writes into the source tree.
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


@pytest.fixture(scope="module")
def board(followed: Followed) -> Path:
    """Follow the page for another processor; return the folder with the board's files."""
    missing = [tool for tool in CROSS_TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: g++-aarch64-linux-gnu, qemu-user of Debian")
    followed.other_processor.execute(followed.folder, followed.python)
    return followed.folder


def test_another_processor_computes_the_same(board: Path) -> None:
    (wheel,) = (board / "wheelhouse").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        libraries = {Path(name).name for name in archive.namelist() if name.endswith(".so")}
    # Neither codegen nor libraries of TVM.
    assert libraries == {f"libtvm_example_npu_{half}.so" for half in ("runtime", "emulator")}


PYTHON_PACKAGES = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libstdc++6"),
    *("libgcc-s1", "libcrypt1", "libexpat1", "zlib1g", "libssl3", "libffi8", "libbz2-1.0"),
    *("liblzma5", "libuuid1", "libsqlite3-0"),
)
"""Debian's packages of an aarch64 Python and its dependencies."""

CONVOLUTION = """
import numpy as np
import tvm
from tvm import relax

generator = np.random.default_rng(0)
x = generator.standard_normal((1, 8, 12, 12), dtype="float32")
weight = generator.standard_normal((16, 8, 3, 3), dtype="float32")
builder = relax.BlockBuilder()
var = relax.Var("x", relax.TensorType(x.shape, "float32"))
with builder.function("main", [var]):
    with builder.dataflow():
        call = relax.op.nn.conv2d(var, relax.const(weight), strides=(2, 1), padding=(1, 2, 0, 1))
        result = builder.emit_output(call)
    builder.emit_func_output(result)
model = builder.get()
with open("convolution.json", "w") as file:
    file.write(tvm.ir.save_json(model))
host = relax.VirtualMachine(tvm.compile(model, target="llvm"), tvm.cpu())
np.savez("convolution.npz", x=x, result=host["main"](tvm.runtime.tensor(x)).numpy())
"""

ON_BOARD = """
import platform

import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

arrays = np.load("convolution.npz")
machine = VirtualMachine(tvm.runtime.load_module("convolution.so"), tvm.cpu())
found = machine["main"](tvm.runtime.tensor(arrays["x"])).numpy()
np.testing.assert_allclose(found, arrays["result"], rtol=1e-4, atol=1e-5)
assert np.abs(found).max() > 1
print(platform.machine(), found.shape)
"""


@pytest.fixture(scope="module")
def board_python(board: Path) -> tuple[str | Path, ...]:
    """Unpack Debian's aarch64 Python, and return the command that runs it under QEMU."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("needs apt-get, for an aarch64 Python")
    state, root = board / "apt", board / "root"
    for part in ("state/lists/partial", "cache/archives/partial", "debs"):
        (state / part).mkdir(parents=True)
    (state / "status").touch()
    options = (
        *("-o", f"Dir::State={state}/state", "-o", f"Dir::State::status={state}/status"),
        *("-o", f"Dir::Cache={state}/cache", "-o", "APT::Sandbox::User=root"),
        *("-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64"),
    )
    for command in (("update",), ("download", *PYTHON_PACKAGES)):
        done = attempt("apt-get", *options, *command, cwd=state / "debs")
        if done.returncode != 0:
            pytest.skip(f"no Debian packages of an aarch64 Python 3.11: {done.stdout[-300:]}")
    for package in (state / "debs").glob("*.deb"):
        run("dpkg-deb", "-x", package, root)
    return ("qemu-aarch64", "-L", root, root / "usr/bin/python3.11")


def test_the_wheel_computes_a_convolution_in_an_aarch64_python(
    followed: Followed, board: Path, board_python: tuple[str | Path, ...]
) -> None:
    packages = board / "aarch64"
    run(
        *(followed.python, "-m", "pip", "install", "-q", "--no-deps", "--target", packages),
        *("--only-binary=:all:", "--python-version", "3.11"),
        *(f"--platform=manylinux{tag}_aarch64" for tag in ("2014", "_2_27", "_2_28")),
        *("numpy", "ml_dtypes", "typing_extensions"),
    )
    (packages / "tvm/lib/libtvm_compiler.so").unlink()
    (board / "convolution.py").write_text(CONVOLUTION)
    (board / "on_board.py").write_text(ON_BOARD)
    run(followed.python, "convolution.py", cwd=board)
    # The whole model is on the NPU, so only the linker knows the target machine.
    output = run(
        *(followed.python, "-m", "tvm_example_npu", "compile", "convolution.json"),
        *("--target", '{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'),
        *("--linker", "aarch64-linux-gnu-g++"),
        cwd=board,
    )
    assert "1 of 1 ops on the NPU" in output
    environment = {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    run_there = (*board_python, "-W", "error::UserWarning")
    found = run(*run_there, "on_board.py", cwd=board, **environment)
    assert found.splitlines()[-1] == "aarch64 (1, 16, 6, 13)"
    found = run(*run_there, "-m", "tvm_example_npu", "check", cwd=board, **environment)
    assert "codegen library: not installed" in found
    assert "Traceback" not in found
