"""A declared defect is shown by its witness, left out of the search and hides nothing else."""

from pathlib import Path

import pytest
from examined_kernels import KERNELS, examined

from verifier.audit import rules, search
from verifier.audit.rules import line_verdict, unexpected
from verifier.audit.tally import left_out_by
from verifier.cases.recipe import Recipe, build
from verifier.ops import op
from verifier.records import case as cases
from verifier.records import witness
from verifier.records.subject import KnownDefect
from verifier.records.verdict import FailureKey, Outcome, Verdict


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


def long_rows(case):
    return case.columns > 100


def with_defect(subject, **changes):
    given = {"id": "long-rows", "reason": "long rows are scaled", "where": long_rows, **changes}
    given = {"check": "forward_error", **given}
    return subject.differing(known_defects=(KnownDefect(**given),))


def save_witness(subject, columns, **facts):
    recipe = Recipe(rows=1, columns=columns)
    case = build(op("layer_norm"), subject, "float32", recipe, gradients=False)
    (defect,) = subject.known_defects
    given = {"check": "forward_error", "backend": "eager", "failure": "FAIL|output|", "versions": {}, **facts}
    document = {
        **cases.to_document(case),
        "subject": {"path": "../kernels.py", "name": subject.name},
        **given,
    }
    witness.write(witness.file_of(subject), {witness.name_of(defect, "float32"): document})


def test_a_known_defect_is_confirmed_by_its_witness_and_left_out_of_the_search(subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130)
    line = examined(subject, runner, cases=25)
    (finding,) = line.findings
    assert finding.expected
    assert finding.reason == "long rows are scaled"
    assert Path(finding.file).name == "wrong_in_long_rows.json#long-rows.forward_error.float32"
    assert not unexpected(line.findings)
    assert line.counts[Verdict.PASS] > 0


def test_a_search_that_a_known_defect_leaves_without_a_case_says_so(subjects, runner):
    subject = with_defect(subjects["good"], where=lambda case: True, backends=("machine",))
    assert not examined(subject, runner).excluded
    subject = with_defect(subjects["good"], check="gradient", also=("*",), where=lambda case: True)
    line = examined(subject, runner)
    assert line_verdict(line) is Verdict.UNDECIDED
    assert line.left_out
    assert line.excluded == ["long rows are scaled"]
    assert line.notes == [left_out_by("long rows are scaled")]


@pytest.fixture
def made(monkeypatch):
    """Return a list of the arguments of all cases that searches make."""
    found = []
    monkeypatch.setattr(search, "build", lambda *a, **options: found.append(a) or build(*a, **options))
    return found


def test_no_case_is_made_once_it_is_known_that_none_can_be_run(subjects, runner, made):
    subject = with_defect(subjects["good"], check="gradient", also=("*",), where=None)
    line = examined(subject, runner, cases=25)
    assert line_verdict(line) is Verdict.UNDECIDED
    assert line.left_out
    assert line.notes == [left_out_by("long rows are scaled")]
    assert len(made) == 1


@pytest.mark.parametrize(("cases", "patience"), [(1, 40), (25, search.PATIENCE)])
def test_how_long_a_search_looks_for_a_case_grows_with_its_budget(cases, patience, subjects, runner, made):
    subject = with_defect(subjects["good"], check="gradient", also=("*",), where=lambda case: True)
    examined(subject, runner, cases=cases)
    assert patience <= len(made) <= patience + 10 * cases


def test_a_witness_that_passes_is_an_error(subjects, runner):
    subject = with_defect(subjects["good"])
    save_witness(subject, 130)
    line = examined(subject, runner)
    assert unexpected(line.findings)
    assert "no longer found" in line.findings[0].outcome.message


@pytest.mark.parametrize(
    "facts",
    [
        {"failure": "CRASH||KeyError"},
        {"failure": "FAIL|output|nan"},
        {"failure": None},
        {"check": "gradient"},
    ],
)
def test_a_witness_that_fails_otherwise_than_its_file_says_is_a_finding(facts, subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130, **facts)
    line = examined(subject, runner, cases=3)
    assert unexpected(line.findings)
    assert "fails otherwise" in line.findings[0].outcome.message
    assert line_verdict(line) is Verdict.FAIL


def test_a_witness_from_another_backend_may_fail_otherwise_and_that_is_said(subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130, backend="machine", failure="CRASH||OutOfBounds")
    line = examined(subject, runner, cases=3)
    assert not unexpected(line.findings)
    assert any("seen otherwise than on machine" in note for note in line.notes)


@pytest.mark.parametrize("failure", ["CRASH||KeyError", "TIMEOUT||no answer", "FAIL|mean|mean has shape"])
def test_a_failure_of_another_kind_than_that_of_another_backend_is_a_finding(failure, subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130, backend="machine", failure=failure)
    line = examined(subject, runner, cases=3)
    assert unexpected(line.findings)
    assert "fails otherwise" in line.findings[0].outcome.message


def test_what_compiled_code_says_of_itself_is_the_defect_on_every_backend():
    said = Outcome(verdict=Verdict.FAIL, output="declaration", message="sums are declared in float32, ...")
    assert rules.akin(FailureKey(verdict="FAIL", output="grad_input"), said)
    assert not rules.akin(FailureKey(verdict="CRASH", output="grad_input", words="KeyError"), said)


def test_a_witness_from_another_backend_that_passes_here_is_noted_alone(subjects, runner):
    subject = with_defect(subjects["good"])
    save_witness(subject, 130, backend="machine", failure="CRASH||OutOfBounds")
    line = examined(subject, runner, cases=3)
    assert not line.findings
    assert any("not shown here by its witness of machine" in note for note in line.notes)


def test_a_known_defect_does_not_hide_another(subjects, runner):
    line = examined(with_defect(subjects["wrong"]), runner)
    assert unexpected(line.findings)
    assert all(f.case.columns <= 100 for f in line.findings)


def test_a_defect_that_the_backend_cannot_see_is_not_called_absent(subjects, runner):
    subject = with_defect(subjects["good"], backends=("cuda",))
    save_witness(subject, 130)
    line = examined(subject, runner)
    assert not line.findings
    assert any("not observable here" in note for note in line.notes)


def test_a_defect_everywhere_without_a_witness_is_said_and_not_passed(subjects, runner):
    line = examined(with_defect(subjects["wrong"], where=None), runner)
    assert line_verdict(line) is Verdict.SKIPPED
    assert "long rows are scaled" in line.skipped
