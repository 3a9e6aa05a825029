# SPDX-License-Identifier: Apache-2.0
"""Prints which share of the machine's peak kernels reach, by the emulator's cycles.

`python -m <package>.engine.workbench.isa_emulator.shares`; with `--trials 64`, as tuned, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...backend.isa.compiler.compile import Settings, bytes_of, compile_plan
from ...backend.isa.compiler.kernels import Plan, plan_of
from ...backend.isa.tuning import Sizes
from ...backend.sdk.npu_region.region import Region
from ...backend.shared.terminal import say
from .emulator import Emulator, own
from .tuner import Alone, Tuner, distinct_kernels

Array = NDArray[Any]
WINDOW = {
    **{"strides": [1, 1], "dilations": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1]},
    **{"data_zero_point": 0, "weight_zero_point": 0},
}
ORDER = {"transpose_a": False, "transpose_b": False, "a_zero_point": 0, "b_zero_point": 0}


class _Writer:
    """Writes a region whose only input is that of its first node."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.values: list[dict[str, object]] = []
        self.nodes: list[dict[str, object]] = []
        self.inputs: list[dict[str, object]] = []
        self.elements = b""

    def value(self, source: str, dtype: str, shape: Sequence[int], **more: object) -> str:
        """Add a value."""
        name = f"v{len(self.values)}"
        known = {"name": name, "dtype": dtype, "shape": list(shape), "source": source}
        self.values.append({**known, "quantization": None, **more})
        return name

    def input(self, dtype: str, shape: Sequence[int]) -> str:
        """Add an input."""
        self.inputs.append({"dtype": dtype, "shape": list(shape)})
        return self.value("input", dtype, shape, input=len(self.inputs) - 1)

    def constant(self, dtype: str, shape: Sequence[int], low: int = -9, high: int = 9) -> str:
        """Add a constant of random elements."""
        array = self.random.integers(low, high + 1, shape).astype(dtype)
        self.elements += bytes(-len(self.elements) % 64)
        name = self.value("constant", dtype, shape, offset=len(self.elements))
        self.elements += array.tobytes()
        return name

    def node(
        self, op: str, inputs: Sequence[str], dtype: str, shape: Sequence[int], **more: object
    ) -> str:
        """Add a node."""
        name = self.value("node", dtype, shape)
        attributes = more or {"numbers": [0, 0, 0, 0]}
        node = {"op": op, "inputs": list(inputs), "output": name, "label": op}
        self.nodes.append({**node, "least": None, "most": None, "attributes": attributes})
        return name

    def plan(self, value: str) -> Plan:
        """Return the kernels of a region with this result."""
        (known,) = (it for it in self.values if it["name"] == value)
        out = {"dtype": known["dtype"], "shape": known["shape"], "value": value}
        head = {"format": "npu-region", "version": 1, "channels_last": True}
        body = {"values": self.values, "nodes": self.nodes, "inputs": self.inputs}
        return plan_of(Region({**head, **body, "outputs": [out]}, self.elements))


def _product(
    op: str, dtype: str, shape: Sequence[int], weights: Sequence[int], **more: object
) -> Plan:
    """Return a product with a bias and a ReLU, or one of integers with a bias and a rescaling."""
    writer = _Writer()
    total = "float32" if dtype == "float32" else "int32"
    channels = shape[-1]
    operands = [writer.input(dtype, shape), writer.constant(dtype, weights)]
    operands.append(writer.constant(total, (channels,)))
    value = writer.node(op, operands, total, shape, **more)
    if dtype == "float32":
        return writer.plan(writer.node("relu", [value], total, shape))
    scale = writer.constant("int32", (channels,), 1 << 30, (1 << 31) - 1)
    shift = writer.constant("int32", (channels,), 36, 39)
    value = writer.node("rescale", [value, scale, shift], "int64", shape)
    for step, end, kind in (("maximum", -128, "int64"), ("minimum", 127, dtype)):
        value = writer.node(step, [value, writer.constant("int64", (1,), end, end)], kind, shape)
    return writer.plan(value)


def _elementwise(dtype: str, *ops: str) -> Callable[[], Plan]:
    """Return ops, of which an addition has two operands; integers stand for real numbers."""

    def plan() -> Plan:
        writer = _Writer()
        shape = (1, 56, 56, 64)
        scales = [{"scale": scale, "zero_point": 3, "axis": None} for scale in (0.03, 0.05, 0.06)]
        operands = [writer.input(dtype, shape) for _ in range(1 + (ops[0] == "add"))]
        if dtype != "float32":
            operands = [
                writer.node("dequantize", [operand], "float32", shape, **known)
                for operand, known in zip(operands, scales, strict=False)
            ]
        for op in ops:
            operands = [writer.node(op, operands, "float32", shape)]
        if dtype != "float32":
            operands = [writer.node("quantize", operands, dtype, shape, **scales[2])]
        return writer.plan(operands[0])

    return plan


def _matmul(dtype: str) -> Callable[[], Plan]:
    return lambda: _product("matmul", dtype, (512, 512), (512, 512), **ORDER)


def _convolution(dtype: str, groups: int = 1) -> Callable[[], Plan]:
    weights = (64, 3, 3, 64 // groups)
    return lambda: _product("convolution", dtype, (1, 56, 56, 64), weights, **WINDOW, groups=groups)


KERNELS: dict[str, Callable[[], Plan]] = {
    "matmul 512³, float32": _matmul("float32"),
    "matmul 512³, int8": _matmul("int8"),
    "conv2d 3x3, 64 to 64, 56x56, float32": _convolution("float32"),
    "conv2d 3x3, 64 to 64, 56x56, int8": _convolution("int8"),
    "depthwise conv2d 3x3, 64, 56x56, float32": _convolution("float32", 64),
    "depthwise conv2d 3x3, 64, 56x56, int8": _convolution("int8", 64),
    "add and relu, 64x56x56, float32": _elementwise("float32", "add", "relu"),
    "add and relu, 64x56x56, int8": _elementwise("int8", "add", "relu"),
    "sigmoid, 64x56x56, int8": _elementwise("int8", "sigmoid"),
}
"""Products have a bias and a ReLU, or a bias and a rescaling."""


@dataclass(frozen=True)
class Share:
    """How near a kernel is to what the machine could do at best.

    Parameters
    ----------
    cycles
        How many it takes.
    of_peak
        Its products in these cycles, as a part of what the matrix engine has in them.
    of_moves
        The cycles, as a multiple of those in which its tensors are moved once.
    """

    cycles: int
    of_peak: float
    of_moves: float


def share_of(emulator: Emulator, alone: Alone, settings: Settings) -> Share:
    """Run a kernel."""
    compiled = compile_plan(alone.plan, emulator.machine, settings)
    result = emulator.run(compiled.program, [array.tobytes() for array in alone.inputs])
    engines = {engine.name: engine for engine in emulator.machine.engines}
    matrix = emulator.machine.instructions["mm"].engine
    kind = "f32" if alone.plan.tensors[0].dtype == "float32" else "i8"
    peak = engines[matrix].peak[kind]
    sides: dict[bool, int] = {True: 0, False: 0}
    for tensor in alone.plan.tensors:
        sides[tensor.source == "output"] += bytes_of(tensor)
    moves = [
        sides[is_output] / engines[emulator.machine.instructions[name].engine].peak[""]
        for name, is_output in (("ld", False), ("st", True))
    ]
    work = result.engines[matrix].work
    return Share(result.cycles, work / peak / result.cycles, result.cycles / max(moves))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=0, help="tune with so many trials, too")
    arguments = parser.parse_args()
    emulator = own()
    say("| kernel | cycles | of the matrix engine's peak | times the moves | sizes |")
    say("|---|---|---|---|---|")
    for name, make in KERNELS.items():
        (alone,) = distinct_kernels([make()])
        _say(name, share_of(emulator, alone, Settings()))
        if arguments.trials:
            sizes = Tuner(emulator, Settings()).tune(alone, arguments.trials)[1].sizes
            _say("tuned", share_of(emulator, alone, Settings(sizes={alone.key: sizes})), sizes)


def _say(name: str, share: Share, sizes: Sizes | None = None) -> None:
    text = ", ".join(f"{size}={number}" for size, number in (sizes or {}).items())
    say(f"| {name} | {share.cycles:,} | {share.of_peak:.0%} | {share.of_moves:.2f} | {text} |")


if __name__ == "__main__":
    main()
