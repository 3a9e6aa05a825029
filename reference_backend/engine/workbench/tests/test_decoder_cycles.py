# SPDX-License-Identifier: Apache-2.0
"""What bounds a decoder that takes one token, on the emulated machine."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

import support
from backend import offload_report
from decoder import Decoder
from support import (
    BACKEND,
    compile_for,
    needs,
    needs_options,
    partition_for,
    run_on_host,
    skip_where_declined,
    skip_where_limited,
)

pytestmark = [
    support.needs_emulator,
    needs_options("weight_buffers"),
    needs(
        *("take", "matmul", "rms_norm", "sin", "cos", "sdpa_bias", "where", "less_equal", "silu"),
        *("add", "multiply", "negative", "split", "concat", "scatter_elements", "reshape"),
        *("permute_dims", "broadcast_to", "astype", "dequantize"),
    ),
]


@cache
def decoder(bits):
    made = Decoder(1024, 1, 2816, 16, 4, 64, 2048, 128, bits)
    return made, made.build()


def run(made, module, **options):
    """Return the logits, and cycles and bytes from DRAM as multiples of the least."""
    skip_where_declined(module)
    skip_where_limited(module)
    if any(op.wider for op in offload_report(partition_for(module)).ops):
        pytest.skip("weights of integers are real numbers on this chip, or arguments")
    machine = relax.VirtualMachine(compile_for(module, **options), tvm.cpu())
    logits = machine["main"](*map(tvm.runtime.tensor, made.inputs))[0].numpy()
    (library,) = machine.module.imports
    (region,) = (item for item in library.imports if item.kind == BACKEND)
    found = region["counters"]()
    least = made.weight_bytes + made.cache_bytes
    return logits, int(found["cycles"]) * 16 / least, int(found["dram_bytes_read"]) / least


@pytest.mark.parametrize(
    ("bits", "most"),
    [
        (4, 1.5),
        pytest.param(8, 1.2, marks=pytest.mark.thorough),
        pytest.param(32, 1.05, marks=pytest.mark.thorough),
    ],
)
def test_a_token_takes_the_time_in_which_its_weights_and_cache_are_read(bits, most):
    _, cycles, reads = run(*decoder(bits), weight_buffers=2)
    assert 1 <= cycles < most
    # Neither repeated for the heads that share it, nor read twice.
    assert 1 <= reads < 1.01


def test_weights_of_four_bits_wait_for_an_array_that_does_not_load_meanwhile():
    one, two = run(*decoder(4)), run(*decoder(4), weight_buffers=2)
    assert one[1] > 2 and two[1] < one[1] * 0.6
    np.testing.assert_array_equal(one[0], two[0])


def test_a_cache_that_is_too_large_to_stay_gets_its_row_where_it_is_read():
    made = Decoder(64, 1, 176, 4, 2, 16, 64, 256, 32)
    module = made.build()
    small, large = run(made, module, scratchpad_bytes=1 << 15), run(made, module)
    expected = run_on_host(module, "main", made.inputs)[0]
    for logits, _, reads in (small, large):
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
        assert 1 <= reads < 1.1
