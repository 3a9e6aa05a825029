# SPDX-License-Identifier: Apache-2.0
"""The accuracy report: what quantization changes in each layer of a model, and at its outputs.

`matching` finds the float model's value for each value of the quantized one, `layers` cuts the
quantized model into functions, `compare` runs them, and `result` holds the outcome.
"""

from .measurement import accuracy_report
from .result import Accuracy, AccuracyReport, LayerAccuracy

__all__ = ["Accuracy", "AccuracyReport", "LayerAccuracy", "accuracy_report"]
