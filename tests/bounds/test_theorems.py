"""The theorems as certificates state them are those of docs/explanation/bounds.md."""

import re
from pathlib import Path

import pytest

from verifier.bounds.theorems import BELOW_HALF, THEOREMS, stated
from verifier.bounds.variance import algorithms
from verifier.ops import ops

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "bounds.md"


def page():
    text = PAGE.read_text(encoding="utf-8").replace("**", "").replace("\\|", "|")
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("number", THEOREMS)
def test_each_bound_stands_on_the_page_under_its_number(number):
    section = page().partition(f"### {number}: ")[2].partition(" ### ")[0]
    assert THEOREMS[number].bound in section
    assert THEOREMS[number].asks


def test_every_theorem_of_an_algorithm_is_stated_and_so_is_where_it_ends():
    assert {number for one in algorithms().values() for number in one.THEOREMS} <= {*THEOREMS}
    assert {*BELOW_HALF} == {*algorithms()}
    table = page().partition("### T12: ")[2]
    for quantities in BELOW_HALF.values():
        assert [one for one in quantities if one not in table] == []
    assert "N·A2" in stated("T12", "rms").asks[-1]
    assert stated("T12", None) == THEOREMS["T12"]


def test_ops_have_the_theorems_of_what_they_do_besides():
    """By what they compute: a name that has "gate" in it says nothing."""
    assert {number for the_op in ops().values() for number in the_op.theorems} <= {*THEOREMS}
    besides = {name: the_op.theorems for name, the_op in ops().items() if the_op.theorems}
    assert besides["dropout_add_rms_norm"] == besides["add_layer_norm"] == ("T14",)
    gated = ("silu_gate_rms_norm", "sigmoid_gate_layer_norm", "layer_norm_sigmoid_gate")
    assert {besides[name] for name in gated} == {("T15",)}
    assert besides["causal_log_softmax"] == besides["masked_softmax"] == ("T11", "T16")
    assert besides["softmax"] == besides["log_softmax_backward"] == ("T11",)
    assert (besides["dynamic_tanh"], besides["poly_norm"]) == (("T17",), ("T18",))
    assert not {"layer_norm", "group_norm", "rms_norm_one_plus_weight", "l2_norm"} & {*besides}
