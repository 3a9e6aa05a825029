# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.workbench.conformance.model`."""

from ..workbench.conformance.model import Case as Case
