# SPDX-License-Identifier: Apache-2.0
"""The suite of the calling contract, which does not depend on the op.

Reloading, several models, many threads, saved files, wrong arguments, and a failing device: every
error is clean, and the next call works. Each check runs on one op of each engine.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ...backend.api import BACKEND, TABLE, Array, Options
from . import chip
from .cases import OPS
from .catalog_cases import Case
from .compiled import compile_all, compile_on_host
from .model import entry_of
from .outcomes import Outcome
from .region import Region, first_taken, load_module
from .suite import NotRun, Settings
from .workers import Announce

SUITE = "contract"

# Results are compared with those of an undisturbed call, or with TVM's own kernels, which sum in
# another order: the suite `ops` checks exactness.
CLOSE = 2e-3


class Wrong(Exception):
    """A violation of the contract, as a sentence."""


def _expect(condition: object, sentence: str) -> None:
    if not condition:
        raise Wrong(sentence)


def _expect_close(actual: Sequence[Array], expected: Sequence[Array], when: str) -> None:
    for mine, right in zip(actual, expected, strict=True):
        wide = mine.astype(np.float64), right.astype(np.float64)
        close = np.isclose(*wide, rtol=CLOSE, atol=CLOSE, equal_nan=True)
        if not close.all():
            at = tuple(map(int, np.argwhere(~close)[0]))
            raise Wrong(f"{when}: element {list(at)} is {mine[at]} instead of {right[at]}")


def _expect_works(region: Region, when: str, module: object = None) -> None:
    _expect_close(region.call(module=module), region.expected, when)


def _refusal(region: Region, tensors: Sequence[object], what: str) -> str:
    """Call with wrong arguments; return the error's message."""
    try:
        region.module[region.symbol](*tensors)
    except Exception as error:
        _expect_works(region, f"the call after the one with {what}")
        return str(error)
    raise Wrong(f"{what} is accepted")


def _expect_words(sentence: str, *words: str) -> None:
    for word in words:
        _expect(word in sentence, f"the error does not say '{word}': {sentence}")


# ---- Loading ------------------------------------------------------------------------------------


def it_loads_again_and_again(region: Region) -> None:
    """Load, call, unload, and load once more."""
    data = region.bytes
    for count in range(5):
        module = load_module(data)
        _expect_works(region, f"after loading it for the {count + 1}th time", module)
        del module
        gc.collect()
    _expect_works(region, "after copies of it were unloaded")


def it_initializes_twice(region: Region) -> None:
    """Initialize it more than once, as TVM may."""
    for _ in range(3):
        result = region.module["__init_" + region.symbol]([])
        _expect(result == 0, f"the initialization returns {result}")
        _expect_works(region, "after it was initialized")


def two_models_share_the_device(region: Region) -> None:
    """Take turns with another model."""
    cases = (case for case, _ in _cases().values())
    others = [Region(case) for case in cases if case and case.op != region.case.op][:1]
    others = others or [Region(region.case)]
    copy = load_module(region.bytes)
    for turn in range(5):
        for called, module in ((region, None), (others[0], None), (region, copy)):
            _expect_works(called, f"in turn {turn + 1} with another model", module)


def it_saves_and_loads(region: Region) -> None:
    """Export a library, load it here and in a new process."""
    model = region.model
    executable = compile_all([model]).executables[model.name]
    if isinstance(executable, Exception):
        raise executable
    script = (
        "import sys, numpy, tvm; from tvm import relax\n"
        "machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())\n"
        "given = numpy.load(sys.argv[2])\n"
        "result = machine[sys.argv[4]](*(tvm.runtime.tensor(given[k]) for k in given.files))\n"
        "fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)\n"
        "numpy.savez(sys.argv[3], *(item.numpy() for item in fields))\n"
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        library, given, output = (str(Path(directory) / n) for n in ("m.so", "in.npz", "out.npz"))
        executable.export_library(library)
        machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
        result = machine[model.name](*map(tvm.runtime.tensor, region.inputs_of_model))
        fields = [result] if isinstance(result, tvm.runtime.Tensor) else result
        _expect_close([item.numpy() for item in fields], region.expected, "loaded from a file")
        np.savez(given, *region.inputs_of_model)
        command = [sys.executable, "-c", script, library, given, output, model.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        _expect(done.returncode == 0, f"a new process fails to load and run it: {done.stderr}")
        with np.load(output) as arrays:
            _expect_close(list(arrays.values()), region.expected, "loaded in a new process")


def a_damaged_artifact_is_refused(region: Region) -> None:
    """Load truncated and corrupt bytes: an error, no crash."""
    data = region.bytes
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
    for what, damaged in (("one that is cut off", data[:middle]), ("a changed one", flipped)):
        try:
            load_module(damaged)
        except Exception as error:
            _expect(str(error), "a damaged artifact is refused without a word")
        else:
            raise Wrong(f"{what} is loaded")
    _expect_works(region, "after damaged artifacts were refused")


# ---- Calls --------------------------------------------------------------------------------------


def many_threads_call_at_once(region: Region) -> None:
    """Call two copies of the module from eight threads, two hundred times."""
    copies = [None, load_module(region.bytes)]
    with ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(_expect_works, region, "called from many threads", copies[index % 2])
            for index in range(200)
        ]
        for call in calls:
            call.result()


def each_call_sees_its_own_data(region: Region) -> None:
    """Call with alternating inputs; earlier results and the inputs stay unchanged."""
    others = [array[..., ::-1].copy() if array.ndim else array for array in region.inputs]
    host = compile_on_host([region.model])
    expected = host.run(region.model.name, others)
    first, second = region.tensors(), region.tensors(others)
    count = len(region.inputs)
    for turn in range(3):
        region.module[region.symbol](*first)
        region.module[region.symbol](*second)
        results = [tensor.numpy() for tensor in first[count:]]
        _expect_close(results, region.expected, f"turn {turn + 1}, one set of inputs")
        results = [tensor.numpy() for tensor in second[count:]]
        _expect_close(results, expected, f"turn {turn + 1}, another set of inputs")
    for tensors, inputs in ((first, region.inputs), (second, others)):
        for tensor, array in zip(tensors, inputs, strict=False):
            _expect((tensor.numpy() == array).all(), "a call has changed one of its inputs")


def a_wrong_number_of_arguments_is_refused(region: Region) -> None:
    """Leave an argument out."""
    sentence = _refusal(region, region.tensors()[:-1], "an argument too few")
    _expect_words(sentence, region.symbol)


def a_wrong_type_is_refused(region: Region) -> None:
    """Pass another element type, and something that is not a tensor."""
    tensors = region.tensors()
    dtype = str(region.inputs[0].dtype)
    other = "float64" if dtype != "float64" else "float32"
    tensors[0] = tvm.runtime.tensor(region.inputs[0].astype(other))
    _expect_words(_refusal(region, tensors, f"{other} instead of {dtype}"), dtype, other)
    _refusal(region, [3, *region.tensors()[1:]], "a number instead of a tensor")


def a_wrong_shape_is_refused(region: Region) -> None:
    """Pass another size, and another number of dimensions."""
    for what, shape in (
        ("another size", [size + 1 for size in region.inputs[0].shape] or [2]),
        ("another rank", [1, *region.inputs[0].shape]),
    ):
        tensors = region.tensors()
        tensors[0] = tvm.runtime.tensor(np.zeros(shape, region.inputs[0].dtype))
        _expect_words(_refusal(region, tensors, what), "shape")


def symbolic_sizes_come_in_any_order(region: Region) -> None:
    """Call with other sizes each time: no call affects the next."""
    case, _ = _cases(symbolic=True).get(entry_of(region.case.op).engine, (None, []))
    if case is None:
        raise NotRun("the NPU takes no case with a symbolic size on this engine")
    model = case.model()
    compiled = compile_all([model])
    for n in (*model.sizes, *reversed(model.sizes), *model.sizes):
        results = compiled.run(model.name, [argument.values[n] for argument in model.arguments])
        _expect_close(results, [output.values[n] for output in model.outputs], f"with n={n}")


def little_memory_changes_nothing(region: Region) -> None:
    """Compile for less and less memory: tiling does not change results."""
    if "scratchpad_bytes" not in Options.load(None).driver_options():
        raise NotRun("the driver has no option 'scratchpad_bytes'")
    worked = 0
    for size in (1 << 16, 1 << 14, 1 << 12, 1 << 11, 1 << 10):
        try:
            small = Region(region.case, scratchpad_bytes=size)
        except ValueError:
            break  # It does not fit any more, and stays on the host.
        worked += 1
        _expect_works(small, f"with {size} bytes of scratchpad")
    _expect(worked > 0, "it does not run with 64 KiB of scratchpad")


# ---- Failures of the device ---------------------------------------------------------------------

_STATUSES = {"declined": 1, "out_of_memory": 3, "device_error": 4, "timeout": 5}


def fail_next(call: str, status: str, count: int = 1) -> None:
    """Make calls of the driver fail, by the name of a function (`npu_faults`)."""
    ask = tvm_ffi.get_global_func(f"{BACKEND}.runtime.fail_next")
    if not ask(Options.load(None).drivers[0], call, _STATUSES[status], count):
        raise NotRun("the driver has no extension npu.faults (npu_driver.h)")


def _expect_failure(region: Region, call: str, status: str, body: Callable[[], object]) -> None:
    fail_next(call, status)
    try:
        body()
    except Exception as error:
        sentence = str(error)
    else:
        fail_next(call, status, 0)
        raise Wrong(f"a {call} that ends with {status} goes unnoticed")
    _expect(BACKEND in sentence, f"the error does not name the backend: {sentence}")
    for turn in range(3):
        _expect_works(region, f"call {turn + 1} after a {call} that ended with {status}")


def a_load_without_memory_is_an_error(region: Region) -> None:
    """Load a program that does not fit; one that is loaded late fails at its first call."""
    data = region.bytes
    _expect_failure(region, "load", "out_of_memory", lambda: region.call(module=load_module(data)))


def a_request_without_memory_is_an_error(region: Region) -> None:
    """Call while the device has no memory for one more request."""
    module = load_module(region.bytes)
    _expect_failure(region, "create_request", "out_of_memory", lambda: region.call(module=module))
    _expect_works(region, "the module whose first request failed", module)


def a_run_that_fails_is_an_error(region: Region) -> None:
    """Let the device fail while it runs."""
    for status in ("device_error", "out_of_memory"):
        _expect_failure(region, "execute", status, region.call)


def a_submission_that_fails_is_an_error(region: Region) -> None:
    """Let the device refuse the work, or fail at it."""
    tensors = region.tensors()
    wait_all = tvm.get_global_func(f"{BACKEND}.runtime.wait_all")

    def submit() -> None:
        region.module[region.symbol + ".submit"](*tensors)
        wait_all()

    for call in ("submit", "wait"):
        _expect_failure(region, call, "device_error", submit)
    submit()
    results = [tensor.numpy() for tensor in tensors[len(region.inputs) :]]
    _expect_close(results, region.expected, "submitted after submissions that failed")


def a_call_that_takes_too_long_is_an_error(region: Region) -> None:
    """Let the time limit of the options end a call."""
    limited = Region(region.case, timeout_ms=60_000)
    _expect_failure(limited, "wait", "timeout", limited.call)


CHECKS: tuple[Callable[[Region], None], ...] = (
    it_loads_again_and_again,
    it_initializes_twice,
    two_models_share_the_device,
    it_saves_and_loads,
    a_damaged_artifact_is_refused,
    many_threads_call_at_once,
    each_call_sees_its_own_data,
    a_wrong_number_of_arguments_is_refused,
    a_wrong_type_is_refused,
    a_wrong_shape_is_refused,
    symbolic_sizes_come_in_any_order,
    little_memory_changes_nothing,
    a_load_without_memory_is_an_error,
    a_request_without_memory_is_an_error,
    a_run_that_fails_is_an_error,
    a_submission_that_fails_is_an_error,
    a_call_that_takes_too_long_is_an_error,
)


def cases(settings: Settings) -> list[str]:
    """Return the names of all cases: by op, or by engine if no op is available."""
    taken = [case.op if case else engine for engine, (case, _) in _cases().items()]
    return [f"{name}-{check.__name__}" for name in taken for check in CHECKS]


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Make checks, one by one."""
    checks = {check.__name__: check for check in CHECKS}
    known = {case.op: case for case, _ in _cases().values() if case}
    declined = {engine: reasons for engine, (case, reasons) in _cases().items() if not case}
    regions: dict[str, Region] = {}
    for name in names:
        announce(name)
        op, _, check = name.partition("-")
        status, reason = "passed", ""
        if op in declined:
            yield Outcome(SUITE, name, "declined", op=check, reason="; ".join(declined[op][:3]))
            continue
        try:
            if op not in regions:
                regions[op] = Region(known[op])
            checks[check](regions[op])
        except NotRun as impossible:
            status, reason = "not_run", str(impossible)
        except Exception as error:
            status, reason = "failed", str(error) or type(error).__name__
            regions.pop(op, None)
        yield Outcome(SUITE, name, status, op=check, reason=reason)


@cache
def _cases(symbolic: bool = False) -> dict[str, tuple[Case | None, list[str]]]:
    """Return a case for each engine, from the first suitable op, or why the driver takes none."""
    by_engine: dict[str, list[Case]] = {}
    for op in OPS:
        entry = TABLE.get(op)
        if entry is None or not entry.inputs:
            continue
        for case in (Case(op, form) for form in OPS[op]["cases"]):
            if chip.has_symbol(case.entry["inputs"]) == symbolic:
                by_engine.setdefault(entry.engine, []).append(case)
    found = {engine: first_taken(cases) for engine, cases in by_engine.items()}
    return {engine: (case, reasons) for engine, (case, reasons) in found.items() if case or reasons}
