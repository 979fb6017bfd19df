"""A campaign goes on where it was stopped, and counts every batch once, whatever ended the process."""

import os
import signal
from collections import Counter
from concurrent.futures import Future

import pytest
from campaigns import campaign, counted

from verifier.audit.fuzzing import campaign as campaigns
from verifier.audit.fuzzing.case_batch import BatchResult
from verifier.audit.fuzzing.journal import Journal
from verifier.audit.fuzzing.progress_of_job import JobProgress
from verifier.audit.fuzzing.steered_search import Kept
from verifier.audit.request import BUDGETS, SelectionError
from verifier.audit.run_audit import Job
from verifier.cases.recipe import Recipe
from verifier.records.verdict import Line, Verdict

KERNELS = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def wrong_in_long_rows(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * (1.01 if input.shape[-1] > 200 else 1)
"""
CASES, BATCHES = 6, 3


@pytest.fixture
def run(no_child, kernel_file, tmp_path, monkeypatch):
    """Return a function that runs campaigns of three small batches of one kernel."""
    monkeypatch.setattr(campaigns, "UNIT_CASES", CASES)
    monkeypatch.setitem(BUDGETS, "quick", CASES * BATCHES)
    file = kernel_file(KERNELS)
    return lambda *subjects, out=tmp_path / "out", **wishes: campaign(file, out, *subjects, **wishes)


@pytest.fixture
def batches(monkeypatch):
    """Keep the places of batches that are run."""
    tried, original = [], campaigns.run_batch

    def watched(batch):
        tried.append(batch.place)
        return original(batch)

    monkeypatch.setattr(campaigns, "run_batch", watched)
    return tried


def killed(run, after, **wishes):
    """Run a campaign in a process that kills itself with -9 after so many cases."""

    def die(status):
        if status.cases >= after:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        try:
            run(stops=die, **wishes)
        finally:
            os._exit(7)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_a_campaign_that_was_killed_goes_on_and_ends_as_if_it_had_not_been(run, batches, tmp_path):
    whole, _ = run(out=tmp_path / "whole")
    assert len(batches) == 2 * BATCHES
    batches.clear()
    killed(run, after=3 * CASES)
    resumed, told = run(seed=None)
    assert counted(resumed) == counted(whole)
    assert resumed.seed == whole.seed
    assert 0 < len(batches) < 2 * BATCHES  # in this process; the others were not run again
    assert [text for text in told.said if "goes on where it was stopped" in text]
    corpora = [sorted(p.name for p in (tmp_path / d / "corpus").rglob("*.json")) for d in ("whole", "out")]
    assert corpora[0] == corpora[1] != []


def test_what_was_found_before_is_told_again_and_reported_once(run, tmp_path):
    killed(lambda **w: run("wrong_in_long_rows", **w), after=CASES)
    resumed, told = run("wrong_in_long_rows")
    assert len(resumed.findings) == len(told.told) == 1
    assert [str(p) for p in (tmp_path / "out" / "findings").glob("*.json")] == [resumed.findings[0].file]


def test_a_line_that_was_torn_was_never_counted(run, batches, tmp_path):
    whole, _ = run("good", out=tmp_path / "whole")
    run("good", stops=lambda status: status.cases >= 2 * CASES)
    log = tmp_path / "out" / "journal.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + lines[1][: len(lines[1]) // 2])
    batches.clear()
    resumed, _ = run("good")
    assert batches == [(0, 1, 0), (0, 2, 0)]
    assert counted(resumed) == counted(whole)
    assert len(log.read_bytes().splitlines()) == BATCHES


def test_a_campaign_that_has_spent_its_budget_is_not_gone_on_with(run, batches):
    run("good")
    _, told = run("good", seed=None)
    assert len(batches) == 2 * BATCHES
    assert not [text for text in told.said if "goes on" in text]


def test_two_campaigns_do_not_share_a_folder(run, tmp_path):
    held = Journal(tmp_path / "out")
    with pytest.raises(SelectionError, match="another campaign works in this folder"):
        run("good")
    held.close()
    report, _ = run("good")
    assert report.status == 0


class Backwards:
    """Does its tasks two at a time, the second first."""

    count = room = 2
    where = "here"

    def __init__(self, _on_news):
        self.waiting = []

    def begin(self, function, argument):
        future = Future()
        self.waiting.append((function, argument, future))
        if len(self.waiting) == 2:
            for of, given, ends in reversed(self.waiting):
                ends.set_result(of(given))
            self.waiting.clear()
        return future

    def close(self):
        """End nothing."""


def test_lanes_draw_the_same_whichever_unit_ends_first(run, monkeypatch, tmp_path):
    monkeypatch.setitem(BUDGETS, "quick", 4 * CASES)
    forward, _ = run("good", lanes=2, out=tmp_path / "forward")
    backward, _ = run("good", lanes=2, open_workers=Backwards, out=tmp_path / "backward")
    assert counted(backward) == counted(forward)


def line(**given):
    return Line(subject="s", check="c", dtype="float32", backend="eager", variance="two_pass", **given)


def progress(**given):
    job = Job(path="k.py", subject="s", check="c", dtype="float32", backend="eager")
    return JobProgress(number=0, job=job, seed=1, generations=None, **{"lanes": 1, **given})


def result(cases=1, **given):
    return BatchResult(line=line(counts=Counter({Verdict.PASS: cases})), cases=cases, **given)


def test_a_unit_that_ran_twice_counts_once():
    one = progress(lanes=2)
    assert one.take((0, 0, 1), result(3))
    assert not one.take((0, 0, 1), result(3))
    assert one.take((0, 0, 0), result(4))
    assert not one.take((0, 0, 0), result(4))  # of a generation that has ended
    assert (one.generation, one.cases_run, one.sum().counts[Verdict.PASS]) == (1, 7, 7)


def test_a_generation_learns_lane_by_lane_and_not_in_the_order_in_which_units_end():
    first, second = (
        Kept(recipe=Recipe(rows=1, columns=2), features=("f",)),
        Kept(recipe=Recipe(rows=3, columns=4), features=("f", "g"), scores=(("output", 0.5),)),
    )
    orders = []
    for order in ((0, 1), (1, 0)):
        one = progress(lanes=2)
        for lane in order:
            one.take((0, 0, lane), result(kept=((first, second)[lane],)))
        orders.append(one.kept)
    assert orders[0] == orders[1]
    assert [kept.features for kept in orders[0]] == [("f",), ("g",)]


def test_a_job_with_nothing_left_to_try_ends():
    one = progress()
    for generation in range(2):
        assert not one.over
        one.take((0, generation, 0), BatchResult(line=line()))
    assert one.over


def test_jobs_are_visited_in_turn(run, batches):
    run()
    assert [(job, generation) for job, generation, _ in batches] == [
        (j, g) for g in range(BATCHES) for j in (0, 1)
    ]
