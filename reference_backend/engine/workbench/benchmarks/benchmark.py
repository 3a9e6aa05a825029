# SPDX-License-Identifier: Apache-2.0
"""How fast the backend is, against its peers in the same run.

Everything runs on one thread and in turns, the best of several runs counts, and the ratios are
what to quote: a machine's load changes the times, hardly the ratios.

Usage: ``python engine/workbench/benchmarks/benchmark.py [models] [ops] [integers] [weights]
[decoder] [calls] [compile] [build] [deploy]``, all by default. ``--once`` only shows that all runs,
``--only softmax`` measures ops and models with this in their name.
ONNX Runtime (with onnx) and torch are compared where they are installed.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before any library starts threads of its own.
os.environ["TVM_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
importlib.import_module("under_test")  # Makes the backend importable as `backend`.

import backend  # noqa: E402
from backend.engine.workbench.conformance import networks  # noqa: E402
from decoder import Decoder  # noqa: E402
from support import BACKEND, OPS, TABLE, Case, build, compile_for, partition_for  # noqa: E402

Work = Callable[[], Any]
runs_once = False
"""To see that all runs; the ratios say little then."""
only = ""
"""What the names of ops and models contain that are measured."""


def in_turns(works: dict[str, Work], seconds: float = 2.0, rounds: int = 5) -> dict[str, float]:
    """Seconds of the best run of each work; they take turns, so that load hits all alike."""
    seconds, rounds = (0.0, 1) if runs_once else (seconds, rounds)
    best: dict[str, float] = {}
    deadline = time.perf_counter() + seconds * len(works)
    done = 0
    while done < rounds or (time.perf_counter() < deadline and done < 200):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            taken = time.perf_counter() - start
            best[name] = min(best.get(name, taken), taken)
        done += 1
        if done >= 2 and time.perf_counter() > deadline:
            break
    return best


def on_vm(executable: Any, *inputs: Any) -> Work:
    """Prepare calls of ``main`` that allocate no inputs."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arguments = [tvm.runtime.tensor(x) for x in inputs]
    main = machine["main"]
    return lambda: main(*arguments)


def have(*packages: str) -> bool:
    """Whether all packages can be imported."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


def print_row(name: str, best: dict[str, float]) -> None:
    """One line: our time, and how many times faster we are than each peer."""
    ours = best[BACKEND]
    cells = [
        f"{peer} {best[peer] * 1e3:9.3f} ms = {best[peer] / ours:6.2f}x"
        for peer in best
        if peer != BACKEND
    ]
    print(f"  {name:32} {ours * 1e3:9.3f} ms   " + "   ".join(cells), flush=True)


def benchmark_models() -> None:
    """ResNet-18 and MobileNetV2 at 224x224, batch 1."""
    print(f"\nModels: {BACKEND}, and each peer with its time as a multiple of ours")
    shape = (1, 3, 224, 224)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for network in (networks.resnet18, networks.mobilenet_v2):
        if only not in network.__name__:
            continue
        module = networks.build_relax(network, shape)
        works = {
            BACKEND: on_vm(compile_for(module), x),
            "llvm": on_vm(tvm.compile(module, target="llvm"), x),
        }
        expected = works["llvm"]().numpy()
        np.testing.assert_allclose(works[BACKEND]().numpy(), expected, rtol=1e-3, atol=1e-3)
        if have("onnx", "onnxruntime"):
            works["onnxruntime"] = onnxruntime_work(network, shape, x)
        if have("torch"):
            works["torch"] = torch_work(network, x)
        print_row(network.__name__, in_turns(works, seconds=4.0))


def onnx_session(model: bytes) -> Any:
    """Load a model into ONNX Runtime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def onnxruntime_work(network: Any, shape: tuple[int, ...], x: Any) -> Work:
    """Prepare calls of a network in ONNX Runtime."""
    session = onnx_session(networks.build_onnx(network, shape))
    return lambda: session.run(None, {"x": x})


def torch_work(network: Any, x: Any) -> Work:
    """Prepare calls of a network in torch, on one thread."""
    import torch

    torch.set_num_threads(1)
    net = networks.TorchNet()
    data = torch.from_numpy(x)

    def run() -> Any:
        with torch.inference_mode():
            net.restart()
            return network(net, data)

    return run


def benchmark_ops() -> None:
    """Each op alone, at the size that the catalogue gives for it."""
    print(f"\nOps, float32: {BACKEND}, and each peer with its time as a multiple of ours")
    known = {entry.name for entry in TABLE.ops}
    for op, entry in OPS.items():
        if only not in op:
            continue
        # vendor/capabilities.py may leave an op to the host.
        for benchmark in entry["benchmarks"] if op in known else ():
            model = Case(op, benchmark).model()
            module = tvm.IRModule({"main": model.function().with_attr("global_symbol", "main")})
            inputs = [argument.values[1] for argument in model.arguments]
            works = {BACKEND: on_vm(compile_for(module), *inputs)}
            if benchmark.get("host", True):
                works["llvm"] = on_vm(tvm.compile(module, target="llvm"), *inputs)
            arrays = arrays_of(op, model)
            if "onnx" in benchmark and have("onnx", "onnxruntime"):
                works["onnxruntime"] = onnx_node_work(benchmark["onnx"], arrays)
            if "torch" in benchmark and have("torch"):
                works["torch"] = torch_expression_work(benchmark["torch"], op, arrays)
            print_row(f"{op}, {benchmark['name']}", in_turns(works, seconds=0.3))


def arrays_of(op: str, model: Any) -> dict[str, list[Any]]:
    """Return the values of a case by the names of the op's inputs, constants among them."""
    call = next(b.value for b in model.bindings if isinstance(b.value, relax.Call))
    arguments = {tensor.expr: tensor.values[1] for tensor in model.arguments}
    found = {}
    for item, argument in zip(TABLE.get(op).inputs, call.args, strict=False):
        fields = argument.fields if isinstance(argument, relax.Tuple) else [argument]
        found[item.name] = [
            arguments[field] if field in arguments else field.value.numpy() for field in fields
        ]
    return found


def onnx_node_work(node: dict[str, Any], arrays: dict[str, list[Any]]) -> Work:
    """Prepare runs of one node in ONNX Runtime; no input is a constant there."""
    from onnx import helper

    feeds = {
        f"{name}{index}": array
        for name, values in arrays.items()
        for index, array in enumerate(values)
    }
    outputs = [f"out{index}" for index in range(node.get("outputs", 1))]
    graph = helper.make_graph(
        [helper.make_node(node["op"], list(feeds), outputs, **node.get("attributes", {}))],
        "node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    session = onnx_session(model.SerializeToString())
    return lambda: session.run(None, feeds)


def torch_expression_work(expression: str, op: str, arrays: dict[str, list[Any]]) -> Work:
    """Prepare runs of an expression in torch, on one thread."""
    import torch

    torch.set_num_threads(1)
    names: dict[str, Any] = {"torch": torch}
    for item in TABLE.get(op).inputs:
        tensors = [torch.from_numpy(array) for array in arrays[item.name]]
        names[item.name] = tensors if item.is_tuple else tensors[0]
    code = compile(expression, f"the torch expression of {op}", "eval")

    def run() -> Any:
        with torch.inference_mode():
            return eval(code, names)

    return run


def unary_op() -> Callable[[Any], Any]:
    """Return the first op of the table that takes one tensor of shape (1, 8) and keeps its shape.

    Two arguments will do too: they then are the same tensor.
    """
    candidates: list[Callable[[Any], Any]] = []
    for entry in TABLE.ops:
        function = relax.op
        for part in entry.relax.split(".")[1:]:
            function = getattr(function, part)
        candidates += [function, lambda x, f=function: f(x, x)]
    x = relax.Var("x", relax.TensorType((1, 8), "float32"))
    for candidate in candidates:
        try:
            call = relax.BlockBuilder().normalize(candidate(x))
        except Exception:
            continue  # It needs other arguments.
        if tvm_ffi.structural_equal(call.ty, x.ty) and TABLE.refusal(call) is None:
            return candidate
    sys.exit("The table has no op that keeps a shape, so there is no chain to measure.")


def chain(length: int, host_op_every: int = 0) -> Any:
    """Build a chain of an op of this backend on 8 numbers, with ops of the host between."""
    op = unary_op()
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for i in range(length):
                is_for_host = host_op_every > 0 and i % host_op_every == host_op_every - 1
                y = builder.emit(relax.op.acosh(y) if is_for_host else op(y))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


def benchmark_integers() -> None:
    """Models and layers in int8, against the same in float32."""
    entry = TABLE.get("conv2d")
    if entry is None or entry.quantized is None:
        return
    print("\nIn int8, and in float32 with its time as a multiple of that")
    random = np.random.default_rng(0)
    for name, channels, size, stride, groups in (
        ("conv2d 3x3, 128 to 128, 28x28", 128, 28, 1, 1),
        ("depthwise conv2d 3x3, 144, 56x56", 144, 56, 1, 144),
        ("depthwise conv2d 3x3, 96, 112x112", 96, 112, 2, 96),
        ("depthwise conv2d 3x3, 576, 14x14", 576, 14, 1, 576),
    ):
        weight = random.integers(-127, 128, (channels, channels // groups, 3, 3)).astype("int8")
        x = random.integers(-128, 128, (1, channels, size, size)).astype("int8")
        attributes = {"strides": stride, "padding": 1, "groups": groups}
        works = {
            BACKEND: on_vm(compile_for(layer(x, weight, attributes)), x),
            "float32": on_vm(
                compile_for(layer(x.astype("float32"), weight, attributes)), x.astype("float32")
            ),
        }
        print_row(name, in_turns(works, seconds=0.5))
    benchmark_integer_matmul(random)
    if not have("onnx", "onnxruntime"):
        return
    import onnx

    from backend.engine.workbench.conformance.quantized_networks import quantize_onnx

    x = random.standard_normal((1, 3, 224, 224)).astype("float32")
    for network in (networks.resnet18, networks.mobilenet_v2):
        model = onnx.load_from_string(networks.build_onnx(network, x.shape))
        # ONNX Runtime is at its best with activations of uint8.
        quantized = {kind: quantize_onnx((model, [x]), activations=kind) for kind in TYPES}
        imported = {kind: backend.from_onnx(quantized[kind]) for kind in TYPES}
        plain = backend.from_onnx(model)
        sessions = {"onnxruntime": onnx_session(model.SerializeToString())}
        for kind in TYPES:
            sessions[f"onnxruntime {kind}"] = onnx_session(quantized[kind].SerializeToString())
        works = {
            BACKEND: on_vm(compile_for(imported["int8"]), x),
            "float32": on_vm(compile_for(plain), x),
        }
        for peer, session in sessions.items():
            works[peer] = lambda session=session: session.run(None, {"x": x})
        print_row(network.__name__, in_turns(works, seconds=2.0))
        print_partition(network.__name__, imported["int8"], plain)


# Of activations; weights are int8.
TYPES = ("int8", "uint8")


def print_partition(name: str, quantized: Any, plain: Any) -> None:
    """What it takes to partition a quantized model, for each op, against the float32 one."""
    count = {key: op_count(module) for key, module in (("int8", quantized), ("float32", plain))}
    best = in_turns(
        {"int8": lambda: partition_for(quantized), "float32": lambda: partition_for(plain)},
        seconds=1.0,
        rounds=3,
    )
    per_op = {key: best[key] / count[key] for key in best}
    each = ", ".join(
        f"{key} {per_op[key] * 1e3:.2f} ms for each of {count[key]} ops" for key in best
    )
    ratio = per_op["int8"] / per_op["float32"]
    print(f"  {name + ', partition':32} {each}:   int8 / float32 = {ratio:.2f}", flush=True)


def op_count(module: Any) -> int:
    """Count what `main` binds."""
    return sum(1 for block in module["main"].body.blocks for _ in block.bindings)


def benchmark_integer_matmul(random: Any) -> None:
    """A matmul of 512 x 512 x 512 with constant weights."""
    matmul = TABLE.get("matmul")
    if matmul is None or matmul.quantized is None:
        return
    op, const, size = relax.op, relax.const, 512
    x = random.integers(-128, 128, (size, size)).astype("int8")
    weight = random.integers(-127, 128, (size, size)).astype("int8")
    plain = weight.astype("float32")
    zero, scale = const(np.int8(0)), const(np.float32(0.01))

    def product(emit: Callable[[Any], Any]) -> Any:
        pair = [emit(op.dequantize(item, scale, zero)) for item in (variable, const(weight))]
        return emit(op.quantize(emit(op.matmul(*pair)), const(np.float32(4)), zero))

    variable = relax.Var("x", relax.TensorType(x.shape, "int8"))
    works = {
        BACKEND: on_vm(compile_for(build([variable], product)), x),
        "float32": on_vm(compile_for(weights_model(x.shape, const(plain))), x.astype("float32")),
    }
    if have("onnx", "onnxruntime"):
        works["onnxruntime"] = onnx_matmul_work(x.astype("float32"), plain, None)
        for kind in TYPES:
            left = x if kind == "int8" else (x.astype("int16") + 128).astype("uint8")
            works[f"onnxruntime {kind}"] = onnx_matmul_work(left, weight, left.dtype.type(0))
    print_row("matmul 512 x 512 x 512", in_turns(works, seconds=0.5))


def onnx_matmul_work(x: Any, weight: Any, zero: Any) -> Work:
    """Prepare runs of a matmul with constant weights in ONNX Runtime, quantized if `zero` is."""
    from onnx import helper, numpy_helper

    constants = {"weight": weight}
    inputs = ["x", "weight"]
    if zero is not None:
        scale = np.float32(0.01)
        constants |= {"scale": scale, "zero": np.asarray(zero), "weight_zero": np.int8(0)}
        constants["out_scale"] = np.float32(4)
        inputs = ["x", "scale", "zero", "weight", "scale", "weight_zero", "out_scale", "zero"]
    node = helper.make_node("MatMul" if zero is None else "QLinearMatMul", inputs, ["y"])
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "matmul",
        [helper.make_tensor_value_info("x", dtype, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    session = onnx_session(model.SerializeToString())
    return lambda: session.run(None, {"x": x})


def layer(x: Any, weight: Any, attributes: dict[str, Any]) -> Any:
    """Build a convolution with a bias and relu, of integers if `x` is of them."""
    op, const = relax.op, relax.const
    variable = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    integers = x.dtype == np.int8
    bias = const(np.ones((1, len(weight), 1, 1), "float32"))

    def body(emit: Callable[[Any], Any]) -> Any:
        zero = const(np.int8(0))
        scales = const(np.full(len(weight), 0.01, "float32"))
        data, kernel = variable, const(weight.astype("float32") * np.float32(0.01))
        if integers:
            data = emit(op.dequantize(variable, const(np.float32(0.1)), zero))
            zeros = const(np.zeros(len(weight), "int8"))
            kernel = emit(op.dequantize(const(weight), scales, zeros, axis=0))
        result = emit(op.nn.conv2d(data, kernel, **attributes))
        result = emit(op.nn.relu(emit(op.add(result, bias))))
        if integers:
            result = emit(op.quantize(result, const(np.float32(0.1)), zero))
        return result

    return build([variable], body)


def benchmark_weights() -> None:
    """A matmul with weights of integers, against one with weights of real numbers."""
    if not TABLE.takes_integer_weights("relax.matmul"):
        return
    generator = np.random.default_rng(0)
    for rows, depth, columns in ((1, 4096, 4096), (1, 1024, 1024), (512, 512, 512)):
        x = generator.standard_normal((rows, depth)).astype("float32")
        plain = (generator.standard_normal((depth, columns)) / 64).astype("float32")
        peer = on_vm(compile_for(weights_model(x.shape, relax.const(plain))), x)
        for bits, group in ((8, depth), (4, depth), (4, 32)):
            shape = (columns * depth // group, group)
            numbers = generator.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape)
            scales = generator.uniform(0.5, 1, shape[0]) / 2**bits
            arrays = (numbers.astype("int8"), scales.astype("float32"), np.zeros(shape[0], "int8"))
            weight = relax.op.dequantize(*map(relax.const, arrays), 0)
            weight = relax.op.permute_dims(relax.op.reshape(weight, (columns, depth)))
            works = {BACKEND: on_vm(compile_for(weights_model(x.shape, weight)), x)}
            name = f"{rows}x{depth}x{columns}, {bits} bits, groups of {group}"
            print_row(name, in_turns({**works, "float32": peer}, seconds=1.0))


def benchmark_decoder() -> None:
    """One token of a decoder with 160 million parameters: cycles, against those of its reads."""
    print("\nA decoder that takes one token: million cycles on the device, and as a multiple of")
    print("those in which DRAM gives its weights, their scales, and its cache once")
    width, layers, vocabulary = (64, 1, 256) if runs_once else (1024, 8, 32000)
    sizes = {"width": width, "inner": width * 11 // 4, "size": 64, "vocabulary": vocabulary}
    heads = {"heads": width // 64, "shared": max(1, width // 128)}
    for capacity in (128, 2048):
        for bits in (32, 8, 4):
            decoder = Decoder(layers=layers, capacity=capacity, bits=bits, **sizes, **heads)
            module = decoder.build()
            least = (decoder.weight_bytes + decoder.cache_bytes) / 16
            cells = []
            for buffers in (1, 2):
                executable = compile_for(module, weight_buffers=buffers)
                found = counters(executable, *decoder.inputs)
                cycles = found["cycles"]
                cells.append(
                    f"weight_buffers={buffers} {cycles / 1e6:7.2f} = {cycles / least:5.3f}"
                )
            name = f"weights of {bits} bits, a cache of {capacity}"
            written = f"writes {found['dram_bytes_written'] / 1e6:.1f} MB"
            print(f"  {name:36} {'   '.join(cells)}   {written}", flush=True)


def weights_model(shape: tuple[int, ...], weight: Any) -> Any:
    """Build a matmul with a constant, or with what is computed from constants."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    return build([x], lambda emit: emit(relax.op.matmul(x, emit(weight))))


def benchmark_calls() -> None:
    """The cost of a region call: many regions of one op against one region of many."""
    length = 1000
    module = chain(length)
    patterns = get_patterns_with_prefix(BACKEND)
    many = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(module)
    many = relax.transform.RunCodegen()(many)
    x = np.ones((1, 8), np.float32)
    best = in_turns(
        {
            BACKEND: on_vm(tvm.compile(many, target="llvm"), x),
            "one region": on_vm(compile_for(module), x),
            "llvm": on_vm(tvm.compile(module, target="llvm"), x),
        }
    )
    cost = (best[BACKEND] - best["one region"]) / (length - 1)
    print(
        f"\nA region call costs {cost * 1e6:.2f} us beyond its work "
        f"(work of one op: {best['one region'] / length * 1e6:.2f} us;"
        f" a call of a TVM llvm kernel, fused where it can be:"
        f" {best['llvm'] / length * 1e6:.2f} us)"
    )
    single = chain(1)
    profiled = compile_for(single)
    backend.profile(profiled, x)
    works = {BACKEND: on_vm(compile_for(single), x), "after a profile": on_vm(profiled, x)}
    print_row("1000 calls", in_turns({name: many_times(work) for name, work in works.items()}))


def many_times(work: Work) -> Work:
    """Repeat a work that is too short for the clock."""
    return lambda: [work() for _ in range(1000)]


def benchmark_compile() -> None:
    """Partition and codegen of long chains; time per op should not grow with the length."""
    print("\nPartition and codegen, per op of the chain")
    relax.transform.RunCodegen()(partition_for(chain(10)))  # What is loaded once.
    for label, every in (("one region", 0), ("a region every 3 ops", 3)):
        for length in (100, 1000, 10000):
            module = chain(length, every)
            start = time.perf_counter()
            partitioned = partition_for(module)
            middle = time.perf_counter()
            relax.transform.RunCodegen()(partitioned)
            end = time.perf_counter()
            print(
                f"  {label:22} {length:6} ops   partition {(middle - start) / length * 1e6:8.1f} us"
                f"   codegen {(end - middle) / length * 1e6:8.1f} us",
                flush=True,
            )


def large_models() -> dict[str, Any]:
    """Build the models that are compiled and deployed."""
    shape = (1, 3, 224, 224)
    return {
        network.__name__: networks.build_relax(network, shape)
        for network in (networks.resnet18, networks.mobilenet_v2)
    }


def detection_head(levels: int = 3, depth: int = 20, anchors: int = 20) -> Any:
    """Build a detection head as exporters write it: its grids are computed from constants."""
    random = np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((1, 32, 32, 32), "float32"))
    op, const = relax.op, relax.const

    def body(emit: Callable[[Any], Any]) -> Any:
        y, boxes = x, []
        for _ in range(levels):
            for _ in range(depth):
                weight = (random.standard_normal((32, 32, 3, 3)) / 17).astype("float32")
                y = emit(op.nn.conv2d(y, const(weight), padding=1))
                y = emit(op.add(y, const(np.zeros((1, 32, 1, 1), "float32"))))
                y = emit(op.nn.silu(y))
            for anchor in range(anchors):
                grid = emit(op.arange(0, 32, 1, "float32"))
                grid = emit(op.reshape(grid, (1, 1, 1, 32)))
                grid = emit(op.broadcast_to(grid, (1, 1, 32, 32)))
                grid = emit(op.add(grid, const(np.float32(0.5))))
                grid = emit(op.multiply(grid, const(np.float32(anchor + 1))))
                boxes.append(emit(op.add(y, grid)))
        return op.concat(boxes, axis=1)

    return build([x], body)


def exported_encoder() -> dict[str, Any]:
    """Read an encoder from torch, where it is installed: six layers as wide as a small ViT's."""
    if not have("torch"):
        return {}
    import torch

    from backend.engine.workbench.conformance.torch_networks import Encoder, make

    network, inputs = make(lambda: Encoder(384, 6, 6), lambda: [torch.randn(1, 197, 384)])
    program = torch.export.export(network, tuple(inputs))
    return {"encoder": backend.from_exported_program(program, unwrap_unit_return_tuple=True)}


def benchmark_build() -> None:
    """What the backend adds to the time of a build, against TVM's compilation of the model."""
    print("\nBuild: our part (partition, codegen) against tvm.compile(model, 'llvm')")
    options = backend.Options()
    models = {**large_models(), "detection head": detection_head(), **exported_encoder()}
    with tempfile.TemporaryDirectory() as directory:
        cache = options.merged(cache_dir=directory)
        for name, module in models.items():
            times: dict[str, float] = {}

            def timed(step: str, work: Work, times: dict[str, float] = times) -> Any:
                start = time.perf_counter()
                result = work()
                taken = time.perf_counter() - start
                times[step] = min(times.get(step, taken), taken)
                return result

            for _ in range(1 if runs_once else 3):
                partitioned = timed("partition", lambda m=module: partition_for(m))
                for step, chosen in (("codegen", options), ("codegen, cached", cache)):
                    passed = relax.transform.RunCodegen({BACKEND: chosen.to_dict()})
                    compiled = timed(step, lambda p=passed, m=partitioned: p(m))
                built = timed("compile", lambda m=compiled: tvm.compile(m, target="llvm"))
                path = f"{directory}/{name}.so"
                timed("export", lambda b=built, p=path: b.export_library(p))
                timed("llvm", lambda m=module: tvm.compile(m, target="llvm"))
            ours = times["partition"] + times["codegen"]
            steps = "   ".join(f"{step} {taken * 1e3:.0f} ms" for step, taken in times.items())
            count = op_count(module)
            print(
                f"  {name:14} {count:4} ops   {steps}   ours / llvm = {ours / times['llvm']:.2f}",
                flush=True,
            )


RUN_ON_BOARD = """
import json, pathlib, re, sys, time
import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

def memory(field):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(field + r":\\s+(\\d+) kB", status)[1]) << 10

def seconds(work):
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start

path = pathlib.Path(sys.argv[1])
x = tvm.runtime.tensor(np.random.default_rng(1).standard_normal((1, 3, 224, 224), dtype="float32"))
read = min(seconds(path.read_bytes)[1] for _ in range(5))
pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak counts from here.
before, anonymous = memory("VmRSS"), memory("RssAnon")

def load_and_call():
    main = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]
    main(x)
    return main

main, first = seconds(load_and_call)
later = min(seconds(lambda: main(x))[1] for _ in range(10))
print(json.dumps({
    "read": read, "first": first, "later": later,
    "peak": memory("VmHWM") - before, "kept": memory("RssAnon") - anonymous,
}))
"""


def benchmark_deploy() -> None:
    """What it costs to load and run an exported library, where nothing compiles."""
    print("\nDeploy: in a new process with the runtime only")
    with tempfile.TemporaryDirectory() as directory:
        for name, module in large_models().items():
            path = f"{directory}/{name}.so"
            executable = compile_for(module)
            executable.export_library(path)
            command = [sys.executable, "-c", RUN_ON_BOARD, path]
            environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
            runs = [
                json.loads(subprocess.check_output(command, env=environment, text=True))
                for _ in range(1 if runs_once else 5)
            ]
            best = {key: min(run[key] for run in runs) for key in runs[0]}
            print(
                f"  {name:14} load and first call {best['first'] * 1e3:.1f} ms, later call "
                f"{best['later'] * 1e3:.1f} ms, reading the file {best['read'] * 1e3:.1f} ms:   "
                f"first / (later + reading) = {best['first'] / (best['later'] + best['read']):.2f}"
            )
            found = counters(executable, np.zeros((1, 3, 224, 224), np.float32))
            planned = found["constant_bytes"] + found["arena_bytes"]
            print(
                f"  {'':14} peak {best['peak'] / 1e6:.1f} MB, kept {best['kept'] / 1e6:.1f} MB, "
                f"constants and arena {planned / 1e6:.1f} MB:   peak / planned = "
                f"{best['peak'] / planned:.2f}, kept / planned = {best['kept'] / planned:.2f}"
            )
            text = "".join(artifact.program for artifact in backend.read_artifacts(path))
            bound = sum(map(int, LOWER_BOUND.findall(text)))
            print(
                f"  {'':14} arena {found['arena_bytes'] / 1e6:.2f} MB, lower bound of liveness "
                f"{bound / 1e6:.2f} MB:   planned / bound = "
                f"{found['arena_bytes'] / bound if bound else 1:.3f};   "
                f"{found['cycles'] / 1e6:.2f} million cycles on the device",
                flush=True,
            )


# As the driver's listing has it.
LOWER_BOUND = re.compile(r"arena +\d+ +of (\d+) that are alive at once")


def counters(executable: Any, *inputs: Any) -> dict[str, int]:
    """Call once, and sum what all regions count."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    machine["main"](*map(tvm.runtime.tensor, inputs))
    found: dict[str, int] = {}
    waiting = [machine.module]
    while waiting:
        module = waiting.pop()
        waiting += list(module.imports)
        if module.kind == BACKEND:
            for key, value in module["counters"]().items():
                found[str(key)] = found.get(str(key), 0) + int(value)
    return found


def main() -> None:
    """Run the parts that were asked for."""
    parts: dict[str, Callable[[], None]] = {
        "models": benchmark_models,
        "ops": benchmark_ops,
        "integers": benchmark_integers,
        "weights": benchmark_weights,
        "decoder": benchmark_decoder,
        "calls": benchmark_calls,
        "compile": benchmark_compile,
        "build": benchmark_build,
        "deploy": benchmark_deploy,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *parts], help="what to run (default: all)")
    parser.add_argument("--once", action="store_true", help="run, but hardly measure")
    parser.add_argument("--only", default="", help="ops and models with this in their name")
    arguments = parser.parse_args()
    global runs_once, only
    runs_once, only = arguments.once, arguments.only
    for part in arguments.part or parts:
        parts[part]()


if __name__ == "__main__":
    main()
