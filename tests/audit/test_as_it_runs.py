"""What an audit says while it runs: a line for each subject and dtype, and each finding once and at once."""

import math
import time
from collections import Counter
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from verifier.audit import rules
from verifier.audit.news import News, Reporter, heard_by
from verifier.audit.reach_of_subjects import SubjectReach
from verifier.audit.report.as_it_runs import AsItRuns
from verifier.audit.report.columns import COLUMNS, legend
from verifier.audit.report.subject_lines import (
    SUBJECT_COLUMNS,
    SubjectLine,
    heading,
    legends,
    remarks,
    subject_text,
)
from verifier.audit.run_audit import Job
from verifier.audit.worker_pool import pooled
from verifier.commands.screen import Bar, Screen
from verifier.records.case import Case
from verifier.records.reach import Reach, SourcePlace
from verifier.records.verdict import Finding, Line, Outcome, Verdict, Worst
from verifier.subjects.compiling import marked
from verifier.subjects.source_map import SourceFunction, SourceMap

WIDE = {"subject": 8}


def line(check="forward_error", verdict=Verdict.PASS, *, expected=False, **changes):
    given = {"subject": "kernel", "dtype": "float32", "backend": "machine", "variance": "none", **changes}
    if verdict is Verdict.SKIPPED:
        return Line(check=check, skipped="why", **given)
    bad = {Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT, Verdict.REFUSED}
    if verdict in bad:
        given.setdefault("findings", [finding(check, given["dtype"], verdict, expected=expected)])
    given.setdefault("counts", Counter({verdict: 2}))
    return Line(check=check, **given)


def finding(check="forward_error", dtype="float32", verdict=Verdict.FAIL, message="output: wrong", **changes):
    case = Case(op="layer_norm", dtype=dtype, tensors={}, scalars={}, rows=1, columns=2)
    return Finding(
        subject=changes.pop("subject", "kernel"),
        path="/project/kernel.py",
        check=check,
        op="layer_norm",
        dtype=dtype,
        backend="machine",
        verdict=verdict,
        outcome=Outcome(verdict=verdict, message=message),
        case=case,
        declaration="declared",
        **changes,
    )


def worst(utilisation, output="output", ulp=1.0, nonzero=0.5):
    numbers = dict.fromkeys(("actual", "expected", "error", "bound"), 1.0)
    return Worst(
        output=output,
        index=(0,),
        utilisation=utilisation,
        ulp=ulp,
        row_ulp=ulp,
        nonzero_row_ulp=nonzero,
        **numbers,
    )


def cells(*lines, checks=None, reach=None):
    one = SubjectLine(lines=lines, checks=checks or len(lines), reach=reach)
    return {column.name: column.text(one) for column in SUBJECT_COLUMNS}


# -- a subject's line --------------------------------------------------------------------------

BADNESS = [
    line(verdict=Verdict.FAIL),
    line(verdict=Verdict.CRASH),
    line(verdict=Verdict.TIMEOUT),
    line(verdict=Verdict.REFUSED),
    line(verdict=Verdict.ERROR),
    line(verdict=Verdict.FAIL, expected=True),
    line(verdict=Verdict.CRASH, expected=True),
    line(verdict=Verdict.UNDECIDED),
    line(verdict=Verdict.PASS),
    line(verdict=Verdict.SKIPPED),
]


@pytest.mark.parametrize("place", range(len(BADNESS)))
def test_a_subject_looks_as_bad_as_its_worst_check(place):
    """From any place of the order on, whatever comes before or after it among the lines."""
    rest = BADNESS[place:]
    assert rules.worst_line(rest) is BADNESS[place]
    assert rules.worst_line(rest[::-1]) is BADNESS[place]


def test_a_verdict_of_known_defects_alone_is_marked_and_news_are_not():
    known = line(verdict=Verdict.FAIL, expected=True)
    assert cells(line(), known)["verdict"] == "FAIL (known)"
    assert cells(line(verdict=Verdict.CRASH), known)["verdict"] == "CRASH"


def test_the_largest_share_of_a_bound_is_told_with_its_check_and_output():
    lines = (
        line("finite", outputs={"output": worst(math.nan)}),
        line("forward_error", outputs={"output": worst(0.4)}),
        line("gradient", outputs={"grad_input": worst(0.9), "grad_bias": worst(0.1)}),
    )
    told = cells(*lines)
    assert told["error/bound"] == "0.9"
    assert told["worst in; not reached"] == "gradient grad_input"


def test_ulps_are_those_of_exact_values_other_than_zero():
    nearly_zero = line(outputs={"output": worst(0.1, ulp=5e39)}, nonzero_row_ulp=0.5, worst_ulp=5e39)
    assert cells(nearly_zero)["row ulp"] == "0.5"
    assert cells(line())["row ulp"] == "-"


def test_the_kappa_seen_is_that_of_all_checks():
    assert cells(line(kappa=(1.0, 20.0)), line(kappa=(0.5, 2.0)), line())["kappa"] == "0.5..20"
    assert cells(line())["kappa"] == "-"


def test_what_was_not_reached_is_named():
    undecided = [line(name, Verdict.UNDECIDED) for name in ("modes", "memory", "formula", "claim")]
    told = cells(line(untried=["no bias"]), *undecided, line("gradient", Verdict.SKIPPED), checks=9)
    assert told["checks"] == "5/9"
    assert told["worst in; not reached"] == (
        "6 of 9 checks ended; undecided: modes, memory, formula and 1 more; not tried: no bias"
    )


def reach_of(ran, of):
    places = [SourcePlace(file="k.py", line=10 * n, function=f"f{n}") for n in range(of)]
    functions = tuple(
        SourceFunction(path="/k.py", place=place, lines=range(place.line, place.line + 5), entry=True)
        for place in places
    )
    found = Reach(recorded=frozenset({"code"}), functions=frozenset(places[:ran]))
    return SubjectReach(
        subject="kernel", path="kernel.py", sources=SourceMap(functions=functions), found=found
    )


def test_why_nothing_was_decided_is_told():
    lacking = line(
        "modes", Verdict.UNDECIDED, undecided=Counter({"the machine lacks mbarrier": 2, "other": 1})
    )
    assert cells(lacking)["worst in; not reached"] == "undecided: modes (the machine lacks mbarrier)"
    unclaimed = line("layouts", Verdict.NO_THEOREM)
    assert "undecided: layouts (nothing is claimed: " in cells(unclaimed)["worst in; not reached"]
    assert cells(line("a", Verdict.SKIPPED))["worst in; not reached"] == "not run: why"
    assert "not run" not in cells(line("a", Verdict.SKIPPED), line())["worst in; not reached"]


def test_what_is_undecided_for_known_defects_alone_is_told_apart():
    left_out = line("modes", None, counts=Counter(), left_out=25, excluded=["forgets a mask"])
    told = cells(line(), left_out, line("memory", Verdict.UNDECIDED))["worst in; not reached"]
    assert told == "undecided: memory; known defects leave no case: modes"


def test_a_pass_says_of_how_many_functions_it_speaks():
    assert "PASS of what ran: 6 of 8 functions" in list(
        remarks(SubjectLine(lines=[line()], checks=1, reach=reach_of(6, 8)))
    )
    assert not list(remarks(SubjectLine(lines=[line()], checks=1, reach=reach_of(8, 8))))
    failed = SubjectLine(lines=[line(verdict=Verdict.FAIL)], checks=1, reach=reach_of(6, 8))
    assert list(remarks(failed)) == ["of what ran: 6 of 8 functions"]


def test_a_line_stands_below_its_heading_and_is_folded_where_there_is_no_room():
    one = SubjectLine(lines=[line(outputs={"output": worst(0.4)})], checks=1)
    text = subject_text(one, WIDE)
    assert text.index("forward_error") == heading(WIDE).index("worst in")
    assert text.index("0.4") + 3 == heading(WIDE).index("error/bound") + len("error/bound")
    above, below = subject_text(one, WIDE, room=len(text) - 1).split("\n")
    assert above == text[: len(above)]
    assert below.strip() == "forward_error output"


def test_the_legend_explains_both_tables():
    told = "\n".join(legends())
    assert all(text in told for text in (*legend(COLUMNS), *legend(SUBJECT_COLUMNS)))


# -- as it runs --------------------------------------------------------------------------------


class Audit:
    """Something that is told of lines, and what it says."""

    def __init__(self, *names, **options):
        self.said = []
        jobs = [
            Job(path="/project/kernel.py", subject="kernel", check=check, dtype=dtype, backend="machine")
            for check, dtype in names
        ]
        self.told = AsItRuns(jobs=jobs, say=lambda text, style: self.said.append(text), **options)

    def after(self, *lines):
        """Return what is newly said when these lines have ended."""
        self.said.clear()
        for one in lines:
            self.told.add(one)
        return "\n".join(self.said)


def test_a_subject_is_told_when_its_last_check_of_a_dtype_has_ended():
    names = [(c, d) for d in ("float32", "float16") for c in ("a", "b")]
    audit = Audit(*names)
    assert audit.after(line("a"), line("a", dtype="float16")) == ""
    told = audit.after(line("b"))
    assert told.splitlines()[0].startswith("verdict ")
    assert told.splitlines()[1].startswith("PASS ")
    assert len(told.splitlines()) == 2
    assert "float16" in audit.after(line("b", dtype="float16"))


def test_verdicts_that_may_be_marked_have_room():
    audit = Audit(("a", "float32"), ("a", "float16"), defects=True)
    left_out = line("a", None, counts=Counter(), left_out=25, excluded=["forgets a mask"])
    head, marked_one, usual = audit.after(left_out, line("a", dtype="float16")).splitlines()
    assert marked_one.startswith("UNDECIDED (known)  kernel ")
    assert head.index("subject") == marked_one.index("kernel") == usual.index("kernel")


def test_a_finding_is_told_at_once_and_its_like_at_the_end():
    audit = Audit(("a", "float32"), ("b", "float32"), ("c", "float32"))
    first = line("a", findings=[replace(finding("a"), file="kept/a.json")])
    assert "FAIL  kernel  a  float32  on machine" in audit.after(first)
    alike = line("b", findings=[replace(finding("b"), file="kept/b.json")])
    other = line("c", findings=[finding("c", message="grad_input: other")])
    assert audit.after(alike) == ""
    assert "grad_input: other" in audit.after(other)
    audit.said.clear()
    audit.told.end()
    told = "\n".join(audit.said)
    assert "FAIL  kernel  a  float32: output: wrong\n  also in      b (float32)" in told
    assert "norm-verifier replay kept/b.json" in told
    assert "grad_input" not in told


def test_a_finding_that_was_told_before_its_line_is_not_told_with_it():
    audit = Audit(("a", "float32"), ("b", "float32"))
    audit.told.tell(replace(finding("a"), file="kept/a.json"))
    assert "norm-verifier replay kept/a.json" in "\n".join(audit.said)
    assert audit.after(line("a", findings=[replace(finding("a"), file="kept/a.json")])) == ""
    assert "output: wrong" not in audit.after(line("b", findings=[finding("b")]))
    audit.told.end()
    assert audit.said[-1].startswith("FAIL  kernel  a  float32: output: wrong\n  also in      b (float32)")


def test_first_cases_are_told_by_their_verdicts():
    audit = Audit(("a", "float32"), ("a", "float16"))
    judged = (("ordinary", Verdict.PASS), ("gradient", Verdict.PASS), ("no rows", None))
    audit.told.tell_first_cases("kernel", "float32", judged)
    assert audit.said == ["first cases   kernel   float32   PASS: ordinary, gradient; ran: no rows"]
    audit.after(line("a"))
    audit.said.clear()
    audit.told.tell_first_cases("kernel", "float16", judged)
    assert audit.said == [], "there is a line of a subject: all is well again is no news"
    audit.told.tell_first_cases("kernel", "float16", (("ordinary", Verdict.FAIL),))
    assert audit.said == ["first cases   kernel   float16   FAIL: ordinary"]


def test_what_has_not_ended_is_told_at_the_end_with_how_much_has():
    audit = Audit(("a", "float32"), ("b", "float32"))
    audit.after(line("a"))
    audit.told.end()
    assert "1 of 2 checks ended" in audit.said[-1]


def test_a_failure_of_the_verifier_leaves_no_pass():
    audit = Audit(("a", "float32"), ("b", "float32"))
    audit.after(line("a"))
    audit.told.fail(audit.told.jobs[1])
    assert audit.said[-1].startswith("ERROR ")


def test_verbosity_chooses_between_findings_alone_subjects_and_checks():
    failed = line("a", Verdict.FAIL)
    quiet = Audit(("a", "float32"), verbosity=-1).after(failed)
    assert quiet.startswith("FAIL  kernel  a  float32  on machine")
    assert "error/bound" not in quiet
    usual = Audit(("a", "float32")).after(failed)
    assert usual.startswith(quiet)
    assert "worst in; not reached" in usual
    assert "worst in; not reached" not in (wordy := Audit(("a", "float32"), verbosity=1).after(failed))
    assert "error/two-pass" in wordy
    assert Audit(("a", "float32"), verbosity=1, tables=True).after(failed) == quiet


def test_why_a_subject_runs_nowhere_is_said_once():
    audit = Audit(("a", "float32"), ("a", "float16"))
    lines = [line("a", dtype=d, backend="-", skipped="no device") for d in ("float32", "float16")]
    assert audit.after(*lines) == "kernel: not run: no device"


# -- before a line has ended -------------------------------------------------------------------


def test_a_line_tells_that_it_begins_and_how_many_cases_are_done(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    heard = []
    with heard_by(heard.append):
        reporter = Reporter("kernel", "memory", "float32")
        reporter.begin()
        for seconds in (0.1, 0.15, 0.3, 0.35, 0.9):
            now[0] = seconds
            reporter.case()
    Reporter("kernel", "memory", "float32")
    assert [(news.check, news.cases) for news in heard] == [("memory", 0), ("memory", 3), ("memory", 5)]


def judged(check):
    """Do what a worker does: tell of a case, and return."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verifier.audit.news.SECONDS_APART", 0.0)
        reporter = Reporter("kernel", check, "float32")
        reporter.begin()
        reporter.case()
    return f"{check} has ended"


def test_news_of_workers_come_before_their_results():
    heard = []
    tasks = iter([(0, ("memory",)), (1, ("finite",))])
    results = dict(pooled(judged, tasks, 1, on_news=heard.append))
    assert results == {0: "memory has ended", 1: "finite has ended"}
    assert [(news.check, news.cases) for news in heard] == [
        ("memory", 0),
        ("memory", 1),
        ("finite", 0),
        ("finite", 1),
    ]


def test_a_bar_shows_what_runs_and_how_much_is_done(monkeypatch):
    monkeypatch.setattr("verifier.commands.screen.LOOK_SECONDS", 60.0)
    written = StringIO()
    screen = Screen()
    screen.__dict__["console"] = Console(file=written, width=120, force_terminal=True, color_system=None)
    jobs = [Job(path="k.py", subject="kernel", check=c, dtype="float32", backend=None) for c in "ab"]
    bar = Bar(screen, jobs, shown=True)
    with bar:
        bar.hear(News(subject="kernel", check="a", dtype="float32", cases=7))
        bar.refresh()
        assert "kernel a float32" in written.getvalue()
        assert "0/2 checks, 7 cases" in written.getvalue()
        bar.hear(News(subject="kernel", check="a", dtype="float32", cases=7, finding=finding("a")))
        bar.refresh()
        assert "1 failed" in written.getvalue(), "a finding counts before its line has ended"
        bar.add(line("a", Verdict.FAIL))
        bar.hear(News(subject="kernel", check="b", dtype="float32", cases=1))
        bar.refresh()
        last = written.getvalue().split("kernel b float32")[-1]
        assert "1/2 checks, 3 cases" in last
        assert "1 failed" in last
        with marked():
            bar.refresh()
            assert "compiling" not in written.getvalue(), "it has looked a moment ago"
            monkeypatch.setattr("verifier.commands.screen.LOOK_SECONDS", 0.0)
            bar.refresh()
            assert "compiling: kernel b float32" in written.getvalue()


def test_a_pipe_is_told_how_far_an_audit_is(monkeypatch, capsys):
    monkeypatch.setattr("verifier.commands.screen.FIRST_SECONDS", 0.05)
    jobs = [Job(path="k.py", subject="kernel", check="a", dtype="float32", backend=None)]
    with Bar(Screen(), jobs) as bar:
        bar.hear(News(subject="kernel", check="a", dtype="float32", cases=7))
        told, patience = "", time.monotonic() + 10.0
        while not told and time.monotonic() < patience:
            time.sleep(0.05)
            told = capsys.readouterr().err
    assert "kernel a float32 (0/1 checks, 7 cases, 0 failed)" in told
    time.sleep(0.1)
    capsys.readouterr()
    time.sleep(0.1)
    assert not capsys.readouterr().err, "it ends with the bar"
    for screen, shown in ((Screen(verbosity=-1), False), (Screen(), True)):
        with Bar(screen, jobs, shown=shown) as bar:
            bar.hear(News(subject="kernel", check="a", dtype="float32", cases=7))
            time.sleep(0.2)
        assert "checks" not in capsys.readouterr().err
