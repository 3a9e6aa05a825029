# SPDX-License-Identifier: Apache-2.0
"""Reads Relax: calls, the names of their author, and how much they compute."""
