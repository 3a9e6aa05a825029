"""Runs the shipped classifier on a rendered backend and on the host, and compares the two.

Usage: ``python run.py BACKEND_NAME``, in an environment where the backend is installed. Add
``--fixed-batch`` for an NPU that takes fixed sizes only.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

HERE = Path(__file__).parent


def classify(executable: tvm.runtime.Executable, images: np.ndarray) -> tuple[np.ndarray, ...]:
    """Run the classifier on images of shape (n, 1, 8, 8); probabilities and digits."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    outputs = machine["main"](tvm.runtime.tensor(images))
    return outputs[0].numpy(), outputs[1].numpy()


def best_milliseconds(work: Callable[[], object], runs: int = 7) -> float:
    """Time the fastest of several runs, in milliseconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main() -> int:
    """Print accuracy, placement and time; fail where the NPU's answers are not the host's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend_name", help="for example acme_npu")
    parser.add_argument(
        "--fixed-batch", action="store_true", help="import the model for the batch that is run"
    )
    arguments = parser.parse_args()
    name = arguments.backend_name
    backend = importlib.import_module(f"tvm_{name}")

    held_out = np.load(HERE / "digits_held_out.npz")
    images = held_out["images"].astype("float32") / 16
    shapes = {"images": images.shape} if arguments.fixed_batch else None
    onnx_model = onnx.load(HERE / "digits.onnx")
    model = from_onnx(onnx_model, shape_dict=shapes, keep_params_in_input=False)

    # Where the batch is symbolic, the NPU's memory is planned for the largest one.
    bounds = {"symbol_bound": len(images)}
    partitioned = getattr(backend, f"partition_for_{name}")(model, **bounds)
    on_npu = getattr(backend, f"compile_for_{name}")(model, **bounds)
    on_host = tvm.compile(model, target="llvm")

    npu_probabilities, npu_digits = classify(on_npu, images)
    host_probabilities, host_digits = classify(on_host, images)
    difference = float(np.abs(npu_probabilities - host_probabilities).max())

    print(f"\nWhat runs where (from {HERE / 'digits.onnx'}):\n")
    print(backend.offload_report(partitioned))
    print(f"\nOn {len(images)} held-out images, in one batch:\n")
    for place, digits, executable in (
        (f"{name} ({backend.Options.load(None).driver})", npu_digits, on_npu),
        ("host (TVM llvm)", host_digits, on_host),
    ):
        accuracy = float((digits == held_out["labels"]).mean())
        machine = relax.VirtualMachine(executable, tvm.cpu())
        batch = tvm.runtime.tensor(images)
        milliseconds = best_milliseconds(lambda m=machine, b=batch: m["main"](b))
        print(f"  {place:24} accuracy {accuracy:.2%}   {milliseconds:8.2f} ms")
    print(f"\n  largest difference of a probability: {difference:.1e}")
    if difference > 1e-4 or not np.array_equal(npu_digits, host_digits):
        print("  The NPU's answers differ from the host's.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
