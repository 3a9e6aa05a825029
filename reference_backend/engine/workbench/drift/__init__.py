# SPDX-License-Identifier: Apache-2.0
"""Compares the installed TVM with the one that the engine was tried with."""
