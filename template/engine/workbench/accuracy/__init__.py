# SPDX-License-Identifier: Apache-2.0
"""The accuracy report: what quantization changes in each layer of a model, and at its outputs.

`matching` finds the float model's value for each value of the quantized one, `quantized_layers`
cuts the quantized model into functions, `measurement` runs them, and `accuracies` holds the
outcome.
"""

from .accuracies import Accuracy, AccuracyReport, LayerAccuracy
from .measurement import accuracy_report

__all__ = ["Accuracy", "AccuracyReport", "LayerAccuracy", "accuracy_report"]
