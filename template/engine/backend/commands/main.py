# SPDX-License-Identifier: Apache-2.0
"""The command line: from a model file to a library, and what runs where."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from .. import loading
from ..libraries import _library
from ..loading import needs_compiler
from ..shared import interrupts
from ..shared.backend import PACKAGE
from ..shared.entry_points import WithoutWorkbenchError, entry_point
from ..shared.problem import WITHOUT_MEMORY, Problem, translated
from ..shared.terminal import say
from ..shared.whole_files import NotWritten
from ..table.limits import WHERE
from . import arguments as common
from .checking import check, check_environment
from .listing import show_artifacts, show_limits, show_options

_Adder = Callable[[argparse.ArgumentParser], None]
_Command = Callable[[argparse.Namespace], int]

_KIT = {
    "conformance": "hold the backend to what it claims, case by case",
    "extract": "cut a part out of a model, for a case of the conformance kit",
}
"""The commands of the conformance kit, which is loaded only for them."""

_MODEL = (
    "the model: .onnx, .pt2, .tflite, or .json of tvm.ir.save_json; reading a .pt2 may run code of "
    "its author"
)
_CODES = "exit code: 0 if all is well, 1 if not (a sentence says why), 2 for wrong arguments"


def _kit() -> Mapping[str, tuple[_Adder, _Command]]:
    needs_compiler("The kit")
    translated(entry_point("read_vendor_cases"))
    kit: Mapping[str, tuple[_Adder, _Command]]
    kit = entry_point("KIT")
    return kit


def _implementation(function: str, module: str | None = None) -> _Command:
    """Return a command that is imported when it runs: without a module, from the workbench."""

    def run(arguments: argparse.Namespace) -> int:
        if loading.failure is not None:
            raise Problem(f"The backend does not load: {loading.failure}")
        if arguments.command not in ("run", "profile", "generate"):
            needs_compiler(f"'{arguments.command}'")
        if module is None:
            found = entry_point(function)
        else:
            found = getattr(importlib.import_module(f".{module}", __package__), function)
        return int(found(arguments))

    return run


def _add_compile(parser: argparse.ArgumentParser) -> None:
    common.add_model(parser, _MODEL)
    common.add_output(parser, "the library (default: the name of the model, with .so)")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the report as JSON, too")
    parser.add_argument(
        "--linker", metavar="PROGRAM", help="the linker: the compiler of another machine"
    )
    common.add_verify(parser)
    common.add_inputs(parser)
    common.add_json(parser)
    parser.set_defaults(run=_implementation("run_compile", "compiling"))


def _add_report(parser: argparse.ArgumentParser) -> None:
    common.add_model(parser, _MODEL)
    common.add_output(parser, "write the report as JSON")
    parser.add_argument(
        "--all", action="store_true", help="show all ops of a large model on a terminal, too"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page")
    parser.add_argument(
        "--netron", metavar="FILE", type=Path, help="write an ONNX file, which Netron shows"
    )
    parser.add_argument(
        "--profile", metavar="FILE", type=Path, help="what 'profile' has written, for the page"
    )
    parser.add_argument(
        "--accuracy",
        metavar="FILE",
        type=Path,
        help="with --quantize: compare each layer with the float model, and write that as JSON",
    )
    common.add_verify(parser)
    common.add_inputs(parser)
    common.add_json(parser)
    parser.set_defaults(run=_implementation("run_report", "compiling"))


def _add_inputs(parser: argparse.ArgumentParser, repeat: int) -> None:
    common.add_model(parser, "a compiled library (.so), or a model as for 'compile'")
    common.add_inputs(parser)
    parser.add_argument(
        "--function",
        metavar="NAME",
        help="the function of a library that has several, such as those of a decoder",
    )
    parser.add_argument(
        "--repeat",
        metavar="N",
        type=common.count,
        default=repeat,
        help="how often to run it (default: %(default)s)",
    )
    common.add_json(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_inputs(parser, 1)
    common.add_verify(parser)
    common.add_output(parser, "write the results to an .npz file")
    parser.set_defaults(run=_implementation("run_run", "running"))


def _add_generate(parser: argparse.ArgumentParser) -> None:
    common.add_model(
        parser, "a decoder: .onnx with past and present, .pt2, or a library of this command", False
    )
    parser.add_argument(
        "more", nargs="*", type=Path, help="more programs of it, for other numbers of tokens (.pt2)"
    )
    parser.add_argument("--prompt", metavar="TEXT", required=True, help="the text to continue")
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=Path,
        help="a tokenizer.json; without it, texts are numbers of tokens, such as 12,7,30",
    )
    for name, default, what in (
        ("--most", 64, "how many tokens it adds at most"),
        ("--capacity", common.CAPACITY, "how many tokens the cache of an .onnx has room for"),
    ):
        parser.add_argument(
            name,
            metavar="N",
            type=common.count,
            default=default,
            help=f"{what} (default: %(default)s)",
        )
    parser.add_argument(
        "--chunks",
        metavar="N,N",
        type=common.counts,
        default=common.CHUNKS,
        help="how many tokens of a prompt the functions of an .onnx take at a time, 1 among them "
        "(default: 1,16)",
    )
    parser.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="where the text ends; may be repeated",
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=common.not_negative,
        help="0 takes the likeliest token, the default without --top-k and --top-p; 1, that with "
        "them, draws by probability",
    )
    parser.add_argument(
        "--top-k",
        metavar="N",
        type=common.natural,
        default=0,
        help="draw one of the N likeliest tokens",
    )
    parser.add_argument(
        "--top-p",
        metavar="SHARE",
        type=common.not_negative,
        default=1,
        help="draw one of the fewest tokens that have this probability together",
    )
    parser.add_argument(
        "--seed", metavar="N", type=common.natural, default=0, help="of drawing (default: 0)"
    )
    common.add_output(parser, "keep the compiled library, which this command takes as a model")
    parser.set_defaults(run=_implementation("run_generate", "generating"))


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=Path,
        help="what 'compile --report' has written with the library: for the author's names",
    )


def _add_profile(parser: argparse.ArgumentParser) -> None:
    _add_inputs(parser, 10)
    common.add_output(parser, "write the profile as JSON")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write a trace, for Perfetto")
    _add_names(parser)
    parser.add_argument("--all", action="store_true", help="print all ops, not the largest alone")
    parser.set_defaults(run=_implementation("run_profile", "measuring"))


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="a report that 'report --output' has written")
    parser.add_argument("after", type=Path, help="another one")
    for name, command in (("profiles", "profile --output"), ("accuracy", "report --accuracy")):
        parser.add_argument(
            f"--{name}",
            nargs=2,
            metavar=("BEFORE", "AFTER"),
            type=Path,
            help=f"what '{command}' has written for both",
        )
    parser.add_argument(
        "--fail-if-worse",
        action="store_true",
        help="exit code 1 if an op moved to the host, or is slower or less exact",
    )
    common.add_output(parser, "write the comparison as JSON")
    common.add_json(parser)
    parser.set_defaults(run=_implementation("run_compare"))


def _add_tune(parser: argparse.ArgumentParser) -> None:
    common.add_model(parser, _MODEL)
    parser.add_argument(
        "--trials",
        metavar="N",
        type=common.count,
        default=64,
        help="how many a kernel has at most, those in the file included (default: %(default)s)",
    )
    parser.add_argument(
        "--records",
        metavar="FILE",
        type=Path,
        help="the file of trials, which are added to it (default: vendor/tuning.jsonl, which the "
        "compiler reads)",
    )
    common.add_json(parser)
    parser.set_defaults(run=_implementation("run_tune"))


def _run_check(arguments: argparse.Namespace) -> int:
    check_environment()
    if not arguments.json:
        check()
        say("All is well.")
        return 0
    found, problem = io.StringIO(), None
    with contextlib.redirect_stdout(found):
        try:
            check()
        except Problem as error:
            problem = str(error)
    lines = found.getvalue().splitlines()
    say(json.dumps({"ok": problem is None, "found": lines, "problem": problem}, indent=2))
    return 0 if problem is None else 1


def _drift(arguments: argparse.Namespace) -> int:
    # Also where the backend refuses this TVM: that is what it is for.
    return int(entry_point("run_drift")(arguments))


_HAS_ISA = (Path(__file__).parents[1] / "isa").is_dir()
"""Whether this is the backend of a chip with an instruction set."""


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and those of the conformance kit, whose arguments are still missing."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}",
        description="The command line of the backend.",
        epilog=f"{_CODES}. 'COMMAND --help' says more about each.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text, add in (
        ("compile", "make a library of a model file", _add_compile),
        ("run", "run a library or a model file, and measure the time", _add_run),
        ("report", "show which op of a model runs where, and why", _add_report),
        ("generate", "continue a text with a decoder", _add_generate),
        ("profile", "show where a model's time goes", _add_profile),
        ("compare", "show how two reports differ", _add_compare),
        ("tune", "find sizes of tiles with which kernels take fewer cycles", _add_tune),
    ):
        if name == "tune" and not _HAS_ISA:
            continue
        about = f"{text[0].upper()}{text[1:]}."
        add(commands.add_parser(name, help=text, description=about, epilog=_CODES))
    inspection = commands.add_parser("inspect", help="show what is in a compiled library")
    inspection.add_argument("path", help="the exported library, or a dumped artifact")
    inspection.add_argument("--region", metavar="SYMBOL", help="one region only")
    inspection.add_argument("--json", action="store_true", help="as JSON")
    _add_names(inspection)
    inspection.set_defaults(run=lambda it: show_artifacts(it.path, it.region, it.json, it.report))
    checking = commands.add_parser(
        "check", help="check whether the backend works here, and say what to do if not"
    )
    common.add_json(checking)
    checking.set_defaults(run=_run_check)
    drift = commands.add_parser(
        "drift", help="tell what the installed TVM has changed of what the backend needs"
    )
    drift.add_argument("--record", metavar="FILE", type=Path, help="write what it has, as JSON")
    drift.add_argument(
        "--record-importers",
        metavar="FOLDER",
        type=Path,
        help="write what its importers read of operators, as JSON",
    )
    common.add_json(drift)
    drift.set_defaults(run=_drift)
    options = commands.add_parser("options", help="list what can be set when a model is compiled")
    common.add_json(options)
    options.set_defaults(run=lambda found: show_options(found.json))
    limits = commands.add_parser("limits", help=f"print what to record of ops in {WHERE}")
    limits.add_argument("ops", nargs="*", metavar="OP", help="those not recorded yet, if left out")
    common.add_json(limits)
    limits.set_defaults(run=lambda found: show_limits(found.ops, found.json))
    return parser, {name: commands.add_parser(name, help=text) for name, text in _KIT.items()}


def main() -> int:
    """Run the command line.

    0 if all is well, 1 if not, 2 for invalid arguments.
    """
    with interrupts.noticed() as interrupted:
        try:
            code = _start()
            sys.stdout.flush()
        except KeyboardInterrupt:
            interrupted.set()
        except BrokenPipeError:
            # The reader, such as 'head', has closed the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except (Problem, NotWritten, WithoutWorkbenchError, MemoryError) as error:
            code = 1
            if not interrupted.is_set():
                why = WITHOUT_MEMORY if isinstance(error, MemoryError) else error
                say(f"FAILED: {why}", None if sys.argv[1:2] == ["check"] else sys.stderr)
        except Exception:
            if not interrupted.is_set():
                raise
        if not interrupted.is_set():
            return code
    say("Interrupted.", sys.stderr)
    return interrupts.CODE


def _start() -> int:
    """Run the command; in a child process where a vendor's SDK may be asked, which may crash."""
    if not interrupts.is_command() or "codegen" not in _library.loaded:
        return _run()
    try:
        roles = ("driver", "driver_build", "second", "second_build")
        has_driver = next(filter(None, map(_library.find, roles)), None)
    except _library.LoadError:  # An editable install that does not compile; 'check' says more.
        has_driver = None
    if has_driver is None:
        return _run()
    from .supervised import supervised

    return supervised(_run)


def _run() -> int:
    parser, kit = _parser()
    chosen = sys.argv[1] if sys.argv[1:] and sys.argv[1] in kit else ""
    # Their help needs the kit too.
    if chosen and "codegen" in _library.loaded:
        _kit()[chosen][0](kit[chosen])
    # If it cannot run, say so instead of complaining about unknown arguments.
    can_run = not chosen or "codegen" in _library.loaded
    arguments = parser.parse_args() if can_run else parser.parse_known_args()[0]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape what the terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    if chosen:
        check_environment()
        return int(_kit()[chosen][1](arguments))
    return int(arguments.run(arguments) or 0)
