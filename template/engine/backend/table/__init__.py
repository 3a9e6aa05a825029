# SPDX-License-Identifier: Apache-2.0
"""The table of ops: what the engine compiles, the chip takes and patterns match."""
