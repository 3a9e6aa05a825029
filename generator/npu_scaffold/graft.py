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

# What a checkout of TVM must have: what graft needs, and which release brought it.
_NEEDED = {
    "python/tvm/relax/backend/contrib/__init__.py": "",
    "src/relax/backend/contrib/utils.h": "",
    "cmake/utils/Library.cmake": "tvm_configure_target_library",
    "CMakeLists.txt": "add_library(tvm_runtime_extra SHARED)",
}


@dataclass(frozen=True)
class _Line:
    """A line for a file of TVM's, below the last line of its kind."""

    file: str
    text: str
    kind: str
    """A regular expression."""
    same: str
    """How a line begins that does the same."""


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
    """What graft did; it is kept in Git's own directory, where no commit takes it."""

    name: str
    commit: str
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each file that was put there."""
    lines: dict[str, list[str]] = field(default_factory=dict)
    """The lines that were inserted into each file of TVM's."""
    replaced: list[str] = field(default_factory=list)
    """TVM's files of the same name that gave way."""


@dataclass(frozen=True)
class _Checkout:
    """A checkout of TVM."""

    top: Path
    records: dict[str, _Record]

    @classmethod
    def open(cls, path: Path) -> _Checkout:
        inside = run_git(path, "rev-parse", "--show-toplevel") if path.is_dir() else None
        if inside is None or inside.returncode:
            raise ScaffoldError(f"{path} is no Git checkout. Give the directory of one of TVM.")
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
                    f"{self.top} is no checkout of a TVM that backends can be grafted to: "
                    f"{needed} {f'has no {text}' if file.is_file() else 'is missing'}. "
                    "TVM 0.25 is the first."
                )

    def require_clean(self) -> None:
        """Refuse changes that are not of a graft."""
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
                f"{self.top} has changes that are not committed: {_some(dirty)}. Commit them or "
                "put them away with 'git stash --include-untracked', then graft."
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
            # What Python leaves behind beside a file that is gone.
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
                f"{checkout.top / line.file} has no line like '{line.text}', below which this one "
                "would go. This TVM is newer than what graft knows: please report it."
            )
        text.insert(last + 1, line.text)
        inserted.setdefault(line.file, []).append(line.text)
    return {file: "\n".join(texts[file]).encode() for file in inserted}, inserted


def _as_tvm_sorts(checkout: _Checkout, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Sort the imports by TVM's configuration, if ruff is installed: in TVM's tree, tvm is ours."""
    configuration = checkout.read("pyproject.toml")
    ruff = shutil.which("ruff")
    if configuration is None or ruff is None:
        return dict(files)
    python = [place for place in files if place.endswith(".py")]
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "pyproject.toml").write_bytes(configuration)
        # By these folders, ruff tells TVM's own packages from those of others.
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
        Whether a backend of TVM's own with the same name gives way.

    Raises
    ------
    ScaffoldError
        It is no checkout of TVM or no backend, there are changes that are not committed, or
        something is in the way; nothing was changed.
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
                f"TVM has a backend '{backend.name}' of its own: {_some(theirs)}. To put yours in "
                "its place, say --replace; 'npu-scaffold ungraft' brings TVM's back."
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
            f"Files in {checkout.top} were not written by graft, or edited since: {_some(edited)}. "
            f"Take the edits to {backend.root}, delete the files, then graft again."
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
        print(f"  {len(record.replaced)} files of TVM's own {backend.name} gave way")
    print(
        f"Configure with -DUSE_{backend.upper}_CODEGEN=ON -DUSE_{backend.upper}_RUNTIME=ON. "
        "'npu-scaffold ungraft' takes it out again."
    )


def ungraft(path: Path, name: str | None = None) -> None:
    """Take a backend out of a checkout of TVM.

    Parameters
    ----------
    path
        The checkout.
    name
        The backend's name; may be left out where there is only one.

    Raises
    ------
    ScaffoldError
        There is no such backend, or its files were edited; nothing was changed.
    """
    checkout = _Checkout.open(path)
    grafted = ", ".join(checkout.records) or "none"
    if name is None:
        if len(checkout.records) != 1:
            raise ScaffoldError(f"Say which backend, by its name; grafted are: {grafted}.")
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
            f"Files in {checkout.top} were edited: {_some(edited)}. The edits would be lost: take "
            "them to the backend's own repository, delete the files, then ungraft again."
        )
    for place in record.replaced:
        old = run_git(checkout.top, "cat-file", "blob", f"{record.commit}:{place}")
        if old.returncode:
            raise ScaffoldError(
                f"TVM's own {place} of commit {record.commit} cannot be read any more. Fetch that "
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
    # Also out of the index, where somebody has added the files for the checks of TVM.
    ours = [*record.files, *record.replaced]
    for file in record.lines:
        if not run_git(checkout.top, "diff", "--quiet", "HEAD", "--", file).returncode:
            ours.append(file)
    git_output(
        checkout.top,
        *("reset", "-q", "--pathspec-from-file=-", "--pathspec-file-nul"),
        feed="\0".join(ours).encode(errors="surrogateescape"),
    )
    print(f"{name} is out of {checkout.top} again.")
