# SPDX-License-Identifier: Apache-2.0
"""The emulator of the table of a machine with an instruction set of its own, and its Python."""
