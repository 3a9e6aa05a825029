# SPDX-License-Identifier: Apache-2.0
"""The names and the defaults of this backend, for the engine."""

from typing import Any

BACKEND = "example_npu"
DISTRIBUTION = "tvm-example-npu"
DEFAULTS: dict[str, Any] = {
    "bind_constants": True,
    "on_decline": "host",
}
# The catalogue's op for each Relax op that was not selected.
NOT_SELECTED: dict[str, str] = {}
