# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.workbench.conformance.cases`."""

from ..workbench.conformance.cases import OPS as OPS
