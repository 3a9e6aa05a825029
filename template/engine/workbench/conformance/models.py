# SPDX-License-Identifier: Apache-2.0
"""The suite of small models from `torch.export` and ONNX, through TVM's front ends.

Each is compared with its framework and with TVM's own kernels. If all ops of a model are in the
table, the NPU must compute everything in one region, except for the ops listed here with the model.
If a vendor has taken ops out, the placement of the rest is only recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import tvm

from ...backend.api import TABLE, Array, JsonObject, Verdict
from . import onnx_networks
from .imported import (
    Imported,
    Program,
    compile_for_host,
    compile_for_npu,
    excuse,
    judge_each,
    kind_and_message,
    placement_of,
    reasons_of,
)
from .outcomes import Outcome
from .suite import NotRun, Settings
from .workers import Announce, in_workers

SUITE = "models"

_BATCH = 2
"""The number of models per batch: the slowest batch determines the total time."""

_CLOSE = 2e-5
"""The allowed error relative to the largest result: some float32 steps for each layer."""


@dataclass(frozen=True)
class Expected:
    """The expected placement of a model.

    `on_host`: the ops that may stay on the host.
    `regions`: the largest number of regions.
    """

    on_host: frozenset[str] = frozenset()
    regions: int = 1


WHOLE = Expected()

MODELS: dict[str, Expected] = {
    "torch-resnet": WHOLE,
    "torch-mobilenet": WHOLE,
    "torch-unet": WHOLE,
    "torch-encoder": WHOLE,
    "torch-bert": WHOLE,
    "torch-gpt": WHOLE,
    "torch-decoder": WHOLE,
    "torch-lstm": WHOLE,
    "torch-gru": WHOLE,
    "torch-detector": WHOLE,
    "onnx-resnet": WHOLE,
    "onnx-mobilenet": WHOLE,
    "onnx-unet": WHOLE,
    "onnx-bert": WHOLE,
    "onnx-gpt": WHOLE,
    "onnx-lstm": WHOLE,
    "onnx-detector": WHOLE,
}
"""The models, each with its framework."""


def cases(settings: Settings) -> list[str]:
    """Return the names of the models."""
    if not any(map(find_spec, ("onnx", "torch"))):
        raise NotRun("pip install onnx torch")
    return list(MODELS)


def outcomes(settings: Settings) -> Iterator[Outcome]:
    """Run the selected models."""
    chosen = settings.choose(SUITE, cases(settings))
    there = {name: find_spec(name) is not None for name in ("onnx", "torch")}
    for name in chosen:
        framework = name.partition("-")[0]
        if not there[framework]:
            yield Outcome(SUITE, name, "not_run", name, reason=f"pip install {framework}")
    ready = [name for name in chosen if there[name.partition("-")[0]]]
    yield from in_workers(SUITE, ready, settings.jobs, _BATCH)


def read(name: str) -> tuple[Imported, Sequence[Array]]:
    """Build a model, and read it with TVM's front end."""
    framework, _, network = name.partition("-")
    if framework == "torch":
        from . import torch_networks

        module, arguments, expected = torch_networks.export(network)
    else:
        module, arguments, expected = onnx_networks.read(network)
    return Imported(name, module, arguments), expected


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Run models, one after the other."""
    for name in names:
        announce(name)
        fields: JsonObject = {"op": name, "dtype": "float32"}
        try:
            yield _run(name, MODELS[name], fields)
        except Exception as error:
            yield Outcome(SUITE, name, "failed", **{**fields, "reason": kind_and_message(error)})


def _run(name: str, wanted: Expected, fields: JsonObject) -> Outcome:
    model, expected = read(name)
    program = _compile(model, compile_for_npu)
    host = _compile(model, compile_for_host)
    ops = program.placements[model.symbol]
    regions = program.regions.get(model.symbol, 0)
    on_host = [op for op in ops if op.placement != "npu"]
    fields["found"] = placement_of(ops)
    share = f"{len(ops) - len(on_host)} of {len(ops)} calls on the NPU, regions: {regions}"
    fields["reason"] = "; ".join(filter(None, (share, reasons_of(ops))))
    whole = all(TABLE.entries_of(op.op) or op.op in wanted.on_host for op in ops)
    if whole:
        fields["expected"] = "some" if wanted.on_host else "all"

    actual, fields["npu_us"] = _timed(program, model)
    by_host, fields["host_us"] = _timed(host, model)
    verdict = _judge(actual, expected, name.partition("-")[0])
    verdict = verdict.worse(_judge(actual, by_host, "TVM's llvm"))
    fields.update(error=verdict.error, allowed=verdict.allowed, ratio=verdict.ratio)
    if verdict.text:
        return Outcome(SUITE, name, "failed", **{**fields, "reason": verdict.text})
    unwanted = [op for op in on_host if op.op not in wanted.on_host]
    if not whole or (not unwanted and regions <= wanted.regions):
        return Outcome(SUITE, name, "passed", **fields)
    return Outcome(SUITE, name, excuse(unwanted) or "failed", **fields)


def _compile(model: Imported, compile_module: Callable[[tvm.IRModule], Program]) -> Program:
    return compile_module(tvm.IRModule(dict(model.functions())))


def _timed(program: Program, model: Imported) -> tuple[list[Array], float]:
    program.run(model)
    start = time.perf_counter()
    results = program.run(model)
    return results, round((time.perf_counter() - start) * 1e6, 1)


def _judge(actual: Sequence[Array], expected: Sequence[Array], what: str) -> Verdict:
    verdict = Verdict()
    for mine, right in zip(actual, expected, strict=True):
        largest = float(np.max(np.abs(right))) if right.size else 0.0
        [one] = judge_each([mine], [right], 0.0, _CLOSE * largest, what)
        verdict = verdict.worse(one)
    return verdict
