# SPDX-License-Identifier: Apache-2.0
"""A region, as `region.json` and `constants.bin` describe it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

VERSION = 1
"""The newest version of the format that this module understands."""

FORMATS = {
    "float32": "f",
    "float16": "e",
    "int8": "b",
    "uint8": "B",
    "int32": "i",
    "int64": "q",
    "bool": "?",
    "int16": "h",
}
"""Of element types: what `struct` and `array` call them."""
SIZES = {dtype: struct.calcsize(f"<{code}") for dtype, code in FORMATS.items()}
"""How many bytes an element has."""
REALS = ("float32", "float16")


class Declined(Exception):
    """The SDK does not take the region, or a node of it; the message says why."""


def _decline(label: str, why: str) -> NoReturn:
    raise Declined(f"{label}: {why}" if label else why)


@dataclass(frozen=True)
class Quantization:
    """What integers stand for: (integer - zero_point) * scale.

    `scale` and `zero_point` are numbers or, where they differ by index of dimension `axis`, tuples
    of numbers, or names of constants: `Region.scales_of` reads all of them.
    """

    scale: float | str | tuple[float, ...]
    zero_point: float | str | tuple[float, ...]
    axis: int | None


@dataclass(frozen=True)
class Value:
    """A tensor; its elements are dense and row-major.

    `source` is "input", "constant" or "node"; `input` is the number of the region's input.
    `growing` is the dimension that a call may have less of, if there is one: `Region.bound`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str
    input: int | None = None
    offset: int | None = None
    quantization: Quantization | None = None
    growing: int | None = None

    @property
    def index(self) -> int:
        """Its number, by which the run half has it in `program.values`."""
        return int(self.name[1:])

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Port:
    """An input or output of the region as its caller has it.

    The shape may be another one than that of the value that is read or written, with as many
    elements.
    """

    dtype: str
    shape: tuple[int, ...]
    value: str | None = None


@dataclass(frozen=True)
class Node:
    """An operation. `inputs` are names of values, None where there is none.

    Results are limited to `least` and `most`, which may be infinite. `label` says which op of the
    model it is: a sentence about the node that contains it lets only this op run elsewhere.
    """

    op: str
    inputs: tuple[str | None, ...]
    output: str
    label: str = ""
    least: float = -math.inf
    most: float = math.inf
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def decline(self, why: str) -> NoReturn:
        """Say why the SDK does not take the node.

        Raises
        ------
        Declined
            Always.
        """
        _decline(self.label, why)


class Writer:
    """Writes a region node by node, and declines by the label of the node that it is at."""

    _label = ""

    def _enter(self, node: Node | None) -> None:
        self._label = "" if node is None else node.label

    def _decline(self, why: str) -> NoReturn:
        _decline(self._label, why)


class Region:
    """A part of a model that the SDK compiles as one.

    Parameters
    ----------
    data
        What `region.json` has.
    constants
        The elements of constants, if they are known.
    options
        The values of the driver's options.
    folder
        Where the region was read from.

    Raises
    ------
    ValueError
        It is no region, or one of a newer version.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        constants: bytes | None = None,
        options: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        if data.get("format") != "npu-region":
            raise ValueError("This is no region: its format is not 'npu-region'.")
        if data["version"] > VERSION:
            raise ValueError(
                f"The region has version {data['version']} of the format; this module reads up to "
                f"{VERSION}. Take the npu_region of the backend that wrote it."
            )
        self.id: str = data.get("id", "")
        self.channels_last: bool = data["channels_last"]
        self.values = {item["name"]: _value(item) for item in data["values"]}
        self.nodes = [_node(item) for item in data["nodes"]]
        self.inputs = [_port(item) for item in data.get("inputs", ())]
        self.outputs = [_port(item) for item in data.get("outputs", ())]
        self.options: Mapping[str, str] = options or data.get("options", {})
        self.samples: int = data.get("calibration", 0)
        self.bound: int | None = data.get("bound")
        self.warnings: list[str] = []
        self.folder = folder
        self._constants = constants
        self._has_zeros = False

    @classmethod
    def read(cls, folder: str | Path) -> Region:
        """Read a region from its folder.

        Parameters
        ----------
        folder
            It has `region.json`, `constants.bin` and `options.json`.

        Returns
        -------
        region
            The region.

        Raises
        ------
        ValueError
            It is no region, or one of a newer version.
        """
        folder = Path(folder)
        data = json.loads((folder / "region.json").read_text("utf-8"))
        options = json.loads((folder / "options.json").read_text("utf-8"))
        return cls(data, (folder / "constants.bin").read_bytes(), options, folder)

    @property
    def calibration(self) -> list[list[Any]]:
        """What enters the region for its user's data: of each sample, the arrays of the inputs.

        Empty if the user gave none. Arrays are read where they are needed, so NumPy is.
        """
        if not self.samples or self.folder is None:
            return []
        import numpy

        places = [self.folder / f"calibration/input{i}.npy" for i in range(len(self.inputs))]
        arrays = [numpy.load(place, mmap_mode="r") for place in places]
        return [[array[number] for array in arrays] for number in range(self.samples)]

    def value(self, name: str | None) -> Value:
        """Return a value by its name, such as those in `inputs` of a node."""
        if name is None:
            raise KeyError("The node has no such input.")
        return self.values[name]

    def input_of(self, node: Node, index: int) -> Value | None:
        """Return an input of a node, or nothing where it has none."""
        name = node.inputs[index] if index < len(node.inputs) else None
        return None if name is None else self.values[name]

    @property
    def has_elements(self) -> bool:
        """Whether constants have elements; where only a node is asked about, they have none."""
        return self._constants is not None

    def bytes_of(self, value: Value) -> bytes:
        """Return the elements of a constant, as they are in memory."""
        if self._has_zeros:
            return bytes(value.count * SIZES[value.dtype])
        if self._constants is None or value.offset is None:
            raise ValueError(f"{value.name} has no elements here: only compile_region sees them.")
        return self._constants[value.offset : value.offset + value.count * SIZES[value.dtype]]

    def array(self, value: Value) -> Any:
        """Return the elements of a constant as a NumPy array, which cannot be written."""
        import numpy

        return numpy.frombuffer(self.bytes_of(value), value.dtype).reshape(value.shape)

    def scales_of(self, quantization: Quantization) -> tuple[list[float], list[int]]:
        """Return scales and zero points: one of each, or one for each index of the axis.

        Where constants have no elements, their scales are 1, and their zero points 0.
        """
        given = (quantization.scale, quantization.zero_point)
        scales, zeros = (
            self._numbers_of(item, default) for item, default in zip(given, (1, 0), strict=True)
        )
        size = max(len(scales), len(zeros))
        return scales * (size // len(scales)), [int(zero) for zero in zeros * (size // len(zeros))]

    def _numbers_of(self, given: float | str | tuple[float, ...], default: float) -> list[float]:
        if isinstance(given, tuple):
            return [*given]
        if not isinstance(given, str) or given not in self.values:
            return [float(given)]
        value = self.values[given]
        if not self.has_elements:
            return [default] * value.count
        return [*struct.unpack(f"<{value.count}{FORMATS[value.dtype]}", self.bytes_of(value))]

    def part(self, label: str) -> Region:
        """Return the nodes of one op of the model, to find out which op an SDK does not take.

        Parameters
        ----------
        label
            The label of the op's nodes.

        Returns
        -------
        part
            A region whose inputs and outputs are what the op reads and what others read of it.
        """
        nodes = [node for node in self.nodes if node.label == label]
        written = {node.output: self.values[node.output] for node in nodes}
        others = {name for node in self.nodes if node.label != label for name in node.inputs}
        others |= {port.value for port in self.outputs}
        part = copy(self)
        part.nodes, part.folder, part.inputs = nodes, None, []
        part.values = {**self.values}
        for name in dict.fromkeys(name for node in nodes for name in node.inputs):
            value = None if name is None or name in written else self.values[name]
            if value is not None and value.source != "constant":
                port = len(part.inputs)
                part.values[value.name] = replace(value, source="input", input=port)
                part.inputs.append(Port(value.dtype, value.shape))
        part.outputs = [
            Port(value.dtype, value.shape, name)
            for name, value in written.items()
            if name in others
        ]
        return part

    def with_zeros(self) -> Region:
        """Return what `reason` is asked about as a region with constants of zeros.

        Its operands are inputs, and the result of its last node is an output.
        """
        last = self.nodes[-1]
        part = self.part(last.label)
        if last.output not in {port.value for port in part.outputs}:
            value = self.values[last.output]
            part.outputs.append(Port(value.dtype, value.shape, value.name))
        part._has_zeros = True
        return part

    def at(self, node: Node | None) -> None:
        """Note which node the tool works on, or none: a crash or a hang is then blamed on it."""
        if self.folder is not None:
            (self.folder / "node.txt").write_text(node.label if node else "", "utf-8")

    def warn(self, what: str, node: Node | None = None) -> None:
        """Tell users what they should know of the program: the report shows it.

        Parameters
        ----------
        what
            A sentence, such as a warning of the SDK.
        node
            The node that it is about, if it is about one.
        """
        label = "" if node is None else node.label
        self.warnings.append(f"{label}: {what}" if label else what)

    def note(self, what: str) -> None:
        """Tell users something that is no warning, such as how long the program takes.

        Parameters
        ----------
        what
            A sentence.
        """
        self.warnings.append(f"note: {what}")


def _scale(given: float | str | list[float]) -> float | str | tuple[float, ...]:
    return tuple(given) if isinstance(given, list) else given


def _number(given: float | str) -> float:
    """Read a number; those that are not finite are texts."""
    return float(given)


def _value(item: Mapping[str, Any]) -> Value:
    scales = item["quantization"]
    return Value(
        item["name"],
        item["dtype"],
        tuple(item["shape"]),
        item["source"],
        item.get("input"),
        item.get("offset"),
        None
        if scales is None
        else Quantization(_scale(scales["scale"]), _scale(scales["zero_point"]), scales["axis"]),
        item.get("growing"),
    )


def _port(item: Mapping[str, Any]) -> Port:
    return Port(item["dtype"], tuple(item["shape"]), item.get("value"))


def _node(item: Mapping[str, Any]) -> Node:
    attributes = dict(item["attributes"])
    if "numbers" in attributes:
        attributes["numbers"] = tuple(map(_number, attributes["numbers"]))
    return Node(
        item["op"],
        tuple(item["inputs"]),
        item["output"],
        item["label"],
        -math.inf if item["least"] is None else _number(item["least"]),
        math.inf if item["most"] is None else _number(item["most"]),
        attributes,
    )
