# SPDX-License-Identifier: Apache-2.0
"""The names and the defaults of this backend, for the engine."""

from typing import Any

BACKEND = "example_npu"
DISTRIBUTION = "tvm-example-npu"
DEFAULTS: dict[str, Any] = {
    "bind_constants": True,
    "on_decline": "host",
}
# Relax op -> op of the catalogue, for ops that were not selected.
NOT_SELECTED: dict[str, str] = {}
# Op of the catalogue -> its inputs and the chains of Relax ops that it stands for, for the same.
CHAINS_NOT_SELECTED: dict[str, Any] = {}
