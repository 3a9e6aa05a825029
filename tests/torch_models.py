"""The conformance kit's networks, at the size of real models."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from tvm_example_npu.engine.workbench.conformance.networks import MOBILENET_V2
from tvm_example_npu.engine.workbench.conformance.torch_networks import Encoder, MobileNetV2, ResNet
from tvm_example_npu.engine.workbench.conformance.torch_networks import make as make_network

MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "resnet18": (partial(ResNet, (64, 128, 256, 512), 1000), (1, 3, 224, 224)),
    "mobilenet_v2": (partial(MobileNetV2, MOBILENET_V2, 32, 1280, 1000), (1, 3, 224, 224)),
    "encoder": (Encoder, (2, 32, 64)),
}


def make(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Build a model in inference mode with seeded weights and statistics, and an input for it."""
    build, shape = MODELS[name]
    network, (x,) = make_network(build, lambda: [torch.randn(shape)])
    return network, x
