"""The proved bounds of every variance algorithm beside the worst errors of a quick search.

Bounds and observations are never mixed: a record has one field for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from verifier.arithmetic import FORMATS, INFLATION, Array, ieee
from verifier.rounded import Rounded, round_to
from verifier.statistics import RowStatistics, exact_moments, exact_statistics
from verifier.trees import Tree, any_order
from verifier.variance import Mask, MomentBound, Reduction, algorithm, algorithms
from verifier.variance.rstd import rstd_bound

EPS = 1e-5
ROWS = 6
PER_DECADE = 3
LARGEST_KAPPA = 1e8
LONGEST_FOLLOWED = 4096
"""Longest row whose undeclared order is simulated: its sum is sequential, one element a step."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Relative errors of variance (for rms: mean square), rstd and normalized output; NaN: no theorem.

    `output` is the error of (x - mean) * rstd in units of the row's standard deviation.
    """

    variance: float
    rstd: float
    output: float


_NOTHING = Errors(variance=math.nan, rstd=math.nan, output=math.nan)


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
    last = round(PER_DECADE * math.log10(LARGEST_KAPPA))
    for step in range(-PER_DECADE, last + 1):
        kappa = 10.0 ** (step / PER_DECADE)
        rows = hold_rows(columns, kappa, dtype, seed)
        if rows is None:
            break
        statistics = exact_statistics(rows)
        for name, curve in curves.items():
            seen = observed(name, statistics, claim) if with_observed else _NOTHING
            curve.append(Point(kappa=kappa, declared=proved(name, statistics, claim), observed=seen))
    return curves


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


def proved(name: str, rows: RowStatistics, claim: Reduction) -> Errors:
    """Return the largest proved relative errors over the rows."""
    with np.errstate(all="ignore"):
        moments = algorithm(name).bound(rows, claim)
        root = rstd_bound(rows, moments, EPS, claim.arithmetic.u, claim.arithmetic)
        exact = rows.variance_lower if moments.centred else rows.mean_square_lower
        output = _output_bound(rows, moments, root.relative_error, claim)
    return Errors(
        variance=_largest(moments.variance_error / exact, moments.covered),
        rstd=_largest(root.relative_error, root.covered),
        output=_largest(output, root.covered),
    )


def observed(name: str, rows: RowStatistics, claim: Reduction) -> Errors:
    """Return the largest relative errors of a simulated run over the rows; NaN for long undeclared orders."""
    if rows.count > LONGEST_FOLLOWED and not claim.tree.named:
        return _NOTHING
    module, rounded = algorithm(name), Rounded(format=claim.arithmetic.format)
    mean, variance = module.simulate(rounded, rows.values, claim)
    eps = rounded.of(np.asarray(EPS))
    root = rounded.divide(np.ones_like(mean), rounded.square_root(rounded.add(variance, eps)))
    away = rounded.subtract(rows.values, mean[:, None])
    output = rounded.multiply(away, np.broadcast_to(root[:, None], away.shape))
    errors = [
        _row_errors(row, float(v), float(r), y, centred=module.CENTRED)
        for row, v, r, y in zip(rows.values, variance, root, output, strict=True)
    ]
    worst = np.max(np.nan_to_num(errors, nan=np.inf), axis=0)
    return Errors(variance=float(worst[0]), rstd=float(worst[1]), output=float(worst[2]))


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


def _output_bound(rows: RowStatistics, moments: MomentBound, rho: Array, claim: Reduction) -> Array:
    """Bound the error of (x - mean) * rstd at the largest deviation, (rows,) (T10, canonical form)."""
    u, centred = claim.arithmetic.u, moments.centred
    twice = 2.0 * u + u**2
    exact = rows.variance_lower if centred else rows.mean_square_lower
    away = rows.largest_deviation if centred else rows.largest
    r = 1.0 / np.sqrt(exact + EPS) * INFLATION
    mean = moments.mean_error + moments.mean_spread
    propagated = (twice + rho * (1.0 + twice)) * away + (1.0 + rho) * (1.0 + twice) * mean
    return np.asarray(r * propagated * INFLATION + claim.arithmetic.omega)


def _largest(values: Array, covered: Mask) -> float:
    return float(values.max()) if covered.all() else math.nan


def _half(curve: Sequence[Point], claim: Reduction) -> float:
    """Return the first kappa whose variance bound exceeds the square root of u."""
    limit = math.sqrt(claim.arithmetic.u)
    return next((p.kappa for p in curve if not p.declared.variance <= limit), math.inf)


def _end(curve: Sequence[Point]) -> float:
    """Return the first kappa without a theorem for rstd."""
    return next((p.kappa for p in curve if not p.declared.rstd < math.inf), math.inf)


def plot(
    path: str | Path,
    *,
    columns: int,
    dtype: str,
    tree: Tree,
    accumulates: str | None = None,
    seed: int = 0,
) -> Path:
    """Draw the variance error against kappa, proved lines over observed points, log-log; return the file.

    Algorithms without a mean (rms) are left out; those whose bounds nearly coincide share a line, the
    larger bound, and their points, the larger error.
    """
    from matplotlib.figure import Figure

    curves = sweep(
        columns=columns, dtype=dtype, tree=tree, accumulates=accumulates, seed=seed, with_observed=True
    )
    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    axes = figure.subplots()
    for number, names in enumerate(_alike(curves)):
        kappas = [p.kappa for p in curves[names[0]]]
        bounds = np.fmax.reduce([[p.declared.variance for p in curves[n]] for n in names])
        seen = np.fmax.reduce([[p.observed.variance for p in curves[n]] for n in names])
        colour, mark, label = f"C{number}", _MARKS[number % len(_MARKS)], ", ".join(names)
        axes.plot(kappas, bounds, color=colour, linewidth=1.5)
        seen = np.where(seen > 0.0, seen, math.nan)
        look: dict[str, Any] = {"color": colour, "marker": mark, "markersize": 4.5, "fillstyle": "none"}
        axes.plot(kappas, seen, linestyle="none", **look)
        axes.plot([], [], linewidth=1.5, label=label, **look)  # one key for a line and its points
    sums = reduction(dtype, tree, accumulates).arithmetic.format
    held, u = (dtype if sums.name == dtype else f"{dtype}, sums in {sums.name}"), sums.u
    for level, text in ((u, "u"), (math.sqrt(u), "half of the bits gone"), (1.0, "no bits left")):
        axes.axhline(level, color="0.7", linewidth=0.8, zorder=0)
        axes.annotate(
            text,
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, -3),
            textcoords="offset points",
            fontsize=8,
            color="0.35",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="kappa = |mean| / standard deviation",
        ylabel="relative error of the variance",
        ylim=(u / 30.0, 30.0),
        title=f"{held}, N = {columns}, {_order(tree)}: proved bounds (lines) over observed errors (points)",
    )
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)
    return Path(path)


def _order(tree: Tree) -> str:
    """Return the kind of a tree as a title can say it."""
    return f"{tree.lanes} {tree.kind}" if tree.kind in {"lanes", "chunks"} else tree.kind.replace("_", " ")


_MARKS = "os^vDP*X<>"
_NEAR = 2.5
"""Largest ratio of two bounds at one kappa that a reader could not tell apart on seven decades."""


def _alike(curves: Mapping[str, Sequence[Point]]) -> list[list[str]]:
    """Return the algorithms with a mean, those together whose bounds nearly coincide at every kappa."""
    groups: list[list[str]] = []
    for name, curve in curves.items():
        if not algorithm(name).CENTRED:
            continue
        near = [group for group in groups if _nearly(curve, curves[group[0]])]
        if near:
            near[0].append(name)
        else:
            groups.append([name])
    return groups


def _nearly(one: Sequence[Point], other: Sequence[Point]) -> bool:
    """Return whether two curves of bounds stay within a factor of each other."""
    pairs = ((p.declared.variance, q.declared.variance) for p, q in zip(one, other, strict=True))
    known = [(a, b) for a, b in pairs if not (math.isnan(a) and math.isnan(b))]
    return all(max(a, b) <= _NEAR * min(a, b) for a, b in known)
