# SPDX-License-Identifier: Apache-2.0
"""Reads regions for tools that take a model file. Needs Python 3.10, and nothing else.

`Region` is a region as the compiler hands it over, `run_tool` the other end of the driver kit's
protocol, and `to_onnx` and `to_tosa` make a model file of a region. Elements as arrays need NumPy.
"""

from .onnx_model import onnx_reason, to_onnx
from .region import Declined, Node, Region, Value
from .tool import run_tool
from .tosa_model import to_tosa, tosa_of_node

__all__ = [
    "Declined",
    "Node",
    "Region",
    "Value",
    "onnx_reason",
    "run_tool",
    "to_onnx",
    "to_tosa",
    "tosa_of_node",
]
