"""The exact number types run one formula to the same values as the oracle's own."""

import numpy as np
import oracle_data
import pytest
from exact_numbers import ExactNumbers, MpNumbers
from mpmath import mp, mpf

from verifier.oracle.softmax.problem import SoftmaxProblem
from verifier.oracle.solve import solve

BITS = 500


def layer_norm(k, x, weight, bias, grad):
    mean, rstd = k.moments(x)
    h = (x - mean) * rstd
    g = grad * weight
    c1, c2 = k.share(k.mean(g * h), "c1"), k.share(k.sum(g) / k.count(), "c2")
    return {
        "output": k.cast(h * weight + bias, "output"),
        "grad_input": (g - (h * c1 + c2)) * rstd,
        "grad_weight": k.parameter_sum(grad * h),
        "grad_bias": k.parameter_sum(grad),
    }


def inside(enclosure, values, slack):
    """Return whether every mpmath value lies inside the enclosure, up to mpmath's own rounding."""
    parts = (part.ravel().tolist() for part in (enclosure.high, enclosure.low, enclosure.radius))
    with mp.workprec(BITS):
        return all(
            abs(v - mpf(h) - mpf(lo)) <= mpf(r) + slack
            for h, lo, r, v in zip(*parts, values.ravel(), strict=True)
        )


@pytest.mark.parametrize("kind", ["columns", "index"])
def test_a_formula_gives_the_oracles_values(kind):
    index = np.arange(3)[:, None] * 0 + np.arange(21)[None, :] // 7
    problem = oracle_data.ordinary("float32", mean=2.0, parameter=index if kind == "index" else kind)
    fields = {"rows": 3, "columns": 21, "bits": BITS, "eps": problem.eps, "parameter": problem.parameter}
    found = []
    for numbers in (ExactNumbers(**fields), MpNumbers(**fields)):
        with numbers.working():
            operands = [
                numbers.lift(a) for a in (problem.input, problem.weight, problem.bias, problem.grad_output)
            ]
            found.append((numbers, layer_norm(numbers, *operands)))
    (balls, by_balls), (_, by_mpmath) = found
    solution = solve(problem, rung="double_double")
    slack = mpf(2) ** -440  # fewer than 2**10 roundings of numbers below 2**30 at 500 bits
    for name, values in by_mpmath.items():
        enclosure = balls.enclosure(by_balls[name])
        assert inside(enclosure, values, slack), name
        assert inside(getattr(solution, name), values, slack), name
        assert np.max(enclosure.radius) < 2.0**-90
        with mp.workprec(BITS):
            moved = values + mpf(2) ** -80
        assert not inside(enclosure, moved, slack), name


def test_a_softmax_formula_gives_the_oracles_values():
    x = oracle_data.ordinary("float32").input
    exact = solve(SoftmaxProblem(input=x)).output
    logarithm = solve(SoftmaxProblem(input=x, logarithm=True)).output
    for kind in (ExactNumbers, MpNumbers):
        k = kind(rows=3, columns=21, bits=BITS)
        with k.working():
            a = k.lift(x)
            a = a - k.maximum(a)
            values = k.exp(a) / k.sum(k.exp(a))
            logs = a - k.log(k.sum(k.exp(a)))
            if kind is MpNumbers:
                assert inside(exact, values, mpf(2) ** -480)
                assert inside(logarithm, logs, mpf(2) ** -480)
            else:
                low, high = exact.error_of(k.enclosure(values).high)
                assert (high <= 2.0**-52).all()
                assert (low <= high).all()


def test_given_statistics_are_read():
    saved = (np.array([[2.0]]), np.array([[0.5]]))
    numbers = ExactNumbers(rows=1, columns=2, bits=200, saved=saved)
    mean, rstd = numbers.saved_moments(numbers.lift(np.ones((1, 2))))
    assert (float(mean[0, 0]), float(rstd[0, 0])) == (2.0, 0.5)
