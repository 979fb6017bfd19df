"""The elements of both fast rungs keep their radius for constants as bad as they may be."""

from fractions import Fraction

import numpy as np
import pytest

from verifier.arithmetic.error_free import double_double
from verifier.oracle.enclosure import UNIT
from verifier.oracle.rows import elements_double_double, elements_float64
from verifier.oracle.rows.fast_constants import FastConstants
from verifier.oracle.rows.operands import collect
from verifier.oracle.rows.problem import RowProblem

U = Fraction(UNIT)
RUNGS = {"float64": (elements_float64, 1), "double_double": (elements_double_double, 2)}


def parts(random, count):
    """Return parts of a number, each up to half an ulp of the one before, (1, 1) each."""
    found = [
        random.choice([-1.0, 1.0]) * 2.0 ** random.integers(-2, 3) * random.choice([1.0, 1.5, 2.0 - 2.0**-52])
    ]
    for _ in range(count - 1):
        low = np.spacing(abs(found[-1])) / 2.0 if found[-1] else 0.0
        found.append(low * random.choice([-1.0, 1.0]) * random.choice([0.0, 0.5, 0.999, 1.0 - 2.0**-40]))
    high, found[1] = double_double.two_sum(found[0], found[1])
    return [np.full((1, 1), part) for part in (high, *found[1:])]


def near(random, mean, size):
    """Return elements that cancel most of the mean, about half of it, and none."""
    ulps = random.integers(-4, 5, size=size) * 2.0**-52
    factor = random.choice([1.0, 0.5, 2.0, 1.0, 0.499, -1.0, 1e-3, 7.0, 1.0 + 2.0**-20], size=size)
    return (mean * factor * (1.0 + ulps)).reshape(1, size)


def drawn(seed, *, narrow, kept):
    """Return rows with float64 or float32 operands, constants, and the exact constants farthest from them."""
    random = np.random.default_rng(seed)
    mean, rstd, projection, offset = (parts(random, count) for count in (3, 2, 2, 2))
    size = 24
    weight, bias, grad = random.normal(size=(3, 1, size)) * 2.0 ** random.integers(-20, 21, size=(3, 1, size))
    x = near(random, mean[0], size)
    operands = {"input": x, "weight": weight, "bias": bias, "grad_output": grad}
    if narrow:
        operands = {name: value.astype(np.float32).astype(np.float64) for name, value in operands.items()}
    else:  # sums that cancel: what is left of the errors is what the radius is about
        operands["bias"] = (
            -(x - mean[0]) * rstd[0] * weight * (1.0 + random.integers(-2, 3, size=size) * 2.0**-52)
        )
    rows = collect(RowProblem(eps=1e-5, **operands))
    true = {"mean": sum(map(exact, mean))}
    relative = Fraction(1.0) * U**kept if kept == 2 else Fraction(0)
    for name, pair in (("rstd", rstd), ("projection", projection)):
        true[name] = sum(map(exact, pair)) * (1 + relative * int(random.choice([-1, 1])))
    error = float(random.choice([0.0, 1e-40]))
    true["mean"] += Fraction(error)
    true["offset"] = sum(map(exact, offset)) - Fraction(error)
    wide = np.full((1, 1), error)
    yes = np.ones(1, dtype=bool)
    constants = FastConstants(
        mean=tuple(mean),
        mean_error=wide,
        rstd=tuple(rstd),
        projection=tuple(projection),
        offset=tuple(offset),
        offset_error=wide,
        usable_float64=yes,
        usable_double=yes,
    )
    return rows, constants, true


def exact(value):
    return Fraction(float(np.asarray(value).item()))


def truth(rows, true):
    """Return the exact elements of the only row."""
    found = {"normalized": [], "output": [], "grad_input": []}
    for x, w, b, dy in zip(
        *(v[0].tolist() for v in (rows.x, rows.weight, rows.bias, rows.grad_output)), strict=True
    ):
        h = (Fraction(x) - true["mean"]) * true["rstd"]
        found["normalized"].append(h)
        found["output"].append(h * Fraction(w) + Fraction(b))
        inner = h * true["projection"] + true["offset"]
        found["grad_input"].append((Fraction(dy) * Fraction(w) - inner) * true["rstd"])
    return found


def largest_share(rung, seeds, *, narrow):
    """Return the largest error over radius of each output."""
    module, kept = RUNGS[rung]
    worst = {}
    for seed in seeds:
        rows, constants, true = drawn(seed, narrow=narrow, kept=kept)
        found = module.elements(rows, constants)
        for name, values in truth(rows, true).items():
            high, low, radius = found[name]
            low = np.zeros_like(high) if low is None else low
            for k, value in enumerate(values):
                error = abs(exact(high[0, k]) + exact(low[0, k]) - value)
                share = float(error / exact(radius[0, k]))
                worst[name] = max(worst.get(name, 0.0), share)
    return worst


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("rung", RUNGS)
def test_elements_lie_within_their_radius(rung, narrow):
    worst = largest_share(rung, range(100), narrow=narrow)
    assert worst.keys() == {"normalized", "output", "grad_input"}
    assert all(0.1 < share <= 1.0 for share in worst.values()), worst
