# SPDX-License-Identifier: Apache-2.0
"""Reductions of no elements are what their framework says, or refused with the node's name."""

import numpy as np
import pytest

import backend
from backend.engine.workbench.conformance.imported import Imported
from support import needs_library, run_together
from tflite_file import File

DEFINED = {
    **dict.fromkeys(("ReduceL1", "ReduceSum", "ReduceSumSquare"), (0, 0)),
    "ReduceProd": (1, 1),
    "ReduceMax": (-np.inf, -(2**31)),
    "ReduceMin": (np.inf, 2**31 - 1),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), (-np.inf, None)),
    "ReduceL2": (0, None),
}
"""What ONNX says of no elements, of floats and of int32."""

UNDEFINED = {
    "ReduceMean": "y = ReduceMean(x, axes)",
    "ArgMax": "i = ArgMax<axis = 1>(x) y = Cast<to = 1>(i)",
    "ArgMin": "i = ArgMin<axis = 1>(x) y = Cast<to = 1>(i)",
    "GlobalAveragePool": "y = GlobalAveragePool(x)",
    "GlobalMaxPool": "y = GlobalMaxPool(x)",
    "MatMul": "t = Transpose<perm = [1, 0]>(x) y = MatMul(x, t)",
    "Gemm": "t = Transpose<perm = [1, 0]>(x) y = Gemm(x, t)",
    "ReduceLogSum": "i = Cast<to = 6>(x) r = ReduceLogSum(i, axes) y = Cast<to = 1>(r)",
}


def onnx_model(body, inputs="float[2, 0] x", dtype="float"):
    from onnx import numpy_helper, parser

    head = '<ir_version: 10, opset_import: ["": 18]>'
    found = parser.parse_model(f"{head} g ({inputs}) => ({dtype} y) {{ {body} }}")
    if "axes" in body:
        found.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    return found


@needs_library("onnx")
def test_reductions_of_onnx_are_what_it_defines():
    models, right = {}, {}
    for op, values in DEFINED.items():
        for dtype, kind, value in zip(
            ("float32", "int32"), ("float", "int32"), values, strict=True
        ):
            for keeps in (0, 1) if value is not None else ():
                name = f"{op} of {dtype}, keepdims={keeps}"
                inputs = f"{kind}[3, 0] x"
                found = onnx_model(f"y = {op}<keepdims = {keeps}>(x, axes)", inputs, kind)
                x = np.zeros((3, 0), dtype)
                models[name] = Imported(name, backend.from_onnx(found), [x])
                right[name] = np.full((3, 1) if keeps else (3,), value, dtype)
    found = onnx_model("y = ReduceMax<keepdims = 0>(x)")
    models["all"] = Imported("all", backend.from_onnx(found), [np.zeros((2, 0), "float32")])
    right["all"] = np.array(-np.inf, "float32")
    # A part of an input of open sizes.
    body = "e = Slice(x, axes, axes, axes) y = ReduceProd<keepdims = 0>(e, axes)"
    found = onnx_model(body, "float[b, 3] x")
    models["a part"] = Imported("a part", backend.from_onnx(found), [np.ones((2, 3), "float32")])
    right["a part"] = np.ones(2, "float32")
    results = run_together(list(models.values()))
    for name, values in right.items():
        assert not isinstance(results[name], Exception), (name, results[name])
        np.testing.assert_array_equal(results[name][0], values, name, strict=True)


@needs_library("onnx")
@pytest.mark.parametrize("op", UNDEFINED)
def test_what_onnx_does_not_define_is_refused(op):
    sentence = rf"^ONNX node '\w+' \({op}\): ONNX does not say what it makes of no elements"
    with pytest.raises(ValueError, match=sentence):
        inputs = "float[2, 1, 0, 1] x" if "Global" in op else "float[2, 0] x"
        backend.from_onnx(onnx_model(UNDEFINED[op], inputs))


TFLITE = {
    **dict.fromkeys(("MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"), "ReducerOptions"),
    **{"ARG_MAX": "ArgMaxOptions", "ARG_MIN": "ArgMinOptions"},
    "FULLY_CONNECTED": "FullyConnectedOptions",
}


@needs_library("tflite")
@pytest.mark.parametrize("op", TFLITE)
def test_reductions_of_tflite_are_refused(op):
    file = File()
    x = file.tensor([2, 0], "float32")
    is_product = op == "FULLY_CONNECTED"
    other = (
        file.tensor([3, 0], "float32")
        if is_product
        else file.tensor([1] if "REDUCE" in op or op in ("MEAN", "SUM") else [], "int32", data=[1])
    )
    dtype = "int32" if op.startswith("ARG") else "float32"
    y = file.tensor([2, 3] if is_product else [2], dtype)
    file.operator(op, [x, other], [y], TFLITE[op])
    content = file.finish([x, other] if is_product else [x], [y])
    sentence = rf"{op} \(operator 0, tensor 't2'\) cannot be read: its input 't0' has no elements"
    with pytest.raises(ValueError, match=sentence):
        backend.from_tflite(content)
