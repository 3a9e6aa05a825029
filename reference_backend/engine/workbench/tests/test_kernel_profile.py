# SPDX-License-Identifier: Apache-2.0
"""What a profile has of programs of instructions: kernels, scalar code, share of the peak."""

import json
from dataclasses import replace

import pytest

import backend
from backend.engine.backend.ir.origins import Origin
from backend.engine.backend.report.report import OpPlacement, Report

PRODUCT, PLACE = "relax.matmul (lv), relax.add (lv1)", "relax.argmax (lv2)"


def event(name, label, engine, begin, end, operations=0):
    return {
        **{"name": name, "label": label, "engine": engine, "begin": begin, "end": end},
        **{"busy": end - begin, "waits_for": None, "traffic": {}, "operations": operations},
    }


def recording(peak=100.0, counters=("busy_cycles.control.scalar",)):
    events = [
        event("fused", PRODUCT, "load", 0, 20),
        event("fused", PRODUCT, "matrix", 10, 60, 4000),
        event("extreme", PLACE, "vector", 50, 80),
        event("place", PLACE, "control.scalar", 80, 100),
    ]
    own = {"memory": "acc", "label": PRODUCT, "offset": 64, "bytes": 32, "begin": 10, "end": 60}
    call = {"begin_us": 0.0, "end_us": 5.0, "events": events, "allocations": [own]}
    peaks = {"operations": peak, "memories": {"acc": {"bytes": 128, "bytes_per_unit": 0}}}
    data = {"unit": "cycles", "ticks_per_us": 0, "calls": [call, call], "peaks": peaks}
    region = {"symbol": "r", "counters": dict.fromkeys(counters, 40), "profile": data}
    return {"calls": [[0.0, 5.0], [5.0, 10.0]], "host": [], "regions": [region]}


@pytest.fixture(scope="module")
def profile():
    return backend.Profile.from_recording(recording())


def test_kernels_add_up_to_the_program(profile):
    (region,) = profile.regions
    times = {kernel.name: kernel.attributed for kernel in profile.kernels}
    assert times == {"fused": 120, "extreme": 40, "place": 40}
    assert sum(times.values()) == region.span == sum(op.attributed for op in profile.ops) == 200
    for engine, busy in profile.busy.items():
        assert sum(kernel.busy.get(engine, 0) for kernel in profile.kernels) == busy
    assert [kernel.label for kernel in profile.kernels] == [PRODUCT, PLACE, PLACE]
    assert [kernel.active for kernel in profile.kernels] == [120, 60, 40]


def test_products_have_their_share_of_the_peak(profile):
    fused, extreme, _ = profile.kernels
    assert fused.of_peak == round(8000 / (120 * 100), 6) and extreme.of_peak is None
    assert profile.ops[0].of_peak == fused.of_peak
    assert profile.regions[0].of_peak == profile.totals["of_peak"] == 8000 / (200 * 100)
    unknown = backend.Profile.from_recording(recording(peak=0))
    assert unknown.totals["of_peak"] is unknown.ops[0].of_peak is None
    assert "peak;" not in unknown.summary


def test_scalar_code_has_its_share_of_the_time(profile):
    assert profile.totals["scalar"] == 40 and profile.totals["scalar_share"] == 0.2
    assert profile.summary.endswith(
        "200 cycles on the NPU, 40.0 % of its peak; scalar code: 20.0 % of cycles"
    )
    table = str(profile).split("\n\n")[2].splitlines()
    assert table[0].split() == [
        *("kernel", "of", "share", "cycles", "of", "peak", "scalar", "busy"),
    ]
    assert "100.0%" in next(line for line in table if line.startswith("place "))
    other = backend.Profile.from_recording(recording(counters=()))
    assert other.kernels == ()
    assert other.totals["scalar"] is other.totals["scalar_share"] is None
    assert "scalar code" not in other.summary and "kernel " not in str(other)


def test_the_profile_of_a_program_is_data(profile):
    data = json.loads(profile.to_json())
    assert backend.Profile.from_json(json.dumps(data)) == profile
    assert [kernel["name"] for kernel in data["kernels"]] == ["fused", "extreme", "place"]
    del data["kernels"]
    assert backend.Profile.from_json(json.dumps(data)) == replace(profile, kernels=())


def test_a_kernel_of_several_ops_has_the_names_of_all():
    def op(kind, name, origin):
        placed = OpPlacement("main", name, f"relax.{kind}", "npu", Origin(kind, origin))
        return replace(placed, region="r", composite=f"{kind}s")

    ops = (op("matmul", "lv", "fc"), op("add", "lv1", "sum"), op("argmax", "lv2", "digit"))
    named = backend.Profile.from_recording(recording(), Report(ops))
    assert [(it.title, it.composite) for it in named.ops] == [
        (", ".join(str(each.origin) for each in ops[:2]), "matmuls, adds"),
        (str(ops[2].origin), "argmaxs"),
    ]
    assert (named.ops[0].op, named.ops[0].variable) == ("relax.add", "lv1")


def test_the_memory_map_has_what_lies_where(profile):
    assert profile.memory == {"acc": 96}
    picture = profile.to_svg("memory")
    assert "acc: 96 of 128 bytes in use at most" in picture and "32 bytes at 64" in picture
