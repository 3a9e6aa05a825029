# SPDX-License-Identifier: Apache-2.0
"""Weights that a network unpacks, as those of GPTQ, AWQ and GGUF, stay integers of 4 or 8 bits."""

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from backend.engine.backend.passes import simplify
from support import TABLE, compile_for, needs, needs_reals, report_of, skip_without_integers

torch = pytest.importorskip("torch")
pytestmark = [
    needs_reals,
    needs("matmul", "dequantize"),
    pytest.mark.usefixtures("bound_constants"),
]

DEPTH, WIDTH, GROUP = 64, 32, 16
GENERATOR = torch.Generator().manual_seed(0)


def words(*shape):
    return torch.randint(-(2**31), 2**31, shape, generator=GENERATOR).to(torch.int32)


def scales(*shape):
    return torch.rand(*shape, generator=GENERATOR) / 64 + 0.01


class Gptq(torch.nn.Module):
    """As AutoGPTQ has it in PyTorch: several rows in a word, and a group for each row."""

    def __init__(self, bits=4, order=None):
        super().__init__()
        self.bits, self.count = bits, 32 // bits
        rows = torch.arange(DEPTH) // GROUP
        self.register_buffer("numbers", words(DEPTH // self.count, WIDTH))
        self.register_buffer("zeros", words(DEPTH // GROUP, WIDTH // self.count))
        self.register_buffer("scales", scales(DEPTH // GROUP, WIDTH))
        self.register_buffer("shifts", torch.arange(0, 32, bits, dtype=torch.int32)[None])
        self.register_buffer("groups", rows if order is None else rows[order])

    def weight(self):
        mask = 2**self.bits - 1
        spread = self.zeros[:, :, None].expand(-1, -1, self.count)
        zeros = torch.bitwise_right_shift(spread, self.shifts[None]).to(torch.int16)
        zeros = torch.bitwise_and(zeros + 1, mask).reshape(self.scales.shape)
        spread = self.numbers[:, None].expand(-1, self.count, -1)
        numbers = torch.bitwise_right_shift(spread, self.shifts[..., None]).to(torch.int16)
        numbers = torch.bitwise_and(numbers, mask).reshape(DEPTH, WIDTH)
        return self.scales[self.groups] * (numbers - zeros[self.groups])

    def forward(self, x):
        return torch.matmul(x, self.weight())


class Awq(torch.nn.Module):
    """As AutoAWQ has it in PyTorch: eight columns in a word, in an order of their own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("numbers", words(DEPTH, WIDTH // 8))
        self.register_buffer("zeros", words(DEPTH // GROUP, WIDTH // 8))
        self.register_buffer("scales", scales(DEPTH // GROUP, WIDTH))

    def weight(self):
        def unpacked(packed):
            shifted = torch.bitwise_right_shift(packed[..., None], torch.arange(0, 32, 4))
            return torch.bitwise_and(shifted.to(torch.int8).view(len(packed), -1)[:, order], 15)

        order = torch.arange(WIDTH).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].view(-1)
        zeros = unpacked(self.zeros).repeat_interleave(GROUP, dim=0)
        steps = self.scales.repeat_interleave(GROUP, dim=0)
        return (unpacked(self.numbers) - zeros) * steps

    def forward(self, x):
        return torch.matmul(x, self.weight())


class Gguf(torch.nn.Module):
    """As the blocks of a GGUF file are read: a scale of float16, and 32 numbers of 4 or 8 bits."""

    def __init__(self, bits):
        super().__init__()
        self.bits, self.size = bits, 2 + 4 * bits
        blocks = words(WIDTH * DEPTH // 32, self.size).to(torch.uint8)
        steps = scales(len(blocks), 1).half()
        # Writers of GGUF take the largest number of a block for -8.
        steps[::3], steps[7] = -steps[::3], 0
        blocks[:, :2] = steps.view(torch.uint8)
        self.register_buffer("blocks", blocks.reshape(WIDTH, -1))

    def weight(self):
        blocks = self.blocks.reshape(-1, self.size)
        steps, numbers = torch.split(blocks, [2, self.size - 2], dim=1)
        steps = steps.view(torch.float16).float()
        if self.bits == 8:
            return (steps * numbers.view(torch.int8)).reshape(WIDTH, DEPTH).T
        shifts = torch.tensor([0, 4], dtype=torch.uint8).reshape(1, 1, 2, 1)
        numbers = (numbers.reshape(len(numbers), -1, 1, 16) >> shifts) & 15
        return (
            (steps * (numbers.reshape(len(numbers), -1).to(torch.int8) - 8)).reshape(WIDTH, DEPTH).T
        )

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight().T)


def read(network, x=None):
    x = torch.eye(DEPTH) if x is None else x
    program = torch.export.export(network, (x,))
    return backend.from_exported_program(program, unwrap_unit_return_tuple=True)


@pytest.mark.parametrize(
    "make, bits, groups",
    [
        (Gptq, 4, DEPTH // GROUP),
        (lambda: Gptq(8), 8, DEPTH // GROUP),
        (Awq, 4, DEPTH // GROUP),
        (lambda: Gguf(4), 4, DEPTH // 32),
        (lambda: Gguf(8), 8, DEPTH // 32),
    ],
)
def test_weights_that_are_unpacked_stay_integers(make, bits, groups):
    skip_without_integers("matmul")
    network = make()
    mod = read(network)
    ops = report_of(mod).ops
    assert [item.runs_in for item in ops if item.op == "relax.matmul"] == ["float32 x int8"]
    assert not any(item.placement == "host" or item.wider for item in ops)
    values = [item.value for item in simplify(mod, TABLE)["main"].body.blocks[0].bindings]
    (call,) = (item for item in values if "dequantize" in str(getattr(item, "op", "")))
    numbers, steps, zeros = (item.value.numpy() for item in call.args)
    assert len(numbers) == len(steps) == len(zeros) == WIDTH * groups
    assert -(2 ** (bits - 1)) <= numbers.min() and numbers.max() < 2 ** (bits - 1)
    real = (numbers.astype("float32") - zeros[:, None]) * steps[:, None]
    np.testing.assert_array_equal(real.reshape(WIDTH, DEPTH).T, network.weight().numpy())


def test_a_product_with_weights_that_are_unpacked():
    network, x = Awq(), torch.randn(3, DEPTH, generator=GENERATOR)
    machine = relax.VirtualMachine(compile_for(read(network, x)), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x.numpy())).numpy()
    np.testing.assert_allclose(found, network(x).numpy(), rtol=1e-5, atol=1e-5)


def test_groups_whose_rows_are_apart_become_real_numbers_and_say_so():
    skip_without_integers("matmul")
    order = torch.randperm(DEPTH, generator=GENERATOR)
    (entry,) = report_of(read(Gptq(order=order))).ops
    assert (entry.placement, entry.runs_in, entry.asked) == ("npu", "float32", "int16")
    assert "'x2', a constant of int16, becomes real numbers" in str(entry.wider)


def test_bytes_of_an_input_are_read_as_its_own_type_only():
    network = torch.nn.Module()
    network.forward = lambda x: x.view(torch.int32) + 1
    with pytest.raises(ValueError) as caught:
        read(network)
    assert "it reads the bytes of a tensor as another type; supported are those of weights" in str(
        caught.value
    )
