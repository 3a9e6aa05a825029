# SPDX-License-Identifier: Apache-2.0
"""The suite of states: what a session keeps from one call of a model to the next.

A small decoder, with a cache of keys and values, takes a prompt of a few rows, or one row. NumPy
says what it must return; what is kept must be right bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property

import numpy as np
import tvm
from tvm import relax

from ...backend.api import (
    Array,
    Position,
    Session,
    call_entry,
    compile_partitioned,
    declare,
    offload_report,
    partition_for,
)
from ...capability import Op
from .compiled import options_of
from .contract import Wrong, _expect, _expect_close, fail_next
from .outcomes import Outcome
from .suite import NotRun, Settings
from .workers import Announce

SUITE = "states"

CAPACITY, WIDTH = 8, 64
"""How many rows the cache has room for, and their size."""
PROMPT = 3
FUNCTIONS = {"prompt": PROMPT, "token": 1}
"""The functions of the decoder, and how many rows each takes."""
CACHES = ("keys", "values")

_UPDATE = Op("state_update", emitted_by="update")


def _weights(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    shape = (WIDTH, WIDTH)
    # Multiples of a power of two, so that products are exact.
    return {name: random.integers(-4, 5, shape).astype("float32") / 16 for name in CACHES}


def _rows(count: int, seed: int = 0) -> Array:
    random = np.random.default_rng(100 + seed)
    return random.integers(-8, 9, (count, WIDTH)).astype("float32") / 8


def _function(rows: int, weights: dict[str, Array]) -> relax.Function:
    """Return a function: (x, positions, keys, values) -> (attended, keys, values)."""
    builder = relax.BlockBuilder()
    real = [(name, (CAPACITY, WIDTH)) for name in CACHES]
    x, *caches = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in [("x", (rows, WIDTH)), *real]
    )
    positions = relax.Var("positions", relax.TensorType((rows,), "int64"))
    emit = builder.emit
    with builder.function("main", [x, positions, *caches]):
        with builder.dataflow():
            places = relax.const(np.arange(CAPACITY).reshape(1, -1), "int64")
            column = emit(relax.op.reshape(positions, (rows, 1)))
            written = []
            for name, cache in zip(CACHES, caches, strict=True):
                value = emit(relax.op.matmul(x, relax.const(weights[name])))
                written.append(call_entry(_UPDATE, [cache, value, positions], {"axis": 0}, emit))
            keys, values = written
            scores = emit(relax.op.matmul(x, emit(relax.op.permute_dims(keys))))
            is_seen = emit(relax.op.less_equal(places, column))
            seen = emit(relax.op.where(is_seen, scores, relax.const(-1e9, "float32")))
            attended = emit(relax.op.matmul(emit(relax.op.nn.softmax(seen, -1)), values))
            result = builder.emit_output(relax.Tuple([attended, keys, values]))
        builder.emit_func_output(result)
    return _keeping(builder, CACHES)


def _both() -> relax.Function:
    """Return a function: (x, positions, keys) -> (keys before + after the update, keys)."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, WIDTH), "float32"))
    positions = relax.Var("positions", relax.TensorType((1,), "int64"))
    keys = relax.Var("keys", relax.TensorType((CAPACITY, WIDTH), "float32"))
    emit = builder.emit
    with builder.function("main", [x, positions, keys]):
        with builder.dataflow():
            after = call_entry(_UPDATE, [keys, x, positions], {"axis": 0}, emit)
            both = emit(relax.op.add(keys, after))
            result = builder.emit_output(relax.Tuple([both, after]))
        builder.emit_func_output(result)
    return _keeping(builder, ["keys"])


def _keeping(builder: relax.BlockBuilder, names: Sequence[str]) -> relax.Function:
    """Return the function that was built, whose parameters of these names are states."""
    position = Position("positions", -1, 0, 0, CAPACITY)
    initial = tvm.runtime.tensor(np.zeros((CAPACITY, WIDTH), "float32"))
    return declare(builder.get()["main"], [(name, name, initial, [position]) for name in names])


class Expected:
    """What the decoder keeps and returns, by NumPy."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = weights
        self.caches = {name: np.zeros((CAPACITY, WIDTH), "float32") for name in CACHES}

    def call(self, x: Array, positions: Array) -> Array:
        """Return what a call returns, and keep what it writes."""
        for name, cache in self.caches.items():
            cache[positions] = x @ self._weights[name]
        scores = x.astype("float64") @ self.caches["keys"].T
        scores[np.arange(CAPACITY) > positions[:, None]] = -1e9
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        found: Array = shares / shares.sum(-1, keepdims=True) @ self.caches["values"]
        return found


class Decoder:
    """A compiled decoder."""

    def __init__(self, seed: int = 0) -> None:
        self.weights = _weights(seed)
        functions = {name: _function(rows, self.weights) for name, rows in FUNCTIONS.items()}
        functions["both"] = _both()
        named = {name: it.with_attr("global_symbol", name) for name, it in functions.items()}
        options = options_of()
        partitioned = partition_for(tvm.IRModule(named), options=options)
        self.report = offload_report(partitioned)
        self._executable = compile_partitioned(partitioned, options)

    @cached_property
    def other(self) -> Decoder:
        """The same network with other weights."""
        return Decoder(1)

    def machine(self) -> relax.VirtualMachine:
        """Return a machine of its own, as each thread needs one."""
        return relax.VirtualMachine(self._executable, tvm.cpu())

    def opened(self, until: ExitStack) -> Conversation:
        """Open a session, which is closed at the end of a context."""
        session = until.enter_context(Session(self.machine()))
        return Conversation(session, Expected(self.weights))


class Conversation:
    """A session, and what is expected of it."""

    def __init__(self, session: Session, expected: Expected) -> None:
        self.session, self.expected = session, expected
        self.length = 0

    def call(self, rows: int, seed: int = 0) -> Array:
        """Add rows behind those before, and return the result, which must be right."""
        x = _rows(rows, seed * CAPACITY + self.length)
        positions = np.arange(self.length, self.length + rows)
        found = self.raw(x, positions)
        _expect_close([found], [self.expected.call(x, positions)], f"at position {self.length}")
        self.length += rows
        self.check(f"after the call at position {self.length - rows}")
        return found

    def raw(self, x: Array, positions: Array) -> Array:
        """Call the function for this number of rows."""
        name = next(name for name, rows in FUNCTIONS.items() if rows == len(x))
        found: Array = self.session[name](*map(tvm.runtime.tensor, (x, positions))).numpy()
        return found

    def check(self, when: str) -> None:
        """Compare what the session keeps with what it must."""
        for name, right in self.expected.caches.items():
            mine = self.session.read(name)
            if not np.array_equal(mine, right):
                row = int(np.argwhere(mine != right)[0][0])
                raise Wrong(f"{when}: row {row} of the state '{name}' is not what was written")

    def refusal(self, x: Array, positions: Array, what: str) -> str:
        """Return the sentence that refuses a call."""
        try:
            self.raw(x, positions)
        except Exception as error:
            return str(error)
        raise Wrong(f"{what} is accepted")


# ---- Checks -------------------------------------------------------------------------------------


def a_cache_is_filled_to_its_last_row(decoder: Decoder) -> None:
    """Read a prompt, then rows one by one."""
    with ExitStack() as until:
        conversation = decoder.opened(until)
        conversation.call(PROMPT)
        while conversation.length < CAPACITY:
            conversation.call(1)


def a_row_may_be_written_again(decoder: Decoder) -> None:
    """Go back to an earlier position, whose row is replaced."""
    with ExitStack() as until:
        conversation = decoder.opened(until)
        conversation.call(PROMPT)
        conversation.length = 1
        conversation.call(1, seed=1)


def what_a_state_was_is_read_beside_its_update(decoder: Decoder) -> None:
    """Add what a cache was and what it becomes, in one function."""
    offloaded = decoder.report.offloaded
    if offloaded and all(op.function != "both" for op in offloaded):
        raise NotRun("the function that reads a state beside its update runs on the host")
    with ExitStack() as until:
        conversation = decoder.opened(until)
        conversation.call(PROMPT)
        keys, x = conversation.expected.caches["keys"], _rows(1)
        before = keys.copy()
        keys[1] = x
        given = map(tvm.runtime.tensor, (x, np.ones(1, "int64")))
        found = conversation.session["both"](*given).numpy()
        is_late = not np.allclose(found, before + keys) and np.allclose(found, keys + keys)
        _expect(not is_late, "what the state was is read after its update")
        _expect_close([found], [before + keys], "of the state and what it was")
        conversation.check("after a call that reads a state as it was")


def conversations_in_turn_are_those_apart(decoder: Decoder) -> None:
    """Take turns, and compare bit for bit with each conversation alone."""
    with ExitStack() as until:
        alone = []
        for seed in range(2):
            conversation = decoder.opened(until)
            alone.append([conversation.call(rows, seed) for rows in (PROMPT, 1, 1)])
        both = [decoder.opened(until) for _ in alone]
        for turn, rows in enumerate((PROMPT, 1, 1)):
            for seed, conversation in enumerate(both):
                found = conversation.call(rows, seed)
                same = np.array_equal(found, alone[seed][turn])
                _expect(same, f"in turn {turn + 1}, another conversation changes the result")


def a_copy_goes_its_own_way(decoder: Decoder) -> None:
    """Continue a prompt in two ways."""
    with ExitStack() as until:
        first = decoder.opened(until)
        first.call(PROMPT)
        kept = Expected(decoder.weights)
        kept.caches = {name: cache.copy() for name, cache in first.expected.caches.items()}
        second = Conversation(until.enter_context(first.session.copy()), kept)
        second.length = PROMPT
        for _ in range(2):
            first.call(1, seed=1)
            second.check("after a call in the session that it was copied from")
            second.call(1, seed=2)
            first.check("after a call in its copy")


def a_reset_returns_to_the_beginning(decoder: Decoder) -> None:
    """Forget a conversation."""
    with ExitStack() as until:
        conversation = decoder.opened(until)
        conversation.call(PROMPT)
        conversation.session.reset()
        conversation.length, conversation.expected = 0, Expected(decoder.weights)
        conversation.check("after a reset")
        conversation.call(1, seed=1)


def states_are_read_and_written(decoder: Decoder) -> None:
    """Carry a conversation over to another session."""
    with ExitStack() as until:
        first, second = (decoder.opened(until) for _ in range(2))
        first.call(PROMPT)
        for name in CACHES:
            second.session.write(name, first.session.read(name))
        second.expected, second.length = first.expected, PROMPT
        second.check("after its states were written")
        second.call(1)


def a_call_behind_the_last_row_is_refused(decoder: Decoder) -> None:
    """Write to the first position that the cache lacks, and to one that it nearly has."""
    with ExitStack() as until:
        conversation = decoder.opened(until)
        conversation.call(PROMPT)
        for rows, first in ((1, CAPACITY), (PROMPT, CAPACITY - PROMPT + 1)):
            positions = np.arange(first, first + rows)
            what = f"a call with position {CAPACITY}, of {CAPACITY} from 0 on,"
            sentence = conversation.refusal(_rows(rows), positions, what)
            _expect(f"position {CAPACITY}" in sentence, f"the error does not say why: {sentence}")
            conversation.check("after a call that was refused")
        conversation.length = CAPACITY - 1
        conversation.call(1)


def a_session_of_another_model_is_refused(decoder: Decoder) -> None:
    """Open a session with one model, and call another of the same network."""
    with ExitStack() as until:
        conversation = decoder.other.opened(until)
        conversation.call(1)
        token = decoder.machine()["token_in_session"]
        try:
            given = map(tvm.runtime.tensor, (_rows(1), np.zeros(1, "int64")))
            token(*given, conversation.session.id)
        except Exception as error:
            _expect("another model" in str(error), f"the error does not say why: {error}")
        else:
            raise Wrong("a session of another model is accepted")
        conversation.check("after it was given to another model")


def models_in_turn_have_their_own_weights(decoder: Decoder) -> None:
    """Take turns with the same network with other weights."""
    with ExitStack() as until:
        both = [decoder.opened(until), decoder.other.opened(until)]
        for rows in (PROMPT, 1, 1):
            for conversation in both:
                conversation.call(rows)


def a_call_that_fails_marks_its_session(decoder: Decoder) -> None:
    """Let the device fail: no call goes on with half of the states."""
    if not decoder.report.regions:
        raise NotRun("nothing of it runs on the NPU")
    with ExitStack() as until:
        conversation, other = (decoder.opened(until) for _ in range(2))
        conversation.call(PROMPT)
        other.call(PROMPT)
        fail_next("execute", "device_error")
        position = np.full(1, PROMPT)
        conversation.refusal(_rows(1), position, "a call whose device fails")
        sentence = conversation.refusal(_rows(1), position, "a call behind one that failed")
        _expect("reset" in sentence, f"the error does not say what to do: {sentence}")
        other.call(1)
        conversation.session.reset()
        conversation.length, conversation.expected = 0, Expected(decoder.weights)
        conversation.call(PROMPT)


def threads_have_sessions_of_their_own(decoder: Decoder) -> None:
    """Continue a conversation in each of eight threads."""

    def converse(seed: int) -> None:
        with ExitStack() as until:
            conversation = decoder.opened(until)
            for rows in (PROMPT, 1, 1, 1):
                conversation.call(rows, seed)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(converse, seed) for seed in range(8)]:
            done.result()


CHECKS: tuple[Callable[[Decoder], None], ...] = (
    a_cache_is_filled_to_its_last_row,
    a_row_may_be_written_again,
    what_a_state_was_is_read_beside_its_update,
    conversations_in_turn_are_those_apart,
    a_copy_goes_its_own_way,
    a_reset_returns_to_the_beginning,
    states_are_read_and_written,
    a_call_behind_the_last_row_is_refused,
    a_session_of_another_model_is_refused,
    models_in_turn_have_their_own_weights,
    a_call_that_fails_marks_its_session,
    threads_have_sessions_of_their_own,
)


def cases(settings: Settings) -> list[str]:
    """Return the names of all cases."""
    return [check.__name__ for check in CHECKS]


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """Make checks, one by one."""
    checks = {check.__name__: check for check in CHECKS}
    decoder: Decoder | None = None
    for name in names:
        announce(name)
        status, reason = "passed", ""
        try:
            decoder = decoder or Decoder()
            checks[name](decoder)
            if not decoder.report.offloaded:
                # The host has kept the states: this proves nothing about the driver.
                status, reason = _on_host(decoder)
        except NotRun as impossible:
            status, reason = "not_run", str(impossible)
        except Exception as error:
            status, reason = "failed", str(error) or type(error).__name__
            decoder = None
        yield Outcome(SUITE, name, status, op=name, dtype="float32", reason=reason)


def _on_host(decoder: Decoder) -> tuple[str, str]:
    """Return status and reason where the NPU takes no op of the decoder."""
    declined = [op.reason or "" for op in decoder.report.on_host if op.declined]
    if declined:
        return "declined", declined[0]
    return "not_run", "the table has no op of a decoder in float32"
