"""Rows that once refuted a theorem, or that a theorem must leave out."""

import dataclasses

import numpy as np
import pytest

from verifier import subject
from verifier.arithmetic.formats import ieee
from verifier.arithmetic.row_statistics import exact_moments, exact_statistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.arithmetic.trees.tree import Stages, Step, Tree, any_order, pairwise, sequential, tree
from verifier.bounds.variance import Reduction, algorithm, rms, row_terms, two_pass_corrected_mean
from verifier.bounds.variance.attack import utilisation
from verifier.bounds.variance.bound_of_merges import closed, variance_error
from verifier.bounds.variance.options import CorrectedMean

FIRST = [1.0009182691574097, 1.0019282102584839, 1.0009098052978516]
SECOND = [2.0014724731445312, 2.0014712810516357, 2.0014712810516357]
FUSED = [float.fromhex(h) for h in ("0x1.000ffe0p+3", "-0x1.fffff20p-10", "-0x1.88fe5e0p-2")]


def mixed(**changes):
    """Return a sequential fp32 declaration whose shared products are contracted in some uses."""
    made = Reduction(
        arithmetic=ieee("float32"), tree=sequential(), divide_by_n="reciprocal", mean_contraction="mixed"
    )
    return dataclasses.replace(made, **changes)


def against_one_mean(name, row):
    """Return the error of a mixed contraction over the bounds of one mean, and of several."""
    values = np.array([row])
    statistics = exact_statistics(values)
    several = algorithm(name).bound(statistics, mixed()).variance_error
    one = algorithm(name).bound(statistics, mixed(mean_contraction="none")).variance_error
    ratio = utilisation(name, values, mixed()).variance
    return float((ratio * several / one)[0]), float(ratio[0])


def test_mixed_contraction_refutes_the_two_pass_bound_of_one_mean():
    one, several = against_one_mean("two_pass", FIRST)
    assert 146 < one < 148
    assert several <= 1.0


@pytest.mark.parametrize("row", [FIRST, SECOND])
def test_mixed_contraction_refutes_the_corrected_bound_of_one_mean(row):
    one, several = against_one_mean("two_pass_corrected", row)
    assert one > 100
    assert several <= 1.0


@pytest.mark.parametrize("name", ["two_pass", "two_pass_corrected"])
def test_a_division_that_nothing_is_said_of_may_be_a_product_contracted_in_some_uses(name):
    statistics, done = exact_statistics(np.array([FIRST])), utilisation(name, np.array([FIRST]), mixed())
    bounds = {
        how: float(algorithm(name).bound(statistics, mixed(divide_by_n=how)).variance_error[0])
        for how in ("division", "reciprocal", "either")
    }
    error = float(done.variance[0]) * bounds["reciprocal"]
    assert bounds["division"] < error <= bounds["either"]


def test_a_subject_that_says_nothing_of_its_division_is_bounded_for_both_ways():
    settings = {"op": "layer_norm", "language": "triton", "variance": "two_pass", "dtypes": ("float64",)}
    silent = subject(**settings)(lambda x, eps: x)
    assert silent.claim.divide_by_n == "either"
    assert "divide_by_n" in silent.claim.assumed
    assert subject(**settings, divide_by_n="division")(silent.function).claim.divide_by_n == "division"


def test_a_fused_chain_of_squares_needs_the_rounding_of_the_first_square():
    values = np.array([FUSED])
    claim = mixed(mean_contraction="uniform", divide_by_n="division")
    found = utilisation("rms", values, claim)
    t = row_terms.terms(exact_statistics(values), claim)
    after = t.squares_depth + t.per_count
    proved = rms.bound(exact_statistics(values), claim).variance_error
    false = t.theta(after) * t.mean_square + t.sum_underflow(after)
    assert found.worst <= 1.0
    assert float((found.variance * proved / false)[0]) > 1.16


def test_half_precision_merge_of_opposite_halves_overflows_and_has_no_theorem():
    values = np.repeat([[1.0, -1.0]], 256, axis=1)
    claim = Reduction(arithmetic=ieee("float16"), tree=tree(chunks=2))
    statistics = exact_statistics(values)
    bound = algorithm("welford").bound(statistics, claim)
    assert not bound.covered.any()
    assert "may overflow" in bound.why
    assert algorithm("two_pass").bound(statistics, claim).covered.all()


def test_half_precision_sum_form_of_many_ones_overflows_and_has_no_theorem():
    statistics = exact_statistics(np.ones((1, 512)))
    claim = Reduction(arithmetic=ieee("float16"), tree=pairwise())
    bound = algorithm("textbook_sums").bound(statistics, claim)
    assert not bound.covered.any()
    assert "squared sum" in bound.why
    assert algorithm("textbook").bound(statistics, claim).covered.all()


def outlier_tree(imbalance):
    """Return the tree that merges a block of the other elements into the first."""

    def steps_of(n):
        yield from (Step(left=s.left + 1, right=s.right + 1, update=False) for s in pairwise().steps(n - 1))
        yield Step(left=np.array([0]), right=np.array([1]), update=False)

    stages = Stages(updates=0, merges=17, imbalance=imbalance)
    return Tree(kind="custom", depth_of=lambda _: 17, steps_of=steps_of, stages_of=lambda _: stages)


def test_an_outlier_merged_with_a_block_of_zeros_needs_the_imbalance():
    count = 2**16 + 1
    values = np.zeros((1, count))
    ratios = {}
    for imbalance in (1.0, float(count - 1)):
        claim = Reduction(
            arithmetic=ieee("float32"),
            tree=outlier_tree(imbalance),
            divide_by_n="reciprocal",
            mean_contraction="none",
        )
        worst = 0.0
        for first in (1.25, 1.6369616985321045, 1.5118216276168823):
            values[0, 0] = np.float32(first)
            t = row_terms.terms(exact_statistics(values), claim)
            proof = closed(t, claim.tree.stages(count), welford=False)
            bound = variance_error(t, proof, claim.tree.stages(count), welford=False)
            mean, variance = algorithm("chan").simulate(
                RoundedArithmetic(format=t.claim.arithmetic.format), values, claim
            )
            exact = exact_moments(values[0])
            worst = max(
                worst,
                abs(float(mean[0] - exact[0])) / proof.mean_error[0],
                abs(float(variance[0] - exact[1])) / bound[0],
            )
        ratios[imbalance] = worst
    assert ratios[1.0] > 1.5
    assert ratios[float(count - 1)] <= 1.0


def test_a_division_by_one_that_is_an_ulp_off_refutes_welford():
    """A first update from (0, 0, 0) needs x / 1 = x, or a constant row gains a variance."""
    values = np.full((1, 64), 1.5)
    claim = Reduction(arithmetic=ieee("float32"), tree=sequential(), mean_contraction="none")
    bound = algorithm("welford").bound(exact_statistics(values), claim)
    after_first = np.float32(1.5) * (1 + 2.0**-23)
    squares = np.float32(1.5) * np.float32(abs(1.5 - after_first))  # delta * (x - mean) of the first update
    assert squares / 64 > bound.variance_error[0]


def test_uniform_contraction_still_allows_the_added_mean_to_be_rounded(monkeypatch):
    """Found by the families at fp16, N = 3: the mean of mean + mean(d) is another number than in d."""
    values = np.array([[1.0009765625, 1.0009765625, 1.0]])
    claim = Reduction(
        arithmetic=ieee("float16"),
        tree=tree(lanes=16),
        divide_by_n="reciprocal",
        mean_contraction="uniform",
        options=CorrectedMean(corrects_mean=True),
    )
    assert utilisation("two_pass_corrected_mean", values, claim).worst <= 1.0
    monkeypatch.setattr(two_pass_corrected_mean, "product_spread", lambda *_: np.zeros(1))
    assert utilisation("two_pass_corrected_mean", values, claim).mean[0] > 1.3


def test_a_missing_degree_of_freedom_is_seen_with_a_declared_tree_only():
    random = np.random.default_rng(3)
    values = np.float32(random.normal(size=(2, 8192))).astype(np.float64)
    statistics = exact_statistics(values)
    seen = {}
    for named, declared in (("lanes", tree(lanes=256)), ("any", any_order())):
        claim = Reduction(arithmetic=ieee("float32"), tree=declared, mean_contraction="none")
        bound = algorithm("two_pass").bound(statistics, claim)
        wrong = statistics.variance_lower / (8192 - 1)  # the error of dividing by N - 1
        seen[named] = bool((wrong > bound.variance_error).all())
    assert seen == {"lanes": True, "any": False}
