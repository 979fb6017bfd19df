"""Each bound is the formula that docs/explanation/bounds.md proves, written down a second time.

Errors never reach the bounds of long rows, so that attacks alone would not notice a smaller constant;
a format of 8 bits makes every term of a formula weigh more than what its evaluation may add.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from mpmath import mp, mpf

from verifier.arithmetic.formats import Arithmetic
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import pairwise, tree
from verifier.bounds.variance import Reduction, algorithm
from verifier.bounds.variance.options import CorrectedMean, Merged
from verifier.bounds.variance.rstd import rstd_bound
from verifier.bounds.variance.tiny_formats import tiny

ROW = [3, -1, 4, 1, 5, 9, 2]
N = len(ROW)
HELD = tiny(8, -4)
U, OMEGA, SMALLEST = mpf(2) ** -8, mpf(2) ** -12, mpf(2) ** -4
DEPTH = 3
EVALUATION = mpf(2) ** -24
"""What rounding the formula upwards may add, relative: dozens of factors of 1 + 2**-32."""

MEAN = Fraction(sum(ROW), N)
VARIANCE = sum((x - MEAN) ** 2 for x in ROW) / N
DEVIATION = sum(abs(x - MEAN) for x in ROW) / N
SQUARE = Fraction(sum(x * x for x in ROW), N)
ABSOLUTE = Fraction(sum(map(abs, ROW)), N)


def theta(roundings):
    return (1 + U) ** mpf(roundings) - 1


def real(fraction):
    return mpf(fraction.numerator) / fraction.denominator


v, mu, A1, A2, D1 = map(real, (VARIANCE, abs(MEAN), ABSOLUTE, SQUARE, DEVIATION))
SHIFT = real(abs(MEAN - ROW[0]))


def per_count(claim):
    arithmetic = claim.arithmetic
    return arithmetic.division if claim.divide_by_n == "division" else arithmetic.reciprocal + 1


def omega(claim):
    """Half a spacing of the subnormal numbers for each rounding of the operation that errs most."""
    return OMEGA * max(1, claim.arithmetic.division, claim.arithmetic.reciprocal)


def error_of_mean(claim):
    return theta(DEPTH + per_count(claim)) * A1 + omega(claim)


def spread(claim):
    correct = claim.divide_by_n == "division" and claim.arithmetic.division == 1
    if claim.mean_contraction == "none" or correct:
        return mpf(0)
    return U * (mu + error_of_mean(claim)) + omega(claim)


def underflow(claim):
    return omega(claim) * (2 + theta(DEPTH + per_count(claim)))


def from_means(claim, square, mean_square, distance, e):
    bracket = theta(DEPTH + square + per_count(claim)) * mean_square + underflow(claim)
    return (1 + U) * (bracket + 2 * distance * e + e**2 + U * (distance + e) ** 2 + omega(claim)) + U * v


def from_sums(claim, made, mean_square, mean_absolute):
    last = theta(1 + per_count(claim))
    bracket = theta(DEPTH + 1 + made) * mean_square
    bracket += theta(2 * DEPTH + 1 + made + per_count(claim)) * mean_absolute**2
    bracket += omega(claim) * (1 + theta(DEPTH)) + omega(claim) * (2 + last) / N
    return (1 + last) * bracket + last * v + omega(claim)


def textbook(claim):
    return from_means(claim, 1, A2, mu, error_of_mean(claim))


def textbook_sums(claim):
    return from_sums(claim, 0, A2, A1)


def two_pass(claim):
    e, k = error_of_mean(claim), theta(DEPTH + 3 + per_count(claim))
    return k * v + (1 + k) * (spread(claim) * D1 + e**2) + underflow(claim)


def deviations(claim):
    e, tau = error_of_mean(claim), spread(claim)
    apart = tau * D1 + tau**2 / 4
    square = v + apart + e**2
    return e, apart, square, min(mp.sqrt(square), D1 + e)


def two_pass_corrected(claim):
    e, apart, square, a = deviations(claim)
    R, last = theta(DEPTH + 1) * a, theta(1 + per_count(claim))
    bracket = theta(DEPTH + 3) * square + apart + 2 * e * R + R**2 + last * (e + R) ** 2
    bracket += omega(claim) * (1 + theta(DEPTH)) + omega(claim) * (2 + last) / N
    return (1 + last) * bracket + last * v + omega(claim)


def two_pass_corrected_mean(claim):
    e, apart, square, a = deviations(claim)
    R = theta(DEPTH + 1 + per_count(claim)) * a + omega(claim)
    bracket = theta(DEPTH + 3 + per_count(claim)) * square + apart + underflow(claim)
    return (1 + U) * (bracket + 2 * e * R + R**2 + U * (e + R) ** 2 + omega(claim)) + U * v


def shifted_terms(claim):
    square = v + SHIFT**2
    absolute = min(mp.sqrt(square), D1 + SHIFT)
    return square, absolute, theta(DEPTH + 1 + per_count(claim)) * absolute + omega(claim)


def shifted(claim):
    square, _, e = shifted_terms(claim)
    return from_means(claim, 3, square, SHIFT, e)


def shifted_sums(claim):
    square, absolute, _ = shifted_terms(claim)
    return from_sums(claim, 2, square, absolute)


def rms(claim):
    return theta(DEPTH + 1 + per_count(claim)) * A2 + underflow(claim)


CLOSED = (
    textbook,
    textbook_sums,
    two_pass,
    two_pass_corrected,
    two_pass_corrected_mean,
    shifted,
    shifted_sums,
    rms,
)


def claims(named):
    for division, how, contraction in product((1.0, 5.0), ("division", "reciprocal"), ("none", "mixed")):
        arithmetic = Arithmetic(format=HELD, division=division, reciprocal=1.0 + division / 5)
        yield Reduction(arithmetic=arithmetic, tree=named, divide_by_n=how, mean_contraction=contraction)


def check(found, formula, what):
    assert formula <= mpf(float(found)) <= formula * (1 + EVALUATION), (what, found, formula)


ROWS = exact_statistics(np.array([ROW], dtype=np.float64))


@pytest.mark.parametrize("formula", CLOSED, ids=lambda f: f.__name__)
def test_the_closed_bounds_are_their_formulas(formula):
    assert pairwise().depth(N) == DEPTH
    for claim in claims(pairwise()):
        bound = algorithm(formula.__name__).bound(ROWS, claim)
        assert bound.covered.all()
        check(bound.variance_error[0], formula(claim), claim)
        if formula in (shifted, shifted_sums):
            check(bound.mean_error[0], (1 + U) * shifted_terms(claim)[2] + U * mu, claim)
        elif formula is not rms:
            check(bound.mean_error[0], error_of_mean(claim), claim)


def test_the_corrected_mean_is_its_formula():
    for claim in claims(pairwise()):
        _, _, _, a = deviations(claim)
        R = theta(DEPTH + 1 + per_count(claim)) * a + omega(claim)
        bound = algorithm("two_pass_corrected_mean").bound(
            ROWS, replace(claim, options=CorrectedMean(corrects_mean=True))
        )
        check(bound.mean_error[0], (1 + U) * (R + spread(claim)) + U * mu, claim)


def merged(claim, *, welford, updates, merges, imbalance):
    """Return T7's bounds of mean and variance."""
    arithmetic, sigma = claim.arithmetic, mp.sqrt(v)
    share = max(arithmetic.division, arithmetic.reciprocal + 1)
    merge = (
        (theta(2 + share), 0, 2) if claim.chosen(Merged).merge == "increment" else (0, theta(1 + share), 2)
    )
    update = (theta(max(1 + arithmetic.division, 2 + arithmetic.reciprocal)), 0, 1) if welford else merge

    def grown(error, stages, step, ratio):
        beta, chi, h = step
        growth = U + (1 + U) * (beta * mp.sqrt(ratio) + chi)
        q = (U + (1 + U) * chi) * (mu + sigma) + (1 + U) * (beta * mp.sqrt(ratio) * sigma + h * omega(claim))
        for _ in range(stages):
            error = (1 + growth) * error + q
        return error

    within = grown(mpf(0), updates, update, 1)
    error = grown(within, merges, merge, imbalance)
    cross = 2 * error * sigma + 2 * error**2 + (within * (sigma + within) if welford else 0)
    met = (
        max(2 + updates + 2 * merges, 5 + share + 2 * merges) if welford else 5 + share + updates + 2 * merges
    )
    levels = merges if welford else updates + merges
    k = theta(met + per_count(claim))
    absolute = omega(claim) * (1 + (mpf("1.25") + SMALLEST * N) * levels)
    return error, k * v + (1 + k) * (cross + absolute) + omega(claim)


@pytest.mark.parametrize("merge", ["increment", "weighted", "pooled"])
@pytest.mark.parametrize("name", ["welford", "chan"])
def test_the_closed_bound_of_merges_is_its_formula(name, merge):
    lanes = tree(lanes=2, extra_depth=1)  # further additions of unknown place leave T8 out
    for claim in claims(lanes):
        wanted = replace(claim, options=Merged(merge=merge))
        bound = algorithm(name).bound(ROWS, wanted)
        error, variance = merged(wanted, welford=name == "welford", updates=3, merges=2, imbalance=N - 1)
        check(bound.mean_error[0], error, claim)
        check(bound.variance_error[0], variance, claim)


@pytest.mark.parametrize("eps_error", [0.0, 2.0**-10])
def test_the_bound_of_rstd_is_its_formula(eps_error):
    eps, claim = 0.5, next(claims(pairwise()))
    bound = algorithm("two_pass").bound(ROWS, claim)
    found = rstd_bound(ROWS, bound, eps, eps_error, claim.arithmetic)
    t, moved = v + eps, mpf(float(bound.variance_error[0])) + eps_error * eps
    share = (moved + U * (t + moved)) / t
    own = claim.arithmetic.reciprocal_square_root * U
    check(found.relative_error[0], ((1 - share) ** mpf("-0.5") - 1) * (1 + own) + own, "rstd")
    narrow = tiny(5, -4)
    found = rstd_bound(ROWS, bound, eps, eps_error, claim.arithmetic, held=narrow)
    lost = moved + U * (t + moved)
    share = (lost + narrow.u * (t + lost) + narrow.omega) / t
    own = (1 + own) * (1 + mpf(narrow.u)) / (1 - mpf(narrow.u)) - 1
    check(found.relative_error[0], ((1 - share) ** mpf("-0.5") - 1) * (1 + own) + own, "rstd in steps")


def test_flushed_bounds_are_their_formulas():
    w, sigma = SMALLEST, mp.sqrt(v)
    for how in ("division", "reciprocal"):
        flushing = Arithmetic(format=HELD, flush_to_zero=True)
        claim = Reduction(arithmetic=flushing, tree=pairwise(), divide_by_n=how, mean_contraction="none")
        sums = theta(DEPTH + per_count(claim))
        lost = 2 * w * (1 + sums) + w
        e = sums * (A1 + w) + w + w * (1 + sums)
        k = theta(DEPTH + 3 + per_count(claim))
        wanted = k * (sigma + w) ** 2 + (1 + k) * e**2 + w**2 + lost + 2 * w * sigma + w**2
        bound = algorithm("two_pass").bound(ROWS, claim)
        check(bound.mean_error[0], e + w, claim)
        check(bound.variance_error[0], wanted, claim)
        read = mp.sqrt(A2) + w
        wanted = theta(DEPTH + 1 + per_count(claim)) * read**2 + lost + 2 * w * read + w**2
        check(algorithm("rms").bound(ROWS, claim).variance_error[0], wanted, claim)
