"""Steps that the simulated variance algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.arithmetic.trees.tree import Tree
from verifier.bounds.variance import Reduction


@dataclass(frozen=True, kw_only=True)
class Executed:
    """One rounded run of a declaration on rows of `count` elements.

    Contraction: "none" rounds every product; "uniform" fuses products into the additions that
    use them; "mixed" does so for every other element where a shared product is used.
    """

    rounded: RoundedArithmetic
    claim: Reduction
    count: int

    @property
    def contracts(self) -> bool:
        """Whether products are fused into additions."""
        return self.claim.mean_contraction != "none"

    @property
    def reciprocal(self) -> Array:
        """The reciprocal of the count as the kernel holds it."""
        return self.rounded.divide(np.asarray(1.0), self._held_count())

    def sum(self, values: Array, tree: Tree | None = None) -> Array:
        """Return the sum of each row along the declared tree."""
        nodes, root = values.copy(), 0
        for step in self.rounded.order(tree or self.claim.tree, nodes):
            nodes[:, step.left] = self.rounded.add(nodes[:, step.left], nodes[:, step.right])
            root = int(step.left[0])
        return nodes[:, root]

    def sum_of_squares(self, values: Array) -> Array:
        """Return the sum of squares of each row along its tree."""
        nodes, root = self.rounded.multiply(values, values), 0
        tree = self.claim.squares_tree or self.claim.tree
        for step in self.rounded.order(tree, nodes):
            left, right = nodes[:, step.left], nodes[:, step.right]
            if step.update and self.contracts:
                leaves = values[:, step.right]
                nodes[:, step.left] = self.rounded.multiply_add(leaves, leaves, left)
            else:
                nodes[:, step.left] = self.rounded.add(left, right)
            root = int(step.left[0])
        return nodes[:, root]

    def mean_of(self, total: Array) -> Array:
        """Return total / N as declared."""
        if self.claim.divide_by_n == "reciprocal":
            return self.rounded.multiply(total, self.reciprocal)
        return self.rounded.divide(total, self._held_count())

    def used_mean(self, total: Array) -> Array:
        """Return the mean that is subtracted: total / N, through a narrower format if declared."""
        mean = self.mean_of(total)
        cast = self.claim.mean_cast
        return mean if cast is None else self.rounded.cast(FORMATS[cast], mean)

    def minus_mean(self, values: Array, total: Array) -> Array:
        """Return x - mean for each element, (rows, columns), contracted as declared."""
        rounded, mean = self.rounded, self.used_mean(total)
        plain = rounded.subtract(values, mean[:, None])
        if self.claim.divide_by_n == "division" or not self.contracts or self.claim.mean_cast is not None:
            return plain
        inverse = np.broadcast_to(-self.reciprocal, values.shape)
        fused = rounded.multiply_add(inverse, np.broadcast_to(total[:, None], values.shape), values)
        if self.claim.mean_contraction == "uniform":
            return fused
        return np.where(np.arange(self.count) % 2 == 0, fused, plain)

    def from_sums(self, squares: Array, total: Array) -> Array:
        """Return the variance (squares - total**2 / N) / N."""
        rounded = self.rounded
        if self.contracts and self.claim.divide_by_n == "reciprocal":
            inverse = np.broadcast_to(-self.reciprocal, total.shape)
            left = rounded.multiply_add(rounded.multiply(total, total), inverse, squares)
        else:
            left = rounded.subtract(squares, self.mean_of(rounded.multiply(total, total)))
        return self.clamped(self.mean_of(left))

    def multiply_add(self, a: Array, b: Array, c: Array) -> Array:
        """Return a * b + c, fused or not as declared."""
        if self.contracts:
            return self.rounded.multiply_add(a, b, c)
        return self.rounded.add(self.rounded.multiply(a, b), c)

    def clamped(self, variance: Array) -> Array:
        """Return the variance, not below zero if the declaration clamps."""
        return self.rounded.maximum(variance, np.asarray(0.0)) if self.claim.clamp else variance

    def _held_count(self) -> Array:
        return self.rounded.of(np.asarray(float(self.count)))
