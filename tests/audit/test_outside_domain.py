"""Cases outside a domain of values are looked for among hazards that leave it, and not where none does."""

from dataclasses import replace
from itertools import islice

import pytest

from strategies.hazards import hazard_names
from verifier.audit import rules
from verifier.audit.outside_domain import COLUMNS, plan_outside
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan
from verifier.cases.recipe import build
from verifier.ops import op
from verifier.records.subject import Domain


@pytest.fixture
def promising(subjects_of):
    body = """
    @subject(**DECLARED)
    def good(input, weight=None, bias=None, eps=1e-5):
        return right(input, weight, bias, eps)
    """
    return lambda domain: subjects_of(body)["good"].differing(domain=domain)


VALUES = (Domain(max_abs=1e15), Domain(max_abs=1e15, max_kappa=1e3), Domain(max_kappa=10.0))


@pytest.mark.parametrize("domain", VALUES)
def test_hazards_that_leave_are_those_of_cases_outside(promising, domain):
    subject, plan = promising(domain), Plan()
    beyond = plan_outside(subject, "float32", plan)
    assert 1 < len(beyond.hazards) < len(hazard_names(finite_only=True)) / 2
    outside = set()
    for recipe in islice(covering(subject.differing(domain=None), plan), 300):
        case = build(op(subject.op), subject, "float32", recipe, gradients=False)
        long = case is not None and case.columns >= COLUMNS  # short rows may leave by chance
        if long and recipe.joint is None and rules.outside(subject, case):
            outside.add(recipe.input.hazard)
    assert outside == set(beyond.hazards)
    assert replace(beyond, hazards=None) == plan


@pytest.mark.parametrize("domain", VALUES[:2])
def test_nothing_is_looked_for_where_no_hazard_leaves(promising, domain):
    assert plan_outside(promising(domain), "float32", Plan(hazards=("ordinary", "zeros"))) is None
    assert plan_outside(promising(VALUES[0]), "float16", Plan()) is None  # no number of it exceeds 1e15
    assert plan_outside(promising(None), "float32", Plan()) is None


@pytest.mark.parametrize(
    "limit",
    [
        {"max_columns": 100},
        {"min_rows": 1},
        {"max_rank": 2},
        {"min_eps": 1e-6},
        {"layouts": ("contiguous",)},
        {"optional": False},
        {"parameter_dtypes": ("float32",)},
    ],
    ids=lambda limit: next(iter(limit)),
)
def test_all_hazards_are_tried_where_more_than_values_can_lie_outside(promising, limit):
    plan = Plan(hazards=("ordinary",))
    assert plan_outside(promising(Domain(max_abs=1e15, **limit)), "float32", plan) == plan
