# SPDX-License-Identifier: Apache-2.0
"""Types with open parts that several modules use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type."""

Real = np.floating[Any]
"""A number of any floating type of NumPy."""

Attributes = Mapping[str, Any]
"""The attributes of a call by name, each of the type that its op gives it."""

JsonObject = dict[str, Any]
"""An object of JSON that is being written, or was just read."""

JsonFields = Mapping[str, Any]
"""An object of JSON of which only known fields are read."""
