# SPDX-License-Identifier: Apache-2.0
"""The command `generate`: a decoder continues a text."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import tvm
from tvm.runtime.vm import VirtualMachine

from ..loading import needs_compiler
from ..models.compiled import LIBRARY, load_machine
from ..models.files import require_file, require_writable
from ..models.generation import Conversation
from ..shared.problem import Problem, sentence, translated
from ..shared.terminal import say
from ..shared.whole_files import writing
from .arguments import CAPACITY, CHUNKS, given_of, options_of, refuse_settings
from .progress import Steps

_SIZES: Mapping[str, object] = {"chunks": CHUNKS, "capacity": CAPACITY, "shape": []}
"""Settings that .onnx files have alone, and what they are if they are not given."""


class Encoding(Protocol):
    """What the package tokenizers makes of a text."""

    @property
    def ids(self) -> list[int]:
        """Their numbers."""


class Tokenizer(Protocol):
    """The part of the package tokenizers that is used here."""

    def encode(self, text: str, /) -> Encoding:
        """Return the tokens of a text."""

    def decode(self, ids: list[int], /) -> str:
        """Return the text of tokens."""


def run_generate(arguments: argparse.Namespace) -> int:
    """Run the command `generate`."""
    require_writable(arguments.output)
    for path in (arguments.model, *arguments.more):
        require_file(path)
    # Before the model is compiled, which takes a while.
    tokenizer = _tokenizer(arguments.tokenizer)
    prompt = _tokens(arguments.prompt, tokenizer, "--prompt")
    stop = [_tokens(text, tokenizer, "--stop") for text in arguments.stop]
    with Steps(3) as steps:
        machine = _machine(arguments, steps)
    conversation = translated(lambda: Conversation(machine))
    settings = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p")}
    if arguments.temperature is None:
        settings["temperature"] = float(bool(arguments.top_k) or arguments.top_p < 1)
    tokens = conversation.generate(prompt, arguments.most, seed=arguments.seed, **settings)
    begun = time.perf_counter()
    times = translated(lambda: _write(_texts(_until(tokens, stop), tokenizer)))
    first, seconds = times[0] - begun, times[-1] - begun
    count = len(times) - 1
    rate = f", then {(count - 1) / (seconds - first):.1f} tokens per second" if count > 1 else ""
    say(f"{len(prompt)} tokens read; the first behind {first:.2f} s{rate}", sys.stderr)
    return 0


def _write(texts: Iterator[str]) -> list[float]:
    """Write texts as they come; return the time of each, and of the end."""
    times = []
    for text in texts:
        times.append(time.perf_counter())
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return [*times, time.perf_counter()]


def _machine(arguments: argparse.Namespace, steps: Steps) -> VirtualMachine:
    path: Path = arguments.model
    if path.suffix == LIBRARY:
        if arguments.more:
            raise Problem(f"{path} is compiled, so that {arguments.more[0]} cannot be added to it.")
        where = "'generate' with the model file"
        refuse_settings(arguments, where, **_SIZES, output=None)
        steps.begin(f"loading {path}")
        return load_machine(path)
    for program in (path, *arguments.more):
        _require_sizes_of(program, arguments)
    needs_compiler(f"{path}, which is not compiled yet,")
    from ..models.decoders import read_decoder
    from ..regions.partition import compile_partitioned, partition_for
    from ..report.report import offload_report
    from .preparing import target_of

    options, target = options_of(arguments), target_of(arguments.target)
    steps.begin(f"reading {path}")
    mod = read_decoder(
        (path, *arguments.more),
        arguments.chunks,
        arguments.capacity,
        dict(arguments.shape),
        arguments.bfloat16,
    )
    steps.begin("partitioning")
    try:
        partitioned = partition_for(mod, options=options)
        summary = offload_report(partitioned).summary
        steps.begin("compiling")
        executable = compile_partitioned(partitioned, options, target)
    except Exception as error:
        raise Problem(f"{path} cannot be compiled: {sentence(error)}") from error
    say(summary, sys.stderr)
    if arguments.output is not None:
        with writing(arguments.output) as unfinished:
            executable.export_library(str(unfinished))
    return VirtualMachine(executable, tvm.cpu())


def _require_sizes_of(path: Path, arguments: argparse.Namespace) -> None:
    """Refuse sizes for a program that has its own."""
    if path.suffix.lower() == ".onnx":
        return
    if (name := given_of(arguments, _SIZES)) is not None:
        raise Problem(
            f"{name} is for .onnx files, and {path} has sizes of its own; export it with others, "
            "and give a program for each number of tokens."
        )


def _tokenizer(path: Path | None) -> Tokenizer | None:
    if path is None:
        return None
    require_file(path)
    try:
        import tokenizers
    except ImportError:
        raise Problem(
            f"{path} needs the package tokenizers: pip install tokenizers. Without --tokenizer, "
            "--prompt takes numbers of tokens, such as 12,7,30."
        ) from None
    try:
        found: Tokenizer = tokenizers.Tokenizer.from_file(str(path))
        return found
    except Exception as error:
        raise Problem(
            f"{path} is no tokenizer.json of the package tokenizers: {sentence(error)}"
        ) from None


def _tokens(text: str, tokenizer: Tokenizer | None, argument: str) -> list[int]:
    """Return the numbers of a text's tokens."""
    if tokenizer is not None:
        found = list(tokenizer.encode(text).ids)
    elif all(part.strip().isdecimal() for part in text.split(",")):
        found = [int(part) for part in text.split(",")]
    else:
        raise Problem(
            f"{argument} {text!r}: without --tokenizer, it takes numbers of tokens, such as "
            "12,7,30."
        )
    if not found:
        raise Problem(f"{argument} {text!r} has no tokens; give a text.")
    return found


def _until(tokens: Iterator[int], stop: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yield tokens up to, and without, those that end the text."""
    held: list[int] = []
    for token in tokens:
        held.append(token)
        if any(held[-len(end) :] == [*end] for end in stop):
            return
        # What may still become an end is kept back.
        while held and not any(held == [*end[: len(held)]] for end in stop):
            yield held.pop(0)
    yield from held


def _texts(tokens: Iterator[int], tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yield the text of each token: what it adds, since some are parts of a character."""
    if tokenizer is None:
        between = ""
        for token in tokens:
            yield f"{between}{token}"
            between = ","
        return
    known: list[int] = []
    shown = ""
    for token in tokens:
        known.append(token)
        text = tokenizer.decode(known)
        # An incomplete character.
        if text.endswith("\ufffd"):
            yield ""
            continue
        yield text[len(shown) :]
        shown = text
