# SPDX-License-Identifier: Apache-2.0
"""The command `check`: whether the backend works here, and what to do if not."""

from __future__ import annotations

import difflib
import importlib.metadata
import inspect
import os
import platform
import subprocess
import sys

from ...version import VERSION
from .. import loading
from ..libraries import _library
from ..loading import WITHOUT_TORCH
from ..shared.backend import BACKEND, DISTRIBUTION, PACKAGE
from ..shared.entry_points import entry_point, has_workbench
from ..shared.messages import last_line
from ..shared.problem import REBUILD, Problem, translated
from ..shared.terminal import say
from ..table.limits import WHERE


def check() -> None:
    """Check everything that a user needs, from loading to correct values."""
    say(f"Python {platform.python_version()} on {platform.platform()}")
    for name in ("apache-tvm", "apache-tvm-ffi", DISTRIBUTION):
        say(f"{name} {_library.version(name)}")
    say(f"engine {VERSION}")
    for role in ("runtime", "codegen", "driver", "second", "emulator"):
        path = _library.find(role)
        if path is not None or role != "second":
            say(f"{role} library: {path or 'not installed'}")
    if loading.failure is not None:
        raise Problem(f"The backend does not load: {loading.failure}")
    _tell_interfaces()
    has_compiler = "codegen" in _library.loaded
    if has_compiler:
        _check_ops()
    if not _library.IN_TREE:
        _check_autoload()
    if not has_compiler:
        say("Only the runtime is here: compiled models run, and nothing can be compiled.")
        return
    _tell_driver()
    if has_workbench():
        translated(entry_point("read_vendor_cases"))
        entry_point("check_first_op")()


def _tell_interfaces() -> None:
    """Tell the versions that must match those of drivers and of compiled models."""
    import tvm_ffi

    info = tvm_ffi.get_global_func(f"{BACKEND}.runtime.info")()
    driver, artifact = info["driver_api_version"], info["format_version"]
    say(f"driver API {driver}, artifact format {artifact}")
    if os.environ.get(_library.ANY_TVM) == "1":
        say(f"{_library.ANY_TVM} is 1: versions of TVM that were never tried are not refused")


def check_environment() -> None:
    """Check the environment variables that set compile options."""
    if "codegen" not in _library.loaded:
        return
    from ..settings.options import Options

    translated(lambda: Options.load(None))


def _check_autoload() -> None:
    """Check that `import tvm` alone loads the backend, in a process of its own."""
    points = importlib.metadata.entry_points(group="tvm.backends", name=BACKEND)
    if not list(points):
        raise Problem(f"'import tvm' does not know the backend: {REBUILD}.")
    if os.environ.get("TVM_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        say("'import tvm' does not load the backend: TVM_DEVICE_BACKEND_AUTOLOAD is 0.")
        return
    name = f"{BACKEND}.runtime.info"
    code = f"{WITHOUT_TORCH}import tvm, tvm_ffi; tvm_ffi.get_global_func({name!r})"
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        # As under an emulator of another processor, which starts one process only.
        say(f"whether 'import tvm' loads the backend is unknown: no process starts here: {error}")
        return
    if result.returncode != 0:
        last = last_line(result.stderr) or "it crashed"
        raise Problem(f"'import tvm' in a fresh process does not load the backend: {last}")
    say("'import tvm' loads the backend")


def _check_ops() -> None:
    """Check that the table and the compiled lowerings fit together."""
    import tvm_ffi

    from ..table.patterns import TABLE

    for op in (op for op in TABLE.ops if op.relax):
        known = parameters(op.relax)
        for name in set(op.attributes) - set(known):
            near = difflib.get_close_matches(name, known, 1)
            hint = f", did you mean '{near[0]}'" if near else ""
            raise Problem(
                f"The table has the attribute '{name}' for {op.name}, but {op.relax} has "
                f"none of that name{hint}. It takes: {', '.join(known)}."
            )
    lowered = set(tvm_ffi.get_global_func(f"{BACKEND}.codegen.lowered_ops")())
    say(f"ops: {', '.join(op.name for op in TABLE.ops)}")
    missing = [op.relax for op in TABLE.ops if op.relax and op.relax not in lowered]
    if missing:
        raise Problem(
            f"The table has ops without a lowering: {', '.join(missing)}. Add one in "
            "vendor/lowerings, and name its file in NPU_VENDOR_LOWERINGS of vendor/vendor.cmake, "
            f"or take them out of {WHERE}; then {REBUILD}."
        )
    for reason in TABLE.left_out.values():
        say(f"not on this chip: {reason}")
    if TABLE.unused_limits:
        names = ", ".join(TABLE.unused_limits)
        say(f"{WHERE} has limits of {names}, which this backend does not offload")
    if TABLE.unrecorded:
        names = ", ".join(TABLE.unrecorded)
        say(
            f"no limits are recorded of {names}: the engine's hold; "
            f"'python -m {PACKAGE} limits' prints the lines for {WHERE}"
        )


def _tell_driver() -> None:
    """Say which driver programs are compiled for, if there is a choice."""
    from ..settings.driver_options import DRIVERS
    from ..settings.options import PREFIX, Options

    options = Options.load(None)
    used = options.driver.replace(",", "' and then '")
    for other in DRIVERS.keys() - set(options.drivers):
        say(
            f"programs are for the driver '{used}'; {PREFIX}DRIVER={other}, or the option "
            f"driver={other!r}, makes them for the other one"
        )


def parameters(relax_op: str) -> list[str]:
    """Return the names of a Relax op's arguments and attributes.

    The arguments that it declares, and the parameters of the function that makes a call of it.
    """
    import tvm
    from tvm import relax

    function = relax.op
    for part in relax_op.split(".")[1:]:
        function = getattr(function, part, None)
    declared = [str(argument.name) for argument in tvm.ir.Op.get(relax_op).arguments]
    signature = inspect.signature(function).parameters if callable(function) else ()
    return list(dict.fromkeys([*declared, *signature]))
