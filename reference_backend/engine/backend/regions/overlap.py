# SPDX-License-Identifier: Apache-2.0
"""Lets independent regions run at the same time.

They are submitted one after the other, and waited for before anything else can see their results.
This module decides by the shape of the graph; the runtime finds shared memory by address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from ..shared.backend import BACKEND

WAIT_ALL = f"{BACKEND}.runtime.wait_all"

# Allowed between overlapping calls, since they read and write no elements.
_TRANSPARENT = {
    "relax.vm.alloc_storage",
    "relax.vm.alloc_tensor",
    "relax.vm.kill_object",
    "vm.builtin.check_shape_info",
    "vm.builtin.check_tensor_info",
    "vm.builtin.make_shape",
    "vm.builtin.match_shape",
    "vm.builtin.reshape",
}
_VIEW = "vm.builtin.reshape"


def overlap_regions(mod: tvm.IRModule) -> tvm.IRModule:
    """Let independent regions of a module overlap."""
    regions = {}
    for module in (mod.attrs or {}).get("external_mods", ()):
        if module.kind == BACKEND:
            heads = json.loads(module.inspect_source(""))["heads"]
            regions[str(module["get_symbol"]())] = len(heads)
    if len(regions) < 2:
        return mod
    overlapper = _Overlapper(regions)
    mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for global_var, function in list(mod.functions_items()):
        if isinstance(function, relax.Function):
            mod[global_var] = overlapper.visit_expr(function)
    return mod


def overlapping_pipeline(target: object) -> tvm.transform.Pass:
    """Return the Relax pipeline for `tvm.compile`: TVM's own, then overlap."""
    chosen = tvm.target.Target(target)
    # The same choice as in tvm.compile.
    default = "gpu" in chosen.keys and relax.get_default_pipeline(chosen)
    overlap = tvm.transform.module_pass(
        lambda mod, _: overlap_regions(mod), opt_level=0, name="OverlapRegions"
    )
    return tvm.transform.Sequential([default or relax.get_pipeline("default"), overlap])


class _Call:
    """A call of a region, with the roots of the tensors that it reads and writes."""

    def __init__(self, var: object, tensors: Sequence[object], outputs: int) -> None:
        inputs = len(tensors) - outputs
        self.var = var
        self.reads = set(tensors[:inputs])
        self.writes = set(tensors[inputs:])

    def depends_on(self, earlier: _Call) -> bool:
        return bool(earlier.writes & (self.reads | self.writes) or earlier.reads & self.writes)


@relax.expr_functor.mutator
class _Overlapper(relax.PyExprMutator):  # type: ignore[misc]
    """Rewrites calls of regions: the name of each, and the number of its outputs."""

    def __init__(self, regions: Mapping[str, int]) -> None:
        super().__init__()
        self.regions = regions
        self.submitted: set[relax.Var] = set()
        self.waited: set[relax.Var] = set()

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """Find overlapping calls in a block, and rewrite them."""
        roots: dict[relax.Var, relax.Var] = {}
        run: list[_Call] = []
        for binding in block.bindings:
            name = _callee(binding.value)
            if name in self.regions:
                tensors = (x for x in binding.value.args if isinstance(x.ty, relax.TensorType))
                args = [roots.get(tensor, tensor) for tensor in tensors]
                run.append(_Call(binding.var, args, self.regions[name]))
            elif name == _VIEW:
                viewed = binding.value.args[0]
                roots[binding.var] = roots.get(viewed, viewed)
            elif name not in _TRANSPARENT:
                self._decide(run)
                run = []
        self._decide(run)
        return super().visit_binding_block_(block)

    def _decide(self, run: list[_Call]) -> None:
        """Submit the calls of a sequence that can overlap with others in it."""
        before: list[set[int]] = []
        overlapping: set[int] = set()
        for index, call in enumerate(run):
            direct = {other for other in range(index) if call.depends_on(run[other])}
            before.append(direct.union(*(before[other] for other in direct)))
            independent = set(range(index)) - before[index]
            overlapping |= independent | ({index} if independent else set())
        self.submitted |= {run[index].var for index in overlapping}
        if overlapping:
            self.waited.add(run[max(overlapping)].var)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a call, and wait after the last submitted one."""
        if binding.var not in self.submitted:
            super().visit_var_binding_(binding)
            return
        call = binding.value
        submit = relax.ExternFunc(f"{call.op.global_symbol}.submit")
        args = [self.visit_expr(arg) for arg in call.args]
        self.builder_.emit(relax.Call(submit, args, call.attrs, call.ty_args))
        if binding.var in self.waited:
            self.builder_.emit(relax.Call(relax.ExternFunc(WAIT_ALL), [], None, [relax.AnyType()]))


def _callee(value: object) -> str:
    """Return the name of what a binding calls, or of what cannot be overlapped."""
    if isinstance(value, relax.Call):
        if isinstance(value.op, relax.ExternFunc):
            return str(value.op.global_symbol)
        if isinstance(value.op, tvm.ir.Op):
            return str(value.op.name)
    return ""
