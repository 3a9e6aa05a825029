"""Runs a model quantized by ONNX Runtime on the reference backend; the tests call it.

Usage: ``python run_quantized_model.py MODEL DIRECTORY``. Writes ``model.so``, ``input.npy`` and
``expected.npy`` (the NPU's result) into the directory, and prints the findings as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import tvm
import tvm_example_npu
from tvm import relax, rpc
from tvm_example_npu.engine.backend.verification.originals import original_of
from tvm_example_npu.engine.workbench.conformance import networks
from tvm_example_npu.engine.workbench.conformance.quantized_networks import quantize_onnx

PRODUCTS = ("relax.nn.conv2d", "relax.matmul")
CONVERSIONS = ("quantize", "dequantize")


def main() -> None:
    """Quantize, partition, compile, run here and over RPC, and compare with ONNX Runtime."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("float32")
    model = onnx.load_from_string(networks.build_onnx(getattr(networks, name), x.shape))
    quantized = quantize_onnx((model, [x]))
    sizes, results = {}, {}
    for kind, source in (("float", model), ("int8", quantized)):
        module = tvm_example_npu.from_onnx(source)
        partitioned = tvm_example_npu.partition_for_example_npu(module)
        executable = tvm_example_npu.compile_for_example_npu(module)
        path = directory / "model.so"
        executable.export_library(str(path))
        sizes[kind] = sum(item.sizes["artifact"] for item in tvm_example_npu.read_artifacts(path))
        machine = relax.VirtualMachine(executable, tvm.cpu())
        results[kind] = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.save(directory / "input.npy", x)
    np.save(directory / "expected.npy", results["int8"])

    server = rpc.Server("127.0.0.1", silent=True)
    try:
        session = rpc.connect("127.0.0.1", server.port)
        session.upload(str(path))
        device = session.cpu()
        remote = relax.VirtualMachine(session.load_module("model.so"), device)
        remote.set_input("main", tvm.runtime.tensor(x, device))
        remote.invoke_stateful("main")
        over_rpc = remote.get_outputs("main").numpy()
    finally:
        server.terminate()

    report = tvm_example_npu.offload_report(partitioned)
    (expected,) = original_of(quantized).run([x])
    step = float(np.abs(expected[expected != 0]).min())
    mine, real = results["int8"], results["float"]
    summary = {
        "products": sorted({op.composite for op in report.offloaded if op.op in PRODUCTS}),
        "conversions": [op.op for op in report.offloaded if op.composite in CONVERSIONS],
        "on_host": [f"{op.op}: {op.reason}" for op in report.on_host if not op.bookkeeping],
        "size": sizes["int8"] / sizes["float"],
        "over_rpc": float(np.abs(over_rpc - mine).max()),
        "steps": float(np.abs(mine - expected).max() / step),
        "cosine": float((mine * real).sum() / np.linalg.norm(mine) / np.linalg.norm(real)),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
