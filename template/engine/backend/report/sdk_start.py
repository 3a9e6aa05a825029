# SPDX-License-Identifier: Apache-2.0
"""What to do where the SDK's tool does not start: no op is at fault, so it is told once."""

from __future__ import annotations

from collections.abc import Iterable

from ..settings.options import PREFIX

_BEGINNINGS = tuple(
    f"the SDK's tool {what} "
    for what in ("does not start:", "cannot be started:", "is neither", "begins with")
)
"""Sentences of the driver kit."""


def sdk_start_remedy(reasons: Iterable[str | None]) -> str | None:
    """Return what to do if the SDK's tool does not start.

    Parameters
    ----------
    reasons
        Why ops are not on the NPU.

    Returns
    -------
    remedy
        Why it does not start, and what to do; None if no reason is about that.
    """
    for reason in filter(None, reasons):
        for beginning in _BEGINNINGS:
            at = reason.find(beginning)
            if at >= 0:
                return (
                    f"T{reason[at + 1 :]}. Name the SDK's Python: export "
                    f'{PREFIX}SDK_COMMAND="/path/to/python /path/to/vendor/sdk/compile.py"'
                )
    return None
