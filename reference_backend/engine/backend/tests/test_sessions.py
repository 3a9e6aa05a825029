# SPDX-License-Identifier: Apache-2.0
"""Sessions, which hold the states of a model between its calls."""

import gc
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import rpc
from tvm.runtime.vm import VirtualMachine

import backend
from backend import Report, offload_report
from support import BACKEND, compile_for, partition_for, run_command
from test_deploy import farm  # noqa: F401

torch = pytest.importorskip("torch")

thorough = pytest.mark.thorough
ROWS, WIDTH = 8, 4


class Network(torch.nn.Module):
    """A network of a function of itself and its inputs, with buffers."""

    def __init__(self, forward, **buffers):
        super().__init__()
        self._forward = forward
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *inputs):
        return self._forward(self, *inputs)


def read(forward, *inputs, **buffers):
    program = torch.export.export(Network(forward, **buffers), inputs)
    return backend.from_exported_program(program)


def machine_of(mod):
    return VirtualMachine(compile_for(mod), tvm.cpu())


def attend(network, x, position):
    """Attention of one layer to a cache of rows, into which the new ones are written."""
    network.keys.index_copy_(0, position, x)
    network.values.index_copy_(0, position, x * 2)
    seen = torch.arange(ROWS)[None] <= position[:, None]
    scores = (x @ network.keys.T).masked_fill(~seen, -1e9)
    return torch.softmax(scores, -1) @ network.values


def caches():
    return {name: torch.zeros(ROWS, WIDTH) for name in ("keys", "values")}


def attention(rows=1):
    return read(attend, torch.ones(rows, WIDTH), torch.arange(rows), **caches())


def accumulate(network, x):
    network.total.add_(x)
    return torch.tanh(network.total)


def counting(start=0.0):
    return read(accumulate, torch.ones(3), total=torch.full((3,), start))


@pytest.fixture(scope="module")
def counter():
    return machine_of(counting())


def together(**mods):
    """Put the functions of modules into one."""
    functions = {name: mod["main"].with_attr("global_symbol", name) for name, mod in mods.items()}
    return tvm.IRModule(functions)


def tensor(array, dtype="float32"):
    return tvm.runtime.tensor(np.asarray(array, dtype))


ONES = np.ones(3, "float32")


def add(session, value):
    """Call the counter; return what the session holds afterwards."""
    result = session["main"](tensor(value * ONES))
    np.testing.assert_allclose(result.numpy(), np.tanh(session.read("total")), atol=1e-4)
    return session.read("total")[0]


def opened():
    return tvm_ffi.get_global_func(f"{BACKEND}.session.count")()


# ---- Calls --------------------------------------------------------------------------------------


def test_conversations_in_turn_are_those_apart():
    machine = machine_of(attention())
    generator = np.random.default_rng(0)
    talks = generator.standard_normal((2, ROWS, 1, WIDTH)).astype("float32")

    def step(session, talk, position):
        place = tensor([position], "int64")
        return session["main"](tensor(talks[talk, position]), place).numpy()

    apart = []
    for talk in range(2):
        with backend.Session(machine) as session:
            apart.append([step(session, talk, position) for position in range(ROWS)])
    with backend.Session(machine) as one, backend.Session(machine) as other:
        for position in range(ROWS):
            for talk, session in enumerate((one, other)):
                found = step(session, talk, position)
                np.testing.assert_array_equal(found, apart[talk][position])
        np.testing.assert_array_equal(one.read("keys"), talks[0, :, 0])
    network = Network(attend, **caches())
    for position in range(ROWS):
        wanted = network(torch.from_numpy(talks[0, position]), torch.tensor([position]))
        np.testing.assert_allclose(apart[0][position], wanted.numpy(), atol=1e-4)


def test_a_prompt_and_its_answers_are_functions_of_one_model():
    machine = machine_of(together(prefill=attention(3), decode=attention()))
    x = np.random.default_rng(1).standard_normal((5, WIDTH)).astype("float32")
    network = Network(attend, **caches())
    wanted = network(torch.from_numpy(x), torch.arange(5)).numpy()
    with backend.Session(machine) as prompt:
        found = prompt["prefill"](tensor(x[:3]), tensor([0, 1, 2], "int64")).numpy()
        np.testing.assert_allclose(found, wanted[:3], atol=1e-4)
        answers = [prompt.copy() for _ in range(2)]
    for answer in answers:
        for position in (3, 4):
            place = tensor([position], "int64")
            found = answer["decode"](tensor(x[position : position + 1]), place).numpy()
            np.testing.assert_allclose(found[0], wanted[position], atol=1e-4)


def test_a_report_has_functions_apart_and_what_a_session_keeps():
    mod = together(prefill=attention(ROWS - 1), decode=attention())
    report = offload_report(partition_for(mod))
    assert {it.ops[0].function for it in report.functions} == {"prefill", "decode"}
    assert sum(len(it.ops) for it in report.functions) == len(report.ops)
    kept = dict.fromkeys(("keys", "values"), 4 * ROWS * WIDTH)
    assert report.states == kept
    assert Report.from_json(report.to_json()) == report
    text = str(report)
    assert f"\na session keeps {sum(kept.values())} bytes: 2 states\n" in text
    assert all(
        f"\nfunction {it.ops[0].function}: {it.summary}\n" in text for it in report.functions
    )
    for region in report.regions:
        crossing = {item.state: item.bytes for item in region.inputs if item.state}
        assert crossing.items() <= kept.items()
        assert region.state_bytes_in == sum(crossing.values())
        assert (f"of which states are {region.state_bytes_in}" in text) == bool(crossing)
    if not report.on_host:
        assert [it.state_bytes_in for it in report.regions] == [sum(kept.values())] * 2
        assert [it.state_bytes_out for it in report.regions] == [sum(kept.values())] * 2


def test_the_commands_run_and_profile_functions_of_a_library(tmp_path):
    library = tmp_path / "model.so"
    mod = together(prefill=attention(ROWS - 1), decode=attention())
    compile_for(mod).export_library(str(library))

    code, text, _ = run_command("run", library, "--function", "decode")
    assert (code, f"float32[1, {WIDTH}]" in text) == (0, True), text
    code, text, _ = run_command("profile", library, "--repeat", 1)
    *lines, last = text.splitlines()
    assert (code, last) == (0, f"a session keeps {2 * 4 * ROWS * WIDTH} bytes"), text
    assert sorted(line.partition(":")[0] for line in lines) == ["decode", "prefill"]
    for arguments, why in (
        (("run", library), "has several functions: "),
        (("run", library, "--function", "main"), "has no function 'main'; its functions are: "),
        (("profile", library, "--json"), "--json is of one function"),
    ):
        code, _, text = run_command(*arguments)
        assert (code, why in text) == (1, True), text


def test_reset_copy_read_and_write(counter):
    before = opened()
    with backend.Session(counter) as session:
        assert session.read("total").tolist() == [0, 0, 0]
        assert [add(session, 1), add(session, 2)] == [1, 3]
        copied = session.copy()
        assert [add(session, 1), add(copied, 5)] == [4, 8]
        session.reset()
        assert [add(session, 1), add(copied, 1)] == [1, 9]
        session.write("total", 7 * ONES)
        assert add(session, 1) == 8
        found = session.read("total")
        found[:] = 0
        assert add(session, 1) == 9
        assert opened() == before + 2
        copied.close()
    assert opened() == before
    dropped = backend.Session(counter)
    add(dropped, 1)
    del dropped
    gc.collect()
    assert opened() == before


def test_a_session_shares_no_memory_with_its_caller():
    def forward(network, x):
        before = network.last.clone()
        network.last.copy_(x)
        network.total.add_(x)
        return network.total, before, network.last

    mod = read(forward, torch.ones(3), last=torch.zeros(3), total=torch.zeros(3))
    x = tensor(ONES)
    with backend.Session(machine_of(mod)) as session:
        results = session["main"](x)
        assert [item.numpy().tolist() for item in results] == [[1] * 3, [0] * 3, [1] * 3]
        copied = session.copy()
        for item in (x, *results):
            item.copyfrom(9 * ONES)
        for one in (session, copied):
            assert one.read("last").tolist() == one.read("total").tolist() == [1, 1, 1]
        total, before, last = session["main"](tensor(2 * ONES))
        before.copyfrom(9 * ONES)
        assert (total.numpy()[0], last.numpy()[0]) == (3, 2)
        assert copied.read("last").tolist() == [1, 1, 1]
        session.reset()
        assert session.read("last").tolist() == [0, 0, 0]


def test_threads_have_sessions_of_their_own():
    executable = compile_for(counting())

    def talk(number):
        with backend.Session(VirtualMachine(executable, tvm.cpu())) as session:
            return [add(session, number) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(talk, range(8)))
    assert found == [[number * (count + 1) for count in range(5)] for number in range(8)]


# ---- Errors -------------------------------------------------------------------------------------


def refused(call):
    with pytest.raises(ValueError) as caught:
        call()
    return str(caught.value)


def test_foreign_and_closed_sessions_are_refused(counter):
    other = machine_of(counting(1.0))
    with backend.Session(counter) as session:
        add(session, 1)
        message = refused(lambda: other["main_in_session"](tensor(ONES), session.id))
        assert f"session {session.id} is one of another model; open one with" in message
        # It is as before.
        assert add(session, 1) == 2
        assert "has no state 'sum'; it has 'total'" in refused(lambda: session.read("sum"))
        message = refused(lambda: session.write("total", np.ones(2)))
        assert "the state 'total' is float32[3], compact and in the memory" in message
        assert "this is float64[2]" in message
    message = refused(lambda: session["main"](tensor(ONES)))
    assert f"there is no session {session.id} in this process; it was closed" in message
    assert "a session is an integer" in refused(
        lambda: counter["main_in_session"](tensor(ONES), "1")
    )
    with pytest.raises(ValueError, match="keeps nothing from one call to the next"):
        backend.Session(machine_of(read(lambda network, x: x + 1, torch.ones(3))))


def test_a_session_is_for_one_call_at_a_time(counter):
    machine = machine_of(counting())
    messages = []

    def during(_function, name, before, *_):
        if name == "main" and before and not messages:
            for use in (
                lambda: counter["main_in_session"](tensor(ONES), session.id),
                session.copy,
                session.reset,
                lambda: session.read("total"),
            ):
                messages.append(refused(use))
        return 0

    with backend.Session(machine) as session:
        machine.set_instrument(during)
        assert add(session, 1) == 1
        machine.set_instrument(lambda *_: 0)
        assert len(messages) == 4
        wanted = f"session {session.id} is in use by another call; one call at a time"
        assert all(wanted in message for message in messages)
        assert add(session, 1) == 2


def test_a_function_keeps_its_session_open(counter):
    call = backend.Session(counter)["main"]
    gc.collect()
    for _ in range(2):
        call(tensor(ONES))


def test_a_call_that_fails_marks_its_session(counter):
    machine = machine_of(counting())

    def fail(_function, name, before, *_):
        if name == "main" and before:
            raise RuntimeError("no power")
        return 0

    with backend.Session(machine) as session, backend.Session(machine) as other:
        add(session, 1)
        machine.set_instrument(fail)
        with pytest.raises(RuntimeError, match="no power"):
            session["main"](tensor(ONES))
        machine.set_instrument(lambda *_: 0)
        for use in (lambda: session["main"](tensor(ONES)), session.copy):
            assert "failed or timed out, so its states are not known; reset it" in refused(use)
        assert add(other, 1) == 1
        session.reset()
        assert add(session, 1) == 1
        # What the function refuses before it begins is no failure.
        takes = "'main' takes "
        shape = re.escape(f"R.Tensor({ONES.shape}, dtype=\"float32\") as 'inputs_0': ")
        for given, sentence in (
            (
                [np.ones((2, 1), "float32")],
                f"{shape}it expects Tensor with ndim 1, and 2 was given",
            ),
            ([np.ones(2, "float32")], f"{shape}one of its axes has another size"),
            ([np.ones(ONES.shape, "int64")], f"{shape}it expects .* float32, and int64 was given"),
            ([], "1 input, not 0: inputs_0"),
            ([ONES, ONES], "1 input, not 2: inputs_0"),
        ):
            with pytest.raises(ValueError, match=takes + sentence):
                session["main"](*map(tvm.runtime.tensor, given))
        assert add(session, 1) == 2


# ---- Capacity -----------------------------------------------------------------------------------


def copied(network, x, place):
    network.cache.index_copy_(0, place, x)


def put(network, x, place):
    network.cache[place] = x


def compared(network, x, place):
    at = torch.arange(ROWS)[:, None] == place
    network.cache.copy_(torch.where(at, x, network.cache))


def scattered(network, x, place):
    network.cache.scatter_(0, place[:, None].expand(x.shape), x)


def counted(network, x, place):
    """As transformers does: it counts from a state, which the call sets."""
    network.count.copy_(place[0])
    rows = torch.arange(x.shape[0]) + network.count
    network.count.add_(x.shape[0])
    network.cache.index_copy_(0, rows, x)


@pytest.mark.parametrize(
    ("write", "rows"),
    [(copied, 1), (copied, 3), (put, 3), (compared, 1), (scattered, 3), (counted, 3)],
)
def test_a_call_behind_the_end_of_a_state_is_refused_before_it(write, rows):
    buffers = {"cache": torch.zeros(ROWS, WIDTH)}
    if write is counted:
        buffers["count"] = torch.tensor(0)

    def forward(network, x, place):
        write(network, x, place)
        return network.cache * 1.0

    places = torch.arange(rows)
    machine = machine_of(read(forward, torch.ones(rows, WIDTH), places, **buffers))
    last = np.arange(ROWS - rows, ROWS)
    x = np.arange(1, rows * WIDTH + 1, dtype="float32").reshape(rows, WIDTH)
    wanted = np.zeros((ROWS, WIDTH), "float32")
    wanted[last] = x
    with backend.Session(machine) as session:
        found = session["main"](tensor(x), tensor(last, "int64")).numpy()
        np.testing.assert_array_equal(found, wanted)
        message = refused(lambda: session["main"](tensor(x), tensor(last + 1, "int64")))
        source = (last + 1)[0 if write is counted else -1]
        assert (
            f"session {session.id}: the call would write to position {ROWS} of the state 'cache', "
            f"since 'inputs_1' is {source}; the state has {ROWS} positions, from 0." in message
        )
        # PyTorch refuses -1 in these, and takes it as the last place, or as none, in others.
        last_ones = [-1] if write in (copied, scattered) else []
        for number in (*last_ones, -2 * ROWS, 2**63 - 1, -(2**63)):
            places = tensor(np.full(rows, number), "int64")
            assert f"since 'inputs_1' is {number}" in refused(
                lambda places=places: session["main"](tensor(x), places)
            )
        np.testing.assert_array_equal(session.read("cache"), wanted)
        session["main"](tensor(x), tensor(last, "int64"))


@pytest.mark.parametrize(
    ("table", "value", "place"),
    [(range(1, ROWS + 1), ROWS, ROWS - 1), (range(100, 100 + ROWS), 101, 1), ([3] * ROWS, 3, 0)],
)
def test_a_comparison_with_other_numbers_than_places_has_no_end(table, value, place):
    table = torch.tensor([*table])[:, None]

    def forward(network, x, position):
        network.cache.copy_(torch.where(table == position, x, network.cache))
        return network.cache * 1.0

    given = torch.ones(1, WIDTH), torch.tensor([0])
    machine = machine_of(read(forward, *given, cache=torch.zeros(ROWS, WIDTH)))
    with backend.Session(machine) as session:
        found = session["main"](tensor(np.ones((1, WIDTH))), tensor([value], "int64")).numpy()
    assert found[place].tolist() == [1] * WIDTH


def test_the_position_may_be_a_state():
    def forward(network, x):
        place = network.count.view(1)
        network.cache.index_copy_(0, place, x)
        network.count.add_(1)
        return network.cache.sum(0)

    buffers = {"cache": torch.zeros(3, WIDTH), "count": torch.tensor(0)}
    machine = machine_of(read(forward, torch.ones(1, WIDTH), **buffers))
    with backend.Session(machine) as session:
        for count in (1, 2, 3):
            assert session["main"](tensor(np.ones((1, WIDTH)))).numpy()[0] == count
        message = refused(lambda: session["main"](tensor(np.ones((1, WIDTH)))))
        assert "position 3 of the state 'cache', since 'count' is 3; the state has 3" in message
        session.reset()
        assert session["main"](tensor(np.ones((1, WIDTH)))).numpy()[0] == 1


def test_a_ring_has_no_end():
    def forward(network, x, place):
        network.ring.index_copy_(0, place % ROWS, x)
        return network.ring * 1.0

    ring = torch.zeros(ROWS, WIDTH)
    machine = machine_of(read(forward, torch.ones(1, WIDTH), torch.tensor([0]), ring=ring))
    with backend.Session(machine) as session:
        found = session["main"](tensor(np.ones((1, WIDTH))), tensor([ROWS + 2], "int64")).numpy()
    assert found[2].tolist() == [1] * WIDTH and found.sum() == WIDTH


def test_functions_of_one_model_agree_about_a_state():
    mod = together(one=counting(), other=counting(1.0))
    message = refused(lambda: partition_for(mod))
    assert "share the state 'total', but its type or its initial value in 'other'" in message


# ---- Elsewhere ----------------------------------------------------------------------------------


def overwrite(network, x):
    network.memory.copy_(x)
    return x * 1.0


def change(network, x):
    network.memory.add_(x)
    return x * 1.0


@pytest.mark.parametrize("write", [overwrite, change])
def test_a_function_that_only_reads_what_another_changes_is_refused(write):
    def remember(network, x):
        return x + network.memory

    memory = torch.zeros(3)
    mods = {
        name: read(forward, torch.ones(3), memory=memory)
        for name, forward in (("write", write), ("read", remember))
    }
    with pytest.raises(ValueError, match="The function 'read' reads the buffer 'memory', which"):
        partition_for(together(**mods))
    # Alone, and beside functions that leave it, it is a constant.
    partition_for(together(read=mods["read"], same=mods["read"]))
    partition_for(mods["write"])


def test_a_function_that_replaces_the_state_of_another_unread_is_refused():
    memory = torch.zeros(3)
    mods = {
        name: read(forward, torch.ones(3), memory=memory)
        for name, forward in (("set", overwrite), ("count", change))
    }
    sentence = "'set' replaces the buffer 'memory' without reading it, so that 'count', which"
    with pytest.raises(ValueError, match=sentence):
        partition_for(together(**mods))
    # What no function reads is nobody's state.
    partition_for(together(set=mods["set"], same=mods["set"]))


def test_a_function_without_states_is_not_called_in_a_session(counter):
    sentence = "has no function 'other' with states"
    with backend.Session(counter) as session, pytest.raises(ValueError, match=sentence):
        session["other"]


def test_only_functions_of_machines_have_states(counter):
    with pytest.raises(
        ValueError, match=r"has no function 'typo'; functions with states are: main"
    ):
        backend.states(counter, "typo")
    compiled = compile_for(read(lambda network, x: x + 1, torch.ones(3)))
    for take in (backend.states, backend.Session, backend.Conversation):
        with pytest.raises(TypeError, match=r"A machine is needed, and this is \w+: pass tvm.run"):
            take(compiled)
    assert backend.states(VirtualMachine(compiled, tvm.cpu())) == ()


def test_models_without_states_have_no_functions_for_them():
    mod = partition_for(read(lambda network, x: x + 1, torch.ones(3)))
    assert not [name for name in mod.functions if "session" in str(name.name_hint)]


@thorough
def test_sessions_over_rpc(farm, tmp_path):  # noqa: F811
    path = tmp_path / "model.so"
    compile_for(counting()).export_library(str(path))
    remote = rpc.connect_tracker(*farm).request(BACKEND, session_timeout=60)
    remote.upload(str(path))
    machine = VirtualMachine(remote.load_module(path.name), remote.cpu())
    x = tvm.runtime.tensor(ONES, remote.cpu())
    with backend.Session(machine) as session:
        for count in (1, 2, 3):
            found = session["main"](x).numpy()
            np.testing.assert_allclose(found, np.tanh(count * ONES), atol=1e-4)
        copied = session.copy()
        session.reset()
        assert (session.read("total")[0], copied.read("total")[0]) == (0, 3)
        session.write("total", 5 * ONES)
        session["main"](x)
        assert session.read("total").tolist() == [6, 6, 6]
        with pytest.raises(Exception, match="has no state 'sum'"):
            session.read("sum")
    path = tmp_path / "attention.so"
    compile_for(attention()).export_library(str(path))
    remote.upload(str(path))
    machine = VirtualMachine(remote.load_module(path.name), remote.cpu())
    x = tvm.runtime.tensor(np.ones((1, WIDTH), "float32"), remote.cpu())
    with backend.Session(machine) as session:
        for place in (ROWS - 1, ROWS, ROWS - 2):
            call = (x, tvm.runtime.tensor(np.array([place]), remote.cpu()))
            if place < ROWS:
                session["main"](*call)
                continue
            with pytest.raises(Exception, match="position 8 of the state 'keys', since 'inputs_1'"):
                session["main"](*call)
