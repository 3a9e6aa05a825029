# SPDX-License-Identifier: Apache-2.0
"""The suite of case files: parts of models from `extract`, and graphs from fuzzing.

Errors of several ops add up, so only visible differences fail: more than a ten-thousandth of the
largest number, or a fiftieth in float16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from ...backend.api import Array, JsonObject, compile_partitioned, judge, partition_for
from .chip import QUANTIZED
from .compiled import options_of, placement
from .extract import CaseFile
from .outcomes import Outcome
from .suite import Settings
from .workers import Announce

SUITE = "files"

CLOSE = {"float16": 2e-2}
"""The allowed error relative to the largest number; 1e-4 for other floats."""


def cases(settings: Settings) -> list[str]:
    """Return the paths of the given case files."""
    return list(dict.fromkeys(map(str, settings.files)))


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Run case files, one by one."""
    for name in names:
        announce(name)
        try:
            yield run_case(name, CaseFile.load(Path(name)))
        except Exception as error:
            yield Outcome(SUITE, name, "failed", reason=str(error) or type(error).__name__)


def run_case(name: str, case: CaseFile) -> Outcome:
    """Compile a case for the NPU, run it, and compare."""
    options = options_of(**case.options)
    partitioned = partition_for(case.mod, options=options)
    places = placement(partitioned, "main")
    fields: JsonObject = {"op": case.name, "expected": case.placement, "found": places.extent}
    fields["reason"] = "; ".join(places.on_host)
    if case.placement == "all" and places.declined:
        return Outcome(SUITE, name, "declined", **fields)
    if case.placement and places.extent != case.placement:
        fields["reason"] = f"{places.extent} of it is on the NPU: {fields['reason'] or 'no reason'}"
        return Outcome(SUITE, name, "failed", **fields)
    if case.placement == "all" and len(places.regions) != 1:
        fields["reason"] = f"it is {len(places.regions)} regions and not one: {places.regions}"
        return Outcome(SUITE, name, "failed", **fields)
    machine = relax.VirtualMachine(compile_partitioned(partitioned, options), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, case.inputs))
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    verdict = judge(
        [tensor.numpy() for tensor in results],
        case.expected,
        limits(case.expected, _has_float16(case.mod), case.steps),
    )
    fields.update(error=verdict.error, allowed=verdict.allowed, ratio=verdict.ratio)
    if verdict.text:
        return Outcome(SUITE, name, "failed", **{**fields, "reason": verdict.text})
    return Outcome(SUITE, name, "passed", **fields)


def _has_float16(mod: tvm.IRModule) -> bool:
    dtypes: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(getattr(expr, "ty", None), relax.TensorType):
            dtypes.append(str(expr.ty.dtype))

    relax.analysis.post_order_visit(mod["main"], visit)
    return "float16" in dtypes


def limits(expected: Sequence[Array], coarse: bool = False, steps: float = 0) -> list[Array]:
    """Return the allowed error of each element after several ops.

    `coarse`: whether there is float16 inside.
    `steps`: how many steps quantized integers may be off.
    """
    allowed = []
    for array in expected:
        limit = steps if str(array.dtype) in QUANTIZED else 0.0
        if np.issubdtype(array.dtype, np.floating):
            finite = np.abs(array[np.isfinite(array)].astype(np.float64))
            dtype = "float16" if coarse else str(array.dtype)
            limit = CLOSE.get(dtype, 1e-4) * float(finite.max(initial=1e-2))
        allowed.append(np.full(array.shape, limit))
    return allowed
