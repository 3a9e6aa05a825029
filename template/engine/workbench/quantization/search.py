# SPDX-License-Identifier: Apache-2.0
"""Chooses the ops that become int16 or float: by name, or until the accuracy is reached."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from ...backend.shared.aliases import Array
from ...backend.shared.console import Progress
from ..batches import Batch
from .planning import Form, Group, Node, Plan, Planner

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

    from .onnx_models import OnnxModel
    from .torch_models import TorchModel

    Evaluate = Callable[[ModelProto], float] | Callable[[ExportedProgram], float]
    """Measures a model; the higher, the better."""

_MEASURED = 4
"""How many batches the layers are compared on."""


def matching(nodes: Sequence[Node], names: Collection[str], argument: str) -> set[int]:
    """Return the ops that a user names."""
    indices: set[int] = set()
    for pattern in names:
        fitting = {
            node.index for node in nodes if any(fnmatchcase(name, pattern) for name in node.names)
        }
        if not fitting:
            products = ", ".join(node.names[0] for node in nodes if node.is_product)
            raise ValueError(
                f"{argument}: no op or result is called '{pattern}'; the products are {products}."
            )
        indices |= fitting
    return indices


class Search:
    """Makes the layers that hurt most int16, then float, until the accuracy is reached.

    How much a layer hurts is the error of the model's results when only this layer is quantized.
    """

    def __init__(
        self,
        source: OnnxModel | TorchModel,
        planner: Planner,
        form: Form,
        batches: Sequence[Batch],
        progress: Progress,
    ) -> None:
        self._source, self._planner, self._form = source, planner, form
        self._batches, self._progress = batches[:_MEASURED], progress

    def within(
        self,
        max_loss: float,
        evaluate: Evaluate,
        excluded: Collection[int],
        wide: Collection[int],
    ) -> ModelProto | ExportedProgram:
        """Return a quantized model that is accurate enough, or else the float model."""
        self._progress.show("evaluating the float model")
        accuracy = _measured(evaluate(self._source.original))
        if np.isnan(accuracy):
            raise ValueError("evaluate returns NaN for the float model.")
        goal = accuracy - max_loss
        kept, widened = set(excluded), set(wide)
        order: list[tuple[Group, set[int], str]] | None = None
        while (chosen := self._planner.plan(kept, widened)).groups:
            self._progress.show("evaluating the quantized model")
            model = self._source.quantize(chosen, self._form)
            accuracy = _measured(evaluate(model))
            if accuracy >= goal:
                return model
            if order is None:
                groups = self._by_harm(chosen)
                narrow = [group for group in groups if group[0].index not in widened]
                order = [(group, kept, "stays in float") for group in groups]
                if self._form.activations != "int16":
                    able = filter(self._planner.computes_wide, narrow)
                    order += [(group, widened, "becomes int16") for group in able]
            worst, indices, change = order.pop()
            indices.add(worst[0].index)
            self._progress.tell(
                f"accuracy {accuracy:.4g}, wanted {goal:.4g}: '{worst[0].names[0]}' {change}"
            )
        return self._source.unchanged

    def _by_harm(self, chosen: Plan) -> list[Group]:
        """Return the groups, the most harmful last."""
        exact = self._source.run(self._source.reference, self._batches)
        harm: dict[int, float] = {}
        for number, group in enumerate(chosen.groups, 1):
            name = group[0].names[0]
            self._progress.show(f"measuring layer {number} of {len(chosen.groups)}: {name}")
            model = self._source.quantize(Plan((group,), (), ()), self._form)
            harm[group[0].index] = _error(self._source.run(model, self._batches), exact)
        return sorted(chosen.groups, key=lambda group: harm[group[0].index])


def check_loss(max_loss: object) -> None:
    """Refuse a limit that is not a number, or that no model can meet."""
    if not isinstance(max_loss, numbers.Real) or not float(max_loss) >= 0:
        raise ValueError(f"max_loss is {max_loss!r}; supported: a number from 0, such as 0.01.")


def _measured(accuracy: SupportsFloat) -> float:
    """Return a result of the user's function as a number."""
    try:
        if not isinstance(accuracy, str | bytes):
            return float(accuracy)
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"evaluate returns {accuracy!r} of type {type(accuracy).__name__}; supported: a number, "
        "higher for a better model."
    )


def _error(results: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> float:
    """Return the ratio of the error's energy to the result's, summed over all results."""
    total = 0.0
    for batch, exact_batch in zip(results, exact, strict=True):
        for result, exact_result in zip(batch, exact_batch, strict=True):
            if exact_result.dtype.kind == "f":
                expected = exact_result.astype("float64")
                error = result.astype("float64") - expected
                total += float((error**2).sum() / max((expected**2).sum(), 1e-30))
    return total
