# SPDX-License-Identifier: Apache-2.0
"""Small networks in ONNX, as its exporters write them; they need only onnx."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...backend.api import Array
from .networks import build_onnx, mobilenet_v2, resnet18

if TYPE_CHECKING:
    import tvm
    from onnx import ModelProto

Shape = tuple[int, ...]
Network = tuple["ModelProto", Sequence[Array]]
"""A model of ONNX, and its inputs."""

_OPSET = 17


def _random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _parse(text: str, weights: Mapping[str, Shape | Array]) -> ModelProto:
    """Read a graph; a weight is an array, or a shape to be filled at random."""
    from onnx import numpy_helper, parser

    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {_OPSET}]> {text}')
    for index, (name, weight) in enumerate(weights.items()):
        array = weight
        if isinstance(weight, tuple):
            fan_in = int(np.prod(weight[1:])) if len(weight) > 1 else 64
            array = _random(index, *weight) / np.float32(np.sqrt(fan_in))
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


# ---- Images -------------------------------------------------------------------------------------


def resnet() -> Network:
    """Two stages of residual blocks."""
    shape = (1, 3, 32, 32)
    return _load(build_onnx(partial(resnet18, widths=(8, 16), classes=10), shape)), [
        _random(100, *shape)
    ]


def mobilenet() -> Network:
    """Three stages of inverted residuals."""
    stages = ((1, 8, 1, 1), (3, 12, 2, 2), (3, 16, 1, 2))
    small = partial(mobilenet_v2, stages=stages, stem=8, last=24, classes=10)
    shape = (1, 3, 32, 32)
    return _load(build_onnx(small, shape)), [_random(100, *shape)]


def _load(serialized: bytes) -> ModelProto:
    from onnx import load_from_string

    return load_from_string(serialized)


def unet() -> Network:
    """Down by a pool, up by a transposed convolution and interpolation, with skip connections."""
    text = """
        unet (float[1, 3, 16, 16] x) => (float[1, 2, 16, 16] y) {
            a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
            one = LeakyRelu<alpha = 0.1>(a)
            b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(one)
            c = Conv<pads = [1, 1, 1, 1]>(b, w2, b2)
            gate = HardSigmoid<alpha = 0.16666667, beta = 0.5>(c)
            two = Mul(c, gate)
            d = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(two)
            e = Conv<pads = [1, 1, 1, 1]>(d, w3, b3)
            f = Elu(e)
            g = ConvTranspose<strides = [2, 2]>(f, w4, b4)
            h = Concat<axis = 1>(g, two)
            i = Conv<pads = [1, 1, 1, 1]>(h, w5, b5)
            j = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(i, , scales)
            k = Concat<axis = 1>(j, one)
            l = Conv(k, w6, b6)
            y = Sigmoid(l)
        }"""
    weights: dict[str, Shape | Array] = {
        **{"w1": (8, 3, 3, 3), "b1": (8,), "w2": (16, 8, 3, 3), "b2": (16,)},
        **{"w3": (24, 16, 3, 3), "b3": (24,), "w4": (24, 16, 2, 2), "b4": (16,)},
        **{"w5": (8, 32, 3, 3), "b5": (8,), "w6": (2, 16, 1, 1), "b6": (2,)},
        "scales": np.array([1, 1, 2, 2], "float32"),
    }
    return _parse(text, weights), [_random(100, 1, 3, 16, 16)]


def detector() -> Network:
    """Scores and boxes for each place of an image, at two scales; the best ones are kept."""
    text = """
        detector (float[1, 3, 12, 12] x)
            => (float[1, 5] top, int64[1, 5, 1] kinds, float[1, 5, 4] corners) {
            a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w1, b1)
            fine = Relu(a)
            coarse = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(fine)
            wide = Conv<pads = [1, 1, 1, 1]>(coarse, w0, b0)
            near = Resize<mode = "nearest">(wide, , doubled)
            body = Concat<axis = 1>(near, fine)
            b = Conv<pads = [1, 1, 1, 1]>(body, w2, b2)
            c = Reshape(b, rows)
            d = Transpose<perm = [0, 2, 1]>(c)
            scores = Sigmoid(d)
            best = ReduceMax<axes = [2], keepdims = 0>(scores)
            kind = ArgMax<axis = 2, keepdims = 1>(scores)
            top, index = TopK<axis = 1>(best, five)
            column = Unsqueeze(index, last)
            kinds = GatherElements<axis = 1>(kind, column)
            e = Conv<pads = [1, 1, 1, 1]>(body, w3, b3)
            f = Reshape(e, rows)
            boxes = Transpose<perm = [0, 2, 1]>(f)
            center, size = Split<axis = 2>(boxes, halves)
            g = Exp(size)
            half = Div(g, two)
            low = Sub(center, half)
            high = Add(center, half)
            h = Concat<axis = 2>(low, high)
            all = Clip(h, least, most)
            columns = Expand(column, corner)
            corners = GatherElements<axis = 1>(all, columns)
        }"""
    weights: dict[str, Shape | Array] = {
        **{"w0": (8, 8, 3, 3), "b0": (8,), "w1": (8, 3, 3, 3), "b1": (8,)},
        **{"w2": (4, 16, 3, 3), "b2": (4,), "w3": (4, 16, 3, 3), "b3": (4,)},
        "doubled": np.array([1, 1, 2, 2], "float32"),
        "rows": np.array([1, 4, -1], "int64"),
        "five": np.array([5], "int64"),
        "halves": np.array([2, 2], "int64"),
        "last": np.array([-1], "int64"),
        "corner": np.array([1, 5, 4], "int64"),
        "two": np.array(2, "float32"),
        "least": np.array(-4, "float32"),
        "most": np.array(4, "float32"),
    }
    return _parse(text, weights), [_random(100, 1, 3, 12, 12)]


# ---- Text ---------------------------------------------------------------------------------------

_WIDTH, _HEADS, _WORDS = 32, 4, 50
_SIZE = _WIDTH // _HEADS


def _linear(x: str, y: str, name: str) -> str:
    return f"{y}_m = MatMul({x}, {name}_w) {y} = Add({y}_m, {name}_b)"


def _heads(x: str, y: str) -> str:
    return f"{y}_r = Reshape({x}, heads) {y} = Transpose<perm = [0, 2, 1, 3]>({y}_r)"


def _layers(count: int, layer: Callable[[int], str]) -> str:
    return "\n".join(layer(index) for index in range(count))


def bert() -> Network:
    """Encode tokens, with an attention mask."""

    def layer(n: int) -> str:
        return f"""
            {_linear(f"x{n}", f"q{n}", f"query{n}")} {_heads(f"q{n}", f"qh{n}")}
            {_linear(f"x{n}", f"k{n}", f"key{n}")}
            kr{n} = Reshape(k{n}, heads)
            kt{n} = Transpose<perm = [0, 2, 3, 1]>(kr{n})
            {_linear(f"x{n}", f"v{n}", f"value{n}")} {_heads(f"v{n}", f"vh{n}")}
            s{n} = MatMul(qh{n}, kt{n})
            scaled{n} = Div(s{n}, root)
            masked{n} = Add(scaled{n}, added)
            p{n} = Softmax<axis = -1>(masked{n})
            m{n} = MatMul(p{n}, vh{n})
            mt{n} = Transpose<perm = [0, 2, 1, 3]>(m{n})
            mr{n} = Reshape(mt{n}, flat)
            {_linear(f"mr{n}", f"o{n}", f"project{n}")}
            r{n} = Add(x{n}, o{n})
            y{n} = LayerNormalization<axis = -1, epsilon = 1e-5>(r{n}, gain, shift)
            {_linear(f"y{n}", f"h{n}", f"expand{n}")}
            hs{n} = Div(h{n}, sqrt2)
            he{n} = Erf(hs{n})
            ha{n} = Add(he{n}, one)
            hm{n} = Mul(h{n}, ha{n})
            g{n} = Mul(hm{n}, half)
            {_linear(f"g{n}", f"c{n}", f"contract{n}")}
            z{n} = Add(y{n}, c{n})
            x{n + 1} = LayerNormalization<axis = -1, epsilon = 1e-5>(z{n}, gain, shift)"""

    text = f"""
        bert (int64[2, 7] tokens, int64[2, 7] mask)
            => (float[2, 7, {_WIDTH}] x2, float[2, {_WIDTH}] summary) {{
            words = Gather(embedding, tokens)
            sum = Add(words, positions)
            x0 = LayerNormalization<axis = -1, epsilon = 1e-5>(sum, gain, shift)
            wide = Unsqueeze(mask, middle)
            counts = Cast<to = 1>(wide)
            rest = Sub(one, counts)
            added = Mul(rest, lowest)
            {_layers(2, layer)}
            first = Gather<axis = 1>(x2, zero)
            {_linear("first", "pooled", "pool")}
            summary = Tanh(pooled)
        }}"""
    weights: dict[str, Shape | Array] = {
        "embedding": (_WORDS, _WIDTH),
        "positions": (1, 7, _WIDTH),
        "gain": np.linspace(0.8, 1.2, _WIDTH, dtype="float32"),
        "shift": np.linspace(-0.1, 0.1, _WIDTH, dtype="float32"),
        **_linears({"query": 1, "key": 1, "value": 1, "project": 1}, 2),
        **_linears({"expand": 2}, 2),
        **_linears({"contract": 0.5}, 2),
        "pool_w": (_WIDTH, _WIDTH),
        "pool_b": (_WIDTH,),
        "heads": np.array([0, 0, _HEADS, _SIZE], "int64"),
        "flat": np.array([0, 0, _WIDTH], "int64"),
        "middle": np.array([1, 2], "int64"),
        "zero": np.array(0, "int64"),
        **_numbers(root=_SIZE**0.5, sqrt2=2**0.5, one=1, half=0.5, lowest=-3.0e38),
    }
    mask = np.ones((2, 7), "int64")
    mask[1, 4:] = 0
    return _parse(text, weights), [np.arange(14).reshape(2, 7) * 3, mask]


def gpt() -> Network:
    """Decode a step: some new tokens, and the keys and values of those before them."""

    def norm(x: str, y: str) -> str:
        # The root mean square, as exporters write it before opset 23.
        return f"""
            {y}_2 = Pow({x}, two)
            {y}_m = ReduceMean<axes = [-1], keepdims = 1>({y}_2)
            {y}_e = Add({y}_m, epsilon)
            {y}_s = Sqrt({y}_e)
            {y}_d = Div({x}, {y}_s)
            {y} = Mul({y}_d, gain)"""

    def layer(n: int) -> str:
        return f"""
            {norm(f"x{n}", f"n{n}")}
            {_linear(f"n{n}", f"a{n}", f"attend{n}")}
            q{n}, k{n}, v{n} = Split<axis = -1>(a{n}, thirds)
            {_heads(f"q{n}", f"qh{n}")} {_heads(f"k{n}", f"kh{n}")} {_heads(f"v{n}", f"vh{n}")}
            keys{n} = Concat<axis = 2>(past_keys{n}, kh{n})
            values{n} = Concat<axis = 2>(past_values{n}, vh{n})
            kt{n} = Transpose<perm = [0, 1, 3, 2]>(keys{n})
            s{n} = MatMul(qh{n}, kt{n})
            scaled{n} = Mul(s{n}, scale)
            masked{n} = Where(mask, scaled{n}, lowest)
            p{n} = Softmax<axis = -1>(masked{n})
            m{n} = MatMul(p{n}, values{n})
            mt{n} = Transpose<perm = [0, 2, 1, 3]>(m{n})
            mr{n} = Reshape(mt{n}, flat)
            {_linear(f"mr{n}", f"o{n}", f"project{n}")}
            r{n} = Add(x{n}, o{n})
            {norm(f"r{n}", f"y{n}")}
            {_linear(f"y{n}", f"g{n}", f"gate{n}")}
            sig{n} = Sigmoid(g{n})
            silu{n} = Mul(g{n}, sig{n})
            {_linear(f"y{n}", f"h{n}", f"expand{n}")}
            gated{n} = Mul(silu{n}, h{n})
            {_linear(f"gated{n}", f"c{n}", f"contract{n}")}
            x{n + 1} = Add(r{n}, c{n})"""

    caches = [f"{kind}{n}" for n in (0, 1) for kind in ("keys", "values")]
    past = ", ".join(f"float[1, {_HEADS}, 5, {_SIZE}] past_{cache}" for cache in caches)
    present = ", ".join(f"float[1, {_HEADS}, 8, {_SIZE}] {cache}" for cache in caches)
    text = f"""
        gpt (int64[1, 3] tokens, {past}) => (float[1, 3, {_WORDS}] scores, {present}) {{
            words = Gather(embedding, tokens)
            x0 = Add(words, positions)
            {_layers(2, layer)}
            {norm("x2", "last")}
            scores = MatMul(last, head)
        }}"""
    weights: dict[str, Shape | Array] = {
        "embedding": (_WORDS, _WIDTH),
        "positions": (1, 3, _WIDTH),
        "gain": np.linspace(0.8, 1.2, _WIDTH, dtype="float32"),
        **_linears({"attend": 3, "project": 1, "gate": 2, "expand": 2}, 2),
        **_linears({"contract": 0.5}, 2),
        "head": (_WIDTH, _WORDS),
        "mask": np.tril(np.ones((3, 8), bool), 5),
        "heads": np.array([0, 0, _HEADS, _SIZE], "int64"),
        "flat": np.array([0, 0, _WIDTH], "int64"),
        "thirds": np.full(3, _WIDTH, "int64"),
        **_numbers(two=2, epsilon=1e-6, scale=_SIZE**-0.5, lowest=-1.0e9),
    }
    before = [_random(200 + n, 1, _HEADS, 5, _SIZE) for n in range(len(caches))]
    return _parse(text, weights), [np.array([[3, 1, 41]]), *before]


def _linears(growth: Mapping[str, float], layers: int) -> dict[str, Shape | Array]:
    """Weights of linear layers; the width of the narrower side is the model's own."""
    weights: dict[str, Shape | Array] = {}
    for name, factor in growth.items():
        inputs = _WIDTH if factor >= 1 else int(_WIDTH / factor)
        outputs = int(inputs * factor)
        for layer in range(layers):
            weights[f"{name}{layer}_w"] = (inputs, outputs)
            weights[f"{name}{layer}_b"] = (outputs,)
    return weights


def _numbers(**values: float) -> dict[str, Array]:
    return {name: np.array(value, "float32") for name, value in values.items()}


# ---- Sequences ----------------------------------------------------------------------------------


def lstm() -> Network:
    """Unroll an LSTM over five steps."""

    def step(n: int) -> str:
        return f"""
            x{n} = Gather<axis = 0>(x, step{n})
            i{n} = MatMul(x{n}, w)
            r{n} = MatMul(h{n}, u)
            s{n} = Add(i{n}, r{n})
            b{n} = Add(s{n}, b)
            in{n}, out{n}, forget{n}, new{n} = Split<axis = -1>(b{n}, quarters)
            si{n} = Sigmoid(in{n})
            so{n} = Sigmoid(out{n})
            sf{n} = Sigmoid(forget{n})
            t{n} = Tanh(new{n})
            kept{n} = Mul(sf{n}, c{n})
            added{n} = Mul(si{n}, t{n})
            c{n + 1} = Add(kept{n}, added{n})
            tc{n} = Tanh(c{n + 1})
            h{n + 1} = Mul(so{n}, tc{n})"""

    text = f"""
        lstm (float[5, 2, 6] x, float[2, 8] h0, float[2, 8] c0)
            => (float[2, 3] y, float[2, 8] c5) {{
            {_layers(5, step)}
            y = Gemm<transB = 1>(h5, head, bias)
        }}"""
    weights: dict[str, Shape | Array] = {
        **{"w": (6, 32), "u": (8, 32), "b": (32,), "head": (3, 8), "bias": (3,)},
        "quarters": np.full(4, 8, "int64"),
        **{f"step{n}": np.array(n, "int64") for n in range(5)},
    }
    return _parse(text, weights), [_random(100, 5, 2, 6), _random(101, 2, 8), _random(102, 2, 8)]


# ---- Ready to run -------------------------------------------------------------------------------

SMALL: dict[str, Callable[[], Network]] = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "unet": unet,
    "bert": bert,
    "gpt": gpt,
    "lstm": lstm,
    "detector": detector,
}
"""The function that makes a network."""


def read(name: str) -> tuple[tvm.IRModule, list[Array], list[Array]]:
    """Read a network of `SMALL` with TVM's importer."""
    from onnx.reference import ReferenceEvaluator

    from ...backend.api import from_onnx

    proto, arguments = SMALL[name]()
    names = [value.name for value in proto.graph.input]
    expected = ReferenceEvaluator(proto).run(None, dict(zip(names, arguments, strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = from_onnx(proto)
    return module, list(arguments), [np.asarray(item) for item in expected]
