"""Trains the demo's classifier and writes it as ONNX, with the images it never saw.

Needs torch, onnx and scikit-learn; the demo itself needs none of them but onnx. Run it again with
``python docs/demo/train.py``: it overwrites ``digits.onnx``, ``digits_held_out.npz``, and the
calibration data for int8, ``digits_calibration.npz``: 8 batches of images that were trained with.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).parent


class Classifier(nn.Module):
    """A small convolutional network for 8x8 images of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.linear = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of shape (n, 10) for images of shape (n, 1, 8, 8) with values in [0, 1]."""
        x = torch.relu(self.norm1(self.conv1(images)))
        x = torch.relu(self.depthwise(x))
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(x + self.conv3(x))
        return self.linear(x.mean((2, 3)))


def train(images: torch.Tensor, labels: torch.Tensor) -> Classifier:
    """Fit a classifier; the seed makes it the same each time on one machine."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    for _ in range(40):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def to_onnx(model: Classifier) -> onnx.ModelProto:
    """Write the network node by node, so that no exporter decides what the demo shows."""
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    norm = ["norm1.weight", "norm1.bias", "norm1.running_mean", "norm1.running_var"]
    nodes = [
        helper.make_node("Conv", ["images", "conv1.weight"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", *norm], ["n1"], epsilon=model.norm1.eps),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node(
            "Conv",
            ["r1", "depthwise.weight", "depthwise.bias"],
            ["d1"],
            pads=[1, 1, 1, 1],
            group=16,
        ),
        helper.make_node("Relu", ["d1"], ["r2"]),
        helper.make_node("Conv", ["r2", "conv2.weight", "conv2.bias"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r3"]),
        helper.make_node("MaxPool", ["r3"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "conv3.weight", "conv3.bias"], ["c3"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["p1", "c3"], ["s1"]),
        helper.make_node("Relu", ["s1"], ["r4"]),
        helper.make_node("GlobalAveragePool", ["r4"], ["g1"]),
        helper.make_node("Flatten", ["g1"], ["f1"]),
        helper.make_node("Gemm", ["f1", "linear.weight", "linear.bias"], ["scores"], transB=1),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["digits"], axis=1, keepdims=0),
    ]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 10]),
            helper.make_tensor_value_info("digits", TensorProto.INT64, ["n"]),
        ],
        [numpy_helper.from_array(v, k) for k, v in weights.items() if k in used],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    onnx.checker.check_model(proto)
    return proto


def main() -> None:
    """Train on four fifths of the images, keep the rest for the demo."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    seen, held_out, seen_labels, held_out_labels = train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    model = train(torch.from_numpy(seen), torch.from_numpy(seen_labels))
    with torch.no_grad():
        found = model(torch.from_numpy(held_out)).argmax(1).numpy()
    print(f"accuracy on {len(held_out)} held-out images: {(found == held_out_labels).mean():.4f}")
    onnx.save(to_onnx(model), HERE / "digits.onnx")
    np.savez_compressed(
        HERE / "digits_calibration.npz",
        images=(seen[:128] * 16).astype(np.uint8).reshape(8, 16, 1, 8, 8),
    )
    np.savez_compressed(
        HERE / "digits_held_out.npz",
        images=(held_out * 16).astype(np.uint8),
        labels=held_out_labels.astype(np.int64),
    )


if __name__ == "__main__":
    main()
