# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.backend.table.table`."""

from .backend.table.table import Decline as Decline
