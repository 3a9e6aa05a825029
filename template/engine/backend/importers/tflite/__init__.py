# SPDX-License-Identifier: Apache-2.0
"""Reads TFLite models with TVM's converters and ours."""
