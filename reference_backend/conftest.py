# SPDX-License-Identifier: Apache-2.0
"""Tests may fail as vendor/expected_failures.toml says."""

pytest_plugins = ["tvm_example_npu.engine.workbench.pytest_ledger"]
