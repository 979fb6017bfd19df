"""Bounds of everything that merges (count, mean, sum of squared deviations) of parts: Welford and Chan.

Lemma 4 turns the errors of the parts' means, whatever the tree, into the error of the variance;
see docs/explanation/bounds.md. Three proofs are evaluated where they apply, and the smallest bound
is taken: by the number of stages alone (T7), along the declared tree (T8), and along the declared
lanes with the merges of the lanes by their stages (T8 within lanes, T7 among them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from verifier.arithmetic.formats import INFLATION, Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.trees.tree import Stages, Step
from verifier.bounds.variance import Mask, MomentBound, Reduction
from verifier.bounds.variance.bound_along_tree import LONGEST_CHAIN, MOST_STEPS, start
from verifier.bounds.variance.merge_step import Local, merge_step, update_step
from verifier.bounds.variance.options import Merged
from verifier.bounds.variance.row_terms import RowTerms, moment_bound, terms

_UNDERFLOW = 1.25
"""What a stage of merges loses to underflow, in omega: the 1.25 of T7."""
_UNCOUNTED = 8.0
"""Roundings of a squared difference of means times counts, on the way to an increment: both factors (2), the
square, the product of the counts, of both, a share (2, with a reciprocal) and the last product."""
_LARGEST_EXPONENT = 700.0
"""e**700 is below the largest float64, e**709.8."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Errors of mean and variance before the roundings that act on the increments, (rows,).

    `mean_error` bounds the mean at the root, `cross` the difference between the variance and the
    sum of exact increments of the computed means over N, `roundings` counts those of an increment (K).
    """

    mean_error: Array
    cross: Array
    roundings: float


def bound_by_merging(rows: RowStatistics, claim: Reduction, *, welford: bool) -> MomentBound:
    """Return the bound of a Welford or Chan variance on the declared tree."""
    t = terms(rows, claim)
    stages = claim.tree.stages(rows.count)
    with np.errstate(over="ignore", invalid="ignore"):
        proofs = proofs_of(t, stages, welford=welford)
        errors = [variance_error(t, proof, stages, welford=welford) for proof in proofs]
    mean_error = np.fmin.reduce([proof.mean_error for proof in proofs])
    return moment_bound(
        t,
        mean_error=mean_error,
        spread=2.0 * mean_error if claim.per_lane_means else np.zeros_like(mean_error),
        variance_error=np.fmin.reduce(errors),
        nonnegative=True,
        guards=guards(t, stages, welford=welford),
    )


def proofs_of(t: RowTerms, stages: Stages, *, welford: bool) -> list[Moments]:
    """Return every bound that the declared tree admits."""
    proofs = [closed(t, stages, welford=welford)]
    tree = t.claim.tree
    if t.count < 2:
        return proofs
    if tree.kind == "sequential" and tree.named:
        return [*proofs, *moments_along_chain(t, stages, welford=welford)]
    updates = tree.updates(t.count)
    if updates is not None and len(updates) <= MOST_STEPS:
        proofs.append(moments_within_lanes(t, stages, updates, welford=welford))
    orders = tree.orders(t.count) if tree.named else []
    if orders and len(orders[0]) <= MOST_STEPS:
        proofs.append(moments_along_trees(t, orders, welford=welford))
    return proofs


def closed(t: RowTerms, stages: Stages, *, welford: bool) -> Moments:
    """Bound by the number of stages alone, whatever the tree (T7).

    Source: docs/explanation/bounds.md, T7.
    """
    zero = np.zeros_like(t.sigma)
    updated = _grown(t, update_step(t) if welford else merge_step(t), 1.0, stages.updates, zero)  # E_W
    final = updated + _grown(t, merge_step(t), _imbalance(t, stages), stages.merges, updated)  # E
    cross = 2.0 * final * t.sigma + 2.0 * final**2  # 2 E sigma + 2 E**2
    if welford:
        updated = final if stages.mixed else updated
        cross = cross + updated * (t.sigma + updated)  # E_W (sigma + E_W)
    return Moments(mean_error=final, cross=cross, roundings=roundings(t, stages, welford=welford))


def moments_along_trees(t: RowTerms, orders: list[list[Step]], *, welford: bool) -> Moments:
    """Bound along the declared tree; where it admits several orders, their largest (T8).

    Source: docs/explanation/bounds.md, T8.
    """
    found = []
    for steps in orders:
        run = start(t, welford=welford, steps=len(steps))
        run.follow(steps)
        error = run.error[:, run.root]  # E_root
        met = max(float(run.roundings[run.root]), 0.0) + t.per_count
        cross = run.products / t.count + error**2  # X / N + E_root**2
        found.append(Moments(mean_error=error, cross=cross, roundings=met))
    return Moments(
        mean_error=np.maximum.reduce([m.mean_error for m in found]),
        cross=np.maximum.reduce([m.cross for m in found]),
        roundings=max(m.roundings for m in found),
    )


def moments_along_chain(t: RowTerms, stages: Stages, *, welford: bool) -> list[Moments]:
    """Bound along the sequential order, if it is not too long (T8).

    Source: docs/explanation/bounds.md, T8.
    """
    if t.count > LONGEST_CHAIN:
        return []
    run = start(t, welford=welford, steps=t.count)
    run.follow_chain(_largest_error(t, stages, welford=welford))
    error = run.error[:, 0]  # E_root
    met = float(run.roundings[0]) + t.per_count
    cross = run.products / t.count + error**2  # X / N + E_root**2
    return [Moments(mean_error=error, cross=cross, roundings=met)]


def moments_within_lanes(t: RowTerms, stages: Stages, updates: list[Step], *, welford: bool) -> Moments:
    """Bound along the declared lanes, and the merges of lanes by their number of stages (T7 after T8).

    Source: docs/explanation/bounds.md, T8, "Lanes in any order".
    """
    run = start(t, welford=welford, steps=len(updates))
    run.follow(updates)
    before = run.partition_error()  # e_W
    more = _grown(t, merge_step(t), _imbalance(t, stages), stages.merges, before)  # G
    error = before + more  # E = e_W + G
    # X / N + G (2 sigma + E + e_W) + E**2
    cross = run.products / t.count + more * (2.0 * t.sigma + error + before) + error**2
    return Moments(mean_error=error, cross=cross, roundings=roundings(t, stages, welford=welford))


def roundings(t: RowTerms, stages: Stages, *, welford: bool) -> float:
    """Return K: the most roundings that an increment meets from its making to the variance."""
    own, updates, merges = merge_step(t).increment, stages.updates, 2 * stages.merges
    if not welford:
        return t.per_count + own + updates + merges
    return t.per_count + max(2 + updates + merges if updates else 0, own + merges if merges else 0)


def variance_error(t: RowTerms, moments: Moments, stages: Stages, *, welford: bool) -> Array:
    """Return the bound on the variance: cross terms, increments' roundings, underflow and flushed sums."""
    relative = t.theta(moments.roundings)
    amplified = _UNDERFLOW + t.claim.arithmetic.format.smallest_normal * t.count  # 1.25 + w N
    merges = stages.merges + (0 if welford else stages.updates)  # L
    absolute = t.omega * (1.0 + amplified * merges)
    flushed: Array | float = 0.0
    if t.flush:
        lost = np.sqrt(2.0 * (t.variance + moments.cross)) + (1.0 + merges) * t.flush
        flushed = t.flush * (1.0 + merges + lost)
    # Theta_K v + (1 + Theta_K) (cross + absolute) + omega
    result = relative * t.variance + (1.0 + relative) * (moments.cross + absolute + flushed) + t.omega
    return np.asarray(result * INFLATION)


def guards(t: RowTerms, stages: Stages, *, welford: bool) -> tuple[tuple[Mask, str], ...]:
    """Return the demands that no intermediate overflows and that counts are exact (T12)."""
    count, arithmetic = t.count, t.claim.arithmetic
    limit = 1.0 + t.theta(roundings(t, stages, welford=welford) + _UNCOUNTED)
    error = _largest_error(t, stages, welford=welford)
    merges = stages.merges > 0 or not welford
    # delta**2 n_A n_B / n: at most 4 in the order delta, delta, n_A, f; times N if n_A n_B comes first.
    squares = count * (t.largest_deviation + error) ** 2 * limit * (float(max(count, 4)) if merges else 4.0)
    counted = np.full(t.sigma.shape, count <= 2.0**arithmetic.format.precision)
    listed = [
        (t.below_half(squares, t.largest + error), "a squared difference of means times counts may overflow"),
        (counted, f"counts above 2**{arithmetic.format.precision} are not exact"),
    ]
    if t.claim.chosen(Merged).merge == "pooled":
        pooled = count * (t.largest + error) * limit
        listed.append((t.below_half(pooled), "a mean times its count may overflow"))
    return tuple(listed)


def _imbalance(t: RowTerms, stages: Stages) -> float:
    """Return the most that a partner may outweigh the node it corrects; lanes merging for themselves: any."""
    return float(max(t.count - 1, 1)) if t.claim.per_lane_means else max(stages.imbalance, 1.0)


def _grown(t: RowTerms, local: Local, imbalance: float, stages: int, error: Array) -> Array:
    """Return what equal stages add to an error: `stages` times error <- (1 + growth) error + added."""
    u, sigma, magnitude = t.u, t.sigma, t.mean_magnitude
    root = np.sqrt(imbalance) * (1.0 + 2.0**-52)  # rounded up
    growth = u + (1.0 + u) * (local.beta * root + local.chi)  # lambda
    added = (u + (1.0 + u) * local.chi) * (magnitude + sigma)
    added = added + (1.0 + u) * (local.beta * root * sigma + local.absolute)  # q
    # (e_0 + q / lambda) ((1 + lambda)**stages - 1)
    return np.asarray(error + added / growth) * _power(growth, stages)


def _power(growth: float, stages: int) -> float:
    """Return (1 + growth)**stages - 1, infinite where float64 ends."""
    exponent = stages * np.log1p(growth)
    return float(np.expm1(exponent)) * INFLATION if exponent < _LARGEST_EXPONENT else np.inf


def _largest_error(t: RowTerms, stages: Stages, *, welford: bool) -> Array:
    """Bound the error of every node's mean: the recursion of T7 in the largest norm."""
    wide = replace(t, sigma=2.0 * t.largest_deviation, mean_magnitude=t.largest)
    zero = np.zeros_like(t.sigma)
    # |m - m_A| <= |m_B - m_A| <= 2 (D + error) <= 2 (sigma' + error): imbalance 4 has the root 2.
    updated = _grown(wide, update_step(t) if welford else merge_step(t), 4.0, stages.updates, zero)
    return updated + _grown(wide, merge_step(t), 4.0, stages.merges, updated)
