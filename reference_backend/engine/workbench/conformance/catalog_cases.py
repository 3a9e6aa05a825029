# SPDX-License-Identifier: Apache-2.0
"""The cases of the catalogue as models, in the element types that this chip takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import relax

from ...backend.api import JsonObject
from ...capability import Input
from . import chip
from .cases import OPS, dtypes_of, names_dtypes, symbol_of
from .model import Model, Spec, Tensor, entry_of


def _default_dtype(op: str) -> str:
    return (entry_of(op).inputs[0].dtypes or ("float32",))[0]


@dataclass(frozen=True, eq=False)
class Case:
    """A case of the catalogue, as this chip takes it."""

    op: str
    entry: JsonObject
    dtype: str = ""
    """The element type of the first input; "": the op's first, or else the case's first."""

    def __post_init__(self) -> None:
        """Fit it to the chip."""
        object.__setattr__(self, "entry", chip.fitted(self.op, self.entry))
        if not self.dtype and "dtypes" in self.entry and not names_dtypes(self.entry):
            first, *_ = dtypes_of(self.op, self.entry) or ("",)
            if first != _default_dtype(self.op):
                object.__setattr__(self, "dtype", first)

    def __str__(self) -> str:
        """Return its name in tests."""
        return "-".join([self.op, self.entry["name"].replace(" ", "_"), self.dtype]).strip("-")

    @classmethod
    def variants(cls, op: str, entry: JsonObject) -> list[Case]:
        """Return a case in every element type of its first input, unless it names types itself."""
        if names_dtypes(entry):
            return [cls(op, entry)]
        dtypes = dtypes_of(op, entry)
        return [cls(op, entry, "" if dtype == _default_dtype(op) else dtype) for dtype in dtypes]

    @classmethod
    def all(cls, op: str) -> list[Case]:
        """Return the cases of an op, in every element type."""
        return [case for entry in OPS[op]["cases"] for case in cls.variants(op, entry)]

    @property
    def symbol(self) -> str:
        """The name of its function."""
        return symbol_of(str(self))

    @property
    def has_constants(self) -> bool:
        """Whether inputs other than the first can be constants."""
        later = [spec for _, specs in self.specs() for spec in specs][1:]
        return any("n" not in spec.shape for spec in later)

    def specs(self) -> Iterator[tuple[Input, list[Spec]]]:
        """Generate the inputs with their descriptions."""
        dtypes = {entry_of(self.op).inputs[0].name: self.dtype} if self.dtype else {}
        for operand in entry_of(self.op).inputs:
            given = self.entry["inputs"][operand.name]
            first = (operand.dtypes or ("float32",))[0]
            dtypes.setdefault(operand.name, dtypes[operand.like] if operand.like else first)
            specs = [
                Spec.read(entry, dtypes[operand.name])
                for entry in (given if operand.is_tuple else [given])
            ]
            if operand.constant:
                specs = [replace(spec, constant=True) for spec in specs]
            yield operand, specs

    def model(self, constants: bool = False, exact: bool = True) -> Model:
        """Return the case as a model.

        `constants`: whether all inputs but the first are constants, where their shapes are known.
        """
        model = Model(self.symbol)
        inputs: list[Tensor | list[Tensor]] = []
        for operand, specs in self.specs():
            tensors: list[Tensor] = []
            for spec in specs:
                seed = f"{self} {operand.name} {len(tensors)}"
                later = bool(inputs or tensors)
                constant = spec.constant or (constants and later and "n" not in spec.shape)
                make = model.constant if constant else model.argument
                tensors.append(make(spec, seed))
            inputs.append(tensors if operand.is_tuple else tensors[0])
        attributes = self.entry.get("attributes", {})
        if exact:
            result = model.call(self.op, *inputs, **attributes)
            results = result if isinstance(result, tuple) else (result,)
            model.outputs = list(results[: OPS[self.op]["results"]])
        else:
            var = model.bind(model.normalize(self.op, inputs, attributes))
            is_tuple = isinstance(var.ty, relax.TupleType)
            results = OPS[self.op]["results"]
            count = min(len(var.ty.fields), results or len(var.ty.fields)) if is_tuple else 1
            model.outputs = [
                Tensor(model.bind(relax.TupleGetItem(var, index)) if is_tuple else var, {})
                for index in range(count)
            ]
        return model
