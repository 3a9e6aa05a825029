# SPDX-License-Identifier: Apache-2.0
"""Extracts a region or a composite of a model into a self-contained case file.

A case file holds a Relax function without regions, the inputs that it gets in the model, and the
results of TVM's own kernels. `conformance FILE` runs it on any machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...backend.api import BACKEND, Array, with_bounds_of
from .chip import steps_beside_host
from .compiled import partition_for, run_on_host
from .inlining import inlined

FORMAT_VERSION = 1
PLACEMENTS = ("", "all", "some", "none")
"""Raise it with every incompatible change of the format."""


@dataclass(frozen=True)
class CaseFile:
    """A part of a model, with the data for a call.

    `name`: its name in results.
    `mod`: A module (`tvm.IRModule`) whose function `main` is the part, not partitioned.
    `inputs`: the arguments.
    `expected`: the results.
    `placement`: how much of it must be on the NPU: all (in one region), some or none; "": any.
    `options`: fields of `Options` to compile it with.
    `steps`: how many steps its integers may be off.
    """

    name: str
    mod: tvm.IRModule
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    placement: str = "all"
    options: Mapping[str, object] = field(default_factory=dict)
    steps: float = 0

    def save(self, path: Path) -> None:
        """Write it to a file."""
        about = {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "placement": self.placement,
            "options": dict(self.options),
            "steps": self.steps,
            "module": tvm.ir.save_json(self.mod),
        }
        arrays: dict[str, Any] = {}
        arrays |= {f"input_{index}": array for index, array in enumerate(self.inputs)}
        arrays |= {f"expected_{index}": array for index, array in enumerate(self.expected)}
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        with path.open("wb") as file:
            np.savez_compressed(file, about=text, **arrays)

    @classmethod
    def load(cls, path: Path) -> CaseFile:
        """Read a file."""
        kind = "case file, as 'extract' writes them"
        arrays = read_arrays(path, kind)
        try:
            about = json.loads(arrays["about"].tobytes())
            version = about["format_version"]
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ValueError(f"{path} is not a {kind}") from None
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{path} is a case file of format version {version!r}, and this package reads "
                f"{FORMAT_VERSION}; cut the case out with 'extract' again"
            )
        try:
            mod = read_module(about["module"])
            inputs, expected = (
                tuple(arrays[f"{role}_{i}"] for i in range(_count(arrays, role)))
                for role in ("input", "expected")
            )
            name, placement = str(about["name"]), str(about["placement"])
            options, steps = dict(about["options"]), float(about.get("steps", 0))
            case = cls(name, mod, inputs, expected, placement, options, steps)
            problem = misfit(mod["main"].params, inputs)
            problem = problem or ("" if expected else "it has no results")
            if placement not in PLACEMENTS:
                problem = f"its placement is '{placement}', and not {' or '.join(PLACEMENTS[1:])}"
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(
                f"{path} is a case file that is damaged, or its module is of another version of "
                "TVM; cut the case out with 'extract' again"
            ) from None
        if problem:
            raise ValueError(f"{path} is a case file that was changed: {problem}")
        return case


def read_arrays(path: Path, kind: str) -> dict[str, Array]:
    """Read an .npz file."""
    if not os.path.isfile(path):
        is_other = os.path.exists(path)
        raise ValueError(f"{path} is not a file" if is_other else f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except PermissionError:
        raise ValueError(f"{path} may not be read") from None
    except Exception:
        # NumPy and the readers below it raise countless errors, some about pickles.
        arrays = {}
    if not all(isinstance(array, np.ndarray) for array in arrays.values()) or not arrays:
        raise ValueError(f"{path} is not a {kind}")
    return arrays


def read_module(text: str) -> tvm.IRModule:
    """Read a module from the output of `tvm.ir.save_json`."""
    try:
        mod = tvm.ir.load_json(text)
    except Exception as error:
        raise ValueError("it is not JSON of TVM") from error
    if not isinstance(mod, tvm.IRModule):
        raise ValueError("it is not a module")
    return mod


def misfit(params: Sequence[relax.Var], arrays: Sequence[Array]) -> str:
    """Return why a function does not take arrays.

    Part of a sentence; "" if it takes them.
    """
    if len(arrays) != len(params):
        return f"there are {len(arrays)} arrays for {len(params)} inputs"
    sizes: dict[tvm.tirx.Var, int] = {}
    for param, array in zip(params, arrays, strict=True):
        if not isinstance(getattr(param.ty, "shape", None), relax.ShapeExpr):
            return f"the input '{param.name}' is not a tensor of a known rank"
        shape = list(param.ty.shape)
        wanted = ", ".join(str(sizes.get(size, getattr(size, "value", size))) for size in shape)
        fits = array.ndim == len(shape) and str(array.dtype) == str(param.ty.dtype)
        for size, length in zip(shape, array.shape, strict=False):
            if isinstance(size, tvm.tirx.Var):
                fits &= sizes.setdefault(size, length) == length
            elif isinstance(size, tvm.tirx.IntImm):
                fits &= int(size) == length
        if not fits:
            return (
                f"its array for '{param.name}' is {array.dtype} of shape {list(array.shape)}, and "
                f"the input is {param.ty.dtype} of shape [{wanted}]"
            )
    return ""


def _count(names: Iterable[str], role: str) -> int:
    return sum(name.startswith(f"{role}_") for name in names)


def parts(mod: tvm.IRModule) -> dict[str, str]:
    """List the parts that can be extracted from a model.

    Regions, and composites as `region.composite<number>`, each with its contents.
    """
    contents = {}
    for symbol, function in _regions(_partitioned(mod)).items():
        composites = _composites(function)
        labels = {name: str(value.attrs["Composite"]) for name, value in composites.items()}
        contents[symbol] = ", ".join(label.removeprefix(f"{BACKEND}.") for label in labels.values())
        for name, label in labels.items():
            contents[f"{symbol}.{name}"] = label.removeprefix(f"{BACKEND}.")
    return contents


def extract(
    mod: tvm.IRModule, inputs: Sequence[Array], part: str, function: str = "main"
) -> CaseFile:
    """Extract a part of a model."""
    mod = _partitioned(mod)
    names = parts(mod)
    if part not in names:
        raise ValueError(f"there is no part '{part}'; there are {', '.join(names) or 'none'}")
    symbol, _, composite = part.partition(".")
    arguments = _values_at(mod, mod[function], symbol, inputs)
    body = mod[symbol].without_attr("Codegen")
    if composite:
        arguments = _values_at(mod, body, composite, arguments)
        body = _composites(body)[composite].without_attr("Composite")
        body = with_bounds_of(mod[symbol], body)
    body, arguments = _without_shapes(body, arguments)
    alone = inlined(mod, body)
    expected = run_on_host(alone, "main", arguments)
    steps = steps_beside_host(alone)
    return CaseFile(part, alone, tuple(arguments), tuple(expected), steps=steps)


def _partitioned(mod: tvm.IRModule) -> tvm.IRModule:
    return mod if _regions(mod) else partition_for(mod)


def _regions(mod: tvm.IRModule) -> dict[str, relax.Function]:
    return {
        global_var.name_hint: function
        for global_var, function in mod.functions_items()
        if isinstance(function, relax.Function) and function.attrs.get("Codegen") == BACKEND
    }


def _composites(function: relax.Function) -> dict[str, relax.Function]:
    """Return the composites of a region by the names of their variables."""
    return {
        str(binding.var.name): binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Function)
    }


def _name(callee: object) -> str:
    """Return the name of a call's callee: a region, a composite, or an op."""
    return str(getattr(callee, "name_hint", None) or getattr(callee, "name", ""))


def _without_shapes(
    function: relax.Function, arguments: Sequence[Array]
) -> tuple[relax.Function, list[Array]]:
    """Fix the sizes that are arguments of their own: a case has only arrays."""
    shapes: dict[relax.Var, relax.ShapeExpr] = {}
    sizes: dict[tvm.tirx.Var, int] = {}
    for param, argument in zip(function.params, arguments, strict=True):
        if isinstance(param.ty, relax.ShapeType):
            numbers = [int(number) for number in argument]
            shapes[param] = relax.ShapeExpr(numbers)
            pairs = zip(param.ty.values, numbers, strict=True)
            sizes |= {size: number for size, number in pairs if isinstance(size, tvm.tirx.Var)}
    kept = [
        argument
        for param, argument in zip(function.params, arguments, strict=True)
        if param not in shapes
    ]
    fixed = function.bind_symbolic_vars(sizes) if sizes else function
    # Binding sizes makes new parameters, in the same order.
    by_index = dict(zip(function.params, fixed.params, strict=True))
    bound = {by_index[param]: shape for param, shape in shapes.items()}
    return (fixed.bind_params(bound) if bound else fixed), kept


def _values_at(
    mod: tvm.IRModule, function: relax.Function, callee: str, inputs: Sequence[Array]
) -> list[Array]:
    """Run a function on the host up to a call; return the arguments of that call.

    A shape among them becomes an array of its sizes.
    """
    blocks: list[relax.BindingBlock] = []
    values: list[relax.Expr] = []
    for block in function.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and _name(call.op) == callee:
                for argument in call.args:
                    if isinstance(argument.ty, relax.ShapeType):
                        numbers = relax.op.shape_to_tensor(argument)
                        kind = relax.TensorType([argument.ty.ndim], "int64")
                        values.append(relax.Var("sizes", kind))
                        bindings.append(relax.VarBinding(values[-1], numbers))
                    else:
                        values.append(argument)
                var = relax.Var("arguments", relax.TupleType([value.ty for value in values]))
                bindings.append(relax.VarBinding(var, relax.Tuple(values)))
                blocks.append(type(block)(bindings))
                body = relax.SeqExpr(blocks, var)
                cut = relax.Function(function.params, body, var.ty)
                cut, arrays = _without_shapes(cut, inputs)
                return run_on_host(inlined(mod, cut), "main", arrays)
            bindings.append(binding)
        blocks.append(block)
    raise ValueError(f"the function does not call '{callee}'")
