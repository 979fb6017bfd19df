"""Reduction trees: every leaf is combined once, depths and stages cover the programs they describe."""

import dataclasses
import itertools
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest

from verifier.arithmetic.formats import ieee
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import (
    any_order,
    either,
    fold,
    pairwise,
    sequential,
    stages_along,
    tile,
    torch_cascade,
    tree,
)
from verifier.bounds.variance import Reduction, algorithm

LENGTHS = (1, 2, 3, 5, 8, 9, 16, 31, 33, 100, 257, 1000)
NAMED = {
    "sequential": sequential(),
    "pairwise": pairwise(),
    "lanes": tree(lanes=8),
    "odd lanes": tree(lanes=12),
    "chunks": tree(chunks=8),
    "lanes in order": tree(lanes=8, combine="sequential"),
    "chunks in order": tree(chunks=5, combine="sequential"),
    "cascade": torch_cascade(lanes=4),
    "half cascade": torch_cascade(lanes=4, registers=2),
}


def depth_along(steps, count):
    """Return the most steps that one leaf meets."""
    depth, root = np.zeros(count, dtype=int), 0
    for step in steps:
        depth[step.left] = np.maximum(depth[step.left], depth[step.right]) + 1
        root = int(step.left[0])
    return int(depth[root])


@pytest.mark.parametrize("named", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("count", LENGTHS)
def test_every_leaf_reaches_the_root_once(named, count):
    leaves = [frozenset([i]) for i in range(count)]

    def union(a, b):
        assert not a & b
        return a | b

    assert fold(named, leaves, union) == frozenset(range(count))


@pytest.mark.parametrize("named", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("count", LENGTHS)
def test_depth_and_stages_cover_every_order(named, count):
    declared = named.stages(count)
    for steps in named.orders(count):
        assert depth_along(steps, count) <= named.depth(count)
        found = stages_along(steps, count)
        assert found.updates + found.merges <= declared.updates + declared.merges
        assert found.updates <= declared.updates
        assert found.imbalance <= declared.imbalance


@pytest.mark.parametrize("named", NAMED.values(), ids=NAMED)
def test_pairs_of_a_step_are_disjoint_and_updates_take_single_leaves(named):
    for count in LENGTHS:
        for steps in named.orders(count):
            seen = np.ones(count, dtype=int)
            for step in steps:
                both = np.concatenate([step.left, step.right])
                assert len(set(both.tolist())) == len(both)
                if step.update:
                    assert (seen[step.right] == 1).all()
                seen[step.left] += seen[step.right]


@pytest.mark.parametrize("lanes", [4, 7, 8, 12])
@pytest.mark.parametrize("count", LENGTHS)
def test_imbalance_of_a_butterfly_covers_either_partner(lanes, count):
    for named in (tree(lanes=lanes), tree(chunks=lanes)):
        for steps in named.orders(count):
            counts = np.ones(count)
            for step in steps:
                if not step.update:
                    worst = max((counts[step.left] / counts[step.right]).max(), 1.0)
                    assert worst <= named.stages(count).imbalance
                counts[step.left] += counts[step.right]


@pytest.mark.parametrize("count", LENGTHS)
def test_a_tile_has_one_lane_a_column_and_few_merges(count):
    named = tile(block=64, threads=16)
    columns = min(64, 1 << (count - 1).bit_length())
    members = [[i] for i in range(count)]
    for step in named.updates(count):
        assert step.update
        for left, right in zip(step.left, step.right, strict=True):
            members[left] += members[right]
            members[right] = []
    assert [m for m in members if m] == [list(range(i, count, columns)) for i in range(min(columns, count))]
    stages = named.stages(count)
    assert stages.updates + stages.merges <= max(named.depth(count), 0)
    assert stages.updates == -(-count // columns) - 1


def test_a_butterfly_admits_joining_neighbours_and_joining_halves_first():
    near, far = ([(s.left.tolist(), s.right.tolist()) for s in o] for o in tree(lanes=8).orders(8))
    assert near[0] == ([0, 2, 4, 6], [1, 3, 5, 7])
    assert far[0] == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert near[-1] == ([0], [4])
    assert far[-1] == ([0], [1])


def test_lanes_take_turns_and_chunks_are_contiguous():
    leaves = [str(i) for i in range(6)]
    assert fold(tree(lanes=2), leaves, lambda a, b: f"({a}{b})") == "(((02)4)((13)5))"
    assert fold(tree(chunks=2), leaves, lambda a, b: f"({a}{b})") == "(((01)2)((34)5))"


def joined(a, b):
    return (a or b) if a is None or b is None else f"({a}{b})"


def as_torch_nests(count, lanes, registers):
    """Return the moments' order as docs/explanation/bounds.md tells it, lane by lane."""
    width = lanes * registers
    vectors = [range(i, i + width) for i in range(0, count - width + 1, width)]
    chunks = [vectors[i : i + 16] for i in range(0, len(vectors), 16)]
    total = reduce(joined, [f"{i}." for i in range(len(vectors) * width, count)], None)
    for lane in range(lanes):
        levels = [None] * max((len(chunks) - 1).bit_length(), 1)
        for number, chunk in enumerate(chunks, start=1):
            for register in range(registers):
                own = reduce(joined, [f"{vector[register * lanes + lane]}." for vector in chunk])
                levels[0] = joined(levels[0], own)
            for level in range(1, len(levels)):
                if number % 2**level:
                    break
                levels[level], levels[level - 1] = joined(levels[level], levels[level - 1]), None
        total = joined(total, reduce(joined, levels))
    return total


@pytest.mark.parametrize("registers", [1, 2])
@pytest.mark.parametrize("count", [1, 5, 32, 67, 96, 130, 257, 400, 701])
def test_the_cascade_is_that_of_torch(count, registers):
    nested = fold(torch_cascade(lanes=2, registers=registers), [f"{i}." for i in range(count)], joined)
    assert nested == as_torch_nests(count, 2, registers)


@pytest.mark.parametrize(("count", "declared"), [(1024, 10), (1000, 10), (4096, 13)])
def test_tile_depth_is_that_of_columns_then_halves(count, declared):
    assert tile(block=1024, threads=1024).depth(count) >= declared


def test_depth_of_a_single_element_and_of_none():
    for named in (*NAMED.values(), any_order(), tree(depth=7)):
        assert named.depth(1) == 0
        assert named.depth(0) == 0
        assert list(named.stages(1).__dict__.values())[:2] == [0, 0]


def test_undeclared_orders_cannot_be_executed():
    for named in (any_order(), tree(depth=3)):
        assert not named.named
        with pytest.raises(ValueError, match="names no order"):
            list(named.steps(4))


@pytest.mark.parametrize("named", [any_order(), tree(depth=9), tile(block=64, threads=16), pairwise()])
@pytest.mark.parametrize("count", [1, 2, 5, 64, 100, 300])
def test_the_example_of_a_tree_is_admitted_by_it(named, count):
    steps = named.example(count)
    assert depth_along(steps, count) <= max(named.depth(count), (count - 1).bit_length())
    assert sum(len(step.right) for step in steps) == count - 1
    assert len({int(i) for step in steps for i in step.right}) == count - 1


def test_any_binary_tree_of_a_declared_depth_is_covered_by_its_stages():
    stages = tree(depth=5).stages(32)
    assert (stages.updates, stages.merges, stages.imbalance) == (0, 5, 31.0)
    assert stages.mixed


@pytest.mark.parametrize("named", [tree(lanes=4), tree(chunks=4), tree(lanes=4, combine="sequential")])
def test_further_additions_make_the_order_unknown(named):
    more = dataclasses.replace(named, extra_depth=2)
    assert named.named
    assert not more.named
    assert more.updates(20) is None
    assert more.depth(20) == named.depth(20) + 2
    assert more.stages(20).merges == named.stages(20).merges + 2
    assert more.stages(20).imbalance == 19.0


@pytest.mark.parametrize("arguments", [{}, {"lanes": 2, "depth": 3}, {"lanes": 0}, {"chunks": -1}])
def test_contradictory_declarations_are_refused(arguments):
    with pytest.raises(ValueError, match=r"tree\(\)"):
        tree(**arguments)
    with pytest.raises(ValueError, match="positive"):
        torch_cascade(lanes=0)


def test_sums_along_every_tree_are_exact_in_rationals():
    leaves = [Fraction(1, k) for k in range(1, 40)]
    for named, shift in itertools.product(NAMED.values(), range(3)):
        assert fold(named, leaves[shift:], lambda a, b: a + b) == sum(leaves[shift:])


def test_a_kernel_that_follows_one_of_several_trees_has_the_bound_of_the_worst():
    trees = (torch_cascade(lanes=8), torch_cascade(lanes=16), torch_cascade(lanes=8, registers=2))
    both = either(*trees)
    for n in (1, 2, 17, 1000):
        assert both.depth(n) == max(t.depth(n) for t in trees)
        stages = [t.stages(n) for t in trees]
        assert both.stages(n).updates == max(s.updates for s in stages)
        assert both.stages(n).merges == max(s.merges for s in stages)
        assert both.stages(n).imbalance == max(s.imbalance for s in stages)
        assert len(both.orders(n)) == 3
    values = np.random.default_rng(0).normal(size=(2, 1000)) + 50.0
    statistics = exact_statistics(np.float32(values).astype(np.float64))
    errors = [
        algorithm("welford").bound(statistics, Reduction(arithmetic=ieee("float32"), tree=t)).variance_error
        for t in (both, *trees)
    ]
    assert (errors[0] >= np.maximum.reduce(errors[1:])).all()
    with pytest.raises(ValueError, match="name their orders"):
        either(pairwise(), tree(depth=3))
    with pytest.raises(ValueError, match="name their orders"):
        either()
