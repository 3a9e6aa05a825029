# SPDX-License-Identifier: Apache-2.0
"""The profile: its sums, the author's names, the trace, and that it does not affect results."""

import gc
import io
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.runtime.vm import VirtualMachine

import backend
import support
from backend.engine.backend.compiling.parallel import DataParallel
from backend.engine.backend.ir.origins import Origin
from backend.engine.backend.profiling import Memory, Peaks
from backend.engine.backend.profiling.record import Recorder, region_modules
from backend.engine.backend.profiling.trace import trace_of
from backend.engine.workbench.pictures.pictures import PICTURES
from backend.engine.workbench.pictures.roofline import Roof, outer_memory, points_of, roofs_of
from support import (
    BACKEND,
    build,
    compile_for,
    needs,
    needs_devices,
    needs_emulator,
    needs_wheel,
    on_host,
    partition_for,
    run_on_host,
    skip_where_declined,
    variable,
)

pytestmark = [pytest.mark.usefixtures("bound_constants"), needs("conv2d", "relu")]
INPUT = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("float32")


def two_regions():
    """Build two convolutions with a host function between; the author named one "stem"."""
    x = variable("x", 2, 3, 8, 8)
    first = relax.const(np.full((4, 3, 3, 3), 0.25, "float32"))
    second = relax.const(np.full((4, 4, 3, 3), 0.5, "float32"))

    def named(call, origin):
        return relax.Call(call.op, list(call.args), call.attrs, call.ty_args, origin.span())

    def body(emit):
        stem = named(relax.op.nn.conv2d(x, first), Origin("conv", "stem"))
        value = emit(relax.op.nn.relu(emit(stem)))
        value = emit(on_host(value))
        return emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(value, second))))

    return build([x], body)


class Model:
    """The model, partitioned and compiled."""

    def __init__(self):
        self.module = two_regions()
        skip_where_declined(self.module)
        self.partitioned = partition_for(self.module)
        self.executable = compile_for(self.module)
        self.regions = [item.symbol for item in backend.offload_report(self.partitioned).regions]


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def profile(model):
    return backend.profile(model.executable, INPUT, calls=2, report=model.partitioned)


def facts(profile):
    """Return what was computed where and, unless it comes from a clock, when."""
    if profile.unit == "cycles":
        return profile.ops, profile.events
    ops = {(op.region, op.label, op.origin, op.operations) for op in profile.ops}
    return ops, [(event.region, event.name, event.label) for event in profile.events]


@support.needs_reals
def test_regions_calls_and_functions_of_the_host_are_in_it(model, profile):
    assert [region.symbol for region in profile.regions] == model.regions
    assert len(model.regions) == 2
    assert len(profile.calls) == 2 and profile.calls[0].begin_us == 0
    assert profile.calls[0].end_us <= profile.calls[1].begin_us
    for region in profile.regions:
        assert region.calls == len(region.runs) == 2
        for call, run in zip(profile.calls, region.runs, strict=True):
            # Both times come from the same clock, with nanosecond resolution.
            assert call.begin_us <= run.begin_us < run.end_us <= call.end_us
    (between,) = {item.name for item in profile.host if on_host.__name__ in item.name}
    mine = [item for item in profile.host if item.name == between]
    assert len(mine) == 2
    first, second = profile.regions
    for item, before, after in zip(mine, first.runs, second.runs, strict=True):
        assert before.end_us <= item.begin_us <= item.end_us <= after.begin_us
    names = {item.name for item in profile.host}
    assert not names & {f"{name}{end}" for name in model.regions for end in ("", ".submit")}


@support.needs_reals
@needs_emulator
def test_sums_are_the_counters_to_the_last_unit(profile):
    assert (profile.unit, profile.ticks_per_us) == ("cycles", 1000.0)
    for region in profile.regions:
        counters = region.counters
        assert counters["submissions"] == 2
        assert region.span == counters["cycles"] > 0
        engines = Counter()
        for name, busy in region.busy.items():
            engines[name.split(".")[0]] += busy
            assert region.utilisation[name] == pytest.approx(busy / region.span, abs=1e-6)
        for name in ("matrix", "vector", "dma_in", "dma_out"):
            assert engines[name] == counters[f"busy_cycles.{name}"]
        assert set(region.traffic) == {"dram", "scratchpad"}
        for memory, (read, written) in region.traffic.items():
            assert read == counters[f"{memory}_bytes_read"] > 0
            assert written == counters[f"{memory}_bytes_written"] > 0
        assert region.operations == counters["matrix_operations"] > 0
        ops = [op for op in profile.ops if op.region == region.symbol]
        assert sum((Counter(op.busy) for op in ops), Counter()) == Counter(region.busy)
        for memory, pair in region.traffic.items():
            moved = [op.traffic.get(memory, (0, 0)) for op in ops]
            assert tuple(map(sum, zip(*moved, strict=True))) == pair
    spans = [event.end - event.begin for event in profile.events]
    assert sum(op.span for op in profile.ops) == sum(spans)
    assert sum(op.share for op in profile.ops) == pytest.approx(1, abs=1e-5)
    totals = profile.totals
    assert totals["events"] == len(spans)
    assert totals["span"] == sum(region.span for region in profile.regions)
    assert sum((Counter(item.busy) for item in profile.regions), Counter()) == totals["busy"]
    assert sum(op.operations for op in profile.ops) == totals["operations"]


@support.needs_reals
@needs_emulator
def test_ops_have_the_names_of_the_author(model, profile):
    assert [(op.region, op.op) for op in profile.ops] == [
        (region, "relax.nn.conv2d") for region in model.regions
    ]
    stem, second = profile.ops
    assert stem.origin == stem.title == "stem (conv)"
    assert second.origin is None and second.title == second.variable
    entries = {item.name: item for item in backend.offload_report(model.partitioned).ops}
    for op in profile.ops:
        assert op.label == f"{op.op} ({op.variable})"
        assert op.composite == entries[op.variable].composite
    without = backend.profile(model.executable, INPUT)
    assert [op.origin for op in without.ops] == [None, None]
    known = backend.offload_report(model.partitioned)
    assert backend.profile(model.executable, INPUT, report=known).ops[0].origin == stem.origin


@support.needs_reals
def test_a_driver_without_events_leaves_the_times_on_the_host(profile):
    if profile.unit is not None:
        recording = {
            "calls": [[10.0, 50.0]],
            "host": [["f", 11.0, 12.0]],
            "regions": [
                {
                    "symbol": "r",
                    "counters": {},
                    "profile": {
                        "unit": None,
                        "ticks_per_us": 0,
                        "calls": [{"begin_us": 15.0, "end_us": 40.0, "events": []}],
                    },
                }
            ],
        }
        profile = backend.Profile.from_recording(recording)
        assert profile.totals["npu_us"] == 25 and profile.totals["host_us"] == 1
    assert (profile.events, profile.ops, profile.unit) == ((), (), None)
    assert "does not tell" in profile.summary and profile.summary in str(profile)
    assert "no events" in profile.to_svg() + profile.to_svg("top_ops")
    assert profile.allocations == () and profile.memory == {}
    assert "does not count" in profile.to_svg("roofline")
    assert "does not tell" in profile.to_svg("memory")
    assert_is_trace(profile.to_trace())


def test_the_profile_is_data(profile):
    data = json.loads(profile.to_json())
    assert data == profile.to_dict()
    assert (data["version"], data["backend"]) == (1, BACKEND)
    assert backend.Profile.from_json(profile.to_json()) == profile
    newer = {**data, "more": 1, "host": [{**item, "more": 1} for item in data["host"]]}
    assert backend.Profile.from_json(json.dumps(newer)) == profile
    for text in (json.dumps({**data, "version": 2}), "[]", '{"version": 1}'):
        with pytest.raises(ValueError, match="version .*; supported: 1"):
            backend.Profile.from_json(text)
    with pytest.raises(ValueError, match="not JSON"):
        backend.Profile.from_json("{")


def test_the_tables_have_all_regions_and_ops(profile):
    text = str(profile)
    for name in [item.symbol for item in profile.regions] + [op.title for op in profile.ops]:
        assert name in text
    assert text.splitlines()[-1] == profile.summary
    stream = io.StringIO()
    profile.show(stream)
    assert stream.getvalue() == text + "\n"


def assert_is_trace(text):
    """Check the format's rules; events of a track neither overlap nor go backwards."""
    trace = json.loads(text)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    names, tracks = {}, {}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["name"], str) and event["name"]
        assert event["ph"] in ("M", "X")
        key = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert (event["name"], key) not in names
            names[event["name"], key] = event["args"]["name"]
        else:
            assert event["ts"] >= 0 and event["dur"] >= 0
            tracks.setdefault(key, []).append(event)
    for key, events in tracks.items():
        assert names["thread_name", key] and names["process_name", (key[0], 0)]
        for one, other in pairwise(events):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-3, names["thread_name", key]
    return {names["thread_name", key]: events for key, events in tracks.items()}


@support.needs_reals
def test_the_trace_has_a_track_for_each_engine_and_the_host(profile):
    tracks = assert_is_trace(profile.to_trace())
    assert [event["name"] for event in tracks["calls"]] == ["call 0", "call 1"]
    assert len(tracks["functions"]) == len(profile.host)
    runs = [(region.symbol, call) for call in (0, 1) for region in profile.regions]
    assert [(event["name"], event["args"]["call"]) for event in tracks["regions"]] == runs
    per_us = profile.ticks_per_us or 1
    assert set(tracks) == {"calls", "functions", "regions", *profile.busy}
    for engine, busy in profile.busy.items():
        assert sum(event["args"]["busy"] for event in tracks[engine]) == busy
        for event in tracks[engine]:
            length = event["args"]["end"] - event["args"]["begin"]
            assert event["dur"] == pytest.approx(length / per_us, abs=1e-5)
        found = Counter(event["args"]["region"] for event in tracks[engine])
        mine = [event.region for event in profile.events if event.engine == engine]
        assert found == Counter(mine)
    assert sum(map(len, tracks.values())) == 2 + len(profile.host) + 4 + len(profile.events)


@support.needs_reals
@needs_emulator
def test_the_trace_has_the_names_of_the_author(profile):
    trace = json.loads(profile.to_trace())["traceEvents"]
    origins = {op.label: op.origin for op in profile.ops}
    mine = [event for event in trace if event.get("cat") == "npu"]
    for event in mine:
        label = event["args"]["label"]
        assert event["args"]["origin"] == origins[label]
        assert event["name"].endswith(f": {origins[label] or label}")
    assert any(event["name"].endswith(": stem (conv)") for event in mine)


@support.needs_reals
def test_regions_that_are_in_flight_together_have_tracks_of_their_own(profile):
    """Their runs overlap on the host; on an engine, one comes after the other."""
    regions = tuple(
        replace(item, runs=tuple(replace(run, begin_us=1.0, end_us=9.0) for run in item.runs[:1]))
        for item in profile.regions
    )
    events = tuple(event for event in profile.events if event.call == 0)
    tracks = assert_is_trace(replace(profile, regions=regions, events=events).to_trace())
    assert [event["name"] for event in tracks["regions"]] == [regions[0].symbol]
    assert [event["name"] for event in tracks["regions 2"]] == [regions[1].symbol]


@support.needs_reals
@needs_emulator
def test_pictures_have_a_mark_for_each_event_and_op(profile):
    once = [event for event in profile.events if event.call == 0]
    for svg, marks in (
        (profile.to_svg("timeline"), once),
        (profile.to_svg("top_ops"), profile.ops),
    ):
        root = ElementTree.fromstring(svg)
        boxes = root.findall("{http://www.w3.org/2000/svg}rect")
        assert len(boxes) == len(marks) > 0
        assert all(float(box.get("width")) > 0 for box in boxes)
        assert "stem (conv)" in svg
        assert "currentColor" in svg and "http" not in svg.replace("http://www.w3.org/2000/svg", "")


SVG = "{http://www.w3.org/2000/svg}"


@support.needs_reals
@needs_emulator
def test_the_roofline_has_the_operations_of_the_model_below_the_roofs(profile):
    points = points_of(profile)
    assert [point.op for point in points] == list(profile.ops)
    # 2 * 3 * 3 * channels operations for each of 2 x 4 x 6 x 6 results, and of 4 x 4, in 2 calls.
    assert points[0].op.operations == 2 * 2 * (3 * 9) * (2 * 4 * 6 * 6)
    assert points[1].op.operations == 2 * 2 * (4 * 9) * (2 * 4 * 4 * 4)
    assert sum(point.op.operations for point in points) == profile.totals["operations"]
    assert sum(point.bytes for point in points) == sum(profile.traffic["dram"])
    assert outer_memory(profile) == "dram"
    (roof,) = roofs_of(profile)
    # The emulator's array of 32 x 32, and two DMA engines of 16 GB/s at 1 GHz.
    assert roof == Roof(2048.0, 32.0)
    assert (roof.at(1.0), roof.at(1000.0), roof.at(64.0)) == (32.0, 2048.0, 2048.0)
    for point in points:
        assert point.op.active <= point.op.span
        assert 0 < point.speed <= roof.at(point.intensity)
        assert point.intensity == pytest.approx(point.op.operations / point.bytes)
    root = ElementTree.fromstring(profile.to_svg("roofline"))
    assert [item.get("data-op") for item in root.findall(f"{SVG}circle")] in (
        ["0", "1"],
        ["1", "0"],
    )
    texts = [item.text for item in root.findall(f"{SVG}text")]
    assert "2,048 operations per cycle" in texts and "dram: 32 bytes per cycle" in texts


@support.needs_reals
@needs_emulator
def test_without_peaks_the_roofline_has_the_points_alone_and_says_so(profile):
    blind = replace(profile, regions=tuple(replace(item, peaks=None) for item in profile.regions))
    assert roofs_of(blind) == [] and points_of(blind) == points_of(profile)
    picture = blind.to_svg("roofline")
    assert "does not tell how fast the device is" in picture
    assert len(ElementTree.fromstring(picture).findall(f"{SVG}circle")) == 2
    half = Peaks(100.0, {"dram": Memory(0, 0.0)})
    flat = replace(profile, regions=tuple(replace(item, peaks=half) for item in profile.regions))
    assert roofs_of(flat) == [Roof(100.0, 0.0)]
    assert "100 operations per cycle" in flat.to_svg("roofline")


@support.needs_reals
@needs_emulator
def test_the_memory_map_reaches_the_peak_that_the_counters_have(profile):
    used = [region.counters["scratchpad_bytes"] for region in profile.regions]
    assert profile.memory["scratchpad"] == max(used) == profile.totals["memory"]["scratchpad"]
    for region, most in zip(profile.regions, used, strict=True):
        mine = [item for item in profile.allocations if item.region == region.symbol]
        inside = [item for item in mine if item.memory == "scratchpad"]
        assert max(item.offset + item.bytes for item in inside) == most
        assert {item.label for item in mine} <= {event.label for event in profile.events}
        assert all(0 <= item.begin < item.end <= region.runs[0].span for item in mine)
        assert region.peaks.memories["scratchpad"].bytes >= most
        # The data, the weights and the result of a convolution are live at the same time.
        sizes = [item.bytes for item in inside]
        assert 4 * 2 * 4 * (36 if region is profile.regions[0] else 16) in sizes
    root = ElementTree.fromstring(profile.to_svg("memory"))
    boxes = root.findall(f"{SVG}rect")
    assert len(boxes) == len(profile.allocations) > 0
    assert any(f"{max(used):,} of 4,194,304 bytes" in (item.text or "") for item in root)
    highest = min(float(item.get("y")) for item in boxes)
    assert highest == pytest.approx(float(root.find(f"{SVG}line").get("y1")), abs=0.2)


def test_an_unknown_picture_is_an_error_that_lists_all(profile):
    with pytest.raises(ValueError, match="no picture 'x'.*timeline, top_ops, roofline, memory"):
        profile.to_svg("x")


def test_names_that_xml_does_not_have_are_in_the_pictures(profile):
    hostile = "\x00<b>&\ud800\n\"'"
    ops = tuple(replace(op, origin=hostile, label=hostile) for op in profile.ops)
    events = tuple(replace(event, label=hostile) for event in profile.events)
    kept = tuple(replace(item, label=hostile) for item in profile.allocations)
    other = replace(profile, ops=ops, events=events, allocations=kept)
    assert len(PICTURES) == 4
    for name in PICTURES:
        root = ElementTree.fromstring(other.to_svg(name))
        assert root.tag == f"{SVG}svg" and not root.findall(f".//{SVG}b")


@support.needs_reals
def test_results_are_the_same_and_recording_is_off_afterwards(model):
    machine = VirtualMachine(model.executable, tvm.cpu())
    x = tvm.runtime.tensor(INPUT)
    expected = machine["main"](x).numpy()
    (on_host,) = run_on_host(model.module, "main", [INPUT])
    np.testing.assert_allclose(expected, on_host, rtol=1e-2, atol=1e-2)
    with Recorder(machine) as recorder:
        np.testing.assert_array_equal(recorder.call("main", x).numpy(), expected)
    recording = recorder.recording
    assert [len(region["profile"]["calls"]) for region in recording["regions"]] == [1, 1]
    count = len(recording["host"])
    assert count > 0
    np.testing.assert_array_equal(machine["main"](x).numpy(), expected)
    assert len(recording["host"]) == count
    assert recorded(machine) == [0, 0]


def recorded(machine):
    """Return how many calls each region has recorded."""
    modules = region_modules(machine.module).values()
    return [len(json.loads(str(module["profile"]()))["calls"]) for module in modules]


def test_neither_reading_events_nor_garbage_counts_as_time(model):
    machine = VirtualMachine(model.executable, tvm.cpu())
    with Recorder(machine) as recorder:
        assert not gc.isenabled()
        recorder.call("main", tvm.runtime.tensor(INPUT))
    assert gc.isenabled()
    (begin, end), *_ = recorder.recording["calls"]
    for region in recorder.recording["regions"]:
        for call in region["profile"]["calls"]:
            assert begin < call["begin_us"] < call["end_us"] <= call["recorded_us"] < end


@support.needs_reals
def test_an_error_ends_the_recording(model):
    machine = VirtualMachine(model.executable, tvm.cpu())
    recorder = Recorder(machine)
    with pytest.raises(ValueError, match="expect"), recorder:
        recorder.call("main", tvm.runtime.tensor(INPUT.astype("float64")))
    assert recorder.recording["regions"] == []
    machine["main"](tvm.runtime.tensor(INPUT))
    assert recorded(machine) == [0, 0]
    assert backend.profile(model.executable, INPUT).regions[0].calls == 1


def test_wrong_arguments_are_errors_that_say_what_is_right(model, tmp_path):
    def error(kind, *arguments, **settings):
        with pytest.raises(kind) as caught:
            backend.profile(*arguments, **settings)
        return str(caught.value)

    executable = model.executable
    assert "inputs of 'main' are x, and 0 were given" in error(ValueError, executable)
    wrong = error(ValueError, executable, INPUT.astype("float64"))
    assert "'x'" in wrong and "dtype float32" in wrong and "float64 was given" in wrong
    assert "ndim 4" in error(ValueError, executable, INPUT[0])
    assert "no function 'other'" in error(ValueError, executable, INPUT, function="other")
    assert "Input 0 is a str" in error(TypeError, executable, "x")
    assert "calls is 0" in error(ValueError, executable, INPUT, calls=0)
    assert f"compile_for_{BACKEND}" in error(TypeError, 3, INPUT)
    assert f"compile_for_{BACKEND}" in error(TypeError, model.module, INPUT)
    assert "no file" in error(RuntimeError, tmp_path / "nothing.so", INPUT)
    assert "offload_report" in error(TypeError, executable, INPUT, report=3)
    assert "partition" in error(ValueError, executable, INPUT, report=model.module)


def test_a_model_without_regions_has_times_of_the_host():
    x = variable("x", 4)
    executable = compile_for(build([x], lambda emit: emit(on_host(x))))
    profile = backend.profile(executable, np.ones(4, "float32"))
    assert (profile.regions, profile.events, profile.ops) == ((), (), ())
    assert any(on_host.__name__ in item.name for item in profile.host)
    assert_is_trace(profile.to_trace())
    assert backend.Profile.from_json(profile.to_json()) == profile
    assert "0 regions" in profile.summary


def test_a_number_without_dimensions_is_an_input():
    x = variable("x")
    executable = compile_for(build([x], lambda emit: emit(on_host(x))))
    for value in (np.array(2, "float32"), np.float32(2)):
        assert len(backend.profile(executable, value).calls) == 1


def test_an_exported_library_has_the_same_profile(model, profile, tmp_path):
    path = tmp_path / "model.so"
    model.executable.export_library(str(path))
    for given in (path, str(path), tvm.runtime.load_module(str(path))):
        found = backend.profile(given, INPUT, calls=2, report=model.partitioned)
        assert facts(found) == facts(profile)


@support.needs_reals
@needs_devices(2)
def test_each_of_several_npus_has_a_profile(model, profile, tmp_path):
    path = tmp_path / "model.so"
    model.executable.export_library(str(path))
    with DataParallel(path, [0, 1]) as parallel:
        x = np.concatenate([INPUT, INPUT])
        found = parallel.profile(x, report=model.partitioned)
        assert [item.device for item in found] == [0, 1]
        for item in found:
            assert [region.calls for region in item.regions] == [1, 1]
            assert [op.origin for op in item.ops] == [op.origin for op in profile.ops]
            once = [event for event in profile.events if event.call == 0]
            assert list(item.events) == once
        assert min(item.calls[0].begin_us for item in found) == 0
        assert json.loads(trace_of(found))["traceEvents"]
        with pytest.raises(RuntimeError, match="NPU 0 and 1"):
            parallel.profile(x.astype("float64"))


@support.needs_reals
@needs_wheel
def test_a_board_records_for_whoever_is_connected(model, profile, tmp_path):
    for module in ("cloudpickle", "psutil", "tornado"):
        pytest.importorskip(module, reason="TVM's RPC needs it: install the extra 'rpc'")
    from tvm import rpc

    path = tmp_path / "model.so"
    model.executable.export_library(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_USE_RUNTIME_LIB", "1")
        server = rpc.Server("127.0.0.1", silent=True)
    try:
        session = rpc.connect("127.0.0.1", server.port, session_timeout=60)
        found = backend.profile(path, INPUT, calls=2, report=model.partitioned, session=session)
        assert facts(found) == facts(profile)
        assert {item.name for item in found.host} == {item.name for item in profile.host}
        remote = session.load_module(path.name)
        with pytest.raises(ValueError, match="give the session"):
            backend.profile(remote, INPUT)
        assert len(backend.profile(remote, INPUT, session=session).calls) == 1
        with pytest.raises(RuntimeError, match="inputs of 'main' are x, and 0"):
            backend.profile(remote, session=session)
        with pytest.raises(RuntimeError, match="expect Tensor with dtype float32"):
            backend.profile(remote, INPUT.astype("float64"), session=session)
    finally:
        server.terminate()
