"""What makes the case of a finding pass is looked for and named; without a finding nothing is."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_findings import finding, line, worst

from strategies.layouts import Layout
from verifier.audit import causes
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.report.finding_text import failure_text, of_one_cause
from verifier.audit.report.json_document import document
from verifier.audit.run_audit import Report
from verifier.audit.trial import Trial
from verifier.execution import Runner
from verifier.records.verdict import Outcome, Variant, Verdict
from verifier.subjects.load_file import load_subjects

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "faulty_kernels"
TOLD = [
    ("column_stride_assumed", "layouts", "passes when input is contiguous: its strides (1, 2) are misread"),
    ("reads_uninitialised_partials", "gradient", f"passes when {causes.FRESH}: {causes.UNWRITTEN}"),
    ("reads_uninitialised_partials", "memory", causes.UNWRITTEN),
    ("masked_lanes_counted", "forward_error", "passes when N is a power of two (2, 4; not 3, 6)"),
    ("weight_missing", "forward_error", "passes when weight is 1: its numbers make no difference"),
    ("bias_forgotten_without_grad", "modes", "passes when bias is 0"),
    ("nan_spreads_to_next_row", "special_values", "passes when each row is alone"),
    ("variance_over_n_minus_one", "forward_error", ""),
    ("output_truncated", "forward_error", ""),  # what passes by chance is no cause
    ("weight_rounded_to_input_dtype", "forward_error", "passes when weight is bfloat16, not float32"),
]


@pytest.fixture(scope="module")
def runner():
    with Runner("eager") as made:
        yield made


def examined(path, check, runner, cases=15):
    (subject,) = load_subjects(path)
    budget = Budget(cases=cases, findings=1)
    dtype = subject.dtypes[0]
    return Examination(subject=subject, check_name=check, dtype=dtype, runner=runner, budget=budget).run()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(column_step=2), "its stride (2,) is ignored"),
        (Layout(storage_offset=3), "its storage offset of 3 is ignored"),
        (Layout(misaligned=True), "it is misaligned, at a storage offset of 1"),
    ],
)
def test_what_of_a_layout_is_not_followed_is_said(layout, words, runner, monkeypatch):
    """Of whatever a kernel does: that it passes in contiguous memory is all that is known."""
    (subject,) = load_subjects(FAULTY / "column_stride_assumed.py")
    examining = Examination(subject=subject, check_name="layouts", dtype="float32", runner=runner)
    told = told_of("layouts", "")
    tensors = {"input": torch.ones(1, 2), "weight": torch.ones(2), "bias": None}
    case = replace(told.case, dtype="float32", tensors=tensors, layouts={"weight": layout})
    outcome = {True: told.outcome, False: Outcome(verdict=Verdict.PASS, output="output")}
    monkeypatch.setattr(Trial, "judge", lambda _self, case: ([outcome[bool(case.layouts)]], ""))
    assert causes.explained(examining, replace(told, case=case)).variants[0].shows == words


@pytest.mark.parametrize(("stem", "check", "cause"), TOLD)
def test_the_cause_of_a_finding_is_named(stem, check, cause, runner):
    (found,) = examined(FAULTY / f"{stem}.py", check, runner).findings
    assert found.cause == cause
    assert len(found.variants) <= causes.MOST_TRIES


KEPT = """
_LAST = []

@subject(**DECLARED)
def kept(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps)
    _LAST.append(input.shape)
    return out + 1 if len({*_LAST}) > 1 else out  # the bug: another shape came before
"""


def test_a_failure_that_needs_earlier_calls_says_so(kernel_file, runner):
    """Its minimal case passes when it is replayed, and what makes it small means nothing."""
    (found,) = examined(kernel_file(KEPT), "forward_error", runner).findings
    assert [v.change for v in found.variants] == ["it is the first call of a process"]
    assert f"passes when it is the first call of a process: {causes.KEPT_STATE}" in failure_text(found)


def test_cancellation_is_named(runner):
    (found,) = examined(FAULTY / "welford_claimed_textbook_computed.py", "claim", runner).findings
    assert found.cause.startswith("passes when the mean of each row is 0: |mean|/std is ")


def test_without_a_finding_nothing_is_looked_for(runner, monkeypatch):
    monkeypatch.delattr(causes, "explained")
    line = examined(ROOT / "kernels" / "layer_norm_welford_torch.py", "forward_error", runner, cases=3)
    assert line.counts[Verdict.PASS] == 3


def test_no_plain_calls_are_made_on_tensors_that_span_gigabytes(runner, monkeypatch):
    """What lies between their elements would be filled, three times: a minute for one finding."""
    asked = []
    run = runner.run
    monkeypatch.setattr(runner, "run", lambda *given, **told: (asked.append(told), run(*given, **told))[1])
    (found,) = examined(FAULTY / "grad_weight_without_rstd.py", "large_offsets", runner, cases=3).findings
    assert found.case.layouts
    assert found.variants
    assert not any(told.get("poison") == "zero" for told in asked)


VARIANT = Variant(
    change="weight is contiguous",
    verdict=Verdict.PASS,
    tensor="weight",
    strides=(2,),
    shows="its stride (2,) is ignored",
)


def test_the_formula_is_blamed_only_if_nothing_else_explains_the_failure():
    bare = finding(worst=worst())
    blamed = replace(bare, outcome=replace(bare.outcome, formula="formula wrong"))
    failing = replace(VARIANT, verdict=Verdict.FAIL, shows="")
    assert "  meaning      formula wrong" in failure_text(blamed)
    assert "  meaning      formula wrong" in failure_text(replace(blamed, variants=(failing,)))
    told = failure_text(replace(blamed, variants=(failing, VARIANT)))
    assert "formula wrong" not in told
    assert "  cause        passes when weight is contiguous: its stride (2,) is ignored\n" in told


def test_the_json_has_all_that_was_tried():
    found = replace(finding(), variants=(VARIANT,))
    report = Report(lines=[line("layouts", findings=[found])], seed=0, budget="quick")
    (told,) = document(report)["findings"]
    assert told["cause"] == found.cause
    assert told["variants"] == [
        {
            "change": "weight is contiguous",
            "verdict": "PASS",
            "tensor": "weight",
            "strides": [2],
            "shows": "its stride (2,) is ignored",
        }
    ]


# -- one cause, one finding --------------------------------------------------------------------


def told_of(check, message, *variants, verdict=Verdict.FAIL, output="output", **changes):
    """Return a finding; where it has no message of its own its numbers are wrong."""
    made = finding(check, message=message or f"{output}: 1 of 2 elements", verdict=verdict, **changes)
    numbers = None if message else worst()
    return replace(made, variants=variants, outcome=replace(made.outcome, output=output, worst=numbers))


LONGER = Variant(change="N is a power of two (2, 4; not 3, 6)", verdict=Verdict.PASS)
LONGEST = replace(LONGER, change="N is a power of two (4, 8; not 5, 6)")
UNWRITTEN = Variant(change=causes.FRESH, verdict=Verdict.FAIL, shows=causes.UNWRITTEN)
CRASHED = {"verdict": Verdict.CRASH, "output": ""}
ONE_CAUSE = {
    "stride": [
        told_of("layouts", "OutOfBounds: a.py:7", replace(VARIANT, strides=(0,)), **CRASHED),
        told_of("layouts", "", VARIANT),
        told_of("modes", "", VARIANT, output="grad_input"),
    ],
    "memory": [
        told_of("gradient", "", UNWRITTEN, output="grad_weight"),
        told_of("memory", "grad_weight depends on what memory held", UNWRITTEN, output="grad_weight"),
    ],
    "line": [
        told_of("memory", "OutOfBounds: 2 bytes past y, b16 (source a.py:9)", **CRASHED),
        told_of("memory", "OutOfBounds: 4 bytes past y, b32 (source a.py:9)", dtype="float32", **CRASHED),
    ],
    "none": [
        told_of(check, f"grad_weight is None; ({n},) is expected", output="grad_weight")
        for n, check in enumerate(("gradient", "layouts"))
    ],
    "change": [
        told_of("metamorphic", ""),  # of which nothing is known, but that the output is wrong
        told_of("forward_error", "", LONGER),
        told_of("formula", "output differs from layer_norm", LONGEST),
    ],
}


@pytest.mark.parametrize("found", ONE_CAUSE.values(), ids=ONE_CAUSE)
def test_what_has_one_cause_is_one_finding(found):
    (group,) = of_one_cause(found)
    assert len(group) == len(found)
    assert group[0].verdict is Verdict.FAIL or all(f.verdict is Verdict.CRASH for f in found)
    assert group[0].cause or not any(f.cause for f in found)


def test_a_fail_is_told_before_a_crash():
    crash, fail = told_of("memory", "KeyError", **CRASHED), told_of("modes", "output is wrong")
    assert [group[0] for group in of_one_cause([crash, fail])] == [fail, crash]


def test_wrong_numbers_join_no_cause_where_there_are_two():
    columns = replace(VARIANT, tensor="input", strides=(1, 4))
    found = [told_of("forward_error", "", LONGER), told_of("layouts", "", columns), told_of("context", "")]
    assert [len(group) for group in of_one_cause(found)] == [1, 1, 1]
    others = [told_of("forward_error", "", LONGER), told_of("gradient", "", output="grad_input")]
    assert [len(group) for group in of_one_cause(others)] == [1, 1]


def test_a_layout_counts_where_the_case_was_not_seen_to_fail_without():
    odd = replace(finding().case, layouts={"input": None})
    freed = replace(VARIANT, change="input is contiguous", verdict=Verdict.FAIL, shows="")
    plain, needs, does_not = (
        told_of(check, "", *variants, case=case)
        for check, variants, case in (
            ("forward_error", (), finding().case),
            ("layouts", (), odd),
            ("large_offsets", (freed,), odd),
        )
    )
    assert of_one_cause([plain, needs, does_not]) == [[plain, does_not], [needs]]


def test_what_else_is_said_of_a_cause_stands_under_also_in():
    first, same, other = (
        told_of("forward_error", "", LONGER),
        replace(told_of("layouts", "", LONGER), file="kept/one.json"),
        told_of("claim", "output: 2 of 2 elements; it keeps the bound of textbook", LONGER),
    )
    assert failure_text(first, [same, other]).splitlines()[-3:] == [
        "  also in      layouts (float16)",
        "               claim (float16): output: 2 of 2 elements; it keeps the bound of textbook",
        "               norm-verifier replay kept/one.json",
    ]
