# SPDX-License-Identifier: Apache-2.0
"""A report as text: a line for each op, and for a terminal what fits its width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..shared.backend import BACKEND
from ..shared.messages import printable
from ..shared.terminal import Indented, TextTable, aligned, short

if TYPE_CHECKING:
    from .report import OpPlacement, RegionPlacement, Report, Share

MANY = 40
"""A terminal shows all ops of a report with no more."""
_LARGEST = 10
_NAMES = 12
"""How many ops, regions, and names of ops with the same reason a terminal shows of many."""

_HEADER = ("op", "name", "placement", "runs in", "MACs", "composite, or why it is on the host")


def text_of(report: Report) -> str:
    """Return all of a report as plain text, each op with its reason in one line.

    A table of all ops, the regions, what would move ops to the NPU, and the summary.
    """
    title = _titles(report)
    rows = [
        (
            op.op,
            title(op),
            op.region or op.placement,
            op.runs_in or "",
            f"{op.macs:,}" if op.macs else "",
            _why(op),
        )
        for op in report.ops
    ]
    share = report.totals["macs"]
    regions = [
        f"region {region.symbol}{_driver_of(region)}: {count_of(region.ops, 'op')}, "
        f"{_macs_of(region, share)}"
        f"{region.bytes_in:,} bytes in and {region.bytes_out:,} bytes out at each call"
        f"{_states_of(region)}"
        for region in report.regions
    ]
    lines = [*aligned([_HEADER, *rows]), *regions, *_warnings(report)]
    lines += advice((*report.on_host, *report.wider))
    lines += [*_symbols(report), *_functions(report), report.summary, *_verification(report)]
    return "\n".join(map(printable, lines))


def blocks_of(report: Report, everything: bool) -> Iterator[str | Indented | TextTable]:
    """Generate what a terminal shows: tables without sentences, and the reasons below.

    `everything`: whether to show all ops, also of many.
    """
    everything = everything or len(report.ops) <= MANY
    known = report.ops
    if not everything:
        largest = sorted((op for op in known if op.macs), key=lambda op: -(op.macs or 0))
        known = tuple(largest[:_LARGEST])
    if known:
        title = "" if everything else f"The {len(known)} ops with the most MACs"
        yield _table(report, known, title)
    yield from _reasons(report, everything)
    if report.regions:
        yield _regions(report, everything)
    yield from map(Indented, _warnings(report))
    yield from map(Indented, _symbols(report))
    yield from _functions(report)
    yield report.summary
    yield from _verification(report)
    if not everything:
        yield Indented(
            f"{len(report.ops)} ops: --all, or all_ops=True of show, shows all of them here; so do "
            "the page (--html FILE) and plain text, as in a pipe."
        )


def advice(ops: Sequence[OpPlacement]) -> list[str]:
    """Return what would move ops to the NPU, or to integers, each advice once."""
    told = [(op.code, op.remedy) for op in ops if not op.bookkeeping]
    told += [(op.wider_code, op.wider_remedy) for op in ops]
    return list(dict.fromkeys(f"[{code}] {remedy}" for code, remedy in told if remedy))


def _table(report: Report, ops: Sequence[OpPlacement], title: str) -> TextTable:
    """Return a table of ops; the columns that are left out first stand last."""
    name, share = _titles(report), report.totals["macs"]
    rows = [
        (
            op.op.removeprefix("relax."),
            name(op),
            _short_symbol(op.region) if op.region else op.placement,
            _amount(op.macs),
            _percent(op.macs, share),
            op.runs_in or "",
            op.composite or "",
            _amount(_bytes(op)),
        )
        for op in ops
    ]
    styles = [
        "dim" if op.bookkeeping else "green" if op.placement == "npu" else "yellow" for op in ops
    ]
    header = ("op", "name", "runs on", "MACs", "%", "runs in", "composite", "bytes")
    return TextTable(header, rows, styles, title, figures=(3, 4, 7), kept=3, folded=(1,))


def _reasons(report: Report, everything: bool) -> Iterator[str | Indented]:
    """Generate why ops are on the host, wider than asked for, or left, each sentence once."""
    name = _titles(report)
    found: dict[str, dict[str, list[str]]] = {}
    for op in report.ops:
        for driver, reason in op.left_by.items():
            found.setdefault(f"left by '{driver}'", {}).setdefault(reason, []).append(name(op))
        if op.placement == "host":
            head = f"[{op.code}] {'' if op.bookkeeping else op.remedy or ''}".rstrip()
            found.setdefault(head, {}).setdefault(op.reason or "", []).append(name(op))
        if op.wider:
            head = f"[{op.wider_code}] wider than asked for. {op.wider_remedy or ''}".rstrip()
            why = f"asked for: {op.asked}; {op.wider}" if op.asked else op.wider
            found.setdefault(head, {}).setdefault(why, []).append(name(op))
    for head, sentences in found.items():
        yield head
        for sentence, ops in sentences.items():
            ops = list(dict.fromkeys(ops))
            yield Indented(sentence, 2)
            more = 0 if everything else max(0, len(ops) - _NAMES)
            names = ", ".join(ops[: len(ops) - more]) + (f", and {more} more" if more else "")
            yield Indented(names, 4, "yellow")


def _regions(report: Report, everything: bool) -> TextTable:
    """Return a table of the regions; of many, those with the most bytes across their borders."""
    shown = list(report.regions)
    title = "Regions: the bytes that cross their borders at each call"
    if not everything and len(shown) > _LARGEST:
        shown.sort(key=lambda region: -region.bytes_in - region.bytes_out)
        title = f"The {_LARGEST} of {len(shown)} regions with the most bytes across their borders"
        shown = shown[:_LARGEST]
    share = report.totals["macs"]
    rows = [
        (
            f"{region.symbol}{_driver_of(region)}",
            str(region.ops),
            _amount(region.macs),
            _percent(region.macs, share),
            _amount(region.bytes_in),
            _amount(region.bytes_out),
        )
        for region in shown
    ]
    header = ("region", "ops", "MACs", "%", "bytes in", "bytes out")
    return TextTable(header, rows, title=title, figures=(1, 2, 3, 4, 5), kept=6)


def _warnings(report: Report) -> list[str]:
    """Return what the driver says of the regions."""
    return [
        f"region {region.symbol}: {sentence}"
        for region in report.regions
        for sentence in (*(f"the driver warns: {it}" for it in region.warnings), *region.notes)
    ]


def _symbols(report: Report) -> list[str]:
    """Return the numbers that stand for symbolic sizes in MACs and bytes."""
    if not report.symbols:
        return []
    bounds = ", ".join(f"{name} = {bound}" for name, bound in report.symbols.items())
    return [f"open sizes count with their bounds: {bounds} (options symbol_bound, symbol_bounds)"]


def _functions(report: Report) -> list[str]:
    """Return each function in a line, where there are several, and what a session keeps."""
    apart = report.functions
    lines = [f"function {it.ops[0].function}: {it.summary}" for it in apart if len(apart) > 1]
    if report.shared:
        lines.append(f"functions share {report.shared:,} bytes of constants")
    if report.states:
        kept = count_of(len(report.states), "state")
        lines.append(f"a session keeps {sum(report.states.values()):,} bytes: {kept}")
    return lines


def _states_of(region: RegionPlacement) -> str:
    """Return how many of the bytes that cross a region's border are those of states."""
    read, written = region.state_bytes_in, region.state_bytes_out
    return f", of which states are {read:,} and {written:,}" if read or written else ""


def _verification(report: Report) -> list[str]:
    return [] if report.verification is None else [str(report.verification)]


def _titles(report: Report) -> Callable[[OpPlacement], str]:
    """Return what names ops: with their function where there are several."""
    alone = len({op.function for op in report.ops}) == 1
    return lambda op: op.title if alone else f"{op.function}.{op.title}"


def _why(op: OpPlacement) -> str:
    why = op.composite if op.placement == "npu" else f"[{op.code}] {op.reason}"
    for driver, reason in op.left_by.items():
        why = f"{why}; '{driver}' left it: {reason}"
    return f"{why} (asked: {op.asked}; [{op.wider_code}] {op.wider})" if op.wider else why or ""


def _driver_of(region: RegionPlacement) -> str:
    """Return the driver of a region, where there are several."""
    return f" on '{region.driver}'" if region.driver else ""


def _macs_of(region: RegionPlacement, share: Share) -> str:
    if region.macs is None:
        return ""
    percent = _percent(region.macs, share)
    return f"{region.macs:,} MACs, {percent} %; " if percent else f"{region.macs:,} MACs; "


def _percent(macs: int | None, share: Share) -> str:
    """Return the part of all MACs; "" if they are not known."""
    return "" if not macs or share.unknown else f"{100 * macs / share.total:.1f}"


def _bytes(op: OpPlacement) -> int | None:
    """Return the bytes that an op reads and writes; none if a part is not known."""
    read, written = op.bytes_read, op.bytes_written
    return None if read is None or written is None else read + written


def _amount(number: int | None) -> str:
    """Return a number as text: nothing for 0, and a question mark for what is not known."""
    return "?" if number is None else short(number) if number else ""


def _short_symbol(symbol: str) -> str:
    return symbol.removeprefix(f"{BACKEND}_")


def count_of(number: int, what: str) -> str:
    """Return a number of things, in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
