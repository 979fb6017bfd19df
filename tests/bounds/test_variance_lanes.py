"""Lanes that merge for themselves have means and variances of their own, all inside the bounds."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.row_statistics import exact_moments, exact_statistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.arithmetic.trees.tree import tree
from verifier.bounds.variance import Reduction, algorithm, two_pass
from verifier.bounds.variance.attack import families
from verifier.bounds.variance.options import Merged
from verifier.bounds.variance.row_terms import terms
from verifier.bounds.variance.simulate_merges import Merging

LANES = 8


def declared(dtype, contraction, merge):
    return Reduction(
        arithmetic=ieee(dtype),
        tree=tree(lanes=LANES),
        mean_contraction=contraction,
        divide_by_n="reciprocal",
        per_lane_means=True,
        options=Merged(merge=merge),
    )


def lanes_of(values, claim, distances):
    """Return mean and variance of every lane, (rows, lanes): a butterfly by exclusive or, own part first."""
    merging = Merging(rounded=RoundedArithmetic(format=claim.arithmetic.format), claim=claim, welford=True)
    count = values.shape[1]
    means, squares = values[:, :LANES].copy(), np.zeros((len(values), LANES))
    counts = np.ones(LANES)
    for start in range(LANES, count, LANES):
        x = values[:, start : start + LANES]
        own = np.arange(x.shape[1])
        means[:, own], squares[:, own] = merging.update((means[:, own], squares[:, own]), x, counts[own])
        counts[own] += 1
    for distance in distances:
        partner = np.arange(LANES) ^ distance
        merged = merging.merge(
            (means, squares), (means[:, partner], squares[:, partner]), counts, counts[partner]
        )
        means, squares = merged
        counts = counts + counts[partner]
    inverse = merging.rounded.divide(np.array(1.0), np.array(float(count)))
    return means, merging.rounded.multiply(squares, np.broadcast_to(inverse, squares.shape))


@pytest.mark.parametrize("distances", [(1, 2, 4), (4, 2, 1)], ids=["near", "far"])
@pytest.mark.parametrize("merge", ["increment", "weighted", "pooled"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_lane_of_a_butterfly_stays_inside(dtype, merge, distances):
    random, different = np.random.default_rng(3), 0
    for count in (LANES, 13, 40):
        for family, values in families(random, count, 2, FORMATS[dtype]):
            # Uncontracted weighted sums commute: their lanes agree.
            claim = declared(dtype, "uniform", merge)
            bound = algorithm("welford").bound(exact_statistics(values), claim)
            means, variances = lanes_of(values, claim, distances)
            for i in np.flatnonzero(bound.covered):
                mean, variance, _ = exact_moments(values[i])
                assert max(abs(Fraction(m) - mean) for m in means[i]) <= bound.mean_error[i], family
                assert max(abs(Fraction(v) - variance) for v in variances[i]) <= bound.variance_error[i], (
                    family
                )
                spread = means[i].max() - means[i].min()
                assert spread <= bound.mean_spread[i]
                different += spread > 0
    assert (different > 5) == (merge != "pooled")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_two_pass_with_any_admissible_means_stays_inside(dtype):
    """T3n with a mean of its own for each element, anywhere within the mean's error."""
    random, held = np.random.default_rng(5), FORMATS[dtype]
    rounded, worst = RoundedArithmetic(format=held), 0.0
    claim = Reduction(arithmetic=ieee(dtype), tree=tree(lanes=4), per_lane_means=True)
    one = dataclasses.replace(claim, per_lane_means=False, mean_contraction="none")
    for count in (4, 16, 64):
        for _, values in families(random, count, 3, held):
            statistics = exact_statistics(values)
            bound = two_pass.bound(statistics, claim)
            t = terms(statistics, claim)
            sign = np.sign(values - statistics.mean[:, None])
            for choice in (sign, -sign, random.choice([-1.0, 1.0], size=values.shape)):
                wanted = statistics.mean[:, None] + choice * t.mean_error[:, None]
                inward = np.nextafter(np.float32(wanted) if dtype == "float32" else np.float16(wanted), 0)
                means = np.where(
                    np.abs(inward - statistics.mean[:, None]) <= t.mean_error[:, None], inward, 0.0
                )
                means = np.where(means == 0.0, rounded.of(statistics.mean)[:, None], means)
                inside = (np.abs(means - statistics.mean[:, None]) <= t.mean_error[:, None]).all(axis=1)
                squares = rounded.multiply(*[rounded.subtract(values, means)] * 2)
                for i in np.flatnonzero(bound.covered & inside):
                    lanes = [squares[i, lane::4] for lane in range(4)]
                    parts = [add_in_order(rounded, lane) for lane in lanes]
                    total = rounded.add(rounded.add(parts[0], parts[1]), rounded.add(parts[2], parts[3]))
                    found = rounded.divide(total, np.array(float(count)))
                    error = abs(Fraction(float(found)) - exact_moments(values[i])[1])
                    assert error <= bound.variance_error[i]
                    single = two_pass.bound(statistics, one).variance_error[i]
                    worst = max(worst, float(error / Fraction(float(single))))
    assert worst > 1.0, "no choice of means showed that several need T3n"


def add_in_order(rounded, values):
    """Return the rounded sum of one lane."""
    total = values[0]
    for value in values[1:]:
        total = rounded.add(total, value)
    return np.asarray(total)
