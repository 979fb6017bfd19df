"""A tree on the command line is the one that the same words of a declaration make."""

import pytest
from typer.testing import CliRunner

from verifier.arithmetic.trees.text import parse_tree
from verifier.arithmetic.trees.tree import any_order, either, pairwise, sequential, tile, torch_cascade, tree
from verifier.bounds import table
from verifier.commands.command_line import app

SAME = [
    ("sequential", "sequential()", sequential()),
    (" pairwise() ", "pairwise()", pairwise()),
    ("any order", "any_order()", any_order()),
    ("lanes=256", "tree(lanes=256)", tree(lanes=256)),
    ("tree(chunks=8)", "tree(chunks=8)", tree(chunks=8)),
    ("depth=20", "tree(depth=20)", tree(depth=20)),
    (
        "lanes=8, combine=sequential, extra_depth=2",
        "tree(lanes=8, combine='sequential', extra_depth=2)",
        tree(lanes=8, combine="sequential", extra_depth=2),
    ),
    ("tile(block=64, threads=32)", "tile(block=64, threads=32)", tile(block=64, threads=32)),
    ("torch_cascade(lanes=4)", "torch_cascade(lanes=4)", torch_cascade(lanes=4)),
    (
        "either(tree(lanes=8), pairwise())",
        "either(tree(lanes=8), pairwise())",
        either(tree(lanes=8), pairwise()),
    ),
]


@pytest.mark.parametrize(("text", "said", "expected"), SAME, ids=[said for _, said, _ in SAME])
def test_words_make_the_tree_of_a_declaration(text, said, expected):
    name, found = parse_tree(text)
    assert name == said
    assert (found.kind, found.lanes, found.combine, found.extra_depth) == (
        expected.kind,
        expected.lanes,
        expected.combine,
        expected.extra_depth,
    )
    for count in (1, 2, 33, 1000):
        assert found.depth(count) == expected.depth(count)
        assert found.stages(count) == expected.stages(count)


def test_what_is_said_can_be_pasted_into_a_declaration():
    names = {f.__name__: f for f in (any_order, either, pairwise, sequential, tile, torch_cascade, tree)}
    for _, said, expected in SAME:
        assert eval(said, names).depth(1000) == expected.depth(1000)
        assert parse_tree(said)[0] == said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no tree"),
        ("lane", "is no tree"),
        ("tree(lanes=8", "is no tree"),
        ("tree(8)", "is no tree"),
        ("__import__('os')", "is no tree"),
        ("tree.tree()", "is no tree"),
        ("lanes=0", "whole number of at least 1"),
        ("lanes=2.5", "whole number of at least 1"),
        ("lanes=True", "whole number of at least 1"),
        ("lanes=-8", "whole number of at least 1"),
        ("lanes=8, extra_depth=-1", "whole number of at least 0"),
        ("lanes=8, combine=random", "butterfly, sequential"),
        ("lanes=8, chunks=8", "exactly one of"),
        ("extra_depth=1", "exactly one of"),
        ("tile(block=64)", "missing a required argument: 'threads'"),
        ("sequential(lanes=8)", "unexpected keyword argument 'lanes'"),
        ("tree(**{'lanes': 8})", "whole number"),
        ("either()", "name their orders"),
        ("either(any_order())", "name their orders"),
    ],
)
def test_other_words_are_refused_with_a_reason(text, message):
    with pytest.raises(ValueError, match=message):
        parse_tree(text)


def bounds(*words):
    return CliRunner().invoke(app, ["bounds", "-N", "64", *words])


def test_the_command_takes_any_declared_tree():
    for words, said in (
        ("sequential", "sequential(), an element meets at most 63 additions"),
        ("depth=9", "9 a"),
    ):
        ended = bounds("--tree", words)
        assert ended.exit_code == 0
        assert f"{said}" in ended.output
    default, same = bounds(), bounds("--tree", "lanes=256")
    assert default.output == same.output
    assert default.output != bounds("--tree", "lanes=2").output


@pytest.mark.parametrize("words", ["lanes=0", "depth=5", "heap"])
def test_the_command_refuses_a_tree_that_cannot_be(words):
    ended = bounds("--tree", words)
    assert ended.exit_code == 2
    assert f"--tree '{words}'" in ended.output
    assert "Traceback" not in ended.output


def test_the_command_shows_no_observation_where_nothing_was_simulated(monkeypatch):
    monkeypatch.setattr(table, "LONGEST_FOLLOWED", 20)
    (line,) = [
        line for line in bounds("--tree", "sequential").output.splitlines() if line.startswith("two_pass ")
    ]
    cells = line.split()
    assert [cells[i] for i in (3, 5, 7)] == ["-", "-", "-"]
    assert all(float(cells[i]) > 0 for i in (1, 2, 4, 6))
