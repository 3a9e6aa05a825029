# SPDX-License-Identifier: Apache-2.0
"""What importers say of nodes that they cannot read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..shared.messages import printable_lines, size_text

_MOST = 8
_NODE = "_node_of_the_model"


def unknown_operators(nodes: Sequence[str]) -> str:
    """Return the sentence about nodes whose operators TVM's importer does not know."""
    listed = ", ".join(nodes[:_MOST])
    if len(nodes) > _MOST:
        listed += f", and {len(nodes) - _MOST} more"
    are = "the operator of the node" if len(nodes) == 1 else "the operators of the nodes"
    return (
        f"TVM's importer does not know {are} {listed}. Export the model with others, or without "
        "the part that has them."
    )


@contextmanager
def at_node(title: str) -> Iterator[None]:
    """Note on an error which node was read; errors keep their type."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, _NODE):
            with suppress(AttributeError, TypeError):
                setattr(error, _NODE, title)
        raise


@contextmanager
def refused_at(node: str, what_helps: Callable[[], str]) -> Iterator[None]:
    """Raise errors as refusals of a node: as ValueErrors whose message begins with it.

    `what_helps`: returns what to do about it; "" if that is not known.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if node_of(error):
            raise
        why = "; ".join(filter(None, (essential(error), what_helps())))
        raise refusal(node, why) from error


def refusal(node: str, why: str) -> ValueError:
    """Return the refusal of a node, which `refused_at` leaves as it is."""
    refused = ValueError(f"{node}: {why}")
    setattr(refused, _NODE, node)
    return refused


_ADDRESS = re.compile(r"^(?:\w+Error: )?(?:Check failed: \(.*?\) is false:? ?)?")
_OPERATOR = re.compile(
    r"(?:Operator )?ir\.Op\([^\n]*?name=\"relax\.([\w.]+)\"[^\n]*support_level=\d+\)"
)
_LONGEST = 500


def essential(error: Exception) -> str:
    """Return the line of an error that says what is wrong, without what TVM writes around it.

    Its first line, or the last one if it begins with the places in TVM's sources.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(mark in str(error) for mark in _OF_SOURCES):
        lines = [line for line in reversed(lines) if not line.startswith(_OF_SOURCES)]
    text = _ADDRESS.sub("", lines[0] if lines else "")
    kind = type(error).__name__
    # For example, the text of a KeyError is only the key.
    if not text or isinstance(error, (LookupError, AttributeError)):
        text = f"{kind}: {text}" if text else kind
    return size_text(_OPERATOR.sub(r"\1", text))[:_LONGEST].rstrip(".")


_OF_SOURCES = ("Traceback (most recent", "Stack trace", 'File "')


def node_of(error: Exception) -> str:
    """Return the node that was read when an error was raised.

    As `at_node` has noted it; "" if it was not.
    """
    return str(getattr(error, _NODE, ""))


@contextmanager
def readable_errors() -> Iterator[None]:
    """Escape what a terminal would interpret in the messages of errors, which quote the model."""
    try:
        yield
    except Exception as error:
        error.args = tuple(
            printable_lines(part) if isinstance(part, str) else part for part in error.args
        )
        raise
