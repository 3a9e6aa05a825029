# SPDX-License-Identifier: Apache-2.0
"""How TFLite files say things: codes of operators, names, shapes, and constants in few bits."""

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from support import host_library
from tflite_file import File, litert, tflite

ADD, MUL = tflite.BuiltinOperator.ADD, tflite.BuiltinOperator.MUL


def run(content, arguments, **options):
    """Return what the model computes on the host, as a list."""
    library = host_library(backend.from_tflite(content, **options))
    found = relax.VirtualMachine(library, tvm.cpu())["main"](*map(tvm.runtime.tensor, arguments))
    return [found.numpy()] if hasattr(found, "numpy") else [item.numpy() for item in found]


def image(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


class Codes(File):
    """A file with the code of its operator in the fields that are given."""

    def __init__(self, **fields):
        super().__init__()
        self.fields = fields

    def code(self, code):
        return self.table("OperatorCode", **self.fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"BuiltinCode": MUL},
        {"DeprecatedBuiltinCode": MUL},
        {"DeprecatedBuiltinCode": MUL, "BuiltinCode": MUL},
        {"DeprecatedBuiltinCode": ADD, "BuiltinCode": MUL},
    ],
    ids=str,
)
def test_the_greater_code_of_an_operator_counts(fields):
    file, x = Codes(**fields), image(2, 3)
    numbers = [file.tensor(x.shape, "float32") for _ in range(3)]
    file.operator("MUL", numbers[:2], numbers[2:], "MulOptions")
    content = file.finish(numbers[:2], numbers[2:])
    (found,) = run(content, [x, x])
    np.testing.assert_allclose(found, x * x, rtol=1e-6)
    np.testing.assert_allclose(litert(content, [x, x])[0], x * x, rtol=1e-6)
