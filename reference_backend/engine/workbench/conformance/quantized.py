# SPDX-License-Identifier: Apache-2.0
"""The suite of quantized tensors: each op that computes with them, between dequantize and quantize.

All cases are derived from the table. Matrix ops must equal an integer reference bit for bit: exact
sums, and the rescaling of the chip. Element-wise ops may be one step off, since they compute with
real numbers inside. A matmul of real numbers and weights of integers is as exact as one of real
numbers. Each must be one composite in one region.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle
from math import prod

from ...backend.api import TABLE, only_moves
from ...capability import Fuses, Op
from .cases import OPS
from .catalog_cases import Case
from .compiled import Compiled, compile_all
from .composites import run_as_one
from .model import Model, Spec, entry_of
from .outcomes import Outcome
from .quantized_models import FACTORS, Joined, Variant, Work, integers_of
from .suite import Settings
from .weight_models import Weights
from .workers import Announce

SUITE = "quantized"


_VARIANTS = (
    Variant(),
    Variant(bias=True, activation="relu", zero_points=(3, 0, -9)),
    Variant("uint8", "int8", "uint8", (-7, 0, 5), bias=True, residual=True),
    Variant("uint8", "uint8", "uint8", (11, -4, 0), per_channel=False, bias=True),
    Variant("int8", "int8", "int8", (-128, 0, -128), bias=True, activation="clip"),
    Variant("int8", "int8", "", (5, 0, 0), bias=True),
    Variant("int8", "uint8", "int8", (0, 9, 1), residual=True, activation="relu"),
    Variant("uint8", "int8", "int8", (20, 0, 2), False, bias=True, activation="sigmoid"),
    Variant("int8", "int8", "int8", (3, -5, 1), False, computed=True),
    Variant("int16", "int8", "int16", bias=True, activation="relu"),
    Variant("int16", "int8", "int16", (-300, 0, 900), bias=True, residual=True),
    Variant("int16", "uint8", "int8", (0, 3, -9), False, activation="relu", step=9.0),
    Variant("uint8", "int8", "int16", (7, 0, 0), bias=True, residual=True, step=2e-4),
    Variant("int16", "int8", "int16", step=1e-5),
    Variant("int16", "int8", "int16", step=100.0),
    Variant("int16", "int8", "int16", (-32768, 0, -32768), bias=True, activation="clip"),
    Variant("int16", "int8", "", bias=True),
    Variant("int16", "int8", "int16", bias=True, activation="sigmoid", step=0.02),
    Variant("int16", "int16", "int16", (0, 0, 0), False, computed=True),
    Variant("int16", "int16", "int16", (-9, 700, 1200), residual=True, activation="relu"),
    Variant("uint8", "int8", "uint8", (9, 0, -40), True, True, True, "hard_swish"),
    Variant("int16", "int8", "int16", bias=True, activation="hard_swish"),
    *(
        Variant("int8", "int8", "int8", (3, 0, -20), bias=True, activation=op.name)
        for op in TABLE.ops
        if op.activation and op.name in OPS and op.name not in ("relu", "clip", "sigmoid")
    ),
)
_LONG: dict[str, dict[str, object]] = {
    "matmul": {"x1": [2, 3, 700], "x2": [700, 5]},
    "conv2d": {"data": [2, 80, 5, 6], "weight": [4, 80, 3, 3]},
}
"""The inputs of sums that need more than 24 bits if the data is int8, and 32 if it is int16."""
_ENDS = (
    Variant("int8", "int8", "int8", (0, 0, 0), ends=True),
    Variant("int8", "int8", "", (0, 0, 0), ends=True),
    Variant("int16", "int8", "int16", ends=True),
    Variant("int16", "int8", "int16", bias=True, ends=True, step=2.0),
    Variant("int16", "int8", "", ends=True),
    Variant("int16", "int16", "int16", (0, 0, 0), False, ends=True, step=2.0),
)


# Weights of int4 or uint4 are held in 8 bits.
_NARROW = (
    Variant(bias=True, activation="relu", zero_points=(3, 2, -9), step=0.003, narrow=(-8, 7)),
    Variant("uint8", "uint8", "uint8", (-7, -120, 5), residual=True, step=0.003, narrow=(0, 15)),
    Variant("int16", "int8", "int16", step=0.003, narrow=(-8, 7)),
)

# Two roundings of a rescaling differ where it is halfway between two integers, or close to that.
_TIES = (
    Variant(ties=True),
    Variant("uint8", "int8", "uint8", (-7, 0, 5), bias=True, ties=True),
    Variant("int8", "uint8", "int8", (5, 3, -9), False, residual=True, ties=True),
    Variant("int16", "int8", "int16", bias=True, ties=True),
    Variant("int16", "int16", "int16", (9, 0, 0), False, ties=True),
)
_TIED_OTHERS = (Variant(ties=True), Variant("uint8", "int8", "uint8", (-7, 0, 5), ties=True))
_TIED_MEANS: dict[str, tuple[list[int], dict[str, object]]] = {
    "avg_pool1d": ([2, 8, 32], {"pool_size": [2], "strides": [2]}),
    "avg_pool2d": ([2, 4, 12, 12], {"pool_size": [2, 2], "strides": [2, 2]}),
    "avg_pool3d": ([1, 4, 8, 8, 8], {"pool_size": [2, 2, 2], "strides": [2, 2, 2]}),
    "adaptive_avg_pool1d": ([2, 8, 32], {"output_size": [16]}),
    "adaptive_avg_pool2d": ([2, 4, 12, 12], {"output_size": [6, 6]}),
    "adaptive_avg_pool3d": ([1, 4, 8, 8, 8], {"output_size": [4, 4, 4]}),
    "mean": ([4, 64, 4], {"axis": [-1]}),
    "quantize": ([4, 64], {}),
}
"""Shapes and attributes of means over 2, 4 or 8 elements: only powers of two have ties."""

# A rounding that is almost the declared one differs in few of many sums.
_REAL = tuple(
    Variant(zero_points=(-5, 0, 3), bias=True, factors=name)
    for name in ("expand", "depthwise", "project")
)


def _real_shapes(factors: str) -> dict[str, dict[str, object]]:
    """Return inputs of products with a hundred thousand sums, rescaled by real factors."""
    count = len(FACTORS[factors])
    return {
        "matmul": {"x1": [500, 64], "x2": [64, count]},
        "conv2d": {"data": [1, 64, 20, 25], "weight": [count, 64, 1, 1]},
    }


# For other ops. Some zero points are at the ends of their range, so that half of the results are.
_OTHERS = (
    Variant(),
    Variant(activation="relu", zero_points=(3, 0, -9)),
    Variant("uint8", "int8", "uint8", (-7, 0, 5)),
    Variant("uint8", "uint8", "int8", (-128, 127, 127)),
    Variant("int8", "int8", "uint8", (127, -128, -128)),
    Variant("int16", "int16", "int16", (0, -5, 9)),
)


_WEIGHTS = (
    Weights((5, 64), 24, scales="one", turned=False),
    Weights((5, 64), 24, bias=True, activation="relu"),
    Weights((5, 64), 24, "uint8", zero_points=True, residual=True),
    Weights((1, 256), 96, bits=4, scales="32", bias=True, activation="relu"),
    Weights((7, 256), 40, "uint8", 4, "32", zero_points=True, bias=True, residual=True),
    Weights((2, "n", 256), 33, scales="128", zero_points=True),
    Weights((3, 35), 17, bits=4, turned=False, bias=True),
    Weights((3, 66), 17, bits=4, scales="11", zero_points=True, turned=False),
    Weights((3, 35), 17, bits=2, scales="7", residual=True, activation="relu"),
    Weights((1, 35), 1, "uint8", scales="35", zero_points=True),
    Weights((4, 3, 64), 24, "uint8", 4, bias=True),
    Weights((5, 64), 24, dtype="float16", bias=True),
    Weights((5, 64), 24, "uint8", 4, "32", zero_points=True, dtype="float16", activation="relu"),
)


def _takes(work: Weights, entry: Op) -> bool:
    """Whether the chip has all that a case needs."""
    fuses = entry.fuses or Fuses()
    if (work.bias and fuses.bias is None) or (work.residual and not fuses.residual):
        return False
    if work.activation not in {"", *(op.name for op in TABLE.activations_of(entry))}:
        return False
    if work.weight not in integers_of(entry).dtypes:
        return False
    # As a matmul of real numbers.
    model = Model("trial")
    data = model.argument(Spec(work.data, work.dtype))
    weight = model.constant(Spec((work.depth, work.columns), work.dtype), "weight")
    return model.refusal(entry.name, data, weight) is None


@cache
def _works() -> dict[str, Work | Weights]:
    works: dict[str, Work | Weights] = {}
    entry = TABLE.get("matmul")
    if entry is not None and TABLE.takes_integer_weights("relax.matmul"):
        works |= {str(weights): weights for weights in _WEIGHTS if _takes(weights, entry)}
    if not TABLE.computes_quantized:
        return works
    for entry in TABLE.ops:
        if entry.quantized is None or entry.name not in OPS:
            continue
        cases = [case for case in Case.all(entry.name) if not case.dtype and _suits(case)]
        if not cases:
            continue
        matrix = entry.is_product
        variants = _VARIANTS if matrix else _OTHERS
        # Every case once, and every variant once.
        count = max(len(cases) if entry.inside == "integers" else 2, len(variants))
        fitting = [variant for variant in variants if _is_known(variant, entry)]
        pairs = zip(cycle(cases), cycle(fitting), range(count), strict=False)
        for case, variant, _ in pairs:
            work = Work(case, variant)
            works[str(work)] = work
        if matrix:
            narrow = [variant for variant in _NARROW if _is_known(variant, entry)]
            for case, variant in zip(cycle(cases), narrow, strict=False):
                work = Work(case, variant)
                works[str(work)] = work
        if entry.name in _LONG:
            long = {"name": "long sums", "inputs": _LONG[entry.name]}
            for variant in _ENDS:
                if _is_known(variant, entry):
                    work = Work(Case(entry.name, long), variant)
                    works[str(work)] = work
        works |= {str(work): work for work in _tied(entry, cases)}
    works |= {str(work): work for work in [*_joined(), *_rescaled()]}
    return works


def _rescaled() -> Iterator[Work]:
    """Generate the cases with the factors of a real network, with the first op that has them."""
    for variant in _REAL:
        for name, inputs in _real_shapes(variant.factors).items():
            entry, case = TABLE.get(name), Case(name, {"name": "many sums", "inputs": inputs})
            if entry is None or entry.quantized is None or name not in OPS:
                continue
            fuses = entry.with_integers.fuses or Fuses()
            fitting = replace(variant, bias=fuses.bias is not None)
            if _is_known(fitting, entry) and _suits(case):
                yield Work(case, fitting)
                break


def _tied(entry: Op, cases: Sequence[Case]) -> Iterator[Work]:
    """Generate the cases of an op whose results have ties, of which there must be many."""
    if entry.is_product:
        case = max(cases, key=_results)
    elif entry.name in _TIED_MEANS:
        shape, attributes = _TIED_MEANS[entry.name]
        inputs = {**cases[0].entry["inputs"], entry.inputs[0].name: shape}
        case = Case(entry.name, {"name": "means", "inputs": inputs, "attributes": attributes})
        if not _suits(case):
            return
    else:
        return
    for variant in _TIES if entry.is_product else _TIED_OTHERS:
        if _is_known(variant, entry):
            yield Work(case, variant)


def _results(case: Case) -> int:
    """Return the number of results of a case; 0 if it depends on a symbol."""
    (output,) = case.model(exact=False).outputs
    return prod(output.shape) if "n" not in output.shape else 0


def _joined() -> Iterator[Joined]:
    """Generate the cases of concat, if the chip rescales and joins integers."""
    rescale, entry = TABLE.get("quantize"), TABLE.get("concat")
    if rescale is None or rescale.quantized is None or entry is None:
        return
    fitting = [form for form in _OTHERS if not form.activation and _is_known(form, rescale)]
    dtypes = entry.inputs[0].dtypes
    fitting = [form for form in fitting if not dtypes or {form.data, form.weight} <= {*dtypes}]
    cases = [case for case in Case.all("concat") if not case.dtype]
    cases = [case for case in cases if len(next(case.specs())[1]) > 1]
    cases = [case for case in cases if not case.model(exact=False).refusals(inside=True)]
    for case, variant, _ in zip(cycle(cases), cycle(fitting), range(8), strict=False):
        yield Joined(case, variant)
    tied = [form for form in _TIED_OTHERS if _is_known(form, rescale)]
    tied = [form for form in tied if not dtypes or {form.data, form.weight} <= {*dtypes}]
    if cases:
        yield from (Joined(max(cases, key=_results), form) for form in tied)


def _is_known(variant: Variant, entry: Op) -> bool:
    """Whether the chip has all types and ops of a variant."""
    dtypes = {variant.data, variant.weight, variant.result or variant.data}
    if not dtypes <= set(integers_of(entry).dtypes):
        return False
    # Products of two activations are matmuls.
    two = variant.computed or variant.weight == "int16"
    if two and entry.is_product and entry.relax != "relax.matmul":
        return False
    if variant.computed and TABLE.chip.constant_weights:
        return False
    if not entry.is_product:
        relu = TABLE.get("relu")
        if entry.relax in ("", "relax.quantize") and variant.activation:
            return False  # An activation alone is a case of its own, and none follows a chain.
        return not variant.activation or (relu is not None and relu.quantized is not None)
    if not variant.result and not integers_of(entry).to_real:
        return False
    entry = entry.with_integers
    fuses = entry.fuses or Fuses()
    if (variant.bias and fuses.bias is None) or (variant.residual and not fuses.residual):
        return False
    return variant.activation in {"", *(op.name for op in TABLE.activations_of(entry))}


def _suits(case: Case) -> bool:
    """Whether a case has two matrices, or float tensors of the same kind, and the chip takes it."""
    entry = entry_of(case.op)
    matrix = entry.is_product
    specs = [spec for operand, (spec, *_) in case.specs() if matrix or not operand.weight]
    if case.entry.get("attributes", {}).get("out_dtype"):
        return False
    if any(spec.values is not None or spec.dtype != "float32" or not spec.shape for spec in specs):
        return False
    if matrix and (any(len(spec.shape) < 2 for spec in specs) or "n" in specs[1].shape):
        return False
    model = case.model(exact=False)
    if entry.inside == "integers" and "n" in specs[0].shape:
        # The number of elements of a mean must be known when compiling.
        (output,) = model.outputs
        if "n" not in output.shape:
            return False
    if any(only_moves(binding.value) for binding in model.bindings):
        return False  # It has no composite of its own: it moves integers.
    # Whether the driver takes it in float says nothing about integers.
    return not model.refusals(inside=True)


def find(name: str) -> Work | Weights:
    """Return the case of a name."""
    return _works()[name]


def cases(settings: Settings) -> list[str]:
    """Return the names of all cases."""
    return list(_works())


def first_of(op: str) -> Work | None:
    """Return the first case of an op with integers; none if it has no such form here."""
    works = (work for work in _works().values() if isinstance(work, Work) and work.op == op)
    return next(works, None)


@cache
def lacks_integers(*ops: str) -> str | None:
    """Return why the limits or the driver keep one of some ops in float; None if they do not."""
    for name in ops:
        work = first_of(name)
        if work is None:
            return f"{name} does not compute with quantized tensors here"
        if reason := work.model().decline():
            return reason
    return None


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Compile cases together, and run them one by one."""
    # Weights whose data is real must be constants, whatever the default is.
    yield from run(names, announce, bind_constants=True)


def run(names: Sequence[str], announce: Announce, bind_constants: bool) -> Iterator[Outcome]:
    """Compile cases together, with weights that are constants or arguments, and run each."""
    works = [find(name) for name in names]
    models = {str(work): work.model() for work in works}
    compiled = compile_all(list(models.values()), bind_constants=bind_constants)
    for work in works:
        announce(str(work))
        yield run_compiled(work, models[str(work)], compiled)


def run_compiled(work: Work | Weights, model: Model, compiled: Compiled) -> Outcome:
    """Run a case and compare its results."""

    def misnamed(label: str) -> str:
        return f"the composite is called {label}" if work.misnames(label) else ""

    op, dtype = work.op, work.dtype
    outcome = Outcome(SUITE, str(work), "passed", op=op, dtype=dtype, expected="all")
    return run_as_one(outcome, model, compiled, misnamed, work.composites)
