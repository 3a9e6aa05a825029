"""Renders new backends and the reference backend with Copier."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import copier
import yaml
from copier.errors import CopierError

from .catalog import load_catalog
from .derived import derived_files, write_derived
from .errors import ScaffoldError, did_you_mean
from .template import find_template, read_questions, require_version

REFERENCE = Path("reference_backend")
REFERENCE_ANSWERS = Path("generator/reference_answers.yml")
MANIFEST = Path("generator/rendered_paths.txt")

# Copier's text before a validator's sentence.
_PREAMBLE = re.compile(r"^(Validation error for question '\w+': |Invalid choice for '\w+': )")


def read_answers(path: Path) -> dict[str, Any]:
    """Read an answers file.

    Parameters
    ----------
    path
        A YAML file with one mapping. ``.copier-answers.yml`` works as well: Copier's own keys are
        ignored.

    Returns
    -------
    dict
        The answers, not yet checked.
    """
    try:
        answers = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScaffoldError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ScaffoldError(f"{path} is not a text file in UTF-8.") from None
    except yaml.YAMLError as error:
        raise ScaffoldError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(answers, dict):
        raise ScaffoldError(
            f"{path} must hold answers as a mapping, for example 'backend_name: acme_npu'."
        )
    return {str(key): value for key, value in answers.items() if not str(key).startswith("_")}


def _copy(
    template: Path,
    destination: Path,
    answers: Mapping[str, object],
    vcs_ref: str | None,
    **more: Any,
) -> None:
    with warnings.catch_warnings():
        # Rendering uncommitted changes of the template is what developers want.
        warnings.simplefilter("ignore")
        copier.run_copy(
            str(template),
            str(destination),
            data=dict(answers),
            defaults=True,
            vcs_ref=vcs_ref,
            unsafe=False,
            **more,
        )


def _refusal(template: Path, answers: Mapping[str, object], vcs_ref: str | None) -> str:
    """Have Copier validate the answers without rendering."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            _copy(
                template,
                Path(scratch, "out"),
                answers,
                vcs_ref,
                pretend=True,
                quiet=True,
                exclude=["*"],
            )
        except (ValueError, TypeError, CopierError, yaml.YAMLError) as error:
            text = _PREAMBLE.sub("", " ".join(str(error).split()))
            return re.sub(r'^Question "\w+" is required$', "an answer is required.", text)
    return ""


def check_answers(
    template: Path, answers: Mapping[str, object], vcs_ref: str | None = None
) -> list[str]:
    """Check answers with the validators of the template.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.
    answers
        The answers; missing ones take their defaults.
    vcs_ref
        The version of the template, as in ``copier copy --vcs-ref``.

    Returns
    -------
    list of str
        One sentence per problem.
    """
    questions = read_questions(template)
    problems = [
        f"{key}: there is no such question{did_you_mean(key, questions)}; "
        f"the questions are {', '.join(questions)}."
        for key in answers
        if key not in questions
    ]
    given = {name: answers[name] for name in questions if name in answers}
    if not _refusal(template, given, vcs_ref):
        return problems

    # Copier stops at the first bad answer. Try each one with good ones, to report all.
    good: dict[str, Any] = {}
    for name, question in questions.items():
        required = name == "ops" and given.get("op_preset") == "custom"
        if name not in given and "default" in question and not required:
            continue
        beside = {"backend_name": "acme_npu", **good}
        if name == "ops" and "op_preset" not in good and "ops" in given:
            beside["op_preset"] = "custom"
        beside.pop(name, None)
        trial = {**beside, **({name: given[name]} if name in given else {})}
        if trial.get("op_preset") == "custom" and name != "ops":
            trial.setdefault("ops", [next(iter(load_catalog(template)))])
        refusal = _refusal(template, trial, vcs_ref)
        if refusal:
            problems.append(f"{name}: {refusal}")
        elif name in given:
            good[name] = given[name]
    return problems


def new_backend(
    destination: Path,
    answers: Mapping[str, object],
    template: str | Path | None = None,
    vcs_ref: str | None = None,
) -> None:
    """Render a new backend, or write nothing.

    Parameters
    ----------
    destination
        A directory that is empty or does not exist.
    answers
        The answers; missing ones take their defaults.
    template
        A checkout of npu-scaffold, see `find_template`.
    vcs_ref
        The version of the template, as in ``copier copy --vcs-ref``.
    """
    source = find_template(template)
    if vcs_ref is not None:
        require_version(source, vcs_ref)
    problems = check_answers(source, answers, vcs_ref)
    existed = destination.exists()
    if existed and (not destination.is_dir() or any(destination.iterdir())):
        problems.append(f"{destination} exists and is not an empty directory; give another one.")
    if problems:
        raise ScaffoldError("\n".join(problems))
    try:
        _copy(source, destination, answers, vcs_ref)
    except Exception:
        # On an error, Copier removes a directory that it made itself.
        for path in list(destination.iterdir()) if existed else []:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def render_reference(template: Path, destination: Path) -> None:
    """Render the reference backend from the working tree of the template.

    The answers omit the template's location, so that every machine renders the same bytes.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.
    destination
        Where the files go.
    """
    with tempfile.TemporaryDirectory() as scratch:
        # Outside of Git, because Copier would render the latest tag.
        source = Path(scratch, "source")
        shutil.copytree(
            template / "template",
            source / "template",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copy(template / "copier.yml", source)
        _copy(source, destination, read_answers(template / REFERENCE_ANSWERS), None, quiet=True)
    remembered = destination / ".copier-answers.yml"
    lines = remembered.read_text(encoding="utf-8").splitlines(keepends=True)
    remembered.write_text(
        "".join(line for line in lines if not line.startswith("_")), encoding="utf-8"
    )


def tracked_files(root: Path) -> dict[str, bytes]:
    """Read a tree without the files that Git ignores, such as builds and caches.

    Parameters
    ----------
    root
        The directory.

    Returns
    -------
    dict
        Path from the directory, with slashes -> content.
    """
    if not root.is_dir():
        return {}
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        names = [path.relative_to(root).as_posix() for path in root.rglob("*")]
    return {name: (root / name).read_bytes() for name in names if (root / name).is_file()}


def _manifest(paths: Iterable[str]) -> str:
    """List the files outside the engine, which vendors may have edited."""
    return "".join(f"{path}\n" for path in sorted(paths) if not path.startswith("engine/"))


def reference_differences(template: Path) -> list[str]:
    """Compare the committed reference backend with a fresh render.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml`` and ``reference_backend/``.

    Returns
    -------
    list of str
        One sentence for each file that differs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        fresh_root = Path(scratch, "fresh")
        render_reference(template, fresh_root)
        fresh = {
            path.relative_to(fresh_root).as_posix(): path.read_bytes()
            for path in fresh_root.rglob("*")
            if path.is_file()
        }
    committed = tracked_files(template / REFERENCE)
    sentences = []
    for name in sorted(fresh.keys() | committed.keys()):
        if name not in committed:
            sentences.append(f"{REFERENCE / name} is missing.")
        elif name not in fresh:
            sentences.append(f"{REFERENCE / name} is not rendered by the template.")
        elif fresh[name] != committed[name]:
            pairs = zip(fresh[name].splitlines(), committed[name].splitlines(), strict=False)
            line = next(
                (number for number, (new, old) in enumerate(pairs, 1) if new != old),
                min(fresh[name].count(b"\n"), committed[name].count(b"\n")) + 1,
            )
            sentences.append(f"{REFERENCE / name} differs from line {line} on.")
    for path, text in derived_files(template).items():
        derived = template / path
        if not derived.is_file() or derived.read_text(encoding="utf-8") != text:
            sentences.append(f"{path} differs from the catalogue.")
    manifest = template / MANIFEST
    if not manifest.is_file() or manifest.read_text(encoding="utf-8") != _manifest(fresh):
        sentences.append(f"{MANIFEST} does not list the files of {REFERENCE}.")
    return sentences


def write_reference(template: Path) -> None:
    """Re-render the reference backend, and what is made of the catalogue.

    Files that Git ignores stay. The folder is replaced at the end: whatever happens before, the old
    one is whole.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.
    """
    write_derived(template)
    destination = template / REFERENCE
    # Beside it, as a folder moves in one step only within a file system.
    with tempfile.TemporaryDirectory(prefix=f"{REFERENCE}.", dir=template) as scratch:
        fresh, old = Path(scratch, "fresh"), Path(scratch, "old")
        render_reference(template, fresh)
        paths = [path.relative_to(fresh).as_posix() for path in fresh.rglob("*") if path.is_file()]
        tracked = tracked_files(destination)
        for path in list(destination.rglob("*")):
            name = path.relative_to(destination).as_posix()
            if name not in tracked and (path.is_symlink() or path.is_file()):
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                path.rename(fresh / name)
        if destination.exists():
            destination.rename(old)
        fresh.rename(destination)
        (template / MANIFEST).write_text(_manifest(paths), encoding="utf-8")
