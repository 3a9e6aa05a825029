"""What a vendor's tool is given: a region in files, read without TVM, and as an ONNX model."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import ROOT

sys.path.append(str(ROOT / "template/engine/backend/sdk"))
npu_region: Any = importlib.import_module("npu_region")

Array = np.ndarray[Any, Any]


class Build:
    """Writes a region as the driver kit does."""

    def __init__(self, channels_last: bool = False) -> None:
        self.data: dict[str, Any] = {
            "format": "npu-region",
            "version": 1,
            "id": "0123",
            "channels_last": channels_last,
            **{key: [] for key in ("values", "nodes", "inputs", "outputs")},
        }
        self.constants = b""
        self.arrays: list[Array] = []

    def _value(self, dtype: str, shape: Sequence[int], **fields: Any) -> str:
        name = f"v{len(self.data['values'])}"
        item: dict[str, Any] = {
            "name": name,
            "dtype": dtype,
            "shape": [*shape],
            "quantization": None,
            **fields,
        }
        self.data["values"].append(item)
        return name

    def input(self, array: Array, **fields: Any) -> str:
        self.arrays.append(array)
        self.data["inputs"].append({"dtype": str(array.dtype), "shape": [*array.shape]})
        place: dict[str, Any] = {"source": "input", "input": len(self.arrays) - 1}
        return self._value(str(array.dtype), array.shape, **place, **fields)

    def constant(self, array: Array, **fields: Any) -> str:
        place: dict[str, Any] = {"source": "constant", "offset": len(self.constants)}
        self.constants += array.tobytes() + bytes(64 - array.nbytes % 64)
        return self._value(str(array.dtype), array.shape, **place, **fields)

    def node(
        self,
        op: str,
        inputs: Sequence[str | None],
        like: Array,
        quantization: dict[str, Any] | None = None,
        limits: tuple[float | None, float | None] = (None, None),
        **attributes: Any,
    ) -> str:
        out = self._value(str(like.dtype), like.shape, source="node", quantization=quantization)
        item: dict[str, Any] = {
            "op": op,
            "inputs": [*inputs],
            "output": out,
            "label": f"relax.{op} ({out})",
        }
        item |= {"least": limits[0], "most": limits[1], "attributes": attributes}
        self.data["nodes"].append(item)
        return out

    def region(self, output: str, folder: Path, shape: Sequence[int] | None = None) -> Any:
        value = next(item for item in self.data["values"] if item["name"] == output)
        port = {"value": output, "dtype": value["dtype"], "shape": [*(shape or value["shape"])]}
        self.data["outputs"].append(port)
        (folder / "region.json").write_text(json.dumps(self.data))
        (folder / "constants.bin").write_bytes(self.constants)
        (folder / "options.json").write_text('{"level": "2"}')
        return npu_region.Region.read(folder)


def run_onnx(region: Any, arrays: Sequence[Array], **options: bool) -> Array:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = npu_region.to_onnx(region, **options)
    # What happens from now on is no node's fault.
    assert region.folder is None or (region.folder / "node.txt").read_text() == ""
    onnx.checker.check_model(model, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, settings, ["CPUExecutionProvider"])
    feed = {f"input{i}": array for i, array in enumerate(arrays)}
    result: Array = session.run(["output0"], feed)[0]
    return result


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    random = np.random.default_rng(seed)
    if dtype == "float32":
        return random.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max + 1, shape).astype(dtype)


def convolved(
    data: Array, weight: Array, strides: tuple[int, int], pads: tuple[int, int, int, int]
) -> Array:
    """Compute a grouped convolution of NCHW with loops."""
    top, left, bottom, right = pads
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    channels, height, width = weight.shape[1:]
    groups = data.shape[1] // channels
    rows = (padded.shape[2] - height) // strides[0] + 1
    columns = (padded.shape[3] - width) // strides[1] + 1
    out = np.zeros((len(data), len(weight), rows, columns), data.dtype)
    for o in range(len(weight)):
        first = o // (len(weight) // groups) * channels
        for y in range(rows):
            for x in range(columns):
                at, left = y * strides[0], x * strides[1]
                box = padded[:, first : first + channels, at : at + height, left : left + width]
                out[:, o, y, x] = (box * weight[o]).sum((1, 2, 3))
    return out


def test_a_region_is_read_with_its_constants_and_options(tmp_path: Path) -> None:
    build = Build()
    weight = numbers(3, 2)
    out = build.node(
        "matmul", [build.input(numbers(4, 3)), build.constant(weight)], numbers(4, 2), limits=(0, 6)
    )
    region = build.region(out, tmp_path)
    (node,) = region.nodes
    np.testing.assert_array_equal(region.array(region.value(node.inputs[1])), weight)
    assert (node.least, node.most, region.options) == (0, 6, {"level": "2"})
    assert region.input_of(node, 2) is None
    region.at(node)
    assert (tmp_path / "node.txt").read_text() == node.label == "relax.matmul (v2)"
    with pytest.raises(npu_region.Declined, match=r"^relax.matmul \(v2\): too large$"):
        node.decline("too large")


def test_what_is_no_region_is_refused(tmp_path: Path) -> None:
    build = Build()
    build.data["version"] = 2
    with pytest.raises(ValueError, match="version 2 of the format; this module reads up to 1"):
        build.region(build.input(numbers(1)), tmp_path)
    with pytest.raises(ValueError, match="format is not 'npu-region'"):
        npu_region.Region({})


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(tmp_path: Path, groups: int, channels_last: bool) -> None:
    data, weight, bias = numbers(2, 4, 7, 6), numbers(6, 4 // groups, 3, 2, seed=1), numbers(6)
    pads = (1, 0, 2, 1)
    expected = convolved(data, weight, (2, 1), pads) + bias[:, None, None]
    expected = np.clip(expected, -1, 2)
    order = (0, 2, 3, 1)
    if channels_last:
        data, weight, expected = (item.transpose(order) for item in (data, weight, expected))
        data, weight = np.ascontiguousarray(data), np.ascontiguousarray(weight)
    build = Build(channels_last)
    out = build.node(
        "convolution",
        [build.input(data), build.constant(weight), build.constant(bias)],
        expected,
        limits=(-1, 2),
        strides=[2, 1],
        dilations=[1, 1],
        pads_begin=[*pads[:2]],
        pads_end=[*pads[2:]],
        groups=groups,
    )
    found = run_onnx(build.region(out, tmp_path), [data])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("transpose", [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("rank", [2, 3])
def test_matmuls(tmp_path: Path, rank: int, transpose: tuple[bool, bool]) -> None:
    shapes = [(4, 3), (3, 5)]
    a, b = (numbers(*((2,) * (rank - 2)), *shape) for shape in shapes)
    bias = numbers(5)
    expected = np.maximum(a @ b + bias, 0)
    stored = [
        np.ascontiguousarray(item.swapaxes(-1, -2)) if flag else item
        for item, flag in zip((a, b), transpose, strict=True)
    ]
    build = Build()
    inputs = [build.input(stored[0]), build.constant(stored[1]), build.constant(bias)]
    flags: dict[str, Any] = dict(zip(("transpose_a", "transpose_b"), transpose, strict=True))
    out = build.node("matmul", inputs, expected, limits=(0, None), **flags)
    found = run_onnx(build.region(out, tmp_path), stored[:1])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def windows(data: Array, window: int, stride: int, fill: float, pads: tuple[int, int]) -> Array:
    padded = np.pad(data, ((0, 0), (0, 0), pads, pads), constant_values=fill)
    views = np.lib.stride_tricks.sliding_window_view(padded, (window, window), (2, 3))
    result: Array = views[:, :, ::stride, ::stride]
    return result


@pytest.mark.parametrize("kind", ["max", "average", "average_include_pad"])
@pytest.mark.parametrize("ceil", [False, True])
def test_pools(tmp_path: Path, kind: str, ceil: bool) -> None:
    data = numbers(1, 2, 6, 6)
    pads = (1, 1) if not ceil else (1, 2)
    if kind == "max":
        expected = windows(data, 3, 2, -np.inf, pads).max((4, 5))
    elif kind == "average":
        expected = np.nanmean(windows(data, 3, 2, np.nan, pads), (4, 5))
    else:
        expected = windows(data, 3, 2, 0, pads).mean((4, 5))
    build = Build()
    attributes: dict[str, Any] = {"window": [3, 3], "strides": [2, 2], "dilations": [1, 1]}
    # In ceil mode only the shape of the result says so.
    attributes |= {"pads_begin": [1, 1], "pads_end": [1, 1]}
    out = build.node("pool", [build.input(data)], expected, kind=kind, **attributes)
    region = build.region(out, tmp_path)
    if ceil and kind == "average_include_pad":
        with pytest.raises(npu_region.Declined, match=r"relax.pool \(v1\): a mean that counts"):
            npu_region.to_onnx(region)
        return
    np.testing.assert_allclose(run_onnx(region, [data]), expected, atol=1e-6)


def test_adaptive_pools(tmp_path: Path) -> None:
    data = numbers(1, 3, 6, 4)
    expected = data.reshape(1, 3, 3, 2, 2, 2).mean((3, 5))
    build = Build()
    out = build.node("pool", [build.input(data)], expected, kind="average_adaptive")
    np.testing.assert_allclose(run_onnx(build.region(out, tmp_path), [data]), expected, atol=1e-6)


def scales(number: float, zero: int) -> dict[str, Any]:
    return {"scale": number, "zero_point": zero, "axis": None}


@pytest.mark.parametrize("axis", [0, 1])
def test_concats_of_many_tensors_each_with_its_scale(tmp_path: Path, axis: int) -> None:
    arrays = [numbers(2, 3, seed=i) for i in range(6)]
    build = Build()
    expected = np.concatenate(arrays, axis)
    out = build.node("concat", [build.input(item) for item in arrays], expected, axis=axis)
    np.testing.assert_array_equal(run_onnx(build.region(out, tmp_path), arrays), expected)

    stored = [numbers(2, 3, seed=i, dtype="int8") for i in range(5)]
    real = np.concatenate([(item - 2.0) * 0.5 * (i + 1) for i, item in enumerate(stored)], axis)
    for own, expected in (
        (True, np.clip(np.rint(real / 0.75) - 4, -128, 127).astype("int8")),
        (False, np.concatenate(stored, axis)),
    ):
        build = Build()
        inputs = [
            build.input(item, quantization=scales(0.5 * (i + 1), 2) if own else scales(0.75, -4))
            for i, item in enumerate(stored)
        ]
        out = build.node("concat", inputs, expected, scales(0.75, -4), axis=axis)
        region = build.region(out, tmp_path)
        np.testing.assert_array_equal(run_onnx(region, stored), expected)
        # What has one scale is moved as it is.
        assert (b"DequantizeLinear" in npu_region.to_onnx(region)) == own
        with pytest.raises(npu_region.Declined, match="TOSA's integers are rescaled"):
            npu_region.to_tosa(region)


def test_a_concat_in_tosa_moves_numbers(tmp_path: Path) -> None:
    build = Build(channels_last=True)
    arrays = [numbers(2, 3, dtype="int8"), numbers(2, 4, dtype="int8")]
    inputs = [build.input(item) for item in arrays]
    out = build.node("concat", inputs, np.concatenate(arrays, 1), axis=1)
    text = npu_region.to_tosa(build.region(out, tmp_path))
    assert '"tosa.concat"(%input0, %input1) <{axis = 1 : i32}> : ' in text
    assert "-> tensor<2x7xi8>" in text


@pytest.mark.parametrize("logarithm", [False, True])
def test_softmax(tmp_path: Path, logarithm: bool) -> None:
    data = numbers(2, 5, 3)
    powers = np.exp(data - data.max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True)
    attributes = {"axis": 1, "logarithm": logarithm}
    build = Build(channels_last=True)
    like = np.log(expected) if logarithm else expected
    region = build.region(build.node("softmax", [build.input(data)], like, **attributes), tmp_path)
    np.testing.assert_allclose(run_onnx(region, [data]), like, rtol=1e-5, atol=1e-6)
    # The engine then composes it.
    with pytest.raises(npu_region.Declined, match="TOSA has no softmax as one operator"):
        npu_region.to_tosa(region)
    if logarithm:
        return
    stored = numbers(2, 5, 3, dtype="int8")
    real = np.exp(stored * 0.05 - (stored * 0.05).max(1, keepdims=True))
    steps = np.rint(real / real.sum(1, keepdims=True) * 256) - 128
    expected = np.clip(steps, -128, 127).astype("int8")
    build = Build()
    data = build.input(stored, quantization=scales(0.05, 0))
    out = build.node("softmax", [data], expected, scales(1 / 256, -128), **attributes)
    found = run_onnx(build.region(out, tmp_path), [stored])
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_hard_swish(tmp_path: Path) -> None:
    data = 3 * numbers(4, 5)
    expected = data * np.clip(data + 3, 0, 6) / 6
    build = Build()
    out = build.node("hard_swish", [build.input(data)], expected, numbers=[0, 0, 0, 0])
    found = run_onnx(build.region(out, tmp_path), [data])
    np.testing.assert_allclose(found, expected, atol=1e-6)


RESIZE = {"rounding": "floor", "cubic_alpha": -0.75, "cubic_exclude": False}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("position", ["half_pixel", "asymmetric", "align_corners"])
def test_resizes(tmp_path: Path, position: str, channels_last: bool) -> None:
    data = numbers(1, 2, 4, 5)
    linear, nearest = data, data
    for axis, count in ((2, 7), (3, 10)):
        size = data.shape[axis]
        i = np.arange(count)
        place = {
            "half_pixel": (i + 0.5) * size / count - 0.5,
            "asymmetric": i * size / count,
            "align_corners": i * (size - 1) / (count - 1),
        }[position]
        first = np.floor(place).astype(int)
        part = (place - first).reshape([-1 if k == axis else 1 for k in range(4)])
        near, far = (np.clip(first + k, 0, size - 1) for k in (0, 1))
        linear = np.take(linear, near, axis) * (1 - part) + np.take(linear, far, axis) * part
        # Twice the size, so that no position depends on its last bit.
        double = {"half_pixel": (np.arange(2 * size) + 0.5) / 2 - 0.5}.get(
            position, np.arange(2 * size) / 2
        )
        places = np.clip(np.floor(double), 0, None).astype(int)
        nearest = np.take(nearest, places, axis)
    order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
    axes = [1, 2] if channels_last else [2, 3]
    given = np.ascontiguousarray(data.transpose(order))
    for kind, expected in (("linear", linear), ("nearest", nearest)):
        if kind == "nearest" and position == "align_corners":
            continue
        build = Build(channels_last)
        expected = expected.transpose(order).astype("float32")
        attributes = {**RESIZE, "kind": kind, "position": position, "axes": axes}
        out = build.node("resize", [build.input(given)], expected, **attributes)
        region = build.region(out, tmp_path)
        found = run_onnx(region, [given], rounds_positions=True)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        if kind == "linear":
            with pytest.raises(npu_region.Declined, match="rounds positions to float32"):
                npu_region.to_onnx(region)
            why = npu_region.onnx_reason(region.nodes[0], region)
            assert why.endswith("Resize of ONNX rounds positions to float32 (rounds_positions)")
            assert not npu_region.onnx_reason(region.nodes[0], region, rounds_positions=True)


@pytest.mark.parametrize(
    ("position", "sizes", "is_exact"),
    [
        ("half_pixel", (3, 6), True),
        ("half_pixel", (12, 3), True),
        ("half_pixel", (3, 9), False),
        ("asymmetric", (4, 6), False),
        ("align_corners", (5, 9), True),
        ("align_corners", (5, 10), False),
        ("align_corners", (7, 4), True),
    ],
)
def test_positions_that_float32_has_are_those_divided_by_powers_of_two(
    tmp_path: Path, position: str, sizes: tuple[int, int], is_exact: bool
) -> None:
    data, like = (numbers(1, 1, size, size) for size in sizes)
    build = Build()
    attributes: dict[str, Any] = {**RESIZE, "kind": "linear", "position": position}
    out = build.node("resize", [build.input(data)], like, axes=[2, 3], **attributes)
    region = build.region(out, tmp_path)
    assert (npu_region.onnx_reason(region.nodes[0], region) is None) == is_exact
    # Each position times some power of two is a whole number, or not.
    size, count = sizes
    i = np.arange(count)
    places = {
        "half_pixel": (i + 0.5) * size / count - 0.5,
        "asymmetric": i * size / count,
        "align_corners": i * (size - 1) / (count - 1),
    }[position]
    assert (places * 1024 % 1 == 0).all() == is_exact


def test_float16_is_resized_in_float32(tmp_path: Path) -> None:
    data = numbers(1, 1, 1, 2).astype("float16")
    first, second = data.astype("float64")[0, 0, 0]
    places = np.clip((np.arange(6) + 0.5) / 3 - 0.5, 0, 1)
    expected = (first + (second - first) * places).astype("float16").reshape(1, 1, 1, 6)
    build = Build()
    attributes: dict[str, Any] = {"kind": "linear", "position": "half_pixel", "axes": [2, 3]}
    out = build.node("resize", [build.input(data)], expected, **RESIZE, **attributes)
    region = build.region(out, tmp_path)
    found = run_onnx(region, [data], rounds_positions=True)
    np.testing.assert_array_equal(found, expected)
    assert npu_region.to_onnx(region, rounds_positions=True).count(b"Cast") > 1


@pytest.mark.parametrize(
    ("changed", "count", "why"),
    [
        ({"position": "tf_half_pixel_for_nn"}, 8, "no tf_half_pixel_for_nn"),
        ({"rounding": "even"}, 8, "does not round halves to even"),
        # Element 5 is at 5 * 4 / 10, exactly 2.
        ({}, 10, "which element is nearest is not certain"),
        ({"dtype": "int16"}, 8, "runtimes of ONNX do not resize int16"),
    ],
)
def test_a_resize_that_onnx_may_compute_differently_is_declined(
    tmp_path: Path, changed: dict[str, Any], count: int, why: str
) -> None:
    build = Build()
    attributes: dict[str, Any] = {**RESIZE, "kind": "nearest", "position": "asymmetric"}
    attributes |= {"axes": [2, 3], **changed}
    dtype = attributes.pop("dtype", "float32")
    data, like = (numbers(1, 1, size, size, dtype=dtype) for size in (4, count))
    out = build.node("resize", [build.input(data)], like, **attributes)
    with pytest.raises(npu_region.Declined, match=rf"relax.resize \(v1\): .*{why}"):
        npu_region.to_onnx(build.region(out, tmp_path))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(tmp_path: Path, groups: int, channels_last: bool) -> None:
    data, weight, bias = numbers(2, 4, 3, 5), numbers(4, 6 // groups, 3, 2, seed=1), numbers(6)
    whole = np.zeros((2, 6, 2 * 2 + 3 + 1, 4 + 2), "float32")
    for i in range(4):
        outputs = 6 // groups
        first = i // (4 // groups) * outputs
        for y in range(3):
            for x in range(5):
                part = data[:, i, y, x][:, None, None, None] * weight[i]
                whole[:, first : first + outputs, 2 * y : 2 * y + 3, x : x + 2] += part
    # One line of output padding, and one element less on each side of the lines.
    expected = np.maximum(whole[:, :, 1:-1] + bias[:, None, None], 0)
    if channels_last:
        data, expected = (item.transpose(0, 2, 3, 1) for item in (data, expected))
        weight = np.ascontiguousarray(weight.transpose(1, 2, 3, 0))
        data = np.ascontiguousarray(data)
    build = Build(channels_last)
    out = build.node(
        "transposed_convolution",
        [build.input(data), build.constant(weight), build.constant(bias)],
        expected,
        limits=(0, None),
        strides=[2, 1],
        dilations=[1, 1],
        pads_begin=[1, 0],
        pads_end=[1, 0],
        output_padding=[1, 0],
        groups=groups,
    )
    found = run_onnx(build.region(out, tmp_path), [data])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_operation_of_a_vendor_is_declined_by_its_name(tmp_path: Path) -> None:
    build = Build(channels_last=True)
    data = numbers(2, 3)
    region = build.region(
        build.node("acme.mish", [build.input(data)], data, bytes=[0] * 128), tmp_path
    )
    for write, name in ((npu_region.to_onnx, "ONNX"), (npu_region.to_tosa, "TOSA")):
        with pytest.raises(npu_region.Declined, match=rf"{name} has no acme.mish"):
            write(region)


def test_reductions_with_and_without_the_dimensions(tmp_path: Path) -> None:
    data = numbers(2, 3, 4)
    functions: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
    for kind, function in functions.items():
        for kept in (True, False):
            expected = function(data, axis=(0, 2), keepdims=kept)
            build = Build()
            out = build.node("reduction", [build.input(data)], expected, kind=kind, axes=[0, 2])
            found = run_onnx(build.region(out, tmp_path), [data])
            np.testing.assert_allclose(found, expected, atol=1e-6)


COPIES: list[tuple[Callable[[Array], Array], dict[str, Any]]] = [
    (lambda x: x.transpose(2, 0, 1), {"permutation": [2, 0, 1]}),
    (lambda x: x[:, 1:, ::2], {"data_offset": [0, 1, 0], "data_step": [1, 1, 2]}),
    (lambda x: x[:, ::-1], {"data_offset": [0, 3, 0], "data_step": [1, -1, 1]}),
    (
        lambda x: np.pad(x, ((0, 0), (2, 0), (0, 1)), constant_values=-1.5),
        {"out_offset": [0, 2, 0], "fill": True, "fill_value": -1.5},
    ),
    (
        lambda x: np.pad(x.transpose(1, 0, 2)[2:], ((1, 1), (0, 0), (0, 0))),
        {
            "permutation": [1, 0, 2],
            "data_offset": [0, 2, 0],
            "out_offset": [1, 0, 0],
            "fill": True,
        },
    ),
]


@pytest.mark.parametrize("case", range(len(COPIES)))
def test_copies(tmp_path: Path, case: int) -> None:
    function, given = COPIES[case]
    data = numbers(3, 4, 5)
    expected = function(data)
    build = Build()
    attributes: dict[str, Any] = {
        "permutation": [0, 1, 2],
        "data_offset": [0] * 3,
        "data_step": [1] * 3,
    }
    attributes |= {"out_offset": [0] * 3, "out_step": [1] * 3, "fill": False, "fill_value": 0}
    out = build.node("copy", [build.input(data)], expected, **{**attributes, **given})
    np.testing.assert_array_equal(run_onnx(build.region(out, tmp_path), [data]), expected)


def test_indices_outside_read_the_nearest_element(tmp_path: Path) -> None:
    data, indices = numbers(3, 4), np.array([[-1, 2, 9]])
    build = Build()
    expected = data[:, np.clip(indices, 0, 3)]
    names = [build.input(data), build.input(indices)]
    out = build.node("gather", names, expected, axis=1, elementwise=False)
    found = run_onnx(build.region(out, tmp_path), [data, indices])
    np.testing.assert_array_equal(found, expected)


def test_orders_scans_and_reshapes(tmp_path: Path) -> None:
    data = numbers(3, 8)
    ordered = np.argsort(-data, axis=1)[:, :5].astype("int32")
    build = Build()
    out = build.node("order", [build.input(data)], ordered, axis=1, descending=True)
    np.testing.assert_array_equal(run_onnx(build.region(out, tmp_path), [data]), ordered)
    build = Build()
    summed = np.cumsum(data, 1) - data
    scanned = build.node("scan", [build.input(data)], summed, kind="sum", axis=1, exclusive=True)
    out = build.node("reshape", [scanned], summed.reshape(4, 6))
    found = run_onnx(build.region(out, tmp_path, [24]), [data])
    np.testing.assert_allclose(found, summed.reshape(24), atol=1e-6)


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


STEPS: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "add": (np.add, []),
    "subtract": (np.subtract, []),
    "scale": (np.multiply, []),
    "divide": (np.divide, []),
    "maximum": (np.maximum, []),
    "less": (lambda x, y: np.less(x, y).astype("float32"), []),
    "select": (lambda x, y: np.where(x, y, x), []),
    "negate": (lambda x, y: -x, []),
    "rsqrt": (lambda x, y: 1 / np.sqrt(x), []),
    "square": (lambda x, y: x * x, []),
    "silu": (lambda x, y: x * sigmoid(x), []),
    "truncate": (lambda x, y: np.trunc(x), []),
    "round_even": (lambda x, y: np.round(x), []),
    "remainder": (np.fmod, []),
    "floor_divide": (lambda x, y: np.floor(x / y), []),
    "clip": (lambda x, y: np.clip(x, -0.5, 0.25), [0, -0.5, 0.25]),
    "leaky_relu": (lambda x, y: np.where(x > 0, x, x * 0.1), [0, 0.1]),
    "softplus": (lambda x, y: np.log1p(np.exp(2 * x)) / 2, [0, 2, 20]),
    "gelu_tanh": (
        lambda x, y: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        [],
    ),
}
BINARY = {"add", "subtract", "scale", "divide", "maximum", "less", "remainder", "floor_divide"}


@pytest.mark.parametrize("op", STEPS)
def test_steps(tmp_path: Path, op: str) -> None:
    function, given = STEPS[op]
    x, y = numbers(3, 4, 5), numbers(4, 1, seed=1)
    x = np.abs(x) if op == "rsqrt" else x
    expected = function(x, y).astype("float32")
    build = Build()
    first, second = build.input(x), build.constant(y)
    inputs = [first, second] if op in BINARY else [first]
    if op == "select":
        inputs = [first, second, first]
    out = build.node(op, inputs, expected, numbers=[*given, *[0] * (4 - len(given))])
    found = run_onnx(build.region(out, tmp_path), [x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_onnx_lacks_is_declined_with_the_label(tmp_path: Path) -> None:
    build = Build()
    out = build.node("round_away", [build.input(numbers(3))], numbers(3), numbers=[0] * 4)
    region = build.region(out, tmp_path)
    sentence = "relax.round_away (v1): ONNX has no round_away"
    with pytest.raises(npu_region.Declined, match=re.escape(sentence)):
        npu_region.to_onnx(region)
    # The cheap question, without elements of constants.
    assert npu_region.onnx_reason(region.nodes[0], region) == sentence
    data = {key: build.data[key] for key in ("format", "version", "channels_last", "values")}
    asked = npu_region.Region({**data, "nodes": build.data["nodes"]})
    assert npu_region.onnx_reason(asked.nodes[0], asked) == sentence
    build = Build()
    data = numbers(3, dtype="int32")
    out = build.node("divide", [build.input(data)] * 2, data, numbers=[0] * 4)
    region = build.region(out, tmp_path)
    with pytest.raises(npu_region.Declined, match="ONNX computes divide differently for int32"):
        npu_region.to_onnx(region)


def quantized(x: Array, scale: Any, zero: Any, dtype: str = "int8") -> Array:
    limits = np.iinfo(dtype)
    rounded = np.round(x / scale) + zero
    result: Array = np.clip(rounded, limits.min, limits.max).astype(dtype)
    return result


def test_quantize_and_dequantize_also_by_channel(tmp_path: Path) -> None:
    data = numbers(2, 3, 4)
    scales, zeros = np.array([0.1, 0.02, 0.5], "float32"), np.array([-3, 0, 7], "int32")
    column = (scales[:, None], zeros[:, None])
    integers = quantized(data, *column)
    expected = ((integers.astype("int32") - column[1]) * column[0]).astype("float32")
    build = Build()
    names = [build.constant(scales), build.constant(zeros)]
    given: dict[str, Any] = {"scale": names[0], "zero_point": names[1], "axis": 1}
    inside = build.node("quantize", [build.input(data), *names], integers, given, **given)
    out = build.node("dequantize", [inside, *names], expected, **given)
    region = build.region(out, tmp_path)
    np.testing.assert_array_equal(run_onnx(region, [data]), expected)
    asked = npu_region.Region({**build.data, "nodes": build.data["nodes"][:1]})
    assert npu_region.onnx_reason(asked.nodes[0], asked) is None


@pytest.mark.parametrize("form", ["constants", "lists"])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_whole_node_of_integers_is_between_its_scales(
    tmp_path: Path, form: str, dtype: str
) -> None:
    data, weight = numbers(4, 8, dtype="int8"), numbers(8, 3, seed=2, dtype="int8")
    bias, scales = np.array([100, -50, 3], "int32"), np.array([0.01, 0.02, 0.005], "float32")
    build = Build()
    by_column: dict[str, Any] = {"scale": scales.tolist(), "zero_point": [0] * 3, "axis": 1}
    products: Any = (scales * np.float32(0.1)).tolist()
    if form == "constants":
        by_column = {"scale": build.constant(scales), "zero_point": 0, "axis": 1}
        products = build.constant(scales * np.float32(0.1))
    inputs = [
        build.input(data, quantization={"scale": 0.1, "zero_point": -5, "axis": None}),
        build.constant(weight, quantization=by_column),
        build.constant(bias, quantization={"scale": products, "zero_point": 0, "axis": 0}),
    ]
    real = (data.astype("int32") + 5) @ weight.astype("int32") + bias
    expected = np.maximum(real * scales * 0.1, 0).astype("float32")
    given: dict[str, Any] = {"scale": 0.25, "zero_point": -128, "axis": None}
    flags: dict[str, Any] = {"transpose_a": False, "transpose_b": False}
    if dtype == "float32":
        # What a residual is added to has no scale.
        out = build.node("matmul", inputs, expected, None, (0, None), **flags)
        found = run_onnx(build.region(out, tmp_path), [data])
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        return
    expected = quantized(expected, 0.25, -128)
    out = build.node("matmul", inputs, expected, given, (0, None), **flags)
    found = run_onnx(build.region(out, tmp_path), [data])
    steps = np.abs(found.astype(int) - expected.astype(int))
    assert steps.max() <= 1 and (steps > 0).mean() < 0.1


WINDOW: dict[str, Any] = {"strides": [1, 1], "dilations": [1, 1]}
WINDOW |= {"pads_begin": [0, 0], "pads_end": [0, 0], "groups": 1}
WHOLE: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "concat": ((1, 4, 3, 3), {"axis": 1}),
    "convolution": ((1, 2, 3, 3), WINDOW),
    "gather": ((1, 2, 3, 3), {"axis": 1, "elementwise": False}),
    "matmul": ((1, 2, 3, 3), {"transpose_a": False, "transpose_b": False}),
    "pool": ((1, 2, 2, 2), WINDOW | {"kind": "average", "window": [2, 2]}),
    "reduction": ((1, 2, 3, 1), {"axes": [3], "kind": "sum"}),
    "reshape": ((2, 9), {}),
    "scan": ((1, 2, 3, 3), {"kind": "sum", "axis": 1, "exclusive": False}),
    "softmax": ((1, 2, 3, 3), {"axis": 1, "logarithm": False}),
    "transposed_convolution": ((1, 2, 3, 3), WINDOW | {"output_padding": [0, 0]}),
}
"""Operations, the shapes of their results, and attributes."""
HEADER = (ROOT / "template/engine/backend/include/npu_driver.h").read_text()
STEP_NAMES = {name.lower() for name in re.findall(r"\bNPU_STEP_(\w+) = ", HEADER)}
PAIRS = BINARY | {"bias", "residual", "multiply", "minimum", "power", "equal", "prelu", "concat"}
PAIRS |= {"matmul"}
ABSENT = {"other", "round_away", "rescale"}
"""Steps that ONNX has not."""


@pytest.mark.parametrize(
    ("data", "result"),
    [
        *product(("int8", "uint8"), ("int8", "uint8", "float32", "float16")),
        ("float16", "float16"),  # A node of real numbers keeps their type.
    ],
)
def test_every_op_with_scales_is_a_valid_model(tmp_path: Path, data: str, result: str) -> None:
    """ONNX Runtime checks the types of all nodes when it loads the model."""
    x = np.abs(numbers(1, 2, 3, 3, seed=1) * 9).astype(data)
    scaled = {"scale": 0.05, "zero_point": 3, "axis": None}
    given = None if data == "float16" else scaled
    like_scales = scaled if "int" in result else None
    declined = set()
    for op in sorted({*STEP_NAMES, *WHOLE}):
        shape, attributes = WHOLE.get(op, (x.shape, {"numbers": [0, 2, 20, 0]}))
        build = Build()
        first = build.input(x, quantization=given)
        inputs = [first]
        if op in ("convolution", "transposed_convolution"):
            inputs.append(build.constant(x[0, :, :2, :1, None], quantization=given))
        elif op == "gather":
            inputs.append(build.constant(np.array([1, 0], "int32")))
        elif op in PAIRS or op == "select":
            inputs.append(build.constant(x, quantization=given))
        if op == "select":
            inputs.insert(0, build.constant(np.ones(x.shape, "bool")))
        limits = (-1.0, 2.0) if op in ("add", "matmul", "convolution") else (None, None)
        like = np.zeros(shape, result)
        out = build.node(op, inputs, like, like_scales, limits, **attributes)
        region = build.region(out, tmp_path)
        if npu_region.onnx_reason(region.nodes[0], region) is not None:
            declined.add(op)
            continue
        found = run_onnx(region, [x])
        assert (found.dtype, found.shape) == (like.dtype, like.shape), op
    # What moves numbers does not change their type; a concat moves those of one scale.
    moves = {"gather", "reshape"} | ({"concat"} if like_scales else set())
    assert declined == ABSENT | (moves if data != result else set())


def test_inputs_that_no_node_reads_are_not_in_the_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    build = Build()
    build.input(numbers(4))
    read = build.input(numbers(3))
    out = build.node("relu", [read], numbers(3), numbers=[0] * 4)
    region = build.region(out, tmp_path)
    # As the driver kit writes it: what is not read is an input, but no value.
    region.values.pop("v0")
    model = onnx.load_from_string(npu_region.to_onnx(region))
    assert [value.name for value in model.graph.input] == ["input1"]


@pytest.mark.parametrize("of_integers", [False, True])
def test_a_question_is_a_model_with_constants_of_zeros(tmp_path: Path, of_integers: bool) -> None:
    """As the driver kit asks it: nodes without labels, a program without outputs, no elements."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    build = Build()
    dtype = "int8" if of_integers else "float32"
    data, weight = numbers(4, 8, dtype=dtype), numbers(8, 3, dtype=dtype)
    scales, zeros = build.constant(np.full(3, 0.5, "float32")), 0
    by_column = {"scale": scales, "zero_point": zeros, "axis": 1} if of_integers else None
    whole = {"scale": 0.1, "zero_point": 5, "axis": None} if of_integers else None
    inputs = [
        build.input(data, quantization=whole),
        build.constant(weight, quantization=by_column),
    ]
    flags: dict[str, Any] = {"transpose_a": False, "transpose_b": False}
    build.node("matmul", inputs, numbers(4, 3, dtype=dtype), whole, **flags)
    build.data["nodes"][0]["label"] = ""
    region = npu_region.Region(build.data)
    model = npu_region.to_onnx(region)
    onnx.checker.check_model(model, full_check=True)
    session = runtime.InferenceSession(model, None, ["CPUExecutionProvider"])
    (found,) = session.run(None, {"input0": data})
    expected = np.full((4, 3), 5 if of_integers else 0, dtype)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="only compile_region sees them"):
        region.array(region.value(inputs[1]))


def test_integers_of_one_scale_become_those_of_another(tmp_path: Path) -> None:
    data = numbers(3, 5, dtype="int8")
    build = Build()
    inside = build.input(data, quantization={"scale": 0.1, "zero_point": -5, "axis": None})
    to: dict[str, Any] = {"scale": 0.25, "zero_point": 3, "axis": None}
    expected = quantized((data.astype("int32") + 5) * np.float32(0.1), np.float32(0.25), 3)
    out = build.node("quantize", [inside], expected, to, **to)
    np.testing.assert_array_equal(run_onnx(build.region(out, tmp_path), [data]), expected)
