# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.workbench.conformance.extract`."""

from ..workbench.conformance.extract import FORMAT_VERSION as FORMAT_VERSION
from ..workbench.conformance.extract import PLACEMENTS as PLACEMENTS
from ..workbench.conformance.extract import CaseFile as CaseFile
from ..workbench.conformance.extract import extract as extract
from ..workbench.conformance.extract import misfit as misfit
from ..workbench.conformance.extract import parts as parts
from ..workbench.conformance.extract import read_arrays as read_arrays
from ..workbench.conformance.extract import read_module as read_module
