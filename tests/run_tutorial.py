"""The flow of TVM's "Bring Your Own Codegen" tutorial on its example NPU, with the values checked.

Only what the tutorial uses: the patterns that the wheel ships for the example NPU, TVM's passes,
TVM's build. The tests call it in an environment where the reference backend is installed.
"""

import numpy as np
import tvm
import tvm.relax.backend.contrib.example_npu  # registers the patterns of the wheel
from tvm import relax
from tvm.relax.backend.pattern_registry import get_pattern, get_patterns_with_prefix
from tvm.relax.transform import FuseOpsByPattern, MergeCompositeFunctions, RunCodegen
from tvm.script import ir as I
from tvm.script import relax as R

# The wheel's patterns, by name: the backend registers patterns under the same prefix.
WHEEL_PATTERNS = [
    get_pattern(f"example_npu.{name}")
    for name in (
        "conv2d_relu_fused",
        "matmul_relu_fused",
        "depthwise_conv2d",
        "conv2d",
        "conv1d",
        "matmul",
        "max_pool2d",
        "avg_pool2d",
        "batch_norm",
        "softmax",
        "relu",
        "add",
        "multiply",
        "subtract",
        "divide",
        "gelu",
    )
]


@I.ir_module
class ConvReLU:
    """The tutorial's model."""

    @R.function
    def main(
        data: R.Tensor((1, 3, 32, 32), "float32"),
        weight: R.Tensor((16, 3, 3, 3), "float32"),
    ) -> R.Tensor((1, 16, 30, 30), "float32"):
        with R.dataflow():
            conv = relax.op.nn.conv2d(data, weight)
            out = relax.op.nn.relu(conv)
            R.output(out)
        return out


@I.ir_module
class Classifier:
    """Uses more of the wheel's patterns."""

    @R.function
    def main(
        data: R.Tensor((2, 3, 16, 16), "float32"),
        weight: R.Tensor((8, 3, 3, 3), "float32"),
        depthwise: R.Tensor((8, 1, 3, 3), "float32"),
        dense: R.Tensor((8, 10), "float32"),
    ) -> R.Tensor((2, 10), "float32"):
        with R.dataflow():
            conv = relax.op.nn.conv2d(data, weight, strides=(2, 1), padding=(1, 0, 2, 1))
            relu = relax.op.nn.relu(conv)
            filtered = relax.op.nn.conv2d(relu, depthwise, padding=1, groups=8)
            added = relax.op.add(filtered, relu)
            pooled = relax.op.nn.max_pool2d(added, (2, 2), (2, 2))
            mean = relax.op.mean(pooled, [2, 3])
            scores = relax.op.nn.relu(relax.op.matmul(mean, dense))
            out = relax.op.nn.softmax(scores)
            R.output(out)
        return out


def run(module: tvm.IRModule, inputs: list[np.ndarray]) -> np.ndarray:
    """Build for the host and run."""
    executable = relax.build(module, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(x) for x in inputs)).numpy()


def main() -> None:
    """Try all ways of partitioning that the tutorial and TVM's README name."""
    assert tvm.get_global_func("relax.ext.example_npu", True) is not None
    assert tvm.get_global_func("runtime.ExampleNPUJSONRuntimeCreate", True) is not None
    random = np.random.default_rng(0)
    for module in (ConvReLU, Classifier):
        shapes = [[int(n) for n in param.ty.shape] for param in module["main"].params]
        arrays = [random.standard_normal(shape).astype("float32") for shape in shapes]
        names = [param.name for param in module["main"].params]
        expected = run(module, arrays)
        bound = relax.transform.BindParams("main", dict(zip(names[1:], arrays[1:], strict=True)))(
            module
        )
        for patterns in (WHEEL_PATTERNS, get_patterns_with_prefix("example_npu")):
            for annotate in (True, False):
                for merge in (True, False):
                    for weights_are_bound in (True, False):
                        if not (annotate or merge):
                            continue  # Nothing else names the codegen of the composites.
                        npu = FuseOpsByPattern(
                            patterns,
                            bind_constants=weights_are_bound,
                            annotate_codegen=annotate,
                        )(bound if weights_are_bound else module)
                        npu = MergeCompositeFunctions()(npu) if merge else npu
                        assert "Codegen" in npu.script()
                        found = run(RunCodegen()(npu), arrays[:1] if weights_are_bound else arrays)
                        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    print("right")


if __name__ == "__main__":
    main()
