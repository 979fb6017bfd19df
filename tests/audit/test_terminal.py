"""The report for a person: columns that are explained, findings told once, known defects apart."""

import io
import math
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from made_findings import finding, line, worst
from rich.console import Console

import verifier
from verifier.audit.report.columns import COLUMNS
from verifier.audit.report.finding_text import failure_text, of_one_cause
from verifier.audit.report.json_document import document
from verifier.audit.report.terminal import PlainTable, show, summary
from verifier.audit.report.traceback_text import traceback_lines
from verifier.audit.run_audit import Report
from verifier.audit.source_names import code_near_subject, near_subject
from verifier.audit.tally import left_out_by
from verifier.records.case import Case
from verifier.records.verdict import Verdict

NOT_RUN, NOTES = "\nNot run, and why:\n", "\nNotes:\n"


def printed(*lines, **options):
    """Return what a report of these lines prints where no terminal is."""
    out = StringIO()
    show(Report(lines=list(lines), seed=0, budget="quick"), Console(file=out, width=200), **options)
    return out.getvalue()


def test_a_note_on_a_check_that_ran_is_no_reason_why_it_did_not():
    text = printed(line("memory", notes=["bits equal"]), line("gradcheck", skipped="needs float64"))
    not_run, notes = text.split(NOT_RUN)[1].split(NOTES)
    assert "needs float64\n    kernel: gradcheck (float16)" in not_run
    assert "bits equal" not in not_run
    assert "bits equal\n    kernel: memory (float16)" in notes


def test_one_reason_is_said_once_for_all_checks_that_share_it():
    text = printed(*(line(name, skipped="too wide") for name in ("claim", "gradient")))
    assert text.count("too wide") == 1
    assert "kernel: claim, gradient (float16)" in text


def test_a_remark_names_each_subject_with_its_own_checks_and_dtypes():
    said = [("a", "memory", "x"), ("a", "memory", "y"), ("b", "memory", "x"), ("c", "memory", "x")]
    text = printed(*(line(c, subject=s, dtype=d, notes=["bits equal"]) for s, c, d in said))
    assert "bits equal\n    a: memory (x, y)\n    b, c: memory (x)\n" in text


def test_without_remarks_there_are_no_headings():
    text = printed(line("memory"))
    assert NOT_RUN not in text
    assert NOTES not in text


# -- the table ---------------------------------------------------------------------------------


def plain(*lines, wide=None):
    said = []
    table = PlainTable(widths=wide or {"subject": 12, "variance": 10}, say=said.append)
    for one in lines:
        table.add(one)
    return said


def test_plain_lines_stand_in_columns_under_one_heading():
    passed = line("forward_error", subject="a", variance="two_pass", outputs={"output": worst()})
    said = plain(passed, line("finite", subject="longer_name", dtype="float32", skipped="why"))
    (head,) = [text for text in said if text.startswith("subject")]
    rows = said[said.index(head) + 1 :]
    assert len(rows) == 2
    for name, words in (("check", ("forward_error", "finite")), ("verdict", ("UNDECIDED", "SKIPPED"))):
        at = head.index(name)
        assert [text[at:].split()[0] for text in rows] == list(words)
        assert all(text[at - 1] == " " for text in rows)


def test_a_heading_names_the_columns_and_the_legend_at_the_end_explains_them():
    head, *_ = plain(line("finite"))
    *_, explained = printed(line("finite")).split("\nColumns:\n")
    for column in COLUMNS:
        assert column.name in head
        assert not column.meaning or column.meaning in explained


def test_verbosity_chooses_what_is_told_when_all_has_ended():
    lines = (
        line("memory", notes=["bits equal"], findings=[finding(expected=True, reason="forgets a mask")]),
        line("gradcheck", skipped="needs float64"),
    )
    told = [printed(*lines, lines=False, verbosity=v) for v in (-1, 0, 1, 2)]
    assert told[0] == ""
    assert told[1].strip() == summary(Report(lines=list(lines), seed=0, budget="quick"))
    for words in (NOT_RUN, "forgets a mask", "Columns:"):
        assert words not in told[1]
        assert words in told[2]
    assert NOTES not in told[2]
    assert NOTES in told[3]


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_a_failure_of_the_verifier_is_told_however_little_is_wanted(verbosity):
    failed = line("memory", errors={"KeyError: 'x'": "Traceback ..."})
    text = printed(failed, lines=False, verbosity=verbosity)
    assert "the verifier itself failed: KeyError: 'x'\n    kernel: memory (float16)" in text


def test_a_number_of_ulps_is_told_of_what_is_not_zero():
    assert "worst error  1 (1 ulp) = 1 x" in failure_text(finding(worst=worst()))
    assert "worst error  1 = 1 x" in failure_text(finding(worst=replace(worst(), expected=0.0)))


def test_a_terminal_names_the_columns_as_plain_lines_do():
    out = io.StringIO()
    console = Console(file=out, width=250, force_terminal=True, color_system=None)
    show(Report(lines=[line("finite")], seed=0, budget="quick"), console)
    above, head, *_ = out.getvalue().strip().splitlines()
    assert above == "subject kernel  variance none"
    rest = [column.name for column in COLUMNS if column.name not in {"subject", "variance"}]
    assert head.split() == " ".join(rest).split()


def test_a_narrow_terminal_leaves_columns_out_and_folds_no_number():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    told = line("forward_error", worst_row_ulp=12345.678, outputs={"output": worst()})
    show(Report(lines=[told], seed=0, budget="quick"), console)
    head, row, *_ = out.getvalue().strip().splitlines()[1:]
    assert head.split() == ["dtype", "check", "verdict", "row", "ulp", "error/bound", "kappa", "cases"]
    assert row.split()[:5] == ["float16", "forward_error", "UNDECIDED", "1.23e+04", "1"]


def test_lines_that_were_told_are_not_told_again():
    assert "forward_error" in printed(line("forward_error"))
    assert "forward_error" not in printed(line("forward_error"), lines=False)


def test_what_keeps_a_subject_from_running_is_one_sentence():
    lines = [line(c, backend="-", skipped="backend eager does not run it") for c in ("finite", "memory")]
    text = printed(*lines)
    assert text.count("backend eager does not run it") == 1
    assert "kernel: not run: backend eager does not run it" in text
    assert "worst ulp" not in text
    assert "nothing was decided" in text


# -- known defects -----------------------------------------------------------------------------


def test_a_declared_defect_is_told_apart_from_news_at_the_line_and_in_the_summary():
    known = line("memory", findings=[finding(expected=True, reason="forgets a mask")])
    news = line("finite", findings=[finding(), finding(expected=True, reason="forgets a mask")])
    rows = plain(known, news)[-2:]
    assert "FAIL (known)" in rows[0]
    assert "FAIL  " in rows[1]
    assert "(known)" not in rows[1]
    assert "1 FAIL, 1 FAIL (known)" in summary(Report(lines=[known, news]))


WITHOUT_A_CASE = {
    "left_out": 25,
    "excluded": ["half adds in half"],
    "notes": [left_out_by("half adds in half")],
}


def test_a_line_without_a_case_says_which_known_defect_leaves_none():
    empty = line("memory", **WITHOUT_A_CASE)
    (row,) = plain(empty)[-1:]
    assert "UNDECIDED (known)" in row
    assert "no case left, known defect: half adds in half" in row
    text = summary(Report(lines=[empty, line("finite")]))
    assert "1 UNDECIDED, 1 UNDECIDED (known)" in text
    assert "1 line with no case left but known defects" in text


@pytest.mark.parametrize("count", [{Verdict.UNDECIDED: 1}, {Verdict.NO_THEOREM: 1}])
def test_what_was_tried_and_not_decided_is_not_excused_by_a_known_defect(count):
    open_still = line("memory", **WITHOUT_A_CASE)
    open_still.counts.update(count)
    assert "known" not in plain(open_still)[-1]


# -- findings ----------------------------------------------------------------------------------


def test_findings_of_one_cause_are_told_once_with_all_their_places():
    found = [finding(c, d, f"output: {n} of 9 elements") for n, c in enumerate("abc") for d in ("x", "y")]
    text = printed(line("a", findings=found), lines=False)
    assert text.count("of 9 elements") == 1
    assert "also in      a (y); b, c (x, y)" in text
    assert "6 unexpected findings of 1 kind" in text


def test_findings_of_other_causes_are_not_told_as_one():
    odd = Case(op="layer_norm", dtype="float16", tensors={}, scalars={}, rows=1, columns=2)
    odd = replace(odd, layouts={"input": None})
    causes = [
        finding(worst=worst()),
        finding(worst=worst(math.nan)),
        finding(worst=worst(), case=odd),
        finding(message="grad_input: 1 of 2 elements"),
        finding(message="output has dtype float32; float16 is expected"),
        finding(message="output has dtype float16; float32 is expected"),
        finding(message="output has dtype float32; float16 is expected", case=odd),
        finding(subject="other"),
        finding(path="/other/kernel.py"),
        finding(verdict=Verdict.CRASH),
    ]
    assert [len(group) for group in of_one_cause(causes)] == [1] * len(causes)


RAISED = """Traceback (most recent call last):
  File "{torch}/nn/modules/module.py", line 3, in first
    raise OSError
OSError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{verifier}/runner/execute.py", line 50, in execute
    outputs = call()
  File "/project/kernel.py", line 7, in wrapper
    return launch(x)
           ^^^^^^^^^
  File "/project/helpers/launching.py", line 9, in launch
    torch.stack(x)
  File "{torch}/functional.py", line 1, in stack
    fail()
KeyError: 'odd'
and what it says besides
""".format(torch=Path(torch.__file__).parent, verifier=Path(verifier.__file__).parent)


def test_a_traceback_shows_the_frames_of_the_users_files_innermost_first():
    assert list(traceback_lines(RAISED, Path("/project/kernel.py"))) == [
        "launching.py:9, in launch: torch.stack(x)",
        "kernel.py:7, in wrapper: return launch(x)",
        "(2 other frames, of the verifier and of libraries)",
        "and what it says besides",
    ]


def test_a_built_in_kernel_is_the_users_own_file_though_it_stands_in_the_package():
    path = Path(__file__).parents[2] / "verifier" / "kernels" / "some.py"
    text = f'Traceback (most recent call last):\n  File "{path}", line 7, in f\n    g()\nKeyError: 1\n'
    assert list(traceback_lines(text, path)) == ["some.py:7, in f: g()"]


def test_the_last_words_of_a_killed_process_are_kept():
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/project/kernel.py", line 7 in inner\n  File "/project/kernel.py", line 9 in outer\n\n'
        "Extension modules: numpy._core (total: 1)\n"
    )
    assert list(traceback_lines(text, Path("/project/kernel.py"))) == [
        "kernel.py:7, in inner",
        "kernel.py:9, in outer",
        "Fatal Python error: Segmentation fault",
    ]


def test_a_message_that_ends_in_a_colon_is_ended_by_the_exceptions_last_words():
    text = failure_text(finding(message="CompilationError: at 3:1:", detail=RAISED))
    assert "  CompilationError: at 3:1: and what it says besides\n" in text
    assert "\n  raised       launching.py:9" in text


# -- places in sources -------------------------------------------------------------------------


def test_a_source_of_another_checkout_is_named_as_the_one_beside_the_subject(tmp_path):
    from verifier.records.compiled_code import CompiledCode

    own = tmp_path / "norm.py"
    own.write_text("")
    assert near_subject("sums (/elsewhere/kernels/norm.py:86)", own) == "sums (norm.py:86)"
    assert (
        near_subject("sums (/elsewhere/kernels/other.py:86)", own) == "sums (/elsewhere/kernels/other.py:86)"
    )
    code = CompiledCode(half_places=("/one/norm.py:86", "/two/norm.py:86", "/two/norm.py:9"))
    assert code_near_subject(code, own).half_places == ("norm.py:86", "norm.py:9")


# -- what says nothing about the subject -------------------------------------------------------


def test_a_line_says_why_cases_are_undecided():
    told = line("finite", counts=Counter({Verdict.UNDECIDED: 3, Verdict.PASS: 1}))
    told.undecided.update({"the machine lacks mbarrier (k.py:3)": 2, "no kernel was launched": 1})
    reasons = "3 undecided (2: the machine lacks mbarrier (k.py:3); 1: no kernel was launched)"
    assert f"1 passed, {reasons}" in printed(told)
    assert document(Report(lines=[told]))["lines"][0]["undecided"] == dict(told.undecided)


def test_a_reason_that_is_too_long_for_its_line_stands_in_the_notes():
    long = line("finite", counts=Counter({Verdict.UNDECIDED: 1}))
    long.undecided["why " * 30 + "END"] = 1
    table, notes = printed(long).split(NOTES)
    assert "END" not in table
    assert "END\n    kernel: finite (float16)" in notes


def test_a_failure_of_the_verifier_is_told_once_with_its_lines_and_one_traceback():
    lines = [line(name, counts=Counter({Verdict.ERROR: 2})) for name in ("finite", "memory")]
    for one in lines:
        one.errors["KeyError: 7"] = f"Traceback of {one.check}"
    text = printed(*lines)
    assert text.count("the verifier itself failed: KeyError: 7\n    kernel: finite, memory (float16)") == 1
    assert "Traceback of finite" in text
    assert "Traceback of memory" not in text
    assert "2 ERROR" in text
    assert "4 errors of the verifier itself" in text
