# SPDX-License-Identifier: Apache-2.0
"""The options of a compilation, of the backend and of drivers."""
