"""Runs a model of torch_models.py on the reference backend; the tests call it in an environment.

Usage: ``python run_torch_model.py MODEL DIRECTORY``. Writes ``model.so``, ``input.npy`` and
``expected.npy`` into the directory, and prints the findings as JSON.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import tvm
import tvm_example_npu
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

from torch_models import make


def main() -> None:
    """Export, partition, compile, run, and compare with torch."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    model, x = make(name)
    with torch.no_grad():
        expected = model(x).numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(model, (x,))
    module = from_exported_program(exported, unwrap_unit_return_tuple=True)
    report = tvm_example_npu.offload_report(tvm_example_npu.partition_for_example_npu(module))
    executable = tvm_example_npu.compile_for_example_npu(module)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x.numpy())).numpy()
    executable.export_library(str(directory / "model.so"))
    np.save(directory / "input.npy", x.numpy())
    np.save(directory / "expected.npy", expected)
    on_host = [f"{op.op}: {op.reason}" for op in report.on_host if not op.bookkeeping]
    print(
        json.dumps(
            {
                "on_host": on_host,
                "on_npu": len(report.offloaded),
                "regions": len(report.regions),
                "scale": float(np.abs(expected).max()),
                "error": float(np.abs(found - expected).max()),
            }
        )
    )


if __name__ == "__main__":
    main()
