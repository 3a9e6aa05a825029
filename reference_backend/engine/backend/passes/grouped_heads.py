# SPDX-License-Identifier: Apache-2.0
"""Lets queries that share keys and values read them once, where front ends repeat them for each.

The queries of a group become the rows of one product. Results are equal, and no tensor gets more
dimensions, which a driver might decline.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from ..ir.calls import Unknown, tensor_type
from ..table.chain_grammar import SWAP
from ..table.chains import in_rank, transposed_axes
from .rewriting import Bindings, Site, Steps, is_call_of

_BETWEEN = (
    *("relax.add", "relax.subtract", "relax.multiply", "relax.divide"),
    *("relax.where", "relax.tanh", "relax.astype", "relax.nn.softmax"),
)
"""Ops between the two products of attention; all but softmax are element-wise."""


class _NotGrouped(Exception):
    """The site stays as it is."""


def group_heads(site: Site) -> Bindings | None:
    """Make attention read the keys and values of a group once, not those of each head."""
    found = _before_repetition(site.call.args[1], site)
    if found is None:
        return None
    value, times = found
    try:
        _, (*_, heads, rows, _) = tensor_type(site.call.ty)
        if not isinstance(heads, int) or not isinstance(rows, int):
            return None
        grouping = _Grouping(site, Steps(site), times, heads, rows)
        weights = grouping.grouped(site.call.args[0])
        if weights is None:
            return None
        product = grouping.steps.add(relax.op.matmul(weights, value, site.call.attrs.out_dtype))
    except (Unknown, _NotGrouped):
        return None
    return grouping.steps.end(relax.op.reshape(product, site.call.ty.shape))


def _before_repetition(expr: relax.Expr, site: Site) -> tuple[relax.Expr, int] | None:
    """Return the tensor whose heads, third from the end, are repeated, and how often each is."""
    views = []
    for ops in (["relax.reshape"], ["relax.broadcast_to"], ["relax.expand_dims", "relax.reshape"]):
        view = site.value(expr)
        if not is_call_of(view, *ops):
            return None
        views.append(view)
        expr = view.args[0]
    try:
        merged, wide, narrow, data = (tensor_type(tensor.ty)[1] for tensor in (*views, expr))
    except Unknown:
        return None
    if len(wide) < 4:
        return None
    *batch, groups, times, length, size = wide
    if not isinstance(groups, int) or not isinstance(times, int):
        return None
    if narrow != (*batch, groups, 1, length, size) or data != (*batch, groups, length, size):
        return None
    return (expr, times) if merged == (*batch, groups * times, length, size) else None


@dataclass
class _Grouping:
    """Rewrites what leads to the weights of the values."""

    site: Site
    steps: Steps
    times: int
    heads: int
    rows: int

    def move(self, call: relax.Call) -> relax.Expr:
        """Bind a call that the model did not have, if the NPU takes it."""
        call = relax.BlockBuilder().normalize(call)
        if self.site.table.refusal(call, self.site.values, asked_later=True) is not None:
            raise _NotGrouped
        return self.steps.add(call)

    def grouped(self, expr: relax.Expr) -> relax.Expr | None:
        """Return scores, or what is computed from them, by groups; None if it is something else."""
        call = self.site.value(expr)
        if call is None or self.site.block.uses.get(expr) != 1:
            return None
        if is_call_of(call, "relax.matmul"):
            return self._scores(call)
        if not is_call_of(call, *_BETWEEN):
            return None
        operands = [self.grouped(operand) for operand in call.args]
        if all(operand is None for operand in operands):
            return None
        operands = [
            self._beside(before) if operand is None else operand
            for before, operand in zip(call.args, operands, strict=True)
        ]
        if is_call_of(call, "relax.nn.softmax") and call.attrs.axis not in (-1, expr.ty.ndim - 1):
            raise _NotGrouped
        return self.steps.add(relax.Call(call.op, operands, call.attrs, span=call.span))

    def _scores(self, call: relax.Call) -> relax.Expr | None:
        query, key = call.args
        turned = self.site.value(key)
        swap = in_rank(SWAP, key.ty.ndim)
        if turned is None or tuple(transposed_axes(turned)) != swap:
            return None
        found = _before_repetition(turned.args[0], self.site)
        if found is None or found[1] != self.times:
            return None
        shape = tensor_type(query.ty)[1]
        if len(shape) != len(swap) or shape[-3:-1] != (self.heads, self.rows):
            return None
        key = self.steps.add(relax.op.permute_dims(found[0], swap))
        return self.steps.add(relax.op.matmul(self._by_group(query), key, call.attrs.out_dtype))

    def _by_group(self, expr: relax.Expr) -> relax.Expr:
        """Return a tensor that has all heads and rows with the rows of a group together."""
        *batch, _, _, size = expr.ty.shape.values
        shape = [*batch, self.heads // self.times, self.times * self.rows, size]
        return self.move(relax.op.reshape(expr, shape))

    def _beside(self, expr: relax.Expr) -> relax.Expr:
        """Return what broadcasts against all heads so that it broadcasts against the groups."""
        _, shape = tensor_type(expr.ty)
        heads, rows = (1, 1, 1, *shape)[-3:-1]
        if (heads, rows) == (1, 1):
            return expr
        if not isinstance(rows, int):
            raise _NotGrouped
        *batch, _, size = expr.ty.shape.values
        if heads == 1:
            one = self.move(relax.op.reshape(expr, [*batch, 1, rows, size]))
            many = self.move(relax.op.broadcast_to(one, [*batch, self.times, rows, size]))
            return self.move(relax.op.reshape(many, [*batch, self.times * rows, size]))
        if rows != self.rows:
            expr = self.move(relax.op.broadcast_to(expr, [*batch, self.rows, size]))
        return self._by_group(expr)
