"""The command ``npu-scaffold``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from copier.errors import CopierError
from jinja2 import TemplateError

from . import __version__, pages
from .catalog import catalog_problems, load_catalog
from .errors import ScaffoldError
from .graft import graft, ungraft
from .release import release, set_tags
from .render import new_backend, read_answers, reference_differences, write_reference
from .template import find_template
from .upgrade import upgrade


def _assignments(data: Sequence[str]) -> dict[str, Any]:
    answers = {}
    for assignment in data:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ScaffoldError(f"-d {assignment}: write it as key=value.")
        answers[key] = value
    return answers


def _new(arguments: argparse.Namespace) -> None:
    answers = read_answers(Path(arguments.answers)) if arguments.answers else {}
    answers |= _assignments(arguments.data)
    new_backend(Path(arguments.destination), answers, arguments.template, arguments.vcs_ref)


def _upgrade(arguments: argparse.Namespace) -> None:
    upgrade(
        Path(arguments.project),
        arguments.to,
        _assignments(arguments.data),
        arguments.template,
        drop=arguments.drop,
        dry_run=arguments.dry_run,
        keep_conflicts=arguments.keep_conflicts,
    )


def _graft(arguments: argparse.Namespace) -> None:
    graft(Path(arguments.checkout), Path(arguments.backend), replace=arguments.replace)


def _ungraft(arguments: argparse.Namespace) -> None:
    ungraft(Path(arguments.checkout), arguments.name)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _dtypes(entry: dict[str, Any]) -> str:
    found = [dtype for value in entry["inputs"] for dtype in value.get("dtypes", [])]
    return ", ".join(dict.fromkeys(found))


def _ops(arguments: argparse.Namespace) -> None:
    template = find_template(arguments.template)
    problems = catalog_problems(template)
    if problems:
        raise ScaffoldError("\n".join(problems))
    catalog = load_catalog(template)
    if arguments.json:
        print(json.dumps(catalog, indent=2, ensure_ascii=False))
        return
    rows = [("op", "Relax op", "engine", "presets", "dtypes", "what it is")]
    rows += [
        (
            op,
            entry.get("relax", "several others"),
            entry["engine"],
            ", ".join(entry["presets"]),
            _dtypes(entry),
            entry["summary"],
        )
        for op, entry in catalog.items()
    ]
    print(_table(rows))


def _reference(arguments: argparse.Namespace) -> None:
    template = find_template(arguments.template)
    if arguments.write:
        write_reference(template)
        return
    differences = reference_differences(template)
    if differences:
        differences.append("Run 'npu-scaffold reference --write' and commit what it changes.")
        raise ScaffoldError("\n".join(differences))


def _docs(arguments: argparse.Namespace) -> None:
    template = find_template(arguments.template)
    if arguments.write:
        pages.write(template, Path(arguments.result) if arguments.result else None)
        return
    if arguments.result:
        raise ScaffoldError("--result is for --write: it replaces the data of the page.")
    found = pages.differences(template)
    if found:
        found.append("Run 'npu-scaffold docs --write' and commit what it changes.")
        raise ScaffoldError("\n".join(found))


def _release(arguments: argparse.Namespace) -> None:
    root = find_template(arguments.template)
    if arguments.tags == bool(arguments.version):
        raise ScaffoldError("Give the version to release, or --tags alone.")
    if arguments.tags:
        tags = set_tags(root)
        print(f"{root}: {'set ' + ', '.join(tags) if tags else 'all releases have their tags'}.")
        return
    commit = release(root, arguments.version)
    tag = f"v{arguments.version}"
    print(f"{tag} is {commit}.\nNothing is published yet: git push origin HEAD {tag}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="npu-scaffold", description="Makes TVM backends for NPUs from the template."
    )
    parser.add_argument("--version", action="version", version=__version__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--template",
        metavar="PATH",
        help="a checkout of npu-scaffold (default: the current folder, or where it is installed)",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    new = commands.add_parser("new", parents=[common], help="render a new backend")
    new.add_argument("destination", help="a directory that is empty or does not exist")
    new.add_argument("--answers", metavar="FILE", help="answers as YAML")
    new.add_argument(
        "-d",
        "--data",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one answer; overrides the file",
    )
    new.add_argument(
        "--vcs-ref", metavar="REF", help="tag or commit of the template (default: the latest tag)"
    )
    new.set_defaults(run=_new)

    change = commands.add_parser(
        "upgrade",
        help="upgrade a backend to a later version of the template, or leave it unchanged",
    )
    change.add_argument("project", help="the backend, a clean Git work tree")
    change.add_argument("--to", metavar="VERSION", help="a release, tag, branch or commit")
    change.add_argument(
        *("-d", "--data"),
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a changed answer, for example ops=[conv2d,relu]",
    )
    change.add_argument(
        "--template", metavar="PLACE", help="the template, if it is not where the backend says"
    )
    change.add_argument("--dry-run", action="store_true", help="only show what would change")
    change.add_argument(
        "--drop",
        metavar="PATH",
        action="append",
        default=[],
        help="an edited file that may be deleted because the new version lacks it",
    )
    change.add_argument(
        "--keep-conflicts",
        action="store_true",
        help="write conflict markers into the backend instead of changing nothing",
    )
    change.set_defaults(run=_upgrade)

    put = commands.add_parser(
        "graft", help="put a backend into a checkout of TVM, where TVM keeps such backends"
    )
    put.add_argument("checkout", help="a clean Git checkout of TVM")
    put.add_argument(
        "--backend", metavar="DIR", default=".", help="the backend (default: this directory)"
    )
    put.add_argument(
        "--replace",
        action="store_true",
        help="put it instead of TVM's own backend of the same name",
    )
    put.set_defaults(run=_graft)

    take = commands.add_parser("ungraft", help="remove a backend from a checkout of TVM")
    take.add_argument("checkout", help="the checkout")
    take.add_argument(
        "name", nargs="?", help="the backend's name (default: the only one that is grafted)"
    )
    take.set_defaults(run=_ungraft)

    ops = commands.add_parser("ops", parents=[common], help="show the op catalogue")
    ops.add_argument("--json", action="store_true", help="everything, for programs")
    ops.set_defaults(run=_ops)

    reference = commands.add_parser(
        "reference", parents=[common], help="compare or rewrite reference_backend/"
    )
    mode = reference.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="list the files that differ")
    mode.add_argument("--write", action="store_true", help="render it anew")
    reference.set_defaults(run=_reference)

    docs = commands.add_parser(
        "docs", parents=[common], help="compare or rewrite the page of the ops, docs/ops.md"
    )
    mode = docs.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="check whether it is up to date")
    mode.add_argument("--write", action="store_true", help="make it anew")
    docs.add_argument(
        "--result",
        metavar="FILE",
        help="conformance.json of a run on the reference backend (default: the last one)",
    )
    docs.set_defaults(run=_docs)

    make = commands.add_parser(
        "release", parents=[common], help="release this repository, as docs/maintaining.md says"
    )
    make.add_argument("version", nargs="?", help="higher than every version in releases.yml")
    make.add_argument(
        "--tags", action="store_true", help="only set the missing tags of listed releases"
    )
    make.set_defaults(run=_release)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv
        The arguments without the name of the program; those of the process if left out.

    Returns
    -------
    int
        0, or 1 after an error, which is printed to standard error.
    """
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as 'head', has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ScaffoldError, CopierError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except TemplateError as error:
        print(f"The template itself is broken, please report it: {error}.", file=sys.stderr)
        return 1
    return 0
