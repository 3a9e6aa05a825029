# SPDX-License-Identifier: Apache-2.0
"""The two functions that users call: partition a model, and compile it."""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax

from .engine.backend.regions import partition
from .engine.backend.regions.partition import Params
from .engine.backend.settings.options import Source


def partition_for_example_npu(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    calibration_data: Iterable[object] | None = None,
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
    calibration_data
        Batches of real inputs, for an SDK that quantizes by itself: a mapping of names to arrays
        each, a list of arrays, or an array. The model runs on the host with them, and the driver
        gets what enters each region.
    options
        `Options`, a mapping, or the path of a .toml or .json file. Pass the same to `RunCodegen`,
        under the backend's name: `Options.load(options).to_dict()`.
    **settings
        Single options, which override `options`.

    Returns
    -------
    mod
        A module with a function per region; `offload_report` shows what runs where.

    Raises
    ------
    ValueError
        An option is unknown or has an invalid value, there is no such parameter, or the
        calibration data do not fit.
    RuntimeError
        An op stays on the host, but `on_decline` or `strict` forbids it.
    """
    return partition.partition_for(
        mod, params, calibration_data=calibration_data, options=options, **settings
    )


def compile_for_example_npu(
    mod: tvm.IRModule,
    params: Params | None = None,
    *,
    target: object = "llvm",
    calibration_data: Iterable[object] | None = None,
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
        TVM's target for the host part.
    calibration_data
        Batches of real inputs, as for the partitioning.
    options
        `Options`, a mapping, or the path of a .toml or .json file.
    **settings
        Single options, which override `options`.

    Returns
    -------
    executable
        Run it with `relax.VirtualMachine`, or export it as a library.

    Raises
    ------
    ValueError
        An option is unknown or has an invalid value, there is no such parameter, or the
        calibration data do not fit.
    RuntimeError
        An op stays on the host, but `on_decline` or `strict` forbids it.
    """
    return partition.compile_for(
        mod,
        params,
        target=target,
        calibration_data=calibration_data,
        options=options,
        **settings,
    )
