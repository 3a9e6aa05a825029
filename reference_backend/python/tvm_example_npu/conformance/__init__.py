# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""The conformance kit, which tells whether the backend does what it claims.

`python -m tvm_example_npu conformance` runs it.
Nothing of it is loaded by `import tvm_example_npu`.
"""

from .result import Outcome, Result
from .runner import SUITES, cases_of, run
from .suite import NotRun, Settings

__all__ = ["SUITES", "NotRun", "Outcome", "Result", "Settings", "cases_of", "run"]
