"""What verdicts add up to: a failure always wins, and nothing decided is never a pass."""

import math

import pytest
import torch

from verifier.audit import tally
from verifier.audit.rules import line_verdict, summed, unexpected
from verifier.audit.run_audit import Report
from verifier.records.case import Case
from verifier.records.verdict import Finding, Line, Measured, Outcome, Verdict, Worst

V = Verdict


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ((V.PASS, V.FAIL), V.FAIL),
        ((V.PASS, V.NO_THEOREM), V.PASS),
        ((V.PASS, V.UNDECIDED), V.UNDECIDED),
        ((V.FAIL, V.UNDECIDED), V.FAIL),
        ((V.NO_THEOREM,), V.NO_THEOREM),
        ((V.PASS, V.REFUSED), V.REFUSED),
        ((V.FAIL, V.CRASH, V.TIMEOUT), V.FAIL),
        ((V.FAIL, V.TIMEOUT), V.FAIL),
        ((V.FAIL, V.ERROR), V.FAIL),
        ((V.PASS, V.ERROR, V.UNDECIDED), V.ERROR),
        ((), V.UNDECIDED),
    ],
)
def test_a_case_has_the_worst_verdict_of_its_parts(parts, whole):
    assert summed(parts) is whole


def a_case(**changes):
    given = {
        "op": "layer_norm",
        "dtype": "float32",
        "tensors": {"input": torch.ones(1, 1)},
        "scalars": {"eps": 1e-5},
        "rows": 1,
        "columns": 1,
    }
    return Case(**{**given, **changes})


def a_line(*outcomes, variance="two_pass"):
    line = Line(subject="s", check="c", dtype="float32", backend="eager", variance=variance)
    for outcome in outcomes:
        tally.add(line, a_case(), [outcome], outside=False)
    return line


def a_finding(verdict=V.FAIL, *, expected=False):
    return Finding(
        subject="s",
        path="p",
        check="c",
        op="layer_norm",
        dtype="float32",
        backend="eager",
        verdict=verdict,
        outcome=Outcome(verdict=verdict),
        case=a_case(),
        declaration="",
        expected=expected,
    )


def worst(utilisation, output="output", **changes):
    given = {
        "output": output,
        "index": (0,),
        "actual": 1.0,
        "expected": 1.0,
        "error": 0.0,
        "bound": 1.0,
        "ulp": utilisation,
        "row_ulp": utilisation,
        "utilisation": utilisation,
    }
    return Worst(**{**given, **changes})


def test_a_case_in_doubt_takes_the_pass_from_its_line():
    doubt = Outcome(verdict=V.UNDECIDED, measured=Measured(seen="close"), doubtful=True)
    line = a_line(Outcome(verdict=V.PASS, decided=1), doubt)
    assert line_verdict(line) is V.UNDECIDED
    assert line.measured[Measured(seen="close")] == 1


@pytest.mark.parametrize("verdict", [V.NO_THEOREM, V.REFUSED, V.SKIPPED])
def test_a_line_that_decided_nothing_is_undecided(verdict):
    assert line_verdict(a_line(*[Outcome(verdict=verdict)] * 3)) is V.UNDECIDED
    assert line_verdict(a_line()) is V.UNDECIDED


def test_one_decided_case_makes_a_pass_and_one_finding_unmakes_it():
    line = a_line(Outcome(verdict=V.PASS, decided=4), Outcome(verdict=V.NO_THEOREM, uncovered=4))
    assert line_verdict(line) is V.PASS
    line.findings.append(a_finding())
    assert line_verdict(line) is V.FAIL
    assert unexpected(line.findings)


@pytest.mark.parametrize("verdict", [V.FAIL, V.CRASH, V.TIMEOUT, V.REFUSED, V.NO_THEOREM])
def test_the_verdict_of_a_line_is_that_of_its_worst_finding(verdict):
    line = a_line(Outcome(verdict=V.PASS, decided=1))
    line.findings.append(a_finding(verdict))
    assert line_verdict(line) is verdict


def test_an_expected_finding_is_no_unexpected_one_and_does_not_hide_one():
    line = a_line(Outcome(verdict=V.FAIL))
    line.findings = [a_finding(V.CRASH, expected=True)]
    assert not unexpected(line.findings)
    line.findings.append(a_finding(V.FAIL))
    assert unexpected(line.findings)
    assert line_verdict(line) is V.FAIL


def test_the_worst_element_is_kept_for_each_output():
    line = a_line(
        Outcome(verdict=V.PASS, decided=1, worst=worst(0.5)),
        Outcome(verdict=V.PASS, decided=1, worst=worst(0.25)),
        Outcome(verdict=V.PASS, decided=1, worst=worst(0.75, "grad_input")),
        Outcome(verdict=V.NO_THEOREM, uncovered=1, worst=worst(math.nan, ulp=1e9, row_ulp=1e9)),
    )
    assert line.outputs["output"].utilisation == 0.5
    assert line.worst.output == "grad_input"
    assert line.worst_ulp == 0.75, "an element without a theorem counted as the worst"


@pytest.mark.parametrize(
    ("lines", "errors", "status"),
    [
        ([], [], 3),
        ([a_line()], [], 3),
        ([a_line(Outcome(verdict=V.NO_THEOREM))], [], 3),
        ([a_line(Outcome(verdict=V.PASS, decided=1))], [], 0),
        ([a_line(Outcome(verdict=V.PASS, decided=1)), a_line()], [], 0),
        ([a_line(Outcome(verdict=V.PASS, decided=1))], ["the verifier itself failed"], 4),
    ],
)
def test_the_exit_status_says_clean_only_if_something_was_decided(lines, errors, status):
    assert Report(lines=lines, errors=errors).status == status


def test_the_exit_status_is_1_for_unexpected_findings_alone():
    line = a_line(Outcome(verdict=V.FAIL))
    line.findings = [a_finding(expected=True)]
    assert Report(lines=[line]).status == 0
    line.findings.append(a_finding(V.REFUSED))
    assert Report(lines=[line]).status == 1


PASSED = Outcome(verdict=V.PASS, decided=1)


def lacking(text):
    return Outcome(verdict=V.UNDECIDED, message=text)


def test_a_line_counts_why_cases_are_undecided_once_for_messages_that_differ_in_numbers():
    line = a_line(lacking("the machine lacks x"), lacking("off by 3"), lacking("off by 4.5e-3"), PASSED)
    assert line.undecided == {"the machine lacks x": 1, "off by 3": 2}
    assert line_verdict(line) is V.PASS


def test_a_failure_of_the_verifier_itself_takes_the_pass_and_no_finding():
    line = a_line(PASSED, PASSED, Outcome(verdict=V.ERROR, message="KeyError: 7"))
    assert line_verdict(line) is V.ERROR
    assert not unexpected(line.findings)
    assert list(line.errors) == ["KeyError: 7"]
    assert Report(lines=[line, a_line(PASSED)]).status == 4
    line.findings = [a_finding(expected=True)]
    assert line_verdict(line) is V.ERROR
    line.findings = [a_finding()]
    assert line_verdict(line) is V.FAIL
    assert Report(lines=[line]).status == 1
