# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""One region, compiled, and called as TVM calls it."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from op_cases import OPS
from support import BACKEND, TABLE, Case, partition_for
from tvm_example_npu import Options, offload_report

# Those of capabilities.py: an entry may have been taken out.
OP_NAMES = [op for op in OPS if TABLE.get(op) is not None]
FIRST_OP = OP_NAMES[0]
LOAD = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{BACKEND}")

LASTING = {"dma_latency_cycles": 100_000, "pace": 500}
"""Options that make a call take some tenths of a second."""
can_last = pytest.mark.skipif(
    not LASTING.keys() <= set(Options.__dataclass_fields__),
    reason="the driver cannot be slowed down",
)


def region_of(model, **options):
    """Compile a model to the module of its only region."""
    partitioned = partition_for(tvm.IRModule({model.name: model.function()}), **options)
    report = offload_report(partitioned)
    assert len(report.regions) == 1, report
    compiled = relax.transform.RunCodegen({BACKEND: options})(partitioned)
    (module,) = compiled.attrs["external_mods"]
    return module


class Region:
    """The region of the first op's first case; outputs come last."""

    def __init__(self, **options):
        self.model = Case(FIRST_OP, OPS[FIRST_OP]["cases"][0]).model()
        self.module = region_of(self.model, **options)
        self.symbol = self.module["get_symbol"]()
        self.inputs = [argument.values[1] for argument in self.model.arguments]
        self.expected = [output.values[1] for output in self.model.outputs]

    @property
    def bytes(self):
        """The artifact."""
        return bytes(self.module["save_to_bytes"]())

    def tensors(self):
        """Make arguments for a call, with outputs to be written."""
        arrays = [*self.inputs, *(np.full_like(array, 77) for array in self.expected)]
        return [tvm.runtime.tensor(array) for array in arrays]

    def assert_right(self, tensors):
        """Compare what a call has written."""
        for output, expected in zip(tensors[len(self.inputs) :], self.expected, strict=True):
            np.testing.assert_allclose(output.numpy(), expected, rtol=1e-3, atol=1e-3)

    def assert_computes(self, module=None):
        """Call, and compare."""
        tensors = self.tensors()
        (module or self.module)[self.symbol](*tensors)
        self.assert_right(tensors)

    def refusal(self, tensors):
        """Call with arguments that are wrong; return what the error says."""
        with pytest.raises(Exception) as caught:
            self.module[self.symbol](*tensors)
        self.assert_computes()
        return str(caught.value)
