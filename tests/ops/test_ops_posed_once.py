"""A case is posed to the oracle once and solved once, whatever is asked of the truth about it."""

from dataclasses import replace

import numpy as np
import pytest
from rounded_ops import TREES, declared

from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.cases.recipe import Recipe, build
from verifier.checks.support import truth as truths
from verifier.ops import Bounded, Setting, op, ops


@pytest.mark.parametrize("name", [name for name, one in ops().items() if one.needs_variance])
def test_an_op_says_whether_its_statistics_have_a_mean(name):
    subject = declared(name, variance="two_pass" if op(name).needs_mean else "rms")
    recipe = Recipe(rows=4, columns=6, input=Values(), grad_output=Values(seed=1))
    case = build(op(name), subject, "float32", recipe, gradients=True)
    problem = op(name).problem(case)
    assert getattr(problem, "norm", problem).centred is op(name).needs_mean


@pytest.mark.parametrize(
    "name", ["layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax", "log_softmax_backward"]
)
def test_a_case_is_posed_and_solved_once(name, monkeypatch):
    subject = declared(name, variance="rms" if name == "rms_norm" else "two_pass")
    recipe = Recipe(rows=4, columns=6, input=Values(), grad_output=Values(seed=1))
    case = build(op(name), subject, "float32", recipe, gradients=True)
    calls = []

    def posed(case):
        calls.append("posed")
        return op(name).problem(case)

    def solved(problem):
        calls.append("solved")
        return problem.solve()

    watched = replace(op(name), problem=posed)
    monkeypatch.setattr(truths, "op", lambda _: watched)
    monkeypatch.setattr(truths, "solve", solved)
    truth = truths.Truth(subject=subject, case=case, setting=Setting(arithmetic=ieee("float32"), trees=TREES))
    assert set(truth.bounds) <= set(truth.exact)
    assert truth.canonical_bounds.keys() == truth.bounds.keys()
    nothing = {n: Bounded(bound=0.0 * b.bound, covered=b.covered) for n, b in truth.bounds.items()}
    assert truth.bounded_by(nothing).bounds is nothing
    other = truth.claimed_by(subject.differing(divide_by_n="reciprocal"), truth.setting)
    assert other.exact is truth.exact
    assert other.bounds.keys() == truth.bounds.keys()
    assert all(np.isfinite(b.bound).all() for b in other.bounds.values())
    assert calls == ["posed", "solved"]
