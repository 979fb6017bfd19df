"""Flushing to zero stays inside the bounds that allow for it, and refutes those that do not."""

import dataclasses

import numpy as np
import pytest

from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.arithmetic.trees.tree import pairwise, sequential, tree
from verifier.bounds.variance import Reduction, algorithm, algorithms
from verifier.bounds.variance.attack import utilisation

CENTRED = [name for name, module in algorithms().items() if module.CENTRED]


def rows_near_the_smallest_normal(dtype):
    """Return rows whose elements, sums, differences or squares fall below the smallest normal number."""
    held, random = FORMATS[dtype], np.random.default_rng(1)
    w = held.smallest_normal
    below = np.nextafter(np.float64(w), 0.0) * (1.0 - 2 * held.u)
    rows = [
        np.full(8, below),
        below * np.array([1, -1] * 4),
        np.array([1.5 * w, -1.5 * w + below] * 4),
        np.array([3 * w, -2.5 * w] * 4),
        *(w * random.uniform(-4, 4, size=(8, 8))),
        *(np.sqrt(w) * random.uniform(-2, 2, size=(8, 8))),
        *(np.sqrt(w) * (1 + random.uniform(0, 1, size=(8, 8)) * 2.0**-4)),
        *(w * 2.0**6 * (1 + random.uniform(0, 1, size=(8, 8)) * 2.0**-5)),
    ]
    return round_to(held, np.array(rows))


def declarations(dtype):
    for named in (sequential(), pairwise(), tree(lanes=2)):
        for how in ("division", "reciprocal"):
            yield Reduction(
                arithmetic=ieee(dtype, flush_to_zero=True),
                tree=named,
                divide_by_n=how,
                mean_contraction="none",
            )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", list(algorithms()))
def test_flushed_runs_stay_inside(name, dtype):
    values = rows_near_the_smallest_normal(dtype)
    statistics = exact_statistics(values)
    worst = 0.0
    for claim in declarations(dtype):
        found = utilisation(name, values, claim, statistics)
        assert found.covered.all()
        assert found.worst <= 1.0
        worst = max(worst, found.worst)
    assert worst > 0.1, "these rows do not attack the bound"


def without_flush(claim):
    """Return a bound's view of the declaration that forgets the flushing."""
    return dataclasses.replace(claim, arithmetic=dataclasses.replace(claim.arithmetic, flush_to_zero=False))


@pytest.mark.parametrize("name", list(algorithms()))
def test_flushed_runs_refute_bounds_that_ignore_flushing(name):
    values = rows_near_the_smallest_normal("float32")
    statistics = exact_statistics(values)
    flushing = RoundedArithmetic(format=FORMATS["float32"], flush_to_zero=True)
    refuted = {"mean": False, "variance": False}
    for claim in declarations("float32"):

        def flushed(rounded, rows, claim=claim):
            assert not rounded.flush_to_zero
            return algorithm(name).simulate(flushing, flushing.read(rows), claim)

        found = utilisation(name, values, without_flush(claim), statistics, flushed)
        refuted["mean"] |= bool((found.mean > 1.0).any())
        refuted["variance"] |= bool((found.variance > 1.0).any())
    assert refuted == {"mean": name in CENTRED, "variance": True}


@pytest.mark.parametrize(
    ("row", "share"),
    [
        ("all read as zero", 0.3),
        ("every sum flushed", 0.15),
        ("the quotient flushed", 0.25),
    ],
)
def test_each_way_to_lose_a_mean_is_seen(row, share):
    """A mean loses at most w by reading, w by adding and w by dividing; each alone is much of the bound."""
    w = FORMATS["float32"].smallest_normal
    below = w * (1.0 - 2.0**-23)
    rows = {
        "all read as zero": [below] * 8,
        "every sum flushed": [1.5 * w, -1.5 * w + below] * 4,
        "the quotient flushed": [7 * w * (1 - 2.0**-20)] + [0.0] * 7,
    }
    claim = Reduction(
        arithmetic=ieee("float32", flush_to_zero=True), tree=pairwise(), mean_contraction="none"
    )
    found = utilisation("two_pass", round_to(FORMATS["float32"], np.array([rows[row]])), claim)
    assert share < found.mean[0] <= 1.0
