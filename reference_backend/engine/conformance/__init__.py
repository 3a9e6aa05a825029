# SPDX-License-Identifier: Apache-2.0
"""For `vendor/`, which imports from here: `engine.workbench.conformance`."""
