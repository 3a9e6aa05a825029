# SPDX-License-Identifier: Apache-2.0
"""One region, compiled, and called as TVM calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ...backend.api import BACKEND, Array, offload_report
from .catalog_cases import Case
from .compiled import partition_for, placement
from .model import Model

load_module = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{BACKEND}")
"""Makes a module from an artifact's bytes."""


class DeclinedRegion(ValueError):
    """The driver takes each op of a model, but declines the region of them."""


def region_of(model: Model, **options: Any) -> tvm.runtime.Module:
    """Compile a model to the module of its only region."""
    return _compile(_partitioned(model, options), options)


def _partitioned(model: Model, options: Mapping[str, Any]) -> tvm.IRModule:
    mod = partition_for(tvm.IRModule({model.name: model.function()}), **options)
    report = offload_report(mod)
    if len(report.regions) != 1:
        kind = DeclinedRegion if placement(mod, model.name).declined else ValueError
        raise kind(f"The model is not one region:\n{report}")
    return mod


def _compile(partitioned: tvm.IRModule, options: Mapping[str, Any]) -> tvm.runtime.Module:
    compiled = relax.transform.RunCodegen({BACKEND: options})(partitioned)
    (module,) = compiled.attrs["external_mods"]
    return module


def _order(function: relax.Function) -> list[int]:
    """Return which parameter of a function each argument of its region is.

    A region takes them in the order in which its calls do: a chain may begin with its second input.
    """
    order: list[int] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
            for argument in expr.args:
                order.extend(
                    n for n, param in enumerate(function.params) if param.same_as(argument)
                )

    relax.analysis.post_order_visit(function.body, visit)
    return order


MOST_DECLINES = 150
"""Give up after this many declined cases."""


def first_taken(cases: Iterable[Case]) -> tuple[Case | None, list[str]]:
    """Find a case that the NPU takes as one region; a view only if it takes nothing else.

    The first that it takes, if any, and why the driver declines those before it. Cases that the
    table refuses are not tried, and none after `MOST_DECLINES`.
    """
    view: Case | None = None
    reasons: list[str] = []
    for case in cases:
        model = case.model(exact=False)
        if not model.arguments or model.refusals():
            continue
        # Much faster than partitioning, and with the same answer in most cases.
        reason = model.decline()
        if reason is None:
            mod = partition_for(tvm.IRModule({model.name: model.function()}))
            places = placement(mod, model.name)
            if places.extent == "all" and len(places.regions) == 1:
                if not case.model().is_view:
                    return case, reasons
                view = view or case
                continue
            reason = "; ".join(places.on_host) or f"it becomes {len(places.regions)} regions"
        reasons.append(f"{case}: {reason}")
        if len(reasons) == MOST_DECLINES:
            break
    return view, reasons


def ask_about(cases: Iterable[Case]) -> tuple[Case | None, str]:
    """Find a case that the driver takes, without making a region of it.

    The first that it takes and that is no view; if none, the first view that it takes, and why it
    declines the first of the others. Cases that the table refuses are not tried: the reason is
    empty if it refuses all of these.
    """
    view: Case | None = None
    reasons: dict[Case, str] = {}
    for case in cases:
        model = case.model(exact=False)
        if not model.arguments or model.refusals():
            continue
        reason = model.decline()
        if reason is not None:
            reasons[case] = f"{case}: {reason}"
        elif not case.model().is_view:
            return case, ""
        else:
            view = view or case
    # An op that only makes views may lack some of them, such as those of symbolic sizes.
    others = (reasons[case] for case in reasons if view is None or not case.model().is_view)
    return view, next(others, "")


class Region:
    """The region of a case, with the arguments and the results of a call.

    `case`: A case that runs on the NPU; its symbolic size is 1.
    `options`: fields of `Options`.
    """

    def __init__(self, case: Case, **options: object) -> None:
        self.case = case
        self.model = model = case.model()
        partitioned = _partitioned(model, options)
        self.module = _compile(partitioned, options)
        self.symbol = str(self.module["get_symbol"]())
        self.inputs_of_model = [argument.values[1] for argument in model.arguments]
        self.inputs = [self.inputs_of_model[n] for n in _order(partitioned[model.name])]
        self.expected = [output.values[1] for output in model.outputs]

    @property
    def bytes(self) -> bytes:
        """The artifact."""
        return bytes(self.module["save_to_bytes"]())

    def tensors(self, inputs: Sequence[Array] | None = None) -> list[tvm.runtime.Tensor]:
        """Make the arguments of a call: inputs, and outputs filled with wrong values."""
        given = self.inputs if inputs is None else inputs
        arrays = [*given, *(np.full_like(array, 77) for array in self.expected)]
        return [tvm.runtime.tensor(array) for array in arrays]

    def call(
        self, inputs: Sequence[Array] | None = None, module: tvm.runtime.Module | None = None
    ) -> list[Array]:
        """Call the region, and return its outputs."""
        tensors = self.tensors(inputs)
        (module or self.module)[self.symbol](*tensors)
        return [tensor.numpy() for tensor in tensors[len(self.inputs) :]]
