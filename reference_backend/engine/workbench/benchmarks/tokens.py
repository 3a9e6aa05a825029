# SPDX-License-Identifier: Apache-2.0
"""How long one token of a decoder takes on this processor, beside ONNX Runtime and torch.

One file in the style of ONNX Runtime's generators is run by it and by the backend, in a session;
torch runs the same network without compiling it. All take turns, on one thread, at the last place
of a full cache. The ratios are what to quote.

Usage: ``python engine/workbench/benchmarks/tokens.py [--once]``, with onnx, onnxruntime and torch.
"""

import sys
from typing import Any

# Before the others, since it says how many threads they may start.
import benchmark  # isort: skip
import numpy as np
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional
from tvm.runtime.vm import VirtualMachine

import backend
from support import BACKEND, compile_for

CONTRIB = "com.microsoft"
BLOCK = 32
"""How many weights of 8 or 4 bits have a scale."""


class Decoder:
    """A network with random weights, as an ONNX file and in torch.

    `bits`: of each weight of a product: 32, 8 or 4.
    """

    def __init__(self, width: int, layers: int, words: int, capacity: int, bits: int) -> None:
        self.width, self.layers, self.words, self.capacity = width, layers, words, capacity
        self.bits = bits
        self.heads, self.shared, self.inner = width // 64, width // 128, width * 11 // 4
        self.random = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.matrices: dict[str, torch.Tensor] = {}
        angles = np.arange(capacity)[:, None] / 1e4 ** (np.arange(32) / 32)
        self.turns = [np.cos(angles).astype("float32"), np.sin(angles).astype("float32")]
        self.caches = [f"{i}.{part}" for i in range(layers) for part in ("key", "value")]
        self.model = self._model()

    # ---- ONNX ----

    def _write(self, op: str, *inputs: str, results: int = 1, **attributes: Any) -> list[str]:
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, inputs, names, names[0], **attributes))
        return names

    def _weight(self, name: str, array: Any) -> str:
        self.weights[name] = np.asarray(array)
        return name

    def _linear(self, x: str, name: str, depth: int, columns: int) -> str:
        values = (self.random.random((columns, depth), "float32") - 0.5) / np.float32(depth**0.5)
        self.matrices[name] = torch.from_numpy(values)
        if self.bits == 32:
            return self._write("MatMul", x, self._weight(name, values.T.copy()))[0]
        limit = 2 ** (self.bits - 1)
        blocks = values.reshape(columns, depth // BLOCK, BLOCK)
        scales = np.abs(blocks).max(-1) / (limit - 1)
        numbers = (np.rint(blocks / scales[..., None]) + limit).astype("uint8")
        if self.bits == 4:
            numbers = numbers[..., ::2] | numbers[..., 1::2] << 4
        parts = (self._weight(name, numbers), self._weight(f"{name}.scales", scales))
        sizes = {"K": depth, "N": columns, "bits": self.bits, "block_size": BLOCK}
        return self._write("MatMulNBits", x, *parts, domain=CONTRIB, **sizes)[0]

    def _norm(self, x: str) -> str:
        one = self._weight("one", np.ones(self.width, "float32"))
        return self._write("SimplifiedLayerNormalization", x, one, epsilon=1e-5)[0]

    def _model(self) -> Any:
        integer, number, value = TensorProto.INT64, TensorProto.FLOAT, helper.make_tensor_value_info
        axis = self._weight("axis", np.array([1]))
        lengths = self._write("ReduceSum", "attention_mask", axis, keepdims=0)
        lengths = self._write("Sub", *lengths, axis)
        lengths = self._write("Cast", *lengths, to=TensorProto.INT32)
        total = self._weight("total", np.array(self.capacity, "int32"))
        turns = [
            self._weight(name, it) for name, it in zip(("cos", "sin"), self.turns, strict=True)
        ]
        table = self.random.standard_normal((self.words, self.width)).astype("float32")
        self.matrices["table"] = torch.from_numpy(table)
        (x,) = self._write("Gather", self._weight("table", table), "input_ids")
        sizes = {"num_heads": self.heads, "kv_num_heads": self.shared, "do_rotary": 1}
        for i in range(self.layers):
            y = self._norm(x)
            heads = {"q": self.heads, "k": self.shared, "v": self.shared}
            inputs = [self._linear(y, f"{i}.{n}", self.width, c * 64) for n, c in heads.items()]
            inputs += [f"past.{i}.key", f"past.{i}.value", *lengths, total, *turns]
            names = [f"attended.{i}", f"present.{i}.key", f"present.{i}.value"]
            op = "GroupQueryAttention"
            self.nodes.append(helper.make_node(op, inputs, names, domain=CONTRIB, **sizes))
            (x,) = self._write("Add", x, self._linear(names[0], f"{i}.o", self.width, self.width))
            y = self._norm(x)
            gate, up = (self._linear(y, f"{i}.{n}", self.width, self.inner) for n in ("gate", "up"))
            (gate,) = self._write("Mul", gate, *self._write("Sigmoid", gate))
            (y,) = self._write("Mul", gate, up)
            (x,) = self._write("Add", x, self._linear(y, f"{i}.down", self.inner, self.width))
        self._linear(self._norm(x), "head", self.width, self.words)
        self.nodes[-1].output[0] = "logits"
        cache = (1, self.shared, self.capacity, 64)
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [
                value("input_ids", integer, (1, 1)),
                value("attention_mask", integer, (1, self.capacity)),
            ]
            + [value(f"past.{name}", number, cache) for name in self.caches],
            [value("logits", number, (1, 1, self.words))]
            + [value(f"present.{name}", number, cache) for name in self.caches],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    # ---- Runs ----

    def on_backend(self) -> Any:
        """Return a call in a session."""
        function = backend.from_onnx(self.model, states=True)["main"]
        machine = VirtualMachine(compile_for(tvm.IRModule({"main": function})), tvm.cpu())
        self.session = backend.Session(machine)
        inputs = [tvm.runtime.tensor(np.array([[1]]))]
        inputs.append(tvm.runtime.tensor(np.ones((1, self.capacity), "int64")))
        call = self.session["main"]
        return lambda: call(*inputs)

    def on_onnx_runtime(self) -> Any:
        """Return a call with each past and present in one memory, as its generators do."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.original = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
        binding = self.original.io_binding()
        binding.bind_output("logits")
        ids, mask = np.array([[1]]), np.ones((1, self.capacity), "int64")
        self.kept = [onnxruntime.OrtValue.ortvalue_from_numpy(it) for it in (ids, mask)]
        for name, it in zip(("input_ids", "attention_mask"), self.kept, strict=True):
            binding.bind_ortvalue_input(name, it)
        for name in self.caches:
            zeros = np.zeros((1, self.shared, self.capacity, 64), "float32")
            self.kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(zeros))
            binding.bind_ortvalue_input(f"past.{name}", self.kept[-1])
            binding.bind_ortvalue_output(f"present.{name}", self.kept[-1])

        def call() -> Any:
            self.original.run_with_iobinding(binding)
            return binding.get_outputs()[0].numpy()

        return call

    def in_torch(self) -> Any:
        """Return a call that computes op by op, with caches that change in place."""
        caches = [torch.zeros(1, self.shared, self.capacity, 64) for _ in self.caches]
        cos, sin = (torch.from_numpy(it[-1]).repeat(2) for it in self.turns)
        place = torch.tensor([self.capacity - 1])
        ids = torch.tensor([[1]])

        def product(x: torch.Tensor, name: str) -> torch.Tensor:
            return functional.linear(x, self.matrices[name])

        def turned(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat([-second, first], -1) * sin

        def heads(x: torch.Tensor, count: int) -> torch.Tensor:
            return x.view(1, 1, count, 64).transpose(1, 2)

        def norm(x: torch.Tensor) -> torch.Tensor:
            return functional.rms_norm(x, (self.width,), eps=1e-5)

        @torch.no_grad()
        def call() -> Any:
            x = functional.embedding(ids, self.matrices["table"])
            for i in range(self.layers):
                y = norm(x)
                query = turned(heads(product(y, f"{i}.q"), self.heads))
                keys, values = caches[2 * i : 2 * i + 2]
                keys.index_copy_(2, place, turned(heads(product(y, f"{i}.k"), self.shared)))
                values.index_copy_(2, place, heads(product(y, f"{i}.v"), self.shared))
                y = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
                x = x + product(y.transpose(1, 2).reshape(1, 1, self.width), f"{i}.o")
                y = norm(x)
                y = functional.silu(product(y, f"{i}.gate")) * product(y, f"{i}.up")
                x = x + product(y, f"{i}.down")
            return product(norm(x), "head").numpy()

        return call


def main() -> None:
    """Print a row for each size of the cache and of the weights."""
    benchmark.runs_once = runs_once = "--once" in sys.argv[1:]
    torch.set_num_threads(1)
    width, layers, words = (128, 1, 64) if runs_once else (1024, 8, 32000)
    print("\nOne token of a decoder with a full cache: time of the backend, and of its peers")
    for capacity in (512, 2048):
        for bits in (32, 8, 4):
            decoder = Decoder(width, layers, words, capacity, bits)
            works = {BACKEND: decoder.on_backend(), "onnxruntime": decoder.on_onnx_runtime()}
            if bits == 32:
                works["torch"] = decoder.in_torch()
            mine, theirs = (works[name]() for name in (BACKEND, "onnxruntime"))
            worst = float(np.abs(mine.numpy() - theirs).max())
            if bits == 32:
                worst = max(worst, float(np.abs(works["torch"]() - theirs).max()))
            if mine.shape != theirs.shape or worst > 1e-3:
                raise SystemExit(f"the results differ by {worst:.3g}")
            benchmark.print_row(f"{bits} bits, a cache of {capacity}", benchmark.in_turns(works))


if __name__ == "__main__":
    main()
