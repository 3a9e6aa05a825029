# SPDX-License-Identifier: Apache-2.0
"""Networks, written once and built for TVM, ONNX Runtime and torch alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx
    import torch
    import tvm
    from tvm import relax

Array = NDArray[np.float32]

T = TypeVar("T")
"""The tensors of a framework."""

Named = tuple[str, int]
"""A tensor in ONNX: its name and its number of channels."""


class Net(Protocol[T]):
    """The building blocks of networks; each framework below implements them.

    Tensors are the framework's own, activations have the shape (batch, channels, height,
    width).
    """

    def conv(self, x: T, out: int, kernel: int, stride: int = 1, groups: int = 1) -> T:
        """Convolution with bias, padded so that stride 1 keeps the size."""

    def relu(self, x: T, largest: float | None = None) -> T:
        """Rectifier, bounded by ``largest`` where that is given (ReLU6)."""

    def add(self, a: T, b: T) -> T:
        """Sum of two tensors of one shape."""

    def max_pool(self, x: T) -> T:
        """Maximum over 3x3 windows, stride 2, padded by 1."""

    def mean(self, x: T) -> T:
        """Mean over height and width: (batch, channels)."""

    def linear(self, x: T, out: int) -> T:
        """Matrix product with bias."""


def resnet18(
    net: Net[T], x: T, widths: Sequence[int] = (64, 128, 256, 512), classes: int = 1000
) -> T:
    """ResNet-18 (He et al., 2015, table 1), batch norms folded; smaller with other sizes."""
    channels = widths[0]
    x = net.max_pool(net.relu(net.conv(x, channels, 7, 2)))
    for out in widths:
        for block in range(2):
            stride = 2 if out > channels and block == 0 else 1
            shortcut = x if stride == 1 else net.conv(x, out, 1, stride)
            y = net.conv(net.relu(net.conv(x, out, 3, stride)), out, 3)
            x = net.relu(net.add(y, shortcut))
        channels = out
    return net.linear(net.mean(x), classes)


MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""The stages of MobileNetV2: expansion, channels, blocks and stride of each."""


def mobilenet_v2(
    net: Net[T],
    x: T,
    stages: Sequence[tuple[int, int, int, int]] = MOBILENET_V2,
    stem: int = 32,
    last: int = 1280,
    classes: int = 1000,
) -> T:
    """MobileNetV2 (Sandler et al., 2018, table 2), batch norms folded; smaller with other sizes."""
    x = net.relu(net.conv(x, stem, 3, 2), 6.0)
    channels = stem
    for expansion, out, count, first_stride in stages:
        for block in range(count):
            stride = first_stride if block == 0 else 1
            y = x
            hidden = channels * expansion
            if expansion > 1:
                y = net.relu(net.conv(y, hidden, 1), 6.0)
            y = net.relu(net.conv(y, hidden, 3, stride, groups=hidden), 6.0)
            y = net.conv(y, out, 1)
            x = net.add(x, y) if stride == 1 and channels == out else y
            channels = out
    return net.linear(net.mean(net.relu(net.conv(x, last, 1), 6.0)), classes)


class Weights:
    """Seeded weights, handed out in the order in which a network asks for them."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def next(self, *shape: int) -> Array:
        """Draw weights of a shape, scaled so that activations keep their size."""
        fan_in = int(np.prod(shape[1:])) or 1
        scale = np.sqrt(2.0 / fan_in)
        weights: Array = (self._random.standard_normal(shape) * scale).astype(np.float32)
        return weights


class RelaxNet:
    """Builds a network in Relax."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        from tvm import relax

        self._weights = Weights()
        self._builder = builder
        self._relax = relax

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self._builder.emit(value)

    def _constant(self, *shape: int, reshape: tuple[int, ...] | None = None) -> relax.Expr:
        weights = self._weights.next(*shape)
        return self._relax.const(weights if reshape is None else weights.reshape(reshape))

    def conv(
        self, x: relax.Expr, out: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> relax.Expr:
        """See Net."""
        channels = int(x.ty.shape[1])
        weight = self._constant(out, channels // groups, kernel, kernel)
        y = self._emit(
            self._relax.op.nn.conv2d(x, weight, strides=stride, padding=kernel // 2, groups=groups)
        )
        return self._emit(self._relax.op.add(y, self._constant(out, reshape=(1, out, 1, 1))))

    def relu(self, x: relax.Expr, largest: float | None = None) -> relax.Expr:
        """See Net."""
        if largest is None:
            return self._emit(self._relax.op.nn.relu(x))
        return self._emit(self._relax.op.clip(x, 0.0, largest))

    def add(self, a: relax.Expr, b: relax.Expr) -> relax.Expr:
        """See Net."""
        return self._emit(self._relax.op.add(a, b))

    def max_pool(self, x: relax.Expr) -> relax.Expr:
        """See Net."""
        return self._emit(self._relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)))

    def mean(self, x: relax.Expr) -> relax.Expr:
        """See Net."""
        return self._emit(self._relax.op.mean(x, [2, 3]))

    def linear(self, x: relax.Expr, out: int) -> relax.Expr:
        """See Net."""
        weight = self._relax.const(self._weights.next(out, int(x.ty.shape[1])).T.copy())
        y = self._emit(self._relax.op.matmul(x, weight))
        return self._emit(self._relax.op.add(y, self._constant(out)))


class OnnxNet:
    """Builds a network in ONNX."""

    def __init__(self) -> None:
        self._weights = Weights()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def _weight(self, *shape: int) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(self._weights.next(*shape), name))
        return name

    def _scalar(self, value: float) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.float32(value), name))
        return name

    def _node(self, op: str, inputs: list[str], channels: int, **attributes: object) -> Named:
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name, channels

    def conv(self, x: Named, out: int, kernel: int, stride: int = 1, groups: int = 1) -> Named:
        """See Net."""
        weight = self._weight(out, x[1] // groups, kernel, kernel)
        return self._node(
            "Conv",
            [x[0], weight, self._weight(out)],
            out,
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=groups,
        )

    def relu(self, x: Named, largest: float | None = None) -> Named:
        """See Net."""
        if largest is None:
            return self._node("Relu", [x[0]], x[1])
        return self._node("Clip", [x[0], self._scalar(0.0), self._scalar(largest)], x[1])

    def add(self, a: Named, b: Named) -> Named:
        """See Net."""
        return self._node("Add", [a[0], b[0]], a[1])

    def max_pool(self, x: Named) -> Named:
        """See Net."""
        return self._node(
            "MaxPool",
            [x[0]],
            x[1],
            kernel_shape=[3, 3],
            strides=[2, 2],
            pads=[1, 1, 1, 1],
        )

    def mean(self, x: Named) -> Named:
        """See Net."""
        return self._node("Flatten", [self._node("GlobalAveragePool", [x[0]], x[1])[0]], x[1])

    def linear(self, x: Named, out: int) -> Named:
        """See Net."""
        weight = self._weight(out, x[1])
        return self._node("Gemm", [x[0], weight, self._weight(out)], out, transB=1)


class TorchNet:
    """Runs a network in torch; the first run draws the weights, later runs use them again."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._weights = Weights()
        self._drawn: list[torch.Tensor] = []
        self._next = 0

    def restart(self) -> None:
        """Begin another run."""
        self._next = 0

    def _weight(self, *shape: int) -> torch.Tensor:
        if self._next == len(self._drawn):
            self._drawn.append(self._torch.from_numpy(self._weights.next(*shape)))
        self._next += 1
        return self._drawn[self._next - 1]

    def conv(
        self, x: torch.Tensor, out: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> torch.Tensor:
        """See Net."""
        weight = self._weight(out, x.shape[1] // groups, kernel, kernel)
        return self._torch.conv2d(x, weight, self._weight(out), stride, kernel // 2, groups=groups)

    def relu(self, x: torch.Tensor, largest: float | None = None) -> torch.Tensor:
        """See Net."""
        return self._torch.clamp_(x, 0.0, largest)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See Net."""
        return a + b

    def max_pool(self, x: torch.Tensor) -> torch.Tensor:
        """See Net."""
        return self._torch.max_pool2d(x, 3, 2, 1)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """See Net."""
        return x.mean((2, 3))

    def linear(self, x: torch.Tensor, out: int) -> torch.Tensor:
        """See Net."""
        weight = self._weight(out, x.shape[1])
        return self._torch.nn.functional.linear(x, weight, self._weight(out))


def build_relax(
    network: Callable[[Net[relax.Expr], relax.Expr], relax.Expr], shape: tuple[int, ...]
) -> tvm.IRModule:
    """Build a network as an IRModule whose ``main`` takes one float32 tensor of ``shape``."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(network(RelaxNet(builder), x))
        builder.emit_func_output(output)
    return builder.get()


def build_onnx(network: Callable[[Net[Named], Named], Named], shape: tuple[int, ...]) -> bytes:
    """Build a network as a serialized ONNX model with the input ``x`` of ``shape``."""
    from onnx import TensorProto, helper

    net = OnnxNet()
    output = network(net, ("x", shape[1]))
    graph = helper.make_graph(
        net.nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output[0], TensorProto.FLOAT, None)],
        net.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())
