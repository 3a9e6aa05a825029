# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.backend.compiling.parallel`."""

from .backend.compiling.parallel import DataParallel as DataParallel
