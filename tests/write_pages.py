"""Writes report pages with many ops; the tests call it in an environment.

Usage: ``python write_pages.py DIRECTORY``.
"""

import sys
from dataclasses import replace
from pathlib import Path

from tvm_example_npu.engine.backend.ir.origins import Origin
from tvm_example_npu.engine.backend.profiling import Profile
from tvm_example_npu.engine.backend.report.report import (
    Border,
    OpPlacement,
    RegionPlacement,
    Report,
)

REASON = "nonzero: 'x1' is float64[1, 8]; supported: float32, float16, int32, int64, int8, bool"

TUPLE = "(float32[1, 8, 16, 4], int64[1, 8, 16, 4])"


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
                region=None if host else f"example_npu_main_{int(index > half)}",
                composite=None if host else "add_relu",
                code="not_in_table" if host else None,
                reason=REASON if host else None,
                remedy="Write it otherwise." if host else None,
                macs=100,
                bytes_read=64,
                bytes_written=32,
                runs_in="float32",
                reads=tuple(item for item in (index - 1, index - 7) if item >= 0),
                arguments=("float32[1, 8]",),
                result=TUPLE if index == half else "float32[1, 8]",
                attributes={"axis": "[0, 1]"},
            )
        )
    ops[0] = replace(ops[0], inputs=("x", "y"))
    border = (Border("x", "float32[1, 250]", 1000), Border("y", "int64[1, 8, 16, 4]", 4096))
    leaving = (Border("lv1", "float32[1, 8]", 32),)
    # A part of the tuple of the op on the host in the middle is no op.
    part = Border(f"lv{count}", "int64[1, 8, 16, 4]", 4096)
    regions = tuple(
        RegionPlacement(
            symbol=f"example_npu_main_{index}",
            function="main",
            ops=half,
            composites=("add_relu",),
            macs=100,
            bytes_read=64,
            bytes_written=32,
            inputs=entering,
            outputs=leaving,
            warnings=("relax.add (name1<i>): its range is wide",)[index:],
        )
        for index, entering in enumerate((border, (*border, part)))
    )
    return Report(tuple(ops), regions)


def weights_report(layers: int) -> Report:
    """Return a chain in which each op reads its own weight; all weights come first."""
    report = report_of(2 * layers)
    region = report.regions[0].symbol
    ops = [replace(op, placement="npu", region=region, code=None) for op in report.ops]
    for index in range(layers):
        ops[index] = replace(ops[index], reads=())
        before = (layers + index - 1,) if index else ()
        ops[layers + index] = replace(ops[layers + index], reads=(index, *before))
    return Report(tuple(ops), report.regions[:1])


def unknown_report() -> Report:
    """Return a report in which the amounts of an op on the host are not known."""
    report = report_of(10)
    ops = [*report.ops[:-1], replace(report.ops[-1], macs=None, bytes_read=None)]
    return Report(tuple(ops), report.regions)


def profile_of(report: Report, calls: int = 1, counter: str = "") -> Profile:
    """Return a profile of a device with two engines, which runs one op after the other."""
    counters = dict.fromkeys(filter(None, [counter]), 0)
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
        runs = [
            {"begin_us": begin, "end_us": begin + 9}
            | {"events": events, "allocations": allocations if begin < 20 else []}
            for begin in (20.0 * call + 10.0 * at for call in range(calls))
        ]
        peaks = {"operations": 2.0, "memories": {"dram": {"bytes": 0, "bytes_per_unit": 0.1}}}
        told = {"unit": "cycles", "ticks_per_us": 1000.0, "peaks": peaks, "calls": runs}
        recorded.append({"symbol": region.symbol, "counters": counters, "profile": told})
    model = [[20.0 * call, 20.0 * call + 19.5] for call in range(calls)]
    host = [["vm.builtin.alloc_storage", begin + 9.2, begin + 9.7] for begin, _ in model]
    return Profile.from_recording({"calls": model, "host": host, "regions": recorded}, report)


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
    folder = Path(sys.argv[1])
    weights_report(120).to_html(folder / "weights.html")
    unknown_report().to_html(folder / "unknown.html")
    report = report_of(10)
    profile = profile_of(report, 3, "busy_cycles.dma.scalar").to_dict()
    report.to_html(folder / "calls.html", profile=profile)


if __name__ == "__main__":
    main()
