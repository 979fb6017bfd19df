"""The running bound of merged moments: every node of a declared tree contributes its own error (T8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from verifier.arithmetic import INFLATION, Array
from verifier.trees import Index, Step
from verifier.variance.local import Local, merge_step, update_step
from verifier.variance.terms import Terms

MOST_STEPS = 2**14
"""Longest program that is followed: 2**20 float64 operations on a path, as `INFLATION` allows."""

LONGEST_CHAIN = 2**18
"""Longest sequential order that is followed, all elements at once."""
_PASSES = 3
"""Passes of `follow_chain`; the second comes within a few per cent of the fixed point."""


@dataclass(kw_only=True)
class Running:
    """The nodes of one run: exact means relative to the row's, bounds on their errors, error products.

    `centre` and `error` have shape (rows, columns); a node lives where its left leaf was.
    `products` >= sum of n e (2 |m - mean| + e) over the nodes so far, (rows,).
    `roundings` counts, per node, the most roundings that an increment has met (-1: no increment).
    """

    t: Terms
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
        errors before: each pass replaces the bound by a smaller one.
        """
        t, count = self.t, self.t.count
        local = update_step(t) if self.welford else merge_step(t)
        n = np.arange(2.0, count + 1.0)
        means = np.cumsum(self.centre, axis=1) / np.arange(1.0, count + 1.0)
        before, after, leaves = means[:, :-1], means[:, 1:], self.centre[:, 1:]
        between = np.abs(leaves - before) + 2.0 * self.slack[:, None]
        away = np.abs(after) + self._far
        place = np.abs(t.rows.mean[:, None] + after) + self._far
        errors = np.repeat(ceiling[:, None], count, axis=1)
        errors[:, 0] = 0.0
        for _ in range(_PASSES):
            known = errors[:, :-1]
            average = known * (n - 1.0) / n
            parts = (before, leaves), (known, np.zeros_like(known)), (n - 1.0, np.ones_like(n))
            moved = self._moved(local, (between + known) / n, *parts)
            own = self._rounding(local, place + average + moved) + moved
            errors[:, 1:] = np.minimum(errors[:, 1:], np.cumsum(n * own, axis=1) / n * INFLATION)
        added = n * own * (2.0 * (away + average) + own)
        if self.welford:
            added = added + (between + known) * own
        self.products = added.sum(axis=1)
        self.error[:, 0], self.root = errors[:, -1], 0
        self.roundings[0] = local.increment + count - 2.0
        self.heads = {0}

    def partition_error(self) -> Array:
        """Return the root of sum n e**2 / N over the present nodes, (rows,)."""
        heads = sorted(self.heads)
        weighted = (self.counts[heads] * self.error[:, heads] ** 2).sum(axis=1)
        return np.asarray(np.sqrt(weighted / self.t.count) * INFLATION)

    def _take(self, step: Step) -> None:
        t, left, right = self.t, step.left, step.right
        update = step.update and self.welford
        local = update_step(t) if update else merge_step(t)
        n_a, n_b = self.counts[left], self.counts[right]
        n = n_a + n_b
        c_a, c_b = self.centre[:, left], self.centre[:, right]
        e_a, e_b = self.error[:, left], self.error[:, right]
        between = np.abs(c_b - c_a) + 2.0 * self.slack[:, None]
        centre = c_a + (c_b - c_a) * (n_b / n)
        average = (n_a * e_a + n_b * e_b) / n
        either = t.claim.per_lane_means or t.claim.tree.symmetric
        partner = np.maximum(n_a, n_b) if either and not update else n_b
        moved = self._moved(local, partner / n * (between + e_a + e_b), (c_a, c_b), (e_a, e_b), (n_a, n_b))
        own = self._rounding(local, np.abs(t.rows.mean[:, None] + centre) + self._far + average + moved)
        own = own + moved
        away = np.abs(centre) + self._far + average
        added = n * own * (2.0 * away + own)
        if update:
            added = added + (between + e_a) * own
        self.products = self.products + added.sum(axis=1)
        self.centre[:, left], self.error[:, left] = centre, average + own
        self.counts[left] = n
        self.roundings[left] = self._increments(local, update, left, right)

    @property
    def _far(self) -> Array:
        """Uncertainty of a node's distance from the row's mean, itself known to half an ulp; (rows, 1)."""
        return (self.slack + 2.0**-51 * np.abs(self.t.rows.mean))[:, None]

    def _moved(
        self,
        local: Local,
        distance: Array,
        centres: tuple[Array, Array],
        errors: tuple[Array, Array],
        counts: tuple[Array, Array],
    ) -> Array:
        """Return the local error before the last rounding of the mean."""
        moved = local.beta * distance + local.absolute
        if local.chi:
            mean = self.t.rows.mean[:, None]
            parts = (
                k * (np.abs(mean + c) + self._far + e)
                for c, e, k in zip(centres, errors, counts, strict=True)
            )
            moved = moved + local.chi * sum(parts) / (counts[0] + counts[1])
        return np.asarray((1.0 + self.t.u) * moved)

    def _rounding(self, local: Local, magnitude: Array) -> Array:
        """Return the error of the last rounding of a mean of at most this magnitude."""
        magnitude = (magnitude + self.t.flush) * INFLATION
        if not local.half_ulp:
            return np.asarray(self.t.u * magnitude)
        _, exponent = np.frexp(magnitude)
        return np.where(magnitude > 0.0, np.ldexp(self.t.u, exponent - 1), 0.0)

    def _increments(self, local: Local, update: bool, left: Index, right: Index) -> Array:
        """Return the most roundings of an increment: a sum with nothing is exact."""
        k_a, k_b = self.roundings[left], self.roundings[right]
        if update:
            return np.where(k_a < 0, local.increment, np.maximum(k_a, local.increment) + 1.0)
        present = (k_a >= 0).astype(np.float64) + (k_b >= 0)
        return np.maximum(np.maximum(k_a, k_b), local.increment) + present


def start(t: Terms, *, welford: bool, steps: int) -> Running:
    """Return the leaves: exact, one element each.

    steps: length of the program; each step of the centred float64 means loses 2**-50 of the largest
    deviation at most.
    """
    columns = t.count
    values = t.rows.values
    return Running(
        t=t,
        welford=welford,
        centre=values - t.rows.mean[:, None],
        error=np.zeros_like(values),
        products=np.zeros_like(t.sigma),
        counts=np.ones(columns),
        roundings=np.full(columns, -1.0),
        slack=2.0**-50 * (steps + 2) * t.largest_deviation,
        heads=set(range(columns)),
    )
