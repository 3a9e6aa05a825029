# SPDX-License-Identifier: Apache-2.0
"""Makes exported libraries hold artifacts as object files, which are mapped instead of copied."""

from __future__ import annotations

import tvm

from .backend import BACKEND


def link_artifacts(mod: tvm.IRModule, target: object) -> tvm.IRModule:
    """Let TVM link the artifacts of a module instead of embedding them in its bytes.

    TVM copies the bytes of modules several times when it loads a library. The system maps linked
    artifacts on demand and shares them between processes. For targets without a known object
    format, nothing changes.

    Parameters
    ----------
    mod
        A module after `RunCodegen`.
    target
        The target of the host part.

    Returns
    -------
    mod
        The same module.
    """
    known = tvm.target.Target(target)
    host = known if known.kind.name == "llvm" else known.host
    if host is not None and host.kind.name == "llvm":
        triple = str(host.attrs.get("mtriple") or "")
        for module in (mod.attrs or {}).get("external_mods", ()):
            if module.kind == BACKEND:
                module["link_apart"](triple)
    return mod
