"""Runs models on a chip with an instruction set, in float and in int8; the tests call it.

Usage: ``python run_on_instructions.py PACKAGE DIRECTORY MODEL...``. A model is "digits", one of the
kit's small networks of torch, or one of "resnet18" and "mobilenet_v2" with images of 224 x 224,
which take a minute. Prints the findings as JSON, by model and form.

Digits and the encoder also have a form with an open batch, "open".

Reference: llvm for the float models, whose results are real numbers; and TVM's emulated NPU, whose
integers are exact, for those in int8. Each runs here, after export in a process without a compiler,
and behind an RPC server.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, rpc

PACKAGE = sys.argv[1]
NAME = PACKAGE.removeprefix("tvm_")
backend = importlib.import_module(PACKAGE)
quantized_networks = importlib.import_module(
    f"{PACKAGE}.engine.workbench.conformance.quantized_networks"
)
DEMO = Path(__file__).parents[1] / "docs/demo"
IMAGE = (1, 3, 224, 224)
OPEN = ("digits", "encoder")
BOUND = 4

ON_BOARD = """
import sys
sys.modules["torch"] = None  # TVM would import it, which takes seconds.
import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

for library in sys.argv[1:]:
    arrays = np.load(f"{library}.npz")
    machine = VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(arrays[name]) for name in arrays))
    np.save(f"{library}.npy", (found if hasattr(found, "numpy") else found[0]).numpy())
with open("/proc/self/maps") as maps:
    assert "libtvm_compiler" not in maps.read()
"""


def source_of(name: str) -> tuple[Any, list[np.ndarray], list[Any]]:
    """Return a model of onnx or torch, inputs, and batches that calibrate its int8 form."""
    if name == "digits":
        import onnx

        images = (
            np.load(DEMO / f"digits_{part}.npz")["images"] for part in ("held_out", "calibration")
        )
        (held_out, *_), batches = (each.astype("float32") / 16 for each in images)
        return onnx.load(DEMO / "digits.onnx"), [held_out[None]], list(batches)
    import torch

    torch_networks = importlib.import_module(
        f"{PACKAGE}.engine.workbench.conformance.torch_networks"
    )
    networks = importlib.import_module(f"{PACKAGE}.engine.workbench.conformance.networks")
    large = {
        "resnet18": lambda: torch_networks.ResNet((64, 128, 256, 512), 1000),
        "mobilenet_v2": lambda: torch_networks.MobileNetV2(networks.MOBILENET_V2, 32, 1280, 1000),
    }
    given = (
        (large[name], lambda: [torch.randn(IMAGE)]) if name in large else torch_networks.SMALL[name]
    )
    network, inputs = torch_networks.make(*given)
    arrays = [item.numpy() for item in inputs]
    batches = quantized_networks.calibration_batches(arrays, 2)
    return torch.export.export(network, inputs), arrays, batches


def read(name: str, model: Any, inputs: Sequence[np.ndarray]) -> tvm.IRModule:
    """Read a model with the front door for it."""
    if name == "digits":
        return backend.from_onnx(model, shape_dict={"images": list(inputs[0].shape)})
    return backend.from_exported_program(model)


def with_open_batch(name: str) -> tuple[tvm.IRModule, np.ndarray]:
    """Return a float model whose batch has any size, and as many rows as its bound."""
    generator = np.random.default_rng(0)
    if name == "digits":
        model, *_ = source_of(name)
        return backend.from_onnx(model), generator.random((BOUND, 1, 8, 8), "float32")
    import torch

    networks = importlib.import_module(f"{PACKAGE}.engine.workbench.conformance.torch_networks")
    network, inputs = networks.make(*networks.SMALL[name])
    rows = generator.standard_normal((BOUND, *inputs[0].shape[1:]), "float32")
    sizes = ({0: torch.export.Dim("n", min=1, max=BOUND)},)
    program = torch.export.export(network, (torch.from_numpy(rows),), dynamic_shapes=sizes)
    return backend.from_exported_program(program), rows


def numpy_of(result: Any) -> np.ndarray:
    """Return the first result."""
    return (result if hasattr(result, "numpy") else result[0]).numpy()


def result_of(executable: Any, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Run an executable in this process."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return numpy_of(machine["main"](*map(tvm.runtime.tensor, inputs)))


def over_rpc(port: int, library: Path, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Run an exported library behind a server."""
    session = rpc.connect("127.0.0.1", port, session_timeout=120)
    session.upload(str(library))
    device = session.cpu()
    machine = relax.VirtualMachine(session.load_module(library.name), device)
    machine.set_input("main", *(tvm.runtime.tensor(array, device) for array in inputs))
    machine.invoke_stateful("main")
    found = numpy_of(machine.get_outputs("main"))
    # The server has one session at a time, which ends with the last object of it.
    del machine, device, session
    gc.collect()
    return found


def without_compiler(libraries: Sequence[Path]) -> list[np.ndarray]:
    """Run exported libraries in a process that only has TVM's runtime."""
    subprocess.run(
        (sys.executable, "-c", ON_BOARD, *libraries),
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        check=True,
    )
    return [np.load(f"{library}.npy") for library in libraries]


def finding(
    module: tvm.IRModule,
    host: Any,
    calls: Sequence[Sequence[np.ndarray]],
    port: int,
    library: Path,
    **options: Any,
) -> dict[str, Any]:
    """Compile and export a model, run it here and over RPC, and compare; `library` is for the last
    of the calls."""
    start = time.perf_counter()
    partitioned = getattr(backend, f"partition_for_{NAME}")(module, **options)
    report = backend.offload_report(partitioned)
    executable = getattr(backend, f"compile_for_{NAME}")(module, **options)
    seconds = time.perf_counter() - start
    error = 0.0
    for inputs in calls:
        expected, here = result_of(host, inputs), result_of(executable, inputs)
        assert here.shape == expected.shape, (here.shape, expected.shape)
        scale = np.abs(expected).max(initial=1e-30)
        error = max(error, float(np.abs(here - expected).max(initial=0) / scale))
    executable.export_library(str(library))
    np.savez(f"{library}.npz", *inputs)
    np.save(library.with_suffix(".npy"), here)
    return {
        "on_host": [f"{op.op}: {op.reason}" for op in report.on_host if not op.bookkeeping],
        "on_npu": len(report.offloaded),
        "regions": len(report.regions),
        "composites": sorted({op.composite for op in report.offloaded}),
        "scalar_share": backend.profile(executable, *inputs).totals["scalar_share"],
        "error": error,
        "same_over_rpc": np.array_equal(over_rpc(port, library, inputs), here),
        "seconds": round(seconds, 1),
    }


def on_host(module: tvm.IRModule) -> Any:
    """Compile a float model with TVM's own kernels."""
    return tvm.compile(relax.transform.DecomposeOpsForInference()(module), target="llvm")


def findings(name: str, port: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Compare a model in both forms and, if it has one, with an open batch."""
    model, inputs, batches = source_of(name)
    found = {}
    for form in ("float", "int8"):
        if form == "int8":
            model = getattr(backend, f"quantize_for_{NAME}")(model, batches)
        module = read(name, model, inputs)
        host = (
            on_host(module)
            if form == "float"
            else getattr(backend, f"compile_for_{NAME}")(module, driver="emulator")
        )
        library = folder / f"{name}_{form}.so"
        found[f"{name} {form}"] = finding(module, host, [inputs], port, library)
    if name in OPEN:
        module, rows = with_open_batch(name)
        calls = [[rows[:size]] for size in (0, 1, 2, BOUND, 3)]
        library, bounds = folder / f"{name}_open.so", {"symbol_bound": BOUND}
        found[f"{name} open"] = finding(module, on_host(module), calls, port, library, **bounds)
    return found


def main() -> None:
    """Run the models."""
    warnings.simplefilter("ignore")
    server = rpc.Server("127.0.0.1", silent=True)
    try:
        found = {
            key: value
            for name in sys.argv[3:]
            for key, value in findings(name, server.port, Path(sys.argv[2])).items()
        }
    finally:
        server.terminate()
    libraries = [Path(sys.argv[2]) / f"{key.replace(' ', '_')}.so" for key in found]
    for model, library, array in zip(
        found.values(), libraries, without_compiler(libraries), strict=True
    ):
        here = np.load(library.with_suffix(".npy"))
        model["same_without_compiler"] = np.array_equal(array, here)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
