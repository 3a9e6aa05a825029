"""Runs quantized models on the plain driver that has scales at tensors, and checks all numbers.

python run_scales.py <package>
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

PACKAGE = sys.argv[1]
backend: Any = importlib.import_module(PACKAGE)
NAME = PACKAGE.removeprefix("tvm_")
op = relax.op
random = np.random.default_rng(0)
F32 = np.float32


def quantize(x: Any, scale: Any, zero: Any, dtype: str = "int8", axis: int = 1) -> Any:
    scale, zero = relax.const(np.asarray(scale, "float32")), relax.const(np.asarray(zero, dtype))
    return op.quantize(x, scale, zero, axis, dtype)


def dequantize(x: Any, scale: Any, zero: Any, dtype: str = "int8", axis: int = 0) -> Any:
    x = x if isinstance(x, relax.Expr) else relax.const(x)
    scale, zero = relax.const(np.asarray(scale, "float32")), relax.const(np.asarray(zero, dtype))
    return op.dequantize(x, scale, zero, axis)


def build(make: Callable[..., Any], *arrays: Any) -> Any:
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            value = builder.emit_output(builder.normalize(make(builder.emit, *inputs)))
        builder.emit_func_output(value)
    return builder.get()


class Ran:
    """A model on the driver: its results, composites, nodes, and what stays on the host."""

    def __init__(self, module: Any, *arrays: Any, **options: Any) -> None:
        partition = getattr(backend, f"partition_for_{NAME}")
        report = backend.offload_report(partition(module, **options))
        with tempfile.TemporaryDirectory() as folder:
            dump = {"dump": "program", "dump_dir": folder}
            executable = getattr(backend, f"compile_for_{NAME}")(module, **options, **dump)
            listings = [path.read_text() for path in sorted(Path(folder).glob("*.txt"))]
        self.listing = "".join(listings)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        self.results = machine["main"](*map(tvm.runtime.tensor, arrays))
        if isinstance(self.results, tvm.runtime.Tensor):
            self.results = self.results.numpy()
        self.on_host = [f"{i.op}: {i.reason}" for i in report.on_host if not i.bookkeeping]
        self.composites = sorted({item.composite for item in report.offloaded if item.composite})
        self.regions = len(report.regions)

    def nodes(self, name: str) -> list[str]:
        return [line.strip() for line in self.listing.splitlines() if line.strip().startswith(name)]


def rounded(real: Any, zero: int, low: float = -np.inf, high: float = np.inf) -> Any:
    """Numbers of int8, from numbers of steps in float32."""
    steps = np.clip(np.rint(np.asarray(real, F32)), low, high) + zero
    return np.clip(steps, -128, 127).astype("int8")


def requantized(sums: Any, data: float, weight: Any, result: float) -> Any:
    """Sums of integers as steps of the result: all in float32."""
    factor = (F32(data) * np.asarray(weight, F32)) / F32(result)
    return sums.astype(F32) * factor


def convolved(x: Any, w: Any, groups: int, stride: int, pad: int) -> Any:
    x = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]
    n, c, rows, columns = windows.shape[:4]
    windows = windows.reshape(n, groups, c // groups, rows, columns, -1)
    weights = w.astype(np.int64).reshape(groups, w.shape[0] // groups, c // groups, -1)
    sums = np.einsum("ngcyxk,gock->ngoyx", windows, weights)
    return sums.reshape(n, w.shape[0], rows, columns)


def integers(shape: tuple[int, ...]) -> Any:
    return random.integers(-128, 128, shape).astype("int8")


def check_convolution(groups: int, weight_shape: tuple[int, ...], stride: int, pad: int) -> None:
    x, w = integers((2, 6, 7, 8)), integers(weight_shape)
    channels = weight_shape[0]
    scales = random.uniform(0.001, 0.01, channels).astype(F32)
    steps = random.integers(-2000, 2000, channels)
    bias = (steps * (F32(0.05) * scales).astype(np.float64)).astype(F32).reshape(-1, 1, 1)
    sums = convolved(x.astype(np.int64) - 3, w, groups, stride, pad) + steps.reshape(-1, 1, 1)
    in_steps = requantized(sums, 0.05, scales.reshape(-1, 1, 1), 0.07)

    def make(activate: Callable[[Any], Any]) -> Any:
        def model(emit: Any, x: Any) -> Any:
            real = emit(dequantize(x, 0.05, 3))
            weight = emit(dequantize(w, scales, np.zeros(channels), axis=0))
            y = emit(op.nn.conv2d(real, weight, strides=stride, padding=pad, groups=groups))
            y = emit(op.add(y, relax.const(bias)))
            return quantize(emit(activate(y)), 0.07, -5)

        return build(model, x)

    for name, activate, low, high in (
        ("bias", lambda y: y, -np.inf, np.inf),
        ("bias_relu", op.nn.relu, 0, np.inf),
        ("bias_clip", lambda y: op.clip(y, -0.5, 6), np.rint(-0.5 / 0.07), np.rint(6 / 0.07)),
    ):
        module = make(activate)
        ran = Ran(module, x)
        assert ran.on_host == [] and ran.regions == 1, ran.on_host
        (label,) = ran.composites
        assert label.startswith("quantized_") and label.endswith(name), label
        want = rounded(in_steps, -5, low, high)
        np.testing.assert_array_equal(ran.results, want)
        (node,) = ran.nodes("convolution")
        assert node.endswith(", scale 0.0700000003, zero point -5"), node
        # In float32, where it has no products of integers: the op stays on the NPU.
        other = Ran(module, x, lacks="integers")
        assert other.on_host == [] and other.regions == 1, other.on_host
        assert other.nodes("dequantize") and other.nodes("quantize")
        assert np.abs(other.results.astype(int) - want).max() <= 1
        for fault in ("scale", "zero", "axis"):
            wrong = Ran(module, x, fault=fault)
            assert not np.array_equal(wrong.results, want), fault


def check_real_results_and_residuals() -> None:
    x, w = integers((1, 4, 5, 5)), integers((3, 4, 3, 3))
    scales = random.uniform(0.001, 0.01, 3).astype(F32)
    other = integers((1, 3, 3, 3))
    sums = convolved(x, w, 1, 1, 0).astype(np.float64)
    real_sums = sums * (np.float64(F32(0.05)) * scales.reshape(-1, 1, 1))

    def real(emit: Any, x: Any) -> Any:
        weight = emit(dequantize(w, scales, np.zeros(3), axis=0))
        return op.nn.conv2d(emit(dequantize(x, 0.05, 0)), weight)

    ran = Ran(build(real, x), x)
    assert ran.on_host == [] and ran.composites == ["quantized_conv2d_to_real"]
    np.testing.assert_allclose(ran.results, real_sums, rtol=1e-5, atol=1e-5)

    def residual(emit: Any, x: Any, y: Any) -> Any:
        added = emit(op.add(emit(real(emit, x)), emit(dequantize(y, 0.03, 7))))
        return quantize(emit(op.nn.relu(added)), 0.04, -128)

    want = rounded(np.maximum(real_sums + (other - 7.0) * 0.03, 0) / 0.04, -128)
    for lacks in ("", "real results", "integers", "limits"):
        ran = Ran(build(residual, x, other), x, other, lacks=lacks)
        assert ran.on_host == [] and ran.regions == 1, ran.on_host
        # The quantize imposes the limit of the relu.
        assert ran.composites == ["quantized_conv2d_residual"], ran.composites
        assert np.abs(ran.results.astype(int) - want).max() <= 1


def check_whole_composites() -> None:
    """The driver sees the constants of a composite, and all of its nodes."""

    def model(emit: Any, x: Any, most: int) -> Any:
        weight = np.clip(integers((3, 4, 1, 1)), -most, most)
        weight[0, 0] = most
        weight = emit(dequantize(weight, 0.01, 0))
        real = emit(op.nn.conv2d(emit(dequantize(x, 0.05, 0)), weight))
        return quantize(emit(op.sigmoid(real)), 1 / 256, -128)

    x = integers((1, 4, 5, 5))
    for most in (100, 101):
        module = build(partial(model, most=most), x)
        ran = Ran(module, x, lacks="large weights")
        assert ran.nodes("convolution") and ran.on_host == [], ran.on_host
        in_integers = any(label.startswith("quantized_conv2d") for label in ran.composites)
        assert in_integers == (most == 100), ran.composites
    # A convolution to real numbers, a sigmoid and a quantize are several nodes.
    module = build(partial(model, most=9), x)
    assert Ran(module, x).composites == ["quantized_conv2d_sigmoid"]
    ran = Ran(module, x, lacks="pairs")
    assert ran.composites == ["quantize", "quantized_conv2d_to_real", "sigmoid"]
    assert ran.on_host == [], ran.on_host


def check_matmuls() -> None:
    x, w = integers((4, 9)), integers((9, 6))
    scales = random.uniform(0.001, 0.01, 6).astype(F32)
    sums = (x.astype(np.int64) + 4) @ w.astype(np.int64)
    want = rounded(requantized(sums, 0.05, scales, 0.07), 9)
    for turned in (False, True):

        def model(emit: Any, x: Any, turned: bool = turned) -> Any:
            stored = np.ascontiguousarray(w.T) if turned else w
            weight = emit(dequantize(stored, scales, np.zeros(6), axis=0 if turned else 1))
            weight = emit(op.permute_dims(weight)) if turned else weight
            return quantize(emit(op.matmul(emit(dequantize(x, 0.05, -4)), weight)), 0.07, 9)

        ran = Ran(build(model, x), x)
        assert ran.on_host == [] and ran.composites[0].startswith("quantized_matmul")
        np.testing.assert_array_equal(ran.results, want)

    y = integers((9, 5))

    def both(emit: Any, x: Any, y: Any) -> Any:
        a, b = emit(dequantize(x, 0.05, -4)), emit(dequantize(y, 0.01, 11))
        return quantize(emit(op.matmul(a, b)), 0.2, 0)

    ran = Ran(build(both, x, y), x, y)
    sums = (x.astype(np.int64) + 4) @ (y.astype(np.int64) - 11)
    assert ran.on_host == []
    np.testing.assert_array_equal(ran.results, rounded(requantized(sums, 0.05, 0.01, 0.2), 0))


def check_other_ops() -> None:
    x, y = integers((1, 4, 6, 6)), integers((1, 4, 1, 6))
    a, b = (x - 3.0) * 0.5, (y + 20.0) * 0.25

    def pair(make: Callable[[Any, Any], Any]) -> Any:
        def model(emit: Any, x: Any, y: Any) -> Any:
            a, b = emit(dequantize(x, 0.5, 3)), emit(dequantize(y, 0.25, -20))
            return quantize(emit(make(a, b)), 0.6, 2)

        return Ran(build(model, x, y), x, y)

    def one(make: Callable[[Any], Any], scale: float = 0.6, zero: int = 2) -> Any:
        def model(emit: Any, x: Any) -> Any:
            return quantize(emit(make(emit(dequantize(x, 0.5, 3)))), scale, zero)

        return Ran(build(model, x), x)

    windows = a.reshape(1, 4, 3, 2, 3, 2)
    axes = [2, 3]
    for ran, real, scale, zero in (
        (pair(op.add), a + b, 0.6, 2),
        (pair(op.subtract), a - b, 0.6, 2),
        (pair(op.multiply), a * b, 0.6, 2),
        (pair(lambda x, y: op.nn.relu(op.add(x, y))), np.maximum(a + b, 0), 0.6, 2),
        (one(op.sigmoid, 1 / 256, -128), 1 / (1 + np.exp(-a)), 1 / 256, -128),
        (one(op.tanh, 1 / 128, 0), np.tanh(a), 1 / 128, 0),
        (one(lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2))), windows.mean((3, 5)), 0.6, 2),
        (one(lambda x: op.mean(x, axes)), a.mean((2, 3)), 0.6, 2),
        (one(lambda x: x, 0.25, 9), a, 0.25, 9),
    ):
        assert ran.on_host == [] and ran.regions == 1, (ran.on_host, ran.composites)
        steps = ran.results.astype(int) - rounded(real / F32(scale), zero)
        assert np.abs(steps).max() <= 1 and (steps != 0).mean() < 0.02, ran.composites
        print(ran.composites, ran.listing.count("\n"), int((steps != 0).sum()))


def check_moved_integers() -> None:
    image = (40 * random.standard_normal((1, 3, 6, 8))).astype("float32")
    integer = np.clip(np.rint(image / 0.5) - 7, -128, 127)

    def model(emit: Any, x: Any) -> Any:
        x = emit(quantize(x, 0.5, -7))
        x = emit(op.nn.max_pool2d(x, (2, 2), (2, 2)))
        return dequantize(emit(op.reshape(x, (1, 36))), 0.5, -7)

    ran = Ran(build(model, image), image)
    assert ran.on_host == [] and ran.regions == 1, ran.on_host
    want = integer.reshape(1, 3, 3, 2, 4, 2).max((3, 5)).reshape(1, 36)
    np.testing.assert_array_equal(ran.results, (want + 7) * F32(0.5))
    for node in ran.nodes("pool") + ran.nodes("quantize"):
        assert node.endswith(", scale 0.5, zero point -7"), node

    def two_meanings(emit: Any, x: Any) -> Any:
        return dequantize(emit(quantize(x, 0.5, -7)), 0.25, 4)

    ran = Ran(build(two_meanings, image), image)
    np.testing.assert_array_equal(ran.results, ((integer - 4) * F32(0.25)).astype("float32"))
    assert ran.on_host and "the integers of a tensor have one meaning" in ran.on_host[0], (
        ran.on_host
    )


def check_concats() -> None:
    arrays = [integers((1, 2, 3, 4)) for _ in range(6)]
    scales = [0.5, 0.25, 0.5, 0.75, 1.0, 0.5]
    real = np.concatenate([(x - 3.0) * s for x, s in zip(arrays, scales, strict=True)], 1)

    def model(count: int) -> Any:
        def joined(emit: Any, *xs: Any) -> Any:
            real = [
                emit(dequantize(x, s, 3)) for x, s in zip(xs[:count], scales[:count], strict=True)
            ]
            return quantize(emit(op.concat(real, 1)), 0.5, -4)

        return build(joined, *arrays[:count])

    for count in (2, 6):
        want = rounded(real[:, : 2 * count] / F32(0.5), -4)
        ran = Ran(model(count), *arrays[:count])
        assert ran.on_host == [] and ran.regions == 1, ran.on_host
        # Each operand has its own scale, so nothing rescales it.
        assert len(ran.nodes("concat")) == 1 and not ran.nodes("quantize"), ran.listing
        np.testing.assert_array_equal(ran.results, want)
        same = Ran(model(count), *arrays[:count], lacks="own scales")
        assert same.on_host == [] and len(same.nodes("concat")) == 1, same.on_host
        rescaled = sum(scale != 0.5 for scale in scales[:count])
        assert len(same.nodes("quantize")) >= rescaled, same.listing
        np.testing.assert_array_equal(same.results, want)
        for fault in ("zero", "four") if count > 4 else ("zero",):
            wrong = Ran(model(count), *arrays[:count], fault=fault)
            assert not np.array_equal(wrong.results, want), fault

    def reals(emit: Any, *xs: Any) -> Any:
        return op.stack([emit(op.nn.relu(x)) for x in xs], 1)

    floats = [random.standard_normal((2, 3), dtype="float32") for _ in range(5)]
    ran = Ran(build(reals, *floats), *floats)
    want = np.maximum(np.stack(floats, 1), 0)
    assert ran.on_host == [] and len(ran.nodes("concat")) == 1, ran.listing
    np.testing.assert_array_equal(ran.results, want)
    without = Ran(build(reals, *floats), *floats, lacks="concat")
    np.testing.assert_array_equal(without.results, want)
    assert not without.nodes("concat") and without.on_host


def check_pads() -> None:
    stored = integers((1, 2, 3, 4))
    image = ((stored.astype("float32") + 7) * F32(0.5)).astype("float32")
    widths = (0, 0, 0, 0, 1, 2, 0, 3)

    def model(emit: Any, x: Any) -> Any:
        real = emit(dequantize(emit(quantize(x, 0.5, -7)), 0.5, -7))
        padded = emit(op.nn.pad(real, widths, pad_value=0.0))
        wide = emit(quantize(emit(op.reshape(padded, (2, 6, 7))), 0.5, -7))
        return dequantize(wide, 0.5, -7)

    ran = Ran(build(model, image), image)
    assert ran.on_host == [] and ran.regions == 1, ran.on_host
    (node,) = ran.nodes("copy")
    assert node.endswith(", scale 0.5, zero point -7"), node
    # The zero point stands for 0.
    want = np.pad(image, ((0, 0), (0, 0), (1, 2), (0, 3)))
    np.testing.assert_array_equal(ran.results, want.reshape(2, 6, 7))


def softmax(x: Any, axis: int) -> Any:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def check_softmax() -> None:
    x = integers((2, 5, 3, 4))
    real = (x - 3.0) * 0.05
    for axis in (-1, 1):

        def model(emit: Any, x: Any, axis: int = axis) -> Any:
            return quantize(emit(op.nn.softmax(emit(dequantize(x, 0.05, 3)), axis)), 1 / 256, -128)

        want = rounded(softmax(real, axis) * F32(256), -128)
        for lacks, is_whole in (("", True), ("integers", False), ("softmax", None)):
            ran = Ran(build(model, x), x, lacks=lacks)
            if is_whole is None:
                # Not even its parts: the driver has no maximum of an axis.
                assert ran.on_host and "relax.nn.softmax" in ran.on_host[0], ran.on_host
                assert "(as one operation: it lacks a softmax)" in ran.on_host[0]
            else:
                assert ran.on_host == [] and ran.regions == 1, ran.on_host
                (node,) = ran.nodes("softmax")
                assert node.endswith(", scale 0.00390625, zero point -128") == is_whole, node
            assert np.abs(ran.results.astype(int) - want).max() <= 1
    array = random.standard_normal((3, 7), dtype="float32")
    ran = Ran(build(lambda emit, x: op.nn.softmax(x, -1), array), array)
    assert ran.on_host == [] and len(ran.nodes("softmax")) == 1
    np.testing.assert_allclose(ran.results, softmax(array, -1), rtol=1e-5, atol=1e-6)


def resized(x: Any, size: tuple[int, int]) -> Any:
    """Interpolate half pixels linearly."""
    for axis, count in ((2, size[0]), (3, size[1])):
        place = (np.arange(count) + 0.5) * x.shape[axis] / count - 0.5
        first = np.floor(place).astype(int)
        part = (place - first).reshape([-1 if i == axis else 1 for i in range(4)])
        near, far = (np.clip(first + i, 0, x.shape[axis] - 1) for i in (0, 1))
        x = np.take(x, near, axis) * (1 - part) + np.take(x, far, axis) * part
    return x


def check_resizes() -> None:
    x = integers((1, 3, 4, 5))
    real = (x - 3.0) * 0.5

    def resize(method: str, size: tuple[int, int]) -> Callable[[Any], Any]:
        return lambda data: op.image.resize2d(
            data,
            size,
            layout="NCHW",
            method=method,
            coordinate_transformation_mode="half_pixel",
            rounding_method="floor" if method == "nearest_neighbor" else "",
        )

    def linear(emit: Any, x: Any) -> Any:
        wide = emit(resize("linear", (7, 10))(emit(dequantize(x, 0.5, 3))))
        return quantize(wide, 0.25, 9)

    def nearest(emit: Any, x: Any) -> Any:
        return dequantize(
            emit(resize("nearest_neighbor", (8, 10))(emit(quantize(x, 0.5, 3)))), 0.5, 3
        )

    want = rounded(resized(real, (7, 10)) / F32(0.25), 9)
    ran = Ran(build(linear, x), x)
    assert ran.on_host == [], ran.on_host
    assert len(ran.nodes("resize")) == 1, ran.listing
    assert np.abs(ran.results.astype(int) - want).max() <= 1
    image = real.astype("float32")
    ran = Ran(build(nearest, image), image)
    assert ran.on_host == [], ran.on_host
    (node,) = ran.nodes("resize")
    assert node.endswith(", scale 0.5, zero point 3"), node
    rows, columns = ((np.arange(n) + 0.5) * k / n - 0.5 for n, k in ((8, 4), (10, 5)))
    places = [np.clip(np.floor(i + 1e-5), 0, None).astype(int) for i in (rows, columns)]
    stored = np.clip(real, -65.5, 62)
    np.testing.assert_array_equal(ran.results, stored[:, :, places[0]][:, :, :, places[1]])


def transposed(x: Any, w: Any, groups: int, stride: int, pad: int, more: int) -> Any:
    n, c, height, width = x.shape
    outputs, kernel = w.shape[1], w.shape[2]
    size = [(k - 1) * stride + kernel + more for k in (height, width)]
    out = np.zeros((n, groups * outputs, *size))
    for i in range(c):
        first = i // (c // groups) * outputs
        for y in range(height):
            for z in range(width):
                part = x[:, i, y, z][:, None, None, None] * w[i]
                rows, columns = y * stride, z * stride
                out[
                    :,
                    first : first + outputs,
                    rows : rows + kernel,
                    columns : columns + kernel,
                ] += part
    return out[:, :, pad : size[0] - pad, pad : size[1] - pad]


def check_transposed_convolutions() -> None:
    for groups, shape in ((1, (4, 3, 3, 3)), (2, (4, 2, 3, 3))):
        x, w = integers((2, 4, 5, 6)), integers(shape)
        channels = groups * shape[1]
        scales = random.uniform(0.001, 0.01, shape[1]).astype(F32)
        every = np.tile(scales, groups)
        steps = random.integers(-2000, 2000, channels)
        bias = (steps * (F32(0.05) * every).astype(np.float64)).astype(F32).reshape(-1, 1, 1)
        sums = transposed(x.astype(np.int64) - 3, w.astype(np.int64), groups, 2, 1, 1)
        in_steps = requantized(sums + steps.reshape(-1, 1, 1), 0.05, every.reshape(-1, 1, 1), 0.07)

        def model(
            emit: Any,
            x: Any,
            real: bool = False,
            groups: int = groups,
            w: Any = w,
            scales: Any = scales,
            bias: Any = bias,
        ) -> Any:
            data = emit(dequantize(x, 0.05, 3))
            weight = emit(dequantize(w, scales, np.zeros(len(scales)), axis=1))
            y = emit(
                op.nn.conv2d_transpose(
                    data, weight, strides=2, padding=1, output_padding=1, groups=groups
                )
            )
            return quantize(emit(op.nn.relu(emit(op.add(y, relax.const(bias))))), 0.07, -5)

        want = rounded(in_steps, -5, 0)
        ran = Ran(build(model, x), x)
        assert ran.on_host == [] and ran.regions == 1, ran.on_host
        (node,) = ran.nodes("transposed_convolution")
        assert node.endswith(", scale 0.0700000003, zero point -5"), node
        np.testing.assert_array_equal(ran.results, want)
        wrong = Ran(build(model, x), x, fault="axis")
        assert not np.array_equal(wrong.results, want)
        other = Ran(build(model, x), x, lacks="transposed_convolution")
        assert not other.nodes("transposed_convolution")
        assert np.abs(other.results.astype(int) - want).max() <= 1


def check_hard_swish() -> None:
    x = integers((1, 3, 4, 5))
    real = (x - 3.0) * 0.05
    want = rounded(real * np.clip(real + 3, 0, 6) / 6 / F32(0.04), 2)

    def spelled(emit: Any, x: Any, kind: int) -> Any:
        const = lambda number: relax.const(number, "float32")  # noqa: E731
        if kind == 0:
            inner = emit(op.clip(emit(op.add(x, const(3))), 0, 6))
            return op.divide(emit(op.multiply(x, inner)), const(6))
        if kind == 1:
            inner = emit(op.clip(emit(op.add(x, const(3))), 0, 6))
            return op.multiply(emit(op.multiply(inner, const(1 / 6))), x)
        line = emit(op.add(emit(op.multiply(x, const(1 / 6))), const(0.5)))
        return op.multiply(emit(op.clip(line, 0, 1)), x)

    for kind in (0, 1, 2):

        def model(emit: Any, x: Any, kind: int = kind) -> Any:
            return quantize(emit(spelled(emit, emit(dequantize(x, 0.05, 3)), kind)), 0.04, 2)

        for lacks in ("", "hard_swish"):
            ran = Ran(build(model, x), x, lacks=lacks)
            assert ran.on_host == [], ran.on_host
            assert np.abs(ran.results.astype(int) - want).max() <= 1
            assert len(ran.nodes("hard_swish")) == (not lacks), ran.listing
            assert bool(ran.nodes("multiply")) == bool(lacks), ran.listing
        array = real.astype("float32")
        ran = Ran(build(lambda emit, x, kind=kind: spelled(emit, x, kind), array), array)
        (node,) = ran.nodes("hard_swish")
        np.testing.assert_allclose(
            ran.results, real * np.clip(real + 3, 0, 6) / 6, rtol=1e-5, atol=1e-5
        )


def check_hard_swish_behind_a_convolution() -> None:
    x, w = integers((1, 4, 5, 5)), integers((3, 4, 3, 3))
    sums = convolved(x, w, 1, 1, 0) * (np.float64(F32(0.05)) * F32(0.002))
    want = rounded(sums * np.clip(sums + 3, 0, 6) / 6 / F32(0.04), 2)

    def model(emit: Any, x: Any) -> Any:
        weight = emit(dequantize(w, 0.002, 0))
        y = emit(op.nn.conv2d(emit(dequantize(x, 0.05, 0)), weight))
        inner = emit(op.clip(emit(op.add(y, relax.const(3, "float32"))), 0, 6))
        y = emit(op.divide(emit(op.multiply(y, inner)), relax.const(6, "float32")))
        return quantize(y, 0.04, 2)

    for lacks in ("", "hard_swish"):
        ran = Ran(build(model, x), x, lacks=lacks)
        assert ran.on_host == [] and ran.regions == 1, ran.on_host
        kinds = [line.split()[0] for line in ran.listing.splitlines() if " -> " in line]
        # What has no scale in between is a real number.
        inside = ["hard_swish"] if not lacks else ["add", "clip", "multiply", "divide"]
        assert kinds == ["convolution", *inside, "quantize"], ran.listing
        assert np.abs(ran.results.astype(int) - want).max() <= 1


def check_a_chain() -> None:
    """Whole operations follow the order of what they read: nothing is transposed."""
    array = random.standard_normal((1, 3, 5, 6), dtype="float32")
    weights = [
        random.standard_normal(shape, dtype="float32") for shape in ((4, 3, 3, 3), (8, 5, 2, 2))
    ]

    def model(emit: Any, x: Any) -> Any:
        y = emit(op.nn.conv2d(x, relax.const(weights[0]), padding=1))
        y = emit(op.concat([y, emit(op.nn.relu(y))], 1))
        y = emit(
            op.image.resize2d(
                y,
                (10, 9),
                layout="NCHW",
                method="linear",
                coordinate_transformation_mode="half_pixel",
                rounding_method="",
            )
        )
        y = emit(op.nn.softmax(y, 1))
        return op.nn.conv2d_transpose(y, relax.const(weights[1]), strides=2)

    module = build(model, array)
    host = relax.VirtualMachine(tvm.compile(module, tvm.target.Target("llvm")), tvm.cpu())
    want = host["main"](tvm.runtime.tensor(array)).numpy()
    ran = Ran(module, array)
    assert ran.on_host == [] and ran.regions == 1, ran.on_host
    kinds = [line.split()[0] for line in ran.listing.splitlines() if " -> " in line]
    whole = ["concat", "resize", "softmax", "transposed_convolution"]
    assert kinds == ["convolution", "relu", *whole], ran.listing
    np.testing.assert_allclose(ran.results, want, rtol=1e-4, atol=1e-5)


def check_a_network() -> None:
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return
    module = f"{PACKAGE}.engine.workbench.conformance.quantized_networks"
    model, arguments, (expected,) = importlib.import_module(module).read("resnet", "qdq")
    shares = {}
    for lacks in ("", "real results", "limits", "integers"):
        ran = Ran(model, *arguments, lacks=lacks)
        error = float(np.abs(ran.results - expected).max() / np.abs(expected).max())
        shares[lacks] = error
        assert ran.on_host == [] and ran.regions == 1, ran.on_host
        if not lacks:
            # Also those before and behind sums: each has its bias and its scale.
            assert all(", scale " in node for node in ran.nodes("convolution")), ran.listing
        # A step of the result is a hundredth of its range.
        assert error < 0.02, (lacks, error)
    print(json.dumps(shares))


check_convolution(1, (5, 6, 3, 3), 1, 1)
check_convolution(6, (6, 1, 3, 3), 2, 1)
check_convolution(2, (4, 3, 1, 1), 1, 0)
check_matmuls()
check_real_results_and_residuals()
check_whole_composites()
check_other_ops()
check_moved_integers()
check_concats()
check_pads()
check_softmax()
check_resizes()
check_transposed_convolutions()
check_hard_swish()
check_hard_swish_behind_a_convolution()
check_a_chain()
check_a_network()
print("right")
