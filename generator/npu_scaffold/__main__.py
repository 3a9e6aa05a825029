"""``python -m npu_scaffold`` is ``npu-scaffold``."""

import sys

from .cli import main

sys.exit(main())
