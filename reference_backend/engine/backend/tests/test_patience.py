# SPDX-License-Identifier: Apache-2.0
"""Calls that take long overlap, and the terminal says so."""

import io
import sys
import threading
import time

import pytest

from backend.engine.backend.shared import patience


@pytest.fixture
def terminal(monkeypatch):
    """Return a function that makes a terminal; pytest captures again when a test begins."""

    def make():
        stream = io.StringIO()
        stream.isatty = lambda: True
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        return stream

    return make


def test_quick_calls_are_made_one_after_the_other(terminal):
    threads, stream = [], terminal()
    found = patience.each(lambda item: threads.append(threading.get_ident()) or item, "abc", str)
    assert found == ["a", "b", "c"]
    assert set(threads) == {threading.get_ident()}
    assert stream.getvalue() == ""


def test_slow_calls_overlap_and_keep_their_order(monkeypatch):
    monkeypatch.setattr(patience, "SLOW", 0.0)
    monkeypatch.setattr(patience.os, "cpu_count", lambda: 2)
    together = threading.Barrier(2, timeout=30)

    def wait_for_another(item):
        # Of calls one after the other, the first would wait for ever.
        together.wait()
        return item * item

    assert patience.each(wait_for_another, [3, 1, 2, 5], str) == [9, 1, 4, 25]


def test_an_error_of_a_call_is_that_of_all(monkeypatch):
    monkeypatch.setattr(patience, "SLOW", 0.0)

    def fail(item):
        raise ValueError(f"no {item}")

    with pytest.raises(ValueError, match="no 1"):
        patience.each(fail, [1, 2], str)


def test_the_terminal_says_what_takes_long(monkeypatch, terminal):
    monkeypatch.setattr(patience, "TELL", 0.01)
    monkeypatch.setattr(patience, "PAUSE", 0.01)
    stream = terminal()

    def take_long(item):
        for _ in range(300):
            if item in stream.getvalue():
                return
            time.sleep(0.01)
        pytest.fail("nothing was said")

    patience.each(take_long, ["the first", "the second"], lambda item: f"compiling {item}")
    written = stream.getvalue()
    assert "0 s: compiling the first" in written
    assert written.endswith("\r\033[K"), "the line is cleared"


def test_an_empty_list_is_no_call():
    assert patience.each(pytest.fail, [], str) == []
