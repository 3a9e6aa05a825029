# SPDX-License-Identifier: Apache-2.0
"""Sessions of a compiled model, each of which holds the states of one conversation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm

from ..ir.states import function_of_sessions, in_session, require_machine
from ..shared.aliases import Array
from ..shared.messages import refused_inputs

if TYPE_CHECKING:
    from tvm.runtime.vm import VirtualMachine

_CPU = 1


def call_remote(machine: VirtualMachine, name: str, *inputs: Any) -> Any:
    """Call a function over RPC, which does not pass tuples."""
    machine.set_input(name, *inputs)
    machine.invoke_stateful(name)
    return machine.get_outputs(name)


class Session:
    """What a model keeps from one call to the next, such as the cache of one conversation.

    The runtime holds it. A session is for one call at a time, and a second one is an error. It is
    closed at the end of a `with`, by `close`, or when nothing refers to it any more.

    Parameters
    ----------
    machine
        A machine that runs a compiled model with states, here or over RPC. Its library must come
        from this backend's `partition` or `compile`.

    Attributes
    ----------
    id
        Its number in the process that runs the model: an argument of the library's functions.
    device
        The host that runs the model, where inputs are: `tvm.runtime.tensor(x, session.device)`.

    Examples
    --------
    ``session["main"](x)`` calls the function `main` with the inputs that are no states, and returns
    the results that are none: a tensor, or several.
    """

    def __init__(self, machine: VirtualMachine) -> None:
        require_machine(machine)
        self._start(machine, _function(machine, "open")())

    def _start(self, machine: VirtualMachine, number: int) -> None:
        self.id = int(number)
        self.device = _host_of(machine)
        self._machine = machine
        self._close = weakref.finalize(self, _function(machine, "close"), self.id)
        # At the end of the process, TVM may be gone.
        self._close.atexit = False

    def __getitem__(self, function: str) -> Callable[..., Any]:
        """Return a function of the model, which takes the inputs that are no states."""
        name = in_session(function)
        try:
            call = self._machine[name]
        except AttributeError:
            raise ValueError(
                f"The model has no function '{function}' with states; call one that keeps nothing "
                "without a session."
            ) from None
        number = None
        if self._machine.module.kind == "rpc":
            # Nor does RPC pass numbers to machines.
            number = tvm.runtime.tensor(np.array(self.id), self.device)

        # It refers to the session, which stays open for as long as someone may call it.
        def run(*inputs: Any) -> Any:
            try:
                if number is not None:
                    return call_remote(self._machine, name, *inputs, number)
                return call(*inputs, self.id)
            except Exception as error:
                about_inputs = refused_inputs(error, function, hidden=1)
                if about_inputs is None:
                    raise
                raise about_inputs from None

        return run

    def reset(self) -> None:
        """Return to the states before the first call, also after a call that failed."""
        _function(self._machine, "reset")(self.id)

    def copy(self) -> Session:
        """Open a session with the states of this one, which costs no memory until they differ."""
        copied = object.__new__(type(self))
        copied._start(self._machine, _function(self._machine, "copy")(self.id))
        return copied

    def read(self, state: str) -> Array:
        """Return a copy of a state.

        Parameters
        ----------
        state
            Its name; `states` lists them.
        """
        value: Array = _function(self._machine, "read")(self.id, state).numpy()
        return value

    def write(self, state: str, value: Array | tvm.runtime.Tensor) -> None:
        """Replace a state by a copy of an array.

        Parameters
        ----------
        state
            Its name.
        value
            An array of its type and shape.
        """
        if not isinstance(value, tvm.runtime.Tensor):
            value = tvm.runtime.tensor(np.asarray(value), self.device)
        _function(self._machine, "write")(self.id, state, value)

    def close(self) -> None:
        """Free the states; later uses are errors."""
        self._close()

    def __enter__(self) -> Session:
        """Return the session."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()


def _host_of(machine: VirtualMachine) -> tvm.runtime.Device:
    if machine.module.kind != "rpc":
        return tvm.cpu()
    from tvm import rpc

    table = rpc._ffi_api.SessTableIndex(machine.module)
    return tvm.runtime.device(_CPU + rpc.base.RPC_SESS_MASK * (table + 1), 0)


def _function(machine: VirtualMachine, what: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = machine[function_of_sessions(what)]
        return found
    except AttributeError:
        raise ValueError(
            "The model keeps nothing from one call to the next, so it has no sessions; call its "
            "functions. Sessions are of models with states, compiled by this release."
        ) from None
