# SPDX-License-Identifier: Apache-2.0
"""Lets one process import TVM for all compiles of a process that compiles models.

The process that answers questions has TVM in memory; it starts a server, which is forked for each
region. What a compile does, it still does in a process of its own. This module has no dependencies,
since the process that asks the server should start quickly.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
from pathlib import Path

_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


def main(tool: str) -> int:
    """Do what the arguments of this process ask for.

    Parameters
    ----------
    tool
        The module whose `main` does it, and whose import is slow.

    Returns
    -------
    code
        The exit code of this process.
    """
    arguments = sys.argv[1:]
    place = _place(os.getppid())
    if arguments[:1] == ["compile"]:
        code = _asked(place, arguments)
        if code is not None:
            return code
    # TVM imports it where it is installed, which takes longer than all the rest.
    sys.modules["torch"] = None  # type: ignore[assignment]
    run = importlib.import_module(tool).main
    if arguments == ["answer"]:
        _serve(place, run)
    return int(run())


def _place(parent: int) -> Path:
    """Return the socket for a process and its user."""
    return Path(tempfile.gettempdir()) / f"npu-isa-{os.getuid()}-{parent}.socket"


# ---- The process that asks ----------------------------------------------------------------------


def _asked(place: Path, arguments: list[str]) -> int | None:
    """Let a server do it; None: there is none."""
    asker = socket.socket(socket.AF_UNIX)
    try:
        if place.stat().st_uid != os.getuid():
            return None
        asker.connect(str(place))
    except OSError:
        return None
    request = json.dumps([os.getcwd(), sys.argv[0], *arguments]).encode()
    with asker:
        try:
            socket.send_fds(asker, [request], [0, 1, 2])
            answer = asker.recv(16)
        except OSError:
            return None
    if not answer:
        return None
    status = int(answer)
    if status < 0:
        # As the forked process ended.
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


# ---- The server ---------------------------------------------------------------------------------


def _serve(place: Path, run: object) -> None:
    """Start the server; it ends with the process that answers questions."""
    parent = os.getpid()
    ready, done = os.pipe()
    if os.fork():
        os.close(done)
        os.read(ready, 1)
        os.close(ready)
        return
    os.close(ready)
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Neither questions nor their answers.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    server = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    try:
        server.bind(str(place))
        place.chmod(0o600)
        server.listen(64)
    except OSError:
        os._exit(0)
    finally:
        os.close(done)
    try:
        _accept(server, run)
    finally:
        os._exit(0)


def _accept(server: socket.socket, run: object) -> None:
    children: dict[socket.socket, int] = {}
    while True:
        found, _, _ = select.select([server, *children], [], [], 0.05 if children else None)
        for item in found:
            if item is not server:
                # Whoever asked has ended, or was ended.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(children[item], signal.SIGKILL)
                continue
            asker, _ = server.accept()
            child = _forked(asker, server, run)
            if child:
                children[asker] = child
        for asker, child in [*children.items()]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    asker.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                asker.close()
                del children[asker]


def _forked(asker: socket.socket, server: socket.socket, run: object) -> int:
    request, descriptors, _, _ = socket.recv_fds(asker, 1 << 16, 3)
    if len(descriptors) != 3:
        asker.close()
        return 0
    child = os.fork()
    if child:
        for descriptor in descriptors:
            os.close(descriptor)
        return child
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server.close()
    asker.close()
    code = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        folder, *sys.argv = json.loads(request)
        os.chdir(folder)
        code = run()  # type: ignore[operator]
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
