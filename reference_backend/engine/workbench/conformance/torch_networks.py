# SPDX-License-Identifier: Apache-2.0
"""Networks in torch: the layers of well-known models, written as by their authors.

Sizes are arguments, so that the same network is a case of seconds here and a full model elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...backend.api import Array, quiet

if TYPE_CHECKING:
    import tvm

# ---- Images -------------------------------------------------------------------------------------


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.conv2 = _conv(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.shortcut(x))


class ResNet(nn.Module):  # type: ignore[misc]
    """Stages of two residual blocks each (He et al., 2015); the defaults make it a small one."""

    def __init__(self, widths: Sequence[int] = (8, 16), classes: int = 10) -> None:
        super().__init__()
        layers = [_conv(3, widths[0], 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        channels = widths[0]
        for width in widths:
            layers.append(ResidualBlock(channels, width, 1 if width == channels else 2))
            layers.append(ResidualBlock(width, width, 1))
            channels = width
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        self.layers = nn.Sequential(*layers, *head)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) to scores (n, classes)."""
        return self.layers(x)


class InvertedResidual(nn.Module):  # type: ignore[misc]
    """Expansion, one filter for each channel, projection."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        expansion: int,
        activation: Callable[[], nn.Module] = nn.ReLU6,
    ) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [] if expansion == 1 else [_conv(inputs, hidden, 1), activation()]
        layers += [_conv(hidden, hidden, 3, stride, groups=hidden), activation()]
        self.layers = nn.Sequential(*layers, _conv(hidden, outputs, 1))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return x + self.layers(x) if self.has_shortcut else self.layers(x)


class SqueezeExcite(nn.Module):  # type: ignore[misc]
    """Scales channels by statistics of the whole image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, 4, 1),
            nn.ReLU(),
            nn.Conv2d(4, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape kept."""
        return x * self.layers(x)


class MobileNetV2(nn.Module):  # type: ignore[misc]
    """MobileNetV2 (Sandler et al., 2018): of each stage expansion, width, blocks and stride."""

    def __init__(
        self,
        stages: Sequence[tuple[int, int, int, int]],
        stem: int,
        last: int,
        classes: int,
    ) -> None:
        super().__init__()
        layers = [_conv(3, stem, 3, 2), nn.ReLU6()]
        channels = stem
        for expansion, width, blocks, stride in stages:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, width, 1 if block else stride, expansion))
                channels = width
        self.features = nn.Sequential(*layers, _conv(channels, last, 1), nn.ReLU6())
        self.classifier = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) to scores (n, classes)."""
        return self.classifier(self.features(x).mean((2, 3)))


class MobileNetV3(nn.Module):  # type: ignore[misc]
    """The additions of MobileNetV3 (Howard et al., 2019): hard-swish, and channel weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _conv(3, 8, 3, 2),
            nn.Hardswish(),
            InvertedResidual(8, 8, 1, 3),
            InvertedResidual(8, 12, 2, 3, nn.Hardswish),
            SqueezeExcite(12),
            InvertedResidual(12, 12, 1, 3, nn.Hardswish),
            _conv(12, 24, 1),
            nn.Hardswish(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(24, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) to scores (n, 10)."""
        return self.layers(x)


class UNet(nn.Module):  # type: ignore[misc]
    """Down by pools, up by a transposed convolution and interpolation, with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(_conv(3, 8, 3), nn.LeakyReLU(0.1))
        self.second = nn.Sequential(nn.MaxPool2d(2), _conv(8, 16, 3), nn.SiLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), _conv(16, 24, 3), nn.ELU())
        self.up = nn.ConvTranspose2d(24, 16, 2, 2)
        self.middle = nn.Sequential(_conv(32, 8, 3), nn.Mish())
        self.last = nn.Sequential(_conv(16, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) to masks (n, 2, h, w)."""
        one = self.first(x)
        two = self.second(one)
        y = self.middle(torch.cat([self.up(self.bottom(two)), two], 1))
        y = functional.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.last(torch.cat([y, one], 1)))


class Detector(nn.Module):  # type: ignore[misc]
    """Scores and boxes for each place of an image; the best ones are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(3, 8, 3, 2), nn.ReLU(), _conv(8, 8, 3, 2), nn.ReLU())
        self.scores = nn.Conv2d(8, 4, 3, padding=1)
        self.boxes = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images (n, 3, h, w) to scores (n, 5), kinds (n, 5) and corners (n, 5, 4)."""
        x = self.body(x)
        scores = self.scores(x).flatten(2).transpose(1, 2).sigmoid()
        boxes = self.boxes(x).flatten(2).transpose(1, 2)
        best, kinds = scores.max(-1)
        top, index = torch.topk(best, 5, dim=1)
        center, size = boxes[..., :2], boxes[..., 2:].exp()
        corners = torch.cat([center - size / 2, center + size / 2], -1).clamp(-4.0, 4.0)
        chosen = torch.gather(corners, 1, index.unsqueeze(-1).expand(-1, -1, 4))
        return top, torch.gather(kinds, 1, index), chosen


# ---- Text ---------------------------------------------------------------------------------------


class Attention(nn.Module):  # type: ignore[misc]
    """Attention with several heads, in elementary ops."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embeddings (n, length, width), kept; `mask` is added to the scores."""
        batch, length, width = x.shape
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = torch.softmax(scores if mask is None else scores + mask, -1) @ value
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward network, each with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, length, width), kept."""
        x = x + self.attention(self.norm1(x))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x))))


class Encoder(nn.Module):  # type: ignore[misc]
    """Layers of a transformer, as vision transformers have them."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, length, width), kept."""
        return self.norm(self.layers(x))


class BertLayer(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward network, each with a norm after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Embeddings (n, length, width), kept."""
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.contract(functional.gelu(self.expand(x))))


class Bert(nn.Module):  # type: ignore[misc]
    """Tokens and an attention mask to embeddings and a summary (Devlin et al., 2018)."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, words: int = 50) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(16, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))
        self.pool = nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Integers (n, length) to embeddings (n, length, width) and (n, width)."""
        positions = self.positions(torch.arange(tokens.shape[1])[None])
        x = self.norm(self.words(tokens) + positions + self.kinds(torch.zeros_like(tokens)))
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, added)
        return x, torch.tanh(self.pool(x[:, 0]))


class GptLayer(nn.Module):  # type: ignore[misc]
    """Attention to the past, and a gated feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.expand = nn.Linear(width, 2 * width, bias=False)
        self.contract = nn.Linear(2 * width, width, bias=False)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (n, length, width), kept, and the keys and values with the new ones."""
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attend(self.norm1(x)).split(width, -1)
        )
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.contract(functional.silu(self.gate(y)) * self.expand(y)), keys, values


class Gpt(nn.Module):  # type: ignore[misc]
    """A step of a decoder: some new tokens, and the keys and values of those before them."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, words: int = 50) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(32, width)
        self.layers = nn.ModuleList(GptLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Integers (n, length), past (layers, 2, n, heads, before, size) to scores and present."""
        length, before = tokens.shape[1], past.shape[4]
        positions = torch.arange(before, before + length)
        x = self.words(tokens) + self.positions(positions)
        mask = torch.arange(before + length)[None, :] <= positions[:, None]
        present = []
        for layer, (keys, values) in zip(self.layers, past.unbind(0), strict=True):
            x, keys, values = layer(x, keys, values, mask)
            present.append(torch.stack([keys, values]))
        return self.head(self.norm(x)), torch.stack(present)


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """Attention to a cache of a fixed size, which each call adds rows to, in shared heads."""

    def __init__(self, width: int, heads: int, shared: int, room: int) -> None:
        super().__init__()
        self.heads, self.shared, size = heads, shared, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attend = nn.Linear(width, (heads + 2 * shared) * size, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate, self.expand = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.contract = nn.Linear(2 * width, width, bias=False)
        # As after a prompt: an empty one would hide mistakes.
        self.register_buffer("keys", torch.randn(1, shared, room, size))
        self.register_buffer("values", torch.randn(1, shared, room, size))

    def forward(self, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Embeddings (1, length, width), kept."""
        length, size = x.shape[1], x.shape[2] // self.heads
        rows = self.attend(self.norm1(x)).view(1, length, -1, size).transpose(1, 2)
        query, key, value = rows.split([self.heads, self.shared, self.shared], 1)
        self.keys.index_copy_(2, places, key)
        self.values.index_copy_(2, places, value)
        mixed = functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.project(mixed.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.contract(functional.silu(self.gate(y)) * self.expand(y))


class Decoder(nn.Module):  # type: ignore[misc]
    """Some new tokens of a text, with keys and values of those before them as states."""

    def __init__(self, width: int = 32, layers: int = 2, words: int = 50, room: int = 12) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(room, width)
        self.layers = nn.ModuleList(DecoderLayer(width, 4, 2, room) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, words, bias=False)
        self.room = room

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Integers (1, length) and where they are in the text (length,) to scores of the last."""
        x = self.words(tokens) + self.positions(places)
        mask = torch.arange(self.room)[None] <= places[:, None]
        for layer in self.layers:
            x = layer(x, places, mask)
        return self.head(self.norm(x[:, -1]))


# ---- Sequences ----------------------------------------------------------------------------------


class Recurrent(nn.Module):  # type: ignore[misc]
    """Recurrent cells over a sequence, and a score for each of its places."""

    def __init__(self, cells: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = cells(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, 6) to (n, length, 3)."""
        return self.head(self.cells(x)[0])


# ---- Ready to run -------------------------------------------------------------------------------


def make(
    build: Callable[[], nn.Module], inputs: Callable[[], Sequence[Tensor]]
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Build a network with seeded weights, in inference mode, and inputs for it."""
    torch.manual_seed(0)
    network = build()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            # Statistics as after training: a norm with mean 0 and variance 1 would hide mistakes.
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    return network.eval(), tuple(inputs())


def _image(size: int) -> Callable[[], Sequence[Tensor]]:
    return lambda: [torch.randn(1, 3, size, size)]


def _sentences() -> Sequence[Tensor]:
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    return [torch.randint(0, 50, (2, 7)), mask]


def _tokens_and_past() -> Sequence[Tensor]:
    return [torch.randint(0, 50, (1, 3)), torch.randn(2, 2, 1, 4, 5, 8)]


def _tokens_and_places() -> Sequence[Tensor]:
    return [torch.randint(0, 50, (1, 3)), torch.arange(6, 9)]


def _sequence() -> Sequence[Tensor]:
    return [torch.randn(2, 5, 6)]


SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Sequence[Tensor]]]] = {
    "resnet": (ResNet, _image(32)),
    "mobilenet": (MobileNetV3, _image(32)),
    "unet": (UNet, _image(16)),
    "encoder": (Encoder, lambda: [torch.randn(2, 8, 64)]),
    "bert": (Bert, _sentences),
    "gpt": (Gpt, _tokens_and_past),
    "decoder": (Decoder, _tokens_and_places),
    "lstm": (lambda: Recurrent(nn.LSTM), _sequence),
    "gru": (lambda: Recurrent(nn.GRU), _sequence),
    "detector": (Detector, _image(32)),
}
"""The functions that make a network that runs in seconds, and its inputs."""


def export(name: str) -> tuple[tvm.IRModule, list[Array], list[Array]]:
    """Read a network of `SMALL` with `torch.export` and TVM's importer."""
    network, inputs = make(*SMALL[name])
    with quiet():  # Warnings about future changes in torch.
        return read(torch.export.export(network, inputs), inputs, network)


def read(
    program: torch.export.ExportedProgram, inputs: Sequence[Tensor], network: nn.Module
) -> tuple[tvm.IRModule, list[Array], list[Array]]:
    """Read a program with TVM's importer; also return the inputs, and the network's results.

    States are the last of both.
    """
    from ...backend.api import from_exported_program, states

    module = from_exported_program(program, unwrap_unit_return_tuple=True)
    kept = states(module)
    given = [*(item.numpy() for item in inputs), *(np.array(state.initial) for state in kept)]
    with torch.no_grad():
        results = network(*inputs)
    fields = results if isinstance(results, tuple) else (results,)
    buffers = dict(network.named_buffers())
    return module, given, [it.numpy() for it in (*fields, *(buffers[it.name] for it in kept))]
