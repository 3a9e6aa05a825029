# SPDX-License-Identifier: Apache-2.0
"""Writes TFLite files without TensorFlow, and runs them with LiteRT's reference kernels."""

from functools import partial

import numpy as np
import pytest

from backend.engine.backend.verification.originals import run_tflite

tflite = pytest.importorskip("tflite", reason="pip install tflite")
flatbuffers = pytest.importorskip("flatbuffers", reason="pip install tflite")

TYPES = {
    name: getattr(tflite.TensorType, name.upper())
    for name in (
        *("bool", "int4", "int8", "int16", "int32", "int64", "uint8", "uint32"),
        *("float16", "float32", "complex64", "resource"),
    )
}
SAME, VALID = tflite.Padding.SAME, tflite.Padding.VALID
RELU, RELU6 = tflite.ActivationFunctionType.RELU, tflite.ActivationFunctionType.RELU6


VERSIONS = {tflite.BuiltinOperator.BROADCAST_TO: 2}
"""The first version of operators that LiteRT knows, where it is not 1."""


def stored(values, dtype):
    """Return the bytes of a constant; integers of 4 bits are packed in pairs."""
    if dtype != "int4":
        return np.asarray(values, dtype).tobytes()
    flat = np.asarray(values, "int8").reshape(-1) & 15
    low, high = np.resize(flat, -(-flat.size // 2) * 2).reshape(-1, 2).T
    return (low | high << 4).astype("uint8").tobytes()


class File:
    """A file under construction."""

    def __init__(self):
        self.builder = flatbuffers.Builder(1 << 12)
        self.codes, self.tensors, self.operators = [], [], []
        self.buffers, self.branches = [self.table("Buffer")], []

    def table(self, kind, **fields):
        getattr(tflite, f"{kind}Start")(self.builder)
        for name, value in fields.items():
            if value is not None:
                getattr(tflite, f"{kind}Add{name}")(self.builder, value)
        return getattr(tflite, f"{kind}End")(self.builder)

    def numbers(self, values, dtype="int32"):
        return self.builder.CreateNumpyVector(np.asarray(values, dtype))

    def vector(self, values):
        return self.numbers(values, "float32" if float in map(type, values) else "int32")

    def tables(self, offsets):
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def tensor(self, shape, dtype, scale=None, zero=0, axis=0, data=None, name=None, **fields):
        """Add a tensor, a constant if it has data; return its number."""
        name = self.builder.CreateString(f"t{len(self.tensors)}" if name is None else name)
        sizes, quantization, buffer = self.numbers(shape), None, 0
        if scale is not None:
            scales = np.atleast_1d(np.asarray(scale, "float32"))
            quantization = self.table(
                "QuantizationParameters",
                Scale=self.numbers(scales, "float32"),
                ZeroPoint=self.numbers(np.full(scales.shape, zero), "int64"),
                QuantizedDimension=axis,
            )
        if data is not None:
            content = self.numbers(np.frombuffer(stored(data, dtype), "uint8"), "uint8")
            buffer = len(self.buffers)
            self.buffers.append(self.table("Buffer", Data=content))
        self.tensors.append(
            self.table(
                "Tensor",
                Shape=sizes,
                Type=TYPES[dtype],
                Buffer=buffer,
                Name=name,
                Quantization=quantization,
                **fields,
            )
        )
        return len(self.tensors) - 1

    def sparse(self, array, dtype, order, is_dense, blocks=None, **quantization):
        """Add a constant that has only some of the elements; return its number.

        The levels are the axes, then the blocks of axes (a size by axis), in this order.
        """
        blocks = blocks or {}
        split = [
            size
            for axis, whole in enumerate(array.shape)
            for size in (whole // blocks.get(axis, 1), blocks.get(axis, 1))
        ]
        axes = [*range(0, 2 * array.ndim, 2), *(2 * axis + 1 for axis in blocks)]
        rest = [axis for axis in range(len(split)) if axis not in axes]
        parts = array.reshape(split).transpose([*axes, *rest])
        parts = parts.reshape(parts.shape[: len(axes)]).transpose(order)
        nodes, levels = [()], []
        for size, dense in zip(parts.shape, is_dense, strict=True):
            if dense:
                nodes = [(*node, place) for node in nodes for place in range(size)]
                levels.append(self.table("DimensionMetadata", DenseSize=size))
                continue
            found = [[i for i in range(size) if parts[(*node, i)].any()] for node in nodes]
            segments = np.cumsum([0, *map(len, found)])
            nodes = [(*node, i) for node, some in zip(nodes, found, strict=True) for i in some]
            kind = tflite.SparseIndexVector.Int32Vector
            vectors = [
                self.table("Int32Vector", Values=self.numbers(values))
                for values in (segments, [node[-1] for node in nodes])
            ]
            levels.append(
                self.table(
                    "DimensionMetadata",
                    Format=tflite.DimensionType.SPARSE_CSR,
                    ArraySegmentsType=kind,
                    ArraySegments=vectors[0],
                    ArrayIndicesType=kind,
                    ArrayIndices=vectors[1],
                )
            )
        sparsity = self.table(
            "SparsityParameters",
            TraversalOrder=self.numbers(order),
            BlockMap=self.numbers(list(blocks)) if blocks else None,
            DimMetadata=self.tables(levels),
        )
        data = [parts[node] for node in nodes]
        return self.tensor(array.shape, dtype, data=data, Sparsity=sparsity, **quantization)

    def operator(self, name, inputs, outputs, kind="", custom=None, **options):
        """Append an operator; options that are lists become vectors."""
        code = getattr(tflite.BuiltinOperator, name, name)
        if code not in self.codes:
            self.codes.append(code)
        options = {
            key: self.vector(value) if isinstance(value, list) else value
            for key, value in options.items()
        }
        made = self.table(kind, **options) if kind else None
        self.operators.append(
            self.table(
                "Operator",
                OpcodeIndex=self.codes.index(code),
                Inputs=self.numbers(inputs),
                Outputs=self.numbers(outputs),
                BuiltinOptionsType=getattr(tflite.BuiltinOptions, kind) if kind else None,
                BuiltinOptions=made,
                CustomOptions=None if custom is None else self.numbers(list(custom), "uint8"),
            )
        )

    def code(self, code):
        """Write the code of an operator, a custom one if it is no number."""
        if isinstance(code, int):
            return self.table(
                "OperatorCode",
                DeprecatedBuiltinCode=min(code, 127),
                BuiltinCode=code,
                Version=VERSIONS.get(code),
            )
        name, custom = self.builder.CreateString(code), tflite.BuiltinOperator.CUSTOM
        return self.table(
            "OperatorCode", DeprecatedBuiltinCode=custom, BuiltinCode=custom, CustomCode=name
        )

    def subgraph(self, inputs, outputs):
        """Write what was added since the last one."""
        graph = self.table(
            "SubGraph",
            Tensors=self.tables(self.tensors),
            Operators=self.tables(self.operators),
            Inputs=self.numbers(inputs),
            Outputs=self.numbers(outputs),
        )
        self.tensors, self.operators = [], []
        return graph

    def branch(self, inputs, outputs):
        """Make what was added a subgraph of operators such as IF; return its number."""
        self.branches.append(self.subgraph(inputs, outputs))
        return len(self.branches)

    def finish(self, inputs, outputs):
        """Return the file; its model is what was added last."""
        graph = self.subgraph(inputs, outputs)
        codes = [self.code(code) for code in self.codes]
        model = self.table(
            "Model",
            Version=3,
            OperatorCodes=self.tables(codes),
            Subgraphs=self.tables([graph, *self.branches]),
            Buffers=self.tables(self.buffers),
        )
        self.builder.Finish(model, b"TFL3")
        return bytes(self.builder.Output())


def litert(content, arguments, reference=True):
    """Return what LiteRT computes of a file, with its reference kernels or the usual ones."""
    runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install ai-edge-litert")
    kernels = runtime.OpResolverType
    chosen = kernels.BUILTIN_REF if reference else kernels.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = partial(runtime.Interpreter, experimental_op_resolver_type=chosen)
    return run_tflite(interpreter, content, arguments)
