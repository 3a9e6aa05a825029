"""Runs the tests of many backends in forks of one process.

The import of TVM, PyTorch and the others takes longer than many tests of a small backend, so it is
done once. Usage: run_subsets.py FOLDER...; each folder has the backend in `package`, the tests
beside it, pytest's arguments in `arguments`, one in a line, and gets a file `log`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path

IMPORTED = (
    "hypothesis",
    "pytest",
    "tvm.relax.frontend.onnx",
    "tvm.relax.frontend.torch",
    "tvm.relax.frontend.tflite",
    "onnx.reference",
    "onnxruntime",
    "torch.export",
    "tflite",
    "ai_edge_litert.interpreter",
)
AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"


class InThisProcess:
    """Runs suites of the conformance kit without workers, each of which would import TVM."""

    def pytest_collection_finish(self) -> None:
        import support

        in_workers = support.in_workers
        support.in_workers = lambda suite, cases, jobs: in_workers(suite, cases, 0)  # type: ignore


def import_all() -> None:
    """Import what the tests need, and do what takes long the first time."""
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)
    # Without the backend that is installed, but with TVM's own, which sort on the host.
    import_module("tvm.backend._autoload_backends")._load_builtin_backends()
    with contextlib.suppress(ModuleNotFoundError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("onnx.backend.test.case.node").collect_testcases(None)
    if torch := sys.modules.get("torch"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
            program.run_decompositions()


def run_tests(folder: Path) -> int:
    """Run the tests of one backend, which prints into its log."""
    import pytest

    with (folder / "log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    del os.environ[AUTOLOAD]
    package = str(folder / "package")
    os.environ["PYTHONPATH"] = package
    sys.path.insert(0, package)
    os.chdir(folder)
    arguments = (folder / "arguments").read_text().splitlines()
    return int(pytest.main(["-p", "no:cacheprovider", *arguments], plugins=[InThisProcess()]))


def main() -> None:
    """Run all, and print how each ended."""
    os.environ[AUTOLOAD] = "0"
    import_all()
    for name in sys.argv[1:]:
        folder = Path(name).resolve()
        child = os.fork()
        if not child:
            code = 70
            try:
                code = run_tests(folder)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(f"{folder.name}: {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
