"""Merging of (count, mean, sum of squared deviations) of parts, executed in rounded arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import Reduction, SquareOrder
from verifier.bounds.variance.options import Merged
from verifier.bounds.variance.simulate import Executed

LaneMoments = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True)
class Merging:
    """How one simulated kernel writes its steps.

    `welford`: single elements enter by delta * (x - new mean), otherwise as a merge.
    `squares`: where the declaration does not say it, delta*delta*n_A*f (also nested: M_A + (M_B + ...)),
    (delta*n_A)*(f*delta), delta*delta*(n_A*n_B)/n or delta*(delta*(n_A*f)).
    """

    rounded: RoundedArithmetic
    claim: Reduction
    welford: bool
    squares: SquareOrder | None = None

    @property
    def fuses(self) -> bool:
        """Whether products are fused into additions."""
        return self.claim.mean_contraction != "none"

    def run(self, values: Array) -> LaneMoments:
        """Return mean and variance of each row, merged along the declared tree."""
        count, rounded = values.shape[1], self.rounded
        means, squares = values.copy(), np.zeros_like(values)
        counts, root = np.ones(count), 0
        for step in rounded.merge_order(self.claim.tree, count):
            left, right = step.left, step.right
            n_left, n_right = counts[left], counts[right]
            parts = (means[:, left], squares[:, left]), (means[:, right], squares[:, right])
            if step.update and self.welford:
                merged = self.update(parts[0], parts[1][0], n_left)
            else:
                merged = self.merge(*parts, n_left, n_right)
            means[:, left], squares[:, left] = merged
            counts[left] = n_left + n_right
            root = int(left[0])
        total = Executed(rounded=rounded, claim=self.claim, count=count)
        return means[:, root], total.clamped(total.mean_of(squares[:, root]))

    def update(self, part: LaneMoments, x: Array, n_left: Array) -> LaneMoments:
        """Return the part with one more element."""
        rounded, (mean, squares) = self.rounded, part
        delta = rounded.subtract(x, mean)
        new = self._moved(mean, delta, self._share(np.ones_like(n_left), n_left + 1.0), n_left + 1.0)
        return new, self._plus_product(squares, delta, rounded.subtract(x, new))

    def merge(self, a: LaneMoments, b: LaneMoments, n_a: Array, n_b: Array) -> LaneMoments:
        """Return the union of two parts."""
        rounded, n = self.rounded, n_a + n_b
        delta = rounded.subtract(b[0], a[0])
        share = self._share(n_b, n)
        form = self.claim.chosen(Merged).merge
        if form == "pooled":
            weighted = rounded.add(rounded.multiply(a[0], n_a), rounded.multiply(b[0], n_b))
            mean = self._divided(weighted, n)
        elif form == "weighted":
            own = self._share(n_a, n)
            product = rounded.multiply(np.broadcast_to(own, a[0].shape), a[0])
            mean = self._plus_product(product, np.broadcast_to(share, b[0].shape), b[0])
        else:
            mean = self._moved(mean=a[0], delta=delta, share=share, n=None)
        return mean, self._merged_squares((a[1], b[1]), delta, (n_a, n_b), share)

    def _merged_squares(
        self, squares: tuple[Array, Array], delta: Array, counts: tuple[Array, Array], share: Array
    ) -> Array:
        rounded, (m_a, m_b), (n_a, n_b) = self.rounded, squares, counts
        order = self.squares or self.claim.squares
        if order == "scaled":
            part = rounded.multiply(delta, np.broadcast_to(rounded.multiply(n_a, share), delta.shape))
            return self._plus_product(rounded.add(m_a, m_b), delta, part)
        if order == "crossed":
            scaled, part = rounded.multiply(delta, n_a), rounded.multiply(delta, share)
            return self._plus_product(rounded.add(m_a, m_b), scaled, part)
        square = rounded.multiply(delta, delta)
        if order in {"delta_first", "nested"}:
            first = rounded.multiply(square, np.broadcast_to(n_a, square.shape))
            last = np.broadcast_to(share, first.shape)
            if order == "nested":
                return rounded.add(m_a, self._plus_product(m_b, first, last))
            return self._plus_product(rounded.add(m_a, m_b), first, last)
        counted = rounded.multiply(square, rounded.multiply(n_a, n_b))
        return rounded.add(m_a, rounded.add(m_b, self._divided(counted, n_a + n_b)))

    def _share(self, part: Array, whole: Array) -> Array:
        """Return part / whole, by division or by the reciprocal of whole."""
        if self.claim.divide_by_n == "division":
            return self.rounded.divide(part, whole)
        return self.rounded.multiply(part, self.rounded.divide(np.ones_like(whole), whole))

    def _divided(self, value: Array, n: Array) -> Array:
        if self.claim.divide_by_n == "division":
            return self.rounded.divide(value, n)
        inverse = self.rounded.divide(np.ones_like(n), n)
        return self.rounded.multiply(value, inverse)

    def _moved(self, mean: Array, delta: Array, share: Array, n: Array | None) -> Array:
        """Return mean + delta * share; an update by division divides delta itself."""
        if n is not None and self.claim.divide_by_n == "division":
            return self.rounded.add(mean, self.rounded.divide(delta, n))
        return self._plus_product(mean, delta, np.broadcast_to(share, delta.shape))

    def _plus_product(self, c: Array, a: Array, b: Array) -> Array:
        if self.fuses:
            return self.rounded.multiply_add(a, b, c)
        return self.rounded.add(c, self.rounded.multiply(a, b))
