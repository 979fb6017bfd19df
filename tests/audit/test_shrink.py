"""A failing case stays one of its op while it shrinks: what the op derives from the input follows it."""

from dataclasses import replace

import pytest
import torch

from strategies.values import Values
from verifier.audit.shrink import shrunk
from verifier.audit.trial import Failure, Trial
from verifier.cases.recipe import Recipe, build
from verifier.ops import op

BACKWARD = """
@subject(op="layer_norm_backward", language="torch", accumulates="float32", dtypes=("float32",),
         trees=tree(depth=lambda n: max(n, 1)), returns=("grad_input",))
def wrong_where_the_mean_is_large(grad_output, input, weight=None, *, mean, rstd):
    columns = input.shape[-1]
    wide = (-1, *[1] * (input.dim() - 1))
    rows = input.reshape(-1, columns)
    g = (grad_output if weight is None else grad_output * weight).reshape(-1, columns)
    hat = (rows - mean[:, None]) * rstd[:, None]
    grad = (g - g.mean(1, keepdim=True) - hat * (g * hat).mean(1, keepdim=True)) * rstd[:, None]
    return (grad * torch.where(mean.abs() > 3, 2.0, 1.0)[:, None]).reshape(input.shape)
"""


@pytest.fixture
def failure(subjects_of, runner):
    """A trial with a wrong kernel, and its failure on rows about 8."""
    (subject,) = subjects_of(BACKWARD).values()
    values = {"input": Values(seed=3), "weight": Values(seed=4), "grad_output": Values(seed=5)}
    recipe = Recipe(rows=6, columns=12, **values)
    case = build(op(subject.op), subject, "float32", recipe, gradients=True)
    assert case is not None
    moved = {**case.tensors, "input": case.given["input"] + 8}
    case = replace(case, tensors=op(subject.op).complete(moved, case.scalars, subject))
    trial = Trial(subject=subject, check_name="gradient", dtype="float32", runner=runner)
    return trial, failure_of(trial, case)


def failure_of(trial, case):
    outcomes, detail = trial.judge(case)
    bad = next(outcome for outcome in outcomes if trial.is_finding(case, outcome))
    return Failure(case=case, outcome=bad, detail=detail)


def test_mean_and_rstd_stay_those_of_the_input(failure):
    trial, found = failure
    small = shrunk(trial, found, lambda _: False).case
    assert small.rows == 1
    assert small.elements < found.case.elements / 6
    made = op(small.op).complete(small.tensors, small.scalars, trial.subject)
    for name in ("mean", "rstd"):
        assert torch.equal(small.given[name], made[name])


def test_statistics_that_are_not_the_inputs_shrink_as_they_are(failure):
    trial, found = failure
    other = replace(found.case, tensors={**found.case.tensors, "mean": found.case.given["mean"] + 1})
    small = shrunk(trial, failure_of(trial, other), lambda _: False).case
    assert small.elements < other.elements
    assert failure_of(trial, small).key == failure_of(trial, other).key
