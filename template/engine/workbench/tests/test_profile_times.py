# SPDX-License-Identifier: Apache-2.0
"""The times of a profile: how they add up, and are shown and compared."""

import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from tvm import relax

import backend
import support
from backend.engine.backend.ir.origins import Origin
from backend.engine.backend.profiling import HostCall
from backend.engine.backend.profiling.origin_names import mismatch, named_host_calls
from backend.engine.backend.profiling.parts import Event, Run
from backend.engine.backend.profiling.sums import attributed_to, waits_of
from backend.engine.backend.report.report import OpPlacement, RegionPlacement, Report
from backend.engine.workbench.comparison.comparison import compare
from backend.engine.workbench.pictures.drawing import ticks
from support import (
    build,
    compile_for,
    needs,
    needs_emulator,
    on_host,
    on_terminal,
    partition_for,
    skip_where_declined,
    variable,
)

SVG = "{http://www.w3.org/2000/svg}"


def event(label, engine, begin, end, waits_for=None, call=0, region="r"):
    busy = end - begin
    return Event(region, call, "work", label, engine, begin, end, busy, waits_for, {}, 0)


EVENTS = [
    event("a (1)", "dma", 0, 10),
    event("a (1)", "matrix", 10, 30, "dma"),
    event("b (2)", "dma", 10, 15),  # The work of a hides it.
    event("b (2)", "vector", 30, 34, "matrix"),
    event(None, "dma", 20, 50),  # No op's, and the last to end before c.
    event("c (3)", "vector", 60, 61, "dma"),  # The time from 50 on is c's.
]


def test_each_instant_is_that_of_one_op():
    found = attributed_to(EVENTS)
    assert found == {("r", "a (1)"): 30, ("r", "b (2)"): 4, ("r", None): 16, ("r", "c (3)"): 11}
    assert sum(found.values()) == 61
    twice = [
        *EVENTS,
        *(replace(item, call=1) for item in EVENTS),
        event("a", "dma", 5, 6, region="s"),
    ]
    found = attributed_to(twice)
    assert found["r", "a (1)"] == 60 and found["s", "a"] == 6
    assert sum(found.values()) == 2 * 61 + 6
    assert attributed_to([]) == {}


def test_the_waits_of_an_op_are_those_since_it_began():
    # c has one event, so it never waits; b begins at 10, and its second engine is free by then.
    assert waits_of(EVENTS) == {("r", "a (1)"): {"dma": 10}, ("r", "b (2)"): {"matrix": 20}}


def convolutions(*shape, channels):
    x = variable("x", *shape)

    def body(emit):
        value = x
        for index, (inner, outer) in enumerate(pairwise(channels)):
            value = emit(on_host(value)) if index == 2 else value
            weight = relax.const(np.full((outer, inner, 3, 3), 0.1, "float32"))
            value = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(value, weight))))
        return value

    return build([x], body), np.ones(shape, "float32")


@support.needs_reals
@needs_emulator
@needs("conv2d", "relu")
@pytest.mark.usefixtures("bound_constants")
@pytest.mark.parametrize(
    ("shape", "channels", "regions"),
    [
        ((1, 3, 8, 8), (3, 4), 1),
        ((2, 3, 10, 10), (3, 4, 8, 4), 2),
        ((1, 16, 160, 160), (16, 32, 16), 1),  # In tiles: it exceeds the scratchpad.
    ],
)
def test_the_times_and_bytes_of_ops_add_up_to_the_whole(shape, channels, regions):
    module, x = convolutions(*shape, channels=channels)
    skip_where_declined(module)
    partitioned = partition_for(module)
    profile = backend.profile(compile_for(module), x, calls=3, report=partitioned)
    assert len(profile.regions) == regions
    assert mismatch(profile, backend.offload_report(partitioned)) is None
    for region in profile.regions:
        ops = [op for op in profile.ops if op.region == region.symbol]
        assert sum(op.attributed for op in ops) == region.span == region.counters["cycles"] > 0
        assert all(0 <= op.attributed <= region.span for op in ops)
        for memory, pair in region.traffic.items():
            moved = [op.traffic.get(memory, (0, 0)) for op in ops]
            assert tuple(map(sum, zip(*moved, strict=True))) == pair
    assert sum(op.attributed for op in profile.ops) == profile.totals["span"]
    assert sum(op.attributed_share for op in profile.ops) == pytest.approx(1, abs=1e-5)
    assert any(op.waits for op in profile.ops)
    assert "dma_in" in next(op for op in profile.ops if op.waits).waits
    assert_picture_has_ticks(profile.to_svg("roofline"))
    assert_largest_come_first(profile)
    if max(shape) > 100:
        matrix = [item for item in profile.events if item.engine == "matrix.0" and not item.call]
        assert len(matrix) > 2 * len(profile.ops)
    # Files of earlier releases lack these times, which are computed from the events.
    data = profile.to_dict()
    for op in data["ops"]:
        for name in ("attributed", "attributed_share", "waits"):
            del op[name]
    assert backend.Profile.from_json(json.dumps(data)) == profile


def assert_picture_has_ticks(svg):
    """Check that each axis of a roofline has two numbers or more."""
    texts = ElementTree.fromstring(svg).findall(f"{SVG}text")
    numbers = [item for item in texts if re.fullmatch(r"[\d.,e+-]+", item.text)]
    across = [item for item in numbers if item.get("text-anchor") == "middle"]
    assert len(across) >= 2 and len(numbers) - len(across) >= 2


def test_names_in_a_roofline_are_not_over_other_points():
    """Three points are so close that a name to the right of one would cover the next."""
    events = [
        {
            "name": "matmul",
            "label": f"relax.matmul (layer_{index})",
            "engine": "matrix",
            "begin": 1000 * index,
            "end": 1000 * (index + 1),
            "busy": 1000,
            "waits_for": None,
            "traffic": {"dram": [traffic, 0]},
            "operations": operations,
        }
        for index, (traffic, operations) in enumerate([(100, 900), (90, 900), (81, 900), (9, 9000)])
    ]
    calls = [{"begin_us": 0.0, "end_us": 9.0, "events": events}]
    told = {"unit": "cycles", "ticks_per_us": 1000.0, "calls": calls}
    regions = [{"symbol": "r", "counters": {}, "profile": told}]
    profile = backend.Profile.from_recording({"calls": [[0, 9]], "host": [], "regions": regions})
    root = ElementTree.fromstring(profile.to_svg("roofline"))
    names = [item for item in root.iter(f"{SVG}text") if item.text.startswith("layer_")]
    assert len(names) == 4
    for item in names:
        x, y = float(item.get("x")), float(item.get("y")) - 4
        width = 6 * len(item.text)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[item.get("text-anchor")]
        for circle in root.iter(f"{SVG}circle"):
            center, radius = float(circle.get("cx")), float(circle.get("r"))
            beside = center + radius <= left or left + width <= center - radius
            assert beside or abs(float(circle.get("cy")) - y) >= radius + 5, item.text


def assert_largest_come_first(profile):
    stream = io.StringIO()
    profile.show(stream, most=1)
    lines = stream.getvalue().splitlines()
    largest, *others = sorted(profile.ops, key=lambda op: -op.attributed)
    begin = next(index for index, line in enumerate(lines) if line.startswith("op "))
    assert "waits for" in lines[begin]
    assert largest.title in lines[begin + 1] and f"{largest.attributed:,}" in lines[begin + 1]
    if others:
        assert f"({len(others)} others)" in lines[begin + 2] and "--all" in lines[begin + 2]
        assert f"{sum(op.attributed for op in others):,}" in lines[begin + 2]
    whole = str(profile)
    assert "--all" not in whole and all(op.title in whole for op in profile.ops)


def test_ticks_are_round():
    assert ticks(49_270) == [0, 10_000, 20_000, 30_000, 40_000]
    assert ticks(18_688, 4) == [0, 5_000, 10_000, 15_000]
    assert ticks(6) == [0, 1, 2, 3, 4, 5, 6] and ticks(0) == [0] and ticks(1) == [0, 1]
    for most in range(1, 3000, 7):
        assert 3 <= len(ticks(most)) <= 7 or most < 3


# ---- Two profiles -------------------------------------------------------------------------------


def report(*ops):
    """Return a report of `(variable, op, name, region)`."""
    placed = tuple(
        OpPlacement("main", name, op, "npu" if region else "host", Origin(origin), region)
        for name, op, origin, region in ops
    )
    symbols = sorted({item.region for item in placed if item.region})
    regions = tuple(
        RegionPlacement(symbol, "main", 1, ("c",), 0, 0, 0, (), ()) for symbol in symbols
    )
    return Report(placed, regions)


def recorded(factor=1, host=1, symbol="r", variable="lv", runs=((0, 400), (0, 400)), unit="cycles"):
    """Return the profile of one op, one function of the host, and two calls."""
    calls = [
        {
            "begin_us": 1000.0 * call + 100 * host,
            "end_us": 1000.0 * call + 300 * host,
            "events": [
                {
                    "name": "work",
                    "label": f"relax.exp ({variable})",
                    "engine": "vector",
                    "begin": begin,
                    "end": end * factor,
                    "busy": 1,
                    "waits_for": None,
                    "traffic": {},
                    "operations": 0,
                }
            ],
        }
        for call, (begin, end) in enumerate(runs)
    ]
    told = {"unit": unit, "ticks_per_us": 10.0 if unit else 0.0, "calls": calls}
    if unit is None:
        for call in calls:
            call["events"] = []
    recording = {
        "calls": [[1000.0 * call, 1000.0 * call + 600 * host] for call in range(2)],
        "host": [["sinh", 1000.0 * c + 310, 1000.0 * c + 310 + 200 * host] for c in range(2)],
        "regions": [{"symbol": symbol, "counters": {}, "profile": told}],
    }
    return backend.Profile.from_recording(recording)


OPS = (("lv", "relax.exp", "layer.exp", "r"), ("lv1", "relax.sinh", "layer.sinh", None))


def compared(before, after, reports=None):
    reports = reports or (report(*OPS), report(*OPS))
    return compare(*reports, profiles=(before, after))


def test_reading_events_takes_no_time_of_the_model():
    def region(symbol, *times):
        calls = [
            {"begin_us": begin, "end_us": end, "recorded_us": recorded, "events": []}
            for begin, end, recorded in times
        ]
        told = {"unit": None, "ticks_per_us": 0.0, "calls": calls}
        return {"symbol": symbol, "counters": {}, "profile": told}

    first = region("a", (102, 104, 114), (203, 205, 209))
    # Two calls were in flight: while the first is read, the second waits.
    second = region("b", (103, 114, 120))
    host = [["one", 101, 102], ["two", 121, 123], ["three", 210, 211]]
    recording = {"calls": [[100, 124], [200, 212]], "host": host, "regions": [first, second]}
    found = backend.Profile.from_recording(recording)
    assert [(item.begin_us, item.end_us) for item in found.calls] == [(0, 8), (84, 92)]
    assert [(item.begin_us, item.end_us) for item in found.host] == [(1, 2), (5, 7), (90, 91)]
    (one, two), (other,) = (item.runs for item in found.regions)
    assert (one.begin_us, one.end_us) == (2, 4) and (two.begin_us, two.end_us) == (87, 89)
    assert (other.begin_us, other.end_us) == (3, 4)
    # Runtimes of earlier releases do not record how long a read takes.
    for call in [*first["profile"]["calls"], *second["profile"]["calls"]]:
        del call["recorded_us"]
    found = backend.Profile.from_recording(recording)
    assert [(item.begin_us, item.end_us) for item in found.calls] == [(0, 24), (100, 112)]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_shows_numbers_and_words_whole_at_any_width(monkeypatch, width):
    engines = ("dma_in", "matrix.0", "vector.0", "dma_out")
    events = [
        {
            "name": "work",
            "label": f"relax.nn.conv2d (lv{index})",
            "engine": engine,
            "begin": 1000 * index + 100 * at,
            "end": 1000 * index + 100 * at + 100,
            "busy": 100,
            "waits_for": "dma_in" if at else None,
            "traffic": {"dram": [4096, 1024], "scratchpad": [51200, 51200]},
            "operations": 0,
        }
        for index in range(3)
        for at, engine in enumerate(engines)
    ]
    calls = [{"begin_us": 0.0, "end_us": 9.0, "events": events}]
    told = {"unit": "cycles", "ticks_per_us": 1000.0, "calls": calls}
    regions = [{"symbol": "some_npu_main_0", "counters": {}, "profile": told}]
    host = [["vm.builtin.alloc_storage", 1.0, 2.0], ["tir_sinh", 3.0, 5.0]]
    recording = {"calls": [[0, 9]], "host": host, "regions": regions}
    profile = backend.Profile.from_recording(recording)
    lines = on_terminal(profile, monkeypatch, width).splitlines()
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {"some_npu_main_0", "relax.nn.conv2d", "2,400", "vm.builtin.alloc_storage"} <= words
    # The engines' shares are always shown, wrapped where the terminal is narrow.
    assert {"dma_in", "matrix.0", "vector.0", "dma_out", "12%,"} <= words
    assert ("(a wider terminal shows, too: traffic)" in lines) == (width < 200)


def test_a_profile_that_is_slower_is_worse():
    assert compared(recorded(), recorded()).changes == ()
    found = compared(recorded(), recorded(factor=10, host=10))
    assert {(item.kind, item.name, item.before, item.after, item.unit) for item in found.worse} == {
        ("span", "r", 400, 4000, "cycles"),
        ("time", "a call of the model", 600, 6000, "us"),
        ("time", "r, on the host", 200, 2000, "us"),
        ("time", "layer.exp", 40, 400, "us"),
        ("time", "sinh", 200, 2000, "us"),
    }
    text = str(found)
    assert "a call of the model: 600.0 us before, 6,000.0 us after: 10.00 times as long" in text
    assert "on the NPU in a call: 400 cycles before, 4,000 cycles after: 10.00 times" in text
    assert "a call of the model: 600.0 us before, 600.0 us after\n" in str(
        compared(recorded(), recorded())
    )
    data = json.loads(found.to_json())
    assert [item["name"] for item in data["whole"]] == [
        "a call of the model",
        "on the NPU in a call",
    ]
    faster = compared(recorded(factor=10), recorded())
    assert faster.changes and not faster.worse


def test_what_varies_is_compared_with_a_tolerance():
    # Cycles that are equal in all runs are compared exactly, others with a tolerance.
    slower = compared(recorded(), recorded(runs=((0, 401), (0, 401))))
    assert [(item.name, item.after) for item in slower.worse] == [("r", 401)]
    assert compared(recorded(), recorded(runs=((0, 401), (0, 403)))).changes == ()
    assert compared(recorded(unit="ns"), recorded(unit="ns", runs=((0, 401),) * 2)).changes == ()
    slower = compared(recorded(unit="ns"), recorded(unit="ns", factor=2))
    assert {item.name for item in slower.worse} == {"r", "layer.exp"}
    # Other work runs on the host: its times count as slower from a factor of 2, or of less where
    # there are no other times.
    assert compared(recorded(), recorded(host=1.9)).changes == ()
    blind = compared(recorded(unit=None), recorded(unit=None, host=1.4))
    assert {item.name for item in blind.worse} == {"a call of the model", "r, on the host"}


def test_ops_that_only_one_profile_has_are_listed():
    reports = report(*OPS), report(("lv", "relax.exp", "other", "r"), OPS[1])
    found = compared(recorded(), recorded(), reports)
    assert {(i.name, i.before, i.after, i.reason) for i in found.of("time")} == {
        ("other", None, 40, "only the profile after has it"),
        ("layer.exp", 40, None, "only the profile before has it"),
    }
    assert not found.worse


def test_a_profile_of_another_model_is_refused():
    with pytest.raises(ValueError, match="The profile after .* report after: the profile has the"):
        compared(recorded(), recorded(symbol="s"))
    with pytest.raises(ValueError, match=r"profile before .* has relax.exp \(lv7\) in r, and the"):
        compared(recorded(variable="lv7"), recorded())
    why = mismatch(recorded(), report(OPS[1]))
    assert why == "the profile has the region r, and the report no regions"


def test_a_page_takes_no_profile_of_another_model(tmp_path):
    page, profile = tmp_path / "page.html", recorded().to_dict()
    with pytest.raises(ValueError, match="The profile is of another model than the report"):
        report(OPS[1]).to_html(page, profile=profile)
    assert not page.exists()
    report(*OPS).to_html(page, profile=profile)
    # A library's profile has no names; those of the report are used.
    text = page.read_text()
    assert profile["ops"][0]["origin"] is None
    assert '"attributed": 800' in text and '"variable": "lv", "origin": "layer.exp"' in text


def test_functions_of_the_host_have_the_names_of_the_author():
    calls = [Run(0.0, 10.0), Run(20.0, 30.0)]

    def ran(*names):
        return [
            HostCall(name, call.begin_us + at, call.begin_us + at + 1)
            for call in calls
            for at, name in enumerate(names)
        ]

    def op(name, kind, reason=""):
        return OpPlacement("main", name, kind, "host", Origin(name.upper()), reason=reason)

    known = Report(
        (
            op("a", "relax.multiply"),
            op("b", "relax.astype"),
            op("c", "relax.call_tir", "it calls the kernel 'einsum': the importer has lowered it"),
            op("d", "relax.multiply"),
            op("e", "relax.nonzero"),
            op("f", "relax.add"),
            op("g", "relax.sinh"),
        )
    )
    # TVM puts "tir_" before names that C has too.
    names = ("multiply", "cast", "einsum", "multiply1", "relax.run.nonzero", "tir_sinh")
    names = (*names, "add", "add1")
    found = named_host_calls(ran(*names), calls, known)
    # Two additions ran, but the report has one, which could be either.
    assert [item.origin for item in found] == [*"ABCDEG", None, None] * 2
    assert [item.title for item in found[:2]] == ["A", "B"] and found[-1].title == "add1"
