# SPDX-License-Identifier: Apache-2.0
"""Makes imports of PyTorch's programs quicker."""

from torch import _C
from torch._export import utils


def list_new_ops_only() -> None:
    """Keep PyTorch from looking up all ops that it has, 50 times in each import of a program.

    That would be almost half of the time that an import takes.
    """
    try:
        registered, look_up = (
            _C._dispatch_get_registrations_for_dispatch_key,
            utils._materialize_cpp_cia_ops,
        )
    except AttributeError:
        return  # Another version of PyTorch.
    known = set()

    def look_up_new() -> None:
        count = len(registered("CompositeImplicitAutograd"))
        if count not in known:
            known.add(count)
            look_up()

    utils._materialize_cpp_cia_ops = look_up_new
