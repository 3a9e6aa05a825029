"""Says which share of the MACs of models is on the NPU, in float and quantized for the backend.

Run with a backend's package and with "small", the models of the conformance kit, or "large".
Nothing runs on the NPU. The last line is JSON: by model, the shares of the float model and of the
quantized one (none if nothing of it can be quantized), and what the products compute with.
"""

import importlib
import json
import sys
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "template/engine/tests"))
from quick_torch import list_new_ops_only  # noqa: E402

list_new_ops_only()
package = sys.argv[1]
backend = importlib.import_module(package)
kit = f"{package}.engine.workbench.conformance"
api = importlib.import_module(f"{package}.engine.backend.api")
networks = importlib.import_module(f"{kit}.networks")
onnx_networks = importlib.import_module(f"{kit}.onnx_networks")
quantized_networks = importlib.import_module(f"{kit}.quantized_networks")
torch_networks = importlib.import_module(f"{kit}.torch_networks")
partition = getattr(backend, f"partition_for_{package.removeprefix('tvm_')}")
quantize = getattr(backend, f"quantize_for_{package.removeprefix('tvm_')}")
warnings.simplefilter("ignore")

LARGE = {
    "resnet18": lambda: torch_networks.ResNet((64, 128, 256, 512), 1000),
    "mobilenet_v2": lambda: torch_networks.MobileNetV2(networks.MOBILENET_V2, 32, 1280, 1000),
}


def programs(name):
    """Return an exported network, and inputs for it."""
    if name in LARGE:
        network, inputs = torch_networks.make(LARGE[name], lambda: [torch.randn(1, 3, 224, 224)])
    else:
        network, inputs = torch_networks.make(*torch_networks.SMALL[name])
    return torch.export.export(network, inputs), [item.numpy() for item in inputs]


def share(model):
    """Return the share of its MACs on the NPU, and what its products compute with."""
    is_torch = isinstance(model, torch.export.ExportedProgram)
    read = backend.from_exported_program if is_torch else backend.from_onnx
    report = backend.offload_report(partition(read(model)))
    total = report.totals["macs"]
    kinds = {}
    for op in report.ops:
        if op.macs:
            key = op.composite or f"{op.op} on the host: {op.reason}"
            kinds[key] = kinds.get(key, 0) + 1
    return total.npu / total.total, kinds


found = {}
small = [("onnx", name) for name in onnx_networks.SMALL]
# Only the weights of a model that has states can be quantized.
small += [("torch", name) for name in torch_networks.SMALL if name != "decoder"]
for framework, name in small if sys.argv[2] == "small" else [("torch", name) for name in LARGE]:
    get = programs if framework == "torch" else lambda key: onnx_networks.SMALL[key]()
    model, arguments = get(name)
    batches = quantized_networks.calibration_batches(arguments, 2 if name in LARGE else 4)
    before, _ = share(model)
    try:
        after, kinds = share(quantize(model, batches))
    except ValueError as error:
        assert "computes nothing of the model with integers" in str(error), error
        after, kinds = None, {}
    print(framework, name, before, after, kinds, flush=True)
    found[f"{framework}-{name}"] = [before, after, kinds]
print(json.dumps(found))
