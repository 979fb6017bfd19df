"""The proved bounds of every variance algorithm with the worst errors of a quick search.

Bounds and observations are never mixed: a record has one field for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from verifier.arithmetic.formats import FORMATS, INFLATION, Array, ieee
from verifier.arithmetic.row_statistics import RowStatistics, exact_moments, exact_statistics
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.arithmetic.trees.tree import Tree, any_order
from verifier.bounds.variance import MomentBound, Reduction, algorithm, algorithms
from verifier.bounds.variance.rstd import rstd_bound

EPS = 1e-5
ROWS = 6
PER_DECADE = 3
LARGEST_KAPPA = 1e8
LONGEST_FOLLOWED = 4096
"""Most additions of an element in orders that are simulated: a step of numpy each, for every algorithm."""
_AT_ONCE = 2**21
"""Elements of rows that are bounded and simulated together: 16 MiB of float64."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Relative errors of variance (for rms: mean square), rstd and normalized output; NaN: no theorem.

    `output` is the error of (x - mean) * rstd in units of the row's standard deviation.
    """

    variance: float
    rstd: float
    output: float


@dataclass(frozen=True, kw_only=True)
class BoundsEntry:
    """One line of the table: an algorithm, its bounds in any order and with the declared tree.

    observed: worst errors of normal rows with the declared tree, simulated.
    half_kappa: kappa from which the variance bound of the declared tree leaves under half of the bits;
    end_kappa: kappa from which rstd has no theorem. Both are points of a grid of three a decade;
    infinite where no point of the grid up to 1e8, or to where the dtype cannot hold such rows, reaches them.
    """

    algorithm: str
    theorems: tuple[str, ...]
    any_order: Errors
    declared: Errors
    observed: Errors
    half_kappa: float
    end_kappa: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """Bounds and observed errors of one algorithm at one kappa."""

    kappa: float
    declared: Errors
    observed: Errors


def table(
    *, columns: int, kappa: float, dtype: str, tree: Tree, accumulates: str | None = None, seed: int = 0
) -> list[BoundsEntry]:
    """Return one entry for each variance algorithm.

    columns: elements of a row. kappa: |mean| / standard deviation. dtype: what the rows are held in.
    tree: the declared reduction tree. accumulates: format of the sums (None: float32, or wider if dtype is).

    Raises:
        ValueError: fewer than two columns, an unknown dtype, or rows that the dtype cannot hold.

    """
    rows = hold_rows(columns, kappa, dtype, seed)
    if rows is None:
        raise ValueError(f"{dtype} cannot hold rows of {columns} elements with kappa {kappa:g}")
    claim = reduction(dtype, tree, accumulates)
    curves = sweep(columns=columns, dtype=dtype, tree=tree, accumulates=accumulates, seed=seed)
    statistics = exact_statistics(rows)
    return [
        BoundsEntry(
            algorithm=name,
            theorems=tuple(module.THEOREMS),
            any_order=proved(name, statistics, reduction(dtype, any_order(), accumulates)),
            declared=proved(name, statistics, claim),
            observed=observed(name, statistics, claim),
            half_kappa=_half(curves[name], claim),
            end_kappa=_end(curves[name]),
        )
        for name, module in algorithms().items()
    ]


def sweep(
    *,
    columns: int,
    dtype: str,
    tree: Tree,
    accumulates: str | None = None,
    seed: int = 0,
    with_observed: bool = False,
) -> dict[str, list[Point]]:
    """Return, for each algorithm, bounds at growing kappa: 0.1, then three points a decade up to 1e8.

    It stops where the dtype cannot hold rows of that kappa. Observed errors are NaN unless asked for.
    """
    claim = reduction(dtype, tree, accumulates)
    curves: dict[str, list[Point]] = {name: [] for name in algorithms()}
    for kappas, rows in _rows_at_kappas(columns, dtype, seed):
        statistics = exact_statistics(rows)
        for name, curve in curves.items():
            bounds = _proved(name, statistics, claim)
            seen = _observed(name, statistics, claim) if with_observed else np.full_like(bounds, math.nan)
            pairs = (np.split(errors, len(kappas), axis=1) for errors in (bounds, seen))
            for kappa, declared, found in zip(kappas, *pairs, strict=True):
                curve.append(Point(kappa=kappa, declared=_largest(declared), observed=_largest(found)))
    return curves


def _rows_at_kappas(columns: int, dtype: str, seed: int) -> Iterator[tuple[list[float], Array]]:
    """Yield growing kappas with their rows below each other, as many as are taken at once."""
    kappas: list[float] = []
    held: list[Array] = []
    last = round(PER_DECADE * math.log10(LARGEST_KAPPA))
    for step in range(-PER_DECADE, last + 1):
        kappa = 10.0 ** (step / PER_DECADE)
        rows = hold_rows(columns, kappa, dtype, seed)
        if rows is None:
            break
        kappas.append(kappa)
        held.append(rows)
        if len(held) * rows.size >= _AT_ONCE:
            yield kappas, np.concatenate(held)
            kappas, held = [], []
    if held:
        yield kappas, np.concatenate(held)


def reduction(dtype: str, tree: Tree, accumulates: str | None = None) -> Reduction:
    """Return the declaration that the table is about: correctly rounded division, one mean."""
    held = accumulates or ("float32" if FORMATS[dtype].precision < 24 else dtype)
    return Reduction(arithmetic=ieee(held), tree=tree, mean_contraction="none")


def hold_rows(columns: int, kappa: float, dtype: str, seed: int) -> Array | None:
    """Return normal rows (rows, columns) of this kappa as the dtype holds them, or None if it cannot.

    Raises:
        ValueError: fewer than two columns or an unknown dtype.

    """
    if columns < 2:
        raise ValueError(f"kappa needs at least two columns, not {columns}")
    if dtype not in FORMATS:
        raise ValueError(f"unknown dtype {dtype!r}; there are: {', '.join(FORMATS)}")
    random = np.random.default_rng(seed)
    normal = random.normal(size=(ROWS, columns))
    # Scales that are no powers of two: mean and variance that are round numbers hide errors.
    scale = 1.0 + random.random((ROWS, 1))
    centred = (normal - normal.mean(axis=1, keepdims=True)) / normal.std(axis=1, keepdims=True)
    rows = round_to(FORMATS[dtype], np.asarray((centred + kappa) * scale))
    deviation = rows.std(axis=1)
    reached = np.abs(rows.mean(axis=1)) >= 0.9 * kappa * deviation
    like = (deviation > 0.5 * scale[:, 0]) & (deviation < 2.0 * scale[:, 0]) & reached
    return rows if like.all() and np.isfinite(rows).all() else None


def proved(name: str, rows: RowStatistics, claim: Reduction, *, eps: float = EPS) -> Errors:
    """Return the largest proved relative errors over the rows."""
    return _largest(_proved(name, rows, claim, eps))


def _proved(name: str, rows: RowStatistics, claim: Reduction, eps: float = EPS) -> Array:
    """Return the proved relative errors of variance, rstd and output, (3, rows)."""
    with np.errstate(all="ignore"):
        moments = algorithm(name).bound(rows, claim)
        root = rstd_bound(rows, moments, eps, claim.arithmetic.u, claim.arithmetic)
        exact = rows.variance_lower if moments.centred else rows.mean_square_lower
        output = _output_bound(rows, moments, root.relative_error, claim, eps)
        variance = np.where(moments.covered, moments.variance_error / exact, math.nan)
    return np.stack([variance, *(np.where(root.covered, e, math.nan) for e in (root.relative_error, output))])


def observed(name: str, rows: RowStatistics, claim: Reduction) -> Errors:
    """Return the largest relative errors of a simulated run over the rows; NaN for orders of many steps."""
    return _largest(_observed(name, rows, claim))


def _observed(name: str, rows: RowStatistics, claim: Reduction) -> Array:
    """Return the errors of a simulated run in variance, rstd and output, (3, rows)."""
    if claim.tree.depth(rows.count) > LONGEST_FOLLOWED:
        return np.full((3, len(rows.values)), math.nan)
    module, rounded = algorithm(name), RoundedArithmetic(format=claim.arithmetic.format)
    mean, variance = module.simulate(rounded, rows.values, claim)
    eps = rounded.of(np.asarray(EPS))
    root = rounded.divide(np.ones_like(mean), rounded.square_root(rounded.add(variance, eps)))
    away = rounded.subtract(rows.values, mean[:, None])
    output = rounded.multiply(away, np.broadcast_to(root[:, None], away.shape))
    errors = [
        _row_errors(row, float(v), float(r), y, centred=module.CENTRED)
        for row, v, r, y in zip(rows.values, variance, root, output, strict=True)
    ]
    found = np.asarray(errors).T
    return np.where(np.isnan(found), math.inf, found)


def _row_errors(
    row: Array, variance: float, rstd: float, output: Array, *, centred: bool
) -> tuple[float, float, float]:
    """Return the errors of one row against its exact moments."""
    exact_mean, exact_variance, square = exact_moments(row)
    target = exact_variance if centred else square
    centre = exact_mean if centred else Fraction(0)
    exact = 1.0 / math.sqrt(float(target + Fraction(EPS)))
    missed = math.inf
    if math.isfinite(variance):
        missed = float(abs(Fraction(variance) - target) / target)
    # What float64 loses of the mean is added apart: at kappa 1e8 it is 1e-8 of a deviation.
    away = (row - float(centre)) - float(centre - Fraction(float(centre)))
    with np.errstate(invalid="ignore"):
        return missed, abs(rstd / exact - 1.0), float(np.abs(output - away * exact).max())


def _output_bound(
    rows: RowStatistics, moments: MomentBound, rho: Array, claim: Reduction, eps: float
) -> Array:
    """Bound the error of (x - mean) * rstd at the largest deviation, (rows,) (T10, canonical form)."""
    u, centred = claim.arithmetic.u, moments.centred
    twice = 2.0 * u + u**2
    exact = rows.variance_lower if centred else rows.mean_square_lower
    away = rows.largest_deviation if centred else rows.largest
    r = 1.0 / np.sqrt(exact + eps) * INFLATION
    mean = moments.mean_error + moments.mean_spread
    propagated = (twice + rho * (1.0 + twice)) * away + (1.0 + rho) * (1.0 + twice) * mean
    return np.asarray(r * propagated * INFLATION + claim.arithmetic.omega)


def _largest(errors: Array) -> Errors:
    """Return the largest of errors (3, rows); one row without a theorem has none for all."""
    variance, rstd, output = errors.max(axis=1)
    return Errors(variance=float(variance), rstd=float(rstd), output=float(output))


def _half(curve: Sequence[Point], claim: Reduction) -> float:
    """Return the first kappa whose variance bound exceeds the square root of u."""
    limit = math.sqrt(claim.arithmetic.u)
    return next((p.kappa for p in curve if not p.declared.variance <= limit), math.inf)


def _end(curve: Sequence[Point]) -> float:
    """Return the first kappa without a theorem for rstd."""
    return next((p.kappa for p in curve if not p.declared.rstd < math.inf), math.inf)
