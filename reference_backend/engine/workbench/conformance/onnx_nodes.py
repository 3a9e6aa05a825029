# SPDX-License-Identifier: Apache-2.0
"""The suite of the `onnx` package's node tests, through TVM's importer.

A case whose calls all have an entry in the table must be offloaded as a whole. The others must have
the right values, and are counted separately. So are cases that the importer cannot read or that
TVM's own kernels get wrong, with the reason: they prove nothing about the backend.
"""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax, tirx

from ...backend.api import TABLE, JsonObject, Verdict
from . import chip
from .imported import (
    Imported,
    Program,
    compile_for_host,
    compile_for_npu,
    compile_together,
    excuse,
    judge_each,
    kind_and_message,
    placement_of,
    reasons_of,
)
from .outcomes import Outcome
from .suite import NotRun, Settings
from .workers import Announce

if TYPE_CHECKING:
    from onnx import ModelProto

SUITE = "onnx_nodes"

BATCH = 40
"""The number of cases compiled together: more take longer to bisect after a failure."""


_OTHER_TYPES = ("dtype", "unknown_type")
"""Why ops of the table stay on the host in some cases: sums of int32, float64, empty parts."""


def cases(settings: Settings) -> list[str]:
    """Return the names of all cases."""
    if find_spec("onnx") is None:
        raise NotRun("pip install onnx")
    return list(collect())


@dataclass(frozen=True, eq=False)
class Node:
    """A case: a model of one node or of its expansion by ONNX, with inputs and outputs."""

    name: str
    op: str
    proto: ModelProto
    inputs: Sequence[object]
    outputs: Sequence[object]
    rtol: float
    atol: float


@cache
def collect() -> Mapping[str, Node]:
    """Return all cases, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        collected = {case.name.removeprefix("test_"): case for case in collect_testcases()}
    nodes = {}
    for name, case in collected.items():
        # "x_expanded" is the same as "x", in more elementary ops.
        origin = collected.get(name.partition("_expanded")[0], case)
        op = origin.model.graph.node[-1].op_type
        inputs, outputs = ([_as_array(value) for value in values] for values in case.data_sets[0])
        nodes[name] = Node(name, op, case.model, inputs, outputs, case.rtol, case.atol)
    return nodes


_HOLDERS = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}
"""Types of less than 8 bits, and the types that hold them in TVM."""


def _as_array(value: object) -> object:
    """Return a tensor of ONNX as an array, if NumPy has its element type."""
    from onnx import TensorProto, numpy_helper

    if not isinstance(value, TensorProto):
        return value
    array = numpy_helper.to_array(value)
    if array.dtype.name in _HOLDERS:
        return array.astype(_HOLDERS[array.dtype.name])
    return array if array.dtype.isbuiltin == 1 else value


# ---- Importing ----------------------------------------------------------------------------------


def read(node: Node) -> Imported | str:
    """Import a case.

    Values that are constants in real models, such as shapes, axes and paddings, are inputs of these
    cases. They become constants where the importer or the shapes in its result need it, as do
    weights where the chip wants constants.
    """
    for array in (*node.inputs, *node.outputs):
        if hasattr(array, "data_type"):
            return "NumPy has no such element type: a float of 4 or 8 bits, or bfloat16"
        if not isinstance(array, (np.ndarray, np.generic)):
            return "sequences and optional values are not tensors"
        if array.dtype.kind in "OSU":
            return "strings are not tensors of TVM"
    names = [value.name for value in node.proto.graph.input]
    indices = [
        name
        for name, array in zip(names, node.inputs, strict=True)
        if isinstance(array, (np.ndarray, np.generic))
        and array.dtype in (np.int32, np.int64)
        and array.ndim <= 1
    ]
    choices = ((), tuple(n for n in indices if n != names[0]), names[1:], indices, names)
    reason = ""
    dynamic: Imported | None = None
    for constants in dict.fromkeys(tuple(choice) for choice in choices):
        try:
            imported = _import(node, constants)
        except Exception as error:
            reason = reason or kind_and_message(error)
            continue
        if _is_static(imported.module["main"]):
            weights = tuple(n for n in names if n in constants or n != names[0])
            return _bound(node, weights) or imported if _wants_constants(imported) else imported
        dynamic = dynamic or imported
    return dynamic or reason


def _wants_constants(imported: Imported) -> bool:
    """Whether a call has inputs that must be constants on this chip."""
    bindings = (
        binding for block in imported.module["main"].body.blocks for binding in block.bindings
    )
    calls = (binding.value for binding in bindings if isinstance(binding.value, relax.Call))
    return any(
        entry.wants_constants
        for call in calls
        for entry in TABLE.entries_of(getattr(call.op, "name", ""))
    )


def _bound(node: Node, constants: Sequence[str]) -> Imported | None:
    try:
        imported = _import(node, constants)
    except Exception:
        return None
    return imported if _is_static(imported.module["main"]) else None


def _import(node: Node, constants: Sequence[str]) -> Imported:
    from onnx import ModelProto, helper, numpy_helper

    from ...backend.api import from_onnx

    proto = ModelProto()
    proto.CopyFrom(node.proto)
    del proto.graph.input[:]
    arguments = {}
    for value, array in zip(node.proto.graph.input, node.inputs, strict=True):
        if value.name in constants:
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            constant = np.asarray(array).astype(dtype)
            proto.graph.initializer.append(numpy_helper.from_array(constant, value.name))
        else:
            proto.graph.input.append(value)
            arguments[value.name] = np.asarray(array)
    # By default, the importer takes a size of 0 for an unknown one.
    shapes = {name: list(array.shape) for name, array in arguments.items()}
    # It prints, and warns about things that it then reads correctly.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        module = from_onnx(proto, shape_dict=shapes)
    return Imported(node.name, module, list(arguments.values()))


def _is_static(function: relax.Function) -> bool:
    """Whether all shapes are known."""

    def is_known(ty: tvm.ir.Type) -> bool:
        if isinstance(ty, relax.TupleType):
            return all(is_known(field) for field in ty.fields)
        if not isinstance(ty, relax.TensorType):
            return True
        shape = getattr(ty.shape, "values", None)
        return shape is not None and all(isinstance(size, tirx.IntImm) for size in shape)

    bindings = (binding for block in function.body.blocks for binding in block.bindings)
    return all(is_known(binding.var.ty) for binding in bindings)


# ---- Running ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Run:
    """The findings for a case on the NPU, and the verdict on each of its results."""

    node: Node
    model: Imported
    fields: JsonObject
    verdicts: Sequence[Verdict]
    error: str = ""
    excuse: str = ""
    """Whether the driver declines a part of it, or the table refuses one."""

    @property
    def is_right(self) -> bool:
        return not self.error and not any(verdict.text for verdict in self.verdicts)


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Import cases, compile them together, and run them one by one."""
    models: dict[str, Imported] = {}
    for name in names:
        announce(name)
        node = collect()[name]
        answer = read(node)
        if isinstance(answer, Imported):
            models[name] = answer
        else:
            text = f"TVM's importer: {answer}"
            yield Outcome(SUITE, name, "not_run", node.op, _dtype(node), reason=text)
    announce("")
    programs = compile_together(list(models.values()), compile_for_npu)
    suspects: dict[str, _Run] = {}
    for name, model in models.items():
        announce(name)
        run = _run(collect()[name], model, programs[name])
        if run.is_right:
            yield _outcome(run)
        else:
            suspects[name] = run
    announce("")
    hosts = compile_together([run.model for run in suspects.values()], compile_for_host)
    for name, run in suspects.items():
        announce(name)
        yield _outcome(run, _run(run.node, run.model, hosts[name]))


def _dtype(node: Node) -> str:
    first = (*node.inputs, *node.outputs)[0]
    return str(first.dtype) if isinstance(first, (np.ndarray, np.generic)) else ""


def _run(node: Node, model: Imported, program: Program | Exception) -> _Run:
    fields: JsonObject = {"op": node.op, "dtype": _dtype(node)}
    if isinstance(program, Exception):
        return _Run(node, model, fields, (), kind_and_message(program))
    ops = program.placements.get(model.symbol, ())
    fields["found"] = placement_of(ops)
    if ops and all(TABLE.entries_of(op.op) and op.code not in _OTHER_TYPES for op in ops):
        fields["expected"] = "all"
    fields["reason"] = reasons_of(ops) if ops else "all of it is computed when it is compiled"
    try:
        program.run(model)
        start = time.perf_counter()
        results = program.run(model)
        seconds = time.perf_counter() - start
        fields["npu_us"] = round(seconds * 1e6, 1) if fields["found"] == "all" else None
    except Exception as error:
        return _Run(node, model, fields, (), kind_and_message(error))
    steps = chip.steps_beside_host(model.module)
    verdicts = judge_each(results, node.outputs, node.rtol, node.atol, "ONNX", steps)
    on_host = [op for op in ops if op.placement != "npu"]
    return _Run(node, model, fields, verdicts, excuse=excuse(on_host))


def _outcome(run: _Run, host: _Run | None = None) -> Outcome:
    """Judge a case; `host` has the verdicts on TVM's own kernels if the NPU is wrong."""
    fields = dict(run.fields)
    here = Outcome(SUITE, run.node.name, **{**fields, "reason": ""})
    right = list(run.verdicts)
    if host is not None:
        wrong = run.error or next(verdict.text for verdict in run.verdicts if verdict.text)
        if not chip.HAS_NAN and not run.error and _has_nan(run.node):
            return _apart(here, "the chip promises nothing about NaN, which is in it")
        if host.error:
            return _apart(here, f"TVM alone fails: {host.error}")
        # TVM's own kernels get the same results wrong: the importer is to blame.
        blamed = [verdict.text for verdict in host.verdicts]
        right = [one for one, text in zip(right, blamed, strict=False) if not text]
        if run.error or any(verdict.text for verdict in right):
            return Outcome(SUITE, run.node.name, "failed", **{**fields, "reason": wrong})
        if not right:
            return _apart(here, f"TVM alone is wrong too: {next(filter(None, blamed))}")
        fields["reason"] = "; ".join(
            filter(None, (fields["reason"], f"TVM alone is wrong in other results: {wrong}"))
        )
    verdict = Verdict()
    for one in right:
        verdict = verdict.worse(one)
    fields.update(error=verdict.error, allowed=verdict.allowed, ratio=verdict.ratio)
    if fields["found"] and "expected" not in fields:
        return _apart(Outcome(SUITE, run.node.name, **fields), "not all of it is in the table")
    right_place = fields.get("expected", "") == fields["found"]
    status = "passed" if right_place else run.excuse or "failed"
    return Outcome(SUITE, run.node.name, status, **fields)


def _has_nan(node: Node) -> bool:
    arrays = [np.asarray(value) for value in (*node.inputs, *node.outputs)]
    return any(array.dtype.kind == "f" and bool(np.isnan(array).any()) for array in arrays)


def _apart(outcome: Outcome, why: str) -> Outcome:
    """Count a case separately: it proves nothing about the backend."""
    reason = ": ".join(filter(None, (why, outcome.reason)))
    return replace(outcome, status="not_run", reason=reason)
