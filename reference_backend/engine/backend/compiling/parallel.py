# SPDX-License-Identifier: Apache-2.0
"""One model on several NPUs: each computes a part of every batch.

It runs on TVM's Disco, one worker for each NPU, and needs no compiler: a board can use it.
"""

from __future__ import annotations

import itertools
import json
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from ..profiling import record
from ..profiling.collect import count_of_calls, report_of
from ..profiling.profiles import Profile
from ..shared.aliases import Array
from ..shared.backend import BACKEND, PACKAGE

_STEP = f"{BACKEND}.parallel.step"
"""The function that the workers call."""

_numbers = itertools.count()


class DataParallel:
    """An exported model, loaded once for each of several NPUs.

    Parameters
    ----------
    library
        A file written by `export_library`.
    devices
        The indices of the NPUs.
    processes
        Whether each NPU but the first gets a process instead of a thread of this one. Threads
        share memory with the caller; processes share nothing.

    Raises
    ------
    RuntimeError
        The model cannot be loaded; the message names the NPU.
    """

    def __init__(
        self, library: str | Path, devices: Sequence[int] = (0, 1), *, processes: bool = False
    ) -> None:
        try:
            self.devices = [operator.index(device) for device in devices]
        except TypeError:
            self.devices = []
        if not self.devices:
            raise ValueError(f"devices is {devices!r}; it must be indices of NPUs: [0, 1], say.")
        self._workers = _Workers(len(self.devices), processes)
        # Also at exit: worker threads must not outlive the interpreter.
        self._close = weakref.finalize(self, self._workers.close)
        try:
            path = str(Path(library).absolute())
            self.devices = self._all("load", path, tvm_ffi.Shape(self.devices))
        except BaseException:
            self.close()
            raise

    def __call__(self, *arguments: object, function: str = "main") -> list[Array]:
        """Run a batch.

        Parameters
        ----------
        arguments
            The inputs of the function: arrays whose first axis is the batch. Weights are bound
            when the model is compiled.
        function
            Its name.

        Returns
        -------
        results
            The results of the whole batch, in the order of a tuple.

        Raises
        ------
        RuntimeError
            The function fails on an NPU; the message says on which one, and why.
        """
        counts = self._all("run", function, *self._scattered(arguments))
        # A worker has no results if the batch is smaller than the number of workers.
        busy = [worker for worker, count in enumerate(counts) if count]
        results: list[Array] = []
        for index in range(max(counts)):
            reference = self._workers.call("result", index)
            tensors = self._workers.gather(reference, busy)
            results.append(np.concatenate([tensor.numpy() for tensor in tensors]))
        return results

    def counters(self) -> list[dict[str, dict[str, int]]]:
        """Return the counters of each NPU since the model was loaded.

        Returns
        -------
        counters
            For each NPU, the counters of each region of the model.
        """
        counters: list[dict[str, dict[str, int]]] = self._all("counters")
        return counters

    def profile(
        self,
        *arguments: object,
        function: str = "main",
        calls: int = 1,
        report: object = None,
    ) -> list[Profile]:
        """Run a batch, and tell where the time goes on each NPU.

        Parameters
        ----------
        arguments, function
            As for a call.
        calls
            How many calls are recorded, after one that is not.
        report
            As for `profile` of a model on one NPU.

        Returns
        -------
        profiles
            One for each NPU. Their times on the host begin together, with the first call.

        Raises
        ------
        RuntimeError
            The function fails on an NPU; the message says on which one, and why.
        """
        placements = report_of(report)
        parts = self._scattered(arguments)
        recordings = self._all("record", function, count_of_calls(calls), *parts)
        begins = [begin for recording in recordings for begin, _ in recording["calls"]]
        return [
            Profile.from_recording(recording, placements, min(begins)) for recording in recordings
        ]

    def close(self) -> None:
        """End the workers; nothing can be run any more."""
        self._close()

    def __enter__(self) -> DataParallel:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the workers."""
        self.close()

    def _scattered(self, arguments: Sequence[object]) -> list[tvm_ffi.Object]:
        """Give each worker its part of a batch; return references to the parts."""
        arrays = [np.ascontiguousarray(argument) for argument in arguments]
        if len({array.shape[0] for array in arrays}) != 1:
            shapes = ", ".join(str(array.shape) for array in arrays) or "none"
            raise ValueError(
                "The arguments must be arrays whose first axis is the batch, as long in all of "
                f"them; their shapes are: {shapes}."
            )
        parts = [np.array_split(array, len(self.devices)) for array in arrays]
        return [self._workers.scatter(part) for part in parts]

    def _all(self, *step: object) -> list[Any]:
        """Run a step on all workers, and return their answers."""
        if not self._close.alive:
            raise RuntimeError("This model was closed.")
        reference = self._workers.call(*step)
        answers = [json.loads(text) for text in self._workers.gather(reference)]
        errors: dict[str, list[str]] = {}
        for device, answer in zip(self.devices, answers, strict=True):
            if "error" in answer:
                errors.setdefault(answer["error"], []).append(str(device))
        if errors:
            lines = (f"NPU {' and '.join(names)}: {error}" for error, names in errors.items())
            raise RuntimeError("\n".join(lines))
        return [answer["value"] for answer in answers]


# ---- On a worker --------------------------------------------------------------------------------


class _Model:
    """The model of one worker."""

    def __init__(self, path: str, device: int) -> None:
        tvm_ffi.get_global_func(f"{BACKEND}.runtime.set_device")(device)
        self.device = int(tvm_ffi.get_global_func(f"{BACKEND}.runtime.device")())
        # Not Disco's load_vm_module: its workers share one module, and so one NPU.
        self.machine = VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
        self.results: list[tvm.runtime.Tensor] = []

    def run(self, function: str, *arguments: tvm.runtime.Tensor) -> int:
        """Run a function on a part of the batch; return the number of results."""
        self.results = []
        # For an empty batch, the first worker provides the shapes of the results.
        if arguments[0].shape[0] > 0 or _disco("worker_rank") == 0:
            self._keep(self.machine[function](*arguments))
        return len(self.results)

    def result(self, index: int) -> tvm.runtime.Tensor | None:
        """Return a result of the last run."""
        return self.results[index] if self.results else None

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters of each region."""
        regions = record.region_modules(self.machine.module)
        return {symbol: record.counters_of(module) for symbol, module in regions.items()}

    def record(self, function: str, calls: int, *arguments: tvm.runtime.Tensor) -> record.Recording:
        """Record calls with a part of the batch."""
        return record.record(self.machine, function, calls, *arguments)

    def _keep(self, result: tvm.runtime.Tensor | Iterable[tvm.runtime.Tensor]) -> None:
        if isinstance(result, tvm.runtime.Tensor):
            self.results.append(result)
        else:
            for part in result:
                self._keep(part)


_models: dict[tuple[int, int], _Model] = {}
"""The models of this process, by number and worker."""


def _step(number: int, name: str, *arguments: Any) -> str | tvm.runtime.Tensor | None:
    """Run a step on a worker; an escaping error would end the whole process."""
    key = (number, _disco("worker_rank"))
    if name == "load":
        return _answer(lambda: _load_model(key, *arguments))
    if name == "run":
        return _answer(lambda: _models[key].run(*arguments))
    if name == "record":
        return _answer(lambda: _models[key].record(*arguments))
    if name == "counters":
        return _answer(lambda: _models[key].counters())
    if name == "result":
        return _models[key].result(*arguments)
    if name == "close":
        return _answer(lambda: _models.pop(key, None) and None)
    return None


tvm_ffi.register_global_func(_STEP, _step, override=True)


def _load_model(key: tuple[int, int], path: str, devices: Sequence[int]) -> int:
    _models[key] = _Model(path, devices[key[1]])
    return _models[key].device


def _answer(work: Callable[[], object]) -> str:
    try:
        return json.dumps({"value": work()})
    except Exception as error:
        return json.dumps({"error": str(error)})


# ---- Disco --------------------------------------------------------------------------------------


class _Workers:
    """A session of Disco."""

    def __init__(self, count: int, processes: bool) -> None:
        _load_disco()
        self._number = next(_numbers)
        self._count = count
        if processes:
            pool = "runtime.disco.create_process_pool"
            entry = f"{PACKAGE}.engine.backend.compiling.parallel"
            self._session = _disco("SessionProcess", count, 1, pool, entry)
        else:
            self._session = _disco("SessionThreaded", count, 1)
        self._step = _disco("SessionGetGlobalFunc", self._session, _STEP)

    def call(self, *step: object) -> tvm_ffi.Object:
        """Begin a step on all workers; return a reference to its result."""
        arguments = (0, 0, self._step, self._number, *step)
        return _disco("SessionCallPacked", self._session, *arguments)

    def gather(self, reference: object, workers: Sequence[int] = ()) -> list[Any]:
        """Wait for some or all workers, and return their results, which must not be None."""
        workers = workers or range(self._count)
        return [_disco("DRefDebugGetFromRemote", reference, worker) for worker in workers]

    def scatter(self, parts: Sequence[Array]) -> tvm_ffi.Object:
        """Give each worker its part; return a reference to all."""
        reference = self.call("nothing")
        for worker, part in enumerate(parts):
            _disco("DRefDebugCopyFrom", reference, worker, tvm.runtime.tensor(part))
        return reference

    def close(self) -> None:
        """Free the models; the session ends with its last reference."""
        self.gather(self.call("close"))


def _disco(function: str, *arguments: object) -> Any:
    """Call a Disco function: TVM 0.27 defines the Python classes before the library is loaded."""
    return tvm_ffi.get_global_func(f"runtime.disco.{function}")(*arguments)


def _load_disco() -> None:
    """Load Disco's library, which TVM does not do in a runtime-only installation."""
    if tvm_ffi.get_global_func("runtime.disco.SessionThreaded", allow_missing=True) is None:
        tvm_ffi.libinfo.load_lib_ctypes(
            "tvm",
            "tvm_runtime_extra",
            "RTLD_LOCAL",
            extra_lib_paths=tvm.libinfo.package_lib_paths(),
        )


if __name__ == "__main__":
    from tvm.exec import disco_worker

    _load_disco()
    disco_worker.main()
