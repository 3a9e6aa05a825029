# SPDX-License-Identifier: Apache-2.0
"""A module of TOSA's MLIR dialect that grows operator by operator."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from .region import FORMATS, REALS, Writer

MLIR = {
    "float32": "f32",
    "float16": "f16",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i32",
    "bool": "i1",
}
"""Of element types: what they are in MLIR."""
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
"""The least and the largest number of the types that products read."""
PROPAGATE = "nan_mode = #tosa.nan_mode<PROPAGATE>"


class Tensor(NamedTuple):
    """A value of the module; its type is that of the region."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def type(self) -> str:
        """Its type in MLIR."""
        sizes = "".join(f"{size}x" for size in self.shape)
        return f"tensor<{sizes}{MLIR[self.dtype]}>"


class Sizes(NamedTuple):
    """A shape, as an operand."""

    name: str
    rank: int

    @property
    def type(self) -> str:
        """Its type in MLIR."""
        return f"!tosa.shape<{self.rank}>"


class Graph(Writer):
    """Operators in their generic form, one in a line."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._kept: dict[tuple[str, str], Tensor] = {}

    def _module(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
        arguments = ", ".join(f"{tensor.name}: {tensor.type}" for tensor in inputs)
        types = ", ".join(tensor.type for tensor in outputs)
        names = ", ".join(tensor.name for tensor in outputs)
        lines = "".join(f"  {line}\n" for line in self._lines)
        return (
            f"func.func @main({arguments}) -> ({types}) {{\n{lines}  return {names} : {types}\n}}\n"
        )

    def _add(
        self,
        op: str,
        operands: Sequence[Tensor | Sizes],
        dtype: str,
        shape: Sequence[int],
        attributes: str = "",
    ) -> Tensor:
        result = Tensor(f"%{len(self._lines)}", dtype, tuple(shape))
        names = ", ".join(operand.name for operand in operands)
        types = ", ".join(operand.type for operand in operands)
        properties = f" <{{{attributes}}}>" if attributes else ""
        self._lines.append(
            f'{result.name} = "tosa.{op}"({names}){properties} : ({types}) -> {result.type}'
        )
        return result

    def _keep(self, dtype: str, shape: Sequence[int], data: bytes) -> Tensor:
        """Add a constant, once."""
        tensor = Tensor(f"%{len(self._lines)}", dtype, tuple(shape))
        # A node alone has zeros in place of its weights: one number stands for all of them.
        zero = "0.0" if dtype in REALS else "false" if dtype == "bool" else "0"
        digits = f'"0x{data.hex()}"' if any(data) else zero
        kept = self._kept.setdefault((tensor.type, digits), tensor)
        if kept is not tensor:
            return kept._replace(dtype=dtype)
        if dtype == "int64":
            self._decline("TOSA has no constants of int64")
        self._lines.append(
            f'{tensor.name} = "tosa.const"() <{{values = dense<{digits}> : {tensor.type}}}> '
            f": () -> {tensor.type}"
        )
        return tensor

    def _numbers(self, dtype: str, numbers: Sequence[float]) -> Tensor:
        data = struct.pack(f"<{len(numbers)}{FORMATS[dtype]}", *numbers)
        return self._keep(dtype, (len(numbers),), data)

    def _number(self, dtype: str, number: float) -> Tensor:
        return self._numbers(dtype, [number if "float" in dtype else int(number)])

    def _sizes(self, sizes: Sequence[int]) -> Sizes:
        result = Sizes(f"%{len(self._lines)}", len(sizes))
        numbers = list(sizes) if sizes else ""
        self._lines.append(
            f'{result.name} = "tosa.const_shape"() <{{values = dense<{numbers}> : '
            f"tensor<{len(sizes)}xindex>}}> : () -> {result.type}"
        )
        return result

    def _reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        if tensor.shape == tuple(shape):
            return tensor
        return self._add("reshape", [tensor, self._sizes(shape)], tensor.dtype, shape)

    def _ranked(self, tensor: Tensor, rank: int) -> Tensor:
        """Add leading dimensions of size 1: operands of TOSA have the rank of the result."""
        return self._reshape(tensor, (*[1] * (rank - len(tensor.shape)), *tensor.shape))

    def _slice(self, tensor: Tensor, begin: Sequence[int], sizes: Sequence[int]) -> Tensor:
        operands: list[Tensor | Sizes] = [tensor, self._sizes(begin), self._sizes(sizes)]
        return self._add("slice", operands, tensor.dtype, sizes)

    def _clamp(self, tensor: Tensor, least: float, most: float) -> Tensor:
        """Limit real numbers, int8 or int16."""
        kind = MLIR[tensor.dtype]
        if tensor.dtype.startswith("float"):
            largest = 65504.0 if tensor.dtype == "float16" else 3.4028234663852886e38
            limits = [repr(float(max(min(limit, largest), -largest))) for limit in (least, most)]
        else:
            limits = [str(int(least)), str(int(most))]
        attributes = f"min_val = {limits[0]} : {kind}, max_val = {limits[1]} : {kind}, {PROPAGATE}"
        return self._add("clamp", [tensor], tensor.dtype, tensor.shape, attributes)

    def _rescale(
        self,
        tensor: Tensor,
        dtype: str,
        zero_points: tuple[int, int] = (0, 0),
        multipliers: Sequence[int] = (1 << 30,),
        shifts: Sequence[int] = (30,),
        rounding: str = "SINGLE_ROUND",
    ) -> Tensor:
        """Add RESCALE: by 1 unless said, by one factor or one for each index of the last axis."""
        flags = {
            "scale32": True,
            "per_channel": len(multipliers) > 1,
            "input_unsigned": tensor.dtype == "uint8",
            "output_unsigned": dtype == "uint8",
        }
        attributes = f"rounding_mode = #tosa.rounding_mode<{rounding}>" + "".join(
            f", {name} = {str(flag).lower()}" for name, flag in flags.items()
        )
        operands: list[Tensor | Sizes] = [
            tensor,
            self._numbers("int32", multipliers),
            self._numbers("int8", shifts),
            self._number(tensor.dtype, zero_points[0]),
            self._number(dtype, zero_points[1]),
        ]
        return self._add("rescale", operands, dtype, tensor.shape, attributes)


def transposed(data: bytes, size: int, rows: int, columns: int) -> bytes:
    """Return the bytes of a transposed matrix, whose elements have this size."""
    if size == 1:
        return b"".join(data[column::columns] for column in range(columns))
    items = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"".join(items[column::columns]) for column in range(columns))


def integers(sizes: Sequence[int]) -> str:
    """Write a list of integers as an attribute."""
    return f"array<i64: {', '.join(map(str, sizes))}>"
