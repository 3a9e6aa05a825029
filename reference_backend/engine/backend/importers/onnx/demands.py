# SPDX-License-Identifier: Apache-2.0
"""What operators of ONNX ask of the sizes of their inputs, which matters where these are open.

A kernel for open sizes trusts them: of a size that does not suit it computes nonsense, or reads
beyond an end. So each demand becomes a part of the types, which each call checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import tvm

from ...shared.aliases import Attributes
from .shape_elements import Element, is_open, largest, proves, simple

Sizes: TypeAlias = "Sequence[Sequence[Element] | None]"
"""The sizes of the inputs of a node; None for an absent one, or one of an unknown rank."""


class Demand(NamedTuple):
    """A size that an input must have.

    `place`: the number of the input.
    `axis`: its axis; None for the number of all its elements.
    `size`: the size.
    `is_bound`: whether the size is only a bound of itself, which later types need not show.
    """

    place: int
    axis: int | None
    size: Element
    is_bound: bool = False


class Asked(NamedTuple):
    """What is known about a node whose inputs have open sizes.

    `sizes`: the sizes of its inputs.
    `attributes`: its attributes.
    `elements`: returns the elements of an input by its number, if it is there and they are known:
    numbers and expressions.
    `opset`: the version of ONNX's operators.
    """

    sizes: Sizes
    attributes: Attributes
    elements: Callable[[int], Sequence[Element] | None]
    opset: int

    def of(self, place: int) -> Sequence[Element]:
        """Return the sizes of an input; none if it is absent or its rank is not known."""
        return (self.sizes[place] if place < len(self.sizes) else None) or ()

    def at(self, place: int, axis: int) -> Element | None:
        """Return a size of an input, if it has that axis."""
        sizes = self.of(place)
        return sizes[axis] if -len(sizes) <= axis < len(sizes) else None

    def listed(self, name: str) -> Sequence[Element] | None:
        """Return an attribute that later versions have as the second input, if it is known."""
        return self.attributes.get(name) or self.elements(1)


_Rule: TypeAlias = Callable[[Asked], Iterator[Demand]]


def demands(op: str, asked: Asked) -> Iterator[Demand]:
    """Generate what an operator asks of the sizes of its inputs."""
    rule = _RULES.get(op)
    for demand in rule(asked) if rule else ():
        place, axis, size, _ = demand
        given = asked.at(place, axis) if axis is not None else math.prod(asked.of(place))
        is_fixed = not (is_open(given) or is_open(size))
        if given is not None and not is_fixed and not proves(given - size == 0):
            yield demand


def reduced(op: str, asked: Asked) -> Sequence[int]:
    """Return the axes of its first input of which an operator makes one element.

    Empty if it reduces nothing, or along axes that are not known.
    """
    rank = len(asked.of(0))
    if op.startswith("Reduce"):
        several = len(asked.sizes) > 1 and asked.sizes[1] is not None
        axes = asked.attributes.get("axes") or (asked.elements(1) if several else ())
        is_all = axes is not None and not asked.attributes.get("noop_with_empty_axes")
        axes = axes or (range(rank) if is_all else ())
    elif op.startswith("Arg"):
        axes = (asked.attributes.get("axis", 0),)
    elif op.startswith("Global"):
        axes = range(2, rank)
    elif op == "Gemm":
        axes = (0 if asked.attributes.get("transA") else 1,)
    else:
        axes = (-1,) if op.startswith("MatMul") else ()
    return [int(axis) for axis in axes if -rank <= axis < rank]


# ---- Kinds of demands ---------------------------------------------------------------------------


def _equal(
    asked: Asked, places: Sequence[tuple[int, int]], broadcasts: bool = False
) -> Iterator[Demand]:
    """Demand that sizes are equal: open ones must be the number among them, if there is one."""
    compared: list[tuple[int, int, Element]] = []
    for place, axis in places:
        size = asked.at(place, axis)
        if size is not None and broadcasts and proves(size <= 1):
            # For example, the size of a part with the first element alone.
            yield Demand(place, axis, 1)
        elif size is not None:
            compared.append((place, axis, size))
    sizes = [size for _, _, size in compared]
    numbers = [size for size in sizes if not is_open(size)]
    symbols = [size for size in sizes if isinstance(size, tvm.tirx.Var)]
    for place, axis, size in compared:
        if is_open(size):
            yield Demand(place, axis, [*numbers, *symbols, *sizes][0])


def _alike(asked: Asked, place: int, other: int, count: int) -> Iterator[Demand]:
    """Demand that the first sizes of two inputs are equal."""
    for axis in range(count):
        yield from _equal(asked, [(place, axis), (other, axis)])


def _at_least(asked: Asked, place: int, axis: int, size: Element) -> Iterator[Demand]:
    given = asked.at(place, axis)
    if given is not None:
        yield Demand(place, axis, largest(given, size), True)


def _multiple(asked: Asked, place: int, axis: int, factor: int) -> Iterator[Demand]:
    given = asked.at(place, axis)
    if given is not None and factor > 0:
        yield Demand(place, axis, simple(given // factor * factor), True)


def _broadcast(asked: Asked, places: Sequence[int], end: int = 0) -> Iterator[Demand]:
    """Demand that tensors can be broadcast to each other, but for the last axes."""
    ranks = [len(asked.of(place)) for place in places]
    for axis in range(-max(ranks, default=0), -end):
        pairs = [(place, axis) for place in places]
        yield from _equal(asked, pairs, broadcasts=True)


def _reduction(op: str, asked: Asked) -> Iterator[Demand]:
    """Demand an element: without one, TVM's kernels do not write the result."""
    for axis in reduced(op, asked):
        yield from _at_least(asked, 0, axis, 1)


# ---- Operators ----------------------------------------------------------------------------------


def _fixed(
    equal: Sequence[Sequence[tuple[int, int]]], sizes: Sequence[tuple[int, int, int]], asked: Asked
) -> Iterator[Demand]:
    """Demand groups of sizes that are equal, and sizes that are numbers, whatever a node says."""
    for places in equal:
        yield from _equal(asked, places)
    for place, axis, size in sizes:
        yield Demand(place, axis, size)


def _blocks(axes: Sequence[int], power: int, asked: Asked) -> Iterator[Demand]:
    """Demand that sizes are multiples of a power of the size of blocks."""
    for axis in axes:
        yield from _multiple(asked, 0, axis, asked.attributes.get("blocksize", 1) ** power)


def _matmul(asked: Asked) -> Iterator[Demand]:
    yield from _equal(asked, [(0, -1), (1, -2 if len(asked.of(1)) > 1 else -1)])
    if len(asked.of(0)) > 2 and len(asked.of(1)) > 2:
        yield from _broadcast(asked, (0, 1), end=2)
    yield from _reduction("MatMul", asked)


def _gemm(asked: Asked) -> Iterator[Demand]:
    across, along = (asked.attributes.get(name, 0) for name in ("transA", "transB"))
    yield from _equal(asked, [(0, 0 if across else 1), (1, 1 if along else 0)])
    yield from _equal(asked, [(0, 1 if across else 0), (2, -2)], broadcasts=True)
    yield from _equal(asked, [(1, 0 if along else 1), (2, -1)], broadcasts=True)
    yield from _reduction("Gemm", asked)


def _convolution(asked: Asked) -> Iterator[Demand]:
    inside, groups = asked.at(1, 1), asked.attributes.get("group", 1)
    if inside is not None:
        yield Demand(0, 1, simple(inside * groups))
    yield from _equal(asked, [(1, 0), (2, 0)])
    yield from _window(asked)


def _window(asked: Asked) -> Iterator[Demand]:
    """Demand that a window fits into the padded input; ONNX Runtime rounds what is negative up."""
    kernel = asked.attributes.get("kernel_shape") or asked.of(1)[2:]
    padding = asked.attributes.get("auto_pad", b"NOTSET")
    if padding.startswith(b"SAME") or asked.attributes.get("ceil_mode"):
        return
    pads = asked.attributes.get("pads", ()) if padding == b"NOTSET" else ()
    dilations = asked.attributes.get("dilations") or [1] * len(kernel)
    for index, (size, dilation) in enumerate(zip(kernel, dilations, strict=False)):
        if is_open(size):
            continue
        covered = (size - 1) * dilation + 1 - sum(pads[index :: len(kernel)])
        if covered > 1:
            yield from _at_least(asked, 0, 2 + index, covered)


def _normalization(asked: Asked) -> Iterator[Demand]:
    yield from _equal(asked, [(0, 1), *((place, 0) for place in range(1, len(asked.sizes)))])


def _group_normalization(asked: Asked) -> Iterator[Demand]:
    groups = asked.attributes.get("num_groups", 1)
    if asked.opset >= 21:
        yield from _normalization(asked)
    yield from _multiple(asked, 0, 1, groups)


def _concat(asked: Asked) -> Iterator[Demand]:
    rank = len(asked.of(0))
    axis = asked.attributes.get("axis", 1)
    for other in range(rank):
        if other != axis % rank:
            yield from _equal(asked, [(place, other) for place in range(len(asked.sizes))])


def _split(asked: Asked) -> Iterator[Demand]:
    axis, count = asked.attributes.get("axis", 0), asked.attributes["tvm_custom"]["num_outputs"]
    parts = asked.listed("split")
    if parts:
        yield Demand(0, axis, simple(sum(parts)))
    elif "num_outputs" not in asked.attributes:
        yield from _multiple(asked, 0, axis, count)


def _top_k(asked: Asked) -> Iterator[Demand]:
    count = asked.attributes.get("k")
    counts = asked.elements(1) if count is None else [count]
    if counts and counts[0] is not None:
        yield from _at_least(asked, 0, asked.attributes.get("axis", -1), counts[0])


def _pad(asked: Asked) -> Iterator[Demand]:
    """Demand the elements that are copied into the border or cut off."""
    mode = asked.attributes.get("mode", b"constant")
    pads, axes = asked.listed("pads"), asked.elements(3)
    chosen = range(len(asked.of(0))) if axes is None else axes
    for place, axis in enumerate(chosen):
        if pads is None or len(pads) != 2 * len(chosen):
            return
        both = pads[place], pads[place + len(chosen)]
        if any(map(is_open, both)):
            continue
        most = max(both)
        copied = {b"edge": min(most, 1), b"reflect": most + (most > 0), b"wrap": most}
        yield from _at_least(asked, 0, axis, max(copied.get(mode, 0), -sum(both), 0))


def _reshape(asked: Asked) -> Iterator[Demand]:
    """Demand as many elements as there were."""
    given = asked.of(0)
    shape = asked.listed("shape")
    if shape is None or asked.sizes[0] is None:
        return
    keeps = not asked.attributes.get("allowzero")
    sizes = [
        given[axis] if keeps and not is_open(size) and size == 0 and axis < len(given) else size
        for axis, size in enumerate(shape)
    ]
    if any(size == -1 for size in sizes if not is_open(size)):
        common, rest, divisors = [], _factors(given), []
        for size in _factors([size for size in sizes if is_open(size) or size != -1]):
            equal = [index for index, factor in enumerate(rest) if proves(factor - size == 0)]
            divisors += [] if equal else [size]
            common += [rest.pop(equal[0])] if equal else []
        divisor = largest(math.prod(divisors), 1)
        whole = math.prod(rest) // divisor * divisor
        yield Demand(0, None, simple(whole * math.prod(common)))
    else:
        yield Demand(0, None, simple(math.prod(sizes)))


def _factors(sizes: Sequence[Element]) -> list[Element]:
    """Return sizes, and in place of a product its factors."""
    factors: list[Element] = []
    for size in sizes:
        if isinstance(size, tvm.tirx.Mul):
            factors += _factors([simple(size.a), simple(size.b)])
        else:
            factors.append(size)
    return factors


def _expand(asked: Asked) -> Iterator[Demand]:
    shape = asked.elements(1) or ()
    for axis, size in enumerate(asked.of(0)):
        if proves(size <= 1):
            yield Demand(0, axis, 1)
        back = axis - len(asked.of(0))
        target = shape[back] if -back <= len(shape) else 1
        if is_open(target) and not is_open(size) and size > 1:
            # The target is 1 or the size.
            yield Demand(0, axis, simple(size + (target - 1) * (target - size)), True)


def _squeeze(asked: Asked) -> Iterator[Demand]:
    for axis in asked.listed("axes") or ():
        if not is_open(axis):
            yield Demand(0, int(axis), 1)


def _indexed(asked: Asked, axis: int, indices: Sequence[Element]) -> Iterator[Demand]:
    """Demand the elements at constant or computed places, of which negative ones count back."""
    numbers = [index for index in indices if not is_open(index)]
    ends = [max(numbers), min(numbers)] if numbers else []
    for index in (*ends, *(index for index in indices if is_open(index))):
        yield from _at_least(asked, 0, axis, simple(index + 1))
        yield from _at_least(asked, 0, axis, simple(0 - index))


def _gather(asked: Asked) -> Iterator[Demand]:
    yield from _indexed(asked, asked.attributes.get("axis", 0), asked.elements(1) or ())


def _places(asked: Asked, first: int) -> Iterator[Demand]:
    """Demand the elements at constant places, of which each has one index by axis."""
    depth, indices = asked.at(1, -1), asked.elements(1)
    if indices and depth is not None and not is_open(depth):
        for axis in range(int(depth)):
            yield from _indexed(asked, first + axis, indices[axis :: int(depth)])


def _gather_elements(asked: Asked) -> Iterator[Demand]:
    rank = len(asked.of(0))
    axis = asked.attributes.get("axis", 0)
    yield from _indexed(asked, axis, asked.elements(1) or ())
    for other in range(rank):
        size = asked.at(1, other)
        if other != axis % rank and size is not None:
            yield from _at_least(asked, 0, other, size)


def _scatter_elements(asked: Asked) -> Iterator[Demand]:
    yield from _gather_elements(asked)
    yield from _alike(asked, 1, 2, len(asked.of(1)))


def _gather_nd(asked: Asked) -> Iterator[Demand]:
    batches = asked.attributes.get("batch_dims", 0)
    yield from _places(asked, batches)
    yield from _alike(asked, 0, 1, batches)


def _scatter_nd(asked: Asked) -> Iterator[Demand]:
    depth = asked.at(1, -1)
    yield from _places(asked, 0)
    if depth is None or is_open(depth):
        return
    outer = len(asked.of(1)) - 1
    yield from _alike(asked, 1, 2, outer)
    for axis in range(len(asked.of(0)) - int(depth)):
        yield from _equal(asked, [(0, int(depth) + axis), (2, outer + axis)])


def _quantization(asked: Asked) -> Iterator[Demand]:
    if len(asked.of(1)) == 1 and asked.at(1, 0) != 1:
        yield from _equal(asked, [(0, asked.attributes.get("axis", 1)), (1, 0), (2, 0)])


def _grid_sample(asked: Asked) -> Iterator[Demand]:
    yield from _equal(asked, [(0, 0), (1, 0)])
    yield Demand(1, len(asked.of(1)) - 1, len(asked.of(0)) - 2)


_ELEMENTWISE = (
    *("Add", "And", "BiasGelu", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div"),
    *("Equal", "FastGelu", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean"),
    *("Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    *("LayerNormalization", "RMSNormalization", "SkipLayerNormalization"),
)
_REDUCTIONS = (
    *("ArgMax", "ArgMin", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE, lambda asked: _broadcast(asked, range(len(asked.sizes)))),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _normalization),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantization),
    **dict.fromkeys(("MatMul", "MatMulInteger", "MatMulInteger16"), _matmul),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _window),
    **dict.fromkeys(("Scatter", "ScatterElements"), _scatter_elements),
    **{op: partial(_reduction, op) for op in _REDUCTIONS},
    "Concat": _concat,
    "Conv": _convolution,
    "ConvTranspose": partial(_fixed, [[(0, 1), (1, 0)]], []),
    "DepthToSpace": partial(_blocks, [1], 2),
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_normalization,
    "MaxRoiPool": partial(_fixed, [], [(1, 1, 5)]),
    "MaxUnpool": lambda asked: _alike(asked, 0, 1, len(asked.of(0))),
    "NonMaxSuppression": partial(_fixed, [[(0, 0), (1, 0)], [(0, 1), (1, 2)]], [(0, 2, 4)]),
    "Pad": _pad,
    "Reshape": _reshape,
    "RoiAlign": partial(_fixed, [[(1, 0), (2, 0)]], [(1, 1, 4)]),
    "ScatterND": _scatter_nd,
    "SpaceToDepth": partial(_blocks, [2, 3], 1),
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _top_k,
}
"""What asks something of sizes, by the operator."""
