# SPDX-License-Identifier: Apache-2.0
"""Other tables in the place of the backend's; `integers_only` has one without real numbers."""

from dataclasses import replace

from tvm.relax.transform import FusionPattern

from backend.engine.backend.compiling import codegen
from backend.engine.backend.regions import composites, partition
from backend.engine.backend.shared.backend import BACKEND, vendor
from backend.engine.backend.table import patterns
from backend.engine.backend.table.chip import DTYPES, REALS
from backend.engine.backend.table.table import Table
from backend.engine.workbench import quantization
from backend.engine.workbench.quantization import planning
from backend.patterns import OPS


def integers_of_chip() -> tuple[str, ...]:
    """Return the chip's types without those of real numbers."""
    return tuple(name for name in patterns.TABLE.chip.dtypes or DTYPES if name not in REALS)


def table_without_reals() -> Table:
    """Return the table of the same chip with its types of integers alone."""
    chip = patterns.TABLE.chip
    return Table(
        OPS,
        vendor("capabilities", "DECLINED_BY_SDK", None),
        chip=replace(chip, dtypes=integers_of_chip()),
        limits=vendor("capabilities", "LIMITS", None),
        extra_ops=vendor("capabilities", "EXTRA_OPS", ()),
    )


def without_reals(monkeypatch) -> Table:
    """Let the partitioner and the quantizer use that table."""
    return put(monkeypatch, table_without_reals())


def put(monkeypatch, table: Table) -> Table:
    """Let the partitioner and the quantizer use a table."""
    made = [FusionPattern(*pattern) for pattern in patterns.make_patterns(table)]
    monkeypatch.setattr(composites, "get_patterns_with_prefix", {f"{BACKEND}.": made}.__getitem__)
    for module in (codegen, partition, quantization, planning):
        monkeypatch.setattr(module, "TABLE", table)
    return table
