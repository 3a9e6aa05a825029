# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.backend.table.patterns`."""

from .backend.table.patterns import TABLE as TABLE
