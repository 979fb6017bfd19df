"""Attacks on the theorems: rows on which a simulated algorithm comes as close to its bound as it can.

An error above its bound is a false theorem (or a false simulation). Errors are exact rationals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from verifier.arithmetic.formats import Array, Format
from verifier.arithmetic.row_statistics import RowStatistics, exact_moments, exact_statistics
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.bounds.variance import Mask, Reduction, algorithm

Random = np.random.Generator
Simulation = Callable[[RoundedArithmetic, Array, Reduction], tuple[Array, Array]]


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """Observed error / proved bound of each row, (rows,); 0 where there is no theorem."""

    mean: Array
    variance: Array
    covered: Mask

    @property
    def worst(self) -> float:
        """Largest of all."""
        return float(max(self.mean.max(initial=0.0), self.variance.max(initial=0.0)))


def utilisation(
    name: str,
    values: Array,
    claim: Reduction,
    statistics: RowStatistics | None = None,
    simulate: Simulation | None = None,
) -> Utilisation:
    """Run the algorithm on values (rows, columns) and compare its errors with its bounds.

    simulate: another way to write the algorithm than its own model.
    """
    module, arithmetic = algorithm(name), claim.arithmetic
    rounded = RoundedArithmetic(format=arithmetic.format, flush_to_zero=arithmetic.flush_to_zero)
    statistics = statistics or exact_statistics(values)
    bound = module.bound(statistics, claim)
    mean, variance = (simulate or module.simulate)(rounded, rounded.read(values), claim)
    ratios = np.zeros((2, len(values)))
    for i in np.flatnonzero(bound.covered):
        exact = exact_moments(values[i])
        target = exact[1] if module.CENTRED else exact[2]
        ratios[1, i] = _ratio(variance[i], target, bound.variance_error[i])
        if module.CENTRED:
            ratios[0, i] = _ratio(mean[i], exact[0], bound.mean_error[i])
    return Utilisation(mean=ratios[0], variance=ratios[1], covered=bound.covered)


def _ratio(computed: float, exact: Fraction, bound: float) -> float:
    """Return |computed - exact| / bound; a result that is not finite has no bound that it keeps."""
    if not np.isfinite(computed):
        return np.inf
    return float(abs(Fraction(float(computed)) - exact) / Fraction(float(bound)))


def families(
    random: Random, count: int, rows: int, format: Format, scale: float = 1.0
) -> Iterator[tuple[str, Array]]:
    """Yield rows (rows, count) of every family, rounded to `format`."""
    normal = random.normal(size=(rows, count))
    index = np.arange(count)
    sign = np.where(index % 2, -1.0, 1.0)
    unit = np.ones((rows, count))
    base = 1.0 + random.random((rows, 1))
    made = {
        "normal": normal,
        "constant": unit * base,
        "one_ulp": unit * base + 2.0 * format.u * random.integers(-1, 2, size=(rows, count)),
        "alternating": sign * base,
        "near_alternating": sign * base + format.u * normal * 8,
        "outlier_first": np.where(index == 0, 2.0 ** random.integers(0, 12, size=(rows, 1)), normal * 1e-2),
        "outlier_last": np.where(index == count - 1, 2.0 ** random.integers(0, 12, size=(rows, 1)), normal),
        "sorted": np.sort(normal, axis=1),
        "halves": np.where(index < count / 2, 1.0, -1.0) * unit,
        "two_level": np.where(random.random((rows, count)) < 0.5, base, base * 1.5),
        "lognormal": np.exp(3.0 * normal),
        "drift": base + index / max(count, 1) * 1e-2 + 1e-4 * normal,
        "one_and_zeros": np.where(index == count // 2, base, 0.0),
    }
    for exponent in (1, 2, 3, 5):
        made[f"kappa_1e{exponent}"] = (
            normal + np.where(random.random((rows, 1)) < 0.5, -1, 1) * 10.0**exponent
        )
    for name, values in made.items():
        yield name, round_to(format, np.asarray(values * scale, dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Evolved:
    """The worst row that a search found, (columns,), and its utilisation of the variance bound.

    mean: largest utilisation of the mean's bound over all rows; tried: how many rows that was.
    """

    row: Array
    utilisation: float
    mean: float
    tried: int


def evolve(
    name: str,
    claim: Reduction,
    count: int,
    random: Random,
    *,
    generations: int,
    population: int = 24,
) -> Evolved:
    """Search for the row of `count` elements with the largest utilisation by ulp mutations and crossover.

    The variance decides which rows live on; the mean's errors are only watched.
    """
    held = claim.arithmetic.format
    starts = [values[:2] for _, values in families(random, count, 2, held)]
    rows = np.concatenate(starts)
    found = utilisation(name, rows, claim)
    scores, tried, mean = found.variance, len(rows), float(found.mean.max())
    for _ in range(generations):
        best = np.argsort(-scores, kind="stable")[:population]
        rows, scores = rows[best], scores[best]
        children = mutated(random, rows, held)
        found = utilisation(name, children, claim)
        rows = np.concatenate([rows, children])
        scores = np.concatenate([scores, found.variance])
        tried, mean = tried + len(children), max(mean, float(found.mean.max()))
    worst = int(np.argmax(scores))
    return Evolved(row=rows[worst], utilisation=float(scores[worst]), mean=mean, tried=tried)


def mutated(random: Random, parents: Array, format: Format) -> Array:
    """Return one child per parent: some elements of another parent, some moved by ulps, signs or powers."""
    rows, count = parents.shape
    other = parents[random.permutation(rows)]
    children = np.where(random.random((rows, count)) < 0.5 * (random.random((rows, 1)) < 0.4), other, parents)
    hit = random.random((rows, count)) < np.maximum(1.5 / count, 0.3 * (random.random((rows, 1)) < 0.2))
    _, exponent = np.frexp(children)
    ulps = np.ldexp(1.0, exponent - format.precision)
    size = np.rint(2.0 ** (random.random((rows, count)) * format.precision)) * random.choice(
        [-1.0, 1.0], (rows, count)
    )
    moved = children + ulps * size
    scaled = children * 2.0 ** random.integers(-3, 4, size=(rows, count))
    kind = random.random((rows, count))
    changed = np.where(kind < 0.7, moved, np.where(kind < 0.85, scaled, -children))
    return round_to(format, np.where(hit, changed, children))
