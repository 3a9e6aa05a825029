# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a region the calls of a module belong to, also after they are fused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

Labels = Sequence[tuple[str, ...]]
"""Of each call in `main`, in their order: the labels of its nodes."""


def bindings_of(function: relax.Function) -> Iterator[Any]:
    """Iterate over the bindings of a function."""
    for block in function.body.blocks:
        yield from block.bindings


def is_call_tir(value: Any) -> bool:
    """Whether a value is the call of a function of loops."""
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir"


def operands_of(call: Any) -> Sequence[Any]:
    """Return what a call reads."""
    if is_call_tir(call):
        return list(call.args[1].fields)
    return list(call.args) if isinstance(call.op, tvm.ir.GlobalVar) else list(call.args[:1])


class _Calls:
    """The calls of a module's main, which are known by what they compute of what.

    Fusing keeps that, but not the names of variables.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        self._module = module
        self.keys: list[list[int]] = []
        """Of each call: those of all functions of loops in it."""
        known: dict[Any, Any] = {
            parameter: index for index, parameter in enumerate(module["main"].params)
        }
        self._walk(module["main"], known, None)

    def _walk(self, function: relax.Function, known: dict[Any, Any], inner: Any) -> None:
        for binding in bindings_of(function):
            value = binding.value
            if isinstance(value, relax.Tuple):
                known[binding.var] = [known[field] for field in value.fields]
            elif isinstance(value, relax.TupleGetItem):
                known[binding.var] = known[value.tuple_value][value.index]
            elif isinstance(value, relax.Call):
                keys: list[int] = [] if inner is None else inner
                known[binding.var] = self._key(value, known, keys)
                if inner is None:
                    self.keys.append(keys)

    def _key(self, call: Any, known: Mapping[Any, Any], keys: list[int]) -> Any:
        operands = [known[operand] for operand in operands_of(call)]
        if isinstance(call.op, tvm.ir.GlobalVar):
            group = self._module[call.op]
            inner = dict(zip(group.params, operands, strict=True))
            self._walk(group, inner, keys)
            return inner[group.body.body]
        function = call.args[0].name_hint if is_call_tir(call) else str(call.ty)
        # Keys of keys grow fast: their hashes do not.
        keys.append(hash((function, *operands)))
        return keys[-1]


def labels_after(before: tvm.IRModule, labels: Labels, after: tvm.IRModule) -> Labels:
    """Return the labels of a module's calls after a pass.

    Parameters
    ----------
    before
        The module before it.
    labels
        The labels there.
    after
        The module after it.

    Returns
    -------
    labels
        Those of the calls of its main. A pass that gives functions other names keeps their order.
    """
    known: dict[int, list[tuple[str, ...]]] = {}
    calls = _Calls(before).keys
    for keys, own in zip(calls, labels, strict=True):
        for key in keys:
            known.setdefault(key, []).append(own)
    found = []
    changed = _Calls(after).keys
    if any(key not in known for keys in changed for key in keys) and len(changed) == len(calls):
        return labels
    for keys in changed:
        taken: list[str] = []
        for key in keys:
            # The same computation twice may have become one.
            taken += known[key].pop(0) if len(known.get(key, ())) > 1 else known[key][0]
        found.append(tuple(dict.fromkeys(taken)))
    return found
