# SPDX-License-Identifier: Apache-2.0
"""The machinery of the passes: reading a module once, and rewriting bindings of dataflow blocks.

A rewriter looks at one binding, its `Site`, and returns the bindings that replace it, or None to
leave it alone. It names the ops it starts from, so that a pass costs next to nothing in a model
without them. The analysis of a function is kept as long as the function stays in the module.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import is_not
from typing import TypeGuard

import tvm
import tvm_ffi
from tvm import relax

from ..ir.calls import Constant, Values, items_of, resolve, with_arguments
from ..ir.origins import with_absorbed, with_span
from ..table.table import Table
from . import evaluate

Bindings = list[relax.Binding]
TUPLE_GET_ITEM = "TupleGetItem"
"""Stands for the op's name when reading a field of a tuple."""


def is_opaque(function: tvm.ir.BaseFunc) -> bool:
    """Whether the passes leave a function alone."""
    if not isinstance(function, relax.Function):
        return True
    return any(function.attrs.get(key) for key in ("Codegen", "Composite", "Primitive"))


def bound_values(body: relax.SeqExpr) -> dict[relax.Var, relax.Expr]:
    """Return values by variable, without those that a `match_cast` gives another type."""
    values = {}
    for block in body.blocks:
        for binding in items_of(block.bindings):
            if isinstance(binding, relax.VarBinding):
                values[binding.var] = binding.value
                if isinstance(binding.value, relax.If):
                    values |= bound_values(binding.value.true_branch)
                    values |= bound_values(binding.value.false_branch)
    return values


def drop_unused(mod: tvm.IRModule) -> tvm.IRModule:
    """Drop values that nothing uses, but keep every function."""
    names = [
        global_var.name_hint
        for global_var, function in mod.functions_items()
        if isinstance(function, relax.Function)
    ]
    return relax.transform.DeadCodeElimination(names)(mod)


def op_name(value: relax.Expr | None) -> str:
    """Return the name of the op that a value calls, or ""."""
    is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    return str(value.op.name) if is_call and value is not None else ""


def is_call_of(value: relax.Expr | None, *ops: str) -> TypeGuard[relax.Call]:
    """Whether a value is a call of one of these ops."""
    return op_name(value) in ops


def is_full_of(number: int, tensor: relax.Expr, values: Values) -> bool:
    """Whether all elements of a tensor are known to be 0, or 1."""
    constant = resolve(tensor, values)
    value = values.get(tensor)
    if is_call_of(value, "relax.full_like"):
        constant = resolve(value.args[1], values)
    if isinstance(constant, Constant):
        return bool((constant.value.numpy() == number).all())
    return is_call_of(value, "relax.ones_like" if number else "relax.zeros_like")


def with_constants(call: relax.Call, values: Values) -> relax.Call:
    """Return a call that reads constants and shapes directly, not the variables bound to them."""

    def resolved(expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Tuple):
            # Once: each access of `fields` makes new objects of Python.
            fields = items_of(expr.fields)
            known = [resolved(field) for field in fields]
            return relax.Tuple(known) if any(map(is_not, known, fields)) else expr
        bound = resolve(expr, values) if isinstance(expr, relax.Var) else expr
        return bound if isinstance(bound, Constant | relax.ShapeExpr) else expr

    operands = items_of(call.args)
    arguments = [resolved(operand) for operand in operands]
    return with_arguments(call, arguments) if any(map(is_not, arguments, operands)) else call


# ---- Blocks -------------------------------------------------------------------------------------


@dataclass
class Block:
    """The analysis of a block of a function."""

    block: relax.BindingBlock
    bindings: Bindings
    values: Values
    """Values of the variables visible in the block."""

    @property
    def is_dataflow(self) -> bool:
        """Whether no binding has effects."""
        return isinstance(self.block, relax.DataflowBlock)

    @cached_property
    def _live(self) -> tuple[dict[relax.Var, int], frozenset[int]]:
        uses: Counter[relax.Var] = Counter()
        dead = []
        for index in reversed(range(len(self.bindings))):
            binding = self.bindings[index]
            is_local = isinstance(binding.var, relax.DataflowVar)
            if is_local and isinstance(binding, relax.VarBinding) and not uses[binding.var]:
                dead.append(index)
                continue
            uses.update(
                var
                for var in items_of(relax.analysis.free_vars(binding.value))
                if isinstance(var, relax.DataflowVar)
            )
        return uses, frozenset(dead)

    @property
    def uses(self) -> Mapping[relax.Var, int]:
        """How many live bindings of the block use each of its DataflowVars."""
        return self._live[0]

    @property
    def dead(self) -> frozenset[int]:
        """The indices of the bindings whose values nothing uses."""
        return self._live[1] if self.is_dataflow else frozenset()

    @cached_property
    def by_op(self) -> dict[str, list[int]]:
        """The indices of the calls of each op, and of the fields of tuples."""
        indices: dict[str, list[int]] = {}
        for index, binding in enumerate(self.bindings):
            if not isinstance(binding, relax.VarBinding):
                continue
            is_field = isinstance(binding.value, relax.TupleGetItem)
            name = TUPLE_GET_ITEM if is_field else op_name(binding.value)
            if name:
                indices.setdefault(name, []).append(index)
        return indices


def _read(function: relax.Function) -> list[Block]:
    values: Values = bound_values(function.body)
    blocks = function.body.blocks
    if sum(isinstance(block, relax.DataflowBlock) for block in blocks) < 2:
        return [Block(block, items_of(block.bindings), values) for block in blocks]
    # From other blocks, keep only values that read no DataflowVar.
    outer = {
        var: value
        for var, value in values.items()
        if not any(isinstance(free, relax.DataflowVar) for free in relax.analysis.free_vars(value))
    }
    read = []
    for block in blocks:
        bindings = items_of(block.bindings)
        inner = {binding.var: values[binding.var] for binding in bindings if binding.var in values}
        read.append(Block(block, bindings, ChainMap(outer, inner)))
    return read


# ---- Rewriting ----------------------------------------------------------------------------------


@dataclass
class Site:
    """A binding of a dataflow block, for a rewriter to read."""

    binding: relax.VarBinding
    block: Block
    mod: tvm.IRModule
    table: Table

    @property
    def call(self) -> relax.Call:
        """The bound call."""
        return self.binding.value

    @property
    def values(self) -> Values:
        """Values by variable."""
        return self.block.values

    def value(self, expr: relax.Expr) -> relax.Expr | None:
        """Return a variable's value, None if unknown."""
        return self.block.values.get(expr)

    def constant(self, expr: relax.Expr) -> Constant | None:
        """Return the constant that an expression resolves to, if any."""
        constant = resolve(expr, self.values)
        return constant if isinstance(constant, Constant) else None

    def is_used_once(self, expr: relax.Expr) -> bool:
        """Whether this binding is the only use of a value."""
        return self.block.uses.get(expr) == 1

    def bind(self, value: relax.Expr) -> Bindings:
        """Bind the variable to another value."""
        return [relax.VarBinding(self.binding.var, value)]


Rewriter = Callable[[Site], Bindings | None]
BlockRewriter = Callable[[Block, Table], Bindings | None]


class Steps:
    """The bindings that replace the one of a site; exact calls of constants are folded."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._bindings: Bindings = []
        self._builder = relax.BlockBuilder()

    def add(self, call: relax.Call) -> relax.Expr:
        """Bind a call; return its variable, or its value if that is constant."""
        call = self._builder.normalize(with_constants(call, self._site.values))
        value = evaluate.constant_of(call)
        if value is not None:
            return value
        name = f"{self._site.binding.var.name}_{len(self._bindings)}"
        var = relax.DataflowVar(name, call.ty)
        self._bindings.append(relax.VarBinding(var, call))
        return var

    def end(self, call: relax.Call) -> Bindings | None:
        """Bind the last call, and return all bindings; None if its type is not the site's."""
        call = self._builder.normalize(call)
        var = self._site.binding.var
        if not tvm_ffi.structural_equal(call.ty, var.ty):
            return None
        return [*self._bindings, relax.VarBinding(var, call)]


class Reader:
    """Rewrites modules for a table, and caches the analysis of the last module's functions."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._read: dict[int, tuple[tvm.ir.BaseFunc, list[Block] | None]] = {}

    def functions(self, mod: tvm.IRModule) -> Iterator[tuple[tvm.ir.GlobalVar, list[Block]]]:
        """Generate the functions that are not opaque, each as its blocks."""
        functions = list(mod.functions_items())
        read = {}
        for _, function in functions:
            key = hash(function)  # Of the node, which the entry keeps alive.
            read[key] = self._read.get(key) or (
                function,
                None if is_opaque(function) else _read(function),
            )
        self._read = read
        for global_var, function in functions:
            blocks = read[hash(function)][1]
            if blocks is not None:
                yield global_var, blocks

    def rewrite(
        self, mod: tvm.IRModule, ops: Sequence[str], rewriters: Sequence[Rewriter]
    ) -> tvm.IRModule:
        """Replace calls, each by the first rewriter that applies; return `mod` if none does."""

        def rewrite(block: Block, table: Table) -> Bindings | None:
            starts = sorted(index for op in ops for index in block.by_op.get(op, ()))
            replaced: dict[int, Bindings] = {}
            for index in starts:
                if index in block.dead:
                    continue
                site = Site(block.bindings[index], block, mod, table)
                for rewriter in rewriters:
                    new = rewriter(site)
                    if new is not None:
                        replaced[index] = new
                        break
            if not replaced:
                return None
            return [
                binding
                for index, old in enumerate(block.bindings)
                for binding in replaced.get(index, (old,))
            ]

        return self.rewrite_blocks(mod, rewrite)

    def rewrite_blocks(self, mod: tvm.IRModule, rewriter: BlockRewriter) -> tvm.IRModule:
        """Replace the bindings of dataflow blocks as a whole; drop those that become dead."""
        functions = dict(mod.functions_items())
        changed = aliases = False
        read: dict[int, tuple[tvm.ir.BaseFunc, list[Block] | None]] = {}
        for global_var, blocks in self.functions(mod):
            rewritten = [
                rewriter(block, self.table) if block.is_dataflow else None for block in blocks
            ]
            if all(bindings is None for bindings in rewritten):
                continue
            function = functions[global_var]
            new_blocks = [
                block if bindings is None else _with_bindings(block, bindings)
                for block, bindings in zip(blocks, rewritten, strict=True)
            ]
            body = relax.SeqExpr([block.block for block in new_blocks], function.body.body)
            new = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs
            )
            functions[global_var] = new
            changed = True
            aliases = aliases or any(
                isinstance(binding.value, relax.Var)
                for block in new_blocks
                for binding in block.bindings
            )
            # Values shared by several dataflow blocks need a new analysis.
            if sum(block.is_dataflow for block in blocks) == 1:
                read[hash(new)] = new, new_blocks
        if not changed:
            return mod
        self._read |= read
        mod = with_functions(mod, functions)
        # Other passes and the patterns do not look through aliases.
        return relax.transform.CanonicalizeBindings()(mod) if aliases else mod


def _with_bindings(old: Block, bindings: Bindings) -> Block:
    """Return a block with other bindings, without dead ones; all values have types."""
    builder = relax.BlockBuilder()
    unchanged = set(map(hash, old.bindings))
    typed = []
    span = None
    for binding in reversed(bindings):
        if hash(binding) in unchanged:
            span = None
        elif isinstance(binding.value, relax.Call):
            value = builder.normalize(binding.value)
            if value.span is None:
                # The author's name for the op that the call replaces or helps to compute.
                before: relax.Expr | None = old.values.get(binding.var)
                if isinstance(before, relax.TupleGetItem):
                    before = old.values.get(before.tuple_value)
                span = getattr(before, "span", None) or span
                value = value if span is None else with_span(value, span)
            span = value.span
            binding = relax.VarBinding(binding.var, value)
        typed.append(binding)
    typed.reverse()
    values = {
        **old.values,
        **{
            binding.var: binding.value for binding in typed if isinstance(binding, relax.VarBinding)
        },
    }
    draft = Block(old.block, typed, values)
    kept = [binding for index, binding in enumerate(typed) if index not in draft.dead]
    alive = {binding.var for binding in kept}
    for index, binding in enumerate(kept):
        if hash(binding) not in unchanged and isinstance(binding.value, relax.Call):
            call = with_absorbed(binding.value, old.values.get(binding.var), old.values, alive)
            if not call.same_as(binding.value):
                kept[index] = relax.VarBinding(binding.var, call)
                values[binding.var] = call
    block = Block(relax.DataflowBlock(kept), kept, values)
    # The dead bindings are gone, and the names that calls absorb do not change any use.
    block._live = draft._live[0], frozenset()
    return block


def with_functions(
    mod: tvm.IRModule, functions: Mapping[tvm.ir.GlobalVar, tvm.ir.BaseFunc]
) -> tvm.IRModule:
    """Return a module with other functions."""
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
