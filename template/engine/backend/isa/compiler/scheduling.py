# SPDX-License-Identifier: Apache-2.0
"""Rules that schedule a kernel: which tiles there are, and what lies in which memory meanwhile.

A rule changes a schedule of TVM, or leaves it for the next one. It decides about tiles and memories
alone: which instructions move and compute them is selected from the loops that it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir

from ..kinds import ELEMENT_BYTES
from ..machine import Machine
from ..tuning import tunable
from .adapter import Access, Product, Window, by_channel, is_elementwise, product_of, window_of
from .loops import Unsupported, divisors
from .roles import Matrix, matrix_of, near_of

TILES = (8 << 10, 16 << 10, 32 << 10, 64 << 10)
"""How many bytes of what they move vectors may have in a scratchpad."""
DEPTHS = (64, 128, 256, 512, 1024)
"""Of products: how many elements a tile adds at most."""

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


@tunable(tile=TILES)
def elementwise(schedule: s_tir.Schedule, machine: Machine, sizes: Mapping[str, int]) -> bool:
    """Chains of elements are one nest, which goes through the scratchpad tile by tile."""
    inline_chains(schedule)
    return True


@tunable(columns=(16, 32, 64, 128), rows=(64, 128, 256, 512), depth=DEPTHS, tile=TILES)
def products(schedule: s_tir.Schedule, machine: Machine, sizes: Mapping[str, int]) -> bool:
    """Matrix products and convolutions, with what follows them in the tile of their sums."""
    found = [(block, product_of(schedule.get(block))) for block in blocks_of(schedule)]
    anchors = [(block, product) for block, product in found if product is not None]
    matrix = matrix_of(machine)
    if matrix is None or len(anchors) != 1:
        return False
    block, product = anchors[0]
    assert product is not None
    shape = _Shape.of(product, matrix)
    if shape is None:
        return False
    name = schedule.get(block).name_hint
    _inline_around(schedule, block, name)
    tile = _Tile.of(shape, product, matrix, sizes)
    if tile is None:
        return False
    _apply(schedule, block, product, shape, tile, matrix)
    return True


@tunable(bytes=tuple(1 << bits for bits in range(12, 17)), tile=TILES)
def windows(schedule: s_tir.Schedule, machine: Machine, sizes: Mapping[str, int]) -> bool:
    """Pools and depthwise convolutions: the windows of a tile are in the scratchpad once."""
    found = [(block, window_of(schedule.get(block))) for block in blocks_of(schedule)]
    anchors = [(block, window) for block, window in found if window is not None]
    near = near_of(machine)
    if len(anchors) != 1 or near is None or "vec" not in machine.instructions:
        return False
    block, window = anchors[0]
    assert window is not None
    _inline_around(schedule, block, schedule.get(block).name_hint)
    kept = [i for i in range(len(window.counts)) if i in window.target.variables]
    tile = list(window.counts)
    depthwise = _Depthwise.of(machine, window, product_of(schedule.get(block)))
    # Two tiles are there in turn, and what follows needs as much again.
    rooms = [([window.data, window.target], sizes.get("bytes", near.bytes // 8))]
    if depthwise is not None:
        rooms = depthwise.rooms(sizes)
        # Channels first: windows of neighbours do not share them, as they do rows.
        kept.sort(key=lambda index: index != depthwise.channel)

    def fits() -> bool:
        return all(sum(_bytes_of(it, tile) for it in some) <= room for some, room in rooms)

    for index in kept:
        least = depthwise.least if depthwise and index == depthwise.channel else 1
        for size in divisors(window.counts[index]):
            if size < least:
                continue
            tile[index] = size
            if fits():
                break
        else:
            continue
        break
    loops = schedule.get_loops(block)
    pairs = {i: schedule.split(loops[i], [None, tile[i]]) for i in kept}
    reduced = [loops[i] for i in range(len(loops)) if i not in pairs]
    outer, inner = ([pair[at] for pair in pairs.values()] for at in (0, 1))
    schedule.reorder(*outer, *reduced, *inner)
    matrix = None if depthwise is None else depthwise.matrix
    last = _result_in(schedule, block, f"global.{matrix.sums if matrix else near.name}")
    in_data = f"global.{matrix.data if matrix else near.name}"
    data = schedule.cache_read(block, window.read, in_data)
    schedule.compute_at(data, outer[-1])
    if depthwise is not None:
        in_weights = f"global.{depthwise.matrix.weights}"
        weights = schedule.cache_read(block, depthwise.read, in_weights)
        schedule.compute_at(weights, outer[0])
    schedule.reverse_compute_at(last, outer[-1])
    _inline_into(schedule, data)
    if depthwise is not None:
        # Where a bias is loaded again, it waits for the vectors of the tile before.
        for read in by_channel(schedule.get(last)):
            copy = schedule.cache_read(last, read, f"global.{near.name}")
            schedule.compute_at(copy, outer[0])
    if depthwise is None:
        schedule.decompose_reduction(block, reduced[0])
    return True


@dataclass(frozen=True)
class _Depthwise:
    """Windows that `dw` multiplies by weights: which loop has channels, and how few in a tile."""

    matrix: Matrix
    channel: int
    least: int
    operands: tuple[Access, Access, Access]
    """Data, weights and sums."""
    read: int
    """Which of the reads of the block are the weights."""

    @classmethod
    def of(cls, machine: Machine, window: Window, product: Product | None) -> _Depthwise | None:
        matrix = matrix_of(machine, "dw")
        if matrix is None or product is None or window.read not in product.reads:
            return None
        at = product.reads.index(window.read)
        data, weights, target = product.operands[at], product.operands[1 - at], product.target
        shared = target.variables & weights.variables
        if (data.type, weights.type, target.type) not in matrix.types or len(shared) != 1:
            return None
        (channel,) = shared
        if any(operand.dims[-1] != {channel: 1} for operand in (data, weights, target)):
            return None
        width = matrix.width[data.type]
        least = _near(product.counts[channel], width, width)
        return cls(matrix, channel, least, (data, weights, target), product.reads[1 - at])

    def rooms(self, sizes: Mapping[str, int]) -> list[tuple[list[Access], int]]:
        """Return how many bytes operands of a tile may have."""
        data, weights, sums = (self.matrix.rooms[name] for name in ("data", "weights", "sums"))
        rooms = (min(data, sizes.get("bytes", data)), weights, sums)
        return [([operand], room) for operand, room in zip(self.operands, rooms, strict=True)]


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
    def of(cls, product: Product, matrix: Matrix) -> _Shape | None:
        for data in (0, 1):
            left, right = product.operands[data], product.operands[1 - data]
            if (left.type, right.type, product.target.type) not in matrix.types:
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
        cls, shape: _Shape, product: Product, matrix: Matrix, sizes: Mapping[str, int]
    ) -> _Tile | None:
        tile = cls(product.counts)
        for index in shape.batch:
            tile.sizes[index] = 1
        column = [i for i in shape.columns if product.counts[i] > 1]
        rooms = matrix.rooms
        data_bytes, weight_bytes = rooms["data"], rooms["weights"]
        sums = rooms["sums"] // ELEMENT_BYTES[product.target.type]

        def fits(data: int, weights: int) -> bool:
            return (
                tile.bytes(product, shape.data) <= data
                and tile.bytes(product, 1 - shape.data) <= weights
            )

        if column:
            most = sizes.get("columns", 64)
            tile.sizes[column[0]] = _near(
                product.counts[column[0]], most, matrix.width[product.operands[shape.data].type]
            )
        columns = tile.sizes[column[0]] if column else 1
        # Rows: the innermost loops whole, as long as the sums fit.
        rows = 1
        wanted = sizes.get("rows", 256)
        for index in reversed(shape.rows):
            room = min(wanted // rows, sums // (columns * rows))
            tile.sizes[index] = max(
                (d for d in divisors(product.counts[index]) if d <= max(1, room)), default=1
            )
            rows *= tile.sizes[index]
        inner = [i for i in shape.sums if i in product.operands[shape.data].last]
        for index in inner:
            for size in divisors(product.counts[index]):
                tile.sizes[index] = size
                if fits(data_bytes, weight_bytes) and size <= sizes.get("depth", size):
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
    schedule: s_tir.Schedule,
    block: Any,
    product: Product,
    shape: _Shape,
    tile: _Tile,
    matrix: Matrix,
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
    last = _result_in(schedule, block, f"global.{matrix.sums}")
    data = schedule.cache_read(block, product.reads[shape.data], f"global.{matrix.data}")
    weights = schedule.cache_read(block, product.reads[1 - shape.data], f"global.{matrix.weights}")
    schedule.compute_at(data, data_at)
    schedule.compute_at(weights, weights_at)
    _lay(schedule, data, product.operands[shape.data], sums)
    _lay(schedule, weights, product.operands[1 - shape.data], columns)
    schedule.reverse_compute_at(last, sums_at)
    _inline_into(schedule, data)
    _inline_into(schedule, weights)


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
