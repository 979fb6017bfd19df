"""Exponential, logarithm and reciprocal root of a value with an error: the result encloses every outcome."""

import numpy as np
import pytest
from mpmath import mp, mpf

from verifier.bounds import elementary_functions

RANDOM = np.random.default_rng(11)


def _check(function, reference, centre, slack, total):
    """Compare at the ends of what the exact and the computed value may be, where there is a bound."""
    given = [np.array(a, dtype=np.float64) for a in np.broadcast_arrays(centre, slack, total)]
    found = function(*given)
    bounded = 0
    with mp.workprec(300):
        for c, s, t, v, around, error in zip(*(a.ravel().tolist() for a in (*given, *found)), strict=True):
            if not np.isfinite(error):
                continue
            bounded += 1
            moves = []
            for side in (-1, 0, 1):
                exact = mpf(c) + side * mpf(s)
                wanted = reference(exact)
                assert abs(wanted - mpf(v)) <= mpf(around), (c, s)
                moves += [abs(reference(exact + way * mpf(t)) - wanted) for way in (-1, 1)]
            assert max(moves) <= mpf(error), (c, s, t)
            # A bound far above what is attained would hide defects; 2**-900 stands for zero.
            assert mpf(error) <= 2 * max(moves) + mpf(2) ** -900, (c, s, t)
    return bounded


def test_exponential():
    centre = np.concatenate(
        [-RANDOM.exponential(30, 300), RANDOM.normal(0, 2, 50), [0.0, -649.9, -651.0, -1e38, 640.0]]
    )
    total = np.where(
        RANDOM.random(centre.size) < 0.5, 2.0**-24 * np.abs(centre), RANDOM.exponential(0.01, centre.size)
    )
    assert _check(elementary_functions.exp, mp.exp, centre, 2.0**-50 * np.abs(centre), total) == centre.size
    assert _check(elementary_functions.exp, mp.exp, [-1e4, -50.0, -1.0], 0.0, [9e3, 40.0, 3.0]) == 3
    assert np.isinf(elementary_functions.exp(np.array([700.0]), np.array([0.0]), np.array([0.0]))[2]).all()
    assert np.isinf(elementary_functions.exp(np.array([1.0]), np.array([0.0]), np.array([np.inf]))[2]).all()


def test_logarithm():
    centre = np.concatenate([1 + RANDOM.exponential(1e-6, 50), np.exp(RANDOM.normal(0, 40, 300)), [1.0, 2.0]])
    total = centre * RANDOM.choice([0.0, 2.0**-24, 0.01, 0.5], centre.size)
    assert _check(elementary_functions.log, mp.log, centre, 2.0**-52 * centre, total) == centre.size
    _, _, error = elementary_functions.log(
        np.array([0.0, -1.0, 1.0, 1.0]), np.zeros(4), np.array([0.0, 0.0, 1.0, np.inf])
    )
    assert np.isinf(error).all()


def test_reciprocal_root():
    centre = np.exp(RANDOM.normal(0, 40, 300))
    total = centre * RANDOM.choice([0.0, 2.0**-24, 0.01, 0.5, 0.99], centre.size)

    def reference(x):
        return 1 / mp.sqrt(x)

    assert _check(elementary_functions.rsqrt, reference, centre, 2.0**-52 * centre, total) == centre.size
    _, _, error = elementary_functions.rsqrt(
        np.array([0.0, -1.0, 1.0]), np.zeros(3), np.array([0.0, 0.0, 1.0])
    )
    assert np.isinf(error).all()


def test_reciprocal_root_of_squares_and_eps():
    """Computed squares may be anything from 0 on: where they err by more than they are, there is a bound."""
    eps, held = 1e-3, 2.0**-20
    squares = np.exp(RANDOM.normal(-7, 6, 400))
    total = (squares + eps) * RANDOM.choice([2.0**-24, 0.5, 1.0, 30.0, 1e9], squares.size)
    centre, slack = squares + eps, 2.0**-52 * (squares + eps)
    given = (np.full(1, eps), np.zeros(1), np.full(1, held * eps))
    value, around, error = elementary_functions.rsqrt_of_squares(centre, slack, total, given)
    plain = elementary_functions.rsqrt(centre, slack, total)[2]
    assert np.isinf(plain[total >= centre]).all()
    assert (error <= plain).all()
    assert np.isfinite(error[squares < eps / 4]).all()
    assert (error[np.isfinite(error)] <= value[np.isfinite(error)] * (1.0 + 2.0**-30)).all()
    with mp.workprec(300):
        for c, t, v, a, e in zip(*(x.tolist() for x in (centre, total, value, around, error)), strict=True):
            exact = 1 / mp.sqrt(mpf(c))
            assert abs(exact - mpf(v)) <= mpf(a) or np.isinf(e)
            for computed in (max(mpf(c) - mpf(t), mpf(eps) * (1 - mpf(held))), mpf(c) + mpf(t)):
                assert abs(1 / mp.sqrt(computed) - exact) <= mpf(e)
    unknown = elementary_functions.rsqrt_of_squares(centre, slack, np.full_like(total, np.inf), given)[2]
    nothing = elementary_functions.rsqrt_of_squares(squares, slack, 2.0 * squares, (np.zeros(1),) * 3)[2]
    assert np.isinf([unknown, nothing]).all()


@pytest.mark.parametrize("name", ["exp", "log", "rsqrt"])
def test_an_exact_value_has_no_error(name):
    _, around, error = getattr(elementary_functions, name)(np.array([0.5, 3.0]), np.zeros(2), np.zeros(2))
    assert (error == 0).all()
    assert (around < 2.0**-45).all()
