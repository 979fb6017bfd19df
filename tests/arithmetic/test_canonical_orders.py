"""The text of an order: one for each order, however its steps are written; and the trees that have it."""

import numpy as np
import pytest

from verifier.arithmetic.trees.canonical import order
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import pairwise, sequential, torch_cascade, tree


def step(*pairs, update=False):
    left, right = np.array(pairs, dtype=np.intp).T
    return Step(left=left, right=right, update=update)


def text(kind, *steps):
    return order(steps, sum(len(one.left) for one in steps) + 1, kind).text


def test_the_text_is_that_of_the_tree_and_not_of_its_steps():
    assert text("sum", step((0, 1), (2, 3)), step((0, 2))) == "sum of 4: 0 1 2 3 0 2"
    assert text("sum", step((2, 3)), step((1, 0)), step((2, 1))) == "sum of 4: 0 1 2 3 0 2"
    assert text("sum", step((0, 1)), step((0, 2)), step((0, 3))) == "sum of 4: 0 1 0 2 0 3"
    assert text("sum") == "sum of 1: "


def test_of_merges_it_says_which_part_is_corrected_and_what_is_an_update():
    texts = {
        text("merges", step((0, 1))), text("merges", step((1, 0))), text("merges", step((0, 1), update=True)),
    }  # fmt: skip
    assert texts == {"merges of 2: 0 1 0", "merges of 2: 1 0 0", "merges of 2: 0 1 1"}
    assert text("online", step((1, 0))) == "online of 2: 0 1 0"
    assert text("online", step((1, 0), update=True)) == "online of 2: 1 0 1"
    assert text("sum", step((1, 0), update=True)) == "sum of 2: 0 1"  # a fused product is no other order


@pytest.mark.parametrize("n", [3, 17, 100, 257])
def test_steps_at_once_and_one_after_another_are_one_order(n):
    rng = np.random.default_rng(n)
    for made in (sequential(), pairwise(), tree(lanes=16), tree(chunks=5), torch_cascade(lanes=4)):
        steps = list(made.steps(n))
        alone = [
            step((int(a), int(b)), update=one.update)
            for one in steps
            for a, b in rng.permutation(np.stack([one.left, one.right], axis=1))
        ]
        for kind in ("sum", "merges", "online"):
            assert order(steps, n, kind).sha256 == order(alone, n, kind).sha256


@pytest.mark.parametrize(
    ("made", "n", "said"),
    [
        (sequential(), 9, "sequential()"),
        (pairwise(), 9, "pairwise()"),
        (tree(lanes=8), 100, "tree(lanes=8)"),
        (tree(lanes=64, warp=32), 1000, "tree(lanes=64, warp=32)"),
        (tree(chunks=8), 100, "tree(chunks=8)"),
        (tree(chunks=7, combine="sequential"), 100, "tree(chunks=7, combine='sequential')"),
        (tree(lanes=6, combine="sequential"), 100, "tree(lanes=6, combine='sequential')"),
        (torch_cascade(lanes=4), 300, ""),
        (sequential(), 1, ""),
    ],
)
def test_a_tree_is_named_by_the_call_that_declares_it(made, n, said):
    last = made.orders(n)[-1]
    assert {order(last, n, kind).tree for kind in ("sum", "merges")} == {said}


def test_no_order_is_named_by_a_tree_that_has_another():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(2, 12))
        left, steps = list(range(n)), []
        while len(left) > 1:
            a, b = rng.choice(len(left), 2, replace=False).tolist()
            steps.append(step((left[a], left[b])))
            left.pop(b)
        found = order(steps, n, "sum")
        if found.tree:
            made = eval(found.tree, {"tree": tree, "sequential": sequential, "pairwise": pairwise})
            assert found.text in [order(one, n, "sum").text for one in made.orders(n)]
