"""Fuzzing finds a failure soon, reports it once, saves it at once and goes on to what it has not tried."""

import time

import pytest

from verifier.audit import fuzz as fuzzing
from verifier.audit.fuzz import fuzz
from verifier.audit.report.terminal import summary
from verifier.audit.request import SelectionError
from verifier.audit.rules import line_verdict
from verifier.audit.run_audit import select
from verifier.audit.search import COVERING_SHARE
from verifier.records.case import load
from verifier.records.verdict import FailureKey, Verdict

pytestmark = pytest.mark.usefixtures("no_child")
KERNELS = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def wrong_in_long_rows(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * (1.01 if input.shape[-1] > 200 else 1)

@subject(**{**DECLARED, "language": "triton"})
def cannot_run(input, weight=None, bias=None, eps=1e-5):
    return input
"""


def run(kernel_file, tmp_path, *subjects, budget="quick", seed=0, checks=("forward_error",)):
    jobs = select([kernel_file(KERNELS)], check_names=checks, subjects=subjects)
    said = []
    report = fuzz(jobs, budget=budget, seed=seed, folder=tmp_path / "found", say=said.append)
    return report, said


def test_a_failure_is_found_shrunk_saved_and_said_once(kernel_file, tmp_path):
    report, said = run(kernel_file, tmp_path, "wrong_in_long_rows", "good")
    (finding,) = report.findings
    assert report.status == 1
    assert len(said) == 1
    assert finding.case.columns <= 256
    assert finding.case.rows == 1
    (file,) = (tmp_path / "found").glob("*.json")
    assert str(file) == finding.file
    assert load(file)[0].columns == finding.case.columns


def test_a_failure_that_another_check_has_shown_is_said_in_a_line_that_replays_it(kernel_file, tmp_path):
    report, said = run(kernel_file, tmp_path, "wrong_in_long_rows", checks=("forward_error", "layouts"))
    first, second = report.findings
    assert len([text for text in said if "worst error" in text]) == 1
    assert (
        said[1].strip() == "FAIL  wrong_in_long_rows  layouts  float32  as above in forward_error (float32)"
    )
    assert said[2].strip() == f"replay       norm-verifier replay {second.file}"
    assert first.file != second.file


def test_rounds_do_not_repeat_what_earlier_ones_tried(kernel_file, tmp_path, monkeypatch):
    tried = []
    original = fuzzing.run_job

    def watched(job, share, seed, **options):
        tried.append((seed, options["first"], options["reported"]))
        return original(job, share, seed, **options)

    monkeypatch.setattr(fuzzing, "run_job", watched)
    report, _ = run(kernel_file, tmp_path, "wrong_in_long_rows", seed=5)
    seeds, firsts, reported = zip(*tried, strict=True)
    assert seeds == (5, 6)
    assert firsts == (0, round(fuzzing.ROUND_CASES * COVERING_SHARE))
    assert reported[0] == frozenset()
    assert reported[1] == {FailureKey(verdict="FAIL", output="output")}
    assert len(report.findings) == 1


def test_seconds_are_kept_to(kernel_file, tmp_path):
    started = time.monotonic()
    report, _ = run(kernel_file, tmp_path, "good", budget="3s")
    assert report.status == 0
    assert report.lines[0].listed > round(fuzzing.ROUND_CASES * COVERING_SHARE)  # more than one round
    assert time.monotonic() - started < 30.0  # three seconds, and what a busy machine makes of it


def test_what_a_short_search_did_not_reach_is_said_and_no_dtype_comes_last(kernel_file, tmp_path):
    both = KERNELS.replace(
        "@subject(**DECLARED)", '@subject(**{**DECLARED, "dtypes": ("float32", "float64")})', 1
    )
    jobs = select([kernel_file(both)], check_names=("forward_error", "finite", "layouts"), subjects=("good",))
    report = fuzz(jobs, budget="0.001s", seed=0, folder=tmp_path, say=print)
    reached = [f"{line.subject} {line.check} {line.dtype}" for line in report.lines]
    wanted = [f"good {c} {d}" for c in ("forward_error", "finite", "layouts") for d in ("float32", "float64")]
    assert [*reached, *report.unreached] == wanted
    assert report.unreached
    assert "not reached in the budget (good " in summary(report)


def test_a_search_that_can_run_nothing_ends(kernel_file, tmp_path):
    started = time.monotonic()
    jobs = select([kernel_file(KERNELS)], check_names=("gradient",), subjects=("good",))
    report = fuzz(jobs, budget="1h", seed=0, folder=tmp_path, say=print)
    assert report.status == 3
    assert line_verdict(report.lines[0]) is Verdict.SKIPPED
    assert time.monotonic() - started < 60.0


@pytest.mark.parametrize("budget", ["-1s", "0", "soon", "", "nan", "1e9h"])
def test_a_budget_that_is_none_is_refused(budget, kernel_file, tmp_path):
    with pytest.raises(SelectionError, match="budget"):
        run(kernel_file, tmp_path, "good", budget=budget)


def test_an_interrupt_keeps_what_was_found(kernel_file, tmp_path, monkeypatch):
    original = fuzzing.run_job

    def interrupted(job, share, seed, **options):
        if options["first"]:
            raise KeyboardInterrupt
        return original(job, share, seed, **options)

    monkeypatch.setattr(fuzzing, "run_job", interrupted)
    report, _ = run(kernel_file, tmp_path, "wrong_in_long_rows")
    assert report.interrupted
    assert len(report.findings) == 1
    assert list((tmp_path / "found").glob("*.json"))
