"""Pages whose commands are run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from support import run

BLOCK = re.compile(r"^```(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Jobs with groups of their own, as in a terminal, and none that outlives the script.
SHELL = """\
set -eumo pipefail
trap 'for job in $(jobs -p); do kill -- -"$job" 2> /dev/null || true; done' EXIT
"""


class Part:
    """A part of the page: its files, its commands, and what these print."""

    def __init__(self, text: str) -> None:
        blocks = BLOCK.findall(text)
        assert len(blocks) == text.count("\n```") // 2, "a block has no language"
        self.files = [content for language, content in blocks if language in ("python", "cmake")]
        self.commands = "".join(content for language, content in blocks if language == "bash")
        self.output = "".join(content for language, content in blocks if language == "text")
        assert self.commands and self.output

    def execute(self, folder: Path, python: Path) -> None:
        """Run the commands, and find what the page shows in what they print, in that order."""
        for content in self.files:
            name = content.splitlines()[0].removeprefix("# ")
            assert re.fullmatch(r"\w+\.(py|cmake)", name), f"this is not a name of a file: {name}"
            (folder / name).write_text(content)
        path = (str(place) for place in (python.parent, Path(sys.executable).parent))
        rest = printed = run(
            *("bash", "-c", SHELL + self.commands),
            cwd=folder,
            PATH=os.pathsep.join([*path, os.environ["PATH"]]),
            SCAFFOLD=str(folder / "scaffold"),
        )
        for line in self.output.splitlines():
            pattern = ".*".join(re.escape(part) for part in line.split("..."))
            found = re.search(rf"^{pattern}\s*$", rest, re.MULTILINE)
            assert found, f"the page shows '{line}', which is not printed there:\n{printed}"
            rest = rest[found.end() :]
