# SPDX-License-Identifier: Apache-2.0
"""The values of options: which ones are supported, and how text and files are read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from ..shared.constraints import Constraint, InOrder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BOOLS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def option_field(
    group: str,
    default: object,
    about: str,
    allowed: Constraint | InOrder | None = None,
    advise: Callable[[object], str] | None = None,
) -> Any:
    """Return a dataclass field that describes an option."""
    metadata = {"group": group, "about": about, "allowed": allowed, "advise": advise}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    if isinstance(default, list):
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


def kind_of(option: Field[object]) -> type:
    """Return the Python type of an option's values, that of its default."""
    if isinstance(option.default, (bool, int, str)):
        return type(option.default)
    return list if option.default_factory is list else dict


def supported(option: Field[object]) -> str:
    """Say which values an option takes."""
    kind, allowed = kind_of(option), option.metadata["allowed"]
    if kind is dict:
        return f"names with a whole number each, {allowed}"
    if kind is list:
        return "a list of strings, in which * matches anything"
    if kind is bool:
        return "true or false"
    if kind is int:
        return f"a whole number, {allowed}"
    return str(allowed) if allowed is not None else "a string"


def checked(option: Field[object], value: object) -> object:
    """Return a value as plain Python, or refuse it."""
    kind, allowed = kind_of(option), option.metadata["allowed"]
    plain = _plain(value, kind)
    items = [plain]
    if isinstance(plain, (dict, list)):
        items = list(plain.values()) if isinstance(plain, dict) else plain
    item_type = int if kind is dict else str if kind is list else kind
    if (
        not isinstance(plain, kind)
        or any(type(item) is not item_type for item in items)
        or (isinstance(plain, dict) and "" in plain)
        or (allowed is not None and not all(allowed.accepts(item) for item in items))
    ):
        shown = plain if isinstance(plain, (dict, list, str)) else value
        advise = option.metadata.get("advise")
        raise ValueError(
            f"The option '{option.name}' is {shown!r}; supported: {supported(option)}"
            f"{advise(plain) if advise is not None else ''}."
        )
    return plain


def _plain(value: object, kind: type) -> object:
    """Convert NumPy data, arrays, paths and whole floats to plain Python."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, int) for key, item in value.items()}
    if isinstance(value, (list, tuple, tvm_ffi.Array)) and kind is list:
        return [_plain(item, str) for item in value]
    if isinstance(value, str | os.PathLike) and kind is str:
        return str(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def parsed(option: Field[object], text: str) -> object:
    """Parse an environment variable; return invalid text unchanged, to be refused later."""
    kind = kind_of(option)
    if kind is bool:
        return _BOOLS.get(text.strip().lower(), text)
    if kind is int:
        return _number(text)
    if kind is list:
        return [item.strip() for item in text.split(",") if item.strip()]
    if kind is dict:
        pairs = [item.partition("=") for item in text.split(",") if item.strip()]
        return {name.strip(): _number(value) for name, _, value in pairs}
    return text


def _number(text: str) -> int | str:
    try:
        return int(text, 0)
    except ValueError:
        return text


def read_file(path: Path) -> Mapping[str, object]:
    """Read a file of options."""
    readers = {".toml": tomllib.loads, ".json": _read_json}
    if path.suffix not in readers:
        raise ValueError("options are read from files that end in .toml or .json.")
    try:
        values = readers[path.suffix](path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise ValueError(f"it is not {path.suffix[1:].upper()} of options: too deep.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"it is not {path.suffix[1:].upper()}: {error}.") from None
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}; it must map names to values.")
    return values


def _read_json(text: str) -> object:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"'{name}' is there twice.")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)
