# SPDX-License-Identifier: Apache-2.0
"""Reads the artifacts in an exported library; needs the runtime only.

The library is read, not loaded: it may be for another machine, and none of its code runs.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import struct
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import NoReturn

import tvm_ffi

from ..shared.aliases import JsonFields, JsonObject
from ..shared.backend import BACKEND
from ..shared.messages import printable

# The head of an artifact: magic, format version, number of sections, size; see docs/artifact.md.
_MAGIC = b"\x89NPU\r\n\x1a\n"
_HEADER = struct.Struct("<8sIIQ")
_TABLE = 32
_SECTION = struct.Struct("<8sQQ")
_EXTERNAL = b"external"  # The only section of a reference.

VERSION = 1
"""The version of `Artifact.to_dict`; fields may be added without a new one."""

_KINDS = {str: "a string", int: "an integer", dict: "an object", list: "a list"}
_MANIFEST: dict[str, type] = {
    "symbol": str,
    "backend": str,
    "backend_version": str,
    "driver_api_version": int,
    "format_version": int,
    "tvm_version": str,
    "tvm_ffi_version": str,
    "options": dict,
    "overrides": list,
    "symbol_bounds": dict,
    "graph_sha256": str,
    "constants_sha256": str,
    "options_sha256": str,
}
"""The required keys of a manifest: people and `Artifact` read them."""


@dataclass(frozen=True)
class Artifact:
    """The artifact of one region.

    Parameters
    ----------
    symbol
        The name of its function.
    manifest
        Backend, versions, options, and hashes of graph and constants.
    sizes
        Size of the whole and of each section, in bytes.
    program
        The driver's text: memory map and listing.
    stored_with
        The symbols of the other regions in its bundle, whose equal bytes are stored once.
    """

    symbol: str
    manifest: JsonFields
    sizes: Mapping[str, int]
    program: str
    stored_with: tuple[str, ...] = ()

    @property
    def options(self) -> JsonObject:
        """The options, for `Options.from_dict`."""
        return {**self.manifest["options"], "overrides": self.manifest["overrides"]}

    def to_dict(self) -> JsonObject:
        """Return the artifact as plain data, with the version of its fields."""
        return {"version": VERSION, **asdict(self), "stored_with": [*self.stored_with]}

    def __str__(self) -> str:
        """Return the artifact as text for people."""
        scalars = {k: v for k, v in self.manifest.items() if isinstance(v, str | int)}
        lines = [f"region {self.symbol}"]
        lines += [f"  {name:20}{value}" for name, value in scalars.items() if name != "symbol"]
        lines += _listed("bytes", self.sizes)
        lines += [f"  {'stored with':20}{name}" for name in self.stored_with]
        for title in ("options", "symbol_bounds", "states"):
            lines += _listed(title, self.manifest.get(title, {}))
        for override in self.manifest["overrides"]:
            value = json.dumps(override["value"])
            lines.append(
                f"  {'override':20}{override['option']}={value} from {override['variable']}"
            )
        program = self.program.replace("\t", "    ").removesuffix("\n").split("\n")
        lines += ["  program", *(f"    {line}" for line in program)]
        return "\n".join(map(printable, lines))


def _listed(title: str, values: Mapping[str, object]) -> list[str]:
    """Return values by name, in lines of at most 100 characters."""
    items = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
    lines = textwrap.wrap(items, 78, break_long_words=False, break_on_hyphens=False)
    return [f"  {title if line is lines[0] else '':20}{line}" for line in lines]


def read_artifacts(path: str | os.PathLike[str]) -> list[Artifact]:
    """Read the artifacts of this backend from an exported library or a dump.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    artifacts
        One for each region.

    Raises
    ------
    ValueError
        The file cannot be read, has no region of this backend, or is corrupt.
    """
    path = Path(path)
    load = tvm_ffi.get_global_func(f"{BACKEND}.runtime.load_regions")
    artifacts = []
    backends: set[str] = set()
    for backend, data in _find(path):
        if backend not in (BACKEND, None):
            backends.add(str(backend))
            continue
        try:
            found = [_read(module, len(data)) for module in load(data)]
        except Exception as error:
            raise ValueError(printable(f"{path}: {_first_line(error)}")) from None
        symbols = [it.symbol for it in found]
        artifacts += [
            replace(it, stored_with=(*symbols[:at], *symbols[at + 1 :]))
            for at, it in enumerate(found)
        ]
    if not artifacts:
        why = "it is not a library that was exported with one"
        if backends:
            why = f"those in it are for {', '.join(sorted(backends))}"
        raise ValueError(printable(f"{path} holds no region of {BACKEND}: {why}."))
    return artifacts


def _read(module: tvm_ffi.Module, size: int) -> Artifact:
    return Artifact(
        symbol=str(module["get_symbol"]()),
        manifest=_read_manifest(module["manifest"]()),
        sizes={"artifact": size, **_integers(module["sizes"]())},
        program=str(module["describe"]()),
    )


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to read it; a pipe could block forever."""
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _find(path: Path) -> Iterator[tuple[str | None, bytes]]:
    """Generate the artifacts anywhere in a file, each with its backend."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                start = data.find(_MAGIC)
                while start >= 0:
                    head = data[start : start + _HEADER.size].ljust(_HEADER.size, b"\0")
                    _, _, count, length = _HEADER.unpack(head)
                    if not _HEADER.size <= length <= size - start:
                        raise ValueError(
                            printable(f"{path}: a region in it is cut off or corrupt.")
                        )
                    artifact = data[start : start + length]
                    # A reference points to an artifact elsewhere in the file.
                    if artifact[_TABLE : _TABLE + len(_EXTERNAL)] != _EXTERNAL:
                        yield _backend(artifact, count), artifact
                    start = data.find(_MAGIC, start + length)
    except OSError as error:
        raise ValueError(printable(f"{path} cannot be read: {error.strerror}.")) from None


def _backend(artifact: bytes, section_count: int) -> str | None:
    """Return the name of an artifact's backend, or None if the artifact is corrupt."""
    table = artifact[_TABLE : _TABLE + section_count * _SECTION.size]
    try:
        sections = {name.rstrip(b"\0"): span for name, *span in _SECTION.iter_unpack(table)}
        offset, size = sections[b"manifest"]
        return str(json.loads(artifact[offset : offset + size])["backend"])
    except (ValueError, KeyError, TypeError, RecursionError, struct.error):
        return None


def _read_manifest(text: str) -> JsonObject:
    """Read a manifest; a forged one may contain anything."""

    def refuse(why: str) -> NoReturn:
        raise ValueError(
            f"the artifact is corrupt: its manifest {why}; copy it again, or compile the model "
            "again"
        )

    manifest: JsonObject = json.loads(
        text, parse_constant=lambda number: refuse(f"has the number {number}")
    )
    for name, kind in _MANIFEST.items():
        if name not in manifest or type(manifest[name]) is not kind:
            refuse(f"has no '{name}' that is {_KINDS[kind]}")
    for name, value in manifest["options"].items():
        values = value.values() if isinstance(value, dict) else [value]
        if not all(isinstance(setting, str | int) for setting in values):
            refuse(f"has an impossible option '{name}'")
    for name, value in manifest["symbol_bounds"].items():
        if type(value) is not int:
            refuse(f"has an impossible bound of '{name}'")
    states = manifest.get("states", {})
    if not isinstance(states, dict) or not all(map(_is_state, states.values())):
        refuse("has impossible states")
    for override in manifest["overrides"]:
        if not isinstance(override, dict) or override.keys() != {"option", "value", "variable"}:
            refuse("has impossible overrides")
        if not isinstance(override["option"], str) or not isinstance(override["variable"], str):
            refuse("has overrides without names")
    return manifest


def _is_state(ends: object) -> bool:
    """Whether these may be the places of a state among a region's inputs and outputs."""
    if not isinstance(ends, dict) or not ends or not ends.keys() <= {"input", "output"}:
        return False
    return all(type(place) is int and place >= 0 for place in ends.values())


def _integers(values: JsonFields) -> dict[str, int]:
    return {str(name): int(value) for name, value in values.items()}


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
