# SPDX-License-Identifier: Apache-2.0
"""An ONNX graph that grows node by node."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from . import protobuf
from .region import FORMATS, Writer

OPSET = 17


class Graph(Writer):
    """Nodes, named by the region's labels, and constants; tensors are known by their names."""

    def __init__(self) -> None:
        self._nodes: list[tuple[str, str, list[str], list[str], list[bytes]]] = []
        self._constants: list[bytes] = []
        self._labels: dict[str, int] = {}
        self._count = 0

    def _model(
        self, inputs: Sequence[bytes], outputs: Sequence[bytes], renamed: Mapping[str, str]
    ) -> bytes:
        nodes = []
        for op, label, *ends, items in self._nodes:
            reads, writes = ([renamed.get(name, name) for name in names] for names in ends)
            nodes.append(protobuf.node(op, label, reads, writes, items))
        return protobuf.model("npu_region", OPSET, nodes, self._constants, inputs, outputs)

    def _keep(self, name: str, dtype: str, shape: Sequence[int], data: bytes) -> None:
        self._constants.append(protobuf.tensor(name, dtype, shape, data))

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _add(
        self,
        op: str,
        inputs: Sequence[str],
        results: Sequence[str] = (),
        /,
        **attributes: protobuf.Attribute,
    ) -> str:
        outputs = [*results] or [self._name()]
        label = self._label or op
        seen = self._labels[label] = self._labels.get(label, 0) + 1
        items = [protobuf.attribute(key, value) for key, value in attributes.items()]
        name = label if seen == 1 else f"{label}_{seen}"
        self._nodes.append((op, name, [*inputs], outputs, items))
        return outputs[-1]

    def _constant(self, dtype: str, numbers: Sequence[float], shape: Sequence[int]) -> str:
        name = self._name()
        kind = FORMATS[dtype]
        items = numbers if kind in "fe" else [int(number) for number in numbers]
        data = struct.pack(f"<{len(items)}{kind}", *items)
        self._keep(name, dtype, shape, data)
        return name

    def _number(self, dtype: str, number: float) -> str:
        return self._constant(dtype, [number], ())

    def _integers(self, numbers: Sequence[int]) -> str:
        return self._constant("int64", numbers, (len(numbers),))

    def _reshape(self, name: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [name, self._integers(shape)])

    def _transpose(self, name: str, order: Sequence[int]) -> str:
        return name if list(order) == sorted(order) else self._add("Transpose", [name], perm=order)

    def _cast(self, name: str, dtype: str) -> str:
        return self._add("Cast", [name], to=protobuf.ELEMENT_TYPES[dtype])
