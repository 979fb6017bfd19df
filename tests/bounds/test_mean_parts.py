"""A mean that is kept as two numbers: what its theorem says of both, and of the form that subtracts them."""

from dataclasses import replace

import numpy as np
import pytest
from simulated_kernel import simulate, utilisation
from test_affine_bounds import declared, truth_of
from test_variance_exhaustive import CASES, claims

from strategies.values import Values
from verifier.arithmetic.formats import Arithmetic
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import algorithm, two_pass_corrected_mean
from verifier.bounds.variance.tiny_formats import all_rows, grid, statistics_of_small, tiny
from verifier.bounds.why_none import NO_PARTS
from verifier.cases.recipe import Recipe

NAME = "two_pass_corrected_mean"


def worst_of_parts(values, claim, *, of=lambda parts: parts.low_error):
    """Return the largest |h + l - mean| / bound of rows of small dyadic numbers, and how many have one."""
    rounded = RoundedArithmetic(format=claim.arithmetic.format, flush_to_zero=claim.arithmetic.flush_to_zero)
    bound = algorithm(NAME).bound(statistics_of_small(values), claim)
    high, low = two_pass_corrected_mean.simulate_parts(rounded, rounded.read(values), claim)
    count = values.shape[1]
    error = np.abs(count * (high + low) - values.sum(axis=1))  # exact: few bits
    limit = count * of(bound.parts)
    ratio = np.where(limit > 0, error / np.where(limit > 0, limit, 1.0), np.where(error > 0, np.inf, 0.0))
    return float(ratio[bound.covered].max(initial=0.0)), int(bound.covered.sum())


@pytest.mark.parametrize("flush", [False, True])
def test_no_row_of_a_tiny_format_loses_more_of_its_mean_than_the_bound_of_the_second_number(flush):
    worst, covered = 0.0, 0
    for number, (precision, minimum, lowest, binades, count) in enumerate(CASES):
        held = tiny(precision, minimum)
        values = all_rows(grid(held, lowest, binades), count)
        for claim in claims(NAME, Arithmetic(format=held, flush_to_zero=flush), number):
            found, many = worst_of_parts(values, claim)
            worst, covered = max(worst, found), covered + many
    assert covered > 10_000
    assert (0.2 if flush else 0.4) < worst <= 1.0


def test_the_second_number_loses_more_than_its_own_rounding():
    """A bound without the roundings of the deviations and of their sum is refuted."""
    held = tiny(4, -3)
    values = all_rows(grid(held, -2, 3), 3)
    claim = next(claims(NAME, Arithmetic(format=held), 0))
    found, _ = worst_of_parts(values, claim, of=lambda parts: parts.low_error * 0.25)
    assert found > 1.0


def far_from_zero(strength, **claim):
    """Return the truth of rows whose mean is about 10**strength standard deviations."""
    subject = declared("layer_norm", mean_contraction="none", divide_by_n="division", **claim)
    recipe = Recipe(
        rows=6, columns=130, input=Values(hazard="cancellation", strength=strength, seed=1),
        weight=Values(seed=2), bias=None, grad_output=Values(seed=3),
    )  # fmt: skip
    return truth_of(subject, "float32", "float32", recipe)


def largest_bound(truth, name):
    bounded = truth.bounds[name]
    assert bounded.covered.all()
    return float(bounded.bound.max())


@pytest.mark.parametrize("name", ["output", "grad_input", "grad_weight"])
def test_the_bound_of_the_compensated_form_does_not_grow_with_the_mean(name):
    near, far = (largest_bound(far_from_zero(s, formula="compensated"), name) for s in (0, 4))
    assert far < 1.5 * near
    corrected = largest_bound(far_from_zero(4, variance=NAME), name)
    assert corrected > 10 * far  # the same algorithm, its mean rounded to one number before it is subtracted


@pytest.mark.parametrize("strength", [0, 4, 6])
def test_the_compensated_form_stays_inside_and_one_rounded_mean_does_not(strength):
    truth = far_from_zero(strength, formula="compensated")
    assert max(utilisation(truth, simulate(truth)).values()) <= 1.0
    other = simulate(far_from_zero(strength, variance=NAME))
    found = {n: w for n, w in utilisation(truth, other).items() if n in {"output", "grad_input"}}
    assert (min(found.values()) > 1.0) == (strength > 0)


def test_an_algorithm_without_two_numbers_gives_the_form_no_bound():
    truth = far_from_zero(0, formula="compensated", variance="two_pass")
    for name in ("output", "grad_input"):
        assert not truth.bounds[name].covered.any()
        assert NO_PARTS in "; ".join(truth.bounds[name].reasons)


def test_several_means_leave_the_second_number_their_spread():
    """Products that are contracted in some uses: each part of the bound carries how far they are apart."""
    held = tiny(6, -4)
    values = all_rows(grid(held, 0, 2), 2)
    statistics = statistics_of_small(values)
    plain, mixed = (
        replace(
            next(claims(NAME, Arithmetic(format=held), 0)), divide_by_n="reciprocal", mean_contraction=word
        )
        for word in ("none", "mixed")
    )
    of = [algorithm(NAME).bound(statistics, claim).parts for claim in (plain, mixed)]
    for field in ("high_spread", "low_error"):
        before, after = (getattr(parts, field) for parts in of)
        assert (after >= before).all()
    assert (of[0].high_spread == 0).all()
