# SPDX-License-Identifier: Apache-2.0
"""The options that the schema of TFLite has."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence

import tflite


def fields_of(options: str) -> Sequence[str]:
    """Return the fields of a table of options."""
    kind = tables_of_options().get(options)
    others = ("GetRootAs", "Init")
    parts = ("AsNumpy", "Length", "IsNone", "BufferHasIdentifier")
    return [
        name
        for name in vars(kind or object)
        if name[0].isupper() and not name.startswith(others) and not name.endswith(parts)
    ]


@functools.cache
def tables_of_options() -> dict[str, type]:
    """Return the tables of options in the schema."""
    names = [module.name for module in pkgutil.iter_modules(tflite.__path__)]
    return {
        name: getattr(importlib.import_module(f"tflite.{name}"), name)
        for name in names
        if name.endswith("Options")
    }
