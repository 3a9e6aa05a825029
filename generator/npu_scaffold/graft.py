"""``npu-scaffold graft`` and ``ungraft``: a backend in a checkout of TVM, and out of it again."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import ScaffoldError
from .git import git_output, run_git
from .in_tree import Backend

# What graft needs in a checkout of TVM, and which release added it.
_NEEDED = {
    "python/tvm/relax/backend/contrib/__init__.py": "",
    "src/relax/backend/contrib/utils.h": "",
    "cmake/utils/Library.cmake": "tvm_configure_target_library",
    "CMakeLists.txt": "add_library(tvm_runtime_extra SHARED)",
}


@dataclass(frozen=True)
class _Line:
    """A line to insert into a file of TVM's, below the last line of its kind."""

    file: str
    text: str
    kind: str
    """A regular expression that matches lines of its kind."""
    same: str
    """The beginning of an equivalent line; if the file has one, nothing is inserted."""


def _lines(backend: Backend) -> list[_Line]:
    options = r"tvm_option\(USE_\w+_(CODEGEN|RUNTIME) .*\)"
    settings = r"echo set\\\(USE_\w+ ON\\\) >> config\.cmake"
    module = f"include(cmake/modules/contrib/{backend.class_name}.cmake)"
    lines = []
    for part in ("CODEGEN", "RUNTIME"):
        option = f"USE_{backend.upper}_{part}"
        words = f'"Build with {backend.class_name} {part.lower()}"'
        lines += [
            _Line(
                "CMakeLists.txt",
                f"tvm_option({option} {words} OFF)",
                options,
                f"tvm_option({option} ",
            ),
            _Line(
                "tests/scripts/task_config_build_cpu.sh",
                rf"echo set\({option} ON\) >> config.cmake",
                settings,
                rf"echo set\({option} ",
            ),
        ]
    kind = r"include\(cmake/modules/contrib/\w+\.cmake\)"
    return [*lines, _Line("CMakeLists.txt", module, kind, module)]


@dataclass
class _Record:
    """What graft did; stored in Git's own directory, so that no commit includes it."""

    name: str
    commit: str
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each file that was put there."""
    lines: dict[str, list[str]] = field(default_factory=dict)
    """The lines that were inserted into each file of TVM's."""
    replaced: list[str] = field(default_factory=list)
    """TVM's files of the same name that were replaced."""


@dataclass(frozen=True)
class _Checkout:
    """A checkout of TVM."""

    top: Path
    records: dict[str, _Record]

    @classmethod
    def open(cls, path: Path) -> _Checkout:
        inside = run_git(path, "rev-parse", "--show-toplevel") if path.is_dir() else None
        if inside is None or inside.returncode:
            raise ScaffoldError(
                f"{path} is not a Git checkout. Give the directory of a checkout of TVM."
            )
        top = Path(inside.stdout.decode(errors="surrogateescape").rstrip("\n")).resolve()
        checkout = cls(top, {})
        try:
            for file in sorted(checkout._folder.glob("*.json")):
                record = _Record(**json.loads(file.read_text(encoding="utf-8")))
                checkout.records[record.name] = record
        except (ValueError, TypeError):
            raise ScaffoldError(
                f"{file} is damaged: it says what was grafted. Delete it, and restore the "
                "checkout with 'git stash --include-untracked'."
            ) from None
        return checkout

    @property
    def _folder(self) -> Path:
        return Path(git_output(self.top, "rev-parse", "--absolute-git-dir"), "npu-scaffold")

    def require_tvm(self) -> None:
        for needed, text in _NEEDED.items():
            file = self.top / needed
            if not file.is_file() or text not in file.read_text(encoding="utf-8"):
                raise ScaffoldError(
                    f"{self.top} is not a checkout of a TVM that graft supports: "
                    f"{needed} {f'has no {text}' if file.is_file() else 'is missing'}. "
                    "TVM 0.25 is the first."
                )

    def require_clean(self) -> None:
        """Refuse uncommitted changes that no graft made."""
        known = {
            path for record in self.records.values() for path in (*record.files, *record.lines)
        } | {path for record in self.records.values() for path in record.replaced}
        status = git_output(
            self.top,
            *("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"),
            "--ignore-submodules=all",
        )
        changed = [entry[3:] for entry in status.split("\0") if entry]
        dirty = [path for path in changed if path not in known]
        if dirty:
            raise ScaffoldError(
                f"{self.top} has uncommitted changes: {_some(dirty)}. Commit them or "
                "stash them with 'git stash --include-untracked', then graft."
            )

    def read(self, path: str) -> bytes | None:
        file = self.top / path
        return file.read_bytes() if file.is_file() else None

    def tracked(self, places: Iterable[str]) -> list[str]:
        listed = git_output(self.top, "ls-files", "-z", "--", *places)
        return [path for path in listed.split("\0") if path]

    def apply(self, changes: Mapping[str, bytes | None], record: _Record, *, keep: bool) -> None:
        """Write and delete files, all of them or none; keep or delete the record."""
        note = self._folder / f"{record.name}.json"
        old_note = note.read_bytes() if note.is_file() else None
        before = {path: self.read(path) for path in changes}
        try:
            note.parent.mkdir(exist_ok=True)
            note.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
            for path, content in changes.items():
                self._put(self.top / path, content)
            if not keep:
                self._put(note, None)
        except BaseException:
            for path, content in before.items():
                self._put(self.top / path, content)
            self._put(note, old_note)
            raise

    def _put(self, file: Path, content: bytes | None) -> None:
        if content is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            return
        file.unlink(missing_ok=True)
        for folder in file.parents:
            if not folder.is_dir():
                continue
            # Python leaves its cache beside a deleted file.
            if [entry.name for entry in folder.iterdir()] == ["__pycache__"]:
                for compiled in (folder / "__pycache__").glob("*.pyc"):
                    compiled.unlink()
                (folder / "__pycache__").rmdir()
            if any(folder.iterdir()):
                return
            folder.rmdir()


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _with_lines(
    checkout: _Checkout, lines: Iterable[_Line]
) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """Insert lines; return the new files, and what was inserted into each."""
    texts: dict[str, list[str]] = {}
    inserted: dict[str, list[str]] = {}
    for line in lines:
        content = checkout.read(line.file)
        if line.file not in texts:
            texts[line.file] = (content or b"").decode().split("\n")
        text = texts[line.file]
        if any(other.startswith(line.same) for other in text):
            continue
        last = max((i for i, other in enumerate(text) if re.fullmatch(line.kind, other)), default=0)
        if not last:
            raise ScaffoldError(
                f"{checkout.top / line.file} has no line like '{line.text}' to insert this one "
                "below. graft does not know this version of TVM: please report it."
            )
        text.insert(last + 1, line.text)
        inserted.setdefault(line.file, []).append(line.text)
    return {file: "\n".join(texts[file]).encode() for file in inserted}, inserted


def _as_tvm_sorts(checkout: _Checkout, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Sort imports with TVM's configuration, if ruff is installed: there, tvm is first-party."""
    configuration = checkout.read("pyproject.toml")
    ruff = shutil.which("ruff")
    if configuration is None or ruff is None:
        return dict(files)
    python = [place for place in files if place.endswith(".py")]
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "pyproject.toml").write_bytes(configuration)
        # ruff takes packages in these folders for first-party.
        for pattern in ("*/", "src/*/"):
            for folder in checkout.top.glob(pattern):
                Path(scratch, folder.relative_to(checkout.top)).mkdir(exist_ok=True, parents=True)
        for place in python:
            Path(scratch, place).parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, place).write_bytes(files[place])
        fix = ("check", "--quiet", "--no-cache", "--fix-only", "--fixable", "I,RUF100")
        subprocess.run([ruff, *fix, "."], cwd=scratch, capture_output=True, check=False)
        return {**files, **{place: Path(scratch, place).read_bytes() for place in python}}


def graft(path: Path, backend_path: Path, *, replace: bool = False) -> None:
    """Put a backend into a checkout of TVM; nothing changes if it is there already.

    Parameters
    ----------
    path
        The checkout.
    backend_path
        The directory of the backend.
    replace
        Whether to replace TVM's own backend of the same name.

    Raises
    ------
    ScaffoldError
        `path` is not a checkout of TVM, `backend_path` is not a backend, there are uncommitted
        changes, or a file is in the way; nothing was changed.
    """
    checkout = _Checkout.open(path)
    checkout.require_tvm()
    backend = Backend.open(backend_path.resolve())
    files = _as_tvm_sorts(checkout, backend.files())
    record = checkout.records.get(backend.name)
    is_first = record is None
    if record is None:
        checkout.require_clean()
        record = _Record(backend.name, git_output(checkout.top, "rev-parse", "HEAD"))
        theirs = checkout.tracked([*files, backend.python, backend.compiler, backend.runtime])
        if theirs and not replace:
            raise ScaffoldError(
                f"TVM has its own backend '{backend.name}': {_some(theirs)}. To replace it with "
                "yours, pass --replace; 'npu-scaffold ungraft' restores TVM's."
            )
        record.replaced = theirs
    known = {
        **record.files,
        **{path: _digest(checkout.read(path) or b"") for path in record.replaced},
    }
    edited = []
    changes: dict[str, bytes | None] = {}
    for place in sorted({*files, *known}):
        now, new = checkout.read(place), files.get(place)
        if now == new:
            continue
        if now is not None and _digest(now) != known.get(place):
            edited.append(place)
        changes[place] = new
    if edited:
        raise ScaffoldError(
            f"Files in {checkout.top} were edited, or not written by graft: {_some(edited)}. "
            f"Move the edits to {backend.root}, delete the files, then graft again."
        )
    texts, inserted = _with_lines(checkout, _lines(backend))
    changes.update(texts)
    if not changes:
        print(f"{backend.name} is in {checkout.top} already; nothing changed.")
        return
    record.files = {place: _digest(content) for place, content in files.items()}
    for file, added in inserted.items():
        record.lines[file] = [*record.lines.get(file, []), *added]
    checkout.apply(changes, record, keep=True)
    written = sum(content is not None for content in changes.values()) - len(texts)
    print(f"{backend.name} is in {checkout.top}: {written} files written.")
    for file, added in inserted.items():
        print(f"  {file}: {len(added)} lines inserted")
    if is_first and record.replaced:
        print(f"  {len(record.replaced)} files of TVM's own {backend.name} replaced")
    print(
        f"Configure with -DUSE_{backend.upper}_CODEGEN=ON -DUSE_{backend.upper}_RUNTIME=ON. "
        "'npu-scaffold ungraft' removes it."
    )


def ungraft(path: Path, name: str | None = None) -> None:
    """Take a backend out of a checkout of TVM.

    Parameters
    ----------
    path
        The checkout.
    name
        The backend's name; may be left out if only one is grafted.

    Raises
    ------
    ScaffoldError
        There is no such backend, or its files were edited; nothing was changed.
    """
    checkout = _Checkout.open(path)
    grafted = ", ".join(checkout.records) or "none"
    if name is None:
        if len(checkout.records) != 1:
            raise ScaffoldError(f"Name the backend; grafted are: {grafted}.")
        (name,) = checkout.records
    if name not in checkout.records:
        raise ScaffoldError(f"{name} was not grafted to {checkout.top}; grafted are: {grafted}.")
    record = checkout.records[name]
    changes: dict[str, bytes | None] = {}
    edited = []
    for place, digest in record.files.items():
        now = checkout.read(place)
        if now is not None and _digest(now) != digest:
            edited.append(place)
        changes[place] = None
    if edited:
        raise ScaffoldError(
            f"Files in {checkout.top} were edited: {_some(edited)}. The edits would be lost: move "
            "them to the backend's own repository, delete the files, then ungraft again."
        )
    for place in record.replaced:
        old = run_git(checkout.top, "cat-file", "blob", f"{record.commit}:{place}")
        if old.returncode:
            raise ScaffoldError(
                f"TVM's own {place} of commit {record.commit} cannot be read. Fetch that "
                "commit, then ungraft again."
            )
        changes[place] = old.stdout
    for file, added in record.lines.items():
        text = (checkout.read(file) or b"").decode().split("\n")
        for line in added:
            if line in text:
                text.remove(line)
        changes[file] = "\n".join(text).encode()
    checkout.apply(changes, record, keep=False)
    # Also remove the files from the index: TVM's checks need them to be added.
    ours = [*record.files, *record.replaced]
    for file in record.lines:
        if not run_git(checkout.top, "diff", "--quiet", "HEAD", "--", file).returncode:
            ours.append(file)
    git_output(
        checkout.top,
        *("reset", "-q", "--pathspec-from-file=-", "--pathspec-file-nul"),
        feed="\0".join(ours).encode(errors="surrogateescape"),
    )
    print(f"{name} was removed from {checkout.top}.")
