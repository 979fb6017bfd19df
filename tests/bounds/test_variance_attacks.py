"""Families of hostile rows and an evolutionary search stay inside the bounds, and refute false ones."""

import dataclasses
from typing import get_args

import numpy as np
import pytest

from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import any_order, pairwise, sequential, tile, torch_cascade, tree
from verifier.bounds.variance import Reduction, SquareOrder, algorithms, rms
from verifier.bounds.variance.attack import evolve, families, utilisation
from verifier.bounds.variance.options import chosen_options, option_rules
from verifier.bounds.variance.row_terms import terms
from verifier.bounds.variance.simulate_merges import Merging

TREES = (
    sequential(),
    pairwise(),
    tree(lanes=4),
    tree(lanes=16),
    tree(chunks=3),
    tree(lanes=4, combine="sequential"),
    tile(block=16, threads=2),
    torch_cascade(lanes=2),
    any_order(),
)


def drawn(name, random, arithmetic):
    """Return a declaration of an algorithm with every choice drawn."""
    choices = {
        "tree": TREES[random.integers(len(TREES))],
        "divide_by_n": str(random.choice(["division", "reciprocal"])),
        "mean_contraction": str(random.choice(["none", "uniform", "mixed"])),
        "merge": str(random.choice(["increment", "weighted", "pooled"])),
        "corrects_mean": bool(random.integers(2)),
        "shift_index": -int(random.integers(2)),
        "mean_cast": None if random.random() < 0.8 else "bfloat16",
        "per_lane_means": bool(random.random() < 0.1),
    }
    own = {option: choices.pop(option) for option in ("merge", "corrects_mean", "shift_index")}
    own = {option: value for option, value in own.items() if option in option_rules(name)}
    return Reduction(arithmetic=arithmetic, **choices, options=chosen_options(name, own))


@pytest.mark.parametrize(
    ("dtype", "flush"), [("float32", False), ("float16", True), ("bfloat16", False), ("float32", True)]
)
def test_no_family_exceeds_a_bound(dtype, flush):
    random, held = np.random.default_rng(20240 + flush), FORMATS[dtype]
    scales = (1.0, held.smallest_normal**0.5 * 4, held.smallest_normal * 4)
    covered = 0
    for count in (1, 2, 3, 5, 13, 64):
        scale = scales[random.integers(3)]
        for family, values in families(random, count, 2, held, scale):
            statistics = exact_statistics(values)
            for name in algorithms():
                claim = drawn(name, random, ieee(dtype, flush_to_zero=flush))
                found = utilisation(name, values, claim, statistics)
                covered += int(found.covered.sum())
                assert found.worst <= 1.0, f"{name} {dtype} {family} N={count} {claim}: {found.worst}"
    assert covered > 500


@pytest.mark.parametrize("name", ["textbook", "two_pass", "two_pass_corrected", "welford", "chan", "shifted"])
def test_no_evolved_row_exceeds_a_bound(name):
    random = np.random.default_rng(7)
    for count, contraction in ((3, "mixed"), (8, "none")):
        claim = Reduction(
            arithmetic=ieee("float32"),
            tree=sequential(),
            divide_by_n="reciprocal",
            mean_contraction=contraction,
        )
        found = evolve(name, claim, count, random, generations=15)
        assert 0.05 < found.utilisation <= 1.0, found
        assert found.mean <= 1.0, found


@pytest.mark.parametrize("squares", get_args(SquareOrder))
@pytest.mark.parametrize("welford", [False, True])
def test_no_way_to_write_an_increment_exceeds_the_bound(squares, welford):
    random, covered = np.random.default_rng(12), 0

    def written(rounded, values, claim):
        return Merging(rounded=rounded, claim=claim, welford=welford, squares=squares).run(values)

    for dtype in ("float16", "float32"):
        smallest = FORMATS[dtype].smallest_normal
        for scale in (1.0, smallest**0.5, smallest * 8):
            for family, values in families(random, 40, 2, FORMATS[dtype], scale):
                name = "welford" if welford else "chan"
                claim = drawn(name, random, ieee(dtype, flush_to_zero=bool(random.integers(2))))
                found = utilisation(name, values, claim, simulate=written)
                covered += int(found.covered.sum())
                assert found.worst <= 1.0, f"{squares} {dtype} {family} {scale} {claim}: {found.worst}"
    assert covered > 100


def test_welford_bound_is_nearly_attained():
    claim = Reduction(arithmetic=ieee("float32"), tree=sequential(), mean_contraction="none")
    found = evolve("welford", claim, 2, np.random.default_rng(1), generations=40)
    assert 0.95 < found.utilisation <= 1.0


def test_the_search_refutes_the_false_theorem_that_fma_saves_a_rounding(monkeypatch):
    """Counting d instead of d + 1 for a chain of fused squares was our one false theorem."""
    proved = rms.bound

    def false_bound(rows, claim):
        t = terms(rows, claim)
        after = t.squares_depth + t.per_count
        error = t.theta(after) * t.mean_square + t.sum_underflow(after)
        return dataclasses.replace(proved(rows, claim), variance_error=np.asarray(error))

    claim = Reduction(arithmetic=ieee("float16"), tree=sequential(), mean_contraction="uniform")

    def worst():
        seeds = (np.random.default_rng(seed) for seed in range(3))
        return max(evolve("rms", claim, 3, random, generations=150).utilisation for random in seeds)

    assert worst() <= 1.0
    monkeypatch.setattr(rms, "bound", false_bound)
    assert worst() > 1.0
