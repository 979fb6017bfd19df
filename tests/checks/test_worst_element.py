"""The worst element of a large output is found a part at a time: the same as in the whole."""

import math

import numpy as np
import pytest

from verifier.arithmetic import blocks
from verifier.checks.support.worst_element import Judged, worst_of


def judged(shape, *, covered=0.8, same=False):
    random = np.random.default_rng(shape[0] * 100 + shape[1])
    error = np.ones(shape) if same else random.standard_normal(shape) * 1e-6
    bound = np.where(random.random(shape) < 0.1, 0.0, 1.0 if same else 1e-5)
    error[random.random(shape) < 0.05] = math.nan
    expected = random.standard_normal(shape)
    expected[random.random(shape) < 0.05] = math.inf
    proved = random.random(shape) < 0.5
    return Judged(
        error=error,
        bound=bound,
        covered=random.random(shape) < covered,
        expected=expected,
        scale=np.abs(random.standard_normal(shape)),
        unit=np.full(shape, 1e-7),
        yard=(np.abs(bound) + 1e-6, proved) if covered else None,
        format_name="float32",
    )


@pytest.mark.parametrize("shape", [(3, 3), (5, 40), (40, 5), (2, 9), (1, 200), (200, 1)])
@pytest.mark.parametrize("options", [{}, {"same": True}, {"covered": 0.0}, {"covered": 1.0}])
def test_the_worst_element_of_the_parts_is_that_of_the_whole(shape, options, monkeypatch):
    one = judged(shape, **options)
    whole = worst_of(one)
    monkeypatch.setattr(blocks, "MOST", 8)
    found = worst_of(one)
    for name in ("some", "place", "utilisation", "ulp", "row_ulp", "nonzero_row_ulp", "canonical"):
        np.testing.assert_equal(getattr(found, name), getattr(whole, name), err_msg=name)


def test_of_elements_that_are_as_bad_the_first_is_the_worst(monkeypatch):
    monkeypatch.setattr(blocks, "MOST", 8)
    one = judged((6, 30), same=True)
    bad = np.argwhere((one.covered & (one.bound == 0) & (one.error > 0)).reshape(-1))
    assert worst_of(one).place == bad[0]


def test_an_output_without_any_bound_shows_its_largest_error_in_ulp(monkeypatch):
    monkeypatch.setattr(blocks, "MOST", 8)
    one = judged((6, 30), covered=0.0)
    found = worst_of(one)
    assert not found.some
    assert math.isnan(found.canonical)
    assert one.error.reshape(-1)[found.place] > 0
