# SPDX-License-Identifier: Apache-2.0
"""Profiles a model where it is: on this machine, or on a board."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

from ..shared.aliases import Array
from ..shared.backend import BACKEND, PACKAGE
from ..shared.messages import last_line, refused_inputs
from .profiles import Profile
from .record import RECORD, Recording, check_function, load, record

if TYPE_CHECKING:
    from tvm.rpc import RPCSession

    from ..report.report import Report


def profile(
    model: object,
    *inputs: object,
    function: str = "main",
    calls: int = 1,
    report: Report | tvm.IRModule | None = None,
    session: object = None,
) -> Profile:
    """Run a model, and record where its time goes.

    Parameters
    ----------
    model
        What `compile_for_...` returned, a loaded module, the path of an exported library, or a
        virtual machine, which loses its instrument.
    inputs
        The inputs of the function: arrays, or tensors of TVM.
    function
        Its name.
    calls
        How many calls are recorded, after one that is not.
    report
        The report of the model, or the partitioned module: for the names of the author.
    session
        A session of TVM's RPC: the model runs on that board, whose Python has this package. The
        model is then a path, or a module that was loaded in the session.

    Returns
    -------
    profile
        The times.

    Raises
    ------
    TypeError
        The model or an input is of an unsupported type.
    ValueError
        The inputs do not suit the function, or there is no such function.
    RuntimeError
        The model cannot be loaded, or it fails.
    """
    calls = count_of_calls(calls)
    placements = report_of(report)
    arguments = [_array(index, value) for index, value in enumerate(inputs)]
    if session is not None:
        recording = _on_board(session, model, function, calls, arguments)
    else:
        machine = _machine(model)
        check_function(machine, function, len(arguments))
        tensors = [_tensor(argument, tvm.cpu()) for argument in arguments]
        try:
            recording = record(machine, function, calls, *tensors)
        except Exception as error:
            raise _failure(error, function) from None
    return Profile.from_recording(recording, placements)


def count_of_calls(calls: int) -> int:
    """Return how many calls are recorded."""
    try:
        count = operator.index(calls)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"calls is {calls!r}; it must be 1 or more.")
    return count


def report_of(report: object) -> Report | None:
    """Return a user's report, or that of a user's partitioned module."""
    if report is None:
        return None
    # Imported late: a board has neither modules nor reports.
    from ..report.report import Report, offload_report

    if isinstance(report, Report):
        return report
    if isinstance(report, tvm.IRModule):
        return offload_report(report)
    raise TypeError(
        f"report is a {type(report).__name__}; supported: what offload_report returns, or a module "
        f"from partition_for_{BACKEND}."
    )


def _machine(model: object) -> VirtualMachine:
    """Load a model on this machine, unless it is loaded."""
    if isinstance(model, VirtualMachine):
        return model
    if isinstance(model, (str, Path)):
        path = Path(model).expanduser()
        if not path.is_file():
            raise RuntimeError(f"There is no file '{path}': give the path of an exported library.")
        try:
            return load(str(path))
        except Exception as error:
            raise RuntimeError(f"'{path}' cannot be loaded: {last_line(error)}") from None
    if not isinstance(model, (tvm.runtime.Module, tvm.runtime.Executable)):
        raise TypeError(
            f"The model is a {type(model).__name__}; supported: what compile_for_{BACKEND} "
            "returns, a loaded module, and the path of an exported library."
        )
    if isinstance(model, tvm.runtime.Module) and model.kind == "rpc":
        raise ValueError("The model is on a board: give the session too, as `session=`.")
    try:
        return VirtualMachine(model, tvm.cpu())
    except Exception as error:
        raise RuntimeError(f"The model cannot be loaded: {last_line(error)}") from None


def _on_board(
    session: RPCSession, model: object, function: str, calls: int, arguments: Sequence[object]
) -> Recording:
    """Record on a board, where the regions and the virtual machine are."""
    try:
        run = session.get_function(RECORD)
    except Exception:
        raise RuntimeError(
            f"The board cannot profile: its server must be `python -m tvm.exec.rpc_server` with "
            f"this release of {PACKAGE}. A server in C++ runs models, and cannot profile them."
        ) from None
    try:
        if isinstance(model, (str, Path)):
            session.upload(str(model))
            model = session.load_module(Path(model).name)
        tensors = [_tensor(argument, session.cpu()) for argument in arguments]
        answer = json.loads(str(run(model, function, calls, *tensors)))
    except Exception as error:
        raise RuntimeError(f"The board failed: {last_line(error)}") from None
    if "error" in answer:
        raise RuntimeError(f"On the board: {last_line(answer['error'])}")
    recording: Recording = answer["value"]
    return recording


def _array(index: int, value: object) -> Array | tvm.runtime.Tensor:
    """Return an input as an array; a tensor stays one."""
    if isinstance(value, tvm.runtime.Tensor):
        return value
    # `ascontiguousarray` would turn rank 0 into rank 1.
    array = np.asarray(value, order="C")
    if array.dtype.kind not in "biufV" or (array.dtype.kind == "V" and array.dtype.fields):
        raise TypeError(
            f"Input {index} is a {type(value).__name__}; supported: arrays of numbers, and tensors "
            "of TVM."
        )
    return array


def _tensor(argument: object, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    if isinstance(argument, tvm.runtime.Tensor):
        return argument
    return tvm.runtime.tensor(argument, device)


def _failure(error: Exception, function: str) -> Exception:
    """Return the error of a call as a sentence: about the inputs, or about the run."""
    about_inputs = refused_inputs(error, function)
    return about_inputs or RuntimeError(f"'{function}' failed: {last_line(error)}")
