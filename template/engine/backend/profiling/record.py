# SPDX-License-Identifier: Apache-2.0
"""Records the calls of a loaded model where it is loaded: on a board, in a worker, or here.

A recording is plain data, which can cross a network; `profiles.Profile` interprets it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import time

import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from ..shared.aliases import JsonObject
from ..shared.backend import BACKEND

RECORD = f"{BACKEND}.profiling.record"
"""The function of a board that its clients call."""

Recording = JsonObject
"""`device`, `calls`, `regions` with the records of their modules, and `host`; times in us."""


def region_modules(module: tvm.runtime.Module) -> dict[str, tvm.runtime.Module]:
    """Return the modules of the regions that a module imports."""
    regions: dict[str, tvm.runtime.Module] = {}
    modules = [module]
    for imported in modules:
        modules.extend(imported.imports)
        if imported.kind == BACKEND:
            regions.setdefault(str(imported["get_symbol"]()), imported)
    return regions


def counters_of(module: tvm.runtime.Module) -> dict[str, int]:
    """Return the counters of a region since it was loaded."""
    return {str(name): int(value) for name, value in module["counters"]().items()}


def load(library: str) -> VirtualMachine:
    """Load an exported library."""
    return VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())


class Recorder:
    """Records the calls of a machine, which loses its instrument; a context ends the recording."""

    def __init__(self, machine: VirtualMachine) -> None:
        self._machine = machine
        self._regions = region_modules(machine.module)
        # Waiting for the NPU is not the host's work.
        waits = f"{BACKEND}.runtime.wait_all"
        self._ignored = {waits, *self._regions, *(f"{name}.submit" for name in self._regions)}
        self._open: list[tuple[str, float, bool]] = []
        self._collects_garbage = gc.isenabled()
        self._begin()

    def __enter__(self) -> Recorder:
        """Begin."""
        # Python's search for garbage can take longer than a call of the model.
        gc.disable()
        try:
            for module in self._regions.values():
                module["set_profiling"](True)
            self._machine.set_instrument(self._note)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Read the records of the regions, or drop them after an error; end the recording."""
        try:
            if error[0] is None:
                self.recording["regions"] = [
                    self._read(symbol, module) for symbol, module in self._regions.items()
                ]
                device = tvm_ffi.get_global_func(f"{BACKEND}.runtime.device")
                self.recording["device"] = int(device())
        finally:
            self._stop()

    def call(self, function: str, *arguments: object) -> object:
        """Run a function, and record its time."""
        begin = _now()
        result = self._machine[function](*arguments)
        self.recording["calls"].append([begin, _now()])
        return result

    def forget(self) -> None:
        """Drop the records so far."""
        for module in self._regions.values():
            module["profile"]()
        self._begin()

    def _begin(self) -> None:
        self._before = {symbol: counters_of(region) for symbol, region in self._regions.items()}
        self.recording: Recording = {"calls": [], "host": [], "regions": []}

    def _note(
        self, _function: object, symbol: str, is_before: bool, _result: object, *_arguments: object
    ) -> int:
        """Note the begin or end of a function; the result 0 lets the machine go on."""
        if is_before:
            if self._open:
                self._open[-1] = (*self._open[-1][:2], True)
            self._open.append((symbol, _now(), False))
        elif self._open:
            name, begin, has_inner = self._open.pop()
            # A function that calls others has no time of its own.
            if not has_inner and name not in self._ignored:
                self.recording["host"].append([str(name), begin, _now()])
        return 0

    def _read(self, symbol: str, module: tvm.runtime.Module) -> dict[str, object]:
        before, after = self._before[symbol], counters_of(module)
        largest = _largest()
        grown = {
            name: value if name in largest else value - before.get(name, 0)
            for name, value in after.items()
        }
        text = str(module["profile"]())
        driver = json.loads(module["manifest"]())["options"].get("driver", "")
        record = {"symbol": symbol, "counters": grown, "profile": json.loads(text)}
        return {**record, "driver": driver}

    def _stop(self) -> None:
        for module in self._regions.values():
            with contextlib.suppress(Exception):  # The other regions must end their recording too.
                module["set_profiling"](False)
        self._machine.set_instrument(None)
        if self._collects_garbage:
            gc.enable()


def record(machine: VirtualMachine, function: str, calls: int, *arguments: object) -> Recording:
    """Run a function once to warm up, and then record some calls."""
    with Recorder(machine) as recorder:
        # The first call loads programs, allocates memory, and prepares a driver's recording.
        recorder.call(function, *arguments)
        recorder.forget()
        for _ in range(calls):
            recorder.call(function, *arguments)
    return recorder.recording


def check_function(machine: VirtualMachine, function: str, input_count: int) -> None:
    """Check that a model has a function with this number of inputs."""
    try:
        arity = int(machine.module["get_function_arity"](function))
    except Exception:
        raise ValueError(
            f"The model has no function '{function}': name one of its own, as `function=`."
        ) from None
    if arity != input_count:
        name = machine.module["get_function_param_name"]
        names = ", ".join(str(name(function, index)) for index in range(arity))
        raise ValueError(
            f"The inputs of '{function}' are {names or 'none'}, and {input_count} were given. "
            "Weights that are not bound count as inputs."
        )


def _record_on_board(module: tvm.runtime.Module, function: str, calls: int, *inputs: object) -> str:
    """Record for a client; the answer is JSON: a recording, or an error."""
    try:
        machine = VirtualMachine(module, tvm.cpu())
        check_function(machine, function, len(inputs))
        return json.dumps({"value": record(machine, function, calls, *inputs)})
    except Exception as error:
        return json.dumps({"error": str(error)})


tvm_ffi.register_global_func(RECORD, _record_on_board, override=True)


def _largest() -> set[str]:
    """Return the counters that are not sums over calls: sizes and frequencies."""
    drivers = tvm_ffi.get_global_func(f"{BACKEND}.runtime.drivers")()
    counters = (counter for driver in drivers for counter in driver["counters"])
    return {
        "most_in_flight",
        *(str(counter["name"]) for counter in counters if not counter["is_sum"]),
    }


def _now() -> float:
    """Return the time of the clock that regions use, in us."""
    return time.perf_counter() * 1e6
