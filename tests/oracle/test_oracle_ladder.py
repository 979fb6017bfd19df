"""The ladder proves or refutes every comparison, and passes nothing that it cannot prove."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import oracle_data
import oracle_reference as reference
import pytest
from mpmath import mp, mpf
from test_oracle_radius import entry_index, rows_of

from verifier.oracle.balls import ball, precision
from verifier.oracle.climb import Balls, climb
from verifier.oracle.decide import decide
from verifier.oracle.rows.problem import RowProblem
from verifier.oracle.rows.rung_arb import ArbRung
from verifier.oracle.solve import solve

NAMES = ("output", "normalized", "grad_input", "grad_weight", "grad_bias", "mean", "variance", "rstd")
BITS = reference.BITS


def truth(problem, name):
    """Return the exact values of an output as a flat list of mpf."""
    found = rows_of(problem, BITS)
    if name in ("mean", "variance", "rstd"):
        return [row[name] for row in found]
    if name in ("grad_weight", "grad_bias"):
        summand = "contribution" if name == "grad_weight" else "grad"
        index = entry_index(problem)
        return reference.entry_sums(found, int(np.max(index)) + 1, index, summand)
    return [value for row in found for value in row[name]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["columns", "rows", "index"])
def test_bounds_equal_to_the_error_are_decided_as_mpmath_does(name, kind):
    index = np.arange(4)[:, None] % 2 * 3 + np.arange(9)[None, :] // 3
    weight = {"columns": (1, 9), "rows": (4, 1), "index": (4, 9)}[kind]
    random = np.random.default_rng(0)
    problem = oracle_data.ordinary(
        "float32",
        rows=4,
        columns=9,
        mean=5.0,
        weight=oracle_data.rounded(random.normal(size=weight), "float32"),
        bias=None,
        parameter=index if kind == "index" else kind,
    )
    true = truth(problem, name)
    shape = getattr(solve(problem), name).shape
    with mp.workprec(BITS):
        actual = np.array([float(np.float32(v)) for v in true])
        errors = [abs(mpf(a) - v) for a, v in zip(actual.tolist(), true, strict=True)]
        bound = np.array([float(e) for e in errors])
        wanted = np.array([e <= mpf(b) for e, b in zip(errors, bound.tolist(), strict=True)])
    found = decide(problem, name, actual.reshape(shape), bound.reshape(shape))
    close = np.array([abs(e - mpf(b)) < mpf(2) ** -1000 for e, b in zip(errors, bound.tolist(), strict=True)])
    assert np.array_equal(found.passed.ravel()[~close], wanted[~close])
    assert np.array_equal(found.failed.ravel()[~close], ~wanted[~close])
    assert not found.failed.ravel()[close].any() or name not in ("mean", "grad_bias")
    assert sum(found.rung_counts.values()) == int((found.passed | found.failed).sum())
    for k, error in enumerate(errors):
        assert mpf(found.error_low.ravel()[k]) <= error * (1 + mpf(2) ** -1000)
        assert mpf(found.error_high.ravel()[k]) >= error * (1 - mpf(2) ** -1000)


def test_ordinary_bounds_never_leave_the_first_rung():
    problem = oracle_data.ordinary("float16", rows=8, columns=300)
    solution = solve(problem)
    for name in NAMES:
        exact = getattr(solution, name).high
        found = decide(problem, name, exact, np.abs(exact) * 2.0**-30 + 2.0**-30, solution=solution)
        assert found.passed.all()
        assert found.rung_counts == {"float64": exact.size}


def test_the_first_rung_decides_scaled_rows_too():
    for name, problem in oracle_data.scalable():
        solution = solve(problem)
        for output in ("output", "grad_input", "grad_weight"):
            exact = getattr(solution, output).high
            bound = np.abs(exact).max() * 2.0**-40 + 2.0**-1060
            found = decide(problem, output, exact, np.full(exact.shape, bound), solution=solution)
            assert found.rung_counts == {"float64": exact.size}, (name, output)
            moved = decide(problem, output, exact + 4 * bound, np.full(exact.shape, bound), solution=solution)
            assert moved.failed.all(), (name, output)


def test_errors_against_balls_are_rounded_outwards():
    numerators = list(range(1, 200))
    with precision(256):
        values = [ball(float(k)) / 7 for k in numerators]
    actual = np.array([np.float32(1.001 * k / 7) for k in numerators], dtype=np.float64)
    found = climb(
        actual, np.full(actual.shape, 1e-30), [("arb", lambda still: Balls(values=values, bits=256))]
    )
    errors = [abs(Fraction(a) - Fraction(k, 7)) for a, k in zip(actual.tolist(), numerators, strict=True)]
    for low, high, error in zip(found.error_low.tolist(), found.error_high.tolist(), errors, strict=True):
        assert Fraction(low) <= error <= Fraction(high)
        assert Fraction(high) - Fraction(low) <= error * Fraction(2) ** -50
    assert found.passed.tolist() == [error == 0 for error in errors]
    assert found.failed.tolist() == [error != 0 for error in errors]


def test_nothing_but_a_finite_number_passes_against_balls():
    exact = Balls(values=[ball(1.0)] * 4 + [None], bits=256)
    actual = np.array([np.nan, np.inf, -np.inf, np.nan, np.nan])
    found = climb(actual, np.array([1.0, 1e300, 0.0, np.inf, 1.0]), [("arb", lambda still: exact)])
    assert not found.passed.any()
    assert found.failed.tolist() == [True, True, True, False, False]
    assert np.isnan(found.error_low).tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bound", [0.0, 1.0, 1e300])
def test_nothing_but_a_finite_number_passes(wrong, bound):
    problem = oracle_data.ordinary("float32")
    actual = solve(problem).output.high.copy()
    actual[1, 2] = wrong
    found = decide(problem, "output", actual, np.full(actual.shape, bound))
    assert found.failed[1, 2]
    assert not found.passed[1, 2]


@pytest.mark.parametrize("bound", [np.inf, np.nan])
def test_without_a_bound_a_nan_stays_undecided(bound):
    problem = oracle_data.ordinary("float32")
    actual = np.full(problem.input.shape, np.nan)
    found = decide(problem, "output", actual, np.full(actual.shape, bound))
    assert found.undecided.all() if np.isnan(bound) else not found.passed.any()
    assert found.rung_counts == {"float64": 0}


def test_rows_without_an_exact_value_stay_undecided_and_cost_nothing():
    problem = oracle_data.ordinary("float32")
    problem.input[0, 0] = np.nan
    problem.input[1] = 1.0
    case = replace(problem, eps=0.0)
    actual = np.zeros(problem.input.shape)
    found = decide(case, "output", actual, np.full(actual.shape, 1e-30))
    assert found.undecided.all(1).tolist() == [True, True, False]
    assert found.failed[2].any()
    weights = decide(case, "grad_weight", actual[0], np.ones(actual.shape[1]))
    assert weights.undecided.all()


def test_only_the_open_rows_climb(monkeypatch):
    problem = oracle_data.ordinary("float32", rows=5)
    solution = solve(problem)
    actual = solution.output.high.astype(np.float32).astype(np.float64)
    bound = np.full(actual.shape, 1e-3)
    bound[3, 4] = solution.output.error_of(actual)[0][3, 4]
    seen = []
    original = RowProblem.solve
    monkeypatch.setattr(RowProblem, "solve", lambda p, *a: seen.append(p.input.shape) or original(p, *a))
    found = decide(problem, "output", actual, bound, solution=solution)
    assert not found.undecided.any()
    assert seen == [(1, 21)]


@pytest.mark.parametrize("name", ["output", "rstd", "grad_input"])
def test_arb_values_belong_to_their_rows_when_few_are_open(name):
    problem = oracle_data.ordinary("float32", rows=6, mean=4.0)
    exact = getattr(solve(problem, rung="arb"), name)
    still = np.zeros(exact.shape, dtype=bool)
    still[4] = still[1] = True
    rung = ArbRung(problem, name, np.ones(exact.shape, dtype=bool))
    for mask in (still, still & (np.arange(6) == 4).reshape(-1, *[1] * (still.ndim - 1))):
        found = rung.values(mask, 300)
        assert [float(v) for v in found.values] == exact.high[mask].tolist()


def test_a_relative_error_of_2_to_the_minus_90_is_seen():
    problem = RowProblem(input=np.array([[1.0, 2.0, 4.0]]), eps=0.0)
    solution = solve(problem, rung="double_double")
    exact = Fraction(solution.output.high[0, 0]) + Fraction(solution.output.low[0, 0])
    actual = np.array(solution.output.high)
    error = float(abs(Fraction(actual[0, 0]) - exact))
    for factor, verdict in ((1 + 2.0**-36, "passed"), (1 - 2.0**-36, "failed")):
        bound = np.array([[error * factor, 1.0, 1.0]])
        assert getattr(decide(problem, "output", actual, bound), verdict)[0, 0]


@pytest.mark.parametrize("kappa", [40, 50])
def test_near_constant_float64_rows_are_decided(kappa):
    random = np.random.default_rng(0)
    x = 2.0**kappa + np.round(random.normal(size=(2, 40)) * 8) / 8
    problem = RowProblem(input=x, eps=1e-5, grad_output=random.normal(size=(2, 40)))
    for name in ("output", "grad_input"):
        true = truth(problem, name)
        with mp.workprec(BITS):
            actual = np.array([float(v) for v in true]).reshape(2, 40)
            bound = np.array([float(abs(mpf(float(v)) - v)) for v in true]).reshape(2, 40) * (1 + 2.0**-40)
        found = decide(problem, name, actual, bound)
        assert found.passed.all()


def test_a_ball_that_straddles_the_bound_decides_nothing():
    from flint import arb

    wide = Balls(values=[arb(1, 0.5), arb(1, 0.25), None], bits=64)
    sharp = Balls(values=[arb(1, 2.0**-60), arb(1, 0.25)], bits=64)
    found = climb(
        np.zeros(2), np.array([1.1, 2.0]), [("arb", lambda still: Balls(values=wide.values[:2], bits=64))]
    )
    assert found.undecided.tolist() == [True, False]
    answers = iter([wide, sharp])
    limits = np.array([1.1, 1.1, 1.0])
    found = climb(
        np.zeros(3), limits, [("first", lambda still: next(answers)), ("second", lambda still: next(answers))]
    )
    assert found.passed.tolist() == [True, False, False]
    assert found.undecided.tolist() == [False, True, True]
    assert found.rung_counts == {"first": 0, "second": 1}


def test_values_beyond_float64_are_left_to_arb():
    x = np.array([[1e300, 2e300, -3e300]])
    problem = RowProblem(input=x, eps=1e-5)
    solution = solve(problem)
    assert np.isinf(solution.variance.radius[0])
    found = decide(problem, "variance", np.array([1.0]), np.array([1e-3]))
    assert found.failed[0]
    assert decide(problem, "output", solution.output.high, np.full((1, 3), 1e-15)).passed.all()


def test_an_output_that_the_problem_does_not_pose_is_refused():
    problem = oracle_data.ordinary("float32", grad_output=None)
    with pytest.raises(ValueError, match="grad_output"):
        decide(problem, "grad_input", np.zeros((3, 21)), np.zeros((3, 21)))
    with pytest.raises(ValueError, match="shape"):
        decide(problem, "output", np.zeros((3, 20)), np.zeros((3, 20)))


def test_rows_in_blocks_keep_their_own_statistics():
    """Rows longer than a block, with given statistics: each block sees the mean and rstd of its own rows."""
    rng = np.random.default_rng(0)
    x, gradient = rng.normal(size=(3, 20000)), rng.normal(size=(3, 20000))
    mean, rstd = x.mean(1, keepdims=True), 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    problem = RowProblem(input=x, eps=1e-5, grad_output=gradient, mean=mean, rstd=rstd)
    alone = [
        solve(
            RowProblem(
                input=x[i : i + 1],
                eps=1e-5,
                grad_output=gradient[i : i + 1],
                mean=mean[i : i + 1],
                rstd=rstd[i : i + 1],
            )
        )
        for i in range(3)
    ]
    together = solve(problem)
    for i, one in enumerate(alone):
        mine, theirs = together.grad_input, one.grad_input
        reach = mine.radius[i] + np.abs(mine.low[i]) + theirs.radius[0] + np.abs(theirs.low[0])
        assert (np.abs(mine.high[i] - theirs.high[0]) <= reach).all()
