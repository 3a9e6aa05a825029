"""Trees of files, and what an update would lose of a vendor's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from .git import run_git
from .versions import ANSWERS

VENDOR = "vendor/"
ENGINE = "engine/"

Tree = dict[str, bytes]

_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def read_tree(root: Path) -> Tree:
    """Read the files of a folder, without Git's own."""
    return {
        path.relative_to(root).as_posix(): (
            os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        )
        for path in sorted(root.rglob("*"))
        if ".git" not in path.relative_to(root).parts and (path.is_symlink() or path.is_file())
    }


def _nearest(text: bytes, candidates: Mapping[str, bytes], name: str) -> str:
    """Find the new name of a file: the most similar new file."""
    best, found = 0.5, ""
    for path, other in candidates.items():
        matcher = SequenceMatcher(None, text.splitlines(), other.splitlines(), autojunk=False)
        likeness = matcher.ratio() + 0.2 * (Path(path).name == Path(name).name)
        if likeness > best:
            best, found = likeness, path
    return found


def below(folder: str, tree: Iterable[str]) -> list[str]:
    """Return the files below a folder."""
    return [path for path in tree if path.startswith(f"{folder}/")]


def in_the_way(old: Tree, new: Tree, mine: Tree) -> tuple[list[str], list[str]]:
    """Find unedited files where the new version has folders, or folders where it has files.

    Returns the files that the new version replaces, and sentences about edited ones.
    """
    gone: list[str] = []
    problems: list[str] = []
    for path in sorted(set(new) - set(old)):
        if path.startswith(VENDOR):
            continue
        parents = [str(parent) for parent in Path(path).parents]
        for blocking in [*(p for p in parents if p in mine), *below(path, mine)]:
            if blocking in gone:
                continue
            if mine[blocking] == old.get(blocking):
                gone.append(blocking)
            else:
                problems.append(
                    f"{blocking} is {'edited here' if blocking in old else 'your file'}, and the "
                    f"new version needs its place for {path}. Move it elsewhere, commit, and "
                    "upgrade again."
                )
    return gone, list(dict.fromkeys(problems))


def lost_edits(
    old: Tree,
    new: Tree,
    mine: Tree,
    result: Tree,
    drop: Sequence[str],
    notes: Mapping[str, str],
) -> list[str]:
    """Report edited files that the update would delete or not deliver.

    The notes say, by path, what to do with an edited file that the new version lacks.
    """
    problems = []
    added = {
        path: text for path, text in new.items() if path not in old and not path.startswith(VENDOR)
    }
    for path in sorted(set(mine) - set(result)):
        if mine[path] == old.get(path) or path in drop:
            continue
        moved = _nearest(old.get(path, mine[path]), added, path)
        where = f", which is now {moved}" if moved else ""
        remedy = notes.get(path) or (
            f"Move it to vendor/ or{' to ' + moved if moved else ' elsewhere'} after the upgrade."
        )
        problems.append(
            f"{path} was edited here, and the upgrade would delete it{where}: the edit would be "
            f"lost. {remedy} To continue, pass --drop {path} (your text stays in the history of "
            "Git)."
        )
    for path, text in sorted(added.items()):
        if path in mine and mine[path] != text:
            problems.append(
                f"{path} is your file, and the new version adds one of the same name. Rename "
                "yours, commit, and upgrade again."
            )
    unknown = [path for path in drop if path not in mine]
    problems += [f"--drop {path}: there is no such file in this backend." for path in unknown]
    return problems


def _header(tree: Iterable[str], folder: str, name: str) -> str | None:
    """Find a file below a folder that an ``#include`` may name."""
    ends = f"/{name}"
    return next((path for path in tree if path.startswith(folder) and path.endswith(ends)), None)


def lost_headers(old: Tree, new: Tree, mine: Tree) -> list[str]:
    """Report headers of the engine that files in vendor/ include, and the new version lacks."""
    lost = []
    for path, text in sorted(mine.items()):
        if not path.startswith(VENDOR):
            continue
        for found in _INCLUDE.findall(text):
            name = os.fsdecode(found)
            before = _header(old, ENGINE, name)
            if before and not _header(new, ENGINE, name) and not _header(mine, VENDOR, name):
                copied = (Path(path).parent / name).as_posix()
                lost.append(f"{path}: git show HEAD:./{before} > {copied}")
    return lost


def lost_answers(
    before: Mapping[str, object],
    after: Mapping[str, object],
    given: Mapping[str, object],
    questions: Mapping[str, object],
) -> list[str]:
    """Report answers that the new version would not keep."""
    problems = []
    for name, value in before.items():
        now = after.get(name)
        if name in given or name not in questions or now == value:
            continue
        # Lists are sorted like the choices.
        if isinstance(value, list) and isinstance(now, list) and sorted(value) == sorted(now):
            continue
        instead = "would forget it" if now is None else f"would use {now!r}"
        problems.append(
            f"{name}: the new version does not keep your answer {value!r}, but {instead}. Choose "
            f"one with -d {name}=..."
        )
    return problems


def skipped(
    old: Tree, new: Tree, mine: Tree, result: Tree, scratch: Path
) -> tuple[list[str], list[str]]:
    """Find files that the update should have changed: unedited ones, and edited ones."""
    unedited, edited = [], []
    for path in sorted(set(old) & set(new) & set(mine) & set(result)):
        if path.startswith(VENDOR) or path == ANSWERS or old[path] == new[path]:
            continue
        if result[path] != mine[path] or mine[path] == new[path]:
            continue
        if mine[path] == old[path]:
            unedited.append(path)
            continue
        names = ("merge-mine", "merge-old", "merge-new")
        for name, tree in zip(names, (mine, old, new), strict=True):
            (scratch / name).write_bytes(tree[path])
        merged = run_git(scratch, "merge-file", "-p", *names)
        if merged.returncode or merged.stdout != mine[path]:
            edited.append(path)
    return unedited, edited
