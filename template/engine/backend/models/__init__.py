# SPDX-License-Identifier: Apache-2.0
"""Models as the commands and `verify` take them: files, signatures, arrays, and compiled ones."""
