"""Sums of compiled code that take a term twice, leave it out, or take others; exact trees."""

import numpy as np
import pytest

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.arithmetic.graph.order_read import OrderError, OrderReader
from verifier.arithmetic.graph.trees_read import exact_tree, misread
from verifier.arithmetic.trees.steps import Step


def read(make, *, squares=False):
    """Return a table of terms, the form of what `make` builds, and the edges of eight wanted terms."""
    builder = Builder()
    x = builder.append("input:x", value=np.arange(12))

    def op(name, *operands):
        return builder.append(name, *operands, line=f"kernel.py:{len(operands)}")

    root = make(op, x)
    wanted = builder.append("mul.f32", x[:8], x[:8]) if squares else x[:8]
    terms = SharedTerms()
    normaliser = Normaliser(terms)
    leaves = normaliser.normal(builder.graph({"terms": wanted}, {"x": "f32"})).outputs["terms"]
    return terms, normaliser.normal(builder.graph({"sum": np.asarray(root)}, {"x": "f32"})), leaves


def chain(op, nodes):
    total = nodes[0]
    for node in nodes[1:]:
        total = op("add.f32", total, node)
    return total


def of(places):
    return lambda op, x: chain(op, [x[i] for i in places])


def fused(places):
    def make(op, x):
        total = op("mul.f32", x[places[0]], x[places[0]])
        for i in places[1:]:
            total = op("fma.rn.f32", x[i], x[i], total)
        return total

    return make


def minus_last(op, x):
    return op("sub.f32", chain(op, x[:7]), x[7])


def butterfly_without_its_last_step(op, x):
    halves = op("add.f32", chain(op, x[:4]), chain(op, x[4:8]))
    return op("add.f32", halves, halves)


@pytest.mark.parametrize(
    ("make", "squares", "said"),
    [
        (of([0, 1, 2, 3, 4, 5, 6]), False, "of 7 of them leaves out x:f32[7]"),
        (of([0, 1, 2, 3, 4, 5, 6, 6]), False, "leaves out x:f32[7]; takes x:f32[6] 2 times (at kernel.py:2)"),
        (of([0, 1, 7, 7, 2, 3, 4, 5, 6]), False, "of 8 of them takes x:f32[7] 2 times (at kernel.py:2)"),
        (of([0, 1, 2, 3, 4, 5, 6, 11]), False, "leaves out x:f32[7]; takes x:f32[11] as well"),
        (of(range(9)), False, None),
        (minus_last, False, "of 8 of them subtracts x:f32[7]"),
        (fused([0, 1, 2, 3, 4, 5, 6, 6]), True, "mul.f32(x:f32[6], x:f32[6]) 2 times (at kernel.py:3)"),
        (fused([7, 6, 5, 4, 3, 2, 1, 9]), True, "takes mul.f32(x:f32[9], x:f32[9]) as well"),
        (lambda op, x: op("mul.f32", x[0], x[1]), False, "nothing sums"),
    ],
)
def test_what_a_sum_takes_is_named_with_its_line(make, squares, said):
    terms, form, leaves = read(make, squares=squares)
    reader = OrderReader(terms, form.outputs["sum"].ravel(), form.line_of)
    if said is None:  # more is added to the sum later: the sum itself is right
        assert exact_tree(reader.steps(leaves), 8).depth(8) == 7
        assert misread(terms, form.outputs["sum"].ravel(), leaves) is None
        return
    with pytest.raises(OrderError) as told:
        reader.steps(leaves)
    assert said in str(told.value)


def test_a_sum_that_is_right_but_doubled_later_is_no_misread_sum():
    terms, form, leaves = read(butterfly_without_its_last_step)
    assert misread(terms, form.outputs["sum"].ravel(), leaves) is None
    steps = OrderReader(terms, form.outputs["sum"].ravel()).steps(leaves)
    tree = exact_tree(steps, 8)
    assert tree.depth(8) == 4
    assert [len(step.left) for step in tree.steps(8)] == [2, 2, 2, 1]
    with pytest.raises(ValueError, match="says nothing of 9"):
        tree.depth(9)


def test_terms_that_are_taken_exponentially_often_are_counted_not_walked():
    def make(op, x):
        total = op("add.f32", x[0], x[1])
        for _ in range(60):
            total = op("add.f32", op("mul.f32", x[11], x[11]), op("add.f32", total, total))
        return op("add.f32", total, x[2])

    terms, form, leaves = read(make)
    found = misread(terms, form.outputs["sum"].ravel(), leaves)
    assert found.repeated == ((0, 2**60), (1, 2**60))
    assert found.left_out == (3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    "pairs",
    [[(0, 1), (2, 1)], [(0, 0), (0, 1), (0, 2)], [(0, 1)], [(0, 1), (0, 3)], [(0, 1), (0, 2), (0, 1)]],
)
def test_an_order_that_takes_a_term_twice_or_not_at_all_is_no_tree(pairs):
    steps = [Step(left=np.array([a]), right=np.array([b]), update=False) for a, b in pairs]
    with pytest.raises(ValueError, match="combine"):
        exact_tree(steps, 3)
