"""Softmax and its logarithm are enclosed, forward and backward, and the exponential keeps its proof."""

from dataclasses import replace

import numpy as np
import oracle_reference as reference
import pytest
from mpmath import mp, mpf

from verifier.arithmetic.error_free.exponential import EXP_ERROR, EXP_LIMIT, EXP_LOST
from verifier.oracle.decide import decide
from verifier.oracle.exponential import exponential
from verifier.oracle.softmax.problem import SoftmaxProblem
from verifier.oracle.solve import solve

BITS = 2400


def in_mpmath(problem):
    """Return output and grad_input as flat lists (rows without an answer left out: None)."""
    with mp.workprec(BITS):
        output, gradient = [], []
        base = problem.input if problem.input is not None else problem.output
        for i, row in enumerate(base.tolist()):
            if problem.output is not None:
                chances = [mp.exp(mpf(a)) if problem.logarithm else mpf(a) for a in row]
            else:
                powers = [mp.exp(mpf(a)) for a in row]
                total = sum(powers)
                chances = [p / total for p in powers]
                output += [mpf(a) - mp.log(total) for a in row] if problem.logarithm else chances
            if problem.grad_output is not None:
                dy = [mpf(a) for a in problem.grad_output[i].tolist()]
                inner = sum(d * p for d, p in zip(dy, chances, strict=True))
                if problem.logarithm:
                    gradient += [d - p * sum(dy) for d, p in zip(dy, chances, strict=True)]
                else:
                    gradient += [p * (d - inner) for d, p in zip(dy, chances, strict=True)]
        return output, gradient


def cases():
    random = np.random.default_rng(1)

    def draw(shape, scale=1.0):
        return (random.normal(size=shape) * scale).astype(np.float32).astype(np.float64)

    yield "ordinary", draw((3, 17)), draw((3, 17))
    yield "wide", draw((3, 17), 300.0), draw((3, 17))
    yield "1000 and 999.9", np.array([[1000.0, 999.9]]), np.array([[1.0, -3.0]])
    yield "equal", np.full((2, 5), 7.0), draw((2, 5))
    yield "one column", draw((3, 1)), draw((3, 1))
    yield "near overflow of float32", np.array([[3e38, -3e38, 3e38]]), np.array([[1.0, 2.0, 4.0]])
    yield "tiny differences", 1.0 + random.integers(0, 9, size=(2, 9)) * 2.0**-52, draw((2, 9))
    yield "one wins", np.array([[0.0, -40.0, -80.0]]), np.array([[1.0, 1.0, 1e-30]])
    yield "gradient all ones", draw((2, 9)), np.ones((2, 9))
    yield (
        "gradient of large exponents",
        draw((2, 9)),
        draw((2, 9)) * 2.0 ** random.integers(-150, 120, (2, 9)),
    )
    yield "far element, large gradient", np.array([[0.0, -651.0]]), np.array([[1.0, 2.0**120]])
    yield "float64", random.normal(size=(2, 9)) * 30, random.normal(size=(2, 9))


def slack():
    return mpf(2) ** -1200  # the reference: a few hundred operations at 2400 bits on numbers below 2**600


@pytest.mark.parametrize("logarithm", [False, True])
def test_true_errors_are_inside_the_radius(logarithm):
    for name, x, gradient in cases():
        problem = SoftmaxProblem(input=x, grad_output=gradient, logarithm=logarithm)
        found = solve(problem)
        output, grad_input = in_mpmath(problem)
        assert reference.outside(found.output, output, slack(), BITS) == [], name
        assert reference.outside(found.grad_input, grad_input, slack(), BITS) == [], name
        assert np.isfinite(found.output.radius).all(), name
        assert np.isfinite(found.grad_input.radius).all(), name


@pytest.mark.parametrize("logarithm", [False, True])
def test_a_given_output_is_an_exact_input_of_the_gradient(logarithm):
    for name, x, gradient in cases():
        if name == "near overflow of float32":
            continue
        forward = solve(SoftmaxProblem(input=x, logarithm=logarithm)).output.high
        given = forward.astype(np.float32).astype(np.float64)
        problem = SoftmaxProblem(output=given, grad_output=gradient, logarithm=logarithm)
        found = solve(problem)
        assert found.output is None
        assert reference.outside(found.grad_input, in_mpmath(problem)[1], slack(), BITS) == [], name


def test_a_wrong_radius_would_be_caught():
    _, x, gradient = next(cases())
    problem = SoftmaxProblem(input=x, grad_output=gradient)
    found = solve(problem)
    for enclosure, true in zip((found.output, found.grad_input), in_mpmath(problem), strict=True):
        narrow = replace(enclosure, radius=enclosure.radius * 2.0**-20)
        assert reference.outside(narrow, true, slack(), BITS)
        moved = replace(enclosure, low=enclosure.low + 2.5 * enclosure.radius)
        assert len(reference.outside(moved, true, slack(), BITS)) == x.size


def test_masked_elements_are_exactly_zero():
    x = np.array([[0.0, -np.inf, 1.0], [-np.inf] * 3, [np.nan, 0.0, 0.0], [np.inf, 0.0, 0.0]])
    gradient = np.arange(12.0).reshape(4, 3)
    found = solve(SoftmaxProblem(input=x, grad_output=gradient))
    short = solve(SoftmaxProblem(input=x[:1, [0, 2]], grad_output=gradient[:1, [0, 2]]))
    assert found.finite.tolist() == [True, False, False, False]
    assert (found.output.high[0, 1], found.output.radius[0, 1]) == (0.0, 0.0)
    assert np.array_equal(found.output.high[0, [0, 2]], short.output.high[0])
    assert np.array_equal(
        found.grad_input.high[0], [short.grad_input.high[0, 0], 0.0, short.grad_input.high[0, 1]]
    )
    assert np.isnan(found.output.high[1:]).all()
    assert np.isnan(found.grad_input.high[1:]).all()
    logarithm = solve(SoftmaxProblem(input=x[:1], grad_output=gradient[:1], logarithm=True))
    assert logarithm.output.high[0, 1] == -np.inf
    assert logarithm.grad_input.high[0, 1] == 1.0
    low, high = logarithm.output.error_of(np.array([[0.0, -np.inf, 0.0]]))
    assert (low[0, 1], high[0, 1]) == (0.0, 0.0)


def test_the_exponential_keeps_its_error():
    random = np.random.default_rng(2)
    argument = np.concatenate(
        [
            -random.random(3000) * EXP_LIMIT,
            random.random(500) * EXP_LIMIT,
            -random.random(1000),
            -(2.0 ** -random.integers(0, 90, 300).astype(float)),
            np.arange(-400, 400) * np.log(2) / 128,  # between two steps of the table
            [0.0, -EXP_LIMIT, EXP_LIMIT],
        ]
    )
    low = argument * 2.0**-54 * random.uniform(-1, 1, size=argument.size)
    high, tail = exponential((argument, low))
    with mp.workprec(300):
        for a, b, c, d in zip(*(v.tolist() for v in (argument, low, high, tail)), strict=True):
            true = mp.exp(mpf(a) + mpf(b))
            assert abs(mpf(c) + mpf(d) - true) <= EXP_ERROR * true


def test_the_exponential_of_far_arguments_is_zero_or_refused():
    high, _ = exponential((np.array([-650.1, -np.inf, -1e308, 650.1, np.nan]), np.zeros(5)))
    assert high[:3].tolist() == [0.0, 0.0, 0.0]
    assert np.exp(-650.0) < EXP_LOST
    assert np.isnan(high[3])


@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("name", ["output", "grad_input"])
def test_decisions_agree_with_mpmath_at_the_tightest_bound(logarithm, name):
    _, x, gradient = next(cases())
    problem = SoftmaxProblem(input=x, grad_output=gradient, logarithm=logarithm)
    true = np.array(in_mpmath(problem)[name == "grad_input"], dtype=object).reshape(x.shape)
    actual = np.array([[float(v) for v in row] for row in true]).astype(np.float32).astype(np.float64)
    with mp.workprec(BITS):
        errors = np.array(
            [
                [abs(mpf(a) - v) for a, v in zip(*pair, strict=True)]
                for pair in zip(actual.tolist(), true, strict=True)
            ]
        )
        bound = np.array([[float(e) for e in row] for row in errors])
        wanted = np.array(
            [
                [e <= mpf(b) for e, b in zip(*pair, strict=True)]
                for pair in zip(errors, bound.tolist(), strict=True)
            ]
        )
    found = decide(problem, name, actual, bound)
    assert np.array_equal(found.passed, wanted)
    assert np.array_equal(found.failed, ~wanted)


def test_the_arb_rung_decides_what_double_double_leaves_open():
    problem = SoftmaxProblem(input=np.array([[0.0, -60.0]]), logarithm=True)
    exact = solve(problem).output
    with mp.workprec(BITS):
        true = -mp.log(1 + mp.exp(-60))
        actual = float(true)
        bound = float(abs(mpf(actual) - true)) * (1 + 2.0**-50)
    assert exact.radius[0, 0] > bound
    found = decide(problem, "output", np.array([[actual, -60.0]]), np.array([[bound, 1e-20]]))
    assert found.passed.all()
    assert found.rung_counts["arb"] >= 1
    tighter = decide(
        problem, "output", np.array([[actual, -60.0]]), np.array([[bound * (1 - 2.0**-49), 1e-20]])
    )
    assert tighter.failed.tolist() == [[True, False]]


def test_misshapen_problems_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="either input or output"):
        solve(SoftmaxProblem())
    with pytest.raises(ValueError, match="grad_output has shape"):
        solve(SoftmaxProblem(input=np.ones((2, 3)), grad_output=np.ones((3, 2))))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty_problems(shape):
    found = solve(SoftmaxProblem(input=np.zeros(shape), grad_output=np.zeros(shape)))
    assert found.output.shape == found.grad_input.shape == shape
