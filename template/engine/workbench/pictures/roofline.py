# SPDX-License-Identifier: Apache-2.0
"""The roofline: how fast each op is, against the peaks of the device.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model
for Multicore Architectures", Communications of the ACM 52 (4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...backend.profiling.parts import OpProfile
from ...backend.profiling.profiles import Profile
from .drawing import (
    GRID,
    WIDTH,
    Marks,
    attribute,
    colours_of,
    escaped,
    line,
    nothing,
    picture,
    short,
)
from .drawing import text as words

_LEFT, _RIGHT, _TOP, _HEIGHT = 70, WIDTH - 20, 30, 300
_FEW_POWERS = 3
"""On an axis of fewer powers of ten, these alone would be too few ticks."""
_LETTER, _LINE = 7, 14
"""About the width of a letter, and the height of a line."""


_Box = tuple[float, float, float, float]
"""The left, upper, right and lower end of a mark."""


@dataclass(frozen=True)
class Point:
    """An op in the roofline.

    `bytes`: the bytes that it read from the memory outside of the chip, and wrote to it.
    `intensity`: operations for each of these bytes; infinity if there are none.
    `speed`: operations per unit of time, while at least one engine worked for the op.
    """

    op: OpProfile
    bytes: int
    intensity: float
    speed: float


@dataclass(frozen=True)
class Roof:
    """The peak rates of a device.

    `operations`: per unit of time; 0 if it is not known.
    `bytes`: those of the memory outside of the chip per unit of time; 0 if it is not known.
    """

    operations: float
    bytes: float

    def at(self, intensity: float) -> float:
        """Return the most operations per unit of time at this intensity."""
        limits = (self.operations or math.inf, self.bytes * intensity if self.bytes else math.inf)
        return min(limits)


def outer_memory(profile: Profile) -> str | None:
    """Return the memory whose traffic counts: one of known bandwidth, DRAM, or the first used."""
    for region in profile.regions:
        if region.peaks is not None:
            for name, memory in region.peaks.memories.items():
                if memory.bytes_per_unit:
                    return name
    moved = profile.traffic
    return "dram" if "dram" in moved else next(iter(moved), None)


def points_of(profile: Profile) -> list[Point]:
    """Return the ops whose operations the driver counts."""
    memory = outer_memory(profile)
    points = []
    for op in profile.ops:
        if op.operations and op.active:
            moved = sum(op.traffic.get(memory, (0, 0))) if memory is not None else 0
            intensity = op.operations / moved if moved else math.inf
            points.append(Point(op, moved, intensity, op.operations / op.active))
    return points


def roofs_of(profile: Profile) -> list[Roof]:
    """Return the different roofs of the regions, whose element types differ."""
    memory, roofs = outer_memory(profile), []
    for region in profile.regions:
        if region.peaks is not None and region.operations:
            outer = region.peaks.memories.get(memory or "")
            roof = Roof(region.peaks.operations, outer.bytes_per_unit if outer is not None else 0.0)
            if (roof.operations or roof.bytes) and roof not in roofs:
                roofs.append(roof)
    return roofs


def roofline_svg(profile: Profile) -> str:
    """Draw the speed of each op against its operations per byte, and the peak of the device.

    A point for each op whose operations are known, as large as its share of the time.
    """
    points = points_of(profile)
    if not points:
        return nothing(
            "The driver does not count the operations of ops, or the model has none that it counts."
        )
    roofs = roofs_of(profile)
    unit, memory = profile.unit or "", outer_memory(profile) or "memory"
    finite = [point.intensity for point in points if math.isfinite(point.intensity)]
    ridges = [roof.operations / roof.bytes for roof in roofs if roof.operations and roof.bytes]
    across = _Axis([*finite, *ridges] or [1.0], _LEFT, _RIGHT, 0.3)
    speeds = [point.speed for point in points]
    upright = _Axis(
        [*speeds, *(roof.operations for roof in roofs if roof.operations)],
        _TOP + _HEIGHT,
        _TOP,
        0.1,
    )
    bottom = _TOP + _HEIGHT
    marks: Marks = []
    for value in across.ticks:
        x = across.at(value)
        marks.append(line(x, _TOP, x, bottom, GRID))
        marks.append(words(x, bottom + 16, f"{value:,g}", "middle"))
    for value in upright.ticks:
        y = upright.at(value)
        marks.append(line(_LEFT, y, _RIGHT, y, GRID))
        marks.append(words(_LEFT - 6, y + 4, f"{value:,g}", "end"))
    marks.append(words(_LEFT, _TOP - 12, f"operations per {_singular(unit)}"))
    marks.append(words(_RIGHT, bottom + 34, f"operations per byte of {memory}", "end"))
    for roof in roofs:
        marks += _roof_marks(roof, across, upright, memory, unit)
    if not roofs:
        marks.append(
            words(_RIGHT, _TOP - 12, "The driver does not tell how fast the device is.", "end")
        )
    marks += _point_marks(profile, points, across, upright)
    left_out = sum(1 for op in profile.ops if not op.operations)
    note = f"{left_out} ops without counted operations are not shown." if left_out else ""
    if len(finite) < len(points):
        note += f" At the right edge: no traffic with {memory}."
    if note:
        marks.append(words(_LEFT, bottom + 34, note.strip(), attributes=' fill-opacity="0.7"'))
    return picture(bottom + 44, "How fast each op is, and could be", marks)


class _Axis:
    """A logarithmic axis with room at its end; its ticks are powers of ten, or 1, 2 and 5 of each.

    `values`: positive numbers that have to be on the axis.
    `begin`, `end`: its ends in the picture.
    `room`: the free powers of ten beyond the largest value.
    """

    def __init__(self, values: Sequence[float], begin: float, end: float, room: float) -> None:
        self._least = math.log10(min(values)) - 0.1
        most = max(math.log10(max(values)) + room, self._least + 1)
        self._begin, self._end = begin, end
        self._scale = (end - begin) / (most - self._least)
        powers = range(math.floor(self._least), math.floor(most) + 1)
        steps = (1, 2, 5) if most - self._least < _FEW_POWERS else (1,)
        self.ticks = [
            step * 10.0**power
            for power in powers
            for step in steps
            if self._least <= math.log10(step) + power <= most
        ]
        self.least, self.most = 10**self._least, 10**most

    def at(self, value: float) -> float:
        """Return the position of a value; values beyond an end are at that end."""
        if value == math.inf:
            return self._end
        place = self._begin + (math.log10(value) - self._least) * self._scale
        low, high = sorted((self._begin, self._end))
        return min(max(place, low), high)


def _roof_marks(roof: Roof, across: _Axis, upright: _Axis, memory: str, unit: str) -> Marks:
    thick = ' stroke-width="1.5"'
    marks = []
    ridge = across.least
    if roof.bytes:
        ridge = roof.operations / roof.bytes if roof.operations else across.most
        low = max(across.least, upright.least / roof.bytes)
        high = min(ridge, upright.most / roof.bytes)
        if low < high:
            begin, end = roof.bytes * low, roof.bytes * high
            x, y = across.at(low), upright.at(begin)
            marks.append(line(x, y, across.at(high), upright.at(end), thick))
            label = f"{memory}: {roof.bytes:,g} bytes per {_singular(unit)}"
            marks.append(words(across.at(high) - 8, upright.at(end) + 4, label, "end"))
    if roof.operations:
        y = upright.at(roof.operations)
        marks.append(line(across.at(ridge), y, _RIGHT, y, thick))
        label = f"{roof.operations:,g} operations per {_singular(unit)}"
        marks.append(words(_RIGHT, y - 6, label, "end"))
    return marks


def _point_marks(profile: Profile, points: Sequence[Point], across: _Axis, upright: _Axis) -> Marks:
    colours, numbers = colours_of(profile.ops), {id(op): at for at, op in enumerate(profile.ops)}
    marks = []
    named = sorted(points, key=lambda point: -point.op.attributed_share)[:5]
    for point in sorted(points, key=lambda point: -point.op.attributed_share):
        op = point.op
        x, y = across.at(point.intensity), upright.at(point.speed)
        title = (
            f"{op.title}\n{op.operations:,} operations, {point.bytes:,} bytes, "
            f"{op.active:,} {profile.unit}\n{point.speed:,.1f} operations per "
            f"{_singular(profile.unit or '')}"
        )
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_radius(point):.1f}" fill-opacity="0.8" '
            f'fill="{colours[op.region, op.label]}" stroke="none"'
            f"{attribute('data-op', numbers[id(op)])}><title>{escaped(title)}</title></circle>"
        )
    return [*marks, *_names(named, points, across, upright)]


def _radius(point: Point) -> float:
    return 4 + 10 * math.sqrt(point.op.attributed_share)


def _names(
    named: Sequence[Point], points: Sequence[Point], across: _Axis, upright: _Axis
) -> Iterator[str]:
    """Generate the names of points, each beside its point where there is room."""
    taken: list[_Box] = []
    for point in points:
        x, y, radius = across.at(point.intensity), upright.at(point.speed), _radius(point)
        taken.append((x - radius, y - radius, x + radius, y + radius))
    for point in named:
        x, y, gap = across.at(point.intensity), upright.at(point.speed), _radius(point) + 4
        name = short(point.op.title)
        width = len(name) * _LETTER
        for left, middle in (
            (x + gap, y),
            (x - gap - width, y),
            (x - width / 2, y - gap - _LINE / 2),
            (x - width / 2, y + gap + _LINE / 2),
        ):
            place = left, middle - _LINE / 2, left + width, middle + _LINE / 2
            is_inside = left >= _LEFT and left + width <= _RIGHT
            if is_inside and not any(_overlap(place, box) for box in taken):
                taken.append(place)
                # A name is seldom as wide as its box, so it is anchored near its point.
                anchor, at = ("end", left + width) if left + width <= x else ("start", left)
                if left < x < left + width:
                    anchor, at = "middle", x
                yield words(at, middle + 4, name, anchor)
                break


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _singular(unit: str) -> str:
    """Return the singular of a unit, for operations "per cycle"."""
    return unit[:-1] if unit.endswith("s") and len(unit) > 2 else unit
