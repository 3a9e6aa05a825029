# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs of open sizes: right for each size that they allow, or refused."""

import math
import re

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
from support import compile_for, run_on_host

torch = pytest.importorskip("torch")
functional = torch.nn.functional

# None of this depends on the chip. What runs by default are the refusals.
thorough = pytest.mark.thorough

POSITIONS = torch.arange(64.0).reshape(1, 16, 4)


def real(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)))


def program(forward, *inputs, sizes=({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)):
    class Network(torch.nn.Module):
        def forward(self, *given):
            return forward(*given)

    return torch.export.export(Network(), inputs, dynamic_shapes=(sizes,))


def parts(x):
    return (
        x[:, 1:] - x[:, :-1],
        x[:, :1].expand(-1, x.shape[1], -1) * x,
        x[:, ::2] + x[:, :3].mean(1, keepdim=True),
        x[:, -2:],
        x[:, : x.shape[1] // 2],
        x.chunk(2, 1)[1],
        x + POSITIONS[:, : x.shape[1]],
        x[:, torch.arange(x.shape[1] - 1, -1, -1)],
    )


def borders(x):
    rest = (4 - x.shape[1] % 4) % 4
    return (
        functional.pad(x, (0, 0, x.shape[1], 1), value=2.0),
        functional.pad(x, (0, 0, 0, rest)),
        functional.pad(x, (1, 2)),
        functional.pad(x.transpose(1, 2), (1, 2), mode="reflect"),
    )


def repeats(x):
    return (
        x.repeat(1, 2, 1),
        torch.arange(4.0).repeat(x.shape[0], x.shape[1], 1) + x,
        x.tile((2, 1, x.shape[1])),
        x.repeat_interleave(2, 1),
    )


def attention(x):
    mask = torch.ones(16, 16).tril()[: x.shape[1], : x.shape[1]]
    scores = (x @ x.mT).masked_fill(mask == 0, -math.inf)
    return (scores.softmax(-1) @ x, x.var(1), x.view(x.shape[0], x.shape[1] * 2, 2))


def places(x):
    return (x[:, -1], x[-1], x[:, 0], x[:, 1:][:, -2], torch.cat([x, x], 1)[:, -1], x[-1, -1, -1])


def ones(x):
    one = x[:, :1]
    # PyTorch keeps an axis whose size is open, also where it turns out 1.
    return (one.squeeze(1), one.squeeze(), x[..., :1].squeeze((-1, 1)), one[..., :1].squeeze())


def changes(x):
    changed = [x.clone() for _ in range(7)]
    changed[0][:, 0] = 7
    changed[1][:, 1:-1] = x[:, 1:-1] * 2
    changed[2][:, -1] = x[:, 0]
    changed[3][:, 1:, 2:3] = -1
    changed[4][x < 0.3] = 0
    changed[5][x[..., 0] > 0] = x.sum()
    changed[6][:, x[0, :, 0] > 0] = 3
    return tuple(changed)


def blocks(x):
    image = x.repeat_interleave(2, 1).unsqueeze(1)
    return functional.pixel_unshuffle(image, 2), functional.pixel_unshuffle(image[:, :, :6], 2)


def norms(x):
    image = x.unflatten(2, (2, 2))
    channels = {"weight": torch.tensor([0.5, -2.0]), "bias": torch.tensor([1.0, 3.0])}
    turned = image.transpose(1, 2)
    mean, variance = torch.tensor([0.1, -0.3]), torch.tensor([0.5, 2.0])
    return (
        functional.instance_norm(turned),
        functional.instance_norm(turned, **channels),
        functional.instance_norm(turned, mean, variance, use_input_stats=False, **channels),
        functional.instance_norm(image.double()).float(),
        functional.group_norm(turned, 2, **channels),
    )


def masks(x):
    past = torch.full((x.shape[1], x.shape[1] + x.shape[0]), -math.inf).triu(x.shape[0] + 1)
    return (past, torch.full((x.shape[1] + 1,), math.nan), torch.full_like(past, math.inf))


@thorough
@pytest.mark.parametrize(
    "forward", [parts, borders, repeats, attention, places, changes, blocks, norms]
)
def test_each_size_has_the_values_of_pytorch(forward):
    module = backend.from_exported_program(program(forward, real(2, 6, 4)))
    for size in ((1, 4, 4), (3, 9, 4)):
        given = real(*size)
        found = run_on_host(module, "main", [given.numpy()])
        for mine, right in zip(found, forward(given), strict=True):
            assert mine.shape == tuple(right.shape)
            np.testing.assert_allclose(mine, right.numpy(), rtol=1e-5, atol=1e-5)


@thorough
def test_masks_of_infinity_are_right_for_each_size():
    machine = relax.VirtualMachine(
        compile_for(backend.from_exported_program(program(masks, real(2, 6, 4)))), tvm.cpu()
    )
    for size in ((1, 4, 4), (3, 9, 4)):
        given = real(*size)
        found = machine["main"](tvm.runtime.tensor(given.numpy()))
        for mine, right in zip(found, masks(given), strict=True):
            np.testing.assert_array_equal(mine.numpy(), right.numpy())


@thorough
def test_an_open_axis_stays_where_it_turns_out_1():
    module = backend.from_exported_program(program(ones, real(2, 6, 4)))
    for size in ((1, 1, 4), (1, 4, 4), (3, 9, 4)):
        given = real(*size)
        found = run_on_host(module, "main", [given.numpy()])
        rights = (given[:, 0], given[:, 0], given[..., 0], given[:, 0, 0])
        for mine, right in zip(found, rights, strict=True):
            np.testing.assert_array_equal(mine, right.numpy())


def test_sizes_that_are_read_as_they_are_need_no_comparison():
    module = backend.from_exported_program(program(lambda x: x * 2, real(2, 6, 4)))
    assert "match_cast" not in module.script()


def halves(x):
    return x.view(x.shape[0], x.shape[1] // 2, 2, 4).sum(2)


@thorough
@pytest.mark.parametrize(
    ("forward", "size"),
    [
        # The program has a branch for it that was not exported.
        (lambda x: x * 2 if x.shape[1] > 3 else x * 3, (2, 3, 4)),
        # A constant forces the size.
        (lambda x: x + POSITIONS[:, :6], (2, 5, 4)),
        (lambda x: torch.take_along_dim(x, x.argsort(1), 1), (1, 2, 4)),
        (lambda x: x + POSITIONS[:, : x.shape[1]], (2, 17, 4)),
        (halves, (2, 5, 4)),
        (lambda x: functional.pixel_unshuffle(x, 2), (2, 5, 4)),
        # PyTorch takes 2 for the least size of an open axis.
        (lambda x: x[:, 1], (2, 1, 4)),
        (lambda x: x[:, -2], (2, 1, 4)),
        (lambda x: x[:, 0], (2, 0, 4)),
    ],
)
def test_a_call_of_a_size_that_the_program_does_not_allow_fails(forward, size):
    module = backend.from_exported_program(program(forward, real(2, 6, 4)))
    with pytest.raises(Exception, match="mismatch|expected"):
        run_on_host(module, "main", [real(*size).numpy()])


@pytest.mark.parametrize(
    ("forward", "sentence"),
    [
        (
            lambda x: functional.pad(x.transpose(1, 2), (1, 2), mode="circular"),
            "torch node 'empty' (aten.empty.memory_format): TVM's importer cannot read it: it "
            "needs a size that is open. If the open sizes are why, export the model with fixed "
            "ones",
        ),
        (
            lambda x: functional.pad(x, (0, 0, 0, 8 - x.shape[1])),
            "torch node 'constant_pad_nd' (aten.constant_pad_nd.default): its border has an open "
            "width that may be negative; supported are fixed widths, and open ones that are not",
        ),
        (
            lambda x: x.slice_scatter(x[:, ::2], 1, step=2),
            "torch node 'slice_scatter' (aten.slice_scatter.default): a step other than 1, and a "
            "start that the run computes, are not supported along an axis whose size is open",
        ),
        (
            lambda x: functional.interpolate(x.unsqueeze(0), scale_factor=2.0),
            "(aten.upsample_nearest2d.vec): it needs the sizes of the axes [2, 3], which are open",
        ),
    ],
)
def test_what_needs_a_size_is_refused_with_its_node(forward, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        backend.from_exported_program(program(forward, real(2, 6, 4)))


def test_an_input_whose_size_is_computed_is_refused_by_name():
    sizes = ({0: 2 * torch.export.Dim("half", min=2)},)
    with pytest.raises(ValueError, match=r"the input 'given_0' of the program has the open size"):
        backend.from_exported_program(program(lambda x: x.view(2, -1), real(6, 4), sizes=sizes))
