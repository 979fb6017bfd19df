"""Bounds of everything that merges (count, mean, sum of squared deviations) of parts: Welford and Chan.

Lemma 4 turns the errors of the parts' means, whatever the tree, into the error of the variance;
see docs/explanation/bounds.md. `closed` needs only the number of stages (T7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic import INFLATION, Array
from verifier.statistics import RowStatistics
from verifier.trees import Stages
from verifier.variance import Mask, Merge, MomentBound, Reduction
from verifier.variance.terms import Terms, moment_bound, terms


@dataclass(frozen=True, kw_only=True)
class Local:
    """The error that one node adds to its mean, and the roundings of one increment of the squares.

    |new error| <= u|m| + (1 + u)(beta |m - m_A| + chi (n_A|m_A| + n_B|m_B|)/n + absolute).
    """

    beta: float
    chi: float
    absolute: float
    increment: float
    half_ulp: bool


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Errors of mean and of variance, before the roundings that act on the variance as a whole.

    `mean_error` bounds the mean at the root, `cross` the difference between the variance and the
    sum of exact increments of the computed means over N, `increments` counts roundings (K).
    """

    mean_error: Array
    cross: Array
    increments: float


def update_step(t: Terms) -> Local:
    """Return the local errors of one Welford update, m + delta / k, by division or by reciprocal."""
    arithmetic = t.claim.arithmetic
    roundings = max(1.0 + arithmetic.division, 2.0 + arithmetic.reciprocal)
    return Local(
        beta=t.theta(roundings),
        chi=0.0,
        absolute=t.omega + 2.0 * t.flush,
        increment=3.0,
        half_ulp=True,
    )


def merge_step(t: Terms) -> Local:
    """Return the local errors of one merge in the declared form; its squares delta**2 n_A n_B / n."""
    arithmetic = t.claim.arithmetic
    share = max(arithmetic.division, arithmetic.reciprocal + 1.0)
    form: Merge = t.claim.merge
    centred = form == "increment"
    return Local(
        beta=t.theta(2.0 + share) if centred else 0.0,
        chi=0.0 if centred else t.theta(1.0 + share),
        absolute=2.0 * t.omega + 2.0 * t.flush,
        increment=5.0 + share,
        half_ulp=form != "pooled" or arithmetic.division == 1.0,
    )


def increments(t: Terms, stages: Stages, *, welford: bool) -> float:
    """Return K: the most roundings that an increment meets from its making to the variance."""
    own, updates, merges = merge_step(t).increment, stages.updates, 2 * stages.merges
    if not welford:
        return t.per_count + own + updates + merges
    return t.per_count + max(2 + updates + merges if updates else 0, own + merges if merges else 0)


def closed(t: Terms, stages: Stages, *, welford: bool) -> Moments:
    """Bound by the number of stages alone, whatever the tree (T7).

    Source: docs/explanation/bounds.md, T7.
    """
    updated = np.zeros_like(t.sigma)
    first = update_step(t) if welford else merge_step(t)
    updated = _stages(t, first, 1.0, stages.updates, updated)
    final = _stages(t, merge_step(t), _imbalance(t, stages), stages.merges, updated)
    cross = 2.0 * final * t.sigma + 2.0 * final**2
    if welford:
        cross = cross + updated * (t.sigma + updated)
    return Moments(mean_error=final, cross=cross, increments=increments(t, stages, welford=welford))


def _imbalance(t: Terms, stages: Stages) -> float:
    """Return the most that a partner may outweigh the node it corrects; lanes merging for themselves: any."""
    return float(max(t.count - 1, 1)) if t.claim.per_lane_means else max(stages.imbalance, 1.0)


def _stages(t: Terms, local: Local, imbalance: float, stages: int, error: Array) -> Array:
    """Return the majorant after `stages` equal stages: error <- (1 + growth) error + added."""
    u, sigma, magnitude = t.u, t.sigma, t.mean_magnitude
    root = np.sqrt(imbalance) * (1.0 + 2.0**-52)
    growth = u + (1.0 + u) * (local.beta * root + local.chi)
    added = (u + (1.0 + u) * local.chi) * (magnitude + sigma)
    added = added + (1.0 + u) * (local.beta * root * sigma + local.absolute)
    power = t_power(growth, stages)
    return np.asarray(error * (1.0 + power) + added * (power / growth)) * INFLATION


def t_power(growth: float, stages: int) -> float:
    """Return (1 + growth)**stages - 1, infinite where float64 ends."""
    exponent = stages * np.log1p(growth)
    return float(np.expm1(exponent)) * INFLATION if exponent < 700.0 else np.inf


def variance_error(t: Terms, moments: Moments, stages: Stages, *, welford: bool) -> Array:
    """Return the bound on the variance: cross terms, increments' roundings, underflow and flushed sums."""
    relative = t.theta(moments.increments)
    amplified = 1.25 + t.claim.arithmetic.format.smallest_normal * t.count
    merges = stages.merges + (0 if welford else stages.updates)
    absolute = t.omega * (1.0 + amplified * merges)
    flushed: Array | float = 0.0
    if t.flush:
        lost = np.sqrt(2.0) * (t.sigma + 2.0 * moments.mean_error) + (1.0 + merges) * t.flush
        flushed = t.flush * (1.0 + merges + lost)
    result = relative * t.variance + (1.0 + relative) * (moments.cross + absolute + flushed) + t.omega
    return np.asarray(result * INFLATION)


def guards(t: Terms, stages: Stages, *, welford: bool) -> tuple[tuple[Mask, str], ...]:
    """Return the demands that no intermediate overflows and that counts are exact (T12)."""
    count, arithmetic = t.count, t.claim.arithmetic
    limit = 1.0 + t.theta(increments(t, stages, welford=welford) + 8.0)
    error = _largest_error(t, stages, welford=welford)
    merges = stages.merges > 0 or not welford
    # delta**2 n_A n_B / n: at most 4 in the order delta, delta, n_A, f; times N if n_A n_B comes first.
    squares = count * (t.largest_deviation + error) ** 2 * limit * (float(max(count, 4)) if merges else 4.0)
    counted = np.full(t.sigma.shape, count <= 2.0**arithmetic.format.precision)
    listed = [
        (t.below_half(squares), "a squared difference of means times counts may overflow"),
        (counted, f"counts above 2**{arithmetic.format.precision} are not exact"),
    ]
    if t.claim.merge == "pooled":
        pooled = count * (t.largest + error) * limit
        listed.append((t.below_half(pooled), "a mean times its count may overflow"))
    return tuple(listed)


def _largest_error(t: Terms, stages: Stages, *, welford: bool) -> Array:
    """Bound the error of every node's mean: the recursion of T7 in the largest norm."""
    steps = (update_step(t) if welford else merge_step(t), merge_step(t))
    error = np.zeros_like(t.sigma)
    for local, length in zip(steps, (stages.updates, stages.merges), strict=True):
        growth = t.u + (1.0 + t.u) * (2.0 * local.beta + local.chi)
        added = (t.u + (1.0 + t.u) * local.chi) * t.largest
        added = added + (1.0 + t.u) * (2.0 * local.beta * t.largest_deviation + local.absolute)
        power = t_power(growth, length)
        error = (error * (1.0 + power) + added * (power / growth)) * INFLATION
    return error


def bound_by_merging(rows: RowStatistics, claim: Reduction, *, welford: bool) -> MomentBound:
    """Return the bound of a Welford or Chan variance on the declared tree."""
    t = terms(rows, claim)
    stages = claim.tree.stages(rows.count)
    moments = closed(t, stages, welford=welford)
    mean_error = moments.mean_error
    spread = 2.0 * mean_error if claim.per_lane_means else np.zeros_like(mean_error)
    return moment_bound(
        t,
        mean_error=mean_error,
        spread=spread,
        variance_error=variance_error(t, moments, stages, welford=welford),
        nonnegative=True,
        guards=guards(t, stages, welford=welford),
    )
