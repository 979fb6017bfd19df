"""Bounds know the range of every format: what a sum, a constant, a count or a stored value may leave."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rounded_ops import declared, truth_of

from strategies.values import Values
from verifier.arithmetic.formats import FORMATS, Format, ieee, theta
from verifier.arithmetic.simulated import round_to
from verifier.arithmetic.trees.tree import pairwise, sequential
from verifier.bounds.affine import AffineNumbers
from verifier.bounds.why_none import NOT_FINITE, OVERFLOW, VANISHES
from verifier.cases.recipe import Recipe


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


def numbers(accumulates, shape, *, how="division", flush=False, **dtypes):
    return AffineNumbers(
        arithmetic=ieee(accumulates, flush_to_zero=flush),
        rows=shape[0],
        columns=shape[1],
        row_tree=pairwise(),
        column_tree=sequential(),
        divide_by_n=how,
        contraction="none",
        dtypes=dtypes,
        entries=shape[1],
    )


def all_numbers(name):
    """Return every finite number of a 16-bit format."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    values = bits.view(getattr(torch, name)).double()
    return values[torch.isfinite(values)].tolist()


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_format_holds_another_if_it_represents_all_of_its_numbers(name):
    for other in ("float16", "bfloat16"):
        each = all(FORMATS[name].represents(x) for x in all_numbers(other))
        assert FORMATS[name].holds(FORMATS[other]) == each
    assert FORMATS["float64"].holds(FORMATS[name])
    assert FORMATS[name].holds(FORMATS[name])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_number_is_represented_exactly_if_rounding_leaves_it(name):
    random = np.random.default_rng(3)
    values = np.ldexp(random.integers(-4096, 4096, size=4000), random.integers(-150, 130, size=4000))
    kept = round_to(FORMATS[name], values) == values
    assert [FORMATS[name].represents(x) for x in values.tolist()] == kept.tolist()
    assert 0.01 < kept.mean() < 0.99
    assert not FORMATS[name].represents(math.inf)
    assert not FORMATS[name].represents(math.nan)


@pytest.mark.parametrize("number", [3.0e-8, 2.0**-24, 1.0, 60000.0, 1e-5])
def test_a_store_in_a_format_of_more_digits_and_less_range_is_bounded(number):
    """bfloat16 sums stored in float16: more digits do not help below 2**-14."""
    k = numbers("bfloat16", (1, 1), output="float16")
    held = round_to(FORMATS["bfloat16"], np.full((1, 1), number))
    stored = k.cast(k.exact(held), "output")
    assert abs(round_to(FORMATS["float16"], held) - held) <= stored.total


def test_a_store_beyond_the_largest_number_has_no_bound():
    k = numbers("bfloat16", (1, 1), output="float16")
    stored = k.cast(k.exact(np.full((1, 1), 1e6)), "output")
    assert not np.isfinite(stored.total).any()
    assert stored.reasons == {OVERFLOW}


def test_sums_held_in_a_format_of_less_range_lose_what_it_loses():
    k = numbers("bfloat16", (5, 1), weight="float16")
    tiny = round_to(FORMATS["bfloat16"], np.full((5, 1), 2.0**-26))
    summed = k.parameter_sum(k.exact(tiny), "weight")
    assert summed.total[0, 0] >= 5 * 2.0**-26  # each store gives 0
    large = k.parameter_sum(k.exact(np.full((5, 1), 3e4)), "weight")
    assert not np.isfinite(large.total).any()


@pytest.mark.parametrize(
    ("number", "flush", "exact"),
    [(131072.0, False, False), (2.0**-30, False, False), (2.0**-20, False, True), (2.0**-20, True, False)],
)
def test_a_constant_out_of_range_is_not_exact(number, flush, exact):
    k = numbers("float16", (1, 1), flush=flush)
    value = k.constant(number)
    held = round_to(FORMATS["float16"], np.full((1, 1), number), flush_to_zero=flush)
    assert bool(value.total[0, 0] == 0.0) == exact
    assert not np.abs(held - number) > value.total


@pytest.mark.parametrize(
    ("count", "how", "covered"),
    [
        (16384, "reciprocal", True),
        (16385, "reciprocal", False),
        (32768, "reciprocal", False),
        (32768, "division", True),
        (70000, "division", False),
    ],
)
def test_a_count_beyond_the_format_has_no_mean(count, how, covered):
    k = numbers("float16", (1, count), how=how)
    mean = k.mean(k.exact(np.full((1, count), 2.0**-12)))
    assert np.isfinite(mean.total).all() == covered
    assert covered or mean.reasons
    assert OVERFLOW not in mean.reasons


def test_what_an_addition_flushes_grows_with_the_additions_above_it():
    coarse = Format(name="coarse", precision=3, minimum_exponent=-2, maximum=2.0**100)
    k = numbers("float16", (1, 64), flush=True)
    k.arithmetic = replace(k.arithmetic, format=coarse)
    summed = k.sum(k.exact(np.zeros((1, 64))))
    assert summed.total[0, 0] >= 63 * coarse.smallest_normal * (1 + theta(6, coarse.u)) * (1 - 2.0**-40)


def test_reasons_are_told_apart():
    k = numbers("float32", (2, 2))
    huge, zero = k.exact(np.full((2, 2), 1e30)), k.exact(np.zeros((2, 2)))
    assert (huge * huge).reasons == {OVERFLOW}
    assert (huge / zero).reasons == {VANISHES}
    assert k.rsqrt(zero).reasons == {VANISHES}
    assert (huge * huge + k.rsqrt(zero)).reasons == {OVERFLOW, VANISHES}
    assert k.read(np.full((1, 2), math.nan)).reasons == {NOT_FINITE}
    assert (huge + huge).reasons == frozenset()
    wide = numbers("float64", (1, 1))
    assert (wide.exact(np.full((1, 1), 1e200)) * wide.exact(np.full((1, 1), 1e200))).reasons == {OVERFLOW}


def test_rows_that_are_not_judged_give_no_reasons():
    k = numbers("float32", (2, 1))
    k.judged = np.array([[True], [False]])
    one_bad = k.exact(np.array([[1.0], [1e30]]))
    assert (one_bad * one_bad).reasons == frozenset()
    assert (-one_bad * k.exact(np.array([[1e30], [1.0]])) * k.exact(np.array([[1e30], [1.0]]))).reasons


def test_sums_that_do_not_hold_the_input_have_no_theorem():
    """Sums declared in float16 of bfloat16 numbers, which float16 does not hold."""
    truth = truth_of(declared("layer_norm"), "bfloat16", "float16", Recipe(rows=2, columns=8, input=Values()))
    assert not truth.bounds["output"].covered.any()
    assert "does not hold the input" in truth.bounds["output"].why
    held = truth_of(declared("layer_norm"), "bfloat16", "float32", Recipe(rows=2, columns=8, input=Values()))
    assert held.bounds["output"].covered.all()
