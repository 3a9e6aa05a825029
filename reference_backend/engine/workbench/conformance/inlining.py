# SPDX-License-Identifier: Apache-2.0
"""Inlines the functions that a function calls.

TVM's own pass leaves the symbolic sizes of each body, which nothing defines any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.relax.utils import copy_with_new_vars

Sizes = dict[tvm.tirx.Var, relax.Expr]
"""The values of symbolic sizes where the function is called."""


def inlined(mod: tvm.IRModule, function: relax.Function) -> tvm.IRModule:
    """Make a module of one function, with the bodies of all that it calls in it.

    `mod`: the module with the functions that it calls, none of which calls itself.

    A module with the function, which is called `main`, and the kernels that it calls.
    """
    kernels = {
        global_var: kernel
        for global_var, kernel in mod.functions_items()
        if not isinstance(kernel, relax.Function)
    }
    main = function.with_attr("global_symbol", "main")
    others = {
        global_var: other
        for global_var, other in mod.functions_items()
        if isinstance(other, relax.Function) and global_var.name_hint != "main"
    }
    # Blocks are joined, and variables of a dataflow block are not visible outside of it.
    plain = relax.transform.ToNonDataflow()(
        tvm.IRModule({**kernels, **others, tvm.ir.GlobalVar("main"): main})
    )
    flat = _Inliner(plain).function(plain["main"])
    result = tvm.IRModule({**kernels, tvm.ir.GlobalVar("main"): flat})
    result = relax.transform.CanonicalizeBindings()(result)
    return relax.transform.DeadCodeElimination(["main"])(result)


class _Inliner:
    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._inner: dict[relax.Var, relax.Function] = {}

    def function(self, function: relax.Function) -> relax.Function:
        """Return a function that calls only ops and kernels."""
        body = self._body(function.body)
        flat = relax.Function(function.params, body, function.ret_ty, function.is_pure)
        return flat.with_attrs(dict(function.attrs or {}))

    def _body(self, body: relax.SeqExpr) -> relax.SeqExpr:
        bindings: list[relax.Binding] = []
        for block in body.blocks:
            for binding in block.bindings:
                if isinstance(binding.value, relax.Function):
                    self._inner[binding.var] = binding.value
                else:
                    bindings += self._bindings(binding)
        return relax.SeqExpr([relax.BindingBlock(bindings)], body.body)

    def _bindings(self, binding: relax.Binding) -> Sequence[relax.Binding]:
        """Return what a binding becomes."""
        value = binding.value
        if isinstance(value, relax.If):
            branches = self._body(value.true_branch), self._body(value.false_branch)
            return [relax.VarBinding(binding.var, relax.If(value.cond, *branches))]
        callee = self._callee(value)
        if callee is None:
            return [binding]
        # Each call needs new variables.
        body = copy_with_new_vars(self.function(callee))
        sizes = _sizes_at(body.params, value.args)
        body = body.bind_symbolic_vars(sizes) if sizes else body
        return [
            *(
                relax.VarBinding(var, item)
                for var, item in zip(body.params, value.args, strict=True)
            ),
            *(item for block in body.body.blocks for item in block.bindings),
            relax.VarBinding(binding.var, body.body.body),
        ]

    def _callee(self, value: relax.Expr) -> relax.Function | None:
        """Return the function that an expression calls; None for ops, kernels and other values."""
        if not isinstance(value, relax.Call):
            return None
        if isinstance(value.op, tvm.ir.GlobalVar):
            called = self._mod[value.op]
            return called if isinstance(called, relax.Function) else None
        return self._inner.get(value.op) if isinstance(value.op, relax.Var) else None


def _sizes_at(params: Sequence[relax.Var], arguments: Sequence[relax.Expr]) -> Sizes:
    """Return the values of the symbolic sizes of parameters for some arguments."""
    sizes: Sizes = {}

    def match(wanted: relax.Type, given: tvm.ir.Type) -> None:
        if isinstance(wanted, relax.TupleType):
            for one, other in zip(wanted.fields, given.fields, strict=True):
                match(one, other)
        else:
            for size, found in zip(_sizes(wanted), _sizes(given), strict=False):
                if isinstance(size, tvm.tirx.Var):
                    sizes.setdefault(size, found)

    for param, argument in zip(params, arguments, strict=True):
        match(param.ty, argument.ty)
    return sizes


def _sizes(kind: tvm.ir.Type) -> Sequence[relax.Expr]:
    shape = kind if isinstance(kind, relax.ShapeType) else getattr(kind, "shape", None)
    return list(getattr(shape, "values", None) or ())
