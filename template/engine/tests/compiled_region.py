# SPDX-License-Identifier: Apache-2.0
"""Compiles one region, and calls it like TVM."""

import numpy as np
import pytest

from backend.engine.workbench.conformance import region as kit
from support import OPS, TABLE, first_case, needs_options

_FIRST = first_case(op for op in OPS if TABLE.get(op))


def first():
    """Return the first case that the chip supports as one region, or skip the test."""
    if _FIRST is None:
        pytest.skip("the NPU takes no case of any op")
    return _FIRST


LASTING = {"dma_latency_cycles": 100_000, "pace": 500}
"""Options that make a call take a few tenths of a second."""
can_last = needs_options(*LASTING)


class Region(kit.Region):
    """The region of a case; outputs come last."""

    def __init__(self, **options):
        super().__init__(first(), **options)

    def assert_right(self, tensors):
        """Compare the outputs of a call."""
        for output, expected in zip(tensors[len(self.inputs) :], self.expected, strict=True):
            np.testing.assert_allclose(output.numpy(), expected, rtol=1e-3, atol=1e-3)

    def assert_computes(self, module=None):
        """Call, and compare."""
        tensors = self.tensors()
        (module or self.module)[self.symbol](*tensors)
        self.assert_right(tensors)

    def refusal(self, tensors):
        """Call with wrong arguments; return the error message."""
        with pytest.raises(Exception) as caught:
            self.module[self.symbol](*tensors)
        self.assert_computes()
        return str(caught.value)
