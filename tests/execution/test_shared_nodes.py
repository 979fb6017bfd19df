"""A recording keeps each distinct expression once, and says how often it was computed."""

import numpy as np
import pytest

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Graph, pruned
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.execution import shared_nodes
from verifier.execution.shared_nodes import commuted, digest, live, shared
from verifier.machine.shadow.graph_nodes import Nodes

FORMATS = {"x": "f32"}


def recorded():
    """Two threads compute x[0] + x[1] and its square, one of which nobody uses."""
    nodes = Nodes()
    x = nodes.add("input:x", (2, 2), value=np.array([[0, 1], [0, 1]]))
    total = nodes.add("add.rn.f32", (2,), (x[:, 0], x[:, 1]), line="k.py:1")
    square = nodes.add("mul.rn.f32", (2,), (total, total), line="k.py:2")
    nodes.add("neg.f32", (2,), (square,))
    return nodes, {"y": square, "s": total[:1]}


def test_equal_expressions_are_one_and_are_counted():
    nodes, outputs = recorded()
    kept = live(nodes, outputs)
    (graph,) = shared(nodes, [(kept, outputs)], FORMATS)
    assert kept.tolist() == [True] * 8 + [False] * 2
    assert [graph.names[code] for code in graph.operation] == ["input:x"] * 2 + ["add.rn.f32", "mul.rn.f32"]
    assert graph.made.tolist() == [2, 2, 2, 2]
    assert [graph.lines[line] for line in graph.line] == ["", "", "k.py:1", "k.py:2"]
    assert {name: ids.tolist() for name, ids in graph.outputs.items()} == {"y": [3, 3], "s": [2]}


def test_the_normal_form_and_what_rules_counted_are_those_of_all_nodes():
    nodes, outputs = recorded()
    one = nodes.add("literal:f32", (2,), value=np.full(2, 0x3F800000))
    outputs["y"] = nodes.add("mul.rn.f32", (2,), (outputs["y"], one))
    terms = SharedTerms()
    whole = Graph(**nodes.columns(), outputs=outputs, formats=FORMATS)
    forms = [
        Normaliser(terms).normal(graph)
        for graph in (whole, *shared(nodes, [(live(nodes, outputs), outputs)], FORMATS))
    ]
    assert all(np.array_equal(forms[0].outputs[name], forms[1].outputs[name]) for name in outputs)
    assert forms[0].fired["times_one"] == forms[1].fired["times_one"] == 2


def test_what_is_unknown_or_summed_in_an_unknown_order_equals_nothing_else():
    nodes = Nodes()
    x = nodes.add("input:x", (2,), value=np.array([0, 0]))
    lost = nodes.add("unknown:a read", (2,))
    total = nodes.add("torch.sum.f32", (2,), (x, x))
    outputs = {"lost": lost, "total": total}
    (graph,) = shared(nodes, [(live(nodes, outputs), outputs)], FORMATS)
    assert all(len({*ids.tolist()}) == 2 for ids in graph.outputs.values())
    assert not graph.value.any()


def test_a_digest_is_of_all_nodes_that_results_reach():
    (nodes, outputs), (again, same) = recorded(), recorded()
    first = digest(nodes, live(nodes, outputs), outputs)
    again.add("abs.f32", (2,), (same["y"],))
    assert first == digest(again, live(again, same), same)  # no result reaches it
    turned = {name: ids.reshape(-1, 1) for name, ids in outputs.items()}
    assert first != digest(nodes, live(nodes, outputs), turned)
    nodes.rows[2].operands[0][:] = nodes.rows[0].first
    assert first != digest(nodes, live(nodes, outputs), outputs)


def test_a_line_is_one_of_the_part_that_computes_the_node():
    """A branch asks first for what a result computes elsewhere."""
    nodes = Nodes()
    x = nodes.add("input:x", (2,), value=np.array([0, 1]))
    asked = nodes.add("add.rn.f32", (1,), (x[:1], x[1:]), line="k.py:1")
    total = nodes.add("add.rn.f32", (1,), (x[:1], x[1:]), line="k.py:9")
    parts = [(live(nodes, wanted), wanted) for wanted in ({"y": total}, {"true": asked})]
    result, path = shared(nodes, parts, FORMATS)
    assert [graph.lines[graph.line[-1]] for graph in (result, path)] == ["k.py:9", "k.py:1"]


def test_nodes_that_results_reach_are_those_of_the_whole_graph():
    nodes, outputs = recorded()
    whole = Graph(**nodes.columns(), outputs=outputs, formats=FORMATS)
    assert int(live(nodes, outputs).sum()) == len(pruned(whole))


@pytest.mark.parametrize("several", [True, False])
def test_graphs_of_several_parts_are_those_of_each_alone(several, monkeypatch):
    """Where no part computes an expression earlier than another one does, in each column."""
    monkeypatch.setattr(shared_nodes, "_UNLIKE", 8 if several else 0)
    nodes, outputs = recorded()
    half = nodes.add("literal:f32", (1,), value=np.array([0x3F000000]))
    asked = {"true": nodes.add("setp.gt.f32", (1,), (half, nodes.add("abs.f32", (1,), (outputs["s"],))))}
    parts = [(live(nodes, wanted), wanted) for wanted in (outputs, asked, *([] if several else [{}]))]
    for graph, part in zip(shared(nodes, parts, FORMATS), parts, strict=True):
        (alone,) = shared(nodes, [part], FORMATS)
        for column in ("names", "lines", "formats"):
            assert getattr(graph, column) == getattr(alone, column)
        for column in ("operation", "operands", "value", "line", "made"):
            assert np.array_equal(getattr(graph, column), getattr(alone, column))
        assert {n: e.tolist() for n, e in graph.outputs.items()} == {
            n: e.tolist() for n, e in alone.outputs.items()
        }


@pytest.mark.parametrize("most", [1, 4, 1 << 16])
def test_alike_rows_are_one_graph_however_many_are_taken_together(most, monkeypatch):
    """Of eight alike rows of two nodes no more than that are taken at once, unless one is larger."""
    monkeypatch.setattr(shared_nodes, "_TOGETHER", most)
    taken, found = [], shared_nodes._found
    monkeypatch.setattr(
        shared_nodes,
        "_found",
        lambda terms, name, count, *given: taken.append((name, count)) or found(terms, name, count, *given),
    )
    nodes = Nodes()
    x = nodes.add("input:x", (8, 2), value=np.arange(16).reshape(8, 2) % 12)
    squares = np.stack([nodes.add("mul.rn.f32", (2,), (row, row)) for row in x])
    (graph,) = shared(nodes, [(live(nodes, {"y": squares}), {"y": squares})], FORMATS)
    assert max(count for name, count in taken if name.startswith("mul")) == min(max(most, 2), 16)
    assert sorted(graph.made.tolist()) == [1] * 16 + [2] * 8
    assert graph.value[graph.operands[graph.outputs["y"], 0]].ravel().tolist() == [n % 12 for n in range(16)]


def test_copies_are_compared_but_for_the_order_of_two_operands():
    nodes = Nodes()
    a, b, c, d = (nodes.add("input:x", (1,), value=np.array([n])) for n in range(4))
    first = nodes.add("add.f32", (1,), (nodes.add("mul.f32", (1,), (a, b)), c))
    other = nodes.add("add.rn.f32", (1,), (c, nodes.add("mul.f32", (1,), (b, a))))
    less = nodes.add("sub.f32", (1,), (c, nodes.add("mul.f32", (1,), (b, a))))
    apart = nodes.add("add.f32", (1,), (nodes.add("mul.f32", (1,), (a, d)), c))
    flushed = nodes.add("add.ftz.f32", (1,), (nodes.add("mul.f32", (1,), (a, b)), c))
    found = commuted(nodes, np.repeat(first, 5), np.concatenate([first, other, less, apart, flushed]))
    assert found.tolist() == [True, True, False, False, False]


def test_of_a_sum_of_two_products_either_may_be_fused_where_that_is_asked():
    nodes = Nodes()
    a, b, c, d = (nodes.add("input:x", (1,), value=np.array([n])) for n in range(4))
    pairs = [(a, b, c, d), (c, d, a, b), (d, c, b, a), (a, c, b, d)]
    sums = [nodes.add("fma.rn.f32", (1,), (x, y, nodes.add("mul.f32", (1,), (z, w)))) for x, y, z, w in pairs]
    flushed = nodes.add("fma.rn.ftz.f32", (1,), (a, b, nodes.add("mul.f32", (1,), (c, d))))
    others = np.concatenate([*sums, flushed])
    for fused, expected in ((True, [True, True, True, False, False]), (False, [True] + 4 * [False])):
        assert commuted(nodes, np.repeat(sums[0], 5), others, fused=fused).tolist() == expected
