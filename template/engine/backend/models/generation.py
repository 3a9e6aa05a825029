# SPDX-License-Identifier: Apache-2.0
"""Generates with a compiled decoder, in a session that holds its cache."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import tvm

from ..ir.states import functions_with_states
from ..shared.aliases import Array
from .sessions import Session

if TYPE_CHECKING:
    from tvm.runtime.vm import VirtualMachine

_TOKENS = ("input_ids", "ids", "tokens", "token")
_POSITIONS = ("position_ids", "cache_position", "positions", "position", "input_pos")
_MASK = ("attention_mask",)

INPUTS = ", ".join((*_TOKENS, *_POSITIONS, *_MASK))
"""What a decoder's inputs may be called, as a text."""


@dataclass(frozen=True)
class _Input:
    name: str
    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True)
class _Program:
    """A function that takes a number of tokens."""

    name: str
    inputs: tuple[_Input, ...]
    words: int
    """The size of its vocabulary."""
    room: int | None
    """At how many places of its states it can begin to write."""
    window: int | None
    """How many steps its states keep, if these are the last ones; else None."""

    @property
    def steps(self) -> int:
        """How many tokens it takes."""
        return next(math.prod(it.shape) for it in self.inputs if it.name in _TOKENS)

    @property
    def capacity(self) -> int | None:
        """How many tokens its mask and its states have room for; None if neither tells."""
        found = [it.shape[-1] for it in self.inputs if it.name in _MASK]
        if self.room is not None:
            found.append(self.room + self.steps - 1)
        return min(found, default=None)

    def arrays(self, tokens: Sequence[int], first: int) -> list[Array]:
        """Return its inputs for tokens, of which the first has a place in the conversation."""
        behind = first + len(tokens)
        values = {
            **dict.fromkeys(_TOKENS, np.array(tokens)),
            **dict.fromkeys(_POSITIONS, np.arange(first, behind)),
        }
        found = []
        for it in self.inputs:
            if it.name not in _MASK:
                value = values[it.name]
            elif self.window is None:
                value = np.arange(it.shape[-1]) < behind
            else:  # Zeros come first, then the steps of the text.
                value = np.arange(it.shape[-1]) >= it.shape[-1] - behind
            found.append(np.ascontiguousarray(value.reshape(it.shape), it.dtype))
        return found


def _programs(machine: VirtualMachine) -> dict[int, _Program]:
    """Return the functions of a decoder by their number of tokens, the largest first."""
    functions = functions_with_states(machine)
    if not functions:
        raise ValueError(
            "The model keeps nothing from one call to the next, so that it cannot continue a text. "
            "A decoder has states: the buffers that a PyTorch program changes, or the past and "
            "present of an ONNX model read with states=True."
        )
    found: dict[int, _Program] = {}
    for name, described in functions.items():
        names = [it[0] for it in described.inputs]
        unknown = [it for it in names if it not in (*_TOKENS, *_POSITIONS, *_MASK)]
        if unknown or sum(it in _TOKENS for it in names) != 1:
            raise ValueError(
                f"The function '{name}' takes {', '.join(names) or 'no inputs'}; supported are one "
                f"input of tokens, and others of positions or a mask, called {INPUTS}."
            )
        inputs = tuple(
            _Input(tensor, dtype, _fixed(f"takes '{tensor}'", name, sizes))
            for tensor, dtype, sizes in described.inputs
        )
        scores = _fixed("returns scores", name, described.result[1])
        if not scores:
            raise ValueError(
                f"The function '{name}' returns one number first; supported are the scores of all "
                "tokens."
            )
        if described.window and described.room is not None:
            raise ValueError(
                f"The function '{name}' has states that keep their last steps, and others that "
                "are filled from the start; supported are states of one kind."
            )
        if described.window and not any(it in _MASK for it in names):
            raise ValueError(
                f"The function '{name}' keeps its last {described.window} steps, and takes no mask "
                f"that hides those that it does not have yet; supported is one called {_MASK[0]}."
            )
        program = _Program(name, inputs, scores[-1], described.room, described.window)
        found[program.steps] = program
    if len({it.window for it in found.values()}) > 1:
        raise ValueError(
            "Some functions keep the last steps of their states, and others do not, or another "
            "number of them; supported are functions that keep their states in one way."
        )
    if 1 not in found:
        raise ValueError(
            f"The decoder takes {', '.join(map(str, sorted(found)))} tokens at a time; it needs a "
            "function for one token, too."
        )
    return dict(sorted(found.items(), reverse=True))


def _fixed(what: str, function: str, sizes: Sequence[int | str] | None) -> list[int]:
    """Return sizes that were known when the model was compiled."""
    fixed = [size for size in sizes or () if isinstance(size, int)]
    if sizes is None or len(fixed) < len(sizes):
        raise ValueError(
            f"The function '{function}' {what} of open sizes; supported are fixed ones: compile a "
            "function for each number of tokens."
        )
    return fixed


def _scores(session: Session, program: _Program, tokens: Sequence[int], first: int) -> Array:
    """Call a function with tokens, and return its first result."""
    arrays = program.arrays(tokens, first)
    found = session[program.name](*(tvm.runtime.tensor(it, session.device) for it in arrays))
    scores: Array = (found if isinstance(found, tvm.runtime.Tensor) else found[0]).numpy()
    return scores


def chosen(
    logits: Array, random: np.random.Generator, temperature: float, top_k: int, top_p: float
) -> int:
    """Return a token by its score; see `Conversation.generate`."""
    if temperature == 0 or top_k == 1:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    order = order[: top_k or len(order)]
    scores = logits[order].astype("float64")
    with np.errstate(over="ignore"):
        shares = np.exp((scores - scores[0]) / temperature)
    shares /= shares.sum()
    # Those before it have less than the part that is asked for.
    kept = np.cumsum(shares) - shares < top_p
    shares = shares[kept] / shares[kept].sum()
    return int(random.choice(order[kept], p=shares))


class Conversation:
    """A text that a decoder continues: a session with its cache, and how long the text is.

    Parameters
    ----------
    machine
        A machine that runs a compiled decoder, here or over RPC: functions with states, one of
        which takes one token; others may take more at a time, such as the chunks of a prompt. Their
        inputs are called as
        exporters call them: `input_ids`, and if they have it `position_ids` or `cache_position`,
        and `attention_mask`. The first result has the scores of the next token, behind each token
        or behind the last.

    Attributes
    ----------
    length
        How many tokens it holds.
    capacity
        How many it has room for, by the width of the mask and the states; None where none tells.

    Raises
    ------
    ValueError
        The model is no such decoder.
    """

    def __init__(self, machine: VirtualMachine) -> None:
        self._programs = _programs(machine)
        self._session = Session(machine)
        self.length = 0
        rooms = [it.capacity for it in self._programs.values() if it.capacity is not None]
        self.capacity = min(rooms, default=None)

    def feed(self, tokens: Sequence[int]) -> Array:
        """Add tokens to the text, in chunks as large as the decoder's functions take.

        Parameters
        ----------
        tokens
            At least one.

        Returns
        -------
        logits
            The scores of the token that comes next: float32, (vocabulary,).

        Raises
        ------
        ValueError
            There are no tokens, more than there is room for, or such that the decoder does not
            know; the text is as before.
        """
        tokens = self._known(tokens)
        scores = np.empty(0, "float32")
        while len(tokens):
            program = next(it for it in self._programs.values() if it.steps <= len(tokens))
            chunk, tokens = tokens[: program.steps], tokens[program.steps :]
            scores = _scores(self._session, program, chunk, self.length)
            self.length += program.steps
        last: Array = scores.reshape(-1, scores.shape[-1])[-1].astype("float32")
        return last

    def _known(self, given: Sequence[int]) -> list[int]:
        """Return tokens that the decoder knows, and for which there is room."""
        try:
            tokens = [operator.index(token) for token in given]
        except TypeError:
            raise ValueError(f"The tokens are {given!r}; they must be a list of numbers.") from None
        if not tokens:
            raise ValueError("There are no tokens; give at least one.")
        words = self._programs[1].words
        unknown = next((token for token in tokens if not 0 <= token < words), None)
        if unknown is not None:
            raise ValueError(
                f"The token {unknown} is not one of the decoder's, 0 to {words - 1}: is its "
                "tokenizer that of another model?"
            )
        if self.capacity is not None and self.length + len(tokens) > self.capacity:
            raise ValueError(
                f"The text has {self.length} tokens, and {len(tokens)} are to be added; the cache "
                f"has room for {self.capacity}."
            )
        return tokens

    def generate(
        self,
        prompt: Sequence[int],
        most: int,
        stop: Collection[int] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Iterator[int]:
        """Add a prompt to the text, and yield the tokens that the decoder continues it with.

        Each is computed when it is asked for. The last one that was yielded is not yet a part of
        the text that a later call continues: begin its prompt with it.

        Parameters
        ----------
        prompt
            At least one token.
        most
            How many tokens are yielded at most; fewer where the cache is full.
        stop
            Tokens behind which it ends.
        temperature
            What scores are divided by before they become probabilities; 0 takes the largest.
        top_k
            If not 0: of how many tokens with the largest scores one is drawn [1]_.
        top_p
            One is drawn of the fewest tokens that have this probability together [2]_.
        seed
            Of NumPy's generator, which draws.

        Yields
        ------
        token
            Its number.

        Raises
        ------
        ValueError
            The prompt is empty or has no room, or a setting is outside of its range.

        References
        ----------
        .. [1] Fan, Lewis and Dauphin, Hierarchical Neural Story Generation, ACL 2018, section 5.4.
        .. [2] Holtzman et al., The Curious Case of Neural Text Degeneration, ICLR 2020, section 3.
        """
        if not (0 <= temperature < math.inf and top_k >= 0 and 0 < top_p <= 1):
            raise ValueError(
                f"temperature={temperature}, top_k={top_k}, top_p={top_p}; supported are a "
                "temperature and a top_k from 0 on, and a top_p above 0 and up to 1."
            )
        prompt = self._known(prompt)
        random = np.random.default_rng(seed)
        tokens: Sequence[int] = prompt
        for _ in range(most):
            token = chosen(self.feed(tokens), random, temperature, top_k, top_p)
            yield token
            if token in stop or self.length == self.capacity:
                return
            tokens = [token]

    def reset(self) -> None:
        """Forget the text."""
        self._session.reset()
        self.length = 0

    def copy(self) -> Conversation:
        """Return another conversation with the same text, such as a prompt with several answers."""
        copied = object.__new__(type(self))
        copied._programs, copied._session = self._programs, self._session.copy()
        copied.length, copied.capacity = self.length, self.capacity
        return copied

    def close(self) -> None:
        """Free the cache."""
        self._session.close()

    def __enter__(self) -> Conversation:
        """Return the conversation."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the cache."""
        self.close()
