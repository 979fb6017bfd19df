"""The audit itself: which lines it runs, how it ends, and what a dead worker costs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from checks_support import FAULTY
from waiting import gone, until

from verifier.audit import causes, examination, rules, shrink
from verifier.audit import run_audit as auditing
from verifier.audit.report.json_document import document
from verifier.audit.report.terminal import summary
from verifier.audit.request import BUDGETS
from verifier.audit.run_audit import Job, Report, audit, runs_on, select
from verifier.audit.trial import Trial
from verifier.audit.worker_pool import Died, pooled
from verifier.execution.process_tree import tree
from verifier.records.verdict import Line, Verdict
from verifier.subjects.load_file import builtin_folder, load_subjects

DIES_IN_A_WORKER = """
import os
import torch
from verifier import subject

if os.environ["AUDITOR"] != str(os.getpid()):
    os._exit(3)


@subject(op="layer_norm", language="torch", variance="two_pass", dtypes=("float32",))
def dying(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)
"""


def test_a_job_that_kills_its_worker_alone_too_is_an_error_of_the_verifier(tmp_path, monkeypatch):
    monkeypatch.setenv("AUDITOR", str(os.getpid()))
    file = tmp_path / "dying.py"
    file.write_text(DIES_IN_A_WORKER)
    jobs = select([file], check_names=("forward_error",))
    report = audit(jobs, workers=2)
    assert report.errors == [
        "dying forward_error float32: a worker process died: the process ended with exit status 3"
    ]
    assert report.status == 4


@pytest.fixture
def found_is_enough(monkeypatch):
    """What a finding shrinks to, and what explains it, is tested elsewhere."""
    monkeypatch.setattr(shrink, "REDUCTION_SECONDS", 0.0)
    monkeypatch.setattr(causes, "SECONDS", 0.0)


def test_first_cases_are_told_at_once_and_judged_once(monkeypatch):
    """And nothing of the report hangs on them: neither the cases nor the findings."""
    monkeypatch.setitem(BUDGETS, "quick", 6)
    calls = []
    judge = Trial.judge
    monkeypatch.setattr(Trial, "judge", lambda *args: (calls.append(1), judge(*args))[1])
    file = FAULTY / "grad_weight_without_rstd.py"
    jobs = select([file], check_names=("forward_error", "gradient"), dtypes=("float32",))
    heard = []
    first = audit(jobs, first_cases=True, on_news=heard.append)
    with_first, without = len(calls), audit(jobs)
    assert with_first == len(calls) - with_first
    told = [news for news in heard if news.first_cases or news.finding]
    assert told[0].first_cases == (("ordinary", Verdict.PASS), ("gradient", Verdict.FAIL))
    assert told[1].finding.check == "gradient"
    assert heard[:2] == told[:2], "before any line begins"
    assert [news.finding.outcome for news in told[1:]] == [finding.outcome for finding in first.findings]
    assert seen_of(first) == seen_of(without)


@pytest.mark.usefixtures("found_is_enough")
def test_a_smoke_audit_asks_a_few_cases_without_dry_runs_and_says_so(monkeypatch):
    monkeypatch.setattr(examination, "sweep", lambda *_: pytest.fail("a dry run"))
    file = FAULTY / "grad_weight_without_rstd.py"
    report = audit(
        select([file], check_names=("forward_error", "gradient"), dtypes=("float32",)), budget="smoke"
    )
    right, wrong = report.lines
    assert (rules.line_verdict(right), rules.line_verdict(wrong)) == (Verdict.PASS, Verdict.FAIL)
    assert max(right.counts.total(), wrong.counts.total()) <= BUDGETS["smoke"]
    assert summary(report).endswith("`--budget quick` and `--budget standard` ask more")
    report.budget = "quick"
    assert "ask more" not in summary(report)


@pytest.mark.usefixtures("found_is_enough")
def test_first_cases_come_first_in_a_budget_of_time_too():
    """And are counted, though the list may end before it comes to them."""
    file = FAULTY / "grad_weight_without_rstd.py"
    jobs = select([file], check_names=("forward_error", "gradient"), dtypes=("float32",))
    heard = []
    report = audit(jobs, budget="60s", first_cases=True, stop_at_finding=True, on_news=heard.append)
    assert heard[0].first_cases == (("ordinary", Verdict.PASS), ("gradient", Verdict.FAIL))
    (gradient,) = report.lines
    assert gradient.counts == {Verdict.FAIL: 1}
    assert report.seconds < 60


@pytest.mark.usefixtures("found_is_enough")
@pytest.mark.parametrize(("workers", "first_cases"), [(1, True), (1, False), (2, False)])
def test_the_first_finding_ends_its_line_and_the_audit(workers, first_cases):
    """Where first cases show it, the lines before it do not begin."""
    file = FAULTY / "grad_weight_without_rstd.py"
    jobs = select([file], check_names=("forward_error", "gradient", "layouts"), dtypes=("float32",))
    whole = audit(jobs[1:2])
    report = audit(jobs, stop_at_finding=True, workers=workers, first_cases=first_cases)
    assert report.stopped
    (found,) = report.findings
    line = next(one for one in report.lines if one.findings)
    assert line.check == "gradient" or (workers > 1 and not first_cases)
    assert line.counts[Verdict.FAIL] >= 1
    assert found.check == line.check
    assert line.counts.total() < whole.lines[0].counts.total()
    if first_cases:
        assert [one.check for one in report.lines] == ["gradient"]
        assert line.counts.total() <= 2
        assert len(report.unreached) == 2


def seen_of(report):
    """Return what lines say, but for times."""
    return [(one.check, one.counts, one.outputs, [f.outcome for f in one.findings]) for one in report.lines]


def test_one_worker_runs_what_judges_the_first_cases_of_a_dtype():
    names = [("forward_error", "float32"), ("memory", "float32"), ("gradient", "float32")]
    names += [("forward_error", "float16"), ("memory", "float16")]
    jobs = [Job(path="k.py", subject="k", check=c, dtype=d, backend=None) for c, d in names]
    other = replace(jobs[0], subject="other")
    assert list(auditing.groups([*jobs, other])) == [(0, 2), (3,), (1,), (4,), (5,)]


def answer(number, folder):
    """Stand in for a job: some die the first time, some whenever they are asked; in a worker."""
    first = folder / f"began-{number}"
    fresh = not first.exists()
    first.touch()
    if number == DEADLY or (number == UNLUCKY and fresh):
        if number == UNLUCKY and os.fork() == 0:  # it keeps the pipe of its worker open
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


DEADLY, UNLUCKY = 2, 4


def test_a_worker_that_dies_takes_no_other_result_with_it_and_what_it_did_is_done_again(tmp_path):
    found = dict(pooled(answer, iter((n, (n, tmp_path)) for n in range(6)), 3))
    assert found.pop(DEADLY) == Died(message="the process was killed by SIGKILL")
    assert found == {n: n * n for n in range(6) if n != DEADLY}


HANGS = """
import time
import torch
from verifier import subject

@subject(op="layer_norm", language="torch", variance="two_pass", dtypes=("float32", "float64"))
def hanging(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    if input.dtype == torch.float64:
        time.sleep(600)
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)
"""
AUDIT = (sys.executable, "-m", "verifier", "audit", "k.py", "--check", "global_state", "--json", "r.json")


def as_in_a_terminal():
    """Let Ctrl-C through: a shell that runs the tests in the background would have it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_an_audit_in_one_line_and_keeps_what_was_found(tmp_path):
    (tmp_path / "k.py").write_text(HANGS)
    with subprocess.Popen(
        [*AUDIT, "--workers", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=as_in_a_terminal,  # noqa: PLW1509 (no thread here holds a lock)
        text=True,
    ) as running:
        line = next(line for line in running.stdout if " hanging " in line)
        assert "float32" in line
        below = tree(running.pid)
        time.sleep(0.2)  # the other dtype hangs by now, or soon
        os.killpg(running.pid, signal.SIGINT)
        started = time.monotonic()
        said = running.communicate()[1]
        seconds = time.monotonic() - started
    assert running.returncode == 130
    assert said == "norm-verifier: interrupted after 1 line; 0 unexpected findings\n"
    assert seconds < 10, "a second on a quiet machine, and never as long as the kernel"
    assert until(lambda: all(map(gone, below)))
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["interrupted"], report["status"]) == (True, 130)
    assert [line["dtype"] for line in report["lines"]] == ["float32"]


def test_ctrl_c_before_anything_ran_is_one_line_and_a_report_of_nothing(tmp_path):
    (tmp_path / "k.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n")
    with subprocess.Popen(
        AUDIT,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=as_in_a_terminal,  # noqa: PLW1509 (no thread here holds a lock)
        text=True,
    ) as running:
        assert until((tmp_path / "begun").exists, 60)
        os.killpg(running.pid, signal.SIGINT)
        said = running.communicate()
    assert (running.returncode, said) == (130, ("", "norm-verifier: interrupted\n"))
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["interrupted"], report["status"], report["lines"]) == (True, 130, [])
    assert set(report) == {*document(Report()), "costs"}


def sessions():
    return os.getpid(), os.getsid(0), os.getsid(os.getppid())


def test_an_interrupt_of_a_terminal_does_not_reach_workers():
    """It goes to the processes of its session, of which workers and the process that forks them are none."""
    ((_, (worker, own, of_server)),) = pooled(sessions, iter([(0, ())]), 1)
    assert own == worker
    assert of_server not in {own, os.getsid(0)}


def test_the_command_ends_without_taking_apart_what_it_imported():
    code = (
        "import atexit, builtins, sys\n"
        "class Late:\n"
        "    def __del__(self): print('taken apart', flush=True)\n"
        "builtins.late = Late()\n"
        "atexit.register(print, 'said at the end')\n"
        "sys.argv = ['norm-verifier', '--version']\n"
        "from verifier.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[1:] == ["said at the end"]


def test_ctrl_c_in_the_process_of_the_audit_itself_keeps_what_was_found(monkeypatch):
    job = Job(path="k.py", subject="s", check="finite", dtype="float32", backend="eager")

    def interrupted(job, share, seed, **_):
        if job.check == "memory":
            raise KeyboardInterrupt
        return Line(subject="s", check=job.check, dtype="float32", backend="eager", variance="rms")

    monkeypatch.setattr(auditing, "run_job", interrupted)
    report = audit([job, replace(job, check="memory"), job])
    assert [line.check for line in report.lines] == ["finite"]
    assert (report.interrupted, report.status) == (True, 130)


TALKS = """
import sys, typer
from rich.console import Console
from verifier.commands.output_pipe import outlive_readers
outlive_readers()
print("first", flush=True)
sys.stdin.readline()
for say in (print, typer.echo, Console().print):
    for _ in range(2000):
        say("nobody reads this")
    sys.stdout.flush()
open("report", "w").close()
"""


def test_a_command_outlives_the_readers_of_its_output(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", TALKS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout.readline() == "first\n"
        running.stdout.close()
        assert running.communicate("go on\n")[1] == ""
    assert running.returncode == 0
    assert (tmp_path / "report").exists()


def test_an_interrupted_audit_is_no_clean_one():
    line = Line(subject="s", check="c", dtype="float32", backend="eager", variance="rms")
    line.counts[Verdict.PASS] += 1
    assert Report(lines=[line]).status == 0
    assert Report(lines=[line], interrupted=True).status == 130


def test_most_checks_run_on_one_dtype_and_second_derivatives_where_they_can():
    subject = load_subjects(builtin_folder() / "layer_norm_torch.py")[0]
    assert all(runs_on(subject, "gradient", dtype) for dtype in subject.dtypes)
    assert [d for d in subject.dtypes if runs_on(subject, "memory", d)] == [subject.dtypes[0]]
    assert [d for d in subject.dtypes if runs_on(subject, "gradcheck", d)] == ["float64"]
    thin = select([subject.path], check_names=("memory", "gradient"), all_dtypes=False)
    assert len(thin) == 1 + len(subject.dtypes)


REACHED = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""


@pytest.mark.usefixtures("no_child")
def test_a_timed_audit_names_what_it_did_not_reach(kernel_file, monkeypatch):
    jobs = select([kernel_file(REACHED)], check_names=("forward_error", "finite"))
    monkeypatch.setattr(auditing, "_shares", lambda *_: lambda started: (10**9, 0.5 if started == 0 else 0.0))
    assert audit(jobs, budget="1s").unreached == [f"{j.subject} {j.check} {j.dtype}" for j in jobs[1:]]
