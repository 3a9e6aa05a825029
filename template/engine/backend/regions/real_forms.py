# SPDX-License-Identifier: Apache-2.0
"""Lets products compute with real numbers where the driver declines their integers.

Their weights are constants of integers behind a dequantize, which the driver may not have, or not
for scales of channels. So these weights become real numbers when the model is compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tvm import relax

from ..ir.calls import Constant, resolve
from ..ir.origins import folded_from, folded_type
from ..passes.evaluate import constant_of
from ..passes.quantized_form import DEQUANTIZE, REARRANGES, real_of
from ..passes.rewriting import op_name, with_constants
from ..table.compositions import Kind
from .composites import Bindings, Composite, CompositeFinder


class RealForms:
    """The products of a block whose weights became real numbers."""

    def __init__(self, bindings: Bindings, finder: CompositeFinder) -> None:
        self._bindings, self._finder = bindings, finder
        self._integers: dict[int, dict[int, relax.Expr]] = {}
        """What the bindings of the constants were, by the product that reads them."""
        self._refused: dict[int, list[Composite]] = {}
        """The composites of integers that the driver declines, by their product."""

    def find(self) -> None:
        """Find composites of real numbers for products that the driver declines with integers."""
        self._finder.find_again()
        refused, self._finder.refused = self._finder.refused, []
        for composite, why in refused:
            product = self._product_of(composite)
            if product is not None:
                self._refused.setdefault(product, []).append(composite)
                self._finder.real.setdefault(product, why)
        around = {
            product: {member for composite in composites for member in composite.members}
            for product, composites in self._refused.items()
            if product not in self._integers and not self._has_integers(product, composites)
        }
        for product, members in around.items():
            constants = self._constants_of(members)
            self._integers[product] = {at: self._bindings[at].value for at in constants}
            for index, constant in constants.items():
                self._bindings.rebind(index, constant)
        self._find_at(around.values())
        # Integers are smaller, so they stay where real numbers do not help.
        vain = [product for product in self._integers if product not in self._finder.found]
        for product in vain:
            self._restore(product)
        self._find_at(around[product] for product in vain if product in around)

    def restore(self, composite: Composite) -> list[int]:
        """Restore the integers that a composite would have read, since it is on the host.

        Return its bindings, and those of the integers.
        """
        product = self._product_of(composite)
        integers = [] if product is None else self._restore(product)
        return sorted([*composite.members, *integers])

    def _restore(self, product: int) -> Collection[int]:
        integers = self._integers.get(product, {})
        self._integers[product] = {}
        for index, value in integers.items():
            self._bindings.rebind(index, value)
        return integers

    def _find_at(self, places: Iterable[set[int]]) -> None:
        """Find the composites of some bindings again."""
        all_places = set().union(*places)
        if all_places:
            self._finder.find_at(sorted(self._finder.release(all_places)))

    def _product_of(self, composite: Composite) -> int | None:
        op = composite.composition.op
        named = (at for at in composite.members if op_name(self._bindings[at].value) == op.relax)
        return next(named, None) if op.is_product else None

    def _has_integers(self, product: int, refused: Sequence[Composite]) -> bool:
        """Whether a product reads integers on the NPU, though the driver declines composites."""
        found = self._finder.found
        if product in found and found[product].composition.kind.has_other_form:
            return True
        # Weights alone stay integers if they are dequantized there when the model runs.
        kinds = {composite.composition.kind for composite in refused}
        members = [member for composite in refused for member in composite.members]
        return kinds == {Kind.WEIGHT_ONLY} and all(member in found for member in members)

    def _constants_of(self, members: Iterable[int]) -> dict[int, Constant]:
        """Return the real numbers of what is dequantized of constants, by the bindings."""
        values = self._bindings.values
        known: dict[relax.Var, relax.Expr] = {}
        constants: dict[int, Constant] = {}
        for index in sorted(members):
            var, call = self._bindings[index].var, self._bindings[index].value
            constant: relax.Expr | None = None
            dtype = ""
            if op_name(call) == DEQUANTIZE:
                data = resolve(call.args[0], values)
                if isinstance(data, Constant):
                    dtype = str(data.ty.dtype)
                    constant = real_of(call, data, values)
            elif op_name(call) in REARRANGES and call.args[0] in known:
                dtype = folded_type(known[call.args[0]])
                constant = constant_of(with_constants(call, known))
            if isinstance(constant, Constant):
                constants[index] = known[var] = folded_from(constant, dtype)
        return constants
