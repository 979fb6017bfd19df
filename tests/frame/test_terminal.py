"""The report on a terminal: what was not run stands apart from notes on what was."""

from io import StringIO

from rich.console import Console

from verifier.audit import Report
from verifier.report.terminal import show
from verifier.verdicts import Line

NOT_RUN, NOTES = "\nNot run, and why:\n", "\nNotes:\n"


def line(check, **changes):
    return Line(subject="kernel", check=check, dtype="float16", backend="machine", variance="none", **changes)


def printed(*lines):
    """Return what a report of these lines prints where no terminal is."""
    out = StringIO()
    show(Report(lines=list(lines), seed=0, budget="quick"), Console(file=out, width=200))
    return out.getvalue()


def test_a_note_on_a_check_that_ran_is_no_reason_why_it_did_not():
    text = printed(line("memory", notes=["bits equal"]), line("gradcheck", skipped="needs float64"))
    not_run, notes = text.split(NOT_RUN)[1].split(NOTES)
    assert "needs float64\n    kernel/gradcheck (float16)" in not_run
    assert "bits equal" not in not_run
    assert "bits equal\n    kernel/memory (float16)" in notes


def test_one_reason_is_said_once_for_all_checks_that_share_it():
    text = printed(*(line(name, skipped="no theorem") for name in ("claim", "gradient")))
    assert text.count("no theorem") == 1
    assert "kernel/claim, kernel/gradient (float16)" in text


def test_without_remarks_there_are_no_headings():
    text = printed(line("memory"))
    assert NOT_RUN not in text
    assert NOTES not in text
