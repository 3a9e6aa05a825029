# SPDX-License-Identifier: Apache-2.0
"""Reads programs of PyTorch: rules for what TVM's importer does not read, or reads wrongly."""
