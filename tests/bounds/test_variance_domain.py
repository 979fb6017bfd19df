"""Where the theorems hold: edges, non-finite rows, overflow, wide types; and what they say there."""

import dataclasses
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.row_statistics import exact_moments, exact_statistics
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.arithmetic.trees.tree import any_order, pairwise, sequential, tile, tree
from verifier.bounds.variance import Reduction, algorithm, algorithms
from verifier.bounds.variance.attack import families, utilisation
from verifier.bounds.variance.bound_of_merges import closed, moments_along_chain, moments_along_trees
from verifier.bounds.variance.options import Merged
from verifier.bounds.variance.row_terms import terms
from verifier.bounds.variance.rstd import rstd_bound


def claim(dtype="float32", **changes):
    """Return a declaration of 4 lanes."""
    return dataclasses.replace(Reduction(arithmetic=ieee(dtype), tree=tree(lanes=4)), **changes)


@pytest.mark.parametrize("name", list(algorithms()))
def test_an_empty_row_has_no_theorem(name):
    bound = algorithm(name).bound(exact_statistics(np.zeros((2, 0))), claim())
    assert bound.covered.tolist() == [False, False]
    assert "empty" in bound.why


@pytest.mark.parametrize("name", list(algorithms()))
def test_no_rows_give_no_bounds(name):
    bound = algorithm(name).bound(exact_statistics(np.zeros((0, 5))), claim())
    assert bound.variance_error.shape == (0,)


@pytest.mark.parametrize("name", list(algorithms()))
def test_only_the_rows_that_are_not_finite_lack_a_theorem(name):
    values = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0], [1.0, np.inf, 3.0]])
    bound = algorithm(name).bound(exact_statistics(values), claim())
    assert bound.covered.tolist() == [True, False, False]
    assert np.isinf(bound.variance_error[1:]).all()
    assert bound.why == "the row holds a NaN or an infinity"


@pytest.mark.parametrize("name", list(algorithms()))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_single_elements_and_constant_rows_are_bounded(name, dtype):
    for values in (np.array([[1.5], [0.0], [-3.0]]), np.repeat([[1.5], [0.0], [-3.0]], 9, axis=1)):
        for declared in (claim(dtype), claim(dtype, tree=any_order()), claim(dtype, tree=sequential())):
            found = utilisation(name, values, declared)
            assert found.covered.all()
            assert found.worst <= 1.0


@pytest.mark.parametrize("name", list(algorithms()))
def test_float64_kernels_are_judged_by_float64_bounds(name):
    random = np.random.default_rng(4)
    for family, values in families(random, 24, 2, FORMATS["float64"]):
        for shift in (0.0, 1e12):
            rows = values + shift
            found = utilisation(name, rows, claim("float64", mean_contraction="none"))
            assert found.worst <= 1.0, family


def test_float64_running_bound_survives_means_that_float64_cannot_hold():
    random = np.random.default_rng(5)
    values = random.normal(size=(4, 64)) + 2.0**50 / 3
    declared = claim("float64", mean_contraction="none")
    found = utilisation("welford", values, declared)
    assert found.covered.all()
    assert found.worst <= 1.0


@pytest.mark.parametrize("name", list(algorithms()))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_simulation_that_overflows_has_no_theorem(name, dtype):
    """Growing rows: from some size on there is no theorem, and before that nothing overflows."""
    held, covered = FORMATS[dtype], []
    base = round_to(held, 1.0 + np.random.default_rng(6).random((1, 40)) * np.array([1.0, -3.0] * 20))
    rounded = RoundedArithmetic(format=held)
    for exponent in range(int(np.log2(held.maximum)) + 1):
        values = round_to(held, base * 2.0**exponent)
        if not np.isfinite(values).all():
            break
        bound = algorithm(name).bound(exact_statistics(values), claim(dtype))
        mean, variance = algorithm(name).simulate(rounded, values, claim(dtype))
        covered.append(bool(bound.covered[0]))
        if bound.covered[0]:
            assert np.isfinite(mean).all()
            assert np.isfinite(variance).all()
    assert covered[0]
    assert not covered[-1]


def test_counts_that_a_format_cannot_hold_have_no_theorem():
    values = np.zeros((1, 4096))
    half = claim("float16", tree=pairwise())
    assert algorithm("two_pass").bound(exact_statistics(values), half).covered.all()
    bound = algorithm("welford").bound(exact_statistics(values), half)
    assert not bound.covered.any()
    assert "2**11" in bound.why
    inverse = claim("float16", tree=pairwise(), divide_by_n="reciprocal")
    many = exact_statistics(np.zeros((1, 2**15)))
    assert "subnormal" in algorithm("two_pass").bound(many, inverse).why


def test_a_declared_depth_serves_merges_too():
    random = np.random.default_rng(8)
    statistics = exact_statistics(np.float32(random.normal(size=(2, 4096)) + 100).astype(np.float64))
    bounds = {
        name: algorithm("welford").bound(statistics, claim(tree=declared)).variance_error
        for name, declared in (("tile", tile(block=1024, threads=256)), ("any", any_order()))
    }
    assert (bounds["tile"] * 100 < bounds["any"]).all()


def test_lanes_with_statistics_of_their_own_are_apart():
    statistics = exact_statistics(np.array([[1.0, 2.0, 4.0, 9.0, 7.0]]))
    own = algorithm("welford").bound(statistics, claim(per_lane_means=True))
    shared = algorithm("welford").bound(statistics, claim())
    assert (own.mean_spread == 2.0 * own.mean_error).all() or (own.mean_spread > own.mean_error).all()
    assert (shared.mean_spread == 0.0).all()
    assert (own.variance_error >= shared.variance_error).all()


def test_mixed_contraction_spreads_a_product_and_no_quotient():
    statistics = exact_statistics(np.array([[1.0, 2.0, 4.0]]))
    spread = {
        (how, contraction): algorithm("two_pass")
        .bound(statistics, claim(divide_by_n=how, mean_contraction=contraction))
        .mean_spread[0]
        for how in ("division", "reciprocal")
        for contraction in ("none", "uniform", "mixed")
    }
    assert [key for key, value in spread.items() if value > 0] == [("reciprocal", "mixed")]


def exact_rstd(variance: Fraction, eps: float) -> mpmath.mpf:
    """Return (variance + eps)**-1/2 to 60 digits."""
    t = variance + Fraction(eps)
    with mpmath.workdps(60):
        return 1 / mpmath.sqrt(mpmath.mpf(t.numerator) / t.denominator)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["two_pass", "welford", "textbook", "rms"])
def test_rstd_stays_inside_its_bound(name, dtype):
    random, held = np.random.default_rng(11), FORMATS[dtype]
    rounded, module, judged = RoundedArithmetic(format=held), algorithm(name), 0
    for family, values in families(random, 16, 3, held):
        statistics = exact_statistics(values)
        declared = claim(dtype)
        moments = module.bound(statistics, declared)
        _, variance = module.simulate(rounded, values, declared)
        for eps in (1e-5, 1.0, 1e-12):
            stored = float(round_to(held, np.array(eps)))
            root = rounded.divide(np.ones(3), rounded.square_root(rounded.add(variance, np.array(stored))))
            eps_error = abs(stored - eps) / eps * (1 + 2.0**-50)
            bound = rstd_bound(statistics, moments, eps, eps_error, declared.arithmetic)
            for i in np.flatnonzero(bound.covered):
                exact = exact_moments(values[i])[1 if module.CENTRED else 2]
                target = exact_rstd(exact, eps)
                assert abs(mpmath.mpf(float(root[i])) - target) <= bound.relative_error[i] * target, family
                judged += 1
    assert judged > 40


def test_rstd_of_a_vanishing_textbook_variance_has_no_theorem():
    values = np.float32(np.random.default_rng(2).normal(size=(1, 64)) + 1e5).astype(np.float64)
    statistics = exact_statistics(values)
    moments = algorithm("textbook").bound(statistics, claim())
    bound = rstd_bound(statistics, moments, 1e-5, 0.0, claim().arithmetic)
    assert not bound.covered.any()
    assert bound.why == "the variance error reaches variance + eps"


def test_rstd_of_a_constant_row_is_bounded_where_the_variance_cannot_be_negative():
    statistics = exact_statistics(np.full((1, 64), 3e4))
    bounds = {}
    for name in ("two_pass", "two_pass_corrected"):
        declared = claim(divide_by_n="reciprocal", tree=sequential(), mean_contraction="none")
        moments = algorithm(name).bound(statistics, declared)
        bounds[name] = rstd_bound(statistics, moments, 1e-5, 0.0, declared.arithmetic)
    assert bounds["two_pass"].covered.all()
    assert 0.5 < bounds["two_pass"].relative_error[0] < 1.0


def test_rstd_without_eps_of_a_constant_row_has_no_theorem():
    statistics = exact_statistics(np.full((1, 8), 2.0))
    moments = algorithm("two_pass").bound(statistics, claim())
    assert not rstd_bound(statistics, moments, 0.0, 0.0, claim().arithmetic).covered.any()


def test_rstd_of_flushed_sums_needs_a_normal_variance():
    statistics = exact_statistics(np.full((1, 8), 1e-25))
    flushing = claim(arithmetic=ieee("float32", flush_to_zero=True))
    moments = algorithm("two_pass").bound(statistics, flushing)
    tiny = rstd_bound(statistics, moments, 1e-40, 0.0, flushing.arithmetic)
    usual = rstd_bound(statistics, moments, 1e-5, 0.0, flushing.arithmetic)
    assert not tiny.covered.any()
    assert usual.covered.all()


def test_welford_in_an_unknown_order_counts_every_step_as_an_update():
    statistics = exact_statistics(np.array([[1.0, 2.0, 4.0, 9.0, 7.0]]) + 1000.0)
    t = terms(statistics, claim(tree=any_order()))
    unknown = closed(t, any_order().stages(5), welford=True)
    merges = closed(t, any_order().stages(5), welford=False)
    more = unknown.mean_error * (t.sigma + unknown.mean_error)
    assert (unknown.cross >= merges.cross + more * (1 - 2.0**-40)).all()


@pytest.mark.parametrize("merge", ["increment", "weighted", "pooled"])
@pytest.mark.parametrize("welford", [False, True])
def test_a_chain_taken_at_once_is_the_chain_taken_step_by_step(welford, merge):
    random = np.random.default_rng(13)
    for count in (2, 3, 40, 500):
        for kappa in (0.0, 1e3):
            values = np.float32(random.normal(size=(3, count)) + kappa).astype(np.float64)
            t = terms(exact_statistics(values), claim(tree=sequential(), options=Merged(merge=merge)))
            stages = sequential().stages(count)
            slow = moments_along_trees(t, sequential().orders(count), welford=welford)
            (fast,) = moments_along_chain(t, stages, welford=welford)
            assert fast.roundings == slow.roundings
            for one, other in ((fast.mean_error, slow.mean_error), (fast.cross, slow.cross)):
                assert (other <= one * (1 + 2.0**-30)).all()  # two evaluations, each rounded up
                assert (one <= other * (1 + 2.0**-20)).all()  # three passes end near the fixed point


@pytest.mark.parametrize("name", list(algorithms()))
def test_a_mean_that_overflows_the_format_of_its_cast_has_no_theorem(name):
    values = np.array([[1e5, 1.5e5, 2e5], [1.0, 2.0, 3.0]])
    plain, cast = (
        algorithm(name).bound(exact_statistics(values), claim(mean_cast=held)) for held in (None, "float16")
    )
    assert plain.covered.tolist() == [True, True]
    assert cast.covered.tolist() == [False, True]
    assert cast.why == "the mean may overflow float16"
