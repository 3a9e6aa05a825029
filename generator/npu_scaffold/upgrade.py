"""``npu-scaffold upgrade``: 'copier update' on a copy, which is checked before it is applied."""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import copier
import yaml

from .errors import ScaffoldError, did_you_mean
from .git import git_output, run_git
from .limit_changes import limit_changes
from .render import REFERENCE_ANSWERS, check_answers
from .template import read_questions
from .trees import (
    ENGINE,
    VENDOR,
    Tree,
    below,
    in_the_way,
    lost_answers,
    lost_edits,
    lost_headers,
    read_tree,
    skipped,
)
from .versions import ANSWERS, RELEASES, Project, Template, some_of

_NAMES = ("backend_name", "class_name")
"""The answers that are parts of names in vendor/, and in models that were saved."""
_SHOWN = 20
_MARKER = re.compile(rb"^(<<<<<<< before updating|>>>>>>> after updating)\s*$", re.MULTILINE)
_API_VERSION = re.compile(r"^#define NPU_DRIVER_API_VERSION (\d+)", re.MULTILINE)


def _render(template: Path, answers: Mapping[str, object], out: Path, **more: Any) -> Tree:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copier.run_copy(
            str(template),
            str(out),
            data=dict(answers),
            defaults=True,
            quiet=True,
            unsafe=False,
            **more,
        )
    return read_tree(out)


_DRIVER_HEADERS = ("engine/backend/include/npu_driver.h", "engine/include/npu_driver.h")


def _answers(tree: Tree) -> dict[str, Any]:
    found = yaml.safe_load(tree[ANSWERS])
    return {key: value for key, value in found.items() if not key.startswith("_")}


def _api_version(tree: Tree) -> str:
    # Releases before 0.5 had it outside of the wings.
    header = next((tree[path] for path in _DRIVER_HEADERS if path in tree), b"")
    found = _API_VERSION.search(header.decode())
    return found.group(1) if found else "unknown"


def _all_ops(template: Path, answers: Mapping[str, object], out: Path) -> list[str]:
    """Read the whole catalogue of a version, in that version's format."""
    others = {name: value for name, value in answers.items() if name != "ops"}
    everything = {**others, "op_preset": "everything"}
    tree = _render(template, everything, out, exclude=["*", f"!/{ANSWERS}"])
    return list(_answers(tree).get("ops", []))


def _notes(template: Path, answers: Mapping[str, object]) -> dict[str, str]:
    """Read what ``releases.yml`` says of files that are gone, by their paths in this backend."""
    listed = template / RELEASES
    if not listed.is_file():
        return {}
    found = (yaml.safe_load(listed.read_text(encoding="utf-8")) or {}).get("gone") or {}
    names = yaml.safe_load((template / REFERENCE_ANSWERS).read_text(encoding="utf-8"))
    notes = {}
    for path, note in found.items():
        for name in _NAMES:
            path = path.replace(str(names[name]), str(answers.get(name, names[name])))
        notes[path] = note
    return notes


def _files_shown(before: Tree, after: Tree) -> list[str]:
    lines: list[str] = []
    names = [path for path in sorted(before.keys() | after.keys()) if path != ANSWERS]
    for title, owned in (("engine", True), ("rendered", False)):
        changed = [
            ("+" if path not in before else "-" if path not in after else "~", path)
            for path in names
            if path.startswith(ENGINE) == owned and before.get(path) != after.get(path)
        ]
        counts = [
            f"{sum(sign == mark for sign, _ in changed)} {word}"
            for mark, word in (("+", "added"), ("~", "changed"), ("-", "removed"))
        ]
        lines.append(f"{title}: {', '.join(counts)}")
        # Vendors do not edit the engine: a few files are enough.
        most = _SHOWN if owned else len(changed)
        lines += [f"  {sign} {path}" for sign, path in changed[:most]]
        if len(changed) > most:
            lines.append(f"    and {len(changed) - most} more")
    return lines


@dataclass(frozen=True)
class _Prepared:
    """An update in a private copy, with its report."""

    copy: Path
    result: Tree
    new: Tree
    report: list[str]
    conflicts: list[str]


def _update(
    template: Template, commit: str, copy: Path, given: Mapping[str, object], skip: Sequence[str]
) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copier.run_update(
                str(copy),
                data=dict(given),
                vcs_ref=commit,
                defaults=True,
                overwrite=True,
                quiet=True,
                unsafe=False,
                skip_if_exists=list(skip),
            )
    # Copier raises all kinds of errors; only the private copy is affected.
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ScaffoldError(f"Copier cannot update this backend: {said}") from error


def _prepare(
    project: Project,
    template: Template,
    versions: tuple[str, str],
    given: Mapping[str, object],
    drop: Sequence[str],
    scratch: Path,
) -> _Prepared:
    old_commit, new_commit = versions
    old_files, new_files = template.files(old_commit), template.files(new_commit)
    questions = read_questions(new_files)
    stored = {name: v for name, v in project.answers.items() if not name.startswith("_")}
    kept = {name: value for name, value in stored.items() if name in questions}
    problems = [
        f"-d {name}: this backend is {stored[name]}, which cannot be changed: files in vendor/ "
        f"have the name, too. Render a new backend with 'copier copy', and move vendor/ there."
        for name in _NAMES
        if name in stored and given.get(name, stored[name]) != stored[name]
    ]
    problems += [
        f"-d {name}: version {template.name(new_commit)} has no such question"
        f"{did_you_mean(name, questions)}."
        for name in given
        if name not in questions
    ]
    if problems:
        raise ScaffoldError("\n".join(problems))
    try:
        new = _render(new_files, {**kept, **given}, scratch / "new")
    except Exception as error:
        refused = check_answers(new_files, {**kept, **given})
        refused = refused or [" ".join(str(error).split())]
        version = template.name(new_commit)
        raise ScaffoldError(
            "\n".join(f"Version {version} does not take an answer: {text}" for text in refused)
        ) from error
    try:
        old = _render(old_files, stored, scratch / "old")
    except Exception as error:
        raise ScaffoldError(
            f"The version that this backend was made from, {template.name(old_commit)}, cannot be "
            f"rendered with the answers in {ANSWERS}: {' '.join(str(error).split())}. That file "
            "is changed by updates only: put it back as it was, and commit."
        ) from error
    lost = lost_answers(kept, _answers(new), given, questions)
    if lost:
        raise ScaffoldError("\n".join(lost))

    clone = scratch / "project"
    head = git_output(project.top, "rev-parse", "HEAD")
    git_output(scratch, "clone", "-q", "--shared", "--no-checkout", str(project.top), str(clone))
    git_output(clone, "checkout", "-q", "--detach", head)
    copy = clone / project.folder
    mine = read_tree(copy)
    gone, problems = in_the_way(old, new, mine)
    if problems:
        raise ScaffoldError("\n".join(problems))
    for path in gone:
        (copy / path).unlink()
        parent = (copy / path).parent
        while parent != copy and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
    private = {**project.answers, "_src_path": str(template.clone), "_commit": old_commit}
    (copy / ANSWERS).write_text(yaml.safe_dump(private), encoding="utf-8")
    identity = ("-c", "user.name=npu-scaffold", "-c", "user.email=npu-scaffold@localhost")
    git_output(
        clone,
        *identity,
        *("commit", "-q", "-a", "--no-gpg-sign", "--no-verify", "-m", "before the upgrade"),
    )
    # Otherwise Copier repeats the deletion, now of a new folder or file of the same name.
    _update(template, new_commit, copy, given, [f"/{path}" for path in gone])

    remembered = copy / ANSWERS
    text = remembered.read_text(encoding="utf-8")
    source = yaml.safe_dump({"_src_path": template.source}, width=10**9, allow_unicode=True).strip()
    text = re.sub(r"^_src_path:.*$", lambda _: source, text, flags=re.MULTILINE)
    remembered.write_text(text, encoding="utf-8")

    result = read_tree(copy)
    unedited, edited = skipped(old, new, mine, result, scratch)
    for path in unedited:
        (copy / path).write_bytes(new[path])
        result[path] = new[path]
    before = {path: text for path, text in mine.items() if path not in gone}
    problems = lost_edits(old, new, before, result, drop, _notes(new_files, _answers(new)))
    touched = [
        path
        for path in sorted(mine.keys() | result.keys())
        if path.startswith(VENDOR) and mine.get(path) != result.get(path)
    ]
    problems += [
        f"The update would change {path}, which is yours: report this." for path in touched
    ]
    problems += [
        f"{path} is untracked and in the way: the new version adds a file of that name. "
        "Move it, and upgrade again."
        for path in sorted(result.keys() - mine.keys())
        if (project.root / path).exists() and not (path in new and below(path, gone))
    ]
    if problems:
        raise ScaffoldError("\n".join(problems))

    conflicts = sorted(path for path, text in result.items() if _MARKER.search(text))
    report = [
        f"{project.root.name}: {template.name(old_commit)} -> {template.name(new_commit)}",
        *_files_shown(mine, result),
    ]
    api = _api_version(old), _api_version(new)
    report.append(
        f"driver API version: {api[0]}" + (f" -> {api[1]}" if api[0] != api[1] else ", as before")
    )
    ops = kept.get("ops", []), _answers(result).get("ops", [])
    for sign, names in (
        ("added", set(ops[1]) - set(ops[0])),
        ("dropped", set(ops[0]) - set(ops[1])),
    ):
        if names:
            report.append(f"ops {sign}: {', '.join(sorted(names))}")
    known = _all_ops(old_files, stored, scratch / "old-ops")
    grown = [
        op for op in _all_ops(new_files, {**kept, **given}, scratch / "new-ops") if op not in known
    ]
    if grown:
        report.append(f"new ops, selected with -d ops=[...]: {', '.join(grown)}")
    unasked = [name for name in stored if name not in questions]
    if unasked:
        report.append(f"removed questions, whose answers are dropped: {', '.join(unasked)}")
    limits = limit_changes(old, new)
    if limits:
        report.append("changed limits of the engine (vendor/ keeps yours):")
        report += [f"  {line}" for line in limits]
    seeds = [
        f"  {'~' if path in old else '+'} {path}"
        for path in sorted(new)
        if path.startswith(VENDOR) and new[path] != old.get(path)
    ]
    if seeds:
        report.append("changed seeds of vendor/; your files stay as they are:")
        report += seeds
    headers = lost_headers(old, new, mine)
    if headers:
        report.append(
            "headers that your files include, and the new engine lacks; before you build, copy "
            "each from your last commit:"
        )
        report += [f"  {line}" for line in headers]
    own = [
        path
        for path in sorted(old)
        if path.startswith(ENGINE) and mine.get(path) != old[path] and path in new
        if path not in conflicts
    ]
    if own:
        report.append(
            f"edited or deleted in engine/, which is not yours, and merged: {some_of(own)}. "
            "docs/upgrading.md says what to do instead."
        )
    if unedited or edited:
        report.append(
            "yours from this version on: "
            + "; ".join(
                [f"{path} (updated for the last time)" for path in unedited]
                + [f"{path} (your text, without the template's changes)" for path in edited]
            )
        )
    return _Prepared(copy, result, new, report, conflicts)


def _take_over(project: Project, prepared: _Prepared, scratch: Path) -> None:
    """Apply the result to the project in a single Git operation, and stage it."""
    clone = scratch / "project"
    theirs = {
        "GIT_DIR": git_output(project.root, "rev-parse", "--absolute-git-dir"),
        "GIT_INDEX_FILE": str(scratch / "index"),
        "GIT_WORK_TREE": str(clone),
    }
    folder = project.folder.as_posix()
    git_output(clone, "read-tree", "HEAD", environment=theirs)
    unmerged = git_output(clone, "ls-files", "--unmerged", "-z", "--", folder).split("\0")
    git_output(clone, "add", "--all", "--", folder, environment=theirs)
    tracked = git_output(clone, "ls-files", "-z", "--", folder, environment=theirs).split("\0")
    # Add files of the new version even if the project ignores such names.
    ignored = [
        name
        for path in prepared.result
        if path in prepared.new and (name := (project.folder / path).as_posix()) not in tracked
    ]
    if ignored:
        git_output(clone, "add", "--force", "--", *ignored, environment=theirs)
    tree = git_output(clone, "write-tree", environment=theirs)
    # The objects that the clone added are in its own store.
    stages = b""
    for entry in filter(None, unmerged):
        about, path = entry.split("\t", 1)
        mode, blob, stage = about.split()
        text = run_git(clone, "cat-file", "blob", blob).stdout
        here = git_output(project.top, "hash-object", "-w", "--stdin", feed=text)
        if stage == "1":
            stages += f"0 {'0' * len(here)}\t{path}\n".encode(errors="surrogateescape")
        stages += f"{mode} {here} {stage}\t{path}\n".encode(errors="surrogateescape")
    run_git(project.top, "update-index", "-q", "--refresh")
    # Git first checks that nothing is in its way; signals sent to us do not interrupt it.
    git_output(project.top, "read-tree", "-m", "-u", "HEAD", tree)
    if stages:
        git_output(project.top, "update-index", "--index-info", feed=stages)


def upgrade(
    path: Path,
    to: str | None = None,
    answers: Mapping[str, Any] | None = None,
    template: str | None = None,
    *,
    drop: Sequence[str] = (),
    dry_run: bool = False,
    keep_conflicts: bool = False,
) -> None:
    """Upgrade a backend to another version of the template, or leave it unchanged.

    Parameters
    ----------
    path
        The backend: a clean Git work tree, or a folder of one.
    to
        A version, tag, branch or commit of the template; the latest release without it.
    answers
        Changed answers, such as ``ops``.
    template
        The template's new location, if it has moved.
    drop
        Edited files that may be deleted because the new version lacks them.
    dry_run
        Only show what would change.
    keep_conflicts
        Apply a result even with conflict markers.
    """
    given = dict(answers or {})
    project = Project.open(path)
    with tempfile.TemporaryDirectory(
        prefix="npu-scaffold-upgrade-", ignore_cleanup_errors=True
    ) as temporary:
        scratch = Path(temporary).resolve()
        source = project.answers["_src_path"]
        if template is not None:
            there = Path(template).expanduser()
            source = str(there.resolve()) if there.exists() else template
        versions = Template(source, scratch / "template")
        old = versions.origin(project.answers["_commit"])
        new = versions.resolve(to)
        if old == new and not given:
            print(f"{path} has version {versions.name(new)} already.")
            return
        if (
            old != new
            and not run_git(versions.clone, "merge-base", "--is-ancestor", new, old).returncode
        ):
            raise ScaffoldError(
                f"{path} has version {versions.name(old)}, which is later than "
                f"{versions.name(new)}. To go back, check out a commit from "
                "before the upgrade."
            )
        if sys.stderr.isatty():
            names = " and ".join(versions.name(version) for version in (old, new))
            print(f"Rendering {names}: this takes some seconds.", file=sys.stderr)
        prepared = _prepare(project, versions, (old, new), given, drop, scratch)
        print("\n".join(prepared.report))
        sys.stdout.flush()
        listed = "\n".join(f"  {name}" for name in prepared.conflicts)
        if prepared.conflicts and not keep_conflicts:
            raise ScaffoldError(
                f"Your edits and the new version conflict in:\n{listed}\nNothing was changed. Pass "
                "--keep-conflicts to get these files with conflict markers, or move your edits "
                "to vendor/ first (docs/upgrading.md)."
            )
        if dry_run:
            print("Dry run: nothing was changed.")
            return
        _take_over(project, prepared, scratch)
        if prepared.conflicts:
            raise ScaffoldError(
                f"Conflict markers are in:\n{listed}\nResolve and 'git add' them, build and test, "
                "then commit. 'git reset --hard' undoes the upgrade."
            )
        print(
            "Done, and staged: see 'git diff --staged', build and test, then commit. "
            "'git reset --hard' undoes it."
        )
