# SPDX-License-Identifier: Apache-2.0
"""Just enough of ONNX's messages to write a model, without a package for it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
}

Attribute = int | float | str | Sequence[int]


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field of a message: a number, a text, or the bytes of another message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def tensor(name: str, dtype: str, shape: Sequence[int], data: bytes) -> bytes:
    """Return a TensorProto."""
    dims = b"".join(field(1, size) for size in shape)
    return dims + field(2, ELEMENT_TYPES[dtype]) + field(8, name) + field(9, data)


def value_info(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """Return a ValueInfoProto."""
    dims = b"".join(field(1, field(1, size)) for size in shape)
    tensor_type = field(1, ELEMENT_TYPES[dtype]) + field(2, dims)
    return field(1, name) + field(2, field(1, tensor_type))


def attribute(name: str, value: Attribute) -> bytes:
    """Return an AttributeProto."""
    head = field(1, name)
    if isinstance(value, int):
        return head + field(3, value) + field(20, 2)
    if isinstance(value, float):
        return head + field(2, value) + field(20, 1)
    if isinstance(value, str):
        return head + field(4, value) + field(20, 3)
    return head + b"".join(field(8, item) for item in value) + field(20, 7)


def node(
    op: str, name: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Sequence[bytes]
) -> bytes:
    """Return a NodeProto."""
    return (
        b"".join(field(1, item) for item in inputs)
        + b"".join(field(2, item) for item in outputs)
        + field(3, name)
        + field(4, op)
        + b"".join(field(5, item) for item in attributes)
    )


def model(
    producer: str,
    opset: int,
    nodes: Sequence[bytes],
    constants: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
) -> bytes:
    """Return a ModelProto."""
    graph = b"".join(field(1, item) for item in nodes) + field(2, "region")
    for number, items in ((5, constants), (11, inputs), (12, outputs)):
        graph += b"".join(field(number, item) for item in items)
    ir_version = 8
    domain = field(1, "") + field(2, opset)
    return field(1, ir_version) + field(2, producer) + field(7, graph) + field(8, domain)
