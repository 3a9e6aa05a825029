# SPDX-License-Identifier: Apache-2.0
"""Puts the author's names into a profile, and checks that a report is of the same model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .parts import HostCall, Run

if TYPE_CHECKING:
    from ..report.report import OpPlacement, Report
    from .profiles import Profile

_KERNELS = {"astype": "cast", "concat": "concatenate", "permute_dims": "transpose"}
"""TVM's names of kernels that differ from the op's name."""
# A report's words for the call of a kernel.
_CALLED = re.compile(r"the kernel '([^']+)'")


def split_label(label: str | None) -> tuple[str | None, str | None]:
    """Return op and variable of a label such as "relax.nn.relu (lv3)", else the label and None.

    What is computed by one kernel has the labels of several ops: they are those of the last one.
    """
    match = re.fullmatch(r"(\S+) \((.*)\)", _labels(label)[-1])
    return (match[1], match[2]) if match is not None else (label, None)


def _labels(label: str | None) -> list[str]:
    return re.split(r"(?<=\)), ", label or "")


def mismatch(profile: Profile, report: Report) -> str | None:
    """Say why a profile does not belong to the model of a report, or None if it does."""
    ran, reported = (
        {region.symbol for region in items} for items in (profile.regions, report.regions)
    )
    if ran != reported:
        return f"the profile has {_listed(ran)}, and the report {_listed(reported)}"
    placed = {(op.region, op.name): op.op for op in report.ops}
    for op in profile.ops:
        if op.variable is not None and placed.get((op.region, op.variable)) != op.op:
            return f"the profile has {op.label} in {op.region}, and the report does not"
    return None


def require_match(profile: Profile, report: Report, which: str = "") -> None:
    """Refuse a profile of another model than that of a report."""
    why = mismatch(profile, report)
    if why is not None:
        raise ValueError(
            f"The profile{which} is of another model than the report{which}: {why}. Profile the "
            "model of the report, compiled in the same way."
        )


def _listed(symbols: Iterable[str]) -> str:
    names = sorted(symbols)
    noun = "region" if len(names) == 1 else "regions"
    return f"the {noun} {', '.join(names)}" if names else "no regions"


def named(profile: Profile, report: Report) -> Profile:
    """Return a profile with the names that a report has for its ops and functions of the host."""
    placed = {(op.region, op.name): op for op in report.ops}
    ops = []
    for op in profile.ops:
        places = [
            place
            for label in _labels(op.label)
            if (place := placed.get((op.region, split_label(label)[1] or ""))) is not None
        ]
        if places:
            names = dict.fromkeys(str(place.origin) for place in places if place.origin)
            kinds = dict.fromkeys(place.composite for place in places if place.composite)
            together = ", ".join(names) or None, ", ".join(kinds) or None
            op = replace(op, origin=together[0], composite=together[1])
        ops.append(op)
    host = named_host_calls(profile.host, profile.calls, report)
    return replace(profile, ops=tuple(ops), host=host)


def named_host_calls(
    host: Sequence[HostCall], calls: Sequence[Run], report: Report
) -> tuple[HostCall, ...]:
    """Give functions of the host the names of the ops that they compute.

    A function is named if in each call as many functions of its name ran as the report has ops on
    the host: these then ran in the order of the model.
    """
    ops: dict[str, list[OpPlacement]] = {}
    for op in report.on_host:
        if not op.bookkeeping:
            ops.setdefault(_kernel(op), []).append(op)
    if not ops or not calls:
        return tuple(host)
    ran: dict[str, list[int]] = {}
    for index, call in enumerate(host):
        # TVM numbers kernels of one name: add, add1, add2. Names of C get a prefix: tir_sinh.
        name = re.sub(r"\d+$", "", call.name.rpartition(".")[2]).removeprefix("tir_")
        for kernel in {call.name, name} & ops.keys():
            ran.setdefault(kernel, []).append(index)
    renamed = list(host)
    for kernel, indices in ran.items():
        for in_call in _by_call(indices, host, calls):
            if len(in_call) == len(ops[kernel]):
                for index, op in zip(in_call, ops[kernel], strict=True):
                    if op.origin:
                        renamed[index] = replace(renamed[index], origin=str(op.origin))
    return tuple(renamed)


def _kernel(op: OpPlacement) -> str:
    called = _CALLED.search(op.reason or "") if op.op == "relax.call_tir" else None
    name = op.op.rpartition(".")[2]
    return called[1] if called is not None else _KERNELS.get(name, name)


def _by_call(
    indices: Sequence[int], host: Sequence[HostCall], calls: Sequence[Run]
) -> Iterator[list[int]]:
    """Divide functions among the calls of the model in which they ran."""
    next_index = 0
    for call in calls:
        in_call = []
        while next_index < len(indices) and host[indices[next_index]].begin_us <= call.end_us:
            in_call.append(indices[next_index])
            next_index += 1
        yield in_call
