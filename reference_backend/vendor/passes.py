# SPDX-License-Identifier: Apache-2.0
"""The vendor's passes before and after the engine's canonicalization.

`tvm_example_npu.engine.backend.passes.pipeline` lists the engine's passes.
"""

from collections.abc import Sequence

import tvm

BEFORE: Sequence[tvm.transform.Pass] = ()
"""Module passes that run on the imported model."""

AFTER: Sequence[tvm.transform.Pass] = ()
"""Module passes that run on the canonicalized model, before it is partitioned."""

DISABLED: Sequence[str] = ()
"""Names of canonicalization passes to leave out, such as "FoldBatchNorm"."""
