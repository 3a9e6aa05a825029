# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m tvm_example_npu --help`."""

import sys

from .engine.backend.commands.main import main

sys.exit(main())
