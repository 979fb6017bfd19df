"""What a declared domain promises, what it excuses, and what it cannot excuse."""

from dataclasses import replace

import pytest
import torch
from examined_kernels import KERNELS, examined

from strategies.values import Values
from verifier.audit import rules
from verifier.audit.examination import Examination
from verifier.audit.rules import line_verdict, unexpected
from verifier.bounds.why_none import OVERFLOW
from verifier.cases.recipe import Recipe, assemble, build
from verifier.ops import op
from verifier.records.subject import Domain
from verifier.records.verdict import Outcome, Verdict, Worst

WORST = Worst(
    output="output", index=(0, 0), actual=2.0, expected=1.0, error=1.0, bound=0.5, ulp=1.0, row_ulp=1.0,
    utilisation=2.0,
)  # fmt: skip


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


def test_a_refusal_inside_the_domain_is_a_finding_and_outside_it_is_right(subjects, runner):
    subject = subjects["refuses_long_rows"]
    line = examined(subject, runner)
    assert line_verdict(line) is Verdict.REFUSED
    assert unexpected(line.findings)
    inside = examined(subject.differing(domain=Domain(max_columns=100)), runner)
    assert line_verdict(inside) is Verdict.PASS
    assert inside.beyond[Verdict.SKIPPED] == inside.outside > 0
    assert set(inside.counts) == {Verdict.PASS}


def test_a_wrong_result_outside_the_domain_is_a_finding_all_the_same(subjects, runner):
    subject = subjects["wrong_in_long_rows"].differing(domain=Domain(max_columns=100))
    assert line_verdict(examined(subject, runner)) is Verdict.FAIL


@pytest.mark.parametrize(
    ("domain", "why"),
    [
        (
            Domain(min_columns=20000),
            "none of the cases that are tried lies inside the declared domain, which",
        ),
        (Domain(max_abs=1e-30), "none of the cases that are tried lies inside the declared domain"),
        (Domain(max_columns=100), ""),
    ],
)
def test_a_domain_that_leaves_nothing_to_try_is_said(subjects, runner, domain, why):
    subject = subjects["good"].differing(domain=domain)
    line = examined(subject, runner, check="layouts", cases=3)
    told = [note for note in line.notes if "declared domain" in note]
    assert len(told) == bool(why)
    assert all(note.startswith(why) for note in told)
    assert line_verdict(line) is (Verdict.UNDECIDED if why else Verdict.PASS)


def numbers_above_100(subject, *, columns=8):
    recipe = Recipe(rows=2, columns=columns, input=Values(scale=10))
    case = build(op("layer_norm"), subject, "float32", recipe, gradients=False)
    assert case.largest > 100
    return case


def test_a_wrong_result_outside_by_numbers_alone_is_no_finding_and_is_not_counted_as_judged(subjects, runner):
    free = subjects["wrong_for_large_numbers"]
    examining = Examination(subject=free, check_name="forward_error", dtype="float32", runner=runner)
    case = numbers_above_100(free)
    assert examining.examine_case(case)[0] is not None
    for domain in (Domain(max_abs=100.0), Domain(max_abs=100.0, max_columns=4)):
        promising = replace(examining, subject=free.differing(domain=domain))
        finding, (outcome,) = promising.examine_case(case)
        assert finding is None
        assert promising.as_counted(case, outcome).verdict is Verdict.SKIPPED
    inside = replace(examining, subject=free.differing(domain=Domain(max_abs=1e30)))
    assert inside.examine_case(case)[0] is not None


def test_guarantees_and_demands_on_more_than_numbers_hold_whatever_the_numbers(subjects, runner):
    subject = subjects["wrong_for_large_numbers"].differing(domain=Domain(max_abs=100.0))
    case = numbers_above_100(subject)
    numbers = Outcome(verdict=Verdict.FAIL, message="", worst=WORST)
    elsewhere = Outcome(verdict=Verdict.FAIL, message="wrote beyond its output")

    def finds(check, outcome, guarantees=frozenset()):
        given = subject.differing(guarantees=guarantees)
        examining = Examination(subject=given, check_name=check, dtype="float32", runner=runner)
        return examining.is_finding(case, outcome)

    assert not finds("layouts", numbers)
    assert finds("layouts", numbers, frozenset({"layouts"}))
    assert not finds("gradcheck", elsewhere)
    assert finds("memory", elsewhere)
    assert finds("forward_error", replace(numbers, verdict=Verdict.CRASH))


def test_no_theorem_inside_a_numeric_domain_is_a_finding(subjects, runner):
    free, promising = (
        subjects["good"],
        subjects["good"].differing(domain=Domain(max_abs=1e39, max_kappa=1e30)),
    )
    assert line_verdict(examined(free, runner, cases=40)) is Verdict.PASS
    assert line_verdict(examined(promising, runner, cases=40)) is Verdict.NO_THEOREM


def test_one_row_without_a_theorem_takes_the_pass_from_a_promise(subjects, runner):
    """The first row is within its bound; of the second, whose squares cancel, the textbook says nothing."""
    row = torch.randn(64, generator=torch.Generator().manual_seed(1))
    tensors = {"input": torch.stack([row, row + 1e4]), "weight": None, "bias": None}
    scalars = {"eps": 1e-5, "normalized_shape": (64,)}
    case = assemble(op("layer_norm"), "float32", tensors, scalars, {}, hazard="cancellation", origin="")
    textbook = subjects["good"].differing(variance="textbook")
    free = Examination(subject=textbook, check_name="forward_error", dtype="float32", runner=runner)
    finding, (outcome,) = free.examine_case(case)
    assert finding is None
    assert outcome.verdict is Verdict.PASS
    assert outcome.uncovered == 64
    promising = replace(free, subject=free.subject.differing(domain=Domain(max_abs=1e15)))
    finding, _ = promising.examine_case(case)
    assert finding.verdict is Verdict.NO_THEOREM
    assert "variance" in finding.outcome.message
    outside = replace(free, subject=free.subject.differing(domain=Domain(max_abs=1e15, max_kappa=1e3)))
    assert outside.examine_case(case)[0] is None


def test_only_what_a_domain_cannot_promise_is_excused(subjects, runner):
    """An overflow after the statistics is excused; beside another reason it excuses nothing."""
    subject = subjects["good"].differing(domain=Domain(max_abs=1e39, max_kappa=1e30))
    examining = Examination(subject=subject, check_name="forward_error", dtype="float32", runner=runner)
    case = build(op("layer_norm"), subject, "float32", Recipe(rows=1, columns=8), gradients=False)
    for verdict in (Verdict.NO_THEOREM, Verdict.PASS):
        for reasons, found in (((OVERFLOW,), False), ((OVERFLOW, "other"), True), (("other",), True)):
            message = f"output: {'; '.join(reasons)}"
            outcome = Outcome(verdict=verdict, message=message, uncovered=1, reasons=reasons)
            assert examining.is_finding(case, rules.promised(subject, case, outcome)) == found


def test_everything_outside_the_domain_and_refused_is_undecided(subjects, runner):
    subject = subjects["refuses_long_rows"].differing(domain=Domain(min_columns=10**6))
    line = examined(replace_function(subject), runner)
    assert line_verdict(line) is Verdict.UNDECIDED


def replace_function(subject):
    def refuses(input, weight=None, bias=None, eps=1e-5):
        raise ValueError("never")

    return replace(subject, function=refuses)
