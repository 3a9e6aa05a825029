"""Writes pages of reports with many ops; the tests call it in an environment.

Usage: ``python write_pages.py DIRECTORY``.
"""

import sys
from pathlib import Path

from tvm_example_npu.engine.origins import Origin
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


def main() -> None:
    """Write the pages."""
    number = {"snr_db": "inf", "cosine": 1.0, "largest_error": 0.0, "largest_error_steps": None}
    layer = {**number, "name": "lv0", "float_name": "lv0", "ops": ["add"], "runs_as": ["int8"]}
    accuracy = {
        "layers": [{**layer, "composites": ["add"]}],
        "outputs": [number],
        "differences": [],
    }
    for count in (10, 500, 2000):
        report = report_of(count)
        regions = [region.symbol for region in report.regions]
        ops = [
            {"region": op.region, "label": f"relax.add ({op.name})", "op": "relax.add"}
            | {"variable": op.name, "origin": str(op.origin), "composite": "add", "span": 1234}
            | {"busy": {"mac": 1000}, "traffic": {}, "share": 1 / (count - 2)}
            for op in report.offloaded
        ]
        starts = dict.fromkeys(regions, 0)
        events = []
        for op in ops:
            begin = starts[op["region"]]
            starts[op["region"]] = end = begin + 1234
            events.append(
                {"region": op["region"], "call": 0, "name": "add", "label": op["label"]}
                | {"engine": ("dma", "mac")[len(events) % 2], "begin": begin, "end": end}
                | {"busy": 1000, "waits_for": "dma", "traffic": {}}
            )
        profile = {
            "unit": "cycles",
            "totals": {"calls": 1, "busy": {"mac": 1000}, "traffic": {"dram": [4321, 1]}},
            "regions": [
                {"symbol": symbol, "runs": [{"begin_us": 1.0 * at, "span": starts[symbol]}]}
                for at, symbol in enumerate(regions)
            ],
            "ops": ops,
            "events": events,
        }
        path = Path(sys.argv[1]) / f"{count}.html"
        report.to_html(path, title="A <b>chain", profile=profile, accuracy=accuracy)


if __name__ == "__main__":
    main()
