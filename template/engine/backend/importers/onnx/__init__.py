# SPDX-License-Identifier: Apache-2.0
"""Reads ONNX models: rules for what TVM's importer does not read, or reads wrongly."""
