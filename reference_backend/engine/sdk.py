# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.backend.table.sdk`."""

from .backend.table.sdk import ask_driver as ask_driver
