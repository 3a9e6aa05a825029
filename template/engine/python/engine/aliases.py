# SPDX-License-Identifier: Apache-2.0
"""Types with open parts that several modules use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type."""

JsonObject = dict[str, Any]
"""An object of JSON that is being written, or was just read."""

JsonFields = Mapping[str, Any]
"""An object of JSON of which only known fields are read."""
