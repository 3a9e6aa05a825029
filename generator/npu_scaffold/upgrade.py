"""``npu-scaffold upgrade``: 'copier update' on a copy, which is checked before it is applied."""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import copier
import yaml
from packaging.version import InvalidVersion, Version

from .errors import ScaffoldError, did_you_mean
from .git import git_output, run_git
from .render import check_answers, read_answers
from .template import read_questions

ANSWERS = ".copier-answers.yml"
RELEASES = "releases.yml"
VENDOR = "vendor/"
ENGINE = "engine/"

_SHOWN = 20
_MARKER = re.compile(rb"^(<<<<<<< before updating|>>>>>>> after updating)\s*$", re.MULTILINE)
_API_VERSION = re.compile(r"^#define NPU_DRIVER_API_VERSION (\d+)", re.MULTILINE)

Tree = dict[str, bytes]


def _commit(repository: Path, name: str) -> str | None:
    done = run_git(
        repository, "rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{commit}}"
    )
    return done.stdout.decode().strip() if name and not done.returncode else None


@dataclass(frozen=True)
class _Project:
    """A rendered backend in a Git work tree; it may be a folder of a larger repository."""

    root: Path
    top: Path
    answers: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.root.relative_to(self.top)

    @classmethod
    def open(cls, path: Path) -> _Project:
        root = path.resolve()
        remembered = root / ANSWERS
        if not remembered.is_file():
            raise ScaffoldError(
                f"{path} has no {ANSWERS}, so it is not a backend that npu-scaffold made. "
                "Give the directory of one."
            )
        given = read_answers(remembered)
        raw = yaml.safe_load(remembered.read_text(encoding="utf-8"))
        if "backend_name" not in given:
            raise ScaffoldError(f"{remembered} has no backend_name: npu-scaffold did not make it.")
        if not isinstance(raw.get("_src_path"), str) or not isinstance(raw.get("_commit"), str):
            raise ScaffoldError(
                f"{remembered} does not say which version of the template it came from: it was "
                "made from a template outside Git. Put back the lines _src_path (a clone or URL of "
                "npu-scaffold) and _commit (the version), and commit them."
            )
        inside = run_git(root, "rev-parse", "--show-toplevel")
        if inside.returncode:
            raise ScaffoldError(
                f"{path} is not in a Git work tree, so an upgrade could not be undone. Run "
                "'git init && git add . && git commit -m Start' in it first."
            )
        top = Path(inside.stdout.decode(errors="surrogateescape").rstrip("\n")).resolve()
        if _commit(root, "HEAD") is None:
            raise ScaffoldError(f"{path} has no commit yet. Commit it, then upgrade.")
        dirty = git_output(root, "status", "--porcelain", "--", ".").splitlines()
        if dirty:
            names = [line[3:] for line in dirty]
            raise ScaffoldError(
                f"{path} has uncommitted changes: {_some(names)}. Commit them or put "
                "them away with 'git stash --include-untracked', then upgrade."
            )
        return cls(root, top, raw)


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _number(name: str) -> Version | None:
    try:
        return Version(name) if re.match(r"v?\d", name) else None
    except InvalidVersion:
        return None


def read_releases(text: str) -> dict[str, str]:
    """Read the list of releases.

    Parameters
    ----------
    text
        The content of ``releases.yml``.

    Returns
    -------
    dict
        Version -> commit, in the order of the file.
    """
    releases = (yaml.safe_load(text) or {}).get("releases") or {}
    return {str(version): str(commit) for version, commit in releases.items()}


class _Template:
    """A private clone of the template with all versions."""

    def __init__(self, source: str, clone: Path) -> None:
        self.source = source
        self.clone = clone
        url = re.sub(r"^git\+", "", source)
        for short, host in (("gh:", "https://github.com/"), ("gl:", "https://gitlab.com/")):
            if url.startswith(short):
                url = host + url.removeprefix(short).lstrip("/")
        local = "://" not in url and not re.match(r"[\w.-]+@[\w.-]+:", url)
        if local and not Path(url).expanduser().exists():
            raise ScaffoldError(
                f"The template was at {source}, and nothing is there now. Say where npu-scaffold "
                "is with --template, as a clone or a URL."
            )
        done = run_git(
            clone.parent,
            *("clone", "-q", "--", str(Path(url).expanduser().resolve()) if local else url),
            str(clone),
        )
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise ScaffoldError(
                f"The template at {source} cannot be cloned ({said}). Say where npu-scaffold is "
                "with --template, as a clone or a URL."
            )
        if not (clone / "copier.yml").is_file():
            raise ScaffoldError(f"{source} is not a clone of npu-scaffold: it has no copier.yml.")
        self.versions: dict[str, str] = {}
        listed = run_git(clone, "show", f"HEAD:{RELEASES}")
        if not listed.returncode:
            for version, commit in read_releases(listed.stdout.decode()).items():
                found = _commit(clone, commit)
                if found:
                    self.versions[f"v{version}"] = found
        for tag in git_output(clone, "tag").splitlines():
            if _number(tag):
                self.versions[tag] = _commit(clone, f"refs/tags/{tag}") or ""

    def _known(self) -> str:
        names = sorted(self.versions, key=lambda name: _number(name) or Version("0"))
        return f"it has {', '.join(names)}" if names else "it has no releases, only commits"

    def resolve(self, wanted: str | None) -> str:
        """Find the commit of a version; the default is the latest release."""
        if wanted is None:
            released = {
                version: commit
                for name, commit in self.versions.items()
                if (version := _number(name)) and not version.is_prerelease
            }
            return released[max(released)] if released else _commit(self.clone, "HEAD") or ""
        for name in (wanted, f"v{wanted}"):
            if name in self.versions:
                return self.versions[name]
        found = _commit(self.clone, wanted) or _commit(self.clone, f"origin/{wanted}")
        if found is None:
            raise ScaffoldError(
                f"The template at {self.source} has no version '{wanted}'"
                f"{did_you_mean(wanted, self.versions)}: {self._known()}."
            )
        return found

    def origin(self, name: str) -> str:
        """Return the commit that a project was rendered from."""
        found = _commit(self.clone, name)
        if found is None:
            raise ScaffoldError(
                f"The template at {self.source} has no version '{name}', from which this backend "
                f"was made: {self._known()}. It may be another template, a clone without the whole "
                "history, or the backend was made from uncommitted work. Name the right one with "
                "--template."
            )
        return found

    def files(self, commit: str) -> Path:
        """Export the files of a version to a folder outside Git."""
        folder = self.clone.with_name(f"template-{commit}")
        if not folder.exists():
            packed = run_git(self.clone, "archive", "--format=tar", commit).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
        return folder

    def name(self, commit: str) -> str:
        for name, listed in self.versions.items():
            if listed == commit:
                return name
        return git_output(self.clone, "describe", "--tags", "--always", commit)


def _tree(root: Path) -> Tree:
    return {
        path.relative_to(root).as_posix(): (
            os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        )
        for path in sorted(root.rglob("*"))
        if ".git" not in path.relative_to(root).parts and (path.is_symlink() or path.is_file())
    }


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
    return _tree(out)


def _answers(tree: Tree) -> dict[str, Any]:
    found = yaml.safe_load(tree[ANSWERS])
    return {key: value for key, value in found.items() if not key.startswith("_")}


def _nearest(text: bytes, candidates: Mapping[str, bytes], name: str) -> str:
    """Find the new name of a file: the most similar new file."""
    best, found = 0.5, ""
    for path, other in candidates.items():
        matcher = SequenceMatcher(None, text.splitlines(), other.splitlines(), autojunk=False)
        likeness = matcher.ratio() + 0.2 * (Path(path).name == Path(name).name)
        if likeness > best:
            best, found = likeness, path
    return found


def _below(folder: str, tree: Iterable[str]) -> list[str]:
    return [path for path in tree if path.startswith(f"{folder}/")]


def _in_the_way(old: Tree, new: Tree, mine: Tree) -> tuple[list[str], list[str]]:
    """Find unedited files where the new version has folders, or folders where it has files.

    Returns the files that the new version replaces, and sentences about edited ones.
    """
    gone: list[str] = []
    problems: list[str] = []
    for path in sorted(set(new) - set(old)):
        if path.startswith(VENDOR):
            continue
        parents = [str(parent) for parent in Path(path).parents]
        for blocking in [*(p for p in parents if p in mine), *_below(path, mine)]:
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


def _lost(old: Tree, new: Tree, mine: Tree, result: Tree, drop: Sequence[str]) -> list[str]:
    """Report edited files that the update would delete or not deliver."""
    problems = []
    added = {
        path: text for path, text in new.items() if path not in old and not path.startswith(VENDOR)
    }
    for path in sorted(set(mine) - set(result)):
        if mine[path] == old.get(path) or path in drop:
            continue
        moved = _nearest(old.get(path, mine[path]), added, path)
        where = f", which is now {moved}" if moved else ""
        problems.append(
            f"{path} was edited here, and the upgrade would delete it{where}: the edit would be "
            f"lost. Move it to vendor/ or{' to ' + moved if moved else ' elsewhere'} after the "
            f"upgrade; to continue, pass --drop {path} (your text stays in the history of Git)."
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


def _lost_answers(
    before: Mapping[str, object],
    after: Mapping[str, object],
    given: Mapping[str, object],
    questions: Mapping[str, object],
) -> list[str]:
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


def _skipped(
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


class _Spelled(ast.NodeTransformer):
    """Puts the tuples of a module in place of their names, which its next version may redefine."""

    def __init__(self, module: ast.Module) -> None:
        self.tuples = {
            ast.unparse(node.targets[0]): node.value
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        }

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name that is read."""
        return self.tuples.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _entries(tree: Tree) -> dict[str, ast.Call]:
    """Read the limits of each op that a fresh render records for the vendor."""
    found: dict[str, ast.Call] = {}
    for path, text in tree.items():
        if path != "vendor/capabilities.py" and not re.fullmatch(r"python/\w+/\w+\.py", path):
            continue
        module = ast.parse(text)
        for node in ast.walk(_Spelled(module).visit(module)):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if not isinstance(key, ast.Constant) or not isinstance(value, ast.Call):
                        continue
                    if getattr(value.func, "id", "") == "Limits":
                        found[str(key.value)] = value
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Op":
                for word in node.keywords:
                    if word.arg == "name" and isinstance(word.value, ast.Constant):
                        found.setdefault(str(word.value.value), node)
    return found


def _changes(old: ast.expr, new: ast.expr, where: str) -> list[str]:
    """Compare two expressions down to their differences."""
    if ast.dump(old) == ast.dump(new):
        return []
    if isinstance(old, ast.Call) and isinstance(new, ast.Call):
        before = {word.arg or "": word.value for word in old.keywords}
        after = {word.arg or "": word.value for word in new.keywords}
        if ast.dump(old.func) == ast.dump(new.func) and len(old.args) == len(new.args):
            places = {key: f"{where} {key}".strip() for key in before | after}
            both = [key for key in before if key in after]
            pairs = [(a, b, where) for a, b in zip(old.args, new.args, strict=True)]
            pairs += [(before[key], after[key], places[key]) for key in both]
            # Compare ranges as a whole.
            if all(isinstance(a, ast.Constant) for a, _, _ in pairs) and where:
                return [f"{where}: {ast.unparse(old)} -> {ast.unparse(new)}"]
            found = [text for a, b, place in pairs for text in _changes(a, b, place)]
            for word, known, others in (("new", after, before), ("gone", before, after)):
                found += [
                    f"{places[key]}: {ast.unparse(value)} ({word})"
                    for key, value in known.items()
                    if key not in others
                ]
            return found
    if isinstance(old, ast.Dict) and isinstance(new, ast.Dict):
        named = [
            {
                ast.unparse(key).strip("'"): value
                for key, value in zip(d.keys, d.values, strict=True)
                if key
            }
            for d in (old, new)
        ]
        if named[0].keys() == named[1].keys():
            return [
                text
                for key in named[0]
                for text in _changes(named[0][key], named[1][key], f"{where} {key}".strip())
            ]
    if isinstance(old, ast.Tuple) and isinstance(new, ast.Tuple) and len(old.elts) == len(new.elts):
        return [
            text for a, b in zip(old.elts, new.elts, strict=True) for text in _changes(a, b, where)
        ]
    return [f"{where}: {ast.unparse(old)} -> {ast.unparse(new)}".removeprefix(": ")]


def _limits(old: Tree, new: Tree) -> list[str]:
    before, after = _entries(old), _entries(new)
    return [
        f"{op}: {change}"
        for op in before
        if op in after
        for change in _changes(before[op], after[op], "")
    ]


def _api_version(tree: Tree) -> str:
    found = _API_VERSION.search(tree.get("engine/include/npu_driver.h", b"").decode())
    return found.group(1) if found else "unknown"


def _all_ops(template: Path, answers: Mapping[str, object], out: Path) -> list[str]:
    """Read the whole catalogue of a version, in that version's format."""
    others = {name: value for name, value in answers.items() if name != "ops"}
    everything = {**others, "op_preset": "everything"}
    tree = _render(template, everything, out, exclude=["*", f"!/{ANSWERS}"])
    return list(_answers(tree).get("ops", []))


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
    template: _Template, commit: str, copy: Path, given: Mapping[str, object], skip: Sequence[str]
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
    project: _Project,
    template: _Template,
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
    lost = _lost_answers(kept, _answers(new), given, questions)
    if lost:
        raise ScaffoldError("\n".join(lost))

    clone = scratch / "project"
    head = git_output(project.top, "rev-parse", "HEAD")
    git_output(scratch, "clone", "-q", "--shared", "--no-checkout", str(project.top), str(clone))
    git_output(clone, "checkout", "-q", "--detach", head)
    copy = clone / project.folder
    mine = _tree(copy)
    gone, problems = _in_the_way(old, new, mine)
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

    result = _tree(copy)
    unedited, edited = _skipped(old, new, mine, result, scratch)
    for path in unedited:
        (copy / path).write_bytes(new[path])
        result[path] = new[path]
    before = {path: text for path, text in mine.items() if path not in gone}
    problems = _lost(old, new, before, result, drop)
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
        if (project.root / path).exists() and not (path in new and _below(path, gone))
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
    limits = _limits(old, new)
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
    own = [
        path
        for path in sorted(old)
        if path.startswith(ENGINE) and mine.get(path) != old[path] and path in new
    ]
    if own:
        report.append(
            f"edited or deleted in engine/, which is not yours, and merged: {_some(own)}. "
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


def _take_over(project: _Project, prepared: _Prepared, scratch: Path) -> None:
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
    project = _Project.open(path)
    with tempfile.TemporaryDirectory(
        prefix="npu-scaffold-upgrade-", ignore_cleanup_errors=True
    ) as temporary:
        scratch = Path(temporary).resolve()
        source = project.answers["_src_path"]
        if template is not None:
            there = Path(template).expanduser()
            source = str(there.resolve()) if there.exists() else template
        versions = _Template(source, scratch / "template")
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
