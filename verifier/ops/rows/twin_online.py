"""The online sum of exponentials on symbols: parts of a row, rescaled wherever they meet (T11, online form).

A part has a maximum m, which is one of its elements, and a sum s of exp(x - m); of one element s is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.online_read import Join
from verifier.arithmetic.graph.symbols import SHORT_NAMES
from verifier.arithmetic.graph.trees_read import exact_tree
from verifier.arithmetic.trees.steps import Numbering, Step
from verifier.arithmetic.trees.tree import Tree
from verifier.ops.rows.twin_numbers import TwinNumbers, TwinValue
from verifier.ops.rows.twin_orders import Orders


def online_sum(numbers: TwinNumbers, nodes: Ids) -> TwinValue:
    """Return the sum of exp(x - max(x)) over rows of nodes (rows, columns), rescaled wherever parts meet."""
    found = OnlineSum(numbers=numbers, orders=numbers.orders, nodes=nodes)
    return found.total(numbers.trees.statistics)


@dataclass(kw_only=True)
class OnlineSum:
    """Maxima and sums of the parts of rows of nodes (rows, columns), each at its first element.

    numbers: what computes. steps: the additions that were made.
    """

    numbers: TwinNumbers
    orders: Orders
    nodes: Ids
    steps: list[Step] = field(default_factory=list)

    def total(self, declared: Tree) -> TwinValue:
        """Return the sum of exp(x - max(x)) over each row, (rows, 1), in the order that is read off the code.

        Raises:
            OrderError: the code has no such sum.
            ValueError: the order does not take each element once.

        """
        tops = self.numbers.rounded.symbols(self.nodes.copy())
        ones = self.numbers.rounded.nodes(np.ones((1, 1)))
        sums = self.numbers.rounded.symbols(np.broadcast_to(ones, self.nodes.shape).copy())
        root = 0
        at = np.arange(self.nodes.shape[1])  # where a part lies, by its first element
        for step in self.orders.of_online_sum(self.nodes):
            if isinstance(step, Join):
                root = self._join(tops, sums, at[step.parts], asks=step.asks)
                at[step.parts[0]] = root
                continue
            pair = Step(left=at[step.left], right=at[step.right], update=step.update)
            (self._update if step.update else self._pair)(tops, sums, pair)
            self.steps.append(pair)
            root = int(pair.left[0])
        columns = self.nodes.shape[1]
        if columns > 1:
            exact_tree(self.steps, columns)
        self.orders.note(columns, tuple(self.steps), declared)
        return self.numbers.plain(sums[:, [root]])

    def _update(self, tops: Array, sums: Array, step: Step) -> None:
        """Add an element x to a part: s * exp(m - x) + 1 if x is above m, else s + exp(x - m)."""
        plain = self.numbers.plain
        x, m, s = (plain(at) for at in (tops[:, step.right], tops[:, step.left], sums[:, step.left]))
        above = x - m
        grows = self._above_zero(above)
        factor = self.numbers.exp(self._choice(grows, -above, above))
        grown = s * factor + self.numbers.constant(1.0)
        sums[:, step.left] = self._choice(grows, grown, s + factor).array
        tops[:, step.left] = self._choice(grows, x, m).array

    def _pair(self, tops: Array, sums: Array, step: Step) -> None:
        """Rescale two parts to the larger of their maxima, and add them."""
        larger = self.numbers.plain(self.numbers.rounded.maximum(tops[:, step.left], tops[:, step.right]))
        kept, other = (self._rescaled(tops[:, at], sums[:, at], larger) for at in (step.left, step.right))
        sums[:, step.left] = (kept + other).array
        tops[:, step.left] = larger.array

    def _join(self, tops: Array, sums: Array, parts: Numbering, *, asks: bool) -> int:
        """Rescale parts to the largest of their maxima, and sum them; return where they lie.

        asks: whether each is rescaled only where its sum is above zero. It always is: it has the exponential
        of its largest element, which is 1.
        """
        rounded = self.numbers.rounded
        largest = self.numbers.largest(rounded.nodes(tops[:, parts]))
        held = tops[:, parts]
        if asks:
            positive = self._above_zero(self.numbers.plain(sums[:, parts]))
            held = self._choice(positive, self.numbers.plain(held), largest).array
        terms = self._rescaled(held, sums[:, parts], largest).array
        nodes, root = terms.copy(), 0
        for step in self.orders.of_parts(rounded.nodes(terms)):
            nodes[:, step.left] = rounded.add(nodes[:, step.left], nodes[:, step.right])
            root = int(step.left[0])
            self.steps.append(Step(left=parts[step.left], right=parts[step.right], update=False))
        at = int(parts[root])
        sums[:, [at]], tops[:, [at]] = nodes[:, [root]], largest.array
        return at

    def _rescaled(self, tops: Array, sums: Array, larger: TwinValue) -> TwinValue:
        """Return s * exp(m - larger)."""
        plain = self.numbers.plain
        return plain(sums) * self.numbers.exp(plain(tops) - larger)

    def _above_zero(self, value: TwinValue) -> Ids:
        rounded = self.numbers.rounded
        name = f"setp.gt.{SHORT_NAMES[rounded.format.name]}"
        return rounded.builder.append(name, rounded.nodes(value.array), rounded.nodes(np.zeros((1, 1))))

    def _choice(self, asked: Ids, then: TwinValue, otherwise: TwinValue) -> TwinValue:
        rounded = self.numbers.rounded
        sides = (rounded.nodes(side.array) for side in (then, otherwise))
        return self.numbers.plain(rounded.symbols(rounded.builder.append("ite", asked, *sides)))
