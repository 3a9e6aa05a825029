# SPDX-License-Identifier: Apache-2.0
"""Runs cases in worker processes, so that a crash fails only one case.

A worker takes batches from its standard input and answers in lines of JSON: that it is ready,
which case it is about to run, its outcome, and when a batch is done. If it dies or hangs while it
runs a case, that case is the culprit; if it dies before, when compiling, its batch is bisected down
to one case.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType

from tvm import relax

from ...backend.api import (
    PACKAGE,
    WITHOUT_TORCH,
    JsonObject,
    Options,
    listening,
    ops_of,
    signal_name,
)
from .outcomes import Outcome

Announce = Callable[[str], None]

SECONDS = 300.0
"""How long a worker may be silent."""

NEEDS_TORCH = "models"
"""The suite whose workers import torch."""

MOST_TOGETHER = 100
"""The number of cases that a worker gets at once, unless the suite says otherwise."""
_WORTH_A_WORKER = 8
"""The number of cases that justifies another process."""


def in_workers(
    suite: str,
    cases: Sequence[str],
    jobs: int,
    batch: int = MOST_TOGETHER,
    seconds: float = SECONDS,
) -> Iterator[Outcome]:
    """Run cases of a suite in several processes.

    `suite`: the module of the suite in this package, or its full name. It has `run_batch(cases,
    announce)`, which yields an `Outcome` for each of the cases, and calls `announce` with the name
    of a case before it runs that alone.
    """
    batches = [list(cases[start : start + batch]) for start in range(0, len(cases), batch)]
    if not jobs:
        for chosen in batches:
            yield from _module(suite).run_batch(chosen, lambda case: None)
        return
    # Give each worker something to do, unless it is too little.
    size = min(batch, max(-(-len(cases) // jobs), _WORTH_A_WORKER))
    batches = [list(cases[start : start + size]) for start in range(0, len(cases), size)]
    arrived: queue.Queue[Outcome | Exception | None] = queue.Queue()
    pool = _Pool(suite, batches, seconds, arrived)
    threads = [threading.Thread(target=pool.serve) for _ in range(min(jobs, len(batches)))]
    for thread in threads:
        thread.start()
    open_threads = len(threads)
    try:
        while open_threads:
            outcome = arrived.get()
            if outcome is None:
                open_threads -= 1
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                yield outcome
    finally:
        pool.stop()
        for thread in threads:
            thread.join()


class _Pool:
    """The state shared by the threads, each of which drives one worker."""

    def __init__(
        self,
        suite: str,
        batches: list[list[str]],
        seconds: float,
        arrived: queue.Queue[Outcome | Exception | None],
    ) -> None:
        self._suite = suite
        self._batches = batches
        self._seconds = seconds
        self._found = arrived
        self._changed = threading.Condition()
        self._busy = 0
        self._stopped = False
        self._workers: set[_Worker] = set()

    def serve(self) -> None:
        """Take batches until none is left."""
        worker: _Worker | None = None
        try:
            while (chosen := self._take()) is not None:
                if worker is None or not worker.alive:
                    worker = _Worker(self._suite, self._seconds)
                    with self._changed:
                        self._workers.add(worker)
                again = self._run(worker, chosen)
                with self._changed:
                    self._batches[:0] = again
                    self._busy -= 1
                    self._changed.notify_all()
        except Exception as error:
            self._found.put(error)
            self.stop()
        finally:
            if worker is not None:
                worker.close()
            self._found.put(None)

    def stop(self) -> None:
        """Let all threads end."""
        with self._changed:
            self._stopped = True
            for worker in self._workers:
                worker.kill()
            self._changed.notify_all()

    def _take(self) -> list[str] | None:
        with self._changed:
            while not self._stopped:
                if self._batches:
                    self._busy += 1
                    return self._batches.pop(0)
                # A batch that is running may come back in halves.
                if not self._busy:
                    return None
                self._changed.wait()
            return None

    def _run(self, worker: _Worker, chosen: list[str]) -> list[list[str]]:
        """Run a batch; return the cases to run again."""
        left = dict.fromkeys(chosen)
        running = asked = ""
        for message in worker.messages(chosen):
            if "running" in message:
                running = message["running"]
            elif "asked" in message:
                asked = message["asked"]
            elif "outcome" in message:
                outcome = Outcome.from_dict(message["outcome"])
                left.pop(outcome.case, None)
                running = "" if running == outcome.case else running
                self._found.put(outcome)
            elif "error" in message:
                raise RuntimeError(message["error"])
            elif "done" in message:
                for case in left:
                    text = "the suite does not say what became of it"
                    self._found.put(Outcome(self._suite, case, "failed", reason=text))
                return []
        if self._stopped:
            return []
        if not worker.ready:
            raise RuntimeError(f"no process for the suite '{self._suite}' starts: {worker.end()}")
        driver = Options.load(None).driver_name
        when = f", when the driver {driver} was asked about {asked}" if asked else ""
        culprit = running or (next(iter(left)) if len(left) == 1 else "")
        if culprit in left:
            del left[culprit]
            text = f"{worker.end()}{when}"
            self._found.put(Outcome(self._suite, culprit, "failed", reason=text))
        rest = list(left)
        if not rest:
            return []
        if culprit:
            return [rest]
        return [rest[: len(rest) // 2], rest[len(rest) // 2 :]]


class _Worker:
    """A process that runs cases."""

    def __init__(self, suite: str, seconds: float) -> None:
        self._seconds = seconds
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._timed_out = False
        self.ready = False
        torch = "" if suite == NEEDS_TORCH else WITHOUT_TORCH
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{torch}from {__name__} import serve; serve()", suite],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it can take another batch."""
        return self._process.poll() is None

    def messages(self, cases: Sequence[str]) -> Iterator[JsonObject]:
        """Give it a batch, and yield its answers until the batch is done or it ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # A dead worker never answers.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(list(cases)) + "\n")
            self._process.stdin.flush()
        while True:
            limit = self._seconds if self.ready else max(self._seconds, SECONDS)
            timer = threading.Timer(limit, self._give_up)
            timer.start()
            line = self._process.stdout.readline()
            timer.cancel()
            if not line.endswith("\n"):
                self._process.wait()
                return
            message: dict[str, object] = json.loads(line)
            self.ready = True
            yield message
            if "done" in message:
                return

    def _give_up(self) -> None:
        self._timed_out = True
        self.kill()

    def end(self) -> str:
        """Return how it ended."""
        if self._timed_out:
            return f"crashed: it did not finish within {self._seconds:.0f} s"
        code = self._process.returncode
        how = signal_name(-code) if code and code < 0 else f"exit code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        # Without TVM's stack trace.
        said = [line for line in lines if line.strip() and not line.startswith((" ", "!!!"))]
        return f"crashed: {how}" + (f", after it said: {said[-1][:300]}" if said else "")

    def kill(self) -> None:
        """End it at once."""
        if self.alive:
            self._process.kill()

    def close(self) -> None:
        """Let it end, and free what it holds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def _module(suite: str) -> ModuleType:
    return import_module(suite if "." in suite else f"{__package__}.{suite}")


def serve() -> None:
    """Be a worker of the suite that the command line names."""
    suite = sys.argv[1]
    # The last line before a crash should be the driver's; the command itself has told its user.
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    # Output of libraries must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**message: object) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    def tell(function: relax.Function, answer: str | None) -> None:
        # An SDK that aborts leaves no other trace of the op.
        say(asked=ops_of(function) if answer is None else "")

    module = _module(suite)
    say(ready=True)
    for line in sys.stdin:
        try:
            with listening(tell):
                for outcome in module.run_batch(json.loads(line), lambda case: say(running=case)):
                    say(outcome=outcome.to_dict())
        except Exception as error:
            say(error=f"the suite '{suite}' is broken: {type(error).__name__}: {error}")
            raise
        say(done=True)
