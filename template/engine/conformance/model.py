# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: see `engine.workbench.conformance`."""

from ..workbench.conformance.catalog_cases import Case as Case
