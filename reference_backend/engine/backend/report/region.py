# SPDX-License-Identifier: Apache-2.0
"""What the NPU runs in one call, and what crosses its border."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Border:
    """A tensor that crosses the border of a region at each call.

    Parameters
    ----------
    name
        Its variable.
    type
        Its element type and shape.
    bytes
        Its size; none if it is not known.
    state
        The state of the model whose value it is, before or after the call; none of other tensors.
    """

    name: str
    type: str
    bytes: int | None
    state: str | None = None


@dataclass(frozen=True)
class RegionPlacement:
    """A region: what the NPU runs in one call.

    Parameters
    ----------
    symbol
        Its name.
    function
        The function of the module that calls it.
    ops
        How many ops it has.
    composites
        The labels of its composites, in order.
    macs, bytes_read, bytes_written
        The sums over its ops.
    inputs, outputs
        What crosses its border; constants that are part of the program do not.
    warnings
        What the driver says of it, such as warnings of an SDK.
    driver
        The driver that it is for; none where a single driver was asked.
    notes
        What else it says, such as how long the program takes.
    """

    symbol: str
    function: str
    ops: int
    composites: tuple[str, ...]
    macs: int | None
    bytes_read: int | None
    bytes_written: int | None
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    warnings: tuple[str, ...] = ()
    driver: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def bytes_in(self) -> int:
        """The bytes that enter, as far as they are known."""
        return sum(item.bytes or 0 for item in self.inputs)

    @property
    def bytes_out(self) -> int:
        """The bytes that leave, as far as they are known."""
        return sum(item.bytes or 0 for item in self.outputs)

    @property
    def state_bytes_in(self) -> int:
        """The bytes of states that enter."""
        return sum(item.bytes or 0 for item in self.inputs if item.state)

    @property
    def state_bytes_out(self) -> int:
        """The bytes of states that leave."""
        return sum(item.bytes or 0 for item in self.outputs if item.state)
