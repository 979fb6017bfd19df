"""A declaration says what its variance algorithm takes, and nothing that it does not take."""

from dataclasses import dataclass

import numpy as np
import pytest

from verifier import subject, tree
from verifier.arithmetic.formats import ieee
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import pairwise, sequential
from verifier.bounds import variance
from verifier.bounds.variance import Reduction, algorithm, algorithms
from verifier.bounds.variance.options import chosen_options, option_rules, reduction


def declared(variance, options):
    @subject(
        op="layer_norm",
        language="torch",
        dtypes=("float32",),
        variance=variance,
        variance_options=options,
    )
    def kernel(input, normalized_shape, weight=None, bias=None, eps=1e-5):
        return input

    return kernel


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("chan", {"merged": "weighted"}, "'chan' has no option 'merged'; its options are: merge, per_lane"),
        ("rms", {"merge": "weighted"}, "'rms' has no option 'merge'; it has no options"),
        ("chan", {"merge": "average"}, "'merge' .* is one of increment, weighted, pooled, not 'average'"),
        ("shifted", {"shift_index": True}, "'shift_index' .* is the index of an element, not True"),
        ("two_pass", {"mean_cast": "half"}, "'mean_cast' .* is one of .*, not 'half'"),
        ("two_pass", {"squares_tree": 8}, "'squares_tree' .* is a tree, not 8"),
        ("two_pass_corrected_mean", {"corrects_mean": 1}, "is True or False, not 1"),
        ("four_pass", {"merge": "weighted"}, "no variance algorithm 'four_pass'"),
        (None, {"merge": "weighted"}, "variance_options without variance"),
    ],
)
def test_what_an_algorithm_does_not_take_is_refused_in_the_declaration(name, options, words):
    with pytest.raises(ValueError, match=rf"@subject: .*{words}"):
        declared(name, options)


def test_another_algorithm_does_not_inherit_the_options():
    kernel = declared("chan", {"merge": "pooled"})
    assert dict(kernel.claim.variance_options) == {"merge": "pooled"}
    assert dict(kernel.differing(variance="two_pass").claim.variance_options) == {}
    assert dict(kernel.differing(accumulates="float64").claim.variance_options) == {"merge": "pooled"}


ROWS = exact_statistics(np.random.default_rng(3).normal(size=(2, 32)) * 2.0**-4 + 3.0)


VALUES = {
    "merge": "weighted",
    "per_lane_means": True,
    "mean_cast": "bfloat16",
    "squares_tree": sequential(),
    "corrects_mean": True,
    "shift_index": 7,
}
"""A value of every option that is not its default."""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("welford", {"merge": "pooled"}),
        ("two_pass_corrected", {"mean_cast": "float16"}),
        *((name, {option: VALUES[option]}) for name in algorithms() for option in option_rules(name)),
    ],
)
def test_every_option_moves_a_bound(name, options):
    common = {"arithmetic": ieee("float32"), "tree": pairwise(), "mean_contraction": "none"}
    plain = algorithm(name).bound(ROWS, reduction(name, {}, Reduction(**common)))
    other = algorithm(name).bound(ROWS, reduction(name, options, Reduction(**common)))
    moved = (plain.variance_error != other.variance_error) | (plain.mean_error != other.mean_error)
    assert (moved | (plain.mean_spread != other.mean_spread)).all()


def test_an_option_given_explicitly_replaces_what_the_form_implies():
    common = {"arithmetic": ieee("float32"), "tree": tree(lanes=4), "mean_cast": "float16"}
    assert reduction("two_pass", {}, Reduction(**common)).mean_cast == "float16"
    assert reduction("two_pass", {"mean_cast": "bfloat16"}, Reduction(**common)).mean_cast == "bfloat16"
    # A cast to the format that it already has rounds nothing, and is no reason to see one mean.
    assert reduction("two_pass", {"mean_cast": "float32"}, Reduction(**common)).mean_cast is None


def test_an_algorithm_with_a_parameter_of_its_own_needs_one_file(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Own:
        blocks: int = 2

    class Module:
        NAME = "own"
        OPTIONS = Own

    monkeypatch.setattr(variance, "algorithms", lambda: {"own": Module})
    assert chosen_options("own", {"blocks": 3}) == Own(blocks=3)
    made = reduction("own", {"blocks": 3}, Reduction(arithmetic=ieee("float32"), tree=pairwise()))
    assert made.options.blocks == 3
    with pytest.raises(ValueError, match="no option 'block'; its options are: blocks"):
        chosen_options("own", {"block": 3})


def test_a_shift_by_an_element_that_the_row_does_not_have_is_no_theorem():
    claim = reduction("shifted", {"shift_index": 32}, Reduction(arithmetic=ieee("float32"), tree=pairwise()))
    assert not algorithm("shifted").bound(ROWS, claim).covered.any()
    claim = reduction("shifted", {"shift_index": -32}, Reduction(arithmetic=ieee("float32"), tree=pairwise()))
    assert algorithm("shifted").bound(ROWS, claim).covered.all()
