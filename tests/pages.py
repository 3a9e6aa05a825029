"""Runs the commands of pages."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from support import ROOT, run, sources

BLOCK = re.compile(r"^```(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"^<!-- quoted: (\S+) -->\n```\S+\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
# Each job gets its own process group, as in a terminal, and none outlives the script.
SHELL = """\
set -eumo pipefail
trap 'for job in $(jobs -p); do kill -- -"$job" 2> /dev/null || true; done' EXIT
"""


def code_block(page: Path, language: str) -> str:
    """Return the only block of a page in a language."""
    (found,) = [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]
    return str(found)


def without_quotes(text: str) -> str:
    """Remove the code that a page quotes, after checking that the named file contains it."""
    for name, quoted in QUOTED.findall(text):
        assert quoted in (ROOT / name).read_text(), f"{name} does not have:\n{quoted}"
    return QUOTED.sub("", text)


def clone(scaffold: Path, *needed: str) -> None:
    """Make a clone of parts, whose only release is older than what the pages describe."""
    scaffold.mkdir()
    run("git", "init", "-q", cwd=scaffold)
    run("git", "commit", "-q", "--allow-empty", "-m", "An old release", cwd=scaffold)
    run("git", "tag", "v0.1.0", cwd=scaffold)
    for path in sources(ROOT):
        name = path.relative_to(ROOT)
        if any(name.is_relative_to(part) for part in needed):
            (scaffold / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, scaffold / name)
    run("git", "add", ".", cwd=scaffold)
    run("git", "commit", "-q", "-m", "The current state", cwd=scaffold)


class Part:
    """A part of a page: its files, its commands, and their output."""

    def __init__(self, text: str) -> None:
        blocks = BLOCK.findall(text)
        assert len(blocks) == text.count("\n```") // 2, "a block has no language"
        self.files = [content for language, content in blocks if language in ("python", "cmake")]
        self.commands = "".join(content for language, content in blocks if language == "bash")
        self.output = "".join(content for language, content in blocks if language == "text")
        assert self.commands and self.output

    def execute(self, folder: Path, python: Path, place: Path | None = None) -> str:
        """Run the commands, and find the lines that the page shows in their output, in order.

        They run in `place`, by default the folder, which has the clone of npu-scaffold.
        """
        place = place or folder
        for content in self.files:
            name = content.splitlines()[0].removeprefix("# ")
            assert re.fullmatch(r"\w+\.(py|cmake)", name), f"not a file name: {name}"
            (place / name).write_text(content)
        path = (str(folder) for folder in (python.parent, Path(sys.executable).parent))
        printed = run(
            *("bash", "-c", SHELL + self.commands),
            cwd=place,
            PATH=os.pathsep.join([*path, os.environ["PATH"]]),
            SCAFFOLD=str(folder / "scaffold"),
        )
        self.compare(printed)
        return printed

    def compare(self, printed: str) -> None:
        """Find each line that the page shows in the output, in order."""
        rest = printed
        for line in self.output.splitlines():
            pattern = ".*".join(re.escape(part) for part in line.split("..."))
            found = re.search(rf"^{pattern}\s*$", rest, re.MULTILINE)
            assert found, f"the page shows '{line}', which the commands do not print:\n{printed}"
            rest = rest[found.end() :]
