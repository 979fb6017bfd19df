"""Each rule of an audit by itself: what is a finding, what a line comes to, and the exit status."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from verifier.audit import rules, tally
from verifier.audit.rules import Conformance
from verifier.bounds.why_none import NOT_FINITE, OVERFLOW
from verifier.records.case import Case
from verifier.records.subject import Claim, Domain
from verifier.records.verdict import FailureKey, Finding, Line, Measured, Outcome, Verdict, Worst

V = Verdict
WORST = Worst(
    output="output", index=(0, 0), actual=2.0, expected=1.0, error=1.0, bound=0.5, ulp=1.0, row_ulp=1.0,
    utilisation=2.0,
)  # fmt: skip


def case_of(rows=2, columns=4, value=1.0, op="layer_norm"):
    x = torch.full((rows, columns), value)
    scalars = {"eps": 1e-5, "normalized_shape": (columns,)}
    return Case(
        op=op,
        dtype="float32",
        tensors={"input": x, "weight": None, "bias": None},
        scalars=scalars,
        rows=rows,
        columns=columns,
        kappa=1.0,
        largest=value,
    )


def subject_of(domain=None, guarantees=(), variance="two_pass"):
    """Return what the rules read of a subject."""
    claim = Claim(variance=variance)
    return SimpleNamespace(
        op="layer_norm", domain=domain, guarantees=frozenset(guarantees), claim=claim, signature={}
    )


def check_of(name="forward_error", **changes):
    """Return what the rules read of a check."""
    return SimpleNamespace(**{"NAME": name, "JUDGES_NUMBERS": False, "ONLY_INSIDE": False, **changes})


def line_of(counts=(), **changes):
    given = {"subject": "s", "check": "c", "dtype": "float32", "backend": "eager", "variance": "two_pass"}
    return Line(**given, counts=Counter(counts), **changes)


def finding_of(verdict=V.FAIL, *, expected=False, unwritten=""):
    return Finding(
        subject="s",
        path="p",
        check="c",
        op="layer_norm",
        dtype="float32",
        backend="eager",
        verdict=verdict,
        outcome=Outcome(verdict=verdict),
        case=case_of(),
        declaration="",
        expected=expected,
        unwritten=unwritten,
    )


NARROW = Domain(max_columns=2)
SMALL = Domain(max_abs=0.5)
"""A case lies outside: of the one by its extents, of the other by its numbers."""
WIDE = Domain(max_abs=100.0)


# -- one outcome -----------------------------------------------------------------------------------


def test_a_case_lies_outside_where_a_declared_domain_excludes_it():
    assert not rules.outside(subject_of(), case_of())
    assert not rules.outside(subject_of(WIDE), case_of())
    assert rules.outside(subject_of(NARROW), case_of())


@pytest.mark.parametrize(
    ("reasons", "excused"),
    [((), False), ((OVERFLOW,), True), ((OVERFLOW, NOT_FINITE), True), ((OVERFLOW, "other"), False)],
)
def test_only_what_a_domain_cannot_promise_is_excused(reasons, excused):
    assert rules.excused(Outcome(verdict=V.NO_THEOREM, reasons=reasons)) is excused


@pytest.mark.parametrize(
    ("changes", "domain", "verdict"),
    [
        ({}, WIDE, V.NO_THEOREM),
        ({"uncovered": 0}, WIDE, V.PASS),
        ({"reasons": (OVERFLOW,)}, WIDE, V.PASS),
        ({}, None, V.PASS),
        ({}, Domain(max_columns=100), V.PASS),
        ({}, SMALL, V.PASS),
        ({"verdict": V.FAIL}, WIDE, V.FAIL),
    ],
)
def test_a_pass_with_elements_without_a_theorem_breaks_a_promise_of_values(changes, domain, verdict):
    outcome = Outcome(**{"verdict": V.PASS, "uncovered": 1, **changes})
    assert rules.promised(subject_of(domain), case_of(), outcome).verdict is verdict


def test_nothing_is_promised_of_numbers_that_are_not_finite():
    outcome = Outcome(verdict=V.PASS, uncovered=1)
    domain = Domain(max_kappa=1e3)
    assert domain.numeric
    assert rules.promised(subject_of(domain), case_of(), outcome).verdict is V.NO_THEOREM
    assert rules.promised(subject_of(domain), case_of(value=float("inf")), outcome).verdict is V.PASS


@pytest.mark.parametrize("verdict", [V.FAIL, V.CRASH, V.TIMEOUT])
def test_a_failure_is_a_finding_inside_the_domain_and_outside(verdict):
    for domain in (None, WIDE, NARROW):
        assert rules.is_finding(subject_of(domain), check_of(), case_of(), Outcome(verdict=verdict))


@pytest.mark.parametrize("verdict", [V.PASS, V.UNDECIDED, V.ERROR, V.SKIPPED])
def test_what_does_not_speak_against_a_subject_is_no_finding(verdict):
    assert not rules.is_finding(subject_of(WIDE), check_of(), case_of(), Outcome(verdict=verdict))


def test_a_refusal_is_a_finding_inside_the_domain_alone():
    refused = Outcome(verdict=V.REFUSED)
    assert rules.is_finding(subject_of(), check_of(), case_of(), refused)
    assert not rules.is_finding(subject_of(NARROW), check_of(), case_of(), refused)


def test_a_result_without_a_theorem_is_a_finding_where_numbers_are_promised_and_an_algorithm_is_claimed():
    without = Outcome(verdict=V.NO_THEOREM, output="output")

    def found(outcome=without, **subject):
        return rules.is_finding(subject_of(**subject), check_of(), case_of(), outcome)

    assert found(domain=WIDE)
    assert not found(domain=None)
    assert not found(domain=Domain(max_columns=100))
    assert not found(domain=SMALL)
    assert not found(domain=WIDE, variance=None)
    assert not found(replace(without, reasons=(OVERFLOW,)), domain=WIDE)


@pytest.mark.parametrize(
    ("eps", "domain", "found"),
    [
        (1e-20, WIDE, False),
        (1e-12, WIDE, True),
        (1e-20, replace(WIDE, min_eps=1e-20), True),
    ],
)
def test_an_eps_smaller_than_any_in_use_is_promised_only_by_word(eps, domain, found):
    case = case_of()
    case = replace(case, scalars={**case.scalars, "eps": eps})
    without = Outcome(verdict=V.NO_THEOREM, output="output")
    assert rules.is_finding(subject_of(domain), check_of(), case, without) is found


def test_what_has_no_exact_value_has_no_theorem_either(monkeypatch):
    the_op = SimpleNamespace(undefined=lambda _: {"running_var"}, claimed=lambda _: True)
    monkeypatch.setattr(rules, "op", lambda _: the_op)
    for output, found in (("running_var", False), ("output", True)):
        outcome = Outcome(verdict=V.NO_THEOREM, output=output)
        assert rules.is_finding(subject_of(WIDE), check_of(), case_of(), outcome) is found


def test_a_check_that_looks_inside_alone_finds_outside_what_is_kept_and_nothing_else():
    inside_alone, failed = check_of("finite", ONLY_INSIDE=True), Outcome(verdict=V.FAIL)
    assert rules.is_finding(subject_of(), inside_alone, case_of(), failed)
    assert not rules.is_finding(subject_of(NARROW), inside_alone, case_of(), failed)
    assert rules.is_finding(subject_of(NARROW), inside_alone, case_of(), replace(failed, kept=True))


def test_wrong_numbers_of_which_nothing_is_promised_are_excused_unless_guaranteed():
    numbers, other = Outcome(verdict=V.FAIL, worst=WORST), Outcome(verdict=V.FAIL)
    judging = check_of("gradcheck", JUDGES_NUMBERS=True)

    def found(outcome, check=None, **subject):
        given = {"domain": SMALL, **subject}
        return rules.is_finding(subject_of(**given), check or check_of("layouts"), case_of(), outcome)

    assert not found(numbers)
    assert found(other)
    assert not found(other, judging)
    assert found(numbers, guarantees=("layouts",))
    assert found(replace(numbers, verdict=V.CRASH))
    assert found(numbers, domain=NARROW)


def test_outside_what_is_no_finding_is_counted_as_not_judged():
    refused = Outcome(verdict=V.REFUSED, worst=WORST)
    counted = rules.as_counted(subject_of(NARROW), check_of(), case_of(), refused)
    assert (counted.verdict, counted.worst) == (V.SKIPPED, None)
    assert rules.as_counted(subject_of(), check_of(), case_of(), refused) is refused
    failed, passed = Outcome(verdict=V.FAIL), Outcome(verdict=V.PASS)
    assert rules.as_counted(subject_of(NARROW), check_of(), case_of(), failed) is failed
    assert rules.as_counted(subject_of(NARROW), check_of(), case_of(), passed) is passed


@pytest.mark.parametrize(
    ("outcome", "key"),
    [
        (Outcome(verdict=V.CRASH, message="KeyError: 'x'"), "CRASH||KeyError"),
        (
            Outcome(verdict=V.FAIL, output="mean", message="mean has shape (3,): 1"),
            "FAIL|mean|mean has shape",
        ),
        (Outcome(verdict=V.FAIL, output="output", message="output: 3 of 4", worst=WORST), "FAIL|output|"),
    ],
)
def test_a_failure_is_known_by_verdict_output_and_first_words_or_that_numbers_are_wrong(outcome, key):
    assert str(rules.failure_key(outcome)) == key
    assert FailureKey.read(key) == rules.failure_key(outcome)


def test_a_key_of_which_parts_are_missing_is_read_as_far_as_it_goes():
    assert FailureKey.read("FAIL") == FailureKey(verdict="FAIL")
    assert FailureKey.read("FAIL|output|a|b") == FailureKey(verdict="FAIL", output="output", words="a|b")


@pytest.mark.parametrize(
    ("wanted", "outcome", "akin"),
    [
        ("FAIL|output|", Outcome(verdict=V.FAIL, output="mean", worst=WORST), True),
        ("FAIL|output|", Outcome(verdict=V.FAIL, output="mean"), False),
        ("FAIL|output|shape", Outcome(verdict=V.FAIL, output="mean"), True),
        ("FAIL|output|shape", Outcome(verdict=V.FAIL, output="mean", worst=WORST), False),
        ("FAIL|output|", Outcome(verdict=V.FAIL, output="declaration"), True),
        ("FAIL|output|", Outcome(verdict=V.CRASH, output="output"), True),
        ("CRASH||KeyError", Outcome(verdict=V.CRASH, worst=WORST), True),
        ("CRASH||KeyError", Outcome(verdict=V.TIMEOUT), False),
        ("CRASH||OutOfBounds", Outcome(verdict=V.FAIL, output="mean"), True),
        ("None", Outcome(verdict=V.FAIL), False),
    ],
)
def test_another_backend_may_see_a_failure_of_the_same_kind_or_output(wanted, outcome, akin):
    assert rules.akin(FailureKey.read(wanted), outcome) is akin


def test_of_executions_without_a_launch_only_what_speaks_against_the_subject_stands():
    outcomes = [Outcome(verdict=verdict) for verdict in V]
    kept = rules.without_passes(outcomes, ["nothing ran", "nothing ran"])
    against = [V.FAIL, V.REFUSED, V.CRASH, V.TIMEOUT, V.ERROR]
    assert [o.verdict for o in kept] == [*against, V.UNDECIDED]
    assert kept[-1].message == "nothing ran"


# -- one case --------------------------------------------------------------------------------------


def test_what_is_measured_decides_nothing_and_a_doubt_stays():
    measured = Outcome(verdict=V.FAIL, measured=Measured(seen="so"), doubtful=True)
    passed = Outcome(verdict=V.PASS)
    assert rules.deciding([measured, passed]) == [passed]
    assert rules.in_doubt([measured, passed])
    assert not rules.in_doubt([passed])


# -- one line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (line_of({V.PASS: 1}), V.PASS),
        (line_of({V.PASS: 1, V.UNDECIDED: 3, V.NO_THEOREM: 1}), V.PASS),
        (line_of({V.PASS: 1}, doubtful=1), V.UNDECIDED),
        (line_of({V.PASS: 1}, skipped="why"), V.SKIPPED),
        (line_of({V.PASS: 1, V.UNDECIDED: 1}, empty=1), V.UNDECIDED),
        (line_of({V.PASS: 1}, empty=1), V.PASS),
        (line_of({V.PASS: 1, V.ERROR: 1}), V.ERROR),
        (line_of({V.ERROR: 1}, findings=[finding_of(expected=True)]), V.ERROR),
        (line_of({V.ERROR: 1}, findings=[finding_of()]), V.FAIL),
        (line_of(findings=[finding_of(V.NO_THEOREM), finding_of(V.REFUSED)]), V.REFUSED),
        (line_of(findings=[finding_of(V.CRASH, expected=True), finding_of(V.FAIL)]), V.FAIL),
        (line_of(findings=[finding_of(V.CRASH, expected=True)]), V.CRASH),
        (line_of({V.NO_THEOREM: 2}), V.UNDECIDED),
        (line_of(), V.UNDECIDED),
    ],
)
def test_the_verdict_of_a_line(line, verdict):
    assert rules.line_verdict(line) is verdict


@pytest.mark.parametrize(
    ("line", "no_case", "known"),
    [
        (line_of(left_out=3), True, True),
        (line_of({V.SKIPPED: 2}, left_out=3), True, True),
        (line_of({V.UNDECIDED: 2}, left_out=3), False, False),
        (line_of(), False, False),
        (line_of(left_out=3, skipped="why"), False, False),
        (line_of(findings=[finding_of(expected=True)], left_out=3), False, True),
        (line_of(findings=[finding_of(expected=True), finding_of()]), False, False),
        (line_of({V.ERROR: 1}, findings=[finding_of(expected=True)]), False, False),
        (line_of({V.PASS: 1}), False, False),
    ],
)
def test_known_defects_alone_cause_a_verdict_or_leave_no_case(line, no_case, known):
    assert rules.no_case_left(line) is no_case
    assert rules.known_alone(line) is known


def test_a_line_on_which_all_was_measured_says_only_that():
    measured = {"measured": Counter({Measured(seen="so"): 1})}
    assert rules.only_measured(line_of(**measured))
    assert rules.only_measured(line_of({V.SKIPPED: 1}, **measured))
    assert not rules.only_measured(line_of({V.PASS: 1}, **measured))
    assert not rules.only_measured(line_of(findings=[finding_of()], **measured))
    assert not rules.only_measured(line_of())


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": {V.SKIPPED: 1}},
        {"skipped": "why"},
        {"listed": 1},
        {"left_out": 1},
        {"beyond": Counter({V.PASS: 1})},
        {"measured": Counter({Measured(seen="so"): 1})},
        {"findings": [finding_of()]},
    ],
)
def test_a_line_is_begun_when_anything_is_known_of_it(changes):
    assert not rules.begun(line_of())
    assert rules.begun(line_of(**changes))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (line_of({V.PASS: 1}), Conformance.CONFORMS),
        (line_of(skipped="why"), Conformance.NOT_RUN),
        (line_of({V.PASS: 1}, findings=[finding_of()]), Conformance.FAILS),
        (line_of({V.ERROR: 1}, findings=[finding_of()]), Conformance.FAILS),
        (line_of(findings=[finding_of(expected=True)]), Conformance.CONFORMS),
        (line_of({V.ERROR: 1, V.PASS: 1}), Conformance.VERIFIER_FAILED),
        (line_of(left_out=2), Conformance.NO_CASE_LEFT),
        (line_of({V.NO_THEOREM: 2}), Conformance.UNDECIDED),
    ],
)
def test_what_a_line_is_in_a_users_own_tests(line, found):
    assert rules.conformance(line) is found


# -- a whole run -----------------------------------------------------------------------------------


NEWS, KNOWN = line_of(findings=[finding_of()]), line_of(findings=[finding_of(expected=True)])
PASSED, OPEN, BROKEN = line_of({V.PASS: 1}), line_of({V.UNDECIDED: 1}), line_of({V.ERROR: 1})
UNWRITTEN = line_of(findings=[finding_of(unwritten="no room")])
CRASHES = line_of(findings=[finding_of(V.CRASH, expected=True)])


@pytest.mark.parametrize(
    ("lines", "failed", "status"),
    [
        ([PASSED, OPEN], {}, 0),
        ([KNOWN], {}, 0),
        ([CRASHES], {}, 3),
        ([line_of({V.PASS: 1}, findings=CRASHES.findings)], {}, 0),
        ([OPEN], {}, 3),
        ([line_of({V.UNDECIDED: 7, V.PASS: 1}, empty=1)], {}, 3),  # what passed had no element
        ([NEWS, BROKEN], {"errors": ["e"]}, 1),
        ([UNWRITTEN], {}, 2),
        ([NEWS], {"unusable": ["f"]}, 2),
        ([PASSED, BROKEN], {}, 4),
        ([PASSED], {"errors": ["e"]}, 4),
        ([NEWS], {"unusable": ["f"], "interrupted": True}, 130),
    ],
)
def test_the_exit_status(lines, failed, status):
    assert rules.exit_status(lines, **failed) == status


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [((V.PASS, V.NO_THEOREM), 0), ((V.NO_THEOREM,), 3), ((V.PASS, V.ERROR), 4), ((), 3)],
)
def test_the_exit_status_of_a_replay(verdicts, status):
    outcomes = [Outcome(verdict=verdict) for verdict in verdicts]
    assert rules.replay_status(None, outcomes) == status
    assert rules.replay_status(finding_of(), outcomes) == 1


def test_reasons_of_undecided_cases_stand_in_the_order_in_which_they_came():
    line, texts = line_of(), [f"{letter} is lacking" for letter in "hgfedcba"]
    tally.add(line, case_of(), [Outcome(verdict=V.UNDECIDED, message=t) for t in texts], outside=False)
    assert list(line.undecided) == texts
