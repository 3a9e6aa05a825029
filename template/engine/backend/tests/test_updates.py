# SPDX-License-Identifier: Apache-2.0
"""Caches of which a call replaces rows: in place in sessions, and the same values elsewhere."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.runtime.vm import VirtualMachine

import backend
import narrow_table
import support
from backend.engine.backend.ir.updates import emit_update
from backend.engine.backend.libraries.asking import Answer
from backend.engine.backend.regions import composites
from backend.engine.backend.settings.options import PREFIX
from backend.engine.backend.table.patterns import TABLE
from backend.engine.backend.table.table import Table
from backend.engine.workbench.conformance.contract import fail_next
from support import compile_for
from test_memory_sizes import counters

torch = pytest.importorskip("torch")

# Not imported, because some selections of ops skip every test that uses it.
needs = support.needs
ROWS, WIDTH = 64, 32
BYTES = 4 * ROWS * WIDTH


class Attention(torch.nn.Module):
    """Attention to a cache, into which new rows are written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, ROWS, WIDTH))
        self.register_buffer("values", torch.zeros(1, ROWS, WIDTH))

    def forward(self, x, rows):
        self.keys.index_copy_(1, rows, x)
        self.values[:, rows] = x * 2
        return (x @ self.keys.transpose(-1, -2)) @ self.values


class Decaying(Attention):
    """Caches of which a call replaces all."""

    def forward(self, x, rows):
        self.keys.copy_(self.keys * 0.5 + x)
        self.values.copy_(self.values * 0.5 - x)
        return x @ torch.ones(WIDTH, WIDTH)


def attention(rows, network=None):
    example = (torch.ones(1, rows, WIDTH), torch.arange(rows))
    exported = torch.export.export(network or Attention(), example)
    return backend.from_exported_program(exported)


def machine_of(mod, **options):
    return VirtualMachine(compile_for(mod, **options), tvm.cpu())


def tensors(x, rows):
    return [tvm.runtime.tensor(np.asarray(item)) for item in (x, np.asarray(rows, "int64"))]


def numbers(rows, seed):
    return np.random.default_rng(seed).standard_normal((1, rows, WIDTH)).astype("float32")


def written(machine):
    return counters(machine)["dram_bytes_written"]


@pytest.mark.parametrize("rows", [1, 3])
def test_sessions_update_what_functions_return(rows):
    """Bit for bit, in turn, and after copies and writes, which share memory until a call."""
    machine = machine_of(attention(rows))
    states = [np.zeros((1, ROWS, WIDTH), "float32")] * 2

    def call(states, seed, at):
        arguments = tensors(numbers(rows, seed), np.arange(at, at + rows))
        with_states = [tvm.runtime.tensor(state) for state in states]
        result, *after = (item.numpy() for item in machine["main"](*arguments, *with_states))
        for state, argument in zip(states, with_states, strict=True):
            np.testing.assert_array_equal(argument.numpy(), state)
        return arguments, result, after

    def check(session, states, seed, at):
        arguments, wanted, after = call(states, seed, at)
        np.testing.assert_array_equal(session["main"](*arguments).numpy(), wanted)
        for name, state in zip(("keys", "values"), after, strict=True):
            np.testing.assert_array_equal(session.read(name), state)
        return after

    with backend.Session(machine) as one, backend.Session(machine) as other:
        first = check(one, states, 0, 2)
        second = check(other, states, 1, 5)
        shared = one.copy()
        first = check(one, first, 2, ROWS - rows)
        np.testing.assert_array_equal(check(shared, check(shared, states, 0, 2), 3, 4)[0][0, 0], 0)
        again = one.copy()
        one.reset()
        check(one, states, 4, 0)
        check(again, first, 5, 1)
        keys = numbers(ROWS, 6)
        other.write("keys", keys)
        check(other, [keys, second[1]], 7, 9)
        shared.close()
        again.close()


def test_the_last_of_equal_rows_stays_and_rows_outside_are_left_out():
    machine = machine_of(attention(4))
    x, before = numbers(4, 0), numbers(ROWS, 1)
    states = [tvm.runtime.tensor(before) for _ in range(2)]
    _, keys, _ = machine["main"](*tensors(x, [5, ROWS + 3, -1, 5]), *states)
    wanted = before.copy()
    wanted[0, 5] = x[0, 3]
    np.testing.assert_array_equal(keys.numpy(), wanted)


@needs(
    *("equal", "where", "matmul", "reshape", "max", "take", "less", "add", "multiply"),
    *("permute_dims", "broadcast_to", "state_update"),
)
@support.needs_emulator
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bind_constants", [True, False])
def test_the_emulator_writes_only_the_rows(rows, bind_constants, monkeypatch):
    monkeypatch.delenv(f"{PREFIX}BIND_CONSTANTS", raising=False)
    mod = attention(rows)
    support.skip_where_limited(mod)
    machine = machine_of(mod, bind_constants=bind_constants)
    arguments = tensors(numbers(rows, 0), range(rows))
    with backend.Session(machine) as session:
        before = written(machine)
        session["main"](*arguments)
        in_place = written(machine) - before
    # The rows of both caches, the result, and intermediates of a few rows.
    assert 3 * BYTES // ROWS * rows <= in_place < BYTES // 2
    before = written(machine)
    states = [tvm.runtime.tensor(np.array(it.initial)) for it in backend.states(machine)]
    machine["main"](*arguments, *states)
    assert written(machine) - before == in_place + 2 * BYTES


@needs(
    *("equal", "where", "matmul", "reshape", "add", "subtract", "multiply", "permute_dims"),
    "state_update",
)
@support.needs_emulator
@pytest.mark.parametrize("network", [Attention, Decaying])
def test_states_stay_in_the_memory_of_the_device(network):
    """Whether a region updates them where they are, or replaces them."""
    mod = attention(1, network())
    support.skip_where_limited(mod)
    machine = machine_of(mod)
    session, other = backend.Session(machine), backend.Session(machine)

    def call(at, session=session):
        return session["main"](*tensors(numbers(1, at), [at])).numpy()

    with session, other:
        call(0)
        kept = session.read("keys")
        call(0, other)
        for function in ("allocate_state", "write_state", "read_state"):
            fail_next(function, "device_error")
        wanted = call(1)
        with pytest.raises(RuntimeError, match="asked to fail at the next read_state"):
            session.read("keys")
        fail_next("read_state", "device_error")
        with pytest.raises(RuntimeError, match="asked to fail at the next read_state"):
            session.read("keys")
        for function in ("allocate_state", "write_state"):
            fail_next(function, "device_error", 0)
        # A copy shares the memory until one of both writes.
        with other.copy() as again:
            fail_next("allocate_state", "out_of_memory")
            with pytest.raises(RuntimeError, match="allocating 8192 bytes for a state"):
                call(1, again)
            with pytest.raises(ValueError, match="reset it"):
                call(1, again)
            np.testing.assert_array_equal(other.read("keys"), kept)
            again.reset()
            # A state that the device has no place for stays on the host.
            fail_next("allocate_state", "declined", 100)
            call(0, again)
            np.testing.assert_array_equal(call(1, again), wanted)
            fail_next("allocate_state", "declined", 0)
            fail_next("write_state", "device_error")
            with pytest.raises(RuntimeError, match="asked to fail at the next write_state"):
                call(2, again)
        np.testing.assert_array_equal(call(1, other), wanted)


@needs(
    *("equal", "where", "matmul", "reshape", "add", "subtract", "multiply", "permute_dims"),
    "state_update",
)
@support.needs_emulator
def test_a_session_moves_between_devices(tmp_path):
    """Also where one function updates a state, and another replaces it."""
    functions = {
        name: attention(1, network())["main"].with_attr("global_symbol", name)
        for name, network in (("update", Attention), ("replace", Decaying))
    }
    mod = tvm.IRModule(functions)
    support.skip_where_limited(mod)
    library = tmp_path / "model.so"
    compile_for(mod).export_library(str(library))

    def load(device):
        tvm_ffi.get_global_func(f"{support.BACKEND}.runtime.set_device")(device)
        return VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

    with ThreadPoolExecutor(1) as apart:
        machines = [apart.submit(load, device).result() for device in (0, 1)]
    states = [np.zeros((1, ROWS, WIDTH), "float32")] * 2
    with backend.Session(machines[0]) as session:
        steps = [(0, "replace"), (1, "update"), (1, "replace"), (0, "replace"), (0, "update")]
        for at, (device, name) in enumerate(steps):
            arguments = tensors(numbers(1, at), [at])
            wanted = machines[0][name](*arguments, *map(tvm.runtime.tensor, states))
            result, *states = (item.numpy() for item in wanted)
            given = machines[device][f"{name}_in_session"](*arguments, session.id)
            np.testing.assert_array_equal(given.numpy(), result)
        for name, state in zip(("keys", "values"), states, strict=True):
            np.testing.assert_array_equal(session.read(name), state)


@needs("matmul", "permute_dims", "state_update")
@support.needs_emulator
def test_regions_of_a_library_have_the_names_of_states(tmp_path):
    mod = attention(1)
    support.skip_where_limited(mod)
    library = tmp_path / "model.so"
    compile_for(mod).export_library(str(library))
    regions = {it.symbol: it for it in backend.offload_report(support.partition_for(mod)).regions}
    found = set()
    for artifact in backend.read_artifacts(library):
        region = regions[artifact.symbol]
        named = {
            (item.state, end, place)
            for end, items in (("input", region.inputs), ("output", region.outputs))
            for place, item in enumerate(items)
            if item.state
        }
        states = artifact.manifest.get("states", {})
        ends = {(name, *end) for name, both in states.items() for end in both.items()}
        assert ends == named
        found |= {(name, end) for name, end, _ in ends}
    assert found == {(name, end) for name in ("keys", "values") for end in ("input", "output")}
    listed = " ".join(support.run_command("inspect", library)[1].split())
    assert re.search(r'states keys={"input": \d, "output": \d} values={"input": \d', listed)


class Read(Attention):
    """A cache that is read as it was, and another whose new value is a result too."""

    def forward(self, x, rows):
        last = self.keys[:, -1:] * 1.0
        self.keys.index_copy_(1, rows, x)
        self.values.index_copy_(1, rows, x)
        return last, self.values


def test_what_else_reads_a_state_sees_its_value():
    machine = machine_of(attention(1, Read()))
    x = numbers(1, 0)
    with backend.Session(machine) as session:
        last, values = session["main"](*tensors(x, [ROWS - 1]))
        assert not last.numpy().any()
        last, again = session["main"](*tensors(2 * x, [0]))
        np.testing.assert_array_equal(last.numpy(), x)
        np.testing.assert_array_equal(values.numpy()[0, [0, -1]], [np.zeros(WIDTH), x[0, 0]])
        np.testing.assert_array_equal(again.numpy()[0, [0, -1]], [2 * x[0, 0], x[0, 0]])
        np.testing.assert_array_equal(session.read("keys"), again.numpy())


class Layers(torch.nn.Module):
    """Two caches, and an op in between that some drivers lack."""

    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.zeros(1, ROWS, WIDTH))
        self.register_buffer("two", torch.zeros(1, ROWS, WIDTH))

    def forward(self, x, rows):
        self.one.index_copy_(1, rows, x)
        x = torch.erf(self.one[:, :1] + x)
        self.two.index_copy_(1, rows, x)
        return x, self.two.sum(1)


class Shared(Layers):
    """Both caches have one mask."""

    def forward(self, x, rows):
        mask = torch.arange(ROWS).reshape(1, ROWS, 1) == rows
        self.one.copy_(torch.where(mask, x, self.one))
        x = torch.erf(self.one[:, :1] * 2 + x * 3)
        self.two.copy_(torch.where(mask, x, self.two))
        return x, self.two.sum(1)


class Shown(Layers):
    """The mask is a result as well."""

    def forward(self, x, rows):
        mask = torch.arange(ROWS).reshape(1, ROWS, 1) == rows
        self.one.copy_(torch.where(mask, x, self.one))
        self.two.copy_(torch.where(mask, x * 2, self.two))
        return self.one + self.two, mask


class Computed(Shown):
    """The positions are computed, and what else reads the mask is a region of its own."""

    def forward(self, x, rows):
        both, mask = super().forward(x, torch.maximum(rows, rows * 2))
        return both, (~mask).to(torch.float32).sum(1) @ torch.ones(1, 1)


class Crossed(Layers):
    """The mask of an update is a part of another selection."""

    def forward(self, x, rows):
        mask = torch.arange(ROWS).reshape(1, ROWS, 1) == rows
        self.one.copy_(torch.where(mask, x, self.one))
        self.two.copy_(torch.where(torch.where(mask, x, self.two) == 0, x, self.two))
        return self.one + self.two


class Selected(Layers):
    """Selections that update nothing."""

    def forward(self, x, rows):
        self.one.add_(torch.where(x == 0, 1.0, x).sum(1, keepdim=True))
        self.two.copy_(torch.where(torch.arange(WIDTH) == rows[0], self.two, 2.0))
        return self.one + self.two


def labels_of(function):
    """Return what the composites of a region, or the composite itself, are called."""
    functions = [function]
    functions += [
        binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Function)
    ]
    names = (str((it.attrs or {}).get("Composite", "")) for it in functions)
    return {name.split(".")[-1] for name in names if name}


@pytest.fixture
def declining(monkeypatch, bound_constants):
    """Let the driver decline composites by their labels, and regions with some in them."""

    def begin(*labels, regions_with=()):
        ask = composites.Target.ask_driver

        def decline(target, function, bounds, finish):
            found = labels_of(function)
            if found & {*labels} or (finish and found & {*regions_with}):
                return Answer("the chip has no such op")
            return ask(target, function, bounds, finish)

        monkeypatch.setattr(composites.Target, "ask_driver", decline)

    return begin


def assert_right(network, rows, **options):
    """Compare a model with torch, and return its report."""
    x, states = numbers(rows, 0), [numbers(ROWS, seed) for seed in (1, 2)]
    mod = attention(rows, network)
    for name, state in zip(("one", "two"), states, strict=True):
        getattr(network, name).copy_(torch.from_numpy(state))
    results = network(torch.from_numpy(x), torch.arange(rows))
    results = results if isinstance(results, tuple) else (results,)
    expected = [item.numpy() for item in (*results, network.one, network.two)]
    support.skip_where_limited(mod)
    found = machine_of(mod, **options)["main"](
        *tensors(x, range(rows)), *map(tvm.runtime.tensor, states)
    )
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), right, rtol=1e-4, atol=1e-4)
    report = backend.offload_report(support.partition_for(mod, **options))
    assert len({(op.name, op.op) for op in report.ops}) == len(report.ops), report
    return report


def names_of(ops):
    return {op.op.removeprefix("relax.") for op in ops}


SPELLING = {"equal", "less", "where", "max", "take"}
whole = needs(
    *(*SPELLING, "multiply", "add", "reshape", "erf", "strided_slice", "sum", "broadcast_to"),
    "state_update",
)


@whole
@support.needs_emulator
@pytest.mark.parametrize(("network", "rows"), [(Layers, 1), (Layers, 3), (Shared, 1)])
@pytest.mark.parametrize("lacks", ["", "erf"])
def test_updates_need_none_of_the_ops_that_spell_them(network, rows, lacks, declining):
    """Also where two regions share the mask, with the host in between."""
    declining(*SPELLING, lacks)
    report = assert_right(network(), rows)
    assert names_of(report.on_host) == {lacks} - {""}
    updates = [op for op in report.ops if op.composite == "state_update"]
    spelled = {*SPELLING} if rows > 1 else {"equal", "where"}
    assert names_of(updates) == spelled | ({"reshape"} if network is Layers else set())
    assert len({op.region for op in updates}) == (2 if lacks else 1)


@whole
@support.needs_emulator
@pytest.mark.parametrize(
    ("network", "on_host"), [(Shown, {"equal"}), (Crossed, {"equal", "where"}), (Selected, None)]
)
def test_what_else_reads_the_mask_has_it(network, on_host, declining):
    declining("equal")
    report = assert_right(network(), 1)
    if on_host is None:
        assert all(op.composite != "state_update" for op in report.ops)
        return
    assert names_of(report.on_host) <= on_host
    assert "equal" in names_of(report.on_host)
    assert any(op.composite == "state_update" for op in report.ops)


@whole
@support.needs_emulator
@pytest.mark.parametrize(
    ("network", "rows", "options", "updates"),
    [
        (Layers, 3, {"max_regions": 1}, 1),
        (Layers, 3, {"min_region_ops": 99}, 0),
        (Layers, 3, {"keep_on_host": ["where"]}, 0),
        (Shared, 1, {"max_regions": 1}, 1),
        # The mask that both have is computed once, on the host.
        (Shared, 1, {"min_region_ops": 4}, 1),
        (Shared, 1, {"min_region_ops": 99}, 0),
        (Shown, 1, {"min_region_ops": 99}, 0),
        (Crossed, 1, {"min_region_ops": 99}, 0),
        (Computed, 1, {"min_region_ops": 99}, 0),
    ],
)
def test_updates_go_back_to_the_host(network, rows, options, updates, declining):
    declining(*SPELLING, "erf")
    report = assert_right(network(), rows, **options)
    assert {"where", "equal"} <= names_of(report.on_host), report
    assert len({op.region for op in report.ops if op.composite == "state_update"}) == updates


@whole
@support.needs_emulator
@pytest.mark.parametrize("most", [1, 2])
def test_a_mask_is_there_where_the_rest_of_its_readers_are_on_the_npu(most, declining):
    declining("where")
    report = assert_right(Computed(), 1, max_regions=most)
    assert report.regions and len(report.regions) <= most


@whole
@support.needs_emulator
def test_a_selection_stays_where_an_update_alone_is_declined(declining):
    declining("equal", regions_with=["state_update"])
    report = assert_right(Layers(), 1, merge_regions=False)
    assert "where" in names_of(report.offloaded)
    assert names_of(report.on_host) == {"equal"}


@whole
@support.needs_emulator
@pytest.mark.parametrize("rows", [1, 3])
def test_a_region_that_is_declined_has_the_ops_again(rows, declining):
    declining("equal", regions_with=["state_update"])
    report = assert_right(Layers(), rows)
    assert {"equal"} <= names_of(report.on_host) <= {"equal", "where", "take", "less", "reshape"}
    assert all(op.composite != "state_update" for op in report.ops)
    assert "where" in names_of(report.offloaded)


@pytest.fixture
def updates_of(monkeypatch):
    """Let the table have updates of one element type, or none, and lack other ops."""

    def edit(dtype, lacks=()):
        entry = TABLE.get("state_update")
        data = replace(entry.inputs[0], dtypes=(dtype,))
        narrower = [replace(entry, inputs=(data, *entry.inputs[1:]))] if dtype else []
        kept = [op for op in TABLE.ops if op.name not in ("state_update", *lacks)]
        narrow_table.put(monkeypatch, Table([*kept, *narrower], chip=TABLE.chip))

    return edit


@whole
@support.needs_emulator
@pytest.mark.parametrize("dtype", ["", "float16"])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_ops_run_alone_where_the_table_has_no_such_update(rows, dtype, updates_of):
    """Then no state is updated in place, whatever the driver takes."""
    updates_of(dtype)
    report = assert_right(Layers(), rows)
    assert not report.on_host
    assert all(op.composite != "state_update" for op in report.ops)
    machine = machine_of(attention(rows, Layers()))
    with backend.Session(machine) as session:
        before = written(machine)
        session["main"](*tensors(numbers(rows, 0), range(rows)))
        assert written(machine) - before >= 2 * BYTES


@whole
@support.needs_emulator
@pytest.mark.parametrize("rows", [1, 3])
def test_an_update_needs_no_other_entry(rows, updates_of):
    updates_of("float32", lacks=SPELLING)
    assert not assert_right(Layers(), rows).on_host


@whole
@support.needs_emulator
@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        ("float16", "state_update: 'data' is float32; supported: float16"),
        ("float32", "declines state_update: the chip has no such op"),
    ],
)
def test_the_report_tells_why_an_update_is_none(dtype, why, updates_of, declining):
    updates_of(dtype, lacks=SPELLING)
    declining("state_update")
    report = assert_right(Layers(), 3)
    assert sum(why in op.reason for op in report.on_host if op.op == "relax.where") == 2, [
        op.reason for op in report.on_host
    ]


@whole
@support.needs_emulator
def test_an_update_is_in_the_region_of_what_else_reads_its_mask(bound_constants):
    report = assert_right(Shown(), 1, min_region_ops=3)
    assert not report.on_host
    assert len({op.region for op in report.ops}) == 1


class Masked(Layers):
    """Masks that get their shape after the comparison, and a state without other axes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(ROWS))

    def forward(self, x, rows):
        mask = (torch.arange(ROWS) == rows)[:, None]
        self.one.copy_(torch.where(mask, x, self.one))
        self.two.copy_(torch.where(mask[None], x, self.two))
        self.seen.index_copy_(0, rows[0], x.sum())
        return self.one + self.two + self.seen[:, None]


@whole
@needs("expand_dims", "squeeze")
@support.needs_emulator
def test_updates_are_found_where_shapes_change_behind_the_comparison(bound_constants):
    mod = attention(1, Masked())
    report = backend.offload_report(support.partition_for(mod))
    selections = [op for op in report.ops if op.op == "relax.where" and op.region]
    assert sum(op.composite == "state_update" for op in selections) == 3
    x, states = numbers(1, 0), [numbers(ROWS, 1), numbers(ROWS, 2), numbers(ROWS, 3)[0, :, 0]]
    arguments = [*tensors(x, [7]), *map(tvm.runtime.tensor, states)]
    _, *found = (item.numpy() for item in machine_of(mod)["main"](*arguments))
    for state, row in zip(states, (x[0, 0], x[0, 0], x.sum()), strict=True):
        (state[0] if state.ndim == 3 else state)[7] = row
    for mine, right in zip(found, states, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5)


@whole
@support.needs_emulator
def test_a_shape_that_is_kept_on_the_host_keeps_no_update_there(bound_constants):
    report = assert_right(Layers(), 1, keep_on_host=["reshape"])
    updates = [op for op in report.ops if op.composite == "state_update"]
    assert names_of(updates) == {"equal", "where"}


def model_of(sizes, emit_last, constant=None):
    """Return a model: (data, value, positions) -> what `emit_last` selects."""
    builder = relax.BlockBuilder()
    names = ("data", "value", "positions")
    arguments = [
        relax.Var(name, relax.TensorType(shape, "int64" if name == "positions" else "float32"))
        for name, shape in zip(names, sizes, strict=True)
    ]
    given = [relax.const(constant), *arguments[1:]] if constant is not None else arguments
    with builder.function("main", arguments if constant is None else arguments[1:]):
        with builder.dataflow():
            result = builder.emit_output(emit_last(builder.emit, *given))
        builder.emit_func_output(result)
    return builder.get()


@whole
@support.needs_emulator
def test_rows_along_an_axis_that_values_count_in_another_way_are_no_update(bound_constants):
    """The axis of `take` is one of the value, which lacks the first axis of the data."""

    def emit_last(emit, data, value, positions):
        op, const = relax.op, relax.const
        rows = const(np.arange(4).reshape(4, 1), "int64")
        is_it = emit(op.equal(rows, emit(op.reshape(positions, (1, 4)))))
        order = const(np.arange(4), "int64")
        last = emit(op.max(emit(op.where(is_it, order, const(-1, "int64"))), axis=[1]))
        chosen = emit(op.take(value, last, axis=1, mode="clip"))
        is_kept = emit(op.less(last, const(0, "int64")))
        return op.where(emit(op.reshape(is_kept, (1, 4, 1))), data, chosen)

    mod = model_of([(1, 4, 4), (4, 4), (4,)], emit_last)
    data, value = (numbers(4, seed)[:, :, :4] for seed in (0, 1))
    given = [data, value[0], np.array([2, 0, 7, 1])]
    found = machine_of(mod)["main"](*map(tvm.runtime.tensor, given)).numpy()
    last = np.array([1, 3, 0, -1])
    wanted = np.where((last < 0).reshape(1, 4, 1), data, value[:, :, np.clip(last, 0, 3)])
    np.testing.assert_array_equal(found, wanted)


@whole
@support.needs_emulator
@pytest.mark.parametrize(("bind_constants", "inputs"), [(True, 2), (False, 3)])
def test_only_the_numbers_that_spell_an_update_are_always_in_the_program(
    bind_constants, inputs, monkeypatch
):
    monkeypatch.delenv(f"{PREFIX}BIND_CONSTANTS", raising=False)

    def emit_last(emit, data, value, positions):
        return emit_update(emit, data, value, positions, 1)

    table = numbers(ROWS, 0)
    mod = model_of([(1, ROWS, WIDTH), (1, 1, WIDTH), (1,)], emit_last, constant=table)
    partitioned = support.partition_for(mod, bind_constants=bind_constants)
    (region,) = (it for it in partitioned.functions.values() if it.attrs and "Codegen" in it.attrs)
    assert len(region.params) == inputs
    report = backend.offload_report(partitioned)
    assert {op.composite for op in report.ops} == {"state_update"}
    x = numbers(1, 1)
    arguments = map(tvm.runtime.tensor, (x, np.array([5])))
    found = machine_of(mod, bind_constants=bind_constants)["main"](*arguments).numpy()
    table[:, 5] = x[:, 0]
    np.testing.assert_array_equal(found, table)


@whole
@support.needs_emulator
def test_a_call_that_times_out_marks_its_session():
    machine = machine_of(attention(1), timeout_ms=30, pace=1_000_000)
    with backend.Session(machine) as session:
        given = tensors(numbers(1, 0), [3])
        with pytest.raises(RuntimeError, match="30 ms"):
            session["main"](*given)
        for use in (lambda: session["main"](*given), lambda: session.read("keys")):
            with pytest.raises(ValueError, match="failed or timed out, so its states are not know"):
                use()
        session.reset()
        assert not session.read("keys").any()
