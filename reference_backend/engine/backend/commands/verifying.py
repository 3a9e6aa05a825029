# SPDX-License-Identifier: Apache-2.0
"""`--verify`: compares what was compiled with the original, which its own framework runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tvm
from tvm.runtime.vm import VirtualMachine

from ..models.compiled import run
from ..models.files import ArrayFile
from ..shared.aliases import Array
from ..shared.problem import Problem
from .inputs import inputs_for

if TYPE_CHECKING:
    from ..verification import Verification
    from ..verification.originals import Original
    from .preparing import Prepared


def given_arrays(arguments: argparse.Namespace) -> ArrayFile | None:
    """Read the inputs of a command that only runs the model to verify it.

    Arrays by name; None for random inputs.
    """
    if not arguments.verify:
        for name in ("inputs", "seed"):
            if getattr(arguments, name):
                raise Problem(f"--{name} goes with --verify.")
        require_verify(arguments)
    return ArrayFile(arguments.inputs) if arguments.inputs is not None else None


def require_verify(arguments: argparse.Namespace) -> None:
    """Refuse a tolerance without anything to verify."""
    if arguments.tolerance is not None and not arguments.verify:
        raise Problem("--tolerance goes with --verify.")


def original_for(arguments: argparse.Namespace, content: object) -> Original | None:
    """Return the original with its framework, if the model is to be verified.

    None if it is not to be verified.
    """
    if not getattr(arguments, "verify", False):
        return None
    from ..verification.originals import original_of

    try:
        return original_of(content)
    except (ImportError, ValueError) as error:
        raise Problem(f"--verify: {error}.") from None


def verified(
    prepared: Prepared,
    arguments: argparse.Namespace,
    machine: VirtualMachine,
    given: ArrayFile | None,
) -> Verification:
    """Run a compiled model and the original, and compare them.

    `given`: the inputs; None for random ones.
    """
    inputs = inputs_for(arguments, given, prepared.signature)
    found = run(machine, list(map(tvm.runtime.tensor, inputs)))
    return verification_of(prepared, arguments, inputs, [item.numpy() for item in found])


def verification_of(
    prepared: Prepared,
    arguments: argparse.Namespace,
    inputs: Sequence[Array],
    results: Sequence[Array],
) -> Verification:
    """Run the original, and compare results with its own."""
    from ..verification.verify import check, described

    assert prepared.original is not None
    path = arguments.inputs
    about = described("" if path is None else f"inputs of {path.name}", arguments.seed)
    try:
        return check(prepared.original, prepared.mod, inputs, results, about, arguments.tolerance)
    except RuntimeError as error:
        raise Problem(f"--verify: {error}") from error


def require_passed(verification: Verification | None) -> None:
    """Fail if a verification did.

    `verification`: the verification, or none.
    """
    if verification is not None and not verification.passed:
        raise Problem(str(verification))
