# SPDX-License-Identifier: Apache-2.0
"""Rules that schedule a kernel: which tiles there are, and what lies in which memory meanwhile.

A rule changes a schedule of TVM, or leaves it for the next one. It decides about tiles and memories
alone: which instructions move and compute them is selected from the loops that it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import s_tir

from ..kinds import ELEMENT_BYTES
from ..machine import Machine
from .adapter import Access, Product, is_elementwise, product_of, window_of
from .loops import Unsupported, divisors
from .matrices import PRODUCT_TYPES

Rule = Callable[[s_tir.Schedule, Machine, Mapping[str, int]], bool]
"""Changes the schedule and returns True, or returns False. The last argument has the sizes that
tuning found, by the names that the rule gives them."""


def scheduled(
    function: Any, machine: Machine, rule: Rule | None, sizes: Mapping[str, int]
) -> Any | None:
    """Return a kernel as a rule schedules it.

    Parameters
    ----------
    function
        A `tirx.PrimFunc` with blocks.
    machine
        The machine.
    rule
        The rule; None leaves the kernel as it is.
    sizes
        Sizes for the rule, by name.

    Returns
    -------
    function
        The kernel, or None if the rule does not take it.
    """
    if rule is None:
        return function
    schedule = s_tir.Schedule(function)
    try:
        schedule.get_sblock("root")
    except s_tir.ScheduleError:
        # It has loops of its own, and no blocks, which schedules change.
        return None
    try:
        return schedule.mod["main"] if rule(schedule, machine, sizes) else None
    except s_tir.ScheduleError as error:
        raise Unsupported(f"the rule {rule.__name__} fails: {str(error).splitlines()[0]}") from None


def blocks_of(schedule: s_tir.Schedule) -> list[Any]:
    """Return the blocks of a kernel, in their order."""
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def inline_chains(schedule: s_tir.Schedule) -> None:
    """Compute elements where they are read, if one block reads them."""
    for block in blocks_of(schedule):
        if not is_elementwise(schedule.get(block)):
            continue
        if len(schedule.get_consumers(block)) == 1:
            try:
                schedule.compute_inline(block)
            except s_tir.ScheduleError:
                continue


def elementwise(schedule: s_tir.Schedule, machine: Machine, sizes: Mapping[str, int]) -> bool:
    """Chains of elements are one nest, which goes through the scratchpad tile by tile."""
    inline_chains(schedule)
    return True


def products(schedule: s_tir.Schedule, machine: Machine, sizes: Mapping[str, int]) -> bool:
    """Matrix products and convolutions, with what follows them in the tile of their sums."""
    found = [(block, product_of(schedule.get(block))) for block in blocks_of(schedule)]
    anchors = [(block, product) for block, product in found if product is not None]
    memories = {memory.name for memory in machine.memories}
    if not {"spad", "wspad", "acc"} <= memories or "mm" not in machine.instructions:
        return False
    if len(anchors) != 1:
        return False
    block, product = anchors[0]
    assert product is not None
    shape = _Shape.of(product)
    if shape is None:
        return False
    name = schedule.get(block).name_hint
    _inline_around(schedule, block, name)
    tile = _Tile.of(shape, product, machine, sizes)
    if tile is None:
        return False
    _apply(schedule, block, product, shape, tile)
    return True


def windows(schedule: s_tir.Schedule, machine: Machine, sizes: Mapping[str, int]) -> bool:
    """Pools and depthwise convolutions: the windows of a tile are in the scratchpad once."""
    found = [(block, window_of(schedule.get(block))) for block in blocks_of(schedule)]
    anchors = [(block, window) for block, window in found if window is not None]
    if len(anchors) != 1 or not any(memory.name == "spad" for memory in machine.memories):
        return False
    block, window = anchors[0]
    assert window is not None
    _inline_around(schedule, block, schedule.get(block).name_hint)
    kept = [i for i in range(len(window.counts)) if i in window.target.variables]
    tile = list(window.counts)
    # Two tiles are there in turn, and what follows needs as much again.
    room = sizes.get("bytes", machine.memory("spad").bytes // 8)
    for index in kept:
        for size in divisors(window.counts[index]):
            tile[index] = size
            if sum(_bytes_of(access, tile) for access in (window.data, window.target)) <= room:
                break
        else:
            continue
        break
    loops = schedule.get_loops(block)
    pairs = {i: schedule.split(loops[i], [None, tile[i]]) for i in kept}
    reduced = [loops[i] for i in range(len(loops)) if i not in pairs]
    outer, inner = ([pair[at] for pair in pairs.values()] for at in (0, 1))
    schedule.reorder(*outer, *reduced, *inner)
    last = _result_in(schedule, block, "global.spad")
    data = schedule.cache_read(block, window.read, "global.spad")
    schedule.compute_at(data, outer[-1])
    schedule.reverse_compute_at(last, outer[-1])
    _inline_into(schedule, data)
    schedule.decompose_reduction(block, reduced[0])
    return True


def _bytes_of(access: Access, sizes: Sequence[int]) -> int:
    """Return how many bytes an operand of a tile has, at most."""
    return ELEMENT_BYTES[access.type] * math.prod(
        1 + sum(abs(factor) * (sizes[i] - 1) for i, factor in dim.items()) for dim in access.dims
    )


class _Shape:
    """What the loops of a product are, by number: `batch` is in both operands and the result."""

    def __init__(self, data: int) -> None:
        self.data = data
        self.batch: list[int] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.sums: list[int] = []

    @classmethod
    def of(cls, product: Product) -> _Shape | None:
        for data in (0, 1):
            left, right = product.operands[data], product.operands[1 - data]
            if (left.type, right.type, product.target.type) not in PRODUCT_TYPES:
                continue
            shape = cls(data)
            for index in range(len(product.counts)):
                t, d, w = (index in part.variables for part in (product.target, left, right))
                if t and d and w:
                    shape.batch.append(index)
                elif t and d:
                    shape.rows.append(index)
                elif t and w:
                    shape.columns.append(index)
                elif d and w:
                    shape.sums.append(index)
                elif product.counts[index] > 1:
                    return None
            # The result lies as the columns do.
            big = [i for i in shape.columns if product.counts[i] > 1]
            if not any(product.counts[i] > 1 for i in shape.sums):
                continue
            # Without columns, the sums lie behind each other; depthwise windows are vectors.
            if not big and not left.last & {*shape.sums}:
                continue
            if len(big) <= 1 and (not big or big[0] in product.target.last):
                return shape
        return None


class _Tile:
    """How many iterations of each loop a tile has."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.sizes = list(counts)

    @classmethod
    def of(
        cls, shape: _Shape, product: Product, machine: Machine, sizes: Mapping[str, int]
    ) -> _Tile | None:
        tile = cls(product.counts)
        for index in shape.batch:
            tile.sizes[index] = 1
        column = [i for i in shape.columns if product.counts[i] > 1]
        element = ELEMENT_BYTES[product.operands[0].type]
        sums = machine.memory("acc").bytes // 2
        data_bytes = machine.memory("spad").bytes // 4
        weight_bytes = machine.memory("wspad").bytes // 2

        def fits(data: int, weights: int) -> bool:
            return (
                tile.bytes(product, shape.data) <= data
                and tile.bytes(product, 1 - shape.data) <= weights
            )

        if column:
            most = sizes.get("columns", 64)
            tile.sizes[column[0]] = _near(product.counts[column[0]], most, 16)
        columns = tile.sizes[column[0]] if column else 1
        # Rows: the innermost loops whole, as long as the sums fit.
        rows = 1
        wanted = sizes.get("rows", 256)
        for index in reversed(shape.rows):
            room = min(wanted // rows, sums // (4 * columns * rows))
            tile.sizes[index] = max(
                (d for d in divisors(product.counts[index]) if d <= max(1, room)), default=1
            )
            rows *= tile.sizes[index]
        inner = [i for i in shape.sums if i in product.operands[shape.data].last]
        for index in inner:
            for size in divisors(product.counts[index]):
                if size * element > 4095:
                    continue
                tile.sizes[index] = size
                if fits(data_bytes, weight_bytes):
                    break
        if not fits(2 * data_bytes, 2 * weight_bytes):
            # The other sums, such as the rows of a window, one after the other.
            for index in shape.sums:
                if index not in inner:
                    tile.sizes[index] = 1
            for index in reversed(shape.rows):
                while tile.bytes(product, shape.data) > data_bytes and tile.sizes[index] > 1:
                    smaller = [d for d in divisors(product.counts[index]) if d < tile.sizes[index]]
                    tile.sizes[index] = smaller[0]
        return tile if fits(2 * data_bytes, 2 * weight_bytes) else None

    def bytes(self, product: Product, operand: int) -> int:
        """How many bytes an operand of a tile has, at most."""
        return _bytes_of(product.operands[operand], self.sizes)


def _near(count: int, most: int, multiple: int) -> int:
    """Return the best size of a tile of columns: a divisor, best a multiple of the width."""
    if count <= most:
        return count
    fitting = [d for d in divisors(count) if d <= most]
    return max(fitting, key=lambda d: (d / (-(-d // multiple) * multiple), d))


def _inline_around(schedule: s_tir.Schedule, block: Any, name: str) -> None:
    """Inline what follows a product into one block."""
    while True:
        changed = False
        for other in blocks_of(schedule):
            hint = schedule.get(other).name_hint
            if hint == name or not is_elementwise(schedule.get(other)):
                continue
            consumers = schedule.get_consumers(other)
            if len(consumers) != 1 or schedule.get(consumers[0]).name_hint == name:
                continue
            try:
                schedule.compute_inline(other)
                changed = True
                break
            except s_tir.ScheduleError:
                continue
        if not changed:
            return


def _result_in(schedule: s_tir.Schedule, block: Any, scope: str) -> Any:
    """Let a block have its result in a memory; return the block that reads it there."""
    consumers = schedule.get_consumers(block)
    if not consumers:
        return schedule.cache_write(block, 0, scope)
    schedule.set_scope(block, 0, scope)
    return consumers[0]


def _inline_into(schedule: s_tir.Schedule, copy: Any) -> None:
    """Compute the elements that a copy reads where it reads them."""
    for producer in schedule.get_producers(copy):
        if is_elementwise(schedule.get(producer)):
            schedule.compute_inline(producer)


def _apply(
    schedule: s_tir.Schedule, block: Any, product: Product, shape: _Shape, tile: _Tile
) -> None:
    loops = schedule.get_loops(block)
    outer: dict[int, Any] = {}
    inner: dict[int, Any] = {}
    for index, loop in enumerate(loops):
        outer[index], inner[index] = schedule.split(loop, [None, tile.sizes[index]])
    columns, rows, sums = shape.columns, shape.rows, shape.sums
    rest = [i for i in range(len(loops)) if i not in (*shape.batch, *rows, *columns, *sums)]
    order = [*shape.batch, *rest, *rows]
    schedule.reorder(
        *(outer[i] for i in (*order, *columns, *sums)),
        *(inner[i] for i in (*order, *sums, *columns)),
    )
    data_at = outer[sums[-1]] if _is_split(sums, product, tile) else outer[order[-1]]
    weights_at = outer[sums[-1]]
    sums_at = outer[columns[-1]] if columns else outer[order[-1]]
    last = _result_in(schedule, block, "global.acc")
    data = schedule.cache_read(block, product.reads[shape.data], "global.spad")
    weights = schedule.cache_read(block, product.reads[1 - shape.data], "global.wspad")
    schedule.compute_at(data, data_at)
    schedule.compute_at(weights, weights_at)
    _lay(schedule, data, product.operands[shape.data], sums)
    _lay(schedule, weights, product.operands[1 - shape.data], columns)
    schedule.reverse_compute_at(last, sums_at)
    _inline_into(schedule, data)
    _inline_into(schedule, weights)
    schedule.decompose_reduction(block, outer[sums[0]])


def _is_split(sums: Sequence[int], product: Product, tile: _Tile) -> bool:
    return any(tile.sizes[i] < product.counts[i] for i in sums)


def _lay(schedule: s_tir.Schedule, copy: Any, access: Any, last: Sequence[int]) -> None:
    """Let the dimension of some loops be the last one of a copy."""
    rank = len(access.dims)
    at = [i for i, dim in enumerate(access.dims) if dim.keys() & set(last)]
    if not at or at[-1] == rank - 1:
        return
    order = [*(i for i in range(rank) if i != at[-1]), at[-1]]
    schedule.transform_layout(copy, ("write", 0), lambda *dims: [dims[i] for i in order])


RULES: tuple[Rule, ...] = (products, windows, elementwise)
"""The rules of the engine, in the order in which they are asked."""
