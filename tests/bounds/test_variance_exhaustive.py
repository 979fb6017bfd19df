"""Every row of tiny formats stays inside the bounds of every algorithm."""

import itertools

import pytest

from verifier.arithmetic.formats import Arithmetic
from verifier.arithmetic.trees.tree import any_order, pairwise, sequential, tree
from verifier.bounds.variance import Reduction, algorithms
from verifier.bounds.variance.attack import utilisation
from verifier.bounds.variance.options import chosen_options, option_rules
from verifier.bounds.variance.tiny_formats import (
    all_rows,
    grid,
    statistics_of_small,
    tiny,
    utilisation_of_small,
)

TREES = (sequential(), pairwise(), tree(lanes=2), tree(chunks=2, combine="sequential"), any_order())
CASES = [
    # precision, smallest normal exponent, lowest binade, binades, elements
    (3, -2, -3, 5, 2),
    (4, -3, -4, 4, 2),
    (6, -4, 0, 2, 2),
    (3, -2, -1, 2, 3),
    (4, -1, -2, 2, 3),
    (3, -2, 0, 2, 4),
]


def claims(name, arithmetic, number):
    """Yield declarations: all contractions and divisions, trees and merge forms taken in turn."""
    trees, merges = itertools.cycle(TREES), itertools.cycle(("increment", "weighted", "pooled"))
    for _ in range(number % len(TREES)):
        next(trees)
    for contraction, divide in itertools.product(("none", "uniform", "mixed"), ("division", "reciprocal")):
        own = {
            "merge": next(merges),
            "corrects_mean": contraction != "mixed",
            "shift_index": number % 2,
        }
        yield Reduction(
            arithmetic=arithmetic,
            tree=next(trees),
            divide_by_n=divide,
            mean_contraction=contraction,
            options=chosen_options(name, {n: v for n, v in own.items() if n in option_rules(name)}),
        )


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("name", list(algorithms()))
def test_no_row_of_a_tiny_format_exceeds_a_bound(name, flush):
    covered = 0
    for number, (precision, minimum, lowest, binades, count) in enumerate(CASES):
        held = tiny(precision, minimum)
        values = all_rows(grid(held, lowest, binades), count)
        statistics = statistics_of_small(values)
        for claim in claims(name, Arithmetic(format=held, flush_to_zero=flush), number):
            found = utilisation_of_small(name, values, claim, statistics)
            covered += int(found.covered.sum())
            assert found.worst <= 1.0, f"{name} {held.name} N={count} {claim}: error/bound {found.worst}"
    assert covered > 10_000


def test_both_measures_of_utilisation_agree():
    held = tiny(4, -2)
    values = all_rows(grid(held, -2, 2), 2)[::7]
    for name in algorithms():
        for claim in claims(name, Arithmetic(format=held, flush_to_zero=True), 0):
            quick = utilisation_of_small(name, values, claim, statistics_of_small(values))
            exact = utilisation(name, values, claim)
            for one, other in ((quick.mean, exact.mean), (quick.variance, exact.variance)):
                assert (abs(one - other) <= 2.0**-40 * other).all()  # statistics rounded up by 2**-45


def test_a_halved_bound_is_refuted():
    held = tiny(4, -3)
    values = all_rows(grid(held, 0, 2), 2)
    claim = Reduction(arithmetic=Arithmetic(format=held), tree=sequential(), mean_contraction="none")
    found = utilisation_of_small("rms", values, claim, statistics_of_small(values))
    assert found.worst > 0.5
