"""What is not guaranteed is measured and decides nothing; what is guaranteed is demanded."""

import pytest
from checks_support import cases_of, examination, failures, faulty, outcomes_of, passes

from verifier.audit import tally
from verifier.audit.budget import Budget
from verifier.audit.rules import line_verdict
from verifier.records.verdict import Line, Measured, Outcome, Verdict

GUARANTEED = (
    ("determinism", "sums_in_random_order"),
    ("batch_invariance", "sums_by_number_of_rows"),
    ("special_values", "nan_becomes_zero"),
)


@pytest.mark.parametrize(("name", "stem"), GUARANTEED)
def test_without_the_guarantee_nothing_fails_and_the_difference_is_reported(name, stem):
    subject = faulty(stem).differing(guarantees=frozenset())
    found = outcomes_of(subject, name)
    assert not failures(found)
    assert any(o.evidence for o in found)


@pytest.mark.parametrize(("name", "stem"), GUARANTEED[:2])
def test_a_line_that_only_measured_is_skipped_and_says_what_was_measured(name, stem):
    subject = faulty(stem).differing(guarantees=frozenset())
    line = examination(subject, name, budget=Budget(cases=6)).run()
    assert line_verdict(line) is Verdict.SKIPPED
    assert f"{name} is not guaranteed" in line.skipped
    assert "measured: bits" in line.skipped


def test_a_measured_outcome_is_no_counted_case():
    line = Line(subject="s", check="c", dtype="float32", backend="eager", variance="two_pass")
    (case,) = cases_of(faulty("sums_in_random_order"), "determinism", count=1)
    tally.add(line, case, [Outcome(verdict=Verdict.SKIPPED, measured=Measured(seen="seen"))], outside=False)
    assert not line.counts
    assert line.measured == {Measured(seen="seen"): 1}


def test_a_measured_outcome_beside_a_decided_one_leaves_the_decision():
    line = Line(subject="s", check="c", dtype="float32", backend="eager", variance="two_pass")
    (case,) = cases_of(faulty("sums_in_random_order"), "determinism", count=1)
    both = [Outcome(verdict=Verdict.SKIPPED, measured=Measured(seen="seen")), Outcome(verdict=Verdict.PASS)]
    tally.add(line, case, both, outside=False)
    assert line_verdict(line) is Verdict.PASS


def test_rows_beside_nan_are_judged_with_or_without_the_guarantee():
    found = outcomes_of(faulty("nan_becomes_zero").differing(guarantees=frozenset()), "special_values")
    assert passes(found)
