# SPDX-License-Identifier: Apache-2.0
"""Fuses what one op computes row by row, such as a norm, into one function.

TVM's FuseOps ends at each reduction, so that a layer_norm would read and write its rows four times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from .labels import Labels, bindings_of, is_call_tir, operands_of

_ELEMENTWISE, _BROADCAST, _REDUCTION = 0, 1, 3
"""What AnnotateTIROpPattern calls functions."""


def fuse_rows(labels: Labels) -> tvm.transform.Pass:
    """Return a pass that groups the calls of an op which reduces rows, and uses that in them.

    Parameters
    ----------
    labels
        Of each call in `main`: which nodes it belongs to.

    Returns
    -------
    fuse_rows
        The pass, after AnnotateTIROpPattern and before FuseOps; FuseTIR makes functions of groups.
    """

    def run(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return _Fuser(module, labels).module()

    return tvm.transform.module_pass(run, opt_level=0, name="FuseRows")


def _count(var: Any) -> int:
    return math.prod(int(size) for size in var.ty.shape)


class _Fuser:
    def __init__(self, module: tvm.IRModule, labels: Labels) -> None:
        self._module = module
        self._labels = labels
        self._bindings = [*bindings_of(module["main"])]
        self._uses: dict[Any, list[int]] = {}
        for place, binding in enumerate(self._bindings):
            value = binding.value
            read = value.fields if isinstance(value, relax.Tuple) else operands_of(value)
            for var in read:
                self._uses.setdefault(var, []).append(place)

    def _pattern(self, place: int) -> int | None:
        value = self._bindings[place].value
        if not is_call_tir(value):
            return None
        return int((self._module[value.args[0]].attrs or {}).get("op_pattern", 8))

    def _group_from(self, first: int) -> int:
        """Return the place behind the group that begins at a binding; itself if there is none."""
        kinds = (_ELEMENTWISE, _BROADCAST, _REDUCTION)
        end = first
        while (
            end < len(self._labels)
            and self._labels[end]
            and self._labels[end] == self._labels[first]
            and self._pattern(end) in kinds
        ):
            end += 1
        rows = [
            _count(self._bindings[i].var)
            for i in range(first, end)
            if self._pattern(i) == _REDUCTION
        ]
        last = self._bindings[end - 1].var
        if not rows or _count(last) <= min(rows) or not self._is_closed(first, end):
            return first
        # What only follows, element by element, as an epilogue does.
        while (
            end < len(self._labels)
            and self._pattern(end) in (_ELEMENTWISE, _BROADCAST)
            and _count(self._bindings[end].var) == _count(last)
            and self._bindings[end - 1].var in operands_of(self._bindings[end].value)
            and self._is_closed(first, end + 1)
        ):
            end += 1
        return end

    def _is_closed(self, first: int, end: int) -> bool:
        """Whether only the last result of a group is read by others."""
        return all(
            max(self._uses.get(self._bindings[i].var, [end])) < end for i in range(first, end - 1)
        )

    def module(self) -> tvm.IRModule:
        main = self._module["main"]
        builder = relax.BlockBuilder(self._module)
        kept: list[Any] = []
        place = 0
        while place < len(self._bindings):
            end = self._group_from(place) if place < len(self._labels) else place
            if end - place < 2:
                kept.append(self._bindings[place])
                place += 1
                continue
            kept.append(self._grouped(builder, self._bindings[place:end]))
            place = end
        body = builder.normalize(relax.SeqExpr([relax.DataflowBlock(kept)], main.body.body))
        changed = relax.Function(main.params, body, main.ret_ty, is_pure=True, attrs=main.attrs)
        builder.update_func(self._module.get_global_var("main"), changed)
        return builder.get()

    def _grouped(self, builder: relax.BlockBuilder, bindings: Sequence[Any]) -> Any:
        """Return a binding of the call of a group's function."""
        inside = {binding.var for binding in bindings}
        operands = dict.fromkeys(
            var for binding in bindings for var in operands_of(binding.value) if var not in inside
        )
        names: dict[Any, Any] = {var: relax.Var(f"p{i}", var.ty) for i, var in enumerate(operands)}
        parameters = [*names.values()]
        inner: list[Any] = []
        for binding in bindings:
            is_last = binding is bindings[-1]
            kind = relax.Var if is_last else relax.DataflowVar
            call = builder.normalize(_renamed(binding.value, names))
            names[binding.var] = kind(f"r{len(inner)}", call.ty)
            inner.append(relax.VarBinding(names[binding.var], call))
        result = names[bindings[-1].var]
        body = builder.normalize(relax.SeqExpr([relax.DataflowBlock(inner)], result))
        function = relax.Function(parameters, body, result.ty, is_pure=True)
        calls = [str(binding.value.args[0].name_hint) for binding in bindings]
        variable = builder.add_func(
            function.with_attr("Primitive", True), "fused_" + "_".join(calls)
        )
        call = builder.normalize(relax.Call(variable, [*operands]))
        return relax.VarBinding(bindings[-1].var, call)


def _renamed(call: Any, names: Mapping[Any, Any]) -> Any:
    operands = relax.Tuple([names[var] for var in operands_of(call)])
    return relax.Call(call.op, [call.args[0], operands], call.attrs, call.ty_args)
