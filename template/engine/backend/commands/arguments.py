# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands have, and what they stand for."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..shared.problem import Problem, translated

if TYPE_CHECKING:
    from ..settings.options import Options

_TARGET = "llvm"
CHUNKS, CAPACITY = (1, 16), 512
"""How many tokens the functions of a decoder take, and its cache has room for, if nobody says."""

_WHEN_COMPILING: Mapping[str, object] = {
    "options": None,
    "option": [],
    "bfloat16": None,
    "strict": False,
    "strict_except": [],
    "keep_on_host": [],
    "target": _TARGET,
    "quantize": None,
    "calibration": None,
}
"""Settings that a library has behind it, and what they are if they are not given."""


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read the argument of `--shape`."""
    # Names of inputs may have an equals sign in them, sizes have none.
    name, equals, sizes = text.rpartition("=")
    parts = [part.strip() for part in sizes.split(",")] if sizes else []
    if not name or not equals or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a shape; supported: NAME=SIZES, such as x=1,3,224,224"
        )
    return name, tuple(map(int, parts))


def not_negative(text: str) -> float:
    """Read a number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 on")
    return number


def count(text: str) -> int:
    """Read a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Read whole numbers from 1 on, with commas between them."""
    return tuple(map(count, text.split(",")))


def natural(text: str) -> int:
    """Read a whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0 on")
    return int(text)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of a model's inputs."""
    parser.add_argument(
        "--shape",
        metavar="NAME=SIZES",
        type=shape,
        action="append",
        default=[],
        help="the sizes of an input whose sizes are open, such as x=1,3,224,224; may be repeated",
    )


def add_model(parser: argparse.ArgumentParser, what: str, with_data: bool = True) -> None:
    """Add the model, the sizes of its inputs, and how it is compiled.

    `with_data`: whether real inputs may calibrate or quantize it.
    """
    parser.add_argument("model", type=Path, help=what)
    add_shape(parser)
    group = parser.add_argument_group("how it is compiled")
    group.add_argument(
        "--options", metavar="FILE", type=Path, help="options, in a .toml or .json file"
    )
    group.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one option; the command 'options' lists all; may be repeated",
    )
    group.add_argument(
        "--bfloat16",
        choices=("float32", "float16", "bfloat16"),
        help="the type that tensors of bfloat16 in a .pt2 file get; float32 if it is not given",
    )
    group.add_argument(
        "--strict", action="store_true", help="fail if an op stays on the host, and list all"
    )
    group.add_argument(
        "--strict-except",
        metavar="OP",
        action="append",
        default=[],
        help="an op that --strict allows on the host: op, variable, or the author's name or "
        "module, in which * stands for anything; may be repeated",
    )
    group.add_argument(
        "--keep-on-host",
        metavar="OP",
        action="append",
        default=[],
        help="an op that stays on the host, named as for --strict-except; may be repeated",
    )
    group.add_argument(
        "--target",
        default=_TARGET,
        help="TVM's target of what stays on the host (default: %(default)s)",
    )
    if not with_data:
        return
    group.add_argument(
        "--calibration",
        metavar="FILE",
        type=Path,
        help="real inputs from an .npz file, samples along the first axis, for an SDK that "
        "quantizes by itself",
    )
    group = parser.add_argument_group("quantizing a float model (.onnx, .pt2)")
    group.add_argument(
        "--quantize",
        metavar="FILE",
        type=Path,
        help="quantize with real inputs from an .npz file: samples along the first axis",
    )
    group.add_argument("--method", metavar="NAME", help="how ranges are found (default: minmax)")
    group.add_argument("--activations", metavar="TYPE", help="int8, uint8 or int16")
    for name, meaning in (("--keep-float", "stays in float"), ("--int16", "is int16")):
        group.add_argument(
            name,
            metavar="OP",
            action="append",
            default=[],
            help=f"an op that {meaning}: the name of its node or module, in which * stands for "
            "anything; may be repeated",
        )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the inputs of a model."""
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        type=Path,
        help="an .npz file with the inputs, by name or in order (default: random)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=natural, default=0, help="of random inputs (default: 0)"
    )


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the comparison with the original."""
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run the original with ONNX Runtime, PyTorch or LiteRT, too, and fail if results "
        "differ",
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        type=not_negative,
        help="the error of floats that --verify allows, as a part of the largest value of the "
        "result (default: by the types in the model, 1e-4 for float32)",
    )


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Add where to write a result."""
    parser.add_argument("--output", "-o", metavar="FILE", type=Path, help=what)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice of JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def options_of(arguments: argparse.Namespace) -> Options:
    """Return the options that the arguments of `add_model` stand for."""
    from ..settings.options import Options, read_settings

    def read() -> Options:
        settings = read_settings(arguments.option)
        for name in ("strict_except", "keep_on_host"):
            listed: Sequence[str] = getattr(arguments, name)
            if listed:
                settings[name] = [*settings.get(name, ()), *listed]
        if arguments.strict:
            settings["strict"] = True
        return Options.load(arguments.options).merged(**settings)

    return translated(read)


def refuse_settings(arguments: argparse.Namespace, where: str, **others: object) -> None:
    """Refuse settings that come too late for a library.

    `where`: the command that takes them.
    `others`: more of them, and what they are if they are not given.
    """
    if (name := given_of(arguments, {**_WHEN_COMPILING, **others})) is not None:
        raise Problem(
            f"{name} is for compiling, and {arguments.model} is compiled; give it to {where}."
        )


def given_of(arguments: argparse.Namespace, defaults: Mapping[str, object]) -> str | None:
    """Return the first of these settings that is given, as it is on the command line."""
    for name, default in defaults.items():
        if getattr(arguments, name, default) != default:
            return f"--{name.replace('_', '-')}"
    return None
