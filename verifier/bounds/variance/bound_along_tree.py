"""The running bound of merged moments: every node of a declared tree contributes its own error (T8).

The comments beside the code are the lines of T8 in docs/explanation/bounds.md, for a node j of n = n_A + n_B
elements made of A and B: mu is the exact mean of the row, mu_j that of the node, E_j bounds the error of
its computed mean, e_j what the node itself adds to that, loc the part of e_j before the last rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from verifier.arithmetic.formats import INFLATION, Array
from verifier.arithmetic.trees.tree import Numbering, Step
from verifier.bounds.variance.merge_step import Local, merge_step, update_step
from verifier.bounds.variance.row_terms import RowTerms

MOST_STEPS = 2**14
"""Longest program that is followed: 2**20 float64 operations on a path, as `INFLATION` allows."""

LONGEST_CHAIN = 2**18
"""Longest sequential order that is followed, all elements at once."""
_PASSES = 3
"""Passes of `follow_chain`; the second comes within a few per cent of the fixed point."""

_STEP_ERROR = 2.0**-50
"""A step of the centred means errs by at most this, in D = max |x - mu|: a difference, a share and their
product, each within u of 2 D (u = 2**-53), and a sum within u of D are 7 u D."""
_MEAN_ERROR = 2.0**-51
"""mu is known as the nearest float64 (u of it), and adding a centred mean rounds once more (u)."""


@dataclass(kw_only=True)
class BoundAlongTree:
    """The nodes of one run: exact means relative to the row's, bounds on their errors, error products.

    `centre` (mu_j - mu) and `error` (E_j) have shape (rows, columns); a node lives where its left leaf was.
    `products` >= X over the nodes so far, (rows,): the sum of n e_j (2 (|mu_j - mu| + E_av) + e_j), and of
    |a_j| e_j over the updates.
    `roundings` counts, per node, the most roundings that an increment has met (-1: no increment).
    `slack`, (rows,), bounds the error of `centre`.
    """

    t: RowTerms
    welford: bool
    centre: Array
    error: Array
    products: Array
    counts: Array
    roundings: Array
    slack: Array
    root: int = 0
    heads: set[int] = field(default_factory=set)

    def follow(self, steps: Iterable[Step]) -> None:
        """Take the steps in order."""
        for step in steps:
            self._take(step)
            self.heads.difference_update(step.right.tolist())
            self.root = int(step.left[0])

    def follow_chain(self, ceiling: Array) -> None:
        """Take all elements one after another into the first; ceiling: (rows,) bounds every node's error.

        Lemma 3 gives all errors at once from the nodes' own errors, and these from any bound on the
        errors before: each pass replaces the bound by a smaller one. A is what came before (n_A = n - 1),
        B the element (n_B = 1, E_B = 0).
        """
        t, count = self.t, self.t.count
        local = update_step(t) if self.welford else merge_step(t)
        n = np.arange(2.0, count + 1.0)
        means = np.cumsum(self.centre, axis=1) / np.arange(1.0, count + 1.0)
        c_a, centre, c_b = means[:, :-1], means[:, 1:], self.centre[:, 1:]  # mu_A, mu_j, mu_B less mu
        apart = np.abs(c_b - c_a) + 2.0 * self.slack[:, None]  # |mu_B - mu_A|
        away = np.abs(centre) + self._uncertainty  # |mu_j - mu|
        magnitude = np.abs(t.rows.mean[:, None] + centre) + self._uncertainty  # |mu_j|
        errors = np.repeat(ceiling[:, None], count, axis=1)  # E_j
        errors[:, 0] = 0.0
        for _ in range(_PASSES):
            e_a = errors[:, :-1]  # E_A
            average = e_a * (n - 1.0) / n  # E_av = (n_A E_A + n_B E_B) / n
            parts = (c_a, c_b), (e_a, np.zeros_like(e_a)), (n - 1.0, np.ones_like(n))
            loc = self._loc(local, (apart + e_a) / n, *parts)
            own = self._rnd(local, magnitude + average + loc) + loc  # e_j = rnd(|mu_j| + E_av + loc) + loc
            # E_j = sum of n_i e_i over i <= j, over n_j (Lemma 3)
            errors[:, 1:] = np.minimum(errors[:, 1:], np.cumsum(n * own, axis=1) / n * INFLATION)
        added = n * own * (2.0 * (away + average) + own)  # n_j e_j (2 (|mu_j - mu| + E_av) + e_j)
        if self.welford:
            added = added + (apart + e_a) * own  # |a_j| e_j, a_j = x - m_A
        self.products = added.sum(axis=1)  # X
        self.error[:, 0], self.root = errors[:, -1], 0
        self.roundings[0] = local.increment + count - 2.0
        self.heads = {0}

    def partition_error(self) -> Array:
        """Return e_W, the root of the sum of n_j E_j**2 / N over the present nodes, (rows,)."""
        heads = sorted(self.heads)
        weighted = (self.counts[heads] * self.error[:, heads] ** 2).sum(axis=1)
        return np.asarray(np.sqrt(weighted / self.t.count) * INFLATION)

    def _take(self, step: Step) -> None:
        t, left, right = self.t, step.left, step.right
        update = step.update and self.welford
        local = update_step(t) if update else merge_step(t)
        n_a, n_b = self.counts[left], self.counts[right]
        n = n_a + n_b
        c_a, c_b = self.centre[:, left], self.centre[:, right]  # mu_A - mu, mu_B - mu
        e_a, e_b = self.error[:, left], self.error[:, right]  # E_A, E_B
        apart = np.abs(c_b - c_a) + 2.0 * self.slack[:, None]  # |mu_B - mu_A|
        centre = c_a + (c_b - c_a) * (n_b / n)  # mu_j - mu
        average = (n_a * e_a + n_b * e_b) / n  # E_av = (n_A E_A + n_B E_B) / n
        either = t.claim.per_lane_means or t.claim.tree.symmetric
        partner = np.maximum(n_a, n_b) if either and not update else n_b
        # m - m_A is n_B / n of m_B - m_A, which is at most |mu_B - mu_A| + E_A + E_B
        loc = self._loc(local, partner / n * (apart + e_a + e_b), (c_a, c_b), (e_a, e_b), (n_a, n_b))
        magnitude = np.abs(t.rows.mean[:, None] + centre) + self._uncertainty  # |mu_j|
        own = self._rnd(local, magnitude + average + loc) + loc  # e_j = rnd(|mu_j| + E_av + loc) + loc
        away = np.abs(centre) + self._uncertainty + average  # |mu_j - mu| + E_av
        added = n * own * (2.0 * away + own)  # n_j e_j (2 (|mu_j - mu| + E_av) + e_j)
        if update:
            added = added + (apart + e_a) * own  # |a_j| e_j, a_j = x - m_A
        self.products = self.products + added.sum(axis=1)  # X
        self.centre[:, left], self.error[:, left] = centre, average + own  # E_j = E_av + e_j
        self.counts[left] = n
        self.roundings[left] = self._increments(local, update, left, right)

    @property
    def _uncertainty(self) -> Array:
        """Error of |mu_j - mu| and of |mu_j| as they are evaluated, (rows, 1)."""
        return (self.slack + _MEAN_ERROR * np.abs(self.t.rows.mean))[:, None]

    def _loc(
        self,
        local: Local,
        distance: Array,
        centres: tuple[Array, Array],
        errors: tuple[Array, Array],
        counts: tuple[Array, Array],
    ) -> Array:
        """Return loc = (1 + u) (beta |m - m_A| + chi (n_A |m_A| + n_B |m_B|) / n + w omega)."""
        loc = local.beta * distance + local.absolute
        if local.chi:
            mean = self.t.rows.mean[:, None]
            parts = (
                k * (np.abs(mean + c) + self._uncertainty + e)  # n_A (|mu_A| + E_A)
                for c, e, k in zip(centres, errors, counts, strict=True)
            )
            loc = loc + local.chi * sum(parts) / (counts[0] + counts[1])
        return np.asarray((1.0 + self.t.u) * loc)

    def _rnd(self, local: Local, magnitude: Array) -> Array:
        """Return rnd(t), the error of the last rounding of a mean of magnitude t: half an ulp, or u t."""
        magnitude = (magnitude + self.t.flush) * INFLATION
        if not local.half_ulp:
            return np.asarray(self.t.u * magnitude)
        _, exponent = np.frexp(magnitude)  # 2**(exponent - 1) = 2**floor(log2 t)
        return np.where(magnitude > 0.0, np.ldexp(self.t.u, exponent - 1), 0.0)

    def _increments(self, local: Local, update: bool, left: Numbering, right: Numbering) -> Array:
        """Return the most roundings of an increment: a sum with nothing is exact."""
        k_a, k_b = self.roundings[left], self.roundings[right]
        if update:
            return np.where(k_a < 0, local.increment, np.maximum(k_a, local.increment) + 1.0)
        present = (k_a >= 0).astype(np.float64) + (k_b >= 0)
        return np.maximum(np.maximum(k_a, k_b), local.increment) + present


def start(t: RowTerms, *, welford: bool, steps: int) -> BoundAlongTree:
    """Return the leaves: exact, one element each.

    steps: length of the program, each of whose steps adds to the error of the centred means.
    """
    columns = t.count
    values = t.rows.values
    return BoundAlongTree(
        t=t,
        welford=welford,
        centre=values - t.rows.mean[:, None],
        error=np.zeros_like(values),
        products=np.zeros_like(t.sigma),
        counts=np.ones(columns),
        roundings=np.full(columns, -1.0),
        slack=_STEP_ERROR * (steps + 2) * t.largest_deviation,
        heads=set(range(columns)),
    )
