# SPDX-License-Identifier: Apache-2.0
"""The commands `conformance` and `extract`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tvm
from tvm import relax

from ...backend.commands.arguments import add_json, add_shape
from ...backend.models.files import require_writable
from ...backend.models.reading import KINDS, read_model, with_shapes
from ...backend.shared.aliases import Array
from ...backend.shared.messages import printable
from ...backend.shared.problem import Problem, sentence
from ...backend.shared.terminal import say
from ...backend.shared.whole_files import NotWritten, write_text
from ..conformance.extract import CaseFile, extract, misfit, parts, read_arrays
from ..conformance.ledger import LEDGER, LedgerError
from ..conformance.model import Spec
from ..conformance.outcomes import FORMAT_VERSION, Result
from ..conformance.pages import as_html, as_markdown
from ..conformance.runner import SUITES, cases_of, meant, run
from ..conformance.suite import Crashed, NotRun, Settings

USAGE = 2
"""The exit code where nothing could be judged: invalid arguments, and files that are not cases."""
MOST_JOBS = 256
MOST_SECONDS = 7 * 24 * 60 * 60


def _add_conformance_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(SUITES)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="case files, which 'extract' has written: only these run, unless --suite names more",
    )
    parser.add_argument(
        "--suite",
        metavar="NAMES",
        default="",
        help=f"suites to run, with commas between them: {names} (default: all that can run here)",
    )
    parser.add_argument(
        "--filter",
        metavar="TEXT",
        action="append",
        default=[],
        help="only cases whose suite/name contains this; may be given more than once (SUITE/TEXT: "
        "of that suite only)",
    )
    parser.add_argument("--list", action="store_true", help="list the cases and run none")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what conformance.json holds, and nothing else; the rest is on standard error",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="where to write conformance.json, .md and .html (default: nowhere)",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=2,
        help="processes that run cases; 0: only this one (default: 2)",
    )
    parser.add_argument(
        "--fuzz-seconds",
        metavar="N",
        type=float,
        default=Settings().fuzz_seconds,
        help="how long to look for failures at random (default: %(default)s)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail where the driver declines what the table accepts, unless the ledger has it",
    )
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        type=Path,
        default=LEDGER,
        help="the vendor's file of expected failures (default: the one of this package)",
    )


def _conformance(arguments: argparse.Namespace) -> int:
    """Run the command; return 0 if all is as expected, 1 if not, or `USAGE`."""
    tell = _teller(arguments)
    suites = [name.strip() for name in arguments.suite.split(",")] if arguments.suite else []
    settings = Settings(
        filters=tuple(arguments.filter),
        jobs=arguments.jobs,
        fuzz_seconds=arguments.fuzz_seconds,
        files=tuple(arguments.files),
        output=arguments.output,
        strict=arguments.strict,
    )
    if settings.files and "files" not in suites:
        suites.append("files")
    try:
        problem = printable(_problem(arguments, suites, settings))
        if problem:
            raise ValueError(problem)
        if arguments.list:
            _list(meant(suites, settings), settings, arguments.json)
            return 0
        result = run(suites, settings, arguments.ledger, tell)
    except (ValueError, LedgerError) as error:
        return _cannot_run(printable(str(error)))
    for outcome in result.bad[:50]:
        tell(printable(f"{outcome.status.upper()} {outcome.id}: {outcome.reason}"))
    if len(result.bad) > 50:
        tell(f"... and {len(result.bad) - 50} more")
    for line in result.declines():
        tell(printable(line))
    if arguments.output is not None:
        try:
            paths = write(result, arguments.output)
        except OSError as error:
            return _cannot_run(f"Nothing can be written to {arguments.output}: {error.strerror}.")
        except NotWritten as error:
            return _cannot_run(str(error))
        tell(f"written: {', '.join(map(str, paths))}")
    tell(result.summary())
    if arguments.json:
        say(result.to_json(), end="")
    return 0 if result.ok else 1


def write(result: Result, directory: Path) -> list[Path]:
    """Write a result, and its pages.

    `directory`: the folder; it is created if missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    data = result.to_dict()
    paths = [directory / f"conformance.{kind}" for kind in ("json", "md", "html")]
    texts = [result.to_json(), as_markdown(data), as_html(data)]
    for path, text in zip(paths, texts, strict=True):
        write_text(path, text)
    return paths


def _cannot_run(why: str) -> int:
    """Print why nothing was judged; return `USAGE`, as 1 says that cases failed."""
    say(f"FAILED: {why}", file=sys.stderr, flush=True)
    return USAGE


def _teller(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return the function that prints sentences: JSON is alone on standard output."""
    return partial(print, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def _problem(arguments: argparse.Namespace, suites: list[str], settings: Settings) -> str:
    """Return what is invalid; bad files raise a ValueError."""
    for suite in suites:
        if suite not in SUITES:
            return f"there is no suite '{suite}'; the suites are {', '.join(SUITES)}"
    if "files" in suites and not settings.files:
        return "the suite 'files' runs the case files that are given, and there is none"
    for path in settings.files:
        CaseFile.load(path)
    if not 0 <= arguments.jobs <= MOST_JOBS:
        return f"--jobs is {arguments.jobs}; supported: a whole number, 0 to {MOST_JOBS}"
    # NaN is in no range.
    if not 0 <= arguments.fuzz_seconds <= MOST_SECONDS:
        return (
            f"--fuzz-seconds is {arguments.fuzz_seconds:g}; supported: a number, 0 to "
            f"{MOST_SECONDS}, which is a week"
        )
    if arguments.ledger != LEDGER and not os.path.isfile(arguments.ledger):
        return f"there is no file {arguments.ledger}"
    if arguments.output is not None:
        if str(arguments.output) == "-" or os.path.isfile(arguments.output):
            return f"{arguments.output} is a file; --output wants a folder"
        # Fail now, not after everything has run.
        try:
            arguments.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"--output {arguments.output} cannot be made: {error.strerror}"
        if not os.access(arguments.output, os.W_OK | os.X_OK):
            return f"nothing can be written to --output {arguments.output}"
    if settings.filters and not any(_known(suite, settings) for suite in meant(suites, settings)):
        return f"no case has {' or '.join(map(repr, settings.filters))} in it; --list shows all"
    return ""


def _known(suite: str, settings: Settings) -> list[str]:
    try:
        return cases_of(suite, settings)
    except Crashed:
        # Which it would have is not known.
        return [suite]
    except NotRun:
        return []


def _list(suites: list[str], settings: Settings, as_json: bool) -> None:
    """Print the cases of suites; in JSON, a suite that cannot run has a text instead of a list."""
    listed: dict[str, list[str] | str] = {}
    for suite in suites:
        try:
            listed[suite] = cases_of(suite, settings)
        except Crashed as reason:
            listed[suite] = str(reason)
        except NotRun as reason:
            listed[suite] = f"it cannot run here: {reason}"
    if as_json:
        say(json.dumps({"format_version": FORMAT_VERSION, "suites": listed}, indent=1))
        return
    for suite, cases in listed.items():
        lines = [f": {cases}"] if isinstance(cases, str) else [f"/{case}" for case in cases]
        for line in lines:
            say(f"{suite}{line}")


def _add_extract_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help=f"a model: {KINDS}")
    add_shape(parser)
    parser.add_argument("--part", metavar="NAME", help="what to cut out (default: list the parts)")
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        type=Path,
        help="an .npz file with the arguments of the model, by name or in order (default: random)",
    )
    parser.add_argument("--function", metavar="NAME", default="main", help="of the model")
    parser.add_argument("--output", metavar="FILE", type=Path, help="the case file to write")
    add_json(parser)


def _extract(arguments: argparse.Namespace) -> int:
    """Run the command; raise a `Problem` if there is no such part, or none at all."""
    try:
        require_writable(arguments.output)
        shapes = dict(arguments.shape)
        # A module need not have a name that ends in .json.
        mod = read_model(arguments.model, shapes, otherwise=".json").imported({})
        mod = with_shapes(mod, shapes, arguments.function)
        if arguments.part is None:
            _list_parts(mod, arguments)
            return 0
        inputs = _read_inputs(mod, arguments.function, arguments.inputs)
        case = extract(mod, inputs, arguments.part, arguments.function)
        path = arguments.output or Path(f"{arguments.part}.npz")
        _save(case, path)
    except Exception as error:  # Also TVM's, about a model that it cannot compile.
        raise Problem(printable(sentence(error))) from error
    if arguments.json:
        say(json.dumps({"part": arguments.part, "written": str(path)}, indent=2))
    else:
        say(f"written: {path}")
    return 0


def _list_parts(mod: tvm.IRModule, arguments: argparse.Namespace) -> None:
    contents = parts(mod)
    if arguments.json:
        say(json.dumps({"parts": {name: str(what) for name, what in contents.items()}}, indent=2))
    else:
        for name, content in contents.items():
            say(f"{name}: {content}")
    if not contents:
        raise Problem(
            f"Nothing of {arguments.model} is on the NPU, so there is no part to cut out; the "
            "command 'report' says why."
        )


def _save(case: CaseFile, path: Path) -> None:
    try:
        case.save(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def _read_inputs(mod: tvm.IRModule, function: str, path: Path | None) -> list[Array]:
    functions = {
        global_var.name_hint: value
        for global_var, value in mod.functions_items()
        if isinstance(value, relax.Function)
    }
    if function not in functions:
        known = ", ".join(functions)
        raise ValueError(f"the model has no function '{function}'; it has {known}")
    params = functions[function].params
    if path is None:
        specs = []
        for param in params:
            if not isinstance(getattr(param.ty, "shape", None), relax.ShapeExpr):
                raise ValueError(f"the input '{param.name}' is not a tensor of a known rank")
            if not all(isinstance(size, tvm.tirx.IntImm) for size in param.ty.shape):
                sizes = ",".join(str(getattr(size, "value", size)) for size in param.ty.shape)
                raise ValueError(
                    f"the size of '{param.name}' is open: give --shape {param.name}={sizes} with "
                    "numbers for names, or the --inputs"
                )
            dtype = str(param.ty.dtype)
            # Integers may be indices, which TVM's own kernels do not check.
            limits = (0, 1) if "int" in dtype else ()
            specs.append(Spec(tuple(map(int, param.ty.shape)), dtype, *limits))
        return [spec.make(str(param.name))[1] for spec, param in zip(specs, params, strict=True)]
    arrays = read_arrays(path, "file of arrays, as numpy.savez writes them")
    names = [str(param.name) for param in params]
    names = names if set(names) <= set(arrays) else list(arrays)
    given = [arrays[name] for name in names]
    problem = misfit(params, given)
    if problem:
        raise ValueError(f"{path} does not suit the model: {problem}")
    return given


KIT = {
    "conformance": (_add_conformance_arguments, _conformance),
    "extract": (_add_extract_arguments, _extract),
}
"""By command: what adds its arguments to a parser, and what runs it and returns the exit code."""
