# SPDX-License-Identifier: Apache-2.0
"""Steps of a region, and what ONNX has for them."""

from __future__ import annotations

SAME = {
    "add": "Add",
    "bias": "Add",
    "residual": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "scale": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "absolute": "Abs",
    "power": "Pow",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "atan": "Atan",
    "floor": "Floor",
    "ceil": "Ceil",
    "round_even": "Round",
    "negate": "Neg",
    "sign": "Sign",
    "relu": "Relu",
    "hard_swish": "HardSwish",
    "prelu": "PRelu",
    "selu": "Selu",
}
"""Steps that are an operator of ONNX."""
OF_INTEGERS = ("add", "subtract", "multiply", "maximum", "minimum", "absolute", "negate", "cast")
"""Steps that compute the same with integers."""
