# SPDX-License-Identifier: Apache-2.0
"""What the importer makes of PyTorch's ops, against PyTorch: types, sizes and values."""

import numpy as np
import pytest

import backend
from support import run_on_host

torch = pytest.importorskip("torch")
functional = torch.nn.functional

# None of this depends on the chip. What runs by default are the refusals, and some types.
thorough = pytest.mark.thorough


def exported(forward, *inputs):
    """Export a function of tensors."""

    class Network(torch.nn.Module):
        def forward(self, *given):
            return forward(*given)

    return torch.export.export(Network(), inputs)


def read_and_run(program, inputs, **options):
    module = backend.from_exported_program(program, **options)
    return run_on_host(module, "main", [item.numpy() for item in inputs])


def check(forward, *inputs):
    """Compare each result of a function of tensors with PyTorch's."""
    wanted = forward(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = read_and_run(exported(forward, *inputs), inputs)
    for mine, right in zip(found, [item for item in wanted if item is not None], strict=True):
        right = right.numpy()
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        if right.dtype.kind == "f":
            bound = 1e-2 if right.dtype == "float16" else 2e-5
            np.testing.assert_allclose(mine, right, rtol=bound, atol=bound)
        else:
            np.testing.assert_array_equal(mine, right)


def real(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


INTEGERS = torch.arange(-4, 5).reshape(3, 3)
SMALL = torch.arange(9.0).reshape(1, 1, 3, 3)
IMAGE = torch.arange(16.0).reshape(1, 1, 4, 4)
GRID = torch.rand(1, 5, 6, 2, generator=torch.Generator().manual_seed(0)) * 2.4 - 1.2
PAIR, COLUMN = torch.tensor([0, 2]), torch.tensor([[1], [-2]])


# ---- Types --------------------------------------------------------------------------------------


def test_numbers_have_the_type_to_which_pytorch_promotes_them():
    def forward(i):
        return (i * 0.5, i / 3, i + 1.5, i - 0.5, 2.5 - i, i > 0.5, i == 1.0, i.clamp(max=1.5))

    check(forward, INTEGERS)
    half = real(3, 3).half()
    check(
        lambda i, h: (i * h, i + h, torch.where(i > 0, i, h), h < i, h * 2, h / 3), INTEGERS, half
    )


@thorough
def test_quotients_and_remainders_round_as_pytorch():
    def integers(i):
        floor = (i // 3, i // -2, i % 3, torch.remainder(i, -3), torch.fmod(i, 3))
        return (*floor, torch.div(i, 2, rounding_mode="trunc"), i**3, i**0)

    def reals(a, b):
        return (a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"))

    check(integers, INTEGERS)
    check(reals, torch.tensor([1.0, -1.0, 7.5, -7.5, 0.3]), torch.tensor([0.1, 0.1, 2, 2, -0.1]))


@thorough
def test_booleans_and_bits():
    def forward(i):
        above, below = i > 0, i < 3
        logic = (above + below, above * below, above & below, above ^ below, ~above, above == below)
        bits = (i >> 1, i << 2, i & 3, i | 4, i ^ 1, ~i, torch.bitwise_right_shift(i, 70))
        return (*logic, *bits, above.sum(), above.any(1), below.all(0), i.logical_and(i - 1))

    check(forward, INTEGERS)


def test_factors_of_sums():
    def forward(a, b):
        sums = (torch.add(a, b, alpha=2), torch.sub(a, b, alpha=-0.5), torch.rsub(a, b, alpha=3))
        more = (torch.addcmul(a, a, b, value=0.5), torch.lerp(a, b, 0.3))
        return (*sums, *more)

    check(forward, real(4), real(4) + 1)
    check(lambda i: torch.add(i, i, alpha=3), INTEGERS)


@thorough
def test_functions_of_integers_are_real():
    def forward(i):
        return (i.abs().sqrt(), i.exp(), i.sigmoid(), i.sin(), i.floor(), i.isnan(), i.isfinite())

    check(forward, INTEGERS)


@thorough
def test_activations_with_all_their_arguments():
    def forward(a):
        return (functional.selu(a), functional.elu(a, 2.0), functional.celu(a, 0.5))

    check(forward, real(9))


@thorough
@pytest.mark.parametrize("dtype", ["int32", "float16"])
def test_products_have_the_type_of_their_operands(dtype):
    kind = getattr(torch, dtype)
    a, b = (real(*shape).mul(3).to(kind) for shape in ((4, 5), (5, 3)))

    def forward(a, b, c):
        batches = torch.bmm(a[None], b[None])
        return a @ b, batches, torch.addmm(c, a, b), torch.addmm(c, a, b, alpha=2, beta=3)

    check(forward, a, b, torch.ones(3, dtype=kind))


@thorough
def test_convolutions_of_float16():
    def forward(a, w, t):
        return functional.conv2d(a, w, padding=1), functional.conv_transpose2d(a, t, stride=2)

    check(forward, *(real(*shape).half() for shape in ((1, 3, 5, 5), (2, 3, 3, 3), (3, 2, 2, 2))))


# ---- Images and pools ---------------------------------------------------------------------------


@thorough
@pytest.mark.parametrize(
    "options",
    [
        {"size": (5, 5)},
        {"size": (5, 7), "mode": "nearest-exact"},
        {"scale_factor": 1.5, "mode": "bilinear"},
        {"scale_factor": 1.5, "mode": "bilinear", "recompute_scale_factor": True},
        {"size": (7, 5), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 1.7, "mode": "bicubic"},
        {"size": (2, 2), "mode": "bilinear", "antialias": True},
        {"size": (3, 2), "mode": "bicubic", "antialias": True},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_images_of_another_size(options):
    check(lambda x: functional.interpolate(x, **options), IMAGE)


def test_sizes_of_images_have_the_values_of_pytorch():
    nearest = exported(lambda x: functional.interpolate(x, size=(5, 5)), SMALL)
    (found,) = read_and_run(nearest, [SMALL])
    np.testing.assert_array_equal(found[0, 0, 0], [0, 0, 1, 1, 2])

    def smoothed(x):
        return functional.interpolate(x, size=(2, 2), mode="bilinear", antialias=True)

    (found,) = read_and_run(exported(smoothed, IMAGE), [IMAGE])
    np.testing.assert_allclose(found[0, 0, 0, 0], 3.5714288)


@thorough
@pytest.mark.parametrize(
    "options",
    [
        {"align_corners": False},
        {"mode": "nearest", "padding_mode": "border", "align_corners": True},
        {"mode": "bicubic", "padding_mode": "reflection", "align_corners": False},
    ],
    ids=lambda options: options.get("mode", "bilinear"),
)
def test_a_grid_that_is_not_square(options):
    check(lambda x, grid: functional.grid_sample(x, grid, **options), real(1, 3, 8, 8), GRID)


@thorough
def test_affine_grids():
    def forward(theta):
        size = (1, 1, 3, 4)
        return tuple(
            functional.affine_grid(theta, size, align_corners=corners) for corners in (True, False)
        )

    check(forward, real(1, 2, 3))


@thorough
def test_pools_and_their_indices():
    def largest(x):
        plain = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
        dilated = functional.max_pool2d(x, 2, 2, ceil_mode=True, dilation=2, return_indices=True)
        adaptive = functional.adaptive_max_pool2d(x, (3, 2), return_indices=True)
        return (*plain, *dilated, *adaptive, functional.adaptive_max_pool2d(x, (7, 4)))

    check(largest, real(2, 3, 7, 8))
    check(lambda x: functional.max_pool2d(x, 3, return_indices=True), torch.ones(1, 1, 6, 6))


@thorough
def test_means_of_windows():
    def forward(x):
        return (
            functional.avg_pool2d(x, 2, divisor_override=3),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=4),
            functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        )

    check(forward, real(1, 2, 6, 6))


# ---- Reductions and indexing --------------------------------------------------------------------


@thorough
def test_reductions():
    def forward(a, i):
        moments = (*torch.var_mean(a, 1, correction=0), a.std(0, unbiased=False), a.var())
        extremes = (a.amax((0, 1), keepdim=True), i.amin(0), *i.max(1), *a.min(0), (i > 0).amax(1))
        return (*moments, *extremes, i.prod(1), i.cumsum(0), torch.linalg.vector_norm(a, 1, 0))

    check(forward, real(3, 3), INTEGERS)


def test_reductions_of_no_elements():
    def forward(x):
        numbers = (x.sum(1), x.prod(1), x.mean(1), x.mean(), x.var(1), x.std(1, unbiased=False))
        return (*numbers, x.any(1), x.all(1))

    check(forward, torch.zeros(2, 0))


def test_types_that_an_op_of_tvm_lacks():
    def forward(bits, x):
        norms = (functional.layer_norm(x, (4,), x[0, 0], x[0, 1]), functional.layer_norm(x, (3, 4)))
        return (-bits, bits.sign(), *norms)

    check(forward, torch.tensor([0, 1, 2, 255], dtype=torch.uint8), real(2, 3, 4).double())
    for norm in (lambda x: functional.instance_norm(x), lambda x: functional.group_norm(x, 3)):
        program = exported(norm, real(2, 3, 4).double())
        with pytest.raises(ValueError, match=r"^torch node '\w+' .*type float64 are not supported"):
            backend.from_exported_program(program)


@thorough
def test_indices_of_several_axes():
    def forward(x, j, k):
        return x[:, j, :, k], x[:, j, k], x[:, k], x[j, :, k], x[:, -1]

    check(forward, real(4, 5, 6, 7), PAIR, COLUMN)


@thorough
@pytest.mark.parametrize("place", [[1], [3, 1]], ids=str)
def test_writes_at_an_index(place):
    def forward(x, j, values):
        return (
            x.index_copy(1, j, values),
            x.index_copy(-1, j[-1], x[..., :1] + 1),
            x[0, :, 0].index_copy(0, j[-1], values.sum()),
            x.sum().index_copy(0, j[-1] - j[-1], values.sum()),
            x.index_add(1, j, values, alpha=2),
            torch.ops.aten.index_put(x, [None, j], values),
            torch.ops.aten.index_put(x, [None, j], values, True),
        )

    check(forward, real(2, 5, 3), torch.tensor(place), real(2, len(place), 3))


@thorough
def test_scatters_and_gathers():
    def forward(x, j, values):
        added = x.scatter_add(1, j, values)
        return x.gather(1, j), x.scatter(1, j, values), x.scatter(0, j, 2.0), added

    check(forward, real(3, 4), torch.tensor([[0, 2], [1, 0]]), real(3, 4) + 2)


@thorough
def test_windows_and_views():
    def forward(x):
        windows = (x.unfold(1, 3, 2), functional.unfold(x[None], 3, padding=1))
        return (*windows, x.contiguous().as_strided((2, 3), (1, 2), 1), x[..., 1:-1:2])

    check(forward, real(2, 8, 4))


def test_empty_operands_and_results_that_are_none():
    def forward(x):
        return torch.cat([torch.tensor([]), x], -1), None, x + 1

    check(forward, real(2, 3))


@thorough
def test_sizes_that_are_open():
    def forward(x, j, image):
        chosen = (x[:, j], x[j, -1], x.index_copy(1, j[:1], x[:, :1]), torch.cat([x, x], -1))
        sums = (x @ x.mT, x.clamp(min=0.5), x.sum(1), torch.where(x > 0, x, 2), x[:, 1:-1])
        images = (
            functional.interpolate(image, scale_factor=1.5, mode="bilinear"),
            functional.max_pool2d(image, 3, 2, 1, return_indices=True)[1],
            functional.avg_pool2d(image, 2, divisor_override=3),
        )
        return (*chosen, *sums, *images)

    class Network(torch.nn.Module):
        def forward(self, x, j, image):
            return forward(x, j, image)

    def inputs(batch):
        return real(batch, 4, 3), torch.tensor([1, -1]), real(batch, 2, 6, 6)

    size = torch.export.Dim("n", min=2, max=8)
    sizes = ({0: size}, None, {0: size})
    program = torch.export.export(Network(), inputs(3), dynamic_shapes=sizes)
    module = backend.from_exported_program(program)
    for batch in (2, 5):
        given = inputs(batch)
        found = run_on_host(module, "main", [item.numpy() for item in given])
        for mine, right in zip(found, forward(*given), strict=True):
            assert (str(mine.dtype), mine.shape) == (str(right.numpy().dtype), tuple(right.shape))
            np.testing.assert_allclose(mine, right.numpy(), rtol=1e-5, atol=1e-5)


# ---- Refusals -----------------------------------------------------------------------------------


def refused(program, **options):
    with pytest.raises(ValueError) as caught:
        backend.from_exported_program(program, **options)
    return str(caught.value)


def test_a_network_in_training_mode_is_refused():
    message = refused(torch.export.export(torch.nn.BatchNorm1d(3), (real(4, 3),)))
    assert "call model.eval() before torch.export.export" in message
    message = refused(torch.export.export(torch.nn.Dropout(), (real(4, 3),)))
    assert "it returns random numbers" in message


def test_an_operator_in_place_whose_operand_is_read_is_refused():
    program = exported(lambda x: (x * 2).relu_() + 1, real(3))
    backend.from_exported_program(program, run_ep_decomposition=False)

    def read_twice(x):
        doubled = x * 2
        first = doubled[0]
        return doubled.relu_() + first

    message = refused(exported(read_twice, real(3)), run_ep_decomposition=False)
    assert "it changes its operand in place, which others read" in message


def test_what_contradicts_the_program_is_refused():
    def wrong(node, importer):
        from tvm import relax

        return importer.block_builder.emit(relax.op.astype(importer.env[node.args[0]], "int32"))

    program = exported(lambda x: torch.erfinv(x) + 1, real(3, 4))
    message = refused(program, custom_convert_map={"erfinv.default": wrong})
    assert "declares its result 'erfinv' as float32[3, 4]" in message
    assert "makes it int32[3, 4]" in message


@thorough
def test_what_only_the_first_result_is_read_of():
    norm = torch.ops.aten.native_layer_norm
    check(lambda x: norm(x, [4], None, None, 1e-5)[0], real(3, 4))
    message = refused(exported(lambda x: norm(x, [4], None, None, 1e-5)[:2], real(3, 4)))
    assert "its result 1 is not supported; supported is result 0" in message


@thorough
def test_an_op_with_an_effect_is_refused_by_name():
    message = refused(exported(torch.linalg.inv, real(3, 3)))
    assert "the program has an input of the kind TOKEN, which torch node" in message
    assert "_linalg_check_errors" in message


def test_indices_of_booleans_are_refused():
    program = exported(lambda x: torch.ops.aten.index_put(x, [x > 0], x[0]), real(3, 3))
    assert "an index of booleans" in refused(program)


@pytest.mark.parametrize("value", [3, 0.5, True, None, "text"])
def test_an_argument_that_is_no_tensor_is_refused_by_name(value):
    message = refused(exported(lambda x, _: x * 2, real(2), value))
    what = f"'given_1' of the program is {value!r}, of type {type(value).__name__}; supported are"
    assert what in message


def test_an_open_number_is_refused_by_name_and_read_as_a_tensor():
    class Network(torch.nn.Module):
        def forward(self, x, count):
            return x * (count.item() if isinstance(count, torch.Tensor) else count)

    sizes = {"x": None, "count": torch.export.Dim.DYNAMIC}
    program = torch.export.export(Network(), (real(2), 3), dynamic_shapes=sizes)
    assert refused(program) == (
        "the argument 'count' of the program is an open number; supported are tensors. Pass it as "
        "a tensor, of which the model takes item()."
    )
    x, count = real(2), torch.tensor(-4)
    (found,) = read_and_run(torch.export.export(Network(), (x, count)), (x, count))
    np.testing.assert_array_equal(found, x.numpy() * -4)


# ---- bfloat16 -----------------------------------------------------------------------------------


@thorough
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_bfloat16_becomes_another_type(dtype):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU(), torch.nn.LayerNorm(3))
    network = network.bfloat16().eval()
    x = real(2, 4).bfloat16()
    program = torch.export.export(network, (x,))
    module = backend.from_exported_program(program, **({"bfloat16": dtype} if dtype else {}))
    types = {str(item.ty.dtype) for item in module["main"].params}
    assert types == {dtype or "float32"}
    assert str(module["main"].ret_ty.fields[0].dtype) == (dtype or "float32")
    if dtype == "bfloat16":
        return
    (found,) = run_on_host(module, "main", [x.float().numpy().astype(dtype or "float32")])
    expected = network.float()(x.float()).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=5e-2 if dtype else 1e-5)


def test_a_type_for_bfloat16_that_is_unknown():
    program = exported(lambda x: x + 1, real(3))
    assert "bfloat16='int8'; supported are float32" in refused(program, bfloat16="int8")


# ---- Branches -----------------------------------------------------------------------------------


def scaled(x):
    return functional.silu(x) * 3, x.sum()


def shifted(x):
    return torch.cond(
        x.max() > 2, lambda x: x - 1, lambda x: functional.pad(x[1:], (0, 1)), (x,)
    ), (x.max())


@pytest.mark.parametrize("numbers", [[1.0, 2, 3], [1, 1, 1], [-1, -2, 3], [-3, -1, 0]])
def test_branches_are_those_of_pytorch(numbers):
    """The ops in branches have our converters, too; one branch has branches."""

    def forward(x):
        first, second = torch.cond(x.sum() > 4, scaled, shifted, (x,))
        return first * second

    check(forward, torch.tensor(numbers))


def test_an_unknown_op_in_a_branch_is_refused_by_name():
    @torch.library.custom_op("of_tests::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    unknown.register_fake(torch.empty_like)

    def forward(x):
        return torch.cond(x.sum() > 0, shifted, lambda x: (unknown(x), x.max()), (x,))

    program = exported(forward, real(3))
    with pytest.raises(
        ValueError, match=r"operator of the node unknown \(of_tests.unknown.default"
    ):
        backend.from_exported_program(program)


def test_what_pytorch_cannot_take_apart_is_an_error_of_one_sentence():
    def forward(x):
        return torch.cond(x.sum() > 0, lambda x: x[[-1, 0]], lambda x: x[:2] * 2, (x,))

    with pytest.raises(
        ValueError, match="PyTorch cannot take the program apart: .* Export the mod"
    ):
        backend.from_exported_program(exported(forward, real(3)))
