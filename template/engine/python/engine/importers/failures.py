# SPDX-License-Identifier: Apache-2.0
"""What importers say of nodes that they cannot read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..messages import printable_lines

_MOST = 8
_NODE = "_node_of_the_model"


def unknown_operators(nodes: Sequence[str]) -> str:
    """Return the sentence about nodes whose operators TVM's importer does not know.

    Parameters
    ----------
    nodes
        Their titles, at least one.

    Returns
    -------
    sentence
        With the first of them.
    """
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
    """Note on an error which node was read; errors keep their type.

    Parameters
    ----------
    title
        The node, by the name that its author gave it.

    Returns
    -------
    context
        The innermost one notes its node.
    """
    try:
        yield
    except Exception as error:
        if not hasattr(error, _NODE):
            with suppress(AttributeError, TypeError):
                setattr(error, _NODE, title)
        raise


def node_of(error: Exception) -> str:
    """Return the node that was read when an error was raised.

    Parameters
    ----------
    error
        The error of an importer.

    Returns
    -------
    title
        As `at_node` has noted it; "" if it was not.
    """
    return str(getattr(error, _NODE, ""))


@contextmanager
def readable_errors() -> Iterator[None]:
    """Escape what a terminal would interpret in the messages of errors, which quote the model.

    Returns
    -------
    context
        Also a decorator. Errors keep their type.
    """
    try:
        yield
    except Exception as error:
        error.args = tuple(
            printable_lines(item) if isinstance(item, str) else item for item in error.args
        )
        raise
