# SPDX-License-Identifier: Apache-2.0
"""The shared libraries: finding, loading and asking them, and what models are linked from."""
