# SPDX-License-Identifier: Apache-2.0
"""The two functions that users call: partition a model, and compile it."""

from __future__ import annotations

import tvm
from tvm import relax

from .engine import partition
from .engine.options import Source
from .engine.partition import Params


def partition_for_example_npu(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    options: Source = None,
    **settings: object,
) -> tvm.IRModule:
    """Move what the NPU can run into regions, and leave the rest to the host.

    Parameters
    ----------
    mod
        The model. It is not changed.
    params
        Weights to bind, by the name of the parameter; or what `relax.frontend.detach_params`
        returns. Weights that are not bound stay arguments of the model.
    options
        `Options`, a mapping, or the path of a .toml or .json file. Hand the same to `RunCodegen`,
        under the backend's name: `Options.load(options).to_dict()`.
    **settings
        Single options, which go before those.

    Returns
    -------
    mod
        A module with a function per region; `offload_report` tells what is where.

    Raises
    ------
    ValueError
        An option is not known or not supported, or a parameter not there.
    RuntimeError
        Something stays on the host, which `on_decline` or `strict` forbids.
    """
    return partition.partition_for(mod, params, options=options, **settings)


def compile_for_example_npu(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    target: object = "llvm",
    options: Source = None,
    **settings: object,
) -> relax.VMExecutable:
    """Partition a model, and compile both parts of it.

    Parameters
    ----------
    mod
        The model. It is not changed.
    params
        Weights to bind, as for the partitioning.
    target
        What the host part is compiled for.
    options
        `Options`, a mapping, or the path of a .toml or .json file.
    **settings
        Single options, which go before those.

    Returns
    -------
    executable
        To be run by `relax.VirtualMachine`, or exported as a library.

    Raises
    ------
    ValueError
        An option is not known or not supported, or a parameter not there.
    RuntimeError
        Something stays on the host, which `on_decline` or `strict` forbids.
    """
    return partition.compile_for(mod, params, target=target, options=options, **settings)
