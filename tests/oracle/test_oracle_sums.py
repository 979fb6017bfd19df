"""Sums, means and variances are exact, or enclosed, against rational arithmetic."""

from fractions import Fraction

import numpy as np
import oracle_data
import pytest

from verifier.arithmetic.error_free.exact_sums import exact_parts
from verifier.arithmetic.error_free.numpy_or_torch import NUMPY
from verifier.oracle.balls import EXACT_BITS, ball, parts, precision
from verifier.oracle.rows.exact_sums import row_sums
from verifier.oracle.rows.operands import collect
from verifier.oracle.rows.problem import RowProblem
from verifier.oracle.rows.solve import statistics
from verifier.oracle.solve import solve


def fraction(value):
    mantissa, exponent = value.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def problems():
    yield from oracle_data.hostile(7)
    yield from oracle_data.beyond_window(7)
    yield from ((name, problem) for name, problem in oracle_data.scalable(7) if problem.mean is None)
    for dtype in oracle_data.DTYPES:
        yield dtype, oracle_data.ordinary(dtype, columns=57, mean=77.0)


@pytest.mark.parametrize("fast", [True, False])
def test_row_sums_are_exact(fast):
    for name, problem in problems():
        sums = row_sums(collect(problem), fast=fast)
        weight = problem.weight if problem.weight is not None else np.ones((1, 1))
        weight = np.broadcast_to(weight, problem.input.shape)
        for i, row in enumerate(problem.input):
            x = [Fraction(a) for a in row.tolist()]
            g = [
                Fraction(a) * Fraction(b)
                for a, b in zip(problem.grad_output[i].tolist(), weight[i].tolist(), strict=True)
            ]
            assert fraction(sums.x[i]) == sum(x), name
            assert fraction(sums.squares[i]) == sum(a * a for a in x), name
            assert fraction(sums.gradient[i]) == sum(g), name
            assert fraction(sums.products[i]) == sum(a * b for a, b in zip(g, x, strict=True)), name


@pytest.mark.parametrize("columns", [1, 2, 3, 1000])
def test_extraction_loses_nothing_over_the_whole_range(columns):
    random = np.random.default_rng(columns)
    signs = random.choice([-1.0, 1.0], size=(5, columns))
    values = signs * random.random((5, columns)) * 2.0 ** random.integers(-899, 899, size=(5, columns))
    values[1] = 0.0
    values[2, 1:] = 0.0
    found = exact_parts(NUMPY, values)
    for i in range(5):
        assert sum(map(Fraction, found[:, i].tolist())) == sum(map(Fraction, values[i].tolist()))


def test_extraction_refuses_what_would_never_end():
    with pytest.raises(ArithmeticError, match="cannot be cut"):
        exact_parts(NUMPY, np.array([[2.0**-1070, 2.0**-1000]]))


def test_statistics_enclose_the_exact_ones():
    for name, problem in problems():
        found = statistics(problem.input)
        for i, row in enumerate(problem.input):
            x = [Fraction(a) for a in row.tolist()]
            n = len(x)
            mean = sum(x) / n
            variance = sum((a - mean) ** 2 for a in x) / n
            assert Fraction(found.mean_magnitude[i]) >= abs(mean), name
            assert Fraction(found.variance_lower[i]) <= variance, name
            pairs = (
                (found.variance_upper[i], variance),
                (found.mean_absolute[i], sum(map(abs, x)) / n),
                (found.mean_square[i], sum(a * a for a in x) / n),
                (found.mean_deviation[i], sum(abs(a - mean) for a in x) / n),
                (found.largest_deviation[i], max(abs(a - mean) for a in x)),
                (found.largest[i], max(map(abs, x))),
            )
            for claimed, true in pairs:
                assert claimed == np.inf or Fraction(claimed) >= true, name
                # and not much above it: 2**-40 relative, or the last bits of the mean or of float64
                last = abs(mean) * Fraction(2) ** -52 + Fraction(2) ** -1068
                if claimed != np.inf:
                    assert Fraction(claimed) <= true * (1 + Fraction(2) ** -40) + last, name
            distance = abs(Fraction(found.mean[i]) - mean)
            assert distance <= abs(Fraction(np.nextafter(found.mean[i], np.inf)) - mean), name
            assert distance <= abs(Fraction(np.nextafter(found.mean[i], -np.inf)) - mean), name


def test_statistics_of_rows_that_are_not_finite_are_nan():
    found = statistics(np.array([[1.0, np.nan], [1.0, 3.0], [np.inf, 0.0]]))
    assert found.finite.tolist() == [False, True, False]
    assert np.isnan(found.variance_upper).tolist() == [True, False, True]
    assert (found.mean[1], found.variance_lower[1], found.variance_upper[1]) == (2.0, 1.0, 1.0)


@pytest.mark.parametrize("rung", ["float64", "double_double", "arb"])
def test_mean_and_variance_are_enclosed(rung):
    for name, problem in problems():
        solution = solve(problem, rung=rung)
        for i, row in enumerate(problem.input):
            x = [Fraction(a) for a in row.tolist()]
            mean = sum(x) / len(x)
            variance = sum((a - mean) ** 2 for a in x) / len(x)
            for enclosure, true in ((solution.mean, mean), (solution.variance, variance)):
                radius = enclosure.radius[i]
                centre = Fraction(enclosure.high[i]) + Fraction(enclosure.low[i])
                assert radius == np.inf or abs(centre - true) <= Fraction(radius), name


def test_parts_of_a_ball_leave_out_no_more_than_they_say():
    with precision(EXACT_BITS):
        value = ball(1.0) + ball(2.0**-60) - ball(2.0**-130) + ball(2.0**-700)
        first, second, third, radius = parts(value, 3)
        assert (first, second, third) == (1.0, 2.0**-60, -(2.0**-130))
        assert 2.0**-700 <= radius <= 2.0**-699
        assert parts(ball(1e300) * ball(1e300), 2) == (0.0, 0.0, np.inf)


def test_given_statistics_do_not_change_those_of_the_row():
    problem = RowProblem(
        input=np.array([[1.0, 3.0]]), eps=0.0, mean=np.array([[7.0]]), rstd=np.array([[2.0]])
    )
    solution = solve(problem)
    assert solution.statistics.mean.tolist() == [2.0]
    assert (solution.mean.high.tolist(), solution.rstd.high.tolist()) == ([7.0], [2.0])
    assert solution.output.high.tolist() == [[-12.0, -8.0]]
