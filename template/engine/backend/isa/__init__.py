# SPDX-License-Identifier: Apache-2.0
"""The instruction set of a chip: its table, and the compiler that makes its programs."""
