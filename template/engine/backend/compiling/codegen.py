# SPDX-License-Identifier: Apache-2.0
"""The codegen that `RunCodegen` calls: options, compile cache, compiler, dumps."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from io import BufferedReader
from pathlib import Path

import numpy as np
import tvm_ffi
from tvm import relax

from ...version import VERSION
from ..ir.states import states_of_region
from ..libraries import _library
from ..settings.driver_options import ATTRIBUTE, DRIVERS, FILES
from ..settings.options import Options
from ..settings.symbols import known_bounds, symbol_bounds
from ..shared.backend import BACKEND, DISTRIBUTION
from ..table.patterns import TABLE
from .cache import Cache


def register() -> None:
    """Register this codegen with TVM."""
    tvm_ffi.register_global_func(f"relax.ext.{BACKEND}", compile_regions, override=True)


def compile_regions(
    functions: Sequence[relax.Function],
    options: Mapping[str, object],
    constant_names: Mapping[relax.Expr, str],
) -> list[tvm_ffi.Module]:
    """Compile regions to modules, for `RunCodegen`."""
    loaded = Options.load(options)
    artifacts, modules = [], []
    for function in functions:
        options_of_driver = loaded.for_driver(_driver_of(function, loaded))
        artifact, module = _compile(function, options_of_driver, constant_names)
        artifacts.append(artifact)
        modules.append(module)
    # Functions of one model have the same weights.
    bundle = len(modules) > 1 and tvm_ffi.get_global_func(f"{BACKEND}.codegen.bundle")(artifacts)
    return list(_load(bundle)) if bundle else modules


def _driver_of(function: relax.Function, options: Options) -> str:
    """Return the driver that took a region; modules of a single driver do not say."""
    driver = str(function.attrs.get(ATTRIBUTE, options.drivers[0]))
    if driver not in DRIVERS:
        raise ValueError(
            f"The driver '{driver}' took the region {function.attrs['global_symbol']}, and is not "
            f"installed here; installed: {', '.join(DRIVERS)}. Partition the model again."
        )
    return driver


def _compile(
    function: relax.Function, options: Options, constant_names: Mapping[relax.Expr, str]
) -> tuple[tvm_ffi.Tensor, tvm_ffi.Module]:
    region = tvm_ffi.get_global_func(f"{BACKEND}.codegen.read")(function, constant_names)
    graph = tvm_ffi.get_global_func(f"{BACKEND}.codegen.graph")(region)
    symbol = str(graph["symbol"])
    bounds = symbol_bounds(function, options, known_bounds(function))
    recorded = options.recorded()
    chip = TABLE.chip
    manifest = {
        **_versions(),
        "driver": str(DRIVERS[options.driver]["name"]),
        "driver_release": str(DRIVERS[options.driver]["release"]),
        "symbol": symbol,
        "options": recorded,
        "requantization": chip.recorded(),
        "overrides": options.recorded_overrides(),
        "symbol_bounds": bounds,
        "graph_sha256": _sha256(str(graph["graph"]).encode()),
        "constants_sha256": _tensors_sha256(graph["constants"]),
        "options_sha256": _sha256(json.dumps(recorded, sort_keys=True).encode()),
    }
    states = states_of_region(function)
    if states:
        manifest["states"] = states
    if graph["samples"]:
        manifest["samples_sha256"] = _tensors_sha256(graph["samples"])

    def compile_now() -> tvm_ffi.Tensor:
        compile_region = tvm_ffi.get_global_func(f"{BACKEND}.codegen.compile")
        artifact: tvm_ffi.Tensor = compile_region(
            region,
            options.driver,
            options.driver_options(),
            bounds,
            chip.rule,
            json.dumps(manifest),
        )
        return artifact

    artifact, module = _from_cache(options, manifest, compile_now)
    _dump(options, symbol, str(graph["graph"]), artifact, module)
    return artifact, module


def _load(artifact: tvm_ffi.Tensor) -> Sequence[tvm_ffi.Module]:
    """Load the regions of an artifact or a bundle."""
    modules: Sequence[tvm_ffi.Module] = tvm_ffi.get_global_func(f"{BACKEND}.runtime.load_regions")(
        artifact
    )
    return modules


def _from_cache(
    options: Options,
    manifest: Mapping[str, object],
    compile_now: Callable[[], tvm_ffi.Tensor],
) -> tuple[tvm_ffi.Tensor, tvm_ffi.Module]:
    """Return an artifact and its module, from the compile cache if possible.

    An artifact contains the weights, so it stays in the tensor to which it was written or read.
    """
    if not options.cache_dir:
        artifact = compile_now()
        return artifact, _load(artifact)[0]
    cache = Cache(options.cache_dir, options.cache_bytes)
    # The manifest has everything that goes into an artifact, except the compiler itself.
    compilers = [_build_sha256(role) for role in ("codegen", *FILES[options.driver])]
    identity = tvm_ffi.get_global_func(f"{BACKEND}.codegen.identity")
    compilers.append(str(identity(options.driver, options.driver_options())))
    key = _sha256(json.dumps([manifest, compilers], sort_keys=True).encode())
    cached = cache.get(key, _read_artifact)
    if cached is not None:
        try:
            (module,) = _load(cached)
            if json.loads(module["manifest"]()) == manifest:
                return cached, module
        except Exception:
            pass  # A damaged file: compile again.
        cache.drop(key)
    artifact = compile_now()
    (module,) = _load(artifact)
    cache.put(key, _memory_of(artifact))
    return artifact, module


def _read_artifact(file: BufferedReader, size: int) -> tvm_ffi.Tensor:
    artifact: tvm_ffi.Tensor = tvm_ffi.get_global_func(f"{BACKEND}.codegen.new_artifact")(size)
    file.readinto(_memory_of(artifact))
    return artifact


def _memory_of(artifact: tvm_ffi.Tensor) -> memoryview:
    # Before NumPy 2.1, an array of it is read-only.
    array = np.from_dlpack(artifact)
    return memoryview((ctypes.c_uint8 * array.size).from_address(array.ctypes.data))


def _dump(
    options: Options, symbol: str, graph: str, artifact: tvm_ffi.Tensor, module: tvm_ffi.Module
) -> None:
    if options.dump == "none":
        return
    folder = Path(options.dump_dir).expanduser()
    files: dict[str, bytes | memoryview] = {f"{symbol}.graph.json": graph.encode()}
    if options.dump == "program":
        files[f"{symbol}.txt"] = str(module["describe"]()).encode()
        files[f"{symbol}.artifact"] = _memory_of(artifact)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise ValueError(
            f"Nothing can be dumped to '{folder}': {error.strerror}. Set the option 'dump_dir' to "
            "a folder that can be written."
        ) from None


@cache
def _versions() -> Mapping[str, object]:
    info = tvm_ffi.get_global_func(f"{BACKEND}.runtime.info")()
    return {
        "backend": BACKEND,
        "backend_version": _library.version(DISTRIBUTION),
        "engine_version": VERSION,
        "driver_api_version": int(info["driver_api_version"]),
        "format_version": int(info["format_version"]),
        "tvm_version": _library.version("apache-tvm"),
        "tvm_ffi_version": _library.version("apache-tvm-ffi"),
    }


@cache
def _build_sha256(role: str) -> str:
    """Return an identifier of a library's build."""
    path = _library.find(role)
    return _sha256(path.read_bytes()) if path is not None else ""


def _tensors_sha256(tensors: Sequence[tvm_ffi.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        array = np.ascontiguousarray(np.from_dlpack(tensor))
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
