"""A certificate says in which order each sum is made, and which columns use which of several means."""

import numpy as np
import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import KERNELS, machine_runner
from triton_release import supposes_triton

from verifier.arithmetic.trees.canonical import order
from verifier.arithmetic.trees.tree import sequential
from verifier.checks.support.certificate_at_shape import certified
from verifier.checks.support.named_sums import ranges
from verifier.commands.certify import _sum_lines
from verifier.commands.explain import case_for
from verifier.records.certificate import ReadOrder
from verifier.subjects.load_file import load


@pytest.fixture(scope="module")
def runner():
    with machine_runner() as opened:
        yield opened


def sums(runner, name, columns, *, gradients=False):
    subject = load(KERNELS / f"{name}.py").subjects[0]
    case = case_for(subject, "float32", 3, columns, 0.0, 0)
    return certified(subject, case, runner=runner, gradients=gradients).proofs[0].sums


def test_each_sum_has_the_digest_of_its_order(runner):
    found = sums(runner, "layer_norm_two_pass_triton", 33, gradients=True)
    assert [len(one.sha256) for made in found for one in made.orders] == [64] * 6
    mean, variance, *_, over_rows = found
    assert mean.orders == variance.orders  # one tree, of elements and of squares
    assert mean.orders[0].columns == {}
    rows = order(list(sequential().steps(over_rows.terms)), over_rows.terms, "sum")
    assert over_rows.orders == (ReadOrder(sha256=rows.sha256, tree="sequential()", columns={}),)


@supposes_triton("3.8", "one lane stores the mean that all use")
def test_each_mean_of_a_row_has_an_order_of_its_own_and_names_its_columns(runner):
    (mean,) = sums(runner, "layer_norm_welford_triton", 512)
    assert len({one.sha256 for one in mean.orders}) == 4
    assert {one.tree for one in mean.orders} == {"tree(lanes=128, warp=32)"}
    columns = [one.columns["output"] for one in mean.orders]
    assert columns == [f"{first}..{508 + first} step 4" for first in range(4)]
    assert sum("mean" in one.columns for one in mean.orders) == 1  # that of the lane that stores it
    headline, *lines = _sum_lines(mean)
    assert "in 4 orders, a mean of each; used by output, mean" in headline
    for text, line in zip(columns, lines, strict=True):
        assert f"columns {text} of output" in line


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([5], "5"),
        (range(8), "0..7"),
        (range(1, 510, 4), "1..509 step 4"),
        ([0, 1, 2, 3, 16, 17, 18, 19, 32, 33], "0..3 in each 16 to 33"),
        ([0, 1, 5, 9, 10], "0..1, 5, 9..10"),
        ([], ""),
    ],
)
def test_columns_are_told_in_ranges(columns, said):
    assert ranges(np.array(columns, dtype=np.int64)) == said
