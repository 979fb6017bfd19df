"""Orders of merges are read off what the variance algorithms themselves leave on symbols."""

from dataclasses import replace

import numpy as np
import pytest

from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.merges_read import MergeReader
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.arithmetic.graph.order_read import OrderError
from verifier.arithmetic.graph.symbols import SymbolicArithmetic
from verifier.arithmetic.trees.admitted import not_admitted
from verifier.arithmetic.trees.tree import Tree, sequential, tile, tree
from verifier.bounds.variance import Reduction, algorithm

LANES = tree(lanes=4)


def read(order, n, contraction="uniform", changed=lambda leaves: leaves):
    """Run Welford's algorithm along a tree on symbols, and read its order off what it leaves."""
    builder = Builder()
    rounded = SymbolicArithmetic(format=FORMATS["float32"], builder=builder)
    x = rounded.symbols(builder.append("input:x", value=np.arange(n)[None, :]))
    claim = Reduction(arithmetic=ieee("float32"), tree=order, mean_contraction=contraction)
    mean, variance = algorithm("welford").simulate(rounded, changed(x), claim)
    outputs = {"mean": rounded.nodes(mean), "variance": rounded.nodes(variance), "x": rounded.nodes(x)[0]}
    normaliser = Normaliser(SharedTerms(), "EZF")
    form = normaliser.normal(builder.graph(outputs, {"x": "f32"}))
    edges = np.concatenate([form.outputs["mean"], form.outputs["variance"]])
    reader = MergeReader(normaliser.terms, edges)
    return reader, reader.roots(form.outputs["x"]), form


@pytest.mark.parametrize("contraction", ["none", "uniform"])
@pytest.mark.parametrize(("order", "n"), [(LANES, 4), (LANES, 6), (LANES, 13), (sequential(), 5)])
def test_the_order_of_merges_is_that_in_which_they_were_made(order, n, contraction):
    reader, (root,), form = read(order, n, contraction)
    assert root.term == int(form.outputs["mean"][0]) >> 1
    assert reader.users((root,), form.outputs["mean"]).tolist() == [1]
    assert not_admitted(order, root.steps, n, own=False) == ""
    assert sum(len(step.left) for step in root.steps) == n - 1
    wanted = sum(len(step.left) for step in order.steps(n) if step.update)
    assert sum(len(step.left) for step in root.steps if step.update) == wanted


def test_an_element_that_is_left_out_or_taken_twice_is_no_mean_of_all():
    with pytest.raises(OrderError, match="of 5 at most"):
        read(sequential(), 6, changed=lambda x: x[:, :5])
    with pytest.raises(OrderError, match="no mean of all 6 elements"):
        read(sequential(), 6, changed=lambda x: x[:, [0, 1, 2, 3, 4, 4]])


def test_an_order_is_admitted_only_where_the_bound_of_the_declared_tree_holds():
    n, far = 16, tree(lanes=4).orders(16)[1]
    assert not_admitted(tree(lanes=4), far, n, own=False) == ""
    near = Tree(kind="custom", depth_of=LANES.depth, steps_of=LANES.steps, stages_of=LANES.stages)
    assert "another order" in not_admitted(near, far, n, own=False)
    assert "updates" in not_admitted(tree(lanes=8), far, n, own=False)
    assert "elements of the lanes" in not_admitted(
        replace(tile(block=4, threads=4, element_bytes=16), updates_of=tree(chunks=4).steps), far, n, own=True
    )
    assert "merges" in not_admitted(tree(lanes=2), list(tree(lanes=4).steps(4)), 4, own=True)
    assert not_admitted(tile(block=4, threads=4, element_bytes=16), far, n, own=True) == ""


def test_elements_that_the_code_never_reads_are_in_no_mean():
    reader, _, form = read(sequential(), 6)
    terms = reader._terms
    absent = np.full((3, 3), -1, dtype=np.int64)
    later = 2 * terms.shared("input:x:f32", absent, np.arange(6, 9, dtype=np.uint64))
    with pytest.raises(OrderError, match="no mean of all 9 elements"):
        reader.roots(np.concatenate([form.outputs["x"], later]))
