# SPDX-License-Identifier: Apache-2.0
"""Where a program writes to its states: positions that come from an input, or from a state.

A session refuses a call that would write behind the end of a state, before it begins.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from torch.export import ExportedProgram

from ...ir.states import Position
from .call import ITEM, Call, op_name


class _Range(NamedTuple):
    """Numbers from `least` to `most`, added to those of a parameter if there is one.

    `element`: which one of the parameter's, or -1 for all.
    """

    least: int
    most: int
    parameter: str = ""
    element: int = -1


def positions_in(
    program: ExportedProgram, parameters: Collection[str]
) -> Mapping[str, list[Position]]:
    """Return where a program writes to the states that these parameters have, by the parameter."""
    found: dict[str, list[Position]] = {name: [] for name in parameters}
    read = _Positions(program)
    versions: dict[torch.fx.Node, str] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in found:
            versions[node] = node.name
            continue
        data = _written(node)
        state = versions.get(data) if data is not None else None
        if data is None or state is None:
            continue
        versions[node] = state
        for axis, index, behind in _indices(node, read):
            given = read.range_of(index)
            size = data.meta["val"].shape[axis]
            if given is not None and given.parameter and isinstance(size, int):
                first = -size if op_name(node) in _FROM_END else 0
                found[state].append(
                    Position(
                        given.parameter,
                        given.element,
                        given.least,
                        given.most + behind,
                        size,
                        first,
                    )
                )
    return found


def _written(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the tensor of which an op returns another version."""
    name = op_name(node)
    place = 2 if name == "aten.where" else 0
    if name in _WRITERS and len(node.args) > place:
        data = node.args[place]
        return data if isinstance(data, torch.fx.Node) else None
    return None


_WRITERS = (
    *("aten.index_put", "aten.index_copy", "aten.index_add", "aten.scatter", "aten.scatter_add"),
    *("aten.slice_scatter", "aten.select_scatter", "aten.where"),
)


_FROM_END = ("aten.index_put", "aten.where")
"""Those that take places less than 0: from the end, or nowhere."""


def _indices(node: torch.fx.Node, read: _Positions) -> Iterator[tuple[int, torch.fx.Node, int]]:
    """Generate the axes along which an op writes to places that are computed, and the places.

    The number: how many more places behind it are written.
    """
    name = op_name(node)
    if name == "aten.index_put":
        for axis, index in enumerate(node.args[1]):
            if index is not None and index.meta["val"].dtype in (torch.int64, torch.int32):
                yield axis, index, 0
    elif name == "aten.where":
        yield from ((axis, index, 0) for axis, index in _compared(node, read))
    elif name == "aten.slice_scatter":
        given = Call.arguments_of(node)
        axis = given["dim"] % node.args[0].meta["val"].ndim
        start, count = given["start"], node.args[1].meta["val"].shape[axis]
        if isinstance(start, torch.fx.Node) and isinstance(count, int) and given["step"] == 1:
            yield axis, start, count - 1
    elif name != "aten.select_scatter":
        yield node.args[1] % node.args[0].meta["val"].ndim, node.args[2], 0


def _compared(node: torch.fx.Node, read: _Positions) -> Iterator[tuple[int, torch.fx.Node]]:
    """Generate the position of `where(arange == position, ...)`."""
    mask, data = node.args[0], node.args[2].meta["val"]
    rank = mask.meta["val"].ndim
    axes = [axis for axis, size in enumerate(mask.meta["val"].shape) if size != 1]
    while op_name(mask) in _SAME and mask.args:
        mask = mask.args[0]
    if op_name(mask) != "aten.eq" or len(axes) != 1 or len(mask.args) != 2:
        return
    size = data.shape[axes[0] + data.ndim - rank]
    for index, places in (mask.args, mask.args[::-1]):
        if not read.counts(places, size):
            continue
        value = index.meta["val"] if isinstance(index, torch.fx.Node) else None
        is_number = isinstance(value, torch.SymInt)
        if is_number or (value is not None and value.numel() == 1 and value.dtype == torch.int64):
            yield axes[0] + data.ndim - rank, index


_SAME = (
    *("aten.view", "aten.reshape", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze"),
    *("aten.expand", "aten._to_copy", "aten.to", "aten.clone", "aten.alias", "aten.detach"),
    *("aten.contiguous", "aten.lift_fresh_copy", "aten.flatten", ITEM),
)
"""Ops whose results have the same numbers as their operands."""


class _Positions:
    """What is known of the integers of a program."""

    def __init__(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        tensors = {**program.constants, **program.state_dict}
        names = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        self._constants = {
            name: tensors[target] for name, target in names.items() if target in tensors
        }

    def range_of(self, value: object) -> _Range | None:
        """Return between which numbers a value is; None if that is not known."""
        if isinstance(value, int):
            return _Range(value, value)
        if not isinstance(value, torch.fx.Node):
            return None
        name, args = op_name(value), value.args
        if value.op == "placeholder":
            return self._placeholder(value)
        if name in _SAME:
            return self.range_of(args[0])
        if name == "aten.copy":
            return self.range_of(args[1])
        if name == "aten.arange":
            return self._counted(args)
        is_sum = name in ("aten.add", "aten.sub") and value.kwargs.get("alpha", 1) == 1
        if is_sum or value.target in (operator.add, operator.sub):
            is_less = name == "aten.sub" or value.target is operator.sub
            return self._sum(args[0], args[1], -1 if is_less else 1)
        if name == "aten.select" and isinstance(args[2], int):
            return self._selected(args[0], args[2])
        return None

    def counts(self, value: object, size: object) -> bool:
        """Whether a value is all places of an axis in order, each once."""
        while isinstance(value, torch.fx.Node) and op_name(value) in _SAME and value.args:
            value = value.args[0]
        if not isinstance(value, torch.fx.Node) or not isinstance(size, int):
            return False
        if op_name(value) == "aten.arange":
            bounds = [it for it in value.args if isinstance(it, int)]
            return len(bounds) == len(value.args) and range(*bounds) == range(size)
        constant = self._constants.get(value.name)
        if value.op != "placeholder" or constant is None:
            return False
        return bool(constant.flatten().tolist() == [*range(size)])

    def _placeholder(self, node: torch.fx.Node) -> _Range | None:
        constant = self._constants.get(node.name)
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int64, torch.int32):
            return None
        if constant is None:
            return _Range(0, 0, node.name)
        if not constant.numel():
            return None
        return _Range(int(constant.min()), int(constant.max()))

    def _counted(self, bounds: tuple[object, ...]) -> _Range | None:
        if not all(isinstance(bound, int) for bound in bounds):
            return None
        numbers = range(*bounds)  # type: ignore[call-overload]
        return _Range(min(numbers), max(numbers)) if numbers else None

    def _sum(self, one: object, other: object, sign: int) -> _Range | None:
        left, right = self.range_of(one), self.range_of(other)
        if left is None or right is None or (right.parameter and (left.parameter or sign < 0)):
            return None
        # Of many numbers on both sides, the largest ones need not meet.
        if (left.parameter or right.parameter) and not (_is_one(one) or _is_one(other)):
            return None
        ends = sorted((sign * right.least, sign * right.most))
        return _Range(
            left.least + ends[0],
            left.most + ends[1],
            left.parameter or right.parameter,
            left.element if left.parameter else right.element,
        )

    def _selected(self, data: object, index: int) -> _Range | None:
        given = self.range_of(data)
        if given is None or not isinstance(data, torch.fx.Node) or data.op != "placeholder":
            return None
        shape = data.meta["val"].shape
        if not given.parameter or len(shape) != 1 or not isinstance(shape[0], int):
            return None
        return given._replace(element=index % shape[0])


def _is_one(value: object) -> bool:
    given = value.meta["val"] if isinstance(value, torch.fx.Node) else None
    return not isinstance(given, torch.Tensor) or given.numel() == 1
