"""Writes report pages with many ops; the tests call it in an environment.

Usage: ``python write_pages.py DIRECTORY``.
"""

import sys
from dataclasses import replace
from pathlib import Path

from tvm_example_npu.engine.origins import Origin
from tvm_example_npu.engine.profiling import Profile
from tvm_example_npu.engine.report import Border, OpPlacement, RegionPlacement, Report


def report_of(count: int) -> Report:
    """Return a chain with shortcuts: two regions, and two ops on the host."""
    half = count // 2
    ops = []
    for index in range(count):
        host = index in (half, count - 1)
        ops.append(
            OpPlacement(
                function="main",
                name=f"lv{index}",
                op="relax.nonzero" if host else "relax.add",
                placement="host" if host else "npu",
                origin=Origin(f"name{index}<i>"),
                region=None if host else f"region_{int(index > half)}",
                composite=None if host else "add",
                code="not_in_table" if host else None,
                reason="The table has no such op." if host else None,
                remedy="Write it otherwise." if host else None,
                macs=100,
                bytes_read=64,
                bytes_written=32,
                runs_in="float32",
                reads=tuple(item for item in (index - 1, index - 7) if item >= 0),
                arguments=("float32[1, 8]",),
                result="float32[1, 8]",
                attributes={"axis": "[0, 1]"},
            )
        )
    border = (Border("x", "float32[1, 250]", 1000),)
    regions = tuple(
        RegionPlacement(f"region_{index}", "main", half, ("add",), 100, 64, 32, border, border)
        for index in range(2)
    )
    return Report(tuple(ops), regions)


def weights_report(layers: int) -> Report:
    """Return a chain in which each op reads its own weight; all weights come first."""
    report = report_of(2 * layers)
    ops = [replace(op, placement="npu", region="region_0", code=None) for op in report.ops]
    for index in range(layers):
        ops[index] = replace(ops[index], reads=())
        before = (layers + index - 1,) if index else ()
        ops[layers + index] = replace(ops[layers + index], reads=(index, *before))
    return Report(tuple(ops), report.regions[:1])


def profile_of(report: Report) -> Profile:
    """Return a profile of a device with two engines, which runs one op after the other."""
    recorded = []
    for at, region in enumerate(report.regions):
        mine = [op for op in report.offloaded if op.region == region.symbol]
        labels = [f"relax.add ({op.name})" for op in mine]
        events = [
            {"name": "add", "label": label, "engine": ("dma", "mac")[index % 2]}
            | {"begin": 1234 * index, "end": 1234 * (index + 1), "busy": 1000, "waits_for": "dma"}
            | {"traffic": {"dram": [64, 32]}, "operations": 100 * (index % 7 + 1)}
            for index, label in enumerate(labels)
        ]
        allocations = [
            {"memory": "scratchpad", "label": label, "offset": 64 * (index % 3), "bytes": 64}
            | {"begin": 1234 * index, "end": 1234 * (index + 2)}
            for index, label in enumerate(labels)
        ]
        call = {"begin_us": 10.0 * at, "end_us": 10.0 * at + 9}
        call |= {"events": events, "allocations": allocations}
        peaks = {"operations": 2.0, "memories": {"dram": {"bytes": 0, "bytes_per_unit": 0.1}}}
        told = {"unit": "cycles", "ticks_per_us": 1000.0, "peaks": peaks, "calls": [call]}
        recorded.append({"symbol": region.symbol, "counters": {}, "profile": told})
    return Profile.from_recording({"calls": [[0.0, 20.0]], "host": [], "regions": recorded}, report)


def main() -> None:
    """Write the pages."""
    number = {"snr_db": "inf", "cosine": 1.0, "largest_error": 0.0, "largest_error_steps": None}
    layer = {**number, "name": "lv0", "float_name": "lv0", "ops": ["add"], "runs_as": ["int8"]}
    accuracy = {
        "version": 1,
        "layers": [{**layer, "composites": ["add"]}],
        "outputs": [number],
        "differences": [],
    }
    for count in (10, 500, 2000):
        report = report_of(count)
        profile = profile_of(report).to_dict()
        path = Path(sys.argv[1]) / f"{count}.html"
        report.to_html(path, title="A <b>chain", profile=profile, accuracy=accuracy)
    weights_report(120).to_html(Path(sys.argv[1]) / "weights.html")


if __name__ == "__main__":
    main()
