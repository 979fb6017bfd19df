"""The table of an expression graph, its levels, and which leaves its outputs reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from verifier.arithmetic.graph.graph import Builder, Graph, ids, pruned
from verifier.arithmetic.graph.levels import levels
from verifier.arithmetic.graph.support import labels_of, leaves_of, reach, unknown_leaves


def row_sums(rows: int, columns: int, *, leak: bool = False) -> Graph:
    """Return sums of rows in order; with `leak` the last adds zero times the next row's first element."""
    builder = Builder()
    x = builder.append("input:x", value=np.arange(rows * columns).reshape(rows, columns))
    zero = builder.append("literal:f32", value=0)
    total = x[:, 0]
    for j in range(1, columns):
        total = builder.append("add.rn.f32", total, x[:, j], line=f"sum.py:{j}")
    builder.append("mul.rn.f32", total, total)  # reaches no output
    if leak:
        total = builder.append("fma.rn.f32", np.roll(x[:, 0], -1), zero, total)
    return builder.graph({"y": total}, {"x": "f32"})


def test_an_operand_must_be_an_earlier_node() -> None:
    builder = Builder()
    a = builder.append("input:x", value=np.arange(2))
    builder.append("add.rn.f32", a, a + 1)
    builder.append("add.rn.f32", a + 4, a)
    with pytest.raises(ValueError, match=r"node 4 uses .* not all earlier"):
        builder.graph({})


def test_a_leaf_has_no_operands_and_an_operation_has_some() -> None:
    builder = Builder()
    builder.append("add.rn.f32", value=np.arange(2))
    with pytest.raises(ValueError, match="an operation has none"):
        builder.graph({})


def test_pruning_keeps_what_outputs_reach(tmp_path: Path) -> None:
    graph = row_sums(3, 4)
    small = pruned(graph)
    assert len(graph) - len(small) == 3 + 1  # the squares and the literal
    small.save(tmp_path / "graph.npz")
    again = Graph.load(tmp_path / "graph.npz")
    assert again.names == small.names
    assert (again.operands == small.operands).all()
    assert again.formats == {"x": "f32"}
    assert (leaves_of(again, again.outputs["y"]) == np.arange(12)).all()


def test_levels_hold_every_node_once_above_its_operands() -> None:
    graph = row_sums(3, 40)
    height = np.full(len(graph), -1)
    for level, nodes in enumerate(levels(graph)):
        assert (height[nodes] == -1).all()
        height[nodes] = level
    below = graph.operands
    assert (height >= 0).all()
    assert (np.where(below >= 0, height[below], -1) < height[:, None]).all()
    assert height.max() == 40


@pytest.mark.parametrize("leak", [False, True])
def test_zero_times_a_neighbour_reaches_the_neighbour(leak: bool) -> None:
    graph = row_sums(4, 3, leak=leak)
    found = reach(graph, labels_of(graph, "x", np.repeat(np.arange(4), 3)))
    assert found.outside(graph.outputs["y"], ids(range(4))).tolist() == [leak] * 4
    assert found.none(graph.named("literal:")).all()


def test_an_unknown_leaf_is_found_below_outputs_only() -> None:
    builder = Builder()
    lost, other = builder.append("unknown:shl"), builder.append("unknown:prmt")
    graph = builder.graph({"y": builder.append("neg.f32", lost), "z": other[None][:0]})
    assert {reason: nodes.tolist() for reason, nodes in unknown_leaves(graph).items()} == {"shl": [0]}
