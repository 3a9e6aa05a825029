# SPDX-License-Identifier: Apache-2.0
"""Runs a model with its own framework: ONNX Runtime, PyTorch, or LiteRT's interpreter."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm

from ..importers import from_exported_program, from_onnx, from_tflite
from ..shared.aliases import Array
from ..shared.console import quiet
from ..shared.messages import last_line

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

Run = Callable[[Sequence[Array]], list[Array]]

_MOST_OF_PROTOBUF = 2**31 - 1
_INTERPRETERS = (
    ("LiteRT", "ai_edge_litert.interpreter"),
    ("TensorFlow Lite", "tflite_runtime.interpreter"),
    ("TensorFlow Lite", "tensorflow.lite"),
)


@dataclass(frozen=True)
class Original:
    """A model with the framework that runs it.

    `framework`: its name and version.
    `results`: the names of the results; none if they are not known.
    `imported`: reads the model as the commands do.
    `execute`: runs the model; takes arrays in the order of its inputs, and the names of states.
    `dtype`: "bfloat16" if the framework computes in it, whatever type stands for it here.
    `hides_states`: whether nobody can set or read its states, which begin with their first values.
    """

    framework: str
    results: tuple[str, ...]
    imported: Callable[[], tvm.IRModule]
    execute: Callable[..., list[Array]]
    dtype: str = ""
    hides_states: bool = False

    def run(self, inputs: Sequence[Array], kept: Sequence[str] = ()) -> list[Array]:
        """Run it.

        `kept`: the names of its states, whose values are the last inputs and results.
        """
        try:
            with quiet():
                return self.execute(inputs, kept) if kept else self.execute(inputs)
        except Exception as error:  # Frameworks raise countless errors.
            raise RuntimeError(
                f"{self.framework} does not run the model: {last_line(error)}"
            ) from error


def original_of(model: object) -> Original:
    """Return a model with the framework that runs it.

    `model`: an `onnx.ModelProto`, a `torch.export.ExportedProgram`, or a TFLite model: the path of
    its file, its bytes, or a `tflite.Model`.
    """
    if hasattr(model, "graph_signature"):
        import torch

        results = model.graph_signature.user_outputs
        names = tuple(str(name) for name in results if name is not None)
        read = partial(from_exported_program, model)
        title, run = f"PyTorch {torch.__version__}", partial(_run_program, model)
        return Original(title, names, read, run, "bfloat16" if _is_rough(model) else "")
    if hasattr(model, "opset_import") and hasattr(model, "graph"):
        names = tuple(item.name for item in model.graph.output)
        # Names of inputs stay as their author wrote them.
        read = partial(from_onnx, model, sanitize_input_names=False)
        return Original(*_onnx_framework(), names, read, _onnx_runner(model))
    if isinstance(model, (str, os.PathLike)):
        model = Path(model).read_bytes()
    table = getattr(model, "_tab", None)
    content = bytes(table.Bytes) if table is not None else model
    if isinstance(content, (bytes, bytearray)):
        framework, interpreter = _interpreter()
        run = partial(run_tflite, interpreter, bytes(content))
        read = partial(from_tflite, bytes(content))
        return Original(framework, (), read, run, hides_states=True)
    raise ValueError(
        f"the model is of type {type(model).__name__}, which no framework but TVM runs; models of "
        "ONNX, PyTorch and TensorFlow Lite can be verified"
    )


def _named(title: str, package: object) -> str:
    """Return a framework with its version; distributions of one module have several names."""
    version = getattr(package, "__version__", "")
    return f"{title} {version}" if version else title


def _onnx_framework() -> tuple[str]:
    for title, name in (("ONNX Runtime", "onnxruntime"), ("onnx.reference", "onnx")):
        if importlib.util.find_spec(name) is not None:
            return (_named(title, importlib.import_module(name)),)
    raise ImportError(
        "the model is verified with ONNX Runtime, which is not installed: pip install onnxruntime"
    )


def _onnx_runner(model: ModelProto) -> Run:
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [item.name for item in model.graph.input if item.name not in weights]
    outputs = [item.name for item in model.graph.output]

    def run(inputs: Sequence[Array]) -> list[Array]:
        given = dict(zip(names, inputs, strict=True))
        with _onnx_evaluator(model) as evaluate:
            return [_array(item) for item in evaluate(outputs, given)]

    return run


@contextlib.contextmanager
def _onnx_evaluator(model: ModelProto) -> Iterator[Callable[..., Any]]:
    if importlib.util.find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        yield ReferenceEvaluator(model).run
        return
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Its optimizations round quantized models differently than the standard says.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    if model.ByteSize() <= _MOST_OF_PROTOBUF:
        content = model.SerializeToString()
        yield onnxruntime.InferenceSession(content, options, providers=providers).run
        return
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        large = copy.deepcopy(model)  # Saving moves the weights out of it.
        onnx.save_model(large, path, save_as_external_data=True, location="weights")
        yield onnxruntime.InferenceSession(path, options, providers=providers).run


def _run_program(
    program: ExportedProgram, inputs: Sequence[Array], kept: Sequence[str] = ()
) -> list[Array]:
    import torch
    from torch.utils import _pytree

    arrays = iter(inputs)
    types = {
        node.name: getattr(node.meta.get("val"), "dtype", None) for node in program.graph.nodes
    }
    given: list[object] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is not torch.export.graph_signature.InputKind.USER_INPUT:
            continue
        is_tensor = isinstance(spec.arg, torch.export.graph_signature.TensorArgument)
        if not is_tensor:
            given.append(getattr(spec.arg, "value", None))
            continue
        tensor = _to_torch(next(arrays))
        # Another type stands for bfloat16 here.
        is_rough = types.get(spec.arg.name) is torch.bfloat16
        given.append(tensor.to(torch.bfloat16) if is_rough else tensor)
    # A run may change the program's buffers.
    module = copy.deepcopy(program).module()
    buffers = dict(module.named_buffers(remove_duplicate=False))
    for name, array in zip(kept, arrays, strict=True):
        buffers[name].copy_(_to_torch(array))
    positional, named = _pytree.tree_unflatten(given, program.call_spec.in_spec)
    with torch.no_grad():
        results = _pytree.tree_leaves(module(*positional, **named))
    results += [buffers[name] for name in kept]
    return [_of_torch(item) for item in results if isinstance(item, torch.Tensor)]


def _is_rough(program: Any) -> bool:
    """Whether a program computes in bfloat16."""
    import torch

    values = (node.meta.get("val") for node in program.graph.nodes)
    return any(getattr(value, "dtype", None) is torch.bfloat16 for value in values)


def _to_torch(array: Array) -> Any:
    import torch

    if array.dtype.name == "bfloat16":  # NumPy's own types lack it.
        return torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _of_torch(tensor: Any) -> Array:
    import torch

    tensor = tensor.detach().cpu()
    return _array(tensor.float() if tensor.dtype is torch.bfloat16 else tensor)


def _interpreter() -> tuple[str, Any]:
    for title, name in _INTERPRETERS:
        try:
            found = importlib.import_module(name)
        except ImportError:
            continue
        package = importlib.import_module(name.partition(".")[0])
        return _named(title, package), found.Interpreter
    raise ImportError(
        "the model is verified with LiteRT's interpreter, which is not installed: pip install "
        "ai-edge-litert"
    )


def run_tflite(
    interpreter: Callable[..., Any], content: bytes, inputs: Sequence[Array]
) -> list[Array]:
    """Run a TFLite model.

    `content`: the bytes of the file.
    """
    machine = interpreter(model_content=content, num_threads=1)
    details = machine.get_input_details()
    for item, array in zip(details, inputs, strict=True):
        if tuple(item["shape"]) != array.shape:
            machine.resize_tensor_input(item["index"], array.shape)
    machine.allocate_tensors()
    for item, array in zip(details, inputs, strict=True):
        machine.set_tensor(item["index"], array)
    machine.invoke()
    return [np.array(machine.get_tensor(item["index"])) for item in machine.get_output_details()]


def _array(value: object) -> Array:
    """Return a tensor as an array; a sequence or a map is none."""
    if value is None or isinstance(value, (list, tuple, dict)):
        raise TypeError("a result is not a tensor")
    return np.asarray(value)
