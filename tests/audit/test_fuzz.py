"""Fuzzing finds a failure soon, reports it once, saves it at once and goes on to what it has not tried."""

import time

import pytest
from campaigns import campaign, counted

from verifier.audit.fuzzing import campaign as campaigns
from verifier.audit.fuzzing.corpus import Corpus
from verifier.audit.fuzzing.progress_of_job import UNIT_CASES
from verifier.audit.report.terminal import summary
from verifier.audit.request import BUDGETS, SelectionError
from verifier.audit.rules import line_verdict
from verifier.audit.run_audit import select
from verifier.audit.search import COVERING_SHARE
from verifier.commands.fuzz_run import Telling, progress_text
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


@pytest.fixture
def run(kernel_file, tmp_path):
    file = kernel_file(KERNELS)
    return lambda *subjects, out=tmp_path / "out", **wishes: campaign(file, out, *subjects, **wishes)


@pytest.fixture
def batches(monkeypatch):
    """Keep the batches that are run."""
    tried, original = [], campaigns.run_batch

    def watched(batch):
        tried.append(batch)
        return original(batch)

    monkeypatch.setattr(campaigns, "run_batch", watched)
    return tried


class Screen:
    """Keeps what is printed."""

    is_terminal = False

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def test_a_failure_is_found_shrunk_saved_and_told_once(run, tmp_path):
    report, told = run("wrong_in_long_rows", "good")
    (finding,) = report.findings
    assert report.status == 1
    assert [f.file for f in told.told] == [finding.file]
    assert finding.case.columns <= 256
    assert finding.case.rows == 1
    (file,) = (tmp_path / "out" / "findings").glob("*.json")
    assert str(file) == finding.file
    assert load(file)[0].columns == finding.case.columns


def test_a_failure_that_another_check_has_shown_is_said_in_a_line_that_replays_it(run):
    _, told = run("wrong_in_long_rows", checks=("forward_error", "layouts"))
    first, second = told.told
    screen = Screen()
    telling = Telling(screen, None)
    telling.tell(first)
    telling.tell(second)
    assert len([text for text in screen.said if "worst error" in text]) == 1
    assert (
        screen.said[1].strip()
        == "FAIL  wrong_in_long_rows  layouts  float32  as above in forward_error (float32)"
    )
    assert screen.said[2].strip() == f"replay       norm-verifier replay {second.file}"
    assert first.file != second.file


def test_generations_do_not_repeat_what_earlier_ones_tried(run, batches, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", 2 * UNIT_CASES)
    report, _ = run("wrong_in_long_rows", seed=5)
    first, second = batches
    assert first.seed == 5
    assert second.seed > first.seed + UNIT_CASES  # a search takes the next ones for itself
    assert (first.first, second.first) == (0, round(UNIT_CASES * COVERING_SHARE))
    assert first.reported == frozenset()
    assert second.reported == {FailureKey(verdict="FAIL", output="output")}
    assert len(report.findings) == 1


def test_a_run_draws_afresh_and_says_the_seed_that_repeats_it(run, tmp_path):
    first, told = run("good", seed=None)
    assert told.said == [f"seed {first.seed} (drawn; --seed {first.seed} asks for it again)"]
    again, told = run("good", seed=first.seed, out=tmp_path / "again")
    assert told.said == [f"seed {first.seed}"]
    assert counted(again) == counted(first)
    other, _ = run("good", seed=None, out=tmp_path / "other", budget="0.001s")
    assert other.seed != first.seed


def test_seconds_are_kept_to(run):
    started = time.monotonic()
    report, _ = run("good", budget="3s")
    assert report.status == 0
    assert report.lines[0].counts.total() > 0
    assert time.monotonic() - started < 30.0  # three seconds, and what a busy machine makes of it


def test_what_a_short_search_did_not_reach_is_said_and_no_dtype_comes_last(kernel_file, tmp_path):
    both = KERNELS.replace(
        "@subject(**DECLARED)", '@subject(**{**DECLARED, "dtypes": ("float32", "float64")})', 1
    )
    file = kernel_file(both)
    checks = ("forward_error", "finite", "layouts")
    jobs = select([file], check_names=checks, subjects=("good",))
    report, _ = campaign(file, tmp_path / "out", jobs=jobs, budget="0.001s")
    reached = [f"{line.subject} {line.check} {line.dtype}" for line in report.lines]
    wanted = [f"good {c} {d}" for c in ("forward_error", "finite", "layouts") for d in ("float32", "float64")]
    assert sorted([*reached, *report.unreached]) == sorted(wanted)
    assert report.unreached
    assert "not reached in the budget (good " in summary(report)


def test_every_dtype_meets_a_check_before_any_meets_the_next(kernel_file, tmp_path, batches):
    both = KERNELS.replace(
        "@subject(**DECLARED)", '@subject(**{**DECLARED, "dtypes": ("float32", "float64")})', 1
    )
    campaign(kernel_file(both), tmp_path, "good", checks=("finite", "layouts"), budget="quick")
    assert [(u.job.check, u.job.dtype) for u in batches][:4] == [
        (check, dtype) for check in ("finite", "layouts") for dtype in ("float32", "float64")
    ]


def test_a_search_that_can_run_nothing_ends(run):
    started = time.monotonic()
    report, _ = run("good", checks=("gradient",), budget="1h")
    assert report.status == 3
    assert line_verdict(report.lines[0]) is Verdict.SKIPPED
    assert time.monotonic() - started < 60.0


@pytest.mark.parametrize("budget", ["-1s", "0", "soon", "", "nan", "1e9h"])
def test_a_budget_that_is_none_is_refused(budget, run):
    with pytest.raises(SelectionError, match="budget"):
        run("good", budget=budget)


def test_an_interrupt_keeps_what_was_found(run, tmp_path):
    report, _ = run("wrong_in_long_rows", budget="1h", stops=lambda status: status.findings)
    assert report.interrupted
    assert report.status == 130
    assert len(report.findings) == 1
    assert list((tmp_path / "out" / "findings").glob("*.json"))


def test_progress_says_cases_findings_reach_and_the_best_error_of_each_check(run):
    _, told = run("good", checks=("forward_error", "layouts"))
    last = told.shown[-1]
    text = progress_text(last)
    assert f"{last.cases} cases (" in text
    assert " a second)" in text
    assert "0 findings" in text
    assert f"{last.reached} places reached" in text
    assert last.reached > 0
    assert 0 < last.best["forward_error"] < 1
    assert f"forward_error {last.best['forward_error']:.3g}" in text


def test_a_kernel_that_has_changed_begins_a_campaign_of_its_own(kernel_file, tmp_path):
    file = kernel_file(KERNELS)
    campaign(file, tmp_path / "out", "good", budget="1h", stops=lambda status: status.cases)
    file = kernel_file(KERNELS + "\n# another\n")
    _, told = campaign(file, tmp_path / "out", "good")
    assert not [text for text in told.said if "goes on" in text]


def test_a_later_campaign_replays_what_an_earlier_one_kept_before_all_else(run, batches, tmp_path):
    run("good", seed=1)
    corpus = Corpus(tmp_path / "out" / "corpus")
    kept = corpus.read(batches[0].job, corpus.names(batches[0].job))
    assert kept
    run("good", seed=2)
    assert set(batches[1].guide.replayed) == {one.recipe for one in kept}
    assert len(batches[1].guide.replayed) == len(kept)
    assert batches[1].cases == batches[0].cases + len(kept)
