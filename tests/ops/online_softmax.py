"""Online softmax executed in rounded arithmetic along any merge tree, to attack its bound (T11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from verifier.arithmetic.abstract_number import Terms
from verifier.arithmetic.formats import Arithmetic, Array
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.arithmetic.trees.tree import Step, Tree
from verifier.bounds.affine import AffineNumbers, bound_of
from verifier.bounds.variance.attack import families, mutated
from verifier.ops import softmax
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.softmax.problem import SoftmaxProblem
from verifier.oracle.solve import solve

Random = np.random.Generator
Choice = Callable[[tuple[int, ...]], Array]
"""Returns how far each exponential goes of what its documented error allows, in [-1, 1]."""


@dataclass(frozen=True, kw_only=True)
class OnlineRun:
    """One execution: parts (maximum, sum) are merged along a tree, and every merge rescales both sums.

    `choose` picks each exponential's error; `fuses` contracts the second product into the addition; with
    `base_two` exponentials are powers of two.
    `lanes`: instead, so many lanes add their elements by a choice of which to rescale, sum or element; at
    last all are rescaled to the largest maximum at once, and summed in turn.
    """

    arithmetic: Arithmetic
    tree: Tree
    choose: Choice
    fuses: bool = False
    base_two: bool = False
    lanes: int = 0
    rounded: RoundedArithmetic = field(init=False)

    def __post_init__(self) -> None:
        """Take the format from the arithmetic."""
        held = RoundedArithmetic(format=self.arithmetic.format, flush_to_zero=self.arithmetic.flush_to_zero)
        object.__setattr__(self, "rounded", held)

    def exp(self, argument: Array) -> Array:
        """Return an exponential with the chosen part of the error that its hypothesis allows."""
        u = self.arithmetic.u
        # The rounding that follows errs by u itself; 2**-40 covers the float64 exponential.
        room = ((1.0 + self.arithmetic.exponential * u) / (1.0 + u) - 1.0) * (1.0 - 2.0**-40)
        with np.errstate(under="ignore"):
            power = np.exp2(argument) if self.base_two else np.exp(argument)
            return self.rounded.of(power * (1.0 + room * self.choose(argument.shape)))

    def output(self, values: Array) -> Array:
        """Return the softmax of values (rows, columns), numbers of the format."""
        x, total = self.rounded.read(values), self.total(values)
        power = self.exp(self.rounded.subtract(x, x.max(axis=1, keepdims=True)))
        return self.rounded.divide(power, np.broadcast_to(total, power.shape))

    def total(self, values: Array) -> Array:
        """Return the sum of exp(x - max(x)) of values (rows, columns), (rows, 1)."""
        x = self.rounded.read(values)
        if self.lanes:
            return self._of_lanes(x)
        steps: Sequence[Step] = self.tree.example(x.shape[1])
        top, total = x.copy(), self.exp(np.zeros_like(x))
        root = 0
        for step in steps:
            self._merge(top, total, step)
            root = int(step.left[0])
        whole = total[:, [root]]
        return self.rounded.multiply(whole, self.exp(np.zeros_like(whole)))

    def _of_lanes(self, x: Array) -> Array:
        rounded, lanes = self.rounded, min(self.lanes, x.shape[1])
        top, total = x[:, :lanes].copy(), np.ones((len(x), lanes))
        for start in range(lanes, x.shape[1], lanes):
            value = x[:, start : start + lanes]
            held, kept = top[:, : value.shape[1]], total[:, : value.shape[1]]
            above = rounded.subtract(value, held)
            factor = self.exp(-np.abs(above))
            if self.fuses:
                grown = rounded.multiply_add(kept, factor, np.ones_like(kept))
            else:
                grown = rounded.add(rounded.multiply(kept, factor), np.asarray(1.0))
            kept[:] = np.where(above > 0, grown, rounded.add(kept, factor))
            held[:] = np.maximum(held, value)
        shares = rounded.multiply(total, self.exp(rounded.subtract(top, top.max(axis=1, keepdims=True))))
        whole = shares[:, 0]
        for share in shares.T[1:]:
            whole = rounded.add(whole, share)
        return whole[:, None]

    def _merge(self, top: Array, total: Array, step: Step) -> None:
        rounded, left, right = self.rounded, step.left, step.right
        larger = np.maximum(top[:, left], top[:, right])
        factors = [self.exp(rounded.subtract(top[:, side], larger)) for side in (left, right)]
        kept = rounded.multiply(total[:, left], factors[0])
        if self.fuses:
            total[:, left] = rounded.multiply_add(total[:, right], factors[1], kept)
        else:
            total[:, left] = rounded.add(kept, rounded.multiply(total[:, right], factors[1]))
        top[:, left] = larger


def bound(values: Array, arithmetic: Arithmetic, tree: Tree, form: str = "online") -> Array:
    """Return the proved bound on the output for values (rows, columns); infinite where there is none."""
    numbers = AffineNumbers(
        arithmetic=arithmetic,
        rows=values.shape[0],
        columns=values.shape[1],
        row_tree=tree,
        column_tree=tree,
        divide_by_n="division",
        contraction="mixed",
        dtypes={},
    )
    with np.errstate(all="ignore"):
        return np.asarray(bound_of(softmax.FORMS[form].forward(numbers, Terms(x=numbers.read(values)))))


def exact_of(values: Array) -> Enclosure:
    """Return the exact softmax of values (rows, columns): once for all the ways to compute it."""
    exact = solve(SoftmaxProblem(input=values)).output
    assert exact is not None
    return exact


def utilisation(values: Array, exact: Enclosure, run: OnlineRun, limit: Array) -> Array:
    """Return the largest certified error / bound of each row, (rows,); 0 where no element has a bound."""
    low, _ = exact.error_of(run.output(values))
    with np.errstate(all="ignore"):
        return np.asarray(np.where(np.isfinite(limit), low / limit, 0.0).max(axis=1))


def choices(random: Random) -> list[Choice]:
    """Return ways to choose errors: all up, all down, at random between, at random either."""
    return [
        np.ones,
        lambda shape: -np.ones(shape),
        lambda shape: random.uniform(-1.0, 1.0, shape),
        lambda shape: random.choice([-1.0, 1.0], shape),
    ]


def evolve(arithmetic: Arithmetic, tree: Tree, count: int, random: Random, *, generations: int) -> float:
    """Return the largest utilisation that ulp mutations and crossover find on rows of `count` elements."""
    held, population, worst = arithmetic.format, 24, 0.0
    rows = np.concatenate([values[:2] for _, values in families(random, count, 2, held)])
    runs = [
        OnlineRun(arithmetic=arithmetic, tree=tree, choose=c, fuses=f)
        for c in choices(random)[:2]
        for f in (False, True)
    ]
    for _ in range(generations):
        limit, exact = bound(rows, arithmetic, tree), exact_of(rows)
        scores = np.maximum.reduce([utilisation(rows, exact, run, limit) for run in runs])
        worst = max(worst, float(scores.max()))
        rows = rows[np.argsort(-scores, kind="stable")[:population]]
        rows = np.concatenate([rows, mutated(random, rows, held)])
    return worst
