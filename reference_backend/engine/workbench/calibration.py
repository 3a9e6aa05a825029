# SPDX-License-Identifier: Apache-2.0
"""What enters the regions of a model for a user's data, for SDKs that quantize by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tvm
from tvm import relax

from ..backend.ir.calls import Constant
from ..backend.passes import for_host
from ..backend.settings.driver_options import DRIVERS
from ..backend.settings.options import Options
from ..backend.shared.aliases import Array
from ..backend.shared.console import Progress
from ..backend.table.patterns import TABLE
from .accuracy.model_values import Graph
from .accuracy.quantized_layers import reading, with_kernels
from .quantization import data


class Recorder:
    """Runs the function `main` of a model on the host, and keeps the values that are asked for.

    Parameters
    ----------
    mod
        The canonicalized model.
    calibration_data
        Batches of inputs, as for the quantization of a model.
    options
        They say for which driver.

    Raises
    ------
    ValueError
        The driver takes no such data, or the data do not fit the model.
    """

    def __init__(
        self, mod: tvm.IRModule, calibration_data: Iterable[object], options: Options
    ) -> None:
        if not any(DRIVERS[role]["takes_samples"] for role in options.drivers):
            raise ValueError(
                f"The driver '{options.driver}' takes no calibration data: it compiles what the "
                "model says. Leave calibration_data out, or quantize the model before it is "
                "imported."
            )
        self._graph = Graph(mod, "model")
        inputs = {
            str(param.name): (str(param.ty.dtype), _sizes(param)) for param in self._graph.params
        }
        self._batches = data.read(data.listed(calibration_data), inputs)
        for name in inputs:
            shapes = {batch[name].shape for batch in self._batches}
            if len(shapes) > 1:
                raise ValueError(
                    f"calibration_data: '{name}' has the shapes {sorted(shapes)}; all batches must "
                    "have the same."
                )
        self._known: dict[relax.Var, tvm.runtime.Tensor] = {
            param: tvm.runtime.tensor(np.stack([batch[str(param.name)] for batch in self._batches]))
            for param in self._graph.params
        }

    def samples_of(self, values: Sequence[relax.Expr]) -> list[tvm.runtime.Tensor]:
        """Return what values are, batch by batch in a new first dimension.

        The model runs once for all that are not known yet.
        """
        values = [self._graph.resolved(value) for value in values]
        missing = [
            value
            for value in dict.fromkeys(value for value in values if isinstance(value, relax.Var))
            if value not in self._known
        ]
        if missing:
            self._run(missing)
        return [
            self._known[value] if isinstance(value, relax.Var) else self._repeated(value)
            for value in values
        ]

    def _run(self, values: Sequence[relax.Var]) -> None:
        with Progress() as progress:
            progress.show(f"calibrating: {len(self._batches)} batches on the host")
            mod = with_kernels(self._graph, {"main": reading(self._graph, values)})
            machine = relax.VirtualMachine(tvm.compile(for_host(mod, TABLE), "llvm"), tvm.cpu())
            found: list[list[Array]] = []
            for batch in self._batches:
                results = machine["main"](*map(tvm.runtime.tensor, batch.values()))
                found.append([result.numpy() for result in results])
        for value, samples in zip(values, zip(*found, strict=True), strict=True):
            self._known[value] = tvm.runtime.tensor(np.stack(samples))

    def _repeated(self, value: relax.Expr) -> tvm.runtime.Tensor:
        """Return a weight that is an argument of a region."""
        if not isinstance(value, Constant):
            raise ValueError(
                "calibration_data: a region takes more than tensors. Fix the sizes of the model's "
                "inputs."
            )
        return tvm.runtime.tensor(np.stack([value.value.numpy()] * len(self._batches)))


def _sizes(param: relax.Var) -> list[int]:
    """Return the sizes of an input, which must be known."""
    sizes = getattr(getattr(param.ty, "shape", None), "values", [None])
    known = [int(size.value) for size in sizes if hasattr(size, "value")]
    if len(known) < len(sizes):
        raise ValueError(
            f"calibration_data: the input '{param.name}' is a {param.ty}; regions are calibrated "
            "for fixed sizes. Fix them when the model is imported."
        )
    return known
