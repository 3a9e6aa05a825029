# SPDX-License-Identifier: Apache-2.0
"""The essential line of the errors of libraries."""

from __future__ import annotations


def last_line(error: Exception | str) -> str:
    """Return the last line of a message, which usually says what is wrong.

    Parameters
    ----------
    error
        An error, or its message.

    Returns
    -------
    line
        The last line that is not empty; of an error without a message, its kind.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines:
        return lines[-1]
    return "" if isinstance(error, str) else type(error).__name__
