"""Trees made of orders that were read: no claim of another length, nor of an order that was not read."""

from dataclasses import replace

import numpy as np
import pytest

from verifier import Trees
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import any_order, of_all, pairwise, sequential, tree
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.proved_claim import attempts, trees_read
from verifier.checks.support.read_orders import OrderOfSum
from verifier.ops import op
from verifier.subjects.load_file import builtin_folder, load_subject

NONE = Trees()


@pytest.fixture(scope="module")
def case():
    subject = load_subject(builtin_folder() / "layer_norm_torch.py", "layer_norm_torch")
    return build(op("layer_norm"), subject, "float32", Recipe(rows=4, columns=8), gradients=False)


def order(of, declared, terms=8, kind="sum"):
    return OrderOfSum(terms=terms, steps=tuple(of.steps(terms)), declared=declared, kind=kind, root=1)


def step(left, right, *, update=False):
    return Step(left=np.array([left]), right=np.array([right]), update=update)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("softmax_tiled_triton", 2),
        ("masked_softmax_triton", 2),
        ("rms_norm_triton", 2),
        ("layer_norm_welford_triton", 4),
        ("silu_gate_layer_norm_triton", 2),
    ],
)
def test_claims_are_tried_of_every_kind_of_op(name, count):
    """An algorithm of a softmax is none of a variance; where parts are merged, lanes may have own means."""
    assert len(list(attempts(load_subject(builtin_folder() / f"{name}.py", name)))) == count


def test_each_tree_is_as_deep_as_the_deepest_of_its_own_sums(case):
    read = [
        order(pairwise(), NONE.statistics),
        order(sequential(), NONE.statistics),
        order(pairwise(), NONE.columns, terms=4),
    ]
    found = trees_read(NONE, read, case, exact=True)
    assert (found.statistics.depth(8), found.columns.depth(4)) == (7, 2)
    assert found.row_gradients is NONE.row_gradients
    assert not found.row_gradients.declared


@pytest.mark.parametrize(
    ("of_rows", "of_columns"), [(True, True), (True, False), (False, True), (False, False)]
)
@pytest.mark.parametrize("whole", [pairwise(), sequential()])
def test_sums_of_all_elements_are_allowed_for_whatever_else_is_read(of_rows, of_columns, whole, case):
    total = order(whole, any_order(), terms=32)
    read = [total]
    read += [order(pairwise(), NONE.row_gradients)] if of_rows else []
    read += [order(pairwise(), NONE.columns, terms=4)] if of_columns else []
    found = trees_read(NONE, read, case, exact=True)
    allowed = of_all(found.row_gradients, found.columns, 4, 8).depth(32)
    assert allowed >= total.depth
    if whole.kind == "pairwise":  # and for little more
        assert allowed == total.depth
        assert found.row_gradients.depth(8) <= 5
        assert found.columns.depth(4) <= 3


def test_an_order_of_merges_is_one_of_its_own_length_alone(case):
    read = trees_read(NONE, [order(pairwise(), NONE.statistics, kind="merges")], case, exact=True).statistics
    assert read.named
    assert (read.depth(8), read.stages(8).merges) == (3, 3)
    assert (read.depth(9), read.stages(9)) == (8, any_order().stages(9))
    with pytest.raises(ValueError, match="names none of 9"):
        list(read.steps(9))


def test_lanes_that_merge_for_themselves_follow_one_of_the_orders_that_were_read(case):
    read = [order(one, NONE.statistics, kind="merges") for one in (pairwise(), tree(lanes=2))]
    found = trees_read(NONE, read, case, exact=True).statistics
    assert len(found.orders(8)) == 2
    assert (found.stages(8).updates, found.stages(8).merges) == (3, 3)


def test_where_either_part_may_be_corrected_no_order_is_followed(case):
    steps = (step(0, 1), step(0, 2), step(0, 3))
    one = OrderOfSum(terms=4, steps=steps, declared=NONE.statistics, kind="merges", root=1)
    short = replace(case, columns=4)
    followed, either = (trees_read(NONE, [one], short, exact=exact).statistics for exact in (True, False))
    assert (followed.named, followed.stages(4).imbalance) == (True, 1.0)
    assert (either.named, either.stages(4).imbalance) == (False, 3.0)


def test_single_elements_that_enter_after_merges_have_no_stages(case):
    steps = (step(0, 1), step(0, 2, update=True))
    one = OrderOfSum(terms=3, steps=steps, declared=NONE.statistics, kind="merges", root=1)
    assert not trees_read(NONE, [one], replace(case, columns=3), exact=True).statistics.declared
