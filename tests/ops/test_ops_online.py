"""Online softmax: no execution leaves its bound, and the bound without rescalings is refuted."""

import itertools

import numpy as np
import pytest
from online_softmax import OnlineRun, bound, choices, evolve, exact_of, utilisation

from verifier.arithmetic.formats import FORMATS, Arithmetic, ieee
from verifier.arithmetic.simulated import round_to
from verifier.arithmetic.trees.tree import pairwise, sequential, tree
from verifier.bounds.variance.attack import families
from verifier.bounds.variance.tiny_formats import all_rows, grid, tiny
from verifier.oracle.softmax.problem import SoftmaxProblem
from verifier.oracle.solve import solve

TREES = (sequential(), pairwise(), tree(lanes=2), tree(chunks=2, combine="sequential"))


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("exponential", [1.0, 3.0])
def test_no_row_of_a_tiny_format_exceeds_the_bound(exponential, flush):
    random, covered, worst = np.random.default_rng(0), 0, 0.0
    for precision, minimum, lowest, binades, count in (
        (4, -12, -3, 4, 2),
        (6, -12, -1, 1, 2),
        (4, -9, -1, 2, 3),
    ):
        held = tiny(precision, minimum)
        rows = all_rows(grid(held, lowest, binades), count)
        exact = exact_of(rows)
        arithmetic = Arithmetic(format=held, exponential=exponential, flush_to_zero=flush)
        ways = itertools.product(TREES, choices(random), (False, True))
        for declared, choose, fuses in list(ways)[:: 3 if count == 2 else 7]:
            limit = bound(rows, arithmetic, declared)
            run = OnlineRun(arithmetic=arithmetic, tree=declared, choose=choose, fuses=fuses)
            found = utilisation(rows, exact, run, limit)
            covered += int(np.isfinite(limit).all(axis=1).sum())
            worst = max(worst, float(found.max()))
            assert worst <= 1.0, (held.name, declared, rows[found.argmax()])
    assert covered > 10_000
    assert worst > 0.15


@pytest.mark.parametrize(
    ("count", "dtype"), [(3, "float32"), (64, "float32"), (300, "float16"), (64, "bfloat16"), (3, "float16")]
)
def test_no_family_of_rows_exceeds_the_bound(dtype, count):
    random, held = np.random.default_rng(count), FORMATS[dtype]
    arithmetic = ieee(dtype, exponential=3.0)
    covered = 0
    for number, (name, rows) in enumerate(families(random, count, 3, held)):
        for declared, scale in ((TREES[number % 4], 1.0), (tree(lanes=8), 2.0**-6)):
            values = round_to(held, rows * scale)
            exact = exact_of(values)
            limit = bound(values, arithmetic, declared)
            for choose in choices(random):
                run = OnlineRun(arithmetic=arithmetic, tree=declared, choose=choose, fuses=number % 2 == 0)
                assert utilisation(values, exact, run, limit).max() <= 1.0, (name, declared)
            covered += int(np.isfinite(limit).all(axis=1).sum())
    assert covered > 8


@pytest.mark.parametrize("exponential", [1.0, 3.0])
def test_no_row_summed_in_lanes_that_are_joined_at_once_exceeds_the_bound(exponential):
    random, held, worst = np.random.default_rng(1), tiny(6, -9), 0.0
    rows = all_rows(grid(held, -1, 1), 3)[::7]
    exact = exact_of(rows)
    for lanes, fuses in ((1, False), (2, True), (2, False), (3, False)):
        declared = tree(depth=-(-3 // lanes) + lanes - 2)
        arithmetic = Arithmetic(format=held, exponential=exponential)
        limit = bound(rows, arithmetic, declared)
        for choose in choices(random):
            run = OnlineRun(arithmetic=arithmetic, tree=declared, choose=choose, fuses=fuses, lanes=lanes)
            worst = max(worst, float(utilisation(rows, exact, run, limit).max()))
    assert 0.15 < worst <= 1.0


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("declared", [sequential(), tree(lanes=4)])
def test_evolution_finds_no_row_beyond_the_bound(declared, flush):
    random = np.random.default_rng(5)
    for dtype, count in (("float32", 3), ("bfloat16", 9)):
        arithmetic = ieee(dtype, exponential=2.5, flush_to_zero=flush)
        worst = evolve(arithmetic, declared, count, random, generations=25)
        assert 0.2 < worst <= 1.0


def test_the_bound_without_rescalings_is_refuted():
    rows = np.array([[10.0] + [0.0] * 63, [3.5] + [-12.0] * 63])  # the first sum is rescaled 63 times
    arithmetic, declared = ieee("float32", exponential=3.0), sequential()
    run = OnlineRun(arithmetic=arithmetic, tree=declared, choose=np.ones)
    exact = exact_of(rows)
    assert (utilisation(rows, exact, run, bound(rows, arithmetic, declared, "canonical")) > 1.0).all()
    assert (utilisation(rows, exact, run, bound(rows, arithmetic, declared)) <= 1.0).all()


def test_arguments_that_are_rounded_one_by_one_do_not_telescope():
    # exp2(fl(x l) - fl(m l)) with a new m in every part: the hypothesis fails, and so does the bound.
    x = np.array([[999.0, 999.3, 999.9, 1000.0]])
    values = round_to(FORMATS["float32"], x)
    declared, l2e = sequential(), np.float32(np.log2(np.e))
    limit = bound(values, ieee("float32", exponential=3.0), declared)
    top, total = np.float32(values[0, 0]), np.float32(1.0)
    for value in values[0, 1:].astype(np.float32):
        larger = max(top, value)
        parts = [np.exp2(np.float32(np.float32(v * l2e) - np.float32(larger * l2e))) for v in (top, value)]
        top, total = larger, np.float32(total * parts[0] + parts[1])
    scaled = values.astype(np.float32) * l2e
    output = np.exp2(scaled - top * l2e) / total
    low, _ = solve(SoftmaxProblem(input=values)).output.error_of(output.astype(np.float64))
    assert (low > limit).any()
