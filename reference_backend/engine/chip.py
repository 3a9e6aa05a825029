# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.backend.table.chip`."""

from .backend.table.chip import DTYPES as DTYPES
from .backend.table.chip import ROUNDINGS as ROUNDINGS
from .backend.table.chip import Chip as Chip
from .backend.table.chip import Limits as Limits
from .backend.table.chip import Requantize as Requantize
from .backend.table.chip import Takes as Takes
