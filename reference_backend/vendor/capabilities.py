# SPDX-License-Identifier: Apache-2.0
"""What this chip can do, where it differs from what the engine can compile."""

from __future__ import annotations

from typing import Any

from tvm_example_npu.engine.capability import Op


def declined_by_sdk(op: Op, call: Any) -> str | None:
    """Ask the hardware's SDK whether it takes a call that suits the table.

    Here is the place for what a table cannot say, such as a size that the SDK computes. The driver
    is asked once more when a composite, and then a region, is compiled.

    Parameters
    ----------
    op
        The entry that the call suits.
    call
        The Relax call (`tvm.relax.Call`).

    Returns
    -------
    reason
        None if the SDK takes it, or a sentence that says why not: the call stays on the host, and
        the report has the sentence.
    """
    return None
