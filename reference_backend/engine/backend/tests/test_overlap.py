# SPDX-License-Identifier: Apache-2.0
"""Overlapping regions: correct values, and really concurrent."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import support
from backend.engine.backend.regions import overlap
from compiled_region import LASTING, Region, can_last
from support import (
    BACKEND,
    COUNTERS,
    TABLE,
    build,
    compile_for,
    declined,
    needs_cancellation,
    needs_counters,
    needs_symbols,
    on_host,
    partition_for,
)

WAIT_ALL = tvm_ffi.get_global_func(f"{BACKEND}.runtime.wait_all")
# Ops with one input and one output; the backend may have any of them.
UNARY = {"relu": relax.op.nn.relu, "tanh": relax.op.tanh, "sigmoid": relax.op.sigmoid}
KNOWN = [name for name in UNARY if TABLE.get(name) and not declined(name)]
NUMPY = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "host": getattr(np, on_host.__name__),
}
needs_unary = pytest.mark.skipif(not KNOWN, reason="the NPU takes no unary op")
SHAPE = (3, 8)


class Program:
    """A function made of steps: (name of the result, op, name of its argument)."""

    def __init__(self, steps, results, sizes=SHAPE):
        self.steps, self.results = steps, results
        x = relax.Var("x", relax.TensorType(sizes, "float32"))

        def body(emit):
            values = {"x": x}
            for name, op, argument in steps:
                call = on_host if op == "host" else UNARY[op]
                values[name] = emit(call(values[argument]))
            return [values[name] for name in results]

        self.mod = build([x], body)

    def calls(self):
        """Compile up to the pass that submits calls; list the calls in order."""
        mod = partition_for(self.mod, merge_regions=False)
        mod = relax.transform.RunCodegen({BACKEND: {}})(mod)
        with tvm.target.Target("llvm"):
            mod = overlap.overlapping_pipeline("llvm")(mod)
        functions = [
            str(binding.value.op.global_symbol)
            for block in mod["main"].body.blocks
            for binding in block.bindings
            if isinstance(getattr(binding.value, "op", None), relax.ExternFunc)
        ]
        kinds = {overlap.WAIT_ALL.rpartition(".")[2]: "wait", "submit": "submit"}
        return [
            kinds.get(name.rpartition(".")[2], "call")
            for name in functions
            if name.startswith(BACKEND)
        ]

    def compile(self, **options):
        return compile_for(self.mod, merge_regions=False, **options)

    def expected(self, x):
        values = {"x": x}
        for name, op, argument in self.steps:
            values[name] = NUMPY[op](values[argument])
        return [values[name] for name in self.results]

    def assert_computes(self, executable, x=None):
        machine = relax.VirtualMachine(executable, tvm.cpu())
        generator = np.random.default_rng(0)
        for _ in range(3):
            value = generator.standard_normal(SHAPE).astype("float32") if x is None else x
            found = machine["main"](tvm.runtime.tensor(value))
            for mine, theirs in zip(found, self.expected(value), strict=True):
                np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-3, atol=1e-4)
        return machine


def most_in_flight(machine):
    found, stack = 0, [machine.module]
    while stack:
        module = stack.pop()
        stack.extend(module.imports)
        if module.kind == BACKEND:
            found = max(found, module["counters"]()["most_in_flight"])
    return found


OP = KNOWN[0] if KNOWN else ""
OTHER = KNOWN[-1] if KNOWN else ""
DIAMOND = [("a", OP, "x"), ("b", OTHER, "x"), ("c", OTHER, "a"), ("d", OP, "b")]


@support.needs_reals
@needs_unary
@pytest.mark.parametrize(
    ("steps", "results", "expected"),
    [
        ([("a", OP, "x")], "a", ["call"]),
        ([("a", OP, "x"), ("b", OTHER, "a")], "ab", ["call", "call"]),
        ([("a", OP, "x"), ("b", OTHER, "x")], "ab", ["submit", "submit", "wait"]),
        (DIAMOND, "cd", ["submit"] * 4 + ["wait"]),
        # Nothing runs beside the first, so it is called; the others follow it.
        (
            [("a", OP, "x"), ("b", OTHER, "a"), ("c", OP, "a")],
            "bc",
            ["call", "submit", "submit", "wait"],
        ),
        # Work of the host lies between.
        (
            [("a", OP, "x"), ("h", "host", "a"), ("b", OTHER, "h"), ("c", OP, "h")],
            "abc",
            ["call", "submit", "submit", "wait"],
        ),
    ],
)
def test_calls_are_submitted_that_can_overlap(steps, results, expected):
    program = Program(steps, results)
    assert program.calls() == expected
    program.assert_computes(program.compile())


@support.needs_reals
@needs_symbols
@needs_unary
def test_a_symbolic_batch_overlaps():
    program = Program(DIAMOND, "cd", (tirx.Var("n", "int64"), 8))
    assert program.calls() == ["submit"] * 4 + ["wait"]
    executable = program.compile()
    for n in (1, 3, 5):
        program.assert_computes(
            executable, np.linspace(-1, 1, 8 * n, dtype="float32").reshape(n, 8)
        )


@needs_unary
@pytest.mark.parametrize("seed", range(5))
def test_any_graph_of_regions_computes_what_the_host_does(seed):
    generator = np.random.default_rng(seed)
    steps, names = [], ["x"]
    for index in range(16):
        ops = [*KNOWN, *(["host"] if generator.integers(4) == 0 else [])]
        # Prefer recent values, so that memory is reused.
        argument = names[-1 - int(min(generator.integers(4), len(names) - 1))]
        steps.append((f"v{index}", ops[generator.integers(len(ops))], argument))
        names.append(f"v{index}")
    program = Program(steps, names[-3:])
    program.assert_computes(program.compile())


@support.needs_reals
@needs_unary
@can_last
def test_two_requests_are_in_flight_at_once():
    program = Program(DIAMOND, "cd")
    machine = program.assert_computes(program.compile(**LASTING))
    assert most_in_flight(machine) == 2


@needs_unary
def test_a_chain_is_never_in_flight_twice():
    program = Program([("a", OP, "x"), ("b", OTHER, "a"), ("c", OP, "b")], "c")
    machine = program.assert_computes(program.compile())
    assert most_in_flight(machine) == 0


# ---- The functions of the runtime ---------------------------------------------------------------


@pytest.fixture
def region():
    return Region()


def test_submitted_calls_are_done_after_wait_all(region):
    submit = region.module[region.symbol + ".submit"]
    calls = [region.tensors() for _ in range(20)]
    for tensors in calls:
        submit(*tensors)
    WAIT_ALL()
    for tensors in calls:
        region.assert_right(tensors)
    WAIT_ALL()
    if "submissions" in COUNTERS:
        assert region.module["counters"]()["submissions"] == 20


def test_a_call_waits_for_earlier_submissions(region):
    tensors = region.tensors()
    region.module[region.symbol + ".submit"](*tensors)
    region.assert_computes()
    region.assert_right(tensors)


@can_last
def test_calls_that_write_the_same_memory_are_not_in_flight_at_once():
    region = Region(**LASTING)
    submit = region.module[region.symbol + ".submit"]
    tensors = region.tensors()
    for _ in range(3):
        submit(*tensors)
    WAIT_ALL()
    region.assert_right(tensors)
    assert region.module["counters"]()["most_in_flight"] == 1


@can_last
def test_memory_that_is_submitted_stays_alive():
    region = Region(**LASTING)
    submit = region.module[region.symbol + ".submit"]
    outputs = []
    for _ in range(4):
        tensors = region.tensors()
        outputs.append(tensors[len(region.inputs) :])
        submit(*tensors)
        del tensors  # Only the runtime refers to the inputs.
        region.tensors()
    WAIT_ALL()
    for output in outputs:
        region.assert_right([*region.inputs, *output])


@needs_cancellation
@can_last
def test_an_error_is_thrown_when_all_have_ended():
    good = Region()
    bad = Region(**{**LASTING, "pace": 1_000_000}, timeout_ms=20)
    tensors = [good.tensors() for _ in range(3)]
    good.module[good.symbol + ".submit"](*tensors[0])
    bad.module[bad.symbol + ".submit"](*bad.tensors())
    good.module[good.symbol + ".submit"](*tensors[1])
    with pytest.raises(RuntimeError, match="timeout_ms"):
        WAIT_ALL()
    good.assert_right(tensors[0])
    good.assert_right(tensors[1])
    WAIT_ALL()
    good.assert_computes()
    # A refused call also waits for earlier submissions.
    good.module[good.symbol + ".submit"](*tensors[2])
    with pytest.raises(ValueError, match="was called with"):
        good.module[good.symbol + ".submit"]()
    WAIT_ALL()
    good.assert_right(tensors[2])


@needs_cancellation
@can_last
def test_a_failure_is_reported_by_the_next_call_that_needs_the_result():
    bad = Region(**{**LASTING, "pace": 1_000_000}, timeout_ms=20)
    tensors = bad.tensors()
    bad.module[bad.symbol + ".submit"](*tensors)
    with pytest.raises(RuntimeError, match="timeout_ms"):
        bad.module[bad.symbol + ".submit"](*tensors)
    WAIT_ALL()


def test_a_thread_waits_for_its_own_submissions_alone(region):
    def work(_):
        tensors = region.tensors()
        for _ in range(10):
            region.module[region.symbol + ".submit"](*tensors)
        WAIT_ALL()
        region.assert_right(tensors)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


@needs_counters("submissions")
def test_a_thread_that_ends_waits_for_what_it_has_submitted(region):
    tensors = region.tensors()
    thread = threading.Thread(
        target=lambda: region.module[region.symbol + ".submit"](*tensors), daemon=True
    )
    thread.start()
    thread.join()
    # The thread's destructors run shortly after join returns.
    for _ in range(10_000):
        if region.module["counters"]()["submissions"] == 1:
            break
        time.sleep(0.001)
    region.assert_right(tensors)
