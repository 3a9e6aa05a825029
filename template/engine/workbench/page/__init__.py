# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML page, which needs no network and no other file."""

from .page import write_page

__all__ = ["write_page"]
