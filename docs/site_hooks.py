"""What the site does beside rendering docs/: pages from elsewhere in the repository, and links.

The same pages are read in a clone, where links lead to files. On the site, a link to a file that
has no page there is its text alone; a link to a file that does not exist ends the build. Lists are
indented as the site's Markdown wants.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "AGENTS.md": "agents.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "template/_catalog/README.md": "catalogue.md",
}
"""The pages that are not in docs/."""
HEADER = "template/engine/backend/include/npu_driver.h"
# Code in a line comes first: what looks like a link in it is none.
_LINK = re.compile(r"`[^`\n]*`|(!?)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|(?<=\n\n)(?: {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"(?:-|\d+\.) +(?=\S)")
_SOURCES = {page: source for source, page in PAGES.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    header = (ROOT / HEADER).read_text(encoding="utf-8")
    text = (
        "# The header of the driver interface\n\n"
        f"`{HEADER.removeprefix('template/')}`; [its rules](../driver-abi.md) say what may be "
        "left out.\n\n"
        f"```c\n{header}```\n"
    )
    files.append(File.generated(config, "api/header.md", content=text))
    return files


def _on_site(source: str, target: str) -> str | None:
    """Return where a link of a file of the repository leads on the site, or None."""
    path, hash_, anchor = target.partition("#")
    if not path or "://" in path:
        return target
    found = os.path.normpath(os.path.join(os.path.dirname(source), path))
    if not (ROOT / found).exists():
        raise PluginError(f"{source} has a link to {target}, and there is no such file")
    page = PAGES.get(found)
    if page is None and found.startswith("docs/") and (ROOT / found).is_file():
        page = found.removeprefix("docs/")
    if page is None:
        return None
    here = os.path.dirname(PAGES.get(source, source.removeprefix("docs/")))
    return os.path.relpath(page, here or ".") + hash_ + anchor


def _indented(text: str) -> str:
    """Indent what belongs to an item of a list by four, as MkDocs wants; GitHub needs less."""
    more = 0
    lines = []
    for line in text.split("\n"):
        if line[:1].strip():
            item = _ITEM.match(line)
            more = max(4 - len(item[0]), 0) if item else 0
        elif line.strip():
            line = " " * more + line
        lines.append(line)
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, and lists be as in a clone."""
    name = page.file.src_uri
    if name == "api/header.md":
        return markdown
    source = _SOURCES.get(name, f"docs/{name}")

    def replaced(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if target is None:
            return match[0]
        found = _on_site(source, target)
        return text if found is None else f"{mark}[{text}]({found})"

    parts = _CODE.split(markdown)
    # Every other part is code, which is left alone.
    parts[::2] = [_indented(_LINK.sub(replaced, part)) for part in parts[::2]]
    return "".join(parts)
