# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.workbench.conformance.ledger`."""

from ..workbench.conformance.ledger import expected_failures as expected_failures
