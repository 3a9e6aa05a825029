# SPDX-License-Identifier: Apache-2.0
"""Passes of the vendor's around the engine's canonicalization.

`tvm_example_npu.engine.passes.pipeline` lists the engine's passes with their names, in order.
"""

from collections.abc import Sequence

import tvm

BEFORE: Sequence[tvm.transform.Pass] = ()
"""Module passes that run on the model as it was imported."""

AFTER: Sequence[tvm.transform.Pass] = ()
"""Module passes that run on the canonical model, before it is partitioned."""

DISABLED: Sequence[str] = ()
"""Names of canonicalization passes to leave out, "FoldBatchNorm" for example."""
