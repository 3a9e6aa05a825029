"""Networks written by hand in torch, as a user of the front end would bring them."""

import torch
from torch import nn


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """Convolution and batch norm, padded so that stride 1 keeps the size."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class BasicBlock(nn.Module):
    """The block of ResNet-18 (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.conv2 = _conv(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else _conv(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Halve height and width where the block has stride 2."""
        y = self.conv2(torch.relu(self.conv1(x)))
        return torch.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for images of shape (n, 3, 224, 224)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(
                block
                for inputs, outputs, stride in sizes
                for block in (
                    BasicBlock(inputs, outputs, stride),
                    BasicBlock(outputs, outputs, 1),
                )
            )
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of shape (n, 1000)."""
        return self.classifier(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


class InvertedResidual(nn.Module):
    """The block of MobileNetV2 (Sandler et al., 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [_conv(inputs, hidden, 1), nn.ReLU6()]
        layers += [_conv(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, _conv(hidden, outputs, 1))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Expand, filter each channel, and project."""
        return x + self.layers(x) if self.has_shortcut else self.layers(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 for images of shape (n, 3, 224, 224)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, 32, 3, 2), nn.ReLU6()]
        channels = 32
        for expansion, outputs, count, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for block in range(count):
                layers.append(
                    InvertedResidual(channels, outputs, stride if block == 0 else 1, expansion)
                )
                channels = outputs
        self.features = nn.Sequential(*layers, _conv(320, 1280, 1), nn.ReLU6())
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of shape (n, 1000)."""
        return self.classifier(self.features(x).mean((2, 3)))


class EncoderLayer(nn.Module):
    """Multi-head attention and a feed-forward network, each with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(n, length, width) to (n, heads, length, width / heads)."""
        batch, length, width = x.shape
        return x.reshape(batch, length, self.heads, width // self.heads).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (n, length, width), kept."""
        batch, length, width = x.shape
        normed = self.norm1(x)
        query = self.split_heads(self.query(normed))
        key = self.split_heads(self.key(normed))
        value = self.split_heads(self.value(normed))
        scores = query @ key.permute(0, 1, 3, 2) * (width // self.heads) ** -0.5
        mixed = torch.softmax(scores, -1) @ value
        mixed = mixed.permute(0, 2, 1, 3).reshape(batch, length, width)
        x = x + self.project(mixed)
        return x + self.contract(nn.functional.gelu(self.expand(self.norm2(x))))


class Encoder(nn.Module):
    """A small transformer encoder for embeddings of shape (n, 32, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(EncoderLayer(64, 4), EncoderLayer(64, 4))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings of the same shape."""
        return self.norm(self.layers(x))


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "resnet18": (ResNet18, (1, 3, 224, 224)),
    "mobilenet_v2": (MobileNetV2, (1, 3, 224, 224)),
    "encoder": (Encoder, (2, 32, 64)),
}


def make(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Build a model in inference mode with seeded weights and statistics, and an input for it."""
    torch.manual_seed(0)
    kind, shape = MODELS[name]
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # Statistics as after training: a norm with mean 0 and variance 1 would hide mistakes.
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    return model.eval(), torch.randn(shape)
