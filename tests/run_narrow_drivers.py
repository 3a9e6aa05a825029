"""Partitions a quantized model for drivers that decline integers; the tests call it.

The kind "table" is a chip whose table has no real numbers, with the driver as it is.

Usage: ``python run_narrow_drivers.py PROJECT MODEL KIND...``. A model is "digits", quantized by
``quantize_for``, or a network in real size, quantized by ONNX Runtime. Prints for each kind of
driver the share of MACs on the NPU in float and quantized, the composites of products, what is on
the host and, for the digits, the share of right answers, as JSON.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import relax

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(sys.argv[1]) / "engine/tests"))
importlib.import_module("under_test")  # The backend has the name `backend` from here on.
backend: Any = importlib.import_module("backend")
narrow_drivers: Any = importlib.import_module("narrow_drivers")
narrow_table: Any = importlib.import_module("narrow_table")
networks: Any = importlib.import_module("backend.engine.workbench.conformance.networks")
quantizing: Any = importlib.import_module("backend.engine.workbench.conformance.quantized_networks")
BACKEND = importlib.import_module("backend.engine.backend.shared.backend").BACKEND
PRODUCTS = ("relax.nn.conv2d", "relax.matmul")

NAME = f"{BACKEND}.codegen.decline_reason"
decline_reason = tvm_ffi.get_global_func(NAME)
partition, compile_, quantize = (
    getattr(backend, f"{name}_for_{BACKEND}") for name in ("partition", "compile", "quantize")
)


def install(kind: str, patch: pytest.MonkeyPatch) -> None:
    """Make the driver decline what a narrow one does, or narrow the table."""
    if kind == "table":
        narrow_table.without_reals(patch)
        tvm_ffi.register_global_func(NAME, decline_reason, override=True)
        return
    answer = narrow_drivers.declines(kind)

    def ask(function: relax.Function, driver: str, options: object, *others: object) -> str:
        # The third last says whether it is a whole region.
        return answer(function, others[1]) or decline_reason(function, driver, options, *others)

    tvm_ffi.register_global_func(NAME, ask, override=True)


def report_of(model: onnx.ModelProto, sizes: dict[str, list[int]]) -> Any:
    module = backend.from_onnx(model, shape_dict=sizes)
    return backend.offload_report(partition(module))


def share(report: Any) -> float:
    macs, on_npu = (sum(op.macs or 0 for op in ops) for ops in (report.ops, report.offloaded))
    return on_npu / macs


def right_answers(model: onnx.ModelProto, images: np.ndarray, digits: np.ndarray) -> float:
    module = backend.from_onnx(model, shape_dict={"images": list(images.shape)})
    machine = relax.VirtualMachine(compile_(module), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(images))[1].numpy()
    return float((found == digits).mean())


def main() -> None:
    """Judge each kind of driver."""
    name, kinds = sys.argv[2], sys.argv[3:]
    held_out = np.load(ROOT / "docs/demo/digits_held_out.npz")
    batches = np.load(ROOT / "docs/demo/digits_calibration.npz")["images"].astype("float32") / 16
    images = held_out["images"].astype("float32") / 16
    if name == "digits":
        model, sizes = onnx.load(ROOT / "docs/demo/digits.onnx"), {"images": list(images.shape)}
    else:
        x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("float32")
        model = onnx.load_from_string(networks.build_onnx(getattr(networks, name), x.shape))
        quantized, sizes = quantizing.quantize_onnx((model, [x])), {}
    result = {}
    for kind in kinds:
        patch = pytest.MonkeyPatch()
        install(kind, patch)
        found = {"float": share(report_of(model, sizes))}
        if name == "digits":
            quantized = quantize(model, [{"images": batch} for batch in batches])
            found["right"] = right_answers(quantized, images, held_out["labels"])
        report = report_of(quantized, sizes)
        labels = [op.composite or "host" for op in report.ops if op.op in PRODUCTS]
        on_host = {op.op.removeprefix("relax.") for op in report.on_host if not op.bookkeeping}
        integers = sum(label.startswith("quantized_") for label in labels) / len(labels)
        found |= {"quantized": share(report), "integers": integers, "on_host": sorted(on_host)}
        result[kind] = found
        patch.undo()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
