# SPDX-License-Identifier: Apache-2.0
"""Einsum of ONNX as sums, transpositions and matrix products, as PyTorch writes its own."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from onnx import NodeProto

from ...shared.messages import FIX_SIZES
from ..declared import text_of
from .graph import refuse
from .node import Node, Rule

_TERM = r"[a-zA-Z]*(\.\.\.[a-zA-Z]*)?"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")


class _Term(NamedTuple):
    """An operand, and the label of each of its axes."""

    name: str
    labels: Sequence[str]


def equation_of(node: NodeProto, attributes: Mapping[str, object]) -> str:
    """Return the equation of an Einsum, without spaces; refuse what is none.

    ONNX's inference of shapes does not end with some of these.
    """
    equation = attributes.get("equation", "")
    equation = equation.decode(errors="replace") if isinstance(equation, bytes) else ""
    equation, inputs = equation.replace(" ", ""), len(node.input)
    if not _EQUATION.fullmatch(equation) or equation.partition("->")[0].count(",") != inputs - 1:
        refuse(
            node,
            f"the equation {equation!r} is none for {inputs} inputs; supported are letters for "
            "axes, '...', ',' and '->'",
        )
    return equation


def _einsum(node: Node) -> None:
    _Einsum(node, equation_of(node.proto, node.attributes)).write()


class _Einsum:
    """An Einsum that is written as products of two operands each."""

    def __init__(self, node: Node, equation: str) -> None:
        self.node = node
        left, arrow, right = equation.partition("->")
        terms = left.split(",")
        inputs = list(node.proto.input)
        self.sizes: dict[str, int | None] = {}
        self.terms = [self._term(*pair) for pair in zip(inputs, terms, strict=True)]
        # Axes that stand for "..." are numbers, counted from the last one.
        labels = {label for term in self.terms for label in term.labels}
        dots = sorted(filter(str.isdigit, labels), key=int, reverse=True)
        if arrow:
            start, has_dots, end = right.partition("...")
            self.result = [*start, *(dots if has_dots else ()), *end]
        else:
            letters = re.sub(r"[^a-zA-Z]", "", left)
            self.result = [*dots, *sorted(i for i in letters if letters.count(i) == 1)]
        if len(set(self.result)) < len(self.result) or not labels.issuperset(self.result):
            node.refuse(f"the result of the equation {equation!r} has an axis twice, or a new one")
        self.terms = [self._without_ones(index) for index in range(len(self.terms))]

    def _term(self, name: str, text: str) -> _Term:
        """Return an operand with the labels of its axes, each only once."""
        sizes = self.node.sizes(name)
        start, has_dots, end = text.partition("...")
        rank = len(start) + len(end)
        if sizes is None or len(sizes) < rank or (len(sizes) > rank and not has_dots):
            shape = "?" if sizes is None else text_of(sizes)
            self.node.refuse(
                f"its input {name!r} has the shape {shape}, which does not suit {text!r}"
            )
        dots = [str(i) for i in reversed(range(len(sizes) - rank))]
        term = _Term(name, [*start, *dots, *end])
        for label in term.labels:
            while term.labels.count(label) > 1:
                term, sizes = self._diagonal(term, label, sizes)
        for label, size in zip(term.labels, sizes, strict=True):
            if self.sizes.get(label, 1) == 1:
                self.sizes[label] = size
        return term

    def _diagonal(
        self, term: _Term, label: str, sizes: Sequence[int | None]
    ) -> tuple[_Term, Sequence[int | None]]:
        """Take two axes with the same label as one."""
        node = self.node
        first = term.labels.index(label)
        second = term.labels.index(label, first + 1)
        size = sizes[first]
        if size is None or size != sizes[second]:
            self.node.refuse(f"its input {term.name!r} has no known equal sizes for {label!r}")
        order = [i for i in range(len(sizes)) if i not in (first, second)]
        kept = len(order)
        moved = node.transpose(term.name, [*order, first, second])
        flat = node.reshape(moved, [*[0] * kept, size * size])
        ends = [node.integers(value) for value in (0, size * size, kept, size + 1)]
        name = node.write("Slice", flat, *ends)
        labels = [*(term.labels[i] for i in order), label]
        return _Term(name, labels), [*(sizes[i] for i in order), size]

    def _without_ones(self, index: int) -> _Term:
        """Remove axes of size 1 that are broadcast along those of other operands."""
        term = self.terms[index]
        others = {label for i, t in enumerate(self.terms) if i != index for label in t.labels}
        sizes = self.node.sizes(self.node.proto.input[index]) or ()
        if len(sizes) != len(term.labels):
            return term
        axes = [
            axis
            for axis, label in enumerate(term.labels)
            if sizes[axis] == 1 and label in others and self.sizes[label] != 1
        ]
        if not axes:
            return term
        labels = [label for axis, label in enumerate(term.labels) if axis not in axes]
        return _Term(self.node.squeeze(term.name, *axes), labels)

    # ---- What replaces it -----------------------------------------------------------------------

    def write(self) -> None:
        """Write the nodes."""
        node = self.node
        done, *rest = self.terms
        while rest:
            term, *rest = rest
            needed = {*self.result, *(label for later in rest for label in later.labels)}
            summed = self._summed(done, {*needed, *term.labels})
            done = self._product(summed, self._summed(term, {*needed, *done.labels}), needed)
        done = self._summed(done, self.result)
        order = [done.labels.index(label) for label in self.result]
        output = self.node.proto.output[0]
        if order == sorted(order):
            node.write("Identity", done.name, output=output)
        else:
            node.transpose(done.name, order, output)

    def _summed(self, term: _Term, needed: Collection[str]) -> _Term:
        """Sum over the axes that nothing else needs."""
        axes = [axis for axis, label in enumerate(term.labels) if label not in needed]
        if not axes:
            return term
        labels = [label for label in term.labels if label in needed]
        return _Term(self.node.sum(term.name, *axes), labels)

    def _product(self, x: _Term, y: _Term, needed: Collection[str]) -> _Term:
        """Multiply two operands, and sum over what they share and nothing else needs."""
        node = self.node
        place = {label: index for index, label in enumerate(self.result)}

        def ordered(labels: Collection[str]) -> list[str]:
            return sorted(labels, key=lambda label: place.get(label, len(place)))

        both = [label for label in x.labels if label in y.labels]
        batch = ordered([label for label in both if label in needed])
        inner = [label for label in both if label not in needed]
        left = ordered([label for label in x.labels if label not in both])
        right = ordered([label for label in y.labels if label not in both])
        if not inner:
            rows = self._in_order(x, [*batch, *left])
            columns = self._in_order(y, [*batch, *right])
            first = len(batch) + len(left)
            if right:
                rows = node.unsqueeze(rows, *range(first, first + len(right)))
            if left:
                columns = node.unsqueeze(columns, *range(len(batch), first))
            return _Term(node.write("Mul", rows, columns), [*batch, *left, *right])
        rows = self._in_order(x, [*batch, *left, *inner])
        columns = self._in_order(y, [*batch, *inner, *right])
        # Without a batch, MatMul takes any number of axes before the last one.
        axes = [left] if batch else [[label] for label in left]
        groups = [*([label] for label in batch), *(axes if left else [[]])]
        rows = self._merged(rows, [*groups, inner])
        columns = self._merged(columns, [*([label] for label in batch), inner, right])
        product = node.write("MatMul", rows, columns)
        return _Term(self._split(product, [*groups, right]), [*batch, *left, *right])

    def _in_order(self, term: _Term, labels: Sequence[str]) -> str:
        return self.node.transpose(term.name, [term.labels.index(label) for label in labels])

    def _size(self, labels: Sequence[str]) -> int:
        """Return the size of merged axes; -1 if one is open."""
        sizes = [self.sizes[label] for label in labels]
        return -1 if None in sizes else math.prod(size or 0 for size in sizes)

    def _merged(self, name: str, groups: Sequence[Sequence[str]]) -> str:
        """Merge the axes of each group into one."""
        if all(len(group) == 1 for group in groups):
            return name
        return self._reshaped(name, [self._size(group) for group in groups], groups)

    def _split(self, name: str, groups: Sequence[Sequence[str]]) -> str:
        """Undo the merging of groups."""
        if all(len(group) == 1 for group in groups):
            return name
        return self._reshaped(name, [self._size(label) for group in groups for label in group], ())

    def _reshaped(self, name: str, sizes: Sequence[int], groups: Sequence[Sequence[str]]) -> str:
        if list(sizes).count(-1) > 1:
            # A 0 keeps the size of an axis in front.
            lead = next((i for i, g in enumerate(groups) if len(g) != 1), 0)
            sizes = [*[0] * lead, *sizes[lead:]]
        if list(sizes).count(-1) > 1:
            self.node.refuse(f"several of the sizes that it merges are open; {FIX_SIZES}")
        return self.node.reshape(name, sizes)


RULES: Mapping[str, Rule] = {"Einsum": _einsum}
