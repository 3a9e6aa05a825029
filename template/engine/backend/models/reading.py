# SPDX-License-Identifier: Apache-2.0
"""Reads model files: ONNX, exported programs of PyTorch, TensorFlow Lite, and modules of TVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from ..importers.failures import node_of
from ..shared.console import quiet
from ..shared.problem import Problem, sentence
from .files import read_text, require_file

if TYPE_CHECKING:
    from onnx import ModelProto

Shapes = Mapping[str, Sequence[int]]
"""The sizes of inputs, by name."""


@dataclass(frozen=True)
class ModelFile:
    """A model file, before TVM imports it.

    `content`: an `onnx.ModelProto`, a `torch.export.ExportedProgram`, a path or a `tvm.IRModule`.
    `importer`: makes a module of the content.
    `results`: the names of the results; none if the file has no names of them.
    `can_quantize`: whether this package quantizes models of this kind.
    """

    path: Path
    content: object
    importer: Callable[[object], tvm.IRModule]
    results: tuple[str, ...] = ()
    can_quantize: bool = False

    def imported(self, shapes: Shapes, content: object = None) -> tvm.IRModule:
        """Return the model as a module of TVM."""
        try:
            with quiet():
                mod = self.importer(self.content if content is None else content)
        except Exception as error:  # Importers raise countless errors.
            node, why = node_of(error), sentence(error)
            why = f"at the node {node}: {why}" if node and node not in why else why
            raise Problem(f"{self.path} cannot be imported: {why}") from error
        return with_shapes(mod, shapes)


def read_model(path: Path, shapes: Shapes, otherwise: str = "") -> ModelFile:
    """Read a model file (see `KINDS`) with sizes for its open ones."""
    require_model(path, KINDS, otherwise)
    reader = _READERS.get(path.suffix.lower()) or _READERS[otherwise]
    return reader(path, shapes)


def with_bfloat16(file: ModelFile, dtype: str) -> ModelFile:
    """Return a model whose tensors of bfloat16 get another type."""
    if file.path.suffix.lower() != ".pt2":
        raise Problem(f"--bfloat16 is for programs of PyTorch (.pt2), and {file.path} is none.")
    from ..importers import from_exported_program

    return replace(file, importer=lambda content: from_exported_program(content, bfloat16=dtype))


def require_model(path: Path, kinds: str, otherwise: str = "") -> None:
    """Refuse a file that is missing, or of a kind that cannot be read."""
    require_file(path)
    if _READERS.keys().isdisjoint((path.suffix.lower(), otherwise)):
        raise Problem(f"{path} is not a model that can be read; supported: {kinds}.")


def _read_onnx(path: Path, shapes: Shapes) -> ModelFile:
    try:
        import onnx
    except ImportError:
        raise Problem("ONNX models need the package onnx: pip install onnx.") from None
    from ..importers import from_onnx

    try:
        model = onnx.load(path)
        outputs = model.graph.output
        if not outputs:
            raise ValueError
    except Exception:  # Errors of protobuf, or of the system about data next to the model.
        raise Problem(f"{path} is not an ONNX model, or its data are missing.") from None
    _set_shapes(model, shapes)
    return ModelFile(
        path,
        model,
        # Names of inputs stay as their author wrote them.
        lambda content: from_onnx(content, sanitize_input_names=False),
        tuple(output.name for output in outputs),
        can_quantize=True,
    )


def _set_shapes(model: ModelProto, shapes: Shapes) -> None:
    """Replace open sizes of an ONNX model, everywhere by their name."""
    from ..importers.onnx.input_sizes import inputs_of, set_sizes

    _require_inputs(shapes, list(inputs_of(model.graph)))
    try:
        set_sizes(model.graph, shapes)
    except ValueError as error:
        options = " ".join(f"--shape {_text(name, shape)}" for name, shape in shapes.items())
        raise Problem(f"{options}: {error}.") from None
    if shapes:
        # The types of inner values still have the open sizes.
        del model.graph.value_info[:]


def _read_program(path: Path, shapes: Shapes) -> ModelFile:
    try:
        import torch
    except ImportError:
        raise Problem("Programs of PyTorch need the package torch: pip install torch.") from None
    from ..importers import from_exported_program

    try:
        # Quantized models have ops that torchao registers.
        with quiet():
            with suppress(ImportError):
                import torchao  # noqa: F401
            program = torch.export.load(path)
    except Exception as error:
        raise Problem(
            f"{path} is not a program that torch.export.save of this PyTorch has written, or has "
            f"ops of a package that is not installed: {sentence(error)}"
        ) from None
    results = program.graph_signature.user_outputs
    names = tuple(str(name) for name in results if name is not None)
    return ModelFile(path, program, from_exported_program, names, can_quantize=True)


def _read_tflite(path: Path, shapes: Shapes) -> ModelFile:
    from ..importers import from_tflite

    # Any size of an input can be changed, as LiteRT does.
    return ModelFile(path, path, partial(from_tflite, shape_dict=dict(shapes)))


def _read_module(path: Path, shapes: Shapes) -> ModelFile:
    try:
        mod = tvm.ir.load_json(read_text(path))
    except Problem:
        raise
    except Exception:
        mod = None
    if not isinstance(mod, tvm.IRModule):
        raise Problem(f"{path} is not a module that tvm.ir.save_json of this TVM has written.")
    return ModelFile(path, mod, lambda content: content)


_READERS: Mapping[str, Callable[[Path, Shapes], ModelFile]] = {
    ".onnx": _read_onnx,
    ".pt2": _read_program,
    ".tflite": _read_tflite,
    ".json": _read_module,
}

KINDS = (
    ".onnx, .pt2 (torch.export.save), .tflite, and .json (a module that tvm.ir.save_json has "
    "written)"
)
"""The kinds of model files, as a text."""


def with_shapes(mod: tvm.IRModule, shapes: Shapes, function: str = "main") -> tvm.IRModule:
    """Fix the open sizes of a module's inputs."""
    if not shapes:
        return mod
    main = main_of(mod, function)
    params = {str(param.name): param for param in main.params}
    _require_inputs(shapes, list(params))
    bound: dict[tvm.tirx.Var, int] = {}
    for name, shape in shapes.items():
        values = getattr(getattr(params[name].ty, "shape", None), "values", None)
        if values is None or len(values) != len(shape):
            raise Problem(f"--shape {_text(name, shape)}: the input is {params[name].ty}.")
        for value, size in zip(values, shape, strict=True):
            if isinstance(value, tvm.tirx.Var):
                if bound.setdefault(value, size) != size:
                    raise Problem(
                        f"--shape {_text(name, shape)}: '{value.name}' is {bound[value]} in "
                        f"another place, and {size} here."
                    )
            elif isinstance(value, tvm.tirx.IntImm) and int(value) != size:
                raise Problem(
                    f"--shape {_text(name, shape)}: the model fixes a size of {int(value)} where "
                    f"{size} is given."
                )
    return relax.transform.BindSymbolicVars(bound, function)(mod) if bound else mod


def main_of(mod: tvm.IRModule, name: str = "main") -> relax.Function:
    """Return the function of a module that is the model."""
    functions = {
        var.name_hint: function
        for var, function in mod.functions_items()
        if isinstance(function, relax.Function)
    }
    if name not in functions:
        raise Problem(f"The model has no function '{name}'; it has: {', '.join(functions)}.")
    return functions[name]


def _require_inputs(shapes: Shapes, inputs: Sequence[str]) -> None:
    for name in shapes:
        if name not in inputs:
            raise Problem(f"--shape {name}=...: the model's inputs are {', '.join(inputs)}.")


def _text(name: str, shape: Sequence[int]) -> str:
    return f"{name}={','.join(map(str, shape))}"
