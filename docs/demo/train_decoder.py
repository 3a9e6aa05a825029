"""Trains a small decoder on text that Python ships, and writes it as ONNX.

Needs torch and onnx. Run it again with ``python docs/demo/train_decoder.py``: within some minutes
it overwrites ``decoder.onnx``, its ``decoder_tokenizer.json``, and ``decoder_held_out.txt``. The
model predicts the next character of Python's help texts, `pydoc_data.topics`, of which it never saw
the end, the held-out text. Its operators are those of ONNX Runtime's generators, which write
published language models.
"""

import json
import math
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

HERE = Path(__file__).parent
LAYERS, HEADS, SHARED, WIDTH, INNER = 4, 4, 2, 128, 320
SIZE = WIDTH // HEADS
CAPACITY = 512
BASE = 10000.0
EPSILON = 1e-5
CONTRIB = "com.microsoft"
STEPS, BATCH, LENGTH = 1500, 16, 128
HELD_OUT = 8192
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""What the decoder reads and writes, by number."""


def tokenizer() -> dict[str, Any]:
    """Return a tokenizer of the package tokenizers, each of whose tokens is a character."""
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated"}
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {**split, "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": " "},
    }


def numbers(text: str) -> torch.Tensor:
    """Return the characters of a text by number; unknown ones are spaces."""
    known = {character: number for number, character in enumerate(CHARACTERS)}
    return torch.tensor([known.get(character, known[" "]) for character in text])


def turns(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines of the rotary positions, (length, SIZE / 2), float32."""
    angles = np.arange(length)[:, None] / BASE ** (np.arange(SIZE // 2) / (SIZE // 2))
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")


class Layer(nn.Module):
    """Attention in groups of heads, then a gated network."""

    def __init__(self) -> None:
        super().__init__()
        shared = SHARED * SIZE
        self.before, self.after = (nn.RMSNorm(WIDTH, eps=EPSILON) for _ in range(2))
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, shared, bias=False) for _ in range(2))
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Take and return (batch, length, WIDTH)."""
        batch, length, _ = x.shape
        y = self.before(x)

        def heads(linear: nn.Linear, is_turned: bool) -> torch.Tensor:
            z = linear(y).view(batch, length, -1, SIZE).transpose(1, 2)
            if is_turned:
                a, b = z.chunk(2, -1)
                z = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
            return z

        attended = nn.functional.scaled_dot_product_attention(
            heads(self.query, True),
            heads(self.key, True),
            heads(self.value, False),
            is_causal=True,
            enable_gqa=True,
        )
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A decoder in the style of Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(CHARACTERS), WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = nn.RMSNorm(WIDTH, eps=EPSILON)
        self.head = nn.Linear(WIDTH, len(CHARACTERS), bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores (batch, length, characters) of the next character, for numbers of characters."""
        cos, sin = (torch.from_numpy(part) for part in turns(ids.shape[1]))
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.last(x))


def train(text: torch.Tensor) -> Decoder:
    """Fit a decoder; the seed makes it the same each time on one machine."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for step in range(STEPS):
        first = torch.randint(len(text) - LENGTH - 1, (BATCH,))
        rows = torch.stack([text[at : at + LENGTH + 1] for at in first])
        scores = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.3f} nats", flush=True)
    return model.eval()


def to_onnx(model: Decoder) -> onnx.ModelProto:
    """Write the network as ONNX Runtime's generators do, with a cache of past steps."""
    nodes: list[Any] = []
    weights: dict[str, np.ndarray] = {}

    def write(name: str, op: str, *inputs: str, results: int = 1, **attributes: Any) -> Any:
        names = [name, *(f"{name}.{i}" for i in range(1, results))]
        nodes.append(helper.make_node(op, inputs, names, name, **attributes))
        return names[0] if results == 1 else names

    def weight(name: str, array: Any) -> str:
        weights[name] = np.ascontiguousarray(array)
        return name

    def linear(name: str, x: str, module: nn.Linear) -> str:
        kernel = weight(f"{name}.weight", module.weight.detach().numpy().T)
        return str(write(name, "MatMul", x, kernel))

    def normed(name: str, x: str, skip: str, module: nn.RMSNorm) -> tuple[str, str]:
        scale = weight(f"{name}.weight", module.weight.detach().numpy())
        if not skip:
            attributes = {"axis": -1, "epsilon": EPSILON}
            return str(write(name, "SimplifiedLayerNormalization", x, scale, **attributes)), x
        op = "SkipSimplifiedLayerNormalization"
        found = write(name, op, x, skip, scale, results=4, domain=CONTRIB, epsilon=EPSILON)
        nodes[-1].output[1] = nodes[-1].output[2] = ""
        return found[0], found[3]

    one = weight("one", np.array([1]))
    count = write("count", "ReduceSum", "attention_mask", one, keepdims=0)
    last = write("last_place", "Sub", count, one)
    lengths = write("seqlens_k", "Cast", last, to=TensorProto.INT32)
    sizes = write("sizes", "Shape", "attention_mask")
    width = write("width", "Gather", sizes, weight("second", np.array(1)), axis=0)
    total = write("total_sequence_length", "Cast", width, to=TensorProto.INT32)
    places = [
        weight(name, part) for name, part in zip(("cos", "sin"), turns(CAPACITY), strict=True)
    ]
    words = weight("words.weight", model.words.weight.detach().numpy())
    x, skip = str(write("words", "Gather", words, "input_ids")), ""
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        y, x = normed(f"layers.{i}.before", x, skip, layer.before)
        parts = ("query", "key", "value")
        heads = [linear(f"layers.{i}.{part}", y, getattr(layer, part)) for part in parts]
        name = f"layers.{i}.attention"
        caches = [f"{when}.{i}.{part}" for when in ("past", "present") for part in parts[1:]]
        inputs = [*heads, *caches[:2], lengths, total, *places]
        attributes = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1}
        outputs = [name, *caches[2:]]
        op = "GroupQueryAttention"
        nodes.append(helper.make_node(op, inputs, outputs, name, domain=CONTRIB, **attributes))
        y, x = normed(
            f"layers.{i}.after", x, linear(f"layers.{i}.output", name, layer.output), layer.after
        )
        gate = linear(f"layers.{i}.gate", y, layer.gate)
        gate = write(f"layers.{i}.silu", "Mul", gate, write(f"{gate}.sigmoid", "Sigmoid", gate))
        product = write(f"layers.{i}.gated", "Mul", gate, linear(f"layers.{i}.up", y, layer.up))
        skip = linear(f"layers.{i}.down", product, layer.down)
    linear("logits", normed("last", x, skip, model.last)[0], model.head)

    value, real = helper.make_tensor_value_info, TensorProto.FLOAT
    steps, kept = "sequence_length", ("batch_size", SHARED, "past_sequence_length", SIZE)
    caches = [f"{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            value("input_ids", TensorProto.INT64, ("batch_size", steps)),
            value("attention_mask", TensorProto.INT64, ("batch_size", "total_sequence_length")),
            *(value(f"past.{name}", real, kept) for name in caches),
        ],
        [
            value("logits", real, ("batch_size", steps, len(CHARACTERS))),
            *(value(f"present.{name}", real, (*kept[:2], "all", SIZE)) for name in caches),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def main() -> None:
    """Train, judge and write the model."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    held_out = text[-HELD_OUT:]
    model = train(numbers(text[:-HELD_OUT]))
    rows = numbers(held_out).view(-1, LENGTH)
    with torch.no_grad():
        scores = model(rows[:, :-1]).flatten(0, 1)
        nats = float(nn.functional.cross_entropy(scores, rows[:, 1:].flatten()))
    print(f"held out: {nats:.3f} nats per character, perplexity {math.exp(nats):.2f}")
    onnx.save(to_onnx(model), HERE / "decoder.onnx")
    (HERE / "decoder_held_out.txt").write_text(held_out, encoding="utf-8")
    (HERE / "decoder_tokenizer.json").write_text(json.dumps(tokenizer()), encoding="utf-8")


if __name__ == "__main__":
    main()
