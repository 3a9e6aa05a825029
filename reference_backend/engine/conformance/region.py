# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.workbench.conformance.region`."""

from ..workbench.conformance.region import DeclinedRegion as DeclinedRegion
from ..workbench.conformance.region import Region as Region
