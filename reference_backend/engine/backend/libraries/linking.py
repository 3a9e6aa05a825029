# SPDX-License-Identifier: Apache-2.0
"""What libraries are linked from: artifacts as object files, which are mapped, not copied."""

from __future__ import annotations

import tvm
from tvm import relax

from ..shared.backend import BACKEND


def link_artifacts(mod: tvm.IRModule, target: object) -> tvm.IRModule:
    """Let TVM link the artifacts of a module instead of embedding them in its bytes.

    TVM copies the bytes of modules several times when it loads a library. The system maps linked
    artifacts on demand and shares them between processes. For targets without a known object
    format, nothing changes.
    """
    known = tvm.target.Target(target)
    host = known if known.kind.name == "llvm" else known.host
    if host is not None and host.kind.name == "llvm":
        triple = str(host.attrs.get("mtriple") or "")
        for module in (mod.attrs or {}).get("external_mods", ()):
            if module.kind == BACKEND:
                module["link_apart"](triple)
    return mod


def drop_empty_source(executable: relax.VMExecutable) -> relax.VMExecutable:
    """Drop the empty C source that TVM adds where no op runs on the host.

    Because of it, each `relax.VirtualMachine` would first let a C++ compiler make a library.
    """
    waiting = [executable.mod]
    while waiting:
        module = waiting.pop()
        kept = [item for item in module.imports if not _is_empty_source(item)]
        # A library cannot be made of nothing.
        if kept and len(kept) < len(module.imports):
            module.clear_imports()
            for item in kept:
                module.import_module(item)
        waiting.extend(kept)
    return executable


def _is_empty_source(module: tvm.runtime.Module) -> bool:
    return module.kind == "c" and module.inspect_source().strip() in ("", ";")
