# SPDX-License-Identifier: Apache-2.0
"""Rewrites of chains to ops, and of calls with several results."""

from __future__ import annotations

from collections.abc import Set

import tvm
import tvm_ffi
from tvm import relax

from ..ir.calls import Values
from ..table.capability import Op
from ..table.chain_grammar import count_steps, heads, needed_ops
from ..table.chains import Found, chains_of, find, function_of
from ..table.table import Table
from .rewriting import Bindings, Block


def recognize_chains(block: Block, table: Table) -> Bindings | None:
    """Replace chains by the op of their table entry; see `chain_grammar`.

    The longest go first: one may contain another. Entries without a Relax op keep their chains for
    the patterns; here they only keep shorter chains from matching inside.
    """
    bindings, values = block.bindings, block.values
    by_op: dict[str, list[relax.VarBinding]] = {}
    users: dict[relax.Var, list[relax.Var]] = {}
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
            by_op.setdefault(value.op.name, []).append(binding)
        for var in relax.analysis.free_vars(value):
            users.setdefault(var, []).append(binding.var)
    in_block = {binding.var for calls in by_op.values() for binding in calls}
    taken: set[relax.Var] = set()
    replaced = {}
    chains = [
        (op, chain)
        for op in table.ops
        for chain in chains_of(op)
        if needed_ops(chain.node) <= by_op.keys()
    ]
    chains.sort(key=lambda entry: count_steps(entry[1].node), reverse=True)
    for op, chain in chains:
        for head in heads(chain.node):
            for binding in by_op.get(head, ()):
                var = binding.var
                for match in find(chain, var, values) if var not in taken else ():
                    inside = match.calls.keys()
                    if inside & taken or not inside <= in_block or _leaks(inside, var, users):
                        continue
                    call = _as_call(table, op, match, binding.value, values)
                    if call is not None:
                        taken |= inside
                        replaced[var] = call
                        break
    if all(call.same_as(values[var]) for var, call in replaced.items()):
        return None
    return [
        relax.VarBinding(binding.var, replaced[binding.var]) if binding.var in replaced else binding
        for binding in bindings
    ]


def _leaks(
    inside: Set[relax.Var], last: relax.Var, users: dict[relax.Var, list[relax.Var]]
) -> bool:
    """Whether an op outside of a chain reads an inner value."""
    return any(
        not var.same_as(last)
        and (not isinstance(var, relax.DataflowVar) or any(u not in inside for u in users[var]))
        for var in inside
    )


def _as_call(
    table: Table, op: Op, match: Found, last: relax.Call, values: Values
) -> relax.Call | None:
    """Return a call for a chain, or None; its own last call if the entry has only chains."""
    if not op.relax:
        reason = table.refusal_of_chain(op, match.inputs, match.attributes, last, values)
        return last if reason is None else None
    attributes = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in match.attributes.items()
    }
    tensors = [match.inputs[operand.name] for operand in op.inputs]
    try:
        call = function_of(op.relax)(*tensors, **attributes)
        call = relax.BlockBuilder().normalize(call)
    except (TypeError, ValueError, RuntimeError):
        return None  # The op does not take these types; some ops only assert them.
    keeps_type = tvm_ffi.structural_equal(call.ty, last.ty)
    return (
        call
        if keeps_type and table.refusal(call, values, op=op, asked_later=True) is None
        else None
    )


def split_results(block: Block, table: Table) -> Bindings | None:
    """Bind each used result of a call with several results to a variable after the call."""
    bindings = block.bindings
    if not any(table.entries_of(name) for name in block.by_op):
        return None
    fields: dict[relax.Var, list[relax.VarBinding]] = {
        binding.var: []
        for binding in bindings
        if isinstance(binding.value, relax.Call)
        and isinstance(binding.value.op, tvm.ir.Op)
        and isinstance(binding.value.ty, relax.TupleType)
        and table.entries_of(binding.value.op.name)
    }
    if not fields:
        return None
    # Results that are also read as a tuple.
    read_whole = {var for var in fields if not isinstance(var, relax.DataflowVar)}
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in fields:
            fields[value.tuple_value].append(binding)
        else:
            read_whole.update(var for var in relax.analysis.free_vars(value) if var in fields)
    result: Bindings = []
    for binding in bindings:
        var, value = binding.var, binding.value
        if var in read_whole:
            call = relax.DataflowVar(f"{var.name}_results", value.ty)
            parts = [
                relax.DataflowVar(f"{var.name}_{index}", ty)
                for index, ty in enumerate(value.ty.fields)
            ]
            result.append(relax.VarBinding(call, value))
            read = ((field.value.index, field.var) for field in fields[var])
            result += [
                relax.VarBinding(part, relax.TupleGetItem(call, index))
                for index, part in (*enumerate(parts), *read)
            ]
            result.append(relax.VarBinding(var, relax.Tuple(parts)))
        elif var in fields:
            result += [binding, *fields[var]]
        elif not (isinstance(value, relax.TupleGetItem) and value.tuple_value in fields):
            result.append(binding)
    return result
