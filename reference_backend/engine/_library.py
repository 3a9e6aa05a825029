# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.backend.libraries._library`."""

from .backend.libraries._library import ANY_TVM as ANY_TVM
from .backend.libraries._library import IN_TREE as IN_TREE
from .backend.libraries._library import KNOWN_TVM as KNOWN_TVM
from .backend.libraries._library import LoadError as LoadError
from .backend.libraries._library import find as find
from .backend.libraries._library import load as load
from .backend.libraries._library import loaded as loaded
from .backend.libraries._library import open_library as open_library
from .backend.libraries._library import version as version
