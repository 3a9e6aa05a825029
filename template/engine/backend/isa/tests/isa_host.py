# SPDX-License-Identifier: Apache-2.0
"""Writes regions, and runs the kernels of their plans on the host, without an instruction set."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from backend.engine.backend.isa.compiler.kernels import plan_of
from backend.engine.backend.sdk.npu_region.region import Region

# Quick to compile.
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def _is_real(node: Any) -> bool:
    return str(node.ty) in ("float32", "float16")


def _const(value: float, dtype: str) -> Any:
    return tirx.const(value, dtype)


def _meant(node: Any) -> Any:
    """Rewrite what TVM leaves open as the compiler means it; see `compiler/graph.py`."""
    kind = type(node).__name__
    if kind in ("Max", "Min") and _is_real(node):
        a, b = node.a, node.b
        is_a = a > b if kind == "Max" else a < b
        return tirx.Select(tirx.any(is_a, tirx.isnan(a)), a, b)
    if kind == "NE" and _is_real(node.a):
        a, b = node.a, node.b
        return tirx.any(a < b, b < a, tirx.isnan(a), tirx.isnan(b))
    if kind == "Cast" and _is_real(node.value) and str(node.ty).startswith(("int", "uint")):
        info, value, dtype = np.iinfo(str(node.ty)), node.value.astype("float64"), str(node.ty)
        least, most = (_const(float(end), "float64") for end in (info.min, info.max))
        inside = tirx.all(value > least, value < most)
        cut = tirx.Cast(dtype, tirx.Select(inside, value, _const(0.0, "float64")))
        ends = tirx.Select(
            value >= most, _const(int(info.max), dtype), _const(int(info.min), dtype)
        )
        known = tirx.Select(tirx.isnan(value), _const(0, dtype), ends)
        return tirx.Select(inside, cut, known)
    name = getattr(node.op, "name", "").rpartition(".")[2] if kind == "Call" else ""
    if name in ("fmod", "tanh"):
        # TVM's is missing, and rough near 0.
        return tirx.call_pure_extern("float32", f"{name}f", *node.args)
    return node


def rewritten(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel with the meaning of the compiler in TVM's own operations."""
    body = tvm_ffi.structural_map(function.body, _meant)
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


Run = Callable[[Sequence[Any]], list[Any]]


def runner(plan: Any) -> Run:
    """Compile a plan.

    Parameters
    ----------
    plan
        What `plan_of` returns.

    Returns
    -------
    run
        A function from the arrays of the inputs to those of the outputs.
    """
    functions, symbols = {}, []
    seen: dict[Any, str] = {}
    for number, kernel in enumerate(plan.kernels):
        symbol = seen.get(kernel.function)
        if symbol is None:
            symbol = seen[kernel.function] = f"kernel{number}"
            functions[symbol] = rewritten(kernel.function).with_attr("global_symbol", symbol)
        symbols.append(symbol)
    module = tvm.compile(tvm.IRModule(functions), target=TARGET) if functions else None
    calls = [module[symbol] for symbol in symbols] if module is not None else []

    def run(inputs: Sequence[Any]) -> list[Any]:
        arrays: list[Any] = []
        for tensor in plan.tensors:
            if tensor.alias_of is not None:
                base = arrays[tensor.alias_of]
            elif tensor.source == "input":
                base = tvm.runtime.tensor(np.ascontiguousarray(inputs[tensor.index]))
            elif tensor.source == "constant":
                base = tvm.runtime.tensor(tensor.data)
            else:
                base = tvm.runtime.empty(tensor.shape, tensor.dtype)
            arrays.append(base)
        for call, kernel in zip(calls, plan.kernels, strict=True):
            call(*(_viewed(arrays[i], plan.tensors[i]) for i in kernel.tensors))
        outputs: dict[int, Any] = {}
        for array, tensor in zip(arrays, plan.tensors, strict=True):
            if tensor.source == "output" and tensor.alias_of is None:
                outputs[tensor.index] = array.numpy()
        return [outputs[index] for index in range(len(outputs))]

    return run


def _viewed(array: Any, tensor: Any) -> Any:
    if tuple(array.shape) == tensor.shape:
        return array
    return array._create_view(tensor.shape)


class Net:
    """A region that is written node by node, with what its outputs should be."""

    def __init__(self, channels_last: bool = True) -> None:
        self.data: dict[str, Any] = {
            **{"format": "npu-region", "version": 1, "channels_last": channels_last},
            **{"values": [], "nodes": [], "inputs": [], "outputs": []},
        }
        self.elements = b""
        self.arrays: list[Any] = []
        self.expected: list[Any] = []

    def _value(self, dtype: str, shape: Sequence[int], source: str, **more: Any) -> str:
        name = f"v{len(self.data['values'])}"
        value = {"name": name, "dtype": dtype, "shape": list(shape), "source": source}
        self.data["values"].append({**value, "quantization": None, **more})
        return name

    def input(self, array: Any) -> str:
        """Add an input, and what it is when the region runs."""
        self.data["inputs"].append({"dtype": str(array.dtype), "shape": list(array.shape)})
        self.arrays.append(array)
        return self._value(str(array.dtype), array.shape, "input", input=len(self.arrays) - 1)

    def constant(self, array: Any) -> str:
        """Add a constant."""
        self.elements += bytes(-len(self.elements) % 64)
        name = self._value(str(array.dtype), array.shape, "constant", offset=len(self.elements))
        self.elements += array.tobytes()
        return name

    def node(self, op: str, inputs: Sequence[Any], like: Any, **more: Any) -> str:
        """Add a node whose result has the type and shape of an array."""
        out = self._value(str(like.dtype), like.shape, "node")
        fields = {key: more.pop(key, None) for key in ("least", "most")}
        label = more.pop("label", f"{op}@{len(self.data['nodes'])}")
        self.data["nodes"].append(
            {"op": op, "inputs": list(inputs), "output": out, "label": label}
            | fields
            | {"attributes": more}
        )
        return out

    def step(self, op: str, inputs: Sequence[Any], like: Any, *numbers: float, **more: Any) -> str:
        """Add a step; `numbers` are in the places of its operands from the second one on."""
        given = [0, *numbers, 0, 0, 0][:4]
        return self.node(op, inputs, like, numbers=given, **more)

    def output(self, value: str, expected: Any) -> None:
        """Let a value be an output that should have these elements."""
        port = {"dtype": str(expected.dtype), "shape": list(expected.shape), "value": value}
        self.data["outputs"].append(port)
        self.expected.append(expected)

    def region(self) -> Any:
        """Return the region."""
        return Region(json.loads(json.dumps(self.data)), self.elements)

    def check(self, disabled: Sequence[str] = (), rtol: float = 2e-6, atol: float = 2e-6) -> Any:
        """Compare what the kernels compute; real numbers up to a tolerance. Returns the plan."""
        plan = plan_of(self.region(), disabled)
        found = runner(plan)(self.arrays)
        assert len(found) == len(self.expected)
        for index, (array, expected) in enumerate(zip(found, self.expected, strict=True)):
            assert array.dtype == expected.dtype
            array = array.reshape(expected.shape)
            if expected.dtype.kind == "f":
                half = 5e-4 if expected.dtype == np.float16 else 0
                np.testing.assert_allclose(
                    array, expected, rtol + half, atol + half, err_msg=f"output {index}"
                )
            else:
                np.testing.assert_array_equal(array, expected, err_msg=f"output {index}")
        return plan
