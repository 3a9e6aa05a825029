"""Runs the shipped classifier on a rendered backend and on the host, and compares the two.

Usage: ``python run.py BACKEND_NAME``, in an environment where the backend is installed. Add
``--fixed-batch`` for an NPU that takes fixed sizes only.
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, numpy_helper
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


def in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the classifier with weights, inputs and results in float16."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for weight in half.graph.initializer:
        values = numpy_helper.to_array(weight).astype("float16")
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return half


def in_int8(backend: Any, name: str, model: onnx.ModelProto) -> onnx.ModelProto | str:
    """Return the classifier in int8, or why there is none."""
    batches = np.load(HERE / "digits_calibration.npz")["images"].astype("float32") / 16
    try:
        quantize = getattr(backend, f"quantize_for_{name}")
        return quantize(model, [{"images": batch} for batch in batches])
    except (ImportError, ValueError) as error:
        return str(error)


def counted(machine: relax.VirtualMachine, name: str) -> dict[str, int]:
    """Return what the driver counted, added up over the regions."""
    total: dict[str, int] = {}
    modules = [machine.module]
    for module in modules:
        modules.extend(module.imports)
        if module.kind == name:
            for counter, value in module["counters"]().items():
                total[str(counter)] = total.get(str(counter), 0) + int(value)
    return total


def program_bytes(backend: Any, executable: relax.VMExecutable) -> int:
    """Return the size of the NPU's programs, with their weights."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "model.so"
        executable.export_library(str(library))
        return sum(item.sizes["artifact"] for item in backend.read_artifacts(library))


def measure(
    backend: Any, name: str, model: onnx.ModelProto, images: np.ndarray, options: dict[str, Any]
) -> tuple[np.ndarray, str]:
    """Return the digits that a model finds on the NPU, and what that took."""
    module = backend.from_onnx(model, keep_params_in_input=False, **options)
    bounds = {"symbol_bound": len(images)}
    executable = getattr(backend, f"compile_for_{name}")(module, **bounds)
    report = backend.offload_report(getattr(backend, f"partition_for_{name}")(module, **bounds))
    if not report.regions:
        return np.empty(0), ""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    batch = tvm.runtime.tensor(images)
    digits = machine["main"](batch)[1].numpy()
    counters = counted(machine, name)
    moved = counters.get("dram_bytes_read", 0) + counters.get("dram_bytes_written", 0)
    cells = [f"{program_bytes(backend, executable) / 1e3:7.1f} kB"]
    cells.append(f"{counters['cycles'] / 1e6:7.2f}" if "cycles" in counters else f"{'-':>7}")
    cells.append(f"{moved / 1e6:7.2f} MB" if moved else f"{'-':>10}")
    cells.append(f"{best_milliseconds(lambda: machine['main'](batch)):8.2f} ms")
    return digits, "   ".join(cells)


def main() -> int:
    """Print accuracy, placement and time; fail where the NPU's answers are not the host's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend_name", help="for example acme_npu")
    parser.add_argument(
        "--fixed-batch", action="store_true", help="import the model for the batch that is run"
    )
    parser.add_argument(
        "--page",
        type=Path,
        default=Path(tempfile.gettempdir()) / "digits.html",
        help="where to write what runs where, as an HTML page",
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
    original = onnx.load(HERE / "digits.onnx")
    if arguments.fixed_batch:
        original.graph.input[0].type.tensor_type.shape.dim[0].dim_value = len(images)
    verification = backend.verify(original, {"images": images}, **bounds)
    print(f"  {verification}")

    print(
        "\nThe same in other element types on the NPU; int8 was calibrated with 128 other images:\n"
    )
    print(f"{'':12}accuracy{'program':>13}{'Mcycles':>10}{'DRAM':>13}{'time':>14}")
    found: dict[str, np.ndarray] = {}
    options = {"shape_dict": shapes} if shapes else {}
    for dtype, variant in (
        ("float32", onnx_model),
        ("float16", in_float16(onnx_model)),
        ("int8", in_int8(backend, name, onnx_model)),
    ):
        if isinstance(variant, str):
            print(f"  {dtype:8}  {variant}")
            continue
        given = images.astype("float16") if dtype == "float16" else images
        digits, costs = measure(backend, name, variant, given, options)
        if not costs:
            print(f"  {dtype:8}  nothing of it runs on this NPU")
            continue
        found[dtype] = digits
        print(f"  {dtype:8}  {(digits == held_out['labels']).mean():7.2%}   {costs}")
    right = {dtype: int((digits == held_out["labels"]).sum()) for dtype, digits in found.items()}
    if right.get("int8", len(images)) < right.get("float32", 0) - 0.01 * len(images):
        print("  int8 loses 1 % of the accuracy or more.", file=sys.stderr)
        return 1
    if not verification.passed:
        print("  The NPU's answers differ from the original's.", file=sys.stderr)
        return 1
    if difference > 1e-4 or not np.array_equal(npu_digits, host_digits):
        print("  The NPU's answers differ from the host's.", file=sys.stderr)
        return 1
    page = arguments.page.resolve()
    backend.offload_report(partitioned).to_html(page, title="Digits")
    print(f"\nWhat runs where, as a page for the browser: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
