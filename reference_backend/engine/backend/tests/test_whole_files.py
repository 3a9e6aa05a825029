# SPDX-License-Identifier: Apache-2.0
"""Files are written completely or not at all; messages are the last line of an error."""

import pytest

from backend.engine.backend.shared.messages import last_line
from backend.engine.backend.shared.whole_files import NotWritten, write_text, writing


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with writing(path) as unfinished:
        unfinished.write_text("after")
        assert unfinished.name == path.name and path.read_text() == "before"
    assert path.read_text() == "after"
    write_text(path, "a lone surrogate: \ud800")
    assert path.read_text() == "a lone surrogate: ?"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_previous_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(KeyError), writing(path) as unfinished:
        unfinished.write_text("half")
        raise KeyError
    with pytest.raises(NotWritten, match="'.*a.txt' cannot be written: disk full"):  # noqa: SIM117
        with writing(path):
            raise OSError(28, "disk full")
    with pytest.raises(NotWritten, match="b.txt' cannot be written: No such file"):
        write_text(tmp_path / "missing" / "b.txt", "x")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_the_message_is_the_last_line():
    assert last_line(ValueError("Traceback\n  File\nTypeError: no  \n\n")) == "TypeError: no"
    assert last_line(KeyError()) == "KeyError"
    assert (last_line(""), last_line("one\ntwo")) == ("", "two")
