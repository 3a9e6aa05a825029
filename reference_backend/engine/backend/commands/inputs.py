# SPDX-License-Identifier: Apache-2.0
"""The inputs that a command runs a model with."""

from __future__ import annotations

import argparse

from ..models.files import ArrayFile
from ..models.signature import Signature, random_inputs, suitable
from ..shared.aliases import Array
from ..shared.problem import Problem


def inputs_for(
    arguments: argparse.Namespace, arrays: ArrayFile | None, signature: Signature
) -> list[Array]:
    """Return the inputs that the arguments ask for: arrays of a file, or random ones.

    `arrays`: the arrays of the file; None for random ones.
    """
    names = [item.name for item in signature.inputs]
    for name, _ in arguments.shape:
        if name not in names:
            raise Problem(f"--shape {name}=...: the model's inputs are {', '.join(names)}.")
    if arrays is not None:
        return suitable(arrays, signature)
    return random_inputs(signature, dict(arguments.shape), arguments.seed)
