# SPDX-License-Identifier: Apache-2.0
"""Helpers that the tests share; models and cases come from the conformance kit."""

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import backend
from backend.engine.backend.commands.main import main
from backend.engine.backend.libraries._library import IN_TREE
from backend.engine.backend.regions import partition
from backend.engine.backend.shared.backend import vendor
from backend.engine.backend.table.capability import OneOf
from backend.engine.backend.table.reasons import CHIP_LIMIT, Code
from backend.engine.workbench.conformance import chip
from backend.engine.workbench.conformance.cases import OPS
from backend.engine.workbench.conformance.catalog_cases import Case
from backend.engine.workbench.conformance.chip import SIZES  # noqa: F401
from backend.engine.workbench.conformance.compiled import (  # noqa: F401
    Compiled,
    compile_all,
    compile_on_host,
    host_library,
    partition_for,
    placement,
    run_on_host,
)
from backend.engine.workbench.conformance.imported import (
    Imported,
    compile_for_host,
    compile_together,
)
from backend.engine.workbench.conformance.ledger import (
    apply,
    expected_failures,
)
from backend.engine.workbench.conformance.model import (  # noqa: F401
    BACKEND,
    TABLE,
    Model,
    Spec,
    Tensor,
    entry_of,
    evaluate,
    plain,
)
from backend.engine.workbench.conformance.quantized import lacks_integers
from backend.engine.workbench.conformance.region import ask_about, first_taken
from backend.engine.workbench.conformance.workers import in_workers

compile_for = partial(partition.compile_for, on_decline="host")

SELECTED: set[str] = set()
"""The parameters of the selected tests, by name; conftest.py fills it."""


def needs_pass(name: str) -> pytest.MarkDecorator:
    """Mark a test of a pass, which a vendor may have disabled."""
    reason = f"vendor/passes.py disables {name}"
    return pytest.mark.skipif(name in vendor("passes", "DISABLED", ()), reason=reason)


def first_case(ops):
    """Return the first case of some ops that the chip supports, if any."""
    # The first case of each op, then the second: a driver may take only the last op.
    by_op = ([Case(op, item) for item in OPS[op]["cases"]] for op in ops)
    in_turn = chain.from_iterable(zip_longest(*by_op))
    return first_taken(case for case in in_turn if case is not None)[0]


def lost_by_folding(case):
    """Return which ops may stay on the host if all inputs of a case but the first are constants."""
    return chip.lost_by_folding(case.op, [item.name for item in entry_of(case.op).inputs[1:]])


def skip_without_host(case):
    """Skip a test that runs a case on the host, for which TVM has no kernel."""
    if not case.entry.get("host", True):
        pytest.skip(f"TVM has no kernel for {case}")


@cache
def declined(op: str, dtype: str = "") -> str:
    """Return why the driver takes no case of an op, in an element type if given; "" if it does."""
    if op not in OPS or not TABLE.get(op):
        return ""
    cases = (Case(op, item) for item in OPS[op]["cases"])
    if dtype:
        cases = (case for case in Case.all(op) if next(case.specs())[1][0].dtype == dtype)
    return ask_about(cases)[1]


def _takes_symbols():
    if not chip.SYMBOLS:
        return False
    names = (op for op in OPS if TABLE.get(op) and not declined(op))
    cases = (Case(op, item) for op in names for item in OPS[op]["cases"])
    return ask_about(case for case in cases if chip.has_symbol(case.entry["inputs"]))[0] is not None


def accepted_cases():
    """Return for each op the first case that the table accepts, if it accepts one."""

    def is_accepted(case):
        return not case.model(exact=False).refusals(asked_later=False)

    cases = ([Case(op, item) for item in OPS[op]["cases"]] for op in OPS if TABLE.get(op))
    return [case for some in cases if (case := next(filter(is_accepted, some), None))]


def _single():
    kinds = {}
    for entry in TABLE.ops:
        if entry.name in OPS and entry.relax and entry.name != "astype":
            kind = (entry.engine, len(entry.inputs), entry.fuses is None)
            kinds.setdefault(kind, []).append(entry.name)
    return [case for ops in kinds.values() if (case := first_case(ops))]


SINGLE = _single()
"""A case of one op of each kind, for tests to which the op does not matter.

Each is a single call, unlike chains. astype is left out, because its first case casts nothing.
"""

needs_single = pytest.mark.skipif(not SINGLE, reason="the NPU takes no op in a single call")

# ---- What the chip and the driver have ----------------------------------------------------------

_OPTIONS = backend.Options.load(None)
IS_EMULATOR = _OPTIONS.driver == "emulator"
needs_emulator = pytest.mark.skipif(
    not IS_EMULATOR,
    reason=f"this is about the emulator, and programs are for the driver '{_OPTIONS.driver}'",
)
needs_wheel = pytest.mark.skipif(
    IN_TREE, reason="this is about the wheel, and here the backend is a part of TVM"
)
needs_cancellation = pytest.mark.skipif(
    not getattr(getattr(TABLE, "chip", None), "cancellation", True),
    reason="a call that runs cannot be cancelled",
)
needs_reals = pytest.mark.skipif(not TABLE.chip.has_reals, reason="the chip has integers only")
needs_symbols = pytest.mark.skipif(not _takes_symbols(), reason="the chip takes fixed sizes only")


def outcomes_of(suite, cases):
    """Run the cases of a suite that the selected tests use."""
    chosen = [case for case in cases if case in SELECTED]
    found = list(in_workers(suite, chosen, jobs=2))
    entries = [entry for entry in expected_failures() if entry.suite == suite]
    return {outcome.case: outcome for outcome in apply(entries, found, complete=False)}


def assert_passed(outcome):
    """Skip cases that the driver declines, and expect the ledger's failures."""
    if outcome.status in ("not_run", "declined"):
        pytest.skip(f"{outcome.status}: {outcome.reason}")
    if outcome.status == "expected_failure":
        pytest.xfail(outcome.reason)
    assert outcome.status == "passed", outcome.reason


def needs_library(*names):
    """Skip a test if Python packages are missing."""
    missing = [name for name in names if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"pip install {' '.join(missing)}")


def needs_options(*names, options=_OPTIONS):
    """Skip a test if the driver lacks options."""
    missing = [name for name in names if name not in options.driver_options()]
    return pytest.mark.skipif(bool(missing), reason=f"the driver has no option {missing}")


_DRIVER = next(
    driver
    for driver in tvm_ffi.get_global_func(f"{BACKEND}.runtime.drivers")()
    if driver["role"] == _OPTIONS.drivers[0]
)
COUNTERS = {str(counter["name"]) for counter in _DRIVER["counters"]}
"""The driver's counters."""


def needs_counters(*names):
    """Skip a test if the driver lacks counters."""
    missing = [name for name in names if name not in COUNTERS]
    return pytest.mark.skipif(bool(missing), reason=f"the driver has no counter {missing}")


def another_option(options=_OPTIONS):
    """Return an option that affects programs, with another value; preferably a driver's option."""
    known = [field for field in fields(options) if field.name in options.driver_options()]
    for field in sorted(known, key=lambda field: not isinstance(field.metadata["allowed"], OneOf)):
        default, allowed = field.metadata["by_role"][options.drivers[0]]
        if isinstance(allowed, OneOf):
            return {field.name: next(value for value in allowed.values if value != default)}
        if isinstance(default, bool):
            return {field.name: not default}
        if isinstance(default, int):
            return {field.name: allowed.min if default != allowed.min else default + 1}
    return {"timeout_ms": 60_000}


def needs_devices(count):
    """Skip a test if there are fewer devices."""
    return pytest.mark.skipif(not has_device(count - 1), reason=f"it takes {count} devices")


def has_device(index):
    """Whether the selected driver has a device that the table allows."""
    most = getattr(getattr(TABLE, "chip", None), "devices", None)
    return index < int(_DRIVER["devices"]) and (most is None or index < most)


# ---- A new process ------------------------------------------------------------------------------

_FRESH_PROCESS = """
import sys
import numpy as np
import tvm
from tvm import relax

machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
inputs, outputs = np.load(sys.argv[2]), {}
for key in sorted({key.rsplit(" ", 1)[0] for key in inputs}):
    count = sum(name.rsplit(" ", 1)[0] == key for name in inputs)
    arguments = [tvm.runtime.tensor(inputs[f"{key} {index}"]) for index in range(count)]
    result = machine[key.split(" ")[0]](*arguments)
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else result
    for index, item in enumerate(fields):
        outputs[f"{key} {index}"] = item.numpy()
np.savez(sys.argv[3], **outputs)
"""


def run_command(*arguments: Any) -> tuple[int, str, str]:
    """Run a command of the package in this process, which is quicker than a new one.

    Returns its exit code and its output on both streams.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        patch.setattr(sys, "argv", [backend.__name__, *map(str, arguments)])
        try:
            code = main()
        except SystemExit as exit:  # argparse exits this way.
            code = int(exit.code or 0)
    return code, out.getvalue(), errors.getvalue()


def run_in_fresh_process(
    compiled: Compiled, models: Sequence[Model], directory: Path
) -> dict[tuple[str, int], list[np.ndarray]]:
    """Export the compiled models, and load and run them in a new process."""
    results: dict[tuple[str, int], list[np.ndarray]] = {}
    for executable in set(compiled.executables.values()):
        if isinstance(executable, Exception):
            continue
        mine = [model for model in models if compiled.executables[model.name] is executable]
        library, inputs, outputs = (
            str(directory / f"{len(results)}_{name}") for name in ("model.so", "in.npz", "out.npz")
        )
        executable.export_library(library)
        arrays = {
            f"{model.name} {n} {index}": argument.values[n]
            for model in mine
            for n in model.sizes
            for index, argument in enumerate(model.arguments)
        }
        np.savez(inputs, **arrays)
        command = [sys.executable, "-c", _FRESH_PROCESS, library, inputs, outputs]
        subprocess.run(command, check=True)
        with np.load(outputs) as loaded:
            for model in mine:
                for n in model.sizes:
                    keys = (f"{model.name} {n} {index}" for index in range(len(model.outputs)))
                    results[model.name, n] = [loaded[key] for key in keys]
    return results


# ---- Small modules ------------------------------------------------------------------------------

_UNARY = (relax.op.sin, relax.op.cos, relax.op.sinh)
on_host = next(
    op
    for op in _UNARY
    if not TABLE.entries_of(f"relax.{op.__name__}") and op.__name__ not in TABLE.left_out
)
"""An op that the backend lacks, defined everywhere, with the same name in NumPy."""


def needs(*ops: str, dtype: str = "", variable: bool = False) -> Any:
    """Skip a test if the table lacks ops, or the driver declines all of their cases.

    With `dtype`, also if they lack that element type; with `variable`, also if some of their
    inputs must be constants.
    """
    absent = [op for op in ops if TABLE.get(op) is None]
    lacking = [f"the table has no {', '.join(absent)}"] if absent else []
    present = (op for op in ops if op not in absent)
    lacking += [reason for op in present if (reason := _lacks(op, dtype, variable))]
    return pytest.mark.skipif(bool(lacking), reason="; ".join(lacking))


def _lacks(op: str, dtype: str, variable: bool) -> str:
    entry = TABLE.get(op)
    known = entry.inputs[0].dtypes if entry.inputs else ()
    if dtype and known and dtype not in known:
        return f"the table has no {op} in {dtype}"
    wanted = [item.name for item in entry.inputs if item.constant]
    if variable and wanted:
        return f"{op} wants constants: {wanted}"
    reason = declined(op, dtype)
    return f"the driver declines {op}, for example {reason}" if reason else ""


def skip_where_declined(mod: Any) -> None:
    """Skip a test whose ops the driver accepts, but not as they are used in this module."""
    for op in backend.offload_report(partition_for(mod)).ops:
        # What is declined with integers may be on the NPU with real numbers.
        if (op.declined or op.wider_code == Code.DECLINED.value) and not IS_EMULATOR:
            pytest.skip(str(op.reason or op.wider))


def skip_where_limited(mod: Any) -> None:
    """Skip a test whose ops the chip's limits allow, but not as they are used in this module."""
    for op in backend.offload_report(partition_for(mod)).on_host:
        if str(op.reason).endswith(CHIP_LIMIT):
            pytest.skip(str(op.reason))


def skip_without_integers(*ops: str) -> None:
    """Skip a test if the limits or the driver keep ops in float."""
    if reason := lacks_integers(*ops):
        pytest.skip(reason)


def skip_without_int16(*ops: str) -> None:
    """Skip a test where ops do not compute with int16."""
    skip_without_integers(*ops)
    entries = [TABLE.get(name) for name in ops]
    if not all("int16" in entry.quantized.dtypes for entry in entries):
        pytest.skip("this chip has no int16")


def lacks(*ops: str) -> Any:
    """Run a test only if these ops are not in the table."""
    present = [op for op in ops if TABLE.get(op) is not None]
    return pytest.mark.skipif(bool(present), reason=f"capabilities.py has {present}")


class Terminal(io.StringIO):
    """A terminal without colours."""

    def isatty(self) -> bool:
        return True


def on_terminal(shown: Any, monkeypatch: Any, width: int, **how: Any) -> str:
    """Return what a terminal of some width shows of a report or a profile."""
    pytest.importorskip("rich", reason="rich is not installed")
    for name, value in (("COLUMNS", str(width)), ("NO_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    shown.show(terminal, **how)
    return re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())


def variable(name: str, *shape: Any, dtype: str = "float32") -> Any:
    """Make a variable."""
    return relax.Var(name, relax.TensorType(shape, dtype))


def build(arguments: Sequence[Any], body: Any, name: str = "main", dataflow: bool = True) -> Any:
    """Make a module of one function; `body` gets an `emit` and returns the results."""
    builder = relax.BlockBuilder()
    with builder.function(name, arguments):
        with builder.dataflow() if dataflow else contextlib.nullcontext():
            result = body(builder.emit)
            result = relax.Tuple(result) if isinstance(result, (list, tuple)) else result
            result = builder.emit_output(result) if dataflow else builder.emit(result)
        builder.emit_func_output(result)
    return builder.get()


def run_together(models: Sequence[Imported]) -> dict[str, list[np.ndarray] | Exception]:
    """Run imported models with TVM's own kernels, or say what kept one from it, by their names.

    Many in one library take half of the time that each would take in its own.
    """
    results: dict[str, list[np.ndarray] | Exception] = {}
    for start in range(0, len(models), 40):
        some = models[start : start + 40]
        programs = compile_together(some, compile_for_host)
        for model in some:
            program = programs[model.name]
            try:
                results[model.name] = (
                    program if isinstance(program, Exception) else program.run(model)
                )
            except Exception as error:
                results[model.name] = error
    return results


def array(*shape: int, seed: int = 0) -> np.ndarray:
    """Make data of float32 between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def calls_of(function: relax.Function) -> list[str]:
    """Return the names of the ops that a function calls, in order."""
    names = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            names.append(expr.op.name)

    relax.analysis.post_order_visit(function, visit)
    return names


def report_of(mod: Any, **options: Any) -> backend.Report:
    """Return where the ops of a module run."""
    return backend.offload_report(partition_for(mod, **options))


def assert_close(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    rtol: float,
    atol: float,
    what: str = "",
) -> None:
    """Compare all outputs: number, shapes, types and values."""
    assert len(actual) == len(expected), what
    for index, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        where = f"{what} output {index}"
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), where
        wide = (array.astype(np.float64) for array in (mine, theirs))
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=where)


def assert_right(model: Model, actual: Sequence[np.ndarray], n: int) -> None:
    """Compare a model's results with exact values, within the tolerances of its ops."""
    verdict = model.judge(n, actual)
    assert not verdict.text, f"{model.name}, n={n}: {verdict.text}"
