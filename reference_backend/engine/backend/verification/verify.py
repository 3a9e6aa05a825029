# SPDX-License-Identifier: Apache-2.0
"""Compares the results of a compiled model with those of the original."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

from ..ir.calls import Values
from ..ir.states import states
from ..models.compiled import run
from ..models.files import NamedArrays
from ..models.reading import read_model
from ..models.signature import Signature, random_inputs, signature_of, suitable
from ..passes.quantized_form import QUANTIZE
from ..passes.rewriting import bound_values, is_opaque, op_name
from ..regions.partition import compile_for
from ..report.verification import ResultCheck, Verification
from ..settings.options import Options, Source
from ..shared.aliases import Array
from ..shared.problem import Problem
from ..table.judging import judge
from .originals import Original, original_of

QUANTIZED = 0.02
"""The allowed error of a quantized model, as a part of the range of a result; at least one step."""
_BY_TYPE = {"bfloat16": 0.08, "float16": 0.01}
_USUAL = 1e-4
_OF_STEPS = ("int8", "uint8", "int16", "uint16")
_LEAST = 0.01
"""A result whose values are all smaller is judged as if its largest were this one: the error of a
sigmoid or a softmax is a part of 1, its largest possible value, however small its results are."""
_SMALLEST = float(np.finfo(np.float32).tiny)


def verify(
    model: object,
    inputs: Mapping[str, object] | Sequence[object] | None = None,
    *,
    seed: int = 0,
    tolerance: float | None = None,
    target: object = "llvm",
    options: Source = None,
    **settings: object,
) -> Verification:
    """Compile a model, and compare its results with those of its own framework.

    The original runs in ONNX Runtime, or in `onnx.reference` where only onnx is installed; in
    PyTorch; or in LiteRT's interpreter.

    Parameters
    ----------
    model
        An `onnx.ModelProto`, a `torch.export.ExportedProgram`, a TFLite model as its bytes or a
        `tflite.Model`, or the path of a file of one of these kinds.
    inputs
        Arrays by the name of the input, or in order. None: random ones, reals of a normal
        distribution, 8-bit integers of the whole range, and 0 or 1 for other integers.
    seed
        The seed of random inputs.
    tolerance
        The allowed error of floats, as a part of the largest value of the result, which counts as
        0.01 if it is smaller. By default 1e-4,
        or 0.01 and 0.08 in a model that computes in float16 and bfloat16, and 0.02 in a quantized
        one, whose 8-bit and 16-bit results may differ by as much, and by at least one step. Other
        integers must be equal.
    target
        The target of the host part.
    options
        `Options`, a mapping, or the path of a .toml or .json file.
    **settings
        Single options, which override `options`.

    Returns
    -------
    verification
        How far each result is from the original's; `passed` says whether all are right.

    Raises
    ------
    ImportError
        The model's framework is not installed.
    RuntimeError
        The framework cannot run the model, or not on these inputs.
    ValueError
        The model cannot be read, the inputs do not suit it, or the tolerance is negative.
    """
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance} is not a number from 0 on")
    try:
        is_path = isinstance(model, (str, os.PathLike))
        original = original_of(read_model(Path(str(model)), {}).content if is_path else model)
        mod = original.imported()
        signature = signature_of(mod, original.results)
        arrays = _inputs(inputs, signature, seed)
        loaded = Options.load(options).merged(**settings)
        executable = compile_for(mod, target=target, options=loaded)
        machine = VirtualMachine(executable, tvm.cpu())
        found = run(machine, list(map(tvm.runtime.tensor, arrays)))
    except Problem as problem:
        raise ValueError(str(problem)) from None
    told = described("" if inputs is None else "the given inputs", seed)
    return check(original, mod, arrays, [item.numpy() for item in found], told, tolerance)


def _inputs(
    inputs: Mapping[str, object] | Sequence[object] | None, signature: Signature, seed: int
) -> list[Array]:
    if inputs is None:
        for item in signature.inputs:
            if not all(isinstance(size, int) for size in item.shape or ()):
                raise Problem(f"the input {item} has open sizes: give inputs")
        return random_inputs(signature, {}, seed)
    if not isinstance(inputs, Mapping):
        inputs = {f"arr_{index}": value for index, value in enumerate(inputs)}
    arrays = {str(name): np.asarray(value) for name, value in inputs.items()}
    return suitable(NamedArrays(arrays, Path("inputs")), signature)


def described(given: str, seed: int) -> str:
    """Say what the inputs are.

    `given`: what they are if they are not random, else "".
    `seed`: the seed if they are.
    """
    return given or f"random inputs, seed {seed}"


def check(
    original: Original,
    mod: tvm.IRModule,
    inputs: Sequence[Array],
    results: Sequence[Array],
    told: str,
    tolerance: float | None = None,
) -> Verification:
    """Run the original, and compare the results of the compiled model with its own.

    `mod`: what was imported, before any pass: its types say how exact results can be.
    """
    kept = states(mod)
    if kept and original.hides_states:
        count = len(kept)
        for state, array in zip(kept, inputs[-count:], strict=True):
            if not np.array_equal(array, state.initial):
                wrong = f"it begins with its own '{state.name}', and the inputs have another"
                return Verification(original.framework, told, (), wrong)
        inputs, results, kept = inputs[:-count], results[:-count], ()
    expected = original.run(inputs, [state.name for state in kept])
    if len(expected) != len(results):
        wrong = f"there are {len(results)} results instead of {len(expected)}"
        return Verification(original.framework, told, (), wrong)
    share, is_quantized = _exactness(mod)
    share = max(share, _BY_TYPE.get(original.dtype, 0))
    if tolerance is not None:
        share = tolerance
    names = (*original.results, *(state.name for state in kept))
    if len(set(names)) != len(expected):
        names = tuple(f"result_{index}" for index in range(len(expected)))
    if original.dtype == "bfloat16":
        # NumPy lacks it: the original's results arrive in float32.
        results = [
            mine.astype(right.dtype) if mine.dtype.name == "float16" else mine
            for mine, right in zip(results, expected, strict=True)
        ]
    checks = [
        _check(name, right, mine, share, is_quantized)
        for name, right, mine in zip(names, expected, results, strict=True)
    ]
    return Verification(original.framework, told, tuple(checks))


def _exactness(mod: tvm.IRModule) -> tuple[float, bool]:
    """Return the allowed error as a part of the range, and whether the model is quantized."""
    dtypes: set[str] = set()
    is_quantized = False
    for _, function in mod.functions_items():
        if is_opaque(function):
            continue
        values: Values = bound_values(function.body)
        for var, value in values.items():
            name, dtype = op_name(value), str(getattr(var.ty, "dtype", ""))
            dtypes.add(dtype)
            is_small = dtype in _OF_STEPS and name == "relax.astype"
            is_quantized |= name == QUANTIZE or (is_small and _is_float(value.args[0].ty.dtype))
        dtypes.update(str(getattr(param.ty, "dtype", "")) for param in function.params)
    allowed = [share for dtype, share in _BY_TYPE.items() if dtype in dtypes]
    return max([*allowed, QUANTIZED if is_quantized else _USUAL]), is_quantized


def _check(name: str, right: Array, mine: Array, share: float, is_quantized: bool) -> ResultCheck:
    dtype, shape = str(right.dtype), right.shape
    # NumPy's own types lack bfloat16, as which PyTorch's results do not arrive either.
    if mine.dtype.name == "bfloat16":
        mine = mine.astype(np.float32)
    finite = right[np.isfinite(right)] if right.dtype.kind == "f" else right
    allowed, remark = 0.0, ""
    if right.dtype.kind == "f":
        largest = float(np.abs(finite.astype(np.float64)).max(initial=0.0))
        allowed = max(share * largest, share * _LEAST, _SMALLEST)
        if largest <= allowed:
            remark = "has no value that is larger than what is allowed, so that this says little"
    elif is_quantized and dtype in _OF_STEPS:
        allowed = 1.0
        if right.size:
            allowed = max(allowed, share * (float(right.max()) - float(right.min())))
    verdict = judge([mine], [right], [np.float64(allowed)], "the original")
    if not right.size:
        remark = "is empty"
    elif not finite.size:
        remark = "has no finite value, so that this says little"
    counts = (verdict.differing, right.size)
    wrong = verdict.text.removeprefix("the result ")
    return ResultCheck(name, dtype, shape, verdict.error, verdict.allowed, *counts, wrong, remark)


def _is_float(dtype: object) -> bool:
    return str(dtype).startswith(("float", "bfloat"))
