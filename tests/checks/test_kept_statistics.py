"""What batch norm keeps of one value a channel, whose unbiased variance is 0 / 0."""

from dataclasses import replace

import pytest
import torch
from checks_support import KERNELS, examination, faulty, subject_of

from verifier import Domain
from verifier.cases.recipe import Recipe, build
from verifier.ops import op
from verifier.records.verdict import Verdict

KEEPS_NAN = faulty("running_variance_of_one_value")


def judged(subject, columns=1, **scalars):
    """The outcomes of `finite` on one case, and whether one is a finding."""
    case = build(op("batch_norm"), subject, "float32", Recipe(rows=2, columns=columns), gradients=False)
    case = replace(case, scalars={**case.scalars, **scalars})
    examining = examination(subject, "finite")
    outcomes, _ = examining.judge(case)
    return outcomes, any(examining.is_finding(case, o) for o in outcomes)


def leaves_it(  # noqa: PLR0917 (a kernel's arguments)
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    before = None if running_var is None else running_var.clone()
    out = KEEPS_NAN(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if before is not None and running_var.isnan().any():
        running_var.copy_(before)
    return out


@pytest.mark.parametrize("domain", [None, KEEPS_NAN.domain, Domain(min_columns=2)])
def test_a_running_variance_that_becomes_nan_is_a_finding_outside_of_a_domain_too(domain):
    outcomes, found = judged(replace(KEEPS_NAN, domain=domain), training=True)
    assert [(o.output, o.verdict) for o in outcomes] == [
        ("output", Verdict.PASS),
        ("running_var", Verdict.FAIL),
    ]
    assert "2 of 2" in outcomes[1].message
    assert found


def test_one_that_stays_finite_is_right():
    outcomes, found = judged(replace(KEEPS_NAN, function=leaves_it), training=True)
    assert [o.verdict for o in outcomes] == [Verdict.PASS, Verdict.PASS]
    assert not found


@pytest.mark.parametrize(("columns", "training"), [(1, False), (2, True)])
def test_where_there_is_an_exact_value_nothing_else_is_asked(columns, training):
    outcomes, _ = judged(KEEPS_NAN, columns, training=training)
    assert [o.output for o in outcomes] == ["output"]


@pytest.mark.parametrize("stem", ["batch_norm_torch", "batch_norm_welford_torch"])
def test_to_refuse_one_value_is_right(stem):
    outcomes, found = judged(subject_of(KERNELS / f"{stem}.py"), training=True)
    assert [o.verdict for o in outcomes] == [Verdict.REFUSED]
    assert not found


def test_nan_in_the_input_may_be_kept():
    subject = KEEPS_NAN
    case = build(op("batch_norm"), subject, "float32", Recipe(rows=2, columns=1), gradients=False)
    case = replace(case, tensors={**case.tensors, "input": torch.full_like(case.given["input"], torch.nan)})
    assert examination(subject, "finite").judge(case)[0] == []
